//! Changes of a rebuild's state, in syncing context (`vdev_rebuild_initiate_sync`, `vdev_rebuild_update_sync`,
//! `vdev_rebuild_complete_sync`).

use crate::space_write::map::feature_uses;
use crate::sync::count_feature;
use crate::tunables::REBUILD_SCRUB_ENABLED;
use crate::{Shared, SyncContext};
use cenote_dmu::write::ZapMut;
use cenote_dsl::write::{DslWriteError, Result};
use cenote_format::encode::zap::{Key, Value};
use cenote_pool::rebuild::{ENTRY, FEATURE, RebuildPhys, may_rebuild};
use cenote_vdev::Vdev;
use std::sync::Arc;

/// What a group that a rebuild ends with has begun besides.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    /// A scrub, which proves what was copied.
    pub scrubs: bool,
}

/// What the beginning of a rebuild has come to.
#[derive(Clone, Copy, Default)]
pub(crate) struct Begun {
    /// A scrub ended for it.
    pub aborted: bool,
}

impl SyncContext<'_> {
    /// The last rebuild of a top-level vdev in the pending MOS.
    fn rebuild_of(&mut self, top: u64) -> Result<RebuildPhys> {
        let zap = self.maps.top_zap(top);
        if zap == 0 {
            return Ok(RebuildPhys::default());
        }
        let found = ZapMut::open(self.tx.mos, zap).lookup(&Key::Name(ENTRY.as_bytes()))?;
        let words = found.filter(|(size, _)| *size == 8).map(|(_, words)| words);
        Ok(words.and_then(|words| RebuildPhys::decode(&words)).unwrap_or_default())
    }

    fn set_rebuild(&mut self, top: u64, phys: &RebuildPhys) -> Result<()> {
        let (zap, words) = (self.maps.top_zap(top), phys.encode());
        let key = Key::Name(ENTRY.as_bytes());
        Ok(ZapMut::open(self.tx.mos, zap).update(&key, &Value::U64(&words))?)
    }

    /// The top-level vdevs of which a rebuild is under way, by id.
    fn rebuilding(&mut self) -> Result<Vec<u64>> {
        let mut found = Vec::new();
        if may_rebuild() && feature_uses(self.tx.mos, FEATURE)?.is_some_and(|uses| uses > 0) {
            let tops: Vec<u64> =
                self.disk.tree().root().children().iter().map(|t| t.id()).collect();
            for top in tops {
                if self.rebuild_of(top)?.is_running() {
                    found.push(top);
                }
            }
        }
        Ok(found)
    }

    /// Whether a rebuild is under way (`vdev_rebuild_active`).
    pub(crate) fn is_rebuilding(&mut self) -> Result<bool> {
        Ok(!self.rebuilding()?.is_empty())
    }

    /// Nothing is told any more of rebuilds that have ended: a resilver begins (`vdev_rebuild_clear_sync`).
    pub(crate) fn forget_rebuilds(&mut self) -> Result<()> {
        if feature_uses(self.tx.mos, FEATURE)?.is_none() {
            return Ok(());
        }
        let tops: Vec<u64> = self.disk.tree().root().children().iter().map(|t| t.id()).collect();
        for top in tops {
            let phys = self.rebuild_of(top)?;
            if phys != RebuildPhys::default() && !phys.is_running() {
                self.set_rebuild(top, &RebuildPhys::default())?;
            }
        }
        Ok(())
    }

    fn rebuild_history(&mut self, top: u64, what: &str) -> Result<()> {
        let guid = self.disk.tree().top(top).map_or(0, |top| top.guid());
        self.record("rebuild", &format!("vdev_id={top} vdev_guid={guid} {what}"))
    }

    /// A rebuild of a top-level vdev begins for a leaf that joins it and lacks all groups before `end`. One that is under
    /// way begins anew (`vdev_rebuild`, `vdev_rebuild_reset_sync`).
    pub(crate) fn begin_rebuild(
        &mut self,
        shared: &Arc<Shared>,
        top: u64,
        end: u64,
    ) -> Result<Begun> {
        if self.maps.top_zap(top) == 0 {
            return Err(DslWriteError::Unsupported("rebuilding a vdev without a ZAP".into()));
        }
        let before = self.rebuild_of(top)?;
        let mut phys = RebuildPhys {
            state: RebuildPhys::ACTIVE,
            min_txg: crate::create::FIRST_TXG.saturating_sub(1),
            max_txg: end,
            start: self.tx.now,
            ..RebuildPhys::default()
        };
        if before.is_running() {
            phys.start = before.start;
            self.rebuild_history(top, "reset")?;
        } else {
            let (txg, outside) = (self.tx.txg, &self.disk.outside);
            count_feature(self.tx.mos, txg, outside, FEATURE, 1)?;
            self.rebuild_history(top, "started")?;
        }
        self.set_rebuild(top, &phys)?;
        let aborted = self.abort_scrub(shared)?;
        Ok(Begun { aborted })
    }

    /// Notes how far a rebuild is. Not if it is another one by now, or over.
    pub(super) fn note_rebuild(&mut self, top: u64, phys: &RebuildPhys) -> Result<bool> {
        let now = self.rebuild_of(top)?;
        let goes_on = now.is_running() && now.is_same(phys);
        if goes_on {
            self.set_rebuild(top, phys)?;
        }
        Ok(goes_on)
    }

    /// A rebuild is over: `leaves` have got all that they lacked before it began, if it had no errors. `None`: it is another
    /// one by now.
    pub(super) fn end_rebuild(
        &mut self,
        shared: &Arc<Shared>,
        top: u64,
        phys: &RebuildPhys,
        leaves: &[Arc<Vdev>],
    ) -> Result<Option<Ended>> {
        let now = self.rebuild_of(top)?;
        if !now.is_running() || !now.is_same(phys) {
            return Ok(None);
        }
        let (state, end) = (RebuildPhys::COMPLETE, self.tx.now);
        self.set_rebuild(top, &RebuildPhys { state, end, ..*phys })?;
        let (txg, outside) = (self.tx.txg, &self.disk.outside);
        count_feature(self.tx.mos, txg, outside, FEATURE, -1)?;
        if phys.errors == 0 {
            let given = || std::iter::once(0..phys.max_txg).collect::<Vec<_>>();
            self.given(leaves.iter().map(|leaf| (leaf.clone(), given(), Vec::new())).collect())?;
        }
        self.rebuild_history(top, "complete")?;
        let last = self.rebuilding()?.is_empty();
        let scrubs = last && REBUILD_SCRUB_ENABLED.is_on() && self.scrub_if_idle(shared)?;
        Ok(Some(Ended { scrubs }))
    }

    /// A rebuild is given up: no leaf that it was for is there any more. Whether it was.
    pub(super) fn cancel_rebuild(&mut self, top: u64, phys: &RebuildPhys) -> Result<bool> {
        let now = self.rebuild_of(top)?;
        if !now.is_running() || !now.is_same(phys) {
            return Ok(false);
        }
        let (state, end) = (RebuildPhys::CANCELED, self.tx.now);
        self.set_rebuild(top, &RebuildPhys { state, end, ..now })?;
        let (txg, outside) = (self.tx.txg, &self.disk.outside);
        count_feature(self.tx.mos, txg, outside, FEATURE, -1)?;
        self.rebuild_history(top, "canceled")?;
        Ok(true)
    }
}
