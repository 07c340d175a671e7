//! The processes beside the daemon: the watcher takes its mounts away if it dies, and the agent does for it what must be
//! done at paths.

use cenote_fuse::agent::{Note, Reply, Request, Seen};
use cenote_fuse::{Agent, Helper, MountError, Watcher};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

/// Option of `cenote daemon`: be the process that takes mounts away.
pub const WATCH: &str = "--watch-mounts";
/// Option of `cenote daemon`: be the process that does things at paths.
pub const SERVE: &str = "--mount-agent";

/// This program, to be started as `cenote`, whatever it is called: by another name it is another tool. What runs is
/// what is started, also if its file was replaced or removed meanwhile.
pub(crate) fn this_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("cenote");
    command
}

fn program(option: &str) -> Command {
    let mut command = this_program();
    command.args(["daemon", option]);
    command
}

/// The daemon's agent, in its mount namespace.
pub fn helper() -> Arc<dyn Agent> {
    Arc::new(Helper::new(program(SERVE)))
}

/// What another user than the daemon's has in place of an agent: it does nothing at paths, and looks at no path. The
/// kernel would not let such a user mount or unmount either.
pub(crate) struct Denied;

impl Agent for Denied {
    fn call(
        &self,
        request: &Request,
        _: Option<BorrowedFd<'_>>,
        _: Note<'_>,
    ) -> Result<(Reply, Option<OwnedFd>), MountError> {
        let none = PathBuf::new;
        match request {
            // As it is written: the user's own process has resolved it as far as it may.
            Request::Look(path) => {
                let seen = Seen { path: plain_path(path), missing: 0, empty: false };
                Ok((Reply::Seen(seen), None))
            }
            Request::Mount(mount) => Err(MountError::Mount(mount.mountpoint.clone(), Errno::PERM)),
            Request::Unmount { places, .. } => {
                let place = places.first().cloned().unwrap_or_else(none);
                Err(MountError::Unmount(place, Errno::PERM))
            }
            Request::Remount { mountpoint, .. } => {
                Err(MountError::Mount(mountpoint.clone(), Errno::PERM))
            }
            Request::Remove(_) | Request::TakeAway(_) | Request::List | Request::Noted => {
                Err(MountError::Unmount(none(), Errno::PERM))
            }
        }
    }

    fn namespace(&self) -> u64 {
        cenote_fuse::namespace()
    }

    fn may_mount(&self) -> bool {
        false
    }
}

/// A path without `.` and `..`, which is not looked up.
fn plain_path(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// Serves as the daemon's agent, on standard input, until the daemon ends.
///
/// # Errors
/// Errors of the system calls.
pub fn serve() -> io::Result<()> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    cenote_fuse::agent::serve(UnixStream::from(input))
}

/// The process that takes mounts away if this one dies, started when it is first needed.
#[derive(Default)]
pub struct LazyWatcher(OnceLock<Option<Arc<Watcher>>>);

impl LazyWatcher {
    /// The process; `None`: it could not be started.
    pub fn get(&self) -> Option<Arc<Watcher>> {
        let start = || match Watcher::start(program(WATCH)) {
            Ok(watcher) => Some(Arc::new(watcher)),
            Err(e) => {
                tracing::warn!("no process watches the mounts: {e}");
                None
            }
        };
        self.0.get_or_init(start).clone()
    }
}
