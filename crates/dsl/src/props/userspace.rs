//! Space and objects used by users, groups and projects, and their quotas (`zfs_userspace_one`): `userused@alice`,
//! `groupquota@100`, `projectobjused@7`.
//!
//! What is used is accounted in three ZAPs of the object set itself (objects -1, -2 and -3);
//! counts of objects stand beside sizes under names with the prefix `obj-`. Quotas are in ZAPs
//! that the master node names by the property's prefix. Identifiers are hexadecimal.

use super::computed::{MASTER_NODE, USERACCOUNTING_COMPLETE};
use super::{PropValue, Source};
use crate::human::{nicebytes, nicenum};
use crate::{Dataset, Dsl};
use cenote_dmu::zap::Zap;
use cenote_dmu::{Error, Object, ObjectSet, Result};
use cenote_format::dmu::ObjsetType;
use std::collections::BTreeMap;
use std::sync::Arc;

/// `os_flags`: objects per user and group are counted; space and objects per project are.
const USEROBJACCOUNTING_COMPLETE: u64 = 2;
const PROJECTQUOTA_COMPLETE: u64 = 4;
/// Prefix of counts of objects.
const OBJECTS: &str = "obj-";
/// Largest user or group id.
const MAX_ID: u64 = i32::MAX as u64;

/// Whose space is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Owners of files.
    User,
    /// Their groups.
    Group,
    /// Projects that files are put into.
    Project,
}

impl Who {
    /// The quotas of bytes and of objects of names without quotas of their own.
    fn defaults(self) -> [&'static str; 2] {
        match self {
            Who::User => ["defaultuserquota", "defaultuserobjquota"],
            Who::Group => ["defaultgroupquota", "defaultgroupobjquota"],
            Who::Project => ["defaultprojectquota", "defaultprojectobjquota"],
        }
    }

    /// The object that accounts for it.
    fn accounting_object(self) -> u64 {
        match self {
            Who::User => u64::MAX,
            Who::Group => u64::MAX - 1,
            Who::Project => u64::MAX - 2,
        }
    }
}

/// One of the twelve families.
struct Family {
    prefix: &'static str,
    who: Who,
    objects: bool,
    quota: bool,
}

const fn family(prefix: &'static str, who: Who, objects: bool, quota: bool) -> Family {
    Family { prefix, who, objects, quota }
}

const FAMILIES: [Family; 12] = [
    family("userused@", Who::User, false, false),
    family("userquota@", Who::User, false, true),
    family("groupused@", Who::Group, false, false),
    family("groupquota@", Who::Group, false, true),
    family("userobjused@", Who::User, true, false),
    family("userobjquota@", Who::User, true, true),
    family("groupobjused@", Who::Group, true, false),
    family("groupobjquota@", Who::Group, true, true),
    family("projectused@", Who::Project, false, false),
    family("projectquota@", Who::Project, false, true),
    family("projectobjused@", Who::Project, true, false),
    family("projectobjquota@", Who::Project, true, true),
];

/// What the names of these properties begin with, up to the `@`, and whether each is a quota.
pub fn families() -> impl Iterator<Item = (&'static str, bool)> {
    FAMILIES.iter().map(|family| (family.prefix, family.quota))
}

fn parse(name: &str) -> Option<(&'static Family, &str)> {
    FAMILIES.iter().find_map(|f| Some((f, name.strip_prefix(f.prefix)?)))
}

/// Whether `name` is a property of a user, group or project.
pub fn is_userspace(name: &str) -> bool {
    parse(name).is_some()
}

/// The quota that a property like `userquota@alice` stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaOf {
    /// The entry of the master node that leads to the table of such quotas: `userquota@`.
    pub table: &'static str,
    /// Number of the user, group or project.
    pub id: u64,
    /// Whether it is of a project.
    pub project: bool,
}

/// Why a name does not name a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAQuota {
    /// It is no property of a user, group or project.
    Other,
    /// It says what is used.
    ReadOnly,
    /// There is no such user, group or project.
    Nobody,
}

/// Whose such a property is, and the number that its name stands for here.
pub fn owner_of(name: &str) -> Option<(Who, u64)> {
    let (family, whose) = parse(name)?;
    Some((family.who, id_of(family.who, whose)?))
}

/// The quota that a property stands for (`userquota_propname_decode`).
///
/// # Errors
/// It does not stand for a quota.
pub fn quota_of(name: &str) -> std::result::Result<QuotaOf, NotAQuota> {
    let (family, whose) = parse(name).ok_or(NotAQuota::Other)?;
    let id = id_of(family.who, whose).ok_or(NotAQuota::Nobody)?;
    match family.quota {
        true => Ok(QuotaOf { table: family.prefix, id, project: family.who == Who::Project }),
        false => Err(NotAQuota::ReadOnly),
    }
}

/// What a user, group or project uses and may use; `None` where nothing is counted of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Bytes used, and the quota of bytes, its own or the default; 0: no quota.
    pub bytes: Option<(u64, u64)>,
    /// Objects used, and the quota of objects, its own or the default; 0: no quota.
    pub objects: Option<(u64, u64)>,
}

/// The number that a name of the local system, or a number, stands for.
fn id_of(who: Who, name: &str) -> Option<u64> {
    let named = match who {
        Who::User => nix::unistd::User::from_name(name).ok().flatten().map(|u| u.uid.as_raw()),
        Who::Group => nix::unistd::Group::from_name(name).ok().flatten().map(|g| g.gid.as_raw()),
        Who::Project => None,
    };
    let id = named.map(u64::from).or_else(|| name.parse().ok())?;
    (who == Who::Project || id <= MAX_ID).then_some(id)
}

impl Dsl {
    /// The value of such a property; `None` if the name is unknown or nothing is accounted.
    pub(super) fn userspace(&self, d: &Dataset, property: &str) -> Result<Option<PropValue>> {
        let Some((family, name)) = parse(property) else { return Ok(None) };
        let Some(id) = id_of(family.who, name) else { return Ok(None) };
        let objset = self.open_objset(d)?;
        if !counts(&objset, family) {
            return Ok(None);
        }
        let (object, prefix) = if family.quota {
            (quotas(&objset, family.prefix)?, "")
        } else {
            (accounting(&objset, family.who)?, if family.objects { OBJECTS } else { "" })
        };
        let value = match object {
            Some(object) => {
                Zap::open(&object)?.u64(format!("{prefix}{id:x}").as_bytes())?.unwrap_or(0)
            }
            None => 0,
        };
        let human = match value {
            0 if family.quota => "none".into(),
            n if family.objects => nicenum(n),
            n => nicebytes(n),
        };
        Ok(Some(PropValue { exact: value.to_string(), human, source: Source::Local }))
    }

    /// What all users, groups or projects of a file system or snapshot use and may use, by number
    /// (`zfs_userspace_many`). The upper 32 bits of a number are the index of a domain of other systems.
    /// `None` if nothing is counted.
    ///
    /// # Errors
    /// The tables cannot be read.
    pub fn accounts(&self, d: &Dataset, who: Who) -> Result<Option<BTreeMap<u64, Account>>> {
        let objset = self.open_objset(d)?;
        let mut accounts: BTreeMap<u64, Account> = BTreeMap::new();
        let mut counted = false;
        for family in FAMILIES.iter().filter(|family| family.who == who) {
            if !counts(&objset, family) {
                continue;
            }
            counted = true;
            for (id, value) in table(&objset, family)? {
                let account = accounts.entry(id).or_default();
                let place = if family.objects { &mut account.objects } else { &mut account.bytes };
                let (used, quota) = place.get_or_insert_default();
                *(if family.quota { quota } else { used }) = value;
            }
        }
        if !counted {
            return Ok(None);
        }
        let master = Zap::open(&objset.object(MASTER_NODE)?)?;
        let [bytes, objects] = who.defaults();
        let default = |name: &str| Ok::<_, Error>(master.u64(name.as_bytes())?.unwrap_or(0));
        let defaults: [u64; 2] = [default(bytes)?, default(objects)?];
        for account in accounts.values_mut() {
            let [bytes, objects] = [&mut account.bytes, &mut account.objects];
            for (place, default) in [(bytes, defaults[0]), (objects, defaults[1])] {
                if let Some((_, quota @ 0)) = place {
                    *quota = default;
                }
            }
        }
        Ok(Some(accounts))
    }

    /// Whether the object set of a file system counts objects of anyone, to the end or not.
    ///
    /// # Errors
    /// The table cannot be read.
    pub fn counts_objects(&self, d: &Dataset) -> Result<bool> {
        let objset = self.open_objset(d)?;
        let Some(table) = accounting(&objset, Who::User)? else { return Ok(false) };
        for entry in Zap::open(&table)?.iter() {
            if entry?.name.starts_with(OBJECTS.as_bytes()) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether an object set counts what a family is about.
fn counts(objset: &ObjectSet, family: &Family) -> bool {
    let mut needed = USERACCOUNTING_COMPLETE;
    if family.objects {
        needed |= USEROBJACCOUNTING_COMPLETE;
    }
    if family.who == Who::Project {
        needed |= PROJECTQUOTA_COMPLETE;
    }
    let phys = objset.phys();
    phys.kind == ObjsetType::Zfs && phys.flags & needed == needed
}

/// The entries of a family, by number. Names that are no numbers are passed over.
fn table(objset: &Arc<ObjectSet>, family: &Family) -> Result<Vec<(u64, u64)>> {
    let (object, prefix) = match (family.quota, family.objects) {
        (true, _) => (quotas(objset, family.prefix)?, ""),
        (false, true) => (accounting(objset, family.who)?, OBJECTS),
        (false, false) => (accounting(objset, family.who)?, ""),
    };
    let Some(object) = object else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in Zap::open(&object)?.iter() {
        let entry = entry?;
        let name = crate::name_of(&entry);
        // What is counted of objects does not read as a number without its prefix.
        let id = name.strip_prefix(prefix).and_then(|id| u64::from_str_radix(id, 16).ok());
        if let (Some(id), Some(value)) = (id, entry.u64()) {
            found.push((id, value));
        }
    }
    Ok(found)
}

fn accounting(objset: &Arc<ObjectSet>, who: Who) -> Result<Option<Object>> {
    let phys = objset.phys();
    let present = match who {
        Who::User => phys.user_used.is_some(),
        Who::Group => phys.group_used.is_some(),
        Who::Project => phys.project_used.is_some(),
    };
    present.then(|| objset.special(who.accounting_object())).transpose()
}

fn quotas(objset: &Arc<ObjectSet>, prefix: &str) -> Result<Option<Object>> {
    let master = Zap::open(&objset.object(MASTER_NODE)?)?;
    master.u64(prefix.as_bytes())?.map(|object| objset.object(object)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_identified() {
        assert_eq!(id_of(Who::User, "root"), Some(0));
        assert_eq!(id_of(Who::Group, "1234"), Some(1234));
        assert_eq!(id_of(Who::User, "4294967295"), None);
        assert_eq!(id_of(Who::Project, "4294967294"), Some(4294967294));
        assert_eq!(id_of(Who::User, "no such user"), None);
        assert!(is_userspace("userobjused@x") && !is_userspace("used@x"));
    }

    #[test]
    fn quotas_are_told_from_what_is_used() {
        let quota = |table, id, project| Ok(QuotaOf { table, id, project });
        assert_eq!(quota_of("userquota@root"), quota("userquota@", 0, false));
        assert_eq!(quota_of("projectobjquota@7"), quota("projectobjquota@", 7, true));
        assert_eq!(quota_of("groupused@7"), Err(NotAQuota::ReadOnly));
        assert_eq!(quota_of("groupquota@no such group"), Err(NotAQuota::Nobody));
        assert_eq!(quota_of("quota"), Err(NotAQuota::Other));
    }
}
