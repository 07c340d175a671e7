//! Agents whose server ends while they mount. They leave no mount behind that no thread serves.
//!
//! These tests mount: they need `/dev/fuse` and root.

#![allow(clippy::unwrap_used, clippy::panic)] // A failure fails the test.

use cenote_fuse::agent::{Channel, MountRequest, Reply, Request, serve};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;

fn is_mounted(dir: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == dir.to_str())
}

/// Asks an agent to mount at `dir`.
fn asked(dir: &Path) -> (Channel, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut ours = Channel::new(ours);
    let request = MountRequest {
        mountpoint: dir.to_owned(),
        source: "tank/agents".into(),
        subtype: "zfs".into(),
        flags: 0,
        other_users: true,
        root: "/".into(),
        make: false,
        overlay: true,
    };
    ours.send(&Request::Mount(request), None).unwrap();
    (ours, theirs)
}

/// An agent that answers what comes by `stream`.
fn agent(stream: UnixStream) -> JoinHandle<std::io::Result<()>> {
    std::thread::spawn(|| serve(stream))
}

#[test]
fn nothing_is_mounted_for_a_server_that_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = asked(dir.path());
    drop(ours);
    assert!(agent(theirs).join().unwrap().is_err(), "the answer reaches no server");
    assert!(!is_mounted(dir.path()));
}

#[test]
fn a_mount_that_its_server_has_not_noted_is_taken_away() {
    for notes in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (mut ours, theirs) = asked(dir.path());
        let agent = agent(theirs);
        let (reply, device) = ours.receive::<Reply>().unwrap().unwrap();
        assert!(matches!(reply, Reply::Mounted(_)), "{reply:?}");
        assert!(device.is_some() && is_mounted(dir.path()));
        if notes {
            ours.send(&Request::Noted, None).unwrap();
        }
        // The descriptor is open still: the connection does not end by itself.
        drop(ours);
        agent.join().unwrap().unwrap();
        assert_eq!(is_mounted(dir.path()), notes);
        if notes {
            rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
        }
        drop(device);
    }
}
