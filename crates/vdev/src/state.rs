//! Health of a vdev, and how that of its children adds up to it (`vdev_propagate_state`).
//!
//! A leaf's state comes from the config (taken offline, faulted by hand) and from opening it (is
//! the device there, is it large enough, do its labels belong to this vdev). States add up
//! towards the root as in OpenZFS: a mirror works with one child left, RAID-Z and dRAID with as many
//! missing as they have parity, the root needs every top-level vdev but log devices.

use std::sync::Arc;

use crate::vdev::{Kind, Vdev};

/// Why a vdev is as it is (`vdev_state_t` with `vdev_aux_t`), worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VdevState {
    /// Not opened.
    Closed,
    /// Taken offline by the administrator: not opened.
    Offline,
    /// Removed from the system.
    Removed,
    /// Opening it failed.
    CantOpen(Aux),
    /// Taken out of use, by request or since its device did not answer.
    Faulted,
    /// Works, with something wrong below or about it.
    Degraded,
    /// Works.
    Healthy,
}

/// What is wrong (`vdev_aux_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aux {
    /// Nothing.
    None,
    /// The device is not there or did not open.
    OpenFailed,
    /// The label says that the device belongs elsewhere.
    CorruptData,
    /// Too few children work.
    NoReplicas,
    /// The guids of the vdevs do not add up to the uberblock's sum.
    BadGuidSum,
    /// The device is smaller than any vdev may be.
    TooSmall,
    /// No good label, or the device is too small for what its label says.
    BadLabel,
    /// The pool's version is newer than this software.
    VersionNewer,
    /// Faulted by an administrator or a diagnosis.
    External,
    /// The config has no description of this top-level vdev.
    Missing,
    /// The device was split off into another pool.
    SplitPool,
}

impl VdevState {
    /// Whether data may be read from a vdev in this state (`vdev_readable`, `vdev_accessible`).
    pub fn readable(self) -> bool {
        matches!(self, VdevState::Degraded | VdevState::Healthy)
    }
}

/// Counts of children by what they mean to their parent.
struct Tally {
    children: usize,
    offline: usize,
    faulted: usize,
    degraded: usize,
    corrupt: bool,
}

/// What the state of a child is taken to be.
type StateOf<'a> = &'a dyn Fn(&Arc<Vdev>) -> VdevState;

fn tally(is_root: bool, children: &[Arc<Vdev>], state_of: StateOf<'_>) -> Tally {
    let mut t =
        Tally { children: children.len(), offline: 0, faulted: 0, degraded: 0, corrupt: false };
    for child in children {
        // There is nothing to read from these, so nothing is wrong with them.
        if matches!(child.vdev_kind(), Kind::Hole | Kind::Indirect) {
            continue;
        }
        let state = state_of(child);
        match state {
            VdevState::Healthy => {}
            VdevState::Degraded => t.degraded += 1,
            // A pool goes on without its log device.
            _ if is_root && child.is_log() => t.degraded += 1,
            _ => t.faulted += 1,
        }
        t.offline += usize::from(state == VdevState::Offline);
        t.corrupt |= state == VdevState::CantOpen(Aux::CorruptData);
    }
    t
}

/// The state of an interior vdev, given its children and the states that they are taken to be in.
pub(crate) fn of_interior(
    kind: Kind,
    nparity: u64,
    children: &[Arc<Vdev>],
    state_of: StateOf<'_>,
) -> VdevState {
    let t = tally(kind == Kind::Root, children, state_of);
    let allowed = match kind {
        Kind::Root => 0,
        Kind::RaidZ | Kind::Draid => nparity as usize,
        _ => t.children.saturating_sub(1),
    };
    if t.children == 0 {
        VdevState::CantOpen(Aux::BadLabel)
    } else if t.faulted > allowed {
        match kind {
            Kind::Root if t.corrupt => VdevState::CantOpen(Aux::CorruptData),
            Kind::Root | Kind::RaidZ | Kind::Draid => VdevState::CantOpen(Aux::NoReplicas),
            _ if t.offline == t.children => VdevState::Offline,
            _ => VdevState::CantOpen(Aux::NoReplicas),
        }
    } else if t.faulted + t.degraded > 0 {
        VdevState::Degraded
    } else {
        VdevState::Healthy
    }
}
