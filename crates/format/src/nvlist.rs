//! SKELETON
/// A list of named values, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NvList { /// pairs
 pub pairs: Vec<(String, NvValue)> }
/// A value; names as `data_type_t`.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum NvValue { Boolean, BooleanValue(bool), Byte(u8), Int8(i8), Uint8(u8), Int16(i16), Uint16(u16), Int32(i32), Uint32(u32), Int64(i64), Uint64(u64), Hrtime(i64), Double(f64), String(String), NvList(NvList), ByteArray(Vec<u8>), BooleanArray(Vec<bool>), Int8Array(Vec<i8>), Uint8Array(Vec<u8>), Int16Array(Vec<i16>), Uint16Array(Vec<u16>), Int32Array(Vec<i32>), Uint32Array(Vec<u32>), Int64Array(Vec<i64>), Uint64Array(Vec<u64>), StringArray(Vec<String>), NvListArray(Vec<NvList>) }
impl NvList {
    /// Decodes a packed nvlist (4-byte header: encoding, endian; then XDR). Bounded depth and size.
    pub fn decode(_data: &[u8]) -> crate::Result<NvList> { todo!() }
    /// XDR encoding with header.
    pub fn encode(&self) -> Vec<u8> { todo!() }
    /// Lookup.
    pub fn get(&self, _name: &str) -> Option<&NvValue> { todo!() }
    /// Lookup of a u64.
    pub fn u64(&self, _name: &str) -> Option<u64> { todo!() }
    /// Lookup of a string.
    pub fn str(&self, _name: &str) -> Option<&str> { todo!() }
    /// Lookup of a list.
    pub fn list(&self, _name: &str) -> Option<&NvList> { todo!() }
    /// Lookup of an array of lists.
    pub fn lists(&self, _name: &str) -> Option<&[NvList]> { todo!() }
}
