//! How much a transaction group frees (`zfs_async_block_max_blocks`, `zfs_free_min_time_ms`).

/// How much of what waits is freed in a transaction group.
#[derive(Clone, Copy)]
pub struct Budget<'b> {
    /// Blocks.
    pub blocks: u64,
    /// Whether the time is up.
    pub is_late: &'b dyn Fn() -> bool,
}
