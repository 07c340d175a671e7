//! Other contents for a dataset that is mounted and may be in use: a rollback (`zfs_ioc_rollback`), or what a
//! receive brought (`zfs_ioc_recv_impl`).
//!
//! The mount stays. First all that was changed is written, and the new contents, which are on disk already, are compared with
//! those that the kernel knows: a device that hangs keeps this command waiting and no request. Requests wait while the
//! dataset is closed, changed and opened again; what is open in it
//! goes on where it is in the new contents as well (see [`cenote_fuse`]'s `exchange`). What is mounted at a
//! directory that is gone now is mounted again at a new one.
//!
//! A file system with submounts in it cannot be exchanged: its directories that they cover may be gone. One of another pool may
//! come between the look ([`Mounts::can_exchange`]) and the exchange, which looks again under the lock that it takes.

use super::how::Away;
use super::one::open;
use super::table::{All, LATE, Mounted, used as users_of};
use super::{How, Mounts, StaysMounted};
use crate::context::Context;
use crate::pools::{Imported, reason};
use cenote_engine::Engine;
use cenote_fuse::Renewed;
use cenote_zpl::{FileSystem, Settings};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often it is tried to open a dataset of a suspended pool.
const LOOK: Duration = Duration::from_millis(100);
/// Why nothing can be changed while devices are away.
const SUSPENDED: &str = "pool I/O is currently suspended";

/// File systems that are mounted inside one that is exchanged.
pub struct NestedMounts(Vec<(u64, How)>);

impl Mounts {
    /// Whether a dataset can get other contents while it is mounted, if it is.
    pub fn can_exchange(&self, id: u64) -> bool {
        let mut all = self.lock();
        of(&mut all, id).is_none_or(|m| !m.handle.has_submounts())
    }

    /// Why a dataset that cannot be exchanged cannot be unmounted for other contents either, if it cannot: it or what
    /// is inside is in use.
    pub fn stays(&self, id: u64) -> Option<StaysMounted> {
        let until = Instant::now() + LATE;
        loop {
            let mut all = self.lock();
            let place = of(&mut all, id).map(|m| m.listed.mountpoint.clone())?;
            let mut inside = all.mounted.iter().filter(|m| m.listed.mountpoint.starts_with(&place));
            let used = inside.find(|m| m.handle.has_users())?;
            if Instant::now() >= until {
                let by = users_of([used]).into_iter().find_map(|(_, by)| by);
                return Some(StaysMounted::used(&used.listed.mountpoint, by.as_ref()));
            }
            drop(all);
            std::thread::sleep(LATE / 20);
        }
    }

    /// What is mounted inside the mount of a dataset, last mounted first.
    pub fn inside(&self, id: u64) -> NestedMounts {
        let mut all = self.lock();
        let Some(place) = of(&mut all, id).map(|m| m.listed.mountpoint.clone()) else {
            return NestedMounts(Vec::new());
        };
        let inside = all.mounted.iter().rev();
        let inside = inside.filter(|m| m.id != id && m.listed.mountpoint.starts_with(&place));
        NestedMounts(inside.map(|m| (m.id, m.how.clone())).collect())
    }

    /// Mounts again what is not mounted any more. Says what fails; returns whether all went well.
    pub fn restore(
        &self,
        imported: &Imported,
        mut inside: NestedMounts,
        ctx: &mut Context,
    ) -> bool {
        {
            let all = self.lock();
            inside.0.retain(|(id, _)| all.mounted.iter().all(|m| m.id != *id));
        }
        Away::of(inside.0).back(imported, ctx)
    }

    /// Has `change` give a dataset other contents, the contents of the dataset `coming`; it tells whether it did. If it is mounted, no
    /// process can use it meanwhile, and what is there afterwards is served.
    ///
    /// # Errors
    /// The pool is suspended, or the dataset cannot be closed: nothing was changed. It cannot be opened again: programs
    /// that use it get errors.
    pub fn exchange(
        &self,
        imported: &Imported,
        (id, coming): (u64, Option<u64>),
        change: &mut dyn FnMut() -> bool,
    ) -> Result<(), StaysMounted> {
        let mut all = self.lock();
        let Some(mounted) = of(&mut all, id) else {
            drop(all);
            change();
            return Ok(());
        };
        let Mounted { listed, handle, fs, engine, drained, .. } = mounted;
        // Also of a mount that writes nothing: what comes may not be on disk yet.
        let writer = imported.engine();
        let settings = (*fs.settings()).clone();
        let cannot = |why: &str| {
            Err(StaysMounted(format!("cannot exchange what '{}' has: {why}", listed.dataset)))
        };
        if handle.has_submounts() {
            return cannot("another file system was mounted in it meanwhile");
        }
        // Programs that wait for the pool keep the mount, and what they have changed is to get to it first.
        if imported.suspended() {
            return cannot(SUSPENDED);
        }
        handle.write_mapped();
        // So closing and changing it have little to write.
        if let Some(writer) = writer
            && let Err(e) = writer.sync()
        {
            return cannot(&reason(&e));
        }
        let coming = coming.and_then(|object| to_compare(imported, object));
        let exchanged = handle.exchange(coming, || {
            fs.stop_freeing();
            if let Some(engine) = &engine
                && let Err(e) = engine.close(id)
            {
                // It is open still.
                return (Err((reason(&e), true)), Renewed::Same(fs.clone()));
            }
            let renewed = if change() { Renewed::Other } else { Renewed::Same };
            match reopen(imported, id, engine.as_ref(), &settings) {
                Ok(opened) => {
                    let fs = opened.0.clone();
                    (Ok(opened), renewed(fs))
                }
                Err(why) => (Err((why, false)), Renewed::Nothing),
            }
        });
        match exchanged.unwrap_or_else(|| Err((SUSPENDED.into(), true))) {
            Ok(opened) => {
                (*fs, *engine) = opened;
                *drained = fs.is_writable();
                Ok(())
            }
            Err((why, true)) => cannot(&why),
            Err((why, false)) => {
                handle.abort();
                Err(StaysMounted(format!("cannot open '{}' again: {why}", listed.dataset)))
            }
        }
    }
}

/// The contents of a dataset that does not change, as they are on disk. `None`: they cannot be opened.
fn to_compare(imported: &Imported, object: u64) -> Option<Arc<FileSystem>> {
    let pool = imported.pool();
    let opened = || -> Result<Option<Arc<FileSystem>>, cenote_zpl::Error> {
        let Some(dataset) = pool.dsl().by_object(object)? else { return Ok(None) };
        let settings = cenote_admin::contents::whole(&pool, &dataset)?;
        FileSystem::open_as(pool.dsl().open_objset(&dataset)?, settings).map(Some)
    };
    opened().unwrap_or_else(|e| {
        tracing::info!("what is coming cannot be compared with what is mounted: {e}");
        None
    })
}

/// Opens a dataset that was closed. While the pool waits for devices that is tried again: programs wait for the mount as
/// they do for the pool.
fn reopen(
    imported: &Imported,
    id: u64,
    engine: Option<&Arc<Engine>>,
    settings: &Settings,
) -> Result<(Arc<FileSystem>, Option<Arc<Engine>>), String> {
    loop {
        let dataset = imported.pool().dsl().by_object(id).map_err(|e| e.to_string());
        let dataset = dataset.and_then(|d| d.ok_or_else(|| "dataset does not exist".into()));
        match dataset.and_then(|d| open(imported, &d, settings)) {
            Err(_) if engine.is_some_and(|engine| engine.waits_for_devices()) => {
                std::thread::sleep(LOOK);
            }
            done => return done,
        }
    }
}

/// What is or was mounted of a dataset: it has one connection.
fn of(all: &mut All, id: u64) -> Option<&mut Mounted> {
    let All { mounted, lingering, .. } = all;
    mounted.iter_mut().chain(lingering).find(|m| m.id == id)
}
