//! Writes one stream: the snapshot is held meanwhile, and how far it is can be shown.

use super::failure;
use crate::error::{ErrorKind, Result, Why};
use crate::host::Streaming;
use crate::session::Session;
use cenote_dsl::Dataset;
use cenote_dsl::send::{Progress, SendError, SendOptions};
use cenote_dsl::write::DslWriteError;
use cenote_engine::change::ChangeError;
use cenote_engine::change::policy::Operation;
use cenote_engine::{EngineError, LongHold};
use std::io::Write;

/// A dataset that is held.
pub(super) struct Held {
    /// As it is now.
    pub dataset: Dataset,
    /// A pool that is imported read-only needs no hold.
    _hold: Option<LongHold>,
}

/// A stream that is going to be written.
pub(super) struct Stream<'a> {
    /// What is sent.
    pub to: &'a Held,
    pub from: Option<&'a Dataset>,
    pub options: SendOptions,
    /// The name that it goes by for the user.
    pub name: &'a str,
    /// Bytes that it will have, about; 0 if that is not known.
    pub size: u64,
    /// Whether it is one of a package.
    pub packed: bool,
}

impl Session<'_> {
    /// Checks that the user may send a dataset, raw if so, and keeps that from being destroyed, and a head from being changed. The error is
    /// what comes after `cannot send …: `.
    pub(super) fn held(
        &self,
        dataset: &Dataset,
        raw: bool,
    ) -> std::result::Result<Held, Why<String>> {
        let refused = |e: ChangeError| Why(crate::error::Reason::kind(&e), e.to_string());
        let permitted = |name: &str| self.permit(&Operation::Send { name, raw }).map_err(refused);
        permitted(&dataset.name)?;
        let Some(engine) = self.engine() else {
            return Ok(Held { dataset: dataset.clone(), _hold: None });
        };
        match engine.hold(dataset, self.reader()) {
            Ok((hold, dataset)) => {
                // Another one may have had the name when it was asked for.
                permitted(&dataset.name)?;
                Ok(Held { dataset, _hold: Some(hold) })
            }
            Err(EngineError::Dsl(DslWriteError::Busy)) => Err(Why(
                ErrorKind::Busy,
                match (dataset.is_head(), engine.use_of(dataset.ds_obj)) {
                    (true, _) => "target is busy; if a filesystem, it must not be mounted".into(),
                    (false, Some(by)) => format!("dataset is busy: {by}"),
                    (false, None) => "dataset is busy".into(),
                },
            )),
            Err(EngineError::Dsl(DslWriteError::NotFound)) => {
                Err(Why(ErrorKind::NotFound, "dataset does not exist".into()))
            }
            Err(e) => Err(Why(ErrorKind::Pool, e.to_string())),
        }
    }

    /// Keeps redaction lists from being destroyed.
    pub(super) fn lists_held(
        &self,
        lists: impl Iterator<Item = u64>,
    ) -> std::result::Result<Vec<LongHold>, Why<String>> {
        let Some(engine) = self.engine() else { return Ok(Vec::new()) };
        let refused = |e| match e {
            EngineError::Dsl(DslWriteError::Busy) => {
                Why(ErrorKind::Busy, "the redaction bookmark is being destroyed".into())
            }
            EngineError::Dsl(DslWriteError::NotFound) => {
                Why(ErrorKind::NotFound, "the redaction bookmark does not exist".into())
            }
            e => Why(ErrorKind::Pool, e.to_string()),
        };
        let hold = |list| engine.hold_list(list, self.reader()).map(|(hold, _)| hold);
        lists.map(|list| hold(list).map_err(refused)).collect()
    }

    /// Writes a stream.
    pub(super) fn write(&mut self, stream: &Stream<'_>, out: &mut dyn Write) -> Result<()> {
        let Stream { to, from, options, name, size, packed } = *stream;
        let (pool, progress, mut sent) = (self.pool(), Progress::default(), None);
        let streaming = Streaming { name, size, packed, progress: &progress };
        self.host.while_streaming(&streaming, &mut || {
            sent = Some(pool.dsl().send_and_tell(&to.dataset, from, options, out, &progress));
        })?;
        // The host has to do the work.
        let sent = sent.unwrap_or_else(|| Err(SendError::Refused("nothing was sent".into())));
        sent.map_err(|e| failure(&to.dataset.name, e))
    }
}
