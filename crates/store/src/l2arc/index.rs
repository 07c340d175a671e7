//! Which blocks are where: in memory, and nowhere else.
//!
//! Tables have the place of each block by its [`Key`], and sums over their entries; a hash of the key says which table has it. An
//! entry comes when its block is about to be written, and is found from when that is done. It goes when the block is freed, when its
//! place is given up, with its device, or when what lies there was found wrong. A table that more than half of its entries have
//! left becomes smaller, so that what is forgotten takes no memory.
//!
//! Invariant: the sums are what the entries add up to. What a table is held for is a few thousand entries, a look at all of its own, or a move of
//! them as it grows or becomes smaller.

use crate::arc::Key;
use ahash::RandomState;
use cenote_format::blkptr::BlockPointer;
use cenote_format::l2arc::{Props, State};
use cenote_format::less;
use parking_lot::RwLock;
use std::collections::{BTreeMap, HashMap};

/// Bytes of memory that an entry takes: at most, whatever share of its table is empty.
pub(super) const ENTRY: u64 = 168;
/// Bytes of memory that it takes to know in which order blocks lie on a device, for each: at most, whatever share of the queue is empty.
pub(super) const SLOT: u64 = 64;

/// Entries that are taken out while a table is held.
const AT_ONCE: usize = 4096;
/// Tables. 64 of them have some 125,000 entries each where 8 million blocks are known.
const TABLES: usize = 64;
/// A table of fewer entries stays as it is.
const SMALL: usize = 64;

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Number of the device.
    pub device: u32,
    /// Bytes that it takes there.
    pub asize: u32,
    /// First of them.
    pub at: u64,
    /// What the block is.
    pub props: Props,
}

/// Sums of what is on cache devices, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Blocks.
    pub blocks: u64,
    /// Unpacked (`l2_size`).
    pub lsize: u64,
    /// As they lie there, in whole sectors (`l2_asize`).
    pub asize: u64,
    /// Of these: from the recent list (`l2_mru_asize`).
    pub mru: u64,
    /// From the frequent list (`l2_mfu_asize`).
    pub mfu: u64,
    /// Read ahead, and not wanted by a reader before (`l2_prefetch_asize`).
    pub ahead: u64,
    /// Metadata (`l2_bufc_metadata_asize`).
    pub metadata: u64,
}

impl Sums {
    fn parts(&mut self, place: &Place) -> [(&mut u64, u64); 7] {
        let (p, asize) = (place.props, u64::from(place.asize));
        let when = |is: bool| if is { asize } else { 0 };
        let (mru, mfu) = (p.state() == State::Mru as u64, p.state() == State::Mfu as u64);
        [
            (&mut self.blocks, 1),
            (&mut self.lsize, p.lsize()),
            (&mut self.asize, asize),
            (&mut self.mru, when(mru && !p.is_ahead())),
            (&mut self.mfu, when(mfu && !p.is_ahead())),
            (&mut self.ahead, when(p.is_ahead())),
            (&mut self.metadata, when(p.is_metadata())),
        ]
    }

    fn add(&mut self, place: &Place) {
        self.parts(place).into_iter().for_each(|(sum, part)| *sum += part);
    }

    fn take(&mut self, place: &Place) {
        for (sum, part) in self.parts(place) {
            *sum = less!(*sum, part, "L2ARC: sums of what cache devices have");
        }
    }
}

#[derive(Default)]
struct Table {
    /// Places, and whether they are written.
    places: HashMap<Key, (Place, bool), RandomState>,
    sums: Sums,
    on: BTreeMap<u32, u64>,
}

impl Table {
    fn put(&mut self, key: Key, place: Place, written: bool) -> bool {
        if self.places.contains_key(&key) {
            return false;
        }
        self.places.insert(key, (place, written));
        self.sums.add(&place);
        *self.on.entry(place.device).or_default() += u64::from(place.asize);
        true
    }

    fn remove(&mut self, key: &Key) -> bool {
        let Some((place, _)) = self.places.remove(key) else { return false };
        self.sums.take(&place);
        let on = self.on.entry(place.device).or_default();
        *on = less!(*on, u64::from(place.asize), "L2ARC: bytes on a device");
        if self.places.capacity() > SMALL && self.places.len() * 9 / 4 < self.places.capacity() {
            self.places.shrink_to(self.places.len());
        }
        true
    }

    fn has(&self, key: &Key, place: &Place) -> bool {
        self.places.get(key).is_some_and(|(found, _)| found == place)
    }
}

/// See the [module](self).
pub(super) struct Index {
    tables: [RwLock<Table>; TABLES],
    hasher: RandomState,
}

impl Default for Index {
    fn default() -> Index {
        Index { tables: std::array::from_fn(|_| RwLock::default()), hasher: RandomState::new() }
    }
}

impl Index {
    fn table(&self, key: &Key) -> &RwLock<Table> {
        &self.tables[self.hasher.hash_one(key) as usize % TABLES]
    }

    /// Where the block that `bp` names is.
    pub fn find(&self, bp: &BlockPointer, key: &Key) -> Option<Place> {
        let (place, written) = self.table(key).read().places.get(key).copied()?;
        let fits = place.props.psize() == bp.psize() && place.props.lsize() == bp.lsize();
        (written && fits).then_some(place)
    }

    pub fn contains(&self, key: &Key) -> bool {
        self.table(key).read().places.contains_key(key)
    }

    /// A block is going to be written; or is there, if it is `written`. Whether there was none of that name.
    pub fn put(&self, key: Key, place: Place, written: bool) -> bool {
        self.table(&key).write().put(key, place, written)
    }

    /// These blocks are written now, as far as they were not freed meanwhile.
    pub fn are_written<'k>(&self, keys: impl Iterator<Item = &'k (Key, Place)>) {
        for (key, place) in keys {
            if let Some((found, written)) = self.table(key).write().places.get_mut(key)
                && found == place
            {
                *written = true;
            }
        }
    }

    pub fn remove(&self, key: &Key) -> bool {
        // Most blocks that are freed are not here.
        self.contains(key) && self.table(key).write().remove(key)
    }

    pub fn remove_all(&self, keys: impl Iterator<Item = Key>) {
        for key in keys {
            self.remove(&key);
        }
    }

    /// Takes the block out if it is there.
    pub fn remove_if(&self, key: &Key, place: &Place) -> bool {
        let mut table = self.table(key).write();
        table.has(key, place) && table.remove(key)
    }

    /// Blocks of a device at these places are given up. How many were in use.
    pub fn give_up(&self, device: u32, slots: &[(u64, Key)]) -> u64 {
        let of_device = |place: &Place, at: u64| place.device == device && place.at == at;
        let mut given_up = 0;
        for (at, key) in slots {
            let mut table = self.table(key).write();
            let found = table.places.get(key).is_some_and(|(place, _)| of_device(place, *at));
            given_up += u64::from(found && table.remove(key));
        }
        given_up
    }

    /// Takes out all blocks of a device.
    pub fn remove_device(&self, device: u32) {
        for table in &self.tables {
            let of_device = |(_, (place, _)): &(&Key, &(Place, bool))| place.device == device;
            let all = table.read();
            let keys: Vec<Key> = all.places.iter().filter(of_device).map(|(key, _)| *key).collect();
            drop(all);
            for piece in keys.chunks(AT_ONCE) {
                let mut table = table.write();
                for key in piece {
                    if table.places.get(key).is_some_and(|(place, _)| place.device == device) {
                        table.remove(key);
                    }
                }
            }
        }
    }

    /// Nothing is known any more.
    pub fn clear(&self) {
        self.tables.iter().for_each(|table| *table.write() = Table::default());
    }

    /// Bytes of blocks on a device.
    pub fn bytes_on(&self, device: u32) -> u64 {
        let on = |table: &RwLock<Table>| table.read().on.get(&device).copied().unwrap_or(0);
        self.tables.iter().map(on).sum()
    }

    pub fn sums(&self) -> Sums {
        let mut all = Sums::default();
        for table in &self.tables {
            let Sums { blocks, lsize, asize, mru, mfu, ahead, metadata } = table.read().sums;
            all.blocks += blocks;
            all.lsize += lsize;
            all.asize += asize;
            all.mru += mru;
            all.mfu += mfu;
            all.ahead += ahead;
            all.metadata += metadata;
        }
        all
    }

    /// Bytes of memory that the tables take.
    #[cfg(test)]
    pub fn memory(&self) -> u64 {
        let of = |table: &RwLock<Table>| table.read().places.capacity() as u64 * 8 / 7;
        let entry = size_of::<(Key, (Place, bool))>() as u64 + 1;
        self.tables.iter().map(of).sum::<u64>() * entry
    }

    /// Where a block is that is written.
    #[cfg(test)]
    pub fn place(&self, key: &Key) -> Option<Place> {
        let (place, written) = self.table(key).read().places.get(key).copied()?;
        written.then_some(place)
    }

    /// Has the sums be wrong, for tests.
    #[cfg(test)]
    pub fn spoil(&self) {
        self.tables.iter().for_each(|table| table.write().sums = Sums::default());
    }

    /// All sums counted anew, for tests.
    #[cfg(test)]
    pub fn check(&self) {
        for table in &self.tables {
            let table = table.read();
            let mut sums = Sums::default();
            table.places.values().for_each(|(place, _)| sums.add(place));
            assert_eq!(sums, table.sums);
            assert_eq!(table.on.values().sum::<u64>(), sums.asize);
        }
    }
}
