//! What a thread does once it has let go of the request that it served.
//!
//! A request that has to wait until its changes are on disk could be given to a thread that waits, which has to be woken for it. Its
//! own thread can do the same, and has nothing else to do: but not within the request, where it holds what an exchange of the file
//! system waits for ([`Filesystem::admit`](super::Filesystem::admit)), keeps what serves the connection, and counts as one of the
//! threads that serve it. So the request leaves the rest of its work ([`leave`]), answer included, and the thread does that
//! when it has let go of everything ([`readers`](super::readers)). It still leads then. It hands that on before it waits, unless that is
//! likely to take a moment ([`brief`](super::brief)). As an answer depends on the thread it does not wait for the kernel meanwhile.
//!
//! Invariant: what was left is done, or dropped as a whole by a panic. A thread has one such thing at a time.

use std::cell::RefCell;

/// The rest of a request's work.
pub(crate) type Later = Box<dyn FnOnce()>;

thread_local! {
    /// What was left; `None`: this thread serves no request at the moment.
    static LEFT: RefCell<Option<Option<Later>>> = const { RefCell::new(None) };
}

/// While it lasts, this thread serves a request, which may leave something.
pub(crate) struct Serving {
    _own_thread: std::marker::PhantomData<*const ()>,
}

impl Serving {
    pub(crate) fn new() -> Serving {
        LEFT.set(Some(None));
        Serving { _own_thread: std::marker::PhantomData }
    }

    /// The request was served: what it left.
    pub(crate) fn end(self) -> Option<Later> {
        LEFT.take().flatten()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // What was left may do something as it is dropped.
        drop(LEFT.take());
    }
}

/// Whether the request that this thread serves may leave something.
pub(crate) fn may_leave() -> bool {
    LEFT.with_borrow(|left| matches!(left, Some(None)))
}

/// Has this thread do something once it has let go of the request that it serves. Returns what cannot be left: the thread serves no request,
/// or that has left something already.
pub(crate) fn leave<F: FnOnce() + 'static>(what: F) -> Result<(), F> {
    LEFT.with_borrow_mut(|left| match left {
        Some(left @ None) => {
            *left = Some(Box::new(what));
            Ok(())
        }
        _ => Err(what),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    #[test]
    fn a_request_leaves_one_thing() {
        let done = Rc::new(Cell::new(0));
        let add = |n| {
            let done = done.clone();
            move || done.set(done.get() + n)
        };
        assert!(!may_leave() && leave(add(1)).is_err());
        let serving = Serving::new();
        assert!(may_leave() && leave(add(2)).is_ok());
        assert!(!may_leave() && leave(add(4)).is_err());
        assert_eq!(done.get(), 0);
        let left = serving.end().unwrap();
        assert!(!may_leave());
        left();
        assert_eq!(done.get(), 2);
        // Of a request that panics nothing stays.
        let serving = Serving::new();
        assert!(leave(add(8)).is_ok());
        drop(serving);
        assert!(!may_leave() && Serving::new().end().is_none());
        assert_eq!((done.get(), Rc::strong_count(&done)), (2, 1));
    }
}
