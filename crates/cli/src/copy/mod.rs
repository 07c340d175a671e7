//! `cenote cp`: copying files out of a dataset without mounting it.
//!
//! Works like `cp -a`: mode, owner (as root), times to the nanosecond, symbolic and hard links,
//! holes, devices (as root), extended attributes and ACLs are kept. What cannot be read is said,
//! counted, and passed over.
//!
//! Names in a pool are not trusted: a name that is not a plain file name (`..`, one with a slash)
//! is an error; a directory is only entered at the destination if it is one there and no symbolic
//! link; each directory of the pool is entered once, so that a damaged pool cannot make the copy
//! go in circles.
//!
//! | module | what |
//! |---|---|
//! | [`tree`] | walking the source, making the copies |
//! | [`attributes`] | owner, mode, times, extended attributes of a copy |
//! | [`progress`] | what the user sees meanwhile, and the summary |

mod attributes;
mod progress;
mod tree;

use crate::context::Context;
use crate::locate::{KeyArgs, Locator, Name, Place};
use cenote_command::outcome::{Outcome, fail};
use clap::Args;
use progress::Progress;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use tree::Copier;

/// Arguments of `cenote cp`.
#[derive(Debug, Args)]
pub struct CpArgs {
    /// Copy directories with all that is in them
    #[arg(short)]
    recursive: bool,
    /// Replace files that are there already
    #[arg(short)]
    force: bool,
    /// Keep what can be read of damaged files, with zeros where it cannot
    #[arg(long)]
    salvage: bool,
    /// Print a summary as JSON
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(short)]
    quiet: bool,
    /// Open the pool from the devices in DIR (or the image file DIR) instead of an imported one
    #[arg(short = 'd', value_name = "DIR")]
    dirs: Vec<OsString>,
    #[command(flatten)]
    keys: KeyArgs,
    /// What to copy, pool/fs[@snapshot][:/path] or a volume; then where to
    #[arg(required = true, num_args = 2.., value_names = ["DATASET[:/PATH]", "DESTINATION"])]
    names: Vec<OsString>,
}

impl CpArgs {
    /// Whether the command works on imported pools.
    pub fn needs_imported_pool(&self) -> bool {
        self.dirs.is_empty()
    }
}

/// Runs `cenote cp`; returns the exit code.
pub fn cp(args: &CpArgs, ctx: &mut Context) -> i32 {
    let outcome = cp_all(args, ctx);
    ctx.conclude(outcome, "")
}

fn cp_all(args: &CpArgs, ctx: &mut Context) -> Outcome {
    let Some((destination, sources)) = args.names.split_last() else {
        return fail("cenote cp: nothing to copy");
    };
    let target = ctx.path(destination);
    let into = target.is_dir();
    if sources.len() > 1 && !into {
        return fail(format!("cenote cp: '{}' is not a directory", target.display()));
    }
    let mut locator = Locator::new(&args.dirs, &args.keys, ctx);
    let mut progress = Progress::new(args.quiet, args.json, ctx);
    let mut opened: Vec<(Name, Place, PathBuf)> = Vec::new();
    for name in sources.iter().map(|n| Name::parse(n)) {
        match locator.open(&name, false, ctx) {
            Err(message) => progress.error(format_args!("{message}"), ctx),
            Ok(place) => {
                let target = target_of(&name, &place, &target, into);
                opened.push((name, place, target));
            }
        }
        if let Some(message) = locator.left_out() {
            progress.error(message, ctx);
        }
    }
    if progress.is_shown() {
        for (_, place, _) in &opened {
            progress.expect(tree::measure(place, args.recursive, ctx));
        }
    }
    for (name, place, target) in &opened {
        Copier::new(args.recursive, args.force, args.salvage, name, &mut progress, ctx)
            .copy(place, target);
    }
    progress.finish(args.json, ctx)
}

/// Where the copy of one source goes: under its own name if the destination is a directory. The
/// root directory of a dataset has no name: its contents go straight into the destination.
fn target_of(name: &Name, place: &Place, target: &std::path::Path, into: bool) -> PathBuf {
    let own = match place {
        Place::Volume(_) => name.dataset.rsplit('/').next().unwrap_or_default().as_bytes(),
        Place::File(..) => name.file_name(),
    };
    match into && !own.is_empty() {
        true => target.join(OsStr::from_bytes(own)),
        false => target.to_path_buf(),
    }
}
