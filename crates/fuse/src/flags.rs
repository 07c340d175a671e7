//! File flags and project ids as `lsattr`, `chattr` and `xfs_io` ask for them: `ioctl`s that every file
//! system of Linux knows.
//!
//! The kernel checks which user may change which flag: only processes with `CAP_LINUX_IMMUTABLE` may
//! change the flags that keep a file from being changed.

use cenote_zpl::{Attr, SetAttr, flags};
use rustix::io::Errno;

/// `FS_IOC_GETFLAGS`: answered by an `int`.
const GET_FLAGS: u32 = 0x8008_6601;
/// `FS_IOC_SETFLAGS`: brings an `int`.
const SET_FLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR`: answered by a `struct fsxattr`.
const GET_XATTR: u32 = 0x801c_581f;
/// `FS_IOC_FSSETXATTR`: brings a `struct fsxattr`.
const SET_XATTR: u32 = 0x401c_5820;
/// Bytes of a `struct fsxattr`: flags, extent size, extents, project id, copy-on-write extent size,
/// padding.
const FSXATTR_SIZE: usize = 28;
/// Offset of the project id in it.
const FSXATTR_PROJID: usize = 12;
/// What stands for no project (`ZFS_INVALID_PROJID`).
const NO_PROJECT: u32 = u32::MAX;

/// `zp_flags`, `FS_*_FL`, `FS_XFLAG_*`: immutable, append only, no dump, inherit project id.
const FLAGS: [(u64, u32, u32); 4] = [
    (flags::IMMUTABLE, 0x10, 0x8),
    (flags::APPEND_ONLY, 0x20, 0x10),
    (flags::NO_DUMP, 0x40, 0x80),
    (flags::PROJECT_INHERIT, 0x2000_0000, 0x200),
];

/// The answer to an `ioctl` that asks; `None` if it is no such.
pub(crate) fn answer(command: u32, attr: &Attr) -> Option<Vec<u8>> {
    let set = FLAGS.iter().filter(|(zp, ..)| attr.flags & zp != 0);
    match command {
        GET_FLAGS => Some(set.fold(0, |all, (_, fl, _)| all | fl).to_ne_bytes().to_vec()),
        GET_XATTR => {
            let flags: u32 = set.fold(0, |all, (.., xflag)| all | xflag);
            let projid = u32::try_from(attr.projid).unwrap_or(u32::MAX);
            let mut out: Vec<u8> =
                [flags, 0, 0, projid].iter().flat_map(|w| w.to_ne_bytes()).collect();
            out.resize(FSXATTR_SIZE, 0);
            Some(out)
        }
        _ => None,
    }
}

/// What an `ioctl` asks to be changed; `None` for other requests. Flags that do not exist here
/// cannot be set.
pub(crate) fn change(command: u32, data: &[u8], attr: &Attr) -> Option<Result<SetAttr, Errno>> {
    let word = |at: usize| {
        let bytes = data.get(at..)?.first_chunk::<4>()?;
        Some(u32::from_ne_bytes(*bytes))
    };
    let (asked, projid) = match command {
        SET_FLAGS => (word(0).map(|w| zp_flags(w, |(_, fl, _)| fl)), None),
        SET_XATTR => (word(0).map(|w| zp_flags(w, |(.., xflag)| xflag)), word(FSXATTR_PROJID)),
        _ => return None,
    };
    let all = FLAGS.iter().fold(0, |all, (zp, ..)| all | zp);
    let changed = |asked: u64| {
        let flags = Some(attr.flags & all).filter(|old| *old != asked).map(|_| asked);
        let projid = projid.filter(|id| u64::from(*id) != attr.projid);
        SetAttr { flags, projid, ..SetAttr::default() }
    };
    Some(match asked {
        None => Err(Errno::INVAL),
        Some(_) if projid == Some(NO_PROJECT) => Err(Errno::INVAL),
        Some(None) => Err(Errno::OPNOTSUPP),
        Some(Some(asked)) => Ok(changed(asked)),
    })
}

/// `zp_flags` of the flags in `word`; `None` if it has others.
fn zp_flags(word: u32, bit: impl Fn((u64, u32, u32)) -> u32) -> Option<u64> {
    let mut rest = word;
    let mut flags = 0;
    for flag in FLAGS {
        if word & bit(flag) != 0 {
            flags |= flag.0;
            rest &= !bit(flag);
        }
    }
    Some(flags).filter(|_| rest == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr() -> Attr {
        Attr {
            ino: 7,
            gen_: 1,
            mode: 0o100_644,
            uid: 0,
            gid: 0,
            nlink: 1,
            size: 0,
            blocks: 1,
            blksize: 512,
            atime: (0, 0),
            mtime: (0, 0),
            ctime: (0, 0),
            crtime: (0, 0),
            rdev: (0, 0),
            parent: 34,
            flags: 0x0000_4010_0000_0004,
            projid: 0x0102_0304,
            xattr: 0,
            pending: false,
        }
    }

    #[test]
    fn flags_and_project_ids() {
        let attr = attr();
        assert_eq!(answer(GET_FLAGS, &attr), Some(0x2000_0010u32.to_ne_bytes().to_vec()));
        let x = answer(GET_XATTR, &attr).unwrap();
        assert_eq!(x.len(), FSXATTR_SIZE);
        assert_eq!(x[..4], 0x208u32.to_ne_bytes());
        assert_eq!(x[12..16], 0x0102_0304u32.to_ne_bytes());
        assert_eq!(answer(1, &attr), None);
    }

    #[test]
    fn flags_that_are_there_can_be_changed() {
        let attr = attr();
        let set = |flags: u32| change(SET_FLAGS, &flags.to_ne_bytes(), &attr).unwrap();
        let flags = |flags| SetAttr { flags, ..SetAttr::default() };
        assert_eq!(set(0x2000_0010).ok(), Some(flags(None)));
        assert_eq!(set(0x60).ok(), Some(flags(Some(flags::APPEND_ONLY | flags::NO_DUMP))));
        assert!(set(0x1).is_err());
        assert!(change(SET_FLAGS, &[0; 3], &attr).unwrap().is_err());
        assert!(change(1, &[], &attr).is_none());
        let mut x = answer(GET_XATTR, &attr).unwrap();
        x[12] = 9;
        let projid = u32::from_ne_bytes([9, x[13], x[14], x[15]]);
        let set = change(SET_XATTR, &x, &attr).unwrap().ok();
        assert_eq!(set, Some(SetAttr { projid: Some(projid), ..SetAttr::default() }));
        x[12..16].fill(0xff);
        assert!(change(SET_XATTR, &x, &attr).unwrap().is_err());
    }
}
