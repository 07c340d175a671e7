//! What can go wrong, and whether it passes.
//!
//! # Structures
//!
//! A [`Cause`] says why one request failed, an [`Error`] what an operation on a space came to. A failed request is an error with its
//! cause; other errors tell of the space: damaged, absent, taken over by another import (`Fenced`), looked at and changed since
//! (`Outrun`), without its root (`Rootless`), or of this program: it found its own state wrong (`Broken`).
//!
//! # Algorithm
//!
//! The cause of a request follows from the code in the store's answer, then from its status, then from the kind of the client's error.
//! What nothing is known of counts as a store that cannot serve now. Three questions decide what callers do:
//!
//! - `transient`: the same request may succeed later, so it is tried again.
//! - `is_outage`: the store is away or refuses this host. That says nothing about the bytes, and no block counts as lost.
//! - `is_elsewhere`: another host has the pool, or has gone on with it. That says nothing about the bytes either.
//!
//! What a store says is shortened for users: its code and message, or its status, without the queries of addresses, which may hold
//! secrets.

use std::fmt;

use cenote_format::DecodeError;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Letters of what a store says that are kept, at most.
const WORDS: usize = 200;

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
    /// The store does not know the key, or the secret does not belong to it.
    Unknown,
    /// The credentials do not permit it.
    Denied,
    /// The object was moved to an archive, from where it must be restored before it can be read.
    Archived,
    /// The bucket does not exist.
    NoBucket,
    /// The bucket is in another region than the configuration says.
    Region,
    /// The object does not exist.
    Missing,
    /// The object has fewer bytes than it must have.
    Cut,
    /// The object is not the one that should be replaced, or exists already.
    Condition,
    /// An object's name is one that no object of a pool has, and that this program cannot ask for.
    Name,
    /// The store does not offer such a request.
    Unsupported,
    /// The store takes the request for a wrong one (400, 405, 411, 413 and others).
    Rejected,
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
            E::NotFound { .. } => Self::said(&text()).unwrap_or(Self::Missing),
            E::AlreadyExists { .. } | E::Precondition { .. } | E::NotModified { .. } => {
                Self::Condition
            }
            E::NotImplemented { .. } | E::NotSupported { .. } => Self::Unsupported,
            E::InvalidPath { .. } => Self::Name,
            E::UnknownConfigurationKey { .. } => Self::Unsupported,
            E::Unauthenticated { .. } => Self::Credentials,
            E::PermissionDenied { .. } => Self::said(&text()).unwrap_or(Self::Denied),
            _ => {
                let text = text();
                let said = Self::said(&text);
                said.or_else(|| Self::status(&text)).unwrap_or(Self::Unavailable)
            }
        }
    }

    /// By the code in the store's answer (lower case). The rest of the text has the URL, which may hold any word.
    fn said(text: &str) -> Option<Self> {
        let code = |codes: &[&str]| {
            codes.iter().any(|code| text.contains(&format!("<code>{code}</code>")))
        };
        // A server that takes no request of before or after its own time may answer so to each of them.
        let dated = text.contains("request date header too old");
        if code(&["requesttimetooskewed"]) || dated && code(&["authenticationfailed"]) {
            return Some(Self::Clock);
        }
        // An upload that stalled, broke off, or was changed on the way: some stores answer 400 to that.
        if code(&["requesttimeout"]) {
            return Some(Self::TimedOut);
        }
        let passing =
            ["incompletebody", "baddigest", "xamzcontentsha256mismatch", "operationaborted"];
        let busy = ["slowdown", "throttling", "throttlingexception", "throttledexception"];
        if code(&passing) || code(&busy) || code(&["requestthrottled", "bandwidthlimitexceeded"]) {
            return Some(Self::Unavailable);
        }
        if code(&["expiredtoken", "tokenrefreshrequired", "requestexpired"]) {
            return Some(Self::Credentials);
        }
        if code(&["invalidaccesskeyid", "signaturedoesnotmatch", "authenticationfailed"])
            || code(&["invalidtoken", "invalidsecurity", "invalidauthenticationinfo"])
        {
            return Some(Self::Unknown);
        }
        if code(&["accessdenied", "allaccessdisabled", "accountproblem"]) {
            return Some(Self::Denied);
        }
        if code(&["invalidobjectstate", "blobarchived"]) {
            return Some(Self::Archived);
        }
        // A range that begins at the end of the object or behind it. Of a directory, and of memory, the client itself says so.
        if code(&["invalidrange"]) || text.contains("wanted range starting at ") {
            return Some(Self::Cut);
        }
        if code(&["nosuchbucket", "containernotfound"]) {
            return Some(Self::NoBucket);
        }
        if code(&["notimplemented"]) {
            return Some(Self::Unsupported);
        }
        let region = ["permanentredirect", "temporaryredirect", "authorizationheadermalformed"];
        let bare = text.contains("received redirect without location, this");
        (bare || code(&region) || code(&["illegallocationconstraintexception"]))
            .then_some(Self::Region)
    }

    /// By the status in the store's answer: what is wrong with the request itself stays wrong.
    fn status(text: &str) -> Option<Self> {
        let (_, status) = text.rsplit_once("server returned non-2xx status code: ")?;
        match status.get(..3)? {
            // Asked again: a time-out, a conflict, too early, too many requests.
            "408" | "409" | "425" | "429" => None,
            "416" => Some(Self::Cut),
            "501" => Some(Self::Unsupported),
            status if status.starts_with('4') => Some(Self::Rejected),
            _ => None,
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
            Self::Unknown => {
                "the store does not know this key and secret; correct the credentials"
            }
            Self::Denied => {
                "the credentials do not permit it: reading, writing, listing and deleting below the prefix is needed"
            }
            Self::Archived => {
                "the object was moved to an archive; restore it, and have no rule of the bucket move objects"
            }
            Self::NoBucket => "the bucket does not exist; make it, or correct name, region or endpoint",
            Self::Region => "the bucket is in another region; correct the region or the endpoint",
            Self::Missing => "the object does not exist",
            Self::Cut => "the object is shorter than it must be",
            Self::Condition => "the object is not the expected one",
            Self::Name => {
                "an object below the prefix has a name that no pool gives; delete it, or choose another prefix"
            }
            Self::Unsupported => "the store does not offer this",
            Self::Rejected => "the store rejects the request",
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

/// What a store said, for users: its code and message, or its status. An answer may be long, and repeat what was sent, tokens too: of the rest
/// nothing is kept, nor what follows a `?` in an address.
pub(crate) fn told(error: &dyn std::error::Error) -> String {
    const STATUS: &str = "status code: ";
    let text = chain(error);
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once("</").map(|(value, _)| value.trim().to_string())
    };
    let mut said = match text.split_once(STATUS) {
        Some((_, answer)) => {
            let status = answer.split([':', '<', '\n']).next().unwrap_or_default().trim();
            limited(&format!("{STATUS}{status}"))
        }
        None if text.contains("<Code>") => String::new(),
        None => limited(&without_queries(&text)),
    };
    for part in [element("Code"), element("Message")].into_iter().flatten() {
        let and = if said.is_empty() { "" } else { ": " };
        said.push_str(&format!("{and}{}", limited(&part)));
    }
    said
}

/// The first letters of a text, in one line.
fn limited(text: &str) -> String {
    let mut letters = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut kept: String = letters.by_ref().take(WORDS).collect();
    if letters.next().is_some() {
        kept.push_str("...");
    }
    kept
}

/// A text whose addresses have no queries.
fn without_queries(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    for (n, part) in text.split('?').enumerate() {
        let end = part.find([' ', ')', '"', '\'', '\n']).unwrap_or(part.len());
        kept.push_str(if n == 0 { part } else { part.get(end..).unwrap_or_default() });
    }
    kept
}

/// Where something is, by its prefix; a store that is wrapped has none.
fn at(prefix: &str) -> String {
    if prefix.is_empty() { String::new() } else { format!(" at {prefix}") }
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
    /// The space was only looked at, and has gone on since.
    #[error(
        "the pool has gone on since it was imported here for reading: {by}; what it has freed or moved since is not there any more. Export it here, and import it again"
    )]
    Outrun {
        /// Who has written to it.
        by: String,
    },
    /// The root does not exist any more. This host does not make another one, and goes on when it is there again.
    #[error(
        "the root {path} does not exist: bucket or root were deleted, or the endpoint is another one; nothing is committed until it is there again"
    )]
    Rootless {
        /// Where it was.
        path: String,
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
    #[error("no pool{}", at(.0))]
    Absent(String),
    /// There is one already.
    #[error("there is a pool{} already", at(.0))]
    Exists(String),
    /// What was asked does not fit the state; nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// A task found the space's own state wrong: it takes, stores and deletes nothing any more.
    #[error("{0}")]
    Broken(String),
}

impl Error {
    /// Whether the same call may succeed later.
    pub fn transient(&self) -> bool {
        matches!(self, Self::Rootless { .. }) || self.cause().is_some_and(Cause::transient)
    }

    /// Whether it says that the store is away, or refuses this host: nothing about the bytes that are kept there.
    pub fn is_outage(&self) -> bool {
        let of_object = |cause| {
            matches!(cause, Cause::Missing | Cause::Cut | Cause::Condition | Cause::Archived)
        };
        matches!(self, Self::Rootless { .. }) || self.cause().is_some_and(|cause| !of_object(cause))
    }

    /// Whether it says that the pool is another one by now than the one that this host knows: nothing about the bytes that are kept either.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self, Self::Fenced { .. } | Self::Outrun { .. })
    }

    /// A condition failed although it holds: the same request may succeed later.
    pub(crate) fn passing(self) -> Self {
        match self {
            Self::Request { verb, path, tries, source_text, .. } => {
                Self::Request { verb, path, cause: Cause::Unavailable, tries, source_text }
            }
            other => other,
        }
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
            (
                generic("Received redirect without LOCATION, this normally indicates"),
                Cause::Region,
                false,
            ),
            (
                generic(
                    "GET http://h/redirect/expired/x  - Server returned non-2xx status code: 503 Service Unavailable: ",
                ),
                Cause::Unavailable,
                true,
            ),
            (
                generic("Server returned non-2xx status code: 429 Too Many Requests: "),
                Cause::Unavailable,
                true,
            ),
            (
                generic("Server returned non-2xx status code: 413 Payload Too Large: "),
                Cause::Rejected,
                false,
            ),
            (
                denied(
                    "GET http://h/expired/x  - Server returned non-2xx status code: 403 Forbidden: ",
                ),
                Cause::Denied,
                false,
            ),
            (denied("<Code>RequestTimeTooSkewed</Code>"), Cause::Clock, true),
            (denied("<Code>AccessDenied</Code>"), Cause::Denied, false),
            (
                generic(
                    "Server returned non-2xx status code: 400 Bad Request: <Code>RequestTimeout</Code>",
                ),
                Cause::TimedOut,
                true,
            ),
            (
                generic(
                    "Server returned non-2xx status code: 400 Bad Request: <Code>IncompleteBody</Code>",
                ),
                Cause::Unavailable,
                true,
            ),
            (
                generic(
                    "Server returned non-2xx status code: 400 Bad Request: <Code>BadDigest</Code>",
                ),
                Cause::Unavailable,
                true,
            ),
            (
                denied(
                    "<Code>AuthenticationFailed</Code><AuthenticationErrorDetail>Request date header too old: 'x'",
                ),
                Cause::Clock,
                true,
            ),
            (denied("<Code>InvalidObjectState</Code>"), Cause::Archived, false),
            (
                generic(
                    "Server returned non-2xx status code: 416 Range Not Satisfiable: <Code>InvalidRange</Code>",
                ),
                Cause::Cut,
                false,
            ),
            (generic("Server returned non-2xx status code: 416 : "), Cause::Cut, false),
            (
                generic("Wanted range starting at 9, but object was only 5 bytes long"),
                Cause::Cut,
                false,
            ),
            (denied("<Code>InvalidAccessKeyId</Code>"), Cause::Unknown, false),
            (denied("<Code>SignatureDoesNotMatch</Code>"), Cause::Unknown, false),
            (
                generic("Server returned non-2xx status code: 501 Not Implemented: "),
                Cause::Unsupported,
                false,
            ),
            (
                generic(
                    "Server returned non-2xx status code: 400 Bad Request: <Code>ExpiredToken</Code>",
                ),
                Cause::Credentials,
                true,
            ),
            (
                E::NotFound { path: path(), source: "<Code>NoSuchBucket</Code>".into() },
                Cause::NoBucket,
                false,
            ),
            (E::NotFound { path: path(), source: "404".into() }, Cause::Missing, false),
            (E::Precondition { path: path(), source: "412".into() }, Cause::Condition, false),
        ];
        for (error, cause, transient) in causes {
            assert_eq!(Cause::of(&error), cause, "{error}");
            assert_eq!(cause.transient(), transient, "{error}");
        }
    }

    #[test]
    fn an_outage_says_nothing_of_bytes() {
        let of = |cause| Error::Request {
            verb: "GET",
            path: "x".into(),
            cause,
            tries: 1,
            source_text: String::new(),
        };
        for cause in [Cause::Unavailable, Cause::TimedOut, Cause::Denied, Cause::Credentials] {
            assert!(of(cause).is_outage(), "{cause}");
        }
        for cause in [Cause::Missing, Cause::Cut, Cause::Condition, Cause::Archived] {
            assert!(!of(cause).is_outage(), "{cause}");
        }
        assert!(Error::Rootless { path: "commit".into() }.is_outage());
        assert!(!Error::Unmapped { address: 0, length: 512 }.is_outage());
        assert!(!Error::Fenced { by: "x".into() }.is_outage());
    }
}
