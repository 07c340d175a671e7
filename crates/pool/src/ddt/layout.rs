//! The bytes of a deduplication table: keys, entries of its ZAPs, records and headers of its logs.
//!
//! ```text
//! key      checksum, 4 words │ lsize(16) | psize(16) | compression(7) | crypt(1)          ddt_key_t
//! phys     traditional: 4 × (DVAs, 6 words │ references │ birth)                    ddt_univ_phys_t
//!          flat:        DVAs, 6 words │ references │ birth │ seconds of the last change
//! value    function(7) | little-endian(1), one byte │ phys, compressed               ddt_zap_compress
//! record   type(8) | length(16) | 0(24) | type of ZAP(8) | class(8) │ key │ phys     ddt_log_record_t
//! header   version(8) | flags(8) │ length │ first group │ key of the checkpoint      ddt_log_header_t
//! ```

use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::compress::{self, Compression, LEVEL_DEFAULT};
use cenote_format::{ByteOrder, Bytes, DecodeError, Result, less};
use std::ops::{Deref, DerefMut};

/// Entries have one extensible variant (`DDT_FLAG_FLAT`).
pub const FLAG_FLAT: u64 = 1;
/// The table has logs (`DDT_FLAG_LOG`).
pub const FLAG_LOG: u64 = 2;
/// The log is being flushed to the ZAPs (`DDL_FLAG_FLUSHING`).
pub const LOG_FLUSHING: u8 = 1;
/// The log's header has a checkpoint (`DDL_FLAG_CHECKPOINT`).
pub const LOG_CHECKPOINT: u8 = 2;
/// Classes of entries (`ddt_class_t`): `ditto`, `duplicate`, `unique`.
pub const CLASSES: [&str; 3] = ["ditto", "duplicate", "unique"];
/// Bytes of a log's header.
pub const HEADER_SIZE: usize = 64;

const VARIANT: usize = 64;
const TRADITIONAL_SIZE: usize = 4 * VARIANT;
const FLAT_SIZE: usize = 72;
const KEY_SIZE: usize = 40;
/// Type of a record that is an entry (`DLR_ENTRY`).
const RECORD_ENTRY: u64 = 1;
/// What a record of an entry that is in no ZAP says of its ZAP: `DDT_TYPES`, `DDT_CLASSES`.
const NO_ZAP: (u64, u64) = (1, 3);
const LITTLE: u8 = 0x80;

/// What names a block: its checksum, and `lsize(16) | psize(16) | compression(7) | crypt(1)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub [u64; 5]);

impl Key {
    /// The key under which `bp` would be found (`ddt_key_fill`).
    pub fn of(bp: &BlockPointer) -> Key {
        let c = bp.checksum();
        let prop =
            (bp.0[6] & 0xffff_ffff) | (bp.0[6] & (0x7f << 32)) | (u64::from(bp.uses_crypt()) << 39);
        Key([c[0], c[1], c[2], c[3], prop])
    }

    /// The key of a block that is not encrypted, of these sizes: multiples of 512 bytes, not 0.
    pub fn new(sum: [u64; 4], lsize: u64, psize: u64, compression: Compression) -> Key {
        let sectors =
            |bytes: u64| less!(bytes >> 9, 1, "sectors of a block of {bytes} bytes") & 0xffff;
        let prop = sectors(lsize) | sectors(psize) << 16 | u64::from(compression as u8) << 32;
        Key([sum[0], sum[1], sum[2], sum[3], prop])
    }

    /// The same, of an encrypted block.
    pub fn encrypted(self) -> Key {
        let [a, b, c, d, prop] = self.0;
        Key([a, b, c, d, prop | 1 << 39])
    }

    /// Logical bytes of the block.
    pub fn lsize(&self) -> u64 {
        ((self.0[4] & 0xffff) + 1) << 9
    }

    /// Physical bytes of the block.
    pub fn psize(&self) -> u64 {
        ((self.0[4] >> 16 & 0xffff) + 1) << 9
    }

    /// Whether the block is encrypted (its third DVA is no address).
    pub fn is_encrypted(&self) -> bool {
        self.0[4] >> 39 & 1 == 1
    }
}

/// Where one variant of a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Phys {
    /// The DVAs' six words, as in a block pointer.
    pub dvas: [u64; 6],
    /// Block pointers that refer to it.
    pub refcount: u64,
    /// Transaction group that wrote it; 0 if the variant is unused.
    pub birth: u64,
}

impl Phys {
    /// `bp` with this variant's DVAs: an entry may have got more copies since `bp` was written.
    pub fn fill(&self, bp: &BlockPointer) -> BlockPointer {
        let mut full = *bp;
        full.0[..6].copy_from_slice(&self.dvas);
        full
    }

    /// The DVAs in use (`ddt_phys_dva_count`). The third place of an encrypted block is no DVA, whatever it holds.
    pub fn copies(&self, encrypted: bool) -> Vec<Dva> {
        let mut bp = BlockPointer::HOLE;
        bp.0[..6].copy_from_slice(&self.dvas);
        (0..if encrypted { 2 } else { 3 }).filter_map(|copy| bp.dva(copy)).collect()
    }

    /// Bytes allocated for all copies.
    pub fn allocated(&self, encrypted: bool) -> u64 {
        self.copies(encrypted).iter().map(|dva| dva.asize).sum()
    }

    /// Whether `bp` refers to this variant (`ddt_phys_select`): its first copy and its birth.
    pub fn is_of(&self, bp: &BlockPointer) -> bool {
        self.birth != 0 && self.dvas[..2] == bp.0[..2] && self.birth == bp.physical_birth()
    }
}

/// The variants of an entry (`ddt_univ_phys_t`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Variants {
    /// One, which may get more copies.
    Flat(Phys),
    /// One by number of copies; the first is obsolete (`DDT_PHYS_DITTO`).
    Traditional(Box<[Phys; 4]>),
}

impl Variants {
    /// Unused ones, of a table with these flags.
    pub fn unused(flags: u64) -> Variants {
        match flags & FLAG_FLAT != 0 {
            true => Variants::Flat(Phys::default()),
            false => Variants::Traditional(Box::default()),
        }
    }

    /// The references of all variants that are not obsolete (`ddt_phys_total_refcnt`).
    /// More than there are numbers, which no sound table has, are as many as there are.
    pub fn references(&self) -> u64 {
        let counted = match self {
            Variants::Flat(_) => &self[..],
            Variants::Traditional(all) => &all[1..],
        };
        counted.iter().map(|phys| phys.refcount).fold(0, u64::saturating_add)
    }

    /// Whether nothing is said of any variant.
    pub fn is_unused(&self) -> bool {
        self.iter().all(|phys| *phys == Phys::default())
    }
}

impl Deref for Variants {
    type Target = [Phys];

    fn deref(&self) -> &[Phys] {
        match self {
            Variants::Flat(phys) => std::slice::from_ref(phys),
            Variants::Traditional(all) => &all[..],
        }
    }
}

impl DerefMut for Variants {
    fn deref_mut(&mut self) -> &mut [Phys] {
        match self {
            Variants::Flat(phys) => std::slice::from_mut(phys),
            Variants::Traditional(all) => &mut all[..],
        }
    }
}

/// An entry of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub key: Key,
    /// Its variants.
    pub phys: Variants,
    /// When it was changed last, in seconds since 1970 (`ddp_class_start`); 0 in tables of version 0.
    pub class_start: u64,
    /// The class of the ZAP that has the entry, as it was when it was stored there; `None`: it is in no ZAP.
    pub stored: Option<usize>,
}

/// Bytes of what is stored of an entry.
pub fn phys_size(flags: u64) -> usize {
    if flags & FLAG_FLAT != 0 { FLAT_SIZE } else { TRADITIONAL_SIZE }
}

/// Bytes of a record.
pub fn record_size(flags: u64) -> usize {
    8 + KEY_SIZE + phys_size(flags)
}

fn decode_phys(flags: u64, b: &Bytes<'_>) -> Result<(Variants, u64)> {
    let one = |at: usize| -> Result<Phys> {
        let w: [u64; 8] = b.u64s(at)?;
        Ok(Phys { dvas: [w[0], w[1], w[2], w[3], w[4], w[5]], refcount: w[6], birth: w[7] })
    };
    if flags & FLAG_FLAT != 0 {
        return Ok((Variants::Flat(one(0)?), b.u64(VARIANT)?));
    }
    let mut all = [Phys::default(); 4];
    for (i, phys) in all.iter_mut().enumerate() {
        *phys = one(i * VARIANT)?;
    }
    Ok((Variants::Traditional(Box::new(all)), 0))
}

fn encode_phys(entry: &Entry) -> Vec<u8> {
    let words = entry.phys.iter().flat_map(|p| p.dvas.into_iter().chain([p.refcount, p.birth]));
    let last = matches!(entry.phys, Variants::Flat(_)).then_some(entry.class_start);
    words.chain(last).flat_map(u64::to_le_bytes).collect()
}

/// Decodes the value of an entry of a ZAP of class `class` (`ddt_zap_decompress`).
///
/// # Errors
/// It is not one.
pub fn decode_value(flags: u64, key: Key, class: usize, packed: &[u8]) -> Result<Entry> {
    let invalid = |why: &str| DecodeError::invalid("dedup table entry", why);
    let (first, body) = packed.split_first().ok_or_else(|| invalid("empty"))?;
    let mut data = vec![0; phys_size(flags)];
    match Compression::from_u8(first & !LITTLE)? {
        Compression::Off | Compression::Inherit => {
            let body = body.get(..data.len()).ok_or_else(|| invalid("truncated"))?;
            data.copy_from_slice(body);
        }
        kind => compress::decompress(kind, body, &mut data)?,
    }
    let order = if first & LITTLE != 0 { ByteOrder::Little } else { ByteOrder::Big };
    let (phys, class_start) = decode_phys(flags, &Bytes::new(&data, order, "dedup table entry"))?;
    Ok(Entry { key, phys, class_start, stored: Some(class) })
}

/// The value of an entry in a ZAP (`ddt_zap_compress`).
pub fn encode_value(entry: &Entry) -> Vec<u8> {
    let data = encode_phys(entry);
    let packed = compress::compress(Compression::Zle, LEVEL_DEFAULT, &data, data.len());
    let (kind, body) = match packed.filter(|packed| packed.len() < data.len()) {
        Some(packed) => (Compression::Zle, packed),
        None => (Compression::Off, data),
    };
    [&[kind as u8 | LITTLE][..], &body].concat()
}

/// Decodes the record at byte `at` of a block of a log. `None`: there are no more. Else its length, too.
///
/// # Errors
/// It is no record.
pub fn decode_record(flags: u64, b: &Bytes<'_>, at: usize) -> Result<Option<(Entry, usize)>> {
    let info = b.u64(at)?;
    let len = (info >> 8 & 0xffff) as usize;
    match info & 0xff {
        0 => return Ok(None),
        RECORD_ENTRY if len >= record_size(flags) && len.is_multiple_of(8) => {}
        kind => {
            let why = format!("record of type {kind}, {len} bytes");
            return Err(DecodeError::invalid("dedup log", why));
        }
    }
    let key = Key(b.u64s(at + 8)?);
    let phys = b.sub(at + 8 + KEY_SIZE, phys_size(flags), "dedup log entry")?;
    let (phys, class_start) = decode_phys(flags, &phys)?;
    let (kind, class) = (info >> 48 & 0xff, info >> 56);
    let stored = match (kind, class) {
        NO_ZAP => None,
        (0, class) if (class as usize) < CLASSES.len() => Some(class as usize),
        _ => {
            let why = format!("record of an entry in a ZAP of type {kind}, class {class}");
            return Err(DecodeError::invalid("dedup log", why));
        }
    };
    Ok(Some((Entry { key, phys, class_start, stored }, len)))
}

/// A record of an entry (`ddt_log_entry`).
pub fn encode_record(entry: &Entry) -> Vec<u8> {
    let phys = encode_phys(entry);
    let len = (8 + KEY_SIZE + phys.len()) as u64;
    let (kind, class) = entry.stored.map_or(NO_ZAP, |class| (0, class as u64));
    let info = RECORD_ENTRY | len << 8 | kind << 48 | class << 56;
    let words = [info].into_iter().chain(entry.key.0).flat_map(u64::to_le_bytes);
    words.chain(phys).collect()
}

/// The header of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogHeader {
    /// `LOG_*`.
    pub flags: u8,
    /// Bytes in the log.
    pub length: u64,
    /// Transaction group in which it became active.
    pub first_txg: u64,
    /// Entries up to this one are in the ZAPs already.
    pub checkpoint: Option<Key>,
}

impl LogHeader {
    /// Decodes the bonus buffer of a log.
    ///
    /// # Errors
    /// It is too short, of another version, or has a checkpoint without being flushed: entries of an active log are in no ZAP yet.
    pub fn decode(b: &Bytes<'_>) -> Result<LogHeader> {
        let [info, length, first_txg, key @ ..] = b.u64s::<8>(0)?;
        let flags = (info >> 8 & 0xff) as u8;
        if info & 0xff != 1 {
            return Err(DecodeError::invalid("dedup log", format!("version {}", info & 0xff)));
        }
        if flags & LOG_CHECKPOINT != 0 && flags & LOG_FLUSHING == 0 {
            return Err(DecodeError::invalid("dedup log", "a checkpoint in an active log"));
        }
        let checkpoint = (flags & LOG_CHECKPOINT != 0).then_some(Key(key));
        Ok(LogHeader { flags, length, first_txg, checkpoint })
    }

    /// As the bonus buffer of a log.
    pub fn encode(&self) -> Vec<u8> {
        let key = self.checkpoint.map_or([0; 5], |key| key.0);
        let info = 1 | u64::from(self.flags) << 8;
        let words = [info, self.length, self.first_txg].into_iter().chain(key);
        words.flat_map(u64::to_le_bytes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(flags: u64, stored: Option<usize>) -> Entry {
        let mut phys = Variants::unused(flags);
        let last = phys.len() - 1;
        phys[last] = Phys { dvas: [8, 1 << 20, 0, 0, 0, 0], refcount: 3, birth: 77 };
        let class_start = if flags & FLAG_FLAT != 0 { 1_700_000_000 } else { 0 };
        Entry { key: Key([1, 2, 3, u64::MAX, 5]), phys, class_start, stored }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for flags in [0, FLAG_FLAT, FLAG_FLAT | FLAG_LOG] {
            for stored in [None, Some(0), Some(1), Some(2)] {
                let entry = entry(flags, stored);
                let record = encode_record(&entry);
                assert_eq!(record.len(), record_size(flags));
                let bytes = Bytes::new(&record, ByteOrder::Little, "test");
                let decoded = decode_record(flags, &bytes, 0).unwrap().unwrap();
                assert_eq!(decoded, (entry.clone(), record.len()));
                let Some(class) = stored else { continue };
                let value = encode_value(&entry);
                assert_eq!(decode_value(flags, entry.key, class, &value).unwrap(), entry);
            }
        }
    }

    #[test]
    fn headers() {
        let key = Key([9, 8, 7, 6, 5]);
        for (flags, checkpoint) in [(0, None), (LOG_FLUSHING | LOG_CHECKPOINT, Some(key))] {
            let header = LogHeader { flags, length: 1 << 17, first_txg: 12, checkpoint };
            let bytes = header.encode();
            assert_eq!(bytes.len(), HEADER_SIZE);
            let bytes = Bytes::new(&bytes, ByteOrder::Little, "test");
            assert_eq!(LogHeader::decode(&bytes).unwrap(), header);
        }
    }

    #[test]
    fn a_checkpoint_in_an_active_log_is_refused() {
        let checkpoint = Some(Key([u64::MAX; 5]));
        let header = LogHeader { flags: LOG_CHECKPOINT, length: 0, first_txg: 12, checkpoint };
        let bytes = header.encode();
        assert!(LogHeader::decode(&Bytes::new(&bytes, ByteOrder::Little, "test")).is_err());
    }

    #[test]
    fn records_in_no_class_there_is_are_refused() {
        let mut record = encode_record(&entry(FLAG_FLAT, Some(2)));
        record[7] = 9;
        assert!(decode_record(FLAG_FLAT, &Bytes::new(&record, ByteOrder::Little, "t"), 0).is_err());
    }

    #[test]
    fn keys_are_those_of_pointers() {
        let key = Key::new([1, 2, 3, 4], 128 << 10, 4096, Compression::Lz4);
        assert_eq!((key.lsize(), key.psize(), key.is_encrypted()), (128 << 10, 4096, false));
        let mut bp = BlockPointer::HOLE;
        bp.0[6] = 255 | 7 << 16 | (Compression::Lz4 as u64) << 32 | 8 << 40;
        bp.0[12..].copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!(Key::of(&bp), key);
        bp.0[6] |= 1 << 61;
        assert_eq!(Key::of(&bp), key.encrypted());
        assert!(key.encrypted().is_encrypted());
    }

    /// One copy, and in the place of the third salt and initialization vector.
    #[test]
    fn encrypted_blocks_have_two_copies_at_most() {
        let phys = Phys { dvas: [8, 16, 0, 0, 0x1234_5678, 0x9abc_def0], refcount: 1, birth: 5 };
        assert_eq!((phys.copies(true).len(), phys.copies(false).len()), (1, 2));
        let phys = Phys { dvas: [8, 16, 8, 32, 0x1234_5678, 0x9abc_def0], ..phys };
        assert_eq!((phys.copies(true).len(), phys.copies(false).len()), (2, 3));
    }
}
