//! Disks in memory that remember what was done to them, and what a crash can leave of it.
//!
//! An [`Image`] is a tree of pages that are shared until they are written, so that a copy costs
//! next to nothing. The disks of a pool write what they are told into one [`Journal`]. A
//! [`Replay`] goes through it from the beginning: at any point it knows of each disk what is durable
//! and what was written since its last flush, and makes the images that a loss of power there
//! could leave. So one run of a pool is good for crashes at all of its operations.
//!
//! Of the writes since the last flush any may be lost, whatever was written later; and one may be
//! cut off between two sectors. A sector is whole.

use cenote_format::SECTOR;
use cenote_format::abd::Abd;
use cenote_vdev::{Device, ReadReq, WriteReq};
use parking_lot::{Mutex, MutexGuard};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PAGE: usize = 16 << 10;

type Page = Arc<[u8; PAGE]>;

/// What is on a disk. Pages that were never written are zeros.
#[derive(Clone)]
pub struct Image {
    pages: Vec<Option<Page>>,
}

impl Image {
    /// An empty disk of `size` bytes: a multiple of 16 KiB.
    pub fn new(size: u64) -> Image {
        Image { pages: vec![None; (size / PAGE as u64) as usize] }
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        (self.pages.len() * PAGE) as u64
    }

    /// The part of the range that is on each page: page, place in it, length.
    fn parts(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let (mut at, end) = (offset as usize, offset as usize + len);
        std::iter::from_fn(move || {
            let (page, within) = (at / PAGE, at % PAGE);
            let n = (PAGE - within).min(end - at);
            at += n;
            (n > 0).then_some((page, within, n))
        })
    }

    /// Makes all but the first and the last `keep` bytes zeros.
    pub fn clear_within(&mut self, keep: u64) {
        let kept = (keep as usize).div_ceil(PAGE);
        let end = self.pages.len().saturating_sub(kept);
        self.pages.iter_mut().take(end).skip(kept).for_each(|page| *page = None);
    }

    /// Makes these bytes zeros.
    ///
    /// # Errors
    /// They go past its end.
    pub fn clear(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        self.check(offset, len)?;
        for (page, within, n) in Image::parts(offset, len) {
            match &mut self.pages[page] {
                whole if n == PAGE => *whole = None,
                Some(part) => Arc::make_mut(part)[within..within + n].fill(0),
                None => {}
            }
        }
        Ok(())
    }

    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.size());
        end.map(drop).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Bytes of it.
    ///
    /// # Errors
    /// They go past its end.
    pub fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.check(offset, len)?;
        let mut out = Vec::with_capacity(len);
        for (page, within, n) in Image::parts(offset, len) {
            match &self.pages[page] {
                Some(page) => out.extend_from_slice(&page[within..within + n]),
                None => out.resize(out.len() + n, 0),
            }
        }
        Ok(out)
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// They go past its end.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check(offset, data.len())?;
        let mut rest = data;
        for (page, within, n) in Image::parts(offset, data.len()) {
            let page = self.pages[page].get_or_insert_with(|| Arc::new([0; PAGE]));
            let (now, later) = rest.split_at(n);
            Arc::make_mut(page)[within..within + n].copy_from_slice(now);
            rest = later;
        }
        Ok(())
    }

    /// Writes those sectors for which `survives`.
    pub fn write_torn(&mut self, offset: u64, data: &[u8], mut survives: impl FnMut() -> bool) {
        for (i, sector) in data.chunks(SECTOR as usize).enumerate() {
            if survives() {
                self.write(offset + i as u64 * SECTOR, sector).unwrap();
            }
        }
    }

    /// What is in a file; pages of zeros are left out.
    pub fn load(path: &Path) -> Image {
        let file = File::open(path).unwrap();
        let mut image = Image::new(file.metadata().unwrap().len());
        let mut data = [0; PAGE];
        for i in 0..image.pages.len() {
            file.read_exact_at(&mut data, (i * PAGE) as u64).unwrap();
            if data.iter().any(|byte| *byte != 0) {
                image.pages[i] = Some(Arc::new(data));
            }
        }
        image
    }

    /// Makes a sparse file of it.
    pub fn save(&self, path: &Path) {
        let file = File::create(path).unwrap();
        file.set_len(self.size()).unwrap();
        for (i, page) in self.pages.iter().enumerate() {
            if let Some(page) = page {
                file.write_all_at(&page[..], (i * PAGE) as u64).unwrap();
            }
        }
    }
}

/// Something that was done to a disk.
#[derive(Clone)]
enum Event {
    Write {
        disk: usize,
        offset: u64,
        data: Abd,
    },
    Flush {
        disk: usize,
    },
    /// Something that was done to what is no disk: whoever marked it knows what.
    Elsewhere,
}

/// What was done to the disks of a pool, in order.
#[derive(Default)]
pub struct Journal(Mutex<Vec<Event>>);

impl Journal {
    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.0.lock()
    }

    /// Number of operations so far.
    pub fn len(&self) -> usize {
        self.events().len()
    }

    /// Notes that something was done elsewhere. Returns the number of operations before it.
    pub fn mark(&self) -> usize {
        let mut events = self.events();
        events.push(Event::Elsewhere);
        events.len() - 1
    }

    /// Whether nothing was done yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A disk in memory.
pub struct Disk {
    path: PathBuf,
    number: usize,
    image: Mutex<Image>,
    journal: Option<Arc<Journal>>,
}

impl Disk {
    /// Disk `number` of a pool.
    pub fn new(number: usize, image: Image, journal: Option<Arc<Journal>>) -> Arc<Disk> {
        let path = PathBuf::from(format!("/torture/d{number}"));
        Arc::new(Disk { path, number, image: Mutex::new(image), journal })
    }

    fn lock(&self) -> MutexGuard<'_, Image> {
        self.image.lock()
    }

    /// What is on it now.
    pub fn image(&self) -> Image {
        self.lock().clone()
    }

    fn note(&self, event: impl FnOnce() -> Event) {
        if let Some(journal) = &self.journal {
            journal.events().push(event());
        }
    }
}

impl Device for Disk {
    fn size(&self) -> u64 {
        self.lock().size()
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        let image = self.lock();
        for req in reqs {
            req.result = Some(image.read(req.offset, req.len).map(Into::into));
        }
    }

    fn writable(&self) -> bool {
        true
    }

    fn write_batch(&self, reqs: &mut [WriteReq]) {
        let mut image = self.lock();
        for req in reqs {
            let (disk, offset, data) = (self.number, req.offset, req.data.clone());
            req.result = Some(image.write(offset, &data.bytes()));
            self.note(|| Event::Write { disk, offset, data });
        }
    }

    fn can_trim(&self) -> bool {
        true
    }

    /// Leaves bytes there that no block has.
    fn trim(&self, offset: u64, len: u64) -> io::Result<()> {
        let garbage = vec![0xa5; usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?];
        let mut request = [WriteReq::new(offset, garbage.into())];
        self.write_batch(&mut request);
        let [request] = request;
        request.take()
    }

    fn flush(&self) -> io::Result<()> {
        let _image = self.lock();
        self.note(|| Event::Flush { disk: self.number });
        Ok(())
    }
}

/// A run through a journal.
pub struct Replay {
    events: Vec<Event>,
    at: usize,
    durable: Vec<Image>,
    /// Writes of each disk since its last flush.
    pending: Vec<Vec<(u64, Abd)>>,
}

impl Replay {
    /// Begins with what the disks held at first.
    pub fn new(first: Vec<Image>, journal: &Journal) -> Replay {
        let pending = vec![Vec::new(); first.len()];
        Replay { events: journal.events().clone(), at: 0, durable: first, pending }
    }

    /// Goes on until so many operations are done.
    pub fn advance(&mut self, to: usize) {
        for event in &self.events[self.at..to] {
            match event {
                Event::Write { disk, offset, data } => {
                    self.pending[*disk].push((*offset, data.clone()));
                }
                Event::Flush { disk } => {
                    for (offset, data) in self.pending[*disk].drain(..) {
                        self.durable[*disk].write(offset, &data.bytes()).unwrap();
                    }
                }
                Event::Elsewhere => {}
            }
        }
        self.at = to;
    }

    /// What is left if the program dies now: all that it wrote.
    pub fn killed(&self) -> Vec<Image> {
        let mut left = self.durable.clone();
        for (image, writes) in left.iter_mut().zip(&self.pending) {
            for (offset, data) in writes {
                image.write(*offset, &data.bytes()).unwrap();
            }
        }
        left
    }

    /// What a loss of power could leave now. Some seeds lose all that they can, some nothing.
    pub fn crash(&self, seed: u64) -> Vec<Image> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut left = self.durable.clone();
        for (image, writes) in left.iter_mut().zip(&self.pending) {
            // Of 8 writes so many survive, and so many are torn.
            let (survive, torn) = (rng.random_range(0..=8), rng.random_range(0..=8));
            for (offset, data) in writes {
                if rng.random_range(0..8) >= survive {
                    continue;
                }
                let whole = rng.random_range(0..8) >= torn;
                image.write_torn(*offset, &data.bytes(), || whole || rng.random_bool(0.5));
            }
        }
        left
    }
}
