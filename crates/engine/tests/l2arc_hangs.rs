//! Cache devices that hang: a thread that waits for one holds nothing of the pool. The pool goes on, and is closed, without it. OpenZFS's
//! `zdb` judges the pools. Where it is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::{Engine, EngineOptions, TakeOut};
use cenote_format::LABEL_START;
use cenote_format::label::LABEL_END;
use cenote_pool::devices::Opener;
use cenote_pool::reopen::Restore;
use cenote_pool::{ImportOptions, discover};
use cenote_vdev::{Device, ReadReq, WriteReq, open_device, open_device_rw};
use parking_lot::{Condvar, Mutex};
use rig::Rig;
use rig::caches::{figures, filled, guid_of_cache, until};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Opens devices, but one of them only once that is let through.
#[derive(Default)]
struct Gate {
    /// Threads that wait, and whether they are let through.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
    opened: Mutex<Vec<(PathBuf, Weak<dyn Device>)>>,
}

impl Gate {
    fn open(&self, path: &Path, writable: bool, closed: &Path) -> io::Result<Arc<dyn Device>> {
        if path == closed {
            let mut state = self.state.lock();
            state.0 += 1;
            self.changed.wait_while(&mut state, |state| !state.1);
            state.0 -= 1;
        }
        let device = (if writable { open_device_rw } else { open_device })(path)?;
        self.opened.lock().push((path.into(), Arc::downgrade(&device)));
        Ok(device)
    }

    /// How the devices of a pool are opened, and a file among them through this.
    fn before(self: &Arc<Self>, rig: &Rig, file: &str) -> Opener {
        let (gate, closed) = (self.clone(), rig.file(file));
        Opener::new(move |path, writable| gate.open(path, writable, &closed))
    }

    fn waiting(&self) -> usize {
        self.state.lock().0
    }

    fn lets_through(&self) {
        self.state.lock().1 = true;
        self.changed.notify_all();
    }

    fn is_held(&self, path: &Path) -> bool {
        let opened = self.opened.lock();
        opened.iter().any(|(at, device)| at == path && device.strong_count() > 0)
    }
}

#[test]
fn a_device_that_hangs_as_it_is_opened_holds_none_of_the_pool() {
    let rig = Rig::new(128 << 20);
    let engine = filled(&rig, "a cache b", 9);
    engine.export(false).unwrap();
    drop(engine);
    let gate = Arc::new(Gate::default());
    let found = discover(&[rig.path().to_path_buf()]);
    let options = EngineOptions { opener: gate.before(&rig, "b"), ..EngineOptions::default() };
    let engine = Engine::import(&found[0], &ImportOptions::default(), options).unwrap();
    until("a device that hangs", || gate.waiting() > 0);
    assert!(gate.is_held(&rig.file("a")));
    engine.export(false).unwrap();
    drop((engine, found));
    assert!(!gate.is_held(&rig.file("a")), "the pool's device is held");
    // What waits for it has nothing to write to it by now.
    let before = std::fs::read(rig.file("b")).unwrap();
    gate.lets_through();
    until("an end", || gate.waiting() == 0 && !gate.is_held(&rig.file("b")));
    assert!(before == std::fs::read(rig.file("b")).unwrap());
    let engine = rig.import();
    until("what was there", || figures(&engine).counts.rebuild_success == 1);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// The pool goes on, and the device was taken out of use before it was there.
#[test]
fn nothing_is_written_by_a_thread_that_waited_for_its_device_too_long() {
    let rig = Rig::new(128 << 20);
    let engine = filled(&rig, "a cache b", 9);
    engine.export(false).unwrap();
    drop(engine);
    let gate = Arc::new(Gate::default());
    let found = discover(&[rig.path().to_path_buf()]);
    let options = EngineOptions { opener: gate.before(&rig, "b"), ..EngineOptions::default() };
    let engine = Engine::import(&found[0], &ImportOptions::default(), options).unwrap();
    until("a device that hangs", || gate.waiting() > 0);
    let guid = guid_of_cache(&engine);
    engine.take_out_cache(guid, TakeOut::OfflineForNow).unwrap();
    let before = std::fs::read(rig.file("b")).unwrap();
    gate.lets_through();
    until("an end", || gate.waiting() == 0);
    std::thread::sleep(Duration::from_secs(1));
    assert!(before == std::fs::read(rig.file("b")).unwrap());
    assert_eq!(figures(&engine).sums.blocks, 0);
    engine.restore_cache(guid, Restore::Offline).unwrap();
    until("what was there", || figures(&engine).counts.rebuild_success == 1);
    engine.export(false).unwrap();
    drop((engine, found));
    rig.judge_blocks();
}

/// A device on which what lies behind the header is read slowly: more so than an export waits, and less than a rebuild does.
struct Slow {
    inner: Arc<dyn Device>,
    came: Arc<AtomicU64>,
}

impl Device for Slow {
    fn below(&self) -> Option<&dyn Device> {
        Some(&*self.inner)
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        let blocks = LABEL_START + 4096..self.size() - LABEL_END;
        if reqs.iter().any(|req| blocks.contains(&req.offset)) {
            self.came.fetch_add(1, SeqCst);
            std::thread::sleep(Duration::from_secs(7));
        }
        self.inner.read_batch(reqs);
    }

    fn writable(&self) -> bool {
        self.inner.writable()
    }

    fn write_batch(&self, reqs: &mut [WriteReq]) {
        self.inner.write_batch(reqs);
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// A log block that is read after its thread was left behind enters no index and no figure.
#[test]
fn a_log_block_that_comes_too_late_restores_nothing() {
    let rig = Rig::new(128 << 20);
    let engine = filled(&rig, "a cache b", 9);
    engine.export(false).unwrap();
    drop(engine);
    let (came, cache) = (Arc::new(AtomicU64::new(0)), rig.file("b"));
    let counts = came.clone();
    let opener = Opener::new(move |path, writable| {
        let inner = (if writable { open_device_rw } else { open_device })(path)?;
        let slow = Slow { inner: inner.clone(), came: counts.clone() };
        Ok(if path == cache { Arc::new(slow) } else { inner })
    });
    let found = discover(&[rig.path().to_path_buf()]);
    let options = EngineOptions { opener, ..EngineOptions::default() };
    let engine = Engine::import(&found[0], &ImportOptions::default(), options).unwrap();
    let guid = guid_of_cache(&engine);
    until("a read of a log block", || came.load(SeqCst) > 0);
    engine.take_out_cache(guid, TakeOut::OfflineForNow).unwrap();
    std::thread::sleep(Duration::from_secs(9));
    let known = figures(&engine);
    assert_eq!((known.sums.blocks, known.log_count, known.hdr_size), (0, 0, 0), "{known:?}");
    engine.export(false).unwrap();
    drop((engine, found));
    rig.judge_blocks();
}
