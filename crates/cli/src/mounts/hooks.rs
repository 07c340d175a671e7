//! What a mount asks the pool while it is used: space, snapshots, and to be on disk.

use crate::pools::Opened;
use cenote_dsl::Dataset;
use cenote_engine::EngineError;
use cenote_fuse::{SnapshotEntry, Snapshots, Space, SpaceHook, SyncHook};
use cenote_zpl::FileSystem;
use std::sync::Arc;

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
