//! Devices that do not answer: files of a file system whose server is stopped. What looks through devices names such a
//! device and goes on, and what shows a pool leaves it alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::tank::Tank;
use common::{Done, Session, can_mount, must};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than what waits for no device takes.
const SOON: Duration = Duration::from_secs(25);

/// A daemon that is stopped while this lasts.
struct Stopped(String);

impl Stopped {
    fn new(session: &Session) -> Stopped {
        let process = session.daemon().unwrap().to_string();
        must("kill", &["-STOP", &process]);
        Stopped(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        must("kill", &["-CONT", &self.0]);
    }
}

fn disk(path: PathBuf) -> PathBuf {
    File::create(&path).unwrap().set_len(128 << 20).unwrap();
    path
}

/// Runs a command that is over soon.
#[track_caller]
fn soon(session: &Session, line: &str) -> Done {
    let begun = Instant::now();
    let done = session.run(line);
    let took = begun.elapsed();
    assert!(took < SOON, "{line}: {took:?}");
    done
}

/// A daemon that waits so long for a device that is looked at.
fn impatient() -> Session {
    let session = Session::new();
    session.run("tunables set vdev_answer_ms=4000").ok();
    session
}

fn show(path: &Path) -> String {
    path.canonicalize().unwrap_or(path.to_path_buf()).display().to_string()
}

#[test]
fn what_hangs_is_named_and_passed_over() {
    if !can_mount() {
        return;
    }
    let (outer, inner) = (Tank::new(""), impatient());
    let hung = disk(outer.path("tank/disk"));
    let dir = inner.path("d");
    fs::create_dir(&dir).unwrap();
    let good = disk(dir.join("good"));
    inner.run(&format!("zpool create -m none other {}", good.display())).ok();
    inner.run("zpool export other").ok();
    symlink(&hung, dir.join("link")).unwrap();
    let second = disk(inner.path("second"));
    let link = format!("{}/link", show(&dir));
    let stopped = Stopped::new(&outer.session);
    let import = format!("zpool import -d {} other", dir.display());
    let labels = format!("zdb -l {link}");
    thread::scope(|scope| {
        let importing = scope.spawn(|| inner.run(&import));
        let labels = scope.spawn(|| inner.run(&labels));
        thread::sleep(Duration::from_secs(2));
        // Others do not wait for it.
        soon(&inner, &format!("zpool create -m none second {}", second.display())).ok();
        assert!(!importing.is_finished());
        let imported = importing.join().unwrap();
        let named = format!("cannot open '{link}': the device does not answer\n");
        assert_eq!((imported.code, imported.err), (0, named));
        let labels = labels.join().unwrap();
        let named = format!("cannot open '{link}': the device does not answer\n");
        assert_eq!((labels.code, labels.out), (1, named));
    });
    // It is known by now.
    let clear = format!("zpool labelclear {link}");
    let named = format!("failed to open {link}: the device does not answer");
    assert_eq!(soon(&inner, &clear).fails(1), named);
    let named = format!("cannot open '{link}': the device does not answer");
    for line in ["zpool create third", "zpool add other", "zpool attach other good"] {
        assert_eq!(soon(&inner, &format!("{line} {link}")).fails(1), named, "{line}");
    }
    // Nor is it looked through.
    let scanned = soon(&inner, &format!("zpool import --scan -d {}", dir.display()));
    assert!(scanned.err.starts_with(&named), "{scanned:?}");
    drop(stopped);
    for name in ["other", "second"] {
        inner.run(&format!("zpool export {name}")).ok();
    }
    cenote_testpools::judge(&dir, "other");
    answers(&inner, &dir);
    drop(inner);
    outer.finish();
}

#[test]
fn a_pool_whose_only_disk_hangs_keeps_no_others_waiting() {
    if !can_mount() {
        return;
    }
    let (outer, inner) = (Tank::new(""), impatient());
    let hung = disk(outer.path("tank/disk"));
    let (cache, saved) = (inner.path("cache"), inner.path("saved"));
    let create = format!("zpool create -m none -o cachefile={} lone", cache.display());
    inner.run(&format!("{create} {}", hung.display())).ok();
    fs::copy(&cache, &saved).unwrap();
    inner.run("zpool export lone").ok();
    let second = disk(inner.path("second"));
    let stopped = Stopped::new(&outer.session);
    let named = format!("cannot open '{}': the device does not answer\n", hung.display());
    for name in ["-a", "lone"] {
        let done = soon(&inner, &format!("zpool import -c {} {name}", saved.display()));
        assert_eq!(done.code, 1);
        assert!(done.err.starts_with(&named), "{}", done.err);
        let why = "cannot import 'lone': one or more devices is currently unavailable\n";
        assert!(done.err.contains(why), "{}", done.err);
    }
    soon(&inner, &format!("zpool create -m none second {}", second.display())).ok();
    inner.run("zpool export second").ok();
    drop(stopped);
    answers(&inner, &hung);
    inner.run(&format!("zpool import -c {} lone", saved.display())).ok();
    inner.run("zpool export lone").ok();
    cenote_testpools::judge(hung.parent().unwrap(), "lone");
    drop(inner);
    outer.finish();
}

/// Waits until the device that hung has answered.
fn answers(session: &Session, device: &Path) {
    let end = Instant::now() + SOON;
    while !session.run(&format!("zpool import -d {}", device.display())).err.is_empty() {
        assert!(Instant::now() < end);
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn no_pool_is_written_to_without_a_side_that_hangs() {
    if !can_mount() {
        return;
    }
    let (outer, inner) = (Tank::new(""), impatient());
    let (near, far) = (inner.path("near"), outer.path("tank/far"));
    for dir in [&near, &far] {
        fs::create_dir(dir).unwrap();
    }
    let (a, b) = (disk(near.join("a")), disk(far.join("b")));
    let (cache, saved) = (inner.path("cache"), inner.path("saved"));
    let create = format!("zpool create -m none -o cachefile={} twin mirror", cache.display());
    inner.run(&format!("{create} {} {}", a.display(), b.display())).ok();
    fs::copy(&cache, &saved).unwrap();
    inner.run("zpool export twin").ok();
    let stopped = Stopped::new(&outer.session);
    let (saved, near_shown, b_shown) = (saved.display(), near.display(), b.display());
    let refused = "cannot import 'twin': one or more devices do not answer\n";
    let listed = format!("import\nit without them:\n\t{b_shown}\n");
    for places in [format!("-d {a} -d {b_shown}", a = a.display()), format!("-c {saved}")] {
        let done = soon(&inner, &format!("zpool import {places} twin"));
        assert_eq!(done.code, 1, "{places}: {done:?}");
        assert!(done.err.contains(refused) && done.out.contains(&listed), "{done:?}");
    }
    let only_a = format!("-d {}", a.display());
    let done = soon(&inner, &format!("zpool import {only_a} twin"));
    assert_eq!((done.code, done.err.as_str()), (1, refused), "{done:?}");
    // What is read only loses nothing, and with -f the pool goes on without it.
    soon(&inner, &format!("zpool import {only_a} -o readonly=on twin")).ok();
    soon(&inner, "zpool export twin").ok();
    soon(&inner, &format!("zpool import {only_a} -f twin")).ok();
    soon(&inner, "zpool export twin").ok();
    drop(stopped);
    answers(&inner, &b);
    inner.run(&format!("zpool import -d {near_shown} -d {} twin", far.display())).ok();
    inner.run("zpool wait -t resilver twin").ok();
    inner.run("zpool export twin").ok();
    cenote_testpools::judge(&near, "twin");
    drop(inner);
    outer.finish();
}

#[test]
fn commands_that_look_leave_a_hung_side_alone() {
    if !can_mount() {
        return;
    }
    let (outer, inner) = (Tank::new(""), Session::new());
    let (a, b) = (disk(inner.path("a")), disk(outer.path("tank/b")));
    let root = inner.root();
    let create = format!("zpool create -R {root} twin mirror {} {}", a.display(), b.display());
    inner.run(&create).ok();
    fs::write(inner.path("root/twin/file"), "one").unwrap();
    inner.run("zfs snapshot twin@one").ok();
    inner.run("zfs snapshot twin@two").ok();
    let stopped = Stopped::new(&outer.session);
    fs::write(inner.path("root/twin/other"), "two").unwrap();
    // A transaction group waits for the device.
    thread::sleep(Duration::from_secs(7));
    let copy = format!("cp -q twin:/file {}", inner.path("copy").display());
    for line in [
        "zpool status twin",
        "zpool list twin",
        "zpool iostat twin",
        "zpool get all twin",
        "zpool upgrade",
        "zfs list -t all",
        "zfs get all twin",
        "zfs holds twin@one",
        "zfs allow twin",
        "zfs upgrade",
        "zfs diff twin@one twin@two",
        "zdb -d twin",
        "ls twin:/",
        "cat twin:/file",
        "zfs wait twin",
        "zfs send -nv twin@two",
        "zfs send -nPv -i @one twin@two",
        "zfs send -nvR twin@two",
        "map --owners twin",
        "zfs userspace twin",
        "zfs mount",
        "zpool events",
        "zpool status -v twin",
        "zpool remove -n twin mirror-0",
        "zpool split -n twin half",
        "zfs create -n twin/x",
        copy.as_str(),
    ] {
        soon(&inner, line).ok();
    }
    // The pool was read once it is simulated, and is too small for that.
    let aged = soon(&inner, "age --like twin --for 1m -q");
    assert!(aged.code == 0 || aged.err.contains("out of space"), "{aged:?}");
    // It says how far it is.
    let counted = soon(&inner, "zdb -b twin");
    assert_eq!(counted.code, 0, "{counted:?}");
    let history = soon(&inner, "zpool history twin");
    let lacks =
        "history of 'twin' may lack the last: its transaction group is still being written\n";
    assert_eq!((history.code, history.err.as_str()), (0, lacks));
    assert!(history.out.contains("zfs snapshot twin@one"), "{}", history.out);
    drop(stopped);
    inner.run("zpool export twin").ok();
    drop(inner);
    outer.finish();
}

/// What changes one pool waits for its device, and nothing that changes other pools waits for that.
#[test]
fn a_pool_whose_device_hangs_keeps_changes_of_others_from_nothing() {
    if !can_mount() {
        return;
    }
    let (outer, inner) = (Tank::new(""), impatient());
    let hung = disk(outer.path("tank/disk"));
    let near = inner.path("near");
    fs::create_dir(&near).unwrap();
    let (good, third) = (disk(near.join("good")), disk(near.join("third")));
    let root = inner.path("root");
    let create = format!("zpool create -O mountpoint={}", root.display());
    inner.run(&format!("{create}/hung hung {}", hung.display())).ok();
    inner.run(&format!("{create}/other other {}", good.display())).ok();
    for (at, line) in
        ["zfs create hung/x", "zpool export hung", "zpool destroy hung"].iter().enumerate()
    {
        fs::write(root.join("hung/file"), vec![at as u8; 1 << 20]).unwrap();
        let stopped = Stopped::new(&outer.session);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| inner.run(line));
            thread::sleep(Duration::from_secs(1));
            // Another command for the pool waits as well. Commands for other pools go on.
            let by_path = root.join("hung").display().to_string();
            let named = if at == 0 { by_path } else { "hung".into() };
            let set = format!("zfs set compression=zle {named}");
            let (session, place) = (&inner, root.join("other").display().to_string());
            let second = scope.spawn(move || session.run(&set));
            thread::sleep(Duration::from_millis(200));
            for line in [
                &format!("zpool create -m {}/third third {}", root.display(), third.display()),
                &format!("zfs create other/x{at}"),
                &format!("zfs unmount other/x{at}"),
                &format!("zfs mount other/x{at}"),
                &format!("zfs snapshot other@s{at}"),
                // By path: what is mounted is known without a wait for the pool that hangs.
                "zfs mount",
                &format!("zfs diff other@s{at}"),
                &format!("zfs set atime=off {place}"),
                &format!("zfs inherit atime {place}"),
                &format!("zfs userspace {place}"),
                &format!("zfs list {place}/x{at}"),
                &format!("zfs unmount {place}/x{at}"),
                "zpool export third",
                &format!("zpool import -d {} third", near.display()),
                "zpool destroy third",
                "zpool list",
            ] {
                soon(&inner, line).ok();
                assert!(!waiting.is_finished() && !second.is_finished(), "{line}");
            }
            drop(stopped);
            waiting.join().unwrap().ok();
            let second = second.join().unwrap();
            // Later there may be no such pool any more.
            if at == 0 {
                second.ok();
            }
        });
        if line.ends_with("export hung") {
            answers(&inner, &hung);
            inner.run(&format!("zpool import -d {} hung", hung.display())).ok();
        }
    }
    inner.run("zpool export other").ok();
    cenote_testpools::judge(&near, "other");
    drop(inner);
    outer.finish();
}

/// What was unmounted by hand waits for its device to be closed. Who only looks leaves that to others.
#[test]
fn who_looks_closes_nothing() {
    if !can_mount() {
        return;
    }
    let (outer, inner) = (Tank::new(""), impatient());
    let hung = disk(outer.path("tank/disk"));
    let near = inner.path("near");
    fs::create_dir(&near).unwrap();
    let good = disk(near.join("good"));
    let root = inner.path("root");
    let create = format!("zpool create -O mountpoint={}", root.display());
    inner.run(&format!("{create}/hung hung {}", hung.display())).ok();
    inner.run(&format!("{create}/other other {}", good.display())).ok();
    inner.run("zfs create hung/x").ok();
    inner.run("zfs create other/x").ok();
    fs::write(root.join("hung/x/file"), vec![7; 1 << 20]).unwrap();
    let stopped = Stopped::new(&outer.session);
    must("umount", &[&root.join("hung/x").display().to_string()]);
    // The kernel tells it soon.
    thread::sleep(Duration::from_secs(1));
    let place = root.join("other").display().to_string();
    for line in [
        "zfs mount",
        "zfs list",
        &format!("zfs set atime=off {place}"),
        &format!("zfs unmount {place}/x"),
        "zpool export other",
    ] {
        soon(&inner, line).ok();
    }
    let mounted = soon(&inner, "zfs mount").ok();
    assert!(!mounted.contains("hung/x"), "{mounted}");
    drop(stopped);
    inner.run("zfs mount hung/x").ok();
    assert_eq!(fs::read(root.join("hung/x/file")).unwrap(), vec![7; 1 << 20]);
    cenote_testpools::judge(&near, "other");
    drop(inner);
    outer.finish();
}

/// When the daemon ends, a pool whose device hangs is named and keeps no other one from being exported.
#[test]
fn a_pool_that_hangs_keeps_no_other_one_at_the_end() {
    if !can_mount() {
        return;
    }
    let (outer, inner, other) = (Tank::new(""), impatient(), Session::new());
    let hung = disk(outer.path("tank/disk"));
    let near = inner.path("near");
    fs::create_dir(&near).unwrap();
    let good = disk(near.join("good"));
    let root = inner.path("root");
    // They are exported in this order.
    let create = format!("zpool create -O mountpoint={}", root.display());
    inner.run(&format!("{create}/hung hung {}", hung.display())).ok();
    inner.run(&format!("{create}/other other {}", good.display())).ok();
    for name in ["hung", "other"] {
        fs::write(root.join(name).join("file"), vec![7; 1 << 20]).unwrap();
    }
    let stopped = Stopped::new(&outer.session);
    thread::scope(|scope| {
        let stopping = scope.spawn(|| inner.run("daemon stop"));
        let import = format!("zpool import -N -d {} other", near.display());
        let end = Instant::now() + SOON;
        loop {
            let done = other.run(&import);
            if done.code == 0 {
                break;
            }
            assert!(Instant::now() < end && !stopping.is_finished(), "{done:?}");
            thread::sleep(Duration::from_millis(100));
        }
        assert!(!stopping.is_finished());
        other.run("zpool export other").ok();
        drop(stopped);
        let told = stopping.join().unwrap();
        let named = "still exporting 'hung': devices may not answer\n";
        assert_eq!((told.code, told.err.as_str()), (0, named));
    });
    cenote_testpools::judge(&near, "other");
    answers(&inner, &hung);
    cenote_testpools::judge(hung.parent().unwrap(), "hung");
    drop((inner, other));
    outer.finish();
}
