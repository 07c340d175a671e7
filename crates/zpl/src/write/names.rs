//! Entries of directories that are being changed (`zfs_dirlook`, `zfs_link_create`).
//!
//! A change looks a name up and enters it under the lock of the object set, so names have no locks of their own
//! (`zfs_dirent_lock`).

use super::books::Leads;
use super::context::Cx;
use super::flags::{APPEND_ONLY, IMMUTABLE};
use super::node::NodeMut;
use crate::bits::{S_IFDIR, S_IFMT};
use crate::dir::{MAX_NAME, entry_object};
use crate::error::show;
use crate::fs::{CaseSensitivity, ENTRY_TYPES};
use crate::sa::ZplAttr;
use crate::{Error, Result};
use cenote_dmu::write::ZapMut;
use cenote_dmu::zap::{Match, Zap};
use cenote_format::encode::zap::{Key, Value};
use cenote_format::zap::norm;
use std::borrow::Cow;

/// Longest name that may be given with `longname=off`, in bytes.
const MAX_SHORT_NAME: usize = 255;

/// What a directory has under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry<'n> {
    /// The name as it is stored.
    pub(super) name: Cow<'n, [u8]>,
    /// The object.
    pub(super) ino: u64,
}

/// Whether a name may be given.
pub(super) fn check_new_name(cx: &Cx<'_>, name: &[u8]) -> Result<()> {
    if matches!(name, b"" | b"." | b"..") {
        return Err(Error::Exists(show(name)));
    }
    let longest = if cx.settings.long_names { MAX_NAME } else { MAX_SHORT_NAME };
    if name.len() > longest {
        return Err(Error::NameTooLong(show(name)));
    }
    if name.contains(&b'/') || name.contains(&0) {
        return Err(Error::Invalid(show(name)));
    }
    if cx.names.utf8_only && std::str::from_utf8(name).is_err() {
        return Err(Error::IllegalName(show(name)));
    }
    // Where names are normalized, what is compared has at most 255 bytes.
    if cx.names.flags != 0 && !norm::fits(name, cx.names.flags) {
        return Err(Error::Unsupported(format!("{}: so long a name when normalized", show(name))));
    }
    Ok(())
}

/// The directory, which must be one that can get and lose entries.
pub(super) fn writable_dir(cx: &mut Cx<'_>, dir: u64) -> Result<NodeMut> {
    let node = NodeMut::load(cx, dir)?;
    if !node.is_dir(cx)? {
        return Err(Error::NotDir(format!("object {dir}")));
    }
    if node.flags(cx)? & IMMUTABLE != 0 {
        return Err(Error::NotPermitted(format!("directory {dir} is immutable")));
    }
    if node.word(cx, ZplAttr::Links) == Some(0) {
        return Err(Error::NotFound(format!("directory {dir} was removed")));
    }
    Ok(node)
}

/// As [`writable_dir`], and names may be taken away.
pub(super) fn shrinkable_dir(cx: &mut Cx<'_>, dir: u64) -> Result<NodeMut> {
    let node = writable_dir(cx, dir)?;
    if node.flags(cx)? & APPEND_ONLY != 0 {
        return Err(Error::NotPermitted(format!("directory {dir} is append-only")));
    }
    Ok(node)
}

/// Looks a name up (`zfs_dirent_lock`, `zfs_match_find`). `exact_case`: where case does not count, it does this time.
pub(super) fn find<'n>(
    cx: &mut Cx<'_>,
    dir: u64,
    name: &'n [u8],
    exact_case: bool,
) -> Result<Option<Entry<'n>>> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Ok(None);
    }
    if cx.names.flags == 0 {
        let value = ZapMut::open(cx.os, dir).word(&Key::Name(name))?;
        return Ok(value.map(|v| Entry { name: name.into(), ino: entry_object(v) }));
    }
    let fold_case = cx.names.case == CaseSensitivity::Insensitive && !exact_case;
    let zap = Zap::open(&cx.os.view(dir)?)?;
    let found = zap.lookup_norm(name, Match { fold_case })?;
    Ok(found.and_then(|e| {
        let ino = entry_object(*e.value.first()?);
        Some(Entry { name: e.name.into(), ino })
    }))
}

/// The entries of a directory. There may be longer names than may be given now: those of other systems, those given while
/// `longname` was on, and those that intent logs have.
fn entries<'c>(cx: &'c mut Cx<'_>, dir: u64) -> ZapMut<'c> {
    let large = cx.settings.large_microzap;
    let zap = ZapMut::open(cx.os, dir).with_long_names();
    if large { zap.with_large_blocks() } else { zap }
}

/// The value of an entry: object and, where entries have one, type (`zfs_dirent`).
fn value(cx: &Cx<'_>, ino: u64, mode: u64) -> u64 {
    let kind = if cx.version >= ENTRY_TYPES { mode >> 12 & 0xf } else { 0 };
    ino | kind << 60
}

/// Adds an entry (`zfs_link_create`).
pub(super) fn add(cx: &mut Cx<'_>, dir: u64, name: &[u8], ino: u64) -> Result<()> {
    let mode = NodeMut::load(cx, ino)?.mode(cx)?;
    let value = value(cx, ino, mode);
    entries(cx, dir).add(&Key::Name(name), &Value::U64(&[value]))?;
    cx.books.gave(dir, leads(ino, mode));
    Ok(())
}

/// What an entry of a node of this mode leads to.
fn leads(ino: u64, mode: u64) -> Leads {
    Leads { ino, is_dir: mode & S_IFMT == S_IFDIR }
}

/// As [`add`], where the node's type, in `mode`, is known, and that the name is free.
pub(super) fn add_known(cx: &mut Cx<'_>, dir: u64, name: &[u8], ino: u64, mode: u64) -> Result<()> {
    let value = value(cx, ino, mode);
    entries(cx, dir).add_absent(&Key::Name(name), &Value::U64(&[value]))?;
    cx.books.gave(dir, leads(ino, mode));
    Ok(())
}

/// Lets an entry that led to `old` lead to another object.
pub(super) fn replace(cx: &mut Cx<'_>, dir: u64, name: &[u8], old: Leads, ino: u64) -> Result<()> {
    let mode = NodeMut::load(cx, ino)?.mode(cx)?;
    let value = value(cx, ino, mode);
    entries(cx, dir).update(&Key::Name(name), &Value::U64(&[value]))?;
    cx.books.took(dir, old);
    cx.books.gave(dir, leads(ino, mode));
    Ok(())
}

/// Removes the entry that is stored under exactly this name, and led to `old` (`zfs_link_destroy`, `zfs_dropname`).
pub(super) fn remove(cx: &mut Cx<'_>, dir: u64, name: &[u8], old: Leads) -> Result<()> {
    ZapMut::open(cx.os, dir).remove(&Key::Name(name))?;
    cx.books.took(dir, old);
    Ok(())
}

/// Notes that a directory got (or lost) entries, some of them directories.
pub(super) fn count(cx: &mut Cx<'_>, dir: u64, entries: i64, dirs: i64) -> Result<()> {
    let node = NodeMut::load(cx, dir)?;
    count_in(cx, node, entries, dirs)
}

/// A count of a directory when it changes. What is on disk may be less than there is: entries go all the same, and the log
/// says so (`zfs_drop_nlink_locked`).
fn counted(dir: u64, what: &str, before: u64, change: i64) -> u64 {
    match before.checked_add_signed(change) {
        Some(now) => now,
        None => {
            tracing::warn!(
                dir,
                "a directory of {before} {what} changes by {change}: the count was wrong"
            );
            if change < 0 { 0 } else { u64::MAX }
        }
    }
}

/// As [`count`], for a directory that is loaded and has not changed since.
pub(super) fn count_in(cx: &mut Cx<'_>, mut node: NodeMut, entries: i64, dirs: i64) -> Result<()> {
    let ino = node.ino;
    cx.books.counted(ino, entries, dirs);
    let size = counted(ino, "entries", node.required(cx, ZplAttr::Size)?, entries);
    let links = counted(ino, "links", node.required(cx, ZplAttr::Links)?, dirs);
    node.set(cx, ZplAttr::Size, &[size])?;
    node.set(cx, ZplAttr::Links, &[links])?;
    node.modified(cx)?;
    node.store(cx)
}
