//! `zfs receive`: streams on standard input become snapshots.
//!
//! | room | what |
//! |---|---|
//! | `one` | one stream (`zfs_receive_one`) |
//! | `names` | what the snapshot is called here, and what it starts from |
//! | `package` | the next stream, or a package of them (`zfs_receive_package`) |
//! | `follow` | what was renamed, promoted or destroyed at the sender |
//! | `props` | properties and holds of what is received |
//! | `said` | why a stream was not received, in OpenZFS's words |
//! | `told` | how far a stream has come |
//! | `abort` | `zfs receive -A` |
//!
//! The pools may be changed by other commands while a stream comes in. Only the beginning and the end of each stream
//! keep others out; nothing is read meanwhile, for the input may stall.

mod abort;
mod follow;
mod names;
mod one;
mod package;
mod props;
mod said;
mod told;

use super::change::changes;
use crate::context::Context;
use crate::options::{Spec, parse};
use crate::pools::Imported;
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_engine::change::Changes;
use cenote_engine::change::receive::Source;
use cenote_format::stream::package::Package;
use props::Asked;
use std::ffi::OsString;
use std::io::{self, BufReader, Read};
use std::sync::Arc;

const SPEC: Spec = Spec { short: "o:x:dehMnuvFsA", refused: "c", refused_long: &[] };
/// Bytes that are read at once.
const BUFFER: usize = 1 << 20;

/// The options.
#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    /// `-d`, and with `-e`: the name at the sender, without the pool's, goes below the one that is given.
    prefix: bool,
    /// `-e`: only the last component does.
    tail: bool,
    /// `-F`
    force: bool,
    /// `-M`: what is mounted is unmounted by force.
    force_unmount: bool,
    /// `-n`
    dry_run: bool,
    /// `-s`
    resumable: bool,
    /// `-u`
    no_mount: bool,
    /// `-v`
    verbose: bool,
    /// `-h`: holds are not received.
    skip_holds: bool,
}

/// What is being received.
struct Job {
    flags: Flags,
    /// The name that was given.
    target: String,
    /// `-o origin=`
    origin: Option<String>,
    /// `-o`, `-x`
    asked: Asked,
    imported: Arc<Imported>,
    changes: Arc<Changes>,
    /// The uppermost dataset that was received.
    top: Option<String>,
    /// Something was received that is to be mounted.
    mount: bool,
    /// Holds are in the package.
    holds: bool,
}

/// A package that a stream is part of.
struct Within<'a> {
    /// What it says of its streams.
    list: Option<&'a Package>,
    /// The dataset that was sent, at the sender.
    sent: &'a str,
}

/// Runs `zfs receive`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let (mut flags, mut abort, mut asked) = (Flags::default(), false, Asked::default());
    for opt in &parsed.options {
        match opt.letter {
            'd' | 'e' if flags.prefix && flags.tail != (opt.letter == 'e') => {
                return usage("invalid option combination: -d and -e are mutually exclusive");
            }
            'd' => flags.prefix = true,
            'e' => (flags.prefix, flags.tail) = (true, true),
            'h' => flags.skip_holds = true,
            'M' => flags.force_unmount = true,
            'n' => flags.dry_run = true,
            'u' => flags.no_mount = true,
            'v' => flags.verbose = true,
            's' => flags.resumable = true,
            'F' => flags.force = true,
            'A' => abort = true,
            'o' => asked.set(&opt.text())?,
            _ => asked.leave_out(&opt.text())?,
        }
    }
    let names = parsed.names();
    let target = match names.as_slice() {
        [] => return usage("missing snapshot argument"),
        [name] => name.clone(),
        _ => return usage("too many arguments"),
    };
    if abort {
        if flags.prefix || flags.dry_run || flags.resumable || flags.no_mount {
            return usage("invalid option");
        }
        return abort::run(&target, ctx);
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
    let origin = asked.take_origin();
    asked.check()?;
    asked.tell_kept(ctx);
    let (top, mount, holds) = (None, false, false);
    let changes = changes(&imported, ctx);
    let changes = Arc::new(changes.map_err(|e| Stop::Fail(format!("cannot receive: {e}")))?);
    let mut job = Job { flags, target, origin, asked, imported, changes, top, mount, holds };
    let mut source = Source::new(&mut *input);
    source.limit_lists(Some(package::LONGEST_LIST).filter(|_| ctx.caller.is_delegated()));
    package::next(&mut job, &mut source, None, ctx)?;
    let good = job.flags.no_mount || !job.mount || one::mount_all(&job, ctx);
    Ok(i32::from(!good))
}
