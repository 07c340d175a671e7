//! Who sent a request, as far as the kernel leaves a decision to the server.
//!
//! The kernel checks permissions itself. Whether set-group-id bits survive a change depends on the
//! groups and capabilities of the caller, which requests do not carry; they are looked up in
//! `/proc`, in the few cases where there is such a bit.

use std::fs;

/// `CAP_FSETID`: set-user-id and set-group-id bits survive changes.
const CAP_FSETID: u32 = 4;

/// Who sent a request.
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
        self.status().map_or(self.uid == 0, |s| s.capable)
    }

    /// Whether the caller is in a group, or has `CAP_FSETID`.
    pub(crate) fn keeps_setgid(self, group: u32) -> bool {
        self.gid == group
            || self.status().map_or(self.uid == 0, |s| s.capable || s.groups.contains(&group))
    }

    fn status(self) -> Option<Status> {
        let status = fs::read(format!("/proc/{}/status", self.pid)).ok();
        status.map(|text| Status::parse(&String::from_utf8_lossy(&text)))
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Status {
    groups: Vec<u32>,
    capable: bool,
}

impl Status {
    fn parse(text: &str) -> Status {
        let mut status = Status::default();
        for line in text.lines() {
            if let Some(groups) = line.strip_prefix("Groups:") {
                status.groups = groups.split_whitespace().flat_map(str::parse).collect();
            } else if let Some(set) = line.strip_prefix("CapEff:") {
                let set = u64::from_str_radix(set.trim(), 16).unwrap_or(0);
                status.capable = set >> CAP_FSETID & 1 != 0;
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
        assert_eq!(Status::parse(text), Status { groups: vec![4, 24, 1000], capable: true });
        assert_eq!(Status::parse("CapEff:\tffffffffffffffef"), Status::default());
        let me = Caller { uid: 1, gid: 7, pid: std::process::id() };
        assert!(me.keeps_setgid(7));
        assert!(!Caller { pid: 0, ..me }.keeps_ids());
    }
}
