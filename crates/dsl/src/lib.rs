//! SKELETON of floor 4: datasets.
use cenote_dmu::{ObjectSet, Result};
use cenote_format::dsl::*;
use std::sync::Arc;

/// Kinds that users see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum DatasetKind { Filesystem, Volume, Snapshot, Bookmark }

/// A dataset found by name or listing. Cheap to clone.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Dataset { pub name: String, pub kind: DatasetKind, pub dir_obj: u64, pub ds_obj: u64, pub dir: Arc<DslDirPhys>, pub ds: Arc<DslDatasetPhys>, pub bookmark: Option<BookmarkPhys> }

/// The datasets of a pool.
pub struct Dsl;
impl Dsl {
    /// `pool_name`: the name the pool is imported under. Reads the object directory's root_dataset.
    pub fn open(_mos: Arc<ObjectSet>, _pool_name: &str) -> Result<Arc<Dsl>> { todo!() }
    /// MOS
    pub fn mos(&self) -> &Arc<ObjectSet> { todo!() }
    /// By full name: pool/a/b, pool/a@snap, pool/a#bookmark.
    pub fn find(&self, _name: &str) -> Result<Option<Dataset>> { todo!() }
    /// By dataset object (for error logs, origins, clones).
    pub fn by_object(&self, _ds_obj: u64) -> Result<Option<Dataset>> { todo!() }
    /// Child file systems and volumes, sorted by name (hidden `$`/`%` ones left out).
    pub fn children(&self, _d: &Dataset) -> Result<Vec<Dataset>> { todo!() }
    /// Snapshots in order of creation txg.
    pub fn snapshots(&self, _d: &Dataset) -> Result<Vec<Dataset>> { todo!() }
    /// Bookmarks.
    pub fn bookmarks(&self, _d: &Dataset) -> Result<Vec<Dataset>> { todo!() }
    /// Opens the object set of a file system, volume or snapshot.
    pub fn open_objset(&self, _d: &Dataset) -> Result<Arc<ObjectSet>> { todo!() }
    /// One property, native ("compression") or user ("com.x:y"), as `zfs get` shows it: see [`props`].
    pub fn get(&self, _d: &Dataset, _prop: &str) -> Result<Option<PropValue>> { todo!() }
    /// All properties that `zfs get all` shows, in its order.
    pub fn get_all(&self, _d: &Dataset) -> Result<Vec<(String, PropValue)>> { todo!() }
    /// Holds of a snapshot: tag, time.
    pub fn holds(&self, _d: &Dataset) -> Result<Vec<(String, u64)>> { todo!() }
}
/// A value with its source.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct PropValue { /// exact form (`-p`)
 pub exact: String, /// human form
 pub human: String, pub source: Source }
/// Where a value comes from.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Source { None, Default, Local, Inherited(String), Received, Temporary }
