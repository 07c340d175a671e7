//! Buffers of system attributes, and extended attributes packed into one of them.
//!
//! A buffer is written for a layout: its number and its attributes in order. Which attributes go
//! into the bonus buffer and which into the spill block is decided by [`bonus_attrs`]: those that
//! leave room for the spill pointer, once there are more than fit.

use super::{EncodeError, Result};
use crate::SECTOR;
use crate::blkptr::BLKPTR_SIZE;
use crate::sa::{AttrDef, SA_MAGIC};
use std::borrow::Borrow;

const WHAT: &str = "system attributes";
/// Largest spill block: 128 KiB (`SPA_OLD_MAXBLOCKSIZE`).
pub const MAX_SPILL: usize = 128 << 10;
/// Largest layout number that a header holds; 0 and 1 are not for new buffers.
const MAX_LAYOUT: u16 = 0x3ff;

impl AttrDef {
    /// The value of the registry entry.
    pub fn encode(&self) -> u64 {
        u64::from(self.length) << 24 | u64::from(self.swap) << 16 | u64::from(self.id)
    }
}

/// Bytes of the header of a buffer with `variable` attributes of variable length.
pub fn header_size(variable: usize) -> usize {
    (6 + 2 * variable).next_multiple_of(8)
}

/// Bytes of the buffer of attributes of the given definitions and lengths: the header, and values
/// that each start at a multiple of 8.
pub fn buffer_size(attrs: impl IntoIterator<Item = (impl Borrow<AttrDef>, usize)>) -> usize {
    let (mut variable, mut end) = (0, 0usize);
    for (attr, len) in attrs {
        variable += usize::from(attr.borrow().length == 0);
        end = end.next_multiple_of(8) + len;
    }
    end + header_size(variable)
}

/// The buffer of `attrs` (definition and value, in the layout's order) under layout `layout`.
/// Values are little-endian already.
///
/// Errors: a value of another length than its definition says, one of more than 64 KiB, more
/// attributes of variable length than a header has room for, a layout number below 2 or over 1023.
pub fn encode_attrs<'a>(
    layout: u16,
    attrs: impl Iterator<Item = (AttrDef, &'a [u8])> + Clone,
) -> Result<Vec<u8>> {
    let bad = |why: String| Err(EncodeError::unrepresentable(WHAT, why));
    let lengths = attrs.clone().filter(|(a, _)| a.length == 0).map(|(_, v)| v.len());
    let head = header_size(lengths.clone().count());
    if head / 8 > 0x3f || !(2..=MAX_LAYOUT).contains(&layout) {
        return bad(format!("layout {layout}, header of {head} bytes"));
    }
    let mut out = Vec::with_capacity(buffer_size(attrs.clone().map(|(a, v)| (a, v.len()))));
    out.extend(SA_MAGIC.to_le_bytes());
    out.extend((layout | ((head / 8) as u16) << 10).to_le_bytes());
    for len in lengths {
        let Ok(len) = u16::try_from(len) else {
            return bad(format!("a value of {len} bytes"));
        };
        out.extend(len.to_le_bytes());
    }
    out.resize(head, 0);
    for (attr, value) in attrs {
        if attr.length != 0 && usize::from(attr.length) != value.len() {
            return bad(format!("attribute {} of {} bytes", attr.id, value.len()));
        }
        out.resize(out.len().next_multiple_of(8), 0);
        out.extend_from_slice(value);
    }
    Ok(out)
}

/// How many of `attrs` (definition and length, in order) go into a bonus buffer with room for
/// `space` bytes: all if they fit, else those that fit beside a spill pointer; the rest is for the
/// spill block. Errors: the rest does not fit into a spill block.
pub fn bonus_attrs(attrs: &[(AttrDef, usize)], space: usize) -> Result<usize> {
    let size = |part: &[(AttrDef, usize)]| buffer_size(part.iter().map(|(a, len)| (a, *len)));
    if size(attrs) <= space {
        return Ok(attrs.len());
    }
    // None where there is not even room for the pointer.
    let space = space.saturating_sub(BLKPTR_SIZE);
    let fit = (0..attrs.len()).take_while(|n| size(&attrs[..=*n]) <= space).count();
    spill_block_size(size(&attrs[fit..]))?;
    Ok(fit)
}

/// Bytes of the spill block for a buffer of `len` bytes. Errors: more than 128 KiB.
pub fn spill_block_size(len: usize) -> Result<usize> {
    let size = len.max(1).checked_next_multiple_of(SECTOR as usize);
    match size.filter(|s| *s <= MAX_SPILL) {
        Some(size) => Ok(size),
        None => Err(EncodeError::unrepresentable(WHAT, format!("spill of {len} bytes"))),
    }
}

/// The value of `ZPL_DXATTR`: extended attributes as a packed XDR nvlist of byte arrays, as
/// [`decode_xattrs`](crate::sa::decode_xattrs) reads it. Errors: a name with a NUL, lengths beyond
/// 32 bits.
pub fn encode_xattrs(pairs: &[(&[u8], &[u8])]) -> Result<Vec<u8>> {
    const BYTE_ARRAY: u32 = 10;
    let bad = |why: &str| EncodeError::unrepresentable("extended attributes", why);
    // XDR, little-endian writer; version 0, names are unique.
    let mut out = vec![1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    for (name, value) in pairs {
        if name.is_empty() || name.contains(&0) {
            return Err(bad("a name that is empty or has a NUL"));
        }
        let (name_pad, value_pad) =
            (name.len().next_multiple_of(4), value.len().next_multiple_of(4));
        let encoded = 20 + name_pad + value_pad;
        // What the pair takes in memory: a structure of 16 bytes and the name with its NUL, then
        // the value, each rounded up.
        let in_memory = (16 + name.len() + 1).next_multiple_of(8) + value.len().next_multiple_of(8);
        let start = out.len();
        for n in [encoded, in_memory, name.len()] {
            let n = u32::try_from(n).map_err(|_| bad("a pair of more than 4 GiB"))?;
            out.extend(n.to_be_bytes());
        }
        out.extend_from_slice(name);
        out.resize(start + 12 + name_pad, 0);
        out.extend(BYTE_ARRAY.to_be_bytes());
        out.extend((value.len() as u32).to_be_bytes());
        out.extend_from_slice(value);
        out.resize(start + encoded, 0);
    }
    out.extend([0; 8]);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteOrder;
    use crate::nvlist::{NvList, NvValue};
    use crate::sa::{Layout, SaHeader, decode_xattrs};
    use proptest::prelude::*;

    fn values() -> impl Strategy<Value = Vec<(AttrDef, Vec<u8>)>> {
        let one = (any::<u16>(), any::<bool>(), proptest::collection::vec(any::<u8>(), 1..80));
        proptest::collection::vec(one, 0..30).prop_map(|all| {
            let def = |id, fixed, len: usize| AttrDef {
                id,
                length: if fixed { len as u16 } else { 0 },
                swap: 3,
            };
            all.into_iter().map(|(id, fixed, v)| (def(id, fixed, v.len()), v)).collect()
        })
    }

    proptest! {
        #[test]
        fn attributes_come_back(values in values(), layout in 2u16..1024) {
            let attrs: Vec<(AttrDef, &[u8])> = values.iter().map(|(a, v)| (*a, &v[..])).collect();
            let defs: Vec<AttrDef> = attrs.iter().map(|a| a.0).collect();
            let bytes = encode_attrs(layout, attrs.iter().copied()).unwrap();
            prop_assert_eq!(bytes.len(), buffer_size(attrs.iter().map(|(a, v)| (a, v.len()))));
            let header = SaHeader::decode(&bytes).unwrap();
            prop_assert_eq!((header.order, header.layout), (ByteOrder::Little, layout));
            let found = Layout::new(defs.clone()).locate(&bytes, &header).unwrap();
            prop_assert_eq!(found.first().map_or(header.size, |v| v.at), header.size);
            for (value, (def, bytes_in)) in found.iter().zip(&attrs) {
                prop_assert_eq!(value.def, *def);
                prop_assert_eq!(&bytes[value.at..value.at + value.len], *bytes_in);
            }
            for def in defs {
                prop_assert_eq!(AttrDef::decode(def.encode()), def);
            }
        }

        #[test]
        fn what_is_in_the_bonus_fits(values in values(), space in 30usize..150) {
            let attrs: Vec<_> = values.iter().map(|(a, v)| (*a, v.len())).collect();
            let space = space * 8;
            let size = |part: &[(AttrDef, usize)]| buffer_size(part.iter().map(|(a, l)| (a, *l)));
            let n = bonus_attrs(&attrs, space).unwrap();
            if n == attrs.len() {
                prop_assert!(size(&attrs) <= space);
            } else {
                prop_assert!(size(&attrs[..n]) <= space - 128 && size(&attrs) > space);
                prop_assert!(size(&attrs[..=n]) > space - 128);
            }
        }

        #[test]
        fn extended_attributes_come_back(pairs in proptest::collection::vec(
            ("[a-z.]{1,40}", proptest::collection::vec(any::<u8>(), 0..200)), 0..8)) {
            let refs: Vec<_> = pairs.iter().map(|(n, v)| (n.as_bytes(), &v[..])).collect();
            let bytes = encode_xattrs(&refs).unwrap();
            prop_assert_eq!(decode_xattrs(&bytes).unwrap(), refs);
            // The encoder of lists writes the same.
            let pairs = pairs.into_iter().map(|(n, v)| (n, NvValue::ByteArray(v))).collect();
            prop_assert_eq!(NvList { pairs }.encode(), bytes);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let variable = AttrDef { id: 1, length: 0, swap: 3 };
        let fixed = AttrDef { id: 2, length: 8, swap: 0 };
        assert!(encode_attrs(1, [(fixed, &[0; 8][..])].into_iter()).is_err());
        assert!(encode_attrs(1024, [(fixed, &[0; 8][..])].into_iter()).is_err());
        assert!(encode_attrs(2, [(fixed, &[0; 7][..])].into_iter()).is_err());
        assert!(encode_attrs(2, [(variable, &[0; 65536][..])].into_iter()).is_err());
        assert!(encode_attrs(2, [(variable, &[0; 1][..]); 250].into_iter()).is_err());
        assert!(bonus_attrs(&[(variable, 140_000)], 320).is_err());
        assert_eq!((spill_block_size(0).unwrap(), spill_block_size(513).unwrap()), (512, 1024));
        assert!(encode_xattrs(&[(b"a\0b", b"")]).is_err());
    }
}
