//! Datasets.

use crate::{DatasetKind, Error, FileSystem, Pool, Result, Source, Volume};

/// A file system, volume, snapshot or bookmark.
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
    pub fn property(&self, name: &str) -> Result<Option<String>> {
        Ok(self.pool.0.dsl().get(&self.inner, name)?.map(|v| v.exact))
    }

    /// All properties with their sources, as `zfs get -p all` shows them.
    pub fn properties(&self) -> Result<Vec<(String, String, Source)>> {
        let all = self.pool.0.dsl().get_all(&self.inner)?;
        Ok(all.into_iter().map(|(name, v)| (name, v.exact, v.source)).collect())
    }

    /// File systems and volumes directly below, by name.
    pub fn children(&self) -> Result<Vec<Dataset>> {
        Ok(self.wrap(self.pool.0.dsl().children(&self.inner)?))
    }

    /// Snapshots, oldest first.
    pub fn snapshots(&self) -> Result<Vec<Dataset>> {
        Ok(self.wrap(self.pool.0.dsl().snapshots(&self.inner)?))
    }

    /// Bookmarks.
    pub fn bookmarks(&self) -> Result<Vec<Dataset>> {
        Ok(self.wrap(self.pool.0.dsl().bookmarks(&self.inner)?))
    }

    fn wrap(&self, list: Vec<cenote_dsl::Dataset>) -> Vec<Dataset> {
        list.into_iter().map(|d| Dataset::new(&self.pool, d)).collect()
    }

    /// The files of a file system or of a snapshot of one.
    ///
    /// # Errors
    /// [`Error::Kind`] if it has no files.
    pub fn filesystem(&self) -> Result<FileSystem> {
        if self.is_bookmark() || self.is_volume()? {
            return Err(Error::Kind { name: self.name().into(), wanted: "file system" });
        }
        let os = self.pool.0.dsl().open_objset(&self.inner)?;
        Ok(FileSystem::new(&self.pool, cenote_zpl::FileSystem::open(os)?))
    }

    /// The contents of a volume or of a snapshot of one.
    ///
    /// # Errors
    /// [`Error::Kind`] if it is something else.
    pub fn volume(&self) -> Result<Volume> {
        if self.is_bookmark() || !self.is_volume()? {
            return Err(Error::Kind { name: self.name().into(), wanted: "volume" });
        }
        let os = self.pool.0.dsl().open_objset(&self.inner)?;
        Ok(Volume::new(&self.pool, cenote_zpl::Volume::open(os)?))
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
                Err(e) => self.todo.push(Err(e)),
            }
        }
        Some(next)
    }
}
