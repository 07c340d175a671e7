//! Requests that wait until changes are on disk: on which thread, what they keep from going on, and how they end.

use super::world::{World, settings};
use cenote_fuse::{Force, Renewed, SyncPolicy};
use cenote_zpl::{CreateProps, Error};
use parking_lot::{Condvar, Mutex};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::RangeInclusive;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long anything here may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Syncs of a file system at once: four by threads of requests; one to four by those of the queue, as what comes together shares one.
const AT_ONCE: RangeInclusive<usize> = 5..=8;

fn comes_true(condition: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > TIMEOUT {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// A mount whose syncs note the names of their threads.
fn noting() -> (World, Arc<Mutex<Vec<String>>>) {
    let names = Arc::<Mutex<Vec<String>>>::default();
    let noted = names.clone();
    let w = World::with(settings(), &CreateProps::default(), |spec| {
        let sync = spec.sync.clone();
        spec.sync = Arc::new(move |objects| {
            noted.lock().push(std::thread::current().name().unwrap().to_owned());
            sync(objects)
        });
    });
    (w, names)
}

/// Threads that serve requests are numbered.
fn serves_requests(name: &str) -> bool {
    name.strip_prefix("fuse-").is_some_and(|number| number.parse::<u64>().is_ok())
}

#[test]
fn the_thread_of_a_request_waits_itself() {
    let (w, names) = noting();
    let synced = |what: &str, change: &mut dyn FnMut()| {
        names.lock().clear();
        change();
        let names = names.lock();
        let own = !names.is_empty() && names.iter().all(|name| serves_requests(name));
        assert!(own, "{what}: {names:?}");
    };
    let mut file = File::create(w.path("f")).unwrap();
    for _ in 0..20 {
        file.write_all(b"x").unwrap();
        synced("fsync", &mut || file.sync_all().unwrap());
        file.write_all(b"y").unwrap();
        synced("fdatasync", &mut || file.sync_data().unwrap());
    }
    let dir = File::open(w.dir.path()).unwrap();
    synced("fsync of a directory", &mut || dir.sync_all().unwrap());
    // Past the pages and through them; a write is one request then, or two. Not rustix's flags, for which both are one.
    for flags in [libc::O_DSYNC, libc::O_SYNC] {
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(flags);
        let new = w.path(&format!("new{flags}"));
        let new = options.clone().create_new(true).open(new).unwrap();
        let old = options.read(true).open(w.path("f")).unwrap();
        for (at, file) in [&new, &old].into_iter().cycle().take(10).enumerate() {
            synced("O_DSYNC", &mut || file.write_all_at(&[1; 3000], at as u64 * 1000).unwrap());
        }
    }
    w.handle.set_sync_policy(SyncPolicy::Always);
    synced("sync=always", &mut || fs::create_dir(w.path("d")).unwrap());
    synced("sync=always", &mut || fs::rename(w.path("d"), w.path("e")).unwrap());
    w.handle.set_sync_policy(SyncPolicy::Disabled);
    names.lock().clear();
    file.sync_all().unwrap();
    assert!(names.lock().is_empty());
    drop((file, dir));
    let disk = w.unmount();
    assert!(disk.resolve(b"e").is_ok());
}

/// A sync that hangs until it is let go.
#[derive(Default)]
struct Stuck {
    open: Mutex<bool>,
    changed: Condvar,
    waiting: AtomicUsize,
    most: AtomicUsize,
}

impl Stuck {
    fn wait(&self) {
        let waiting = self.waiting.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(waiting, Ordering::SeqCst);
        self.changed.wait_while(&mut self.open.lock(), |open| !*open);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    fn let_go(&self) {
        *self.open.lock() = true;
        self.changed.notify_all();
    }
}

fn stuck() -> (World, Arc<Stuck>) {
    let stuck = Arc::<Stuck>::default();
    let hangs = stuck.clone();
    let w = World::with(settings(), &CreateProps::default(), |spec| {
        let sync = spec.sync.clone();
        spec.sync = Arc::new(move |objects| {
            hangs.wait();
            sync(objects)
        });
    });
    (w, stuck)
}

/// More programs wait than there may be threads for a mount. Others go on, in this mount and in another one; so does an exchange,
/// which waits for requests that are served.
#[test]
fn syncs_that_hang_keep_no_others_waiting() {
    const PROGRAMS: usize = 40;
    let (w, stuck) = stuck();
    let other = World::new();
    let files: Vec<File> =
        (0..PROGRAMS).map(|n| File::create(w.path(&format!("f{n}"))).unwrap()).collect();
    std::thread::scope(|scope| {
        let sync = |file: File| move || file.sync_all().map_err(|e| e.to_string());
        let syncs: Vec<_> = files.into_iter().map(|file| scope.spawn(sync(file))).collect();
        let all = comes_true(|| AT_ONCE.contains(&stuck.waiting.load(Ordering::SeqCst)));
        let begun = Instant::now();
        let use_both = || {
            for dir in [w.dir.path(), other.dir.path()] {
                for n in 0..50 {
                    let file = dir.join(format!("beside{n}"));
                    fs::write(&file, vec![n; 10_000])?;
                    if fs::read(&file)? != vec![n; 10_000] {
                        return Err(std::io::Error::other("other contents"));
                    }
                    fs::remove_file(&file)?;
                }
            }
            Ok(())
        };
        let used = scope.spawn(use_both);
        let done = comes_true(|| used.is_finished());
        let exchanged = scope.spawn(|| {
            w.handle.exchange(None, || ((), Renewed::Other(w.fs.clone())));
        });
        let exchange = comes_true(|| exchanged.is_finished());
        let (took, most) = (begun.elapsed(), stuck.most.load(Ordering::SeqCst));
        let none = syncs.iter().all(|sync| !sync.is_finished());
        // Whatever went wrong, no thread waits any longer.
        stuck.let_go();
        assert!(all && AT_ONCE.contains(&most), "{most} syncs at once");
        assert!(done && exchange && none, "{done} {exchange} {none} {took:?}");
        used.join().unwrap().unwrap();
        exchanged.join().unwrap();
        for sync in syncs {
            assert_eq!(sync.join().unwrap(), Ok(()));
        }
    });
    w.unmount();
    other.unmount();
}

/// What fails is told to the program that waits, once.
#[test]
fn an_error_is_told_once() {
    let fails = Arc::new(AtomicUsize::new(0));
    let failing = fails.clone();
    let w = World::with(settings(), &CreateProps::default(), |spec| {
        let sync = spec.sync.clone();
        spec.sync = Arc::new(move |objects| {
            let less = |left: usize| left.checked_sub(1);
            match failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
                Ok(2) => panic!("for the test"),
                Ok(_) => Err(Error::Invalid("for the test".into())),
                Err(_) => sync(objects),
            }
        });
    });
    let mut file = File::create(w.path("f")).unwrap();
    let options = || OpenOptions::new().write(true).custom_flags(libc::O_DSYNC).clone();
    let durable = options().create_new(true).open(w.path("new")).unwrap();
    let paged = options().read(true).open(w.path("f")).unwrap();
    for fails_as in [1, 2] {
        let fail = || fails.store(fails_as, Ordering::SeqCst);
        let well = || assert!(fails.swap(0, Ordering::SeqCst) < fails_as);
        file.write_all(b"x").unwrap();
        fail();
        file.sync_all().unwrap_err();
        well();
        file.sync_all().unwrap();
        for file in [&durable, &paged] {
            fail();
            file.write_at(b"y", 0).unwrap_err();
            well();
            file.write_at(b"z", 0).unwrap();
        }
    }
    drop((file, durable, paged));
    w.unmount();
}

/// A mount that is taken away ends, though its syncs hang and their threads with them.
#[test]
fn a_mount_ends_while_syncs_hang() {
    let (mut w, stuck) = stuck();
    let files: Vec<File> = (0..12).map(|n| File::create(w.path(&n.to_string())).unwrap()).collect();
    std::thread::scope(|scope| {
        let syncs: Vec<_> =
            files.iter().map(|file| scope.spawn(|| file.sync_all().is_ok())).collect();
        let all = comes_true(|| AT_ONCE.contains(&stuck.waiting.load(Ordering::SeqCst)));
        let unmounted = w.handle.unmount(Force::Yes);
        let ended = comes_true(|| w.handle.is_finished() && syncs.iter().all(|s| s.is_finished()));
        let still = stuck.waiting.load(Ordering::SeqCst);
        stuck.let_go();
        assert!(all && unmounted.is_ok() && ended, "{all} {unmounted:?} {ended}");
        assert!(AT_ONCE.contains(&still), "{still}");
        assert!(syncs.into_iter().all(|sync| !sync.join().unwrap()));
    });
}
