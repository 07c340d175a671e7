//! Allocation.

mod bits;
mod dense;
mod space;
mod sparse;

pub use space::{Extent, FreeSpace, Loading, SEGMENT_BITS};
