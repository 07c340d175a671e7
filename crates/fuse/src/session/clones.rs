//! Descriptors of a thread's own for connections that it serves (`FUSE_DEV_IOC_CLONE`, Linux 4.2).
//!
//! All descriptors of a connection read from one queue; each has its own list of the requests that were read by it and are
//! not answered yet. So threads that answer through descriptors of their own do not wait for each other at that list.
//! An answer goes through the descriptor that its request was read by.
//!
//! A thread gets a descriptor when it first serves a connection, for the requests that it reads later, unless the process has [`MOST`] of them, or few are left of
//! those that it may have open ([`descriptors`]): commands and mounts need them. Other connections are served through
//! their own. A thread lets go of all its descriptors when it has had nothing to do for a while, and of those for a connection that has
//! ended when it serves the next request. So a mount that is not used costs no descriptor.
//!
//! # Why the unsafe code is sound
//!
//! The kernel reads the number of a descriptor, 32 bits, as the number of the `ioctl` says, and writes nothing.

#![allow(unsafe_code)]

use crate::descriptors;
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Most descriptors of all threads.
const MOST: usize = 128;
/// Most descriptors that are left for others.
const RESERVE: u64 = 64;
/// How many there are.
static ALL: AtomicUsize = AtomicUsize::new(0);
/// `FUSE_DEV_IOC_CLONE`.
const CLONE: Opcode = opcode::read::<u32>(229, 0);

/// One of those that are counted, until it is dropped.
struct Counted(&'static AtomicUsize);

impl Counted {
    /// One more, if there are fewer than [`MOST`].
    fn new(all: &'static AtomicUsize) -> Option<Counted> {
        let more = |count: usize| (count < MOST).then_some(count + 1);
        all.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok().map(|_| Counted(all))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A descriptor of a thread's own for a connection, which is a `T`.
struct Own<T> {
    descriptor: Arc<OwnedFd>,
    of: Weak<T>,
    /// `None`: it is the connection's own, since there is no other one to be had.
    _counted: Option<Counted>,
}

/// The descriptors of a thread, by the number of their connection.
pub(super) struct Clones<T>(HashMap<u64, Own<T>>);

impl<T> Default for Clones<T> {
    fn default() -> Clones<T> {
        Clones(HashMap::new())
    }
}

impl<T> Clones<T> {
    /// The descriptor by which this thread serves a connection, whose own is `device`.
    pub(super) fn of(&self, token: u64, device: &Arc<OwnedFd>) -> Arc<OwnedFd> {
        self.0.get(&token).map_or(device, |clone| &clone.descriptor).clone()
    }

    /// Gets this thread a descriptor for a connection, if it has none.
    pub(super) fn add(&mut self, token: u64, of: &Arc<T>, device: &Arc<OwnedFd>) {
        if self.0.contains_key(&token) {
            return;
        }
        let Some(counted) = Counted::new(&ALL) else { return };
        // Where it fails, because of an old kernel or too many open files, it is not tried each time.
        let (descriptor, counted) = match clone(device) {
            Ok(clone) => (Arc::new(clone), Some(counted)),
            Err(_) => (device.clone(), None),
        };
        self.0.insert(token, Own { descriptor, of: Arc::downgrade(of), _counted: counted });
    }

    /// Lets go of those of connections that have ended.
    pub(super) fn prune(&mut self) {
        self.0.retain(|_, clone| clone.of.strong_count() > 0);
    }

    /// Lets go of all.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// One more descriptor of a connection.
///
/// Errors: what the kernel says; there are too few descriptors left.
fn clone(device: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let clone = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
    descriptors::leave(&clone, RESERVE)?;
    let number = u32::try_from(device.as_raw_fd()).map_err(io::Error::other)?;
    // SAFETY: see the module's comment.
    unsafe { ioctl(&clone, Setter::<CLONE, u32>::new(number)) }?;
    Ok(clone)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Arc<OwnedFd> {
        Arc::new(std::fs::File::open("/dev/null").unwrap().into())
    }

    #[test]
    fn a_thread_lets_go_of_those_of_connections_that_ended() {
        let mut clones = Clones::default();
        let all: Vec<_> = (0..10).map(|token| (token, Arc::new(()), device())).collect();
        for (token, of, device) in &all {
            // What is no connection of the kernel's is served as it is, and does not count.
            clones.add(*token, of, device);
            assert!(Arc::ptr_eq(&clones.of(*token, device), device));
        }
        assert!(clones.0.len() == 10 && clones.0.values().all(|clone| clone._counted.is_none()));
        let left: Vec<_> = all.into_iter().filter(|(token, ..)| token % 2 == 0).collect();
        clones.prune();
        assert_eq!(clones.0.len(), 5);
        drop(left);
        clones.clear();
        assert!(clones.0.is_empty());
    }

    #[test]
    fn the_process_has_so_many() {
        static OURS: AtomicUsize = AtomicUsize::new(0);
        let mut all: Vec<_> = std::iter::from_fn(|| Counted::new(&OURS)).collect();
        assert_eq!(all.len(), MOST);
        all.pop();
        let last = Counted::new(&OURS);
        assert!(last.is_some() && Counted::new(&OURS).is_none());
    }
}
