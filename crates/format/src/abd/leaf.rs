//! The shapes that hold bytes themselves: one allocation (`abd_alloc_linear`), chunks from the slab (`abd_alloc`),
//! or memory that is lent (`abd_get_from_buf`).
//!
//! A [`Leaf`] is a range of a shared memory: cloning and slicing share it, and copy nothing. One allocation and
//! what is lent are contiguous. Chunks are contiguous as far as a range stays in one of them; [`Pieces`] walks over
//! them.
//!
//! Bytes of the first two kinds are counted when they come and when they go (`abdstats`). What is lent goes back to
//! its owner when the last leaf of it is dropped.
//!
//! Invariants: a range lies within its memory. Bytes change only in one allocation that has a single holder and
//! whose range is all of it.

use std::sync::Arc;

use super::counts::{LINEAR, SCATTER};
use super::slab::{CHUNK, Chunks};

/// A range of a shared allocation.
#[derive(Clone)]
pub(super) struct Leaf {
    memory: Memory,
    /// First byte of the range within the memory.
    at: usize,
    /// Bytes in the range. `at + len` is within the memory, always.
    len: usize,
}

#[derive(Clone)]
enum Memory {
    Linear(Arc<Counted>),
    Scatter(Arc<Scattered>),
    Lent(Arc<dyn Lent>),
}

/// One allocation, which is counted.
struct Counted(Vec<u8>);

impl Counted {
    fn new(v: Vec<u8>) -> Counted {
        LINEAR.came(v.len(), 0);
        Counted(v)
    }

    fn resize(&mut self, len: usize) {
        LINEAR.went(self.0.len(), 0);
        self.0.resize(len, 0);
        LINEAR.came(self.0.len(), 0);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        LINEAR.went(self.0.len(), 0);
    }
}

/// Chunks of which so many bytes are used; they are counted.
struct Scattered {
    chunks: Chunks,
    len: usize,
}

impl Drop for Scattered {
    fn drop(&mut self) {
        SCATTER.went(self.len, self.chunks.capacity() - self.len);
    }
}

/// Memory of another owner, who takes it back when this is dropped.
pub(super) trait Lent: AsRef<[u8]> + Send + Sync {}

impl<T: AsRef<[u8]> + Send + Sync> Lent for T {}

impl Leaf {
    pub(super) fn is_same(&self, other: &Leaf) -> bool {
        let memory = match (&self.memory, &other.memory) {
            (Memory::Linear(a), Memory::Linear(b)) => Arc::ptr_eq(a, b),
            (Memory::Scatter(a), Memory::Scatter(b)) => Arc::ptr_eq(a, b),
            (Memory::Lent(a), Memory::Lent(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        memory && (self.at, self.len) == (other.at, other.len)
    }

    pub(super) fn linear(v: Vec<u8>) -> Leaf {
        let len = v.len();
        Leaf { memory: Memory::Linear(Arc::new(Counted::new(v))), at: 0, len }
    }

    /// The first `len` bytes of `chunks`, which hold at least so many.
    pub(super) fn scatter(chunks: Chunks, len: usize) -> Leaf {
        debug_assert!(len <= chunks.capacity());
        SCATTER.came(len, chunks.capacity() - len);
        Leaf { memory: Memory::Scatter(Arc::new(Scattered { chunks, len })), at: 0, len }
    }

    pub(super) fn lent(owner: impl Lent + 'static) -> Leaf {
        let len = owner.as_ref().len();
        Leaf { memory: Memory::Lent(Arc::new(owner)), at: 0, len }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn memory(&self) -> usize {
        match &self.memory {
            Memory::Linear(v) => v.0.capacity(),
            Memory::Scatter(scattered) => scattered.chunks.capacity(),
            Memory::Lent(_) => self.len,
        }
    }

    pub(super) fn shape(&self) -> &'static str {
        match self.memory {
            Memory::Linear(_) => "linear",
            Memory::Scatter(_) => "scatter",
            Memory::Lent(_) => "lent",
        }
    }

    /// The bytes, if they are one unshared allocation.
    pub(super) fn owned_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.memory {
            Memory::Linear(v) if v.0.len() == self.len => {
                Arc::get_mut(v).map(|v| v.0.as_mut_slice())
            }
            _ => None,
        }
    }

    /// Makes it `len` bytes long, with zeros behind its bytes, if they are one allocation
    /// that is not shared. Whether they were.
    pub(super) fn resize(&mut self, len: usize) -> bool {
        let owned = match &mut self.memory {
            Memory::Linear(v) if v.0.len() == self.len => Arc::get_mut(v),
            _ => None,
        };
        let Some(v) = owned else { return false };
        v.resize(len);
        self.len = len;
        true
    }

    /// Bytes `at..at + len` of this range; the caller has checked that they are in it.
    pub(super) fn slice(&self, at: usize, len: usize) -> Leaf {
        debug_assert!(at + len <= self.len);
        Leaf { memory: self.memory.clone(), at: self.at + at, len }
    }

    /// The contiguous piece that starts at byte `at` of the range, as long as it goes.
    fn piece(&self, at: usize) -> &[u8] {
        let start = self.at + at;
        let left = self.len - at;
        match &self.memory {
            Memory::Linear(v) => &v.0[start..start + left],
            Memory::Lent(owner) => &(**owner).as_ref()[start..start + left],
            Memory::Scatter(scattered) => {
                let within = start % CHUNK;
                let take = left.min(CHUNK - within);
                &scattered.chunks.get(start / CHUNK)[within..within + take]
            }
        }
    }

    pub(super) fn chunks(&self) -> Pieces<'_> {
        Pieces { leaf: self, at: 0 }
    }

    pub(super) fn as_contiguous(&self) -> Option<&[u8]> {
        if self.len == 0 {
            return Some(&[]);
        }
        let piece = self.piece(0);
        (piece.len() == self.len).then_some(piece)
    }

    /// Fills `dst` from byte `at`; the caller has checked that the range holds so many.
    pub(super) fn copy_to(&self, at: usize, dst: &mut [u8]) {
        let mut done = 0;
        while done < dst.len() {
            let piece = self.piece(at + done);
            let take = piece.len().min(dst.len() - done);
            dst[done..done + take].copy_from_slice(&piece[..take]);
            done += take;
        }
    }
}

/// The contiguous pieces of a leaf.
pub(super) struct Pieces<'a> {
    leaf: &'a Leaf,
    at: usize,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.at >= self.leaf.len {
            return None;
        }
        let piece = self.leaf.piece(self.at);
        self.at += piece.len();
        Some(piece)
    }
}
