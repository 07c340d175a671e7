//! How much memory there is: that of the system, or what the control groups of this process leave it, as in a container;
//! how much of it is available; whether programs wait for it; and giving some back.
//!
//! `/proc/self/cgroup` has a line for each hierarchy, `number:controllers:path`: that of version 2 has no controllers,
//! one of version 1 that counts here has `memory` among them. Each directory from the path up to the root of the
//! hierarchy may have a limit, and the least one counts. In a container the path may be one of the host, that is not
//! there; then the root is the container's own.
//!
//! Source: Linux, Documentation/admin-guide/cgroup-v2.rst (`memory.max`, `memory.high`, `memory.current`, `memory.stat`),
//! cgroup-v1/memory.rst (`memory.limit_in_bytes`, `memory.usage_in_bytes`), accounting/psi.rst.

mod pressure;

pub(crate) use pressure::Pressure;

use cenote_format::abd;
use std::fs::read_to_string;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Where the system tells of memory.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// `/proc`: with `meminfo`, `self/cgroup` and `pressure/memory`.
    pub proc: PathBuf,
    /// Where hierarchies of control groups are.
    pub groups: PathBuf,
}

impl Default for Places {
    fn default() -> Places {
        Places { proc: "/proc".into(), groups: "/sys/fs/cgroup".into() }
    }
}

impl Places {
    /// The control groups of this process that may limit its memory.
    fn groups(&self) -> io::Result<Vec<Group>> {
        let text = text_of(&self.proc.join("self/cgroup"))?.unwrap_or_default();
        Ok(groups_of(&text, &self.groups))
    }

    /// Memory as it is now (`arc_available_memory`, `arc_free_memory`).
    pub fn memory(&self) -> Memory {
        let text = read_to_string(self.proc.join("meminfo")).unwrap_or_default();
        let groups = self.groups();
        // Where one of the groups cannot be asked, what it leaves is not known.
        let least = |system: &str, of: fn(&Group) -> io::Result<Option<u64>>| {
            let of_groups: Vec<_> = groups.as_ref().ok()?.iter().map(of).collect();
            let known = of_groups.into_iter().collect::<io::Result<Vec<_>>>().ok()?;
            known.into_iter().flatten().chain(kib(&text, system)).min()
        };
        Memory {
            all: kib(&text, "MemTotal"),
            free: kib(&text, "MemFree"),
            usable: least("MemTotal", Group::limit),
            available: least("MemAvailable", Group::left),
        }
    }

    /// Whether these are of the system that the process runs on.
    pub fn are_own(&self) -> bool {
        self.proc == Path::new("/proc")
    }
}

/// The text of a file; `None`: there is none for this process.
fn text_of(path: &Path) -> io::Result<Option<String>> {
    match read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => Ok(None),
        Err(e) => Err(e),
    }
}

/// What [`usable_memory`] is since it was found out anew; 0: it was not.
static USABLE: AtomicU64 = AtomicU64::new(0);

/// Bytes of memory that this process can have (`arc_all_memory`); `None` if that cannot be found out. It is asked for once, and anew where the process follows
/// memory.
pub fn usable_memory() -> Option<u64> {
    static MEMORY: OnceLock<Option<u64>> = OnceLock::new();
    let now = Some(USABLE.load(Relaxed)).filter(|bytes| *bytes > 0);
    now.or_else(|| *MEMORY.get_or_init(|| Memory::now().usable))
}

/// This process can have so many bytes from now on, if that could be found out.
pub(crate) fn set_usable(usable: Option<u64>) {
    if let Some(bytes) = usable {
        USABLE.store(bytes, Relaxed);
    }
}

/// Memory as it is at some time, in bytes; `None`: that cannot be found out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// That of the system.
    pub all: Option<u64>,
    /// That of the system which nothing uses.
    pub free: Option<u64>,
    /// What the process can have at most: that of the system, or what its control groups allow now.
    pub usable: Option<u64>,
    /// What the process can still take, of the system and within its control groups, before others are pushed out.
    pub available: Option<u64>,
}

impl Memory {
    /// As it is now.
    pub fn now() -> Memory {
        Places::default().memory()
    }
}

/// The bytes of a line of `/proc/meminfo`.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// A control group of memory that this process is in.
struct Group {
    dir: PathBuf,
    /// Of version 2.
    unified: bool,
}

impl Group {
    fn number(&self, file: &str) -> io::Result<Option<u64>> {
        // The word `max` stands for no limit.
        Ok(text_of(&self.dir.join(file))?.and_then(|text| text.trim().parse().ok()))
    }

    fn limit(&self) -> io::Result<Option<u64>> {
        let files: &[&str] =
            if self.unified { &["memory.max", "memory.high"] } else { &["memory.limit_in_bytes"] };
        let mut least = None;
        for file in files {
            least = self.number(file)?.into_iter().chain(least).min();
        }
        Ok(least)
    }

    /// Bytes that may still be taken, pages of files counted as free.
    fn left(&self) -> io::Result<Option<u64>> {
        let (usage, prefix) = match self.unified {
            true => ("memory.current", ""),
            false => ("memory.usage_in_bytes", "total_"),
        };
        let (Some(limit), Some(usage)) = (self.limit()?, self.number(usage)?) else {
            return Ok(None);
        };
        let stat = text_of(&self.dir.join("memory.stat"))?.unwrap_or_default();
        let of = |name: &str| {
            let line =
                |line: &str| line.strip_prefix(prefix)?.strip_prefix(name)?.trim().parse().ok();
            stat.lines().find_map(line).unwrap_or(0u64)
        };
        let files = of("inactive_file ").saturating_add(of("active_file "));
        Ok(Some(limit.saturating_sub(usage.saturating_sub(files))))
    }
}

/// Those in `text`, that of `/proc/self/cgroup`, below `root`; the innermost of each hierarchy first.
fn groups_of(text: &str, root: &Path) -> Vec<Group> {
    text.lines().filter_map(|line| line_of(line, root)).flatten().collect()
}

fn line_of(line: &str, root: &Path) -> Option<Vec<Group>> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let (root, unified) = match controllers {
        "" => (root.to_path_buf(), true),
        some if some.split(',').any(|one| one == "memory") => (root.join("memory"), false),
        _ => return None,
    };
    let below: PathBuf = root.join(path.trim_start_matches('/'));
    let dirs = below.ancestors().take_while(|dir| dir.starts_with(&root));
    Some(dirs.map(|dir| Group { dir: dir.to_path_buf(), unified }).collect())
}

/// How an allocator gives memory back to the system.
#[derive(Clone, Copy, Debug)]
pub struct Allocator {
    /// Gives back what nothing has used for a while, as far as it does not do so by itself.
    pub decay: fn(),
    /// Gives back what nothing uses.
    pub purge: fn(),
}

static ALLOCATOR: OnceLock<Allocator> = OnceLock::new();

/// Says what allocator this program has. The first one stays.
pub fn use_allocator(allocator: Allocator) {
    ALLOCATOR.get_or_init(|| allocator);
}

/// Gives memory that nothing uses back to the system, as far as the program has said how.
pub fn give_back() {
    abd::give_back();
    if let Some(allocator) = ALLOCATOR.get() {
        (allocator.purge)();
    }
}

/// Gives memory back that nothing has used for a while.
pub(crate) fn decay() {
    if let Some(allocator) = ALLOCATOR.get() {
        (allocator.decay)();
    }
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

    fn limit(text: &str, root: &Path) -> Option<u64> {
        groups_of(text, root).iter().filter_map(|group| group.limit().unwrap()).min()
    }

    fn left(text: &str, root: &Path) -> Option<u64> {
        groups_of(text, root).iter().filter_map(|group| group.left().unwrap()).min()
    }

    #[test]
    fn the_least_limit_counts() {
        let two = tree(&[("a/memory.max", "4096\n"), ("a/b/memory.max", "max\n")]);
        assert_eq!(limit("0::/a/b\n", two.path()), Some(4096));
        assert_eq!(limit("0::/\n", two.path()), None);
        let high = tree(&[("a/memory.max", "4096\n"), ("a/memory.high", "1024\n")]);
        assert_eq!(limit("0::/a\n", high.path()), Some(1024));
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

    /// What cannot be read is not known; what is not there is no limit.
    #[test]
    fn files_that_cannot_be_read_say_nothing() {
        let system = tree(&[
            ("proc/meminfo", "MemTotal: 8000 kB\nMemAvailable: 4000 kB\n"),
            ("proc/self/cgroup", "0::/a\n"),
            ("groups/a/memory.max", "4096000"),
            ("groups/a/memory.current", "96000"),
        ]);
        let places =
            Places { proc: system.path().join("proc"), groups: system.path().join("groups") };
        let known = places.memory();
        assert_eq!((known.usable, known.available), (Some(4_096_000), Some(4_000_000)));
        let high = system.path().join("groups/a/memory.high");
        fs::create_dir(&high).unwrap();
        let known = places.memory();
        assert_eq!((known.all, known.usable, known.available), (Some(8_192_000), None, None));
        fs::remove_dir(&high).unwrap();
        fs::create_dir(system.path().join("groups/a/memory.stat")).unwrap();
        let known = places.memory();
        assert_eq!((known.usable, known.available), (Some(4_096_000), None));
        let own = Memory::now().usable;
        set_usable(Some(123 << 20));
        set_usable(None);
        assert_eq!(usable_memory(), Some(123 << 20));
        set_usable(own);
    }

    #[test]
    fn pages_of_files_are_available_and_the_group_with_the_least_counts() {
        let stat = "anon 5000\nfile 900\ninactive_file 300\nactive_file 200\nfile_dirty 7\n";
        let two = tree(&[
            ("a/memory.max", "100000"),
            ("a/memory.current", "20000"),
            ("a/b/memory.max", "max"),
            ("a/b/memory.high", "9000"),
            ("a/b/memory.current", "6000"),
            ("a/b/memory.stat", stat),
        ]);
        assert_eq!(left("0::/a/b\n", two.path()), Some(9000 - 6000 + 500));
        assert_eq!(left("0::/a\n", two.path()), Some(80_000));
        let stat = "cache 1\ninactive_file 9\ntotal_inactive_file 40\ntotal_active_file 2\n";
        let one = tree(&[
            ("memory/c/memory.limit_in_bytes", "1000"),
            ("memory/c/memory.usage_in_bytes", "1200"),
            ("memory/c/memory.stat", stat),
        ]);
        assert_eq!(left("4:memory:/c\n", one.path()), Some(0));
        fs::write(one.path().join("memory/c/memory.usage_in_bytes"), "900").unwrap();
        assert_eq!(left("4:memory:/c\n", one.path()), Some(142));
        let now = Memory::now();
        assert!(now.available > Some(0) && now.available <= now.all && now.free <= now.all);
    }
}
