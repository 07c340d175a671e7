//! Datasets that are open for writing, each once however often it is asked for, and files of theirs
//! that are open: one that is removed meanwhile goes when the last handle does.

use crate::{Error, Result};
use cenote_dsl::Dataset;
use cenote_engine::Engine;
use cenote_zpl::{Caching, FileSystem, Settings, Volume};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// What is open, by the dataset's object.
#[derive(Default)]
pub(crate) struct Registry(Mutex<HashMap<u64, Weak<LiveSet>>>);

/// A dataset that is open for writing. It is closed when this goes.
pub(crate) struct LiveSet {
    contents: Contents,
    id: u64,
    /// Its name when it was opened.
    name: String,
    engine: Arc<Engine>,
    registry: Arc<Registry>,
    /// Handles of each open file, and whether it has lost its last name.
    files: Mutex<HashMap<u64, Uses>>,
}

enum Contents {
    Files(Arc<FileSystem>),
    Volume(Arc<Volume>),
}

#[derive(Default)]
struct Uses {
    handles: usize,
    orphan: bool,
}

impl Registry {
    /// Opens a file system for writing, or finds it open.
    pub(crate) fn files(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        dataset: &Dataset,
        settings: Settings,
    ) -> Result<Arc<LiveSet>> {
        self.open(engine, dataset, |live| {
            let fs = FileSystem::open_live(live, settings)?;
            if fs.is_writable() {
                fs.drain_unlinked()?;
            }
            Ok(Contents::Files(fs))
        })
    }

    /// Opens a volume for writing, or finds it open.
    pub(crate) fn volume(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        dataset: &Dataset,
        cache: Caching,
    ) -> Result<Arc<LiveSet>> {
        self.open(engine, dataset, |live| {
            let volume = Volume::open_live(live)?;
            volume.set_caching(cache);
            Ok(Contents::Volume(Arc::new(volume)))
        })
    }

    fn open(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        dataset: &Dataset,
        open: impl FnOnce(Arc<cenote_dmu::live::LiveObjectSet>) -> Result<Contents>,
    ) -> Result<Arc<LiveSet>> {
        // Others go on meanwhile.
        engine.replay_log(dataset.ds_obj)?;
        let mut all = self.0.lock();
        if let Some(set) = all.get(&dataset.ds_obj).and_then(Weak::upgrade) {
            return Ok(set);
        }
        let set = Arc::new(LiveSet {
            contents: open(engine.live(dataset.ds_obj)?)?,
            id: dataset.ds_obj,
            name: dataset.name.clone(),
            engine: engine.clone(),
            registry: self.clone(),
            files: Mutex::default(),
        });
        all.insert(dataset.ds_obj, Arc::downgrade(&set));
        Ok(set)
    }

    /// Whether a dataset is open for writing.
    pub(crate) fn is_open(&self, id: u64) -> bool {
        self.0.lock().get(&id).is_some_and(|set| set.strong_count() > 0)
    }

    /// The name of something that is open for writing.
    pub(crate) fn anything(&self) -> Option<String> {
        let all: Vec<_> = self.0.lock().values().filter_map(Weak::upgrade).collect();
        all.first().map(|set| set.name.clone())
    }

    /// Gives the file systems and volumes that are open the settings that they have now.
    pub(crate) fn refresh(&self, settings: impl Fn(u64) -> Option<Settings>) {
        let all: Vec<_> = self.0.lock().values().filter_map(Weak::upgrade).collect();
        for set in all {
            match (&set.contents, settings(set.id)) {
                (Contents::Files(fs), Some(settings)) => {
                    if let Err(e) = fs.reread_master_node() {
                        tracing::warn!("{}: quotas are as they were: {e}", set.name);
                    }
                    fs.set_settings(settings);
                }
                (Contents::Volume(volume), Some(settings)) => {
                    volume.set_caching(settings.cache);
                }
                (_, None) => {}
            }
        }
    }
}

impl LiveSet {
    /// The file system, if it is one.
    pub(crate) fn fs(&self) -> Option<&Arc<FileSystem>> {
        match &self.contents {
            Contents::Files(fs) => Some(fs),
            Contents::Volume(_) => None,
        }
    }

    /// The volume, if it is one.
    pub(crate) fn as_volume(&self) -> Option<&Arc<Volume>> {
        match &self.contents {
            Contents::Files(_) => None,
            Contents::Volume(volume) => Some(volume),
        }
    }

    /// Waits until all changes so far are stable.
    pub(crate) fn sync(&self) -> Result<()> {
        Ok(self.engine.commit(self.id)?)
    }

    /// Waits until the changes of a file so far are stable, with all names.
    pub(crate) fn sync_file(&self, ino: u64) -> Result<()> {
        Ok(self.engine.commit_objects(self.id, &[ino])?)
    }

    /// Whether a file has handles.
    pub(crate) fn in_use(&self, ino: u64) -> bool {
        self.files.lock().contains_key(&ino)
    }

    /// A file has lost its last name while it had handles.
    pub(crate) fn orphaned(&self, ino: u64) {
        match self.files.lock().get_mut(&ino) {
            Some(uses) => uses.orphan = true,
            None => self.release(ino),
        }
    }

    /// One handle more.
    pub(crate) fn hold(self: &Arc<Self>, ino: u64) -> Arc<Handle> {
        self.files.lock().entry(ino).or_default().handles += 1;
        Arc::new(Handle { set: self.clone(), ino })
    }

    fn release(&self, ino: u64) {
        if let Some(fs) = self.fs()
            && let Err(e) = fs.release(ino)
        {
            // It goes when the file system is opened next.
            tracing::warn!("{}: file {ino}: {e}", self.name);
        }
    }
}

impl Drop for LiveSet {
    fn drop(&mut self) {
        let mut all = self.registry.0.lock();
        // Somebody may have opened it again since.
        if all.get(&self.id).is_some_and(|set| set.strong_count() > 0) {
            return;
        }
        all.remove(&self.id);
        if let Contents::Files(fs) = &self.contents {
            fs.stop_freeing();
        }
        if let Err(e) = self.engine.close(self.id) {
            tracing::warn!("{}: {e}", self.name);
        }
    }
}

/// A handle of a file.
pub(crate) struct Handle {
    set: Arc<LiveSet>,
    ino: u64,
}

impl Handle {
    pub(crate) fn set(&self) -> &Arc<LiveSet> {
        &self.set
    }

    pub(crate) fn ino(&self) -> u64 {
        self.ino
    }

    /// The file system.
    pub(crate) fn fs(&self) -> Result<&Arc<FileSystem>> {
        let wanted = "file system";
        self.set.fs().ok_or_else(|| Error::Kind { name: self.set.name.clone(), wanted })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut files = self.set.files.lock();
        let Some(uses) = files.get_mut(&self.ino) else { return };
        uses.handles = uses.handles.saturating_sub(1);
        if uses.handles > 0 {
            return;
        }
        let orphan = uses.orphan;
        files.remove(&self.ino);
        drop(files);
        if orphan {
            self.set.release(self.ino);
        }
    }
}
