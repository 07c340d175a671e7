//! What a client says after its request: standard input in frames, what its process did for the command, or that it goes away.
//!
//! # Structures
//!
//! A [`Watch`] is a thread that reads the connection while a command runs. [`Asked`] is the other direction: the command asks the user's
//! process to do something with the user's rights, and waits for the answer.
//!
//! # Algorithm
//!
//! - A frame of input goes to the command's standard input. An empty one ends it. A command that reads no more takes no more, which is
//!   no concern of the client.
//! - An answer goes to the command that asked.
//! - Anything else, an answer that was not asked for, or the end of the connection cancels the command.
//!
//! # Invariants
//!
//! - One question is under way at a time, and each has one answer. A client that sends its input is asked nothing, as its answer would
//!   lie behind input that was not read yet.
//! - A thread that gives a command its input also sees that the client goes away: a command that does not read keeps no thread.

use super::wire::Outbox;
use crate::context::Process;
use crate::protocol::{Kind, read_frame};
use cenote_command::Cancel;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a command that waits for its client's process looks whether it was cancelled.
const MOMENT: Duration = Duration::from_millis(50);

/// The client's process, as its command asks it.
pub(super) struct Asked {
    outbox: Arc<Outbox>,
    /// `None`: the client sends its input, and an answer would lie behind what the command has not read yet.
    answers: Option<Mutex<Receiver<Vec<u8>>>>,
    cancel: Cancel,
}

impl Asked {
    /// Where questions go, and where [`Watch`] puts the answers: one at a time. `None`: the client sends its input ([`Stdin::Frames`]), and
    /// is asked nothing.
    ///
    /// [`Stdin::Frames`]: crate::protocol::Stdin::Frames
    pub(super) fn new(
        outbox: &Arc<Outbox>,
        answers: Option<Receiver<Vec<u8>>>,
        cancel: Cancel,
    ) -> Asked {
        Asked { outbox: Arc::clone(outbox), answers: answers.map(Mutex::new), cancel }
    }
}

impl Process for Asked {
    fn ask(&self, question: &[u8]) -> io::Result<Vec<u8>> {
        let Some(answers) = &self.answers else {
            let why = "the command's process cannot be asked while it sends standard input to another user's daemon";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        };
        let answers = answers.lock();
        self.outbox.send(Kind::Ask, question)?;
        self.outbox.finish()?;
        loop {
            match answers.recv_timeout(MOMENT) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) if !self.cancel.is_cancelled() => {}
                Err(RecvTimeoutError::Timeout) => return Err(io::ErrorKind::Interrupted.into()),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
    }
}

/// Where answers of a client go, and where they come out.
pub(super) fn answers() -> (SyncSender<Vec<u8>>, Receiver<Vec<u8>>) {
    sync_channel(1)
}

/// A thread that reads what the client says. When it says anything but input and one answer to each question, or closes its end,
/// its command is cancelled. The thread and the connection end with this.
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
        answers: SyncSender<Vec<u8>>,
    ) -> io::Result<Watch> {
        if let Some(input) = &input {
            input.set_nonblocking(true)?;
        }
        let (stream, read) = (stream.try_clone()?, stream.try_clone()?);
        let watch = move || {
            let (mut read, takes_input) = (read, input.is_some());
            let mut to = input;
            loop {
                let data = match read_frame(&mut read) {
                    Ok(Some((Kind::In, data))) if takes_input => data,
                    Ok(Some((Kind::Answer, data))) => match answers.try_send(data) {
                        Ok(()) => continue,
                        Err(_) => break,
                    },
                    _ => break,
                };
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
    use crate::server::wire::Wire;
    use std::io::Read;
    use std::time::Instant;

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
        let watch = Watch::start(&ours, cancel.clone(), Some(theirs), answers().0).unwrap();
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
    fn a_question_is_answered_once() {
        let (ours, mut client) = UnixStream::pair().unwrap();
        let outbox = Outbox::new(&Arc::new(Wire::new(ours.try_clone().unwrap())), true);
        let (cancel, (to, from)) = (Cancel::default(), answers());
        let watch = Watch::start(&ours, cancel.clone(), None, to).unwrap();
        let asked = Asked::new(&outbox, Some(from), cancel.clone());
        let mut answerer = client.try_clone().unwrap();
        let answers = std::thread::spawn(move || {
            let (kind, question) = read_frame(&mut answerer).unwrap().unwrap();
            assert_eq!(kind, Kind::Ask);
            write_frame(&mut answerer, Kind::Answer, &[&question[..], b"!"].concat()).unwrap();
        });
        assert_eq!(asked.ask(b"this").unwrap(), b"this!");
        answers.join().unwrap();
        assert!(!cancel.is_cancelled());
        // What was not asked for ends the command, at the latest when it comes again.
        for _ in 0..2 {
            write_frame(&mut client, Kind::Answer, b"more").unwrap();
        }
        until(|| cancel.is_cancelled());
        drop(watch);
        // The thread has let go of the answers.
        let left = [asked.ask(b"one"), asked.ask(b"two")];
        assert!(left[1].is_err(), "{left:?}");
    }

    #[test]
    fn who_sends_input_is_asked_nothing() {
        let (ours, mut client) = UnixStream::pair().unwrap();
        let outbox = Outbox::new(&Arc::new(Wire::new(ours)), true);
        let asked = Asked::new(&outbox, None, Cancel::default());
        assert_eq!(asked.ask(b"this").unwrap_err().kind(), io::ErrorKind::Unsupported);
        client.set_nonblocking(true).unwrap();
        assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_command_that_does_not_read_is_cancelled_and_the_thread_ends() {
        for ends in [false, true] {
            let ((ours, mut client), (theirs, command)) =
                (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
            let cancel = Cancel::default();
            let watch = Watch::start(&ours, cancel.clone(), Some(theirs), answers().0).unwrap();
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
