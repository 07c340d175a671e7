//! The metaslabs of one top-level vdev, and which of them is next (`metaslab_group_t`,
//! `metaslab_group_alloc`).
//!
//! Where one of them is kept for intent logs, the vdev has two groups, which share the list of its metaslabs:
//! one of all but that one (`vdev_mg`), and one of it alone (`vdev_log_mg`). Each chooses among its
//! *members* only.
//!
//! Metaslabs are kept in order of their weight, the best first. An allocator that is given one
//! makes it its *active* one and goes on with it until the largest segments have become
//! [`SWITCH_THRESHOLD`](tunables::SWITCH_THRESHOLD) powers of two smaller than they were, or half as large if they are
//! for data; so allocators do not mix their blocks in one metaslab, and each has one per copy of a block.
//!
//! Data and metadata keep apart beyond that: a metaslab has an affinity to one of them
//! ([`Affinities`]). A metaslab is *rich* if it has a segment that several blocks can be written to in a
//! row ([`ROW`], [`METADATA_ROW`]). What is taken is the best, in this order:
//!
//! | | data | metadata |
//! |---|---|---|
//! | 1 | its own, if rich | its own, if rich |
//! | 2 | one without affinity, if rich | one without affinity, if rich |
//! | 3 | its own | any, if rich |
//! | 4 | any | its own |
//! | 5 | | any |
//!
//! Of these, data takes the one with the largest segment, be there more free space elsewhere, and lets
//! go of it when its largest is half as large. Where blocks are overwritten at random each segment
//! costs a write. If the largest of the vdev are used first, small ones stay until their neighbours
//! are free, too; and they are the larger the more space there is to choose from, so data does not
//! keep to its metaslabs when all they have is holes. In a pool two thirds full that was overwritten
//! for long, a block of 8 KiB costs 0.31 writes so; 0.43 where data used up the heaviest metaslab's
//! segments to the last two blocks, and took others when no such segments were left. Data lets go of
//! its active metaslab as well when that is not rich any more. Where no metaslab was rich, it goes on
//! with what it took until the group is over.
//!
//! The order has a lock of its own, held only to choose and to note a new weight; it is never held
//! together with a metaslab's, and neither is while a metaslab is loaded.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cenote_format::invariant;
use cenote_format::invariant::broken;
use cenote_vdev::{Growing, draid};
use parking_lot::Mutex;

use super::affinity::{Affinities, Affinity};
use super::gate::DisableGate;
use super::metaslab::{Attempt, Metaslab, MetaslabInfo, View};
use super::row::Metaslabs;
use super::space::Extent;
use super::watched::{LockWaits, Watched};
use super::weight::Weight;
use crate::tunables;

/// Blocks in a row that a segment of a metaslab that is rich to data has room for.
const ROW: u64 = 16;
/// Bytes of such a segment to metadata.
const METADATA_ROW: u64 = 1 << 20;
/// Copies of one block on one vdev keep a distance of this fraction of it.
const DITTO_FRACTION: u64 = 8;

/// What a pool tells of a top-level vdev to allocate from.
#[derive(Clone, Debug)]
pub struct VdevInfo {
    /// Its id.
    pub id: u64,
    /// log2 of its sector size.
    pub ashift: u32,
    /// Disks of data in it: its children without parity; 1 for mirrors and single disks.
    pub width: u64,
    /// log2 of the bytes of a metaslab.
    pub ms_shift: u32,
    /// Bytes that metaslabs and allocations begin at multiples of, if that is no power of 2 (dRAID); else 1.
    pub line: u64,
    /// Its metaslabs, in order.
    pub metaslabs: Vec<MetaslabInfo>,
    /// The one that is kept for intent logs ([`embedded_log`](super::embedded_log)).
    pub embedded_log: Option<usize>,
    /// What gives out its addresses, if they are never used twice.
    pub growing: Option<Addresses>,
}

/// The addresses of a vdev that are never used twice.
#[derive(Clone)]
pub struct Addresses(pub Arc<dyn Growing>);

impl std::fmt::Debug for Addresses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Addresses").field(&self.0.next()).finish()
    }
}

/// How choosy an allocation is. Each is less so than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Choice {
    /// Copies are far apart, and metaslabs of other allocators are left alone.
    Far,
    /// Copies are in different metaslabs.
    Apart,
    /// Anything.
    Any,
}

/// What a group is asked for.
pub(super) struct Want<'a> {
    pub txg: u64,
    /// Bytes to allocate on this vdev.
    pub size: u64,
    pub allocator: usize,
    /// Offsets of the block's copies on this vdev.
    pub copies: &'a [u64],
    pub choice: Choice,
}

impl Want<'_> {
    fn slot(&self) -> Slot {
        (self.allocator, self.copies.len())
    }

    fn affinity(&self) -> Affinity {
        Affinity::of(self.allocator)
    }

    /// Bytes of a segment that makes a metaslab rich.
    fn row(&self) -> u64 {
        match self.affinity() {
            Affinity::Data => self.size.saturating_mul(ROW),
            Affinity::Metadata => METADATA_ROW,
        }
    }

    /// The row of the table in the module's documentation for a metaslab with `affinity`.
    fn preference(&self, rich: bool, affinity: Option<Affinity>) -> u8 {
        let own = affinity == Some(self.affinity());
        match (self.affinity(), rich, own) {
            (_, true, true) => 1,
            (_, true, false) if affinity.is_none() => 2,
            (Affinity::Data, _, true) => 3,
            (Affinity::Data, _, false) => 4,
            (Affinity::Metadata, true, false) => 3,
            (Affinity::Metadata, false, true) => 4,
            (Affinity::Metadata, false, false) => 5,
        }
    }
}

/// Allocator, and how many copies of the block are on the vdev already.
type Slot = (usize, usize);

/// The active metaslab of a slot.
#[derive(Clone, Copy)]
struct Active {
    metaslab: usize,
    /// Its weight when it became that.
    since: Weight,
    /// It will be left when it is not rich any more.
    rich: bool,
    /// Data leaves it when its largest segment has fewer bytes.
    least: u64,
}

#[derive(Default)]
struct Order {
    views: Vec<View>,
    sorted: BTreeSet<(Reverse<Weight>, usize)>,
    /// By the bytes of a segment that is sure to be there.
    by_largest: BTreeSet<(Reverse<u64>, usize)>,
    active: BTreeMap<Slot, Active>,
    owners: BTreeMap<usize, Slot>,
    affinities: Affinities,
}

impl Order {
    /// A metaslab comes behind the others; one that is not a member has nothing to give.
    fn join(&mut self, metaslab: &Metaslab, is_member: bool) {
        let i = self.views.len();
        let view = if is_member { metaslab.view() } else { View::default() };
        if is_member {
            self.sorted.insert((Reverse(view.weight), i));
            self.by_largest.insert((Reverse(view.surely_holds()), i));
        }
        self.views.push(view);
    }
}

/// Which metaslabs of a vdev a group has.
enum Members {
    /// All but this one.
    AllBut(OnceLock<usize>),
    Only(usize),
}

/// The metaslabs of a vdev, of which the first has the number `first`; `None` if they are not what can be.
fn made(info: &VdevInfo, first: u64) -> Option<Vec<Metaslab>> {
    let mut metaslabs = Vec::with_capacity(info.metaslabs.len());
    for (id, known) in (first..).zip(&info.metaslabs) {
        let (start, size) = draid::metaslab(id, info.ms_shift, info.line)?;
        let extent = Extent { start, size, shift: info.ashift };
        super::space::FreeSpace::new(extent).ok()?;
        metaslabs.push(Metaslab::new(info.id, id, extent, known.clone()));
    }
    Some(metaslabs)
}

/// A metaslab to try.
#[derive(Clone, Copy)]
struct Candidate {
    metaslab: usize,
    rich: bool,
    /// Bytes of a segment that is sure to be there.
    largest: u64,
}

/// A metaslab that is not loaded.
#[derive(Clone, Copy)]
pub(super) struct ToLoad {
    pub id: u64,
    /// Whether the size asked for is sure to be there.
    pub sure: bool,
}

/// What came of a group's attempt.
pub(super) enum Outcome {
    Got(u64),
    /// Nothing that is loaded will do; this metaslab may when it is loaded.
    Load(ToLoad),
    Nothing,
}

/// The metaslabs of one top-level vdev (`metaslab_group_t`).
pub struct Group {
    vdev: u64,
    ashift: u32,
    ms_shift: u32,
    line: u64,
    width: u64,
    metaslabs: Arc<Metaslabs>,
    members: Members,
    order: Watched<Order>,
    pub(super) allocated: AtomicU64,
    pub(super) deferred: AtomicU64,
    /// Bytes that are deferred, by the txg in which they were freed.
    defer: Mutex<BTreeMap<u64, u64>>,
    /// Bytes after which the rotor moves on.
    pub(super) aliquot: AtomicU64,
    /// Those that disable metaslabs, and those that need all.
    pub(super) disable_gate: DisableGate,
    /// See [`VdevInfo::growing`]. Held while the next addresses are given out.
    growing: Option<Mutex<Addresses>>,
    /// How many want that nothing is allocated from it, because its vdev is about to leave.
    passive: AtomicU64,
}

impl Group {
    /// The group of a vdev, and that of the metaslab that is kept for intent logs (`metaslab_group_create`); `None` if the
    /// metaslabs are not what can be.
    pub(super) fn of_vdev(info: &VdevInfo) -> Option<(Group, Option<Group>)> {
        let metaslabs = Arc::new(Metaslabs::new(made(info, 0)?));
        if info.embedded_log.is_some_and(|kept| kept >= metaslabs.len()) {
            return None;
        }
        let kept = info.embedded_log.map_or_else(OnceLock::new, OnceLock::from);
        let group = |members| Group::new(info, metaslabs.clone(), members);
        let embedded = info.embedded_log.map(|kept| group(Members::Only(kept)));
        Some((group(Members::AllBut(kept)), embedded))
    }

    fn new(info: &VdevInfo, metaslabs: Arc<Metaslabs>, members: Members) -> Group {
        let group = Group {
            vdev: info.id,
            ashift: info.ashift,
            ms_shift: info.ms_shift,
            line: info.line,
            width: info.width.max(1),
            metaslabs,
            members,
            order: Watched::new(Order::default()),
            allocated: AtomicU64::new(0),
            deferred: AtomicU64::new(0),
            defer: Mutex::default(),
            aliquot: AtomicU64::new(0),
            disable_gate: DisableGate::default(),
            growing: info.growing.clone().map(Mutex::new),
            passive: AtomicU64::new(0),
        };
        group.join(0);
        let allocated = group.members().map(Metaslab::allocated).sum();
        group.allocated.store(allocated, Ordering::Relaxed);
        group
    }

    /// The metaslabs from number `first` on come behind the others.
    fn join(&self, first: usize) {
        let mut order = self.order.lock();
        for (i, metaslab) in self.metaslabs.iter().enumerate().skip(first) {
            order.join(metaslab, self.has(i));
        }
    }

    /// Whether metaslab `i` of the vdev is a member.
    pub(super) fn has(&self, i: usize) -> bool {
        match &self.members {
            Members::AllBut(kept) => kept.get() != Some(&i),
            Members::Only(kept) => *kept == i,
        }
    }

    /// Its own metaslabs, in order.
    pub fn members(&self) -> impl Iterator<Item = &Metaslab> {
        self.metaslabs
            .iter()
            .enumerate()
            .filter(|(i, _)| self.has(*i))
            .map(|(_, metaslab)| metaslab)
    }

    /// How many metaslabs are its own.
    pub(super) fn count(&self) -> usize {
        match &self.members {
            Members::AllBut(kept) => self.metaslabs.len() - usize::from(kept.get().is_some()),
            Members::Only(_) => 1,
        }
    }

    /// Id of the top-level vdev.
    pub fn vdev(&self) -> u64 {
        self.vdev
    }

    /// log2 of the sector size.
    pub fn ashift(&self) -> u32 {
        self.ashift
    }

    /// log2 of the bytes that its metaslabs are apart.
    pub fn ms_shift(&self) -> u32 {
        self.ms_shift
    }

    /// Disks of data.
    pub(super) fn width(&self) -> u64 {
        self.width
    }

    /// The vdev has grown: more metaslabs join, all of them empty. If no metaslab is kept for intent logs yet,
    /// and is to have one (`keep`), that is the first of them, and its group is returned.
    ///
    /// `None`: they are not what can be.
    pub(super) fn grow(&self, count: usize, keep: bool) -> Option<Option<Group>> {
        let (id, ashift, width) = (self.vdev, self.ashift, self.width);
        let (ms_shift, line) = (self.ms_shift, self.line);
        let (metaslabs, embedded_log) = (vec![MetaslabInfo::default(); count], None);
        let growing = self.addresses();
        let info = VdevInfo { id, ashift, width, ms_shift, line, metaslabs, embedded_log, growing };
        let first = self.metaslabs.len();
        self.metaslabs.push(made(&info, first as u64)?);
        let embedded = match &self.members {
            Members::AllBut(kept) if keep && count > 0 && kept.set(first).is_ok() => {
                Some(Group::new(&info, self.metaslabs.clone(), Members::Only(first)))
            }
            _ => None,
        };
        if let Some(embedded) = &embedded {
            // It may be about to leave.
            embedded.passive.store(self.passive.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        self.join(first);
        Some(embedded)
    }

    /// Whether nothing is allocated from it ([`Allocator::passivate`](super::Allocator::passivate)).
    pub fn is_passive(&self) -> bool {
        self.passive.load(Ordering::SeqCst) > 0
    }

    /// See [`Allocator::passivate`](super::Allocator::passivate) and `activate`.
    pub(super) fn set_passive(&self, passive: bool) -> bool {
        let change = |count: u64| if passive { count.checked_add(1) } else { count.checked_sub(1) };
        self.passive.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change).is_ok()
    }

    /// Whether nothing of it is allocated, neither on disk nor in a group that is not written yet.
    pub(super) fn is_empty(&self) -> bool {
        self.members().all(Metaslab::is_empty)
    }

    /// All metaslabs of the vdev, in order.
    pub fn metaslabs(&self) -> &Metaslabs {
        &self.metaslabs
    }

    /// Bytes in its own metaslabs.
    pub fn space(&self) -> u64 {
        match self.line {
            1 => (self.count() as u64) << self.ms_shift,
            _ => self.members().map(|metaslab| metaslab.extent().size).sum(),
        }
    }

    /// Bytes of these that are not allocatable.
    pub fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// So many bytes that were freed in `txg` are deferred from now on.
    pub(super) fn defer(&self, txg: u64, bytes: u64) {
        *self.defer.lock().entry(txg).or_default() += bytes;
    }

    /// `txg` is on disk, and what was freed in `due` and before is deferred no more: so many bytes.
    pub(super) fn account(&self, txg: u64, due: Option<u64>) -> u64 {
        let (mut defer, mut came_back) = (self.defer.lock(), 0);
        if let Some(due) = due {
            let later = defer.split_off(&(due + 1));
            let went = std::mem::replace(&mut *defer, later).values().sum();
            self.lose(went);
            came_back = went;
        }
        let deferred = defer.range(..=txg).map(|(_, bytes)| bytes).sum();
        self.deferred.store(deferred, Ordering::Relaxed);
        came_back
    }

    /// So many bytes are not allocated any more. What headers of space maps said of metaslabs that were never loaded
    /// is among what is, and may have been less.
    pub(super) fn lose(&self, bytes: u64) {
        let less = |allocated: u64| Some(allocated.saturating_sub(bytes));
        let _ = self.allocated.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Whether more is deferred than can be allocated.
    pub(super) fn is_short(&self) -> bool {
        let left = self.space().saturating_sub(self.allocated());
        self.deferred.load(Ordering::Relaxed) > left
    }

    /// The metaslab of offset `at`.
    pub(super) fn metaslab_at(&self, at: u64) -> Option<&Metaslab> {
        self.metaslabs.get(usize::try_from(at >> self.ms_shift).ok()?)
    }

    /// The largest allocation that is sure to succeed (`metaslab_largest_allocatable`).
    pub(super) fn largest(&self) -> u64 {
        self.order.lock().views.iter().map(View::surely_holds).max().unwrap_or(0)
    }

    /// What gives out its addresses, if they are never used twice.
    pub fn addresses(&self) -> Option<Addresses> {
        self.growing.as_ref().map(|growing| growing.lock().clone())
    }

    /// Bytes that are free and never used again: their addresses were given out before.
    pub fn dead(&self) -> u64 {
        let given_out = self.addresses().map_or(0, |Addresses(growing)| growing.next());
        given_out.min(self.space()).saturating_sub(self.allocated())
    }

    /// Whether its addresses are never used twice.
    pub fn is_growing(&self) -> bool {
        self.growing.is_some()
    }

    /// Takes the next addresses of a vdev that uses none twice. They are in one metaslab; what is left of the one before is
    /// passed over.
    fn append(&self, want: &Want<'_>, growing: &Addresses) -> Outcome {
        let addresses = &growing.0;
        let left = (1 << self.ms_shift) - (addresses.next() & ((1 << self.ms_shift) - 1));
        if left < want.size && addresses.allocate(left).is_err() {
            return Outcome::Nothing;
        }
        let i = (addresses.next() >> self.ms_shift) as usize;
        let Some(metaslab) = self.metaslabs.get(i).filter(|_| self.has(i)) else {
            return Outcome::Nothing;
        };
        let (attempt, view) = metaslab.append(want.txg, want.size, &**addresses);
        self.note(i, view);
        match attempt {
            Attempt::Got(offset) => {
                self.allocated.fetch_add(want.size, Ordering::Relaxed);
                Outcome::Got(offset)
            }
            Attempt::TooSmall => Outcome::Nothing,
            Attempt::Unloaded => Outcome::Load(ToLoad { id: i as u64, sure: true }),
        }
    }

    /// Allocates from loaded metaslabs. Unloaded ones that would have been preferred are passed to
    /// `ahead`.
    pub(super) fn alloc(&self, want: &Want<'_>, mut ahead: impl FnMut(u64)) -> Outcome {
        if let Some(growing) = &self.growing {
            return self.append(want, &growing.lock());
        }
        let (mut tried, mut to_load) = (BTreeSet::new(), None);
        while let Some(candidate) = self.choose(want, &tried) {
            let i = candidate.metaslab;
            tried.insert(i);
            let Some(metaslab) = self.metaslabs.get(i) else {
                broken(format_args!("vdev {} has no metaslab {i}", self.vdev));
            };
            let (attempt, view) = metaslab.alloc(want.txg, want.size);
            self.note(i, view);
            match attempt {
                Attempt::Got(offset) => {
                    self.allocated.fetch_add(want.size, Ordering::Relaxed);
                    self.activate(candidate, want, view);
                    return Outcome::Got(offset);
                }
                Attempt::TooSmall => {}
                Attempt::Unloaded => {
                    ahead(i as u64);
                    let sure = view.surely_holds() >= want.size;
                    to_load.get_or_insert(ToLoad { id: i as u64, sure });
                }
            }
        }
        to_load.map_or(Outcome::Nothing, Outcome::Load)
    }

    /// The best metaslab that was not tried (`find_valid_metaslab`, `metaslab_should_allocate`). Only the first unloaded one
    /// is offered: what can serve at once comes before a second load.
    fn choose(&self, want: &Want<'_>, tried: &BTreeSet<usize>) -> Option<Candidate> {
        if tried.len() >= tunables::FIND_MAX_TRIES.count() && want.choice < Choice::Any {
            return None;
        }
        let order = self.order.lock();
        if let Some(Active { metaslab, rich, .. }) = order.active.get(&want.slot()).copied()
            && !tried.contains(&metaslab)
            && let Some(view) = order.views.get(metaslab)
            && view.loaded
            && view.may_hold(want.size)
            && self.far_enough(metaslab, want)
        {
            return Some(Candidate { metaslab, rich, largest: view.surely_holds() });
        }
        let waiting = |i: &usize| order.views.get(*i).is_some_and(|v| !v.loaded);
        let one_waits = tried.iter().any(waiting);
        let fits = |i: &usize| {
            let view = order.views.get(*i).copied().unwrap_or_default();
            let others = order.owners.get(i).is_some_and(|slot| *slot != want.slot());
            !tried.contains(i)
                && view.may_hold(want.size)
                && (view.loaded || !one_waits)
                && (!others || want.choice == Choice::Any)
                && self.far_enough(*i, want)
        };
        let mut best: Option<(u8, Candidate)> = None;
        // Whether nothing that comes later is better; if it can be rich `rich_later` says.
        let mut done_with = |i: usize, rich_later: bool| {
            let largest = order.views.get(i).map_or(0, View::surely_holds);
            let rich = largest >= want.row();
            let preference = want.preference(rich, order.affinities.of(i));
            if best.is_none_or(|(so_far, _)| preference < so_far) && fits(&i) {
                best = Some((preference, Candidate { metaslab: i, rich, largest }));
            }
            let later = want.preference(rich_later, Some(want.affinity()));
            best.is_some_and(|(so_far, _)| so_far <= later)
        };
        match want.affinity() {
            Affinity::Data => {
                let mut all = order.by_largest.iter();
                all.any(|(Reverse(largest), i)| done_with(*i, *largest >= want.row()))
            }
            Affinity::Metadata => {
                // Further down the order no segment is large enough.
                let heavy = |(weight, _): &&(Reverse<Weight>, _)| weight.0.may_hold(want.size);
                let mut all = order.sorted.iter().take_while(heavy);
                all.any(|(Reverse(weight), i)| done_with(*i, weight.may_hold(want.row())))
            }
        };
        best.map(|(_, candidate)| candidate)
    }

    fn far_enough(&self, i: usize, want: &Want<'_>) -> bool {
        let start = (i as u64) << self.ms_shift;
        let far = |copy: &u64| match want.choice {
            Choice::Far => start.abs_diff(copy >> self.ms_shift << self.ms_shift) >= self.far(),
            Choice::Apart => copy >> self.ms_shift != i as u64,
            Choice::Any => true,
        };
        want.copies.iter().all(far)
    }

    fn far(&self) -> u64 {
        (self.space() / DITTO_FRACTION).max(1 << self.ms_shift)
    }

    /// Makes a metaslab the active one of the slot that allocated from it, or has the slot let go
    /// of it when its large segments are used up (`metaslab_activate`, `metaslab_passivate`).
    fn activate(&self, candidate: Candidate, want: &Want<'_>, view: View) {
        let (i, slot) = (candidate.metaslab, want.slot());
        let mut order = self.order.lock();
        if order.owners.get(&i).is_some_and(|owner| *owner != slot) {
            return;
        }
        match order.active.get(&slot).copied() {
            Some(Active { metaslab, since, rich, least }) if metaslab == i => {
                let smaller = view.weight.steps_below(since);
                let least = if rich { least.max(want.row()) } else { least };
                let poor = want.affinity() == Affinity::Data && view.surely_holds() < least;
                if smaller >= tunables::SWITCH_THRESHOLD.small() || poor {
                    order.active.remove(&slot);
                    order.owners.remove(&i);
                }
            }
            before => {
                if let Some(before) = before {
                    order.owners.remove(&before.metaslab);
                }
                let Candidate { rich, largest, .. } = candidate;
                let active = Active { metaslab: i, since: view.weight, rich, least: largest / 2 };
                order.active.insert(slot, active);
                order.owners.insert(i, slot);
                order.affinities.settle(i, want.affinity());
            }
        }
    }

    /// A transaction group is over: affinities are balanced, and what was taken for want of something
    /// rich is let go of.
    pub(super) fn settle(&self) {
        // To affinities what is not its own is full.
        let full = 1 << self.ms_shift;
        let used = |(i, m): (usize, &Metaslab)| if self.has(i) { m.allocated() } else { full };
        let used: Vec<u64> = self.metaslabs.iter().enumerate().map(used).collect();
        let mut order = self.order.lock();
        let Order { active, owners, affinities, .. } = &mut *order;
        active.retain(|_, active| {
            if !active.rich {
                owners.remove(&active.metaslab);
            }
            active.rich
        });
        affinities.balance(&used, full, |i| owners.contains_key(&i));
    }

    /// Notes that nothing can be allocated from a metaslab.
    pub(super) fn give_up(&self, i: usize) {
        let number = self.order.lock().views.get(i).map_or(0, |view| view.number);
        self.note(i, View { number, ..View::default() });
    }

    /// Notes what has become of a metaslab, unless something later is known (`metaslab_group_sort`).
    pub(super) fn note(&self, i: usize, view: View) {
        let mut order = self.order.lock();
        let before = order.views.get_mut(i).filter(|v| self.has(i) && v.number <= view.number);
        let Some(before) = before else { return };
        let old = std::mem::replace(before, view);
        let vdev = self.vdev;
        if old.weight != view.weight {
            let was = order.sorted.remove(&(Reverse(old.weight), i));
            invariant!(was, "vdev {vdev} metaslab {i}: not in the order of weights");
            order.sorted.insert((Reverse(view.weight), i));
        }
        if old.surely_holds() != view.surely_holds() {
            let was = order.by_largest.remove(&(Reverse(old.surely_holds()), i));
            invariant!(was, "vdev {vdev} metaslab {i}: not in the order of largest segments");
            order.by_largest.insert((Reverse(view.surely_holds()), i));
        }
    }

    /// The unloaded metaslab that is the likeliest to have `size` bytes in a row, though its histogram has no such
    /// segment: what was freed there since may have joined.
    pub(super) fn last_resort(&self, size: u64) -> Option<u64> {
        if self.is_growing() {
            return None;
        }
        let order = self.order.lock();
        let hopes = (0u64..).zip(&order.views);
        let unseen = hopes.filter(|(_, view)| !view.loaded && view.hope >= size);
        unseen.max_by_key(|(_, view)| view.hope).map(|(i, _)| i)
    }

    /// Waits for locks since the last call, of the metaslabs and of their order.
    pub(super) fn take_lock_waits(&self) -> LockWaits {
        let of_metaslabs = self.members().map(Metaslab::take_lock_waits);
        of_metaslabs.fold(self.order.take_waits(), LockWaits::and)
    }

    /// Metaslabs that are loaded.
    pub(super) fn loaded(&self) -> u64 {
        self.order.lock().views.iter().filter(|view| view.loaded).count() as u64
    }

    /// Whether the metaslab is some allocator's active one.
    pub(super) fn is_active(&self, i: usize) -> bool {
        self.order.lock().owners.contains_key(&i)
    }

    /// The best `n` metaslabs of metadata, and the best `n` of the others.
    pub(super) fn best(&self, n: usize) -> Vec<usize> {
        if let Some(Addresses(growing)) = self.addresses() {
            // The one that is being filled, and the next.
            let at = (growing.next() >> self.ms_shift) as usize;
            return (at..self.metaslabs.len().min(at.saturating_add(n.min(2)))).collect();
        }
        let order = self.order.lock();
        let metadata = |i: &usize| order.affinities.of(*i) == Some(Affinity::Metadata);
        let all = order.sorted.iter().map(|(_, i)| *i);
        let others = all.clone().filter(|i| !metadata(i)).take(n);
        all.filter(metadata).take(n).chain(others).collect()
    }

    /// The ones among the best `n` metaslabs that are not loaded, though there is space in them.
    pub(super) fn worth_loading(&self, n: usize) -> Vec<u64> {
        let best = self.best(n);
        let order = self.order.lock();
        let view = |i: &usize| order.views.get(*i).copied().unwrap_or_default();
        let worth = |i: &usize| !view(i).loaded && view(i).surely_holds() > 0;
        best.into_iter().filter(worth).map(|i| i as u64).collect()
    }
}
