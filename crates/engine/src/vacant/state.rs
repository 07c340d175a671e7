//! What the ZAP of a leaf says of activities: the same entries as OpenZFS's (`vdev_trim_zap_update_sync`,
//! `vdev_initialize_zap_update_sync`).
//!
//! | entry | what |
//! |---|---|
//! | `org.zfsonlinux:next_offset_to_trim`, `com.delphix:next_offset_to_initialize` | byte of the device up to which it is done |
//! | `org.zfsonlinux:vdev_trim_state`, `com.delphix:vdev_initialize_state` | [`ActivityState`] |
//! | `org.zfsonlinux:vdev_trim_action_time`, `com.delphix:vdev_initialize_action_time` | when that state began, or the one that was suspended: seconds since 1970 |
//! | `org.zfsonlinux:vdev_trim_rate` | most bytes a second; 0: as fast as it goes |
//! | `org.zfsonlinux:vdev_trim_partial`, `org.zfsonlinux:vdev_trim_secure` | always 0 here; what OpenZFS began as secure does not go on here |
//! | `org.openzfs:vdev_initialize_value` | what is written, if it is not `zfs_initialize_value` |

use super::{ActivityError, Key as Of};
use crate::{EngineError, Shared, SyncContext};
use cenote_dmu::write::{WriteError, ZapMut};
use cenote_dmu::zap::Zap;
use cenote_dsl::write::{DslWriteError, Tx};
use cenote_format::LABEL_START;
use cenote_format::encode::zap::{Key, Value};
use cenote_format::nvlist::NvList;
use cenote_pool::vdev_props::Activity;
use cenote_pool::{config, history};

const RATE: &str = "org.zfsonlinux:vdev_trim_rate";
const PARTIAL: &str = "org.zfsonlinux:vdev_trim_partial";
const SECURE: &str = "org.zfsonlinux:vdev_trim_secure";
const VALUE: &str = "org.openzfs:vdev_initialize_value";

/// Where an activity of a leaf is (`vdev_trim_state_t`, `vdev_initializing_state_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivityState {
    /// A thread does it, as long as the leaf is in use.
    Active = 1,
    /// It was given up.
    Canceled = 2,
    /// It goes on when it is begun again.
    Suspended = 3,
    /// All is done.
    Complete = 4,
}

impl ActivityState {
    fn of(word: u64) -> Option<ActivityState> {
        use ActivityState::{Active, Canceled, Complete, Suspended};
        [Active, Canceled, Suspended, Complete].into_iter().find(|state| *state as u64 == word)
    }

    /// The word in the history.
    fn word(self) -> &'static str {
        match self {
            ActivityState::Active => "activated",
            ActivityState::Canceled => "canceled",
            ActivityState::Suspended => "suspended",
            ActivityState::Complete => "complete",
        }
    }
}

/// What the ZAP of a leaf says.
pub(super) struct Noted {
    /// `None`: it was never begun.
    pub state: Option<ActivityState>,
    /// Bytes of the leaf's allocatable space.
    pub offset: u64,
    /// What is told is to be erased for good.
    pub secure: bool,
    pub rate: u64,
    pub value: Option<u64>,
}

fn zap_of(leaf: &NvList) -> Option<u64> {
    leaf.u64("com.delphix:vdev_zap_leaf").filter(|object| *object != 0)
}

/// What is noted of a leaf on disk.
///
/// # Errors
/// There is no such leaf, or it has no ZAP; the ZAP cannot be read.
pub(super) fn noted(shared: &Shared, (activity, leaf): Of) -> Result<Noted, ActivityError> {
    let pool = shared.view();
    let own = pool.config().list("vdev_tree").and_then(|root| config::find(root, leaf));
    let object = zap_of(own.ok_or(ActivityError::NoDevice)?).ok_or(ActivityError::NoZap)?;
    let read = || -> cenote_dmu::Result<Noted> {
        let zap = Zap::open(&pool.mos().object(object)?)?;
        let number = |name: &str| zap.u64(name.as_bytes());
        let of_trim = |name| match activity {
            Activity::Trim => number(name),
            Activity::Initialize => Ok(None),
        };
        let keys = activity.keys();
        Ok(Noted {
            state: number(keys.state)?.and_then(ActivityState::of),
            offset: number(keys.offset)?.unwrap_or(0).saturating_sub(LABEL_START),
            secure: of_trim(SECURE)?.unwrap_or(0) != 0,
            rate: of_trim(RATE)?.unwrap_or(0),
            value: number(VALUE)?,
        })
    };
    Ok(read().map_err(EngineError::from)?)
}

/// What is written down of a leaf.
#[derive(Clone, Copy, Default)]
pub(super) struct Note {
    pub state: Option<ActivityState>,
    /// Bytes of the leaf's allocatable space.
    pub offset: Option<u64>,
    pub rate: Option<u64>,
    /// What is written to free space from now on.
    pub value: Option<u64>,
    /// All of it goes.
    pub forget: bool,
}

/// Writes down what is so from now on, and waits until that is on disk.
pub(super) fn write(shared: &Shared, of: Of, what: Note) -> Result<(), EngineError> {
    shared.queue.run(&shared.tx_state, move |context| note(context, of, what), |()| true)
}

/// Writes it into the ZAP of the leaf.
///
/// # Errors
/// The leaf is gone by now, or has no ZAP.
fn note(
    context: &mut SyncContext<'_>,
    (activity, leaf): Of,
    note: Note,
) -> Result<(), DslWriteError> {
    let invalid = |why: ActivityError| DslWriteError::Invalid(why.to_string());
    let own = config::find(&context.config.vdev_tree, leaf);
    let own = own.ok_or_else(|| invalid(ActivityError::NoDevice))?;
    let object = zap_of(own).ok_or_else(|| invalid(ActivityError::NoZap))?;
    let path = own.str("path").unwrap_or_default().to_owned();
    let (tx, keys) = (&mut context.tx, activity.keys());
    if note.forget {
        for name in [keys.state, keys.time, keys.offset, VALUE] {
            match ZapMut::open(tx.mos, object).remove(&Key::Name(name.as_bytes())) {
                Ok(()) | Err(WriteError::NoEntry(_)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        return record(tx, &format!("un{}", activity.name()), &format!("vdev={path}"));
    }
    let before = ZapMut::open(tx.mos, object).word(&Key::Name(keys.state.as_bytes()))?;
    let was_suspended = before == Some(ActivityState::Suspended as u64);
    let trim = activity == Activity::Trim;
    let begins = trim && note.state == Some(ActivityState::Active);
    let offset = note.offset.map(|at| if at == 0 { 0 } else { at.saturating_add(LABEL_START) });
    let pairs = [
        (keys.offset, offset),
        (keys.state, note.state.map(|state| state as u64)),
        (keys.time, note.state.filter(|_| !was_suspended).map(|_| tx.now)),
        (RATE, note.rate.filter(|_| trim)),
        (PARTIAL, begins.then_some(0)),
        (SECURE, begins.then_some(0)),
        (VALUE, note.value),
    ];
    for (name, value) in pairs {
        if let Some(value) = value {
            let key = Key::Name(name.as_bytes());
            ZapMut::open(tx.mos, object).update(&key, &Value::U64(&[value]))?;
        }
    }
    match note.state {
        Some(state) => record(tx, activity.name(), &format!("vdev={path} {}", state.word())),
        None => Ok(()),
    }
}

/// Adds a record of it to the pool's history.
fn record(tx: &mut Tx<'_>, name: &str, message: &str) -> Result<(), DslWriteError> {
    let record = history::internal(name, message, None, tx.txg, tx.now);
    let appended = |tx: &mut Tx<'_>| Ok(history::append(tx.mos, &record)?);
    tx.unless_unreadable("the pool's history is not written", appended).map(drop)
}
