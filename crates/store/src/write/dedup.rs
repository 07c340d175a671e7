//! Deduplication in the write pipeline (`zio_ddt_write`): a block that the pool has already is not written again.
//!
//! # Idea
//!
//! ```text
//! batch, packed ── names of blocks ──> table: reads what it has of all of them, together
//!      each block ── place ──> the table has it: its DVAs, one reference more
//!                          ──> it has not, or not enough copies: allocate, write; the table learns the DVAs
//!                          ──> it takes no more entries: an ordinary write, without the bit
//! ```
//!
//! A block is named by its checksum, both its sizes and its compression ([`Name`]). The checksum of an encrypted block has its MAC
//! in it, and equal blocks of one key are encrypted alike (`super::protect`): so only those share, and the tables need no key.
//! What the table of names is, and how it gets on disk, is for the floors above to know: they implement [`Tables`].
//!
//! # Invariants
//!
//! - A block that another block of the batch equals is placed once: the table is told of DVAs as they are allocated.
//! - With `verify` a block shares DVAs only if the bytes there were compared. They are compared without the
//!   table's lock, so that the table says afterwards whether it still has what was compared.
//! - Only blocks that are written behind are deduplicated: their group fails as a whole if one of them cannot be written,
//!   so no pointer is left to a block that is not there.

use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::checksum::Checksum;
use cenote_format::compress::Compression;
use cenote_format::encode::blkptr::BlockProps;
use cenote_vdev::BlockWrite;

use super::dva::DvaAllocation;
use super::pack::{Physical, Ready};
use super::{Dedup, Flying, Stage, WriteError, WriteRequest, Writer};
use crate::alloc::AllocError;
use crate::keys::PLAIN;

/// What blocks that are equal have in common (`ddt_key_t`, and whose table it is in).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// The checksum function.
    pub checksum: Checksum,
    /// The checksum.
    pub sum: [u64; 4],
    /// Logical bytes.
    pub lsize: u64,
    /// Physical bytes.
    pub psize: u64,
    /// The compression function.
    pub compression: Compression,
    /// It is encrypted.
    pub encrypted: bool,
}

/// Where a block is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its copies, or those of its gang header.
    pub dvas: Vec<Dva>,
    /// The group that wrote it.
    pub birth: u64,
}

/// A block of a table, to be compared.
#[derive(Clone, Debug)]
pub struct Known {
    /// Where it is.
    pub place: Place,
    /// Copies of it are being written in this group.
    pub fresh: bool,
    /// Its physical bytes, if this group writes it and they were kept.
    pub data: Option<Abd>,
}

/// How a block was placed.
#[derive(Debug)]
pub enum Placed {
    /// It is at this place. The table counts one reference more.
    At(Place),
    /// It is not deduplicated.
    Apart,
    /// The table does not have any more what the block was compared with.
    Changed,
}

/// What a block wants of a table.
pub struct Wish<'a> {
    /// The block.
    pub name: Name,
    /// Copies that it is to have.
    pub copies: usize,
    /// Of an encrypted block: what its pointers have in the place of a third copy.
    pub params: Option<[u64; 2]>,
    /// With `verify`: its bytes, and where equal ones were found. `None` within: the table had nothing.
    pub compared: Option<(&'a Abd, Option<Place>)>,
}

/// Allocates so many copies of a block, of which so many are there already.
pub type Allocate<'a> = dyn FnMut(usize, usize) -> Result<Option<Vec<Dva>>, WriteError> + 'a;

/// The deduplication tables of a pool, as the write pipeline needs them.
pub trait Tables: Send + Sync {
    /// Reads what the tables have of these blocks. What cannot be read is as if it were not wanted: blocks of these
    /// names are placed apart.
    fn load(&self, names: &[Name]);

    /// What a table has of a block that was loaded.
    fn known(&self, name: &Name) -> Option<Known>;

    /// Places a block that was loaded (`zio_ddt_write`); new copies come from `allocate`.
    ///
    /// # Errors
    /// Those of `allocate`.
    fn place(
        &self,
        txg: u64,
        wish: &Wish<'_>,
        allocate: &mut Allocate<'_>,
    ) -> Result<Placed, WriteError>;
}

/// What a packed block is called, if it is to be deduplicated.
fn name(request: &WriteRequest, packed: &Result<Ready, WriteError>) -> Option<Name> {
    match packed {
        Ok(Ready::Physical(physical)) if request.props.dedup != Dedup::Off => {
            Some(physical.name(request.props.checksum))
        }
        _ => None,
    }
}

impl Physical {
    fn name(&self, checksum: Checksum) -> Name {
        let (sum, lsize, psize, compression) =
            (self.sum, self.lsize, self.psize(), self.compression);
        let encrypted = self.protection.is_some();
        Name { checksum, sum, lsize, psize, compression, encrypted }
    }
}

impl Writer {
    /// Has the tables read what they have of the blocks of a batch.
    pub(super) fn load_names(
        &self,
        requests: &[WriteRequest],
        packed: &[Result<Ready, WriteError>],
    ) {
        let Some(tables) = &self.tables else { return };
        let names = requests.iter().zip(packed).filter_map(|(r, p)| name(r, p));
        let names: Vec<Name> = names.collect();
        if !names.is_empty() {
            tables.load(&names);
        }
    }

    /// Places a block by its table (`zio_ddt_write`); `None`: it is written as any other.
    pub(super) fn allocate_once(
        &self,
        request: &WriteRequest,
        physical: &Physical,
        txg: u64,
        batch: &mut Vec<BlockWrite>,
    ) -> Option<Stage> {
        // One that keeps its birth is another block than that of the table.
        if request.props.dedup == Dedup::Off || request.props.keeps_birth {
            return None;
        }
        let tables = self.tables.as_ref()?;
        let name = physical.name(request.props.checksum);
        let (mut writes, mut taken) = (Vec::new(), Vec::new());
        let placed = loop {
            let compared = match request.props.dedup {
                Dedup::Verify => match tables.known(&name) {
                    Some(known) if !self.is_equal(&known, physical, request) => return None,
                    known => Some((&physical.data, known.map(|known| known.place))),
                },
                _ => None,
            };
            let params = physical.protection.and_then(|protection| protection.words());
            let wish = Wish { name, copies: request.props.copies, params, compared };
            let mut allocate = |copies: usize, there: usize| {
                let mut allocation = DvaAllocation::new(self, request, txg);
                let found = allocation.allocate_more(physical, copies, there);
                (writes, taken) = (allocation.writes, allocation.taken);
                found
            };
            match tables.place(txg, &wish, &mut allocate) {
                Ok(Placed::Changed) => {}
                Ok(Placed::At(place)) => break place,
                Ok(Placed::Apart) => return None,
                Err(e) => return Some(Stage::Done(Err(e))),
            }
        };
        // A copy that is added to an older block: a leaf that misses it misses something of that block's group.
        writes.iter_mut().for_each(|write| write.txg = placed.birth);
        let bp = match self.shared_pointer(request, physical, txg, &placed) {
            Ok(bp) => bp,
            Err(e) => return Some(Stage::Done(Err(e))),
        };
        if writes.is_empty() {
            return Some(Stage::Done(Ok(bp)));
        }
        let (content, count) = (request.props.content, writes.len());
        let bytes = writes.iter().map(|w| w.data.len() as u64).sum();
        let (physical, logical) = (physical.clone(), request.data.plain().cloned());
        let view = request.props.key.as_ref().map_or(PLAIN, |key| key.id());
        let at = request.at;
        batch.extend(writes);
        Some(Stage::Writing(Box::new(Flying {
            bp,
            at,
            physical,
            logical,
            view,
            writes: count,
            content,
            bytes,
            taken,
        })))
    }

    /// A pointer to a block of a table (`ddt_bp_fill`).
    fn shared_pointer(
        &self,
        request: &WriteRequest,
        physical: &Physical,
        txg: u64,
        place: &Place,
    ) -> Result<BlockPointer, WriteError> {
        let bp = BlockPointer::new(&BlockProps {
            kind: request.props.object_type,
            level: request.props.level,
            checksum: request.props.checksum,
            compression: physical.compression,
            lsize: physical.lsize,
            psize: physical.psize(),
            dedup: true,
            dvas: &place.dvas,
            logical_birth: txg,
            physical_birth: if place.birth == txg { 0 } else { place.birth },
            fill: request.props.fill,
            sum: physical.sum,
        })?;
        match &physical.protection {
            Some(protection) => Ok(protection.mark(bp)?),
            None => Ok(bp),
        }
    }

    /// Whether the block at a place has these bytes (`zio_ddt_collision`). One that cannot be read has not.
    fn is_equal(&self, known: &Known, physical: &Physical, request: &WriteRequest) -> bool {
        if let Some(data) = &known.data {
            return data.is_same(&physical.data) || data.bytes() == physical.data.bytes();
        }
        if known.fresh {
            // It may not be on the devices yet.
            return false;
        }
        let birth = known.place.birth;
        let Ok(bp) = self.shared_pointer(request, physical, birth, &known.place) else {
            return false;
        };
        let found = self.store.read_many_raw(&[(bp, request.at)]).pop();
        found.is_some_and(|found| found.is_ok_and(|data| data.bytes() == physical.data.bytes()))
    }
}

impl DvaAllocation<'_> {
    /// Finds space for `copies` copies of a block of which `there` are on disk. A block that is in one piece there is
    /// not divided: `None`, there is no room for that.
    fn allocate_more(
        &mut self,
        physical: &Physical,
        copies: usize,
        there: usize,
    ) -> Result<Option<Vec<Dva>>, WriteError> {
        if there == 0 {
            let bp = self.allocate_block(physical)?;
            return Ok(Some(bp.dvas().collect()));
        }
        match self.allocate_whole(physical, copies) {
            Ok(dvas) => Ok(Some(dvas)),
            Err(WriteError::Alloc(AllocError::NoSegment { .. })) => Ok(None),
            Err(e) => Err(e),
        }
    }
}
