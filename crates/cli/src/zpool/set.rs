//! `zpool set` (`zpool_do_set`).

use crate::cachefile::{self, Setting};
use crate::context::Context;
use crate::pools::{Imported, reason};
use crate::zpool::get::ROOT;
use crate::zpool::properties::refuse_unsupported;
use crate::zpool::select::{IN_THIS_POOL, find_vdev, kind, open};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_dsl::DatasetKind;
use cenote_format::features::{FEATURES, by_name};
use cenote_pool::compat;
use cenote_pool::host::system_hostid;
use cenote_pool::props::{self, PropChange, PropContext, When};
use cenote_pool::vdev_props;
use std::ffi::OsString;
use std::sync::Arc;

/// Exit code where a pool or vdev is not there (`EINVAL`).
pub const NOT_A_POOL: i32 = 22;

/// Runs `zpool set`, also as `zpool name=value pool`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let args: Vec<String> = args.iter().map(|a| a.to_string_lossy().into_owned()).collect();
    if let Some(option) = args.first().and_then(|a| a.strip_prefix('-')) {
        let letter = option.chars().next().map(String::from).unwrap_or_default();
        return usage(format!("invalid option '{letter}'"));
    }
    let (setting, name, vdev) = match args.as_slice() {
        [] => return usage("missing property=value argument"),
        [_] => return usage("missing pool name"),
        [setting, name] => (setting, name, None),
        [setting, name, vdev] => (setting, name, Some(vdev)),
        _ => return usage("too many pool names"),
    };
    let Some((property, value)) = setting.split_once('=') else {
        return usage("missing value in property=value argument");
    };
    let Ok(imported) = open(ctx, name) else {
        ctx.complain(format_args!("cannot open '{name}': is not a pool"));
        return Ok(NOT_A_POOL);
    };
    if let Some(vdev) = vdev {
        if !["root", ROOT].contains(&vdev.as_str()) && kind(ctx, name, vdev) != IN_THIS_POOL {
            ctx.complain(format_args!("cannot find '{vdev}' in '{name}': device not in pool"));
            return Ok(NOT_A_POOL);
        }
        set_of_vdev(&imported, vdev, property, value).map_err(|why| {
            Stop::Fail(format!("cannot set property {property} for {vdev} on {name}: {why}"))
        })?;
        if let Some(why) = vdev_props::without_effect(property) {
            let what = format!("property '{property}' is kept, but has no effect");
            ctx.complain(format_args!("warning: {what}: {why}"));
        }
        ctx.changed(&imported);
        return Ok(0);
    }
    check_compatibility(&imported, property, value, ctx)?;
    set(&imported, property, value)?;
    ctx.changed(&imported);
    cachefile::update(&ctx.pools);
    Ok(0)
}

/// Sets a property of a vdev. The error is what comes after `cannot …: `.
fn set_of_vdev(imported: &Imported, name: &str, property: &str, value: &str) -> Result<(), String> {
    let value = vdev_props::parse(property, value)?;
    let pool = imported.pool();
    let vdev = match name {
        "root" | ROOT => Some(Arc::clone(pool.store().vdevs().root())),
        name => find_vdev(imported, name),
    };
    let vdev = vdev.ok_or("operation not supported on this type of vdev")?;
    let zap = vdev_props::zap_of(&pool, &vdev).ok_or("this vdev has no place for properties")?;
    let engine = imported.writable()?;
    engine.set_vdev_property((vdev.guid(), zap), property, value).map_err(|e| reason(&e))
}

/// Sets a property of a pool; what was done for it.
pub fn set(imported: &Imported, property: &str, value: &str) -> Result<PropChange, Stop> {
    let cannot =
        |why: String| Stop::Fail(format!("cannot set property for '{}': {why}", imported.name()));
    let pool = imported.pool();
    let dataset = |name: &str| {
        let found = pool.dsl().find(name).ok()??;
        if found.kind == DatasetKind::Bookmark {
            return None;
        }
        // A snapshot is of the kind of its head.
        let kind = pool.dsl().kind_of_head(&found).ok()?;
        Some((found.ds_obj, kind == DatasetKind::Filesystem))
    };
    let context = PropContext {
        when: When::Set,
        pool: imported.name(),
        version: pool.version(),
        hostid: system_hostid(),
        dataset: &dataset,
    };
    let change = props::parse(property, value, &context).map_err(|e| cannot(e.to_string()))?;
    refuse_unsupported(&change).map_err(cannot)?;
    if let PropChange::Memory("cachefile", value) = &change {
        imported.set_cachefile(Setting::of(value).map_err(cannot)?);
        return Ok(change);
    }
    let engine = Arc::clone(imported.writable().map_err(cannot)?);
    imported.set(vec![change.clone()]).map_err(cannot)?;
    engine.expand_if_wanted().map_err(|e| cannot(reason(&e)))?;
    Ok(change)
}

/// What a pool's compatibility set has to say to a new one, and to a feature.
fn check_compatibility(
    imported: &Arc<Imported>,
    property: &str,
    value: &str,
    ctx: &mut Context,
) -> Result<(), Stop> {
    let (pool, name) = (imported.pool(), imported.name());
    if property == "compatibility" {
        let wanted = compatibility_set(value)?;
        let unwanted =
            FEATURES.iter().any(|f| pool.features().get(f.guid).is_some() && !wanted(f.name));
        if unwanted {
            ctx.complain(format_args!(
                "Warning: one or more features already enabled on pool '{name}'\n\
                 are not present in this compatibility set."
            ));
        }
    }
    let feature = property.strip_prefix("feature@").and_then(by_name);
    if let Some(feature) = feature.filter(|_| value == "enabled") {
        let cannot = format!("Error: cannot enable feature '{}' on pool '{name}'", feature.name);
        let set = pool.config().str("compatibility").unwrap_or_default();
        let Some(wanted) = compat::features(set) else {
            return fail(format!(
                "{cannot}\nbecause the pool's 'compatibility' property cannot be parsed."
            ));
        };
        if !wanted.contains(feature.name) {
            return fail(format!(
                "{cannot}\nas it is not specified in this pool's current compatibility set.\n\
                 Consider setting 'compatibility' to a less restrictive set, or to 'off'."
            ));
        }
    }
    Ok(())
}

/// Whether features are in the set of a value of `compatibility`.
pub fn compatibility_set(value: &str) -> Result<impl Fn(&str) -> bool, Stop> {
    let Some(set) = compat::features(value) else {
        let bad = value.split(',').filter(|n| compat::features(n).is_none());
        let names: String = bad.map(|n| format!("{n} ")).collect();
        return fail(format!("Error: could not read/parse feature file(s): {names}"));
    };
    Ok(move |name: &str| set.contains(name))
}
