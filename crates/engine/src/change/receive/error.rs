//! Why a stream was not received.
//!
//! The texts are OpenZFS's where it has one, as users and scripts know them. Many reasons are refusals that the sync task of a receive makes
//! (`dmu_recv_begin_check`); the number of OpenZFS's error stands with each. Others are about the bytes: the input ends early
//! (`Truncated`), they are not what was sent (`Checksum`), a record makes no sense (`Stream`). Errors of the floors below become one of
//! these: bytes that cannot be decoded are the stream's fault, a pool that cannot be read or written is not.

use crate::EngineError;
use crate::change::ChangeError;
use cenote_dmu::write::WriteError;
use cenote_dsl::crypt::keydata::KeyDataError;
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
    /// A raw stream does not go on in a dataset that is not encrypted.
    #[error("cannot perform raw receive on top of existing unencrypted dataset")]
    RawOnPlain,
    /// What is encrypted cannot take the place of what is not, and the other way round.
    #[error(
        "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an unencrypted one with an \
         encrypted one"
    )]
    ReplacesEncrypted,
    /// What is received is encrypted with a key that is not loaded (`EACCES`).
    #[error("inherited key must be loaded")]
    KeyNotLoaded,
    /// A raw stream goes on in a dataset with another key (`EACCES`).
    #[error("encryption key does not match existing key")]
    OtherKey,
    /// The snapshot that a raw stream starts from was received in another way (`ZFS_ERR_FROM_IVSET_GUID_MISMATCH`).
    #[error(
        "IV set guid mismatch. See the 'zfs receive' man page section\n discussing the limitations of raw encrypted send \
         streams."
    )]
    OtherVectors,
    /// The sender has wrapped the key anew, and it cannot be told whether the key of the encryption root here opens that.
    #[error(
        "the key was changed at the sender, and here it is that of another encryption root: load that root's key, or \
         receive a stream with properties (-R, -p)"
    )]
    OtherWrapping,
    /// It is of a time before it could be told (`ZFS_ERR_FROM_IVSET_GUID_MISSING`).
    #[error(
        "IV set guid missing. See errata 4 at https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-ER."
    )]
    NoVectors,
    /// A raw stream does not say which spill blocks stay (`ZFS_ERR_SPILL_BLOCK_FLAG_MISSING`).
    #[error(
        "Spill block flag missing for raw send.\nThe zfs software on the sending system must be updated."
    )]
    NoSpills,
    /// Blocks that lie in their pointers cannot be received into an encrypted dataset.
    #[error("incompatible embedded data stream feature with encrypted receive.")]
    Embedded,
    /// The keys that a raw stream brings cannot be taken.
    #[error("invalid backup stream ({0})")]
    Keys(KeyDataError),
    /// The raw stream is of a form that cannot be received (`ZFS_ERR_CRYPTO_NOTSUP`).
    #[error("stream uses crypto parameters not compatible with this pool")]
    CryptoUnsupported,
    /// The dataset has large blocks, which the stream would cut.
    #[error("incremental send stream requires -L (--large-block), to match previous receive.")]
    LargeBlocks,
    /// A corrective receive is into no snapshot that is there.
    #[error("corrective recv must specify an existing snapshot to heal")]
    NoSnapshot,
    /// A corrective receive has a stream of another snapshot.
    #[error("local snapshot doesn't match the snapshot in the provided stream")]
    OtherSnapshot,
    /// A corrective receive has to encrypt (`EACCES`).
    #[error("key must be loaded to do a non-raw corrective recv on an encrypted dataset.")]
    KeyToHeal,
    /// The snapshot is not encrypted, and the stream has encrypted blocks (`ENOTSUP`).
    #[error("stream is not compatible with the data in the pool.")]
    Incompatible,
    /// Blocks of the stream cannot be read here, and it has nothing that they are (`ECKSUM`).
    #[error(
        "corrective receive was not able to reconstruct the data needed for healing.\n{blocks} block(s) stay damaged: see \
         'zpool status -v'.{}",
        in_dispute(*disputed)
    )]
    NotHealed {
        /// How many.
        blocks: u64,
        /// Of how many of them copies differ, and the key is not loaded that tells which is right.
        disputed: u64,
    },
    /// What came is more than the dataset's refquota (`EDQUOT`).
    #[error("space quota exceeded.")]
    Quota,
    /// What failed is not about the stream.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

fn in_dispute(blocks: u64) -> String {
    match blocks {
        0 => String::new(),
        _ => format!("\nOf {blocks} of them copies differ: load the key, and heal again."),
    }
}

/// A result of receiving.
pub type Result<T> = std::result::Result<T, ReceiveError>;

impl From<KeyDataError> for ReceiveError {
    fn from(e: KeyDataError) -> ReceiveError {
        match e {
            KeyDataError::Unsupported => ReceiveError::CryptoUnsupported,
            e => ReceiveError::Keys(e),
        }
    }
}

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
