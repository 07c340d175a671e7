//! SKELETON
use crate::{Object, Result};
/// One entry: key bytes without the trailing NUL (or, for uint64 keys, the words big-endian as stored), integer size 1/2/4/8 and the value.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct ZapEntry { pub name: Vec<u8>, pub int_size: u8, pub value: Vec<u64>, /// position: pass to `Zap::entries_from` to go on after it
 pub cursor: u64 }
impl ZapEntry {
    /// Value as a single u64.
    pub fn u64(&self) -> Option<u64> { todo!() }
    /// Value of 1-byte integers as bytes.
    pub fn bytes(&self) -> Vec<u8> { todo!() }
}
/// An open ZAP, micro or fat.
pub struct Zap;
/// How a name may match besides being equal (case folding and Unicode normalization of the ZAP).
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Match { pub fold_case: bool }
impl Zap {
    /// Opens.
    pub fn open(_o: &Object) -> Result<Zap> { todo!() }
    /// Exact lookup (for normalizing ZAPs: hash of the normalized name, exact comparison).
    pub fn lookup(&self, _name: &[u8]) -> Result<Option<ZapEntry>> { todo!() }
    /// Lookup under the ZAP's own normalization.
    pub fn lookup_norm(&self, _name: &[u8], _m: Match) -> Result<Option<ZapEntry>> { todo!() }
    /// Exact lookup of a single integer.
    pub fn u64(&self, _name: &[u8]) -> Result<Option<u64>> { todo!() }
    /// Lookup with uint64 keys (dedup, block cloning tables).
    pub fn lookup_words(&self, _key: &[u64]) -> Result<Option<ZapEntry>> { todo!() }
    /// Up to `max` entries after `cursor` (0: from the start), in hash order like OpenZFS's cursor.
    pub fn entries_from(&self, _cursor: u64, _max: usize) -> Result<Vec<ZapEntry>> { todo!() }
    /// All entries.
    pub fn entries(&self) -> Result<Vec<ZapEntry>> { todo!() }
    /// Whether micro, number of entries, normalization flags, salt etc. for `zdb`.
    pub fn describe(&self) -> Describe { todo!() }
}
/// Facts about a ZAP (`zap_stats_t`), for zdb -dddd ("Microzap: 1024 bytes, 3 entries" / "Fat ZAP stats: ...").
#[derive(Clone, Debug)]
pub struct Describe;
