//! Disk images that are no copies of a disk: images of virtual machines, and of forensic tools. They are known by what
//! they begin or end with, so that a search can say what they are and what turns them into one that is read.
//!
//! An image in several files is named once, by its first one.

use cenote_vdev::{Device, ReadReq};
use std::path::Path;

/// Bytes that are looked at, at the beginning and at the end.
const LEN: u64 = 512;

/// A kind of image.
struct Kind {
    name: &'static str,
    magic: &'static [u8],
    place: Place,
    how: How,
}

/// Where an image has its magic number.
enum Place {
    /// So many bytes from its beginning.
    At(usize),
    /// At the beginning of its last 512 bytes.
    Last,
}

/// What makes a copy of the disk.
enum How {
    /// `qemu-img`, which calls it so.
    Qemu(&'static str),
    /// `ewfexport`, given the first of its files: the number of this one, two bytes, is so many bytes from its beginning.
    Ewf(usize),
}

use How::{Ewf, Qemu};
use Place::{At, Last};

const fn kind(name: &'static str, magic: &'static [u8], place: Place, how: How) -> Kind {
    Kind { name, magic, place, how }
}

const KINDS: [Kind; 11] = [
    kind("a qcow image", b"QFI\xfb\0\0\0\x01", At(0), Qemu("qcow")),
    kind("a qcow2 image", b"QFI\xfb", At(0), Qemu("qcow2")),
    kind("a VMDK image", b"KDMV", At(0), Qemu("vmdk")),
    kind("a VMDK image", b"COWD", At(0), Qemu("vmdk")),
    kind("a VMDK image", b"# Disk DescriptorFile", At(0), Qemu("vmdk")),
    kind("a VHDX image", b"vhdxfile", At(0), Qemu("vhdx")),
    kind("a VHD image", b"conectix", At(0), Qemu("vpc")),
    kind("a VHD image", b"conectix", Last, Qemu("vpc")),
    kind("a VDI image", b"\x7f\x10\xda\xbe", At(64), Qemu("vdi")),
    kind("an EWF image", b"EVF\x09\x0d\x0a\xff\0", At(0), Ewf(9)),
    kind("an EWF image", b"EVF2\x0d\x0a\x81\0", At(0), Ewf(12)),
];

/// What a file that has no labels is, and the command that makes a copy of the disk of it; `None`: no image that is known.
pub(crate) fn complaint(file: &dyn Device, path: &Path) -> Option<String> {
    let size = file.size();
    let len = size.min(LEN);
    let place = |at| ReadReq::new(at, len as usize);
    let mut reqs = [place(0), place(size - len)];
    file.read_batch(&mut reqs);
    let [first, last] = reqs.map(|req| req.take().map(|bytes| bytes.to_vec()).unwrap_or_default());
    let is = |kind: &&Kind| {
        let (bytes, at) = match kind.place {
            At(at) => (&first, at),
            Last => (&last, 0),
        };
        bytes.get(at..at + kind.magic.len()) == Some(kind.magic)
    };
    let kind = KINDS.iter().find(is)?;
    let (name, path) = (kind.name, path.display());
    let command = match kind.how {
        Qemu(format) => format!("qemu-img convert -f {format} -O raw {path} {path}.raw"),
        Ewf(at) if first.get(at..at + 2) == Some(&[1, 0]) => {
            format!("ewfexport -u -f raw -t {path} {path}")
        }
        Ewf(_) => return None,
    };
    Some(format!("{name}; '{command}' makes one that is read"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_vdev::inject::MemDevice;

    fn said(bytes: Vec<u8>) -> Option<String> {
        complaint(MemDevice::new("/images/x", bytes).as_ref(), Path::new("/images/x"))
    }

    #[test]
    fn images_of_other_programs_are_known() {
        for kind in &KINDS {
            for len in [64 + kind.magic.len(), 512, 1 << 20] {
                let mut bytes = vec![0; len];
                let at = match kind.place {
                    At(at) => at,
                    Last => bytes.len().saturating_sub(512),
                };
                bytes[at..at + kind.magic.len()].copy_from_slice(kind.magic);
                if let Ewf(at) = kind.how {
                    // It is not the first of its files.
                    assert_eq!(said(bytes.clone()), None);
                    bytes[at] = 1;
                }
                let text = said(bytes).unwrap();
                assert!(text.starts_with(kind.name), "{text}");
                match kind.how {
                    Qemu(format) => {
                        let command = format!("convert -f {format} -O raw /images/x /images/x.raw");
                        assert!(text.contains(&command), "{text}");
                    }
                    Ewf(_) => assert!(text.contains("'ewfexport "), "{text}"),
                }
            }
        }
        for len in [0, 1, 512, 1 << 20] {
            assert_eq!(said(vec![0; len]), None);
        }
    }
}
