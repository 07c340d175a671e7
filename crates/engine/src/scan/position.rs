//! How far a scan is: the bookmark and the queue of data sets (`scn_bookmark`, `scn_queue_obj`).
//!
//! Invariants:
//! - No data set in the queue, nor that of the bookmark, comes from another one there.
//! - What cannot be read is not taken for gone: where it is not known what is to be walked, the scan begins anew, or a part of
//!   the pool counts as not walked.

use crate::Shared;
use crate::space_write::map::DIRECTORY_OBJECT;
use cenote_dmu::write::zap::{ZapFormat, ZapMut};
use cenote_dmu::write::{NewObject, OpenObjectSet, Result as WriteResult, WriteError};
use cenote_dmu::zap::{Zap, ZapEntry};
use cenote_dmu::{Error, ObjectSet, Result};
use cenote_dsl::traverse::Mark;
use cenote_format::dmu::{DNODE_SLOT, DmuType};
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::encode::zap::{Key, Value};
use cenote_format::{ByteOrder, Bytes, SECTOR};
use cenote_pool::Pool;
use cenote_pool::scan::{NO_DATASET, ScanPhys};
use cenote_store::BlockError;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// The entry of the object directory (`DMU_POOL_SCAN`).
const SCAN: &[u8] = b"scan";
/// What is scanned by deduplication tables (`scn_ddt_class_max`, `scn_ddt_bookmark`): nothing but the first class, which no new
/// table has. Blocks are scanned by their pointers here, so OpenZFS, going on with the scan, must not take the blocks of a table for done.
/// The bookmark is behind that class: the scan has no table left to walk.
const NO_TABLES: [u64; 5] = [0, 1, 0, 0, 0];

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

/// Nothing was walked yet.
pub(super) const ANEW: Position = Position::Mos(None);

/// The data set `ds` of a view; `None` if there is no such data set.
pub(super) fn dataset(mos: &Arc<ObjectSet>, ds: u64) -> Result<Option<DslDatasetPhys>> {
    let object = match mos.object(ds) {
        Err(Error::NoObject { .. }) => return Ok(None),
        object => object?,
    };
    if object.dnode().bonus_kind != DmuType::DSL_DATASET {
        return Ok(None);
    }
    let phys = DslDatasetPhys::decode(&object.bonus());
    let phys = phys.map_err(|source| Error::Decode { objset: mos.id(), object: ds, source })?;
    Ok(Some(phys))
}

/// The same of the pending MOS.
fn pending(mos: &mut OpenObjectSet, ds: u64) -> WriteResult<Option<DslDatasetPhys>> {
    let dnode = match mos.dnode(ds) {
        Err(WriteError::Read(Error::NoObject { .. })) => return Ok(None),
        dnode => dnode?,
    };
    if dnode.bonus_kind != DmuType::DSL_DATASET {
        return Ok(None);
    }
    let bonus = Bytes::new(&dnode.bonus, ByteOrder::Little, "DSL dataset");
    Ok(Some(DslDatasetPhys::decode(&bonus)?))
}

/// Parts of the pool that cannot be walked.
#[derive(Clone, Copy, Default)]
pub(super) struct Unseen {
    pub parts: u64,
    /// Devices did not answer for some of them, which may be readable later.
    pub hidden: bool,
}

impl Unseen {
    fn add(&mut self, view: &Pool, why: &Error) {
        self.parts += 1;
        let stays = match why {
            Error::Block(BlockError::Vdev { .. }) => false,
            // One copy that is wrong is enough for that, whatever there is of others.
            Error::Block(BlockError::Checksum { at, bp }) => view.store().is_lost(bp, *at),
            Error::Block(_) => true,
            _ => false,
        };
        self.hidden |= !stays;
    }
}

/// The data sets of a view, and the blocks of the MOS that cannot be read in which others may be.
fn datasets(view: &Pool, mut found: impl FnMut(u64, &DslDatasetPhys)) -> Unseen {
    let (mos, mut from, mut unseen) = (view.mos(), 1, Unseen::default());
    while from < mos.max_object() {
        match mos.next_object(from) {
            Ok(Some(number)) => {
                from = number.saturating_add(1);
                match dataset(mos, number) {
                    Ok(Some(phys)) => found(number, &phys),
                    Ok(None) => {}
                    Err(why) => unseen.add(view, &why),
                }
            }
            Ok(None) => break,
            Err(why) => {
                unseen.add(view, &why);
                from = mos.next_dnode_block(from);
            }
        }
    }
    unseen
}

/// The clones of a snapshot, if the list of them is whole.
fn clones(mos: &Arc<ObjectSet>, ds: &DslDatasetPhys) -> Option<Vec<u64>> {
    let entries = match ds.next_clones {
        0 => Vec::new(),
        list => Zap::open(&mos.object(list).ok()?).and_then(|zap| zap.entries()).ok()?,
    };
    // Old software has left entries out.
    let whole = entries.len() as u64 == ds.num_children.saturating_sub(1);
    whole.then(|| entries.iter().map(ZapEntry::u64).collect())?
}

/// What a bookmark says of a block.
fn mark_of(object: u64, level: u64, blkid: u64) -> Option<Mark> {
    let at_start = level != 0 || object == 0 && blkid == 0;
    (!at_start).then_some(Mark { object, blkid })
}

impl Position {
    /// As the state on disk has it. Without the queue all is walked again.
    pub fn load(view: &Pool, phys: &ScanPhys) -> Position {
        let queue = match phys.queue {
            0 => Ok(Vec::new()),
            queue => view.mos().object(queue).and_then(|q| Zap::open(&q)?.entries()),
        };
        let position = queue.ok().and_then(|queue| Position::of(phys, queue));
        position.unwrap_or_else(|| {
            tracing::warn!("the queue of a scan cannot be read: it begins anew");
            Position::Mos(None)
        })
    }

    /// `None`: an entry of the queue makes no sense.
    fn of(phys: &ScanPhys, entries: Vec<ZapEntry>) -> Option<Position> {
        let [objset, object, level, blkid] = phys.bookmark;
        let again = phys.flags & VISIT_AGAIN != 0;
        let mark = mark_of(object, level, blkid).filter(|_| !again);
        if objset == 0 {
            return Some(Position::Mos(mark));
        }
        let ds = Some(objset).filter(|ds| *ds != NO_DATASET);
        let current = ds.map(|ds| Current { ds, min: phys.cur_min_txg, mark });
        let queued = |entry: ZapEntry| {
            let name = std::str::from_utf8(&entry.name).ok()?;
            Some((u64::from_str_radix(name, 16).ok()?, entry.u64()?))
        };
        let queue = entries.into_iter().map(queued).collect::<Option<BTreeMap<u64, u64>>>()?;
        Some(Position::Sets { current, queue })
    }

    /// As the state in the pending MOS has it. `None`: the queue cannot be read.
    fn pending(mos: &mut OpenObjectSet, phys: &ScanPhys) -> Option<Position> {
        let queue = match phys.queue {
            0 => Vec::new(),
            queue => Zap::open(&mos.view(queue).ok()?).and_then(|zap| zap.entries()).ok()?,
        };
        Position::of(phys, queue)
    }

    /// Behind the MOS: the data sets that come from none. Also returns the parts of the MOS that cannot be read.
    pub fn roots(view: &Pool) -> (Position, Unseen) {
        let mut queue = BTreeMap::new();
        let unseen = datasets(view, |number, phys| {
            if phys.prev_snap == 0 {
                queue.insert(number, 0);
            }
        });
        (Position::Sets { current: None, queue }, unseen)
    }

    /// Adds the data sets that come from data set `number` to a queue, now that it is done (`dsl_scan_visitds`). Returns the parts
    /// of the MOS that cannot be read in which there may be others.
    pub fn descend(
        view: &Pool,
        number: u64,
        ds: &DslDatasetPhys,
        queue: &mut BTreeMap<u64, u64>,
    ) -> Unseen {
        if ds.num_children == 0 {
            return Unseen::default();
        }
        if ds.next_snap != 0 {
            queue.insert(ds.next_snap, ds.creation_txg);
        }
        if let Some(clones) = clones(view.mos(), ds) {
            queue.extend(clones.into_iter().map(|clone| (clone, ds.creation_txg)));
            return Unseen::default();
        }
        datasets(view, |clone, phys| {
            if phys.prev_snap == number {
                queue.insert(clone, ds.creation_txg);
            }
        })
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

    /// Puts it right for the pending MOS, given that it was right for `view`, or a later group.
    pub fn settle(&mut self, mos: &mut OpenObjectSet, view: &Pool) -> Settled {
        let (before, mut unseen) = (self.clone(), false);
        let mut place = |entry: Current| {
            settle(mos, view, entry).unwrap_or_else(|why| {
                tracing::warn!("data set {} may not be scanned whole: {why}", entry.ds);
                unseen = true;
                Some(entry)
            })
        };
        if let Position::Sets { current, queue } = self {
            let mut settled = BTreeMap::new();
            for (ds, min) in std::mem::take(queue) {
                let entry = place(Current { ds, min, mark: None });
                settled.extend(entry.map(|entry| (entry.ds, entry.min)));
            }
            *current = current.and_then(&mut place);
            if let Some(current) = current {
                settled.remove(&current.ds);
            }
            *queue = settled;
        }
        Settled { changed: *self != before, unseen }
    }
}

/// What came of putting a position right.
#[derive(Default)]
pub(super) struct Settled {
    /// It is another one.
    changed: bool,
    /// What it is to be could not be read everywhere: a part of the pool may not be walked.
    pub unseen: bool,
}

impl Position {
    /// A data set has other contents by now: it is walked from its start. Returns whether that changed anything
    /// (`dsl_scan_ds_clone_swapped`).
    fn renew(&mut self, mos: &mut OpenObjectSet, ds: u64) -> WriteResult<bool> {
        let Position::Sets { current, queue } = self else { return Ok(false) };
        if let Some(current) = current
            && current.ds == ds
        {
            return Ok(current.mark.take().is_some());
        }
        let Some(phys) = pending(mos, ds)? else { return Ok(false) };
        let (mut from, mut at) = (ds, Some(phys.clone()));
        while let Some(now) = at {
            // Its turn comes anyway.
            if queue.contains_key(&from) || current.is_some_and(|current| current.ds == from) {
                return Ok(false);
            }
            from = now.prev_snap;
            at = if from == 0 { None } else { pending(mos, from)? };
        }
        queue.insert(ds, phys.prev_snap_txg);
        Ok(true)
    }
}

/// What is to be walked in the pending MOS instead of a data set that was right for `view`.
fn settle(mos: &mut OpenObjectSet, view: &Pool, entry: Current) -> WriteResult<Option<Current>> {
    let Current { mut ds, min, mut mark } = entry;
    let Some(mut was) = dataset(view.mos(), ds)? else {
        // It was made since.
        return Ok(pending(mos, ds)?.map(|_| entry));
    };
    // What only a destroyed snapshot had is gone, the rest has the next one.
    let mut now = loop {
        match pending(mos, ds)?.filter(|now| now.guid == was.guid) {
            Some(now) => break now,
            None if was.next_snap == 0 => return Ok(None),
            None => {
                ds = was.next_snap;
                was = there(dataset(view.mos(), ds)?, ds)?;
                mark = None;
            }
        }
    };
    // What it had then has the first snapshot that was taken since.
    while now.prev_snap_txg > min && now.prev_snap != 0 {
        ds = now.prev_snap;
        now = there(pending(mos, ds)?, ds)?;
    }
    Ok(Some(Current { ds, min, mark }))
}

/// A data set that others refer to.
fn there(phys: Option<DslDatasetPhys>, ds: u64) -> WriteResult<DslDatasetPhys> {
    phys.ok_or(WriteError::Read(Error::NoObject { objset: 0, object: ds }))
}

/// Frees the queue's object; one that cannot be read stays.
pub(super) fn drop_queue(mos: &mut OpenObjectSet, phys: &mut ScanPhys) -> WriteResult<()> {
    let queue = std::mem::take(&mut phys.queue);
    if queue == 0 {
        return Ok(());
    }
    mos.begin_change();
    match mos.free(queue) {
        Err(WriteError::Read(why)) => {
            tracing::warn!("the queue of a scan is leaked: {why}");
            mos.undo_change();
            Ok(())
        }
        freed => {
            mos.keep_change();
            freed
        }
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
        let scanner = &shared.scanner;
        if !scanner.active.load(SeqCst) {
            return Ok(());
        }
        let view = shared.view();
        let swapped: Vec<u64> =
            std::mem::take(&mut self.tx.swapped).into_iter().flatten().collect();
        let what = "the state of a scan is not put right";
        let put_right = self.tx.unless_unreadable(what, |tx| {
            let Some(phys) = read(tx.mos)?.filter(ScanPhys::is_running) else { return Ok(false) };
            let known = Position::pending(tx.mos, &phys);
            // Without the queue all is walked again.
            let (mut position, mut changed) = (known.clone().unwrap_or(ANEW), known.is_none());
            let mut settled = position.settle(tx.mos, &view);
            for ds in swapped {
                match position.renew(tx.mos, ds) {
                    Ok(renewed) => changed |= renewed,
                    Err(_) => settled.unseen = true,
                }
            }
            let counted = settled.unseen && phys.errors == 0;
            if changed || settled.changed || counted {
                let format = tx.zap_format()?;
                position.store(tx.mos, phys.with_unseen(settled.unseen), format)?;
            }
            Ok(settled.unseen)
        })?;
        match put_right {
            Some(false) => {}
            Some(true) => scanner.given.lock().unseen = true,
            None => scanner.astray.store(true, SeqCst),
        }
        Ok(())
    }
}
