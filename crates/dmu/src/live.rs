//! Object sets in use: read by many, changed by some, synced again and again (`objset_t`).
//!
//! # Idea
//!
//! A [`LiveObjectSet`] is a [`HeadObjectSet`] behind one lock. A change asks [`TxAssign`] (the engine, which runs
//! the transaction groups) for a place in the open txg, then runs under the lock. The txg thread
//! [quiesces](LiveObjectSet::quiesce) what was collected, writes it while further changes come in, and
//! then lets the object set [stand](LiveObjectSet::sync_done) on what was written.
//!
//! Reading takes the lock only to see what is pending. What is on disk is read without it, from the
//! object set that the last txg left.
//!
//! # A change (`dmu_tx_hold_*`, `dmu_tx_assign`, `dmu_tx_commit`)
//!
//! No thread waits for a device with the lock. A change that needs a block which is not in memory
//! [misses](cenote_store::held) it: what the change did so far is taken back, the lock and the place
//! in the txg are given up, the block is read, and the change runs again from its beginning with that
//! block in its hands. So one slow read keeps only the change waiting that needs it, and a volume is
//! read for many writes at the same time.
//!
//! What takes long is done before the lock is taken: a [`Chunk`](LiveObjectSet::chunk) has the bytes of a write
//! copied, and blocks that are written in part read and merged. The change only puts the blocks in their places.
//! ARCHITECTURE.md, "Locks", says where this lock stands among the engine's.
//!
//! A change that fails is taken back as well ([`crate::write`], `undo`): because a block cannot be
//! read, because its contents make no sense, or because the change is refused. One that panics leaves
//! the object set of no use: nothing of it is written any more, and the engine suspends the pool.
//!
//! # Invariants
//!
//! - A change is made as a whole or not at all, and in one txg.
//! - No device is read or waited for while the lock is held.
//! - An [`Object`] is as it was when it was looked up, however it is changed afterwards. The blocks on
//!   disk that it stands on can be overwritten once they were freed, some txgs later; then reads
//!   fail. What is read through the [`LiveObjectSet`] itself is not overwritten before it is read
//!   ([`ReadEpochs`]); only where space is short it may be, and is read again.

use crate::dnode_counts::{What, count};
use crate::write::intent::Intent;
use crate::write::zap::AtHand;
use crate::write::{
    Chunk, Gather, HeadObjectSet, OpenObjectSet, Result, Spare, SyncingSet, Was, WriteError,
    WrittenSet, on_disk,
};
use crate::{DeleteChunk, Error, Object, ObjectSet};
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::dmu::DmuType;
use cenote_format::invariant::caught;
use cenote_store::Store;
use cenote_store::alloc::ReadEpochs;
use cenote_store::held::Holds;
use cenote_store::keys::LoadedKey;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Times that something is read, where what was read may have been overwritten.
const TRIES: u32 = 10;

/// What a change is going to cost, at most (`dmu_tx_hold_write`, `dmu_tx_hold_free`, `dmu_tx_hold_zap`, `dmu_tx_hold_bonus`,
/// `dmu_tx_hold_spill`, `dmu_tx_count_write`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of the blocks to be written, as far as they are known
    /// ([`LiveObjectSet::cost_of_blocks`]).
    pub write: u64,
    /// Objects to be created.
    pub objects: u64,
    /// Whether the change frees more than it takes: it may then use space that is reserved for
    /// such changes.
    pub frees: bool,
}

/// What keeps the open txg open.
pub trait Hold: Send {
    /// Tells how many bytes the change made dirty, which the engine knew only an upper bound of, and how
    /// many pointers it freed, which the engine did not know.
    fn settle(&mut self, _bytes: u64, _freed: u64) {}

    /// Tells that nothing is left of the change (`dmu_tx_abort`): it was refused, or runs again in a place of its own.
    fn undone(&mut self) {}
}

/// A hold that does not care.
struct Plain<T>(T);

impl<T: Send> Hold for Plain<T> {}

/// A place in the open txg: the txg is not synced before this is dropped.
pub struct Assigned {
    txg: u64,
    hold: Box<dyn Hold>,
}

impl Assigned {
    /// A place in `txg`, which stays open until `hold` is dropped.
    pub fn new(txg: u64, hold: impl Send + 'static) -> Assigned {
        Assigned::settling(txg, Plain(hold))
    }

    /// As [`Assigned::new`], for an engine that wants to know what changes made dirty.
    pub fn settling(txg: u64, hold: impl Hold + 'static) -> Assigned {
        Assigned { txg, hold: Box::new(hold) }
    }

    /// The open txg.
    pub fn txg(&self) -> u64 {
        self.txg
    }
}

/// The gate that lets changes into transaction groups.
pub trait TxAssign: Send + Sync {
    /// The readers of the pool. They are told of a group when every object set that was in it stands on
    /// what was written.
    fn readers(&self) -> Arc<ReadEpochs>;

    /// Enters the open txg with a change of object set `objset`, which at the moment has `dirty` bytes
    /// to be written; waits as long as changes come faster than they can be written.
    ///
    /// Errors: [`WriteError::NoSpace`], [`WriteError::Quota`], [`WriteError::ReadOnly`],
    /// [`WriteError::Suspended`].
    fn assign(&self, objset: u64, cost: &Cost, dirty: &AtomicU64) -> Result<Assigned>;

    /// A change panicked, and may have left half of itself in memory: nothing may be written any more.
    fn panicked(&self, _why: &str) {}

    /// A change was made in group `txg`, and leaves `intent` for the intent log. Called in the order in
    /// which the changes of an object set are made.
    fn changed(&self, _txg: u64, _intent: Intent) {}

    /// Bytes that the smallest block takes on the devices: every dirty block counts for a multiple of it.
    fn least_block(&self) -> u64 {
        cenote_format::SECTOR
    }

    /// Tells how long a write call took, waiting included.
    fn wrote(&self, _time: Duration) {}

    /// Whether the pool counts references to blocks, so that they can be cloned (feature `block_cloning`).
    fn counts_references(&self) -> bool {
        false
    }

    /// Whether references to these blocks, which are to be cloned, can be added: all that this reads of the
    /// block reference tables can be read.
    ///
    /// Errors: it cannot be read.
    fn check_references(&self, _blocks: &[BlockPointer]) -> Result<()> {
        Ok(())
    }

    /// Whether the object set was closed, as it is before it is destroyed: its blocks are not cloned any more.
    fn is_closed(&self) -> bool {
        false
    }

    /// Waits until all that was changed so far is on disk, for a change that needs that (`txg_wait_synced`).
    ///
    /// Errors: [`WriteError::Suspended`], [`WriteError::Interrupted`].
    fn wait_before_assign(&self) -> Result<()> {
        Ok(())
    }
}

/// An object set in use (`objset_t`).
pub struct LiveObjectSet {
    id: u64,
    store: Arc<Store>,
    assign: Arc<dyn TxAssign>,
    set: Mutex<HeadObjectSet>,
    /// Bytes to be written: as the set has it, but for a change that still has the lock.
    dirty: AtomicU64,
    readers: Arc<ReadEpochs>,
    /// Number of workers in the background that free unreferenced blocks.
    freeing: AtomicUsize,
}

/// A data block that the open txg is going to write.
#[derive(Debug, Clone)]
pub struct OpenBlock {
    /// Its bytes, as they are now.
    pub data: Abd,
    /// Its number.
    pub blkid: u64,
    /// Type of the object.
    pub kind: DmuType,
    /// The object's own checksum function (`dn_checksum`); 0: that of the dataset.
    pub checksum: u8,
    /// The object's own compression function (`dn_compress`); 0: that of the dataset.
    pub compress: u8,
    /// The key that protects it, in an encrypted data set.
    pub key: Option<Arc<LoadedKey>>,
}

/// Someone frees, in the background, what was removed; as long as this lives.
pub struct Freeing(Arc<LiveObjectSet>);

impl Drop for Freeing {
    fn drop(&mut self) {
        self.0.freeing.fetch_sub(1, Ordering::AcqRel);
    }
}

impl LiveObjectSet {
    /// Puts `set` to use.
    pub fn new(mut set: OpenObjectSet, assign: Arc<dyn TxAssign>) -> Arc<LiveObjectSet> {
        set.set_least(assign.least_block());
        let id = set.id();
        let (readers, freeing) = (assign.readers(), AtomicUsize::new(0));
        let dirty = AtomicU64::new(set.dirty_bytes());
        let store = set.synced().store().clone();
        let set = Mutex::new(HeadObjectSet::new(set));
        Arc::new(LiveObjectSet { id, store, assign, set, dirty, readers, freeing })
    }

    /// The dataset's object number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The object set as the last txg left it.
    pub fn base(&self) -> Arc<ObjectSet> {
        self.set.lock().synced().clone()
    }

    /// The object `number` as it is now, pending changes included; also an accounting object or the
    /// meta dnode.
    pub fn object(&self, number: u64) -> crate::Result<Object> {
        self.retry(|| self.look(number, None))
    }

    /// As [`LiveObjectSet::object`], good for the bonus buffer and the spill block only: what is pending of
    /// the data is not copied for it.
    pub fn attributes(&self, number: u64) -> crate::Result<Object> {
        self.read_part(number, 0, 0, Ok)
    }

    /// Has `read` read from the object as it is now: from its bonus buffer, its spill block and the `len` bytes
    /// from `offset`, which all are of one moment. Of pending changes no more is copied than lies there, and
    /// the next change of the object copies nothing for it. `read` may run more than once.
    ///
    /// # Errors
    /// There is no such object, its dnode cannot be read, or what `read` returns.
    pub fn read_part<T, E: From<crate::Error>>(
        &self,
        number: u64,
        offset: u64,
        len: u64,
        mut read: impl FnMut(Object) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        self.retry(|| read(self.look(number, Some((offset, len)))?))
    }

    /// The size of the blocks of object `number`, and the number of its last block.
    pub fn shape(&self, number: u64) -> crate::Result<(u64, u64)> {
        if let Some(shape) = self.set.lock().pending_shape(number) {
            return Ok(shape);
        }
        let object = self.attributes(number)?;
        Ok((object.dnode().block_size, object.dnode().max_block))
    }

    /// What can be told of the entry of ZAP `number`, a `kind`, that is called exactly `name`, where the ZAP
    /// is being changed: nothing has to be copied for that, as it has for a view of the object.
    pub fn entry_at_hand(&self, number: u64, kind: DmuType, name: &[u8]) -> AtHand {
        self.set.lock().entry_at_hand(number, kind, name)
    }

    /// The number of the first object at or after `from` (`dmu_object_next`).
    pub fn next_object(&self, from: u64) -> crate::Result<Option<u64>> {
        self.retry(|| {
            let mut on_disk = from;
            loop {
                let base = self.base();
                let found = base.next_object(on_disk)?;
                let set = self.set.lock();
                // What was found is of use only if nothing else is on disk by now.
                if !Arc::ptr_eq(set.synced(), &base) {
                    continue;
                }
                match found.filter(|number| set.is_gone(*number)) {
                    Some(gone) => on_disk = gone.saturating_add(1),
                    None => return Ok(found.into_iter().chain(set.next_pending(from)).min()),
                }
            }
        })
    }

    /// Reads from object `number` into `buf` from byte `offset`; zeros in holes and past the last
    /// block (`dmu_read`).
    pub fn read(&self, number: u64, offset: u64, buf: &mut [u8]) -> crate::Result<()> {
        self.read_part(number, offset, buf.len() as u64, |object| object.read(offset, buf))
    }

    /// `len` bytes of object `number` from byte `offset`, not copied ([`Object::read_abd`]).
    pub fn read_abd(&self, number: u64, offset: u64, len: usize) -> crate::Result<Abd> {
        self.read_part(number, offset, len as u64, |object| object.read_abd(offset, len))
    }

    /// The block of object `number` with byte `offset`, if it was changed in the open txg. A caller that holds
    /// that txg knows which one it is.
    pub fn open_block(&self, number: u64, offset: u64) -> Option<OpenBlock> {
        self.set.lock().open_block(number, offset)
    }

    /// Makes `data` ready to be written at byte `offset` of object `number`, whose blocks have or are going to
    /// have `block_size` bytes: all that can be copied and read without the lock.
    ///
    /// # Errors
    /// A block that is going to be written in part cannot be read.
    pub fn chunk<'d>(
        &self,
        number: u64,
        offset: u64,
        data: &'d [u8],
        block_size: u64,
    ) -> crate::Result<Chunk<'d>> {
        let mut chunk = Chunk::new(offset, data, block_size);
        for blkid in chunk.partly() {
            match self.retry(|| self.beneath(number, blkid, block_size)) {
                Ok(Some((was, old))) => chunk.merge(blkid, was, old.as_ref()),
                // That is for the change to say.
                Ok(None) | Err(Error::NoObject { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(chunk)
    }

    /// A block that a write is merged into ([`Object::beneath`]), unless it is dirty in the open txg.
    fn beneath(
        &self,
        number: u64,
        blkid: u64,
        size: u64,
    ) -> crate::Result<Option<(Was, Option<Abd>)>> {
        let set = self.set.lock();
        if set.is_dirty_block(number, blkid) {
            return Ok(None);
        }
        let of_block = (blkid.saturating_mul(size), size.saturating_sub(1));
        let (pending, base) = (set.pending_view(number, Some(of_block))?, set.synced().clone());
        drop(set);
        let object = pending.map_or_else(|| on_disk(&base, number), Ok)?;
        object.beneath(blkid, size)
    }

    /// Reads the blocks of object `number` that hold `len` bytes from byte `offset`, to be written
    /// anew ([`OpenObjectSet::rewrite`]): all but holes, embedded blocks, and blocks to be spared.
    pub fn gather(
        &self,
        number: u64,
        offset: u64,
        len: u64,
        spare: &Spare<'_>,
    ) -> crate::Result<Gather> {
        self.retry(|| self.look(number, Some((offset, len)))?.gather(offset, len, spare))
    }

    /// See [`Object::last_delete_chunk`].
    pub fn last_delete_chunk(
        &self,
        number: u64,
        from: u64,
        end: u64,
        most: u64,
    ) -> crate::Result<DeleteChunk> {
        self.retry(|| self.look(number, None)?.last_delete_chunk(from, end, most))
    }

    /// From now on space is being freed in the background.
    pub fn begin_freeing(self: &Arc<Self>) -> Freeing {
        self.freeing.fetch_add(1, Ordering::AcqRel);
        Freeing(self.clone())
    }

    /// Whether space is being freed in the background.
    pub fn is_freeing(&self) -> bool {
        self.freeing.load(Ordering::Acquire) > 0
    }

    /// The object `number` as it is now, for a caller that looks at it from within a change of another object set, or
    /// of this one ([`LiveObjectSet::transact_after`]).
    ///
    /// Errors: [`WriteError::Suspended`] if the object set was closed.
    pub fn look_from_a_change(&self, number: u64) -> Result<Object> {
        if self.assign.is_closed() {
            return Err(WriteError::Suspended("the dataset was closed".into()));
        }
        Ok(self.look(number, None)?)
    }

    /// Whether blocks can be cloned into this object set.
    pub fn counts_references(&self) -> bool {
        self.assign.counts_references()
    }

    /// Whether references to these blocks can be added. To be asked before the change that clones them: the
    /// sync of its group can only fail as a whole.
    ///
    /// Errors: what that needs of the block reference tables cannot be read.
    pub fn check_references(&self, blocks: &[BlockPointer]) -> Result<()> {
        self.retry(|| self.assign.check_references(blocks))
    }

    /// Waits until all that was changed so far is on disk, for a change that needs that.
    ///
    /// Errors: [`WriteError::Suspended`]; [`WriteError::Interrupted`] while the pool is suspended.
    pub fn wait_before_change(&self) -> Result<()> {
        self.assign.wait_before_assign()
    }

    /// The object; what is on disk is read without the lock.
    fn look(&self, number: u64, range: Option<(u64, u64)>) -> crate::Result<Object> {
        let base = {
            let set = self.set.lock();
            if let Some(object) = set.pending_view(number, range)? {
                count(What::Found);
                return Ok(object);
            }
            set.synced().clone()
        };
        on_disk(&base, number)
    }

    /// Reads until what was read was not free to be overwritten meanwhile. What was wrong counts only if
    /// it was not.
    pub fn retry<T, E>(
        &self,
        mut read: impl FnMut() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut tries = 0;
        loop {
            let reading = self.readers.begin();
            let (done, notes) = Store::attempt(&mut read);
            tries += 1;
            if reading.is_safe() {
                notes.confirm(&self.store, &|| reading.is_safe());
                return done;
            }
            if tries >= TRIES {
                return done;
            }
        }
    }

    /// Bytes that the blocks count for that a write of `len` bytes at `offset` makes dirty, where blocks
    /// have `block_size` bytes; pointers to them included.
    pub fn cost_of_blocks(&self, offset: u64, len: u64, block_size: u64) -> u64 {
        let block_size = block_size.max(1);
        let each = block_size.checked_next_multiple_of(self.assign.least_block());
        let each = each.unwrap_or(block_size).saturating_add(BLKPTR_SIZE as u64);
        (offset % block_size).saturating_add(len).div_ceil(block_size).saturating_mul(each)
    }

    /// Makes a write call of a file or volume, which may be several changes, and tells the engine how
    /// long it took.
    pub fn write_call<T>(&self, write: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let done = write();
        self.assign.wrote(started.elapsed());
        done
    }

    /// Makes a change (`dmu_tx_create`, `dmu_tx_commit`): enters the open txg, then calls `f` with the object set and
    /// the txg. If `f` needs a block that has to be read it is called again, from the object set as it was: `f` must
    /// change nothing else than the object set.
    ///
    /// If `f` fails the object set is as it was before.
    ///
    /// Errors: those of `f` and of the engine; [`WriteError::Suspended`] if `f` panics.
    pub fn transact<T, E: From<WriteError>>(
        &self,
        cost: Cost,
        f: impl FnMut(&mut OpenObjectSet, u64) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        self.transact_then(cost, f, |done| done)
    }

    /// As [`LiveObjectSet::transact`]. Once `f` has made the change, `then` is called with what it
    /// returned, before anybody else sees the change: for what is kept beside the object set.
    pub fn transact_then<T, U, E: From<WriteError>>(
        &self,
        cost: Cost,
        mut f: impl FnMut(&mut OpenObjectSet, u64) -> std::result::Result<T, E>,
        then: impl FnMut(T) -> U,
    ) -> std::result::Result<U, E> {
        self.transact_after(cost, || Ok(()), |(), set, txg| f(set, txg), then)
    }

    /// As [`LiveObjectSet::transact_then`], after a look at something else: `look` is called in the open
    /// txg, without the lock, and `f` with what it returned. `look` may take the lock of an object set for
    /// moments; what it has to read from a device is read without holding up anybody.
    pub fn transact_after<A, T, U, E: From<WriteError>>(
        &self,
        cost: Cost,
        mut look: impl FnMut() -> std::result::Result<A, E>,
        mut f: impl FnMut(&A, &mut OpenObjectSet, u64) -> std::result::Result<T, E>,
        mut then: impl FnMut(T) -> U,
    ) -> std::result::Result<U, E> {
        let mut holds = Holds::default();
        loop {
            let mut entered = self.assign.assign(self.id, &cost, &self.dirty)?;
            let seen = holds.during(&mut look);
            if holds.has_missed() {
                // What was looked at is on disk as long as the txg is open.
                let reading = self.readers.begin();
                entered.hold.undone();
                drop(entered);
                self.fetch(&mut holds, &|| reading.is_safe());
                continue;
            }
            let seen = seen.inspect_err(|_| entered.hold.undone())?;
            let mut set = self.set.lock();
            let before = set.dirty_bytes();
            let done = self.run(&mut set, &mut holds, |set| f(&seen, set, entered.txg()));
            let done = done.inspect_err(|_| entered.hold.undone())?;
            let (after, freed) = (set.dirty_bytes(), set.take_freed());
            let intent = set.take_intent();
            // What is kept beside the object set is part of the change.
            let beside = caught(|| {
                let done = done.map(|done| done.map(&mut then));
                if let Some(Ok(_)) = &done {
                    // In the order in which changes are made.
                    self.assign.changed(entered.txg(), intent);
                }
                done
            });
            let done = beside.map_err(|why| self.poison(&mut set, &why))?;
            self.dirty.store(after, Ordering::Relaxed);
            // What the missed pointers are of is on disk as long as the lock is held.
            let reading = done.is_none().then(|| self.readers.begin());
            drop(set);
            match &done {
                Some(Ok(_)) => entered.hold.settle(after.saturating_sub(before), freed),
                _ => entered.hold.undone(),
            }
            match (done, reading) {
                (Some(done), _) => return done,
                (None, reading) => {
                    drop(entered);
                    let is_safe = || reading.as_ref().is_some_and(|reading| reading.is_safe());
                    self.fetch(&mut holds, &is_safe);
                }
            }
        }
    }

    /// Has the open txg, in which the caller has a place, write the root block (`dsl_dataset_dirty`).
    ///
    /// # Errors
    /// [`WriteError::Failed`]: the object set is of no use any more.
    pub fn touch(&self) -> Result<()> {
        let mut set = self.set.lock();
        let touch = |set: &mut OpenObjectSet| {
            set.set_flags(set.flags());
            Ok::<_, WriteError>(())
        };
        let done = self.run(&mut set, &mut Holds::default(), touch)?;
        done.unwrap_or(Err(WriteError::Failed))?;
        self.dirty.store(set.dirty_bytes(), Ordering::Relaxed);
        Ok(())
    }

    /// Reads what was missed; only the thread that missed it waits.
    fn fetch(&self, holds: &mut Holds, is_safe: &dyn Fn() -> bool) {
        let (read, notes) = Store::attempt(|| holds.fetch(&self.store));
        let safe = is_safe();
        if safe {
            notes.confirm(&self.store, is_safe);
        }
        holds.keep(read, safe);
    }

    /// Runs a change as a whole or not at all; `None` if it misses a block.
    ///
    /// Errors: the object set is of no use any more.
    fn run<T, E>(
        &self,
        set: &mut OpenObjectSet,
        holds: &mut Holds,
        f: impl FnOnce(&mut OpenObjectSet) -> std::result::Result<T, E>,
    ) -> Result<Option<std::result::Result<T, E>>> {
        set.usable()?;
        set.begin_change();
        let done = holds.during(|| caught(|| f(set)));
        let done = match done {
            Ok(done) => Some(done).filter(|_| !holds.has_missed()),
            Err(why) => return Err(self.poison(set, &why)),
        };
        match done {
            Some(Ok(_)) => set.keep_change(),
            _ => match caught(|| set.undo_change()) {
                Ok(true) => {}
                Ok(false) => return Err(self.poison(set, "failed after its last write")),
                Err(why) => return Err(self.poison(set, &why)),
            },
        }
        Ok(done)
    }

    /// Half of a change was made: nothing of the object set may be written any more.
    fn poison(&self, set: &mut OpenObjectSet, why: &str) -> WriteError {
        set.poison();
        let why = format!("a change of dataset {}: {why}", self.id);
        self.assign.panicked(&why);
        WriteError::Suspended(why)
    }

    /// Whether anything waits to be written (`dmu_objset_is_dirty`).
    pub fn is_dirty(&self) -> bool {
        self.set.lock().is_dirty()
    }

    /// Bytes to be written.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    /// See [`HeadObjectSet::quiesce`].
    pub fn quiesce(&self) -> SyncingSet {
        let mut set = self.set.lock();
        let quiesced = set.quiesce();
        self.dirty.store(set.dirty_bytes(), Ordering::Relaxed);
        quiesced
    }

    /// See [`HeadObjectSet::sync_done`].
    pub fn sync_done(&self, written: WrittenSet) {
        // No other thread changes the base. What takes long is done without the lock.
        let base = written.as_base_after(&self.base());
        let mut set = self.set.lock();
        let done_with = set.stand_on(base, written);
        self.dirty.store(set.dirty_bytes(), Ordering::Relaxed);
        drop(set);
        drop(done_with);
    }

    /// See [`HeadObjectSet::give_up`].
    pub fn give_up(&self) {
        self.set.lock().give_up();
    }
}
