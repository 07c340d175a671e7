//! Why something was not done to a pool.
//!
//! Invariant: what was refused, what could not be read, and that nothing can be written any more are told apart.

use cenote_dmu::write::WriteError;
use cenote_dsl::write::DslWriteError;

/// Why something was not done to a pool.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The change was refused.
    #[error(transparent)]
    Dsl(#[from] DslWriteError),
    /// What is there could not be read.
    #[error(transparent)]
    Read(#[from] cenote_dmu::Error),
    /// The pool or dataset has something that this software cannot write.
    #[error("{0} is not supported for writing")]
    Unsupported(String),
    /// A device has not answered a request to trim or initialize it.
    #[error("a device that is being trimmed or initialized does not answer")]
    Unanswered,
    /// Nothing can be written any more.
    #[error("pool I/O is currently suspended: {0}")]
    Suspended(String),
}

impl From<WriteError> for EngineError {
    fn from(e: WriteError) -> EngineError {
        match e {
            WriteError::Suspended(why) => EngineError::Suspended(why),
            WriteError::Interrupted => EngineError::Suspended(WriteError::Interrupted.to_string()),
            other => EngineError::Dsl(other.into()),
        }
    }
}
