//! What the kernel says is mounted: `/proc/PID/mountinfo`.
//!
//! A line is `ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [TAG…] - TYPE SOURCE SUPEROPTIONS`, with
//! octal escapes in paths and sources (proc_pid_mountinfo(5)). Every FUSE connection has a device number
//! of its own, which all its mounts show, wherever they are moved or bound to: `0:57 fuse.zfs`. Each of its mounts
//! shows the source that it was mounted with. The kernel gives a number again once it is free
//! ([`connection`](crate::connection)).
//!
//! The table of this process's mount namespace is read once and kept. The kernel marks the open file when
//! something was mounted or unmounted, and only then it is read again: asking costs one system call,
//! however many mounts there are.

use crate::error::MountError;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

/// Shows the mounts of this process's namespace.
pub(crate) const TABLE: &str = "/proc/self/mountinfo";

/// A mount of a FUSE connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FuseMount {
    /// The connection: `MAJOR:MINOR TYPE`.
    pub(crate) id: String,
    /// Number of the mount.
    mount: u64,
    /// Number of the mount around it.
    parent: u64,
    /// Whether it shows the whole file system, not a directory of it.
    pub(crate) whole: bool,
    pub(crate) mountpoint: PathBuf,
}

/// The mounts of a namespace.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// The mounts of FUSE, in the order of the kernel's list.
    mounts: Vec<FuseMount>,
    /// Where the mounts of a connection are in `mounts`.
    by_id: HashMap<String, Vec<usize>>,
    /// What is mounted straight on a mount: the mountpoints, by the mount's number.
    inside: HashMap<u64, Vec<PathBuf>>,
}

impl Table {
    fn parse(text: &[u8]) -> Table {
        let mut table = Table::default();
        for line in text.split(|b| *b == b'\n') {
            let Some(mount) = parse(line) else { continue };
            table.inside.entry(mount.parent).or_default().push(mount.mountpoint.clone());
            if is_fuse(&mount.id) {
                table.by_id.entry(mount.id.clone()).or_default().push(table.mounts.len());
                table.mounts.push(mount);
            }
        }
        table
    }

    /// The mounts of this process's namespace as they are now, read anew.
    ///
    /// # Errors
    /// The table cannot be read.
    pub(crate) fn read() -> Result<Table, MountError> {
        let text = fs::read(TABLE);
        let unreadable = |e| MountError::Session(format!("{TABLE}: {e}"));
        Ok(Table::parse(&text.map_err(unreadable)?))
    }

    /// The mounts of a connection.
    pub(crate) fn of<'a>(&'a self, id: &str) -> impl DoubleEndedIterator<Item = &'a FuseMount> {
        let places = self.by_id.get(id).map(Vec::as_slice).unwrap_or_default();
        places.iter().filter_map(|at| self.mounts.get(*at))
    }

    /// Whether a connection is mounted at `mountpoint`.
    pub(crate) fn has(&self, id: &str, mountpoint: &Path) -> bool {
        self.of(id).any(|m| m.mountpoint == mountpoint)
    }

    /// The FUSE mount that is on top at `mountpoint`.
    pub(crate) fn top(&self, mountpoint: &Path) -> Option<&FuseMount> {
        let there = self.mounts.iter().rev().filter(|m| m.mountpoint == mountpoint);
        there.into_iter().find(|m| !self.is_covered(m))
    }

    /// Whether another mount is over it, at the same place.
    pub(crate) fn is_covered(&self, mount: &FuseMount) -> bool {
        self.inside.get(&mount.mount).is_some_and(|all| all.contains(&mount.mountpoint))
    }

    /// The mount of FUSE with this number.
    pub(crate) fn by_mount(&self, mount: u64) -> Option<&FuseMount> {
        self.mounts.iter().find(|m| m.mount == mount)
    }

    /// Every mount of FUSE.
    pub(crate) fn all(&self) -> &[FuseMount] {
        &self.mounts
    }
}

/// How often the table was read.
static READ: AtomicU64 = AtomicU64::new(0);

/// A number that is another one when something was mounted or unmounted in this process's namespace.
pub fn generation() -> u64 {
    current();
    READ.load(Ordering::Relaxed)
}

/// The table of this namespace that was read last, and the file that tells that it is out of date.
#[derive(Default)]
struct Kept {
    /// Without it the table is out of date.
    file: Option<File>,
    table: Arc<Table>,
}

impl Kept {
    fn renew(&mut self) -> std::io::Result<()> {
        let mut file = match self.file.take() {
            // Has to come before reading: what happens meanwhile marks the file again.
            Some(file) if !has_changed(&file) => {
                self.file = Some(file);
                return Ok(());
            }
            Some(mut file) => match file.rewind() {
                Ok(()) => file,
                Err(_) => File::open(TABLE)?,
            },
            None => File::open(TABLE)?,
        };
        READ.fetch_add(1, Ordering::Relaxed);
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        (self.file, self.table) = (Some(file), Arc::new(Table::parse(&text)));
        Ok(())
    }
}

static KEPT: LazyLock<Mutex<Kept>> = LazyLock::new(Mutex::default);

/// The mounts of this process's namespace. Where the table cannot be read, such as without free descriptors, those that
/// were known last.
pub(crate) fn current() -> Arc<Table> {
    let mut kept = KEPT.lock();
    if let Err(e) = kept.renew() {
        tracing::warn!("{TABLE}: {e}");
    }
    kept.table.clone()
}

fn has_changed(file: &File) -> bool {
    let mut waiting = [PollFd::new(file, PollFlags::PRI)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut waiting, Some(&now)) {
        Ok(0) => false,
        Ok(_) => waiting.iter().any(|w| w.revents().intersects(PollFlags::PRI | PollFlags::ERR)),
        Err(_) => true,
    }
}

/// Number of this process's mount namespace, which stays the same as long as it runs; 0 if it cannot be
/// told.
pub fn namespace() -> u64 {
    static OWN: OnceLock<u64> = OnceLock::new();
    *OWN.get_or_init(|| fs::metadata("/proc/self/ns/mnt").map_or(0, |m| m.ino()))
}

fn parse(line: &[u8]) -> Option<FuseMount> {
    let mut fields = line.split(|b| *b == b' ');
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse::<u64>().ok();
    let (mount, parent) = (number(fields.next()?)?, number(fields.next()?)?);
    let device = fields.next()?;
    let whole = fields.next()? == b"/";
    let mountpoint = PathBuf::from(OsString::from_vec(unescape(fields.next()?)));
    let kind = fields.by_ref().skip_while(|f| *f != b"-").nth(1)?;
    let id = String::from_utf8_lossy(&[device, kind].join(&b' ')).into_owned();
    Some(FuseMount { id, mount, parent, whole, mountpoint })
}

fn is_fuse(id: &str) -> bool {
    id.split(' ').nth(1).is_some_and(|kind| kind.starts_with("fuse"))
}

/// Whether it is a mount of a file system.
pub(crate) fn is_zfs(id: &str) -> bool {
    id.split(' ').nth(1) == Some("fuse.zfs")
}

/// `MAJOR:MINOR` of a connection.
pub(crate) fn device(id: &str) -> &str {
    id.split(' ').next().unwrap_or_default()
}

fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal =
            tail.get(..3).filter(|_| *first == b'\\').and_then(|d| std::str::from_utf8(d).ok());
        if let Some(byte) = octal.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            out.push(byte);
            rest = tail.get(3..).unwrap_or_default();
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed() {
        let line = br"36 35 0:57 / /mnt/with\040space ro,nosuid shared:1 master:2 - fuse.zfs tank/a ro,user_id=0";
        let id = "0:57 fuse.zfs";
        let want = FuseMount {
            id: id.into(),
            mount: 36,
            parent: 35,
            whole: true,
            mountpoint: "/mnt/with space".into(),
        };
        assert_eq!(parse(line), Some(want));
        assert!(device(id) == "0:57" && is_zfs(id) && !is_zfs("0:57 fuse.sshfs"));
        assert_eq!(parse(b""), None);
        assert_eq!(unescape(br"a\134b\12"), br"a\b\12");
    }

    const OURS: &[u8] = b"1 0 8:1 / / rw shared:7 - ext4 /dev/sda rw\n\
        2 1 0:50 / /t rw shared:8 - fuse.zfs t rw\n\
        3 1 0:50 / /bind rw shared:8 - fuse.zfs t rw\n\
        4 2 0:51 / /t/a rw - fuse.zfs t/a rw\n\
        5 4 0:60 / /t/a rw - tmpfs none rw\n";

    #[test]
    fn what_is_on_top_and_what_is_covered() {
        let table = Table::parse(OURS);
        assert_eq!(table.all().len(), 3);
        let id = |path: &str| table.top(Path::new(path)).map(|m| m.id.as_str());
        assert_eq!((id("/t"), id("/t/a"), id("/")), (Some("0:50 fuse.zfs"), None, None));
        assert_eq!(table.of("0:50 fuse.zfs").count(), 2);
        let a = table.of("0:51 fuse.zfs").next().unwrap();
        assert!(table.is_covered(a) && table.has(&a.id, Path::new("/t/a")));
    }

    #[test]
    fn the_table_is_kept_until_something_is_mounted() {
        let first = current();
        assert!(Arc::ptr_eq(&first, &current()) || !first.inside.is_empty());
        assert!(
            first.inside.len() == Table::read().unwrap().inside.len() || !first.inside.is_empty()
        );
        assert!(namespace() != 0);
    }
}
