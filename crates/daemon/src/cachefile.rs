//! The property `cachefile`: which cache file names a pool, and when the files are written.
//!
//! Every pool is in the default cache file unless it was imported or created with an alternate root, or
//! `cachefile` says otherwise: `none`, or a file. A file is written when a command has changed what it is
//! about, and by a thread ([`Keeper`]) when the config of a pool changed by itself: a spare stepped in, a device
//! was replaced. It keeps the entries of pools that are not imported here: an earlier daemon had them, or another
//! program wrote them. An export takes an entry away; the end of the daemon does not.
//!
//! The default file is the one that `CENOTE_CACHEFILE` names (`none`: no file is kept). Without it a daemon
//! whose socket `CENOTE_SOCKET` names has its file beside the socket; another one of root has
//! `/var/lib/cenote/zpool.cache`, and a daemon of another user `$XDG_STATE_HOME/cenote/zpool.cache`
//! (`~/.local/state/…`). It is not OpenZFS's `/etc/zfs/zpool.cache`, since OpenZFS imports what that file
//! names: a file with entries of OpenZFS's is written only if `CENOTE_CACHEFILE` names it.

pub mod setting;

pub use setting::{Setting, default_path};

use crate::pools::{Imported, PoolTable};
use cenote_pool::cachefile::{CacheFile, CacheFileError};
use cenote_pool::events::{self, Event, PoolFailure};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::io;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// The event of a config that was written to a pool's devices.
const WRITTEN: &str = "sysevent.fs.zfs.config_sync";
/// How long the thread rests where events were missed.
const MISSED: Duration = Duration::from_secs(1);
/// How long the end waits for a file that is being written.
const GRACE: Duration = Duration::from_secs(5);

/// The files that could not be written last. One thread writes files at a time: what it writes is the newest then.
static FAILING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A pool has changed, or goes: writes the files that have to do with it. What cannot be written is
/// logged, and told once until it is written again: the command has done its work.
pub fn update(pools: &PoolTable) {
    write_all(pools, None);
}

/// The same for a pool that has been exported or destroyed.
pub fn forget(pools: &PoolTable, gone: &Imported) {
    write_all(pools, Some(gone));
}

/// The thread that writes the files when configs of pools were written.
pub(crate) struct Keeper {
    stops: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Keeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// There are no threads left.
    pub fn start(pools: Arc<PoolTable>) -> io::Result<Keeper> {
        let stops = Arc::new(AtomicBool::default());
        let told = stops.clone();
        let run = move || {
            let mut last = 0;
            let is_written = |event: &Event| event.payload.str("class") == Some(WRITTEN);
            while !told.load(SeqCst) {
                events::wait(last, || told.load(SeqCst));
                let (new, missed) = events::since(last);
                last = new.last().map_or(last + missed, |event| event.eid);
                if missed > 0 || new.iter().any(is_written) {
                    update(&pools);
                }
                if missed > 0 {
                    // What could not be written is an event, which may be missed as well.
                    std::thread::sleep(MISSED);
                }
            }
        };
        Ok(Keeper { stops, thread: Builder::new().name("cachefile".into()).spawn(run)? })
    }

    /// Ends the thread. One that waits for a device stays until that answers.
    pub fn stop(&self) {
        self.stops.store(true, SeqCst);
        events::wake();
        let begun = Instant::now();
        while !self.thread.is_finished() && begun.elapsed() < GRACE {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn write_all(pools: &PoolTable, gone: Option<&Imported>) {
    let mut failing = FAILING.lock();
    let mut paths = pools.cachefiles();
    let imported = pools.all();
    paths.extend(imported.iter().filter_map(|pool| pool.cachefile().path()));
    paths.extend(gone.and_then(|pool| pool.cachefile().path()));
    for path in &*paths {
        let guids = imported.iter().map(|pool| pool.guid()).chain(gone.map(Imported::guid));
        let guids: Vec<u64> = guids.collect();
        let listed = |pool: &&Arc<Imported>| {
            pool.engine().is_some() && pool.cachefile().path().as_ref() == Some(path)
        };
        let there = match CacheFile::read(path) {
            Ok(there) => there,
            // A file that is no cache file, or is not there yet, gets a new one in its place.
            Err(CacheFileError::Corrupt) => CacheFile::default(),
            Err(CacheFileError::Open(e)) if e.kind() == ErrorKind::NotFound => CacheFile::default(),
            // It may have pools of others.
            Err(e) => {
                if failing.insert(path.clone()) {
                    not_written(path, &e, &mut imported.iter().filter(listed));
                }
                continue;
            }
        };
        let mut new = there.clone();
        new.retain(|entry| !guids.contains(&entry.guid));
        for pool in imported.iter().filter(listed) {
            new.add(pool.name(), pool.pool().config());
        }
        if new == there {
            failing.remove(path);
            continue;
        }
        match make_directory(path).and_then(|()| new.write(path)) {
            Ok(()) => drop(failing.remove(path)),
            Err(e) if failing.insert(path.clone()) => {
                not_written(path, &e, &mut imported.iter().filter(listed));
            }
            Err(_) => {}
        }
    }
}

/// Tells that a cache file was not written, and posts an event for each pool that it should list.
fn not_written(
    path: &Path,
    why: &dyn std::fmt::Display,
    pools: &mut dyn Iterator<Item = &Arc<Imported>>,
) {
    tracing::warn!("cache file {}: {why}", path.display());
    pools.for_each(|pool| PoolFailure::CacheFile.post(pool.pool().store()));
}

/// Makes the directory of the default file. That of another one is there.
fn make_directory(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(dir) if default_path().as_deref() == Some(path) => {
            DirBuilder::new().recursive(true).mode(0o755).create(dir)
        }
        _ => Ok(()),
    }
}
