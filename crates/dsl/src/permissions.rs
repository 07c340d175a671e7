//! Delegated permissions (`dsl_deleg_get`, `zfs_deleg_whokey`).
//!
//! A directory has a ZAP of grants. An entry is named by whom it is for, `KL$WHO`: kind `K`, in upper case
//! if what it grants are sets of permissions, place `L`, and an id or the name of a set. Its value is the
//! number of a ZAP whose names are the permissions.
//!
//! | kind | for |
//! |---|---|
//! | `u`, `U` | the user with number WHO |
//! | `g`, `G` | the group with number WHO |
//! | `e`, `E` | everyone |
//! | `c`, `C` | the creator of a dataset below |
//! | `s`, `S` | the set of permissions called WHO |
//!
//! Place: `l`, the dataset itself; `d`, those below; `-`, for kinds without one. A snapshot counts as below its
//! dataset.

use crate::{Dataset, DatasetKind, Dsl, name_of};
use cenote_dmu::Result;
use cenote_dmu::zap::ZapEntry;
use std::collections::BTreeMap;

/// Number of the user that needs no permissions.
const ROOT: u64 = 0;
/// Places: the dataset itself, and those below it.
const LOCAL: char = 'l';
const BELOW: char = 'd';

/// A user, as permissions are granted to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// Number of the user.
    pub user: u64,
    /// Numbers of the groups that the user is in.
    pub groups: Vec<u64>,
}

impl Who {
    /// Whether permissions are nothing to this user.
    pub fn is_root(&self) -> bool {
        self.user == ROOT
    }
}

/// An entry of a directory's permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Kind of whom it is for, in lower case: one of `s`, `c`, `u`, `g`, `e`.
    pub kind: char,
    /// Where it holds: `l`, `d` or `-`.
    pub place: char,
    /// Id of a user or group, name of a set; empty for others.
    pub who: String,
    /// Permissions, and sets of them, sorted.
    pub permissions: Vec<String>,
}

impl Grant {
    /// The grant of an entry's name and of the entries of its list; `None`: the name is not an entry's.
    pub(crate) fn of(name: &str, list: &[ZapEntry]) -> Option<Grant> {
        let mut letters = name.chars();
        let (Some(kind), Some(place), Some('$')) = (letters.next(), letters.next(), letters.next())
        else {
            return None;
        };
        let mut permissions: Vec<String> = list.iter().map(name_of).collect();
        permissions.sort();
        let who = letters.as_str().to_string();
        Some(Grant { kind: kind.to_ascii_lowercase(), place, who, permissions })
    }

    /// Whether it is for this user, at a place.
    fn is_for(&self, who: &Who, place: char) -> bool {
        let is = |number: u64| self.who == number.to_string();
        self.place == place
            && match self.kind {
                'u' => is(who.user),
                'g' => who.groups.iter().any(|group| is(*group)),
                'e' => true,
                _ => false,
            }
    }

    /// The permissions, without the sets of them.
    fn single(&self) -> impl Iterator<Item = &str> {
        self.permissions.iter().map(String::as_str).filter(|name| !name.starts_with('@'))
    }

    /// The sets of permissions.
    fn sets(&self) -> impl Iterator<Item = &str> {
        self.permissions.iter().map(String::as_str).filter(|name| name.starts_with('@'))
    }
}

/// Whether a user has a permission (`dsl_deleg_access_impl`). `levels` are the grants of a dataset and of those above
/// it, nearest first. `local`: it is about the first of them itself, not about what is below it.
pub fn permits(levels: &[Vec<Grant>], local: bool, who: &Who, permission: &str) -> bool {
    // Sets that the user has so far, and whether it is known what they are.
    let mut sets: BTreeMap<&str, bool> = BTreeMap::new();
    for (level, grants) in levels.iter().enumerate() {
        let place = if level == 0 && local { LOCAL } else { BELOW };
        let own = || grants.iter().filter(|grant| grant.is_for(who, place));
        for set in own().flat_map(Grant::sets) {
            sets.entry(set).or_default();
        }
        if in_sets(grants, &mut sets, permission)
            || own().flat_map(Grant::single).any(|granted| granted == permission)
        {
            return true;
        }
    }
    false
}

/// Whether a permission is in sets as these grants define them, or in sets that are in these.
fn in_sets<'g>(grants: &'g [Grant], sets: &mut BTreeMap<&'g str, bool>, permission: &str) -> bool {
    let unknown = sets.iter().filter(|(_, known)| !**known);
    let mut waiting: Vec<&str> = unknown.map(|(set, _)| *set).collect();
    while let Some(set) = waiting.pop() {
        let mut defined = false;
        for grant in grants.iter().filter(|grant| grant.kind == 's' && grant.who == set) {
            defined = true;
            if grant.single().any(|granted| granted == permission) {
                return true;
            }
            for inner in grant.sets() {
                if !sets.contains_key(inner) {
                    sets.insert(inner, false);
                    waiting.push(inner);
                }
            }
        }
        // One that is not defined here may be above.
        if defined && let Some(known) = sets.get_mut(set) {
            *known = true;
        }
    }
    false
}

impl Dsl {
    /// Whether a user has a permission on a file system, volume or snapshot.
    ///
    /// # Errors
    /// The MOS cannot be read.
    pub fn permits(&self, d: &Dataset, who: &Who, permission: &str) -> Result<bool> {
        let levels: Vec<_> = self.grants_of(d)?.into_iter().map(|(_, grants)| grants).collect();
        Ok(permits(&levels, d.kind != DatasetKind::Snapshot, who, permission))
    }

    /// Whether a user has a permission on what the user makes below a file system: creators have what the file
    /// systems above grant to creators (`dsl_deleg_set_create_perms`).
    ///
    /// # Errors
    /// The MOS cannot be read.
    pub fn permits_new(&self, parent: &Dataset, who: &Who, permission: &str) -> Result<bool> {
        let above: Vec<_> = self.grants_of(parent)?.into_iter().map(|(_, grants)| grants).collect();
        let creators = above.iter().flatten().filter(|grant| grant.kind == 'c');
        let own = creators.map(|grant| Grant {
            kind: 'u',
            place: LOCAL,
            who: who.user.to_string(),
            permissions: grant.permissions.clone(),
        });
        let levels: Vec<Vec<Grant>> = std::iter::once(own.collect()).chain(above.clone()).collect();
        Ok(permits(&levels, true, who, permission))
    }

    /// The permissions that were granted on a dataset and on those above it, nearest first: names of
    /// datasets with what is granted there. Those without grants are left out.
    ///
    /// # Errors
    /// The MOS cannot be read.
    pub fn permissions(&self, d: &Dataset) -> Result<Vec<(String, Vec<Grant>)>> {
        let mut found = self.grants_of(d)?;
        found.retain(|(_, grants)| !grants.is_empty());
        Ok(found)
    }

    /// The grants of a dataset and of those above it, nearest first, with their names.
    fn grants_of(&self, d: &Dataset) -> Result<Vec<(String, Vec<Grant>)>> {
        let mut found = Vec::new();
        let end = d.name.find(['@', '#']).unwrap_or(d.name.len());
        let mut name = d.name.get(..end).unwrap_or_default();
        loop {
            let grants = match self.find(name)? {
                Some(dataset) => self.grants(dataset.dir.deleg)?,
                None => Vec::new(),
            };
            found.push((name.to_string(), grants));
            match name.rsplit_once('/') {
                Some((above, _)) => name = above,
                None => return Ok(found),
            }
        }
    }

    fn grants(&self, object: u64) -> Result<Vec<Grant>> {
        if object == 0 {
            return Ok(Vec::new());
        }
        let mut grants = Vec::new();
        for entry in self.zap(object)?.entries()? {
            let Some(list) = entry.u64().filter(|n| *n != 0) else { continue };
            grants.extend(Grant::of(&name_of(&entry), &self.zap(list)?.entries()?));
        }
        grants.sort_by(|a, b| (&a.who, a.kind, a.place).cmp(&(&b.who, b.kind, b.place)));
        Ok(grants)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(list: &[(&str, &str)]) -> Vec<Grant> {
        let of = |(key, permissions): &(&str, &str)| {
            let mut grant = Grant::of(key, &[]).unwrap();
            grant.permissions = permissions.split(',').map(String::from).collect();
            grant
        };
        list.iter().map(of).collect()
    }

    #[test]
    fn permissions_are_had_by_users_groups_and_everyone_here_and_below() {
        let who = Who { user: 7, groups: vec![30, 31] };
        let levels = [
            grants(&[("ul$7", "create"), ("ud$7", "rename"), ("gl$31", "mount"), ("el$", "diff")]),
            grants(&[("ud$7", "send"), ("ul$7", "hold"), ("gd$32", "clone"), ("ed$", "release")]),
        ];
        let has = |permission: &str| permits(&levels, true, &who, permission);
        for permission in ["create", "mount", "diff", "send", "release"] {
            assert!(has(permission), "{permission}");
        }
        for permission in ["rename", "hold", "clone", "promote", ""] {
            assert!(!has(permission), "{permission}");
        }
        // What is below the first, such as a snapshot.
        assert!(permits(&levels, false, &who, "rename"));
        assert!(!permits(&levels, false, &who, "create"));
        assert!(!permits(&levels, true, &Who { user: 8, groups: vec![7] }, "create"));
    }

    #[test]
    fn sets_are_what_the_nearest_definition_says() {
        let who = Who { user: 7, groups: Vec::new() };
        let levels = [
            grants(&[("Ul$7", "@a"), ("S-$@a", "@b"), ("s-$@b", "create")]),
            grants(&[("s-$@a", "destroy"), ("Ed$", "@c,@d"), ("S-$@d", "@d,@e")]),
            grants(&[("s-$@c", "send"), ("s-$@b", "hold"), ("s-$@e", "diff")]),
        ];
        let has = |permission: &str| permits(&levels, true, &who, permission);
        assert!(has("create") && has("send"));
        // Defined nearer already; a set is not a permission; sets may be in themselves.
        assert!(!has("destroy") && !has("hold") && !has("@a") && !has("@c"));
        assert!(!permits(&levels[..2], true, &who, "diff") && has("diff"));
    }
}
