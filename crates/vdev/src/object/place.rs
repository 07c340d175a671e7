//! Where the store of a device is: a directory that is kept open, a store by network, or what a program provides.
//!
//! # A directory
//!
//! It is opened once, and every request goes through its descriptor (`/proc/self/fd/N`): what is mounted over it, or takes its name, gets no object of
//! the pool, and a file system that is in use cannot be unmounted. Whether the path still leads to it is asked before each root
//! ([`Place::is_there`]). A process that writes has a lock (`flock`) on it, so that two processes of one host do not write, and one device has one name,
//! however the path is spelled ([`name_of`]).

use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use cenote_objects::frame::{self, Kind};
use cenote_objects::{Address, Cause, Tunables};
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::prefix::PrefixStore;
use parking_lot::Mutex;

use super::{FIRST_SIZE, LAST_SIZE};
use crate::{backing, tunables};

/// A store that a program brought along, how it is used, and the sizes that its device begins and ends with.
#[derive(Clone)]
pub(super) struct Provided {
    pub store: Arc<dyn ObjectStore>,
    pub tunables: Tunables,
    pub sizes: (u64, u64),
}

/// Stores that programs brought along, by what their devices are called.
static PROVIDED: LazyLock<Mutex<HashMap<PathBuf, Provided>>> = LazyLock::new(Mutex::default);

pub(super) fn provide(path: &Path, provided: Provided) {
    PROVIDED.lock().insert(path.to_path_buf(), provided);
}

/// Whether a program brought the store of a device along.
pub(super) fn is_provided(path: &Path) -> bool {
    PROVIDED.lock().contains_key(path)
}

/// The directory that a path names.
fn directory(path: &Path) -> Option<&Path> {
    let dir = path.to_str()?.strip_prefix("file://")?;
    (dir.starts_with('/') && !PROVIDED.lock().contains_key(path)).then(|| Path::new(dir))
}

/// What a device is called, however its path is spelled.
pub fn name_of(path: &Path) -> PathBuf {
    let real = directory(path).and_then(|dir| dir.canonicalize().ok());
    real.or_else(|| as_said(path).ok()).unwrap_or_else(|| path.to_path_buf())
}

/// The whole name of a device that a user gives, as it is kept in the pool's configuration: in the one spelling, with what the environment of
/// this process says of the place besides. What is in a configuration is complete: the environment does not count any more.
///
/// # Errors
/// It is no name of a place, and why; it has credentials (which are not repeated).
pub fn spelled(path: &Path) -> io::Result<PathBuf> {
    let complete = |address: Address| address.completed(|variable| std::env::var(variable).ok());
    spelled_by(path, complete)
}

/// The one spelling of a name.
fn as_said(path: &Path) -> io::Result<PathBuf> {
    spelled_by(path, Ok)
}

fn spelled_by(
    path: &Path,
    complete: impl Fn(Address) -> Result<Address, String>,
) -> io::Result<PathBuf> {
    let invalid = |why: String| io::Error::new(ErrorKind::InvalidInput, why);
    if PROVIDED.lock().contains_key(path) {
        return Ok(path.to_path_buf());
    }
    let name = path.to_str().ok_or_else(|| invalid("the name is no text".into()))?;
    if let Some(dir) = name.strip_prefix("file://") {
        if !dir.starts_with('/') || dir.contains(['?', '#']) {
            let why = "a directory is named by its whole path, as in file:///srv/pool";
            return Err(invalid(why.into()));
        }
        // Without double and last slashes.
        let dir: PathBuf = Path::new(dir).components().collect();
        return Ok(PathBuf::from(format!("file://{}", dir.display())));
    }
    let address = Address::parse(name).and_then(complete);
    address.map(|address| PathBuf::from(address.name())).map_err(invalid)
}

/// Whether a process writes to the device at a path.
pub fn is_held(path: &Path) -> bool {
    directory(path)
        .and_then(|dir| File::open(dir).ok())
        .is_some_and(|dir| backing::lock(&dir, false).is_err())
}

/// The lock of a writer.
///
/// # Errors
/// `ResourceBusy` if another process has it; it cannot be opened.
pub(super) fn lock(path: &Path) -> io::Result<Option<File>> {
    let Some(dir) = directory(path) else { return Ok(None) };
    let held = File::open(dir)?;
    backing::lock(&held, true)?;
    Ok(Some(held))
}

/// How stores are used, as the tunables of this process say.
fn usual() -> Tunables {
    Tunables {
        object_bytes: tunables::OBJECT_BYTES.get(),
        deadline: Duration::from_millis(tunables::OBJECT_DEADLINE.get()),
        budget: Duration::from_millis(tunables::OBJECT_BUDGET.get()),
        grace: Duration::from_secs(tunables::OBJECT_GRACE.get()),
        live_percent: tunables::OBJECT_LIVE_PERCENT.get(),
        ahead_max: tunables::OBJECT_AHEAD.get(),
        ..Tunables::default()
    }
}

/// What a file is, however it is called.
fn identity(file: &std::fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// A directory that is open.
pub(super) struct Directory {
    path: PathBuf,
    file: File,
    is: (u64, u64),
}

impl Directory {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let about = file.metadata()?;
        if !about.is_dir() {
            return Err(ErrorKind::NotADirectory.into());
        }
        let opened = Self { path: path.to_path_buf(), file, is: identity(&about) };
        let again = Path::new(&opened.alias()).metadata();
        if !again.is_ok_and(|again| identity(&again) == opened.is) {
            let why = "a directory with objects needs /proc, where it is reached while it is open";
            return Err(io::Error::new(ErrorKind::Unsupported, why));
        }
        Ok(opened)
    }

    /// A path that leads to it whatever has its name.
    fn alias(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }
}

/// Whether a directory is a pool's.
fn has_root(dir: &Path) -> bool {
    let root = std::fs::read(dir.join("commits").join(format!("{:016x}", 0)));
    root.is_ok_and(|root| frame::ends(Kind::Root, &root))
}

/// Where the store of a device is.
pub(super) struct Place {
    pub store: Arc<dyn ObjectStore>,
    pub tunables: Tunables,
    /// The sizes that the device begins and ends with.
    pub sizes: (u64, u64),
    pub directory: Option<Arc<Directory>>,
    /// What a store by network is called in messages.
    name: Option<String>,
}

impl Place {
    /// Of a path.
    ///
    /// # Errors
    /// There is no such place; it is of a kind that is not supported.
    pub fn find(path: &Path) -> io::Result<Self> {
        if let Some(Provided { store, tunables, sizes }) = PROVIDED.lock().get(path).cloned() {
            return Ok(Self { store, tunables, sizes, directory: None, name: None });
        }
        let name = as_said(path)?;
        let Some(dir) = directory(&name) else { return Self::by_network(&name) };
        let dir = Directory::open(dir)?;
        let store = LocalFileSystem::new().with_fsync(true);
        let store = Arc::new(PrefixStore::new(store, dir.alias()));
        let (tunables, sizes) = (usual(), (FIRST_SIZE, LAST_SIZE));
        Ok(Self { store, tunables, sizes, directory: Some(Arc::new(dir)), name: None })
    }

    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    fn by_network(name: &Path) -> io::Result<Self> {
        let invalid = |why| io::Error::new(ErrorKind::InvalidInput, why);
        let name = name.display().to_string();
        let address = Address::parse(&name).map_err(invalid)?;
        let environment = cenote_objects::Environment::of_process();
        let store = cenote_objects::connect(&address, &environment).map_err(invalid)?;
        let (tunables, sizes) = (usual(), (FIRST_SIZE, LAST_SIZE));
        Ok(Self { store, tunables, sizes, directory: None, name: Some(name) })
    }

    #[cfg(not(any(feature = "s3", feature = "gcs", feature = "azure")))]
    fn by_network(name: &Path) -> io::Result<Self> {
        let why = format!("{}: this program was built without stores by network", name.display());
        Err(io::Error::new(ErrorKind::Unsupported, why))
    }

    /// Whether the path still leads to it.
    pub fn is_there(&self) -> bool {
        self.directory
            .as_ref()
            .is_none_or(|dir| dir.path.metadata().is_ok_and(|now| identity(&now) == dir.is))
    }

    /// The place around this one that a pool has for itself, if there is one. Where this host may not look there is none.
    ///
    /// # Errors
    /// The store fails.
    pub async fn outer_pool(&self) -> Result<Option<String>, cenote_objects::Error> {
        if let Some(dir) = &self.directory {
            let around = dir.path.ancestors().skip(1).find(|around| has_root(around));
            return Ok(around.map(|around| around.display().to_string()));
        }
        self.outer_prefix().await
    }

    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    async fn outer_prefix(&self) -> Result<Option<String>, cenote_objects::Error> {
        let Some(Ok(address)) = self.name.as_deref().map(Address::parse) else { return Ok(None) };
        let environment = cenote_objects::Environment::of_process();
        for outer in address.outer() {
            let refused = cenote_objects::Error::Refused;
            let store = cenote_objects::connect(&outer, &environment).map_err(refused)?;
            let prefix = object_store::path::Path::default();
            match cenote_objects::has_root(store, prefix, self.tunables.clone()).await {
                Ok(true) => return Ok(Some(outer.name())),
                Err(error) if error.cause() != Some(Cause::Denied) => return Err(error),
                _ => {}
            }
        }
        Ok(None)
    }

    #[cfg(not(any(feature = "s3", feature = "gcs", feature = "azure")))]
    async fn outer_prefix(&self) -> Result<Option<String>, cenote_objects::Error> {
        Ok(None)
    }

    /// Whether it was deleted.
    pub fn is_deleted(&self) -> bool {
        let dir = self.directory.as_ref();
        dir.is_some_and(|dir| dir.file.metadata().is_ok_and(|now| now.nlink() == 0))
    }

    /// Errors where the path does not lead to it any more.
    pub fn check(&self) -> io::Result<()> {
        match &self.directory {
            Some(dir) if !self.is_there() => Err(io::Error::other(format!(
                "{} is another directory than the one that was opened, or gone: it was unmounted, renamed or deleted",
                dir.path.display()
            ))),
            _ => Ok(()),
        }
    }

    /// Whether nothing is in it, as far as that can be told without a listing.
    pub fn is_empty(&self) -> bool {
        let listed = |dir: &Arc<Directory>| std::fs::read_dir(dir.alias());
        let listed = self.directory.as_ref().map(listed);
        listed.is_none_or(|listed| listed.is_ok_and(|mut listed| listed.next().is_none()))
    }

    /// Removes the folders that a pool's objects were in, as far as they are empty.
    pub fn remove_folders(&self) {
        let Some(dir) = &self.directory else { return };
        let ours = |name: &str| {
            let is_epoch = name.len() == 6 && name.bytes().all(|b| b.is_ascii_hexdigit());
            is_epoch || name == "commits"
        };
        for entry in std::fs::read_dir(dir.alias()).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(ours) {
                // What is not empty, or no folder, stays.
                let _ = std::fs::remove_dir(entry.path());
            }
        }
    }

    /// Has it be for the owner alone: what is in it belongs to the pool's users.
    pub fn close_to_others(&self) -> io::Result<()> {
        let Some(dir) = &self.directory else { return Ok(()) };
        let mode = dir.file.metadata()?.permissions().mode();
        if mode & 0o077 == 0 {
            return Ok(());
        }
        dir.file.set_permissions(Permissions::from_mode(mode & 0o7700))
    }

    /// A text of the store with the names that the user knows.
    pub fn named(&self, text: String) -> String {
        match &self.name {
            Some(name) => format!("{name}: {text}"),
            None => self.known(text),
        }
    }

    /// The same, behind the device's own name.
    pub fn known(&self, text: String) -> String {
        match &self.directory {
            Some(dir) => text.replace(&dir.alias(), &dir.path.display().to_string()),
            None => text,
        }
    }
}
