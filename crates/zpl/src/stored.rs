//! Attributes as they are stored, where `stat` shows them otherwise or not at all: for `zdb`.

use crate::bits::FLAG_PROJID;
use crate::fs::FileSystem;
use crate::sa::ZplAttr;
use crate::{Error, Result};
use cenote_format::Bytes;
use cenote_format::acl::Ace;

/// Attributes in their stored form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAttrs {
    /// Owner, as a FUID: the upper 32 bits are the index of a domain.
    pub uid: u64,
    /// Group, likewise.
    pub gid: u64,
    /// Device number.
    pub rdev: Option<u64>,
    /// Hidden directory of extended attributes.
    pub xattr: Option<u64>,
    /// Project id, if the file's flags say that it has one.
    pub projid: Option<u64>,
    /// Extended attributes packed among the system attributes.
    pub packed_xattrs: Option<Vec<u8>>,
}

impl FileSystem {
    /// The entries of a file's NFSv4 ACL, which names users and groups by FUIDs; empty if it has no such list.
    ///
    /// Errors: [`Error::Corrupt`] for a list that makes no sense.
    pub fn nfs4_acl(&self, ino: u64) -> Result<Vec<Ace>> {
        let z = self.attributes(ino)?;
        let count = z.word(ZplAttr::DaclCount)?.unwrap_or(0);
        let Some((aces, order)) = z.raw(ZplAttr::DaclAces)? else { return Ok(Vec::new()) };
        Ace::decode_stored(&Bytes::new(aces, order, "NFSv4 ACL"), count).map_err(Error::decode(ino))
    }

    /// A file's attributes in their stored form.
    pub fn stored_attrs(&self, ino: u64) -> Result<StoredAttrs> {
        let z = self.attributes(ino)?;
        let has_project = z.required(ZplAttr::Flags)? & FLAG_PROJID != 0;
        Ok(StoredAttrs {
            uid: z.required(ZplAttr::Uid)?,
            gid: z.required(ZplAttr::Gid)?,
            rdev: z.word(ZplAttr::Rdev)?,
            xattr: z.word(ZplAttr::Xattr)?,
            projid: if has_project { z.word(ZplAttr::ProjId)? } else { None },
            packed_xattrs: z.bytes(ZplAttr::Dxattr)?.filter(|b| !b.is_empty()),
        })
    }
}
