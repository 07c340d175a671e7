//! The user and process at the other end of a socket, as the kernel tells it (`SO_PEERCRED`, `SO_PEERPIDFD`).
//!
//! User and primary group are those that the peer had when it connected. Its other groups are the groups of its
//! process: the kernel's handle of that says before and after they are read that it is still the same one. Where the
//! kernel has no such handle (before Linux 6.5) the process of that number is taken, if all its user ids are the
//! peer's. A process that is not to be seen from here, as one in a container may not be, has no other groups.

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The process at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Number of its user.
    pub user: u32,
    /// Number of its primary group.
    pub group: u32,
    /// Its number; `None`: it is in another PID namespace, and not to be seen from this one.
    pub pid: Option<u32>,
}

impl Peer {
    /// The peer of a connected socket.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn of(socket: &impl AsFd) -> io::Result<Peer> {
        let told = getsockopt(socket, PeerCredentials)?;
        let pid = u32::try_from(told.pid()).ok().filter(|pid| *pid != 0);
        Ok(Peer { user: told.uid(), group: told.gid(), pid })
    }

    /// All groups of the peer.
    pub fn groups(self, socket: &impl AsFd) -> Vec<u32> {
        let mut groups = vec![self.group];
        groups.extend(self.others(socket).unwrap_or_default());
        groups
    }

    /// Its supplementary groups, if they can be known.
    fn others(self, socket: &impl AsFd) -> Option<Vec<u32>> {
        let pid = self.pid?;
        let handle = getsockopt(socket, PeerPidfd);
        let is_same = || match &handle {
            Ok(handle) => pid_of(handle.as_raw_fd()) == Some(pid),
            Err(_) => true,
        };
        if !is_same() {
            return None;
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let users = numbers(&status, "Uid:")?;
        let groups = numbers(&status, "Groups:")?;
        (users.iter().all(|user| *user == self.user) && is_same()).then_some(groups)
    }
}

/// The process that a handle (pidfd) is of, while it lives.
fn pid_of(handle: i32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{handle}")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    line.trim().parse().ok()
}

/// The numbers of a line of `/proc/PID/status`.
fn numbers(status: &str, title: &str) -> Option<Vec<u32>> {
    let line = status.lines().find_map(|line| line.strip_prefix(title))?;
    line.split_whitespace().map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = Peer::of(&ours).unwrap();
        assert_eq!(peer.user, rustix::process::geteuid().as_raw());
        assert_eq!(peer.pid, Some(std::process::id()));
        let mut own: Vec<u32> = vec![rustix::process::getegid().as_raw()];
        own.extend(rustix::process::getgroups().unwrap().iter().map(|group| group.as_raw()));
        assert_eq!(peer.groups(&ours), own);
        // A process of another user, or no process, says nothing of the peer.
        let other = Peer { user: peer.user + 1, ..peer };
        assert_eq!(other.groups(&ours), [peer.group]);
        assert_eq!(Peer { pid: None, ..peer }.groups(&ours), [peer.group]);
    }

    #[test]
    fn lines_of_numbers_are_read() {
        let status = "Name:\tx\nUid:\t7\t7\t8\t7\nGroups:\t1 20 \nNoNewPrivs:\t0\n";
        assert_eq!(numbers(status, "Uid:").unwrap(), [7, 7, 8, 7]);
        assert_eq!(numbers(status, "Groups:").unwrap(), [1, 20]);
        assert_eq!(numbers("Groups:\t\n", "Groups:").unwrap(), [0u32; 0]);
        assert_eq!(numbers("Groups:\tx\n", "Groups:"), None);
        assert_eq!(numbers(status, "Gid:"), None);
    }
}
