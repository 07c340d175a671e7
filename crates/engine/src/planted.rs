//! Faults planted in what a pool has in memory, for tests: each is to be found before an uberblock leads to it. And moments of
//! commands at which a test does something else. With the feature `planted`. `cargo build` never turns it on; `cargo test --workspace` does, in the programs that tests start as well.

use crate::dedup::Group;
use crate::features::count_feature;
use crate::space_write::Evacuation;
use crate::{Engine, Shared, SyncContext};
use cenote_dmu::write::{OpenObjectSet, Synced, WriteError};
use cenote_dsl::write::{DslWriteError, Result};
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::checksum::Checksum;
use cenote_format::compress::Compression;
use cenote_format::nvlist::NvValue;
use cenote_pool::config;
use cenote_pool::indirect::Segment;
use cenote_store::alloc::Request;
use cenote_store::write::dedup::{Name, Placed, Tables, Wish};
use parking_lot::Mutex;
use std::collections::HashMap;

/// What is wrong from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A scrub is to look at groups that are not written yet.
    ScanBeyond,
    /// A metaslab's changes go to its own map twice in a group.
    FlushedTwice,
    /// A piece of a vdev that is removed is mapped twice.
    MappedTwice,
    /// The space map that a checkpoint has of a vdev goes, and is not there.
    NoCheckpointMap,
    /// Space that a checkpoint keeps is in no space map.
    KeptLost,
    /// The deduplication tables begin a group once more.
    GroupAgain,
    /// A block loses one reference more than a table counts.
    ReferencesBelowZero,
    /// A table counts a reference that no pointer has.
    ReferenceTooMany,
    /// An entry is in no log of its table any more, and not in the table.
    LogEntryLost,
    /// A leaf has another guid in the config than in the tree.
    OtherLeaf,
    /// A dataset kills its blocks of a group once more than it wrote them: in the second group from now on.
    KilledTwice,
    /// A dataset is given a block that was born in another group: in the second group from now on.
    BornElsewhere,
}

/// A fault of the group after the next one that writes something of a dataset, and that next one.
#[derive(Debug, Default)]
pub(crate) struct Later(Mutex<Option<(Fault, Option<u64>)>>);

impl Later {
    /// Spoils what was written of a dataset.
    pub fn spoil(&self, synced: &mut Synced) {
        let mut planted = self.0.lock();
        let (Some((fault, next)), Some(bp)) = (&mut *planted, synced.born.first()) else { return };
        if *next.get_or_insert(bp.birth()) == bp.birth() {
            return;
        }
        match fault {
            Fault::KilledTwice => (0..2).for_each(|_| synced.killed.extend(&synced.born)),
            _ => synced.born.iter_mut().take(1).for_each(|bp| bp.0[10] -= 1),
        }
        *planted = None;
    }
}

/// Moments of a command between which other threads go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moment {
    /// Leaves are in use again, and the config on disk says still that they are not.
    Restored,
    /// Logs have left a log vdev, whose last device is to go, and others may be written meanwhile.
    LogsEnded,
    /// Logs have left a log vdev, no group is written, and its last device is in use still.
    LogEmptied,
    /// Pieces of a vdev that is being removed are read, and not copied yet.
    ReadToBeMoved,
    /// A round of a scan has its view of the pool, and nothing of that is walked.
    RoundBegun,
    /// A round of a scan has found blocks, and looked at none.
    RoundFound,
    /// A round of a scan is about to ask whether a block that it followed by its pointer alone stays as it is.
    RoundDoubts,
    /// A round of a scan has looked at what it found, and nothing of that is on disk.
    RoundWalked,
}

/// What is done at a moment.
type Then = Box<dyn FnOnce() + Send>;

/// What is done at moments of commands, once each.
#[derive(Default)]
pub(crate) struct Stops(Mutex<HashMap<Moment, Then>>);

impl Engine {
    /// Has the command that comes to this moment next do something else first.
    pub fn stop_at(&self, moment: Moment, then: impl FnOnce() + Send + 'static) {
        self.shared.stops.0.lock().insert(moment, Box::new(then));
    }
}

impl Shared {
    /// A command has come to this moment.
    pub(crate) fn reach(&self, moment: Moment) {
        let then = self.stops.0.lock().remove(&moment);
        then.into_iter().for_each(|then| then());
    }
}

impl SyncContext<'_> {
    /// Plants a fault.
    ///
    /// # Errors
    /// What it takes cannot be made.
    pub fn plant(&mut self, fault: Fault) -> Result<()> {
        let txg = self.tx.txg;
        match fault {
            Fault::ScanBeyond => self.set_up(1, (0, txg + 2)),
            Fault::FlushedTwice => {
                self.maps.plant_flush((0, 0));
                self.maps.plant_flush((0, 0));
                Ok(())
            }
            Fault::MappedTwice => self.map_twice(),
            Fault::NoCheckpointMap => {
                self.maps.plant_discarded(0);
                Ok(())
            }
            Fault::KeptLost => self.lose_kept(),
            Fault::GroupAgain => {
                let base = self.tx.mos.synced().clone();
                self.disk.dedup.begin(Group { txg, base, over_quota: false, fast: false });
                Ok(())
            }
            Fault::ReferencesBelowZero => self.release_twice(),
            Fault::ReferenceTooMany => {
                self.place_one()?;
                self.disk.dedup.plant_reference();
                Ok(())
            }
            Fault::LogEntryLost => match self.disk.dedup.plant_lost_entry() {
                true => Ok(()),
                false => Err(DslWriteError::NotFound),
            },
            Fault::OtherLeaf => {
                let mut root = self.config.vdev_tree.clone();
                let mut one = true;
                config::for_each_leaf_mut(&mut root, &mut |leaf| {
                    if std::mem::take(&mut one) {
                        leaf.set("guid", NvValue::Uint64(config::number(leaf, "guid") ^ 1));
                    }
                });
                let tree = self.disk.tree().clone();
                self.replace_tree(tree, root)
            }
            Fault::KilledTwice | Fault::BornElsewhere => {
                let datasets = self.datasets.ok_or(DslWriteError::NotFound)?;
                *datasets.planted.0.lock() = Some((fault, None));
                Ok(())
            }
        }
    }

    fn map_twice(&mut self) -> Result<()> {
        let (txg, outside) = (self.tx.txg, &self.disk.outside);
        let mut count = |mos: &mut OpenObjectSet, guid: &str, delta: i64| {
            count_feature(mos, txg, outside, guid, delta)
        };
        let zap = self.maps.top_zap(0);
        let mut evacuation = Evacuation::begin(self.tx.mos, (0, zap), &mut count)?;
        let piece = Segment { source: 4096, size: 4096, vdev: 1, offset: 8192 };
        for _ in 0..2 {
            let more = evacuation.write(self.tx.mos, txg, vec![piece])?;
            evacuation.grow(more);
        }
        Ok(())
    }

    fn lose_kept(&mut self) -> Result<()> {
        let (txg, allocator) = (self.tx.txg, &self.disk.allocator);
        let checkpoint = allocator.checkpoint().ok_or(DslWriteError::NotFound)?;
        let is_kept = |bp: &BlockPointer| bp.dva(0).is_some() && bp.physical_birth() <= checkpoint;
        let at = self.tx.frees.iter().position(is_kept).ok_or(DslWriteError::NotFound)?;
        let bp = self.tx.frees.remove(at);
        for dva in bp.dvas() {
            let freed = allocator.free_born(txg, &dva, bp.physical_birth());
            freed.map_err(|e| DslWriteError::Invalid(e.to_string()))?;
        }
        drop(allocator.take_kept(txg));
        Ok(())
    }

    /// A new block, of which the tables count one reference.
    fn place_one(&mut self) -> Result<BlockPointer> {
        let (txg, disk) = (self.tx.txg, self.disk);
        let (sum, lsize, psize) = ([7; 4], 4096, 4096);
        let (checksum, compression) = (Checksum::Sha256, Compression::Off);
        let name = Name { checksum, sum, lsize, psize, compression, encrypted: false };
        disk.dedup.load(&[name]);
        let mut allocate = |copies: usize, _: usize| {
            let (class, among) = (cenote_store::alloc::Class::Normal, None);
            let (allocator, gang, near) = (0, false, None);
            let request = Request { psize, copies, class, allocator, gang, near, among };
            let (_, dvas) = disk.allocator.allocate(txg, &request)?;
            Ok(Some(dvas))
        };
        let wish = Wish { name, copies: 1, params: None, compared: None };
        let placed = disk.dedup.place(txg, &wish, &mut allocate);
        let placed = placed.map_err(|e| WriteError::Sink(Box::new(e)))?;
        let Placed::At(place) = placed else { return Err(DslWriteError::NotFound) };
        Ok(pointer(&name, txg, place.dvas.first().ok_or(DslWriteError::NotFound)?))
    }

    fn release_twice(&mut self) -> Result<()> {
        let bp = self.place_one()?;
        // The second reference is that of no block.
        drop(self.disk.dedup.release(vec![bp, bp]));
        Ok(())
    }
}

/// A pointer to a block of a table.
fn pointer(name: &Name, txg: u64, dva: &Dva) -> BlockPointer {
    let sectors = |bytes: u64| (bytes >> 9) - 1;
    let mut bp = BlockPointer::HOLE;
    bp.0[0] = u64::from(dva.vdev) << 32 | dva.asize >> 9;
    bp.0[1] = dva.offset >> 9;
    bp.0[6] = sectors(name.lsize)
        | sectors(name.psize) << 16
        | (name.compression as u64) << 32
        | u64::from(name.checksum as u8) << 40
        | 1 << 62
        | 1 << 63;
    (bp.0[10], bp.0[11]) = (txg, 1);
    bp.0[12..].copy_from_slice(&name.sum);
    bp
}
