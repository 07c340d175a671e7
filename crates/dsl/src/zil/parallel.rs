//! Work on many things by several threads.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Has up to `threads` threads, this one among them, call `f` with each of `items`; returns when all are done.
pub fn each<T: Sync>(threads: usize, items: &[T], f: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            f(item);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            let started = std::thread::Builder::new().name("side-by-side".into());
            if started.spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn each_item_is_done_once() {
        let items: Vec<u64> = (0..1000).collect();
        for threads in [0, 1, 7, 2000] {
            let sum = AtomicU64::new(0);
            each(threads, &items, |n| {
                sum.fetch_add(*n, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 499_500);
        }
    }
}
