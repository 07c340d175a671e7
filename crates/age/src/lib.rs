//! Predicts when a workload spoils a pool.
//!
//! # Idea
//!
//! A pool that is rewritten in small pieces for months ends with no large free segments. To find out
//! when, this crate has a pool age faster than time: it makes a real pool, on devices in memory that
//! keep nothing but metadata, and has the engine's own allocator, space maps, logs and sync passes
//! work through what a described workload would do to them. Only file data is missing: where a block
//! would be written, an extent is allocated and nothing is sent to it.
//!
//! ```text
//! Spec ── Workload ── which blocks are written and given up in each transaction group
//!            │
//!          Space ──── extents out of the pool's allocator, in a sync task
//!            │
//!        Simulation ─ the engine's passes: space maps, logs, MOS ── SparseDisk
//!            │
//!          Report ─── a row for each step, a verdict ── table, JSON, plot
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`spec`] | what is to be simulated |
//! | [`like`] | the free space of a pool that is there, to begin with |
//! | [`device`] | devices of any size that keep metadata only |
//! | `space` | extents for simulated blocks; gangs |
//! | `indirect` | the model of metadata above data |
//! | [`workload`] | random overwrite, time series |
//! | [`sim`] | the pool and its transaction groups |
//! | [`report`] | rows and verdict |
//! | [`plot`] | the report as a picture |
//!
//! # How far to believe it
//!
//! Free space, space maps and what is written for them are the engine's own. Sizes and numbers of
//! indirect blocks are a model; a test compares fullness and fragmentation with those of a pool that a
//! real file is written to. Of the free space there, up to a fifth was in segments of another size;
//! why is not known. There are no snapshots, and no reads that would compete with allocation.

pub mod device;
mod indirect;
pub mod like;
pub mod plot;
pub mod report;
pub mod sim;
mod space;
pub mod spec;
pub mod workload;

pub use like::PoolModel;
pub use report::{Report, Row, Verdict};
pub use sim::{Event, Progress, Simulation, Watch};
pub use space::Tally;
pub use spec::{AgeError, Series, Spec, Work};
