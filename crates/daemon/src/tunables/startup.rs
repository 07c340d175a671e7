//! Tunables that are set when a process starts: by a file and by the environment.
//!
//! The file is `CENOTE_TUNABLES_FILE`, or `/etc/cenote/tunables.conf` for root and
//! `$XDG_CONFIG_HOME/cenote/tunables.conf` (`~/.config/…`) for other users. A line of it has words
//! `name=value`, or is one of the configuration of `modprobe`: `options zfs name=value …`, so that a
//! `zfs.conf` may be used as it is; what it says of other modules is ignored. `#` starts a
//! comment, a line that ends in `\` goes on in the next. `CENOTE_TUNABLES` has words `name=value`, which
//! come after the settings of the file.
//!
//! What cannot be set is warned about by name, and everything else is set.

use cenote_engine::tunables::{self, Tunable};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Words that begin lines of the configuration of `modprobe` that say nothing of options.
const OTHER_LINES: &[&str] = &["alias", "blacklist", "install", "remove", "softdep", "weakdep"];

/// How this process started.
struct Start {
    values: Vec<u64>,
    warnings: Vec<String>,
}

static START: OnceLock<Start> = OnceLock::new();

/// Sets what the file and the environment say, at the first call. Returns warnings.
pub fn load() -> &'static [String] {
    let start = || {
        let warnings = read();
        Start { values: values(), warnings }
    };
    &START.get_or_init(start).warnings
}

/// Sets what the file and the environment say; warnings.
fn read() -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some((path, asked_for)) = file() {
        match fs::read_to_string(&path) {
            Ok(text) => warnings.extend(apply(&path.display().to_string(), &text)),
            Err(e) if e.kind() == io::ErrorKind::NotFound && !asked_for => {}
            Err(e) => {
                let why = cenote_command::outcome::plain(&e);
                warnings.push(format!("{}: {why}: no tunables are set by it", path.display()));
            }
        }
    }
    if let Some(text) = std::env::var_os("CENOTE_TUNABLES") {
        warnings.extend(apply("CENOTE_TUNABLES", &text.to_string_lossy()));
    }
    warnings
}

/// Whether a tunable has another value than at the start of this process.
pub fn changed() -> bool {
    START.get().is_some_and(|start| start.values != values())
}

fn values() -> Vec<u64> {
    tunables::all().iter().map(|t| t.get()).collect()
}

/// The file, and whether the user has named it.
fn file() -> Option<(PathBuf, bool)> {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(path) = var("CENOTE_TUNABLES_FILE") {
        return Some((path.into(), true));
    }
    if rustix::process::geteuid().is_root() {
        return Some(("/etc/cenote/tunables.conf".into(), false));
    }
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|p| p.is_absolute());
    let config = var("XDG_CONFIG_HOME").and_then(absolute);
    let config = config.or_else(|| Some(PathBuf::from(var("HOME")?).join(".config")))?;
    Some((config.join("cenote/tunables.conf"), false))
}

/// Sets what `text` says; warnings, with `source` and the line in front.
fn apply(source: &str, text: &str) -> Vec<String> {
    let wrong = |(line, word): (usize, &str)| {
        let why = set(word).err()?;
        Some(format!("{source}, line {line}: {why}"))
    };
    let joined = joined(text);
    joined.iter().flat_map(|(n, line)| words(line).map(|w| (*n, w))).filter_map(wrong).collect()
}

/// Lines with their numbers; those that end in `\` with the next.
fn joined(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (n, line) in (1..).zip(text.lines()) {
        let part = line.strip_suffix('\\').unwrap_or(line);
        match lines.last_mut() {
            Some((_, last)) if goes_on => {
                last.push(' ');
                last.push_str(part);
            }
            _ => lines.push((n, part.to_string())),
        }
        goes_on = part.len() < line.len();
    }
    lines
}

/// The words of a line that are meant for us.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let line = line.split('#').next().unwrap_or_default();
    let first: Vec<&str> = line.split_whitespace().take(2).collect();
    let skipped = match *first.as_slice() {
        ["options", "zfs"] => 2,
        ["options", _] => usize::MAX,
        [word, ..] if OTHER_LINES.contains(&word) => usize::MAX,
        _ => 0,
    };
    line.split_whitespace().skip(skipped)
}

/// Does what a word `name=value` says.
fn set(word: &str) -> Result<(), String> {
    let Some((name, value)) = word.split_once('=') else {
        return Err(format!("'{word}' is not name=value"));
    };
    let tunable = find(name)?;
    let number = tunable.parse(value).map_err(|e| e.to_string())?;
    tunable.set(number).map_err(|e| e.to_string())
}

/// The tunable of that name, or the error message for an unknown name.
pub fn find(name: &str) -> Result<&'static Tunable, String> {
    tunables::find(name).ok_or_else(|| {
        let near: Vec<String> = tunables::near(name).iter().map(|n| format!("'{n}'")).collect();
        match near.as_slice() {
            [] => format!("there is no tunable '{name}'"),
            near => format!("there is no tunable '{name}', but {}", near.join(", ")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_modprobe_are_understood() {
        let text = "# OpenZFS\n\
            options zfs zfs_a=1   zfs_b=2 # both\n\
            options spl spl_hostid=0\n\
            blacklist zfs\n\
            options zfs zfs_c=3 \\\n   zfs_d=4\n\
            \n\
            zfs_e=5 zfs_f=6\n";
        let lines = joined(text);
        let all: Vec<_> = lines.iter().flat_map(|(n, l)| words(l).map(|w| (*n, w))).collect();
        let want = [
            (2, "zfs_a=1"),
            (2, "zfs_b=2"),
            (5, "zfs_c=3"),
            (5, "zfs_d=4"),
            (8, "zfs_e=5"),
            (8, "zfs_f=6"),
        ];
        assert_eq!(all, want);
        assert_eq!(joined("a\\").len(), 1);
    }

    #[test]
    fn what_cannot_be_set_is_named_and_the_rest_is_set() {
        let text = "zfs_max_logsm_summary_lenght=7\nzfs_delay_scale=x\nzfs_delay_min_dirty_percent=101\n\
            zfs_scan_legacy\nzfs_max_logsm_summary_length=999";
        let want = [
            "f, line 1: there is no tunable 'zfs_max_logsm_summary_lenght', but \
             'zfs_max_logsm_summary_length'",
            "f, line 2: zfs_delay_scale is a number, not 'x'",
            "f, line 3: zfs_delay_min_dirty_percent is from 0 to 100, not 101",
            "f, line 4: 'zfs_scan_legacy' is not name=value",
        ];
        assert_eq!(apply("f", text), want);
        assert_eq!(tunables::MAX_LOGSM_SUMMARY_LENGTH.get(), 999);
        tunables::MAX_LOGSM_SUMMARY_LENGTH.reset();
    }
}
