//! Delegated permissions: `zfs allow` and `zfs unallow` (`zfs_ioc_set_fsacl`).
//!
//! What is granted counts for all users that may do no more than that ([`super::policy`]), and for `filesystem_limit`
//! and `snapshot_limit`.

use super::policy::Operation;
use super::{ChangeError, Changes, Result, find_head, props, record};
use crate::SpaceCheck;
use cenote_dsl::permissions::Who;
use cenote_dsl::write::permissions::{self, Entry};
use cenote_pool::version;
use nix::unistd::{Uid, User};

/// A user, with the groups that the system says.
pub(super) fn who(user: u64) -> Who {
    let alone = Who { user, groups: Vec::new() };
    if alone.is_root() {
        return alone;
    }
    let number = u32::try_from(user).ok();
    let known = number.and_then(|number| User::from_uid(Uid::from_raw(number)).ok()?);
    let Some(known) = known else { return alone };
    let name = std::ffi::CString::new(known.name).ok();
    let groups = name.and_then(|name| nix::unistd::getgrouplist(&name, known.gid).ok());
    let groups = groups.unwrap_or_else(|| vec![known.gid]);
    Who { user, groups: groups.into_iter().map(|group| u64::from(group.as_raw())).collect() }
}

/// Whether there is a property of this name that users may be let change (`zfs_prop_delegatable`).
pub fn is_delegatable(name: &str) -> bool {
    props::find(name).is_some_and(|property| {
        (!property.is_readonly() || property.is_setonce()) && property.name != "mlslabel"
    })
}

impl Changes {
    /// Grants permissions on a file system or volume.
    ///
    /// # Errors
    /// There is no such permission; the dataset is not there.
    pub fn allow(&self, name: &str, entries: &[Entry]) -> Result<()> {
        self.change_permissions(&[name.to_string()], entries, true)
    }

    /// Takes permissions on file systems and volumes away.
    ///
    /// # Errors
    /// As [`Changes::allow`].
    pub fn unallow(&self, names: &[String], entries: &[Entry]) -> Result<()> {
        self.change_permissions(names, entries, false)
    }

    fn change_permissions(&self, names: &[String], entries: &[Entry], grant: bool) -> Result<()> {
        permissions::check(entries, is_delegatable)?;
        let permit = match (grant, names) {
            (true, [name]) => self.permit(&Operation::Allow { name, entries }),
            _ => self.permit(&Operation::Unallow { names, entries }),
        }?;
        if self.engine.pool().version() < version::PERMISSIONS {
            return Err(ChangeError::PoolTooOld);
        }
        let (names, entries) = (names.to_vec(), entries.to_vec());
        let blocks = names.len() as u64 * entries.len() as u64;
        self.task_beside_logs(permit, (SpaceCheck::Reserved, blocks), move |context| {
            let tx = &mut context.tx;
            for name in &names {
                let (dir, head) = find_head(tx, name)?;
                let told = match grant {
                    true => permissions::allow(tx, dir, &entries)?,
                    false => permissions::unallow(tx, dir, &entries)?,
                };
                for (what, message) in told {
                    record(tx, what, &message, (name, head))?;
                }
            }
            Ok(Ok(()))
        })
    }
}
