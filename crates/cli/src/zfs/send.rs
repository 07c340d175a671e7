//! `zfs send`: the stream of a snapshot on standard output.

use crate::context::Context;
use crate::options::{Spec, parse_with_long};
use crate::zfs::select::{Kinds, open};
use cenote_command::outcome::{Outcome, fail, usage};
use cenote_dsl::send::{SendError, SendOptions};
use std::ffi::OsString;

const SPEC: Spec = Spec {
    short: "Lcei:",
    refused: "DI:PRSUVX:bhnpst:vw",
    refused_long: &[
        "backup",
        "dedup",
        "dryrun",
        "exclude",
        "holds",
        "parsable",
        "proctitle",
        "props",
        "raw",
        "redact",
        "replicate",
        "resume",
        "saved",
        "skip-missing",
        "verbose",
    ],
};
const LONG: &[(&str, char)] = &[("large-block", 'L'), ("embed", 'e'), ("compressed", 'c')];

/// Runs `zfs send`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse_with_long(args, SPEC, LONG)?;
    let (mut options, mut from) = (SendOptions::default(), None);
    for opt in &parsed.options {
        match opt.letter {
            'L' => options.large_blocks = true,
            'e' => options.embedded = true,
            'c' => options.compressed = true,
            _ => from = Some(opt.text()),
        }
    }
    let names = parsed.names();
    let name = match names.as_slice() {
        [] => return usage("missing snapshot argument"),
        [name] => name,
        _ => return usage("too many arguments"),
    };
    if ctx.caller.terminal.out {
        return fail(
            "Error: Stream can not be written to a terminal.\nYou must redirect standard output.",
        );
    }
    let Some((of, _)) = name.split_once('@') else {
        return fail(format!("cannot send '{name}': only snapshots can be sent"));
    };
    let to = match open(ctx, name, Kinds::SNAPSHOT) {
        Ok(node) => node,
        Err(why) => return fail(why),
    };
    let from = match from {
        None => None,
        Some(from) => {
            // `@a` and `#a` are of the same dataset.
            let from = if from.starts_with(['@', '#']) { format!("{of}{from}") } else { from };
            match open(ctx, &from, Kinds::SNAPSHOT.with(Kinds::BOOKMARK)) {
                Ok(node) => Some(node),
                Err(why) => return fail(why),
            }
        }
    };
    if from.as_ref().is_some_and(|from| from.imported.guid() != to.imported.guid()) {
        return fail(format!("cannot send '{name}': {}", SendError::NotEarlier));
    }
    let pool = to.imported.pool();
    options.pool_embeds = pool.features().is_active("embedded_data");
    options.pool_has_lz4 = pool.features().is_active("lz4_compress");
    let from = from.as_ref().map(|node| &node.dataset);
    let sent = pool.dsl().send(&to.dataset, from, options, ctx.out.raw());
    match sent {
        Ok(()) => Ok(0),
        Err(SendError::Io(e)) => Err(e.into()),
        Err(e) => fail(format!("warning: cannot send '{name}': {e}")),
    }
}
