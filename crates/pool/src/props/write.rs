//! Setting pool properties: what may be set to what, and where it is kept.
//!
//! | property | kept in |
//! |---|---|
//! | `comment`, `compatibility` | the config, in the MOS and all labels |
//! | `feature@NAME` | the ZAPs of features |
//! | `altroot`, `cachefile`, `readonly`, `tname` | memory, while the pool is imported |
//! | all others, user properties | the ZAP `pool_props`, numbers as numbers |
//!
//! [`parse`] checks a value and says what to do; [`apply`] does it in syncing context. The words
//! of errors are OpenZFS's; commands put `cannot set property for 'tank': ` before them.

use super::{NATIVE, SETTINGS};
use crate::config::ASHIFTS;
use crate::config_write::{PoolConfig, entry, set_entry};
use crate::features::{check_compatibility, unsupported, writable};
use crate::history;
use crate::version;
use cenote_dmu::write::{NewObject, ZapMut};
use cenote_dsl::write::{Result, Tx, errlog, features, pool};
use cenote_format::SECTOR;
use cenote_format::dmu::DmuType;
use cenote_format::encode::zap::{Key, Value};
use cenote_format::features::{Feature, by_name};
use std::path::Path;

/// Longest comment.
const MAX_COMMENT: usize = 32;
/// Bytes that the name of a property may not reach (`ZAP_MAXNAMELEN`).
const MAX_NAME: usize = 256;
/// Bytes that a value may not reach (`ZAP_MAXVALUELEN`).
const MAX_VALUE: usize = 8192;

/// Properties that can only be looked at.
const READONLY: [&str; 21] = [
    "name",
    "size",
    "capacity",
    "health",
    "guid",
    "dedupratio",
    "free",
    "allocated",
    "expandsize",
    "freeing",
    "fragmentation",
    "leaked",
    "checkpoint",
    "load_guid",
    "bcloneused",
    "bclonesaved",
    "bcloneratio",
    "dedup_table_size",
    "last_scrubbed_txg",
    "maxblocksize",
    "maxdnodesize",
];

/// When a property is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// `zpool create -o`.
    Create,
    /// `zpool import -o`.
    Import,
    /// `zpool set`.
    Set,
}

/// What a value needs to know to be checked.
pub struct PropContext<'a> {
    /// When it is set.
    pub when: When,
    /// Name of the pool.
    pub pool: &'a str,
    /// Its version.
    pub version: u64,
    /// Id of this host; 0: it has no id.
    pub hostid: u32,
    /// The object of the dataset of a name, and whether it is a file system or a snapshot of one.
    pub dataset: &'a dyn Fn(&str) -> Option<(u64, bool)>,
}

/// Why a property cannot be set to a value: what comes after `cannot set property for 'tank': `.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PropError(pub String);

/// What to do to set a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropChange {
    /// A number in `pool_props`.
    Number(&'static str, u64),
    /// A string in `pool_props`; an empty one is removed.
    Text(String, String),
    /// `comment` in the config.
    Comment(String),
    /// `compatibility` in the config.
    Compatibility(String),
    /// Another [version](crate::version) of the pool.
    Version(u64),
    /// Enables a feature.
    Feature(&'static Feature),
    /// A feature that is not to be enabled at creation.
    NoFeature(&'static Feature),
    /// Kept in memory: name and value.
    Memory(&'static str, String),
}

fn err<T>(why: impl Into<String>) -> std::result::Result<T, PropError> {
    Err(PropError(why.into()))
}

/// Checks that the property `name` can be set to `value`, and says what to do for it (`spa_prop_validate`).
///
/// # Errors
/// It cannot.
pub fn parse(
    name: &str,
    value: &str,
    context: &PropContext<'_>,
) -> std::result::Result<PropChange, PropError> {
    if let Some(feature) = name.strip_prefix("feature@") {
        return parse_feature(name, feature, value, context);
    }
    if is_user(name) {
        if name.len() >= MAX_NAME {
            return err(format!("property name '{name}' is too long"));
        }
        if value.len() >= MAX_VALUE {
            return err(format!("property value '{value}' is too long"));
        }
        return Ok(PropChange::Text(name.into(), value.into()));
    }
    let name = long_name(name);
    if READONLY.contains(&name) {
        return err(format!("'{name}' is readonly"));
    }
    let known = NATIVE.iter().copied().chain(["tname"]).find(|n| *n == name);
    let Some(name) = known else { return err(format!("invalid property '{name}'")) };
    if let Some((_, names, _)) = SETTINGS.iter().find(|(n, ..)| *n == name) {
        let index = names.iter().position(|n| *n == value);
        let Some(index) = index else {
            let shown = if names.contains(&"on") { "on | off".into() } else { names.join(" | ") };
            return err(format!("'{name}' must be one of '{shown}'"));
        };
        if name == "multihost" && context.hostid == 0 {
            return err("requires a non-zero system hostid");
        }
        return Ok(PropChange::Number(name, index as u64));
    }
    if value.len() >= MAX_VALUE {
        return err(format!("'{name}' is too long"));
    }
    parse_single(name, value, context)
}

/// Properties that are like no other.
fn parse_single(
    name: &'static str,
    value: &str,
    context: &PropContext<'_>,
) -> std::result::Result<PropChange, PropError> {
    match name {
        "comment" => parse_comment(value),
        "compatibility" => {
            check_compatibility(value).map_err(PropError)?;
            Ok(PropChange::Compatibility(value.into()))
        }
        "ashift" => match number(value)? {
            n if n == 0 || ASHIFTS.contains(&n) => Ok(PropChange::Number(name, n)),
            n => err(format!(
                "property '{name}' number {n} is invalid, only values between {} and {} are \
                 allowed.",
                ASHIFTS.start(),
                ASHIFTS.end()
            )),
        },
        "dedup_table_quota" => match value {
            "none" => Ok(PropChange::Number(name, 0)),
            "auto" => Ok(PropChange::Number(name, u64::MAX)),
            _ => match number(value)? {
                0 => err("use 'none' to disable ddt table quota"),
                n => Ok(PropChange::Number(name, n)),
            },
        },
        "bootfs" => parse_bootfs(name, value, context),
        "version" => match number(value)? {
            version::FEATURES => err("invalid argument for this pool operation"),
            n if n >= context.version && version::is_supported(n) => Ok(PropChange::Version(n)),
            n => err(format!("property '{name}' number {n} is invalid.")),
        },
        "readonly" if context.when != When::Import => {
            err(format!("property '{name}' can only be set at import time"))
        }
        "readonly" if !["on", "off"].contains(&value) => {
            err(format!("'{name}' must be one of 'on | off'"))
        }
        "tname" if context.when == When::Set => {
            err(format!("property '{name}' can only be set at creation time"))
        }
        "altroot" if context.when == When::Set => {
            err(format!("property '{name}' can only be set during pool creation or import"))
        }
        "altroot" if !value.starts_with('/') => err(format!("bad alternate root '{value}'")),
        "cachefile" => {
            check_cachefile(name, value)?;
            Ok(PropChange::Memory(name, value.into()))
        }
        _ => Ok(PropChange::Memory(name, value.into())),
    }
}

/// Short names that commands accept.
fn long_name(name: &str) -> &str {
    match name {
        "autoexp" => "autoexpand",
        "listsnaps" => "listsnapshots",
        other => other,
    }
}

/// User properties have a colon in their names.
fn is_user(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-+._:".contains(c);
    name.contains(':') && name.chars().all(good)
}

fn parse_feature(
    whole: &str,
    name: &str,
    value: &str,
    context: &PropContext<'_>,
) -> std::result::Result<PropChange, PropError> {
    let Some(feature) = by_name(name).filter(|f| writable(f)) else {
        return err(unsupported(name));
    };
    match value {
        "enabled" => Ok(PropChange::Feature(feature)),
        "disabled" if context.when == When::Create => Ok(PropChange::NoFeature(feature)),
        "disabled" => {
            err(format!("property '{whole}' can only be set to 'disabled' at creation time"))
        }
        _ => err(format!("property '{whole}' can only be set to 'enabled' or 'disabled'")),
    }
}

fn parse_comment(value: &str) -> std::result::Result<PropChange, PropError> {
    if !value.bytes().all(|b| b == b' ' || b.is_ascii_graphic()) {
        return err("comment may only have printable characters");
    }
    if value.len() > MAX_COMMENT {
        return err(format!("comment must not exceed {MAX_COMMENT} characters"));
    }
    Ok(PropChange::Comment(value.into()))
}

fn parse_bootfs(
    name: &'static str,
    value: &str,
    context: &PropContext<'_>,
) -> std::result::Result<PropChange, PropError> {
    if context.when != When::Set {
        return err(format!("property '{name}' cannot be set at creation or import time"));
    }
    if value.is_empty() {
        return Ok(PropChange::Number(name, 0));
    }
    let inside =
        value.strip_prefix(context.pool).is_some_and(|r| r.is_empty() || r.starts_with(['/', '@']));
    if !inside {
        return err(format!("'{value}' is an invalid name"));
    }
    match (context.dataset)(value) {
        Some((object, true)) => Ok(PropChange::Number(name, object)),
        Some((_, false)) => err("operation not supported on this type of pool"),
        None => err("no such pool or dataset"),
    }
}

fn check_cachefile(name: &str, value: &str) -> std::result::Result<(), PropError> {
    if value.is_empty() || value == "none" {
        return Ok(());
    }
    let Some((parent, last)) = value.rsplit_once('/').filter(|_| value.starts_with('/')) else {
        return err(format!("property '{name}' must be empty, an absolute path, or 'none'"));
    };
    if matches!(last, "" | "." | "..") {
        return err(format!("'{value}' is not a valid file"));
    }
    if !parent.is_empty() && !Path::new(parent).is_dir() {
        return err(format!("'{parent}' is not a valid directory"));
    }
    Ok(())
}

/// A number with a suffix: `12`, `1.5G`, `16KiB`.
fn number(text: &str) -> std::result::Result<u64, PropError> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, suffix) = text.split_at(digits);
    if !text.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return err(format!("bad numeric value '{text}'"));
    }
    let bad = || PropError(format!("invalid numeric suffix '{suffix}'"));
    let upper = suffix.to_ascii_uppercase();
    let mut letters = upper.chars();
    let shift = match letters.next() {
        None => 0,
        Some(letter) => 10 * "BKMGTPE".find(letter).ok_or_else(bad)?,
    };
    let unit = letters.as_str();
    if !(unit.is_empty() || shift > 0 && matches!(unit, "B" | "IB")) {
        return Err(bad());
    }
    let large = || PropError("numeric value is too large".into());
    if digits.contains('.') {
        let value: f64 =
            digits.parse().map_err(|_| PropError(format!("bad numeric value '{text}'")))?;
        let value = value * (1u64 << shift) as f64;
        // Beyond this, floating-point numbers go past the range.
        return if value < u64::MAX as f64 { Ok(value as u64) } else { Err(large()) };
    }
    let value: u64 = digits.parse().map_err(|_| large())?;
    value.checked_mul(1 << shift).ok_or_else(large)
}

/// What a pool in an object store cannot have: its labels become durable with each group, and no heartbeat before.
pub const MULTIHOST: &str = "multihost=on of a pool in an object store";

/// Whether a pool has `multihost=on` from then on.
pub fn is_multihost(change: &PropChange) -> bool {
    matches!(change, PropChange::Number("multihost", on) if *on != 0)
}

/// Sets a property in syncing context, and notes it in the history (`spa_prop_set`, `spa_sync_props`). True if the config
/// changed: it and the labels of all vdevs are then to be written. What is kept in memory is the caller's to keep.
///
/// # Errors
/// The MOS cannot be read or changed.
pub fn apply(tx: &mut Tx<'_>, config: &mut PoolConfig, change: &PropChange) -> Result<bool> {
    if is_multihost(change) && config.has_objects() {
        return Err(cenote_dsl::write::DslWriteError::Unsupported(MULTIHOST.into()));
    }
    let (message, dirty) = match change {
        PropChange::Number(name, value) => {
            let zap = props_zap(tx)?;
            let key = Key::Name(name.as_bytes());
            ZapMut::open(tx.mos, zap).update(&key, &Value::U64(&[*value]))?;
            (format!("{name}={}", value.cast_signed()), false)
        }
        PropChange::Text(name, value) => {
            set_text(tx, name, value)?;
            (format!("{name}={value}"), false)
        }
        PropChange::Comment(text) => {
            config.comment = Some(text.clone());
            (format!("comment={text}"), true)
        }
        PropChange::Compatibility(text) => {
            config.compatibility = Some(text.clone());
            (format!("compatibility={text}"), true)
        }
        PropChange::Version(to) => return upgrade(tx, config, *to),
        PropChange::Feature(feature) => {
            let upgraded = upgrade(tx, config, version::FEATURES)?;
            let by_object_set = !errlog::is_by_head(tx)?;
            features::enable(tx, feature.guid)?;
            if by_object_set && errlog::is_by_head(tx)? {
                errlog::upgrade(tx)?;
            }
            let dirty = config.refresh_features(tx.mos)? || upgraded;
            (format!("feature@{}=enabled", feature.name), dirty)
        }
        PropChange::NoFeature(_) | PropChange::Memory(..) => return Ok(false),
    };
    let record = history::internal("set", &message, None, tx.txg, tx.now);
    history::append(tx.mos, &record)?;
    Ok(dirty)
}

/// Takes a pool to another version (`spa_sync_version`, `spa_sync_upgrades`), unless it has that. True if it had not.
fn upgrade(tx: &mut Tx<'_>, config: &mut PoolConfig, to: u64) -> Result<bool> {
    if config.version >= to {
        return Ok(false);
    }
    if config.version < version::ORIGIN && to >= version::ORIGIN {
        // Each dataset would have to become a clone of `$ORIGIN`.
        let what = format!("taking a pool from version {} to {to}", config.version);
        return Err(cenote_dsl::write::DslWriteError::Unsupported(what));
    }
    config.version = to;
    if to >= version::DEADLISTS {
        pool::add_free_list(tx)?;
    }
    if to >= version::FEATURES {
        features::create_objects(tx)?;
    }
    let record = history::internal("set", &format!("version={to}"), None, tx.txg, tx.now);
    history::append(tx.mos, &record)?;
    Ok(true)
}

fn set_text(tx: &mut Tx<'_>, name: &str, value: &str) -> Result<()> {
    let object = props_zap(tx)?;
    let mut zap = ZapMut::open(tx.mos, object);
    let key = Key::Name(name.as_bytes());
    if value.is_empty() {
        if zap.lookup(&key)?.is_some() {
            zap.remove(&key)?;
        }
        return Ok(());
    }
    let text: Vec<u8> = value.bytes().chain([0]).collect();
    Ok(zap.update(&key, &Value::U8(&text))?)
}

/// The ZAP of settings, which is made when the first is set.
fn props_zap(tx: &mut Tx<'_>) -> Result<u64> {
    if let Some(zap) = entry(tx.mos, "pool_props")? {
        return Ok(zap);
    }
    let format = tx.zap_format()?;
    let zap = ZapMut::create(tx.mos, &NewObject::new(DmuType::POOL_PROPS, SECTOR), format)?;
    set_entry(tx.mos, "pool_props", zap)?;
    Ok(zap)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(when: When, name: &str, value: &str) -> std::result::Result<PropChange, String> {
        let dataset = |n: &str| match n {
            "tank/root" => Some((77, true)),
            "tank@s" => Some((79, true)),
            "tank/vol" => Some((78, false)),
            _ => None,
        };
        let context = PropContext { when, pool: "tank", version: 27, hostid: 0, dataset: &dataset };
        parse(name, value, &context).map_err(|e| e.0)
    }

    #[test]
    fn values() {
        use PropChange::*;
        for (name, value, change) in [
            ("autotrim", "on", Number("autotrim", 1)),
            ("failmode", "continue", Number("failmode", 1)),
            ("listsnaps", "on", Number("listsnapshots", 1)),
            ("ashift", "12", Number("ashift", 12)),
            ("bootfs", "tank/root", Number("bootfs", 77)),
            ("bootfs", "tank@s", Number("bootfs", 79)),
            ("bootfs", "", Number("bootfs", 0)),
            ("dedup_table_quota", "1.5G", Number("dedup_table_quota", 3 << 29)),
            ("comment", "a pool", Comment("a pool".into())),
            ("compatibility", "grub2", Compatibility("grub2".into())),
            ("org.example:x", "y", Text("org.example:x".into(), "y".into())),
            ("cachefile", "none", Memory("cachefile", "none".into())),
            ("version", "28", Version(28)),
        ] {
            assert_eq!(set(When::Set, name, value), Ok(change), "{name}={value}");
        }
        assert!(matches!(set(When::Set, "feature@bookmarks", "enabled"), Ok(Feature(_))));
        assert!(matches!(set(When::Create, "feature@bookmarks", "disabled"), Ok(NoFeature(_))));
    }

    #[test]
    fn refusals_are_openzfs_s() {
        let long = "x".repeat(33);
        for (name, value, why) in [
            ("nope", "1", "invalid property 'nope'"),
            ("size", "1", "'size' is readonly"),
            ("autotrim", "yes", "'autotrim' must be one of 'on | off'"),
            ("failmode", "die", "'failmode' must be one of 'wait | continue | panic'"),
            (
                "ashift",
                "8",
                "property 'ashift' number 8 is invalid, only values between 9 and 16 are allowed.",
            ),
            ("ashift", "x", "bad numeric value 'x'"),
            ("ashift", "12q", "invalid numeric suffix 'q'"),
            ("comment", "a\tb", "comment may only have printable characters"),
            ("comment", &long, "comment must not exceed 32 characters"),
            ("bootfs", "other/root", "'other/root' is an invalid name"),
            ("bootfs", "tank/none", "no such pool or dataset"),
            ("version", "26", "property 'version' number 26 is invalid."),
            ("version", "29", "property 'version' number 29 is invalid."),
            ("readonly", "on", "property 'readonly' can only be set at import time"),
            ("altroot", "/x", "property 'altroot' can only be set during pool creation or import"),
            ("multihost", "on", "requires a non-zero system hostid"),
            ("cachefile", "x", "property 'cachefile' must be empty, an absolute path, or 'none'"),
            (
                "feature@bookmarks",
                "on",
                "property 'feature@bookmarks' can only be set to 'enabled' or 'disabled'",
            ),
            (
                "feature@draid_failure_domains",
                "enabled",
                "feature 'draid_failure_domains' unsupported by kernel (dRAID has no failure domains here)",
            ),
        ] {
            assert_eq!(set(When::Set, name, value), Err(why.into()), "{name}={value}");
        }
    }
}
