//! What the user sees of a copy: a bar on a terminal, a line now and then otherwise, messages, and
//! the summary.

use crate::context::Context;
use crate::progress::Bar;
use cenote_command::outcome::Outcome;
use cenote_dsl::human::nicebytes;
use serde::Serialize;
use std::fmt::Display;
use std::io;
use std::time::{Duration, Instant};

/// Without a terminal, a line is written this often.
const SELDOM: Duration = Duration::from_secs(10);
/// What was not kept is said so often, then only counted.
const SAID: u64 = 10;

/// How many files and bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Amount {
    /// Files of any kind.
    pub files: u64,
    /// Bytes of their contents, holes included.
    pub bytes: u64,
}

/// The summary, and `--json`'s output.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Regular files copied.
    pub files: u64,
    /// Directories made or entered.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of files copied already.
    pub hard_links: u64,
    /// Devices, sockets and named pipes.
    pub special: u64,
    /// Bytes of contents, holes included.
    pub bytes: u64,
    /// Bytes written: without holes.
    pub written: u64,
    /// Files that could not be copied, or not whole.
    pub errors: u64,
    /// Attributes that could not be kept.
    pub attributes_lost: u64,
    /// Bytes that were unreadable and replaced by zeros (`--salvage`).
    pub bytes_lost: u64,
    /// Time it took.
    pub seconds: f64,
}

/// Keeps count and shows it.
pub struct Progress {
    /// The counts so far.
    pub summary: Summary,
    started: Instant,
    said: Instant,
    quiet: bool,
    bar: Option<Bar>,
}

impl Progress {
    /// Shows nothing if `quiet`, and no more than messages with `json`.
    pub fn new(quiet: bool, json: bool, ctx: &Context) -> Progress {
        let now = Instant::now();
        let quiet = quiet || json;
        let bar = if quiet { None } else { Bar::on_terminal(ctx) };
        Progress { summary: Summary::default(), started: now, said: now, quiet, bar }
    }

    /// Whether there is a bar, which needs to know how much there will be.
    pub fn is_shown(&self) -> bool {
        self.bar.is_some()
    }

    /// There is this much more to copy.
    pub fn expect(&mut self, amount: Amount) {
        if let Some(bar) = &self.bar {
            bar.expect(amount.bytes);
        }
    }

    /// `bytes` of contents are done, of which `written` were written.
    pub fn advance(&mut self, bytes: u64, written: u64, ctx: &mut Context) {
        self.summary.bytes = self.summary.bytes.saturating_add(bytes);
        self.summary.written = self.summary.written.saturating_add(written);
        match &self.bar {
            Some(bar) => bar.advance(bytes, ctx),
            None if !self.quiet && self.said.elapsed() >= SELDOM => {
                self.said = Instant::now();
                let line = self.line();
                ctx.complain(line);
            }
            None => {}
        }
    }

    /// A message about something that was not copied.
    pub fn error(&mut self, message: impl Display, ctx: &mut Context) {
        self.summary.errors = self.summary.errors.saturating_add(1);
        self.say(message, ctx);
    }

    /// Attributes of a copy that could not be kept.
    pub fn lost(&mut self, path: impl Display, what: &[String], ctx: &mut Context) {
        for what in what {
            self.summary.attributes_lost = self.summary.attributes_lost.saturating_add(1);
            if self.summary.attributes_lost <= SAID {
                self.say(format_args!("'{path}': not kept: {what}"), ctx);
            }
        }
    }

    fn say(&self, message: impl Display, ctx: &mut Context) {
        let message = format!("cenote cp: {message}");
        match &self.bar {
            Some(bar) => bar.say(message, ctx),
            None => ctx.complain(message),
        }
    }

    fn line(&self) -> String {
        let s = &self.summary;
        let seconds = self.started.elapsed().as_secs_f64().max(1e-3);
        let rate = nicebytes((s.bytes as f64 / seconds) as u64);
        format!("{} files, {}, {rate}/s", s.files, nicebytes(s.bytes))
    }

    /// Ends the show; returns the exit code.
    pub fn finish(mut self, json: bool, ctx: &mut Context) -> Outcome {
        if let Some(bar) = &self.bar {
            bar.finish(ctx);
        }
        self.summary.seconds = self.started.elapsed().as_secs_f64();
        let s = &self.summary;
        if json {
            let text = serde_json::to_string(s).map_err(io::Error::from)?;
            writeln!(ctx.out, "{text}")?;
        } else if !self.quiet {
            let mut line = self.line();
            if s.errors > 0 {
                line += &format!(", {} errors", s.errors);
            }
            if s.attributes_lost > 0 {
                line += &format!(", {} attributes not kept", s.attributes_lost);
            }
            if s.bytes_lost > 0 {
                line += &format!(", {} unreadable", nicebytes(s.bytes_lost));
            }
            ctx.complain(line);
        }
        Ok(i32::from(s.errors > 0))
    }
}
