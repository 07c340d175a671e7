//! What groups move while a scan is under way: each position follows that ([`super::position`]).
//!
//! ```text
//!  group  ── blocks that data sets gained, then tasks ──> moves ──> the state on disk   each group
//!                                                           └─────> the log ──> a round, at its end
//! ```
//!
//! A round walks a view that may be many groups old by its end, when its position takes the place of the one on disk. So the moves
//! of all groups behind its view are kept until then.
//!
//! Invariants:
//! - A move is followed by each position once: by that on disk in its group; by a round's as it takes the place of that, if the
//!   group is later than its view. Moves of the group in which it does so are followed by what is on disk then.
//! - The log has the moves of all groups that are not in the newest view, or not in that of the round under way: both are looked
//!   at, and the log is cut, with its lock held.
//!
//! When all of a view was walked nothing is left to be followed: whatever a later group refers to that is old enough was referred to
//! in the view.

use super::Scanner;
use super::position::{self, ANEW, Position};
use crate::{Shared, SyncContext};
use cenote_dmu::write::OpenObjectSet;
use cenote_dsl::write::{Move, Result};
use cenote_format::blkptr::BlockPointer;
use cenote_format::less;
use cenote_pool::Pool;
use cenote_pool::scan::ScanPhys;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// See the module.
#[derive(Default)]
pub(super) struct Moves {
    /// Groups and their moves, in their order.
    log: Vec<(u64, Move)>,
    /// What data sets gained in the group that is written.
    gained: Vec<Move>,
    /// The group of the view that a round walks.
    round: Option<u64>,
}

/// The view of a round, whose moves are kept meanwhile.
pub(super) struct Walked<'a> {
    scanner: &'a Scanner,
    pub view: Arc<Pool>,
}

impl Drop for Walked<'_> {
    fn drop(&mut self) {
        self.scanner.moves.lock().round = None;
    }
}

impl Shared {
    /// The newest view, for a round that begins.
    pub(super) fn view_for_round(&self) -> Walked<'_> {
        let mut moves = self.scanner.moves.lock();
        let view = self.view();
        moves.round = Some(view.uberblock().txg);
        Walked { scanner: &self.scanner, view }
    }
}

impl Scanner {
    /// What was moved in groups later than this one, up to the last one whose moves the state on disk has followed.
    pub(super) fn moves_since(&self, group: u64) -> Vec<Move> {
        let moves = self.moves.lock();
        moves.log.iter().filter(|(txg, _)| *txg > group).map(|(_, made)| *made).collect()
    }

    /// Blocks became part of a data set in this group. Such as are older, and to be looked at, may have been only in places that are
    /// not walked yet, and that are gone then (`dsl_scan_ddt_entry`).
    pub(crate) fn written(
        &self,
        mos: &mut OpenObjectSet,
        (txg, ds): (u64, u64),
        born: &[BlockPointer],
    ) {
        let is_old =
            |bp: &&BlockPointer| !bp.is_hole() && !bp.is_embedded() && bp.physical_birth() < txg;
        if !self.active.load(SeqCst) || !born.iter().any(|bp| is_old(&bp)) {
            return;
        }
        let (after, last) = match position::read(mos) {
            Ok(Some(phys)) if phys.is_running() => (phys.min_txg, phys.max_txg),
            Ok(_) => return,
            // Rather walk it in vain.
            Err(_) => (0, txg),
        };
        let is_scanned = |bp: &BlockPointer| {
            let birth = bp.physical_birth();
            birth > after && birth <= last
        };
        if born.iter().filter(is_old).any(is_scanned) {
            let after = less!(txg, 1, "group that is written");
            self.moves.lock().gained.push(Move::Gained { ds, after });
        }
    }
}

impl SyncContext<'_> {
    /// Has the state of a scan follow what was moved in this group (`dsl_scan_ds_destroyed`, `dsl_scan_ds_snapshotted`,
    /// `dsl_scan_ds_clone_swapped`).
    pub(super) fn settle_scan(&mut self, shared: &Shared) -> Result<()> {
        let (scanner, txg) = (&shared.scanner, self.tx.txg);
        let moves = {
            let mut known = scanner.moves.lock();
            let mut moves = std::mem::take(&mut known.gained);
            moves.append(&mut self.tx.moves);
            let newest = shared.view().uberblock().txg;
            let needed = known.round.map_or(newest, |round| round.min(newest));
            known.log.retain(|(txg, _)| *txg > needed);
            known.log.extend(moves.iter().map(|made| (txg, *made)));
            moves
        };
        if moves.is_empty() || !scanner.active.load(SeqCst) {
            return Ok(());
        }
        let what = "the state of a scan is not put right";
        let put_right = self.tx.unless_unreadable(what, |tx| {
            let Some(phys) = position::read(tx.mos)?.filter(ScanPhys::is_running) else {
                return Ok(());
            };
            let known = Position::pending(tx.mos, &phys);
            // Without the queue all is walked again.
            let (mut position, lost) = (known.clone().unwrap_or(ANEW), known.is_none());
            if position.follow(&moves) || lost {
                let format = tx.zap_format()?;
                position.store(tx.mos, phys, format)?;
            }
            Ok(())
        })?;
        if put_right.is_none() {
            scanner.astray.store(true, SeqCst);
        }
        Ok(())
    }
}
