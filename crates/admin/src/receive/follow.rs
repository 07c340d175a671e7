//! What was renamed, promoted or destroyed at the sender is so here, before and after the streams of an incremental package
//! of many datasets are received (`recv_incremental_replication`).
//!
//! A dataset is known by the guids of its snapshots, whatever it is called. It goes in passes: after each change of a
//! dataset all are looked at again. What the sender does not have is destroyed with `-F` only. A name that is taken is
//! waited for with another one (`recv-PROCESS-NUMBER`), which a later pass changes.
//!
//! Invariant: passes come to an end, for their number is bounded.

use super::{Job, cannot, props};
use crate::destroy::Missing;
use crate::error::{Error, ErrorKind, Result};
use crate::host::Event;
use crate::kinds::family;
use crate::rename::Rename;
use cenote_dsl::Dataset;
use cenote_format::stream::package::{Package, Sent};
use std::collections::HashMap;
use std::sync::Arc;

/// What temporary names begin with.
const TEMPORARY: &str = "recv-";

/// A dataset here.
struct Local {
    dataset: Dataset,
    /// Short names and guids of its snapshots.
    snaps: Vec<(String, u64)>,
    /// Guid of its origin; 0 if it is no clone.
    origin: u64,
    /// Guid of the snapshot of its parent that the package starts from; 0: there is no such snapshot.
    parent: u64,
}

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// There is nothing more to do.
    Done,
    /// A dataset was changed: all must be looked at again.
    Again,
    /// Something could not be done, as was said.
    Stuck,
}

/// What is followed.
struct Follow<'a, 's, 'h> {
    job: &'a mut Job<'s, 'h>,
    package: &'a Package,
    /// The snapshot that the package starts from.
    from: &'a str,
    /// The uppermost dataset here.
    top: String,
    temporary: u32,
}

/// Follows the package. Returns whether all could be done. `first`: nothing of it was received yet.
pub(super) fn follow(
    job: &mut Job<'_, '_>,
    package: &Package,
    top: &str,
    first: bool,
) -> Result<bool> {
    let Some(from) = package.from_snap.as_deref().filter(|_| package.recursive) else {
        return Ok(true);
    };
    if job.how.dry_run {
        return Ok(true);
    }
    let exclusion = job.session.exclusion();
    let _entered = exclusion.enter();
    let top = top.to_string();
    let mut follow = Follow { job, package, from, top, temporary: 0 };
    let most = 4 * package.datasets.len() + 16;
    for _ in 0..most {
        match follow.pass()? {
            Pass::Done => {
                if first {
                    follow.give_properties()?;
                }
                return Ok(true);
            }
            Pass::Stuck => return Ok(false),
            Pass::Again => {}
        }
    }
    Ok(false)
}

fn failed(e: cenote_dmu::Error) -> Error {
    cannot(ErrorKind::Pool, e)
}

impl Follow<'_, '_, '_> {
    /// Looks at all datasets, those below first.
    fn pass(&mut self) -> Result<Pass> {
        let locals = self.locals().map_err(failed)?;
        let mut stuck = false;
        for local in locals.iter().rev() {
            match self.one(local, &locals)? {
                Pass::Done => {}
                Pass::Again => return Ok(Pass::Again),
                Pass::Stuck => stuck = true,
            }
        }
        Ok(if stuck { Pass::Stuck } else { Pass::Done })
    }

    /// Gives the snapshots that are here already the properties that they have at the sender by now.
    fn give_properties(&mut self) -> Result<()> {
        for local in self.locals().map_err(failed)? {
            for (name, guid) in &local.snaps {
                let Some(sent) = self.package.sent(*guid) else { continue };
                let to = format!("{}@{name}", local.dataset.name);
                let changes = Arc::clone(&self.job.changes);
                props::give_sent(self.job.session, &changes, sent, &to)?;
            }
        }
        Ok(())
    }

    /// The datasets at and below the uppermost one, parents before children (`gather_nvlist`).
    fn locals(&self) -> cenote_dmu::Result<Vec<Local>> {
        let pool = self.job.session.pool();
        let dsl = pool.dsl();
        let Some(top) = self.job.session.head(&self.top)? else { return Ok(Vec::new()) };
        let mut from_of: HashMap<String, u64> = HashMap::new();
        let mut locals = Vec::new();
        for dataset in family(dsl, &top)? {
            let snaps: Vec<(String, u64)> = dsl
                .snapshots(&dataset)?
                .iter()
                .filter_map(|s| Some((s.name.split_once('@')?.1.to_string(), s.ds.guid)))
                .collect();
            if let Some((_, guid)) = snaps.iter().find(|(name, _)| name == self.from) {
                from_of.insert(dataset.name.clone(), *guid);
            }
            let above = dataset.name.rsplit_once('/').map(|(above, _)| above);
            let parent = above.and_then(|above| from_of.get(above)).copied().unwrap_or(0);
            let origin = dsl.origin(&dataset)?.map_or(0, |origin| origin.ds.guid);
            locals.push(Local { dataset, snaps, origin, parent });
        }
        Ok(locals)
    }

    fn one(&mut self, local: &Local, locals: &[Local]) -> Result<Pass> {
        let package = self.package;
        let sent_of = |guid: u64| package.sent(guid);
        let mut sent = local.snaps.iter().find_map(|(_, guid)| sent_of(*guid)).map(|(s, _)| s);
        if let Some(theirs) = sent {
            let origin = theirs.origin.unwrap_or(0);
            if origin != local.origin
                && self.is_older(local.origin, origin, locals).map_err(failed)?
            {
                return self.promote(local);
            }
        }
        let (mut from_guid, mut pass) = (0, Pass::Done);
        for (name, guid) in &local.snaps {
            let full = format!("{}@{name}", local.dataset.name);
            let Some((theirs, their_name)) = sent_of(*guid) else {
                if self.job.how.force && !self.destroy_snapshot(&full)? {
                    pass = Pass::Stuck;
                }
                continue;
            };
            sent = Some(theirs);
            if name != their_name && !self.rename_snapshot(&full, their_name, local)? {
                pass = Pass::Stuck;
            }
            if their_name == self.from {
                from_guid = *guid;
            }
        }
        match sent {
            None if self.job.how.force && local.dataset.name != self.top => self.destroy(local),
            None => Ok(pass),
            Some(_) if from_guid == 0 => {
                let dataset = &local.dataset.name;
                self.job.session.tell(Event::LacksStart { dataset, snapshot: self.from })?;
                Ok(pass)
            }
            Some(sent) => match self.rename(local, sent, locals)? {
                Pass::Done => Ok(pass),
                renamed => Ok(renamed),
            },
        }
    }

    /// Whether the origin here was made before the one at the sender: then the clone was promoted there
    /// (`created_before`).
    fn is_older(&self, ours: u64, theirs: u64, locals: &[Local]) -> cenote_dmu::Result<bool> {
        let pool = self.job.session.pool();
        let txg = |guid: u64| {
            let has = |local: &&Local| local.snaps.iter().any(|(_, known)| *known == guid);
            let Some(local) = locals.iter().find(has) else {
                return Ok::<_, cenote_dmu::Error>(None);
            };
            let snapshots = pool.dsl().snapshots(&local.dataset)?;
            Ok(snapshots.iter().find(|s| s.ds.guid == guid).map(|s| s.ds.creation_txg))
        };
        Ok(match (ours, theirs) {
            (0, _) => false,
            (_, 0) => true,
            _ => matches!((txg(theirs)?, txg(ours)?), (Some(theirs), Some(ours)) if theirs > ours),
        })
    }

    /// Tells whether something was done.
    fn done(&mut self, good: bool) -> Result<bool> {
        self.job.session.tell(Event::Settled(good))?;
        Ok(good)
    }

    fn promote(&mut self, local: &Local) -> Result<Pass> {
        self.job.session.tell(Event::Promoting(&local.dataset.name))?;
        let promoted = self.job.session.promote_dataset(&local.dataset);
        Ok(if self.settled(promoted)? { Pass::Again } else { Pass::Stuck })
    }

    /// Tells what kept something from being done.
    fn settled(&mut self, done: Result<()>) -> Result<bool> {
        match done.map_err(Error::into_io) {
            Ok(()) => Ok(true),
            Err(Ok(e)) => Err(e.into()),
            Err(Err(e)) if e.kind() == ErrorKind::Told => Ok(false),
            Err(Err(e)) => self.job.session.failed(e).map(|()| false),
        }
    }

    fn destroy_snapshot(&mut self, name: &str) -> Result<bool> {
        self.job.session.tell(Event::Destroying(name))?;
        let mut batch = vec![name.to_string()];
        let good = self.job.session.destroy_batch(&mut batch, false)?;
        self.done(good)
    }

    fn destroy(&mut self, local: &Local) -> Result<Pass> {
        self.job.session.tell(Event::Destroying(&local.dataset.name))?;
        let force = self.job.how.force;
        let good = self.job.session.destroy_one(&local.dataset, force, Missing::Passes)?;
        Ok(if self.done(good)? { Pass::Again } else { Pass::Stuck })
    }

    fn rename_snapshot(&mut self, full: &str, to: &str, local: &Local) -> Result<bool> {
        let head = &local.dataset.name;
        let taken = local.snaps.iter().any(|(name, _)| name == to);
        let short = if taken { self.temporary() } else { to.to_string() };
        let to = format!("{head}@{short}");
        self.job.session.tell(Event::Renaming { from: full, to: &to })?;
        let renamed = self.job.session.rename_snapshot(full, &short, false);
        let good = self.settled(renamed)?;
        // With a temporary name it is not done yet.
        Ok(self.done(good)? && !taken)
    }

    fn temporary(&mut self) -> String {
        self.temporary += 1;
        format!("{TEMPORARY}{}-{}", std::process::id(), self.temporary)
    }

    /// Moves a dataset to where the sender has it. The one that was named stays where it is.
    fn rename(&mut self, local: &Local, sent: &Sent, locals: &[Local]) -> Result<Pass> {
        let name = &local.dataset.name;
        let leaf = |name: &str| name.rsplit_once('/').map(|(_, leaf)| leaf.to_string());
        let moved = sent.parent_from_snap != 0
            && local.parent != 0
            && sent.parent_from_snap != local.parent;
        let named = !self.job.how.prefix && *name == self.top;
        let (ours, theirs) = (leaf(name), leaf(&sent.name));
        let other = !named && ours.is_some() && theirs.is_some() && ours != theirs;
        if !moved && !other || *name == self.top && !self.job.how.prefix {
            return Ok(Pass::Done);
        }
        let (Some(theirs), Some((above, _))) = (theirs, name.rsplit_once('/')) else {
            return Ok(Pass::Done);
        };
        let has =
            |local: &&Local| local.snaps.iter().any(|(_, guid)| *guid == sent.parent_from_snap);
        let parent = match locals.iter().find(has) {
            Some(parent) => parent.dataset.name.clone(),
            None if moved => {
                // It is going to be received, and then there is another pass.
                self.job.session.tell(Event::LacksParent(name))?;
                return Ok(Pass::Done);
            }
            None => above.to_string(),
        };
        let mut to = format!("{parent}/{theirs}");
        if locals.iter().any(|local| local.dataset.name == to) {
            if leaf(name).is_some_and(|leaf| leaf.starts_with(TEMPORARY)) {
                return Ok(Pass::Done);
            }
            to = format!("{above}/{}", self.temporary());
        }
        self.job.session.tell(Event::Renaming { from: name, to: &to })?;
        let how = Rename { force: self.job.how.force, ..Rename::default() };
        let done = self.job.session.rename_head(&local.dataset, &to, how);
        let good = self.settled(done)?;
        Ok(if self.done(good)? { Pass::Again } else { Pass::Stuck })
    }
}
