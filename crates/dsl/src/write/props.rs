//! Setting properties (`dsl_prop_set_sync_impl`, `zfs_prop_set_special`).
//!
//! A local value is an entry of the property ZAP of a directory, or of a snapshot (which gets a ZAP
//! with its first property and loses it with the last): a number as one integer, a string as bytes
//! with a NUL. A few values of old properties are unknown to older software: they are stored beside
//! the default (`$iuv`), which older software finds.
//!
//! Quotas and reservations are properties with an effect on accounting: setting them goes through
//! [`space`]. Some properties are not stored here but in the contents of the dataset
//! ([`in_contents`]): the owner of those sets them.

pub(super) use super::stored::local_text;
use super::stored::{INHERIT, RECEIVED, UNKNOWN_BEFORE, store, zap_for, zap_of};
pub use super::stored::{NewValue, Target, local_number};
use super::{DslWriteError, Result, Tx, directory, limits, space};
use crate::human::nicebytes;
use crate::props::table::{Property, Type, find};
use crate::props::{is_user, is_userspace};
use crate::tunables;
use cenote_format::encode::zap::{MAX_NAME, MAX_VALUE, Value};

const HAS_RECEIVED: &str = "$hasrecvd";
/// Largest block (`recordsize`, `volblocksize`), and the smallest.
const MAX_RECORD: u64 = 16 << 20;
const MIN_RECORD: u64 = 512;
/// Longest component of a mountpoint, in bytes.
const MAX_DIRECTORY: usize = 255;

/// Whether a property is kept in the contents of a dataset, so that it can neither be set nor
/// inherited here.
pub fn in_contents(name: &str) -> bool {
    const QUOTAS: [&str; 6] = [
        "defaultuserquota",
        "defaultgroupquota",
        "defaultprojectquota",
        "defaultuserobjquota",
        "defaultgroupobjquota",
        "defaultprojectobjquota",
    ];
    matches!(
        name,
        "version" | "volsize" | "volblocksize" | "normalization" | "utf8only" | "casesensitivity"
    ) || QUOTAS.contains(&name)
        || is_userspace(name)
}

fn invalid<T>(why: String) -> Result<T> {
    Err(DslWriteError::Invalid(why))
}

/// A number with an optional suffix (`128K`, `1.5G`, `10MB`), powers of 1024.
fn parse_size(text: &str) -> Result<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let too_large = || DslWriteError::Invalid("numeric value is too large".into());
    if !digits.starts_with(|c: char| c.is_ascii_digit()) && !digits.starts_with('.') {
        return invalid(format!("bad numeric value '{text}'"));
    }
    let upper = suffix.to_ascii_uppercase();
    let unit = match upper.strip_suffix("IB").or(upper.strip_suffix('B')).unwrap_or(&upper) {
        "" => 0,
        letter => match "KMGTPEZ".find(letter).filter(|_| letter.len() == 1) {
            Some(power) => power as u32 + 1,
            None => return invalid(format!("invalid numeric suffix '{suffix}'")),
        },
    };
    let shift = unit * 10;
    if digits.contains('.') {
        let Ok(number) = digits.parse::<f64>() else {
            return invalid(format!("bad numeric value '{text}'"));
        };
        let scaled = number * 2f64.powi(shift as i32);
        return if scaled < u64::MAX as f64 { Ok(scaled as u64) } else { Err(too_large()) };
    }
    let number: u64 = digits.parse().map_err(|_| too_large())?;
    let scaled = 1u64.checked_shl(shift).and_then(|unit| number.checked_mul(unit));
    scaled.ok_or_else(too_large)
}

/// The value that a user gives a property as text (`128K`, `on`, `none`), as it is stored.
///
/// Errors: `Invalid`, with the words of OpenZFS.
pub fn parse(name: &str, value: &str) -> Result<NewValue> {
    let Some(property) = find(name) else {
        let text = NewValue::Text(value.into());
        return check(name, &text).map(|()| text);
    };
    let parsed = match property.kind {
        Type::Text(_) => NewValue::Text(value.into()),
        Type::Index(_, names) => match names.iter().find(|(n, _)| *n == value) {
            Some((_, number)) => NewValue::Number(*number),
            None => return invalid(format!("'{name}' must be one of '{}'", property.values)),
        },
        Type::Number(_) => NewValue::Number(parse_number(name, value)?),
    };
    check(name, &parsed)?;
    Ok(parsed)
}

fn parse_number(name: &str, value: &str) -> Result<u64> {
    let limit = matches!(name, "filesystem_limit" | "snapshot_limit");
    if value == "none" {
        return Ok(if limit { u64::MAX } else { 0 });
    }
    match parse_size(value)? {
        0 if matches!(name, "quota" | "refquota") => {
            invalid("use 'none' to disable quota/refquota".into())
        }
        number => Ok(number),
    }
}

/// Whether a value may be given to a property when a dataset is created. Errors: `Invalid`.
pub(super) fn check(name: &str, value: &NewValue) -> Result<()> {
    if name.len() >= MAX_NAME {
        return invalid(format!("property name '{name}' is too long"));
    }
    if let NewValue::Text(text) = value
        && (text.len() >= MAX_VALUE || text.contains('\0'))
    {
        return invalid(format!("'{name}' is too long"));
    }
    let Some(property) = find(name) else {
        return match value {
            NewValue::Text(_) if is_user(name) => Ok(()),
            NewValue::Number(_) if is_user(name) => invalid(format!("'{name}' must be a string")),
            _ => invalid(format!("invalid property '{name}'")),
        };
    };
    if property.is_readonly() && !property.is_setonce() || in_contents(name) {
        return invalid(format!("'{name}' is readonly"));
    }
    match (property.kind, value) {
        (Type::Text(_), NewValue::Text(text)) => check_text(name, text),
        (Type::Number(_), NewValue::Number(number)) => check_number(name, *number),
        (Type::Index(..), NewValue::Number(number)) if property.value_name(*number).is_some() => {
            Ok(())
        }
        (Type::Text(_), _) => invalid(format!("'{name}' must be a string")),
        (Type::Number(_), _) => invalid(format!("'{name}' must be a number")),
        (Type::Index(..), _) => invalid(format!("'{name}' must be one of '{}'", property.values)),
    }
}

fn check_text(name: &str, text: &str) -> Result<()> {
    if name == "mountpoint" && !text.starts_with('/') && !matches!(text, "none" | "legacy") {
        return invalid(format!("'{name}' must be an absolute path, 'none', or 'legacy'"));
    }
    if name == "mountpoint" && text.split('/').any(|component| component.len() > MAX_DIRECTORY) {
        return invalid(format!("component of '{name}' is too long"));
    }
    Ok(())
}

fn check_number(name: &str, number: u64) -> Result<()> {
    let power = number.is_power_of_two() && (MIN_RECORD..=MAX_RECORD).contains(&number);
    match name {
        "recordsize" if !power || number > tunables::MAX_RECORDSIZE.get() => {
            let most = nicebytes(tunables::MAX_RECORDSIZE.get());
            invalid(format!("'{name}' must be power of 2 from 512B to {most}"))
        }
        "special_small_blocks" if number > MAX_RECORD => {
            let most = nicebytes(MAX_RECORD);
            invalid(format!("'{name}' must be zero to {most}"))
        }
        _ => Ok(()),
    }
}

/// Sets a property (`dsl_props_set_sync`). Quotas and reservations go to where the accounting is, all others into the
/// property ZAP.
///
/// Errors: `Invalid` for a read-only property, one that is set at creation only, one that is
/// [kept in the contents](in_contents), or a value of the wrong type; errors of [`space`].
pub fn set(tx: &mut Tx<'_>, target: Target, name: &str, value: &NewValue) -> Result<()> {
    if find(name).is_some_and(Property::is_setonce) {
        return invalid(format!("'{name}' is readonly"));
    }
    check(name, value)?;
    if let Target::Snapshot(object) = target {
        tx.snapshot(object)?;
        if find(name).is_some() {
            return invalid("this property can not be modified for snapshots".into());
        }
    }
    apply(tx, target, name, value)
}

/// Sets a property that was checked.
pub(super) fn apply(tx: &mut Tx<'_>, target: Target, name: &str, value: &NewValue) -> Result<()> {
    if let (Target::Dir(dir), NewValue::Number(number)) = (target, value) {
        let head = tx.dir(dir)?.head_dataset;
        match name {
            "quota" => return space::set_quota(tx, dir, *number),
            "reservation" => return space::set_reservation(tx, dir, *number),
            "refquota" => return space::set_refquota(tx, head, *number),
            "refreservation" => return space::set_refreservation(tx, head, *number),
            "filesystem_limit" | "snapshot_limit" if *number != u64::MAX => {
                limits::activate(tx, dir)?;
            }
            _ => {}
        }
    }
    store(tx, target, name, value)
}

/// Removes a local value, so that the property is inherited or has its default (`zfs inherit`); a
/// received value does not count any more either. A quota or reservation is off then.
///
/// Errors: `Invalid` for a property that cannot be set.
pub fn inherit(tx: &mut Tx<'_>, target: Target, name: &str) -> Result<()> {
    remove(tx, target, name, false)
}

/// Removes a local value, so that a received one counts, or else the property is inherited
/// (`zfs inherit -S`).
///
/// Errors: `Invalid` for a property that cannot be set.
pub fn revert(tx: &mut Tx<'_>, target: Target, name: &str) -> Result<()> {
    remove(tx, target, name, true)
}

fn remove(tx: &mut Tx<'_>, target: Target, name: &str, to_received: bool) -> Result<()> {
    let native = find(name);
    if native.is_some_and(Property::is_readonly) || in_contents(name) {
        return invalid(format!("'{name}' is readonly"));
    }
    if native.is_none() && !is_user(name) {
        return invalid(format!("invalid property '{name}'"));
    }
    let zap = zap_of(tx, target)?;
    if zap == 0 {
        return Ok(());
    }
    if let Target::Dir(dir) = target
        && matches!(name, "quota" | "reservation" | "refquota" | "refreservation")
    {
        let received = tx.zap_number(zap, &format!("{name}{RECEIVED}"))?;
        let number = received.filter(|_| to_received).unwrap_or(0);
        apply(tx, Target::Dir(dir), name, &NewValue::Number(number))?;
    }
    tx.zap_remove(zap, name)?;
    tx.zap_remove(zap, &format!("{name}{UNKNOWN_BEFORE}"))?;
    let inherited = format!("{name}{INHERIT}");
    if to_received {
        tx.zap_remove(zap, &inherited)?;
    } else if inherited.len() < MAX_NAME && tx.zap_get(zap, HAS_RECEIVED)?.is_some() {
        tx.zap_set(zap, &inherited, 0)?;
    }
    if let Target::Snapshot(object) = target
        && tx.zap_is_empty(zap)?
    {
        tx.edit_dataset(object, |ds| ds.props = 0)?;
        tx.mos.free(zap)?;
    }
    Ok(())
}

/// Notes that a dataset was received with properties (`dsl_prop_set_hasrecvd`): from now on values that are inherited
/// hide received ones.
///
/// Errors: the MOS cannot be changed.
pub fn mark_received(tx: &mut Tx<'_>, target: Target) -> Result<()> {
    let zap = zap_for(tx, target)?;
    tx.zap_set(zap, HAS_RECEIVED, 0)
}

/// Puts down the value that a property was received with. It counts unless one is set here, or the property is set to
/// be inherited.
///
/// Errors: `Invalid` for a property that cannot be received, or a value of the wrong type; errors of [`space`] for a
/// quota or reservation that counts.
pub fn receive(tx: &mut Tx<'_>, target: Target, name: &str, value: &NewValue) -> Result<()> {
    check(name, value)?;
    if find(name).is_some_and(Property::is_setonce) {
        return invalid(format!("'{name}' is readonly"));
    }
    let zap = zap_for(tx, target)?;
    if counts_received(tx, zap, name)? {
        account_received(tx, target, zap, (name, value))?;
    }
    let entry = received_entry(name)?;
    match value {
        NewValue::Number(number) => tx.zap_set(zap, &entry, *number),
        NewValue::Text(text) => {
            let bytes: Vec<u8> = text.bytes().chain([0]).collect();
            tx.zap_put(zap, &entry, &Value::U8(&bytes))
        }
    }
}

/// Forgets the values that were received before, but keeps the properties in `kept`.
///
/// Errors: those of [`space`].
pub fn forget_received(tx: &mut Tx<'_>, target: Target, kept: &[&str]) -> Result<()> {
    let zap = zap_of(tx, target)?;
    for entry in tx.zap_entries(zap)? {
        let entry = crate::name_of(&entry);
        let Some(name) = entry.strip_suffix(RECEIVED).filter(|name| !kept.contains(name)) else {
            continue;
        };
        if counts_received(tx, zap, name)? {
            account_received(tx, target, zap, (name, &NewValue::Number(0)))?;
        }
        tx.zap_remove(zap, &entry)?;
    }
    Ok(())
}

/// The name of the entry that a received value has.
fn received_entry(name: &str) -> Result<String> {
    let entry = format!("{name}{RECEIVED}");
    if entry.len() >= MAX_NAME {
        return invalid(format!("property name '{name}' is too long"));
    }
    Ok(entry)
}

/// Whether a received value counts.
fn counts_received(tx: &mut Tx<'_>, zap: u64, name: &str) -> Result<bool> {
    for suffix in ["", INHERIT, UNKNOWN_BEFORE] {
        if tx.zap_get(zap, &format!("{name}{suffix}"))?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Has a received quota or reservation take effect, which leaves no value that is set here.
fn account_received(
    tx: &mut Tx<'_>,
    target: Target,
    zap: u64,
    (name, value): (&str, &NewValue),
) -> Result<()> {
    let accounted = matches!(
        name,
        "quota"
            | "reservation"
            | "refquota"
            | "refreservation"
            | "filesystem_limit"
            | "snapshot_limit"
    );
    if !accounted || !matches!(target, Target::Dir(_)) {
        return Ok(());
    }
    apply(tx, target, name, value)?;
    tx.zap_remove(zap, name).map(drop)
}

/// Takes the pool's property `bootfs` away from a dataset that is being destroyed.
pub(super) fn clear_bootfs(tx: &mut Tx<'_>, ds_obj: u64) -> Result<()> {
    if let Some(zap) = directory::entry(tx, "pool_props")?
        && tx.zap_number(zap, "bootfs")? == Some(ds_obj)
    {
        tx.zap_remove(zap, "bootfs")?;
    }
    Ok(())
}
