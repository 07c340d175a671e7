//! The processes beside the daemon: the one that takes its mounts away should it die, and the one that does
//! for it what has to be done at paths.

use crate::context::Context;
use cenote_fuse::{Agent, Helper, Watcher};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::{Arc, OnceLock};

/// Option of `cenote daemon`: be the process that takes mounts away.
pub const WATCH: &str = "--watch-mounts";
/// Option of `cenote daemon`: be the process that does things at paths.
pub const SERVE: &str = "--mount-agent";

fn program(option: &str) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["daemon", option]);
    Ok(command)
}

/// The daemon's agent, in its mount namespace.
///
/// # Errors
/// It is not known which program runs.
pub fn helper() -> io::Result<Arc<dyn Agent>> {
    Ok(Arc::new(Helper::new(program(SERVE)?)))
}

/// Serves as the daemon's agent, on standard input, until the daemon ends.
///
/// # Errors
/// Those of the system.
pub fn serve() -> io::Result<()> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    cenote_fuse::agent::serve(UnixStream::from(input))
}

/// The process that takes mounts away if this one dies, started with the first mount.
pub(crate) fn watcher(ctx: &Context) -> Option<Arc<Watcher>> {
    let start = || Watcher::start(program(WATCH)?);
    ctx.pools.watcher(|| match start() {
        Ok(watcher) => Some(Arc::new(watcher)),
        Err(e) => {
            tracing::warn!("no process watches the mounts: {e}");
            None
        }
    })
}

/// A watcher that is started when it is first needed.
#[derive(Default)]
pub struct LazyWatcher(OnceLock<Option<Arc<Watcher>>>);

impl LazyWatcher {
    /// The watcher, started by `start` if this is the first call.
    pub fn get(&self, start: impl FnOnce() -> Option<Arc<Watcher>>) -> Option<Arc<Watcher>> {
        self.0.get_or_init(start).clone()
    }
}
