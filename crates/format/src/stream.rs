//! Send streams: the records that `zfs send` writes and `zfs receive` reads (`dmu_replay_record_t`).
//!
//! A stream is a sequence of records, each with a payload behind it that is padded to a multiple of 8 bytes:
//!
//! ```text
//! 0     type(32) | length of a BEGIN's payload(32)
//! 8     304 bytes of the record's own
//! 280   in all but BEGIN: fletcher4 of every byte of the stream before this one
//! 312   payload
//! ```
//!
//! It is written in the byte order of the sender; the magic number in BEGIN says which. BEGIN names the
//! snapshot (its guid), the snapshot that an incremental stream starts from, and the features
//! (`DMU_BACKUP_FEATURE_*`) that a receiver has to know. Objects follow in the order of their numbers, and what
//! belongs to an object in the order of its offsets. END holds the checksum of all before it.
//!
//! A *raw* stream has the blocks of an encrypted dataset as they are on disk, and with each its salt, initialization
//! vector and MAC ([`Seal`]). BEGIN has a list with the wrapped keys and what MACs cover of the object set. Before the
//! objects in a block of dnodes comes an OBJECT_RANGE with the seal of that block.
//!
//! A *redacted* stream leaves out data. BEGIN has a list with the guids of the snapshots that it is redacted by
//! ([`REDACT_SNAPS`]), and REDACT records say where data is missing.
//!
//! A receiver that was interrupted tells where to go on with a [token].
//!
//! [`Encoder`] and [`Decoder`] keep the running checksum. They do no I/O: a caller hands them headers and
//! payloads as they come. Invariant: a payload's length is checked before anybody allocates it.

mod check;
mod decode;
mod encode;
pub mod package;
pub mod token;

pub use decode::Decoder;
pub use encode::Encoder;

use crate::MAX_BLOCK;
use crate::crypt::Seal;
use crate::dmu::DmuType;

/// Bytes of a record without its payload.
pub const RECORD_SIZE: usize = 312;
/// Where a record's checksum begins.
const CHECKSUM_AT: usize = 280;
/// `DMU_BACKUP_MAGIC`.
const MAGIC: u64 = 0x2_F5BA_CBAC;
/// Bytes of a name in BEGIN, the final zero included.
const NAME_SIZE: usize = 256;
/// Number of the spill block of an object (`DMU_SPILL_BLKID`).
const SPILL_BLKID: u64 = u64::MAX - 1;
/// Longest payload of a BEGIN that is accepted: an nvlist.
const MAX_NVLIST: u64 = 256 << 20;

/// In the list of BEGIN: guids of the snapshots that the stream is redacted by (`BEGINNV_REDACT_SNAPS`).
pub const REDACT_SNAPS: &str = "redact_snaps";
/// In the list of BEGIN: guids of the snapshots that the start of the stream is redacted by (`BEGINNV_REDACT_FROM_SNAPS`).
pub const REDACT_FROM_SNAPS: &str = "redact_from_snaps";

/// Features of a stream (`DMU_BACKUP_FEATURE_*`).
#[allow(missing_docs)] // Names are OpenZFS's.
pub mod feature {
    pub const SA_SPILL: u64 = 1 << 2;
    pub const EMBED_DATA: u64 = 1 << 16;
    pub const LZ4: u64 = 1 << 17;
    pub const LARGE_BLOCKS: u64 = 1 << 19;
    pub const RESUMING: u64 = 1 << 20;
    pub const REDACTED: u64 = 1 << 21;
    pub const COMPRESSED: u64 = 1 << 22;
    pub const LARGE_DNODE: u64 = 1 << 23;
    pub const RAW: u64 = 1 << 24;
    pub const ZSTD: u64 = 1 << 25;
    pub const HOLDS: u64 = 1 << 26;
    pub const SWITCH_TO_LARGE_BLOCKS: u64 = 1 << 27;
    pub const LONGNAME: u64 = 1 << 28;
    pub const LARGE_MICROZAP: u64 = 1 << 29;
    /// What streams had until they were no longer deduplicated.
    pub const DEDUP: u64 = 1;
    /// All that a receiver of OpenZFS 2.4 knows (`DMU_BACKUP_FEATURE_MASK`).
    pub const KNOWN: u64 = SA_SPILL
        | EMBED_DATA
        | LZ4
        | LARGE_BLOCKS
        | RESUMING
        | REDACTED
        | COMPRESSED
        | LARGE_DNODE
        | RAW
        | ZSTD
        | HOLDS
        | SWITCH_TO_LARGE_BLOCKS
        | LONGNAME
        | LARGE_MICROZAP;
}

/// [`Begin::header_type`] of the stream of one snapshot (`DMU_SUBSTREAM`).
pub const SUBSTREAM: u8 = 1;
/// The stream starts from a snapshot of another dataset (`DRR_FLAG_CLONE`).
pub const FLAG_CLONE: u32 = 1;
/// Names are looked up without regard to case (`DRR_FLAG_CI_DATA`).
pub const FLAG_CI_DATA: u32 = 1 << 1;
/// What is free is said in full (`DRR_FLAG_FREERECORDS`).
pub const FLAG_FREERECORDS: u32 = 1 << 2;
/// Spill blocks that did not change are sent as well (`DRR_FLAG_SPILL_BLOCK`).
pub const FLAG_SPILL_BLOCK: u32 = 1 << 3;
/// The object has a spill block (`DRR_OBJECT_SPILL`).
pub const OBJECT_SPILL: u8 = 1 << 2;
/// The spill block did not change (`DRR_SPILL_UNMODIFIED`).
pub const SPILL_UNMODIFIED: u8 = 1 << 2;
/// The checksum is good enough for deduplication (`DRR_CHECKSUM_DEDUP`).
pub const CHECKSUM_DEDUP: u8 = 1;
/// The block of a raw stream is in the other byte order than the stream (`DRR_RAW_BYTESWAP`).
pub const RAW_BYTESWAP: u8 = 1 << 1;
/// Length of a FREE record that goes to the end of the object.
pub const TO_END: u64 = u64::MAX;

/// The first record (`drr_begin`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    /// [`SUBSTREAM`] or [`package::HEADER_TYPE`].
    pub header_type: u8,
    /// [`feature`] bits.
    pub features: u64,
    /// Creation of the snapshot, seconds since 1970.
    pub creation_time: u64,
    /// `dmu_objset_type_t`: 2 for a file system, 3 for a volume.
    pub kind: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Guid of the snapshot that the stream starts from; 0 for a full stream.
    pub from_guid: u64,
    /// Name of the snapshot.
    pub to_name: Vec<u8>,
    /// Bytes of the packed nvlist behind it.
    pub payload: u32,
}

/// An object (`drr_object`). Its bonus buffer is the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRecord {
    /// Its number.
    pub object: u64,
    /// What it holds.
    pub kind: DmuType,
    /// What its bonus buffer holds.
    pub bonus_kind: DmuType,
    /// Bytes of a block.
    pub block_size: u32,
    /// Bytes of the bonus buffer.
    pub bonus_len: u32,
    /// Number of its checksum function.
    pub checksum: u8,
    /// Number of its compression function.
    pub compress: u8,
    /// Slots that its dnode takes; 0 in old streams stands for 1.
    pub slots: u8,
    /// [`OBJECT_SPILL`], [`RAW_BYTESWAP`].
    pub flags: u8,
    /// Of a raw stream.
    pub raw: Option<RawObject>,
}

/// What the MACs of a raw stream cover of an object besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawObject {
    /// Bytes of the payload: all of the dnode behind its pointers, as it is encrypted. 0 if there is no bonus buffer.
    pub bonus_len: u32,
    /// log2 of the bytes of an indirect block.
    pub indirect_shift: u8,
    /// Levels of the tree of blocks.
    pub levels: u8,
    /// Pointers in the dnode.
    pub pointers: u8,
    /// Number of the last block.
    pub max_block: u64,
}

/// A block of dnodes of a raw stream (`drr_object_range`). The objects in it follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeRecord {
    /// The first slot.
    pub first: u64,
    /// How many slots.
    pub count: u64,
    /// [`RAW_BYTESWAP`].
    pub flags: u8,
    /// How the block is protected.
    pub seal: Seal,
}

/// A block of data (`drr_write`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteRecord {
    /// The object.
    pub object: u64,
    /// What the object holds.
    pub kind: DmuType,
    /// Byte in the object.
    pub offset: u64,
    /// Bytes of the block.
    pub logical_size: u64,
    /// Checksum function of `key`; 2 (off) without one.
    pub checksum: u8,
    /// [`CHECKSUM_DEDUP`].
    pub flags: u8,
    /// Compression function of the payload; 0 if it is not compressed.
    pub compression: u8,
    /// Bytes of a compressed payload, else 0.
    pub compressed_size: u64,
    /// The checksum in the block pointer, then sizes and compression of the block (`ddt_key_t`).
    pub key: [u64; 5],
    /// Of a raw stream.
    pub seal: Option<Seal>,
}

/// A spill block (`drr_spill`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpillRecord {
    /// The object.
    pub object: u64,
    /// Bytes of the block.
    pub length: u64,
    /// [`SPILL_UNMODIFIED`].
    pub flags: u8,
    /// Compression function of the payload; 0 if it is not compressed.
    pub compression: u8,
    /// Bytes of a compressed payload, else 0.
    pub compressed_size: u64,
    /// Of a raw stream.
    pub seal: Option<Seal>,
}

/// A block that lies in its block pointer (`drr_write_embedded`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedRecord {
    /// The object.
    pub object: u64,
    /// Byte in the object.
    pub offset: u64,
    /// Bytes of the block.
    pub length: u64,
    /// Compression function of the payload.
    pub compression: u8,
    /// Embedded type (`BPE_GET_ETYPE`).
    pub etype: u8,
    /// Bytes after decompression.
    pub lsize: u32,
    /// Bytes of the payload, without padding.
    pub psize: u32,
}

impl EmbeddedRecord {
    /// Whether it is a spill block. So OpenZFS sends one that lies in its pointer: at a place that no data can have,
    /// the number of the spill block (`DMU_SPILL_BLKID`) times the size of the object's blocks, or, from 2.3 on, that
    /// of the spill block itself.
    pub fn is_spill(&self) -> bool {
        let size = self.offset.wrapping_neg() / SPILL_BLKID.wrapping_neg();
        (1..=MAX_BLOCK).contains(&size) && self.offset == SPILL_BLKID.wrapping_mul(size)
    }
}

/// A record (`dmu_replay_record_t`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are those that OpenZFS calls so.
pub enum Record {
    /// The head.
    Begin(Begin),
    /// An object comes to be, or is as this says from now on.
    Object(ObjectRecord),
    /// There are no objects of these numbers.
    FreeObjects { first: u64, count: u64 },
    /// Data.
    Write(WriteRecord),
    /// A hole; of [`TO_END`] bytes if it goes to the end.
    Free { object: u64, offset: u64, length: u64 },
    /// The end, with the checksum of everything before it.
    End { checksum: [u64; 4] },
    /// A spill block.
    Spill(SpillRecord),
    /// Data that lies in its block pointer.
    WriteEmbedded(EmbeddedRecord),
    /// A block of dnodes of a raw stream.
    ObjectRange(RangeRecord),
    /// Data that was left out (`drr_redact`).
    Redact { object: u64, offset: u64, length: u64 },
}

impl Record {
    /// OpenZFS's name, as `zstream dump` prints it.
    pub fn name(&self) -> &'static str {
        match self {
            Record::Begin(_) => "BEGIN",
            Record::Object(_) => "OBJECT",
            Record::FreeObjects { .. } => "FREEOBJECTS",
            Record::Write(_) => "WRITE",
            Record::Free { .. } => "FREE",
            Record::End { .. } => "END",
            Record::Spill(_) => "SPILL",
            Record::WriteEmbedded(_) => "WRITE_EMBEDDED",
            Record::ObjectRange(_) => "OBJECT_RANGE",
            Record::Redact { .. } => "REDACT",
        }
    }

    /// Bytes that follow the record, padding included.
    pub fn payload_len(&self) -> u64 {
        match self {
            Record::Begin(begin) => begin.payload.into(),
            Record::Object(object) => match object.raw {
                Some(raw) if raw.bonus_len != 0 => raw.bonus_len.into(),
                _ => u64::from(object.bonus_len).next_multiple_of(8),
            },
            Record::Write(write) => match write.compression {
                0 => write.logical_size,
                _ => write.compressed_size,
            },
            Record::Spill(spill) => match spill.compression {
                0 => spill.length,
                _ => spill.compressed_size,
            },
            Record::WriteEmbedded(e) => u64::from(e.psize).next_multiple_of(8),
            Record::FreeObjects { .. }
            | Record::Free { .. }
            | Record::End { .. }
            | Record::ObjectRange(_)
            | Record::Redact { .. } => 0,
        }
    }
}
