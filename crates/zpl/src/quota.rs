//! Quotas of users, groups and projects, and the space that projects use
//! (`zfs_id_overquota`).
//!
//! The object set counts what each project uses in a ZAP of its own (the accounting object -3): the
//! entry named by the project's id, in hexadecimal, is its bytes, the one with `obj-` in front its
//! number of objects. Quotas are in ZAPs with the same names, which the master node's entries
//! `projectquota@` and `projectobjquota@` lead to. Users (-1) and groups (-2) have the same.
//!
//! A directory that hands its project on to new files is shown as a file system of its own by
//! `statfs`: as large as the quota.

use crate::Result;
use crate::fs::FileSystem;
use cenote_dmu::zap::Zap;

/// `zp_flags`: new files in the directory get its project.
const FLAG_PROJINHERIT: u64 = 0x0000_4000_0000_0000;
/// The accounting object of projects (`DMU_PROJECTUSED_OBJECT`, -3).
const PROJECT_USED: u64 = u64::MAX - 2;

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

/// What a project uses and may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProjectSpace {
    /// Bytes allocated.
    pub used: u64,
    /// Objects: files, directories and hidden ones.
    pub objects: u64,
    /// Most bytes; `None` for no limit.
    pub quota: Option<u64>,
    /// Most objects; `None` for no limit.
    pub object_quota: Option<u64>,
}

impl FileSystem {
    /// What a project uses and may use. `None` if the file system does not count it.
    pub fn project_space(&self, project: u64) -> Result<Option<ProjectSpace>> {
        if self.objset().phys().project_used.is_none() {
            return Ok(None);
        }
        let used = Zap::open(&self.source.special(PROJECT_USED)?)?;
        let name = format!("{project:x}");
        let quota = |table: Option<u64>, default: u64| -> Result<Option<u64>> {
            let own = match table.filter(|t| *t != 0) {
                Some(table) => Zap::open(&self.object(table)?)?.u64(name.as_bytes())?,
                None => None,
            };
            Ok(Some(own.unwrap_or(default)).filter(|q| *q != 0))
        };
        let (bytes_table, objects_table) = self.quotas().project;
        let [_, _, defaults] = self.quotas().defaults;
        Ok(Some(ProjectSpace {
            used: used.u64(name.as_bytes())?.unwrap_or(0),
            objects: used.u64(format!("obj-{name}").as_bytes())?.unwrap_or(0),
            quota: quota(bytes_table, defaults.0)?,
            object_quota: quota(objects_table, defaults.1)?,
        }))
    }

    /// The space that bounds a directory: that of the project it hands on, if it does.
    pub fn bounding_project(&self, ino: u64) -> Result<Option<ProjectSpace>> {
        let attr = self.attr(ino)?;
        if attr.flags & FLAG_PROJINHERIT == 0 || attr.projid == 0 {
            return Ok(None);
        }
        self.project_space(attr.projid)
    }
}
