//! What client and daemon say to each other.
//!
//! A stream of frames: one byte of kind, four bytes of length (little-endian), then so many bytes.
//!
//! ```text
//! daemon -> client   Hello   JSON, once, before anything else; or
//!                    Full    text, instead of Hello: why there is no room for the command; nothing follows
//! client -> daemon   Request JSON, once
//! client -> daemon   In      bytes of standard input, if the command reads it so; no bytes at its end
//! daemon -> client   Out, Err  bytes for standard output and standard error
//! daemon -> client   Ask     bytes: what the command has the client's process do; it goes on once it is answered. Not asked where In is sent
//! client -> daemon   Answer  bytes: what came of that
//! daemon -> client   Alive   no bytes, each BEAT from the Request on
//! daemon -> client   Exit    JSON number, last
//! ```
//!
//! Descriptors come with the first byte of a Request: the client's standard input, if the command reads it as one;
//! then, if the client is in another mount namespace than the daemon and so is its agent there
//! ([`cenote_fuse::agent`]), a socket for that. Between users no descriptor is passed, for what it leads to could have
//! the process that reads or closes it wait for ever: standard input comes in frames.
//!
//! The client cancels by closing the connection. Frames are bounded: [`MAX_JSON`] for the two
//! headers, [`MAX_OTHERS`] for the Request of another user, [`MAX_DATA`] for input and output; a longer frame is an
//! error and ends the connection.

use cenote_command::Terminal;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::time::Duration;

/// Number of this conversation: client and daemon understand each other if they have the same one.
pub const PROTOCOL: u32 = 6;
/// How often the daemon says that it lives.
pub const BEAT: Duration = Duration::from_secs(2);
/// Longest Hello or Request, in bytes.
pub const MAX_JSON: usize = 4 << 20;
/// Longest Request of another user than the daemon's, in bytes.
pub const MAX_OTHERS: usize = 512 << 10;
/// Longest In, Out, Err, Ask, Answer or Full, in bytes.
pub const MAX_DATA: usize = 1 << 20;

/// Kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// [`Hello`] as JSON.
    Hello = 1,
    /// [`Request`] as JSON.
    Request = 2,
    /// Standard output.
    Out = 3,
    /// Standard error.
    Err = 4,
    /// Exit code as JSON; the last frame.
    Exit = 5,
    /// The daemon lives; nothing else. Always without bytes.
    Alive = 6,
    /// Standard input.
    In = 7,
    /// Why there is no room for the command, instead of a Hello.
    Full = 8,
    /// What the command has the client's process do.
    Ask = 9,
    /// What came of that.
    Answer = 10,
}

impl Kind {
    fn from_byte(b: u8) -> Option<Kind> {
        use Kind::{Alive, Answer, Ask, Err, Exit, Full, Hello, In, Out, Request};
        let all = [Hello, Request, Out, Err, Exit, Alive, In, Full, Ask, Answer];
        all.into_iter().find(|k| *k as u8 == b)
    }

    fn limit(self) -> usize {
        match self {
            Kind::Hello | Kind::Request | Kind::Exit => MAX_JSON,
            Kind::In | Kind::Out | Kind::Err | Kind::Full | Kind::Ask | Kind::Answer => MAX_DATA,
            Kind::Alive => 0,
        }
    }
}

/// The daemon introduces itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the program.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Its [`PROTOCOL`]; 0 where there was no such number yet.
    #[serde(default)]
    pub protocol: u32,
    /// Number of its mount namespace.
    #[serde(default)]
    pub namespace: u64,
    /// Number of its PID namespace; 0 if it is not known.
    #[serde(default)]
    pub pid_namespace: u64,
    /// Names of the pools that it has imported.
    #[serde(default)]
    pub pools: Vec<String>,
}

/// What the client wants.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Run a command.
    Run(Run),
    /// Say how the daemon does.
    Status,
    /// Export all pools and end.
    Stop,
}

/// A command and what it runs in. Strings of the operating system travel as bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Name of the tool: `zpool`, `zfs`, `zdb`, `mount.zfs` or `cenote`.
    pub tool: String,
    /// Arguments after the tool's name.
    pub args: Vec<Vec<u8>>,
    /// Directory the user is in.
    pub cwd: Vec<u8>,
    /// Environment variables that commands look at.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// The user's terminal.
    pub terminal: Terminal,
    /// The user's file mode creation mask.
    pub umask: u32,
    /// Number of the mount namespace of the user's process.
    #[serde(default)]
    pub namespace: u64,
    /// How the command reads the user's standard input.
    #[serde(default)]
    pub input: Stdin,
}

/// How a command reads the user's standard input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdin {
    /// Not at all.
    #[default]
    Unread,
    /// It comes as a descriptor, with the request.
    Descriptor,
    /// It comes in frames, behind the request.
    Frames,
}

/// Writes a frame. Longer data goes out as several frames.
pub fn write_frame(to: &mut dyn Write, kind: Kind, data: &[u8]) -> io::Result<()> {
    if data.len() > kind.limit() {
        let why = format!("message of {} bytes is too long", data.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut head = [kind as u8, 0, 0, 0, 0];
    if let Some(length) = head.get_mut(1..) {
        length.copy_from_slice(&(data.len() as u32).to_le_bytes());
    }
    to.write_all(&head)?;
    to.write_all(data)
}

/// Writes a frame of JSON.
pub fn write_json<T: Serialize>(to: &mut dyn Write, kind: Kind, value: &T) -> io::Result<()> {
    write_frame(to, kind, &serde_json::to_vec(value)?)
}

/// Reads a frame; `None` if the other side closed the connection between frames.
pub fn read_frame(from: &mut dyn Read) -> io::Result<Option<(Kind, Vec<u8>)>> {
    read_frame_within(from, usize::MAX)
}

/// As [`read_frame`], of a frame that is no longer than `most` bytes either.
fn read_frame_within(from: &mut dyn Read, most: usize) -> io::Result<Option<(Kind, Vec<u8>)>> {
    let mut kind = [0u8; 1];
    match from.read_exact(&mut kind) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let mut length = [0u8; 4];
    from.read_exact(&mut length)?;
    let (Some(kind), length) = (Kind::from_byte(kind[0]), u32::from_le_bytes(length) as usize)
    else {
        return Err(invalid("unknown kind of message"));
    };
    if length > kind.limit().min(most) {
        return Err(invalid("message is too long"));
    }
    let mut data = vec![0; length];
    from.read_exact(&mut data)?;
    Ok(Some((kind, data)))
}

/// Reads a frame that must be of `kind`, as JSON.
pub fn read_json<T: for<'a> Deserialize<'a>>(from: &mut dyn Read, kind: Kind) -> io::Result<T> {
    read_json_within(from, kind, usize::MAX)
}

/// As [`read_json`], of a frame that is no longer than `most` bytes either.
pub fn read_json_within<T: for<'a> Deserialize<'a>>(
    from: &mut dyn Read,
    kind: Kind,
    most: usize,
) -> io::Result<T> {
    match read_frame_within(from, most)? {
        Some((k, data)) if k == kind => Ok(serde_json::from_slice(&data)?),
        Some(_) => Err(invalid("unexpected kind of message")),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip_and_are_bounded() {
        let mut wire = Vec::new();
        write_frame(&mut wire, Kind::Out, b"hello").unwrap();
        write_json(&mut wire, Kind::Exit, &2).unwrap();
        let mut from = wire.as_slice();
        assert_eq!(read_frame(&mut from).unwrap(), Some((Kind::Out, b"hello".to_vec())));
        assert_eq!(read_json::<i32>(&mut from, Kind::Exit).unwrap(), 2);
        assert_eq!(read_frame(&mut from).unwrap(), None);

        assert!(write_frame(&mut wire, Kind::Out, &vec![0; MAX_DATA + 1]).is_err());
        for bad in [&[99, 0, 0, 0, 0][..], &[3, 255, 255, 255, 255], &[3, 4, 0, 0, 0, 1]] {
            assert!(read_frame(&mut { bad }).is_err(), "{bad:?}");
        }
    }
}
