//! What the user wants simulated.
//!
//! A [`Spec`] describes a pool (size, vdevs, sectors, fill, log space maps), what is done to it ([`Work`]), and the
//! time: how long in all, from row to row of the report, and from one transaction group to the next. All time is
//! simulated. The same spec gives the same simulation, since all randomness begins at its seed.
//!
//! [`Spec::like`] takes the pool's part from a model of a real one.
//!
//! Invariant: what [`Spec::check`] lets through can be simulated; it refuses in the words that the user reads.

use crate::like::{PoolModel, VdevModel};
use cenote_dmu::write::{MAX_INDIRECT_SHIFT, MIN_INDIRECT_SHIFT};
use cenote_engine::create::MIN_DEVICE;
use cenote_pool::config::ASHIFTS;
use serde::Serialize;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Most vdevs of a simulated pool.
pub const MAX_VDEVS: u64 = 255;
/// Sizes of a data block.
const BLOCKS: RangeInclusive<u64> = 512..=1 << 20;
/// Sizes of an indirect block.
const INDIRECT: RangeInclusive<u64> = 1 << MIN_INDIRECT_SHIFT..=1 << MAX_INDIRECT_SHIFT;

/// Why nothing can be simulated.
#[derive(Debug, thiserror::Error)]
pub enum AgeError {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Spec(String),
    /// The pool could not be made.
    #[error(transparent)]
    Create(#[from] cenote_engine::create::CreateError),
    /// The pool failed.
    #[error(transparent)]
    Engine(#[from] cenote_engine::EngineError),
    /// The pool is not as the simulation left it.
    #[error("the simulation has lost track: {0}")]
    Broken(String),
    /// The pool that was named as a model cannot be one.
    #[error("{0}")]
    Like(String),
    /// The plot could not be drawn.
    #[error("plot: {0}")]
    Plot(String),
}

/// A store of time series in columnar files; see [`crate::workload`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Files of each kind: 1-minute, 5-minute and 3-hour records.
    pub files: [u64; 3],
    /// Bytes of a record.
    pub record: u64,
    /// Seconds between two updates of a file.
    pub every: u64,
    /// How far data compresses: logical bytes for one on disk. Below 1: it is not compressed, nor
    /// is what a block does not hold yet.
    pub ratio: f64,
    /// The oldest data is deleted so that no more is allocated than at the beginning.
    pub hold: bool,
}

impl Default for Series {
    fn default() -> Series {
        Series { files: [100_000; 3], record: 32, every: 300, ratio: 0.0, hold: false }
    }
}

/// What is done to the pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// One large file or volume, blocks of which are overwritten in no order.
    RandomOverwrite {
        /// Bytes of data per second.
        rate: u64,
    },
    /// A store of time series.
    TimeSeries(Series),
}

/// A simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spec {
    /// The pool whose free space it begins with; then size, vdevs, ashift, fill and logs are that
    /// pool's ([`Spec::like`]).
    pub like: Option<String>,
    /// Bytes of all devices.
    pub size: u64,
    /// Top-level vdevs, each a single device. (Mirrors of such devices age alike.)
    pub vdevs: u64,
    /// log2 of the bytes of a sector.
    pub ashift: u32,
    /// Percentage of the space that is allocated at first.
    pub fill: f64,
    /// Bytes of a data block.
    pub block: u64,
    /// Bytes of an indirect block; `None`: as the engine makes them.
    pub indirect: Option<u64>,
    /// What is done.
    pub work: Work,
    /// How long, in simulated time.
    pub time: Duration,
    /// From one row of the report to the next.
    pub step: Duration,
    /// From one transaction group to the next.
    pub txg: Duration,
    /// Whether the pool has log space maps.
    pub logs: bool,
    /// Where randomness begins.
    pub seed: u64,
}

impl Default for Spec {
    fn default() -> Spec {
        let day = Duration::from_secs(86_400);
        Spec {
            like: None,
            size: 100 << 40,
            vdevs: 8,
            ashift: 12,
            fill: 65.0,
            block: 8 << 10,
            indirect: None,
            work: Work::TimeSeries(Series::default()),
            time: 30 * day,
            step: day,
            txg: Duration::from_secs(5),
            logs: true,
            seed: 1,
        }
    }
}

impl Spec {
    /// This one, but of a pool like `model`.
    pub fn like(self, model: &PoolModel) -> Spec {
        let sum = |of: fn(&VdevModel) -> u64| model.vdevs.iter().map(of).sum::<u64>();
        let (space, free) = (sum(|v| v.usage().0), sum(|v| v.usage().1));
        Spec {
            like: Some(model.name.clone()),
            size: sum(|v| v.asize),
            vdevs: model.vdevs.len() as u64,
            ashift: model.vdevs.iter().map(|v| v.ashift).max().unwrap_or(self.ashift),
            fill: (space - free) as f64 * 100.0 / space.max(1) as f64,
            logs: model.logs,
            ..self
        }
    }

    /// Bytes of a sector.
    pub fn sector(&self) -> u64 {
        1 << self.ashift
    }

    /// Bytes that a block of data takes.
    pub fn allocated_block(&self) -> u64 {
        self.block.next_multiple_of(self.sector())
    }

    /// Transaction groups in all.
    pub fn groups(&self) -> u64 {
        u64::try_from(self.time.as_nanos() / self.txg.as_nanos().max(1)).unwrap_or(u64::MAX)
    }

    /// Whether it can be simulated.
    ///
    /// # Errors
    /// [`AgeError::Spec`]: what cannot.
    pub fn check(&self) -> Result<(), AgeError> {
        let day = Duration::from_secs(86_400);
        let demands = [
            (self.vdevs >= 1 && self.vdevs <= MAX_VDEVS, "there are 1 to 255 vdevs"),
            (
                self.like.is_some() || self.size / self.vdevs.max(1) >= MIN_DEVICE,
                "a vdev has at least 64 MiB",
            ),
            (self.size <= 1 << 55, "a pool has at most 32 PiB"),
            (ASHIFTS.contains(&u64::from(self.ashift)), "ashift is from 9 to 16"),
            (
                self.like.is_some() || (1.0..=95.0).contains(&self.fill),
                "the fill is from 1% to 95%",
            ),
            (
                BLOCKS.contains(&self.block) && self.block.is_power_of_two(),
                "a block is a power of two from 512 to 1M",
            ),
            (
                self.indirect.is_none_or(|n| INDIRECT.contains(&n) && n.is_power_of_two()),
                "an indirect block is a power of two from 4K to 128K",
            ),
            (
                !self.txg.is_zero() && self.txg <= Duration::from_secs(3600),
                "a transaction group takes at most an hour",
            ),
            (self.step >= self.txg, "a step is at least one transaction group"),
            (
                self.time >= self.txg && self.time <= 36_500 * day,
                "the time is from one transaction group to 100 years",
            ),
        ];
        self.demand(&demands)?;
        match &self.work {
            Work::RandomOverwrite { rate } => self.demand(&[(*rate > 0, "the rate is not 0")]),
            Work::TimeSeries(s) => self.demand(&[
                (s.files.iter().sum::<u64>() > 0, "there is at least one file"),
                (
                    s.files.iter().all(|n| *n <= 100_000_000),
                    "there are at most 100 million files of a kind",
                ),
                (
                    s.record > 0 && self.block.is_multiple_of(s.record),
                    "a block is a whole number of records",
                ),
                (self.block / s.record.max(1) >= 5, "a block has at least five records"),
                (
                    s.every >= 1 && Duration::from_secs(s.every) >= self.txg,
                    "a file is updated at most once in a transaction group",
                ),
                (
                    s.ratio == 0.0 || (1.0..=100.0).contains(&s.ratio),
                    "data compresses 1 to 100 times",
                ),
            ]),
        }
    }

    fn demand(&self, all: &[(bool, &str)]) -> Result<(), AgeError> {
        match all.iter().find(|(holds, _)| !holds) {
            Some((_, what)) => Err(AgeError::Spec((*what).to_string())),
            None => Ok(()),
        }
    }
}
