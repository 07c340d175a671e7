//! The XDR encoding (RFC 4506) of nvlists (`nvs_xdr`).
//!
//! ```text
//! list    version(4) flags(4) pair* 0(4) 0(4)
//! pair    encoded size(4) decoded size(4) name type(4) element count(4) value
//! string  length(4) bytes, padded with zeros to a multiple of 4
//! ```
//!
//! Integers are big-endian and take four bytes, or eight for the 64-bit types; booleans take
//! four. A `ByteArray` is its bytes, padded; every other array of numbers repeats the element count
//! before its elements, an array of strings or lists does not. An array without elements has
//! no value at all. A list within a list has no header but its own version, flags and end.
//!
//! The decoded size is what the pair takes in OpenZFS's memory; OpenZFS allocates by it, so
//! [`encode_list`] computes it exactly. Decoding here needs neither size: a decoded size of zero
//! ends a list.

use super::{DataType, MAX_DEPTH, NvList, NvValue, WHAT, lossy, no_nul};
use crate::{ByteOrder, Bytes, DecodeError, Result};

/// `NV_UNIQUE_NAME`: a list does not hold two values of one name.
const UNIQUE_NAME: u32 = 1;

/// Decodes a list that begins after the packed header.
pub(super) fn decode(data: &[u8]) -> Result<Vec<(Vec<u8>, NvValue)>> {
    let mut r = Reader { bytes: Bytes::new(data, ByteOrder::Big, WHAT), at: 0 };
    let mut pairs = Vec::new();
    r.list(1, |name, value| pairs.push((name.to_vec(), value)))?;
    Ok(pairs)
}

struct Reader<'a> {
    bytes: Bytes<'a>,
    at: usize,
}

impl<'a> Reader<'a> {
    fn u32(&mut self) -> Result<u32> {
        let v = self.bytes.u32(self.at)?;
        self.at += 4;
        Ok(v)
    }

    fn u64(&mut self) -> Result<u64> {
        let v = self.bytes.u64(self.at)?;
        self.at += 8;
        Ok(v)
    }

    fn bool(&mut self) -> Result<bool> {
        Ok(self.u32()? != 0)
    }

    /// `len` bytes and their padding.
    fn opaque(&mut self, len: u32) -> Result<&'a [u8]> {
        let padded = (len as usize).checked_next_multiple_of(4);
        let padded = padded.ok_or_else(|| DecodeError::invalid(WHAT, format!("length {len}")))?;
        let all = self.bytes.slice(self.at, padded)?;
        self.at += padded;
        Ok(&all[..len as usize])
    }

    fn string(&mut self) -> Result<&'a [u8]> {
        let len = self.u32()?;
        no_nul(self.opaque(len)?)
    }

    /// Reads a list's version, flags and pairs.
    fn list(&mut self, depth: usize, mut pair: impl FnMut(&'a [u8], NvValue)) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(super::too_deep());
        }
        super::check_version(self.u32()?)?;
        let _flags = self.u32()?;
        loop {
            let _encoded = self.u32()?;
            let decoded = self.u32()?;
            if decoded == 0 {
                return Ok(());
            }
            let name = self.string()?;
            pair(name, self.value(depth)?);
        }
    }

    fn nested(&mut self, depth: usize) -> Result<NvList> {
        let mut pairs = Vec::new();
        self.list(depth + 1, |name, value| pairs.push((lossy(name), value)))?;
        Ok(NvList { pairs })
    }

    /// `count` elements, without trusting the count: nothing is reserved by it, and each element
    /// consumes input.
    fn many<T>(&mut self, count: u32, f: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut out = Vec::new();
        for _ in 0..count {
            out.push(f(self)?);
        }
        Ok(out)
    }

    /// An array that repeats its element count.
    fn array<T>(&mut self, count: u32, f: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let again = self.u32()?;
        if again != count {
            return Err(DecodeError::invalid(WHAT, format!("array of {count} and {again}")));
        }
        self.many(count, f)
    }

    fn value(&mut self, depth: usize) -> Result<NvValue> {
        let kind = DataType::from_u32(self.u32()?)?;
        let count = self.u32()?;
        kind.check_count(count)?;
        // Small integers are widened to four bytes; which way their sign was extended depends on
        // the writer, so only the low bytes count.
        Ok(match kind {
            DataType::Boolean => NvValue::Boolean,
            DataType::BooleanValue => NvValue::BooleanValue(self.bool()?),
            DataType::Byte => NvValue::Byte(self.u32()? as u8),
            DataType::Int8 => NvValue::Int8(self.u32()? as i8),
            DataType::Uint8 => NvValue::Uint8(self.u32()? as u8),
            DataType::Int16 => NvValue::Int16(self.u32()? as i16),
            DataType::Uint16 => NvValue::Uint16(self.u32()? as u16),
            DataType::Int32 => NvValue::Int32(self.u32()? as i32),
            DataType::Uint32 => NvValue::Uint32(self.u32()?),
            DataType::Int64 => NvValue::Int64(self.u64()? as i64),
            DataType::Uint64 => NvValue::Uint64(self.u64()?),
            DataType::Hrtime => NvValue::Hrtime(self.u64()? as i64),
            DataType::Double => NvValue::Double(f64::from_bits(self.u64()?)),
            DataType::String => NvValue::String(lossy(self.string()?)),
            DataType::NvList => NvValue::NvList(self.nested(depth)?),
            DataType::ByteArray => NvValue::ByteArray(self.opaque(count)?.to_vec()),
            DataType::BooleanArray => NvValue::BooleanArray(self.array(count, Self::bool)?),
            DataType::Int8Array => NvValue::Int8Array(self.array(count, |r| Ok(r.u32()? as i8))?),
            DataType::Uint8Array => NvValue::Uint8Array(self.array(count, |r| Ok(r.u32()? as u8))?),
            DataType::Int16Array => {
                NvValue::Int16Array(self.array(count, |r| Ok(r.u32()? as i16))?)
            }
            DataType::Uint16Array => {
                NvValue::Uint16Array(self.array(count, |r| Ok(r.u32()? as u16))?)
            }
            DataType::Int32Array => {
                NvValue::Int32Array(self.array(count, |r| Ok(r.u32()? as i32))?)
            }
            DataType::Uint32Array => NvValue::Uint32Array(self.array(count, Self::u32)?),
            DataType::Int64Array => {
                NvValue::Int64Array(self.array(count, |r| Ok(r.u64()? as i64))?)
            }
            DataType::Uint64Array => NvValue::Uint64Array(self.array(count, Self::u64)?),
            DataType::StringArray => {
                NvValue::StringArray(self.many(count, |r| Ok(lossy(r.string()?)))?)
            }
            DataType::NvListArray => NvValue::NvListArray(self.many(count, |r| r.nested(depth))?),
        })
    }
}

/// Appends version, flags, pairs and end of `list`.
pub(super) fn encode_list(list: &NvList, out: &mut Vec<u8>) {
    put(out, 0);
    put(out, UNIQUE_NAME);
    for (name, value) in &list.pairs {
        encode_pair(name, value, out);
    }
    put(out, 0);
    put(out, 0);
}

fn encode_pair(name: &str, value: &NvValue, out: &mut Vec<u8>) {
    let (kind, count) = shape(value);
    let start = out.len();
    put(out, 0);
    put(out, decoded_size(name, value) as u32);
    put_string(out, name);
    put(out, kind as u32);
    put(out, count as u32);
    encode_value(value, out);
    let mut size = out.len() - start;
    if counts_in_value(kind) && count == 0 {
        // OpenZFS counts the repeated element count of an empty array although it is not there.
        size += 4;
    }
    out[start..start + 4].copy_from_slice(&(size as u32).to_be_bytes());
}

/// Whether an array repeats its element count in the value.
fn counts_in_value(kind: DataType) -> bool {
    let other = [DataType::ByteArray, DataType::StringArray, DataType::NvListArray];
    kind.is_array() && !other.contains(&kind)
}

fn put(out: &mut Vec<u8>, v: u32) {
    out.extend_from_slice(&v.to_be_bytes());
}

fn put64(out: &mut Vec<u8>, v: u64) {
    out.extend_from_slice(&v.to_be_bytes());
}

fn put_opaque(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn put_string(out: &mut Vec<u8>, s: &str) {
    put(out, s.len() as u32);
    put_opaque(out, s.as_bytes());
}

fn put_array<T: Copy>(out: &mut Vec<u8>, items: &[T], f: impl Fn(&mut Vec<u8>, T)) {
    if items.is_empty() {
        return;
    }
    put(out, items.len() as u32);
    for item in items {
        f(out, *item);
    }
}

/// The data type and element count that a value is packed with.
fn shape(value: &NvValue) -> (DataType, usize) {
    match value {
        NvValue::Boolean => (DataType::Boolean, 0),
        NvValue::BooleanValue(_) => (DataType::BooleanValue, 1),
        NvValue::Byte(_) => (DataType::Byte, 1),
        NvValue::Int8(_) => (DataType::Int8, 1),
        NvValue::Uint8(_) => (DataType::Uint8, 1),
        NvValue::Int16(_) => (DataType::Int16, 1),
        NvValue::Uint16(_) => (DataType::Uint16, 1),
        NvValue::Int32(_) => (DataType::Int32, 1),
        NvValue::Uint32(_) => (DataType::Uint32, 1),
        NvValue::Int64(_) => (DataType::Int64, 1),
        NvValue::Uint64(_) => (DataType::Uint64, 1),
        NvValue::Hrtime(_) => (DataType::Hrtime, 1),
        NvValue::Double(_) => (DataType::Double, 1),
        NvValue::String(_) => (DataType::String, 1),
        NvValue::NvList(_) => (DataType::NvList, 1),
        NvValue::ByteArray(v) => (DataType::ByteArray, v.len()),
        NvValue::BooleanArray(v) => (DataType::BooleanArray, v.len()),
        NvValue::Int8Array(v) => (DataType::Int8Array, v.len()),
        NvValue::Uint8Array(v) => (DataType::Uint8Array, v.len()),
        NvValue::Int16Array(v) => (DataType::Int16Array, v.len()),
        NvValue::Uint16Array(v) => (DataType::Uint16Array, v.len()),
        NvValue::Int32Array(v) => (DataType::Int32Array, v.len()),
        NvValue::Uint32Array(v) => (DataType::Uint32Array, v.len()),
        NvValue::Int64Array(v) => (DataType::Int64Array, v.len()),
        NvValue::Uint64Array(v) => (DataType::Uint64Array, v.len()),
        NvValue::StringArray(v) => (DataType::StringArray, v.len()),
        NvValue::NvListArray(v) => (DataType::NvListArray, v.len()),
    }
}

/// Bytes that a pair takes in OpenZFS's memory: `nvpair_t` of 16 bytes and the name with its
/// NUL, then the value, each rounded up to 8 bytes. A list is a structure of 24 bytes; arrays of
/// strings and of lists begin with a pointer of 8 bytes for each element.
fn decoded_size(name: &str, value: &NvValue) -> usize {
    const NVLIST: usize = 24;
    let (kind, count) = shape(value);
    let bytes = match value {
        NvValue::String(s) => s.len() + 1,
        NvValue::StringArray(v) => v.iter().map(|s| 8 + s.len() + 1).sum(),
        NvValue::NvList(_) => NVLIST,
        NvValue::NvListArray(v) => v.len() * (8 + NVLIST),
        _ => kind.element_size().unwrap_or(0) * count,
    };
    (16 + name.len() + 1).next_multiple_of(8) + bytes.next_multiple_of(8)
}

fn encode_value(value: &NvValue, out: &mut Vec<u8>) {
    match value {
        NvValue::Boolean => {}
        NvValue::BooleanValue(v) => put(out, u32::from(*v)),
        NvValue::Byte(v) | NvValue::Uint8(v) => put(out, u32::from(*v)),
        NvValue::Int8(v) => put(out, u32::from(*v as u8)),
        NvValue::Int16(v) => put(out, u32::from(*v as u16)),
        NvValue::Uint16(v) => put(out, u32::from(*v)),
        NvValue::Int32(v) => put(out, *v as u32),
        NvValue::Uint32(v) => put(out, *v),
        NvValue::Int64(v) | NvValue::Hrtime(v) => put64(out, *v as u64),
        NvValue::Uint64(v) => put64(out, *v),
        NvValue::Double(v) => put64(out, v.to_bits()),
        NvValue::String(v) => put_string(out, v),
        NvValue::NvList(v) => encode_list(v, out),
        NvValue::ByteArray(v) => put_opaque(out, v),
        NvValue::BooleanArray(v) => put_array(out, v, |o, x| put(o, u32::from(x))),
        NvValue::Int8Array(v) => put_array(out, v, |o, x| put(o, u32::from(x as u8))),
        NvValue::Uint8Array(v) => put_array(out, v, |o, x| put(o, u32::from(x))),
        NvValue::Int16Array(v) => put_array(out, v, |o, x| put(o, u32::from(x as u16))),
        NvValue::Uint16Array(v) => put_array(out, v, |o, x| put(o, u32::from(x))),
        NvValue::Int32Array(v) => put_array(out, v, |o, x| put(o, x as u32)),
        NvValue::Uint32Array(v) => put_array(out, v, put),
        NvValue::Int64Array(v) => put_array(out, v, |o, x| put64(o, x as u64)),
        NvValue::Uint64Array(v) => put_array(out, v, put64),
        NvValue::StringArray(v) => v.iter().for_each(|s| put_string(out, s)),
        NvValue::NvListArray(v) => v.iter().for_each(|l| encode_list(l, out)),
    }
}
