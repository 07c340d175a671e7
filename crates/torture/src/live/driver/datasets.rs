//! Random changes to datasets.
//!
//! Each change picks a dataset or snapshot from the model, makes a call of [`cenote_engine::change::Changes`], and compares what comes of
//! it with what the model expects: a name that is taken, children or snapshots in the way. If the call succeeded the model gets the
//! change as well. A call that fails for want of space changes neither.
//!
//! | of 100 | change |
//! |---|---|
//! | 18, 10, 8 | datasets are created, destroyed, renamed |
//! | 24, 14, 4 | snapshots are taken, destroyed, renamed |
//! | 22 | properties are set |
//!
//! There are few datasets with few names, so that names collide and datasets are met again and again.

use super::super::lab::POOL;
use super::super::model::{Contents, Entry};
use super::Driver;
use cenote_engine::change::{ChangeError, Kind, NewDataset, NewSnapshot};
use cenote_zpl::FileSystem;
use rand::Rng;

/// Datasets, and snapshots of each, that there are at most.
const MOST: usize = 5;

/// Whether a change was refused for want of space.
pub(super) fn full(e: &ChangeError) -> bool {
    use ChangeError::{NoSpace, QuotaTooSmall, ReservationTooLarge};
    matches!(e, NoSpace | QuotaTooSmall | ReservationTooLarge)
}

impl Driver {
    /// Changes a dataset.
    pub(super) fn change_datasets(&mut self) {
        match self.rng.random_range(0..100) {
            0..18 => self.create_dataset(),
            18..28 => self.destroy(),
            28..36 => self.rename_dataset(),
            36..60 => self.snapshot(),
            60..74 => self.destroy_snapshots(),
            74..78 => self.rename_snapshot(),
            _ => self.set(),
        }
    }

    /// A property that volumes have too, and its value.
    fn common_property(&mut self) -> (String, String) {
        let of = |name: &str, value: &str| (name.to_string(), value.to_string());
        if !self.how.dedup.is_empty() && self.chance(25) {
            return of("dedup", self.pick(self.how.dedup).unwrap());
        }
        match self.rng.random_range(0..7) {
            0..3 => of("compression", self.pick(self.how.compressions).unwrap()),
            3..5 => of("checksum", self.pick(self.how.checksums).unwrap()),
            5 => of("copies", &self.rng.random_range(1..=3).to_string()),
            _ => of("redundant_metadata", self.pick(&["all", "most", "some", "none"]).unwrap()),
        }
    }

    /// A property of a file system, and its value.
    fn property(&mut self) -> (String, String) {
        let of = |name: &str, value: u64| (name.to_string(), value.to_string());
        match self.rng.random_range(0..9) {
            0 => of("recordsize", 512 << self.rng.random_range(0..16)),
            1 => {
                let sizes = [0, 512, 4096, 32 << 10, 1 << 20];
                of("special_small_blocks", self.pick(&sizes).unwrap())
            }
            _ => self.common_property(),
        }
    }

    fn leaf(&mut self) -> String {
        let n = self.rng.random_range(0..6);
        ["a", "b", "c", "d", "a dataset with a long name", "e"][n].to_string()
    }

    fn create_dataset(&mut self) {
        let parent = self.any_filesystem();
        let name = format!("{parent}/{}", self.leaf());
        if self.model.datasets.len() >= MOST || name.matches('/').count() > 3 {
            return;
        }
        let (kind, props) = match self.chance(25) {
            true => {
                let (kind, size) = self.new_volume();
                (kind, vec![size, self.common_property()])
            }
            false if self.chance(50) => (Kind::Filesystem, vec![self.property()]),
            false => (Kind::Filesystem, Vec::new()),
        };
        self.create_as(name, kind, props);
    }

    /// Makes two file systems besides the first one, with files in all of them.
    pub fn create_more_filesystems(&mut self) {
        for leaf in ["a", "b"] {
            let before = self.model.clone();
            self.create_as(format!("{POOL}/{leaf}"), Kind::Filesystem, Vec::new());
            self.note(&before, true);
        }
        let names: Vec<String> = self.model.datasets.keys().cloned().collect();
        for name in names {
            let fs = self.fs(&name);
            self.fill(&name, &fs);
            self.settle();
        }
    }

    fn create_as(&mut self, name: String, kind: Kind, props: Vec<(String, String)>) {
        let new = NewDataset { name: name.clone(), kind, props: props.clone() };
        let there = self.model.datasets.contains_key(&name);
        match self.changes.create(&new) {
            Ok(()) => assert!(!there, "{name} was created again"),
            Err(ChangeError::Exists) if there => return,
            Err(e) if full(&e) => return,
            Err(e) => panic!("create {name}: {e}"),
        }
        let mut entry = match kind {
            Kind::Volume { size, .. } => Entry::of(Contents::Volume(vec![0; size as usize].into())),
            Kind::Filesystem => {
                let pool = self.engine.pool();
                let dataset = pool.dsl().find(&name).unwrap().unwrap();
                let os = pool.dsl().open_objset(&dataset).unwrap();
                Entry::new(FileSystem::open(os).unwrap().root())
            }
        };
        entry.props.extend(props);
        self.model.datasets.insert(name, entry);
    }

    fn destroy(&mut self) {
        let name = self.any_dataset();
        if name == POOL {
            return;
        }
        // As when it is unmounted.
        let dataset = self.engine.pool().dsl().find(&name).unwrap().unwrap();
        let was_open = self.open.remove(&name).is_some();
        if was_open {
            self.settle();
            self.engine.close(dataset.ds_obj).unwrap();
        }
        let busy = self.model.children(&name) || !self.model.entry(&name).snapshots.is_empty();
        match self.changes.destroy(&name) {
            Ok(()) => {
                assert!(!busy, "{name} had something that depends on it");
                self.model.datasets.remove(&name);
            }
            Err(ChangeError::Busy | ChangeError::HasChildren(_)) if busy => {
                if was_open {
                    self.model.entry(&name).files_mut().unwrap().close_all();
                }
            }
            Err(e) => panic!("destroy {name}: {e}"),
        }
    }

    fn rename_dataset(&mut self) {
        let (from, parent) = (self.any_dataset(), self.any_filesystem());
        let to = format!("{parent}/{}", self.leaf());
        let below = parent == from || parent.starts_with(&format!("{from}/"));
        let taken = self.model.datasets.contains_key(&to);
        let right = from != POOL && !below && !taken;
        match self.changes.rename(&from, &to) {
            Ok(()) => assert!(right, "{from} was renamed to {to}"),
            Err(e) => {
                assert!(!right || full(&e), "rename {from} to {to}: {e}");
                return;
            }
        }
        let renamed = |name: &String| match name.strip_prefix(&from) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{to}{rest}"),
            _ => name.clone(),
        };
        let all = std::mem::take(&mut self.model.datasets);
        self.model.datasets = all.into_iter().map(|(n, e)| (renamed(&n), e)).collect();
        let open = std::mem::take(&mut self.open);
        self.open = open.into_iter().map(|(n, fs)| (renamed(&n), fs)).collect();
        self.refresh();
    }

    fn snapshot(&mut self) {
        let short = format!("s{}", self.rng.random_range(0..8));
        let heads: Vec<String> = match self.chance(25) {
            true => self.model.datasets.keys().cloned().collect(),
            false => vec![self.any_dataset()],
        };
        let has = |d: &Driver, h: &str| d.model.datasets[h].snapshots.contains_key(&short);
        if heads.iter().any(|h| self.model.datasets[h].snapshots.len() >= MOST) {
            return;
        }
        let there = heads.iter().any(|h| has(self, h));
        let names = heads.iter().map(|h| format!("{h}@{short}")).collect();
        match self.changes.snapshot(&NewSnapshot { names, props: Vec::new() }) {
            Ok(()) => assert!(!there, "{short} was taken again"),
            Err((_, ChangeError::Exists)) if there => return,
            Err((_, e)) if full(&e) => return,
            Err((name, e)) => panic!("snapshot {short} of {heads:?}: {name:?} {e}"),
        }
        for head in heads {
            let entry = self.model.entry(&head);
            entry.snapshots.insert(short.clone(), entry.contents.clone());
        }
    }

    fn some_snapshot(&mut self, head: &str) -> Option<String> {
        let all: Vec<String> = self.model.entry(head).snapshots.keys().cloned().collect();
        self.pick(&all)
    }

    fn destroy_snapshots(&mut self) {
        let head = self.any_dataset();
        let mut gone: Vec<String> = Vec::new();
        for _ in 0..self.rng.random_range(1..3) {
            gone.extend(self.some_snapshot(&head).filter(|s| !gone.contains(s)));
        }
        let names: Vec<String> = gone.iter().map(|s| format!("{head}@{s}")).collect();
        let done = self.changes.destroy_snapshots(&names, false);
        assert!(done.is_ok(), "destroy {names:?}: {done:?}");
        gone.iter().for_each(|s| drop(self.model.entry(&head).snapshots.remove(s)));
    }

    fn rename_snapshot(&mut self) {
        let head = self.any_dataset();
        let Some(from) = self.some_snapshot(&head) else { return };
        let to = format!("s{}", self.rng.random_range(0..8));
        let there = self.model.entry(&head).snapshots.contains_key(&to);
        match self.changes.rename_snapshot(&format!("{head}@{from}"), &to, false) {
            Ok(()) => assert!(!there, "{from} was renamed to {to}"),
            Err((_, e)) => {
                assert!(there || full(&e), "rename {head}@{from} to {to}: {e}");
                return;
            }
        }
        let snapshots = &mut self.model.entry(&head).snapshots;
        let files = snapshots.remove(&from).unwrap();
        snapshots.insert(to, files);
    }

    fn set(&mut self) {
        let name = self.any_dataset();
        let is_filesystem = self.model.entry(&name).files().is_some();
        if self.chance(15) && name != POOL && is_filesystem {
            let quota = if self.chance(40) { 0 } else { self.rng.random_range(1..6) << 20 };
            let text = if quota == 0 { "none".to_string() } else { quota.to_string() };
            let list = [("quota".to_string(), text)];
            let failed = self.changes.set(&name, &list).unwrap();
            if failed.is_empty() {
                self.model.entry(&name).props.insert("quota".into(), quota.to_string());
            }
            return;
        }
        if !is_filesystem && self.chance(40) {
            return self.resize_volume(&name);
        }
        let (property, value) = match is_filesystem {
            true => self.property(),
            false => self.common_property(),
        };
        self.set_property(&name, &property, &value);
    }

    pub(super) fn set_property(&mut self, name: &str, property: &str, value: &str) {
        let failed = self.changes.set(name, &[(property.to_string(), value.to_string())]).unwrap();
        assert!(failed.is_empty(), "set {property}={value} on {name}: {failed:?}");
        self.model.entry(name).props.insert(property.to_string(), value.to_string());
        self.refresh();
    }
}
