//! Disk images that are no copies of a disk: those of virtual machines. They are known by what they begin or end with, so that
//! a search can say what they are and what turns them into one that is read.

use cenote_vdev::{Device, ReadReq};
use std::path::Path;

/// Bytes that are looked at, at the beginning and at the end.
const LEN: usize = 512;

/// A kind of image.
struct Kind {
    name: &'static str,
    /// What `qemu-img` calls it.
    format: &'static str,
    magic: &'static [u8],
    place: Place,
}

/// Where an image has its magic number.
enum Place {
    /// So many bytes from its beginning.
    At(usize),
    /// At the beginning of its last 512 bytes.
    Last,
}

const KINDS: [Kind; 6] = [
    Kind { name: "a qcow2 image", format: "qcow2", magic: b"QFI\xfb", place: Place::At(0) },
    Kind { name: "a VMDK image", format: "vmdk", magic: b"KDMV", place: Place::At(0) },
    Kind { name: "a VHDX image", format: "vhdx", magic: b"vhdxfile", place: Place::At(0) },
    Kind { name: "a VHD image", format: "vpc", magic: b"conectix", place: Place::At(0) },
    Kind { name: "a VHD image", format: "vpc", magic: b"conectix", place: Place::Last },
    Kind { name: "a VDI image", format: "vdi", magic: b"\x7f\x10\xda\xbe", place: Place::At(64) },
];

/// What a file that has no labels is, and the command that makes a copy of the disk of it; `None`: no image that is known.
pub(crate) fn complaint(file: &dyn Device, path: &Path) -> Option<String> {
    let size = file.size();
    let last = size.checked_sub(LEN as u64)?;
    let mut reqs = [ReadReq::new(0, LEN), ReadReq::new(last, LEN)];
    file.read_batch(&mut reqs);
    let [first, last] = reqs.map(|req| req.take().ok());
    let is = |kind: &&Kind| {
        let (bytes, at) = match kind.place {
            Place::At(at) => (&first, at),
            Place::Last => (&last, 0),
        };
        bytes.as_ref().is_some_and(|b| b.bytes().get(at..at + kind.magic.len()) == Some(kind.magic))
    };
    let kind = KINDS.iter().find(is)?;
    let (name, format, path) = (kind.name, kind.format, path.display());
    Some(format!(
        "{name}; 'qemu-img convert -f {format} -O raw {path} {path}.raw' makes one that is read"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_vdev::inject::MemDevice;

    #[test]
    fn images_of_virtual_machines_are_known() {
        for kind in &KINDS {
            let mut bytes = vec![0; 1 << 20];
            let at = match kind.place {
                Place::At(at) => at,
                Place::Last => bytes.len() - LEN,
            };
            bytes[at..at + kind.magic.len()].copy_from_slice(kind.magic);
            let image = MemDevice::new("/images/x", bytes);
            let text = complaint(image.as_ref(), Path::new("/images/x")).unwrap();
            assert!(text.starts_with(kind.name) && text.contains("/images/x.raw"), "{text}");
        }
        let raw = MemDevice::new("/images/x", vec![0; 1 << 20]);
        assert_eq!(complaint(raw.as_ref(), Path::new("/images/x")), None);
    }
}
