//! The mounts of a pool.
//!
//! Invariants: an entry of `mounted` has a mount that this process has made, or one that another process has
//! taken away unnoticed so far; an entry of `lingering` has no mount, but a process uses its file
//! system still, or it waits to be closed by the next [`Mounts::lock`]. Both that and a look sort them anew, from what
//! the kernel says is mounted. They look up no path, and ask the kernel once, however many mounts there are.

use super::handle::Handle;
use super::how::{Away, How};
use super::settings::{Kernels, Settings};
use cenote_admin::InUse;
use cenote_engine::kstat::DatasetFigures;
use cenote_engine::{Engine, LongHold};
use cenote_fuse::{Agent, Force, MountError, MountHandle, MountSpec, User, kernel};
use cenote_zpl::FileSystem;
use parking_lot::{Mutex, MutexGuard, RwLock};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// How long the kernel may take to let go of unmounted file systems, all of them together.
const GOODBYE: Duration = Duration::from_secs(3);

/// How late the kernel may tell that something was closed.
pub(super) const LATE: Duration = Duration::from_millis(200);

/// How long the kernel takes at most to let go of an unused one.
const MOMENT: Duration = Duration::from_millis(20);

/// A mounted file system, for listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The dataset.
    pub dataset: String,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
}

/// A file system that is or was mounted.
pub(super) struct Mounted {
    pub(super) listed: Listed,
    /// When it was mounted, in the order of all mounts of the process.
    pub(super) turn: u64,
    /// The dataset's object, which it keeps when it is renamed.
    pub(super) id: u64,
    pub(super) options: String,
    /// How it was asked to be mounted.
    pub(super) how: How,
    pub(super) settings: Settings,
    /// Directories made for the mountpoint, outermost first.
    pub(super) made: Vec<PathBuf>,
    /// Whether the mountpoint is where the file system's name puts it, so that no other program can be
    /// meant to have made its directory.
    pub(super) inherited: bool,
    pub(super) handle: Handle,
    pub(super) fs: Arc<FileSystem>,
    /// What has the dataset open for writing.
    pub(super) engine: Option<Arc<Engine>>,
    /// Keeps a snapshot from being destroyed.
    pub(super) hold: Option<LongHold>,
    /// What the kernel was told last.
    pub(super) kernels: Kernels,
    /// Whether what was unlinked but open when the file system was last in use has been freed.
    pub(super) drained: bool,
}

/// The place of a mount in the order of all.
pub(super) fn turn() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

impl Mounted {
    /// The directories that go when the place is given up.
    fn directories(&self, directory: Directory) -> Vec<PathBuf> {
        match directory {
            Directory::Kept => Vec::new(),
            Directory::Inherited if !self.inherited => Vec::new(),
            _ if self.made.is_empty() && self.inherited => vec![self.listed.mountpoint.clone()],
            _ => self.made.clone(),
        }
    }

    /// No process uses it any more.
    pub(super) fn close(self) {
        self.fs.stop_freeing();
        let Mounted { listed, id, engine, hold, handle, fs, .. } = self;
        drop(handle);
        drop(fs);
        drop(hold);
        if let Some(engine) = engine
            && let Err(e) = engine.close(id)
        {
            tracing::warn!("{}: {e}", listed.dataset);
        }
    }
}

/// What becomes of the directory of a mountpoint when its file system is unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directory {
    /// It stays (`zfs unmount`): something else may be mounted there next.
    Kept,
    /// It goes if it is empty and belongs to an inherited mountpoint (`zpool export`).
    Inherited,
    /// The place is given up (`zfs destroy`, `zfs rename`, another `mountpoint`): it goes, if it is
    /// empty and was made here or belongs to an inherited mountpoint.
    Removed,
}

/// How to unmount.
#[derive(Clone, Copy)]
pub struct Way<'a> {
    /// Whether what is in use is taken away.
    pub force: bool,
    /// What becomes of the directories.
    pub directory: Directory,
    /// The agent of the caller's mount namespace, which unmounts.
    pub by: &'a dyn Agent,
}

impl Way<'_> {
    fn force(&self) -> Force {
        if self.force { Force::Yes } else { Force::No }
    }
}

/// Entries of both kinds.
#[derive(Default)]
pub(super) struct All {
    pub(super) mounted: Vec<Mounted>,
    pub(super) lingering: Vec<Mounted>,
    /// What the kernel's table of mounts was when `mounted` was revised.
    generation: u64,
}

impl All {
    /// What is mounted of a dataset.
    pub(super) fn of(&mut self, dataset: &str) -> Option<&mut Mounted> {
        self.mounted.iter_mut().find(|m| m.listed.dataset == dataset)
    }

    /// Puts each entry where it belongs. No device is waited for.
    fn sort(&mut self) {
        let generation = cenote_fuse::generation();
        let changed = std::mem::replace(&mut self.generation, generation) != generation;
        for m in &mut self.mounted {
            // A mount whose places here are all given up may be left in a place that another process made.
            if changed || !m.handle.is_placed() {
                m.handle.revise();
                m.listed.mountpoint = m.handle.mountpoint().to_owned();
            }
        }
        let gone = |m: &Mounted| !m.handle.is_placed();
        if self.mounted.iter().any(gone) {
            let all = std::mem::take(&mut self.mounted);
            for m in all {
                match m.handle.is_placed() {
                    true => self.mounted.push(m),
                    false => self.lingering.push(m),
                }
            }
        }
    }

    /// Waits until no process uses what lingers of the datasets whose names are `wanted` ([`let_go`]). Returns which are in use.
    fn let_go(&mut self, wanted: &dyn Fn(&str) -> bool, way: Way<'_>) -> Vec<Used> {
        let known = std::mem::take(&mut self.lingering);
        let (its, others) = known.into_iter().partition(|m| wanted(&m.listed.dataset));
        self.lingering = others;
        let (left, in_use) = let_go(its, way);
        self.lingering.extend(left);
        in_use
    }

    /// Closes what no process uses any more, which waits for the devices of the pool.
    fn close_finished(&mut self) {
        if self.lingering.iter().any(|m| m.handle.is_finished()) {
            let all = std::mem::take(&mut self.lingering);
            for m in all {
                if m.handle.is_finished() { m.close() } else { self.lingering.push(m) }
            }
        }
    }
}

/// A mounted file system, for those that only look.
struct Shown {
    listed: Listed,
    /// Every place in the daemon's mount namespace.
    places: Vec<PathBuf>,
    /// The connection of its mount; a submount has no connection of its own.
    connection: Option<String>,
    id: u64,
    options: String,
    fs: Weak<FileSystem>,
}

/// The table, for those that only look.
#[derive(Default)]
struct View {
    mounted: Vec<Shown>,
    /// Connections without a place of the daemon's, and the datasets that they are of.
    lingering: Vec<(String, String)>,
}

impl View {
    fn of(all: &All) -> View {
        let connection = |m: &Mounted| m.handle.as_mount().map(|h| h.id().to_string());
        let show = |m: &Mounted| Shown {
            listed: m.listed.clone(),
            places: m.handle.places(),
            connection: connection(m),
            id: m.id,
            options: m.options.clone(),
            fs: Arc::downgrade(&m.fs),
        };
        let lingers = |m: &Mounted| Some((connection(m)?, m.listed.dataset.clone()));
        View {
            mounted: all.mounted.iter().map(show).collect(),
            lingering: all.lingering.iter().filter_map(lingers).collect(),
        }
    }

    /// Every place in the daemon's mount namespace, in order of mounting.
    fn places(&self) -> Vec<Listed> {
        let of = |m: &Shown| {
            let dataset = m.listed.dataset.clone();
            let listed =
                move |at: &PathBuf| Listed { dataset: dataset.clone(), mountpoint: at.clone() };
            m.places.iter().map(listed).collect::<Vec<_>>()
        };
        self.mounted.iter().flat_map(of).collect()
    }

    /// The dataset of a connection.
    fn dataset_of(&self, connection: &str) -> Option<&str> {
        let is = |m: &&Shown| m.connection.as_deref() == Some(connection);
        let mounted = self.mounted.iter().find(is).map(|m| m.listed.dataset.as_str());
        let lingers = || self.lingering.iter().find(|(id, _)| id == connection);
        mounted.or_else(|| lingers().map(|(_, dataset)| dataset.as_str()))
    }
}

/// The mounts of a pool.
#[derive(Default)]
pub struct Mounts {
    all: Mutex<All>,
    /// What is mounted, as it was when the table was let go of last.
    shown: RwLock<Arc<View>>,
}

/// How places of a pool's mounts are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Without a wait: while something is being changed, they are told as they were before.
    Look,
    /// Once nothing is being changed.
    Wait,
}

/// The table, taken to be changed. When it is let go of, all can see what has changed.
pub(super) struct Locked<'a> {
    all: MutexGuard<'a, All>,
    shown: &'a RwLock<Arc<View>>,
}

impl Deref for Locked<'_> {
    type Target = All;

    fn deref(&self) -> &All {
        &self.all
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut All {
        &mut self.all
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        *self.shown.write() = Arc::new(View::of(&self.all));
    }
}

/// Why something stays mounted; its text is for the user.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StaysMounted(pub(super) String);

impl StaysMounted {
    /// It is in use, by this process if it is known.
    pub(super) fn used(place: &Path, by: Option<&User>) -> StaysMounted {
        let (by, place) = (uses_it(by), place.display());
        StaysMounted(format!("cannot unmount '{place}': pool or dataset is busy{by}"))
    }

    fn new(place: &Path, why: &MountError) -> StaysMounted {
        let place = place.display();
        StaysMounted(match why {
            MountError::Covered(_) => {
                format!("cannot unmount '{place}': another mount covers it")
            }
            MountError::Unmount(_, Errno::PERM) => {
                format!("cannot unmount '{place}': permission denied")
            }
            e => format!("cannot unmount '{place}': {e}"),
        })
    }
}

impl Mounts {
    /// Takes the table. It is held while threads wait for the kernel, so no thread that answers a request may wait for it.
    pub(super) fn lock(&self) -> Locked<'_> {
        kernel::waits("the table of mounts");
        let mut locked = self.sorted(self.all.lock());
        locked.close_finished();
        locked
    }

    fn sorted<'a>(&'a self, mut all: MutexGuard<'a, All>) -> Locked<'a> {
        all.sort();
        Locked { all, shown: &self.shown }
    }

    /// What is mounted, without a wait: while something is being changed, as it was before. Nothing is closed: that is for
    /// [`Mounts::lock`], since devices are waited for then.
    fn look(&self) -> Arc<View> {
        if !kernel::is_needed()
            && let Some(all) = self.all.try_lock()
        {
            drop(self.sorted(all));
        }
        Arc::clone(&self.shown.read())
    }

    /// What is mounted, in order of mounting.
    pub fn list(&self) -> Vec<Listed> {
        self.look().mounted.iter().map(|m| m.listed.clone()).collect()
    }

    /// The datasets among those whose names are `wanted` that are mounted, or have files of a former mount open still. If there is
    /// none, what is idle of them is let go of, wherever it has a mount.
    pub fn uses(&self, wanted: &dyn Fn(&str) -> bool, by: &dyn Agent) -> Vec<InUse> {
        let mounted = self.mounted(wanted);
        if !mounted.is_empty() {
            return mounted;
        }
        let way = Way { force: false, directory: Directory::Kept, by };
        self.lock().let_go(wanted, way).into_iter().map(Used::named).collect()
    }

    /// The datasets among those whose names are `wanted` that are mounted.
    pub fn mounted(&self, wanted: &dyn Fn(&str) -> bool) -> Vec<InUse> {
        let all = self.lock();
        let mounted: Vec<&Mounted> =
            all.mounted.iter().filter(|m| wanted(&m.listed.dataset)).collect();
        let mut users = used(mounted.iter().copied());
        let mut by = |m: &Mounted| {
            let at = users.iter().position(|(of, _)| of.turn == m.turn)?;
            users.swap_remove(at).1
        };
        mounted.into_iter().map(|m| Used::of((m, by(m))).named()).collect()
    }

    /// The datasets that have a connection still, and no place of the daemon's.
    pub fn lingering(&self) -> HashSet<String> {
        self.lock().lingering.iter().map(|m| m.listed.dataset.clone()).collect()
    }

    fn view(&self, ask: Ask) -> Arc<View> {
        match ask {
            Ask::Look => self.look(),
            Ask::Wait => Arc::new(View::of(&self.lock())),
        }
    }

    /// Every place where something is mounted, in order of mounting.
    pub fn places(&self, ask: Ask) -> Vec<Listed> {
        self.view(ask).places()
    }

    /// What is mounted in the mount namespace of `by`, in the order of its list of mounts.
    ///
    /// # Errors
    /// It does not answer.
    pub fn list_by(&self, by: &dyn Agent, ask: Ask) -> Result<Vec<Listed>, MountError> {
        let places = by.places()?;
        let view = self.view(ask);
        let own = places.into_iter().filter_map(|place| {
            let dataset = view.dataset_of(&place.id)?.to_string();
            Some(Listed { dataset, mountpoint: place.mountpoint })
        });
        Ok(own.collect())
    }

    /// What was done to the files of each mounted dataset, by the number of its object set.
    pub fn figures(&self) -> Vec<(u64, DatasetFigures)> {
        let of = |m: &Shown| {
            let ((reads, read), (writes, written)) = m.fs.upgrade()?.io().now();
            let name = m.listed.dataset.clone();
            Some((m.id, DatasetFigures { name, reads: (reads, read), writes: (writes, written) }))
        };
        self.look().mounted.iter().filter_map(of).collect()
    }

    /// Has the kernel forget what it keeps of files that are mounted: they are read anew.
    pub fn forget_pages(&self) {
        let all = self.lock();
        all.mounted.iter().for_each(|m| m.handle.forget_pages());
    }

    /// Mount options of a dataset, if it is mounted.
    pub fn options_of(&self, dataset: &str) -> Option<String> {
        let all = self.look();
        let found = all.mounted.iter().find(|m| m.listed.dataset == dataset);
        found.map(|m| m.options.clone())
    }

    /// Mount options of each dataset that is mounted.
    fn options(&self) -> HashMap<String, String> {
        let all = self.look();
        all.mounted.iter().map(|m| (m.listed.dataset.clone(), m.options.clone())).collect()
    }

    /// Whether a dataset is mounted.
    pub fn has(&self, dataset: &str) -> bool {
        self.lock().of(dataset).is_some()
    }

    /// Length of the longest mountpoint around `path`, without counting submounts. All pools are asked, so that it does not
    /// wait: what is being unmounted meanwhile counts.
    pub(super) fn around(&self, path: &Path) -> Option<usize> {
        let all = self.look();
        let mounts = all.mounted.iter().filter(|m| m.connection.is_some());
        let places = mounts.map(|m| &m.listed.mountpoint);
        places.filter(|place| path.starts_with(place)).map(|p| p.components().count()).max()
    }

    /// Makes a file system a submount of the innermost mount around the mountpoint.
    pub(super) fn add_submount(&self, spec: &MountSpec) -> Result<Handle, MountError> {
        let all = self.lock();
        let around = all.mounted.iter().filter_map(|m| mount_around(m, &spec.mountpoint));
        let innermost = around.max_by_key(|mount| mount.mountpoint().components().count());
        let gone = || MountError::Mountpoint(spec.mountpoint.clone(), Errno::NOENT);
        Ok(Handle::Submount(innermost.ok_or_else(gone)?.add_submount(spec)?))
    }

    /// Unmounts everything, wherever it is mounted, and waits until no process uses it, or stops at the first that
    /// stays. By force its users get errors.
    ///
    /// # Errors
    /// Something is in use, here, in another mount namespace or as a file of a former mount. If it is known before,
    /// nothing is unmounted.
    pub fn close(&self, way: Way<'_>) -> Result<(), StaysMounted> {
        let mut all = self.lock();
        if !way.force {
            // What is used of a submount, which is unmounted first, counts as used of the mount that it is in.
            let whole = |m: &&Mounted| !m.handle.has_submounts();
            let entries = all.mounted.iter().rev().chain(&all.lingering).filter(whole);
            // What was closed a moment ago may count as open still, by a process that is not known.
            if let Some((used, by)) = used(entries).into_iter().find(|(_, by)| by.is_some()) {
                return Err(StaysMounted::used(&used.listed.mountpoint, by.as_ref()));
            }
        }
        let mut emptied = Vec::new();
        while let Some(last) = all.mounted.last().map(|m| m.listed.clone()) {
            emptied.extend(take(&mut all, &last, Places::All, way, Duration::ZERO)?);
        }
        all.sort();
        all.close_finished();
        all.let_go(&|_| true, way).into_iter().next().map_or(Ok(()), |used| Err(used.why()))?;
        drop(all);
        // Of those inside one another only the outermost are there still.
        emptied.into_iter().for_each(|directories| way.by.remove(directories));
        Ok(())
    }

    /// Unmounts a dataset where the caller of `way.by` sees it, and first all that is `below` it in the tree of
    /// datasets, last mounted first; at `at` only, if that is given.
    ///
    /// # Errors
    /// One is in use; with what was unmounted until then.
    pub fn unmount(
        &self,
        dataset: &str,
        at: Option<&Path>,
        below: &dyn Fn(&str) -> bool,
        way: Way<'_>,
    ) -> Result<(), (Away, StaysMounted)> {
        let mut all = self.lock();
        let inside = |name: &str| name.strip_prefix(dataset).is_some_and(|r| r.starts_with('/'));
        let chosen = |m: &&Mounted| {
            let name = m.listed.dataset.as_str();
            name == dataset || inside(name) && below(name)
        };
        let of = |m: &Mounted| (m.listed.clone(), m.id, m.how.clone());
        let order: Vec<_> = all.mounted.iter().rev().filter(chosen).map(of).collect();
        let mut away = Vec::new();
        for (listed, id, how) in order {
            let at = at.filter(|_| listed.dataset == dataset);
            let places = at.map_or(Places::Here, Places::At);
            match take(&mut all, &listed, places, way, MOMENT) {
                Ok(directories) => {
                    // Of several places one is left: nothing is to be mounted again.
                    if !directories.is_empty() {
                        away.push((id, how));
                    }
                    directories.into_iter().for_each(|dirs| way.by.remove(dirs));
                }
                Err(stays) => return Err((Away::of(away), stays)),
            }
        }
        Ok(())
    }

    /// Unmounts a dataset, if it is mounted.
    pub(super) fn take(&self, listed: &Listed, way: Way<'_>) -> Result<(), StaysMounted> {
        let mut all = self.lock();
        let directories = take(&mut all, listed, Places::Here, way, MOMENT)?;
        directories.into_iter().for_each(|dirs| way.by.remove(dirs));
        Ok(())
    }

    /// Unmounts a dataset before it is destroyed, wherever it is mounted, and waits until no process uses it.
    ///
    /// # Errors
    /// It is in use.
    pub fn give_up(&self, dataset: &str, way: Way<'_>) -> Result<(), StaysMounted> {
        let mut all = self.lock();
        if let Some(mounted) = all.of(dataset) {
            // What was closed a moment ago may count as open still.
            if !way.force
                && mounted.handle.has_users()
                && let Some((used, Some(by))) = used([&*mounted]).first()
            {
                return Err(StaysMounted::used(&used.listed.mountpoint, Some(by)));
            }
            let listed = mounted.listed.clone();
            let directories = take(&mut all, &listed, Places::All, way, MOMENT)?;
            directories.into_iter().for_each(|dirs| way.by.remove(dirs));
        }
        let busy = all.let_go(&|name| name == dataset, way).into_iter().next();
        busy.map_or(Ok(()), |used| {
            let by = uses_it(used.by.as_ref());
            Err(StaysMounted(format!("cannot destroy '{dataset}': dataset is busy{by}")))
        })
    }

    /// Gives up the holds of a snapshot whose mounts the kernel has let go of. False: the kernel let go of no mount, or
    /// another thread uses the table. Does not wait.
    pub(super) fn release_snapshot(&self, name: &str) -> bool {
        let Some(mut all) = self.all.try_lock() else { return false };
        let All { mounted, lingering, .. } = &mut *all;
        let of = mounted.iter_mut().chain(lingering).filter(|m| m.listed.dataset == name);
        let finished = of.filter(|m| m.handle.is_finished());
        let released: Vec<LongHold> = finished.filter_map(|m| m.hold.take()).collect();
        drop(all);
        !released.is_empty()
    }
}

/// The mounts of a pool as they are when it is first asked: for a command that shows many datasets, which goes
/// through the table of mounts, and asks the kernel, once.
#[derive(Default)]
pub struct Seen(OnceLock<HashMap<String, String>>);

impl Seen {
    /// Mount options of a dataset, if it was mounted. `mounts` are the mounts of the pool.
    pub fn options_of(&self, mounts: &Mounts, dataset: &str) -> Option<String> {
        self.0.get_or_init(|| mounts.options()).get(dataset).cloned()
    }
}

/// The file systems that a process uses, with the process if it is known.
pub(super) fn used<'a>(
    entries: impl IntoIterator<Item = &'a Mounted>,
) -> Vec<(&'a Mounted, Option<User>)> {
    let all: Vec<&Mounted> = entries.into_iter().collect();
    let mut users = cenote_fuse::users(all.iter().filter_map(|m| m.handle.as_mount()));
    let of = |m: &&'a Mounted| Some((*m, users.remove(m.handle.as_mount()?.id())?));
    all.iter().filter_map(of).collect()
}

/// A dataset that is in use: it is mounted, or was unmounted and lingers.
struct Used {
    listed: Listed,
    by: Option<User>,
}

impl Used {
    fn of((mounted, by): (&Mounted, Option<User>)) -> Used {
        Used { listed: mounted.listed.clone(), by }
    }

    fn why(&self) -> StaysMounted {
        StaysMounted::used(&self.listed.mountpoint, self.by.as_ref())
    }

    fn named(self) -> InUse {
        InUse { name: self.listed.dataset, by: self.by.map(|user| user.to_string()) }
    }
}

/// The end of a message on what is busy.
fn uses_it(by: Option<&User>) -> String {
    by.map(|user| format!(": {user} uses it")).unwrap_or_default()
}

/// Waits until no process uses what was unmounted, all together. If one is used none is ended. Else, and by force, all connections end,
/// with the mounts that others have made and the copies in other namespaces. Returns what is left, and what of it is in use.
fn let_go(mut all: Vec<Mounted>, way: Way<'_>) -> (Vec<Mounted>, Vec<Used>) {
    let wait = |all: &mut [Mounted], time: Duration| {
        let deadline = Instant::now() + time;
        for m in all {
            m.handle.wait(deadline);
        }
    };
    let mut in_use: Vec<Used> = Vec::new();
    if !way.force {
        wait(&mut all, LATE);
        let unfinished = all.iter().filter(|m| !m.handle.is_finished());
        in_use = used(unfinished).into_iter().map(Used::of).collect();
    }
    let ends = in_use.is_empty();
    if ends {
        all.iter_mut().for_each(|m| m.handle.end(way.by));
        wait(&mut all, GOODBYE);
    }
    let (finished, left): (Vec<_>, Vec<_>) = all.into_iter().partition(|m| m.handle.is_finished());
    finished.into_iter().for_each(Mounted::close);
    if ends && !left.is_empty() {
        let mut users = used(&left);
        let user = |m: &Mounted, users: &mut Vec<(&Mounted, Option<User>)>| {
            let at = users.iter().position(|(of, _)| of.turn == m.turn)?;
            users.swap_remove(at).1
        };
        in_use = left.iter().map(|m| Used::of((m, user(m, &mut users)))).collect();
    }
    (left, in_use)
}

/// Where something is unmounted.
#[derive(Clone, Copy)]
enum Places<'a> {
    /// At one place.
    At(&'a Path),
    /// Wherever the caller's namespace has it from this process.
    Here,
    /// In all namespaces.
    All,
}

/// Unmounts what is listed, if it is mounted still. Where no place of it is left it lingers until no process
/// has anything of it, for at most `timeout`. Returns the directories that go, of each mount.
fn take(
    all: &mut All,
    listed: &Listed,
    places: Places<'_>,
    way: Way<'_>,
    timeout: Duration,
) -> Result<Vec<Vec<PathBuf>>, StaysMounted> {
    let Some(position) = all.mounted.iter().position(|m| m.listed == *listed) else {
        return Ok(Vec::new());
    };
    let Some(mounted) = all.mounted.get_mut(position) else { return Ok(Vec::new()) };
    if !way.by.may_mount() {
        let place = match places {
            Places::At(at) => at,
            Places::Here | Places::All => &listed.mountpoint,
        };
        return Err(StaysMounted::new(place, &MountError::Unmount(place.to_owned(), Errno::PERM)));
    }
    let (at, done) = match places {
        Places::At(at) => (at, mounted.handle.detach(way.force(), Some(at), way.by)),
        Places::Here => {
            (listed.mountpoint.as_path(), mounted.handle.detach(way.force(), None, way.by))
        }
        Places::All => (listed.mountpoint.as_path(), mounted.handle.give_up(way.force(), way.by)),
    };
    match done {
        Ok(()) => {}
        Err(MountError::Busy(_)) => {
            let by = used([&*mounted]).into_iter().find_map(|(_, by)| by);
            return Err(StaysMounted::used(at, by.as_ref()));
        }
        Err(e) => return Err(StaysMounted::new(at, &e)),
    }
    if mounted.handle.is_placed() && !way.force {
        // In another place or namespace it is still.
        mounted.listed.mountpoint = mounted.handle.mountpoint().to_owned();
        return Ok(Vec::new());
    }
    let mut gone = all.mounted.remove(position);
    let directories = gone.directories(way.directory);
    gone.handle.wait(Instant::now() + timeout);
    match gone.handle.is_finished() {
        true => gone.close(),
        false => all.lingering.push(gone),
    }
    Ok(vec![directories])
}

/// The mount, if it is no submount and around `path`.
fn mount_around<'a>(mounted: &'a Mounted, path: &Path) -> Option<&'a MountHandle> {
    mounted.handle.as_mount().filter(|mount| path.starts_with(mount.mountpoint()))
}
