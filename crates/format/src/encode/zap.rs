//! ZAPs, changed in place: pure functions on the blocks of the object.
//!
//! | module | what it changes |
//! |---|---|
//! | [`micro`] | the one block of a micro ZAP, with an index that is kept in memory |
//! | [`fat`] | the header of a fat ZAP and its pointer table: how they grow, which pointers change |
//! | [`leaf`] | a leaf: entries, chains, free chunks, splits |
//!
//! The owner of the object reads and writes the blocks, and decides what to do when one is full. Blocks are little-endian; one that was written by a machine of the other
//! order is turned with [`to_little_endian`] before it is changed.

pub mod fat;
pub mod leaf;
pub mod micro;

use crate::zap::leaf::{CHUNK_SIZE, Leaf};
use crate::zap::{BLOCK_LEAF, BLOCK_MICRO};
use crate::{ByteOrder, Bytes};

use super::{EncodeError, Result};

/// Longest string key with its NUL (`ZAP_MAXNAMELEN`).
pub const MAX_NAME: usize = 256;
/// Longest name in a directory with its NUL, with the feature `longname` (`ZAP_MAXNAMELEN_NEW`).
pub const MAX_LONG_NAME: usize = 1024;
/// Longest value in bytes (`ZAP_MAXVALUELEN`).
pub const MAX_VALUE: usize = 8192;
/// log2 of the bytes of a block of a new fat ZAP: 16 KiB.
pub const FAT_BLOCK_SHIFT: u32 = 14;

/// A key, as the entry holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key<'a> {
    /// A string without its closing NUL.
    Name(&'a [u8]),
    /// 64-bit words, in ZAPs with [`FLAG_UINT64_KEY`](crate::zap::FLAG_UINT64_KEY).
    Words(&'a [u64]),
}

impl Key<'_> {
    /// The bytes in the array chunks: the name with its NUL, or big-endian words.
    fn bytes(&self) -> Vec<u8> {
        match self {
            Key::Name(name) => [name, &[0][..]].concat(),
            Key::Words(words) => words.iter().flat_map(|w| w.to_be_bytes()).collect(),
        }
    }

    /// The length that the entry states.
    fn count(&self) -> usize {
        match self {
            Key::Name(name) => name.len() + 1,
            Key::Words(words) => words.len(),
        }
    }

    /// Whether a ZAP can hold the key. `longest` is [`MAX_NAME`] or, in a directory of a dataset
    /// with `longname`, [`MAX_LONG_NAME`].
    pub fn check(&self, longest: usize) -> Result<()> {
        let fits = match self {
            // An empty name is one too: fat ZAPs of FUID domains have it.
            Key::Name(name) => !name.contains(&0) && name.len() < longest,
            Key::Words(words) => !words.is_empty() && words.len() * 8 <= longest,
        };
        if fits {
            return Ok(());
        }
        Err(EncodeError::unrepresentable("ZAP key", format!("of {} integers", self.count())))
    }
}

/// A value: an array of integers of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Value<'a> {
    U8(&'a [u8]),
    U16(&'a [u16]),
    U32(&'a [u32]),
    U64(&'a [u64]),
}

impl Value<'_> {
    /// Bytes of each integer.
    pub fn int_size(&self) -> usize {
        match self {
            Value::U8(_) => 1,
            Value::U16(_) => 2,
            Value::U32(_) => 4,
            Value::U64(_) => 8,
        }
    }

    /// Number of integers.
    pub fn count(&self) -> usize {
        match self {
            Value::U8(v) => v.len(),
            Value::U16(v) => v.len(),
            Value::U32(v) => v.len(),
            Value::U64(v) => v.len(),
        }
    }

    /// The bytes in the array chunks: big-endian integers.
    fn bytes(&self) -> Vec<u8> {
        match self {
            Value::U8(v) => v.to_vec(),
            Value::U16(v) => v.iter().flat_map(|n| n.to_be_bytes()).collect(),
            Value::U32(v) => v.iter().flat_map(|n| n.to_be_bytes()).collect(),
            Value::U64(v) => v.iter().flat_map(|n| n.to_be_bytes()).collect(),
        }
    }

    /// Whether a ZAP can hold the value: at most [`MAX_VALUE`] bytes.
    pub fn check(&self) -> Result<()> {
        let bytes = self.count() * self.int_size();
        if bytes <= MAX_VALUE {
            return Ok(());
        }
        Err(EncodeError::unrepresentable("ZAP value", format!("of {bytes} bytes")))
    }
}

/// Turns a block of any kind of ZAP from `order` to little-endian. The key's and values' integers
/// in a leaf stay, they are big-endian anyway. Errors, with the block as it was: a leaf with an impossible
/// header, or with a chunk of no known type.
pub fn to_little_endian(block: &mut [u8], order: ByteOrder) -> Result<()> {
    if order == ByteOrder::Little {
        return Ok(());
    }
    match Bytes::new(block, order, "ZAP block").u64(0)? {
        BLOCK_LEAF => swap_leaf(block),
        BLOCK_MICRO => {
            let (head, entries) = block.split_at_mut(block.len().min(64));
            swap(head, 8);
            for entry in entries.chunks_exact_mut(64) {
                swap(&mut entry[..8], 8);
                swap(&mut entry[8..12], 4);
            }
            Ok(())
        }
        _ => {
            swap(block, 8);
            Ok(())
        }
    }
}

/// Reverses each `size` bytes.
fn swap(bytes: &mut [u8], size: usize) {
    bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
}

fn swap_leaf(block: &mut [u8]) -> Result<()> {
    Leaf::decode(Bytes::new(block, ByteOrder::Big, "ZAP leaf"))?;
    let chunks_at = leaf::chunks_at(block.len());
    let (head, chunks) = block.split_at_mut(chunks_at);
    // A leaf that is turned in part would be taken for a right one that lacks names.
    let kinds = chunks.chunks_exact(CHUNK_SIZE).map(|chunk| chunk[0]);
    let known = [leaf::CHUNK_ENTRY, leaf::CHUNK_ARRAY, leaf::CHUNK_FREE];
    if let Some(kind) = kinds.into_iter().find(|kind| !known.contains(kind)) {
        let why = format!("chunk of type {kind}");
        return Err(crate::DecodeError::invalid("ZAP leaf", why).into());
    }
    let fields: [(usize, usize); 8] =
        [(0, 8), (8, 8), (16, 8), (24, 4), (28, 2), (30, 2), (32, 2), (34, 2)];
    for (at, size) in fields {
        head[at..at + size].reverse();
    }
    swap(&mut head[48..], 2);
    for chunk in chunks.chunks_exact_mut(CHUNK_SIZE) {
        match chunk[0] {
            leaf::CHUNK_ENTRY => {
                swap(&mut chunk[2..12], 2);
                swap(&mut chunk[12..16], 4);
                swap(&mut chunk[16..24], 8);
            }
            _ => swap(&mut chunk[22..24], 2),
        }
    }
    Ok(())
}
