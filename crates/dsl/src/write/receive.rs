//! Datasets that are being received (`dmu_recv_begin_sync`, `dmu_recv_end_sync`).
//!
//! Where there is no dataset yet, a new one is made, or a clone of the origin that the stream names. Where there is
//! one, the stream goes into the clone `%recv` below it, of the snapshot that the stream starts from; for a full
//! stream of nothing. Either is marked as incomplete until all has come. Until then it cannot be mounted and cannot
//! have snapshots, and only the receiver writes to it.
//!
//! When all has come, a clone is [swapped](super::swap) with the dataset that it is below. Then a snapshot is taken,
//! which gets the guid and the time that the stream has, and the clone is destroyed.
//!
//! A receive that can be resumed leaves [fields](crate::resume) in the dataset. They say which record was the last
//! that the same transaction group has, so that they fit to what is on disk whenever the receive ends.

use super::dataset::{self, Created};
use super::destroy::{self, Way};
pub use super::incoming::{Incoming, Resume};
use super::{
    DslWriteError, Result, Tx, crypt, dir, features, limits, names, snapshot, space, swap,
};
use crate::resume;
use cenote_format::dsl::{DS_FLAG_CI_DATASET, DS_FLAG_INCONSISTENT};
use cenote_format::encode::zap::Value;
use cenote_format::invariant;

/// The last record that a transaction group has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Its object.
    pub object: u64,
    /// Byte in the object.
    pub offset: u64,
    /// Bytes of the stream with it.
    pub bytes: u64,
}

/// Makes the dataset `name` in `parent_dir`, of the contents of the snapshot `origin` if there is one, and marks it
/// as incomplete. Without an origin, the caller still makes its object set.
///
/// Errors: `Exists`, `TooLong`, `Invalid` name, `Quota` if a limit would be exceeded, `Unsupported`.
pub fn begin(
    tx: &mut Tx<'_>,
    (parent_dir, name): (u64, &str),
    origin: Option<u64>,
    what: &Incoming,
) -> Result<Created> {
    limits::check(tx, parent_dir, limits::SNAPSHOTS, 1, None)?;
    let made = match name {
        resume::CLONE => create_clone(tx, parent_dir, origin)?,
        _ => dataset::create(tx, parent_dir, name, &[], origin)?,
    };
    if let (Some(keys), None) = (&what.keys, origin) {
        crypt::receive_keys(tx, (made.dir_obj, made.ds_obj), keys, what)?;
    }
    let mut ds = tx.head(made.ds_obj)?;
    ds.flags |= DS_FLAG_INCONSISTENT;
    if what.ignores_case {
        ds.flags |= DS_FLAG_CI_DATASET;
    }
    tx.set_dataset(made.ds_obj, &ds)?;
    // The origin may be redacted; what comes says whether this is.
    features::set_redacted(tx, made.ds_obj, what.redacted.as_deref())?;
    for guid in &what.features {
        features::activate_dataset_feature(tx, made.ds_obj, guid)?;
    }
    if let Some(resume) = &what.resume {
        put_resume(tx, made.ds_obj, what.to_guid, resume)?;
    }
    Ok(made)
}

/// Makes the clone `%recv`, whose name may be longer than other names.
fn create_clone(tx: &mut Tx<'_>, parent_dir: u64, origin: Option<u64>) -> Result<Created> {
    let children = tx.dir(parent_dir)?.children;
    if tx.zap_number(children, resume::CLONE)?.is_some() {
        return Err(DslWriteError::Busy);
    }
    let start = match origin {
        Some(origin) => Some(origin),
        None => dir::origin_snap(tx)?,
    };
    let dir_obj = dir::create_dir(tx, Some((parent_dir, resume::CLONE)))?;
    let ds_obj = dataset::create_head(tx, dir_obj, start)?;
    if origin.is_some() {
        crypt::share(tx, dir_obj, parent_dir)?;
    }
    limits::start(tx, dir_obj)?;
    Ok(Created { dir_obj, ds_obj })
}

fn put_resume(tx: &mut Tx<'_>, ds_obj: u64, to_guid: u64, resume: &Resume) -> Result<()> {
    tx.zapify(ds_obj)?;
    if let Some(guid) = resume.from_guid {
        tx.zap_set(ds_obj, resume::FROM_GUID, guid)?;
    }
    tx.zap_set(ds_obj, resume::TO_GUID, to_guid)?;
    let name: Vec<u8> = resume.to_name.iter().copied().chain([0]).collect();
    tx.zap_put(ds_obj, resume::TO_NAME, &Value::U8(&name))?;
    for (field, number) in [(resume::OBJECT, 1), (resume::OFFSET, 0), (resume::BYTES, 0)] {
        tx.zap_set(ds_obj, field, number)?;
    }
    for flag in &resume.flags {
        tx.zap_set(ds_obj, flag, 1)?;
    }
    if let Some(guids) = &resume.from_redacted {
        tx.zap_put(ds_obj, resume::BOOK_REDACT_SNAPS, &Value::U64(guids))?;
    }
    Ok(())
}

/// Notes how far a receive that can be resumed has come (`dsl_dataset_sync`). Nothing happens to one that cannot.
///
/// Errors: the dataset cannot be read or changed.
pub fn save_point(tx: &mut Tx<'_>, ds_obj: u64, point: Point) -> Result<()> {
    if tx.field_number(ds_obj, resume::TO_GUID)?.is_none() {
        return Ok(());
    }
    let Point { object, offset, bytes } = point;
    let fields = [(resume::OBJECT, object), (resume::OFFSET, offset), (resume::BYTES, bytes)];
    fields.iter().try_for_each(|(field, number)| tx.zap_set(ds_obj, field, *number))
}

/// A number that a receive left in a dataset.
///
/// Errors: the dataset cannot be read.
pub fn field(tx: &mut Tx<'_>, ds_obj: u64, name: &str) -> Result<Option<u64>> {
    tx.field_number(ds_obj, name)
}

/// The clone `%recv` below a directory: its head.
///
/// Errors: the MOS cannot be read.
pub fn clone_below(tx: &mut Tx<'_>, dir_obj: u64) -> Result<Option<u64>> {
    let children = tx.dir(dir_obj)?.children;
    match tx.zap_number(children, resume::CLONE)? {
        Some(dir) => Ok(Some(tx.dir(dir)?.head_dataset)),
        None => Ok(None),
    }
}

/// Whether a dataset uses the feature of this guid.
///
/// Errors: the MOS cannot be read.
pub fn uses_feature(tx: &mut Tx<'_>, ds_obj: u64, guid: &str) -> Result<bool> {
    Ok(tx.field(ds_obj, guid)?.is_some())
}

/// Whether a directory has any other below it.
///
/// Errors: the MOS cannot be read.
pub fn has_children(tx: &mut Tx<'_>, dir_obj: u64) -> Result<bool> {
    let children = tx.dir(dir_obj)?.children;
    Ok(!tx.zap_is_empty(children)?)
}

/// Whether a dataset is incomplete.
///
/// Errors: the MOS cannot be read.
pub fn is_incomplete(tx: &mut Tx<'_>, ds_obj: u64) -> Result<bool> {
    Ok(tx.head(ds_obj)?.flags & DS_FLAG_INCONSISTENT != 0)
}

/// The snapshots of the head `head_obj` from its newest back to the one after `until`, newest first. `None`: `until` is
/// not among the snapshots before the head.
///
/// Errors: the MOS cannot be read.
pub fn snapshots_after(tx: &mut Tx<'_>, head_obj: u64, until: u64) -> Result<Option<Vec<u64>>> {
    let head = tx.head(head_obj)?;
    let (mut later, mut at) = (Vec::new(), head.prev_snap);
    while at != until {
        let ds = match at {
            0 => return Ok(None),
            at => tx.dataset(at)?,
        };
        // Each is older than the one before, so the chain ends.
        if ds.dir != head.dir || later.len() > 1 << 24 {
            return Ok(None);
        }
        later.push(at);
        at = ds.prev_snap;
    }
    Ok(Some(later))
}

/// The snapshot of the head `head_obj` that has this guid.
///
/// Errors: the MOS cannot be read.
pub fn snapshot_of_guid(tx: &mut Tx<'_>, head_obj: u64, guid: u64) -> Result<Option<u64>> {
    let head = tx.head(head_obj)?;
    let mut at = head.prev_snap;
    for _ in 0..1 << 24 {
        if at == 0 {
            return Ok(None);
        }
        let ds = tx.dataset(at)?;
        if ds.dir != head.dir {
            return Ok(None);
        }
        if ds.guid == guid {
            return Ok(Some(at));
        }
        at = ds.prev_snap;
    }
    Ok(None)
}

/// What comes before a head, which may be a snapshot of another one.
///
/// Errors: the MOS cannot be read.
pub fn previous(tx: &mut Tx<'_>, head_obj: u64) -> Result<u64> {
    Ok(tx.head(head_obj)?.prev_snap)
}

/// Whether a snapshot of the head was taken in this transaction group: then the next one has to wait.
///
/// Errors: the MOS cannot be read.
pub fn has_snapshot_of_now(tx: &mut Tx<'_>, head_obj: u64) -> Result<bool> {
    Ok(tx.head(head_obj)?.prev_snap_txg >= tx.txg)
}

/// The directory of a dataset.
///
/// Errors: the MOS cannot be read.
pub fn dir_of(tx: &mut Tx<'_>, ds_obj: u64) -> Result<u64> {
    Ok(tx.dataset(ds_obj)?.dir)
}

/// Guid of a snapshot.
///
/// Errors: `Invalid` if it is not a snapshot.
pub fn guid_of(tx: &mut Tx<'_>, snap_obj: u64) -> Result<u64> {
    Ok(tx.snapshot(snap_obj)?.guid)
}

/// Takes the snapshot `name` of a head whose contents have come, with the guid and time of the stream. The head is
/// complete from now on.
///
/// Errors: `Exists`, `TooLong`, `Again` if a snapshot was taken in this transaction group, `Quota` if
/// `snapshot_limit` would be exceeded, `NoSpace` for the refreservation.
pub fn complete(tx: &mut Tx<'_>, head_obj: u64, name: &str, what: &Incoming) -> Result<u64> {
    names::check(name)?;
    let mut ds = tx.head(head_obj)?;
    if ds.prev_snap_txg >= tx.txg {
        return Err(DslWriteError::Again);
    }
    if snapshot::find(tx, &ds, name)?.is_some() {
        return Err(DslWriteError::Exists);
    }
    let (len, _) = names::length(tx, ds.dir)?;
    names::fits(len, name.len())?;
    limits::check(tx, ds.dir, limits::SNAPSHOTS, 1, None)?;
    let reserved = space::refreservation(tx, &ds)?.min(ds.unique);
    if reserved > space::available_to_dir(tx, ds.dir, None)? {
        return Err(DslWriteError::NoSpace);
    }
    ds.flags &= !DS_FLAG_INCONSISTENT;
    if what.ignores_case {
        ds.flags |= DS_FLAG_CI_DATASET;
    }
    tx.set_dataset(head_obj, &ds)?;
    if tx.is_zapified(head_obj)? {
        for field in resume::ALL {
            tx.zap_remove(head_obj, field)?;
        }
    }
    let snap = snapshot::take(tx, head_obj, name)?;
    if let Some(keys) = &what.keys {
        // The sender may have another key by now.
        crypt::receive_keys(tx, (ds.dir, head_obj), keys, what)?;
        crypt::received_vectors(tx, snap, keys.to_ivset)?;
    }
    tx.edit_dataset(snap, |snap| {
        snap.guid = what.to_guid;
        snap.creation_time = what.creation_time;
    })?;
    Ok(snap)
}

/// Makes what came into the clone `clone_obj` the contents of the head `head_obj`, takes the snapshot `name`, and
/// destroys the clone. Neither of them may be open or have an intent log. With `force`, snapshots that are later
/// than the clone's origin go first. The second part says how the history calls the clone's end.
///
/// Errors: those of [`complete`] and [`check_swap`](swap::check_swap); `Held`, `HasClones` for snapshots in the way.
pub fn complete_clone(
    tx: &mut Tx<'_>,
    (clone_obj, head_obj): (u64, u64),
    (name, force): (&str, bool),
    what: &Incoming,
) -> Result<(u64, String)> {
    let start = previous(tx, clone_obj)?;
    if force {
        let apart =
            || DslWriteError::Invalid("the snapshot that the stream starts from is gone".into());
        let later = snapshots_after(tx, head_obj, start)?.ok_or_else(apart)?;
        for snap in later {
            destroy::destroy_snapshot(tx, snap, false)?;
        }
    }
    swap::check_swap(tx, clone_obj, head_obj)?;
    swap::swap(tx, clone_obj, head_obj)?;
    let snap = complete(tx, head_obj, name, what)?;
    let clone = tx.head(clone_obj)?;
    // What is younger is freed with it.
    let now = clone.prev_snap;
    invariant!(now == start, "dataset {clone_obj} came after snapshot {start}, and now {now}");
    let way = Way::through_tree(tx, &clone)?;
    let how = way.describe(clone.prev_snap_txg);
    destroy::destroy_checked(tx, clone_obj, way)?;
    Ok((snap, how))
}
