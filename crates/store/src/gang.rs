//! Gang blocks (`zio_gang_tree_assemble`): blocks that were split because no free segment was large enough.
//!
//! The DVA of a gang block leads to a *gang header*, an array of block pointers with a checksum of
//! its own at the end (`zio_gbh_phys_t`):
//!
//! ```text
//! pointer 0 (128) | pointer 1 (128) | … | padding | magic (8) | checksum (32)
//! ```
//!
//! The old header is 512 bytes and holds three pointers. Once the feature `dynamic_gang_header` is active a
//! header fills the smallest allocation that each of its copies' vdevs has, which takes no more space: 31 pointers in
//! sectors of 4 KiB, and more on dRAID. Nothing on disk says which of the two a header is but the header itself: it is
//! the size at which its checksum fits.
//!
//! The physical bytes of the constituents, one after another, are the block's; holes count
//! nothing. A constituent may be a gang block again, smaller than the whole.
//!
//! Every copy of a header has the same bytes, so its checksum is seeded with the place of the first
//! copy whichever of them is read.
//!
//! Bounds for hostile headers: the tree is no deeper than [`GANG_DEPTH`], its parts never sum to
//! more than the whole, and all attempts together read no more than [`READS_PER_BYTE`] times the
//! block and [`READS_EXTRA`], which copies that fail in an honest pool stay far below.

use cenote_format::abd::Abd;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer, Dva};
use cenote_format::checksum::EMBEDDED_SIZE;
use cenote_format::encode::blkptr::OLD_GANG_HEADER;
use cenote_format::{Bytes, DecodeError};
use cenote_vdev::BlockRead;

use crate::error::{BlockError, Bookmark};
use crate::pipeline::{Store, check, no_copy, vdev_error};
use crate::verify;

/// Deepest tree of gang headers that is followed. A 16 MiB block in gangs of three 512-byte
/// pieces needs fewer than 11.
pub const GANG_DEPTH: usize = 16;
/// Bytes that may be read for each byte of a gang block, failed attempts included.
const READS_PER_BYTE: u64 = 16;
/// Bytes that may be read in addition to those, and headers, if these are large.
const READS_EXTRA: u64 = 1 << 20;
const HEADERS_EXTRA: u64 = 64;
/// Bytes of the largest header: one that fills the smallest allocation of the widest dRAID is smaller.
const MAX_HEADER: u64 = 16 << 20;

/// What `read` makes of the first copy of `bp` that it can read.
///
/// Errors: it cannot read any copy. If a device failed the error says so: the block may be there.
pub(crate) fn first_of<T>(
    bp: &BlockPointer,
    at: Bookmark,
    mut read: impl FnMut(Dva) -> Result<T, BlockError>,
) -> Result<T, BlockError> {
    let mut failure = no_copy(bp, at);
    for dva in bp.dvas() {
        match read(dva) {
            Ok(done) => return Ok(done),
            Err(e) if !matches!(failure, BlockError::Vdev { .. }) => failure = e,
            Err(_) => {}
        }
    }
    Err(failure)
}

impl Store {
    /// The pointers to all that a gang block consists of: its parts, and theirs (`zio_gang_tree_assemble`).
    ///
    /// # Errors
    /// A header cannot be read, or its parts do not make the whole.
    pub fn gang_members(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
    ) -> Result<Vec<BlockPointer>, BlockError> {
        check(bp, at)?;
        self.wait_for_writes(bp);
        let mut found = Vec::new();
        Assembly::new(self, bp, at).members(bp, 0, &mut found)?;
        Ok(found)
    }

    /// The pointers to the parts of `bp`, which is `depth` headers below a block that is freed.
    ///
    /// Errors: its header cannot be read, or the parts do not make the whole.
    pub(crate) fn gang_parts(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
        depth: usize,
    ) -> Result<Vec<BlockPointer>, BlockError> {
        self.wait_for_writes(bp);
        first_of(bp, at, |dva| Assembly::new(self, bp, at).parts(bp, dva, depth))
    }

    /// The pointers in the header of `bp`, holes as well, and its size in bytes.
    ///
    /// Errors: no copy of it can be read.
    pub(crate) fn gang_header(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
    ) -> Result<(Vec<BlockPointer>, usize), BlockError> {
        self.wait_for_writes(bp);
        first_of(bp, at, |dva| Assembly::new(self, bp, at).sized_header(bp, dva))
    }

    /// Bytes of the largest header whose copies are at `dvas`: the smallest allocation of their vdevs
    /// (`vdev_gang_header_psize`).
    pub(crate) fn header_size(&self, dvas: impl Iterator<Item = Dva>) -> u64 {
        let vdevs = self.vdevs();
        let sizes = dvas.filter_map(|dva| vdevs.top(dva.vdev.into()).map(|top| top.min_alloc()));
        sizes.min().unwrap_or(0).clamp(OLD_GANG_HEADER as u64, MAX_HEADER)
    }
}

/// The reading of one gang block (`zio_gang_assemble`).
pub(crate) struct Assembly<'a> {
    store: &'a Store,
    at: Bookmark,
    /// Bytes that may still be read.
    left: u64,
}

impl<'a> Assembly<'a> {
    /// For the block that `bp` names, whose sizes were checked.
    pub(crate) fn new(store: &'a Store, bp: &BlockPointer, at: Bookmark) -> Assembly<'a> {
        let extra = store.header_size(bp.dvas()).saturating_mul(HEADERS_EXTRA).max(READS_EXTRA);
        let left = bp.psize().saturating_mul(READS_PER_BYTE).saturating_add(extra);
        Assembly { store, at, left }
    }

    /// Reads and verifies the copy of `bp` at `dva`, `depth` headers below the block.
    pub(crate) fn copy(
        &mut self,
        bp: &BlockPointer,
        dva: Dva,
        depth: usize,
    ) -> Result<Abd, BlockError> {
        if !dva.gang {
            self.charge(bp, bp.psize())?;
            return self.store.fetch_plain(bp, dva, self.at, None);
        }
        let parts = self.parts(bp, dva, depth)?;
        let read = |part: &BlockPointer| self.any_copy(part, depth + 1);
        let whole = Abd::gang(parts.iter().map(read).collect::<Result<_, _>>()?);
        if self.store.is_right(bp, &whole) {
            Ok(whole)
        } else {
            Err(BlockError::Checksum { at: self.at, bp: Box::new(*bp) })
        }
    }

    fn any_copy(&mut self, bp: &BlockPointer, depth: usize) -> Result<Abd, BlockError> {
        first_of(bp, self.at, |dva| self.copy(bp, dva, depth))
    }

    /// The pointers to the parts of `bp` in the header at `dva`, which is `depth` headers below the block.
    fn parts(
        &mut self,
        bp: &BlockPointer,
        dva: Dva,
        depth: usize,
    ) -> Result<Vec<BlockPointer>, BlockError> {
        if depth >= GANG_DEPTH {
            return Err(self.bad(bp, "headers nested too deep"));
        }
        let mut parts = self.header(bp, dva)?;
        parts.retain(|part| !part.is_hole());
        let mut len = 0u64;
        for part in &parts {
            check(part, self.at)?;
            len += part.psize();
            let nested = part.is_gang() && part.psize() >= bp.psize();
            if nested || part.is_embedded() || len > bp.psize() {
                return Err(self.bad(bp, "parts larger than the whole"));
            }
        }
        if len != bp.psize() {
            return Err(self.bad(bp, "parts smaller than the whole"));
        }
        Ok(parts)
    }

    /// Adds all that gang block `bp`, `depth` headers below the block, consists of to `found`.
    fn members(
        &mut self,
        bp: &BlockPointer,
        depth: usize,
        found: &mut Vec<BlockPointer>,
    ) -> Result<(), BlockError> {
        for part in first_of(bp, self.at, |dva| self.parts(bp, dva, depth))? {
            found.push(part);
            if part.is_gang() {
                self.members(&part, depth + 1, found)?;
            }
        }
        Ok(())
    }

    /// The block pointers in the gang header at `dva`.
    pub(crate) fn header(
        &mut self,
        bp: &BlockPointer,
        dva: Dva,
    ) -> Result<Vec<BlockPointer>, BlockError> {
        Ok(self.sized_header(bp, dva)?.0)
    }

    /// The block pointers in the gang header at `dva`, and its size in bytes.
    fn sized_header(
        &mut self,
        bp: &BlockPointer,
        dva: Dva,
    ) -> Result<(Vec<BlockPointer>, usize), BlockError> {
        let size = self.store.header_size(bp.dvas());
        self.charge(bp, size)?;
        let vdevs = self.store.vdevs();
        let good = |data: &Abd| verify::gang_header(bp, &data.bytes()).is_some();
        let (vdev, offset, txg) = (dva.vdev.into(), dva.offset, bp.physical_birth());
        let outcome = vdevs.read_one(&BlockRead { vdev, offset, size, txg, verify: &good });
        self.store.note_faults(&vdevs, (bp, self.at), outcome.faults);
        let data = outcome.block.map_err(|source| vdev_error(bp, self.at, source))?;
        let data = data.bytes();
        let Some(header) = verify::gang_header(bp, &data) else {
            return Err(BlockError::Checksum { at: self.at, bp: Box::new(*bp) });
        };
        Ok((self.pointers(bp, &header)?, header.len()))
    }

    fn pointers(
        &self,
        bp: &BlockPointer,
        header: &Bytes<'_>,
    ) -> Result<Vec<BlockPointer>, BlockError> {
        let count = header.len().saturating_sub(EMBEDDED_SIZE) / BLKPTR_SIZE;
        let pointer = |i: usize| BlockPointer::decode(header, i * BLKPTR_SIZE);
        let pointers: Result<Vec<_>, _> = (0..count).map(pointer).collect();
        pointers.map_err(|source| BlockError::Decode { at: self.at, bp: Box::new(*bp), source })
    }

    fn charge(&mut self, bp: &BlockPointer, bytes: u64) -> Result<(), BlockError> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(self.bad(bp, "too many copies that do not fit together")),
        }
    }

    fn bad(&self, bp: &BlockPointer, why: &str) -> BlockError {
        let source = DecodeError::invalid("gang block", why);
        BlockError::Decode { at: self.at, bp: Box::new(*bp), source }
    }
}
