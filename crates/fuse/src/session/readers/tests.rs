//! Connections that fail, and servers that panic.

use super::*;

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
