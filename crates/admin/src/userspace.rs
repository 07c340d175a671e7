//! What users, groups or projects use of a file system or snapshot, and their quotas (`zfs_userspace`).
//!
//! Figures are as of the last transaction group on disk. Owners from other systems' domains (SMB) have the number that they
//! are stored as.

use crate::error::{Error, ErrorKind, Result, Why};
use crate::session::Session;
use cenote_dsl::props::{Account, Who};
use cenote_dsl::{Dataset, DatasetKind};
use cenote_engine::change::policy::Operation;

/// Kinds of owners (`zfs_user_or_group_type_t`), in the order in which they sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnerKind {
    /// A user of this system's kind.
    PosixUser,
    /// A group of this system's kind.
    PosixGroup,
    /// A user of another system's domain.
    SmbUser,
    /// A group of another system's domain.
    SmbGroup,
    /// A project.
    Project,
}

impl OwnerKind {
    /// The kind of an owner; a number above 32 bits is of another system's domain.
    fn of(who: Who, id: u64) -> OwnerKind {
        match (who, u32::try_from(id).is_ok()) {
            (Who::User, true) => OwnerKind::PosixUser,
            (Who::User, false) => OwnerKind::SmbUser,
            (Who::Group, true) => OwnerKind::PosixGroup,
            (Who::Group, false) => OwnerKind::SmbGroup,
            (Who::Project, _) => OwnerKind::Project,
        }
    }
}

/// What one owner uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The kind of the owner.
    pub kind: OwnerKind,
    /// The number of the owner.
    pub id: u64,
    /// What is used, and the quotas, in bytes and in objects.
    pub account: Account,
}

/// What there is to ask of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Bytes used.
    Used,
    /// Quota in bytes.
    Quota,
    /// Objects used.
    ObjUsed,
    /// Quota in objects.
    ObjQuota,
}

impl Figure {
    /// All of them.
    pub const ALL: [Figure; 4] = [Figure::Used, Figure::Quota, Figure::ObjUsed, Figure::ObjQuota];

    /// The property that says it, which is a permission as well: `userused`.
    fn property(self, who: Who) -> String {
        let of = match who {
            Who::User => "user",
            Who::Group => "group",
            Who::Project => "project",
        };
        let what = match self {
            Figure::Used => "used",
            Figure::Quota => "quota",
            Figure::ObjUsed => "objused",
            Figure::ObjQuota => "objquota",
        };
        format!("{of}{what}")
    }
}

impl Session<'_> {
    /// What each owner uses of a file system or snapshot. `figures` are those that are looked at, each of which takes a permission.
    /// `None`: the file system is of a version that does not count projects.
    ///
    /// # Errors
    /// The user may not; the dataset is not a file system, or of a version that does not count; it cannot be read.
    pub fn userspace(
        &self,
        dataset: &Dataset,
        who: Who,
        figures: &[Figure],
    ) -> Result<Option<Vec<Usage>>> {
        let what = || format!("cannot get used/quota for {}", dataset.name);
        let unreadable = |e: cenote_dmu::Error| Error::doing(what(), e);
        for figure in figures {
            let property = figure.property(who);
            let operation = Operation::Userspace { name: &dataset.name, property: &property };
            self.permit(&operation).map_err(|e| Error::doing(what(), e))?;
        }
        let pool = self.pool();
        let dsl = pool.dsl();
        if dsl.kind_of_head(dataset).map_err(unreadable)? != DatasetKind::Filesystem {
            let why = "operation is only applicable to filesystems and their snapshots";
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        let usage = |(id, account)| Usage { kind: OwnerKind::of(who, id), id, account };
        match dsl.accounts(dataset, who).map_err(unreadable)? {
            Some(accounts) => Ok(Some(accounts.into_iter().map(usage).collect())),
            None if who == Who::Project => Ok(None),
            None => {
                let why = Why(ErrorKind::Unsupported, "unsupported version or feature");
                Err(Error::doing(what(), why))
            }
        }
    }
}
