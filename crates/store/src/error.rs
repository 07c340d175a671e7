//! Where a block is in its owner's eyes (`zbookmark_phys_t`), and why it could not be read.

use cenote_format::DecodeError;
use cenote_format::blkptr::BlockPointer;
use cenote_format::crypt::CryptError;
use cenote_vdev::VdevError;

/// The level of intent log blocks in bookmarks (`ZB_ZIL_LEVEL`).
pub const ZIL_LEVEL: i64 = -2;

/// Which block of which object (`zbookmark_phys_t`), for errors and error logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bookmark {
    /// Dataset object number; 0 for the meta object set.
    pub objset: u64,
    /// Object number; 0 for the object set's own blocks.
    pub object: u64,
    /// Level in the tree: 0 is data, -1 the root block of an object set, [`ZIL_LEVEL`] an intent log block.
    pub level: i64,
    /// Block number within the level.
    pub blkid: u64,
}

impl Bookmark {
    /// The root block of object set `objset` (`ZB_ROOT_OBJECT`, `ZB_ROOT_LEVEL`).
    pub fn root(objset: u64) -> Bookmark {
        Bookmark { objset, object: 0, level: -1, blkid: 0 }
    }
}

impl std::fmt::Display for Bookmark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Bookmark { objset, object, level, blkid } = self;
        write!(f, "objset {objset} object {object} level {level} block {blkid}")
    }
}

/// Why a block could not be read: where (owner and devices) and what.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BlockError {
    /// No copy could be read from its devices.
    #[error("{at}: {bp:?}: {source}")]
    Vdev {
        /// The block in its owner's eyes.
        at: Bookmark,
        /// The block pointer.
        bp: Box<BlockPointer>,
        /// What the last device said.
        source: VdevError,
    },
    /// Copies were read, but no copy has the right checksum.
    #[error("{at}: {bp:?}: checksum mismatch on every copy")]
    Checksum {
        /// The block in its owner's eyes.
        at: Bookmark,
        /// The block pointer.
        bp: Box<BlockPointer>,
    },
    /// The bytes are right but do not unpack, or the pointer itself makes no sense.
    #[error("{at}: {bp:?}: {source}")]
    Decode {
        /// The block in its owner's eyes.
        at: Bookmark,
        /// The block pointer.
        bp: Box<BlockPointer>,
        /// What does not decode.
        source: DecodeError,
    },
    /// The block is encrypted, and the key of its dataset is not loaded.
    #[error("{at}: the block is encrypted and the key of its dataset is not loaded")]
    Encrypted {
        /// The block in its owner's eyes.
        at: Bookmark,
    },
    /// The block has the right checksum and is not what was written with the key of its dataset: it, its MAC, salt or
    /// initialization vector were changed, or it is not protected in a dataset that is encrypted.
    #[error("{at}: {bp:?}: {source}")]
    Authentication {
        /// The block in its owner's eyes.
        at: Bookmark,
        /// The block pointer.
        bp: Box<BlockPointer>,
        /// What is wrong.
        source: CryptError,
    },
    /// A change that must not wait for devices does not hold the block ([`crate::held`]); the change
    /// is made again once it was read.
    #[error("{at}: the block is not held by the change that needs it")]
    NotHeld {
        /// The block in its owner's eyes.
        at: Bookmark,
    },
}

impl BlockError {
    /// The block in its owner's eyes.
    pub fn bookmark(&self) -> Bookmark {
        match self {
            BlockError::Vdev { at, .. }
            | BlockError::Checksum { at, .. }
            | BlockError::Decode { at, .. }
            | BlockError::Authentication { at, .. }
            | BlockError::Encrypted { at }
            | BlockError::NotHeld { at } => *at,
        }
    }

    /// The physical birth of the block; 0: not known.
    pub fn birth(&self) -> u64 {
        match self {
            BlockError::Vdev { bp, .. }
            | BlockError::Checksum { bp, .. }
            | BlockError::Decode { bp, .. }
            | BlockError::Authentication { bp, .. } => bp.physical_birth(),
            BlockError::Encrypted { .. } | BlockError::NotHeld { .. } => 0,
        }
    }
}
