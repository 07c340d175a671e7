//! A distributed spare as a device (`vdev_draid_spare_ops`).
//!
//! A spare has no device of its own: what it holds is, slice by slice, in a place that other children of its vdev keep
//! for it. To the vdev above it is a leaf like others. Its device passes requests on to the child that has the place, to all
//! leaves of that which take writes. Another spare may stand in for that child: then the place is that one's, and so on.
//!
//! # Who lacks what
//!
//! A leaf that takes no writes lacks what it was to be written with, whether as itself or for a spare whose place it has: that goes into
//! the *leaf's* dirty time log, not into the spare's ([`crate::write`]). So what a spare has at a place is what its own log and those of
//! the leaves there say together ([`Vdev::trust_at`]), and a leaf that comes back, or takes another one's place, is given by a scan
//! what belongs into the spares' places on it besides its own ([`mirror::reach`]). It is the same in OpenZFS, so that either of the two
//! knows what the other one has left behind.
//!
//! - It has no labels on disk: the first two and the last two are kept in memory, and the pool commits to none of them.
//! - A write fails if any leaf that takes writes fails it: then the spare has missed it, whatever the other leaf has.
//! - It is flushed with the leaves: a flush of one of them that fails counts as the spare's too.
//!
//! Invariant: from the place of a column no way leads through the same spare twice. In a row each spare has a place on another child, none
//! of them on one with a column, and each spare stands in for one child.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Instant;

use cenote_format::LABEL_START;
use cenote_format::abd::Abd;
use cenote_format::label::{LABEL_END, LABEL_SIZE};
use parking_lot::{Mutex, RwLock};

use crate::device::{Device, ReadReq, WriteReq};
use crate::injection::IoKind;
use crate::mirror;
use crate::queue::Priority;
use crate::vdev::{Kind, Vdev};
use crate::write::submit;

/// Spares whose places are other spares', one after the other, at most.
const MAX_DEPTH: u64 = super::MAX_SPARES;

thread_local! {
    /// How many spares the request of this thread has come through.
    static DEPTH: Cell<u64> = const { Cell::new(0) };
}

/// See the head of the module.
pub(crate) struct SpareDevice {
    path: PathBuf,
    number: u64,
    /// The dRAID vdev, in the tree that is in use.
    top: RwLock<Weak<Vdev>>,
    /// The labels at the beginning and at the end.
    labels: Mutex<Vec<u8>>,
}

/// A part of a request: a range of the request, and the child and byte of its allocatable space where that is.
struct Part {
    within: Range<usize>,
    child: Arc<Vdev>,
    offset: u64,
}

impl SpareDevice {
    pub(crate) fn new(path: &Path, number: u64) -> Arc<SpareDevice> {
        let labels = Mutex::new(vec![0; 4 * LABEL_SIZE as usize]);
        Arc::new(SpareDevice { path: path.into(), number, top: RwLock::default(), labels })
    }

    /// From now on its places are in this vdev.
    pub(crate) fn place(&self, top: &Arc<Vdev>) {
        *self.top.write() = Arc::downgrade(top);
    }

    /// Where in `labels` a request is, if it is one of a label.
    fn in_labels(&self, offset: u64, len: usize) -> Option<Range<usize>> {
        let end = offset.checked_add(len as u64)?;
        let tail = self.size().checked_sub(LABEL_END)?;
        let at = match offset {
            _ if end <= 2 * LABEL_SIZE => offset,
            _ if offset >= tail && end <= self.size() => offset - tail + 2 * LABEL_SIZE,
            _ => return None,
        };
        let at = usize::try_from(at).ok()?;
        Some(at..at + len)
    }

    /// The leaves that byte `offset` of its allocatable space is on (`vdev_draid_spare_get_child`); none before its tree is in use.
    pub(crate) fn place_at(&self, offset: u64) -> Vec<Arc<Vdev>> {
        let Some(top) = self.top.read().upgrade() else { return Vec::new() };
        let child = top.draid.as_ref().map(|layout| layout.spare_child(self.number, offset).0);
        child.and_then(|child| top.children().get(child)).map(leaves_of).unwrap_or_default()
    }

    /// The parts of a request for its allocatable space.
    fn parts(&self, offset: u64, len: usize) -> io::Result<Vec<Part>> {
        let gone = || io::Error::from(ErrorKind::NotFound);
        let top = self.top.read().upgrade().ok_or_else(gone)?;
        let layout = top.draid.as_ref().ok_or_else(gone)?;
        let start = offset.checked_sub(LABEL_START).ok_or(ErrorKind::InvalidInput)?;
        let (mut parts, mut at) = (Vec::new(), 0);
        while at < len {
            let place = start.checked_add(at as u64).ok_or(ErrorKind::InvalidInput)?;
            let (child, left) = layout.spare_child(self.number, place);
            let take = usize::try_from(left).unwrap_or(usize::MAX).min(len - at);
            let child = top.children().get(child).ok_or_else(gone)?.clone();
            parts.push(Part { within: at..at + take, child, offset: place });
            at += take;
        }
        Ok(parts)
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Abd> {
        if let Some(range) = self.in_labels(offset, len) {
            let labels = self.labels.lock();
            return Ok(Abd::from_vec(labels.get(range).ok_or(ErrorKind::InvalidInput)?.to_vec()));
        }
        let parts = self.parts(offset, len)?;
        let mut read = Vec::with_capacity(parts.len());
        for part in &parts {
            read.push(read_child(&part.child, part.offset, part.within.len())?);
        }
        Ok(match read.len() {
            1 => read.remove(0),
            _ => Abd::gang(read),
        })
    }

    fn write(&self, offset: u64, data: &Abd) -> io::Result<()> {
        if let Some(range) = self.in_labels(offset, data.len()) {
            let mut labels = self.labels.lock();
            let place = labels.get_mut(range).ok_or(ErrorKind::InvalidInput)?;
            place.copy_from_slice(&data.bytes());
            return Ok(());
        }
        for part in self.parts(offset, data.len())? {
            let piece = data.slice(part.within.start, part.within.len());
            write_child(&part.child, part.offset, piece.ok_or(ErrorKind::InvalidInput)?)?;
        }
        Ok(())
    }
}

/// Runs `work`, unless the spares' places go round in a circle.
fn deeper<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let depth = DEPTH.get();
    if depth >= MAX_DEPTH {
        return Err(io::Error::other("the places of distributed spares go round in a circle"));
    }
    DEPTH.set(depth + 1);
    let done = work();
    DEPTH.set(depth);
    done
}

fn leaves_of(child: &Arc<Vdev>) -> Vec<Arc<Vdev>> {
    let mut leaves = Vec::new();
    mirror::copies(child, &mut leaves);
    leaves
}

/// Reads from the leaf of a child that is the likeliest to have everything.
fn read_child(child: &Arc<Vdev>, offset: u64, len: usize) -> io::Result<Abd> {
    let mut leaves = leaves_of(child);
    leaves.retain(|leaf| leaf.opened_state().readable());
    leaves.sort_by_key(|leaf| (leaf.is_behind(), leaf.stats.activity.hangs()));
    let mut error = io::Error::from(ErrorKind::NotFound);
    for leaf in leaves {
        let Some(device) = leaf.device() else { continue };
        match deeper(|| read_leaf(&leaf, &*device, offset, len)) {
            Ok(bytes) => return Ok(bytes),
            Err(e) => error = e,
        }
    }
    Err(error)
}

/// Reads from a leaf, which counts that, and is looked at if it fails.
fn read_leaf(leaf: &Vdev, device: &dyn Device, offset: u64, len: usize) -> io::Result<Abd> {
    let mut request = [ReadReq::new(offset.saturating_add(LABEL_START), len)];
    let stats = &leaf.stats.reads;
    stats.begin(1);
    let _busy = leaf.stats.activity.begin();
    let started = Instant::now();
    leaf.read_from(device, IoKind::Read, &mut request);
    let [request] = request;
    match request.take() {
        Ok(bytes) if bytes.len() == len => {
            stats.completed(len, started.elapsed());
            Ok(bytes)
        }
        failed => {
            leaf.suspected();
            stats.failed(true);
            failed.and(Err(ErrorKind::UnexpectedEof.into()))
        }
    }
}

/// Writes to all leaves of a child that take writes.
fn write_child(child: &Arc<Vdev>, offset: u64, data: Abd) -> io::Result<()> {
    let mut leaves = leaves_of(child);
    leaves.retain(|leaf| leaf.writable_at(offset));
    if leaves.is_empty() {
        return Err(ErrorKind::NotFound.into());
    }
    let stays = leaves.iter().any(|leaf| !leaf.is_leaving());
    for leaf in leaves {
        // Whether it is durable its own flush tells.
        leaf.written().mark();
        let done = deeper(|| {
            let mut request = [submit::request(&leaf, offset, data.clone())];
            submit::submit(&leaf, Priority::AsyncWrite, &mut request, |_| true);
            let [request] = request;
            request.take()
        });
        leaf.written().mark();
        done?;
    }
    // What only a leaf has that is about to leave is on no other then.
    if stays { Ok(()) } else { Err(io::Error::other("the device is leaving")) }
}

impl Device for SpareDevice {
    /// As many as any child has at least.
    fn size(&self) -> u64 {
        let top = self.top.read().upgrade();
        let child = top.and_then(|top| Some(top.draid()?.child_asize(top.asize())));
        child.map_or(0, |size| size.saturating_add(LABEL_START + LABEL_END))
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        for req in reqs {
            req.result = Some(self.read(req.offset, req.len));
        }
    }

    fn writable(&self) -> bool {
        let Some(top) = self.top.read().upgrade() else { return false };
        let mut leaves = Vec::new();
        top.collect_leaves(&mut leaves);
        leaves.iter().any(|leaf| leaf.vdev_kind() != Kind::DistributedSpare && leaf.writable())
    }

    fn write_batch(&self, reqs: &mut [WriteReq]) {
        for req in reqs {
            req.result = Some(self.write(req.offset, &req.data));
        }
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
