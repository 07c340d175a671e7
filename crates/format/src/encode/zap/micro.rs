//! Micro ZAP (`mzap_phys_t`): one block of fixed entries.
//!
//! A new entry takes any free slot; slots are not moved. Entries of equal hash have different
//! collision differentiators, a new one the smallest that is free, so that (hash, differentiator)
//! stays the directory cookie of an entry for as long as it lives. Finding entries by scanning the
//! block would cost its whole length each time, so an index ([`MicroIndex`]) is built once and
//! kept in memory as long as the block is.
//!
//! Invariant: the index names exactly the slots of the block that are in use.

use std::collections::BTreeMap;
use std::ops::Range;

use super::super::{EncodeError, Result, put};
use super::leaf;
use crate::zap::micro::{ENTRY_SIZE, Micro, NAME_SIZE};
use crate::zap::{BLOCK_MICRO, hash, norm};
use crate::{ByteOrder, Bytes, DecodeError, SECTOR, invariant, less};

const WHAT: &str = "micro ZAP";
/// Largest block without the feature `large_microzap`: 128 KiB.
pub const MAX_SIZE: usize = 128 << 10;
/// Largest block with it: 1 MiB (`MZAP_MAX_SIZE`).
pub const MAX_LARGE_SIZE: usize = 1 << 20;
/// Chunks that an entry may take in a leaf, when the ZAP becomes a fat one.
const LEAF_CHUNKS: usize = 5;

/// Makes `block` an empty micro ZAP. OpenZFS's salts are odd, from addresses; any will do.
/// Errors: a block of no whole number of sectors, impossible normalization flags.
pub fn format(block: &mut [u8], salt: u64, norm_flags: u64) -> Result<()> {
    if block.is_empty()
        || !block.len().is_multiple_of(SECTOR as usize)
        || block.len() > MAX_LARGE_SIZE
    {
        let why = format!("block of {} bytes", block.len());
        return Err(EncodeError::unrepresentable(WHAT, why));
    }
    if !norm::flags_valid(norm_flags) {
        return Err(EncodeError::unrepresentable(WHAT, format!("normalization {norm_flags:#x}")));
    }
    block.fill(0);
    put(block, 0, &super::super::words(&[BLOCK_MICRO, salt, norm_flags], 24), WHAT)
}

/// Whether a micro ZAP can hold this key and value.
pub fn fits(key: &super::Key<'_>, value: &super::Value<'_>) -> bool {
    let name_fits = match key {
        super::Key::Name(name) => !name.is_empty() && name.len() < NAME_SIZE && !name.contains(&0),
        super::Key::Words(_) => false,
    };
    name_fits && matches!(value, super::Value::U64([_]))
}

/// Bytes that a full block of `len` bytes grows to, if `max` allows; else the ZAP becomes fat.
pub fn grown(len: usize, max: usize) -> Option<usize> {
    len.checked_add(SECTOR as usize).filter(|len| *len <= max.min(MAX_LARGE_SIZE))
}

/// An entry that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Where the index has it.
    at: (u32, u32),
    slot: u32,
    /// Its value.
    pub value: u64,
}

impl Found {
    /// Its bytes in the block.
    pub fn place(&self) -> Range<usize> {
        entry_place(self.slot)
    }
}

/// Where the entries of a micro ZAP are, by (upper half of the hash, collision differentiator).
#[derive(Debug, Clone)]
pub struct MicroIndex {
    salt: u64,
    norm_flags: u64,
    entries: BTreeMap<(u32, u32), u32>,
    slots: u32,
    /// The slot from which a free one is sought: the one that was freed last, or the one after that
    /// which was taken last, so that a block that grows is not searched from its start.
    next: u32,
}

impl MicroIndex {
    /// The index of a little-endian block. Errors: not a micro ZAP, two entries of the same hash
    /// and differentiator.
    pub fn load(block: &[u8]) -> Result<MicroIndex> {
        let micro = Micro::decode(Bytes::new(block, ByteOrder::Little, WHAT))?;
        let mut index = MicroIndex {
            salt: micro.salt,
            norm_flags: micro.norm_flags,
            entries: BTreeMap::new(),
            slots: u32::try_from(micro.slots()).unwrap_or(u32::MAX),
            next: 0,
        };
        for entry in micro.entries() {
            let (slot, entry) = entry?;
            let at = (index.hash(entry.name), entry.cd);
            if index.entries.insert(at, slot as u32).is_some() {
                let why = format!("two entries with hash {:#x}, cd {}", at.0, at.1);
                return Err(DecodeError::invalid(WHAT, why).into());
            }
        }
        Ok(index)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether every slot is in use.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.slots as usize
    }

    /// Takes note that the block has grown to `len` bytes (the new ones are zeros).
    pub fn resize(&mut self, len: usize) {
        let slots = u32::try_from(less!(len / ENTRY_SIZE, 1, "entries of {len} bytes of {WHAT}"));
        invariant!(slots.is_ok(), "a {WHAT} of {len} bytes");
        self.slots = slots.map_or(self.slots, |slots| self.slots.max(slots));
    }

    /// The upper half of the hash; the lower one is not kept.
    fn hash(&self, name: &[u8]) -> u32 {
        (hash::hash_name(self.salt, 0, &norm::normalize(name, self.norm_flags)) >> 32) as u32
    }

    fn same_hash(&self, hash: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.entries.range((hash, 0)..=(hash, u32::MAX)).map(|((_, cd), slot)| (*cd, *slot))
    }

    /// The entries from a place in their order on: upper half of the hash, collision
    /// differentiator, slot.
    pub fn entries_from(&self, hash: u32, cd: u32) -> impl Iterator<Item = (u32, u32, u32)> + '_ {
        self.entries.range((hash, cd)..).map(|((hash, cd), slot)| (*hash, *cd, *slot))
    }

    /// The entry called exactly `name`.
    pub fn find(&self, block: &[u8], name: &[u8]) -> Result<Option<Found>> {
        self.find_by(block, name, |stored| stored == name)
    }

    /// The first entry whose normalized name is that of `name`.
    pub fn find_normalized(&self, block: &[u8], name: &[u8]) -> Result<Option<Found>> {
        let wanted = norm::normalize(name, self.norm_flags);
        self.find_by(block, name, |stored| norm::normalize(stored, self.norm_flags) == wanted)
    }

    fn find_by(
        &self,
        block: &[u8],
        name: &[u8],
        matches: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<Found>> {
        let micro = Micro::decode(Bytes::new(block, ByteOrder::Little, WHAT))?;
        let hash = self.hash(name);
        for (cd, slot) in self.same_hash(hash) {
            if let Some(entry) = micro.entry(slot as usize)?.filter(|e| matches(e.name)) {
                return Ok(Some(Found { at: (hash, cd), slot, value: entry.value }));
            }
        }
        Ok(None)
    }

    /// Adds an entry, whose name must not be there yet; returns its slot.
    ///
    /// Errors: [`EncodeError::Full`] if there is no free slot (the block may [grow](grown)), or if
    /// so many entries share the hash that a leaf of a fat ZAP could not hold them: then the ZAP
    /// must become fat first. A name that does not [fit](fits), or not when it is
    /// [normalized](norm::fits).
    pub fn insert(&mut self, block: &mut [u8], name: &[u8], value: u64) -> Result<u32> {
        let entry_fits = fits(&super::Key::Name(name), &super::Value::U64(&[value]));
        if !entry_fits || self.norm_flags != 0 && !norm::fits(name, self.norm_flags) {
            let why = format!("name of {} bytes", name.len());
            return Err(EncodeError::unrepresentable(WHAT, why));
        }
        let hash = self.hash(name);
        // Differentiators come in ascending order: the first gap is where they leave the count.
        let (mut same, mut cd) = (0usize, 0);
        for (taken, _) in self.same_hash(hash) {
            same += 1;
            cd += u32::from(taken == cd);
        }
        let leaf_chunks = leaf::chunk_count(1 << super::FAT_BLOCK_SHIFT);
        if self.is_full() || leaf_chunks <= (same + 1) * LEAF_CHUNKS {
            return Err(EncodeError::Full { what: WHAT });
        }
        let slot = self.free_slot(block)?;
        let mut entry = [0; ENTRY_SIZE];
        entry[..8].copy_from_slice(&value.to_le_bytes());
        entry[8..12].copy_from_slice(&cd.to_le_bytes());
        entry[ENTRY_SIZE - NAME_SIZE..][..name.len()].copy_from_slice(name);
        put(block, entry_at(slot), &entry, WHAT)?;
        self.entries.insert((hash, cd), slot);
        self.next = slot + 1;
        Ok(slot)
    }

    /// A free slot.
    fn free_slot(&self, block: &[u8]) -> Result<u32> {
        let micro = Micro::decode(Bytes::new(block, ByteOrder::Little, WHAT))?;
        let next = self.next.min(self.slots);
        for slot in (next..self.slots).chain(0..next) {
            if micro.entry(slot as usize)?.is_none() {
                return Ok(slot);
            }
        }
        Err(DecodeError::invalid(WHAT, "more entries than the index knows").into())
    }

    /// Gives an entry, which was found in this block, a new value.
    pub fn set(&self, block: &mut [u8], found: &Found, value: u64) -> Result<()> {
        self.check(found)?;
        put(block, entry_at(found.slot), &value.to_le_bytes(), WHAT)
    }

    /// Removes an entry, which was found in this block.
    pub fn remove(&mut self, block: &mut [u8], found: &Found) -> Result<()> {
        self.check(found)?;
        self.entries.remove(&found.at);
        self.next = found.slot;
        put(block, entry_at(found.slot), &[0; ENTRY_SIZE], WHAT)
    }

    /// Whether an entry is still there.
    fn check(&self, found: &Found) -> Result<()> {
        if self.entries.get(&found.at) == Some(&found.slot) {
            return Ok(());
        }
        Err(DecodeError::invalid(WHAT, format!("slot {} is free", found.slot)).into())
    }
}

/// The bytes of an entry in the block.
pub fn entry_place(slot: u32) -> Range<usize> {
    let at = entry_at(slot);
    at..at + ENTRY_SIZE
}

fn entry_at(slot: u32) -> usize {
    (slot as usize + 1) * ENTRY_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn contents(block: &[u8]) -> BTreeMap<Vec<u8>, u64> {
        let micro = Micro::decode(Bytes::new(block, ByteOrder::Little, "t")).unwrap();
        micro.entries().map(|e| e.unwrap().1).map(|e| (e.name.to_vec(), e.value)).collect()
    }

    proptest! {
        #[test]
        fn a_micro_zap_is_a_map(
            ops in proptest::collection::vec((0u8..60, any::<u64>(), 0u8..4), 1..300),
            salt: u64, upper: bool,
        ) {
            let flags = if upper { norm::TO_UPPER } else { 0 };
            let mut block = vec![0xaa; 1024];
            format(&mut block, salt, flags).unwrap();
            let mut index = MicroIndex::load(&block).unwrap();
            let mut model: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
            for (n, value, op) in ops {
                let name = format!("{}{}", if n % 2 == 0 { "name" } else { "NAME" }, n / 2);
                let name = name.into_bytes();
                let found = index.find(&block, &name).unwrap();
                prop_assert_eq!(found.map(|found| found.value), model.get(&name).copied());
                match (op, &found) {
                    (0, Some(found)) => {
                        index.remove(&mut block, found).unwrap();
                        model.remove(&name);
                    }
                    (0, None) => {}
                    (_, Some(found)) => {
                        index.set(&mut block, found, value).unwrap();
                        model.insert(name, value);
                    }
                    (_, None) => {
                        if index.is_full() {
                            let full = index.insert(&mut block, &name, value);
                            prop_assert_eq!(full, Err(EncodeError::Full { what: WHAT }));
                            let len = grown(block.len(), MAX_SIZE).unwrap();
                            block.resize(len, 0);
                            index.resize(len);
                        }
                        index.insert(&mut block, &name, value).unwrap();
                        model.insert(name, value);
                    }
                }
                prop_assert_eq!(&contents(&block), &model);
                let again = MicroIndex::load(&block).unwrap();
                prop_assert_eq!(&again.entries, &index.entries);
            }
            for name in model.keys() {
                let other = name.to_ascii_lowercase();
                prop_assert!(index.find_normalized(&block, &other).unwrap().is_some()
                    == (upper || model.contains_key(&other)));
            }
        }

        #[test]
        fn hostile_blocks_are_errors(
            mut block in proptest::collection::vec(any::<u8>(), 512..2048),
            names in proptest::collection::vec("[a-z]{1,3}", 0..20), zeros in 0usize..2048,
        ) {
            block[..8].copy_from_slice(&BLOCK_MICRO.to_le_bytes());
            let from = zeros.clamp(64, block.len());
            block[from..].fill(0);
            let Ok(mut index) = MicroIndex::load(&block) else { return Ok(()) };
            for name in names {
                let _ = index.insert(&mut block, name.as_bytes(), 1);
                if let Ok(Some(found)) = index.find_normalized(&block, name.as_bytes()) {
                    let _ = index.remove(&mut block, &found);
                }
            }
        }
    }

    #[test]
    fn differentiators_fill_gaps() {
        let mut block = vec![0; 1024];
        format(&mut block, 1, norm::TO_UPPER).unwrap();
        let mut index = MicroIndex::load(&block).unwrap();
        for name in ["abc", "Abc", "aBc", "abC"] {
            index.insert(&mut block, name.as_bytes(), 1).unwrap();
        }
        let found = index.find(&block, b"Abc").unwrap().unwrap();
        index.remove(&mut block, &found).unwrap();
        assert!(index.remove(&mut block, &found).is_err());
        assert!(index.set(&mut block, &found, 2).is_err());
        let slot = index.insert(&mut block, b"ABC", 1).unwrap();
        let micro = Micro::decode(Bytes::new(&block, ByteOrder::Little, "t")).unwrap();
        assert_eq!(micro.entry(slot as usize).unwrap().unwrap().cd, 1);
    }

    #[test]
    fn names_that_share_a_hash_must_fit_into_a_leaf() {
        let mut block = vec![0; MAX_SIZE];
        format(&mut block, 1, norm::TO_UPPER).unwrap();
        let mut index = MicroIndex::load(&block).unwrap();
        let name = |n: u32| -> Vec<u8> {
            (0..8).map(|bit| if n >> bit & 1 == 1 { b'A' } else { b'a' }).collect()
        };
        let count = (0..256).take_while(|n| index.insert(&mut block, &name(*n), 1).is_ok()).count();
        assert_eq!(count, 127);
        assert!(!index.is_full());
        assert_eq!(grown(MAX_SIZE, MAX_SIZE), None);
        assert!(format(&mut [0; 100], 1, 0).is_err());
        assert!(index.insert(&mut block, &[b'x'; 50], 1).is_err());
    }
}
