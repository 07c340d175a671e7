//! Commands that report again and again (`zpool list 5`).

use crate::context::Context;
use crate::json::Json;
use cenote_command::clock;
use cenote_command::outcome::{Outcome, Stop};
use serde_json::Value;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often a sleeping command looks whether it was cancelled.
const LOOK: Duration = Duration::from_millis(50);

/// How `-T` prints the time before each report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// `-T u`: seconds since 1970.
    Unix,
    /// `-T d`: as `date` prints it.
    Date,
}

impl Stamp {
    /// From the argument of `-T`.
    pub fn from_arg(arg: &str) -> Option<Stamp> {
        match arg.chars().next() {
            Some('u') => Some(Stamp::Unix),
            Some('d') => Some(Stamp::Date),
            _ => None,
        }
    }

    /// The line for the present moment.
    fn now(self, ctx: &Context) -> String {
        match self {
            Stamp::Unix => seconds().to_string(),
            Stamp::Date => date(ctx, seconds()),
        }
    }

    /// The present moment in a document of JSON.
    pub fn json(self, json: Json, ctx: &Context) -> (String, Value) {
        let now = if json.ints { seconds().into() } else { self.now(ctx).into() };
        ("time".into(), now)
    }
}

/// Seconds since 1970.
fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Seconds since 1970 as `date` prints them; a dash for 0 (`format_timestamp`).
pub fn date(ctx: &Context, seconds: u64) -> String {
    if seconds == 0 {
        return "-".into();
    }
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    clock::format(&ctx.caller, seconds, "%a %b %e %H:%M:%S %Z %Y")
}

/// When and how often to report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Schedule {
    /// Pause between reports; `None`: one report.
    pub interval: Option<Duration>,
    /// Number of reports; `None`: without end.
    pub count: Option<u64>,
    /// Print the time before each report.
    pub stamp: Option<Stamp>,
}

impl Schedule {
    /// Prints the time, if that was asked for.
    pub fn print_stamp(&self, ctx: &mut Context) -> Result<(), Stop> {
        if let Some(stamp) = self.stamp {
            let now = stamp.now(ctx);
            writeln!(ctx.out, "{now}")?;
        }
        Ok(())
    }

    /// Calls `report` as often as asked, with the number of the report from 0. Ends early when it
    /// returns anything but 0, or when the command is cancelled.
    pub fn run(
        &self,
        ctx: &mut Context,
        mut report: impl FnMut(u64, &mut Context) -> Outcome,
    ) -> Outcome {
        let mut number = 0u64;
        loop {
            self.print_stamp(ctx)?;
            let code = report(number, ctx)?;
            number = number.saturating_add(1);
            let Some(interval) = self.interval else { return Ok(code) };
            if code != 0 || self.count.is_some_and(|count| number >= count) {
                return Ok(code);
            }
            ctx.out.flush()?;
            pause(interval, ctx)?;
        }
    }
}

/// Sleeps unless the command is cancelled meanwhile.
pub fn pause(interval: Duration, ctx: &Context) -> Result<(), Stop> {
    let end = Instant::now() + interval;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        if ctx.cancelled() {
            return Err(Stop::Said(1));
        }
        std::thread::sleep(left.min(LOOK));
    }
}
