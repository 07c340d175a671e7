//! `zfs rewrite` and `cenote rewrite` (`zfs_do_rewrite`): the blocks of files are written anew, unmodified, so that they are
//! laid out afresh with the properties that their dataset has now.
//!
//! The command opens each file to be written to, as the user, and asks the mount's server to
//! rewrite one range after the other ([`cenote_fuse::rewrite`]); so it can be interrupted between two
//! ranges at any time, and a file whose rewrite was interrupted is partly at its old place and
//! otherwise the same.

use crate::context::Context;
use crate::options::{Spec, parse};
use crate::progress::Bar;
use cenote_command::outcome::{Outcome, Stop, plain, usage};
use cenote_dsl::human::nicebytes;
use cenote_fuse::{RewriteRange, file_system_of, is_control_directory};
use clap::Args;
use rustix::io::Errno;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes that are asked for at once.
const STEP: u64 = 16 << 20;
/// Without a terminal, a line is written this often.
const SELDOM: Duration = Duration::from_secs(10);

const SPEC: Spec = Spec { short: "CPSl:o:rvx", refused: "", refused_long: &[] };

/// Arguments of `cenote rewrite`.
#[derive(Debug, Default, Args)]
pub struct RewriteArgs {
    /// Leave blocks alone that are shared by block cloning
    #[arg(short = 'C')]
    skip_cloned: bool,
    /// Keep the births of blocks; needs the pool feature physical_rewrite
    #[arg(short = 'P')]
    physical: bool,
    /// Leave blocks alone that snapshots share
    #[arg(short = 'S')]
    skip_snapshots: bool,
    /// Rewrite at most so many bytes of each file
    #[arg(short = 'l', value_name = "LENGTH", value_parser = number)]
    length: Option<u64>,
    /// Start at this byte of each file
    #[arg(short = 'o', value_name = "OFFSET", value_parser = number)]
    offset: Option<u64>,
    /// Rewrite all files in directories
    #[arg(short)]
    recursive: bool,
    /// Print the names of files that were rewritten
    #[arg(short)]
    verbose: bool,
    /// Stay in the file systems of the paths given
    #[arg(short = 'x')]
    one_file_system: bool,
    /// Print a summary as JSON
    #[arg(long)]
    json: bool,
    /// Files, and with -r directories
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

/// A number of bytes as `strtoll` reads it: decimal, `0x` and hexadecimal, `0` and octal.
fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(text, 8),
        None => text.parse(),
    };
    parsed.map_err(|e| format!("bad number '{text}': {e}"))
}

/// Runs `zfs rewrite`.
pub fn zfs(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let mut wanted = RewriteArgs::default();
    for opt in &parsed.options {
        let bytes = || number(&opt.text()).map(Some).map_err(Stop::Usage);
        match opt.letter {
            'C' => wanted.skip_cloned = true,
            'P' => wanted.physical = true,
            'S' => wanted.skip_snapshots = true,
            'l' => wanted.length = bytes()?,
            'o' => wanted.offset = bytes()?,
            'r' => wanted.recursive = true,
            'v' => wanted.verbose = true,
            _ => wanted.one_file_system = true,
        }
    }
    if parsed.operands.is_empty() {
        return usage("missing file or directory target(s)");
    }
    wanted.paths = parsed.operands;
    run(&wanted, ctx)
}

/// What was done, and `--json`'s output.
#[derive(Clone, Debug, Default, Serialize)]
struct Summary {
    /// Files that were rewritten.
    files: u64,
    /// Bytes of their ranges, holes included.
    bytes: u64,
    /// Files and directories that could not be.
    errors: u64,
    /// Time it took.
    seconds: f64,
}

/// What is done with a file or directory, or with why it cannot be looked at.
type Visit<'f, R> = dyn FnMut(&mut R, &Path, io::Result<Metadata>) -> io::Result<()> + 'f;

struct Rewriter<'a> {
    args: &'a RewriteArgs,
    ctx: &'a mut Context,
    bar: Option<Bar>,
    summary: Summary,
    started: Instant,
    said: Instant,
}

/// Runs `cenote rewrite`. The exit code is 1 if anything could not be rewritten.
pub fn run(args: &RewriteArgs, ctx: &mut Context) -> Outcome {
    let now = Instant::now();
    let bar = if args.json { None } else { Bar::on_terminal(ctx) };
    let summary = Summary::default();
    let mut rewriter = Rewriter { args, ctx, bar, summary, started: now, said: now };
    for path in &args.paths {
        rewriter.measure(path);
    }
    for path in &args.paths {
        rewriter.rewrite(path)?;
    }
    rewriter.finish()
}

impl Rewriter<'_> {
    /// Bytes of the range of a file to be rewritten.
    fn share(&self, file: &Metadata) -> u64 {
        let after = file.len().saturating_sub(self.args.offset.unwrap_or(0));
        after.min(self.args.length.filter(|l| *l != 0).unwrap_or(u64::MAX))
    }

    /// Calls `f` with all files that a path stands for; what is wrong is left to `f`, too.
    fn walk(&mut self, path: &OsStr, f: &mut Visit<'_, Self>) -> io::Result<()> {
        let top = PathBuf::from(path);
        let found = fs::symlink_metadata(self.ctx.path(&top));
        let directory = found.as_ref().ok().filter(|m| m.is_dir() && self.args.recursive);
        let Some(root) = directory.map(file_system_of) else { return f(self, &top, found) };
        let mut todo = vec![top];
        while let Some(dir) = todo.pop() {
            let entries = match fs::read_dir(self.ctx.path(&dir)) {
                Ok(entries) => entries,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => {
                    f(self, &dir, Err(e))?;
                    continue;
                }
            };
            let mut entries: Vec<_> = entries.collect();
            entries.sort_by_key(|entry| entry.as_ref().map(fs::DirEntry::file_name).ok());
            let mut below = Vec::new();
            for entry in entries {
                let (path, found) = match entry {
                    Ok(entry) => (dir.join(entry.file_name()), entry.metadata()),
                    Err(e) => (dir.clone(), Err(e)),
                };
                match found {
                    Ok(m) if self.args.one_file_system && file_system_of(&m) != root => {}
                    Ok(m) if is_control_directory(&m) => {}
                    Ok(m) if m.is_dir() => below.push(path),
                    Ok(m) if !m.is_file() => {}
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    found => f(self, &path, found)?,
                }
            }
            todo.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// Tells the bar how much there will be.
    fn measure(&mut self, path: &OsStr) {
        if self.bar.is_none() {
            return;
        }
        // What cannot be looked at is reported when it is rewritten.
        let _ = self.walk(path, &mut |this, _, found| {
            if let (Some(bar), Ok(file)) = (&this.bar, found) {
                bar.expect(this.share(&file));
            }
            Ok(())
        });
    }

    fn rewrite(&mut self, path: &OsStr) -> io::Result<()> {
        self.walk(path, &mut |this, path, found| match found {
            Ok(m) if m.is_file() => this.file(path, &m),
            Ok(m) => {
                let why = if m.is_dir() { "is a directory (use -r)" } else { "not a regular file" };
                // As under OpenZFS this is no failure.
                this.say(format_args!("skipping {}: {why}", path.display()));
                Ok(())
            }
            Err(e) => {
                this.error("look at", path, &plain(&e));
                Ok(())
            }
        })
    }

    /// Rewrites a file. Errors: the output cannot be written.
    fn file(&mut self, path: &Path, found: &Metadata) -> io::Result<()> {
        let file = match OpenOptions::new().write(true).open(self.ctx.path(path)) {
            Ok(file) => file,
            Err(e) => {
                self.error("open", path, &plain(&e));
                return Ok(());
            }
        };
        let (mut at, mut left) = (self.args.offset.unwrap_or(0), self.share(found));
        loop {
            // An empty range is asked for as well: whether it can be had is known then.
            let range = RewriteRange {
                offset: at,
                length: left.clamp(1, STEP),
                physical: self.args.physical,
                skip_snapshots: self.args.skip_snapshots,
                skip_cloned: self.args.skip_cloned,
            };
            if let Err(e) = cenote_fuse::rewrite(&file, &range) {
                self.error("rewrite", path, &self.reason(&e));
                return Ok(());
            }
            let done = left.min(STEP);
            self.advance(done);
            (at, left) = (at.saturating_add(done), left.saturating_sub(done));
            if left == 0 {
                break;
            }
        }
        self.summary.files = self.summary.files.saturating_add(1);
        if self.args.verbose {
            let name = path.as_os_str().as_bytes();
            self.ctx.out.write_name(name)?;
            writeln!(self.ctx.out)?;
            self.ctx.out.flush()?;
        }
        Ok(())
    }

    fn reason(&self, e: &io::Error) -> String {
        match e.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOTTY) => "not in a mounted file system of a pool".into(),
            Some(Errno::OPNOTSUPP) if self.args.physical => {
                "physical rewrite (-P) needs the pool feature physical_rewrite, \
                 which is not enabled"
                    .into()
            }
            _ => plain(e),
        }
    }

    fn error(&mut self, what: &str, path: &Path, why: &str) {
        self.summary.errors = self.summary.errors.saturating_add(1);
        self.say(format_args!("failed to {what} {}: {why}", path.display()));
    }

    fn say(&mut self, message: std::fmt::Arguments<'_>) {
        match &self.bar {
            Some(bar) => bar.say(message, self.ctx),
            None => self.ctx.complain(message),
        }
    }

    fn advance(&mut self, bytes: u64) {
        self.summary.bytes = self.summary.bytes.saturating_add(bytes);
        match &self.bar {
            Some(bar) => bar.advance(bytes, self.ctx),
            None if self.args.verbose && self.said.elapsed() >= SELDOM => {
                self.said = Instant::now();
                let line = self.line();
                self.ctx.complain(line);
            }
            None => {}
        }
    }

    fn line(&self) -> String {
        let s = &self.summary;
        let seconds = self.started.elapsed().as_secs_f64().max(1e-3);
        let rate = nicebytes((s.bytes as f64 / seconds) as u64);
        format!("{} files, {}, {rate}/s", s.files, nicebytes(s.bytes))
    }

    fn finish(mut self) -> Outcome {
        if let Some(bar) = &self.bar {
            bar.finish(self.ctx);
        }
        self.summary.seconds = self.started.elapsed().as_secs_f64();
        if self.args.json {
            let text = serde_json::to_string(&self.summary).map_err(io::Error::from)?;
            writeln!(self.ctx.out, "{text}")?;
        } else if self.args.verbose || self.bar.is_some() {
            let line = self.line();
            self.ctx.complain(line);
        }
        Ok(i32::from(self.summary.errors > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        assert_eq!(number("4096"), Ok(4096));
        assert_eq!(number("0x1000"), Ok(4096));
        assert_eq!(number("010"), Ok(8));
        assert_eq!(number("0"), Ok(0));
        for bad in ["", "-1", "12k", "0x", "089"] {
            assert!(number(bad).is_err(), "{bad}");
        }
    }
}
