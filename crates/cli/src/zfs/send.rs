//! `zfs send`: streams of snapshots on standard output (`zfs_do_send`).
//!
//! The command line becomes `Flags`: how to send (`cenote_admin`'s `Send`), and what to say of it. Options that do not go together are
//! refused first, in OpenZFS's order and words, then a terminal as output. There are three ways on: a snapshot, head or package
//! (`send`), what an interrupted receive has (`-S`), the rest of a stream (`-t`). All end in `sending`, which opens a session of
//! the library with the user's rights.
//!
//! With `-n` the stream is made as far as its size is estimated, and nothing is written. With `-v`, `-P` or `-V` estimates and
//! progress are told while it is written (`report`).

mod report;

use super::change::rights;
use super::session::{outcome, stop};
use crate::context::Context;
use crate::options::{Spec, parse_with_long};
use crate::pools::Imported;
use crate::zfs::select::{Kinds, open, pool_of};
use cenote_admin::send::{Send, decode_token, no_longer_exists};
use cenote_admin::{Error, Session};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_dsl::send::SendOptions;
use cenote_engine::change::names::{Expected, misnamed};
use cenote_vdev::patience::impatiently;
use report::Reports;
use std::ffi::OsString;
use std::io::{self, Write};

const SPEC: Spec = Spec { short: "DI:LPRSVX:bcd:ehi:npst:vw", refused: "", refused_long: &[] };
const LONG: &[(&str, char)] = &[
    ("backup", 'b'),
    ("compressed", 'c'),
    ("dedup", 'D'),
    ("dryrun", 'n'),
    ("embed", 'e'),
    ("exclude", 'X'),
    ("holds", 'h'),
    ("large-block", 'L'),
    ("parsable", 'P'),
    ("proctitle", 'V'),
    ("props", 'p'),
    ("raw", 'w'),
    ("redact", 'd'),
    ("replicate", 'R'),
    ("resume", 't'),
    ("saved", 'S'),
    ("skip-missing", 's'),
    ("verbose", 'v'),
];
/// Printed for `-D`, which does nothing any more.
const NO_DEDUP: &str = "WARNING: deduplicated send is no longer supported.  A regular,\n\
                        non-deduplicated stream will be generated.\n";

/// Printed where `-i` names neither snapshot nor bookmark.
const ASSUMED: &str = "Warning: incremental source didn't specify type, assuming snapshot. Use '@' or '#' prefix \
                       to avoid ambiguity.";

/// What was asked for: what is sent, and what is said of it.
#[derive(Clone, Debug, Default)]
struct Flags {
    how: Send,
    /// How often `-v` was given; 1 for `-P` and `-V` alone.
    verbosity: usize,
    /// `-v` was given.
    progress: bool,
    parsable: bool,
    /// The thread that sends is named after how far it is.
    title: bool,
}

/// Runs `zfs send`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse_with_long(args, SPEC, LONG)?;
    let (mut flags, mut from, mut token) = (Flags::default(), None, None);
    for opt in &parsed.options {
        match opt.letter {
            'i' | 'I' => {
                if from.is_some() {
                    return usage("");
                }
                flags.how.wanted.all_snapshots = opt.letter == 'I';
                from = Some(opt.text());
            }
            't' => token = Some(opt.text()),
            'd' => flags.how.redact = Some(opt.text()),
            'X' => exclude(&opt.text(), &mut flags)?,
            'D' => ctx.complain(NO_DEDUP),
            letter => set(&mut flags, letter),
        }
    }
    if (flags.parsable || flags.title) && flags.verbosity == 0 {
        flags.verbosity = 1;
    }
    flags.how.estimate = flags.verbosity > 0;
    flags.how.wanted.verbose = flags.verbosity > 0;
    if !flags.how.wanted.exclude.is_empty() && !flags.how.wanted.replicate {
        return fail("Cannot specify dataset exclusion (-X) on a non-recursive send.");
    }
    let names = parsed.names();
    if token.is_some() {
        if from.is_some()
            || flags.how.wanted.replicate
            || flags.how.is_packed()
            || flags.how.options.saved
            || flags.how.redact.is_some()
        {
            return usage("invalid flags combined with -t");
        }
        if !names.is_empty() {
            return usage("too many arguments");
        }
    }
    let name = match (names.as_slice(), &token) {
        ([], None) => return usage("missing snapshot argument"),
        ([], Some(_)) => "",
        ([name], _) => name.as_str(),
        _ => return usage("too many arguments"),
    };
    if flags.how.options.saved {
        check_saved(name, from.as_deref(), &flags)?;
    }
    if flags.how.wanted.raw && flags.how.redact.is_some() {
        return fail("Error: raw sends may not be redacted.");
    }
    if !flags.how.dry_run && ctx.caller.terminal.out {
        return fail(
            "Error: Stream can not be written to a terminal.\nYou must redirect standard output.",
        );
    }
    if flags.how.options.saved {
        let pool = pool_of(ctx, name, Kinds::HEAD).map_err(Stop::Fail)?;
        return sending(&pool, &flags, ctx, |session, out| {
            session.send_saved(name, &flags.how, out)
        });
    }
    if let Some(token) = token {
        return resume(&token, &flags, ctx);
    }
    if flags.how.wanted.skip_missing && !flags.how.wanted.replicate {
        return usage("skip-missing flag can only be used in conjunction with replicate");
    }
    send(name, from, &flags, ctx)
}

/// Sends a snapshot or head, or a package.
fn send(name: &str, mut from: Option<String>, flags: &Flags, ctx: &mut Context) -> Outcome {
    let how = &flags.how;
    if !how.is_many()
        && let Some(from) = from.as_mut().filter(|from| !from.contains(['@', '#']))
    {
        ctx.complain(ASSUMED);
        from.insert(0, '@');
    }
    how.check(name, from.as_deref()).map_err(stop)?;
    let (of, kinds) = match how.is_many() {
        true => (name.split('@').next().unwrap_or_default(), Kinds::HEAD),
        false => (name, Kinds::DATASET),
    };
    let imported = open(ctx, of, kinds).map_err(Stop::Fail)?.imported;
    let other = |from: &&String| {
        let pool = from.split(['/', '@', '#']).next().unwrap_or_default();
        !pool.is_empty() && pool != imported.name()
    };
    if let Some(from) = from.as_ref().filter(|_| !how.is_many()).filter(other) {
        // What is in another pool is no start, but has to be there.
        open(ctx, from, Kinds::SNAPSHOT.with(Kinds::BOOKMARK)).map_err(Stop::Fail)?;
    }
    sending(&imported, flags, ctx, |session, out| session.send(name, from.as_deref(), how, out))
}

/// Goes on with a stream.
fn resume(text: &str, flags: &Flags, ctx: &mut Context) -> Outcome {
    let token = decode_token(text).map_err(stop)?;
    let pool = token.to_name.split(['/', '@']).next().unwrap_or_default();
    let Some(imported) = ctx.pools.get(pool) else {
        let lines = if flags.how.dry_run { &mut ctx.out } else { &mut ctx.err };
        report::token(&token, flags, lines)?;
        return Err(stop(no_longer_exists(&token)));
    };
    sending(&imported, flags, ctx, |session, out| session.resume_send(&token, &flags.how, out))
}

/// Does `work`, which writes streams to standard output, and says what is asked for.
fn sending(
    imported: &Imported,
    flags: &Flags,
    ctx: &mut Context,
    work: impl FnOnce(&mut Session<'_>, &mut dyn Write) -> Result<(), Error>,
) -> Outcome {
    let (rights, opened) = (rights(ctx), imported.opened().clone());
    let Context { out, err, caller, .. } = ctx;
    if flags.how.dry_run {
        // Estimates are all that there is.
        let mut reports = Reports::new(flags, caller, err, Some(out));
        let mut session = Session::new(opened, rights, &mut reports);
        return outcome(impatiently(|| work(&mut session, &mut io::sink())));
    }
    let mut reports = Reports::new(flags, caller, err, None);
    outcome(work(&mut Session::new(opened, rights, &mut reports), out.raw()))
}

/// What goes together with `-S`.
fn check_saved(name: &str, from: Option<&str>, flags: &Flags) -> Result<(), Stop> {
    let SendOptions { large_blocks, embedded, compressed, .. } = flags.how.options;
    let streams = large_blocks || embedded || compressed || flags.how.redact.is_some();
    if streams || from.is_some() || flags.how.wanted.replicate || flags.how.is_packed() {
        return usage("incompatible flags combined with saved send flag");
    }
    match name.contains('@') {
        true => usage("saved send must specify the dataset with partially-received state"),
        false => Ok(()),
    }
}

fn set(flags: &mut Flags, letter: char) {
    let Send { options, wanted, dry_run, .. } = &mut flags.how;
    match letter {
        'L' => options.large_blocks = true,
        'e' => options.embedded = true,
        'c' => options.compressed = true,
        'S' => options.saved = true,
        'w' => {
            (options.large_blocks, options.embedded, options.compressed) = (true, true, true);
            wanted.raw = true;
        }
        'R' => wanted.replicate = true,
        's' => wanted.skip_missing = true,
        'p' => wanted.props = true,
        'b' => wanted.backup = true,
        'h' => wanted.holds = true,
        'n' => *dry_run = true,
        'P' => flags.parsable = true,
        'V' => flags.title = true,
        _ => {
            flags.verbosity += 1;
            flags.progress = true;
        }
    }
}

/// Takes the argument of `-X`.
fn exclude(list: &str, flags: &mut Flags) -> Result<(), Stop> {
    let any = Expected { head: true, snapshot: true, bookmark: false };
    for name in list.split(',') {
        if misnamed(name, any).is_some() || !name.contains('/') {
            return usage(format!("-X {name}: not a valid non-root dataset name."));
        }
        flags.how.wanted.exclude.push(name.to_string());
    }
    Ok(())
}
