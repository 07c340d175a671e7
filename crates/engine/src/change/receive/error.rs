//! Why a stream was not received.

use crate::EngineError;
use crate::change::ChangeError;
use cenote_dmu::write::WriteError;
use cenote_dsl::write::DslWriteError;
use cenote_format::DecodeError;
use std::io;

/// Why a stream was not received. The texts are OpenZFS's, where it has one that needs no name.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The input ends before the stream does.
    #[error("incomplete stream")]
    Truncated,
    /// Bytes of the stream are not those that were sent.
    #[error("checksum mismatch")]
    Checksum,
    /// The input cannot be read, or the receive was cancelled.
    #[error("{0}")]
    Input(io::Error),
    /// What comes is no stream.
    #[error("invalid stream ({0})")]
    NoStream(&'static str),
    /// A record makes no sense.
    #[error("invalid backup stream ({0})")]
    Stream(String),
    /// The stream has something that this software cannot receive.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// A feature that the stream needs is not enabled.
    #[error("pool must be upgraded to receive this stream.")]
    Upgrade,
    /// The stream starts from another snapshot than the newest one (`ENODEV`).
    #[error("most recent snapshot does not match incremental source")]
    NoMatch,
    /// The head was changed since the snapshot that the stream starts from (`ETXTBSY`).
    #[error("destination has been modified since most recent snapshot")]
    Modified,
    /// There is a dataset or a snapshot of this name (`EEXIST`).
    #[error("destination already exists")]
    Exists,
    /// There is nothing that the stream could be received on (`ENOENT`).
    #[error("dataset does not exist")]
    NoDataset,
    /// Another receive is under way, or was left to be resumed (`EBUSY`).
    #[error("dataset is busy")]
    Busy,
    /// A full stream that goes on into a dataset that is there needs to be forced.
    #[error("Resuming recv on existing dataset without force")]
    ResumeExists,
    /// The dataset has large blocks, which the stream would cut.
    #[error("incremental send stream requires -L (--large-block), to match previous receive.")]
    LargeBlocks,
    /// What came is more than the dataset's refquota (`EDQUOT`).
    #[error("space quota exceeded.")]
    Quota,
    /// What failed is not about the stream.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

/// A result of receiving.
pub type Result<T> = std::result::Result<T, ReceiveError>;

impl From<DecodeError> for ReceiveError {
    fn from(e: DecodeError) -> ReceiveError {
        match e {
            DecodeError::Checksum { .. } => ReceiveError::Checksum,
            DecodeError::Unsupported { name, .. } => ReceiveError::Unsupported(name),
            DecodeError::Invalid { why, .. } => ReceiveError::Stream(why),
            e => ReceiveError::Stream(e.to_string()),
        }
    }
}

impl From<DslWriteError> for ReceiveError {
    fn from(e: DslWriteError) -> ReceiveError {
        match e {
            DslWriteError::Exists => ReceiveError::Exists,
            DslWriteError::NotFound => ReceiveError::NoDataset,
            DslWriteError::Busy | DslWriteError::Again | DslWriteError::Held => ReceiveError::Busy,
            DslWriteError::HasClones => ReceiveError::Exists,
            DslWriteError::Quota => ReceiveError::Quota,
            e => ChangeError::from(e).into(),
        }
    }
}

impl From<WriteError> for ReceiveError {
    fn from(e: WriteError) -> ReceiveError {
        match e {
            // What the stream says of an object cannot be.
            WriteError::Invalid { object, why } => {
                ReceiveError::Stream(format!("object {object}: {why}"))
            }
            WriteError::Taken(object) => {
                ReceiveError::Stream(format!("object {object} is where another one is"))
            }
            WriteError::Encode(e) => ReceiveError::Stream(e.to_string()),
            e => ChangeError::from(e).into(),
        }
    }
}

impl From<EngineError> for ReceiveError {
    fn from(e: EngineError) -> ReceiveError {
        match e {
            EngineError::Dsl(e) => e.into(),
            e => ChangeError::from(e).into(),
        }
    }
}

impl From<cenote_dmu::Error> for ReceiveError {
    fn from(e: cenote_dmu::Error) -> ReceiveError {
        ChangeError::from(e).into()
    }
}
