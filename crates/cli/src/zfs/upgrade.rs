//! `zfs upgrade`: versions of file systems (`zfs_do_upgrade`). File systems of older versions are listed, and upgraded as far as their
//! pools allow.

use crate::context::Context;
use crate::options::{Spec, parse};
use crate::zfs::select::{Kinds, Node, Selection, select};
use crate::zfs::session::unrecorded;
use crate::zfs::set::said;
use cenote_command::outcome::{Outcome, usage};
use cenote_pool::version::needed_for_files;
use std::ffi::OsString;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "rvV:a", refused: "", refused_long: &[] };
/// The newest version of file systems (`ZPL_VERSION`).
const NEWEST: u64 = 5;

const VERSIONS: &str = "The following filesystem versions are supported:\n\n\
    VER  DESCRIPTION\n\
    ---  --------------------------------------------------------\n \
    1   Initial ZFS filesystem version\n \
    2   Enhanced directory entries\n \
    3   Case insensitive and filesystem user identifier (FUID)\n \
    4   userquota, groupquota properties\n \
    5   System attributes\n\n\
    For more information on a particular version, including supported releases,\n\
    see the ZFS Administration Guide.\n\n";

const OLDER: &str = "The following filesystems are out of date, and can be upgraded.  After being\n\
    upgraded, these filesystems (and any 'zfs send' streams generated from\n\
    subsequent snapshots) will no longer be accessible by older software versions.\n\n";

const NEWER: &str = "The following filesystems are formatted using a newer software version and\n\
    cannot be accessed on the current system.\n\n";

/// Runs `zfs upgrade`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let has = |letter| parsed.options.iter().any(|o| o.letter == letter);
    let (all, recurse, names) = (has('a'), has('r'), parsed.names());
    let mut wanted = None;
    for opt in parsed.options.iter().filter(|o| o.letter == 'V') {
        let number = match opt.text().as_str() {
            "current" => Some(NEWEST),
            text => text.parse().ok().filter(|n| (1..=NEWEST).contains(n)),
        };
        let Some(number) = number else {
            return usage(format!("invalid version {}", opt.text()));
        };
        wanted = Some(number);
    }
    let chosen = all || !names.is_empty();
    let wrong = match has('v') {
        true => recurse || wanted.is_some() || chosen,
        false => (!chosen && (recurse || wanted.is_some())) || (all && !names.is_empty()),
    };
    if wrong {
        return usage("");
    }
    if has('v') {
        write!(ctx.out, "{VERSIONS}")?;
        return Ok(0);
    }
    match chosen {
        true => upgrade(&names, recurse, wanted.unwrap_or(NEWEST), ctx),
        false => list(ctx),
    }
}

/// `None`: it cannot be read, which is said, or the file system is gone.
fn version(node: &Node, ctx: &mut Context) -> Option<u64> {
    node.value_or_complain("version", ctx)?.0?.exact.parse().ok()
}

/// Lists the file systems that are not of the newest version.
fn list(ctx: &mut Context) -> Outcome {
    write!(ctx.out, "This system is currently running ZFS filesystem version {NEWEST}.\n\n")?;
    let (nodes, good) = select(ctx, &[], &Selection::of(Kinds::FILESYSTEM));
    let versions: Vec<(u64, String)> = nodes
        .iter()
        .filter_map(|node| Some((version(node, ctx)?, node.dataset.name.clone())))
        .collect();
    let mut found = false;
    for (head, newer) in [(OLDER, false), (NEWER, true)] {
        let mut listed = versions
            .iter()
            .filter(|(version, _)| if newer { *version > NEWEST } else { *version < NEWEST })
            .peekable();
        if listed.peek().is_some() {
            write!(ctx.out, "{head}\nVER  FILESYSTEM\n---  ------------\n")?;
            found = true;
        }
        for (version, name) in listed {
            writeln!(ctx.out, "{version:2}   {name}")?;
        }
    }
    if !found {
        writeln!(ctx.out, "All filesystems are formatted with the current version.")?;
    }
    Ok(i32::from(!good))
}

/// Upgrades file systems. What has the version already is counted, as OpenZFS does.
fn upgrade(names: &[String], recurse: bool, wanted: u64, ctx: &mut Context) -> Outcome {
    let what = Selection { recurse, ..Selection::of(Kinds::FILESYSTEM) };
    let pools = Arc::clone(&ctx.pools);
    let all = pools.all();
    let of: Vec<&str> = match names {
        [] => all.iter().map(|pool| pool.name()).collect(),
        names => names.iter().map(String::as_str).collect(),
    };
    let _change = pools.change_all(of, None);
    let (nodes, mut good) = select(ctx, names, &what);
    let (mut upgraded, mut same, needed) = (0u64, 0u64, needed_for_files(wanted));
    for node in &nodes {
        let name = &node.dataset.name;
        if node.imported.pool().version() < needed {
            write!(
                ctx.out,
                "{name}: can not be upgraded; the pool version needs to first be upgraded\n\
                 to version {needed}\n\n"
            )?;
            good = false;
            continue;
        }
        let Some((version, _)) = node.value_or_complain("version", ctx) else { continue };
        match version.and_then(|version| version.exact.parse::<u64>().ok()) {
            Some(now) if now == wanted => same += 1,
            Some(now) if now > wanted => {
                writeln!(ctx.out, "{name}: can not be downgraded; it is already at version {now}")?;
                good = false;
            }
            Some(_) => {
                let list = [("version".to_string(), wanted.to_string())];
                let set = unrecorded(&node.imported, ctx, |session| {
                    session.set(&node.dataset, &list, false)
                });
                match said(set, ctx) {
                    true => {
                        upgraded += 1;
                        ctx.changed(&node.imported);
                    }
                    false => good = false,
                }
            }
            None => good = false,
        }
    }
    writeln!(ctx.out, "{upgraded} filesystems upgraded")?;
    if same > 0 {
        writeln!(ctx.out, "{same} filesystems already at this version")?;
    }
    Ok(i32::from(!good))
}
