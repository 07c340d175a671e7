//! A thread tells the kernel something while a request is not answered: neither waits for the other for ever.

use super::world::{World, settings};
use cenote_fuse::{SnapshotEntry, Snapshots};
use cenote_zpl::{CreateProps, Error, FileSystem};
use parking_lot::{Condvar, Mutex};
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Snapshots that are opened once the test lets them.
struct Slow {
    then: Arc<dyn Snapshots>,
    /// Whether one is being opened, and whether it may be.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Slow {
    fn set(&self, change: impl FnOnce(&mut (bool, bool))) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    fn wait(&self, until: impl Fn(&(bool, bool)) -> bool) {
        self.changed.wait_while(&mut self.state.lock(), |state| !until(state));
    }
}

struct Shared(Arc<Slow>);

impl Snapshots for Shared {
    fn list(&self) -> Vec<SnapshotEntry> {
        self.0.then.list()
    }

    fn newest(&self) -> u64 {
        self.0.then.newest()
    }

    fn open(&self, name: &str) -> Result<Arc<FileSystem>, Error> {
        self.0.set(|state| state.0 = true);
        self.0.wait(|state| state.1);
        self.0.then.open(name)
    }
}

#[test]
fn a_lookup_that_is_not_answered_keeps_nobody_for_ever() {
    let mut slow = None;
    let w = World::with(settings(), &CreateProps::default(), |spec| {
        let then = spec.snapshots.take().unwrap();
        let (state, changed) = (Mutex::default(), Condvar::new());
        let made = Arc::new(Slow { then, state, changed });
        slow = Some(made.clone());
        spec.snapshots = Some(Arc::new(Shared(made)));
    });
    let slow = slow.unwrap();
    let looked = w.path(".zfs/snapshot/then/.");
    let lookup = std::thread::spawn(move || fs::metadata(looked));
    slow.wait(|state| state.0);
    // The kernel holds the directory until the lookup is answered.
    let start = Instant::now();
    assert!(!w.handle.snapshot_changed("other").wait(), "it cannot have forgotten yet");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    // Others of the mount are served meanwhile.
    fs::write(w.path("file"), "text").unwrap();
    slow.set(|state| state.1 = true);
    lookup.join().unwrap().unwrap();
    assert!(w.handle.snapshot_changed("other").wait());
    w.unmount();
}
