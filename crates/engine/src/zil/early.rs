//! Blocks that are written for good before their transaction group is (`dmu_sync`).
//!
//! A record of a large write points to the block that has the data, instead of holding the data
//! (`WR_INDIRECT`). The block is written where the group's sync would write it, allocated in the open group, as
//! the properties of the dataset have it. The sync then finds it here and uses its pointer, if the block is
//! still what was written: data is written once. If it was changed meanwhile the sync writes it again, and what
//! is here is freed in the group in which it was allocated.
//!
//! Memory tells whether a block is still the same: a change copies a block that is also held elsewhere, and
//! the blocks that were written early are held here.
//!
//! A block that is what is on disk already is not written (`dr_nopwrite`), and its record has the data. The record cannot point to
//! what is there: no claim of the log would hold that, and a record before it in the log may free it in the replay.
//!
//! # Invariants
//!
//! - A block is written early only if the open group is going to write it: the caller holds that group open,
//!   and the block is dirty in it.
//! - Each pointer to a block that was written is either used by the sync of its group, or freed by it.
//! - Each pointer that is returned was allocated in the open group: a claim of the log takes its block, and keeps it through the replay.
//! - No pointer that is returned is a hole or embedded. It may be one of a gang block.

use crate::policy::{Abilities, Policy};
use cenote_dmu::live::{LiveObjectSet, OpenBlock};
use cenote_dmu::write::NewBlock;
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::invariant;
use cenote_store::Bookmark;
use cenote_store::write::Dedup;
use cenote_store::write::{WriteProps, WriteRequest, Writer};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};

/// A block that was written.
struct Written {
    /// What was written.
    data: Abd,
    bp: BlockPointer,
}

/// What was written early in a group.
#[derive(Default)]
struct Group {
    /// By object and number.
    blocks: HashMap<(u64, u64), Written>,
    /// Blocks that nothing is going to refer to.
    stale: Vec<BlockPointer>,
}

/// What is on disk in the place of a block that is to be written early: the block of `object` with byte `offset`, which may be
/// read from a device. `None`: it cannot be told, or is not asked for.
///
/// A group that is not on disk may have another one. That does no harm, for the pointer only tells where the data goes: into the
/// record, or into a block. Whether the block is what was there is for the sync to say.
pub(super) fn beneath(
    live: &LiveObjectSet,
    policy: &Policy,
    at: (u64, u64),
) -> Option<BlockPointer> {
    let base = live.base();
    let look = || {
        let found = base.object(at.0)?;
        found.block_pointer(0, at.1 / found.dnode().block_size.max(1))
    };
    policy.finds_same().then(|| live.retry(look))?.ok()
}

/// How blocks of a dataset are written.
#[derive(Clone, Copy)]
pub(super) struct How<'a> {
    pub writer: &'a Writer,
    pub policy: &'a Policy,
    pub abilities: Abilities,
}

/// What was written early of a dataset, by groups that are not on disk.
#[derive(Default)]
pub(crate) struct Early(Mutex<BTreeMap<u64, Group>>);

impl Early {
    /// Writes the block of `object` with byte `offset`, which the open group `txg` is going to write. `None`: it
    /// is not, cannot be written, or is on disk already; the data belongs in the record.
    pub(super) fn write(
        &self,
        how: How<'_>,
        live: &LiveObjectSet,
        txg: u64,
        ((object, offset), beneath): ((u64, u64), Option<BlockPointer>),
    ) -> Option<BlockPointer> {
        let OpenBlock { data, blkid, kind, checksum, compress, key: protection } =
            live.open_block(object, offset)?;
        if how.writer.allocator().has_growing() {
            return None;
        }
        let key = (object, blkid);
        let is_same = |written: &&Written| written.data.is_same(&data);
        let found = |group: &Group| group.blocks.get(&key).filter(is_same).map(|w| w.bp);
        if let Some(bp) = self.0.lock().get(&txg).and_then(found) {
            return Some(bp);
        }
        let at = Bookmark { objset: live.id(), object, level: 0, blkid };
        let previous = beneath.unwrap_or(BlockPointer::HOLE);
        let (level, fill, forced) = (0, 1, previous.is_hole());
        let payload = data.clone().into();
        let block = NewBlock {
            data: payload,
            at,
            kind,
            level,
            checksum,
            compress,
            fill,
            previous,
            forced,
            keeps_birth: false,
            key: protection,
            raw: false,
        };
        let props = how.policy.props(&block, how.abilities);
        let request = WriteRequest {
            props: WriteProps { embed: false, dedup: Dedup::Off, ..props },
            data: block.data,
            at,
            previous,
            pass: 1,
        };
        let bp = how.writer.write_many(txg, &[request]).pop()?.ok()?;
        if bp.is_hole() || bp == previous {
            return None;
        }
        let birth = bp.birth();
        invariant!(
            birth == txg && !bp.is_embedded(),
            "object {object} block {blkid}: written early in group {txg}, and born in {birth}"
        );
        let mut groups = self.0.lock();
        let group = groups.entry(txg).or_default();
        let old = group.blocks.insert(key, Written { data, bp });
        group.stale.extend(old.map(|old| old.bp));
        Some(bp)
    }

    /// The pointer to a block that group `txg` is to write, if it was written early and is still the same.
    pub fn take(&self, txg: u64, block: &NewBlock) -> Option<BlockPointer> {
        if block.level != 0 {
            return None;
        }
        let mut groups = self.0.lock();
        let group = groups.get_mut(&txg)?;
        let written = group.blocks.remove(&(block.at.object, block.at.blkid))?;
        if block.data.plain().is_some_and(|data| written.data.is_same(data)) {
            return Some(written.bp);
        }
        group.stale.push(written.bp);
        None
    }

    /// What was written early for group `txg` and is not used by it (`dbuf_unoverride`).
    pub fn left(&self, txg: u64) -> Vec<BlockPointer> {
        let group = self.0.lock().remove(&txg).unwrap_or_default();
        let unused = group.blocks.into_values().map(|written| written.bp);
        group.stale.into_iter().chain(unused).collect()
    }
}
