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
pub const ENVIRONMENT: &[&str] = &[
    "CENOTE_ARC_MAX",
    "COLORTERM",
    "HOME",
    "NO_COLOR",
    "POSIXLY_CORRECT",
    "SSL_CA_CERT_FILE",
    "SSL_CA_CERT_PATH",
    "SSL_CLIENT_CERT_FILE",
    "SSL_CLIENT_KEY_FILE",
    "TERM",
    "TZ",
    "ZDB_NO_ZLE",
    "ZFS_COLOR",
    "ZPOOL_IMPORT_PATH",
    "ZPOOL_SCRIPTS_AS_ROOT",
    "ZPOOL_SCRIPTS_ENABLED",
    "ZPOOL_SCRIPTS_PATH",
    "ZPOOL_VDEV_NAME_FOLLOW_LINKS",
    "ZPOOL_VDEV_NAME_GUID",
    "ZPOOL_VDEV_NAME_PATH",
];

/// The variables that only the look of the output depends on. They are all that counts of another user's
/// environment: no file is looked for where another user says.
const LOOKS: &[&str] = &[
    "COLORTERM",
    "NO_COLOR",
    "POSIXLY_CORRECT",
    "TERM",
    "TZ",
    "ZFS_COLOR",
    "ZPOOL_VDEV_NAME_GUID",
    "ZPOOL_VDEV_NAME_PATH",
];

/// What a caller may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Everything: root, and the user whose daemon it is.
    All,
    /// What every user may see, and what is delegated to the user and these groups (`zfs allow`).
    Delegated {
        /// Numbers of the groups, the primary one first.
        groups: Vec<u32>,
    },
}

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
    /// Number of the process, where it is known.
    pub pid: Option<u32>,
    /// What the user may do.
    pub rights: Rights,
}

impl Caller {
    /// This process.
    pub fn of_process() -> Caller {
        let env = ENVIRONMENT
            .iter()
            .filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)))
            .collect();
        let user = rustix::process::getuid().as_raw();
        // A dead mount has no working directory: then paths have to be absolute.
        let cwd = std::env::current_dir().unwrap_or_else(|_| "/(unreachable)".into());
        let rights = Rights::All;
        let pid = Some(std::process::id());
        Caller { cwd, env, terminal: terminal(), umask: umask(), user, pid, rights }
    }

    /// The same with the rights of another user than the daemon's. What could have files opened for the user
    /// is left out.
    pub fn with_rights_of(mut self, groups: Vec<u32>) -> Caller {
        let is_zone = |zone: &OsStr| zone.to_str().is_some_and(is_name_of_zone);
        self.env.retain(|name, value| {
            let known = LOOKS.iter().any(|known| name == known);
            known && (name != "TZ" || is_zone(value))
        });
        self.rights = Rights::Delegated { groups };
        self
    }

    /// Number of the primary group.
    pub fn group(&self) -> u32 {
        let own = || rustix::process::getegid().as_raw();
        match &self.rights {
            Rights::All => own(),
            Rights::Delegated { groups } => groups.first().copied().unwrap_or_else(own),
        }
    }

    /// Whether the caller may do no more than others let it.
    pub fn is_delegated(&self) -> bool {
        self.rights != Rights::All
    }

    /// `path` as seen from the caller's directory.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        // What begins with a scheme (`file:///srv/objects`) is a place in an object store, and refused by that name.
        let text = path.as_ref().to_str().unwrap_or_default();
        if text.split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme)) {
            return path.as_ref().to_path_buf();
        }
        self.cwd.join(path)
    }

    /// An environment variable of the caller, which is one of [`ENVIRONMENT`].
    pub fn var(&self, name: &str) -> Option<&OsStr> {
        self.env.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// Whether an environment variable says yes (`libzfs_envvar_is_set`).
    pub fn is_set(&self, name: &str) -> bool {
        self.var(name).and_then(OsStr::to_str).is_some_and(says_yes)
    }
}

/// Whether a text is `yes`, `on`, or begins with a number other than 0 (as `strtoul` reads one).
fn says_yes(text: &str) -> bool {
    let number = text.trim_start();
    let number = number.strip_prefix(['-', '+']).unwrap_or(number);
    let hexadecimal = number.strip_prefix("0x").or_else(|| number.strip_prefix("0X"));
    let (digits, radix) = match hexadecimal {
        Some(digits) => (digits, 16),
        None if number.starts_with('0') => (number, 8),
        None => (number, 10),
    };
    let is_number = digits.chars().map_while(|c| c.to_digit(radix)).any(|digit| digit > 0);
    is_number || ["yes", "on"].iter().any(|word| text.eq_ignore_ascii_case(word))
}

fn is_scheme(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// Whether a time zone is one by name or rule, and no path (`TZ` may be one).
fn is_name_of_zone(zone: &str) -> bool {
    let valid = |c: char| c.is_ascii_alphanumeric() || "_+-/,.:<>".contains(c);
    zone.len() < 64
        && zone.chars().all(valid)
        && !zone.contains("..")
        && !zone.starts_with(['/', ':'])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_says_yes_in_openzfs_ways() {
        for text in ["1", "on", "ON", "Yes", " 7x", "0x10", "010", "-1", "+2"] {
            assert!(says_yes(text), "{text:?}");
        }
        for text in ["", "0", "00", "08", "0x", "0xg", "off", "no", "yes!", "only", "true", "é1"] {
            assert!(!says_yes(text), "{text:?}");
        }
    }

    #[test]
    fn nothing_of_another_users_environment_leads_to_files() {
        let mut caller = Caller::of_process();
        let all = ENVIRONMENT.iter().chain(&["PATH", "LD_PRELOAD"]);
        caller.env = all.map(|name| (OsString::from(name), OsString::from("UTC"))).collect();
        let theirs = caller.clone().with_rights_of(vec![7]);
        let kept: Vec<&str> = theirs.env.keys().filter_map(|name| name.to_str()).collect();
        assert_eq!(kept, LOOKS);
        assert!(theirs.is_delegated() && !caller.is_delegated());
        for (zone, kept) in [
            ("Europe/Berlin", true),
            ("EST5EDT,M3.2.0,M11.1.0", true),
            ("", true),
            ("/etc/shadow", false),
            (":/etc/shadow", false),
            ("../../shadow", false),
            ("a\n", false),
        ] {
            caller.env.insert("TZ".into(), zone.into());
            assert_eq!(caller.clone().with_rights_of(vec![]).var("TZ").is_some(), kept, "{zone}");
        }
    }
}
