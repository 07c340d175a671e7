//! New pools.

use crate::contents::Files;
use crate::{Pool, Result};
use cenote_dmu::outside::Chance;
use cenote_engine::change::{Changes, Contents, is_quota, root_filesystem};
use cenote_engine::create::{
    CreateError, CreateSpec, FIRST_TXG, SystemDevices, check_answers, parse,
};
use cenote_engine::{CreateRequest, Engine, EngineOptions};
use cenote_pool::features::{FeatureChoice, choose_features};
use cenote_pool::props::{PropChange, PropContext, When};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A pool to create, as `zpool create` does it.
#[derive(Clone, Debug)]
pub struct CreatePool {
    name: String,
    vdevs: Vec<String>,
    props: Vec<(String, String)>,
    fs_props: Vec<(String, String)>,
    force: bool,
}

impl CreatePool {
    /// A pool of these devices: paths of files (which must be there, with at least 64 MiB) and block
    /// devices, with the words of `zpool create` between them (`mirror`, `raidz2`, `log`).
    pub fn new(
        name: impl Into<String>,
        vdevs: impl IntoIterator<Item = impl Into<String>>,
    ) -> CreatePool {
        CreatePool {
            name: name.into(),
            vdevs: vdevs.into_iter().map(Into::into).collect(),
            props: Vec::new(),
            fs_props: Vec::new(),
            force: false,
        }
    }

    /// Sets a property of the pool (`ashift`, `autotrim`, `feature@edonr`, `compatibility`).
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> CreatePool {
        self.props.push((name.into(), value.into()));
        self
    }

    /// Sets a property of the root file system, which those below it inherit.
    pub fn filesystem_property(
        mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> CreatePool {
        self.fs_props.push((name.into(), value.into()));
        self
    }

    /// Takes devices that have been part of another pool.
    pub fn force(mut self) -> CreatePool {
        self.force = true;
        self
    }

    /// Creates the pool and opens it for writing.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let disks = ["a", "b"].map(|name| dir.path().join(name).display().to_string());
    /// for disk in &disks {
    ///     std::fs::File::create(disk)?.set_len(64 << 20)?;
    /// }
    /// let [a, b] = disks;
    /// let pool = cenote::CreatePool::new("tank", ["mirror".to_string(), a, b])
    ///     .filesystem_property("compression", "zstd")
    ///     .create()?;
    /// assert_eq!(pool.health(), "ONLINE");
    /// # Ok::<(), cenote::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::Create`], whose kind is [`ErrorKind::Invalid`](crate::ErrorKind): a device cannot be used, a property is not
    /// right, it was begun and failed; [`crate::Error::Engine`]: the new pool cannot be written.
    pub fn create(self) -> Result<Pool> {
        let refused =
            |why: String| CreateError::Refused { what: format!("create '{}'", self.name), why };
        let layout = parse(&self.vdevs)?;
        check_answers(&layout)?;
        let context = PropContext {
            when: When::Create,
            version: cenote_pool::version::FEATURES,
            pool: &self.name,
            hostid: 0,
            dataset: &|_| None,
        };
        let (mut props, mut named) = (Vec::new(), Vec::new());
        let (mut ashift, mut compatibility) = (0, None);
        for (name, value) in &self.props {
            let change = cenote_pool::props::parse(name, value, &context);
            let change = change.map_err(|e| refused(e.to_string()))?;
            match &change {
                PropChange::Number("ashift", n) => ashift = *n,
                PropChange::Feature(feature) => named.push((feature.name.to_string(), true)),
                PropChange::NoFeature(feature) => named.push((feature.name.to_string(), false)),
                PropChange::Compatibility(set) => compatibility = Some(set.clone()),
                _ => {}
            }
            props.push(change);
        }
        let choice =
            FeatureChoice { none: false, compatibility: compatibility.as_deref(), named: &named };
        let (features, warnings) = choose_features(&choice).map_err(refused)?;
        warnings.iter().for_each(|w| tracing::warn!("{w}"));
        let project_quota = features.iter().any(|f| f.name == "project_quota");
        let (root_props, format) =
            root_filesystem(&self.fs_props, project_quota).map_err(|e| refused(e.to_string()))?;
        let request = CreateRequest {
            temporary_name: None,
            spec: CreateSpec {
                name: &self.name,
                layout: &layout,
                ashift,
                force: self.force.into(),
                pool: None,
                txg: FIRST_TXG,
                imported: &[],
                devices: &SystemDevices,
                chance: &Chance::default(),
            },
            features: &features,
            props: &props,
            root_props: &root_props,
            encryption: None,
            altroot: None,
            arc_bytes: None,
        };
        let engine = Engine::create(&request, EngineOptions::default(), |os| {
            Files.fill(os, &format, FIRST_TXG)
        })?;
        if let Err(why) = self.set_quotas(&engine) {
            engine.export(true)?;
            return Err(refused(why).into());
        }
        Ok(Pool::writable(engine))
    }

    /// Sets quotas of users, groups and projects, which are in the contents of the root file system.
    fn set_quotas(&self, engine: &Arc<Engine>) -> std::result::Result<(), String> {
        let quotas: Vec<_> =
            self.fs_props.iter().filter(|(name, _)| is_quota(name)).cloned().collect();
        if quotas.is_empty() {
            return Ok(());
        }
        let changes = Changes::new(Arc::clone(engine), Arc::new(Files), None);
        let failed = changes.set(&self.name, &quotas).map_err(|e| e.to_string())?;
        failed.first().map_or(Ok(()), |failed| Err(format!("'{}': {}", failed.name, failed.error)))
    }
}

impl Pool {
    /// Creates a pool in one file of so many bytes, which is new, and opens it for writing. For everything else there is
    /// [`CreatePool`].
    ///
    /// # Errors
    /// [`crate::Error::Io`]: the file is there already, or cannot be made, or its path is not UTF-8, as devices in pools have to be;
    /// [`crate::Error::Create`]: fewer bytes than 64 MiB, or a name that cannot be. There is no new file then.
    pub fn create_in_file(path: impl AsRef<Path>, name: &str, size: u64) -> Result<Pool> {
        let file = File::create_new(&path)?;
        let done = create_in(&file, path.as_ref(), name, size);
        if done.is_err()
            && let Err(e) = std::fs::remove_file(&path)
        {
            tracing::warn!("cannot remove '{}': {e}", path.as_ref().display());
        }
        done
    }
}

/// Creates a pool in a new file.
fn create_in(file: &File, path: &Path, name: &str, size: u64) -> Result<Pool> {
    file.set_len(size)?;
    let path = std::fs::canonicalize(path)?;
    let text = path.to_str().ok_or_else(|| {
        let why = format!("'{}': the path is not UTF-8", path.display());
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })?;
    CreatePool::new(name, [text]).create()
}
