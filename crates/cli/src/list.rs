//! `cenote ls` and `cenote cat`: looking into a dataset without mounting it.
//!
//! Names are `pool/fs[@snapshot][:/path]`; a `Locator` finds them in an imported pool, or in one that it opens
//! read-only from devices (`-d`). `ls` lists files by name, as `ls` does, and goes down with a stack of its own.
//! `cat` writes files or volumes to standard output, a piece at a time, and asks for the pieces that follow.
//!
//! What cannot be read is said, and the rest follows; the exit code is then 1. A directory that is met twice on the
//! way down is reported and not entered again, so that a damaged pool cannot make the listing endless.

use crate::context::Context;
use crate::locate::{KeyArgs, Locator, Name, Place};
use cenote_command::clock;
use cenote_command::outcome::Outcome;
use cenote_zpl::{Attr, FileSystem};
use clap::Args;
use std::collections::HashSet;
use std::ffi::OsString;
use std::io;

/// Directory entries read at a time.
const BATCH: usize = 1024;
/// Bytes of a file read at a time.
const CHUNK: usize = 1 << 20;
/// Bytes asked for ahead of reading.
const AHEAD: u64 = 8 << 20;

/// Arguments of `cenote ls`.
#[derive(Debug, Args)]
pub struct LsArgs {
    /// Show type, mode, links, owner, group, size and time of modification
    #[arg(short)]
    long: bool,
    /// Show names that begin with a dot
    #[arg(short)]
    all: bool,
    /// List what is in directories, too
    #[arg(short = 'R')]
    recursive: bool,
    /// Open the pool from the devices in DIR (or the image file DIR) instead of an imported one
    #[arg(short = 'd', value_name = "DIR")]
    dirs: Vec<OsString>,
    #[command(flatten)]
    keys: KeyArgs,
    /// What to list: pool/fs[@snapshot][:/path]
    #[arg(required = true, value_name = "DATASET[:/PATH]")]
    names: Vec<OsString>,
}

impl LsArgs {
    /// Whether the command works on imported pools.
    pub fn needs_imported_pool(&self) -> bool {
        self.dirs.is_empty()
    }
}

/// Arguments of `cenote cat`.
#[derive(Debug, Args)]
pub struct CatArgs {
    /// Open the pool from the devices in DIR (or the image file DIR) instead of an imported one
    #[arg(short = 'd', value_name = "DIR")]
    dirs: Vec<OsString>,
    #[command(flatten)]
    keys: KeyArgs,
    /// What to write out: pool/fs[@snapshot]:/path, or a volume
    #[arg(required = true, value_name = "DATASET:/PATH")]
    names: Vec<OsString>,
}

impl CatArgs {
    /// Whether the command works on imported pools.
    pub fn needs_imported_pool(&self) -> bool {
        self.dirs.is_empty()
    }
}

/// Runs `cenote ls`; returns the exit code.
pub fn ls(args: &LsArgs, ctx: &mut Context) -> i32 {
    let outcome = ls_all(args, ctx);
    ctx.conclude(outcome, "")
}

fn ls_all(args: &LsArgs, ctx: &mut Context) -> Outcome {
    let mut locator = Locator::new(&args.dirs, &args.keys, ctx);
    let mut lister =
        Lister { args, good: true, titled: args.names.len() > 1 || args.recursive, first: true };
    for name in args.names.iter().map(|n| Name::parse(n)) {
        match locator.open(&name, false, ctx) {
            Err(message) => lister.bad(message, ctx),
            Ok(Place::Volume(_)) => {
                lister.bad(format!("cannot list '{}': it is a volume", name.show()), ctx);
            }
            Ok(Place::File(fs, ino)) => lister.list(&fs, ino, &name, ctx)?,
        }
        if let Some(message) = locator.left_out() {
            lister.bad(message, ctx);
        }
    }
    Ok(i32::from(!lister.good))
}

/// One listed file.
struct Entry {
    name: Vec<u8>,
    ino: u64,
    attr: Option<Attr>,
}

struct Lister<'a> {
    args: &'a LsArgs,
    good: bool,
    /// Directories get a title line.
    titled: bool,
    first: bool,
}

impl Lister<'_> {
    fn bad(&mut self, message: String, ctx: &mut Context) {
        ctx.complain(format_args!("cenote ls: {message}"));
        self.good = false;
    }

    /// Lists a file, or what is in a directory (and below it).
    fn list(
        &mut self,
        fs: &FileSystem,
        ino: u64,
        name: &Name,
        ctx: &mut Context,
    ) -> io::Result<()> {
        let attr = match fs.attr(ino) {
            Ok(attr) => attr,
            Err(e) => {
                self.bad(format!("cannot read '{}': {e}", name.show()), ctx);
                return Ok(());
            }
        };
        if !attr.is_dir() {
            let shown = name.show().into_bytes();
            return self.show(fs, &[Entry { name: shown, ino, attr: Some(attr) }], ctx);
        }
        let mut seen = HashSet::from([ino]);
        let mut todo = vec![(ino, name.path.clone())];
        while let Some((dir, path)) = todo.pop() {
            if ctx.cancelled() {
                return Ok(());
            }
            let here = Name { dataset: name.dataset.clone(), path };
            let entries = self.entries(fs, dir, &here, ctx);
            if self.titled {
                let gap = if self.first { "" } else { "\n" };
                write!(ctx.out, "{gap}")?;
                ctx.out.write_name(here.show().as_bytes())?;
                writeln!(ctx.out, ":")?;
            }
            self.first = false;
            self.show(fs, &entries, ctx)?;
            if self.args.recursive {
                for entry in entries.iter().rev() {
                    let below = entry.name != b"." && entry.name != b"..";
                    if below && entry.attr.as_ref().is_some_and(Attr::is_dir) {
                        if seen.insert(entry.ino) {
                            todo.push((entry.ino, join(&here.path, &entry.name)));
                        } else {
                            let path = String::from_utf8_lossy(&entry.name).into_owned();
                            self.bad(
                                format!("'{}': directory {path} is in it twice", here.show()),
                                ctx,
                            );
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// What is in a directory, sorted by name.
    fn entries(&mut self, fs: &FileSystem, dir: u64, name: &Name, ctx: &mut Context) -> Vec<Entry> {
        let wants_attr = self.args.long || self.args.recursive;
        let mut entries = Vec::new();
        let mut cookie = 0;
        loop {
            let batch = match fs.readdir(dir, cookie, BATCH) {
                Ok(batch) => batch,
                Err(e) => {
                    self.bad(format!("cannot read '{}': {e}", name.show()), ctx);
                    break;
                }
            };
            let Some(last) = batch.last() else { break };
            cookie = last.cookie;
            for found in batch {
                if found.name.first() == Some(&b'.') && !self.args.all {
                    continue;
                }
                entries.push(Entry { name: found.name, ino: found.ino, attr: None });
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        if self.args.all {
            let parent = fs.lookup(dir, b"..").unwrap_or(dir);
            let dots = [(&b"."[..], dir), (&b".."[..], parent)];
            entries.splice(0..0, dots.map(|(n, ino)| Entry { name: n.to_vec(), ino, attr: None }));
        }
        for entry in entries.iter_mut().filter(|_| wants_attr) {
            match fs.attr(entry.ino) {
                Ok(attr) => entry.attr = Some(attr),
                Err(e) => {
                    let path = String::from_utf8_lossy(&join(&name.path, &entry.name)).into_owned();
                    self.bad(format!("cannot read '{}:{path}': {e}", name.dataset), ctx);
                }
            }
        }
        entries
    }

    fn show(&mut self, fs: &FileSystem, entries: &[Entry], ctx: &mut Context) -> io::Result<()> {
        let widths = Widths::of(entries);
        for entry in entries {
            if self.args.long {
                let line = match &entry.attr {
                    Some(attr) => widths.line(attr, ctx),
                    None => "??????????".into(),
                };
                write!(ctx.out, "{line} ")?;
            }
            ctx.out.write_name(&entry.name)?;
            if self.args.long && entry.attr.as_ref().is_some_and(Attr::is_symlink) {
                match fs.readlink(entry.ino) {
                    Ok(target) => {
                        write!(ctx.out, " -> ")?;
                        ctx.out.write_name(&target)?;
                    }
                    Err(e) => self.bad(format!("cannot read link: {e}"), ctx),
                }
            }
            writeln!(ctx.out)?;
        }
        Ok(())
    }
}

/// `dir/name`.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Widths of the columns of a long listing.
struct Widths {
    nlink: usize,
    uid: usize,
    gid: usize,
    size: usize,
}

impl Widths {
    fn of(entries: &[Entry]) -> Widths {
        let attrs = || entries.iter().filter_map(|e| e.attr.as_ref());
        let widest = |f: &dyn Fn(&Attr) -> String| attrs().map(|a| f(a).len()).max().unwrap_or(1);
        Widths {
            nlink: widest(&|a| a.nlink.to_string()),
            uid: widest(&|a| a.uid.to_string()),
            gid: widest(&|a| a.gid.to_string()),
            size: widest(&size_column),
        }
    }

    fn line(&self, a: &Attr, ctx: &Context) -> String {
        let when = clock::format(&ctx.caller, a.mtime.0, "%Y-%m-%d %H:%M");
        let (nlink, uid, gid, size) = (self.nlink, self.uid, self.gid, self.size);
        format!(
            "{} {:>nlink$} {:<uid$} {:<gid$} {:>size$} {when}",
            mode_text(a.mode),
            a.nlink,
            a.uid,
            a.gid,
            size_column(a)
        )
    }
}

/// A device's numbers stand where a file's size does.
fn size_column(a: &Attr) -> String {
    match a.mode & 0o170_000 {
        0o020_000 | 0o060_000 => format!("{}, {}", a.rdev.0, a.rdev.1),
        _ => a.size.to_string(),
    }
}

/// `drwxr-xr-x`.
fn mode_text(mode: u32) -> String {
    let kind = match mode & 0o170_000 {
        0o040_000 => 'd',
        0o120_000 => 'l',
        0o020_000 => 'c',
        0o060_000 => 'b',
        0o010_000 => 'p',
        0o140_000 => 's',
        _ => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, set, letter) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => set,
            (false, true) => letter,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Runs `cenote cat`; returns the exit code.
pub fn cat(args: &CatArgs, ctx: &mut Context) -> i32 {
    let outcome = cat_all(args, ctx);
    ctx.conclude(outcome, "")
}

fn cat_all(args: &CatArgs, ctx: &mut Context) -> Outcome {
    let mut locator = Locator::new(&args.dirs, &args.keys, ctx);
    let mut good = true;
    for name in args.names.iter().map(|n| Name::parse(n)) {
        let written = match locator.open(&name, true, ctx) {
            Ok(place) => write_out(&place, ctx)?,
            Err(message) => Err(message),
        };
        if let Err(message) = written {
            ctx.complain(format_args!("cenote cat: {}: {message}", name.show()));
            good = false;
        }
        if let Some(message) = locator.left_out() {
            ctx.complain(format_args!("cenote cat: {message}"));
            good = false;
        }
    }
    Ok(i32::from(!good))
}

/// Writes a file or volume out; the inner error is about reading it.
fn write_out(place: &Place, ctx: &mut Context) -> io::Result<Result<(), String>> {
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0u64;
    let file = match place {
        Place::File(fs, ino) => match fs.open_file(*ino) {
            Ok(file) => Some(file),
            Err(e) => return Ok(Err(e.to_string())),
        },
        Place::Volume(_) => None,
    };
    while !ctx.cancelled() {
        let read = match (&file, place) {
            (Some(file), _) => {
                file.prefetch(offset, AHEAD);
                file.read(offset, &mut buffer)
            }
            (None, Place::Volume(volume)) => volume.read(offset, &mut buffer),
            (None, Place::File(..)) => return Ok(Ok(())),
        };
        match read {
            Err(e) => return Ok(Err(format!("at byte {offset}: {e}"))),
            Ok(0) => return Ok(Ok(())),
            Ok(n) => {
                ctx.out.raw().write_all(buffer.get(..n).unwrap_or_default())?;
                offset = offset.saturating_add(n as u64);
            }
        }
    }
    Ok(Err("interrupted".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_as_ls_shows_them() {
        assert_eq!(mode_text(0o100_644), "-rw-r--r--");
        assert_eq!(mode_text(0o104_755), "-rwsr-xr-x");
        assert_eq!(mode_text(0o102_644), "-rw-r-Sr--");
        assert_eq!(mode_text(0o041_777), "drwxrwxrwt");
        assert_eq!(mode_text(0o120_777), "lrwxrwxrwx");
    }
}
