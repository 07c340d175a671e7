//! Salt, initialization vector and MAC of a block, where they lie (`zio_crypt_decode_params_bp`,
//! `zio_crypt_decode_mac_bp`, `zio_crypt_decode_mac_zil`).
//!
//! They are bytes, but lie in words of the pointer. So they are taken in the byte order of the machine that wrote the
//! block.

use crate::blkptr::BlockPointer;
use crate::{ByteOrder, Bytes, Result};

/// Bytes of a salt (`ZIO_DATA_SALT_LEN`).
pub const SALT_LEN: usize = 8;
/// Bytes of an initialization vector (`ZIO_DATA_IV_LEN`).
pub const IV_LEN: usize = 12;
/// Bytes of a MAC (`ZIO_DATA_MAC_LEN`).
pub const MAC_LEN: usize = 16;
/// The salt of a block's key.
pub type Salt = [u8; SALT_LEN];
/// An initialization vector.
pub type Iv = [u8; IV_LEN];
/// A message authentication code.
pub type Mac = [u8; MAC_LEN];

/// Offset in an intent log block of words 2 and 3 of its checksum.
const ZIL_MAC_AT: usize = 168;

/// What the pointer to an encrypted block says for its decryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockParams {
    /// The salt that its key is derived with.
    pub salt: Salt,
    /// Its initialization vector.
    pub iv: Iv,
}

/// How a block of an encrypted dataset is protected, as its pointer and a raw stream say it. A block that is authenticated
/// only has parameters of zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seal {
    /// Salt and initialization vector.
    pub params: BlockParams,
    /// The MAC.
    pub mac: Mac,
}

impl Seal {
    /// That of the block that a pointer leads to.
    pub fn of(bp: &BlockPointer) -> Seal {
        let zeros = BlockParams { salt: [0; SALT_LEN], iv: [0; IV_LEN] };
        let params = if bp.is_encrypted() { BlockParams::of(bp) } else { zeros };
        Seal { params, mac: bp_mac(bp) }
    }
}

fn word(value: u64, order: ByteOrder) -> [u8; 8] {
    match order {
        ByteOrder::Little => value.to_le_bytes(),
        ByteOrder::Big => value.to_be_bytes(),
    }
}

impl BlockParams {
    /// Those of an encrypted block.
    pub fn of(bp: &BlockPointer) -> BlockParams {
        let order = bp.byte_order();
        let (first, last) = (word(bp.0[5], order), (bp.0[11] >> 32) as u32);
        let last = match order {
            ByteOrder::Little => last.to_le_bytes(),
            ByteOrder::Big => last.to_be_bytes(),
        };
        let mut iv = [0; IV_LEN];
        iv[..8].copy_from_slice(&first);
        iv[8..].copy_from_slice(&last);
        BlockParams { salt: word(bp.0[4], order), iv }
    }
}

/// The MAC in a pointer; zeros in one to an object set, which has its MACs in itself.
pub fn bp_mac(bp: &BlockPointer) -> Mac {
    let mut mac = [0; MAC_LEN];
    if bp.object_type() != crate::dmu::DmuType::OBJSET.0 {
        let order = bp.byte_order();
        mac[..8].copy_from_slice(&word(bp.0[14], order));
        mac[8..].copy_from_slice(&word(bp.0[15], order));
    }
    mac
}

/// The MAC in an intent log block.
///
/// # Errors
/// The block is too short.
pub fn zil_mac(block: &[u8]) -> Result<Mac> {
    let block = Bytes::new(block, ByteOrder::Little, "intent log block");
    let mut mac = [0; MAC_LEN];
    mac.copy_from_slice(block.slice(ZIL_MAC_AT, MAC_LEN)?);
    Ok(mac)
}
