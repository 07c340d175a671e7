//! A whole fat ZAP, driven by the functions that change its blocks and read back by the decoders:
//! random operations against a map, through leaf splits and every stage of the pointer table.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use cenote_format::encode::EncodeError;
use cenote_format::encode::zap::fat::{double_pointers, format, set_pointer};
use cenote_format::encode::zap::leaf::LeafMut;
use cenote_format::encode::zap::{Key, Value};
use cenote_format::zap::fat::FatHeader;
use cenote_format::zap::leaf::Leaf;
use cenote_format::zap::{FLAG_HASH64, hash};
use cenote_format::{ByteOrder, Bytes};
use proptest::prelude::*;

/// The blocks of an object, all in memory.
struct FatZap {
    blocks: Vec<Vec<u8>>,
    header: FatHeader,
}

fn bytes(data: &[u8]) -> Bytes<'_> {
    Bytes::new(data, ByteOrder::Little, "test")
}

impl FatZap {
    fn new(shift: u32, flags: u64) -> FatZap {
        let mut blocks = vec![vec![0; 1 << shift]; 2];
        let header = format(&mut blocks[0], 0x1234_5679, 0, flags).unwrap();
        LeafMut::format(&mut blocks[1], false).unwrap();
        FatZap { blocks, header }
    }

    fn hash(&self, name: &[u8]) -> u64 {
        hash::hash_name(self.header.salt, self.header.flags, name)
    }

    fn leaf_block(&self, hash: u64) -> usize {
        let at = self.header.pointer_at(self.header.index(hash));
        bytes(&self.blocks[at.block as usize]).u64(at.offset).unwrap() as usize
    }

    fn leaf(&mut self, hash: u64) -> LeafMut<'_> {
        let n = self.leaf_block(hash);
        LeafMut::open(&mut self.blocks[n]).unwrap()
    }

    fn reserve(&mut self) {
        let len = self.blocks[0].len();
        self.blocks.resize_with(self.header.free_block as usize, || vec![0; len]);
    }

    fn grow_table(&mut self) -> Result<(), EncodeError> {
        let half = self.blocks[0].len() / 2;
        if self.header.table.blocks == 0 {
            let block = self.header.leave_embedded()? as usize;
            self.reserve();
            let src = self.blocks[0][half..].to_vec();
            return double_pointers(&src, &mut self.blocks[block]);
        }
        let step = self.header.grow_step()?;
        self.reserve();
        let src = self.blocks[step.source as usize].clone();
        for (target, part) in step.targets.into_iter().zip(src.chunks(half)) {
            double_pointers(part, &mut self.blocks[target as usize])?;
        }
        for block in step.freed {
            self.blocks[block as usize].fill(0);
        }
        Ok(())
    }

    fn split(&mut self, hash: u64) -> Result<(), EncodeError> {
        let prefix_len = self.leaf(hash).prefix_len();
        while prefix_len == self.header.table.shift {
            self.grow_table()?;
        }
        let pointers = self.header.split_pointers(hash, prefix_len)?;
        let old = self.leaf_block(hash);
        let new = self.header.allocate_leaf()?;
        self.reserve();
        let mut block = vec![0; self.blocks[0].len()];
        let mut leaf = LeafMut::open(&mut self.blocks[old])?;
        leaf.split(&mut LeafMut::format(&mut block, false)?, false)?;
        self.blocks[new as usize] = block;
        for index in pointers {
            for at in self.header.pointer_writes(index) {
                set_pointer(&mut self.blocks[at.block as usize], at.offset, new)?;
            }
        }
        Ok(())
    }

    /// Adds or replaces, splitting leaves as needed.
    fn update(&mut self, name: &[u8], value: &[u64]) -> Result<(), EncodeError> {
        let (hash, key, value) = (self.hash(name), Key::Name(name), Value::U64(value));
        let mut added = false;
        loop {
            let mut leaf = self.leaf(hash);
            let done = match leaf.find(hash, &key)? {
                Some(entry) => leaf.replace(&entry, &value),
                None => leaf.insert(hash, &key, &value, None).map(|_| added = true),
            };
            match done {
                Err(EncodeError::Full { .. }) => self.split(hash)?,
                other => {
                    other?;
                    break;
                }
            }
        }
        self.header.entries += u64::from(added);
        let leaf = self.leaf(hash);
        let (prefix_len, free) = (leaf.prefix_len(), leaf.free_chunks());
        if self.header.wants_growth(prefix_len, free) && self.header.may_grow() {
            self.grow_table()?;
        }
        Ok(())
    }

    fn remove(&mut self, name: &[u8]) -> bool {
        let hash = self.hash(name);
        let mut leaf = self.leaf(hash);
        let Some(entry) = leaf.find(hash, &Key::Name(name)).unwrap() else { return false };
        leaf.remove(&entry).unwrap();
        self.header.entries -= 1;
        true
    }

    /// What the decoders find, going through the whole pointer table.
    fn contents(&mut self) -> BTreeMap<Vec<u8>, Vec<u64>> {
        self.header.encode(&mut self.blocks[0]).unwrap();
        let header = FatHeader::decode(&bytes(&self.blocks[0])).unwrap();
        let mut out = BTreeMap::new();
        let mut leaves = 0;
        let mut index = 0;
        while index < header.pointers() {
            let pointer = |index| {
                let at = header.pointer_at(index);
                bytes(&self.blocks[at.block as usize]).u64(at.offset).unwrap()
            };
            let block = pointer(index);
            let leaf = Leaf::decode(bytes(&self.blocks[block as usize])).unwrap();
            let start = index << (64 - header.table.shift);
            let range = header.leaf_pointers(start, leaf.prefix_len).unwrap();
            assert_eq!(range.start, index);
            assert!(leaf.covers(start) && range.clone().all(|i| pointer(i) == block));
            index = range.end;
            leaves += 1;
            for e in leaf.entries(header.flags).unwrap() {
                let old = out.insert(leaf.name(&e).unwrap(), leaf.value(&e).unwrap());
                assert!(old.is_none());
            }
        }
        assert_eq!(leaves, header.leafs);
        assert_eq!(out.len() as u64, header.entries);
        out
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_fat_zap_is_a_map(
        ops in proptest::collection::vec((0u16..2000, 0u8..5, 0usize..7, any::<u64>()), 1..400),
        flags in prop_oneof![Just(0), Just(FLAG_HASH64)], shift in 9u32..12,
    ) {
        let mut zap = FatZap::new(shift, flags);
        let mut model = BTreeMap::new();
        for (n, op, len, value) in ops {
            let name = format!("entry number {}", n).into_bytes();
            if op == 0 {
                prop_assert_eq!(zap.remove(&name), model.remove(&name).is_some());
            } else {
                let value = vec![value; len];
                zap.update(&name, &value).unwrap();
                model.insert(name, value);
            }
            prop_assert_eq!(&zap.contents(), &model);
        }
    }
}

#[test]
fn many_entries_through_all_stages_of_the_table() {
    let mut zap = FatZap::new(9, 0);
    let mut model = BTreeMap::new();
    let mut stages = std::collections::BTreeSet::new();
    for n in 0..20_000u64 {
        let name = format!("{n:x}").into_bytes();
        zap.update(&name, &[n]).unwrap();
        model.insert(name, vec![n]);
        stages.insert((zap.header.table.shift, zap.header.is_growing()));
    }
    assert_eq!(zap.contents(), model);
    // Embedded, one block, and several doublings, each of more than one block seen under way.
    assert!(stages.contains(&(5, false)) && stages.contains(&(6, false)));
    assert!((8..12).all(|shift| stages.contains(&(shift, true))), "{stages:?}");
    for n in (0..20_000u64).step_by(3) {
        assert!(zap.remove(format!("{n:x}").as_bytes()));
        model.remove(format!("{n:x}").as_bytes());
    }
    assert_eq!(zap.contents(), model);
    for block in &mut zap.blocks[1..] {
        if let Ok(leaf) = LeafMut::open(block) {
            leaf.check(false).unwrap();
        }
    }
}
