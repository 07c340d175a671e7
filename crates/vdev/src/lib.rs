//! Devices, labels and the tree of vdevs: floor 1 of cenote.
//!
//! Callers name a block by DVA (top-level vdev, offset, size). To read it they hand in a
//! function that says whether bytes are the block they want; this crate finds bytes that pass
//! it, from whichever copies and parity there are, and says which of those were
//! wrong. To write it they hand in its bytes, which go to every copy and column that can be
//! written. It knows nothing of block pointers or checksums.
//!
//! | module | holds |
//! |---|---|
//! | [`device`] | the trait of devices, files and block devices |
//! | `uring`, `direct` | batches of reads by io_uring, past the page cache; with unsafe code |
//! | `slots` | memory in huge pages for them; with unsafe code |
//! | [`object`], `growing` | a device in an object store; devices whose addresses are never used twice |
//! | [`inject`] | devices in memory, faulty, slow and forgetful ones, for tests |
//! | [`labels`] | reading the four labels of a device |
//! | [`label_init`] | the labels of a new device, clearing them, whose they are |
//! | [`label_sync`] | committing a transaction group: labels and uberblocks |
//! | `state` | health, and how it adds up to the root |
//! | `vdev`, `assemble` | a node of the tree; building the tree from a config |
//! | `tree` | reading blocks |
//! | `stretch` | reading many that lie side by side |
//! | [`mod@write`] | writing blocks, making them durable |
//! | `submit` | aggregation, batches, parallel devices |
//! | `queue` | classes of requests, and their shares of a device |
//! | `threads` | threads that wait for devices |
//! | `mirror`, `raidz`, `indirect` | copies, columns and parity, removed vdevs |
//! | [`draid`] | where the columns of dRAID are |
//! | `fence` | pools that may be another host's by now |
//! | `fault` | which leaf gave wrong bytes, and putting the right ones there |
//! | [`injection`] | faults that an administrator injects into devices in use |
//! | `scrub` | reading every copy, and what leaves lack |
//! | `rebuild` | copying what a vdev holds to leaves that lack it, by place |
//! | `alarm` | tells the engine that a thread found the pool's state wrong |
//! | [`waiting`] | a thread says that it may wait now |
//! | `probe` | devices that stop answering, and that come back |
//! | `lag` | what leaves lack that their dirty time logs do not say |
//! | `surgery` | devices that join and leave a vdev while it is in use |
//! | [`cache_device`] | cache devices, which are in no tree |
//! | `backing` | files behind loop devices |
//! | `partition` | partitions of disk images |
//! | `parts` | images that were split, put together |
//! | [`sought`] | vdevs that begin somewhere in an image |
//! | `holes`, [`mapfile`] | images of which parts could not be read, and the maps that say so |
//! | [`stats`] | counters |
//! | [`traffic`] | what was written, by what it carries |
//!
//! # The path of a read
//!
//! [`VdevTree::read_many`] resolves each block (a removed vdev's to where its data are now),
//! plans which bytes of which leaves to read first, submits the reads of the whole batch
//! together, and finishes each block: verified as read, or else by trying other copies or
//! reconstructing columns. It reports each leaf whose bytes were wrong ([`Fault`]); the caller counts
//! that, or has it healed ([`VdevTree::heal`]), or forgets it.
//!
//! # The path of a write
//!
//! [`VdevTree::write_many`] lays each block out as columns (one of a leaf or mirror, parity and
//! data of RAID-Z), submits the writes of the whole batch together, and takes a block as written
//! if enough columns are. [`VdevTree::flush_all`] makes durable what was written, and
//! [`VdevTree::sync_labels`] then commits it.

mod alarm;
mod assemble;
mod backing;
pub mod cache_device;
pub mod deadline;
pub mod device;
mod direct;
mod doubt;
pub mod draid;
mod dtl;
pub mod events;
mod fault;
mod fence;
mod growing;
mod holes;
mod indirect;
mod initialize;
pub mod inject;
pub mod injection;
pub mod label_init;
pub mod label_sync;
#[cfg(test)]
mod label_sync_tests;
pub mod labels;
mod lag;
pub mod latency;
pub mod look;
pub mod mapfile;
mod mirror;
pub mod object;
mod partition;
mod parts;
pub mod patience;
mod probe;
mod queue;
mod raidz;
mod rebuild;
mod request_sizes;
mod scrub;
mod slots;
pub mod sought;
mod state;
pub mod stats;
mod stretch;
mod submit;
mod surgery;
pub mod suspend;
#[cfg(test)]
mod testing;
mod threads;
pub mod traffic;
mod tree;
#[cfg(test)]
mod tree_tests;
mod trim;
pub mod tunable;
pub mod tunables;
mod uring;
mod vacant;
mod vdev;
pub mod waiting;
pub mod write;

pub use alarm::Alarm;
pub use backing::is_held;
pub use cache_device::CacheDevice;
pub use device::{
    Device, Identity, ReadReq, WriteReq, first_partition, open_device, open_device_rw,
};
pub use fault::{Fault, Outcome};
pub use fence::since_boot;
pub use growing::{GROWING_FIGURES, Growing, GrowingFigure, GrowingFigures, LiveRanges, VERBS};
pub use label_init::{
    LabelOwner, LabelState, SavedLabels, all_owners, clear_labels, clear_labels_of, init_labels,
    label_owner, rewrite_labels,
};
pub use label_sync::{LabelUpdate, write_heartbeat};
pub use labels::{DeviceLabels, read_labels};
pub use lag::newest_group;
pub use mirror::choices as mirror_choices;
pub use partition::{Partition, is_in_image, partitions, path_at};
pub use parts::is_later_part;
pub use probe::Reopen;
pub use queue::{CLASSES, Priority, QueueFigures};
pub use raidz::copying::Copying;
pub use raidz::map::ColumnExtent;
pub use raidz::moving::{Moved, NotMoved, Progress};
pub use raidz::reflow::{Reflow, SCRATCH_LEFT, SCRATCH_UNUSED, SCRATCH_VALID};
pub use rebuild::{Rebuilt, Standing};
pub use request_sizes::{SIZE_BUCKETS, SizeFigures, SizeHistogram};
pub use scrub::{Checked, Repaired};
pub use state::{Aux, VdevState};
pub use stretch::Stretch;
pub use surgery::Replaced;
pub use suspend::Suspension;
pub use tree::VdevTree;
pub use vdev::{OUT_OF_USE, Vdev};
pub use write::{Asking, BlockWrite, FlushFailures, PlacedCopy, RepairMark};

use std::sync::Arc;

use cenote_format::abd::Abd;
use cenote_format::nvlist::NvList;

/// Finds the device of a leaf by the leaf's guid and config; `None` if it is missing.
pub type FindDevice<'a> = &'a mut dyn FnMut(u64, &NvList) -> Option<Arc<dyn Device>>;

/// Error of reading or writing a vdev or of building the tree.
#[derive(Debug, Clone, thiserror::Error)]
pub enum VdevError {
    /// No copy could be read, or a block cannot be there.
    #[error("vdev {vdev} offset {offset:#x}: {why}")]
    Io {
        /// Id of the top-level vdev.
        vdev: u64,
        /// Byte offset on it.
        offset: u64,
        /// What went wrong.
        why: String,
    },
    /// Too little of a block could be written.
    #[error("vdev {vdev} offset {offset:#x}: {why}")]
    Write {
        /// Id of the top-level vdev.
        vdev: u64,
        /// Byte offset on it.
        offset: u64,
        /// What went wrong.
        why: String,
    },
    /// Nothing that was read or reconstructed is the block.
    #[error("vdev {vdev} offset {offset:#x}: checksum mismatch")]
    Checksum {
        /// Id of the top-level vdev.
        vdev: u64,
        /// Byte offset on it.
        offset: u64,
    },
    /// What was written to a top-level vdev could not be made durable.
    #[error("vdev {vdev}: flush: {why}")]
    Flush {
        /// Id of the top-level vdev.
        vdev: u64,
        /// What went wrong.
        why: String,
    },
    /// The config of a top-level vdev does not fit its labels.
    #[error("vdev {vdev}: label: {why}")]
    Config {
        /// Id of the top-level vdev.
        vdev: u64,
        /// What does not fit.
        why: String,
    },
    /// The labels of a top-level vdev could not be written.
    #[error("vdev {vdev}: label: {why}")]
    Label {
        /// Id of the top-level vdev.
        vdev: u64,
        /// What went wrong.
        why: String,
    },
    /// The uberblock could not be written anywhere.
    #[error("uberblock of txg {txg}: {why}")]
    Uberblock {
        /// Its transaction group.
        txg: u64,
        /// What went wrong.
        why: String,
    },
    /// The labels that are written last could not be. The transaction group is on disk.
    #[error("{0} (the transaction group is on disk)")]
    Committed(Box<VdevError>),
    /// There is no vdev with this id or guid.
    #[error("no such vdev: {0}")]
    NoVdev(u64),
    /// The config describes something that this software does not support.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// This program found its own state wrong while it read or wrote
    /// ([`cenote_format::invariant`](mod@cenote_format::invariant)).
    #[error("{0}")]
    Broken(String),
}

impl VdevError {
    /// Whether a device did not take what should be written: it may when it is back.
    pub fn is_of_device(&self) -> bool {
        match self {
            VdevError::Write { .. }
            | VdevError::Flush { .. }
            | VdevError::Label { .. }
            | VdevError::Uberblock { .. } => true,
            VdevError::Committed(error) => error.is_of_device(),
            VdevError::Io { .. }
            | VdevError::Checksum { .. }
            | VdevError::Config { .. }
            | VdevError::NoVdev(_)
            | VdevError::Unsupported(_)
            | VdevError::Broken(_) => false,
        }
    }
}

/// Says whether bytes read are the block that was asked for.
pub type Verify<'a> = &'a (dyn Fn(&Abd) -> bool + Sync);

/// One block of a batch.
#[derive(Clone, Copy)]
pub struct BlockRead<'a> {
    /// Id of the top-level vdev.
    pub vdev: u64,
    /// Byte offset on it, as in the DVA.
    pub offset: u64,
    /// Bytes to read: the block's psize.
    pub size: u64,
    /// Transaction group of the block's physical birth.
    pub txg: u64,
    /// Whether bytes are the block.
    pub verify: Verify<'a>,
}

/// One piece of a removed vdev's mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remap {
    /// Id of the top-level vdev that it is on now.
    pub vdev: u64,
    /// Byte offset there.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// Bytes of a top-level vdev that may have been removed, followed through mappings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remapped {
    /// Where they are, in order: on vdevs that hold data.
    pub pieces: Vec<Remap>,
    /// Where they were: on each removed vdev on the way.
    pub removed: Vec<Remap>,
}

/// The mapping of an indirect vdev, supplied once the meta object set can be read.
pub trait IndirectMap: Send + Sync {
    /// The pieces that cover bytes `offset..offset + size` of the removed vdev, in order. `None`
    /// if some of them are not mapped.
    fn remap(&self, offset: u64, size: u64) -> Option<Vec<Remap>>;
}
