//! Tunables (`ZFS_MODULE_PARAM`): numbers under OpenZFS's names that may be changed while pools are in use.
//!
//! Each is declared once, with [`declare_tunables!`](crate::declare_tunables), in the module
//! `tunables` of the floor that reads it: its name, when a new value counts, what it is a number of,
//! its default, its range, and a line that says what it is for. Whatever lists or sets tunables goes
//! by these tables. A [`Tunable`] is read where it is used, so that a new value counts from then on;
//! the values are of the process, as OpenZFS's are of the module.
//!
//! Invariant: the value of a tunable is always within its range.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a value counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Things that the description names.
    Count,
    /// Hundredths.
    Percent,
    /// Millionths.
    PerMillion,
    /// Seconds.
    Seconds,
    /// Thousandths of a second.
    Milliseconds,
    /// Nanoseconds.
    Nanoseconds,
    /// A power of two.
    Log2,
    /// 0 or 1.
    Switch,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Unit::Bytes => "bytes",
            Unit::Count => "count",
            Unit::Percent => "percent",
            Unit::PerMillion => "ppm",
            Unit::Seconds => "seconds",
            Unit::Milliseconds => "ms",
            Unit::Nanoseconds => "ns",
            Unit::Log2 => "log2",
            Unit::Switch => "0 or 1",
        })
    }
}

/// When a new value counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// From now on, for pools that are open too.
    Now,
    /// For pools that are created or imported from now on.
    NextOpen,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Counts::Now => "now",
            Counts::NextOpen => "next open",
        })
    }
}

/// A value that a tunable cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is too small or too large.
    #[error("{name} is from {least} to {most}, not {value}")]
    OutOfRange {
        /// Name of the tunable.
        name: &'static str,
        /// The value.
        value: u64,
        /// Least that it can be.
        least: u64,
        /// Most that it can be.
        most: u64,
    },
    /// It is no number of 64 bits.
    #[error("{name} is a number, not '{text}'")]
    NotANumber {
        /// Name of the tunable.
        name: &'static str,
        /// What was given.
        text: String,
    },
}

/// A number that may be changed at any time.
#[derive(Debug)]
pub struct Tunable {
    /// OpenZFS's name.
    pub name: &'static str,
    /// When a new value counts.
    pub counts: Counts,
    /// What it counts.
    pub unit: Unit,
    /// What it is for: one line.
    pub description: &'static str,
    /// Its value at start.
    pub default: u64,
    /// Least and most that it can be.
    pub range: (u64, u64),
    value: AtomicU64,
}

impl Tunable {
    /// A tunable with its default; for [`declare_tunables!`](crate::declare_tunables).
    pub const fn new(
        name: &'static str,
        counts: Counts,
        unit: Unit,
        default: u64,
        range: (u64, u64),
        description: &'static str,
    ) -> Tunable {
        let value = AtomicU64::new(default);
        Tunable { name, counts, unit, description, default, range, value }
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Its value as a number of things in memory; one that is larger than memory is the most.
    pub fn count(&self) -> usize {
        usize::try_from(self.get()).unwrap_or(usize::MAX)
    }

    /// Its value as a power of two or a number of passes; one that is larger is the most.
    pub fn small(&self) -> u32 {
        u32::try_from(self.get()).unwrap_or(u32::MAX)
    }

    /// Whether a switch is on.
    pub fn is_on(&self) -> bool {
        self.get() != 0
    }

    /// Changes it.
    ///
    /// # Errors
    /// [`Refused::OutOfRange`]; it keeps its value.
    pub fn set(&self, value: u64) -> Result<(), Refused> {
        self.check(value)?;
        self.value.store(value, Ordering::Relaxed);
        Ok(())
    }

    /// Counts what happened once more, for one that is a counter; at most to the end of its range.
    pub fn happened(&self) {
        let add = |n: u64| (n < self.range.1).then(|| n + 1);
        let _ = self.value.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Whether it can have the value.
    ///
    /// # Errors
    /// [`Refused::OutOfRange`].
    pub fn check(&self, value: u64) -> Result<(), Refused> {
        let (least, most) = self.range;
        match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(Refused::OutOfRange { name: self.name, value, least, most }),
        }
    }

    /// The value that `text` stands for: a decimal number, or a hexadecimal one after `0x`, with
    /// blanks around it.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn parse(&self, text: &str) -> Result<u64, Refused> {
        let digits = text.trim();
        let number = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
            // `from_str_radix` would take a sign.
            Some(hex) if hex.starts_with('+') => None,
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None if digits.starts_with('+') => None,
            None => digits.parse().ok(),
        };
        let refused = || Refused::NotANumber { name: self.name, text: digits.to_string() };
        let number = number.ok_or_else(refused)?;
        self.check(number)?;
        Ok(number)
    }

    /// Gives it its default.
    pub fn reset(&self) {
        self.value.store(self.default, Ordering::Relaxed);
    }
}

/// A range: any number.
pub const ANY: (u64, u64) = (0, u64::MAX);
/// A range: any number but 0.
pub const SOME: (u64, u64) = (1, u64::MAX);
/// The range of a switch.
pub const SWITCH: (u64, u64) = (0, 1);

/// Declares the tunables of a floor: a `static` each, and `ALL`, which lists them. A row is
/// `ID "name" COUNTS UNIT DEFAULT RANGE, "description";`.
#[macro_export]
macro_rules! declare_tunables {
    ($($id:ident $name:literal $counts:ident $unit:ident $default:literal $range:expr,
       $description:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $description)]
            pub static $id: $crate::tunable::Tunable = $crate::tunable::Tunable::new(
                $name,
                $crate::tunable::Counts::$counts,
                $crate::tunable::Unit::$unit,
                $default,
                $range,
                $description,
            );
        )*

        /// All tunables of this floor, by name.
        pub static ALL: &[&$crate::tunable::Tunable] = &[$(&$id),*];
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::declare_tunables! {
        ROWS "rows" Now Count 7 (2, 300), "Rows that a test may have";
    }

    #[test]
    fn what_is_no_number_or_out_of_range_is_refused() {
        assert_eq!(ALL.len(), 1);
        assert_eq!((ROWS.parse(" 12\n"), ROWS.parse("0xFF")), (Ok(12), Ok(255)));
        assert_eq!(ROWS.parse("301").unwrap_err().to_string(), "rows is from 2 to 300, not 301");
        for text in ["", "x", "-3", "+3", "0x", "0x+3", "1e2", "2.5", "99999999999999999999", "7 8"]
        {
            assert!(matches!(ROWS.parse(text), Err(Refused::NotANumber { .. })), "{text}");
        }
    }

    #[test]
    fn a_value_stays_in_its_range() {
        static ONE: Tunable =
            Tunable::new("one", Counts::NextOpen, Unit::Bytes, 5, (5, 6), "A test's");
        assert!(ONE.set(7).is_err() && ONE.set(4).is_err());
        assert_eq!((ONE.get(), ONE.count(), ONE.small()), (5, 5, 5));
        ONE.set(6).unwrap();
        assert_eq!(ONE.get(), 6);
        ONE.reset();
        assert_eq!(ONE.get(), 5);
    }
}
