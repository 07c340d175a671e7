//! Blocks of an object that become clones of blocks on disk, by number (`dr_brtwrite` of
//! `dbuf_dirty_record_t`).
//!
//! Most objects have no clones, which costs a pointer. The map is shared until one of its holders changes
//! it.

use cenote_format::blkptr::BlockPointer;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub(crate) struct Clones(Option<Arc<BTreeMap<u64, BlockPointer>>>);

impl Clones {
    pub(crate) fn get(&self, blkid: u64) -> Option<&BlockPointer> {
        self.0.as_ref()?.get(&blkid)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |map| map.len())
    }

    pub(crate) fn insert(&mut self, blkid: u64, bp: BlockPointer) {
        Arc::make_mut(self.0.get_or_insert_default()).insert(blkid, bp);
    }

    /// Returns whether it was there.
    pub(crate) fn remove(&mut self, blkid: u64) -> bool {
        let map = self.0.as_mut().filter(|map| map.contains_key(&blkid));
        map.is_some_and(|map| Arc::make_mut(map).remove(&blkid).is_some())
    }

    /// The clones in a range, in order.
    pub(crate) fn range(
        &self,
        range: Range<u64>,
    ) -> impl Iterator<Item = (u64, BlockPointer)> + '_ {
        let range = range.start..range.end.max(range.start);
        let found = self.0.as_ref().map(|map| map.range(range));
        found.into_iter().flatten().map(|(blkid, bp)| (*blkid, *bp))
    }

    /// Whether there are any in a range.
    pub(crate) fn any_in(&self, range: Range<u64>) -> bool {
        self.range(range).next().is_some()
    }

    /// Those in a range.
    pub(crate) fn within(&self, range: Range<u64>) -> Clones {
        let found: BTreeMap<_, _> = self.range(range).collect();
        Clones(Some(found).filter(|map| !map.is_empty()).map(Arc::new))
    }
}
