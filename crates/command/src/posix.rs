//! Whether the first operand of a command line ends its options, as POSIX has it: where the user has
//! `POSIXLY_CORRECT` in the environment.

use std::cell::Cell;

thread_local! {
    /// The user of the command that this thread runs wants it.
    static POSIX: Cell<bool> = const { Cell::new(false) };
}

/// Says whether the user of the command that this thread runs wants it. (A command line is taken apart
/// by the thread that runs the command.)
pub fn set_posix(posix: bool) {
    POSIX.set(posix);
}

/// Whether the user of the command that this thread runs wants it.
pub fn is_posix() -> bool {
    POSIX.get()
}
