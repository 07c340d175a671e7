//! Sequential rebuilds: leaves of mirrors and dRAID that are given all that is allocated, in the order of offsets
//! (`vdev_rebuild_phys_t`).
//!
//! The ZAP of each top-level vdev says how far its last one is: 12 integers of 64 bits at [`ENTRY`]. The feature
//! [`FEATURE`] counts those that are under way.

use crate::Pool;
use crate::config;
use crate::scan::ScanPhys;
use crate::time::duration;
use cenote_dmu::Result;
use cenote_dmu::zap::Zap;
use cenote_dsl::human::nicebytes;
use cenote_format::nvlist::NvList;

/// The entry in the ZAP of a top-level vdev (`VDEV_TOP_ZAP_VDEV_REBUILD_PHYS`).
pub const ENTRY: &str = "org.openzfs:vdev_rebuild";
/// The feature of pools in which a rebuild is under way.
pub const FEATURE: &str = "org.openzfs:device_rebuild";
/// The group in which a leaf joined that is being rebuilt, in its config (`vdev_rebuild_txg`).
pub const JOINED: &str = "rebuild_txg";
/// Integers of the structure on disk (`REBUILD_PHYS_ENTRIES`).
const WORDS: usize = 12;
/// Bytes a second from which on it is told how long it will take.
const FAST: u64 = 10 << 20;

/// The last rebuild of a top-level vdev, as it is on disk (`vdev_rebuild_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RebuildPhys {
    /// 0: there was none, or nothing is told of it; 1: under way, 2: given up, 3: done (`vdev_rebuild_state_t`).
    pub state: u64,
    /// All that was allocated before this byte of the vdev is rebuilt.
    pub last_offset: u64,
    /// Leaves lacked groups after this one.
    pub min_txg: u64,
    /// They lacked groups before this one, and are whole as far as that when it ends.
    pub max_txg: u64,
    /// When it began: seconds since 1970.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// Milliseconds that it took so far.
    pub took_ms: u64,
    /// Bytes of the vdev that were looked at.
    pub scanned: u64,
    /// Bytes of them that were read.
    pub issued: u64,
    /// Bytes that were written to leaves.
    pub rebuilt: u64,
    /// Bytes of the vdev that there are to look at.
    pub estimate: u64,
    /// Places that could not be read or written: no leaf counts as whole then.
    pub errors: u64,
}

impl RebuildPhys {
    /// It is under way, or was when the pool was last written (`VDEV_REBUILD_ACTIVE`).
    pub const ACTIVE: u64 = 1;
    /// It was given up (`VDEV_REBUILD_CANCELED`).
    pub const CANCELED: u64 = 2;
    /// It is done (`VDEV_REBUILD_COMPLETE`).
    pub const COMPLETE: u64 = 3;

    /// From the words of the entry. `None`: they are too few.
    pub fn decode(words: &[u64]) -> Option<RebuildPhys> {
        let &[
            state,
            last_offset,
            min_txg,
            max_txg,
            start,
            end,
            took_ms,
            scanned,
            issued,
            rebuilt,
            estimate,
            errors,
        ] = words.first_chunk::<WORDS>()?;
        Some(RebuildPhys {
            state,
            last_offset,
            min_txg,
            max_txg,
            start,
            end,
            took_ms,
            scanned,
            issued,
            rebuilt,
            estimate,
            errors,
        })
    }

    /// The words of the entry.
    pub fn encode(&self) -> [u64; WORDS] {
        [
            self.state,
            self.last_offset,
            self.min_txg,
            self.max_txg,
            self.start,
            self.end,
            self.took_ms,
            self.scanned,
            self.issued,
            self.rebuilt,
            self.estimate,
            self.errors,
        ]
    }

    /// Whether it is under way.
    pub fn is_running(&self) -> bool {
        self.state == RebuildPhys::ACTIVE
    }

    /// Whether it is done. What it copied was not verified then.
    pub fn has_copied(&self) -> bool {
        self.state == RebuildPhys::COMPLETE
    }

    /// Whether no scrub of all has looked at what it copied, as far as `scan`, the last scan, and the last group that scrubs came to
    /// say. A rebuild ends each scrub as it begins, and none begins beside it: so one of later groups began after it.
    pub fn is_unproven(&self, scan: &ScanPhys, last_scrubbed: u64) -> bool {
        // No block was born in group 1.
        let of_all = scan.is_scrub() && scan.is_finished() && scan.min_txg <= 1;
        let by_last = of_all && scan.max_txg >= self.max_txg;
        self.has_copied() && !by_last && last_scrubbed < self.max_txg
    }

    /// The same, and whether a scrub is to begin by itself: not if `scan` is one that began after the rebuild and was given up.
    pub fn is_owed(&self, scan: &ScanPhys, last_scrubbed: u64) -> bool {
        let given_up = scan.is_scrub() && scan.is_given_up() && scan.max_txg >= self.max_txg;
        self.is_unproven(scan, last_scrubbed) && !given_up
    }

    /// Whether the other one is the same rebuild, from the same beginning.
    pub fn is_same(&self, other: &RebuildPhys) -> bool {
        (self.start, self.max_txg) == (other.start, other.max_txg)
    }

    /// The rebuild that a vdev with this config and ZAP had last. An entry that cannot be read counts as no rebuild, as in
    /// OpenZFS (`vdev_rebuild_load`): then leaves lack what they lack. A vdev that was removed has none, though its ZAP stays for its
    /// mapping (`vdev_is_concrete`).
    pub fn of(pool: &Pool, top: &NvList) -> Option<RebuildPhys> {
        if matches!(top.str("type"), Some("indirect" | "hole" | "missing")) {
            return None;
        }
        let read = || -> Result<Option<RebuildPhys>> {
            let zap = config::number(top, "com.delphix:vdev_zap_top");
            if zap == 0 || !pool.features().is_enabled("device_rebuild") {
                return Ok(None);
            }
            let zap = Zap::open(&pool.mos().object(zap)?)?;
            let entry = zap.lookup(ENTRY.as_bytes())?.filter(|entry| entry.int_size == 8);
            Ok(entry.and_then(|entry| RebuildPhys::decode(&entry.value)))
        };
        let found = read().unwrap_or_else(|error| {
            tracing::warn!(vdev = config::number(top, "id"), %error, "its rebuild is not known");
            None
        });
        // An active entry that the feature does not count is no rebuild.
        let counts = pool.features().is_active("device_rebuild");
        found.filter(|phys| (2..=3).contains(&phys.state) || phys.is_running() && counts)
    }

    /// The last rebuilds of all top-level vdevs, by their ids.
    pub fn all(pool: &Pool) -> Vec<(u64, RebuildPhys)> {
        let tops = config::tops(pool.config());
        let found = tops
            .iter()
            .filter_map(|top| Some((config::number(top, "id"), RebuildPhys::of(pool, top)?)));
        found.collect()
    }

    /// Whether any is under way (`vdev_rebuild_active`).
    pub fn any_runs(pool: &Pool) -> bool {
        pool.features().is_active("device_rebuild")
            && RebuildPhys::all(pool).iter().any(|(_, phys)| phys.is_running())
    }
}

/// What a rebuild has done since the pool was imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RebuildPass {
    /// Milliseconds.
    pub took_ms: u64,
    /// Bytes looked at.
    pub scanned: u64,
    /// Bytes read.
    pub issued: u64,
}

/// The last rebuild of a top-level vdev (`vdev_rebuild_stat_t`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuildStatus {
    /// Id of the vdev.
    pub vdev: u64,
    /// What the user calls it: mirror-0.
    pub name: String,
    /// The state on disk; while it is under way the engine of a pool that is imported for writing fills in how far it is.
    pub phys: RebuildPhys,
    /// The same.
    pub pass: RebuildPass,
    /// Why it does not go on, while it does not; the same.
    pub waits: Option<String>,
}

impl RebuildStatus {
    /// The last rebuilds of all top-level vdevs.
    pub(crate) fn all(pool: &Pool) -> Vec<RebuildStatus> {
        let tops = config::tops(pool.config());
        let of = |(vdev, phys): (u64, RebuildPhys)| {
            let top = tops.iter().find(|top| config::number(top, "id") == vdev)?;
            let name = crate::status::vdev_name(top, &Default::default());
            Some(RebuildStatus { vdev, name, phys, pass: RebuildPass::default(), waits: None })
        };
        RebuildPhys::all(pool).into_iter().filter_map(of).collect()
    }

    /// Those that `zpool status` tells of, as another scan ended at `resilvered` (0: none did): all, if one is under way or
    /// ended later (`print_scan_status`).
    pub fn told(all: &[RebuildStatus], resilvering: bool, resilvered: u64) -> &[RebuildStatus] {
        let runs = all.iter().any(|rebuild| rebuild.phys.is_running());
        let ended = all.iter().map(|rebuild| rebuild.phys.end).max().unwrap_or(0);
        let tells = runs || !resilvering && ended > resilvered;
        if tells { all } else { &[] }
    }

    /// The lines as `zpool status` prints them, the label included (`  scan: …`), without the last newline
    /// (`print_rebuild_status_impl`). `ctime` prints seconds since 1970.
    pub fn text(&self, ctime: &dyn Fn(u64) -> String) -> String {
        let (name, phys) = (&self.name, &self.phys);
        let rebuilt = nicebytes(phys.rebuilt);
        match phys.state {
            RebuildPhys::COMPLETE => format!(
                "  scan: resilvered ({name}) {rebuilt} in {} with {} errors on {}",
                duration(phys.took_ms / 1000),
                phys.errors,
                ctime(phys.end)
            ),
            RebuildPhys::CANCELED => {
                format!("  scan: resilver ({name}) canceled on {}", ctime(phys.end))
            }
            _ => self.progress_text(&rebuilt, ctime),
        }
    }

    /// The lines of one under way.
    fn progress_text(&self, rebuilt: &str, ctime: &dyn Fn(u64) -> String) -> String {
        let (phys, pass) = (&self.phys, &self.pass);
        let rate = |bytes: u64| bytes / (pass.took_ms + 1) * 1000;
        let at = |rate: u64| match rate {
            0 => String::new(),
            rate => format!(" at {}/s", nicebytes(rate)),
        };
        let (scan_rate, issue_rate) = (rate(pass.scanned), rate(pass.issued));
        let estimate = nicebytes(phys.estimate);
        let percent = phys.scanned as f64 * 100.0 / (phys.estimate as f64 + 1.0);
        let left = match phys.estimate.checked_sub(phys.scanned) {
            Some(left) if scan_rate >= FAST => format!(", {} to go", duration(left / scan_rate)),
            _ => ", no estimated completion time".into(),
        };
        let waits = self.waits.as_ref().map(|why| format!("\n\twaiting: {why}"));
        format!(
            "  scan: resilver ({}) in progress since {}\n\t{} / {estimate} scanned{}, {} / {estimate} issued{}\n\t\
             {rebuilt} resilvered, {:.2}% done{left}{}",
            self.name,
            ctime(phys.start),
            nicebytes(phys.scanned),
            at(scan_rate),
            nicebytes(phys.issued),
            at(issue_rate),
            percent.min(100.0),
            waits.unwrap_or_default(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(phys: RebuildPhys, pass: RebuildPass) -> RebuildStatus {
        RebuildStatus { vdev: 1, name: "mirror-1".into(), phys, pass, waits: None }
    }

    fn phys() -> RebuildPhys {
        RebuildPhys {
            state: 1,
            last_offset: 9 << 20,
            min_txg: 3,
            max_txg: 44,
            start: 1000,
            took_ms: 61_000,
            scanned: 3 << 20,
            issued: 2 << 20,
            rebuilt: 1 << 20,
            estimate: 4 << 20,
            ..RebuildPhys::default()
        }
    }

    #[test]
    fn the_structure_on_disk() {
        let words = RebuildPhys { errors: 7, end: 8, ..phys() }.encode();
        assert_eq!(
            words,
            [1, 9 << 20, 3, 44, 1000, 8, 61_000, 3 << 20, 2 << 20, 1 << 20, 4 << 20, 7]
        );
        assert_eq!(RebuildPhys::decode(&words), Some(RebuildPhys { errors: 7, end: 8, ..phys() }));
        assert_eq!(RebuildPhys::decode(&words[..11]), None);
    }

    #[test]
    fn a_scrub_of_all_proves_it() {
        let scrub = ScanPhys { func: 1, state: 2, max_txg: 44, ..ScanPhys::default() };
        let done = RebuildPhys { state: RebuildPhys::COMPLETE, ..phys() };
        let says = |scan: &ScanPhys, last| (done.is_unproven(scan, last), done.is_owed(scan, last));
        assert_eq!(says(&ScanPhys::default(), 0), (true, true));
        assert_eq!(says(&scrub, 0), (false, false));
        // Others came after it.
        assert_eq!(says(&ScanPhys { func: 2, ..scrub }, 44), (false, false));
        assert_eq!(says(&ScanPhys { func: 2, ..scrub }, 43), (true, true));
        // One of a part, one under way, one before it, and those that were given up before and after it.
        assert_eq!(says(&ScanPhys { min_txg: 2, ..scrub }, 0), (true, true));
        assert_eq!(says(&ScanPhys { state: 1, ..scrub }, 0), (true, true));
        assert_eq!(says(&ScanPhys { max_txg: 43, ..scrub }, 0), (true, true));
        assert_eq!(says(&ScanPhys { state: 3, max_txg: 43, ..scrub }, 0), (true, true));
        assert_eq!(says(&ScanPhys { state: 3, ..scrub }, 0), (true, false));
        // Nothing was copied.
        for state in [0, RebuildPhys::ACTIVE, RebuildPhys::CANCELED] {
            assert!(!RebuildPhys { state, ..done }.is_unproven(&ScanPhys::default(), 0));
        }
    }

    #[test]
    fn what_is_said_of_them() {
        let ctime = |t: u64| format!("T{t}");
        let pass = RebuildPass { took_ms: 999, scanned: 3 << 20, issued: 2 << 20 };
        assert_eq!(
            status(phys(), pass).text(&ctime),
            "  scan: resilver (mirror-1) in progress since T1000\n\t3M / 4M scanned at 3.00M/s, 2M / 4M issued at \
             2.00M/s\n\t1M resilvered, 75.00% done, no estimated completion time"
        );
        let fast = RebuildPass { took_ms: 99, ..pass };
        let far = RebuildPhys { estimate: 303 << 20, ..phys() };
        assert!(status(far, fast).text(&ctime).ends_with("0.99% done, 00:00:10 to go"));
        let done = RebuildPhys { state: 3, end: 2000, errors: 2, ..phys() };
        let (done, none) = (status(done, pass), RebuildPass::default());
        assert_eq!(
            done.text(&ctime),
            "  scan: resilvered (mirror-1) 1M in 00:01:01 with 2 errors on T2000"
        );
        let given_up = status(RebuildPhys { state: 2, end: 5, ..phys() }, none);
        assert_eq!(given_up.text(&ctime), "  scan: resilver (mirror-1) canceled on T5");
        let both = [done, given_up];
        assert_eq!(RebuildStatus::told(&both, false, 1999).len(), 2);
        assert!(RebuildStatus::told(&both, false, 2000).is_empty());
        assert!(RebuildStatus::told(&both, true, 0).is_empty());
    }
}
