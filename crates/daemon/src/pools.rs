//! The table of imported pools.
//!
//! The daemon has one; a command that runs in the user's own process has an empty one. An entry
//! owns the pool and its mounts. A pool that is written is an [`Engine`], which hands out a new
//! [`Pool`] after each transaction group: so a command asks [`Imported::pool`] once for each report
//! that it makes, and holds on to that.
//!
//! Invariants: names in the table are unique, and so are pool guids; an entry leaves the table
//! only when its mounts are gone (or were detached by force). Commands that import, export, mount,
//! unmount or change a pool have it for themselves meanwhile ([`PoolTable::change`]), so that two of them never meet in a pool.
//! Commands for different pools do not wait for each other: they share the table, whose lock is held for single steps, and the
//! cache files. A command that is to write labels to devices of no pool has these for itself as well ([`PoolTable::change_with`]),
//! from before it looks at them until its pool is in the table with them: a spare is held by no pool, so the kernel, which
//! gives a device to one (`vdev::open_device_rw`), would give it to both.

use crate::cachefile::setting::Setting;
use crate::injections::Injections;
use crate::mounts::Mounts;
use crate::mounts::agents::{self, LazyWatcher};
use crate::tunables::mounted::Directories;
use crate::tunables::startup;
pub use cenote_admin::Opened;
use cenote_admin::host::{Entered, Exclusion};
use cenote_dsl::{PropValue, Source};
use cenote_engine::{Engine, EngineError};
use cenote_format::invariant;
use cenote_format::nvlist::NvList;
use cenote_fuse::{Agent, Local, Watcher};
use cenote_pool::Pool;
use cenote_pool::history;
use cenote_pool::props::PropChange;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Health of a pool that nothing can be written to any more.
pub const SUSPENDED: &str = "SUSPENDED";

/// What the labels of a pool say that is not imported any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was exported.
    Exported,
    /// It is in use still (`zpool export -F`).
    InUse,
    /// It was destroyed.
    Destroyed,
}

/// An imported pool.
pub struct Imported {
    opened: Opened,
    name: String,
    /// Alternate root (`-R`) that mountpoints lie under.
    pub altroot: Option<PathBuf>,
    /// Its mounted file systems.
    pub mounts: Arc<Mounts>,
    /// When it was imported.
    pub since: Instant,
    cachefile: Mutex<Setting>,
}

impl Imported {
    /// A pool with nothing mounted. From now on its datasets know what is mounted.
    pub fn new(opened: Opened, altroot: Option<PathBuf>) -> Imported {
        let mounts = Arc::new(Mounts::default());
        let lookup = Arc::downgrade(&mounts);
        let pool = opened.pool();
        if let Some(engine) = opened.engine() {
            engine.act_on_errors();
        }
        pool.dsl().set_mounts(Arc::new(move |name: &str| lookup.upgrade()?.options_of(name)));
        let name = pool.name().to_string();
        let cachefile = if altroot.is_some() { Setting::None } else { Setting::Default };
        let (since, cachefile) = (Instant::now(), Mutex::new(cachefile));
        Imported { opened, name, altroot, mounts, since, cachefile }
    }

    /// The cache file that names the pool.
    pub fn cachefile(&self) -> Setting {
        self.cachefile.lock().clone()
    }

    /// From now on this cache file names the pool, once it is written.
    pub fn set_cachefile(&self, setting: Setting) {
        *self.cachefile.lock() = setting;
    }

    /// What writes the pool. The error is what comes after `cannot …: `.
    pub fn writable(&self) -> Result<&Arc<Engine>, String> {
        self.engine().ok_or_else(|| "pool is read-only".into())
    }

    /// Sets properties of the pool. The error is what comes after `cannot …: `.
    pub fn set(&self, mut changes: Vec<PropChange>) -> Result<(), String> {
        changes.retain(|change| !matches!(change, PropChange::Memory(..)));
        if changes.is_empty() {
            return Ok(());
        }
        self.writable()?.set_properties(changes).map_err(|e| reason(&e))
    }

    /// A property of `pool`, which is this one's.
    pub fn property(&self, pool: &Pool, name: &str) -> Option<PropValue> {
        let value = pool.get(name)?;
        if name == "cachefile" {
            let (text, source) = match self.cachefile() {
                Setting::Default => ("-".to_string(), Source::Default),
                Setting::None => ("none".to_string(), Source::Local),
                Setting::At(path) => (path.display().to_string(), Source::Local),
            };
            return Some(PropValue { exact: text.clone(), human: text, source });
        }
        if name == "health" && self.suspended() {
            let suspended = String::from(SUSPENDED);
            return Some(PropValue { exact: suspended.clone(), human: suspended, ..value });
        }
        Some(value)
    }

    /// Writes what a pool without mounts still holds, and lets go of it. The error is for the user.
    pub fn close(&self, end: End) -> Result<(), String> {
        let Some(engine) = self.engine() else { return Ok(()) };
        let (what, done) = match end {
            End::Exported => ("export", engine.export(false)),
            End::InUse => ("export", engine.export_as_in_use()),
            End::Destroyed => ("destroy", engine.export(true)),
        };
        done.map_err(|e| format!("cannot {what} '{}': {}", self.name(), reason(&e)))
    }

    /// Deletes what a pool that was destroyed has in an object store. The error is for the user.
    pub fn erase(&self) -> Result<(), String> {
        let Some(engine) = self.engine() else { return Ok(()) };
        engine.erase_objects().map_err(|why| {
            format!(
                "'{}' is destroyed, but not all of its objects are deleted: {why}\n\
                 'zpool labelclear -f' of its object store deletes the rest",
                self.name()
            )
        })
    }

    /// Whether nothing can be written any more.
    pub fn suspended(&self) -> bool {
        self.engine().is_some_and(|engine| engine.suspended().is_some())
    }

    /// Puts a record into the history, made when it is written, at a time in seconds since 1970.
    pub(crate) fn record_later(&self, made: impl FnOnce(u64) -> NvList + Send + 'static) {
        let Some(engine) = self.engine() else { return };
        let recorded = engine.sync_task_later(move |context| {
            let record = made(context.tx.now);
            Ok(history::append(context.tx.mos, &record)?)
        });
        if let Err(e) = recorded {
            tracing::warn!("history of {}: {e}", self.name);
        }
    }

    /// The name that the pool is imported under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The pool's guid.
    pub fn guid(&self) -> u64 {
        self.pool().guid()
    }

    /// How the pool is open.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// The pool as its last transaction group left it.
    pub fn pool(&self) -> Arc<Pool> {
        self.opened.pool()
    }

    /// What writes the pool; `None`: it is imported read-only.
    pub fn engine(&self) -> Option<&Arc<Engine>> {
        self.opened.engine()
    }
}

/// Why the engine did not do something, in OpenZFS's words: what comes after `cannot …: `.
pub fn reason(e: &EngineError) -> String {
    match e {
        // The cause is in the daemon's log.
        EngineError::Suspended(_) => "pool I/O is currently suspended".into(),
        e => e.to_string(),
    }
}

/// What a command has for itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// A pool by its name, whether it is imported or not.
    Name(String),
    /// The pool of this guid, which an import may give any name.
    Guid(u64),
    /// The device of this identity (`create::Opened::bytes`), which is to get labels.
    Device(u64, u64),
}

impl Key {
    /// That of the pool of this name, or of the pool that a dataset of this name is in.
    fn of(name: impl AsRef<str>) -> Key {
        let pool = name.as_ref().split(['/', '@', '#']).next().unwrap_or_default();
        Key::Name(pool.to_string())
    }
}

thread_local! {
    /// This thread holds [`PoolTable::change`].
    static CHANGES: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread keeps others from changing what is imported and mounted.
pub fn keeps_others_waiting() -> bool {
    CHANGES.get()
}

/// Held by a command that changes pools, or what is mounted of them.
pub struct Change<'a> {
    pools: &'a PoolTable,
    keys: BTreeSet<Key>,
}

impl Change<'_> {
    /// Whether it is of the pool of this name, or that a dataset of this name is in.
    pub fn has(&self, name: &str) -> bool {
        self.keys.contains(&Key::of(name))
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        CHANGES.set(false);
        self.pools.changing.lock().retain(|key| !self.keys.contains(key));
        self.pools.changed.notify_all();
    }
}

impl Entered for Change<'_> {}

/// A pool that a session has for itself now and then.
pub struct PoolTurn {
    /// The table of pools.
    pub pools: Arc<PoolTable>,
    /// The pool's name.
    pub name: String,
}

impl Exclusion for PoolTurn {
    fn enter(&self) -> Box<dyn Entered + '_> {
        Box::new(self.pools.change(&self.name))
    }
}

/// The imported pools by name.
pub struct PoolTable {
    pools: Mutex<BTreeMap<String, Arc<Imported>>>,
    /// How often a pool came or went, or labels were cleared.
    turns: AtomicU64,
    /// What commands have for themselves.
    changing: Mutex<BTreeSet<Key>>,
    changed: Condvar,
    watcher: LazyWatcher,
    agent: Arc<dyn Agent>,
    /// Cache files that were written.
    cachefiles: Mutex<BTreeSet<PathBuf>>,
    /// Mounts that show tunables and figures.
    pub directories: Directories,
    /// Faults that are injected into pools.
    pub injections: Injections,
}

impl Default for PoolTable {
    /// That of a process which mounts nothing.
    fn default() -> PoolTable {
        PoolTable::with(Arc::new(Local))
    }
}

impl PoolTable {
    /// That of a daemon.
    pub fn of_daemon() -> PoolTable {
        PoolTable::with(agents::helper())
    }

    fn with(agent: Arc<dyn Agent>) -> PoolTable {
        PoolTable {
            pools: Mutex::default(),
            turns: AtomicU64::default(),
            changing: Mutex::default(),
            changed: Condvar::new(),
            watcher: LazyWatcher::default(),
            agent,
            cachefiles: Mutex::default(),
            directories: Directories::default(),
            injections: Injections::default(),
        }
    }

    /// The agent that does for this process what must be done at paths, in its mount namespace.
    pub fn agent(&self) -> Arc<dyn Agent> {
        Arc::clone(&self.agent)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Imported>>> {
        self.pools.lock()
    }

    /// Held while a pool is created, imported, changed or exported, and its file systems are mounted or unmounted. `name` is that of
    /// the pool, or of a dataset in it. A thread holds one at a time.
    pub fn change(&self, name: &str) -> Change<'_> {
        self.change_all([name], None)
    }

    /// As [`PoolTable::change`], of several pools and of one by its guid. All are had at once: a command that waits for one of
    /// them keeps no other from the rest.
    pub fn change_all<N: AsRef<str>>(
        &self,
        names: impl IntoIterator<Item = N>,
        guid: Option<u64>,
    ) -> Change<'_> {
        self.enter(names.into_iter().map(Key::of).chain(guid.map(Key::Guid)).collect())
    }

    /// As [`PoolTable::change_all`], of pools and of devices that may get labels, by their identity.
    pub fn change_with<N: AsRef<str>>(
        &self,
        names: impl IntoIterator<Item = N>,
        devices: impl IntoIterator<Item = (u64, u64)>,
    ) -> Change<'_> {
        let devices = devices.into_iter().map(|(a, b)| Key::Device(a, b));
        self.enter(names.into_iter().map(Key::of).chain(devices).collect())
    }

    fn enter(&self, keys: BTreeSet<Key>) -> Change<'_> {
        invariant!(
            !CHANGES.get(),
            "a thread that keeps others waiting for a pool waits for another one"
        );
        let mut changing = self.changing.lock();
        self.changed.wait_while(&mut changing, |taken| !taken.is_disjoint(&keys));
        changing.extend(keys.iter().cloned());
        CHANGES.set(true);
        Change { pools: self, keys }
    }

    /// The process that takes mounts away should this one die, started with the first mount.
    pub fn watcher(&self) -> Option<Arc<Watcher>> {
        self.watcher.get()
    }

    /// The cache files that were written so far. While it is held they are written by this thread alone.
    pub fn cachefiles(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.cachefiles.lock()
    }

    /// The pool imported under `name`.
    pub fn get(&self, name: &str) -> Option<Arc<Imported>> {
        self.lock().get(name).cloned()
    }

    /// The pool with this guid.
    pub fn by_guid(&self, guid: u64) -> Option<Arc<Imported>> {
        self.lock().values().find(|p| p.guid() == guid).cloned()
    }

    /// Whether a pool is imported still.
    pub fn has(&self, imported: &Arc<Imported>) -> bool {
        self.get(imported.name()).is_some_and(|found| Arc::ptr_eq(&found, imported))
    }

    /// All pools, sorted by name.
    pub fn all(&self) -> Vec<Arc<Imported>> {
        self.lock().values().cloned().collect()
    }

    /// Adds a pool; false if its name or guid is taken.
    pub fn insert(&self, imported: Arc<Imported>) -> bool {
        let mut pools = self.lock();
        let name = imported.name().to_string();
        let guid = imported.guid();
        if pools.contains_key(&name) || pools.values().any(|p| p.guid() == guid) {
            return false;
        }
        pools.insert(name, imported);
        self.turn();
        true
    }

    /// Changes [`PoolTable::turns`].
    pub fn turn(&self) {
        self.turns.fetch_add(1, Ordering::SeqCst);
    }

    /// A number that stays the same as long as this process changes no label of a pool that is not imported. So what was
    /// found on devices is still there.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }

    /// Takes a pool out of the table.
    pub fn remove(&self, name: &str) -> Option<Arc<Imported>> {
        let removed = self.lock().remove(name);
        self.injections.clear_pool(name);
        self.turn();
        removed
    }

    /// Whether something would be lost with this process: a pool, a directory of tunables, values
    /// that they were given, or an import that is to be held up.
    pub fn in_use(&self) -> bool {
        !self.lock().is_empty()
            || !self.directories.is_empty()
            || startup::changed()
            || !self.injections.list().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn a_pool_is_for_one_command_and_the_others_go_on() {
        let pools = PoolTable::default();
        let held = pools.change("a/file@system");
        thread::scope(|scope| {
            let (tell, told) = channel();
            let pools = &pools;
            let all: [(&[&str], Option<u64>); 4] =
                [(&["b/x"], None), (&["c"], Some(7)), (&["a"], None), (&["b", "a#mark"], Some(7))];
            for (names, guid) in all {
                let tell = tell.clone();
                scope.spawn(move || {
                    let _change = pools.change_all(names, guid);
                    tell.send(names).unwrap();
                });
            }
            let wait = Duration::from_millis(300);
            let mut first: Vec<_> = (0..2).map(|_| told.recv().unwrap()).collect();
            first.sort_unstable();
            assert_eq!(first, [&["b/x"][..], &["c"]]);
            assert!(told.recv_timeout(wait).is_err(), "the others wait");
            // One that waits for two has neither.
            scope.spawn(|| drop(pools.change("b"))).join().unwrap();
            drop(held);
            assert!((0..2).all(|_| told.recv_timeout(Duration::from_secs(20)).is_ok()));
        });
        assert!(pools.changing.lock().is_empty() && !keeps_others_waiting());
    }

    #[test]
    fn a_device_is_for_one_command_and_the_others_go_on() {
        let pools = PoolTable::default();
        let held = pools.change_with(["a"], [(1, 2), (1, 3)]);
        thread::scope(|scope| {
            let (tell, told) = channel();
            let pools = &pools;
            for (name, device) in [("b", (1, 3)), ("c", (2, 1))] {
                let tell = tell.clone();
                scope.spawn(move || {
                    let _change = pools.change_with([name], [device]);
                    tell.send(name).unwrap();
                });
            }
            assert_eq!(told.recv().unwrap(), "c");
            assert!(told.recv_timeout(Duration::from_millis(300)).is_err(), "b waits");
            // It has not even its own pool meanwhile.
            scope.spawn(|| drop(pools.change("b"))).join().unwrap();
            drop(held);
            assert_eq!(told.recv_timeout(Duration::from_secs(20)).unwrap(), "b");
        });
        assert!(pools.changing.lock().is_empty());
    }
}
