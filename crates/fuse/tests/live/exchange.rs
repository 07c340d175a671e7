//! Other contents for a file system that is mounted and in use.

use super::world::World;
use cenote_fuse::Renewed;
use cenote_zpl::{FileSystem, NewNode, NodeKind, SetAttr};
use rustix::mount::{MountFlags, UnmountFlags};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const EIO: i32 = 5;
const ESTALE: i32 = 116;
const NODE: NewNode =
    NewNode { kind: NodeKind::File, mode: 0o644, umask: 0o022, uid: 0, gid: 0, keep_setgid: true };

fn errno<T: std::fmt::Debug>(r: std::io::Result<T>) -> i32 {
    r.unwrap_err().raw_os_error().unwrap()
}

fn text(file: &mut File) -> String {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn what_is_open_goes_on_in_the_other_contents() {
    let w = World::new();
    fs::create_dir_all(w.path("d/inner")).unwrap();
    for name in ["d/old", "d/same", "d/gone", "d/given"] {
        fs::write(w.path(name), name).unwrap();
    }
    assert!(!w.path("d/new").exists(), "the kernel knows that");
    let mut same = File::options().read(true).write(true).open(w.path("d/same")).unwrap();
    let mut moved = File::open(w.path("d/old")).unwrap();
    let mut gone = File::options().read(true).write(true).open(w.path("d/gone")).unwrap();
    assert_eq!((text(&mut same), text(&mut gone)), ("d/same".into(), "d/gone".into()));
    let inside = File::open(w.path("d/inner")).unwrap();
    let d = w.fs.resolve(b"d").unwrap();
    w.handle.exchange(None, || {
        w.fs.rename(d, b"old", d, b"new", Default::default(), &|_| true).unwrap();
        w.fs.write(w.fs.resolve(b"d/same").unwrap(), 0, b"afterwards", false).unwrap();
        w.fs.unlink(d, b"gone", &|_| false).unwrap();
        // Another file of the same name, perhaps of the same number.
        let other = w.fs.create(d, b"gone", &NODE).unwrap();
        w.fs.write(other.ino, 0, b"another", false).unwrap();
        w.fs.unlink(d, b"given", &|_| false).unwrap();
        w.fs.create(w.fs.resolve(b"d/inner").unwrap(), b"young", &NODE).unwrap();
        ((), Renewed::Other(w.fs.clone()))
    });
    assert_eq!(text(&mut same), "afterwards");
    assert_eq!(text(&mut moved), "d/old");
    same.seek(SeekFrom::Start(0)).unwrap();
    same.write_all(b"AFTER").unwrap();
    assert_eq!(fs::read(w.path("d/same")).unwrap(), b"AFTERwards");
    assert!(w.path("d/new").exists() && !w.path("d/old").exists() && !w.path("d/given").exists());
    assert!([EIO, ESTALE].contains(&errno(gone.read(&mut [0; 4]))));
    assert_eq!(errno(gone.write(b"lost")), EIO);
    assert_eq!(fs::read(w.path("d/gone")).unwrap(), b"another");
    assert_eq!(fs::read_dir(w.path("d")).unwrap().count(), 4);
    // A process that works in a directory goes on there.
    let listed = rustix::fs::Dir::read_from(&inside).unwrap();
    let names: Vec<_> = listed.map(|e| e.unwrap().file_name().to_owned()).collect();
    assert!(names.iter().any(|name| name.to_bytes() == b"young"), "{names:?}");
    drop((same, moved, gone, inside));
    let disk = w.unmount();
    assert!(disk.resolve(b"d/new").is_ok() && disk.resolve(b"d/given").is_err());
}

#[test]
fn requests_wait_until_the_other_contents_are_there() {
    let w = World::new();
    fs::create_dir(w.path("d")).unwrap();
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (w, stop, rounds) = (&w, &stop, &rounds);
            scope.spawn(move || {
                let path = w.path(&format!("d/{thread}"));
                for round in 0..u64::MAX {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    fs::write(&path, round.to_string()).unwrap();
                    assert_eq!(fs::read_to_string(&path).unwrap(), round.to_string());
                    fs::remove_file(&path).unwrap();
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for _ in 0..20 {
            let before = rounds.load(Ordering::SeqCst);
            w.handle.exchange(None, || {
                let during = rounds.load(Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(10));
                // Each thread may have had its last answer already.
                assert!(rounds.load(Ordering::SeqCst) <= during + 3);
                ((), Renewed::Other(w.fs.clone()))
            });
            while rounds.load(Ordering::SeqCst) == before {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert_eq!(fs::read_dir(w.path("d")).unwrap().filter(Result::is_err).count(), 0);
}

#[test]
fn logs_go_on_at_their_new_ends() {
    const LONG: u64 = 100_000;
    let w = World::new();
    fs::create_dir(w.path("d")).unwrap();
    for (before, after) in [(LONG, 5), (5, LONG)] {
        fs::write(w.path("d/log"), vec![b'x'; before as usize]).unwrap();
        let mut log = File::options().append(true).open(w.path("d/log")).unwrap();
        assert_eq!(log.metadata().unwrap().len(), before, "the kernel knows the size");
        w.handle.exchange(None, || {
            let log = w.fs.resolve(b"d/log").unwrap();
            w.fs.setattr(log, &SetAttr { size: Some(after), ..SetAttr::default() }).unwrap();
            ((), Renewed::Other(w.fs.clone()))
        });
        log.write_all(b"first").unwrap();
        log.write_all(b"second").unwrap();
        assert_eq!(log.metadata().unwrap().len(), after + 11);
        log.write_all(b"third").unwrap();
        let all = fs::read(w.path("d/log")).unwrap();
        assert_eq!(all.len() as u64, after + 16);
        assert!(all.ends_with(b"firstsecondthird"), "{after}");
        assert!(all[..all.len() - 16].starts_with(b"xxxxx"), "{after}");
    }
    let log = w.fs.resolve(b"d/log").unwrap();
    assert_eq!(w.fs.attr(log).unwrap().size, LONG + 16);
}

#[test]
fn what_is_mounted_on_new_names_meanwhile_stays_mounted() {
    const NEW: usize = 8;
    let w = World::new();
    fs::create_dir(w.path("d")).unwrap();
    (0..3000).for_each(|i| fs::write(w.path(&format!("d/{i}")), "").unwrap());
    let places: Vec<_> = (0..NEW).map(|i| w.path(&format!("d/new{i}"))).collect();
    let begun = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !begun.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            for place in &places {
                // The first one waits until the other contents are there.
                fs::create_dir(place).unwrap();
                rustix::mount::mount("none", place, "tmpfs", MountFlags::empty(), None).unwrap();
            }
        });
        w.handle.exchange(Some(w.on_disk()), || {
            begun.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(100));
            ((), Renewed::Other(w.fs.clone()))
        });
    });
    let below = fs::metadata(w.path("d")).unwrap().dev();
    let lost: Vec<_> =
        places.iter().filter(|place| fs::metadata(place).unwrap().dev() == below).collect();
    for place in places.iter().filter(|place| !lost.contains(place)) {
        rustix::mount::unmount(place, UnmountFlags::DETACH).unwrap();
    }
    assert!(lost.is_empty(), "{lost:?}");
    drop(w.unmount());
}

#[test]
fn without_other_contents_whoever_uses_it_gets_errors() {
    let w = World::new();
    fs::write(w.path("file"), "text").unwrap();
    let mut open = File::options().write(true).open(w.path("file")).unwrap();
    w.handle.exchange(None, || ((), Renewed::Nothing));
    assert_eq!(errno(open.write(b"x")), EIO);
    assert!(File::open(w.path("file")).is_err());
}

/// The text of a file, by its path in a file system; `None`: the file does not exist.
fn text_in(fs: &FileSystem, path: &str) -> Option<String> {
    let mut bytes = [0; 64];
    let found = fs.resolve(path.as_bytes()).ok()?;
    let read = fs.read(found, 0, &mut bytes).unwrap();
    Some(String::from_utf8(bytes[..read].to_vec()).unwrap())
}

/// What requests see and change while a device hangs that the exchange waits for.
fn use_meanwhile(dir: &Path) {
    assert_eq!(fs::read_to_string(dir.join("d/one")).unwrap(), "one");
    fs::rename(dir.join("d/one"), dir.join("d/three")).unwrap();
    fs::rename(dir.join("d/two"), dir.join("d/one")).unwrap();
    fs::write(dir.join("d/two"), "another").unwrap();
    fs::create_dir(dir.join("young")).unwrap();
    fs::write(dir.join("young/one"), "young").unwrap();
    fs::remove_file(dir.join("gone")).unwrap();
    assert!(!dir.join("later").exists());
    let given = fs::metadata(dir.join("given")).unwrap();
    assert!(given.is_dir());
    assert_eq!(fs::read_dir(dir.join("d")).unwrap().count(), 3);
}

#[test]
fn a_device_that_hangs_keeps_no_request_waiting() {
    let w = World::new();
    fs::create_dir(w.path("d")).unwrap();
    for name in ["one", "two"] {
        fs::write(w.path("d").join(name), name).unwrap();
    }
    fs::write(w.path("gone"), "gone").unwrap();
    let ([then, coming], device) = w.store.sync_twice();
    fs::create_dir(w.path("given")).unwrap();
    device.set_reads_hung(true);
    std::thread::scope(|scope| {
        let exchange = scope.spawn(|| {
            let (handle, then) = (&w.handle, then.clone());
            handle.exchange(Some(coming), || ((), Renewed::Other(then)))
        });
        while device.waiting() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let ((tell, done), dir) = (channel(), w.dir.path());
        scope.spawn(move || {
            use_meanwhile(dir);
            tell.send(()).unwrap();
        });
        let served = done.recv_timeout(Duration::from_secs(20));
        let waited = !exchange.is_finished();
        device.set_reads_hung(false);
        assert!(served.is_ok() && waited, "{served:?} {waited}");
        exchange.join().unwrap().unwrap();
    });
    for name in ["one", "two"] {
        assert_eq!(fs::read_to_string(w.path("d").join(name)).unwrap(), name);
    }
    for gone in ["d/three", "young", "given", "young/one"] {
        assert!(!w.path(gone).exists(), "{gone}");
    }
    assert_eq!(fs::read_to_string(w.path("gone")).unwrap(), "gone");
    drop(w.unmount());
}

#[test]
fn a_change_that_is_not_made_leaves_all_as_it_is() {
    let w = World::new();
    fs::write(w.path("file"), "text").unwrap();
    let coming = w.on_disk();
    fs::write(w.path("young"), "young").unwrap();
    let mut unnamed = File::options().read(true).write(true).open(w.path("file")).unwrap();
    fs::remove_file(w.path("file")).unwrap();
    w.handle.exchange(Some(coming), || ((), Renewed::Same(w.fs.clone())));
    assert_eq!(text(&mut unnamed), "text");
    assert_eq!(fs::read_to_string(w.path("young")).unwrap(), "young");
    assert!(!w.path("file").exists());
    // The same contents, opened anew: what has no name is gone with the old ones.
    let again = w.on_disk();
    let mut young = File::open(w.path("young")).unwrap();
    w.handle.exchange(None, || ((), Renewed::Same(again)));
    assert_eq!(text(&mut young), "young");
    assert_eq!(fs::read_to_string(w.path("young")).unwrap(), "young");
    assert!([EIO, ESTALE].contains(&errno(unnamed.read(&mut [0; 4]))));
}

const DIRECTORIES: [&str; 3] = ["a", "b", "a/c"];
const NAMES: [&str; 5] = ["v", "w", "x", "y", "z"];

/// Random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % most
    }

    fn path(&mut self) -> String {
        format!("{}/{}", DIRECTORIES[self.below(3)], NAMES[self.below(5)])
    }
}

/// Makes, moves, replaces, removes and looks up files, each with a text that no other one ever has.
fn churn(dir: &Path, seed: u64, stop: &AtomicBool) {
    let mut random = Random(seed);
    for round in 0..u64::MAX {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let (path, other) = (dir.join(random.path()), dir.join(random.path()));
        // In between the file system is read-only, and others do the same.
        let _ = match random.below(6) {
            0 | 1 => fs::write(&path, format!("{seed} {round}")),
            2 => fs::rename(&path, &other),
            3 => fs::remove_file(&path),
            4 => fs::hard_link(&path, &other),
            _ => fs::metadata(&path).map(drop),
        };
    }
}

/// Files that are open stay what they are, or are no more; and each name leads to what it leads to in the contents that are served.
#[test]
fn no_name_and_no_open_file_leads_to_a_wrong_file() {
    let w = World::new();
    for dir in DIRECTORIES {
        fs::create_dir(w.path(dir)).unwrap();
    }
    let mut random = Random(7);
    let until = Instant::now() + Duration::from_secs(20);
    let (mut rounds, mut kept, mut lost) = (0, 0, 0);
    while rounds < 60 && Instant::now() < until {
        rounds += 1;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let churners: Vec<_> = (1..4)
                .map(|seed| (seed * 1000 + rounds, &w, &stop))
                .map(|(seed, w, stop)| scope.spawn(move || churn(w.dir.path(), seed, stop)))
                .collect();
            std::thread::sleep(Duration::from_millis(30));
            let ([then, coming], device) = w.store.sync_twice();
            device.set_delay(Duration::from_millis(random.below(4) as u64));
            std::thread::sleep(Duration::from_millis(20));
            // Opened while all goes on, so that a text may be that of another file by the time it is read.
            let open: Vec<_> =
                (0..15).filter_map(|_| File::open(w.path(&random.path())).ok()).collect();
            let numbers: Vec<_> =
                open.iter().map(|file| file.metadata().ok().map(|m| m.ino())).collect();
            let coming = (rounds % 4 > 0).then_some(coming);
            w.handle.exchange(coming, || ((), Renewed::Other(then.clone()))).unwrap();
            stop.store(true, Ordering::SeqCst);
            churners.into_iter().for_each(|churner| churner.join().unwrap());
            for dir in DIRECTORIES {
                for name in NAMES {
                    let path = format!("{dir}/{name}");
                    let through = fs::read_to_string(w.path(&path)).ok();
                    assert_eq!(through, text_in(&then, &path), "{path} in round {rounds}");
                }
            }
            for (mut file, number) in open.into_iter().zip(numbers) {
                let mut all = String::new();
                match (file.read_to_string(&mut all), number) {
                    (Ok(_), Some(number)) => {
                        let mut bytes = [0; 64];
                        let read = then.read(number, 0, &mut bytes).unwrap();
                        assert_eq!(all.as_bytes(), &bytes[..read], "round {rounds}");
                        kept += 1;
                    }
                    (Ok(_), None) => panic!("it was no more, and is"),
                    (Err(e), _) => {
                        assert!([Some(EIO), Some(ESTALE)].contains(&e.raw_os_error()), "{e}");
                        lost += 1;
                    }
                }
            }
        });
        // What can be changed is served again.
        w.handle.exchange(Some(w.on_disk()), || ((), Renewed::Other(w.fs.clone()))).unwrap();
    }
    assert!(rounds > 5 && kept > 0 && lost > 0, "{rounds} rounds, {kept} kept, {lost} lost");
}
