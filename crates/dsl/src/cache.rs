//! A map of bounded size that may forget.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;

/// Remembers up to a number of values; forgets all of them when one more comes.
pub(crate) struct Cache<K, V> {
    map: Mutex<HashMap<K, V>>,
    capacity: usize,
}

impl<K: Hash + Eq, V: Clone> Cache<K, V> {
    pub(crate) fn new(capacity: usize) -> Self {
        Cache { map: Mutex::default(), capacity }
    }

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        self.map.lock().get(key).cloned()
    }

    pub(crate) fn clear(&self) {
        self.map.lock().clear();
    }

    pub(crate) fn put(&self, key: K, value: V) {
        let mut map = self.map.lock();
        if map.len() >= self.capacity {
            map.clear();
        }
        map.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_holds_more_than_its_capacity() {
        let cache = Cache::new(3);
        for i in 0..100 {
            cache.put(i, i);
            assert_eq!(cache.get(&i), Some(i));
            assert!(cache.map.lock().len() <= 3);
        }
    }
}
