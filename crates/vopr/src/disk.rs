//! Simulated disks: they take time, lose power, fail, lie and come back.
//!
//! Each operation of any disk counts ([`Power`]), and may be the last before the power goes. From then on nothing
//! answers. What is left then is what was flushed, and any part of the writes since: each may be there, be cut off between two
//! sectors, or be missing ([`SimDisk::left`]). What a disk is told is free it forgets at once.
//!
//! Each operation takes a time that the disk's own numbers give, in which other threads run. So writes of different
//! threads, and to different disks, end in any order.

use crate::plan::Plant;
use crate::schedule::point;
use cenote_format::SECTOR;
use cenote_format::abd::Abd;
use cenote_torture::live::disk::Image;
use cenote_vdev::{Device, ReadReq, WriteReq};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// The power supply of the disks of a pool.
#[derive(Debug)]
pub struct Power {
    /// Operations so far.
    operations: AtomicUsize,
    /// The power goes after so many.
    until: AtomicUsize,
    off: AtomicBool,
    /// Changes with everything that was written.
    digest: AtomicU64,
}

impl Power {
    /// It is on.
    pub fn on() -> Arc<Power> {
        let (operations, off, digest) = Default::default();
        Arc::new(Power { operations, until: AtomicUsize::new(usize::MAX), off, digest })
    }

    /// It goes after so many operations more.
    pub fn goes_after(&self, operations: usize) {
        self.until.store(self.operations.load(SeqCst).saturating_add(operations), SeqCst);
    }

    /// It does not go.
    pub fn stays(&self) {
        self.until.store(usize::MAX, SeqCst);
    }

    /// It goes now.
    pub fn cut(&self) {
        self.off.store(true, SeqCst);
    }

    /// Whether it is gone.
    pub fn is_off(&self) -> bool {
        self.off.load(SeqCst)
    }

    /// How many operations there were. What begins once the power is gone, begins after all of them.
    pub fn moment(&self) -> usize {
        if self.is_off() { usize::MAX } else { self.operations.load(SeqCst) }
    }

    /// Operations until now, or until the power went.
    pub fn operations(&self) -> usize {
        self.operations.load(SeqCst)
    }

    /// See the field.
    pub fn digest(&self) -> u64 {
        self.digest.load(SeqCst)
    }

    /// An operation.
    ///
    /// # Errors
    /// There is no power.
    pub(crate) fn spend(&self) -> io::Result<()> {
        if self.is_off() || self.operations.load(SeqCst) >= self.until.load(SeqCst) {
            self.cut();
            return Err(io::Error::other("the power is gone"));
        }
        self.operations.fetch_add(1, SeqCst);
        Ok(())
    }

    /// What was written, and where.
    pub(crate) fn note(&self, disk: usize, offset: u64, data: &[u8]) {
        let mut sum = self.digest() ^ (disk as u64) << 56 ^ offset;
        for chunk in data.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let word = u64::from_le_bytes(word);
            sum = (sum.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
        self.digest.store(sum, SeqCst);
    }
}

/// How a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// It does what it is told.
    Well,
    /// It takes up to a quarter of a second.
    Slow,
    /// It fails reads, at times.
    FailsReads,
    /// It fails writes, at times.
    FailsWrites,
    /// It fails flushes.
    FailsFlushes,
    /// It gives bytes that are not those that were written, at times.
    Lies,
    /// It answers nothing.
    Gone,
    /// It takes no writes and flushes nothing.
    TakesNothing,
}

/// All that are not well.
pub const BAD: [Mood; 6] =
    [Mood::Slow, Mood::FailsReads, Mood::FailsWrites, Mood::FailsFlushes, Mood::Lies, Mood::Gone];

/// What is lost with the power, unless the disk was flushed.
enum Pending {
    Written(u64, Abd),
    /// These bytes are free.
    Trimmed(u64, u64),
}

impl Pending {
    /// On an image, whole.
    fn apply(&self, image: &mut Image) -> io::Result<()> {
        match self {
            Pending::Written(offset, data) => image.write(*offset, &data.bytes()),
            Pending::Trimmed(offset, len) => image.clear(*offset, *len),
        }
    }
}

struct Inner {
    now: Image,
    /// What is there whatever happens.
    durable: Image,
    /// Writes since the last flush.
    pending: Vec<Pending>,
    rng: SmallRng,
    mood: Mood,
    writes: u64,
}

/// A disk.
pub struct SimDisk {
    path: PathBuf,
    number: usize,
    power: Arc<Power>,
    plant: Option<Plant>,
    inner: Mutex<Inner>,
}

impl SimDisk {
    /// Disk `number` of a pool, with this on it.
    pub fn new(
        number: usize,
        image: Image,
        power: Arc<Power>,
        (seed, plant): (u64, Option<Plant>),
    ) -> Arc<SimDisk> {
        let path = PathBuf::from(format!("/vopr/d{number}"));
        let (now, durable) = (image.clone(), image);
        let rng = SmallRng::seed_from_u64(seed ^ number as u64);
        let (pending, mood, writes) = (Vec::new(), Mood::Well, 0);
        let inner = Mutex::new(Inner { now, durable, pending, rng, mood, writes });
        Arc::new(SimDisk { path, number, power, plant, inner })
    }

    /// How it is.
    pub fn mood(&self) -> Mood {
        self.inner.lock().mood
    }

    /// Changes how it is. Returns how it was.
    pub fn set_mood(&self, mood: Mood) -> Mood {
        std::mem::replace(&mut self.inner.lock().mood, mood)
    }

    /// What is on it.
    pub fn image(&self) -> Image {
        self.inner.lock().now.clone()
    }

    /// What a loss of power leaves. Some seeds lose all that they can, some nothing.
    pub fn left(&self, seed: u64) -> Image {
        let mut rng = SmallRng::seed_from_u64(seed ^ self.number as u64);
        let inner = self.inner.lock();
        let mut left = inner.durable.clone();
        // Of 8 writes so many survive, and so many are torn.
        let (survive, torn) = (rng.random_range(0..=8), rng.random_range(0..=8));
        for pending in &inner.pending {
            if rng.random_range(0..8) >= survive {
                continue;
            }
            let whole = rng.random_range(0..8) >= torn;
            match pending {
                Pending::Written(offset, data) => {
                    left.write_torn(*offset, &data.bytes(), || whole || rng.random_bool(0.5));
                }
                Pending::Trimmed(offset, len) => {
                    let sectors = len / SECTOR;
                    let most = if whole { sectors } else { rng.random_range(0..=sectors) };
                    // It was within the disk.
                    let _ = left.clear(*offset, most * SECTOR);
                }
            }
        }
        left
    }

    /// Takes its time.
    fn take_time(&self) {
        let (mood, most) = {
            let mut inner = self.inner.lock();
            let most = inner.rng.random_range(0..400_u64);
            (inner.mood, most)
        };
        match (mood, most) {
            (Mood::Slow, _) => std::thread::sleep(Duration::from_micros(most * 600)),
            (_, 0..150) => point(),
            _ => std::thread::sleep(Duration::from_micros(most)),
        }
    }

    fn fails(inner: &mut Inner, mood: Mood) -> bool {
        let always = inner.mood == Mood::Gone
            || inner.mood == Mood::TakesNothing && mood != Mood::FailsReads;
        always || inner.mood == mood && inner.rng.random_ratio(1, 3)
    }

    fn read_one(&self, offset: u64, len: usize) -> io::Result<Abd> {
        self.power.spend()?;
        let mut inner = self.inner.lock();
        if SimDisk::fails(&mut inner, Mood::FailsReads) {
            return Err(io::Error::other("a read that fails"));
        }
        let mut data = inner.now.read(offset, len)?;
        if inner.mood == Mood::Lies && inner.rng.random_ratio(1, 3) && !data.is_empty() {
            let at = inner.rng.random_range(0..data.len());
            data[at] ^= 1 << inner.rng.random_range(0..8);
        }
        Ok(data.into())
    }

    fn write_one(&self, offset: u64, data: &Abd) -> io::Result<()> {
        self.power.spend()?;
        let mut inner = self.inner.lock();
        if SimDisk::fails(&mut inner, Mood::FailsWrites) {
            return Err(io::Error::other("a write that fails"));
        }
        inner.writes += 1;
        // What is lost is data, not a label, of which there are more.
        let loses = self.plant == Some(Plant::LostWrite) && inner.writes % 40 == 39;
        if loses && offset > 4 << 20 {
            return Ok(());
        }
        let bytes = data.bytes();
        self.power.note(self.number, offset, &bytes);
        inner.now.write(offset, &bytes)?;
        inner.pending.push(Pending::Written(offset, data.clone()));
        Ok(())
    }
}

impl Device for SimDisk {
    fn size(&self) -> u64 {
        self.inner.lock().now.size()
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        self.take_time();
        for req in reqs {
            req.result = Some(self.read_one(req.offset, req.len));
        }
    }

    fn writable(&self) -> bool {
        true
    }

    fn write_batch(&self, reqs: &mut [WriteReq]) {
        for req in reqs {
            self.take_time();
            req.result = Some(self.write_one(req.offset, &req.data));
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.take_time();
        self.power.spend()?;
        let mut inner = self.inner.lock();
        if SimDisk::fails(&mut inner, Mood::FailsFlushes) {
            return Err(io::Error::other("a flush that fails"));
        }
        if self.plant == Some(Plant::NoFlush) {
            return Ok(());
        }
        let inner = &mut *inner;
        for pending in inner.pending.drain(..) {
            pending.apply(&mut inner.durable)?;
        }
        Ok(())
    }

    fn can_trim(&self) -> bool {
        true
    }

    fn trim(&self, offset: u64, len: u64) -> io::Result<()> {
        self.take_time();
        self.power.spend()?;
        let mut inner = self.inner.lock();
        if SimDisk::fails(&mut inner, Mood::FailsWrites) {
            return Err(io::Error::other("a trim that fails"));
        }
        self.power.note(self.number, offset, &len.to_le_bytes());
        let trimmed = Pending::Trimmed(offset, len);
        trimmed.apply(&mut inner.now)?;
        inner.pending.push(trimmed);
        Ok(())
    }

    fn is_there(&self) -> bool {
        !self.power.is_off() && self.inner.lock().mood != Mood::Gone
    }
}
