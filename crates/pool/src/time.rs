//! Points in time and durations as the commands print them, in the system's time zone.

use cenote_dsl::human::local_time;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds since 1970 as C's `ctime` prints them, without the newline:
/// `Sat Nov 21 20:26:43 2026`. A time out of range is printed as a number.
pub fn ctime(secs: u64) -> String {
    local_time(secs, "%a %b %e %H:%M:%S %Y")
}

/// Seconds since 1970 as `zpool history` prints them: `2026-11-21.20:26:43`.
pub fn history_time(secs: u64) -> String {
    local_time(secs, "%F.%T")
}

/// A duration in seconds: `00:01:40`, or `2 days 00:01:40`.
pub fn duration(secs: u64) -> String {
    let (days, hours, mins) = (secs / 86400, secs / 3600 % 24, secs / 60 % 60);
    let clock = format!("{hours:02}:{mins:02}:{:02}", secs % 60);
    if days > 0 { format!("{days} days {clock}") } else { clock }
}

/// The time by this host's clock, since 1970: none, if the clock says that it is earlier.
pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

/// Seconds from one time to another: none, if the clock was set back in between.
pub fn between(start: u64, end: u64) -> u64 {
    end.saturating_sub(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration(100), "00:01:40");
        assert_eq!(duration(2 * 86400 + 3601), "2 days 01:00:01");
    }

    #[test]
    fn impossible_times_do_not_panic() {
        assert_eq!(ctime(u64::MAX), u64::MAX.to_string());
        assert_eq!(ctime(1_700_000_000).len(), 24);
    }
}
