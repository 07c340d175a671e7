//! The second level of the ARC: blocks on cache devices (L2ARC).
//!
//! # Idea
//!
//! What the ARC will evict soon is written to cache devices, which are faster than the pool; what the ARC does not have is looked
//! for there before the pool is read. Nothing depends on it: what is there is in the pool as well, and a device that fails,
//! hangs or has wrong bytes costs a read of the pool and no more.
//!
//! Blocks lie on a cache device as they lie in the pool, compressed and encrypted as they are there. The ARC keeps them so:
//! nothing is packed again, and nothing that was decrypted comes here. What is read is checked against the checksum of the pointer
//! that asks for it, and a block of an encrypted dataset against its MAC, as any copy is. Blocks whose pointers have no checksum
//! (`checksum=off`) take no part: neither are they written, nor is anything read for them.
//!
//! # Structures
//!
//! | module | holds |
//! |---|---|
//! | `index` | which blocks are where, in memory |
//! | `space` | a device as a ring: the hand, what it gives up, log blocks |
//! | `rebuild` | the index from what log blocks of an earlier import say |
//! | `feed` | a thread for each device, which writes what the ARC will evict |
//! | `device` | a cache device of a pool, and whether it is in use |
//! | `figures` | what is counted |
//!
//! The format is [`cenote_format::l2arc`], that of OpenZFS, so that each of the two finds what the other left.
//!
//! # Invariants
//!
//! 1. A block is known by its first DVA and its physical birth. Only blocks of groups that are on disk are written, and only
//!    entries of such groups are restored: so no two blocks have ever had one name.
//! 2. A block that was freed is in the index no more, once its group is on disk. What a log block says of it later is found by no pointer.
//! 3. A place is in the index only from when its bytes are written until the hand comes near.
//! 4. No block is found at two places.
//! 5. No thread waits for a cache device longer than [`PATIENCE`], but for the device's own.
//! 6. What is wrong with this state switches the second level off, and leaves the pool alone.
//!
//! Locks: the lists of the ARC, then the index; devices are asked with neither.

mod device;
mod feed;
mod figures;
mod index;
mod rebuild;
mod space;
#[cfg(test)]
mod tests;

use crate::arc::{Access, ArcCache, Key};
use crate::pipeline::Store;
use crate::tunables::{L2ARC_META_PERCENT, L2ARC_NOPREFETCH, L2ARC_NORW};
use crate::verify::has_checksum;
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::invariant::caught;
use cenote_format::nvlist::NvList;
use cenote_vdev::{Device, Priority, VdevState};
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

pub use device::CacheFigures;
pub use figures::{L2Counts, L2Figures, gone};
pub use index::Sums;

use device::{CacheDev, STOPPING};
use figures::Figures;
use index::Index;

/// How long a reader waits for a cache device before it reads the pool.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// Opens a device. It may take long.
pub type OpenCache = Box<dyn Fn() -> Option<Arc<dyn Device>> + Send>;

/// How a pool is imported, as far as its cache devices are concerned.
#[derive(Clone, Copy, Debug)]
pub struct Imported {
    /// They may be written to.
    pub writable: bool,
    /// The last group that is on disk; the first time that in which the pool was opened.
    pub group: u64,
}

/// What the index has of the ARC's budget.
#[derive(Default)]
struct Charged {
    bytes: u64,
    /// The pool is gone: it is nothing from now on.
    over: bool,
}

/// The cache devices of a pool, and what is on them.
#[derive(Default)]
pub struct L2arc {
    index: Index,
    devices: RwLock<Vec<Arc<CacheDev>>>,
    /// Whether there is one: readers of other pools look no further.
    any: AtomicBool,
    numbers: AtomicU32,
    /// Held while it is settled which devices are used.
    settling: Mutex<()>,
    figures: Figures,
    charged: Mutex<Charged>,
    /// Its state was found to be wrong.
    off: AtomicBool,
    /// The pool is exported. It is set, and looked at, with `devices` held.
    closed: AtomicBool,
    /// The last group that was on disk when the pool was opened, and devices of which it is known what an earlier import left there.
    opened_in: OnceLock<u64>,
    known: Mutex<HashSet<u64>>,
}

/// Nobody else settles meanwhile which devices are used.
pub struct Alone<'a>(#[allow(dead_code)] MutexGuard<'a, ()>);

impl L2arc {
    pub(crate) fn is_on(&self) -> bool {
        self.any.load(Relaxed) && !self.off.load(Relaxed)
    }

    /// Does something. What is found wrong switches this off.
    fn guarded<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let done = caught(work);
        if let Err(why) = &done {
            tracing::error!("cache devices are not used any more: {why}");
            self.off.store(true, Relaxed);
            let devices = self.devices.read().clone();
            devices.iter().for_each(|device| device.call());
        }
        done.ok()
    }

    fn by_guid(&self, guid: u64) -> Option<Arc<CacheDev>> {
        self.devices.read().iter().find(|device| device.guid == guid).cloned()
    }

    /// Keeps others from settling at the same time which devices are used.
    pub fn alone(&self) -> Alone<'_> {
        Alone(self.settling.lock())
    }

    /// What an import left on a device was of this group or an earlier one, where `now` is the last one that is on disk. What this import has written itself
    /// may be of later ones.
    fn last_group(&self, guid: u64, now: u64) -> u64 {
        let opened_in = *self.opened_in.get_or_init(|| now);
        if self.known.lock().contains(&guid) { now } else { opened_in }
    }

    /// It is known what an earlier import left on a device.
    fn is_known(&self, guid: u64) {
        self.known.lock().insert(guid);
    }

    /// The guids of the devices.
    pub fn guids(&self) -> Vec<u64> {
        self.devices.read().iter().map(|device| device.guid).collect()
    }

    /// What is known of the cache device with this guid, if it is used.
    pub fn of(&self, guid: u64) -> Option<CacheFigures> {
        let device = self.by_guid(guid)?;
        let blocks = self.index.bytes_on(device.number);
        Some(device.figures(blocks))
    }

    /// Figures of all devices.
    pub fn figures(&self) -> L2Figures {
        self.figures.now(&self.index)
    }

    /// Whether a block is on a cache device.
    pub fn contains(&self, bp: &BlockPointer) -> bool {
        Key::of(bp).is_some_and(|key| self.index.contains(&key))
    }

    /// A block is not to be found any more.
    pub(crate) fn forget(&self, key: &Key) {
        if self.is_on() {
            self.guarded(|| self.index.remove(key));
        }
    }

    /// The same of many.
    pub(crate) fn forget_all(&self, keys: impl Iterator<Item = Key>) {
        if self.is_on() {
            self.guarded(|| self.index.remove_all(keys));
        }
    }

    /// Stops to use the device with this guid; what is on it stays there.
    fn detach(&self, guid: u64) {
        let device = {
            let mut devices = self.devices.write();
            let at = devices.iter().position(|device| device.guid == guid);
            let device = at.map(|at| devices.remove(at));
            self.any.store(!devices.is_empty(), Relaxed);
            device
        };
        if let Some(device) = device {
            device.stop(Instant::now() + STOPPING);
            self.drop_blocks(&device);
        }
    }

    /// Stops to use all of them, as when a pool is exported: none is used from now on.
    pub fn close(&self) {
        let devices = {
            let mut devices = self.devices.write();
            self.closed.store(true, Relaxed);
            self.any.store(false, Relaxed);
            std::mem::take(&mut *devices)
        };
        let until = Instant::now() + STOPPING;
        devices.iter().for_each(|device| device.tell_to_stop());
        devices.iter().for_each(|device| device.stop(until));
        devices.iter().for_each(|device| self.drop_blocks(device));
        self.figures.goes();
    }

    /// The pool goes.
    pub(crate) fn leave(&self, arc: &ArcCache) {
        self.close();
        self.charged.lock().over = true;
        self.charge(arc);
    }

    /// Whether the index may grow (`l2arc_hdr_limit_reached`).
    fn has_room(&self, arc: &ArcCache) -> bool {
        let most = u128::from(arc.budget()) * u128::from(L2ARC_META_PERCENT.get()) / 100;
        u128::from(self.figures().hdr_size) <= most
    }

    /// Has the ARC's budget have what the index takes.
    fn charge(&self, arc: &ArcCache) {
        self.guarded(|| {
            let mut charged = self.charged.lock();
            let now = if charged.over { 0 } else { self.figures().hdr_size };
            if now != charged.bytes {
                arc.l2_takes(charged.bytes, now);
                charged.bytes = now;
            }
        });
    }

    fn drop_blocks(&self, device: &CacheDev) {
        self.guarded(|| {
            self.index.remove_device(device.number);
            device.forget_logs(&self.figures);
        });
        if self.off.load(Relaxed) {
            // Nothing of it is looked at any more.
            self.index.clear();
        }
    }

    /// Blocks that readers want, as far as they are on cache devices and right. `is_right` checks them against their pointers.
    /// `ahead`: they are read ahead.
    pub(crate) fn read(
        &self,
        wanted: &[(&BlockPointer, Key)],
        ahead: Option<Access>,
        is_right: &dyn Fn(&BlockPointer, &Abd) -> bool,
    ) -> Vec<Option<Abd>> {
        let is_asked = self.is_on() && (ahead.is_none() || L2ARC_NOPREFETCH.get() == 0);
        let found = is_asked.then(|| self.guarded(|| self.look_for(wanted, ahead, is_right)));
        found.flatten().unwrap_or_else(|| wanted.iter().map(|_| None).collect())
    }

    fn look_for(
        &self,
        wanted: &[(&BlockPointer, Key)],
        ahead: Option<Access>,
        is_right: &dyn Fn(&BlockPointer, &Abd) -> bool,
    ) -> Vec<Option<Abd>> {
        let mut found: Vec<Option<Abd>> = wanted.iter().map(|_| None).collect();
        // Without a checksum nothing tells what was read, whatever log blocks say.
        let place_of = |(bp, key): &(&BlockPointer, Key)| match has_checksum(bp) {
            true => self.index.find(bp, key),
            false => None,
        };
        let places: Vec<_> = wanted.iter().map(place_of).collect();
        if places.iter().all(Option::is_none) {
            self.figures.misses.add(found.len() as u64);
            return found;
        }
        let devices = self.devices.read().clone();
        for device in devices {
            let here = |place: &Option<index::Place>| match place {
                Some(place) if place.device == device.number => Some((place.at, place.asize)),
                _ => None,
            };
            let mine: Vec<usize> =
                (0..wanted.len()).filter(|i| here(&places[*i]).is_some()).collect();
            if mine.is_empty() || !device.is_asked() {
                continue;
            }
            if device.is_writing() {
                if L2ARC_NORW.get() != 0 {
                    continue;
                }
                self.figures.rw_clash.add(mine.len() as u64);
            }
            let reads = mine.iter().filter_map(|i| here(&places[*i]));
            let reads: Vec<_> = reads.map(|(at, asize)| (at, asize as usize)).collect();
            let priority = ahead.map_or_else(Priority::of_reads, |_| Priority::AsyncRead);
            for (i, read) in mine.into_iter().zip(device.read(priority, &reads)) {
                let (bp, key) = wanted[i];
                let Some(place) = places[i] else { continue };
                found[i] = match read {
                    Ok(data) => self.checked(&device, (bp, key, place), &data, is_right),
                    Err(e) => {
                        tracing::debug!(guid = device.guid, at = place.at, "cache device: {e}");
                        self.figures.io_error.add(1);
                        None
                    }
                };
            }
        }
        let hits = found.iter().filter(|block| block.is_some()).count() as u64;
        self.figures.hits.add(hits);
        self.figures.misses.add(found.len() as u64 - hits);
        found
    }

    /// The block of what was read for it (`l2arc_read_done`).
    fn checked(
        &self,
        device: &CacheDev,
        (bp, key, place): (&BlockPointer, Key, index::Place),
        data: &Abd,
        is_right: &dyn Fn(&BlockPointer, &Abd) -> bool,
    ) -> Option<Abd> {
        self.figures.read_bytes.add(u64::from(place.asize));
        let block = data.slice(0, bp.psize() as usize).filter(|block| is_right(bp, block));
        // What was given up meanwhile may be overwritten. No checksum has to tell.
        if block.is_some() && self.index.find(bp, &key) == Some(place) {
            return block;
        }
        if block.is_none() && self.index.remove_if(&key, &place) {
            self.figures.cksum_bad.add(1);
            device.mismatch(&place);
        } else {
            self.figures.evict_reading.add(1);
        }
        None
    }
}

impl Store {
    /// The cache devices of the pool.
    pub fn l2arc(&self) -> &Arc<L2arc> {
        &self.l2arc
    }

    /// Uses a cache device from now on (`l2arc_add_vdev`): another thread opens it, finds out what is on it from before, and
    /// writes to it, if the pool is written to. `config` is as the pool's list has it.
    pub fn attach_cache(self: &Arc<Self>, config: &NvList, open: OpenCache, how: Imported) {
        let guid = config.u64("guid").unwrap_or(0);
        let device = {
            let mut devices = self.l2arc.devices.write();
            // As the pool was exported meanwhile.
            if self.l2arc.closed.load(Relaxed) {
                return;
            }
            if devices.iter().any(|device| device.guid == guid) {
                return;
            }
            let number = self.l2arc.numbers.fetch_add(1, Relaxed);
            let device = Arc::new(CacheDev::new(number, guid, config.clone()));
            devices.push(device.clone());
            self.l2arc.any.store(true, Relaxed);
            device
        };
        let how = Imported { group: self.l2arc.last_group(guid, how.group), ..how };
        feed::start(self, device, open, how);
    }

    /// Stops to use the cache device with this guid (`l2arc_remove_vdev`); what is on it stays there.
    pub fn detach_cache(&self, guid: u64) {
        self.l2arc.detach(guid);
        self.l2arc.charge(self.arc());
    }

    /// The state of a cache device that is in use, or has failed.
    pub fn cache_state(&self, guid: u64) -> Option<VdevState> {
        self.l2arc.by_guid(guid)?.state()
    }
}

/// The store, while it is there.
type OfStore = Weak<Store>;
