//! Why a stream was not received, in the words of OpenZFS.

use super::Job;
use crate::error::{Error, Reason, Why, plain};
use cenote_engine::change::receive::ReceiveError;

/// The message. `what` is what was tried (`cannot receive new filesystem stream`), `to` the full name of the snapshot.
pub(super) fn message(
    job: &Job<'_, '_>,
    what: &str,
    to: &str,
    is_new: bool,
    e: &ReceiveError,
) -> Error {
    let head = to.split('@').next().unwrap_or_default();
    let why = match e {
        ReceiveError::NoMatch => {
            format!("most recent snapshot of {head} does not\nmatch incremental source")
        }
        ReceiveError::Modified => {
            format!("destination {head} has been modified\nsince most recent snapshot")
        }
        ReceiveError::Exists => {
            let there = if is_new { head } else { to };
            let text = format!("cannot restore to {there}: destination already exists");
            return Error::new(e.kind(), text);
        }
        ReceiveError::ResumeExists => {
            let text = "Resuming recv on existing dataset without force";
            return Error::new(e.kind(), format!("cannot resume recv {to}: {text}"));
        }
        ReceiveError::Quota => format!("destination {head} space quota exceeded."),
        ReceiveError::Busy if token(job, head).is_some() => {
            format!("destination {head} contains partially-complete state from \"zfs receive -s\".")
        }
        ReceiveError::Checksum | ReceiveError::Truncated if job.how.resumable => {
            match token(job, head) {
                Some(token) => format!(
                    "checksum mismatch or incomplete stream.\n\
                     Partially received snapshot is saved.\n\
                     A resuming stream can be generated on the sending system by running:\n    \
                     zfs send -t {token}"
                ),
                None => e.to_string(),
            }
        }
        ReceiveError::Input(e) => plain(e),
        e => e.to_string(),
    };
    Error::doing(what, Why(e.kind(), why))
}

/// What resumes the receive into a dataset.
fn token(job: &Job<'_, '_>, head: &str) -> Option<String> {
    let pool = job.session.pool();
    let dataset = pool.dsl().find(head).ok().flatten()?;
    pool.dsl().resume_token(&dataset).ok().flatten()?.encode().ok()
}
