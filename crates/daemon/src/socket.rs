//! Where the daemon is reached, and by which users.
//!
//! `CENOTE_SOCKET` if set; else `/run/cenote/socket` for root, `$XDG_RUNTIME_DIR/cenote/socket`,
//! or `/tmp/cenote-UID/socket`. Beside the socket lie its lock file, held by the daemon as long as it
//! lives and holding its process number and PID namespace, and its log.
//!
//! Every user may connect to root's daemon, and finds it at `/run/cenote/socket`. The daemon of an ordinary user is for
//! this user and root.
//!
//! What another user made is not trusted, whichever way the path came:
//!
//! - The directory belongs to the user or to root; for root it may be another user's, if no user but
//!   root and that user can have made it. An ordinary user's that was not named by `CENOTE_SOCKET` is made with
//!   mode 0700 and is the user's alone. Others may be looked into, and be open to others if they have the sticky
//!   bit, which keeps them from replacing what is there.
//! - Socket, lock and log are looked at themselves: no symbolic link is followed, each is of the
//!   right type and belongs to the user (the socket: or to root), and files have one name.
//! - The process that listens is the user's or root's ([`Place::check_peer`]). Root may use the daemon
//!   of the user whose directory it is.

use cenote_command::outcome::plain;
use rustix::fs::{FlockOperation, OFlags};
use rustix::process::{Uid, geteuid};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The socket of root's daemon.
const ROOTS: &str = "/run/cenote/socket";
/// How long to leave the lock to processes that only look at it.
const LOOK: Duration = Duration::from_millis(1);

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
        let uid = geteuid();
        if let Some(path) = std::env::var_os("CENOTE_SOCKET").filter(|p| !p.is_empty()) {
            return Ok(Place::at(&std::path::absolute(path)?, false));
        }
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let dir = match runtime {
            _ if uid.is_root() => return Ok(Place::at(Path::new(ROOTS), false)),
            Some(dir) if dir.is_absolute() && dir.is_dir() => dir.join("cenote"),
            _ => PathBuf::from(format!("/tmp/cenote-{}", uid.as_raw())),
        };
        Ok(Place::at(&dir.join("socket"), true))
    }

    /// The place of root's daemon, for other users; `None`: this process is root's, or has been told where to
    /// look.
    pub fn of_root() -> Option<Place> {
        let told = std::env::var_os("CENOTE_SOCKET").is_some_and(|path| !path.is_empty());
        (!told && !geteuid().is_root()).then(|| Place::at(Path::new(ROOTS), false))
    }

    /// With its socket at this path; `private_dir`: its directory is the user's alone.
    pub(crate) fn at(socket: &Path, private_dir: bool) -> Place {
        let beside = |suffix: &str| {
            let mut name = socket.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        Place { lock: beside(".lock"), log: beside(".log"), socket: socket.into(), private_dir }
    }

    /// The cache file beside the socket.
    pub fn cachefile(&self) -> PathBuf {
        let mut name = self.socket.as_os_str().to_owned();
        name.push(".zpool.cache");
        PathBuf::from(name)
    }

    /// The directory beside the socket with links to this program, which zedlets call.
    pub(crate) fn commands(&self) -> PathBuf {
        let mut name = self.socket.as_os_str().to_owned();
        name.push(".bin");
        PathBuf::from(name)
    }

    /// Makes the directory if it is missing and checks that no other user can put things there.
    pub fn prepare(&self) -> io::Result<()> {
        let Some(dir) = self.socket.parent() else { return Ok(()) };
        let made = DirBuilder::new().mode(0o700).create(dir);
        if made.is_ok() && self.socket == Path::new(ROOTS) {
            // Whatever this process's mask is: every user may connect.
            let open = fs::Permissions::from_mode(0o755);
            fs::set_permissions(dir, open).map_err(|e| at(dir, e))?;
        }
        match made {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(at(dir, e)),
            _ => self.check(),
        }
    }

    /// Checks that no other user can put things into the directory, and that what is in the socket's
    /// place was not made by another user.
    ///
    /// # Errors
    /// `PermissionDenied` with the reason; errors of looking at the directory. A socket that is missing is
    /// no error.
    pub fn check(&self) -> io::Result<()> {
        if let Some(dir) = self.socket.parent() {
            self.check_directory(dir)?;
        }
        match fs::symlink_metadata(&self.socket) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(at(&self.socket, e)),
            Ok(meta) if !meta.file_type().is_socket() => refuse(&self.socket, "is not a socket"),
            Ok(meta) if !self.trusts(meta.uid()) => refuse(&self.socket, "belongs to another user"),
            Ok(_) => Ok(()),
        }
    }

    fn check_directory(&self, dir: &Path) -> io::Result<()> {
        let link = fs::symlink_metadata(dir).map_err(|e| at(dir, e))?;
        // The maker of a symbolic link chose where it leads.
        if link.is_symlink() && (self.private_dir || !trusted(link.uid())) {
            return refuse(dir, "is a symbolic link");
        }
        let meta = fs::metadata(dir).map_err(|e| at(dir, e))?;
        let sticky = meta.mode() & 0o1000 != 0;
        match self.private_dir {
            _ if !meta.is_dir() => refuse(dir, "is not a directory"),
            true if meta.uid() != geteuid().as_raw() => refuse(dir, "belongs to another user"),
            true if meta.mode() & 0o077 != 0 => refuse(dir, "is open to other users"),
            false if !self.trusts(meta.uid()) => refuse(dir, "belongs to another user"),
            false if meta.mode() & 0o022 != 0 && !sticky => {
                refuse(dir, "is writable by other users")
            }
            _ => Ok(()),
        }
    }

    /// Whether what belongs to a user is not another's: this user's, root's, or, for root, that of the
    /// user whose directory it is.
    fn trusts(&self, uid: u32) -> bool {
        trusted(uid) || (geteuid().is_root() && !self.private_dir && self.is_directory_of(uid))
    }

    /// Whether the directory is `uid`'s, and only that user and root can have made it or put it there.
    fn is_directory_of(&self, uid: u32) -> bool {
        let Some(Ok(dir)) = self.socket.parent().map(Path::canonicalize) else { return false };
        let own = |meta: &fs::Metadata| meta.uid() == uid && meta.mode() & 0o022 == 0;
        if !fs::metadata(&dir).is_ok_and(|meta| own(&meta)) {
            return false;
        }
        // From the root on: in a directory where all may make things only what root made counts.
        let mut open = false;
        dir.ancestors().collect::<Vec<_>>().into_iter().rev().all(|step| {
            let Ok(meta) = fs::metadata(step) else { return false };
            let made_by_root = meta.uid() == 0;
            let good = made_by_root || (meta.uid() == uid && !open);
            open = meta.mode() & 0o022 != 0;
            good && (!open || meta.mode() & 0o1000 != 0)
        })
    }

    /// Checks that the process at the other end of the socket is this user's or root's, or that of the
    /// user whose daemon root wants to use.
    ///
    /// # Errors
    /// `PermissionDenied`: it belongs to another user.
    pub fn check_peer(&self, uid: Uid) -> io::Result<()> {
        match self.trusts(uid.as_raw()) {
            true => Ok(()),
            false => refuse(&self.socket, "another user's daemon"),
        }
    }

    /// The lock file, locked, with the number of this process in it; `None` if another daemon has it.
    ///
    /// # Errors
    /// The lock file is not to be trusted, or cannot be opened or written.
    pub fn take_lock(&self) -> io::Result<Option<File>> {
        let mut file =
            open_own(&self.lock, OpenOptions::new().create(true).read(true).write(true))?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) if self.is_held()? => return Ok(None),
                // Another process only looks whether it is held, and shares it for a moment.
                Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOOK),
                Err(e) => return Err(at(&self.lock, e.into())),
            }
        }
        file.set_len(0)?;
        writeln!(file, "{} {}", std::process::id(), pid_namespace())?;
        Ok(Some(file))
    }

    /// Whether a daemon holds the lock file.
    ///
    /// # Errors
    /// The lock file is not to be trusted, or cannot be opened. One that is missing is no error.
    pub fn is_held(&self) -> io::Result<bool> {
        let file = match open_own(&self.lock, OpenOptions::new().read(true)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            opened => opened?,
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
            Err(e) => Err(at(&self.lock, e.into())),
        }
    }

    /// The process that holds the lock file; `None`: it is not held, or the holder is not known, or is one of another
    /// PID namespace, where numbers are others'.
    pub fn holder(&self) -> Option<u32> {
        if !self.is_held().ok()? {
            return None;
        }
        let mut text = String::new();
        let file = open_own(&self.lock, OpenOptions::new().read(true)).ok()?;
        file.take(64).read_to_string(&mut text).ok()?;
        let mut numbers = text.split_whitespace();
        let pid = numbers.next()?.parse().ok()?;
        let there = numbers.next().and_then(|namespace| namespace.parse().ok());
        there.is_none_or(|there: u64| there == pid_namespace()).then_some(pid)
    }
}

/// Number of this process's PID namespace; 0 if it is not known.
pub fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// Whether what belongs to this user can be trusted.
fn trusted(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

fn refuse<T>(path: &Path, why: &str) -> io::Result<T> {
    let why = format!("{}: {why}", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Opens a file beside the socket as `options` say, if it is this user's own.
///
/// # Errors
/// `PermissionDenied`: it is a symbolic link, no file, another user's, or has a second name; errors of
/// opening it.
pub fn open_own(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // What others put there may be a pipe, which would keep a process that opens it waiting.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match options.mode(0o600).custom_flags(flags.bits().cast_signed()).open(path) {
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return refuse(path, "is a symbolic link");
        }
        opened => opened.map_err(|e| at(path, e))?,
    };
    let meta = file.metadata().map_err(|e| at(path, e))?;
    match meta.is_file() {
        false => refuse(path, "is not a regular file"),
        true if meta.uid() != geteuid().as_raw() => refuse(path, "belongs to another user"),
        true if meta.nlink() > 1 => refuse(path, "has more than one name"),
        true => Ok(file),
    }
}

/// Puts the path in front of the error.
pub fn at(path: &Path, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {}", path.display(), plain(&e)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn says<T: std::fmt::Debug>(done: io::Result<T>, why: &str) {
        let error = done.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().ends_with(why), "{error}");
    }

    #[test]
    fn a_directory_open_to_others_is_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("d");
        let place = Place::at(&dir.join("socket"), true);
        let named = Place::at(&dir.join("socket"), false);
        place.prepare().unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        let set = |mode| fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
        set(0o755);
        says(place.prepare(), "is open to other users");
        named.prepare().unwrap();
        set(0o777);
        says(named.prepare(), "is writable by other users");
        set(0o1777);
        named.prepare().unwrap();
        set(0o700);
        let link = tmp.path().join("link");
        symlink(&dir, &link).unwrap();
        says(Place::at(&link.join("socket"), true).check(), "is a symbolic link");
        Place::at(&link.join("socket"), false).check().unwrap();
        let file = tmp.path().join("file");
        File::create(&file).unwrap();
        says(Place::at(&file.join("socket"), false).check(), "is not a directory");
    }

    #[test]
    fn what_is_beside_the_socket_is_a_file_of_ones_own() {
        let tmp = tempfile::tempdir().unwrap();
        let path = |name: &str| tmp.path().join(name);
        let append =
            |name: &str| open_own(&path(name), OpenOptions::new().create(true).append(true));
        append("new").unwrap();
        assert_eq!(fs::metadata(path("new")).unwrap().mode() & 0o777, 0o600);
        append("new").unwrap();
        symlink(path("new"), path("link")).unwrap();
        says(append("link"), "is a symbolic link");
        symlink(path("missing"), path("dangling")).unwrap();
        says(append("dangling"), "is a symbolic link");
        assert!(!path("missing").exists());
        fs::hard_link(path("new"), path("second")).unwrap();
        says(append("second"), "has more than one name");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), rustix::fs::FileType::Fifo, mode, 0)
            .unwrap();
        assert!(append("pipe").is_err(), "nobody waits for who reads it");
        says(open_own(&path("pipe"), OpenOptions::new().read(true)), "is not a regular file");
        // In the socket's place.
        for name in ["new", "link", "pipe"] {
            says(Place::at(&path(name), false).check(), "is not a socket");
        }
        if geteuid().is_root() {
            std::os::unix::fs::chown(path("second"), Some(1), Some(1)).unwrap();
            fs::remove_file(path("new")).unwrap();
            says(append("second"), "belongs to another user");
            let _listener = std::os::unix::net::UnixListener::bind(path("s")).unwrap();
            let place = Place::at(&path("s"), false);
            place.check().unwrap();
            std::os::unix::fs::chown(path("s"), Some(1), Some(1)).unwrap();
            says(place.check(), "belongs to another user");
            // A user's directory is trusted if no other user can have put it there.
            let theirs = path("theirs");
            fs::create_dir(&theirs).unwrap();
            std::os::unix::fs::chown(&theirs, Some(1), Some(1)).unwrap();
            let place = Place::at(&theirs.join("s"), false);
            place.check().unwrap();
            place.check_peer(Uid::from_raw(1)).unwrap();
            says(place.check_peer(Uid::from_raw(2)), "another user's daemon");
            says(Place::at(&theirs.join("s"), true).check(), "belongs to another user");
            let set = |mode| {
                fs::set_permissions(tmp.path(), fs::Permissions::from_mode(mode)).unwrap();
            };
            for mode in [0o1777, 0o777, 0o770] {
                set(mode);
                says(place.check(), "belongs to another user");
                says(place.check_peer(Uid::from_raw(1)), "another user's daemon");
            }
            set(0o755);
            place.check().unwrap();
            std::os::unix::fs::chown(tmp.path(), Some(2), Some(2)).unwrap();
            says(place.check(), "belongs to another user");
        }
        says(Place::at(&path("s"), false).check_peer(Uid::from_raw(1)), "another user's daemon");
    }

    #[test]
    fn the_lock_names_its_holder() {
        let tmp = tempfile::tempdir().unwrap();
        let place = Place::at(&tmp.path().join("s"), false);
        assert_eq!(place.holder(), None);
        fs::write(&place.lock, "123\n").unwrap();
        assert_eq!(place.holder(), None);
        let file = File::open(&place.lock).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert_eq!(place.holder(), Some(123));
        fs::write(&place.lock, format!("123 {}\n", pid_namespace())).unwrap();
        assert_eq!(place.holder(), Some(123));
        fs::write(&place.lock, format!("123 {}\n", pid_namespace() + 1)).unwrap();
        assert_eq!(place.holder(), None, "its number is another process's here");
        fs::write(&place.lock, "?").unwrap();
        assert_eq!(place.holder(), None);
    }

    #[test]
    fn looking_at_the_lock_keeps_nobody_from_taking_it() {
        let tmp = tempfile::tempdir().unwrap();
        let place = Place::at(&tmp.path().join("s"), false);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        place.holder();
                    }
                });
            }
            // Whatever fails, the threads that look have to end.
            let taken: Vec<_> = (0..200).map(|_| place.take_lock().map(|l| l.is_some())).collect();
            done.store(true, Ordering::Relaxed);
            assert!(taken.into_iter().all(|t| t.unwrap()));
        });
        let held = place.take_lock().unwrap();
        assert!(held.is_some() && place.take_lock().unwrap().is_none());
        assert_eq!(place.holder(), Some(std::process::id()));
    }
}
