//! `zfs receive -A`: what an interrupted receive left is destroyed.

use super::super::change::changes;
use crate::context::Context;
use crate::zfs::select::{Kinds, open};
use cenote_command::outcome::{Outcome, Stop, fail};
use std::sync::Arc;

const HEADS: Kinds = Kinds::FILESYSTEM.with(Kinds::VOLUME);

pub(super) fn run(name: &str, ctx: &mut Context) -> Outcome {
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change();
    let node = open(ctx, name, HEADS).map_err(Stop::Fail)?;
    let pool = node.imported.pool();
    let cannot = |e: &dyn std::fmt::Display| Stop::Fail(format!("cannot destroy '{name}': {e}"));
    let clone = format!("{name}/{}", cenote_dsl::resume::CLONE);
    let there = pool.dsl().find(&clone).map_err(|e| cannot(&e))?.is_some();
    let token = pool.dsl().token_of(&node.dataset).map_err(|e| cannot(&e))?;
    if !there && (token.is_none() || !node.dataset.is_inconsistent()) {
        return fail(format!("'{name}' does not have any resumable receive state to abort"));
    }
    let changes = changes(&node.imported, ctx).map_err(|e| cannot(&e))?;
    let gone = if there { &clone } else { name };
    changes.destroy(gone).map_err(|e| cannot(&e))?;
    Ok(0)
}
