//! How far a scan is: the bookmark and the queue of data sets (`scn_bookmark`, `scn_queue_obj`).
//!
//! Invariant: no data set in the queue, nor that of the bookmark, comes from another one there.

use crate::Shared;
use crate::space_write::map::DIRECTORY_OBJECT;
use cenote_dmu::write::zap::{ZapFormat, ZapMut};
use cenote_dmu::write::{NewObject, OpenObjectSet, Result as WriteResult};
use cenote_dmu::zap::{Zap, ZapEntry};
use cenote_dmu::{ObjectSet, Result};
use cenote_dsl::traverse::Mark;
use cenote_format::dmu::{DNODE_SLOT, DmuType};
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::encode::zap::{Key, Value};
use cenote_format::{ByteOrder, Bytes, SECTOR};
use cenote_pool::Pool;
use cenote_pool::scan::{NO_DATASET, ScanPhys};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// The entry of the object directory (`DMU_POOL_SCAN`).
const SCAN: &[u8] = b"scan";
/// The class behind the last table of deduplicated blocks (`DDT_CLASSES`): a pool with such tables is not written to.
const NO_TABLES: [u64; 5] = [1, 3, 0, 0, 0];

/// The bookmark is in a data set that took the place of another one: it is to be walked from its start
/// (`DSF_VISIT_DS_AGAIN`).
const VISIT_AGAIN: u64 = 1;

/// A data set, and where in it the scan goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Current {
    /// The data set's object.
    pub ds: u64,
    /// Blocks that were born up to this group belong to others.
    pub min: u64,
    /// `None`: at its start.
    pub mark: Option<Mark>,
}

/// How far a scan is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// In the MOS.
    Mos(Option<Mark>),
    /// In a data set, with those that come next and the groups up to which their blocks belong to others.
    Sets { current: Option<Current>, queue: BTreeMap<u64, u64> },
}

/// The data set `ds` of a view; `None` if there is no such data set.
pub(super) fn dataset(mos: &Arc<ObjectSet>, ds: u64) -> Option<DslDatasetPhys> {
    let object = mos.object(ds).ok()?;
    let is_dataset = object.dnode().bonus_kind == DmuType::DSL_DATASET;
    is_dataset.then(|| DslDatasetPhys::decode(&object.bonus()).ok())?
}

/// The same of the pending MOS.
fn pending(mos: &mut OpenObjectSet, ds: u64) -> Option<DslDatasetPhys> {
    let dnode = mos.dnode(ds).ok().filter(|dnode| dnode.bonus_kind == DmuType::DSL_DATASET)?;
    DslDatasetPhys::decode(&Bytes::new(&dnode.bonus, ByteOrder::Little, "DSL dataset")).ok()
}

/// What a bookmark says of a block.
fn mark_of(object: u64, level: u64, blkid: u64) -> Option<Mark> {
    let at_start = level != 0 || object == 0 && blkid == 0;
    (!at_start).then_some(Mark { object, blkid })
}

impl Position {
    /// As the state on disk has it.
    pub fn load(view: &Pool, phys: &ScanPhys) -> Result<Position> {
        let queue = match phys.queue {
            0 => Vec::new(),
            queue => Zap::open(&view.mos().object(queue)?)?.entries()?,
        };
        Ok(Position::of(phys, queue))
    }

    fn of(phys: &ScanPhys, entries: Vec<ZapEntry>) -> Position {
        let [objset, object, level, blkid] = phys.bookmark;
        let again = phys.flags & VISIT_AGAIN != 0;
        let mark = mark_of(object, level, blkid).filter(|_| !again);
        if objset == 0 {
            return Position::Mos(mark);
        }
        let ds = Some(objset).filter(|ds| *ds != NO_DATASET);
        let current = ds.map(|ds| Current { ds, min: phys.cur_min_txg, mark });
        let queued = |entry: ZapEntry| {
            let name = std::str::from_utf8(&entry.name).ok()?;
            Some((u64::from_str_radix(name, 16).ok()?, entry.u64()?))
        };
        let queue = entries.into_iter().filter_map(queued).collect();
        Position::Sets { current, queue }
    }

    /// As the state in the pending MOS has it.
    fn pending(mos: &mut OpenObjectSet, phys: &ScanPhys) -> WriteResult<Position> {
        let queue = match phys.queue {
            0 => Ok(Vec::new()),
            queue => Zap::open(&mos.view(queue)?).and_then(|zap| zap.entries()),
        };
        // Without the queue all is walked again.
        let Ok(queue) = queue else { return Ok(Position::Mos(None)) };
        Ok(Position::of(phys, queue))
    }

    /// Behind the MOS: the data sets that come from none.
    pub fn roots(view: &Pool) -> Result<Position> {
        let (mos, mut queue, mut from) = (view.mos(), BTreeMap::new(), 1);
        while let Some(number) = mos.next_object(from)? {
            from = number.saturating_add(1);
            if dataset(mos, number).is_some_and(|phys| phys.prev_snap == 0) {
                queue.insert(number, 0);
            }
        }
        Ok(Position::Sets { current: None, queue })
    }

    /// Adds the data sets that come from `ds` to a queue, now that it is done.
    pub fn descend(view: &Pool, ds: &DslDatasetPhys, queue: &mut BTreeMap<u64, u64>) -> Result<()> {
        if ds.num_children == 0 {
            return Ok(());
        }
        if ds.next_snap != 0 {
            queue.insert(ds.next_snap, ds.creation_txg);
        }
        if ds.next_clones != 0 {
            let clones = Zap::open(&view.mos().object(ds.next_clones)?)?.entries()?;
            let clones = clones.into_iter().filter_map(|entry| entry.u64());
            queue.extend(clones.map(|clone| (clone, ds.creation_txg)));
        }
        Ok(())
    }

    /// Notes it in the state, whose queue is written anew.
    pub fn store(
        &self,
        mos: &mut OpenObjectSet,
        phys: ScanPhys,
        salt: ZapFormat,
    ) -> WriteResult<ScanPhys> {
        let flags = phys.flags & !VISIT_AGAIN;
        let mut phys = ScanPhys { ddt: NO_TABLES, cur_max_txg: phys.max_txg, flags, ..phys };
        drop_queue(mos, &mut phys)?;
        let new = NewObject::new(DmuType::SCAN_QUEUE, SECTOR.max(DNODE_SLOT as u64));
        phys.queue = ZapMut::create(mos, &new, salt)?;
        let place = |mark: Option<Mark>| mark.map_or([0, 0, 0], |m| [m.object, 0, m.blkid]);
        let (objset, [object, level, blkid]) = match self {
            Position::Mos(mark) => (0, place(*mark)),
            Position::Sets { current: Some(current), .. } => {
                phys.cur_min_txg = current.min.max(phys.min_txg);
                (current.ds, place(current.mark))
            }
            Position::Sets { current: None, .. } => (NO_DATASET, [0, 0, 0]),
        };
        phys.bookmark = [objset, object, level, blkid];
        if let Position::Sets { queue, .. } = self {
            for (ds, min) in queue {
                let name = format!("{ds:x}");
                ZapMut::open(mos, phys.queue)
                    .add(&Key::Name(name.as_bytes()), &Value::U64(&[*min]))?;
            }
        }
        write(mos, &phys)?;
        Ok(phys)
    }

    /// Puts it right for the pending MOS, given that it was right for `view`, or a later group. Returns whether it had to be.
    pub fn settle(&mut self, mos: &mut OpenObjectSet, view: &Pool) -> bool {
        let before = self.clone();
        if let Position::Sets { current, queue } = self {
            let mut settled = BTreeMap::new();
            for (ds, min) in std::mem::take(queue) {
                let entry = settle(mos, view, Current { ds, min, mark: None });
                settled.extend(entry.map(|entry| (entry.ds, entry.min)));
            }
            *current = current.and_then(|current| settle(mos, view, current));
            if let Some(current) = current {
                settled.remove(&current.ds);
            }
            *queue = settled;
        }
        *self != before
    }
}

impl Position {
    /// A data set has other contents by now: it is walked from its start. Returns whether that changed anything
    /// (`dsl_scan_ds_clone_swapped`).
    fn renew(&mut self, mos: &mut OpenObjectSet, ds: u64) -> bool {
        let Position::Sets { current, queue } = self else { return false };
        if let Some(current) = current
            && current.ds == ds
        {
            return current.mark.take().is_some();
        }
        let Some(phys) = pending(mos, ds) else { return false };
        let (mut from, mut at) = (ds, Some(phys.clone()));
        while let Some(now) = at {
            // Its turn comes anyway.
            if queue.contains_key(&from) || current.is_some_and(|current| current.ds == from) {
                return false;
            }
            from = now.prev_snap;
            at = pending(mos, from);
        }
        queue.insert(ds, phys.prev_snap_txg);
        true
    }
}

/// What is to be walked in the pending MOS instead of a data set that was right for `view`.
fn settle(mos: &mut OpenObjectSet, view: &Pool, entry: Current) -> Option<Current> {
    let Current { mut ds, min, mut mark } = entry;
    let Some(mut was) = dataset(view.mos(), ds) else {
        // It was made since.
        return pending(mos, ds).map(|_| entry);
    };
    // What only a destroyed snapshot had is gone, the rest has the next one.
    let mut now = loop {
        match pending(mos, ds).filter(|now| now.guid == was.guid) {
            Some(now) => break now,
            None if was.next_snap == 0 => return None,
            None => {
                ds = was.next_snap;
                was = dataset(view.mos(), ds)?;
                mark = None;
            }
        }
    };
    // What it had then has the first snapshot that was taken since.
    while now.prev_snap_txg > min && now.prev_snap != 0 {
        ds = now.prev_snap;
        now = pending(mos, ds)?;
    }
    Some(Current { ds, min, mark })
}

/// Frees the queue's object.
pub(super) fn drop_queue(mos: &mut OpenObjectSet, phys: &mut ScanPhys) -> WriteResult<()> {
    match std::mem::take(&mut phys.queue) {
        0 => Ok(()),
        queue => mos.free(queue),
    }
}

/// Writes the state.
pub(super) fn write(mos: &mut OpenObjectSet, phys: &ScanPhys) -> WriteResult<()> {
    ZapMut::open(mos, DIRECTORY_OBJECT).update(&Key::Name(SCAN), &Value::U64(&phys.encode()))
}

/// The state in the pending MOS.
pub(super) fn read(mos: &mut OpenObjectSet) -> WriteResult<Option<ScanPhys>> {
    let words = ZapMut::open(mos, DIRECTORY_OBJECT).lookup(&Key::Name(SCAN))?;
    Ok(words.and_then(|(size, words)| ScanPhys::decode(&words).filter(|_| size == 8)))
}

impl crate::SyncContext<'_> {
    /// Puts the state of a scan right, now that tasks of this group may have changed data sets (`dsl_scan_ds_destroyed`,
    /// `dsl_scan_ds_snapshotted`).
    pub(crate) fn settle_scan(&mut self, shared: &Shared) -> cenote_dsl::write::Result<()> {
        if !shared.scanner.active.load(SeqCst) {
            return Ok(());
        }
        let view = shared.view();
        let what = "the state of a scan is not put right";
        self.tx.unless_unreadable(what, |tx| {
            let Some(phys) = read(tx.mos)?.filter(ScanPhys::is_running) else { return Ok(()) };
            let mut position = Position::pending(tx.mos, &phys)?;
            let swapped = std::mem::take(&mut tx.swapped);
            let mut changed = position.settle(tx.mos, &view);
            for ds in swapped.into_iter().flatten() {
                changed |= position.renew(tx.mos, ds);
            }
            if changed {
                let format = tx.zap_format()?;
                position.store(tx.mos, phys, format)?;
            }
            Ok(())
        })?;
        Ok(())
    }
}
