//! The daemon: owns imported pools and runs commands for clients.
//!
//! One daemon per socket: it holds the lock file as long as it lives, so a second one ends at
//! once. One thread per connection; a connection is one command. A client that goes away cancels
//! its command. The daemon ends by itself when it has owned no pool, run no command, and had nothing
//! of tunables to remember or to show for [`IDLE`]; on SIGTERM, SIGINT or a Stop request it cancels what runs, unmounts
//! everything and exports all pools first. A thread of its own tells every client each [`BEAT`] that the daemon lives,
//! whatever its command waits for; the process that asked it to stop hears that until all is exported.
//!
//! The kernel says which user is at the socket's other end ([`crate::peer`]). The daemon's own user and root may
//! everything. Root's daemon answers other users, too: they run commands with the rights that are delegated to them
//! ([`Rights::Delegated`]), and nothing in their requests has the daemon open a file: no descriptor for paths, and of
//! the environment what the look of output depends on. They pass it no descriptors. They neither stop the daemon nor
//! see what others run, and have [`MOST`] connections each, and [`MOST_OF_OTHERS`] together. A daemon of an ordinary
//! user answers no other user.
//!
//! Invariants: the socket file is removed before the listener is closed and before the lock is
//! released, so a process that has the lock may remove a socket file that no process answers on. A connection counts
//! until its threads have ended.

mod boot;
pub use boot::Import;
mod watch;
mod wire;

use crate::cachefile::Keeper;
use crate::context::{Context, Streams};
use crate::each::each;
use crate::input::Input;
use crate::mounts::Directory;
use crate::mounts::table::Way;
use crate::peer::Peer;
use crate::pools::{End, PoolTable};
use crate::protocol::{BEAT, Hello, Kind, MAX_OTHERS, PROTOCOL, Request, Run, Stdin};
use crate::protocol::{read_json, read_json_within, write_frame, write_json};
use crate::socket::{Place, at, pid_namespace};
use crate::tunables::startup;
use crate::zed::Zed;
use cenote_command::{Caller, Cancel, Rights};
use cenote_fuse::agent::{Channel, Remote};
use cenote_store::arc::follow;
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use watch::{Asked, Watch};
use wire::{Frames, Outbox, Wire};

/// A daemon without pools and commands ends after this long.
const IDLE: Duration = Duration::from_secs(10);
/// A client must have sent its request after this long.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that another user than the daemon's may have at the same time.
const MOST: usize = 16;
/// Connections that all other users than the daemon's may have at the same time.
const MOST_OF_OTHERS: usize = 128;
/// How long cancelled commands may take to end when the daemon ends.
const GRACE: Duration = Duration::from_secs(5);
/// How long their clients may take of that to read what they still say.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How long the end of the daemon waits for the export of a pool before the next one begins.
const PATIENCE: Duration = Duration::from_secs(3);

/// Runs a command, which is `args` of the tool that is named first; returns its exit code.
pub type RunCommand = fn(&str, &[OsString], &mut Context) -> i32;

/// What the connections share.
struct Daemon {
    run: RunCommand,
    pools: Arc<PoolTable>,
    running: Mutex<Running>,
    /// A byte written here wakes the main loop.
    wake: Mutex<UnixStream>,
    /// Every connection whose client waits for an answer.
    wires: Mutex<Vec<Weak<Wire>>>,
    /// Those whose clients wait for the end.
    leaving: Mutex<Vec<Arc<Wire>>>,
    /// Having nothing to do is no reason to end.
    stays: bool,
    /// Runs zedlets, once the socket is bound.
    zed: OnceLock<Zed>,
}

#[derive(Default)]
struct Running {
    next: u64,
    commands: HashMap<u64, Command>,
    stop: bool,
}

/// A command that runs.
struct Command {
    title: String,
    cancel: Cancel,
    /// Number of the user who gave it.
    user: u32,
    /// That is another one than the daemon's, and not root.
    is_others: bool,
}

impl Running {
    /// Enters a command. The error says why there is no room for it.
    fn enter(
        &mut self,
        title: String,
        cancel: &Cancel,
        user: u32,
        is_others: bool,
    ) -> Result<u64, String> {
        if is_others {
            let others = || self.commands.values().filter(|command| command.is_others);
            if others().filter(|command| command.user == user).count() >= MOST {
                return Err(format!("a user may run {MOST} commands at the same time"));
            }
            if others().count() >= MOST_OF_OTHERS {
                let why = "all users but its own may run";
                return Err(format!("{why} {MOST_OF_OTHERS} commands at the same time"));
            }
        }
        self.next += 1;
        self.commands.insert(self.next, Command { title, cancel: cancel.clone(), user, is_others });
        Ok(self.next)
    }
}

/// A connected client.
struct Client {
    /// Number of the connection.
    id: u64,
    user: u32,
    /// Number of its process, where that can be seen from here.
    pid: Option<u32>,
    rights: Rights,
}

impl Client {
    fn is_others(&self) -> bool {
        self.rights != Rights::All
    }
}

impl Daemon {
    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock()
    }

    /// Whether there is a reason not to end.
    fn is_busy(&self) -> bool {
        let zedlets = self.zed.get().map_or(0, Zed::running);
        self.stays || zedlets > 0 || !self.running().commands.is_empty() || self.pools.in_use()
    }

    fn wake(&self) {
        let mut wake = self.wake.lock();
        // A full pipe wakes as well as a byte more.
        let _ = wake.write(&[0]);
    }

    /// From now on the client at the other end is told that the daemon lives.
    fn keep_informed(&self, wire: &Arc<Wire>) {
        let mut wires = self.wires.lock();
        wires.retain(|w| w.strong_count() > 0);
        wires.push(Arc::downgrade(wire));
    }

    /// Tells every client that the daemon lives, except the clients that are being written to.
    fn beat(&self) {
        let wires = self.wires.lock().clone();
        let mut frame = Vec::new();
        let framed = write_frame(&mut frame, Kind::Alive, &[]);
        for wire in wires.iter().filter_map(Weak::upgrade) {
            if framed.is_ok() {
                wire.send_now(&frame);
            }
        }
    }

    /// Ends the connections of clients that do not wait for the end: their commands may be waiting for them to read.
    fn hang_up(&self) {
        let (wires, leaving) = (self.wires.lock().clone(), self.leaving.lock().clone());
        for wire in wires.iter().filter_map(Weak::upgrade) {
            if !leaving.iter().any(|stays| Arc::ptr_eq(stays, &wire)) {
                wire.shut();
            }
        }
    }
}

/// Starts the thread that says that the daemon lives. It runs as long as the daemon.
fn start_beating(daemon: &Arc<Daemon>) -> io::Result<()> {
    let daemon = Arc::downgrade(daemon);
    let beats = move || {
        while let Some(daemon) = daemon.upgrade() {
            daemon.beat();
            drop(daemon);
            std::thread::sleep(BEAT);
        }
    };
    std::thread::Builder::new().name("beat".into()).spawn(beats)?;
    Ok(())
}

/// Serves until there is nothing to do or a command says stop. Ok(false): another daemon runs. `import`:
/// the pools of the cache file are imported first, and having nothing to do is no reason to end. `run` runs the
/// commands.
pub fn serve(place: &Place, import: Import, run: RunCommand) -> io::Result<bool> {
    allow_many_files();
    place.prepare()?;
    let Some(_lock) = place.take_lock()? else { return Ok(false) };
    let listener = bind(place)?;
    let (wake_in, wake_out) = UnixStream::pair()?;
    wake_in.set_nonblocking(true)?;
    wake_out.set_nonblocking(true)?;
    let mut signals = Vec::new();
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        let (ours, handlers) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        handlers.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(signal, handlers)?;
        signals.push(ours);
    }
    follow::start();
    let daemon = Arc::new(Daemon {
        run,
        pools: Arc::new(PoolTable::of_daemon()),
        running: Mutex::default(),
        wake: Mutex::new(wake_out),
        wires: Mutex::default(),
        leaving: Mutex::default(),
        stays: import != Import::Nothing,
        zed: OnceLock::new(),
    });
    start_zed(&daemon, place)?;
    let keeper = Keeper::start(daemon.pools.clone())?;
    start_beating(&daemon)?;
    tracing::info!(socket = %place.socket.display(), pid = std::process::id(), "listening");
    match import {
        Import::Nothing => boot::ready(),
        import => boot::start(&daemon, import)?,
    }
    let result = serve_connections(&daemon, &listener, &wake_in, &signals);
    let _ = std::fs::remove_file(&place.socket);
    drop(listener);
    // What changes from now on is in the labels.
    keeper.stop();
    finish(&daemon);
    tracing::info!("ended");
    result.map(|()| true)
}

/// Starts the thread that runs zedlets. It runs as long as the daemon.
fn start_zed(daemon: &Arc<Daemon>, place: &Place) -> io::Result<()> {
    let woken = Arc::downgrade(daemon);
    let idle = move || {
        if let Some(daemon) = woken.upgrade() {
            daemon.wake();
        }
    };
    let zed = Zed::start(place, idle)?;
    daemon.zed.get_or_init(|| zed);
    Ok(())
}

/// Each mount takes descriptors: as many may be open as the system lets this process have. Programs that
/// it starts cannot be hurt by that: they do not use the old calls for which 1024 is the limit.
fn allow_many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if let Err(e) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!("no more than {current:?} files can be open: {e}");
    }
}

fn bind(place: &Place) -> io::Result<UnixListener> {
    remove_stale(&place.socket).map_err(|e| at(&place.socket, e))?;
    // As every user may open OpenZFS's /dev/zfs, every user may ask root's daemon.
    let hidden = if rustix::process::geteuid().is_root() { 0o111 } else { 0o177 };
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(hidden));
    let listener = UnixListener::bind(&place.socket);
    rustix::process::umask(mask);
    let listener = listener.map_err(|e| at(&place.socket, e))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Removes the socket of a daemon that has ended. What is there and is no socket stays.
fn remove_stale(socket: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(socket) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(socket),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "exists and is not a socket")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

fn serve_connections(
    daemon: &Arc<Daemon>,
    listener: &UnixListener,
    wake: &UnixStream,
    signals: &[UnixStream],
) -> io::Result<()> {
    let mut idle_since = Instant::now();
    loop {
        let busy = daemon.is_busy();
        if busy {
            idle_since = Instant::now();
        }
        let left = IDLE.saturating_sub(idle_since.elapsed());
        if daemon.running().stop || (!busy && left.is_zero()) {
            return Ok(());
        }
        let timeout = (!busy).then(|| rustix::event::Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut waiting =
            vec![PollFd::new(listener, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        waiting.extend(signals.iter().map(|s| PollFd::new(s, PollFlags::IN)));
        match poll(&mut waiting, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let signalled = waiting.iter().skip(2).any(|w| !w.revents().is_empty());
        drop(waiting);
        if signalled {
            return Ok(());
        }
        drain(wake);
        match listener.accept() {
            Ok((stream, _)) => admit(daemon, stream),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => {
                // Out of descriptors, most likely: the connections that exist will give some back.
                tracing::warn!("accept: {e}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn drain(mut pipe: &UnixStream) {
    let mut bytes = [0u8; 64];
    while matches!(pipe.read(&mut bytes), Ok(n) if n > 0) {}
}

/// Gives a connection a thread.
fn admit(daemon: &Arc<Daemon>, stream: UnixStream) {
    let (peer, rights) = match rights_of(&stream) {
        Ok(Ok(known)) => known,
        Ok(Err(user)) => return tracing::warn!(uid = user, "refused"),
        Err(e) => return tracing::warn!("peer credentials: {e}"),
    };
    let cancel = Cancel::default();
    let is_others = rights != Rights::All;
    let entered = daemon.running().enter(String::new(), &cancel, peer.user, is_others);
    let id = match entered {
        Ok(id) => id,
        Err(why) => return turn_away(stream, &why),
    };
    let client = Client { id, user: peer.user, pid: peer.pid, rights };
    let worker = Arc::clone(daemon);
    let spawned = std::thread::Builder::new().name(format!("command-{id}")).spawn(move || {
        if let Err(e) = converse(&worker, stream, &client, cancel) {
            tracing::debug!("connection {id}: {e}");
        }
        worker.running().commands.remove(&id);
        worker.wake();
    });
    if let Err(e) = spawned {
        tracing::warn!("thread: {e}");
        daemon.running().commands.remove(&id);
    }
}

/// Tells a client why there is no room for its command. It tries again.
fn turn_away(mut stream: UnixStream, why: &str) {
    // A new connection has room for so little; a client that has gone need not be told.
    let told = stream.set_nonblocking(true);
    if let Err(e) = told.and_then(|()| write_frame(&mut stream, Kind::Full, why.as_bytes())) {
        tracing::debug!("turned away: {e}");
    }
}

/// The process at the other end, and what its user may do; the inner error: the user may do nothing here.
fn rights_of(stream: &UnixStream) -> io::Result<Result<(Peer, Rights), u32>> {
    let (ours, peer) = (rustix::process::geteuid(), Peer::of(stream)?);
    Ok(match peer.user {
        user if user == ours.as_raw() || user == 0 => Ok((peer, Rights::All)),
        _ if ours.is_root() => Ok((peer, Rights::Delegated { groups: peer.groups(stream) })),
        user => Err(user),
    })
}

/// One connection from Hello to Exit.
fn converse(
    daemon: &Arc<Daemon>,
    mut stream: UnixStream,
    client: &Client,
    cancel: Cancel,
) -> io::Result<()> {
    let id = client.id;
    stream.set_nonblocking(false)?;
    let hello = Hello {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        protocol: PROTOCOL,
        namespace: cenote_fuse::namespace(),
        pid_namespace: pid_namespace(),
        pools: daemon.pools.all().iter().map(|pool| pool.name().to_string()).collect(),
    };
    write_json(&mut stream, Kind::Hello, &hello)?;
    let (request, descriptors, stream) = read_request(stream, client)?;
    let mut descriptors = descriptors.into_iter();
    let (answers, answered) = watch::answers();
    let watched = start_watch(&stream, &request, &cancel, answers);
    let wire = Arc::new(Wire::new(stream));
    let outbox = Outbox::new(&wire, client.is_others());
    let (watch, input) = match watched {
        Ok(watched) => watched,
        Err(e) => return refuse(&outbox, &wire, &e),
    };
    daemon.keep_informed(&wire);
    let code = match request {
        Request::Run(run) => {
            let mut ctx = context(daemon, &outbox, (&run, client), cancel.clone());
            let is_elsewhere = run.namespace != cenote_fuse::namespace();
            let brings_agent = is_elsewhere && !ctx.caller.is_delegated();
            let brings_input = run.input == Stdin::Descriptor;
            if descriptors.len() < usize::from(brings_input) + usize::from(brings_agent) {
                return refuse(&outbox, &wire, &rustix::io::Errno::MFILE.into());
            }
            let input = if brings_input { descriptors.next() } else { input };
            let answered = (run.input != Stdin::Frames).then_some(answered);
            ctx.process = Some(Arc::new(Asked::new(&outbox, answered, cancel.clone())));
            ctx.input = input.map(|input| Input::new(input.into(), cancel));
            if let Some(socket) = descriptors.next().filter(|_| brings_agent) {
                ctx.callers_agent = Some(Arc::new(Remote::new(socket.into(), run.namespace)?));
            }
            let args: Vec<OsString> = run.args.into_iter().map(OsString::from_vec).collect();
            if let Some(command) = daemon.running().commands.get_mut(&id) {
                command.title = title_of(&run.tool, &args);
            }
            run_guarded(daemon.run, &run.tool, &args, &mut ctx)
        }
        Request::Status | Request::Stop if client.is_others() => {
            let mut err = Frames::new(&outbox, Kind::Err);
            err.write_all(b"cenote daemon: permission denied\n")?;
            1
        }
        Request::Status => {
            let mut out = Frames::new(&outbox, Kind::Out);
            describe(daemon, id, &mut out)?;
            0
        }
        Request::Stop => {
            wire.set_timeout(GRACE)?;
            daemon.leaving.lock().push(wire);
            daemon.running().stop = true;
            watch.leave();
            return Ok(());
        }
    };
    outbox.finish()?;
    wire.dismiss(code)
}

/// Reads a client's request, with the descriptors that come with it. Of another user no descriptors are taken: the
/// kernel drops descriptors that come where no receiver asks for them.
fn read_request(
    stream: UnixStream,
    client: &Client,
) -> io::Result<(Request, Vec<OwnedFd>, UnixStream)> {
    let end = Instant::now() + REQUEST_TIMEOUT;
    let (request, descriptors, stream) = if client.is_others() {
        let mut limited = Until { stream: &stream, end };
        let request = read_json_within(&mut limited, Kind::Request, MAX_OTHERS)?;
        (request, Vec::new(), stream)
    } else {
        stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        let mut channel = Channel::new(stream);
        let request = read_json(&mut channel, Kind::Request)?;
        (request, channel.take_descriptors(), channel.into_stream())
    };
    stream.set_read_timeout(None)?;
    Ok((request, descriptors, stream))
}

/// A stream that is read until a time, however much comes of it.
struct Until<'a> {
    stream: &'a UnixStream,
    end: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(to)
    }
}

/// Starts to watch a client, and returns what its command reads as standard input, if that comes in frames.
fn start_watch(
    stream: &UnixStream,
    request: &Request,
    cancel: &Cancel,
    answers: SyncSender<Vec<u8>>,
) -> io::Result<(Watch, Option<OwnedFd>)> {
    let in_frames = matches!(request, Request::Run(run) if run.input == Stdin::Frames);
    let (to, from) = in_frames.then(UnixStream::pair).transpose()?.unzip();
    let watch = Watch::start(stream, cancel.clone(), to, answers)?;
    Ok((watch, from.map(OwnedFd::from)))
}

/// Tells the client that its command was not run: the daemon lacks what it takes, descriptors most likely.
fn refuse(outbox: &Arc<Outbox>, wire: &Wire, why: &io::Error) -> io::Result<()> {
    tracing::warn!("a command was refused: {why}");
    let mut err = Frames::new(outbox, Kind::Err);
    writeln!(err, "cenote: the daemon cannot run a further command now: {why}")?;
    wire.dismiss(1)
}

fn title_of(tool: &str, args: &[OsString]) -> String {
    let args: Vec<_> = args.iter().map(|a| a.to_string_lossy()).collect();
    format!("{tool} {}", args.join(" "))
}

fn context(
    daemon: &Daemon,
    outbox: &Arc<Outbox>,
    (run, client): (&Run, &Client),
    cancel: Cancel,
) -> Context {
    let frames = |kind| Frames::new(outbox, kind);
    let os = |bytes: &Vec<u8>| OsString::from_vec(bytes.clone());
    let streams = Streams {
        out: Box::new(BufWriter::with_capacity(64 << 10, frames(Kind::Out))),
        err: Box::new(frames(Kind::Err)),
    };
    let caller = Caller {
        cwd: PathBuf::from(os(&run.cwd)),
        env: run.env.iter().map(|(k, v)| (os(k), os(v))).collect(),
        terminal: run.terminal,
        umask: run.umask,
        user: client.user,
        pid: client.pid,
        rights: Rights::All,
    };
    let caller = match &client.rights {
        Rights::All => caller,
        Rights::Delegated { groups } => caller.with_rights_of(groups.clone()),
    };
    Context::new(streams, caller, Arc::clone(&daemon.pools), cancel)
}

/// Runs a command so that a fault in it ends the command and not the daemon.
fn run_guarded(run: RunCommand, tool: &str, args: &[OsString], ctx: &mut Context) -> i32 {
    let ran = catch_unwind(AssertUnwindSafe(|| run(tool, args, ctx)));
    ran.unwrap_or_else(|_| {
        tracing::error!("internal error in {}", title_of(tool, args));
        ctx.complain("internal error: the command was aborted (see the daemon's log)");
        134
    })
}

/// Answers a Status request.
fn describe(daemon: &Daemon, own: u64, out: &mut dyn Write) -> io::Result<()> {
    let mut text =
        format!("daemon: process {}, version {}\n", std::process::id(), env!("CARGO_PKG_VERSION"));
    for imported in daemon.pools.all() {
        let mounts = imported.mounts.list().len();
        text += &format!("pool: {}, {mounts} mounted\n", imported.name());
    }
    for dir in daemon.pools.directories.all() {
        text += &format!("tunables: mounted at {}\n", dir.display());
    }
    let zedlets = daemon.zed.get().map_or(0, Zed::running);
    if zedlets > 0 {
        text += &format!("zedlets: {zedlets} running\n");
    }
    if startup::changed() {
        text += "tunables: not as they were at start\n";
    }
    for (id, Command { title, user, is_others, .. }) in &daemon.running().commands {
        let whose = if *is_others { format!(" (user {user})") } else { String::new() };
        if *id != own {
            text += &format!("running: {title}{whose}\n");
        }
    }
    out.write_all(text.as_bytes())
}

/// Tells the log, and the clients that wait for the end, what an export says.
struct LastWords {
    leaving: Vec<Arc<Wire>>,
    line: Vec<u8>,
}

impl Write for LastWords {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(data);
        while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            tracing::warn!("{}", String::from_utf8_lossy(&line).trim_end());
            let mut frame = Vec::new();
            write_frame(&mut frame, Kind::Err, &line)?;
            self.leaving.iter().for_each(|wire| wire.send_now(&frame));
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Unmounts and exports everything. A pool that takes long, as its devices do not answer, is named, and keeps no other from being
/// exported.
fn export_all(daemon: &Daemon) {
    let leaving = daemon.leaving.lock().clone();
    let err = Box::new(LastWords { leaving, line: Vec::new() });
    let streams = Streams { out: Box::new(io::sink()), err };
    let pools = Arc::clone(&daemon.pools);
    let mut ctx = Context::new(streams, Caller::of_process(), pools, Cancel::default());
    let export = |name: &String, own: &mut Context| {
        let Some(imported) = own.pools.get(name) else { return };
        let by = own.pools.agent();
        let way = Way { force: true, directory: Directory::Inherited, by: &*by };
        if let Err(e) = imported.mounts.close(way) {
            own.complain(format_args!("{name}: {e}"));
        }
        if let Err(e) = imported.close(End::Exported) {
            own.complain(e);
        }
        own.pools.remove(name);
        tracing::info!("exported {name}");
    };
    // Their devices are let go of one by one.
    let all: Vec<String> = daemon.pools.all().iter().map(|p| p.name().to_string()).collect();
    each(&mut ctx, ("exporting", &all, PATIENCE), String::as_str, export);
}

/// Cancels what runs, then unmounts and exports everything. What waits for devices of a suspended pool is given up.
///
/// Faults that were injected end first: what is written last shall reach the devices, and in time.
fn finish(daemon: &Daemon) {
    daemon.pools.injections.clear_all();
    for imported in daemon.pools.all() {
        if let Some(engine) = imported.engine() {
            engine.hold_no_more();
        }
    }
    for command in daemon.running().commands.values() {
        command.cancel.cancel();
    }
    let began = Instant::now();
    let mut hung_up = false;
    while !daemon.running().commands.is_empty() && began.elapsed() < GRACE {
        if !hung_up && began.elapsed() >= LAST_WORDS {
            daemon.hang_up();
            hung_up = true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // A command may have added one meanwhile.
    daemon.pools.injections.clear_all();
    daemon.pools.directories.unmount_all();
    export_all(daemon);
    // Zedlets of the exports run before the processes that wait for the end are told.
    if let Some(zed) = daemon.zed.get() {
        zed.stop();
    }
    for wire in daemon.leaving.lock().drain(..) {
        // A client that is gone need not be told.
        let _ = wire.dismiss(0);
    }
}
