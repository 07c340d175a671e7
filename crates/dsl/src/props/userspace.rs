//! Space and objects used by users, groups and projects, and their quotas: `userused@alice`,
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
use cenote_dmu::{Object, ObjectSet, Result};
use cenote_format::dmu::ObjsetType;
use std::sync::Arc;

/// `os_flags`: objects per user and group are counted; space and objects per project are.
const USEROBJACCOUNTING_COMPLETE: u64 = 2;
const PROJECTQUOTA_COMPLETE: u64 = 4;
/// Prefix of counts of objects.
const OBJECTS: &str = "obj-";
/// Largest user or group id.
const MAX_ID: u64 = i32::MAX as u64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    User,
    Group,
    Project,
}

impl Who {
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

fn parse(name: &str) -> Option<(&'static Family, &str)> {
    FAMILIES.iter().find_map(|f| Some((f, name.strip_prefix(f.prefix)?)))
}

/// Whether `name` is a property of a user, group or project.
pub fn is_userspace(name: &str) -> bool {
    parse(name).is_some()
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
        let mut needed = USERACCOUNTING_COMPLETE;
        if family.objects {
            needed |= USEROBJACCOUNTING_COMPLETE;
        }
        if family.who == Who::Project {
            needed |= PROJECTQUOTA_COMPLETE;
        }
        let phys = objset.phys();
        if phys.kind != ObjsetType::Zfs || phys.flags & needed != needed {
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
}
