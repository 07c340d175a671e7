//! `zfs diff`: what differs between a snapshot and a later one, or the file system as it is now.
//!
//! For the file system as it is now a snapshot is taken, and destroyed in the end.

use super::change::{of_the_command, permit};
use crate::colour::{self, Colour, PLAIN};
use crate::context::Context;
use crate::options::{Spec, parse};
use crate::pools::Imported;
use crate::zfs::select::{Kinds, mounted, open};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_dsl::{Dataset, Dsl};
use cenote_engine::change::policy::Operation;
use cenote_engine::change::{ChangeError, Changes, NewSnapshot};
use cenote_zpl::{Change, DiffStop, Difference, differences};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const SPEC: Spec = Spec { short: "FHth", refused: "", refused_long: &[] };
/// How the name of the snapshot of the file system as it is now begins (`ZDIFF_PREFIX`).
const PREFIX: &str = "zfs-diff-";
/// Why names are refused that name no two states.
const WHICH: &str = "Unable to determine which snapshots to compare: invalid name";
/// What is said to users who may not compare.
const NEEDED: &str = "The sys_mount privilege or diff delegated permission is needed\n   \
                      to execute the diff ioctl";
const NOT_EARLIER: &str = "Not an earlier snapshot from the same fs";

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
    let pair = Pair::parse(from, to)?;
    let node = match open(ctx, &pair.head, Kinds::FILESYSTEM) {
        Ok(node) => node,
        Err(why) => return fail(why),
    };
    let here = mounted(ctx).map_err(Stop::Fail)?;
    let Some(at) = here.iter().find(|m| m.dataset == node.dataset.name) else {
        return fail(
            "Cannot diff an unmounted snapshot: operation not applicable to datasets of this type",
        );
    };
    let root = at.mountpoint.clone();
    let imported = node.imported;
    let states = Operation::Diff { from: &pair.from, to: pair.to.as_ref().unwrap_or(&pair.head) };
    match permit(&imported, ctx, &states) {
        Ok(()) => {}
        Err(ChangeError::Denied) => return fail(format!("Unable to obtain diffs: \n   {NEEDED}")),
        Err(e) => return fail(format!("Unable to obtain diffs: {e}")),
    }
    let Some(now) = Now::take(&imported, &pair)? else {
        let to = pair.to.unwrap_or_default();
        return show(&imported, (&pair.from, &to), (&root, style), ctx);
    };
    let done = show(&imported, (&pair.from, &now.name), (&root, style), ctx);
    now.drop(&imported, ctx);
    done
}

/// The two states that a command line names.
#[derive(Debug, PartialEq, Eq)]
struct Pair {
    /// The file system of the later one.
    head: String,
    from: String,
    /// A snapshot; `None`: the file system as it is now.
    to: Option<String>,
}

impl Pair {
    /// `get_snapshot_names`.
    fn parse(from: &str, to: Option<&str>) -> Result<Pair, Stop> {
        let which = || Stop::Fail(WHICH.into());
        let Some(to) = to else {
            let Some((head, _)) = from.split_once('@').filter(|(head, _)| !head.is_empty()) else {
                return fail(format!(
                    "Badly formed snapshot name {from}: missing '@' delimiter in snapshot name"
                ));
            };
            return Ok(Pair { head: head.into(), from: from.into(), to: None });
        };
        let (from_head, from_snap) = from.split_once('@').ok_or_else(which)?;
        let (to_head, to_snap) = match to.split_once('@') {
            Some((head, snap)) => (head, Some(snap)),
            None => (to, None),
        };
        if from_snap.is_empty()
            || to_snap.is_some_and(str::is_empty)
            || from_head.is_empty() && to_head.is_empty()
        {
            return Err(which());
        }
        let head = if to_head.is_empty() { from_head } else { to_head };
        let from_head = if from_head.is_empty() { head } else { from_head };
        Ok(Pair {
            head: head.into(),
            from: format!("{from_head}@{from_snap}"),
            to: to_snap.map(|snap| format!("{head}@{snap}")),
        })
    }
}

/// The snapshot of the file system as it is now. A pool that is not written to is as it is.
struct Now {
    name: String,
    changes: Option<Changes>,
}

impl Now {
    /// `make_temp_snapshot`. `None` if the later state is a snapshot.
    fn take(imported: &Imported, pair: &Pair) -> Result<Option<Now>, Stop> {
        if pair.to.is_some() {
            return Ok(None);
        }
        if imported.writable().is_err() {
            return Ok(Some(Now { name: pair.head.clone(), changes: None }));
        }
        let cannot = |e: &dyn std::fmt::Display| {
            let of = &pair.head;
            Stop::Fail(format!("Cannot create just-in-time snapshot of '{of}': {e}"))
        };
        let changes = of_the_command(imported).map_err(|e| cannot(&e))?;
        // Two commands at once do not take each other's.
        let turn = imported.pool().uberblock().txg;
        for again in 0..u64::from(u8::MAX) {
            let name = format!("{}@{PREFIX}{}", pair.head, turn + again);
            if imported.pool().dsl().find(&name).ok().flatten().is_some() {
                continue;
            }
            match changes.snapshot(&NewSnapshot { names: vec![name.clone()], props: vec![] }) {
                Ok(()) => return Ok(Some(Now { name, changes: Some(changes) })),
                Err((_, ChangeError::Exists)) => {}
                Err((_, e)) => return Err(cannot(&e)),
            }
        }
        Err(cannot(&"dataset is busy"))
    }

    fn drop(self, imported: &Imported, ctx: &mut Context) {
        let Some(changes) = self.changes else { return };
        let names = [self.name];
        let _ = imported.mounts.close_snapshots(&names);
        if let Err(refused) = changes.destroy_snapshots(&names, false) {
            for (_, e) in refused {
                ctx.complain(format_args!("cannot destroy '{}': {e}", names[0]));
            }
        }
    }
}

/// Finds a state; its text says why it is not there.
fn find(dsl: &Dsl, name: &str) -> Result<Dataset, Stop> {
    let unable = |e: &dyn std::fmt::Display| Stop::Fail(format!("Unable to obtain diffs: {e}"));
    let found = dsl.find(name).map_err(|e| unable(&e))?;
    found.ok_or_else(|| unable(&"No such file or directory"))
}

fn show(
    imported: &Imported,
    (from, to): (&str, &str),
    (root, style): (&Path, Style),
    ctx: &mut Context,
) -> Outcome {
    let pool = imported.pool();
    let dsl = pool.dsl();
    let unable = |e: &dyn std::fmt::Display| Stop::Fail(format!("Unable to obtain diffs: {e}"));
    let (from, to) = (find(dsl, from)?, find(dsl, to)?);
    let earlier = dsl.sizes_since(&to, &from).map_err(|e| unable(&e))?;
    if earlier.is_none() {
        return Err(unable(&format_args!("\n   {NOT_EARLIER}")));
    }
    let open = |d: &Dataset| dsl.open_objset(d).map_err(|e| unable(&e));
    let (old, new) = ((open(&from)?, from.ds.creation_txg), open(&to)?);
    // A file system at / has no slash twice.
    let root = if root == Path::new("/") { b"" } else { root.as_os_str().as_bytes() };
    let (mut unknown, cancel) = (Vec::new(), ctx.cancel.clone());
    let mut out = io::BufWriter::with_capacity(64 << 10, ctx.out.raw());
    let mut tell = |difference: Difference| {
        if cancel.is_cancelled() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        line(&mut out, root, style, &difference)
    };
    let mut note = |object: u64, e: cenote_zpl::Error| -> io::Result<()> {
        unknown.push(format!("Unable to determine path or stats for object {object}: {e}"));
        Ok(())
    };
    let done = differences(old, new, &mut tell, &mut note);
    let flushed = out.flush();
    drop(out);
    unknown.into_iter().for_each(|line| ctx.complain(line));
    match done {
        Ok(()) => flushed.map(|()| 0).map_err(Stop::from),
        Err(DiffStop::Told(e)) => Err(e.into()),
        Err(DiffStop::Read(e)) => Err(unable(&e)),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_names_say_which_states_are_compared() {
        let pair = |from: &str, to: Option<&str>| {
            let p = Pair::parse(from, to).ok()?;
            Some(format!("{} {} {}", p.head, p.from, p.to.unwrap_or_default()))
        };
        for (from, to, what) in [
            ("p/a@1", None, "p/a p/a@1 "),
            ("p/a@1", Some("p/a@2"), "p/a p/a@1 p/a@2"),
            ("p/a@1", Some("@2"), "p/a p/a@1 p/a@2"),
            ("p/a@1", Some("p/a"), "p/a p/a@1 "),
            ("@1", Some("p/a@2"), "p/a p/a@1 p/a@2"),
            ("@1", Some("p/a"), "p/a p/a@1 "),
            ("p/a@1", Some("p/clone@2"), "p/clone p/a@1 p/clone@2"),
        ] {
            assert_eq!(pair(from, to).as_deref(), Some(what), "{from} {to:?}");
        }
        for (from, to) in
            [("p/a", None), ("p/a", Some("p/a@1")), ("@1", Some("@2")), ("p/a@", Some("p/a"))]
        {
            assert_eq!(pair(from, to), None, "{from} {to:?}");
        }
    }
}
