//! What a change works with: the object set in the open txg, and what is true for all of it.

use super::Settings;
use super::books::Books;
use crate::fs::{CaseSensitivity, SYSTEM_ATTRIBUTES};
use crate::quota::Quotas;
use crate::sa::Registry;
use cenote_dmu::outside::Time;
use cenote_dmu::write::OpenObjectSet;
use std::sync::Arc;

/// How names are compared, and which there may be.
#[derive(Clone, Copy)]
pub(crate) struct NameRules {
    /// Normalization flags of directories.
    pub(crate) flags: u64,
    /// `casesensitivity`.
    pub(crate) case: CaseSensitivity,
    /// Names are UTF-8.
    pub(crate) utf8_only: bool,
}

/// One change of a file system.
pub(crate) struct Cx<'a> {
    /// The object set, under its lock.
    pub(crate) os: &'a mut OpenObjectSet,
    /// The open txg.
    pub(crate) txg: u64,
    /// The time of the change.
    pub(crate) now: Time,
    /// The registry of system attributes as it is now: no other thread changes it meanwhile.
    pub(crate) registry: Arc<Registry>,
    /// What to tell beside the object set once the change is made.
    pub(crate) after: After,
    /// What it does to names.
    pub(crate) books: Books,
    /// The properties, as they are now.
    pub(crate) settings: &'a Settings,
    /// ZPL version.
    pub(crate) version: u64,
    /// How names are compared.
    pub(crate) names: NameRules,
    /// ZAPs of quotas.
    pub(crate) quotas: Quotas,
    /// The ZAP of unlinked nodes.
    pub(crate) unlinked_set: Option<u64>,
    /// Nodes without names stay there for now.
    pub(crate) keeps_unlinked: bool,
}

/// What is kept beside the object set and follows a change of it: nothing before the change is made,
/// since a change can be taken back, and made again.
#[derive(Default)]
pub(crate) struct After {
    /// The registry of system attributes, with what was added to it.
    pub(crate) registry: Option<Arc<Registry>>,
    /// Nodes that are orphans from now on (whether they may get a name), or are orphans no more.
    pub(crate) orphans: Vec<(u64, Option<bool>)>,
}

impl Cx<'_> {
    /// Whether nodes have no system attributes: they are of the kind from before version 5, and stay so.
    pub(crate) fn has_old_nodes(&self) -> bool {
        self.version < SYSTEM_ATTRIBUTES
    }

    /// Has others see what was added to the registry.
    pub(crate) fn publish(&mut self, registry: Registry) {
        self.registry = Arc::new(registry);
        self.after.registry = Some(self.registry.clone());
    }

    /// A salt for the hash of a new ZAP: different for each, the same when all is done again.
    pub(crate) fn salt(&self, object: u64) -> u64 {
        let mut x = object ^ self.txg.rotate_left(32) ^ (self.now.0 as u64).rotate_left(17);
        x ^= u64::from(self.now.1).rotate_left(40);
        // The finalizer of splitmix64.
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31) | 1
    }
}
