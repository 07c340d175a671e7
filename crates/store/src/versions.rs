//! A value that is replaced now and then while others look at it.
//!
//! Versions make a chain that only grows at its end. Whoever looks gets a plain reference to the
//! newest, without a lock or a counter, and may keep it: versions go when the chain goes. So this is
//! for what changes a few times in the life of a pool (its vdevs), and is looked at all the time.

use std::sync::OnceLock;

/// One version, and those that came after it.
pub(crate) struct Versions<T> {
    value: T,
    next: OnceLock<Box<Versions<T>>>,
}

impl<T> Versions<T> {
    /// The first version.
    pub fn new(value: T) -> Versions<T> {
        Versions { value, next: OnceLock::new() }
    }

    fn last(&self) -> &Versions<T> {
        let mut at = self;
        while let Some(next) = at.next.get() {
            at = next;
        }
        at
    }

    /// The newest version.
    pub fn newest(&self) -> &T {
        &self.last().value
    }

    /// Appends what `make` makes of the newest version. Where several do so at once, each is made of
    /// the one before; `make` may be called several times then.
    ///
    /// Errors: those of `make`.
    pub fn replace<E>(&self, mut make: impl FnMut(&T) -> Result<T, E>) -> Result<(), E> {
        let mut last = self.last();
        loop {
            let next = Box::new(Versions::new(make(&last.value)?));
            if last.next.set(next).is_ok() {
                return Ok(());
            }
            last = last.last();
        }
    }
}

impl<T> Drop for Versions<T> {
    fn drop(&mut self) {
        // One after another, lest a long chain be a deep recursion.
        let mut next = self.next.take();
        while let Some(mut version) = next {
            next = version.next.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_lost_and_old_ones_stay() {
        let versions = Versions::new(vec![0]);
        let first = versions.newest();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let longer = |v: &Vec<usize>| {
                            let mut v = v.clone();
                            v.push(v.len());
                            Ok::<_, ()>(v)
                        };
                        versions.replace(longer).unwrap();
                    }
                });
            }
        });
        assert_eq!(first, &[0]);
        assert_eq!(*versions.newest(), (0..=400).collect::<Vec<_>>());
    }
}
