//! Daemons that do not answer, made of a listening socket.

use super::*;
use crate::protocol::{Kind, read_frame, write_frame};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::time::Instant;

const LIMITS: Limits = Limits {
    tick: Duration::from_millis(20),
    lost: Duration::from_millis(100),
    silent: Duration::from_millis(400),
};

fn place() -> (tempfile::TempDir, Place) {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::at(&dir.path().join("s"), false);
    (dir, place)
}

/// Runs `wait`, which must give up by itself, and returns what it says.
#[track_caller]
fn gives_up<T: std::fmt::Debug>(wait: impl FnOnce() -> io::Result<T>) -> String {
    let start = Instant::now();
    let error = wait().unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(10), "{error}");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    error.to_string()
}

#[test]
fn a_daemon_that_says_nothing_is_given_up_on() {
    let (_dir, place) = place();
    let _listener = UnixListener::bind(&place.socket).unwrap();
    let mut link = Link::connect(&place, LIMITS).unwrap();
    let said = gives_up(|| read_frame(&mut link));
    let us = std::process::id();
    assert!(said.starts_with(&format!("the daemon (process {us}) has not answered for")), "{said}");
    assert!(said.contains(&format!("'kill -9 {us}'")) && said.contains("s.log"), "{said}");
    // It does not take what it is told either.
    let said = gives_up(|| link.write_all(&vec![0; 64 << 20]));
    assert!(said.contains("has not answered"), "{said}");
}

#[test]
fn a_daemon_that_accepts_nobody_is_given_up_on() {
    let (_dir, place) = place();
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&place.socket).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let first = Link::connect(&place, LIMITS).unwrap();
    let said = gives_up(|| Link::connect(&place, LIMITS));
    assert!(said.contains("has not answered"), "{said}");
    drop(first);
}

#[test]
fn signs_of_life_are_waited_for() {
    const BEATS: usize = 12;
    let (_dir, place) = place();
    // A machine that has other things to do may be late with a beat.
    let limits = Limits { silent: Duration::from_secs(2), ..LIMITS };
    let listener = UnixListener::bind(&place.socket).unwrap();
    let beats = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        for _ in 0..BEATS {
            std::thread::sleep(limits.silent / 8);
            write_frame(&mut stream, Kind::Alive, &[]).unwrap();
        }
        write_frame(&mut stream, Kind::Exit, b"3").unwrap();
    });
    let mut link = Link::connect(&place, limits).unwrap();
    for _ in 0..BEATS {
        assert_eq!(read_frame(&mut link).unwrap(), Some((Kind::Alive, Vec::new())));
    }
    assert_eq!(read_frame(&mut link).unwrap(), Some((Kind::Exit, b"3".to_vec())));
    assert_eq!(read_frame(&mut link).unwrap(), None);
    beats.join().unwrap();
}

#[test]
fn stopped_and_dead_processes_are_told_apart() {
    let (_dir, place) = place();
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let pid = child.id();
    let number = rustix::process::Pid::from_child(&child);
    let verdict = |at: Duration| Wait::new(&place, LIMITS, Some(pid)).passed(at);
    verdict(LIMITS.lost).unwrap();
    rustix::process::kill_process(number, rustix::process::Signal::STOP).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while State::of(Some(pid)) != State::Stopped {
        assert!(Instant::now() < deadline);
        std::thread::sleep(LIMITS.tick);
    }
    verdict(LIMITS.lost / 2).unwrap();
    let said = gives_up(|| verdict(LIMITS.lost));
    let told = format!("the daemon (process {pid}) is stopped by a signal; 'kill -CONT {pid}'");
    assert!(said.starts_with(&told), "{said}");
    child.kill().unwrap();
    // It is a zombie until its parent asks how it ended.
    while State::of(Some(pid)) != State::Dead {
        assert!(Instant::now() < deadline);
        std::thread::sleep(LIMITS.tick);
    }
    let said = gives_up(|| verdict(LIMITS.lost));
    assert!(said.contains("was killed but cannot end"), "{said}");
    child.wait().unwrap();
    assert_eq!(State::of(Some(pid)), State::Able);
}

#[test]
fn root_knows_its_own_daemon_from_another_users() {
    let (dir, place) = place();
    let listener = UnixListener::bind(&place.socket).unwrap();
    let link = Link::connect(&place, LIMITS).unwrap();
    assert!(link.is_own() && link.is_of_this_user());
    drop(listener);
    if !geteuid().is_root() {
        return;
    }
    const OTHER: u32 = 54_321;
    // A directory of that user's, in one of root's.
    let theirs = dir.path().join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(OTHER), None).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).unwrap();
    let place = Place::at(&theirs.join("s"), false);
    let listen = || {
        let user = Uid::from_raw(OTHER);
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        UnixListener::bind(&place.socket).unwrap()
    };
    let _listener = std::thread::scope(|scope| scope.spawn(listen).join().unwrap());
    let link = Link::connect(&place, LIMITS).unwrap();
    assert!(link.is_own() && !link.is_of_this_user());
}
