//! Decoding the bodies of records (`lr_create_t`, `lr_write_t`, `lr_setattr_t`, and the others of `lr_t`).
//!
//! A body is words of 64 bits, then parts without a fixed length: the sizes of an ACL, attributes (`lr_attr_t`),
//! entries of an ACL, domains, names, data, block pointers. Which of them there are follows from the type of the
//! record; how many domains, from whether owner and group belong to one.
//!
//! Bytes are not trusted: a length, a count or a name must lie within the record, and a write must end within what
//! a file can have. Nothing is copied but block pointers: parts without a fixed length are borrowed from the block.
//!
//! A record that sets neither owner nor group has whatever was in memory in those words, so they do not count for
//! domains.

use super::attr::{AclSizes, string, strings};
use super::{
    ATTR_XVATTR, Acl, Body, Create, Creates, NewObject, OBJECT_BITS, RECORD_HEADER, RawRecord,
    Record, Rename, Renames, SetAttr, TX_CI, WRITE_SIZE, Write, Xvattr, domains_of, kind,
    set_attrs,
};
use crate::blkptr::{BLKPTR_SIZE, BlockPointer};
use crate::{Bytes, DecodeError, Result};

/// Where the body begins.
const BODY: usize = RECORD_HEADER;
/// Bytes of `_lr_create_t`.
const CREATE: usize = BODY + 72;

impl<'a> Record<'a> {
    /// Decodes the body of `raw`.
    ///
    /// # Errors
    /// A type that is not known; a length, count or name that does not lie within the record.
    pub fn decode(raw: &RawRecord<'a>) -> Result<Record<'a>> {
        let b = &raw.data;
        let object = || b.u64(BODY);
        let body = match raw.kind & !TX_CI {
            k @ (kind::TX_CREATE..=kind::TX_SYMLINK
            | kind::TX_CREATE_ACL..=kind::TX_MKDIR_ACL_ATTR) => Body::Create(create(b, k)?),
            kind::TX_REMOVE => Body::Remove { dir: object()?, name: string(b, BODY + 8)?.0 },
            kind::TX_RMDIR => Body::Rmdir { dir: object()?, name: string(b, BODY + 8)?.0 },
            kind::TX_LINK => {
                let [dir, object] = b.u64s(BODY)?;
                Body::Link { dir, object, name: string(b, BODY + 16)?.0 }
            }
            k @ (kind::TX_RENAME | kind::TX_RENAME_EXCHANGE | kind::TX_RENAME_WHITEOUT) => {
                Body::Rename(rename(b, k)?)
            }
            kind::TX_WRITE => Body::Write(write(b, true)?),
            kind::TX_WRITE2 => Body::Write2(write(b, false)?),
            kind::TX_TRUNCATE => {
                let [object, offset, length] = b.u64s(BODY)?;
                Body::Truncate { object, offset, length }
            }
            kind::TX_SETATTR => Body::SetAttr(set_attr(b)?),
            kind::TX_ACL_V0 => {
                let [object, count] = b.u64s(BODY)?;
                let aces = b.rest(BODY + 16)?;
                Body::AclV0 { object, order: b.order(), count, aces }
            }
            kind::TX_ACL => {
                let sizes = AclSizes::decode(b, BODY + 8)?;
                let (acl, _) = Acl::decode(b, BODY + 8 + Acl::SIZES, &sizes)?;
                Body::Acl { object: object()?, acl }
            }
            kind::TX_SETSAXATTR => set_sa_xattr(b)?,
            kind::TX_CLONE_RANGE => clone_range(b)?,
            k => return Err(DecodeError::invalid("intent log record", format!("type {k}"))),
        };
        let ignore_case = raw.kind & TX_CI != 0;
        Ok(Record { txg: raw.txg, seq: raw.seq, ignore_case, body })
    }
}

/// The nine words of a new object without its directory.
fn new_object(words: [u64; 8]) -> NewObject {
    let [object, mode, uid, gid, generation, seconds, nanoseconds, rdev] = words;
    NewObject {
        object: object & ((1 << OBJECT_BITS) - 1),
        slots: (object >> 56) + 1,
        mode,
        uid,
        gid,
        generation,
        crtime: [seconds, nanoseconds],
        rdev,
    }
}

fn create<'a>(b: &Bytes<'a>, k: u64) -> Result<Create<'a>> {
    let what = match k {
        kind::TX_MKXATTR => Creates::XattrDirectory,
        kind::TX_SYMLINK => Creates::Symlink,
        kind::TX_MKDIR | kind::TX_MKDIR_ACL..=kind::TX_MKDIR_ACL_ATTR => Creates::Directory,
        _ => Creates::File,
    };
    let with_acl = matches!(
        k,
        kind::TX_CREATE_ACL
            | kind::TX_CREATE_ACL_ATTR
            | kind::TX_MKDIR_ACL
            | kind::TX_MKDIR_ACL_ATTR
    );
    let with_attrs = matches!(
        k,
        kind::TX_CREATE_ATTR
            | kind::TX_CREATE_ACL_ATTR
            | kind::TX_MKDIR_ATTR
            | kind::TX_MKDIR_ACL_ATTR
    );
    let dir = b.u64(BODY)?;
    let new = new_object(b.u64s(BODY + 8)?);
    let mut at = CREATE;
    let sizes = if with_acl { Some(AclSizes::decode(b, at)?) } else { None };
    at += if with_acl { Acl::SIZES } else { 0 };
    let mut attrs = None;
    if with_attrs {
        let (found, next) = Xvattr::decode(b, at)?;
        (attrs, at) = (Some(found), next);
    }
    let mut acl = None;
    if let Some(sizes) = sizes {
        let (found, next) = Acl::decode(b, at, &sizes)?;
        (acl, at) = (Some(found), next);
    }
    let plain = acl.is_none() && what != Creates::Symlink;
    let count = if plain { domains_of(new.uid, new.gid) } else { 0 };
    let (domains, at) = strings(b, at, count)?;
    let (name, next) = string(b, at)?;
    let target = match what {
        Creates::Symlink => string(b, next)?.0,
        _ => &[],
    };
    Ok(Create { what, dir, new, attrs, acl, domains, name, target })
}

fn rename<'a>(b: &Bytes<'a>, k: u64) -> Result<Rename<'a>> {
    let [from_dir, to_dir] = b.u64s(BODY)?;
    let (how, at) = match k {
        kind::TX_RENAME => (Renames::Plain, BODY + 16),
        kind::TX_RENAME_EXCHANGE => (Renames::Exchange, BODY + 16),
        _ => (Renames::Whiteout(new_object(b.u64s(BODY + 16)?)), BODY + 80),
    };
    let (from, next) = string(b, at)?;
    let (to, _) = string(b, next)?;
    Ok(Rename { how, from_dir, to_dir, from, to })
}

fn write<'a>(b: &Bytes<'a>, has_data: bool) -> Result<Write<'a>> {
    let [object, offset, length, block_offset] = b.u64s(BODY)?;
    let block = BlockPointer::decode(b, BODY + 32)?;
    if offset.checked_add(length).is_none_or(|end| end > i64::MAX as u64) {
        let why = format!("a write of {length:#x} bytes at {offset:#x}");
        return Err(DecodeError::invalid("intent log record", why));
    }
    let data = match has_data && b.len() > WRITE_SIZE {
        true => Some(b.counted(WRITE_SIZE, length, 1)?),
        false => None,
    };
    Ok(Write { object, offset, length, block_offset, block, data })
}

fn set_attr<'a>(b: &Bytes<'a>) -> Result<SetAttr<'a>> {
    let [object, mask, mode, uid, gid, size, a0, a1, m0, m1] = b.u64s(BODY)?;
    let mut at = BODY + 80;
    let mut attrs = None;
    let sets = set_attrs(mask, [uid, gid], size);
    if sets & ATTR_XVATTR != 0 {
        let (found, next) = Xvattr::decode(b, at)?;
        (attrs, at) = (Some(found), next);
    }
    // A record that sets neither owner nor group has their words as they were in memory.
    let fuid = |bit, id| if sets & bit != 0 { id } else { 0 };
    let count = domains_of(fuid(SetAttr::UID, uid), fuid(SetAttr::GID, gid));
    let (domains, _) = strings(b, at, count)?;
    let (atime, mtime) = ([a0, a1], [m0, m1]);
    Ok(SetAttr { object, mask, mode, uid, gid, size, atime, mtime, attrs, domains })
}

fn set_sa_xattr<'a>(b: &Bytes<'a>) -> Result<Body<'a>> {
    let [object, size] = b.u64s(BODY)?;
    let (name, at) = string(b, BODY + 16)?;
    let value = b.counted(at, size, 1)?;
    Ok(Body::SetSaXattr { object, name, value })
}

fn clone_range<'a>(b: &Bytes<'a>) -> Result<Body<'a>> {
    let [object, offset, length, block_size, count] = b.u64s(BODY)?;
    let first = BODY + 40;
    let all = b.counted(first, count, BLKPTR_SIZE)?;
    let all = Bytes::new(all, b.order(), "block pointers of an intent log record");
    let blocks = (0..all.len() / BLKPTR_SIZE)
        .map(|i| BlockPointer::decode(&all, i * BLKPTR_SIZE))
        .collect::<Result<Vec<_>>>()?;
    Ok(Body::CloneRange { object, offset, length, block_size, blocks })
}
