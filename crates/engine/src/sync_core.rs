//! What the thread that writes transaction groups owns.
//!
//! Invariant: it is changed with the lock of the sync thread alone, and is of a group that is on disk when no group is being
//! written.

use crate::space_write::SpaceMaps;
use cenote_dmu::write::{MetaObjectSet, Synced};
use cenote_dsl::write::deadlist::Keys;
use cenote_format::blkptr::BlockPointer;
use cenote_format::label::Uberblock;
use cenote_pool::config_write::PoolConfig;
use std::ops::Range;

/// What the sync thread owns.
pub(crate) struct Core {
    /// The MOS.
    pub mos: MetaObjectSet,
    /// Space on disk.
    pub maps: SpaceMaps,
    /// What the config says.
    pub config: PoolConfig,
    /// The last uberblock.
    pub uberblock: Uberblock,
    /// The config and all labels are to be written.
    pub config_dirty: bool,
    /// Blocks that are to be freed.
    pub frees: Vec<BlockPointer>,
    /// What the last sync of the MOS itself wrote and freed, not yet charged to it.
    pub uncharged: Option<Synced>,
    /// Destroyed datasets are still being freed.
    pub destroying: bool,
    /// A checkpoint may have to be discarded.
    pub discarding: bool,
    /// Destroyed datasets are not freed, since a checkpoint leaves no room for that.
    pub waits_to_free: bool,
    /// Keys of deadlists, from group to group.
    pub deadlists: Keys,
    /// What devices missed, as far as it is known in this group, by leaf. Asked for several times, so
    /// that a leaf may be in it more than once.
    pub missed: Vec<(u64, Vec<Range<u64>>)>,
    /// Bytes that the mapping of a removed vdev became shorter by in this group.
    pub mapping_less: u64,
    /// The config was written, which is not listed as an event yet.
    pub config_written: bool,
    /// Up to where records of the history are listed as events.
    pub history_end: Option<u64>,
    /// The feature of large gang headers is active.
    pub large_gang_headers: bool,
    /// When it was last noted at what time a group was written: seconds since 1970.
    pub noted: Option<u64>,
}

impl Core {
    /// The state of a pool before its first transaction group is written.
    pub(super) fn new(
        mos: MetaObjectSet,
        maps: SpaceMaps,
        config: PoolConfig,
        uberblock: Uberblock,
    ) -> Core {
        Core {
            mos,
            maps,
            config,
            uberblock,
            config_dirty: true,
            frees: Vec::new(),
            uncharged: None,
            destroying: true,
            discarding: true,
            waits_to_free: false,
            deadlists: Keys::default(),
            mapping_less: 0,
            missed: Vec::new(),
            config_written: false,
            history_end: None,
            large_gang_headers: false,
            noted: None,
        }
    }
}
