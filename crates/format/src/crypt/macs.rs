//! MACs of what is not encrypted: indirect blocks and object sets (`zio_crypt_do_indirect_mac_checksum`,
//! `zio_crypt_do_objset_hmacs`).

use super::key::{DatasetKey, HmacSha512, same};
use super::layout::{auth_of, dnode_at};
use super::params::{MAC_LEN, Mac, bp_mac};
use super::wrap::KEY_VERSION;
use super::{CryptError, Result};
use crate::blkptr::{BLKPTR_SIZE, BlockPointer};
use crate::dmu::DNODE_SLOT;
use crate::{ByteOrder, Bytes, DecodeError};
use hmac::Mac as _;
use sha2::{Digest, Sha512};

/// Bytes of each MAC of an object set (`ZIO_OBJSET_MAC_LEN`).
pub const OBJSET_MAC_LEN: usize = 32;
/// Offsets in an object set.
const TYPE_AT: usize = 704;
const FLAGS_AT: usize = 712;
const PORTABLE_AT: usize = 720;
const LOCAL_AT: usize = 752;
/// The dnodes of accounting: of users, groups and projects.
const ACCOUNTING: [usize; 3] = [1024, 1536, 2048];
/// Object sets up to this size have no accounting (`OBJSET_PHYS_SIZE_V1`).
const WITHOUT_ACCOUNTING: usize = 1024;
/// `os_flags`: accounting is complete (`OBJSET_FLAG_USERACCOUNTING_COMPLETE`).
const ACCOUNTING_COMPLETE: u64 = 1;

/// The MAC of an indirect block with these logical bytes, as keys of `version` have it: a checksum of the MACs below. It
/// takes no key.
///
/// # Errors
/// They are no whole number of pointers.
pub fn indirect_mac(block: &[u8], order: ByteOrder, version: u64) -> crate::Result<Mac> {
    let bytes = Bytes::new(block, order, "indirect block");
    let mut hash = Sha512::new();
    for at in (0..block.len()).step_by(BLKPTR_SIZE) {
        hash.update(auth_of(&BlockPointer::decode(&bytes, at)?, version));
    }
    let whole = hash.finalize();
    let mut mac = [0; MAC_LEN];
    mac.copy_from_slice(whole.get(..MAC_LEN).unwrap_or(&[0; MAC_LEN]));
    Ok(mac)
}

/// Checks the logical bytes of an indirect block against the MAC in its pointer.
///
/// # Errors
/// [`CryptError::Mac`]: it has another one, whatever the version of the key.
pub fn check_indirect(bp: &BlockPointer, block: &[u8]) -> Result<()> {
    let (order, expected) = (bp.byte_order(), bp_mac(bp));
    match same(&indirect_mac(block, order, KEY_VERSION)?, &expected) {
        Ok(()) => Ok(()),
        Err(_) => same(&indirect_mac(block, order, 0)?, &expected),
    }
}

/// The MACs of an object set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjsetMacs {
    /// Of what a raw stream carries: the meta dnode.
    pub portable: [u8; OBJSET_MAC_LEN],
    /// The MAC of the accounting of space, which belongs to one pool. A pool without that has zeros here.
    pub local: [u8; OBJSET_MAC_LEN],
}

impl ObjsetMacs {
    /// Those that the object set in `block` is to have.
    ///
    /// # Errors
    /// The block is no object set.
    pub fn of(key: &DatasetKey, block: &[u8], order: ByteOrder) -> Result<ObjsetMacs> {
        let bytes = Bytes::new(block, order, "object set");
        let mut portable = key.hmac()?;
        // Of all that is authenticated this alone is big-endian.
        portable.update(&bytes.u64(TYPE_AT)?.to_be_bytes());
        // No flag is portable.
        portable.update(&[0; 8]);
        dnode(&mut portable, key, &bytes, 0)?;
        Ok(ObjsetMacs { portable: half(portable), local: local(key, &bytes)? })
    }

    /// Those that lie in it.
    ///
    /// # Errors
    /// The block is too short.
    pub fn stored(block: &[u8]) -> crate::Result<ObjsetMacs> {
        let bytes = Bytes::new(block, ByteOrder::Little, "object set");
        let mut macs = ObjsetMacs { portable: [0; OBJSET_MAC_LEN], local: [0; OBJSET_MAC_LEN] };
        macs.portable.copy_from_slice(bytes.slice(PORTABLE_AT, OBJSET_MAC_LEN)?);
        macs.local.copy_from_slice(bytes.slice(LOCAL_AT, OBJSET_MAC_LEN)?);
        Ok(macs)
    }
}

/// Checks the MACs of an object set (`spa_do_crypt_objset_mac_abd`). Where there is no complete accounting a local MAC
/// counts for nothing: earlier releases wrote others there.
///
/// # Errors
/// [`CryptError::Mac`]: one of them is wrong.
pub fn check_objset(key: &DatasetKey, block: &[u8], order: ByteOrder) -> Result<()> {
    let (right, found) = (ObjsetMacs::of(key, block, order)?, ObjsetMacs::stored(block)?);
    same(&right.portable, &found.portable)?;
    match right.local == [0; OBJSET_MAC_LEN] {
        true => Ok(()),
        false => same(&right.local, &found.local),
    }
}

/// Puts its MACs into the little-endian object set `block`, instead of those that are there.
///
/// # Errors
/// The block is no object set.
pub fn put_objset_macs(key: &DatasetKey, block: &mut [u8]) -> Result<()> {
    let macs = ObjsetMacs::of(key, block, ByteOrder::Little)?;
    for (at, mac) in [(PORTABLE_AT, macs.portable), (LOCAL_AT, macs.local)] {
        let short = || DecodeError::invalid("object set", "too short for its MACs");
        block.get_mut(at..at + OBJSET_MAC_LEN).ok_or_else(short)?.copy_from_slice(&mac);
    }
    Ok(())
}

/// Puts the portable MAC of a raw stream into the object set `block`, and zeros where the local one is
/// (`dsl_crypto_recv_raw_objset_sync`).
///
/// # Errors
/// The block is no object set.
pub fn put_portable_mac(portable: &[u8; OBJSET_MAC_LEN], block: &mut [u8]) -> Result<()> {
    for (at, mac) in [(PORTABLE_AT, portable), (LOCAL_AT, &[0; OBJSET_MAC_LEN])] {
        let short = || DecodeError::invalid("object set", "too short for its MACs");
        block.get_mut(at..at + OBJSET_MAC_LEN).ok_or_else(short)?.copy_from_slice(mac);
    }
    Ok(())
}

fn half(hmac: HmacSha512) -> [u8; OBJSET_MAC_LEN] {
    let whole = hmac.finalize().into_bytes();
    let mut mac = [0; OBJSET_MAC_LEN];
    mac.copy_from_slice(whole.get(..OBJSET_MAC_LEN).unwrap_or(&[0; OBJSET_MAC_LEN]));
    mac
}

fn local(key: &DatasetKey, bytes: &Bytes<'_>) -> Result<[u8; OBJSET_MAC_LEN]> {
    let flags = bytes.u64(FLAGS_AT)?;
    let there =
        |at: &usize| bytes.len() >= at + DNODE_SLOT && bytes.u8(*at).is_ok_and(|kind| kind != 0);
    let [users, groups, _] = ACCOUNTING;
    let none = !there(&users) && !there(&groups);
    if bytes.len() <= WITHOUT_ACCOUNTING || flags & ACCOUNTING_COMPLETE == 0 || none {
        return Ok([0; OBJSET_MAC_LEN]);
    }
    let mut hmac = key.hmac()?;
    hmac.update(&flags.to_le_bytes());
    for at in ACCOUNTING.into_iter().filter(there) {
        dnode(&mut hmac, key, bytes, at)?;
    }
    Ok(half(hmac))
}

/// What is authenticated of a dnode of an object set, in little-endian order (`zio_crypt_do_dnode_hmac_updates`).
fn dnode(hmac: &mut HmacSha512, key: &DatasetKey, bytes: &Bytes<'_>, at: usize) -> Result<()> {
    let mut dnode = dnode_at(bytes, at).map_err(CryptError::from)?;
    if bytes.order() == ByteOrder::Big {
        // Two lengths of 16 bits and the last block's number; the space used is zero already.
        for field in [8..10, 10..12, 16..24] {
            if let Some(field) = dnode.core.get_mut(field) {
                field.reverse();
            }
        }
    }
    hmac.update(&dnode.core);
    dnode.pointers.iter().for_each(|bp| hmac.update(auth_of(bp, key.version()).as_ref()));
    Ok(())
}
