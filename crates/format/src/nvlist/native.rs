//! The native encoding of nvlists (`nvs_native`): the structures of the writing machine's memory.
//!
//! ```text
//! outermost list  version(4) flags(4) pair* 0(4)
//! list in a pair  pair* 0(4)
//! pair            size(4) name size(2) 0(2) element count(4) type(4)
//!                 name with its NUL, padded so that the value begins at a multiple of 8
//!                 value, padded so that `size` is a multiple of 8
//! ```
//!
//! A value is the elements as they are in memory, in the machine's byte order. The value of a
//! list is a structure of 24 bytes (version, flags, a dead pointer) and its pairs follow the
//! pair; an array of lists has a dead pointer and such a structure for each, and their pairs
//! follow the pair one list after the other. An array of strings has a dead pointer for each,
//! then the strings with their NULs.

use super::{DataType, MAX_DEPTH, NvList, NvValue, WHAT, lossy};
use crate::{ByteOrder, Bytes, DecodeError, Result};

/// Bytes of `nvpair_t` before its name.
const PAIR: usize = 16;
/// `NV_UNIQUE_NAME`.
const UNIQUE_NAMES: u64 = 1;

/// Appends a list, as a little-endian machine packs it, behind the packed header.
pub(super) fn encode_list(list: &NvList, out: &mut Vec<u8>) {
    let mut writer = Writer { out: std::mem::take(out), order: ByteOrder::Little };
    writer.int(0, 4);
    writer.int(UNIQUE_NAMES, 4);
    writer.body(list);
    *out = writer.out;
}

/// Decodes a list that begins after the packed header, whose second byte was `endian`.
pub(super) fn decode(data: &[u8], endian: u8) -> Result<Vec<(Vec<u8>, NvValue)>> {
    let order = if endian == 1 { ByteOrder::Little } else { ByteOrder::Big };
    let bytes = Bytes::new(data, order, WHAT);
    super::check_version(bytes.u32(0)?)?;
    let mut r = Reader { bytes, at: 8 };
    let mut pairs = Vec::new();
    r.pairs(1, |name, value| pairs.push((name.to_vec(), value)))?;
    Ok(pairs)
}

struct Reader<'a> {
    bytes: Bytes<'a>,
    at: usize,
}

/// A pair's fixed part and where its value is.
struct Pair<'a> {
    name: &'a [u8],
    kind: DataType,
    count: usize,
    value: Bytes<'a>,
}

impl<'a> Reader<'a> {
    fn pairs(&mut self, depth: usize, mut f: impl FnMut(&'a [u8], NvValue)) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(super::too_deep());
        }
        while let Some(pair) = self.next_pair()? {
            let value = match pair.kind {
                DataType::NvList => NvValue::NvList(self.nested(depth)?),
                DataType::NvListArray => {
                    let mut lists = Vec::new();
                    for _ in 0..pair.count {
                        lists.push(self.nested(depth)?);
                    }
                    NvValue::NvListArray(lists)
                }
                _ => pair.value()?,
            };
            f(pair.name, value);
        }
        Ok(())
    }

    fn nested(&mut self, depth: usize) -> Result<NvList> {
        let mut pairs = Vec::new();
        self.pairs(depth + 1, |name, value| pairs.push((lossy(name), value)))?;
        Ok(NvList { pairs })
    }

    /// The next pair, or `None` at the end of the list.
    fn next_pair(&mut self) -> Result<Option<Pair<'a>>> {
        let size = self.bytes.u32(self.at)? as usize;
        if size == 0 {
            self.at += 4;
            return Ok(None);
        }
        let pair = self.bytes.sub(self.at, size, WHAT)?;
        let name_size = pair.u16(4)? as usize;
        let count = pair.u32(8)?;
        let kind = DataType::from_u32(pair.u32(12)?)?;
        kind.check_count(count)?;
        let name = match pair.slice(PAIR, name_size)? {
            [name @ .., 0] => super::no_nul(name)?,
            _ => return Err(DecodeError::invalid(WHAT, "name without a NUL")),
        };
        let start = (PAIR + name_size).next_multiple_of(8).min(size);
        let value = pair.sub(start, size - start, WHAT)?;
        self.at += size;
        Ok(Some(Pair { name, kind, count: count as usize, value }))
    }
}

impl Pair<'_> {
    /// The elements of a value of fixed-size elements: bounded by the bytes of the pair.
    fn array<T>(&self, f: impl Fn(usize) -> Result<T>) -> Result<Vec<T>> {
        let size = self.kind.element_size().unwrap_or(1).max(1);
        self.value.counted(0, self.count as u64, size)?;
        (0..self.count).map(|i| f(i * size)).collect()
    }

    fn strings(&self) -> Result<Vec<String>> {
        let bad = || DecodeError::invalid(WHAT, "unterminated string in an array");
        let dead_pointers = self.value.counted(0, self.count as u64, 8)?.len();
        let mut rest = self.value.rest(dead_pointers)?;
        let mut out = Vec::new();
        for _ in 0..self.count {
            let len = rest.iter().position(|b| *b == 0).ok_or_else(bad)?;
            out.push(lossy(&rest[..len]));
            rest = &rest[len + 1..];
        }
        Ok(out)
    }

    fn string(&self) -> Result<String> {
        let bytes = self.value.slice(0, self.value.len())?;
        let end = bytes.iter().position(|b| *b == 0);
        let end = end.ok_or_else(|| DecodeError::invalid(WHAT, "unterminated string"))?;
        Ok(lossy(&bytes[..end]))
    }

    /// Any value but lists.
    fn value(&self) -> Result<NvValue> {
        let v = &self.value;
        Ok(match self.kind {
            DataType::Boolean => NvValue::Boolean,
            DataType::BooleanValue => NvValue::BooleanValue(v.u32(0)? != 0),
            DataType::Byte => NvValue::Byte(v.u8(0)?),
            DataType::Int8 => NvValue::Int8(v.u8(0)? as i8),
            DataType::Uint8 => NvValue::Uint8(v.u8(0)?),
            DataType::Int16 => NvValue::Int16(v.u16(0)? as i16),
            DataType::Uint16 => NvValue::Uint16(v.u16(0)?),
            DataType::Int32 => NvValue::Int32(v.u32(0)? as i32),
            DataType::Uint32 => NvValue::Uint32(v.u32(0)?),
            DataType::Int64 => NvValue::Int64(v.u64(0)? as i64),
            DataType::Uint64 => NvValue::Uint64(v.u64(0)?),
            DataType::Hrtime => NvValue::Hrtime(v.u64(0)? as i64),
            DataType::Double => NvValue::Double(f64::from_bits(v.u64(0)?)),
            DataType::String => NvValue::String(self.string()?),
            DataType::ByteArray => NvValue::ByteArray(v.slice(0, self.count)?.to_vec()),
            DataType::BooleanArray => NvValue::BooleanArray(self.array(|i| Ok(v.u32(i)? != 0))?),
            DataType::Int8Array => NvValue::Int8Array(self.array(|i| Ok(v.u8(i)? as i8))?),
            DataType::Uint8Array => NvValue::Uint8Array(v.slice(0, self.count)?.to_vec()),
            DataType::Int16Array => NvValue::Int16Array(self.array(|i| Ok(v.u16(i)? as i16))?),
            DataType::Uint16Array => NvValue::Uint16Array(self.array(|i| v.u16(i))?),
            DataType::Int32Array => NvValue::Int32Array(self.array(|i| Ok(v.u32(i)? as i32))?),
            DataType::Uint32Array => NvValue::Uint32Array(self.array(|i| v.u32(i))?),
            DataType::Int64Array => NvValue::Int64Array(self.array(|i| Ok(v.u64(i)? as i64))?),
            DataType::Uint64Array => NvValue::Uint64Array(self.array(|i| v.u64(i))?),
            DataType::StringArray => NvValue::StringArray(self.strings()?),
            DataType::NvList | DataType::NvListArray => {
                return Err(DecodeError::invalid(WHAT, "a list where a plain value belongs"));
            }
        })
    }
}

/// Encodes lists by the layout above, as a machine of either byte order does.
struct Writer {
    out: Vec<u8>,
    order: ByteOrder,
}

impl Writer {
    fn int(&mut self, v: u64, size: usize) {
        match self.order {
            ByteOrder::Little => self.out.extend(&v.to_le_bytes()[..size]),
            ByteOrder::Big => self.out.extend(&v.to_be_bytes()[8 - size..]),
        }
    }

    fn body(&mut self, l: &NvList) {
        for (name, value) in &l.pairs {
            self.pair(name, value);
        }
        self.int(0, 4);
    }

    /// The head of a list within another (`nvlist_t`): of version 0, with unique names; pointers mean nothing here.
    fn head(&mut self) {
        self.ints([0, 1], 4);
        self.ints([0, 0], 8);
    }

    fn ints(&mut self, v: impl IntoIterator<Item = u64>, size: usize) -> u64 {
        let mut n = 0;
        for x in v {
            self.int(x, size);
            n += 1;
        }
        n
    }

    fn pair(&mut self, name: &str, value: &NvValue) {
        use NvValue::*;
        let order = self.order;
        let mut v = Writer { out: vec![], order };
        let one = |w: &mut Writer, x, size| w.ints([x], size);
        let (kind, count) = match value {
            Boolean => (1, 0),
            BooleanValue(x) => (21, one(&mut v, u64::from(*x), 4)),
            Byte(x) => (2, one(&mut v, u64::from(*x), 1)),
            Int8(x) => (22, one(&mut v, *x as u64, 1)),
            Uint8(x) => (23, one(&mut v, u64::from(*x), 1)),
            Int16(x) => (3, one(&mut v, *x as u64, 2)),
            Uint16(x) => (4, one(&mut v, u64::from(*x), 2)),
            Int32(x) => (5, one(&mut v, *x as u64, 4)),
            Uint32(x) => (6, one(&mut v, u64::from(*x), 4)),
            Int64(x) => (7, one(&mut v, *x as u64, 8)),
            Uint64(x) => (8, one(&mut v, *x, 8)),
            Hrtime(x) => (18, one(&mut v, *x as u64, 8)),
            Double(x) => (27, one(&mut v, x.to_bits(), 8)),
            String(s) => {
                v.out.extend(s.as_bytes());
                (9, one(&mut v, 0, 1))
            }
            ByteArray(x) => (10, v.ints(x.iter().map(|x| u64::from(*x)), 1)),
            BooleanArray(x) => (24, v.ints(x.iter().map(|x| u64::from(*x)), 4)),
            Int8Array(x) => (25, v.ints(x.iter().map(|x| *x as u64), 1)),
            Uint8Array(x) => (26, v.ints(x.iter().map(|x| u64::from(*x)), 1)),
            Int16Array(x) => (11, v.ints(x.iter().map(|x| *x as u64), 2)),
            Uint16Array(x) => (12, v.ints(x.iter().map(|x| u64::from(*x)), 2)),
            Int32Array(x) => (13, v.ints(x.iter().map(|x| *x as u64), 4)),
            Uint32Array(x) => (14, v.ints(x.iter().map(|x| u64::from(*x)), 4)),
            Int64Array(x) => (15, v.ints(x.iter().map(|x| *x as u64), 8)),
            Uint64Array(x) => (16, v.ints(x.iter().copied(), 8)),
            StringArray(x) => {
                let n = v.ints(x.iter().map(|_| 0), 8);
                for s in x {
                    v.out.extend(s.as_bytes());
                    v.out.push(0);
                }
                (17, n)
            }
            NvList(_) => {
                v.head();
                (19, 1)
            }
            NvListArray(x) => {
                v.ints(std::iter::repeat_n(0, x.len()), 8);
                x.iter().for_each(|_| v.head());
                (20, x.len() as u64)
            }
        };
        let head = (16 + name.len() + 1).next_multiple_of(8);
        let size = head + v.out.len().next_multiple_of(8);
        let end = self.out.len() + size;
        self.int(size as u64, 4);
        self.int(name.len() as u64 + 1, 2);
        self.int(0, 2);
        self.int(count, 4);
        self.int(kind, 4);
        self.out.extend(name.as_bytes());
        self.out.resize(end - size + head, 0);
        self.out.extend(v.out);
        self.out.resize(end, 0);
        match value {
            NvList(l) => self.body(l),
            NvListArray(ls) => ls.iter().for_each(|l| self.body(l)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Writer;
    use crate::ByteOrder;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lists_of_either_order_decode(l in super::super::tests::list(), little: bool) {
            let order = if little { ByteOrder::Little } else { ByteOrder::Big };
            let mut w = Writer { out: vec![0, u8::from(little), 0, 0], order };
            w.int(0, 4);
            w.int(1, 4);
            w.body(&l);
            prop_assert_eq!(super::super::NvList::decode(&w.out).unwrap(), l.clone());
            let short = &w.out[..w.out.len() - 1];
            prop_assert!(super::super::NvList::decode(short).is_err());
            if little {
                prop_assert_eq!(l.encode_native(), w.out);
            }
        }
    }
}
