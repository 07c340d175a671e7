//! Times for people, in the caller's time zone (which the client sends along as `TZ`).

use crate::caller::Caller;
use jiff::civil::{Date, DateTime, Time};
use jiff::{Timestamp, tz::TimeZone};

/// `seconds` since 1970 through `strftime`.
pub fn format(caller: &Caller, seconds: i64, form: &str) -> String {
    let Ok(time) = Timestamp::from_second(seconds) else { return seconds.to_string() };
    jiff::fmt::strtime::format(form, &time.to_zoned(zone(caller)))
        .unwrap_or_else(|_| seconds.to_string())
}

/// As `ctime` prints it, without the newline: `Sat Nov 21 21:08:02 2026`.
pub fn ctime(caller: &Caller, seconds: u64) -> String {
    format(caller, i64::try_from(seconds).unwrap_or(i64::MAX), "%a %b %e %H:%M:%S %Y")
}

/// Seconds since 1970 of a date as users give it, `2026-11-27` or `2026-11-27 16:05`, and how many seconds it stands for.
/// `None`: it is no date, or one before 1970.
pub fn parse(caller: &Caller, text: &str) -> Option<(u64, u64)> {
    let at = |form: &str| DateTime::strptime(form, text).ok();
    let day = || Some(Date::strptime("%Y-%m-%d", text).ok()?.to_datetime(Time::midnight()));
    let (time, unit) = match at("%Y-%m-%d %H:%M") {
        Some(time) => (time, 60),
        None => (day()?, 24 * 60 * 60),
    };
    let time = time.to_zoned(zone(caller)).ok()?;
    Some((u64::try_from(time.timestamp().as_second()).ok()?, unit))
}

fn zone(caller: &Caller) -> TimeZone {
    let named = caller.var("TZ").and_then(|tz| tz.to_str()).map(|tz| tz.trim_start_matches(':'));
    match named {
        None => TimeZone::system(),
        Some("") => TimeZone::UTC,
        Some(name) => {
            TimeZone::get(name).or_else(|_| TimeZone::posix(name)).unwrap_or(TimeZone::UTC)
        }
    }
}
