//! A connection as the daemon writes to it.
//!
//! Output of another user's command waits in memory while the command keeps others waiting
//! ([`keeps_others_waiting`]), up to [`MOST_KEPT`]. It goes out when they wait no longer, for which its reader may take
//! as long as it likes. More than that goes out at once; all of it together may take [`PATIENCE`], then the command
//! ends.

use crate::pools::keeps_others_waiting;
use crate::protocol::{Kind, MAX_DATA, write_frame, write_json};
use parking_lot::Mutex;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long another user's command may keep others waiting for its user to read what it says.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of output that wait in memory.
const MOST_KEPT: usize = 1 << 20;
/// Bytes that the kernel takes with one wait, at most: the timeout of a socket holds for one wait.
const PIECE: usize = 16 << 10;

/// A connection, whose frames go out one after the other.
pub(super) struct Wire {
    stream: UnixStream,
    /// Held by the thread that sends a frame.
    turn: Mutex<()>,
}

impl Wire {
    pub(super) fn new(stream: UnixStream) -> Wire {
        Wire { stream, turn: Mutex::default() }
    }

    /// Sends so short a message as a whole or not at all; not if another frame is being sent.
    pub(super) fn send_now(&self, frame: &[u8]) {
        if let Some(_turn) = self.turn.try_lock() {
            let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
            let _ = rustix::net::send(&self.stream, frame, flags);
        }
    }

    /// From now on a wait for the reader takes no longer than this.
    pub(super) fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.stream.set_write_timeout(Some(timeout))
    }

    /// Ends the connection. Threads that read or write it are woken.
    pub(super) fn shut(&self) {
        // Where there is no connection any more, there is nothing to end.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Tells the client how its command ended, and ends the connection, whether the client could be told or not.
    pub(super) fn dismiss(&self, code: i32) -> io::Result<()> {
        let _turn = self.turn.lock();
        let told = write_json(&mut &self.stream, Kind::Exit, &code);
        self.shut();
        told
    }

    /// Does what `send` sends, which nothing can follow if it fails.
    fn sent(&self, send: impl FnOnce(&UnixStream) -> io::Result<()>) -> io::Result<()> {
        let sent = send(&self.stream);
        if sent.is_err() {
            self.shut();
        }
        sent
    }

    /// Sends bytes until a time.
    fn send_until(&self, bytes: &[u8], end: Instant) -> io::Result<()> {
        for mut piece in bytes.chunks(PIECE) {
            while !piece.is_empty() {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                self.stream.set_write_timeout(Some(left))?;
                match (&self.stream).write(piece) {
                    Ok(sent) => piece = piece.get(sent..).unwrap_or_default(),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
        }
        self.stream.set_write_timeout(None)
    }
}

/// What a command says to its client, on both streams.
pub(super) struct Outbox {
    wire: Arc<Wire>,
    /// The command is another user's.
    is_others: bool,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Frames that wait.
    frames: Vec<u8>,
    /// When those have to have gone out that did not wait.
    end: Option<Instant>,
}

impl Outbox {
    pub(super) fn new(wire: &Arc<Wire>, is_others: bool) -> Arc<Outbox> {
        Arc::new(Outbox { wire: Arc::clone(wire), is_others, kept: Mutex::default() })
    }

    /// Sends a frame, or keeps it with those that wait.
    pub(super) fn send(&self, kind: Kind, data: &[u8]) -> io::Result<()> {
        if !self.is_others {
            let _turn = self.wire.turn.lock();
            return self.wire.sent(|mut stream| write_frame(&mut stream, kind, data));
        }
        let mut end = None;
        {
            let mut kept = self.kept.lock();
            write_frame(&mut kept.frames, kind, data)?;
            if keeps_others_waiting() {
                if kept.frames.len() <= MOST_KEPT {
                    return Ok(());
                }
                end = Some(*kept.end.get_or_insert_with(|| Instant::now() + PATIENCE));
            }
        }
        self.send_kept(end)
    }

    /// Sends what waits.
    pub(super) fn finish(&self) -> io::Result<()> {
        self.send_kept(None)
    }

    fn send_kept(&self, end: Option<Instant>) -> io::Result<()> {
        let turn = match end {
            None => Some(self.wire.turn.lock()),
            Some(end) => self.wire.turn.try_lock_until(end),
        };
        let Some(_turn) = turn else { return Err(io::ErrorKind::TimedOut.into()) };
        let frames = std::mem::take(&mut self.kept.lock().frames);
        self.wire.sent(|mut stream| match end {
            None => stream.write_all(&frames),
            Some(end) => self.wire.send_until(&frames, end),
        })
    }
}

/// One of a command's streams of output, as frames.
pub(super) struct Frames {
    outbox: Arc<Outbox>,
    kind: Kind,
}

impl Frames {
    pub(super) fn new(outbox: &Arc<Outbox>, kind: Kind) -> Frames {
        Frames { outbox: Arc::clone(outbox), kind }
    }
}

impl Write for Frames {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let part = data.get(..MAX_DATA).unwrap_or(data);
        self.outbox.send(self.kind, part).map(|()| part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pools::PoolTable;
    use crate::protocol::read_frame;

    #[test]
    fn output_waits_while_others_do() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let outbox = Outbox::new(&Arc::new(Wire::new(ours)), true);
        let (mut out, mut err) = (Frames::new(&outbox, Kind::Out), Frames::new(&outbox, Kind::Err));
        let pools = PoolTable::default();
        let change = pools.change("pool");
        // More than the socket takes, which is not read yet.
        out.write_all(&vec![b'x'; MOST_KEPT - 100]).unwrap();
        err.write_all(b"one").unwrap();
        theirs.set_nonblocking(true).unwrap();
        assert_eq!(read_frame(&mut theirs).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        theirs.set_nonblocking(false).unwrap();
        drop(change);
        let reader = std::thread::spawn(move || {
            std::iter::from_fn(|| read_frame(&mut theirs).unwrap()).collect::<Vec<_>>()
        });
        out.write_all(b"two").unwrap();
        outbox.finish().unwrap();
        outbox.wire.dismiss(0).unwrap();
        let read = reader.join().unwrap();
        let kinds: Vec<Kind> = read.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [Kind::Out, Kind::Err, Kind::Out, Kind::Exit]);
        assert_eq!((read[1].1.as_slice(), read[2].1.as_slice()), (&b"one"[..], &b"two"[..]));
    }

    #[test]
    fn a_time_holds_for_all_that_is_sent() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let wire = Wire::new(ours);
        // Its reader reads a little now and then.
        let reader = std::thread::spawn(move || {
            let (mut some, mut theirs) = ([0; 4096], theirs);
            while matches!(io::Read::read(&mut theirs, &mut some), Ok(read) if read > 0) {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let began = Instant::now();
        let sent = wire.send_until(&vec![0; 64 << 20], began + Duration::from_millis(300));
        assert!(sent.is_err() && began.elapsed() < Duration::from_secs(5), "{sent:?}");
        wire.shut();
        reader.join().unwrap();
    }
}
