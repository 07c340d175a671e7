//! Objects that were decoded of blocks, kept in the cache (`dnode_handle_t`).

use super::Access;
use super::cache::{ArcCache, Entry};
use super::name::{Name, Value, allocation};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Objects of one kind by their numbers, which are in the cache as long as that has room for them.
///
/// What a table leaves in the cache when it is dropped is never found again, and goes when its turn comes, with its pool, or when a
/// key is unloaded.
pub struct Table<T> {
    cache: Arc<ArcCache>,
    pool: u32,
    /// Number of the table in the cache.
    number: u64,
    /// Something was put in.
    used: AtomicBool,
    kind: PhantomData<fn() -> T>,
}

impl<T: Send + Sync + 'static> Table<T> {
    pub(crate) fn new(cache: Arc<ArcCache>, pool: u32) -> Table<T> {
        let number = cache.new_table();
        Table { cache, pool, number, used: AtomicBool::new(false), kind: PhantomData }
    }

    fn name(&self, number: u64) -> Name {
        Name::object(self.pool, self.number, number)
    }

    /// The object, if it is there.
    pub fn get(&self, number: u64) -> Option<Arc<T>> {
        match self.cache.look(&self.name(number), None)? {
            Value::Object(object) => object.downcast().ok(),
            Value::Bytes(_) => None,
        }
    }

    /// Puts an object that takes `bytes` bytes in the place of what is there.
    pub fn insert(&self, number: u64, object: Arc<T>, bytes: usize) {
        let (name, size) = (self.name(number), allocation(bytes));
        let (value, metadata, access) = (Value::Object(object), true, Access::Demand);
        self.used.store(true, Relaxed);
        self.cache.put(Entry { name, value, size, metadata, access, about: 0 }, true);
    }

    /// Takes an object out.
    pub fn remove(&self, number: u64) {
        self.cache.forget(&self.name(number));
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        if self.used.load(Relaxed) {
            self.cache.buries(self.pool, self.number);
        }
    }
}
