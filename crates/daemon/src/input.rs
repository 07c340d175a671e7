//! Standard input of a command that runs in the daemon: the client's own, whose descriptor came with the request.
//!
//! A read that waits checks now and then whether the command was cancelled: a pipe may stay open, with nothing in it,
//! long after the client is gone.

use cenote_command::Cancel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;

/// Longest time between two checks, in nanoseconds.
const POLL_TIMEOUT: i64 = 200_000_000;

/// See the [module](self).
pub struct Input {
    file: File,
    cancel: Cancel,
}

impl Input {
    /// Input of a command that `cancel` cancels.
    pub fn new(file: File, cancel: Cancel) -> Input {
        Input { file, cancel }
    }
}

impl Input {
    /// Standard input of this process.
    ///
    /// # Errors
    /// It has none.
    pub fn of_process(cancel: Cancel) -> io::Result<Input> {
        let own = io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Input::new(own.into(), cancel))
    }
}

/// Has a terminal show again what is typed, when it is dropped.
pub struct Hidden {
    terminal: File,
    before: Termios,
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // It may be gone.
        let _ = tcsetattr(&self.terminal, OptionalActions::Flush, &self.before);
    }
}

impl Input {
    /// Has the terminal that this is not show what is typed.
    ///
    /// # Errors
    /// It is no terminal.
    pub fn hidden(&self) -> io::Result<Hidden> {
        let before = tcgetattr(&self.file)?;
        let mut silent = before.clone();
        silent.local_modes -=
            LocalModes::ECHO | LocalModes::ECHOE | LocalModes::ECHOK | LocalModes::ECHONL;
        tcsetattr(&self.file, OptionalActions::Flush, &silent)?;
        Ok(Hidden { terminal: self.file.try_clone()?, before })
    }
}

impl Read for Input {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let pause = Timespec { tv_sec: 0, tv_nsec: POLL_TIMEOUT };
        loop {
            if self.cancel.is_cancelled() {
                // Not `Interrupted`, after which it would be read again.
                return Err(io::Error::other("interrupted"));
            }
            let mut waiting = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut waiting, Some(&pause)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return self.file.read(to),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn who_waits_for_input_is_told_that_it_was_cancelled() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let cancel = Cancel::default();
        let mut input = Input::new(File::from(OwnedFd::from(theirs)), cancel.clone());
        ours.write_all(b"some").unwrap();
        let mut some = [0; 8];
        assert_eq!(input.read(&mut some).unwrap(), 4);
        let waiting = std::thread::spawn(move || input.read(&mut [0; 8]).unwrap_err());
        cancel.cancel();
        assert_eq!(waiting.join().unwrap().to_string(), "interrupted");
    }
}
