//! The devices that were asked for, as they were found.
//!
//! Invariant: a device is in one place of these alone.

use super::VdevSpec;
use super::devices::Opened;
use std::path::PathBuf;

/// What new devices become.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Top-level vdevs, spares and cache devices.
    New,
    /// A part of a vdev that the pool has.
    Joins,
}

/// One device that was asked for.
pub(super) struct Leaf {
    /// Its full path.
    pub path: PathBuf,
    /// What it is.
    pub facts: Opened,
    /// Whether it becomes a spare.
    pub spare: bool,
    /// Bytes; 0 while it is not opened.
    pub size: u64,
}

/// All of them, by what they are for.
pub(super) struct Found {
    pub tops: Vec<(VdevSpec, Vec<Leaf>)>,
    pub spares: Vec<Leaf>,
    pub caches: Vec<Leaf>,
}

impl Found {
    pub fn all(&self) -> impl Iterator<Item = &Leaf> {
        let tops = self.tops.iter().flat_map(|(_, leaves)| leaves);
        tops.chain(&self.spares).chain(&self.caches)
    }

    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut Leaf> {
        let tops = self.tops.iter_mut().flat_map(|(_, leaves)| leaves);
        tops.chain(&mut self.spares).chain(&mut self.caches)
    }
}
