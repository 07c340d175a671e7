//! Corrective receives (`zfs receive -c`): damaged blocks of a snapshot that is there are written anew.

use super::Job;
use super::one::Stream;
use crate::error::{ErrorKind, Result};
use crate::host::Event;
use cenote_engine::change::receive::{ReceiveError, Source};
use std::sync::Arc;
use std::time::Instant;

impl super::Receive {
    /// Whether it asks for something that a corrective receive does not do.
    fn makes_something(&self) -> bool {
        let flags = [self.prefix, self.force, self.resumable, self.no_mount, self.skip_holds];
        let values = [self.set.is_empty(), self.inherit.is_empty()];
        flags.contains(&true)
            || values.contains(&false)
            || self.origin.is_some()
            || self.encryption.is_some()
    }
}

impl Stream<'_> {
    /// Heals the snapshot by the stream. Its input may stall: others are not kept out, and the snapshot has a hold.
    pub(super) fn heal(&self, job: &mut Job<'_, '_>, source: &mut Source<'_>) -> Result<()> {
        let started = Instant::now();
        if job.how.makes_something() {
            let why = "corrective recv can not be used when combined with this flag";
            return Err(self.refused(ErrorKind::Invalid, why));
        }
        let changes = Arc::clone(&job.changes);
        let refused = |job: &Job<'_, '_>, e: &ReceiveError| self.message(job, false, e);
        changes.may_heal(&self.to, self.begin).map_err(|e| refused(job, &e))?;
        self.announce(job)?;
        // Before that has come, nothing says that the head of the stream is right.
        source.list(self.begin).map_err(|e| self.cannot(e))?;
        if job.how.dry_run {
            return source.skip().map_err(|e| self.cannot(e));
        }
        let healing = changes.heal(&self.to, self.begin, job.session.reader());
        let healing = healing.map_err(|e| refused(job, &e))?;
        let done = self
            .while_taken(job, &mut |told| healing.stream(source, told))
            .and_then(|healed| changes.finish_heal(&healing, healed));
        done.map_err(|e| refused(job, &e))?;
        job.received.snapshots.push(self.to.clone());
        job.session.tell(Event::Received { bytes: source.bytes(), took: started.elapsed() })
    }
}
