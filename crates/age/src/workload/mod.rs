//! What is done to a simulated pool, as blocks that are written and given up.
//!
//! | module | workload |
//! |---|---|
//! | `overwrite` | random overwrite of one large file or volume |
//! | `series` | a store of time series: many files whose last block grows |
//! | `blockmap` | where the blocks of a file are that is too large for a table |
//!
//! A [`Workload`] first fills the pool, as one large copy does, and
//! then says for each transaction group which blocks are rewritten. Of a random overwrite it is only
//! random which blocks these are; time series have no randomness but where each file begins.

mod blockmap;
mod overwrite;
mod series;

use crate::space::{Space, Stop};
use crate::spec::{Spec, Work};
use std::time::Duration;

/// Extents of one allocation while a pool is filled, as a fraction of a metaslab.
const FILL_FRACTION: u64 = 16;
/// Extents and files that are allocated in one transaction group while a pool is filled.
const FILL_BATCH: u64 = 20_000;
/// Metaslabs of each vdev that are filled in one transaction group: no more than are loaded ahead.
const FILL_METASLABS: u64 = 8;

/// A workload; see the module's documentation.
pub(crate) trait Workload: Send {
    /// Takes over what is allocated already: ranges of a vdev, which have been claimed.
    fn adopt(&mut self, vdev: u64, ranges: &mut dyn Iterator<Item = (u64, u64)>);

    /// A transaction group of filling. `room`: how many bytes are still to be allocated. Whether
    /// it is done.
    fn fill(&mut self, room: u64, space: &mut Space<'_>) -> Result<bool, Stop>;

    /// A transaction group of changes: what happens from one moment to another.
    fn group(&mut self, from: Duration, to: Duration, space: &mut Space<'_>) -> Result<(), Stop>;

    /// Bytes of memory that it needs.
    fn memory(&self) -> u64;
}

/// The workload that is asked for, on a pool that is cut up in this way.
pub(crate) fn workload(spec: &Spec, pool: &Layout) -> Box<dyn Workload> {
    match &spec.work {
        Work::RandomOverwrite { rate } => Box::new(overwrite::Overwrite::new(spec, *rate, pool)),
        Work::TimeSeries(series) => Box::new(series::Store::new(spec, series, pool)),
    }
}

/// How a pool is cut up.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Its vdevs.
    pub vdevs: Vec<Cut>,
    /// Bytes to be allocated once it is filled.
    pub target: u64,
}

/// How a vdev is cut up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// log2 of the bytes of a sector.
    pub ashift: u32,
    /// log2 of the bytes of a metaslab.
    pub ms_shift: u32,
    /// Metaslabs.
    pub metaslabs: u64,
    /// Bytes that a data block takes.
    pub block: u64,
}

/// In what portions a pool is filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portions {
    /// Bytes of an extent, whole blocks.
    pub extent: u64,
    /// Bytes of a transaction group.
    pub group: u64,
}

impl Layout {
    /// The portions of a pool that is filled with blocks of `block` bytes.
    fn portions(&self, block: u64) -> Portions {
        let least = self.vdevs.iter().map(|v| 1 << v.ms_shift).min().unwrap_or(0);
        let extent = (least / FILL_FRACTION / block).max(1) * block;
        Portions { extent, group: least * FILL_METASLABS * self.vdevs.len() as u64 }
    }
}
