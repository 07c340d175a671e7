//! Changes of a rebuild's state, in syncing context (`vdev_rebuild_initiate_sync`, `vdev_rebuild_update_sync`,
//! `vdev_rebuild_complete_sync`).
//!
//! The state is an entry of the top-level vdev's ZAP, and a feature counts the rebuilds that are under way: if it counts none,
//! an entry that says otherwise is not believed. A rebuild begins anew if it is under way already, and a scrub that runs is
//! ended for it. When it ends without errors, the leaves no longer lack the groups that it has written, and the scrub that it
//! owes begins once no leaf is behind.

use crate::features::count_feature;
use crate::space_write::map::feature_uses;
use crate::tunables::REBUILD_SCRUB_ENABLED;
use crate::{Shared, SyncContext};
use cenote_dmu::write::ZapMut;
use cenote_dsl::write::{DslWriteError, Result};
use cenote_format::encode::zap::{Key, Value};
use cenote_pool::config_write::{entry, set_entry};
use cenote_pool::rebuild::{ENTRY, FEATURE, RebuildPhys};
use cenote_pool::scan::LAST_SCRUBBED;
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
    /// A scrub, or one of errors, ended for it: what is told of that.
    pub aborted: Option<&'static str>,
}

impl SyncContext<'_> {
    /// The last rebuild of a top-level vdev in the pending MOS.
    fn rebuild_of(&mut self, top: u64) -> Result<RebuildPhys> {
        let phys = self.noted_rebuild(top)?;
        let counts = !phys.is_running() || self.counts_rebuilds()?;
        Ok(if counts { phys } else { RebuildPhys::default() })
    }

    /// Whether the feature counts any rebuild that is under way. None is if it does not, whatever the vdevs' ZAPs say.
    fn counts_rebuilds(&mut self) -> Result<bool> {
        Ok(feature_uses(self.tx.mos, FEATURE)?.is_some_and(|uses| uses > 0))
    }

    /// One has begun or ended: the feature counts those that are under way. A log vdev that left with one, without its end being noted, has
    /// left pools with a count that is too high.
    fn count_rebuilds(&mut self) -> Result<()> {
        let mut running = 0i64;
        for top in self.tops() {
            running += i64::from(self.noted_rebuild(top)?.is_running());
        }
        loop {
            let counted = feature_uses(self.tx.mos, FEATURE)?.unwrap_or(0);
            let more = i128::from(running) - i128::from(counted);
            if more == 0 {
                return Ok(());
            }
            // A count that is damaged may be off by more than can be taken from it at once.
            let most = i128::from(i64::MAX);
            let step = i64::try_from(more.clamp(-most, most)).unwrap_or(i64::MAX);
            count_feature(self.tx.mos, self.tx.txg, &self.disk.outside, FEATURE, step)?;
        }
    }

    /// What the ZAP of a top-level vdev says.
    fn noted_rebuild(&mut self, top: u64) -> Result<RebuildPhys> {
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
        if self.counts_rebuilds()? {
            for top in self.tops() {
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

    /// The last rebuilds of all top-level vdevs.
    fn rebuilds(&mut self) -> Result<Vec<(u64, RebuildPhys)>> {
        if feature_uses(self.tx.mos, FEATURE)?.is_none() {
            return Ok(Vec::new());
        }
        self.tops().into_iter().map(|top| Ok((top, self.rebuild_of(top)?))).collect()
    }

    fn tops(&self) -> Vec<u64> {
        self.disk.tree().root().children().iter().map(|top| top.id()).collect()
    }

    /// A scrub begins: what rebuilds copied that have ended is in groups up to now. If a pool's disks say that it is of later ones,
    /// no scrub would ever prove it.
    pub(crate) fn bound_rebuilds(&mut self) -> Result<()> {
        let txg = self.tx.txg;
        for (top, phys) in self.rebuilds()? {
            if phys.has_copied() && phys.max_txg > txg {
                self.set_rebuild(top, &RebuildPhys { max_txg: txg, ..phys })?;
            }
        }
        Ok(())
    }

    /// The first rebuild begins: those that only the vdevs' ZAPs have, and the feature does not count, are none.
    fn drop_uncounted(&mut self) -> Result<()> {
        for top in self.tops() {
            if self.noted_rebuild(top)?.is_running() {
                self.set_rebuild(top, &RebuildPhys::default())?;
            }
        }
        Ok(())
    }

    /// Nothing is told any more of rebuilds that have ended: a resilver begins (`vdev_rebuild_clear_sync`). Those stay that no scrub
    /// has proven.
    pub(crate) fn forget_rebuilds(&mut self) -> Result<()> {
        let (scan, last) = (self.scan_state()?, self.last_scrubbed()?);
        for (top, phys) in self.rebuilds()? {
            if phys != RebuildPhys::default()
                && !phys.is_running()
                && !phys.is_unproven(&scan, last)
            {
                self.set_rebuild(top, &RebuildPhys::default())?;
            }
        }
        Ok(())
    }

    /// The last group whose blocks a scrub has looked at, or 0.
    fn last_scrubbed(&mut self) -> Result<u64> {
        Ok(entry(self.tx.mos, LAST_SCRUBBED)?.unwrap_or(0))
    }

    /// Whether a scrub is still to prove what rebuilds copied. Not one that was given up after them.
    pub(crate) fn owes_scrub(&mut self) -> Result<bool> {
        let (scan, last) = (self.scan_state()?, self.last_scrubbed()?);
        let owed = |(_, phys): &(u64, RebuildPhys)| phys.is_owed(&scan, last);
        Ok(REBUILD_SCRUB_ENABLED.is_on() && self.rebuilds()?.iter().any(owed))
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
            min_txg: crate::create::FIRST_TXG - 1,
            max_txg: end,
            start: self.tx.now,
            ..RebuildPhys::default()
        };
        if before.is_running() {
            phys.start = before.start;
            self.rebuild_history(top, "reset")?;
        } else {
            if !self.counts_rebuilds()? {
                self.drop_uncounted()?;
            }
            self.rebuild_history(top, "started")?;
        }
        self.set_rebuild(top, &phys)?;
        self.count_rebuilds()?;
        if self.last_scrubbed()? != 0 {
            // What a scrub has seen says nothing of what is copied: the next one looks at all.
            set_entry(self.tx.mos, LAST_SCRUBBED, 0)?;
        }
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
        // One that ends early may be for groups that are still to come: a scrub that begins now is to prove it as well.
        let max_txg = phys.max_txg.min(self.tx.txg);
        self.set_rebuild(top, &RebuildPhys { state, end, max_txg, ..*phys })?;
        self.count_rebuilds()?;
        if phys.errors == 0 {
            let given = || std::iter::once(0..phys.max_txg).collect::<Vec<_>>();
            self.given(leaves.iter().map(|leaf| (leaf.clone(), given(), Vec::new())).collect())?;
        }
        self.rebuild_history(top, "complete")?;
        // If a resilver is to give leaves what they lack besides, the scrub comes after it.
        let given =
            |leaf: &Vdev| phys.errors == 0 && leaves.iter().any(|l| l.guid() == leaf.guid());
        let tree = self.disk.tree();
        let lags = |leaf: &Arc<Vdev>| leaf.writable() && leaf.is_behind() && !given(leaf);
        let scrubs =
            !tree.leaves().iter().any(lags) && self.owes_scrub()? && self.scrub_if_idle(shared)?;
        Ok(Some(Ended { scrubs }))
    }

    /// Whether a rebuild of a top-level vdev is under way.
    pub(crate) fn is_rebuilt(&mut self, top: u64) -> Result<bool> {
        Ok(self.rebuild_of(top)?.is_running())
    }

    /// A top-level vdev leaves: a rebuild of it that is under way is over (`vdev_rebuild_stop_wait`). Whether one was.
    pub(crate) fn end_rebuild_of_left(&mut self, top: u64) -> Result<bool> {
        let now = self.rebuild_of(top)?;
        self.cancel_rebuild(top, &now)
    }

    /// A rebuild is given up: no leaf that it was for is there any more. Whether it was.
    pub(super) fn cancel_rebuild(&mut self, top: u64, phys: &RebuildPhys) -> Result<bool> {
        let now = self.rebuild_of(top)?;
        if !now.is_running() || !now.is_same(phys) {
            return Ok(false);
        }
        let (state, end) = (RebuildPhys::CANCELED, self.tx.now);
        self.set_rebuild(top, &RebuildPhys { state, end, ..now })?;
        self.count_rebuilds()?;
        self.rebuild_history(top, "canceled")?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{Engine, EngineOptions};
    use cenote_pool::{ImportOptions, discover};

    #[test]
    fn a_count_that_is_too_high_is_put_right() {
        let temp = cenote_testpools::copy("mir3");
        let candidate = discover(std::slice::from_ref(&temp.pool.dir)).remove(0);
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let engine = EngineOptions { deterministic: true, ..EngineOptions::default() };
        let engine = Engine::import(&candidate, &options, engine).unwrap();
        let counted = |more: i64| {
            let change = move |context: &mut SyncContext<'_>| {
                let (txg, outside) = (context.tx.txg, &context.disk.outside);
                match more {
                    0 => context.count_rebuilds()?,
                    more => count_feature(context.tx.mos, txg, outside, FEATURE, more)?,
                }
                Ok(feature_uses(context.tx.mos, FEATURE)?)
            };
            engine.sync_task(change).unwrap()
        };
        assert_eq!(counted(2), Some(2));
        assert_eq!(counted(0), Some(0));
        // As a damaged one may be.
        assert_eq!([i64::MAX, i64::MAX, 1].map(counted)[2], Some(u64::MAX));
        assert_eq!(counted(0), Some(0));
        engine.export(false).unwrap();
    }
}
