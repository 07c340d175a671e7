//! What a user that is neither root nor the pool's owner needs for each change (`zfs_secpolicy_*`).
//!
//! [`Operation::needs`] is the table: every operation stands there with the permissions that it takes, and on which
//! dataset. A change begins with a [`Permit`], which only [`check`] gives, and no task runs without one: so what is
//! not in the table is for the owner alone.
//!
//! Permissions are looked up in the view of the last transaction group, as the rest of what is asked for. No other user
//! has permissions on what is not there.

use super::{ChangeError, Result, props};
use cenote_dsl::permissions::Who;
use cenote_dsl::props::is_user;
use cenote_dsl::write::permissions::Entry;
use cenote_dsl::{Dataset, Dsl};
use cenote_pool::Pool;

/// What may be done to datasets, by what it needs. Names are full ones; properties are names, too.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // Of the fields, which are what they are called.
pub enum Operation<'a> {
    /// To create a file system or volume with these properties.
    Create { name: &'a str, properties: Vec<&'a str> },
    /// To clone a snapshot, with these properties.
    Clone { origin: &'a str, name: &'a str, properties: Vec<&'a str> },
    /// To promote a clone of `origin`.
    Promote { name: &'a str, origin: Option<&'a str> },
    /// To destroy file systems, volumes or snapshots.
    Destroy { names: &'a [String] },
    /// To destroy bookmarks.
    DestroyBookmarks { names: &'a [String] },
    /// To take snapshots.
    Snapshot { names: &'a [String] },
    /// To rename a file system, volume or snapshot.
    Rename { from: &'a str, to: &'a str },
    /// To roll a file system or volume back to a snapshot.
    Rollback { snapshot: &'a str },
    /// To make a bookmark.
    Bookmark { name: &'a str },
    /// To hold snapshots.
    Hold { names: &'a [String] },
    /// To release holds.
    Release { names: &'a [String] },
    /// To set properties, or let them be inherited.
    Set { name: &'a str, properties: Vec<&'a str> },
    /// To receive into a file system or volume, or as a new one, which may go on from a snapshot that is there
    /// already; by force what is there is changed for it.
    Receive { name: &'a str, force: bool, origin: Option<&'a str> },
    /// To send a snapshot or head; `raw`, as it is on disk.
    Send { name: &'a str, raw: bool },
    /// To make redaction bookmarks. It is for the owner alone, as no permission is for it.
    Redact,
    /// To compare two states of a file system: a snapshot, and another one or the head.
    Diff { from: &'a str, to: &'a str },
    /// To see, or count, what others own: `userused` and the like.
    Userspace { name: &'a str, property: &'a str },
    /// To grant permissions.
    Allow { name: &'a str, entries: &'a [Entry] },
    /// To take them away.
    Unallow { names: &'a [String], entries: &'a [Entry] },
}

/// That the user may make a change. Only [`check`] gives it.
#[derive(Clone, Copy, Debug)]
pub struct Permit(());

/// A permission that is needed.
struct Need<'a> {
    on: On<'a>,
    permission: &'a str,
    /// Others, one of which will do.
    or: &'static [&'static str],
}

/// Permissions that allow raw sends alone; the second one those of encrypted datasets alone.
const RAW_SENDS: [&str; 2] = ["send:raw", SEND_ENCRYPTED];
const SEND_ENCRYPTED: &str = "send:encrypted";

/// What a permission is needed on.
#[derive(Clone, Copy)]
enum On<'a> {
    /// What is there under this name.
    There(&'a str),
    /// What comes to be below the dataset of this name.
    NewBelow(&'a str),
}

/// Needs of one dataset.
fn on<'a, const N: usize>(name: &'a str, permissions: [&'a str; N]) -> Vec<Need<'a>> {
    permissions.map(|permission| Need { on: On::There(name), permission, or: &[] }).into()
}

/// The same needs of each dataset.
fn each<'a, const N: usize>(
    names: impl Iterator<Item = &'a str>,
    permissions: [&'a str; N],
) -> Vec<Need<'a>> {
    names.flat_map(|name| on(name, permissions)).collect()
}

/// Needs of the properties that a new dataset gets. What it is by nature is asked for by creating it.
fn new_with<'a>(name: &'a str, properties: &[&'a str]) -> Vec<Need<'a>> {
    const BY_NATURE: [&str; 6] =
        ["version", "normalization", "utf8only", "casesensitivity", "volsize", "volblocksize"];
    let at = On::NewBelow(parent(name));
    let set = properties.iter().filter(|name| !BY_NATURE.contains(name));
    set.map(|name| Need { on: at, permission: permission_for(name), or: &[] }).collect()
}

/// The name without its last component or snapshot (`zfs_get_parent`).
fn parent(name: &str) -> &str {
    name.rsplit_once('@').or_else(|| name.rsplit_once('/')).map_or("", |(parent, _)| parent)
}

/// The head of what the name is of.
fn head(name: &str) -> &str {
    name.split(['@', '#']).next().unwrap_or_default()
}

/// The permission to set a property (`zfs_check_settable`): its name, or that of its kind.
fn permission_for(property: &str) -> &str {
    match property.split_once('@') {
        Some((quota, _)) => quota,
        None if is_user(property) => "userprop",
        None => props::find(property).map_or(property, |native| native.name),
    }
}

impl<'a> Operation<'a> {
    /// The table (`zfs_secpolicy_snapshot_perms`, `zfs_secpolicy_destroy_perms`).
    fn needs(&'a self) -> Vec<Need<'a>> {
        match self {
            Operation::Create { name, properties } => {
                let mut needs = on(parent(name), ["create", "mount"]);
                needs.extend(new_with(name, properties));
                needs
            }
            Operation::Clone { origin, name, properties } => {
                let mut needs = on(origin, ["clone"]);
                needs.extend(on(parent(name), ["create", "mount"]));
                needs.extend(new_with(name, properties));
                needs
            }
            Operation::Promote { name, origin } => {
                let mut needs = on(name, ["promote", "mount"]);
                needs.extend(origin.iter().flat_map(|origin| on(origin, ["promote"])));
                needs
            }
            Operation::Destroy { names } => {
                each(names.iter().map(String::as_str), ["mount", "destroy"])
            }
            Operation::DestroyBookmarks { names } => {
                each(names.iter().map(|name| head(name)), ["destroy"])
            }
            Operation::Snapshot { names } => {
                each(names.iter().map(|name| head(name)), ["snapshot"])
            }
            Operation::Rename { from, to } => {
                let mut needs = on(from, ["rename", "mount"]);
                needs.extend(on(parent(to), ["create", "mount"]));
                needs
            }
            Operation::Rollback { snapshot } => on(head(snapshot), ["rollback"]),
            Operation::Bookmark { name } => on(head(name), ["bookmark"]),
            Operation::Hold { names } => each(names.iter().map(|name| head(name)), ["hold"]),
            Operation::Release { names } => each(names.iter().map(|name| head(name)), ["release"]),
            Operation::Set { name, properties } => properties
                .iter()
                .flat_map(|property| on(name, [permission_for(property)]))
                .collect(),
            Operation::Receive { name, force, origin } => {
                let or: &[_] = if *force { &[] } else { &["receive:append"] };
                let mut needs = vec![Need { on: On::There(name), permission: "receive", or }];
                needs.extend(on(name, ["mount", "create"]));
                // A user that receives a clone can read all that its origin has.
                needs.extend(origin.iter().flat_map(|origin| on(origin, ["clone"])));
                needs
            }
            Operation::Send { name, raw } => {
                let or: &[_] = if *raw { &RAW_SENDS } else { &[] };
                vec![Need { on: On::There(name), permission: "send", or }]
            }
            Operation::Diff { from, to } => {
                let mut needs = on(to, ["diff"]);
                needs.extend(on(from, ["diff"]));
                needs
            }
            // No user is permitted.
            Operation::Redact => Vec::new(),
            Operation::Userspace { name, property } => on(name, [permission_for(property)]),
            // Which permissions a user may hand on is a rule of its own.
            Operation::Allow { name, .. } => on(name, ["allow"]),
            Operation::Unallow { names, .. } => each(names.iter().map(String::as_str), ["allow"]),
        }
    }
}

/// Whether a user may do something; `None`: the pool's owner, or root.
///
/// # Errors
/// `Denied`; `NoDelegation`: the pool lets no other user do anything; `NotFound`; its metadata cannot be read.
pub fn check(pool: &Pool, who: Option<&Who>, operation: &Operation<'_>) -> Result<Permit> {
    let Some(who) = who else { return Ok(Permit(())) };
    if matches!(operation, Operation::Redact) {
        return Err(ChangeError::Denied);
    }
    if pool.get("delegation").is_some_and(|value| value.exact == "off") {
        return Err(ChangeError::NoDelegation);
    }
    let dsl = pool.dsl();
    for Need { on, permission, or } in operation.needs() {
        let mut permitted = has(dsl, who, on, permission)?;
        for other in or {
            permitted = permitted || has(dsl, who, on, other)? && counts_for(dsl, on, other)?;
        }
        if !permitted {
            return Err(ChangeError::Denied);
        }
    }
    match operation {
        Operation::Allow { name, entries } => check_allow(dsl, who, name, entries)?,
        Operation::Unallow { entries, .. } => check_unallow(who, entries)?,
        _ => {}
    }
    Ok(Permit(()))
}

/// Whether a user has a permission (`zfs_secpolicy_write_perms`). On what is for a zone only root has any.
fn has(dsl: &Dsl, who: &Who, on: On<'_>, permission: &str) -> Result<bool> {
    let (On::There(name) | On::NewBelow(name)) = on;
    let dataset = dsl.find(name)?.ok_or(ChangeError::NotFound)?;
    if is_zoned(dsl, &dataset)? {
        return Ok(false);
    }
    Ok(match on {
        On::There(_) => dsl.permits(&dataset, who, permission)?,
        On::NewBelow(_) => dsl.permits_new(&dataset, who, permission)?,
    })
}

/// Whether a permission that a user has on something is about such datasets.
fn counts_for(dsl: &Dsl, on: On<'_>, permission: &str) -> Result<bool> {
    let (On::There(name) | On::NewBelow(name)) = on;
    let dataset = dsl.find(name)?.ok_or(ChangeError::NotFound)?;
    Ok(permission != SEND_ENCRYPTED || dsl.crypto_key(&dataset)?.is_some())
}

fn is_zoned(dsl: &Dsl, dataset: &Dataset) -> Result<bool> {
    let head = dsl.find(head(&dataset.name))?;
    let zoned = dsl.get(head.as_ref().unwrap_or(dataset), "zoned")?;
    Ok(zoned.is_some_and(|value| value.exact == "on"))
}

/// Users hand on what they have, but for the permission to do so (`dsl_deleg_can_allow`).
fn check_allow(dsl: &Dsl, who: &Who, name: &str, entries: &[Entry]) -> Result<()> {
    for permission in entries.iter().flat_map(|(_, list)| list.iter().flatten()) {
        if permission == "allow" || !has(dsl, who, On::There(name), permission)? {
            return Err(ChangeError::Denied);
        }
    }
    Ok(())
}

/// Users take away from themselves only (`dsl_deleg_can_unallow`).
fn check_unallow(who: &Who, entries: &[Entry]) -> Result<()> {
    let user = who.user.to_string();
    let is_own = |key: &str| key.starts_with(['u', 'U']) && key.get(3..) == Some(&user);
    match entries.iter().all(|(key, _)| is_own(key)) {
        true => Ok(()),
        false => Err(ChangeError::Denied),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an operation needs: permission and dataset; `+`: on what comes to be there.
    fn needs(operation: &Operation<'_>) -> Vec<String> {
        let text = |need: Need<'_>| {
            let or: String = need.or.iter().map(|or| format!("|{or}")).collect();
            let at = match need.on {
                On::There(name) => name.to_string(),
                On::NewBelow(name) => format!("{name}/+"),
            };
            format!("{}{or} {at}", need.permission)
        };
        operation.needs().into_iter().map(text).collect()
    }

    #[test]
    fn each_operation_needs_what_openzfs_asks_for() {
        let names = ["p/a@1".to_string(), "p/b@1".to_string()];
        let (names, heads) = (&names[..], ["p/a".to_string()]);
        let properties = vec!["compress", "a:b", "userquota@7", "casesensitivity"];
        let new = ["compression p/+", "userprop p/+", "userquota p/+"];
        let with = |first: &[&'static str]| [first, &new[..]].concat();
        for (operation, wanted) in [
            (
                Operation::Create { name: "p/a", properties: properties.clone() },
                with(&["create p", "mount p"]),
            ),
            (
                Operation::Clone { origin: "p/x@1", name: "p/a", properties: properties.clone() },
                with(&["clone p/x@1", "create p", "mount p"]),
            ),
            (
                Operation::Promote { name: "p/a", origin: Some("p/x@1") },
                vec!["promote p/a", "mount p/a", "promote p/x@1"],
            ),
            (
                Operation::Destroy { names },
                vec!["mount p/a@1", "destroy p/a@1", "mount p/b@1", "destroy p/b@1"],
            ),
            (Operation::DestroyBookmarks { names: &["p/a#1".into()] }, vec!["destroy p/a"]),
            (Operation::Snapshot { names }, vec!["snapshot p/a", "snapshot p/b"]),
            (
                Operation::Rename { from: "p/a", to: "p/b/c" },
                vec!["rename p/a", "mount p/a", "create p/b", "mount p/b"],
            ),
            (
                Operation::Rename { from: "p/a@1", to: "p/a@2" },
                vec!["rename p/a@1", "mount p/a@1", "create p/a", "mount p/a"],
            ),
            (Operation::Rollback { snapshot: "p/a@1" }, vec!["rollback p/a"]),
            (Operation::Bookmark { name: "p/a#1" }, vec!["bookmark p/a"]),
            (Operation::Hold { names }, vec!["hold p/a", "hold p/b"]),
            (Operation::Release { names }, vec!["release p/a", "release p/b"]),
            (
                Operation::Set { name: "p/a", properties },
                vec!["compression p/a", "userprop p/a", "userquota p/a", "casesensitivity p/a"],
            ),
            (
                Operation::Receive { name: "p/a", force: false, origin: None },
                vec!["receive|receive:append p/a", "mount p/a", "create p/a"],
            ),
            (
                Operation::Receive { name: "p/a", force: true, origin: None },
                vec!["receive p/a", "mount p/a", "create p/a"],
            ),
            (
                Operation::Receive { name: "p/a", force: true, origin: Some("p/x@1") },
                vec!["receive p/a", "mount p/a", "create p/a", "clone p/x@1"],
            ),
            (Operation::Send { name: "p/a@1", raw: false }, vec!["send p/a@1"]),
            (
                Operation::Send { name: "p/a@1", raw: true },
                vec!["send|send:raw|send:encrypted p/a@1"],
            ),
            (Operation::Diff { from: "p/a@1", to: "p/a" }, vec!["diff p/a", "diff p/a@1"]),
            (Operation::Userspace { name: "p/a", property: "userused@7" }, vec!["userused p/a"]),
            (Operation::Allow { name: "p/a", entries: &[] }, vec!["allow p/a"]),
            (Operation::Unallow { names: &heads, entries: &[] }, vec!["allow p/a"]),
        ] {
            assert_eq!(needs(&operation), wanted, "{operation:?}");
        }
    }

    #[test]
    fn users_take_permissions_away_from_themselves_only() {
        let who = Who { user: 7, groups: vec![7] };
        let allowed = |keys: &[&str]| {
            let entries: Vec<Entry> = keys.iter().map(|key| (key.to_string(), None)).collect();
            check_unallow(&who, &entries).is_ok()
        };
        assert!(allowed(&["ul$7", "Ud$7"]));
        for key in ["ul$70", "ul$", "gl$7", "el$", "c-$", "s-$@7"] {
            assert!(!allowed(&[key]), "{key}");
            assert!(!allowed(&["ul$7", key]), "{key}");
        }
    }
}
