//! What the kernel knows: how often it was told each inode number, and what it need not know yet.
//!
//! A file that has lost its last name stays until the kernel has forgotten its number: until then it
//! may be open, mapped or the working directory of a process. The kernel holds on to the number of
//! what is open, so counting what it was told is enough. Such a file is an *orphan*; when it is
//! forgotten the file system releases it. The kernel's `forget` for a number may arrive after the
//! number has been told again for a new file: counts are added up, so that is no matter.
//!
//! Only numbers of file systems that can be changed are counted. The table is cut in shards by number,
//! so that requests for different files do not wait for each other; nothing else is done under a
//! shard's lock.

use cenote_zpl::FileSystem;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of shards.
const SHARDS: usize = 64;

/// An orphan: where it is, and its object number.
pub(crate) type Orphan = (Arc<FileSystem>, u64);

#[derive(Default)]
struct Inode {
    /// How often the kernel was told the number, less how often it forgot it.
    lookups: u64,
    /// It has no name left.
    orphan: Option<Orphan>,
    /// The kernel was told that it has set-user-id or set-group-id bits.
    setid: bool,
}

/// The inode numbers that the kernel knows.
pub(crate) struct Inodes {
    shards: Vec<Mutex<HashMap<u64, Inode>>>,
}

impl Default for Inodes {
    fn default() -> Inodes {
        Inodes { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl Inodes {
    fn shard(&self, ino: u64) -> Option<MutexGuard<'_, HashMap<u64, Inode>>> {
        let shard = self.shards.get(ino as usize % SHARDS)?;
        Some(shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The kernel is about to be told a number.
    pub(crate) fn learn(&self, ino: u64) {
        if let Some(mut shard) = self.shard(ino) {
            let inode = shard.entry(ino).or_default();
            inode.lookups = inode.lookups.saturating_add(1);
        }
    }

    /// The kernel has forgotten a number `count` times. Returns the orphan that nobody knows of now.
    pub(crate) fn forget(&self, ino: u64, count: u64) -> Option<Orphan> {
        let mut shard = self.shard(ino)?;
        let inode = shard.get_mut(&ino)?;
        inode.lookups = inode.lookups.saturating_sub(count);
        if inode.lookups > 0 {
            return None;
        }
        shard.remove(&ino)?.orphan
    }

    /// Whether the kernel knows a number.
    pub(crate) fn knows(&self, ino: u64) -> bool {
        self.shard(ino).is_some_and(|shard| shard.contains_key(&ino))
    }

    /// A file has lost its last name. Returns it if nobody knows of it any more.
    pub(crate) fn orphan(&self, ino: u64, orphan: Orphan) -> Option<Orphan> {
        let mut shard = self.shard(ino)?;
        match shard.get_mut(&ino) {
            Some(inode) => {
                inode.orphan = Some(orphan);
                None
            }
            None => Some(orphan),
        }
    }

    /// The kernel is about to be told that a file has set-user-id or set-group-id bits.
    pub(crate) fn tell_setid(&self, ino: u64) {
        if let Some(mut shard) = self.shard(ino)
            && let Some(inode) = shard.get_mut(&ino)
        {
            inode.setid = true;
        }
    }

    /// Whether the kernel believes that a file has set-user-id or set-group-id bits.
    pub(crate) fn is_setid(&self, ino: u64) -> bool {
        self.shard(ino).is_some_and(|shard| shard.get(&ino).is_some_and(|i| i.setid))
    }

    /// The kernel is about to be told to ask again.
    pub(crate) fn clear_setid(&self, ino: u64) {
        if let Some(mut shard) = self.shard(ino)
            && let Some(inode) = shard.get_mut(&ino)
        {
            inode.setid = false;
        }
    }

    /// The numbers that the kernel knows, of those that `of` chooses.
    pub(crate) fn known(&self, of: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend(shard.keys().copied().filter(|ino| of(*ino)));
        }
        all
    }

    /// Takes the orphans among the numbers that `of` chooses: the kernel will not come for them.
    pub(crate) fn take_orphans(&self, of: impl Fn(u64) -> bool) -> Vec<Orphan> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let chosen = shard.iter_mut().filter(|(ino, _)| of(**ino));
            all.extend(chosen.filter_map(|(_, inode)| inode.orphan.take()));
        }
        all
    }
}

/// Lets go of an orphan.
pub(crate) fn release((fs, object): Orphan) {
    if let Err(e) = fs.release(object) {
        // It stays in the unlinked set, which is emptied when the file system is mounted again.
        tracing::warn!(object, "a file without names could not be removed: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_known_until_they_are_forgotten_as_often_as_they_were_told() {
        let inodes = Inodes::default();
        inodes.learn(7);
        inodes.learn(7);
        inodes.learn(7 + SHARDS as u64);
        inodes.tell_setid(7);
        inodes.tell_setid(8);
        assert!(inodes.is_setid(7) && !inodes.is_setid(8) && !inodes.knows(8));
        assert!(inodes.forget(7, 1).is_none());
        assert!(inodes.knows(7));
        assert_eq!(inodes.known(|ino| ino < 10), [7]);
        inodes.forget(7, 1);
        assert!(!inodes.knows(7) && !inodes.is_setid(7) && inodes.knows(7 + SHARDS as u64));
        inodes.forget(7, u64::MAX);
    }
}
