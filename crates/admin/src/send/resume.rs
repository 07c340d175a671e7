//! A stream that goes on where a receiver was interrupted (`zfs_send_resume`); what a receiver has of it
//! (`zfs_send_saved`).
//!
//! The token names the snapshot; its guid counts, for the snapshot may have another name by now. The library looks for the
//! guid under the name, then among the snapshots of the dataset, then in the whole pool; likewise for the snapshot or bookmark
//! that the stream starts from. The stream of a file system itself has a guid that tells its contents
//! ([`stream_guid`]): such a stream is resumed only if nothing was changed since.

use super::{Send, failure};
use crate::error::{Error, ErrorKind, Result, Why};
use crate::host::Event;
use crate::kinds::{Kinds, family};
use crate::session::Session;
use cenote_dsl::Dataset;
use cenote_dsl::send::{HEAD, Resume, SendError, SendOptions, stream_guid};
use cenote_format::stream::token::Token;
use std::io::Write;

fn cannot(kind: ErrorKind, why: impl std::fmt::Display) -> Error {
    Error::doing("cannot resume send", Why(kind, why))
}

fn unreadable(e: cenote_dmu::Error) -> Error {
    Error::doing("cannot resume send", e)
}

/// The token that a text stands for (`receive_resume_token`).
///
/// # Errors
/// The text is not a token, or the token is damaged.
pub fn decode_token(text: &str) -> Result<Token> {
    let corrupt = |e| format!("resume token is corrupt ({e})");
    Token::decode(text).map_err(|e| cannot(ErrorKind::Invalid, corrupt(e)))
}

/// That what a token names is not there.
pub fn no_longer_exists(token: &Token) -> Error {
    let name = &token.to_name;
    cannot(ErrorKind::NotFound, format_args!("'{name}' used in the initial send no longer exists"))
}

impl Send {
    /// How the stream of a token is sent.
    fn resuming(&self, token: &Token) -> Send {
        let mut how = self.clone();
        let options = &mut how.options;
        options.large_blocks |= token.large_blocks || token.raw;
        options.embedded |= token.embedded || token.raw;
        options.compressed |= token.compressed || token.raw;
        options.raw |= token.raw;
        let (object, offset) = (token.object, token.offset);
        options.resume = (object != 0 || offset != 0).then_some(Resume { object, offset });
        how
    }
}

impl Session<'_> {
    /// Sends the rest of a stream that a receiver has in part.
    ///
    /// # Errors
    /// What was sent, or what the stream starts from, is not there any more; the errors of [`Session::send`].
    pub fn resume_send(&mut self, token: &Token, how: &Send, out: &mut dyn Write) -> Result<()> {
        self.tell(Event::Resuming(token))?;
        let how = how.resuming(token);
        let name = &token.to_name;
        let Some(to) = self.target(name, token.to_guid)? else {
            let why =
                format_args!("'{name}' is no longer the same snapshot used in the initial send");
            let there = name.strip_suffix(HEAD).unwrap_or(name);
            return Err(match self.dataset(there, Kinds::DATASET) {
                Ok(_) => cannot(ErrorKind::NotFound, why),
                Err(e) if e.kind() == ErrorKind::Pool => e,
                Err(_) => no_longer_exists(token),
            });
        };
        let from = self.start_of(token)?;
        let redact = self.list_of(token, &to)?;
        let options = SendOptions { redact, ..how.options_in(self) };
        self.send_dataset(&to.name, (&to, from.as_ref()), options, &how, out)
    }

    /// Sends what an interrupted receive into the dataset `name` left.
    ///
    /// # Errors
    /// Nothing was left; the errors of [`Session::resume_send`].
    pub fn send_saved(&mut self, name: &str, how: &Send, out: &mut dyn Write) -> Result<()> {
        let head = self.dataset(name, Kinds::HEAD)?;
        let left = self.pool().dsl().saved(&head).map_err(unreadable)?;
        let Some((dataset, token)) = left else {
            return Err(failure(name, SendError::NothingSaved));
        };
        // It is sent from its beginning.
        let token = Token { object: 0, offset: 0, bytes: 0, to_name: name.into(), ..token };
        self.tell(Event::Resuming(&token))?;
        let mut how = how.resuming(&token);
        how.options.saved = true;
        let from = self.start_of(&token)?;
        let options = how.options_in(self);
        self.send_dataset(name, (&dataset, from.as_ref()), options, &how, out)
    }

    /// The snapshot of a guid (`guid_to_name`).
    fn snapshot_of(&self, name: &str, guid: u64) -> Result<Option<Dataset>> {
        let pool = self.pool();
        let dsl = pool.dsl();
        if let Some(found) = dsl.find(name).map_err(unreadable)?.filter(|d| d.ds.guid == guid) {
            return Ok(Some(found));
        }
        for head in self.places(name)? {
            let snapshots = dsl.snapshots(&head).map_err(unreadable)?;
            if let Some(found) = snapshots.into_iter().find(|s| s.ds.guid == guid) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// What was sent: the snapshot of a guid, or the head.
    fn target(&self, name: &str, guid: u64) -> Result<Option<Dataset>> {
        if let Some(found) = self.snapshot_of(name, guid)? {
            return Ok(Some(found));
        }
        Ok(self.places(name)?.into_iter().find(|head| stream_guid(head) == guid))
    }

    /// The snapshot or bookmark that the stream of a token starts from; `None`: it starts from nothing.
    fn start_of(&self, token: &Token) -> Result<Option<Dataset>> {
        let Some(guid) = token.from_guid.filter(|guid| *guid != 0) else { return Ok(None) };
        let (name, pool) = (&token.to_name, self.pool());
        // A snapshot that is redacted by the same ones will do as well as a bookmark of them.
        let redacted = token.book_redact_snaps.as_deref();
        if let Some(found) = self.snapshot_of(name, guid)? {
            let by = pool.dsl().redacted_by(&found).map_err(unreadable)?;
            if redacted.is_none() || by.as_deref() == redacted {
                return Ok(Some(found));
            }
        }
        for head in self.places(name)? {
            let bookmarks = pool.dsl().bookmarks(&head).map_err(unreadable)?;
            let is_same = |b: &Dataset| b.bookmark.is_some_and(|phys| phys.guid == guid);
            let mut same: Vec<Dataset> = bookmarks.into_iter().filter(is_same).collect();
            // What began at one without a list goes on from such a one, if there is one.
            same.sort_by_key(|b| b.bookmark.is_some_and(|phys| phys.redaction != 0));
            for found in same {
                if redacted.map_or(Ok(true), |guids| self.is_redacted_by(&found, guids))? {
                    return Ok(Some(found));
                }
            }
        }
        let why = format_args!("incremental source {guid:#x} no longer exists");
        Err(cannot(ErrorKind::NotFound, why))
    }

    /// The redaction list that the stream of a token was made by (`find_redact_book`): one of the snapshot, a complete one if
    /// there are several. `None`: nothing was left out, but for what the snapshot itself lacks. (OpenZFS takes the list of
    /// another snapshot by the same ones, which may lack what is secret in this one.)
    fn list_of(&self, token: &Token, to: &Dataset) -> Result<Option<u64>> {
        let Some(guids) = &token.redact_snaps else { return Ok(None) };
        let (pool, head) = (self.pool(), to.name.split('@').next().unwrap_or_default());
        let dsl = pool.dsl();
        if dsl.redacted_by(to).map_err(unreadable)?.is_some() {
            return Ok(None);
        }
        let head = dsl.find(head).map_err(unreadable)?;
        let marks = head.map_or(Ok(Vec::new()), |head| dsl.bookmarks(&head)).map_err(unreadable)?;
        let mut incomplete = None;
        for mark in &marks {
            let Some(known) = mark.bookmark.filter(|known| known.guid == to.ds.guid) else {
                continue;
            };
            if self.is_redacted_by(mark, guids)? {
                if dsl.redaction_list(known.redaction).map_err(unreadable)?.is_complete() {
                    return Ok(Some(known.redaction));
                }
                incomplete = Some(known.redaction);
            }
        }
        if incomplete.is_some() {
            return Ok(incomplete);
        }
        Err(cannot(ErrorKind::NotFound, "no appropriate redaction bookmark exists"))
    }

    /// The heads that may have a snapshot, the likeliest first.
    fn places(&self, name: &str) -> Result<Vec<Dataset>> {
        let pool = self.pool();
        let of = name.split('@').next().unwrap_or_default();
        let first = pool.dsl().find(of).map_err(unreadable)?;
        let root = pool.dsl().root().map_err(unreadable)?;
        let all = family(pool.dsl(), &root).map_err(unreadable)?;
        Ok(first.into_iter().chain(all).filter(Dataset::is_head).collect())
    }
}
