//! The last scrub or resilver, the last removal of a vdev, and the checkpoint.
//!
//! | entry of the object directory | structure, all 64-bit integers |
//! |---|---|
//! | `scan` | `dsl_scan_phys_t` |
//! | `error_scrub` | `dsl_errorscrub_phys_t` |
//! | `com.delphix:removing` | `spa_removing_phys_t` |
//! | `com.delphix:zpool_checkpoint` | the checkpoint's uberblock |

use crate::Pool;
use crate::directory::Directory;
use cenote_dmu::Result;
use cenote_dsl::human::{nicebytes, nicenum};

/// `dsl_scan_state_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanState {
    /// Under way (or it was, when the pool was last written).
    Scanning,
    /// Done.
    Finished,
    /// Given up.
    Canceled,
}

impl ScanState {
    fn of(n: u64) -> Option<ScanState> {
        match n {
            1 | 4 => Some(ScanState::Scanning),
            2 => Some(ScanState::Finished),
            3 => Some(ScanState::Canceled),
            _ => None,
        }
    }
}

/// What was scanned for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanKind {
    /// Everything was read and checked.
    Scrub,
    /// Stale devices were brought up to date.
    Resilver,
    /// Only blocks in the error log were read again.
    ErrorScrub,
}

/// A scrub or resilver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanStatus {
    /// What was scanned for.
    pub kind: ScanKind,
    /// How far it is.
    pub state: ScanState,
    /// When it began: seconds since 1970.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// Bytes to look at.
    pub to_examine: u64,
    /// Bytes looked at (of an error scrub: blocks).
    pub examined: u64,
    /// Bytes that need not be read.
    pub skipped: u64,
    /// Bytes repaired.
    pub processed: u64,
    /// Errors that could not be repaired.
    pub errors: u64,
}

impl ScanStatus {
    /// The last scan of either kind; `None` if the pool was never scanned.
    pub(crate) fn load(directory: &Directory) -> Result<Option<ScanStatus>> {
        Ok(match ScanStatus::both(directory)? {
            (Some(s), Some(e)) if e.start >= s.start => Some(e),
            (s, e) => s.or(e),
        })
    }

    /// The last scrub or resilver, and the last error scrub.
    ///
    /// # Errors
    /// The object directory cannot be read.
    pub fn both(directory: &Directory) -> Result<(Option<ScanStatus>, Option<ScanStatus>)> {
        let scan = directory.words("scan")?.and_then(|w| ScanStatus::of_scan(&w));
        let errors = directory.words("error_scrub")?.and_then(|w| ScanStatus::of_error_scrub(&w));
        Ok((scan, errors))
    }

    fn of_scan(words: &[u64]) -> Option<ScanStatus> {
        // Between the state and the times: the range of transaction groups, a bookmark of DDTs.
        let (head, figures) = words.split_at_checked(7)?;
        let &[func, state, ..] = head else { return None };
        let &[start, end, to_examine, examined, skipped, processed, errors, ..] = figures else {
            return None;
        };
        let kind = match func {
            1 => ScanKind::Scrub,
            2 => ScanKind::Resilver,
            _ => return None,
        };
        let state = ScanState::of(state)?;
        Some(ScanStatus {
            kind,
            state,
            start,
            end,
            to_examine,
            examined,
            skipped,
            processed,
            errors,
        })
    }

    fn of_error_scrub(words: &[u64]) -> Option<ScanStatus> {
        // dep_func, dep_state, dep_cursor, dep_start_time, dep_end_time, dep_to_examine,
        // dep_examined, dep_errors
        let &[func, state, _, start, end, to_examine, examined, errors, ..] = words else {
            return None;
        };
        let state = ScanState::of(state).filter(|_| func == 3)?;
        let (kind, skipped, processed) = (ScanKind::ErrorScrub, 0, 0);
        Some(ScanStatus {
            kind,
            state,
            start,
            end,
            to_examine,
            examined,
            skipped,
            processed,
            errors,
        })
    }

    /// Whether a resilver is under way.
    pub fn is_resilvering(&self) -> bool {
        self.kind == ScanKind::Resilver && self.state == ScanState::Scanning
    }

    /// The line as `zpool status` prints it, its label included (`  scan: …`), without the last
    /// newline. `ctime` prints seconds since 1970.
    pub fn text(&self, ctime: &dyn Fn(u64) -> String) -> String {
        if self.kind == ScanKind::ErrorScrub {
            return self.error_scrub_text(ctime);
        }
        let scrub = self.kind == ScanKind::Scrub;
        let (start, end) = (ctime(self.start), ctime(self.end));
        let took = crate::time::duration(self.end.saturating_sub(self.start));
        let repaired = nicebytes(self.processed);
        let errors = self.errors;
        match (self.state, scrub) {
            (ScanState::Finished, true) => {
                format!("  scan: scrub repaired {repaired} in {took} with {errors} errors on {end}")
            }
            (ScanState::Finished, false) => {
                format!("  scan: resilvered {repaired} in {took} with {errors} errors on {end}")
            }
            (ScanState::Canceled, true) => format!("  scan: scrub canceled on {end}"),
            (ScanState::Canceled, false) => format!("  scan: resilver canceled on {end}"),
            (ScanState::Scanning, _) => {
                let name = if scrub { "scrub" } else { "resilver" };
                let verb = if scrub { "repaired" } else { "resilvered" };
                let total = self.to_examine.saturating_sub(self.skipped);
                format!(
                    "  scan: {name} in progress since {start}\n\
                     \t{} / {} scanned, {} / {} issued\n\
                     \t{repaired} {verb}, {:.2}% done, no estimated completion time",
                    nicebytes(self.examined),
                    nicebytes(self.to_examine),
                    nicebytes(0),
                    nicebytes(total),
                    0.0
                )
            }
        }
    }

    fn error_scrub_text(&self, ctime: &dyn Fn(u64) -> String) -> String {
        let (start, end, n) = (ctime(self.start), ctime(self.end), self.examined);
        match self.state {
            ScanState::Finished => {
                let secs = self.end.saturating_sub(self.start);
                let (d, h, m, s) = (secs / 86400, secs / 3600 % 24, secs / 60 % 60, secs % 60);
                format!(
                    " scrub: scrubbed {n} error blocks in {d} days {h:02}:{m:02}:{s:02} on {end}"
                )
            }
            ScanState::Canceled => format!(" scrub: error scrub canceled on {end}"),
            ScanState::Scanning => {
                let all = self.to_examine.saturating_add(n).max(1);
                let done = 100.0 * n as f64 / all as f64;
                format!(
                    " scrub: error scrub in progress since {start}\n\
                     \t{done:.2}% done, issued I/O for {n} error blocks"
                )
            }
        }
    }
}

/// The last removal of a top-level vdev (`spa_removing_phys_t`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovalStatus {
    /// How far it is.
    pub state: ScanState,
    /// The vdev's id.
    pub vdev: u64,
    /// The vdev's name, while it has one.
    pub vdev_name: String,
    /// When it began: seconds since 1970.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// Bytes to copy.
    pub to_copy: u64,
    /// Bytes copied.
    pub copied: u64,
    /// Bytes that the mappings of all removed vdevs take.
    pub mapping_bytes: u64,
}

impl RemovalStatus {
    pub(crate) fn load(pool: &Pool) -> Result<Option<RemovalStatus>> {
        let Some(words) = pool.directory().words("com.delphix:removing")? else { return Ok(None) };
        let &[state, vdev, _, start, end, to_copy, copied, ..] = words.as_slice() else {
            return Ok(None);
        };
        let Some(state) = ScanState::of(state) else { return Ok(None) };
        let vdevs = pool.store().vdevs();
        let tops = vdevs.root().children();
        let config = tops.iter().find(|v| v.id() == vdev).map(|v| v.config());
        let name = config.map(|c| crate::status::vdev_name(c, &Default::default()));
        let vdev_name = name.unwrap_or_else(|| vdev.to_string());
        let mapping_bytes = pool.mapping_bytes();
        Ok(Some(RemovalStatus {
            state,
            vdev,
            vdev_name,
            start,
            end,
            to_copy,
            copied,
            mapping_bytes,
        }))
    }

    /// The lines as `zpool status` prints them (`remove: …`), without the last newline.
    pub fn text(&self, ctime: &dyn Fn(u64) -> String) -> String {
        let (start, end) = (ctime(self.start), ctime(self.end));
        let mut out = match self.state {
            ScanState::Finished => {
                let minutes = self.end.saturating_sub(self.start) / 60;
                format!(
                    "remove: Removal of vdev {} copied {} in {}h{}m, completed on {end}",
                    self.vdev,
                    nicenum(self.copied),
                    minutes / 60,
                    minutes % 60
                )
            }
            ScanState::Canceled => {
                format!("remove: Removal of {} canceled on {end}", self.vdev_name)
            }
            ScanState::Scanning => {
                let done = 100.0 * self.copied as f64 / self.to_copy.max(1) as f64;
                format!(
                    "remove: Evacuation of {} in progress since {start}\n\
                     \t{} copied out of {}, {done:.2}% done",
                    self.vdev_name,
                    nicenum(self.copied),
                    nicenum(self.to_copy)
                )
            }
        };
        if self.mapping_bytes > 0 {
            let memory = nicenum(self.mapping_bytes);
            out.push_str(&format!("\n\t{memory} memory used for removed device mappings"));
        }
        out
    }
}

/// The pool's checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointStatus {
    /// When it was taken: seconds since 1970; `None` while it is being discarded.
    pub created: Option<u64>,
    /// Bytes that only the checkpoint holds.
    pub space: u64,
}

impl CheckpointStatus {
    pub(crate) fn load(pool: &Pool) -> Result<Option<CheckpointStatus>> {
        let space = pool.checkpoint_space()?;
        // The entry is the checkpoint's uberblock; the time is its fifth word.
        let created = pool
            .directory()
            .words("com.delphix:zpool_checkpoint")?
            .and_then(|words| words.get(4).copied());
        let exists = created.is_some() || space > 0;
        Ok(exists.then_some(CheckpointStatus { created, space }))
    }

    /// The line as `zpool status` prints it, without the newline.
    pub fn text(&self, ctime: &dyn Fn(u64) -> String) -> String {
        let space = nicenum(self.space);
        match self.created {
            Some(when) => format!("checkpoint: created {}, consumes {space}", ctime(when)),
            None => format!("checkpoint: discarding, {space} remaining."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRUB: [u64; 14] = [1, 2, 0, 0, 9, 0, 0, 1000, 1100, 5 << 20, 5 << 20, 0, 4096, 2];

    #[test]
    fn finished_scans() {
        let time = |t: u64| format!("T{t}");
        let scan = ScanStatus::of_scan(&SCRUB).unwrap();
        let text = scan.text(&time);
        assert_eq!(text, "  scan: scrub repaired 4K in 00:01:40 with 2 errors on T1100");
        let mut words = SCRUB;
        (words[0], words[1]) = (2, 1);
        let scan = ScanStatus::of_scan(&words).unwrap();
        assert!(scan.is_resilvering());
        assert!(scan.text(&time).starts_with("  scan: resilver in progress since T1000\n"));
        assert_eq!(ScanStatus::of_scan(&[0; 14]), None);
        assert_eq!(ScanStatus::of_scan(&SCRUB[..5]), None);
    }
}
