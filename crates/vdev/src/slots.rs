//! Memory in huge pages, for what is read past the page cache.
//!
//! A device is told where to put what it reads by the physical place of every piece of memory. The pages
//! of an ordinary buffer lie anywhere, so a read of 1 MiB is a list of up to 256 places, and a virtual
//! disk whose queue has room for 256 has one such read under way at a time: it stands still from the end
//! of each to the beginning of the next. Memory in huge pages is in one piece, or nearly.
//!
//! A huge page is divided into [`PER_PAGE`] slots of [`SLOT`] bytes. A buffer takes as many neighbouring
//! ones as it needs, the first that are free, and gives them back when it is dropped. Pages are mapped
//! when no other has room, and stay mapped; there are at most [`PAGES`]: two or three readers that read
//! ahead need no more. Where all slots are taken, there are ordinary buffers.
//!
//! # Why the unsafe code is sound
//!
//! Every page is a private mapping of its own that is never unmapped, and whose bytes the kernel has
//! set to zero, so all of them can be read at any time. No reference to a mapping is ever made. A slot
//! that is marked as taken belongs to one [`Slot`], which alone makes references to its bytes, by the
//! rules of ownership; the mark is set under the lock when the `Slot` is made, and cleared when it is
//! dropped.

#![allow(unsafe_code)]

use cenote_format::invariant::said;
use parking_lot::{Mutex, MutexGuard};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::ptr::NonNull;

/// Bytes of a slot: a block of the default record size.
pub(crate) const SLOT: usize = 128 << 10;
/// Bytes of a huge page.
const PAGE: usize = 2 << 20;
/// Slots in one.
const PER_PAGE: usize = PAGE / SLOT;
/// Most pages: 64 MiB.
const PAGES: usize = 32;

/// A huge page.
struct Page {
    start: NonNull<u8>,
    /// Slots that are taken, a bit each.
    taken: u16,
}

// SAFETY: a mapping may be used by all threads; which thread uses which of its bytes is said above.
unsafe impl Send for Page {}

/// Pages, and which of their slots are taken.
pub(crate) struct Slots {
    pages: Mutex<Vec<Page>>,
    most: usize,
}

/// The slots of the process.
pub(crate) static SLOTS: Slots = Slots { pages: Mutex::new(Vec::new()), most: PAGES };

/// The bits of `count` neighbouring slots from the first one on.
fn mask(count: usize) -> u16 {
    u16::MAX >> (PER_PAGE - count.clamp(1, PER_PAGE))
}

impl Slots {
    fn lock(&self) -> MutexGuard<'_, Vec<Page>> {
        self.pages.lock()
    }

    /// A buffer of `len` bytes that hold anything, if there is room. It starts at a multiple of
    /// [`SLOT`] in memory.
    pub(crate) fn take(&'static self, len: usize) -> Option<Slot> {
        if len == 0 || len > PAGE {
            return None;
        }
        let mask = mask(len.div_ceil(SLOT));
        let mut pages = self.lock();
        let free = |page: &Page| {
            let shifts = 0..=mask.leading_zeros();
            shifts.into_iter().find(|shift| page.taken & mask << shift == 0)
        };
        let found = pages.iter().enumerate().find_map(|(at, page)| Some((at, free(page)?)));
        let (index, shift) = match found {
            Some(found) => found,
            None if pages.len() < self.most => {
                pages.push(map()?);
                (pages.len() - 1, 0)
            }
            None => return None,
        };
        let page = pages.get_mut(index)?;
        let bits = mask << shift;
        page.taken |= bits;
        // SAFETY: the slots are within the page.
        let start = unsafe { page.start.add(shift as usize * SLOT) };
        Some(Slot { start, len, home: self, index, bits })
    }
}

/// Maps a page: twice as much, since no more is said of where it will be than that it is a page.
fn map() -> Option<Page> {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping, anywhere; the page is within it, and so is what the advice is about.
    let start = unsafe {
        let all = mmap_anonymous(std::ptr::null_mut(), 2 * PAGE, prot, flags).ok()?;
        let start = all.byte_add(all.addr().wrapping_neg() % PAGE);
        if let Err(e) = madvise(start, PAGE, Advice::LinuxHugepage) {
            tracing::debug!(%e, "no huge pages");
        }
        start
    };
    Some(Page { start: NonNull::new(start.cast())?, taken: 0 })
}

/// A buffer in a huge page.
pub(crate) struct Slot {
    start: NonNull<u8>,
    len: usize,
    home: &'static Slots,
    /// Of the page, and its slots there.
    index: usize,
    bits: u16,
}

// SAFETY: it owns its bytes.
unsafe impl Send for Slot {}
// SAFETY: sharers can only read.
unsafe impl Sync for Slot {}

impl Slot {
    /// Where its bytes are, for code that writes to them without a reference.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl AsRef<[u8]> for Slot {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the bytes are its own, and initialised.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let (bits, index) = (self.bits, self.index);
        let mut pages = self.home.lock();
        let page = pages.get_mut(index).filter(|page| page.taken & bits == bits);
        match page {
            Some(page) => page.taken &= !bits,
            // It is no pool's. What is marked stays so: another buffer may have it.
            None => tracing::error!(
                "{}",
                said(format_args!("slots {bits:#x} of page {index} come back twice"))
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    static FEW: Slots = Slots { pages: Mutex::new(Vec::new()), most: 3 };

    /// Writes to every memory page of a buffer and to its end.
    fn mark(slot: &mut Slot, byte: u8) {
        let start = slot.as_mut_ptr();
        for at in (0..slot.len).step_by(4096).chain([slot.len - 1]) {
            // SAFETY: the byte is the slot's own.
            unsafe { start.add(at).write(byte) };
        }
    }

    fn is_marked(slot: &Slot, byte: u8) -> bool {
        let marks = slot.as_ref().iter().step_by(4096).chain(slot.as_ref().last());
        marks.into_iter().all(|b| *b == byte)
    }

    fn overlap(a: &Slot, b: &Slot) -> bool {
        let (a, b) = (a.as_ref().as_ptr_range(), b.as_ref().as_ptr_range());
        a.start < b.end && b.start < a.end
    }

    /// Whether so many neighbouring slots are free, or a page can be mapped.
    fn has_room(slots: usize) -> bool {
        let pages = FEW.lock();
        let free = |page: &Page| {
            let taken = |slot: usize| page.taken >> slot & 1 == 1;
            (0..=PER_PAGE - slots).any(|first| !(first..first + slots).any(taken))
        };
        pages.len() < FEW.most || pages.iter().any(free)
    }

    proptest! {
        #[test]
        fn buffers_do_not_overlap_and_come_back(
            steps in proptest::collection::vec((0usize..PAGE + SLOT, any::<u8>(), 0usize..8), 1..120)
        ) {
            let mut held: Vec<(Slot, u8)> = Vec::new();
            for (len, byte, drop) in steps {
                if let Some(mut slot) = FEW.take(len) {
                    prop_assert!(slot.start.addr().get().is_multiple_of(SLOT));
                    prop_assert_eq!(slot.as_ref().len(), len);
                    prop_assert!(!held.iter().any(|(other, _)| overlap(&slot, other)));
                    mark(&mut slot, byte);
                    held.push((slot, byte));
                } else {
                    prop_assert!(len == 0 || len > PAGE || !has_room(len.div_ceil(SLOT)));
                }
                if drop < held.len() {
                    held.swap_remove(drop);
                }
                for (slot, byte) in &held {
                    prop_assert!(is_marked(slot, *byte));
                }
            }
            drop(held);
            prop_assert!(FEW.lock().iter().all(|page| page.taken == 0));
            prop_assert!(FEW.lock().len() <= 3);
        }
    }

    #[test]
    fn pages_are_filled_before_others_are_mapped() {
        static SOME: Slots = Slots { pages: Mutex::new(Vec::new()), most: 2 };
        let mut all: Vec<Slot> = (0..PER_PAGE).filter_map(|_| SOME.take(SLOT)).collect();
        assert_eq!((all.len(), SOME.lock().len()), (PER_PAGE, 1));
        let whole = SOME.take(PAGE);
        assert!(whole.is_some() && SOME.take(1).is_none());
        assert_eq!(SOME.lock().len(), 2);
        // Three in the middle, but not in a row with others.
        all.drain(4..7);
        assert!(SOME.take(3 * SLOT + 1).is_none());
        assert!(SOME.take(3 * SLOT).is_some());
        assert!(SOME.take(0).is_none() && SOME.take(PAGE + 1).is_none());
    }
}
