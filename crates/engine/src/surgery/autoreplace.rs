//! New devices that are found where a lost one was (`autoreplace`; ZED's `zfs_process_add`).
//!
//! Where the pool's property says so, a device that is out of use is replaced by another one that is at its path by now, or at its
//! physical path. This is looked at after an import and each time the sync thread has nothing to write, in a thread of its
//! own. A device that has anything of a pool on it, a file system, or whatever else `zpool replace` refuses without `-f`, is left
//! alone. Devices that someone took offline are not replaced.

use super::Attach;
use crate::create::{self, CreateSpec, Force, NewDevice, SystemDevices};
use crate::{EngineError, Shared};
use cenote_pool::config;
use cenote_vdev::{Vdev, VdevState, VdevTree};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name of the thread.
const NAME: &str = "autoreplace";
/// Where devices are by their physical paths.
const BY_PATH: &str = "/dev/disk/by-path";

/// Whether a leaf is out of use, its device is not there, and nothing is about to take its place.
fn is_lost(tree: &VdevTree, leaf: &Vdev) -> bool {
    let out =
        matches!(leaf.state(), VdevState::Faulted | VdevState::Removed | VdevState::CantOpen(_));
    let taken = tree.parent_of(leaf.guid()).is_none_or(|above| above.kind() == "replacing");
    let there = leaf.seen().is_some_and(|seen| seen.there);
    out && !taken && !there && !leaf.is_distributed()
}

/// Where another device may be.
fn places(leaf: &Vdev) -> Vec<PathBuf> {
    let physical = leaf.config().str("phys_path").map(|path| Path::new(BY_PATH).join(path));
    leaf.path().map(Path::to_path_buf).into_iter().chain(physical).collect()
}

impl Shared {
    /// Has a thread look for devices in the place of lost ones, if the pool is to take them.
    pub(crate) fn look_for_replacements(self: &Arc<Self>) {
        let wanted = || self.view().get("autoreplace").is_some_and(|set| set.exact == "on");
        let tree = self.disk.tree();
        let any = tree.leaves().iter().any(|leaf| is_lost(&tree, leaf));
        if any && !self.options.deterministic && wanted() {
            self.replacer.wake(self, NAME, Shared::replace_lost);
        }
    }

    fn replace_lost(self: &Arc<Self>) {
        let tree = self.disk.tree();
        let lost: Vec<Arc<Vdev>> =
            tree.leaves().into_iter().filter(|leaf| is_lost(&tree, leaf)).collect();
        drop(tree);
        for leaf in lost {
            let found = places(&leaf).into_iter().find(|path| path.exists());
            let Some(path) = found.filter(|_| !self.replacer.is_stopped()) else { continue };
            let put = self.blank(&path).and_then(|new| {
                let attach = Attach { beside: leaf.guid(), new, replaces: true };
                let out = |leaf: &Vdev| !leaf.state().readable();
                match self.attach(attach, out, false) {
                    // It is tried again when the pool goes on.
                    Err(EngineError::Suspended(why)) => Err(why),
                    done => done.map_err(|e| e.to_string()),
                }
            });
            match put {
                Ok(()) => {
                    tracing::warn!(?leaf, path = %path.display(), "is replaced by another device")
                }
                Err(why) => tracing::debug!(?leaf, path = %path.display(), why, "is not replaced"),
            }
        }
        self.replacer.ends();
    }

    /// The device at this path, if nothing is on it.
    fn blank(&self, path: &Path) -> Result<NewDevice, String> {
        let text = |e: create::CreateError| e.to_string();
        let layout = create::parse(&[path.display().to_string()]).map_err(text)?;
        create::check_answers(&layout).map_err(text)?;
        let pool = self.view();
        let ashift = pool.get("ashift").and_then(|set| set.exact.parse().ok()).unwrap_or(0);
        let spec = CreateSpec {
            name: pool.name(),
            layout: &layout,
            ashift,
            force: Force { in_use: false, replication: true },
            pool: Some(pool.config()),
            txg: config::number(pool.config(), "txg").max(pool.uberblock().txg).saturating_add(1),
            imported: &[],
            devices: &SystemDevices,
            chance: &self.disk.outside.chance,
        };
        let single = create::prepare(&spec).map_err(text)?.into_single();
        let single = single.map(|new| new.for_sectors(&SystemDevices, ashift));
        single.ok_or_else(|| "it is not a single disk".into())
    }
}
