//! Invariants: what this program's own state must be, checked in release builds too (`VERIFY`, `ASSERT`).
//!
//! What guards bytes of a disk, of the network or of a caller is an error. What guards state that this program has made
//! itself is an invariant. If an invariant does not hold, the program has lost track of what it does, and nothing that
//! follows from that may reach a disk.
//!
//! [`invariant!`](crate::invariant!) and [`less!`](crate::less!) panic with a message that names the thing (vdev,
//! offset, object) and both numbers. Which code catches the panic depends on the thread:
//!
//! | thread | what catches the panic | what follows |
//! |---|---|---|
//! | the sync thread | `engine::run` | the group fails before its uberblock, and the pool is suspended |
//! | a change of an object set | `dmu::live` | the object set is written no more, and the pool is suspended |
//! | a commit to an intent log | `engine::zil` | the commit fails, and the pool is suspended |
//! | a thread that works for a pool beside these | `vdev::Alarm` | the alarm suspends the pool |
//! | a batch of writes, a job for a device | `store::write`, `vdev::threads` | the batch fails, and its group with it |
//! | a task of an object store | `objects::guard` | the space takes, stores and deletes nothing more, and the alarm suspends the pool |
//! | a request of a mount | `fuse::session` | the request fails; the alarm suspends the pool |
//! | a command (an import, a send) | `daemon::server` | the command fails |
//!
//! On disk stays the last good state.
//!
//! # Rules
//!
//! - An invariant is cheap: it does no walk that the work itself does not do.
//! - An invariant follows from the code. Bytes on a disk, an error of a device, or a thread that reads at the same time
//!   cannot break it.
//! - It is checked before what it guards is changed, where that is possible.
//! - A destructor does not panic: a second panic would end the process. It tells the pool instead.
//! - A sum that starts from a number of the disk is no invariant, as another system may have left that number wrong. What is
//!   checked is the change: `engine::verify` compares it from two sides, and `dsl::write` keeps books of blocks that this
//!   program itself wrote.

use std::any::Any;
use std::cell::RefCell;
use std::fmt::Arguments;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};

/// How the message of a broken invariant begins.
const BROKEN: &str = "broken invariant";

thread_local! {
    /// The last invariant that this thread found broken.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Checks an invariant; what follows the condition is formatted only if it does not hold.
#[macro_export]
macro_rules! invariant {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            $crate::invariant::broken(::std::format_args!($($what)+))
        }
    };
}

/// The first number less the second one, which is part of it by our own books; what follows says of what.
#[macro_export]
macro_rules! less {
    ($from:expr, $part:expr, $($what:tt)+) => {
        match ($from, $part) {
            (from, part) => match from.checked_sub(part) {
                Some(left) => left,
                None => $crate::invariant::broken(::std::format_args!(
                    "{}: {part} are taken of {from}",
                    ::std::format_args!($($what)+)
                )),
            },
        }
    };
}

/// An invariant does not hold: the one place that panics for that.
#[cold]
#[track_caller]
#[allow(clippy::panic)] // That is what it is for.
pub fn broken(what: Arguments<'_>) -> ! {
    let message = said(what);
    LAST.set(message.clone());
    panic!("{message}")
}

/// The message that an invariant does not hold, for a destructor: it tells the pool, or else the log.
#[cold]
#[track_caller]
pub fn said(what: Arguments<'_>) -> String {
    let at = Location::caller();
    format!("{BROKEN} ({}:{}): {what}", at.file(), at.line())
}

/// Whether the message of a panic is that of a broken invariant.
pub fn is_broken(message: &str) -> bool {
    message.starts_with(BROKEN)
}

/// The last invariant that this thread found broken.
pub fn last() -> Option<String> {
    Some(LAST.with_borrow(String::clone)).filter(|message| !message.is_empty())
}

/// What a panic says.
pub fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    match text {
        Some(text) if is_broken(text) => text.to_string(),
        Some(text) => format!("panicked: {text}"),
        None => "panicked: see the log".into(),
    }
}

/// Does some work.
///
/// # Errors
/// It panicked: what the panic says.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| message(&*panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_invariant_says_what_and_where() {
        let (used, freed) = (4096_u64, 8192_u64);
        assert_eq!(caught(|| less!(freed, used, "bytes of vdev {}", 3)), Ok(4096));
        let why = caught(|| less!(used, freed, "bytes of vdev {}", 3)).unwrap_err();
        assert!(is_broken(&why) && why.contains("invariant.rs"), "{why}");
        assert!(why.ends_with("bytes of vdev 3: 8192 are taken of 4096"), "{why}");
        assert_eq!(last(), Some(why));
        assert_eq!(caught(|| invariant!(used < freed, "{used} of {freed}")), Ok(()));
        let other = caught(|| panic!("for the test")).unwrap_err();
        assert!(!is_broken(&other) && other == "panicked: for the test", "{other}");
    }
}
