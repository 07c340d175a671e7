//! Redaction bookmarks (`lzc_redact`), and how streams name them (`find_redact_book`).

use crate::error::{Error, ErrorKind, Reason, Result, Why};
use crate::kinds::Kinds;
use crate::session::Session;
use cenote_dsl::Dataset;
use cenote_dsl::redaction::RedactError;
use cenote_engine::change::{ChangeError, NewRedaction, RedactRefused};
use rustix::io::Errno;

impl Session<'_> {
    /// Makes a redaction bookmark of a snapshot, or goes on with one that was interrupted. It ends early once `stops` says
    /// so.
    ///
    /// # Errors
    /// See [`RedactRefused`].
    pub fn redact(
        &mut self,
        new: &NewRedaction,
        stops: &dyn Fn() -> bool,
    ) -> std::result::Result<(), RedactRefused> {
        let holder = self.reader();
        self.changes()?.redact(new, &holder, stops)
    }

    /// The redaction list of the bookmark `mark` of the snapshot `name`, for a stream that it redacts. The list of another
    /// snapshot is refused: it lacks what changed between them. (OpenZFS takes it.)
    pub(crate) fn list_for(&self, name: &str, mark: &str) -> Result<u64> {
        let what = format!("warning: cannot send '{name}'");
        let refused = |why| Error::doing(what.clone(), Why(ErrorKind::Invalid, why));
        let Some((head, _)) = name.split_once('@') else {
            return Err(refused("cannot do a redacted send to a filesystem"));
        };
        let (of, short) = mark.split_once('#').unwrap_or((head, mark));
        let of_another = "the redaction bookmark is of another snapshot";
        if !of.is_empty() && of != head {
            return Err(refused(of_another));
        }
        let snapshot = self.dataset(name, Kinds::SNAPSHOT)?;
        let found = self.dataset(&format!("{head}#{short}"), Kinds::BOOKMARK)?;
        match found.bookmark {
            Some(known) if known.redaction == 0 => Err(refused("not a redaction bookmark")),
            Some(known) if known.guid == snapshot.ds.guid => Ok(known.redaction),
            _ => Err(refused(of_another)),
        }
    }

    /// Whether a bookmark is one of these redaction snapshots (`redact_snaps_match`).
    pub(crate) fn is_redacted_by(&self, mark: &Dataset, guids: &[u64]) -> Result<bool> {
        let list = mark.bookmark.map_or(0, |bookmark| bookmark.redaction);
        if list == 0 {
            return Ok(false);
        }
        let failed = |e: cenote_dmu::Error| Error::doing("cannot resume send", e);
        let known = self.pool().dsl().redaction_list(list).map_err(failed)?.snaps;
        Ok(known.len() == guids.len() && guids.iter().all(|guid| known.contains(guid)))
    }
}

impl Reason for RedactRefused {
    fn kind(&self) -> ErrorKind {
        match self {
            RedactRefused::NoSnapshots(_) => ErrorKind::NotFound,
            RedactRefused::Exists(_) => ErrorKind::Exists,
            RedactRefused::NotEnabled => ErrorKind::Unsupported,
            RedactRefused::TooLong
            | RedactRefused::TooMany
            | RedactRefused::Name
            | RedactRefused::Mismatch
            | RedactRefused::NoKey(_)
            | RedactRefused::Pools => ErrorKind::Invalid,
            RedactRefused::Interrupted | RedactRefused::Redact(RedactError::Stopped) => {
                ErrorKind::Io
            }
            RedactRefused::Redact(RedactError::Read(_) | RedactError::Thread(_)) => ErrorKind::Pool,
            RedactRefused::Redact(_) => ErrorKind::Invalid,
            RedactRefused::Change(e) => Reason::kind(e),
        }
    }
}

/// The number of the error that OpenZFS has for it, with which `zfs redact` ends.
pub fn errno(e: &RedactRefused) -> i32 {
    let errno = match e {
        RedactRefused::NoSnapshots(_) => Errno::NOENT,
        RedactRefused::Exists(_) => Errno::EXIST,
        RedactRefused::TooLong => Errno::NAMETOOLONG,
        RedactRefused::TooMany => Errno::TOOBIG,
        RedactRefused::Mismatch => Errno::SRCH,
        RedactRefused::NotEnabled => Errno::NOTSUP,
        RedactRefused::Pools => Errno::XDEV,
        RedactRefused::NoKey(_) => Errno::ACCESS,
        RedactRefused::Interrupted | RedactRefused::Redact(RedactError::Stopped) => Errno::INTR,
        RedactRefused::Redact(RedactError::Redacted) => Errno::ALREADY,
        RedactRefused::Redact(RedactError::Read(_) | RedactError::Thread(_)) => Errno::IO,
        RedactRefused::Name | RedactRefused::Redact(_) => Errno::INVAL,
        RedactRefused::Change(e) => match e {
            ChangeError::Busy => Errno::BUSY,
            ChangeError::Denied | ChangeError::NoDelegation => Errno::PERM,
            ChangeError::ReadOnly => Errno::ROFS,
            ChangeError::NoSpace | ChangeError::Kept => Errno::NOSPC,
            ChangeError::NotFound => Errno::NOENT,
            ChangeError::Name(_) => Errno::INVAL,
            _ => Errno::IO,
        },
    };
    errno.raw_os_error()
}
