//! What waits to be logged (`itxg_t`, `itx_t`, `zil_itx_assign`).
//!
//! Records about names are written with the next commit, in the order of the changes. Records about one object
//! wait until that object is committed, or gets another name: they are *pulled* behind what the next commit
//! writes already. So a commit of one file writes its own changes and the names, and not what others
//! wrote to other files. A record about an object that is gone by then is passed over when it is replayed.
//! What waits of an object is dropped when its number becomes another's. An extended attribute that is a file of
//! its own is written with the names, because a commit names the file that has it.
//!
//! # Invariant
//!
//! A change is whole in the log, or not there. All its itxs wait together, as one [`Queued`], and are taken and
//! dropped together. A change that is about names as well as about an object, or about several objects, is
//! written with the names: a new file comes with the lists that it inherits, an attribute that goes from the hidden
//! directory to the system attributes is in one of the two. What waits of the objects of such a change is pulled before it.
//! [`super::encoder`] and [`super::chain`] keep the records of a change together on their way to the disk.
//!
//! Itxs are kept until their transaction group is on disk or they are taken to be written. More than
//! [`MAX_BYTES`] are not kept: the changes count as unlogged then.
//!
//! Invariant: the bytes that are counted are the bytes of all that waits.

use ahash::HashMap;
use cenote_dmu::write::intent::{About, Intent, Itx};
use cenote_format::zil::kind;
use cenote_format::{invariant, less};
use std::collections::VecDeque;

/// Most bytes of itxs that are kept.
const MAX_BYTES: u64 = 16 << 20;
/// What an itx takes besides its record.
const ITX: u64 = 96;

/// A change that waits, with all that is to be written of it.
pub(super) struct Queued {
    pub txg: u64,
    /// Number of the change.
    pub change: u64,
    pub itxs: Vec<Itx>,
}

impl Queued {
    fn size(&self) -> u64 {
        self.itxs.iter().map(size).sum()
    }
}

/// Changes of a dataset that are not on disk.
#[derive(Default)]
pub(super) struct Itxs {
    /// What the next commit writes, whatever it is of (`i_sync_list`).
    next_commit: VecDeque<Queued>,
    /// What is written when its object is committed (`i_async_tree`), by objects.
    objects: HashMap<u64, Vec<Queued>>,
    bytes: u64,
    /// Number of the next change.
    change: u64,
    /// How many changes, unlogged ones too, were ever to be written by the next commit.
    queued: u64,
    /// Youngest group with an unlogged change.
    unlogged: u64,
    /// Objects that were created in groups that are not on disk: group and number of the change.
    created: HashMap<u64, (u64, u64)>,
}

/// What a commit is of.
#[derive(Clone, Copy)]
pub(crate) enum Scope<'a> {
    /// All changes of the dataset.
    All,
    /// Names, and all changes of these objects.
    Objects(&'a [u64]),
}

/// What is written at once.
pub(super) struct Batch {
    pub changes: Vec<Queued>,
    /// Some change is not among them, or was taken before and not written.
    pub unlogged: bool,
    /// How far the queue is written with it.
    pub end: u64,
}

impl Batch {
    /// All itxs, in the order in which they are written.
    pub fn itxs(&self) -> impl Iterator<Item = &Itx> {
        self.changes.iter().flat_map(|queued| &queued.itxs)
    }
}

fn size(itx: &Itx) -> u64 {
    match itx {
        Itx::Record { bytes, .. } => ITX + bytes.len() as u64,
        Itx::Write { .. } | Itx::Created(_) | Itx::WithNames(_) | Itx::Unlogged => ITX,
    }
}

/// Whether there is anything to write of it.
fn is_written(itx: &Itx) -> bool {
    matches!(itx, Itx::Record { .. } | Itx::Write { .. })
}

/// Whether it is written with the next commit, whatever that is of.
fn is_of_names(itx: &Itx) -> bool {
    match itx {
        Itx::Record { about, .. } => !matches!(about, About::Object(_)),
        Itx::WithNames(_) => true,
        Itx::Write { .. } | Itx::Created(_) | Itx::Unlogged => false,
    }
}

/// The object of which it is about, or whose name it changes.
fn object_of(itx: &Itx) -> Option<u64> {
    match itx {
        Itx::Record { about: About::Object(object) | About::Renamed(object), .. }
        | Itx::Write { object, .. }
        | Itx::WithNames(object) => Some(*object),
        Itx::Record { about: About::Names | About::New(_), .. }
        | Itx::Created(_)
        | Itx::Unlogged => None,
    }
}

/// The object that it makes.
fn made_by(itx: &Itx) -> Option<u64> {
    match itx {
        Itx::Record { about: About::New(object), .. } | Itx::Created(object) => Some(*object),
        _ => None,
    }
}

/// The only object that a change is about, if it is about no names.
fn only_object(itxs: &[Itx]) -> Option<u64> {
    let mut objects = itxs.iter().filter_map(object_of);
    let first = objects.next()?;
    (objects.all(|object| object == first) && !itxs.iter().any(is_of_names)).then_some(first)
}

/// Whether the record is of the type `TX_SETSAXATTR`.
fn sets_sa_xattr(itx: &Itx) -> bool {
    let Itx::Record { bytes, .. } = itx else { return false };
    bytes.first_chunk::<8>().is_some_and(|kind| u64::from_le_bytes(*kind) == kind::TX_SETSAXATTR)
}

impl Batch {
    /// The youngest group that it has changes of.
    pub fn youngest(&self) -> u64 {
        self.changes.iter().map(|queued| queued.txg).max().unwrap_or(0)
    }
}

impl Itxs {
    /// A change was made in group `txg`. `sa_xattrs`: the log may have records of extended attributes among
    /// the system attributes.
    pub fn note(&mut self, txg: u64, intent: Intent, sa_xattrs: bool) {
        let intent = intent.filter(|itxs| sa_xattrs || !itxs.iter().any(sets_sa_xattr));
        let Some(mut itxs) = intent else { return self.miss(txg) };
        let change = self.change;
        self.change += 1;
        for object in itxs.iter().filter_map(made_by) {
            self.created.insert(object, (txg, change));
            self.drop_before(object, change);
        }
        let only = only_object(&itxs);
        if only.is_none() {
            // What a name leads to is stable before the name is, and so is what came before in each object.
            itxs.iter().filter_map(object_of).for_each(|object| self.pull(object));
        }
        itxs.retain(is_written);
        if itxs.is_empty() {
            return;
        }
        let queued = Queued { txg, change, itxs };
        self.bytes += queued.size();
        match only {
            Some(object) => {
                let its = self.objects.entry(object).or_default();
                let last = its.last().map(|last| last.change);
                invariant!(last < Some(change), "object {object}: change {change} after {last:?}");
                its.push(queued);
            }
            None => self.queue([queued]),
        }
        if self.bytes > MAX_BYTES {
            (self.next_commit, self.objects) = Default::default();
            self.bytes = 0;
            self.miss(txg);
        }
    }

    /// Drops what waits of the file that had this number before change number `change`: it is gone, and a commit
    /// of the new one would apply that to it (`zil_remove_async`).
    fn drop_before(&mut self, object: u64, change: u64) {
        let Some(its) = self.objects.get_mut(&object) else { return };
        let gone = its.extract_if(.., |queued| queued.change < change);
        let bytes: u64 = gone.map(|queued| queued.size()).sum();
        self.bytes = less!(self.bytes, bytes, "bytes of itxs, without object {object}");
        if its.is_empty() {
            self.objects.remove(&object);
        }
    }

    /// A change is unlogged.
    fn miss(&mut self, txg: u64) {
        self.change += 1;
        self.queued += 1;
        self.unlogged = self.unlogged.max(txg);
    }

    fn queue(&mut self, changes: impl IntoIterator<Item = Queued>) {
        let before = self.next_commit.len();
        self.next_commit.extend(changes);
        self.queued += (self.next_commit.len() - before) as u64;
    }

    /// The next commit writes what waits of `object` (`zil_async_to_sync`).
    fn pull(&mut self, object: u64) {
        let its = self.objects.remove(&object).unwrap_or_default();
        self.queue(its);
    }

    /// The next commit writes all of `scope`. Returns how far the queue has to be written for that.
    pub fn want(&mut self, scope: Scope<'_>) -> u64 {
        match scope {
            Scope::Objects(objects) => objects.iter().for_each(|object| self.pull(*object)),
            Scope::All => {
                let all: Vec<_> = self.objects.drain().flat_map(|(_, its)| its).collect();
                self.queue(all);
                // Should a crash leave a part of it, that is how far the changes were.
                self.next_commit.make_contiguous().sort_by_key(|queued| queued.change);
            }
        }
        self.queued
    }

    /// Group `txg` is on disk (`zil_itxg_clean`).
    pub fn forget(&mut self, txg: u64) {
        let (mut left, mut gone) = (0u64, 0u64);
        let mut stays = |queued: &Queued| {
            let stays = queued.txg > txg;
            *(if stays { &mut left } else { &mut gone }) += queued.size();
            stays
        };
        self.next_commit.retain(&mut stays);
        self.objects.retain(|_, its| {
            its.retain(&mut stays);
            !its.is_empty()
        });
        let bytes = self.bytes;
        invariant!(
            left + gone == bytes,
            "{left} and {gone} bytes of itxs, and {bytes} are counted"
        );
        self.bytes = left;
        self.created.retain(|_, (of, _)| *of > txg);
    }

    /// Takes what the next commit writes (`zil_get_commit_list`, `zil_prune_commit_list`); `synced` is the last group that was
    /// written, `last` that which gets on disk.
    pub fn take(&mut self, synced: u64, last: u64) -> Batch {
        let taken: u64 = self.next_commit.iter().map(Queued::size).sum();
        // Asserted before anything is taken: else the next commit would find an empty queue, and take that for stable.
        self.bytes = less!(self.bytes, taken, "bytes of itxs that are taken");
        let waiting = std::mem::take(&mut self.next_commit);
        // What a frozen pool writes later does not get on disk.
        let on_disk = synced.min(last);
        let changes: Vec<Queued> = waiting.into_iter().filter(|q| q.txg > on_disk).collect();
        Batch { changes, unlogged: self.unlogged > on_disk, end: self.queued }
    }

    /// What was taken was not written: it is on disk with group `youngest`, or nowhere.
    pub fn lose(&mut self, youngest: u64) {
        self.unlogged = self.unlogged.max(youngest);
    }

    /// Whether there is an unlogged change that is not on disk; `synced` is the last group that is.
    pub fn has_unlogged(&self, synced: u64) -> bool {
        self.unlogged > synced
    }

    /// Whether names were changed since a batch was taken: its next commit tells them.
    pub fn has_names(&self) -> bool {
        self.next_commit.iter().any(|queued| queued.itxs.iter().any(is_of_names))
    }

    /// Whether `object` was created after change number `change`: its number was another's then.
    pub fn is_reused(&self, object: u64, change: u64) -> bool {
        self.created.get(&object).is_some_and(|(_, created)| *created > change)
    }
}

#[cfg(test)]
mod tests;
