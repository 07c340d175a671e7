//! Space map objects (`space_map_iterate`): reading the log of allocations and frees out of the MOS.
//!
//! A [`SpaceMap`] is an object of the MOS whose entries ([`cenote_format::spacemap`]) describe the
//! region `start..start + size` of one top-level vdev in units of `1 << shift` bytes, or, for log
//! space maps, of all of them. [`SpaceMap::for_each`] replays it in order as byte ranges.
//!
//! Invariants: every range handed out lies inside the region; a map longer than its region can
//! explain (see [`Region::max_length`]) or than the devices can hold is refused before it is read,
//! so that the time a replay takes is bounded.

use cenote_dmu::{Error, Object, ObjectSet, Result};
use cenote_dsl::bounds;
use cenote_format::Bytes;
use cenote_format::spacemap::{Change, Entries, Entry, SpaceMapPhys, unit_bytes};
use cenote_store::Block;
use cenote_vdev::patience;
use std::sync::Arc;
use std::thread::{Builder, ScopedJoinHandle};

/// `work` for another thread, which waits for devices as long as this one does.
fn handed_on<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let waits = patience::of_thread().is_none();
    move || if waits { work() } else { patience::impatiently(work) }
}

/// Bytes of a map that are read at once.
const BATCH: u64 = 4 << 20;
/// Bytes of entries that are believed however small a pool or a region is. A bound past all numbers bounds nothing.
const ALWAYS_BELIEVED: u64 = 64 << 20;

/// Bytes of entries that a pool has room for.
pub fn max_length(mos: &ObjectSet) -> u64 {
    bounds::device_bytes(mos).saturating_add(ALWAYS_BELIEVED)
}

/// The region that a space map describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First byte, in the top-level vdev's allocatable space.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// log2 of the bytes of a unit.
    pub shift: u32,
    /// Bytes of entries that are believed.
    pub max_length: u64,
}

impl Region {
    /// A region of one vdev. OpenZFS condenses a map long before it has as many bytes of entries
    /// as the region has bytes of space; regions too small for that rule have the constant.
    pub fn new(start: u64, size: u64, shift: u32) -> Region {
        Region { start, size, shift, max_length: size.saturating_add(ALWAYS_BELIEVED) }
    }

    /// The region of a log space map: every offset of every vdev, in units of sectors.
    /// `pool_size` is the size of the pool's devices in bytes.
    pub fn of_log(pool_size: u64) -> Region {
        let max_length = pool_size.saturating_add(ALWAYS_BELIEVED);
        Region { start: 0, size: u64::MAX, shift: cenote_format::SECTOR_SHIFT, max_length }
    }
}

/// A range of space that changed hands, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceChange {
    /// Allocated or freed.
    pub change: Change,
    /// Top-level vdev, where the entry names one.
    pub vdev: Option<u32>,
    /// First byte in the vdev.
    pub start: u64,
    /// End in the vdev.
    pub end: u64,
}

/// An open space map.
#[derive(Clone)]
pub struct SpaceMap {
    object: Object,
    phys: SpaceMapPhys,
    region: Region,
}

impl SpaceMap {
    /// Opens object `number` of the MOS and reads its header.
    pub fn open(mos: &Arc<ObjectSet>, number: u64, region: Region) -> Result<SpaceMap> {
        let object = mos.object(number)?;
        let phys = SpaceMapPhys::decode(&object.bonus()).map_err(|source| Error::Decode {
            objset: mos.id(),
            object: number,
            source,
        })?;
        Ok(SpaceMap { object, phys, region })
    }

    /// The header.
    pub fn phys(&self) -> &SpaceMapPhys {
        &self.phys
    }

    /// Number of the object.
    pub fn number(&self) -> u64 {
        self.object.number()
    }

    /// The region that the map describes.
    pub fn region(&self) -> &Region {
        &self.region
    }

    fn corrupt(&self, why: String) -> Error {
        let objset = self.object.objset().id();
        Error::Corrupt { objset, object: self.number(), why: format!("space map: {why}") }
    }

    /// Calls `f` with every entry, debug entries and padding included, in order. Blocks are read in
    /// batches, one while the one before is gone through.
    pub fn for_each_entry(
        &self,
        f: &mut (impl FnMut(&Entry) -> Result<()> + ?Sized),
    ) -> Result<()> {
        let block_size = self.object.dnode().block_size.max(8);
        let length = self.phys.length;
        if length > self.region.max_length.min(max_length(self.object.objset())) {
            return Err(self.corrupt(format!("length {length:#x}")));
        }
        let (blocks, batch) = (length.div_ceil(block_size), (BATCH / block_size).max(1));
        let read = |first: u64| self.object.blocks(first, batch.min(blocks - first));
        let mut first = 0;
        let mut now = if blocks > 0 { read(0)? } else { Vec::new() };
        while first < blocks {
            let next = first + batch;
            let after = std::thread::scope(|scope| {
                let ahead = (next < blocks).then(|| {
                    let thread = Builder::new().name("space-map".into());
                    thread.spawn_scoped(scope, handed_on(|| read(next)))
                });
                for (expected, (blkid, block)) in (first..next.min(blocks)).zip(&now) {
                    let len = (length - expected * block_size).min(block_size);
                    match *blkid == expected {
                        true => self.entries_of(block, len as usize, f)?,
                        false => return Err(self.hole(expected)),
                    }
                }
                match ahead.map(|thread| thread.map(ScopedJoinHandle::join)) {
                    None => Ok(Vec::new()),
                    Some(Ok(Ok(read))) => read,
                    Some(Ok(Err(_))) => Err(self.corrupt("the reader panicked".into())),
                    // There is no other thread.
                    Some(Err(_)) => read(next),
                }
            });
            let count = next.min(blocks) - first;
            if (now.len() as u64) < count {
                return Err(self.hole(first + now.len() as u64));
            }
            (now, first) = (after?, next);
        }
        Ok(())
    }

    fn hole(&self, blkid: u64) -> Error {
        self.corrupt(format!("block {blkid} is a hole"))
    }

    /// Calls `f` with the entries in the first `len` bytes of a block.
    fn entries_of(
        &self,
        block: &Block,
        len: usize,
        f: &mut (impl FnMut(&Entry) -> Result<()> + ?Sized),
    ) -> Result<()> {
        let data = block.data.bytes();
        for entry in Entries::new(Bytes::new(&data, block.order, "space map block"), len) {
            let entry = entry.map_err(|source| Error::Decode {
                objset: self.object.objset().id(),
                object: self.number(),
                source,
            })?;
            f(&entry)?;
        }
        Ok(())
    }

    /// The range that `entry` describes, in bytes; `None` for debug entries. An error if it leaves
    /// the region.
    pub fn range(&self, entry: &Entry) -> Result<Option<SpaceChange>> {
        let Entry::Range { change, vdev, offset, run } = *entry else { return Ok(None) };
        let r = &self.region;
        let bytes = |units| unit_bytes(units, r.shift).ok();
        let range = bytes(offset).zip(bytes(run)).and_then(|(offset, len)| {
            let end = offset.checked_add(len).filter(|end| *end <= r.size)?;
            Some((r.start.checked_add(offset)?, r.start.checked_add(end)?))
        });
        match range {
            Some((start, end)) => Ok(Some(SpaceChange { change, vdev, start, end })),
            None => Err(self.corrupt(format!("{entry:?} leaves the region"))),
        }
    }

    /// Calls `f` with every range, in order.
    pub fn for_each(&self, f: &mut (impl FnMut(SpaceChange) -> Result<()> + ?Sized)) -> Result<()> {
        self.for_each_entry(&mut |entry| match self.range(entry)? {
            Some(change) => f(change),
            None => Ok(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reader_is_as_patient_as_its_caller() {
        let ahead = || {
            let patience = handed_on(patience::of_thread);
            std::thread::spawn(patience).join().unwrap()
        };
        assert_eq!(ahead(), None);
        assert_eq!(patience::impatiently(ahead), patience::impatiently(patience::of_thread));
        assert!(patience::impatiently(ahead).is_some());
    }
}
