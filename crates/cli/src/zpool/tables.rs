//! `zpool ddtprune` and `zpool prefetch` (`zpool_do_ddt_prune`, `zpool_do_prefetch`): deduplication tables pruned; tables read
//! into the cache.

use crate::context::Context;
use crate::options::{Spec, parse};
use crate::pools::reason;
use crate::zpool::select::open;
use cenote_command::outcome::{Outcome, Stop, usage};
use cenote_engine::Prune;
use cenote_pool::{brt, ddt};
use std::ffi::OsString;

const PRUNE: Spec = Spec { short: "d:p:", refused: "", refused_long: &[] };
const PREFETCH: Spec = Spec { short: "t:", refused: "", refused_long: &[] };
const DAY: u64 = 24 * 60 * 60;

/// Runs `zpool ddtprune`.
pub fn prune(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, PRUNE)?;
    let mut what = None;
    for option in &parsed.options {
        let number = option.text().parse::<u64>().ok().filter(|n| *n > 0);
        what = Some(match (option.letter, what) {
            ('d', Some(Prune::Percent(_))) => return usage("-d cannot be combined with -p option"),
            ('p', Some(Prune::Age(_))) => return usage("-p cannot be combined with -d option"),
            ('d', _) => match number {
                Some(days) => Prune::Age(days.saturating_mul(DAY)),
                None => return usage("invalid days value"),
            },
            _ => match number.filter(|n| *n <= 100) {
                Some(percent) => Prune::Percent(percent),
                None => return usage("invalid percentage value"),
            },
        });
    }
    let names = parsed.names();
    let (what, name) = match (what, names.as_slice()) {
        (None, _) => return usage("missing amount option (-d|-p <value>)"),
        (_, []) => return usage("missing pool argument"),
        (Some(what), [name]) => (what, name),
        _ => return usage("too many arguments"),
    };
    let imported = open(ctx, name).map_err(Stop::Fail)?;
    let cannot = |why: String| Stop::Fail(format!("cannot prune dedup table on '{name}': {why}"));
    let engine = imported.writable().map_err(cannot)?;
    engine.prune_dedup(what).map_err(|e| cannot(reason(&e)))?;
    ctx.changed(&imported);
    Ok(0)
}

/// Runs `zpool prefetch`.
pub fn prefetch(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, PREFETCH)?;
    let kind = parsed.options.last().map(|option| option.text());
    let names = parsed.names();
    let name = match names.as_slice() {
        [] => return usage("missing pool name argument"),
        [name] => name,
        _ => return usage("too many arguments"),
    };
    let imported = open(ctx, name).map_err(Stop::Fail)?;
    let pool = imported.pool();
    let kinds: &[&str] = match kind.as_deref() {
        None => &["ddt", "brt"],
        Some("ddt") => &["ddt"],
        Some("brt") => &["brt"],
        Some(_) => return usage("unsupported prefetch type"),
    };
    for kind in kinds {
        let mos = pool.mos();
        let vdevs = pool.store().vdevs().root().children().len() as u64;
        let read = match *kind {
            "ddt" => ddt::warm(mos),
            _ => brt::warm(mos, vdevs),
        };
        read.map_err(|e| Stop::Fail(format!("cannot prefetch {kind} in '{name}': {e}")))?;
    }
    Ok(0)
}
