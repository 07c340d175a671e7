//! What speaks against using devices (`is_device_in_use`, `check_replication`): that others use them, and that
//! redundancy does not match.
//!
//! `-f` overrides most of it, but not that a device is in use: by a pool that is imported,
//! as a spare, or through a loop device that is mounted.

use super::devices::LeafKind;
use super::found::{Found, Leaf, Role};
use super::probe;
use super::{Class, CreateError, CreateSpec, Imported, Redundancy, VdevSpec};
use cenote_format::features::{Feature, OBJECT_VDEV};
use cenote_format::nvlist::NvList;
use cenote_pool::config;
use cenote_vdev::{Device, LabelOwner, LabelState, ReadReq, all_owners, label_owner, read_labels};
use std::collections::HashSet;
use std::io;
use std::path::Path;

/// Refuses a layout that needs a feature which the pool does not get.
///
/// # Errors
/// [`CreateError::Refused`].
pub fn check_features(spec: &CreateSpec<'_>, features: &[&Feature]) -> Result<(), CreateError> {
    let classes = spec.layout.tops.iter().any(|t| matches!(t.class, Class::Special | Class::Dedup));
    let has = |name: &str| features.iter().any(|f| f.name == name);
    let draid = spec.layout.tops.iter().any(|t| matches!(t.redundancy, Redundancy::Draid(_)));
    if classes && !has("allocation_classes") || draid && !has("draid") {
        return Err(spec.refuse("operation not supported on this type of pool"));
    }
    Ok(())
}

/// These features, and the one that says that a pool is in an object store, if it is.
pub fn with_needed(
    prepared: &super::Prepared,
    features: &[&'static Feature],
) -> Vec<&'static Feature> {
    let mut all = features.to_vec();
    if config::has_objects(&prepared.root) {
        all.push(&OBJECT_VDEV);
    }
    all
}

/// Refuses RAID-Z and dRAID in a pool that has removed vdevs (`spa_vdev_add`).
///
/// # Errors
/// [`CreateError::Refused`].
pub(super) fn beside_removed(spec: &CreateSpec<'_>) -> Result<(), CreateError> {
    let tops = spec.pool.map(config::tops).unwrap_or_default();
    let removed =
        |top: &NvList| top.str("type") == Some("indirect") || config::flag(top, "removing");
    let removed = tops.iter().any(removed);
    let raidz = spec
        .layout
        .tops
        .iter()
        .any(|t| matches!(t.redundancy, Redundancy::RaidZ(_) | Redundancy::Draid(_)));
    if removed && raidz {
        return Err(spec.refuse(
            "invalid config; a pool with removing/removed vdevs does not support adding raidz or \
             dRAID vdevs",
        ));
    }
    Ok(())
}

fn is_object(leaf: &Leaf) -> bool {
    leaf.facts.kind == LeafKind::Object
}

/// Something is kept in an object store that should become a new pool's.
pub(super) fn not_empty(spec: &CreateSpec<'_>, path: &Path) -> CreateError {
    let path = path.display();
    spec.refuse(format!("{path} is not empty: delete what is below it, or choose another place"))
}

/// Refuses what object stores cannot be used for. A pool has its data in one of them, or in none. What joins a vdev holds what that holds:
/// only the store itself takes nothing beside it, which is for the engine to say.
///
/// # Errors
/// [`CreateError::Refused`].
pub(super) fn objects(spec: &CreateSpec<'_>, found: &Found, role: Role) -> Result<(), CreateError> {
    let has_some = spec.pool.and_then(|p| p.list("vdev_tree")).is_some_and(config::has_objects);
    let normal = found.tops.iter().filter(|(top, _)| top.class == Class::Normal).count();
    let mut all = found.all().filter(|leaf| is_object(leaf));
    let Some(leaf) = all.next() else {
        return match has_some && normal > 0 && role == Role::New {
            true => Err(spec.refuse("the data of the pool is in an object store: only log, special, dedup and cache devices can be added")),
            false => Ok(()),
        };
    };
    let is_whole = |(top, leaves): &(VdevSpec, Vec<Leaf>)| {
        leaves.iter().any(is_object)
            && (top.redundancy, top.class) == (Redundancy::Single, Class::Normal)
    };
    let why = if spec.pool.is_some() {
        "object stores can be given to new pools only"
    } else if !found.tops.iter().any(is_whole) {
        "an object store can hold the data of a pool by itself, and be nothing else"
    } else if normal > 1 || all.next().is_some() {
        "a pool with an object store has its data there alone: others can be log, special, dedup and cache devices"
    } else if spec
        .devices
        .open(&leaf.path)
        .is_ok_and(|device| device.growing().is_some_and(|g| !g.is_new()))
    {
        return Err(not_empty(spec, &leaf.path));
    } else {
        return Ok(());
    };
    Err(spec.refuse(why))
}

/// Bytes by which devices of a group may differ in size.
const FUZZ: u64 = 16 << 20;
/// Bytes at each end of a device that are zeros if it is blank.
const EDGE: u64 = 4 << 20;

/// A pool that a device belongs to, by its name.
enum User<'a> {
    /// It is imported.
    Active(&'a str),
    /// It is imported, and the device a spare of it.
    Spare(&'a str),
    /// It is imported, and the device a cache device of it.
    Cache(&'a str),
    /// It was exported.
    Exported(&'a str),
    /// It is imported elsewhere, or was not exported.
    Potential(&'a str),
}

/// The pool that uses a device with this label.
fn user<'a>(owner: &'a LabelOwner, imported: &'a [Imported]) -> Option<User<'a>> {
    let name = owner.pool_name.as_deref().unwrap_or_default();
    let with = |has: fn(&Imported) -> &Vec<u64>| {
        imported.iter().find(|p| has(p).contains(&owner.guid)).map(|p| p.name.as_str())
    };
    let pool = imported.iter().find(|p| Some(p.guid) == owner.pool_guid);
    match (owner.state, pool) {
        (LabelState::Exported, None) => Some(User::Exported(name)),
        (LabelState::Exported, Some(pool)) => Some(User::Active(&pool.name)),
        (LabelState::Active, None) => Some(User::Potential(name)),
        // A device that was taken out while it was away is free.
        (LabelState::Active, Some(pool)) if !pool.devices.contains(&owner.guid) => None,
        (LabelState::Active, Some(pool)) if config::flag(&owner.config, "is_spare") => {
            Some(User::Spare(&pool.name))
        }
        (LabelState::Active, Some(pool)) => Some(User::Active(&pool.name)),
        (LabelState::Spare, _) => with(|p| &p.spares).map(User::Spare),
        (LabelState::Cache, _) => with(|p| &p.caches).map(User::Cache),
        (LabelState::Destroyed, _) => None,
    }
}

/// What speaks against taking a device from its user; `None`: nothing.
fn objection(spec: &CreateSpec<'_>, leaf: &Leaf, user: &User<'_>) -> Option<String> {
    let path = leaf.path.display();
    let (state, pool) = match *user {
        User::Potential(_) | User::Exported(_) if spec.force.in_use => return None,
        // Spares are shared.
        User::Spare(_) if leaf.spare => return None,
        User::Spare(pool) => {
            return Some(format!("{path} is reserved as a hot spare for pool {pool}"));
        }
        User::Active(pool) => ("active", pool),
        User::Cache(pool) => ("unknown", pool),
        User::Exported(pool) => ("exported", pool),
        User::Potential(pool) => ("potentially active", pool),
    };
    Some(format!("{path} is part of {state} pool '{pool}'"))
}

fn owner(spec: &CreateSpec<'_>, path: &Path) -> Option<LabelOwner> {
    label_owner(spec.devices.open(path).ok()?.as_ref()).ok()?
}

/// What is on a device that belongs to no pool; `-f` overrides it.
fn content(spec: &CreateSpec<'_>, leaf: &Leaf) -> Option<String> {
    if spec.force.in_use || is_object(leaf) {
        return None;
    }
    let found = probe::content(spec.devices.open(&leaf.path).ok()?.as_ref())?;
    Some(format!("{} contains {found}", leaf.path.display()))
}

/// What is on a device that would be taken without being asked for, in words that follow `it`; `None`: it is blank, with only zeros at
/// its ends. Labels of any state are named, damaged ones as well.
///
/// # Errors
/// It cannot be read.
pub(crate) fn what_is_on(device: &dyn Device) -> io::Result<Option<String>> {
    let owner = all_owners(device)?.into_iter().next();
    let pool = |owner: LabelOwner| match owner.pool_name {
        Some(name) => format!("has a label of pool '{name}'"),
        None => "has a label of a pool".into(),
    };
    let labelled = owner.map(pool).or_else(|| {
        let good = read_labels(device).ok().flatten();
        good.map(|_| "has a label of a pool".into())
    });
    let found = labelled.or_else(|| Some(format!("contains {}", probe::content(device)?)));
    match found {
        None if !is_zero(device)? => Ok(Some("is not empty".into())),
        found => Ok(found),
    }
}

/// Whether there are only zeros where labels would be, at both ends of a device. Not all that is kept on a device is known by a
/// signature.
fn is_zero(device: &dyn Device) -> io::Result<bool> {
    let len = EDGE.min(device.size());
    let len_of = usize::try_from(len).map_err(io::Error::other)?;
    let mut reads = [0, device.size() - len].map(|at| ReadReq::new(at, len_of));
    device.read_batch(&mut reads);
    let zero = |read: ReadReq| Ok(read.take()?.bytes().iter().all(|byte| *byte == 0));
    reads.into_iter().try_fold(true, |all, read| zero(read).map(|is| all && is))
}

/// Refuses devices that are part of other pools, or that have something else on them (`vdev_inuse`).
pub(super) fn in_use(spec: &CreateSpec<'_>, found: &Found) -> Result<(), CreateError> {
    let mut errors = Vec::new();
    for leaf in found.all() {
        let Some(owner) = owner(spec, &leaf.path) else {
            errors.extend(content(spec, leaf));
            continue;
        };
        let user = user(&owner, spec.imported);
        errors.extend(user.and_then(|user| objection(spec, leaf, &user)));
    }
    overridable(spec, errors)
}

/// Refuses files that have a loop device over them; `-f` overrides those that are idle.
pub(super) fn loop_devices(spec: &CreateSpec<'_>, found: &Found) -> Result<(), CreateError> {
    let mut errors = Vec::new();
    for leaf in found.all().filter(|leaf| leaf.facts.kind == LeafKind::File) {
        let users = spec.devices.loop_users(&leaf.facts);
        for user in users.iter().filter(|user| user.busy || !spec.force.in_use) {
            let (path, device) = (leaf.path.display(), user.device.display());
            let how = if user.busy { ", which is mounted or in use" } else { "" };
            errors.push(format!("{path} is behind the loop device {device}{how}"));
        }
    }
    overridable(spec, errors)
}

fn overridable(spec: &CreateSpec<'_>, errors: Vec<String>) -> Result<(), CreateError> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(CreateError::Override { forced: spec.force.in_use, errors })
}

/// The guid of a spare that an imported pool has already: it is shared, and stays as it is.
pub(super) fn shared_spare(spec: &CreateSpec<'_>, leaf: &Leaf) -> Option<u64> {
    let owner = owner(spec, &leaf.path)?;
    let in_some = spec.imported.iter().any(|p| p.spares.contains(&owner.guid));
    in_some.then_some(owner.guid)
}

/// Whether a device is a spare of the very pool that gets it.
fn spare_already(spec: &CreateSpec<'_>, leaf: &Leaf) -> bool {
    let pool = spec.pool.map(|config| config::number(config, "pool_guid"));
    let pool = spec.imported.iter().find(|p| Some(p.guid) == pool);
    match (pool, owner(spec, &leaf.path)) {
        (Some(pool), Some(owner)) => pool.spares.contains(&owner.guid),
        _ => false,
    }
}

/// Refuses a device that is named twice, or that the pool has as a spare.
pub(super) fn same_device(spec: &CreateSpec<'_>, found: &Found) -> Result<(), CreateError> {
    let mut seen = HashSet::new();
    let new = |leaf: &Leaf| seen.insert(leaf.facts.identity) && !spare_already(spec, leaf);
    match found.all().all(new) {
        true => Ok(()),
        false => Err(refers_to_same(spec)),
    }
}

pub(super) fn refers_to_same(spec: &CreateSpec<'_>) -> CreateError {
    spec.refuse(match spec.pool {
        None => {
            "one or more vdevs refer to the same device, or one of\n\
             the devices is part of an active md or lvm device"
        }
        Some(_) => "one or more vdevs refer to the same device",
    })
}

/// What a top-level vdev withstands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level<'a> {
    kind: &'a str,
    children: u64,
    parity: u64,
}

impl<'a> Level<'a> {
    /// Whether each is RAID-Z or dRAID: how wide they are says nothing then (`is_raidz_draid`).
    fn raidz_and_draid(self, other: Level<'a>) -> bool {
        [self.kind, other.kind].iter().all(|kind| matches!(*kind, "raidz" | "draid"))
    }

    /// The RAID-Z or dRAID, and the mirror, if that is what the two are.
    fn raidz_and_mirror(self, other: Level<'a>) -> Option<(Level<'a>, Level<'a>)> {
        match (self.kind, other.kind) {
            ("raidz" | "draid", "mirror") => Some((self, other)),
            ("mirror", "raidz" | "draid") => Some((other, self)),
            _ => None,
        }
    }
}

/// One device of a group, as far as it matters here.
struct Member<'a> {
    kind: &'a str,
    /// Bytes; 0: not known.
    size: u64,
}

/// Refuses groups whose redundancy differs among them or from what the pool has, unless forced;
/// and new pools without a vdev for data.
pub(super) fn replication(spec: &CreateSpec<'_>, found: &Found) -> Result<(), CreateError> {
    if !spec.force.replication {
        levels(spec, found)?;
    }
    let normal = found.tops.iter().any(|(top, _)| top.class == Class::Normal);
    if spec.pool.is_none() && !normal {
        if found.tops.is_empty() {
            return Err(CreateError::spec("at least one toplevel vdev must be specified"));
        }
        let error = "at least one general top-level vdev must be specified".to_string();
        return overridable(spec, vec![error]);
    }
    Ok(())
}

/// Refuses top-level vdevs that withstand something else than the others, or than the pool's (`get_replication`).
fn levels(spec: &CreateSpec<'_>, found: &Found) -> Result<(), CreateError> {
    let now = match spec.pool.and_then(|p| p.list("vdev_tree")) {
        None => None,
        // A pool that does not match itself sets no standard.
        Some(root) => match of_pool(spec, root) {
            None => return Ok(()),
            level => level,
        },
    };
    let mut errors = Vec::new();
    let mut last: Option<Level<'_>> = None;
    // Other vdevs never withstand what an object store does.
    let compared = |(top, leaves): &&(VdevSpec, Vec<Leaf>)| {
        top.class != Class::Log && !leaves.iter().any(is_object)
    };
    for (top, leaves) in found.tops.iter().filter(compared) {
        let kind = |leaf: &Leaf| leaf.facts.kind.name();
        let members: Vec<Member<'_>> =
            leaves.iter().map(|l| Member { kind: kind(l), size: l.size }).collect();
        let (name, parity) = match (top.redundancy, leaves.first()) {
            (Redundancy::Single, Some(leaf)) => (kind(leaf), 0),
            (Redundancy::RaidZ(parity), _) => ("raidz", u64::from(parity)),
            (Redundancy::Draid(shape), _) => ("draid", shape.nparity),
            _ => ("mirror", 0),
        };
        let level = Level { kind: name, children: members.len() as u64, parity };
        errors.extend(group_error(level, &members));
        errors.extend(last.and_then(|last| differ(last, level)));
        last = Some(level);
    }
    overridable(spec, errors)?;
    match (now, last) {
        (Some(now), Some(new)) => {
            overridable(spec, differ_from_pool(now, new).into_iter().collect())
        }
        _ => Ok(()),
    }
}

/// What the pool's vdevs withstand, if they all agree.
fn of_pool<'a>(spec: &CreateSpec<'_>, root: &'a NvList) -> Option<Level<'a>> {
    let mut last = None;
    for top in config::children(root) {
        let kind = top.str("type").unwrap_or_default();
        if config::flag(top, "is_log") || matches!(kind, "hole" | "indirect" | "object") {
            continue;
        }
        let children = config::children(top);
        let size = |child: &NvList| {
            let path = config::path(child)?;
            Some(spec.devices.open(&path).ok()?.size())
        };
        let member = |child: &'a NvList| Member {
            kind: child.str("type").unwrap_or_default(),
            size: size(child).unwrap_or(0),
        };
        let members: Vec<Member<'_>> = children.iter().map(member).collect();
        let level = Level {
            kind,
            children: (children.len() as u64).max(1),
            parity: config::number(top, "nparity"),
        };
        // Files beside disks are no reason to disregard a pool.
        let uneven = sizes_differ(&members);
        if uneven || last.is_some_and(|last| differ(last, level).is_some()) {
            return None;
        }
        last = Some(level);
    }
    last
}

fn sizes_differ(members: &[Member<'_>]) -> bool {
    let sizes: Vec<u64> = members.iter().map(|m| m.size).filter(|s| *s != 0).collect();
    sizes.windows(2).any(|w| matches!(w, [a, b] if a.abs_diff(*b) > FUZZ))
}

/// What is wrong with a group by itself; one thing is enough.
fn group_error(level: Level<'_>, members: &[Member<'_>]) -> Option<String> {
    let kind = level.kind;
    for (i, pair) in members.windows(2).enumerate() {
        let [a, b] = pair else { continue };
        if a.kind != b.kind {
            return Some(format!(
                "mismatched replication level: {kind} contains both files and devices"
            ));
        }
        if sizes_differ(members.get(..i + 2).unwrap_or_default()) {
            return Some(format!("{kind} contains devices of different sizes"));
        }
    }
    None
}

/// How two new groups differ.
fn differ(a: Level<'_>, b: Level<'_>) -> Option<String> {
    let what = if let Some((raidz, mirror)) = a.raidz_and_mirror(b) {
        let copies = mirror.children.saturating_sub(1);
        if raidz.parity == copies {
            return None;
        }
        format!(
            "{} and mirror vdevs with different redundancy, {} vs. {copies} ({}-way) are present",
            raidz.kind, raidz.parity, mirror.children
        )
    } else if a.raidz_and_draid(b) {
        if a.parity == b.parity {
            return None;
        }
        format!(
            "{} and {} vdevs with different redundancy, {} vs. {} are present",
            a.kind, b.kind, a.parity, b.parity
        )
    } else if a.kind != b.kind {
        format!("both {} and {} vdevs are present", a.kind, b.kind)
    } else if a.children != b.children {
        format!("both {}-way and {}-way {} vdevs are present", a.children, b.children, b.kind)
    } else {
        return None;
    };
    Some(format!("mismatched replication level: {what}"))
}

/// How what is added differs from what the pool has.
fn differ_from_pool(now: Level<'_>, new: Level<'_>) -> Option<String> {
    let what = if let Some((raidz, mirror)) = now.raidz_and_mirror(new) {
        let copies = mirror.children.saturating_sub(1);
        if raidz.parity == copies {
            return None;
        }
        format!(
            "pool and new vdev with different redundancy, {} and mirror vdevs, {} vs. {copies} \
             ({}-way)",
            raidz.kind, raidz.parity, mirror.children
        )
    } else if now.raidz_and_draid(new) {
        if now.parity == new.parity {
            return None;
        }
        format!(
            "pool and new vdev with different redundancy, {} and {} vdevs, {} vs. {}",
            now.kind, new.kind, now.parity, new.parity
        )
    } else if now.kind != new.kind {
        format!("pool uses {} and new vdev is {}", now.kind, new.kind)
    } else if now.children != new.children {
        format!(
            "pool uses {}-way {} and new vdev uses {}-way {}",
            now.children, now.kind, new.children, new.kind
        )
    } else {
        return None;
    };
    Some(format!("mismatched replication level: {what}"))
}
