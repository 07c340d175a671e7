//! Numbers for people: `zfs_nicenum` and its kin, five characters at most.

/// Units that a number is shown in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Powers of 1024 without a unit below 1024: `1.50K`.
    Plain,
    /// Powers of 1024, `B` below 1024: `512B`.
    Bytes,
    /// Nanoseconds in powers of 1000; zero is `-`.
    Time,
}

/// `value` in at most five characters where its magnitude allows.
pub fn nice(value: u64, unit: Unit) -> String {
    let (base, names): (u64, &[&str]) = match unit {
        Unit::Plain => (1024, &["", "K", "M", "G", "T", "P", "E"]),
        Unit::Bytes => (1024, &["B", "K", "M", "G", "T", "P", "E"]),
        Unit::Time => (1000, &["ns", "us", "ms", "s"]),
    };
    if unit == Unit::Time && value == 0 {
        return "-".into();
    }
    let (mut whole, mut scale, mut index) = (value, 1u64, 0usize);
    while whole >= base && index + 1 < names.len() {
        whole /= base;
        scale = scale.saturating_mul(base);
        index += 1;
    }
    let name = names.get(index).copied().unwrap_or_default();
    if index == 0 || value.is_multiple_of(scale) || unit == Unit::Time {
        return format!("{whole}{name}");
    }
    let exact = value as f64 / scale as f64;
    let mut text = String::new();
    for digits in [2, 1, 0] {
        text = format!("{exact:.digits$}{name}");
        if text.len() <= 5 {
            break;
        }
    }
    text
}

/// Plain or, when `exact`, all digits.
pub fn plain(value: u64, exact: bool) -> String {
    if exact { value.to_string() } else { nice(value, Unit::Plain) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        for (value, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1K"),
            (1536, "1.50K"),
            (10239, "10.0K"),
            (251_658_240, "240M"),
            (30_494_720, "29.1M"),
            (1 << 60, "1E"),
            (u64::MAX, "16.0E"),
            (1_048_575, "1024K"),
        ] {
            assert_eq!(nice(value, Unit::Plain), text, "{value}");
        }
        assert_eq!(nice(100, Unit::Bytes), "100B");
        assert_eq!(nice(0, Unit::Time), "-");
        assert_eq!(nice(999_999, Unit::Time), "999us");
    }
}
