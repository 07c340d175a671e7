//! From devices to the config of vdevs: guids, sector sizes, space, metaslabs.
//!
//! `ashift` is chosen as OpenZFS does when it opens a vdev for the first time. A leaf has the one that
//! was asked for, or that of its logical sectors if that is more; above it the largest counts. Where
//! no `ashift` was asked for, the top-level vdev takes that of the physical sectors instead, up to
//! [`VDEV_MAX_AUTO_ASHIFT`](tunables::VDEV_MAX_AUTO_ASHIFT).

use super::devices::{LeafKind, not_found, words};
use super::found::{Found, Leaf, Role};
use super::populate::random;
use super::prepared::{NewDevice, Prepared};
use super::{Class, CreateError, CreateSpec, MIN_DEVICE, Redundancy, VdevSpec};
use super::{check, draid};
use crate::space_write::plan::{plan, top_level_asize};
use crate::tunables;
use cenote_format::LABEL_START;
use cenote_format::abd::Abd;
use cenote_format::invariant::broken;
use cenote_format::label::{LABEL_END, LABEL_SIZE};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::config::{self, ASHIFTS, STATE_L2CACHE, STATE_SPARE};
use cenote_pool::config_write::PoolConfig;
use cenote_vdev::{Device, LabelState, WriteReq, init_labels, label_owner};
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// See [`super::prepare`].
pub(super) fn prepare(spec: &CreateSpec<'_>, role: Role) -> Result<Prepared, CreateError> {
    if spec.ashift != 0 && !ASHIFTS.contains(&spec.ashift) {
        return Err(CreateError::Spec(format!(
            "invalid 'ashift={}' property: only values between {} and {} are allowed.",
            spec.ashift,
            ASHIFTS.start(),
            ASHIFTS.end()
        )));
    }
    check::beside_removed(spec)?;
    let mut found = find(spec)?;
    check::objects(spec, &found, role)?;
    check::in_use(spec, &found)?;
    for leaf in found.all_mut() {
        // For the sizes; whether it can be written is found out later.
        leaf.size = spec.devices.open(&leaf.path).map_or(0, |d| d.size());
    }
    check::replication(spec, &found)?;
    check::same_device(spec, &found)?;
    let prepared = assemble(spec, &found)?;
    // A pool behind a loop device was said to be in use by now, which tells more.
    check::loop_devices(spec, &found)?;
    Ok(prepared)
}

/// Finds everything that the layout names.
fn find(spec: &CreateSpec<'_>) -> Result<Found, CreateError> {
    let find = |name: &Path, spare| -> Result<Leaf, CreateError> {
        let (path, facts) = spec.devices.find(name).map_err(|e| not_found(name, &e))?;
        Ok(Leaf { path, facts, spare, size: 0 })
    };
    let many = |names: &[PathBuf], spare| -> Result<Vec<Leaf>, CreateError> {
        names.iter().map(|n| find(n, spare)).collect()
    };
    let mut tops = Vec::new();
    for top in &spec.layout.tops {
        let leaves = many(&top.devices, false)?;
        check_shape(top)?;
        tops.push((top.clone(), leaves));
    }
    let spares = many(&spec.layout.spares, true)?;
    let caches = many(&spec.layout.caches, false)?;
    Ok(Found { tops, spares, caches })
}

/// The parser sees to this, but layouts are made by others too.
fn check_shape(top: &VdevSpec) -> Result<(), CreateError> {
    let (least, most, name) = match top.redundancy {
        Redundancy::Single => (1, 1, "a device".to_string()),
        Redundancy::Mirror => (2, usize::MAX, "mirror".to_string()),
        Redundancy::RaidZ(parity @ 1..=3) => {
            (usize::from(parity) + 1, 255, format!("raidz{parity}"))
        }
        Redundancy::Draid(shape) => {
            let devices = usize::try_from(shape.children).unwrap_or(usize::MAX);
            (devices, devices, shape.name())
        }
        Redundancy::RaidZ(parity) => {
            return Err(CreateError::spec(format!("raidz{parity} does not exist")));
        }
    };
    if top.devices.len() < least {
        return Err(CreateError::spec(format!("{name} requires at least {least} devices")));
    }
    if top.devices.len() > most {
        return Err(CreateError::spec(format!("{name} supports no more than {most} devices")));
    }
    Ok(())
}

/// Opens all for writing and makes the config.
fn assemble(spec: &CreateSpec<'_>, found: &Found) -> Result<Prepared, CreateError> {
    let existing = spec.pool.and_then(|p| p.list("vdev_tree"));
    let mut tops = existing.map_or_else(Vec::new, |tree| config::children(tree).to_vec());
    let mut guids: HashSet<u64> = HashSet::new();
    let pool_guid = match spec.pool {
        Some(pool) => config::number(pool, "pool_guid"),
        None => new_guid(spec, &mut guids)?,
    };
    let mut devices = HashMap::new();
    let (mut new_tops, mut distributed) = (Vec::new(), Vec::new());
    for (top, leaves) in &found.tops {
        let id = tops.len() as u64;
        let sizes = open_all(spec, leaves)?;
        let (opened, sizes): (Vec<_>, Vec<_>) = sizes.into_iter().unzip();
        let mut list = top_config(spec, top, leaves, &sizes, id)?;
        name_all(spec, &mut list, &mut guids)?;
        if let Redundancy::Draid(shape) = &top.redundancy {
            distributed.extend(draid::spares(&list, shape));
        }
        let mut opened = opened.into_iter();
        config::for_each_leaf(&list, &mut |leaf| {
            devices.extend(opened.next().map(|d| (config::number(leaf, "guid"), d)));
        });
        tops.push(list);
        new_tops.push(id);
    }
    let mut root = existing.cloned().unwrap_or_default();
    if existing.is_none() {
        root.set("type", NvValue::String("root".into()));
        root.set("id", NvValue::Uint64(0));
        root.set("guid", NvValue::Uint64(pool_guid));
        root.set("create_txg", NvValue::Uint64(spec.txg));
    }
    root.set("children", NvValue::NvListArray(tops));
    let mut prepared = Prepared {
        pool_guid,
        root,
        new_tops,
        spares: Vec::new(),
        caches: Vec::new(),
        devices,
        shared: HashMap::new(),
        txg: spec.txg,
    };
    for leaf in &found.spares {
        let list = aux(spec, leaf, &mut guids, &mut prepared.devices)?;
        if let Ok(device) = spec.devices.open(&leaf.path) {
            prepared.shared.insert(config::number(&list, "guid"), device);
        }
        prepared.spares.push(list);
    }
    for mut spare in distributed {
        name_all(spec, &mut spare, &mut guids)?;
        prepared.spares.push(spare);
    }
    for leaf in &found.caches {
        let list = aux(spec, leaf, &mut guids, &mut prepared.devices)?;
        prepared.caches.push(list);
    }
    Ok(prepared)
}

type Sized = (Arc<dyn Device>, u64);

fn open_all(spec: &CreateSpec<'_>, leaves: &[Leaf]) -> Result<Vec<Sized>, CreateError> {
    leaves.iter().map(|leaf| open(spec, leaf)).collect()
}

/// Opens one for writing; its size in whole labels.
fn open(spec: &CreateSpec<'_>, leaf: &Leaf) -> Result<Sized, CreateError> {
    let device = spec.devices.open_rw(&leaf.path).map_err(|e| cannot_have(spec, leaf, &e))?;
    // Another host may have made a pool there since it was looked at.
    if device.growing().is_some_and(|growing| !growing.is_new()) {
        return Err(check::not_empty(spec, &leaf.path));
    }
    let size = device.size() / LABEL_SIZE * LABEL_SIZE;
    if size < MIN_DEVICE {
        return Err(too_small(spec));
    }
    Ok((device, size))
}

fn too_small(spec: &CreateSpec<'_>) -> CreateError {
    spec.refuse(match spec.pool {
        None => "one or more devices is less than the minimum size (64M)",
        Some(_) => "device is less than the minimum size (64M)",
    })
}

fn cannot_have(spec: &CreateSpec<'_>, leaf: &Leaf, error: &io::Error) -> CreateError {
    if error.kind() != io::ErrorKind::ResourceBusy {
        let (path, why) = (leaf.path.display(), words(error));
        return CreateError::Spec(format!("cannot open '{path}': {why}"));
    }
    // A pool that uses it says so in its label. One that was exported does not use it: then the user is
    // a file system, swap or the like.
    let owner = spec.devices.open(&leaf.path).and_then(|d| label_owner(d.as_ref())).ok().flatten();
    let active = owner.filter(|owner| owner.state == LabelState::Active);
    match active.and_then(|owner| owner.pool_name) {
        Some(pool) => CreateError::Override {
            forced: spec.force.in_use,
            errors: vec![format!("{} is part of active pool '{pool}'", leaf.path.display())],
        },
        None => check::refers_to_same(spec),
    }
}

/// A guid that is not 0 and not in use (`spa_generate_guid`, `spa_guid_exists`).
fn new_guid(spec: &CreateSpec<'_>, guids: &mut HashSet<u64>) -> Result<u64, CreateError> {
    loop {
        let guid = random(spec.chance)?;
        if guids.insert(guid) {
            return Ok(guid);
        }
    }
}

/// Gives guids to a vdev and all below it.
fn name_all(
    spec: &CreateSpec<'_>,
    vdev: &mut NvList,
    guids: &mut HashSet<u64>,
) -> Result<(), CreateError> {
    vdev.set("guid", NvValue::Uint64(new_guid(spec, guids)?));
    if let Some((_, NvValue::NvListArray(children))) =
        vdev.pairs.iter_mut().find(|(n, _)| n == "children")
    {
        for child in children {
            name_all(spec, child, guids)?;
        }
    }
    Ok(())
}

fn start(list: &mut NvList, kind: &str, id: Option<u64>) {
    list.set("type", NvValue::String(kind.into()));
    if let Some(id) = id {
        list.set("id", NvValue::Uint64(id));
    }
    // In its place; set by `name_all`.
    list.set("guid", NvValue::Uint64(0));
}

/// The config of a leaf (`make_leaf_vdev`).
fn leaf_config(leaf: &Leaf, id: Option<u64>) -> NvList {
    let mut list = NvList::default();
    let disk = leaf.facts.kind == LeafKind::Disk;
    start(&mut list, leaf.facts.kind.name(), id);
    list.set("path", NvValue::String(leaf.path.display().to_string()));
    if disk {
        list.set("whole_disk", NvValue::Uint64(0));
    }
    list
}

/// The config of a top-level vdev over opened devices of these sizes, without guids (`vdev_config_generate`).
fn top_config(
    spec: &CreateSpec<'_>,
    top: &VdevSpec,
    leaves: &[Leaf],
    sizes: &[u64],
    id: u64,
) -> Result<NvList, CreateError> {
    let (kind, shape) = match &top.redundancy {
        Redundancy::Single => ("single", None),
        Redundancy::Mirror => ("mirror", None),
        Redundancy::RaidZ(_) => ("raidz", None),
        Redundancy::Draid(shape) => ("draid", Some(shape)),
    };
    let children = leaves.iter().enumerate().map(|(i, leaf)| {
        let mut list = leaf_config(leaf, Some(i as u64));
        list.set("create_txg", NvValue::Uint64(spec.txg));
        list
    });
    let children: Vec<NvList> = children.collect();
    let mut list = match (top.redundancy, leaves.first()) {
        (Redundancy::Single, Some(leaf)) => leaf_config(leaf, Some(id)),
        _ => {
            let mut list = NvList::default();
            start(&mut list, kind, Some(id));
            list
        }
    };
    if let Redundancy::RaidZ(parity) = top.redundancy {
        list.set("nparity", NvValue::Uint64(parity.into()));
    }
    if let Some(shape) = shape {
        draid::set(&mut list, shape);
    }
    let ashift = choose_ashift(spec.ashift, leaves)
        .ok_or_else(|| spec.refuse("block size out of range or does not match"))?;
    let asize = top_level_asize(kind, shape, sizes);
    // OpenZFS opens no smaller one (`vdev_open`): of dRAID little may be left of large devices.
    if asize < MIN_DEVICE - LABEL_START - LABEL_END {
        return Err(too_small(spec));
    }
    let plan = plan(asize);
    if plan.ms_count == 0 {
        return Err(spec.refuse("one or more devices is too small"));
    }
    list.set("metaslab_array", NvValue::Uint64(0));
    let shift = top.metaslab_shift.unwrap_or(plan.ms_shift);
    list.set("metaslab_shift", NvValue::Uint64(shift.into()));
    list.set("ashift", NvValue::Uint64(ashift));
    list.set("asize", NvValue::Uint64(plan.asize));
    // The smallest block has a sector in each data column (`vdev_get_min_alloc`).
    let columns = shape.map_or(1, |shape| shape.ndata);
    list.set("min_alloc", NvValue::Uint64(columns << ashift));
    list.set("is_log", NvValue::Uint64((top.class == Class::Log).into()));
    if let Some(bias) = top.class.bias() {
        list.set("alloc_bias", NvValue::String(bias.into()));
    }
    list.set("create_txg", NvValue::Uint64(spec.txg));
    if top.redundancy != Redundancy::Single {
        list.set("children", NvValue::NvListArray(children));
    }
    Ok(list)
}

/// The config of a spare or cache device.
fn aux(
    spec: &CreateSpec<'_>,
    leaf: &Leaf,
    guids: &mut HashSet<u64>,
    devices: &mut HashMap<u64, Arc<dyn Device>>,
) -> Result<NvList, CreateError> {
    let mut list = leaf_config(leaf, None);
    let shared = if leaf.spare { check::shared_spare(spec, leaf) } else { None };
    let guid = match shared {
        Some(guid) => guid,
        None => {
            let (device, _) = open(spec, leaf)?;
            let guid = new_guid(spec, guids)?;
            devices.insert(guid, device);
            guid
        }
    };
    list.set("guid", NvValue::Uint64(guid));
    if leaf.spare {
        list.set("is_spare", NvValue::Uint64(1));
    }
    let ashift = choose_ashift(spec.ashift, std::slice::from_ref(leaf))
        .ok_or_else(|| spec.refuse("block size out of range or does not match"))?;
    list.set("ashift", NvValue::Uint64(ashift));
    Ok(list)
}

/// The `ashift` of a top-level vdev over these leaves (`vdev_best_ashift`); see the head of this file. `None`: there is no
/// `ashift` that the devices can do.
fn choose_ashift(asked: u64, leaves: &[Leaf]) -> Option<u64> {
    let facts = || leaves.iter().map(|l| l.facts);
    let logical = facts().map(|f| f.logical_shift.max(asked)).max()?;
    if asked >= logical {
        return Some(asked);
    }
    let physical = facts().fold(0, |best, f| best_shift(logical, best, f.physical_shift));
    let chosen = match physical {
        p if logical < p && p <= tunables::VDEV_MAX_AUTO_ASHIFT.get() => p,
        _ => logical.max(tunables::VDEV_MIN_AUTO_ASHIFT.get()),
    };
    ASHIFTS.contains(&chosen).then_some(chosen)
}

/// The larger of two that is above `logical` and may be chosen; else the larger.
fn best_shift(logical: u64, a: u64, b: u64) -> u64 {
    let fits = |s: u64| logical < s && s <= tunables::VDEV_MAX_AUTO_ASHIFT.get();
    match (fits(a), fits(b)) {
        (true, false) => a,
        (false, true) => b,
        _ => a.max(b),
    }
}

/// See [`super::write_labels`].
pub(super) fn write_labels(prepared: &Prepared, pool: &PoolConfig) -> io::Result<()> {
    for id in &prepared.new_tops {
        let Some(config) = pool.label(*id, 0) else { continue };
        let Some(tree) = config.list("vdev_tree").cloned() else {
            broken(format_args!("the label of a new device of vdev {id} has no vdev"));
        };
        let is_log = config::flag(&tree, "is_log");
        let mut result = Ok(());
        config::for_each_leaf(&tree, &mut |leaf| {
            let guid = config::number(leaf, "guid");
            let Some(device) = prepared.device(guid) else { return };
            if result.is_ok() {
                let own = device_label(&config, &tree, guid, is_log, prepared.txg);
                result = label(device.as_ref(), &own);
            }
        });
        result?;
    }
    let spares = prepared.spares.iter().map(|c| (c, STATE_SPARE));
    let caches = prepared.caches.iter().map(|c| (c, STATE_L2CACHE));
    for (list, state) in spares.chain(caches) {
        if let Some(device) = prepared.device(config::number(list, "guid")) {
            label(device.as_ref(), &aux_label(list, state))?;
        }
    }
    Ok(())
}

/// Gives a device that joins top-level vdev `top` its labels, which say that the pool does not have it yet. `pool` is the
/// pool's config with the device in it. Durable when it returns.
///
/// # Errors
/// It could not be written; the config does not have it.
pub fn write_label(new: &NewDevice, pool: &PoolConfig, top: u64) -> io::Result<()> {
    let leaf = config::find(&pool.vdev_tree, config::number(&new.leaf, "guid"));
    let txg = leaf.map_or(0, |leaf| config::number(leaf, "create_txg"));
    let own = leaf_label(pool, top, config::number(&new.leaf, "guid"), txg);
    label(new.device.as_ref(), &own.ok_or(io::ErrorKind::NotFound)?)
}

/// The label, of no transaction group, of a leaf below top-level vdev `top`. `None`: there is no such vdev.
pub fn leaf_label(pool: &PoolConfig, top: u64, guid: u64, create_txg: u64) -> Option<NvList> {
    let config = pool.label(top, 0)?;
    let tree = config.list("vdev_tree").cloned()?;
    let is_log = config::flag(&tree, "is_log");
    Some(device_label(&config, &tree, guid, is_log, create_txg))
}

/// The label of a spare.
pub fn spare_label(list: &NvList) -> NvList {
    aux_label(list, STATE_SPARE)
}

/// Writes the labels of one device. What was at its start goes, lest something else be seen there.
fn label(device: &dyn Device, config: &NvList) -> io::Result<()> {
    let mut blank = [WriteReq::new(0, Abd::from_vec(vec![0; 4096]))];
    device.write_batch(&mut blank);
    blank.into_iter().try_for_each(WriteReq::take)?;
    init_labels(device, config)
}

/// The first label of a device: that of its top-level vdev, with what is its own.
fn device_label(config: &NvList, top: &NvList, guid: u64, is_log: bool, txg: u64) -> NvList {
    let mut own = config.clone();
    let mut pairs = vec![("top_guid", config::number(top, "guid")), ("guid", guid)];
    if is_log {
        pairs.push(("is_log", 1));
    }
    let before = own.pairs.iter().position(|(n, _)| n == "hole_array" || n == "vdev_children");
    let at = before.unwrap_or(own.pairs.len());
    let pairs = pairs.into_iter().map(|(n, v)| (n.to_string(), NvValue::Uint64(v)));
    own.pairs.splice(at..at, pairs);
    own.set("create_txg", NvValue::Uint64(txg));
    own
}

/// The label of a spare or cache device.
fn aux_label(list: &NvList, state: u64) -> NvList {
    let mut label = NvList::default();
    label.set("version", NvValue::Uint64(cenote_pool::version::FEATURES));
    label.set("state", NvValue::Uint64(state));
    label.set("guid", NvValue::Uint64(config::number(list, "guid")));
    if state == STATE_L2CACHE {
        label.set("ashift", NvValue::Uint64(config::number(list, "ashift")));
    }
    if let Some(path) = list.get("path") {
        label.set("path", path.clone());
    }
    label
}
