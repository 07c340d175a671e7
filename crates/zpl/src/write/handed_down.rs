//! NFSv4 lists that new nodes take over from their directory, and what a change of the mode makes of a list
//! (`zfs_acl_ids_create`, `zfs_acl_inherit`, `zfs_acl_chmod`).
//!
//! A directory whose list has entries to hand down is marked (`ZFS_INHERIT_ACE`). A new node takes over those that are meant
//! for its kind, as `aclinherit` has it, and then those that stand for the mode that was asked for, unless entries about the
//! owner, the group or everyone were taken over as they are (`passthrough`). Its mode follows the list. So a new node never
//! has more in its mode than its list allows the owner, the owning group and everyone.
//!
//! A change of the mode replaces the list by that of the mode (`aclmode=discard`), or keeps the entries for users and groups,
//! and what is handed down (`passthrough`), with no more than the mode allows the group (`groupmask`), or is refused
//! (`restricted`).
//!
//! Nodes of file systems before version 5 begin with the list of their mode.

use super::acl::{FLAG_AUTO_INHERIT, FLAG_TRIVIAL};
use super::context::Cx;
use super::nfs4::{
    EXECUTE, FLAG_INHERIT, List, WRITE_ACL, WRITE_OWNER, known_of_node, of_mode, of_node,
};
use super::node::NodeMut;
use super::{AclInherit, AclMode};
use crate::Result;
use crate::bits::{FLAG_XATTR, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use cenote_format::acl::{Ace, flag, kind};
use cenote_format::invariant::broken;

/// The flags that say how an entry is handed down, and that it was (`ALL_INHERIT`).
const ALL_INHERIT: u16 = flag::FILE_INHERIT
    | flag::DIRECTORY_INHERIT
    | flag::NO_PROPAGATE_INHERIT
    | flag::INHERIT_ONLY
    | flag::INHERITED;

/// The list that a new node begins with, if it is not that of its mode.
pub(super) struct First {
    /// The list.
    pub(super) list: List,
    /// `zp_flags` of the whole list.
    pub(super) flags: u64,
}

/// The list that a node of the mode `asked` takes over from `dir`; `None`: it begins with that of its mode.
/// Entries that make no sense are not taken over.
pub(super) fn first_list(cx: &Cx<'_>, dir: &NodeMut, asked: u64) -> Result<Option<First>> {
    let (kind, flags) = (asked & S_IFMT, dir.flags(cx)?);
    let hands_down = flags & FLAG_INHERIT != 0 && flags & FLAG_XATTR == 0;
    if !hands_down || kind == S_IFLNK || cx.has_old_nodes() {
        return Ok(None);
    }
    let (inherit, mode) = (cx.settings.acl_inherit, cx.settings.acl_mode);
    let (mut entries, follows) = taken_over(&known_of_node(cx, dir)?, asked, inherit);
    let whole = follows || mode == AclMode::Restricted && !entries.is_empty();
    let mut flags = 0;
    if !whole {
        let passes = matches!(inherit, AclInherit::Passthrough | AclInherit::PassthroughX);
        let trims = mode == AclMode::GroupMask && !passes;
        entries = with_mode(entries, asked, (false, trims));
        flags = if kind == S_IFDIR { FLAG_AUTO_INHERIT } else { 0 };
    }
    Ok(Some(First { list: List { entries, flags: None }, flags }))
}

/// Whether a node of this kind takes over an entry (`zfs_ace_can_use`).
fn is_for(ace: &Ace, is_dir: bool) -> bool {
    if is_dir && ace.flags & flag::DIRECTORY_INHERIT != 0 {
        return true;
    }
    ace.flags & flag::FILE_INHERIT != 0 && !(is_dir && ace.flags & flag::NO_PROPAGATE_INHERIT != 0)
}

/// What a node of mode `asked` takes over of a directory's list, and whether the mode follows that alone
/// (`zfs_acl_inherit`).
fn taken_over(list: &[Ace], asked: u64, how: AclInherit) -> (Vec<Ace>, bool) {
    let is_dir = asked & S_IFMT == S_IFDIR;
    let passes = matches!(how, AclInherit::Passthrough | AclInherit::PassthroughX);
    let (mut taken, mut follows) = (Vec::new(), false);
    for ace in list.iter().filter(|ace| is_for(ace, is_dir)) {
        let allows = ace.kind == kind::ALLOWED;
        if how == AclInherit::Discard || how == AclInherit::NoAllow && allows {
            continue;
        }
        let about = matches!(ace.about(), flag::OWNER | flag::OWNING_GROUP | flag::EVERYONE);
        let meant = match asked & S_IFMT {
            S_IFREG => true,
            S_IFDIR => ace.flags & flag::DIRECTORY_INHERIT != 0,
            _ => false,
        };
        follows |= passes && about && meant;
        let mut ace = *ace;
        if how == AclInherit::PassthroughX && allows && !is_dir && asked & 0o111 == 0 {
            ace.mask &= !EXECUTE;
        }
        if how == AclInherit::Restricted && allows {
            ace.mask &= !(WRITE_ACL | WRITE_OWNER);
        }
        let by = ace.flags & (flag::FILE_INHERIT | flag::DIRECTORY_INHERIT);
        if !is_dir || ace.flags & flag::NO_PROPAGATE_INHERIT != 0 {
            ace.flags &= !ALL_INHERIT;
        } else if by == flag::FILE_INHERIT {
            // A directory hands it on, and does not go by it.
            ace.flags |= flag::INHERIT_ONLY;
        } else {
            ace.flags &= !flag::INHERIT_ONLY;
        }
        ace.flags |= flag::INHERITED;
        taken.push(ace);
    }
    (taken, follows)
}

/// A list with the entries that stand for `mode` around others (`zfs_acl_chmod`). `splits`: of entries about the owner, the
/// group and everyone stays what is handed down. `trims`: the others allow no more than the mode allows the group.
fn with_mode(list: Vec<Ace>, mode: u64, (splits, trims): (bool, bool)) -> Vec<Ace> {
    let is_dir = mode & S_IFMT == S_IFDIR;
    let own = of_mode(mode);
    // Owner, group and everyone come last; what denies comes first.
    let Some((denies, last @ [_, group, _])) = own.split_last_chunk() else {
        broken(format_args!("the list of mode {mode:o} has {} entries", own.len()))
    };
    let mut entries = denies.to_vec();
    for mut ace in list {
        let by = flag::FILE_INHERIT | flag::DIRECTORY_INHERIT;
        if splits && matches!(ace.about(), flag::OWNER | flag::OWNING_GROUP | flag::EVERYONE) {
            if !is_dir || ace.flags & by == 0 {
                continue;
            }
            ace.flags |= flag::INHERIT_ONLY;
        }
        if trims && ace.kind == kind::ALLOWED && ace.flags & flag::INHERIT_ONLY == 0 {
            ace.mask &= group.mask;
        }
        entries.push(ace);
    }
    entries.extend(*last);
    entries
}

/// Whether `chmod` is refused for a node (`aclmode=restricted`).
pub(super) fn refuses_mode(cx: &Cx<'_>, node: &NodeMut) -> Result<bool> {
    let is_trivial = node.flags(cx)? & FLAG_TRIVIAL != 0;
    Ok(cx.settings.acl_mode == AclMode::Restricted && !is_trivial && !cx.has_old_nodes())
}

/// Gives a node with a list that says more than its mode another mode (`zfs_acl_chmod_setattr`); the mode that this comes to.
pub(super) fn change_mode(cx: &mut Cx<'_>, node: &mut NodeMut, mode: u64) -> Result<u64> {
    let how = cx.settings.acl_mode;
    let old = if how == AclMode::Discard { Vec::new() } else { of_node(cx, node)? };
    let entries = with_mode(old, mode, (true, how == AclMode::GroupMask));
    List { entries, flags: None }.put(cx, node, mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: u32 = 0x1;
    const BOTH: u16 = flag::FILE_INHERIT | flag::DIRECTORY_INHERIT;
    const FILE: u64 = 0o100_640;
    const DIR: u64 = 0o040_750;

    fn ace(kind: u16, flags: u16, mask: u32, who: Option<u64>) -> Ace {
        Ace { kind, flags, mask, who, objects: None }
    }

    fn allow(flags: u16, mask: u32) -> Ace {
        ace(kind::ALLOWED, flags, mask, Some(7))
    }

    #[test]
    fn entries_go_to_the_kinds_that_they_are_meant_for() {
        let taken = |flags, asked| {
            let (list, follows) = taken_over(&[allow(flags, READ)], asked, AclInherit::Passthrough);
            assert!(!follows);
            list.first().map(|ace| ace.flags)
        };
        let (only, once) = (flag::INHERIT_ONLY, flag::NO_PROPAGATE_INHERIT);
        assert_eq!(taken(0, FILE), None);
        assert_eq!(taken(flag::DIRECTORY_INHERIT, FILE), None);
        assert_eq!(taken(flag::FILE_INHERIT, FILE), Some(flag::INHERITED));
        assert_eq!(taken(BOTH | only, FILE), Some(flag::INHERITED));
        assert_eq!(taken(BOTH | only, DIR), Some(flag::INHERITED | BOTH));
        assert_eq!(
            taken(flag::FILE_INHERIT, DIR),
            Some(flag::INHERITED | flag::FILE_INHERIT | only)
        );
        assert_eq!(taken(BOTH | once | only, DIR), Some(flag::INHERITED));
        assert_eq!(taken(flag::FILE_INHERIT | once, DIR), None);
        assert_eq!(taken(flag::FILE_INHERIT, 0o010_644), Some(flag::INHERITED), "a fifo");
    }

    #[test]
    fn aclinherit_says_what_is_taken_over() {
        let all = READ | WRITE_ACL | WRITE_OWNER | EXECUTE;
        let list = [allow(BOTH, all), ace(kind::DENIED, BOTH, all, Some(8))];
        let masks = |how, asked| {
            let (taken, _) = taken_over(&list, asked, how);
            taken.iter().map(|ace| (ace.kind, ace.mask)).collect::<Vec<_>>()
        };
        assert_eq!(masks(AclInherit::Discard, FILE), []);
        assert_eq!(masks(AclInherit::NoAllow, FILE), [(1, all)]);
        assert_eq!(masks(AclInherit::Restricted, FILE), [(0, READ | EXECUTE), (1, all)]);
        assert_eq!(masks(AclInherit::Passthrough, FILE), [(0, all), (1, all)]);
        assert_eq!(masks(AclInherit::PassthroughX, FILE), [(0, all & !EXECUTE), (1, all)]);
        assert_eq!(masks(AclInherit::PassthroughX, FILE | 0o001), [(0, all), (1, all)]);
        assert_eq!(masks(AclInherit::PassthroughX, DIR & !0o111), [(0, all), (1, all)]);
    }

    #[test]
    fn the_mode_follows_what_is_taken_over_of_owner_group_and_everyone() {
        let follows =
            |flags, asked, how| taken_over(&[ace(kind::ALLOWED, flags, READ, None)], asked, how).1;
        let owner = flag::OWNER | BOTH;
        assert!(follows(owner, FILE, AclInherit::Passthrough));
        assert!(follows(flag::OWNING_GROUP | BOTH, DIR, AclInherit::PassthroughX));
        assert!(!follows(owner, FILE, AclInherit::Restricted));
        assert!(!follows(flag::EVERYONE | flag::FILE_INHERIT, DIR, AclInherit::Passthrough));
        assert!(!follows(owner, 0o010_644, AclInherit::Passthrough));
    }

    #[test]
    fn a_mode_is_put_around_what_stays() {
        let owner = ace(kind::ALLOWED, flag::OWNER | BOTH, READ, None);
        let user = allow(0, READ | WRITE_ACL | EXECUTE);
        let list = vec![owner, user];
        let files = with_mode(list.clone(), FILE, (true, false));
        assert_eq!(files[..1], [user]);
        assert_eq!(files[1..], of_mode(FILE));
        let dirs = with_mode(list.clone(), DIR, (true, false));
        let kept = Ace { flags: owner.flags | flag::INHERIT_ONLY, ..owner };
        assert_eq!(dirs[..2], [kept, user]);
        let trimmed = with_mode(list.clone(), FILE, (true, true));
        assert_eq!(trimmed[0].mask, READ);
        // Of a new node nothing is split.
        assert_eq!(with_mode(list, DIR, (false, false))[..2], [owner, user]);
        // What denies comes first.
        let denies = with_mode(vec![user], 0o100_077, (true, false));
        assert_eq!((denies[0].kind, denies[1]), (kind::DENIED, user));
    }
}
