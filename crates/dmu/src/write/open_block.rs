//! What the open transaction group is going to write of one block.

use super::OpenObjectSet;
use crate::live::OpenBlock;

impl OpenObjectSet {
    /// The data block of object `number` with byte `offset`, if it was changed since the last quiesce and did not come
    /// compressed.
    pub(crate) fn open_block(&self, number: u64, offset: u64) -> Option<OpenBlock> {
        let object = self.unwritten.objects.get(&number)?;
        let phys = object.phys();
        let blkid = offset / phys.block_size.max(1);
        let data = object.pending.top.dirty(blkid)?.plain()?.clone();
        let (kind, checksum, compress) = (phys.kind, phys.checksum, phys.compress);
        let key = self.key().cloned();
        Some(OpenBlock { data, blkid, kind, checksum, compress, key })
    }
}
