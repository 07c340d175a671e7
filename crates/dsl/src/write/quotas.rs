//! Setting quotas of users, groups and projects (`zfs_set_userquota`, `zfs_set_default_quota`).
//!
//! They are in the contents of a file system. The master node has an entry for each kind of quota, named
//! `userquota@` and so on, which leads to a ZAP: the id in hexadecimal is the name of the quota. Default
//! quotas are entries of the master node itself. A kind that was never set has no ZAP.

use crate::props::computed::MASTER_NODE;
use cenote_dmu::write::zap::ZapFormat;
use cenote_dmu::write::{NewObject, OpenObjectSet, WriteError, ZapMut};
use cenote_format::SECTOR;
use cenote_format::dmu::DmuType;
use cenote_format::encode::zap::{Key, Value};

/// A quota in the contents of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// `userquota@`, …, or `defaultuserquota`, ….
    pub entry: String,
    /// Whose it is; `None`: of all names without a quota of their own.
    pub id: Option<u64>,
    /// Bytes or objects; 0: no quota.
    pub most: u64,
}

/// Sets quotas. `salt` is for the hashes of new ZAPs.
///
/// # Errors
/// The contents cannot be read or changed.
pub fn set(os: &mut OpenObjectSet, quotas: &[Quota], salt: u64) -> Result<(), WriteError> {
    for quota in quotas {
        let (zap, name) = match quota.id {
            None => (MASTER_NODE, quota.entry.clone()),
            Some(id) => match table(os, quota, salt)? {
                Some(table) => (table, format!("{id:x}")),
                None => continue,
            },
        };
        let (mut zap, key) = (ZapMut::open(os, zap), Key::Name(name.as_bytes()));
        match quota.most {
            0 if zap.word(&key)?.is_some() => zap.remove(&key)?,
            0 => {}
            most => zap.update(&key, &Value::U64(&[most]))?,
        }
    }
    Ok(())
}

/// The ZAP of a kind of quota, which is made with the first one.
fn table(os: &mut OpenObjectSet, quota: &Quota, salt: u64) -> Result<Option<u64>, WriteError> {
    let entry = Key::Name(quota.entry.as_bytes());
    if let Some(table) = ZapMut::open(os, MASTER_NODE).word(&entry)?.filter(|table| *table != 0) {
        return Ok(Some(table));
    }
    if quota.most == 0 {
        return Ok(None);
    }
    let format = ZapFormat { salt: salt | 1, ..ZapFormat::default() };
    let table = ZapMut::create(os, &NewObject::new(DmuType::USERGROUP_QUOTA, SECTOR), format)?;
    ZapMut::open(os, MASTER_NODE).update(&entry, &Value::U64(&[table]))?;
    Ok(Some(table))
}
