//! Setting properties.

use super::{Result, Tx};

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

/// The value that a user gives a property as text (`128K`, `on`, `none`), as it is stored.
///
/// Errors: `Invalid`, with the words of OpenZFS.
pub fn parse(name: &str, value: &str) -> Result<NewValue> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// Sets a property. Quotas and reservations go to where the accounting is, all others into the
/// property ZAP.
///
/// Errors: `Invalid` for a read-only property or a value of the wrong type; those of
/// [`space`](super::space).
pub fn set(tx: &mut Tx<'_>, target: Target, name: &str, value: &NewValue) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// Removes a local value.
pub fn inherit(tx: &mut Tx<'_>, target: Target, name: &str) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// The number of a property set at `dir_obj` itself.
pub fn local_number(tx: &mut Tx<'_>, dir_obj: u64, name: &str) -> Result<Option<u64>> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
