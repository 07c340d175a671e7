//! The process that called a command: what the command takes from it in place of its own.
//!
//! Invariant: every relative path that a command gets goes through [`Caller::path`].

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Environment variables that commands look at; the rest stays with the caller.
const ENVIRONMENT: &[&str] = &[
    "CENOTE_ARC_MAX",
    "COLORTERM",
    "HOME",
    "NO_COLOR",
    "POSIXLY_CORRECT",
    "TERM",
    "TZ",
    "ZFS_COLOR",
    "ZPOOL_IMPORT_PATH",
    "ZPOOL_SCRIPTS_AS_ROOT",
    "ZPOOL_SCRIPTS_ENABLED",
    "ZPOOL_SCRIPTS_PATH",
    "ZPOOL_STATUS_NON_NATIVE_ASHIFT_IGNORE",
    "ZPOOL_VDEV_NAME_FOLLOW_LINKS",
    "ZPOOL_VDEV_NAME_GUID",
    "ZPOOL_VDEV_NAME_PATH",
];

/// What is known of the terminal that a command's output goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Terminal {
    /// Standard output is a terminal.
    pub out: bool,
    /// Standard error is a terminal.
    pub err: bool,
    /// Standard input is a terminal.
    #[serde(default)]
    pub input: bool,
    /// Columns of the terminal, where there is one.
    pub width: Option<u16>,
    /// Rows of the terminal, where there is one.
    pub height: Option<u16>,
}

/// What a command takes from the process that the user started.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Working directory, which relative paths start from; always absolute.
    pub cwd: PathBuf,
    /// Environment variables that commands look at.
    pub env: BTreeMap<OsString, OsString>,
    /// Terminal.
    pub terminal: Terminal,
    /// File mode creation mask.
    pub umask: u32,
    /// Number of the user.
    pub user: u32,
}

impl Caller {
    /// This process.
    pub fn of_process() -> Caller {
        let env = ENVIRONMENT
            .iter()
            .filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)))
            .collect();
        let user = rustix::process::getuid().as_raw();
        // In a mount that nobody serves any more there is none: then paths have to be absolute.
        let cwd = std::env::current_dir().unwrap_or_else(|_| "/(unreachable)".into());
        Caller { cwd, env, terminal: terminal(), umask: umask(), user }
    }

    /// `path` as seen from the caller's directory.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.cwd.join(path)
    }

    /// An environment variable of the caller.
    pub fn var(&self, name: &str) -> Option<&OsStr> {
        self.env.get(OsStr::new(name)).map(OsString::as_os_str)
    }
}

/// The mask can only be read by setting it; nothing else creates files at this moment.
fn umask() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    rustix::process::umask(mask);
    mask.as_raw_mode()
}

fn terminal() -> Terminal {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    // A terminal that does not know its size says 0.
    let size = size.filter(|s| s.ws_col > 0 && s.ws_row > 0);
    Terminal {
        out: io::stdout().is_terminal(),
        err: io::stderr().is_terminal(),
        input: io::stdin().is_terminal(),
        width: size.map(|s| s.ws_col),
        height: size.map(|s| s.ws_row),
    }
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
