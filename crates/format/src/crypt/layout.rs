//! Which bytes of a block are encrypted, and which are authenticated with them (`zio_crypt_init_uios`).
//!
//! What is authenticated of a dnode is what a raw stream can carry: of its fields neither the space that it uses nor
//! flags of one pool, of its pointers the MAC and what of the properties is the same in every pool ([`auth_of`]).
//!
//! Invariant: ranges are in order, do not overlap, and lie in the block.

use super::params::{MAC_LEN, Mac, bp_mac};
use crate::blkptr::{BLKPTR_SIZE, BlockPointer};
use crate::dmu::{DNODE_CORE, DNODE_FLAG_SPILL, DNODE_SLOT, DmuType};
use crate::invariant::broken;
use crate::zil::{RECORD_HEADER, WRITE_SIZE, kind};
use crate::{ByteOrder, Bytes, DecodeError, Result};
use std::ops::Range;

/// Bytes of a `zil_chain_t` before its checksum.
const CHAIN_PLAIN: usize = 144;
/// Bytes of a `zil_chain_t`.
const CHAIN: usize = crate::zil::chain::CHAIN_SIZE;
/// Offset in a `zil_chain_t` of the number of bytes used.
const CHAIN_USED_AT: usize = 136;
/// Bytes of an `lr_clone_range_t` before its number of pointers.
const CLONE_PLAIN_AT: usize = 64;
/// Offsets in a dnode.
const DNODE_FLAGS_AT: usize = 7;
const DNODE_USED: Range<usize> = 24..32;

/// The parts of a block.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// What is authenticated and not encrypted.
    pub(super) aad: Vec<u8>,
    /// What is encrypted.
    pub(super) secret: Vec<Range<usize>>,
}

/// What is authenticated of a pointer (`zio_crypt_bp_auth_init`): its properties, but those that differ between pools,
/// the MAC of its block, and zeros, which keys of version 0 leave out.
pub(super) struct BpAuth {
    bytes: [u8; 8 + MAC_LEN + 8],
    len: usize,
}

impl AsRef<[u8]> for BpAuth {
    fn as_ref(&self) -> &[u8] {
        match self.bytes.get(..self.len) {
            Some(bytes) => bytes,
            None => broken(format_args!("{} bytes of a pointer are authenticated", self.len)),
        }
    }
}

/// What is authenticated of `bp` by a key of `version`.
pub(super) fn auth_of(bp: &BlockPointer, version: u64) -> BpAuth {
    let mac: Mac = bp_mac(bp);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&portable(bp, version).to_le_bytes());
    bytes[8..24].copy_from_slice(&mac);
    BpAuth { bytes, len: if version == 0 { 24 } else { 32 } }
}

/// The properties word without what differs between pools (`zio_crypt_bp_zero_nonportable_blkprop`).
fn portable(bp: &BlockPointer, version: u64) -> u64 {
    const DEDUP: u64 = 1 << 62;
    const CHECKSUM: u64 = 0xff << 40;
    const PSIZE: u64 = 0xffff << 16;
    const ORDER: u64 = 1 << 63;
    const COMPRESSION: u64 = 0x7f << 32;
    let dropped = match version {
        0 => DEDUP | CHECKSUM | PSIZE,
        _ if bp.is_hole() => u64::MAX,
        _ if bp.level() > 0 => DEDUP | CHECKSUM | ORDER | COMPRESSION | PSIZE,
        _ => DEDUP | CHECKSUM,
    };
    bp.0[6] & !dropped
}

/// The parts of a dnode that are authenticated whatever becomes of its bonus buffer: the core, and pointers.
pub(super) struct DnodeAuth {
    /// The core, in the byte order of the block.
    pub(super) core: [u8; DNODE_CORE],
    /// Pointers, the one to the spill block last.
    pub(super) pointers: Vec<BlockPointer>,
    /// Room of the bonus buffer, from the start of the block.
    bonus: Range<usize>,
    /// Bytes of the dnode.
    size: usize,
}

/// The dnode, or free slot, at byte `at`.
pub(super) fn dnode_at(block: &Bytes<'_>, at: usize) -> Result<DnodeAuth> {
    let bad = |why: String| Err(DecodeError::invalid("dnode", why));
    let mut core = [0; DNODE_CORE];
    core.copy_from_slice(block.slice(at, DNODE_CORE)?);
    let (flags, extra_slots) = (core[DNODE_FLAGS_AT], core[12]);
    let size = DNODE_SLOT * (usize::from(extra_slots) + 1);
    block.slice(at, size)?;
    let pointers = usize::from(core[3]);
    let spill = flags & DNODE_FLAG_SPILL != 0;
    let from = DNODE_CORE + pointers * BLKPTR_SIZE;
    let end = size - if spill { BLKPTR_SIZE } else { 0 };
    if from > end {
        return bad(format!("{pointers} block pointers in {size} bytes"));
    }
    let mut all = Vec::with_capacity(pointers + 1);
    for i in 0..pointers {
        all.push(BlockPointer::decode(block, at + DNODE_CORE + i * BLKPTR_SIZE)?);
    }
    if spill {
        all.push(BlockPointer::decode(block, at + end)?);
    }
    core[DNODE_FLAGS_AT] = flags & DNODE_FLAG_SPILL;
    core[DNODE_USED].fill(0);
    Ok(DnodeAuth { core, pointers: all, bonus: at + from..at + end, size })
}

/// The parts of a block of dnodes (`zio_crypt_init_uios_dnode`).
///
/// # Errors
/// A dnode does not fit into the block.
pub(super) fn of_dnodes(block: &[u8], order: ByteOrder, version: u64) -> Result<Layout> {
    let bytes = Bytes::new(block, order, "block of dnodes");
    let mut layout = Layout::default();
    let mut at = 0;
    while at + DNODE_SLOT <= block.len() {
        let dnode = dnode_at(&bytes, at)?;
        layout.aad.extend_from_slice(&dnode.core);
        for bp in &dnode.pointers {
            layout.aad.extend_from_slice(auth_of(bp, version).as_ref());
        }
        let (kind, bonus_kind) = (DmuType(dnode.core[0]), DmuType(dnode.core[4]));
        let has_bonus = bytes.u16(at + 10)? != 0;
        if kind != DmuType::NONE && bonus_kind.is_encrypted() && has_bonus {
            layout.secret.push(dnode.bonus);
        } else {
            layout.aad.extend_from_slice(bytes.slice(dnode.bonus.start, dnode.bonus.len())?);
        }
        at += dnode.size;
    }
    Ok(layout)
}

/// The parts of an intent log block (`zio_crypt_init_uios_zil`).
///
/// # Errors
/// A record does not fit into what the block says is used of it.
pub(super) fn of_log(block: &[u8], order: ByteOrder) -> Result<Layout> {
    let bytes = Bytes::new(block, order, "intent log block");
    let bad = |why: String| Err(DecodeError::invalid("intent log block", why));
    let used = match bytes.u64(CHAIN_USED_AT)? {
        used if used > block.len() as u64 => return bad(format!("{used:#x} bytes used")),
        used => used as usize,
    };
    let mut layout = Layout::default();
    layout.aad.extend_from_slice(bytes.slice(0, CHAIN_PLAIN)?);
    let mut at = CHAIN;
    while at < used {
        let left = (block.len() - at) as u64;
        let len = match bytes.u64(at + 8)? {
            len if len < RECORD_HEADER as u64 || len > left => {
                return bad(format!("a record of {len:#x} bytes"));
            }
            len => len as usize,
        };
        layout.aad.extend_from_slice(bytes.slice(at, RECORD_HEADER)?);
        record(&mut layout, bytes.slice(at, len)?, at, bytes.u64(at)?)?;
        at += len;
    }
    Ok(layout)
}

/// What follows the header of a record of type `of`, which begins at byte `at` of the block.
fn record(layout: &mut Layout, record: &[u8], at: usize, of: u64) -> Result<()> {
    let plain = match of {
        kind::TX_WRITE => WRITE_SIZE - BLKPTR_SIZE..WRITE_SIZE,
        kind::TX_CLONE_RANGE => CLONE_PLAIN_AT..record.len(),
        _ => record.len()..record.len(),
    };
    let Some(authenticated) = record.get(plain.clone()).filter(|_| plain.start >= RECORD_HEADER)
    else {
        let why = format!("a record of type {of} of {:#x} bytes", record.len());
        return Err(DecodeError::invalid("intent log block", why));
    };
    layout.aad.extend_from_slice(authenticated);
    for secret in [RECORD_HEADER..plain.start, plain.end..record.len()] {
        if !secret.is_empty() {
            layout.secret.push(at + secret.start..at + secret.end);
        }
    }
    Ok(())
}
