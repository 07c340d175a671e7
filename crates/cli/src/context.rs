//! What a command runs in: its writers, directory, environment, terminal and the imported pools.
//!
//! A command is a function of its arguments and a [`Context`]; it neither touches the process's
//! own standard streams nor its working directory, because it may run in the daemon on behalf of a
//! client (whose values the client sends along) as well as in the process that the user started.
//!
//! Invariants: every relative path that a command gets goes through [`Context::path`]; a command
//! that works for longer than a moment looks at [`Context::cancelled`] now and then, which turns
//! true when the client has gone away or was interrupted.

use crate::client::Caller;
use crate::pools::{Imported, PoolTable};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is known of the terminal that a command's output goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Terminal {
    /// Standard output is a terminal.
    pub out: bool,
    /// Standard error is a terminal.
    pub err: bool,
    /// Columns of the terminal, where there is one.
    pub width: Option<u16>,
    /// Rows of the terminal, where there is one.
    pub height: Option<u16>,
}

/// A flag that stops a running command. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks the command to stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// From now on an interrupt (SIGINT) asks the command to stop; a second one ends the process.
    ///
    /// # Errors
    /// The signal cannot be caught.
    pub fn on_interrupt(&self) -> io::Result<()> {
        let interrupt = signal_hook::consts::SIGINT;
        signal_hook::flag::register_conditional_default(interrupt, Arc::clone(&self.0))?;
        signal_hook::flag::register(interrupt, Arc::clone(&self.0))?;
        Ok(())
    }

    /// Whether the command was asked to stop.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// What a command runs in.
pub struct Context {
    /// Standard output of the command.
    pub out: Box<dyn Write + Send>,
    /// Standard error of the command.
    pub err: Box<dyn Write + Send>,
    /// Directory that relative paths start from; always absolute.
    pub cwd: PathBuf,
    /// The environment variables of the user that commands look at.
    pub env: BTreeMap<OsString, OsString>,
    /// The user's terminal.
    pub terminal: Terminal,
    /// File mode creation mask of the user's process.
    pub umask: u32,
    /// Number of the user.
    pub user: u32,
    /// The imported pools. Empty in a process that is not the daemon.
    pub pools: Arc<PoolTable>,
    /// Stops the command.
    pub cancel: Cancel,
    /// The command line as it goes into the history of pools: `zpool set comment=x tank`.
    pub line: String,
    /// The pool that the command has changed.
    changed: Option<Arc<Imported>>,
}

/// Where a command's output goes.
pub struct Streams {
    /// Standard output.
    pub out: Box<dyn Write + Send>,
    /// Standard error.
    pub err: Box<dyn Write + Send>,
}

impl Context {
    /// A context for `caller`, with its output on `streams`.
    pub fn new(streams: Streams, caller: Caller, pools: Arc<PoolTable>, cancel: Cancel) -> Context {
        Context {
            out: streams.out,
            err: streams.err,
            cwd: caller.cwd,
            env: caller.env,
            terminal: caller.terminal,
            umask: caller.umask,
            user: caller.user,
            pools,
            cancel,
            line: String::new(),
            changed: None,
        }
    }

    /// A context on this process's own streams, directory and environment.
    pub fn of_process(pools: Arc<PoolTable>) -> io::Result<Context> {
        let caller = Caller::of_process()?;
        let streams = Streams { out: Box::new(io::stdout()), err: Box::new(io::stderr()) };
        Ok(Context::new(streams, caller, pools, Cancel::default()))
    }

    /// Notes that the command has changed a pool: if it succeeds, it goes into the history of the
    /// pool that it changed last.
    pub fn changed(&mut self, imported: &Arc<Imported>) {
        self.changed = Some(Arc::clone(imported));
    }

    /// The pool that was changed; forgets it.
    pub fn take_changed(&mut self) -> Option<Arc<Imported>> {
        self.changed.take()
    }

    /// `path` as seen from the user's directory.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.cwd.join(path)
    }

    /// An environment variable of the user.
    pub fn var(&self, name: &str) -> Option<&OsStr> {
        self.env.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// Whether the command should stop.
    pub fn cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Writes one line to standard error. A reader that has gone away is no error here: the
    /// command's exit code still says what happened.
    pub fn complain(&mut self, message: impl std::fmt::Display) {
        let _ = writeln!(self.err, "{message}");
    }
}
