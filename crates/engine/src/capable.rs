//! What this software can write to.
//!
//! A pool may use features that reading understands and writing does not: changing such a pool
//! would break what the feature promises. Such a pool, or dataset, is
//! refused by the feature's name.
//!
//! Invariant: what a new pool may have enabled may be in use.

use super::error::EngineError;
use cenote_dmu::ObjectSet;
use cenote_dmu::write::RawRoot;
use cenote_dsl::Dataset;
use cenote_dsl::tunables::REPLAY_KEEP;
use cenote_dsl::zil::{self, End, Item, Kept};
use cenote_format::dmu::ZilHeader;
use cenote_format::zil::RawRecord;
use cenote_pool::features::writable;
use cenote_pool::version;
use cenote_pool::{Pool, brt};
use cenote_vdev::{Vdev, VdevState};
use std::sync::Arc;

const UNREPLAYED: &str = "an intent log that was not replayed";
const UNREADABLE: &str =
    "an intent log that cannot be read ('zpool clear POOL DATASET' gives up what is in it)";
const CUT: &str = "an intent log that could not be claimed in full ('zpool clear POOL DATASET' gives up what is left of it)";
/// Most datasets of a pool.
const MAX_DATASETS: usize = 1 << 24;

/// What a dataset is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A command or a mount uses it.
    Use,
    /// To replay its intent log.
    Replay,
    /// To receive into it: it is incomplete. What a raw stream says of its object set.
    Receive(Option<RawRoot>),
}

/// Whether a pool that uses the feature with this guid can be written.
fn in_use(guid: &str) -> bool {
    cenote_format::features::by_guid(guid).is_some_and(writable)
}

/// The intent logs of a pool, by heads.
#[derive(Debug)]
pub(super) struct Logs {
    /// Nothing is left to be replayed.
    pub(super) finished: Vec<u64>,
    /// Those to be replayed, claimed or not.
    pub(super) waiting: Vec<Left>,
    /// What was read of them.
    pub(super) kept: Arc<Kept>,
    /// There are no others: no log is cut or unreadable, and every head was found and opened.
    pub(super) all: bool,
}

/// An intent log to be replayed.
#[derive(Debug, Clone)]
pub(super) struct Left {
    /// The dataset.
    pub(super) ds_obj: u64,
    /// Its name.
    pub(super) name: String,
    /// The log's header.
    pub(super) header: ZilHeader,
}

/// Refuses a pool that cannot be written. Returns its intent logs.
///
/// # Errors
/// [`EngineError::Unsupported`] names what it uses.
pub(super) fn check_pool(pool: &Pool) -> Result<Logs, EngineError> {
    let unsupported = |what: String| Err(EngineError::Unsupported(what));
    if pool.version() < version::OLDEST_WRITABLE {
        let what = "which another system has to upgrade";
        return unsupported(format!("a pool of version {}, {what},", pool.version()));
    }
    // What lists can have in them is told from that.
    let frees = pool.directory().u64("free_bpobj")?.is_some();
    if frees != (pool.version() >= version::DEADLISTS) {
        return unsupported(
            "a list of blocks to be freed that does not go with the version".into(),
        );
    }
    for feature in pool.features().list.iter().filter(|f| f.uses > 0) {
        if !in_use(&feature.guid) {
            let name = feature.known.map_or(feature.guid.as_str(), |known| known.name);
            return unsupported(format!("active feature '{name}'"));
        }
    }
    let vdevs = pool.store().vdevs().root().children().len() as u64;
    if brt::is_big_endian(pool.mos(), vdevs) {
        return unsupported(
            "a block reference table (cloned blocks) of a big-endian system".into(),
        );
    }
    if pool.space().is_none() {
        return unsupported("a pool whose space maps cannot be read".into());
    }
    check_logs(pool)
}

/// Finds the intent logs. One without anything to be replayed may have a block that is in no space map: the
/// one that was to be written next.
///
/// # Errors
/// A device failed to read a log that was not claimed: it may have more than was seen.
fn check_logs(pool: &Pool) -> Result<Logs, EngineError> {
    let dsl = pool.dsl();
    let kept = Arc::new(Kept::up_to(REPLAY_KEEP.get()));
    let mut logs = Logs { finished: Vec::new(), waiting: Vec::new(), kept, all: true };
    let (mut waiting, mut seen) = (vec![dsl.root()?], 0);
    while let Some(dataset) = waiting.pop() {
        seen += 1;
        if seen > MAX_DATASETS {
            return Err(EngineError::Unsupported("so many datasets".into()));
        }
        match dsl.open_objset(&dataset) {
            Ok(set) => {
                let zil = &set.phys().zil;
                match log_state(pool, &dataset, zil, &logs.kept)? {
                    Log::Waiting => {
                        let (ds_obj, name) = (dataset.ds_obj, dataset.name.clone());
                        logs.waiting.push(Left { ds_obj, name, header: *zil });
                    }
                    Log::Finished => logs.finished.push(dataset.ds_obj),
                    Log::Unreadable | Log::Cut => logs.all = false,
                    Log::None => {}
                }
            }
            Err(e) => {
                // Its log is lost with it; the other datasets are not.
                tracing::warn!("'{}' cannot be opened: {e}", dataset.name);
                logs.all = false;
            }
        }
        match dsl.children_found(&dataset) {
            Ok((children, all)) => {
                waiting.extend(children);
                logs.all &= all;
            }
            Err(e) => {
                tracing::warn!("what is below '{}' cannot be found: {e}", dataset.name);
                logs.all = false;
            }
        }
    }
    Ok(logs)
}

/// The state of an intent log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Log {
    /// The dataset has no log.
    None,
    /// There are changes in it that are not in the dataset.
    Waiting,
    /// Nothing in it needs a replay.
    Finished,
    /// There may be changes in what was claimed and cannot be read.
    Unreadable,
    /// There were changes in it that could not be claimed.
    Cut,
}

fn log_state(
    pool: &Pool,
    dataset: &Dataset,
    zil: &ZilHeader,
    kept: &Kept,
) -> Result<Log, EngineError> {
    if zil.log.is_hole() {
        return Ok(Log::None);
    }
    if leads_to_missing(pool, zil, kept) {
        // An import without it gives up what is in the log (`SPA_LOG_CLEAR`). Logs that are elsewhere are none the worse.
        tracing::warn!("'{}': the intent log is given up: a log vdev is missing", dataset.name);
        return Ok(Log::Finished);
    }
    if pool.uberblock().checkpoint_txg != 0 && zil.claim_txg == 0 {
        // The pool was rewound to its checkpoint: what was not claimed then may have been overwritten since.
        return Ok(Log::Finished);
    }
    let since = match zil.claim_txg {
        0 => pool.uberblock().txg.saturating_add(1),
        txg => txg,
    };
    let end = zil::walk_kept(pool.store(), zil, (kept, zil::Locked::Follow), &mut |item| {
        let news = |r: &RawRecord<'_>| r.txg >= since && r.seq > zil.replay_seq;
        !matches!(item, Item::Record(record) if news(&record))
    });
    match end {
        End::Stopped => Ok(Log::Waiting),
        // Wrong bytes are where a log ends that was not claimed.
        End::Unreadable | End::Failed(_) if zil.claim_txg != 0 => Ok(Log::Unreadable),
        End::Cut => Ok(Log::Cut),
        End::Unreadable | End::Complete => Ok(Log::Finished),
        End::Failed(e) => Err(EngineError::Read(e.into())),
    }
}

/// Whether an intent log leads to a log vdev that is not there, and was not taken out of use.
fn leads_to_missing(pool: &Pool, zil: &ZilHeader, kept: &Kept) -> bool {
    let vdevs = pool.store().vdevs();
    let is_missing = |top: &Arc<Vdev>| {
        top.is_log() && matches!(top.state(), VdevState::CantOpen(_)) && !top.is_log_left_out()
    };
    if !vdevs.root().children().iter().any(is_missing) {
        return false;
    }
    let mut leads = false;
    zil::walk_kept(pool.store(), zil, (kept, zil::Locked::Follow), &mut |item| {
        if let Item::Block(bp) = item {
            leads |= bp.dvas().any(|dva| vdevs.top(dva.vdev.into()).is_some_and(is_missing));
        }
        !leads
    });
    leads
}

/// Names of the datasets of a pool that is not written to whose intent logs have changes that are not in the
/// datasets; and why others could not be looked at.
///
/// # Errors
/// The root cannot be read.
pub fn unreplayed(pool: &Pool) -> cenote_dmu::Result<(Vec<String>, Vec<EngineError>)> {
    let dsl = pool.dsl();
    let (mut waiting, mut seen) = (vec![dsl.root()?], 0);
    let (mut names, mut unread) = (Vec::new(), Vec::new());
    while let Some(dataset) = waiting.pop() {
        seen += 1;
        if seen > MAX_DATASETS {
            break;
        }
        let header = dsl.open_objset(&dataset).map(|set| set.phys().zil);
        let state = header.map_err(EngineError::Read);
        match state.and_then(|zil| log_state(pool, &dataset, &zil, &Kept::nothing())) {
            Ok(Log::Waiting) => names.push(dataset.name.clone()),
            Ok(_) => {}
            Err(e) => unread.push(e),
        }
        match dsl.children(&dataset) {
            Ok(children) => waiting.extend(children),
            Err(e) => unread.push(EngineError::Read(e)),
        }
    }
    names.sort_unstable();
    Ok((names, unread))
}

/// Refuses a dataset that cannot be written, or not for this purpose.
///
/// # Errors
/// [`EngineError::Unsupported`] names what it uses.
pub(super) fn check_dataset(
    pool: &Pool,
    dataset: &Dataset,
    set: &ObjectSet,
    purpose: Purpose,
) -> Result<(), EngineError> {
    let unsupported =
        |what: &str| Err(EngineError::Unsupported(format!("'{}': {what}", dataset.name)));
    if let Some(why) = from_the_future(dataset.ds.bp.logical_birth(), pool.uberblock().txg) {
        return unsupported(&why);
    }
    match log_state(pool, dataset, &set.phys().zil, &Kept::nothing())? {
        Log::Waiting if purpose != Purpose::Replay => return unsupported(UNREPLAYED),
        Log::Unreadable => return unsupported(UNREADABLE),
        Log::Cut => return unsupported(CUT),
        Log::None | Log::Finished | Log::Waiting => {}
    }
    if dataset.is_inconsistent() && !matches!(purpose, Purpose::Receive(_)) {
        return unsupported("an incomplete dataset");
    }
    Ok(())
}

/// Births tell what snapshots have: with a root block of a group that is not written yet a snapshot would lose it.
fn from_the_future(birth: u64, last: u64) -> Option<String> {
    let why = || format!("its root block was born in group {birth}, and group {last} is the last");
    (birth > last).then(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_block_of_a_group_to_come_is_refused() {
        assert_eq!((from_the_future(99, 100), from_the_future(100, 100)), (None, None));
        let why = from_the_future(1_000_000, 100).unwrap();
        assert!(why.contains("born in group 1000000"), "{why}");
    }
    use cenote_format::features::FEATURES;

    #[test]
    fn what_is_enabled_by_us_can_be_used() {
        for feature in &FEATURES {
            if writable(feature) {
                assert!(in_use(feature.guid), "{}", feature.name);
            }
        }
        for guid in ["com.seagate:draid_failure_domains", "com.example:no_such"] {
            assert!(!in_use(guid), "{guid}");
        }
    }
}
