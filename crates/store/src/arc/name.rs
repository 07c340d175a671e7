//! What entries are called, and what they hold.

use super::Key;
use crate::keys::View;
use cenote_format::abd::Abd;
use std::any::Any;
use std::sync::Arc;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// A block as it is on disk.
    Block,
    /// A block unpacked.
    Unpacked,
    /// Something decoded.
    Object,
}

/// The name of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    /// Number of the pool in this process; 0: the name of no entry.
    pub pool: u32,
    pub kind: Kind,
    /// Of a block its key and which readers may see it; of an object its table and number.
    pub words: [u64; 4],
}

impl Name {
    pub fn block(pool: u32, key: &Key) -> Name {
        Name { pool, kind: Kind::Block, words: [key.dva0, key.dva1, key.birth, 0] }
    }

    pub fn unpacked(pool: u32, key: &Key, view: View) -> Name {
        Name { pool, kind: Kind::Unpacked, words: [key.dva0, key.dva1, key.birth, view] }
    }

    pub fn object(pool: u32, table: u64, number: u64) -> Name {
        Name { pool, kind: Kind::Object, words: [table, number, 0, 0] }
    }

    /// Bits that tell names apart, the highest best.
    pub fn spread(&self) -> u64 {
        let [a, b, c, d] = self.words;
        let mixed = a ^ b.rotate_left(17) ^ c.rotate_left(41) ^ d.rotate_left(53);
        (mixed ^ u64::from(self.pool) ^ ((self.kind as u64) << 7))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// What an entry holds.
#[derive(Clone)]
pub(crate) enum Value {
    Bytes(Abd),
    Object(Arc<dyn Any + Send + Sync>),
}

impl Value {
    pub fn bytes(self) -> Option<Abd> {
        match self {
            Value::Bytes(data) => Some(data),
            Value::Object(_) => None,
        }
    }
}

/// Bytes that an allocation of `len` bytes takes. Allocators for large programs have four sizes between a power of two and
/// the next one (jemalloc, mimalloc), or round less.
pub(crate) fn allocation(len: usize) -> u64 {
    let len = (len as u64).max(16);
    let step = (len.next_power_of_two() / 8).max(16);
    len.next_multiple_of(step)
}
