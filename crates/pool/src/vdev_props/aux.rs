//! Properties of spares and cache devices (`spa_lookup_by_guid` with them). They are in no tree and have no ZAP: what is known
//! of them is their config, their state, the size of their device, and what a cache device has and counted. What could be set has its default, and cannot be set.
//!
//! A spare that stands in for a device is a leaf of the tree, and has the properties of that leaf.

use super::{NATIVE, maybe, number, plain, state_number, switch};
use crate::Pool;
use crate::config;
use crate::status::{VdevLine, state_name};
use crate::vdev_figures::VdevFigures;
use cenote_dsl::{PropValue, Source};
use cenote_format::LABEL_START;
use cenote_format::label::LABEL_END;

/// A spare or a cache device, and what is known of it.
pub struct AuxProps<'a> {
    line: &'a VdevLine,
    figures: VdevFigures,
    /// Reads and writes of a cache device, and their bytes.
    io: (u64, u64, u64, u64),
}

impl<'a> AuxProps<'a> {
    /// The properties of a spare or, with `cache`, of a cache device that `line` shows.
    pub fn new(pool: &Pool, line: &'a VdevLine, cache: bool) -> AuxProps<'a> {
        let leaf = pool.cache_leaf(config::number(&line.config, "guid"));
        let io = leaf.map(|leaf| leaf.io_stats()).unwrap_or_default();
        AuxProps { line, figures: VdevFigures::of_aux(pool, &line.config, cache), io }
    }

    /// All of them.
    pub fn all(&self) -> Vec<(String, PropValue)> {
        NATIVE.iter().filter_map(|name| Some((name.to_string(), self.get(name)?))).collect()
    }

    /// One of them; `None`: it has no such property.
    pub fn get(&self, name: &str) -> Option<PropValue> {
        let (config, f) = (&self.line.config, &self.figures);
        Some(match name {
            "capacity" => {
                let percent = f.allocated.saturating_mul(100).checked_div(f.size).unwrap_or(0);
                PropValue { human: format!("{percent}%"), ..plain(percent, Source::None) }
            }
            "state" => {
                let state = self.line.vdev_state?;
                let human = state_name(state).into();
                PropValue { human, ..plain(state_number(state), Source::None) }
            }
            "guid" => plain(config::number(config, "guid"), Source::None),
            "ashift" => plain(config.u64("ashift")?, Source::None),
            "parity" | "numchildren" => plain(0, Source::None),
            "asize" => number(f.device.saturating_sub(LABEL_START + LABEL_END)),
            "psize" => number(f.device),
            "size" => number(f.size),
            "free" => number(f.size.saturating_sub(f.allocated)),
            "allocated" => number(f.allocated),
            "slow_ios" => number(f.slow_ios),
            "read_errors" => number(self.line.errors.0),
            "write_errors" => number(self.line.errors.1),
            "checksum_errors" => number(self.line.errors.2),
            "read_ops" => number(self.io.0),
            "write_ops" => number(self.io.1),
            "read_bytes" => number(self.io.2),
            "write_bytes" => number(self.io.3),
            "name" | "path" => maybe(config.str("path")),
            "devid" => maybe(config.str("devid")),
            "physpath" => maybe(config.str("phys_path")),
            "encpath" => maybe(config.str("vdev_enc_sysfs_path")),
            "fru" => maybe(config.str("fru")),
            "parent" | "children" => maybe(None::<&str>),
            "removing" => switch(false, Source::None),
            "expandsize" | "fragmentation" | "trim_support" | "allocating" => {
                plain("-", Source::None)
            }
            "failfast" | "slow_io_events" => switch(true, Source::Default),
            "comment" | "checksum_n" | "checksum_t" | "io_n" | "io_t" | "slow_io_n"
            | "slow_io_t" => plain("-", Source::Default),
            "bootsize" => PropValue { source: Source::Default, ..number(0) },
            "raidz_expanding" | "sit_out" | "autosit" => return None,
            // Other counts: none are kept.
            name if NATIVE.contains(&name) => number(0),
            name if name.contains(':') => plain("-", Source::Default),
            _ => return None,
        })
    }
}
