//! Mount agents: processes that do for a server what must be done at paths.
//!
//! A process that looks up a path inside a mount of its own waits for itself. Killed in that moment it
//! never ends: the thread waits for an answer that the dead server will not give, and keeps the descriptors
//! open whose end would release it. So a server looks up no path that may lead into its mounts: it has an
//! agent resolve paths, make and remove directories, mount and unmount. The agent of a server's own mount
//! namespace is a child process ([`Helper`]). Where a command runs in another namespace, the command is the
//! agent, so that it sees what it mounts.
//!
//! ```text
//! server -> agent   Request, with the descriptor to mount once more, if the request has one
//! agent  -> server  Reply, with the descriptor that was mounted
//! server -> agent   Request::Noted after a mount
//! ```
//!
//! Invariant: a mount has a server, or is taken away. Until the server has told its watcher of a mount that is the
//! agent's affair: it mounts nothing for a server that has ended, and takes a mount away that was not noted.
//!
//! Messages are JSON, each with its length in front; descriptors come with the first byte
//! (`SCM_RIGHTS`). See [`channel`].

mod channel;

pub use crate::attach::{MountRequest, Mounted};
pub use channel::{Channel, serve};

use crate::attach;
use crate::connection::Connection;
use crate::detach::{self, Force};
use crate::error::{MountError, all_as_bytes, as_bytes, number};
use crate::kernel;
use crate::mountinfo::{self, Table};
use crate::place;
use parking_lot::{Condvar, Mutex};
use rustix::mount::MountFlags;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long an agent may take: longer than any lookup that is going to end.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How long a request waits for an agent that is busy before another one is started.
const SOON: Duration = Duration::from_millis(200);
/// Agents that are kept for later requests.
const MOST_IDLE: usize = 2;

/// A path as an agent sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Seen {
    /// Without symbolic links, as far as it exists.
    #[serde(with = "as_bytes")]
    pub path: PathBuf,
    /// Why not all of it exists, as the system's number; 0 if it does.
    pub missing: i32,
    /// Whether nothing is in it.
    pub empty: bool,
}

/// A place where a connection is mounted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Shown {
    /// The connection.
    pub id: String,
    /// The mountpoint.
    #[serde(with = "as_bytes")]
    pub mountpoint: PathBuf,
}

/// What an agent is asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// To mount a new connection, or, with a descriptor, one that is mounted already in a further place.
    Mount(MountRequest),
    /// To unmount a connection at these places.
    Unmount {
        /// The connection.
        connection: Connection,
        /// The mountpoints.
        #[serde(with = "all_as_bytes")]
        places: Vec<PathBuf>,
        /// Whether it may be in use.
        force: Force,
    },
    /// To end a connection, and take all its mounts away.
    TakeAway(Connection),
    /// To give a mount other flags.
    Remount {
        /// The connection.
        id: String,
        /// Where it is mounted.
        #[serde(with = "as_bytes")]
        mountpoint: PathBuf,
        /// Flags of mount(2).
        flags: u32,
    },
    /// To remove directories as far as they are empty; outermost first.
    Remove(#[serde(with = "all_as_bytes")] Vec<PathBuf>),
    /// To look at a path.
    Look(#[serde(with = "as_bytes")] PathBuf),
    /// To list the places where connections of file systems are mounted.
    List,
    /// The mount that was asked for last is watched from now on. Has no answer.
    Noted,
}

/// What an agent answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Reply {
    /// It is mounted.
    Mounted(Mounted),
    /// It is done.
    Done,
    /// Whether it could be done.
    Told(bool),
    /// The path.
    Seen(Seen),
    /// Where connections are mounted.
    Places(Vec<Shown>),
    /// It failed.
    Failed(MountError),
}

/// Notes a connection that was mounted.
pub type Note<'a> = &'a dyn Fn(&Connection);

/// The process that does what has to be done at paths.
pub trait Agent: Send + Sync {
    /// Has something done. What was mounted is given to `note`: when that returns it is no more the agent's to take it away if
    /// this process ends.
    ///
    /// # Errors
    /// What the agent says, or that it does not answer.
    fn call(
        &self,
        request: &Request,
        device: Option<BorrowedFd<'_>>,
        note: Note<'_>,
    ) -> Result<(Reply, Option<OwnedFd>), MountError>;

    /// Number of its mount namespace.
    fn namespace(&self) -> u64;

    /// Whether it mounts and unmounts at all. Where it does not, nothing is done that goes before an unmount.
    fn may_mount(&self) -> bool {
        true
    }
}

/// The ways to ask.
impl dyn Agent + '_ {
    /// Has something done, and waits for it.
    fn ask(
        &self,
        request: &Request,
        device: Option<BorrowedFd<'_>>,
    ) -> Result<(Reply, Option<OwnedFd>), MountError> {
        kernel::waits("until an agent has looked up a path");
        self.call(request, device, &|_| ())
    }

    /// Has something mounted, and `note`d before anything else is asked for.
    pub(crate) fn mount(
        &self,
        request: MountRequest,
        device: Option<BorrowedFd<'_>>,
        note: Note<'_>,
    ) -> Result<(Mounted, Option<OwnedFd>), MountError> {
        kernel::waits("until an agent has mounted");
        match self.call(&Request::Mount(request), device, note)? {
            (Reply::Mounted(mounted), device) => Ok((mounted, device)),
            _ => Err(unexpected()),
        }
    }

    pub(crate) fn unmount(
        &self,
        connection: &Connection,
        places: Vec<PathBuf>,
        force: Force,
    ) -> Result<(), MountError> {
        self.ask(&Request::Unmount { connection: connection.clone(), places, force }, None)
            .map(drop)
    }

    pub(crate) fn take_away(&self, connection: &Connection) -> Result<(), MountError> {
        self.ask(&Request::TakeAway(connection.clone()), None).map(drop)
    }

    pub(crate) fn remount(
        &self,
        id: &str,
        mountpoint: &Path,
        flags: MountFlags,
    ) -> Result<bool, MountError> {
        let (mountpoint, flags) = (mountpoint.to_owned(), flags.bits());
        match self.ask(&Request::Remount { id: id.into(), mountpoint, flags }, None)? {
            (Reply::Told(told), _) => Ok(told),
            _ => Err(unexpected()),
        }
    }

    /// Removes directories, outermost first in the list, as far as they are empty.
    pub fn remove(&self, directories: Vec<PathBuf>) {
        if directories.is_empty() {
            return;
        }
        if let Err(e) = self.ask(&Request::Remove(directories), None) {
            tracing::warn!("directories of mountpoints stay: {e}");
        }
    }

    /// Looks at a path.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn look(&self, path: &Path) -> Result<Seen, MountError> {
        match self.ask(&Request::Look(path.to_owned()), None)? {
            (Reply::Seen(seen), _) => Ok(seen),
            _ => Err(unexpected()),
        }
    }

    /// A path without symbolic links; all of it exists.
    ///
    /// # Errors
    /// As of `canonicalize`.
    pub fn canonicalize(&self, path: &Path) -> std::io::Result<PathBuf> {
        let seen = self.look(path).map_err(std::io::Error::other)?;
        match seen.missing {
            0 => Ok(seen.path),
            errno => Err(std::io::Error::from_raw_os_error(errno)),
        }
    }

    /// The places where connections of file systems are mounted, in the order of the kernel's list.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn places(&self) -> Result<Vec<Shown>, MountError> {
        match self.ask(&Request::List, None)? {
            (Reply::Places(places), _) => Ok(places),
            _ => Err(unexpected()),
        }
    }
}

fn unexpected() -> MountError {
    MountError::Agent("unexpected answer".into())
}

/// Does what is asked for, in this process. Nothing is mounted that is not `wanted` by then.
pub(crate) fn perform(
    request: Request,
    device: Option<OwnedFd>,
    wanted: &dyn Fn() -> bool,
) -> (Reply, Option<OwnedFd>) {
    let done = |result: Result<(), MountError>| match result {
        Ok(()) => Reply::Done,
        Err(e) => Reply::Failed(e),
    };
    let reply = match request {
        Request::Mount(request) => match attach::mount(&request, device, wanted) {
            Ok((mounted, device)) => return (Reply::Mounted(mounted), Some(device)),
            Err(e) => Reply::Failed(e),
        },
        Request::Unmount { connection, places, force } => {
            done(detach::unmount(&connection, &places, force))
        }
        Request::TakeAway(connection) => {
            detach::take_away(&[connection]);
            Reply::Done
        }
        Request::Remount { id, mountpoint, flags } => {
            let flags = MountFlags::from_bits_retain(flags);
            match detach::remount(&id, &mountpoint, flags) {
                Ok(told) => Reply::Told(told),
                Err(e) => Reply::Failed(e),
            }
        }
        Request::Remove(directories) => {
            place::remove(&directories);
            Reply::Done
        }
        Request::Noted => Reply::Done,
        Request::Look(path) => {
            let missing = path.canonicalize().err().map_or(0, |e| number(&e).raw_os_error());
            Reply::Seen(Seen {
                empty: place::is_empty(&path),
                path: place::resolve(&path),
                missing,
            })
        }
        Request::List => {
            let shown = |m: &mountinfo::FuseMount| Shown {
                id: m.id.clone(),
                mountpoint: m.mountpoint.clone(),
            };
            match Table::read() {
                Ok(table) => {
                    let zfs = table.all().iter().filter(|m| mountinfo::is_zfs(&m.id));
                    Reply::Places(zfs.map(shown).collect())
                }
                Err(e) => Reply::Failed(e),
            }
        }
    };
    (reply, None)
}

/// An agent that is this process itself: for programs that are not killed while they mount, such as
/// tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Local;

impl Agent for Local {
    fn call(
        &self,
        request: &Request,
        device: Option<BorrowedFd<'_>>,
        note: Note<'_>,
    ) -> Result<(Reply, Option<OwnedFd>), MountError> {
        let device = device.map(|d| d.try_clone_to_owned()).transpose();
        let device = device.map_err(|e| MountError::Device(number(&e)))?;
        let (reply, device) = perform(request.clone(), device, &|| true);
        match &reply {
            Reply::Failed(e) => return Err(e.clone()),
            Reply::Mounted(mounted) => note(&Connection::of(&mounted.id)),
            _ => {}
        }
        Ok((reply, device))
    }

    fn namespace(&self) -> u64 {
        mountinfo::namespace()
    }
}

/// An agent at the other end of a channel, such as a command of another mount namespace.
pub struct Remote {
    channel: Mutex<Channel>,
    namespace: u64,
}

impl Remote {
    /// The agent that [serves](serve) the other end of `stream`.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn new(stream: UnixStream, namespace: u64) -> std::io::Result<Remote> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Remote { channel: Mutex::new(Channel::new(stream)), namespace })
    }
}

impl Agent for Remote {
    fn call(
        &self,
        request: &Request,
        device: Option<BorrowedFd<'_>>,
        note: Note<'_>,
    ) -> Result<(Reply, Option<OwnedFd>), MountError> {
        let mut channel = self.channel.lock();
        ask(&mut channel, request, device, note)
    }

    fn namespace(&self) -> u64 {
        self.namespace
    }
}

fn ask(
    channel: &mut Channel,
    request: &Request,
    device: Option<BorrowedFd<'_>>,
    note: Note<'_>,
) -> Result<(Reply, Option<OwnedFd>), MountError> {
    let failed = |e: std::io::Error| MountError::Agent(e.to_string());
    channel.send(request, device).map_err(failed)?;
    match channel.receive::<Reply>().map_err(failed)? {
        Some((Reply::Failed(e), _)) => Err(e),
        Some((Reply::Mounted(mounted), device)) => {
            note(&Connection::of(&mounted.id));
            // An agent that has ended takes nothing away.
            let _ = channel.send(&Request::Noted, None);
            Ok((Reply::Mounted(mounted), device))
        }
        Some(answer) => Ok(answer),
        None => Err(MountError::Agent("it has ended".into())),
    }
}

/// A child process that is an agent.
struct Process {
    child: Child,
    channel: Channel,
}

impl Process {
    /// Whether it waits for requests. One that was killed meanwhile has read nothing.
    fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Has it end by itself.
    fn dismiss(self) {
        let Process { mut child, channel } = self;
        drop(channel);
        let _ = child.wait();
    }
}

/// The processes of a [`Helper`].
#[derive(Default)]
struct Processes {
    idle: Vec<Process>,
    busy: usize,
}

/// An agent that is a child process, started when it is first needed and anew when it has ended. While a path hangs that it
/// looks up, which may lead into a mount whose disks do not answer, another process does what comes next.
pub struct Helper {
    /// The program: it [serves](serve) its standard input.
    command: Mutex<Command>,
    processes: Mutex<Processes>,
    returned: Condvar,
}

impl Helper {
    /// An agent that `command` starts: a program that calls [`serve`] with its standard input.
    pub fn new(mut command: Command) -> Helper {
        command.stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        let (processes, returned) = Default::default();
        Helper { command: Mutex::new(command), processes, returned }
    }

    fn start(&self) -> std::io::Result<Process> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(TIMEOUT))?;
        ours.set_write_timeout(Some(TIMEOUT))?;
        let mut command = self.command.lock();
        let child = command.stdin(OwnedFd::from(theirs)).spawn();
        // The command keeps the child's end, which would hide that the child has ended.
        command.stdin(Stdio::null());
        Ok(Process { child: child?, channel: Channel::new(ours) })
    }

    /// A process for a request: one that is idle, or that others soon give back, or else a new one.
    fn take(&self) -> std::io::Result<Process> {
        let mut all = self.processes.lock();
        let none = |all: &mut Processes| all.idle.is_empty() && all.busy > 0;
        self.returned.wait_while_for(&mut all, none, SOON);
        while let Some(mut process) = all.idle.pop() {
            if process.lives() {
                all.busy += 1;
                return Ok(process);
            }
        }
        let started = self.start()?;
        all.busy += 1;
        Ok(started)
    }

    /// A request is done. Without a process it had to be ended.
    fn give_back(&self, process: Option<Process>) {
        let mut all = self.processes.lock();
        all.busy -= 1;
        let left = match process {
            Some(process) if all.idle.len() < MOST_IDLE => {
                all.idle.push(process);
                None
            }
            left => left,
        };
        drop(all);
        self.returned.notify_one();
        left.into_iter().for_each(Process::dismiss);
    }
}

impl Agent for Helper {
    fn call(
        &self,
        request: &Request,
        device: Option<BorrowedFd<'_>>,
        note: Note<'_>,
    ) -> Result<(Reply, Option<OwnedFd>), MountError> {
        let taken = self.take().map_err(|e| MountError::Agent(e.to_string()));
        let mut process = taken?;
        let answer = ask(&mut process.channel, request, device, note);
        let failed = matches!(answer, Err(MountError::Agent(_)));
        if failed {
            let _ = process.child.kill();
            let _ = process.child.try_wait();
        }
        self.give_back((!failed).then_some(process));
        answer
    }

    fn namespace(&self) -> u64 {
        mountinfo::namespace()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let all = std::mem::take(self.processes.get_mut());
        all.idle.into_iter().for_each(Process::dismiss);
    }
}

/// A descriptor that is passed on, borrowed.
pub(crate) fn borrowed(device: &Option<OwnedFd>) -> Option<BorrowedFd<'_>> {
    device.as_ref().map(AsFd::as_fd)
}
