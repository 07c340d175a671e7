//! What can go wrong, and whether it passes.

use std::fmt;

use cenote_format::DecodeError;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The store cannot serve it now (500, 503 slow down), or the connection broke.
    Unavailable,
    /// No answer within the deadline.
    TimedOut,
    /// The credentials have expired, or none are found.
    Credentials,
    /// The clocks of store and host differ too much.
    Clock,
    /// The credentials do not permit it.
    Denied,
    /// The bucket is in another region than the configuration says.
    Region,
    /// The object does not exist.
    Missing,
    /// The object has fewer bytes than it must have.
    Cut,
    /// The object is not the one that was to be replaced, or exists already.
    Condition,
    /// The store does not offer such a request.
    Unsupported,
}

impl Cause {
    /// Whether the same request may succeed later, without a change of data or configuration.
    pub fn transient(self) -> bool {
        matches!(self, Self::Unavailable | Self::TimedOut | Self::Credentials | Self::Clock)
    }

    /// Of an error of the store.
    pub(crate) fn of(error: &object_store::Error) -> Self {
        use object_store::Error as E;
        let text = || chain(error).to_ascii_lowercase();
        match error {
            E::NotFound { .. } => Self::Missing,
            E::AlreadyExists { .. } | E::Precondition { .. } | E::NotModified { .. } => {
                Self::Condition
            }
            E::NotImplemented { .. } | E::NotSupported { .. } => Self::Unsupported,
            E::InvalidPath { .. } | E::UnknownConfigurationKey { .. } => Self::Unsupported,
            E::Unauthenticated { .. } => Self::Credentials,
            E::PermissionDenied { .. } => match text() {
                text if text.contains("requesttimetooskewed") => Self::Clock,
                text if text.contains("expired") => Self::Credentials,
                _ => Self::Denied,
            },
            _ => match text() {
                text if text.contains("requesttimetooskewed") => Self::Clock,
                text if text.contains("expiredtoken") || text.contains("expired token") => {
                    Self::Credentials
                }
                text if text.contains("redirect")
                    || text.contains("authorizationheadermalformed") =>
                {
                    Self::Region
                }
                _ => Self::Unavailable,
            },
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unavailable => "the store does not serve it",
            Self::TimedOut => "no answer in time",
            Self::Credentials => "the credentials have expired or are missing; renew them",
            Self::Clock => "the clocks of this host and the store differ; set this host's clock",
            Self::Denied => "the credentials do not permit it",
            Self::Region => "the bucket is in another region; correct the region or the endpoint",
            Self::Missing => "the object does not exist",
            Self::Cut => "the object is shorter than it must be",
            Self::Condition => "the object is not the expected one",
            Self::Unsupported => "the store does not offer this",
        })
    }
}

/// An error with all that caused it, as one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let part = error.to_string();
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        next = error.source();
    }
    text
}

/// An error of a space.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A request failed, after all its tries.
    #[error("{verb} {path}: {cause} ({tries} tries; {source_text})")]
    Request {
        /// What was asked.
        verb: &'static str,
        /// Of which object.
        path: String,
        /// Why it failed the last time.
        cause: Cause,
        /// How often it was tried.
        tries: u32,
        /// What the store said.
        source_text: String,
    },
    /// Another import has the space: this one writes nothing any more.
    #[error(
        "another import has taken over the pool: {by}; this host writes to it no more. Export it here"
    )]
    Fenced {
        /// Which one.
        by: String,
    },
    /// An object's bytes are damaged.
    #[error("object {path}: {why}")]
    Damaged {
        /// Which object.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// No object has the address.
    #[error("address {address:#x}, {length} bytes: no object has it")]
    Unmapped {
        /// The first byte.
        address: u64,
        /// The length.
        length: u64,
    },
    /// There is no space below the prefix.
    #[error("no pool at {0}")]
    Absent(String),
    /// There is one already.
    #[error("there is a pool at {0} already")]
    Exists(String),
    /// What was asked does not fit the state; nothing was changed.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// Whether the same call may succeed later.
    pub fn transient(&self) -> bool {
        self.cause().is_some_and(Cause::transient)
    }

    /// Why the request failed, if it was one.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            Self::Request { cause, .. } => Some(*cause),
            _ => None,
        }
    }

    /// An object cannot be decoded.
    pub(crate) fn damaged(path: impl fmt::Display, why: &DecodeError) -> Self {
        Self::Damaged { path: path.to_string(), why: why.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &'static str) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: text.into() }
    }

    #[test]
    fn errors_are_told_apart() {
        use object_store::Error as E;
        let path = String::new;
        let denied = |text: &'static str| E::PermissionDenied { path: path(), source: text.into() };
        let causes = [
            (generic("503 Slow Down"), Cause::Unavailable, true),
            (generic("connection reset by peer"), Cause::Unavailable, true),
            (generic("<Code>ExpiredToken</Code>"), Cause::Credentials, true),
            (generic("Received redirect without LOCATION"), Cause::Region, false),
            (denied("<Code>RequestTimeTooSkewed</Code>"), Cause::Clock, true),
            (denied("<Code>AccessDenied</Code>"), Cause::Denied, false),
            (E::NotFound { path: path(), source: "404".into() }, Cause::Missing, false),
            (E::Precondition { path: path(), source: "412".into() }, Cause::Condition, false),
        ];
        for (error, cause, transient) in causes {
            assert_eq!(Cause::of(&error), cause, "{error}");
            assert_eq!(cause.transient(), transient, "{error}");
        }
    }
}
