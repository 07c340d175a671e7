//! A process that takes mounts away when the one that serves them dies, however it dies.
//!
//! When a FUSE server is killed its mounts stay behind, and every access to them fails. So a server
//! starts a watcher, usually its own program with a hidden argument, and holds the only writing end of
//! a pipe to it. Each connection is announced on the pipe (`+BIRTH ID`, see `connection`), and its end (`-BIRTH ID`),
//! one per line. When the server is dead the watcher ends its connections, takes the mounts away and ends.
//!
//! That the server is dead shows in one of two ways. The pipe closes; but not as long as one thread of the
//! server waits in the kernel for an answer that the server itself would have to give. So the watcher is
//! started by a thread that does nothing else and lives as long as the server: when it ends, the kernel
//! sends the watcher a signal (`PR_SET_PDEATHSIG`), whatever other threads wait for.
//!
//! The watcher is in a session of its own, so that neither Ctrl-C nor a signal to the server's process
//! group reaches it.

use crate::connection::Connection;
use crate::detach::take_away;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

/// The signal by which the kernel tells of the server's death.
const DEATH: Signal = Signal::USR1;

/// The server's side. Dropping it ends the watcher, which takes away what is left.
#[derive(Debug)]
pub struct Watcher {
    pipe: Mutex<Option<ChildStdin>>,
    /// The thread whose end the watcher is told of.
    life: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts the watcher: `command` is a program that calls [`watch`].
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(mut command: Command) -> io::Result<Watcher> {
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        let (tell, started) = sync_channel(1);
        let life = move || match command.spawn() {
            Ok(mut child) => {
                let pipe = child.stdin.take();
                if tell.send(Ok(pipe)).is_ok()
                    && let Ok(status) = child.wait()
                    && !status.success()
                {
                    tracing::warn!("the process that watches mounts has ended: {status}");
                }
            }
            Err(e) => drop(tell.send(Err(e))),
        };
        let life = std::thread::Builder::new().name("mount-watcher".into()).spawn(life)?;
        let pipe = started.recv().map_err(io::Error::other)??;
        Ok(Watcher { pipe: Mutex::new(pipe), life: Some(life) })
    }

    /// Announces a connection.
    pub(crate) fn add(&self, connection: &Connection) {
        self.tell('+', connection);
    }

    /// A connection has ended.
    pub(crate) fn remove(&self, connection: &Connection) {
        self.tell('-', connection);
    }

    fn tell(&self, sign: char, connection: &Connection) {
        let mut pipe = self.pipe.lock();
        if let Some(pipe) = pipe.as_mut()
            && let Err(e) = pipe.write_all(format!("{sign}{}\n", connection.to_line()).as_bytes())
        {
            tracing::warn!("the process that watches mounts has ended: {e}");
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.pipe.get_mut().take());
        if let Some(life) = self.life.take() {
            let _ = life.join();
        }
    }
}

/// The watcher's side: waits for the death of the process that started it, then takes its mounts away.
/// To be called in a process that does nothing else, whose standard input is the pipe.
///
/// # Errors
/// It cannot wait.
pub fn watch() -> io::Result<()> {
    // Fails only for the leader of a process group, which a child is not.
    let _ = rustix::process::setsid();
    let (death, signalled) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(DEATH.as_raw(), signalled)?;
    rustix::process::set_parent_process_death_signal(Some(DEATH))?;
    let input = io::stdin();
    rustix::io::ioctl_fionbio(&input, true)?;
    let mut known = Known::default();
    loop {
        let mut waiting = [PollFd::new(&input, PollFlags::IN), PollFd::new(&death, PollFlags::IN)];
        match poll(&mut waiting, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let [_, dead] = waiting.map(|w| !w.revents().is_empty());
        // What was announced before the server died is in the pipe still.
        if known.read(&input)? || dead {
            break;
        }
    }
    take_away(&known.connections);
    Ok(())
}

/// What was announced.
#[derive(Default)]
struct Known {
    /// Connections in the order of mounting.
    connections: Vec<Connection>,
    /// The beginning of a line.
    rest: Vec<u8>,
}

impl Known {
    /// Reads what has come. True: there will be no more.
    fn read(&mut self, input: impl std::os::fd::AsFd) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        loop {
            match rustix::io::read(&input, &mut bytes) {
                Ok(0) => return Ok(true),
                Ok(len) => self.take(bytes.get(..len).unwrap_or_default()),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte != b'\n' {
                self.rest.push(*byte);
                continue;
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.rest)).into_owned();
            let connection = line.get(1..).and_then(Connection::from_line);
            match (line.as_bytes().first(), connection) {
                (Some(b'+'), Some(connection)) => self.connections.push(connection),
                (Some(b'-'), Some(gone)) => self.connections.retain(|known| *known != gone),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_may_come_in_pieces() {
        let mut known = Known::default();
        let pieces = ["+7 0:1 fuse.zfs\n+0 0:2 fu", "se.zfs\n", "-7 0:1 fuse.zfs\n+", "x"];
        pieces.iter().for_each(|piece| known.take(piece.as_bytes()));
        known.take(b"\n-8 0:2 fuse.zfs\n");
        let left: Vec<&str> = known.connections.iter().map(|c| c.id.as_str()).collect();
        assert_eq!(left, ["0:2 fuse.zfs"]);
    }
}
