//! Devices that join a vdev and leave one while the pool is in use (`spa_vdev_attach`, `spa_vdev_detach`).
//!
//! A sync task does all of it, so that nothing can come in between. One that brings a device in gives it labels that say
//! whose it is but not that the pool has it yet, and notes that it lacks all that was written so far; one that takes a
//! device out frees what the MOS has of it. A new tree takes the place of the old one ([`VdevTree::altered`]), and the
//! config is written. The uberblock of that group makes it so: a crash before it leaves the vdev as it was, and a new
//! device that belongs to no pool.
//!
//! Blocks of the groups that are open or being quiesced meanwhile may still go by way of the old tree. So a new device lacks
//! those groups as well ([`CONCURRENT`]), though it may have some of their blocks. A device that left keeps its labels until
//! the group is on disk; then they are written anew and belong to no pool, and the device is let go of.
//!
//! | room | what |
//! |---|---|
//! | [`attach`](super::Engine::attach) | a device joins: a side of a mirror, a replacement, a spare that steps in |
//! | [`detach`](super::Engine::detach) | a device leaves |
//! | [`split`](super::Engine::split) | sides of mirrors become another pool |
//! | [`spare`](super::Engine::spare) | hot spares, and how they step in |

mod attach;
mod detach;
mod spare;
mod split;

pub(super) use detach::label_of_left;
pub(crate) use spare::SpareCaller;
pub use split::{Split, SplitOff};

use super::SyncContext;
use crate::create::{FIRST_TXG, NewDevice};
use cenote_dsl::write::{DslWriteError, Result, Tx};
use cenote_format::invariant;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::config;
use cenote_pool::history;
use cenote_vdev::{FindDevice, VdevTree};
use std::ops::Range;
use std::sync::Arc;

/// Transaction groups that can be under way at once: open, quiescing, syncing (`TXG_CONCURRENT_STATES`).
const CONCURRENT: u64 = 3;

/// A device that is to join a vdev.
pub struct Attach {
    /// Guid of the leaf beside which it is put.
    pub beside: u64,
    /// The device.
    pub new: NewDevice,
    /// It takes the place of that leaf once it has all that the leaf has.
    pub replaces: bool,
}

/// What a device lacks that joins in group `txg`.
fn before_joining(txg: u64) -> Range<u64> {
    FIRST_TXG..txg + CONCURRENT
}

pub(crate) fn invalid<T>(why: impl Into<String>) -> Result<T> {
    Err(DslWriteError::Invalid(why.into()))
}

impl SyncContext<'_> {
    /// A tree of the pool's vdevs in which the top-level vdev `top` is as the config has it by now.
    pub(crate) fn altered_tree(
        &self,
        root: &NvList,
        top: u64,
        open: FindDevice<'_>,
        was: &dyn Fn(u64) -> u64,
    ) -> Result<Arc<VdevTree>> {
        let tree = self.disk.tree().altered(root, top, open, was);
        tree.map_err(|e| DslWriteError::Invalid(e.to_string()))
    }

    /// Adds a record of what was done to the pool's history.
    pub(crate) fn record(&mut self, name: &str, message: &str) -> Result<()> {
        let record = history::internal(name, message, None, self.tx.txg, self.tx.now);
        let append = |tx: &mut Tx<'_>| Ok(history::append(tx.mos, &record)?);
        self.tx.unless_unreadable("the pool's history is not written", append)?;
        Ok(())
    }

    /// From now on the pool has this tree and this root. To be called last: it is not undone.
    pub(crate) fn replace_tree(&mut self, tree: Arc<VdevTree>, root: NvList) -> Result<()> {
        self.tx.mos.check_change()?;
        check_same(&tree, &root);
        self.disk.store.replace_vdevs(tree);
        self.config.vdev_tree = root;
        self.config_changed = true;
        Ok(())
    }
}

/// The tree that comes into use has the vdevs that the config has.
fn check_same(tree: &VdevTree, root: &NvList) {
    let tops = config::children(root);
    let (here, said) = (tree.root().children().len(), tops.len());
    invariant!(here == said, "a tree of {here} top-level vdevs, and a config of {said}");
    let (mut of_tree, mut of_config) = (Vec::new(), Vec::new());
    tree.leaves().iter().for_each(|leaf| of_tree.push(leaf.guid()));
    config::for_each_leaf(root, &mut |leaf| {
        if !matches!(leaf.str("type"), Some("hole" | "missing" | "indirect")) {
            of_config.push(config::number(leaf, "guid"));
        }
    });
    of_tree.sort_unstable();
    of_config.sort_unstable();
    invariant!(
        of_tree == of_config,
        "a tree of the leaves {of_tree:?}, and a config of {of_config:?}"
    );
}

/// Whether this is a distributed spare, which has no device and no labels of its own.
pub(crate) fn is_distributed(leaf: &NvList) -> bool {
    leaf.str("type") == Some("dspare")
}

/// A leaf as it is listed among spares, or as one that joins a vdev: without what it has from its place.
pub(crate) fn without_place(leaf: &NvList) -> NvList {
    let place = ["id", "ashift", "asize", "is_log", "create_txg", "top_guid", "metaslab_array"];
    // A distributed spare is one of its vdev, in use or not.
    let stays = |name: &str| is_distributed(leaf) && name == "top_guid";
    let mut own = leaf.clone();
    own.pairs.retain(|(name, _)| !place.contains(&name.as_str()) || stays(name));
    own
}

/// The path of a leaf, for messages.
pub(crate) fn path_of(leaf: &NvList) -> String {
    config::path(leaf).map_or_else(|| "none".into(), |path| path.display().to_string())
}

/// Enters the number of a leaf's ZAP into the config.
pub(crate) fn set_zap(root: &mut NvList, guid: u64, zap: u64) {
    config::for_each_leaf_mut(root, &mut |leaf| {
        if config::number(leaf, "guid") == guid {
            leaf.set("com.delphix:vdev_zap_leaf", NvValue::Uint64(zap));
        }
    });
}
