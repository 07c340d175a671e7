//! Pool configs: the nvlists that describe a pool and its vdev tree.
//!
//! A label holds the config of the pool as one device sees it: the pool's name, guid, state and
//! transaction group, the number of top-level vdevs, and the tree below *its own* top-level vdev.
//! [`assemble`] puts the trees of all labels found under one root:
//!
//! ```text
//! label of A: vdev_children 3, hole_array [1], vdev_tree mirror(id 0)      root
//! label of B:    the same                                            ───>  ├ 0 mirror
//!                                                                          ├ 1 hole
//!                                                                          └ 2 missing
//! ```
//!
//! This *untrusted* config is good enough to find the MOS, whose own copy of the config is complete
//! and replaces it.
//!
//! Invariants: an assembled tree has at most [`MAX_TOP_LEVEL`] children, and child `i` has id `i`.

use cenote_format::label::LABELS;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_vdev::DeviceLabels;
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

/// Range of `ashift` that can be asked for.
pub const ASHIFTS: std::ops::RangeInclusive<u64> = 9..=16;

/// Top-level vdevs that a label may claim. OpenZFS has no such limit, but a block pointer can name
/// only so many, and the number sizes a table.
pub const MAX_TOP_LEVEL: u64 = 1 << 16;

/// `pool_state_t`: the pool is imported somewhere, or was when its system stopped.
pub const STATE_ACTIVE: u64 = 0;
/// The pool was exported.
pub const STATE_EXPORTED: u64 = 1;
/// The pool was destroyed.
pub const STATE_DESTROYED: u64 = 2;
/// The label of a hot spare.
pub const STATE_SPARE: u64 = 3;
/// The label of a cache device.
pub const STATE_L2CACHE: u64 = 4;

/// Sets `name` to `value`, in its old place or at the end.
pub fn set(list: &mut NvList, name: &str, value: NvValue) {
    match list.pairs.iter_mut().find(|(n, _)| n == name) {
        Some((_, v)) => *v = value,
        None => list.pairs.push((name.into(), value)),
    }
}

/// The children of a vdev; empty for a leaf.
pub fn children(vdev: &NvList) -> &[NvList] {
    vdev.lists("children").unwrap_or_default()
}

/// The top-level vdevs of a pool's config or a label; empty where it says nothing of them.
pub fn tops(config: &NvList) -> &[NvList] {
    config.list("vdev_tree").map(children).unwrap_or_default()
}

/// Whether the data of a pool with this root vdev is in an object store.
pub fn has_objects(root: &NvList) -> bool {
    children(root).iter().any(|top| top.str("type") == Some("object"))
}

/// The vdev with this guid at or below `vdev`.
pub fn find(vdev: &NvList, guid: u64) -> Option<&NvList> {
    match number(vdev, "guid") == guid {
        true => Some(vdev),
        false => children(vdev).iter().find_map(|child| find(child, guid)),
    }
}

/// The value `name`, 0 if it is absent.
pub fn number(list: &NvList, name: &str) -> u64 {
    list.u64(name).unwrap_or(0)
}

/// Whether the flag `name` is set.
pub fn flag(list: &NvList, name: &str) -> bool {
    number(list, name) != 0
}

/// The pair `aux_state` of a leaf that an administrator has faulted (`VDEV_AUX_EXTERNAL`).
pub const BY_HAND: &str = "external";

/// The mark of a leaf that the resilver under way does not bring up to date, and the feature that is in use while a leaf has it
/// (`ZPOOL_CONFIG_RESILVER_DEFER`).
pub const DEFERRED: &str = "com.datto:resilver_defer";

/// Calls `f` for every leaf below `vdev` (or for itself).
pub fn for_each_leaf(vdev: &NvList, f: &mut dyn FnMut(&NvList)) {
    if vdev.lists("children").is_none() {
        return f(vdev);
    }
    children(vdev).iter().for_each(|c| for_each_leaf(c, f));
}

/// The same, to change them.
pub fn for_each_leaf_mut(vdev: &mut NvList, f: &mut dyn FnMut(&mut NvList)) {
    let below = vdev.pairs.iter_mut().find(|(n, _)| n == "children");
    match below {
        Some((_, NvValue::NvListArray(list))) => {
            list.iter_mut().for_each(|c| for_each_leaf_mut(c, f));
        }
        _ => f(vdev),
    }
}

/// The sum, modulo 2^64, of the guids of a vdev and all below it; a complete tree's is in the
/// uberblock (`ub_guid_sum`).
pub fn guid_sum(vdev: &NvList) -> u64 {
    children(vdev).iter().fold(number(vdev, "guid"), |sum, c| sum.wrapping_add(guid_sum(c)))
}

/// The path of a leaf.
pub fn path(vdev: &NvList) -> Option<PathBuf> {
    vdev.str("path").map(PathBuf::from)
}

/// What makes a label part of a pool. `None`: the label of a spare or a cache device, or one that
/// was written before its pool was (txg 0).
pub struct Membership {
    /// Guid of the pool.
    pub pool: u64,
    /// Guid of the top-level vdev.
    pub top: u64,
    /// Guid of the device itself.
    pub guid: u64,
    /// Transaction group of the config.
    pub txg: u64,
}

impl Membership {
    /// What the label `config` says; see [`Membership`].
    pub fn of(config: &NvList) -> Option<Membership> {
        if matches!(config.u64("state"), Some(STATE_SPARE | STATE_L2CACHE)) {
            return None;
        }
        let txg = config.u64("txg").filter(|t| *t != 0)?;
        let (pool, top) = (config.u64("pool_guid")?, config.u64("top_guid")?);
        config.list("vdev_tree")?;
        config.str("name")?;
        Some(Membership { pool, top, guid: config.u64("guid")?, txg })
    }
}

pub(crate) fn placeholder(kind: &str, id: u64) -> NvList {
    let pairs = vec![
        ("type".into(), NvValue::String(kind.into())),
        ("id".into(), NvValue::Uint64(id)),
        ("guid".into(), NvValue::Uint64(0)),
    ];
    NvList { pairs }
}

/// The top-level vdevs that the labels describe, each as its newest label has it, by id.
fn top_levels(devices: &[DeviceLabels], limit: u64) -> BTreeMap<u64, (u64, &NvList)> {
    let mut tops: BTreeMap<u64, (u64, &NvList)> = BTreeMap::new();
    for d in devices {
        let (Some(m), Some(tree)) = (Membership::of(&d.config), d.config.list("vdev_tree")) else {
            continue;
        };
        let Some(id) = tree.u64("id").filter(|id| *id < limit) else { continue };
        let entry = tops.entry(id).or_insert((m.txg, tree));
        if m.txg > entry.0 {
            *entry = (m.txg, tree);
        }
    }
    tops
}

/// Assembles the config of the pool that all of `devices` belong to. `None` if no label is usable.
pub fn assemble(devices: &[DeviceLabels]) -> Option<NvList> {
    let newest = devices
        .iter()
        .filter_map(|d| Some((Membership::of(&d.config)?, &d.config)))
        .reduce(|a, b| if b.0.txg > a.0.txg { b } else { a })?;
    let (member, label) = newest;
    let claimed = label.u64("vdev_children").unwrap_or(MAX_TOP_LEVEL);
    let tops = top_levels(devices, claimed.min(MAX_TOP_LEVEL));
    let known = tops.keys().next_back().map_or(0, |id| id + 1);
    let count = label.u64("vdev_children").filter(|n| *n <= MAX_TOP_LEVEL).unwrap_or(known);
    let holes: HashSet<u64> = match label.get("hole_array") {
        Some(NvValue::Uint64Array(holes)) => holes.iter().copied().collect(),
        _ => HashSet::new(),
    };
    let child = |id: u64| match tops.get(&id) {
        _ if holes.contains(&id) => placeholder("hole", id),
        Some((_, tree)) => (*tree).clone(),
        None => placeholder("missing", id),
    };
    let mut root = NvList {
        pairs: vec![
            ("type".into(), NvValue::String("root".into())),
            ("id".into(), NvValue::Uint64(0)),
            ("guid".into(), NvValue::Uint64(member.pool)),
            ("children".into(), NvValue::NvListArray((0..count).map(child).collect())),
        ],
    };
    // Everything that is about the pool and not about the device, in the label's own order.
    let own = ["vdev_tree", "top_guid", "guid", "is_spare", "is_log"];
    let shared = label.pairs.iter().filter(|(n, _)| !own.contains(&n.as_str())).cloned();
    let mut config = NvList { pairs: shared.collect() };
    for_each_leaf_mut(&mut root, &mut |leaf| place(leaf, devices));
    set(&mut config, "vdev_tree", NvValue::NvList(root));
    Some(config)
}

/// The same as the labels had it when the uberblock of `txg` was written: what a commit that was cut
/// short wrote is not counted. A device that has only newer labels is taken as it is.
pub fn assemble_as_of(devices: &[DeviceLabels], txg: u64) -> Option<NvList> {
    let as_of = |d: &DeviceLabels| DeviceLabels {
        path: d.path.clone(),
        size: d.size,
        whole: d.whole,
        config: d.config_as_of(txg).unwrap_or(&d.config).clone(),
        labels: [const { None }; LABELS],
        uberblocks: Vec::new(),
    };
    assemble(&devices.iter().map(as_of).collect::<Vec<_>>())
}

/// Sets the path of a leaf to where its device was found (`fix_paths`).
fn place(leaf: &mut NvList, devices: &[DeviceLabels]) {
    let guid = leaf.u64("guid");
    let found = devices.iter().find(|d| guid.is_some() && d.config.u64("guid") == guid);
    if let Some(path) = found.and_then(|d| d.path.to_str()) {
        set(leaf, "path", NvValue::String(path.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(txg: u64, children: u64, id: u64, guid: u64) -> DeviceLabels {
        let n = |name: &str, v: u64| (name.to_string(), NvValue::Uint64(v));
        let tree = NvList {
            pairs: vec![
                ("type".into(), NvValue::String("file".into())),
                n("id", id),
                n("guid", guid),
            ],
        };
        let config = NvList {
            pairs: vec![
                ("name".into(), NvValue::String(format!("pool at {txg}"))),
                n("txg", txg),
                n("pool_guid", 7),
                n("top_guid", guid),
                n("guid", guid),
                n("vdev_children", children),
                ("hole_array".into(), NvValue::Uint64Array(vec![1])),
                ("vdev_tree".into(), NvValue::NvList(tree)),
            ],
        };
        DeviceLabels {
            path: PathBuf::from(format!("/dev/{guid}")),
            size: 0,
            whole: true,
            config,
            labels: [None, None, None, None],
            uberblocks: vec![],
        }
    }

    fn kinds(config: &NvList) -> Vec<&str> {
        let tree = config.list("vdev_tree").unwrap();
        children(tree).iter().map(|c| c.str("type").unwrap()).collect()
    }

    #[test]
    fn holes_and_missing_vdevs_are_filled_in() {
        // The label of vdev 0 is older: it does not yet know of vdev 3.
        let config = assemble(&[label(9, 3, 0, 100), label(10, 4, 3, 103)]).unwrap();
        assert_eq!(config.str("name"), Some("pool at 10"));
        assert_eq!(kinds(&config), ["file", "hole", "missing", "file"]);
        assert_eq!(guid_sum(config.list("vdev_tree").unwrap()), 7 + 100 + 103);
        assert!(config.u64("guid").is_none());
    }

    #[test]
    fn vdevs_beyond_the_newest_count_are_dropped() {
        let config = assemble(&[label(9, 8, 7, 107), label(10, 1, 0, 100)]).unwrap();
        assert_eq!(kinds(&config), ["file"]);
    }

    #[test]
    fn labels_of_a_commit_that_was_cut_short_are_too_new() {
        // The even labels say that vdev 1 joined in 10, but there is no uberblock of that.
        let (before, after) = (label(9, 1, 0, 100), label(10, 2, 0, 100));
        let mut torn = after.clone();
        torn.labels = [Some(after.config), Some(before.config), None, None];
        let mut new = label(10, 2, 1, 101);
        let mut blank = new.config.clone();
        set(&mut blank, "txg", NvValue::Uint64(0));
        new.labels = [Some(new.config.clone()), Some(blank), None, None];
        let devices = [torn, new];
        let tops_at = |txg| kinds(&assemble_as_of(&devices, txg).unwrap()).len();
        assert_eq!((tops_at(9), tops_at(10)), (1, 2));
    }

    #[test]
    fn absurd_counts_are_not_believed() {
        let config = assemble(&[label(9, u64::MAX, 0, 100)]).unwrap();
        assert_eq!(kinds(&config), ["file"]);
        assert!(assemble(&[label(0, 1, 0, 100)]).is_none());
    }
}
