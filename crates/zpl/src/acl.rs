//! POSIX access control lists (`zfs_acl_*`, `zpl_get_acl`).
//!
//! OpenZFS on Linux stores them as extended attributes in the form that programs see too: a version
//! (2), then entries of a tag (16 bits), permissions (16 bits) and an id (32 bits), all
//! little-endian. They are checked before they are handed out; a malformed list is an I/O error as
//! under OpenZFS, an empty one is no list. The NFSv4 lists of other systems (`ZPL_DACL_ACES`) are not
//! shown on Linux.

use crate::{Error, Result};
use cenote_format::{ByteOrder, Bytes};

/// The two lists: of the file itself, and what new files in a directory inherit.
pub(crate) const NAMES: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

const VERSION: u32 = 2;
const HEADER: usize = 4;
const ENTRY: usize = 8;
/// Owner, named user, owning group, named group, mask, others.
const TAGS: [u16; 6] = [0x01, 0x02, 0x04, 0x08, 0x10, 0x20];

/// Passes a well-formed list on; `None` for an empty one.
pub(crate) fn check(ino: u64, value: Vec<u8>) -> Result<Option<Vec<u8>>> {
    let bad = |why: &str| Err(Error::Corrupt(ino, format!("POSIX ACL: {why}")));
    let b = Bytes::new(&value, ByteOrder::Little, "POSIX ACL");
    if b.u32(0).map_err(Error::decode(ino))? != VERSION {
        return bad("unknown version");
    }
    let entries = value.len() - HEADER;
    if !entries.is_multiple_of(ENTRY) {
        return bad("a partial entry");
    }
    for at in (HEADER..value.len()).step_by(ENTRY) {
        if !TAGS.contains(&b.u16(at).map_err(Error::decode(ino))?) {
            return bad("unknown tag");
        }
    }
    Ok(Some(value).filter(|_| entries > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_checked() {
        let good = [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 0x20, 0, 5, 0, 255, 255, 255, 255]
            .to_vec();
        assert_eq!(check(1, good.clone()).unwrap(), Some(good.clone()));
        assert_eq!(check(1, good[..4].to_vec()).unwrap(), None);
        for len in [0, 3, 7, 11, 13] {
            assert!(check(1, good[..len].to_vec()).is_err(), "{len} bytes");
        }
        for at in [0, 4] {
            let mut bad = good.clone();
            bad[at] = 3;
            assert!(check(1, bad).is_err(), "byte {at}");
        }
    }
}
