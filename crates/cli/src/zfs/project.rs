//! `zfs project`: the projects that files and directories are in, listed, checked, set and cleared (`zfs_do_project`).
//!
//! The command opens each file, as the user, and asks its file system ([`cenote_fuse::project`]). Below a directory it
//! looks at regular files and directories only; links are not followed.

use crate::context::Context;
use crate::options::{Spec, parse};
use cenote_command::outcome::{Outcome, Stop, plain, usage};
use cenote_fuse::{Project, is_control_directory, project, set_project};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const SPEC: Spec = Spec { short: "0Ccdkp:rs", refused: "", refused_long: &[] };

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    List,
    Check,
    Clear,
    Set,
}

/// The options.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    what: What,
    /// `-p`
    id: Option<u32>,
    /// `-d`: the directory alone.
    alone: bool,
    /// `-k`: the number stays.
    keep: bool,
    /// `-0`: names only, each with a zero byte behind it.
    zeros: bool,
    /// `-r`
    recursive: bool,
    /// `-s`
    inherit: bool,
}

/// Runs `zfs project`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let (mut what, mut good) = (None, true);
    let mut wanted = Wanted {
        what: What::List,
        id: None,
        alone: false,
        keep: false,
        zeros: false,
        recursive: false,
        inherit: false,
    };
    for opt in &parsed.options {
        let mut choose = |chosen| match what.replace(chosen) {
            None => Ok(()),
            Some(_) => usage("cannot specify '-C' '-c' '-s' together"),
        };
        match opt.letter {
            '0' => wanted.zeros = true,
            'C' => choose(What::Clear)?,
            'c' => choose(What::Check)?,
            's' => choose(What::Set)?,
            'd' => (wanted.alone, wanted.recursive) = (true, false),
            'r' => (wanted.alone, wanted.recursive) = (false, true),
            'k' => wanted.keep = true,
            _ => wanted.id = Some(id(&opt.text())?),
        }
    }
    wanted.inherit = what == Some(What::Set);
    wanted.what = what.unwrap_or(if wanted.id.is_some() { What::Set } else { What::List });
    wanted.check()?;
    if parsed.operands.is_empty() {
        return usage("missing file or directory target(s)");
    }
    for path in &parsed.operands {
        good &= Job { wanted, ctx }.target(Path::new(path))?;
    }
    Ok(i32::from(!good))
}

/// A number of a project, as `strtoull` reads it.
fn id(text: &str) -> Result<u32, Stop> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(text, 8),
        None => text.parse(),
    };
    match number.map(u32::try_from) {
        Err(_) => usage(format!("project ID must be less than {}", u32::MAX)),
        Ok(Ok(id)) if id != u32::MAX => Ok(id),
        Ok(_) => usage("invalid project ID"),
    }
}

impl Wanted {
    /// Whether the options go together.
    fn check(&self) -> Result<(), Stop> {
        let useless = match self.what {
            What::Clear => "'-d' is useless together with '-C'",
            _ => "'-d' is useless for set project ID and/or inherit flag",
        };
        match self.what {
            What::Clear | What::Set if self.alone => usage(useless),
            What::List | What::Check | What::Set if self.keep => {
                usage("'-k' is only valid together with '-C'")
            }
            What::List | What::Clear | What::Set if self.zeros => {
                usage("'-0' is only valid together with '-c'")
            }
            What::Clear if self.id.is_some() => usage("'-p' is useless together with '-C'"),
            _ => Ok(()),
        }
    }

    /// The project that a file gets; `None`: it stays.
    fn change(&self, now: Project, expected: u32) -> Option<Project> {
        let to = match self.what {
            What::List | What::Check => now,
            What::Clear => Project { id: if self.keep { now.id } else { 0 }, inherits: false },
            What::Set => Project { id: expected, inherits: now.inherits || self.inherit },
        };
        (to != now).then_some(to)
    }
}

struct Job<'a> {
    wanted: Wanted,
    ctx: &'a mut Context,
}

impl Job<'_> {
    /// Handles one operand. Returns whether all went well; what did not was said. Errors: the output cannot be written.
    fn target(&mut self, path: &Path) -> io::Result<bool> {
        let Wanted { what, alone, recursive, .. } = self.wanted;
        let found = match fs::metadata(self.ctx.path(path)) {
            Ok(found) => found,
            Err(e) => return Ok(self.failed("stat", path, &e)),
        };
        if !found.is_file() && !found.is_dir() {
            self.ctx.complain("only support project quota on regular file or directory");
            return Ok(false);
        }
        let options = [(alone, 'd'), (recursive, 'r')];
        if let Some((_, letter)) = options.iter().find(|(set, _)| *set && !found.is_dir()) {
            let name = path.display();
            self.ctx.complain(format_args!("'-{letter}' option on non-dir target {name}"));
            return Ok(false);
        }
        let Some((file, now)) = self.open(path) else { return Ok(false) };
        let expected = self.wanted.id.unwrap_or(now.id);
        if !self.one(path, &file, now, expected)? {
            return Ok(false);
        }
        let looks = recursive || matches!(what, What::List | What::Check);
        match found.is_dir() && !alone && looks {
            true => self.below(path, expected),
            false => Ok(true),
        }
    }

    /// Everything in a directory, with `-r` at every depth.
    fn below(&mut self, top: &Path, expected: u32) -> io::Result<bool> {
        let mut todo = vec![top.to_path_buf()];
        while let Some(dir) = todo.pop() {
            let entries = match fs::read_dir(self.ctx.path(&dir)) {
                Ok(entries) => entries,
                Err(e) if e.kind() == io::ErrorKind::NotFound && dir != top => continue,
                Err(e) => return Ok(self.failed("opendir", &dir, &e)),
            };
            let mut paths: Vec<PathBuf> = Vec::new();
            for entry in entries {
                match entry {
                    Ok(entry) => paths.push(dir.join(entry.file_name())),
                    Err(e) => return Ok(self.failed("readdir", &dir, &e)),
                }
            }
            paths.sort();
            let mut inner = Vec::new();
            for path in paths {
                // What went away meanwhile is passed over.
                let Ok(found) = fs::symlink_metadata(self.ctx.path(&path)) else { continue };
                if !(found.is_file() || found.is_dir()) || is_control_directory(&found) {
                    continue;
                }
                let Some((file, now)) = self.open(&path) else { return Ok(false) };
                if !self.one(&path, &file, now, expected)? {
                    return Ok(false);
                }
                if found.is_dir() && self.wanted.recursive {
                    inner.push(path);
                }
            }
            todo.extend(inner.into_iter().rev());
        }
        Ok(true)
    }

    fn open(&mut self, path: &Path) -> Option<(File, Project)> {
        let file = match File::open(self.ctx.path(path)) {
            Ok(file) => file,
            Err(e) => {
                self.failed("open", path, &e);
                return None;
            }
        };
        match project(&file) {
            Ok(now) => Some((file, now)),
            Err(e) => {
                self.failed("get xattr for", path, &e);
                None
            }
        }
    }

    /// One file or directory.
    fn one(&mut self, path: &Path, file: &File, now: Project, expected: u32) -> io::Result<bool> {
        match self.wanted.what {
            What::List => {
                let flag = if now.inherits { 'P' } else { '-' };
                write!(self.ctx.out, "{:>5} {flag} ", now.id)?;
                self.say(path, "\n")?;
            }
            What::Check if now == (Project { id: expected, inherits: true }) => {}
            What::Check if self.wanted.zeros => {
                self.ctx.out.raw().write_all(path.as_os_str().as_bytes())?;
                self.ctx.out.raw().write_all(b"\0")?;
            }
            What::Check => {
                if now.id != expected {
                    let why =
                        format!(" - project ID is not set properly ({}/{expected})\n", now.id);
                    self.say(path, &why)?;
                }
                if !now.inherits {
                    self.say(path, " - project inherit flag is not set\n")?;
                }
            }
            What::Clear | What::Set => {
                let change = self.wanted.change(now, expected);
                if let Some(Err(e)) = change.map(|to| set_project(file, to)) {
                    return Ok(self.failed("set xattr for", path, &e));
                }
            }
        }
        Ok(true)
    }

    /// Writes a path, and what follows it.
    fn say(&mut self, path: &Path, rest: &str) -> io::Result<()> {
        self.ctx.out.write_name(path.as_os_str().as_bytes())?;
        write!(self.ctx.out, "{rest}")
    }

    /// Says what could not be done: false.
    fn failed(&mut self, what: &str, path: &Path, e: &io::Error) -> bool {
        let (path, why) = (path.display(), plain(e));
        self.ctx.complain(format_args!("failed to {what} {path}: {why}"));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_projects_are_read_as_c_reads_them() {
        assert_eq!([id("7").ok(), id("0x10").ok(), id("010").ok()], [Some(7), Some(16), Some(8)]);
        for bad in ["", "x", "4294967295", "-1", "99999999999999999999"] {
            assert!(id(bad).is_err(), "{bad}");
        }
    }
}
