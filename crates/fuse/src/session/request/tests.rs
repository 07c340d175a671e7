use super::*;
use fuse_abi::linux::{
    FATTR_ATIME, FATTR_CTIME, FATTR_SIZE, FUSE_WRITE_CACHE, fuse_attr_out, fuse_out_header,
};
use proptest::prelude::*;

const OPCODES: [u32; 40] = [
    FUSE_INIT,
    FUSE_DESTROY,
    FUSE_FORGET,
    FUSE_BATCH_FORGET,
    FUSE_LOOKUP,
    FUSE_GETATTR,
    FUSE_SETATTR,
    FUSE_READLINK,
    FUSE_SYMLINK,
    FUSE_MKNOD,
    FUSE_MKDIR,
    FUSE_UNLINK,
    FUSE_RMDIR,
    FUSE_RENAME,
    FUSE_RENAME2,
    FUSE_LINK,
    FUSE_OPEN,
    FUSE_CREATE,
    FUSE_TMPFILE,
    FUSE_READ,
    FUSE_WRITE,
    FUSE_FLUSH,
    FUSE_RELEASE,
    FUSE_FSYNC,
    FUSE_OPENDIR,
    FUSE_READDIR,
    FUSE_READDIRPLUS,
    FUSE_RELEASEDIR,
    FUSE_FSYNCDIR,
    FUSE_STATFS,
    FUSE_SETXATTR,
    FUSE_GETXATTR,
    FUSE_LISTXATTR,
    FUSE_REMOVEXATTR,
    FUSE_IOCTL,
    FUSE_FALLOCATE,
    FUSE_LSEEK,
    FUSE_COPY_FILE_RANGE,
    FUSE_COPY_FILE_RANGE_64,
    FUSE_SYNCFS,
];

/// A request with a right length.
fn request(opcode: u32, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let len = (size_of::<fuse_in_header>() + body.len()) as u32;
    let header = fuse_in_header { len, opcode, unique: 9, nodeid: 7, ..Default::default() };
    [header.as_bytes(), &body].concat()
}

/// What a request is understood as, at every alignment.
#[track_caller]
fn understood(bytes: &[u8], want: Result<Operation<'_>, Errno>) {
    for shift in 0..9 {
        let moved = [&[0; 9][..shift], bytes].concat();
        let (header, body) = split(&moved[shift..]).unwrap();
        assert_eq!(Operation::decode(&header, body), want);
    }
}

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

#[test]
fn what_the_kernel_asks_for_is_understood() {
    understood(&request(FUSE_LOOKUP, &[b"a\0"]), Ok(Operation::Lookup(name("a"))));
    let link = fuse_link_in { oldnodeid: 12 };
    let want = Operation::Link { ino: INodeNo(12), name: name("b") };
    understood(&request(FUSE_LINK, &[link.as_bytes(), b"b\0"]), Ok(want));
    let want = Operation::Symlink { name: name("l"), target: name("to/it") };
    understood(&request(FUSE_SYMLINK, &[b"l\0to/it\0"]), Ok(want));
    let to = fuse_rename2_in { newdir: 3, flags: 2, padding: 0 };
    let flags = RenameFlags::EXCHANGE;
    let want = Operation::Rename { name: name("x"), to: (INodeNo(3), name("y")), flags };
    understood(&request(FUSE_RENAME2, &[to.as_bytes(), b"x\0y\0"]), Ok(want));
    let write = fuse_write_in { fh: 5, offset: 6, size: 3, write_flags: 4, ..Default::default() };
    let want = |kill_ids, cached| {
        let how = Writing { kill_ids, durable: cached, cached, direct: false };
        let (fh, offset) = (FileHandle(5), 6);
        Ok(Operation::Write { fh, offset, data: b"abc", how })
    };
    // More than was said is left where it is.
    understood(&request(FUSE_WRITE, &[write.as_bytes(), b"abcd"]), want(true, false));
    let flags = libc::O_DSYNC.cast_unsigned() | OFlags::WRONLY.bits();
    let write = fuse_write_in { write_flags: FUSE_WRITE_CACHE, flags, ..write };
    understood(&request(FUSE_WRITE, &[write.as_bytes(), b"abc"]), want(false, true));
}

#[test]
fn files_without_names_need_no_name() {
    let flags = OFlags::WRONLY.bits();
    let (mode, umask) = (0o100_644, 0o22);
    let create = fuse_create_in { flags, mode, umask, open_flags: 0 };
    let modes = Modes { mode, umask };
    for name in [&b""[..], b"/\0", b"#17\0"] {
        let want = Operation::TmpFile { modes, flags: OFlags::WRONLY };
        understood(&request(FUSE_TMPFILE, &[create.as_bytes(), name]), Ok(want));
    }
    // A file that is to have one needs one.
    understood(&request(FUSE_CREATE, &[create.as_bytes()]), Err(Errno::INVAL));
}

#[test]
fn what_is_to_be_set_is_what_is_said_to_be_valid() {
    let valid = FATTR_SIZE | FATTR_ATIME | FATTR_CTIME | FATTR_MTIME | FATTR_MTIME_NOW;
    let set = fuse_setattr_in {
        valid,
        size: 5,
        // Half a second before the last second of 1969.
        atime: -2i64 as u64,
        atimensec: 500_000_000,
        mtime: 99,
        ctime: 7,
        ctimensec: 8,
        uid: 3,
        ..Default::default()
    };
    let want = Asked {
        size: Some(5),
        atime: Some(SetTime::To((-2, 500_000_000))),
        mtime: Some(SetTime::Now),
        ctime: Some((7, 8)),
        ..Asked::default()
    };
    understood(&request(FUSE_SETATTR, &[set.as_bytes()]), Ok(Operation::SetAttr(want)));
}

#[test]
fn numbers_are_forgotten_one_by_one() {
    let one = |nodeid, nlookup| fuse_forget_one { nodeid, nlookup };
    let head = fuse_batch_forget_in { count: 2, dummy: 0 };
    let bytes =
        request(FUSE_BATCH_FORGET, &[head.as_bytes(), one(4, 1).as_bytes(), one(5, 9).as_bytes()]);
    let (header, body) = split(&bytes).unwrap();
    let Ok(Operation::BatchForget(all)) = Operation::decode(&header, body) else { panic!() };
    assert_eq!(all.iter().collect::<Vec<_>>(), [(INodeNo(4), 1), (INodeNo(5), 9)]);
    // More than there are.
    for count in [3, u32::MAX] {
        let head = fuse_batch_forget_in { count, dummy: 0 };
        let bytes = request(FUSE_BATCH_FORGET, &[head.as_bytes(), one(4, 1).as_bytes()]);
        understood(&bytes, Err(Errno::INVAL));
    }
}

#[test]
fn short_forms_of_old_structures_are_taken() {
    let init =
        fuse_init_in { major: 7, minor: 31, max_readahead: 1, flags: 2, ..Default::default() };
    let short = &init.as_bytes()[..16];
    understood(&request(FUSE_INIT, &[short]), Ok(Operation::Init(init)));
    understood(&request(FUSE_INIT, &[&short[..15]]), Err(Errno::INVAL));
    let set = fuse_setxattr_in { size: 2, flags: 1, ..Default::default() };
    let want = Operation::SetXattr { name: name("user.a"), value: b"vw", flags: 1 };
    understood(&request(FUSE_SETXATTR, &[&set.as_bytes()[..8], b"user.a\0vw"]), Ok(want));
}

#[test]
fn what_is_not_whole_or_not_known_is_refused() {
    understood(&request(FUSE_LOOKUP, &[b"no end"]), Err(Errno::INVAL));
    understood(&request(FUSE_SYMLINK, &[b"name\0target"]), Err(Errno::INVAL));
    let write = fuse_write_in { size: u32::MAX, ..Default::default() };
    understood(&request(FUSE_WRITE, &[write.as_bytes(), b"abc"]), Err(Errno::INVAL));
    for opcode in [0, 7, fuse_opcode::FUSE_STATX as u32, 4096, u32::MAX] {
        understood(&request(opcode, &[]), Err(Errno::NOSYS));
    }
    let mut longer = request(FUSE_STATFS, &[]);
    longer.push(0);
    understood(&longer, Err(Errno::IO));
    assert!(split(&longer[..size_of::<fuse_out_header>()]).is_none());
    // Every request that has a structure ends too early somewhere before the end of it.
    let whole = [1u8; size_of::<fuse_attr_out>()];
    for opcode in OPCODES {
        let ends: Vec<_> = (0..whole.len())
            .map(|len| {
                let bytes = request(opcode, &[&whole[..len]]);
                let (header, body) = split(&bytes).unwrap();
                Operation::decode(&header, body).is_ok()
            })
            .collect();
        // Once there is enough of it there is not too much of it.
        assert!(ends.is_sorted(), "opcode {opcode}");
    }
}

proptest! {
    /// Whatever comes, it is answered; and what is not a number comes from the request.
    #[test]
    fn any_bytes_can_be_decoded(
        opcode in prop_oneof![prop::sample::select(&OPCODES[..]), any::<u32>()],
        body in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..200),
        cut in 0usize..240,
    ) {
        let mut bytes = request(opcode, &[&body]);
        if cut < bytes.len() {
            bytes.truncate(cut);
        }
        let Some((header, rest)) = split(&bytes) else {
            prop_assert!(bytes.len() < size_of::<fuse_in_header>());
            return Ok(());
        };
        match Operation::decode(&header, rest) {
            Ok(Operation::Write { data, .. } | Operation::Ioctl { data, .. }) => {
                prop_assert!(data.len() <= rest.len());
            }
            Ok(Operation::BatchForget(all)) => prop_assert!(all.iter().count() <= rest.len()),
            Ok(Operation::Lookup(name)) => prop_assert!(!name.as_bytes().contains(&0)),
            Ok(_) => prop_assert!(OPCODES.contains(&opcode)),
            Err(e) => prop_assert!([Errno::NOSYS, Errno::INVAL, Errno::IO].contains(&e)),
        }
    }
}

#[test]
fn a_request_is_about_the_bytes_that_it_has_or_reads() {
    let about = |opcode| {
        let header = fuse_in_header { opcode, ..Default::default() };
        let read = fuse_read_in { size: 1 << 20, ..Default::default() };
        bytes_of(&[header.as_bytes(), read.as_bytes()].concat())
    };
    for reads in [FUSE_READ, FUSE_READDIR, FUSE_READDIRPLUS] {
        assert_eq!(about(reads), 1 << 20);
    }
    assert_eq!(about(FUSE_WRITE), size_of::<fuse_in_header>() + size_of::<fuse_read_in>());
    assert_eq!(bytes_of(&[]), 0);
}
