//! Cache devices that hang: whoever waits for one has nothing of the pool, which goes on, and is closed, without it. OpenZFS's
//! `zdb` judges the pools. Where it is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::{Engine, EngineOptions};
use cenote_pool::devices::Opener;
use cenote_pool::{ImportOptions, discover};
use cenote_vdev::{Device, open_device, open_device_rw};
use parking_lot::{Condvar, Mutex};
use rig::Rig;
use rig::caches::{figures, filled, until};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

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
