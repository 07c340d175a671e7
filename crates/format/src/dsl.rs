//! The Dataset and Snapshot Layer's structures (`dsl_dir_phys_t`, `dsl_dataset_phys_t`), each the bonus
//! buffer of an object in the MOS.
//!
//! All are arrays of 64-bit integers in the byte order of the block that holds the dnode.

use crate::blkptr::BlockPointer;
use crate::{Bytes, Result};

/// `dd_flags`: `used_breakdown` is maintained.
pub const DD_FLAG_USED_BREAKDOWN: u64 = 1;
/// `ds_flags`: the dataset is inconsistent (a receive or destroy was interrupted).
pub const DS_FLAG_INCONSISTENT: u64 = 1;
/// `ds_flags`: unique bytes are accurate.
pub const DS_FLAG_UNIQUE_ACCURATE: u64 = 1 << 2;
/// `ds_flags`: destroy when the last hold or clone goes.
pub const DS_FLAG_DEFER_DESTROY: u64 = 1 << 3;
/// `ds_flags`: the file system's names are case-insensitive (compatibility flag, bit 16).
pub const DS_FLAG_CI_DATASET: u64 = 1 << 16;

/// `zbm_flags`: the sizes of the bookmarked snapshot and of what was freed since are recorded.
pub const ZBM_FLAG_HAS_FBN: u64 = 1;

/// `dsl_dir_phys_t`: a file system or volume with its snapshots, as an accounting unit.
#[derive(Debug, Clone)]
pub struct DslDirPhys {
    /// Creation, seconds since 1970.
    pub creation_time: u64,
    /// The live dataset; 0 for special directories (`$MOS`, `$FREE`).
    pub head_dataset: u64,
    /// Parent directory object; 0 for the root.
    pub parent: u64,
    /// Snapshot object that this is a clone of; 0 if none (or `$ORIGIN`'s).
    pub origin: u64,
    /// ZAP of child directories: name to object.
    pub children: u64,
    /// Bytes used by the directory and all below it.
    pub used: u64,
    /// The same, physical sizes without parity and copies.
    pub compressed: u64,
    /// The same, logical sizes.
    pub uncompressed: u64,
    /// `quota` property, bytes; 0 if none.
    pub quota: u64,
    /// `reservation` property, bytes; 0 if none.
    pub reserved: u64,
    /// ZAP of local properties.
    pub props: u64,
    /// ZAP of delegated permissions.
    pub deleg: u64,
    /// `DD_FLAG_*`.
    pub flags: u64,
    /// Bytes used by: head, snapshots, children, children's reservations, refreservation.
    pub used_breakdown: [u64; 5],
    /// ZAP of clones' directory objects; 0 if none.
    pub clones: u64,
}

impl DslDirPhys {
    /// Decodes a bonus buffer of 256 bytes.
    pub fn decode(b: &Bytes<'_>) -> Result<DslDirPhys> {
        let w: [u64; 19] = b.u64s(0)?;
        Ok(DslDirPhys {
            creation_time: w[0],
            head_dataset: w[1],
            parent: w[2],
            origin: w[3],
            children: w[4],
            used: w[5],
            compressed: w[6],
            uncompressed: w[7],
            quota: w[8],
            reserved: w[9],
            props: w[10],
            deleg: w[11],
            flags: w[12],
            used_breakdown: [w[13], w[14], w[15], w[16], w[17]],
            clones: w[18],
        })
    }
}

/// `dsl_dataset_phys_t`: one state of a file system or volume, live or snapshot.
#[derive(Debug, Clone)]
pub struct DslDatasetPhys {
    /// The directory this belongs to.
    pub dir: u64,
    /// Previous snapshot's object; 0 if none.
    pub prev_snap: u64,
    /// Transaction group of the previous snapshot.
    pub prev_snap_txg: u64,
    /// For a snapshot, the next snapshot or the head.
    pub next_snap: u64,
    /// ZAP of snapshot names; 0 in a snapshot.
    pub snap_names: u64,
    /// 0 for a head; for a snapshot, 1 plus its clones.
    pub num_children: u64,
    /// Creation, seconds since 1970.
    pub creation_time: u64,
    /// Creation, transaction group.
    pub creation_txg: u64,
    /// The deadlist object.
    pub deadlist: u64,
    /// Bytes referenced, as allocated.
    pub referenced: u64,
    /// Bytes referenced, physical.
    pub compressed: u64,
    /// Bytes referenced, logical.
    pub uncompressed: u64,
    /// For a snapshot: bytes that only it references.
    pub unique: u64,
    /// 56-bit id for `fsid`.
    pub fsid_guid: u64,
    /// Guid that never changes.
    pub guid: u64,
    /// `DS_FLAG_*`.
    pub flags: u64,
    /// The object set.
    pub bp: BlockPointer,
    /// ZAP of clones of this snapshot.
    pub next_clones: u64,
    /// ZAP of a snapshot's own properties.
    pub props: u64,
    /// ZAP of holds.
    pub userrefs: u64,
}

impl DslDatasetPhys {
    /// Decodes a bonus buffer of 320 bytes.
    pub fn decode(b: &Bytes<'_>) -> Result<DslDatasetPhys> {
        let w: [u64; 16] = b.u64s(0)?;
        let [next_clones, props, userrefs] = b.u64s(256)?;
        Ok(DslDatasetPhys {
            dir: w[0],
            prev_snap: w[1],
            prev_snap_txg: w[2],
            next_snap: w[3],
            snap_names: w[4],
            num_children: w[5],
            creation_time: w[6],
            creation_txg: w[7],
            deadlist: w[8],
            referenced: w[9],
            compressed: w[10],
            uncompressed: w[11],
            unique: w[12],
            fsid_guid: w[13],
            guid: w[14],
            flags: w[15],
            bp: BlockPointer::decode(b, 128)?,
            next_clones,
            props,
            userrefs,
        })
    }
}

/// `dsl_deadlist_phys_t`: sums of a deadlist whose entries are a ZAP of block-pointer lists.
#[derive(Debug, Clone, Copy)]
pub struct DeadlistPhys {
    /// Bytes as allocated.
    pub used: u64,
    /// Physical bytes.
    pub compressed: u64,
    /// Logical bytes.
    pub uncompressed: u64,
}

impl DeadlistPhys {
    /// Decodes a bonus buffer of 320 bytes.
    pub fn decode(b: &Bytes<'_>) -> Result<DeadlistPhys> {
        let [used, compressed, uncompressed] = b.u64s(0)?;
        Ok(DeadlistPhys { used, compressed, uncompressed })
    }
}

/// `bpobj_phys_t`: an object whose data is an array of block pointers, perhaps with sub-objects.
#[derive(Debug, Clone, Copy)]
pub struct BpobjPhys {
    /// Block pointers in the object's own data.
    pub entries: u64,
    /// Bytes as allocated, sub-objects included.
    pub bytes: u64,
    /// Physical bytes (version 1 and later).
    pub compressed: u64,
    /// Logical bytes (version 1 and later).
    pub uncompressed: u64,
    /// Object that is an array of sub-object numbers (version 2); 0 if none.
    pub subobjs: u64,
    /// Entries in that array.
    pub num_subobjs: u64,
    /// Entries that a livelist marks as freed (version 3).
    pub freed: u64,
}

impl BpobjPhys {
    /// Decodes a bonus buffer of 16, 32, 48 or 56 bytes.
    pub fn decode(b: &Bytes<'_>) -> Result<BpobjPhys> {
        let at = |i: usize| if b.len() >= (i + 1) * 8 { b.u64(i * 8) } else { Ok(0) };
        Ok(BpobjPhys {
            entries: b.u64(0)?,
            bytes: b.u64(8)?,
            compressed: at(2)?,
            uncompressed: at(3)?,
            subobjs: at(4)?,
            num_subobjs: at(5)?,
            freed: at(6)?,
        })
    }
}

/// `zfs_bookmark_phys_t`: what is left of a snapshot that incremental sends can start from.
#[derive(Debug, Clone, Copy)]
pub struct BookmarkPhys {
    /// Guid of the snapshot it was made from.
    pub guid: u64,
    /// Transaction group of that snapshot.
    pub creation_txg: u64,
    /// Its creation, seconds since 1970.
    pub creation_time: u64,
    /// Redaction list object; 0 if none.
    pub redaction: u64,
    /// `ZBM_FLAG_*`.
    pub flags: u64,
    /// Bytes referenced by the snapshot (with feature `bookmark_written`).
    pub referenced: u64,
    /// The same, physical sizes.
    pub compressed: u64,
    /// The same, logical sizes.
    pub uncompressed: u64,
    /// Bytes of that snapshot that were freed before the next snapshot was taken.
    pub freed: u64,
    /// The same, physical sizes.
    pub freed_compressed: u64,
    /// The same, logical sizes.
    pub freed_uncompressed: u64,
    /// IV set guid, for raw sends (with feature `bookmark_v2`).
    pub ivset_guid: u64,
}

impl BookmarkPhys {
    /// Decodes a ZAP value: 3 words (version 1), 5 or 6, or 12 (version 2).
    pub fn decode(words: &[u64]) -> Result<BookmarkPhys> {
        if words.len() < 3 {
            return Err(crate::DecodeError::invalid("bookmark", format!("{} words", words.len())));
        }
        let at = |i: usize| words.get(i).copied().unwrap_or(0);
        Ok(BookmarkPhys {
            guid: at(0),
            creation_txg: at(1),
            creation_time: at(2),
            redaction: at(3),
            flags: at(4),
            referenced: at(5),
            compressed: at(6),
            uncompressed: at(7),
            freed: at(8),
            freed_compressed: at(9),
            freed_uncompressed: at(10),
            ivset_guid: at(11),
        })
    }
}
