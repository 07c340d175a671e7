//! Where the daemon is reached, and who may.
//!
//! `CENOTE_SOCKET` if set; else `/run/cenote/socket` for root, `$XDG_RUNTIME_DIR/cenote/socket`,
//! or `/tmp/cenote-UID/socket`. The directory is made with mode 0700 and must belong to the user
//! and to nobody else: a socket in a directory that others can write to could be theirs. (The
//! directory of `CENOTE_SOCKET` is the user's own business, except that it must not be writable
//! by others without the sticky bit.) Beside the socket lie its lock file, held by the daemon as
//! long as it lives, and its log.

use cenote_command::outcome::plain;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Paths of one daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The socket.
    pub socket: PathBuf,
    /// Locked by the daemon that serves the socket.
    pub lock: PathBuf,
    /// Standard error of a daemon that was started by a command.
    pub log: PathBuf,
    private_dir: bool,
}

impl Place {
    /// The place for this process's user and environment.
    pub fn of_process() -> io::Result<Place> {
        let uid = rustix::process::geteuid();
        if let Some(path) = std::env::var_os("CENOTE_SOCKET").filter(|p| !p.is_empty()) {
            return Ok(Place::at(&std::path::absolute(path)?, false));
        }
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let dir = match runtime {
            _ if uid.is_root() => PathBuf::from("/run/cenote"),
            Some(dir) if dir.is_absolute() && dir.is_dir() => dir.join("cenote"),
            _ => PathBuf::from(format!("/tmp/cenote-{}", uid.as_raw())),
        };
        Ok(Place::at(&dir.join("socket"), true))
    }

    fn at(socket: &Path, private_dir: bool) -> Place {
        let beside = |suffix: &str| {
            let mut name = socket.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        Place { lock: beside(".lock"), log: beside(".log"), socket: socket.into(), private_dir }
    }

    /// Makes the directory if it is missing and checks that nobody else can put things there.
    pub fn prepare(&self) -> io::Result<()> {
        let Some(dir) = self.socket.parent() else { return Ok(()) };
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(at(dir, e)),
            _ => self.check(),
        }
    }

    /// Checks that nobody else can put things into the directory.
    pub fn check(&self) -> io::Result<()> {
        let Some(dir) = self.socket.parent() else { return Ok(()) };
        // A symbolic link in /tmp may point anywhere, so it is not followed there.
        let meta = if self.private_dir { fs::symlink_metadata(dir) } else { fs::metadata(dir) };
        let meta = meta.map_err(|e| at(dir, e))?;
        let uid = rustix::process::geteuid().as_raw();
        let refuse = |why: &str| {
            let why = format!("{}: {why}", dir.display());
            Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
        };
        if !meta.is_dir() {
            return refuse("not a directory");
        }
        let sticky = meta.mode() & 0o1000 != 0;
        match self.private_dir {
            true if meta.uid() != uid => refuse("belongs to another user"),
            true if meta.mode() & 0o077 != 0 => refuse("is open to other users"),
            false if meta.mode() & 0o022 != 0 && !sticky => refuse("is writable by other users"),
            _ => Ok(()),
        }
    }
}

/// Puts the path in front of the error.
pub fn at(path: &Path, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {}", path.display(), plain(&e)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_open_to_others_is_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("d");
        let place = Place::at(&dir.join("socket"), true);
        place.prepare().unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(place.prepare().unwrap_err().to_string().contains("open to other users"));
        assert!(Place::at(&dir.join("socket"), false).prepare().is_ok());
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Place::at(&dir.join("socket"), false).prepare().is_err());
    }
}
