//! What is done to a simulated pool, as blocks that are written and given up.
//!
//! | module | workload |
//! |---|---|
//! | `overwrite` | random overwrite of one large file or volume |
//! | `series` | a store of time series: many files whose last block grows |
//! | `blockmap` | where the blocks of a file are that is too large for a table |
//!
//! A [`Workload`] first fills the pool, as somebody does who copies everything there at once, and
//! then says for each transaction group which blocks are rewritten. Of a random overwrite it is only
//! random which blocks these are; time series have no randomness but where each file begins.

mod blockmap;
mod overwrite;
mod series;

use crate::space::{Space, Stop};
use crate::spec::{Spec, Work};
use std::time::Duration;

/// Extents of one allocation while a pool is filled, as a fraction of a metaslab.
const FILL_FRACTION: u64 = 64;
/// Extents that are allocated in one transaction group while a pool is filled.
const FILL_BATCH: u64 = 20_000;

/// A workload; see the module's documentation.
pub(crate) trait Workload: Send {
    /// A transaction group of filling. `room`: how many bytes are still to be allocated. Whether
    /// it is done.
    fn fill(&mut self, room: u64, space: &mut Space<'_>) -> Result<bool, Stop>;

    /// A transaction group of changes: what happens from one moment to another.
    fn group(&mut self, from: Duration, to: Duration, space: &mut Space<'_>) -> Result<(), Stop>;

    /// Bytes of memory that it needs.
    fn memory(&self) -> u64;
}

/// The workload that is asked for, on a pool with so many bytes in each of its metaslabs.
pub(crate) fn workload(spec: &Spec, pool: &Layout) -> Box<dyn Workload> {
    match &spec.work {
        Work::RandomOverwrite { rate } => Box::new(overwrite::Overwrite::new(spec, *rate, pool)),
        Work::TimeSeries(series) => Box::new(series::Store::new(spec, series, pool)),
    }
}

/// How a pool is cut up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Vdevs.
    pub vdevs: u64,
    /// log2 of the bytes of a metaslab.
    pub ms_shift: u32,
    /// Metaslabs of each vdev.
    pub metaslabs: u64,
    /// Bytes that are to be allocated once it is filled.
    pub target: u64,
}

impl Layout {
    /// Bytes in which a pool of blocks of `block` bytes is filled.
    fn fill_extent(&self, block: u64) -> u64 {
        ((1 << self.ms_shift) / FILL_FRACTION / block).max(1) * block
    }
}
