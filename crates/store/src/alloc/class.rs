//! The classes of space, the top-level vdevs of one (`metaslab_class_t`), and which of them is next (`mca_rotor`).
//!
//! Each allocator has a rotor. It stays at a vdev until the vdev has had its share, its *aliquot*, and moves
//! on to the next one then. Shares are balanced so that all vdevs fill up at the same time.

use super::gate::KeptOut;
use super::group::Group;
use crate::tunables;
use cenote_format::blkptr::Dva;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What space is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Everything that no other class is for.
    Normal,
    /// The intent log, on vdevs of its own.
    Log,
    /// The intent log, in one metaslab of each vdev of the normal class that has many
    /// (`spa_embedded_log_class`).
    EmbeddedLog,
    /// Metadata and small blocks.
    Special,
    /// Deduplication tables.
    Dedup,
}

impl Class {
    /// Where a block goes that must be written and for which there is not a sector elsewhere: OpenZFS suspends the pool
    /// then.
    pub(super) const LAST_RESORT: &[Class] = &[Class::EmbeddedLog];

    /// The classes that a block for this one may go to, in order. Space for intent logs is not among those for other
    /// blocks, so that logs find it unfragmented (`zio_dva_allocate`, `zio_alloc_zil`).
    pub fn fallbacks(self) -> &'static [Class] {
        match self {
            Class::Normal => &[Class::Normal],
            Class::Log => &[Class::Log, Class::EmbeddedLog, Class::Normal],
            Class::EmbeddedLog => &[Class::EmbeddedLog, Class::Normal],
            Class::Special => &[Class::Special, Class::Normal],
            Class::Dedup => &[Class::Dedup, Class::Special, Class::Normal],
        }
    }
}

/// Which of `count` metaslabs of a vdev of the normal class is kept for intent logs: the one with the least allocated
/// according to its space map, log space maps left aside; those behind the end of `allocated` are empty
/// (`vdev_metaslab_init`). Nothing on disk says which one it is: it is chosen anew when a pool is opened.
pub fn embedded_log(count: usize, allocated: impl IntoIterator<Item = i64>) -> Option<usize> {
    let enough = count as u64 > tunables::EMBEDDED_SLOG_MIN_MS.get();
    let allocated = allocated.into_iter().chain(std::iter::repeat(0)).take(count);
    let emptiest = allocated.enumerate().min_by_key(|(_, allocated)| *allocated);
    emptiest.filter(|_| enough).map(|(i, _)| i)
}

/// What to allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Physical bytes.
    pub psize: u64,
    /// Copies: 1 to [`MAX_COPIES`](super::MAX_COPIES).
    pub copies: usize,
    /// The class it should go to.
    pub class: Class,
    /// Which of the allocators' metaslabs to use; any number (it is taken modulo how many there
    /// are). Blocks that belong together should have the same.
    pub allocator: usize,
    /// Whether the DVAs are for a gang header.
    pub gang: bool,
    /// The vdev to start at rather than the next in turn.
    pub near: Option<u64>,
    /// The vdevs that may be allocated from, if not all may be.
    pub among: Option<&'a [u64]>,
}

impl Request<'_> {
    /// Whether a vdev may be allocated from.
    pub(super) fn allows(&self, vdev: u64) -> bool {
        self.among.is_none_or(|vdevs| vdevs.contains(&vdev))
    }

    /// Whether it is the writer of an intent log that allocates.
    pub(super) fn is_of_log(&self) -> bool {
        matches!(self.class, Class::Log | Class::EmbeddedLog)
    }
}

#[derive(Default)]
pub(super) struct Rotor {
    pub(super) group: usize,
    /// Bytes allocated since the rotor came to the group.
    pub(super) bytes: u64,
}

/// See the head of the module (`metaslab_class_t`).
pub(super) struct ClassGroups {
    pub(super) groups: Vec<Arc<Group>>,
    /// One per allocator.
    pub(super) rotors: Vec<Mutex<Rotor>>,
}

impl ClassGroups {
    /// These groups, for so many allocators (`metaslab_class_create`).
    pub(super) fn new(groups: Vec<Arc<Group>>, allocators: usize) -> ClassGroups {
        let rotors = std::iter::repeat_with(Mutex::default).take(allocators).collect();
        let of_class = ClassGroups { groups, rotors };
        of_class.balance();
        of_class
    }

    /// The group to begin with: for a further copy the one after the last copy's.
    pub(super) fn start(&self, request: &Request<'_>, copies: &[Dva]) -> Option<usize> {
        let find = |vdev: u64| self.groups.iter().position(|group| group.vdev() == vdev);
        let next = copies.last().and_then(|dva| find(dva.vdev.into())).map(|i| i + 1);
        let near = request.near.filter(|_| copies.is_empty()).and_then(find);
        let rotor = self.rotor(request)?.lock().group;
        next.or(near).unwrap_or(rotor).checked_rem(self.groups.len())
    }

    pub(super) fn rotor(&self, request: &Request) -> Option<&Mutex<Rotor>> {
        self.rotors.get(request.allocator.checked_rem(self.rotors.len())?)
    }

    /// Moves the rotor on if group `i`, at which it stood, has had its share (`metaslab_class_rotate`).
    pub(super) fn rotate(&self, request: &Request<'_>, copies: &[Dva], i: usize, size: u64) {
        if request.near.is_some() || !copies.is_empty() {
            return;
        }
        let (Some(rotor), Some(group)) = (self.rotor(request), self.groups.get(i)) else { return };
        let mut rotor = rotor.lock();
        if rotor.group != i {
            *rotor = Rotor { group: i, bytes: 0 };
        }
        rotor.bytes += size;
        // Go on as long as the next block would mostly fit.
        if rotor.bytes + size / 2 >= group.aliquot.load(Ordering::Relaxed) {
            *rotor = Rotor { group: (i + 1) % self.groups.len().max(1), bytes: 0 };
        }
    }

    /// So often metaslabs of the class were disabled, and are no longer.
    pub(super) fn disables_ended(&self) -> u64 {
        self.groups.iter().map(|group| group.disable_gate.ended()).sum()
    }

    /// So often metaslabs of the class were disabled.
    pub(super) fn disables_begun(&self) -> u64 {
        self.groups.iter().map(|group| group.disable_gate.begun()).sum()
    }

    /// Waits until no metaslab of the class is disabled; none is while what is returned lives.
    pub(super) fn keep_enabled(&self) -> Vec<KeptOut<'_>> {
        self.groups.iter().map(|group| group.disable_gate.keep_out()).collect()
    }

    /// Shares out turns (`metaslab_class_balance`): by the number of disks, by size, and by the fraction that is free,
    /// so that all vdevs fill up at the same time.
    pub(super) fn balance(&self) {
        let count = self.groups.len().max(1) as u128;
        let sum = |f: fn(&Group) -> u64| self.groups.iter().map(|g| u128::from(f(g))).sum::<u128>();
        let free = |g: &Group| g.space().saturating_sub(g.allocated());
        let (disks, space, all_free) = (sum(Group::width), sum(Group::space), sum(free));
        let base = u128::from(tunables::ALIQUOT.get()) * disks / count;
        for group in &self.groups {
            let (own, own_free) = (u128::from(group.space()), u128::from(free(group)));
            // base * (own / mean space) * (own free fraction / free fraction) reduces to this.
            let share = if space == 0 || all_free == 0 || own == 0 {
                base
            } else if !tunables::BIAS_ENABLED.is_on() {
                base * count * own / space
            } else {
                base * count * own_free / all_free
            };
            group.aliquot.store(u64::try_from(share).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }
}
