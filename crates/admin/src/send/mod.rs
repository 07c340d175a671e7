//! Streams of snapshots (`zfs_send`, `zfs_send_one`).
//!
//! | room | what |
//! |---|---|
//! | `one` | one stream, with properties and holds if they are asked for (`zfs_send_one`) |
//! | `many` | packages of streams (`zfs_send`) |
//! | `resume` | a stream that goes on (`zfs_send_resume`); what an interrupted receive left (`zfs_send_saved`) |
//! | `stream` | the snapshot is held, the stream is written, and how far it is can be shown |

mod many;
mod one;
mod resume;
mod stream;

pub use resume::{decode_token, no_longer_exists};

use crate::error::{Error, ErrorKind, Result};
use crate::host::Event;
use crate::session::Session;
use cenote_dsl::send::package::Wanted;
use cenote_dsl::send::{SendError, SendOptions};
use std::io::Write;

/// How to send (`sendflags_t`).
#[derive(Clone, Debug, Default)]
pub struct Send {
    /// What streams contain. What the pool has is filled in.
    pub options: SendOptions,
    /// What a package contains. The snapshots that it starts from and leads to are filled in.
    pub wanted: Wanted,
    /// The redaction bookmark, of the same dataset as the snapshot, by which the stream is redacted (`--redact`).
    pub redact: Option<String>,
    /// Nothing is written (`-n`).
    pub dry_run: bool,
    /// How long streams will be is reckoned and told (`-v`).
    pub estimate: bool,
}

impl Send {
    /// A raw stream (`-w`): all as it is on disk.
    pub fn raw(mut self) -> Send {
        let options = &mut self.options;
        (options.large_blocks, options.embedded, options.compressed) = (true, true, true);
        self.wanted.raw = true;
        self
    }

    /// Whether several streams are sent.
    pub fn is_many(&self) -> bool {
        self.wanted.replicate || self.wanted.all_snapshots
    }

    /// Whether one stream needs a package around it.
    pub fn is_packed(&self) -> bool {
        self.wanted.props || self.wanted.backup || self.wanted.holds
    }

    /// Whether the names are right for what should be sent.
    ///
    /// # Errors
    /// They are not.
    pub fn check(&self, name: &str, from: Option<&str>) -> Result<()> {
        let refused = |why| Err(Error::new(ErrorKind::Invalid, why));
        match self.is_many() {
            true if from.is_some_and(|from| from.contains('#')) => {
                refused("Error: multiple snapshots cannot be sent from a bookmark.")
            }
            true if self.redact.is_some() => {
                refused("Error: multiple snapshots cannot be sent redacted.")
            }
            true if !name.contains('@') => {
                refused("Error: Unsupported flag with filesystem or bookmark.")
            }
            _ => Ok(()),
        }
    }

    /// What the streams of a pool may contain.
    fn options_in(&self, session: &Session<'_>) -> SendOptions {
        let pool = session.pool();
        let active = |name| pool.features().is_active(name);
        SendOptions {
            pool_embeds: active("embedded_data"),
            pool_has_lz4: active("lz4_compress"),
            raw: self.options.raw || self.wanted.raw,
            ..self.options
        }
    }
}

impl Session<'_> {
    /// Sends the snapshot `name`, or a file system or volume that is not in use (`lzc_send`): all of it, or with `from` what
    /// has changed since that snapshot or bookmark. With [`Wanted::replicate`] or [`Wanted::all_snapshots`] it is a package of
    /// streams. `from` may leave out the dataset (`@a`, `#a`), and in a package the `@`.
    ///
    /// # Errors
    /// The snapshot is not there, is busy, or does not come after `from`; the user may not; it cannot be read; `out` cannot be
    /// written or flushed ([`ErrorKind::Io`]). [`ErrorKind::Told`]: not all was sent that was asked for. That the length of one
    /// of several streams cannot be estimated is told ([`Event::Failed`]) and is no error: the sum is too small then.
    pub fn send(
        &mut self,
        name: &str,
        from: Option<&str>,
        how: &Send,
        out: &mut dyn Write,
    ) -> Result<()> {
        how.check(name, from)?;
        match how.is_many() {
            true => self.send_many(name, from, how.clone(), out),
            false => self.send_one(name, from, how.clone(), out),
        }
    }

    /// Does `work`, which says what is left out; that is told.
    fn warning<T>(
        &mut self,
        work: impl FnOnce(&mut dyn FnMut(String)) -> std::result::Result<T, SendError>,
    ) -> Result<std::result::Result<T, SendError>> {
        let (host, mut told) = (&mut *self.host, Ok(()));
        let done = work(&mut |line| {
            if told.is_ok() {
                told = host.tell(Event::Warning(&line));
            }
        });
        told?;
        Ok(done)
    }
}

/// Why a stream was not sent.
fn failure(name: &str, e: SendError) -> Error {
    match e {
        SendError::Io(e) => e.into(),
        e => Error::doing(format_args!("warning: cannot send '{name}'"), e),
    }
}
