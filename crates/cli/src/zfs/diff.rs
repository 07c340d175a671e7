//! `zfs diff` (`zfs_do_diff`): what differs between a snapshot and a later one, or the file system as it is now.

use super::session::{showing, stop};
use crate::colour::{self, Colour, PLAIN};
use crate::context::Context;
use crate::options::{Spec, parse};
use crate::zfs::select::{Kinds, mounted, open};
use cenote_admin::Event;
use cenote_admin::diff::States;
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_zpl::{Change, Difference};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const SPEC: Spec = Spec { short: "FHth", refused: "", refused_long: &[] };
/// Bytes that are written at once.
const BUFFER: usize = 64 << 10;

/// How differences are printed.
#[derive(Clone, Copy, Default)]
struct Style {
    /// `-F`: with types.
    types: bool,
    /// `-H`: without arrows.
    plain: bool,
    /// `-t`: with times of change.
    times: bool,
    /// `-h`: with bytes as they are.
    raw: bool,
    /// In colours, by what happened.
    paints: bool,
}

/// The colour of a change (`type_to_color`).
fn colour_of(change: &Change) -> Colour {
    match change {
        Change::Added => Colour::Green,
        Change::Removed => Colour::Red,
        Change::Modified | Change::Links(_) => Colour::Yellow,
        Change::Renamed(_) => Colour::BoldBlue,
    }
}

/// Runs `zfs diff`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let mut style = Style { paints: colour::wanted(ctx), ..Style::default() };
    for option in &parsed.options {
        match option.letter {
            'F' => style.types = true,
            'H' => style.plain = true,
            't' => style.times = true,
            _ => style.raw = true,
        }
    }
    let names = parsed.names();
    let (from, to) = match names.as_slice() {
        [] => return usage("must provide at least one snapshot name"),
        [from] => (from.as_str(), None),
        [from, to] => (from.as_str(), Some(to.as_str())),
        _ => return usage("too many arguments"),
    };
    let states = States::parse(from, to).map_err(stop)?;
    let node = open(ctx, &states.head, Kinds::FILESYSTEM).map_err(Stop::Fail)?;
    let here = mounted(ctx).map_err(Stop::Fail)?;
    let Some(at) = here.iter().find(|m| m.dataset == node.dataset.name) else {
        return fail(
            "Cannot diff an unmounted snapshot: operation not applicable to datasets of this type",
        );
    };
    // A file system at / has no slash twice.
    let root = match at.mountpoint.as_path() {
        root if root == Path::new("/") => b"",
        root => root.as_os_str().as_bytes(),
    };
    let mut text: Vec<u8> = Vec::with_capacity(2 * BUFFER);
    let show = &mut |ctx: &mut Context, event: &Event<'_>| {
        let Event::Differs(difference) = event else { return Ok(()) };
        if ctx.cancelled() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        line(&mut text, root, style, difference)?;
        if text.len() >= BUFFER {
            ctx.out.raw().write_all(&text)?;
            text.clear();
        }
        Ok(())
    };
    let done = showing(&node.imported, ctx, (show, false), |session| session.diff(&states));
    let written = ctx.out.raw().write_all(&text);
    done.map_err(stop)?;
    Ok(written.map(|()| 0)?)
}

/// One line (`print_file`, `print_rename`, `print_link_change`).
fn line(out: &mut dyn Write, root: &[u8], style: Style, d: &Difference) -> io::Result<()> {
    if style.paints {
        out.write_all(colour_of(&d.change).code())?;
    }
    if style.times {
        write!(out, "{:10}.{:09}\t", d.ctime.0, d.ctime.1)?;
    }
    let letter = match d.change {
        Change::Added => '+',
        Change::Removed => '-',
        Change::Modified | Change::Links(_) => 'M',
        Change::Renamed(_) => 'R',
    };
    write!(out, "{letter}\t")?;
    if style.types {
        write!(out, "{}\t", kind(d.mode))?;
    }
    path(out, &[root, &d.path], style)?;
    match &d.change {
        Change::Renamed(to) => {
            out.write_all(if style.plain { b"\t" } else { b" -> " })?;
            path(out, &[root, to], style)?;
        }
        Change::Links(more) => write!(out, "\t({more:+})")?,
        _ => {}
    }
    out.write_all(b"\n")?;
    if style.paints { out.write_all(PLAIN) } else { Ok(()) }
}

/// A path; bytes that are no visible ASCII as four octal digits, unless they are wanted as they are
/// (`stream_bytes`).
fn path(out: &mut dyn Write, parts: &[&[u8]], style: Style) -> io::Result<()> {
    for byte in parts.iter().copied().flatten() {
        match byte {
            _ if style.raw => out.write_all(&[*byte])?,
            b'!'..=b'~' if *byte != b'\\' => out.write_all(&[*byte])?,
            byte => write!(out, "\\{byte:04o}")?,
        }
    }
    Ok(())
}

/// The sign of a type of file (`get_what`).
fn kind(mode: u32) -> char {
    match mode & 0o170_000 {
        0o060_000 => 'B',
        0o020_000 => 'C',
        0o040_000 => '/',
        0o010_000 => '|',
        0o120_000 => '@',
        0o140_000 => '=',
        0o100_000 => 'F',
        _ => '?',
    }
}
