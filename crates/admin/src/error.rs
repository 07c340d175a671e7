//! Why something was not done.
//!
//! An [`Error`] has a text in the words of OpenZFS's tools, a kind for programs ([`ErrorKind`]), the datasets that are in the way, and the
//! error of a reader or writer if that was the reason. Errors of the floors below become one of these by `Reason`, which says of
//! what kind each is; `Error::doing` puts what was tried before its text: `cannot destroy 'tank/a': `.
//!
//! An error that the host was told already is [`ErrorKind::Told`]: its text is not shown again.

use cenote_dsl::send::SendError;
use cenote_engine::change::ChangeError;
use cenote_engine::change::receive::ReceiveError;
use std::fmt;
use std::io;

/// What kind of reason an [`Error`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A dataset, snapshot, bookmark or tag is not there.
    NotFound,
    /// There is one of that name.
    Exists,
    /// It is in use, or held.
    Busy,
    /// Others depend on it: [`Error::names`] has them.
    Dependents,
    /// A name or a property cannot be, or the operation is not for this kind of dataset.
    Invalid,
    /// Names that were given do not go together.
    Arguments,
    /// The user may not do it.
    Denied,
    /// Nothing can be written to the pool or the dataset.
    ReadOnly,
    /// The pool or a quota is full.
    NoSpace,
    /// A stream is damaged, ends early, or does not fit what is there.
    Stream,
    /// This software, or the pool without an upgrade, cannot do it.
    Unsupported,
    /// The pool's metadata cannot be read, or nothing can be written any more.
    Pool,
    /// The program that uses the library could not take what it was told or sent.
    Io,
    /// Part of it was not done; the [host](crate::Host) was told what, and why.
    Told,
}

/// Why something was not done (`zfs_standard_error`, `libzfs_error_description`). Its text is what OpenZFS's tools say.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    text: String,
    names: Vec<String>,
    io: Option<io::Error>,
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A reason in words.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind, text: text.into(), names: Vec::new(), io: None }))
    }

    /// Datasets that are in the way.
    pub(crate) fn dependents(text: String, names: Vec<String>) -> Error {
        Error(Box::new(Inner { kind: ErrorKind::Dependents, text, names, io: None }))
    }

    /// The host was told already.
    pub(crate) fn told() -> Error {
        Error::new(ErrorKind::Told, "not all was done")
    }

    /// The text with what was tried before it: `cannot destroy 'tank/a': `.
    pub(crate) fn doing<R: Reason>(what: impl fmt::Display, reason: R) -> Error {
        Error::new(reason.kind(), format!("{what}: {reason}"))
    }

    /// The same once more, without the error of a reader or writer.
    pub fn again(&self) -> Error {
        let Inner { kind, text, names, .. } = &*self.0;
        let (text, names) = (text.clone(), names.clone());
        Error(Box::new(Inner { kind: *kind, text, names, io: None }))
    }

    /// What kind of reason it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The datasets that are in the way ([`ErrorKind::Dependents`]).
    pub fn names(&self) -> &[String] {
        &self.0.names
    }

    /// The error of the host's reader or writer ([`ErrorKind::Io`]).
    pub fn into_io(self) -> std::result::Result<io::Error, Error> {
        let Error(mut inner) = self;
        inner.io.take().ok_or(Error(inner))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.io.as_ref().map(|e| e as _)
    }
}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Error {
        let text = e.to_string();
        Error(Box::new(Inner { kind: ErrorKind::Io, text, names: Vec::new(), io: Some(e) }))
    }
}

/// What can be behind `cannot …: `.
pub(crate) trait Reason: fmt::Display {
    fn kind(&self) -> ErrorKind;
}

impl<R: Reason + ?Sized> Reason for &R {
    fn kind(&self) -> ErrorKind {
        (**self).kind()
    }
}

impl Reason for ChangeError {
    fn kind(&self) -> ErrorKind {
        self.into()
    }
}

impl From<&ChangeError> for ErrorKind {
    fn from(e: &ChangeError) -> ErrorKind {
        match e {
            ChangeError::NoPool(_) | ChangeError::NoParent | ChangeError::NotFound => {
                ErrorKind::NotFound
            }
            ChangeError::Exists => ErrorKind::Exists,
            ChangeError::Busy | ChangeError::Held(_) => ErrorKind::Busy,
            ChangeError::Cloned | ChangeError::HasChildren(_) => ErrorKind::Dependents,
            ChangeError::NoSpace
            | ChangeError::Kept
            | ChangeError::QuotaTooSmall
            | ChangeError::ReservationTooLarge => ErrorKind::NoSpace,
            ChangeError::Denied | ChangeError::NoDelegation => ErrorKind::Denied,
            ChangeError::ReadOnlyDataset | ChangeError::ReadOnly => ErrorKind::ReadOnly,
            ChangeError::NeedsUpgrade | ChangeError::PoolTooOld | ChangeError::Unsupported(_) => {
                ErrorKind::Unsupported
            }
            ChangeError::Suspended | ChangeError::Io(_) => ErrorKind::Pool,
            ChangeError::Name(_)
            | ChangeError::ParentKind
            | ChangeError::TooLong
            | ChangeError::Property(_)
            | ChangeError::Crosses(_)
            | ChangeError::Kind => ErrorKind::Invalid,
        }
    }
}

impl Reason for cenote_dmu::Error {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Pool
    }
}

impl Reason for ReceiveError {
    fn kind(&self) -> ErrorKind {
        match self {
            ReceiveError::Truncated
            | ReceiveError::Checksum
            | ReceiveError::NoStream(_)
            | ReceiveError::Stream(_)
            | ReceiveError::NoMatch
            | ReceiveError::Modified
            | ReceiveError::RawOnPlain
            | ReceiveError::ReplacesEncrypted
            | ReceiveError::OtherKey
            | ReceiveError::OtherVectors
            | ReceiveError::OtherWrapping
            | ReceiveError::NoVectors
            | ReceiveError::NoSpills
            | ReceiveError::Embedded
            | ReceiveError::Keys(_)
            | ReceiveError::OtherSnapshot
            | ReceiveError::NotHealed { .. }
            | ReceiveError::LargeBlocks => ErrorKind::Stream,
            ReceiveError::KeyNotLoaded | ReceiveError::KeyToHeal | ReceiveError::NoSnapshot => {
                ErrorKind::Invalid
            }
            ReceiveError::CryptoUnsupported | ReceiveError::Incompatible => ErrorKind::Unsupported,
            ReceiveError::Input(_) => ErrorKind::Io,
            ReceiveError::Unsupported(_) | ReceiveError::Upgrade => ErrorKind::Unsupported,
            ReceiveError::Exists | ReceiveError::ResumeExists => ErrorKind::Exists,
            ReceiveError::NoDataset => ErrorKind::NotFound,
            ReceiveError::Busy => ErrorKind::Busy,
            ReceiveError::Quota => ErrorKind::NoSpace,
            ReceiveError::Change(e) => e.kind(),
        }
    }
}

impl Reason for SendError {
    fn kind(&self) -> ErrorKind {
        match self {
            SendError::Read(_) | SendError::Encode(_) => ErrorKind::Pool,
            SendError::Io(_) => ErrorKind::Io,
            SendError::NothingToResume(_) | SendError::NothingSaved => ErrorKind::NotFound,
            SendError::LargeMicroZap | SendError::Refused(_) => ErrorKind::Unsupported,
            SendError::NotEarlier => ErrorKind::Invalid,
        }
    }
}

/// An error of the system in its words, without Rust's "(os error 28)".
pub(crate) fn plain(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}

/// A reason in words of this crate.
pub(crate) struct Why<T>(pub ErrorKind, pub T);

impl<T: fmt::Display> fmt::Display for Why<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.1.fmt(f)
    }
}

impl<T: fmt::Display> Reason for Why<T> {
    fn kind(&self) -> ErrorKind {
        self.0
    }
}
