//! An open micro ZAP: its entries, sorted by hash.

use super::cursor::Position;
use super::{Wanted, ZapEntry};
use crate::{Object, Result};
use cenote_format::Bytes;
use cenote_format::zap::hash::hash_name;
use cenote_format::zap::micro::Micro;
use cenote_format::zap::norm::normalize;
use cenote_store::Block;

/// A decoded micro ZAP. Names lie in one string of bytes.
#[derive(Debug)]
pub(crate) struct MicroZap {
    pub(crate) salt: u64,
    pub(crate) norm_flags: u64,
    names: Vec<u8>,
    /// Sorted by (hash, cd).
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    at: Position,
    value: u64,
    name_at: u32,
    name_len: u32,
}

impl MicroZap {
    pub(crate) fn open(object: &Object, block: &Block) -> Result<MicroZap> {
        let data = block.data.bytes();
        Self::decode(&Bytes::new(&data, block.order, "micro ZAP"))
            .map_err(|e| object.tree().decode_error(e))
    }

    fn decode(bytes: &Bytes<'_>) -> cenote_format::Result<MicroZap> {
        let micro = Micro::decode(*bytes)?;
        let (salt, norm_flags) = (micro.salt, micro.norm_flags);
        let (mut names, mut entries) = (Vec::new(), Vec::new());
        for entry in micro.entries() {
            let (_, entry) = entry?;
            let hash = hash_name(salt, 0, &normalize(entry.name, norm_flags));
            let (name_at, name_len) = (names.len() as u32, entry.name.len() as u32);
            names.extend_from_slice(entry.name);
            let at = Position { hash, cd: entry.cd };
            entries.push(Entry { at, value: entry.value, name_at, name_len });
        }
        names.shrink_to_fit();
        entries.shrink_to_fit();
        entries.sort_by_key(|e| e.at);
        Ok(MicroZap { salt, norm_flags, names, entries })
    }

    /// Bytes of memory taken.
    pub(crate) fn memory(&self) -> usize {
        size_of::<MicroZap>() + self.names.len() + self.entries.len() * size_of::<Entry>()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    fn name(&self, entry: &Entry) -> &[u8] {
        let at = entry.name_at as usize;
        self.names.get(at..at.saturating_add(entry.name_len as usize)).unwrap_or_default()
    }

    fn show(&self, entry: &Entry) -> ZapEntry {
        ZapEntry {
            name: self.name(entry).to_vec(),
            int_size: 8,
            value: vec![entry.value],
            cursor: entry.at.pack_next(0),
        }
    }

    fn from(&self, position: Position) -> impl Iterator<Item = &Entry> {
        let first = self.entries.partition_point(|e| e.at < position);
        self.entries.iter().skip(first)
    }

    pub(crate) fn find(&self, hash: u64, wanted: &Wanted<'_>) -> Option<ZapEntry> {
        let same_hash = self.from(Position { hash, cd: 0 }).take_while(|e| e.at.hash == hash);
        let mut matching = same_hash.filter(|e| wanted.is(self.name(e)));
        matching.next().map(|e| self.show(e))
    }

    pub(crate) fn entries_from(&self, position: Position, max: usize) -> Vec<ZapEntry> {
        self.from(position).take(max).map(|e| self.show(e)).collect()
    }
}
