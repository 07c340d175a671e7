//! What a simulation leaves: lines of JSON, and files that are up to date after every row.
//!
//! A file is written beside its place and put there when it is complete, so that a program that looks at it, or
//! interrupts the command, finds a whole one.

use super::{AgeArgs, show};
use crate::context::Context;
use crate::map::view::{By, Scene};
use crate::map::{html, svg};
use cenote_age::report::Cost;
use cenote_age::{Report, Row, Spec, Verdict};
use cenote_command::outcome::{Stop, plain};
use cenote_inspect::map::SpaceMapReport;
use serde::Serialize;
use std::fmt::Display;
use std::path::Path;

/// A line of the JSON that is printed: what is simulated, a row of the table, and what came of it.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
enum Line<'a> {
    Spec(&'a Spec),
    Sample(&'a Row),
    Result(Ended<'a>),
}

/// The end of a simulation.
#[derive(Serialize)]
struct Ended<'a> {
    verdict: &'a Verdict,
    interrupted: bool,
    simulation: &'a Cost,
}

fn print(line: &Line<'_>, ctx: &mut Context) -> Result<(), Stop> {
    serde_json::to_writer(&mut ctx.out, line).map_err(std::io::Error::from)?;
    writeln!(ctx.out)?;
    // A program that reads it waits for it.
    Ok(ctx.out.flush()?)
}

/// Begins the output.
pub(super) fn begin(spec: &Spec, args: &AgeArgs, ctx: &mut Context) -> Result<(), Stop> {
    if args.json { print(&Line::Spec(spec), ctx) } else { Ok(()) }
}

/// Writes out everything so far, after a row.
pub(super) fn row(report: &Report, args: &AgeArgs, ctx: &mut Context) -> Result<(), Stop> {
    if let Some(row) = report.rows.last().filter(|_| args.json) {
        print(&Line::Sample(row), ctx)?;
    }
    if let Some(path) = &args.plot {
        write_file(&ctx.path(path), &cenote_age::plot::svg(report, &ctx.line).map_err(failed)?)?;
    }
    if let Some(path) = &args.html {
        let table = format!("{}\n{}", show::text(report)?, show::columns());
        let page = cenote_age::plot::html(report, &table, &ctx.line);
        write_file(&ctx.path(path), &page.map_err(failed)?)?;
    }
    Ok(())
}

/// Ends the output.
pub(super) fn end(report: &Report, args: &AgeArgs, ctx: &mut Context) -> Result<(), Stop> {
    if !args.json {
        return Ok(write!(ctx.out, "{}", show::text(report)?)?);
    }
    let Report { verdict, interrupted, simulation, .. } = report;
    print(&Line::Result(Ended { verdict, interrupted: *interrupted, simulation }), ctx)
}

/// Writes the map of free space: a page or, if the file is called so, a picture of the fragmentation.
pub(super) fn map(
    path: &Path,
    before: SpaceMapReport,
    after: SpaceMapReport,
    ctx: &Context,
) -> Result<(), Stop> {
    let scene = Scene::new(after, Some(before), By::Fragmentation);
    let picture = path.extension().is_some_and(|e| e == "svg");
    let text = if picture { svg::picture(&scene, ctx) } else { html::page(&scene, ctx) };
    write_file(&ctx.path(path), &text)
}

fn failed(e: impl Display) -> Stop {
    Stop::Fail(format!("cenote age: {e}"))
}

fn write_file(path: &Path, text: &str) -> Result<(), Stop> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let written = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, path));
    written.map_err(|e| {
        // What could not be completed is of no use; that it cannot be removed says nothing new.
        let _ = std::fs::remove_file(&part);
        failed(format_args!("'{}': {}", path.display(), plain(&e)))
    })
}
