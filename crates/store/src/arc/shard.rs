//! The values of the entries, in hash tables by their names.

use super::Access;
use super::lists::List;
use super::name::{Kind, Name, Value};
use super::noted::Noted;
use ahash::RandomState;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};

/// How many tables there are: many more than threads.
pub(crate) const SHARDS: usize = 64;

/// An entry that is there.
pub(super) struct Resident {
    pub value: Value,
    /// Bytes of the value.
    pub size: u32,
    /// Its node.
    pub at: u32,
    /// How much had been put into the cache before.
    since: u32,
    /// A reader used it since it was put where it is.
    pub touched: AtomicBool,
    /// Why it came, until a reader wants it: see [`Unread`].
    unread: AtomicU8,
    /// What is known of a block that may come to a cache device; else 0.
    pub about: u64,
    /// Where its node is; for counting.
    list: AtomicU8,
}

/// `Access` of what no reader has wanted yet, as a number; 0: a reader has.
fn unread(access: Access) -> u8 {
    match access {
        Access::Demand => 0,
        Access::Ahead => 1,
        Access::Once => 2,
    }
}

impl Resident {
    pub fn new(
        (value, size): (Value, u32),
        (at, since): (u32, u32),
        list: List,
        (access, about): (Access, u64),
    ) -> Resident {
        Resident {
            value,
            size,
            at,
            since,
            touched: AtomicBool::new(false),
            unread: AtomicU8::new(unread(access)),
            about,
            list: AtomicU8::new(list as u8),
        }
    }

    /// Whether a reader who finds it, while the cache is at `age`, uses it anew.
    fn is_used(&self, name: &Name, age: Age) -> bool {
        name.kind == Kind::Block || age.puts.wrapping_sub(self.since) >= age.one_use
    }

    pub fn moved(&self, list: List) {
        self.list.store(list as u8, Relaxed);
    }

    pub fn is_unread(&self) -> bool {
        self.unread.load(Relaxed) != 0
    }
}

/// What was counted; of the lookups of blocks.
#[derive(Default)]
pub(super) struct Counts {
    /// Of data, and of metadata: hits in the recent list, in the frequent one, among the uncached.
    pub hits: [[AtomicU64; 3]; 2],
    /// Likewise: misses, hits ahead, misses ahead.
    pub others: [[AtomicU64; 3]; 2],
}

/// How much went into the cache.
///
/// A block that is unpacked, and an object, is asked for again and again while one pass goes over what it has: one that is asked for
/// before [`Age::one_use`] others were put in was used once.
#[derive(Clone, Copy)]
pub(super) struct Age {
    /// Entries that were put in so far, counted round and round.
    pub puts: u32,
    /// A good part of those that are there.
    pub one_use: u32,
}

/// What a reader finds.
pub(super) struct Hit {
    pub value: Value,
    /// It is the first reader of a block that is of no use to another one.
    pub used_up: bool,
}

/// A table (`buf_hash_table_t`).
#[derive(Default)]
#[repr(align(128))] // No processor waits for a table that it does not use.
pub(super) struct Shard {
    pub entries: RwLock<HashMap<Name, Resident, RandomState>>,
    pub noted: Noted,
    pub counts: Counts,
}

impl Shard {
    /// Finds an entry for a reader. It is counted as a lookup of `metadata` or data, if that is said.
    pub fn get(&self, name: &Name, metadata: Option<bool>, age: Age) -> Option<Hit> {
        let entries = self.entries.read();
        let Some(entry) = entries.get(name) else {
            if let Some(metadata) = metadata {
                self.counts.others[usize::from(metadata)][0].fetch_add(1, Relaxed);
            }
            return None;
        };
        let value = entry.value.clone();
        let list = entry.list.load(Relaxed);
        if let Some(metadata) = metadata
            && let Some(count) = self.counts.hits[usize::from(metadata)].get(usize::from(list))
        {
            count.fetch_add(1, Relaxed);
        }
        let unread = match entry.is_unread() {
            true => entry.unread.swap(0, Relaxed),
            false => 0,
        };
        // One that is frequent already is moved when its turn comes.
        if unread == 0
            && entry.is_used(name, age)
            && list != List::Uncached as u8
            && !entry.touched.load(Relaxed)
            && !entry.touched.swap(true, Relaxed)
            && list == List::Recent as u8
        {
            self.noted.note(entry.at);
        }
        Some(Hit { value, used_up: unread == unread_once() })
    }

    /// Puts a value in the place of one of the same size. The former one; or the new one, where there is none of that size.
    pub fn swap(
        &self,
        name: &Name,
        value: Value,
        (size, about): (u32, u64),
        age: Age,
    ) -> Result<Value, Value> {
        let mut entries = self.entries.write();
        match entries.get_mut(name).filter(|entry| entry.size == size) {
            Some(entry) => {
                if entry.is_used(name, age) {
                    entry.touched.store(true, Relaxed);
                }
                entry.unread.store(0, Relaxed);
                entry.about = about;
                Ok(std::mem::replace(&mut entry.value, value))
            }
            None => Err(value),
        }
    }

    /// Drops all entries.
    pub fn empty(&self) {
        let gone = std::mem::take(&mut *self.entries.write());
        drop(gone);
    }

    /// Gives back places of the table that entries have left.
    pub fn compact(&self) {
        let mut entries = self.entries.write();
        let len = entries.len();
        entries.shrink_to(len + len / 2);
    }

    /// The node of an entry (`buf_hash_find`).
    pub fn find(&self, name: &Name) -> Option<u32> {
        self.entries.read().get(name).map(|entry| entry.at)
    }
}

fn unread_once() -> u8 {
    unread(Access::Once)
}
