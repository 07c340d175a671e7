//! Sizes, percentages and times as the user writes them.

use std::time::Duration;

/// A number and what follows it.
fn split(text: &str) -> Result<(f64, &str), String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().map_err(|_| format!("'{text}' is no number"))?;
    Ok((number, unit))
}

/// Bytes: `100T`, `8K`, `1.5GiB`; powers of 1024.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let upper = unit.to_ascii_uppercase();
    let power = match upper.strip_suffix("IB").or(upper.strip_suffix('B')).unwrap_or(&upper) {
        "" => 0,
        letter if letter.len() == 1 => "KMGTPE"
            .find(letter)
            .map(|at| at as i32 + 1)
            .ok_or_else(|| format!("'{unit}' is no unit of a size"))?,
        _ => return Err(format!("'{unit}' is no unit of a size")),
    };
    let bytes = number * 1024f64.powi(power);
    if bytes < 2f64.powi(63) { Ok(bytes as u64) } else { Err("too large".into()) }
}

/// Bytes per second: as a size, or with `/s`.
pub(super) fn rate(text: &str) -> Result<u64, String> {
    size(text.strip_suffix("/s").unwrap_or(text))
}

/// Percent: `65%` or `65`.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    match split(text)? {
        (number, "" | "%") => Ok(number),
        (_, unit) => Err(format!("'{unit}' is not %")),
    }
}

/// A time: `5s`, `20m`, `12h`, `30d`, `2w`, `1y`.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        "w" => 7.0 * 86_400.0,
        "y" => 365.0 * 86_400.0,
        _ => return Err("a time has a unit: ms, s, m, h, d, w or y".into()),
    };
    Duration::try_from_secs_f64(number * seconds).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_they_say() {
        assert_eq!(size("100T"), Ok(100 << 40));
        assert_eq!(size("1.5KiB"), Ok(1536));
        assert_eq!(size("32"), Ok(32));
        assert_eq!(rate("20M/s"), Ok(20 << 20));
        assert_eq!((percent("65%"), percent("7.5")), (Ok(65.0), Ok(7.5)));
        assert_eq!(time("30d"), Ok(Duration::from_secs(30 * 86_400)));
        assert_eq!(time("250ms"), Ok(Duration::from_millis(250)));
        for bad in ["", "x", "5X", "-1", "8KK", "99999P"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert!(time("5").is_err() && time("1e9y").is_err() && percent("5d").is_err());
    }
}
