//! A buffer that is being filled, by its only owner.

use std::io::IoSliceMut;

use super::leaf::Leaf;
use super::slab::{CHUNK, Chunks};
use super::{Abd, Shape, count_copy};
use crate::less;

/// A buffer to be filled and then published with [`AbdMut::freeze`].
pub struct AbdMut {
    memory: Memory,
    len: usize,
}

enum Memory {
    Linear(Vec<u8>),
    Scatter(Chunks),
}

impl AbdMut {
    /// A contiguous buffer of `len` zeros.
    pub fn linear(len: usize) -> AbdMut {
        AbdMut { memory: Memory::Linear(vec![0; len]), len }
    }

    /// A buffer of `len` bytes in chunks of [`CHUNK`] bytes. **The contents are unspecified**
    /// until they are filled: chunks are recycled without being cleared.
    pub fn scatter(len: usize) -> AbdMut {
        AbdMut { memory: Memory::Scatter(Chunks::for_bytes(len)), len }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The contiguous pieces, in order, to be filled.
    pub fn chunks_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let len = self.len;
        let (linear, scatter) = match &mut self.memory {
            Memory::Linear(v) => (Some(v.as_mut_slice()), None),
            Memory::Scatter(chunks) => (None, Some(chunks.iter_mut())),
        };
        let scatter = scatter.into_iter().flatten().enumerate().map(move |(i, chunk)| {
            let take = less!(len, i * CHUNK, "bytes of a buffer").min(CHUNK);
            &mut chunk[..take]
        });
        linear.into_iter().chain(scatter).filter(|piece| !piece.is_empty())
    }

    /// The pieces for a vectored read.
    pub fn io_slices_mut(&mut self) -> Vec<IoSliceMut<'_>> {
        self.chunks_mut().map(IoSliceMut::new).collect()
    }

    /// The bytes as one slice, when they lie in one piece.
    pub fn as_contiguous_mut(&mut self) -> Option<&mut [u8]> {
        let len = self.len;
        match &mut self.memory {
            Memory::Linear(v) => Some(v),
            Memory::Scatter(chunks) if len <= CHUNK => match chunks.iter_mut().next() {
                Some(chunk) => Some(&mut chunk[..len]),
                None => Some(&mut []),
            },
            Memory::Scatter(_) => None,
        }
    }

    /// Copies `src` to bytes `at..at + src.len()`; counted. `None`, and nothing is copied, if that
    /// is out of range.
    pub fn copy_from(&mut self, at: usize, src: &[u8]) -> Option<()> {
        at.checked_add(src.len()).filter(|&end| end <= self.len)?;
        count_copy(src.len());
        let mut skip = at;
        let mut rest = src;
        for piece in self.chunks_mut() {
            if skip >= piece.len() {
                skip -= piece.len();
                continue;
            }
            let take = rest.len().min(piece.len() - skip);
            let (head, tail) = rest.split_at(take);
            piece[skip..skip + take].copy_from_slice(head);
            rest = tail;
            skip = 0;
            if rest.is_empty() {
                break;
            }
        }
        Some(())
    }

    /// Publishes the buffer; no copy.
    pub fn freeze(self) -> Abd {
        Abd(Shape::One(match self.memory {
            Memory::Linear(v) => Leaf::linear(v),
            Memory::Scatter(chunks) => Leaf::scatter(chunks, self.len),
        }))
    }
}

impl std::fmt::Debug for AbdMut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shape = match self.memory {
            Memory::Linear(_) => "linear",
            Memory::Scatter(_) => "scatter",
        };
        write!(f, "AbdMut({shape}, {} bytes)", self.len)
    }
}
