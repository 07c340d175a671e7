//! What can go wrong.

use cenote_engine::EngineError;
use cenote_engine::change::ChangeError;
use cenote_engine::create::CreateError;
use cenote_pool::ImportError;
use std::io;

/// Why something could not be opened, read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool cannot be opened: not found, devices missing, features not understood, …
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The pool cannot be created.
    #[error(transparent)]
    Create(#[from] CreateError),
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
    /// A dataset was not created, destroyed or changed.
    #[error("{name}: {error}")]
    Change {
        /// Name of the dataset, or of the dataset and the property.
        name: String,
        /// Why.
        error: ChangeError,
    },
    /// The dataset is open.
    #[error("{0}: dataset is busy")]
    Busy(String),
    /// The pool was opened for reading only.
    #[error("pool is read-only")]
    ReadOnly,
    /// The pool cannot be written any more, or has something that cannot be written.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Metadata of the pool cannot be read.
    #[error(transparent)]
    Metadata(#[from] cenote_dmu::Error),
    /// A file or directory is not there, or cannot be read or changed.
    #[error(transparent)]
    File(#[from] cenote_zpl::Error),
    /// Reading or writing through `std::io` failed; the cause is an `Error` again.
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
            e @ Error::ReadOnly => io::Error::new(io::ErrorKind::ReadOnlyFilesystem, e),
            e @ Error::Busy(_) => io::Error::new(io::ErrorKind::ResourceBusy, e),
            e => io::Error::other(e),
        }
    }
}
