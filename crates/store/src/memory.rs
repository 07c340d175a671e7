//! How much memory there is: that of the system, or what the control groups of this process leave it, as in a container.
//!
//! `/proc/self/cgroup` has a line for each hierarchy, `number:controllers:path`: that of version 2 has no controllers,
//! one of version 1 that counts here has `memory` among them. Each directory from the path up to the root of the
//! hierarchy may have a limit, and the least one counts. In a container the path may be one of the host, that is not
//! there; then the root is the container's own.
//!
//! Source: Linux, Documentation/admin-guide/cgroup-v2.rst (`memory.max`) and cgroup-v1/memory.rst (`memory.limit_in_bytes`).

use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Bytes of memory that this process can have; `None` if that cannot be found out. It is asked for once.
pub fn usable_memory() -> Option<u64> {
    static MEMORY: OnceLock<Option<u64>> = OnceLock::new();
    *MEMORY.get_or_init(|| {
        let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
        let limit = limit(&groups, Path::new("/sys/fs/cgroup"));
        [of_system(), limit].into_iter().flatten().min()
    })
}

fn of_system() -> Option<u64> {
    let text = read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The least limit of the control groups in `groups`, the text of `/proc/self/cgroup`, below `root`.
fn limit(groups: &str, root: &Path) -> Option<u64> {
    groups.lines().filter_map(|line| limit_of(line, root)).min()
}

fn limit_of(line: &str, root: &Path) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let (root, file) = match controllers {
        "" => (root.to_path_buf(), "memory.max"),
        some if some.split(',').any(|one| one == "memory") => {
            (root.join("memory"), "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let below: PathBuf = root.join(path.trim_start_matches('/'));
    let dirs = below.ancestors().take_while(|dir| dir.starts_with(&root));
    // The word `max` stands for no limit.
    let limit = |dir: &Path| read_to_string(dir.join(file)).ok()?.trim().parse().ok();
    dirs.filter_map(limit).min()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn the_least_limit_counts() {
        let two = tree(&[("a/memory.max", "4096\n"), ("a/b/memory.max", "max\n")]);
        assert_eq!(limit("0::/a/b\n", two.path()), Some(4096));
        assert_eq!(limit("0::/\n", two.path()), None);
        let one = tree(&[("memory/c/memory.limit_in_bytes", "8192\n"), ("cpu/c/limit", "1\n")]);
        assert_eq!(limit("5:cpu,cpuacct:/c\n4:memory:/c\n0::/\n", one.path()), Some(8192));
    }

    #[test]
    fn a_container_has_its_own_root() {
        let own = tree(&[("memory.max", "1000")]);
        assert_eq!(limit("0::/system.slice/docker-1.scope\n", own.path()), Some(1000));
        // A path that would lead out of the hierarchy, and lines that make no sense.
        assert_eq!(limit("0::/../../x\n\n:\n7:memory\n", own.path()), Some(1000));
        assert!(usable_memory().is_some());
    }
}
