//! Numbers, sizes, durations and dates in the forms that the OpenZFS commands print for people (`zfs_nicenum_format`).
//!
//! A number is scaled by 1024 until it is below 1024 and gets as many decimals, at most two, as
//! fit into five characters with the unit: `512`, `1.50K`, `96K`, `16.0M`. Exact multiples of
//! the unit have no decimals. Times of day are in the local zone.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// How numbers are scaled and which letters follow them.
struct Scale {
    base: u64,
    units: &'static [&'static str],
}

const COUNT: Scale = Scale { base: 1024, units: &["", "K", "M", "G", "T", "P", "E"] };
const BYTES: Scale = Scale { base: 1024, units: &["B", "K", "M", "G", "T", "P", "E"] };
const TIME: Scale = Scale { base: 1000, units: &["ns", "us", "ms", "s"] };
/// Widest number with its unit, in characters.
const WIDTH: usize = 5;

impl Scale {
    /// The largest unit that `num` reaches: its letters, its size, and `num` in whole units.
    fn unit(&self, num: u64) -> (&'static str, u64, u64) {
        let mut size = 1u64;
        let mut units = self.units.iter();
        let mut unit = units.next().copied().unwrap_or_default();
        for next in units {
            if num / size < self.base {
                break;
            }
            size *= self.base;
            unit = next;
        }
        (unit, size, num / size)
    }

    fn scaled(&self, num: u64) -> String {
        let (unit, size, whole) = self.unit(num);
        if num.is_multiple_of(size) {
            return format!("{whole}{unit}");
        }
        let value = num as f64 / size as f64;
        let fits = (0..=2).rev().map(|decimals| format!("{value:.decimals$}{unit}"));
        let mut last = String::new();
        for text in fits {
            if text.len() <= WIDTH {
                return text;
            }
            last = text;
        }
        last
    }
}

/// A count, scaled by 1024 (`zfs_nicenum`): `0`, `1.50K`, `16.0M`.
pub fn nicenum(num: u64) -> String {
    COUNT.scaled(num)
}

/// A number of bytes, scaled by 1024 (`zfs_nicebytes`): as [`nicenum`], but `512B`.
pub fn nicebytes(bytes: u64) -> String {
    BYTES.scaled(bytes)
}

/// A duration in nanoseconds, scaled by 1000 and rounded down (`zfs_nicetime`): `750us`; `-` for
/// zero, which stands for "nothing measured".
pub fn nicetime(nanoseconds: u64) -> String {
    if nanoseconds == 0 {
        return "-".into();
    }
    let (unit, _, whole) = TIME.unit(nanoseconds);
    format!("{whole}{unit}")
}

/// A ratio that is given in hundredths: `1.87`.
pub fn ratio(hundredths: impl Into<u128>) -> String {
    let hundredths = hundredths.into();
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// How `strftime` has a date as `zfs get creation` prints it.
pub const DATE: &str = "%a %b %e %k:%M %Y";
/// The same with seconds, as for `snapshots_changed`.
pub const DATE_WITH_SECONDS: &str = "%a %b %e %k:%M:%S %Y";

/// Seconds since 1970 as `zfs get creation` prints them: `Sat Nov 21 19:36 2026`.
pub fn date(seconds: u64) -> String {
    local_time(seconds, DATE)
}

/// Seconds since 1970 with seconds, as `zfs get snapshots_changed` prints them:
/// `Sat Nov 21 19:36:05 2026`.
pub fn date_with_seconds(seconds: u64) -> String {
    local_time(seconds, DATE_WITH_SECONDS)
}

/// Seconds since 1970 in the system's time zone, by a format of `strftime`; the plain number where
/// the calendar does not reach.
pub fn local_time(seconds: u64, format: &str) -> String {
    local(seconds, format, &TimeZone::system())
}

fn local(seconds: u64, format: &str, zone: &TimeZone) -> String {
    i64::try_from(seconds)
        .ok()
        .and_then(|s| Timestamp::from_second(s).ok())
        .and_then(|t| jiff::fmt::strtime::format(format, &t.to_zoned(zone.clone())).ok())
        .unwrap_or_else(|| seconds.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_scaled_to_five_characters() {
        for (n, text) in [
            (0, "0"),
            (1, "1"),
            (1023, "1023"),
            (1024, "1K"),
            (1025, "1.00K"),
            (1536, "1.50K"),
            (10239, "10.0K"),
            (98304, "96K"),
            (102399, "100K"),
            (1048575, "1024K"),
            (16 << 20, "16M"),
            ((16 << 20) + 1, "16.0M"),
            (30494720, "29.1M"),
            (1 << 40, "1T"),
            (u64::MAX, "16.0E"),
            (1 << 63, "8E"),
        ] {
            assert_eq!(nicenum(n), text);
        }
    }

    #[test]
    fn bytes_below_a_kibibyte_have_a_unit() {
        assert_eq!(nicebytes(0), "0B");
        assert_eq!(nicebytes(512), "512B");
        assert_eq!(nicebytes(4096), "4K");
    }

    #[test]
    fn times_are_rounded_down() {
        for (n, text) in [
            (0, "-"),
            (999, "999ns"),
            (999_999, "999us"),
            (1_500_000, "1ms"),
            (2_000_000_000, "2s"),
            (u64::MAX, "18446744073s"),
        ] {
            assert_eq!(nicetime(n), text);
        }
    }

    #[test]
    fn dates_are_padded_as_by_strftime() {
        let utc = TimeZone::UTC;
        let seconds = 1_794_080_165;
        assert_eq!(local(seconds, "%a %b %e %k:%M %Y", &utc), "Sat Nov  7 19:36 2026");
        assert_eq!(local(3660, "%a %b %e %k:%M:%S %Y", &utc), "Thu Jan  1  1:01:00 1970");
        assert_eq!(local(u64::MAX, "%Y", &utc), u64::MAX.to_string());
    }

    proptest! {
        #[test]
        fn a_scaled_number_is_near_the_number(n: u64) {
            let text = nicenum(n);
            prop_assert!(text.len() <= WIDTH);
            let digits = text.trim_end_matches(char::is_alphabetic);
            let power = match &text[digits.len()..] {
                "" => 0, "K" => 1, "M" => 2, "G" => 3, "T" => 4, "P" => 5, _ => 6,
            };
            let value = digits.parse::<f64>().unwrap() * 1024f64.powi(power);
            prop_assert!((value - n as f64).abs() <= n as f64 * 0.051);
        }
    }
}
