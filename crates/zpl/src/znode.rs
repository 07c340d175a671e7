//! A node of a file system: an object and its attributes, wherever they are kept.
//!
//! In ZPL versions 1 to 4 the bonus buffer is a `znode_phys_t` of fixed layout:
//!
//! ```text
//! 0   atime mtime ctime crtime (two 64-bit integers each: seconds, nanoseconds)
//! 64  gen mode size parent links xattr rdev flags uid gid (64 bits each)
//! 144 extra attributes, padding, the ACL
//! 264 the target of a short symbolic link
//! ```
//!
//! From version 5 on it holds system attributes (see [`sa`](crate::sa)), and what does not fit goes
//! to a spill block. Both kinds can occur in one file system, since an upgrade does not rewrite files;
//! the type of the bonus buffer tells them apart.
//!
//! Invariant: a [`Znode`] has a mode; every other attribute is looked up when it is asked for.

use crate::attr::Words;
use crate::bits::{S_IFDIR, S_IFMT};
use crate::sa::{Registry, TABLE, ZplAttr};
use crate::{Error, Result};
use cenote_dmu::Object;
use cenote_format::{ByteOrder, Bytes, dmu::DmuType, sa::SaHeader, sa::SaValue};
use std::cell::OnceCell;
use std::sync::Arc;

/// Bytes of a `znode_phys_t`.
const ZNODE_PHYS_SIZE: usize = 264;

/// The values found in one buffer of system attributes (`sa_idx_tab_t`).
type Located = (SaHeader, Vec<SaValue>);

/// An object with the means to read its attributes.
pub(crate) struct Znode {
    object: Object,
    body: Body,
}

enum Body {
    Legacy,
    Sa { registry: Arc<Registry>, bonus: Located, spill: OnceCell<Option<(Vec<u8>, Located)>> },
}

impl Znode {
    /// Reads the head of the attributes of `object` (`sa_handle_get`). Fails if it is not a node of a file system.
    pub(crate) fn open(object: Object, registry: Option<Arc<Registry>>) -> Result<Znode> {
        let number = object.number();
        let body = match object.dnode().bonus_kind {
            DmuType::ZNODE => Body::Legacy,
            DmuType::SA => {
                let registry = registry.ok_or_else(|| {
                    Error::Corrupt(number, "system attributes without a registry".into())
                })?;
                let bonus = registry.locate(number, &object.dnode().bonus)?;
                Body::Sa { registry, bonus, spill: OnceCell::new() }
            }
            // Other objects of the file system have no attributes: for a user there is no such file.
            _ => return Err(Error::NotFound(format!("object {number}"))),
        };
        Ok(Znode { object, body })
    }

    /// The object.
    pub(crate) fn object(&self) -> &Object {
        &self.object
    }

    /// Whether the attributes are system attributes.
    pub(crate) fn is_sa(&self) -> bool {
        matches!(self.body, Body::Sa { .. })
    }

    /// The attribute's bytes and their byte order; `None` if the node does not have it (`sa_lookup`).
    pub(crate) fn raw(&self, attr: ZplAttr) -> Result<Option<(&[u8], ByteOrder)>> {
        let number = self.object.number();
        let bonus = &self.object.dnode().bonus;
        match &self.body {
            Body::Legacy => {
                let Some((at, len)) = legacy_position(attr) else { return Ok(None) };
                let b = Bytes::new(bonus, ByteOrder::Little, "znode");
                let bytes = b.slice(at, len).map_err(Error::decode(number))?;
                Ok(Some((bytes, b.order())))
            }
            Body::Sa { registry, bonus: located, .. } => {
                let Some(id) = registry.number(attr) else { return Ok(None) };
                if let Some(bytes) = find(bonus, located, id) {
                    return Ok(Some((bytes, located.0.order)));
                }
                Ok(self.spilled()?.and_then(|(data, located)| {
                    find(data, located, id).map(|bytes| (bytes, located.0.order))
                }))
            }
        }
    }

    fn load_spill(&self, registry: &Registry) -> Result<Option<(Vec<u8>, Located)>> {
        if self.object.dnode().spill.is_none_or(|bp| bp.is_hole()) {
            return Ok(None);
        }
        let Some(block) = self.object.spill()? else { return Ok(None) };
        let data = block.data.bytes().into_owned();
        let located = registry.locate(self.object.number(), &data)?;
        Ok(Some((data, located)))
    }

    /// The spill block with the values found in it, loaded if need be.
    fn spilled(&self) -> Result<Option<&(Vec<u8>, Located)>> {
        let Body::Sa { registry, spill, .. } = &self.body else { return Ok(None) };
        if let Some(known) = spill.get() {
            return Ok(known.as_ref());
        }
        let loaded = self.load_spill(registry)?;
        Ok(spill.get_or_init(|| loaded).as_ref())
    }

    /// All attributes of one or two integers (`sa_bulk_lookup`).
    pub(crate) fn words(&self) -> Result<Words> {
        let mut words = Words::new(self.object.number());
        match &self.body {
            Body::Legacy => {
                for attr in TABLE.iter().filter_map(|(.., attr)| *attr) {
                    if let Some((bytes, order)) = self.raw(attr)? {
                        words.note(attr, bytes, order);
                    }
                }
            }
            Body::Sa { registry, bonus, .. } => {
                let in_bonus = (self.object.dnode().bonus.as_slice(), bonus);
                let spilled = self.spilled()?.map(|(data, located)| (data.as_slice(), located));
                for (data, (header, values)) in [in_bonus].into_iter().chain(spilled) {
                    for value in values {
                        let bytes = data.get(value.at..).and_then(|rest| rest.get(..value.len));
                        if let (Some(attr), Some(bytes)) = (registry.meaning(value.def.id), bytes) {
                            words.note(attr, bytes, header.order);
                        }
                    }
                }
            }
        }
        Ok(words)
    }

    /// An attribute of one integer.
    pub(crate) fn word(&self, attr: ZplAttr) -> Result<Option<u64>> {
        let Some((bytes, order)) = self.raw(attr)? else { return Ok(None) };
        let word = Bytes::new(bytes, order, "attribute").u64(0);
        Ok(Some(word.map_err(Error::decode(self.object.number()))?))
    }

    /// An attribute of one integer that every node has.
    pub(crate) fn required(&self, attr: ZplAttr) -> Result<u64> {
        self.word(attr)?.ok_or_else(|| self.missing(attr))
    }

    /// An attribute of bytes.
    pub(crate) fn bytes(&self, attr: ZplAttr) -> Result<Option<Vec<u8>>> {
        Ok(self.raw(attr)?.map(|(bytes, _)| bytes.to_vec()))
    }

    /// The `len` bytes behind a `znode_phys_t`, where short symbolic links are; `None` if the
    /// bonus buffer is too small to hold them.
    pub(crate) fn legacy_tail(&self, len: u64) -> Option<&[u8]> {
        let len = usize::try_from(len).ok()?;
        self.object.dnode().bonus.get(ZNODE_PHYS_SIZE..)?.get(..len)
    }

    /// Mode with file type.
    pub(crate) fn mode(&self) -> Result<u64> {
        self.required(ZplAttr::Mode)
    }

    /// Whether it is a directory.
    pub(crate) fn is_dir(&self) -> Result<bool> {
        Ok(self.mode()? & S_IFMT == S_IFDIR)
    }

    fn missing(&self, attr: ZplAttr) -> Error {
        Error::Corrupt(self.object.number(), format!("no attribute {attr:?}"))
    }
}

fn find<'a>(data: &'a [u8], located: &Located, id: u16) -> Option<&'a [u8]> {
    let value = located.1.iter().find(|v| v.def.id == id)?;
    data.get(value.at..)?.get(..value.len)
}

/// Offset and length of an attribute in a `znode_phys_t`.
pub(crate) fn legacy_position(attr: ZplAttr) -> Option<(usize, usize)> {
    Some(match attr {
        ZplAttr::Atime => (0, 16),
        ZplAttr::Mtime => (16, 16),
        ZplAttr::Ctime => (32, 16),
        ZplAttr::Crtime => (48, 16),
        ZplAttr::Gen => (64, 8),
        ZplAttr::Mode => (72, 8),
        ZplAttr::Size => (80, 8),
        ZplAttr::Parent => (88, 8),
        ZplAttr::Links => (96, 8),
        ZplAttr::Xattr => (104, 8),
        ZplAttr::Rdev => (112, 8),
        ZplAttr::Flags => (120, 8),
        ZplAttr::Uid => (128, 8),
        ZplAttr::Gid => (136, 8),
        ZplAttr::DaclCount
        | ZplAttr::DaclAces
        | ZplAttr::Symlink
        | ZplAttr::Dxattr
        | ZplAttr::ProjId => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets as in `znode_phys_t`: 4 times of 16 bytes, then words.
    #[test]
    fn old_attributes_are_where_the_structure_has_them() {
        let words = [
            ZplAttr::Gen,
            ZplAttr::Mode,
            ZplAttr::Size,
            ZplAttr::Parent,
            ZplAttr::Links,
            ZplAttr::Xattr,
            ZplAttr::Rdev,
            ZplAttr::Flags,
            ZplAttr::Uid,
            ZplAttr::Gid,
        ];
        for (i, attr) in words.into_iter().enumerate() {
            assert_eq!(legacy_position(attr), Some((64 + 8 * i, 8)));
        }
        for (i, attr) in [ZplAttr::Atime, ZplAttr::Mtime, ZplAttr::Ctime, ZplAttr::Crtime]
            .into_iter()
            .enumerate()
        {
            assert_eq!(legacy_position(attr), Some((16 * i, 16)));
        }
        assert_eq!(legacy_position(ZplAttr::ProjId), None);
    }
}
