//! Nodes without names (`zfs_rmnode`): the unlinked set that notes them (`zfs_unlinked_add`), and how they are freed with
//! their hidden directory of extended attributes.
//!
//! The unlinked set is a ZAP: an entry's name is the object's number in hexadecimal, its value the number.

use super::context::Cx;
use super::node::NodeMut;
use crate::dir::entry_object;
use crate::sa::ZplAttr;
use crate::{Error, Result};
use cenote_dmu::write::{WriteError, ZapMut};
use cenote_dmu::zap::{Zap, ZapEntry};
use cenote_format::encode::zap::{Key, Value};
use cenote_format::invariant;
use cenote_format::invariant::broken;

/// Notes a node in the unlinked set (`zfs_unlinked_add`).
pub(super) fn remember(cx: &mut Cx<'_>, ino: u64) -> Result<()> {
    let Some(set) = cx.unlinked_set else {
        return Err(Error::Unsupported("a file system without an unlinked set".into()));
    };
    let (digits, from) = hexadecimal(ino);
    let name = Key::Name(name_in(&digits, from));
    ZapMut::open(cx.os, set).update(&name, &Value::U64(&[ino]))?;
    cx.books.remembered(ino);
    Ok(())
}

/// The digits of a number, and where the first is that is no leading zero.
fn hexadecimal(number: u64) -> ([u8; 16], usize) {
    let mut digits = [0; 16];
    for (place, digit) in digits.iter_mut().rev().enumerate() {
        let value = (number >> (4 * place) & 0xf) as u8;
        *digit = if value < 10 { b'0' + value } else { b'a' + value - 10 };
    }
    (digits, (number | 1).leading_zeros() as usize / 4)
}

/// The name that the digits from one on are.
fn name_in(digits: &[u8; 16], from: usize) -> &[u8] {
    match digits.get(from..) {
        Some(name) if !name.is_empty() => name,
        _ => broken(format_args!("no name from digit {from} of a number on")),
    }
}

/// Takes a node out of the unlinked set, if it is there.
pub(super) fn forget(cx: &mut Cx<'_>, ino: u64) -> Result<()> {
    let Some(set) = cx.unlinked_set else { return Ok(()) };
    let (digits, from) = hexadecimal(ino);
    match ZapMut::open(cx.os, set).remove(&Key::Name(name_in(&digits, from))) {
        Err(WriteError::NoEntry(_)) => Ok(()),
        done => Ok(done?),
    }
}

/// Frees a node with its hidden directory of extended attributes.
pub(super) fn destroy(cx: &mut Cx<'_>, node: &NodeMut) -> Result<()> {
    let (ino, links) = (node.ino, node.word(cx, ZplAttr::Links));
    invariant!(
        links.is_none_or(|links| links == 0),
        "object {ino} is freed, and has names: {links:?} links"
    );
    if let Some(dir) = node.word(cx, ZplAttr::Xattr).filter(|dir| *dir != 0) {
        destroy_xattrs(cx, dir)?;
    }
    if let Some(object) = node.also_free {
        cx.os.free(object)?;
    }
    cx.os.free(ino)?;
    cx.books.freed(ino);
    forget(cx, ino)
}

/// Frees a hidden directory with all that is in it (`zfs_purgedir`).
fn destroy_xattrs(cx: &mut Cx<'_>, dir: u64) -> Result<()> {
    hidden_directory(cx, dir)?;
    for entry in Zap::open(&cx.os.view(dir)?)?.entries()? {
        free_node(cx, object_of(dir, &entry)?)?;
    }
    free_node(cx, dir)?;
    forget(cx, dir)
}

/// The object that an entry of a directory leads to.
pub(super) fn object_of(dir: u64, entry: &ZapEntry) -> Result<u64> {
    match entry.value.first() {
        Some(value) => Ok(entry_object(*value)),
        None => Err(Error::Corrupt(dir, "an entry without an object".into())),
    }
}

/// The hidden directory `dir` of a node. Errors: [`Error::Corrupt`] if it is not a hidden directory.
pub(super) fn hidden_directory(cx: &mut Cx<'_>, dir: u64) -> Result<NodeMut> {
    let none = || Error::Corrupt(dir, "not a directory of extended attributes".into());
    let hidden = match NodeMut::load(cx, dir) {
        Err(e) if e.is_absence() => return Err(none()),
        loaded => loaded?,
    };
    if hidden.flags(cx)? & crate::bits::FLAG_XATTR == 0 || !hidden.is_dir(cx)? {
        return Err(none());
    }
    Ok(hidden)
}

/// Frees the object of a node, and what else it has (`zfs_znode_delete`).
pub(super) fn free_node(cx: &mut Cx<'_>, ino: u64) -> Result<()> {
    if let Some(object) = NodeMut::load(cx, ino)?.also_free {
        cx.os.free(object)?;
    }
    cx.os.free(ino)?;
    cx.books.freed(ino);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::hexadecimal;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_are_written_as_the_format_has_them(number: u64, shift in 0u32..64) {
            let number = number >> shift;
            let (digits, from) = hexadecimal(number);
            let wanted = format!("{number:x}");
            prop_assert_eq!(&digits[from..], wanted.as_bytes());
        }
    }

    #[test]
    fn zero_has_a_digit() {
        let (digits, from) = hexadecimal(0);
        assert_eq!(&digits[from..], b"0");
    }
}
