//! File flags and project ids as `lsattr` and `xfs_io` ask for them: two `ioctl`s that every file
//! system of Linux knows.

use cenote_zpl::Attr;

/// `FS_IOC_GETFLAGS`: answered by an `int`.
const GET_FLAGS: u32 = 0x8008_6601;
/// `FS_IOC_FSGETXATTR`: answered by a `struct fsxattr`.
const GET_XATTR: u32 = 0x801c_581f;
/// Bytes of a `struct fsxattr`: flags, extent size, extents, project id, copy-on-write extent size,
/// padding.
const FSXATTR_SIZE: usize = 28;

/// `zp_flags`, `FS_*_FL`, `FS_XFLAG_*`: immutable, append only, no dump, inherit project id.
const FLAGS: [(u64, u32, u32); 4] = [
    (0x0000_0010_0000_0000, 0x10, 0x8),
    (0x0000_0040_0000_0000, 0x20, 0x10),
    (0x0000_0080_0000_0000, 0x40, 0x80),
    (0x0000_4000_0000_0000, 0x2000_0000, 0x200),
];

/// The answer to an `ioctl`; `None` if it is none of the two.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_project_ids() {
        let attr = Attr {
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
        };
        assert_eq!(answer(GET_FLAGS, &attr), Some(0x2000_0010u32.to_ne_bytes().to_vec()));
        let x = answer(GET_XATTR, &attr).unwrap();
        assert_eq!(x.len(), FSXATTR_SIZE);
        assert_eq!(x[..4], 0x208u32.to_ne_bytes());
        assert_eq!(x[12..16], 0x0102_0304u32.to_ne_bytes());
        assert_eq!(answer(1, &attr), None);
    }
}
