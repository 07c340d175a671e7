//! What the kernel knows: how often it was told each inode number, and what it need not know yet.
//!
//! A file that has lost its last name stays until the kernel has forgotten its number: until then it
//! may be open, mapped or the working directory of a process. The kernel holds on to the number of
//! what is open, so counting what it was told is enough. Such a file is an *orphan*; when it is
//! forgotten the file system releases it. The kernel's `forget` for a number may arrive after the
//! number has been told again for a new file: counts are added up, so that is no matter.
//!
//! Also counted is how many files are open past the kernel's pages (see `server::direct`), and how many
//! so that they can be changed in mappings.
//!
//! For each number the generation is kept that the kernel was told with it, and what the number stands for since the file system got other
//! contents (see `exchange`).
//!
//! Only numbers of file systems that can be changed are counted. The table is cut in shards by number,
//! so that requests for different files do not wait for each other; nothing else is done under a
//! shard's lock. Files that were made, listed or removed one after the other mostly have numbers one
//! after the other, so neighbours are in one shard, in order: the next one is in the
//! processor's caches.

use cenote_zpl::FileSystem;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of shards.
const SHARDS: u64 = 64;
/// Numbers one after the other that are in one shard.
const NEIGHBOURS: u64 = 64;

/// What a number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Standing {
    /// The file that the kernel was told it for.
    #[default]
    Sure,
    /// That file, if it has this generation.
    Doubtful,
    /// Nothing, until the kernel is told it again.
    Stale,
}

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
    /// Files that are open past the kernel's pages.
    direct: u64,
    /// There were several of them at once.
    shared: bool,
    /// It was given capabilities meanwhile.
    capable: bool,
    /// Files that are open to be read and written, which may be changed in mappings.
    mappable: u64,
    /// What the kernel was told to tell the file from others of the number.
    generation: u64,
    /// What it stands for since the file system has other contents.
    standing: Standing,
    /// How often it was learned, from 0 again after the greatest.
    learned: u32,
}

/// What a number was before the kernel was about to be told it ([`Inodes::untold`]).
#[derive(Clone, Copy)]
pub(crate) struct Before {
    known: (u64, Standing),
    learned: u32,
}

/// The inode numbers that the kernel knows.
pub(crate) struct Inodes {
    shards: Vec<Mutex<BTreeMap<u64, Inode>>>,
    /// Whether any number was ever judged.
    judged: AtomicBool,
}

impl Default for Inodes {
    fn default() -> Inodes {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Inodes { shards, judged: AtomicBool::new(false) }
    }
}

impl Inodes {
    fn shard(&self, ino: u64) -> Option<MutexGuard<'_, BTreeMap<u64, Inode>>> {
        let shard = self.shards.get((ino / NEIGHBOURS % SHARDS) as usize)?;
        Some(shard.lock())
    }

    /// The kernel is about to be told a number for a file of a generation.
    pub(crate) fn learn(&self, ino: u64, generation: u64) -> Option<Before> {
        let mut shard = self.shard(ino)?;
        let inode = shard.entry(ino).or_default();
        let known = (inode.generation, inode.standing);
        inode.lookups = inode.lookups.saturating_add(1);
        inode.learned = inode.learned.wrapping_add(1);
        (inode.generation, inode.standing) = (generation, Standing::Sure);
        Some(Before { known, learned: inode.learned })
    }

    /// The kernel was not told a number after all. If it is known, it stands for what it did `before`, unless it was learned
    /// again since. Returns the orphan that is not known any more.
    pub(crate) fn untold(&self, ino: u64, before: Before) -> Option<Orphan> {
        self.with(ino, |inode| {
            if inode.learned == before.learned {
                (inode.generation, inode.standing) = before.known;
            }
        });
        self.forget(ino, 1)
    }

    /// The kernel has forgotten a number `count` times. Returns the orphan that is not known any more.
    pub(crate) fn forget(&self, ino: u64, count: u64) -> Option<Orphan> {
        let mut shard = self.shard(ino)?;
        let inode = shard.get_mut(&ino)?;
        inode.lookups = inode.lookups.saturating_sub(count);
        if inode.lookups > 0 {
            return None;
        }
        shard.remove(&ino)?.orphan
    }

    /// Has `of` tell what the numbers that `which` chooses stand for from now on, by number and generation. What is stale
    /// stays so. Returns the numbers.
    pub(crate) fn judge(
        &self,
        which: impl Fn(u64) -> bool,
        of: impl Fn(u64, u64) -> Standing,
    ) -> Vec<u64> {
        self.judged.store(true, Ordering::Release);
        let mut all = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            for (ino, inode) in shard.iter_mut().filter(|(ino, _)| which(**ino)) {
                if inode.standing != Standing::Stale {
                    inode.standing = of(*ino, inode.generation);
                }
                all.push(*ino);
            }
        }
        all
    }

    /// A number that was in doubt stands for the file of a generation, or for nothing. The kernel may have been told another
    /// one meanwhile.
    pub(crate) fn settle(&self, ino: u64, generation: u64, stands: bool) {
        self.with(ino, |inode| {
            if inode.standing == Standing::Doubtful && inode.generation == generation {
                inode.standing = if stands { Standing::Sure } else { Standing::Stale };
            }
        });
    }

    /// What a number stands for, and the generation of the file that the kernel was told it for.
    pub(crate) fn standing(&self, ino: u64) -> (Standing, u64) {
        if !self.judged.load(Ordering::Acquire) {
            return (Standing::Sure, 0);
        }
        self.with(ino, |inode| (inode.standing, inode.generation)).unwrap_or_default()
    }

    /// Whether a number stands for nothing.
    pub(crate) fn is_stale(&self, ino: u64) -> bool {
        self.standing(ino).0 == Standing::Stale
    }

    /// Whether the kernel knows a number.
    pub(crate) fn knows(&self, ino: u64) -> bool {
        self.shard(ino).is_some_and(|shard| shard.contains_key(&ino))
    }

    /// An orphan that was taken stays one.
    pub(crate) fn put_back(&self, ino: u64, orphan: Orphan) {
        self.with(ino, |inode| inode.orphan = Some(orphan));
    }

    /// A file has lost its last name. Returns it if the kernel does not know it any more.
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

    /// Does something with a number that the kernel knows; `None` if it does not.
    fn with<T>(&self, ino: u64, what: impl FnOnce(&mut Inode) -> T) -> Option<T> {
        self.shard(ino)?.get_mut(&ino).map(what)
    }

    /// A new file is opened past the pages. False: the kernel does not know it.
    pub(crate) fn begin_direct(&self, ino: u64) -> bool {
        self.with(ino, |inode| inode.direct += 1).is_some()
    }

    /// A file is opened; whether it has to be past the pages, as others have it open.
    pub(crate) fn join_direct(&self, ino: u64) -> bool {
        let joined = self.with(ino, |inode| {
            if inode.direct > 0 {
                (inode.direct, inode.shared) = (inode.direct + 1, true);
            }
            inode.direct > 0
        });
        joined == Some(true)
    }

    /// Counts one more if there were several, and tells whether there were.
    pub(crate) fn join_shared_direct(&self, ino: u64) -> bool {
        let joined = self.with(ino, |inode| {
            inode.direct += u64::from(inode.shared);
            inode.shared
        });
        joined == Some(true)
    }

    /// One of those that were counted is no more.
    pub(crate) fn leave_direct(&self, ino: u64) {
        self.with(ino, |inode| {
            inode.direct = inode.direct.saturating_sub(1);
            if inode.direct == 0 {
                (inode.shared, inode.capable) = (false, false);
            }
        });
    }

    /// A file is opened that may be changed in a mapping. False: the kernel does not know it.
    pub(crate) fn begin_mapping(&self, ino: u64) -> bool {
        self.with(ino, |inode| inode.mappable += 1).is_some()
    }

    /// One of those is closed.
    pub(crate) fn end_mapping(&self, ino: u64) {
        self.with(ino, |inode| inode.mappable = inode.mappable.saturating_sub(1));
    }

    /// Whether there are such files.
    pub(crate) fn may_be_mapped(&self, ino: u64) -> bool {
        self.with(ino, |inode| inode.mappable > 0) == Some(true)
    }

    /// A file was given capabilities.
    pub(crate) fn give_capability(&self, ino: u64) {
        self.with(ino, |inode| inode.capable = inode.direct > 0);
    }

    /// Whether a file that is open past the pages was given capabilities since they were last taken.
    pub(crate) fn take_capability(&self, ino: u64) -> bool {
        self.with(ino, |inode| std::mem::take(&mut inode.capable)) == Some(true)
    }

    /// The numbers that the kernel knows, of those that `of` chooses.
    pub(crate) fn known(&self, of: impl Fn(u64) -> bool) -> Vec<u64> {
        self.choose(|ino, _| of(ino))
    }

    /// The numbers of files that may be changed in mappings, of those that `of` chooses.
    pub(crate) fn mappable(&self, of: impl Fn(u64) -> bool) -> Vec<u64> {
        self.choose(|ino, inode| inode.mappable > 0 && of(ino))
    }

    fn choose(&self, of: impl Fn(u64, &Inode) -> bool) -> Vec<u64> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            all.extend(shard.iter().filter(|(ino, inode)| of(**ino, inode)).map(|(ino, _)| *ino));
        }
        all
    }

    /// Takes the orphans among the numbers that `of` chooses: the kernel will not come for them.
    pub(crate) fn take_orphans(&self, of: impl Fn(u64) -> bool) -> Vec<Orphan> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
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
        inodes.learn(7, 0);
        inodes.learn(7, 0);
        inodes.learn(7 + SHARDS * NEIGHBOURS, 0);
        inodes.tell_setid(7);
        inodes.tell_setid(8);
        assert!(inodes.is_setid(7) && !inodes.is_setid(8) && !inodes.knows(8));
        assert!(inodes.forget(7, 1).is_none());
        assert!(inodes.knows(7));
        assert_eq!(inodes.known(|ino| ino < 10), [7]);
        inodes.forget(7, 1);
        assert!(!inodes.knows(7) && !inodes.is_setid(7) && inodes.knows(7 + SHARDS * NEIGHBOURS));
        inodes.forget(7, u64::MAX);
    }

    #[test]
    fn a_stale_number_stands_for_nothing_until_it_is_told_again() {
        let inodes = Inodes::default();
        inodes.learn(7, 70);
        inodes.learn(8, 80);
        let judge = |stale: u64| {
            let of = |ino, _| if ino == stale { Standing::Stale } else { Standing::Sure };
            inodes.judge(|ino| ino < 10, of)
        };
        assert_eq!(judge(7), [7, 8]);
        assert!(inodes.is_stale(7) && !inodes.is_stale(8) && !inodes.is_stale(9));
        judge(9);
        assert!(inodes.is_stale(7), "nothing but the kernel's knowing another file makes it good");
        inodes.learn(7, 71);
        assert_eq!(inodes.standing(7), (Standing::Sure, 71));
        // The kernel forgets the file that is gone, and knows the new one still.
        inodes.forget(7, 1);
        assert!(inodes.knows(7));
    }

    #[test]
    fn a_number_that_was_not_told_after_all_stands_for_what_it_did() {
        let inodes = Inodes::default();
        inodes.learn(7, 70);
        inodes.judge(|_| true, |_, _| Standing::Stale);
        let before = inodes.learn(7, 71).unwrap();
        assert!(inodes.untold(7, before).is_none());
        assert_eq!(inodes.standing(7), (Standing::Stale, 70));
        // Another answer has told it meanwhile.
        let before = inodes.learn(7, 71).unwrap();
        inodes.learn(7, 71);
        inodes.untold(7, before);
        assert_eq!(inodes.standing(7), (Standing::Sure, 71));
        let before = inodes.learn(8, 80).unwrap();
        inodes.untold(8, before);
        assert!(inodes.knows(7) && !inodes.knows(8));
    }

    #[test]
    fn a_number_in_doubt_is_settled_for_the_file_that_was_looked_at() {
        let inodes = Inodes::default();
        inodes.learn(7, 70);
        inodes.learn(8, 80);
        inodes.judge(|_| true, |_, _| Standing::Doubtful);
        inodes.learn(8, 81);
        inodes.settle(8, 80, false);
        assert_eq!(inodes.standing(8), (Standing::Sure, 81), "told again meanwhile");
        inodes.settle(7, 70, false);
        assert!(inodes.is_stale(7));
        inodes.settle(7, 70, true);
        assert!(inodes.is_stale(7), "it was not in doubt");
    }

    #[test]
    fn a_file_may_be_mapped_as_long_as_it_is_open() {
        let inodes = Inodes::default();
        assert!(!inodes.begin_mapping(7) && !inodes.may_be_mapped(7));
        inodes.learn(7, 0);
        assert!(inodes.begin_mapping(7) && inodes.begin_mapping(7) && !inodes.may_be_mapped(8));
        inodes.learn(8, 0);
        assert_eq!(inodes.mappable(|_| true), [7]);
        inodes.end_mapping(7);
        assert!(inodes.may_be_mapped(7));
        inodes.end_mapping(7);
        inodes.end_mapping(7);
        assert!(!inodes.may_be_mapped(7));
    }

    #[test]
    fn a_file_is_open_past_the_pages_for_all_or_for_nobody() {
        let inodes = Inodes::default();
        assert!(!inodes.begin_direct(7) && !inodes.join_direct(7));
        inodes.learn(7, 0);
        assert!(!inodes.join_direct(7) && !inodes.join_shared_direct(7));
        inodes.give_capability(7);
        assert!(!inodes.take_capability(7), "not open this way");
        assert!(inodes.begin_direct(7) && !inodes.join_shared_direct(7));
        inodes.give_capability(7);
        assert!(inodes.take_capability(7) && !inodes.take_capability(7));
        assert!(inodes.join_direct(7));
        inodes.leave_direct(7);
        assert!(inodes.join_shared_direct(7), "pages of the other one may be there still");
        inodes.leave_direct(7);
        assert!(inodes.join_direct(7));
        (0..2).for_each(|_| inodes.leave_direct(7));
        assert!(!inodes.join_direct(7) && !inodes.join_shared_direct(7));
    }
}
