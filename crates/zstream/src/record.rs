//! Records as they are in a stream, which may be of any kind, damaged, or of the other byte order.
//!
//! `format::stream` refuses what a receiver has to refuse. `zstream` shows it all the same: so
//! fields are read here where they stand, and make no promise. The layout is that of `dmu_replay_record_t`.

use cenote_format::checksum::Fletcher4;
use cenote_format::stream::RECORD_SIZE;
use cenote_format::{ByteOrder, MAX_BLOCK};
use std::io::{self, Read};

/// Where a record's own checksum begins.
pub const CHECKSUM_AT: usize = 280;
/// Where a record's own fields begin.
const BODY: usize = 8;
/// `DMU_BACKUP_MAGIC`.
const MAGIC: u64 = 0x2_F5BA_CBAC;
/// Longest list behind a BEGIN.
const MAX_LIST: u64 = 1 << 28;
/// Bytes of payload that are read at once.
const STEP: usize = 1 << 20;

/// Numbers of the types of records (`drr_type`).
#[allow(missing_docs)] // Names are OpenZFS's.
pub mod kind {
    pub const BEGIN: u32 = 0;
    pub const OBJECT: u32 = 1;
    pub const FREEOBJECTS: u32 = 2;
    pub const WRITE: u32 = 3;
    pub const FREE: u32 = 4;
    pub const END: u32 = 5;
    pub const WRITE_BYREF: u32 = 6;
    pub const SPILL: u32 = 7;
    pub const WRITE_EMBEDDED: u32 = 8;
    pub const OBJECT_RANGE: u32 = 9;
    pub const REDACT: u32 = 10;
    /// How many there are.
    pub const COUNT: u32 = 11;
}

/// A record.
#[derive(Clone)]
pub struct Raw {
    /// Its bytes, in the byte order of the stream.
    pub bytes: [u8; RECORD_SIZE],
    order: ByteOrder,
}

impl Raw {
    fn at<const N: usize>(&self, at: usize) -> [u8; N] {
        let found = self.bytes.get(at..at.saturating_add(N)).and_then(|b| b.first_chunk());
        found.copied().unwrap_or([0; N])
    }

    fn u64_at(&self, at: usize) -> u64 {
        match self.order {
            ByteOrder::Little => u64::from_le_bytes(self.at(at)),
            ByteOrder::Big => u64::from_be_bytes(self.at(at)),
        }
    }

    fn u32_at(&self, at: usize) -> u32 {
        match self.order {
            ByteOrder::Little => u32::from_le_bytes(self.at(at)),
            ByteOrder::Big => u32::from_be_bytes(self.at(at)),
        }
    }

    /// Whether it is of a machine with this one's usual byte order: little-endian.
    pub fn is_native(&self) -> bool {
        self.order == ByteOrder::Little
    }

    /// The number of its type.
    pub fn kind(&self) -> u32 {
        self.u32_at(0)
    }

    /// Bytes of the list behind a BEGIN.
    pub fn list_len(&self) -> u32 {
        self.u32_at(4)
    }

    /// A field of 64 bits.
    pub fn u64(&self, at: usize) -> u64 {
        self.u64_at(BODY + at)
    }

    /// A field of 32 bits.
    pub fn u32(&self, at: usize) -> u32 {
        self.u32_at(BODY + at)
    }

    /// A field of 8 bits.
    pub fn u8(&self, at: usize) -> u8 {
        u8::from_le_bytes(self.at(BODY + at))
    }

    /// Bytes as they are.
    pub fn slice(&self, at: usize, len: usize) -> &[u8] {
        self.bytes.get(BODY + at..BODY + at + len).unwrap_or_default()
    }

    /// Changes a field of 64 bits.
    pub fn set_u64(&mut self, at: usize, value: u64) {
        let bytes = match self.order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        };
        if let Some(to) = self.bytes.get_mut(BODY + at..BODY + at + 8) {
            to.copy_from_slice(&bytes);
        }
    }

    /// Changes a field of 8 bits.
    pub fn set_u8(&mut self, at: usize, value: u8) {
        if let Some(to) = self.bytes.get_mut(BODY + at) {
            *to = value;
        }
    }

    /// The four words of a checksum that begins at `at` of the whole record.
    pub fn checksum_at(&self, at: usize) -> [u64; 4] {
        [0, 8, 16, 24].map(|i| self.u64_at(at + i))
    }

    /// Puts a checksum at `at` of the whole record.
    pub fn set_checksum(&mut self, at: usize, words: [u64; 4]) {
        for (i, word) in words.into_iter().enumerate() {
            self.set_u64(at - BODY + 8 * i, word);
        }
    }

    /// Bytes that follow it, for a type that is known.
    pub fn payload_len(&self) -> u64 {
        let rounded = |bytes: u32| u64::from(bytes).next_multiple_of(8);
        match self.kind() {
            kind::BEGIN => self.list_len().into(),
            kind::OBJECT => match (self.u32(20), self.u32(28)) {
                (0, _) => 0,
                (bonus, 0) => rounded(bonus),
                (_, raw) => raw.into(),
            },
            kind::WRITE => match self.u8(42) {
                0 => self.u64(24),
                _ => self.u64(88),
            },
            kind::SPILL => match self.u64(32) {
                0 => self.u64(8),
                compressed => compressed,
            },
            kind::WRITE_EMBEDDED => rounded(self.u32(44)),
            _ => 0,
        }
    }
}

/// Why a stream cannot be read on.
#[derive(Debug)]
pub enum Broken {
    /// It does not begin as a stream does.
    BadMagic,
    /// A record has a wrong checksum; the right one.
    Checksum([u64; 4]),
    /// It is cut short.
    Short,
    /// A record would have so many bytes behind it.
    TooLong(u64),
    /// Reading failed.
    Io(io::Error),
}

impl From<io::Error> for Broken {
    fn from(e: io::Error) -> Broken {
        match e.kind() {
            io::ErrorKind::UnexpectedEof => Broken::Short,
            _ => Broken::Io(e),
        }
    }
}

/// Reads a stream, record by record, and verifies checksums.
pub struct Reader<'a> {
    from: &'a mut dyn Read,
    verify: bool,
    order: Option<ByteOrder>,
    sum: Fletcher4,
    /// The sum before the record that was read last.
    before: [u64; 4],
    /// Bytes that were read.
    pub length: u64,
}

impl<'a> Reader<'a> {
    /// Reads from here; checksums are verified or not.
    pub fn new(from: &'a mut dyn Read, verify: bool) -> Reader<'a> {
        let sum = Fletcher4::new(ByteOrder::Little);
        Reader { from, verify, order: None, sum, before: [0; 4], length: 0 }
    }

    /// The next record; `None`: the stream ends.
    ///
    /// # Errors
    /// See [`Broken`]. A piece of a record at the end of the stream is ignored.
    pub fn record(&mut self) -> Result<Option<Raw>, Broken> {
        let mut bytes = [0; RECORD_SIZE];
        let mut have = 0;
        while let Some(rest) = bytes.get_mut(have..).filter(|rest| !rest.is_empty()) {
            match self.from.read(rest) {
                Ok(0) => {
                    // As much as OpenZFS counts of a piece.
                    self.length += if have >= CHECKSUM_AT { CHECKSUM_AT as u64 } else { 0 };
                    return Ok(None);
                }
                Ok(n) => have += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        self.length += RECORD_SIZE as u64;
        let order = match self.order {
            Some(order) => order,
            None => self.recognize(bytes)?,
        };
        let raw = Raw { bytes, order };
        self.before = self.sum.finish();
        let (head, own) = bytes.split_at(CHECKSUM_AT);
        self.sum.update(head);
        let (expected, found) = (self.sum.finish(), raw.checksum_at(CHECKSUM_AT));
        self.sum.update(own);
        if self.verify && found != [0; 4] && found != expected {
            return Err(Broken::Checksum(expected));
        }
        Ok(Some(raw))
    }

    fn recognize(&mut self, bytes: [u8; RECORD_SIZE]) -> Result<ByteOrder, Broken> {
        let is = |order: &ByteOrder| Raw { bytes, order: *order }.u64(0) == MAGIC;
        let order = [ByteOrder::Little, ByteOrder::Big].into_iter().find(is);
        let order = order.ok_or(Broken::BadMagic)?;
        self.order = Some(order);
        self.sum = Fletcher4::new(order);
        Ok(order)
    }

    /// What follows a record.
    ///
    /// # Errors
    /// It is longer than can be, or cut short.
    pub fn payload(&mut self, raw: &Raw) -> Result<Vec<u8>, Broken> {
        let len = raw.payload_len();
        let limit = if raw.kind() == kind::BEGIN { MAX_LIST } else { MAX_BLOCK };
        if len > limit {
            return Err(Broken::TooLong(len));
        }
        let mut payload = Vec::new();
        // What a record claims is not believed before it is there.
        while (payload.len() as u64) < len {
            let at = payload.len();
            payload.resize((at + STEP).min(len as usize), 0);
            self.from.read_exact(payload.get_mut(at..).unwrap_or_default())?;
        }
        self.length += len;
        self.sum.update(&payload);
        Ok(payload)
    }

    /// Reads a record once more, from where it began, and what follows it. `like` is another record of the stream.
    ///
    /// # Errors
    /// Errors of reading; it has become another one.
    pub fn again(from: &'a mut dyn Read, like: &Raw) -> Result<(Raw, Vec<u8>), Broken> {
        let mut reader = Reader::new(from, false);
        reader.order = Some(like.order);
        let raw = reader.record()?.filter(|raw| raw.kind() == kind::WRITE);
        let raw = raw.ok_or(Broken::Short)?;
        let payload = reader.payload(&raw)?;
        Ok((raw, payload))
    }

    /// Forgets the sum, as at the end of a stream.
    pub fn restart(&mut self) {
        self.sum = Fletcher4::new(self.order.unwrap_or(ByteOrder::Little));
    }

    /// The sum of all before the record that was read last.
    pub fn sum_before(&self) -> [u64; 4] {
        self.before
    }
}
