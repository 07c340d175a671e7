//! SKELETON
use crate::{blkptr::BlockPointer, ByteOrder};
/// `uberblock_t`.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Uberblock { pub order: ByteOrder, pub version: u64, pub txg: u64, pub guid_sum: u64, pub timestamp: u64, pub rootbp: BlockPointer, pub software_version: u64, pub mmp_magic: u64, pub mmp_delay: u64, pub mmp_config: u64, pub checkpoint_txg: u64, pub raidz_reflow: u64 }
impl Uberblock {
    /// Decodes (checks magic); does not verify the embedded checksum.
    pub fn decode(_data: &[u8]) -> crate::Result<Option<Uberblock>> { todo!() }
}
