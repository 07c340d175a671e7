//! Dirty time logs: what they have to have is known from the disks ([`Lacks`]).
//!
//! At quiet points every block that the pool has is compared with what each disk of it has. A block that a disk has not, because it was away,
//! failed a write or lost one, belongs to a group that its log has: in memory, and on disk as well once a group was written behind
//! it, as that is all that an import knows. Logs may have more. When all disks are whole again nothing is lacking, and no
//! log on disk has anything: a resilver that is over has taken it off.

use super::{Done, Sim, tell};
use cenote_engine::Engine;
use cenote_torture::live::Stopped;
use cenote_torture::live::disk::Image;
use cenote_torture::live::lab;
use cenote_torture::live::lacks::{Groups, Lacks};
use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::BTreeMap;

/// Groups until all that disks missed is noted on disk, at most.
const GROUPS: usize = 20;
/// How often disks are compared before something counts as wrong: a scan may end, or a disk fail, while its log is looked at.
const LOOKS: usize = 2;

impl Sim {
    /// Looks at logs now and then: mostly while there is something in them.
    pub(super) fn look_at_logs(&mut self, rng: &mut SmallRng) -> Done {
        if self.engine.is_none() || self.power.is_off() {
            return Ok(());
        }
        let leaves = self.engine()?.pool().store().vdevs().leaves();
        let lags = self.devices.bad.is_some() || leaves.iter().any(|leaf| leaf.is_behind());
        drop(leaves);
        match rng.random_bool(if lags { 0.4 } else { 0.02 }) {
            true => self.check_logs(false),
            false => Ok(()),
        }
    }

    /// What disks lack their logs have. `whole`: they lack nothing.
    pub(super) fn check_logs(&mut self, whole: bool) -> Done {
        if !self.has_everything()? {
            return Ok(());
        }
        let mut wrong = None;
        for _ in 0..LOOKS {
            wrong = self.wrong_log(whole)?;
            if wrong.is_none() {
                return Ok(());
            }
        }
        wrong.map_or(Ok(()), |why| Err(Stopped(why)))
    }

    /// What logs do not have, if there is anything.
    fn wrong_log(&mut self, whole: bool) -> Done<Option<String>> {
        let engine = self.engine()?;
        note_all(&engine)?;
        let tree = engine.pool().store().vdevs().clone();
        let leaves = tree.leaves();
        // Nothing happens between these two.
        let logs: BTreeMap<u64, Groups> =
            leaves.iter().map(|leaf| (leaf.guid(), leaf.missing())).collect();
        let images: Vec<Image> = self.disks.iter().map(|disk| disk.image()).collect();
        let is_noted = !tree.has_missed();
        self.live.values_mut().for_each(super::Live::is_stable);
        let mut lacks = Lacks::of(&self.look_at(&lab::disks(&images, None))).map_err(Stopped)?;
        if self.devices.lied {
            // What was rebuilt may be wrong, and no log knows that.
            let rebuilt = self.rebuilt()?;
            lacks.lacking.retain(|(leaves, _)| !leaves.iter().any(|leaf| rebuilt.contains(leaf)));
        }
        let noted = logs.values().filter(|log| !log.is_empty()).count();
        tell(format_args!("{} logs, {} groups lacking", noted, lacks.lacking.len()));
        let in_memory = lacks.unknown(&logs).map(|why| format!("in memory: {why}"));
        let on_disk = || lacks.unknown(&lacks.logs).map(|why| format!("on disk: {why}"));
        let stays = || {
            let left = lacks.logs.iter().find(|(_, log)| whole && !log.is_empty());
            left.map(|left| format!("all are whole, and a log on disk has {left:?}"))
        };
        Ok(in_memory.or_else(|| on_disk().filter(|_| is_noted)).or_else(stays))
    }
}

/// What leaves are found to lack as a group ends is noted by the next one.
fn note_all(engine: &Engine) -> Done {
    for _ in 0..GROUPS {
        engine.sync()?;
        if !engine.pool().store().vdevs().has_missed() {
            break;
        }
    }
    Ok(())
}
