//! What a mount asks the pool while it is used: space, snapshots, and to be on disk.
//!
//! `cenote-fuse` knows no pools. It is given functions and a trait for what it has to know of one: `statfs` (`space_of`), `fsync`
//! (`sync_of`), and the directory `.zfs/snapshot` (`Snapshots`). Each answers from the pool as its last transaction group left it, by the
//! number of the dataset: it may have been renamed.
//!
//! Snapshots can be taken, destroyed and renamed by `mkdir`, `rmdir` and `mv` in that directory, with the permissions of the user that the
//! kernel names; refusals become numbers of system calls. If the destroy of a snapshot is refused since the snapshot is mounted, the kernel
//! gets a moment to let go of it. Where it cannot be read whether blocks are shared they are taken for shared, which is safe.

use super::table::{LATE, Mounts};
use crate::pools::Opened;
use cenote_admin::contents::Files;
use cenote_dsl::Dataset;
use cenote_dsl::permissions::Who;
use cenote_engine::EngineError;
use cenote_engine::change::{ChangeError, Changes, NewSnapshot};
use cenote_engine::tunables::ADMIN_SNAPSHOT;
use cenote_fuse::{
    Requester, SnapshotChange, SnapshotEntry, Snapshots, Space, SpaceHook, SyncHook,
};
use cenote_pool::brt;
use cenote_zpl::{FileSystem, Spare};
use rustix::io::Errno;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long the destroy of a snapshot waits for the kernel to let go of a mount of it.
const RELEASE: Duration = LATE;

/// Figures for `statfs`, as they are when it is called.
pub(super) fn space_of(opened: &Opened, id: u64, record_size: u64) -> SpaceHook {
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

/// Waits until what was changed in the dataset, or in some of its objects, is stable.
pub(super) fn sync_of(opened: &Opened, id: u64) -> SyncHook {
    let engine = opened.engine().cloned();
    Arc::new(move |objects| {
        let Some(engine) = &engine else { return Ok(()) };
        let done = match objects {
            Some(objects) => engine.commit_objects(id, objects),
            None => engine.commit(id),
        };
        done.map_err(|e| match e {
            EngineError::Read(e) => e.into(),
            e => cenote_dmu::write::WriteError::Suspended(e.to_string()).into(),
        })
    })
}

/// The snapshots of a mounted file system, as they are when they are asked for.
pub(super) struct OfDataset {
    pub(super) pool: Opened,
    pub(super) id: u64,
    /// The mounts of the pool.
    pub(super) mounts: Weak<Mounts>,
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

    fn changed(&self) -> Option<(i64, u32)> {
        const NANOSECONDS: u64 = 1_000_000_000;
        let pool = self.pool.pool();
        let dataset = pool.dsl().by_object(self.id).ok().flatten()?;
        let time = pool.dsl().get(&dataset, "snapshots_changed_nsecs").ok()?;
        let time: u64 = time.and_then(|v| v.exact.parse().ok()).unwrap_or(0);
        let seconds = i64::try_from(time / NANOSECONDS).ok()?;
        Some((seconds, u32::try_from(time % NANOSECONDS).ok()?))
    }

    fn newest(&self) -> u64 {
        match self.pool.pool().dsl().by_object(self.id) {
            Ok(dataset) => dataset.map_or(0, |d| d.ds.prev_snap_txg),
            Err(e) => {
                // It is safe to take all blocks for shared with a snapshot.
                tracing::warn!("snapshots of dataset {}: {e}", self.id);
                u64::MAX
            }
        }
    }

    fn cloned(&self) -> Box<Spare<'static>> {
        let pool = self.pool.pool();
        let vdevs = pool.store().vdevs().root().children().len() as u64;
        let tables = brt::load(pool.mos(), vdevs);
        Box::new(move |bp| {
            let found = tables.as_ref().map_err(ToString::to_string).and_then(|tables| {
                brt::is_cloned(pool.mos(), tables, bp).map_err(|e| e.to_string())
            });
            found.unwrap_or_else(|e| {
                // It is safe to take a block for shared.
                tracing::warn!("block reference tables: {e}");
                true
            })
        })
    }

    fn may_keep_births(&self) -> bool {
        self.pool.pool().features().is_enabled("physical_rewrite")
    }

    fn open(&self, name: &str) -> Result<Arc<FileSystem>, cenote_zpl::Error> {
        let pool = self.pool.pool();
        let missing = || cenote_zpl::Error::NotFound(name.into());
        let head = pool.dsl().by_object(self.id)?.ok_or_else(missing)?;
        let snapshot = pool.dsl().find(&format!("{}@{name}", head.name))?.ok_or_else(missing)?;
        let settings = cenote_admin::contents::whole(&pool, &snapshot)?;
        FileSystem::open_as(pool.dsl().open_objset(&snapshot)?, settings)
    }

    fn are_administered(&self) -> bool {
        ADMIN_SNAPSHOT.is_on()
    }

    fn change(&self, user: Option<&Requester>, change: SnapshotChange<'_>) -> io::Result<()> {
        let engine = self.pool.engine().ok_or(Errno::ROFS)?.clone();
        let head = engine.pool().dsl().by_object(self.id).map_err(|_| Errno::IO)?;
        let head = head.ok_or(Errno::NOENT)?.name;
        let files = Arc::new(Files);
        let changes = match user {
            None => Changes::new(engine, files, None),
            Some(user) => Changes::delegated(engine, files, None, who(user)),
        };
        let full = |short: &str| format!("{head}@{short}");
        let done = match change {
            SnapshotChange::Take(short) => {
                let names = vec![full(short)];
                changes.snapshot(&NewSnapshot { names, props: Vec::new() }).map_err(|(_, e)| e)
            }
            SnapshotChange::Destroy(short) => {
                let destroy = || {
                    let gone = changes.destroy_snapshots(&[full(short)], false);
                    gone.map_err(|refused| {
                        refused.into_iter().next().map_or(ChangeError::Busy, |r| r.1)
                    })
                };
                match destroy() {
                    // It may have been mounted elsewhere until a moment ago.
                    Err(ChangeError::Busy) if self.is_released(&full(short)) => destroy(),
                    done => done,
                }
            }
            SnapshotChange::Rename(from, to) => {
                changes.rename_snapshot(&full(from), to, false).map_err(|(_, e)| e)
            }
        };
        Ok(done.map_err(|e| number(&e))?)
    }
}

impl OfDataset {
    /// Whether a mount of a snapshot was in the way that the kernel has let go of by now.
    fn is_released(&self, name: &str) -> bool {
        let Some(mounts) = self.mounts.upgrade() else { return false };
        // The kernel tells a moment after umount(8).
        let mut looks = std::iter::repeat_n((), 20);
        looks.any(|()| {
            let released = mounts.release_snapshot(name);
            if !released {
                std::thread::sleep(RELEASE / 20);
            }
            released
        })
    }
}

fn who(user: &Requester) -> Who {
    let groups = user.groups.iter().map(|group| u64::from(*group)).collect();
    Who { user: user.user.into(), groups }
}

/// What a system call says of a change that was refused.
fn number(e: &ChangeError) -> Errno {
    match e {
        ChangeError::Exists | ChangeError::Cloned => Errno::EXIST,
        ChangeError::NotFound => Errno::NOENT,
        ChangeError::Denied | ChangeError::NoDelegation => Errno::PERM,
        ChangeError::Busy | ChangeError::Held(_) => Errno::BUSY,
        ChangeError::NoSpace | ChangeError::Kept => Errno::NOSPC,
        ChangeError::TooLong => Errno::NAMETOOLONG,
        ChangeError::Name(_) => Errno::ILSEQ,
        ChangeError::ReadOnly | ChangeError::ReadOnlyDataset => Errno::ROFS,
        ChangeError::Unsupported(_) => Errno::OPNOTSUPP,
        ChangeError::Io(_) | ChangeError::Suspended => Errno::IO,
        _ => Errno::INVAL,
    }
}
