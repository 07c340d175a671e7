//! Leaf block of a fat ZAP (`zap_leaf_phys_t`).
//!
//! ```text
//! 0    block type (ZBT_LEAF), pad(64), prefix(64), magic(32), free chunks(16), entries(16),
//!      prefix length(16), free list(16), flags(8), pad
//! 48   hash table: block size / 32 chunk numbers of 16 bits, ffff ends
//!      chunks of 24 bytes to the end of the block:
//!        entry  fc: type(8) integer size(8) next(16) name chunk(16) name length(16)
//!                   value chunk(16) value length(16) cd(32) hash(64)
//!        array  fb: type(8) 21 bytes next(16)
//!        free   fd
//! ```
//!
//! Names and values are chains of array chunks. Their integers are big-endian whatever the byte
//! order of the rest. The length of a string key counts its closing NUL.
//!
//! Invariant: a chunk belongs to one entry. A walk over a leaf relies on that to stay within what
//! is there: [`Leaf::entries`] fails once the entries claim more chunks than the block has.

use super::{BlockKind, block_kind, hash};
use crate::{Bytes, DecodeError, Result};

/// `ZAP_LEAF_MAGIC`.
pub const MAGIC: u32 = 0x02AB_1EAF;
/// Bytes of a chunk.
pub const CHUNK_SIZE: usize = 24;
/// Payload bytes of an array chunk.
pub const ARRAY_BYTES: usize = 21;
/// `CHAIN_END`: no further chunk.
pub const CHAIN_END: u16 = 0xffff;
/// `ZLF_ENTRIES_CDSORTED`: chains are sorted by collision differentiator.
pub const FLAG_CD_SORTED: u8 = 1;
const HEADER_SIZE: usize = 48;
const CHUNK_ENTRY: u8 = 252;
const CHUNK_ARRAY: u8 = 251;
const WHAT: &str = "ZAP leaf";

/// Array chunks that `bytes` bytes take.
pub fn array_chunks(bytes: usize) -> usize {
    bytes.div_ceil(ARRAY_BYTES)
}

/// A view of a leaf block.
#[derive(Debug, Clone, Copy)]
pub struct Leaf<'a> {
    bytes: Bytes<'a>,
    /// Top bits of the hash that all entries share.
    pub prefix: u64,
    /// Number of those bits.
    pub prefix_len: u32,
    /// Free chunks.
    pub free_chunks: u16,
    /// Entries.
    pub entries: u16,
    /// `ZLF_*`.
    pub flags: u8,
    bucket_shift: u32,
    chunks: usize,
}

/// An entry chunk (`struct zap_leaf_entry`), its integer size checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafEntry {
    /// Bytes of each integer of the value: 1, 2, 4 or 8.
    pub int_size: u8,
    /// Next entry of the chain.
    next: u16,
    name_chunk: u16,
    /// Length of the name: bytes with the closing NUL, or 64-bit words.
    pub name_len: u16,
    value_chunk: u16,
    /// Integers of the value.
    pub value_len: u16,
    /// Collision differentiator.
    pub cd: u32,
    /// Hash of the key.
    pub hash: u64,
}

impl LeafEntry {
    /// Chunks that the entry takes when its name's integers are of `name_int` bytes.
    fn chunks(&self, name_int: usize) -> usize {
        let value = usize::from(self.value_len) * usize::from(self.int_size);
        1 + array_chunks(usize::from(self.name_len) * name_int) + array_chunks(value)
    }

    /// Chunks as `zdb` counts them in its histogram, which takes each integer of the name for a byte.
    pub fn counted_chunks(&self) -> usize {
        self.chunks(1)
    }
}

impl<'a> Leaf<'a> {
    /// Checks the header.
    pub fn decode(bytes: Bytes<'a>) -> Result<Leaf<'a>> {
        let bad = |why: String| Err(DecodeError::invalid(WHAT, why));
        let len = bytes.len();
        if !len.is_power_of_two() || len < 512 {
            return bad(format!("block of {len} bytes"));
        }
        let bucket_shift = len.trailing_zeros() - 5;
        if block_kind(&bytes)? != BlockKind::Leaf || bytes.u32(24)? != MAGIC {
            return bad(format!("block type {:#x}, magic {:#x}", bytes.u64(0)?, bytes.u32(24)?));
        }
        let (prefix, prefix_len) = (bytes.u64(16)?, u32::from(bytes.u16(32)?));
        if prefix_len + bucket_shift > 64 || prefix.checked_shr(prefix_len).unwrap_or(0) != 0 {
            return bad(format!("prefix {prefix:#x} of {prefix_len} bits"));
        }
        Ok(Leaf {
            bytes,
            prefix,
            prefix_len,
            free_chunks: bytes.u16(28)?,
            entries: bytes.u16(30)?,
            flags: bytes.u8(36)?,
            bucket_shift,
            chunks: (len - (2 << bucket_shift)) / CHUNK_SIZE - 2,
        })
    }

    /// Number of buckets of the hash table.
    pub fn buckets(&self) -> usize {
        1 << self.bucket_shift
    }

    /// Whether keys with this hash belong in this leaf.
    pub fn covers(&self, hash: u64) -> bool {
        hash.checked_shr(64 - self.prefix_len).unwrap_or(0) == self.prefix
    }

    fn bucket_of(&self, hash: u64) -> usize {
        let shift = 64 - self.bucket_shift - self.prefix_len;
        (hash >> shift) as usize & (self.buckets() - 1)
    }

    fn chunk_at(&self, chunk: u16) -> Result<usize> {
        if usize::from(chunk) >= self.chunks {
            return Err(DecodeError::invalid(WHAT, format!("chunk {chunk} of {}", self.chunks)));
        }
        Ok(HEADER_SIZE + (2 << self.bucket_shift) + usize::from(chunk) * CHUNK_SIZE)
    }

    fn entry(&self, chunk: u16) -> Result<LeafEntry> {
        let bad = |why: String| Err(DecodeError::invalid(WHAT, format!("chunk {chunk}: {why}")));
        let (at, b) = (self.chunk_at(chunk)?, &self.bytes);
        let kind = b.u8(at)?;
        if kind != CHUNK_ENTRY {
            return bad(format!("type {kind} where an entry should be"));
        }
        let entry = LeafEntry {
            int_size: b.u8(at + 1)?,
            next: b.u16(at + 2)?,
            name_chunk: b.u16(at + 4)?,
            name_len: b.u16(at + 6)?,
            value_chunk: b.u16(at + 8)?,
            value_len: b.u16(at + 10)?,
            cd: b.u32(at + 12)?,
            hash: b.u64(at + 16)?,
        };
        if !matches!(entry.int_size, 1 | 2 | 4 | 8) {
            return bad(format!("integers of {} bytes", entry.int_size));
        }
        Ok(entry)
    }

    /// The entries of bucket `bucket`, in the order of the chain.
    pub fn chain(&self, bucket: usize) -> Chain<'a> {
        let next = match bucket < self.buckets() {
            true => self.bytes.u16(HEADER_SIZE + bucket * 2),
            false => Ok(CHAIN_END),
        };
        Chain { leaf: *self, next, steps: 0 }
    }

    /// The entries whose hash is `hash`, in the order of the chain.
    pub fn find(&self, hash: u64) -> impl Iterator<Item = Result<LeafEntry>> + use<'a> {
        self.chain(self.bucket_of(hash))
            .filter(move |e| e.as_ref().map_or(true, |e| e.hash == hash))
    }

    /// All entries sorted by (hash, cd). `flags` are the ZAP's. Fails where an entry does
    /// not belong here or the entries claim more than there is, so that reading all names and
    /// values takes no more memory than the block's size and a constant factor.
    pub fn entries(&self, flags: u64) -> Result<Vec<LeafEntry>> {
        let name_int = if flags & super::FLAG_UINT64_KEY != 0 { 8 } else { 1 };
        let mut claimed = 0usize;
        let mut out = Vec::new();
        for bucket in 0..self.buckets() {
            for entry in self.chain(bucket) {
                let entry = entry?;
                claimed += entry.chunks(name_int);
                if claimed > self.chunks {
                    return Err(DecodeError::invalid(WHAT, "entries share chunks"));
                }
                if !self.covers(entry.hash) || hash::truncate(entry.hash, flags) != entry.hash {
                    let why = format!("entry with hash {:#x}", entry.hash);
                    return Err(DecodeError::invalid(WHAT, why));
                }
                out.push(entry);
            }
        }
        out.sort_by_key(|e| (e.hash, e.cd));
        Ok(out)
    }

    /// Entries of each bucket, for statistics; a bucket whose chain is bad counts what is readable.
    pub fn bucket_entries(&self, bucket: usize) -> impl Iterator<Item = LeafEntry> + use<'a> {
        self.chain(bucket).map_while(Result::ok)
    }

    /// `len` bytes of the chain of array chunks that starts at `chunk`.
    fn array(&self, mut chunk: u16, len: usize) -> Result<Vec<u8>> {
        if array_chunks(len) > self.chunks {
            return Err(DecodeError::invalid(WHAT, format!("array of {len} bytes")));
        }
        let mut out = Vec::with_capacity(len);
        while out.len() < len {
            let at = self.chunk_at(chunk)?;
            let kind = self.bytes.u8(at)?;
            if kind != CHUNK_ARRAY {
                let why = format!("chunk {chunk}: type {kind} where an array should be");
                return Err(DecodeError::invalid(WHAT, why));
            }
            let take = (len - out.len()).min(ARRAY_BYTES);
            out.extend_from_slice(self.bytes.slice(at + 1, take)?);
            chunk = self.bytes.u16(at + 22)?;
        }
        Ok(out)
    }

    /// The string key of an entry, without the closing NUL.
    pub fn name(&self, entry: &LeafEntry) -> Result<Vec<u8>> {
        let mut name = self.array(entry.name_chunk, entry.name_len.into())?;
        if name.iter().position(|c| *c == 0) != name.len().checked_sub(1) {
            return Err(DecodeError::invalid(WHAT, "name that does not end in NUL"));
        }
        name.pop();
        Ok(name)
    }

    /// The key of an entry in a ZAP of 64-bit keys: the words as stored, each big-endian.
    pub fn word_key(&self, entry: &LeafEntry) -> Result<Vec<u8>> {
        self.array(entry.name_chunk, usize::from(entry.name_len) * 8)
    }

    /// The value of an entry, each integer widened without sign.
    pub fn value(&self, entry: &LeafEntry) -> Result<Vec<u64>> {
        let size = usize::from(entry.int_size);
        let bytes = self.array(entry.value_chunk, usize::from(entry.value_len) * size)?;
        let word = |int: &[u8]| int.iter().fold(0u64, |v, b| v << 8 | u64::from(*b));
        Ok(bytes.chunks_exact(size.max(1)).map(word).collect())
    }
}

/// Iterator over a chain of entries; ends with an error where the chain is bad or a cycle.
#[derive(Debug, Clone)]
pub struct Chain<'a> {
    leaf: Leaf<'a>,
    next: Result<u16>,
    steps: usize,
}

impl Iterator for Chain<'_> {
    type Item = Result<LeafEntry>;

    fn next(&mut self) -> Option<Result<LeafEntry>> {
        let chunk = match std::mem::replace(&mut self.next, Ok(CHAIN_END)) {
            Ok(CHAIN_END) => return None,
            Ok(chunk) => chunk,
            Err(e) => return Some(Err(e)),
        };
        self.steps += 1;
        if self.steps > self.leaf.chunks {
            return Some(Err(DecodeError::invalid(WHAT, "chain without an end")));
        }
        let entry = self.leaf.entry(chunk);
        if let Ok(e) = &entry {
            self.next = Ok(e.next);
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteOrder;
    use crate::zap::FLAG_UINT64_KEY;

    /// A leaf of 512 bytes: 16 buckets, 18 chunks.
    struct Builder {
        b: Vec<u8>,
        order: ByteOrder,
        used: u16,
    }

    impl Builder {
        fn new(order: ByteOrder) -> Builder {
            let mut this = Builder { b: vec![0; 512], order, used: 0 };
            this.put(0, super::super::BLOCK_LEAF, 8);
            this.put(24, MAGIC.into(), 4);
            this.b[48..80].fill(0xff);
            this
        }
        fn put(&mut self, at: usize, v: u64, len: usize) {
            let bytes = match self.order {
                ByteOrder::Little => v.to_le_bytes()[..len].to_vec(),
                ByteOrder::Big => v.to_be_bytes()[8 - len..].to_vec(),
            };
            self.b[at..at + len].copy_from_slice(&bytes);
        }
        fn array(&mut self, bytes: &[u8]) -> u16 {
            let first = self.used;
            for part in bytes.chunks(ARRAY_BYTES) {
                let at = 80 + usize::from(self.used) * CHUNK_SIZE;
                self.b[at] = CHUNK_ARRAY;
                self.b[at + 1..at + 1 + part.len()].copy_from_slice(part);
                self.used += 1;
                self.put(at + 22, self.used.into(), 2);
            }
            first
        }
        fn entry(&mut self, hash: u64, key: &[u8], key_len: u16, value: &[u8], size: u8) -> u16 {
            let (name_chunk, value_chunk) = (self.array(key), self.array(value));
            let (chunk, at) = (self.used, 80 + usize::from(self.used) * CHUNK_SIZE);
            self.used += 1;
            self.b[at] = CHUNK_ENTRY;
            self.b[at + 1] = size;
            let bucket = 48 + (hash >> 60) as usize * 2;
            let next = self.b[bucket..bucket + 2].to_vec();
            self.b[at + 2..at + 4].copy_from_slice(&next);
            self.put(at + 4, name_chunk.into(), 2);
            self.put(at + 6, key_len.into(), 2);
            self.put(at + 8, value_chunk.into(), 2);
            self.put(at + 10, (value.len() / usize::from(size)) as u64, 2);
            self.put(at + 12, 1, 4);
            self.put(at + 16, hash, 8);
            self.put(bucket, chunk.into(), 2);
            chunk
        }
        fn leaf(&self) -> Leaf<'_> {
            Leaf::decode(Bytes::new(&self.b, self.order, "leaf")).unwrap()
        }
    }

    #[test]
    fn names_and_values_of_all_sizes() {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let mut b = Builder::new(order);
            b.entry(0x5 << 60, b"a name of more than 21 bytes\0", 29, &[1, 2, 3], 1);
            b.entry(0x5 << 60 | 1 << 40, b"b\0", 2, &[1, 2, 3, 4], 2);
            b.entry(0x1 << 60, b"c\0", 2, &[0, 0, 0, 5, 0, 0, 0, 6], 4);
            let leaf = b.leaf();
            let all: Vec<_> = leaf.entries(0).unwrap();
            let show = |e: &LeafEntry| (leaf.name(e).unwrap(), leaf.value(e).unwrap());
            assert_eq!(show(&all[0]), (b"c".to_vec(), vec![5, 6]));
            assert_eq!(show(&all[1]), (b"a name of more than 21 bytes".to_vec(), vec![1, 2, 3]));
            assert_eq!(show(&all[2]), (b"b".to_vec(), vec![0x102, 0x304]));
            assert_eq!(leaf.find(0x5 << 60).count(), 1);
            assert_eq!(leaf.find(0x5 << 60 | 1 << 40).count(), 1);
            assert_eq!(leaf.find(0x7 << 60).count(), 0);
        }
    }

    #[test]
    fn word_keys() {
        let mut b = Builder::new(ByteOrder::Little);
        let key: Vec<u8> = [7u64, 9].iter().flat_map(|w| w.to_be_bytes()).collect();
        b.entry(0x3 << 60, &key, 2, &[0, 0, 0, 0, 0, 0, 1, 0], 8);
        let leaf = b.leaf();
        let e = leaf.entries(FLAG_UINT64_KEY).unwrap()[0];
        assert_eq!((leaf.word_key(&e).unwrap(), leaf.value(&e).unwrap()), (key, vec![256]));
    }

    #[test]
    fn cycles_and_shared_chunks_end() {
        let mut b = Builder::new(ByteOrder::Little);
        let chunk = b.entry(0x5 << 60, b"x\0", 2, &[1], 1);
        b.put(80 + usize::from(chunk) * CHUNK_SIZE + 2, chunk.into(), 2);
        assert!(b.leaf().chain(5).last().unwrap().is_err());
        assert!(b.leaf().entries(0).is_err());
        // An array chunk that is its own successor, and a huge claimed length.
        let mut b = Builder::new(ByteOrder::Little);
        let chunk = b.entry(0x5 << 60, b"x\0", 2, &[1], 1);
        b.put(80 + 22, 0, 2);
        b.put(80 + usize::from(chunk) * CHUNK_SIZE + 6, 0xffff, 2);
        assert!(b.leaf().entries(0).is_err());
        let e = b.leaf().chain(5).next().unwrap().unwrap();
        assert!(b.leaf().name(&e).is_err());
    }

    #[test]
    fn any_damage_is_an_error_not_a_panic() {
        let mut b = Builder::new(ByteOrder::Little);
        b.entry(0x5 << 60, b"a name of more than 21 bytes\0", 29, &[1, 2, 3], 1);
        b.entry(0x1 << 60, b"c\0", 2, &[0, 0, 0, 5, 0, 0, 0, 6], 4);
        for at in 0..512 {
            for v in [0, 1, 0x7f, 0xfb, 0xfc, 0xff] {
                let mut damaged = b.b.clone();
                damaged[at] = v;
                let Ok(leaf) = Leaf::decode(Bytes::new(&damaged, b.order, "leaf")) else {
                    continue;
                };
                for bucket in 0..leaf.buckets() {
                    for e in leaf.chain(bucket).flatten() {
                        let _ = (leaf.name(&e), leaf.value(&e), leaf.word_key(&e));
                    }
                }
                let _ = leaf.entries(0);
            }
        }
    }
}
