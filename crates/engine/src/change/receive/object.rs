//! Objects put where records say (`receive_object`).
//!
//! An object that is there already, from the snapshot that the stream starts from, stays with its contents if it can be
//! the same one. It is made anew if its number was given to another object at the sender meanwhile: then all of it is
//! in the stream.
//!
//! *Block sizes.* The bytes of a file or volume that a stream does not name are as in the snapshot that it starts from,
//! whatever blocks they lie in. The blocks here need not be the sender's: an earlier stream may have cut large ones, or
//! sender and receiver took turns and each had a file grow to its own record size. So such an object keeps its bytes.
//! Of one block it grows as the sender's did; of several it keeps its block size. Records that are no whole blocks here
//! then change parts of them.
//!
//! Objects with a structure (ZAPs) have the sender's blocks always: another block size means that all of them come.

use super::kind::Kind;
use cenote_dmu::Error;
use cenote_dmu::write::{NewObject, OpenObjectSet, RawShape, WriteError, indirect_shift};
use cenote_format::ByteOrder;
use cenote_format::dmu::{DNODE_CORE, DNODE_SLOT, DmuType, DnodePhys};
use cenote_format::sa;
use cenote_format::stream::{OBJECT_SPILL, ObjectRecord, RawObject};

/// Bytes of a block pointer.
const POINTER: usize = cenote_format::blkptr::BLKPTR_SIZE;

/// Pointers that the dnode of a new object has (`deduce_nblkptr`).
fn pointers(record: &ObjectRecord) -> usize {
    let slots = usize::from(record.slots.max(1));
    let room = slots * DNODE_SLOT - (DNODE_CORE + POINTER);
    match record.bonus_kind {
        DmuType::SA => 1,
        _ => (1 + room.saturating_sub(record.bonus_len as usize) / POINTER).min(3),
    }
}

/// What is to become of an object that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It goes, and another one takes its number.
    Anew,
    /// It stays, with blocks of so many bytes.
    Same(u64),
}

/// Whether the object in the record is the one that is there (`receive_handle_existing_object`).
fn fate(record: &ObjectRecord, bonus: &[u8], there: &DnodePhys, kind: Kind) -> Fate {
    let slots = u64::from(record.slots.max(1));
    let other = record.kind != there.kind
        || pointers(record) < there.pointers.len()
        || slots != there.slots();
    let generation = |kind: DmuType, bonus: &[u8]| {
        sa::file_info(kind, bonus, ByteOrder::Little).map(|info| info.generation)
    };
    // A bonus buffer may become one of system attributes; the generation stays.
    let now = generation(record.bonus_kind, bonus);
    if other || now != generation(there.bonus_kind, &there.bonus) {
        return Fate::Anew;
    }
    let size = u64::from(record.block_size);
    if size == there.block_size {
        return Fate::Same(size);
    }
    // Of another file that is not known by a generation all bytes come as well.
    let is_bytes = matches!(record.kind, DmuType::PLAIN_FILE_CONTENTS | DmuType::ZVOL);
    match is_bytes && !kind.full {
        true => Fate::Same(kept_size(size, there)),
        false => Fate::Anew,
    }
}

/// The same of an object of a raw stream, whose generation is encrypted. If it cannot be the same one, all of it comes: what
/// changes its blocks' sizes rewrites them.
fn raw_fate(record: &ObjectRecord, raw: &RawObject, there: &DnodePhys) -> Fate {
    let size = u64::from(record.block_size);
    let same = record.kind == there.kind
        && u64::from(record.slots.max(1)) == there.slots()
        && size == there.block_size
        && usize::from(raw.pointers) == there.pointers.len()
        && raw.indirect_shift == there.indirect_shift
        && raw.levels >= there.levels;
    if same { Fate::Same(size) } else { Fate::Anew }
}

/// Bytes that the blocks have from now on of an object that stays, where the sender's have `size` bytes.
fn kept_size(size: u64, there: &DnodePhys) -> u64 {
    let now = there.block_size;
    match there.max_block {
        0 if size > now => size,
        // It may get more blocks, which only blocks of such a size can be followed by.
        0 => now.checked_next_power_of_two().unwrap_or(now),
        _ => now,
    }
}

/// Bytes that the blocks of an object may have once its record is put where `there` is: as it is made anew, and as it
/// stays.
pub(super) fn block_sizes(record: &ObjectRecord, there: Option<&DnodePhys>) -> [u64; 2] {
    let size = u64::from(record.block_size);
    [size, there.map_or(size, |there| kept_size(size, there))]
}

/// Lets the only block of an object grow; its bytes stay, but for the first `replaced` ones, which are going to be
/// written.
fn grow(
    os: &mut OpenObjectSet,
    number: u64,
    size: u64,
    replaced: u64,
) -> std::result::Result<(), WriteError> {
    let dnode = os.dnode(number)?;
    let (now, levels, shift) = (dnode.block_size, dnode.levels, dnode.indirect_shift);
    if size == now {
        return Ok(());
    }
    if replaced >= now {
        // So the block need not be read.
        os.free_range(number, 0, u64::MAX)?;
    }
    let suits = if levels == 1 { indirect_shift(size) } else { shift };
    // If it was larger and is being written so, it keeps its indirect blocks.
    let done = os.set_block_size(number, size, suits);
    done.or_else(|_| os.set_block_size(number, size, shift))
}

/// Puts an object where the record says (`receive_object`, `dmu_object_reclaim`, `dnode_reallocate`). The first
/// `replaced` bytes of its contents are going to be written.
pub(super) fn put_object(
    os: &mut OpenObjectSet,
    (record, bonus): (&ObjectRecord, &[u8]),
    kind: Kind,
    replaced: u64,
) -> std::result::Result<(), WriteError> {
    let number = record.object;
    let there = match os.dnode(number) {
        Ok(dnode) => Some(dnode.clone()),
        Err(WriteError::Read(Error::NoObject { .. })) => None,
        Err(e) => return Err(e),
    };
    let (bonus, rest) = bonus.split_at_checked(record.bonus_len as usize).unwrap_or((bonus, &[]));
    let fate = there.as_ref().map(|there| match &record.raw {
        Some(raw) => raw_fate(record, raw, there),
        None => fate(record, bonus, there, kind),
    });
    if let (Some(there), Some(Fate::Same(block_size))) = (&there, fate) {
        // Old senders do not say whether there is a spill block: they send it where the bonus buffer changes.
        let keeps_spill = match kind.spills {
            true => record.flags & OBJECT_SPILL != 0,
            false => bonus.len() == there.bonus.len(),
        };
        // First, because it takes room of the bonus buffer.
        if os.dnode_with_spill(number)?.1 && !keeps_spill {
            os.set_spill(number, None)?;
        }
        grow(os, number, block_size, replaced)?;
        os.set_bonus(number, record.bonus_kind, bonus)?;
        os.set_functions(number, record.checksum, record.compress)?;
        return put_shape(os, record, rest);
    }
    if there.is_some() {
        os.free(number)?;
    }
    let slots = u64::from(record.slots.max(1));
    for slot in number.saturating_add(1)..number.saturating_add(slots) {
        match os.dnode(slot) {
            Ok(_) => os.free(slot)?,
            Err(WriteError::Read(Error::NoObject { .. })) => {}
            Err(e) => return Err(e),
        }
    }
    let new = NewObject::new(record.kind, record.block_size.into());
    os.claim(
        number,
        &NewObject {
            bonus_kind: record.bonus_kind,
            bonus: bonus.to_vec(),
            dnode_size: slots as usize * DNODE_SLOT,
            checksum: record.checksum,
            compress: record.compress,
            indirect_shift: record.raw.map_or(new.indirect_shift, |raw| raw.indirect_shift),
            ..new
        },
    )?;
    put_shape(os, record, rest)
}

/// Gives an object of a raw stream the structure that it has at the sender.
fn put_shape(
    os: &mut OpenObjectSet,
    record: &ObjectRecord,
    rest: &[u8],
) -> std::result::Result<(), WriteError> {
    let Some(raw) = &record.raw else { return Ok(()) };
    let used = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let shape = RawShape {
        pointers: raw.pointers.into(),
        levels: raw.levels,
        indirect_shift: raw.indirect_shift,
        max_block: raw.max_block,
        rest: rest.get(..used).unwrap_or_default().to_vec(),
    };
    os.set_raw_shape(record.object, &shape)
}
