//! What is put into the object set with one change (`flush_write_batch`).
//!
//! A change costs more than a record: it enters the transaction group, and takes the lock of the object set. So records
//! are gathered, of one object or of many small ones, until there is enough for a change ([`BYTES`], [`OPS`]).
//!
//! Invariant: what a batch does is known, with what it costs and with the objects that are there, before any of it is
//! done. Records that need to see what a batch does come after it.

use super::kind::Kind;
use super::object::put_object;
use cenote_dmu::live::Cost;
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_dsl::write::receive::Point;
use cenote_format::crypt::Seal;
use cenote_format::stream::ObjectRecord;
use cenote_store::write::Payload;
use std::collections::BTreeSet;

/// Bytes that are put in with one change (`zfs_recv_write_batch_size`).
const BYTES: u64 = 1 << 20;
/// Records that are put in with one change.
const OPS: usize = 192;

/// What a record does.
pub(super) enum Op {
    /// An object comes to be, or changes.
    Object { record: ObjectRecord, bonus: Vec<u8>, seal: Option<Seal> },
    /// A block.
    Write { object: u64, offset: u64, data: Payload },
    /// A hole, in whose place there are so many pointers on disk.
    Free { object: u64, offset: u64, length: u64, pointers: u64 },
    /// A spill block.
    Spill { object: u64, data: Payload },
}

impl Op {
    /// Bytes that it holds.
    fn bytes(&self) -> u64 {
        match self {
            Op::Object { bonus, .. } => bonus.len() as u64,
            Op::Write { data, .. } => data.len() as u64,
            Op::Free { .. } => 0,
            Op::Spill { data, .. } => data.len() as u64,
        }
    }

    /// Does it. `behind`: what comes after it.
    fn apply(&self, os: &mut OpenObjectSet, kind: Kind, behind: &[Op]) -> Result<(), WriteError> {
        match self {
            Op::Object { record, bonus, seal } => {
                if let Some(seal) = seal {
                    os.set_seal(record.object, *seal)?;
                }
                put_object(os, (record, bonus), kind, replaced(record.object, behind))
            }
            Op::Write { object, offset, data } => os.write_payload(*object, *offset, data),
            Op::Free { object, offset, length, pointers } => {
                os.note_freed(*pointers);
                os.free_range(*object, *offset, *length)
            }
            Op::Spill { object, data } => os.set_spill_payload(*object, Some(data.clone())),
        }
    }
}

/// Bytes from the start of an object that `behind`, which comes after its record, replaces.
fn replaced(object: u64, behind: &[Op]) -> u64 {
    let own = behind.iter().take_while(|op| !matches!(op, Op::Object { .. }));
    let first = own.filter_map(|op| match op {
        Op::Write { object: of, offset: 0, data } if *of == object => Some(data.len() as u64),
        _ => None,
    });
    first.max().unwrap_or(0)
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Batch {
    ops: Vec<Op>,
    bytes: u64,
    /// What the operations count for as a change.
    write: u64,
    objects: u64,
    /// Objects that it puts.
    put: BTreeSet<u64>,
    /// The last record that can be gone on from.
    pub(super) at: Option<Point>,
}

impl Batch {
    /// Adds what makes so many bytes and objects dirty at most.
    pub(super) fn add(&mut self, op: Op, write: u64, objects: u64) {
        if let Op::Object { record, .. } = &op {
            self.put.insert(record.object);
        }
        self.bytes += op.bytes();
        self.write = self.write.saturating_add(write);
        self.objects = self.objects.saturating_add(objects);
        self.ops.push(op);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// There is enough for a change.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= BYTES || self.ops.len() >= OPS
    }

    /// Whether it puts an object with a number from `first` to before `end`.
    pub(super) fn puts_any(&self, first: u64, end: u64) -> bool {
        first < end && self.put.range(first..end).next().is_some()
    }

    /// What the change costs at most.
    pub(super) fn cost(&self) -> Cost {
        let frees = self.ops.iter().all(|op| matches!(op, Op::Free { .. }));
        Cost { write: self.write, objects: self.objects, frees }
    }

    /// Does all of it.
    ///
    /// # Errors
    /// A record does not fit to what is there; it cannot be written.
    pub(super) fn apply(&self, os: &mut OpenObjectSet, kind: Kind) -> Result<(), WriteError> {
        (1..)
            .zip(&self.ops)
            .try_for_each(|(next, op)| op.apply(os, kind, self.ops.get(next..).unwrap_or_default()))
    }
}
