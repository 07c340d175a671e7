//! Models of structures that are read without a lock: the code itself, with atomics by which a scheduler (`shuttle`)
//! lets threads run in many orders.
//!
//! The source is taken in by its path, so that `crate::sync` is what is here. Without a harness, since the unit tests in that
//! source are not meant for these atomics.

#![allow(dead_code, missing_docs, unused_imports)] // Of what is taken in.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
}

#[path = "../src/arc/noted.rs"]
mod noted;
#[path = "../src/alloc/read_epochs.rs"]
mod read_epochs;

use noted::{NOTES, Noted};
use read_epochs::ReadEpochs;
use shuttle::sync::Arc;
use shuttle::thread;
use sync::{AtomicU64, SeqCst};

/// Groups after which what was freed in one is given out, as the allocator has it (`TXG_DEFER_SIZE`).
const DEFER: u64 = 2;

/// A pool with one block that readers of group 1 need. It is freed in group 2, and overwritten as soon as it is given out.
struct Pool {
    epochs: ReadEpochs,
    /// The group that a reader sees.
    view: AtomicU64,
    block: AtomicU64,
}

impl Pool {
    fn new() -> Arc<Pool> {
        let pool = Pool {
            epochs: ReadEpochs::default(),
            view: AtomicU64::new(1),
            block: AtomicU64::new(1),
        };
        pool.epochs.group_done(1);
        Arc::new(pool)
    }

    /// Groups are written, in the order of the sync thread: what is due, the new view, the epoch.
    fn write(&self, short: bool) {
        for txg in 2..=6 {
            if short && txg == 4 {
                self.epochs.let_go();
            }
            let last = txg - DEFER;
            let due = self.epochs.oldest().map_or(last, |held| held.min(last));
            self.view.store(txg, SeqCst);
            self.epochs.group_done(txg);
            // It is given out from the next group on, which may be open already.
            if due >= 2 {
                self.block.store(2, SeqCst);
            }
        }
    }

    fn read(&self) {
        let epoch = self.epochs.begin();
        if self.view.load(SeqCst) < 2 {
            let found = self.block.load(SeqCst);
            assert!(found == 1 || !epoch.is_safe(), "a block was overwritten while it was read");
        }
    }
}

fn reads_and_groups(short: bool) {
    let pool = Pool::new();
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let pool = pool.clone();
            thread::spawn(move || (0..2).for_each(|_| pool.read()))
        })
        .collect();
    pool.write(short);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    assert_eq!(pool.epochs.oldest(), None, "a read is left");
}

/// A model that says yes to everything would be of no use: without an epoch the block is overwritten.
fn reads_without_an_epoch() {
    let pool = Pool::new();
    let other = pool.clone();
    let reader = thread::spawn(move || {
        if other.view.load(SeqCst) < 2 {
            assert_eq!(other.block.load(SeqCst), 1, "overwritten");
        }
    });
    pool.write(false);
    reader.join().unwrap();
}

/// Readers note entries while another thread takes the notes: each that is taken was made, and is taken
/// no more often than it was made. `all`: there is room for all, and one after the last has been made takes the rest.
fn notes_of_readers(each: u32, all: bool) {
    let noted = Arc::new(Noted::default());
    let readers: Vec<_> = (0..2)
        .map(|reader| {
            let noted = noted.clone();
            thread::spawn(move || (0..each).for_each(|n| noted.note(100 * reader + n)))
        })
        .collect();
    let mut taken = Vec::new();
    if !all {
        noted.take(|n| taken.push(n));
    }
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    noted.take(|n| taken.push(n));
    assert!(taken.iter().all(|n| n % 100 < each && n / 100 < 2), "{taken:?}");
    let count = taken.len();
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.len(), count, "a note is taken twice");
    assert!(!all || count == 2 * each as usize, "{taken:?}");
    noted.take(|n| panic!("{n} is left"));
}

fn main() {
    const TIMES: usize = 20_000;
    for (each, all) in [(3, false), (NOTES as u32 / 2, true), (NOTES as u32, false)] {
        shuttle::check_random(move || notes_of_readers(each, all), TIMES / 10);
        shuttle::check_pct(move || notes_of_readers(each, all), TIMES / 10, 3);
    }
    for short in [false, true] {
        shuttle::check_random(move || reads_and_groups(short), TIMES);
        shuttle::check_pct(move || reads_and_groups(short), TIMES, 3);
    }
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let found = std::panic::catch_unwind(|| shuttle::check_pct(reads_without_an_epoch, TIMES, 2));
    std::panic::set_hook(quiet);
    assert!(found.is_err(), "the model finds nothing");
    println!("models of read epochs: {} orders; of notes: {}", 4 * TIMES, 6 * TIMES / 10);
}
