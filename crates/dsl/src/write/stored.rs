//! Properties as they are stored (`dsl_prop_set_sync_impl`): entries of the property ZAP of a directory or a snapshot.
//! What a property means, and what setting it does beside, is in [`props`](super::props).

use super::{Result, Tx};
use crate::props::table::{self, Type, find};
use cenote_format::encode::zap::Value;

pub(super) const INHERIT: &str = "$inherit";
pub(super) const RECEIVED: &str = "$recvd";
pub(super) const UNKNOWN_BEFORE: &str = "$iuv";

/// Where a property is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A file system or volume: its directory.
    Dir(u64),
    /// A snapshot: its dataset.
    Snapshot(u64),
}

/// A value as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewValue {
    /// Of a number, or an index.
    Number(u64),
    /// Of a string or a user property.
    Text(String),
}

/// The property ZAP.
pub(super) fn zap_of(tx: &mut Tx<'_>, target: Target) -> Result<u64> {
    match target {
        Target::Dir(object) => Ok(tx.dir(object)?.props),
        Target::Snapshot(object) => Ok(tx.dataset(object)?.props),
    }
}

/// The property ZAP, which a snapshot gets with its first property.
pub(super) fn zap_for(tx: &mut Tx<'_>, target: Target) -> Result<u64> {
    let mut zap = zap_of(tx, target)?;
    if let (0, Target::Snapshot(object)) = (zap, target) {
        zap = tx.plain_zap(cenote_format::dmu::DmuType::DSL_PROPS)?;
        tx.edit_dataset(object, |ds| ds.props = zap)?;
    }
    Ok(zap)
}

/// Stores a local value (`dsl_prop_set_sync_impl`).
pub(super) fn store(tx: &mut Tx<'_>, target: Target, name: &str, value: &NewValue) -> Result<()> {
    let zap = zap_for(tx, target)?;
    tx.zap_remove(zap, &format!("{name}{INHERIT}"))?;
    let beside = format!("{name}{UNKNOWN_BEFORE}");
    let number = match value {
        NewValue::Text(text) => {
            let bytes: Vec<u8> = text.bytes().chain([0]).collect();
            return tx.zap_put(zap, name, &Value::U8(&bytes));
        }
        NewValue::Number(number) => *number,
    };
    if !unknown_before(name, number) {
        tx.zap_remove(zap, &beside)?;
        return tx.zap_set(zap, name, number);
    }
    tx.zap_set(zap, &beside, number)?;
    let default = match find(name).map(|p| p.kind) {
        Some(Type::Index(default, _) | Type::Number(default)) => default,
        _ => 0,
    };
    tx.zap_set(zap, name, default)
}

/// Whether older software does not know the value (`dsl_prop_set_iuv`).
fn unknown_before(name: &str, number: u64) -> bool {
    match name {
        "redundant_metadata" => matches!(number, 2 | 3),
        "snapdir" => number == 2,
        _ => false,
    }
}

/// The text that a property has in a directory itself.
///
/// # Errors
/// The MOS cannot be read.
pub(super) fn local_text(tx: &mut Tx<'_>, dir_obj: u64, name: &str) -> Result<Option<String>> {
    let props = tx.dir(dir_obj)?.props;
    if props == 0 {
        return Ok(None);
    }
    let bytes = tx.zap_get(props, name)?.map(|(_, value)| value);
    let bytes = bytes.map(|value| value.into_iter().map(|byte| byte as u8).take_while(|b| *b != 0));
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()))
}

/// The number of a property that is set, or was received, at `dir_obj` itself.
pub fn local_number(tx: &mut Tx<'_>, dir_obj: u64, name: &str) -> Result<Option<u64>> {
    let zap = tx.dir(dir_obj)?.props;
    if zap == 0 {
        return Ok(None);
    }
    let newer = tx.zap_number(zap, &format!("{name}{UNKNOWN_BEFORE}"))?;
    let known = |n: &u64| table::find(name).is_some_and(|p| p.value_name(*n).is_some());
    if let Some(number) = newer.filter(known) {
        return Ok(Some(number));
    }
    if let Some(number) = tx.zap_number(zap, name)? {
        return Ok(Some(number));
    }
    if tx.zap_get(zap, &format!("{name}{INHERIT}"))?.is_some() {
        return Ok(None);
    }
    tx.zap_number(zap, &format!("{name}{RECEIVED}"))
}
