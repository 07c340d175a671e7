//! What a client says after its request: standard input in frames, or that it goes away.

use crate::protocol::{Kind, read_frame};
use cenote_command::Cancel;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

/// A thread that reads what the client says. When it says anything but input, or closes its end, its command is
/// cancelled. The thread and the connection end with this.
pub(super) struct Watch {
    stream: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// `input`: the other end of what the command reads as its standard input.
    ///
    /// # Errors
    /// There are no descriptors or threads left.
    pub(super) fn start(
        stream: &UnixStream,
        cancel: Cancel,
        input: Option<UnixStream>,
    ) -> io::Result<Watch> {
        if let Some(input) = &input {
            input.set_nonblocking(true)?;
        }
        let (stream, read) = (stream.try_clone()?, stream.try_clone()?);
        let watch = move || {
            let (mut read, takes_input) = (read, input.is_some());
            let mut to = input;
            while let Ok(Some((Kind::In, data))) = read_frame(&mut read) {
                if !takes_input {
                    break;
                }
                // An empty frame is the end; a command that reads no more does not concern the client.
                to = to.filter(|to| !data.is_empty() && pass_on(&data, to, &read).is_ok());
            }
            // Before the input ends.
            cancel.cancel();
        };
        let thread = std::thread::Builder::new().name("watch".into()).spawn(watch)?;
        Ok(Watch { stream, thread: Some(thread) })
    }

    /// Lets the connection last, and the thread with it.
    pub(super) fn leave(mut self) {
        self.thread = None;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // This wakes the thread. Where there is no connection any more, it has ended.
        let _ = self.stream.shutdown(Shutdown::Both);
        if thread.join().is_err() {
            tracing::error!("internal error: the watch of a connection panicked");
        }
    }
}

/// Gives the command its input, unless it or the client ends meanwhile.
fn pass_on(mut data: &[u8], mut to: &UnixStream, client: &UnixStream) -> io::Result<()> {
    while !data.is_empty() {
        // That the client has gone is always told.
        let mut waiting =
            [PollFd::new(to, PollFlags::OUT), PollFd::new(client, PollFlags::empty())];
        rustix::io::retry_on_intr(|| poll(&mut waiting, None))?;
        if !waiting[1].revents().is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match to.write(data) {
            Ok(written) => data = data.get(written..).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::write_frame;
    use std::io::Read;
    use std::time::{Duration, Instant};

    #[track_caller]
    fn until(what: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !what() {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn input_arrives_and_ends() {
        let ((ours, mut client), (theirs, mut command)) =
            (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let cancel = Cancel::default();
        let watch = Watch::start(&ours, cancel.clone(), Some(theirs)).unwrap();
        let data: Vec<u8> = (0..1_000_000u32).map(|n| n as u8).collect();
        let sent = data.clone();
        let sender = std::thread::spawn(move || {
            write_frame(&mut client, Kind::In, &sent).unwrap();
            write_frame(&mut client, Kind::In, &[]).unwrap();
            client
        });
        let mut read = Vec::new();
        command.read_to_end(&mut read).unwrap();
        assert!(read == data && !cancel.is_cancelled());
        drop(sender.join().unwrap());
        until(|| cancel.is_cancelled());
        drop(watch);
    }

    #[test]
    fn a_command_that_does_not_read_is_cancelled_and_the_thread_ends() {
        for ends in [false, true] {
            let ((ours, mut client), (theirs, command)) =
                (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
            let cancel = Cancel::default();
            let watch = Watch::start(&ours, cancel.clone(), Some(theirs)).unwrap();
            write_frame(&mut client, Kind::In, &vec![0; 1_000_000]).unwrap();
            if ends {
                drop(client);
                until(|| cancel.is_cancelled());
            }
            drop(watch);
            drop(command);
        }
    }
}
