//! Properties of vdevs, as `zpool get all POOL VDEV` shows them (`vdev_prop_get`): names, order, forms and
//! sources of OpenZFS 2.4.
//!
//! Most are facts about the vdev. Settings and user properties are in the vdev's ZAP in the MOS; what is
//! not there has its default. Here `slow_io_events` has an effect ([`crate::events`]), and so have the numbers and times of
//! errors ([`crate::diagnosis`]); [`without_effect`] tells of properties without an effect. Properties that would have to take effect at once
//! ([`NOT_SET`]) cannot be set.

mod aux;

pub use aux::AuxProps;

use std::sync::Arc;

use crate::Pool;
use crate::config;
use crate::features::text;
use crate::status::{NameStyle, name_of_vdev, state_name};
use crate::vdev_figures::{VdevFigures, whole_labels};
use cenote_dmu::zap::{Zap, ZapEntry};
use cenote_dsl::human::nicenum;
use cenote_dsl::props::is_user;
use cenote_dsl::write::props::NewValue;
use cenote_dsl::{PropValue, Source};
use cenote_format::nvlist::NvList;
use cenote_vdev::{Vdev, VdevState};

/// Bytes that names (`ZAP_MAXNAMELEN`) and texts (`ZAP_MAXVALUELEN`) may not reach.
const MAX_NAME: usize = 256;
const MAX_TEXT: usize = 8192;
/// Figures that OpenZFS counts, and that are always 0 here.
pub const NOT_COUNTED: [&str; 8] = [
    "null_ops",
    "free_ops",
    "claim_ops",
    "trim_ops",
    "null_bytes",
    "free_bytes",
    "claim_bytes",
    "trim_bytes",
];
/// Properties that OpenZFS sets, and that cannot be set here.
pub const NOT_SET: [&str; 4] = ["allocating", "path", "sit_out", "autosit"];
/// All native properties in the order of `zpool get all`.
const NATIVE: &[&str] = &[
    "capacity",
    "state",
    "guid",
    "asize",
    "psize",
    "ashift",
    "size",
    "free",
    "allocated",
    "comment",
    "expandsize",
    "fragmentation",
    "bootsize",
    "parity",
    "path",
    "devid",
    "physpath",
    "encpath",
    "fru",
    "parent",
    "children",
    "numchildren",
    "read_errors",
    "write_errors",
    "checksum_errors",
    "initialize_errors",
    "null_ops",
    "read_ops",
    "write_ops",
    "free_ops",
    "claim_ops",
    "trim_ops",
    "null_bytes",
    "read_bytes",
    "write_bytes",
    "free_bytes",
    "claim_bytes",
    "trim_bytes",
    "removing",
    "allocating",
    "failfast",
    "checksum_n",
    "checksum_t",
    "io_n",
    "io_t",
    "raidz_expanding",
    "slow_io_n",
    "slow_io_t",
    "trim_support",
    "trim_errors",
    "slow_ios",
    "sit_out",
    "autosit",
    "slow_io_events",
];

/// All native properties in the order of `zpool get all`.
pub fn names() -> impl Iterator<Item = &'static str> {
    NATIVE.iter().copied()
}

/// What is done to the whole of a leaf, piece by piece (`VDEV_LEAF_ZAP_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// Free space is written to (`zpool initialize`).
    Initialize,
    /// The device is told what is free (`zpool trim`).
    Trim,
}

/// How far an activity of a leaf is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// In percent.
    pub percent: u64,
    /// When the state was entered: seconds since 1970.
    pub time: u64,
    /// `started at`, `suspended, started at`, `completed at`.
    pub state: &'static str,
}

/// Entries of a leaf's ZAP that tell of an activity.
#[derive(Clone, Copy, Debug)]
pub struct ActivityKeys {
    /// Where it is.
    pub state: &'static str,
    /// When that began: seconds since 1970.
    pub time: &'static str,
    /// Byte of the device up to which it is done.
    pub offset: &'static str,
}

impl Activity {
    /// All of them.
    pub const ALL: [Activity; 2] = [Activity::Initialize, Activity::Trim];

    /// Its name among events, in the history and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Activity::Initialize => "initialize",
            Activity::Trim => "trim",
        }
    }

    /// What a leaf's ZAP has of it.
    pub fn keys(self) -> ActivityKeys {
        match self {
            Activity::Initialize => ActivityKeys {
                state: "com.delphix:vdev_initialize_state",
                time: "com.delphix:vdev_initialize_action_time",
                offset: "com.delphix:next_offset_to_initialize",
            },
            Activity::Trim => ActivityKeys {
                state: "org.zfsonlinux:vdev_trim_state",
                time: "org.zfsonlinux:vdev_trim_action_time",
                offset: "org.zfsonlinux:next_offset_to_trim",
            },
        }
    }

    /// How far it is on the leaf with this config; `None`: it was never begun, or was given up.
    pub fn progress(self, pool: &Pool, leaf: &NvList) -> Option<Progress> {
        let guid = config::number(leaf, "guid");
        // Vdevs of a new pool are opened before there are ZAPs.
        let tree = pool.config().list("vdev_tree");
        let current = tree.and_then(|root| config::find(root, guid)).unwrap_or(leaf);
        let object = current.u64("com.delphix:vdev_zap_leaf").filter(|n| *n != 0)?;
        let zap = Zap::open(&pool.mos().object(object).ok()?).ok()?;
        let number = |name: &str| zap.u64(name.as_bytes()).ok()?;
        let ActivityKeys { state, time, offset } = self.keys();
        let state = match number(state)? {
            1 => "started at",
            3 => "suspended, started at",
            4 => "completed at",
            _ => return None,
        };
        let size = u128::from(VdevFigures::of_vdev(pool, guid)?.replacement);
        let done = u128::from(number(offset).unwrap_or(0)) * 100;
        let percent = match state {
            "completed at" => 100,
            _ => u64::try_from(done.checked_div(size).unwrap_or(0)).unwrap_or(100).min(100),
        };
        Some(Progress { percent, time: number(time).unwrap_or(0), state })
    }
}

/// Whether vdevs have a native property of this name.
pub fn is_native(name: &str) -> bool {
    name == "name" || NATIVE.contains(&name)
}

/// The ZAP in the MOS that keeps the properties of a vdev: as the config on disk has it, since vdevs of a new
/// pool are opened before there is one.
pub fn zap_of(pool: &Pool, vdev: &Vdev) -> Option<u64> {
    let tree = pool.config().list("vdev_tree");
    let current = tree.and_then(|root| config::find(root, vdev.guid())).unwrap_or(vdev.config());
    let keys =
        ["com.klarasystems:vdev_zap_root", "com.delphix:vdev_zap_top", "com.delphix:vdev_zap_leaf"];
    keys.iter().find_map(|key| current.u64(key)).filter(|n| *n != 0)
}

/// The number that a property of a vdev is set to; `None`: it is not set.
pub(crate) fn number_of(pool: &Pool, vdev: &Vdev, name: &str) -> Option<u64> {
    let zap = Zap::open(&pool.mos().object(zap_of(pool, vdev)?).ok()?).ok()?;
    zap.u64(name.as_bytes()).ok()?
}

/// What a user sets a property of a vdev to, as it is stored (`vdev_props_set_sync`). An empty text takes a
/// property away.
///
/// # Errors
/// There is no such property, it cannot be set, or not to that: in the words of OpenZFS.
pub fn parse(name: &str, value: &str) -> Result<NewValue, String> {
    let most = if is_user(name) || name == "comment" { MAX_TEXT } else { usize::MAX };
    if name.len() >= MAX_NAME || value.len() >= most {
        return Err(format!("property name or value of '{name}' is too long"));
    }
    match name {
        "comment" => Ok(NewValue::Text(value.into())),
        name if is_user(name) => Ok(NewValue::Text(value.into())),
        "failfast" | "slow_io_events" => match value {
            "on" => Ok(NewValue::Number(1)),
            "off" => Ok(NewValue::Number(0)),
            _ => Err(format!("'{name}' must be one of 'on | off'")),
        },
        "checksum_n" | "checksum_t" | "io_n" | "io_t" | "slow_io_n" | "slow_io_t" => match value {
            "none" => Ok(NewValue::Number(u64::MAX)),
            value => match value.parse() {
                Ok(number) => Ok(NewValue::Number(number)),
                Err(_) => Err(format!("bad numeric value '{value}'")),
            },
        },
        name if NOT_SET.contains(&name) => Err(format!("to set '{name}' is not supported yet")),
        name if is_native(name) => Err(format!("'{name}' is readonly")),
        name => Err(format!("invalid property '{name}'")),
    }
}

/// The values of a property that [`parse`] takes, as a pattern; `None`: it cannot be set.
pub fn values(name: &str) -> Option<&'static str> {
    match name {
        "comment" => Some("<text>"),
        "failfast" | "slow_io_events" => Some("on | off"),
        "checksum_n" | "io_n" | "slow_io_n" => Some("<count> | none"),
        "checksum_t" | "io_t" | "slow_io_t" => Some("<seconds> | none"),
        _ => None,
    }
}

/// A vdev and what is known of it.
pub struct VdevProps<'a> {
    pool: &'a Pool,
    vdev: &'a Vdev,
    figures: VdevFigures,
    zap: Option<Zap>,
}

fn plain(value: impl ToString, source: Source) -> PropValue {
    let exact = value.to_string();
    PropValue { human: exact.clone(), exact, source }
}

fn number(n: u64) -> PropValue {
    PropValue { exact: n.to_string(), human: nicenum(n), source: Source::None }
}

fn switch(on: bool, source: Source) -> PropValue {
    plain(if on { "on" } else { "off" }, source)
}

/// A text that may be missing.
fn maybe(value: Option<impl ToString>) -> PropValue {
    value.map_or_else(|| plain("-", Source::Default), |text| plain(text, Source::None))
}

impl<'a> VdevProps<'a> {
    /// The properties of a vdev of `pool`, the root among them.
    pub fn new(pool: &'a Pool, vdev: &'a Vdev) -> VdevProps<'a> {
        let figures = match vdev.guid() == pool.store().vdevs().root().guid() {
            true => VdevFigures::of_root(pool),
            false => VdevFigures::of_vdev(pool, vdev.guid()).unwrap_or_default(),
        };
        let zap = zap_of(pool, vdev).and_then(|n| Zap::open(&pool.mos().object(n).ok()?).ok());
        VdevProps { pool, vdev, figures, zap }
    }

    /// All of them, user properties last.
    pub fn all(&self) -> Vec<(String, PropValue)> {
        let mut names: Vec<String> = NATIVE.iter().map(|name| name.to_string()).collect();
        let entries = self.zap.as_ref().and_then(|zap| zap.entries().ok()).unwrap_or_default();
        let user = entries.iter().filter(|e| e.int_size == 1);
        let user = user.map(|e| String::from_utf8_lossy(&e.name).into_owned());
        names.extend(user.filter(|name| name.contains(':')));
        names.into_iter().filter_map(|name| Some((name.clone(), self.get(&name)?))).collect()
    }

    /// One of them; `None`: this vdev has no such property.
    pub fn get(&self, name: &str) -> Option<PropValue> {
        self.fact(name).or_else(|| self.count(name)).or_else(|| self.setting(name))
    }

    fn stored(&self, name: &str) -> Option<ZapEntry> {
        self.zap.as_ref()?.lookup(name.as_bytes()).ok()?
    }

    fn fact(&self, name: &str) -> Option<PropValue> {
        let (v, f) = (self.vdev, &self.figures);
        let config = v.config();
        let named = |v: &Vdev| match v.kind() {
            "root" => "root-0".to_string(),
            _ => name_of_vdev(v, &NameStyle { full_path: true, ..NameStyle::default() }),
        };
        Some(match name {
            "capacity" => {
                let used = u128::from(f.allocated) * 100;
                let percent = used.checked_div(f.deflated.into()).unwrap_or(0);
                PropValue { human: format!("{percent}%"), ..plain(percent, Source::None) }
            }
            "state" => PropValue {
                human: state_name(v.state()).into(),
                ..plain(state_number(v.state()), Source::None)
            },
            // Not among all of them (`vdev_name`).
            "name" => match config.str("path") {
                Some(path) => plain(path, Source::None),
                None if v.kind() == "root" => plain(self.pool.name(), Source::None),
                None => plain(format!("{}-{}", v.kind(), v.id()), Source::None),
            },
            "guid" => plain(v.guid(), Source::None),
            "ashift" => plain(v.ashift(), Source::None),
            "parity" => plain(v.nparity(), Source::None),
            "numchildren" => plain(v.children().len(), Source::None),
            "fragmentation" => {
                let space = self.pool.space().and_then(|s| s.vdev(v.id()));
                let fragmentation = space.filter(|_| f.size != 0).and_then(|s| s.fragmentation);
                match fragmentation {
                    Some(n) => plain(format!("{n}%"), Source::None),
                    None => plain("-", Source::None),
                }
            }
            "expandsize" => match f.expandable {
                0 => plain("-", Source::None),
                n => number(n),
            },
            "path" => maybe(config.str("path")),
            "devid" => maybe(config.str("devid")),
            "physpath" => maybe(config.str("phys_path")),
            "encpath" => maybe(config.str("vdev_enc_sysfs_path")),
            "fru" => maybe(config.str("fru")),
            "parent" => maybe(self.parent().map(|parent| named(&parent))),
            "children" => {
                let names: Vec<String> = v.children().iter().map(|c| named(c)).collect();
                maybe((!names.is_empty()).then(|| names.join(",")))
            }
            "removing" => switch(config::flag(config, "removing"), Source::None),
            "raidz_expanding" if v.kind() == "raidz" => switch(v.reflow().is_some(), Source::None),
            "sit_out" if v.is_leaf() && self.under_raidz() => switch(false, Source::None),
            "trim_support" if v.is_leaf() => switch(v.can_trim(), Source::None),
            "trim_support" => plain("-", Source::None),
            _ => return None,
        })
    }

    fn count(&self, name: &str) -> Option<PropValue> {
        let (v, f) = (self.vdev, &self.figures);
        let (errors, io) = (v.errors(), v.io_stats());
        Some(number(match name {
            "asize" if v.is_leaf() => f.device.saturating_sub(self.labels()),
            "asize" => v.asize(),
            "psize" => f.device,
            "size" => f.deflated,
            "free" => f.deflated.saturating_sub(f.allocated),
            "allocated" => f.allocated,
            "read_errors" => errors.0,
            "write_errors" => errors.1,
            "checksum_errors" => errors.2,
            "slow_ios" => f.slow_ios,
            "read_ops" => io.0,
            "write_ops" => io.1,
            "read_bytes" => io.2,
            "write_bytes" => io.3,
            "initialize_errors" => v.vacant_errors().0,
            "trim_errors" => v.vacant_errors().1,
            name if NOT_COUNTED.contains(&name) => 0,
            "bootsize" => return Some(PropValue { source: Source::Default, ..number(0) }),
            _ => return None,
        }))
    }

    fn setting(&self, name: &str) -> Option<PropValue> {
        let stored = self.stored(name);
        let of = |default: u64| match stored.as_ref().and_then(ZapEntry::u64) {
            Some(n) if n != default => (n, Source::Local),
            _ => (default, Source::Default),
        };
        let flag = |default: u64| {
            let (n, source) = of(default);
            switch(n != 0, source)
        };
        Some(match name {
            "allocating" if self.is_top() || self.vdev.kind() == "root" => flag(1),
            "autosit" if matches!(self.vdev.kind(), "raidz" | "draid") => flag(0),
            "allocating" => plain("-", Source::None),
            "failfast" | "slow_io_events" => flag(1),
            "checksum_n" | "checksum_t" | "io_n" | "io_t" | "slow_io_n" | "slow_io_t" => {
                match of(u64::MAX) {
                    (u64::MAX, source) => plain("-", source),
                    (n, source) => plain(n, source),
                }
            }
            name if name == "comment" || name.contains(':') => {
                match stored.filter(|entry| entry.int_size == 1) {
                    Some(entry) => plain(text(&entry.bytes()), Source::Local),
                    None => plain("-", Source::Default),
                }
            }
            _ => return None,
        })
    }

    fn labels(&self) -> u64 {
        let device = self.vdev.device().map_or(0, |d| whole_labels(d.size()));
        device.min(cenote_format::LABEL_START + cenote_format::label::LABEL_END)
    }

    fn is_top(&self) -> bool {
        let vdevs = self.pool.store().vdevs();
        let tops = vdevs.root().children();
        tops.iter().any(|top| top.guid() == self.vdev.guid())
    }

    fn under_raidz(&self) -> bool {
        let vdevs = self.pool.store().vdevs();
        let tops = vdevs.root().children().iter();
        tops.filter(|top| top.kind() == "raidz").any(|top| parent(top, self.vdev.guid()).is_some())
    }

    fn parent(&self) -> Option<Arc<Vdev>> {
        parent(self.pool.store().vdevs().root(), self.vdev.guid())
    }
}

/// The vdev at or below `above` that has a vdev of this guid as a child.
pub(crate) fn parent(above: &Arc<Vdev>, guid: u64) -> Option<Arc<Vdev>> {
    match above.children().iter().any(|child| child.guid() == guid) {
        true => Some(above.clone()),
        false => above.children().iter().find_map(|child| parent(child, guid)),
    }
}

/// Why a property that can be set has no effect here; `None`: it has one.
pub fn without_effect(name: &str) -> Option<&'static str> {
    (name == "failfast").then_some("nothing here acts on errors of devices by it")
}

/// `vdev_state_t`.
pub(crate) fn state_number(state: VdevState) -> u64 {
    match state {
        VdevState::Closed => 1,
        VdevState::Offline => 2,
        VdevState::Removed => 3,
        VdevState::CantOpen(_) => 4,
        VdevState::Faulted => 5,
        VdevState::Degraded => 6,
        VdevState::Healthy => 7,
    }
}
