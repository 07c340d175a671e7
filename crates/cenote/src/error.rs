//! What can go wrong.

use cenote_admin::ErrorKind;
use cenote_dsl::crypt::KeyError;
use cenote_engine::EngineError;
use cenote_engine::ScanError;
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
    /// An operation of administration was not done: something is in the way, a stream does not fit, …
    #[error(transparent)]
    Admin(cenote_admin::Error),
    /// A key of an encrypted dataset is not loaded or unloaded.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A property has a value that is not of the type that was asked for.
    #[error("{property}: unexpected value '{text}'")]
    Value {
        /// The property.
        property: String,
        /// Its value.
        text: String,
    },
    /// A scrub was not begun, paused or stopped.
    #[error(transparent)]
    Scan(ScanError),
    /// A device did not join or leave, or is not there.
    #[error("{name}: {why}")]
    Device {
        /// The device, as the caller named it.
        name: String,
        /// Why.
        why: String,
    },
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

impl Error {
    /// What kind of reason it is, for programs that go on in different ways.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = cenote::Pool::create_in_file(dir.path().join("disk"), "tank", 128 << 20)?;
    /// use cenote::ErrorKind;
    ///
    /// assert_eq!(pool.dataset("tank/no").err().unwrap().kind(), ErrorKind::NotFound);
    /// pool.create_filesystem("tank/a", &[])?;
    /// assert_eq!(pool.create_filesystem("tank/a", &[]).err().unwrap().kind(), ErrorKind::Exists);
    /// # Ok::<(), cenote::Error>(())
    /// ```
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Import(ImportError::NotFound(_)) | Error::NoDataset(_) => ErrorKind::NotFound,
            Error::Import(_) | Error::Metadata(_) | Error::Engine(_) => ErrorKind::Pool,
            Error::Create(_) | Error::Kind { .. } | Error::Value { .. } => ErrorKind::Invalid,
            Error::Change { error, .. } => ErrorKind::from(error),
            Error::Busy(_) | Error::Scan(_) => ErrorKind::Busy,
            Error::Device { .. } => ErrorKind::Invalid,
            Error::Admin(e) => e.kind(),
            Error::Key(e) => crate::key::kind(e),
            Error::ReadOnly => ErrorKind::ReadOnly,
            Error::File(_) | Error::Io(_) => ErrorKind::Io,
        }
    }

    /// The datasets that are in the way of an operation ([`ErrorKind::Dependents`]), by name.
    pub fn in_the_way(&self) -> &[String] {
        match self {
            Error::Admin(e) => e.names(),
            _ => &[],
        }
    }
}

impl From<cenote_admin::Error> for Error {
    fn from(e: cenote_admin::Error) -> Error {
        e.into_io().map_or_else(Error::Admin, Error::Io)
    }
}

impl From<ScanError> for Error {
    fn from(e: ScanError) -> Error {
        match e {
            ScanError::Engine(e) => Error::Engine(e),
            e => Error::Scan(e),
        }
    }
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
