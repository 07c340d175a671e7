//! Quotas of users, groups and projects, and default ones, as properties that are set.
//!
//! They are in the contents of a file system, and are set there by a transaction, as files are changed.
//! The mount of the file system is told afterwards
//! (`FileSystem::reread_master_node`).

use super::error::Failed;
use super::policy::Permit;
use super::props::Setting;
use super::{ChangeError, Changes, Result};
use cenote_dmu::live::Cost;
use cenote_dsl::Dataset;
use cenote_dsl::props::quota_of;
use cenote_dsl::write::quotas::Quota;
pub(super) use cenote_dsl::write::quotas::set;
use cenote_pool::Pool;

/// `os_flags`: what projects use is counted (`OBJSET_FLAG_PROJECTQUOTA_COMPLETE`).
const PROJECTS_COUNTED: u64 = 4;
/// Version of file systems from which on there are quotas of owners (`ZPL_VERSION_USERSPACE`).
const QUOTAS: u64 = 4;
/// Bytes of blocks that one quota may change: of the master node, of the table, of its dnode.
const COST: u64 = 3 * 16384;

/// Whether a property is a quota of a user, group or project, or of all names without one of their own.
pub fn is_quota(property: &str) -> bool {
    let default = property.starts_with("default") && property.ends_with("quota");
    default || quota_of(property).is_ok()
}

/// The quotas among settings.
pub(super) fn asked(settings: &[Setting]) -> Vec<Quota> {
    let quota = |setting: &Setting| {
        let most = setting.as_number()?;
        match quota_of(&setting.name) {
            Ok(of) => Some(Quota { entry: of.table.into(), id: Some(of.id), most }),
            Err(_) if is_quota(&setting.name) => {
                Some(Quota { entry: setting.name.clone(), id: None, most })
            }
            Err(_) => None,
        }
    };
    settings.iter().filter_map(quota).collect()
}

impl Changes {
    /// Sets quotas of a file system, all together (`zfs_prop_set_userquota`). Returns those that it cannot have.
    pub(super) fn set_quotas(
        &self,
        _: Permit,
        view: &Pool,
        dataset: &Dataset,
        quotas: &[Quota],
    ) -> Result<Vec<Failed>> {
        if quotas.is_empty() {
            return Ok(Vec::new());
        }
        let counted = view.dsl().open_objset(dataset)?.phys().flags & PROJECTS_COUNTED != 0;
        let version = view.dsl().get(dataset, "version")?.and_then(|v| v.exact.parse().ok());
        let has_quotas = version.is_some_and(|version: u64| version >= QUOTAS);
        let (set_now, refused): (Vec<Quota>, Vec<Quota>) = quotas
            .iter()
            .cloned()
            .partition(|q| has_quotas && (counted || !q.entry.contains("project")));
        let failed = |q: Quota| Failed { name: q.entry, error: ChangeError::NeedsUpgrade };
        if set_now.is_empty() {
            return Ok(refused.into_iter().map(failed).collect());
        }
        let write = COST * set_now.len() as u64;
        let cost = Cost { write, objects: set_now.len() as u64, frees: false };
        let live = self.engine.live(dataset.ds_obj)?;
        live.transact(cost, |os, txg| set(os, &set_now, txg))?;
        self.engine.sync()?;
        Ok(refused.into_iter().map(failed).collect())
    }
}
