//! What can go wrong.

use cenote_pool::ImportError;
use std::io;

/// Why something could not be opened or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool cannot be opened: not found, devices missing, features not understood, …
    #[error(transparent)]
    Import(#[from] ImportError),
    /// There is no dataset of this name.
    #[error("dataset does not exist: {0}")]
    NoDataset(String),
    /// It is not what was asked for: a volume's files, a file system's size.
    #[error("{name}: not a {wanted}")]
    Kind {
        /// Name of the dataset.
        name: String,
        /// What was asked for.
        wanted: &'static str,
    },
    /// Metadata of the pool cannot be read.
    #[error(transparent)]
    Metadata(#[from] cenote_dmu::Error),
    /// A file or directory is not there, or cannot be read.
    #[error(transparent)]
    File(#[from] cenote_zpl::Error),
    /// Reading through `std::io` failed; the cause is an `Error` again.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl From<Error> for io::Error {
    fn from(e: Error) -> io::Error {
        match e {
            Error::Io(e) => e,
            Error::File(e) => {
                let kind = io::Error::from_raw_os_error(e.errno()).kind();
                io::Error::new(kind, Error::File(e))
            }
            e @ (Error::NoDataset(_) | Error::Import(ImportError::NotFound(_))) => {
                io::Error::new(io::ErrorKind::NotFound, e)
            }
            e => io::Error::other(e),
        }
    }
}
