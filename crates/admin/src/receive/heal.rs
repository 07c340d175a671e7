//! Corrective receives (`zfs receive -c`): damaged blocks of a snapshot that is there are written anew.

use super::one::Stream;
use super::{Job, Within};
use crate::error::{Error, ErrorKind, Result};
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
    pub(super) fn heal(
        &self,
        job: &mut Job<'_, '_>,
        source: &mut Source<'_>,
        within: &Within<'_>,
    ) -> Result<()> {
        let started = Instant::now();
        if job.how.makes_something() {
            let why = "corrective recv can not be used when combined with this flag";
            return Err(self.refused(ErrorKind::Invalid, why));
        }
        let changes = Arc::clone(&job.changes);
        let refused = changes.may_heal(&self.to, self.begin).err();
        match &refused {
            Some(e) => self.not_healed(job, within, e)?,
            None => self.announce(job)?,
        }
        // Before that has come, nothing says that the head of the stream is right.
        source.list(self.begin).map_err(|e| self.cannot(e))?;
        let pass_over = |source: &mut Source<'_>| source.skip().map_err(|e| self.cannot(e));
        if refused.is_some() || job.how.dry_run {
            return pass_over(source);
        }
        let healing = match changes.heal(&self.to, self.begin, job.session.reader()) {
            Ok(healing) => healing,
            Err(e) => {
                self.not_healed(job, within, &e)?;
                return pass_over(source);
            }
        };
        let done = self
            .while_taken(job, &mut |told| healing.stream(source, told))
            .and_then(|healed| changes.finish_heal(&healing, healed));
        if let Err(e) = done {
            return self.not_healed(job, within, &e);
        }
        job.received.snapshots.push(self.to.clone());
        job.session.tell(Event::Received { bytes: source.bytes(), took: started.elapsed() })
    }

    /// Says why the snapshot is not healed, or not all of it. That does not concern the other ones of a package.
    fn not_healed(
        &self,
        job: &mut Job<'_, '_>,
        within: &Within<'_>,
        e: &ReceiveError,
    ) -> Result<()> {
        use ReceiveError::{NoSnapshot, NotHealed, OtherSnapshot};
        let why = self.message(job, false, e);
        if within.alone || !matches!(e, NotHealed { .. } | NoSnapshot | OtherSnapshot) {
            return Err(why);
        }
        job.not_healed = true;
        job.session.failed(Error::new(why.kind(), format!("{}: {why}", self.to)))
    }
}
