//! `zpool upgrade` (`zpool_do_upgrade`): features that are not enabled, and enabling them.
//!
//! A pool lacks a feature if this program can write it, the pool's `compatibility` allows it, and it is not enabled
//! (`upgrade_enable_all`). An upgrade enables those that are meant to come with one; others are listed with a mark
//! and take `zpool set`. Without operands pools that lack features are listed, with `-v` all features that are
//! supported.
//!
//! A pool of a version before feature flags is first taken to the version that is asked for, which is the one with feature
//! flags if no other is given (`upgrade_version`). Such pools are listed before those that lack features. A pool that is
//! imported read-only, as those are that are too old to be written to, is not upgraded.
//!
//! A pool that fails is reported; the others follow, and the exit code is then 1.

use crate::access::may_change;
use crate::context::Context;
use crate::options::{Spec, parse};
use crate::pools::Imported;
use crate::zpool::select::select;
use crate::zpool::set::{compatibility_set, set};
use cenote_command::outcome::{Outcome, Stop, usage};
use cenote_format::features::{FEATURES, Feature};
use cenote_pool::features::{expected_features, writable};
use cenote_pool::props::PropChange;
use cenote_pool::version::{self, FEATURES as VERSION_FEATURES};
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "avV:", refused: "", refused_long: &[] };

/// Runs `zpool upgrade`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let has = |letter| parsed.options.iter().any(|o| o.letter == letter);
    let (all, versions) = (has('a'), has('v'));
    let names = parsed.names();
    let mut version = None;
    for opt in parsed.options.iter().filter(|o| o.letter == 'V') {
        version = match opt.text().parse().ok() {
            Some(v) if version::is_supported(v) => Some(v),
            _ => return usage(format!("invalid version '{}'", opt.text())),
        };
    }
    if version.is_some() && !all && names.is_empty() {
        return usage("-V option is incompatible with other arguments");
    }
    if versions && (all || !names.is_empty()) {
        return usage("-v option is incompatible with other arguments");
    }
    if all && !names.is_empty() {
        return usage("-a option should not be used along with a pool name");
    }
    write!(ctx.out, "This system supports ZFS pool feature flags.\n\n")?;
    if versions {
        return print_features(ctx);
    }
    if !all && names.is_empty() {
        return list(ctx);
    }
    let version = version.unwrap_or(VERSION_FEATURES);
    let (pools, mut good) = select(ctx, &names);
    let mut nothing = true;
    for imported in pools {
        match upgrade(&imported, version, all, ctx) {
            Ok(changed) => nothing &= !changed,
            Err(Stop::Fail(message)) => {
                ctx.complain(message);
                (good, nothing) = (false, false);
            }
            Err(stop) => return Err(stop),
        }
    }
    if all && nothing && good {
        nothing_done(version, ctx)?;
    }
    Ok(i32::from(!good))
}

/// Upgrades a pool (`upgrade_one`; with `all`, `upgrade_cb`). Whether it was changed.
fn upgrade(
    imported: &Arc<Imported>,
    wanted: u64,
    all: bool,
    ctx: &mut Context,
) -> Result<bool, Stop> {
    let (now, name) = (imported.pool().version(), imported.name());
    if now > wanted || (now == wanted && wanted < VERSION_FEATURES) {
        match now > wanted {
            _ if all => {}
            true => write!(
                ctx.out,
                "Pool '{name}' is already formatted using more current version '{now}'.\n\n"
            )?,
            false => {
                write!(ctx.out, "Pool '{name}' is already formatted using version {now}.\n\n")?;
            }
        }
        return Ok(false);
    }
    if now < wanted {
        take_to(imported, wanted, ctx)?;
    }
    let enabled = if wanted < VERSION_FEATURES { 0 } else { enable_all(imported, ctx)? };
    let changed = now < wanted || enabled > 0;
    if changed {
        writeln!(ctx.out)?;
        imported.record(ctx);
    } else if !all {
        writeln!(
            ctx.out,
            "Pool '{name}' already has all supported and requested features enabled."
        )?;
    }
    Ok(changed)
}

/// Takes a pool to a later version (`upgrade_version`).
fn take_to(imported: &Arc<Imported>, wanted: u64, ctx: &mut Context) -> Result<(), Stop> {
    let (pool, name) = (imported.pool(), imported.name());
    let cannot = |why| Stop::Fail(format!("cannot upgrade '{name}': {why}"));
    may_change(ctx).map_err(cannot)?;
    if pool.config().str("compatibility") == Some("legacy") {
        let why = "Upgrade not performed because 'compatibility' property set to 'legacy'.";
        return Err(Stop::Fail(why.into()));
    }
    imported.set(vec![PropChange::Version(wanted)]).map_err(cannot)?;
    let to = match wanted {
        VERSION_FEATURES => "feature flags".to_string(),
        wanted => format!("version {wanted}"),
    };
    writeln!(ctx.out, "Successfully upgraded '{name}' from version {} to {to}.", pool.version())?;
    Ok(())
}

/// Says that no pool needed an upgrade to `version`.
fn nothing_done(version: u64, ctx: &mut Context) -> std::io::Result<()> {
    match version {
        VERSION_FEATURES => write!(
            ctx.out,
            "All pools are already formatted using feature flags.\n\n\
             Every feature flags pool already has all supported and requested features \
             enabled.\n"
        ),
        version => {
            writeln!(ctx.out, "All pools are already formatted with version {version} or higher.")
        }
    }
}

/// A feature that a pool does not have.
struct Missing {
    feature: &'static Feature,
    /// An upgrade enables it; otherwise `zpool set` does.
    upgrade: bool,
}

/// The features that a pool does not have, and may have according to its property `compatibility`.
fn missing(imported: &Imported) -> Result<Vec<Missing>, Stop> {
    let pool = imported.pool();
    let compatibility = pool.config().str("compatibility").unwrap_or_default();
    let allowed = compatibility_set(compatibility)?;
    let expected = expected_features(Some(compatibility)).map_err(Stop::Fail)?;
    let may_have = |f: &&Feature| writable(f) && allowed(f.name);
    let disabled = FEATURES.iter().filter(|f| pool.features().get(f.guid).is_none());
    Ok(disabled
        .filter(may_have)
        .map(|f| Missing { feature: f, upgrade: f.upgrade && expected.contains(f.name) })
        .collect())
}

/// Enables what is missing and asked for; returns how many that were.
fn enable_all(imported: &Arc<Imported>, ctx: &mut Context) -> Result<usize, Stop> {
    let mut count = 0usize;
    let applied = missing(imported)?.into_iter().filter(|m| m.upgrade);
    for Missing { feature, .. } in applied {
        may_change(ctx).map_err(|why| {
            Stop::Fail(format!("cannot set property for '{}': {why}", imported.name()))
        })?;
        set(imported, &format!("feature@{}", feature.name), "enabled")?;
        if count == 0 {
            writeln!(ctx.out, "Enabled the following features on '{}':", imported.name())?;
        }
        writeln!(ctx.out, "  {}", feature.name)?;
        count = count.saturating_add(1);
    }
    Ok(count)
}

/// What could be enabled.
fn list(ctx: &mut Context) -> Outcome {
    let pools = ctx.pools.all();
    let older: Vec<_> = pools.iter().filter(|p| p.pool().version() < VERSION_FEATURES).collect();
    match older.is_empty() {
        true => write!(ctx.out, "All pools are formatted using feature flags.\n\n")?,
        false => write!(ctx.out, "{OLDER}")?,
    }
    for imported in &older {
        writeln!(ctx.out, "{:2}   {}", imported.pool().version(), imported.name())?;
    }
    if !older.is_empty() {
        write!(ctx.out, "\nUse 'zpool upgrade -v' for a list of available legacy versions.\n")?;
    }
    let (mut first, mut good) = (true, true);
    for imported in pools.iter().filter(|p| p.pool().version() >= VERSION_FEATURES) {
        let missing = match missing(imported) {
            Ok(missing) => missing,
            Err(Stop::Fail(message)) => {
                ctx.complain(message);
                good = false;
                continue;
            }
            Err(stop) => return Err(stop),
        };
        if missing.is_empty() {
            continue;
        }
        if std::mem::take(&mut first) {
            write!(ctx.out, "{DISABLED}")?;
        }
        writeln!(ctx.out, "{}", imported.name())?;
        for Missing { feature, upgrade } in missing {
            let mark = if upgrade { "" } else { "(*)" };
            writeln!(ctx.out, "      {}{mark}", feature.name)?;
        }
    }
    match first {
        true if !good => {}
        true => writeln!(
            ctx.out,
            "Every feature flags pool has all supported and requested features enabled."
        )?,
        false => writeln!(ctx.out)?,
    }
    Ok(i32::from(!good))
}

const OLDER: &str = "The following pools are formatted with legacy version numbers and can\n\
    be upgraded to use feature flags.  After being upgraded, these pools\n\
    will no longer be accessible by software that does not support feature\n\
    flags.\n\n\
    Note that setting a pool's 'compatibility' feature to 'legacy' will\n\
    inhibit upgrades.\n\n\
    VER  POOL\n\
    ---  ------------\n";

const DISABLED: &str = "\n\
    Some supported features are not enabled on the following pools. Once a\n\
    feature is enabled the pool may become incompatible with software\n\
    that does not support the feature. See zpool-features(7) for details.\n\n\
    Note that the pool 'compatibility' feature can be used to inhibit\n\
    feature upgrades.\n\n\
    Features marked with (*) are not applied automatically on upgrade, and\n\
    must be applied explicitly with zpool-set(7).\n\n\
    POOL  FEATURE\n\
    ---------------\n";

/// `-v`: the features that this program can write.
fn print_features(ctx: &mut Context) -> Outcome {
    write!(ctx.out, "The following features are supported:\n\nFEAT DESCRIPTION\n{:-<61}\n", "")?;
    for feature in FEATURES.iter().filter(|f| writable(f)) {
        let note = if feature.readonly_compatible { " (read-only compatible)" } else { "" };
        writeln!(ctx.out, "{:<37}{note}\n     {}", feature.name, feature.description)?;
    }
    write!(
        ctx.out,
        "\nThe following legacy versions are also supported:\n\nVER  DESCRIPTION\n---  {:-<56}\n",
        ""
    )?;
    for (number, what) in (1..).zip(version::LEGACY) {
        writeln!(ctx.out, " {number:<3} {what}")?;
    }
    write!(
        ctx.out,
        "\nFor more information on a particular version, including supported releases,\n\
         see the ZFS Administration Guide.\n\n"
    )?;
    Ok(0)
}
