//! What a store has in the ARC, and what it tells it.
//!
//! A block has up to two entries: its physical bytes under its key, and, if it is metadata that was compressed, its logical bytes under its key
//! and the view of the reader that may see them (`view_of`). Objects that were decoded of blocks are in tables of their own. Everything
//! carries the number of the pool, so that one ARC serves many.
//!
//! - A block that was read is put in once, after it was verified. A block that was written replaces what is there.
//! - A block that was freed leaves when its group is on disk and shown: until then readers of the state before may ask for it.
//! - What was decrypted with a key leaves when the key is unloaded.
//! - `about` says what of a block may come to a cache device: only blocks with a checksum in their pointers may, as the device could
//!   give any bytes.

use super::unpack::{is_metadata, keeps_decoded};
use super::{Block, Store, StoreStats, Wanted};
use crate::arc::{Access, Key, Name, Owner, Table};
use crate::direct;
use crate::error::Bookmark;
use crate::keys::{PLAIN, View};
use crate::verify::has_checksum;
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::l2arc::Props;
use std::sync::atomic::Ordering::Relaxed;

impl Owner for Store {
    /// Half of a change may be in its lists.
    fn cache_broke(&self, why: String) {
        self.alarm().sound(why);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.l2arc.leave(&self.arc);
        self.arc.leave(self.pool);
    }
}

impl Store {
    fn name(&self, key: &Key) -> Name {
        Name::block(self.pool, key)
    }

    fn unpacked_name(&self, key: &Key, view: View) -> Name {
        Name::unpacked(self.pool, key, view)
    }

    /// A table for objects that are decoded of blocks of this store.
    pub fn table<T: Send + Sync + 'static>(&self) -> Table<T> {
        Table::new(self.arc.clone(), self.pool)
    }

    /// Takes in the physical and, if they are known, the logical bytes of a block that was just written. Metadata is
    /// kept unpacked: what changes in one transaction group is mostly changed in the next.
    pub(crate) fn written(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
        physical: Abd,
        (logical, view): (Option<Abd>, View),
    ) {
        let Some(key) = Key::of(bp) else { return };
        match logical.filter(|_| keeps_decoded(bp)) {
            Some(data) => self.keep_unpacked(&key, view, data),
            // Another one may have been written there in this group before, packed.
            None if is_metadata(bp) => self.forget_unpacked(&key, view),
            None => {}
        }
        // Nothing of that name was on disk: a block that was written there before in this group is on no cache device.
        self.l2arc.forget(&key);
        match self.policies.keeps(bp, at) && !self.direct.takes(at) {
            true => {
                let name = (self.name(&key), self.about(bp, at));
                self.arc.replace_block(name, physical, is_metadata(bp));
            }
            false => self.forget_physical(&key),
        }
    }

    /// A block was freed: the caches will not need it when the txg is on disk.
    pub(crate) fn freed(&self, bp: &BlockPointer) {
        self.freed.lock().extend(Key::of(bp).map(|key| (key, is_metadata(bp))));
    }

    /// Has what was freed make room for other blocks in the caches. Readers of an older state of
    /// the pool read it from the devices.
    pub(crate) fn forget_freed(&self) {
        let freed = std::mem::take(&mut *self.freed.lock());
        self.l2arc.forget_all(freed.iter().map(|(key, _)| *key));
        let keys = self.keys().ids();
        let names = freed.iter().flat_map(|(key, is_metadata)| {
            let views = keys.iter().copied().chain([PLAIN]).filter(|_| *is_metadata);
            views.map(|view| self.unpacked_name(key, view)).chain([self.name(key)])
        });
        self.arc.forget_all(names);
    }

    /// Metadata that is kept unpacked for readers with this `view`.
    pub(super) fn kept_unpacked(&self, bp: &BlockPointer, key: &Key, view: View) -> Option<Block> {
        if !keeps_decoded(bp) {
            return None;
        }
        let data = self.arc.get(&self.unpacked_name(key, view), None)?;
        Some(Block { data, order: bp.byte_order() })
    }

    /// Keeps metadata unpacked.
    pub(super) fn keep_unpacked(&self, key: &Key, view: View, data: Abd) {
        self.arc.replace(self.unpacked_name(key, view), data, true);
    }

    pub(super) fn forget_unpacked(&self, key: &Key, view: View) {
        self.arc.forget(&self.unpacked_name(key, view));
    }

    /// What was decrypted with the keys of these numbers leaves the caches.
    pub(crate) fn forget_decrypted(&self, keys: &[u64]) {
        self.arc.forget_views(self.pool, keys);
    }

    /// The physical bytes of a block leave the caches.
    pub(super) fn forget_physical(&self, key: &Key) {
        self.l2arc.forget(key);
        self.arc.forget(&self.name(key));
    }

    pub(super) fn is_cached(&self, key: &Key) -> bool {
        self.arc.contains(&self.name(key))
    }

    /// Whether a block to be read ahead is in the ARC.
    pub(super) fn has_ahead(&self, key: &Key, bp: &BlockPointer) -> bool {
        let there = self.arc.has_ahead(&self.name(key), is_metadata(bp));
        if !there {
            self.misses.fetch_add(1, Relaxed);
        }
        there
    }

    /// Puts a block that was read into the ARC.
    pub(super) fn keep(
        &self,
        (key, at): (&Key, Bookmark),
        bp: &BlockPointer,
        data: Abd,
        access: Access,
    ) {
        let name = (self.name(key), self.about(bp, at));
        self.arc.insert_block(name, data, is_metadata(bp), access);
    }

    /// What is known of a block that may come to a cache device (`l2arc_write_eligible`); else 0. Blocks without a checksum in
    /// their pointers stay away from there: what is read could be any bytes.
    fn about(&self, bp: &BlockPointer, at: Bookmark) -> u64 {
        let may = has_checksum(bp) && self.policies.may_go_on(bp, at);
        let props = Props::default().sized(bp.lsize(), bp.psize()).compressed(bp.compression());
        if may { props.metadata(is_metadata(bp)).protected(bp.uses_crypt()).0 } else { 0 }
    }

    /// A block, if a cache device has it.
    pub(super) fn on_cache_device(&self, bp: &BlockPointer, key: Key) -> Option<Abd> {
        self.l2arc.read(&[(bp, key)], None, &|bp, data| self.is_right(bp, data)).pop()?
    }

    /// The same of many.
    pub(super) fn on_cache_devices(
        &self,
        wanted: &[Wanted],
        ahead: Option<Access>,
    ) -> Vec<Option<Abd>> {
        let wanted: Vec<_> = wanted.iter().map(|(bp, _, key)| (bp, *key)).collect();
        self.l2arc.read(&wanted, ahead, &|bp, data| self.is_right(bp, data))
    }

    /// The number of the pool in the ARC.
    pub(crate) fn in_arc(&self) -> u32 {
        self.pool
    }

    /// The physical bytes of a block, if the ARC has them.
    pub(super) fn cached(&self, key: &Key, bp: &BlockPointer) -> Option<Abd> {
        let name = self.name(key);
        if self.arc.contains(&name) { self.arc.get(&name, Some(is_metadata(bp))) } else { None }
    }

    /// As [`Store::cached`], for a reader. It counts as a lookup unless the read is a direct one.
    pub(super) fn asked(&self, key: &Key, bp: &BlockPointer) -> Option<Abd> {
        if direct::reads_directly() && !is_metadata(bp) {
            return self.cached(key, bp);
        }
        let found = self.arc.get(&self.name(key), Some(is_metadata(bp)));
        if found.is_none() {
            self.misses.fetch_add(1, Relaxed);
        }
        found
    }

    /// Whether what this thread has read goes into the ARC.
    pub(super) fn keeps(&self, bp: &BlockPointer, at: Bookmark) -> bool {
        self.policies.keeps(bp, at) && (!direct::reads_directly() || is_metadata(bp))
    }

    /// Empties the caches of blocks of this pool. Objects that were decoded of them stay.
    pub fn drop_caches(&self) {
        self.arc.clear_blocks(self.pool);
    }

    /// Sizes and counts of the caches.
    pub fn stats(&self) -> StoreStats {
        StoreStats {
            arc: self.arc.stats(),
            misses: self.misses.load(Relaxed),
            direct: self.direct.stats(),
        }
    }

    /// The ARC, which may be that of other pools as well.
    pub fn arc(&self) -> &std::sync::Arc<crate::arc::ArcCache> {
        &self.arc
    }
}
