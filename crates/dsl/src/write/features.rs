//! Feature flags: which are enabled, and how many uses each has (`spa_feature_enable`, `spa_feature_incr`,
//! `spa_feature_decr`).
//!
//! The counts are in two ZAPs of the MOS, one for features that every reader must know and one for
//! those that only writers must. A dataset that uses a feature has an entry of the feature's guid
//! among its fields; most have the value 0, and `redacted_datasets` an array. Snapshots and clones
//! take the entries of what they were made from, and each counts as a use.
//!
//! With `enabled_txg` another ZAP says when each feature was enabled, and each entry is a use of
//! `enabled_txg` itself.

use super::mos::{DIRECTORY, ZAP_METADATA, corrupt};
use super::{DslWriteError, Result, Tx, directory};
use cenote_dmu::write::ZapMut;
use cenote_format::encode::zap::Value;
use cenote_format::features::{FEATURES, Feature, by_guid, counted};
use cenote_format::redaction::REDACTED;

const FOR_READ: &str = "features_for_read";
const FOR_WRITE: &str = "features_for_write";
const DESCRIPTIONS: &str = "feature_descriptions";
const ENABLED_TXG_ZAP: &str = "feature_enabled_txg";
/// Feature that zapified objects count as uses of.
pub(super) const EXTENSIBLE: &str = "com.delphix:extensible_dataset";
const ENABLED_TXG: &str = "com.delphix:enabled_txg";
/// Features that are active from when they are enabled (`ZFEATURE_FLAG_ACTIVATE_ON_ENABLE`).
const ACTIVE_AT_ONCE: [&str; 5] = [
    "org.illumos:lz4_compress",
    "com.delphix:hole_birth",
    "com.delphix:spacemap_v2",
    "com.delphix:embedded_data",
    "com.delphix:head_errlog",
];

/// Creates the three ZAPs of features, if they are not there.
pub fn create_objects(tx: &mut Tx<'_>) -> Result<()> {
    for name in [FOR_READ, FOR_WRITE, DESCRIPTIONS] {
        if directory::entry(tx, name)?.is_none() {
            let zap = tx.plain_zap(ZAP_METADATA)?;
            directory::set_entry(tx, name, zap)?;
        }
    }
    Ok(())
}

/// Whether the pool has feature flags at all.
///
/// # Errors
/// The MOS cannot be read.
pub fn has_flags(tx: &mut Tx<'_>) -> Result<bool> {
    Ok(directory::entry(tx, FOR_READ)?.is_some())
}

fn known(guid: &str) -> Result<&'static Feature> {
    by_guid(guid).ok_or_else(|| DslWriteError::Unsupported(format!("feature {guid}")))
}

/// The ZAP that counts the uses of a feature.
fn counts(tx: &mut Tx<'_>, feature: &Feature) -> Result<Option<u64>> {
    directory::entry(tx, if feature.readonly_compatible { FOR_WRITE } else { FOR_READ })
}

/// Enables a feature and all that it depends on; those that are active from the start become so
/// (`feature_enable_sync`). Nothing happens if it is enabled.
///
/// Errors: `Unsupported` for a guid that is not in the table; the ZAPs of features are not there.
pub fn enable(tx: &mut Tx<'_>, guid: &str) -> Result<()> {
    let feature = known(guid)?;
    let (Some(counts), Some(descriptions)) =
        (counts(tx, feature)?, directory::entry(tx, DESCRIPTIONS)?)
    else {
        return Err(corrupt(DIRECTORY, "no feature flags"));
    };
    if tx.zap_get(counts, guid)?.is_some() {
        return Ok(());
    }
    // The table has no circles: its own test goes through it.
    for needed in feature.depends_on {
        enable(tx, needed)?;
    }
    let text: Vec<u8> = feature.description.bytes().chain([0]).collect();
    tx.zap_put(descriptions, guid, &Value::U8(&text))?;
    tx.zap_set(counts, guid, u64::from(ACTIVE_AT_ONCE.contains(&guid)))?;
    if is_enabled(tx, ENABLED_TXG)? {
        let zap = match directory::entry(tx, ENABLED_TXG_ZAP)? {
            Some(zap) => zap,
            None => {
                let zap = tx.plain_zap(ZAP_METADATA)?;
                directory::set_entry(tx, ENABLED_TXG_ZAP, zap)?;
                zap
            }
        };
        increment(tx, ENABLED_TXG)?;
        let txg = tx.txg;
        tx.zap_set(zap, guid, txg)?;
    }
    Ok(())
}

/// The number of uses of an enabled feature (`feature_get_refcount`): `None` if it is not enabled.
pub fn count(tx: &mut Tx<'_>, guid: &str) -> Result<Option<u64>> {
    match counts(tx, known(guid)?)? {
        Some(counts) => tx.zap_number(counts, guid),
        None => Ok(None),
    }
}

/// Whether a feature is enabled (`spa_feature_is_enabled`).
pub fn is_enabled(tx: &mut Tx<'_>, guid: &str) -> Result<bool> {
    Ok(count(tx, guid)?.is_some())
}

/// Whether a feature is enabled and has uses (`spa_feature_is_active`).
pub(super) fn is_active(tx: &mut Tx<'_>, guid: &str) -> Result<bool> {
    Ok(count(tx, guid)?.is_some_and(|n| n > 0))
}

/// Adds to the number of uses (`feature_sync`). Errors: not enabled, fewer uses than are taken.
pub fn change(tx: &mut Tx<'_>, guid: &str, delta: i64) -> Result<()> {
    let disabled = || DslWriteError::Unsupported(format!("feature {guid} (it is not enabled)"));
    let counts = counts(tx, known(guid)?)?.ok_or_else(disabled)?;
    let old = tx.zap_number(counts, guid)?.ok_or_else(disabled)?;
    let Some(new) = old.checked_add_signed(delta) else {
        return Err(corrupt(counts, format!("feature {guid} has {old} uses")));
    };
    tx.zap_set(counts, guid, new)
}

/// One use more (`spa_feature_incr`). Errors: not enabled.
pub fn increment(tx: &mut Tx<'_>, guid: &str) -> Result<()> {
    change(tx, guid, 1)
}

/// One use less (`spa_feature_decr`). Errors: not enabled, no uses.
pub fn decrement(tx: &mut Tx<'_>, guid: &str) -> Result<()> {
    change(tx, guid, -1)
}

/// Notes that a dataset uses a feature, and counts it (`dsl_dataset_activate_feature`); nothing happens if that is noted
/// already. Errors: not enabled.
pub fn activate_dataset_feature(tx: &mut Tx<'_>, ds_obj: u64, guid: &str) -> Result<()> {
    activate_with(tx, ds_obj, guid, &[0])
}

/// Whether a dataset uses a feature.
///
/// Errors: the MOS cannot be read.
pub fn is_used_by(tx: &mut Tx<'_>, ds_obj: u64, guid: &str) -> Result<bool> {
    Ok(tx.field(ds_obj, guid)?.is_some())
}

/// Guids of the snapshots that a dataset is redacted by; `None`: it is not redacted
/// (`dsl_dataset_get_uint64_array_feature`).
///
/// Errors: the MOS cannot be read.
pub fn redacted_by(tx: &mut Tx<'_>, ds_obj: u64) -> Result<Option<Vec<u64>>> {
    Ok(tx.field(ds_obj, REDACTED)?.map(|(_, guids)| guids))
}

/// Says that a dataset is redacted by the snapshots of these guids, or that it is not redacted, whatever it was made from
/// (`dsl_dataset_activate_redaction`, `dsl_dataset_deactivate_feature`).
///
/// Errors: the feature is not enabled.
pub(super) fn set_redacted(tx: &mut Tx<'_>, ds_obj: u64, by: Option<&[u64]>) -> Result<()> {
    if tx.field(ds_obj, REDACTED)?.is_some() {
        tx.zap_remove(ds_obj, REDACTED)?;
        decrement(tx, REDACTED)?;
    }
    by.map_or(Ok(()), |guids| activate_with(tx, ds_obj, REDACTED, guids))
}

fn activate_with(tx: &mut Tx<'_>, ds_obj: u64, guid: &str, value: &[u64]) -> Result<()> {
    if tx.field(ds_obj, guid)?.is_some() {
        return Ok(());
    }
    increment(tx, guid)?;
    tx.zapify(ds_obj)?;
    tx.zap_put(ds_obj, guid, &Value::U64(value))
}

/// The features that a dataset uses, with the values of their entries.
pub(super) fn of_dataset(tx: &mut Tx<'_>, ds_obj: u64) -> Result<Vec<(&'static str, Vec<u64>)>> {
    let mut used = Vec::new();
    if !tx.is_zapified(ds_obj)? {
        return Ok(used);
    }
    for feature in FEATURES.iter().filter(|f| f.per_dataset) {
        if let Some((8, value)) = tx.zap_get(ds_obj, feature.guid)? {
            used.push((feature.guid, value));
        }
    }
    Ok(used)
}

/// Gives the dataset `to` the features of `from`.
pub(super) fn inherit(tx: &mut Tx<'_>, from: u64, to: u64) -> Result<()> {
    let used = of_dataset(tx, from)?;
    give(tx, to, &used)
}

/// Gives a dataset features, with the values of their entries.
pub(super) fn give(tx: &mut Tx<'_>, to: u64, used: &[(&'static str, Vec<u64>)]) -> Result<()> {
    used.iter().try_for_each(|(guid, value)| activate_with(tx, to, guid, value))
}

/// Takes all features from a dataset, which is about to be freed.
pub(super) fn deactivate_all(tx: &mut Tx<'_>, ds_obj: u64) -> Result<()> {
    for (guid, _) in of_dataset(tx, ds_obj)? {
        tx.zap_remove(ds_obj, guid)?;
        decrement(tx, guid)?;
    }
    Ok(())
}

/// The guids of active features that the labels have to list (`features_for_read` in the label):
/// to be compared with the labels before each config is written.
pub fn label_features(tx: &mut Tx<'_>) -> Result<Vec<&'static str>> {
    let mut active = Vec::new();
    for feature in counted().filter(|f| f.needed_for_mos) {
        if is_active(tx, feature.guid)? {
            active.push(feature.guid);
        }
    }
    Ok(active)
}

impl Tx<'_> {
    /// Makes a directory or dataset a ZAP of further fields.
    pub(super) fn zapify(&mut self, object: u64) -> Result<()> {
        if self.is_zapified(object)? {
            return Ok(());
        }
        let salt = self.zap_format()?.salt;
        ZapMut::zapify(self.mos, object, ZAP_METADATA, salt)?;
        increment(self, EXTENSIBLE)
    }

    /// Frees a directory or dataset.
    pub(super) fn free_zapified(&mut self, object: u64) -> Result<()> {
        if self.is_zapified(object)? {
            decrement(self, EXTENSIBLE)?;
        }
        Ok(self.mos.free(object)?)
    }
}
