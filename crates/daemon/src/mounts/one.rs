//! Mounting one file system or snapshot (`zfs_mount_at`, `zfsvfs_create`).
//!
//! What is asked for is checked, the file system is opened, an agent prepares the directory and mounts, and
//! threads of the daemon serve it from then on. If any of this fails, what was done before is undone. Where
//! the file system has a connection already, since it is mounted elsewhere or was, that is mounted again.

use super::handle::Handle;
use super::hooks::{OfDataset, space_of, sync_of};
use super::how::How;
use super::settings::Settings;
use super::table::{Ask, Listed, Mounted, Mounts, turn};
use crate::context::Context;
use crate::pools::{Imported, reason};
use cenote_command::outcome::plain;
use cenote_dsl::{Dataset, DatasetKind, Source};
use cenote_engine::{Engine, EngineError, Holder, LongHold};
use cenote_format::dmu::ObjsetType;
use cenote_fuse::{MountError, MountFlags, MountSpec, Snapshots};
use cenote_zpl::FileSystem;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection whose mount is gone ends within this time.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a file system is not mounted.
#[derive(Debug)]
pub enum NotMounted {
    /// It is not meant to be (`mountpoint=none`, `canmount=off`, …): a message for the user who asked
    /// for it by name.
    NotMeant(String),
    /// It failed: the message.
    Failed(String),
}

/// What a user without the permission to mount is told.
pub(super) const NO_PRIVILEGES: &str = "Insufficient privileges";

fn is_mounted(name: &str) -> NotMounted {
    NotMounted::NotMeant(format!("cannot mount '{name}': filesystem already mounted"))
}

fn failed(what: &dyn std::fmt::Display, why: &dyn std::fmt::Display) -> NotMounted {
    NotMounted::Failed(format!("cannot mount '{what}': {why}"))
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
    // Its intent log may have been replayed since it was found.
    let now = as_it_is(imported, d).map_err(|e| failed(name, &e))?;
    let d = &now;
    let mountpoint = check(imported, d, explicit, how)?;
    if ctx.caller.is_delegated() {
        let again = how.options.iter().any(|option| option == "remount");
        return Err(match imported.mounts.has(name) && !again {
            true => is_mounted(name),
            false => failed(name, &NO_PRIVILEGES),
        });
    }
    let settings = Settings::new(imported.opened(), d, how).map_err(|e| failed(name, &e))?;
    if let Some(known) = Known::of(imported, name)
        && known.mount_again(imported, d, &mountpoint, how, &settings, ctx)?
    {
        return Ok(());
    }
    let mut spec_at = mountpoint.clone();
    let host = match cenote_fuse::can_nest() {
        true => None,
        false => {
            let seen = ctx.agent().look(&mountpoint).map_err(|e| failed(name, &e))?;
            stays_inside(imported, how, (&mountpoint, &seen.path), ctx)
                .map_err(|e| words(name, e))?;
            let host = host(&seen.path, ctx);
            if host.is_some() {
                if !how.overlay && !settings.overlay && !seen.empty {
                    let place = mountpoint.display();
                    return Err(failed(&place, &"directory is not empty"));
                }
                spec_at = seen.path;
            }
            host
        }
    };
    let hold = hold(imported, d, &mountpoint).map_err(|e| failed(name, &e))?;
    let (fs, engine) = open(imported, d, &settings.files).map_err(|e| failed(name, &e))?;
    let spec = spec(imported, d, &spec_at, how, &settings, &fs, ctx);
    let mounted = match host {
        Some(mounts) => mounts.add_submount(&spec),
        None => cenote_fuse::mount_by(spec, &*ctx.agent()).map(Handle::Mount),
    };
    match mounted {
        Ok(handle) => {
            let mounted = entry(imported, d, how, settings, handle, (fs, engine, hold));
            imported.mounts.lock().mounted.push(mounted);
            Ok(())
        }
        Err(e) => {
            drop(fs);
            if let Some(engine) = engine {
                // That it could not be mounted is what matters.
                let _ = engine.close(d.ds_obj);
            }
            Err(words(name, e))
        }
    }
}

/// A dataset as it is now, if it is still there.
fn as_it_is(imported: &Imported, d: &Dataset) -> Result<Dataset, cenote_dmu::Error> {
    Ok(imported.pool().dsl().by_object(d.ds_obj)?.unwrap_or_else(|| d.clone()))
}

/// What to mount.
fn spec(
    imported: &Imported,
    d: &Dataset,
    mountpoint: &Path,
    how: &How,
    settings: &Settings,
    fs: &Arc<FileSystem>,
    ctx: &Context,
) -> MountSpec {
    let opened = imported.opened();
    // The file system itself may be writable in another place.
    let read_only = match settings.files.read_only {
        true => MountFlags::RDONLY,
        false => MountFlags::empty(),
    };
    let snapshots = || -> Arc<dyn Snapshots> {
        let mounts = Arc::downgrade(&imported.mounts);
        Arc::new(OfDataset { pool: opened.clone(), id: d.ds_obj, mounts })
    };
    MountSpec {
        dataset: d.name.clone(),
        mountpoint: mountpoint.to_owned(),
        root: imported.altroot.clone().filter(|_| how.at.is_none()).unwrap_or("/".into()),
        make: how.at.is_none(),
        overlay: how.overlay || settings.overlay,
        fs: Arc::clone(fs),
        snapshots: (d.kind != DatasetKind::Snapshot).then(snapshots),
        snapdir: settings.snapdir,
        space: space_of(opened, d.ds_obj, settings.record_size),
        sync: sync_of(opened, d.ds_obj),
        sync_policy: settings.sync,
        setuid: settings.setuid,
        devices: settings.devices,
        exec: settings.exec,
        flags: settings.flags | read_only,
        watcher: ctx.pools.watcher(),
        agent: ctx.pools.agent(),
    }
}

/// The table's entry of what was mounted.
fn entry(
    imported: &Imported,
    d: &Dataset,
    how: &How,
    settings: Settings,
    handle: Handle,
    (fs, engine, hold): (Arc<FileSystem>, Option<Arc<Engine>>, Option<LongHold>),
) -> Mounted {
    let mountpoint = handle.mountpoint().to_path_buf();
    let kernels = settings.kernels();
    Mounted {
        listed: Listed { dataset: d.name.clone(), mountpoint },
        turn: turn(),
        id: d.ds_obj,
        options: settings.options.clone(),
        how: how.clone(),
        settings,
        made: handle.as_mount().map(|m| m.made().to_vec()).unwrap_or_default(),
        inherited: inherits(imported, d, how),
        handle,
        drained: fs.is_writable(),
        fs,
        engine,
        hold,
        kernels,
    }
}

/// Whether the mountpoint is where the file system's name puts it.
fn inherits(imported: &Imported, d: &Dataset, how: &How) -> bool {
    let own = imported.pool().dsl().get(d, "mountpoint").ok().flatten();
    how.at.is_none()
        && own.is_some_and(|v| matches!(v.source, Source::Default | Source::Inherited(_)))
}

/// How a file system is in use already.
enum Known {
    Mounted,
    Lingering,
}

impl Known {
    fn of(imported: &Imported, dataset: &str) -> Option<Known> {
        let mut all = imported.mounts.lock();
        if all.of(dataset).is_some() {
            return Some(Known::Mounted);
        }
        let lingers = all.lingering.iter().any(|m| m.listed.dataset == dataset);
        lingers.then_some(Known::Lingering)
    }

    /// Mounts once more what is or was mounted. False: it has ended meanwhile, and nothing is left of it.
    fn mount_again(
        self,
        imported: &Imported,
        d: &Dataset,
        mountpoint: &Path,
        how: &How,
        settings: &Settings,
        ctx: &Context,
    ) -> Result<bool, NotMounted> {
        let name = &d.name;
        let by = ctx.agent();
        if matches!(self, Known::Mounted) {
            let here = imported.mounts.list_by(&*by, Ask::Wait).map_err(|e| failed(name, &e))?;
            let mut here = here.into_iter().filter(|m| m.dataset == *name);
            let again = match &how.at {
                // mount(8) mounts it in as many places as it is asked for.
                Some(at) => here.all(|m| m.mountpoint != *at) && cenote_fuse::can_nest(),
                None => ctx.is_elsewhere() && here.next().is_none(),
            };
            if !again {
                return Err(is_mounted(name));
            }
        } else if !cenote_fuse::can_nest()
            && !imported.mounts.uses(&|used| used == name, &*by).is_empty()
        {
            return Err(failed(name, &"files of its former mount are open still"));
        }
        let mut all = imported.mounts.lock();
        let lingers = all.lingering.iter().position(|m| m.listed.dataset == *name);
        let mut lingering = lingers.map(|at| all.lingering.remove(at));
        let Some(mounted) = lingering.as_mut().or_else(|| all.of(name)) else {
            return Ok(false);
        };
        let spec = spec(imported, d, mountpoint, how, settings, &mounted.fs, ctx);
        let done = match &mut mounted.handle {
            Handle::Mount(handle) => handle.mount_again(&spec, &*by),
            Handle::Submount(_) => return Err(is_mounted(name)),
        };
        let Some(mut mounted) = lingering else {
            return done.map(|()| true).map_err(|e| words(name, e));
        };
        if let Err(e) = done {
            // The kernel says so when it has just let go of the last that was open in it.
            let ends = matches!(e, MountError::Mount(_, Errno::NOTCONN));
            if ends && mounted.handle.wait(Instant::now() + END_TIMEOUT) {
                mounted.close();
                return Ok(false);
            }
            all.lingering.push(mounted);
            return Err(words(name, e));
        }
        mounted.listed.mountpoint = mounted.handle.mountpoint().to_owned();
        (mounted.turn, mounted.how) = (turn(), how.clone());
        mounted.made = mounted.handle.as_mount().map(|m| m.made().to_vec()).unwrap_or_default();
        mounted.inherited = inherits(imported, d, how);
        mounted.kernels = settings.kernels();
        mounted.take_settings(settings.clone());
        let files = (mounted.engine.clone(), mounted.id, mounted.fs.clone());
        all.mounted.push(mounted);
        drop(all);
        // The pool may have got the features since it was mounted before.
        if let (Some(engine), id, fs) = files {
            count_objects(&engine, id, &fs);
        }
        Ok(true)
    }
}

/// A mountpoint, and where it leads without links, are not outside of the directory that the pool was imported below.
fn stays_inside(
    imported: &Imported,
    how: &How,
    (mountpoint, real): (&Path, &Path),
    ctx: &Context,
) -> Result<(), MountError> {
    let Some(root) = imported.altroot.as_ref().filter(|_| how.at.is_none()) else { return Ok(()) };
    match real.starts_with(ctx.agent().look(root)?.path) {
        true => Ok(()),
        false => Err(MountError::Outside(mountpoint.to_owned(), root.clone())),
    }
}

/// The mounts, of whichever pool, that a file system becomes a submount of; `None` if it gets
/// a mount of its own.
fn host(mountpoint: &Path, ctx: &Context) -> Option<Arc<Mounts>> {
    let around = |pool: Arc<Imported>| Some((pool.mounts.around(mountpoint)?, pool.mounts.clone()));
    let all = ctx.pools.all().into_iter().filter_map(around);
    all.max_by_key(|(depth, _)| *depth).map(|(_, mounts)| mounts)
}

/// Why it cannot be mounted, in OpenZFS's words where it has some.
fn words(dataset: &str, e: MountError) -> NotMounted {
    let why = match e {
        MountError::Make(path, errno) => {
            let why = format!("failed to create mountpoint: {}", plain(&errno.into()));
            return failed(&path.display(), &why);
        }
        MountError::NotEmpty(path) => return failed(&path.display(), &"directory is not empty"),
        MountError::Mountpoint(_, errno) | MountError::Mount(_, errno) => match errno {
            Errno::BUSY => "mountpoint or dataset is busy".into(),
            Errno::PERM => NO_PRIVILEGES.into(),
            errno => plain(&errno.into()),
        },
        MountError::Submount(_, why) => why,
        MountError::Descriptors(errno) => {
            let why = plain(&errno.into());
            format!("{why}: the last descriptors are left for commands ('ulimit -n', LimitNOFILE=)")
        }
        e @ (MountError::Link(..) | MountError::Outside(..)) => {
            let text = e.to_string();
            return NotMounted::Failed(format!("cannot mount '{dataset}': {text}"));
        }
        e => e.to_string(),
    };
    failed(&dataset, &why)
}

/// Whether a file system is meant to be mounted, and is not.
pub fn is_meant(imported: &Imported, d: &Dataset, explicit: bool, how: &How) -> bool {
    check(imported, d, explicit, how).is_ok() && Known::of(imported, &d.name).is_none()
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
        Err(e) => Err(failed(name, &e)),
    };
    if !holds_files(imported, d) {
        return not_meant("it holds no file system");
    }
    if d.kind == DatasetKind::Snapshot {
        let at = how.at.clone();
        return at.ok_or_else(|| failed(name, &"snapshots are mounted by mount(8)"));
    }
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
    if value("keystatus")? == "unavailable" {
        return not_meant("encryption key not loaded");
    }
    if d.is_inconsistent() {
        return not_meant(
            "Contains partially-completed state from \"zfs receive -s\", which can be resumed with \
             \"zfs send -t\"",
        );
    }
    if value("redacted")? == "1" && !how.force {
        return not_meant(
            "Dataset is not complete, was created by receiving a redacted zfs send stream.",
        );
    }
    Ok(mountpoint)
}

/// Whether an object set is that of a file system (`DMU_OST_ZFS`), as far as can be read: others are other
/// programs' (`DMU_OST_OTHER`).
fn holds_files(imported: &Imported, d: &Dataset) -> bool {
    let kind = imported.pool().dsl().open_objset(d).map(|os| os.phys().kind);
    !matches!(kind, Ok(ObjsetType::Other(_) | ObjsetType::Meta | ObjsetType::Zvol))
}

/// Keeps a snapshot from being destroyed before it is mounted.
fn hold(imported: &Imported, d: &Dataset, at: &Path) -> Result<Option<LongHold>, String> {
    match imported.engine() {
        Some(engine) if d.kind == DatasetKind::Snapshot => {
            match engine.hold(d, Holder::Mount(at.to_owned())) {
                Ok((hold, _)) => Ok(Some(hold)),
                Err(e) => Err(reason(&e)),
            }
        }
        _ => Ok(None),
    }
}

/// Opens a file system, for writing if the pool is; then with what has it open.
pub(super) fn open(
    imported: &Imported,
    d: &Dataset,
    settings: &cenote_zpl::Settings,
) -> Result<(Arc<FileSystem>, Option<Arc<Engine>>), String> {
    let words = |e: cenote_zpl::Error| e.to_string();
    let fixed = || {
        // A replay that was tried has changed it.
        let d = as_it_is(imported, d).map_err(|e| e.to_string())?;
        let os = imported.pool().dsl().open_objset(&d).map_err(|e| e.to_string())?;
        let fs = FileSystem::open_as(os, settings.clone()).map_err(words)?;
        Ok((fs, None))
    };
    let engine = match imported.engine() {
        Some(engine) if d.kind != DatasetKind::Snapshot => engine,
        _ => return fixed(),
    };
    let live = match engine.live(d.ds_obj) {
        Ok(live) => live,
        Err(EngineError::Unsupported(_)) if settings.read_only => return fixed(),
        Err(e) => return Err(reason(&e)),
    };
    let opened = FileSystem::open_live(live, settings.clone()).and_then(|fs| {
        if fs.is_writable() {
            fs.drain_unlinked()?;
        }
        Ok(fs)
    });
    match opened {
        Ok(fs) => {
            count_objects(engine, d.ds_obj, &fs);
            Ok((fs, Some(Arc::clone(engine))))
        }
        Err(e) => {
            // That it cannot be opened is what matters.
            let _ = engine.close(d.ds_obj);
            Err(words(e))
        }
    }
}

/// Has the objects of a file system counted that was made before the pool could count them.
pub(super) fn count_objects(engine: &Engine, ds_obj: u64, fs: &FileSystem) {
    if !fs.is_writable() {
        return;
    }
    match engine.begin_counting(ds_obj) {
        Ok(0) => {}
        Ok(flags) => fs.count_later(flags),
        // It can be used without.
        Err(e) => tracing::warn!("objects of dataset {ds_obj} are not counted: {e}"),
    }
}
