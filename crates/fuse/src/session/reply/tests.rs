use super::*;
use std::io::Read;
use zerocopy::FromBytes;

const UNIQUE: u64 = 77;

/// What is written when an answer is given.
fn written(answer: impl FnOnce(Reply)) -> (fuse_out_header, Vec<u8>) {
    let (mut from, to) = std::io::pipe().unwrap();
    answer(Reply::new(&Arc::new(to.into()), UNIQUE));
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    let (header, rest) = fuse_out_header::read_from_prefix(&bytes).unwrap();
    assert_eq!((header.len as usize, header.unique), (bytes.len(), UNIQUE));
    (header, rest.to_vec())
}

fn attr() -> FileAttr {
    FileAttr {
        ino: INodeNo(5),
        size: 6,
        blocks: 7,
        atime: (-2, 500_000_000),
        mtime: (i64::MIN, u32::MAX),
        ctime: (3, 4),
        kind: FileType::Directory,
        perm: 0o1755,
        nlink: 0,
        uid: 8,
        gid: 9,
        rdev: 10,
        blksize: 512,
        pending: false,
    }
}

fn found() -> Found {
    let (name_kept, attr_kept) = (Duration::new(1, 2), Duration::new(3, 4));
    Found { attr: attr(), generation: 11, name_kept, attr_kept }
}

#[test]
fn an_answer_is_given_once() {
    let (header, rest) = written(|reply| ReplyEmpty(reply).ok());
    assert_eq!((header.error, rest.len()), (0, 0));
    let (header, rest) = written(|reply| ReplyAttr(reply).error(Errno::NOTEMPTY));
    assert_eq!((header.error, rest.len()), (-39, 0));
    let (header, rest) = written(|reply| ReplyData(reply).data(b"text"));
    assert_eq!((header.error, &rest[..]), (0, &b"text"[..]));
}

#[test]
fn one_that_is_dropped_says_so() {
    let (header, _) = written(drop);
    assert_eq!(header.error, -5);
    // By another thread, and by one that panics.
    let (header, _) = written(|reply| {
        let work = std::thread::spawn(move || {
            let _reply = ReplyWrite(reply);
            panic!("on purpose");
        });
        assert!(work.join().is_err());
    });
    assert_eq!(header.error, -5);
}

#[test]
fn what_takes_no_answer_gets_none() {
    let (mut from, to) = std::io::pipe().unwrap();
    Reply::new(&Arc::new(to.into()), UNIQUE).none();
    assert_eq!(from.read_to_end(&mut Vec::new()).unwrap(), 0);
}

#[test]
fn attributes_are_as_the_kernel_has_them() {
    let (_, rest) = written(|reply| ReplyAttr(reply).attr(Duration::new(1, 2), &attr()));
    let out = fuse_attr_out::read_from_bytes(&rest).unwrap();
    assert_eq!((out.attr_valid, out.attr_valid_nsec), (1, 2));
    let a = out.attr;
    assert_eq!((a.ino, a.size, a.blocks, a.mode, a.nlink), (5, 6, 7, 0o041_755, 0));
    assert_eq!((a.atime as i64, a.atimensec), (-2, 500_000_000));
    assert_eq!((a.mtime as i64, a.mtimensec), (i64::MIN, 999_999_999));
    assert_eq!((a.ctime, a.ctimensec, a.uid, a.gid, a.rdev, a.blksize), (3, 4, 8, 9, 10, 512));
}

#[test]
fn what_is_made_is_found_and_open() {
    let (_, rest) = written(|reply| ReplyCreate(reply).created(&found(), FileHandle(12), 2));
    let (entry, rest) = fuse_entry_out::read_from_prefix(&rest).unwrap();
    assert_eq!((entry.nodeid, entry.generation), (5, 11));
    assert_eq!((entry.entry_valid, entry.entry_valid_nsec), (1, 2));
    assert_eq!((entry.attr_valid, entry.attr_valid_nsec), (3, 4));
    let open = fuse_open_out::read_from_bytes(rest).unwrap();
    assert_eq!((open.fh, open.open_flags), (12, 2));
}

#[test]
fn listings_end_where_there_is_no_more_room() {
    // 24 bytes and a name, rounded up to 8.
    let (_, rest) = written(|reply| {
        let mut reply = ReplyDirectory::new(reply, 95);
        assert!(!reply.add(INodeNo(1), 1, FileType::Directory, b"."));
        assert!(!reply.add(INodeNo(2), 2, FileType::RegularFile, b"12345678"));
        assert!(reply.add(INodeNo(3), 3, FileType::Symlink, b"l"));
        reply.ok();
    });
    assert_eq!(rest.len(), 64);
    let (second, name) = fuse_dirent::read_from_prefix(&rest[32..]).unwrap();
    assert_eq!((second.ino, second.off, second.namelen, second.type_), (2, 2, 8, 8));
    assert_eq!(name, b"12345678");
    let (_, rest) = written(|reply| {
        let mut reply = ReplyDirectoryPlus::new(reply, 160);
        assert!(!reply.add(&found(), 1, b"name"));
        assert!(reply.add(&found(), 2, b"n"));
        reply.ok();
    });
    let (entry, name) = fuse_direntplus::read_from_prefix(&rest).unwrap();
    assert_eq!((entry.entry_out.nodeid, entry.dirent.ino, entry.dirent.type_), (5, 5, 4));
    assert_eq!(name, b"name\0\0\0\0");
    let (header, _) = written(|reply| ReplyDirectory::new(reply, 0).error(Errno::IO));
    assert_eq!(header.error, -5);
}
