//! The target of native encryption.

use std::hint::black_box;

use cenote_format::ByteOrder;
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::crypt::{
    BlockParams, DatasetKey, HMAC_KEY_LEN, Mac, ObjsetMacs, Secret, Suite, check_indirect,
    check_objset, indirect_mac,
};
use cenote_format::dmu::DmuType;

const PARAMS: BlockParams = BlockParams { salt: [1; 8], iv: [2; 12] };
/// Offset in an intent log block of its MAC.
const ZIL_MAC: std::ops::Range<usize> = 168..184;

/// `suite and order, kind, a block…`: the block is one as it lies on disk, which has another MAC; and one to be written.
pub(crate) fn crypt(data: &[u8]) {
    let &[first, kind, ref block @ ..] = data else { return };
    let suite = Suite::ALL[usize::from(first >> 1) % Suite::ALL.len()];
    let order = if first & 1 == 0 { ByteOrder::Little } else { ByteOrder::Big };
    let keys = Secret::copy_of(&vec![first; suite.key_len() + HMAC_KEY_LEN]);
    let Some(key) = keys.and_then(|keys| DatasetKey::of_random(suite, 3, keys)).ok() else {
        return;
    };
    let kinds = [DmuType::DNODE, DmuType::INTENT_LOG, DmuType::PLAIN_FILE_CONTENTS];
    let Some(kind) = kinds.get(usize::from(kind)) else {
        black_box(ObjsetMacs::of(&key, block, order)).ok();
        black_box(indirect_mac(block, order, 0)).ok();
        assert!(check_objset(&key, block, order).is_err());
        return;
    };
    black_box(check_indirect(&pointer(*kind, order, &[0; 16]), block)).ok();
    let foreign = key.decrypt(&pointer(*kind, order, &[0; 16]), &Abd::copy_of(block));
    assert!(foreign.is_err(), "what no key has written was decrypted");
    let mut written = block.to_vec();
    let Ok(mac) = key.encrypt(*kind, &PARAMS, &mut written) else { return };
    if *kind == DmuType::INTENT_LOG {
        let Some(place) = written.get_mut(ZIL_MAC) else { return };
        place.copy_from_slice(&mac);
    }
    let bp = pointer(*kind, ByteOrder::Little, &mac);
    let read = key.decrypt(&bp, &Abd::copy_of(&written)).map(|read| read.to_vec());
    let unlike = |read: &[u8]| {
        let in_mac = |at: &usize| *kind == DmuType::INTENT_LOG && ZIL_MAC.contains(at);
        (0..block.len()).any(|at| !in_mac(&at) && read.get(at) != block.get(at))
    };
    assert!(read.is_ok_and(|read| !unlike(&read)), "what was written is not what is read");
}

fn pointer(kind: DmuType, order: ByteOrder, mac: &Mac) -> BlockPointer {
    let little = u64::from(order == ByteOrder::Little);
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, b| word << 8 | u64::from(*b));
    let mut bp = BlockPointer([0; 16]);
    bp.0[0] = 1;
    bp.0[6] = little << 63 | 1 << 61 | u64::from(kind.0) << 48 | 2 << 32;
    (bp.0[4], bp.0[5]) = (word(&PARAMS.salt), word(&PARAMS.iv[..8]));
    bp.0[11] = word(&PARAMS.iv[8..]) << 32;
    (bp.0[14], bp.0[15]) = (word(&mac[..8]), word(&mac[8..]));
    bp
}
