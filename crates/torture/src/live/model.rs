//! A model of a pool: what it is made of, its datasets, their snapshots and properties.

use super::lab::POOL;
use super::setup::Setup;
use super::{Verdict, demand, space};
use cenote_dsl::Dataset;
use cenote_pool::Pool;
use cenote_testfiles::Files;
use cenote_zpl::{FileSystem, Volume};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is in a dataset.
#[derive(Clone, Debug)]
pub enum Contents {
    /// A file system.
    Files(Arc<Files>),
    /// A volume: its bytes.
    Volume(Arc<Vec<u8>>),
}

/// A dataset with its snapshots.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What is in it.
    pub contents: Contents,
    /// What is in its snapshots.
    pub snapshots: BTreeMap<String, Contents>,
    /// Properties that were set.
    pub props: BTreeMap<String, String>,
}

impl Entry {
    /// A new file system with this root directory.
    pub fn new(root: u64) -> Entry {
        Entry::of(Contents::Files(Arc::new(Files::new(root))))
    }

    /// A new one with these contents.
    pub fn of(contents: Contents) -> Entry {
        Entry { contents, snapshots: BTreeMap::new(), props: BTreeMap::new() }
    }

    /// The file system, if it is one.
    pub fn files(&self) -> Option<&Files> {
        match &self.contents {
            Contents::Files(files) => Some(files),
            Contents::Volume(_) => None,
        }
    }

    /// The file system, if it is one, to be changed.
    pub fn files_mut(&mut self) -> Option<&mut Files> {
        match &mut self.contents {
            Contents::Files(files) => Some(Arc::make_mut(files)),
            Contents::Volume(_) => None,
        }
    }
}

/// A pool.
#[derive(Clone, Debug)]
pub struct Model {
    /// What it is made of.
    pub setup: Setup,
    /// File systems and volumes by name.
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
    /// A new pool, made of what it says, whose root file system has this root directory.
    pub fn new(pool: &Pool, root: u64) -> Model {
        let datasets = BTreeMap::from([(POOL.to_string(), Entry::new(root))]);
        Model { setup: Setup::of(pool), datasets }
    }

    /// A dataset that is there.
    pub fn entry(&mut self, name: &str) -> &mut Entry {
        self.datasets.get_mut(name).unwrap()
    }

    /// Whether there are datasets below one.
    pub fn children(&self, name: &str) -> bool {
        let below = format!("{name}/");
        self.datasets.keys().any(|n| n.starts_with(&below))
    }

    /// Nothing is in use any more, after a crash or an export.
    pub fn close_all(&mut self) {
        self.datasets.values_mut().filter_map(Entry::files_mut).for_each(Files::close_all);
    }

    /// Whether the pool is as this, and whether what it counts adds up.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn compare(&self, pool: &Pool) -> Verdict {
        self.setup.compare(pool)?;
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
    compare_contents(pool, dataset, &entry.contents)?;
    for snapshot in snapshots {
        let contents = &entry.snapshots[snapshot.name.split('@').nth(1).unwrap()];
        let same = compare_contents(pool, snapshot, contents);
        same.map_err(|e| format!("{}: {e}", snapshot.name))?;
    }
    space::check_dataset(pool, dataset, snapshots)
}

/// Whether a file system or volume, as it is on disk, has these contents.
fn compare_contents(pool: &Pool, dataset: &Dataset, contents: &Contents) -> Verdict {
    match contents {
        Contents::Files(files) => {
            let fs = open(pool, dataset)?;
            let seen = files.compare(&fs)?;
            space::check_owners(&fs.objset(), &seen)
        }
        Contents::Volume(bytes) => {
            let os = pool.dsl().open_objset(dataset).map_err(|e| e.to_string())?;
            let volume = Volume::open(os).map_err(|e| e.to_string())?;
            // One more, to see the end.
            let mut is = vec![0; bytes.len() + 1];
            let n = volume.read(0, &mut is).map_err(|e| e.to_string())?;
            demand!(
                n == bytes.len(),
                "the volume has {} bytes, not {}",
                volume.size(),
                bytes.len()
            );
            let differs = is.iter().zip(bytes.iter()).position(|(is, want)| is != want);
            demand!(differs.is_none(), "byte {differs:?} of the volume is another one");
            Ok(())
        }
    }
}
