//! The value of the property `cachefile`, and where the default file is.

use crate::socket::Place;
use cenote_pool::cachefile::CacheFile;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The value of `cachefile` of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Setting {
    /// The default file.
    #[default]
    Default,
    /// No file.
    None,
    /// This file.
    At(PathBuf),
}

impl Setting {
    /// From a value of the property, which was checked before.
    ///
    /// # Errors
    /// The file is OpenZFS's; the error is what comes after `cannot …: `.
    pub fn of(value: &str) -> Result<Setting, String> {
        let path = Path::new(value);
        match value {
            "" => return Ok(Setting::Default),
            "none" => return Ok(Setting::None),
            _ if default_path().as_deref() == Some(path) => return Ok(Setting::Default),
            _ => {}
        }
        let Ok(there) = CacheFile::read(path) else { return Ok(Setting::At(path.into())) };
        match there.entries().find(|entry| !entry.ours) {
            None => Ok(Setting::At(path.into())),
            Some(theirs) => Err(format!(
                "'{value}' is kept by OpenZFS: it has pool '{}'\n\
                 name another file, or have CENOTE_CACHEFILE name this one",
                theirs.name
            )),
        }
    }

    /// The file, if one is kept.
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Setting::Default => default_path(),
            Setting::None => None,
            Setting::At(path) => Some(path.clone()),
        }
    }
}

/// The default file; `None`: no file is kept, or its place is not known.
pub fn default_path() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|p| p.is_absolute());
    if let Some(named) = var("CENOTE_CACHEFILE") {
        return absolute(named);
    }
    if var("CENOTE_SOCKET").is_some() {
        return Some(Place::of_process().ok()?.cachefile());
    }
    if rustix::process::geteuid().is_root() {
        return Some("/var/lib/cenote/zpool.cache".into());
    }
    let state = var("XDG_STATE_HOME").and_then(absolute);
    let state = state.or_else(|| Some(PathBuf::from(var("HOME")?).join(".local/state")))?;
    Some(state.join("cenote/zpool.cache"))
}
