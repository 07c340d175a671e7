//! What the ZAP of a RAID-Z vdev says of its expansion (`vdev_raidz_load`, `spa_raidz_expand_get_stats`).

use crate::Pool;
use crate::time::{between, duration};
use cenote_dmu::zap::Zap;
use cenote_dsl::human::nicenum;

/// The feature of pools with RAID-Z that was expanded; it counts how often.
pub const FEATURE: &str = "org.openzfs:raidz_expansion";
/// The state of the last expansion: [`SCANNING`] or [`FINISHED`] (`VDEV_TOP_ZAP_RAIDZ_EXPAND_STATE`).
pub const STATE: &str = "org.openzfs:raidz_expand_state";
/// When it began, in seconds since 1970.
pub const START_TIME: &str = "org.openzfs:raidz_expand_start_time";
/// When it ended.
pub const END_TIME: &str = "org.openzfs:raidz_expand_end_time";
/// Bytes that it has moved.
pub const BYTES_COPIED: &str = "org.openzfs:raidz_expand_bytes_copied";

/// An expansion is under way (`DSS_SCANNING`).
pub const SCANNING: u64 = 1;
/// It has ended (`DSS_FINISHED`).
pub const FINISHED: u64 = 2;

/// The last expansion of a RAID-Z vdev (`pool_raidz_expand_stat_t`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expansion {
    /// Id of the vdev.
    pub vdev: u64,
    /// What the user calls it: raidz1-0.
    pub name: String,
    /// Whether it is under way.
    pub is_running: bool,
    /// When it began, and ended, in seconds since 1970.
    pub start: u64,
    /// 0: it has not.
    pub end: u64,
    /// Bytes that there are to move.
    pub to_reflow: u64,
    /// Bytes that have moved.
    pub reflowed: u64,
    /// What it waits for, while it does; the engine of a pool that is imported for writing fills it in.
    pub waits: Option<String>,
}

impl Expansion {
    /// The lines as `zpool status` prints them (`expand: …`), without the last newline.
    pub fn text(&self, ctime: &dyn Fn(u64) -> String) -> String {
        if !self.is_running {
            let (copied, took) = (nicenum(self.reflowed), duration(between(self.start, self.end)));
            return format!(
                "expand: expanded {} copied {copied} in {took}, on {}",
                self.name,
                ctime(self.end)
            );
        }
        let (copied, total) = (self.reflowed.max(1), self.to_reflow.max(1));
        let now = crate::time::since_1970().as_secs();
        let rate = (copied / between(self.start, now).max(1)).max(1);
        let left = total.saturating_sub(copied) / rate;
        let rest = match &self.waits {
            Some(why) => format!(", paused for resilver or clear\n\twaiting: {why}"),
            None if left < 30 * 24 * 3600 => format!(", {} to go", duration(left)),
            None => ", (copy is slow, no estimated time)".into(),
        };
        format!(
            "expand: expansion of {} in progress since {}\n\t{} / {} copied at {}/s, {:.2}% done{rest}",
            self.name,
            ctime(self.start),
            nicenum(copied),
            nicenum(total),
            nicenum(rate),
            100.0 * copied as f64 / total as f64,
        )
    }
}

/// The expansion that is under way, or the one that ended last.
pub(crate) fn of(pool: &Pool) -> Option<Expansion> {
    let tree = pool.store().vdevs();
    let tops = tree.root().children().iter().filter(|top| top.kind() == "raidz");
    let space = pool.space();
    let expansion = |top: &std::sync::Arc<cenote_vdev::Vdev>| {
        let zap = top.config().u64("com.delphix:vdev_zap_top").filter(|zap| *zap != 0)?;
        let zap = Zap::open(&pool.mos().object(zap).ok()?).ok()?;
        let number = |name: &str| zap.lookup(name.as_bytes()).ok()??.u64();
        let state = number(STATE)?;
        Some(Expansion {
            vdev: top.id(),
            name: format!("raidz{}-{}", top.nparity(), top.id()),
            is_running: state == SCANNING,
            start: number(START_TIME).unwrap_or(0),
            end: number(END_TIME).unwrap_or(0),
            to_reflow: space.as_ref().and_then(|s| s.vdev(top.id())).map_or(0, |stats| stats.alloc),
            reflowed: number(BYTES_COPIED).unwrap_or(0),
            waits: None,
        })
    };
    tops.filter_map(expansion).max_by_key(|e| (e.is_running, e.end))
}
