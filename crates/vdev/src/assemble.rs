//! Building the tree of vdevs from the pool's config (`spa_config_parse`, `vdev_alloc`).
//!
//! The config nests `children` below the root. Each leaf's device is asked for by guid, and its
//! labels must say that it is that leaf of this pool. A device that is there but not to be
//! used (offline, faulted, with labels that do not fit) is kept nevertheless, as a last resort
//! for data that nothing else has; its state says that it is not used.
//!
//! Everything in a config is checked here: what is not supported is refused by name before
//! anything is read by it.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cenote_format::LABEL_START;
use cenote_format::invariant;
use cenote_format::label::{LABEL_END, LABEL_SIZE};
use cenote_format::nvlist::NvList;

use crate::device::Device;
use crate::draid::{Layout, Shape, SpareDevice};
use crate::dtl::Dtl;
use crate::labels;
use crate::probe::StateWith;
use crate::raidz::reflow::Widths;
use crate::state::{Aux, VdevState};
use crate::vdev::{Kind, Live, Opened, Vdev};
use crate::{FindDevice, VdevError};

/// Smallest device that may be a leaf (`SPA_MINDEVSIZE`).
const MIN_DEVICE: u64 = 64 << 20;
/// Most children of a RAID-Z vdev: as many as there are distinct powers of 2 in GF(2^8).
const MAX_RAIDZ_CHILDREN: usize = 255;

/// What a vdev has to know of those above it.
#[derive(Clone, Copy)]
struct Above {
    /// 0 for the root, 1 for a top-level vdev.
    depth: usize,
    pool_guid: u64,
    ashift: u32,
    top_guid: u64,
    /// Bytes that the parent needs each child to have allocatable.
    min_asize: u64,
    /// It is below a dRAID vdev.
    in_draid: bool,
}

/// Builds the root from its config.
pub(crate) fn root(config: &NvList, open: FindDevice<'_>) -> Result<Arc<Vdev>, VdevError> {
    build(config, 0, Above::root(config)?, open, None)
}

/// Builds the root from a config that has more top-level vdevs than `old`, whose vdevs are shared, or another guid.
pub(crate) fn extended(
    old: &Arc<Vdev>,
    config: &NvList,
    open: FindDevice<'_>,
) -> Result<Arc<Vdev>, VdevError> {
    let above = Above::root(config)?;
    let configs = config.lists("children").unwrap_or(&[]);
    let mut tops = old.children.clone();
    let guid = |config: &NvList| config.u64("guid").unwrap_or(0);
    let same = configs.len() >= tops.len()
        && tops.iter().zip(configs).all(|(top, config)| top.guid == guid(config));
    if !same {
        return unsupported("a config of other vdevs");
    }
    let here = Above { depth: above.depth + 1, ..above };
    for (i, c) in configs.iter().enumerate().skip(tops.len()) {
        tops.push(build(c, i as u64, here, open, None)?);
    }
    Ok(root_over(old, config, tops))
}

/// Builds the root from a config in which the top-level vdev `id` of `old` has other vdevs below it, or is another one.
/// All others are the vdevs of `old`, and of this one the vdevs that it had.
pub(crate) fn altered(
    old: &Arc<Vdev>,
    config: &NvList,
    id: usize,
    open: FindDevice<'_>,
    was: Was<'_>,
) -> Result<Arc<Vdev>, VdevError> {
    let above = Above::root(config)?;
    let configs = config.lists("children").unwrap_or(&[]);
    let mut tops = old.children.clone();
    let (Some(top), Some(of_top)) = (tops.get_mut(id), configs.get(id)) else {
        return unsupported("a config of other vdevs");
    };
    if configs.len() != old.children.len() {
        return unsupported("a config of other vdevs");
    }
    let here = Above { depth: above.depth + 1, ..above };
    let kept = |guid: u64| below(top, was(guid));
    *top = build(of_top, id as u64, here, open, Some(&kept))?;
    Ok(root_over(old, config, tops))
}

/// By the guid of a vdev the one that it had before.
pub(crate) type Was<'a> = &'a dyn Fn(u64) -> u64;

/// The vdev of another tree that a new one is, by its guid.
type Kept<'a> = &'a dyn Fn(u64) -> Option<Arc<Vdev>>;

/// The vdev with this guid, at or below `vdev`.
pub(crate) fn below(vdev: &Arc<Vdev>, guid: u64) -> Option<Arc<Vdev>> {
    if vdev.guid == guid {
        return Some(vdev.clone());
    }
    vdev.children.iter().find_map(|c| below(c, guid))
}

/// A root like `old` over these top-level vdevs.
fn root_over(old: &Arc<Vdev>, config: &NvList, tops: Vec<Arc<Vdev>>) -> Arc<Vdev> {
    let opened = Opened { device: None, state: VdevState::Healthy };
    Arc::new(Vdev {
        kind: Kind::Root,
        guid: config.u64("guid").unwrap_or(0),
        id: old.id,
        path: None,
        children: tops,
        config: config.clone(),
        ashift: 0,
        nparity: 0,
        draid: None,
        live: Live::new(opened, Dtl::Ranges(Vec::new())),
        asize: AtomicU64::default(),
    })
}

impl Above {
    /// What the root has to know.
    fn root(config: &NvList) -> Result<Above, VdevError> {
        if config.str("type") != Some("root") {
            let kind = config.str("type").unwrap_or("");
            return unsupported(format!("a vdev tree of type {kind:?}"));
        }
        let pool_guid = config.u64("guid").unwrap_or(0);
        Ok(Above { depth: 0, pool_guid, ashift: 0, top_guid: 0, min_asize: 0, in_draid: false })
    }
}

impl Above {
    /// What a vdev itself has to know.
    fn of(self, config: &NvList, kind: Kind) -> Result<Above, VdevError> {
        Ok(match self.depth {
            1 => Above {
                ashift: top_ashift(config, kind)?,
                top_guid: config.u64("guid").unwrap_or(0),
                min_asize: top_min_asize(config, self.asize(config, kind)?),
                ..self
            },
            _ => self,
        })
    }

    /// Allocatable bytes of a vdev. Where nothing is allocated by it a size that there cannot be is 0.
    ///
    /// # Errors
    /// As of [`asize_of`].
    fn asize(self, config: &NvList, kind: Kind) -> Result<u64, VdevError> {
        let has_space =
            self.depth == 1 && !matches!(kind, Kind::Hole | Kind::Missing | Kind::Indirect);
        match asize_of(config) {
            Err(_) if !has_space => Ok(0),
            asize => asize,
        }
    }

    /// What the `children` children of such a vdev have to know.
    fn below(self, kind: Kind, children: usize, draid: Option<&Shape>) -> Above {
        let min_asize = match (kind, draid) {
            (Kind::RaidZ, _) => self.min_asize.div_ceil(children.max(1) as u64),
            (_, Some(shape)) => shape.child_asize(self.min_asize),
            _ => self.min_asize,
        };
        let in_draid = self.in_draid || draid.is_some();
        Above { depth: self.depth + 1, min_asize, in_draid, ..self }
    }
}

/// Bytes of a device with so many allocatable ones, of which there are [`MOST_BYTES`] at most.
fn with_labels(asize: u64) -> u64 {
    asize + LABEL_START + LABEL_END
}

/// Calls `f` for each leaf, with the function that says in which state the leaf is with a device,
/// given the leaf's config.
pub(crate) fn for_each_leaf(
    root: &Arc<Vdev>,
    f: &mut dyn FnMut(&Vdev, StateWith<'_>),
) -> Result<(), VdevError> {
    fn walk(
        v: &Arc<Vdev>,
        above: Above,
        f: &mut dyn FnMut(&Vdev, StateWith<'_>),
    ) -> Result<(), VdevError> {
        let mut own = above.of(v.config(), v.vdev_kind())?;
        if above.depth == 1 {
            own.min_asize = top_min_asize(v.config(), v.asize());
        }
        if v.is_leaf() {
            f(v, &|config, device| match v.vdev_kind() {
                Kind::DistributedSpare => spare_state(config),
                _ => leaf_state(config, v.guid(), own, device),
            });
        }
        let here = own.below(v.vdev_kind(), v.holding(), v.draid());
        v.children().iter().try_for_each(|c| walk(c, here, f))
    }
    walk(root, Above::root(root.config())?, f)
}

/// Bytes that the device of the leaf with this guid must have.
pub(crate) fn least_size(root: &Arc<Vdev>, guid: u64) -> Option<u64> {
    fn walk(v: &Arc<Vdev>, above: Above, guid: u64) -> Option<u64> {
        let mut own = above.of(v.config(), v.vdev_kind()).ok()?;
        if above.depth == 1 {
            own.min_asize = top_min_asize(v.config(), v.asize());
        }
        if v.is_leaf() && v.guid() == guid {
            return Some(with_labels(own.min_asize).max(MIN_DEVICE));
        }
        let here = own.below(v.vdev_kind(), v.holding(), v.draid());
        v.children().iter().find_map(|c| walk(c, here, guid))
    }
    walk(root, Above::root(root.config()).ok()?, guid)
}

/// Bytes that the device needs to have which carries such a label.
pub(crate) fn size_of_leaf(label: &NvList) -> Option<u64> {
    fn walk(config: &NvList, above: Above, guid: u64) -> Option<u64> {
        let kind = Kind::from_name(config.str("type")?)?;
        let own = above.of(config, kind).ok()?;
        if config.u64("guid") == Some(guid) && kind.is_leaf() {
            return Some(with_labels(own.min_asize));
        }
        let children = config.lists("children").unwrap_or(&[]);
        let shape = if kind == Kind::Draid { Shape::of(config).ok() } else { None };
        let here = own.below(kind, children.len(), shape.as_ref());
        children.iter().find_map(|child| walk(child, here, guid))
    }
    let above =
        Above { depth: 1, pool_guid: 0, ashift: 0, top_guid: 0, min_asize: 0, in_draid: false };
    walk(label.list("vdev_tree")?, above, label.u64("guid")?)
}

fn unsupported<T>(what: impl Into<String>) -> Result<T, VdevError> {
    Err(VdevError::Unsupported(what.into()))
}

/// Checks the `type` of a config.
fn kind_of(config: &NvList, above: Above) -> Result<Kind, VdevError> {
    let depth = above.depth;
    let name = config.str("type").unwrap_or("");
    let kind = match (Kind::from_name(name), name) {
        (Some(kind), _) => kind,
        (None, other) => return unsupported(format!("vdev type {other:?}")),
    };
    let fits = match kind {
        Kind::Root => depth == 0,
        Kind::DistributedSpare => above.in_draid,
        Kind::RaidZ | Kind::Draid | Kind::Hole | Kind::Missing | Kind::Indirect | Kind::Object => {
            depth == 1
        }
        _ => depth >= 1,
    };
    if fits { Ok(kind) } else { unsupported(format!("vdev type {name:?} at depth {depth}")) }
}

fn build(
    config: &NvList,
    position: u64,
    above: Above,
    open: FindDevice<'_>,
    kept: Option<Kept<'_>>,
) -> Result<Arc<Vdev>, VdevError> {
    let kind = kind_of(config, above)?;
    let id = config.u64("id").unwrap_or(position);
    if id != position {
        return unsupported(format!("vdev with id {id} at position {position}"));
    }
    let guid = config.u64("guid").unwrap_or(0);
    let child_configs = config.lists("children").unwrap_or(&[]);
    let shape = match kind {
        Kind::Draid => Some(Shape::of(config).map_err(VdevError::Unsupported)?),
        _ => None,
    };
    let (mut widths, mut nparity) = (Widths::default(), 0);
    if kind == Kind::RaidZ {
        let children = child_configs.len();
        nparity = raidz_parity(config, children)?;
        widths = Widths::of(config, children as u64, nparity).map_err(VdevError::Unsupported)?;
    }
    let nparity = match (kind, &shape) {
        (_, Some(shape)) => shape.nparity,
        _ => nparity,
    };
    let own = above.of(config, kind)?;
    // A device that is joining holds nothing yet.
    let holding = child_configs.len() - usize::from(widths.reflow.is_some());
    let here = own.below(kind, holding, shape.as_ref());
    let draid = shape.and_then(|shape| Layout::new(shape, here.ashift));
    let draid = draid.map(Arc::new);
    invariant!(
        draid.is_some() == shape.is_some(),
        "the map of {shape:?} is not that of the format"
    );
    let mut children = Vec::new();
    for (i, c) in child_configs.iter().enumerate() {
        children.push(build(c, i as u64, here, open, kept)?);
    }
    let other = children.iter().find(|child| own.depth > 0 && child.ashift != here.ashift);
    invariant!(other.is_none(), "{other:?} is below a vdev of 2^{} bytes a sector", here.ashift);
    if let Some(shape) = &shape {
        check_spares(&children, guid, shape)?;
    }
    let same = kept.and_then(|kept| kept(guid)).filter(|v| v.kind == kind);
    let live = same.map(|v| v.live.clone());
    let live = match live {
        Some(live) => live,
        None => {
            let live = open_vdev(config, kind, guid, own, open)?;
            *live.widths.write() = Arc::new(widths);
            live
        }
    };
    let asize = own.asize(config, kind)?;
    Ok(Arc::new(Vdev {
        kind,
        guid,
        id,
        path: config.str("path").map(PathBuf::from),
        children,
        config: config.clone(),
        ashift: here.ashift,
        nparity,
        draid,
        live,
        asize: AtomicU64::new(asize),
    }))
}

/// Opens a vdev that no tree had before.
fn open_vdev(
    config: &NvList,
    kind: Kind,
    guid: u64,
    own: Above,
    open: FindDevice<'_>,
) -> Result<Arc<Live>, VdevError> {
    if kind == Kind::DistributedSpare {
        return open_spare(config);
    }
    let device = if kind.is_leaf() { open(guid, config) } else { None };
    let state = match kind {
        Kind::Hole | Kind::Indirect => VdevState::Healthy,
        Kind::Missing => VdevState::CantOpen(Aux::Missing),
        Kind::File | Kind::Disk | Kind::Object => leaf_state(config, guid, own, device.as_deref()),
        _ => VdevState::Healthy,
    };
    let read = device.as_deref().filter(|device| !device.writable() && state.readable());
    let short = read.map_or(0, |device| bytes_short(device, own));
    let unread = read.map_or(0, |device| device.unread(0, device.size()));
    let only_read = read.is_some_and(Device::only_read);
    let live = Live::new(Opened { device, state }, dtl_of(config));
    if kind == Kind::Object {
        live.queue.is_of_store();
    }
    live.cut_off.store(short, Relaxed);
    live.unread.store(unread, Relaxed);
    live.only_read.store(only_read, Relaxed);
    live.faulted_by_hand.store(is_faulted_by_config(config), Relaxed);
    // So another system found it, which does not say that it does not answer.
    let is_degraded = is_external(config) && flag(config, "degraded");
    live.too_many_errors.store(is_degraded, Relaxed);
    Ok(live)
}

/// Whether the state that a leaf's config has was asked for from outside.
fn is_external(config: &NvList) -> bool {
    config.str("aux_state") == Some("external")
}

/// Whether a leaf's config has it out of use since it was faulted by order.
pub(crate) fn is_faulted_by_config(config: &NvList) -> bool {
    is_external(config) && flag(config, "faulted")
}

fn dtl_of(config: &NvList) -> Dtl {
    match config.u64("DTL").unwrap_or(0) {
        0 => Dtl::Ranges(Vec::new()),
        _ => Dtl::Unread,
    }
}

/// The number of a distributed spare among those of its dRAID vdev.
///
/// # Errors
/// Its config says none.
fn spareid(config: &NvList) -> Result<u64, VdevError> {
    match config.u64("spareid") {
        Some(number) => Ok(number),
        None => unsupported("a distributed spare without a number"),
    }
}

/// The number of a distributed spare of the dRAID vdev with guid `top`.
///
/// # Errors
/// Its config says none, one that no spare of this vdev has, or that it is another vdev's.
fn spare_of(config: &NvList, top: u64, shape: &Shape) -> Result<u64, VdevError> {
    let number = spareid(config)?;
    let is_ours = config.u64("top_guid").is_none_or(|guid| guid == top);
    match number < shape.nspares && is_ours {
        true => Ok(number),
        false => unsupported(format!("distributed spare {number} in {}", shape.name())),
    }
}

/// Opens a distributed spare (`vdev_draid_spare_open`). It has no place before its tree is in use.
fn open_spare(config: &NvList) -> Result<Arc<Live>, VdevError> {
    let path = PathBuf::from(config.str("path").unwrap_or("dspare"));
    let spare = SpareDevice::new(&path, spareid(config)?);
    let opened = Opened { device: Some(spare.clone()), state: spare_state(config) };
    let live = Live::new(opened, dtl_of(config));
    live.faulted_by_hand.store(is_faulted_by_config(config), Relaxed);
    let _ = live.distributed.set(spare);
    Ok(live)
}

/// The device of a distributed spare that is not in use, given how the pool lists it. `None`: there is no such spare.
pub(crate) fn idle_spare(root: &Arc<Vdev>, config: &NvList) -> Option<Arc<dyn Device>> {
    let guid = config.u64("top_guid")?;
    let top = root.children().iter().find(|v| v.guid() == guid)?;
    let number = spare_of(config, guid, top.draid()?).ok()?;
    let spare = SpareDevice::new(&PathBuf::from(config.str("path")?), number);
    spare.place(top);
    Some(spare)
}

/// The state of a distributed spare, which has no device that could be missing.
fn spare_state(config: &NvList) -> VdevState {
    match (flag(config, "faulted"), flag(config, "offline")) {
        (true, _) if is_external(config) => VdevState::Faulted,
        (_, true) => VdevState::Offline,
        _ => VdevState::Healthy,
    }
}

/// Checks the distributed spares among the vdevs below a dRAID vdev: each is one of that vdev's, and there once.
fn check_spares(children: &[Arc<Vdev>], top: u64, shape: &Shape) -> Result<(), VdevError> {
    let mut leaves = Vec::new();
    children.iter().for_each(|child| child.collect_leaves(&mut leaves));
    let mut seen = HashSet::new();
    for spare in leaves.iter().filter(|leaf| leaf.is_distributed()) {
        let number = spare_of(spare.config(), top, shape)?;
        if !seen.insert(number) {
            return unsupported(format!("distributed spare {number} twice in {}", shape.name()));
        }
    }
    Ok(())
}

fn raidz_parity(config: &NvList, children: usize) -> Result<u64, VdevError> {
    let nparity = config.u64("nparity").unwrap_or(1);
    let fits =
        (1..=3).contains(&nparity) && children as u64 > nparity && children <= MAX_RAIDZ_CHILDREN;
    if fits {
        Ok(nparity)
    } else {
        unsupported(format!("RAID-Z with {children} children and {nparity} of parity"))
    }
}

fn top_ashift(config: &NvList, kind: Kind) -> Result<u32, VdevError> {
    let ashift = config.u64("ashift").unwrap_or(0);
    match (kind, u32::try_from(ashift)) {
        (_, Ok(a @ 9..=16)) => Ok(a),
        (Kind::Hole | Kind::Missing | Kind::Indirect, _) => Ok(0),
        _ => unsupported(format!("ashift {ashift}")),
    }
}

/// Allocatable bytes of a top-level vdev at most: what a file can have.
const MOST_BYTES: u64 = i64::MAX as u64;

/// Allocatable bytes of a top-level vdev, as its config says; 0 of others.
///
/// # Errors
/// More than there can be.
fn asize_of(config: &NvList) -> Result<u64, VdevError> {
    match config.u64("asize").unwrap_or(0) {
        asize @ ..=MOST_BYTES => Ok(asize),
        asize => unsupported(format!("a vdev of {asize} bytes")),
    }
}

/// Allocatable bytes that a top-level vdev needs: its size in whole metaslabs.
fn top_min_asize(config: &NvList, asize: u64) -> u64 {
    match config.u64("metaslab_shift") {
        Some(shift @ 1..=63) => asize >> shift << shift,
        _ => asize,
    }
}

fn flag(config: &NvList, name: &str) -> bool {
    config.u64(name).unwrap_or(0) != 0
}

/// The state of a leaf, as opening and validating it come out.
fn leaf_state(config: &NvList, guid: u64, above: Above, device: Option<&dyn Device>) -> VdevState {
    // Faults found on another system count only if an administrator asked for them.
    if is_faulted_by_config(config) {
        return VdevState::Faulted;
    }
    if flag(config, "offline") {
        return VdevState::Offline;
    }
    let Some(device) = device else {
        return match flag(config, "removed") {
            true => VdevState::Removed,
            false => VdevState::CantOpen(Aux::OpenFailed),
        };
    };
    // What is only read may be an image that was cut off: what it has is good.
    if device.writable() {
        if device.size() / LABEL_SIZE * LABEL_SIZE < MIN_DEVICE {
            return VdevState::CantOpen(Aux::TooSmall);
        }
        if bytes_short(device, above) > 0 {
            return VdevState::CantOpen(Aux::BadLabel);
        }
    }
    if let Some(aux) = label_fault(device, guid, above) {
        return VdevState::CantOpen(aux);
    }
    VdevState::Healthy
}

/// How many bytes a device is shorter than a leaf needs.
fn bytes_short(device: &dyn Device, above: Above) -> u64 {
    let has = device.size() / LABEL_SIZE * LABEL_SIZE;
    with_labels(above.min_asize).saturating_sub(has)
}

/// What is wrong with a leaf's labels: whether they say that it is this leaf of this pool.
fn label_fault(device: &dyn Device, guid: u64, above: Above) -> Option<Aux> {
    let configs = labels::read_configs(device).unwrap_or_default();
    let Some(label) = labels::best_config(&configs) else { return Some(Aux::BadLabel) };
    if label.u64("split_guid").is_some_and(|g| g == above.pool_guid) {
        return Some(Aux::SplitPool);
    }
    // Of a change of the pool's guid that was cut short some labels have the one, some the other.
    let of_pool = |label: &NvList| label.u64("pool_guid") == Some(above.pool_guid);
    let wrong_pool = above.pool_guid != 0 && !configs.iter().flatten().any(of_pool);
    let named = |label: &NvList| label.contains("guid") && label.contains("top_guid");
    if wrong_pool || !named(label) || label.u64("state").is_none() {
        return Some(Aux::CorruptData);
    }
    // A leaf that became a top-level vdev when its sibling was detached took over its parent's
    // guid, which its label may not say yet, or not any more; the top-level guid is the same either way.
    let is_top = above.top_guid == guid;
    let is_it = |label: &NvList| {
        let (own, top) = (label.u64("guid"), label.u64("top_guid"));
        let original = label.list("vdev_tree").and_then(|t| t.u64("orig_guid"));
        own == Some(guid) || original == Some(guid) || (is_top && top == Some(guid))
    };
    let fits =
        configs.iter().flatten().filter(|label| of_pool(label) || above.pool_guid == 0).any(is_it);
    (!fits).then_some(Aux::CorruptData)
}
