//! Devices that come back (`vdev_reopen`): what may be undone of why a leaf is out of use.

use crate::events::Sysevent;
use crate::{Pool, config};
use cenote_vdev::{OUT_OF_USE, Reopen, Vdev, VdevError, VdevState};

/// What an administrator takes back from a leaf, by the names of the config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restore {
    /// That it failed (`zpool clear`): one that is offline stays so.
    Failure,
    /// That it is offline (`zpool online`).
    Offline,
    /// Nothing: its device may be there again (`zpool reopen`).
    Nothing,
    /// That it was removed: its device is there again (OpenZFS's `zfs_mod`).
    Removal,
}

impl Restore {
    /// Pairs of a leaf's config that count no more.
    pub fn pairs(self) -> &'static [&'static str] {
        match self {
            Restore::Failure => &["faulted", "degraded", "removed", "aux_state"],
            Restore::Offline => &["offline", "removed"],
            Restore::Nothing => &[],
            Restore::Removal => &["removed"],
        }
    }
}

impl Pool {
    /// Leaves that an administrator has faulted.
    fn faulted_by_hand(&self) -> Vec<u64> {
        let mut leaves = Vec::new();
        if let Some(root) = self.config().list("vdev_tree") {
            config::for_each_leaf(root, &mut |leaf| {
                let external = leaf.str("aux_state") == Some(config::BY_HAND);
                if external && config::number(leaf, "faulted") != 0 {
                    leaves.push(config::number(leaf, "guid"));
                }
            });
        }
        leaves
    }

    /// Leaves that are out of use and that an import would leave out of use, too: by order, or as their configs say. What opens them
    /// again has to take that off the config, and a log must not begin there before.
    pub fn noted_out(&self) -> Vec<u64> {
        let tree = self.store().vdevs();
        let mut noted = self.noted_as(&["removed"]);
        // Of other vdevs that says nothing of what an import does.
        noted.retain(|guid| tree.top_of(*guid).is_some_and(|top| top.is_log()));
        noted.extend(self.noted_as(&["offline"]));
        noted.extend(self.faulted_by_hand());
        noted.extend(tree.leaves().iter().filter(|l| l.is_faulted_by_hand()).map(|l| l.guid()));
        noted.retain(|guid| tree.find(*guid).is_some_and(|leaf| !leaf.state().readable()));
        noted
    }

    /// Leaves whose configs have one of these flags.
    pub fn noted_as(&self, flags: &[&str]) -> Vec<u64> {
        let mut leaves = Vec::new();
        if let Some(root) = self.config().list("vdev_tree") {
            config::for_each_leaf(root, &mut |leaf| {
                if flags.iter().any(|name| config::flag(leaf, name)) {
                    leaves.push(config::number(leaf, "guid"));
                }
            });
        }
        leaves
    }

    /// Brings back the leaves with these guids as far as their devices answer and are theirs. Returns
    /// whether any came back. For pools that nothing is written to; else the engine restores them.
    ///
    /// # Errors
    /// The config is not what the vdevs were opened by.
    pub fn restore(&self, leaves: &[u64], what: Restore) -> Result<bool, VdevError> {
        let tree = self.store().vdevs();
        let by_hand = self.faulted_by_hand();
        let out = |leaf: &Vdev| {
            let offline = leaf.state() == VdevState::Offline && what != Restore::Offline;
            let faulted = (leaf.is_faulted_by_hand() || by_hand.contains(&leaf.guid()))
                && what != Restore::Failure;
            leaves.contains(&leaf.guid()) && !offline && !faulted
        };
        // The vdevs were built from an earlier config: what it says of leaves that are out of use may have been taken back.
        let now = self.config().list("vdev_tree");
        let counts = |name: &str| OUT_OF_USE.contains(&name) && !what.pairs().contains(&name);
        let stripped = |leaf: &Vdev| {
            let mut config = leaf.config_in_use();
            let noted = now.and_then(|root| config::find(root, leaf.guid()));
            if let Some(noted) = noted.filter(|_| !leaf.state().readable()) {
                let pairs = noted.pairs.iter().filter(|(name, _)| counts(name));
                config.pairs.extend(pairs.cloned());
            }
            config
        };
        let before: Vec<(u64, VdevState)> =
            tree.leaves().iter().map(|leaf| (leaf.guid(), leaf.state())).collect();
        let any = tree.reopen(&mut Reopen {
            which: &out,
            doubt: what == Restore::Nothing,
            config: &stripped,
            open: &mut |leaf| self.devices.open_anew(leaf),
            txg: self.uberblock().txg,
            writable: self.devices.writable(),
            held: tree.suspension().why().is_some(),
        });
        // What is not a leaf's, or does not answer, is for others.
        for leaf in tree.leaves().iter().filter(|leaf| out(leaf) && !leaf.state().readable()) {
            self.devices.forget(leaf.guid());
        }
        for leaf in tree.leaves().iter().filter(|leaf| leaves.contains(&leaf.guid())) {
            if let Some((_, before)) = before.iter().find(|(guid, _)| *guid == leaf.guid()) {
                self.tell_restored(leaf, *before, what);
            }
        }
        any
    }

    /// Lists what became of a leaf that was in another state before.
    fn tell_restored(&self, leaf: &Vdev, before: VdevState, what: Restore) {
        let name = match what {
            Restore::Offline | Restore::Removal
                if before == VdevState::Offline
                    || !before.readable() && leaf.state().readable() =>
            {
                "vdev_online"
            }
            Restore::Failure if before != VdevState::Healthy => "vdev_clear",
            _ => return,
        };
        Sysevent { vdev: Some(leaf), ..Sysevent::of_pool(name) }.post(self.store());
    }
}
