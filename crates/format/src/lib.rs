//! The OpenZFS on-disk format, as pure functions.
//!
//! Floor 0 of cenote. Everything here turns bytes into types (and checks them) without doing I/O,
//! taking locks or starting threads. A decoder takes a byte slice and, where the structure is
//! written in the byte order of the machine that wrote it, a [`ByteOrder`]; it returns a
//! [`DecodeError`] for whatever it does not understand and never panics on any input.
//!
//! | module | OpenZFS structures |
//! |---|---|
//! | [`abd`] | the buffer every payload travels in |
//! | [`acl`] | `zfs_ace_hdr_t`, `zfs_ace_t`, `zfs_object_ace_t`, and `ace_t` of the intent log |
//! | [`blkptr`] | `blkptr_t`, `dva_t`, gang headers (`zio_gbh_phys_t`) |
//! | [`checksum`] | `zio_checksum` functions and embedded checksums (`zio_eck_t`) |
//! | [`compress`] | `zio_compress` functions |
//! | [`crypt`] | native encryption: `zio_crypt_key_t`, `blkptr_auth_buf_t`, MACs of object sets |
//! | [`dmu`] | `dmu_object_type_t`, `dnode_phys_t`, `objset_phys_t`, `zil_header_t` |
//! | [`dsl`] | `dsl_dir_phys_t`, `dsl_dataset_phys_t`, deadlists, bookmarks, `bpobj_phys_t` |
//! | [`encode`] | the same structures, written |
//! | [`mod@invariant`] | `VERIFY`, `ASSERT`: what our own state must be |
//! | [`l2arc`] | `l2arc_dev_hdr_phys_t`, `l2arc_log_blk_phys_t`: what lies on cache devices |
//! | [`label`] | `vdev_label_t`, `uberblock_t` |
//! | [`nvlist`] | packed nvlists, XDR encoding |
//! | [`redaction`] | `redaction_list_phys_t`, `redact_block_phys_t` |
//! | [`sa`] | system attribute headers (`sa_hdr_phys_t`) and layouts |
//! | [`spacemap`] | `space_map_phys_t` and its entries, range-tree free of memory structures |
//! | [`stream`] | send streams (`dmu_replay_record_t`) |
//! | [`zap`] | `mzap_phys_t`, `zap_phys_t`, `zap_leaf_phys_t` |
//! | [`zil`] | `zil_chain_t`, `lr_t` and the records of every `TX_*` |

pub mod abd;
pub mod acl;
pub mod blkptr;
pub mod bytes;
pub mod checksum;
pub mod compress;
pub mod crypt;
pub mod dmu;
pub mod dsl;
pub mod encode;
pub mod features;
pub mod invariant;
pub mod l2arc;
pub mod label;
pub mod nvlist;
pub mod redaction;
pub mod sa;
pub mod spacemap;
pub mod stream;
pub mod turn;
pub mod zap;
pub mod zil;

pub use bytes::{ByteOrder, Bytes};

/// Smallest unit of allocation and of every size in a block pointer: 512 bytes.
pub const SECTOR: u64 = 512;
/// log2 of [`SECTOR`] (`SPA_MINBLOCKSHIFT`).
pub const SECTOR_SHIFT: u32 = 9;
/// Largest logical block OpenZFS writes: 16 MiB (`SPA_MAXBLOCKSIZE`).
pub const MAX_BLOCK: u64 = 16 << 20;
/// Bytes at the head of every leaf vdev before allocatable space: two labels and the boot
/// area (`VDEV_LABEL_START_SIZE`). A DVA's offset 0 is this byte of the device.
pub const LABEL_START: u64 = 4 << 20;

/// Why bytes could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The structure needs more bytes than there are.
    #[error("{what}: {have} bytes, {need} needed")]
    Truncated {
        /// Name of the structure.
        what: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes at hand.
        have: usize,
    },
    /// A field holds a value the format does not allow.
    #[error("{what}: {why}")]
    Invalid {
        /// Name of the structure.
        what: &'static str,
        /// What is wrong, with the value.
        why: String,
    },
    /// The bytes are not those that their checksum was computed of.
    #[error("{what}: checksum mismatch")]
    Checksum {
        /// Name of the structure.
        what: &'static str,
    },
    /// A valid value that this program does not support.
    #[error("{what}: {name} is not supported")]
    Unsupported {
        /// Name of the structure.
        what: &'static str,
        /// The value, by name where it has one.
        name: String,
    },
}

impl DecodeError {
    /// An [`DecodeError::Invalid`] for `what`.
    pub fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        DecodeError::Invalid { what, why: why.into() }
    }
}

/// Result of a decoder.
pub type Result<T> = std::result::Result<T, DecodeError>;
