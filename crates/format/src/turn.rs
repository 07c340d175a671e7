//! Turns what machines of the other byte order wrote (`dmu_ot_byteswap`).
//!
//! The type of its object says what a block or a bonus buffer is made of (`DMU_OT_BYTESWAP`):
//!
//! | | turned |
//! |---|---|
//! | bytes; system attributes, which say their order themselves | not at all |
//! | integers of one size | each |
//! | ZAP, dnodes, object set, node from before system attributes, lists of access | field by field |
//!
//! Dnodes have their bonus buffers turned with them, by its own type. What is encrypted in a dnode is of types that are
//! not turned.
//!
//! Invariant: a block that makes no sense comes out as some block that makes none; nothing is read or written beside it.

use crate::acl;
use crate::blkptr::BLKPTR_SIZE;
use crate::dmu::{DNODE_CORE, DNODE_FLAG_SPILL, DNODE_SLOT, DmuType};
use crate::encode::zap::to_little_endian;
use crate::{ByteOrder, Bytes};
use std::ops::Range;

/// How a type is turned (`dmu_object_byteswap_t`, in its order).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Function {
    Bytes,
    Words2,
    Words4,
    Words8,
    Zap,
    Dnodes,
    Objset,
    Znode,
    OldAcl,
    Acl,
}

use Function::{Acl, Dnodes, Objset, OldAcl, Words2, Words4, Words8, Zap, Znode};

/// The functions by the numbers that types have them by.
const FUNCTIONS: [Function; 10] =
    [Function::Bytes, Words2, Words4, Words8, Zap, Dnodes, Objset, Znode, OldAcl, Acl];

/// `znode_phys_t`: words, then a list of access. Its size (32 bits), its version and the number of its entries (16), entries.
const ZNODE_WORDS: usize = 184;
const ZNODE_VERSION: Range<usize> = 188..190;
const ZNODE_LIST: Range<usize> = 192..264;
/// The version of a list whose entries are of the newer form (`ZFS_ACL_VERSION`).
const NEW_LIST: [u8; 2] = [0, 1];
/// `objset_phys_t`: where its MACs are, which have no order, and the dnodes of its accounting.
const MACS_AT: usize = 720;
const ACCOUNTING: [usize; 3] = [1024, 1536, 2048];

fn function(kind: DmuType) -> Function {
    if kind.is_new() {
        let number = usize::from(kind.0 & 0x1f);
        return FUNCTIONS.get(number).copied().unwrap_or(Function::Bytes);
    }
    match kind.0 {
        2 | 4..=9 | 12 | 16 | 26 | 30 | 36 | 51 | 53 => Words8,
        10 => Dnodes,
        11 => Objset,
        17 => Znode,
        18 => OldAcl,
        33 => Acl,
        1 | 13..=15 | 20..=22 | 24 | 27 | 28 | 31 | 32 | 37..=43 | 45..=48 | 50 | 52 => Zap,
        _ => Function::Bytes,
    }
}

/// Whether blocks of the type are the same in either order.
pub fn has_no_order(kind: DmuType) -> bool {
    function(kind) == Function::Bytes
}

/// Turns `data`, a block of level 0 or a bonus buffer of this type that was written big-endian, to little-endian.
pub fn from_big_endian(kind: DmuType, data: &mut [u8]) {
    match function(kind) {
        Function::Bytes => {}
        Words2 => swap(data, 2),
        Words4 => swap(data, 4),
        Words8 => swap(data, 8),
        // One that makes no sense is left for the reader to say so.
        Zap => drop(to_little_endian(data, ByteOrder::Big)),
        Dnodes => turn_dnodes(data),
        Objset => turn_objset(data),
        Znode => turn_znode(data),
        OldAcl => turn_old_list(data),
        Acl => turn_list(data),
    }
}

/// Reverses each `size` bytes.
pub(crate) fn swap(data: &mut [u8], size: usize) {
    data.chunks_exact_mut(size).for_each(<[u8]>::reverse);
}

/// Reverses each `size` bytes of a part, as far as it is there.
fn swap_part(data: &mut [u8], part: Range<usize>, size: usize) {
    let end = part.end.min(data.len());
    if let Some(part) = data.get_mut(part.start..end) {
        swap(part, size);
    }
}

/// (`dnode_buf_byteswap`)
fn turn_dnodes(mut rest: &mut [u8]) {
    while let (Some(kind), Some(extra)) = (rest.first(), rest.get(12)) {
        // A free slot says nothing of those behind it.
        let slots = if *kind == DmuType::NONE.0 { 1 } else { 1 + usize::from(*extra) };
        let len = DNODE_SLOT * slots;
        let Some((dnode, after)) = rest.split_at_mut_checked(len) else { return };
        turn_dnode(dnode);
        rest = after;
    }
}

/// (`dnode_byteswap`)
fn turn_dnode(dnode: &mut [u8]) {
    let &mut [kind, _, _, pointers, bonus_kind, _, _, flags, ..] = dnode else { return };
    if kind == DmuType::NONE.0 {
        return;
    }
    let spill = if flags & DNODE_FLAG_SPILL != 0 { BLKPTR_SIZE } else { 0 };
    let end = dnode.len().saturating_sub(spill);
    let bonus = (DNODE_CORE + usize::from(pointers) * BLKPTR_SIZE).min(end);
    swap_part(dnode, 8..12, 2);
    swap_part(dnode, 16..bonus, 8);
    swap_part(dnode, end..usize::MAX, 8);
    let kind = DmuType(bonus_kind);
    if let Some(values) = dnode.get_mut(bonus..end)
        && !matches!(function(kind), Dnodes | Objset)
    {
        from_big_endian(kind, values);
    }
}

/// (`dmu_objset_byteswap`)
fn turn_objset(data: &mut [u8]) {
    swap_part(data, DNODE_SLOT..MACS_AT, 8);
    for at in [0].into_iter().chain(ACCOUNTING) {
        if let Some(dnode) = data.get_mut(at..at + DNODE_SLOT) {
            turn_dnode(dnode);
        }
    }
}

/// (`zfs_znode_byteswap`)
fn turn_znode(data: &mut [u8]) {
    let is_new = data.get(ZNODE_VERSION) == Some(&NEW_LIST);
    swap_part(data, 0..ZNODE_WORDS, 8);
    swap_part(data, ZNODE_WORDS..ZNODE_VERSION.start, 4);
    swap_part(data, ZNODE_VERSION.start..ZNODE_LIST.start, 2);
    match (data.get_mut(ZNODE_LIST), is_new) {
        (Some(list), true) => turn_list(list),
        (Some(list), false) => turn_old_list(list),
        (None, _) => {}
    }
}

/// (`zfs_oldacl_byteswap`)
fn turn_old_list(data: &mut [u8]) {
    for ace in data.chunks_exact_mut(12) {
        swap_part(ace, 0..8, 4);
        swap_part(ace, 8..12, 2);
    }
}

/// Turns a list of access as files have it, in an object or in a system attribute (`zfs_acl_byteswap`). How many entries it
/// has is not known here: what is behind them are zeros.
pub fn turn_list(mut rest: &mut [u8]) {
    while let Ok(len) = acl::stored_size(&Bytes::new(rest, ByteOrder::Big, "NFSv4 ACL"), 0) {
        swap_part(rest, 0..4, 2);
        swap_part(rest, 4..8, 4);
        if len > 8 {
            swap_part(rest, 8..16, 8);
        }
        rest = rest.get_mut(len..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dmu::DnodePhys;
    use crate::zap::BLOCK_LEAF;
    use crate::zap::leaf::{CHUNK_SIZE, MAGIC};
    use proptest::prelude::*;

    /// Turns words of a dnode: what has no bonus buffer with fields of other sizes.
    fn turned(mut dnode: Vec<u8>) -> Vec<u8> {
        swap(&mut dnode[8..12], 2);
        swap(&mut dnode[16..], 8);
        dnode
    }

    #[test]
    fn dnodes_are_turned_with_their_bonus_buffers() {
        let mut dnode = vec![0u8; 1024];
        dnode[..8].copy_from_slice(&[19, 17, 1, 1, 12, 0, 0, DNODE_FLAG_SPILL]);
        dnode[8..12].copy_from_slice(&[1, 0, 16, 0]);
        dnode[12] = 1;
        dnode[16..24].copy_from_slice(&77u64.to_le_bytes());
        dnode[192..208].copy_from_slice(&[5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
        dnode[1016] = 9;
        let mut block = turned(dnode.clone());
        // A free slot with remains in it.
        let mut free = [0; 512];
        free[12] = 200;
        block.extend(free);
        block.extend(turned(dnode.clone()));
        from_big_endian(DmuType::DNODE, &mut block);
        assert_eq!(block[..1024], dnode);
        assert_eq!(block[1024..1536], free);
        assert_eq!(block[1536..], dnode);
        let decoded = DnodePhys::decode(&Bytes::new(&block, ByteOrder::Little, "t"), 0);
        assert_eq!(decoded.unwrap().unwrap().bonus[8], 6);
    }

    #[test]
    fn leaves_with_unknown_chunks_stay_as_they_were() {
        const FREE: u8 = 253;
        let mut leaf = vec![0u8; 512];
        leaf[..8].copy_from_slice(&BLOCK_LEAF.to_be_bytes());
        leaf[24..28].copy_from_slice(&MAGIC.to_be_bytes());
        leaf[48 + 512 / 16..].chunks_exact_mut(CHUNK_SIZE).for_each(|chunk| chunk[0] = FREE);
        let kind = DmuType(1);
        let mut turned = leaf.clone();
        from_big_endian(kind, &mut turned);
        assert_eq!(turned[..8], BLOCK_LEAF.to_le_bytes());
        *leaf.iter_mut().rfind(|byte| **byte == FREE).unwrap() = 9;
        let mut left = leaf.clone();
        from_big_endian(kind, &mut left);
        assert_eq!(left, leaf);
    }

    #[test]
    fn lists_are_turned_up_to_what_is_not_there() {
        // The owner's, short; one that names a user; zeros.
        let little = [
            0u8, 0, 0, 0x10, 1, 2, 3, 4, //
            1, 0, 0, 0, 5, 6, 7, 8, 0xe8, 3, 0, 0, 0, 0, 0, 0, //
            0, 0, 0, 0,
        ];
        let mut big = little;
        for (at, size) in [(0, 2), (2, 2), (4, 4), (8, 2), (10, 2), (12, 4), (16, 8)] {
            big[at..at + size].reverse();
        }
        turn_list(&mut big);
        assert_eq!(big, little);
    }

    proptest! {
        #[test]
        fn anything_is_turned(kind: u8, mut data in prop::collection::vec(any::<u8>(), 0..2048)) {
            let len = data.len();
            from_big_endian(DmuType(kind), &mut data);
            prop_assert_eq!(data.len(), len);
        }
    }
}
