//! `cenote daemon`: start, look at and stop the daemon by hand.

use crate::client;
use crate::mounts::agents;
use crate::server::{self, Import, RunCommand};
use crate::socket::Place;
use cenote_command::outcome::plain;
use cenote_daemon::protocol::Request;
use clap::{Args, Subcommand};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::panic::PanicHookInfo;

/// Arguments of `cenote daemon`.
#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// Serve from this process instead of starting one in the background
    #[arg(long)]
    foreground: bool,
    /// With --foreground: import the pools that the cache file names, and stay without any
    #[arg(long, requires = "foreground")]
    import: bool,
    /// With --import: leave out pools in object stores that are reached by network, which may not be there yet
    #[arg(long, requires = "import")]
    local: bool,
    /// With --foreground: leave the terminal's session
    #[arg(long, hide = true, requires = "foreground")]
    detach: bool,
    /// Wait for the daemon that started this process to end, then take its mounts away
    #[arg(long, hide = true, conflicts_with = "foreground")]
    watch_mounts: bool,
    /// Do things at paths for the daemon that started this process, until it ends
    #[arg(long, hide = true, conflicts_with_all = ["foreground", "watch_mounts"])]
    mount_agent: bool,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Say whether the daemon runs, which pools it owns and which commands it runs
    Status,
    /// Unmount and export everything and end the daemon
    Stop,
}

/// Runs `cenote daemon`, which runs commands by `run`; returns the exit code.
pub fn main(args: &DaemonArgs, run: RunCommand) -> i32 {
    // It was started by another name than its file's (`agents::this_program`).
    if let Err(e) = rustix::thread::set_name(c"cenote") {
        tracing::debug!("name of the process: {e}");
    }
    if args.watch_mounts {
        return i32::from(cenote_fuse::watcher::watch().is_err());
    }
    if args.mount_agent {
        return i32::from(agents::serve().is_err());
    }
    let done = Place::of_process().and_then(|place| match args.action {
        None if args.foreground => foreground(&place, args, run),
        None => client::connect_or_start(&place).map(|_| 0),
        Some(Action::Status) => ask(&place, &Request::Status, 1),
        Some(Action::Stop) => stop(&place),
    });
    done.unwrap_or_else(|e| {
        let _ = writeln!(io::stderr(), "cenote daemon: {}", plain(&e));
        1
    })
}

fn foreground(place: &Place, args: &DaemonArgs, run: RunCommand) -> io::Result<i32> {
    tracing_subscriber::fmt().with_ansi(false).with_writer(io::stderr).init();
    std::panic::set_hook(Box::new(log_panic));
    for warning in cenote_daemon::tunables::startup::load() {
        tracing::warn!("{warning}");
    }
    if args.detach {
        // A session of its own: no terminal, and no signal that is meant for the user's command.
        rustix::process::setsid()?;
    }
    let import = match (args.import, args.local) {
        (false, _) => Import::Nothing,
        (true, true) => Import::Local,
        (true, false) => Import::All,
    };
    if !server::serve(place, import, run)? {
        tracing::info!("another daemon serves {}", place.socket.display());
    }
    Ok(0)
}

/// Puts a panic into the log like everything else: when, in which thread, where and why.
fn log_panic(info: &PanicHookInfo<'_>) {
    let why = info.payload_as_str().unwrap_or("no message");
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    match Backtrace::capture() {
        trace if trace.status() == BacktraceStatus::Captured => {
            tracing::error!("thread {name} panicked at {place}: {why}\n{trace}");
        }
        _ => tracing::error!("thread {name} panicked at {place}: {why}"),
    }
}

fn ask(place: &Place, request: &Request, absent: i32) -> io::Result<i32> {
    match client::connect(place)? {
        // It asks for nothing.
        Some(connection) => client::converse(connection, request, &|_| Vec::new()),
        None => {
            println!("no daemon is running");
            Ok(absent)
        }
    }
}

/// Stops the daemon and waits until it is gone.
fn stop(place: &Place) -> io::Result<i32> {
    let code = ask(place, &Request::Stop, 0)?;
    if code == 0 {
        client::wait_for_end(place)?;
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;

    /// A log in memory.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn panics_are_logged() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(log_panic));
        let ended = tracing::subscriber::with_default(subscriber, || {
            std::panic::catch_unwind(|| panic!("nothing is left of {}", "it"))
        });
        std::panic::set_hook(before);
        assert!(ended.is_err());
        let text = String::from_utf8(log.0.lock().clone()).unwrap();
        assert!(text.contains("ERROR") && text.contains("crates/cli/src/daemon.rs:"), "{text}");
        assert!(text.contains("nothing is left of it"), "{text}");
    }
}
