//! Properties of a dataset that say how its files are shown and changed, as far as they can change while it is open.

use crate::{Error, Result};
use cenote_dmu::outside::Clock;
use cenote_dmu::tunables::{DIO_ENABLED, DIO_STRICT};
use cenote_format::dmu::DNODE_SLOT;
use cenote_store::Caching;

/// Which extended attributes are shown: follows the properties of the dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visibility {
    /// `xattr` is not `off`: the `user` namespace is there.
    pub xattr: bool,
    /// `acltype` is `posix`: POSIX ACLs are there.
    pub posix_acl: bool,
    /// `acltype` is `nfsv4`: NFSv4 ACLs are shown, and can be set.
    pub nfs4_acl: bool,
}

impl Default for Visibility {
    /// Everything that is stored as an extended attribute.
    fn default() -> Visibility {
        Visibility { xattr: true, posix_acl: true, nfs4_acl: false }
    }
}

/// When reading a file changes its access time: the properties `atime` and `relatime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    /// Never.
    Off,
    /// If it is older than the last change, or than a day.
    Relative,
    /// Always.
    On,
}

/// Which requests pass by the ARC (`direct`, `zfs_direct_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// None.
    Disabled,
    /// Those that ask for it (`O_DIRECT`) and are aligned.
    #[default]
    Standard,
    /// All that are aligned.
    Always,
}

/// What an aligned request begins at, and a multiple of which it has.
const DIRECT_UNIT: u64 = 4096;

impl DirectIo {
    /// Whether a request of `len` bytes passes by the ARC, which asks for that or not.
    ///
    /// # Errors
    /// It asks for that, and is not aligned as it must be (`zfs_dio_strict`).
    pub fn takes(self, asked: bool, offset: u64, len: u64) -> Result<bool> {
        let wanted = match self {
            DirectIo::Disabled => false,
            DirectIo::Standard => asked,
            DirectIo::Always => true,
        };
        if !wanted || !DIO_ENABLED.is_on() {
            return Ok(false);
        }
        let aligned = len > 0 && (offset | len).is_multiple_of(DIRECT_UNIT);
        if !aligned && asked && DIO_STRICT.is_on() {
            return Err(Error::Invalid(format!("direct request of {len} bytes at {offset}")));
        }
        Ok(aligned)
    }
}

/// Properties of the dataset that can change while the file system is open.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which extended attributes are shown and may be changed (`xattr`, `acltype`).
    pub visibility: Visibility,
    /// What new files take over of an NFSv4 list (`aclinherit`).
    pub acl_inherit: AclInherit,
    /// What `chmod` does to an NFSv4 list (`aclmode`).
    pub acl_mode: AclMode,
    /// `xattr=sa`: new extended attributes go among the system attributes.
    pub xattr_sa: bool,
    /// `atime`, `relatime`.
    pub atime: Atime,
    /// Whether directories have access times (the mount options `diratime`, `nodiratime`).
    pub directory_atime: bool,
    /// Bytes of the dnode of a new file (`dnodesize`; `legacy` is 512, `auto` 1024).
    pub dnode_size: usize,
    /// Largest block of a new file in bytes (`recordsize`).
    pub record_size: u64,
    /// Whether the pool has the feature `project_quota` enabled: new files have a project id.
    pub project_quota: bool,
    /// Names of more than 255 bytes may be given, up to 1023 (`longname`).
    pub long_names: bool,
    /// Directories may be micro ZAPs of more than 128 KiB: the pool has the feature `large_microzap` enabled.
    pub large_microzap: bool,
    /// Nothing may be changed (`readonly`).
    pub read_only: bool,
    /// What of the file system's blocks the ARC keeps (`primarycache`).
    pub cache: Caching,
    /// Which requests pass by the ARC (`direct`).
    pub direct: DirectIo,
    /// Where times come from.
    pub clock: Clock,
}

impl Default for Settings {
    /// The defaults of the properties, everything visible.
    fn default() -> Settings {
        Settings {
            visibility: Visibility::default(),
            acl_inherit: AclInherit::default(),
            acl_mode: AclMode::default(),
            xattr_sa: true,
            atime: Atime::On,
            directory_atime: true,
            dnode_size: 512,
            record_size: 128 << 10,
            project_quota: true,
            long_names: false,
            large_microzap: false,
            read_only: false,
            cache: Caching::default(),
            direct: DirectIo::Standard,
            clock: Clock::default(),
        }
    }
}

impl Settings {
    /// The same for a file system with, or without system attributes: what it has no place for is off.
    pub(crate) fn within(self, system_attributes: bool) -> Settings {
        if system_attributes {
            return self;
        }
        Settings { xattr_sa: false, project_quota: false, dnode_size: DNODE_SLOT, ..self }
    }
}

/// Which entries of its directory's NFSv4 list a new file takes over (`aclinherit`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AclInherit {
    /// None.
    Discard,
    /// Those that deny.
    NoAllow,
    /// All, without the permissions to change the list and the owner.
    #[default]
    Restricted,
    /// All as they are; the mode follows them.
    Passthrough,
    /// As [`AclInherit::Passthrough`]; to execute a file only if its creator asked for that.
    PassthroughX,
}

/// What `chmod` does to an NFSv4 list (`aclmode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AclMode {
    /// The mode takes its place.
    #[default]
    Discard,
    /// Entries allow no more than the mode allows the group.
    GroupMask,
    /// Entries for users and groups, and those that are handed down, stay.
    Passthrough,
    /// It is refused where a list says more than the mode.
    Restricted,
}
