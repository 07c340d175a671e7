//! NFSv4 lists that say more than a mode: what they come to (`zfs_aclset_common`, `zfs_mode_compute`,
//! `ace_trivial_common`).
//!
//! The kernel looks at nothing of such a list but the mode, which follows it: for each permission the first entry about
//! the owner, the owning group or everyone decides. What only some entries say is noted in `zp_flags`.

pub(crate) use super::acl::FLAG_TRIVIAL;
use super::acl::{FLAG_AUTO_INHERIT, FLAG_NO_EXECS_DENIED};
use super::context::Cx;
use super::node::NodeMut;
use crate::bits::{S_IFDIR, S_IFMT};
use crate::sa::ZplAttr;
use crate::{Error, Result};
use cenote_format::acl::{Ace, flag, kind};
use cenote_format::invariant::broken;
use cenote_format::{ByteOrder, Bytes};

/// `zp_flags`: the list has entries to hand down (`ZFS_INHERIT_ACE`).
pub(super) const FLAG_INHERIT: u64 = 0x2;
/// `zp_flags`: entries with types of objects (`ZFS_ACL_OBJ_ACE`).
const FLAG_OBJECTS: u64 = 0x8;
/// `zp_flags` of the whole list (`ZFS_ACL_PROTECTED`, `ZFS_ACL_DEFAULTED`).
const FLAG_PROTECTED: u64 = 0x10;
const FLAG_DEFAULTED: u64 = 0x20;
/// Flags of the whole list that its setter may choose (`V4_ACL_WIDE_FLAGS`).
const CHOSEN: u64 = FLAG_AUTO_INHERIT | FLAG_PROTECTED | FLAG_DEFAULTED;
/// All that are replaced with the list (`ZFS_ACL_WIDE_FLAGS`).
const REPLACED: u64 = CHOSEN | FLAG_TRIVIAL | FLAG_INHERIT | FLAG_OBJECTS;

/// Flags of a whole list in records (`ACL_AUTO_INHERIT`, `ACL_PROTECTED`, `ACL_DEFAULTED`), and in `zp_flags`.
pub(crate) const IN_RECORDS: [(u64, u64); 3] =
    [(0x1, FLAG_AUTO_INHERIT), (0x2, FLAG_PROTECTED), (0x4, FLAG_DEFAULTED)];

/// Permissions (`ACE_*`).
const READ_DATA: u32 = 0x1;
const WRITE_DATA: u32 = 0x2;
const WRITE_NAMED_ATTRS: u32 = 0x10;
pub(super) const EXECUTE: u32 = 0x20;
const DELETE_CHILD: u32 = 0x40;
const READ_ATTRIBUTES: u32 = 0x80;
const WRITE_ATTRIBUTES: u32 = 0x100;
const DELETE: u32 = 0x1_0000;
const READ_ACL: u32 = 0x2_0000;
pub(super) const WRITE_ACL: u32 = 0x4_0000;
pub(super) const WRITE_OWNER: u32 = 0x8_0000;

const S_IXALL: u64 = 0o111;

/// A list that a node gets.
pub(super) struct List {
    /// The entries; those whom they name are FUIDs.
    pub(super) entries: Vec<Ace>,
    /// Flags of the whole, as records have them; `None`: the node's stay.
    pub(super) flags: Option<u64>,
}

impl List {
    /// Whether the list may be (`zfs_ace_valid`).
    ///
    /// Errors: [`Error::Invalid`] for an empty list, and for entries that say how they are inherited and not by what.
    pub(super) fn check(&self) -> Result<()> {
        if self.entries.is_empty() {
            return Err(Error::Invalid("an NFSv4 ACL without entries".into()));
        }
        let how = flag::INHERIT_ONLY | flag::NO_PROPAGATE_INHERIT;
        let by = flag::FILE_INHERIT | flag::DIRECTORY_INHERIT;
        match self.entries.iter().find(|ace| ace.flags & how != 0 && ace.flags & by == 0) {
            Some(ace) => Err(Error::Invalid(format!("an NFSv4 entry of flags {:#x}", ace.flags))),
            None => Ok(()),
        }
    }

    /// `zp_flags` of a node, which were `old`, with this list.
    pub(super) fn flags(&self, old: u64, is_dir: bool) -> u64 {
        let chosen = match self.flags {
            None => old & CHOSEN,
            Some(flags) => {
                let set = IN_RECORDS.into_iter().filter(|(bit, _)| flags & bit != 0);
                set.fold(0, |all, (_, flag)| all | flag)
            }
        };
        let by = flag::FILE_INHERIT | flag::DIRECTORY_INHERIT;
        let inherits = is_dir && self.entries.iter().any(|ace| ace.flags & by != 0);
        let objects = self.entries.iter().any(|ace| ace.objects.is_some());
        let seen = [
            (inherits, FLAG_INHERIT),
            (objects, FLAG_OBJECTS),
            (is_trivial(&self.entries), FLAG_TRIVIAL),
        ];
        let seen = seen.into_iter().filter(|(is, _)| *is).fold(0, |all, (_, flag)| all | flag);
        old & !REPLACED | chosen | seen
    }

    /// Gives a node a list that others wrote.
    pub(super) fn give(&self, cx: &mut Cx<'_>, node: &mut NodeMut) -> Result<()> {
        self.check()?;
        let mode = node.mode(cx)?;
        self.put(cx, node, mode).map(drop)
    }

    /// Puts it to a node that is to have the mode `asked`; the mode that it gets.
    pub(super) fn put(&self, cx: &mut Cx<'_>, node: &mut NodeMut, asked: u64) -> Result<u64> {
        let owners = (node.required(cx, ZplAttr::Uid)?, node.required(cx, ZplAttr::Gid)?);
        let (mode, flags) = self.comes_to(asked, node.flags(cx)?, owners);
        node.set(cx, ZplAttr::Mode, &[mode])?;
        node.set(cx, ZplAttr::Flags, &[flags])?;
        node.set(cx, ZplAttr::DaclCount, &[self.entries.len() as u64])?;
        node.set_bytes(cx, ZplAttr::DaclAces, &self.stored())?;
        Ok(mode)
    }

    /// The entries as they are stored.
    pub(super) fn stored(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.entries.iter().for_each(|ace| ace.append_stored(&mut bytes));
        bytes
    }

    /// Mode and `zp_flags` of a node with this list, which has the mode `asked` and the flags `old` so far.
    pub(super) fn comes_to(&self, asked: u64, old: u64, owners: (u64, u64)) -> (u64, u64) {
        let (mode, everyone_runs) = mode(&self.entries, asked, owners);
        let flags = self.flags(old, mode & S_IFMT == S_IFDIR) & !FLAG_NO_EXECS_DENIED;
        (mode, if everyone_runs { flags | FLAG_NO_EXECS_DENIED } else { flags })
    }
}

/// The list that says the same as `mode`.
pub(crate) fn of_mode(mode: u64) -> Vec<Ace> {
    let (count, bytes) = super::acl::trivial(mode);
    let list = Ace::decode_stored(&Bytes::new(&bytes, ByteOrder::Little, "list of a mode"), count);
    list.unwrap_or_else(|e| broken(format_args!("the list of mode {mode:o}: {e}")))
}

/// The entries of a node (`zfs_acl_node_read`).
///
/// Errors: a list that makes no sense.
pub(super) fn of_node(cx: &Cx<'_>, node: &NodeMut) -> Result<Vec<Ace>> {
    let (Some(count), Some(bytes)) =
        (node.word(cx, ZplAttr::DaclCount), node.bytes(cx, ZplAttr::DaclAces))
    else {
        return Ok(of_mode(node.mode(cx)?));
    };
    let b = Bytes::new(bytes, ByteOrder::Little, "NFSv4 ACL");
    Ace::decode_stored(&b, count).map_err(Error::decode(node.ino))
}

/// The entries of a node that make sense; without a list, the entries of its mode.
pub(super) fn known_of_node(cx: &Cx<'_>, node: &NodeMut) -> Result<Vec<Ace>> {
    let (Some(count), Some(bytes)) =
        (node.word(cx, ZplAttr::DaclCount), node.bytes(cx, ZplAttr::DaclAces))
    else {
        return Ok(of_mode(node.mode(cx)?));
    };
    Ok(Ace::decode_known(&Bytes::new(bytes, ByteOrder::Little, "NFSv4 ACL"), count))
}

/// The mode of a node follows its list, whose entries may name the new owner or group (`zfs_acl_chown_setattr`).
pub(super) fn follow_owner(cx: &mut Cx<'_>, node: &mut NodeMut) -> Result<()> {
    let flags = node.flags(cx)?;
    if cx.settings.visibility.posix_acl || flags & FLAG_TRIVIAL != 0 || cx.has_old_nodes() {
        return Ok(());
    }
    let list = List { entries: known_of_node(cx, node)?, flags: None };
    if list.entries.is_empty() {
        return Ok(());
    }
    let owners = (node.required(cx, ZplAttr::Uid)?, node.required(cx, ZplAttr::Gid)?);
    let (mode, everyone_runs) = mode(&list.entries, node.mode(cx)?, owners);
    let runs = if everyone_runs { FLAG_NO_EXECS_DENIED } else { 0 };
    node.set(cx, ZplAttr::Mode, &[mode])?;
    node.set(cx, ZplAttr::Flags, &[flags & !FLAG_NO_EXECS_DENIED | runs])
}

/// The mode `old` with the permissions that a list gives where owner and group are `owners`, and whether no user
/// is denied to execute (`zfs_mode_compute`).
fn mode(list: &[Ace], old: u64, owners: (u64, u64)) -> (u64, bool) {
    let (mut mode, mut seen, mut denied) = (old & !0o777, 0, false);
    for ace in list.iter().filter(|ace| ace.flags & flag::INHERIT_ONLY == 0) {
        // Which of the three groups of bits the entry is about, as their lowest bits.
        let whom = match (ace.about(), ace.who) {
            (flag::OWNER, _) => 0o100,
            (0, who) if who == Some(owners.0) => 0o100,
            (flag::OWNING_GROUP, _) => 0o010,
            (flag::IDENTIFIER_GROUP, who) if who == Some(owners.1) => 0o010,
            (flag::EVERYONE, _) => 0o111,
            _ => {
                denied |= ace.mask & EXECUTE != 0 && ace.kind == kind::DENIED;
                continue;
            }
        };
        for (permission, bit) in [(READ_DATA, 4), (WRITE_DATA, 2), (EXECUTE, 1)] {
            if ace.mask & permission != 0 {
                let new = (whom * bit) & !seen;
                seen |= new;
                mode |= if ace.kind == kind::ALLOWED { new } else { 0 };
            }
        }
    }
    (mode, !denied && mode & S_IXALL == S_IXALL)
}

/// Whether a list says no more than a mode can (`ace_trivial_common`).
fn is_trivial(list: &[Ace]) -> bool {
    let inherited = flag::FILE_INHERIT
        | flag::DIRECTORY_INHERIT
        | flag::NO_PROPAGATE_INHERIT
        | flag::INHERIT_ONLY;
    let owner_only = WRITE_OWNER | WRITE_ACL | WRITE_ATTRIBUTES | WRITE_NAMED_ATTRS;
    list.iter().all(|ace| {
        let has = |mask: u32| ace.mask & mask != 0;
        let for_owner = ace.flags & flag::OWNER != 0;
        matches!(ace.about(), flag::OWNER | flag::OWNING_GROUP | flag::EVERYONE)
            && ace.flags & inherited == 0
            && !(ace.kind == kind::DENIED && has(READ_ACL | READ_ATTRIBUTES))
            && !has(DELETE)
            && (!has(DELETE_CHILD) || has(WRITE_DATA))
            && !(ace.kind == kind::ALLOWED && !for_owner && has(owner_only))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ace(kind: u16, flags: u16, mask: u32, who: u64) -> Ace {
        let names =
            !matches!(flags & flag::ABOUT, flag::OWNER | flag::OWNING_GROUP | flag::EVERYONE);
        Ace { kind, flags, mask, who: Some(who).filter(|_| names), objects: None }
    }

    /// The list that stands for a mode gives that mode, and is found to say no more.
    #[test]
    fn a_trivial_list_gives_its_mode() {
        for mode in (0..0o1000).flat_map(|bits| [0o100_000 | bits, 0o043_000 | bits]) {
            let (count, bytes) = super::super::acl::trivial(mode);
            let b = Bytes::new(&bytes, ByteOrder::Little, "t");
            let entries = Ace::decode_stored(&b, count).unwrap_or_default();
            assert_eq!(entries.len() as u64, count);
            assert_eq!(super::mode(&entries, mode & !0o777, (1, 2)), (mode, mode & 0o111 == 0o111));
            assert!(is_trivial(&entries), "{mode:o}");
            let flags = List { entries, flags: None }.flags(FLAG_INHERIT | 0x1, false);
            assert_eq!(flags, FLAG_TRIVIAL | 0x1);
        }
    }

    #[test]
    fn the_first_entry_about_somebody_decides() {
        const ALL: u32 = READ_DATA | WRITE_DATA | EXECUTE;
        let deny = |flags, who| ace(kind::DENIED, flags, WRITE_DATA | EXECUTE, who);
        let everyone = ace(kind::ALLOWED, flag::EVERYONE, ALL, 0);
        let of = |list: &[Ace]| mode(list, 0o104_000, (5 << 32 | 7, 9));
        assert_eq!(of(&[everyone]), (0o104_777, true));
        assert_eq!(of(&[everyone, deny(flag::OWNER, 0)]), (0o104_777, true));
        assert_eq!(of(&[deny(flag::OWNER, 0), everyone]), (0o104_477, false));
        assert_eq!(of(&[deny(flag::OWNING_GROUP, 0), everyone]), (0o104_747, false));
        // The owner by name, as a FUID, and the owning group; others change no mode.
        assert_eq!(of(&[deny(0, 5 << 32 | 7), everyone]), (0o104_477, false));
        assert_eq!(of(&[deny(0, 7), everyone]), (0o104_777, false));
        assert_eq!(of(&[deny(flag::IDENTIFIER_GROUP, 9), everyone]), (0o104_747, false));
        assert_eq!(of(&[ace(kind::DENIED, 0, WRITE_DATA, 7), everyone]), (0o104_777, true));
        // What is inherited only does not count, and what is neither allowed nor denied is not allowed.
        let handed_down = flag::EVERYONE | flag::FILE_INHERIT | flag::INHERIT_ONLY;
        assert_eq!(of(&[deny(handed_down, 0), everyone]), (0o104_777, true));
        assert_eq!(of(&[ace(kind::AUDIT, flag::OWNER, READ_DATA, 0), everyone]), (0o104_377, true));
        assert_eq!(of(&[]), (0o104_000, false));
    }

    #[test]
    fn flags_say_what_is_in_the_list() {
        let plain = ace(kind::ALLOWED, flag::OWNER, READ_DATA, 0);
        let named = ace(kind::ALLOWED, flag::FILE_INHERIT, READ_DATA, 3);
        let objects = Ace { kind: kind::ALLOWED_OBJECT, objects: Some([0; 32]), ..named };
        let of =
            |list: &[Ace], flags, old, dir| List { entries: list.to_vec(), flags }.flags(old, dir);
        assert_eq!(of(&[plain], Some(0x7), 0x1, false), 0x75);
        assert_eq!(of(&[plain], Some(0x2), 0x41, false), 0x15);
        assert_eq!(of(&[plain], None, 0x63, false), 0x65);
        assert_eq!(of(&[plain, named], Some(0), 0x4, true), FLAG_INHERIT);
        assert_eq!(of(&[plain, named], Some(0), 0x4, false), 0);
        assert_eq!(of(&[objects], Some(0), 0, false), FLAG_OBJECTS);
        for more in [
            ace(kind::ALLOWED, flag::EVERYONE, WRITE_ACL, 0),
            ace(kind::ALLOWED, flag::OWNER, DELETE, 0),
            ace(kind::ALLOWED, flag::OWNER, DELETE_CHILD, 0),
            ace(kind::DENIED, flag::OWNER, READ_ACL, 0),
            ace(kind::ALLOWED, flag::OWNER | flag::FILE_INHERIT, READ_DATA, 0),
        ] {
            assert!(!is_trivial(&[plain, more]), "{more:?}");
        }
    }

    #[test]
    fn lists_that_may_not_be_are_refused() {
        let check = |entries: &[Ace]| List { entries: entries.to_vec(), flags: None }.check();
        let with = |flags| ace(kind::ALLOWED, flags, READ_DATA, 3);
        assert!(check(&[]).is_err());
        assert!(check(&[with(flag::INHERIT_ONLY)]).is_err());
        assert!(check(&[with(flag::NO_PROPAGATE_INHERIT)]).is_err());
        assert!(check(&[with(flag::INHERIT_ONLY | flag::FILE_INHERIT)]).is_ok());
    }
}
