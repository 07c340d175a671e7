//! Where the quotas of users, groups and projects are (`zfs_id_overquota`).
//!
//! Each kind of quota has a ZAP, which the master node leads to: `userquota@`, `groupquota@` and `projectquota@` for bytes,
//! `userobjquota@` and so on for objects. An entry is named by the id, in hexadecimal.

use crate::Result;
use cenote_dmu::zap::Zap;

/// ZAPs of quotas of users, groups and projects: of bytes, of objects. A kind of quota that was never set has no ZAP.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Quotas {
    pub(crate) user: (Option<u64>, Option<u64>),
    pub(crate) group: (Option<u64>, Option<u64>),
    pub(crate) project: (Option<u64>, Option<u64>),
    /// Quotas of users, groups and projects without one of their own: of bytes, of objects; 0 for no quota
    /// (`defaultuserquota`, …).
    pub(crate) defaults: [(u64, u64); 3],
}

impl Quotas {
    /// What the master node says.
    pub(crate) fn read(master: &Zap) -> Result<Quotas> {
        let entry = |name: &str| Ok::<_, crate::Error>(master.u64(name.as_bytes())?);
        let tables = |who: &str| {
            let bytes = entry(&format!("{who}quota@"))?;
            Ok::<_, crate::Error>((bytes, entry(&format!("{who}objquota@"))?))
        };
        let default = |who: &str| {
            let bytes = entry(&format!("default{who}quota"))?;
            let objects = entry(&format!("default{who}objquota"))?;
            Ok::<_, crate::Error>((bytes.unwrap_or(0), objects.unwrap_or(0)))
        };
        Ok(Quotas {
            user: tables("user")?,
            group: tables("group")?,
            project: tables("project")?,
            defaults: [default("user")?, default("group")?, default("project")?],
        })
    }
}
