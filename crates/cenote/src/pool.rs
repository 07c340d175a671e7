//! Pools.

use crate::{Dataset, Datasets, Error, Result};
use cenote_pool::{Candidate, ImportOptions, discover};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    pub fn open(&self) -> Result<Pool> {
        self.open_with(&ImportOptions {
            readonly: true,
            force: true,
            allow_missing_log: true,
            skip_activity_check: true,
            ..ImportOptions::default()
        })
    }

    /// Opens the pool as `zpool import` would; [`ImportOptions::readonly`] must be set.
    pub fn open_with(&self, options: &ImportOptions) -> Result<Pool> {
        Ok(Pool(cenote_pool::Pool::import(&self.0, options)?))
    }
}

/// An open pool.
#[derive(Clone)]
pub struct Pool(pub(crate) Arc<cenote_pool::Pool>);

impl Pool {
    /// The pools on the devices and in the images that `paths` name, or that lie in the
    /// directories that they name.
    pub fn find<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>) -> Vec<Found> {
        let paths: Vec<PathBuf> = paths.into_iter().map(Into::into).collect();
        discover(&paths).into_iter().map(Found).collect()
    }

    /// Finds and opens the pool called `name`, or with that guid in decimal.
    ///
    /// # Errors
    /// No such pool, several of that name, or it cannot be opened.
    pub fn open<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>, name: &str) -> Result<Pool> {
        let paths: Vec<PathBuf> = paths.into_iter().map(Into::into).collect();
        let candidates = discover(&paths);
        Found(discover::find(&candidates, name)?.clone()).open()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Its guid.
    pub fn guid(&self) -> u64 {
        self.0.guid()
    }

    /// `ONLINE`, or what is wrong: `DEGRADED`, …
    pub fn health(&self) -> &'static str {
        self.0.health()
    }

    /// A property as `zpool get -p` shows it; `None` if pools have no such property.
    pub fn property(&self, name: &str) -> Option<String> {
        self.0.get(name).map(|v| v.exact)
    }

    /// All properties as `zpool get -p all` shows them.
    pub fn properties(&self) -> Vec<(String, String)> {
        self.0.get_all().into_iter().map(|(name, v)| (name, v.exact)).collect()
    }

    /// The dataset called `name`: `pool/fs`, `pool/fs@snapshot`, `pool/fs#bookmark`.
    ///
    /// # Errors
    /// [`Error::NoDataset`], or the pool's metadata cannot be read.
    pub fn dataset(&self, name: &str) -> Result<Dataset> {
        match self.0.dsl().find(name)? {
            Some(dataset) => Ok(Dataset::new(self, dataset)),
            None => Err(Error::NoDataset(name.into())),
        }
    }

    /// The pool's root file system.
    pub fn root(&self) -> Result<Dataset> {
        Ok(Dataset::new(self, self.0.dsl().root()?))
    }

    /// All file systems and volumes, parents before their children, without snapshots. Where a
    /// dataset's children cannot be read, an error stands in their place.
    pub fn datasets(&self) -> Datasets {
        Datasets::below(self.root())
    }

    /// The engine's own view of the pool, for what this crate does not offer.
    pub fn engine(&self) -> &Arc<cenote_pool::Pool> {
        &self.0
    }
}
