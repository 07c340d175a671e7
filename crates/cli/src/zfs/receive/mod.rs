//! `zfs receive` (`zfs_do_receive`): streams on standard input become snapshots.

mod told;

pub use told::while_drawn;

use super::change::tell_kept;
use super::session::{outcome, quietly, showing, stop};
use crate::context::Context;
use crate::new_key::Wanted;
use crate::options::{Spec, parse};
use crate::pools::Imported;
use crate::zfs::select::{Kinds, pool_of};
use cenote_admin::receive::Receive;
use cenote_admin::{Event, Session};
use cenote_command::outcome::{Outcome, Stop, fail, given_twice, usage};
use std::ffi::OsString;
use std::io::{self, BufReader, Read};
use std::sync::Arc;

const SPEC: Spec = Spec { short: "o:x:dehMnuvFsAc", refused: "", refused_long: &[] };
/// Bytes that are read at once.
const BUFFER: usize = 1 << 20;

/// Runs `zfs receive`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let (mut how, mut abort, mut verbose) = (Receive::default(), false, false);
    for opt in &parsed.options {
        match opt.letter {
            'd' | 'e' if how.prefix && how.tail != (opt.letter == 'e') => {
                return usage("invalid option combination: -d and -e are mutually exclusive");
            }
            'd' => how.prefix = true,
            'e' => (how.prefix, how.tail) = (true, true),
            'h' => how.skip_holds = true,
            'M' => how.force_unmount = true,
            'n' => how.dry_run = true,
            'u' => how.no_mount = true,
            'v' => verbose = true,
            's' => how.resumable = true,
            'F' => how.force = true,
            'A' => abort = true,
            'c' => how.heal = true,
            'o' => set(&mut how, &opt.text())?,
            _ => leave_out(&mut how, &opt.text())?,
        }
    }
    let names = parsed.names();
    let target = match names.as_slice() {
        [] => return usage("missing snapshot argument"),
        [name] => name,
        _ => return usage("too many arguments"),
    };
    if abort {
        if how.prefix || how.dry_run || how.resumable || how.no_mount {
            return usage("invalid option");
        }
        let pools = Arc::clone(&ctx.pools);
        let _change = pools.change(target);
        let imported = pool_of(ctx, target, Kinds::HEAD).map_err(Stop::Fail)?;
        return outcome(quietly(&imported, ctx, |session| session.abort_receive(target)));
    }
    if ctx.caller.terminal.input {
        return fail(
            "Error: Backup stream can not be read from a terminal.\n\
             You must redirect standard input.",
        );
    }
    let pool = target.split(['/', '@']).next().unwrap_or_default();
    let Some(imported) = ctx.pools.get(pool) else {
        return fail(format!("cannot receive: no such pool '{pool}'"));
    };
    let mut input: Box<dyn Read + Send> = match ctx.input.take() {
        Some(input) => Box::new(BufReader::with_capacity(BUFFER, input)),
        None => Box::new(BufReader::with_capacity(BUFFER, io::stdin())),
    };
    if let Some(at) = how.set.iter().position(|(name, _)| name == "origin") {
        how.origin = Some(how.set.remove(at).1);
    }
    take_encryption(&mut how, &imported, target, ctx)?;
    how.check().map_err(stop)?;
    tell_kept(&how.set, ctx);
    let say = &mut |ctx: &mut Context, event: &Event<'_>| match verbose {
        true => told::say(ctx, event, &how),
        false => Ok(()),
    };
    let receive = |session: &mut Session<'_>| session.receive(target, &how, &mut *input);
    outcome(showing(&imported, ctx, (say, verbose), receive).map(drop))
}

/// Takes what `-o` says of encryption, and asks for the key of a new encryption root. Nothing is held meanwhile.
fn take_encryption(
    how: &mut Receive,
    imported: &Imported,
    target: &str,
    ctx: &mut Context,
) -> Result<(), Stop> {
    let cannot = |why: String| Stop::Fail(format!("cannot receive: {why}"));
    let before = how.set.len();
    let wanted = Wanted::take(&mut how.set).map_err(cannot)?;
    if how.set.len() == before || how.dry_run {
        return Ok(());
    }
    let head = target.split('@').next().unwrap_or_default();
    let above =
        if how.prefix { head } else { head.rsplit_once('/').map_or("", |(above, _)| above) };
    how.encryption = Some(wanted.for_new(Some((imported, above)), ctx).map_err(cannot)?);
    Ok(())
}

/// `-o NAME=VALUE`
fn set(how: &mut Receive, text: &str) -> Result<(), Stop> {
    let Some((name, value)) = text.split_once('=') else {
        return fail("missing '=' for property=value argument");
    };
    check_new(how, name)?;
    how.set.push((name.into(), value.into()));
    Ok(())
}

/// `-x NAME`
fn leave_out(how: &mut Receive, name: &str) -> Result<(), Stop> {
    if name.contains('=') {
        return fail(format!("invalid property name '{name}'"));
    }
    check_new(how, name)?;
    how.inherit.push(name.into());
    Ok(())
}

fn check_new(how: &Receive, name: &str) -> Result<(), Stop> {
    let mut known = how.set.iter().map(|(known, _)| known).chain(&how.inherit);
    match known.any(|known| known == name) {
        true => given_twice(name),
        false => Ok(()),
    }
}
