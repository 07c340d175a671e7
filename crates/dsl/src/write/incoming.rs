//! What a stream that is received says of the dataset that it makes (`drc_drrb`, `drc_raw`).
//!
//! Invariant: nothing of it changes from the begin of a receive to its end.

use crate::crypt::Keystore;
use crate::crypt::keydata::KeyData;
use std::sync::Arc;

/// What the dataset is made for.
#[derive(Clone, Debug)]
pub struct Incoming {
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Creation of the snapshot, in seconds since 1970.
    pub creation_time: u64,
    /// Names compare without regard to case.
    pub ignores_case: bool,
    /// Guids of features of datasets that the stream calls for.
    pub features: Vec<&'static str>,
    /// Guids of the snapshots that the stream is redacted by; `None`: nothing was left out.
    pub redacted: Option<Vec<u64>>,
    /// What a raw stream says of its keys.
    pub keys: Option<Arc<KeyData>>,
    /// The stream is of a package, whose datasets are encryption roots as at the sender in the end.
    pub packaged: bool,
    /// The keys that are loaded.
    pub keystore: Arc<Keystore>,
    /// With what it takes to resume; `None`: it goes if the receive fails.
    pub resume: Option<Resume>,
}

/// What it takes to resume a receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Guid of the snapshot that the stream starts from.
    pub from_guid: Option<u64>,
    /// Name of the snapshot at the sender.
    pub to_name: Vec<u8>,
    /// Fields of [`crate::resume`] for what the stream may have.
    pub flags: Vec<&'static str>,
    /// Guids of the snapshots that the start of the stream is redacted by.
    pub from_redacted: Option<Vec<u64>>,
}
