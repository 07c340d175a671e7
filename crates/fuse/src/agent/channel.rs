//! A stream of messages with descriptors.
//!
//! A message is its length (32 bits, little-endian) and a body in JSON of at most 64 MiB. A descriptor may come
//! with its first byte (`SCM_RIGHTS`); it is kept until the message is whole. Descriptors beyond four at a time are
//! closed at once, so that a sender cannot fill the receiver's table.
//!
//! [`serve`] answers requests until the other end closes the stream. If the answer to a mount cannot be sent, or the stream
//! ends before the server has noted the mount, it is taken away again: no thread would ever serve it.

use super::{Reply, Request, borrowed, perform};
use crate::connection::Connection;
use crate::detach::Force;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Longest message in bytes.
const MAX: usize = 64 << 20;
/// Descriptors that may come with one byte.
const DESCRIPTORS: usize = 4;

/// One end of a stream of messages, each with at most one descriptor.
pub struct Channel {
    stream: UnixStream,
    /// Descriptors that have come, and belong to the message that is being read.
    received: VecDeque<OwnedFd>,
}

impl Channel {
    /// One end of a pair of sockets.
    pub fn new(stream: UnixStream) -> Channel {
        Channel { stream, received: VecDeque::new() }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn send<T: Serialize>(
        &mut self,
        message: &T,
        device: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let body = serde_json::to_vec(message)?;
        if body.len() > MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "message is too long"));
        }
        let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(&body);
        let sent = match device {
            Some(device) => self.send_with(&bytes, &[device])?,
            None => 0,
        };
        self.stream.write_all(bytes.get(sent..).unwrap_or_default())
    }

    /// Sends bytes, at least the first with these descriptors, of which there may be four; returns how many.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn send_with(&mut self, bytes: &[u8], devices: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(devices)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
        }
        let flags = SendFlags::NOSIGNAL;
        let send = || sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, flags);
        Ok(rustix::io::retry_on_intr(send)?)
    }

    /// Receives a message and the descriptor that came with it; `None` if there will be no more.
    ///
    /// # Errors
    /// Errors of the system calls; bytes that are no message.
    pub fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<(T, Option<OwnedFd>)>> {
        let mut length = [0; 4];
        match self.read_exact(&mut length) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "message is too long"));
        }
        let mut body = Vec::new();
        self.take(length as u64).read_to_end(&mut body)?;
        Ok(Some((serde_json::from_slice(&body)?, self.take_descriptor())))
    }

    /// The descriptor that came with what was read last, if one did.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.take_descriptors().into_iter().next()
    }

    /// The descriptors that came with what was read last.
    pub fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        self.received.drain(..).collect()
    }

    /// Whether the other end is open.
    fn is_open(&self) -> bool {
        let mut ends = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        let looked = rustix::io::retry_on_intr(|| poll(&mut ends, Some(&Timespec::default())));
        let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
        looked.is_ok() && ends.iter().all(|end| !end.revents().intersects(gone))
    }

    /// The stream, for a caller that sends and receives only bytes from now on.
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }
}

/// Keeps the descriptors that come with the bytes.
impl Read for Channel {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let read = rustix::io::retry_on_intr(|| {
            recvmsg(&self.stream, &mut [IoSliceMut::new(to)], &mut control, flags)
        })?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                for descriptor in descriptors {
                    // No message has more: others are closed.
                    if self.received.len() < DESCRIPTORS {
                        self.received.push_back(descriptor);
                    }
                }
            }
        }
        Ok(read.bytes)
    }
}

/// Serves as an agent until the other end is closed.
///
/// # Errors
/// Errors of the system calls; bytes that are no message.
pub fn serve(stream: UnixStream) -> io::Result<()> {
    let mut channel = Channel::new(stream);
    let mut unnoted = None;
    let served = answer_all(&mut channel, &mut unnoted);
    if let Some(mount) = unnoted {
        take_back(mount);
    }
    served
}

/// A mount of which the server may not have told its watcher yet.
struct Unnoted {
    connection: Connection,
    /// Where it was mounted once more, if the connection was there before.
    further: Option<PathBuf>,
}

/// A mount that no thread serves would be dead.
fn take_back(mount: Unnoted) {
    match mount.further {
        None => crate::detach::take_away(&[mount.connection]),
        Some(place) => {
            let _ = crate::detach::unmount(&mount.connection, &[place], Force::Yes);
        }
    }
}

fn answer_all(channel: &mut Channel, unnoted: &mut Option<Unnoted>) -> io::Result<()> {
    while let Some((request, device)) = channel.receive::<Request>()? {
        *unnoted = None;
        if matches!(request, Request::Noted) {
            continue;
        }
        let again = device.is_some();
        let (reply, device) = perform(request, device, &|| channel.is_open());
        if let Reply::Mounted(mounted) = &reply {
            let further = again.then(|| mounted.mountpoint.clone());
            *unnoted = Some(Unnoted { connection: Connection::of(&mounted.id), further });
        }
        channel.send(&reply, borrowed(&device))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn messages_and_descriptors_arrive_together() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut ours, mut theirs) = (Channel::new(ours), Channel::new(theirs));
        let file = tempfile::tempfile().unwrap();
        (&file).write_all(b"content").unwrap();
        ours.send(&"first", Some(file.as_fd())).unwrap();
        ours.send(&"second", None).unwrap();
        let (text, device) = theirs.receive::<String>().unwrap().unwrap();
        assert_eq!(text, "first");
        let mut again = std::fs::File::from(device.unwrap());
        std::io::Seek::rewind(&mut again).unwrap();
        let mut content = String::new();
        again.read_to_string(&mut content).unwrap();
        assert_eq!(content, "content");
        assert!(matches!(theirs.receive::<String>().unwrap(), Some((t, None)) if t == "second"));
        drop(ours);
        assert!(theirs.receive::<String>().unwrap().is_none());
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        for bad in [&[255u8, 255, 255, 255][..], &[3, 0, 0, 0, 1, 2, 3], &[9, 0, 0, 0, b'1']] {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            ours.write_all(bad).unwrap();
            drop(ours);
            assert!(Channel::new(theirs).receive::<Request>().is_err(), "{bad:?}");
        }
    }
}
