//! Delegated permissions, granted and looked at (`dsl_deleg_set`, `dsl_deleg_access_impl`).
//!
//! [`crate::permissions`] says how they are stored. An entry goes with its last permission; the ZAP of entries
//! stays once it is there. The creator of a dataset gets what is granted to creators in those above it
//! (`dsl_deleg_set_create_perms`).

use super::{DslWriteError, Result, Tx, directory};
use crate::name_of;
pub use crate::permissions::Who;
use crate::permissions::{Grant, permits};
use cenote_format::dmu::DmuType;

/// Type of the ZAPs of permissions (`DMU_OT_DSL_PERMS`).
const PERMISSIONS: DmuType = DmuType(32);
/// Place: the dataset itself.
const LOCAL: char = 'l';

/// An entry to be changed: its name, and the permissions; `None`: all that it has.
pub type Entry = (String, Option<Vec<String>>);
/// What was done to an entry, for the history (`zfs_allow_log_key`): what it is called there, and which entry and permission.
pub type Told = (&'static str, String);

/// Grants permissions on the directory `dir_obj` (`dsl_deleg_set_sync`).
///
/// # Errors
/// The MOS cannot be read or changed.
pub fn allow(tx: &mut Tx<'_>, dir_obj: u64, entries: &[Entry]) -> Result<Vec<Told>> {
    let mut told = Vec::new();
    for (key, permissions) in entries {
        let Some(permissions) = permissions else { continue };
        let list = list_of(tx, dir_obj, key)?;
        for permission in permissions {
            tx.zap_set(list, permission, 0)?;
            told.push(("permission update", format!("{key} {permission}")));
        }
    }
    Ok(told)
}

/// Takes permissions away (`dsl_deleg_unset_sync`). Permissions that were not granted are ignored.
///
/// # Errors
/// The MOS cannot be read or changed.
pub fn unallow(tx: &mut Tx<'_>, dir_obj: u64, entries: &[Entry]) -> Result<Vec<Told>> {
    let mut told = Vec::new();
    let grants = tx.dir(dir_obj)?.deleg;
    if grants == 0 {
        return Ok(told);
    }
    for (key, permissions) in entries {
        let list = tx.zap_number(grants, key)?;
        let Some(permissions) = permissions else {
            if let Some(list) = list {
                tx.zap_remove(grants, key)?;
                tx.mos.free(list)?;
            }
            told.push(("permission who remove", key.clone()));
            continue;
        };
        let Some(list) = list else { continue };
        for permission in permissions {
            tx.zap_remove(list, permission)?;
            told.push(("permission remove", format!("{key} {permission}")));
        }
        if tx.zap_is_empty(list)? {
            tx.zap_remove(grants, key)?;
            tx.mos.free(list)?;
        }
    }
    Ok(told)
}

/// The ZAP of the permissions of an entry, which is made if it is not there.
fn list_of(tx: &mut Tx<'_>, dir_obj: u64, key: &str) -> Result<u64> {
    let mut grants = tx.dir(dir_obj)?.deleg;
    if grants == 0 {
        grants = tx.plain_zap(PERMISSIONS)?;
        tx.edit_dir(dir_obj, |dir| dir.deleg = grants)?;
    }
    if let Some(list) = tx.zap_number(grants, key)? {
        return Ok(list);
    }
    let list = tx.plain_zap(PERMISSIONS)?;
    tx.zap_add(grants, key, list)?;
    Ok(list)
}

/// Grants the creator of a new directory what those above it say (`copy_create_perms`).
pub(super) fn start(tx: &mut Tx<'_>, dir_obj: u64) -> Result<()> {
    let Some(creator) = tx.who.as_ref().map(|who| who.user) else { return Ok(()) };
    for (_, above) in tx.ancestry(dir_obj)?.into_iter().skip(1) {
        for (given, got) in [("c-$", 'u'), ("C-$", 'U')] {
            let permissions = permissions(tx, above.deleg, given)?;
            if !permissions.is_empty() {
                let key = format!("{got}{LOCAL}${creator}");
                allow(tx, dir_obj, &[(key, Some(permissions))])?;
            }
        }
    }
    Ok(())
}

/// The permissions of an entry, if it is there.
fn permissions(tx: &mut Tx<'_>, grants: u64, key: &str) -> Result<Vec<String>> {
    let list = match grants {
        0 => None,
        grants => tx.zap_number(grants, key)?,
    };
    match list {
        Some(list) => Ok(tx.zap_entries(list)?.iter().map(name_of).collect()),
        None => Ok(Vec::new()),
    }
}

/// Whether a user has a permission on a directory: granted there, or to those below one above it.
///
/// # Errors
/// The MOS cannot be read.
pub fn has(tx: &mut Tx<'_>, dir_obj: u64, who: &Who, permission: &str) -> Result<bool> {
    if !is_on(tx)? {
        return Ok(false);
    }
    let mut levels = Vec::new();
    for (_, dir) in tx.ancestry(dir_obj)? {
        let mut grants = Vec::new();
        for entry in tx.zap_entries(dir.deleg)? {
            let Some(list) = entry.u64() else { continue };
            grants.extend(Grant::of(&name_of(&entry), &tx.zap_entries(list)?));
        }
        levels.push(grants);
    }
    Ok(permits(&levels, true, who, permission))
}

/// Whether the pool lets permissions be delegated (`dsl_delegation_on`).
fn is_on(tx: &mut Tx<'_>) -> Result<bool> {
    let Some(props) = directory::entry(tx, "pool_props")?.filter(|props| *props != 0) else {
        return Ok(true);
    };
    Ok(tx.zap_number(props, "delegation")?.is_none_or(|on| on != 0))
}

/// Whether the name of a set can be one (`permset_namecheck`).
pub fn is_set(name: &str) -> bool {
    const LONGEST: usize = 63;
    let valid = |c: char| c.is_ascii_alphanumeric() || "-_.: ".contains(c);
    let rest = name.strip_prefix('@').filter(|rest| !rest.is_empty());
    name.len() <= LONGEST && rest.is_some_and(|rest| rest.chars().all(valid))
}

/// Refuses permissions that there are not (`zfs_deleg_verify_nvlist`). `is_property`: whether there is a property of
/// a name that can be delegated.
///
/// # Errors
/// `Invalid`
pub fn check(entries: &[Entry], is_property: impl Fn(&str) -> bool) -> Result<()> {
    let known = |name: &String| NAMES.contains(&name.as_str()) || is_property(name) || is_set(name);
    let right = |(key, permissions): &Entry| {
        let set = key.strip_prefix(['s', 'S']).and_then(|key| key.strip_prefix("-$"));
        let all_known =
            permissions.as_ref().is_none_or(|list| !list.is_empty() && list.iter().all(known));
        set.is_none_or(is_set) && all_known
    };
    match !entries.is_empty() && entries.iter().all(right) {
        true => Ok(()),
        false => Err(DslWriteError::Invalid("invalid permission".into())),
    }
}

/// Permissions that are no properties.
pub const NAMES: [&str; 34] = [
    "allow",
    "bookmark",
    "change-key",
    "clone",
    "create",
    "destroy",
    "diff",
    "groupobjquota",
    "groupobjused",
    "groupquota",
    "groupused",
    "hold",
    "load-key",
    "mount",
    "projectobjquota",
    "projectobjused",
    "projectquota",
    "projectused",
    "promote",
    "receive",
    "receive:append",
    "release",
    "rename",
    "rollback",
    "send",
    "send:encrypted",
    "send:raw",
    "share",
    "snapshot",
    "userobjquota",
    "userobjused",
    "userprop",
    "userquota",
    "userused",
];
