//! What `zpool iostat` reports on: all pools, some pools, or single vdevs, of one pool or of all.

use crate::context::Context;
use crate::options::interval_and_count;
use crate::pools::Imported;
use crate::zpool::select::{IN_THIS_POOL, guid_called, kind, open};
use cenote_command::outcome::{Stop, fail, usage};
use std::time::Duration;

/// Pools and vdevs by the names that the user gave.
#[derive(Debug, Default)]
pub struct Choice {
    /// The pools; empty: all.
    pub pools: Vec<String>,
    /// The vdevs; empty: whole pools are reported on.
    pub vdevs: Vec<String>,
}

impl Choice {
    /// The choice that the operands make.
    pub fn of(mut names: Vec<String>, ctx: &Context) -> Result<Choice, Stop> {
        let whole = names.iter().all(|name| open(ctx, name).is_ok());
        if whole {
            return Ok(Choice { pools: names, vdevs: Vec::new() });
        }
        if names.iter().all(|name| in_some_pool(name, ctx)) {
            return Ok(Choice { pools: Vec::new(), vdevs: names });
        }
        let first = names.remove(0);
        if open(ctx, &first).is_err() {
            return fail("Unable to parse pools/vdevs list.\n");
        }
        let kinds: Vec<&str> = names.iter().map(|name| kind(ctx, &first, name)).collect();
        if kinds.iter().all(|kind| *kind == IN_THIS_POOL) {
            return Ok(Choice { pools: vec![first], vdevs: names });
        }
        let mut text =
            format!("Expected either a list of pools, or list of vdevs in \"{first}\", but got:\n");
        for (name, kind) in names.iter().zip(kinds) {
            text += &format!("\t{name} ({kind})\n");
        }
        usage(text)
    }

    /// Guids of the vdevs of a pool that are chosen; `None`: the pool as a whole is.
    pub fn within(&self, imported: &Imported) -> Option<Vec<u64>> {
        let called = |name: &String| guid_called(imported, name);
        (!self.vdevs.is_empty()).then(|| self.vdevs.iter().filter_map(called).collect())
    }
}

fn in_some_pool(name: &str, ctx: &Context) -> bool {
    ctx.pools.all().iter().any(|imported| guid_called(imported, name).is_some())
}

/// Takes interval and count from the end of the operands. The guid of a vdev is neither, although it
/// is a number.
pub fn take_schedule(
    names: &mut Vec<String>,
    ctx: &Context,
) -> Result<(Option<Duration>, Option<u64>), Stop> {
    let is_guid = |name: &String| name.parse::<u64>().is_ok() && in_some_pool(name, ctx);
    let behind = names.iter().rposition(is_guid).map_or(0, |at| at.saturating_add(1));
    let mut last = names.split_off(behind);
    let schedule = interval_and_count(&mut last);
    names.extend(last);
    schedule
}
