//! `zfs snapshot`.

use super::change::{add_property, changes};
use crate::context::Context;
use crate::mounts::moving::family;
use crate::options::{Spec, parse};
use crate::zfs::select::{Kinds, Node, open};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_engine::change::{ChangeError, NewSnapshot};
use std::collections::HashSet;
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "ro:", refused: "", refused_long: &[] };
const HEADS: Kinds = Kinds::FILESYSTEM.with(Kinds::VOLUME);

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
    let _change = pools.change();
    let (mut names, mut first): (Vec<String>, Option<Node>) = (Vec::new(), None);
    for operand in &operands {
        let Some((head, short)) = operand.split_once('@') else { return usage("") };
        let node = open(ctx, head, HEADS).map_err(Stop::Usage)?;
        let heads = match recurse {
            true => family(&node.imported, &node.dataset)
                .map_err(|e| Stop::Fail(format!("cannot list what is in '{head}': {e}")))?,
            false => vec![node.dataset.clone()],
        };
        let whole = heads.iter().filter(|d| !recurse || !d.is_inconsistent());
        names.extend(whole.map(|d| format!("{}@{short}", d.name)));
        first.get_or_insert(node);
    }
    // One that is named twice is taken once.
    let mut known = HashSet::new();
    names.retain(|name: &String| known.insert(name.clone()));
    let Some(node) = first else { return usage("missing snapshot argument") };
    let none = if recurse || operands.len() > 1 { "\nno snapshots were created" } else { "" };
    let failed = |name: Option<String>, why: &dyn std::fmt::Display| match name {
        Some(name) => fail(format!("cannot create snapshot '{name}': {why}{none}")),
        None => fail(format!("cannot create snapshots : {why}{none}")),
    };
    let pool = node.imported.name();
    if names.iter().any(|n| n.split(['/', '@']).next() != Some(pool)) {
        let why = ChangeError::Crosses("multiple snapshots of same fs not allowed");
        return failed(None, &why);
    }
    let changes = match changes(&node.imported, ctx) {
        Ok(changes) => changes,
        Err(why) => return failed(names.into_iter().next(), &why),
    };
    match changes.snapshot(&NewSnapshot { names: names.clone(), props }) {
        Ok(()) => {
            node.imported.mounts.snapshots_changed(&names);
            Ok(0)
        }
        Err((name, e)) => failed(name, &e),
    }
}
