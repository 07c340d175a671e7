//! Why a change was not made: refused, unreadable or fatal.
//!
//! | kind | what | what follows |
//! |---|---|---|
//! | refused | arguments, a state, a quota, space | the user is told |
//! | [`Unreadable`] | bytes on devices cannot be read or make no sense | the user is told; the text names the block |
//! | [`Fatal`] | the transaction group cannot be written | the pool is suspended |
//!
//! Errors of the floor below are sorted once, here. No space and quotas are refusals. What the devices, a
//! suspension or a failed group bring about is fatal. All others mean that the MOS contradicts itself, and are
//! unreadable.
//!
//! Code that has changed something and cannot take it back turns unreadable into fatal
//! ([`DslWriteError::into_fatal`]).

use crate::zil::ZIL_LEVEL;
use cenote_dmu::Error;
use cenote_dmu::write::WriteError;
use cenote_format::DecodeError;
use cenote_format::encode::EncodeError;
use cenote_store::{BlockError, Bookmark};
use std::fmt::{Display, Formatter};

/// Why a change was not made. All but [`DslWriteError::Unreadable`] and [`DslWriteError::Fatal`] are
/// refusals.
#[derive(Debug, thiserror::Error)]
pub enum DslWriteError {
    /// A dataset, snapshot or property of that name is there already.
    #[error("dataset already exists")]
    Exists,
    /// There is no dataset, snapshot or property of that name.
    #[error("dataset does not exist")]
    NotFound,
    /// The dataset is in use.
    #[error("dataset is busy")]
    Busy,
    /// The dataset has child datasets.
    #[error("dataset has children")]
    HasChildren,
    /// The dataset has snapshots.
    #[error("dataset has snapshots")]
    HasSnapshots,
    /// The snapshot has dependent clones.
    #[error("snapshot has dependent clones")]
    HasClones,
    /// Users hold the snapshot.
    #[error("snapshot is held")]
    Held,
    /// There is not enough space.
    #[error("out of space")]
    NoSpace,
    /// A quota would be exceeded, or is less than what is used.
    #[error("out of quota")]
    Quota,
    /// A snapshot was taken in this transaction group already: to be tried in the next one.
    #[error("try again in the next transaction group")]
    Again,
    /// A name is too long.
    #[error("dataset name is too long")]
    TooLong,
    /// The change makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The pool or dataset uses something that cannot be changed by this software.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// What the change needs cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The transaction group cannot be written.
    #[error(transparent)]
    Fatal(#[from] Fatal),
}

impl DslWriteError {
    /// The same for a caller that cannot undo what was done: unreadable metadata is fatal then.
    pub fn into_fatal(self) -> DslWriteError {
        match self {
            DslWriteError::Unreadable(Unreadable(why)) => Fatal(why).into(),
            other => other,
        }
    }
}

/// Result of a change.
pub type Result<T> = std::result::Result<T, DslWriteError>;

/// Bytes on the devices that cannot be read, or that make no sense. The text names the object.
#[derive(Debug)]
pub struct Unreadable(WriteError);

/// The transaction group that is being written cannot be written.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Fatal(WriteError);

impl std::error::Error for Unreadable {}

impl Unreadable {
    /// Whether a device failed: what is there may be right.
    pub fn is_of_device(&self) -> bool {
        matches!(&self.0, WriteError::Read(Error::Block(BlockError::Vdev { .. })))
    }

    /// The level of the block that cannot be read; 0 where it is no block.
    pub(super) fn level(&self) -> i64 {
        match &self.0 {
            WriteError::Read(Error::Block(block)) => block.bookmark().level,
            _ => 0,
        }
    }
}

impl Display for Unreadable {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let WriteError::Read(error) = &self.0 else {
            return write!(f, "damaged metadata: {}", self.0);
        };
        match error {
            Error::Block(block) => {
                write!(f, "{} cannot be read: ", Whose(block.bookmark()))?;
                match block {
                    BlockError::Checksum { .. } => f.write_str("checksum mismatch on every copy"),
                    BlockError::Vdev { source, .. } => write!(f, "{source}"),
                    BlockError::Decode { source, .. } => write!(f, "{source}"),
                    other => write!(f, "{other}"),
                }
            }
            other => write!(f, "damaged metadata: {other}"),
        }
    }
}

/// A block, in words.
struct Whose(Bookmark);

impl Display for Whose {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Bookmark { objset, object, level, blkid } = self.0;
        match (objset, level) {
            (0, -1) => write!(f, "the pool's metadata"),
            (_, ZIL_LEVEL) => write!(f, "the intent log of dataset {objset:#x}"),
            (_, -1) => write!(f, "the root block of dataset {objset:#x}"),
            (0, _) => write!(f, "object {object:#x} of the pool's metadata"),
            _ => write!(f, "object {object:#x} of dataset {objset:#x}"),
        }?;
        if level >= 0 { write!(f, " (level {level}, block {blkid})") } else { Ok(()) }
    }
}

impl From<WriteError> for DslWriteError {
    fn from(e: WriteError) -> DslWriteError {
        match e {
            WriteError::NoSpace => DslWriteError::NoSpace,
            WriteError::Quota => DslWriteError::Quota,
            WriteError::Sink(_)
            | WriteError::Suspended(_)
            | WriteError::Interrupted
            | WriteError::ReadOnly
            | WriteError::Failed => Fatal(e).into(),
            // The MOS contradicts itself where a change meets one of the others.
            WriteError::Read(_)
            | WriteError::Encode(_)
            | WriteError::NoSlots
            | WriteError::Taken(_)
            | WriteError::Invalid { .. }
            | WriteError::Exists(_)
            | WriteError::NoEntry(_) => Unreadable(e).into(),
        }
    }
}

impl From<DslWriteError> for WriteError {
    fn from(e: DslWriteError) -> WriteError {
        match e {
            DslWriteError::Unreadable(Unreadable(e)) | DslWriteError::Fatal(Fatal(e)) => e,
            DslWriteError::NoSpace => WriteError::NoSpace,
            DslWriteError::Quota => WriteError::Quota,
            refused => WriteError::Invalid { object: 0, why: refused.to_string() },
        }
    }
}

impl From<Error> for DslWriteError {
    fn from(e: Error) -> DslWriteError {
        WriteError::from(e).into()
    }
}

impl From<DecodeError> for DslWriteError {
    fn from(e: DecodeError) -> DslWriteError {
        WriteError::from(e).into()
    }
}

impl From<EncodeError> for DslWriteError {
    fn from(e: EncodeError) -> DslWriteError {
        WriteError::from(e).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_format::blkptr::BlockPointer;

    #[test]
    fn what_cannot_be_read_is_named() {
        let bp = Box::new(BlockPointer::HOLE);
        let text = |objset, level| {
            let at = Bookmark { objset, object: 34, level, blkid: 2 };
            DslWriteError::from(Error::from(BlockError::Checksum { at, bp: bp.clone() }))
                .to_string()
        };
        assert_eq!(
            text(0, 1),
            "object 0x22 of the pool's metadata (level 1, block 2) cannot be read: \
             checksum mismatch on every copy"
        );
        assert_eq!(
            text(54, -1),
            "the root block of dataset 0x36 cannot be read: checksum mismatch on every copy"
        );
        let named = DslWriteError::from(WriteError::Invalid { object: 7, why: "is odd".into() });
        assert_eq!(named.to_string(), "damaged metadata: object 7: is odd");
    }

    #[test]
    fn only_a_failed_write_is_fatal() {
        let fatal = |e: WriteError| matches!(DslWriteError::from(e), DslWriteError::Fatal(_));
        assert!(fatal(WriteError::Sink("no device".into())) && fatal(WriteError::Failed));
        assert!(!fatal(WriteError::NoSpace) && !fatal(WriteError::Exists(3)));
        let absent = Error::NoObject { objset: 0, object: 5 };
        assert!(!fatal(WriteError::Read(absent)));
    }
}
