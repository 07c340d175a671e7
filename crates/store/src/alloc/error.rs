//! Why space was not allocated or freed.

use crate::rangetree::RangeError;

/// Why nothing was allocated or freed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// No free segment is large enough; `largest` bytes (physical) of the class asked for, or of
    /// one that it falls back to, would do. The block can be written as a gang.
    #[error("no free segment of the size, the largest holds {largest} bytes")]
    NoSegment {
        /// Largest block for which there is sure to be room, in physical bytes.
        largest: u64,
    },
    /// There is not even room for a sector (`ENOSPC`).
    #[error("out of space")]
    NoSpace,
    /// The request makes no sense: no bytes, or a number of copies that cannot be.
    #[error("a request for {psize} bytes in {copies} copies")]
    BadRequest {
        /// Bytes asked for.
        psize: u64,
        /// Copies asked for.
        copies: usize,
    },
    /// The vdev is not one that is allocated from.
    #[error("vdev {0} has no metaslabs")]
    NoVdev(u64),
    /// The range is free already, or is not in one metaslab.
    #[error("vdev {vdev}: {source}")]
    Range {
        /// Id of the top-level vdev.
        vdev: u64,
        /// What is wrong.
        source: RangeError,
    },
    /// The range is free already.
    #[error(
        "vdev {vdev} metaslab {metaslab}: {:#x}-{:#x} is freed in group {txg}, but {:#x}-{:#x} is free",
        .range.0, .range.1, .free.0, .free.1
    )]
    FreedTwice {
        /// Id of the top-level vdev.
        vdev: u64,
        /// Number of the metaslab.
        metaslab: u64,
        /// The group in which it is freed once more.
        txg: u64,
        /// First byte, and the one after the last.
        range: (u64, u64),
        /// The same of what is free.
        free: (u64, u64),
    },
    /// A pool that cannot be: vdevs named twice, or metaslabs of impossible sizes.
    #[error("vdev {0}: impossible metaslabs")]
    BadVdev(u64),
}
