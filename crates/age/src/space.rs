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
//!
//! What a group frees is handed to the allocator at its end, sorted by place and on all processors:
//! random overwrite frees a few blocks in each of thousands of metaslabs, whose sets would have to come
//! from memory for each of them. As nothing that was freed is allocated again in the same group, the
//! result is the same.
//!
//! Metaslabs are loaded ahead between two groups, as many as the engine's tunables say, and, where a
//! thread in the background would do so in a running pool, after every [`PRELOAD`] requests.

use crate::device::Bay;
use cenote_format::blkptr::Dva;
use cenote_store::alloc::{AllocError, Allocator, Class, Request};
use hdrhistogram::Histogram;
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Longest allocation that is told apart, nanoseconds.
const LONGEST: u64 = 60_000_000_000;
/// Bytes that a gang header asks for.
const HEADER: u64 = 512;
/// Requests after which metaslabs are loaded ahead.
const PRELOAD: u64 = 4096;
/// One request of so many is timed.
const TIMED: u64 = 4;
/// Extents that are freed in one go.
const FREES: usize = 2048;
/// Bytes of metadata that is allocated in a row while a pool is filled.
const RUN: u64 = 1 << 20;
/// The engine's allocators of data and of metadata, which have metaslabs of their own.
const DATA: usize = 0;
const METADATA: usize = 1;

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
    /// Requests to the allocator.
    requests: u64,
    /// Extents, with their bytes, that this group frees.
    freed: Vec<(Place, u64)>,
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
            requests: 0,
            freed: Vec::new(),
            parts: HashMap::new(),
        })
    }
}

/// Allocating and freeing in one transaction group.
pub(crate) struct Space<'a> {
    pub allocator: &'a Arc<Allocator>,
    pub txg: u64,
    pub bays: &'a [Bay],
    pub books: &'a mut Books,
    /// Bytes of the pool's smallest sector.
    pub sector: u64,
}

impl Space<'_> {
    /// A block of data, of so many bytes.
    pub fn data(&mut self, size: u64) -> Result<Place, Stop> {
        let [place, _] = self.block(size, 1, DATA)?;
        self.books.data.blocks += 1;
        self.books.data.bytes += self.asize(place.vdev(), size);
        Ok(place)
    }

    /// Room in a row for data of up to `size` bytes, a multiple of `block`, and how many bytes it
    /// has: fewer if the pool has no such segment, but at least one block.
    pub fn extent(&mut self, size: u64, block: u64) -> Result<(Place, u64), Stop> {
        let mut size = size;
        loop {
            match self.extents(size, 1, DATA) {
                Ok([place, _]) => {
                    self.books.data.blocks += 1;
                    self.books.data.bytes += size;
                    return Ok((place, size));
                }
                Err(AllocError::NoSegment { largest }) if largest >= block && size > block => {
                    size = (largest / block * block).min(size - block);
                }
                Err(AllocError::NoSegment { .. }) => return Ok((self.data(block)?, block)),
                Err(e) => return Err(stop(e)),
            }
        }
    }

    /// A block of metadata in two copies.
    pub fn metadata(&mut self, size: u64) -> Result<[Place; 2], Stop> {
        let places = self.block(size, 2, METADATA)?;
        self.count_metadata(places, size, 1);
        Ok(places)
    }

    /// Blocks of metadata in a row, in two copies; where the first ones are. `None`: there is no
    /// such room.
    pub fn metadata_run(&mut self, size: u64, blocks: u64) -> Result<Option<[Place; 2]>, Stop> {
        match self.extents(size * blocks, 2, METADATA) {
            Ok(places) => {
                self.count_metadata(places, size, blocks);
                Ok(Some(places))
            }
            Err(AllocError::NoSegment { .. }) => Ok(None),
            Err(e) => Err(stop(e)),
        }
    }

    fn count_metadata(&mut self, places: [Place; 2], size: u64, blocks: u64) {
        self.books.metadata.blocks += 2 * blocks;
        for place in places {
            self.books.metadata.bytes += blocks * self.asize(place.vdev(), size);
        }
    }

    /// How many blocks of `size` bytes may be allocated in a row and freed one by one.
    pub fn run(&self, size: u64) -> usize {
        match self.bays.iter().all(Bay::is_plain) {
            true => (RUN / size.max(1)).max(1) as usize,
            false => 1,
        }
    }

    /// Bytes that a block takes on a vdev.
    pub fn asize(&self, vdev: u64, size: u64) -> u64 {
        self.bays.get(vdev as usize).map_or(size, |bay| bay.asize(size))
    }

    /// Allocates whatever is free of some ranges of a metaslab, in order, to whom they belong.
    pub fn claim(
        &mut self,
        vdev: u64,
        metaslab: u64,
        ranges: impl Iterator<Item = (u64, u64)>,
    ) -> Result<(), Stop> {
        let claimed = self.allocator.claim(self.txg, vdev, metaslab, ranges).map_err(stop)?;
        self.books.held += claimed;
        Ok(())
    }

    /// Gives up a block; `size` is what it was allocated with.
    pub fn free(&mut self, place: Place, size: u64) {
        self.free_extent(place, self.asize(place.vdev(), size));
    }

    /// Gives up so many bytes of a vdev's space.
    pub fn free_extent(&mut self, place: Place, asize: u64) {
        if !self.books.parts.is_empty()
            && let Some(parts) = self.books.parts.remove(&place)
        {
            self.release(place, self.asize(place.vdev(), HEADER));
            for (part, size) in parts {
                self.release(part, self.asize(part.vdev(), size));
            }
            return;
        }
        self.release(place, asize);
    }

    fn release(&mut self, place: Place, asize: u64) {
        self.books.held -= asize;
        self.books.freed.push((place, asize));
    }

    /// Frees what this group has given up.
    pub fn hand_back(&mut self) -> Result<(), Stop> {
        let Space { allocator, txg, books, .. } = self;
        books.freed.par_sort_unstable();
        let free = |(place, asize): &(Place, u64)| {
            let vdev = u32::try_from(place.vdev()).unwrap_or(u32::MAX);
            let dva = Dva { vdev, offset: place.offset(), asize: *asize, gang: false };
            allocator.free(*txg, &dva).map_err(|e| Stop::Broken(e.to_string()))
        };
        let pieces = books.freed.par_chunks(FREES);
        pieces.try_for_each(|piece| piece.iter().try_for_each(free))?;
        books.freed.clear();
        Ok(())
    }

    fn block(&mut self, size: u64, copies: usize, allocator: usize) -> Result<[Place; 2], Stop> {
        match self.extents(size, copies, allocator) {
            Err(AllocError::NoSegment { .. }) if size > self.sector => {
                let mut places = [Place::default(); 2];
                for place in places.iter_mut().take(copies) {
                    *place = self.gang(size, allocator)?;
                }
                Ok(places)
            }
            found => found.map_err(stop),
        }
    }

    /// Extents that the allocator has for a block.
    fn extents(
        &mut self,
        size: u64,
        copies: usize,
        allocator: usize,
    ) -> Result<[Place; 2], AllocError> {
        self.books.requests += 1;
        if self.books.requests.is_multiple_of(PRELOAD) {
            self.allocator.preload();
        }
        let (class, near) = (Class::Normal, None);
        let request =
            Request { psize: size, copies, class, allocator, gang: false, near, among: None };
        let found = match self.books.requests.is_multiple_of(TIMED) {
            true => {
                let begun = Instant::now();
                let found = self.allocator.allocate(self.txg, &request);
                let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.books.latency.saturating_record(took);
                found
            }
            false => self.allocator.allocate(self.txg, &request),
        };
        let mut places = [Place::default(); 2];
        for (place, dva) in places.iter_mut().zip(found?.1) {
            *place = Place::new(dva.vdev.into(), dva.offset);
            self.books.held += dva.asize;
            if let Some(bay) = self.bays.get(dva.vdev as usize) {
                bay.discard(dva.offset, dva.asize);
            }
        }
        Ok(places)
    }

    fn gang(&mut self, size: u64, allocator: usize) -> Result<Place, Stop> {
        let [header, _] = self.extents(HEADER, 1, allocator).map_err(stop)?;
        let (mut parts, mut rest, mut piece) = (Vec::new(), size, size);
        while rest > 0 {
            piece = piece.min(rest);
            match self.extents(piece, 1, allocator) {
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
