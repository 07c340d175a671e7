//! SKELETON
use crate::{ByteOrder, abd::Abd};
/// `enum zio_checksum`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Checksum { Inherit=0, On=1, Off=2, Label=3, GangHeader=4, Zilog=5, Fletcher2=6, Fletcher4=7, Sha256=8, Zilog2=9, NoParity=10, Sha512=11, Skein=12, Edonr=13, Blake3=14 }
impl Checksum {
    /// From the number in a block pointer.
    pub fn from_u8(_n: u8) -> crate::Result<Checksum> { todo!() }
    /// Name as `zdb`/`zfs` print it ("fletcher4", "sha512", ...).
    pub fn name(self) -> &'static str { todo!() }
}
/// Pool salt (32 bytes) for skein, edonr, blake3, with precomputed keys.
#[derive(Clone, Debug)]
pub struct Salt;
impl Salt {
    /// From the 32 bytes in the MOS (`org.illumos:checksum_salt`); zeros if absent.
    pub fn new(_bytes: [u8; 32]) -> Salt { todo!() }
}
/// Checksum of `data`, written in `order`.
pub fn compute(_kind: Checksum, _data: &Abd, _order: ByteOrder, _salt: &Salt) -> crate::Result<[u64; 4]> { todo!() }
/// Verify block with embedded trailer (label, gang header, zilog): `verifier` is what the zec_cksum field holds
/// before checksumming (label: offset; gang: dva/birth; zilog: bp cksum).  Handles either byte order of the trailer.
/// Returns Ok(byte order) or Err.
pub fn verify_embedded(_kind: Checksum, _data: &[u8], _verifier: [u64; 4]) -> crate::Result<Option<ByteOrder>> { todo!() }
