//! `zfs load-key` and `zfs unload-key` (`load_unload_keys`, `zfs_do_load_key`, `zfs_do_unload_key`).

use crate::context::Context;
use crate::keys::{self, LoadKey};
use crate::options::{Spec, parse};
use crate::pools::Imported;
use crate::zfs::select::{Kinds, Node, open};
use cenote_command::outcome::{Outcome, Stop, usage};
use cenote_dsl::Dataset;
use std::ffi::OsString;
use std::sync::Arc;

const LOAD: Spec = Spec { short: "anrL:", refused: "", refused_long: &[] };
const UNLOAD: Spec = Spec { short: "ar", refused: "", refused_long: &[] };

/// A command line taken apart.
struct Request {
    all: bool,
    recurse: bool,
    how: LoadKey,
    names: Vec<String>,
}

impl Request {
    fn parse(args: &[OsString], spec: Spec) -> Result<Request, Stop> {
        let parsed = parse(args, spec)?;
        let (mut all, mut recurse, mut how) = (false, false, LoadKey::default());
        for opt in &parsed.options {
            match opt.letter {
                'a' => (all, recurse) = (true, true),
                'r' => recurse = true,
                'n' => how.verify = true,
                _ => how.location = Some(opt.text()),
            }
        }
        let names = parsed.names();
        if !all && names.is_empty() {
            return usage("Missing dataset argument or -a option");
        }
        if all && !names.is_empty() {
            return usage("Cannot specify dataset with -a option");
        }
        if recurse && how.location.as_ref().is_some_and(|location| location != "prompt") {
            return usage("alternate keylocation may only be 'prompt' with -r or -a");
        }
        Ok(Request { all, recurse, how, names })
    }

    /// What the command works on: what is named, or the encryption roots at and below that whose key is (`loaded`) or is
    /// not loaded. False: something was not found, which was said.
    fn datasets(&self, loaded: bool, ctx: &mut Context) -> (Vec<(Arc<Imported>, Dataset)>, bool) {
        let (mut found, mut good) = (Vec::new(), true);
        let mut named = Vec::new();
        for name in &self.names {
            match open(ctx, name, Kinds::FILESYSTEM.with(Kinds::VOLUME)) {
                Ok(Node { imported, dataset, .. }) => named.push((imported, dataset)),
                Err(why) => {
                    ctx.complain(why);
                    good = false;
                }
            }
        }
        for imported in ctx.pools.all().into_iter().filter(|_| self.all) {
            match imported.pool().dsl().root() {
                Ok(root) => named.push((Arc::clone(&imported), root)),
                Err(e) => {
                    ctx.complain(format_args!("cannot open '{}': {e}", imported.name()));
                    good = false;
                }
            }
        }
        if !self.recurse {
            return (named, good);
        }
        for (imported, dataset) in named {
            match keys::roots(&imported, &dataset) {
                Ok(roots) => {
                    let pool = imported.pool();
                    let is_meant = |d: &Dataset| pool.dsl().keystore().has(d.dir_obj) == loaded;
                    let meant = roots.into_iter().filter(is_meant);
                    found.extend(meant.map(|root| (Arc::clone(&imported), root)));
                }
                Err(e) => {
                    ctx.complain(format_args!("cannot open '{}': {e}", dataset.name));
                    good = false;
                }
            }
        }
        (found, good)
    }

    /// The pools that the command works on.
    fn pools(&self, ctx: &Context) -> Vec<String> {
        let all = ctx.pools.all().into_iter().filter(|_| self.all);
        self.names.iter().cloned().chain(all.map(|pool| pool.name().to_string())).collect()
    }

    /// Says how many keys it went well with, if it was asked for more than one or only to look.
    fn conclude(&self, tried: usize, failed: usize, done: &str, ctx: &mut Context) -> Outcome {
        if self.how.verify || (self.recurse && tried > 0) {
            let went_well = tried.saturating_sub(failed);
            writeln!(ctx.out, "{went_well} / {tried} key(s) successfully {done}")?;
        }
        Ok(0)
    }
}

/// Runs `zfs load-key`.
pub fn load(args: &[OsString], ctx: &mut Context) -> Outcome {
    let request = Request::parse(args, LOAD)?;
    let (datasets, good) = request.datasets(false, ctx);
    let (mut tried, mut failed) = (0, 0);
    for (imported, dataset) in datasets {
        tried += 1;
        failed += usize::from(!keys::load(&imported, &dataset, &request.how, ctx));
        if ctx.cancelled() {
            break;
        }
    }
    let done = if request.how.verify { "verified" } else { "loaded" };
    request.conclude(tried, failed, done, ctx)?;
    Ok(exit_code(failed, good))
}

/// Runs `zfs unload-key`.
pub fn unload(args: &[OsString], ctx: &mut Context) -> Outcome {
    let request = Request::parse(args, UNLOAD)?;
    let pools = Arc::clone(&ctx.pools);
    let change = pools.change_all(request.pools(ctx), None);
    let (mut datasets, good) = request.datasets(true, ctx);
    // Not of what was imported since: that is for others.
    datasets.retain(|(imported, _)| change.has(imported.name()));
    let (mut tried, mut failed) = (0, 0);
    for (imported, dataset) in datasets {
        tried += 1;
        failed += usize::from(!keys::unload(&imported, &dataset, ctx));
    }
    request.conclude(tried, failed, "unloaded", ctx)?;
    Ok(exit_code(failed, good))
}

/// 255 if a key failed, as OpenZFS returns -1 then; 1 if a dataset was not found.
fn exit_code(failed: usize, good: bool) -> i32 {
    match failed {
        0 => i32::from(!good),
        _ => 255,
    }
}
