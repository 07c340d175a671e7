//! Which files are zedlets, and which of them an event runs (`zed_conf_scan_dir`).

use super::variables::{COMMANDS, subclass};
use crate::socket::at;
use parking_lot::Mutex;
use rustix::process::geteuid;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// The directory that zedlets lie in; `None`: its place is not known.
pub(super) fn directory() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|p| p.is_absolute());
    if let Some(named) = var("CENOTE_ZEDLET_DIR") {
        let found = absolute(named.clone());
        if found.is_none() {
            tracing::warn!(?named, "no zedlets are run: CENOTE_ZEDLET_DIR is no absolute path");
        }
        return found;
    }
    if geteuid().is_root() {
        return Some("/etc/cenote/zed.d".into());
    }
    let config = var("XDG_CONFIG_HOME").and_then(absolute);
    let config = config.or_else(|| Some(PathBuf::from(var("HOME")?).join(".config")))?;
    Some(config.join("cenote/zed.d"))
}

/// The zedlet directory.
pub(super) struct Zedlets {
    directory: Option<PathBuf>,
    /// What was warned about, each once.
    refused: Mutex<HashSet<PathBuf>>,
}

impl Zedlets {
    pub fn new(directory: Option<PathBuf>) -> Zedlets {
        Zedlets { directory, refused: Mutex::default() }
    }

    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// The zedlets of an event of this class, in the order of their names.
    pub fn matching(&self, class: &str) -> Vec<PathBuf> {
        let Some(directory) = self.directory() else { return Vec::new() };
        let found = match self.scan(directory, class) {
            Ok(found) => found,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => {
                self.warn(directory, &e.to_string());
                Vec::new()
            }
        };
        found.into_iter().filter(|path| self.is_trusted(path)).collect()
    }

    fn scan(&self, directory: &Path, class: &str) -> io::Result<Vec<PathBuf>> {
        let found = fs::metadata(directory)?;
        if !found.is_dir() || !is_ours(&found) {
            self.warn(directory, "not a directory that only its owner, you or root, can write to");
            return Ok(Vec::new());
        }
        let mut paths = Vec::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if is_for(entry.file_name().as_bytes(), class) {
                paths.push(entry.path());
            }
        }
        paths.sort();
        Ok(paths)
    }

    /// Whether a file is a zedlet: executable by its owner, and no other user can have written it.
    fn is_trusted(&self, path: &Path) -> bool {
        let found = match fs::metadata(path) {
            Ok(found) => found,
            Err(e) => {
                self.warn(path, &cenote_command::outcome::plain(&e));
                return false;
            }
        };
        let executable = found.is_file() && found.mode() & 0o100 != 0;
        if executable && !is_ours(&found) {
            self.warn(path, "other users can write to it, or own it");
        }
        executable && is_ours(&found)
    }

    fn warn(&self, path: &Path, why: &str) {
        if self.refused.lock().insert(path.into()) {
            tracing::warn!("zedlets: {}: {why}: ignored", path.display());
        }
    }
}

/// Whether this user or root owns a file or a directory, and only its owner can write to it.
fn is_ours(found: &Metadata) -> bool {
    let owner = found.uid();
    (owner == 0 || owner == geteuid().as_raw()) && found.mode() & 0o022 == 0
}

/// Whether the zedlet of this name runs at events of a class.
fn is_for(name: &[u8], class: &str) -> bool {
    [class, subclass(class), "all"].iter().any(|prefix| {
        let rest = name.strip_prefix(prefix.as_bytes()).filter(|_| !prefix.is_empty());
        rest.is_some_and(|rest| !rest.first().is_some_and(u8::is_ascii_alphabetic))
    })
}

/// Makes the directory with links to `program`, which is this one, if it is not there.
///
/// # Errors
/// It cannot be made, or is another user's.
pub(super) fn link_commands(directory: &Path, program: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let found = fs::symlink_metadata(directory)?;
    if !found.is_dir() || found.uid() != geteuid().as_raw() || found.mode() & 0o022 != 0 {
        let why = "is not a directory of this user alone";
        return Err(at(directory, io::Error::new(io::ErrorKind::PermissionDenied, why)));
    }
    for (_, name) in COMMANDS {
        let link = directory.join(name);
        if fs::read_link(&link).is_ok_and(|to| to == program) {
            continue;
        }
        match fs::remove_file(&link) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => symlink(program, &link)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn names_say_which_events_run_a_zedlet() {
        let class = "sysevent.fs.zfs.scrub_finish";
        for name in ["all-debug.sh", "all", "scrub_finish-notify.sh", "scrub_finish", class] {
            assert!(is_for(name.as_bytes(), class), "{name}");
        }
        for name in ["allx", "scrub_finished.sh", "scrub_start-x", "zed.rc", ".all-x", ""] {
            assert!(!is_for(name.as_bytes(), class), "{name}");
        }
        assert!(!is_for(b"x", ""));
    }

    #[test]
    fn what_others_can_write_to_is_not_run() {
        let dir = tempfile::tempdir().unwrap();
        let zedlets = Zedlets::new(Some(dir.path().into()));
        let file = |name: &str, mode| {
            File::create(dir.path().join(name)).unwrap();
            set_permissions(dir.path().join(name), Permissions::from_mode(mode)).unwrap();
        };
        file("all-b", 0o755);
        file("all-a", 0o700);
        file("all-group", 0o775);
        file("all-others", 0o757);
        file("all-plain", 0o644);
        fs::create_dir(dir.path().join("all-dir")).unwrap();
        symlink("/nonexistent", dir.path().join("all-dead")).unwrap();
        symlink("all-b", dir.path().join("all-link")).unwrap();
        let names = |found: Vec<PathBuf>| -> Vec<String> {
            found.iter().map(|p| p.file_name().unwrap().to_str().unwrap().to_string()).collect()
        };
        assert_eq!(names(zedlets.matching("x.fs.zfs.y")), ["all-a", "all-b", "all-link"]);
        set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(zedlets.matching("x.fs.zfs.y").is_empty());
        assert!(Zedlets::new(Some("/nonexistent".into())).matching("x.fs.zfs.y").is_empty());
    }
}
