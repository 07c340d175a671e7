//! Datasets: what they are called, what they are like, and what is done to them.
//!
//! A [`Dataset`] is found by a name, and keeps the number of its object with its guid. Each call looks it up anew by these in the pool as
//! the last transaction group left it: a dataset that was renamed is found, one that was destroyed is [`Error::NoDataset`]. In a pool
//! that is open for reading nothing changes, and nothing is looked up.
//!
//! Properties as text are here, with types in [`property`](crate::property). Operations that consist of several changes, such as
//! [`Dataset::destroy_all`], are those of `cenote-admin`. They come one by one: a pool has one turn for them.

use crate::contents::{settings, whole};
use crate::pool::{changed, owned};
use crate::{DatasetKind, Error, FileSystem, Pool, Result, Source, Volume};
use cenote_admin::destroy::Destroy;
use cenote_admin::{Exclusion, Session};
use cenote_engine::change::{ChangeError, dependents};

/// A file system, volume, snapshot or bookmark. What it is called is as it was when it was looked up; what is said of it is as
/// the last transaction group left it, and what is done is done to it under the name that it has by now. Once it is destroyed
/// there is [`Error::NoDataset`].
#[derive(Clone)]
pub struct Dataset {
    pool: Pool,
    inner: cenote_dsl::Dataset,
}

impl Dataset {
    pub(crate) fn new(pool: &Pool, inner: cenote_dsl::Dataset) -> Dataset {
        Dataset { pool: pool.clone(), inner }
    }

    /// Full name: `pool/fs@snapshot`.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What it is.
    pub fn kind(&self) -> DatasetKind {
        self.inner.kind
    }

    /// The pool it is in.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// A property, native (`used`) or user (`com.example:note`), as `zfs get -p` shows it; `None`
    /// if the dataset does not have it.
    ///
    /// # Errors
    /// [`Error::Metadata`]: it cannot be read.
    pub fn property(&self, name: &str) -> Result<Option<String>> {
        Ok(self.text_of(name)?.map(|(text, _)| text))
    }

    /// As [`Dataset::property`], with its source.
    pub(crate) fn text_of(&self, name: &str) -> Result<Option<(String, Source)>> {
        let view = self.pool.view();
        let value = view.dsl().get(&self.now(&view)?, name)?;
        Ok(value.map(|v| (v.exact, v.source)))
    }

    /// The dataset as it is in a view of the pool.
    ///
    /// # Errors
    /// [`Error::NoDataset`]: it was destroyed; [`Error::Metadata`].
    pub(crate) fn now(&self, view: &cenote_pool::Pool) -> Result<cenote_dsl::Dataset> {
        // A pool that was never written to has no later state.
        if !self.pool.may_have_changed() {
            return Ok(self.inner.clone());
        }
        // The object and its guid are those of the head of a bookmark, too.
        let found = view.dsl().by_object(self.inner.ds_obj)?;
        let mut found = found.filter(|found| found.ds.guid == self.inner.ds.guid);
        if let (true, Some(head)) = (self.is_bookmark(), &found) {
            let short = self.name().split('#').nth(1);
            let all = view.dsl().bookmarks(head)?;
            found = all.into_iter().find(|b| {
                let of = |d: &cenote_dsl::Dataset| d.bookmark.map(|b| (b.guid, b.creation_txg));
                b.name.split('#').nth(1) == short && of(b) == of(&self.inner)
            });
        }
        found.ok_or_else(|| Error::NoDataset(self.name().into()))
    }

    /// The dataset as the last transaction group left it. It stays so for an operation that has its turn.
    pub(crate) fn present(&self) -> Result<cenote_dsl::Dataset> {
        self.now(&self.pool.view())
    }

    /// Does an operation of administration on the dataset as it is now, one at a time.
    pub(crate) fn administer<T>(
        &self,
        work: impl FnOnce(&mut Session<'_>, &cenote_dsl::Dataset) -> cenote_admin::Result<T>,
    ) -> Result<T> {
        let _entered = self.pool.turn().enter();
        let now = self.present()?;
        self.pool.session(None, |session| work(session, &now))
    }

    /// All properties with their sources, as `zfs get -p all` shows them.
    ///
    /// # Errors
    /// [`Error::Metadata`]: one cannot be read.
    pub fn properties(&self) -> Result<Vec<(String, String, Source)>> {
        let view = self.pool.view();
        let all = view.dsl().get_all(&self.now(&view)?)?;
        Ok(all.into_iter().map(|(name, v)| (name, v.exact, v.source)).collect())
    }

    /// File systems and volumes directly below, by name.
    ///
    /// # Errors
    /// [`Error::Metadata`].
    pub fn children(&self) -> Result<Vec<Dataset>> {
        let view = self.pool.view();
        Ok(self.wrap(view.dsl().children(&self.now(&view)?)?))
    }

    /// Snapshots, oldest first.
    ///
    /// # Errors
    /// [`Error::Metadata`].
    pub fn snapshots(&self) -> Result<Vec<Dataset>> {
        let view = self.pool.view();
        Ok(self.wrap(view.dsl().snapshots(&self.now(&view)?)?))
    }

    /// Bookmarks.
    ///
    /// # Errors
    /// [`Error::Metadata`].
    pub fn bookmarks(&self) -> Result<Vec<Dataset>> {
        let view = self.pool.view();
        Ok(self.wrap(view.dsl().bookmarks(&self.now(&view)?)?))
    }

    pub(crate) fn wrap(&self, list: Vec<cenote_dsl::Dataset>) -> Vec<Dataset> {
        list.into_iter().map(|d| Dataset::new(&self.pool, d)).collect()
    }

    /// The files of a file system or of a snapshot of one. Files of a file system in a pool that is
    /// open for writing can be changed.
    ///
    /// # Errors
    /// [`Error::Kind`] if it has no files.
    pub fn filesystem(&self) -> Result<FileSystem> {
        if self.is_bookmark() || self.is_volume()? {
            return Err(Error::Kind { name: self.name().into(), wanted: "file system" });
        }
        let _in_use = self.pool.in_use();
        let view = self.pool.view();
        let now = self.now(&view)?;
        if now.is_head()
            && let Ok(engine) = self.pool.engine()
        {
            let settings = settings(&view, &now)?;
            let set = self.pool.live().files(engine, &now, settings)?;
            return FileSystem::live(&self.pool, set);
        }
        let os = view.dsl().open_objset(&now)?;
        let fs = cenote_zpl::FileSystem::open_as(os, whole(&view, &now)?)?;
        Ok(FileSystem::fixed(&self.pool, fs))
    }

    /// The contents of a volume or of a snapshot of one. The contents of a volume in a pool that is open for
    /// writing can be changed.
    ///
    /// # Errors
    /// [`Error::Kind`] if it is something else.
    pub fn volume(&self) -> Result<Volume> {
        if self.is_bookmark() || !self.is_volume()? {
            return Err(Error::Kind { name: self.name().into(), wanted: "volume" });
        }
        let _in_use = self.pool.in_use();
        let view = self.pool.view();
        let now = self.now(&view)?;
        let cache = settings(&view, &now)?.cache;
        if now.is_head()
            && let Ok(engine) = self.pool.engine()
        {
            let set = self.pool.live().volume(engine, &now, cache)?;
            let read_only = self.property("readonly")?.as_deref() == Some("on");
            return Volume::live(&self.pool, set, read_only);
        }
        let volume = cenote_zpl::Volume::open(view.dsl().open_objset(&now)?)?;
        volume.set_caching(cache);
        Ok(Volume::fixed(&self.pool, volume))
    }

    /// Sets properties, as `zfs set` takes them. File systems that are open follow.
    ///
    /// # Errors
    /// [`Error::Change`]: the first that could not be set; [`Error::ReadOnly`]; [`Error::Busy`]: the
    /// size of a volume that is open.
    pub fn set(&self, props: &[(&str, &str)]) -> Result<()> {
        let changes = self.pool.changes()?;
        let _entered = self.pool.turn().enter();
        let now = self.present()?;
        let resized = props.iter().any(|(name, _)| *name == "volsize");
        if resized && self.pool.live().is_open(now.ds_obj) {
            return Err(Error::Busy(now.name));
        }
        let done = changes.set(&now.name, &owned(props));
        self.pool.properties_changed();
        match done.map_err(|e| changed(&now.name, e))?.into_iter().next() {
            Some(failed) => Err(changed(&format!("{}: {}", now.name, failed.name), failed.error)),
            None => Ok(()),
        }
    }

    /// Lets a property be inherited, or have its default.
    ///
    /// # Errors
    /// [`Error::Change`]: the property is not inherited; [`Error::ReadOnly`].
    pub fn inherit(&self, property: impl AsRef<str>) -> Result<()> {
        self.forget(property.as_ref(), false)
    }

    /// Lets a property have the value that came with a stream which was received, as if it had never been set here.
    ///
    /// # Errors
    /// As [`Dataset::inherit`].
    pub fn revert(&self, property: impl AsRef<str>) -> Result<()> {
        self.forget(property.as_ref(), true)
    }

    fn forget(&self, property: &str, received: bool) -> Result<()> {
        let changes = self.pool.changes()?;
        let _entered = self.pool.turn().enter();
        let now = self.present()?;
        let done = changes.inherit(&now.name, property, received);
        self.pool.properties_changed();
        done.map_err(|e| changed(&now.name, e))
    }

    /// Gives it another name: a full one in the same pool; for a snapshot what comes after `@`.
    ///
    /// # Errors
    /// [`Error::Change`]; [`Error::ReadOnly`].
    pub fn rename(&self, to: &str) -> Result<Dataset> {
        let changes = self.pool.changes()?;
        let _entered = self.pool.turn().enter();
        let now = self.present()?;
        if now.kind == DatasetKind::Snapshot {
            let done = changes.rename_snapshot(&now.name, to, false);
            done.map_err(|(name, e)| changed(&name, e))?;
            return self.pool.dataset(&format!("{}@{to}", now.head_name()));
        }
        changes.rename(&now.name, to).map_err(|e| changed(&now.name, e))?;
        self.pool.dataset(to)
    }

    /// Destroys it. What it has is freed in the background.
    ///
    /// # Errors
    /// [`Error::Change`]: something depends on it (snapshots, what is below it, clones);
    /// [`Error::Busy`]: it is open for writing; [`Error::ReadOnly`].
    pub fn destroy(self) -> Result<()> {
        let _entered = self.pool.turn().enter();
        self.destroy_one(&self.present()?)
    }

    /// Destroys it with its snapshots and all that is below it. Clones that are elsewhere are in the
    /// way. What cannot be destroyed stays, with what needs it; all the rest is destroyed nevertheless. The root file system
    /// of a pool stays: only what it has is destroyed.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = cenote::Pool::create_in_file(dir.path().join("disk"), "tank", 128 << 20)?;
    /// let home = pool.create_filesystem("tank/home", &[])?;
    /// home.snapshot("s")?.clone_to("tank/copy", &[])?;
    /// let refused = home.clone().destroy_all().unwrap_err();
    /// assert_eq!(refused.in_the_way(), ["tank/copy"]);
    /// pool.dataset("tank/copy")?.destroy()?;
    /// home.destroy_all()?;
    /// assert_eq!(pool.datasets().count(), 1);
    /// # Ok::<(), cenote::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Admin`]: clones are in the way ([`Error::in_the_way`]), and all stays; or the first that could not be destroyed, as
    /// a snapshot that is held; the pool is read-only. [`Error::Busy`]: something is open for writing, and all stays.
    pub fn destroy_all(self) -> Result<()> {
        let _entered = self.pool.turn().enter();
        let view = self.pool.view();
        let now = self.now(&view)?;
        if self.is_bookmark() {
            return self.destroy_one(&now);
        }
        let all = dependents(view.dsl(), &now).map_err(|e| changed(&now.name, e))?;
        let mut all = all.iter().map(|d| &d.dataset).chain([&now]);
        if let Some(open) = all.find(|d| self.pool.live().is_open(d.ds_obj)) {
            return Err(Error::Busy(open.name.clone()));
        }
        let how = Destroy { recurse: true, ..Destroy::default() };
        self.pool.session(None, |session| session.destroy_dataset(&now, how))
    }

    /// Destroys the dataset, for an operation that has its turn.
    fn destroy_one(&self, d: &cenote_dsl::Dataset) -> Result<()> {
        let changes = self.pool.changes()?;
        let failed = |e| changed(&d.name, e);
        match d.kind {
            DatasetKind::Bookmark => {
                self.pool.session(None, |session| session.destroy_bookmark(&d.name))
            }
            DatasetKind::Snapshot => {
                let done = changes.destroy_snapshots(std::slice::from_ref(&d.name), false);
                match done.map_err(|all| all.into_iter().next()) {
                    Ok(()) => Ok(()),
                    Err(first) => Err(failed(first.map_or(ChangeError::Busy, |(_, e)| e))),
                }
            }
            _ if self.pool.live().is_open(d.ds_obj) => Err(Error::Busy(d.name.clone())),
            _ => changes.destroy(&d.name).map_err(failed),
        }
    }

    fn is_bookmark(&self) -> bool {
        self.kind() == DatasetKind::Bookmark
    }

    /// Only volumes and their snapshots have a size.
    fn is_volume(&self) -> Result<bool> {
        Ok(self.property("volsize")?.is_some())
    }
}

/// Walks datasets, parents before children.
pub struct Datasets {
    todo: Vec<Result<Dataset>>,
}

impl Datasets {
    pub(crate) fn below(root: Result<Dataset>) -> Datasets {
        Datasets { todo: vec![root] }
    }
}

impl Iterator for Datasets {
    type Item = Result<Dataset>;

    fn next(&mut self) -> Option<Result<Dataset>> {
        let next = self.todo.pop()?;
        if let Ok(dataset) = &next {
            match dataset.children() {
                Ok(children) => self.todo.extend(children.into_iter().rev().map(Ok)),
                // It was destroyed meanwhile, and had none then.
                Err(Error::NoDataset(_)) => {}
                Err(e) => self.todo.push(Err(e)),
            }
        }
        Some(next)
    }
}
