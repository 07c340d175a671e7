//! Renaming file systems and volumes (`dsl_dir_rename`).

use super::names::{check_renamed, split};
use super::policy::Operation;
use super::{ChangeError, Changes, Result, dirs, find_head, record};
use crate::SpaceCheck;
use cenote_dsl::DatasetKind;

impl Changes {
    /// Whether a file system or volume can get another name, as far as can be told before it is
    /// unmounted.
    ///
    /// # Errors
    /// The name cannot be, is taken, or has no place.
    pub fn check_rename(&self, from: &str, to: &str) -> Result<()> {
        check_renamed(from, to)?;
        let (parent, _) = split(to)?;
        let view = self.engine.pool();
        let pool = |name: &str| name.split('/').next().unwrap_or_default().to_string();
        if pool(to) != view.name() {
            return Err(ChangeError::Crosses("datasets must be within same pool"));
        }
        let above = view.dsl().find(parent)?.ok_or(ChangeError::NoParent)?;
        if above.kind != DatasetKind::Filesystem {
            return Err(ChangeError::ParentKind);
        }
        if !from.contains('/') {
            return Err(ChangeError::Crosses("datasets must be within same pool"));
        }
        if to.strip_prefix(from).is_some_and(|rest| rest.starts_with('/')) {
            let why = "New dataset name cannot be a descendant of current dataset name";
            return Err(ChangeError::Name(why.into()));
        }
        Ok(())
    }

    /// Gives a file system or volume, with all below it, another name (`zfs_ioc_rename`, `lzc_rename`).
    ///
    /// # Errors
    /// The name cannot be or is taken, there is no parent of that name, or it has no space for it.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.check_rename(from, to)?;
        let permit = self.permit(&Operation::Rename { from, to })?;
        let (from, to) = (from.to_string(), to.to_string());
        self.task_beside_logs(permit, (SpaceCheck::Reserved, 3), move |context| {
            let tx = &mut context.tx;
            let (parent, leaf) = match split(&to) {
                Ok(parts) => parts,
                Err(e) => return Ok(Err(e)),
            };
            let (dir, head) = find_head(tx, &from)?;
            let Some(parent) = dirs::find_dir(tx, parent)? else {
                return Ok(Err(ChangeError::NoParent));
            };
            dirs::rename(tx, dir, parent, leaf)?;
            record(tx, "rename", &format!("-> {to}"), (&from, head))?;
            Ok(Ok(()))
        })
    }
}
