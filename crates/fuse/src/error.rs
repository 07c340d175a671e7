//! Why mounting or unmounting failed, also as the agent at the other end of a channel tells it.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

/// Why mounting or unmounting failed.
#[derive(Debug, Clone, thiserror::Error, Serialize, Deserialize)]
pub enum MountError {
    /// The directory cannot be used.
    #[error("cannot mount at '{path}': {why}", path = .0.display(), why = .1)]
    Mountpoint(#[serde(with = "as_bytes")] PathBuf, #[serde(with = "as_number")] Errno),
    /// The directory is missing and cannot be made.
    #[error("cannot make '{path}': {why}", path = .0.display(), why = .1)]
    Make(#[serde(with = "as_bytes")] PathBuf, #[serde(with = "as_number")] Errno),
    /// A symbolic link leads there that is not to be trusted.
    #[error(
        "cannot mount at '{path}': '{link}' is a symbolic link that others than root can make",
        path = .0.display(),
        link = .1.display()
    )]
    Link(#[serde(with = "as_bytes")] PathBuf, #[serde(with = "as_bytes")] PathBuf),
    /// It leads out of the alternate root.
    #[error(
        "cannot mount at '{path}': it leads out of the alternate root '{root}'",
        path = .0.display(),
        root = .1.display()
    )]
    Outside(#[serde(with = "as_bytes")] PathBuf, #[serde(with = "as_bytes")] PathBuf),
    /// The directory is not empty, and is not to be hidden.
    #[error("cannot mount at '{path}': directory is not empty", path = .0.display())]
    NotEmpty(#[serde(with = "as_bytes")] PathBuf),
    /// The kernel has no FUSE, or access to it is denied.
    #[error("/dev/fuse: {why}: FUSE is needed for mounts", why = words(.0))]
    Device(#[serde(with = "as_number")] Errno),
    /// Few descriptors are left, which are needed for commands.
    #[error(
        "{0}: a mount takes one, and the last ones are left for commands ('ulimit -n', LimitNOFILE=)"
    )]
    Descriptors(#[serde(with = "as_number")] Errno),
    /// The system call failed.
    #[error("cannot mount at '{path}': {why}", path = .0.display(), why = .1)]
    Mount(#[serde(with = "as_bytes")] PathBuf, #[serde(with = "as_number")] Errno),
    /// The helper is not installed.
    #[error(
        "cannot run fusermount3: {0}: it is needed to mount as an ordinary user (package fuse3)"
    )]
    NoHelper(#[serde(with = "as_number")] Errno),
    /// The helper's message.
    #[error("{0}")]
    Helper(String),
    /// The process that mounts for this one does not answer.
    #[error("the process that mounts does not answer: {0}")]
    Agent(String),
    /// A file system cannot be served inside another one's mount.
    #[error("cannot mount at '{path}': {why}", path = .0.display(), why = .1)]
    Submount(#[serde(with = "as_bytes")] PathBuf, String),
    /// The kernel did not agree with the server.
    #[error("FUSE session: {0}")]
    Session(String),
    /// Files in the mount are in use.
    #[error("'{path}': device is busy", path = .0.display())]
    Busy(#[serde(with = "as_bytes")] PathBuf),
    /// The system call failed.
    #[error("cannot unmount '{path}': {why}", path = .0.display(), why = .1)]
    Unmount(#[serde(with = "as_bytes")] PathBuf, #[serde(with = "as_number")] Errno),
    /// Something else is mounted over it, which has to go first.
    #[error("'{path}': another mount covers it", path = .0.display())]
    Covered(#[serde(with = "as_bytes")] PathBuf),
}

/// The system's words for an error, without its number.
fn words(errno: &Errno) -> String {
    let text = io::Error::from(*errno).to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}

/// The system's number of an error.
pub(crate) fn number(e: &io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or(Errno::IO)
}

/// Errors of the system as numbers.
mod as_number {
    use rustix::io::Errno;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(errno: &Errno, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i32(errno.raw_os_error())
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Errno, D::Error> {
        // Other numbers are no errors.
        let number = i32::deserialize(from)?;
        Ok(if (1..4096).contains(&number) { Errno::from_raw_os_error(number) } else { Errno::IO })
    }
}

/// Paths as bytes, which need not be UTF-8.
pub(crate) mod as_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    pub(crate) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().as_bytes().serialize(to)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<PathBuf, D::Error> {
        Ok(OsString::from_vec(Vec::deserialize(from)?).into())
    }
}

/// Lists of paths as bytes.
pub(crate) mod all_as_bytes {
    use super::as_bytes;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::path::PathBuf;

    /// A path.
    #[derive(Serialize, Deserialize)]
    struct Bytes(#[serde(with = "as_bytes")] PathBuf);

    pub(crate) fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths.iter().map(|p| Bytes(p.clone())))
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
        Ok(Vec::<Bytes>::deserialize(from)?.into_iter().map(|p| p.0).collect())
    }
}
