//! Pool properties, as `zpool get` shows them: names, order, forms and sources of OpenZFS 2.3.
//!
//! Some are facts about the pool as it is open (sizes, health, what is saved), some are in the
//! config (comment, compatibility), and the settings are in the ZAP that the entry `pool_props` of
//! the object directory names, under the same names; what is not there has its default.
//!
//! After the native properties come user properties (names with a colon, in the same ZAP),
//! `feature@NAME` for every feature and `unsupported@GUID` for features that are not known.

mod write;

pub use write::{MULTIHOST, PropChange, PropContext, PropError, When, apply, is_multihost, parse};

use crate::Pool;
use crate::compat::RELEASE;
use crate::features::text;
use crate::metaslab::AllocClass;
use crate::metaslab::stats::SpaceStats;
use crate::savings::Savings;
use crate::version;
use cenote_dmu::zap::ZapEntry;
use cenote_dsl::human::{nicebytes, nicenum, ratio};
use cenote_dsl::{PropValue, Source};
use cenote_format::features::{FEATURES, Feature, by_name};

/// Native properties in the order of `zpool get all`.
const NATIVE: [&str; 34] = [
    "size",
    "capacity",
    "altroot",
    "health",
    "guid",
    "version",
    "bootfs",
    "delegation",
    "autoreplace",
    "cachefile",
    "failmode",
    "listsnapshots",
    "autoexpand",
    "dedupratio",
    "free",
    "allocated",
    "readonly",
    "ashift",
    "comment",
    "expandsize",
    "freeing",
    "fragmentation",
    "leaked",
    "multihost",
    "checkpoint",
    "load_guid",
    "autotrim",
    "compatibility",
    "bcloneused",
    "bclonesaved",
    "bcloneratio",
    "dedup_table_size",
    "dedup_table_quota",
    "last_scrubbed_txg",
];

const OFF_ON: &[&str] = &["off", "on"];
const FAILMODES: &[&str] = &["wait", "continue", "panic"];

/// Names of the values of settings, and the default's number.
const SETTINGS: [(&str, &[&str], u64); 7] = [
    ("delegation", OFF_ON, 1),
    ("autoreplace", OFF_ON, 0),
    ("failmode", FAILMODES, 0),
    ("listsnapshots", OFF_ON, 0),
    ("autoexpand", OFF_ON, 0),
    ("multihost", OFF_ON, 0),
    ("autotrim", OFF_ON, 0),
];

fn plain(value: impl ToString, source: Source) -> PropValue {
    let exact = value.to_string();
    PropValue { human: exact.clone(), exact, source }
}

fn size(bytes: u64) -> PropValue {
    PropValue { exact: bytes.to_string(), human: nicenum(bytes), source: Source::None }
}

fn percent(n: Option<u64>) -> PropValue {
    match n {
        Some(n) => PropValue { exact: n.to_string(), human: format!("{n}%"), source: Source::None },
        None => plain("-", Source::None),
    }
}

fn times(hundredths: u128) -> PropValue {
    let exact = ratio(hundredths);
    PropValue { human: format!("{exact}x"), exact, source: Source::None }
}

/// A size that is only shown if there is one.
fn size_or_dash(bytes: u64) -> PropValue {
    match bytes {
        0 => plain("-", Source::None),
        n => PropValue { exact: n.to_string(), human: nicebytes(n), source: Source::None },
    }
}

fn text_or(value: Option<&str>, default: &str) -> PropValue {
    match value {
        Some(v) => plain(v, Source::Local),
        None => plain(default, Source::Default),
    }
}

impl Pool {
    /// The entry `name` of the ZAP of settings.
    fn setting(&self, name: &str) -> Option<ZapEntry> {
        let zap = self.directory().zap_of("pool_props").ok()??;
        zap.lookup(name.as_bytes()).ok()?
    }

    fn number_setting(&self, name: &str, default: u64) -> (u64, Source) {
        match self.setting(name).and_then(|e| e.u64()) {
            Some(n) if n != default => (n, Source::Local),
            _ => (default, Source::Default),
        }
    }

    /// Bytes that the deduplication tables may take on disk; 0: any number; `u64::MAX`: as many as vdevs for them
    /// have room for.
    pub fn dedup_table_quota(&self) -> u64 {
        self.number_setting("dedup_table_quota", u64::MAX).0
    }

    /// One property as `zpool get` shows it; `None` for an unknown name (`spa_prop_get`).
    pub fn get(&self, name: &str) -> Option<PropValue> {
        if let Some(feature) = name.strip_prefix("feature@") {
            return by_name(feature).map(|f| self.feature_prop(f));
        }
        if let Some(guid) = name.strip_prefix("unsupported@") {
            let f = self.features().list.iter().find(|f| f.known.is_none() && f.guid == guid)?;
            let state = if f.uses == 0 { "inactive" } else { "readonly" };
            return Some(plain(state, Source::Local));
        }
        if name.contains(':') {
            let entry = self.setting(name).filter(|e| e.int_size == 1)?;
            return Some(plain(text(&entry.bytes()), Source::Local));
        }
        if let Some((_, names, default)) = SETTINGS.iter().find(|(n, ..)| *n == name) {
            let (n, source) = self.number_setting(name, *default);
            let known = usize::try_from(n).ok().and_then(|n| names.get(n));
            return Some(
                known.map_or_else(|| plain(n, source.clone()), |v| plain(v, source.clone())),
            );
        }
        self.fact(name).or_else(|| self.size_fact(name))
    }

    fn feature_prop(&self, f: &Feature) -> PropValue {
        let state = match self.features().get(f.guid) {
            None => "disabled",
            Some(f) if f.uses == 0 => "enabled",
            Some(_) => "active",
        };
        plain(state, Source::Local)
    }

    /// Facts other than sizes.
    fn fact(&self, name: &str) -> Option<PropValue> {
        let config = self.config();
        Some(match name {
            "name" => plain(self.name(), Source::None),
            "health" => plain(self.health(), Source::None),
            "guid" => plain(self.guid(), Source::None),
            "load_guid" => plain(self.load_guid(), Source::None),
            // Version 5000 stands for feature flags and is shown as `-`.
            "version" => match self.version() {
                version::FEATURES => plain("-", Source::Default),
                legacy => plain(legacy, Source::Local),
            },
            "altroot" => text_or(self.altroot().and_then(|p| p.to_str()), "-"),
            "cachefile" => plain("none", Source::Local),
            "readonly" => plain(if self.readonly() { "on" } else { "off" }, Source::None),
            "comment" => text_or(config.str("comment"), "-"),
            "compatibility" => text_or(config.str("compatibility"), "off"),
            "bootfs" => {
                let object = self.setting("bootfs").and_then(|e| e.u64()).filter(|o| *o != 0);
                let dataset = object.and_then(|o| self.dsl().by_object(o).ok().flatten());
                text_or(dataset.as_ref().map(|d| d.name.as_str()), "-")
            }
            "ashift" => {
                let (n, source) = self.number_setting("ashift", 0);
                plain(n, source)
            }
            "dedup_table_quota" => {
                match (self.dedup_table_quota(), self.number_setting(name, u64::MAX).1) {
                    (u64::MAX, source) => plain("auto", source),
                    (0, source) => PropValue { exact: "0".into(), human: "none".into(), source },
                    (n, source) => PropValue { exact: n.to_string(), human: nicenum(n), source },
                }
            }
            "last_scrubbed_txg" => {
                let txg = self.directory().u64("last_scrubbed_txg").ok()?;
                plain(txg.unwrap_or(0), Source::None)
            }
            _ => return None,
        })
    }

    /// Sizes and what follows from them.
    fn size_fact(&self, name: &str) -> Option<PropValue> {
        let space = || self.space().map(|s| s.pool());
        let unknown = || plain("-", Source::None);
        let saved = |of: &dyn Fn(&Savings) -> PropValue| self.savings().map_or_else(unknown, of);
        Some(match name {
            "size" => space().map_or_else(unknown, |s| size(s.size)),
            "allocated" => space().map_or_else(unknown, |s| size(s.alloc)),
            "free" => space().map_or_else(unknown, |s| size(s.free())),
            "capacity" => percent(space().map(|s| s.capacity())),
            "fragmentation" => percent(space().and_then(|s| s.fragmentation)),
            "expandsize" => size_or_dash(self.expandable()),
            "checkpoint" => size_or_dash(self.checkpoint_space().ok()?),
            "freeing" => size(self.directory_used("$FREE")),
            "leaked" => size(self.directory_used("$LEAK")),
            "usable" => size(self.deflated_space().size),
            "used" => size(self.deflated_space().alloc),
            "available" => size(self.deflated_space().free()),
            "dedupused" => saved(&|s| size(s.dedup_stored)),
            "dedupsaved" => saved(&|s| size(s.dedup_saved())),
            "dedupratio" => saved(&|s| times(s.dedup_ratio())),
            "dedup_table_size" => saved(&|s| size(s.dedup_tables)),
            "bcloneused" => saved(&|s| size(s.clone_stored)),
            "bclonesaved" => saved(&|s| size(s.clone_saved)),
            "bcloneratio" => saved(&|s| times(s.clone_ratio())),
            "maxblocksize" => {
                size(if self.features().is_enabled("large_blocks") { 16 << 20 } else { 128 << 10 })
            }
            "maxdnodesize" => {
                size(if self.features().is_enabled("large_dnode") { 16 << 10 } else { 512 })
            }
            _ => return None,
        })
    }

    /// Size and use of all space but that of log vdevs, with parity taken off (`metaslab_class_get_dspace`).
    fn deflated_space(&self) -> SpaceStats {
        use AllocClass::{Dedup, EmbeddedLog, Normal, Special};
        let mut sum = SpaceStats::default();
        let Some(space) = self.space() else { return sum };
        for class in [Normal, Special, Dedup, EmbeddedLog] {
            let one = space.deflated(class, &self.store().vdevs());
            sum.size += one.size;
            sum.alloc += one.alloc;
        }
        sum
    }

    /// All properties in the order of `zpool get all`.
    pub fn get_all(&self) -> Vec<(String, PropValue)> {
        let mut names: Vec<String> = NATIVE.iter().map(|n| n.to_string()).collect();
        if let Ok(Some(zap)) = self.directory().zap_of("pool_props") {
            let entries = zap.entries().unwrap_or_default();
            let user = entries.iter().map(|e| String::from_utf8_lossy(&e.name).into_owned());
            names.extend(user.filter(|n| n.contains(':')));
        }
        // Later features than this program's release only where a pool has them.
        let shown = |f: &&Feature| f.since <= RELEASE || self.features().is_enabled(f.name);
        names.extend(FEATURES.iter().filter(shown).map(|f| format!("feature@{}", f.name)));
        let unknown = self.features().list.iter().filter(|f| f.known.is_none());
        names.extend(unknown.map(|f| format!("unsupported@{}", f.guid)));
        names.into_iter().filter_map(|n| Some((n.clone(), self.get(&n)?))).collect()
    }
}
