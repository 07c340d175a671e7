//! A model of a pool: its datasets, their snapshots and properties.

use super::files::Files;
use super::lab::POOL;
use super::{Verdict, demand, space};
use cenote_dsl::Dataset;
use cenote_pool::Pool;
use cenote_zpl::FileSystem;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A file system with its snapshots.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What is in it.
    pub files: Arc<Files>,
    /// What is in its snapshots.
    pub snapshots: BTreeMap<String, Arc<Files>>,
    /// Properties that were set.
    pub props: BTreeMap<String, String>,
}

impl Entry {
    /// A new one with this root directory.
    pub fn new(root: u64) -> Entry {
        let (snapshots, props) = Default::default();
        Entry { files: Arc::new(Files::new(root)), snapshots, props }
    }
}

/// A pool.
#[derive(Clone, Debug)]
pub struct Model {
    /// File systems by name.
    pub datasets: BTreeMap<String, Entry>,
}

/// The datasets of a pool, by name.
///
/// # Errors
/// The pool cannot be read.
pub fn datasets(pool: &Pool) -> cenote_dmu::Result<Vec<(Dataset, Vec<Dataset>)>> {
    let dsl = pool.dsl();
    let mut todo = vec![dsl.root()?];
    let mut all = Vec::new();
    while let Some(dataset) = todo.pop() {
        todo.extend(dsl.children(&dataset)?);
        let snapshots = dsl.snapshots(&dataset)?;
        all.push((dataset, snapshots));
    }
    Ok(all)
}

/// The file system in a dataset as it is on disk.
///
/// # Errors
/// It cannot be read.
pub fn open(pool: &Pool, dataset: &Dataset) -> Result<Arc<FileSystem>, String> {
    let os = pool.dsl().open_objset(dataset).map_err(|e| e.to_string())?;
    FileSystem::open(os).map_err(|e| e.to_string())
}

impl Model {
    /// A new pool whose root file system has this root directory.
    pub fn new(root: u64) -> Model {
        Model { datasets: BTreeMap::from([(POOL.to_string(), Entry::new(root))]) }
    }

    /// A file system that is there.
    pub fn entry(&mut self, name: &str) -> &mut Entry {
        self.datasets.get_mut(name).unwrap()
    }

    /// The file systems right below one.
    pub fn children(&self, name: &str) -> bool {
        let below = format!("{name}/");
        self.datasets.keys().any(|n| n.starts_with(&below))
    }

    /// Nothing is in use any more, after a crash or an export.
    pub fn close_all(&mut self) {
        for entry in self.datasets.values_mut() {
            Arc::make_mut(&mut entry.files).close_all();
        }
    }

    /// Whether the pool is as this, and whether what it counts adds up.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn compare(&self, pool: &Pool) -> Verdict {
        let all = datasets(pool).map_err(|e| e.to_string())?;
        let is: BTreeSet<&str> = all.iter().map(|(d, _)| d.name.as_str()).collect();
        let want: BTreeSet<&str> = self.datasets.keys().map(String::as_str).collect();
        demand!(is == want, "datasets {is:?}, not {want:?}");
        for (dataset, snapshots) in &all {
            let entry = &self.datasets[&dataset.name];
            compare_dataset(pool, dataset, snapshots, entry)
                .map_err(|e| format!("{}: {e}", dataset.name))?;
        }
        Ok(())
    }
}

fn compare_dataset(
    pool: &Pool,
    dataset: &Dataset,
    snapshots: &[Dataset],
    entry: &Entry,
) -> Verdict {
    let names: BTreeSet<&str> = snapshots.iter().filter_map(|s| s.name.split('@').nth(1)).collect();
    let want: BTreeSet<&str> = entry.snapshots.keys().map(String::as_str).collect();
    demand!(names == want, "snapshots {names:?}, not {want:?}");
    for (name, value) in &entry.props {
        let is = pool.dsl().get(dataset, name).map_err(|e| e.to_string())?;
        let is = is.map(|v| v.exact).unwrap_or_default();
        demand!(is == *value, "{name} is {is:?}, not {value:?}");
    }
    let fs = open(pool, dataset)?;
    let seen = entry.files.compare(&fs)?;
    space::check_owners(&fs.objset(), &seen)?;
    for snapshot in snapshots {
        let files = &entry.snapshots[snapshot.name.split('@').nth(1).unwrap()];
        let fs = open(pool, snapshot).map_err(|e| format!("{}: {e}", snapshot.name))?;
        let same = files.compare(&fs);
        let seen = same.map_err(|e| format!("{}: {e}", snapshot.name))?;
        space::check_owners(&fs.objset(), &seen).map_err(|e| format!("{}: {e}", snapshot.name))?;
    }
    space::check_dataset(pool, dataset, snapshots)
}
