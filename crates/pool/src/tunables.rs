//! The engine's tunables, under OpenZFS's names: numbers that may be changed while pools are in use.
//!
//! Each is a [`Tunable`] that is read where it is used, so that a new value counts from then on.
//! They are of the process, as OpenZFS's are of the module. [`ALL`] lists them; [`find`] finds one
//! by its name.

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
    /// Nanoseconds.
    Nanoseconds,
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
            Unit::Nanoseconds => "nanoseconds",
            Unit::Switch => "0 or 1",
        })
    }
}

/// A value that a tunable cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{name} is from {least} to {most}, not {value}")]
pub struct OutOfRange {
    /// Name of the tunable.
    pub name: &'static str,
    /// The value.
    pub value: u64,
    /// Least that it can be.
    pub least: u64,
    /// Most that it can be.
    pub most: u64,
}

/// A number that may be changed at any time.
#[derive(Debug)]
pub struct Tunable {
    /// OpenZFS's name.
    pub name: &'static str,
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
    const fn new(
        name: &'static str,
        unit: Unit,
        default: u64,
        range: (u64, u64),
        description: &'static str,
    ) -> Tunable {
        Tunable { name, unit, description, default, range, value: AtomicU64::new(default) }
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Changes it.
    ///
    /// # Errors
    /// [`OutOfRange`].
    pub fn set(&self, value: u64) -> Result<(), OutOfRange> {
        let (least, most) = self.range;
        if !(least..=most).contains(&value) {
            return Err(OutOfRange { name: self.name, value, least, most });
        }
        self.value.store(value, Ordering::Relaxed);
        Ok(())
    }
}

const ANY: (u64, u64) = (0, u64::MAX);
const SOME: (u64, u64) = (1, u64::MAX);

macro_rules! tunables {
    ($($id:ident $name:literal $unit:ident $default:literal $range:expr, $description:literal;)*) => {
        $(
            #[doc = $description]
            pub static $id: Tunable =
                Tunable::new($name, Unit::$unit, $default, $range, $description);
        )*

        /// All of them, by name.
        pub static ALL: &[&Tunable] = &[$(&$id),*];
    };
}

tunables! {
    ASYNC_BLOCK_MAX_BLOCKS "zfs_async_block_max_blocks" Count 100_000 SOME,
        "Most blocks of destroyed datasets that are freed in one transaction group";
    DELAY_MIN_DIRTY_PERCENT "zfs_delay_min_dirty_percent" Percent 60 (0, 100),
        "Share of the most dirty data from which on changes are delayed";
    DELAY_SCALE "zfs_delay_scale" Nanoseconds 500_000 SOME,
        "Delay of a change half way between the first delays and the most dirty data";
    DIRTY_DATA_MAX "zfs_dirty_data_max" Bytes 0 ANY,
        "Most dirty data of a pool that is opened; 0: a tenth of the memory, at most 4 GiB";
    DIRTY_DATA_SYNC_PERCENT "zfs_dirty_data_sync_percent" Percent 20 (1, 100),
        "Share of the most dirty data at which a transaction group is closed";
    KEEP_LOGS_AT_EXPORT "zfs_keep_log_spacemaps_at_export" Switch 0 (0, 1),
        "Whether log space maps are kept at export rather than flushed";
    MAX_LOG_WALKING "zfs_max_log_walking" Count 5 SOME,
        "Newest log space maps that tell how fast the log grows";
    MAX_LOGSM_SUMMARY_LENGTH "zfs_max_logsm_summary_length" Count 1000 SOME,
        "Most rows in which log space maps are summed up to decide what to flush";
    METASLAB_CONDENSE_PCT "zfs_metaslab_condense_pct" Percent 200 (100, 100_000),
        "A space map is condensed if it is so long compared with the shortest that says the same";
    MIN_METASLABS_TO_FLUSH "zfs_min_metaslabs_to_flush" Count 1 ANY,
        "Least metaslabs with unflushed changes that a transaction group flushes";
    TXG_HISTORY "zfs_txg_history" Count 100 (0, 1_000_000),
        "Transaction groups of which figures are remembered";
    TXG_TIMEOUT "zfs_txg_timeout" Seconds 5 (1, 1_000_000),
        "Longest time that changes wait in a transaction group of a pool that is opened";
    UNFLUSHED_LOG_BLOCK_MAX "zfs_unflushed_log_block_max" Count 131_072 SOME,
        "Most blocks of all log space maps, however many metaslabs there are";
    UNFLUSHED_LOG_BLOCK_MIN "zfs_unflushed_log_block_min" Count 1000 SOME,
        "Blocks that log space maps may always have";
    UNFLUSHED_LOG_BLOCK_PCT "zfs_unflushed_log_block_pct" Percent 400 ANY,
        "Most blocks of all log space maps for each metaslab with unflushed changes";
    UNFLUSHED_LOG_TXG_MAX "zfs_unflushed_log_txg_max" Count 1000 SOME,
        "Most log space maps";
    UNFLUSHED_MAX_MEM_AMT "zfs_unflushed_max_mem_amt" Bytes 1_073_741_824 ANY,
        "Most memory for unflushed changes";
    UNFLUSHED_MAX_MEM_PPM "zfs_unflushed_max_mem_ppm" PerMillion 1000 (0, 1_000_000),
        "Most memory for unflushed changes, as a share of all memory";
    VDEV_DEFAULT_MS_COUNT "zfs_vdev_default_ms_count" Count 200 SOME,
        "Metaslabs that a large new top-level vdev is cut into";
    VDEV_DEFAULT_MS_SHIFT "zfs_vdev_default_ms_shift" Count 29 (24, 34),
        "log2 of the bytes of a metaslab of a new top-level vdev that is neither large nor small";
}

/// The tunable of that name.
pub fn find(name: &str) -> Option<&'static Tunable> {
    ALL.iter().copied().find(|t| t.name == name)
}

/// Bytes of memory of this system; `None` if that cannot be found out.
pub(crate) fn physical_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn defaults_are_in_range_and_names_are_in_order() {
        for t in ALL {
            assert!((t.range.0..=t.range.1).contains(&t.default), "{}", t.name);
            assert!(!t.description.is_empty() && !t.description.contains('\n'));
        }
        assert!(ALL.is_sorted_by(|a, b| a.name < b.name));
    }

    #[test]
    fn values_are_checked() {
        let t = find("zfs_txg_history").unwrap();
        assert_eq!((t.get(), t.unit.to_string().as_str()), (100, "count"));
        t.set(90).unwrap();
        assert_eq!(TXG_HISTORY.get(), 90);
        let refused = t.set(u64::MAX).unwrap_err().to_string();
        assert_eq!(refused, "zfs_txg_history is from 0 to 1000000, not 18446744073709551615");
        t.set(t.default).unwrap();
        assert!(find("zfs_no_such").is_none());
    }
}
