//! A distributed spare as a device (`vdev_draid_spare_ops`).
//!
//! A spare has no device of its own: what it holds is, slice by slice, in a place that other children of its vdev keep
//! for it. To the vdev above it is a leaf like others. Its device passes requests on to the child that has the place, to all
//! leaves of that which take writes. Another spare may stand in for that child: then the place is that one's, and so on.
//!
//! # Which leaf lacks what
//!
//! A leaf that takes no writes lacks what should have been written to it, whether as itself or for a spare whose place it has: that goes into
//! the *leaf's* dirty time log, not into the spare's ([`crate::write`]). So what a spare has at a place is what its own log and those of
//! the leaves there say together ([`Vdev::trust_at`]), and a leaf that comes back, or takes another one's place, is given by a scan
//! what belongs into the spares' places on it besides its own ([`mirror::reach`]). It is the same in OpenZFS, so that either of the two
//! knows what the other one has left behind.
//!
//! - It has no labels on disk: the first two and the last two are kept in memory, and the pool does not commit to them.
//! - A write fails if any leaf that takes writes fails it: then the spare has missed it, whatever the other leaf has.
//! - Leaves go out of use at any time, and come back while nothing is written. So it is asked once more which of them take no writes
//!   when a write has ended: those that went out meanwhile lack it, too.
//! - It is flushed with the leaves: a flush of one of them that fails counts as the spare's too, and so does one that lets go of its
//!   device. No flush of the spare alone makes anything durable.
//! - It counts as a child that lacks something while it takes no writes, or has failed one, not for a flush: what that lost is on
//!   another child, and counts there.
//!
//! Invariant: from the place of a column no way leads through the same spare twice. In a row each spare has a place on another child, none
//! of them on one with a column, and each spare stands in for one child.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use std::time::Instant;

use cenote_format::abd::Abd;
use cenote_format::invariant::broken;
use cenote_format::label::{LABEL_END, LABEL_SIZE};
use cenote_format::{LABEL_START, invariant};
use parking_lot::{Mutex, RwLock};

use crate::device::{Device, ReadReq, WriteReq};
use crate::dtl::Trust;
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

/// A part of a request: the number of the request, a range of it, and the child and byte of its allocatable space where that is.
struct Part {
    request: usize,
    within: Range<usize>,
    child: Arc<Vdev>,
    offset: u64,
    /// Where the slice ends that it is in: in it all spares have their places on the same children.
    end: u64,
    /// What is written there.
    data: Abd,
}

impl SpareDevice {
    pub(crate) fn new(path: &Path, number: u64) -> Arc<SpareDevice> {
        let labels = Mutex::new(vec![0; 4 * LABEL_SIZE as usize]);
        Arc::new(SpareDevice { path: path.into(), number, top: RwLock::default(), labels })
    }

    /// From now on its places are in this vdev.
    pub(crate) fn place(&self, top: &Arc<Vdev>) {
        let (number, spares) = (self.number, top.draid().map(|shape| shape.nspares));
        invariant!(
            spares.is_some_and(|spares| number < spares),
            "distributed spare {number} of {top:?}, which has {spares:?}"
        );
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
        let top = self.top.read().upgrade();
        top.map_or_else(Vec::new, |top| leaves_of(self.child_at(&top, offset).0))
    }

    /// The child of its vdev that has byte `offset` of its allocatable space, and for how many bytes from there on.
    fn child_at<'a>(&self, top: &'a Vdev, offset: u64) -> (&'a Arc<Vdev>, u64) {
        let place = top.draid.as_ref().map(|layout| layout.spare_child(self.number, offset));
        let found = place.and_then(|(child, left)| Some((top.children().get(child)?, left)));
        found.unwrap_or_else(|| {
            let number = self.number;
            broken(format_args!("{top:?} has no place {place:?} for spare {number}, byte {offset}"))
        })
    }

    /// The parts of request number `request`, for its allocatable space.
    fn parts(&self, request: usize, offset: u64, len: usize) -> io::Result<Vec<Part>> {
        let gone = || io::Error::from(ErrorKind::NotFound);
        let top = self.top.read().upgrade().ok_or_else(gone)?;
        let start = offset.checked_sub(LABEL_START).ok_or(ErrorKind::InvalidInput)?;
        let (mut parts, mut at) = (Vec::new(), 0);
        while at < len {
            let place = start.checked_add(at as u64).ok_or(ErrorKind::InvalidInput)?;
            let (child, left) = self.child_at(&top, place);
            let end = place.checked_add(left).ok_or(ErrorKind::InvalidInput)?;
            // What is left of a slice may be more than a number of bytes in memory can say.
            let take = usize::try_from(left).map_or(len - at, |left| left.min(len - at));
            let (child, data) = (child.clone(), Abd::from_vec(Vec::new()));
            parts.push(Part { request, within: at..at + take, child, offset: place, end, data });
            at += take;
        }
        Ok(parts)
    }

    /// The parts of requests, (byte, bytes), but for those that are done.
    fn all_parts(&self, requests: &[(u64, usize, bool)]) -> Vec<io::Result<Vec<Part>>> {
        let of = |(n, (offset, len, done)): (usize, &(u64, usize, bool))| match done {
            true => Ok(Vec::new()),
            false => self.parts(n, *offset, *len),
        };
        requests.iter().enumerate().map(of).collect()
    }

    fn read_labels(&self, range: Range<usize>) -> io::Result<Abd> {
        let labels = self.labels.lock();
        Ok(Abd::from_vec(labels.get(range).ok_or(ErrorKind::InvalidInput)?.to_vec()))
    }

    fn write_labels(&self, range: Range<usize>, data: &Abd) -> io::Result<()> {
        let mut labels = self.labels.lock();
        let place = labels.get_mut(range).ok_or(ErrorKind::InvalidInput)?;
        place.copy_from_slice(&data.bytes());
        Ok(())
    }
}

impl Vdev {
    /// How far this leaf can be trusted with blocks born in `txg` at byte `offset` of its allocatable space. What a distributed
    /// spare has there is worth as much as what the leaves have that its place is on (`vdev_draid_missing`).
    pub(crate) fn trust_at(&self, offset: u64, txg: u64) -> Option<Trust> {
        let own = self.trust(txg)?;
        if own != Trust::Good || !self.is_distributed() {
            return Some(own);
        }
        self.place_at(offset).iter().filter_map(|leaf| leaf.trust_at(offset, txg)).min()
    }

    /// The leaf to be read in the place of this one to have what was written in `txg`: another one only where a distributed spare would
    /// read a leaf that lacks it while another one has it.
    pub(crate) fn reader_at(self: Arc<Vdev>, offset: u64, txg: u64) -> Arc<Vdev> {
        let mut leaves = self.place_at(offset);
        order(&mut leaves, offset);
        let Some(first) = leaves.first().cloned() else { return self };
        let good = leaves.into_iter().find(|leaf| leaf.trust_at(offset, txg) == Some(Trust::Good));
        let Some(good) = good else { return self };
        let reader = good.reader_at(offset, txg);
        if reader.is_same(&first) { self } else { reader }
    }

    /// Whether wrong bytes of this leaf, which can be trusted with what was written in `txg` at byte `offset` of its allocatable space, are
    /// its error. A read of a distributed spare does not say which of the leaves there gave them, so all of them have to have it that may
    /// have: none that is out of use.
    pub(crate) fn is_to_have(&self, offset: u64, txg: u64) -> bool {
        let has =
            |leaf: &Arc<Vdev>| leaf.trust(txg) == Some(Trust::Good) && leaf.is_to_have(offset, txg);
        let gives = |leaf: &&Arc<Vdev>| leaf.opened_state().readable();
        self.place_at(offset).iter().filter(gives).all(has)
    }

    /// Whether this leaf lacks nothing of what was written to byte `offset` of its allocatable space.
    fn is_fresh_at(&self, offset: u64) -> bool {
        let there = || self.place_at(offset).iter().any(|leaf| leaf.is_fresh_at(offset));
        !self.is_behind() && (!self.is_distributed() || there())
    }

    /// Whether this leaf takes writes at byte `offset` of its allocatable space.
    pub(crate) fn writable_at(&self, offset: u64) -> bool {
        let there = || self.place_at(offset).iter().any(|leaf| leaf.writable_at(offset));
        self.writable() && (!self.is_distributed() || there())
    }

    /// Whether what this leaf took at byte `offset` of its allocatable space is on a leaf in use that stays so.
    pub(crate) fn keeps_at(&self, offset: u64) -> bool {
        let there = || self.place_at(offset).iter().any(|leaf| leaf.keeps_at(offset));
        // In this order: it is out before it is no more asked whether it may go.
        let stays = !self.going.load(SeqCst) && self.writable();
        stays && (!self.is_distributed() || there())
    }

    /// The leaves that byte `offset` of a distributed spare is on, which may be spares in turn; none for other leaves.
    pub(crate) fn place_at(&self, offset: u64) -> Vec<Arc<Vdev>> {
        self.distributed.get().map_or_else(Vec::new, |spare| spare.place_at(offset))
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

/// The leaves of a child that can be read, in the order in which to try them.
fn order(leaves: &mut Vec<Arc<Vdev>>, offset: u64) {
    leaves.retain(|leaf| leaf.opened_state().readable());
    leaves.sort_by_key(|leaf| (!leaf.is_fresh_at(offset), leaf.stats.activity.hangs()));
}

/// Parts of a batch, those for one child in one slice together.
fn by_child(parts: Vec<Part>) -> Vec<Vec<Part>> {
    let mut groups: Vec<Vec<Part>> = Vec::new();
    for part in parts {
        let is_same = |group: &&mut Vec<Part>| {
            let first = group.first();
            first.is_some_and(|f| Arc::ptr_eq(&f.child, &part.child) && f.end == part.end)
        };
        match groups.iter_mut().find(is_same) {
            Some(group) => group.push(part),
            None => groups.push(vec![part]),
        }
    }
    groups
}

/// The leaves of the child that parts are for, and where the first part is.
fn whose(parts: &[Part]) -> (Vec<Arc<Vdev>>, u64) {
    match parts.first() {
        Some(first) => (leaves_of(&first.child), first.offset),
        None => broken(format_args!("no part of a request for a distributed spare")),
    }
}

/// Reads parts for one child from the leaf that is the likeliest to have everything, and what it does not give from others.
fn read_child(parts: &[Part]) -> Vec<io::Result<Abd>> {
    let (mut leaves, offset) = whose(parts);
    order(&mut leaves, offset);
    let missing = || Err(io::Error::from(ErrorKind::NotFound));
    let mut done: Vec<io::Result<Abd>> = parts.iter().map(|_| missing()).collect();
    for leaf in leaves {
        let Some(device) = leaf.device() else { continue };
        let left: Vec<usize> = (0..parts.len()).filter(|i| done[*i].is_err()).collect();
        if left.is_empty() {
            break;
        }
        let request = |i: &usize| {
            let part = &parts[*i];
            ReadReq::new(part.offset + LABEL_START, part.within.len())
        };
        let mut requests: Vec<ReadReq> = left.iter().map(request).collect();
        match deeper(|| read_leaf(&leaf, &*device, &mut requests)) {
            Ok(()) => left.iter().zip(requests).for_each(|(i, req)| done[*i] = req.take()),
            Err(e) => left.iter().for_each(|i| done[*i] = Err(io::Error::from(e.kind()))),
        }
    }
    done
}

/// Reads from a leaf, which counts that, and is looked at if it fails.
fn read_leaf(leaf: &Vdev, device: &dyn Device, requests: &mut [ReadReq]) -> io::Result<()> {
    let stats = &leaf.stats.reads;
    stats.begin(requests.len());
    let _busy = leaf.stats.activity.begin();
    let started = Instant::now();
    leaf.read_from(device, IoKind::Read, requests);
    for request in requests {
        match &request.result {
            Some(Ok(bytes)) if bytes.len() == request.len => {
                stats.completed(request.len, started.elapsed());
                continue;
            }
            Some(Ok(_)) => request.result = Some(Err(ErrorKind::UnexpectedEof.into())),
            _ => {}
        }
        leaf.suspected();
        stats.failed(true);
    }
    Ok(())
}

/// Writes parts for one child to all leaves of it that take writes there.
fn write_child(parts: &[Part]) -> Vec<io::Result<()>> {
    let leaves = whose(parts).0;
    let missing = || Err(io::Error::from(ErrorKind::NotFound));
    let mut done: Vec<io::Result<()>> = parts.iter().map(|_| missing()).collect();
    // Whether a leaf has it that stays.
    let mut stays = vec![false; parts.len()];
    let mut failed = vec![false; parts.len()];
    // Counted before they are looked at: a thread that detaches one marks it as leaving before the count is looked at.
    let _under_way: Vec<_> = leaves.iter().map(|leaf| leaf.vacant.begin()).collect();
    for leaf in &leaves {
        let takes = |i: &usize| leaf.writable_at(parts[*i].offset);
        let mine: Vec<usize> = (0..parts.len()).filter(takes).collect();
        if mine.is_empty() {
            continue;
        }
        let request = |i: &usize| submit::request(leaf, parts[*i].offset, parts[*i].data.clone());
        let mut requests: Vec<WriteReq> = mine.iter().map(request).collect();
        // Whether it is durable its own flush tells.
        leaf.written().mark();
        let submitted = deeper(|| {
            submit::submit(leaf, Priority::AsyncWrite, &mut requests, |_| true);
            Ok(())
        });
        leaf.written().mark();
        let results = requests.into_iter().map(|request| match &submitted {
            Ok(()) => request.take(),
            Err(e) => Err(io::Error::from(e.kind())),
        });
        for (i, result) in mine.into_iter().zip(results) {
            if result.is_err() {
                // A stripe that has a column here, of the spare, lacks it.
                leaf.written().write_failed();
            }
            stays[i] |= result.is_ok() && !leaf.is_leaving();
            if !failed[i] {
                failed[i] = result.is_err();
                done[i] = result;
            }
        }
    }
    for ((done, stays), failed) in done.iter_mut().zip(stays).zip(failed) {
        if done.is_ok() && !stays && !failed {
            // What only a leaf has that is about to leave is on no other then.
            *done = Err(io::Error::other("the device is leaving"));
        }
    }
    done
}

impl Device for SpareDevice {
    /// As many as any child has at least.
    fn size(&self) -> u64 {
        let top = self.top.read().upgrade();
        let child = top.and_then(|top| Some(top.draid()?.child_asize(top.asize())));
        child.map_or(0, |size| size + LABEL_START + LABEL_END)
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        for req in reqs.iter_mut() {
            req.result = self.in_labels(req.offset, req.len).map(|range| self.read_labels(range));
        }
        let asked: Vec<_> =
            reqs.iter().map(|req| (req.offset, req.len, req.result.is_some())).collect();
        let (mut parts, mut counts) = (Vec::new(), Vec::new());
        for (req, mine) in reqs.iter_mut().zip(self.all_parts(&asked)) {
            match mine {
                Ok(mine) => {
                    counts.push(mine.len());
                    parts.extend(mine);
                }
                Err(e) => {
                    counts.push(0);
                    req.result = Some(Err(e));
                }
            }
        }
        let mut read: Vec<Vec<(usize, Abd)>> = reqs.iter().map(|_| Vec::new()).collect();
        for group in by_child(parts) {
            let done = read_child(&group);
            for (part, bytes) in group.iter().zip(done) {
                match bytes {
                    Ok(bytes) => read[part.request].push((part.within.start, bytes)),
                    Err(e) => reqs[part.request].result = Some(Err(e)),
                }
            }
        }
        for ((req, mut pieces), count) in reqs.iter_mut().zip(read).zip(counts) {
            if req.result.is_none() && pieces.len() == count {
                pieces.sort_by_key(|(at, _)| *at);
                let mut pieces: Vec<Abd> = pieces.into_iter().map(|(_, bytes)| bytes).collect();
                req.result = Some(Ok(match pieces.len() {
                    1 => pieces.remove(0),
                    _ => Abd::gang(pieces),
                }));
            }
        }
    }

    fn concurrency(&self, requests: usize, _bytes: u64) -> usize {
        requests.clamp(1, 8)
    }

    fn writable(&self) -> bool {
        let Some(top) = self.top.read().upgrade() else { return false };
        let mut leaves = Vec::new();
        top.collect_leaves(&mut leaves);
        leaves.iter().any(|leaf| leaf.vdev_kind() != Kind::DistributedSpare && leaf.writable())
    }

    fn write_batch(&self, reqs: &mut [WriteReq]) {
        for req in reqs.iter_mut() {
            let range = self.in_labels(req.offset, req.data.len());
            req.result = range.map(|range| self.write_labels(range, &req.data));
        }
        let asked: Vec<_> =
            reqs.iter().map(|req| (req.offset, req.data.len(), req.result.is_some())).collect();
        let mut parts = Vec::new();
        for (req, mine) in reqs.iter_mut().zip(self.all_parts(&asked)) {
            let cut = |mut part: Part| {
                let piece = req.data.slice(part.within.start, part.within.len());
                part.data = piece.ok_or(ErrorKind::InvalidInput)?;
                Ok(part)
            };
            let mine =
                mine.and_then(|mine| mine.into_iter().map(cut).collect::<io::Result<Vec<_>>>());
            match mine {
                Ok(mine) => parts.extend(mine),
                Err(e) => req.result = Some(Err(e)),
            }
            // Unless a part of it fails.
            req.result.get_or_insert(Ok(()));
        }
        for group in by_child(parts) {
            for (part, done) in group.iter().zip(write_child(&group)) {
                if let Err(e) = done {
                    reqs[part.request].result = Some(Err(e));
                }
            }
        }
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
