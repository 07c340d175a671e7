//! Pools: found, opened, looked at, exported.
//!
//! [`Pool::find`] reads labels and opens nothing. [`Found::open`] opens a pool for reading and writes nothing;
//! [`Found::open_writable`] imports it, and is refused while another system may be using it. A [`Pool`] is a handle that can be cloned.
//! What comes from it (datasets, file systems, volumes) keeps it open.
//!
//! - A pool that is open for writing is exported by [`Pool::export`], or when the last of what came from it is dropped. After an export it
//!   can only be read.
//! - An export is refused while something is open for writing or a stream or comparison is under way.
//! - Operations of administration come one by one (`turn`). Operations that take long share `in_use`, which keeps the pool from being
//!   exported.

use crate::contents::{Files, replayer, settings};
use crate::host::Turn;
use crate::live::Registry;
use crate::{Dataset, Datasets, Error, Result};
use cenote_admin::{Exclusion, Opened};
use cenote_engine::change::{ChangeError, Changes, Kind, NewDataset, NewSnapshot};
use cenote_engine::{Engine, EngineOptions};
use cenote_pool::{Candidate, ImportOptions, discover};
use parking_lot::{RwLock, RwLockReadGuard};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A pool that a search found and that can be opened.
#[derive(Clone, Debug)]
pub struct Found(Candidate);

impl Found {
    /// Name of the pool.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Guid of the pool.
    pub fn guid(&self) -> u64 {
        self.0.guid
    }

    /// The devices that were found.
    pub fn devices(&self) -> impl Iterator<Item = &Path> {
        self.0.devices.iter().map(|d| d.path.as_path())
    }

    /// Opens the pool for reading. Whether another system uses it is not looked at: nothing is
    /// written, though what that system writes meanwhile may come out garbled as errors.
    ///
    /// # Errors
    /// [`Error::Import`]: devices are missing, or the pool has features that cannot be read.
    pub fn open(&self) -> Result<Pool> {
        self.open_with(&ImportOptions {
            readonly: true,
            force: true,
            allow_missing_log: true,
            skip_activity_check: true,
            no_caches: true,
            ..ImportOptions::default()
        })
    }

    /// Opens the pool for writing. It is refused if another system may be using it: if it was not
    /// exported there.
    ///
    /// # Errors
    /// As [`Found::open`]; another system may be using it; it has something that this software
    /// cannot write.
    pub fn open_writable(&self) -> Result<Pool> {
        self.open_with(&ImportOptions::default())
    }

    /// Opens the pool as `zpool import -N` would: the intent log that a crash left of a dataset is replayed when
    /// the dataset is opened.
    ///
    /// # Errors
    /// As [`Found::open`], and [`Found::open_writable`] where it is to be written.
    pub fn open_with(&self, options: &ImportOptions) -> Result<Pool> {
        Ok(match options.readonly {
            true => Pool::around(Opened::ReadOnly(cenote_pool::Pool::import(&self.0, options)?)),
            false => {
                let engine = EngineOptions { replay: replayer(), ..EngineOptions::default() };
                Pool::around(Opened::Writable(Engine::import(&self.0, options, engine)?))
            }
        })
    }
}

struct Inner {
    name: String,
    opened: Opened,
    live: Arc<Registry>,
    turn: Arc<Turn>,
    /// Shared by operations that are under way, those that take no turn too; taken alone by an export.
    in_use: RwLock<()>,
    exported: AtomicBool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Opened::Writable(engine) = &self.opened else { return };
        if !self.exported.load(Ordering::SeqCst)
            && let Err(e) = engine.export(false)
        {
            tracing::warn!("{}: {e}", self.name);
        }
    }
}

/// An open pool. One that is open for writing is exported when the last of what came from it goes,
/// if it was not before.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

impl Pool {
    fn around(opened: Opened) -> Pool {
        let name = opened.pool().name().to_string();
        Pool(Arc::new(Inner {
            name,
            opened,
            live: Arc::default(),
            turn: Arc::default(),
            in_use: RwLock::default(),
            exported: AtomicBool::new(false),
        }))
    }

    pub(crate) fn writable(engine: Arc<Engine>) -> Pool {
        Pool::around(Opened::Writable(engine))
    }

    /// The pools on the devices and in the images that `paths` name, or that lie in the
    /// directories that they name.
    pub fn find<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>) -> Vec<Found> {
        let paths: Vec<PathBuf> = paths.into_iter().map(Into::into).collect();
        discover(&paths).into_iter().map(Found).collect()
    }

    /// Finds and opens for reading the pool called `name`, or with that guid in decimal.
    ///
    /// # Errors
    /// No such pool, several of that name, or it cannot be opened.
    pub fn open<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>, name: &str) -> Result<Pool> {
        Pool::find_one(paths, name)?.open()
    }

    /// Finds and opens for writing the pool called `name`, or with that guid in decimal.
    ///
    /// # Errors
    /// As [`Pool::open`]; another system may be using it; it has something that this software cannot
    /// write.
    pub fn open_writable<P: Into<PathBuf>>(
        paths: impl IntoIterator<Item = P>,
        name: &str,
    ) -> Result<Pool> {
        Pool::find_one(paths, name)?.open_writable()
    }

    fn find_one<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>, name: &str) -> Result<Found> {
        let paths: Vec<PathBuf> = paths.into_iter().map(Into::into).collect();
        let candidates = discover(&paths);
        Ok(Found(discover::find(&candidates, name)?.clone()))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its guid.
    pub fn guid(&self) -> u64 {
        self.view().guid()
    }

    /// `ONLINE`, or what is wrong: `DEGRADED`, …
    pub fn health(&self) -> &'static str {
        self.view().health()
    }

    /// Whether it is open for writing.
    pub fn is_writable(&self) -> bool {
        self.engine().is_ok()
    }

    /// A property as `zpool get -p` shows it; `None` if pools have no such property.
    pub fn property(&self, name: &str) -> Option<String> {
        self.view().get(name).map(|v| v.exact)
    }

    /// All properties as `zpool get -p all` shows them.
    pub fn properties(&self) -> Vec<(String, String)> {
        self.view().get_all().into_iter().map(|(name, v)| (name, v.exact)).collect()
    }

    /// The dataset called `name`: `pool/fs`, `pool/fs@snapshot`, `pool/fs#bookmark`.
    ///
    /// # Errors
    /// [`Error::NoDataset`], or the pool's metadata cannot be read.
    pub fn dataset(&self, name: &str) -> Result<Dataset> {
        match self.view().dsl().find(name)? {
            Some(dataset) => Ok(Dataset::new(self, dataset)),
            None => Err(Error::NoDataset(name.into())),
        }
    }

    /// The pool's root file system.
    ///
    /// # Errors
    /// [`Error::Metadata`].
    pub fn root(&self) -> Result<Dataset> {
        Ok(Dataset::new(self, self.view().dsl().root()?))
    }

    /// All file systems and volumes, parents before their children, without snapshots. Where a
    /// dataset's children cannot be read, an error stands in their place.
    pub fn datasets(&self) -> Datasets {
        Datasets::below(self.root())
    }

    /// Creates the file system `name` (`pool/a/b`, whose parent is there) with properties as
    /// `zfs create -o` takes them.
    ///
    /// # Errors
    /// [`Error::Change`]: the name cannot be ([`ErrorKind::Invalid`](crate::ErrorKind)) or is taken (`Exists`), there is nothing
    /// for it to be in (`NotFound`), a property is not right (`Invalid`), there is no room (`NoSpace`); [`Error::ReadOnly`].
    pub fn create_filesystem(&self, name: &str, props: &[(&str, &str)]) -> Result<Dataset> {
        self.create(name, Kind::Filesystem, props)
    }

    /// Creates the volume `name` of `size` bytes, rounded up to whole blocks. All of it is reserved;
    /// with the property `refreservation` as `none` nothing is.
    ///
    /// # Errors
    /// As [`Pool::create_filesystem`].
    pub fn create_volume(&self, name: &str, size: u64, props: &[(&str, &str)]) -> Result<Dataset> {
        self.create(name, Kind::Volume { size, sparse: false }, props)
    }

    fn create(&self, name: &str, kind: Kind, props: &[(&str, &str)]) -> Result<Dataset> {
        let _entered = self.turn().enter();
        let new = NewDataset { name: name.into(), kind, props: owned(props) };
        self.changes()?.create(&new).map_err(|error| changed(name, error))?;
        self.dataset(name)
    }

    /// Takes snapshots (`pool/a@x`, `pool/b@y`): all of the same moment, or none.
    ///
    /// # Errors
    /// [`Error::Change`]: a name cannot be or is taken, the dataset is not there, there is no room; [`Error::ReadOnly`].
    pub fn snapshot<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        let names: Vec<String> = names.into_iter().map(String::from).collect();
        let _entered = self.turn().enter();
        self.take_snapshots(names)
    }

    /// As [`Pool::snapshot`], of an operation that has its turn.
    pub(crate) fn take_snapshots(&self, names: Vec<String>) -> Result<()> {
        let done = self.changes()?.snapshot(&NewSnapshot { names, props: Vec::new() });
        done.map_err(|(name, error)| changed(name.as_deref().unwrap_or(self.name()), error))
    }

    /// Waits until everything that was changed so far is on disk.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; the pool cannot be written any more.
    pub fn sync(&self) -> Result<()> {
        Ok(self.engine()?.sync()?)
    }

    /// Writes everything and marks the pool as exported, so that any system may import it. File
    /// systems and volumes that were opened for writing must be gone before. From then on the pool
    /// can only be read.
    ///
    /// # Errors
    /// [`Error::Busy`]: something is open for writing, or a stream or a comparison is under way; [`Error::ReadOnly`]: it was
    /// exported before, or is open for reading; the pool cannot be written any more.
    pub fn export(&self) -> Result<()> {
        let _entered = self.turn().enter();
        let Some(_alone) = self.0.in_use.try_write() else {
            return Err(Error::Busy(self.name().into()));
        };
        let engine = self.engine()?;
        if let Some(name) = self.0.live.anything() {
            return Err(Error::Busy(name));
        }
        engine.export(false)?;
        self.0.exported.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// The pool as its last transaction group left it, for what this crate does not offer.
    pub fn view(&self) -> Arc<cenote_pool::Pool> {
        self.0.opened.pool()
    }

    /// What writes the pool, for what this crate does not offer.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]: it is open for reading, or was exported.
    pub fn engine(&self) -> Result<&Arc<Engine>> {
        match &self.0.opened {
            Opened::Writable(engine) if !self.0.exported.load(Ordering::SeqCst) => Ok(engine),
            _ => Err(Error::ReadOnly),
        }
    }

    /// Whether what the pool has may be another now than it was when it was looked up, also if the pool was exported since.
    pub(crate) fn may_have_changed(&self) -> bool {
        matches!(self.0.opened, Opened::Writable(_))
    }

    /// Keeps the pool from being exported.
    pub(crate) fn in_use(&self) -> RwLockReadGuard<'_, ()> {
        self.0.in_use.read_recursive()
    }

    /// What has operations of administration come one by one.
    pub(crate) fn turn(&self) -> &Arc<Turn> {
        &self.0.turn
    }

    pub(crate) fn live(&self) -> &Arc<Registry> {
        &self.0.live
    }

    pub(crate) fn changes(&self) -> Result<Changes> {
        Ok(Changes::new(self.engine()?.clone(), Arc::new(Files), None))
    }

    /// Lets open file systems know that properties were changed.
    pub(crate) fn properties_changed(&self) {
        let view = self.view();
        self.live().refresh(|id| {
            let dataset = view.dsl().by_object(id).ok()??;
            settings(&view, &dataset).ok()
        });
    }
}

/// An error of a change to the dataset `name`.
pub(crate) fn changed(name: &str, error: ChangeError) -> Error {
    Error::Change { name: name.into(), error }
}

pub(crate) fn owned(props: &[(&str, &str)]) -> Vec<(String, String)> {
    props.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}
