//! Errors of the POSIX floor and the numbers that system calls return for them.

use cenote_dmu::write::WriteError;
use cenote_format::encode::EncodeError;
use cenote_store::BlockError;
use std::sync::Arc;

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
    /// Changing objects failed.
    #[error(transparent)]
    Write(Arc<WriteError>),
    /// There is something of that name.
    #[error("file exists: {0}")]
    Exists(String),
    /// A directory with entries.
    #[error("directory not empty: {0}")]
    NotEmpty(String),
    /// A name of more than 255 bytes, or a symbolic link's target that is too long.
    #[error("name too long: {0}")]
    NameTooLong(String),
    /// The file system cannot be changed.
    #[error("read-only file system")]
    ReadOnly,
    /// A file's flags forbid the change.
    #[error("operation not permitted: {0}")]
    NotPermitted(String),
    /// A file or value would be too large.
    #[error("too large: {0}")]
    TooLarge(String),
    /// The file would leave its project.
    #[error("in another project: {0}")]
    CrossesProject(String),
    /// There is no extended attribute of that name.
    #[error("no such attribute: {0}")]
    NoAttribute(String),
    /// The kind of file cannot have this.
    #[error("not allowed: {0}")]
    Denied(String),
    /// A file that was known by this number is not in the file system any more.
    #[error("stale number of a file: {0:#x}")]
    Stale(u64),
}

impl From<WriteError> for Error {
    fn from(e: WriteError) -> Error {
        match e {
            WriteError::Read(e) => e.into(),
            WriteError::ReadOnly => Error::ReadOnly,
            e => Error::Write(Arc::new(e)),
        }
    }
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
        const EPERM: i32 = 1;
        const ENOENT: i32 = 2;
        const EIO: i32 = 5;
        const EACCES: i32 = 13;
        const EEXIST: i32 = 17;
        const EXDEV: i32 = 18;
        const ENOTDIR: i32 = 20;
        const EISDIR: i32 = 21;
        const EINVAL: i32 = 22;
        const EFBIG: i32 = 27;
        const ENOSPC: i32 = 28;
        const EROFS: i32 = 30;
        const ENAMETOOLONG: i32 = 36;
        const ENOTEMPTY: i32 = 39;
        const ELOOP: i32 = 40;
        const ENODATA: i32 = 61;
        const EILSEQ: i32 = 84;
        const EOPNOTSUPP: i32 = 95;
        const ESTALE: i32 = 116;
        const EINTR: i32 = 4;
        const EDQUOT: i32 = 122;
        match self {
            Error::Dmu(e) => match **e {
                cenote_dmu::Error::Block(BlockError::Encrypted { .. }) => EACCES,
                cenote_dmu::Error::NoObject { .. } => ENOENT,
                _ => EIO,
            },
            Error::NotFound(_) => ENOENT,
            Error::Stale(_) => ESTALE,
            Error::Corrupt(..) => EIO,
            Error::NotDir(_) => ENOTDIR,
            Error::IsDir(_) => EISDIR,
            Error::Loop(_) => ELOOP,
            Error::Unsupported(_) => EOPNOTSUPP,
            Error::Invalid(_) => EINVAL,
            Error::IllegalName(_) => EILSEQ,
            Error::Write(e) => match **e {
                WriteError::NoSpace | WriteError::NoSlots => ENOSPC,
                // A ZAP that has no place for a further name, as `zap_expand_leaf` has it.
                WriteError::Encode(EncodeError::Full { .. }) => ENOSPC,
                WriteError::Quota => EDQUOT,
                WriteError::Interrupted => EINTR,
                WriteError::ReadOnly => EROFS,
                _ => EIO,
            },
            Error::Exists(_) => EEXIST,
            Error::NotEmpty(_) => ENOTEMPTY,
            Error::NameTooLong(_) => ENAMETOOLONG,
            Error::ReadOnly => EROFS,
            Error::NotPermitted(_) => EPERM,
            Error::TooLarge(_) => EFBIG,
            Error::CrossesProject(_) => EXDEV,
            Error::NoAttribute(_) => ENODATA,
            Error::Denied(_) => EACCES,
        }
    }

    /// Whether it says that there is no such node.
    pub(crate) fn is_absence(&self) -> bool {
        match self {
            Error::NotFound(_) => true,
            Error::Dmu(e) => matches!(**e, cenote_dmu::Error::NoObject { .. }),
            _ => false,
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
