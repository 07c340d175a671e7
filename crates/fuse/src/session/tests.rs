use super::*;
use fuse_abi::linux::{fuse_opcode, fuse_out_header};
use parking_lot::Mutex;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::ffi::OsStr;
use std::io::Read;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// A server that knows no file.
#[derive(Clone, Default)]
struct Nothing {
    /// Lookups wait for it.
    names: Arc<Mutex<()>>,
}

impl Filesystem for Nothing {
    fn lookup(&self, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        let _names = self.names.lock();
        reply.error(Errno::NOENT);
    }

    fn getattr(&self, _: INodeNo, reply: ReplyAttr) {
        reply.error(Errno::NOENT);
    }

    fn setattr(&self, _: crate::caller::Caller, _: INodeNo, _: Asked, reply: ReplyAttr) {
        reply.error(Errno::NOENT);
    }

    fn open(&self, _: crate::caller::Caller, _: INodeNo, _: rustix::fs::OFlags, reply: ReplyOpen) {
        reply.error(Errno::NOENT);
    }

    fn read(&self, _: FileHandle, _: u64, _: u32, _: rustix::fs::OFlags, reply: ReplyData) {
        reply.error(Errno::BADF);
    }

    fn write(&self, _: INodeNo, _: FileHandle, _: u64, _: &[u8], _: Writing, reply: ReplyWrite) {
        reply.error(Errno::BADF);
    }

    fn release(&self, _: FileHandle, reply: ReplyEmpty) {
        reply.error(Errno::BADF);
    }

    fn readdir(&self, _: INodeNo, _: u64, reply: ReplyDirectory) {
        reply.error(Errno::NOENT);
    }
}

/// The error that a request of user 7 is answered with; `None` if there is no answer.
fn answered(users: Users, opcode: fuse_opcode, body: &[u8]) -> Option<i32> {
    let (mut from, to) = std::io::pipe().unwrap();
    let len = (size_of::<fuse_in_header>() + body.len()) as u32;
    let header = fuse_in_header { len, opcode: opcode as u32, uid: 7, ..Default::default() };
    let device: Arc<OwnedFd> = Arc::new(to.into());
    let (end, interrupted) = Default::default();
    let server = Server { fs: Nothing::default(), users, end, interrupted };
    server.handle(&device, &[header.as_bytes(), body].concat());
    drop(device);
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    fuse_out_header::read_from_prefix(&bytes).ok().map(|(header, _)| -header.error)
}

#[test]
fn requests_are_answered_or_not() {
    let answered = |opcode, body: &[u8]| answered(Users::All, opcode, body);
    assert_eq!(answered(fuse_opcode::FUSE_LOOKUP, b"a\0"), Some(2));
    assert_eq!(answered(fuse_opcode::FUSE_LOOKUP, b"a"), Some(22));
    assert_eq!(answered(fuse_opcode::FUSE_DESTROY, b""), Some(0));
    for unknown in [fuse_opcode::FUSE_BMAP, fuse_opcode::FUSE_STATX, fuse_opcode::FUSE_FSYNC] {
        assert_eq!(answered(unknown, b""), Some(38));
    }
    // The kernel takes no answer to these, also if it makes no sense.
    assert_eq!(answered(fuse_opcode::FUSE_FORGET, &[0; 8]), None);
    assert_eq!(answered(fuse_opcode::FUSE_INTERRUPT, &[0; 8]), None);
    assert_eq!(answered(fuse_opcode::FUSE_INTERRUPT, b""), None);
    assert_eq!(answered(fuse_opcode::FUSE_FORGET, b""), None);
    assert_eq!(answered(fuse_opcode::FUSE_BATCH_FORGET, &[255; 8]), None);
}

#[test]
fn others_are_kept_out_of_what_is_not_theirs() {
    let lookup = |users| answered(users, fuse_opcode::FUSE_LOOKUP, b"a\0");
    assert_eq!(lookup(Users::Only(7)), Some(2));
    assert_eq!(lookup(Users::Only(8)), Some(13));
    // What the kernel does by itself is let through.
    assert_eq!(answered(Users::Only(8), fuse_opcode::FUSE_RELEASE, &[0; 24]), Some(9));
    assert_eq!(answered(Users::Only(8), fuse_opcode::FUSE_FORGET, &[0; 8]), None);
}

#[test]
fn written_data_starts_at_a_page_and_there_is_room_for_all() {
    let mut buffer = Buffer::new();
    let headers = size_of::<fuse_in_header>() + size_of::<fuse_write_in>();
    let room = buffer.room();
    assert_eq!(room[headers..].as_ptr().align_offset(rustix::param::page_size()), 0);
    assert!(room.len() >= MAX_WRITE + HEADERS);
}

/// What a kernel has to do with a server.
struct Kernel(OwnedFd);

impl Kernel {
    fn ask(&self, unique: u64, opcode: fuse_opcode, body: &[u8]) {
        let len = (size_of::<fuse_in_header>() + body.len()) as u32;
        let pid = std::process::id();
        let (opcode, uid) = (opcode as u32, 7);
        let header = fuse_in_header { len, opcode, unique, pid, uid, ..Default::default() };
        rustix::io::write(&self.0, &[header.as_bytes(), body].concat()).unwrap();
    }

    /// The number of the next request that is answered.
    fn answered(&self) -> u64 {
        let mut bytes = [0; 64];
        let len = rustix::io::read(&self.0, &mut bytes).unwrap();
        fuse_out_header::read_from_prefix(&bytes[..len]).unwrap().0.unique
    }
}

/// A connection, and a session at its other end.
fn connect(fs: &Nothing) -> (Kernel, Session) {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (kernel, device) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    set_socket_timeout(&kernel, Timeout::Recv, Some(Duration::from_secs(20))).unwrap();
    let session = Session::serve(fs.clone(), Arc::new(device), Users::All).unwrap();
    (Kernel(kernel), session)
}

fn finishes(session: Session) {
    let start = std::time::Instant::now();
    while !session.is_finished() && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(session.is_finished());
    session.join().unwrap();
}

#[test]
fn slow_requests_keep_no_other_waiting() {
    let fs = Nothing::default();
    let (kernel, session) = connect(&fs);
    let names = fs.names.lock();
    let slow = readers::MOST as u64 - 1;
    (1..=slow).for_each(|unique| kernel.ask(unique, fuse_opcode::FUSE_LOOKUP, b"a\0"));
    for unique in 100..200 {
        kernel.ask(unique, fuse_opcode::FUSE_GETATTR, &[0; 16]);
        assert_eq!(kernel.answered(), unique);
    }
    drop(names);
    let mut all: Vec<_> = (1..=slow).map(|_| kernel.answered()).collect();
    all.sort_unstable();
    assert_eq!(all, (1..=slow).collect::<Vec<_>>());
    drop(kernel);
    finishes(session);
}

#[test]
fn a_connection_that_is_stuck_leaves_the_others_their_threads() {
    let (stuck, fs) = (Nothing::default(), Nothing::default());
    let (first, one) = connect(&stuck);
    let (second, other) = connect(&fs);
    let names = stuck.names.lock();
    let all = 3 * readers::MOST as u64;
    (1..=all).for_each(|unique| first.ask(unique, fuse_opcode::FUSE_LOOKUP, b"a\0"));
    for unique in 1..=100 {
        second.ask(unique, fuse_opcode::FUSE_GETATTR, &[0; 16]);
        assert_eq!(second.answered(), unique);
    }
    drop(names);
    let mut answers: Vec<_> = (1..=all).map(|_| first.answered()).collect();
    answers.sort_unstable();
    assert_eq!(answers, (1..=all).collect::<Vec<_>>());
    drop((first, second));
    finishes(one);
    finishes(other);
}

#[test]
fn connections_without_requests_cost_no_thread() {
    let fs = Nothing::default();
    let before = readers::tests::threads();
    let (kernels, sessions): (Vec<_>, Vec<_>) = (0..100).map(|_| connect(&fs)).unzip();
    for kernel in &kernels {
        kernel.ask(1, fuse_opcode::FUSE_GETATTR, &[0; 16]);
        assert_eq!(kernel.answered(), 1);
    }
    // Other tests use the same threads.
    assert!(readers::tests::threads() < before + 90);
    drop(kernels);
    sessions.into_iter().for_each(finishes);
}

/// The leader serves what it reads: while that takes long, other connections are served all the same, and the one that ended is
/// let go of.
#[test]
fn a_request_that_takes_long_holds_up_no_other_connection() {
    let (slow, fs) = (Nothing::default(), Nothing::default());
    let (first, one) = connect(&slow);
    let (second, other) = connect(&fs);
    for round in 1..=10 {
        let names = slow.names.lock();
        first.ask(round, fuse_opcode::FUSE_LOOKUP, b"a\0");
        // Read next or not, it is answered before the slow one can be.
        second.ask(round, fuse_opcode::FUSE_GETATTR, &[0; 16]);
        assert_eq!(second.answered(), round);
        drop(names);
        assert_eq!(first.answered(), round);
    }
    let names = slow.names.lock();
    second.ask(100, fuse_opcode::FUSE_GETATTR, &[0; 16]);
    assert_eq!(second.answered(), 100);
    first.ask(100, fuse_opcode::FUSE_LOOKUP, b"a\0");
    drop(second);
    finishes(other);
    drop(names);
    assert_eq!(first.answered(), 100);
    drop(first);
    finishes(one);
}
