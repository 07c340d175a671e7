//! An open file system: the master node, and the attributes of its files.
//!
//! The master node (object 1) is a ZAP: `VERSION` of the layout, `ROOT`, `DELETE_QUEUE` (files that
//! were unlinked while open), `SA_ATTRS`, `FUID` (domains of foreign user ids), and the properties
//! fixed at creation that say how names compare: `casesensitivity` (0 sensitive, 1 insensitive,
//! 2 mixed), `normalization` (0 off, else a Unicode normalization form) and `utf8only`.
//!
//! The objects come from a fixed object set (a snapshot, or a dataset as a txg left it) or from a
//! live one, whose pending changes are seen at once.
//!
//! Nothing is kept per file: dnodes and blocks are cached below. Open directories are, in a small
//! map (see `directories`).

use crate::attr::{Attr, Space, attr_of};
use crate::directories::Directories;
use crate::drain::UnlinkedDrain;
use crate::quota::Quotas;
use crate::sa::{Registry, SharedRegistry};
use crate::settings::{Settings, Visibility};
use crate::source::Source;
use crate::znode::Znode;
use crate::{Error, Result};
use ahash::HashMap;
use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::{Object, ObjectSet, zap::Zap};
use cenote_format::dmu::ObjsetType;
use cenote_format::zap::norm::TO_UPPER;
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Weak};

/// The master node's object number.
pub(crate) const MASTER_NODE: u64 = 1;
/// The newest ZPL version.
const MAX_VERSION: u64 = 5;
/// Version from which on directory entries tell the type of a file (`ZPL_VERSION_DIRENT_TYPE`).
pub(crate) const ENTRY_TYPES: u64 = 2;
/// Version from which on there are FUIDs, and flags that came with them (`ZPL_VERSION_FUID`).
pub(crate) const FUIDS: u64 = 3;
/// Version from which on attributes are system attributes (`ZPL_VERSION_SA`).
pub(crate) const SYSTEM_ATTRIBUTES: u64 = 5;

/// The `casesensitivity` property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseSensitivity {
    /// Names differ if their case differs.
    Sensitive,
    /// They do not.
    Insensitive,
    /// They do, on Linux; other systems may ask otherwise.
    Mixed,
}

/// Reads and writes of the files of a file system (`dataset_kstats_t`).
#[derive(Debug, Default)]
pub struct IoCounts {
    reads: AtomicU64,
    read: AtomicU64,
    writes: AtomicU64,
    written: AtomicU64,
}

impl IoCounts {
    /// Counts a read of so many bytes.
    pub fn count_read(&self, bytes: u64) {
        self.reads.fetch_add(1, Relaxed);
        self.read.fetch_add(bytes, Relaxed);
    }

    /// Counts a write of so many bytes.
    pub fn count_write(&self, bytes: u64) {
        self.writes.fetch_add(1, Relaxed);
        self.written.fetch_add(bytes, Relaxed);
    }

    /// Reads and their bytes, writes and their bytes.
    pub fn now(&self) -> ((u64, u64), (u64, u64)) {
        let of = |n: &AtomicU64| n.load(Relaxed);
        ((of(&self.reads), of(&self.read)), (of(&self.writes), of(&self.written)))
    }
}

/// An open file system, live or snapshot (`zfsvfs_t`). Shared by any number of threads.
pub struct FileSystem {
    pub(crate) source: Source,
    version: AtomicU64,
    root: u64,
    unlinked_set: Option<u64>,
    shares: Option<u64>,
    quotas: RwLock<Quotas>,
    case: CaseSensitivity,
    normalization: u64,
    utf8_only: bool,
    registry: Option<Arc<SharedRegistry>>,
    /// One thread at a time goes by what the master node says now: a registry that was read before another thread
    /// showed the version would take the place of one with more layouts.
    rereading: Mutex<()>,
    /// What was read and written since it was opened.
    pub(crate) io: IoCounts,
    settings: RwLock<Arc<Settings>>,
    pub(crate) directories: Directories,
    /// Files that are in use without a name; whether they may get one.
    pub(crate) orphans: Mutex<HashMap<u64, bool>>,
    /// The thread that frees files in the background.
    pub(crate) drain: UnlinkedDrain,
    /// This file system.
    pub(crate) this: Weak<FileSystem>,
}

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSystem")
            .field("objset", &self.source.id())
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl FileSystem {
    /// Opens the file system in `os`, with everything visible. A caller that only looks at it says nothing about
    /// what the ARC keeps.
    pub fn open(os: Arc<ObjectSet>) -> Result<Arc<FileSystem>> {
        FileSystem::open_with(os, Visibility::default())
    }

    /// Opens the file system in `os`; `visibility` follows the properties of the dataset.
    pub fn open_with(os: Arc<ObjectSet>, visibility: Visibility) -> Result<Arc<FileSystem>> {
        let settings = Settings { visibility, read_only: true, ..Settings::default() };
        Self::open_source(Source::Fixed(os), settings)
    }

    /// Opens the file system in `os` for reading, as `settings` say: what the ARC keeps of it, too.
    pub fn open_as(os: Arc<ObjectSet>, settings: Settings) -> Result<Arc<FileSystem>> {
        os.store().set_caching(os.id(), settings.cache);
        Self::open_source(Source::Fixed(os), Settings { read_only: true, ..settings })
    }

    /// Opens a file system that is in use (`zfsvfs_setup`). No other code may change its files.
    pub fn open_live(live: Arc<LiveObjectSet>, settings: Settings) -> Result<Arc<FileSystem>> {
        live.base().store().set_caching(live.id(), settings.cache);
        Self::open_source(Source::Live(live), settings)
    }

    /// Reads the master node and what it leads to (`zfsvfs_init`).
    fn open_source(source: Source, settings: Settings) -> Result<Arc<FileSystem>> {
        if source.base().phys().kind != ObjsetType::Zfs {
            return Err(Error::Invalid(format!("dataset {}: not a file system", source.id())));
        }
        let master = Zap::open(&source.object(MASTER_NODE)?)?;
        let entry = |name: &str| Ok::<_, Error>(master.u64(name.as_bytes())?);
        let required = |name: &str| {
            entry(name)?
                .ok_or_else(|| Error::Corrupt(MASTER_NODE, format!("master node without {name}")))
        };
        let version = required("VERSION")?;
        if version == 0 || version > MAX_VERSION {
            return Err(Error::Unsupported(format!("file system version {version}")));
        }
        let case = match entry("casesensitivity")?.unwrap_or(0) {
            0 => CaseSensitivity::Sensitive,
            1 => CaseSensitivity::Insensitive,
            2 => CaseSensitivity::Mixed,
            n => return Err(Error::Corrupt(MASTER_NODE, format!("casesensitivity {n}"))),
        };
        let registry = match entry("SA_ATTRS")? {
            _ if version < SYSTEM_ATTRIBUTES => Some(Registry::of_old_nodes()),
            Some(object) if object != 0 => Some(Registry::load(&source, object)?),
            _ => None,
        };
        let registry = registry.map(|registry| Arc::new(SharedRegistry::new(registry)));
        let (root, unlinked_set) = (required("ROOT")?, entry("DELETE_QUEUE")?);
        let shares = entry("SHARES")?;
        let quotas = RwLock::new(Quotas::read(&master)?);
        let normalization = entry("normalization")?.unwrap_or(0);
        let utf8_only = entry("utf8only")?.unwrap_or(0) != 0;
        Ok(Arc::new_cyclic(|this| FileSystem {
            version: AtomicU64::new(version),
            root,
            unlinked_set,
            shares,
            quotas,
            case,
            normalization,
            utf8_only,
            registry,
            rereading: Mutex::default(),
            io: IoCounts::default(),
            settings: RwLock::new(Arc::new(settings.within(version >= SYSTEM_ATTRIBUTES))),
            directories: Directories::default(),
            orphans: Mutex::default(),
            drain: UnlinkedDrain::default(),
            this: this.clone(),
            source,
        }))
    }

    /// What was read from its files and written to them since it was opened.
    pub fn io(&self) -> &IoCounts {
        &self.io
    }

    /// The object set; of a live file system as the last txg left it.
    pub fn objset(&self) -> Arc<ObjectSet> {
        self.source.base()
    }

    /// Changes the properties that can change (`dsl_prop_register`). Open files follow.
    pub fn set_settings(&self, settings: Settings) {
        self.source.base().store().set_caching(self.source.id(), settings.cache);
        *self.settings.write() = Arc::new(settings.within(self.version() >= SYSTEM_ATTRIBUTES));
    }

    /// The properties that can change.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.read().clone()
    }

    /// Whether files can be changed: a live file system that is not `readonly`.
    pub fn is_writable(&self) -> bool {
        self.may_become_writable() && !self.settings.read().read_only
    }

    /// Whether nothing but the `readonly` property can keep files from being changed.
    pub fn may_become_writable(&self) -> bool {
        self.source.live().is_some() && self.registry.is_some()
    }

    /// ZPL version, 1 to 5.
    pub fn version(&self) -> u64 {
        self.version.load(Acquire)
    }

    /// Has nothing more of the pool written: something that serves the file system found the pool's state in memory
    /// wrong ([`cenote_format::invariant`](mod@cenote_format::invariant)).
    pub fn sound_alarm(&self, why: &str) {
        if let Some(live) = self.source.live() {
            live.base().store().alarm().sound(why.to_owned());
        }
    }

    /// Whether what is written waits until devices of the pool are back.
    pub fn is_suspended(&self) -> bool {
        let live = self.source.live();
        live.is_some_and(|live| live.base().store().vdevs().suspension().why().is_some())
    }

    /// Root directory's object.
    pub fn root(&self) -> u64 {
        self.root
    }

    /// The ZAP of files that were unlinked while open (the delete queue).
    pub fn unlinked_set(&self) -> Option<u64> {
        self.unlinked_set
    }

    /// The directory shown as `.zfs/shares`, if there is one.
    pub fn shares(&self) -> Option<u64> {
        self.shares
    }

    /// ZAPs of quotas.
    pub(crate) fn quotas(&self) -> Quotas {
        *self.quotas.read()
    }

    /// Goes by what the master node says now: quotas of users, groups and projects, and the version, which may be a later
    /// one. [`FileSystem::set_settings`] must be called after it.
    ///
    /// # Errors
    /// It cannot be read: what was known still holds.
    pub fn reread_master_node(&self) -> Result<()> {
        let _one_at_a_time = self.rereading.lock();
        let master = Zap::open(&self.source.object(MASTER_NODE)?)?;
        let quotas = Quotas::read(&master)?;
        *self.quotas.write() = quotas;
        let version = master.u64(b"VERSION")?.unwrap_or_default();
        if version <= self.version() || version > MAX_VERSION {
            return Ok(());
        }
        if let (Some(shared), Some(object)) = (&self.registry, master.u64(b"SA_ATTRS")?) {
            // Before the version, which has changes ask for it.
            shared.publish(Arc::new(Registry::load(&self.source, object)?));
        }
        self.version.store(version, Release);
        Ok(())
    }

    /// How the case of names counts.
    pub fn case_sensitivity(&self) -> CaseSensitivity {
        self.case
    }

    /// Whether names are compared in a Unicode normalization form.
    pub fn normalizes(&self) -> bool {
        self.normalization != 0
    }

    /// Whether all names are UTF-8.
    pub fn utf8_only(&self) -> bool {
        self.utf8_only
    }

    /// What is shown of extended attributes.
    pub fn visibility(&self) -> Visibility {
        self.settings().visibility
    }

    /// Number of objects in use, for `statfs`.
    pub fn used_objects(&self) -> u64 {
        self.source.base().root_bp().fill()
    }

    /// A file's object.
    pub fn object(&self, ino: u64) -> Result<Object> {
        Ok(self.source.object(ino)?)
    }

    /// The registry of system attributes, or what stands for it in a file system before version 5.
    pub(crate) fn registry(&self) -> Option<&Arc<SharedRegistry>> {
        self.registry.as_ref()
    }

    /// `normalization`, and folding of case where names are ever compared without it: the flags of
    /// new directories.
    pub(crate) fn norm_flags(&self) -> u64 {
        norm_flags(self.normalization, self.case)
    }

    /// A file's object with its attributes and its data (`zfs_zget`).
    pub(crate) fn znode(&self, ino: u64) -> Result<Znode> {
        self.open_znode(ino, Source::object)
    }

    /// As [`FileSystem::znode`], good for the attributes only: pending data is not copied for it.
    pub(crate) fn attributes(&self, ino: u64) -> Result<Znode> {
        self.open_znode(ino, Source::attributes)
    }

    fn open_znode(
        &self,
        ino: u64,
        look: impl Fn(&Source, u64) -> cenote_dmu::Result<Object>,
    ) -> Result<Znode> {
        // The numbers of the accounting dnodes are negative and never inodes.
        if ino == 0 || ino > u64::MAX / 2 {
            return Err(Error::NotFound(format!("object {ino}")));
        }
        // The registry has the layout of every object that can be seen before.
        let object = look(&self.source, ino)?;
        Znode::open(object, self.registry.as_ref().map(|r| r.current()))
    }

    /// Attributes of a file (`zfs_getattr_fast`).
    pub fn attr(&self, ino: u64) -> Result<Attr> {
        let node = self.attributes(ino)?;
        let object = node.object();
        attr_of(&node.words()?, Space::of(object.dnode(), object.is_pending()))
    }
}

/// Flags of directories' ZAPs.
pub(crate) fn norm_flags(normalization: u64, case: CaseSensitivity) -> u64 {
    match case {
        CaseSensitivity::Sensitive => normalization,
        CaseSensitivity::Insensitive | CaseSensitivity::Mixed => normalization | TO_UPPER,
    }
}
