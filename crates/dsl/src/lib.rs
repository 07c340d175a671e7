//! Datasets: file systems, volumes, snapshots and bookmarks, with their properties and space.
//!
//! Floor 4 of cenote: the Dataset and Snapshot Layer. All its structures are objects of the
//! pool's meta object set (MOS). The object directory names the root directory:
//!
//! ```text
//! object directory ── "root_dataset" ─> DSL directory (the pool's root file system)
//!
//! DSL directory   children ─> ZAP: name ─> DSL directory        ($MOS, $FREE, $ORIGIN, %recv: hidden)
//!                 props ────> ZAP: property ─> value, with suffixes $recvd, $inherit, $iuv
//!                 head ─────> DSL dataset (the live state)
//!                 origin ───> DSL dataset (the snapshot that this is a clone of)
//! DSL dataset     snap_names > ZAP: name ─> DSL dataset (a snapshot); only in a head
//!                 prev_snap ─> DSL dataset: a chain from the head to the oldest snapshot
//!                 deadlist ──> blocks that the previous snapshot has and this state has not
//!                 userrefs ──> ZAP: hold ─> time; only in a snapshot
//!                 bp ────────> the object set
//! ```
//!
//! A directory or dataset may be *zapified*: the object is then itself a ZAP of further fields
//! (`com.delphix:bookmarks`, `com.joyent:filesystem_count`, features in use).
//!
//! | module | what |
//! |---|---|
//! | [`crypt`] | keys of encrypted datasets |
//! | [`dataset`] | finding and listing datasets |
//! | [`dir`] | DSL directories and their names |
//! | [`props`] | properties: table, inheritance, computed values, display |
//! | [`redaction`] | which blocks redacted streams leave out |
//! | [`resume`] | what it takes to resume a receive |
//! | [`send`] | send streams |
//! | [`space`] | space that is available, space written since a snapshot |
//! | [`bpobj`], [`deadlist`] | lists of block pointers |
//! | [`bounds`] | how much a pool can hold: when to stop |
//! | [`human`] | numbers, sizes and dates for people |
//! | [`traverse`] | the walk over the blocks of an object set |
//! | [`mod@write`] | changing datasets, in syncing context |
//! | [`zil`] | intent logs |
//!
//! Invariants: a directory is reached only through the parent it names itself, so that a damaged
//! pool cannot make a listing go in circles; chains of directories, origins and snapshots are
//! followed for a bounded number of steps. What is read is never changed while the pool is
//! open, so directories, property lists and object sets are cached without ever being checked.

pub mod bounds;
pub mod bpobj;
pub mod budget;
mod cache;
pub mod crypt;
pub mod dataset;
pub mod deadlist;
pub mod dir;
pub mod human;
pub mod permissions;
pub mod props;
pub mod redaction;
pub mod resume;
pub mod send;
pub mod space;
pub mod traverse;
pub mod tunables;
pub mod write;
pub mod zil;

use cache::Cache;
use cenote_dmu::zap::{Zap, ZapEntry};
use cenote_dmu::{Error, Object, ObjectSet, Result};
use cenote_format::DecodeError;
use cenote_format::dmu::DmuType;
use cenote_format::dsl::{DslDatasetPhys, DslDirPhys};
use crypt::Keystore;
pub use dataset::{Dataset, DatasetKind};
use dir::Dir;
use parking_lot::RwLock;
pub use props::{PropValue, Source};
pub use space::{PoolSpace, Quotas};
use std::sync::Arc;

/// Object number of the object directory in the MOS.
const OBJECT_DIRECTORY: u64 = 1;
/// Open object sets that are kept for the next question about the same dataset.
const OPEN_OBJSETS: usize = 64;
/// Directories, kinds and names that are kept.
const CACHED_DIRS: usize = 1 << 16;

/// Mount options of a dataset by its name (`rw,noatime,xattr`), or `None` if it is not mounted.
pub type MountLookup = dyn Fn(&str) -> Option<String> + Send + Sync;

/// The same for one question.
pub type Mountings<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What the assembled pool and the doors above tell this floor.
#[derive(Default)]
struct Surroundings {
    space: Option<PoolSpace>,
    altroot: Option<String>,
    mounts: Option<Arc<MountLookup>>,
}

/// The datasets of a pool.
pub struct Dsl {
    mos: Arc<ObjectSet>,
    pool: String,
    /// The root directory's object.
    root: u64,
    /// The snapshot `$ORIGIN@$ORIGIN`, which every dataset that is no clone has as its origin.
    origin_snap: Option<u64>,
    dirs: Cache<u64, Arc<Dir>>,
    /// Components of names, by the objects of parent and child.
    names: Cache<(u64, u64), Arc<str>>,
    kinds: Cache<u64, DatasetKind>,
    /// With the generation of the keys that they were opened with.
    objsets: Cache<u64, (u64, Arc<ObjectSet>)>,
    keys: Arc<Keystore>,
    around: Arc<RwLock<Surroundings>>,
}

impl Dsl {
    /// Opens the datasets of the pool whose MOS is `mos` and that is imported as `pool_name` (`dsl_pool_open`).
    ///
    /// # Errors
    /// The object directory or the root directory cannot be read.
    pub fn open(mos: Arc<ObjectSet>, pool_name: &str) -> Result<Arc<Dsl>> {
        Dsl::open_within(mos, pool_name, Arc::default(), Arc::default())
    }

    /// The datasets after another transaction group, whose MOS is `mos`. What one of the two is
    /// told of the pool's size, of mounts and of keys, the other knows as well.
    ///
    /// # Errors
    /// As for [`Dsl::open`].
    pub fn after(&self, mos: Arc<ObjectSet>) -> Result<Arc<Dsl>> {
        Dsl::open_within(mos, &self.pool, self.around.clone(), self.keys.clone())
    }

    fn open_within(
        mos: Arc<ObjectSet>,
        pool_name: &str,
        around: Arc<RwLock<Surroundings>>,
        keys: Arc<Keystore>,
    ) -> Result<Arc<Dsl>> {
        let directory = Zap::open(&mos.object(OBJECT_DIRECTORY)?)?;
        let Some(root) = directory.u64(b"root_dataset")? else {
            return Err(corrupt(&mos, OBJECT_DIRECTORY, "no root_dataset"));
        };
        let mut dsl = Dsl {
            mos,
            pool: pool_name.into(),
            root,
            origin_snap: None,
            dirs: Cache::new(CACHED_DIRS),
            names: Cache::new(CACHED_DIRS),
            kinds: Cache::new(CACHED_DIRS),
            objsets: Cache::new(OPEN_OBJSETS),
            keys,
            around,
        };
        let root_dir = dsl.read_dir(root)?;
        if root_dir.parent != 0 {
            return Err(corrupt(&dsl.mos, root, "the root directory has a parent"));
        }
        // Without it everything looks like a clone, but can be read.
        dsl.origin_snap = dsl.find_origin(&root_dir).unwrap_or_else(|e| {
            tracing::warn!("$ORIGIN of {pool_name}: {e}");
            None
        });
        Ok(Arc::new(dsl))
    }

    fn find_origin(&self, root: &DslDirPhys) -> Result<Option<u64>> {
        let Some(origin) = self.child_object(root, "$ORIGIN")? else { return Ok(None) };
        let head = self.read_dataset(self.read_dir(origin)?.head_dataset)?;
        Ok(Some(head.prev_snap))
    }

    /// The meta object set.
    pub fn mos(&self) -> &Arc<ObjectSet> {
        &self.mos
    }

    /// The name that the pool is imported under.
    pub fn pool_name(&self) -> &str {
        &self.pool
    }

    /// Tells how large the pool is; without it no dataset has the property `available`.
    pub fn set_pool_space(&self, space: PoolSpace) {
        self.around_mut(|a| a.space = Some(space));
    }

    /// Sets the directory that mount points are shown below (`zpool import -R`).
    pub fn set_altroot(&self, altroot: Option<String>) {
        self.around_mut(|a| a.altroot = altroot);
    }

    /// Sets where to ask whether and how a dataset is mounted; without it no dataset counts as mounted.
    pub fn set_mounts(&self, lookup: Arc<MountLookup>) {
        self.around_mut(|a| a.mounts = Some(lookup));
    }

    fn around_mut(&self, change: impl FnOnce(&mut Surroundings)) {
        change(&mut self.around.write());
    }

    fn around<T>(&self, ask: impl FnOnce(&Surroundings) -> T) -> T {
        ask(&self.around.read())
    }

    /// An object of the MOS whose bonus buffer must be of type `bonus`.
    fn object_with(&self, number: u64, bonus: DmuType) -> Result<Object> {
        let object = self.mos.object(number)?;
        match object.dnode().bonus_kind {
            kind if kind == bonus => Ok(object),
            kind => Err(self.corrupt(number, format!("{kind:?} where {bonus:?} is expected"))),
        }
    }

    fn read_dir(&self, number: u64) -> Result<Arc<DslDirPhys>> {
        let object = self.object_with(number, DmuType::DSL_DIR)?;
        DslDirPhys::decode(&object.bonus()).map(Arc::new).map_err(|e| self.undecodable(number, e))
    }

    fn read_dataset(&self, number: u64) -> Result<Arc<DslDatasetPhys>> {
        let object = self.object_with(number, DmuType::DSL_DATASET)?;
        let phys = DslDatasetPhys::decode(&object.bonus());
        phys.map(Arc::new).map_err(|e| self.undecodable(number, e))
    }

    fn zap(&self, number: u64) -> Result<Zap> {
        Zap::open(&self.mos.object(number)?)
    }

    /// The further fields of a directory or dataset; `None` if it is not zapified.
    fn fields(&self, number: u64) -> Result<Option<Zap>> {
        let object = self.mos.object(number)?;
        let kind = object.dnode().kind;
        if kind.is_new() && kind.is_zap() { Zap::open(&object).map(Some) } else { Ok(None) }
    }

    /// One further field of a directory or dataset.
    fn field(&self, number: u64, name: &str) -> Result<Option<ZapEntry>> {
        match self.fields(number)? {
            Some(zap) => zap.lookup(name.as_bytes()),
            None => Ok(None),
        }
    }

    /// One further field that is a single integer.
    fn field_u64(&self, number: u64, name: &str) -> Result<Option<u64>> {
        Ok(self.field(number, name)?.and_then(|e| e.u64()))
    }

    fn corrupt(&self, object: u64, why: impl Into<String>) -> Error {
        corrupt(&self.mos, object, why)
    }

    fn undecodable(&self, object: u64, source: DecodeError) -> Error {
        Error::Decode { objset: self.mos.id(), object, source }
    }
}

fn corrupt(objset: &ObjectSet, object: u64, why: impl Into<String>) -> Error {
    Error::Corrupt { objset: objset.id(), object, why: why.into() }
}

/// Text of a ZAP's name; names of datasets, properties and holds are ASCII when they are sound.
fn name_of(entry: &ZapEntry) -> String {
    String::from_utf8_lossy(&entry.name).into_owned()
}

/// The number that a ZAP's name is in hexadecimal; many maps of the MOS have such names.
pub fn number_in_name(entry: &ZapEntry) -> Option<u64> {
    std::str::from_utf8(&entry.name).ok().and_then(|name| u64::from_str_radix(name, 16).ok())
}
