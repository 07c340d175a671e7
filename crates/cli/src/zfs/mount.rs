//! `zfs mount` and `zfs unmount` (`zfs_do_mount`, `zfs_do_unmount`).
//!
//! `zfs mount -a` replays the intent logs of all file systems that it is about to mount, and then mounts one after the other:
//! what fails is said, and the others are mounted. `zfs unmount -a` leaves alone what must be mounted by name
//! (`canmount=noauto`) or belongs to mount(8) (`mountpoint=legacy`).

mod progress;

use crate::context::Context;
use crate::json::document;
use crate::keys::{self, LoadKey};
use crate::mounts::many::unmount_each;
use crate::mounts::moving::remount;
use crate::mounts::table::Way;
use crate::mounts::{Directory, How, Listed, NotMounted, mount_one, mount_or_say, mountable};
use crate::options::{Spec, commas, parse, parse_with_long};
use crate::pools::{Change, Imported, PoolTable};
use crate::replay;
use crate::zfs::select::{Kinds, Node, mounted, mounted_of, open};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_dsl::Dataset;
use progress::Progress;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const MOUNT: Spec = Spec { short: "aRjlvo:Of", refused: "", refused_long: &[] };
const UNMOUNT: Spec = Spec { short: "afu", refused: "", refused_long: &[] };

/// Runs `zfs mount`.
pub fn mount(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse_with_long(args, MOUNT, &[("json", 'j')])?;
    let mut how = How::default();
    let (mut all, mut below, mut verbose, mut json) = (false, false, false, false);
    for opt in &parsed.options {
        match opt.letter {
            'a' => all = true,
            'R' => below = true,
            'j' => json = true,
            'O' => how.overlay = true,
            'f' => how.force = true,
            'o' if opt.value.is_empty() => return usage("empty mount options (-o) specified"),
            'o' => how.options.extend(commas(&opt.value)),
            'l' => how.load_key = true,
            _ => verbose = true,
        }
    }
    let names = parsed.names();
    match names.as_slice() {
        [_, ..] if all || json => usage("too many arguments"),
        [] if json && (all || below || !how.options.is_empty()) => {
            usage("-j lists what is mounted, and cannot be combined with what mounts")
        }
        [] if json => list_json(ctx),
        [] if below => usage("no dataset provided"),
        names if all || below => {
            tell_without_effect(&how, ctx);
            mount_many(names, &how, verbose, ctx)
        }
        [] if !how.options.is_empty() => usage("missing filesystem argument (specify -a for all)"),
        [] => list(ctx),
        [name] => {
            tell_without_effect(&how, ctx);
            mount_named(name, &how, ctx)
        }
        _ => usage("too many arguments"),
    }
}

/// Mount options that ask for something and change nothing here, with the reason. mount(8) passes them on in silence.
const WITHOUT_EFFECT: [(&str, &str); 4] = [
    ("mand", "there are no mandatory locks"),
    ("nbmand", "there are no mandatory locks"),
    ("noacl", "the property acltype says whether there are access control lists"),
    ("iversion", "versions of files are not kept"),
];

fn tell_without_effect(how: &How, ctx: &mut Context) {
    for (name, why) in WITHOUT_EFFECT {
        if how.options.iter().any(|option| option == name) {
            ctx.complain(format_args!("warning: mount option '{name}' has no effect: {why}"));
        }
    }
}

/// What is mounted, as `zfs mount` without arguments shows it.
fn list(ctx: &mut Context) -> Outcome {
    for Listed { dataset, mountpoint } in mounted(ctx).map_err(Stop::Fail)? {
        writeln!(ctx.out, "{dataset:<30}  {}", mountpoint.display())?;
    }
    Ok(0)
}

/// The same as JSON.
fn list_json(ctx: &mut Context) -> Outcome {
    let mut entries = Map::new();
    for Listed { dataset, mountpoint } in mounted(ctx).map_err(Stop::Fail)? {
        let mut entry = Map::new();
        entry.insert("filesystem".into(), dataset.as_str().into());
        entry.insert("mountpoint".into(), mountpoint.to_string_lossy().into());
        entries.insert(dataset, Value::Object(entry));
    }
    writeln!(ctx.out, "{}", document("zfs mount", "datasets", entries)?)?;
    Ok(0)
}

fn mount_many(names: &[String], how: &How, verbose: bool, ctx: &mut Context) -> Outcome {
    let pools = ctx.pools.clone();
    let mut roots = Vec::new();
    if names.is_empty() {
        for imported in pools.all() {
            match imported.pool().dsl().root() {
                Ok(root) => roots.push((Arc::clone(&imported), root)),
                Err(e) => return fail(format!("cannot open '{}': {e}", imported.name())),
            }
        }
    }
    for name in names {
        match open(ctx, name, Kinds::FILESYSTEM) {
            Ok(node) => roots.push((node.imported, node.dataset)),
            Err(message) => return usage(message),
        }
    }
    let (mut todo, mut keys_loaded) = (Vec::new(), true);
    for (imported, root) in roots {
        let found = mountable(&imported, &root, ctx);
        if how.load_key {
            keys_loaded &= keys::load_for(&imported, &found, &LoadKey::default(), ctx);
        }
        todo.extend(found.into_iter().map(|d| (Arc::clone(&imported), d)));
    }
    let mut progress = Progress::of(todo.len(), Instant::now());
    let mut good = keys_loaded;
    // One pool after the other: the rest do not wait for one that hangs.
    for each in todo.chunk_by(|a, b| Arc::ptr_eq(&a.0, &b.0)) {
        let Some((imported, _)) = each.first() else { continue };
        let _change = pools.change(imported.name());
        if !pools.has(imported) {
            continue;
        }
        // Some may have gone meanwhile.
        let pool = imported.pool();
        let is_there = |d: &&Dataset| !matches!(pool.dsl().find(&d.name), Ok(None));
        let datasets: Vec<Dataset> =
            each.iter().map(|(_, d)| d).filter(is_there).cloned().collect();
        replay::before_mounting(imported, &datasets, false, how, ctx);
        for d in &datasets {
            if ctx.cancelled() {
                return Ok(1);
            }
            good &= mount_or_say(imported, d, how, ctx);
            if verbose {
                progress.advance(Instant::now(), ctx.out.raw())?;
            }
        }
    }
    Ok(i32::from(!good))
}

fn mount_named(name: &str, how: &How, ctx: &mut Context) -> Outcome {
    let pools = ctx.pools.clone();
    if how.load_key
        && let Ok(node) = open(ctx, name, Kinds::FILESYSTEM)
    {
        let all = std::slice::from_ref(&node.dataset);
        if !keys::load_for(&node.imported, all, &LoadKey::default(), ctx) {
            return Err(Stop::Said(1));
        }
    }
    let _change = pools.change(name);
    let node = match open(ctx, name, Kinds::FILESYSTEM) {
        Ok(node) => node,
        Err(message) => return fail(message),
    };
    if how.options.iter().any(|o| o == "remount") {
        return match remount(&node.imported, &node.dataset, &how.options, ctx) {
            Ok(good) => Ok(i32::from(!good)),
            Err(why) => fail(format!("cannot mount '{name}': {why}")),
        };
    }
    let Node { imported, dataset, .. } = &node;
    replay::before_mounting(imported, std::slice::from_ref(dataset), true, how, ctx);
    match mount_one(imported, dataset, true, how, ctx) {
        Ok(()) => Ok(0),
        Err(NotMounted::NotMeant(message) | NotMounted::Failed(message)) => fail(message),
    }
}

/// Runs `zfs unmount`.
pub fn unmount(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, UNMOUNT)?;
    let has = |letter| parsed.options.iter().any(|o| o.letter == letter);
    let (all, force, unload) = (has('a'), has('f'), has('u'));
    let names = parsed.names();
    let pools = ctx.pools.clone();
    match names.as_slice() {
        [] if all => {
            let by = ctx.agent();
            // Pools may be mounted inside each other.
            let everything = pools.all();
            let _change = pools.change_all(everything.iter().map(|pool| pool.name()), None);
            let way = Way { force, directory: Directory::Kept, by: &*by };
            let before: Vec<Vec<Listed>> = everything.iter().map(|p| p.mounts.list()).collect();
            let stay = unmount_each(&everything, &is_automatic, way);
            let mut good = stay.is_empty();
            stay.into_iter().for_each(|e| ctx.complain(e));
            for (imported, before) in everything.iter().zip(before).filter(|_| unload) {
                good &= unload_keys(imported, &names_of(before), ctx);
            }
            Ok(i32::from(!good))
        }
        [] => usage("missing filesystem argument"),
        [name] if !all => unmount_named(name, (force, unload), ctx),
        _ => usage("too many arguments"),
    }
}

/// Whether `zfs unmount -a` is about a dataset: it leaves alone what has to be mounted by name.
fn is_automatic(imported: &Imported, dataset: &str) -> bool {
    let pool = imported.pool();
    let Ok(Some(dataset)) = pool.dsl().find(dataset) else { return true };
    let is = |property: &str, value: &str| {
        pool.dsl().get(&dataset, property).ok().flatten().is_some_and(|v| v.exact == value)
    };
    !is("mountpoint", "legacy") && !is("canmount", "noauto")
}

/// Whether a file system has this `mountpoint`; not if that is not known.
fn mountpoint_is(imported: &Imported, dataset: &str, value: &str) -> bool {
    let pool = imported.pool();
    let Ok(Some(dataset)) = pool.dsl().find(dataset) else { return false };
    let mountpoint = pool.dsl().get(&dataset, "mountpoint").ok().flatten();
    mountpoint.is_some_and(|v| v.exact == value)
}

/// Takes the pool of what is mounted at a path for this command alone, and tells what that is by then. `None`: nothing is.
fn change_at<'a>(
    path: &Path,
    pools: &'a PoolTable,
    ctx: &Context,
) -> Result<Option<(Change<'a>, String)>, Stop> {
    // Of several it is the one on top.
    let on_top = |here: Vec<Listed>| here.into_iter().rfind(|m| m.mountpoint == path);
    loop {
        let Some(seen) = on_top(mounted(ctx).map_err(Stop::Fail)?) else { return Ok(None) };
        let change = pools.change(&seen.dataset);
        let own: Vec<_> = pools.all().into_iter().filter(|p| change.has(p.name())).collect();
        if let Some(m) = on_top(mounted_of(&own, ctx).map_err(Stop::Fail)?) {
            return Ok(Some((change, m.dataset)));
        }
    }
}

/// The datasets that are listed, each once, those above others before them.
fn names_of(listed: impl IntoIterator<Item = Listed>) -> BTreeSet<String> {
    listed.into_iter().map(|m| m.dataset).collect()
}

/// Unloads the keys of the encryption roots among datasets that were unmounted (`MS_CRYPT`). Those that a key is in use for, still,
/// are mounted again. False: there is one, and why was said.
fn unload_keys(imported: &Imported, were: &BTreeSet<String>, ctx: &mut Context) -> bool {
    let pool = imported.pool();
    let dsl = pool.dsl();
    let stays = names_of(imported.mounts.list());
    let gone = were.difference(&stays).filter_map(|name| dsl.find(name).ok().flatten());
    let gone: Vec<(Dataset, Option<String>)> = gone
        .map(|dataset| {
            let root = dsl.encryption_root(&dataset).ok().flatten();
            (dataset, root)
        })
        .collect();
    let mut good = true;
    for (root, of) in &gone {
        let is_loaded = || matches!(dsl.is_key_loaded(root), Ok(Some(true)));
        if of.as_ref() != Some(&root.name) || !is_loaded() || keys::unload(imported, root, ctx) {
            continue;
        }
        good = false;
        for (dataset, _) in gone.iter().filter(|(_, other)| other == of) {
            mount_or_say(imported, dataset, &How::default(), ctx);
        }
    }
    good
}

fn unmount_named(name: &str, (force, unload): (bool, bool), ctx: &mut Context) -> Outcome {
    let (by, pools) = (ctx.agent(), ctx.pools.clone());
    let (_change, dataset, at) = match name.starts_with('/') {
        false => (pools.change(name), name.to_string(), None),
        true => {
            let path = by.canonicalize(name.as_ref()).unwrap_or_else(|_| name.into());
            let Some((change, dataset)) = change_at(&path, &pools, ctx)? else {
                return fail(format!("cannot unmount '{name}': not a ZFS filesystem"));
            };
            (change, dataset, Some(path))
        }
    };
    let node = match open(ctx, &dataset, Kinds::FILESYSTEM.with(Kinds::SNAPSHOT)) {
        Ok(node) => node,
        Err(message) => return fail(message),
    };
    if mountpoint_is(&node.imported, &dataset, "legacy") {
        return fail(format!(
            "cannot unmount '{dataset}': legacy mountpoint\n\
             use umount(8) to unmount this filesystem"
        ));
    }
    let own = std::slice::from_ref(&node.imported);
    let here = mounted_of(own, ctx).map_err(Stop::Fail)?;
    // What somebody has bound elsewhere is theirs.
    if here.iter().all(|m| m.dataset != dataset) || !node.imported.mounts.has(&dataset) {
        return fail(format!("cannot unmount '{dataset}': not currently mounted"));
    }
    let way = Way { force, directory: Directory::Kept, by: &*by };
    // What mount(8) has mounted is left to umount(8).
    let below = |name: &str| !mountpoint_is(&node.imported, name, "legacy");
    let inside = |name: &str| name.strip_prefix(&dataset).is_some_and(|r| r.starts_with('/'));
    let mut were = names_of(node.imported.mounts.list());
    were.retain(|name| *name == dataset || inside(name));
    match node.imported.mounts.unmount(&dataset, at.as_deref(), &below, way) {
        Ok(()) if unload => Ok(i32::from(!unload_keys(&node.imported, &were, ctx))),
        Ok(()) => Ok(0),
        Err((away, stays)) => {
            // All of them, or none (`changelist_postfix`).
            away.back(&node.imported, ctx);
            fail(stays.to_string())
        }
    }
}
