//! A command's connection to its daemon, on which no wait is without end.
//!
//! From its Hello on the daemon says something at least each [`BEAT`], if only that it lives
//! ([`Kind::Alive`]). A wait here is a series of short ones; after each of them the daemon's process is
//! looked at. A daemon that is stopped or dead is given up on after [`Limits::lost`], another silent one
//! after [`Limits::silent`]. Only time that was spent waiting counts: a command that was stopped itself
//! does not blame the daemon.
//!
//! A dead process can keep its sockets: if one of its threads waits in the kernel without being
//! interruptible, the kernel closes nothing until that wait ends.
//!
//! [`BEAT`]: crate::protocol::BEAT
//! [`Kind::Alive`]: crate::protocol::Kind::Alive

use crate::peer::Peer;
use crate::socket::{Place, at};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Uid, geteuid};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long to wait for a daemon.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How often its process is looked at.
    pub tick: Duration,
    /// For one that is stopped, or dead.
    pub lost: Duration,
    /// For one that is silent, though it looks as if it could speak.
    pub silent: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            tick: Duration::from_millis(500),
            lost: Duration::from_secs(5),
            silent: Duration::from_secs(30),
        }
    }
}

/// What a process does, as far as it matters to the one that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It runs, sleeps, or is not to be seen.
    Able,
    /// A signal (SIGSTOP) or a debugger stopped it.
    Stopped,
    /// It was killed and has not ended yet.
    Dead,
}

impl State {
    fn of(pid: Option<u32>) -> State {
        let stat = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
        // The name before it may hold anything.
        let letter = stat.as_deref().and_then(|s| s.rsplit(") ").next()?.chars().next());
        match letter {
            Some('T' | 't') => State::Stopped,
            Some('Z' | 'X') => State::Dead,
            _ => State::Able,
        }
    }
}

/// A wait for something that the daemon does.
#[derive(Debug)]
pub struct Wait<'a> {
    place: &'a Place,
    limits: Limits,
    pid: Option<u32>,
    waited: Duration,
}

impl<'a> Wait<'a> {
    /// For the daemon at `place`, whose process is `pid`.
    pub fn new(place: &'a Place, limits: Limits, pid: Option<u32>) -> Wait<'a> {
        Wait { place, limits, pid, waited: Duration::ZERO }
    }

    /// Notes that `time` was waited in vain.
    ///
    /// # Errors
    /// `TimedOut`: it is not worth it any longer; the message says why, and what to do.
    pub fn passed(&mut self, time: Duration) -> io::Result<()> {
        self.waited += time;
        if self.waited < self.limits.lost {
            return Ok(());
        }
        let state = State::of(self.pid);
        if state == State::Able && self.waited < self.limits.silent {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, self.verdict(state)))
    }

    fn verdict(&self, state: State) -> String {
        let who = match self.pid {
            Some(pid) => format!("the daemon (process {pid})"),
            None => "the daemon".to_string(),
        };
        let pid = self.pid.map_or_else(|| "PID".to_string(), |pid| pid.to_string());
        match state {
            State::Stopped => {
                format!("{who} is stopped by a signal; 'kill -CONT {pid}' lets it continue")
            }
            State::Dead => format!(
                "{who} was killed but cannot end: one of its threads waits in the kernel, for a \
                 device or for a dead mount. 'grep . /proc/{pid}/task/*/wchan' shows where; a dead \
                 mount is ended by writing 1 to /sys/fs/fuse/connections/NUMBER/abort"
            ),
            State::Able => format!(
                "{who} has not answered for {} seconds. Its log ({}) may say why; if it does not \
                 recover, end it with 'kill -9 {pid}' and import its pools again",
                self.waited.as_secs(),
                self.place.log.display()
            ),
        }
    }
}

/// A connection to a daemon.
#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    place: Place,
    limits: Limits,
    /// The process that listens at the other end; `None`: it is not visible from here.
    pid: Option<u32>,
    /// The user of the process that listens.
    user: u32,
}

impl Link {
    /// Connects to the socket of `place`.
    ///
    /// # Errors
    /// No process listens (`NotFound`, `ConnectionRefused`); another user does (`PermissionDenied`); no process
    /// accepts connections (`TimedOut`).
    pub fn connect(place: &Place, limits: Limits) -> io::Result<Link> {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        for which in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&socket, which, Some(limits.tick))?;
        }
        let address = SocketAddrUnix::new(&place.socket)?;
        let mut wait = Wait::new(place, limits, place.holder());
        loop {
            match rustix::net::connect(&socket, &address) {
                Ok(()) => break,
                // As many wait already as may.
                Err(rustix::io::Errno::AGAIN) => wait.passed(limits.tick)?,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(at(&place.socket, e.into())),
            }
        }
        let peer = Peer::of(&socket)?;
        place.check_peer(Uid::from_raw(peer.user))?;
        let Peer { user, pid, .. } = peer;
        Ok(Link { stream: socket.into(), place: place.clone(), limits, pid, user })
    }

    /// Whether the daemon does everything for this user: it is this user's, or this user is root.
    pub fn is_own(&self) -> bool {
        geteuid().is_root() || self.is_of_this_user()
    }

    /// Whether the daemon is this user's. Another user's is given nothing that acts with this user's rights, and root
    /// may use that, too.
    pub fn is_of_this_user(&self) -> bool {
        self.user == geteuid().as_raw()
    }

    /// The stream itself.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Repeats what may have to wait until it does something.
    fn patiently<T>(&self, mut what: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let mut wait = Wait::new(&self.place, self.limits, self.pid);
        loop {
            match what() {
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
                {
                    wait.passed(self.limits.tick)?;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }
}

impl Read for Link {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.patiently(|| (&self.stream).read(buf))
    }
}

impl Write for Link {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.patiently(|| (&self.stream).write(buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
