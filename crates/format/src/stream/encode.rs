//! Encoding records (`dmu_replay_record_t`), in little-endian byte order.

use super::{Begin, CHECKSUM_AT, MAGIC, NAME_SIZE, RECORD_SIZE, Record};
use crate::ByteOrder;
use crate::checksum::Fletcher4;
use crate::crypt::{IV_LEN, SALT_LEN, Seal};
use crate::encode::{EncodeError, Result};

/// Where a record's own bytes begin.
const BODY: usize = 8;

/// Writes the records of one stream.
pub struct Encoder {
    sum: Fletcher4,
    to_guid: u64,
}

/// A record that is being filled in. Offsets are those in the record's own bytes.
struct Fields([u8; RECORD_SIZE]);

impl Fields {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(to) = self.0.get_mut(BODY + at..BODY + at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }

    fn u64s(&mut self, at: usize, words: &[u64]) {
        for (i, word) in words.iter().enumerate() {
            self.put(at + 8 * i, &word.to_le_bytes());
        }
    }

    fn u32s(&mut self, at: usize, words: &[u32]) {
        for (i, word) in words.iter().enumerate() {
            self.put(at + 4 * i, &word.to_le_bytes());
        }
    }

    fn seal(&mut self, at: usize, seal: &Seal) {
        let Seal { params, mac } = seal;
        self.put(at, &params.salt);
        self.put(at + SALT_LEN, &params.iv);
        self.put(at + SALT_LEN + IV_LEN, mac);
    }

    fn begin(&mut self, begin: &Begin) -> Result<()> {
        if begin.to_name.len() >= NAME_SIZE || begin.to_name.contains(&0) {
            let why = format!("a name of {} bytes", begin.to_name.len());
            return Err(EncodeError::unrepresentable("send stream", why));
        }
        let version = u64::from(begin.header_type & 3) | begin.features << 2;
        self.u64s(0, &[MAGIC, version, begin.creation_time]);
        self.u32s(24, &[begin.kind, begin.flags]);
        self.u64s(32, &[begin.to_guid, begin.from_guid]);
        self.put(48, &begin.to_name);
        Ok(())
    }
}

impl Encoder {
    /// For the stream of the snapshot that has this guid.
    pub fn new(to_guid: u64) -> Encoder {
        Encoder { sum: Fletcher4::new(ByteOrder::Little), to_guid }
    }

    /// The bytes of END for what was encoded so far (`dump_record`).
    ///
    /// # Errors
    /// Never: only names can be refused.
    pub fn end(&mut self) -> Result<[u8; RECORD_SIZE]> {
        self.record(&Record::End { checksum: self.sum.finish() })
    }

    /// The bytes of a record. Its payload goes through [`Encoder::payload`] next.
    ///
    /// # Errors
    /// A name that is too long.
    pub fn record(&mut self, record: &Record) -> Result<[u8; RECORD_SIZE]> {
        let mut fields = Fields([0; RECORD_SIZE]);
        let kind = self.fill(&mut fields, record)?;
        let Fields(mut bytes) = fields;
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        if let Record::Begin(begin) = record {
            bytes[4..8].copy_from_slice(&begin.payload.to_le_bytes());
        }
        self.sum.update(&bytes[..CHECKSUM_AT]);
        if kind != 0 {
            for (to, sum) in bytes[CHECKSUM_AT..].chunks_mut(8).zip(self.sum.finish()) {
                to.copy_from_slice(&sum.to_le_bytes());
            }
        }
        self.sum.update(&bytes[CHECKSUM_AT..]);
        Ok(bytes)
    }

    /// Takes note of payload, or a part of it.
    pub fn payload(&mut self, bytes: &[u8]) {
        self.sum.update(bytes);
    }

    /// Fills in a record; returns the number of its type.
    fn fill(&self, f: &mut Fields, record: &Record) -> Result<u32> {
        let guid = self.to_guid;
        Ok(match record {
            Record::Begin(begin) => {
                f.begin(begin)?;
                0
            }
            Record::Object(o) => {
                f.u64s(0, &[o.object]);
                f.u32s(8, &[o.kind.0.into(), o.bonus_kind.0.into(), o.block_size, o.bonus_len]);
                f.put(24, &[o.checksum, o.compress, o.slots, o.flags]);
                f.u64s(32, &[guid]);
                if let Some(raw) = &o.raw {
                    f.u32s(28, &[raw.bonus_len]);
                    f.put(40, &[raw.indirect_shift, raw.levels, raw.pointers]);
                    f.u64s(48, &[raw.max_block]);
                }
                1
            }
            Record::FreeObjects { first, count } => {
                f.u64s(0, &[*first, *count, guid]);
                2
            }
            Record::Write(w) => {
                f.u64s(0, &[w.object]);
                f.u32s(8, &[w.kind.0.into()]);
                f.u64s(16, &[w.offset, w.logical_size, guid]);
                f.put(40, &[w.checksum, w.flags, w.compression]);
                f.u64s(48, &w.key);
                f.u64s(88, &[w.compressed_size]);
                if let Some(seal) = &w.seal {
                    f.seal(96, seal);
                }
                3
            }
            Record::Free { object, offset, length } => {
                f.u64s(0, &[*object, *offset, *length, guid]);
                4
            }
            Record::End { checksum } => {
                f.u64s(0, checksum);
                f.u64s(32, &[guid]);
                5
            }
            Record::Spill(s) => {
                f.u64s(0, &[s.object, s.length, guid]);
                f.put(24, &[s.flags, s.compression]);
                f.u64s(32, &[s.compressed_size]);
                if let Some(seal) = &s.seal {
                    f.seal(40, seal);
                }
                7
            }
            Record::WriteEmbedded(e) => {
                f.u64s(0, &[e.object, e.offset, e.length, guid]);
                f.put(32, &[e.compression, e.etype]);
                f.u32s(40, &[e.lsize, e.psize]);
                8
            }
            Record::ObjectRange(range) => {
                f.u64s(0, &[range.first, range.count, guid]);
                f.seal(24, &range.seal);
                f.put(60, &[range.flags]);
                9
            }
            Record::Redact { object, offset, length } => {
                f.u64s(0, &[*object, *offset, *length, guid]);
                10
            }
        })
    }
}
