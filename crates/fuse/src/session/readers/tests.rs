//! Connections that fail, servers that panic, and what requests leave.

use super::*;
use crate::session::later::leave;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Threads that there are.
pub(in crate::session) fn threads() -> usize {
    readers().lead.threads()
}

#[derive(Default)]
struct Failing(Mutex<Option<io::Error>>);

impl Serve for Failing {
    fn handle(&self, _: &Arc<OwnedFd>, _: &[u8]) {}

    fn is_large(&self, _: &[u8]) -> bool {
        false
    }

    fn broken(&self, _: &str) {}

    fn failed(&self, e: io::Error) {
        *self.0.lock() = Some(e);
    }

    fn is_interrupted(&self, _: u64) -> bool {
        false
    }
}

/// What is told once, and panics when it hears of an error.
struct Panics;

impl Serve for Panics {
    fn handle(&self, _: &Arc<OwnedFd>, _: &[u8]) {}

    fn is_large(&self, _: &[u8]) -> bool {
        panic!("for the test")
    }

    fn broken(&self, _: &str) {}

    fn failed(&self, _: io::Error) {
        panic!("for the test")
    }

    fn is_interrupted(&self, _: u64) -> bool {
        false
    }
}

/// Tells of each request.
struct Tells(Mutex<std::sync::mpsc::Sender<Vec<u8>>>);

impl Serve for Tells {
    fn handle(&self, _: &Arc<OwnedFd>, bytes: &[u8]) {
        self.0.lock().send(bytes.to_vec()).unwrap();
    }

    fn is_large(&self, _: &[u8]) -> bool {
        panic!("for the test")
    }

    fn broken(&self, _: &str) {}

    fn failed(&self, _: io::Error) {}

    fn is_interrupted(&self, _: u64) -> bool {
        false
    }
}

fn no_block(device: OwnedFd) -> Arc<OwnedFd> {
    rustix::io::ioctl_fionbio(&device, true).unwrap();
    Arc::new(device)
}

pub(super) fn panic_if_planted(times: &AtomicUsize) {
    let less = |times: usize| times.checked_sub(1);
    assert!(times.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err(), "for the test");
}

/// A panic outside of a request leaves the other connections with a thread that waits for their requests.
#[test]
fn a_leader_that_panics_goes_on() {
    const LONG: Duration = Duration::from_secs(20);
    let readers: &'static Readers = Box::leak(Box::new(Readers::new()));
    let (tell, told) = std::sync::mpsc::channel();
    let (requests, send) = rustix::pipe::pipe().unwrap();
    readers.add(no_block(requests), Arc::new(Tells(Mutex::new(tell)))).unwrap();
    rustix::io::write(&send, b"before").unwrap();
    assert_eq!(told.recv_timeout(LONG).unwrap(), b"before");
    for request in ["first", "second"] {
        // The end that is written to cannot be read from; without the other end it is ready at once.
        let (end, bad) = rustix::pipe::pipe().unwrap();
        drop(end);
        readers.add(no_block(bad), Arc::new(Panics)).unwrap();
        let begun = Instant::now();
        while readers.connections.load(Ordering::SeqCst) > 1 {
            assert!(begun.elapsed() < LONG);
            std::thread::sleep(Duration::from_millis(1));
        }
        rustix::io::write(&send, request.as_bytes()).unwrap();
        assert_eq!(told.recv_timeout(LONG).unwrap(), request.as_bytes());
    }
    // One panic keeps no connection waiting. On a busy machine an answer may take as long by itself: then again.
    let at_once = (0..20).any(|_| {
        std::thread::sleep(FAILED);
        readers.planted.store(1, Ordering::SeqCst);
        let begun = Instant::now();
        for request in ["at once", "after it"] {
            rustix::io::write(&send, request.as_bytes()).unwrap();
            assert_eq!(told.recv_timeout(LONG).unwrap(), request.as_bytes());
        }
        assert_eq!(readers.planted.load(Ordering::SeqCst), 0);
        begun.elapsed() < FAILED
    });
    assert!(at_once);
    // While it waits no other thread may lead in its place.
    readers.planted.store(2, Ordering::SeqCst);
    for request in ["third", "fourth"] {
        rustix::io::write(&send, request.as_bytes()).unwrap();
        assert_eq!(told.recv_timeout(LONG).unwrap(), request.as_bytes());
    }
    assert_eq!(readers.planted.load(Ordering::SeqCst), 0);
    // Whether a request is large is asked where one waited when the one before was answered.
    for _ in 0..100 {
        rustix::io::write(&send, b"x").unwrap();
    }
    let mut all = Vec::new();
    while all.len() < 100 {
        all.extend(told.recv_timeout(LONG).unwrap());
    }
    drop(send);
    let begun = Instant::now();
    while readers.connections.load(Ordering::SeqCst) > 0 {
        assert!(begun.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Each thread that is done tries to watch the connection again; where the last one cannot, the connection ends.
#[test]
fn a_connection_that_cannot_be_watched_again_ends() {
    let (readers, server) = (readers(), Arc::new(Failing::default()));
    // No file of a directory can be watched.
    let device: Arc<OwnedFd> = Arc::new(std::fs::File::open("/").unwrap().into());
    let (serving, away, token) = (AtomicUsize::new(2), Mutex::new(true), u64::MAX);
    let (server_of, parked, waits) = (server.clone(), AtomicUsize::new(0), Arc::default());
    let of = Connection {
        token,
        device: device.clone(),
        server: server_of,
        serving,
        parked,
        away,
        waits,
    };
    let of = Arc::new(of);
    readers.write().connections.insert(token, of.clone());
    readers.serve(&Own::default(), &of, &device, &[]);
    assert!(readers.read().connections.contains_key(&token) && *of.away.lock());
    assert!(server.0.lock().is_none());
    readers.serve(&Own::default(), &of, &device, &[]);
    assert!(!readers.read().connections.contains_key(&token));
    assert_eq!(server.0.lock().as_ref().unwrap().kind(), io::ErrorKind::PermissionDenied);
}

/// Does what a request says, which is that or leaves that.
struct Leaves {
    readers: &'static Readers,
    tell: Sender<Told>,
    /// What hangs waits for this.
    go: Arc<Mutex<Receiver<()>>>,
}

#[derive(Debug, PartialEq)]
enum Told {
    /// It leaves a wait that is over at once: whether the thread led on.
    Brief(bool),
    /// It leaves one that hangs: whether the thread led on.
    Hangs(bool),
    /// That was let go.
    LetGo,
    /// It may block itself: whether the thread still led then.
    Led(bool),
    /// It leaves something that breaks an invariant.
    Broken(String),
}

impl Serve for Leaves {
    fn handle(&self, _: &Arc<OwnedFd>, bytes: &[u8]) {
        let (tell, go, readers) = (self.tell.clone(), self.go.clone(), self.readers);
        // Whether the thread still leads once it has said that it may block.
        let leads_on = || {
            let before = readers.lead.word();
            waiting::begins();
            readers.lead.word() == before
        };
        let left = match bytes {
            b"brief" => leave(move || tell.send(Told::Brief(leads_on())).unwrap()).is_ok(),
            b"hangs" => leave(move || {
                tell.send(Told::Hangs(leads_on())).unwrap();
                go.lock().recv().unwrap();
                tell.send(Told::LetGo).unwrap();
            })
            .is_ok(),
            b"broken" => leave(|| invariant!(1 > 2, "for the test")).is_ok(),
            _ => tell.send(Told::Led(leads_on())).is_ok(),
        };
        assert!(left);
    }

    fn is_large(&self, _: &[u8]) -> bool {
        false
    }

    fn broken(&self, why: &str) {
        self.tell.send(Told::Broken(why.into())).unwrap();
    }

    fn failed(&self, _: io::Error) {}

    fn is_interrupted(&self, _: u64) -> bool {
        false
    }
}

/// Threads of their own with a connection that is served by [`Leaves`]: where it is written to, what is told, and what lets go.
fn leaves() -> (&'static Readers, OwnedFd, Receiver<Told>, Sender<()>) {
    let readers: &'static Readers = Box::leak(Box::new(Readers::new()));
    let ((tell, told), (go, held)) = (channel(), channel());
    let (requests, send) = rustix::pipe::pipe().unwrap();
    let server = Leaves { readers, tell, go: Arc::new(Mutex::new(held)) };
    readers.add(no_block(requests), Arc::new(server)).unwrap();
    (readers, send, told, go)
}

/// A leader that leads on while it waits, as that takes a moment, is overtaken where it takes longer; and hands on as any other thread once the
/// wait is over.
#[test]
fn a_leader_that_leads_on_is_overtaken() {
    const LONG: Duration = Duration::from_secs(20);
    let (readers, send, told, go) = leaves();
    let ask = |what: &[u8]| rustix::io::write(&send, what).unwrap();
    let next = || told.recv_timeout(LONG).unwrap();
    let waits = readers.read().connections.values().next().unwrap().waits.clone();
    let until_brief = |least: u32| {
        let begun = Instant::now();
        let mut asked = 0;
        // On a busy machine some take longer.
        while asked < least || !waits.are_brief() || readers.brief.is_crowd() {
            assert!(begun.elapsed() < LONG);
            ask(b"brief");
            assert!(matches!(next(), Told::Brief(_)));
            asked += 1;
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let begun = Instant::now();
    loop {
        until_brief(20);
        ask(b"hangs");
        if next() == Told::Hangs(true) {
            break;
        }
        // The leader came late to its last look, and handed on.
        assert!(begun.elapsed() < LONG);
        go.send(()).unwrap();
        assert_eq!(next(), Told::LetGo);
    }
    let (more, begun) = (another(readers), Instant::now());
    for _ in 0..50 {
        ask(b"blocks");
        assert!(matches!(next(), Told::Led(_)));
        rustix::io::write(&more.0, b"beside").unwrap();
        assert_eq!(more.1.recv_timeout(LONG).unwrap(), b"beside");
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    go.send(()).unwrap();
    assert_eq!(next(), Told::LetGo);
    let begun = Instant::now();
    // It says so when it is back from its wait.
    while !readers.brief.is_crowd() {
        assert!(begun.elapsed() < LONG, "others that waited do not count");
        std::thread::sleep(Duration::from_millis(1));
    }
    // The thread that has just led on hands on before a request of its own blocks: at once, unless the deputy is late.
    let (mut all, mut handed) = (0, 0);
    while all < 20 {
        until_brief(0);
        ask(b"brief");
        let led_on = next() == Told::Brief(true);
        std::thread::sleep(Duration::from_millis(2));
        ask(b"blocks");
        let led = next();
        std::thread::sleep(Duration::from_millis(2));
        if led_on {
            (all, handed) = (all + 1, handed + u32::from(led == Told::Led(false)));
        }
    }
    assert!(handed > all / 2, "{handed} of {all}");
}

/// One more connection, whose requests are told.
fn another(readers: &'static Readers) -> (OwnedFd, Receiver<Vec<u8>>) {
    let (tell, told) = channel();
    let (requests, send) = rustix::pipe::pipe().unwrap();
    readers.add(no_block(requests), Arc::new(Tells(Mutex::new(tell)))).unwrap();
    (send, told)
}

/// What a request has left finds the pool's state wrong: what serves its connection is told.
#[test]
fn a_broken_invariant_of_what_was_left_is_told() {
    let (_, send, told, _go) = leaves();
    rustix::io::write(&send, b"broken").unwrap();
    let told = told.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(matches!(&told, Told::Broken(why) if why.contains("for the test")), "{told:?}");
}
