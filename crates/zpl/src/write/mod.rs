//! Changing file systems and volumes.
//!
//! # Idea
//!
//! Every operation is one transaction on the live object set, or one for every 16 MiB of data, or for
//! every chunk of what is freed. An operation checks what can be wrong and changes objects in memory,
//! under the object set's lock. If anything fails on the way, the object set takes all of it back; if a
//! block must be read from a device, the operation begins again once that block is there
//! ([`cenote_dmu::live`]). So operations are written as if nothing could fail, and change nothing but
//! the object set. What is kept beside it (`After`) follows when the change is made.
//!
//! Attributes are decoded, changed and encoded again by each operation.
//!
//! | module | what |
//! |---|---|
//! | `context`, `books` | what a change works with; what it does to names, from both sides |
//! | `node` | a node's attributes: bonus buffer, spill block, layouts |
//! | `mode`, `allowed`, `cost` | permission bits; what a node lets happen to its names; what changes write at most |
//! | `new_node`, `rmnode` | nodes that are made; nodes without names, and how they are freed |
//! | `legacy` | nodes from before version 5: they stay so, or become nodes of today |
//! | `kinds` | nodes of both kinds are loaded and stored |
//! | `registry` | attributes and layouts that are registered |
//! | `names` | entries of directories |
//! | `create`, `remove`, `rename`, `setattr`, `data`, `xattr` | the operations |
//! | `clone` | ranges of files copied by cloning their blocks |
//! | `count` | objects that are not counted for their owners yet |
//! | `unlinked` | much that is freed, a chunk in each transaction |
//! | `replay` | records of intent logs |
//! | `rewrite` | blocks of files written anew as they are |
//! | `acl` | access control lists of new and changed nodes |
//! | `nfs4` | what NFSv4 lists come to |
//! | `handed_down` | NFSv4 lists that new nodes take over, and what a change of the mode makes of them |
//! | `nfs4_xattr` | NFSv4 lists that programs set |
//! | `fuid` | owners of domains |
//! | `quota` | quotas of users, groups and projects |
//! | `format` | new file systems and volumes |
//! | `volume` | contents and size of volumes |
//!
//! # Invariants
//!
//! - A node's link count is that of its entries (a directory's: 2 and its directories); a directory's
//!   size is 2 and its entries. A node without a name is in the unlinked set.
//! - A transaction that fails has changed nothing.
//! - Nothing of a file is copied to be taken back: what is written to it comes last in its transaction.
//! - Permissions are not checked here, but what the files' own flags forbid is.

mod acl;
mod allowed;
mod books;
mod clone;
mod context;
mod cost;
mod count;
mod create;
mod data;
mod format;
mod fuid;
mod handed_down;
mod kinds;
mod legacy;
mod mode;
mod names;
mod new_node;
pub(crate) mod nfs4;
mod nfs4_xattr;
mod node;
#[cfg(feature = "planted")]
mod planted;
mod quota;
mod registry;
mod remove;
mod rename;
mod replay;
mod rewrite;
mod rmnode;
mod setattr;
mod unlinked;
mod volume;
mod xattr;
mod xvattr;

pub use format::{format, format_volume, upgrade};
pub use replay::{Replayed, Supervisor, replay};
pub use rewrite::Rewrite;

use crate::fs::FileSystem;
use crate::settings::{AclInherit, AclMode, Atime, Settings};
use crate::{CaseSensitivity, Error, Result};
use ahash::HashMap;
use books::Books;
use cenote_dmu::live::Cost;
use cenote_dmu::outside::Time;
use cenote_dmu::write::OpenObjectSet;
use context::{After, Cx, NameRules};
use parking_lot::MutexGuard;

/// What kind of node to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link with its target: 1 to 4095 bytes.
    Symlink(Vec<u8>),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device: major, minor.
    CharDevice(u32, u32),
    /// A block device: major, minor.
    BlockDevice(u32, u32),
}

/// A node to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// What it is.
    pub kind: NodeKind,
    /// Permission bits as the caller asked for them; of a symbolic link always 0777.
    pub mode: u32,
    /// The caller's umask. It counts unless the directory has a default ACL.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory has the set-group-id bit and hands on its own.
    pub gid: u32,
    /// Whether the caller may make set-group-id files that others may run (it has `CAP_FSETID`, or
    /// is in the group that the file gets). Else the bit is dropped.
    pub keep_setgid: bool,
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current one.
    Now,
    /// This one.
    To(Time),
}

/// Attributes to be changed: those that are given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes of a regular file.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last modification.
    pub mtime: Option<SetTime>,
    /// Last change; it is now if not given.
    pub ctime: Option<Time>,
    /// `zp_flags`, of those that users set (see [`flags`]).
    pub flags: Option<u64>,
    /// Project.
    pub projid: Option<u32>,
    /// A change of owner or length takes away the set-user-id and set-group-id bits.
    pub clear_ids: bool,
    /// The latter also if the group may not run the file.
    pub clear_setgid: bool,
}

/// `zp_flags` that users set and see.
pub mod flags {
    /// `ZFS_IMMUTABLE`: nothing about the file may be changed (`chattr +i`).
    pub const IMMUTABLE: u64 = 0x10_0000_0000;
    /// `ZFS_NOUNLINK`: the file may not be unlinked or renamed.
    pub const NO_UNLINK: u64 = 0x20_0000_0000;
    /// `ZFS_APPENDONLY` (`chattr +a`).
    pub const APPEND_ONLY: u64 = 0x40_0000_0000;
    /// `ZFS_NODUMP` (`chattr +d`).
    pub const NO_DUMP: u64 = 0x80_0000_0000;
    /// `ZFS_PROJINHERIT`: new files in the directory get its project (`chattr +P`).
    pub const PROJECT_INHERIT: u64 = 0x0000_4000_0000_0000;
    /// The flags that [`SetAttr::flags`](super::SetAttr::flags) sets.
    pub(super) const SETTABLE: u64 =
        IMMUTABLE | APPEND_ONLY | NO_UNLINK | NO_DUMP | PROJECT_INHERIT;
}

/// User and group of the maker of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// How a rename treats what is at the new name, and what it leaves at the old one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// There must be nothing (`RENAME_NOREPLACE`).
    pub no_replace: bool,
    /// There must be something; the two change places (`RENAME_EXCHANGE`).
    pub exchange: bool,
    /// A whiteout of this owner takes the old place (`RENAME_WHITEOUT`).
    pub whiteout: Option<Owner>,
}

/// What became of a file that lost a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The object.
    pub ino: u64,
    /// Names that are left; of a directory 0.
    pub nlink: u64,
    /// It is in use without a name: it goes when [`FileSystem::release`] is called.
    pub orphan: bool,
}

/// What [`FileSystem::allocate`] does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Nothing but to make the file at least as long (plain `fallocate`).
    Extend,
    /// Nothing at all, space cannot be reserved (`FALLOC_FL_KEEP_SIZE`).
    KeepSize,
    /// Makes a hole; the length stays (`FALLOC_FL_PUNCH_HOLE`).
    PunchHole,
    /// Makes zeros, and the file at least as long (`FALLOC_FL_ZERO_RANGE`).
    Zero,
    /// Makes zeros; the length stays (`FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE`).
    ZeroKeepSize,
}

/// How an extended attribute is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetXattr {
    /// The attribute must not exist (`XATTR_CREATE`).
    pub create: bool,
    /// There must be one (`XATTR_REPLACE`).
    pub replace: bool,
    /// Setting an access ACL takes away the set-group-id bit (the caller is not in the group).
    pub clear_setgid: bool,
}

/// Properties that a file system is created with.
#[derive(Clone, Debug)]
pub struct CreateProps {
    /// ZPL version, 1 to 5.
    pub version: u64,
    /// `casesensitivity`.
    pub case: CaseSensitivity,
    /// `normalization`: flags of [`cenote_format::zap::norm`], 0: off.
    pub normalization: u64,
    /// `utf8only`.
    pub utf8_only: bool,
    /// Owner of the root directory.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its permission bits.
    pub mode: u32,
    /// Its times.
    pub time: Time,
    /// Bytes of its dnode (`dnodesize`).
    pub dnode_size: usize,
    /// Whether the pool has the feature `project_quota` enabled.
    pub project_quota: bool,
}

impl Default for CreateProps {
    fn default() -> CreateProps {
        CreateProps {
            version: 5,
            case: CaseSensitivity::Sensitive,
            normalization: 0,
            utf8_only: false,
            uid: 0,
            gid: 0,
            mode: 0o755,
            time: (0, 0),
            dnode_size: 512,
            project_quota: true,
        }
    }
}

/// Tells whether a file is in use: has handles, or the kernel knows its number.
pub type InUse<'a> = &'a dyn Fn(u64) -> bool;

impl FileSystem {
    /// Files that are in use without a name, by number; whether they may get a name.
    fn orphans(&self) -> MutexGuard<'_, HashMap<u64, bool>> {
        self.orphans.lock()
    }

    /// Makes a change in one transaction, as a whole or not at all. `f` may be called several times.
    fn change<T>(&self, cost: Cost, f: impl FnMut(&mut Cx<'_>) -> Result<T>) -> Result<T> {
        if self.settings().read_only {
            return Err(Error::ReadOnly);
        }
        self.change_if_read_only(cost, f)
    }

    /// As [`FileSystem::change`], of a file system that may be `readonly`.
    fn change_if_read_only<T>(
        &self,
        cost: Cost,
        mut f: impl FnMut(&mut Cx<'_>) -> Result<T>,
    ) -> Result<T> {
        self.change_after(cost, || Ok(()), |(), cx| f(cx))
    }

    /// As [`FileSystem::change_if_read_only`], after a look at something else
    /// ([`cenote_dmu::live::LiveObjectSet::transact_after`]).
    fn change_after<A, T>(
        &self,
        cost: Cost,
        look: impl FnMut() -> Result<A>,
        mut f: impl FnMut(&A, &mut Cx<'_>) -> Result<T>,
    ) -> Result<T> {
        let live = self.source.live().ok_or(Error::ReadOnly)?;
        let settings = self.settings();
        let Some(shared) = self.registry() else {
            return Err(Error::Unsupported(
                "a file system without a registry of attributes".into(),
            ));
        };
        let change = |seen: &A, os: &mut OpenObjectSet, txg| {
            // Before the registry, which is shown first.
            let version = self.version();
            let mut cx = Cx {
                os,
                txg,
                now: settings.clock.now(),
                registry: shared.current(),
                after: After::default(),
                books: Books::default(),
                settings: &settings,
                version,
                names: NameRules {
                    flags: self.norm_flags(),
                    case: self.case_sensitivity(),
                    utf8_only: self.utf8_only(),
                },
                quotas: self.quotas(),
                unlinked_set: self.unlinked_set(),
                keeps_unlinked: self.drain.is_suspended(),
            };
            let done = f(seen, &mut cx)?;
            cx.books.close();
            Ok((done, cx.after))
        };
        live.transact_after(cost, look, change, |(done, After { registry, orphans })| {
            if let Some(registry) = registry {
                shared.publish(registry);
            }
            if !orphans.is_empty() {
                let mut known = self.orphans();
                for (ino, orphan) in orphans {
                    match orphan {
                        Some(may_get_a_name) => known.insert(ino, may_get_a_name),
                        None => known.remove(&ino),
                    };
                }
            }
            done
        })
    }
}
