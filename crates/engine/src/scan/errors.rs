//! Error scrubs: only the blocks that the error log has are read, and repaired where that can be (`dsl_errorscrub_sync`).
//!
//! What is right by now leaves the log at the end, as the log of this scrub takes its place; what was not looked at stays, as it is put
//! into that as well. One round looks at all of them. Its
//! state is OpenZFS's (`dsl_errorscrub_phys_t`); one that OpenZFS began is made again from the log's start.

use super::find::Found;
use super::issue::{self, Issued};
use super::position::dataset;
use super::state::Changed;
use super::{Round, ScanError};
use crate::error::EngineError;
use crate::space_write::map::DIRECTORY_OBJECT;
use crate::{Shared, SyncContext};
use cenote_dmu::write::ZapMut;
use cenote_dsl::write::Result;
use cenote_format::encode::zap::{Key, Value};
use cenote_pool::Pool;
use cenote_pool::errlog::LoggedBlocks;
use cenote_pool::scan::{ErrorScrubPhys, ScanPhys};
use cenote_store::alloc::ReadEpoch;
use cenote_store::{Bookmark, LoggedError, Rotation, ScanFunc, Scanned, ScrubStage, Store};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// The entry of the object directory (`DMU_POOL_ERRORSCRUB`).
const ENTRY: &[u8] = b"error_scrub";
const ERROR_SCRUB: u64 = 3;
const FINISHED: u64 = 2;
const CANCELED: u64 = 3;
const SCRUBBING: u64 = 4;

/// What came of the order to begin one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begun {
    Anew,
    Resumed,
    /// The log is empty.
    Nothing,
}

/// The blocks of the error log.
struct Listed {
    /// With the entries that lead to them.
    blocks: Vec<(Bookmark, LoggedError)>,
    /// How many there are.
    examined: u64,
    /// Entries that are not looked at, not in all data sets, or not by a key that is there; `None`: that is not known.
    kept: Option<Vec<LoggedError>>,
}

impl SyncContext<'_> {
    /// The state of error scrubs in the pending MOS.
    pub(super) fn error_scrub(&mut self) -> Result<ErrorScrubPhys> {
        let found = ZapMut::open(self.tx.mos, DIRECTORY_OBJECT).lookup(&Key::Name(ENTRY))?;
        let Some((size, words)) = found else { return Ok(ErrorScrubPhys::default()) };
        let phys = ErrorScrubPhys::decode(&words).filter(|_| size == 8);
        Ok(phys.unwrap_or_else(|| {
            // Another scan can begin all the same, and takes its place.
            tracing::warn!("the state of the last error scrub makes no sense: it counts as none");
            ErrorScrubPhys::default()
        }))
    }

    fn set_error_scrub(&mut self, phys: &ErrorScrubPhys) -> Result<()> {
        let words = phys.encode();
        Ok(ZapMut::open(self.tx.mos, DIRECTORY_OBJECT)
            .update(&Key::Name(ENTRY), &Value::U64(&words))?)
    }

    /// Another scan begins: what the last error scrub came to is told no more.
    pub(super) fn forget_error_scrub(&mut self) -> Result<()> {
        match self.error_scrub()?.func {
            0 => Ok(()),
            _ => self.set_error_scrub(&ErrorScrubPhys::default()),
        }
    }

    fn begin_error_scrub(&mut self, errors: u64) -> Result<std::result::Result<Begun, ScanError>> {
        let (scan, phys) = (self.scan_state()?, self.error_scrub()?);
        let refused = match scan {
            _ if self.is_rebuilding()? => ScanError::Resilvering,
            _ if phys.is_paused() => {
                self.set_error_scrub(&ErrorScrubPhys { paused: 0, ..phys })?;
                return Ok(Ok(Begun::Resumed));
            }
            _ if phys.is_running() => ScanError::ErrorScrubbing,
            scan if scan.is_paused() => ScanError::PausedToCancel,
            scan if scan.is_running() && scan.is_resilver() => ScanError::Resilvering,
            scan if scan.is_running() => ScanError::Scrubbing,
            _ if errors == 0 => return Ok(Ok(Begun::Nothing)),
            _ => {
                let (func, state, start) = (ERROR_SCRUB, SCRUBBING, self.tx.now);
                let none = ErrorScrubPhys::default();
                let to_examine = errors;
                self.set_error_scrub(&ErrorScrubPhys { func, state, start, to_examine, ..none })?;
                let message = format!("func={func} mintxg=0 maxtxg={}", self.tx.txg);
                self.scan_history("error scrub setup", &message)?;
                self.rotate_errors(ScrubStage::Begins);
                return Ok(Ok(Begun::Anew));
            }
        };
        Ok(Err(refused))
    }

    /// Pauses an error scrub, where no other scan is under way.
    pub(super) fn pause_error_scrub(
        &mut self,
        shared: &Shared,
    ) -> Result<std::result::Result<bool, ScanError>> {
        let phys = self.error_scrub()?;
        if phys.is_paused() || !phys.is_running() {
            let paused = phys.is_paused();
            return Ok(Err(if paused { ScanError::ErrorScrubPaused } else { ScanError::NoScrub }));
        }
        self.set_error_scrub(&ErrorScrubPhys { paused: 1, ..phys })?;
        shared.scanner.ordered();
        Ok(Ok(true))
    }

    /// Gives up an error scrub, where no other scan is under way.
    pub(super) fn stop_error_scrub(
        &mut self,
        shared: &Shared,
    ) -> Result<std::result::Result<bool, ScanError>> {
        if !self.error_scrub()?.is_running() {
            return Ok(Err(ScanError::NoScrub));
        }
        self.cancel_error_scrub()?;
        shared.scanner.ordered();
        Ok(Ok(true))
    }

    /// An error scrub that is under way, or paused, ends. Whether there was one.
    pub(super) fn cancel_error_scrub(&mut self) -> Result<bool> {
        let phys = self.error_scrub()?;
        if phys.is_running() {
            self.end_error_scrub(ErrorScrubPhys { state: CANCELED, ..phys }, None)?;
        }
        Ok(phys.is_running())
    }

    /// See [`Shared::error_round`] (`dsl_errorscrub_done`). `kept` is what was not looked at; `None`: that is not known.
    fn end_error_scrub(
        &mut self,
        phys: ErrorScrubPhys,
        kept: Option<Vec<LoggedError>>,
    ) -> Result<()> {
        let (end, paused) = (self.tx.now, 0);
        self.set_error_scrub(&ErrorScrubPhys { end, paused, ..phys })?;
        let what = if phys.state == FINISHED { "error scrub done" } else { "error scrub canceled" };
        self.scan_history(what, &format!("errors={}", phys.errors))?;
        let store = self.disk.store.clone();
        self.when_kept(move || {
            let rotation = match kept.is_some_and(|kept| store.keep_errors(&kept)) {
                true => Rotation::Replaces,
                false => Rotation::Joins,
            };
            store.rotate_errors(ScrubStage::Ends(rotation));
        });
        Ok(())
    }
}

impl Shared {
    pub(super) fn begin_error_scrub(self: &Arc<Self>) -> Changed<()> {
        // What was met since is in the log then.
        self.queue.run(&self.tx_state, |_| Ok(()), |()| true)?;
        let view = self.view();
        if !view.features().is_enabled("head_errlog") {
            return Ok(Err(ScanError::NotSupported));
        }
        let errors = view.error_count()?;
        drop(view);
        let begun = self.scan_task(move |_, context| context.begin_error_scrub(errors))?;
        self.scanner.ordered();
        Ok(begun.map(|begun| match begun {
            Begun::Anew => self.scan_event("errorscrub_start"),
            Begun::Resumed => self.scan_event("errorscrub_resume"),
            Begun::Nothing => {}
        }))
    }

    /// Looks at the blocks of the error log, if that is asked for. `reading` began before the view was taken, and `orders` are
    /// those of then.
    pub(super) fn error_round(
        self: &Arc<Self>,
        view: &Arc<Pool>,
        reading: &ReadEpoch<'_>,
        orders: u64,
    ) -> std::result::Result<Round, EngineError> {
        let phys = ErrorScrubPhys::load(view.directory())?;
        let Some(phys) = phys.filter(|phys| phys.is_running() && !phys.is_paused()) else {
            return Ok(Round::Nothing);
        };
        let scanner = &self.scanner;
        let held = || self.tx_state.held().is_some();
        let ends =
            || scanner.background.is_stopped() || scanner.orders.load(SeqCst) != orders || held();
        let all = ScanPhys { max_txg: u64::MAX, ..ScanPhys::default() };
        let keys = view.dsl().keystore().keys_for_scan();
        let mut found = Found::new(ScanFunc::Scrub, &all, 0, keys);
        let look = || Store::without_keys(|| self.find_errors(view, &mut found));
        let (looked, mut notes) = Store::attempt(look);
        let Listed { blocks: listed, examined, mut kept } = looked?;
        let (blocks, keys, _) = found.into_blocks();
        let how: (bool, &(dyn Fn() -> bool + Sync)) = (true, &ends);
        let met = notes.wrong();
        let what = (ScanFunc::Scrub, blocks, &*keys, &met);
        let issued = issue::issue(self, what, reading, how, &|_| {});
        let done = match issued {
            Issued::All(done) if reading.is_safe() && !ends() => done,
            Issued::Silent => {
                return Err(EngineError::Suspended("devices do not answer".into()));
            }
            _ => return Ok(Round::LetGo),
        };
        notes.leave(&done.met);
        notes.leave_weak();
        notes.confirm(&self.disk.store, &|| reading.is_safe());
        if done.errors > 0 && self.looks_in_vain() {
            return Err(EngineError::Suspended("devices do not answer".into()));
        }
        if done.repaired > 0
            && let Err(e) = self.disk.tree().flush_all()
        {
            tracing::warn!("what a scan wrote is not durable: {e}");
            kept = None;
        }
        done.warn_of_disputes();
        let Scanned { errors, disputed, .. } = done;
        let still = listed.iter().filter(|(at, _)| disputed.contains(at));
        let still = still.map(|(_, entry)| *entry);
        kept.iter_mut().for_each(|kept| kept.extend(still.clone()));
        let ended = ErrorScrubPhys { state: FINISHED, to_examine: 0, examined, errors, ..phys };
        let is_over = self.scan_task(move |shared, context| {
            if shared.scanner.orders.load(SeqCst) != orders {
                return Ok(false);
            }
            context.note_disputes(disputed.len())?;
            context.end_error_scrub(ended, kept).map(|()| true)
        })?;
        if !is_over {
            return Ok(Round::LetGo);
        }
        self.scan_event("errorscrub_finish");
        Ok(Round::Done)
    }

    /// Finds the blocks of the error log.
    fn find_errors(&self, view: &Pool, found: &mut Found) -> cenote_dmu::Result<Listed> {
        let LoggedBlocks { blocks, doubtful: mut kept, is_all } = view.logged_blocks()?;
        let tree = self.disk.tree();
        let mut unread = Vec::new();
        // Several entries may lead to one place.
        for same in blocks.chunk_by(|a, b| a.0 == b.0) {
            let Some((at, _)) = same.first() else { continue };
            match view.pointer_of(at) {
                Ok(Some(bp)) => {
                    // Its key would tell what is wrong.
                    if let Ok(Some(phys)) = dataset(view.mos(), at.objset)
                        && !found.get_key(view, at.objset, &phys)
                    {
                        unread.extend(same.iter().map(|(_, entry)| *entry));
                    }
                    found.add(&tree, &bp, *at);
                }
                // Nothing is there any more.
                Ok(None) => {}
                Err(why) => {
                    tracing::info!("a block of the error log is not looked at: {why}");
                    unread.extend(same.iter().map(|(_, entry)| *entry));
                }
            }
        }
        kept.append(&mut unread);
        let examined = blocks.chunk_by(|a, b| a.0 == b.0).count() as u64;
        Ok(Listed { blocks, examined, kept: is_all.then_some(kept) })
    }
}
