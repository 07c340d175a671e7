//! A pool whose devices were sides of the mirrors of another pool (`spa_vdev_split_mirror`).
//!
//! The labels of these devices say which pool they are of, and by [`SPLIT_GUID`] which one they were of. What they hold is that
//! other pool's still, with its config in the MOS. So such a pool is opened by that config, as the labels change it
//! ([`taken_over`]): each mirror is the one side that the labels know, vdevs for logs are holes. The first transaction group
//! writes a config of its own; from then on it is a pool like any other.

use crate::config::{self, children, number, placeholder};
use crate::surgery::{keep_side, make_hole};
use cenote_format::nvlist::{NvList, NvValue};

/// In labels: the guid of the pool that the device was split off (`ZPOOL_CONFIG_SPLIT_GUID`).
pub const SPLIT_GUID: &str = "split_guid";

/// The vdevs of the pool with this guid that is split off the one with the vdevs `root`. `side` tells by the id of a top-level
/// vdev which of its leaves goes into the new pool; without one the vdev is missing there. `None`: a side is not one of the
/// top-level mirror.
pub fn root_of(root: &NvList, guid: u64, side: &dyn Fn(u64) -> Option<u64>) -> Option<NvList> {
    let mut new = root.clone();
    new.set("guid", NvValue::Uint64(guid));
    for (id, top) in (0..).zip(children(root)) {
        let kind = top.str("type").unwrap_or_default();
        match side(id) {
            _ if config::flag(top, "is_log") => make_hole(&mut new, id)?,
            _ if matches!(kind, "hole" | "indirect") => {}
            Some(leaf) => children(top)
                .iter()
                .any(|child| number(child, "guid") == leaf)
                .then(|| keep_side(&mut new, leaf))??,
            None => lose(&mut new, id)?,
        }
    }
    Some(new)
}

/// The top-level vdev `id` is missing.
fn lose(root: &mut NvList, id: u64) -> Option<()> {
    let tops = root.pairs.iter_mut().find(|(name, _)| name == "children");
    let Some((_, NvValue::NvListArray(tops))) = tops else { return None };
    *tops.get_mut(usize::try_from(id).ok()?)? = placeholder("missing", id);
    Some(())
}

/// The config of the pool that these `labels` describe, out of that of the pool which it was split off. `None`: the config is not
/// that pool's.
pub fn taken_over(config: &NvList, labels: &NvList) -> Option<NvList> {
    let from = labels.u64(SPLIT_GUID).filter(|from| config.u64("pool_guid") == Some(*from))?;
    let (guid, name) = (labels.u64("pool_guid").filter(|guid| *guid != from)?, labels.str("name")?);
    let known = children(labels.list("vdev_tree")?);
    let side = |id: u64| {
        let top = known.get(usize::try_from(id).ok()?)?;
        top.u64("guid").filter(|guid| *guid != 0)
    };
    let root = root_of(config.list("vdev_tree")?, guid, &side)?;
    let mut new = config.clone();
    new.set("name", NvValue::String(name.into()));
    new.set("pool_guid", NvValue::Uint64(guid));
    new.set("vdev_tree", NvValue::NvList(root));
    Some(new)
}
