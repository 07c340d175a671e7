//! Nodes from before version 5 (`znode_phys_t`). In file systems of such a version they stay so. In those that were
//! upgraded since they become system attributes with the first change (`sa_upgrade`, `zfs_sa_upgrade`).
//!
//! Behind the words of the `znode_phys_t` is the ACL (88 bytes at 176): the object that holds it if
//! it is long, its size in bytes (32 bits), version and number of entries (16 bits each), 72 bytes
//! for a short one. Lists of version 0, as nodes have them before FUIDs, have another form; a node that becomes system
//! attributes gets the list that says the same as its mode instead, which is all that Linux shows of it. A list that is given
//! to a node which stays as it is has room in it, or is refused.

use super::acl;
use super::context::Cx;
use super::node::{IN_ALL, NodeMut};
use crate::bits::{S_IFBLK, S_IFCHR, S_IFLNK, S_IFMT};
use crate::fs::FUIDS;
use crate::sa::{TABLE, ZplAttr};
use crate::znode::{Znode, legacy_position};
use crate::{Error, Result};
use cenote_format::dmu::DmuType;
use cenote_format::{ByteOrder, Bytes, invariant};

const ACL_AT: usize = 176;
const ACL_SHORT: usize = 72;
const ZNODE_SIZE: usize = 264;
/// Bytes of the bonus buffer of a dnode of 512 bytes (`DN_OLD_MAX_BONUSLEN`).
const OLD_BONUS: usize = 320;
/// `zp_flags` from before FUIDs.
const FIRST_FLAGS: u64 = 0xff;
/// Longest target of a symbolic link that is kept.
const MAX_TARGET: u64 = 4096;
/// Longest ACL that is kept.
const MAX_ACL: usize = 60 << 10;

/// The attributes of an old node, as a node of system attributes to be stored.
pub(super) fn load(cx: &mut Cx<'_>, ino: u64) -> Result<NodeMut> {
    let object = cx.os.view(ino)?;
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

/// The attributes of a node that is going to stay as old as it is. Its ACL and target are left where they are.
pub(super) fn load_as_it_is(cx: &mut Cx<'_>, ino: u64) -> Result<NodeMut> {
    let (dnode, _) = cx.os.dnode_with_spill(ino)?;
    let bonus = dnode.bonus.clone();
    let mut node = NodeMut::with_room(ino);
    let words = Bytes::new(&bonus, ByteOrder::Little, "znode");
    for (attr, at, len) in fields() {
        let value = words.slice(at, len).map_err(Error::decode(ino))?;
        node.add_bytes(cx, attr, value)?;
    }
    node.old = Some(bonus);
    Ok(node)
}

/// The attributes that a `znode_phys_t` has: where each is, and how long.
fn fields() -> impl Iterator<Item = (ZplAttr, usize, usize)> {
    let position = |attr| legacy_position(attr).map(|(at, len)| (attr, at, len));
    TABLE.iter().filter_map(|(.., attr)| *attr).filter_map(position)
}

/// Stores a node that stays as old as it is, whose bonus buffer is `bonus` so far.
pub(super) fn store(cx: &mut Cx<'_>, node: &NodeMut, mut bonus: Vec<u8>) -> Result<()> {
    let outside = encode(cx, node, &mut bonus)?;
    cx.os.set_bonus(node.ino, DmuType::ZNODE, &bonus)?;
    match outside {
        0 => Ok(()),
        object => Ok(cx.os.free(object)?),
    }
}

/// The bonus buffer of a new node, with the target of a symbolic link if it has room there (`zfs_mknode`).
pub(super) fn new_bonus(cx: &Cx<'_>, node: &NodeMut, target: Option<&[u8]>) -> Result<Vec<u8>> {
    let mut bonus = vec![0; ZNODE_SIZE];
    encode(cx, node, &mut bonus)?;
    bonus.extend_from_slice(target.filter(|target| has_room(target)).unwrap_or_default());
    let (ino, len) = (node.ino, bonus.len());
    invariant!(len <= OLD_BONUS, "object {ino} gets a bonus buffer of {len} bytes");
    Ok(bonus)
}

/// Whether the target of a symbolic link has room behind a `znode_phys_t`.
pub(super) fn has_room(target: &[u8]) -> bool {
    ZNODE_SIZE + target.len() <= OLD_BONUS
}

/// Puts attributes into a `znode_phys_t`, and the ACL if there is another one. The object that held the former ACL, which is
/// not needed any more; 0: there was no such object.
fn encode(cx: &Cx<'_>, node: &NodeMut, bonus: &mut [u8]) -> Result<u64> {
    let short = || Error::Corrupt(node.ino, "short znode".into());
    for (attr, at, len) in fields() {
        let Some(value) = node.bytes(cx, attr) else { continue };
        let place = bonus.get_mut(at..at + len).ok_or_else(short)?;
        if value.len() != len {
            return Err(Error::Corrupt(node.ino, format!("{attr:?} of {} bytes", value.len())));
        }
        match attr {
            ZplAttr::Flags if cx.version < FUIDS => {
                let flags = node.flags(cx)? & FIRST_FLAGS;
                place.copy_from_slice(&flags.to_le_bytes());
            }
            _ => place.copy_from_slice(value),
        }
    }
    let (Some(count), Some(aces)) =
        (node.word(cx, ZplAttr::DaclCount), node.bytes(cx, ZplAttr::DaclAces))
    else {
        return Ok(0);
    };
    let list = encode_list(cx.version, count, aces)?;
    let place = bonus.get_mut(ACL_AT..ZNODE_SIZE).ok_or_else(short)?;
    let outside = place.first_chunk().copied().map_or(0, u64::from_le_bytes);
    place.copy_from_slice(&list);
    Ok(outside)
}

/// An ACL as nodes have it (`zfs_acl_phys_t`). Before FUIDs its entries had another form (`zfs_oldace_t`), and their number
/// the place of the size.
///
/// Errors: it has no room in the node.
fn encode_list(version: u64, count: u64, aces: &[u8]) -> Result<Vec<u8>> {
    let (kind, entries) = match version >= FUIDS {
        true => (1u16, aces.to_vec()),
        false => (0, old_entries(count, aces).unwrap_or_default()),
    };
    if entries.is_empty() || entries.len() > ACL_SHORT {
        return Err(Error::Unsupported(format!(
            "an ACL of {count} entries in a file system of version {version}"
        )));
    }
    let (size, number) = match version >= FUIDS {
        true => (entries.len() as u32, count as u16),
        false => (count as u32, 0),
    };
    let mut list = vec![0; 8];
    list.extend(size.to_le_bytes());
    list.extend(kind.to_le_bytes());
    list.extend(number.to_le_bytes());
    list.extend(entries);
    list.resize(ZNODE_SIZE - ACL_AT, 0);
    Ok(list)
}

/// Entries without ids, in the form from before FUIDs: id, permissions, flags, type.
fn old_entries(count: u64, aces: &[u8]) -> Option<Vec<u8>> {
    const NO_ID: u32 = u32::MAX;
    if aces.len() as u64 != count.checked_mul(8)? {
        return None;
    }
    let mut out = Vec::new();
    for ace in aces.chunks_exact(8) {
        let (kind, rest) = ace.split_at_checked(2)?;
        let (flags, mask) = rest.split_at_checked(2)?;
        out.extend(NO_ID.to_le_bytes());
        [mask, flags, kind].into_iter().for_each(|part| out.extend_from_slice(part));
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_the_form_of_their_version() {
        let (count, aces) = acl::trivial(0o100_644);
        let new = encode_list(4, count, &aces).unwrap();
        assert_eq!(new.len(), 88);
        assert_eq!(new[..16], [0, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0, 0, 1, 0, 3, 0]);
        assert_eq!(new[16..40], aces);
        let old = encode_list(2, count, &aces).unwrap();
        assert_eq!(old[8..16], [3, 0, 0, 0, 0, 0, 0, 0]);
        let entry = [0xff, 0xff, 0xff, 0xff, 0x9f, 0x01, 0x1e, 0, 0, 0x10, 0, 0];
        assert_eq!(old[16..28], entry);
        // As many as a mode takes have room in both.
        for mode in 0..0o1000 {
            for version in 1..=4 {
                let (count, aces) = acl::trivial(0o100_000 | mode);
                assert_eq!(encode_list(version, count, &aces).unwrap().len(), 88);
            }
        }
        assert!(encode_list(4, 10, &[0; 80]).is_err());
        assert!(encode_list(1, 7, &[0; 56]).is_err());
    }
}
