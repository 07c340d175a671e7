//! An open fat ZAP (`fzap_lookup`, `zap_deref_leaf`): the header; pointers and leafs are read as they are needed.
//!
//! Every step is checked: a pointer leads to a block of the object that is a leaf, no more
//! specific than the pointer table, and whose prefix is that of the hash. As a leaf has one prefix,
//! going through all hashes visits a leaf once, and listing takes no longer and no more memory than
//! the leafs that are really there.

use super::cursor::Position;
use super::{Wanted, ZapEntry};
use crate::{Object, Result, tunables};
use cenote_format::Bytes;
use cenote_format::zap::FLAG_UINT64_KEY;
use cenote_format::zap::fat::FatHeader;
use cenote_format::zap::leaf::{Leaf, LeafEntry};
use cenote_store::{Access, Block};
use std::collections::BTreeSet;

/// Bytes that are read ahead when a listing starts.
const PREFETCH: u64 = 8 << 20;

/// A fat ZAP's header block.
#[derive(Debug)]
pub(crate) struct FatZap {
    pub(crate) header: FatHeader,
    /// The header block, which may contain the pointer table.
    block: Block,
}

impl FatZap {
    pub(crate) fn open(object: &Object, block: &Block) -> Result<FatZap> {
        let data = block.data.bytes();
        let header = FatHeader::decode(&Bytes::new(&data, block.order, "fat ZAP header"))
            .map_err(|e| object.tree().decode_error(e))?;
        Ok(FatZap { header, block: block.clone() })
    }

    /// The number of the leaf block that pointer `index` leads to (`zap_table_load`).
    pub(crate) fn pointer(&self, object: &Object, index: u64) -> Result<u64> {
        let at = self.header.pointer_at(index);
        let read = if at.block == 0 { Some(self.block.clone()) } else { object.block(at.block)? };
        let tree = object.tree();
        let Some(block) = read else {
            return Err(tree.corrupt(format!("ZAP pointer table: block {} is a hole", at.block)));
        };
        let mut word = [0u8; 8];
        if block.data.copy_to(at.offset, &mut word).is_none() {
            return Err(tree.corrupt(format!("ZAP pointer table: block {} is short", at.block)));
        }
        let word = Bytes::new(&word, block.order, "ZAP pointer");
        word.u64(0).map_err(|e| tree.decode_error(e))
    }

    /// Reads leaf block `blkid`.
    pub(crate) fn leaf_block(&self, object: &Object, blkid: u64) -> Result<Block> {
        let read = if blkid == 0 { None } else { object.block(blkid)? };
        read.ok_or_else(|| object.tree().corrupt(format!("ZAP without leaf block {blkid}")))
    }

    /// Reads the leaves for these hashes as one batch.
    pub(crate) fn load_leaves(&self, object: &Object, hashes: impl Iterator<Item = u64>) {
        let leaf = |hash| self.pointer(object, self.header.index(hash)).ok();
        let blocks: BTreeSet<u64> = hashes.filter_map(leaf).collect();
        let tree = object.tree();
        let wanted = |blkid: &u64| {
            let bp = object.block_pointer(0, *blkid).ok().filter(|bp| !bp.is_hole())?;
            Some((bp, tree.bookmark(0, *blkid)))
        };
        let wanted: Vec<_> = blocks.iter().filter_map(wanted).collect();
        object.objset().store().load(&wanted, Access::Demand);
    }

    /// Calls `f` with the leaf for `hash`.
    fn with_leaf<T>(
        &self,
        object: &Object,
        hash: u64,
        f: impl FnOnce(&Leaf<'_>) -> cenote_format::Result<T>,
    ) -> Result<T> {
        let blkid = self.pointer(object, self.header.index(hash))?;
        let block = self.leaf_block(object, blkid)?;
        let (data, tree) = (block.data.bytes(), object.tree());
        let leaf = Leaf::decode(Bytes::new(&data, block.order, "ZAP leaf"))
            .map_err(|e| tree.decode_error(e))?;
        if leaf.prefix_len > self.header.table.shift || !leaf.covers(hash) {
            let (prefix, len) = (leaf.prefix, leaf.prefix_len);
            let why = format!(
                "ZAP leaf block {blkid}: prefix {prefix:#x} of {len} bits is not that of {hash:#x}"
            );
            return Err(tree.corrupt(why));
        }
        f(&leaf).map_err(|e| tree.decode_error(e))
    }

    fn key(&self, leaf: &Leaf<'_>, entry: &LeafEntry) -> cenote_format::Result<Vec<u8>> {
        if self.header.flags & FLAG_UINT64_KEY != 0 {
            leaf.word_key(entry)
        } else {
            leaf.name(entry)
        }
    }

    fn show(&self, leaf: &Leaf<'_>, e: &LeafEntry) -> cenote_format::Result<ZapEntry> {
        let position = Position { hash: e.hash, cd: e.cd };
        Ok(ZapEntry {
            name: self.key(leaf, e)?,
            int_size: e.int_size,
            value: leaf.value(e)?,
            cursor: position.pack_next(self.header.flags),
        })
    }

    /// The wanted entry with the lowest collision differentiator (`fzap_lookup`).
    pub(crate) fn find(
        &self,
        object: &Object,
        hash: u64,
        wanted: &Wanted<'_>,
    ) -> Result<Option<ZapEntry>> {
        self.with_leaf(object, hash, |leaf| {
            let mut best: Option<LeafEntry> = None;
            for entry in leaf.find(hash) {
                let entry = entry?;
                if best.is_none_or(|b| entry.cd < b.cd) && wanted.is(&self.key(leaf, &entry)?) {
                    best = Some(entry);
                }
            }
            best.map(|e| self.show(leaf, &e)).transpose()
        })
    }

    pub(crate) fn entries_from(
        &self,
        object: &Object,
        mut position: Position,
        max: usize,
    ) -> Result<Vec<ZapEntry>> {
        let starts = position == (Position { hash: 0, cd: 0 });
        if starts && self.header.free_block > 2 && tunables::ZAP_ITERATE_PREFETCH.is_on() {
            let bytes = self.header.free_block.saturating_mul(1 << self.header.block_shift);
            object.prefetch(0, bytes.min(PREFETCH));
        }
        let mut out = Vec::new();
        while out.len() < max {
            let next = self.with_leaf(object, position.hash, |leaf| {
                let sorted = leaf.entries(self.header.flags)?;
                let here = |e: &&LeafEntry| Position { hash: e.hash, cd: e.cd } >= position;
                for entry in sorted.iter().filter(here).take(max - out.len()) {
                    out.push(self.show(leaf, entry)?);
                }
                Ok(after(leaf))
            })?;
            match next {
                Some(hash) => position = Position { hash, cd: 0 },
                None => break,
            }
        }
        Ok(out)
    }
}

/// The first hash past the hashes of a leaf; `None` after the last leaf.
fn after(leaf: &Leaf<'_>) -> Option<u64> {
    let next = leaf.prefix + 1;
    if leaf.prefix_len == 0 || next.checked_shr(leaf.prefix_len).unwrap_or(0) != 0 {
        return None;
    }
    Some(next << (64 - leaf.prefix_len))
}
