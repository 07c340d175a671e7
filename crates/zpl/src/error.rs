//! Errors of the POSIX floor and the numbers that system calls return for them.

use cenote_store::BlockError;

/// Errors of file systems and volumes; [`Error::errno`] gives what a system call returns.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Reading objects failed.
    #[error(transparent)]
    Dmu(Box<cenote_dmu::Error>),
    /// There is no such name (or object).
    #[error("no such file or directory: {0}")]
    NotFound(String),
    /// A path goes through something that is not a directory.
    #[error("not a directory: {0}")]
    NotDir(String),
    /// A directory where a file is needed.
    #[error("is a directory: {0}")]
    IsDir(String),
    /// An object's contents are not what the format allows.
    #[error("object {0}: {1}")]
    Corrupt(u64, String),
    /// Symbolic links lead to symbolic links without end.
    #[error("too many levels of symbolic links: {0}")]
    Loop(String),
    /// Something valid that this program cannot do, or that the dataset's properties forbid.
    #[error("{0}: not supported")]
    Unsupported(String),
    /// The request makes no sense for the kind of file.
    #[error("invalid argument: {0}")]
    Invalid(String),
    /// A name that is not UTF-8, in a file system that only has UTF-8 names.
    #[error("not UTF-8: {0}")]
    IllegalName(String),
}

impl From<cenote_dmu::Error> for Error {
    fn from(e: cenote_dmu::Error) -> Error {
        Error::Dmu(Box::new(e))
    }
}

/// Result of an operation on a file system or volume.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The Linux error number.
    pub fn errno(&self) -> i32 {
        const ENOENT: i32 = 2;
        const EIO: i32 = 5;
        const EACCES: i32 = 13;
        const ENOTDIR: i32 = 20;
        const EISDIR: i32 = 21;
        const EINVAL: i32 = 22;
        const ELOOP: i32 = 40;
        const EILSEQ: i32 = 84;
        const EOPNOTSUPP: i32 = 95;
        match self {
            Error::Dmu(e) => match **e {
                cenote_dmu::Error::Block(BlockError::Encrypted { .. }) => EACCES,
                cenote_dmu::Error::NoObject { .. } => ENOENT,
                _ => EIO,
            },
            Error::NotFound(_) => ENOENT,
            Error::Corrupt(..) => EIO,
            Error::NotDir(_) => ENOTDIR,
            Error::IsDir(_) => EISDIR,
            Error::Loop(_) => ELOOP,
            Error::Unsupported(_) => EOPNOTSUPP,
            Error::Invalid(_) => EINVAL,
            Error::IllegalName(_) => EILSEQ,
        }
    }

    /// A decoding error of `object`.
    pub(crate) fn decode(object: u64) -> impl Fn(cenote_format::DecodeError) -> Error {
        move |e| Error::Corrupt(object, e.to_string())
    }
}

/// A name for a message.
pub(crate) fn show(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
