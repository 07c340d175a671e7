//! The mounts of a pool.
//!
//! Invariants: an entry of `mounted` has a mount that this process has made, or one that somebody else has
//! taken away and nobody has asked about since; an entry of `lingering` has none, but somebody uses its file
//! system still. [`Mounts::lock`] sorts them anew, from what the kernel says is mounted. It looks up no path,
//! and asks the kernel once, however many mounts there are.

use super::handle::Handle;
use super::one::How;
use super::settings::{Kernels, Settings};
use crate::pools::Imported;
use cenote_engine::Engine;
use cenote_engine::kstat::DatasetFigures;
use cenote_fuse::{Agent, Elsewhere, Force, MountError, MountHandle, MountSpec};
use cenote_zpl::FileSystem;
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long the kernel may take to let go of unmounted file systems, all of them together.
const GOODBYE: Duration = Duration::from_secs(3);

/// How long the kernel takes at most to let go of one that nobody uses.
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
    /// Whether the mountpoint is where the file system's name puts it, so that nobody else can be
    /// meant to have made its directory.
    pub(super) inherited: bool,
    pub(super) handle: Handle,
    pub(super) fs: Arc<FileSystem>,
    /// What has the dataset open for writing.
    pub(super) engine: Option<Arc<Engine>>,
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

    /// Nobody has anything of it any more.
    pub(super) fn close(self) {
        self.fs.stop_freeing();
        let Mounted { listed, id, engine, handle, fs, .. } = self;
        drop(handle);
        drop(fs);
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
    /// Who unmounts: the agent of the caller's mount namespace.
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

    /// Puts each entry where it belongs.
    fn sort(&mut self) {
        let generation = cenote_fuse::generation();
        let changed = std::mem::replace(&mut self.generation, generation) != generation;
        for m in &mut self.mounted {
            // A mount whose places here are all given up may be left in one that somebody else made.
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
        if self.lingering.iter().any(|m| m.handle.is_finished()) {
            let all = std::mem::take(&mut self.lingering);
            for m in all {
                if m.handle.is_finished() { m.close() } else { self.lingering.push(m) }
            }
        }
    }
}

/// The mounts of a pool.
#[derive(Default)]
pub struct Mounts(Mutex<All>);

/// Why something stays mounted; its text is for the user.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StaysMounted(pub(super) String);

impl StaysMounted {
    fn new(place: &Path, why: &MountError) -> StaysMounted {
        let place = place.display();
        StaysMounted(match why {
            MountError::Busy(_) => format!("cannot unmount '{place}': pool or dataset is busy"),
            MountError::Shown(other) => format!(
                "cannot unmount '{place}': pool or dataset is busy: it is also mounted at '{}'",
                other.display()
            ),
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
    pub(super) fn lock(&self) -> MutexGuard<'_, All> {
        let mut all = self.0.lock();
        all.sort();
        all
    }

    /// What is mounted, in order of mounting.
    pub fn list(&self) -> Vec<Listed> {
        self.lock().mounted.iter().map(|m| m.listed.clone()).collect()
    }

    /// Every place where something is mounted, in order of mounting.
    pub fn places(&self) -> Vec<Listed> {
        let all = self.lock();
        let of = |m: &Mounted| {
            let listed = |mountpoint| Listed { dataset: m.listed.dataset.clone(), mountpoint };
            m.handle.places().into_iter().map(listed).collect::<Vec<_>>()
        };
        all.mounted.iter().flat_map(of).collect()
    }

    /// What is mounted in the mount namespace of `by`, in the order of its list of mounts.
    ///
    /// # Errors
    /// It does not answer.
    pub fn list_by(&self, by: &dyn Agent) -> Result<Vec<Listed>, MountError> {
        let places = by.places()?;
        let all = self.lock();
        let own = places.into_iter().filter_map(|place| {
            let of = |m: &&Mounted| m.handle.as_mount().is_some_and(|h| h.id() == place.id);
            let mounted = all.mounted.iter().chain(&all.lingering).find(of)?;
            let dataset = mounted.listed.dataset.clone();
            Some(Listed { dataset, mountpoint: place.mountpoint })
        });
        Ok(own.collect())
    }

    /// What was done to the files of each mounted dataset, by the number of its object set.
    pub fn figures(&self) -> Vec<(u64, DatasetFigures)> {
        let of = |m: &Mounted| {
            let ((reads, read), (writes, written)) = m.fs.io().now();
            let name = m.listed.dataset.clone();
            (m.id, DatasetFigures { name, reads: (reads, read), writes: (writes, written) })
        };
        self.lock().mounted.iter().map(of).collect()
    }

    /// Mount options of a dataset, if it is mounted.
    pub fn options_of(&self, dataset: &str) -> Option<String> {
        self.lock().of(dataset).map(|m| m.options.clone())
    }

    /// Mount options of each dataset that is mounted.
    fn options(&self) -> HashMap<String, String> {
        let all = self.lock();
        all.mounted.iter().map(|m| (m.listed.dataset.clone(), m.options.clone())).collect()
    }

    /// Whether a dataset is mounted.
    pub fn has(&self, dataset: &str) -> bool {
        self.lock().of(dataset).is_some()
    }

    /// Length of the longest mountpoint around `path`, without counting submounts.
    pub(super) fn around(&self, path: &Path) -> Option<usize> {
        let all = self.lock();
        let around = all.mounted.iter().filter_map(|m| mount_around(m, path));
        around.map(|mount| mount.mountpoint().components().count()).max()
    }

    /// Makes a file system a submount of the innermost mount around the mountpoint.
    pub(super) fn add_submount(&self, spec: &MountSpec) -> Result<Handle, MountError> {
        let all = self.lock();
        let around = all.mounted.iter().filter_map(|m| mount_around(m, &spec.mountpoint));
        let innermost = around.max_by_key(|mount| mount.mountpoint().components().count());
        let gone = || MountError::Mountpoint(spec.mountpoint.clone(), Errno::NOENT);
        Ok(Handle::Submount(innermost.ok_or_else(gone)?.add_submount(spec)?))
    }

    /// Unmounts everything and waits until nobody has anything of it, or stops at the first that stays. By
    /// force its users get errors.
    ///
    /// # Errors
    /// Something is in use, also in another place or mount namespace, or as a file of a former mount.
    pub fn close(&self, way: Way<'_>) -> Result<(), StaysMounted> {
        let copies = self.copies_elsewhere(way.force, None)?;
        let mut all = self.lock();
        let mut emptied = Vec::new();
        let mut before = None;
        while let Some(last) = all.mounted.last().map(|m| m.listed.clone()) {
            if before.as_ref() == Some(&last) {
                // No path leads to it: something is mounted around it.
                let place = last.mountpoint;
                return Err(StaysMounted::new(&place, &MountError::Covered(place.clone())));
            }
            emptied.extend(take(&mut all, &last, None, way, Duration::ZERO)?);
            before = Some(last);
        }
        all.sort();
        let known = std::mem::take(&mut all.lingering);
        all.lingering = let_go(known, &copies, way.force);
        if let Some(m) = all.lingering.first() {
            let place = m.listed.mountpoint.display();
            let why = "files of it are open still";
            let busy = format!("cannot unmount '{place}': pool or dataset is busy: {why}");
            return Err(StaysMounted(busy));
        }
        drop(all);
        // Of those inside one another only the outermost are there still.
        emptied.into_iter().for_each(|directories| way.by.remove(directories));
        Ok(())
    }

    /// The datasets, of all or of one, of which other mount namespaces have idle copies of mounts: those end
    /// with the mounts here.
    ///
    /// # Errors
    /// Without force: one is in use there.
    fn copies_elsewhere(
        &self,
        force: bool,
        only: Option<&str>,
    ) -> Result<HashSet<String>, StaysMounted> {
        let all = self.lock();
        let entries = all.mounted.iter().chain(&all.lingering);
        let chosen = entries.filter(|m| only.is_none_or(|only| m.listed.dataset == only));
        let by_name: Vec<&Mounted> = chosen.collect();
        let found = cenote_fuse::elsewhere(by_name.iter().filter_map(|m| m.handle.as_mount()));
        if let Some((dataset, Elsewhere { pid, command, mountpoint, .. })) =
            found.iter().find(|(_, elsewhere)| elsewhere.used && !force)
        {
            return Err(StaysMounted(format!(
                "cannot unmount '{dataset}': pool or dataset is busy: process {pid} ({command}) has \
                 it mounted at '{}' in another mount namespace",
                mountpoint.display()
            )));
        }
        Ok(found.into_keys().collect())
    }

    /// Unmounts a dataset, and its descendants that are mounted below it; at `at` only, if that is given.
    pub fn unmount(
        &self,
        dataset: &str,
        at: Option<&Path>,
        way: Way<'_>,
    ) -> Result<(), StaysMounted> {
        let inside = |name: &str| {
            name.strip_prefix(dataset).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let mut all = self.lock();
        let Some(root) = all.of(dataset).map(|m| m.listed.mountpoint.clone()) else {
            return Ok(());
        };
        let chosen = |m: &&Mounted| {
            inside(&m.listed.dataset)
                && (m.listed.dataset == dataset || m.listed.mountpoint.starts_with(&root))
        };
        let order: Vec<Listed> =
            all.mounted.iter().rev().filter(chosen).map(|m| m.listed.clone()).collect();
        order.iter().try_for_each(|listed| {
            let at = at.filter(|_| listed.dataset == dataset);
            take(&mut all, listed, at, way, MOMENT).map(|directories| {
                directories.into_iter().for_each(|dirs| way.by.remove(dirs));
            })
        })
    }

    /// Unmounts a dataset, if it is mounted.
    pub(super) fn take(&self, listed: &Listed, way: Way<'_>) -> Result<(), StaysMounted> {
        let mut all = self.lock();
        let directories = take(&mut all, listed, None, way, MOMENT)?;
        directories.into_iter().for_each(|dirs| way.by.remove(dirs));
        Ok(())
    }

    /// Unmounts a dataset that is to be destroyed, and waits until nobody has anything of it.
    ///
    /// # Errors
    /// It is in use.
    pub fn give_up(&self, dataset: &str, way: Way<'_>) -> Result<(), StaysMounted> {
        let listed = self.lock().of(dataset).map(|m| m.listed.clone());
        if let Some(listed) = listed {
            self.take(&listed, way)?;
        }
        if !self.lock().lingering.iter().any(|m| m.listed.dataset == dataset) {
            return Ok(());
        }
        let busy = || StaysMounted(format!("cannot destroy '{dataset}': dataset is busy"));
        let copies = self.copies_elsewhere(way.force, Some(dataset)).map_err(|_| busy())?;
        let mut all = self.lock();
        let known = std::mem::take(&mut all.lingering);
        let (its, others) = known.into_iter().partition(|m| m.listed.dataset == dataset);
        all.lingering = others;
        let left = let_go(its, &copies, way.force);
        let stays = !left.is_empty();
        all.lingering.extend(left);
        if stays { Err(busy()) } else { Ok(()) }
    }

    /// Whether a snapshot of this full name is mounted, or files of such a mount are open.
    pub(super) fn uses_snapshot(&self, name: &str) -> bool {
        let all = self.lock();
        all.mounted.iter().chain(&all.lingering).any(|m| m.listed.dataset == name)
    }
}

/// The mounts of a pool as they are when it is first asked: for a command that shows many datasets, which goes
/// through the table of mounts, and asks the kernel, once.
#[derive(Default)]
pub struct Seen(OnceLock<HashMap<String, String>>);

impl Seen {
    /// Mount options of a dataset, if it was mounted. `mounts` are those of the pool.
    pub fn options_of(&self, mounts: &Mounts, dataset: &str) -> Option<String> {
        self.0.get_or_init(|| mounts.options()).get(dataset).cloned()
    }
}

/// Waits until nobody has anything of what was unmounted, all together; returns what somebody has. Idle
/// copies in other namespaces end; by force, everything.
fn let_go(mut all: Vec<Mounted>, copies: &HashSet<String>, force: bool) -> Vec<Mounted> {
    for m in &all {
        // The names are those of when it was mounted.
        let copied = m.handle.as_mount().is_some_and(|h| copies.contains(h.dataset()));
        if force || copied && !m.handle.has_users() {
            m.handle.abort();
        }
    }
    let deadline = Instant::now() + GOODBYE;
    for m in &mut all {
        m.handle.wait(deadline);
    }
    let (finished, left): (Vec<_>, Vec<_>) = all.into_iter().partition(|m| m.handle.is_finished());
    finished.into_iter().for_each(Mounted::close);
    left
}

/// Unmounts what is listed, if it is mounted still: at `at` only, if that is given. It lingers until nobody
/// has anything of it, for at most `timeout`. Returns the directories that go, of each mount.
fn take(
    all: &mut All,
    listed: &Listed,
    at: Option<&Path>,
    way: Way<'_>,
    timeout: Duration,
) -> Result<Vec<Vec<PathBuf>>, StaysMounted> {
    let Some(position) = all.mounted.iter().position(|m| m.listed == *listed) else {
        return Ok(Vec::new());
    };
    let Some(mounted) = all.mounted.get_mut(position) else { return Ok(Vec::new()) };
    if !way.by.may_mount() {
        let place = at.unwrap_or(&listed.mountpoint);
        return Err(StaysMounted::new(place, &MountError::Unmount(place.to_owned(), Errno::PERM)));
    }
    if let Err(e) = mounted.handle.detach(way.force(), at, way.by) {
        return Err(StaysMounted::new(at.unwrap_or(&listed.mountpoint), &e));
    }
    if mounted.handle.is_mounted() && !way.force {
        // In another place or namespace it is still.
        mounted.handle.revise();
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

/// Unmounts everything of all these pools that is `wanted`, by the names of datasets, and can be unmounted, last
/// mounted first; returns what stays.
pub fn unmount_each(
    pools: &[Arc<Imported>],
    wanted: &dyn Fn(&Imported, &str) -> bool,
    way: Way<'_>,
) -> Vec<StaysMounted> {
    let mut order = Vec::new();
    for imported in pools {
        let of = |m: &Mounted| (m.turn, m.listed.clone(), Arc::clone(&imported.mounts));
        let mut all: Vec<_> = imported.mounts.lock().mounted.iter().map(of).collect();
        all.retain(|(_, listed, _)| wanted(imported, &listed.dataset));
        order.extend(all);
    }
    order.sort_by_key(|(turn, ..)| std::cmp::Reverse(*turn));
    order.iter().filter_map(|(_, listed, mounts)| mounts.take(listed, way).err()).collect()
}

/// The mount, if it is no submount and around `path`.
fn mount_around<'a>(mounted: &'a Mounted, path: &Path) -> Option<&'a MountHandle> {
    mounted.handle.as_mount().filter(|mount| path.starts_with(mount.mountpoint()))
}
