//! Finding, listing and opening datasets (`dsl_dataset_hold`, `dsl_dir_hold`, `dmu_objset_find`).
//!
//! A name is followed from the root directory through the ZAPs of children, component by component. What comes after
//! `@` is looked up in the head's ZAP of snapshots, what comes after `#` in its ZAP of bookmarks. A [`Dataset`] is
//! what was on disk when it was found, and does not change with the pool.
//!
//! Invariant: listings leave out what cannot be read and log it, so that damage to one dataset hides no other.

use crate::dir::{Dir, FullName, MAX_NAME, is_hidden};
use crate::{Dsl, name_of};
use cenote_dmu::zap::Match;
use cenote_dmu::{Error, ObjectSet, Result};
use cenote_format::dmu::ObjsetType;
use cenote_format::dsl::{
    BookmarkPhys, DS_FLAG_CI_DATASET, DS_FLAG_DEFER_DESTROY, DS_FLAG_INCONSISTENT, DslDatasetPhys,
    DslDirPhys,
};
use cenote_format::redaction::REDACTED;
use std::collections::HashSet;
use std::sync::Arc;

/// Field of a zapified head: the ZAP of bookmarks (`DS_FIELD_BOOKMARK_NAMES`).
const BOOKMARKS: &str = "com.delphix:bookmarks";
/// Features that are in use dataset by dataset, as they are named in zapified datasets.
const DATASET_FEATURES: [&str; 15] = [
    "org.open-zfs:large_blocks",
    "org.zfsonlinux:large_dnode",
    "org.illumos:sha512",
    "org.illumos:skein",
    "org.illumos:edonr",
    REDACTED,
    "org.zfsonlinux:userobj_accounting",
    "com.datto:encryption",
    "org.zfsonlinux:project_quota",
    "org.freebsd:zstd_compress",
    "org.openzfs:zilsaxattr",
    "org.openzfs:blake3",
    "org.zfsonlinux:longname",
    "com.klarasystems:large_microzap",
    "com.truenas:physical_rewrite",
];

/// The kinds of dataset that users see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DatasetKind {
    /// A file system.
    Filesystem,
    /// A volume: a block device.
    Volume,
    /// A snapshot of either.
    Snapshot,
    /// A bookmark: the memory of a snapshot.
    Bookmark,
}

impl DatasetKind {
    /// The name in the property `type`.
    pub fn name(self) -> &'static str {
        match self {
            DatasetKind::Filesystem => "filesystem",
            DatasetKind::Volume => "volume",
            DatasetKind::Snapshot => "snapshot",
            DatasetKind::Bookmark => "bookmark",
        }
    }
}

/// A dataset found by name or listing. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Full name.
    pub name: String,
    /// Kind.
    pub kind: DatasetKind,
    /// Object of the directory.
    pub dir_obj: u64,
    /// Object of the dataset; of the head, for a bookmark.
    pub ds_obj: u64,
    /// The directory.
    pub dir: Arc<DslDirPhys>,
    /// The dataset; the head, for a bookmark.
    pub ds: Arc<DslDatasetPhys>,
    /// The bookmark, if it is one.
    pub bookmark: Option<BookmarkPhys>,
}

impl Dataset {
    /// Whether it is a file system or volume.
    pub fn is_head(&self) -> bool {
        matches!(self.kind, DatasetKind::Filesystem | DatasetKind::Volume)
    }

    /// The guid that tells it from all others: of a bookmark, that of its snapshot.
    pub fn guid(&self) -> u64 {
        self.bookmark.map_or(self.ds.guid, |bookmark| bookmark.guid)
    }

    /// The name of the file system or volume that it belongs to, or is.
    pub fn head_name(&self) -> &str {
        self.name.split(['@', '#']).next().unwrap_or(&self.name)
    }

    /// Whether a receive or destroy was interrupted and left it incomplete.
    pub fn is_inconsistent(&self) -> bool {
        self.ds.flags & DS_FLAG_INCONSISTENT != 0
    }

    /// Whether it goes with its last hold or clone.
    pub fn is_defer_destroyed(&self) -> bool {
        self.ds.flags & DS_FLAG_DEFER_DESTROY != 0
    }
}

impl Dsl {
    /// The root file system.
    pub fn root(&self) -> Result<Dataset> {
        let dir = self.dir(self.root)?;
        self.head(&dir)?.ok_or_else(|| self.corrupt(self.root, "the root directory has no head"))
    }

    /// The dataset with a full name (`dsl_dataset_hold`): `pool/a/b`, `pool/a@snap`, `pool/a#bookmark`. Hidden ones
    /// are found as well.
    pub fn find(&self, name: &str) -> Result<Option<Dataset>> {
        let Some(parsed) = FullName::parse(name) else { return Ok(None) };
        let mut components = parsed.head().split('/');
        if components.next() != Some(&self.pool) {
            return Ok(None);
        }
        let mut dir = self.dir(self.root)?;
        for component in components {
            let Some(child) = self.child_object(&dir.phys, component)? else { return Ok(None) };
            dir = self.child_dir(&dir, component, child)?;
        }
        let Some(head) = self.head(&dir)? else { return Ok(None) };
        match parsed {
            FullName::Head(_) => Ok(Some(head)),
            FullName::Snapshot(_, short) => self.snapshot_named(&head, short),
            FullName::Bookmark(_, short) => {
                let bookmarks = self.bookmarks(&head)?;
                Ok(bookmarks.into_iter().find(|b| short_name(b) == short))
            }
        }
    }

    /// The dataset that is object `ds_obj` of the MOS (from an error log, an origin, a list of
    /// clones); `None` if the object is gone or no dataset (`dsl_dataset_hold_obj`, `dsl_dsobj_to_dsname`).
    pub fn by_object(&self, ds_obj: u64) -> Result<Option<Dataset>> {
        let ds = match self.read_dataset(ds_obj) {
            Ok(ds) => ds,
            Err(Error::NoObject { .. } | Error::Corrupt { .. }) => return Ok(None),
            Err(e) => return Err(e),
        };
        let dir = self.dir(ds.dir)?;
        // A snapshot's number of children is one more than its number of clones; a head's is 0.
        if ds.num_children == 0 {
            return self.head(&dir);
        }
        let head = self.read_dataset(dir.phys.head_dataset)?;
        for entry in self.zap(head.snap_names)?.entries()? {
            if entry.u64() == Some(ds_obj) {
                return Ok(Some(self.snapshot(&dir, &name_of(&entry), ds_obj, ds)));
            }
        }
        Ok(None)
    }

    /// Child file systems and volumes, sorted by name, without hidden ones (`zfs_iter_filesystems`, `dmu_dir_list_next`). A
    /// child that cannot be read is left out and logged.
    pub fn children(&self, d: &Dataset) -> Result<Vec<Dataset>> {
        self.children_found(d).map(|(children, _)| children)
    }

    /// As [`Dsl::children`], and whether there are no others: none is left out but the pool's own directories
    /// (`$MOS`, `$FREE`, `$LEAK`, `$ORIGIN`).
    ///
    /// # Errors
    /// The list of children cannot be read.
    pub fn children_found(&self, d: &Dataset) -> Result<(Vec<Dataset>, bool)> {
        if !d.is_head() || d.dir.children == 0 {
            return Ok((Vec::new(), true));
        }
        let parent = self.dir(d.dir_obj)?;
        let mut entries = self.zap(d.dir.children)?.entries()?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let mut seen = HashSet::new();
        let (mut children, mut all) = (Vec::new(), true);
        for entry in entries {
            let name = name_of(&entry);
            if is_hidden(&name) {
                all &= name.starts_with('$');
                continue;
            }
            // A child listed twice would be walked twice at every level: the first name counts.
            let object = entry.u64().filter(|o| seen.insert(*o));
            let sound = !name.is_empty() && !name.contains(['/', '@', '#']);
            let child = match object {
                Some(object) if sound => {
                    self.child_dir(&parent, &name, object).and_then(|dir| self.head(&dir))
                }
                _ => Err(self.corrupt(d.dir.children, format!("bad entry {name:?}"))),
            };
            all &= matches!(child, Ok(Some(_)));
            match child {
                Ok(child) => children.extend(child),
                Err(e) => tracing::warn!("{}/{name}: {e}", d.name),
            }
        }
        Ok((children, all))
    }

    /// Snapshots in the order in which they were taken (`zfs_iter_snapshots`, `dmu_snapshot_list_next`); empty for a snapshot
    /// or bookmark. One that cannot be read is left out and logged.
    pub fn snapshots(&self, d: &Dataset) -> Result<Vec<Dataset>> {
        if !d.is_head() || d.ds.snap_names == 0 {
            return Ok(Vec::new());
        }
        let dir = self.dir(d.dir_obj)?;
        let mut snapshots = Vec::new();
        for entry in self.zap(d.ds.snap_names)?.entries()? {
            let name = name_of(&entry);
            let object = entry.u64().unwrap_or(0);
            match self.read_snapshot(&dir, object) {
                Ok(ds) => snapshots.push(self.snapshot(&dir, &name, object, ds)),
                Err(e) => tracing::warn!("{}@{name}: {e}", d.name),
            }
        }
        snapshots.sort_by(|a, b| (a.ds.creation_txg, &a.name).cmp(&(b.ds.creation_txg, &b.name)));
        Ok(snapshots)
    }

    /// Bookmarks of a file system or volume, oldest first (`lzc_get_bookmarks`).
    pub fn bookmarks(&self, d: &Dataset) -> Result<Vec<Dataset>> {
        let mut bookmarks = self.bookmarks_as_stored(d)?;
        bookmarks.sort_by(|a, b| {
            let txg = |d: &Dataset| d.bookmark.map(|b| b.creation_txg);
            (txg(a), &a.name).cmp(&(txg(b), &b.name))
        });
        Ok(bookmarks)
    }

    /// The same in the order in which they are stored.
    pub fn bookmarks_as_stored(&self, d: &Dataset) -> Result<Vec<Dataset>> {
        if !d.is_head() {
            return Ok(Vec::new());
        }
        let Some(object) = self.field_u64(d.ds_obj, BOOKMARKS)?.filter(|o| *o != 0) else {
            return Ok(Vec::new());
        };
        let mut bookmarks = Vec::new();
        for entry in self.zap(object)?.entries()? {
            let phys = BookmarkPhys::decode(&entry.value);
            let phys = phys.map_err(|e| self.undecodable(object, e))?;
            bookmarks.push(Dataset {
                name: format!("{}#{}", d.name, name_of(&entry)),
                kind: DatasetKind::Bookmark,
                bookmark: Some(phys),
                ..d.clone()
            });
        }
        Ok(bookmarks)
    }

    /// Holds of a snapshot (`dsl_dataset_get_holds`): tag, and when it was placed in seconds since 1970.
    pub fn holds(&self, d: &Dataset) -> Result<Vec<(String, u64)>> {
        if d.kind != DatasetKind::Snapshot || d.ds.userrefs == 0 {
            return Ok(Vec::new());
        }
        let entries = self.zap(d.ds.userrefs)?.entries()?;
        Ok(entries.iter().filter_map(|e| Some((name_of(e), e.u64()?))).collect())
    }

    /// The snapshot that a clone was made from; `None` if it is no clone.
    pub fn origin(&self, d: &Dataset) -> Result<Option<Dataset>> {
        if d.dir.origin == 0 || Some(d.dir.origin) == self.origin_snap {
            return Ok(None);
        }
        self.by_object(d.dir.origin)
    }

    /// The clones of a snapshot.
    pub fn clones(&self, d: &Dataset) -> Result<Vec<Dataset>> {
        if d.kind != DatasetKind::Snapshot || d.ds.next_clones == 0 {
            return Ok(Vec::new());
        }
        let mut clones = Vec::new();
        for entry in self.zap(d.ds.next_clones)?.entries()? {
            // What is listed may be a snapshot of the clone: its oldest.
            if let Some(object) = entry.u64() {
                clones.extend(self.head(&*self.dir(self.read_dataset(object)?.dir)?)?);
            }
        }
        Ok(clones)
    }

    /// Features that are active in this dataset: guid and values (a single 0 or 1, but for
    /// `redacted_datasets` the guids of the redaction snapshots).
    pub fn features(&self, d: &Dataset) -> Result<Vec<(String, Vec<u64>)>> {
        let Some(fields) = self.fields(d.ds_obj)? else { return Ok(Vec::new()) };
        let mut active = Vec::new();
        for feature in DATASET_FEATURES {
            if let Some(entry) = fields.lookup(feature.as_bytes())? {
                active.push((feature.to_string(), entry.value));
            }
        }
        Ok(active)
    }

    /// Opens the object set of a file system, volume or snapshot (`dmu_objset_from_ds`, `dmu_objset_hold`); with its key,
    /// if it is encrypted and the key is loaded.
    pub fn open_objset(&self, d: &Dataset) -> Result<Arc<ObjectSet>> {
        if d.kind == DatasetKind::Bookmark {
            return Err(self.corrupt(d.ds_obj, "a bookmark has no contents"));
        }
        self.objset(d.ds_obj, &d.ds)
    }

    /// Opens the object set to follow its pointers ([`Store::without_keys`](cenote_store::Store::without_keys)): without its key. The object
    /// set is not kept for other callers, and no key is mapped: this may be an old view of the pool, in which numbers belong to other datasets.
    ///
    /// # Errors
    /// As of [`Dsl::open_objset`].
    pub fn walked_objset(&self, d: &Dataset) -> Result<Arc<ObjectSet>> {
        if d.kind == DatasetKind::Bookmark {
            return Err(self.corrupt(d.ds_obj, "a bookmark has no contents"));
        }
        let as_of = self.mos.as_of().filter(|_| d.ds.num_children == 0);
        let store = self.mos.store().clone();
        cenote_store::Store::without_keys(|| ObjectSet::open_as_of(store, d.ds_obj, d.ds.bp, as_of))
    }

    fn objset(&self, object: u64, ds: &DslDatasetPhys) -> Result<Arc<ObjectSet>> {
        let keys = self.keys.generation();
        if let Some((of, open)) = self.objsets.get(&object)
            && of == keys
        {
            return Ok(open);
        }
        self.map_key(object, ds.dir)?;
        // Blocks of a snapshot last as long as it does.
        let as_of = self.mos.as_of().filter(|_| ds.num_children == 0);
        let open = ObjectSet::open_as_of(self.mos.store().clone(), object, ds.bp, as_of)?;
        self.objsets.put(object, (keys, open.clone()));
        Ok(open)
    }

    /// The live dataset of a directory; `None` for `$MOS` and `$FREE`, which have no dataset.
    pub(crate) fn head(&self, dir: &Dir) -> Result<Option<Dataset>> {
        let object = dir.phys.head_dataset;
        if object == 0 {
            return Ok(None);
        }
        let ds = self.read_dataset(object)?;
        if ds.dir != dir.object {
            return Err(self.corrupt(object, format!("not the head of directory {}", dir.object)));
        }
        Ok(Some(Dataset {
            name: dir.name.clone(),
            kind: self.head_kind(object, &ds),
            dir_obj: dir.object,
            ds_obj: object,
            dir: dir.phys.clone(),
            ds,
            bookmark: None,
        }))
    }

    /// Whether a head is a file system or a volume: its object set says. Where that cannot be
    /// read, a file system is assumed, so that the dataset can still be listed.
    fn head_kind(&self, object: u64, ds: &DslDatasetPhys) -> DatasetKind {
        if let Some(kind) = self.kinds.get(&object) {
            return kind;
        }
        let kind = match self.objset(object, ds).map(|o| o.phys().kind) {
            Ok(ObjsetType::Zvol) => DatasetKind::Volume,
            Ok(_) => DatasetKind::Filesystem,
            Err(e) => {
                tracing::debug!("kind of dataset {object}: {e}");
                return DatasetKind::Filesystem;
            }
        };
        self.kinds.put(object, kind);
        kind
    }

    /// The kind of the file system or volume that a dataset belongs to, or is.
    pub fn kind_of_head(&self, d: &Dataset) -> Result<DatasetKind> {
        if d.is_head() {
            return Ok(d.kind);
        }
        let object = d.dir.head_dataset;
        Ok(self.head_kind(object, &*self.read_dataset(object)?))
    }

    fn snapshot_named(&self, head: &Dataset, short: &str) -> Result<Option<Dataset>> {
        if head.ds.snap_names == 0 {
            return Ok(None);
        }
        let names = self.zap(head.ds.snap_names)?;
        let entry = if head.ds.flags & DS_FLAG_CI_DATASET != 0 {
            names.lookup_norm(short.as_bytes(), Match { fold_case: true })?
        } else {
            names.lookup(short.as_bytes())?
        };
        let Some((entry, object)) = entry.and_then(|e| e.u64().map(|o| (e, o))) else {
            return Ok(None);
        };
        let dir = self.dir(head.dir_obj)?;
        let ds = self.read_snapshot(&dir, object)?;
        Ok(Some(self.snapshot(&dir, &name_of(&entry), object, ds)))
    }

    fn read_snapshot(&self, dir: &Dir, object: u64) -> Result<Arc<DslDatasetPhys>> {
        let ds = self.read_dataset(object)?;
        if ds.dir != dir.object || ds.num_children == 0 {
            return Err(self.corrupt(object, format!("not a snapshot in directory {}", dir.object)));
        }
        Ok(ds)
    }

    fn snapshot(&self, dir: &Dir, short: &str, object: u64, ds: Arc<DslDatasetPhys>) -> Dataset {
        let mut name = format!("{}@{short}", dir.name);
        if name.len() > MAX_NAME {
            tracing::warn!("{name}: name too long");
            name.truncate(name.floor_char_boundary(MAX_NAME));
        }
        Dataset {
            name,
            kind: DatasetKind::Snapshot,
            dir_obj: dir.object,
            ds_obj: object,
            dir: dir.phys.clone(),
            ds,
            bookmark: None,
        }
    }
}

fn short_name(d: &Dataset) -> &str {
    d.name.split(['@', '#']).nth(1).unwrap_or_default()
}
