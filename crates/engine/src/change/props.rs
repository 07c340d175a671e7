//! Properties that users set (`zfs_valid_proplist`): whether a dataset has them, whether they can be set, what their
//! values mean, and which features values need.
//!
//! Some are fixed when a file system or volume is created, and are kept in its contents
//! (`casesensitivity`, `volblocksize`); `volsize` is in the contents too, but can be changed.

use super::{ChangeError, Result};
use cenote_dsl::human::nicebytes;
use cenote_dsl::props::table::{self, PROPERTIES, Property, Type};
use cenote_dsl::props::{NotAQuota, is_user, is_written, quota_of};
use cenote_dsl::write::props::{NewValue, parse};
use cenote_dsl::write::{DslWriteError, Tx, features};
use cenote_dsl::{Dataset, DatasetKind, Dsl};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::version;

/// Bytes that the name of a user property may not reach (`ZAP_MAXNAMELEN`).
const MAX_NAME: usize = 256;
/// Smallest and largest blocks of volumes.
const BLOCKS: std::ops::RangeInclusive<u64> = 512..=16 << 20;
/// The newest version of file systems.
pub(super) const ZPL_VERSION: u64 = 5;
/// `refreservation=auto`, until it is known what that comes to.
pub const AUTO: u64 = u64::MAX;

/// A property with the value that it is to get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The property's own name.
    pub name: String,
    /// The value.
    pub value: NewValue,
}

impl Setting {
    /// A property that is a number.
    pub fn number(name: &str, value: u64) -> Setting {
        Setting { name: name.into(), value: NewValue::Number(value) }
    }

    /// The value, if it is a number.
    pub fn as_number(&self) -> Option<u64> {
        match self.value {
            NewValue::Number(n) => Some(n),
            NewValue::Text(_) => None,
        }
    }

    /// Settings as a request has them.
    pub(super) fn list(settings: &[Setting]) -> NvList {
        let mut list = NvList::default();
        for setting in settings {
            list.set(
                &setting.name,
                match &setting.value {
                    NewValue::Number(n) => NvValue::Uint64(*n),
                    NewValue::Text(text) => NvValue::String(text.clone()),
                },
            );
        }
        list
    }

    /// As records of history show it.
    pub(super) fn recorded(&self) -> String {
        match &self.value {
            NewValue::Number(n) => format!("{}={n}", self.name),
            NewValue::Text(text) => format!("{}={text}", self.name),
        }
    }
}

/// What properties are set on.
#[derive(Clone, Copy)]
pub enum On<'a> {
    /// A dataset that is being created.
    New(DatasetKind),
    /// One that is there.
    There(&'a Dsl, &'a Dataset),
}

impl On<'_> {
    fn kind(&self) -> DatasetKind {
        match self {
            On::New(kind) => *kind,
            On::There(_, dataset) => dataset.kind,
        }
    }

    /// The number that a property has now.
    fn current(&self, name: &str) -> Result<Option<u64>> {
        let On::There(dsl, dataset) = self else { return Ok(None) };
        Ok(dsl.get(dataset, name)?.and_then(|v| v.exact.parse().ok()))
    }
}

fn wrong<T>(why: impl Into<String>) -> Result<T> {
    Err(ChangeError::Property(why.into()))
}

/// The native property called `name`, or by its column's header in lower case (`zfs_name_to_prop`).
pub fn find(name: &str) -> Option<&'static Property> {
    table::find(name).or_else(|| PROPERTIES.iter().find(|p| p.column.to_ascii_lowercase() == name))
}

/// A number of bytes as users write it: `128K`, `1.5G`.
///
/// # Errors
/// The words for what is wrong with it.
pub fn size(text: &str) -> Result<u64> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return wrong(format!("bad numeric value '{text}'"));
    }
    match parse("reservation", text) {
        Ok(NewValue::Number(n)) => Ok(n),
        Ok(NewValue::Text(_)) => wrong(format!("bad numeric value '{text}'")),
        Err(DslWriteError::Invalid(why)) => wrong(why),
        Err(e) => Err(e.into()),
    }
}

/// Checks properties to be set together, and says what they come to.
///
/// # Errors
/// The first that is wrong, in the words of OpenZFS.
pub fn check(list: &[(String, String)], on: On<'_>) -> Result<Vec<Setting>> {
    let mut settings = Vec::with_capacity(list.len());
    for (name, text) in list {
        settings.push(check_one(name, text, on)?);
    }
    if matches!(on, On::New(DatasetKind::Filesystem)) {
        complete_names(&mut settings)?;
    }
    // That there is no encryption is stored nowhere.
    settings.retain(|setting| !is_of_key(&setting.name));
    Ok(settings)
}

/// Whether a property is fixed by the key that a dataset is created with.
fn is_of_key(name: &str) -> bool {
    matches!(name, "encryption" | "keyformat" | "pbkdf2iters" | "pbkdf2salt")
}

fn check_one(name: &str, text: &str, on: On<'_>) -> Result<Setting> {
    let native = find(name);
    if native.is_none() && is_user(name) {
        if name.len() >= MAX_NAME {
            return wrong(format!("property name '{name}' is too long"));
        }
        let value = parse(name, text)?;
        return Ok(Setting { name: name.into(), value });
    }
    if on.kind() == DatasetKind::Snapshot {
        return wrong("this property can not be modified for snapshots");
    }
    let Some(property) = native else {
        if is_written(name) {
            return wrong(format!("'{name}' is readonly"));
        }
        return match quota_of(name) {
            Err(NotAQuota::Other) => wrong(format!("invalid property '{name}'")),
            Err(NotAQuota::ReadOnly) => wrong(format!("'{name}' is readonly")),
            Err(NotAQuota::Nobody) => wrong(format!("'{name}' has an invalid user/group name")),
            Ok(_) if on.kind() != DatasetKind::Filesystem => {
                wrong(format!("'{name}' does not apply to datasets of this type"))
            }
            Ok(_) => {
                let most = if text == "none" { 0 } else { size(text)? };
                Ok(Setting::number(name, most))
            }
        };
    };
    if !property.applies_to.contains(on.kind()) {
        return wrong(format!("'{name}' does not apply to datasets of this type"));
    }
    let new = matches!(on, On::New(_));
    if property.is_readonly() && !(property.is_setonce() && new) {
        return wrong(format!("'{name}' is readonly"));
    }
    let value = value_of(property, text, on)?;
    Ok(Setting { name: property.name.into(), value })
}

/// What a text means as value of a native property (`zprop_parse_value`).
fn value_of(property: &Property, text: &str, on: On<'_>) -> Result<NewValue> {
    let name = property.name;
    match name {
        "mlslabel" => return wrong("mlslabels are unsupported"),
        "encryption" if text != "off" => return unsupported("native encryption"),
        "encryption" | "keyformat" | "pbkdf2iters" | "pbkdf2salt" if text == "none" => {}
        "keyformat" | "pbkdf2iters" | "pbkdf2salt" => return unsupported("native encryption"),
        "keylocation" => check_location(text, on)?,
        "context" | "fscontext" | "defcontext" | "rootcontext" if text != "none" => {
            return unsupported(&format!("'{name}'"));
        }
        _ if name.starts_with("default") && name.ends_with("quota") => {
            let most = if text == "none" { 0 } else { size(text)? };
            return Ok(NewValue::Number(most));
        }
        "version" => return version(property, text, on),
        "sharenfs" | "sharesmb" => super::shares::check(name, text)?,
        "volsize" | "volblocksize" => return volume_size(name, text, on),
        "normalization" | "utf8only" | "casesensitivity" => {
            return index(property, text).map(NewValue::Number);
        }
        "refreservation" if text == "auto" => {
            return match on.kind() {
                DatasetKind::Volume => Ok(NewValue::Number(AUTO)),
                _ => wrong(format!("'{name}=auto' only allowed on volumes")),
            };
        }
        _ => {}
    }
    if text == "auto" && matches!(property.kind, Type::Number(_)) {
        return wrong(format!("'auto' is invalid value for '{name}'"));
    }
    parse(name, text).map_err(|e| match e {
        DslWriteError::TooLong => ChangeError::Property(format!("'{name}' is too long")),
        e => e.into(),
    })
}

/// Whether the key of a dataset can be said to be at a place (`zfs_prop_valid_keylocation`).
fn check_location(text: &str, on: On<'_>) -> Result<()> {
    let key = match on {
        On::New(_) => None,
        On::There(dsl, dataset) => dsl.crypto_key(dataset)?.map(|key| key.root == dataset.dir_obj),
    };
    match (key, text) {
        (None, "none") => Ok(()),
        (None, _) => wrong("keylocation must be 'none' for unencrypted datasets"),
        (Some(false), text) if text != "none" => {
            wrong("keylocation may only be set on encryption roots")
        }
        (Some(_), text) => check_root_location(text),
    }
}

/// Whether a key can be there: it is asked for, in a file, or at an address.
pub fn is_key_location(text: &str) -> bool {
    text == "prompt" || text.starts_with("file:///") || is_key_address(text)
}

/// Whether it is an address that a key can be fetched from.
pub fn is_key_address(text: &str) -> bool {
    let is_of = |scheme: &&str| text.strip_prefix(*scheme).is_some_and(|rest| !rest.is_empty());
    ["https://", "http://"].iter().any(is_of)
}

/// Whether the key of an encryption root can be there.
pub(super) fn check_root_location(text: &str) -> Result<()> {
    match text {
        "none" => wrong("keylocation must not be 'none' for encrypted datasets"),
        text if is_key_location(text) => Ok(()),
        _ => wrong("invalid keylocation"),
    }
}

fn unsupported<T>(what: &str) -> Result<T> {
    Err(ChangeError::Unsupported(what.into()))
}

fn index(property: &Property, text: &str) -> Result<u64> {
    let Type::Index(_, names) = property.kind else {
        return wrong(format!("'{}' must be a string", property.name));
    };
    match names.iter().find(|(name, _)| *name == text) {
        Some((_, number)) => Ok(*number),
        None => wrong(format!("'{}' must be one of '{}'", property.name, property.values)),
    }
}

fn version(property: &Property, text: &str, on: On<'_>) -> Result<NewValue> {
    let asked = index(property, text)?;
    match on.current("version")? {
        Some(now) if asked < now => wrong(format!("Can not downgrade; already at version {now}")),
        _ => Ok(NewValue::Number(asked)),
    }
}

/// The size that a volume is to get (`zvol_check_volsize`).
fn volume_size(name: &str, text: &str, on: On<'_>) -> Result<NewValue> {
    let bytes = match text {
        "none" => 0,
        "auto" => return wrong(format!("'auto' is invalid value for '{name}'")),
        text => size(text)?,
    };
    if name == "volblocksize" {
        check_block_size(name, bytes)?;
    } else if let Some(block) = on.current("volblocksize")?.filter(|b| *b > 0) {
        if !bytes.is_multiple_of(block) {
            let block = nicebytes(block);
            return wrong(format!("'{name}' must be a multiple of volume block size ({block})"));
        }
        if bytes == 0 {
            return wrong(format!("'{name}' cannot be zero"));
        }
        if bytes > i64::MAX as u64 {
            return wrong("volume size exceeds limit for this system");
        }
    }
    Ok(NewValue::Number(bytes))
}

/// Whether a volume can have blocks of this size (`zvol_check_volblocksize`).
pub(super) fn check_block_size(name: &str, bytes: u64) -> Result<()> {
    if !bytes.is_power_of_two() || !BLOCKS.contains(&bytes) {
        let most = nicebytes(*BLOCKS.end());
        return wrong(format!("'{name}' must be power of 2 from 512B to {most}"));
    }
    Ok(())
}

/// Normalized names are UTF-8; without UTF-8 nothing is normalized.
fn complete_names(settings: &mut Vec<Setting>) -> Result<()> {
    let chosen = |name: &str| settings.iter().find(|s| s.name == name).and_then(Setting::as_number);
    match (chosen("normalization"), chosen("utf8only")) {
        (Some(1..), None) => settings.push(Setting::number("utf8only", 1)),
        (Some(1..), Some(0)) => {
            return wrong("'utf8only' must be set 'on' if normalization chosen");
        }
        (None, Some(0)) => settings.push(Setting::number("normalization", 0)),
        _ => {}
    }
    Ok(())
}

/// The feature that a value needs to be enabled; `None` if it needs no feature.
pub fn feature_for(setting: &Setting) -> Option<&'static str> {
    const COMPRESSION_KINDS: u64 = 0x7f;
    const CHECKSUM_KINDS: u64 = 0xff;
    const OLD_MAX_BLOCK: u64 = 128 << 10;
    match (setting.name.as_str(), setting.as_number()?) {
        ("compression", n) => match n & COMPRESSION_KINDS {
            15 => Some("org.illumos:lz4_compress"),
            16 => Some(ZSTD),
            _ => None,
        },
        ("checksum", 11) => Some("org.illumos:sha512"),
        ("checksum", 12) => Some("org.illumos:skein"),
        ("checksum", 13) => Some("org.illumos:edonr"),
        ("checksum", 14) => Some("org.openzfs:blake3"),
        ("dedup", n) => match n & CHECKSUM_KINDS {
            11 => Some("org.illumos:sha512"),
            12 => Some("org.illumos:skein"),
            13 => Some("org.illumos:edonr"),
            14 => Some("org.openzfs:blake3"),
            _ => None,
        },
        ("recordsize" | "volblocksize", n) if n > OLD_MAX_BLOCK => {
            Some("org.open-zfs:large_blocks")
        }
        ("longname", 1) => Some("org.zfsonlinux:longname"),
        ("dnodesize", 1..) => Some("org.zfsonlinux:large_dnode"),
        ("special_small_blocks", 1..) => Some("org.zfsonlinux:allocation_classes"),
        _ => None,
    }
}

/// The version that a pool needs for a value (`zfs_check_settable`).
pub fn version_for(setting: &Setting) -> u64 {
    const COMPRESSION_KINDS: u64 = 0x7f;
    match (setting.name.as_str(), setting.as_number()) {
        ("compression", Some(n)) => match n & COMPRESSION_KINDS {
            5..=13 => 5,
            14 => 20,
            _ => 1,
        },
        ("refquota" | "refreservation", Some(1..)) => version::OWN_SPACE,
        ("aclinherit", Some(5)) => 14,
        // `off` is 2.
        ("dedup", Some(n)) if n != 2 => 21,
        _ => 1,
    }
}

/// Whether a value needs a feature that is not enabled, or a later version than the pool has.
pub(super) fn needs_upgrade<'a>(
    tx: &mut Tx<'_>,
    version: u64,
    settings: impl IntoIterator<Item = &'a Setting>,
) -> std::result::Result<bool, DslWriteError> {
    for setting in settings {
        let lacks = match feature_for(setting) {
            Some(guid) => !features::is_enabled(tx, guid)?,
            None => version_for(setting) > version,
        };
        if lacks {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The feature that a dataset uses from when it is told to compress with it, whether it has blocks
/// or not.
pub(super) const ZSTD: &str = "org.freebsd:zstd_compress";

#[cfg(test)]
mod tests {
    use super::*;

    fn why(name: &str, value: &str, kind: DatasetKind) -> String {
        let list = [(name.to_string(), value.to_string())];
        match check(&list, On::New(kind)) {
            Ok(settings) => format!("{settings:?}"),
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn words_of_bad_properties() {
        let fs = |name, value| why(name, value, DatasetKind::Filesystem);
        assert_eq!(fs("nosuch", "x"), "invalid property 'nosuch'");
        assert_eq!(fs("used", "1"), "'used' is readonly");
        assert_eq!(fs("volsize", "1G"), "'volsize' does not apply to datasets of this type");
        assert_eq!(fs("atime", "maybe"), "'atime' must be one of 'on | off'");
        assert_eq!(fs("quota", "0"), "use 'none' to disable quota/refquota");
        assert_eq!(fs("quota", "lots"), "bad numeric value 'lots'");
        assert_eq!(fs("quota", "1Q"), "invalid numeric suffix 'Q'");
        assert_eq!(fs("recordsize", "3K"), "'recordsize' must be power of 2 from 512B to 16M");
        assert_eq!(fs("refreservation", "auto"), "'refreservation=auto' only allowed on volumes");
        assert_eq!(fs("quota", "auto"), "'auto' is invalid value for 'quota'");
        assert_eq!(
            fs("mountpoint", "here"),
            "'mountpoint' must be an absolute path, 'none', or 'legacy'"
        );
        assert_eq!(fs("encryption", "on"), "native encryption is not supported");
        for value in ["off", "on", "rw=@10.0.0.0/8"] {
            assert!(fs("sharenfs", value).contains(&format!("Text({value:?})")));
        }
        assert_eq!(fs("written@x", "1"), "'written@x' is readonly");
        let volume = |name, value| why(name, value, DatasetKind::Volume);
        assert_eq!(
            volume("volblocksize", "3K"),
            "'volblocksize' must be power of 2 from 512B to 16M"
        );
        assert_eq!(
            why("atime", "on", DatasetKind::Snapshot),
            "this property can not be modified for snapshots"
        );
    }

    #[test]
    fn values_are_what_is_stored() {
        let check = |list: &[(&str, &str)]| {
            let list: Vec<_> = list.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
            check(&list, On::New(DatasetKind::Filesystem)).unwrap()
        };
        assert_eq!(check(&[("compress", "lz4")]), [Setting::number("compression", 15)]);
        assert_eq!(
            check(&[("normalization", "formD")]),
            [Setting::number("normalization", 16), Setting::number("utf8only", 1)]
        );
        let user = &check(&[("com.example:note", "x")])[0];
        assert_eq!(user.value, NewValue::Text("x".into()));
        assert_eq!(feature_for(&Setting::number("compression", 16 | 7 << 7)), Some(ZSTD));
        assert_eq!(feature_for(&Setting::number("recordsize", 128 << 10)), None);
        assert_eq!(size("1.5K").unwrap(), 1536);
        assert_eq!(size("none").unwrap_err().to_string(), "bad numeric value 'none'");
    }
}
