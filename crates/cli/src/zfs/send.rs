//! `zfs send`: streams of snapshots on standard output (`zfs_do_send`).
//!
//! | module | what |
//! |---|---|
//! | `one` | one stream, with properties and holds if they are asked for (`zfs_send_one`) |
//! | `many` | packages of streams: `-R` and `-I` (`zfs_send`) |
//! | `resume` | a stream that goes on: `-t` (`zfs_send_resume`); what an interrupted receive left: `-S` (`zfs_send_saved`) |
//! | `stream` | the snapshot is held, the stream is written, progress is told |
//! | `report` | what `-v` and `-P` say |

mod many;
mod one;
mod report;
mod resume;
mod stream;

use crate::context::Context;
use crate::options::{Spec, parse_with_long};
use crate::pools::Imported;
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_dsl::send::SendOptions;
use cenote_dsl::send::package::Wanted;
use cenote_engine::change::names::{Expected, misnamed};
use std::ffi::OsString;

const SPEC: Spec =
    Spec { short: "DI:LPRSVX:bcehi:npst:vw", refused: "d:", refused_long: &["redact"] };
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
    ("replicate", 'R'),
    ("resume", 't'),
    ("saved", 'S'),
    ("skip-missing", 's'),
    ("verbose", 'v'),
];
/// Printed for `-D`, which does nothing any more.
const NO_DEDUP: &str = "WARNING: deduplicated send is no longer supported.  A regular,\n\
                        non-deduplicated stream will be generated.\n";

/// What was asked for (`sendflags_t`).
#[derive(Clone, Debug, Default)]
struct Flags {
    /// What streams contain; what the pool has is filled in later.
    options: SendOptions,
    /// What a package contains.
    wanted: Wanted,
    raw: bool,
    dry_run: bool,
    /// How often `-v` was given; 1 for `-P` and `-V` alone.
    verbosity: usize,
    /// `-v` was given.
    progress: bool,
    parsable: bool,
    /// The thread that sends is named after how far it is.
    title: bool,
}

impl Flags {
    /// What the streams of a pool may contain.
    fn options_in(&self, imported: &Imported) -> SendOptions {
        let pool = imported.pool();
        let active = |name| pool.features().is_active(name);
        SendOptions {
            pool_embeds: active("embedded_data"),
            pool_has_lz4: active("lz4_compress"),
            ..self.options
        }
    }

    /// Whether one stream needs a package around it.
    fn is_packed(&self) -> bool {
        self.wanted.props || self.wanted.backup || self.wanted.holds
    }
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
                flags.wanted.all_snapshots = opt.letter == 'I';
                from = Some(opt.text());
            }
            't' => token = Some(opt.text()),
            'X' => exclude(&opt.text(), &mut flags)?,
            'D' => ctx.complain(NO_DEDUP),
            letter => set(&mut flags, letter),
        }
    }
    if (flags.parsable || flags.title) && flags.verbosity == 0 {
        flags.verbosity = 1;
    }
    flags.wanted.verbose = flags.verbosity > 0;
    if !flags.wanted.exclude.is_empty() && !flags.wanted.replicate {
        return fail("Cannot specify dataset exclusion (-X) on a non-recursive send.");
    }
    let names = parsed.names();
    if token.is_some() {
        if from.is_some() || flags.wanted.replicate || flags.is_packed() || flags.options.saved {
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
    if flags.options.saved {
        check_saved(name, from.as_deref(), &flags)?;
    }
    if !flags.dry_run && ctx.caller.terminal.out {
        return fail(
            "Error: Stream can not be written to a terminal.\nYou must redirect standard output.",
        );
    }
    if flags.options.saved {
        return resume::saved(name, &flags, ctx);
    }
    if let Some(token) = token {
        return resume::run(&token, &flags, ctx);
    }
    if flags.wanted.skip_missing && !flags.wanted.replicate {
        return usage("skip-missing flag can only be used in conjunction with replicate");
    }
    match flags.wanted.replicate || flags.wanted.all_snapshots {
        true => many::run(name, from, flags, ctx),
        false => one::run(name, from, flags, ctx),
    }
}

/// What goes together with `-S`.
fn check_saved(name: &str, from: Option<&str>, flags: &Flags) -> Result<(), Stop> {
    let SendOptions { large_blocks, embedded, compressed, .. } = flags.options;
    let streams = large_blocks || embedded || compressed;
    if streams || from.is_some() || flags.wanted.replicate || flags.is_packed() {
        return usage("incompatible flags combined with saved send flag");
    }
    match name.contains('@') {
        true => usage("saved send must specify the dataset with partially-received state"),
        false => Ok(()),
    }
}

fn set(flags: &mut Flags, letter: char) {
    let Flags { options, wanted, .. } = flags;
    match letter {
        'L' => options.large_blocks = true,
        'e' => options.embedded = true,
        'c' => options.compressed = true,
        'S' => options.saved = true,
        'w' => {
            (options.large_blocks, options.embedded, options.compressed) = (true, true, true);
            (flags.raw, wanted.raw) = (true, true);
        }
        'R' => wanted.replicate = true,
        's' => wanted.skip_missing = true,
        'p' => wanted.props = true,
        'b' => wanted.backup = true,
        'h' => wanted.holds = true,
        'n' => flags.dry_run = true,
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
        flags.wanted.exclude.push(name.to_string());
    }
    Ok(())
}
