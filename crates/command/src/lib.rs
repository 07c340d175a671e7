//! What every command shares, whatever it does: the process that called it, and how it ends.
//!
//! Floor 9 of cenote, below the debugger, the daemon and the commands. A command runs in the process
//! that the user started, or in the daemon on that process's behalf. So it looks at a [`Caller`], which
//! travels along with the command line, and never at its own process.
//!
//! | module | what |
//! |---|---|
//! | [`caller`] | directory, environment, terminal and number of the user; a flag that stops the command |
//! | [`outcome`] | exit codes and the messages that go with them |
//! | [`output`] | what of the output reaches a terminal |
//! | [`posix`] | whether the first operand ends the options |
//! | [`signals`] | signals that are put off |
//! | [`clock`] | times in the caller's time zone |

pub mod caller;
pub mod clock;
pub mod outcome;
pub mod output;
pub mod posix;
pub mod signals;

/// The version of OpenZFS that the commands keep to.
pub const OPENZFS_VERSION: &str = "2.4.4";

pub use caller::{Caller, Cancel, Rights, Terminal};
