//! `zfs rewrite`: the `ioctl` of OpenZFS (`ZFS_IOC_REWRITE`) that has a range of a file written anew
//! as it is.
//!
//! The program opens the file to be written to, so the kernel checks that the user may; it needs no
//! connection to the mount's server, and works in submounts and for every user of the mount. A
//! program that is interrupted ends when the range that it has asked for is done. So a program that
//! can be interrupted asks for one small range after the other.
//!
//! # Why the unsafe code is sound
//!
//! The kernel copies the arguments, as many bytes as the number of the `ioctl` says: the bytes of
//! [`Arguments`], by which the number is made. It writes nothing back.

#![allow(unsafe_code)]

use crate::node::{is_control, slot_of};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;

/// `zfs_rewrite_args_t`: offset, length (0: to the end), flags, and an argument, which is 0.
#[repr(C)]
struct Arguments([u64; 4]);

/// `ZFS_IOC_REWRITE`.
const REWRITE: Opcode = opcode::write::<Arguments>(0x83, 3);

/// `ZFS_REWRITE_PHYSICAL`.
const PHYSICAL: u64 = 1;
/// `ZFS_REWRITE_SKIP_SNAPSHOT`.
const SKIP_SNAPSHOT: u64 = 2;
/// `ZFS_REWRITE_SKIP_BRT`.
const SKIP_CLONED: u64 = 4;

/// What to rewrite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RewriteRange {
    /// First byte.
    pub offset: u64,
    /// Number of bytes; 0: to the end of the file.
    pub length: u64,
    /// Keeps the births of the blocks (`-P`), for which the pool needs the feature `physical_rewrite`.
    pub physical: bool,
    /// Leaves blocks that a snapshot shares where they are (`-S`).
    pub skip_snapshots: bool,
    /// Leaves blocks where they are that clones share (`-C`).
    pub skip_cloned: bool,
}

impl RewriteRange {
    fn arguments(&self) -> Arguments {
        let flags = [
            (self.physical, PHYSICAL),
            (self.skip_snapshots, SKIP_SNAPSHOT),
            (self.skip_cloned, SKIP_CLONED),
        ];
        let flags = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum();
        Arguments([self.offset, self.length, flags, 0])
    }

    /// What an `ioctl` asks for; `None` if it is another one.
    pub(crate) fn asked(command: u32, data: &[u8]) -> Option<Result<RewriteRange, Errno>> {
        if Opcode::from(command) != REWRITE {
            return None;
        }
        let mut words = [0u64; 4];
        let (chunks, rest) = data.as_chunks::<8>();
        if chunks.len() != words.len() || !rest.is_empty() {
            return Some(Err(Errno::INVAL));
        }
        for (word, bytes) in words.iter_mut().zip(chunks) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let [offset, length, flags, argument] = words;
        if flags & !(PHYSICAL | SKIP_SNAPSHOT | SKIP_CLONED) != 0 || argument != 0 {
            return Some(Err(Errno::INVAL));
        }
        Some(Ok(RewriteRange {
            offset,
            length,
            physical: flags & PHYSICAL != 0,
            skip_snapshots: flags & SKIP_SNAPSHOT != 0,
            skip_cloned: flags & SKIP_CLONED != 0,
        }))
    }
}

/// Has a range of a file, which was opened to be written to, written anew.
///
/// # Errors
/// What the kernel says: `ENOTTY` if the file is not in a file system of a pool, `EBADF` if it was
/// not opened to be written to, `EOPNOTSUPP` for what this pool or program cannot.
pub fn rewrite(file: &File, range: &RewriteRange) -> io::Result<()> {
    // SAFETY: see the head of this file.
    let done = unsafe {
        let request = Setter::<REWRITE, Arguments>::new(range.arguments());
        ioctl(file, request)
    };
    Ok(done?)
}

/// The file system, of those that one mount serves, that a file is in: files of which this is
/// different are in different file systems. Directories that only lead to submounts, and snapshots, are
/// apart as well.
pub fn file_system_of(file: &Metadata) -> (u64, u16) {
    (file.dev(), slot_of(file.ino()))
}

/// Whether a directory of a mount is `.zfs`.
pub fn is_control_directory(file: &Metadata) -> bool {
    file.is_dir() && is_control(file.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_arrives() {
        assert_eq!(u64::from(REWRITE), 0x4020_8303);
        let ranges = [
            RewriteRange::default(),
            RewriteRange { offset: 7, length: 1 << 40, physical: true, ..Default::default() },
            RewriteRange { skip_snapshots: true, skip_cloned: true, ..Default::default() },
        ];
        for range in ranges {
            let bytes: Vec<u8> =
                range.arguments().0.iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert_eq!(RewriteRange::asked(0x4020_8303, &bytes), Some(Ok(range)));
            assert_eq!(RewriteRange::asked(0x4020_8304, &bytes), None);
            let short = bytes.get(..24).unwrap();
            assert_eq!(RewriteRange::asked(0x4020_8303, short), Some(Err(Errno::INVAL)));
        }
        for (at, value) in [(16, 8), (24, 1)] {
            let mut bytes = [0u8; 32];
            bytes[at] = value;
            assert_eq!(RewriteRange::asked(0x4020_8303, &bytes), Some(Err(Errno::INVAL)));
        }
    }
}
