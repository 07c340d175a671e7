//! Packed nvlists (`nvlist_t`): lists of named, typed values.
//!
//! Labels, the pool's config, history records and extended attributes kept in a system attribute
//! are nvlists, packed in one of two encodings that a four-byte header tells apart:
//!
//! ```text
//! byte 0  encoding: 0 native (the in-memory structures of the writing machine), 1 XDR
//! byte 1  byte order of the writing machine: 1 little, 0 big; means something in native only
//! byte 2-3 zero
//! ```
//!
//! XDR ([`xdr`]) is what labels, configs and attributes use. The native encoding ([`native`]) is
//! written in one place on disk, the records of the pool's history, in send streams and in the tokens
//! that resume them; it is decoded from machines of either byte order, and encoded as little-endian
//! machines do.
//!
//! Invariants: decoding takes time and memory linear in the input (every element that is built
//! consumed at least four bytes of it, nothing is reserved by a count that the input claims),
//! and nests at most [`MAX_DEPTH`] lists. Names and strings that are not UTF-8 are replaced
//! lossily, except through [`decode_raw_names`].

mod native;
mod print;
mod xdr;

use crate::{DecodeError, Result};

/// How deep lists may nest. OpenZFS's kernel module writes at most 20 levels.
pub const MAX_DEPTH: usize = 32;

const WHAT: &str = "nvlist";
const ENCODE_NATIVE: u8 = 0;
const ENCODE_XDR: u8 = 1;
/// Bytes of `nvs_header_t`.
const HEADER: usize = 4;

/// A list of named values, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NvList {
    /// The pairs of name and value, in the order in which they are packed.
    pub pairs: Vec<(String, NvValue)>,
}

/// A value of an nvpair (`data_type_t`).
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum NvValue {
    /// No value: the name alone says it.
    Boolean,
    BooleanValue(bool),
    Byte(u8),
    Int8(i8),
    Uint8(u8),
    Int16(i16),
    Uint16(u16),
    Int32(i32),
    Uint32(u32),
    Int64(i64),
    Uint64(u64),
    /// Nanoseconds (`hrtime_t`).
    Hrtime(i64),
    Double(f64),
    String(String),
    NvList(NvList),
    ByteArray(Vec<u8>),
    BooleanArray(Vec<bool>),
    Int8Array(Vec<i8>),
    Uint8Array(Vec<u8>),
    Int16Array(Vec<i16>),
    Uint16Array(Vec<u16>),
    Int32Array(Vec<i32>),
    Uint32Array(Vec<u32>),
    Int64Array(Vec<i64>),
    Uint64Array(Vec<u64>),
    StringArray(Vec<String>),
    NvListArray(Vec<NvList>),
}

/// `data_type_t`: the numbers in a packed nvpair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DataType {
    Boolean = 1,
    Byte = 2,
    Int16 = 3,
    Uint16 = 4,
    Int32 = 5,
    Uint32 = 6,
    Int64 = 7,
    Uint64 = 8,
    String = 9,
    ByteArray = 10,
    Int16Array = 11,
    Uint16Array = 12,
    Int32Array = 13,
    Uint32Array = 14,
    Int64Array = 15,
    Uint64Array = 16,
    StringArray = 17,
    Hrtime = 18,
    NvList = 19,
    NvListArray = 20,
    BooleanValue = 21,
    Int8 = 22,
    Uint8 = 23,
    BooleanArray = 24,
    Int8Array = 25,
    Uint8Array = 26,
    Double = 27,
}

impl DataType {
    const ALL: [DataType; 27] = {
        use DataType::*;
        [
            Boolean,
            Byte,
            Int16,
            Uint16,
            Int32,
            Uint32,
            Int64,
            Uint64,
            String,
            ByteArray,
            Int16Array,
            Uint16Array,
            Int32Array,
            Uint32Array,
            Int64Array,
            Uint64Array,
            StringArray,
            Hrtime,
            NvList,
            NvListArray,
            BooleanValue,
            Int8,
            Uint8,
            BooleanArray,
            Int8Array,
            Uint8Array,
            Double,
        ]
    };

    fn from_u32(n: u32) -> Result<DataType> {
        let index = (n as usize).wrapping_sub(1);
        let unknown = || DecodeError::invalid(WHAT, format!("unknown data type {n}"));
        DataType::ALL.get(index).copied().ok_or_else(unknown)
    }

    /// Bytes of one element in memory (and in the native encoding), for types of a fixed size.
    fn element_size(self) -> Option<usize> {
        use DataType::*;
        Some(match self {
            Boolean => 0,
            Byte | Int8 | Uint8 | ByteArray | Int8Array | Uint8Array => 1,
            Int16 | Uint16 | Int16Array | Uint16Array => 2,
            BooleanValue | Int32 | Uint32 | BooleanArray | Int32Array | Uint32Array => 4,
            Int64 | Uint64 | Hrtime | Double | Int64Array | Uint64Array => 8,
            String | StringArray | NvList | NvListArray => return None,
        })
    }

    fn is_array(self) -> bool {
        use DataType::*;
        matches!(
            self,
            ByteArray
                | BooleanArray
                | Int8Array
                | Uint8Array
                | Int16Array
                | Uint16Array
                | Int32Array
                | Uint32Array
                | Int64Array
                | Uint64Array
                | StringArray
                | NvListArray
        )
    }

    /// Checks the element count of a packed pair: 0 for a boolean, one for a scalar, any
    /// for an array.
    fn check_count(self, count: u32) -> Result<()> {
        let want = if self == DataType::Boolean { 0 } else { 1 };
        if self.is_array() || count == want {
            return Ok(());
        }
        Err(DecodeError::invalid(WHAT, format!("{count} elements in a {self:?}")))
    }
}

impl NvList {
    /// Decodes a packed nvlist with its header, in either encoding (`nvlist_unpack`). Bytes after its end are
    /// ignored.
    pub fn decode(data: &[u8]) -> Result<NvList> {
        let raw = decode_raw_names(data)?;
        Ok(NvList { pairs: raw.into_iter().map(|(n, v)| (lossy(&n), v)).collect() })
    }

    /// Packs the list in the XDR encoding, with its header, marked as having unique names and as
    /// packed by a little-endian machine (`nvlist_pack`).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![ENCODE_XDR, 1, 0, 0];
        xdr::encode_list(self, &mut out);
        out
    }

    /// Packs the list in the native encoding of a little-endian machine (`fnvlist_pack`), with its header.
    pub fn encode_native(&self) -> Vec<u8> {
        let mut out = vec![ENCODE_NATIVE, 1, 0, 0];
        native::encode_list(self, &mut out);
        out
    }

    /// The value called `name`.
    pub fn get(&self, name: &str) -> Option<&NvValue> {
        self.pairs.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// Whether there is a value called `name`, of any type.
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The `Uint64` called `name`.
    pub fn u64(&self, name: &str) -> Option<u64> {
        match self.get(name)? {
            NvValue::Uint64(v) => Some(*v),
            _ => None,
        }
    }

    /// The string called `name`.
    pub fn str(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            NvValue::String(v) => Some(v),
            _ => None,
        }
    }

    /// The list called `name`.
    pub fn list(&self, name: &str) -> Option<&NvList> {
        match self.get(name)? {
            NvValue::NvList(v) => Some(v),
            _ => None,
        }
    }

    /// The array of lists called `name`.
    pub fn lists(&self, name: &str) -> Option<&[NvList]> {
        match self.get(name)? {
            NvValue::NvListArray(v) => Some(v),
            _ => None,
        }
    }

    /// The array of `Uint64` called `name`.
    pub fn u64s(&self, name: &str) -> Option<&[u64]> {
        match self.get(name)? {
            NvValue::Uint64Array(v) => Some(v),
            _ => None,
        }
    }

    /// The array of strings called `name`.
    pub fn strs(&self, name: &str) -> Option<&[String]> {
        match self.get(name)? {
            NvValue::StringArray(v) => Some(v),
            _ => None,
        }
    }

    /// Sets `name`, in place of a value of that name or at the end.
    pub fn set(&mut self, name: &str, value: NvValue) {
        match self.pairs.iter_mut().find(|(n, _)| n == name) {
            Some((_, v)) => *v = value,
            None => self.pairs.push((name.to_string(), value)),
        }
    }
}

/// Decodes a packed nvlist whose own names need not be UTF-8: extended attributes kept in a
/// system attribute are a list of `ByteArray` under the attributes' names. Names of lists within
/// it are replaced lossily.
pub fn decode_raw_names(data: &[u8]) -> Result<Vec<(Vec<u8>, NvValue)>> {
    let &[encoding, endian, _, _, ref rest @ ..] = data else {
        return Err(DecodeError::Truncated { what: WHAT, need: HEADER, have: data.len() });
    };
    match encoding {
        ENCODE_XDR => xdr::decode(rest),
        ENCODE_NATIVE => native::decode(rest, endian),
        n => Err(DecodeError::Unsupported { what: WHAT, name: format!("encoding {n}") }),
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The bytes of a C string whose packed form must not contain a NUL.
fn no_nul(bytes: &[u8]) -> Result<&[u8]> {
    if bytes.contains(&0) {
        return Err(DecodeError::invalid(WHAT, "NUL inside a string"));
    }
    Ok(bytes)
}

fn too_deep() -> DecodeError {
    DecodeError::invalid(WHAT, format!("lists nest deeper than {MAX_DEPTH}"))
}

fn check_version(version: u32) -> Result<()> {
    if version != 0 {
        return Err(DecodeError::Unsupported { what: WHAT, name: format!("version {version}") });
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text() -> impl Strategy<Value = String> {
        "[a-z:._ äß]{0,12}"
    }

    fn scalar() -> impl Strategy<Value = NvValue> {
        use NvValue::*;
        prop_oneof![
            Just(Boolean),
            any::<bool>().prop_map(BooleanValue),
            any::<u8>().prop_map(Byte),
            any::<i8>().prop_map(Int8),
            any::<u8>().prop_map(Uint8),
            any::<i16>().prop_map(Int16),
            any::<u16>().prop_map(Uint16),
            any::<i32>().prop_map(Int32),
            any::<u32>().prop_map(Uint32),
            any::<i64>().prop_map(Int64),
            any::<u64>().prop_map(Uint64),
            any::<i64>().prop_map(Hrtime),
            (-1e300..1e300).prop_map(Double),
            text().prop_map(String),
        ]
    }

    fn array() -> impl Strategy<Value = NvValue> {
        use NvValue::*;
        use proptest::collection::vec;
        prop_oneof![
            vec(any::<u8>(), 0..9).prop_map(ByteArray),
            vec(any::<bool>(), 0..9).prop_map(BooleanArray),
            vec(any::<i8>(), 0..9).prop_map(Int8Array),
            vec(any::<u8>(), 0..9).prop_map(Uint8Array),
            vec(any::<i16>(), 0..9).prop_map(Int16Array),
            vec(any::<u16>(), 0..9).prop_map(Uint16Array),
            vec(any::<i32>(), 0..9).prop_map(Int32Array),
            vec(any::<u32>(), 0..9).prop_map(Uint32Array),
            vec(any::<i64>(), 0..9).prop_map(Int64Array),
            vec(any::<u64>(), 0..9).prop_map(Uint64Array),
            vec(text(), 0..4).prop_map(StringArray),
        ]
    }

    /// Lists of every data type, nested a few deep.
    pub(crate) fn list() -> impl Strategy<Value = NvList> {
        let value = prop_oneof![scalar(), array()].prop_recursive(3, 40, 5, |inner| {
            let pairs = proptest::collection::vec((text(), inner), 0..5);
            let list = pairs.prop_map(|pairs| NvList { pairs }).boxed();
            prop_oneof![
                list.clone().prop_map(NvValue::NvList),
                proptest::collection::vec(list, 0..4).prop_map(NvValue::NvListArray),
            ]
        });
        proptest::collection::vec((text(), value), 0..8).prop_map(|pairs| NvList { pairs })
    }

    proptest! {
        #[test]
        fn xdr_round_trip(l in list()) {
            prop_assert_eq!(NvList::decode(&l.encode()).unwrap(), l);
        }

        #[test]
        fn cut_short_is_an_error(l in list(), cut in 1usize..200) {
            let packed = l.encode();
            let keep = packed.len().saturating_sub(cut);
            prop_assert!(NvList::decode(&packed[..keep]).is_err());
        }

        #[test]
        fn hostile_bytes_never_panic(
            l in list(), flips in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..8)
        ) {
            let mut packed = l.encode();
            for (at, value) in flips {
                let at = at as usize % packed.len();
                packed[at] = value;
            }
            let _ = NvList::decode(&packed);
            packed[0] = ENCODE_NATIVE;
            let _ = NvList::decode(&packed);
        }

        #[test]
        fn random_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = NvList::decode(&bytes);
            for encoding in [ENCODE_XDR, ENCODE_NATIVE] {
                bytes.splice(0..0, [encoding, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
                let _ = NvList::decode(&bytes);
            }
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let mut l = NvList::default();
        for _ in 0..MAX_DEPTH {
            l = NvList { pairs: vec![("a".into(), NvValue::NvList(l))] };
        }
        assert!(NvList::decode(&l.encode()).is_err());
        let Some(NvValue::NvList(inner)) = l.get("a") else { panic!("not a list") };
        assert!(NvList::decode(&inner.encode()).is_ok());
    }

    #[test]
    fn an_unknown_encoding_is_refused_by_name() {
        let e = NvList::decode(&[7, 1, 0, 0, 0, 0, 0, 0]).unwrap_err();
        assert_eq!(e.to_string(), "nvlist: encoding 7 is not supported");
    }

    #[test]
    fn names_that_are_not_utf8_can_be_had_raw() {
        let mut l = NvList::default();
        l.set("user.x", NvValue::ByteArray(vec![1, 2, 3]));
        let mut packed = l.encode();
        let at = packed.windows(6).position(|w| w == b"user.x").unwrap();
        packed[at + 5] = 0xff;
        let raw = decode_raw_names(&packed).unwrap();
        assert_eq!(raw, vec![(b"user.\xff".to_vec(), NvValue::ByteArray(vec![1, 2, 3]))]);
        assert_eq!(NvList::decode(&packed).unwrap().pairs[0].0, "user.\u{fffd}");
    }
}
