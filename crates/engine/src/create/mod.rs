//! Making devices into a pool: creating one, and adding to one.
//!
//! ```text
//! arguments ── parse ── Layout ── prepare ── Prepared ──┬── write_labels   labels, txg 0
//!   (zpool create tank mirror /a /b log /c)             ├── vdev_tree      for PoolConfig
//!                                                       ├── tree           a VdevTree
//!                                                       └── populate       the MOS of the first txg
//! ```
//!
//! [`prepare`] does all that can fail before anything is written: it opens every device for this
//! process alone, finds out whose it is, compares sizes and redundancy, and works out what the config
//! will say of each vdev (guids, `ashift`, `asize`, metaslabs). [`write_labels`] then gives every
//! device labels of transaction group 0, which say that it belongs to the pool but that the pool is
//! not there yet. The first transaction group ([`FIRST_TXG`]) makes it so: [`populate`] fills the
//! MOS with what is there besides datasets and space maps, and committing it rewrites the labels. A
//! crash before that leaves devices that belong to no pool.
//!
//! | room | what |
//! |---|---|
//! | `parse` | the arguments of `zpool create` and `zpool add` |
//! | `devices` | opening, sizes, sectors |
//! | `draid` | words and spares of dRAID |
//! | `check` | devices in use, redundancy that does not match |
//! | `probe` | file systems and the like that are on devices |
//! | `loops` | loop devices over files |
//! | `found` | the devices that were asked for, as they were found |
//! | `layout` | guids, sizes, the config of the vdevs |
//! | `populate` | the MOS of the first transaction group |
//! | `error` | the words of refusals |
//!
//! Invariants: nothing is written by [`prepare`]; ids of top-level vdevs are not used again while
//! the pool lives, holes stay holes.

mod check;
mod devices;
mod draid;
mod error;
mod found;
mod layout;
mod loops;
mod parse;
mod populate;
mod prepared;
mod probe;

pub(crate) use check::what_is_on;
pub use check::{check_features, with_needed};
pub use devices::{LeafKind, OpenDevices, Opened, SystemDevices, check_answers};
pub use error::CreateError;
use found::Role;
pub(crate) use layout::{leaf_label, spare_label, write_label};
pub use loops::LoopUser;
pub use parse::parse;
pub use populate::{NewPool, new_salt, populate};
pub use prepared::{NewDevice, Prepared};

use cenote_dmu::outside::Chance;
use cenote_format::nvlist::NvList;
use cenote_pool::Pool;
use cenote_pool::config_write::PoolConfig;
use cenote_vdev::draid::Shape;
use std::path::PathBuf;

/// Transaction group that makes a pool (`TXG_INITIAL`).
pub const FIRST_TXG: u64 = 4;

/// Smallest device that a pool can be made of (`SPA_MINDEVSIZE`).
pub const MIN_DEVICE: u64 = 64 << 20;

/// What the blocks on a top-level vdev are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// Any.
    #[default]
    Normal,
    /// Intent logs.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Deduplication tables.
    Dedup,
}

impl Class {
    /// The name in the vdev's ZAP (`org.zfsonlinux:allocation_bias`); no entry for normal.
    pub fn bias(self) -> Option<&'static str> {
        match self {
            Class::Normal => None,
            Class::Log => Some("log"),
            Class::Special => Some("special"),
            Class::Dedup => Some("dedup"),
        }
    }
}

/// How the devices of a top-level vdev are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redundancy {
    /// One device by itself.
    Single,
    /// Copies on all.
    Mirror,
    /// RAID-Z with this much parity: 1 to 3.
    RaidZ(u8),
    /// dRAID, of which the shape says how many devices there are.
    Draid(Shape),
}

/// A top-level vdev that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VdevSpec {
    /// How its devices are put together.
    pub redundancy: Redundancy,
    /// Its devices: one if [`Redundancy::Single`].
    pub devices: Vec<PathBuf>,
    /// What it is for.
    pub class: Class,
    /// log2 of the bytes of a metaslab; `None`: as suits its size.
    pub metaslab_shift: Option<u32>,
}

impl VdevSpec {
    /// Of these devices, for any blocks, cut up as suits its size.
    pub fn new(redundancy: Redundancy, devices: Vec<PathBuf>) -> VdevSpec {
        VdevSpec { redundancy, devices, class: Class::Normal, metaslab_shift: None }
    }
}

/// The vdevs that are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Top-level vdevs in order.
    pub tops: Vec<VdevSpec>,
    /// Hot spares.
    pub spares: Vec<PathBuf>,
    /// Cache devices.
    pub caches: Vec<PathBuf>,
}

/// A pool that is imported on this system: its devices are not for others.
#[derive(Clone, Debug, Default)]
pub struct Imported {
    /// Its name.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// Guids of all its devices.
    pub devices: Vec<u64>,
    /// Guids of its spares.
    pub spares: Vec<u64>,
    /// Guids of its cache devices.
    pub caches: Vec<u64>,
}

/// What is done although something speaks against it; `-f` is all of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Force {
    /// Devices are taken that belonged to something (`--allow-in-use`).
    pub in_use: bool,
    /// Vdevs may differ in redundancy (`--allow-replication-mismatch`).
    pub replication: bool,
}

impl From<bool> for Force {
    fn from(all: bool) -> Force {
        Force { in_use: all, replication: all }
    }
}

/// What to prepare.
pub struct CreateSpec<'a> {
    /// Name of the pool.
    pub name: &'a str,
    /// The vdevs.
    pub layout: &'a Layout,
    /// Property `ashift`; 0: as the devices ask for.
    pub ashift: u64,
    /// What is not checked.
    pub force: Force,
    /// To add to a pool: its config. `None`: create one.
    pub pool: Option<&'a NvList>,
    /// Transaction group that creates the vdevs: [`FIRST_TXG`] for a new pool.
    pub txg: u64,
    /// The pools imported on this system.
    pub imported: &'a [Imported],
    /// Where devices come from: [`SystemDevices`].
    pub devices: &'a dyn OpenDevices,
    /// Where guids come from.
    pub chance: &'a Chance,
}

impl CreateSpec<'_> {
    /// What is being done, in the words of messages.
    fn what(&self) -> String {
        match self.pool {
            None => format!("create '{}'", self.name),
            Some(_) => format!("add to '{}'", self.name),
        }
    }

    pub(crate) fn refuse(&self, why: impl Into<String>) -> CreateError {
        CreateError::Refused { what: self.what(), why: why.into() }
    }
}

/// Opens and checks the devices, and works out what the config will say. Nothing is written.
///
/// # Errors
/// See [`CreateError`].
pub fn prepare(spec: &CreateSpec<'_>) -> Result<Prepared, CreateError> {
    layout::prepare(spec, Role::New)
}

/// What a device that is to join a vdev has to know of its pool. The pool is not kept open for it.
#[derive(Clone)]
pub struct Joining {
    name: String,
    config: NvList,
    txg: u64,
    /// The property `ashift`.
    ashift: u64,
}

impl Joining {
    /// Of this pool.
    pub fn to(pool: &Pool) -> Joining {
        let ashift = pool.get("ashift").and_then(|set| set.exact.parse().ok()).unwrap_or(0);
        let (name, config) = (pool.name().to_string(), pool.config().clone());
        Joining { name, config, txg: pool.uberblock().txg.saturating_add(1), ashift }
    }

    /// Opens and checks the single device of `layout`, to join a vdev (`make_root_vdev`). `ashift`: the sectors that were asked for.
    /// `force`: also if something is on it. `None`: it is not a single device.
    ///
    /// # Errors
    /// See [`CreateError`].
    pub fn prepare(
        &self,
        layout: &Layout,
        ashift: Option<u64>,
        force: bool,
        imported: &[Imported],
    ) -> Result<Option<NewDevice>, CreateError> {
        let spec = CreateSpec {
            name: &self.name,
            layout,
            ashift: ashift.unwrap_or(self.ashift),
            force: Force { in_use: force, replication: true },
            pool: Some(&self.config),
            txg: self.txg,
            imported,
            devices: &SystemDevices,
            chance: &Chance::default(),
        };
        let prepared = layout::prepare(&spec, Role::Joins)?;
        // The pool's property is for vdevs that are new.
        let asked = ashift.unwrap_or(0);
        Ok(prepared.into_single().map(|new| new.for_sectors(&SystemDevices, asked)))
    }
}

/// Gives all devices their labels, of transaction group 0. `pool` is the pool's config with the new
/// vdevs in its tree. Durable when it returns.
///
/// # Errors
/// A device could not be written.
pub fn write_labels(prepared: &Prepared, pool: &PoolConfig) -> std::io::Result<()> {
    layout::write_labels(prepared, pool)
}
