//! `cenote map`: the map of free space.
//!
//! Every metaslab is a cell, coloured by how full it is, how fragmented its free space is, or whose
//! blocks it holds. The figures are [`cenote_inspect::map::SpaceMapReport`]'s; here they are drawn, for
//! a terminal or a browser, saved, and compared with figures that were saved before. An interrupt ends
//! the command before it has put out anything.
//!
//! | module | what |
//! |---|---|
//! | [`view`] | what a cell shows under each view |
//! | [`scale`] | colours |
//! | [`summary`] | the figures below the map, and what has changed |
//! | [`terminal`] | text |
//! | [`svg`], [`html`] | pictures |
//! | [`progress`] | what the user sees while block pointers are visited |

pub mod html;
pub mod progress;
pub mod scale;
pub mod summary;
pub mod svg;
pub mod terminal;
pub mod view;

use crate::context::Context;
use crate::locate::{Seen, Source};
use cenote_command::outcome::{INTERRUPTED, Outcome, Stop, plain};
use cenote_inspect::map::SpaceMapReport;
use cenote_pool::Pool;
use clap::{Args, ValueEnum};
use progress::Progress;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use terminal::{Drawing, Paint};
use view::{By, Scene};

/// Columns where neither the user nor a terminal says how many there are.
const COLUMNS: u16 = 80;
/// Threads that visit block pointers.
const WORKERS: usize = 4;

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Colours {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Yes
    Always,
    /// No
    Never,
}

/// Arguments of `cenote map`.
#[derive(Debug, Args)]
pub struct MapArgs {
    /// What the colours say
    #[arg(long, value_enum)]
    by: Option<By>,
    /// Highlight the metaslabs that hold blocks of this file system or volume, or of its snapshots
    #[arg(long, value_name = "NAME")]
    dataset: Option<String>,
    /// Show this top-level vdev only
    #[arg(long, value_name = "N")]
    vdev: Option<u64>,
    /// Width in columns
    #[arg(short, value_name = "COLUMNS")]
    width: Option<u16>,
    /// Whether to use colours
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN")]
    color: Colours,
    /// Write all views into one page for a browser
    #[arg(long, value_name = "FILE")]
    html: Option<OsString>,
    /// Write one view as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<OsString>,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    /// Write the figures into FILE, to compare with later
    #[arg(long, value_name = "FILE")]
    save: Option<OsString>,
    /// Compare with figures that --save wrote
    #[arg(long, value_name = "FILE")]
    before: Option<OsString>,
    /// Find out whose blocks there are even where no view needs it: for --json and --save
    #[arg(long)]
    owners: bool,
    #[command(flatten)]
    source: Source,
    /// Name of the pool
    pool: String,
}

impl MapArgs {
    /// Whether the command works on imported pools.
    pub fn needs_imported_pool(&self) -> bool {
        self.source.needs_imported_pool()
    }

    /// The view, where there can be one only.
    fn view(&self) -> By {
        let of_dataset = if self.dataset.is_some() { By::Owner } else { By::Fullness };
        self.by.unwrap_or(of_dataset)
    }

    fn needs_owners(&self) -> bool {
        self.owners || self.dataset.is_some() || self.view() == By::Owner || self.html.is_some()
    }
}

/// Runs `cenote map`; returns the exit code.
pub fn map(args: &MapArgs, ctx: &mut Context) -> i32 {
    // The output is many short lines.
    ctx.out.buffer();
    let outcome = run(args, ctx);
    ctx.conclude(outcome, "")
}

fn failed(e: impl std::fmt::Display) -> Stop {
    Stop::Fail(format!("cenote map: {e}"))
}

fn run(args: &MapArgs, ctx: &mut Context) -> Outcome {
    let mut before = args.before.as_deref().map(|file| read(file, ctx)).transpose()?;
    let mut report = gather(args, ctx)?;
    if ctx.cancelled() {
        ctx.complain("cenote map: interrupted");
        return Err(Stop::Said(INTERRUPTED));
    }
    if let Some(id) = args.vdev {
        for r in before.iter_mut().chain([&mut report]) {
            r.vdevs.retain(|v| v.id == id);
        }
        if report.vdevs.is_empty() {
            return Err(failed(format_args!("no top-level vdev {id} with metaslabs")));
        }
    }
    if let Some(file) = &args.save {
        let text = serde_json::to_vec(&report).map_err(failed)?;
        write_file(file, &text, ctx)?;
    }
    if args.json {
        serde_json::to_writer(&mut ctx.out, &report).map_err(std::io::Error::from)?;
        writeln!(ctx.out)?;
    }
    let mut scene = Scene::new(report, before, args.view());
    if let Some(name) = &args.dataset {
        let Some(owner) = scene.now.owner(name) else {
            return Err(failed(format_args!("'{name}' has no blocks in this pool")));
        };
        scene.dataset = Some(owner);
    }
    if let Some(file) = &args.html {
        let page = html::page(&scene, ctx);
        write_file(file, page.as_bytes(), ctx)?;
    }
    if let Some(file) = &args.svg {
        let picture = svg::picture(&scene, ctx);
        write_file(file, picture.as_bytes(), ctx)?;
    }
    let elsewhere = args.json || args.html.is_some() || args.svg.is_some();
    if !elsewhere {
        let width = args.width.or(ctx.caller.terminal.width).unwrap_or(COLUMNS);
        Drawing::new(&scene, paint(args.color, ctx), usize::from(width)).write(ctx)?;
    }
    Ok(0)
}

/// The colours that the user's terminal has.
fn paint(colours: Colours, ctx: &Context) -> Paint {
    let var = |name: &str| ctx.var(name).and_then(OsStr::to_str).unwrap_or("");
    let wanted = match colours {
        Colours::Always => true,
        Colours::Never => false,
        Colours::Auto => {
            ctx.caller.terminal.out && var("NO_COLOR").is_empty() && var("TERM") != "dumb"
        }
    };
    match var("COLORTERM") {
        _ if !wanted => Paint::Plain,
        "truecolor" | "24bit" => Paint::True,
        _ => Paint::Indexed,
    }
}

fn read(file: &OsStr, ctx: &Context) -> Result<SpaceMapReport, Stop> {
    let path = ctx.path(file);
    let bad = |e: &dyn std::fmt::Display| failed(format_args!("{}: {e}", path.display()));
    let text = std::fs::read(&path).map_err(|e| bad(&plain(&e)))?;
    let report: SpaceMapReport = serde_json::from_slice(&text).map_err(|e| bad(&e))?;
    report.check().map_err(|e| bad(&e))?;
    Ok(report)
}

fn write_file(file: &OsStr, data: &[u8], ctx: &Context) -> Result<(), Stop> {
    let path: &Path = &ctx.path(file);
    let written = std::fs::write(path, data);
    written.map_err(|e| failed(format_args!("{}: {}", path.display(), plain(&e))))
}

/// The report that the command is about.
fn gather(args: &MapArgs, ctx: &mut Context) -> Result<SpaceMapReport, Stop> {
    let mut look = |seen: Seen<'_>, ctx: &mut Context| {
        let mut report = match seen {
            Seen::AtRest(pool) => SpaceMapReport::of(pool)?,
            Seen::InUse(in_use) => in_use.report()?,
        };
        add_owners(&mut report, seen.pool(), args, ctx)?;
        Ok::<_, cenote_dmu::Error>(report)
    };
    args.source.read(&args.pool, ctx, &mut look).map_err(failed)
}

/// Looks for owners, if they are wanted.
fn add_owners(
    report: &mut SpaceMapReport,
    pool: &Pool,
    args: &MapArgs,
    ctx: &mut Context,
) -> cenote_dmu::Result<()> {
    if args.needs_owners() {
        let cancel = ctx.cancel.clone();
        let progress = Progress::new(ctx);
        let show = |done, total| progress.show(done, total);
        report.add_owners(pool, WORKERS, &show, &|| cancel.is_cancelled())?;
    }
    Ok(())
}
