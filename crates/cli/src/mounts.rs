//! Mounting the file systems of an imported pool, and taking the mounts away.
//!
//! A file system is mounted where its `mountpoint` property says (below the alternate root). One of a
//! pool that is imported for writing is open for writing while it is mounted. Directories that are
//! missing are made; see [`Directory`] for when they are removed again. Parents are mounted before
//! what lies below them and unmounted after it: mountpoints are sorted with `/` as the least
//! character.
//!
//! A mountpoint inside another mount of this process is a matter of who runs it: root mounts there,
//! for other users the file system is grafted into that mount (see [`Graft`]), where no directory
//! need be made.
//!
//! | room | what |
//! |---|---|
//! | `settings` | what properties and options say about a mount |
//! | [`moving`] | mounts that follow changes of properties and names |
//!
//! Invariant: an entry of [`Mounts`] is a live mount or one that somebody else has unmounted and
//! nobody has asked about since; [`Mounts::list`] and all that changes mounts drop the latter.

pub mod moving;
mod settings;

pub use settings::is_option;

use crate::context::Context;
use crate::pools::{Imported, Opened, reason};
use cenote_command::outcome::plain;
use cenote_dsl::{Dataset, DatasetKind, Source};
use cenote_fuse::{Force, Graft, MountError, MountHandle, MountSpec, SnapDir};
use cenote_fuse::{SnapshotEntry, Snapshots, Space, SpaceHook, SyncHook, SyncPolicy, Watcher};
use cenote_pool::engine::{Engine, EngineError};
use cenote_zpl::FileSystem;
use rustix::io::Errno;
use settings::{Kernels, Settings};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Datasets below one another when everything is walked; OpenZFS allows names of 255 bytes.
const MAX_DEPTH: usize = 128;

/// A mounted file system, for listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The dataset.
    pub dataset: String,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
}

struct Mounted {
    listed: Listed,
    /// The dataset's object, which it keeps when it is renamed.
    id: u64,
    options: String,
    /// How it was asked to be mounted.
    how: How,
    settings: Settings,
    /// Directories made for the mountpoint, outermost first.
    made: Vec<PathBuf>,
    /// Whether the mountpoint is where the file system's name puts it, so that nobody else can be
    /// meant to have made its directory.
    inherited: bool,
    handle: Handle,
    fs: Arc<FileSystem>,
    /// What has the dataset open for writing.
    engine: Option<Arc<Engine>>,
    /// What the kernel was told last.
    kernels: Kernels,
    /// Whether what was unlinked but open when the file system was last in use has been freed.
    drained: bool,
}

impl Mounted {
    /// What is to be done once it is not mounted any more; `others` are the mounts that are left.
    fn gone(&self, directory: Directory, others: &[Mounted]) {
        let inside = |dir: &PathBuf| {
            let around = |m: &Mounted| {
                let place = &m.listed.mountpoint;
                dir.starts_with(place) && dir != place
            };
            others.iter().any(around)
        };
        match directory {
            Directory::Kept => {
                let outside: Vec<PathBuf> =
                    self.made.iter().filter(|dir| !inside(dir)).cloned().collect();
                remove_made(&outside);
            }
            Directory::Removed if self.made.is_empty() && self.inherited => {
                remove_made(std::slice::from_ref(&self.listed.mountpoint));
            }
            Directory::Removed => remove_made(&self.made),
        }
        self.fs.stop_freeing();
        if let Some(engine) = &self.engine
            && let Err(e) = engine.close(self.id)
        {
            tracing::warn!("{}: {e}", self.listed.dataset);
        }
    }
}

/// What becomes of the directory of a mountpoint when its file system is unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directory {
    /// The file system may be mounted there again: a directory that was made inside a file system
    /// stays, since that may be read-only by then. What was made elsewhere goes.
    Kept,
    /// The place is given up (`zfs destroy`, `zfs rename`, another `mountpoint`): it goes, if it is
    /// empty and was made here or belongs to an inherited mountpoint.
    Removed,
}

/// What keeps a file system mounted.
enum Handle {
    Mount(MountHandle),
    Graft(Graft),
}

impl Handle {
    fn mountpoint(&self) -> &Path {
        match self {
            Handle::Mount(mount) => mount.mountpoint(),
            Handle::Graft(graft) => graft.mountpoint(),
        }
    }

    fn is_mounted(&self) -> bool {
        match self {
            Handle::Mount(mount) => mount.is_mounted(),
            Handle::Graft(graft) => graft.is_mounted(),
        }
    }

    fn unmount(&mut self, force: Force) -> Result<(), MountError> {
        match self {
            Handle::Mount(mount) => mount.unmount(force),
            Handle::Graft(graft) => graft.unmount(force),
        }
    }

    fn close_snapshot(&self, name: &str) -> bool {
        match self {
            Handle::Mount(mount) => mount.close_snapshot(name),
            Handle::Graft(graft) => graft.close_snapshot(name),
        }
    }

    fn open_snapshot(&self, name: &str) {
        match self {
            Handle::Mount(mount) => mount.open_snapshot(name),
            Handle::Graft(graft) => graft.open_snapshot(name),
        }
    }

    fn snapshot_changed(&self, name: &str) {
        match self {
            Handle::Mount(mount) => mount.snapshot_changed(name),
            Handle::Graft(graft) => graft.snapshot_changed(name),
        }
    }

    /// Tells the kernel; false: it cannot be told.
    fn remount(&self, to: &Kernels) -> Result<bool, MountError> {
        match self {
            Handle::Mount(mount) => mount.remount(to.setuid, to.devices, to.exec),
            Handle::Graft(_) => Ok(false),
        }
    }

    fn set_snapdir(&self, snapdir: SnapDir) {
        match self {
            Handle::Mount(mount) => mount.set_snapdir(snapdir),
            Handle::Graft(graft) => graft.set_snapdir(snapdir),
        }
    }

    fn write_mapped(&self) {
        match self {
            Handle::Mount(mount) => mount.write_mapped(),
            Handle::Graft(graft) => graft.write_mapped(),
        }
    }

    fn acls_changed(&self) {
        match self {
            Handle::Mount(mount) => mount.acls_changed(),
            Handle::Graft(graft) => graft.acls_changed(),
        }
    }

    fn set_sync_policy(&self, policy: SyncPolicy) {
        match self {
            Handle::Mount(mount) => mount.set_sync_policy(policy),
            Handle::Graft(graft) => graft.set_sync_policy(policy),
        }
    }
}

/// The mounts of a pool.
#[derive(Default)]
pub struct Mounts(Mutex<Vec<Mounted>>);

/// Why something stays mounted; its text is for the user.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StaysMounted(String);

impl Mounts {
    fn lock(&self) -> MutexGuard<'_, Vec<Mounted>> {
        let mut mounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = std::mem::take(&mut *mounts);
        let (live, dead): (Vec<_>, Vec<_>) = all.into_iter().partition(|m| m.handle.is_mounted());
        *mounts = live;
        for mounted in dead {
            mounted.gone(Directory::Kept, &mounts);
        }
        mounts
    }

    /// What is mounted, in order of mounting.
    pub fn list(&self) -> Vec<Listed> {
        self.lock().iter().map(|m| m.listed.clone()).collect()
    }

    /// Mount options of a dataset, if it is mounted.
    pub fn options_of(&self, dataset: &str) -> Option<String> {
        self.lock().iter().find(|m| m.listed.dataset == dataset).map(|m| m.options.clone())
    }

    /// Whether a dataset is mounted.
    pub fn has(&self, dataset: &str) -> bool {
        self.options_of(dataset).is_some()
    }

    /// Length of the longest mountpoint around `path`, without counting grafts.
    fn around(&self, path: &Path) -> Option<usize> {
        let mounts = self.lock();
        let around = mounts.iter().filter_map(|m| mount_around(m, path));
        around.map(|mount| mount.mountpoint().components().count()).max()
    }

    /// Grafts into the innermost mount around the mountpoint.
    fn graft(&self, spec: &MountSpec) -> Result<Handle, MountError> {
        let mounts = self.lock();
        let around = mounts.iter().filter_map(|m| mount_around(m, &spec.mountpoint));
        let innermost = around.max_by_key(|mount| mount.mountpoint().components().count());
        let gone = || MountError::Mountpoint(spec.mountpoint.clone(), Errno::NOENT);
        Ok(Handle::Graft(innermost.ok_or_else(gone)?.graft(spec)?))
    }

    /// Unmounts everything, or stops at the first that stays.
    pub fn unmount_all(&self, force: bool) -> Result<(), StaysMounted> {
        self.unmount_where(force, Directory::Kept, |_| true)
    }

    /// Unmounts everything that can be unmounted; returns what stays.
    pub fn unmount_each(&self, force: bool) -> Vec<StaysMounted> {
        let mut mounts = self.lock();
        let order = last_first(&mounts, |_| true);
        let unmount = |m: &Listed| take(&mut mounts, m, force, Directory::Kept).err();
        order.iter().filter_map(unmount).collect()
    }

    /// Unmounts a dataset, and its descendants that are mounted below it.
    pub fn unmount(&self, dataset: &str, force: bool) -> Result<(), StaysMounted> {
        let inside = |name: &str| {
            name.strip_prefix(dataset).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let root = self.list().into_iter().find(|m| m.dataset == dataset);
        let Some(root) = root else { return Ok(()) };
        self.unmount_where(force, Directory::Kept, |m| {
            inside(&m.dataset) && m.mountpoint.starts_with(&root.mountpoint)
        })
    }

    /// Unmounts what is chosen, last mounted first: that is innermost first, and what covers another
    /// mount before that.
    fn unmount_where(
        &self,
        force: bool,
        directory: Directory,
        chosen: impl Fn(&Listed) -> bool,
    ) -> Result<(), StaysMounted> {
        let mut mounts = self.lock();
        let order = last_first(&mounts, chosen);
        order.iter().try_for_each(|listed| take(&mut mounts, listed, force, directory))
    }
}

/// The mounts that are chosen, in the order in which they can be unmounted.
fn last_first(mounts: &[Mounted], chosen: impl Fn(&Listed) -> bool) -> Vec<Listed> {
    let chosen = mounts.iter().rev().filter(|m| chosen(&m.listed));
    chosen.map(|m| m.listed.clone()).collect()
}

/// Unmounts what is listed, if it is mounted still.
fn take(
    mounts: &mut Vec<Mounted>,
    listed: &Listed,
    force: bool,
    directory: Directory,
) -> Result<(), StaysMounted> {
    let Some(at) = mounts.iter().position(|m| m.listed == *listed) else { return Ok(()) };
    let how = if force { Force::Yes } else { Force::No };
    if let Some(mounted) = mounts.get_mut(at)
        && let Err(e) = mounted.handle.unmount(how)
    {
        let place = listed.mountpoint.display();
        return Err(StaysMounted(match e {
            MountError::Busy(_) => format!("cannot unmount '{place}': pool or dataset is busy"),
            MountError::Covered(_) => {
                format!("cannot unmount '{place}': another mount covers it")
            }
            e => format!("cannot unmount '{place}': {e}"),
        }));
    }
    let gone = mounts.remove(at);
    gone.gone(directory, mounts);
    Ok(())
}

/// The mount, if it is none of grafts and around `path`.
fn mount_around<'a>(mounted: &'a Mounted, path: &Path) -> Option<&'a MountHandle> {
    match &mounted.handle {
        Handle::Mount(mount) => path.starts_with(mount.mountpoint()).then_some(mount),
        Handle::Graft(_) => None,
    }
}

/// The mounts, of whichever pool, that a file system is to be grafted into; `None` if it is to have
/// a mount of its own.
fn host(mountpoint: &Path, ctx: &Context) -> Option<Arc<Mounts>> {
    if cenote_fuse::can_nest() {
        return None;
    }
    let around = |pool: Arc<Imported>| Some((pool.mounts.around(mountpoint)?, pool.mounts.clone()));
    let all = ctx.pools.all().into_iter().filter_map(around);
    all.max_by_key(|(depth, _)| *depth).map(|(_, mounts)| mounts)
}

/// Removes directories that were made for a mountpoint, as far as they are empty.
fn remove_made(made: &[PathBuf]) {
    for dir in made.iter().rev() {
        if fs::remove_dir(dir).is_err() {
            return;
        }
    }
}

/// Makes a path sort behind its parents and before its parents' siblings: `/` sorts first.
fn sort_key(path: &Path) -> Vec<Vec<u8>> {
    use std::os::unix::ffi::OsStrExt;
    path.components().map(|c| c.as_os_str().as_bytes().to_vec()).collect()
}

/// How to mount.
#[derive(Clone, Debug, Default)]
pub struct How {
    /// `-O`: over a directory that is not empty, whatever the `overlay` property says.
    pub overlay: bool,
    /// `-f`: also what was received without all of its files (redacted).
    pub force: bool,
    /// `-l`: the key is loaded first. Of what is encrypted that fails, as there is no way to load one
    /// yet; for everything else it means nothing.
    pub load_key: bool,
    /// The directory that mount(8) was given, which counts in place of the mountpoint.
    pub at: Option<PathBuf>,
    /// `-o`: options, already split.
    pub options: Vec<String>,
}

/// Why a file system is not mounted.
#[derive(Debug)]
pub enum NotMounted {
    /// It is not meant to be (`mountpoint=none`, `canmount=off`, …): a message for those who asked
    /// for it by name.
    NotMeant(String),
    /// It failed: the message.
    Failed(String),
}

/// Mounts one file system. `explicit`: it was asked for by name, so `canmount=noauto` is no
/// obstacle.
pub fn mount_one(
    imported: &Imported,
    d: &Dataset,
    explicit: bool,
    how: &How,
    ctx: &Context,
) -> Result<(), NotMounted> {
    let name = &d.name;
    let mountpoint = check(imported, d, explicit, how)?;
    if imported.mounts.has(name) {
        let why = format!("cannot mount '{name}': filesystem already mounted");
        return Err(NotMounted::NotMeant(why));
    }
    let failed = |what: &dyn std::fmt::Display, why: &dyn std::fmt::Display| {
        NotMounted::Failed(format!("cannot mount '{what}': {why}"))
    };
    let settings = Settings::new(imported, d, how).map_err(|e| failed(name, &e))?;
    let resolved = cenote_fuse::resolve(&mountpoint);
    cenote_fuse::clear_dead(&resolved).map_err(|e| failed(name, &e))?;
    let host = host(&resolved, ctx);
    let made = match &host {
        Some(_) => Vec::new(),
        None => make_directories(&mountpoint).map_err(|e| {
            let why = format!("failed to create mountpoint: {}", plain(&e));
            failed(&mountpoint.display(), &why)
        })?,
    };
    let empty = fs::read_dir(&mountpoint).map(|mut entries| entries.next().is_none());
    if !how.overlay && !settings.overlay && !empty.unwrap_or(true) {
        return Err(failed(&mountpoint.display(), &"directory is not empty"));
    }
    let own = imported.pool().dsl().get(d, "mountpoint").ok().flatten();
    let inherited = how.at.is_none()
        && own.is_some_and(|v| matches!(v.source, Source::Default | Source::Inherited(_)));
    let (fs, engine) = match open(imported, d, &settings) {
        Ok(opened) => opened,
        Err(e) => {
            remove_made(&made);
            return Err(failed(name, &e));
        }
    };
    let opened = imported.opened();
    let (kernels, drained) = (settings.kernels(), fs.is_writable());
    let spec = MountSpec {
        dataset: name.clone(),
        mountpoint: resolved,
        fs: Arc::clone(&fs),
        snapshots: Some(Arc::new(OfDataset { pool: opened.clone(), id: d.ds_obj })),
        snapdir: settings.snapdir,
        space: space_of(opened, d.ds_obj, settings.record_size),
        sync: sync_of(opened),
        sync_policy: settings.sync,
        setuid: settings.setuid,
        devices: settings.devices,
        exec: settings.exec,
        watcher: watcher(ctx),
    };
    let mounted = match host {
        Some(mounts) => mounts.graft(&spec),
        None => cenote_fuse::mount(spec).map(Handle::Mount),
    };
    match mounted {
        Ok(handle) => {
            let place = handle.mountpoint().to_path_buf();
            let listed = Listed { dataset: name.clone(), mountpoint: place };
            imported.mounts.lock().push(Mounted {
                listed,
                id: d.ds_obj,
                options: settings.options.clone(),
                how: how.clone(),
                settings,
                made,
                inherited,
                handle,
                fs,
                engine,
                kernels,
                drained,
            });
            Ok(())
        }
        Err(e) => {
            remove_made(&made);
            drop(fs);
            if let Some(engine) = engine {
                // That it could not be mounted is what matters.
                let _ = engine.close(d.ds_obj);
            }
            Err(failed(name, &words(e)))
        }
    }
}

/// Why it cannot be mounted, in OpenZFS's words where it has some.
fn words(e: MountError) -> String {
    match e {
        MountError::Mountpoint(_, errno) | MountError::Mount(_, errno) => match errno {
            Errno::BUSY => "mountpoint or dataset is busy".into(),
            Errno::PERM => "Insufficient privileges".into(),
            errno => plain(&errno.into()),
        },
        MountError::Graft(_, why) => why,
        e => e.to_string(),
    }
}

/// Where to mount a file system, if it is meant to be mounted.
fn check(
    imported: &Imported,
    d: &Dataset,
    explicit: bool,
    how: &How,
) -> Result<PathBuf, NotMounted> {
    let name = &d.name;
    let not_meant = |why: &str| Err(NotMounted::NotMeant(format!("cannot mount '{name}': {why}")));
    let value = |property: &str| match imported.pool().dsl().get(d, property) {
        Ok(v) => Ok(v.map(|v| v.exact).unwrap_or_default()),
        Err(e) => Err(NotMounted::Failed(format!("cannot mount '{name}': {e}"))),
    };
    if value("zoned")? == "on" {
        return not_meant("dataset is exported to a local zone");
    }
    let mountpoint = match &how.at {
        Some(dir) => dir.clone(),
        None => PathBuf::from(value("mountpoint")?),
    };
    match mountpoint.to_str() {
        Some("legacy") => {
            return not_meant("legacy mountpoint\nuse mount(8) to mount this filesystem");
        }
        Some("none" | "") => return not_meant("no mountpoint set"),
        _ => {}
    }
    match value("canmount")?.as_str() {
        _ if how.at.is_some() => {}
        "off" => return not_meant("'canmount' property is set to 'off'"),
        "noauto" if !explicit => return not_meant("'canmount' property is set to 'noauto'"),
        _ => {}
    }
    if value("keystatus")? == "unavailable" && how.load_key {
        let why = format!("cannot mount '{name}': loading keys is not supported yet");
        return Err(NotMounted::Failed(why));
    }
    if value("keystatus")? == "unavailable" {
        return not_meant("encryption key not loaded");
    }
    if value("redacted")? == "1" && !how.force {
        return not_meant(
            "Dataset is not complete, was created by receiving a redacted zfs send stream.",
        );
    }
    Ok(mountpoint)
}

/// Opens a file system, for writing if the pool is; then with what has it open.
fn open(
    imported: &Imported,
    d: &Dataset,
    settings: &Settings,
) -> Result<(Arc<FileSystem>, Option<Arc<Engine>>), String> {
    let words = |e: cenote_zpl::Error| e.to_string();
    let fixed = || {
        let os = imported.pool().dsl().open_objset(d).map_err(|e| e.to_string())?;
        let fs = FileSystem::open_as(os, settings.files.clone()).map_err(words)?;
        Ok((fs, None))
    };
    let Some(engine) = imported.engine() else { return fixed() };
    let live = match engine.live(d.ds_obj) {
        Ok(live) => live,
        Err(EngineError::Unsupported(_)) if settings.files.read_only => return fixed(),
        Err(e) => return Err(reason(&e)),
    };
    let opened = FileSystem::open_live(live, settings.files.clone()).and_then(|fs| {
        if fs.is_writable() {
            fs.drain_unlinked()?;
        }
        Ok(fs)
    });
    match opened {
        Ok(fs) => Ok((fs, Some(Arc::clone(engine)))),
        Err(e) => {
            // That it cannot be opened is what matters.
            let _ = engine.close(d.ds_obj);
            Err(words(e))
        }
    }
}

/// Figures for `statfs`, as they are when it is called.
fn space_of(opened: &Opened, id: u64, record_size: u64) -> SpaceHook {
    let opened = opened.clone();
    Arc::new(move || {
        let pool = opened.pool();
        let figures = || {
            let dataset = pool.dsl().by_object(id).ok()??;
            let available = pool.dsl().available(&dataset).ok()??;
            Some((dataset.ds.referenced, available))
        };
        let (referenced, available) = figures().unwrap_or_default();
        Space { referenced, available, record_size }
    })
}

/// Waits until what was changed is on disk.
fn sync_of(opened: &Opened) -> SyncHook {
    let engine = opened.engine().cloned();
    Arc::new(move || {
        let Some(engine) = &engine else { return Ok(()) };
        engine.sync().map_err(|e| match e {
            EngineError::Read(e) => e.into(),
            e => cenote_dmu::write::WriteError::Suspended(e.to_string()).into(),
        })
    })
}

/// Makes a directory and its parents; returns those that were missing, outermost first.
fn make_directories(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut missing = Vec::new();
    for dir in path.ancestors() {
        match fs::symlink_metadata(dir) {
            Ok(_) => break,
            Err(e) if e.kind() == io::ErrorKind::NotFound => missing.push(dir.to_path_buf()),
            Err(e) => return Err(e),
        }
    }
    missing.reverse();
    for (i, dir) in missing.iter().enumerate() {
        if let Err(e) = DirBuilder::new().mode(0o755).create(dir) {
            remove_made(missing.get(..i).unwrap_or_default());
            return Err(e);
        }
    }
    Ok(missing)
}

/// The process that takes mounts away if this one dies, started with the first mount.
pub(crate) fn watcher(ctx: &Context) -> Option<Arc<Watcher>> {
    let start = || {
        let mut command = std::process::Command::new(std::env::current_exe()?);
        command.args(["daemon", "--watch-mounts"]);
        Watcher::start(command)
    };
    ctx.pools.watcher(|| match start() {
        Ok(watcher) => Some(Arc::new(watcher)),
        Err(e) => {
            tracing::warn!("no process watches the mounts: {e}");
            None
        }
    })
}

/// A watcher that is started when it is first needed.
#[derive(Default)]
pub struct LazyWatcher(OnceLock<Option<Arc<Watcher>>>);

impl LazyWatcher {
    /// The watcher, started by `start` if this is the first call.
    pub fn get(&self, start: impl FnOnce() -> Option<Arc<Watcher>>) -> Option<Arc<Watcher>> {
        self.0.get_or_init(start).clone()
    }
}

/// The snapshots of a mounted file system, as they are when they are asked for.
struct OfDataset {
    pool: Opened,
    id: u64,
}

impl Snapshots for OfDataset {
    fn list(&self) -> Vec<SnapshotEntry> {
        let pool = self.pool.pool();
        let list = || match pool.dsl().by_object(self.id)? {
            Some(dataset) => pool.dsl().snapshots(&dataset),
            None => Ok(Vec::new()),
        };
        let found = list().unwrap_or_else(|e| {
            tracing::warn!("snapshots of dataset {}: {e}", self.id);
            Vec::new()
        });
        let entry = |d: Dataset| {
            let (_, name) = d.name.split_once('@')?;
            let created = i64::try_from(d.ds.creation_time).unwrap_or(i64::MAX);
            Some(SnapshotEntry { name: name.into(), created })
        };
        found.into_iter().filter_map(entry).collect()
    }

    fn newest(&self) -> u64 {
        match self.pool.pool().dsl().by_object(self.id) {
            Ok(dataset) => dataset.map_or(0, |d| d.ds.prev_snap_txg),
            Err(e) => {
                // Whoever wants what snapshots share to be left alone is on the safe side.
                tracing::warn!("snapshots of dataset {}: {e}", self.id);
                u64::MAX
            }
        }
    }

    fn open(&self, name: &str) -> Result<Arc<FileSystem>, cenote_zpl::Error> {
        let pool = self.pool.pool();
        let missing = || cenote_zpl::Error::NotFound(name.into());
        let head = pool.dsl().by_object(self.id)?.ok_or_else(missing)?;
        let snapshot = pool.dsl().find(&format!("{}@{name}", head.name))?.ok_or_else(missing)?;
        let settings = cenote::contents::whole(&pool, &snapshot)?;
        FileSystem::open_as(pool.dsl().open_objset(&snapshot)?, settings)
    }
}

/// The file systems of a pool (or at and below one of its datasets) that can be mounted, parents'
/// mountpoints first. What cannot be read is said and left out.
pub fn mountable(imported: &Imported, below: &Dataset, ctx: &mut Context) -> Vec<Dataset> {
    let pool = imported.pool();
    let dsl = pool.dsl();
    let mut found = Vec::new();
    let mut todo = vec![(below.clone(), 0)];
    while let Some((d, depth)) = todo.pop() {
        if d.kind != DatasetKind::Filesystem || depth > MAX_DEPTH {
            continue;
        }
        match dsl.children(&d) {
            Ok(children) => todo.extend(children.into_iter().map(|c| (c, depth + 1))),
            Err(e) => ctx.complain(format_args!("cannot list what is in '{}': {e}", d.name)),
        }
        let mountpoint = match dsl.get(&d, "mountpoint") {
            Ok(value) => value.map(|v| v.exact).unwrap_or_default(),
            Err(e) => {
                ctx.complain(format_args!("cannot mount '{}': {e}", d.name));
                continue;
            }
        };
        found.push((sort_key(Path::new(&mountpoint)), d));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.name.cmp(&b.1.name)));
    found.into_iter().map(|(_, d)| d).collect()
}

/// Mounts what is meant to be mounted; says what fails. Returns whether all went well.
pub fn mount_all(imported: &Imported, below: &Dataset, how: &How, ctx: &mut Context) -> bool {
    let mut good = true;
    for d in mountable(imported, below, ctx) {
        if ctx.cancelled() {
            return false;
        }
        good &= mount_or_say(imported, &d, how, ctx);
    }
    good
}

/// Mounts a file system, if it is meant to be mounted; says what fails, and whether it went well.
pub fn mount_or_say(imported: &Imported, d: &Dataset, how: &How, ctx: &mut Context) -> bool {
    match mount_one(imported, d, false, how, ctx) {
        Ok(()) | Err(NotMounted::NotMeant(_)) => true,
        Err(NotMounted::Failed(message)) => {
            ctx.complain(message);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountpoints_sort_below_their_parents() {
        let mut paths = ["/foo.bar", "/foo/baz", "/foo/bar/baz", "/", "/foo/bar", "/foo"];
        paths.sort_by_key(|p| sort_key(Path::new(p)));
        assert_eq!(paths, ["/", "/foo", "/foo/bar", "/foo/bar/baz", "/foo/baz", "/foo.bar"]);
    }

    #[test]
    fn made_directories_are_removed_again() {
        let tmp = tempfile::tempdir().unwrap();
        let deep = tmp.path().join("a/b/c");
        let made = make_directories(&deep).unwrap();
        assert_eq!(made.len(), 3);
        assert!(make_directories(&deep).unwrap().is_empty());
        fs::write(tmp.path().join("a/file"), "x").unwrap();
        remove_made(&made);
        assert!(tmp.path().join("a").exists() && !tmp.path().join("a/b").exists());
    }
}
