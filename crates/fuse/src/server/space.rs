//! Figures for `statfs`.

use super::Server;
use crate::Space;
use crate::node::Node;
use cenote_zpl::ProjectSpace;

/// Objects that an object set can hold.
const MAX_OBJECTS: u64 = 1 << 48;
/// Bytes of the longest name that may be given, without and with `longname`.
const SHORT_NAMES: u32 = 255;
const LONG_NAMES: u32 = 1023;

/// Figures of `statfs`; blocks are of `unit` bytes.
pub(super) struct StatFs {
    pub(super) unit: u64,
    pub(super) blocks: u64,
    pub(super) free: u64,
    pub(super) files: u64,
    pub(super) free_files: u64,
    /// Bytes of the longest name that may be given.
    pub(super) longest_name: u32,
}

/// Space as OpenZFS shows it (`zfs_statvfs`, `zpl_statfs`): what is used is rounded up to whole records, and a file
/// takes at least 512 bytes. A project with a quota looks like a file system of that size.
fn statfs(space: &Space, used_objects: u64, project: Option<ProjectSpace>) -> StatFs {
    let unit = space.record_size.clamp(512, 16 << 20);
    let referenced = space.referenced.checked_next_multiple_of(unit).unwrap_or(space.referenced);
    let free_files = MAX_OBJECTS.saturating_sub(used_objects).min(space.available >> 9);
    let mut s = StatFs {
        unit,
        blocks: referenced.saturating_add(space.available) / unit,
        free: space.available / unit,
        files: free_files.saturating_add(used_objects),
        free_files,
        longest_name: SHORT_NAMES,
    };
    if let Some((quota, p)) = project.and_then(|p| Some((p.quota?, p))) {
        (s.blocks, s.free) = (quota / unit, quota.saturating_sub(p.used) / unit);
    }
    if let Some((quota, p)) = project.and_then(|p| Some((p.object_quota?, p))) {
        (s.files, s.free_files) = (quota, quota.saturating_sub(p.objects));
    }
    s
}

impl Server {
    /// The figures of the file system that a node is in, as they are now.
    pub(super) fn figures(&self, node: &Node) -> StatFs {
        let project = match node {
            Node::File { fs, object, .. } => fs.bounding_project(*object).unwrap_or_default(),
            _ => None,
        };
        let branch = node.branch();
        let s = statfs(&branch.space(), branch.fs().used_objects(), project);
        let longest_name = if branch.fs().settings().long_names { LONG_NAMES } else { SHORT_NAMES };
        StatFs { longest_name, ..s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_of_projects_bound_what_statfs_shows() {
        let space = Space { referenced: 100_000, available: 10 << 20, record_size: 128 << 10 };
        let s = statfs(&space, 50, None);
        assert_eq!((s.blocks, s.free, s.files, s.free_files), (81, 80, 20480 + 50, 20480));
        let p =
            ProjectSpace { used: 1 << 20, objects: 7, quota: Some(4 << 20), object_quota: None };
        let s = statfs(&space, 50, Some(p));
        assert_eq!((s.blocks, s.free, s.free_files), (32, 24, 20480));
        let s =
            statfs(&space, 50, Some(ProjectSpace { quota: Some(1), object_quota: Some(10), ..p }));
        assert_eq!((s.blocks, s.free, s.files, s.free_files), (0, 0, 10, 3));
    }
}
