//! `zpool add` (`zpool_do_add`).

use crate::cachefile;
use crate::context::Context;
use crate::options::{Spec, parse_with_long};
use crate::pools::reason;
use crate::vdevs::style;
use crate::zpool::create::{ashift, in_use};
use crate::zpool::layout;
use crate::zpool::select::open;
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_dmu::outside::Chance;
use cenote_engine::create::{self, CreateSpec, Force, Prepared, SystemDevices, prepare};
use cenote_format::nvlist::NvList;
use cenote_pool::config;
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "fgLno:P", refused: "", refused_long: &[] };
/// Parts of `-f`, by letters that are no options.
const LONG: [(&str, char); 3] =
    [("allow-in-use", 'I'), ("allow-replication-mismatch", 'R'), ("allow-ashift-mismatch", 'A')];

/// Runs `zpool add`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse_with_long(args, SPEC, &LONG)?;
    let letters: String = parsed.options.iter().map(|o| o.letter).collect();
    let may = |letter| letters.contains(['f', letter]);
    let force = Force { in_use: may('I'), replication: may('R') };
    let mut asked = None;
    for opt in parsed.options.iter().filter(|o| o.letter == 'o') {
        match opt.text().split_once('=') {
            None => return usage("missing '=' for -o option"),
            Some(("ashift", text)) if asked.is_none() => asked = Some(text.to_string()),
            Some(("ashift", _)) => return usage("property 'ashift' specified multiple times"),
            Some(_) => return usage(""),
        }
    }
    let names = parsed.names();
    let (name, vdevs) = match names.split_first() {
        None => return usage("missing pool name argument"),
        Some((_, [])) => return usage("missing vdev specification"),
        Some((name, vdevs)) => (name, vdevs),
    };
    if letters.contains('f') && letters.contains(['I', 'R', 'A']) {
        return usage(
            "'-f' option is not allowed with '--allow-replication-mismatch', \
             '--allow-ashift-mismatch', or '--allow-in-use'",
        );
    }
    let pools = Arc::clone(&ctx.pools);
    open(ctx, name).map_err(Stop::Fail)?;
    let layout = create::parse(vdevs).map_err(|e| Stop::Fail(e.to_string()))?;
    let devices = create::check_answers(&layout).map_err(|e| Stop::Fail(e.to_string()))?;
    let _change = pools.change_with([name], devices);
    let imported = open(ctx, name).map_err(Stop::Fail)?;
    let pool = imported.pool();
    // What the pool was made with is what is added to it, unless the user knows better.
    let ashift = match asked {
        Some(text) => ashift(&text)?,
        None => pool.get("ashift").and_then(|v| v.exact.parse().ok()).unwrap_or(0),
    };
    let spec = CreateSpec {
        name,
        layout: &layout,
        ashift,
        force,
        pool: Some(pool.config()),
        txg: pool.uberblock().txg.saturating_add(1),
        imported: &in_use(&pools),
        devices: &SystemDevices,
        chance: &Chance::default(),
    };
    let prepared = prepare(&spec).map_err(|e| Stop::Fail(e.to_string()))?;
    let nothing = NvList::default();
    let root = pool.config().list("vdev_tree").unwrap_or(&nothing);
    if letters.contains('n') {
        let has = (root, pool.caches(), pool.spares());
        let text = layout::of_addition(name, has, &prepared, &style(&letters, ctx));
        write!(ctx.out, "would update '{name}' to the following configuration:\n\n{text}")?;
        return Ok(0);
    }
    let cannot = |why: String| Stop::Fail(format!("cannot add to '{name}': {why}"));
    let engine = imported.writable().map_err(cannot)?;
    if !may('A') && sectors_differ(root, &prepared) {
        return fail(format!(
            "cannot add to '{name}': adding devices with different physical sector sizes is not \
             allowed"
        ));
    }
    engine.add(prepared).map_err(|e| cannot(reason(&e)))?;
    ctx.changed(&imported);
    cachefile::update(&ctx.pools);
    Ok(0)
}

/// Whether new vdevs have an `ashift` other than the one that all vdevs for data have.
fn sectors_differ(root: &NvList, prepared: &Prepared) -> bool {
    let ashift = |top: &NvList| config::number(top, "ashift");
    let data = |top: &&NvList| {
        let kind = top.str("type").unwrap_or_default();
        !config::flag(top, "is_log")
            && top.str("alloc_bias").is_none()
            && !matches!(kind, "hole" | "indirect")
    };
    let mut old = config::children(root).iter().filter(data).map(ashift);
    let Some(first) = old.next() else { return false };
    let new = config::children(&prepared.root)
        .iter()
        .filter(|top| prepared.new_tops.contains(&config::number(top, "id")));
    old.all(|a| a == first) && new.map(ashift).any(|a| a != first)
}
