//! The allocator of the program, and how it gives memory back to the system.
//!
//! Blocks come and go by the megabyte with every transaction group; jemalloc keeps their pages
//! for the next one. It gives pages back that were free for some seconds, but only when it is called. So a daemon
//! that has nothing to do asks for that, and for all of them when memory is short.
//!
//! # Why the unsafe code is sound
//!
//! `mallctl` takes a name that ends with 0, and for these names, which neither read nor write a value, null pointers. It may be called by
//! any thread at any time.

#![allow(unsafe_code)]

use cenote_store::memory::{self, Allocator};
use std::ffi::CStr;
use std::ptr::null_mut;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// In names: all arenas (`MALLCTL_ARENAS_ALL`, 4096).
const DECAY: &CStr = c"arena.4096.decay";
const PURGE: &CStr = c"arena.4096.purge";

fn control(name: &CStr) {
    // SAFETY: see the head of the module. What it cannot do is left undone.
    unsafe {
        tikv_jemalloc_sys::mallctl(name.as_ptr(), null_mut(), null_mut(), null_mut(), 0);
    }
}

/// Has the cache give back what it does not need.
pub fn tell_the_cache() {
    let (decay, purge) = (|| control(DECAY), || control(PURGE));
    memory::use_allocator(Allocator { decay, purge });
}
