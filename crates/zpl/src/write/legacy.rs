//! Nodes from before version 5, in file systems that were upgraded since: they become system
//! attributes with the first change.
//!
//! Behind the words of the `znode_phys_t` is the ACL (88 bytes at 176): the object that holds it if
//! it is long, its size in bytes (32 bits), version and number of entries (16 bits each), 72 bytes
//! for a short one. Lists of version 0 have another form; the node gets the list that says the same
//! as its mode instead, which is all that Linux shows of it.

use super::acl;
use super::context::Cx;
use super::node::{IN_ALL, NodeMut};
use crate::sa::ZplAttr;
use crate::znode::{S_IFBLK, S_IFCHR, S_IFLNK, S_IFMT, Znode};
use crate::{Error, Result};
use cenote_format::{ByteOrder, Bytes};

const ACL_AT: usize = 176;
const ACL_SHORT: usize = 72;
const ZNODE_SIZE: usize = 264;
/// Longest target of a symbolic link that is kept.
const MAX_TARGET: u64 = 4096;
/// Longest ACL that is kept.
const MAX_ACL: usize = 60 << 10;

/// The attributes of an old node, as a node of system attributes to be stored.
pub(super) fn load(cx: &mut Cx<'_>, ino: u64) -> Result<NodeMut> {
    let object = cx.os.view(ino)?;
    if object.order() != ByteOrder::Little {
        return Err(Error::Unsupported(format!("changing big-endian object {ino}")));
    }
    let old = Znode::open(object, None)?;
    let mut node = NodeMut::empty(ino);
    let project = cx.settings.project_quota;
    for attr in IN_ALL {
        let value = old.bytes(attr)?.unwrap_or_default();
        node.set_bytes(cx, attr, &value)?;
    }
    if project {
        node.set_project(cx, 0)?;
    }
    let mode = old.mode()?;
    if matches!(mode & S_IFMT, S_IFBLK | S_IFCHR) {
        node.set(cx, ZplAttr::Rdev, &[old.required(ZplAttr::Rdev)?])?;
    }
    let (count, aces) = match list(cx, &old, &mut node)? {
        Some(list) => list,
        None => acl::trivial(mode),
    };
    node.set(cx, ZplAttr::DaclCount, &[count])?;
    node.set_bytes(cx, ZplAttr::DaclAces, &aces)?;
    if let Some(dir) = old.word(ZplAttr::Xattr)?.filter(|dir| *dir != 0) {
        node.set(cx, ZplAttr::Xattr, &[dir])?;
    }
    if mode & S_IFMT == S_IFLNK {
        let target = target(&old)?;
        node.set_bytes(cx, ZplAttr::Symlink, &target)?;
        node.clear_data = true;
    }
    Ok(node)
}

/// The ACL: number of entries, and the entries.
fn list(cx: &mut Cx<'_>, old: &Znode, node: &mut NodeMut) -> Result<Option<(u64, Vec<u8>)>> {
    let bonus = &old.object().dnode().bonus;
    let b = Bytes::new(bonus, ByteOrder::Little, "znode ACL").sub(
        ACL_AT,
        ZNODE_SIZE - ACL_AT,
        "znode ACL",
    );
    let b = b.map_err(Error::decode(node.ino))?;
    let field = |e| Error::decode(node.ino)(e);
    let (object, size) = (b.u64(0).map_err(field)?, b.u32(8).map_err(field)? as usize);
    let (version, count) = (b.u16(12).map_err(field)?, b.u16(14).map_err(field)?);
    node.also_free = Some(object).filter(|o| *o != 0);
    if version != 1 || count == 0 {
        return Ok(None);
    }
    let entries = match node.also_free {
        None if size <= ACL_SHORT => b.slice(16, size).map_err(field)?.to_vec(),
        Some(object) if size <= MAX_ACL => {
            let mut entries = vec![0; size];
            cx.os.read(object, 0, &mut entries)?;
            entries
        }
        _ => return Ok(None),
    };
    Ok(Some((count.into(), entries)))
}

fn target(old: &Znode) -> Result<Vec<u8>> {
    let size = old.required(ZplAttr::Size)?;
    if let Some(target) = old.legacy_tail(size) {
        return Ok(target.to_vec());
    }
    if size > MAX_TARGET {
        let why = format!("symbolic link of {size} bytes");
        return Err(Error::Corrupt(old.object().number(), why));
    }
    let mut target = vec![0; size as usize];
    old.object().read(0, &mut target)?;
    Ok(target)
}
