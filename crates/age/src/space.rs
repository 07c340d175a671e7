//! Space for simulated blocks, out of the pool's own allocator.
//!
//! A block of the simulation is an extent that the allocator handed out in syncing context, and to
//! which nothing is written. [`Space`] allocates and frees such blocks for one transaction group;
//! [`Books`] keep count over all groups. No block pointer refers to these extents, so a tool that
//! sums up block pointers finds them leaked; space maps have them as any others.
//!
//! A block for which there is no segment becomes a gang: a header of one sector and as many parts
//! as it takes, each as large as there is room for. OpenZFS would put at most three parts behind a
//! header and nest headers; here one header stands for all.

use crate::device::SparseDisk;
use cenote_format::LABEL_START;
use cenote_format::blkptr::Dva;
use cenote_store::alloc::{AllocError, Allocator, Class, Request};
use hdrhistogram::Histogram;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Longest allocation that is told apart, nanoseconds.
const LONGEST: u64 = 60_000_000_000;
/// Bytes that a gang header asks for.
const HEADER: u64 = 512;

/// Where a block is: its vdev in the highest byte, then its offset in units of 512 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place(u64);

impl Place {
    /// This offset of this vdev.
    pub fn new(vdev: u64, offset: u64) -> Place {
        Place(vdev << 56 | offset >> 9)
    }

    /// The vdev.
    pub fn vdev(self) -> u64 {
        self.0 >> 56
    }

    /// The offset in bytes.
    pub fn offset(self) -> u64 {
        (self.0 & ((1 << 56) - 1)) << 9
    }

    /// The place so many bytes further on.
    pub fn after(self, bytes: u64) -> Place {
        Place(self.0 + (bytes >> 9))
    }
}

/// Why a simulation cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stop {
    /// There is no room.
    #[error("the pool is full")]
    Full,
    /// The allocator disagrees about what is allocated.
    #[error("{0}")]
    Broken(String),
}

/// Blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    /// Blocks, each copy counted.
    pub blocks: u64,
    /// Bytes allocated for them.
    pub bytes: u64,
}

/// What the simulation has done so far.
pub(crate) struct Books {
    /// Nanoseconds of each allocation.
    pub latency: Histogram<u64>,
    /// Data that would have been written.
    pub data: Tally,
    /// Metadata that would have been written.
    pub metadata: Tally,
    /// Blocks that became gangs.
    pub gangs: u64,
    /// Bytes that are allocated to simulated blocks.
    pub held: u64,
    /// Parts of each gang block.
    parts: HashMap<Place, Vec<(Place, u64)>>,
}

impl Books {
    /// Nothing done yet.
    pub fn new() -> Result<Books, hdrhistogram::CreationError> {
        Ok(Books {
            latency: Histogram::new_with_bounds(1, LONGEST, 2)?,
            data: Tally::default(),
            metadata: Tally::default(),
            gangs: 0,
            held: 0,
            parts: HashMap::new(),
        })
    }
}

/// Allocating and freeing in one transaction group.
pub(crate) struct Space<'a> {
    pub allocator: &'a Arc<Allocator>,
    pub txg: u64,
    pub disks: &'a [Arc<SparseDisk>],
    pub books: &'a mut Books,
    /// Bytes of a sector.
    pub sector: u64,
}

impl Space<'_> {
    /// A block of data, of so many bytes.
    pub fn data(&mut self, size: u64) -> Result<Place, Stop> {
        let [place, _] = self.block(size, 1)?;
        self.books.data.blocks += 1;
        self.books.data.bytes += size;
        Ok(place)
    }

    /// A block of metadata in two copies.
    pub fn metadata(&mut self, size: u64) -> Result<[Place; 2], Stop> {
        let places = self.block(size, 2)?;
        self.books.metadata.blocks += 2;
        self.books.metadata.bytes += 2 * size;
        Ok(places)
    }

    /// Gives up a block; `size` is what it was allocated with.
    pub fn free(&mut self, place: Place, size: u64) -> Result<(), Stop> {
        if !self.books.parts.is_empty()
            && let Some(parts) = self.books.parts.remove(&place)
        {
            self.release(place, self.sector)?;
            return parts.into_iter().try_for_each(|(part, size)| self.release(part, size));
        }
        self.release(place, size)
    }

    fn release(&mut self, place: Place, size: u64) -> Result<(), Stop> {
        let vdev = u32::try_from(place.vdev()).unwrap_or(u32::MAX);
        let dva = Dva { vdev, offset: place.offset(), asize: size, gang: false };
        self.allocator.free(self.txg, &dva).map_err(|e| Stop::Broken(e.to_string()))?;
        self.books.held -= size;
        Ok(())
    }

    fn block(&mut self, size: u64, copies: usize) -> Result<[Place; 2], Stop> {
        match self.extents(size, copies) {
            Err(AllocError::NoSegment { .. }) if size > self.sector => {
                let mut places = [Place::default(); 2];
                for place in places.iter_mut().take(copies) {
                    *place = self.gang(size)?;
                }
                Ok(places)
            }
            found => found.map_err(stop),
        }
    }

    /// Extents that the allocator has for a block.
    fn extents(&mut self, size: u64, copies: usize) -> Result<[Place; 2], AllocError> {
        let (class, near) = (Class::Normal, None);
        let request = Request { psize: size, copies, class, allocator: 0, gang: false, near };
        let begun = Instant::now();
        let found = self.allocator.allocate(self.txg, &request);
        let took = begun.elapsed().as_nanos();
        self.books.latency.saturating_record(u64::try_from(took).unwrap_or(u64::MAX));
        let mut places = [Place::default(); 2];
        for (place, dva) in places.iter_mut().zip(found?.1) {
            *place = Place::new(dva.vdev.into(), dva.offset);
            self.books.held += dva.asize;
            if let Some(disk) = self.disks.get(dva.vdev as usize) {
                disk.discard(LABEL_START + dva.offset, dva.asize);
            }
        }
        Ok(places)
    }

    fn gang(&mut self, size: u64) -> Result<Place, Stop> {
        let [header, _] = self.extents(HEADER, 1).map_err(stop)?;
        let (mut parts, mut rest, mut piece) = (Vec::new(), size, size);
        while rest > 0 {
            piece = piece.min(rest);
            match self.extents(piece, 1) {
                Ok([part, _]) => {
                    parts.push((part, piece));
                    rest -= piece;
                }
                Err(AllocError::NoSegment { largest }) if largest >= self.sector => {
                    piece = largest / self.sector * self.sector;
                }
                Err(e) => return Err(stop(e)),
            }
        }
        self.books.parts.insert(header, parts);
        self.books.gangs += 1;
        Ok(header)
    }
}

fn stop(e: AllocError) -> Stop {
    match e {
        AllocError::NoSpace | AllocError::NoSegment { .. } => Stop::Full,
        e => Stop::Broken(e.to_string()),
    }
}
