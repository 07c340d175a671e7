//! What becomes of an object where a file system has other contents.

use crate::node::generation;
use cenote_zpl::{Error, FileSystem};
use rustix::io::Errno;

/// What an object is in the coming contents.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// A file with a name, of this generation.
    Named(u64),
    /// No file, or one without a name.
    Gone,
}

impl Fate {
    /// That of an object.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn of(fs: &FileSystem, object: u64) -> Result<Fate, Error> {
        match fs.attr(object) {
            Ok(attr) if attr.nlink > 0 => Ok(Fate::Named(generation(&attr))),
            Ok(_) => Ok(Fate::Gone),
            Err(e) if is_absent(&e) => Ok(Fate::Gone),
            Err(e) => Err(e),
        }
    }
}

/// Whether an object is a file of a generation that has a name.
///
/// # Errors
/// It cannot be read.
pub(crate) fn stands(fs: &FileSystem, object: u64, told: u64) -> Result<bool, Error> {
    Ok(Fate::of(fs, object)? == Fate::Named(told))
}

/// Whether an error says that there is no such object.
pub(crate) fn is_absent(e: &Error) -> bool {
    e.errno() == Errno::NOENT.raw_os_error()
}
