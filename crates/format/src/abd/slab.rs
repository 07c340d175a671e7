//! The chunks that scatter buffers are made of, and the free list that recycles them.
//!
//! All chunks have one size, so any freed chunk serves any request and nothing fragments. The free
//! list is bounded ([`KEEP`]); beyond it, chunks go back to the allocator.
//!
//! A recycled chunk holds whatever it held before. Only [`AbdMut`](super::AbdMut) hands out chunks,
//! to be filled; debug builds poison them first so that a byte that was not filled shows in tests, and is
//! the same in every run.

use parking_lot::Mutex;

/// Bytes in a chunk of a scatter buffer.
pub const CHUNK: usize = 4096;

/// Chunks kept for reuse: 64 MiB.
const KEEP: usize = (64 << 20) / CHUNK;

/// What debug builds fill fresh chunks with.
const POISON: u8 = 0xa5;

type Chunk = Box<[u8; CHUNK]>;

static FREE: Mutex<Vec<Chunk>> = Mutex::new(Vec::new());

/// A run of chunks that returns to the free list when dropped.
pub(super) struct Chunks(Vec<Chunk>);

impl Chunks {
    /// Enough chunks for `bytes`, contents unspecified.
    pub(super) fn for_bytes(bytes: usize) -> Chunks {
        let want = bytes.div_ceil(CHUNK);
        let mut chunks = {
            // The list is whole whatever panicked while holding it.
            let mut free = FREE.lock();
            // None are kept where more are wanted.
            let keep = free.len().saturating_sub(want);
            free.split_off(keep)
        };
        chunks.reserve_exact(want - chunks.len());
        while chunks.len() < want {
            chunks.push(Box::new([0; CHUNK]));
        }
        if cfg!(debug_assertions) {
            chunks.iter_mut().for_each(|c| c.fill(POISON));
        }
        Chunks(chunks)
    }

    /// Bytes the chunks hold.
    pub(super) fn capacity(&self) -> usize {
        self.0.len() * CHUNK
    }

    pub(super) fn get(&self, i: usize) -> &[u8; CHUNK] {
        &self.0[i]
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut [u8; CHUNK]> {
        self.0.iter_mut().map(|c| &mut **c)
    }
}

/// Empties the free list.
pub(super) fn give_back() {
    let chunks = std::mem::take(&mut *FREE.lock());
    drop(chunks);
}

impl Drop for Chunks {
    fn drop(&mut self) {
        let mut free = FREE.lock();
        let room = KEEP.saturating_sub(free.len()).min(self.0.len());
        let excess = self.0.split_off(room);
        free.append(&mut self.0);
        drop(free);
        drop(excess);
    }
}
