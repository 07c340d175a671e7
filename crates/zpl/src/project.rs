//! The space that projects use, and may use.
//!
//! The object set counts what each project uses in a ZAP of its own (the accounting object -3): the
//! entry named by the project's id, in hexadecimal, is its bytes, the one with `obj-` in front its
//! number of objects. Users (-1) and groups (-2) have the same.
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
