//! The user that sent a request, as far as the kernel leaves a decision to the server.
//!
//! The kernel checks permissions itself. Whether set-group-id bits survive a change depends on the
//! groups and capabilities of the caller, which requests do not carry; they are looked up in
//! `/proc`, in the few cases where there is such a bit. Capabilities count that are held where the
//! server's are: a process in a user namespace of its own has them over what is in that.

use crate::control::Requester;
use std::fs;

/// `CAP_FOWNER`: may do what a file's owner may.
const CAP_FOWNER: u32 = 3;
/// `CAP_FSETID`: set-user-id and set-group-id bits survive changes.
const CAP_FSETID: u32 = 4;

/// `CAP_SYS_ADMIN`: may mount.
const CAP_SYS_ADMIN: u32 = 21;

/// The user that sent a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    /// User id for file systems.
    pub(crate) uid: u32,
    /// Group id for file systems.
    pub(crate) gid: u32,
    /// Thread; 0 if it is in no process namespace of ours.
    pub(crate) pid: u32,
}

impl Caller {
    /// Whether the caller has `CAP_FSETID`.
    pub(crate) fn keeps_ids(self) -> bool {
        self.status().map_or(self.uid == 0, |s| s.has(CAP_FSETID))
    }

    /// Whether the caller is this user, or has `CAP_FOWNER`.
    pub(crate) fn owns(self, user: u32) -> bool {
        self.uid == user || self.status().map_or(self.uid == 0, |s| s.has(CAP_FOWNER))
    }

    /// Whether the caller is in a group, or has `CAP_FSETID`.
    pub(crate) fn keeps_setgid(self, group: u32) -> bool {
        self.gid == group
            || self
                .status()
                .map_or(self.uid == 0, |s| s.has(CAP_FSETID) || s.groups.contains(&group))
    }

    /// The user with its groups. Those besides the group of the request are the groups of the process, which waits for
    /// the answer, if it has no other user's rights: so a process that got the number of one that has ended brings none.
    pub(crate) fn user(self) -> Requester {
        let status = self.status().filter(|s| s.users == [self.uid; 4]);
        let others = status.into_iter().flat_map(|s| s.groups);
        Requester { user: self.uid, groups: [self.gid].into_iter().chain(others).collect() }
    }

    fn status(self) -> Option<Status> {
        let text = fs::read(format!("/proc/{}/status", self.pid)).ok()?;
        let mut status = Status::parse(&String::from_utf8_lossy(&text));
        if !self.is_of_our_users() {
            status.capable = 0;
        }
        Some(status)
    }

    /// Whether the caller is in the user namespace of this process. Where that cannot be seen root is.
    fn is_of_our_users(self) -> bool {
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/user"));
        match (of("self"), of(&self.pid.to_string())) {
            (Ok(ours), Ok(theirs)) => ours == theirs,
            _ => self.uid == 0,
        }
    }
}

/// Whether this process may mount (`CAP_SYS_ADMIN`), as far as can be seen.
pub(crate) fn may_mount() -> bool {
    let status = fs::read_to_string("/proc/self/status");
    status.map_or(true, |text| Status::parse(&text).has(CAP_SYS_ADMIN))
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Status {
    /// Real, effective, saved and for file systems.
    users: Vec<u32>,
    groups: Vec<u32>,
    /// Capabilities, a bit each.
    capable: u64,
}

impl Status {
    fn has(&self, capability: u32) -> bool {
        self.capable >> capability & 1 != 0
    }

    fn parse(text: &str) -> Status {
        let mut status = Status::default();
        for line in text.lines() {
            let numbers = |list: &str| list.split_whitespace().flat_map(str::parse).collect();
            if let Some(groups) = line.strip_prefix("Groups:") {
                status.groups = numbers(groups);
            } else if let Some(users) = line.strip_prefix("Uid:") {
                status.users = numbers(users);
            } else if let Some(set) = line.strip_prefix("CapEff:") {
                status.capable = u64::from_str_radix(set.trim(), 16).unwrap_or(0);
            }
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_capabilities_are_found() {
        let text = "Name:\tcp\nGroups:\t4 24 1000 \nCapPrm:\t0\nCapEff:\t0000000000000010\n";
        let groups = vec![4, 24, 1000];
        assert_eq!(Status::parse(text), Status { users: vec![], groups, capable: 0x10 });
        let most = Status::parse("CapEff:\tffffffffffffffef");
        assert!(most.has(CAP_FOWNER) && !most.has(CAP_FSETID));
        let me = Caller { uid: 1, gid: 7, pid: std::process::id() };
        assert!(me.keeps_setgid(7));
        assert!(!Caller { pid: 0, ..me }.keeps_ids());
    }

    #[test]
    fn groups_are_those_of_a_process_of_the_user() {
        assert_eq!(Status::parse("Uid:\t1\t2\t3\t4\n").users, [1, 2, 3, 4]);
        let user = rustix::process::geteuid().as_raw();
        let me = Caller { uid: user, gid: 7, pid: std::process::id() };
        let own = rustix::process::getgroups().unwrap();
        let all: Vec<u32> = [7].into_iter().chain(own.iter().map(|g| g.as_raw())).collect();
        assert_eq!(me.user(), Requester { user, groups: all });
        // Another user's process has that number now, or none.
        for other in [Caller { uid: user + 1, ..me }, Caller { pid: 0, ..me }] {
            assert_eq!(other.user(), Requester { user: other.uid, groups: vec![7] });
        }
    }
}
