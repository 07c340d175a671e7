//! Objects put where records say (`receive_object`).
//!
//! An object that is there already, from the snapshot that the stream starts from, stays with its contents if it can be
//! the same one. It is made anew if its number was given to another object at the sender meanwhile: then all of it is
//! in the stream.

use super::apply::Kind;
use cenote_dmu::Error;
use cenote_dmu::write::{NewObject, OpenObjectSet, WriteError};
use cenote_format::ByteOrder;
use cenote_format::dmu::{DNODE_CORE, DNODE_SLOT, DmuType, DnodePhys};
use cenote_format::sa;
use cenote_format::stream::{OBJECT_SPILL, ObjectRecord};

/// Bytes of a block pointer.
const POINTER: usize = cenote_format::blkptr::BLKPTR_SIZE;

/// Pointers that the dnode of a new object has (`deduce_nblkptr`).
fn pointers(record: &ObjectRecord) -> usize {
    let slots = usize::from(record.slots.max(1));
    let room = (slots * DNODE_SLOT).saturating_sub(DNODE_CORE + POINTER);
    match record.bonus_kind {
        DmuType::SA => 1,
        _ => (1 + room.saturating_sub(record.bonus_len as usize) / POINTER).min(3),
    }
}

/// What is to become of an object that is there.
enum Fate {
    /// It goes, and another one takes its number.
    Anew,
    /// It stays.
    Same,
}

/// Whether the object in the record is the one that is there (`receive_handle_existing_object`).
fn fate(
    record: &ObjectRecord,
    bonus: &[u8],
    there: &DnodePhys,
    kind: Kind,
) -> std::result::Result<Fate, WriteError> {
    let slots = u64::from(record.slots.max(1));
    let other = record.kind != there.kind
        || record.bonus_kind != there.bonus_kind
        || pointers(record) < there.pointers.len()
        || slots != there.slots();
    if other {
        return Ok(Fate::Anew);
    }
    let generation = |bonus: &[u8]| {
        sa::file_info(record.bonus_kind, bonus, ByteOrder::Little).map(|info| info.generation)
    };
    let (now, then) = (generation(bonus), generation(&there.bonus));
    if now != then {
        return Ok(Fate::Anew);
    }
    let size = u64::from(record.block_size);
    if size == there.block_size {
        return Ok(Fate::Same);
    }
    let small = kind.full || record.kind != DmuType::PLAIN_FILE_CONTENTS || there.max_block == 0;
    if small || now.is_none() {
        return Ok(Fate::Anew);
    }
    // The same file, which was sent in smaller blocks before: it keeps those.
    match size > there.block_size {
        true => Ok(Fate::Same),
        false => {
            let why = format!("blocks of {size} bytes, where there are larger ones");
            Err(WriteError::Invalid { object: record.object, why })
        }
    }
}

/// Puts an object where the record says.
pub(super) fn put_object(
    os: &mut OpenObjectSet,
    record: &ObjectRecord,
    bonus: &[u8],
    kind: Kind,
) -> std::result::Result<(), WriteError> {
    let number = record.object;
    let there = match os.dnode(number) {
        Ok(dnode) => Some(dnode.clone()),
        Err(WriteError::Read(Error::NoObject { .. })) => None,
        Err(e) => return Err(e),
    };
    let fate = there.as_ref().map(|there| fate(record, bonus, there, kind)).transpose()?;
    if let (Some(there), Some(Fate::Same)) = (&there, fate) {
        // Old senders do not say whether there is a spill block: they send it where the bonus buffer changes.
        let keeps_spill = match kind.spills {
            true => record.flags & OBJECT_SPILL != 0,
            false => bonus.len() == there.bonus.len(),
        };
        // First, because it takes room of the bonus buffer.
        if os.dnode_with_spill(number)?.1 && !keeps_spill {
            os.set_spill(number, None)?;
        }
        os.set_bonus(number, record.bonus_kind, bonus)?;
        return os.set_functions(number, record.checksum, record.compress);
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
    os.claim(
        number,
        &NewObject {
            bonus_kind: record.bonus_kind,
            bonus: bonus.to_vec(),
            dnode_size: slots as usize * DNODE_SLOT,
            checksum: record.checksum,
            compress: record.compress,
            ..NewObject::new(record.kind, record.block_size.into())
        },
    )
}
