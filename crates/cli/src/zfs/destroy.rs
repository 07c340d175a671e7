//! `zfs destroy`.

use super::session::{outcome, showing};
use crate::context::Context;
use crate::options::{Spec, parse};
use crate::zfs::select::{Kinds, pool_of};
use cenote_admin::destroy::Destroy;
use cenote_admin::{Event, Session};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_dsl::human::nicebytes;
use std::ffi::OsString;
use std::io;
use std::sync::Arc;

const SPEC: Spec = Spec { short: "vpndfrR", refused: "", refused_long: &[] };

/// Exit code where an option says nothing of bookmarks.
pub const NOT_OF_BOOKMARKS: i32 = 255;

/// What is said.
#[derive(Clone, Copy, Default)]
struct Says {
    verbose: bool,
    parsable: bool,
    dry_run: bool,
}

impl Says {
    fn event(self, ctx: &mut Context, event: &Event<'_>) -> io::Result<()> {
        let would = if self.dry_run { "would" } else { "will" };
        match (event, self.parsable) {
            _ if !self.verbose => Ok(()),
            (Event::Destroying(name), true) => writeln!(ctx.out, "destroy\t{name}"),
            (Event::Destroying(name), false) => writeln!(ctx.out, "{would} destroy {name}"),
            (Event::Reclaims(bytes), true) => writeln!(ctx.out, "reclaim\t{bytes}"),
            (Event::Reclaims(bytes), false) => {
                writeln!(ctx.out, "{would} reclaim {}", nicebytes(*bytes))
            }
            _ => Ok(()),
        }
    }
}

/// Runs `zfs destroy`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let (mut how, mut says) = (Destroy::default(), Says::default());
    for opt in &parsed.options {
        match opt.letter {
            'v' => says.verbose = true,
            'p' => (says.verbose, says.parsable) = (true, true),
            'n' => how.dry_run = true,
            'd' => how.defer = true,
            'f' => how.force = true,
            'r' => how.recurse = true,
            _ => (how.recurse, how.clones) = (true, true),
        }
    }
    (how.reckon, says.dry_run) = (says.verbose, how.dry_run);
    let names = parsed.names();
    let name = match names.as_slice() {
        [] => return usage("missing dataset argument"),
        [name] => name,
        _ => return usage("too many arguments"),
    };
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change(name);
    if name.contains('#')
        && !name.contains('@')
        && let Err(refused) = how.check_bookmark()
    {
        ctx.complain(refused);
        return Ok(NOT_OF_BOOKMARKS);
    }
    let opened = name.split('@').next().unwrap_or_default();
    let kinds = match () {
        () if opened != name => Kinds::HEAD,
        () if name.contains('#') => Kinds::BOOKMARK,
        () if how.defer => Kinds::SNAPSHOT,
        () => Kinds::DATASET,
    };
    let imported = match pool_of(ctx, opened, kinds) {
        Err(_) if kinds == Kinds::BOOKMARK => {
            return fail(format!("bookmark '{name}' does not exist."));
        }
        found => found.map_err(Stop::Fail)?,
    };
    let destroy = |session: &mut Session<'_>| session.destroy(name, how);
    let show = &mut |ctx: &mut Context, event: &Event<'_>| says.event(ctx, event);
    outcome(showing(&imported, ctx, (show, false), destroy))
}
