//! Encoding intent logs (`zil_chain_t`, `lr_t`): records, and the blocks of a chain.
//!
//! A record is a header of four words and a body. Its length is written last, rounded up to 8 bytes
//! (`zil_itx_create`). What has no fixed length stands behind the words, in an order that the kind of the record
//! fixes: ACL sizes, attributes, ACL entries, domains, names, data.
//!
//! A block of the chain has the pointer to the next block at its end, or, in the slim form (`ZIO_CHECKSUM_ZILOG2`),
//! at its beginning. The checksum of a pointer does not sum up the block: it names the log, and its last word is
//! the number of the block, one more than in the block before. What sums the block up lies in it (`zio_eck_t`).
//!
//! Invariant: a record that [`Record::decode`] would refuse or read back as something else is refused.

use super::{EncodeError, Result, push_words, put};
use crate::ByteOrder;
use crate::blkptr::BlockPointer;
use crate::checksum::Checksum;
use crate::crypt::{BlockParams, DatasetKey};
use crate::dmu::DmuType;
use crate::encode::embedded::{seal, seal_with_mac};
use crate::zil::attr::push_string;
use crate::zil::chain::{CHAIN_SIZE, MIN_BLOCK, is_slim};
use crate::zil::{
    ATTR_XVATTR, Body, Create, Creates, MAX_SLOTS, NewObject, OBJECT_BITS, Record, Rename, Renames,
    SetAttr, TX_CI, WRITE_SIZE, Write, domains_of,
};

const WHAT: &str = "intent log record";

impl Record<'_> {
    /// The bytes of the record, padded with zeros to a multiple of 8 (`zil_itx_create`).
    ///
    /// # Errors
    /// What [`Record::decode`] would refuse or read back as something else.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let kind = self.body.kind() | if self.ignore_case { TX_CI } else { 0 };
        let mut out = Vec::new();
        push_words(&mut out, &[kind, 0, self.txg, self.seq]);
        self.body.append_to(&mut out)?;
        out.resize(out.len().next_multiple_of(8), 0);
        let len = out.len() as u64;
        put(&mut out, 8, &len.to_le_bytes(), WHAT)?;
        Ok(out)
    }
}

fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(EncodeError::unrepresentable(WHAT, why))
}

impl Body<'_> {
    fn append_to(&self, out: &mut Vec<u8>) -> Result<()> {
        match self {
            Body::Create(create) => append_create(out, create),
            Body::Remove { dir, name } | Body::Rmdir { dir, name } => {
                push_words(out, &[*dir]);
                push_string(out, name)
            }
            Body::Link { dir, object, name } => {
                push_words(out, &[*dir, *object]);
                push_string(out, name)
            }
            Body::Rename(rename) => append_rename(out, rename),
            Body::Write(write) => append_write(out, write, true),
            Body::Write2(write) => append_write(out, write, false),
            Body::Truncate { object, offset, length } => {
                push_words(out, &[*object, *offset, *length]);
                Ok(())
            }
            Body::SetAttr(set) => append_set_attr(out, set),
            Body::AclV0 { object, order, count, aces } => {
                check_order(*order)?;
                if aces.len() % 8 != 0 {
                    return refuse(format!("an ACL of {} bytes", aces.len()));
                }
                push_words(out, &[*object, *count]);
                out.extend(*aces);
                Ok(())
            }
            Body::Acl { object, acl } => {
                check_order(acl.order)?;
                push_words(out, &[*object]);
                push_words(out, &acl.sizes());
                acl.append_to(out)
            }
            Body::SetSaXattr { object, name, value } => {
                push_words(out, &[*object, value.len() as u64]);
                push_string(out, name)?;
                out.extend(*value);
                Ok(())
            }
            Body::CloneRange { object, offset, length, block_size, blocks } => {
                let count = blocks.len() as u64;
                push_words(out, &[*object, *offset, *length, *block_size, count]);
                blocks.iter().for_each(|bp| push_words(out, &bp.0));
                Ok(())
            }
        }
    }
}

fn append_new_object(out: &mut Vec<u8>, new: &NewObject) -> Result<()> {
    if new.object >> OBJECT_BITS != 0 || !(1..=MAX_SLOTS).contains(&new.slots) {
        return refuse(format!("object {:#x} of {} slots", new.object, new.slots));
    }
    let object = new.object | (new.slots - 1) << 56;
    let [seconds, nanoseconds] = new.crtime;
    let NewObject { mode, uid, gid, generation, rdev, .. } = *new;
    push_words(out, &[object, mode, uid, gid, generation, seconds, nanoseconds, rdev]);
    Ok(())
}

fn append_create(out: &mut Vec<u8>, create: &Create<'_>) -> Result<()> {
    let Create { what, dir, new, attrs, acl, domains, name, target } = create;
    let plain = matches!(what, Creates::File | Creates::Directory);
    if !plain && (attrs.is_some() || acl.is_some()) {
        return refuse("an ACL or attributes of what has none in the log");
    }
    let needed = match (what, acl) {
        (Creates::Symlink, _) | (_, Some(_)) => 0,
        _ => domains_of(new.uid, new.gid),
    };
    check_domains(domains, needed)?;
    if *what != Creates::Symlink && !target.is_empty() {
        return refuse("a target of what is no symbolic link");
    }
    push_words(out, &[*dir]);
    append_new_object(out, new)?;
    if let Some(acl) = acl {
        check_order(acl.order)?;
        push_words(out, &acl.sizes());
    }
    if let Some(attrs) = attrs {
        attrs.append_to(out)?;
    }
    if let Some(acl) = acl {
        acl.append_to(out)?;
    }
    domains.iter().try_for_each(|domain| push_string(out, domain))?;
    push_string(out, name)?;
    match what {
        Creates::Symlink => push_string(out, target),
        _ => Ok(()),
    }
}

/// Entries of lists are copied as they are.
fn check_order(order: ByteOrder) -> Result<()> {
    match order {
        ByteOrder::Little => Ok(()),
        ByteOrder::Big => refuse("an ACL in big-endian byte order"),
    }
}

fn check_domains(domains: &[&[u8]], needed: u64) -> Result<()> {
    match domains.len() as u64 == needed {
        true => Ok(()),
        false => refuse(format!("{} domains where {needed} are referred to", domains.len())),
    }
}

fn append_rename(out: &mut Vec<u8>, rename: &Rename<'_>) -> Result<()> {
    push_words(out, &[rename.from_dir, rename.to_dir]);
    if let Renames::Whiteout(new) = &rename.how {
        append_new_object(out, new)?;
    }
    push_string(out, rename.from)?;
    push_string(out, rename.to)
}

fn append_write(out: &mut Vec<u8>, write: &Write<'_>, may_have_data: bool) -> Result<()> {
    let Write { object, offset, length, block_offset, block, data } = *write;
    if offset.checked_add(length).is_none_or(|end| end > i64::MAX as u64) {
        return refuse(format!("a write of {length:#x} bytes at {offset:#x}"));
    }
    let fits = |data: &[u8]| may_have_data && !data.is_empty() && data.len() as u64 == length;
    if !data.is_none_or(fits) {
        return refuse(format!("other data than the {length:#x} bytes of a write"));
    }
    push_words(out, &[object, offset, length, block_offset]);
    push_words(out, &block.0);
    debug_assert_eq!(out.len(), WRITE_SIZE);
    if let Some(data) = data {
        out.extend_from_slice(data);
    }
    Ok(())
}

fn append_set_attr(out: &mut Vec<u8>, set: &SetAttr<'_>) -> Result<()> {
    let sets = set.sets();
    let fuid = |bit, id| if sets & bit != 0 { id } else { 0 };
    let needed = domains_of(fuid(SetAttr::UID, set.uid), fuid(SetAttr::GID, set.gid));
    check_domains(&set.domains, needed)?;
    if set.attrs.is_some() != (sets & ATTR_XVATTR != 0) {
        return refuse("attributes that the mask does not have");
    }
    push_words(out, &[set.object, set.mask, set.mode, set.uid, set.gid, set.size]);
    push_words(out, &set.atime);
    push_words(out, &set.mtime);
    if let Some(attrs) = &set.attrs {
        attrs.append_to(out)?;
    }
    set.domains.iter().try_for_each(|domain| push_string(out, domain))
}

/// How many bytes of records a block of `size` bytes has room for: none where its header does not fit.
pub fn capacity(size: usize) -> usize {
    size.saturating_sub(CHAIN_SIZE)
}

/// The block of `bp`'s size with `records` in it, and its checksum; `bp` says which of the two forms it
/// has. `next` points to the block after it; its checksum is set here to what follows `bp`'s.
///
/// Of a slim block only the part that is used need be written: what is returned is that part, rounded up to
/// a multiple of [`MIN_BLOCK`].
///
/// # Errors
/// The records have no room; `bp` is no pointer to a log block.
pub fn chain_block(bp: &BlockPointer, next: BlockPointer, records: &[u8]) -> Result<Vec<u8>> {
    let (mut block, kind) = unsealed(bp, next, records)?;
    seal(kind, &mut block, bp.checksum())?;
    Ok(block)
}

/// As [`chain_block`], of an encrypted dataset: encrypted with `key` and what `bp` says for that.
///
/// # Errors
/// Errors of [`chain_block`]; the records cannot be told apart.
pub fn encrypted_chain_block(
    bp: &BlockPointer,
    next: BlockPointer,
    records: &[u8],
    key: &DatasetKey,
) -> Result<Vec<u8>> {
    let (mut block, kind) = unsealed(bp, next, records)?;
    let mac = key
        .encrypt(DmuType::INTENT_LOG, &BlockParams::of(bp), &mut block)
        .map_err(|e| EncodeError::unrepresentable("intent log block", e.to_string()))?;
    seal_with_mac(kind, &mut block, bp.checksum(), &mac)?;
    Ok(block)
}

/// The block without its checksum, and how that is made.
fn unsealed(
    bp: &BlockPointer,
    mut next: BlockPointer,
    records: &[u8],
) -> Result<(Vec<u8>, Checksum)> {
    const WHAT: &str = "intent log block";
    let fits = |size: &usize| records.len() <= capacity(*size) && size.is_multiple_of(MIN_BLOCK);
    let Some(size) = usize::try_from(bp.lsize()).ok().filter(fits) else {
        let why = format!("{} bytes of records in {:#x} bytes", records.len(), bp.lsize());
        return Err(EncodeError::unrepresentable(WHAT, why));
    };
    let verifier = bp.checksum();
    let [a, b, objset, seq] = verifier;
    next.0[12..].copy_from_slice(&[a, b, objset, seq.wrapping_add(1)]);
    let (slim, kind) = match is_slim(bp) {
        true => (true, Checksum::Zilog2),
        false => (false, Checksum::Zilog),
    };
    let used = if slim { CHAIN_SIZE + records.len() } else { records.len() };
    let len = if slim { used.next_multiple_of(MIN_BLOCK) } else { size };
    let mut block = vec![0; len];
    let (chain, at) = if slim { (0, CHAIN_SIZE) } else { (size - CHAIN_SIZE, 0) };
    let mut head = vec![0; 8];
    push_words(&mut head, &next.0);
    push_words(&mut head, &[used as u64]);
    put(&mut block, chain, &head, WHAT)?;
    put(&mut block, at, records, WHAT)?;
    Ok((block, kind))
}
