//! Packages of several streams: `-R` and `-I` (`zfs_send`).
//!
//! What is sent is planned first, and all of it is held before the first byte is written, so that nothing of it is
//! destroyed meanwhile. The record that ends a package is written also behind a stream that failed: the receiver has to
//! know that no further one comes.

use super::Flags;
use super::report::{self, Told};
use super::stream::{Stream, failure, hold, put};
use crate::context::Context;
use crate::pools::Imported;
use crate::zfs::select::{Kinds, Node, open};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_dsl::human::nicebytes;
use cenote_dsl::send::package::{Plan, Step};
use cenote_format::stream::feature;
use cenote_format::stream::package::{self, Package};

/// File systems and volumes.
pub(super) const HEADS: Kinds = Kinds::FILESYSTEM.with(Kinds::VOLUME);

pub(super) fn run(
    name: &str,
    from: Option<String>,
    mut flags: Flags,
    ctx: &mut Context,
) -> Outcome {
    if from.as_ref().is_some_and(|from| from.contains('#')) {
        return fail("Error: multiple snapshots cannot be sent from a bookmark.");
    }
    let Some((of, to)) = name.split_once('@') else {
        return fail("Error: Unsupported flag with filesystem or bookmark.");
    };
    let node = open(ctx, of, HEADS).map_err(Stop::Fail)?;
    flags.wanted.to = to.to_string();
    start(&node, from, &mut flags)?;
    if flags.wanted.replicate && flags.wanted.from.is_none() && !flags.wanted.from_origin {
        flags.wanted.all_snapshots = true;
    }
    for short in flags.wanted.from.iter().chain([&flags.wanted.to]) {
        open(ctx, &format!("{of}@{short}"), Kinds::SNAPSHOT).map_err(Stop::Fail)?;
    }
    let (imported, wanted) = (&node.imported, &flags.wanted);
    let pool = imported.pool();
    let dsl = pool.dsl();
    let mut list = None;
    if wanted.replicate || wanted.props || wanted.holds {
        let gathered = dsl.gather(&node.dataset, wanted, &mut |line| ctx.complain(line));
        list = Some(gathered.map_err(|e| failure(name, e))?);
    }
    let plan = dsl.plan(&node.dataset, list.as_ref(), wanted, &mut |line| ctx.complain(line));
    let plan = plan.map_err(|e| failure(name, e))?;
    let size = estimates(imported, &plan, &flags, ctx)?;
    if !plan.reached {
        return Ok(1);
    }
    if flags.dry_run {
        return Ok(i32::from(plan.incomplete));
    }
    let mut holds = Vec::new();
    for step in &plan.steps {
        let held = hold(imported, &step.to, ctx);
        let cannot = |why| Stop::Fail(format!("cannot send '{}': {why}", step.to.name));
        holds.push(held.map_err(cannot)?.0);
    }
    put(&head(name, &flags, list.as_ref())?, ctx)?;
    let sent = plan.steps.iter().try_for_each(|step| send(imported, step, size, &flags, ctx));
    if !matches!(sent, Err(Stop::Io(_))) {
        put(&package::END, ctx)?;
    }
    sent?;
    Ok(i32::from(plan.incomplete))
}

/// The records before the first stream.
pub(super) fn head(name: &str, flags: &Flags, list: Option<&Package>) -> Result<Vec<u8>, Stop> {
    // OpenZFS means to say that a file system has system attributes, but looks at the snapshot.
    let features = if flags.wanted.holds { feature::HOLDS } else { 0 };
    package::head(name, features, list)
        .map_err(|e| Stop::Fail(format!("warning: cannot send '{name}': {e}")))
}

/// Takes the argument of `-i` or `-I`: a snapshot of the same dataset, or its origin.
fn start(node: &Node, from: Option<String>, flags: &mut Flags) -> Result<(), Stop> {
    let Some(from) = from else { return Ok(()) };
    let Some((of, short)) = from.split_once('@') else {
        flags.wanted.from = Some(from);
        return Ok(());
    };
    let cannot = |e| Stop::Fail(format!("cannot open '{}': {e}", node.dataset.name));
    let origin = node.imported.pool().dsl().origin(&node.dataset).map_err(cannot)?;
    if origin.is_some_and(|origin| origin.name == from) {
        flags.wanted.from_origin = true;
        return Ok(());
    }
    if !of.is_empty() && of != node.dataset.name {
        return usage("incremental source must be in same filesystem");
    }
    if short.contains(['@', '/']) {
        return usage("invalid incremental source");
    }
    flags.wanted.from = Some(short.to_string());
    Ok(())
}

/// Says how long the streams will be.
fn estimates(
    imported: &Imported,
    plan: &Plan,
    flags: &Flags,
    ctx: &mut Context,
) -> Result<u64, Stop> {
    let mut sum = 0u64;
    if flags.verbosity == 0 {
        return Ok(sum);
    }
    let options = flags.options_in(imported);
    let pool = imported.pool();
    for step in &plan.steps {
        // A first stream that starts from an origin counts as a full one, as in OpenZFS.
        let from = step.from.as_ref().filter(|_| !step.from_origin);
        let name = &step.to.name;
        match pool.dsl().send_estimate(&step.to, from, options) {
            Ok(size) => {
                sum = sum.saturating_add(size);
                let short = from.and_then(|f| f.name.split_once('@')).map(|(_, short)| short);
                report::estimate(name, short, size, flags, ctx)?;
            }
            Err(e) => {
                ctx.complain(format_args!("warning: cannot estimate space for '{name}': {e}"));
            }
        }
    }
    report::total(&nicebytes(sum), sum, flags, ctx)?;
    Ok(sum)
}

fn send(
    imported: &Imported,
    step: &Step,
    size: u64,
    flags: &Flags,
    ctx: &mut Context,
) -> Result<(), Stop> {
    // Blocks are not told of here, as in OpenZFS.
    let told = Told { name: &step.to.name, size, verbosity: 0 };
    let options = flags.options_in(imported);
    let from = step.from.as_ref();
    Stream { imported, to: &step.to, from, options, told }.write(flags, ctx)
}
