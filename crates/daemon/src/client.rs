//! The user's end of the socket: finds or starts the daemon, sends it the command, and passes on
//! what it answers.
//!
//! A connection that ends before the daemon's Hello was never accepted (the daemon was just about
//! to end for want of work), so it is tried again; after the Hello nothing is repeated. No wait for
//! the daemon is without end (`link`).

use crate::link::{Limits, Link, Wait};
use crate::mounts::agents::this_program;
use crate::protocol::{Hello, Kind, MAX_OTHERS, PROTOCOL, Request, Run, Stdin};
use crate::protocol::{read_frame, write_frame, write_json};
use crate::socket::{Place, open_own, pid_namespace};
use cenote_command::outcome::plain;
use cenote_command::output::printable;
use cenote_command::{Caller, Cancel};
use cenote_fuse::agent::Channel;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How long a daemon may take to answer after it was started.
const START: Duration = Duration::from_secs(15);
/// How long to wait for a turn where as many commands run already as may.
const TURN: Duration = Duration::from_secs(30);
/// Bytes of standard input that are sent at once.
const PIECE: usize = 256 << 10;

/// A connection to a daemon that has said Hello.
pub struct Connection {
    link: Link,
    /// What the daemon said of itself.
    pub hello: Hello,
}

impl Connection {
    /// Whether the daemon does everything for this user: it is this user's, or this user is root.
    pub fn is_own(&self) -> bool {
        self.link.is_own()
    }

    /// Whether one of the arguments is in a pool of the daemon.
    pub fn has_any_of(&self, args: &[OsString]) -> bool {
        args.iter().any(|arg| {
            let pool = arg.as_bytes().split(|b| b"/@#:".contains(b)).next().unwrap_or_default();
            self.hello.pools.iter().any(|known| known.as_bytes() == pool)
        })
    }

    /// From now on an interrupt (SIGINT) asks the command to stop, and what it still says arrives; a
    /// second one ends this process.
    ///
    /// # Errors
    /// The signal cannot be caught.
    pub fn ask_on_interrupt(&self) -> io::Result<()> {
        // The daemon cancels a command whose client has closed its end.
        let (stream, cancel) = (self.link.stream().try_clone()?, Cancel::default());
        cancel.on_interrupt()?;
        let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT])?;
        std::thread::Builder::new().name("interrupt".into()).spawn(move || {
            if signals.forever().next().is_some() {
                let _ = stream.shutdown(std::net::Shutdown::Write);
            }
        })?;
        Ok(())
    }
}

/// Connects to the daemon if one runs: one of this user's or of root's, in a directory where
/// no other user can put a socket.
///
/// # Errors
/// The socket or the process that listens there is not trusted (`PermissionDenied`); the daemon does not
/// answer (`TimedOut`); it runs as many commands as it may, and goes on doing so.
pub fn connect(place: &Place) -> io::Result<Option<Connection>> {
    match place.check() {
        Err(e) if nobody_there(&e) => return Ok(None),
        checked => checked?,
    }
    let end = Instant::now() + TURN;
    let (mut tries, mut pause) = (0, Duration::from_millis(10));
    while tries < 3 {
        let mut link = match Link::connect(place, Limits::default()) {
            Ok(link) => link,
            Err(e) if nobody_there(&e) => return Ok(None),
            Err(e) => return Err(e),
        };
        match read_frame(&mut link) {
            Ok(Some((Kind::Hello, hello))) => {
                let hello = serde_json::from_slice(&hello)?;
                return Ok(Some(Connection { link, hello }));
            }
            Ok(Some((Kind::Full, why))) if Instant::now() >= end => {
                return Err(turns_away(place, &String::from_utf8_lossy(&why)));
            }
            Ok(Some((Kind::Full, _))) => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(500));
            }
            Ok(Some(_)) => return Err(unexpected()),
            Ok(None) => tries += 1,
            Err(e) if ended(&e) => tries += 1,
            Err(e) => return Err(e),
        }
    }
    if let Ok(false) = place.is_held() {
        return Ok(None);
    }
    // It has no thread or no descriptor left for one more.
    Err(turns_away(place, &last_words(&place.log)))
}

fn turns_away(place: &Place, why: &str) -> io::Error {
    let who = place.holder().map(|pid| format!(" (process {pid})")).unwrap_or_default();
    io::Error::other(format!("the daemon{who} turns commands away: {}", printable(why)))
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "unexpected message")
}

/// Connects to the daemon that a command is for, if it runs: this user's own, or root's, which serves others as
/// well. Where both have pools it goes by those that the arguments name.
///
/// # Errors
/// As [`connect`].
pub fn connect_for(args: &[OsString]) -> io::Result<Option<Connection>> {
    let own = connect(&Place::of_process()?)?;
    if own.as_ref().is_some_and(|own| own.has_any_of(args)) {
        return Ok(own);
    }
    let roots = match Place::of_root().map(|place| connect(&place)) {
        // Root does not let others in.
        Some(Err(e)) if e.kind() == io::ErrorKind::PermissionDenied => None,
        Some(Err(e)) if own.is_none() => return Err(e),
        roots => roots.and_then(Result::ok).flatten(),
    };
    let is_roots = match (&own, &roots) {
        (Some(own), Some(roots)) => own.hello.pools.is_empty() || roots.has_any_of(args),
        (_, roots) => roots.is_some(),
    };
    Ok(if is_roots { roots } else { own })
}

fn nobody_there(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn ended(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

/// Connects to the daemon, starting it if it does not run.
///
/// # Errors
/// As [`connect`]; the daemon cannot be started, or another one keeps it from starting.
pub fn connect_or_start(place: &Place) -> io::Result<Connection> {
    if let Some(connection) = connect(place)? {
        return Ok(connection);
    }
    place.prepare()?;
    let mut child = start(place)?;
    let deadline = Instant::now() + START;
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(connection) = connect(place)? {
            return Ok(connection);
        }
        // A daemon that finds another one running ends with success. The other one answers, or it was
        // about to end: then one is started again.
        match child.try_wait()? {
            Some(status) if !status.success() => {
                let why = format!("the daemon ended: {}", last_words(&place.log));
                return Err(io::Error::other(why));
            }
            Some(_) if !place.is_held()? => child = start(place)?,
            _ => {}
        }
        if Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, no_answer(place)));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Why no daemon answers that was started, and what to do.
fn no_answer(place: &Place) -> String {
    match place.holder() {
        Some(pid) => format!(
            "a daemon (process {pid}) is ending and holds {}: try again later, or end it with \
             'kill -9 {pid}'",
            place.lock.display()
        ),
        None => format!("the daemon does not answer: {}", last_words(&place.log)),
    }
}

/// Waits until no daemon holds the lock file of `place`.
///
/// # Errors
/// It does not end (`TimedOut`).
pub fn wait_for_end(place: &Place) -> io::Result<()> {
    const PAUSE: Duration = Duration::from_millis(10);
    let mut wait = Wait::new(place, Limits::default(), place.holder());
    while place.is_held()? {
        std::thread::sleep(PAUSE);
        wait.passed(PAUSE)?;
    }
    Ok(())
}

/// Starts a daemon that survives this process: a session of its own, no terminal, its standard
/// error in the log.
fn start(place: &Place) -> io::Result<Child> {
    let log = open_own(&place.log, OpenOptions::new().create(true).append(true))?;
    this_program()
        .args(["daemon", "--foreground", "--detach"])
        .env("CENOTE_SOCKET", &place.socket)
        .env("GLIBC_TUNABLES", tunables(std::env::var_os("GLIBC_TUNABLES")))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
}

/// glibc's tunables for the daemon: the user's, and no restartable sequences unless they speak of
/// them. With these the kernel writes to a thread's memory each time that it goes on after another
/// one ran, which it does for every small request; glibc only looks there in `sched_getcpu`.
fn tunables(users: Option<OsString>) -> OsString {
    const NO_SEQUENCES: &str = "glibc.pthread.rseq=0";
    match users {
        Some(users) if users.to_string_lossy().contains("glibc.pthread.rseq=") => users,
        Some(mut users) if !users.is_empty() => {
            users.push(":");
            users.push(NO_SEQUENCES);
            users
        }
        _ => NO_SEQUENCES.into(),
    }
}

fn last_words(log: &Path) -> String {
    let mut text = Vec::new();
    let read =
        open_own(log, OpenOptions::new().read(true)).and_then(|mut f| f.read_to_end(&mut text));
    // A log that cannot be read says nothing.
    let text = read.map(|_| String::from_utf8_lossy(&text)).unwrap_or_default();
    match text.trim_end().lines().next_back() {
        Some(line) => format!("{} (log: {})", printable(line), log.display()),
        None => format!("see {}", log.display()),
    }
}

/// Says that it was the output that failed; a reader that has gone away stays recognizable.
fn output(e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("cannot write output: {}", plain(&e)))
}

/// What this process does for a command that the daemon runs: an answer to what it asks.
pub type Answerer<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

/// Has the daemon run a command for this process; returns its exit code. `input`: the command reads standard
/// input; `answer`: what this process does for it.
pub fn run(
    connection: Connection,
    (tool, args): (&str, &[OsString]),
    input: bool,
    answer: Answerer<'_>,
) -> io::Result<i32> {
    check_version(&connection.hello)?;
    let caller = Caller::of_process();
    let args =
        if connection.is_own() { args.to_vec() } else { args.iter().map(resolved).collect() };
    let bytes = |s: &OsStr| s.as_bytes().to_vec();
    let run = Run {
        tool: tool.into(),
        args: args.iter().map(|a| bytes(a)).collect(),
        cwd: caller.cwd.into_os_string().into_vec(),
        env: caller.env.iter().map(|(k, v)| (bytes(k), bytes(v))).collect(),
        terminal: caller.terminal,
        umask: caller.umask,
        namespace: cenote_fuse::namespace(),
        input: match (input, connection.is_own()) {
            (false, _) => Stdin::Unread,
            (true, true) => Stdin::Descriptor,
            (true, false) => Stdin::Frames,
        },
    };
    converse(connection, &Request::Run(run), answer)
}

/// An argument as another user's daemon gets it, which looks up no paths: a path without symbolic links.
fn resolved(arg: &OsString) -> OsString {
    let is_path = arg.as_bytes().starts_with(b"/") || arg.as_bytes().starts_with(b"./");
    match Path::new(arg).canonicalize() {
        Ok(path) if is_path => path.into(),
        _ => arg.clone(),
    }
}

/// Checks that the daemon is of this program.
fn check_version(hello: &Hello) -> io::Result<()> {
    let ours = env!("CARGO_PKG_VERSION");
    let (pid, version) = (hello.pid, &hello.version);
    let who = match hello.pid_namespace == pid_namespace() {
        true => format!("the daemon (process {pid})"),
        false => "the daemon".to_string(),
    };
    if (version.as_str(), hello.protocol) == (ours, PROTOCOL) {
        return Ok(());
    }
    let builds = if version == ours { " (of another build)" } else { "" };
    Err(io::Error::other(format!(
        "{who} is version {version}{builds}, this command is {ours}; \
         run 'cenote daemon stop' first"
    )))
}

/// A socket on which this process serves as the daemon's agent in its mount namespace: the daemon's end.
fn offer_agent() -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    let serve = || {
        if let Err(e) = cenote_fuse::agent::serve(ours) {
            tracing::debug!("agent: {e}");
        }
    };
    std::thread::Builder::new().name("agent".into()).spawn(serve)?;
    Ok(theirs)
}

/// Starts to send a request with the descriptors that go with it. Returns how many bytes were sent.
fn send_descriptors(connection: &Connection, run: &Run, wire: &[u8]) -> io::Result<usize> {
    let input = io::stdin();
    // What the daemon says of its namespace is its own word.
    let elsewhere = run.namespace != connection.hello.namespace;
    let agent = match elsewhere && connection.link.is_of_this_user() {
        true => Some(offer_agent()?),
        false => None,
    };
    let input = (run.input == Stdin::Descriptor).then(|| input.as_fd());
    let descriptors: Vec<_> = input.into_iter().chain(agent.as_ref().map(AsFd::as_fd)).collect();
    if descriptors.is_empty() {
        return Ok(0);
    }
    Channel::new(connection.link.stream().try_clone()?).send_with(wire, &descriptors)
}

/// Sends standard input in frames, from a background thread. What cannot be read is its end.
fn send_input(stream: UnixStream) -> io::Result<()> {
    let send = move || {
        let (mut to, mut buffer) = (Patient(stream), vec![0; PIECE]);
        loop {
            let read = match io::stdin().lock().read(&mut buffer) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                read => read.unwrap_or(0),
            };
            let sent = write_frame(&mut to, Kind::In, buffer.get(..read).unwrap_or_default());
            if read == 0 || sent.is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("input".into()).spawn(send)?;
    Ok(())
}

/// A stream whose other end may take its time. Whether it lives is known from what it says.
struct Patient(UnixStream);

impl Write for Patient {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(data) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends a request and passes on what is answered; returns the exit code.
///
/// # Errors
/// The output cannot be written; the daemon ends, or does not answer (`TimedOut`).
pub fn converse(
    mut connection: Connection,
    request: &Request,
    answer: Answerer<'_>,
) -> io::Result<i32> {
    let mut wire = Vec::new();
    write_json(&mut wire, Kind::Request, request)?;
    if !connection.is_own() && wire.len() > MAX_OTHERS {
        let why = "the command line is too long for another user's daemon";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let sent = match request {
        Request::Run(run) => send_descriptors(&connection, run, &wire)?,
        _ => 0,
    };
    connection.link.write_all(wire.get(sent..).unwrap_or_default())?;
    let sends_input = matches!(request, Request::Run(run) if run.input == Stdin::Frames);
    if sends_input {
        send_input(connection.link.stream().try_clone()?)?;
    }
    let (mut out, mut err) = (io::stdout().lock(), io::stderr().lock());
    loop {
        let frame = match read_frame(&mut connection.link) {
            // It was killed in the middle of a message.
            Err(e) if ended(&e) => None,
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                let why = format!("{e}. What the command was to do may be done or not");
                return Err(io::Error::new(e.kind(), why));
            }
            read => read?,
        };
        match frame {
            Some((Kind::Out, data)) => {
                out.write_all(&data).and_then(|()| out.flush()).map_err(output)?;
            }
            // What cannot be complained about shows in the exit code all the same.
            Some((Kind::Err, data)) => drop(err.write_all(&data)),
            Some((Kind::Exit, data)) => return Ok(serde_json::from_slice(&data)?),
            Some((Kind::Alive, _)) => {}
            // Where input is sent, the thread that sends it is the only one that writes: an answer may land in the middle of a frame.
            Some((Kind::Ask, question)) if !sends_input => {
                // All that was said before is shown before.
                let told = write_frame(&mut connection.link, Kind::Answer, &answer(&question));
                // What the daemon has said as it ended is still there to be read.
                told.or_else(|e| if ended(&e) { Ok(()) } else { Err(e) })?;
            }
            Some(_) => return Err(unexpected()),
            None => return Err(io::Error::other("the daemon ended during the command")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::tunables;

    #[test]
    fn a_users_tunables_stay_and_theirs_of_sequences_count() {
        let with = |users: Option<&str>| tunables(users.map(Into::into)).into_string().unwrap();
        assert_eq!(with(None), "glibc.pthread.rseq=0");
        assert_eq!(with(Some("")), "glibc.pthread.rseq=0");
        assert_eq!(with(Some("glibc.malloc.check=1")), "glibc.malloc.check=1:glibc.pthread.rseq=0");
        assert_eq!(with(Some("glibc.pthread.rseq=1")), "glibc.pthread.rseq=1");
    }
}
