//! The Data Management Unit's structures: object types, dnodes, object sets.
//!
//! An object set (`objset_phys_t`, 1, 2 or 4 KiB) starts with the *meta dnode*, whose data blocks
//! are arrays of dnodes. A dnode (`dnode_phys_t`) takes 1 to 32 slots of 512 bytes:
//!
//! ```text
//! 0      type indblkshift nlevels nblkptr bonustype checksum compress flags
//! 8      datablkszsec(16) bonuslen(16) extra_slots(8) pad(24)
//! 16     maxblkid
//! 24     used (bytes if the USED_BYTES flag is set, else sectors)
//! 32     pad
//! 64     nblkptr block pointers, then the bonus buffer; with the SPILL flag the last 128 bytes
//!        of the last slot are the spill block pointer
//! ```

use crate::blkptr::{BLKPTR_SIZE, BlockPointer};
use crate::{Bytes, DecodeError, Result, SECTOR_SHIFT};
use std::ops::Range;

/// Bytes of a dnode slot; a dnode takes 1 to 32 of them.
pub const DNODE_SLOT: usize = 512;
/// Bytes of a dnode before its block pointers.
pub const DNODE_CORE: usize = 64;
/// Block size of the meta dnode: 16 KiB, 32 slots.
pub const DNODE_BLOCK: u64 = 16384;
/// `dn_used` counts bytes, not sectors.
pub const DNODE_FLAG_USED_BYTES: u8 = 1;
/// Space of this object is accounted to its user and group.
pub const DNODE_FLAG_USERUSED_ACCOUNTED: u8 = 2;
/// The dnode has a spill block pointer.
pub const DNODE_FLAG_SPILL: u8 = 4;
/// Objects of this object are counted per user and group.
pub const DNODE_FLAG_USEROBJUSED_ACCOUNTED: u8 = 8;

/// `dmu_object_type_t`: what an object or a bonus buffer holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DmuType(pub u8);

/// Name (as `zdb` prints it), whether it is metadata, whether it is encrypted in an encrypted
/// dataset; indexed by the type's number (`dmu_ot[]`).
const TYPES: [(&str, bool, bool); 54] = [
    ("unallocated", true, false),
    ("object directory", true, false),
    ("object array", true, false),
    ("packed nvlist", true, false),
    ("packed nvlist size", true, false),
    ("bpobj", true, false),
    ("bpobj header", true, false),
    ("SPA space map header", true, false),
    ("SPA space map", true, false),
    ("ZIL intent log", true, true),
    ("DMU dnode", true, true),
    ("DMU objset", true, false),
    ("DSL directory", true, false),
    ("DSL directory child map", true, false),
    ("DSL dataset snap map", true, false),
    ("DSL props", true, false),
    ("DSL dataset", true, false),
    ("ZFS znode", true, false),
    ("ZFS V0 ACL", true, true),
    ("ZFS plain file", false, true),
    ("ZFS directory", true, true),
    ("ZFS master node", true, false),
    ("ZFS delete queue", true, true),
    ("zvol object", false, true),
    ("zvol prop", true, false),
    ("other uint8[]", false, true),
    ("other uint64[]", false, true),
    ("other ZAP", true, false),
    ("persistent error log", true, false),
    ("SPA history", true, false),
    ("SPA history offsets", true, false),
    ("Pool properties", true, false),
    ("DSL permissions", true, false),
    ("ZFS ACL", true, true),
    ("ZFS SYSACL", true, true),
    ("FUID table", true, true),
    ("FUID table size", true, false),
    ("DSL dataset next clones", true, false),
    ("scan work queue", true, false),
    ("ZFS user/group/project used", true, true),
    ("ZFS user/group/project quota", true, true),
    ("snapshot refcount tags", true, false),
    ("DDT ZAP algorithm", true, false),
    ("DDT statistics", true, false),
    ("System attributes", true, true),
    ("SA master node", true, true),
    ("SA attr registration", true, true),
    ("SA attr layouts", true, true),
    ("scan translations", true, false),
    ("deduplicated block", false, true),
    ("DSL deadlist map", true, false),
    ("DSL deadlist map hdr", true, false),
    ("DSL dir clones", true, false),
    ("bpobj subobj", true, false),
];

#[allow(missing_docs)] // Names follow dmu_object_type_t.
impl DmuType {
    pub const NONE: DmuType = DmuType(0);
    pub const OBJECT_DIRECTORY: DmuType = DmuType(1);
    pub const OBJECT_ARRAY: DmuType = DmuType(2);
    pub const PACKED_NVLIST: DmuType = DmuType(3);
    pub const PACKED_NVLIST_SIZE: DmuType = DmuType(4);
    pub const BPOBJ: DmuType = DmuType(5);
    pub const BPOBJ_HDR: DmuType = DmuType(6);
    pub const SPACE_MAP_HEADER: DmuType = DmuType(7);
    pub const SPACE_MAP: DmuType = DmuType(8);
    pub const INTENT_LOG: DmuType = DmuType(9);
    pub const DNODE: DmuType = DmuType(10);
    pub const OBJSET: DmuType = DmuType(11);
    pub const DSL_DIR: DmuType = DmuType(12);
    pub const DSL_DIR_CHILD_MAP: DmuType = DmuType(13);
    pub const DSL_DS_SNAP_MAP: DmuType = DmuType(14);
    pub const DSL_PROPS: DmuType = DmuType(15);
    pub const DSL_DATASET: DmuType = DmuType(16);
    pub const ZNODE: DmuType = DmuType(17);
    pub const OLDACL: DmuType = DmuType(18);
    pub const PLAIN_FILE_CONTENTS: DmuType = DmuType(19);
    pub const DIRECTORY_CONTENTS: DmuType = DmuType(20);
    pub const MASTER_NODE: DmuType = DmuType(21);
    pub const UNLINKED_SET: DmuType = DmuType(22);
    pub const ZVOL: DmuType = DmuType(23);
    pub const ZVOL_PROP: DmuType = DmuType(24);
    pub const UINT64_OTHER: DmuType = DmuType(26);
    pub const ZAP_OTHER: DmuType = DmuType(27);
    pub const ERROR_LOG: DmuType = DmuType(28);
    pub const SPA_HISTORY: DmuType = DmuType(29);
    pub const SPA_HISTORY_OFFSETS: DmuType = DmuType(30);
    pub const POOL_PROPS: DmuType = DmuType(31);
    pub const ACL: DmuType = DmuType(33);
    pub const FUID: DmuType = DmuType(35);
    pub const FUID_SIZE: DmuType = DmuType(36);
    pub const NEXT_CLONES: DmuType = DmuType(37);
    pub const SCAN_QUEUE: DmuType = DmuType(38);
    pub const USERGROUP_USED: DmuType = DmuType(39);
    pub const USERGROUP_QUOTA: DmuType = DmuType(40);
    pub const DDT_ZAP: DmuType = DmuType(42);
    pub const SA: DmuType = DmuType(44);
    pub const DEADLIST: DmuType = DmuType(50);
    pub const DEADLIST_HDR: DmuType = DmuType(51);
    pub const BPOBJ_SUBOBJ: DmuType = DmuType(53);
}

impl DmuType {
    /// Whether the type is one of the "new" kind that only tells how to byte-swap
    /// (`DMU_OT_NEWTYPE`).
    pub fn is_new(self) -> bool {
        self.0 & 0x80 != 0
    }

    /// Whether the number is one that OpenZFS knows (`DMU_OT_IS_VALID`).
    pub fn is_valid(self) -> bool {
        if self.is_new() { self.0 & 0x1f < 10 } else { (self.0 as usize) < TYPES.len() }
    }

    /// Whether blocks of the type are metadata.
    pub fn is_metadata(self) -> bool {
        if self.is_new() {
            return self.0 & 0x40 != 0;
        }
        TYPES.get(self.0 as usize).is_none_or(|t| t.1)
    }

    /// Whether blocks of the type are encrypted in an encrypted dataset.
    pub fn is_encrypted(self) -> bool {
        if self.is_new() {
            return self.0 & 0x20 != 0;
        }
        TYPES.get(self.0 as usize).is_some_and(|t| t.2)
    }

    /// Whether objects of the type are ZAPs.
    pub fn is_zap(self) -> bool {
        // DMU_BSWAP_ZAP is byte-swap function 4.
        if self.is_new() {
            return self.0 & 0x1f == 4;
        }
        matches!(
            self.0,
            1 | 13 | 14 | 15 | 20 | 21 | 22 | 24 | 27 | 28 | 31 | 32 | 37..=43 | 45..=48 | 50 | 52
        )
    }

    /// The type's name as `zdb` prints it; types of the new kind by their byte-swap function.
    pub fn name(self) -> &'static str {
        if self.is_new() {
            return match self.0 & 0x1f {
                0 => "uint8",
                1 => "uint16",
                2 => "uint32",
                3 => "uint64",
                4 => "zap",
                5 => "dnode",
                6 => "objset",
                7 => "znode",
                8 => "oldacl",
                9 => "acl",
                _ => "unknown",
            };
        }
        TYPES.get(self.0 as usize).map_or("unknown", |t| t.0)
    }
}

impl std::fmt::Debug for DmuType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

/// A decoded `dnode_phys_t`.
#[derive(Debug, Clone)]
pub struct DnodePhys {
    /// What the object holds.
    pub kind: DmuType,
    /// log2 of the bytes of an indirect block.
    pub indirect_shift: u8,
    /// Levels of the tree; 1 means that the dnode's pointers lead to data.
    pub levels: u8,
    /// What the bonus buffer holds.
    pub bonus_kind: DmuType,
    /// Checksum function for new blocks.
    pub checksum: u8,
    /// Compression function for new blocks.
    pub compress: u8,
    /// `DNODE_FLAG_*`.
    pub flags: u8,
    /// Bytes of a data block.
    pub block_size: u64,
    /// Slots taken beyond the first.
    pub extra_slots: u8,
    /// Number of the last data block.
    pub max_block: u64,
    /// Bytes allocated for the object, all copies and parity included.
    pub used: u64,
    /// The block pointers in the dnode (1 to 3).
    pub pointers: Vec<BlockPointer>,
    /// The bonus buffer.
    pub bonus: Vec<u8>,
    /// What lies behind the bonus buffer, without zeros at its end. An encrypted bonus buffer is encrypted to the end of the
    /// dnode; else there is nothing.
    pub rest: Vec<u8>,
    /// Pointer to the spill block.
    pub spill: Option<BlockPointer>,
}

impl DnodePhys {
    /// Decodes the dnode that starts at `at`; `Ok(None)` for a free slot. All sizes are checked
    /// against the format's limits, so that a reader can rely on them: 1 to 3 pointers, at most
    /// 16 MiB per block, an indirect shift of 10 to 24, a tree no deeper than 64-bit block
    /// numbers need.
    pub fn decode(b: &Bytes<'_>, at: usize) -> Result<Option<DnodePhys>> {
        let Some(Extent { size, pointers, bonus, spill }) = Extent::check(b, at)? else {
            return Ok(None);
        };
        let flags = b.u8(at + 7)?;
        let used = b.u64(at + 24)?;
        let mut decoded = Vec::with_capacity(pointers);
        for i in 0..pointers {
            decoded.push(BlockPointer::decode(b, at + DNODE_CORE + i * BLKPTR_SIZE)?);
        }
        Ok(Some(DnodePhys {
            kind: DmuType(b.u8(at)?),
            indirect_shift: b.u8(at + 1)?,
            levels: b.u8(at + 2)?,
            bonus_kind: DmuType(b.u8(at + 4)?),
            checksum: b.u8(at + 5)?,
            compress: b.u8(at + 6)?,
            flags,
            block_size: u64::from(b.u16(at + 8)?) << SECTOR_SHIFT,
            extra_slots: b.u8(at + 12)?,
            max_block: b.u64(at + 16)?,
            used: if flags & DNODE_FLAG_USED_BYTES != 0 { used } else { used << SECTOR_SHIFT },
            pointers: decoded,
            rest: {
                let end = spill.unwrap_or(at + size);
                let rest = b.slice(bonus.end, end - bonus.end)?;
                let used = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                rest[..used].to_vec()
            },
            bonus: b.slice(bonus.start, bonus.len())?.to_vec(),
            spill: spill.map(|at| BlockPointer::decode(b, at)).transpose()?,
        }))
    }

    /// Slots of 512 bytes that the dnode takes.
    pub fn slots(&self) -> u64 {
        self.extra_slots as u64 + 1
    }
}

/// Where the parts of a dnode are that differ from one to the next.
pub(crate) struct Extent {
    /// Bytes of all its slots.
    size: usize,
    /// Block pointers from byte [`DNODE_CORE`] on.
    pointers: usize,
    /// Bytes of the bonus buffer.
    bonus: Range<usize>,
    /// The pointer to the spill block.
    spill: Option<usize>,
}

impl Extent {
    /// Checks all that [`DnodePhys::decode`] checks; `Ok(None)` for a free slot.
    pub(crate) fn check(b: &Bytes<'_>, at: usize) -> Result<Option<Extent>> {
        b.slice(at, DNODE_SLOT)?;
        let extent = Extent::of_core(b, at)?;
        if let Some(extent) = &extent {
            b.slice(at, extent.size)?;
        }
        Ok(extent)
    }

    /// As [`Extent::check`], where only the first [`DNODE_CORE`] bytes must be there.
    pub(crate) fn of_core(b: &Bytes<'_>, at: usize) -> Result<Option<Extent>> {
        const WHAT: &str = "dnode";
        let bad = |why: String| Err(DecodeError::invalid(WHAT, why));
        let kind = DmuType(b.u8(at)?);
        if kind == DmuType::NONE {
            return Ok(None);
        }
        if !kind.is_valid() {
            return bad(format!("object type {}", kind.0));
        }
        let (indirect_shift, levels, nblkptr) = (b.u8(at + 1)?, b.u8(at + 2)?, b.u8(at + 3)?);
        let (bonus_kind, flags) = (DmuType(b.u8(at + 4)?), b.u8(at + 7)?);
        let (sectors, bonus_len) = (b.u16(at + 8)?, b.u16(at + 10)? as usize);
        let extra_slots = b.u8(at + 12)?;
        let size = DNODE_SLOT * (extra_slots as usize + 1);
        if extra_slots > 31 {
            return bad(format!("{extra_slots} extra slots"));
        }
        if !(1..=3).contains(&nblkptr) {
            return bad(format!("{nblkptr} block pointers"));
        }
        if sectors == 0 || (sectors as u64) << SECTOR_SHIFT > crate::MAX_BLOCK {
            return bad(format!("data block of {sectors} sectors"));
        }
        if levels == 0 || levels > 20 || (levels > 1 && !(10..=24).contains(&indirect_shift)) {
            return bad(format!("{levels} levels, indirect block shift {indirect_shift}"));
        }
        if !bonus_kind.is_valid() {
            return bad(format!("bonus type {}", bonus_kind.0));
        }
        let used = b.u64(at + 24)?;
        if flags & DNODE_FLAG_USED_BYTES == 0 && used > u64::MAX >> SECTOR_SHIFT {
            return bad(format!("{used} sectors in use"));
        }
        let has_spill = flags & DNODE_FLAG_SPILL != 0;
        let bonus_end = at + size - if has_spill { BLKPTR_SIZE } else { 0 };
        // A redaction list of OpenZFS that has a spill block is said to have three pointers: the last one lies where the
        // pointer to the spill block does, and stands for nothing.
        let nblkptr = match has_spill && bonus_len == 0 {
            true => usize::from(nblkptr).min((bonus_end - at - DNODE_CORE) / BLKPTR_SIZE),
            false => nblkptr.into(),
        };
        let bonus_at = at + DNODE_CORE + nblkptr * BLKPTR_SIZE;
        if bonus_at + bonus_len > bonus_end {
            return bad(format!("bonus of {bonus_len} bytes after {nblkptr} block pointers"));
        }
        Ok(Some(Extent {
            size,
            pointers: nblkptr,
            bonus: bonus_at..bonus_at + bonus_len,
            spill: has_spill.then_some(bonus_end),
        }))
    }
}

/// `dmu_objset_type_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjsetType {
    /// No type: an object set that was never written.
    None,
    /// The meta object set of a pool.
    Meta,
    /// A file system.
    Zfs,
    /// A volume.
    Zvol,
    /// Any other.
    Other(u64),
}

/// `zil_header_t`: where the intent log of an object set starts.
#[derive(Debug, Clone, Copy)]
pub struct ZilHeader {
    /// Transaction group in which the log's blocks were claimed; 0 before an import.
    pub claim_txg: u64,
    /// Highest sequence number that was replayed.
    pub replay_seq: u64,
    /// First block of the log; a hole if there is no log.
    pub log: BlockPointer,
    /// Highest sequence number of a claimed block.
    pub claim_blk_seq: u64,
    /// Header flags.
    pub flags: u64,
    /// Highest sequence number of a claimed record.
    pub claim_lr_seq: u64,
}

/// A decoded `objset_phys_t`.
#[derive(Debug, Clone)]
pub struct ObjsetPhys {
    /// The object whose data are the dnodes.
    pub meta_dnode: DnodePhys,
    /// Where the intent log starts.
    pub zil: ZilHeader,
    /// What the object set is.
    pub kind: ObjsetType,
    /// `OBJSET_FLAG_*`.
    pub flags: u64,
    /// Space used per user; with object sets of 2 KiB and more.
    pub user_used: Option<DnodePhys>,
    /// Space used per group.
    pub group_used: Option<DnodePhys>,
    /// Space used per project; with object sets of 4 KiB.
    pub project_used: Option<DnodePhys>,
}

impl ObjsetPhys {
    /// Decodes an object set of 1024 bytes (version 1), 2048 (2) or 4096 (3).
    pub fn decode(b: &Bytes<'_>) -> Result<ObjsetPhys> {
        const WHAT: &str = "object set";
        let Some(meta_dnode) = DnodePhys::decode(b, 0)? else {
            return Err(DecodeError::invalid(WHAT, "no meta dnode"));
        };
        if meta_dnode.kind != DmuType::DNODE || meta_dnode.block_size % DNODE_SLOT as u64 != 0 {
            return Err(DecodeError::invalid(
                WHAT,
                format!("meta dnode of type {:?}", meta_dnode.kind),
            ));
        }
        let zil = ZilHeader {
            claim_txg: b.u64(512)?,
            replay_seq: b.u64(520)?,
            log: BlockPointer::decode(b, 528)?,
            claim_blk_seq: b.u64(656)?,
            flags: b.u64(664)?,
            claim_lr_seq: b.u64(672)?,
        };
        let kind = match b.u64(704)? {
            0 => ObjsetType::None,
            1 => ObjsetType::Meta,
            2 => ObjsetType::Zfs,
            3 => ObjsetType::Zvol,
            n => ObjsetType::Other(n),
        };
        let at = |at: usize| {
            if b.len() >= at + DNODE_SLOT { DnodePhys::decode(b, at) } else { Ok(None) }
        };
        Ok(ObjsetPhys {
            meta_dnode,
            zil,
            kind,
            flags: b.u64(712)?,
            user_used: at(1024)?,
            group_used: at(1536)?,
            project_used: at(2048)?,
        })
    }
}
