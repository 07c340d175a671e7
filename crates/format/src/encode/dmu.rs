//! Dnodes and object sets (`dnode_phys_t`, `objset_phys_t`), and the intent log's header (`zil_header_t`).
//!
//! ```text
//! dnode       core(64) | 1 to 3 block pointers | bonus buffer ... spill pointer at the end of the last slot
//! object set  meta dnode(512) | ZIL header(192) | type, flags | ... 1024: user, 1536: group, 2048: project accounting
//! ```
//!
//! A dnode takes one slot of 512 bytes, or more. A block of dnodes has each at the slot that is given with it, and
//! zeros where slots are free. An object set is as long as its version has it: 1024, 2048 or 4096 bytes.
//!
//! Invariant: an encoder checks a dnode with the code of the decoder before it gives the bytes out, so a dnode that
//! could not be read back is refused.

use super::{EncodeError, Result, push_words, words};
use crate::blkptr::BLKPTR_SIZE;
use crate::dmu::{
    DNODE_CORE, DNODE_FLAG_SPILL, DNODE_FLAG_USED_BYTES, DNODE_SLOT, DmuType, DnodePhys, Extent,
    ObjsetPhys, ObjsetType, ZilHeader,
};
use crate::{ByteOrder, Bytes, SECTOR, SECTOR_SHIFT};

const DNODE: &str = "dnode";
/// Bytes of a `zil_header_t`.
const ZIL_HEADER: usize = 192;

impl DnodePhys {
    /// The slots of the dnode: 512 bytes for each. `used` is written in bytes if the flags say so,
    /// else in sectors; whether there is a spill pointer follows from the flags and must agree
    /// with [`DnodePhys::spill`].
    ///
    /// Errors: whatever [`DnodePhys::decode`] would not read back as it is here.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(self.size());
        self.append_to(&mut out)?;
        Ok(out)
    }

    /// Fails if the dnode cannot be [encoded](DnodePhys::encode).
    pub fn check(&self) -> Result<()> {
        self.core().map(drop)
    }

    /// Bytes of all slots.
    fn size(&self) -> usize {
        DNODE_SLOT * (usize::from(self.extra_slots) + 1)
    }

    fn append_to(&self, out: &mut Vec<u8>) -> Result<()> {
        let end = out.len() + self.size();
        out.extend(self.core()?);
        self.pointers.iter().for_each(|bp| push_words(out, &bp.0));
        out.extend_from_slice(&self.bonus);
        out.extend_from_slice(&self.rest);
        out.resize(end - self.spill.map_or(0, |_| BLKPTR_SIZE), 0);
        if let Some(spill) = &self.spill {
            push_words(out, &spill.0);
        }
        Ok(())
    }

    /// What is before the pointers, if all of it has a place.
    fn core(&self) -> Result<[u8; DNODE_CORE]> {
        let bad = |why: String| Err(EncodeError::unrepresentable(DNODE, why));
        if (self.flags & DNODE_FLAG_SPILL != 0) != self.spill.is_some() {
            return bad(format!("flags {:#x}, spill {:?}", self.flags, self.spill));
        }
        let (Ok(pointers), Ok(bonus)) =
            (u8::try_from(self.pointers.len()), u16::try_from(self.bonus.len()))
        else {
            let (bonus, pointers) = (self.bonus.len(), self.pointers.len());
            return bad(format!("bonus of {bonus} bytes after {pointers} block pointers"));
        };
        let taken = DNODE_CORE + self.pointers.len() * BLKPTR_SIZE + self.bonus.len();
        let spill = self.spill.map_or(0, |_| BLKPTR_SIZE);
        if !self.rest.is_empty() && taken + self.rest.len() + spill > self.size() {
            return bad(format!("{} bytes behind the bonus buffer", self.rest.len()));
        }
        let Ok(sectors) = u16::try_from(self.block_size >> SECTOR_SHIFT) else {
            return bad(format!("data block of {:#x} bytes", self.block_size));
        };
        let in_bytes = self.flags & DNODE_FLAG_USED_BYTES != 0;
        if !self.block_size.is_multiple_of(SECTOR)
            || (!in_bytes && !self.used.is_multiple_of(SECTOR))
        {
            let (block, used) = (self.block_size, self.used);
            return bad(format!("data block of {block:#x} bytes, {used:#x} bytes used"));
        }
        let used = if in_bytes { self.used } else { self.used >> SECTOR_SHIFT };
        let mut core = [0; DNODE_CORE];
        core[..8].copy_from_slice(&[
            self.kind.0,
            self.indirect_shift,
            self.levels,
            pointers,
            self.bonus_kind.0,
            self.checksum,
            self.compress,
            self.flags,
        ]);
        core[8..10].copy_from_slice(&sectors.to_le_bytes());
        core[10..12].copy_from_slice(&bonus.to_le_bytes());
        core[12] = self.extra_slots;
        core[16..24].copy_from_slice(&self.max_block.to_le_bytes());
        core[24..32].copy_from_slice(&used.to_le_bytes());
        match Extent::of_core(&Bytes::new(&core, ByteOrder::Little, DNODE), 0) {
            Ok(Some(_)) => Ok(core),
            Ok(None) => bad("a dnode without a type".into()),
            Err(e) => bad(e.to_string()),
        }
    }
}

/// A block of dnodes of `len` bytes: each at the slot that is given with it, free slots between
/// them. Errors: a dnode that does not fit or that overlaps the one before; they must be in
/// order of their slots.
pub fn encode_dnodes<'a>(
    dnodes: impl IntoIterator<Item = (usize, &'a DnodePhys)>,
    len: usize,
) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(len);
    for (slot, dnode) in dnodes {
        let size = dnode.size();
        let at = slot.checked_mul(DNODE_SLOT).filter(|at| *at >= out.len());
        let at = at.filter(|at| len.checked_sub(*at).is_some_and(|room| size <= room));
        let Some(at) = at else {
            let why = format!("{size} bytes at slot {slot} of {len} bytes");
            return Err(EncodeError::unrepresentable(DNODE, why));
        };
        out.resize(at, 0);
        dnode.append_to(&mut out)?;
    }
    out.resize(len, 0);
    Ok(out)
}

impl ObjsetType {
    /// The number on disk.
    pub fn number(self) -> u64 {
        match self {
            ObjsetType::None => 0,
            ObjsetType::Meta => 1,
            ObjsetType::Zfs => 2,
            ObjsetType::Zvol => 3,
            ObjsetType::Other(n) => n,
        }
    }
}

impl ZilHeader {
    /// The 192 bytes in an object set.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(ZIL_HEADER);
        push_words(&mut out, &[self.claim_txg, self.replay_seq]);
        push_words(&mut out, &self.log.0);
        push_words(&mut out, &[self.claim_blk_seq, self.flags, self.claim_lr_seq]);
        out.resize(ZIL_HEADER, 0);
        out
    }
}

impl ObjsetPhys {
    /// An unencrypted object set of `len` bytes: 1024 (version 1), 2048 (2) or 4096 (3).
    ///
    /// Errors: another length, accounting objects that this length has no place for, a dnode of
    /// more than one slot, a meta dnode of another type.
    pub fn encode(&self, len: usize) -> Result<Vec<u8>> {
        const WHAT: &str = "object set";
        let bad = |why: String| Err(EncodeError::unrepresentable(WHAT, why));
        let accounting = [(1024, &self.user_used), (1536, &self.group_used)];
        let project = [(2048, &self.project_used)];
        if !matches!(len, 1024 | 2048 | 4096) {
            return bad(format!("{len} bytes"));
        }
        if self.meta_dnode.kind != DmuType::DNODE {
            return bad(format!("meta dnode of type {:?}", self.meta_dnode.kind));
        }
        let mut out = slot(&self.meta_dnode)?;
        out.extend(self.zil.encode());
        push_words(&mut out, &[self.kind.number(), self.flags]);
        out.resize(len, 0);
        for (at, dnode) in accounting.into_iter().chain(project) {
            let Some(dnode) = dnode else { continue };
            match out.get_mut(at..at + DNODE_SLOT) {
                Some(dst) => dst.copy_from_slice(&slot(dnode)?),
                None => return bad(format!("accounting at {at} in {len} bytes")),
            }
        }
        Ok(out)
    }
}

/// A dnode that takes one slot.
fn slot(dnode: &DnodePhys) -> Result<Vec<u8>> {
    if dnode.extra_slots != 0 {
        let why = format!("{} extra slots in an object set", dnode.extra_slots);
        return Err(EncodeError::unrepresentable(DNODE, why));
    }
    dnode.encode()
}

/// A block of an array of 64-bit integers (object numbers, history offsets): `values`, then
/// zeros up to `len` bytes. Errors: more than fit.
pub fn encode_array(values: &[u64], len: usize) -> Result<Vec<u8>> {
    if values.len() > len / 8 {
        let why = format!("{} integers in {len} bytes", values.len());
        return Err(EncodeError::unrepresentable("array", why));
    }
    Ok(words(values, len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blkptr::BlockPointer;
    use proptest::prelude::*;

    fn pointer() -> impl Strategy<Value = BlockPointer> {
        any::<[u64; 16]>().prop_map(BlockPointer)
    }

    prop_compose! {
        fn dnode(slots: u8)(
            kind in 1u8..54, bonus_kind in 0u8..54,
            indirect_shift in 10u8..25, levels in 1u8..21, checksum: u8, compress: u8,
            flags: u8, sectors in 1u64..=32768, extra_slots in 0..slots, max_block: u64,
            used in 0u64..1 << 50,
            pointers in proptest::collection::vec(pointer(), 1..4),
            spill in pointer(), bonus: [u8; 32], fill in 0usize..10000,
        ) -> DnodePhys {
            let room = 512 * (usize::from(extra_slots) + 1) - 64 - 128 * pointers.len();
            let has_spill = flags & DNODE_FLAG_SPILL != 0 && room >= 128;
            let room = if has_spill { room - 128 } else { room };
            DnodePhys {
                kind: DmuType(kind),
                indirect_shift,
                levels,
                bonus_kind: DmuType(bonus_kind),
                checksum,
                compress,
                flags: if has_spill { flags } else { flags & !DNODE_FLAG_SPILL },
                block_size: sectors << 9,
                extra_slots,
                max_block,
                used: if flags & 1 != 0 { used } else { used << 9 },
                pointers,
                bonus: bonus.iter().copied().cycle().take(fill % (room + 1)).collect(),
                rest: vec![7; (fill / 7) % (room + 1 - fill % (room + 1))],
                spill: has_spill.then_some(spill),
            }
        }
    }

    fn same(a: &DnodePhys, b: &DnodePhys) -> bool {
        format!(
            "{a:?}{:?}{:?}",
            a.pointers.iter().map(|p| p.0).collect::<Vec<_>>(),
            a.spill.map(|p| p.0)
        ) == format!(
            "{b:?}{:?}{:?}",
            b.pointers.iter().map(|p| p.0).collect::<Vec<_>>(),
            b.spill.map(|p| p.0)
        )
    }

    proptest! {
        #[test]
        fn dnodes_come_back(d in dnode(32)) {
            let bytes = d.encode().unwrap();
            prop_assert_eq!(bytes.len() as u64, d.slots() * 512);
            let back = DnodePhys::decode(&Bytes::new(&bytes, ByteOrder::Little, "t"), 0);
            let back = back.unwrap().unwrap();
            prop_assert!(same(&d, &back), "{:?}\n{:?}", d, back);
            prop_assert_eq!(back.encode().unwrap(), bytes);
        }

        #[test]
        fn object_sets_come_back(
            meta in dnode(1), user in dnode(1), group in dnode(1), project in dnode(1),
            words: [u64; 6], log in pointer(), size in 0usize..3,
        ) {
            let set = ObjsetPhys {
                meta_dnode: DnodePhys { kind: DmuType::DNODE, block_size: 16384, ..meta },
                zil: ZilHeader {
                    claim_txg: words[0], replay_seq: words[1], log, claim_blk_seq: words[2],
                    flags: words[3], claim_lr_seq: words[4],
                },
                kind: ObjsetType::Zfs,
                flags: words[5],
                user_used: (size > 0).then_some(user),
                group_used: (size > 0).then_some(group),
                project_used: (size > 1).then_some(project),
            };
            let bytes = set.encode(1024 << size).unwrap();
            let back = ObjsetPhys::decode(&Bytes::new(&bytes, ByteOrder::Little, "t")).unwrap();
            prop_assert!(same(&back.meta_dnode, &set.meta_dnode));
            prop_assert_eq!(format!("{set:?}"), format!("{back:?}"));
            prop_assert_eq!(back.encode(1024 << size).unwrap(), bytes);
            prop_assert_eq!(size > 0, set.encode(1024).is_err());
            prop_assert!(set.encode(512).is_err());
        }
    }

    #[test]
    fn what_would_not_be_read_back_is_refused() {
        let good = DnodePhys {
            kind: DmuType::PLAIN_FILE_CONTENTS,
            indirect_shift: 17,
            levels: 1,
            bonus_kind: DmuType::SA,
            checksum: 0,
            compress: 0,
            flags: 1,
            block_size: 512,
            extra_slots: 0,
            max_block: 0,
            used: 0,
            pointers: vec![BlockPointer::HOLE],
            bonus: vec![1; 320],
            rest: Vec::new(),
            spill: None,
        };
        assert_eq!(
            encode_dnodes([(1, &good), (3, &good)], 2048).unwrap()[1536..],
            good.encode().unwrap()
        );
        assert!(encode_dnodes([(1, &good), (1, &good)], 2048).is_err());
        assert!(encode_dnodes([(4, &good)], 2048).is_err());
        for bad in [
            DnodePhys { kind: DmuType::NONE, ..good.clone() },
            DnodePhys { kind: DmuType(60), ..good.clone() },
            DnodePhys { bonus: vec![0; 321], ..good.clone() },
            DnodePhys { bonus: vec![0; 200], flags: DNODE_FLAG_SPILL, ..good.clone() },
            DnodePhys { spill: Some(BlockPointer::HOLE), ..good.clone() },
            DnodePhys { block_size: 0, ..good.clone() },
            DnodePhys { block_size: 513, ..good.clone() },
            DnodePhys { block_size: 32 << 20, ..good.clone() },
            DnodePhys { flags: 0, used: 100, ..good.clone() },
            DnodePhys { pointers: vec![], ..good.clone() },
            DnodePhys {
                pointers: vec![BlockPointer::HOLE; 4],
                bonus: vec![],
                extra_slots: 1,
                ..good.clone()
            },
            DnodePhys { levels: 0, ..good.clone() },
            DnodePhys { extra_slots: 32, ..good.clone() },
        ] {
            assert!(bad.encode().is_err(), "{bad:?}");
        }
    }
}
