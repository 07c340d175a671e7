//! The read pipeline: from a block pointer to the block it names (`arc_read`, `zio_read`, `zio_execute`).
//!
//! A read passes the stages drawn at the head of the crate. Two rules hold throughout:
//!
//! 1. **Nothing is trusted before it is checked.** Sizes in a pointer are checked against the
//!    format's limits before a buffer is made; physical bytes are checked against the pointer's
//!    checksum before they are cached or unpacked.
//! 2. **Every copy is tried.** The vdev floor tries what redundancy it has within one DVA; here the
//!    next DVA is tried if that fails, and the copy that was lost is written anew from the one that
//!    was found. Only when no copy is left is the block lost, and then its [`Bookmark`] is remembered for
//!    `zpool status -v`. `crate::notes` says when that counts.
//!
//! A [`Store`] has the tree of vdevs, the ARC, the unpacked metadata, and the reads in flight
//! (`single_flight`). Each has a lock of its own, and no thread waits for a device with one of them.

mod caches;
mod copies;
mod crypt;
#[cfg(test)]
mod planted;
mod unpack;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Once, OnceLock, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use cenote_format::ByteOrder;
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::checksum::Salt;
use cenote_vdev::injection::Handlers;
use cenote_vdev::{Alarm, BlockRead, VdevTree, patience};
use parking_lot::{Mutex, RwLock};
use rayon::prelude::*;

use crate::Current;
use crate::arc::{Access, ArcCache, ArcStats, Key};
use crate::direct::{Direct, DirectStats};
use crate::errlist::ErrorLists;
use crate::error::{BlockError, Bookmark};
use crate::gang::first_of;
use crate::held;
use crate::injection::DataHandler;
use crate::keyless;
use crate::keys::{Keys, LoadedKey};
use crate::l2arc::L2arc;
use crate::notes::{Places, Unreadable};
use crate::persistent;
use crate::prefetch::{AheadShare, Prefetcher};
use crate::primary::{Caching, Policies};
use crate::single_flight::{Flight, SingleFlight};
use crate::verify;
use crate::write::WriteBehind;

use crypt::view_of;
pub(crate) use crypt::{is_vouched, voucher};
pub(crate) use unpack::{check, no_copy, unpack, vdev_error};
use unpack::{embedded, is_packed, keeps_decoded};

/// Batches with at least this many bytes in compressed blocks are unpacked on all cores.
const PARALLEL_BYTES: u64 = 256 << 10;

/// What is read ahead of one reader is at most this part of the ARC.
const AHEAD_SHARE: u64 = 4;

/// A block as its owner sees it: unpacked, `lsize` bytes.
#[derive(Clone, Debug)]
pub struct Block {
    /// The bytes.
    pub data: Abd,
    /// Byte order of the integers in it.
    pub order: ByteOrder,
}

/// Figures of a [`Store`].
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreStats {
    /// The ARC's sizes and counts, of all pools that share it.
    pub arc: ArcStats,
    /// Blocks of this pool that were not in the ARC.
    pub misses: u64,
    /// What was read and written past the ARC.
    pub direct: DirectStats,
}

/// The blocks of one pool.
pub struct Store {
    vdevs: ArcSwap<VdevTree>,
    salt: RwLock<Arc<Salt>>,
    arc: Arc<ArcCache>,
    /// The number of this pool in it.
    pool: u32,
    misses: AtomicU64,
    policies: Policies,
    pub(crate) l2arc: Arc<L2arc>,
    pub(crate) direct: Direct,
    flights: SingleFlight,
    prefetcher: OnceLock<Prefetcher>,
    /// Bytes that readers have asked for far ahead.
    far_ahead: Arc<AtomicU64>,
    errors: ErrorLists,
    /// Blocks of which wrong bytes were read, by pointers that nothing vouched for, and where these are.
    pub(crate) wrong: Mutex<BTreeMap<Bookmark, Places>>,
    /// The last group on disk, of a pool that is written to; 0: it is not.
    pub(crate) on_disk: AtomicU64,
    write_behind: Arc<WriteBehind>,
    keys: Keys,
    /// Blocks that were freed since the caches were last told, and whether they were metadata, which may be there unpacked.
    freed: Mutex<Vec<(Key, bool)>>,
    injected: Handlers<DataHandler>,
}

/// What a pointer asks for, before any I/O.
enum Start {
    Done(Block),
    Device(Key, Reader),
}

/// A block to be read.
type Wanted = (BlockPointer, Bookmark, Key);

/// The key that a reader of a block has, where the block is one of an encrypted dataset.
pub(crate) type Reader = Option<Arc<LoadedKey>>;

/// Where a wanted block is.
enum Found {
    Cached(Abd),
    /// Another thread (or the same batch) is reading it.
    InFlight,
    Missing,
}

/// Has the threads that compress, decompress and verify start before anyone needs them. If the program
/// has set up rayon's threads for itself, those are used. All pools share them, so they only compute:
/// one that waited for a device would keep other pools waiting.
fn start_workers() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let workers = rayon::ThreadPoolBuilder::new().thread_name(|i| format!("block-{i}"));
        if let Err(e) = workers.build_global() {
            tracing::debug!("rayon: {e}");
        }
    });
}

impl Store {
    /// A store over `vdevs` with an ARC of its own, which may take `arc_bytes` bytes.
    pub fn new(vdevs: Arc<VdevTree>, arc_bytes: u64) -> Arc<Store> {
        Store::with_arc(vdevs, ArcCache::new(arc_bytes))
    }

    /// A store over `vdevs`: with an ARC of its own of so many bytes, or with that of the process.
    pub fn of_size(vdevs: Arc<VdevTree>, arc_bytes: Option<u64>) -> Arc<Store> {
        Store::with_arc(vdevs, arc_bytes.map_or_else(ArcCache::of_process, ArcCache::new))
    }

    /// A store over `vdevs`, which shares an ARC with others. What it has there goes when it is dropped.
    pub fn with_arc(vdevs: Arc<VdevTree>, arc: Arc<ArcCache>) -> Arc<Store> {
        start_workers();
        Arc::new_cyclic(|this: &Weak<Store>| Store {
            vdevs: ArcSwap::new(vdevs),
            salt: RwLock::new(Arc::new(Salt::new([0; 32]))),
            pool: arc.join(this.clone()),
            arc,
            misses: AtomicU64::new(0),
            policies: Policies::default(),
            l2arc: Arc::default(),
            flights: SingleFlight::default(),
            prefetcher: OnceLock::new(),
            far_ahead: Arc::default(),
            errors: ErrorLists::default(),
            wrong: Mutex::default(),
            on_disk: AtomicU64::new(0),
            write_behind: Arc::default(),
            keys: Keys::default(),
            direct: Direct::default(),
            freed: Mutex::default(),
            injected: Handlers::default(),
        })
    }

    /// What threads sound that find the pool's state in memory wrong.
    pub fn alarm(&self) -> Arc<Alarm> {
        self.vdevs().alarm().clone()
    }

    /// What the ARC and cache devices are to keep of the dataset `objset` from now on; everything, unless it is told.
    pub fn set_caching(&self, objset: u64, what: impl Into<Caching>) {
        self.policies.set(objset, what.into());
    }

    /// Sets the pool's salt, known once the meta object set is open. Blocks of the MOS needed
    /// before that never use a salted checksum.
    pub fn set_salt(&self, salt: Salt) {
        *self.salt.write() = Arc::new(salt);
    }

    /// The pool's salt.
    pub(crate) fn salt(&self) -> Arc<Salt> {
        self.salt.read().clone()
    }

    /// What is written while its caller goes on.
    pub(crate) fn write_behind(&self) -> &Arc<WriteBehind> {
        &self.write_behind
    }

    /// The devices as they are now. Taking them costs neither a lock nor a counter that threads share.
    pub fn vdevs(&self) -> Current<VdevTree> {
        self.vdevs.load()
    }

    /// From now on `tree` is read and written, such as one that has more than the one before
    /// ([`VdevTree::extended`]). What is under way goes on with the tree that it began with. With the last
    /// of these the old tree goes, and devices that only it had are closed.
    pub fn replace_vdevs(&self, tree: Arc<VdevTree>) {
        tree.take_over();
        self.vdevs.store(tree);
    }

    /// Reads a block (`zio_read`, `arc_read`, `zio_wait`). A hole is `lsize` zeros.
    pub fn read(&self, bp: &BlockPointer, at: Bookmark) -> Result<Block, BlockError> {
        match persistent::is_active() {
            true => self.persist(|| self.read_now(bp, at)),
            false => self.read_now(bp, at),
        }
    }

    fn read_now(&self, bp: &BlockPointer, at: Bookmark) -> Result<Block, BlockError> {
        if held::is_active() {
            return self.read_held(bp, at);
        }
        let (key, reader) = match self.look(bp, at)? {
            Start::Done(block) => return Ok(block),
            Start::Device(key, reader) => (key, reader),
        };
        let block = self.unpacked(bp, at, (key, &reader), self.physical(bp, at, key));
        self.or_vouched(bp, at, (key, &reader), block).inspect_err(|e| self.remember(e))
    }

    /// Has the ARC hold a block that will be read, in the class of the calling thread's
    /// reads. It is not unpacked.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn warm(&self, bp: &BlockPointer, at: Bookmark) -> Result<(), BlockError> {
        match self.look(bp, at)? {
            Start::Done(_) => Ok(()),
            Start::Device(key, _) => self.physical(bp, at, key).map(drop),
        }
    }

    /// Reads a block for a change that must not wait for a device ([`held`]): from what it holds or
    /// from the caches.
    fn read_held(&self, bp: &BlockPointer, at: Bookmark) -> Result<Block, BlockError> {
        let (key, reader) = match self.look(bp, at)? {
            Start::Done(block) => return Ok(block),
            Start::Device(key, reader) => (key, reader),
        };
        if let Some(block) = held::get(&key) {
            return block;
        }
        match self.cached(&key, bp) {
            // A thread that waits for the lock must not wait for data to be unpacked. Metadata is kept unpacked.
            Some(physical) if !is_packed(bp) || keeps_decoded(bp) => {
                let block = self.unpacked(bp, at, (key, &reader), Ok(physical));
                self.or_vouched(bp, at, (key, &reader), block).inspect_err(|e| self.remember(e))
            }
            _ => Err(held::miss(bp, at)),
        }
    }

    /// Reads a block that may never have been written, past the ARC: it is no error if it was not.
    pub fn read_speculative(&self, bp: &BlockPointer, at: Bookmark) -> Result<Block, BlockError> {
        let reader = match self.look(bp, at)? {
            Start::Done(block) => return Ok(block),
            Start::Device(_, reader) => reader,
        };
        let data = self.fetch_speculative(bp, at)?;
        Ok(Block { data: self.opened(bp, at, &reader, &data)?, order: bp.byte_order() })
    }

    /// Whether a block is there that may never have been written, as far as its checksum says. It takes no key.
    ///
    /// # Errors
    /// It is not there, or a device failed.
    pub fn check_speculative(&self, bp: &BlockPointer, at: Bookmark) -> Result<(), BlockError> {
        match bp.uses_crypt() {
            true => {
                check(bp, at)?;
                self.fetch_speculative(bp, at).map(drop)
            }
            false => self.read_speculative(bp, at).map(drop),
        }
    }

    fn fetch_speculative(&self, bp: &BlockPointer, at: Bookmark) -> Result<Abd, BlockError> {
        let verify = |data: &Abd| self.is_right(bp, data);
        let read = |dva: Dva| {
            let (vdev, offset, size) = (dva.vdev.into(), dva.offset, bp.psize());
            let txg = bp.physical_birth();
            let read = BlockRead { vdev, offset, size, txg, verify: &verify };
            self.vdevs().read_speculative(&read).map_err(|source| vdev_error(bp, at, source))
        };
        // Where a device failed the block may be; where bytes are wrong it is not.
        first_of(bp, at, |dva| match dva.gang {
            false => read(dva),
            // Its parts may have been written and the header not, or the other way round: no leaf is blamed.
            true => Store::attempt(|| self.fetch_copy(bp, dva, at)).0,
        })
    }

    /// Reads many blocks: misses go to the devices as one batch; checksums and unpacking use all
    /// cores. Results are in the order of `reqs`.
    pub fn read_many(&self, reqs: &[(BlockPointer, Bookmark)]) -> Vec<Result<Block, BlockError>> {
        if !persistent::is_active() {
            return self.read_many_now(reqs);
        }
        let mut done = Vec::new();
        let _lost = self.persist(|| {
            done = self.read_many_now(reqs);
            let mut lost = done.iter().filter_map(|read| read.as_ref().err());
            lost.find(|e| self.is_of_lost_device(e)).cloned().map_or(Ok(()), Err)
        });
        done
    }

    fn read_many_now(&self, reqs: &[(BlockPointer, Bookmark)]) -> Vec<Result<Block, BlockError>> {
        if held::is_active() {
            return reqs.iter().map(|(bp, at)| self.read_held(bp, *at)).collect();
        }
        let starts: Vec<_> = reqs.iter().map(|(bp, at)| self.look(bp, *at)).collect();
        let wanted = reqs.iter().zip(&starts).filter_map(|((bp, at), start)| match start {
            Ok(Start::Device(key, _)) => Some((*bp, *at, *key)),
            _ => None,
        });
        let wanted: Vec<_> = wanted.collect();
        let looked: Vec<Option<(Key, Reader)>> = starts
            .iter()
            .map(|start| match start {
                Ok(Start::Device(key, reader)) => Some((*key, reader.clone())),
                _ => None,
            })
            .collect();
        let mut physical = self.physical_many(&wanted).into_iter();
        let paired: Vec<_> = starts
            .into_iter()
            .map(|start| match start {
                Ok(Start::Device(key, reader)) => (Ok(Start::Device(key, reader)), physical.next()),
                other => (other, None),
            })
            .collect();
        let unpack =
            |((bp, at), (start, bytes)): (&(BlockPointer, Bookmark), _)| match (start, bytes) {
                (Ok(Start::Done(block)), _) => Ok(block),
                (Ok(Start::Device(key, reader)), Some(bytes)) => {
                    self.unpacked(bp, *at, (key, &reader), bytes)
                }
                (Ok(Start::Device(..)), None) => Err(no_copy(bp, *at)),
                (Err(e), _) => Err(e),
            };
        let packed = wanted.iter().map(|(bp, ..)| bp).filter(|bp| is_packed(bp) || bp.uses_crypt());
        let parallel =
            wanted.len() > 1 && packed.map(BlockPointer::lsize).sum::<u64>() >= PARALLEL_BYTES;
        let done: Vec<Result<Block, BlockError>> = match parallel {
            true => reqs.par_iter().zip(paired).map(unpack).collect(),
            false => reqs.iter().zip(paired).map(unpack).collect(),
        };
        // Here, and not where they were unpacked: notes belong to this thread, and the others wait for no device.
        let done: Vec<_> = reqs
            .iter()
            .zip(&looked)
            .zip(done)
            .map(|(((bp, at), looked), block)| match looked {
                Some((key, reader)) => self.or_vouched(bp, *at, (*key, reader), block),
                None => block,
            })
            .collect();
        let read = done.iter().zip(&looked).filter(|(_, looked)| looked.is_some());
        read.filter_map(|(block, _)| block.as_ref().err()).for_each(|e| self.remember(e));
        done
    }

    /// Reads many blocks as they are on disk, compressed (`ZIO_FLAG_RAW_COMPRESS`), but decrypted; verified, in the order of
    /// `reqs`. Holes and blocks that lie in their pointers have no such bytes and are refused.
    pub fn read_many_physical(
        &self,
        reqs: &[(BlockPointer, Bookmark)],
    ) -> Vec<Result<Abd, BlockError>> {
        self.read_physical_with(reqs, |bp, at| self.reader(bp, at))
    }

    /// The same, encrypted as they are on disk (`ZIO_FLAG_RAW`).
    pub fn read_many_raw(&self, reqs: &[(BlockPointer, Bookmark)]) -> Vec<Result<Abd, BlockError>> {
        self.read_physical_with(reqs, |_, _| Ok(None))
    }

    fn read_physical_with(
        &self,
        reqs: &[(BlockPointer, Bookmark)],
        reader: impl Fn(&BlockPointer, Bookmark) -> Result<Reader, BlockError>,
    ) -> Vec<Result<Abd, BlockError>> {
        let start = |(bp, at): &(BlockPointer, Bookmark)| {
            check(bp, *at)?;
            let reader = reader(bp, *at)?;
            let key = Key::of(bp).ok_or_else(|| no_copy(bp, *at))?;
            self.write_behind.wait_for(key.birth);
            Ok(((*bp, *at, key), reader))
        };
        let starts: Vec<_> = reqs.iter().map(start).collect();
        let wanted: Vec<Wanted> = starts.iter().flatten().map(|(wanted, _)| *wanted).collect();
        let mut read = self.physical_many(&wanted).into_iter();
        let take = |start: Result<(Wanted, Reader), BlockError>| {
            let ((bp, at, key), reader) = start?;
            let physical = read.next().unwrap_or_else(|| Err(no_copy(&bp, at)))?;
            let plain = |physical| self.plain(&bp, at, &reader, physical);
            plain(physical).or_else(|why| match why {
                BlockError::Authentication { .. } => {
                    self.vouched(&bp, at, key, why).and_then(plain)
                }
                why => Err(why),
            })
        };
        starts.into_iter().map(take).collect()
    }

    /// Reads the physical bytes of every copy from the devices and verifies each on its own;
    /// one result per DVA. Errors are not remembered, but wrong bytes count. For a gang block each part
    /// is verified, and the whole.
    pub fn verify_all_copies(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
    ) -> Vec<Result<(), BlockError>> {
        if let Err(e) = check(bp, at) {
            return vec![Err(e)];
        }
        bp.dvas().map(|dva| self.fetch_copy(bp, dva, at).map(drop)).collect()
    }

    /// The block pointers in the gang header of `bp`, for accounting.
    pub fn gang_children(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
    ) -> Result<Vec<BlockPointer>, BlockError> {
        Ok(self.gang_header(bp, at)?.0)
    }

    /// Waits for what is on its way to the devices of the block.
    pub(crate) fn wait_for_writes(&self, bp: &BlockPointer) {
        self.write_behind.wait_for(bp.physical_birth());
    }

    /// Starts reading into the ARC in the background, for the reader that `access` describes; what is cached already
    /// costs nothing, and what the ARC does not keep is left alone (`arc_read`). False if that has no room for now.
    pub fn prefetch(self: &Arc<Self>, reqs: Vec<(BlockPointer, Bookmark)>, access: Access) -> bool {
        let absent = |key: Key| !self.write_behind.may_hold(key.birth) && !self.is_cached(&key);
        let missing = |(bp, at): &(BlockPointer, Bookmark)| {
            Key::of(bp).is_some_and(absent) && self.policies.keeps(bp, *at)
        };
        let batch: Vec<_> = reqs.into_iter().filter(missing).collect();
        let start = || Prefetcher::start(self.vdevs().read_ahead().is_some());
        batch.is_empty() || self.prefetcher.get_or_init(start).push(self, batch, access)
    }

    /// What a reader that [reads far ahead](Store::read_ahead) keeps account by.
    pub fn ahead_share(&self) -> AheadShare {
        AheadShare::of(&self.far_ahead)
    }

    /// Bytes to read ahead of a sequential reader, where that takes more than of devices ([`VdevTree::read_ahead`]): no more
    /// than what several such readers leave in the ARC until it is read.
    pub fn read_ahead(&self) -> Option<u64> {
        let wanted = self.vdevs().read_ahead()?;
        Some(wanted.min(self.arc().budget() / AHEAD_SHARE))
    }

    /// Reads a batch into the ARC, but for what is there or on its way. By the time the pointers may be
    /// stale, so nothing that is wrong counts; and a block with something wrong about it is not kept, so
    /// that its reader finds that out.
    pub fn load(&self, batch: &[(BlockPointer, Bookmark)], access: Access) {
        let sound = batch.iter().filter(|(bp, at)| check(bp, *at).is_ok());
        let wanted: Vec<_> = sound.filter_map(|(bp, at)| Some((*bp, *at, Key::of(bp)?))).collect();
        let (mut mine, mut own) = (Vec::new(), Vec::new());
        for wanted in &wanted {
            if !self.has_ahead(&wanted.2, &wanted.0)
                && let Flight::Own(guard) = self.flights.begin(wanted.2)
            {
                mine.push(*wanted);
                own.push(guard);
            }
        }
        self.fetch_many(&mine, Some(access));
    }

    /// A block that is on its way to the devices, which is in no cache yet; older contents of its place may be.
    /// `None` as well if it would have to be unpacked by a thread that may not.
    fn in_flight(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
        key: &Key,
        reader: &Reader,
    ) -> Option<Result<Block, BlockError>> {
        let (physical, logical) = self.write_behind.find(key, view_of(reader))?;
        let order = bp.byte_order();
        if let Some(data) = logical {
            return Some(Ok(Block { data, order }));
        }
        if held::is_active() && is_packed(bp) && !keeps_decoded(bp) {
            return None;
        }
        let opened = self.opened(bp, at, reader, &physical);
        Some(opened.map(|data| Block { data, order }))
    }

    /// What can be said of a block without waiting (`zio_read_bp_init`): it is there, or it has to be read.
    fn look(&self, bp: &BlockPointer, at: Bookmark) -> Result<Start, BlockError> {
        check(bp, at)?;
        if bp.is_hole() {
            let data = Abd::from_vec(vec![0; bp.lsize() as usize]);
            return Ok(Start::Done(Block { data, order: bp.byte_order() }));
        }
        let reader = self.reader(bp, at)?;
        let Some(key) = Key::of(bp) else {
            return embedded(bp).map(Start::Done).map_err(|source| BlockError::Decode {
                at,
                bp: Box::new(*bp),
                source,
            });
        };
        if let Some(block) = self.in_flight(bp, at, &key, &reader) {
            return block.map(Start::Done);
        }
        // A walk that can tell its MAC does so: who kept it may have had no key.
        let kept = || self.kept_unpacked(bp, &key, view_of(&reader));
        match keyless::tells(bp, at).map_or_else(kept, |_| None) {
            Some(block) => Ok(Start::Done(block)),
            None => Ok(Start::Device(key, reader)),
        }
    }

    /// Unpacks what was read and keeps the result if it is metadata (`arc_buf_fill`).
    fn unpacked(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
        (key, reader): (Key, &Reader),
        physical: Result<Abd, BlockError>,
    ) -> Result<Block, BlockError> {
        let unpacked = physical.and_then(|physical| self.opened(bp, at, reader, &physical));
        #[cfg(feature = "tamper")]
        let unpacked = unpacked.map(|data| crate::tamper::apply(at, data));
        let data = unpacked?;
        let block = Block { data, order: bp.byte_order() };
        if keeps_decoded(bp) {
            self.keep_unpacked(&key, view_of(reader), block.data.clone());
            // The key may have gone meanwhile, and with it what was decrypted.
            if reader.is_some() && self.keys.of(at.objset).is_none() {
                self.forget_unpacked(&key, view_of(reader));
            }
        }
        Ok(block)
    }

    /// What came of reading a block; by another copy of it, where its MAC was not for what was read.
    fn or_vouched(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
        (key, reader): (Key, &Reader),
        read: Result<Block, BlockError>,
    ) -> Result<Block, BlockError> {
        self.told(bp, at, read).or_else(|why| match why {
            BlockError::Authentication { .. } => {
                let physical = self.vouched(bp, at, key, why);
                self.unpacked(bp, at, (key, reader), physical)
                    .or_else(|why| self.doubted(bp, at, key, why))
            }
            why => Err(why),
        })
    }

    /// A block that leads to others, and of which no copy has the right MAC (`why`), for a walk that follows what satisfies its pointer. It is
    /// kept unpacked nowhere.
    fn doubted(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
        key: Key,
        why: BlockError,
    ) -> Result<Block, BlockError> {
        let told = matches!(why, BlockError::Authentication { .. } | BlockError::Vdev { .. });
        let leads_on = bp.level() > 0 || keyless::leads_on(bp);
        // What does not answer may have it.
        if !keyless::goes_by_pointers() || !leads_on || !told || self.is_of_lost_device(&why) {
            return Err(why);
        }
        self.forget_unpacked(&key, view_of(&None));
        let physical = self.physical(bp, at, key)?;
        let decode = |source| BlockError::Decode { at, bp: Box::new(*bp), source };
        let data = unpack(bp, &physical).map_err(decode)?;
        self.remember(&why);
        self.note_doubted(bp, at);
        Ok(Block { data, order: bp.byte_order() })
    }

    /// The verified physical bytes of one block, from the ARC or the devices.
    fn physical(&self, bp: &BlockPointer, at: Bookmark, key: Key) -> Result<Abd, BlockError> {
        self.physical_within(bp, at, key, patience::of_thread())
    }

    /// As [`Store::physical`]; another thread's read of the block is waited for no longer than `patience`.
    fn physical_within(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
        key: Key,
        patience: Option<Duration>,
    ) -> Result<Abd, BlockError> {
        if let Some(data) = self.asked(&key, bp) {
            return Ok(data);
        }
        let own = match self.flights.begin(key) {
            Flight::Other(other) => {
                other.wait(patience);
                None
            }
            Flight::Own(guard) => Some(guard),
        };
        // Another reader may have finished in the meantime.
        if let Some(data) = self.cached(&key, bp) {
            return Ok(data);
        }
        let data = match self.on_cache_device(bp, key) {
            Some(data) => data,
            None => self.fetch(bp, at, 0)?,
        };
        if own.is_some() && self.keeps(bp, at) {
            self.keep((&key, at), bp, data.clone(), Access::Demand);
        }
        Ok(data)
    }

    /// As [`Store::physical`], for a batch. Reads of others are waited for last.
    fn physical_many(&self, wanted: &[Wanted]) -> Vec<Result<Abd, BlockError>> {
        let (mut mine, mut own) = (Vec::new(), Vec::new());
        let mut look = |request: &Wanted| {
            if let Some(data) = self.asked(&request.2, &request.0) {
                return Found::Cached(data);
            }
            match self.flights.begin(request.2) {
                Flight::Other(_) => Found::InFlight,
                Flight::Own(guard) => {
                    mine.push(*request);
                    own.push(guard);
                    Found::Missing
                }
            }
        };
        let found: Vec<Found> = wanted.iter().map(&mut look).collect();
        let mut read = self.fetch_many(&mine, None).into_iter();
        drop(own);
        // All of them together are not waited for longer than one.
        let until = patience::of_thread().map(|patience| Instant::now() + patience);
        let left = || until.map(|until| until.saturating_duration_since(Instant::now()));
        let take = |(found, (bp, at, key)): (Found, &Wanted)| match found {
            Found::Cached(data) => Ok(data),
            Found::Missing => read.next().unwrap_or_else(|| Err(no_copy(bp, *at))),
            Found::InFlight => self.physical_within(bp, *at, *key, left()),
        };
        found.into_iter().zip(wanted).map(take).collect()
    }

    /// Whether `data` are the physical bytes of the block that `bp` names (`zio_checksum_verify`,
    /// `zio_checksum_error`).
    pub(crate) fn is_right(&self, bp: &BlockPointer, data: &Abd) -> bool {
        let salt = self.salt.read().clone();
        verify::matches(bp, data, &salt).unwrap_or(false)
    }

    fn remember(&self, error: &BlockError) {
        // The caller reads the block and tries once more.
        if matches!(error, BlockError::NotHeld { .. }) {
            return;
        }
        let mismatch = matches!(error, BlockError::Checksum { .. });
        let birth = error.birth();
        self.note_unreadable(Unreadable { at: error.bookmark(), mismatch, birth });
    }

    /// The keys that are loaded.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// What an administrator wants of reads.
    pub(crate) fn injected(&self) -> &Handlers<DataHandler> {
        &self.injected
    }

    /// What could not be read.
    pub(crate) fn error_lists(&self) -> &ErrorLists {
        &self.errors
    }
}
