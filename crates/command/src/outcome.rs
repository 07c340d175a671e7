//! How a command ends: exit codes and the messages that go with them.
//!
//! 0 is success, 1 a failure, 2 a wrong command line (as `zpool` and `zfs` of OpenZFS have it), 130 an
//! interrupt (SIGINT) after which a command ended in order.

use std::io::{self, Write};

/// Exit code of a command whose arguments are wrong.
pub const WRONG: i32 = 2;
/// Exit code of a command that was interrupted, as shells have it: 128 and the number of SIGINT.
pub const INTERRUPTED: i32 = 130;

/// Why a command stopped early.
#[derive(Debug)]
pub enum Stop {
    /// A wrong command line: the message, then the command's usage; exit code 2. The message may
    /// be empty.
    Usage(String),
    /// A failure: the message; exit code 1.
    Fail(String),
    /// Everything was said already.
    Said(i32),
    /// The output could not be written.
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Stop {
        Stop::Io(e)
    }
}

/// Exit code of a command, or why it stopped.
pub type Outcome = Result<i32, Stop>;

/// The error in the system's words, without Rust's "(os error 28)".
pub fn plain(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}

/// A wrong command line.
pub fn usage<T>(message: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Usage(message.into()))
}

/// A failure.
pub fn fail<T>(message: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Fail(message.into()))
}

/// Ends a command: the property has a value already.
pub fn given_twice<T>(name: &str) -> Result<T, Stop> {
    fail(format!("property '{name}' specified multiple times"))
}

/// Turns an outcome into an exit code and prints its message. `usage` is the usage of the
/// command that was running, `out` and `err` are its standard output and standard error.
pub fn conclude(outcome: Outcome, usage: &str, out: &mut dyn Write, err: &mut dyn Write) -> i32 {
    let outcome = match (outcome, out.flush()) {
        (Ok(_), Err(e)) => Err(Stop::Io(e)),
        (outcome, _) => outcome,
    };
    // A reader of standard error that has gone away still gets the exit code.
    let mut complain = |message: &str| drop(writeln!(err, "{message}"));
    match outcome {
        Ok(code) | Err(Stop::Said(code)) => code,
        Err(Stop::Usage(message)) => {
            if !message.is_empty() {
                complain(&message);
            }
            complain(usage.trim_end_matches('\n'));
            WRONG
        }
        Err(Stop::Fail(message)) => {
            complain(&message);
            1
        }
        // The reader of the output has ended and cannot be told.
        Err(Stop::Io(e)) if e.kind() == io::ErrorKind::BrokenPipe => 1,
        Err(Stop::Io(e)) => {
            complain(&format!("cannot write output: {}", plain(&e)));
            1
        }
    }
}
