//! What was renamed, promoted or destroyed at the sender is so here, before and after the streams of an incremental package
//! of many datasets are received (`recv_incremental_replication`).
//!
//! A dataset is known by the guids of its snapshots, whatever it is called. It goes in passes: after each change of a
//! dataset all are looked at again. What the sender does not have is destroyed with `-F` only. A name that is taken is
//! waited for with another one (`recv-PROCESS-NUMBER`), which a later pass changes.
//!
//! Invariant: passes come to an end, for their number is bounded.

use super::super::clone::promote_node;
use super::super::destroy::{How, destroy_batch, destroy_head};
use super::super::rename::{move_head, rename_snapshot};
use super::{Job, props};
use crate::context::Context;
use crate::mounts::moving::family;
use crate::zfs::select::Node;
use cenote_command::outcome::Stop;
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
    /// Guid of the snapshot of its parent that the package starts from; 0 if there is none.
    parent: u64,
}

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// There is nothing more to do.
    Done,
    /// A dataset was changed: all are to be looked at again.
    Again,
    /// Something could not be done, as was said.
    Stuck,
}

/// What is followed.
struct Follow<'a> {
    job: &'a Job,
    package: &'a Package,
    /// The snapshot that the package starts from.
    from: &'a str,
    /// The uppermost dataset here.
    top: String,
    temporary: u32,
}

/// Follows the package. Returns whether all could be done. `first`: nothing of it was received yet.
pub(super) fn follow(
    job: &Job,
    package: &Package,
    top: &str,
    first: bool,
    ctx: &mut Context,
) -> Result<bool, Stop> {
    let Some(from) = package.from_snap.as_deref().filter(|_| package.recursive) else {
        return Ok(true);
    };
    if job.flags.dry_run {
        return Ok(true);
    }
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change();
    let top = top.to_string();
    let mut follow = Follow { job, package, from, top, temporary: 0 };
    let most = 4 * package.datasets.len() + 16;
    for _ in 0..most {
        match follow.pass(ctx)? {
            Pass::Done => {
                if first {
                    follow.give_properties(ctx)?;
                }
                return Ok(true);
            }
            Pass::Stuck => return Ok(false),
            Pass::Again => {}
        }
    }
    Ok(false)
}

fn failed(e: &dyn std::fmt::Display) -> Stop {
    Stop::Fail(format!("cannot receive: {e}"))
}

impl Follow<'_> {
    /// Looks at all datasets, those below first.
    fn pass(&mut self, ctx: &mut Context) -> Result<Pass, Stop> {
        let locals = self.locals().map_err(|e| failed(&e))?;
        let mut stuck = false;
        for local in locals.iter().rev() {
            match self.one(local, &locals, ctx)? {
                Pass::Done => {}
                Pass::Again => return Ok(Pass::Again),
                Pass::Stuck => stuck = true,
            }
        }
        Ok(if stuck { Pass::Stuck } else { Pass::Done })
    }

    /// Gives the snapshots that are here already the properties that they have at the sender by now.
    fn give_properties(&self, ctx: &mut Context) -> Result<(), Stop> {
        for local in self.locals().map_err(|e| failed(&e))? {
            for (name, guid) in &local.snaps {
                let Some(sent) = self.package.sent(*guid) else { continue };
                let to = format!("{}@{name}", local.dataset.name);
                props::give_sent(&self.job.changes, sent, &to, ctx);
            }
        }
        Ok(())
    }

    /// The datasets at and below the uppermost one, parents before children (`gather_nvlist`).
    fn locals(&self) -> Result<Vec<Local>, cenote_dmu::Error> {
        let pool = self.job.imported.pool();
        let dsl = pool.dsl();
        let Some(top) = self.job.head(&self.top)? else { return Ok(Vec::new()) };
        let mut from_of: HashMap<String, u64> = HashMap::new();
        let mut locals = Vec::new();
        for dataset in family(&self.job.imported, &top)? {
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

    fn one(&mut self, local: &Local, locals: &[Local], ctx: &mut Context) -> Result<Pass, Stop> {
        let sent_of = |guid: u64| self.package.sent(guid);
        let mut sent = local.snaps.iter().find_map(|(_, guid)| sent_of(*guid)).map(|(s, _)| s);
        if let Some(theirs) = sent {
            let origin = theirs.origin.unwrap_or(0);
            if origin != local.origin && self.is_older(local.origin, origin, locals) {
                return self.promote(local, ctx);
            }
        }
        let (mut from_guid, mut pass) = (0, Pass::Done);
        for (name, guid) in &local.snaps {
            let full = format!("{}@{name}", local.dataset.name);
            let Some((theirs, their_name)) = sent_of(*guid) else {
                if self.job.flags.force && !self.destroy_snapshot(&full, ctx)? {
                    pass = Pass::Stuck;
                }
                continue;
            };
            sent = Some(theirs);
            if name != their_name && !self.rename_snapshot(&full, their_name, local, ctx)? {
                pass = Pass::Stuck;
            }
            if their_name == self.from {
                from_guid = *guid;
            }
        }
        match sent {
            None if self.job.flags.force && local.dataset.name != self.top => {
                self.destroy(local, ctx)
            }
            None => Ok(pass),
            Some(_) if from_guid == 0 => {
                if self.job.flags.verbose {
                    writeln!(
                        ctx.out,
                        "local fs {} does not have fromsnap ({} in stream); must have been \
                         deleted locally; ignoring",
                        local.dataset.name, self.from
                    )?;
                }
                Ok(pass)
            }
            Some(sent) => match self.rename(local, sent, locals, ctx)? {
                Pass::Done => Ok(pass),
                renamed => Ok(renamed),
            },
        }
    }

    /// Whether the origin here was made before the one at the sender: then the clone was promoted there
    /// (`created_before`).
    fn is_older(&self, ours: u64, theirs: u64, locals: &[Local]) -> bool {
        let pool = self.job.imported.pool();
        let txg = |guid: u64| {
            let has = |local: &&Local| local.snaps.iter().any(|(_, known)| *known == guid);
            let local = locals.iter().find(has)?;
            let snapshots = pool.dsl().snapshots(&local.dataset).ok()?;
            snapshots.iter().find(|s| s.ds.guid == guid).map(|s| s.ds.creation_txg)
        };
        match (ours, theirs) {
            (0, _) => false,
            (_, 0) => true,
            _ => matches!((txg(theirs), txg(ours)), (Some(theirs), Some(ours)) if theirs > ours),
        }
    }

    fn node(&self, local: &Local) -> Node {
        let imported = Arc::clone(&self.job.imported);
        Node { imported, dataset: local.dataset.clone(), seen: None }
    }

    fn say(&self, what: std::fmt::Arguments<'_>, ctx: &mut Context) -> Result<(), Stop> {
        match self.job.flags.verbose {
            true => Ok(writeln!(ctx.out, "{what}")?),
            false => Ok(()),
        }
    }

    /// Says whether something was done.
    fn done(&self, good: bool, ctx: &mut Context) -> Result<bool, Stop> {
        self.say(format_args!("{}", if good { "success" } else { "failed" }), ctx)?;
        Ok(good)
    }

    fn promote(&self, local: &Local, ctx: &mut Context) -> Result<Pass, Stop> {
        let name = &local.dataset.name;
        self.say(format_args!("promoting {name}"), ctx)?;
        let promoted = promote_node(&self.node(local), &self.job.changes);
        Ok(if self.settled(promoted, ctx)? { Pass::Again } else { Pass::Stuck })
    }

    /// Says what kept something from being done.
    fn settled(
        &self,
        outcome: cenote_command::outcome::Outcome,
        ctx: &mut Context,
    ) -> Result<bool, Stop> {
        match outcome {
            Ok(code) => Ok(code == 0),
            Err(Stop::Io(e)) => Err(Stop::Io(e)),
            Err(Stop::Said(_)) => Ok(false),
            Err(Stop::Fail(why) | Stop::Usage(why)) => {
                ctx.complain(why);
                Ok(false)
            }
        }
    }

    fn destroy_snapshot(&self, name: &str, ctx: &mut Context) -> Result<bool, Stop> {
        self.say(format_args!("attempting destroy {name}"), ctx)?;
        let mut batch = vec![name.to_string()];
        let good = destroy_batch(&self.job.imported, &self.job.changes, &mut batch, false, ctx);
        self.done(good, ctx)
    }

    fn destroy(&self, local: &Local, ctx: &mut Context) -> Result<Pass, Stop> {
        let name = &local.dataset.name;
        self.say(format_args!("attempting destroy {name}"), ctx)?;
        let how = How::forced(self.job.flags.force);
        let good = destroy_head(&self.job.imported, &self.job.changes, &local.dataset, how, ctx);
        Ok(if self.done(good, ctx)? { Pass::Again } else { Pass::Stuck })
    }

    fn rename_snapshot(
        &mut self,
        full: &str,
        to: &str,
        local: &Local,
        ctx: &mut Context,
    ) -> Result<bool, Stop> {
        let head = &local.dataset.name;
        let taken = local.snaps.iter().any(|(name, _)| name == to);
        let short = if taken { self.temporary() } else { to.to_string() };
        self.say(format_args!("attempting rename {full} to {head}@{short}"), ctx)?;
        let renamed = rename_snapshot(&self.job.imported, &self.job.changes, full, &short, false);
        let good = self.settled(renamed, ctx)?;
        // With a temporary name it is not done yet.
        Ok(self.done(good, ctx)? && !taken)
    }

    fn temporary(&mut self) -> String {
        self.temporary += 1;
        format!("{TEMPORARY}{}-{}", std::process::id(), self.temporary)
    }

    /// Moves a dataset to where the sender has it. The one that was named stays where it is.
    fn rename(
        &mut self,
        local: &Local,
        sent: &Sent,
        locals: &[Local],
        ctx: &mut Context,
    ) -> Result<Pass, Stop> {
        let name = &local.dataset.name;
        let leaf = |name: &str| name.rsplit_once('/').map(|(_, leaf)| leaf.to_string());
        let moved = sent.parent_from_snap != 0
            && local.parent != 0
            && sent.parent_from_snap != local.parent;
        let named = !self.job.flags.prefix && *name == self.top;
        let (ours, theirs) = (leaf(name), leaf(&sent.name));
        let other = !named && ours.is_some() && theirs.is_some() && ours != theirs;
        if !moved && !other || *name == self.top && !self.job.flags.prefix {
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
                self.say(format_args!("local fs {name} new parent not found"), ctx)?;
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
        self.say(format_args!("attempting rename {name} to {to}"), ctx)?;
        let node = self.node(local);
        let force = self.job.flags.force;
        let done = move_head(&node, &self.job.changes, &to, (false, force), ctx);
        let good = self.settled(done, ctx)?;
        Ok(if self.done(good, ctx)? { Pass::Again } else { Pass::Stuck })
    }
}
