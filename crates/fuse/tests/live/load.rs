//! Many requests at once: slow ones, interrupted ones, and an end in the middle of them.

use crate::world::{World, settings};
use cenote_fuse::{Force, MountError, Space};
use cenote_zpl::CreateProps;
use parking_lot::{Condvar, Mutex};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// How long anything here may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Whether a condition comes true in time.
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

/// Makes, reads and removes a file again and again, until there is an error or it was done so often.
fn use_files(dir: &Path, name: &str, times: usize) -> std::io::Result<()> {
    let file = dir.join(name);
    for i in 0..times {
        let text = vec![i as u8; 1 + i * 1000 % 300_000];
        fs::write(&file, &text)?;
        assert!(fs::read(&file)? == text, "{name} {i}");
        fs::read_dir(dir)?.try_for_each(|entry| entry.map(drop))?;
        fs::remove_file(&file)?;
    }
    Ok(())
}

#[test]
fn slow_requests_of_programs_keep_no_others_waiting() {
    const SLOW: usize = 12;
    let (latch, asked) =
        (Arc::new((Mutex::new(false), Condvar::new())), Arc::new(AtomicUsize::new(0)));
    let (hook, count) = (latch.clone(), asked.clone());
    let w = World::with(settings(), &CreateProps::default(), |s| {
        s.space = Arc::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
            hook.1.wait_while(&mut hook.0.lock(), |open| !*open);
            Space::default()
        });
    });
    std::thread::scope(|scope| {
        let slow: Vec<_> = (0..SLOW)
            .map(|_| scope.spawn(|| rustix::fs::statvfs(w.dir.path()).map(drop)))
            .collect();
        let all_wait = comes_true(|| asked.load(Ordering::SeqCst) == SLOW);
        let (tell, done) = channel();
        for n in 0..4 {
            let (tell, dir) = (tell.clone(), w.dir.path());
            scope.spawn(move || tell.send(use_files(dir, &format!("f{n}"), 50).is_ok()));
        }
        let others: Vec<_> = (0..4).map(|_| done.recv_timeout(TIMEOUT)).collect();
        // Whatever went wrong, no thread waits any longer.
        *latch.0.lock() = true;
        latch.1.notify_all();
        assert!(all_wait, "{asked:?} of {SLOW} slow requests were read");
        assert!(others.iter().all(|other| *other == Ok(true)), "{others:?}");
        assert!(slow.into_iter().all(|s| s.join().unwrap().is_ok()));
    });
    w.unmount();
}

/// The thread that reads a request also serves it. While it waits for something that nobody foresaw, others are served soon,
/// in the same mount and in another one; also if there is one such request after the other.
#[test]
fn a_request_that_waits_unforeseen_keeps_others_waiting_for_a_moment_only() {
    let (latch, asked) = (Arc::new((Mutex::new(0), Condvar::new())), Arc::new(AtomicUsize::new(0)));
    let (hook, count) = (latch.clone(), asked.clone());
    let slow = World::with(settings(), &CreateProps::default(), |s| {
        s.space = Arc::new(move || {
            let number = count.fetch_add(1, Ordering::SeqCst);
            hook.1.wait_while(&mut hook.0.lock(), |ended| *ended <= number);
            Space::default()
        });
    });
    let other = World::new();
    fs::write(slow.path("file"), "text").unwrap();
    let longest = std::thread::scope(|scope| {
        let mut longest = Duration::ZERO;
        for round in 0..20 {
            scope.spawn(|| rustix::fs::statvfs(slow.dir.path()).map(drop));
            let waits = comes_true(|| asked.load(Ordering::SeqCst) > round);
            let begun = Instant::now();
            let done = [&slow, &other].map(|w| use_files(w.dir.path(), "beside", 1).is_ok());
            longest = longest.max(begun.elapsed());
            // Half of them go on, so that others wait at the same time.
            *latch.0.lock() = round / 2;
            latch.1.notify_all();
            if !waits || done != [true, true] {
                *latch.0.lock() = usize::MAX;
                latch.1.notify_all();
                panic!("round {round}: {waits} {done:?}");
            }
        }
        *latch.0.lock() = usize::MAX;
        latch.1.notify_all();
        longest
    });
    // What waits would take for ever; what is served at once takes milliseconds, or more on a machine that is busy.
    assert!(longest < Duration::from_secs(10), "{longest:?}");
    slow.unmount();
    other.unmount();
}

/// A program that uses a mount.
fn start(command: &str, dir: &Path) -> Child {
    let mut sh = Command::new("sh");
    sh.args(["-c", &format!("exec {command}")]).current_dir(dir);
    sh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    sh.spawn().unwrap()
}

#[test]
fn programs_that_are_killed_in_the_middle_leave_a_mount_that_works() {
    let w = World::new();
    let path = w.dir.path();
    std::thread::scope(|scope| {
        scope.spawn(|| use_files(path, "beside", 60).unwrap());
        for round in 0..30u64 {
            let commands = [
                "dd if=/dev/zero of=a bs=1M count=20 conv=fsync",
                "dd if=/dev/zero of=b bs=64k count=400 oflag=direct,sync",
                "ls -lR .",
                "sh -c 'for i in 1 2 3 4 5 6 7 8 9; do echo x > c$i; cat c$i; rm c$i; done'",
            ];
            let all: Vec<_> = commands.iter().map(|command| start(command, path)).collect();
            std::thread::sleep(Duration::from_millis(round % 10 + 1));
            for (n, mut child) in all.into_iter().enumerate() {
                let signal = [rustix::process::Signal::INT, rustix::process::Signal::KILL];
                let pid = rustix::process::Pid::from_child(&child);
                let _ = rustix::process::kill_process(pid, signal[(round as usize + n) % 2]);
                child.wait().unwrap();
            }
        }
    });
    use_files(path, "after", 5).unwrap();
    // No process has a file open any more, as far as the kernel has told yet.
    let mut w = w;
    let start = Instant::now();
    while let Err(e) = w.handle.unmount(Force::No) {
        assert!(matches!(e, MountError::Busy(_)) && start.elapsed() < TIMEOUT, "{e}");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(comes_true(|| w.handle.is_finished()));
}

#[test]
fn a_mount_that_ends_in_the_middle_leaves_nobody_waiting() {
    for round in 0..8 {
        let mut w = World::new();
        let dir = w.dir.path().to_owned();
        let running = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..6)
            .map(|n| {
                let (dir, running) = (dir.clone(), running.clone());
                std::thread::spawn(move || {
                    running.fetch_add(1, Ordering::SeqCst);
                    let end = use_files(&dir, &format!("f{n}"), 1_000_000);
                    (end.is_err(), running.fetch_sub(1, Ordering::SeqCst)).0
                })
            })
            .collect();
        assert!(comes_true(|| running.load(Ordering::SeqCst) == 6));
        std::thread::sleep(Duration::from_millis(3 * round));
        w.handle.unmount(Force::Yes).unwrap();
        assert!(comes_true(|| w.handle.is_finished()), "served in round {round}");
        // A thread between two calls goes on in the directory below the mount, until that is gone.
        let ended = || {
            let _ = fs::remove_dir_all(&dir);
            running.load(Ordering::SeqCst) == 0
        };
        assert!(comes_true(ended), "programs in round {round}");
        assert!(threads.into_iter().all(|t| t.join().unwrap()));
    }
}
