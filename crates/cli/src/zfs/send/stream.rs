//! Writes one stream: the snapshot is held meanwhile, and its progress is told.

use super::Flags;
use super::report::{Told, tell};
use crate::context::Context;
use crate::pools::Imported;
use crate::zfs::change::permit;
use cenote_command::outcome::Stop;
use cenote_dsl::Dataset;
use cenote_dsl::send::{Progress, SendError, SendOptions};
use cenote_dsl::write::DslWriteError;
use cenote_engine::change::policy::Operation;
use cenote_engine::{EngineError, LongHold};
use std::io;
use std::sync::mpsc::channel;

/// Checks that the caller may send a dataset, and keeps that from being destroyed, and a head from being changed. A pool that is imported read-only needs no such hold.
/// Returns the dataset as it is then. The error is what comes after `cannot send …: `.
pub(super) fn hold(
    imported: &Imported,
    dataset: &Dataset,
    ctx: &Context,
) -> Result<(Option<LongHold>, Dataset), String> {
    let permitted =
        |name: &str| permit(imported, ctx, &Operation::Send { name }).map_err(|e| e.to_string());
    permitted(&dataset.name)?;
    let Some(engine) = imported.engine() else { return Ok((None, dataset.clone())) };
    match engine.hold(dataset) {
        Ok((hold, dataset)) => {
            // Another one may have had the name when it was asked for.
            permitted(&dataset.name)?;
            Ok((Some(hold), dataset))
        }
        Err(EngineError::Dsl(DslWriteError::Busy)) if dataset.is_head() => {
            Err("target is busy; if a filesystem, it must not be mounted".into())
        }
        Err(EngineError::Dsl(DslWriteError::Busy)) => Err("dataset is busy".into()),
        Err(EngineError::Dsl(DslWriteError::NotFound)) => Err("dataset does not exist".into()),
        Err(e) => Err(e.to_string()),
    }
}

/// A stream that is going to be written.
pub(super) struct Stream<'a> {
    pub imported: &'a Imported,
    /// What is sent; held by the caller.
    pub to: &'a Dataset,
    pub from: Option<&'a Dataset>,
    pub options: SendOptions,
    pub told: Told<'a>,
}

impl Stream<'_> {
    /// Writes the stream to standard output.
    ///
    /// # Errors
    /// Those of sending, with what OpenZFS says.
    pub(super) fn write(&self, flags: &Flags, ctx: &mut Context) -> Result<(), Stop> {
        let (progress, (done, closed)) = (Progress::default(), channel());
        let Context { out, err, caller, .. } = ctx;
        let pool = self.imported.pool();
        let sent = std::thread::scope(|scope| {
            let (told, progress) = (&self.told, &progress);
            let tells = move || tell(told, flags, progress, &closed, (caller, err));
            let closed_by_end = done;
            if flags.progress || flags.title || flags.parsable {
                std::thread::Builder::new().name("progress".into()).spawn_scoped(scope, tells)?;
            }
            let sent =
                pool.dsl().send_and_tell(self.to, self.from, self.options, out.raw(), progress);
            drop(closed_by_end);
            sent
        });
        sent.map_err(|e| failure(&self.to.name, e))
    }
}

/// Why a stream ended, for the user.
pub(super) fn failure(name: &str, e: SendError) -> Stop {
    match e {
        SendError::Io(e) => Stop::Io(e),
        e => Stop::Fail(format!("warning: cannot send '{name}': {e}")),
    }
}

/// Writes a part of a package that is no stream.
pub(super) fn put(bytes: &[u8], ctx: &mut Context) -> io::Result<()> {
    ctx.out.raw().write_all(bytes)
}
