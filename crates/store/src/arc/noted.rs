//! Notes of what was touched: a ring that many threads write to without a lock, and one empties.
//!
//! Each place has a note or 0. A writer takes the next place; a note that was there and was not taken is lost, and
//! so is one that is written while the ring is emptied, until that comes by again. What is lost costs
//! nothing but order: an entry's own mark stays.
//!
//! Invariant: a note that is taken was made, and is taken once for each time that it was made.

use crate::sync::{AtomicU64, SeqCst};

/// Places.
pub const NOTES: usize = 32;

/// See the [module](self).
pub struct Noted {
    next: AtomicU64,
    places: [AtomicU64; NOTES],
}

impl Default for Noted {
    fn default() -> Noted {
        Noted { next: AtomicU64::new(0), places: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Noted {
    /// Notes a number.
    pub fn note(&self, number: u32) {
        let at = self.next.fetch_add(1, SeqCst) as usize % NOTES;
        self.places[at].store(u64::from(number) + 1, SeqCst);
    }

    /// Takes what is noted.
    pub fn take(&self, mut each: impl FnMut(u32)) {
        if self.next.load(SeqCst) == 0 {
            return;
        }
        self.next.store(0, SeqCst);
        for place in &self.places {
            if place.load(SeqCst) == 0 {
                continue;
            }
            // 0 stands for no note: one less is the number.
            if let Some(number) = place.swap(0, SeqCst).checked_sub(1) {
                each(number as u32);
            }
        }
    }
}
