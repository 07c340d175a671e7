//! Blocks of encrypted datasets on their way to the devices (`zio_encrypt`, `zio_checksum_handle_crypt`).
//!
//! Between compression and the checksum a block is encrypted or authenticated with the key of its dataset. What is done
//! depends on its level and type:
//!
//! | block | bytes | in the pointer |
//! |---|---|---|
//! | indirect | as they are | MAC of the MACs below |
//! | object set | with its two MACs in it | nothing |
//! | level 0, of a type that is not encrypted | as they are | their MAC |
//! | level 0, of an encrypted type | encrypted | MAC, salt, initialization vector |
//!
//! A block of a raw stream comes with all of that, and keeps it.
//!
//! Blocks of dnodes and object sets are not compressed, so that their MACs are the same in every pool. No block is put into
//! its pointer.
//!
//! # Invariants
//!
//! - Each block that is written gets an initialization vector of its own, also if it is written again in its place. A key
//!   gets a new salt after so many blocks that two vectors are not the same by chance.
//! - A block that is deduplicated gets salt and vector from a MAC of its bytes, so that equal blocks of one key are equal
//!   on disk, and no others have both the same. Only blocks that are encrypted are deduplicated: tables do not
//!   tell one that is authenticated from them.
//! - An encrypted block has two copies at most: what describes its encryption takes the place of the third.

use std::sync::Arc;

use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::checksum::Checksum;
use cenote_format::crypt::{self, BlockParams, CryptError, MAC_LEN, Mac, put_objset_macs};
use cenote_format::dmu::DmuType;
use cenote_format::encode;
use cenote_format::{ByteOrder, DecodeError};

use super::{Dedup, WriteError, WriteProps, WriteRequest};
use crate::keys::{Keys, LoadedKey};

/// Copies that an encrypted block may have.
const COPIES: usize = 2;

/// What the pointer to a protected block says of that.
#[derive(Clone, Copy)]
pub(super) struct Protection {
    /// Of an encrypted block.
    params: Option<BlockParams>,
}

impl Protection {
    /// Salt and the first part of the initialization vector, as they lie in the place of a third copy (`DDE_GET_…`).
    pub(super) fn words(&self) -> Option<[u64; 2]> {
        let BlockParams { salt, iv } = self.params?;
        let [a, b, c, d, e, f, g, h, ..] = iv;
        Some([u64::from_le_bytes(salt), u64::from_le_bytes([a, b, c, d, e, f, g, h])])
    }

    /// The pointer to the protected block.
    pub(super) fn mark(&self, bp: BlockPointer) -> encode::Result<BlockPointer> {
        bp.protected(self.params.as_ref())
    }
}

/// The parameters of the blocks of a batch that will be encrypted, in their order. They are made here, one after the other,
/// so that blocks that are packed at once have the same in every run of a simulation. Those of blocks that are deduplicated
/// are made of their bytes.
pub(super) fn params(
    requests: &[WriteRequest],
    keys: &Keys,
) -> Vec<Result<Option<BlockParams>, WriteError>> {
    let of = |request: &WriteRequest| {
        let props = &request.props;
        let by_chance = props.is_encrypted() && props.dedup == Dedup::Off;
        match props.key.as_ref().filter(|_| by_chance) {
            Some(key) => Ok(Some(keys.params(key)?)),
            None => Ok(None),
        }
    };
    requests.iter().map(of).collect()
}

impl WriteProps {
    /// The same for a block that `key` protects, if there is one.
    pub fn protected_by(self, key: Option<Arc<LoadedKey>>) -> WriteProps {
        match key {
            None => self,
            key => WriteProps { key, ..self.protected() },
        }
    }

    /// The same for a block that came protected, in a raw stream or with its object set.
    pub fn kept_raw(self) -> WriteProps {
        WriteProps { raw: true, dedup: Dedup::Off, ..self.protected() }
    }

    fn protected(self) -> WriteProps {
        let most = if self.object_type.is_encrypted() { COPIES } else { self.copies };
        let dedup = match self.level == 0 && self.object_type.is_encrypted() {
            true => self.dedup,
            false => Dedup::Off,
        };
        let gang_most = if self.object_type.is_encrypted() { COPIES } else { self.gang_copies };
        WriteProps {
            copies: self.copies.min(most),
            gang_copies: self.gang_copies.min(gang_most),
            embed: false,
            nopwrite: false,
            dedup,
            ..self
        }
    }

    /// Whether the block's contents are encrypted, if a key protects it.
    fn is_encrypted(&self) -> bool {
        self.level == 0 && self.object_type.is_encrypted()
    }

    /// Whether the block stays as it is, or becomes a hole (`ZIO_COMPRESS_EMPTY`).
    pub(super) fn is_left_whole(&self) -> bool {
        let kinds = [DmuType::DNODE, DmuType::OBJSET];
        self.key.is_some() && self.level == 0 && kinds.contains(&self.object_type)
    }
}

/// A block that is protected.
pub(super) struct Protected {
    /// The bytes to write.
    pub(super) data: Abd,
    /// What goes into words 2 and 3 of the checksum; `None` for an object set.
    pub(super) mac: Option<Mac>,
    pub(super) protection: Protection,
}

/// Protects the physical bytes `data` of a block. `params` are the parameters of an encrypted block.
pub(super) fn protect(
    request: &WriteRequest,
    key: &LoadedKey,
    params: Option<BlockParams>,
    data: Abd,
) -> Result<Protected, WriteError> {
    let props = &request.props;
    let done = |data, mac, params| Protected { data, mac, protection: Protection { params } };
    if props.level > 0 {
        let block = request.data.unpacked()?;
        let mac = crypt::indirect_mac(&block.bytes(), ByteOrder::Little, crypt::KEY_VERSION)?;
        return Ok(done(data, Some(mac), None));
    }
    if props.object_type == DmuType::OBJSET {
        let mut block = data.to_vec();
        put_objset_macs(key.key(), &mut block)?;
        return Ok(done(Abd::from_vec(block), None, None));
    }
    if !props.is_encrypted() {
        let mac = key.key().mac_of(&data)?;
        return Ok(done(data, Some(mac), None));
    }
    let params = match params {
        Some(params) => params,
        None if props.dedup != Dedup::Off => key.key().params_of(&data)?,
        None => return Err(CryptError::Random("no parameters of a block".into()).into()),
    };
    let mut block = data.to_vec();
    let mac = key.key().encrypt(props.object_type, &params, &mut block)?;
    Ok(done(Abd::from_vec(block), Some(mac), Some(params)))
}

/// As [`protect`], of a block that takes no key: it came with its MAC, or has one of the MACs below it.
///
/// # Errors
/// It has no MAC.
pub(super) fn keep_protected(request: &WriteRequest, data: Abd) -> Result<Protected, WriteError> {
    let props = &request.props;
    if props.level > 0 {
        let block = request.data.unpacked()?;
        let mac = crypt::indirect_mac(&block.bytes(), ByteOrder::Little, crypt::KEY_VERSION)?;
        return Ok(Protected { data, mac: Some(mac), protection: Protection { params: None } });
    }
    if props.object_type == DmuType::OBJSET {
        return Ok(Protected { data, mac: None, protection: Protection { params: None } });
    }
    let why = || DecodeError::invalid("block of a raw stream", "it has no MAC");
    let seal = request.data.seal().ok_or_else(why)?;
    let params = props.is_encrypted().then_some(seal.params);
    Ok(Protected { data, mac: Some(seal.mac), protection: Protection { params } })
}

/// The checksum of a block with a MAC: half of it is the MAC, and weak functions fold that half into the other.
pub(super) fn with_mac(kind: Checksum, sum: [u64; 4], mac: &Mac) -> [u64; 4] {
    let [mut a, mut b, c, d] = sum;
    if !kind.is_dedup() {
        (a, b) = (a ^ c, b ^ d);
    }
    const { assert!(MAC_LEN == 16) };
    let words = u128::from_le_bytes(*mac);
    [a, b, words as u64, (words >> 64) as u64]
}
