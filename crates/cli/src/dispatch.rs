//! From a command line to the function that runs it, and the process it runs in.
//!
//! The name of the program, or its first argument, chooses the tool. Arguments of the classic tools are left to
//! them; all others are parsed by clap. [`place`] says where a command runs, from its arguments alone: in the
//! user's process, in the daemon if one runs, or in a daemon that is started for it.
//!
//! `launch` connects if need be and sends the arguments; the daemon calls [`run`], which is the same function
//! that the user's process calls when the command runs there. `run` asks first whether the caller may give the
//! command (`access::refusal`). What it refuses another user is looked at in the user's process before (`answered_here`).
//!
//! Completion is a case of its own: it must answer soon, so it never starts a daemon, and a timer ends it.

use crate::client;
use crate::commands::Where;
use crate::context::{Context, Streams};
use crate::pools::PoolTable;
use crate::socket::Place;
use crate::{
    access, age, complete, copy, daemon, generate, key_fetch, list, map, rewrite, tunables, txgs,
    zfs, zinject, zpool,
};
use cenote_command::outcome::{WRONG, plain};
use cenote_command::posix::set_posix;
use cenote_command::{Caller, Cancel};
use cenote_daemon::tunables::startup;
use cenote_vdev::patience::impatiently;
use clap::{CommandFactory, Parser, Subcommand};
use parking_lot::Mutex;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

#[derive(Debug, Parser)]
#[command(name = "cenote", version, about = "OpenZFS pools in user space", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Tool,
}

#[derive(Debug, Subcommand)]
enum Tool {
    /// Import, export and look at pools, as zpool(8)
    #[command(disable_help_flag = true)]
    Zpool {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// List, mount and look at datasets, as zfs(8)
    #[command(disable_help_flag = true)]
    Zfs {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Look at the on-disk structures of a pool, as zdb(8)
    #[command(disable_help_flag = true)]
    Zdb {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Look at streams of zfs send and change them, as zstream(8)
    #[command(disable_help_flag = true)]
    Zstream {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Inject faults into imported pools, as zinject(8)
    #[command(disable_help_flag = true)]
    Zinject {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// List files of a dataset without mounting it
    Ls(list::LsArgs),
    /// Write files of a dataset to standard output without mounting it
    Cat(list::CatArgs),
    /// Copy files out of a dataset without mounting it
    Cp(copy::CpArgs),
    /// Write files of mounted file systems anew, as they are, to lay them out afresh
    Rewrite(rewrite::RewriteArgs),
    /// List or set the numbers that may be changed while pools are in use
    Tunables(tunables::TunablesArgs),
    /// Show what the last transaction groups of imported pools did
    Txgs(txgs::TxgsArgs),
    /// Show the map of free space: every metaslab, how full, how fragmented, whose blocks
    Map(map::MapArgs),
    /// Predict when a workload spoils a pool
    Age(Box<age::AgeArgs>),
    /// Say what may come next on a command line
    #[command(hide = true)]
    Complete(complete::CompleteArgs),
    /// Write man pages and shell completions into a directory
    #[command(hide = true)]
    Generate(generate::GenerateArgs),
    /// Start, look at or stop the daemon that owns imported pools
    Daemon(daemon::DaemonArgs),
}

/// The classic tools, which take their arguments apart themselves.
pub const CLASSIC: [&str; 5] = ["zpool", "zfs", "zdb", "zstream", "zinject"];

/// The definition of the program.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// The whole program: `argv` with the program's name in front; returns the exit code.
pub fn main(argv: Vec<OsString>) -> i32 {
    set_posix(std::env::var_os("POSIXLY_CORRECT").is_some());
    let mut argv = argv.into_iter();
    let called = argv.next().unwrap_or_default();
    let args: Vec<OsString> = argv.collect();
    let name = Path::new(&called).file_name().and_then(|n| n.to_str()).unwrap_or("cenote");
    match name {
        "zpool" | "zfs" | "zdb" | "zstream" | "zinject" | "mount.zfs" | "zfs_ids_to_path" => {
            launch(name, &args)
        }
        "zstreamdump" => {
            let args: Vec<OsString> = std::iter::once("dump".into()).chain(args).collect();
            launch("zstream", &args)
        }
        _ => match args.split_first() {
            // The classic tools have their own habits, so clap does not look at their arguments.
            Some((tool, rest)) if CLASSIC.iter().any(|t| tool == t) => {
                launch(&tool.to_string_lossy(), rest)
            }
            _ => match parse(&args) {
                Ok(Tool::Daemon(args)) => daemon::main(&args, run),
                Ok(Tool::Complete(words)) => complete_line(&words, &args),
                _ => launch("cenote", &args),
            },
        },
    }
}

fn parse(args: &[OsString]) -> Result<Tool, clap::Error> {
    let argv = std::iter::once(OsString::from("cenote")).chain(args.iter().cloned());
    Cli::try_parse_from(argv).map(|cli| cli.command)
}

/// Runs a command where it belongs.
fn launch(tool: &str, args: &[OsString]) -> i32 {
    let ran = match place(tool, args) {
        Where::Here => None,
        Where::DaemonIfRunning => Some(client::connect_for(args)),
        Where::Daemon => {
            Some(Place::of_process().and_then(|p| client::connect_or_start(&p).map(Some)))
        }
    };
    let result = match ran {
        Some(Ok(Some(connection)))
            if !connection.is_own() && access::is_for_own_process(tool, args) =>
        {
            run_here(tool, args)
        }
        Some(Ok(Some(connection)))
            if !connection.is_own()
                && let Some(code) = answered_here(&connection, tool, args) =>
        {
            code
        }
        Some(Ok(Some(connection))) => {
            let ready =
                if ends_in_order(tool, args) { connection.ask_on_interrupt() } else { Ok(()) };
            let answer = |question: &[u8]| match key_fetch::answer(question, (tool, args)) {
                Some(answer) => answer,
                None => zpool::programs::answer(question, (tool, args)),
            };
            let input = reads_input(tool, args);
            ready.and_then(|()| client::run(connection, (tool, args), input, &answer))
        }
        None | Some(Ok(None)) => run_here(tool, args),
        Some(Err(e)) => Err(e),
    };
    if ["zpool", "zfs"].contains(&tool) && std::env::var_os("ZFS_ABORT").is_some() {
        let _ = writeln!(std::io::stdout(), "dumping core by request");
        std::process::abort();
    }
    match result {
        Ok(code) => code,
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => 1,
        Err(e) => {
            // Standard error may be closed or full: the exit code says it too.
            let _ = writeln!(std::io::stderr(), "{tool}: {}", plain(&e));
            1
        }
    }
}

/// Runs `cenote complete`: in the daemon if pools matter and it answers, else here, and not for long.
fn complete_line(words: &complete::CompleteArgs, args: &[OsString]) -> i32 {
    std::thread::spawn(|| {
        std::thread::sleep(complete::PATIENCE);
        std::process::exit(0);
    });
    let mut ctx = Context::of_process(Arc::new(PoolTable::default()));
    if let Some(code) = complete::without_pools(words, &Cli::command(), &mut ctx) {
        return code;
    }
    let connection = client::connect_for(args).ok().flatten();
    match connection
        .map(|connection| client::run(connection, ("cenote", args), false, &|_| Vec::new()))
    {
        Some(Ok(code)) => code,
        _ => complete::run(words, &Cli::command(), &mut ctx),
    }
}

/// Whether a command that is interrupted still has something to say, or a bar to take away.
fn ends_in_order(tool: &str, args: &[OsString]) -> bool {
    tool == "cenote" && matches!(parse(args), Ok(Tool::Age(_) | Tool::Map(_)))
}

fn run_here(tool: &str, args: &[OsString]) -> std::io::Result<i32> {
    let mut ctx = Context::of_process(Arc::new(PoolTable::default()));
    startup::load();
    if ends_in_order(tool, args) {
        ctx.cancel.on_interrupt()?;
    }
    Ok(run(tool, args, &mut ctx))
}

/// Something that a command says, and whether it is for standard error.
type Piece = (bool, Vec<u8>);

/// What a command says, in order.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<Piece>>>);

/// One of the streams of [`Said`].
struct Keeps(Said, bool);

impl Write for Keeps {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.0.lock().push((self.1, data.to_vec()));
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The outcome of a command that root's daemon would refuse this user, if it is about no pool of the daemon's: it is mistaken in its
/// arguments, or names a pool that is not there. `None`: the daemon answers.
fn answered_here(
    connection: &client::Connection,
    tool: &str,
    args: &[OsString],
) -> Option<io::Result<i32>> {
    if !matches!(tool, "zpool" | "zfs") || !access::is_owners(tool, args) {
        return None;
    }
    let (said, cancel) = (Said::default(), Cancel::default());
    // It is to wait for nothing.
    cancel.cancel();
    let stream = |is_error| Box::new(Keeps(said.clone(), is_error));
    let streams = Streams { out: stream(false), err: stream(true) };
    let mut ctx = Context::new(streams, Caller::of_process(), Arc::default(), cancel);
    let code = run(tool, args, &mut ctx);
    drop(ctx);
    let operands = || args.iter().skip(1).filter(|arg| !arg.as_encoded_bytes().starts_with(b"-"));
    // A file system may be named by the directory that it is mounted at.
    let is_place = |arg: &OsString| tool == "zfs" && Path::new(arg).is_absolute();
    let names_another =
        operands().next().is_some() && !operands().any(is_place) && !connection.has_any_of(args);
    if code != WRONG && !names_another && !connection.hello.pools.is_empty() {
        return None;
    }
    let tell = || {
        for (is_error, text) in said.0.lock().drain(..) {
            match is_error {
                true => io::stderr().write_all(&text)?,
                false => io::stdout().write_all(&text)?,
            }
        }
        Ok(code)
    };
    Some(tell())
}

/// Where a command runs.
pub fn place(tool: &str, args: &[OsString]) -> Where {
    match tool {
        "zpool" => zpool::place(args),
        "zfs" => zfs::place(args),
        // Tunables that it sets are its own process's, and files that it writes are the user's.
        "zdb" if cenote_zdb::needs_own_process(args) => Where::Here,
        "zdb" => Where::DaemonIfRunning,
        "zstream" => Where::Here,
        "zinject" => zinject::place(args),
        "mount.zfs" | "zfs_ids_to_path" => Where::DaemonIfRunning,
        _ => match parse(args) {
            Ok(Tool::Ls(a)) if a.needs_imported_pool() => Where::DaemonIfRunning,
            Ok(Tool::Cat(a)) if a.needs_imported_pool() => Where::DaemonIfRunning,
            Ok(Tool::Cp(a)) if a.needs_imported_pool() => Where::DaemonIfRunning,
            Ok(Tool::Tunables(a)) => a.place(),
            Ok(Tool::Txgs(_)) => Where::DaemonIfRunning,
            Ok(Tool::Map(a)) if a.needs_imported_pool() => Where::DaemonIfRunning,
            Ok(Tool::Age(a)) if a.needs_imported_pool() => Where::DaemonIfRunning,
            _ => Where::Here,
        },
    }
}

/// Whether a command reads the user's standard input.
fn reads_input(tool: &str, args: &[OsString]) -> bool {
    match tool {
        "zfs" => zfs::reads_input(args),
        "zpool" => zpool::import::reads_input(args),
        _ => false,
    }
}

/// Runs a command in `ctx`, if its caller may give it; returns the exit code.
pub fn run(tool: &str, args: &[OsString], ctx: &mut Context) -> i32 {
    if let Some(why) = access::refusal(tool, args, ctx) {
        ctx.complain(why);
        return 1;
    }
    set_posix(ctx.var("POSIXLY_CORRECT").is_some());
    match tool {
        "zpool" => zpool::run(args, ctx),
        "zfs" => zfs::run(args, ctx),
        "zdb" => zdb(args, ctx),
        "zstream" => zstream(args, ctx),
        "zinject" => zinject::run(args, ctx),
        "mount.zfs" => zfs::mount_helper::run(args, ctx),
        "zfs_ids_to_path" => zfs::ids_to_path::run(args, ctx),
        _ => run_cenote(args, ctx),
    }
}

/// `zdb`, which looks at a pool that is imported here where it is.
fn zdb(args: &[OsString], ctx: &mut Context) -> i32 {
    let pools = Arc::clone(&ctx.pools);
    ctx.err.pass_returns();
    let surroundings = cenote_zdb::Surroundings {
        out: &mut ctx.out,
        err: &mut ctx.err,
        caller: &ctx.caller,
        cancel: ctx.cancel.clone(),
        imported: &move |name| Some(pools.get(name)?.pool()),
        cachefile: cenote_daemon::cachefile::default_path(),
    };
    impatiently(|| cenote_zdb::run(args, surroundings))
}

/// `zstream`, which needs no pool.
fn zstream(args: &[OsString], ctx: &mut Context) -> i32 {
    // A stream is no text, whatever it is shown on.
    let out: &mut (dyn Write + Send) =
        match args.first().is_some_and(|a| a == "dump" || a == "token") {
            true => &mut ctx.out,
            false => ctx.out.raw(),
        };
    let surroundings = cenote_zstream::Surroundings { out, err: &mut ctx.err, caller: &ctx.caller };
    cenote_zstream::run(args, surroundings)
}

fn run_cenote(args: &[OsString], ctx: &mut Context) -> i32 {
    let words = args.iter().map(|word| word.to_string_lossy());
    ctx.line = std::iter::once("cenote".into()).chain(words).collect::<Vec<_>>().join(" ");
    match parse(args) {
        Ok(Tool::Zpool { args }) => zpool::run(&args, ctx),
        Ok(Tool::Zfs { args }) => zfs::run(&args, ctx),
        Ok(Tool::Zdb { args }) => zdb(&args, ctx),
        Ok(Tool::Zstream { args }) => zstream(&args, ctx),
        Ok(Tool::Zinject { args }) => zinject::run(&args, ctx),
        Ok(Tool::Ls(args)) => impatiently(|| list::ls(&args, ctx)),
        Ok(Tool::Cat(args)) => impatiently(|| list::cat(&args, ctx)),
        Ok(Tool::Cp(args)) => impatiently(|| copy::cp(&args, ctx)),
        Ok(Tool::Rewrite(args)) => {
            let outcome = rewrite::run(&args, ctx);
            ctx.conclude(outcome, "")
        }
        Ok(Tool::Tunables(args)) => tunables::run(&args, ctx),
        Ok(Tool::Txgs(args)) => txgs::run(&args, ctx),
        Ok(Tool::Map(args)) => impatiently(|| map::map(&args, ctx)),
        Ok(Tool::Age(args)) => age::age(&args, ctx),
        Ok(Tool::Complete(args)) => impatiently(|| complete::run(&args, &Cli::command(), ctx)),
        Ok(Tool::Generate(args)) => generate::run(&args, Cli::command()),
        Ok(Tool::Daemon(_)) => {
            ctx.complain("cenote daemon: only from the command line");
            2
        }
        Err(e) => {
            let text = e.render();
            let to = if e.use_stderr() { &mut ctx.err } else { &mut ctx.out };
            let styled =
                if e.use_stderr() { ctx.caller.terminal.err } else { ctx.caller.terminal.out };
            let shown = match styled {
                true => write!(to.raw(), "{}", text.ansi()),
                false => write!(to, "{text}"),
            };
            match shown.and_then(|()| ctx.out.flush()) {
                Ok(()) => e.exit_code(),
                Err(_) => e.exit_code().max(1),
            }
        }
    }
}
