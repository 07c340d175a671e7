//! Feature flags: which are enabled, and how many uses each has.

use super::{Result, Tx};

/// Creates the three ZAPs of features, if they are not there.
pub fn create_objects(tx: &mut Tx<'_>) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// Enables a feature and all that it depends on; those that are active from the start become so.
/// Nothing happens if it is enabled. Errors: [`Unsupported`](super::DslWriteError::Unsupported)
/// for a guid that is not in the table.
pub fn enable(tx: &mut Tx<'_>, guid: &str) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// The number of uses of an enabled feature: `None` if it is not enabled.
pub fn count(tx: &mut Tx<'_>, guid: &str) -> Result<Option<u64>> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// Whether a feature is enabled.
pub fn is_enabled(tx: &mut Tx<'_>, guid: &str) -> Result<bool> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// One use more. Errors: not enabled.
pub fn increment(tx: &mut Tx<'_>, guid: &str) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// One use less. Errors: not enabled, no uses.
pub fn decrement(tx: &mut Tx<'_>, guid: &str) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// Notes that a dataset uses a feature, and counts it; nothing happens if that is noted already.
pub fn activate_dataset_feature(tx: &mut Tx<'_>, ds_obj: u64, guid: &str) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// The guids of active features that the labels have to list (`features_for_read` in the label):
/// to be compared with the labels before each config is written.
pub fn label_features(tx: &mut Tx<'_>) -> Result<Vec<&'static str>> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
