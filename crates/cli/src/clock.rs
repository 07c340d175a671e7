//! Times for people, in the user's time zone (which the client sends along as `TZ`).

use crate::context::Context;
use jiff::{Timestamp, tz::TimeZone};

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
    pub fn now(self, ctx: &Context) -> String {
        let now = Timestamp::now().as_second();
        match self {
            Stamp::Unix => now.to_string(),
            Stamp::Date => format(ctx, now, "%a %b %e %H:%M:%S %Z %Y"),
        }
    }
}

/// `seconds` since 1970 through `strftime`.
pub fn format(ctx: &Context, seconds: i64, form: &str) -> String {
    let Ok(time) = Timestamp::from_second(seconds) else { return seconds.to_string() };
    jiff::fmt::strtime::format(form, &time.to_zoned(zone(ctx)))
        .unwrap_or_else(|_| seconds.to_string())
}

/// As `ctime` prints it, without the newline: `Sat Nov 21 21:08:02 2026`.
pub fn ctime(ctx: &Context, seconds: u64) -> String {
    format(ctx, i64::try_from(seconds).unwrap_or(i64::MAX), "%a %b %e %H:%M:%S %Y")
}

fn zone(ctx: &Context) -> TimeZone {
    let named = ctx.var("TZ").and_then(|tz| tz.to_str()).map(|tz| tz.trim_start_matches(':'));
    match named {
        None => TimeZone::system(),
        Some("") => TimeZone::UTC,
        Some(name) => {
            TimeZone::get(name).or_else(|_| TimeZone::posix(name)).unwrap_or(TimeZone::UTC)
        }
    }
}

/// `days HH:MM:SS`, days left out when there are none.
pub fn span(seconds: u64) -> String {
    let (d, h, m, s) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    if d > 0 { format!("{d} days {h:02}:{m:02}:{s:02}") } else { format!("{h:02}:{m:02}:{s:02}") }
}
