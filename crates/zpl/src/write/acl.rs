//! Access control lists of nodes that are created and changed.
//!
//! OpenZFS gives each node an NFSv4 list, on Linux as well, where the kernel does not look at it: the *trivial*
//! one that says the same as the mode. Its entries have no id, so they are 8 bytes: type (16 bits;
//! 0 allow, 1 deny), flags (16 bits: whom it is about), permissions (32 bits). The owner's, the
//! group's and everyone's entry allow what the mode allows. Where the mode gives less to the owner
//! than to others, or less to the group than to everyone, entries before them deny the difference.
//! A list that says more ([`super::nfs4`]) is handed down, and changed with the mode ([`super::handed_down`]).
//!
//! POSIX lists are extended attributes. What is done with them here is what Linux does for file
//! systems that leave it to the kernel: the mode follows the access list, the access list follows the
//! mode, new files get their lists from the default list of the directory.

use crate::{Error, Result};
use cenote_format::{ByteOrder, Bytes, invariant};

/// `zp_flags`: the list says the same as the mode (`ZFS_ACL_TRIVIAL`).
pub(crate) const FLAG_TRIVIAL: u64 = 0x4;
/// `zp_flags` of new directories (`ZFS_ACL_AUTO_INHERIT`).
pub(super) const FLAG_AUTO_INHERIT: u64 = 0x40;
/// `zp_flags`: everyone may execute it (`ZFS_NO_EXECS_DENIED`).
pub(super) const FLAG_NO_EXECS_DENIED: u64 = 0x100;
/// `zp_flags` that a new list sets: a list to hand down, trivial, object entries.
const LIST_FLAGS: u64 = 0x2 | FLAG_TRIVIAL | 0x8 | FLAG_NO_EXECS_DENIED;

const S_IFMT: u64 = 0o170_000;
const S_IFDIR: u64 = 0o040_000;

const READ_DATA: u32 = 0x1;
const WRITE_DATA: u32 = 0x2 | 0x4;
const EXECUTE: u32 = 0x20;
const DELETE_CHILD: u32 = 0x40;
/// Reading attributes, named attributes and the list; synchronizing.
const EVERYONE_MAY: u32 = 0x8 | 0x80 | 0x2_0000 | 0x10_0000;
/// Writing them, and changing the owner.
const OWNER_MAY: u32 = EVERYONE_MAY | 0x10 | 0x100 | 0x4_0000 | 0x8_0000;

const ALLOW: u16 = 0;
const DENY: u16 = 1;
const OWNER: u16 = 0x1000;
const GROUP: u16 = 0x2000 | 0x40;
const EVERYONE: u16 = 0x4000;

/// The list that says the same as `mode` (`acl_trivial_access_masks`): number of entries, and the entries.
pub(super) fn trivial(mode: u64) -> (u64, Vec<u8>) {
    let write = if mode & S_IFMT == S_IFDIR { WRITE_DATA | DELETE_CHILD } else { WRITE_DATA };
    // Permissions of three bits of the mode.
    let mask = |bits: u64| {
        let bit = |b: u64, mask: u32| if bits & b != 0 { mask } else { 0 };
        bit(4, READ_DATA) | bit(2, write) | bit(1, EXECUTE)
    };
    let (owner, group, other) = (mode >> 6 & 7, mode >> 3 & 7, mode & 7);
    let first = [
        (mask(owner & !group & other), ALLOW, OWNER),
        (mask(!owner & (group | other)), DENY, OWNER),
        (mask(!group & other), DENY, GROUP),
    ];
    let always = [
        (mask(owner) | OWNER_MAY, ALLOW, OWNER),
        (mask(group) | EVERYONE_MAY, ALLOW, GROUP),
        (mask(other) | EVERYONE_MAY, ALLOW, EVERYONE),
    ];
    let entries = first.into_iter().filter(|(mask, ..)| *mask != 0).chain(always);
    let (mut count, mut out) = (0, Vec::with_capacity(48));
    for (mask, kind, whom) in entries {
        out.extend(kind.to_le_bytes());
        out.extend(whom.to_le_bytes());
        out.extend(mask.to_le_bytes());
        count += 1;
    }
    (count, out)
}

/// `flags` of a node that gets the trivial list of `mode`.
pub(super) fn flags_for(flags: u64, mode: u64) -> u64 {
    let execs = if mode & 0o111 == 0o111 { FLAG_NO_EXECS_DENIED } else { 0 };
    flags & !LIST_FLAGS | FLAG_TRIVIAL | execs
}

/// An entry of a POSIX list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP_TAG: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// A POSIX list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PosixAcl(Vec<Entry>);

impl PosixAcl {
    /// Decodes the value of an extended attribute; `None` for a list without entries. Errors:
    /// [`Error::Invalid`] if it is not a list, or not one that makes sense: entries out of order, an
    /// entry that must be there missing, users or groups named without a mask.
    pub(super) fn decode(value: &[u8]) -> Result<Option<PosixAcl>> {
        let bad = || Error::Invalid("POSIX ACL".into());
        let Some(value) = crate::acl::check(0, value.to_vec()).map_err(|_| bad())? else {
            return Ok(None);
        };
        let b = Bytes::new(&value, ByteOrder::Little, "POSIX ACL");
        let entry = |at| Ok(Entry { tag: b.u16(at)?, perm: b.u16(at + 2)?, id: b.u32(at + 4)? });
        let entries: Vec<Entry> = (4..value.len())
            .step_by(8)
            .map(entry)
            .collect::<cenote_format::Result<_>>()
            .map_err(|_| bad())?;
        if entries.iter().any(|e| e.perm & !7 != 0) || !ordered(&entries) {
            return Err(bad());
        }
        Ok(Some(PosixAcl(entries)))
    }

    /// The value of the extended attribute.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = 2u32.to_le_bytes().to_vec();
        for e in &self.0 {
            out.extend(e.tag.to_le_bytes());
            out.extend(e.perm.to_le_bytes());
            out.extend(e.id.to_le_bytes());
        }
        out
    }

    /// Whether it says more than a mode can.
    pub(super) fn says_more(&self) -> bool {
        self.0.iter().any(|e| matches!(e.tag, USER | GROUP_TAG | MASK))
    }

    fn tag(&self, tag: u16) -> Option<u64> {
        self.0.iter().find(|e| e.tag == tag).map(|e| e.perm.into())
    }

    fn tag_mut(&mut self, tag: u16) -> Option<&mut Entry> {
        self.0.iter_mut().find(|e| e.tag == tag)
    }

    /// The permission bits of an access list: the group's are the mask's if there is one.
    pub(super) fn mode(&self) -> u64 {
        let of = |tag| self.tag(tag).unwrap_or(0);
        let group = self.tag(MASK).unwrap_or(of(GROUP_OBJ));
        let mode = of(USER_OBJ) << 6 | group << 3 | of(OTHER);
        invariant!(mode <= 0o777, "an access list allows {mode:o}");
        mode
    }

    /// Makes an access list follow a new mode (`zpl_chmod_acl`).
    pub(super) fn set_mode(&mut self, mode: u64) {
        let group = if self.tag(MASK).is_some() { MASK } else { GROUP_OBJ };
        for (tag, shift) in [(USER_OBJ, 6), (group, 3), (OTHER, 0)] {
            if let Some(entry) = self.tag_mut(tag) {
                entry.perm = (mode >> shift & 7) as u16;
            }
        }
    }

    /// Makes a default list the access list of a new node that was asked for with `mode`: both allow
    /// what each allows. Returns the permission bits.
    pub(super) fn inherit(&mut self, mode: u64) -> u64 {
        let common = self.mode() & mode;
        self.set_mode(common);
        common
    }
}

/// Owner, users, group, groups, mask, others. Users and groups may come as they like, as with other file
/// systems: the first entry for one counts.
fn ordered(entries: &[Entry]) -> bool {
    let count = |tag| entries.iter().filter(|e| e.tag == tag).count();
    let named = count(USER) + count(GROUP_TAG);
    let once = [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|tag| count(*tag) == 1);
    let masks = count(MASK);
    let order = entries.is_sorted_by_key(|e| e.tag);
    once && order && masks <= 1 && (named == 0 || masks == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> PosixAcl {
        PosixAcl(entries.iter().map(|&(tag, perm, id)| Entry { tag, perm, id }).collect())
    }

    #[test]
    fn trivial_lists() {
        // What OpenZFS writes for 0644, 0755 directories and a mode that denies.
        let masks = |mode| {
            let (count, bytes) = trivial(mode);
            assert_eq!(count * 8, bytes.len() as u64);
            bytes
                .chunks(8)
                .map(|c| {
                    (
                        u16::from_le_bytes([c[0], c[1]]),
                        u16::from_le_bytes([c[2], c[3]]),
                        u32::from_le_bytes([c[4], c[5], c[6], c[7]]),
                    )
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(
            masks(0o100_644),
            [(0, 0x1000, 0x1e_019f), (0, 0x2040, 0x12_0089), (0, 0x4000, 0x12_0089)]
        );
        assert_eq!(
            masks(0o040_755),
            [(0, 0x1000, 0x1e_01ff), (0, 0x2040, 0x12_00a9), (0, 0x4000, 0x12_00a9)]
        );
        assert_eq!(masks(0o100_604)[..2], [(0, 0x1000, 0x1), (1, 0x2040, 0x1)]);
        assert_eq!(masks(0o100_077)[0], (1, 0x1000, 0x27));
    }

    #[test]
    fn posix_lists() {
        let good = list(&[(1, 7, !0), (2, 5, 3), (2, 4, 9), (4, 5, !0), (16, 7, !0), (32, 1, !0)]);
        assert_eq!(PosixAcl::decode(&good.encode()).unwrap(), Some(good.clone()));
        assert!(good.says_more());
        assert_eq!(good.mode(), 0o771);
        let mut inherited = good.clone();
        assert_eq!(inherited.inherit(0o640), 0o640);
        assert_eq!(inherited.tag(MASK), Some(4));
        assert_eq!(PosixAcl::decode(&list(&[]).encode()).unwrap(), None);
        let users =
            [(1, 7, !0), (2, 5, 9), (2, 4, 3), (2, 1, 3), (4, 5, !0), (16, 7, !0), (32, 1, !0)];
        assert_eq!(PosixAcl::decode(&list(&users).encode()).unwrap(), Some(list(&users)));
        for bad in [
            list(&[(1, 7, !0), (4, 5, !0)]),
            list(&[(1, 7, !0), (2, 5, 3), (4, 5, !0), (32, 1, !0)]),
            list(&[(1, 7, !0), (4, 5, !0), (2, 4, 3), (16, 7, !0), (32, 1, !0)]),
            list(&[(4, 5, !0), (1, 7, !0), (32, 1, !0)]),
            list(&[(1, 9, !0), (4, 5, !0), (32, 1, !0)]),
        ] {
            assert!(PosixAcl::decode(&bad.encode()).is_err(), "{bad:?}");
        }
    }
}
