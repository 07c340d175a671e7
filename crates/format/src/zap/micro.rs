//! Micro ZAP (`mzap_phys_t`): one block of fixed entries.
//!
//! ```text
//! 0    block type (ZBT_MICRO)
//! 8    salt
//! 16   normalization flags
//! 24   padding
//! 64   entries of 64 bytes: value(64) cd(32) pad(16) name(50, ends in NUL)
//! ```
//!
//! An entry whose name is empty is free. The block is any multiple of 512 bytes up to 128 KiB, or
//! up to 1 MiB with the feature `large_microzap`.

use super::{BlockKind, block_kind};
use crate::{Bytes, DecodeError, Result};

/// Bytes of an entry, and of the header.
pub const ENTRY_SIZE: usize = 64;
/// Bytes of the name field of an entry, the closing NUL included.
pub const NAME_SIZE: usize = 50;
const NAME_AT: usize = ENTRY_SIZE - NAME_SIZE;

/// A view of a micro ZAP's block.
#[derive(Debug, Clone, Copy)]
pub struct Micro<'a> {
    bytes: Bytes<'a>,
    /// Start value of the hash.
    pub salt: u64,
    /// Normalization flags, see [`super::norm`].
    pub norm_flags: u64,
}

/// An entry in use (`mzap_ent_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroEntry<'a> {
    /// The key, without the closing NUL.
    pub name: &'a [u8],
    /// The value.
    pub value: u64,
    /// Collision differentiator.
    pub cd: u32,
}

impl<'a> Micro<'a> {
    /// Checks the header.
    pub fn decode(bytes: Bytes<'a>) -> Result<Micro<'a>> {
        if block_kind(&bytes)? != BlockKind::Micro {
            return Err(DecodeError::invalid(
                "micro ZAP",
                format!("block type {:#x}", bytes.u64(0)?),
            ));
        }
        bytes.slice(0, ENTRY_SIZE)?;
        Ok(Micro { bytes, salt: bytes.u64(8)?, norm_flags: bytes.u64(16)? })
    }

    /// Entries that fit into the block, in use or not.
    pub fn slots(&self) -> usize {
        self.bytes.len() / ENTRY_SIZE - 1
    }

    /// The entry of slot `slot`; `None` if it is free.
    pub fn entry(&self, slot: usize) -> Result<Option<MicroEntry<'a>>> {
        if slot >= self.slots() {
            let why = format!("no entry {slot} in {} bytes", self.bytes.len());
            return Err(DecodeError::invalid("micro ZAP", why));
        }
        let at = (slot + 1) * ENTRY_SIZE;
        let field = self.bytes.slice(at + NAME_AT, NAME_SIZE)?;
        match field.iter().position(|c| *c == 0) {
            Some(0) => Ok(None),
            Some(len) => Ok(Some(MicroEntry {
                name: &field[..len],
                value: self.bytes.u64(at)?,
                cd: self.bytes.u32(at + 8)?,
            })),
            None => {
                Err(DecodeError::invalid("micro ZAP", format!("entry {slot}: name without an end")))
            }
        }
    }

    /// The entries in use, in the order of their slots.
    pub fn entries(&self) -> impl Iterator<Item = Result<(usize, MicroEntry<'a>)>> + use<'a> {
        let this = *self;
        (0..self.slots()).filter_map(move |slot| match this.entry(slot) {
            Ok(entry) => entry.map(|e| Ok((slot, e))),
            Err(e) => Some(Err(e)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteOrder;

    fn block(order: ByteOrder) -> Vec<u8> {
        let w = |v: u64| match order {
            ByteOrder::Little => v.to_le_bytes(),
            ByteOrder::Big => v.to_be_bytes(),
        };
        let mut b = vec![0u8; 512];
        b[..8].copy_from_slice(&w(super::super::BLOCK_MICRO));
        b[8..16].copy_from_slice(&w(0x1234_5679));
        b[128..136].copy_from_slice(&w(77));
        b[142..145].copy_from_slice(b"abc");
        b[136..140].copy_from_slice(&if order == ByteOrder::Little {
            3u32.to_le_bytes()
        } else {
            3u32.to_be_bytes()
        });
        b
    }

    #[test]
    fn entries_in_both_byte_orders() {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let data = block(order);
            let micro = Micro::decode(Bytes::new(&data, order, "zap")).unwrap();
            assert_eq!((micro.salt, micro.slots()), (0x1234_5679, 7));
            let all: Vec<_> = micro.entries().map(|e| e.unwrap()).collect();
            assert_eq!(all, [(1, MicroEntry { name: b"abc", value: 77, cd: 3 })]);
        }
    }

    #[test]
    fn a_name_must_end() {
        let mut data = block(ByteOrder::Little);
        data[142..192].fill(b'x');
        let micro = Micro::decode(Bytes::new(&data, ByteOrder::Little, "zap")).unwrap();
        assert!(micro.entry(1).is_err());
        assert!(micro.entry(7).is_err());
        assert!(micro.entry(usize::MAX).is_err());
    }
}
