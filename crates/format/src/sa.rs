//! System attributes: how a file's attributes lie in a bonus buffer or a spill block.
//!
//! ZPL version 5 keeps the attributes of a file (mode, size, times, …) as a packed sequence without
//! names. What the sequence holds is said by a *layout*: a list of attribute numbers, kept once per
//! file system; what an attribute number means, and how long its value is, is said by the
//! *registry*. A buffer (`sa_hdr_phys_t` and what follows) looks like this:
//!
//! ```text
//! 0   magic 0x2f505a (32 bits), in the byte order in which the whole buffer was written
//! 4   layout number (low 10 bits), header size in units of 8 bytes (high 6 bits)
//! 6   lengths (16 bits each) of the attributes of variable length, in the layout's order
//!     values, each starting at a multiple of 8
//! ```
//!
//! The magic number tells the byte order of the buffer: the block around it may have been rewritten
//! by a machine of the other byte order without the buffer being touched.
//!
//! Registry values (`ATTR_NUM`, `ATTR_LENGTH`, `ATTR_BSWAP`) are 64-bit integers: number (16 bits),
//! byte-swap function (8), length (16; 0 for variable).
//!
//! One attribute, `ZPL_DXATTR`, holds the extended attributes of a file as a packed XDR nvlist in
//! which every value is a byte array. [`decode_xattrs`] reads it without going through
//! [`nvlist`](crate::nvlist): names of extended attributes are bytes, not text, and values need no
//! copies.
//!
//! Invariant: everything returned lies within the buffer that was given.

use crate::dmu::DmuType;
use crate::turn::{self, swap};
use crate::{ByteOrder, Bytes, DecodeError, Result};

/// `SA_MAGIC`.
pub const SA_MAGIC: u32 = 0x002f_505a;
/// Bytes of the header before the lengths.
const LENGTHS_AT: usize = 6;

/// An attribute as the registry describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttrDef {
    /// Number by which layouts refer to it.
    pub id: u16,
    /// Bytes of a value; 0 if each value has its own length.
    pub length: u16,
    /// `sa_bswap_type_t`: 0 64-bit integers, 1 32-bit, 2 16-bit, 3 bytes, 4 an ACL.
    pub swap: u8,
}

impl AttrDef {
    /// Decodes the value of a registry entry.
    pub fn decode(word: u64) -> AttrDef {
        AttrDef { id: word as u16, swap: (word >> 16) as u8, length: (word >> 24) as u16 }
    }
}

/// The head of a buffer of system attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaHeader {
    /// Byte order of the buffer.
    pub order: ByteOrder,
    /// Number of the layout. 0 in a buffer stands for layout 1.
    pub layout: u16,
    /// Bytes of the header, as it says itself.
    pub size: usize,
}

impl SaHeader {
    /// Decodes the header at the start of `data`.
    pub fn decode(data: &[u8]) -> Result<SaHeader> {
        const WHAT: &str = "system attribute header";
        let little = Bytes::new(data, ByteOrder::Little, WHAT);
        let order = match little.u32(0)? {
            SA_MAGIC => ByteOrder::Little,
            m if m.swap_bytes() == SA_MAGIC => ByteOrder::Big,
            m => return Err(DecodeError::invalid(WHAT, format!("magic {m:#x}"))),
        };
        let info = Bytes::new(data, order, WHAT).u16(4)?;
        let layout = match info & 0x3ff {
            0 => 1,
            n => n,
        };
        Ok(SaHeader { order, layout, size: usize::from(info >> 10) * 8 })
    }
}

/// Where the value of an attribute is in its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaValue {
    /// The attribute.
    pub def: AttrDef,
    /// First byte of the value.
    pub at: usize,
    /// Bytes of the value.
    pub len: usize,
}

/// The attributes of the buffers of a layout, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    attrs: Vec<AttrDef>,
    /// Bytes of the lengths in the header.
    lengths: usize,
    /// Where the values are before the first of variable length: in all buffers at the same places.
    alike: Vec<SaValue>,
    /// Where the one after them is.
    next: usize,
}

impl Layout {
    /// The layout that lists `attrs`.
    pub fn new(attrs: Vec<AttrDef>) -> Layout {
        let lengths = attrs.iter().filter(|a| a.length == 0).count() * 2;
        let mut next = (LENGTHS_AT + lengths).next_multiple_of(8);
        let alike = attrs.iter().take_while(|a| a.length != 0);
        let alike = alike.map(|a| value_at(&mut next, *a, a.length)).collect();
        Layout { attrs, lengths, alike, next }
    }

    /// What it lists.
    pub fn attrs(&self) -> &[AttrDef] {
        &self.attrs
    }

    /// Finds the values in a buffer of this layout whose header is `header`.
    /// Fails if a value does not lie in the buffer.
    pub fn locate(&self, data: &[u8], header: &SaHeader) -> Result<Vec<SaValue>> {
        let b = Bytes::new(data, header.order, "system attributes");
        b.slice(LENGTHS_AT, self.lengths)?;
        let mut values = Vec::with_capacity(self.attrs.len());
        values.extend_from_slice(&self.alike);
        let (mut at, mut length_at) = (self.next, LENGTHS_AT);
        for a in self.attrs.iter().skip(self.alike.len()) {
            let mut len = a.length;
            if len == 0 {
                len = b.u16(length_at)?;
                length_at += 2;
            }
            values.push(value_at(&mut at, *a, len));
        }
        // They lie one after the other.
        if let Some(last) = values.last() {
            b.slice(last.at, last.len)?;
        }
        Ok(values)
    }
}

impl Layout {
    /// Turns a buffer of this layout that a machine of the other byte order wrote (`sa_byteswap`); `header` is its header
    /// as it was.
    ///
    /// # Errors
    /// A value does not lie in the buffer.
    pub fn turn(&self, data: &mut [u8], header: &SaHeader) -> Result<()> {
        for SaValue { def, at, len } in self.locate(data, header)? {
            let Some(value) = data.get_mut(at..at.saturating_add(len)) else { continue };
            match def.swap {
                0 => swap(value, 8),
                1 => swap(value, 4),
                2 => swap(value, 2),
                4 => turn::turn_list(value),
                // Bytes have no order, and of other functions nothing is known (`SA_UINT8_ARRAY`).
                _ => {}
            }
        }
        let numbers = data.get_mut(..LENGTHS_AT.saturating_add(self.lengths));
        if let Some((magic, numbers)) = numbers.and_then(|head| head.split_at_mut_checked(4)) {
            swap(magic, 4);
            swap(numbers, 2);
        }
        Ok(())
    }
}

/// A value at `at`, which becomes the place of the next one.
fn value_at(at: &mut usize, def: AttrDef, len: u16) -> SaValue {
    let value = SaValue { def, at: *at, len: usize::from(len) };
    // A layout in memory has so many attributes of 64 KiB at most.
    *at = (*at + value.len).next_multiple_of(8);
    value
}

/// Decodes the value of `ZPL_DXATTR`: names and values of extended attributes, in stored order.
pub fn decode_xattrs(data: &[u8]) -> Result<Vec<(&[u8], &[u8])>> {
    const WHAT: &str = "extended attributes";
    const XDR: u8 = 1;
    const BYTE_ARRAY: u32 = 10;
    let b = Bytes::new(data, ByteOrder::Big, WHAT);
    if data.is_empty() {
        return Ok(Vec::new());
    }
    if b.u8(0)? != XDR {
        return Err(DecodeError::invalid(WHAT, format!("nvlist encoding {}", b.u8(0)?)));
    }
    // 4 bytes of encoding and byte order, then version and flags of the list.
    let mut at = 12usize;
    let mut out = Vec::new();
    loop {
        let (encoded, decoded) = (b.u32(at)? as usize, b.u32(at + 4)?);
        if encoded == 0 && decoded == 0 {
            return Ok(out);
        }
        let pair = b.sub(at, encoded, WHAT)?;
        let name_len = pair.u32(8)? as usize;
        let name = pair.slice(12, name_len)?;
        // The name lies in the pair: what is next to it has a number, if it is there or not.
        let p = 12 + name_len.next_multiple_of(4);
        let (kind, count) = (pair.u32(p)?, pair.u32(p + 4)?);
        if kind != BYTE_ARRAY {
            return Err(DecodeError::invalid(WHAT, format!("a value of type {kind}")));
        }
        // A pair is at least as long as its two sizes, so the walk always advances.
        out.push((name, pair.counted(p + 8, count.into(), 1)?));
        at += encoded;
    }
}

/// Whom a file's space is counted for (`zfs_file_info_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileInfo {
    /// Owner, as it is stored: the upper 32 bits are the index of a domain.
    pub uid: u64,
    /// Group, likewise.
    pub gid: u64,
    /// Project; 0 if the file has no project.
    pub projid: u64,
    /// Transaction group in which the file was created: files that take a number one after the other differ.
    pub generation: u64,
}

/// Whom the space of an object with this bonus buffer is counted for; `None` if it is no file, or
/// the buffer makes no sense (`zpl_get_file_info`). `order` is that of the dnode.
///
/// In every layout that files have, the first seven attributes are mode, size, generation, owner,
/// group, parent and flags, and the project, if the flags say that there is one, has its place too.
pub fn file_info(kind: DmuType, bonus: &[u8], order: ByteOrder) -> Option<FileInfo> {
    const GENERATION: usize = 16;
    const UID: usize = 24;
    const GID: usize = 32;
    const FLAGS: usize = 48;
    const PROJID: usize = 128;
    const FLAG_PROJID: u64 = 0x0000_8000_0000_0000;
    const WHAT: &str = "owner of a file";
    match kind {
        DmuType::ZNODE => {
            let b = Bytes::new(bonus, order, WHAT);
            let (uid, gid, generation) = (b.u64(128).ok()?, b.u64(136).ok()?, b.u64(64).ok()?);
            Some(FileInfo { uid, gid, projid: 0, generation })
        }
        DmuType::SA => {
            let header = SaHeader::decode(bonus).ok()?;
            if header.size < LENGTHS_AT + 2 {
                return None;
            }
            let b = Bytes::new(bonus.get(header.size..)?, header.order, WHAT);
            let has_project = b.u64(FLAGS).ok()? & FLAG_PROJID != 0;
            let projid = if has_project { b.u64(PROJID).ok()? } else { 0 };
            let (uid, gid) = (b.u64(UID).ok()?, b.u64(GID).ok()?);
            Some(FileInfo { uid, gid, projid, generation: b.u64(GENERATION).ok()? })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packed(pairs: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut v = vec![1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        for (name, value) in pairs {
            let pad = |n: usize| n.div_ceil(4) * 4;
            let size = 12 + pad(name.len()) + 8 + pad(value.len());
            for w in [size as u32, 64, name.len() as u32] {
                v.extend(w.to_be_bytes());
            }
            v.extend(*name);
            v.resize(v.len() + pad(name.len()) - name.len(), 0);
            for w in [10, value.len() as u32] {
                v.extend(w.to_be_bytes());
            }
            v.extend(*value);
            v.resize(v.len() + pad(value.len()) - value.len(), 0);
        }
        v.extend([0; 8]);
        v
    }

    #[test]
    fn attributes_are_found_in_either_byte_order() {
        let attrs = [
            AttrDef { id: 5, length: 8, swap: 0 },
            AttrDef { id: 17, length: 0, swap: 3 },
            AttrDef { id: 19, length: 0, swap: 3 },
            AttrDef { id: 6, length: 16, swap: 0 },
        ];
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let mut v = Vec::new();
            let u16s =
                |n: u16| if order == ByteOrder::Little { n.to_le_bytes() } else { n.to_be_bytes() };
            v.extend(if order == ByteOrder::Little {
                SA_MAGIC.to_le_bytes()
            } else {
                SA_MAGIC.to_be_bytes()
            });
            for n in [3 | 2 << 10, 5, 9] {
                v.extend(u16s(n));
            }
            v.resize(16 + 8 + 8 + 16 + 16, 0);
            let h = SaHeader::decode(&v).unwrap();
            assert_eq!(h, SaHeader { order, layout: 3, size: 16 });
            let found: Vec<_> = Layout::new(attrs.to_vec())
                .locate(&v, &h)
                .unwrap()
                .iter()
                .map(|v| (v.def.id, v.at, v.len))
                .collect();
            assert_eq!(found, [(5, 16, 8), (17, 24, 5), (19, 32, 9), (6, 48, 16)]);
            assert!(Layout::new(attrs.to_vec()).locate(&v[..v.len() - 1], &h).is_err());
        }
    }

    #[test]
    fn registry_values_split_into_their_fields() {
        assert_eq!(AttrDef::decode(0x1000_0005), AttrDef { id: 5, length: 16, swap: 0 });
        assert_eq!(AttrDef::decode(0x0003_0011), AttrDef { id: 17, length: 0, swap: 3 });
    }

    #[test]
    fn owners_are_where_the_accounting_looks() {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let little = order == ByteOrder::Little;
            let word = |n: u64| if little { n.to_le_bytes() } else { n.to_be_bytes() };
            let mut v =
                if little { SA_MAGIC.to_le_bytes() } else { SA_MAGIC.to_be_bytes() }.to_vec();
            let info = 2u16 | 1 << 10;
            v.extend(if little { info.to_le_bytes() } else { info.to_be_bytes() });
            v.extend([0; 2]);
            (0..17).for_each(|n| v.extend(word(if n == 6 { 1 << 47 } else { 100 + n })));
            let found = file_info(DmuType::SA, &v, ByteOrder::Little);
            assert_eq!(found, Some(FileInfo { uid: 103, gid: 104, projid: 116, generation: 102 }));
            v[8 + 48..][..8].fill(0);
            let found = file_info(DmuType::SA, &v, ByteOrder::Little);
            assert_eq!(found, Some(FileInfo { uid: 103, gid: 104, projid: 0, generation: 102 }));
            assert_eq!(file_info(DmuType::SA, &v[..50], order), None);
            let old: Vec<u8> = (0..33).flat_map(word).collect();
            let found = file_info(DmuType::ZNODE, &old, order);
            assert_eq!(found, Some(FileInfo { uid: 16, gid: 17, projid: 0, generation: 8 }));
            assert_eq!(file_info(DmuType::DSL_DIR, &old, order), None);
        }
    }

    proptest! {
        #[test]
        fn extended_attributes_come_back(pairs in proptest::collection::vec(
            (proptest::collection::vec(any::<u8>(), 1..40), proptest::collection::vec(any::<u8>(), 0..200)), 0..8)) {
            let refs: Vec<(&[u8], &[u8])> = pairs.iter().map(|(n, v)| (&n[..], &v[..])).collect();
            let bytes = packed(&refs);
            prop_assert_eq!(decode_xattrs(&bytes).unwrap(), refs);
            for cut in 1..bytes.len() {
                prop_assert!(decode_xattrs(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut v in proptest::collection::vec(any::<u8>(), 0..300), big in any::<bool>()) {
            let _ = decode_xattrs(&v);
            if let Some(first) = v.first_mut() {
                *first = 1;
            }
            let _ = decode_xattrs(&v);
            if v.len() >= 4 {
                v[..4].copy_from_slice(&if big { SA_MAGIC.to_be_bytes() } else { SA_MAGIC.to_le_bytes() });
            }
            if let Ok(h) = SaHeader::decode(&v) {
                let attrs = (0..20).map(|i| AttrDef { id: i, length: i % 3 * 8, swap: 0 });
                for a in Layout::new(attrs.collect()).locate(&v, &h).unwrap_or_default() {
                    prop_assert!(a.at + a.len <= v.len());
                }
            }
        }
    }
}
