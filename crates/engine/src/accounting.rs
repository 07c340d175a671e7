//! Writing a dataset (`dsl_dataset_sync`), and counting what its users use
//! (`dmu_objset_do_userquota_updates`, `userquota_updates_task`).
//!
//! A file system keeps, for each user, group and project, the bytes and the number of objects that
//! are theirs, in ZAPs of their own: the id in hexadecimal is the name of the bytes, and with the
//! prefix `obj-` that of the objects. A dnode's flags say whether it is in there. They are brought
//! up to date by what a sync changed (its dnodes before and after), and a second sync of the object
//! set in the same transaction group writes them.
//!
//! If the ZAPs cannot be read, the object set is not counted any more. If it cannot be read whether the dataset uses
//! the features, the pool goes on as if it did not.
//!
//! # File systems from before objects and projects were counted (`dmu_objset_id_quota_upgrade`)
//!
//! Once the pool has the features, such a file system is upgraded when it is mounted. A sync task notes in the
//! dataset that it uses the features. From then on each dnode that is written is counted, if its flag does not say
//! that it is already. All dnodes are written once, in the background (`zpl::write::count`), and then the object set's
//! flags say that its counting is complete. After a crash this begins again, and passes over what is counted.
//!
//! No flag of a dnode says whether it counts for its project. So projects are counted along with objects: those dnodes
//! count for a project that are counted as objects. Where objects were counted before projects, projects are left
//! alone.
//!
//! Invariants: an object set whose flags say that its counting is complete is counted at every sync. One that does not
//! say so, and whose dataset does not use the features, is left as it is. The count of an owner's objects is that of
//! the dnodes that say that they are counted.

use super::error::EngineError;
use super::sink::Sink;
use super::{Engine, verify};
use cenote_dmu::objset::{GROUP_USED, PROJECT_USED, USER_USED};
use cenote_dmu::write::{Accounts, NewObject, ObjectChange, Synced, SyncingSet};
use cenote_dsl::write::{DslWriteError, Result, Tx, dataset, features};
use cenote_format::dmu::{
    DNODE_FLAG_USEROBJUSED_ACCOUNTED, DNODE_FLAG_USERUSED_ACCOUNTED, DNODE_SLOT, DmuType,
    DnodePhys, ObjsetType,
};
use cenote_format::encode::zap::Key;
use cenote_format::sa::file_info;
use cenote_format::{ByteOrder, invariant};
use cenote_vdev::VdevTree;
use std::collections::BTreeMap;

/// Flags of an object set: bytes, objects, and projects are counted (`OBJSET_FLAG_*_COMPLETE`).
const BYTES: u64 = 1;
const OBJECTS: u64 = 1 << 1;
const PROJECTS: u64 = 1 << 2;
/// Features without which objects and projects are not counted.
const OBJECTS_FEATURE: &str = "org.zfsonlinux:userobj_accounting";
const PROJECTS_FEATURE: &str = "org.zfsonlinux:project_quota";
/// Block of a new ZAP of what is used.
const USED_BLOCK: u64 = 512;

/// What to add to each name of each object.
type Deltas = BTreeMap<(u64, String), i64>;

/// What is counted of an object set.
#[derive(Clone, Copy)]
pub(super) struct Counted {
    /// Flags of an object set.
    flags: u64,
    /// Only dnodes that are counted as objects count for their projects.
    projects_along: bool,
}

impl Counted {
    /// What is counted of an object set that is there.
    ///
    /// # Errors
    /// The MOS cannot be read.
    pub fn of(tx: &mut Tx<'_>, set: &SyncingSet, ds_obj: u64) -> Result<Counted> {
        if set.is_received_raw() {
            // The owners of what is encrypted cannot be told, nor can what is counted be changed.
            return Ok(Counted { flags: 0, projects_along: false });
        }
        let complete = set.synced().phys().flags;
        if complete & BYTES == 0 || complete & OBJECTS != 0 {
            return Ok(Counted { flags: complete, projects_along: false });
        }
        let what = format!("dataset {ds_obj:#x}: its objects are not counted along");
        let used = tx.unless_unreadable(&what, |tx| {
            let mut used = 0;
            for (flag, guid) in [(OBJECTS, OBJECTS_FEATURE), (PROJECTS, PROJECTS_FEATURE)] {
                if complete & flag == 0 && features::is_used_by(tx, ds_obj, guid)? {
                    used |= flag;
                }
            }
            Ok(used)
        })?;
        let used = used.unwrap_or(0);
        Ok(Counted { flags: complete | used, projects_along: used & PROJECTS != 0 })
    }
}

impl Engine {
    /// Begins to count the objects of a file system that are not counted yet, and their projects. Returns the flags
    /// that the object set gets once all of its dnodes were written; 0: nothing has to be counted.
    ///
    /// # Errors
    /// The dataset cannot be read; the pool is suspended.
    pub fn begin_counting(&self, ds_obj: u64) -> std::result::Result<u64, EngineError> {
        let view = self.pool();
        let dsl = view.dsl();
        let Some(dataset) = dsl.by_object(ds_obj)? else { return Ok(0) };
        let objset = dsl.open_objset(&dataset)?;
        let complete = objset.phys().flags;
        let is_enabled = |guid: &str| view.features().get(guid).is_some();
        let is_files = objset.phys().kind == ObjsetType::Zfs;
        if !is_files || complete & (BYTES | OBJECTS) != BYTES || !is_enabled(OBJECTS_FEATURE) {
            return Ok(0);
        }
        let used = dsl.features(&dataset)?;
        let uses = |guid: &str| used.iter().any(|(used, _)| used == guid);
        let along = complete & PROJECTS == 0
            && is_enabled(PROJECTS_FEATURE)
            && !dsl.counts_objects(&dataset)?;
        let projects = along || uses(PROJECTS_FEATURE);
        if !uses(OBJECTS_FEATURE) {
            self.sync_task_beside_logs(
                move |context| {
                    let tx = &mut context.tx;
                    if along {
                        features::activate_dataset_feature(tx, ds_obj, PROJECTS_FEATURE)?;
                    }
                    features::activate_dataset_feature(tx, ds_obj, OBJECTS_FEATURE)
                },
                |()| true,
            )?;
        }
        Ok(OBJECTS | if projects { PROJECTS } else { 0 })
    }
}

/// Writes an object set and accounts for it.
pub(super) fn sync_dataset(
    tx: &mut Tx<'_>,
    set: &mut SyncingSet,
    ds_obj: u64,
    sink: &Sink<'_>,
) -> Result<()> {
    let counted = Counted::of(tx, set, ds_obj)?;
    sync_counted(tx, set, ds_obj, sink, counted)
}

/// The same for a new file system: it is counted from the start.
pub(super) fn sync_new(
    tx: &mut Tx<'_>,
    set: &mut SyncingSet,
    ds_obj: u64,
    sink: &Sink<'_>,
) -> Result<()> {
    let mut counted = BYTES;
    for (flag, guid) in [(OBJECTS, OBJECTS_FEATURE), (PROJECTS, PROJECTS_FEATURE)] {
        if features::is_enabled(tx, guid)? {
            features::activate_dataset_feature(tx, ds_obj, guid)?;
            counted |= flag;
        }
    }
    set.set_flags(counted);
    sync_counted(tx, set, ds_obj, sink, Counted { flags: counted, projects_along: false })
}

fn sync_counted(
    tx: &mut Tx<'_>,
    set: &mut SyncingSet,
    ds_obj: u64,
    sink: &Sink<'_>,
    counted: Counted,
) -> Result<()> {
    let synced = write(set, tx.txg, sink, counted)?;
    charge(tx, ds_obj, &synced, sink.tree)?;
    if count_owners(tx, set, ds_obj, &synced, counted)? {
        let synced = set.sync(tx.txg, sink)?;
        check_counted(ds_obj, &synced);
        charge(tx, ds_obj, &synced, sink.tree)?;
    }
    Ok(())
}

/// Writes what is dirty. The MOS is not asked for it, and not told.
///
/// # Errors
/// Blocks cannot be read, or have no space.
pub(super) fn write(
    set: &mut SyncingSet,
    txg: u64,
    sink: &Sink<'_>,
    counted: Counted,
) -> cenote_dmu::write::Result<Synced> {
    set.set_accounted(dnode_flags(counted.flags));
    set.sync(txg, sink)
}

/// Charges the dataset for what was written (`dsl_dataset_sync`).
///
/// # Errors
/// The MOS cannot be read.
pub(super) fn charge(tx: &mut Tx<'_>, ds_obj: u64, synced: &Synced, tree: &VdevTree) -> Result<()> {
    let before = verify::sums(tx, ds_obj);
    dataset::synced(tx, ds_obj, synced)?;
    if let Some(before) = before {
        verify::grew(tx, ds_obj, before, synced, tree);
    }
    Ok(())
}

/// Counts what users use by what was written. Returns whether the object set has to be written again for that.
///
/// # Errors
/// The object set cannot be changed.
pub(super) fn count_owners(
    tx: &Tx<'_>,
    set: &mut SyncingSet,
    ds_obj: u64,
    synced: &Synced,
    counted: Counted,
) -> Result<bool> {
    let deltas = deltas(&synced.changed, counted);
    if deltas.is_empty() {
        return Ok(false);
    }
    match set.account(|accounts| apply(tx, accounts, &deltas)) {
        Ok(()) => {}
        Err(DslWriteError::Unreadable(why)) => {
            tracing::warn!("dataset {ds_obj:#x}: what users use is not counted any more: {why}");
            set.set_flags(set.flags() & !(BYTES | OBJECTS | PROJECTS));
        }
        Err(e) => return Err(e),
    }
    Ok(true)
}

/// A sync that writes what was counted changes nothing else, which would not be counted.
pub(super) fn check_counted(ds_obj: u64, synced: &Synced) {
    let changed = synced.changed.len();
    invariant!(changed == 0, "dataset {ds_obj}: {changed} objects change after they were counted");
}

/// The flags of dnodes that are counted in an object set.
fn dnode_flags(counted: u64) -> u8 {
    let flag = |wanted: u64, flag: u8| if counted & wanted == wanted { flag } else { 0 };
    flag(BYTES, DNODE_FLAG_USERUSED_ACCOUNTED)
        | flag(BYTES | OBJECTS, DNODE_FLAG_USEROBJUSED_ACCOUNTED)
}

fn deltas(changed: &[ObjectChange], counted: Counted) -> Deltas {
    let mut deltas = Deltas::new();
    if counted.flags & BYTES == 0 {
        return deltas;
    }
    let special = |object: u64| object == 0 || object >= PROJECT_USED;
    for change in changed.iter().filter(|change| !special(change.object)) {
        let sides = [(&change.before, -1), (&change.after, 1)];
        for (dnode, sign) in sides.into_iter().filter_map(|(d, s)| Some((d.as_ref()?, s))) {
            count(&mut deltas, dnode, sign, counted);
        }
    }
    let sum = |of: u64| {
        let of_kind = deltas.iter().filter(|((object, _), _)| *object == of);
        of_kind.fold(0, |sum: i64, (_, delta)| sum.wrapping_add(*delta))
    };
    let (users, groups) = (sum(USER_USED), sum(GROUP_USED));
    invariant!(users == groups, "users are charged with {users} more, and groups with {groups}");
    deltas.retain(|_, delta| *delta != 0);
    deltas
}

/// Counts a dnode for or against its owners (`do_userquota_update`, `dmu_objset_userquota_get_ids`).
fn count(deltas: &mut Deltas, dnode: &DnodePhys, sign: i64, counted: Counted) {
    let Some(owner) = file_info(dnode.bonus_kind, &dnode.bonus, ByteOrder::Little) else { return };
    let used = i64::try_from(dnode.used).unwrap_or(i64::MAX).saturating_add(DNODE_SLOT as i64);
    let mut owners = vec![(USER_USED, owner.uid), (GROUP_USED, owner.gid)];
    let is_object = dnode.flags & DNODE_FLAG_USEROBJUSED_ACCOUNTED != 0;
    if counted.flags & PROJECTS != 0 && (is_object || !counted.projects_along) {
        owners.push((PROJECT_USED, owner.projid));
    }
    for (object, id) in owners {
        if dnode.flags & DNODE_FLAG_USERUSED_ACCOUNTED != 0 {
            let sum = deltas.entry((object, format!("{id:x}"))).or_default();
            *sum = sum.wrapping_add(sign.wrapping_mul(used));
        }
        if is_object {
            *deltas.entry((object, format!("obj-{id:x}"))).or_default() += sign;
        }
    }
}

fn apply(tx: &Tx<'_>, accounts: &mut Accounts<'_>, deltas: &Deltas) -> Result<()> {
    for ((object, name), delta) in deltas {
        let new = NewObject::new(DmuType::USERGROUP_USED, USED_BLOCK);
        accounts.create(*object, &new, || tx.zap_format())?;
        accounts.add(*object, &Key::Name(name.as_bytes()), *delta)?;
    }
    Ok(())
}
