//! Other contents for a file system that is mounted and in use.

use super::world::World;
use cenote_zpl::{NewNode, NodeKind, SetAttr};
use rustix::mount::{MountFlags, UnmountFlags};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

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
    w.handle.exchange(|| {
        w.fs.rename(d, b"old", d, b"new", Default::default(), &|_| true).unwrap();
        w.fs.write(w.fs.resolve(b"d/same").unwrap(), 0, b"afterwards", false).unwrap();
        w.fs.unlink(d, b"gone", &|_| false).unwrap();
        // Another file of the same name, perhaps of the same number.
        let other = w.fs.create(d, b"gone", &NODE).unwrap();
        w.fs.write(other.ino, 0, b"another", false).unwrap();
        w.fs.unlink(d, b"given", &|_| false).unwrap();
        w.fs.create(w.fs.resolve(b"d/inner").unwrap(), b"young", &NODE).unwrap();
        ((), Some(w.fs.clone()))
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
            w.handle.exchange(|| {
                let during = rounds.load(Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(10));
                // Each thread may have had its last answer already.
                assert!(rounds.load(Ordering::SeqCst) <= during + 3);
                ((), Some(w.fs.clone()))
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
        w.handle.exchange(|| {
            let log = w.fs.resolve(b"d/log").unwrap();
            w.fs.setattr(log, &SetAttr { size: Some(after), ..SetAttr::default() }).unwrap();
            ((), Some(w.fs.clone()))
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
        w.handle.exchange(|| {
            begun.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(100));
            ((), Some(w.fs.clone()))
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
    w.handle.exchange(|| ((), None));
    assert_eq!(errno(open.write(b"x")), EIO);
    assert!(File::open(w.path("file")).is_err());
}
