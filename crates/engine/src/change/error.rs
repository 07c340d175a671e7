//! Why a change to datasets was refused, in the words of OpenZFS.

use crate::EngineError;
use cenote_dmu::write::WriteError;
use cenote_dsl::write::DslWriteError;

/// A property that could not be set.
#[derive(Debug)]
pub struct Failed {
    /// Its name.
    pub name: String,
    /// Why.
    pub error: ChangeError,
}

/// Why a change was refused or failed. The text is what OpenZFS's tools say after
/// `cannot create 'tank/a': ` and the like.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The name cannot be.
    #[error("{0}")]
    Name(String),
    /// The pool is not imported.
    #[error("no such pool '{0}'")]
    NoPool(String),
    /// There is nothing for it to be in.
    #[error("parent does not exist")]
    NoParent,
    /// It cannot be in a volume.
    #[error("parent is not a filesystem")]
    ParentKind,
    /// There is a dataset of that name.
    #[error("dataset already exists")]
    Exists,
    /// It does not exist.
    #[error("dataset does not exist")]
    NotFound,
    /// It is in use.
    #[error("dataset is busy")]
    Busy,
    /// The snapshot has clones.
    #[error("snapshot is cloned")]
    Cloned,
    /// Users hold the snapshot of this name.
    #[error("it's being held. Run 'zfs holds -r {0}' to see holders.")]
    Held(String),
    /// It has children.
    #[error("{0} has children")]
    HasChildren(&'static str),
    /// The pool or a quota is full.
    #[error("out of space")]
    NoSpace,
    /// It would use up what it takes to discard the pool's checkpoint.
    #[error("out of space: the checkpoint gives nothing back; 'zpool checkpoint -d' discards it")]
    Kept,
    /// A quota is less than what is there.
    #[error("size is less than current used or reserved space")]
    QuotaTooSmall,
    /// A reservation is more than there is.
    #[error("size is greater than available space")]
    ReservationTooLarge,
    /// A name of what is below would get too long.
    #[error("dataset name is too long")]
    TooLong,
    /// A property, or its value, is not right.
    #[error("{0}")]
    Property(String),
    /// A value needs a feature that is not enabled.
    #[error("pool and or dataset must be upgraded to set this property or value")]
    NeedsUpgrade,
    /// The pool's version does not have it.
    #[error("pool must be upgraded to support this operation")]
    PoolTooOld,
    /// Two datasets or pools are involved where one should be.
    #[error("{0}")]
    Crosses(&'static str),
    /// It is nothing that this can be done to.
    #[error("operation not applicable to datasets of this type")]
    Kind,
    /// The user may not do it.
    #[error("permission denied")]
    Denied,
    /// In this pool only its owner may do anything.
    #[error("delegated administration is disabled on pool")]
    NoDelegation,
    /// Its `readonly` property is on.
    #[error("dataset is read-only")]
    ReadOnlyDataset,
    /// Nothing can be written to the pool.
    #[error("pool is read-only")]
    ReadOnly,
    /// This software cannot do it.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// Nothing can be written any more.
    #[error("pool I/O is currently suspended")]
    Suspended,
    /// The pool's metadata cannot be read or changed.
    #[error("I/O error: {0}")]
    Io(String),
}

/// A result of a change.
pub type Result<T> = std::result::Result<T, ChangeError>;

impl From<DslWriteError> for ChangeError {
    fn from(e: DslWriteError) -> ChangeError {
        match e {
            DslWriteError::Exists => ChangeError::Exists,
            DslWriteError::NotFound => ChangeError::NotFound,
            DslWriteError::Busy | DslWriteError::HasSnapshots | DslWriteError::Again => {
                ChangeError::Busy
            }
            DslWriteError::HasChildren => ChangeError::HasChildren("filesystem"),
            DslWriteError::HasClones => ChangeError::Cloned,
            DslWriteError::Held => ChangeError::Held(String::new()),
            DslWriteError::NoSpace | DslWriteError::Quota => ChangeError::NoSpace,
            DslWriteError::TooLong => ChangeError::TooLong,
            DslWriteError::Invalid(why) => ChangeError::Property(why),
            DslWriteError::Unsupported(what) => ChangeError::Unsupported(what),
            DslWriteError::Unreadable(why) => ChangeError::Io(why.to_string()),
            DslWriteError::Fatal(_) => ChangeError::Suspended,
        }
    }
}

impl From<WriteError> for ChangeError {
    fn from(e: WriteError) -> ChangeError {
        match e {
            WriteError::NoSpace | WriteError::Quota => ChangeError::NoSpace,
            WriteError::ReadOnly => ChangeError::ReadOnly,
            WriteError::Suspended(_) | WriteError::Interrupted => ChangeError::Suspended,
            e => ChangeError::Io(DslWriteError::from(e).to_string()),
        }
    }
}

impl From<EngineError> for ChangeError {
    fn from(e: EngineError) -> ChangeError {
        match e {
            EngineError::Dsl(e) => e.into(),
            EngineError::Read(e) => e.into(),
            EngineError::Unsupported(what) => ChangeError::Unsupported(what),
            EngineError::Unanswered => ChangeError::Io(e.to_string()),
            EngineError::Suspended(_) => ChangeError::Suspended,
        }
    }
}

impl From<cenote_dmu::Error> for ChangeError {
    fn from(e: cenote_dmu::Error) -> ChangeError {
        DslWriteError::from(e).into()
    }
}
