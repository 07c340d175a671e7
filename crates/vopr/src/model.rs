//! The model of a pool: its datasets with their snapshots, and what changes do to them.
//!
//! A change is first made to a copy of the model. What comes of it is what the pool must be if the change succeeds, and
//! may be if the power goes while it is made.

use cenote_dsl::Dataset;
use cenote_pool::Pool;
use cenote_torture::live::block::{bytes, same_bytes};
use cenote_torture::live::model::datasets;
use cenote_torture::live::space::check_dataset;
use cenote_torture::live::world::{State, Sync, look_at};
use cenote_torture::live::{Stopped, Verdict};
use cenote_zpl::{FileSystem, Volume};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The pool's name.
pub const POOL: &str = "tank";

/// What a dataset or snapshot holds.
#[derive(Clone, Debug)]
pub enum Data {
    /// A file system.
    Files(Arc<State>),
    /// A volume.
    Volume(Arc<Vec<u8>>),
}

/// A snapshot.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What follows the `@`.
    pub name: String,
    /// What it is known by, whatever its name and dataset, and in copies that were received.
    pub id: u64,
    /// What it holds.
    pub data: Data,
}

/// A dataset.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What it held when it was last looked at, if it is in use.
    pub data: Data,
    /// In order of creation.
    pub snapshots: Vec<Snapshot>,
    /// The snapshot that it is a clone of: its full name is that of the dataset which has this one.
    pub origin: Option<Origin>,
    /// The property `sync`.
    pub sync: Sync,
}

/// A snapshot of a dataset. Copies that were received have the same snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The snapshot.
    pub id: u64,
    /// Tells its dataset from others that have one of the same id.
    pub family: u64,
}

/// A change of datasets.
#[derive(Clone, Debug)]
pub enum Change {
    /// A new one: of so many bytes if it is a volume.
    Create { name: String, volume: Option<u64> },
    /// One is destroyed.
    Destroy { name: String },
    /// One gets another name.
    Rename { from: String, to: String },
    /// Snapshots of these, at once.
    Snapshot { heads: Vec<String>, name: String },
    /// A snapshot is destroyed.
    DestroySnapshot { head: String, name: String },
    /// A snapshot gets another name.
    RenameSnapshot { head: String, from: String, to: String },
    /// A clone of a snapshot.
    Clone { head: String, snapshot: String, to: String },
    /// A clone takes over its origin.
    Promote { name: String },
    /// A dataset goes back to its last snapshot.
    Rollback { name: String },
    /// A snapshot is sent, and received as a new dataset, or what changed since another one as a newer snapshot of a copy.
    Receive { head: String, base: Option<String>, snapshot: String, to: String },
    /// A property.
    Set { name: String, property: &'static str, value: String },
}

/// A pool.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// By name.
    pub datasets: BTreeMap<String, Entry>,
    /// By name: tells datasets from others, whatever they are called.
    pub families: BTreeMap<String, u64>,
    /// Numbers that were given.
    pub last: u64,
}

impl Entry {
    /// One without snapshots.
    pub fn new(data: Data) -> Entry {
        Entry { data, snapshots: Vec::new(), origin: None, sync: Sync::Standard }
    }

    /// A snapshot, by name.
    pub fn snapshot(&self, name: &str) -> Option<&Snapshot> {
        self.snapshots.iter().find(|s| s.name == name)
    }
}

impl Model {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A dataset that is there from now on.
    pub fn add(&mut self, name: &str, entry: Entry) {
        let family = self.number();
        self.families.insert(name.into(), family);
        self.datasets.insert(name.into(), entry);
    }

    fn entry(&mut self, name: &str) -> Option<&mut Entry> {
        self.datasets.get_mut(name)
    }

    /// Whether a snapshot has clones.
    fn is_cloned(&self, head: &str, id: u64) -> bool {
        let family = self.families.get(head).copied();
        let of = |entry: &Entry| entry.origin.filter(|o| o.id == id).map(|o| o.family);
        self.datasets.values().filter_map(of).any(|of| Some(of) == family)
    }

    /// The dataset that has the origin of a clone.
    fn of_origin(&self, origin: Origin) -> Option<String> {
        self.families.iter().find(|(_, family)| **family == origin.family).map(|(n, _)| n.clone())
    }

    /// The dataset that has the origin of `name`; `None`: it is no clone.
    pub fn origin_of(&self, name: &str) -> Option<String> {
        self.of_origin(self.datasets.get(name)?.origin?)
    }

    /// The model after a change; `None`: the pool would refuse it, or it changes nothing.
    pub fn after(&self, change: &Change) -> Option<Model> {
        let mut new = self.clone();
        match change {
            Change::Create { name, volume } => {
                (!self.datasets.contains_key(name)).then_some(())?;
                let data = match volume {
                    Some(size) => Data::Volume(Arc::new(vec![0; *size as usize])),
                    None => Data::Files(Arc::default()),
                };
                new.add(name, Entry::new(data));
            }
            Change::Destroy { name } => {
                let entry = new.datasets.remove(name)?;
                (entry.snapshots.is_empty() && name != POOL).then_some(())?;
                new.families.remove(name);
            }
            Change::Rename { from, to } => {
                (from != POOL && !self.datasets.contains_key(to)).then_some(())?;
                let (entry, family) = (new.datasets.remove(from)?, new.families.remove(from)?);
                new.datasets.insert(to.clone(), entry);
                new.families.insert(to.clone(), family);
            }
            Change::Snapshot { heads, name } => {
                for head in heads {
                    let id = new.number();
                    let entry = new.entry(head)?;
                    entry.snapshot(name).is_none().then_some(())?;
                    let (name, data) = (name.clone(), entry.data.clone());
                    entry.snapshots.push(Snapshot { name, id, data });
                }
            }
            Change::DestroySnapshot { head, name } => {
                let id = self.datasets.get(head)?.snapshot(name)?.id;
                (!self.is_cloned(head, id)).then_some(())?;
                new.entry(head)?.snapshots.retain(|s| s.id != id);
            }
            Change::RenameSnapshot { head, from, to } => {
                let entry = new.entry(head)?;
                entry.snapshot(to).is_none().then_some(())?;
                entry.snapshots.iter_mut().find(|s| s.name == *from)?.name = to.clone();
            }
            Change::Clone { head, snapshot, to } => {
                (!self.datasets.contains_key(to)).then_some(())?;
                let snapshot = self.datasets.get(head)?.snapshot(snapshot)?;
                let origin = Origin { id: snapshot.id, family: *self.families.get(head)? };
                let entry = Entry::new(snapshot.data.clone());
                new.add(to, Entry { origin: Some(origin), ..entry });
            }
            Change::Promote { name } => new.promote(name)?,
            Change::Rollback { name } => {
                let entry = new.entry(name)?;
                entry.data = entry.snapshots.last()?.data.clone();
            }
            Change::Receive { head, base, snapshot, to } => {
                let from = self.datasets.get(head)?;
                new.receive((from, base.as_deref()), from.snapshot(snapshot)?, to)?;
                (head != to).then_some(())?;
            }
            Change::Set { name, property, value } => {
                let entry = new.entry(name)?;
                if *property == "sync" {
                    entry.sync = match value.as_str() {
                        "always" => Sync::Always,
                        "disabled" => Sync::Disabled,
                        _ => Sync::Standard,
                    };
                }
            }
        }
        Some(new)
    }

    /// A snapshot of a dataset is received: all of it, or what changed since another one.
    fn receive(
        &mut self,
        (from, base): (&Entry, Option<&str>),
        snapshot: &Snapshot,
        to: &str,
    ) -> Option<()> {
        let (snapshot, data) = (snapshot.clone(), snapshot.data.clone());
        let Some(base) = base else {
            (!self.datasets.contains_key(to)).then_some(())?;
            self.add(to, Entry { snapshots: vec![snapshot], ..Entry::new(data) });
            return Some(());
        };
        let base = from.snapshots.iter().position(|s| s.name == base)?;
        let later = from.snapshots.iter().position(|s| s.id == snapshot.id)?;
        let entry = self.entry(to)?;
        let fits = entry.snapshots.last()?.id == from.snapshots[base].id && base < later;
        (fits && entry.snapshot(&snapshot.name).is_none()).then_some(())?;
        entry.snapshots.push(snapshot);
        entry.data = data;
        Some(())
    }

    fn promote(&mut self, name: &str) -> Option<()> {
        let origin = self.datasets.get(name)?.origin?;
        let old = self.of_origin(origin)?;
        let entry = self.datasets.get(&old)?;
        let at = entry.snapshots.iter().position(|s| s.id == origin.id)?;
        let both = |s: &Snapshot| self.datasets[name].snapshot(&s.name).is_some();
        (!entry.snapshots[..=at].iter().any(both)).then_some(())?;
        let (of_old, own) = (*self.families.get(&old)?, *self.families.get(name)?);
        let entry = self.entry(&old)?;
        let (before, rest) = (entry.origin, entry.snapshots.split_off(at + 1));
        let moved = std::mem::replace(&mut entry.snapshots, rest);
        entry.origin = Some(Origin { id: origin.id, family: own });
        let ids: Vec<u64> = moved.iter().map(|s| s.id).collect();
        let entry = self.entry(name)?;
        entry.origin = before;
        entry.snapshots.splice(0..0, moved);
        // Clones of what moved are clones of the other dataset now.
        for (other, entry) in &mut self.datasets {
            if let Some(origin) = &mut entry.origin
                && origin.family == of_old
                && ids.contains(&origin.id)
                && other != name
            {
                origin.family = own;
            }
        }
        Some(())
    }

    /// What there is, without what is in it.
    pub fn listing(&self) -> Vec<String> {
        let of = |(name, entry): (&String, &Entry)| {
            let snapshots: Vec<&str> = entry.snapshots.iter().map(|s| s.name.as_str()).collect();
            let origin = entry.origin.and_then(|o| {
                let head = self.of_origin(o)?;
                let found = self.datasets[&head].snapshots.iter().find(|s| s.id == o.id)?;
                Some(format!("{head}@{}", found.name))
            });
            let origin = origin.unwrap_or_else(|| "-".into());
            format!("{name} @{} of {origin}", snapshots.join(","))
        };
        self.datasets.iter().map(of).collect()
    }
}

/// What there is in a pool, as [`Model::listing`] has it.
///
/// # Errors
/// It cannot be read.
pub fn listing(pool: &Pool) -> Result<Vec<String>, Stopped> {
    let mut all = Vec::new();
    for (dataset, snapshots) in datasets(pool)? {
        let short = |s: &Dataset| s.name.split('@').nth(1).unwrap_or_default().to_string();
        let snapshots: Vec<String> = snapshots.iter().map(short).collect();
        let origin = pool.dsl().get(&dataset, "origin")?.map(|v| v.exact).unwrap_or_default();
        let origin = if origin.is_empty() { "-".into() } else { origin };
        all.push(format!("{} @{} of {origin}", dataset.name, snapshots.join(",")));
    }
    all.sort();
    Ok(all)
}

/// Whether a dataset or snapshot, as it is on disk, holds this.
///
/// # Errors
/// What is not as it should be.
pub fn same_data(pool: &Pool, dataset: &Dataset, data: &Data) -> Result<(), Stopped> {
    let os = pool.dsl().open_objset(dataset)?;
    let same: Verdict = match data {
        Data::Files(state) => {
            let fs = FileSystem::open_as(os, cenote_torture::live::world::settings(true))?;
            state.compare(&look_at(&fs)?)
        }
        Data::Volume(want) => same_bytes(&bytes(&Volume::open(os)?)?, want),
    };
    same.map_err(|why| Stopped(format!("{}: {why}", dataset.name)))
}

/// Whether a pool, as it is on disk, is what the model says, and what it counts adds up.
///
/// # Errors
/// What is not as it should be.
pub fn same(pool: &Pool, model: &Model) -> Result<(), Stopped> {
    let (is, want) = (listing(pool)?, model.listing());
    if is != want {
        return Err(Stopped(format!("there is {is:?}, not {want:?}")));
    }
    for (dataset, snapshots) in datasets(pool)? {
        let entry = &model.datasets[&dataset.name];
        same_data(pool, &dataset, &entry.data)?;
        for (found, snapshot) in snapshots.iter().zip(&entry.snapshots) {
            same_data(pool, found, &snapshot.data)?;
        }
        check_dataset(pool, &dataset, &snapshots)
            .map_err(|why| Stopped(format!("{}: {why}", dataset.name)))?;
    }
    Ok(())
}
