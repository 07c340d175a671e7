//! The feature of large gang headers (`zio_update_feature`).
//!
//! It becomes active, for good, with the first block that was divided and would have been divided into fewer gang blocks by a
//! larger header ([`GangHeaders`](cenote_store::write::GangHeaders)): in the group that wrote it, so that the next groups
//! write large ones. A block of the MOS that asks for it has it counted by the next group.

use crate::features::count_feature;
use crate::space_write::map::feature_uses;
use crate::sync_core::Core;
use crate::{Disk, EngineError};
use cenote_dsl::write::Result;
use cenote_pool::directory::Directory;

/// The feature of large gang headers.
const LARGE_GANG_HEADERS: &str = "com.klarasystems:dynamic_gang_header";

impl Core {
    /// Makes the feature active, if it is enabled and a block asked for it; in the first pass of group `txg`.
    pub(super) fn sync_gang_headers(&mut self, disk: &Disk, txg: u64) -> Result<()> {
        let headers = disk.writer.gang_headers();
        if headers.are_allowed() || !headers.are_wanted() {
            return Ok(());
        }
        let Some(uses) = feature_uses(&mut self.mos, LARGE_GANG_HEADERS)? else { return Ok(()) };
        if uses == 0 {
            count_feature(&mut self.mos, txg, &disk.outside, LARGE_GANG_HEADERS, 1)?;
        }
        self.large_gang_headers = true;
        Ok(())
    }

    /// A group is on disk: large headers are written if the feature is active there.
    pub(super) fn allow_gang_headers(&self, disk: &Disk) {
        if self.large_gang_headers {
            disk.writer.gang_headers().allow();
        }
    }

    /// What the last group on disk says of it.
    ///
    /// # Errors
    /// The MOS cannot be read.
    pub(super) fn load_gang_headers(&mut self) -> std::result::Result<(), EngineError> {
        let uses = Directory::open(self.mos.synced())?.feature_uses(LARGE_GANG_HEADERS)?;
        self.large_gang_headers = uses.is_some_and(|uses| uses > 0);
        Ok(())
    }
}
