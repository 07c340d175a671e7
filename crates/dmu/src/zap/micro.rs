//! An open micro ZAP (`mzap_open`, `mze_find`): its entries, sorted by hash.
//!
//! One that is being changed comes with an index of its own, see [`PendingMicro`].

use super::cursor::Position;
use super::{Wanted, ZapEntry};
use crate::{Object, Result};
use cenote_format::abd::Abd;
use cenote_format::encode::zap::micro::MicroIndex;
use cenote_format::invariant::broken;
use cenote_format::zap::hash::hash_name;
use cenote_format::zap::micro::Micro;
use cenote_format::zap::norm::normalize;
use cenote_format::{ByteOrder, Bytes};
use cenote_store::Block;
use std::sync::Arc;

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
    /// Decodes the block of a micro ZAP (`mzap_open`).
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
        size_of::<MicroZap>() + self.names.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    fn name(&self, entry: &Entry) -> &[u8] {
        let at = entry.name_at as usize;
        let end = at + entry.name_len as usize;
        self.names.get(at..end).unwrap_or_else(|| {
            broken(format_args!("a name at {at}-{end} of {} bytes of names", self.names.len()))
        })
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

    /// The entry that is wanted (`mze_find`).
    pub(crate) fn find(&self, hash: u64, wanted: &Wanted<'_>) -> Option<ZapEntry> {
        let same_hash = self.from(Position { hash, cd: 0 }).take_while(|e| e.at.hash == hash);
        let mut matching = same_hash.filter(|e| wanted.is(self.name(e)));
        matching.next().map(|e| self.show(e))
    }

    pub(crate) fn entries_from(&self, position: Position, max: usize) -> Vec<ZapEntry> {
        self.from(position).take(max).map(|e| self.show(e)).collect()
    }
}

/// A micro ZAP with pending changes: the block as it is now, and the index that is kept by the thread that
/// changes it.
#[derive(Debug)]
pub(crate) struct PendingMicro {
    pub(crate) salt: u64,
    pub(crate) norm_flags: u64,
    block: Abd,
    index: Arc<MicroIndex>,
}

impl PendingMicro {
    pub(crate) fn open(
        object: &Object,
        block: &Block,
        index: Arc<MicroIndex>,
    ) -> Result<PendingMicro> {
        let data = block.data.bytes();
        let micro = Micro::decode(Bytes::new(&data, block.order, "micro ZAP"))
            .map_err(|e| object.tree().decode_error(e))?;
        let (salt, norm_flags) = (micro.salt, micro.norm_flags);
        Ok(PendingMicro { salt, norm_flags, block: block.data.clone(), index })
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// The entries from `position` on that `wanted` says, up to `max`; ends where it says `None`.
    fn select(
        &self,
        position: Position,
        max: usize,
        wanted: impl Fn(u32, &[u8]) -> Option<bool>,
    ) -> cenote_format::Result<Vec<ZapEntry>> {
        let data = self.block.bytes();
        let micro = Micro::decode(Bytes::new(&data, ByteOrder::Little, "micro ZAP"))?;
        let mut out = Vec::new();
        for (hash, cd, slot) in self.index.entries_from(upper(position.hash), position.cd) {
            let Some(entry) = micro.entry(slot as usize)? else { continue };
            if out.len() >= max {
                break;
            }
            match wanted(hash, entry.name) {
                None => break,
                Some(false) => {}
                Some(true) => {
                    let at = Position { hash: u64::from(hash) << 32, cd };
                    out.push(ZapEntry {
                        name: entry.name.to_vec(),
                        int_size: 8,
                        value: vec![entry.value],
                        cursor: at.pack_next(0),
                    });
                }
            }
        }
        Ok(out)
    }

    pub(crate) fn find(
        &self,
        hash: u64,
        wanted: &Wanted<'_>,
    ) -> cenote_format::Result<Option<ZapEntry>> {
        let same = |h: u32, name: &[u8]| (h == upper(hash)).then(|| wanted.is(name));
        Ok(self.select(Position { hash, cd: 0 }, 1, same)?.pop())
    }

    pub(crate) fn entries_from(
        &self,
        position: Position,
        max: usize,
    ) -> cenote_format::Result<Vec<ZapEntry>> {
        self.select(position, max, |_, _| Some(true))
    }
}

/// The half of a hash that is kept.
fn upper(hash: u64) -> u32 {
    (hash >> 32) as u32
}
