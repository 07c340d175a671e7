//! What a command runs in: its writers, directory, environment, terminal and the imported pools.
//!
//! A command is a function of its arguments and a [`Context`]; it neither touches the process's
//! own standard streams nor its working directory, because it may run in the daemon on behalf of a
//! client (whose values the client sends along) as well as in the process that the user started.
//!
//! Paths that may lead into mounts are looked up by [`Context::agent`], which is in the caller's mount
//! namespace.
//!
//! Invariants: every relative path that a command gets goes through [`Context::path`]; a command
//! that works for longer than a moment looks at [`Context::cancelled`] now and then, which turns
//! true when the client has gone away or was interrupted.

use crate::input::Input;
use crate::mounts::agents::Denied;
use crate::pools::{Imported, PoolTable};
use cenote_command::outcome::{self, Outcome};
use cenote_command::output::Output;
use cenote_command::{Caller, Cancel, Rights};
use cenote_dsl::permissions::Who;
use cenote_fuse::Agent;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The process that the user started, which does what must be done with the user's rights.
pub trait Process: Send + Sync {
    /// Has the process do something; what that is, and what came of it, is between the command and the process.
    ///
    /// # Errors
    /// The command is cancelled, or the process is gone.
    fn ask(&self, question: &[u8]) -> io::Result<Vec<u8>>;
}

/// What a command runs in.
pub struct Context {
    /// Standard output of the command.
    pub out: Output,
    /// Standard error of the command.
    pub err: Output,
    /// Standard input of the command, if it reads it.
    pub input: Option<Input>,
    /// The process that the user started.
    pub caller: Caller,
    /// The imported pools. Empty in a process that is not the daemon.
    pub pools: Arc<PoolTable>,
    /// What does things at paths for the command, if the caller is in another mount namespace than the
    /// daemon.
    pub callers_agent: Option<Arc<dyn Agent>>,
    /// The user's process, if that is another one than this.
    pub process: Option<Arc<dyn Process>>,
    /// Stops the command.
    pub cancel: Cancel,
    /// The command line as it goes into the history of pools, and as pages name what made them: `zpool set comment=x
    /// tank`.
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
            out: Output::new(streams.out, caller.terminal.out),
            err: Output::new(streams.err, caller.terminal.err),
            input: None,
            caller,
            pools,
            callers_agent: None,
            process: None,
            cancel,
            line: String::new(),
            changed: None,
        }
    }

    /// A context on this process's own streams, directory and environment.
    pub fn of_process(pools: Arc<PoolTable>) -> Context {
        let streams = Streams { out: Box::new(io::stdout()), err: Box::new(io::stderr()) };
        Context::new(streams, Caller::of_process(), pools, Cancel::default())
    }

    /// A context for a part of the command that another thread does, with its output on `streams`. It reads no input.
    pub fn beside(&self, streams: Streams) -> Context {
        let (caller, pools) = (self.caller.clone(), Arc::clone(&self.pools));
        let mut own = Context::new(streams, caller, pools, self.cancel.clone());
        (own.callers_agent, own.line) = (self.callers_agent.clone(), self.line.clone());
        own
    }

    /// The caller's process and its command, as another command names it that it stands in the way of.
    pub fn process_name(&self) -> String {
        let words: Vec<&str> = self.line.split(' ').take(2).collect();
        let what = words.join(" ");
        match self.caller.pid {
            Some(pid) => format!("process {pid} ({what})"),
            None => format!("a process of another namespace ({what})"),
        }
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
        self.caller.path(path)
    }

    /// What does things at paths for the command, in the mount namespace of its caller. For another user
    /// than the daemon's nothing is done there.
    pub fn agent(&self) -> Arc<dyn Agent> {
        if self.caller.is_delegated() {
            return Arc::new(Denied);
        }
        self.callers_agent.clone().unwrap_or_else(|| self.pools.agent())
    }

    /// The caller, if it may do no more than what is delegated.
    pub fn delegate(&self) -> Option<Who> {
        match &self.caller.rights {
            Rights::All => None,
            Rights::Delegated { groups } => Some(Who {
                user: self.caller.user.into(),
                groups: groups.iter().map(|group| u64::from(*group)).collect(),
            }),
        }
    }

    /// Whether the caller is in another mount namespace than the daemon.
    pub fn is_elsewhere(&self) -> bool {
        self.callers_agent.is_some()
    }

    /// An environment variable of the user.
    pub fn var(&self, name: &str) -> Option<&OsStr> {
        self.caller.var(name)
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

    /// Turns an outcome into an exit code and prints its message. `usage` is the usage of the
    /// command that was running.
    pub fn conclude(&mut self, outcome: Outcome, usage: &str) -> i32 {
        outcome::conclude(outcome, usage, &mut self.out, &mut self.err)
    }
}
