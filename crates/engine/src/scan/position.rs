//! How far a scan is: the bookmark and the queue of data sets (`scn_bookmark`, `scn_queue_obj`).
//!
//! A position is *right* for a group if each block that the pool refers to in it, and that the scan must look at, was looked at, or is
//! met by a walk that goes on at the position. Such a walk meets, of the data set of the bookmark and of each one in the queue, the pointers
//! that were born after its group, and then all data sets that come from it.
//!
//! A position that is right for one group becomes right for the next one by [`Position::follow`], whoever holds it: the state on disk
//! follows each group, a round its view and then all groups since ([`super::moves`]). For each [`Move`]:
//! - A *snapshot* has what the head had: it takes the head's place, mark included, and the head comes from it.
//! - A data set that is *gone* leaves its place to what comes next at that moment, which has all that is left of it. That is told by
//!   the change itself: what came next in an earlier view may be another data set, or gone, as others are promoted and destroyed.
//! - Heads that are *swapped* change places, marks included, as what was walked of each goes with its contents.
//! - A head that has *gained* references to older blocks is walked once more for them: their places may be walked by then, and others
//!   where the blocks were met may go. What comes from a later group is all that this walk passes.
//! - A *promotion* moves nothing: what data sets come from the same snapshot, and from which group on, stays the same.
//!
//! Invariants:
//! - Apart from what was gained, no data set in the queue, nor that of the bookmark, comes from another one there.
//! - What cannot be read is not taken for gone: where it is not known what must be walked, the scan begins anew, or a part of
//!   the pool counts as not walked.

use crate::space_write::map::DIRECTORY_OBJECT;
use cenote_dmu::write::zap::{ZapFormat, ZapMut};
use cenote_dmu::write::{NewObject, OpenObjectSet, Result as WriteResult, WriteError};
use cenote_dmu::zap::{Zap, ZapEntry};
use cenote_dmu::{Error, ObjectSet, Result};
use cenote_dsl::traverse::Mark;
use cenote_dsl::write::Move;
use cenote_format::SECTOR;
use cenote_format::dmu::{DNODE_SLOT, DmuType};
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::encode::zap::{Key, Value};
use cenote_pool::Pool;
use cenote_pool::scan::{NO_DATASET, ScanPhys};
use cenote_store::BlockError;
use std::collections::BTreeMap;
use std::sync::Arc;

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
    pub fn pending(mos: &mut OpenObjectSet, phys: &ScanPhys) -> Option<Position> {
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
            put(queue, ds.next_snap, ds.creation_txg);
        }
        if let Some(clones) = clones(view.mos(), ds) {
            clones.into_iter().for_each(|clone| put(queue, clone, ds.creation_txg));
            return Unseen::default();
        }
        datasets(view, |clone, phys| {
            if phys.prev_snap == number {
                put(queue, clone, ds.creation_txg);
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

    /// Has it follow what was moved since it was right, in that order. Returns whether it is another one for that.
    pub fn follow(&mut self, moves: &[Move]) -> bool {
        let before = self.clone();
        if let Position::Sets { current, queue } = self {
            moves.iter().for_each(|made| follow(current, queue, *made));
        }
        *self != before
    }
}

fn follow(current: &mut Option<Current>, queue: &mut BTreeMap<u64, u64>, made: Move) {
    let is_current = |of: u64| current.filter(|current| current.ds == of);
    match made {
        Move::Snapshotted { head, snap } => {
            queue.remove(&head).into_iter().for_each(|min| put(queue, snap, min));
            *current = is_current(head).map(|now| Current { ds: snap, ..now }).or(*current);
        }
        Move::Gone { ds, next } => {
            let next = Some(next).filter(|next| *next != 0);
            let min = queue.remove(&ds);
            next.zip(min).into_iter().for_each(|(next, min)| put(queue, next, min));
            // What comes next has other objects before the mark.
            if let Some(Current { min, .. }) = is_current(ds) {
                *current = next.map(|ds| Current { ds, min, mark: None });
            }
        }
        Move::Swapped(a, b) => {
            let (of_a, of_b) = (queue.remove(&a), queue.remove(&b));
            queue.extend(of_a.map(|min| (b, min)));
            queue.extend(of_b.map(|min| (a, min)));
            let goes = |from, to| is_current(from).map(|now| Current { ds: to, ..now });
            *current = goes(a, b).or(goes(b, a)).or(*current);
        }
        // It may be done, or these places of it be behind the mark.
        Move::Gained { ds, after } => put(queue, ds, after),
    }
}

/// Adds a data set to a queue. One that is in it is walked for both.
fn put(queue: &mut BTreeMap<u64, u64>, ds: u64, min: u64) {
    let known = queue.entry(ds).or_insert(min);
    *known = min.min(*known);
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

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 10;

    fn at(current: Option<(u64, u64, bool)>, queue: &[(u64, u64)]) -> Position {
        let mark = |marked: bool| marked.then_some(Mark { object: 7, blkid: 2 });
        let current = current.map(|(ds, min, marked)| Current { ds, min, mark: mark(marked) });
        Position::Sets { current, queue: queue.iter().copied().collect() }
    }

    /// What a receive does as it ends: head 20 and clone 21 come after the snapshot of group `S`, 22 is the new snapshot.
    fn received() -> [Move; 3] {
        let snapshot = Move::Snapshotted { head: 20, snap: 22 };
        [Move::Swapped(21, 20), snapshot, Move::Gone { ds: 21, next: 0 }]
    }

    fn follows(mut from: Position, moves: &[Move], to: &Position) {
        let was = from.clone();
        assert_eq!(from.follow(moves), was != *to);
        assert_eq!(from, *to, "{was:?} {moves:?}");
    }

    #[test]
    fn what_is_received_is_walked_if_the_clone_was_not() {
        // The head is done, or half of it is.
        follows(at(None, &[(21, S)]), &received(), &at(None, &[(22, S)]));
        follows(at(Some((20, S, true)), &[(21, S)]), &received(), &at(None, &[(22, S)]));
        // Half of the clone is.
        follows(at(Some((21, S, true)), &[]), &received(), &at(Some((22, S, true)), &[]));
        follows(at(Some((21, S, true)), &[(20, S)]), &received(), &at(Some((22, S, true)), &[]));
        // All of it is, and nothing of the head, which is gone.
        follows(at(None, &[(20, S)]), &received(), &at(None, &[]));
        // It goes back past a snapshot that is queued.
        let mut forced = vec![Move::Gone { ds: 19, next: 20 }];
        forced.extend(received());
        follows(at(None, &[(19, S), (21, S)]), &forced, &at(None, &[(22, S)]));
        follows(at(Some((19, S, true)), &[(21, S)]), &forced, &at(None, &[(22, S)]));
    }

    #[test]
    fn heads_go_and_their_snapshots_stay() {
        // A snapshot of 20 is cloned, the clone promoted, and 20 destroyed.
        let moves = [Move::Snapshotted { head: 20, snap: 22 }, Move::Gone { ds: 20, next: 0 }];
        follows(at(None, &[(20, S)]), &moves, &at(None, &[(22, S)]));
        follows(at(Some((20, S, true)), &[]), &moves, &at(Some((22, S, true)), &[]));
        // 20 came next when 19 was walked; 30 has been promoted since.
        let moves = [Move::Gone { ds: 20, next: 0 }, Move::Gone { ds: 19, next: 30 }];
        follows(at(None, &[(19, S)]), &moves, &at(None, &[(30, S)]));
        follows(at(Some((19, S, true)), &[]), &moves, &at(Some((30, S, false)), &[]));
    }

    #[test]
    fn what_is_gained_is_walked_again() {
        let gained = [Move::Gained { ds: 20, after: 50 }];
        follows(at(None, &[]), &gained, &at(None, &[(20, 50)]));
        follows(at(Some((20, S, true)), &[]), &gained, &at(Some((20, S, true)), &[(20, 50)]));
        // It is walked anyway.
        follows(at(None, &[(20, S)]), &gained, &at(None, &[(20, S)]));
        follows(Position::Mos(None), &gained, &Position::Mos(None));
        // It goes with the contents.
        let [swap, snapshot, gone] = received();
        let gained = Move::Gained { ds: 21, after: 50 };
        follows(at(None, &[]), &[gained, swap, snapshot, gone], &at(None, &[(22, 50)]));
    }
}
