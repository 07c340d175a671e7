//! The buffer every payload travels in (`abd_t`).
//!
//! A block's bytes pass through many hands: the device that read them, the checksum, the
//! decompressor, the cache, the object that is assembled from them, the caller. An [`Abd`] is handed
//! along without copying: cloning or slicing one shares the memory below it.
//!
//! Four shapes, which the holder need not care about:
//!
//! - *linear*: one allocation, contiguous. What a decompressor or a parser wants.
//! - *scatter*: chunks of [`CHUNK`] bytes from a slab that recycles them (see [`slab`]), so that
//!   large buffers neither fragment the heap nor go back to the system at every block.
//! - *lent*: contiguous, in memory that someone else manages.
//! - *gang*: a sequence of the others, for example the pieces of a gang block or of a file read.
//!
//! Invariants:
//! - The bytes of an `Abd` never change, but through the only holder's [`Abd::make_mut`] and
//!   [`Abd::resize`]. An [`AbdMut`] has one owner and is filled; `freeze` turns it into an `Abd` without
//!   copying.
//! - A gang holds no gang and no empty part; nesting is flattened when it is built, so walking one
//!   never recurses.
//! - Bytes in a single chunk *are* contiguous, whatever the shape: [`Abd::as_contiguous`] borrows
//!   them.
//! - Every copy made here is counted in [`copies`], so that a benchmark can show what a path costs.

mod builder;
mod counts;
mod leaf;
mod slab;

use crate::invariant::broken;
use std::borrow::Cow;
use std::fmt;
use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

pub use builder::AbdMut;
pub use counts::{AbdCounts, ShapeCount, counts};
pub use slab::CHUNK;

use leaf::Leaf;

/// Bytes of the memory that all zeros share.
const ZEROS: usize = 128 << 10;

static COPIED_BYTES: AtomicU64 = AtomicU64::new(0);
static COPY_CALLS: AtomicU64 = AtomicU64::new(0);

/// What has been copied out of or between buffers since the process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copies {
    /// Bytes copied.
    pub bytes: u64,
    /// Copies made, whatever their length.
    pub calls: u64,
}

impl Copies {
    /// What was copied between `earlier` and this reading.
    pub fn since(&self, earlier: &Copies) -> Copies {
        Copies {
            bytes: self.bytes.wrapping_sub(earlier.bytes),
            calls: self.calls.wrapping_sub(earlier.calls),
        }
    }
}

/// The process-wide count of copies.
pub fn copies() -> Copies {
    Copies {
        bytes: COPIED_BYTES.load(Ordering::Relaxed),
        calls: COPY_CALLS.load(Ordering::Relaxed),
    }
}

/// Gives memory that is kept for buffers to come back to the allocator.
pub fn give_back() {
    slab::give_back();
}

fn count_copy(bytes: usize) {
    COPIED_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    COPY_CALLS.fetch_add(1, Ordering::Relaxed);
}

/// An immutable, shared payload (`abd_t`). Cloning and slicing are cheap and copy no payload.
#[derive(Clone)]
pub struct Abd(Shape);

#[derive(Clone)]
enum Shape {
    One(Leaf),
    /// At least two parts, each with bytes; and their total length.
    Gang(Arc<[Leaf]>, usize),
}

impl Abd {
    /// Takes a vector as a linear buffer; no copy.
    pub fn from_vec(v: Vec<u8>) -> Abd {
        Abd(Shape::One(Leaf::linear(v)))
    }

    /// Whether both are the same bytes in the same memory. While one of them is held the other is not changed
    /// in place.
    pub fn is_same(&self, other: &Abd) -> bool {
        match (&self.0, &other.0) {
            (Shape::One(a), Shape::One(b)) => a.is_same(b),
            (Shape::Gang(a, _), Shape::Gang(b, _)) => {
                a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| a.is_same(b))
            }
            _ => false,
        }
    }

    /// Bytes of another owner's memory, which goes back when the last buffer in it is dropped; no copy.
    /// `as_ref` must give the same bytes each time.
    pub fn from_owner(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Abd {
        Abd(Shape::One(Leaf::lent(owner)))
    }

    /// A copy of `bytes` in a linear buffer; counted (`abd_copy_from_buf`).
    pub fn copy_of(bytes: &[u8]) -> Abd {
        count_copy(bytes.len());
        Abd::from_vec(bytes.to_vec())
    }

    /// A buffer of no bytes.
    pub fn empty() -> Abd {
        Abd::from_vec(Vec::new())
    }

    /// A buffer of `len` zeros. All such buffers share the same memory, of [`ZEROS`] bytes.
    pub fn zeros(len: usize) -> Abd {
        static SHARED: LazyLock<Leaf> = LazyLock::new(|| Leaf::linear(vec![0; ZEROS]));
        let lens = (0..len).step_by(ZEROS).map(|at| ZEROS.min(len - at));
        Abd::of_leaves(lens.map(|len| SHARED.slice(0, len)).collect())
    }

    /// The parts one after the other, as one buffer; no copy (`abd_alloc_gang`, `abd_gang_add`).
    pub fn gang(parts: Vec<Abd>) -> Abd {
        let mut leaves: Vec<Leaf> = Vec::with_capacity(parts.len());
        for part in parts {
            match part.0 {
                Shape::One(leaf) if leaf.len() == 0 => {}
                Shape::One(leaf) => leaves.push(leaf),
                Shape::Gang(inner, _) => leaves.extend(inner.iter().cloned()),
            }
        }
        Abd::of_leaves(leaves)
    }

    fn of_leaves(mut leaves: Vec<Leaf>) -> Abd {
        match leaves.len() {
            0 => Abd::empty(),
            1 => leaves.pop().map_or_else(Abd::empty, |leaf| Abd(Shape::One(leaf))),
            _ => {
                let len = leaves.iter().map(Leaf::len).sum();
                Abd(Shape::Gang(leaves.into(), len))
            }
        }
    }

    fn leaves(&self) -> &[Leaf] {
        match &self.0 {
            Shape::One(leaf) => std::slice::from_ref(leaf),
            Shape::Gang(leaves, _) => leaves,
        }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Shape::One(leaf) => leaf.len(),
            Shape::Gang(_, len) => *len,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the memory that is kept as long as this is: of all of an allocation, also where this is a slice of it.
    /// Of memory that is lent its owner knows; here it is what this uses.
    pub fn memory(&self) -> usize {
        self.leaves().iter().map(Leaf::memory).sum()
    }

    /// Bytes `at..at + len`, sharing the memory; `None` if that is out of range (`abd_get_offset_size`).
    pub fn slice(&self, at: usize, len: usize) -> Option<Abd> {
        let end = at.checked_add(len).filter(|&end| end <= self.len())?;
        let leaves = match &self.0 {
            Shape::One(leaf) => return Some(Abd(Shape::One(leaf.slice(at, len)))),
            Shape::Gang(leaves, _) => leaves,
        };
        let mut out = Vec::new();
        let mut start = 0;
        for leaf in leaves.iter() {
            let stop = start + leaf.len();
            let (from, to) = (at.max(start), end.min(stop));
            if from < to {
                out.push(leaf.slice(from - start, to - from));
            }
            start = stop;
        }
        Some(Abd::of_leaves(out))
    }

    /// The contiguous pieces, in order; each has bytes (`abd_iterate_func`).
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        self.leaves().iter().flat_map(Leaf::chunks)
    }

    /// The pieces for a vectored write or send.
    pub fn io_slices(&self) -> Vec<IoSlice<'_>> {
        self.chunks().map(IoSlice::new).collect()
    }

    /// The bytes as one slice, when they lie in one piece.
    pub fn as_contiguous(&self) -> Option<&[u8]> {
        match &self.0 {
            Shape::One(leaf) => leaf.as_contiguous(),
            Shape::Gang(..) => None,
        }
    }

    /// The bytes as one slice (`abd_borrow_buf_copy`, `abd_to_buf`): borrowed if contiguous, else a (counted) copy.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match self.as_contiguous() {
            Some(bytes) => Cow::Borrowed(bytes),
            None => Cow::Owned(self.to_vec()),
        }
    }

    /// A copy of the bytes; counted.
    pub fn to_vec(&self) -> Vec<u8> {
        count_copy(self.len());
        let mut out = Vec::with_capacity(self.len());
        for chunk in self.chunks() {
            out.extend_from_slice(chunk);
        }
        out
    }

    /// The bytes, to be changed: in place if this is the only holder of one contiguous allocation,
    /// else in a (counted) copy, which takes the place of what was shared.
    pub fn make_mut(&mut self) -> &mut [u8] {
        let owned = match &mut self.0 {
            Shape::One(leaf) => leaf.owned_mut().is_some(),
            Shape::Gang(..) => false,
        };
        if !owned {
            *self = Abd::from_vec(self.to_vec());
        }
        let bytes = match &mut self.0 {
            Shape::One(leaf) => leaf.owned_mut(),
            Shape::Gang(..) => None,
        };
        // What is written into another buffer would be lost.
        bytes.unwrap_or_else(|| broken(format_args!("a buffer that was copied is shared")))
    }

    /// Makes it `len` bytes long, with zeros behind its bytes: in place as [`Abd::make_mut`] does.
    /// Room is made for more than that, so that growing it step by step does not copy it each time.
    pub fn resize(&mut self, len: usize) {
        let resized = match &mut self.0 {
            Shape::One(leaf) => leaf.resize(len),
            Shape::Gang(..) => false,
        };
        if !resized {
            let mut bytes = self.to_vec();
            bytes.resize(len, 0);
            *self = Abd::from_vec(bytes);
        }
    }

    /// Copies bytes `at..at + dst.len()` into `dst`; counted (`abd_copy_to_buf_off`). `None`, and nothing is copied, if
    /// that is out of range.
    pub fn copy_to(&self, at: usize, dst: &mut [u8]) -> Option<()> {
        at.checked_add(dst.len()).filter(|&end| end <= self.len())?;
        count_copy(dst.len());
        let mut skip = at;
        let mut rest = dst;
        for leaf in self.leaves() {
            if skip >= leaf.len() {
                skip -= leaf.len();
                continue;
            }
            let take = rest.len().min(leaf.len() - skip);
            let (head, tail) = rest.split_at_mut(take);
            leaf.copy_to(skip, head);
            rest = tail;
            skip = 0;
            if rest.is_empty() {
                break;
            }
        }
        Some(())
    }
}

impl From<Vec<u8>> for Abd {
    fn from(v: Vec<u8>) -> Abd {
        Abd::from_vec(v)
    }
}

impl fmt::Debug for Abd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = match &self.0 {
            Shape::One(leaf) => leaf.shape(),
            Shape::Gang(..) => "gang",
        };
        write!(f, "Abd({shape}, {} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests;
