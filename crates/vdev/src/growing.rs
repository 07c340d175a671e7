//! Devices whose addresses are never used twice: their space only grows.
//!
//! Such a device gives out its addresses itself, in order. What was freed is told to it, and does not come back.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::Alarm;

/// What the allocator and the engine ask of such a device. Addresses are offsets of DVAs.
pub trait Growing: Send + Sync {
    /// Where the next allocation begins.
    fn next(&self) -> u64;

    /// From now on this host has the device, and every other one is refused. To be called before anything is allocated, with no lock held:
    /// it waits for the store. Devices without other hosts need nothing.
    ///
    /// # Errors
    /// Another host has written to it since it was opened; the store cannot be reached.
    fn take_over(&self) -> io::Result<()>;

    /// From now on `alarm` is sounded when a thread of the device finds its state wrong, or at once where one has. The last one counts.
    fn sound_on_broken(&self, alarm: &Arc<Alarm>);

    /// The newest uberblock's group in what was read when the device was opened, or is stored since; 0 if there is none.
    fn newest_group(&self) -> u64;

    /// Gives out the next `bytes` addresses, for one block. What is given out and not written by the end of the group is given up.
    /// Waits for nothing.
    ///
    /// # Errors
    /// There are none left; the device was not taken over.
    fn allocate(&self, bytes: u64) -> io::Result<u64>;

    /// The bytes from `start` to `end` are freed in the group that is being written. What never was written may be among
    /// them.
    fn free(&self, start: u64, end: u64);

    /// Writes objects anew that few live bytes are left in, about so many bytes, given what is allocated on disk within a
    /// range. The next group puts them in the place of the old ones. It ends soon after `stops` says so, whatever the store does.
    /// Returns how many bytes were copied.
    ///
    /// # Errors
    /// Some were left as they are, and why.
    fn reclaim(
        &self,
        live: LiveRanges<'_>,
        bytes: u64,
        stops: &(dyn Fn() -> bool + Sync),
    ) -> Result<u64, String>;

    /// Deletes all that the device has on its store. Nothing is read or written any more from then on. Returns whether there was a pool.
    ///
    /// # Errors
    /// Another host has it; the store fails: the next call goes on.
    fn erase(&self) -> io::Result<bool>;

    /// Why the last group could not be stored, if it could not.
    fn trouble(&self) -> Option<String>;

    /// Whether nothing is kept there: no pool, and no files where that can be told at once.
    fn is_new(&self) -> bool;

    /// Bytes that should be under way for one sequential reader, so that it gets what the store can give: many requests at once.
    fn read_ahead(&self) -> u64;

    /// What is stored, and what was asked of the store since it was opened.
    fn figures(&self) -> GrowingFigures;
}

/// Tells what is allocated within a range, in order.
pub type LiveRanges<'a> = &'a mut (dyn FnMut(Range<u64>) -> Result<Vec<Range<u64>>, String> + Send);

/// Requests by what they ask for: in order PUT, GET, LIST, DELETE.
pub const VERBS: [&str; 4] = ["PUT", "GET", "LIST", "DELETE"];

/// Figures of a growing device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrowingFigures {
    /// Objects with blocks.
    pub objects: u64,
    /// Bytes of blocks in them.
    pub stored: u64,
    /// Bytes of these that are allocated.
    pub live: u64,
    /// Objects that nothing needs any more, and that are deleted when it is time.
    pub garbage: u64,
    /// Requests by [`VERBS`], each try counted.
    pub requests: [u64; 4],
    /// Bytes sent or received by them.
    pub bytes: [u64; 4],
    /// Tries after the first.
    pub retries: [u64; 4],
    /// Requests that were given up.
    pub failures: [u64; 4],
}

/// A figure as programs see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowingFigure {
    /// Its name, with the unit behind it where there is one.
    pub name: &'static str,
    /// It only grows, from the opening of the device on.
    pub is_counter: bool,
    /// What it means.
    pub about: &'static str,
}

/// What programs are shown of a growing device, in order.
pub const GROWING_FIGURES: [GrowingFigure; 14] = {
    const fn now(name: &'static str, about: &'static str) -> GrowingFigure {
        GrowingFigure { name, is_counter: false, about }
    }
    const fn counter(name: &'static str, about: &'static str) -> GrowingFigure {
        GrowingFigure { name, is_counter: true, about }
    }
    [
        now("objects", "Objects with blocks"),
        now("stored_bytes", "Bytes of blocks in objects"),
        now("live_bytes", "Bytes of these that are allocated"),
        now("garbage_objects", "Objects that are not needed any more, and deleted when it is time"),
        counter("put_requests", "Requests that store an object, each try counted"),
        counter("get_requests", "Requests that read an object or ask for it, each try counted"),
        counter("list_requests", "Requests that list names, each try counted"),
        counter("delete_requests", "Requests that delete an object, each try counted"),
        counter("put_bytes", "Bytes sent by requests that succeeded"),
        counter("get_bytes", "Bytes received by requests that succeeded"),
        counter("put_retries", "Tries of PUT after the first"),
        counter("get_retries", "Tries of GET after the first"),
        counter("other_retries", "Tries of LIST and DELETE after the first"),
        counter("failures", "Requests that were given up"),
    ]
};

impl GrowingFigures {
    /// The values of [`GROWING_FIGURES`].
    pub fn values(&self) -> [u64; GROWING_FIGURES.len()] {
        let [put, get, list, delete] = self.requests;
        let [put_again, get_again, list_again, delete_again] = self.retries;
        [
            self.objects,
            self.stored,
            self.live,
            self.garbage,
            put,
            get,
            list,
            delete,
            self.bytes[0],
            self.bytes[1],
            put_again,
            get_again,
            list_again.wrapping_add(delete_again),
            self.failures.iter().fold(0, |sum: u64, n| sum.wrapping_add(*n)),
        ]
    }
}
