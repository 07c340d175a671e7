//! The thread of a cache device: it finds out what is there from before, and writes what the ARC will evict soon
//! (`l2arc_feed_thread`).
//!
//! Each `l2arc_feed_secs` it goes along the ends of the ARC's lists, metadata first, and writes what it finds there of its pool, up to
//! `l2arc_write_max` bytes (and `l2arc_write_boost` until the ARC has evicted something). Where there was more, it goes again soon
//! (`l2arc_feed_again`). Where there is nothing to write it sleeps until something is put into the ARC, and `l2arc_feed_secs` at least: what
//! is put in may be another pool's, or be there already.
//!
//! Blocks of groups that are not on disk yet are left for later: another block could still get their name.
//!
//! Before a batch is written over something, the header says that this is given up: so an import finds nothing that is not there,
//! wherever the writing was broken off. A batch is written in pieces, and each of them only if the pool is in use and not
//! another host's by then. While the device is written to the thread has nothing of the pool, which is closed meanwhile if it has to be.
//!
//! What was not written in time may be written at any time. So a batch that failed is undone, and the device is not used, neither by this
//! thread nor by another one after it, before all of that has come to its end.

use super::device::{CacheDev, is_left};
use super::rebuild::Rebuild;
use super::space::{GivenUp, Space, TRIMMED};
use super::{Imported, L2arc, OfStore, OpenCache, PATIENCE};
use crate::arc::{ArcCache, Fed, Feed, Sleeper, Take};
use crate::pipeline::Store;
use crate::tunables as t;
use cenote_format::abd::Abd;
use cenote_vdev::cache_device::is_writing;
use cenote_vdev::{Aux, CacheDevice, Priority, VdevState, deadline};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// How long a batch may take before the device rests.
const WRITING: Duration = Duration::from_secs(30);
/// How often a device that rests is asked whether it answers.
const ASKING: Duration = Duration::from_secs(2);
/// Bytes of a batch that are written at once.
const PIECE: u64 = 8 << 20;
/// Blocks of a device that are forgotten at once where memory has no room for more: a share of them, as a divisor, and at least so many.
const FORGOTTEN: usize = 16;
const LEAST_FORGOTTEN: usize = 64;
/// Bytes that are trimmed ahead at least (`l2arc_trim_ahead`).
const LEAST_TRIM: u64 = 64 << 20;

/// What the thread does next.
enum Next {
    Wait(Duration),
    /// Sleeps, unless something was put into the ARC since it had so many; and waits so long after it.
    Sleep(u32, Duration),
    End,
}

struct Feeder {
    store: OfStore,
    arc: Arc<ArcCache>,
    l2: Arc<L2arc>,
    dev: Arc<CacheDev>,
    how: Imported,
}

/// Tells that the thread has ended, however it ends.
struct Ends(Arc<CacheDev>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.has_ended();
    }
}

/// Starts the thread of a device.
pub(super) fn start(store: &Arc<Store>, dev: Arc<CacheDev>, open: OpenCache, how: Imported) {
    let ends = Ends(dev.clone());
    let (arc, l2) = (store.arc().clone(), store.l2arc().clone());
    let feeder = Feeder { store: Arc::downgrade(store), arc, l2, dev, how };
    let name = format!("l2arc-{}", feeder.dev.number);
    let run = move || {
        let _ends = ends;
        feeder.dev.begins();
        feeder.l2.guarded(|| feeder.run(&open));
        feeder.goes();
    };
    if let Err(e) = std::thread::Builder::new().name(name).spawn(run) {
        tracing::warn!("no thread for a cache device: {e}");
    }
}

impl Feeder {
    fn run(&self, open: &OpenCache) {
        // What was left behind may still write.
        while is_left(self.dev.guid) {
            if self.dev.is_stopped() {
                return;
            }
            self.dev.wait(ASKING);
        }
        let device = match CacheDevice::new(self.dev.config(), open()) {
            Ok(device) => Arc::new(device),
            Err(why) => return tracing::warn!("a cache device is not used: {why}"),
        };
        self.dev.is_opened(device.clone());
        if self.l2.off.load(Relaxed) {
            return;
        }
        if self.dev.is_stopped() {
            // It could not be fenced before it was open.
            return device.fence();
        }
        let Some(mut space) = self.begin(&device) else { return };
        while !self.dev.is_stopped() {
            match self.tick(&device, &mut space) {
                Next::Wait(time) => self.dev.wait(time),
                Next::Sleep(puts, least) => self.sleep(puts, least),
                Next::End => break,
            }
        }
    }

    /// The thread ends.
    fn goes(&self) {
        self.l2.guarded(|| self.dev.slots(&self.l2.figures, 0));
        if self.l2.off.load(Relaxed) {
            self.dev.fail(VdevState::Faulted);
        }
        // Whoever left the thread behind has forgotten what it knew by then.
        let is_failed = self.dev.state().is_some_and(|state| !state.readable());
        if is_failed || self.dev.is_left_behind() {
            self.l2.drop_blocks(&self.dev);
        }
        self.l2.charge(&self.arc);
    }

    /// Finds out what is on the device.
    fn begin(&self, device: &CacheDevice) -> Option<Space> {
        let pool = self.store.upgrade()?.vdevs().root().guid();
        let space = device.space()?;
        let rebuild = Rebuild {
            l2: &self.l2,
            arc: &self.arc,
            device,
            dev: &self.dev,
            pool,
            group: self.how.group,
        };
        let (mut space, is_new) = rebuild.space(space);
        if !self.dev.is_stopped() {
            self.l2.is_known(self.dev.guid);
        }
        if is_new && self.writes(device) && !self.dev.is_stopped() {
            self.trim_all(device, &mut space);
            self.write_header(pool, device, &mut space);
        }
        Some(space)
    }

    fn writes(&self, device: &CacheDevice) -> bool {
        self.how.writable && device.leaf().writable()
    }

    /// Sleeps until something is put into the ARC, its budget changes, or something happens to the device; but `least`, whatever is put in.
    fn sleep(&self, puts: u32, least: Duration) {
        let until = Instant::now() + least;
        // What was freed meanwhile takes no memory.
        self.l2.charge(&self.arc);
        let sleeper: Arc<dyn Sleeper> = self.dev.clone();
        if self.arc.sleeps(&sleeper, puts) && self.l2.has_room(&self.arc) {
            self.dev.wait_for_work();
        }
        self.dev.wait(until.saturating_duration_since(Instant::now()));
    }

    fn tick(&self, device: &CacheDevice, space: &mut Space) -> Next {
        if device.broke().is_some() {
            // Of what waits there nothing is known any more.
            self.dev.fail(VdevState::Faulted);
        }
        if !self.l2.is_on() || !device.leaf().state().readable() {
            return Next::End;
        }
        if self.dev.rests() {
            return self.ask(device, space);
        }
        if device.leaf().device().is_none_or(|device| !device.is_there()) {
            self.dev.fail(VdevState::CantOpen(Aux::OpenFailed));
            return Next::End;
        }
        let Some(store) = self.store.upgrade() else { return Next::End };
        let (arc, puts) = (&self.arc, self.arc.puts());
        let secs = Duration::from_secs(t::L2ARC_FEED_SECS.get());
        if !self.keeps_to_its_share(space) {
            return Next::Wait(secs);
        }
        if !self.writes(device) {
            return Next::Sleep(puts, secs);
        }
        let tree = store.vdevs();
        if tree.suspension().why().is_some() || tree.is_fenced() {
            return Next::Wait(secs);
        }
        if arc.is_off() {
            // Nothing comes from there any more, and what is here is read all the same.
            return Next::Wait(secs);
        }
        let begun = Instant::now();
        self.l2.figures.feeds.add(1);
        let size = self.size(arc, space);
        let (blocks, later) = self.choose(&store, space, size);
        if blocks.is_empty() {
            return if later { Next::Wait(secs) } else { Next::Sleep(puts, secs) };
        }
        let pool = tree.root().guid();
        drop((tree, store));
        // If that was the last one of the pool's, or took long, nobody waits for this thread any more.
        if self.dev.is_stopped() {
            return Next::End;
        }
        let wrote = self.write(pool, device, space, blocks);
        let pause = match t::L2ARC_FEED_AGAIN.get() != 0 && wrote > size / 2 {
            true => Duration::from_millis(t::L2ARC_FEED_MIN_MS.get()),
            false => secs,
        };
        Next::Wait(pause.saturating_sub(begun.elapsed()))
    }

    /// Asks a device that rests whether it answers.
    fn ask(&self, device: &CacheDevice, space: &mut Space) -> Next {
        let begun = Instant::now();
        let at = space.ring.start - space.sector;
        while begun.elapsed() < deadline::answer() && !self.dev.is_stopped() {
            self.keeps_to_its_share(space);
            let read = device.read(Priority::SyncRead, &[(at, space.sector as usize)], PATIENCE);
            if read.into_iter().all(|read| read.is_ok()) && !is_writing(device.leaf()) {
                self.dev.answers();
                return Next::Wait(Duration::ZERO);
            }
            self.dev.wait(ASKING);
        }
        if !self.dev.is_stopped() {
            self.dev.fail(VdevState::Faulted);
        }
        Next::End
    }

    /// Bytes to write at once (`l2arc_write_size`).
    fn size(&self, arc: &ArcCache, space: &Space) -> u64 {
        let boost = if arc.is_warm() { 0 } else { t::L2ARC_WRITE_BOOST.get() };
        t::L2ARC_WRITE_MAX.get().saturating_add(boost).min(space.most())
    }

    /// What of the ARC to write; whether some of it may be later.
    fn choose(&self, store: &Store, space: &Space, size: u64) -> (Vec<Fed>, bool) {
        let on_disk = store.on_disk.load(SeqCst);
        let tree = store.vdevs();
        let leaves_special = t::L2ARC_EXCLUDE_SPECIAL.get() != 0;
        let takes = |key: &crate::arc::Key| {
            let vdev = key.dva0 >> 32 & 0xff_ffff;
            let special = || tree.top(vdev).is_some_and(|top| top.alloc_bias().is_some());
            let is_there = self.l2.guarded(|| self.l2.index.contains(key)).unwrap_or(true);
            if is_there || leaves_special && special() {
                return Take::Never;
            }
            if key.birth > on_disk { Take::Later } else { Take::Now }
        };
        let headroom = size.saturating_mul(t::L2ARC_HEADROOM.get());
        let headroom = u128::from(headroom) * u128::from(t::L2ARC_HEADROOM_BOOST.get()) / 100;
        let feed = Feed {
            pool: store.in_arc(),
            bytes: size,
            largest: space.most().saturating_sub(space.overhead(1)) / space.sector * space.sector,
            headroom: u64::try_from(headroom).ok().filter(|headroom| *headroom > 0),
            mfu_only: t::L2ARC_MFUONLY.get(),
            unread: t::L2ARC_NOPREFETCH.get() == 0,
            takes: &takes,
        };
        let (mut blocks, later) = store.arc().near_ends(&feed);
        let (mut bytes, mut count) = (0, 0);
        let mut fits = |block: &Fed| {
            let more = (bytes + space.asize(block.data.len() as u64), count + 1);
            let fits = more.0 + space.overhead(more.1) <= space.most();
            if fits {
                (bytes, count) = more;
            }
            fits
        };
        blocks.retain(&mut fits);
        (blocks, later)
    }

    /// Writes blocks (`l2arc_write_done`). How many bytes were written.
    fn write(&self, pool: u64, device: &CacheDevice, space: &mut Space, blocks: Vec<Fed>) -> u64 {
        let figures = &self.l2.figures;
        let bytes: u64 = blocks.iter().map(|block| space.asize(block.data.len() as u64)).sum();
        let cleared = self.clear(device, space, bytes + space.overhead(blocks.len()));
        self.dev.slots(figures, space.slots.len() as u64);
        if !self.write_header(pool, device, space) {
            return 0;
        }
        self.trim(device, cleared);
        let (mut batch, before) = space.lay_out(self.dev.number, blocks);
        // Another device may have taken one meanwhile: it is written in vain, and found there.
        batch.placed.retain(|(key, place)| self.l2.index.put(*key, *place, false));
        figures.writes_sent.add(1);
        self.dev.set_writing(true);
        let done = self.write_pieces(device, std::mem::take(&mut batch.writes));
        self.dev.set_writing(false);
        if !self.dev.is_stopped() {
            self.dev.note(done.as_ref().err());
        }
        match done {
            Ok(()) => {
                self.l2.index.are_written(batch.placed.iter());
                figures.writes_done.add(1);
                figures.write_bytes.add(batch.bytes);
                figures.log_blk_writes.add(batch.logs.len() as u64);
                for (bytes, payload) in batch.logs {
                    self.dev.log_comes(figures, bytes, payload);
                }
            }
            Err(e) => {
                tracing::debug!(guid = self.dev.guid, "cache device: {e}");
                figures.writes_error.add(1);
                for (key, place) in &batch.placed {
                    self.l2.index.remove_if(key, place);
                }
                space.undo(before);
                batch.bytes = 0;
            }
        }
        self.dev.slots(figures, space.slots.len() as u64);
        self.l2.charge(&self.arc);
        if batch.bytes > 0 {
            self.write_header(pool, device, space);
        }
        batch.bytes
    }

    /// Writes a batch in pieces.
    fn write_pieces(&self, device: &CacheDevice, writes: Vec<(u64, Abd)>) -> io::Result<()> {
        let begun = Instant::now();
        let (mut piece, mut bytes) = (Vec::new(), 0);
        let mut writes = writes.into_iter().peekable();
        while let Some((at, data)) = writes.next() {
            bytes += data.len() as u64;
            piece.push((at, data));
            if self.dev.is_stopped() {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "not used any more"));
            }
            if bytes >= PIECE || writes.peek().is_none() {
                self.write_piece(device, std::mem::take(&mut piece), begun)?;
                bytes = 0;
            }
        }
        Ok(())
    }

    /// Writes, unless the pool is gone or another host's. A batch that was begun at `begun` has [`WRITING`] for all of it.
    fn write_piece(
        &self,
        device: &CacheDevice,
        piece: Vec<(u64, Abd)>,
        begun: Instant,
    ) -> io::Result<()> {
        if self.store.upgrade().is_none_or(|store| store.vdevs().is_fenced()) {
            return Err(io::Error::other("the pool is gone, or another host's"));
        }
        device.write(piece, WRITING.saturating_sub(begun.elapsed()))
    }

    fn trims(device: &CacheDevice) -> bool {
        t::L2ARC_TRIM_AHEAD.get() > 0 && device.leaf().can_trim()
    }

    /// Clears the way of the hand. The bytes in which nothing is any more.
    fn clear(&self, device: &CacheDevice, space: &mut Space, bytes: u64) -> Vec<Range<u64>> {
        let ahead = bytes.saturating_mul(t::L2ARC_TRIM_AHEAD.get()) / 100;
        let more = if Feeder::trims(device) { LEAST_TRIM.max(ahead) } else { 0 };
        let given_up = space.clear(bytes.saturating_add(more).min(space.most()));
        self.forget(given_up)
    }

    /// What was given up is not looked for any more. The bytes where it was.
    fn forget(&self, given_up: GivenUp) -> Vec<Range<u64>> {
        self.l2.index.give_up(self.dev.number, &given_up.slots);
        self.dev.logs_go(&self.l2.figures, given_up.logs);
        given_up.cleared
    }

    /// Forgets the oldest blocks, where it takes too much memory to know all of them: then it says no. They stay on the device, and the
    /// next import finds them. That writes nothing, so that it does not matter whether anything may be written.
    fn keeps_to_its_share(&self, space: &mut Space) -> bool {
        if self.arc.is_off() || self.l2.has_room(&self.arc) {
            return true;
        }
        self.l2.figures.abort_lowmem.add(1);
        let count = (space.slots.len() / FORGOTTEN).max(LEAST_FORGOTTEN);
        self.l2.index.give_up(self.dev.number, &space.forget_oldest(count));
        self.dev.slots(&self.l2.figures, space.slots.len() as u64);
        self.l2.charge(&self.arc);
        false
    }

    /// Trims what the header says is given up, if that is wanted.
    fn trim(&self, device: &CacheDevice, cleared: Vec<Range<u64>>) {
        for range in cleared.into_iter().filter(|_| Feeder::trims(device)) {
            if let Err(e) = device.trim(range) {
                tracing::debug!(guid = self.dev.guid, "cache device, trim: {e}");
            }
        }
    }

    /// Trims all of a device with nothing on it, if that is wanted (`vdev_trim_l2arc`).
    fn trim_all(&self, device: &CacheDevice, space: &mut Space) {
        if !Feeder::trims(device) {
            return;
        }
        if device.trim(space.ring.start..space.ring.end).is_ok() {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            (space.trim_time, space.trim_state) = (now.map_or(0, |now| now.as_secs()), TRIMMED);
        }
    }

    /// Writes the header, unless it is there as it is. Whether it is there.
    fn write_header(&self, pool: u64, device: &CacheDevice, space: &mut Space) -> bool {
        let (at, header) = (space.ring.start - space.sector, space.header(pool, self.dev.guid));
        if space.written.replace(header) == Some(header) {
            return true;
        }
        let sector = space.sector_of(&header);
        let done = self.write_piece(device, vec![(at, sector)], Instant::now());
        self.dev.note(done.as_ref().err());
        if done.is_err() {
            space.written = None;
        }
        done.is_ok()
    }
}
