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
use crate::time::between;
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

/// Bytes a second from which on it is told how long a scan will take.
const FAST: u64 = 10 << 20;
/// `scn_flags`: a scrub is paused (`DSF_SCRUB_PAUSED`).
const PAUSED: u64 = 1 << 1;
/// Entry of the object directory: the last group whose blocks a scrub has looked at (`DMU_POOL_LAST_SCRUBBED_TXG`).
pub const LAST_SCRUBBED: &str = "last_scrubbed_txg";
/// Object set of a bookmark that is in no data set: the queue says what is left (`ZB_DESTROYED_OBJSET`).
pub const NO_DATASET: u64 = u64::MAX;
/// Bytes, or errors, that a scan counts at most: more make no sense, and what is counted since the state was stored has room.
const MOST_COUNTED: u64 = u64::MAX >> 1;
/// Integers of the structure on disk (`SCAN_PHYS_NUMINTS`).
const WORDS: usize = 24;

/// A scrub or resilver as it is on disk (`dsl_scan_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScanPhys {
    /// 1: scrub, 2: resilver (`pool_scan_func_t`).
    pub func: u64,
    /// 1: under way, 2: done, 3: given up (`dsl_scan_state_t`).
    pub state: u64,
    /// ZAP of data sets that are to be looked at, with the transaction groups after which (`scn_queue_obj`).
    pub queue: u64,
    /// Blocks that were born after this group are looked at.
    pub min_txg: u64,
    /// Blocks that were born up to this group are.
    pub max_txg: u64,
    /// The same for the data set of the bookmark.
    pub cur_min_txg: u64,
    /// The same.
    pub cur_max_txg: u64,
    /// When it began: seconds since 1970.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// Bytes to look at.
    pub to_examine: u64,
    /// Bytes looked at.
    pub examined: u64,
    /// Bytes that need not be read.
    pub skipped: u64,
    /// Bytes repaired.
    pub processed: u64,
    /// Blocks that cannot be read.
    pub errors: u64,
    /// Tables of deduplicated blocks: how far, and up to which (`scn_ddt_class_max`, `scn_ddt_bookmark`).
    pub ddt: [u64; 5],
    /// The block that comes next: object set, object, level, number (`scn_bookmark`).
    pub bookmark: [u64; 4],
    /// `DSF_*`.
    pub flags: u64,
}

impl ScanPhys {
    /// From the words of the entry `scan`. `None`: they are too few. Where the scan is does not depend on what it has counted.
    pub fn decode(words: &[u64]) -> Option<ScanPhys> {
        let w: &[u64; WORDS] = words.first_chunk()?;
        let counted = |n: u64| n.min(MOST_COUNTED);
        Some(ScanPhys {
            func: w[0],
            state: w[1],
            queue: w[2],
            min_txg: w[3],
            max_txg: w[4],
            cur_min_txg: w[5],
            cur_max_txg: w[6],
            start: w[7],
            end: w[8],
            to_examine: counted(w[9]),
            examined: counted(w[10]),
            skipped: counted(w[11]),
            processed: counted(w[12]),
            errors: counted(w[13]),
            ddt: [w[14], w[15], w[16], w[17], w[18]],
            bookmark: [w[19], w[20], w[21], w[22]],
            flags: w[23],
        })
    }

    /// The words of the entry `scan`.
    pub fn encode(&self) -> [u64; WORDS] {
        let ScanPhys { ddt, bookmark, .. } = self;
        [
            self.func,
            self.state,
            self.queue,
            self.min_txg,
            self.max_txg,
            self.cur_min_txg,
            self.cur_max_txg,
            self.start,
            self.end,
            self.to_examine,
            self.examined,
            self.skipped,
            self.processed,
            self.errors,
            ddt[0],
            ddt[1],
            ddt[2],
            ddt[3],
            ddt[4],
            bookmark[0],
            bookmark[1],
            bookmark[2],
            bookmark[3],
            self.flags,
        ]
    }

    /// The last scrub or resilver; `None`: there was none, or its state makes no sense. What leaves lack is in their dirty
    /// time logs.
    ///
    /// # Errors
    /// The object directory cannot be read.
    pub fn load(directory: &Directory) -> Result<Option<ScanPhys>> {
        directory.dispensable("scan", ScanPhys::decode)
    }

    /// Whether it is not done yet, paused or not (`dsl_scan_is_running`).
    pub fn is_running(&self) -> bool {
        self.state == 1
    }

    /// Whether it has come to its end.
    pub fn is_finished(&self) -> bool {
        self.state == 2
    }

    /// Whether it was given up.
    pub fn is_given_up(&self) -> bool {
        self.state == 3
    }

    /// Whether it is a scrub.
    pub fn is_scrub(&self) -> bool {
        self.func == 1
    }

    /// Whether it is a resilver.
    pub fn is_resilver(&self) -> bool {
        self.func == 2
    }

    /// Whether a scrub is paused (`dsl_scan_is_paused_scrub`).
    pub fn is_paused(&self) -> bool {
        self.is_running() && self.is_scrub() && self.flags & PAUSED != 0
    }

    /// The same; if a part of the pool was not walked, with one error at least: then OpenZFS, too, begins a resilver anew at an
    /// import and excises nothing.
    pub fn with_unseen(self, unseen: bool) -> ScanPhys {
        ScanPhys { errors: self.errors.max(u64::from(unseen)), ..self }
    }

    /// The same, paused or not.
    pub fn pausing(self, pause: bool) -> ScanPhys {
        let flags = if pause { self.flags | PAUSED } else { self.flags & !PAUSED };
        ScanPhys { flags, ..self }
    }
}

/// An error scrub as it is on disk (`dsl_errorscrub_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ErrorScrubPhys {
    /// 3: there is, or was, one (`POOL_SCAN_ERRORSCRUB`).
    pub func: u64,
    /// 2: done, 3: given up, 4: under way (`dsl_scan_state_t`).
    pub state: u64,
    /// Where in the log OpenZFS goes on (`zap_cursor_t`, serialized).
    pub cursor: u64,
    /// When it began: seconds since 1970.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// Blocks to look at, and such as were looked at.
    pub to_examine: u64,
    /// The same.
    pub examined: u64,
    /// Blocks that cannot be read.
    pub errors: u64,
    /// Not 0: it is paused.
    pub paused: u64,
}

/// Integers of the structure on disk (`ERRORSCRUB_PHYS_NUMINTS`).
const ERROR_WORDS: usize = 9;

impl ErrorScrubPhys {
    /// From the words of the entry `error_scrub`. `None`: they are too few. Counts that make no sense are cut.
    pub fn decode(words: &[u64]) -> Option<ErrorScrubPhys> {
        let &[func, state, cursor, start, end, to_examine, examined, errors, paused] =
            words.first_chunk::<ERROR_WORDS>()?;
        let counted = |n: u64| n.min(MOST_COUNTED);
        Some(ErrorScrubPhys {
            func,
            state,
            cursor,
            start,
            end,
            to_examine: counted(to_examine),
            examined: counted(examined),
            errors: counted(errors),
            paused,
        })
    }

    /// The words of the entry `error_scrub`.
    pub fn encode(&self) -> [u64; ERROR_WORDS] {
        [
            self.func,
            self.state,
            self.cursor,
            self.start,
            self.end,
            self.to_examine,
            self.examined,
            self.errors,
            self.paused,
        ]
    }

    /// The last one; `None`: there was none, or its state makes no sense.
    ///
    /// # Errors
    /// The object directory cannot be read.
    pub fn load(directory: &Directory) -> Result<Option<ErrorScrubPhys>> {
        directory.dispensable("error_scrub", ErrorScrubPhys::decode)
    }

    /// Whether it is not done yet, paused or not (`dsl_errorscrubbing`).
    pub fn is_running(&self) -> bool {
        self.func == 3 && self.state == 4
    }

    /// Whether it is paused (`dsl_errorscrub_is_paused`).
    pub fn is_paused(&self) -> bool {
        self.is_running() && self.paused != 0
    }
}

/// What is known of a scan since the pool was imported (`spa_scan_pass_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pass {
    /// When it began, or went on: seconds since 1970.
    pub start: u64,
    /// Bytes looked at.
    pub examined: u64,
    /// Bytes read and checked.
    pub issued: u64,
    /// When it was paused; 0: it is not.
    pub paused: u64,
    /// Seconds that it was paused for.
    pub spent_paused: u64,
    /// Bytes found, read, repaired, and errors, since the state on disk was written.
    pub ahead: [u64; 4],
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
    /// Bytes read and checked.
    pub issued: u64,
    /// Bytes that need not be read.
    pub skipped: u64,
    /// Bytes repaired.
    pub processed: u64,
    /// Errors that could not be repaired.
    pub errors: u64,
    /// Since the pool was imported.
    pub pass: Pass,
}

impl ScanStatus {
    /// The last scan of either kind; `None` if the pool was never scanned.
    pub(crate) fn load(directory: &Directory, pass: Option<Pass>) -> Result<Option<ScanStatus>> {
        Ok(match ScanStatus::both(directory, pass)? {
            (Some(s), Some(e)) if e.start >= s.start => Some(e),
            (s, e) => s.or(e),
        })
    }

    /// The last scrub or resilver, and the last error scrub. `pass` is what the engine knows of the one under way.
    ///
    /// # Errors
    /// The object directory cannot be read.
    pub fn both(
        directory: &Directory,
        pass: Option<Pass>,
    ) -> Result<(Option<ScanStatus>, Option<ScanStatus>)> {
        let scan = ScanPhys::load(directory)?.and_then(|phys| ScanStatus::of_scan(&phys, pass));
        let errors = ErrorScrubPhys::load(directory)?;
        let errors = errors.as_ref().and_then(ScanStatus::of_error_scrub);
        Ok((scan, errors))
    }

    fn of_scan(phys: &ScanPhys, pass: Option<Pass>) -> Option<ScanStatus> {
        let kind = match phys.func {
            1 => ScanKind::Scrub,
            2 => ScanKind::Resilver,
            _ => return None,
        };
        let running = phys.is_running();
        let mut pass = pass.filter(|_| running).unwrap_or_default();
        if phys.is_paused() && pass.paused == 0 {
            // It is not known since when: at the latest since it began.
            pass.paused = phys.start;
        }
        let [found, read, repaired, errors] = pass.ahead;
        Some(ScanStatus {
            kind,
            state: ScanState::of(phys.state)?,
            start: phys.start,
            end: phys.end,
            to_examine: phys.to_examine,
            examined: phys.examined + found,
            // The state on disk is written when all that was found was read.
            issued: phys.examined + read,
            skipped: phys.skipped,
            processed: phys.processed + repaired,
            errors: phys.errors + errors,
            pass,
        })
    }

    fn of_error_scrub(phys: &ErrorScrubPhys) -> Option<ScanStatus> {
        let &ErrorScrubPhys { func, state, start, end, to_examine, examined, errors, .. } = phys;
        let state = ScanState::of(state).filter(|_| func == 3)?;
        let (kind, skipped, processed) = (ScanKind::ErrorScrub, 0, 0);
        // Since when it is paused is not on disk: at the latest since it began.
        let paused = if phys.is_paused() { phys.start } else { 0 };
        let (issued, pass) = (0, Pass { paused, ..Pass::default() });
        Some(ScanStatus {
            issued,
            pass,
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

    /// Whether something is under way.
    pub fn is_running(&self) -> bool {
        self.state == ScanState::Scanning
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
        let end = ctime(self.end);
        let took = crate::time::duration(between(self.start, self.end));
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
            (ScanState::Scanning, _) => self.progress_text(ctime),
        }
    }

    /// Bytes a second of `done` since the pass began, without pauses.
    fn rate(&self, done: u64) -> u64 {
        let now = crate::time::since_1970().as_secs();
        let elapsed = between(self.pass.start, now).saturating_sub(self.pass.spent_paused);
        if self.pass.start == 0 { 0 } else { done / elapsed.max(1) }
    }

    /// The lines of a scan under way (`print_scan_scrub_resilver_status`).
    fn progress_text(&self, ctime: &dyn Fn(u64) -> String) -> String {
        let scrub = self.kind == ScanKind::Scrub;
        let paused = self.pass.paused;
        let head = match (scrub, paused) {
            (true, 0) => format!("scrub in progress since {}", ctime(self.start)),
            (true, _) => format!(
                "scrub paused since {}\n\tscrub started on {}",
                ctime(paused),
                ctime(self.start)
            ),
            (false, _) => format!("resilver in progress since {}", ctime(self.start)),
        };
        // Nothing is left to issue where all that there was, or more since, was skipped.
        let total = self.to_examine.saturating_sub(self.skipped);
        let at = |rate: u64| match rate {
            0 => String::new(),
            _ if paused != 0 => String::new(),
            rate => format!(" at {}/s", nicebytes(rate)),
        };
        let (scanned, issued) = (self.rate(self.pass.examined), self.rate(self.pass.issued));
        let percent = match total {
            0 => 100.0,
            total => 100.0 * self.issued as f64 / total as f64,
        };
        let verb = if scrub { "repaired" } else { "resilvered" };
        let left = match total.checked_sub(self.issued) {
            _ if paused != 0 => String::new(),
            // A resilver that has only looked at what is not lacking tells nothing of the rest.
            Some(left) if issued >= FAST && (scrub || self.processed > 0) => {
                format!(", {} to go", crate::time::duration(left / issued))
            }
            _ => ", no estimated completion time".into(),
        };
        format!(
            "  scan: {head}\n\t{} / {} scanned{}, {} / {} issued{}\n\t{} {verb}, {percent:.2}% done{left}",
            nicebytes(self.examined),
            nicebytes(self.to_examine),
            at(scanned),
            nicebytes(self.issued),
            nicebytes(total),
            at(issued),
            nicebytes(self.processed),
        )
    }

    fn error_scrub_text(&self, ctime: &dyn Fn(u64) -> String) -> String {
        let (start, end, n) = (ctime(self.start), ctime(self.end), self.examined);
        match self.state {
            ScanState::Finished => {
                let secs = between(self.start, self.end);
                let (d, h, m, s) = (secs / 86400, secs / 3600 % 24, secs / 60 % 60, secs % 60);
                format!(
                    " scrub: scrubbed {n} error blocks in {d} days {h:02}:{m:02}:{s:02} on {end}"
                )
            }
            ScanState::Canceled => format!(" scrub: error scrub canceled on {end}"),
            ScanState::Scanning => {
                let all = (self.to_examine + n).max(1);
                let done = 100.0 * n as f64 / all as f64;
                let head = match self.pass.paused {
                    0 => format!("in progress since {start}"),
                    since => {
                        format!("paused since {}\n\terror scrub started on {start}", ctime(since))
                    }
                };
                format!(
                    " scrub: error scrub {head}\n\
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
    /// What it waits for, while it does; the engine of a pool that is imported for writing fills it in.
    pub waits: Option<String>,
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
            waits: None,
        }))
    }

    /// The lines as `zpool status` prints them (`remove: …`), without the last newline.
    pub fn text(&self, ctime: &dyn Fn(u64) -> String) -> String {
        let (start, end) = (ctime(self.start), ctime(self.end));
        let mut out = match self.state {
            ScanState::Finished => {
                let minutes = between(self.start, self.end) / 60;
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
                let waits = self.waits.as_ref().map(|why| format!("\n\twaiting: {why}"));
                format!(
                    "remove: Evacuation of {} in progress since {start}\n\
                     \t{} copied out of {}, {done:.2}% done{}",
                    self.vdev_name,
                    nicenum(self.copied),
                    nicenum(self.to_copy),
                    waits.unwrap_or_default()
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
        if !pool.features().is_active("zpool_checkpoint") {
            return Ok(None);
        }
        let created = pool.checkpoint()?.map(|uberblock| uberblock.timestamp);
        Ok(Some(CheckpointStatus { created, space: pool.checkpoint_space()? }))
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

    fn scrub() -> ScanPhys {
        ScanPhys {
            func: 1,
            state: 2,
            max_txg: 9,
            start: 1000,
            end: 1100,
            to_examine: 5 << 20,
            examined: 5 << 20,
            processed: 4096,
            errors: 2,
            ..ScanPhys::default()
        }
    }

    fn text(phys: &ScanPhys, pass: Option<Pass>) -> String {
        ScanStatus::of_scan(phys, pass).unwrap().text(&|t| format!("T{t}"))
    }

    #[test]
    fn the_structure_on_disk() {
        let phys = ScanPhys { ddt: [1, 2, 3, 4, 5], bookmark: [6, 7, 8, 9], flags: 2, ..scrub() };
        let words = phys.encode();
        assert_eq!((words[4], words[9], words[13], words[14]), (9, 5 << 20, 2, 1));
        assert_eq!(words[19..], [6, 7, 8, 9, 2]);
        assert_eq!(ScanPhys::decode(&words), Some(phys));
        assert_eq!(ScanPhys::decode(&words[..23]), None);
        let mut many = words;
        (many[10], many[13]) = (u64::MAX, u64::MAX);
        let (examined, errors) = (MOST_COUNTED, MOST_COUNTED);
        assert_eq!(ScanPhys::decode(&many), Some(ScanPhys { examined, errors, ..phys }));
        assert!(!phys.is_paused());
        let running = ScanPhys { state: 1, ..phys };
        assert!(running.is_paused() && !running.pausing(false).is_paused());
    }

    #[test]
    fn finished_scans() {
        let said = text(&scrub(), None);
        assert_eq!(said, "  scan: scrub repaired 4K in 00:01:40 with 2 errors on T1100");
        let said = text(&ScanPhys { state: 3, ..scrub() }, None);
        assert_eq!(said, "  scan: scrub canceled on T1100");
        assert_eq!(ScanStatus::of_scan(&ScanPhys::default(), None), None);
    }

    #[test]
    fn error_scrubs() {
        let text = |phys: ErrorScrubPhys| {
            ScanStatus::of_error_scrub(&phys).unwrap().text(&|t| format!("T{t}"))
        };
        let running = ErrorScrubPhys {
            func: 3,
            state: 4,
            start: 1000,
            to_examine: 3,
            examined: 1,
            ..ErrorScrubPhys::default()
        };
        let done = "\n\t25.00% done, issued I/O for 1 error blocks";
        assert_eq!(text(running), format!(" scrub: error scrub in progress since T1000{done}"));
        let paused = ErrorScrubPhys { paused: 1, ..running };
        assert_eq!(
            text(paused),
            format!(" scrub: error scrub paused since T1000\n\terror scrub started on T1000{done}")
        );
        // One that is over is not paused, whatever its words say.
        let over = ErrorScrubPhys { state: 3, end: 1010, ..paused };
        assert_eq!(text(over), " scrub: error scrub canceled on T1010");
        assert_eq!(ScanStatus::of_error_scrub(&over).unwrap().pass.paused, 0);
    }

    #[test]
    fn scans_under_way() {
        let phys = ScanPhys { state: 1, examined: 1 << 20, ..scrub() };
        let resilver = ScanPhys { func: 2, ..phys };
        assert!(ScanStatus::of_scan(&resilver, None).unwrap().is_resilvering());
        assert_eq!(
            text(&resilver, None),
            "  scan: resilver in progress since T1000\n\t1M / 5M scanned, 1M / 5M issued\n\t4K resilvered, \
             20.00% done, no estimated completion time"
        );
        // It began in this second: rates are of one.
        let now = crate::time::since_1970().as_secs() + 60;
        let (examined, issued, ahead) = (3 << 20, 2 << 20, [3 << 20, 2 << 20, 4096, 0]);
        let pass = Pass { start: now, examined, issued, ahead, ..Pass::default() };
        assert_eq!(
            text(&phys, Some(pass)),
            "  scan: scrub in progress since T1000\n\t4M / 5M scanned at 3M/s, 3M / 5M issued at 2M/s\n\t8K \
             repaired, 60.00% done, no estimated completion time"
        );
        let large = ScanPhys { to_examine: 203 << 20, ..phys };
        let fast = Pass { issued: 20 << 20, ..pass };
        assert!(
            text(&large, Some(fast)).ends_with("done, 00:00:10 to go"),
            "{}",
            text(&large, Some(fast))
        );
        // A resilver that has given nothing yet does not tell.
        let resilver = ScanPhys { func: 2, ..large };
        assert!(text(&resilver, Some(fast)).ends_with("done, 00:00:10 to go"));
        let (nothing, fast) = (
            ScanPhys { processed: 0, ..resilver },
            Pass { ahead: [3 << 20, 2 << 20, 0, 0], ..fast },
        );
        assert!(text(&nothing, Some(fast)).ends_with("done, no estimated completion time"));
        let paused = Pass { paused: 1050, ..pass };
        assert_eq!(
            text(&phys.pausing(true), Some(paused)),
            "  scan: scrub paused since T1050\n\tscrub started on T1000\n\t4M / 5M scanned, 3M / 5M issued\n\t8K \
             repaired, 60.00% done"
        );
    }
}
