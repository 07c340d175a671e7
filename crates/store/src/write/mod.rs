//! The write pipeline: from blocks to block pointers.
//!
//! # Idea
//!
//! A sync writes the dirty blocks of one level at a time, all of them in one call:
//!
//! ```text
//! write_many(blocks) ─ pack, on all cores: ── zeros ──────────────────────> hole
//!                      compress, checksum ─── tiny ───────────────────────> embedded pointer
//!                    ─ the same as before (strong checksum) ──────────────> the old pointer
//!                    ─ in a deduplication table (`dedup`) ────────────────> a pointer to what is there
//!                    ─ place, in order: in place in late passes, else allocate,
//!                      divided (gang) if no segment is large enough
//!                    ─ one batch to the devices ──> ARC ──────────────────> new pointers
//! ```
//!
//! There is no state machine per block: each stage is done for a whole *batch* of blocks, of about
//! [`BATCH`] bytes, before the next; while one batch is being written the next one is packed. So
//! processors and devices are busy at the same time, and no more than two batches of compressed
//! blocks are in memory, however many there are (three where they are written behind). What is not compressed is never copied.
//!
//! A sync goes on with the pointers of blocks that are collected to be written ([`Writer::write_behind`],
//! `write_behind`), and waits for all of them before it commits.
//!
//! # Rules of the format that are kept here
//!
//! - A block is stored compressed only if that saves an eighth, in whole sectors. One that came compressed
//!   ([`Payload`]) is stored as it came, filled up to whole sectors.
//! - From pass [`SYNC_PASS_DONT_COMPRESS`](tunables::SYNC_PASS_DONT_COMPRESS) of a sync on blocks that were born in it
//!   are not compressed any more, so that their size does not change, and from pass
//!   [`SYNC_PASS_REWRITE`](tunables::SYNC_PASS_REWRITE) on a block whose size did not change is written in place. So a
//!   sync ends: there comes a pass that allocates nothing.
//! - Every write is little-endian. A pointer's birth is the txg; its physical birth is not recorded
//!   apart.
//! - All copies of a block must be written. If one cannot be written, the block is not written.
//!
//! # Invariants
//!
//! - A request that fails leaves no space allocated.
//! - Space that is written to was allocated in the same txg: nothing that an older uberblock can
//!   reach is overwritten.

pub mod dedup;
mod devices;
mod dva;
mod headers;
mod pack;
mod payload;
mod protect;
mod removed;
mod removing;
mod write_behind;

use std::sync::Arc;

use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::checksum::{Checksum, Salt};
use cenote_format::compress::{Compression, LEVEL_DEFAULT};
use cenote_format::crypt::CryptError;
use cenote_format::dmu::DmuType;
use cenote_format::encode::EncodeError;
use cenote_format::invariant::broken;
use cenote_format::{DecodeError, SECTOR};
use cenote_vdev::traffic::{Content, Meter, Traffic};
use cenote_vdev::{BlockWrite, VdevError};
use rayon::prelude::*;

use crate::alloc::{AllocError, Allocator, Class};
use crate::arc::Key;
use crate::error::{BlockError, Bookmark};
use crate::keys::{LoadedKey, PLAIN, View};
use crate::pipeline::Store;
use crate::tunables;
use dedup::Tables;
use dva::DvaAllocation;
pub use headers::GangHeaders;
use pack::{Physical, Ready, pack};
use removed::Obsolete;
pub use removing::Copied;
use removing::Removing;

pub use devices::BlockDevices;
pub use payload::{Packed, Payload};
use write_behind::Collected;
pub(crate) use write_behind::WriteBehind;

/// Bytes of a batch.
const BATCH: usize = 16 << 20;

/// Blocks that are worth another thread to free them.
const BLOCKS_PER_THREAD: usize = 64;
/// Bytes that are worth another thread to pack.
const WORTH_A_THREAD: usize = 64 << 10;

/// Whether two blocks with the same checksum are the same (`ZCHECKSUM_FLAG_NOPWRITE`).
pub fn is_strong(checksum: Checksum) -> bool {
    checksum.is_dedup() || checksum == Checksum::Edonr
}

/// Whether a block is deduplicated (`zp_dedup`, `zp_dedup_verify`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dedup {
    /// It is not.
    #[default]
    Off,
    /// Blocks with equal names are equal.
    On,
    /// Blocks with equal names are compared.
    Verify,
}

/// How to write a block (`zio_prop_t`).
#[derive(Clone, Debug)]
pub struct WriteProps {
    /// Type of the object.
    pub object_type: DmuType,
    /// Level in the tree of indirect blocks; 0 is data.
    pub level: u8,
    /// Checksum function; not `On` or `Inherit`.
    pub checksum: Checksum,
    /// Compression function; not `On` or `Inherit`.
    pub compression: Compression,
    /// Its level, for zstd.
    pub compression_level: u8,
    /// Copies: 1 to 3.
    pub copies: usize,
    /// Copies of gang headers, if more.
    pub gang_copies: usize,
    /// Which vdevs it should go to.
    pub class: Class,
    /// A block of the normal class that has no more physical bytes than this goes to the special
    /// class, unless that has only left what is reserved for metadata (`special_small_blocks`).
    pub small: u64,
    /// Blocks (dnodes, for blocks of dnodes) below.
    pub fill: u64,
    /// Whether tiny blocks go into their pointer (feature `embedded_data`).
    pub embed: bool,
    /// Whether holes have a birth (feature `hole_birth`).
    pub hole_birth: bool,
    /// Whether a block with the same strong checksum as before need not be written.
    pub nopwrite: bool,
    /// Whether a block on disk takes its logical birth with it (`zp_rewrite`, feature `physical_rewrite`).
    pub keeps_birth: bool,
    /// Whether a block that the pool has already is not written again, if it is written behind.
    pub dedup: Dedup,
    /// What it is counted as.
    pub content: Content,
    /// The key of its dataset, which protects it ([`WriteProps::protected_by`]).
    pub key: Option<Arc<LoadedKey>>,
    /// It is of an encrypted dataset, and comes with its MACs ([`WriteProps::kept_raw`]).
    pub raw: bool,
}

impl Default for WriteProps {
    fn default() -> WriteProps {
        WriteProps {
            object_type: DmuType::NONE,
            level: 0,
            checksum: Checksum::Fletcher4,
            compression: Compression::Off,
            compression_level: LEVEL_DEFAULT,
            copies: 1,
            gang_copies: 1,
            class: Class::Normal,
            small: 0,
            fill: 1,
            embed: false,
            hole_birth: true,
            nopwrite: false,
            keeps_birth: false,
            dedup: Dedup::Off,
            content: Content::Data,
            key: None,
            raw: false,
        }
    }
}

/// One block of a batch.
#[derive(Clone, Debug)]
pub struct WriteRequest {
    /// The block: a multiple of 512 bytes, at most 16 MiB.
    pub data: Payload,
    /// The block in its owner's eyes.
    pub at: Bookmark,
    /// How to write it.
    pub props: WriteProps,
    /// What is there now.
    pub previous: BlockPointer,
    /// Pass of the sync, from 1.
    pub pass: u32,
}

impl WriteRequest {
    /// Whether the block was written in this txg already.
    fn rewrites(&self, txg: u64) -> bool {
        !self.previous.is_hole() && self.previous.birth() == txg
    }
}

/// Why a block was not written or freed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WriteError {
    /// There is no space for it.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// Its properties or size are not what can be written.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The same, found by another part of the format.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A gang header to be rewritten or freed cannot be read.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// It could not be encrypted.
    #[error(transparent)]
    Crypt(#[from] CryptError),
    /// The devices failed.
    #[error(transparent)]
    Vdev(#[from] VdevError),
}

/// Writes and frees the blocks of one pool.
#[derive(Clone)]
pub struct Writer {
    store: Arc<Store>,
    allocator: Arc<Allocator>,
    devices: Arc<dyn BlockDevices>,
    written: Arc<Meter>,
    obsolete: Arc<Obsolete>,
    removing: Arc<Removing>,
    gang_headers: Arc<GangHeaders>,
    tables: Option<Arc<dyn Tables>>,
}

/// A block between the stages.
enum Stage {
    Done(Result<BlockPointer, WriteError>),
    /// Its writes are the next so many of the batch.
    Writing(Box<Flying>),
}

impl Stage {
    /// The pointer, before the block is written (`zio_ready`).
    fn pointer(&self) -> Result<BlockPointer, WriteError> {
        match self {
            Stage::Done(result) => result.clone(),
            Stage::Writing(flying) => Ok(flying.bp),
        }
    }

    /// What will be written of it, and how many bytes.
    fn amount(&self) -> Option<(Content, u64)> {
        match self {
            Stage::Done(_) => None,
            Stage::Writing(flying) => Some((flying.content, flying.bytes)),
        }
    }
}

struct Flying {
    bp: BlockPointer,
    at: Bookmark,
    physical: Physical,
    /// The block unpacked, unless it came compressed.
    logical: Option<Abd>,
    /// Which readers may see it unpacked.
    view: View,
    writes: usize,
    content: Content,
    /// Of all writes.
    bytes: u64,
    taken: Vec<cenote_format::blkptr::Dva>,
}

/// As many requests from the start as make up a batch, and the rest.
fn first_batch(requests: &[WriteRequest]) -> (&[WriteRequest], &[WriteRequest]) {
    let mut bytes = 0usize;
    let fits = |request: &&WriteRequest| {
        let before = bytes;
        bytes += request.data.len();
        before == 0 || bytes <= BATCH
    };
    requests.split_at(requests.iter().take_while(fits).count())
}

impl Writer {
    /// A writer into what `store` reads; space comes from `allocator`.
    pub fn new(
        store: Arc<Store>,
        allocator: Arc<Allocator>,
        devices: Arc<dyn BlockDevices>,
    ) -> Writer {
        let (written, obsolete, removing, gang_headers) = Default::default();
        let tables = None;
        Writer { store, allocator, devices, written, obsolete, removing, gang_headers, tables }
    }

    /// The same, with the tables of blocks that are not written again.
    pub fn with_tables(self, tables: Arc<dyn Tables>) -> Writer {
        Writer { tables: Some(tables), ..self }
    }

    /// How large the headers of gang blocks may be.
    pub fn gang_headers(&self) -> &GangHeaders {
        &self.gang_headers
    }

    /// The allocator.
    pub fn allocator(&self) -> &Arc<Allocator> {
        &self.allocator
    }

    /// Blocks that were written so far, those that are [written behind](Writer::write_behind) from when they are
    /// taken over. Their bytes are those handed to the devices: of all copies,
    /// of gang headers too, without parity, mirroring and padding. Holes, embedded blocks and
    /// blocks that were there already are not written.
    pub fn written(&self) -> Traffic {
        self.written.now()
    }

    /// As [`Writer::write_many`], but that blocks may not be written yet when it returns (`zio_nowait`): they are by
    /// [`Writer::drain`], which says whether they could be. They can be read at once. Where everything happens in the calling
    /// threads ([`alloc::Options`](crate::alloc::Options)) these write them as well.
    pub fn write_behind(
        &self,
        txg: u64,
        requests: &[WriteRequest],
    ) -> Vec<Result<BlockPointer, WriteError>> {
        let (salt, unit) = (self.store.salt(), self.unit());
        let mut pointers = Vec::with_capacity(requests.len());
        let (mut chunk, mut rest) = first_batch(requests);
        while !chunk.is_empty() {
            let packed = self.pack_all(chunk, txg, unit, &salt);
            self.load_names(chunk, &packed);
            let mut batch = Vec::with_capacity(chunk.len());
            let allocate =
                |(request, packed)| self.allocate_behind(request, packed, txg, &mut batch);
            let staged: Vec<Stage> = chunk.iter().zip(packed).map(allocate).collect();
            pointers.extend(staged.iter().map(Stage::pointer));
            self.start(txg, batch, staged);
            (chunk, rest) = first_batch(rest);
        }
        pointers
    }

    /// Has a batch written while the caller goes on.
    fn start(&self, txg: u64, batch: Vec<BlockWrite>, staged: Vec<Stage>) {
        let mut writes = batch.into_iter();
        let collect = |stage| {
            let Stage::Writing(flying) = stage else { return None };
            let writes: Vec<BlockWrite> = writes.by_ref().take(flying.writes).collect();
            self.written.add(flying.content, 1, flying.bytes);
            let key = Key::of(&flying.bp);
            let key = key.unwrap_or_else(|| broken(format_args!("{:?} is written", flying.bp)));
            Some(Collected { key, flying, writes })
        };
        let blocks: Vec<Collected> = staged.into_iter().filter_map(collect).collect();
        if !blocks.is_empty() {
            self.store.write_behind().push(self, txg, blocks);
        }
    }

    /// Writes what [`Writer::write_behind`] left, and waits for all that it began (`zio_wait`).
    ///
    /// Errors: a block could not be written, now or at any time before.
    pub fn drain(&self) -> Result<(), WriteError> {
        self.store.write_behind().drain()
    }

    /// Writes a batch of blocks in `txg`; their pointers in the order of `requests` (`zio_write`). What was
    /// there before is not freed: if the pointer is another one, that is for the caller to do.
    ///
    /// The blocks are durable when the devices were flushed.
    pub fn write_many(
        &self,
        txg: u64,
        requests: &[WriteRequest],
    ) -> Vec<Result<BlockPointer, WriteError>> {
        let (salt, unit) = (self.store.salt(), self.unit());
        let pack = |chunk: &[WriteRequest]| self.pack_all(chunk, txg, unit, &salt);
        let mut written = Vec::with_capacity(requests.len());
        let (mut chunk, mut rest) = first_batch(requests);
        let mut packed = pack(chunk);
        while !chunk.is_empty() {
            let (next, after) = first_batch(rest);
            let mut batch = Vec::with_capacity(chunk.len());
            let allocate = |(request, packed)| self.allocate(request, packed, txg, &mut batch);
            let staged: Vec<Stage> = chunk.iter().zip(packed).map(allocate).collect();
            let (mut next_packed, mut results) = (Vec::new(), Vec::new());
            if next.is_empty() {
                results = self.devices.write_many(&batch);
            } else {
                rayon::in_place_scope(|scope| {
                    scope.spawn(|_| next_packed = pack(next));
                    results = self.devices.write_many(&batch);
                });
            }
            let mut results = results.into_iter();
            written.extend(staged.into_iter().map(|stage| {
                let block = stage.amount();
                let result = self.finish(stage, txg, &mut results);
                if let Some((content, bytes)) = block.filter(|_| result.is_ok()) {
                    self.written.add(content, 1, bytes);
                }
                result
            }));
            (chunk, rest, packed) = (next, after, next_packed);
        }
        written
    }

    fn pack_all(
        &self,
        requests: &[WriteRequest],
        txg: u64,
        unit: u64,
        salt: &Salt,
    ) -> Vec<Result<Ready, WriteError>> {
        let bytes: usize = requests.iter().map(|request| request.data.len()).sum();
        // Another thread is woken, and waited for, only where it is worth it.
        let each = WORTH_A_THREAD.checked_div(bytes / requests.len().max(1)).unwrap_or(1);
        let all = requests.par_iter().with_min_len(each.max(1));
        if requests.iter().all(|request| request.props.key.is_none()) {
            return all.map(|request| pack(request, None, (txg, unit), salt)).collect();
        }
        let params = protect::params(requests, self.store.keys());
        let each = |(request, params)| pack(request, params?, (txg, unit), salt);
        all.zip(params).map(each).collect()
    }

    /// As [`Writer::allocate`], of a block that is not written again if it is in a deduplication table.
    fn allocate_behind(
        &self,
        request: &WriteRequest,
        packed: Result<Ready, WriteError>,
        txg: u64,
        batch: &mut Vec<BlockWrite>,
    ) -> Stage {
        let once = match &packed {
            Ok(Ready::Physical(physical)) => self.allocate_once(request, physical, txg, batch),
            _ => None,
        };
        once.unwrap_or_else(|| self.allocate(request, packed, txg, batch))
    }

    /// Allocates the block's DVAs (`zio_dva_allocate`) and adds its writes to the batch.
    fn allocate(
        &self,
        request: &WriteRequest,
        packed: Result<Ready, WriteError>,
        txg: u64,
        batch: &mut Vec<BlockWrite>,
    ) -> Stage {
        let physical = match packed {
            Ok(Ready::Physical(physical)) => physical,
            Ok(Ready::Pointer(bp)) => return Stage::Done(Ok(bp)),
            Err(e) => return Stage::Done(Err(e)),
        };
        if self.is_nop(request, &physical, txg) {
            return Stage::Done(Ok(request.previous));
        }
        let previous = &request.previous;
        let in_place = request.rewrites(txg)
            && request.pass >= tunables::SYNC_PASS_REWRITE.small()
            && !previous.is_embedded()
            && previous.psize() == physical.psize()
            && previous.dvas().count() >= request.props.copies;
        let mut allocation = DvaAllocation::new(self, request, txg);
        let pointer = match in_place {
            true => allocation.rewrite(previous, &physical, request),
            false => allocation.allocate_block(&physical),
        };
        let DvaAllocation { writes: placed, taken, .. } = allocation;
        match pointer {
            Err(e) => Stage::Done(Err(e)),
            Ok(bp) => {
                let keeps = request.props.keeps_birth && previous.dvas().next().is_some();
                let bp = if keeps { bp.rewritten(previous.logical_birth()) } else { bp };
                let (content, count) = (request.props.content, placed.len());
                let bytes = placed.iter().map(|w| w.data.len() as u64).sum();
                let logical = request.data.plain().cloned();
                // An object set on disk has its MACs in it.
                let has_macs =
                    physical.protection.is_some() && bp.object_type() == DmuType::OBJSET.0;
                let logical = logical.filter(|_| !has_macs);
                let view = request.props.key.as_ref().map_or(PLAIN, |key| key.id());
                let (at, writes) = (request.at, count);
                let flying =
                    Flying { bp, at, physical, logical, view, writes, content, bytes, taken };
                batch.extend(placed);
                Stage::Writing(Box::new(flying))
            }
        }
    }

    /// Whether the block is what is there already (`zio_nop_write`).
    fn is_nop(&self, request: &WriteRequest, physical: &Physical, txg: u64) -> bool {
        let (props, previous) = (&request.props, &request.previous);
        props.nopwrite
            && tunables::NOPWRITE_ENABLED.is_on()
            && is_strong(props.checksum)
            && props.level == 0
            && props.compression != Compression::Off
            && !previous.is_hole()
            && !previous.is_embedded()
            && !previous.uses_crypt()
            && !previous.is_dedup()
            && previous.birth() != txg
            && previous.byte_order() == cenote_format::ByteOrder::Little
            && previous.checksum_type() == props.checksum as u8
            && previous.compression() == physical.compression as u8
            && previous.object_type() == props.object_type.0
            && previous.lsize() == physical.lsize
            && previous.psize() == physical.psize()
            && previous.dvas().count() == props.copies
            && previous.checksum() == physical.sum
            // What is on a removed vdev goes to one that is there.
            && previous.dvas().all(|dva| self.allocator.has_vdev(dva.vdev.into()))
    }

    /// The end of a block's write (`zio_done`): its pointer, with the block in the caches; or the first error, with its space
    /// given back.
    fn finish(
        &self,
        stage: Stage,
        txg: u64,
        results: &mut impl Iterator<Item = Result<(), VdevError>>,
    ) -> Result<BlockPointer, WriteError> {
        let Flying { bp, at, physical, logical, view, writes, taken, .. } = match stage {
            Stage::Done(result) => return result,
            Stage::Writing(flying) => *flying,
        };
        let lost = || Err(VdevError::Broken("a batch of writes without answers".into()));
        let mine: Vec<_> = (0..writes).map(|_| results.next().unwrap_or_else(lost)).collect();
        if let Some(failed) = mine.into_iter().find_map(Result::err) {
            for dva in taken {
                // Some of it may have been written, so it waits as anything that was.
                if let Err(why) = self.allocator.free(txg, &dva) {
                    tracing::warn!("{at}: space of a block that was not written is leaked: {why}");
                }
            }
            return Err(failed.into());
        }
        self.store.written(&bp, at, physical.data, (logical, view));
        Ok(bp)
    }

    /// Frees a block in `txg`, with its gang headers and their parts; nothing for holes and
    /// embedded blocks (`zio_free`, `zio_free_sync`).
    ///
    /// Errors: what cannot be freed; the rest is freed all the same.
    pub fn free(&self, txg: u64, bp: &BlockPointer, at: Bookmark) -> Result<(), WriteError> {
        self.free_at(txg, bp, at, 0)
    }

    /// The txg in which blocks were freed is on disk and shown: they leave the caches.
    pub fn forget_freed(&self) {
        self.store.forget_freed();
    }

    /// As [`Writer::free`], of many blocks of one owner, on all cores.
    pub fn free_many(
        &self,
        txg: u64,
        blocks: &[BlockPointer],
        at: Bookmark,
    ) -> Result<(), WriteError> {
        let free = |bp| self.free(txg, bp, at);
        if !self.allocator.works_in_background() {
            return blocks.iter().map(free).fold(Ok(()), Result::and);
        }
        // Their headers are read, which the threads that all pools share do not wait for.
        let gangs = blocks.iter().filter(|bp| bp.is_gang());
        let freed = gangs.map(free).fold(Ok(()), Result::and);
        let blocks = blocks.par_iter().with_min_len(BLOCKS_PER_THREAD);
        let others = blocks.filter(|bp| !bp.is_gang());
        freed.and(others.map(free).reduce(|| Ok(()), Result::and))
    }

    fn free_at(
        &self,
        txg: u64,
        bp: &BlockPointer,
        at: Bookmark,
        depth: usize,
    ) -> Result<(), WriteError> {
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        let mut result = Ok(());
        if bp.is_gang() {
            let children = self.store.gang_parts(bp, at, depth).unwrap_or_else(|e| {
                tracing::warn!("{at}: what a gang block consists of is leaked: {e}");
                Vec::new()
            });
            for child in children {
                result = result.and(self.free_at(txg, &child, at, depth + 1));
            }
        }
        for dva in bp.dvas() {
            result = result.and(self.free_dva(txg, &dva, bp.physical_birth()));
        }
        self.store.freed(bp);
        result
    }

    /// Bytes of the smallest sector of the pool, which all sizes are rounded up to.
    fn unit(&self) -> u64 {
        self.allocator.smallest().max(SECTOR)
    }
}
