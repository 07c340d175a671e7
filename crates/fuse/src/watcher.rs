//! A process that takes mounts away when the one that serves them dies, however it dies.
//!
//! When a FUSE server is killed its mounts stay behind, and every access to them fails. So a server
//! starts a helper, usually its own program with a hidden argument, and holds the only writing end of
//! a pipe to it. Each mount is announced on the pipe (`+MOUNT`), and each unmount (`-MOUNT`), one
//! per line. When the pipe closes, since the server has ended or been killed, the helper unmounts
//! what is left and ends.
//!
//! The helper is in a session of its own, so that neither Ctrl-C nor a signal to the server's process
//! group reaches it.

use crate::attach::{Force, detach};
use std::io::{BufRead, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// The server's side. Dropping it ends the helper, which unmounts what is left.
#[derive(Debug)]
pub struct Watcher {
    child: Mutex<(Option<ChildStdin>, Child)>,
}

impl Watcher {
    /// Starts the helper: `command` is a program that calls [`watch`].
    pub fn start(mut command: Command) -> std::io::Result<Watcher> {
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        let mut child = command.spawn()?;
        Ok(Watcher { child: Mutex::new((child.stdin.take(), child)) })
    }

    /// Announces a mount.
    pub(crate) fn add(&self, mount: &str) {
        self.tell('+', mount);
    }

    /// A mount is gone.
    pub(crate) fn remove(&self, mount: &str) {
        self.tell('-', mount);
    }

    fn tell(&self, sign: char, mount: &str) {
        let mut guard = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipe) = &mut guard.0
            && let Err(e) = pipe.write_all(format!("{sign}{mount}\n").as_bytes())
        {
            tracing::warn!("the process that watches mounts has ended: {e}");
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let (pipe, child) = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(pipe.take());
        let _ = child.wait();
    }
}

/// The helper's side: reads from `input` until it ends, then unmounts. To be called with standard
/// input, in a process that does nothing else.
pub fn watch(input: impl BufRead) {
    // Fails only for the leader of a process group, which a child is not.
    let _ = rustix::process::setsid();
    let mut mounts: Vec<String> = Vec::new();
    for line in input.lines().map_while(Result::ok) {
        if let Some(mount) = line.strip_prefix('+') {
            mounts.push(mount.to_owned());
        } else if let Some(mount) = line.strip_prefix('-') {
            mounts.retain(|m| m != mount);
        }
    }
    // A mount inside another one goes first.
    for mount in mounts.iter().rev() {
        let _ = detach(mount, Force::Yes);
    }
}
