//! Trees of snapshots and clones: a model, and random changes to a pool and its model.
//!
//! All datasets are volumes of the same size, so that a dataset or snapshot is modelled by what was written
//! last to each of its blocks. What a snapshot shares with others is in no model: it is counted anew from the
//! blocks on disk ([`space::check_dataset`]), for every dataset and snapshot.
//!
//! As in [`driver`](super::driver), what the pool may hold is noted for each group that was committed:
//! here any state since the pool last had nothing to write and nothing to free.

use super::lab::{Lab, POOL, Plain};
use super::model::datasets;
use super::{Verdict, demand, space};
use cenote_dsl::Dataset;
use cenote_engine::Engine;
use cenote_engine::change::{ChangeError, Changes, Kind, NewClone, NewDataset, NewSnapshot};
use cenote_pool::Pool;
use cenote_zpl::Volume;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Blocks of each volume, and their size in bytes.
const BLOCKS: usize = 128;
const BLOCK: usize = 4096;
/// Datasets, and snapshots of each, that there are at most.
const MOST_HEADS: usize = 7;
const MOST_SNAPSHOTS: usize = 5;
/// File systems that volumes are in.
const PARENTS: [&str; 3] = ["tank", "tank/p", "tank/q"];

/// What was written last to each block; 0: nothing.
type Contents = Arc<Vec<u64>>;

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Snapshot {
    name: String,
    /// What it is known by, whatever its name and dataset.
    id: u64,
    contents: Contents,
    held: bool,
    /// It goes with the last clone or hold.
    deferred: bool,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Head {
    contents: Contents,
    /// In order of creation.
    snapshots: Vec<Snapshot>,
    /// The snapshot that it is a clone of.
    origin: Option<u64>,
}

/// What a pool should hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    heads: BTreeMap<String, Head>,
    /// Numbers that were given to snapshots and writes.
    last: u64,
}

/// What a pool may hold at each transaction group.
pub type Committed = BTreeMap<u64, Vec<Tree>>;

/// The bytes of a block that `write` was written to: they compress to nothing smaller.
fn block(write: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    if write != 0 {
        rand::RngCore::fill_bytes(&mut SmallRng::seed_from_u64(write), &mut bytes);
        bytes[..8].copy_from_slice(&write.to_le_bytes());
    }
    bytes
}

impl Tree {
    fn head(&mut self, name: &str) -> &mut Head {
        self.heads.get_mut(name).unwrap()
    }

    /// Whether there is no volume yet.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Whether a snapshot has clones.
    fn is_cloned(&self, id: u64) -> bool {
        self.heads.values().any(|head| head.origin == Some(id))
    }

    /// The full name of a snapshot.
    fn name_of(&self, id: u64) -> Option<String> {
        self.heads.iter().find_map(|(head, entry)| {
            let found = entry.snapshots.iter().find(|s| s.id == id)?;
            Some(format!("{head}@{}", found.name))
        })
    }

    /// Takes away the snapshots that were only kept by what is gone.
    fn sweep(&mut self) {
        let cloned: Vec<u64> = self.heads.values().filter_map(|head| head.origin).collect();
        for head in self.heads.values_mut() {
            head.snapshots.retain(|s| !s.deferred || s.held || cloned.contains(&s.id));
        }
    }

    /// Whether the pool is as this, and whether what it counts adds up.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn compare(&self, pool: &Pool) -> Verdict {
        let mut all = datasets(pool).map_err(|e| e.to_string())?;
        all.retain(|(d, _)| !PARENTS.contains(&d.name.as_str()));
        let is: Vec<&str> = all.iter().map(|(d, _)| d.name.as_str()).collect();
        demand!(is.len() == self.heads.len(), "datasets {is:?}, not {:?}", self.heads.keys());
        for (dataset, snapshots) in &all {
            let Some(head) = self.heads.get(&dataset.name) else {
                return Err(format!("{} should not be there", dataset.name));
            };
            self.compare_head(pool, dataset, snapshots, head)
                .map_err(|e| format!("{}: {e}", dataset.name))?;
        }
        Ok(())
    }

    fn compare_head(
        &self,
        pool: &Pool,
        dataset: &Dataset,
        snapshots: &[Dataset],
        head: &Head,
    ) -> Verdict {
        let short = |d: &Dataset| d.name.split('@').nth(1).unwrap_or_default().to_string();
        let names: Vec<String> = snapshots.iter().map(short).collect();
        let want: Vec<&String> = head.snapshots.iter().map(|s| &s.name).collect();
        demand!(names.iter().eq(want.iter().copied()), "snapshots {names:?}, not {want:?}");
        let get = |d: &Dataset, name: &str| {
            let value = pool.dsl().get(d, name).map_err(|e| e.to_string())?;
            Ok::<_, String>(value.map(|v| v.exact).unwrap_or_default())
        };
        let (is, want) = (get(dataset, "origin")?, head.origin.map(|id| self.name_of(id)));
        let want = want.map_or(Some("-".to_string()), |name| name);
        let same = want == Some(is.clone()) || head.origin.is_none() && is.is_empty();
        demand!(same, "origin {is}, not {want:?}");
        compare_contents(pool, dataset, &head.contents)?;
        for (found, snapshot) in snapshots.iter().zip(&head.snapshots) {
            compare_contents(pool, found, &snapshot.contents)
                .map_err(|e| format!("@{}: {e}", snapshot.name))?;
            let refs = get(found, "userrefs")?;
            demand!(refs == u64::from(snapshot.held).to_string(), "{refs} holds");
            // Two states may differ in nothing else.
            let deferred = found.is_defer_destroyed();
            demand!(deferred == snapshot.deferred, "deferred destroy: {deferred}");
        }
        space::check_dataset(pool, dataset, snapshots)
    }
}

fn compare_contents(pool: &Pool, dataset: &Dataset, contents: &Contents) -> Verdict {
    let os = pool.dsl().open_objset(dataset).map_err(|e| e.to_string())?;
    let volume = Volume::open(os).map_err(|e| e.to_string())?;
    let mut is = vec![0; BLOCKS * BLOCK];
    let n = volume.read(0, &mut is).map_err(|e| e.to_string())?;
    demand!(n == is.len(), "{n} bytes");
    for (at, (is, want)) in is.chunks(BLOCK).zip(contents.iter()).enumerate() {
        demand!(is == block(*want), "block {at} is not what write {want} left");
    }
    Ok(())
}

/// Changes a pool and its model.
pub struct Gardener {
    rng: SmallRng,
    engine: Arc<Engine>,
    changes: Changes,
    /// What the pool should hold now.
    pub tree: Tree,
    /// What it may hold at each transaction group.
    pub committed: Committed,
    /// The states since nothing was to be written or freed.
    since: Vec<Tree>,
    last: u64,
}

impl Gardener {
    /// For a pool that holds what `tree` says.
    pub fn new(seed: u64, engine: Arc<Engine>, tree: Tree) -> Gardener {
        let changes = Changes::new(engine.clone(), Arc::new(Plain), None);
        let last = engine.pool().uberblock().txg;
        Gardener {
            rng: SmallRng::seed_from_u64(seed),
            changes,
            committed: BTreeMap::from([(last, vec![tree.clone()])]),
            since: vec![tree.clone()],
            tree,
            last,
            engine,
        }
    }

    /// For a new pool: makes the file systems that volumes are in, and a volume.
    pub fn of_new(seed: u64, engine: Arc<Engine>) -> Gardener {
        let mut new = Gardener::new(seed, engine, Tree::default());
        for parent in &PARENTS[1..] {
            let (name, kind) = (parent.to_string(), Kind::Filesystem);
            new.changes.create(&NewDataset { name, kind, props: Vec::new() }).unwrap();
            new.note();
        }
        new.create();
        new.settle();
        new
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let at = self.rng.random_range(0..from.len().max(1));
        from.get(at).cloned()
    }

    fn any_head(&mut self) -> String {
        let names: Vec<String> = self.tree.heads.keys().cloned().collect();
        self.pick(&names).unwrap()
    }

    /// A snapshot: its dataset and its place there.
    fn any_snapshot(&mut self) -> Option<(String, usize)> {
        let places = |(name, head): (&String, &Head)| {
            (0..head.snapshots.len()).map(|at| (name.clone(), at)).collect::<Vec<_>>()
        };
        let all: Vec<_> = self.tree.heads.iter().flat_map(places).collect();
        self.pick(&all)
    }

    fn new_name(&mut self) -> String {
        let parent = PARENTS[self.rng.random_range(0..PARENTS.len())];
        format!("{parent}/v{}", self.rng.random_range(0..12))
    }

    /// Notes what the groups may hold that were committed since.
    fn note(&mut self) {
        self.since.push(self.tree.clone());
        self.since.dedup();
        let now = self.engine.pool().uberblock().txg;
        for txg in self.last + 1..=now {
            self.committed.insert(txg, self.since.clone());
        }
        self.last = now;
    }

    /// Writes everything, until there is nothing more to write or to free.
    pub fn settle(&mut self) {
        let freeing = |pool: &Pool| pool.get("freeing").is_none_or(|v| v.exact != "0");
        loop {
            let before = self.engine.pool().uberblock().txg;
            self.engine.sync().unwrap();
            let pool = self.engine.pool();
            if pool.uberblock().txg == before && !freeing(&pool) {
                break;
            }
        }
        self.note();
        self.since = vec![self.tree.clone()];
    }

    /// Does something.
    pub fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..42 => self.write(),
            42..45 => self.create(),
            45..59 => self.snapshot(),
            59..68 => self.clone_one(),
            68..72 => self.promote(),
            72..76 => self.roll_back(),
            76..79 => self.rename(),
            79..82 => self.hold_or_release(),
            82..85 => self.bookmark(),
            85..94 => self.destroy_snapshot(),
            _ => self.destroy(),
        }
        self.note();
        if self.rng.random_bool(0.25) {
            self.settle();
        }
    }

    /// Closes a volume and makes sure that nobody has it.
    fn close(&mut self, name: &str) {
        let dataset = self.engine.pool().dsl().find(name).unwrap().unwrap();
        self.engine.close(dataset.ds_obj).unwrap();
        self.note();
    }

    fn create(&mut self) {
        let name = self.new_name();
        if self.tree.heads.len() >= MOST_HEADS || self.tree.heads.contains_key(&name) {
            return;
        }
        let kind = Kind::Volume { size: (BLOCKS * BLOCK) as u64, sparse: true };
        let props = vec![("volblocksize".to_string(), BLOCK.to_string())];
        self.changes.create(&NewDataset { name: name.clone(), kind, props }).unwrap();
        let contents = Arc::new(vec![0; BLOCKS]);
        let head = Head { contents, snapshots: Vec::new(), origin: None };
        self.tree.heads.insert(name, head);
    }

    fn write(&mut self) {
        let name = self.any_head();
        let dataset = self.engine.pool().dsl().find(&name).unwrap().unwrap();
        let volume = Volume::open_live(self.engine.live(dataset.ds_obj).unwrap()).unwrap();
        let (count, sparse) = (self.rng.random_range(1..30), self.rng.random_bool(0.6));
        let first = self.rng.random_range(0..BLOCKS);
        for i in 0..count {
            let at = if sparse { self.rng.random_range(0..BLOCKS) } else { (first + i) % BLOCKS };
            let write = if self.rng.random_bool(0.1) { 0 } else { self.tree.number() };
            match write {
                0 => volume.discard((at * BLOCK) as u64, BLOCK as u64).unwrap(),
                write => volume.write((at * BLOCK) as u64, &block(write)).unwrap(),
            }
            Arc::make_mut(&mut self.tree.head(&name).contents)[at] = write;
            // A group may end between two writes.
            self.since.push(self.tree.clone());
        }
    }

    fn snapshot(&mut self) {
        let name = format!("s{}", self.rng.random_range(0..9));
        let heads: Vec<String> = match self.rng.random_bool(0.2) {
            true => self.tree.heads.keys().cloned().collect(),
            false => vec![self.any_head()],
        };
        let full = |h: &String| self.tree.heads[h].snapshots.len() >= MOST_SNAPSHOTS;
        if heads.iter().any(full) {
            return;
        }
        let there =
            heads.iter().any(|h| self.tree.heads[h].snapshots.iter().any(|s| s.name == name));
        let names = heads.iter().map(|h| format!("{h}@{name}")).collect();
        match self.changes.snapshot(&NewSnapshot { names, props: Vec::new() }) {
            Ok(()) => assert!(!there, "{name} was taken again"),
            Err((_, ChangeError::Exists)) if there => return,
            Err(e) => panic!("snapshot {name} of {heads:?}: {e:?}"),
        }
        for head in heads {
            let id = self.tree.number();
            let head = self.tree.head(&head);
            let (contents, name) = (head.contents.clone(), name.clone());
            head.snapshots.push(Snapshot { name, id, contents, held: false, deferred: false });
        }
    }

    fn clone_one(&mut self) {
        let (Some((head, at)), name) = (self.any_snapshot(), self.new_name()) else { return };
        let snapshot = self.tree.heads[&head].snapshots[at].clone();
        let full = self.tree.heads.len() >= MOST_HEADS || snapshot.deferred;
        if full || self.tree.heads.contains_key(&name) {
            return;
        }
        let origin = format!("{head}@{}", snapshot.name);
        let new = NewClone { origin, name: name.clone(), props: Vec::new() };
        self.changes.clone_snapshot(&new).unwrap();
        let Snapshot { contents, id, .. } = snapshot;
        let head = Head { contents, snapshots: Vec::new(), origin: Some(id) };
        self.tree.heads.insert(name, head);
    }

    fn promote(&mut self) {
        let clones = self.tree.heads.iter().filter(|(_, head)| head.origin.is_some());
        let clones: Vec<String> = clones.map(|(name, _)| name.clone()).collect();
        let Some(clone) = self.pick(&clones) else { return };
        let origin = self.tree.heads[&clone].origin.unwrap();
        let of = |(_, head): &(&String, &Head)| head.snapshots.iter().any(|s| s.id == origin);
        let old = self.tree.heads.iter().find(of).unwrap().0.clone();
        let at = self.tree.heads[&old].snapshots.iter().position(|s| s.id == origin).unwrap();
        match self.changes.promote(&clone) {
            Ok(()) => {}
            // A snapshot or bookmark that both have.
            Err((Some(_), ChangeError::Exists)) => return,
            Err(e) => panic!("promote {clone}: {e:?}"),
        }
        let entry = self.tree.head(&old);
        let (before, rest) = (entry.origin, entry.snapshots.split_off(at + 1));
        let moved = std::mem::replace(&mut entry.snapshots, rest);
        entry.origin = Some(origin);
        let entry = self.tree.head(&clone);
        entry.origin = before;
        entry.snapshots.splice(0..0, moved);
    }

    fn roll_back(&mut self) {
        let Some((head, at)) = self.any_snapshot() else { return };
        let entry = &self.tree.heads[&head];
        let (snapshot, newest) = (entry.snapshots[at].clone(), at + 1 == entry.snapshots.len());
        self.close(&head);
        let name = format!("{head}@{}", snapshot.name);
        // The model has no bookmarks.
        let marked = !self.changes.later_than(&name).unwrap().bookmarks.is_empty();
        match self.changes.rollback(&name) {
            Ok(()) => assert!(newest && !marked, "rolled back over what is later than {name}"),
            Err(ChangeError::Exists) if !newest || marked => return,
            Err(e) => panic!("rollback {name}: {e}"),
        }
        self.tree.head(&head).contents = snapshot.contents;
    }

    fn rename(&mut self) {
        if self.rng.random_bool(0.5) {
            let (from, to) = (self.any_head(), self.new_name());
            if self.tree.heads.contains_key(&to) {
                return;
            }
            self.changes.rename(&from, &to).unwrap();
            let head = self.tree.heads.remove(&from).unwrap();
            self.tree.heads.insert(to, head);
            return;
        }
        let Some((head, at)) = self.any_snapshot() else { return };
        let to = format!("s{}", self.rng.random_range(0..9));
        if self.tree.heads[&head].snapshots.iter().any(|s| s.name == to) {
            return;
        }
        let from = format!("{head}@{}", self.tree.heads[&head].snapshots[at].name);
        self.changes.rename_snapshot(&from, &to, false).unwrap();
        self.tree.head(&head).snapshots[at].name = to;
    }

    fn hold_or_release(&mut self) {
        let Some((head, at)) = self.any_snapshot() else { return };
        let snapshot = self.tree.heads[&head].snapshots[at].clone();
        let names = [format!("{head}@{}", snapshot.name)];
        match (snapshot.held, snapshot.deferred) {
            (true, _) => drop(self.changes.release(&names, "keep").unwrap()),
            (false, true) => return,
            (false, false) => self.changes.hold(&names, "keep").unwrap(),
        }
        self.tree.head(&head).snapshots[at].held = !snapshot.held;
        self.tree.sweep();
    }

    /// Bookmarks are not modelled: they go with their datasets, and move with what is promoted. But they
    /// keep deadlists apart.
    fn bookmark(&mut self) {
        let Some((head, at)) = self.any_snapshot() else { return };
        let bookmark = format!("{head}#b{}", self.rng.random_range(0..5));
        let source = format!("{head}@{}", self.tree.heads[&head].snapshots[at].name);
        match self.changes.bookmark(&source, &bookmark) {
            Ok(()) => {}
            Err(ChangeError::Exists) => self.changes.destroy_bookmarks(&[bookmark]).unwrap(),
            Err(e) => panic!("bookmark {bookmark}: {e}"),
        }
    }

    fn destroy_snapshot(&mut self) {
        let Some((head, at)) = self.any_snapshot() else { return };
        let (snapshot, defer) =
            (self.tree.heads[&head].snapshots[at].clone(), self.rng.random_bool(0.3));
        let kept = snapshot.held || self.tree.is_cloned(snapshot.id);
        let names = [format!("{head}@{}", snapshot.name)];
        match self.changes.destroy_snapshots(&names, defer) {
            Ok(()) if kept => {
                assert!(defer, "{names:?} was held or cloned");
                self.tree.head(&head).snapshots[at].deferred = true;
            }
            Ok(()) => drop(self.tree.head(&head).snapshots.remove(at)),
            Err(e) => assert!(kept && !defer, "destroy {names:?}: {e:?}"),
        }
    }

    fn destroy(&mut self) {
        let name = self.any_head();
        if self.tree.heads.len() < 2 {
            return;
        }
        self.close(&name);
        let busy = !self.tree.heads[&name].snapshots.is_empty();
        match self.changes.destroy(&name) {
            Ok(()) => assert!(!busy, "{name} had snapshots"),
            Err(ChangeError::Busy) if busy => return,
            Err(e) => panic!("destroy {name}: {e}"),
        }
        self.tree.heads.remove(&name);
        self.tree.sweep();
    }

    /// Compares what is on disk once everything is written.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn check(&mut self) -> Verdict {
        self.settle();
        self.tree.compare(&self.engine.pool())
    }

    /// Exports the pool and imports it again.
    pub fn reimport(&mut self, lab: &Lab) {
        self.settle();
        self.engine.export(false).unwrap();
        self.note();
        let found = lab.find().unwrap_or_else(|| panic!("{POOL} is gone"));
        self.engine = lab.import(&found).unwrap();
        self.changes = Changes::new(self.engine.clone(), Arc::new(Plain), None);
        self.settle();
    }

    /// Exports the pool. Returns what it held at each group.
    pub fn export(mut self) -> Committed {
        self.settle();
        self.engine.export(false).unwrap();
        self.note();
        self.committed
    }
}
