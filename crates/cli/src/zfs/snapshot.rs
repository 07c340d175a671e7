//! `zfs snapshot` (`zfs_do_snapshot`).

use super::change::add_property;
use super::session::{quietly, stop};
use crate::context::Context;
use crate::options::{Spec, parse};
use crate::zfs::select::{Kinds, Node, open};
use cenote_command::outcome::{Outcome, Stop, usage};
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "ro:", refused: "", refused_long: &[] };

/// Runs `zfs snapshot`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let (mut props, mut recurse) = (Vec::new(), false);
    for opt in &parsed.options {
        match opt.letter {
            'o' => add_property(&mut props, &opt.text())?,
            _ => recurse = true,
        }
    }
    let operands = parsed.names();
    if operands.is_empty() {
        return usage("missing snapshot argument");
    }
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change_all(&operands, None);
    let (mut names, mut first): (Vec<String>, Option<Node>) = (Vec::new(), None);
    for operand in &operands {
        let Some((head, short)) = operand.split_once('@') else { return usage("") };
        let node = open(ctx, head, Kinds::HEAD).map_err(Stop::Usage)?;
        let found = quietly(&node.imported, ctx, |session| {
            session.names_of_snapshots(&node.dataset, short, recurse)
        });
        names.extend(found.map_err(stop)?);
        first.get_or_insert(node);
    }
    let Some(node) = first else { return usage("missing snapshot argument") };
    let none = if recurse || operands.len() > 1 { "\nno snapshots were created" } else { "" };
    let done = quietly(&node.imported, ctx, |session| session.snapshot(names, props));
    done.map(|()| 0).map_err(|e| Stop::Fail(format!("{e}{none}")))
}
