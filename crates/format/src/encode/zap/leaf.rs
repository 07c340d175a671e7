//! Leaf of a fat ZAP (`zap_leaf_phys_t`): entries, their chains, and the free chunks.
//!
//! Chunks that no entry uses are chained through the free list, from which an entry takes one for
//! itself and as many as its name and value need. The chains of the buckets are kept sorted by
//! collision differentiator, which [`FLAG_CD_SORTED`] promises for ZAPs with normalized names; a
//! new entry gets the smallest differentiator that no entry of its hash has. A full leaf is split:
//! its prefix grows by a bit, and the entries whose next bit of the hash is set move to the new
//! leaf.
//!
//! Invariants, which [`LeafMut::check`] verifies: every chunk is free or belongs to exactly one
//! entry; the counts in the header are right; an entry is in the bucket of its hash, and no two
//! have the same hash and differentiator.
//!
//! The block is taken for hostile. Every walk is bounded by the number of chunks, and every chunk
//! has its type checked before it is used; an error other than [`EncodeError::Full`] may leave the
//! block half changed, so it must then be given up.

use super::super::{EncodeError, Result, put};
use super::{Key, Value};
use crate::invariant::broken;
use crate::zap::BLOCK_LEAF;
use crate::zap::leaf::{
    ARRAY_BYTES, CHAIN_END, CHUNK_SIZE, FLAG_CD_SORTED, Leaf, MAGIC, array_chunks,
};
use crate::{ByteOrder, Bytes, DecodeError, MAX_BLOCK};

const WHAT: &str = "ZAP leaf";
pub(super) const CHUNK_FREE: u8 = 253;
pub(super) const CHUNK_ENTRY: u8 = 252;
pub(super) const CHUNK_ARRAY: u8 = 251;
const HEADER_SIZE: usize = 48;
/// Fields of the header.
const PREFIX: usize = 16;
const FREE_CHUNKS: usize = 28;
const ENTRIES: usize = 30;
const PREFIX_LEN: usize = 32;
const FREE_LIST: usize = 34;
/// In array and free chunks: number of the next chunk.
const NEXT: usize = 22;
/// In entry chunks: number of the next entry of the chain.
const ENTRY_NEXT: usize = 2;

/// Byte at which the chunks of a leaf of `len` bytes start.
pub(super) fn chunks_at(len: usize) -> usize {
    HEADER_SIZE + len / 16
}

/// Chunks of a leaf of `len` bytes (a power of two from 512 up); none in fewer than its header takes.
pub fn chunk_count(len: usize) -> usize {
    len.saturating_sub(chunks_at(len)) / CHUNK_SIZE
}

/// Chunks that an entry takes.
pub fn entry_chunks(key: &Key<'_>, value: &Value<'_>) -> usize {
    let name = match key {
        Key::Name(name) => name.len() + 1,
        Key::Words(words) => words.len() * 8,
    };
    1 + array_chunks(name) + array_chunks(value.count() * value.int_size())
}

/// Where an entry is in its leaf; valid until the leaf is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryAt {
    chunk: u16,
    /// Byte of the link that leads to the chunk.
    link: usize,
    /// Collision differentiator.
    pub cd: u32,
}

/// An entry chunk.
#[derive(Debug, Clone, Copy)]
struct Fields {
    int_size: u8,
    next: u16,
    name_chunk: u16,
    name_len: u16,
    value_chunk: u16,
    value_len: u16,
    cd: u32,
    hash: u64,
}

/// A leaf block, to be changed in place.
#[derive(Debug)]
pub struct LeafMut<'a> {
    data: &'a mut [u8],
    bucket_shift: u32,
    chunks: usize,
}

fn damaged<T>(why: impl Into<String>) -> Result<T> {
    Err(DecodeError::invalid(WHAT, why).into())
}

impl<'a> LeafMut<'a> {
    /// Makes `data` an empty leaf for all hashes. `sorted`: whether the ZAP has normalization
    /// flags, so that chains must be sorted by differentiator.
    /// Errors: a block size that is no power of two from 512 bytes up, or too large for 16-bit
    /// chunk numbers (1 MiB has 40959 chunks).
    pub fn format(data: &'a mut [u8], sorted: bool) -> Result<LeafMut<'a>> {
        let len = data.len();
        let chunks = chunk_count(len);
        let sane = len.is_power_of_two() && (512..=MAX_BLOCK as usize).contains(&len);
        if !sane || chunks >= usize::from(CHAIN_END) {
            return Err(EncodeError::unrepresentable(WHAT, format!("block of {len} bytes")));
        }
        data.fill(0);
        put(data, 0, &BLOCK_LEAF.to_le_bytes(), WHAT)?;
        put(data, 24, &MAGIC.to_le_bytes(), WHAT)?;
        put(data, FREE_CHUNKS, &(chunks as u16).to_le_bytes(), WHAT)?;
        put(data, 36, &[if sorted { FLAG_CD_SORTED } else { 0 }], WHAT)?;
        let mut leaf = LeafMut { bucket_shift: len.trailing_zeros() - 5, chunks, data };
        leaf.clear_buckets();
        for n in 0..chunks {
            let at = leaf.at(n as u16)?;
            let next = if n + 1 < chunks { (n + 1) as u16 } else { CHAIN_END };
            leaf.put(at, &[CHUNK_FREE])?;
            leaf.put_u16(at + NEXT, next)?;
        }
        Ok(leaf)
    }

    /// A little-endian leaf that is there. Errors: an impossible header.
    pub fn open(data: &'a mut [u8]) -> Result<LeafMut<'a>> {
        Leaf::decode(Bytes::new(data, ByteOrder::Little, WHAT))?;
        let (len, chunks) = (data.len(), chunk_count(data.len()));
        Ok(LeafMut { data, bucket_shift: len.trailing_zeros() - 5, chunks })
    }

    fn bytes(&self) -> Bytes<'_> {
        Bytes::new(self.data, ByteOrder::Little, WHAT)
    }

    fn u16(&self, at: usize) -> Result<u16> {
        Ok(self.bytes().u16(at)?)
    }

    /// A field of the header, for which a leaf has room.
    fn field(&self, at: usize) -> u16 {
        self.u16(at).unwrap_or_else(|e| broken(format_args!("header of a ZAP leaf: {e}")))
    }

    fn put(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        put(self.data, at, bytes, WHAT)
    }

    fn put_u16(&mut self, at: usize, n: u16) -> Result<()> {
        self.put(at, &n.to_le_bytes())
    }

    /// Adds `delta` to a count of the header, which stays between 0 and the number of chunks.
    fn count(&mut self, at: usize, delta: i32) -> Result<()> {
        let count = i32::from(self.u16(at)?) + delta;
        match u16::try_from(count) {
            Ok(n) if usize::from(n) <= self.chunks => self.put_u16(at, n),
            _ => damaged(format!("count of {count} of {} chunks", self.chunks)),
        }
    }

    /// Free chunks.
    pub fn free_chunks(&self) -> u16 {
        self.field(FREE_CHUNKS)
    }

    /// Number of entries.
    pub fn len(&self) -> u16 {
        self.field(ENTRIES)
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bits of the hash that all entries share.
    pub fn prefix_len(&self) -> u32 {
        self.field(PREFIX_LEN).into()
    }

    /// The smallest hash that belongs here.
    pub fn first_hash(&self) -> u64 {
        let prefix = self.prefix().unwrap_or_else(|e| broken(format_args!("{e}, and was opened")));
        // A leaf for all hashes has a prefix of no bits.
        prefix.checked_shl(64 - self.prefix_len()).unwrap_or(0)
    }

    fn prefix(&self) -> Result<u64> {
        Ok(self.bytes().u64(PREFIX)?)
    }

    fn set_prefix(&mut self, prefix: u64, len: u32) -> Result<()> {
        self.put(PREFIX, &prefix.to_le_bytes())?;
        self.put_u16(PREFIX_LEN, len as u16)
    }

    fn clear_buckets(&mut self) {
        if let Some(buckets) =
            self.data.get_mut(HEADER_SIZE..HEADER_SIZE + (2 << self.bucket_shift))
        {
            buckets.fill(0xff);
        }
    }

    /// Byte at which chunk `chunk` starts.
    fn at(&self, chunk: u16) -> Result<usize> {
        if usize::from(chunk) >= self.chunks {
            return damaged(format!("chunk {chunk} of {}", self.chunks));
        }
        Ok(chunks_at(self.data.len()) + usize::from(chunk) * CHUNK_SIZE)
    }

    /// Byte at which chunk `chunk` starts, if it is of type `kind`.
    fn typed(&self, chunk: u16, kind: u8) -> Result<usize> {
        let at = self.at(chunk)?;
        match self.bytes().u8(at)? {
            k if k == kind => Ok(at),
            k => damaged(format!("chunk {chunk}: type {k} where {kind} should be")),
        }
    }

    /// Byte of the bucket of `hash`.
    fn bucket(&self, hash: u64) -> Result<usize> {
        match 64u32.checked_sub(self.bucket_shift + self.prefix_len()) {
            // A leaf whose prefix is all of the hash but the bucket has a shift of 0.
            Some(shift) => {
                let mask = (1usize << self.bucket_shift) - 1;
                let n = hash.checked_shr(shift).unwrap_or(0) as usize & mask;
                Ok(HEADER_SIZE + n * 2)
            }
            None => damaged(format!("prefix of {} bits", self.prefix_len())),
        }
    }

    fn fields(&self, chunk: u16) -> Result<Fields> {
        let (at, b) = (self.typed(chunk, CHUNK_ENTRY)?, self.bytes());
        Ok(Fields {
            int_size: b.u8(at + 1)?,
            next: b.u16(at + ENTRY_NEXT)?,
            name_chunk: b.u16(at + 4)?,
            name_len: b.u16(at + 6)?,
            value_chunk: b.u16(at + 8)?,
            value_len: b.u16(at + 10)?,
            cd: b.u32(at + 12)?,
            hash: b.u64(at + 16)?,
        })
    }

    /// Calls `visit` with every entry of the bucket of `hash`, its chunk and the byte of the link
    /// to it, until it returns true. Returns the byte of the link where it stopped: that to the
    /// entry, or that which ends the chain.
    fn walk(
        &self,
        hash: u64,
        mut visit: impl FnMut(&Fields, u16, usize) -> Result<bool>,
    ) -> Result<usize> {
        let mut link = self.bucket(hash)?;
        for _ in 0..=self.chunks {
            let chunk = self.u16(link)?;
            if chunk == CHAIN_END {
                return Ok(link);
            }
            let entry = self.fields(chunk)?;
            if visit(&entry, chunk, link)? {
                return Ok(link);
            }
            link = self.at(chunk)? + ENTRY_NEXT;
        }
        damaged("chain without an end")
    }

    /// The array of `len` bytes that starts at `chunk`.
    fn array(&self, mut chunk: u16, len: usize) -> Result<Vec<u8>> {
        if array_chunks(len) > self.chunks {
            return damaged(format!("array of {len} bytes"));
        }
        let mut out = Vec::with_capacity(len);
        while out.len() < len {
            let at = self.typed(chunk, CHUNK_ARRAY)?;
            let take = (len - out.len()).min(ARRAY_BYTES);
            out.extend_from_slice(self.bytes().slice(at + 1, take)?);
            chunk = self.u16(at + NEXT)?;
        }
        Ok(out)
    }

    /// The entry with exactly this key (`zap_leaf_lookup`).
    pub fn find(&self, hash: u64, key: &Key<'_>) -> Result<Option<EntryAt>> {
        let (bytes, count) = (key.bytes(), key.count());
        self.find_entry(hash, |leaf, e| {
            Ok(usize::from(e.name_len) == count && leaf.array(e.name_chunk, bytes.len())? == bytes)
        })
    }

    /// The first entry of this hash (the one with the lowest differentiator, in a ZAP with
    /// normalization flags) whose name `matches`; names come without their NUL.
    pub fn find_by(&self, hash: u64, matches: impl Fn(&[u8]) -> bool) -> Result<Option<EntryAt>> {
        self.find_entry(hash, |leaf, e| {
            let name = leaf.array(e.name_chunk, e.name_len.into())?;
            Ok(name.split_last().is_some_and(|(nul, name)| *nul == 0 && matches(name)))
        })
    }

    fn find_entry(
        &self,
        hash: u64,
        matches: impl Fn(&LeafMut<'_>, &Fields) -> Result<bool>,
    ) -> Result<Option<EntryAt>> {
        let mut found = None;
        self.walk(hash, |entry, chunk, link| {
            let hit = entry.hash == hash && matches(self, entry)?;
            if hit {
                found = Some(EntryAt { chunk, link, cd: entry.cd });
            }
            Ok(hit)
        })?;
        Ok(found)
    }

    /// The smallest differentiator that no entry of `hash` has.
    fn free_cd(&self, hash: u64) -> Result<u32> {
        let mut taken = Vec::new();
        self.walk(hash, |entry, _, _| {
            if entry.hash == hash {
                taken.push(entry.cd);
            }
            Ok(false)
        })?;
        taken.sort_unstable();
        taken.dedup();
        Ok(taken.iter().zip(0u32..).take_while(|(cd, n)| *cd == n).count() as u32)
    }

    /// Adds an entry, whose key must not be there yet (`zap_entry_create`). `hash` is the key's, as the ZAP hashes it. `cd` is
    /// for entries that come from a micro ZAP and keep theirs. Returns the differentiator.
    ///
    /// Errors: [`EncodeError::Full`] if there are not enough free chunks: the leaf must be split.
    /// [`EncodeError::Unrepresentable`] if the entry is larger than an empty leaf, or the hash does
    /// not belong here.
    pub fn insert(
        &mut self,
        hash: u64,
        key: &Key<'_>,
        value: &Value<'_>,
        cd: Option<u32>,
    ) -> Result<u32> {
        value.check()?;
        key.check(super::MAX_LONG_NAME)?;
        let need = entry_chunks(key, value);
        if need > self.chunks {
            return Err(EncodeError::unrepresentable(WHAT, format!("an entry of {need} chunks")));
        }
        if hash.checked_shr(64 - self.prefix_len()).unwrap_or(0) != self.prefix()? {
            return Err(EncodeError::unrepresentable(
                WHAT,
                format!("an entry with hash {hash:#x}"),
            ));
        }
        if usize::from(self.free_chunks()) < need {
            return Err(EncodeError::Full { what: WHAT });
        }
        let cd = match cd {
            Some(cd) => cd,
            None => self.free_cd(hash)?,
        };
        let chunk = self.alloc(CHUNK_ENTRY)?;
        let entry = Fields {
            int_size: value.int_size() as u8,
            next: CHAIN_END,
            name_chunk: self.create_array(&key.bytes())?,
            name_len: key.count() as u16,
            value_chunk: self.create_array(&value.bytes())?,
            value_len: value.count() as u16,
            cd,
            hash,
        };
        self.put_fields(chunk, &entry)?;
        self.link(chunk)?;
        self.count(ENTRIES, 1)?;
        Ok(cd)
    }

    /// Gives an entry a new value, of any size.
    /// Errors: [`EncodeError::Full`] if there are not enough free chunks: the leaf must be split.
    pub fn replace(&mut self, entry: &EntryAt, value: &Value<'_>) -> Result<()> {
        value.check()?;
        let old = self.fields(entry.chunk)?;
        let had = array_chunks(usize::from(old.value_len) * usize::from(old.int_size));
        let need = array_chunks(value.count() * value.int_size());
        if usize::from(self.free_chunks()) + had < need {
            return Err(EncodeError::Full { what: WHAT });
        }
        self.free_array(old.value_chunk)?;
        let new = Fields {
            int_size: value.int_size() as u8,
            value_chunk: self.create_array(&value.bytes())?,
            value_len: value.count() as u16,
            ..old
        };
        self.put_fields(entry.chunk, &new)
    }

    /// Removes an entry.
    pub fn remove(&mut self, entry: &EntryAt) -> Result<()> {
        let old = self.fields(entry.chunk)?;
        if self.u16(entry.link)? != entry.chunk {
            return damaged(format!("chunk {} is not where it was", entry.chunk));
        }
        self.put_u16(entry.link, old.next)?;
        self.free_entry(entry.chunk, &old)?;
        self.count(ENTRIES, -1)
    }

    /// Gives back the chunks of an entry that no chain leads to; last the entry's own, so that the
    /// free list stays in the order in which an entry takes chunks.
    fn free_entry(&mut self, chunk: u16, entry: &Fields) -> Result<()> {
        self.free_array(entry.value_chunk)?;
        self.free_array(entry.name_chunk)?;
        let (at, head) = (self.at(chunk)?, self.u16(FREE_LIST)?);
        self.make_free(at, head)?;
        self.put_u16(FREE_LIST, chunk)
    }

    fn make_free(&mut self, at: usize, next: u16) -> Result<()> {
        let mut bytes = [0; CHUNK_SIZE];
        bytes[0] = CHUNK_FREE;
        bytes[NEXT..].copy_from_slice(&next.to_le_bytes());
        self.put(at, &bytes)?;
        self.count(FREE_CHUNKS, 1)
    }

    /// Puts the chunks of an array at the head of the free list, in their order.
    fn free_array(&mut self, mut chunk: u16) -> Result<()> {
        let head = self.u16(FREE_LIST)?;
        let mut link = FREE_LIST;
        while chunk != CHAIN_END {
            // A cycle ends here: what was visited is free.
            let at = self.typed(chunk, CHUNK_ARRAY)?;
            let next = self.u16(at + NEXT)?;
            self.put_u16(link, chunk)?;
            self.make_free(at, CHAIN_END)?;
            (link, chunk) = (at + NEXT, next);
        }
        self.put_u16(link, head)
    }

    /// Takes the first free chunk and makes it an empty one of type `kind` (`zap_leaf_chunk_alloc`).
    fn alloc(&mut self, kind: u8) -> Result<u16> {
        let chunk = self.u16(FREE_LIST)?;
        let at = self.typed(chunk, CHUNK_FREE)?;
        let next = self.u16(at + NEXT)?;
        self.put_u16(FREE_LIST, next)?;
        self.count(FREE_CHUNKS, -1)?;
        let mut bytes = [0; CHUNK_SIZE];
        bytes[0] = kind;
        self.put(at, &bytes)?;
        Ok(chunk)
    }

    /// Writes `bytes` into new array chunks (`zap_leaf_array_create`); returns the first of them.
    fn create_array(&mut self, bytes: &[u8]) -> Result<u16> {
        let mut first = CHAIN_END;
        let mut link = None;
        for part in bytes.chunks(ARRAY_BYTES) {
            let chunk = self.alloc(CHUNK_ARRAY)?;
            let at = self.at(chunk)?;
            self.put(at + 1, part)?;
            self.put_u16(at + NEXT, CHAIN_END)?;
            match link {
                Some(link) => self.put_u16(link, chunk)?,
                None => first = chunk,
            }
            link = Some(at + NEXT);
        }
        Ok(first)
    }

    fn put_fields(&mut self, chunk: u16, e: &Fields) -> Result<()> {
        let mut bytes = Vec::with_capacity(CHUNK_SIZE);
        bytes.extend([CHUNK_ENTRY, e.int_size]);
        for n in [e.next, e.name_chunk, e.name_len, e.value_chunk, e.value_len] {
            bytes.extend(n.to_le_bytes());
        }
        bytes.extend(e.cd.to_le_bytes());
        bytes.extend(e.hash.to_le_bytes());
        let at = self.at(chunk)?;
        self.put(at, &bytes)
    }

    /// Puts an entry into the chain of its bucket, before the first with a greater differentiator.
    fn link(&mut self, chunk: u16) -> Result<()> {
        let entry = self.fields(chunk)?;
        let link = self.walk(entry.hash, |other, _, _| Ok(other.cd > entry.cd))?;
        let next = self.u16(link)?;
        let at = self.at(chunk)?;
        self.put_u16(at + ENTRY_NEXT, next)?;
        self.put_u16(link, chunk)
    }

    /// Splits a leaf by the next bit of the hash: this one keeps the entries with a 0 there,
    /// `new`, which must be freshly [formatted](LeafMut::format), gets the others. `sorted`:
    /// whether the ZAP has normalization flags.
    ///
    /// Errors: `new` is of another size or not empty; there are no further bits to split by.
    pub fn split(&mut self, new: &mut LeafMut<'_>, sorted: bool) -> Result<()> {
        let len = self.prefix_len() + 1;
        if new.data.len() != self.data.len() || usize::from(new.free_chunks()) != new.chunks {
            return Err(EncodeError::unrepresentable(WHAT, "split into a leaf that is not new"));
        }
        if len + self.bucket_shift > 64 {
            return Err(EncodeError::unrepresentable(WHAT, format!("prefix of {len} bits")));
        }
        let prefix = self.prefix()? << 1;
        self.set_prefix(prefix, len)?;
        new.set_prefix(prefix | 1, len)?;
        self.clear_buckets();
        if sorted {
            let flags = self.bytes().u8(36)?;
            self.put(36, &[flags | FLAG_CD_SORTED])?;
        }
        for chunk in 0..self.chunks as u16 {
            let at = self.at(chunk)?;
            if self.bytes().u8(at)? != CHUNK_ENTRY {
                continue;
            }
            let entry = self.fields(chunk)?;
            if entry.hash >> (64 - len) & 1 == 1 {
                self.transfer(chunk, &entry, new)?;
            } else {
                self.link(chunk)?;
            }
        }
        Ok(())
    }

    /// Moves an entry that no chain leads to (`zap_leaf_transfer_entry`).
    fn transfer(&mut self, chunk: u16, entry: &Fields, new: &mut LeafMut<'_>) -> Result<()> {
        let there = new.alloc(CHUNK_ENTRY)?;
        let name_chunk = self.copy_array(entry.name_chunk, new)?;
        let value_chunk = self.copy_array(entry.value_chunk, new)?;
        new.put_fields(there, &Fields { name_chunk, value_chunk, ..*entry })?;
        new.link(there)?;
        new.count(ENTRIES, 1)?;
        self.free_entry(chunk, entry)?;
        self.count(ENTRIES, -1)
    }

    fn copy_array(&self, mut chunk: u16, new: &mut LeafMut<'_>) -> Result<u16> {
        let mut bytes = Vec::new();
        for _ in 0..=self.chunks {
            if chunk == CHAIN_END {
                return new.create_array(&bytes);
            }
            let at = self.typed(chunk, CHUNK_ARRAY)?;
            bytes.extend_from_slice(self.bytes().slice(at + 1, ARRAY_BYTES)?);
            chunk = self.u16(at + NEXT)?;
        }
        damaged("array without an end")
    }

    /// Verifies all of the leaf's invariants. `words`: whether keys are 64-bit words.
    pub fn check(&self, words: bool) -> Result<()> {
        let mut used = vec![false; self.chunks];
        let mut claim = |chunk: u16| match used.get_mut(usize::from(chunk)) {
            Some(used) if !*used => {
                *used = true;
                Ok(())
            }
            _ => damaged(format!("chunk {chunk} is used twice")),
        };
        let (mut free, mut chunk) = (0u16, self.u16(FREE_LIST)?);
        while usize::from(free) < self.chunks && chunk != CHAIN_END {
            claim(chunk)?;
            free += 1;
            chunk = self.u16(self.typed(chunk, CHUNK_FREE)? + NEXT)?;
        }
        if free != self.free_chunks() {
            return damaged(format!("{free} free chunks, not {}", self.free_chunks()));
        }
        let mut entries = Vec::new();
        for bucket in 0..1u64 << self.bucket_shift {
            self.check_chain(bucket, words, &mut claim, &mut entries)?;
        }
        if entries.len() != usize::from(self.len()) {
            return damaged(format!("{} entries, not {}", entries.len(), self.len()));
        }
        entries.sort_unstable();
        if let Some([a, _]) = entries.array_windows::<2>().find(|[a, b]| a == b) {
            return damaged(format!("two entries with hash {:#x}, cd {}", a.0, a.1));
        }
        match used.iter().position(|used| !used) {
            Some(chunk) => damaged(format!("chunk {chunk} is lost")),
            None => Ok(()),
        }
    }

    fn check_chain(
        &self,
        bucket: u64,
        words: bool,
        claim: &mut impl FnMut(u16) -> Result<()>,
        entries: &mut Vec<(u64, u32)>,
    ) -> Result<()> {
        let (at, sorted) =
            (HEADER_SIZE + bucket as usize * 2, self.bytes().u8(36)? & FLAG_CD_SORTED);
        let (mut chunk, mut last) = (self.u16(at)?, 0);
        while chunk != CHAIN_END {
            claim(chunk)?;
            let e = self.fields(chunk)?;
            if self.bucket(e.hash)? != at
                || e.hash.checked_shr(64 - self.prefix_len()).unwrap_or(0) != self.prefix()?
            {
                return damaged(format!("hash {:#x} in bucket {bucket}", e.hash));
            }
            if sorted != 0 && e.cd < last {
                return damaged(format!("bucket {bucket} is not sorted"));
            }
            let name = usize::from(e.name_len) * if words { 8 } else { 1 };
            self.check_array(e.name_chunk, name, claim)?;
            let value = usize::from(e.value_len) * usize::from(e.int_size);
            self.check_array(e.value_chunk, value, claim)?;
            entries.push((e.hash, e.cd));
            (chunk, last) = (e.next, e.cd);
        }
        Ok(())
    }

    fn check_array(
        &self,
        mut chunk: u16,
        len: usize,
        claim: &mut impl FnMut(u16) -> Result<()>,
    ) -> Result<()> {
        for _ in 0..array_chunks(len) {
            claim(chunk)?;
            chunk = self.u16(self.typed(chunk, CHUNK_ARRAY)? + NEXT)?;
        }
        if chunk != CHAIN_END {
            return damaged(format!("array of {len} bytes goes on"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
