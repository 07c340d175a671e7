//! Write-behind: what a sync writes is collected, and goes to the devices in few waves.
//!
//! # Idea
//!
//! What a sync needs next of a block is its pointer, which is known as soon as the block is packed and has a
//! place. So blocks are *collected* while the sync goes on with the blocks that lead to them. All that a small
//! group writes, over all levels, objects and passes, goes to the devices at once when the sync drains
//! ([`WriteBehind::drain`]): it waits for one latency of the devices, and not for one for each level.
//!
//! ```text
//! push ──> collected ── a batch is large enough ──> the thread writes it ──> caches
//!              └──────── drain: the rest ─────────> the caller writes it ──> caches
//! ```
//!
//! A batch that has become worth it ([`ENOUGH`]) is handed to a thread of the pool's own, so that devices are busy
//! while a large group is packed. It is not one of the threads that pack blocks: all pools share those, and they
//! must not wait for a device. Where nothing happens in the background, the thread that brings such a batch
//! writes it.
//!
//! # Invariants
//!
//! - A block that is written in place again replaces what is collected of it. If it is being written at that moment, the
//!   new contents are written after that ([`Batch::follows`]). So the last contents stay, and no batch
//!   writes to one place twice.
//! - Not more than [`BATCH`] bytes are collected while others are written, unless it is one push: a thread that
//!   brings more waits.
//! - A block is shown ([`WriteBehind::find`]) from when it is collected until it is in the caches. It has left
//!   before it could be read from the devices, so a reader looks here first.
//! - The first failure is told to each caller that asks from then on ([`WriteBehind::drain`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use ahash::RandomState;
use cenote_format::abd::Abd;
use cenote_format::invariant::caught;
use cenote_format::{invariant, less};
use cenote_vdev::{BlockWrite, VdevError, waiting};
use crossbeam_channel::{Sender, unbounded};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::devices::BlockDevices;
use super::removed::Obsolete;
use super::removing::Removing;
use super::{BATCH, Flying, GangHeaders, Stage, WriteError, Writer};
use crate::alloc::Allocator;
use crate::arc::Key;
use crate::keys::View;
use crate::pipeline::Store;
use cenote_vdev::traffic::Meter;

/// Bytes of a batch that does not wait for the rest of its group.
const ENOUGH: usize = 1 << 20;

/// A block that waits to be written.
pub(super) struct Collected {
    pub key: Key,
    pub flying: Box<Flying>,
    pub writes: Vec<BlockWrite>,
}

impl Collected {
    fn bytes(&self) -> usize {
        bytes_of(&self.writes)
    }
}

fn bytes_of(writes: &[BlockWrite]) -> usize {
    writes.iter().map(|write| write.data.len()).sum()
}

/// What a reader is given of a block in flight.
struct Shown {
    /// Tells contents of one place apart.
    number: u64,
    physical: Abd,
    /// With the readers that may see it.
    logical: Option<(Abd, View)>,
}

/// Blocks that are written together.
#[derive(Default)]
struct Batch {
    txg: u64,
    /// With the numbers under which they are shown.
    blocks: Vec<(u64, Collected)>,
    /// Where each of them is.
    places: HashMap<Key, usize, RandomState>,
    bytes: usize,
    /// A block of it is being written with older contents.
    follows: bool,
}

impl Batch {
    fn keys(&self) -> Vec<(Key, u64)> {
        self.blocks.iter().map(|(number, block)| (block.key, *number)).collect()
    }

    /// Writes the blocks, and puts them into the caches.
    fn write(self, writer: &Writer) -> Result<(), WriteError> {
        let (mut writes, mut blocks) = (Vec::new(), Vec::with_capacity(self.blocks.len()));
        for (_, block) in self.blocks {
            let Collected { flying, writes: its, .. } = block;
            invariant!(flying.writes == its.len(), "{} of {} writes", its.len(), flying.writes);
            writes.extend(its);
            blocks.push(flying);
        }
        let mut results = writer.devices.write_group(&writes).into_iter();
        // All are seen to, whatever becomes of one.
        let finish = |flying| writer.finish(Stage::Writing(flying), self.txg, &mut results);
        let written: Vec<_> = blocks.into_iter().map(finish).collect();
        written.into_iter().try_for_each(|result| result.map(drop))
    }
}

#[derive(Default)]
struct State {
    collected: Batch,
    /// What writes the collected blocks.
    writer: Option<WeakWriter>,
    /// Blocks that are collected or being written.
    shown: HashMap<Key, Shown, RandomState>,
    /// Batches that are being written.
    flying: usize,
    /// The thread is at work.
    running: bool,
    /// Number of the last block.
    number: u64,
    failed: Option<WriteError>,
}

impl State {
    fn add(&mut self, block: Collected) {
        self.number += 1;
        let (number, key, bytes) = (self.number, block.key, block.bytes());
        let Flying { physical, logical, view, .. } = &*block.flying;
        let logical = logical.clone().map(|logical| (logical, *view));
        let physical = physical.data.clone();
        let before = self.shown.insert(key, Shown { number, physical, logical });
        let batch = &mut self.collected;
        match batch.places.get(&key).and_then(|at| batch.blocks.get_mut(*at)) {
            Some((known, old)) => {
                let mut block = block;
                // Its space was taken with what it replaces.
                block.flying.taken.append(&mut old.flying.taken);
                // A copy that was added to a deduplicated block has another place, and replaces nothing.
                let is_replaced = |was: &BlockWrite| {
                    let place = (was.vdev, was.offset);
                    block.writes.iter().any(|write| (write.vdev, write.offset) == place)
                };
                let mut others = std::mem::take(&mut old.writes);
                batch.bytes =
                    less!(batch.bytes, bytes_of(&others), "bytes that wait to be written");
                others.retain(|was| !is_replaced(was));
                block.flying.writes += others.len();
                batch.bytes += bytes_of(&others);
                block.writes.append(&mut others);
                (*known, *old) = (number, block);
            }
            None => {
                batch.follows |= before.is_some();
                batch.places.insert(key, batch.blocks.len());
                batch.blocks.push((number, block));
            }
        }
        batch.bytes += bytes;
    }

    /// The next batch, if it may be written now.
    fn take(&mut self) -> Option<Batch> {
        let later = self.collected.follows && self.flying > 0;
        if self.collected.blocks.is_empty() || later {
            return None;
        }
        self.flying += 1;
        Some(std::mem::take(&mut self.collected))
    }

    fn is_idle(&self) -> bool {
        self.collected.blocks.is_empty() && self.flying == 0
    }
}

/// A writer that does not keep the pool in memory while blocks are collected.
struct WeakWriter {
    store: Weak<Store>,
    allocator: Weak<Allocator>,
    devices: Weak<dyn BlockDevices>,
    written: Arc<Meter>,
    obsolete: Arc<Obsolete>,
    removing: Arc<Removing>,
    gang_headers: Arc<GangHeaders>,
}

impl WeakWriter {
    fn of(writer: &Writer) -> WeakWriter {
        WeakWriter {
            store: Arc::downgrade(&writer.store),
            allocator: Arc::downgrade(&writer.allocator),
            devices: Arc::downgrade(&writer.devices),
            written: writer.written.clone(),
            obsolete: writer.obsolete.clone(),
            removing: writer.removing.clone(),
            gang_headers: writer.gang_headers.clone(),
        }
    }

    fn upgrade(&self) -> Option<Writer> {
        Some(Writer {
            store: self.store.upgrade()?,
            allocator: self.allocator.upgrade()?,
            devices: self.devices.upgrade()?,
            written: self.written.clone(),
            obsolete: self.obsolete.clone(),
            removing: self.removing.clone(),
            gang_headers: self.gang_headers.clone(),
            tables: None,
        })
    }
}

/// Blocks in flight; see the module's documentation.
#[derive(Default)]
pub(crate) struct WriteBehind {
    state: Mutex<State>,
    /// A batch was taken up or written.
    changed: Condvar,
    /// The oldest txg that blocks in flight may be of; 0 without such blocks.
    txg: AtomicU64,
    /// Where the thread gets its work; it starts with the first batch, and ends when this is dropped.
    /// `None`: there is no thread to be had.
    thread: OnceLock<Option<Sender<Work>>>,
}

/// Batches that the thread writes, and how.
type Work = (Arc<WriteBehind>, Writer);

/// Starts the thread that writes the batches of one pool.
fn start_thread() -> Option<Sender<Work>> {
    let (sender, work) = unbounded::<Work>();
    let run = move || work.into_iter().for_each(|(batches, writer)| batches.run(&writer));
    let started = std::thread::Builder::new().name("write-behind".into()).spawn(run);
    started.inspect_err(|e| tracing::warn!("no thread to write in the background: {e}")).ok()?;
    Some(sender)
}

impl WriteBehind {
    /// Takes over blocks of `txg`.
    pub(super) fn push(self: &Arc<Self>, writer: &Writer, txg: u64, blocks: Vec<Collected>) {
        let bytes: usize = blocks.iter().map(Collected::bytes).sum();
        let mut state = self.state.lock();
        let is_busy = |state: &State| state.flying > 0 || state.running;
        while is_busy(&state) && state.collected.bytes + bytes > BATCH {
            self.changed.wait(&mut state);
        }
        if state.is_idle() {
            self.txg.store(txg, Ordering::Release);
        }
        state.writer = Some(WeakWriter::of(writer));
        state.collected.txg = txg;
        blocks.into_iter().for_each(|block| state.add(block));
        if state.collected.bytes >= ENOUGH && !std::mem::replace(&mut state.running, true) {
            drop(state);
            match writer.allocator.works_in_background() {
                true => self.clone().hand_over(writer.clone()),
                false => self.run(writer),
            }
        }
    }

    /// Has the thread write what is worth it.
    fn hand_over(self: Arc<Self>, writer: Writer) {
        let this = self.clone();
        match self.thread.get_or_init(start_thread) {
            None => this.run(&writer),
            Some(thread) => {
                if let Err(refused) = thread.send((this, writer)) {
                    let (this, writer) = refused.into_inner();
                    this.run(&writer);
                }
            }
        }
    }

    fn run(&self, writer: &Writer) {
        let mut state = self.state.lock();
        while state.collected.bytes >= ENOUGH {
            match state.take() {
                Some(batch) => self.write(&mut state, batch, writer),
                None => self.changed.wait(&mut state),
            }
        }
        state.running = false;
        self.changed.notify_all();
    }

    /// Writes a batch without the lock.
    fn write(&self, state: &mut MutexGuard<'_, State>, batch: Batch, writer: &Writer) {
        self.changed.notify_all();
        let keys = batch.keys();
        let panicked = |why: String| Err(VdevError::Broken(why).into());
        let write = || caught(|| batch.write(writer)).unwrap_or_else(panicked);
        let done = MutexGuard::unlocked(state, write);
        for (key, number) in keys {
            if state.shown.get(&key).is_some_and(|shown| shown.number == number) {
                state.shown.remove(&key);
            }
        }
        state.failed = state.failed.take().or(done.err());
        self.landed(state);
    }

    /// A batch is not being written any more.
    fn landed(&self, state: &mut State) {
        // Others wait for this thread, and are told what it finds wrong.
        let checked = caught(|| {
            state.flying = less!(state.flying, 1, "batches that are being written");
            let left = if state.is_idle() { state.shown.len() } else { 0 };
            invariant!(left == 0, "nothing is being written, and {left} blocks are shown");
        });
        if let Err(why) = checked {
            (state.flying, state.collected) = Default::default();
            state.shown.clear();
            state.failed.get_or_insert(VdevError::Broken(why).into());
        }
        if state.is_idle() {
            self.txg.store(0, Ordering::Release);
        }
        self.changed.notify_all();
    }

    /// Writes all that is collected, and waits for all that is being written.
    fn finish(&self) -> MutexGuard<'_, State> {
        waiting::begins();
        let mut state = self.state.lock();
        while !state.is_idle() || state.running {
            let writer = state.writer.as_ref().map(WeakWriter::upgrade);
            match (state.take(), writer.flatten()) {
                (Some(batch), Some(writer)) => self.write(&mut state, batch, &writer),
                (Some(_), None) => {
                    // The pool is gone, and with it whoever could want it.
                    let why = VdevError::Broken("blocks of a pool that is gone".into());
                    state.failed.get_or_insert(why.into());
                    state.shown.clear();
                    self.landed(&mut state);
                }
                (None, _) => self.changed.wait(&mut state),
            }
        }
        state
    }

    /// Whether a block that was born in txg `birth` may be in flight.
    pub(crate) fn may_hold(&self, birth: u64) -> bool {
        let txg = self.txg.load(Ordering::Acquire);
        txg != 0 && birth >= txg
    }

    /// A block in flight: its physical bytes, and the block unpacked if it is known and a reader with this `view` may see it.
    pub(crate) fn find(&self, key: &Key, view: View) -> Option<(Abd, Option<Abd>)> {
        if !self.may_hold(key.birth) {
            return None;
        }
        let state = self.state.lock();
        let shown = state.shown.get(key)?;
        let seen = shown.logical.as_ref().filter(|(_, of)| *of == view);
        Some((shown.physical.clone(), seen.map(|(logical, _)| logical.clone())))
    }

    /// Has what is in flight written, and waits for it, if a block that was born in txg `birth` may be among it.
    /// Not for the threads that pack blocks, which never wait for a device.
    pub(crate) fn wait_for(&self, birth: u64) {
        if self.may_hold(birth) {
            drop(self.finish());
        }
    }

    /// Writes what is left, and waits until nothing is in flight.
    ///
    /// Errors: the first that there was.
    pub(super) fn drain(&self) -> Result<(), WriteError> {
        self.finish().failed.clone().map_or(Ok(()), Err)
    }
}
