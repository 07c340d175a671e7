//! What lies on a cache device (L2ARC): the header, the log blocks, and where they are right.
//!
//! ```text
//! 0       4 MiB     start                                              end
//! | labels | header | blocks … log | blocks … log | … free … | … older | labels |
//!                    ─────────────────────────> hand ──> evicted
//! ```
//!
//! Blocks lie there as they lie in the pool, each filled up to whole sectors. A *hand* goes round: what is written next goes
//! where the hand is, and what is in front of it, up to the byte `evict`, is given up before. After every so many
//! blocks a *log block* says what the blocks before it are. Log blocks form two chains: each points to the one before the last. The
//! *header* ([`Header`], `l2arc_dev_hdr_phys_t`) points to the last two.
//!
//! ```text
//! header    magic, version, pool, vdev, entries of a log block, evict, flags, start, end (9 words)
//!           pointers to the last log block and the one before (2 × 8 words)
//!           bytes of log blocks, log blocks, when the device was trimmed, how far (4 words), 30 words, zio_eck_t
//! pointer   place, bytes of the blocks, where they begin, properties, fletcher4 (8 words)
//! log       magic, pointer to the one before the last, 7 words, then up to 1022 entries of 8 words; 64 KiB, LZ4
//! entry     first DVA (2 words), birth, properties, place, level of compression, 2 words
//! ```
//!
//! Properties, of pointers and entries ([`Props`], `l2e_prop`):
//!
//! ```text
//! bits 0-15 logical size, 16-31 physical size (sectors, less one), 32-38 compression, 39 read ahead, 40-47 checksum,
//! 48-55 kind of contents, 56 encrypted or authenticated, 57-60 list of the ARC
//! ```
//!
//! The header carries its checksum at the end of its sector. Integers are those of the machine that wrote them; the
//! magic tells which.
//!
//! Nothing here is trusted: a block that is read by an entry is checked against the pointer that asks for it.

use crate::checksum::{Checksum, Fletcher4, verify_embedded};
use crate::compress::{Compression, decompress};
use crate::{ByteOrder, Bytes, DecodeError, LABEL_START, Result, SECTOR, SECTOR_SHIFT};

/// What a header begins with (`L2ARC_DEV_HDR_MAGIC`).
pub const HEADER_MAGIC: u64 = 0x5a46_5343_4143_4845;
/// What a log block begins with (`L2ARC_LOG_BLK_MAGIC`).
pub const LOG_MAGIC: u64 = 0x4c4f_4742_4c4b_4844;
/// The version of the format (`L2ARC_PERSISTENT_VERSION`).
pub const VERSION: u64 = 1;
/// Bytes of a header without what fills its sector up.
pub const HEADER_SIZE: usize = 512;
/// Bytes of a log block, unpacked (`l2arc_log_blk_phys_t`).
pub const LOG_SIZE: usize = 64 << 10;
/// Entries of a log block at most (`L2ARC_LOG_BLK_MAX_ENTRIES`).
pub const MOST_ENTRIES: u64 = 1022;
/// Bytes of an entry.
pub(crate) const ENTRY_SIZE: usize = 64;
/// Bytes of a log block before its entries.
pub(crate) const LOG_HEAD: usize = 128;
/// Bytes of a pointer to a log block.
const POINTER_SIZE: usize = 64;
/// The hand has not been round yet (`L2ARC_DEV_HDR_EVICT_FIRST`).
pub(crate) const FIRST: u64 = 1;

/// What an entry or a pointer to a log block says of the bytes (`l2e_prop`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Props(pub u64);

/// Which list of the ARC a block was in (`arc_state_type_t`), as far as blocks come from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The recent one.
    Mru = 1,
    /// The frequent one.
    Mfu = 3,
}

impl Props {
    fn bits(self, low: u32, len: u32) -> u64 {
        self.0 >> low & ((1 << len) - 1)
    }

    fn with(self, low: u32, len: u32, value: u64) -> Props {
        let mask = (1 << len) - 1;
        Props(self.0 & !(mask << low) | (value & mask) << low)
    }

    /// Bytes unpacked.
    pub fn lsize(self) -> u64 {
        (self.bits(0, 16) + 1) << SECTOR_SHIFT
    }

    /// Bytes as they lie there; of a log block in whole sectors of the device.
    pub fn psize(self) -> u64 {
        (self.bits(16, 16) + 1) << SECTOR_SHIFT
    }

    /// These sizes, in bytes: multiples of 512, from 512 to 32 MiB.
    pub fn sized(self, lsize: u64, psize: u64) -> Props {
        let sectors = |bytes: u64| (bytes >> SECTOR_SHIFT).wrapping_sub(1);
        self.with(0, 16, sectors(lsize)).with(16, 16, sectors(psize))
    }

    /// The compression, as in a block pointer.
    pub fn compression(self) -> u8 {
        self.bits(32, 7) as u8
    }

    /// With this compression.
    pub fn compressed(self, how: u8) -> Props {
        self.with(32, 7, how.into())
    }

    /// Whether the block was read ahead, and no reader had wanted it.
    pub fn is_ahead(self) -> bool {
        self.bits(39, 1) != 0
    }

    /// Read ahead or not.
    pub fn ahead(self, ahead: bool) -> Props {
        self.with(39, 1, ahead.into())
    }

    /// The checksum of a log block.
    pub fn checksum(self) -> u8 {
        self.bits(40, 8) as u8
    }

    /// With this checksum.
    pub fn checked(self, how: Checksum) -> Props {
        self.with(40, 8, how as u64)
    }

    /// The kind of contents as it lies there (`arc_buf_contents_t`): 1 data, 2 metadata.
    pub fn contents(self) -> u64 {
        self.bits(48, 8)
    }

    /// Whether the block is metadata.
    pub fn is_metadata(self) -> bool {
        self.contents() == 2
    }

    /// Metadata or data.
    pub fn metadata(self, metadata: bool) -> Props {
        self.with(48, 8, if metadata { 2 } else { 1 })
    }

    /// Whether the block is encrypted or authenticated.
    pub fn is_protected(self) -> bool {
        self.bits(56, 1) != 0
    }

    /// Encrypted or authenticated, or neither.
    pub fn protected(self, protected: bool) -> Props {
        self.with(56, 1, protected.into())
    }

    /// The number of the list that the block was in.
    pub fn state(self) -> u64 {
        self.bits(57, 4)
    }

    /// From this list.
    pub fn of(self, state: State) -> Props {
        self.with(57, 4, state as u64)
    }
}

/// Where a log block is (`l2arc_log_blkptr_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPointer {
    /// Byte of the device.
    pub place: u64,
    /// Bytes of its blocks, in whole sectors.
    pub payload: u64,
    /// Byte of the device at which they begin.
    pub payload_start: u64,
    /// Its sizes, compression and checksum.
    pub props: Props,
    /// The checksum of its bytes.
    pub sum: [u64; 4],
}

impl LogPointer {
    fn decode(bytes: &Bytes<'_>, at: usize) -> Result<LogPointer> {
        let word = |i: usize| bytes.u64(at + 8 * i);
        let [place, payload, payload_start] = [word(0)?, word(1)?, word(2)?];
        let sum = [word(4)?, word(5)?, word(6)?, word(7)?];
        Ok(LogPointer { place, payload, payload_start, props: Props(word(3)?), sum })
    }

    /// The words.
    pub(crate) fn words(&self) -> [u64; 8] {
        let [a, b, c, d] = self.sum;
        [self.place, self.payload, self.payload_start, self.props.0, a, b, c, d]
    }
}

/// The header of a cache device (`l2arc_dev_hdr_phys_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The version of the format.
    pub version: u64,
    /// Guid of the pool.
    pub pool: u64,
    /// Guid of the device.
    pub vdev: u64,
    /// Entries of each log block.
    pub entries: u64,
    /// Up to which byte of the device blocks are given up.
    pub evict: u64,
    /// Flags; bit 0: the hand has not been round yet.
    pub flags: u64,
    /// First byte of the device behind the header.
    pub start: u64,
    /// The byte of the device behind the last one.
    pub end: u64,
    /// The last log block, and the one before.
    pub logs: [LogPointer; 2],
    /// Bytes of all log blocks, in whole sectors.
    pub log_bytes: u64,
    /// How many there are.
    pub log_count: u64,
    /// When all of the device was trimmed last, in seconds since 1970.
    pub trim_time: u64,
    /// How far that came (`vdev_trim_state_t`).
    pub trim_state: u64,
}

impl Header {
    /// Decodes the header in `data`, whether its checksum is right or not. `Ok(None)`: the sector has no header.
    ///
    /// # Errors
    /// There are less than [`HEADER_SIZE`] bytes.
    pub fn decode(data: &[u8]) -> Result<Option<Header>> {
        const WHAT: &str = "header of a cache device";
        let have = data.len();
        let Some(data) = data.get(..HEADER_SIZE) else {
            return Err(DecodeError::Truncated { what: WHAT, need: HEADER_SIZE, have });
        };
        let Some(order) = order_of(data, HEADER_MAGIC, WHAT)? else { return Ok(None) };
        let bytes = Bytes::new(data, order, WHAT);
        let word = |i: usize| bytes.u64(8 * i);
        let pointer = |i: usize| LogPointer::decode(&bytes, 72 + POINTER_SIZE * i);
        Ok(Some(Header {
            version: word(1)?,
            pool: word(2)?,
            vdev: word(3)?,
            entries: word(4)?,
            evict: word(5)?,
            flags: word(6)?,
            start: word(7)?,
            end: word(8)?,
            logs: [pointer(0)?, pointer(1)?],
            log_bytes: word(25)?,
            log_count: word(26)?,
            trim_time: word(27)?,
            trim_state: word(28)?,
        }))
    }

    /// The same of a header with its sector, whose checksum has to be right.
    ///
    /// # Errors
    /// As [`Header::decode`].
    pub fn verified(sector: &[u8]) -> Result<Option<Header>> {
        let header = Header::decode(sector)?;
        let right = verify_embedded(Checksum::Label, sector, [LABEL_START, 0, 0, 0])?;
        Ok(header.filter(|_| right.is_some()))
    }

    /// Where the hand is, as far as the header says: behind the last log block.
    pub fn hand(&self) -> u64 {
        let [last, _] = &self.logs;
        if last.place == 0 {
            return self.start;
        }
        last.place.saturating_add(last.props.psize()).max(self.start)
    }

    /// What of the device is in use.
    pub fn ring(&self) -> Ring {
        let (hand, evict) = (self.hand(), self.evict.max(self.start));
        let first = self.flags & FIRST != 0;
        Ring { start: self.start, end: self.end, hand, evict, first }
    }
}

/// Bytes of the sector that a header takes on a device with sectors of `1 << ashift`.
pub fn header_sector(ashift: u32) -> u64 {
    SECTOR.max(1 << ashift.min(16))
}

/// Entries of each log block on a device whose blocks lie between these bytes; 0: no log blocks are written, since the device is
/// smaller than `least`. The blocks of one log block fit the device however large they are.
pub fn entries_for(start: u64, end: u64, least: u64) -> u64 {
    if end < least { 0 } else { (end.saturating_sub(start) >> 24).min(MOST_ENTRIES) }
}

/// The space of a cache device as a ring: where blocks are, and where the hand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// First byte of the device behind the header.
    pub start: u64,
    /// The byte behind the last one.
    pub end: u64,
    /// Where the next block goes.
    pub hand: u64,
    /// From the hand up to here blocks are given up.
    pub evict: u64,
    /// The hand has not been round yet: behind it there is nothing.
    pub first: bool,
}

/// Whether the byte `at` is on the way from `from` to `to` in a ring (`l2arc_range_check_overlap`), both included.
pub fn is_between(from: u64, to: u64, at: u64) -> bool {
    match from.cmp(&to) {
        std::cmp::Ordering::Less => from <= at && at <= to,
        std::cmp::Ordering::Greater => at <= to || from <= at,
        std::cmp::Ordering::Equal => at == to,
    }
}

impl Ring {
    /// Whether a log block and its blocks are there still (`l2arc_log_blkptr_valid`).
    pub fn holds(&self, log: &LogPointer) -> bool {
        let asize = log.props.psize();
        if log.place == 0 || asize > LOG_SIZE as u64 {
            return false;
        }
        let Some(behind) = log.place.checked_add(asize) else { return false };
        let (begin, last) = (log.payload_start, behind - 1);
        if begin < self.start || log.place < self.start || behind > self.end {
            return false;
        }
        if self.first {
            return behind <= self.hand;
        }
        let is_in = |at| is_between(begin, last, at);
        let given_up = |at| is_between(self.hand, self.evict, at);
        !(is_in(self.hand) || is_in(self.evict) || given_up(begin) || given_up(last))
    }

    /// Whether the chain ends with `log`, since the log block `next` before it is overwritten by what came later.
    pub fn ends_before(&self, next: &LogPointer, log: &LogPointer) -> bool {
        !self.first && is_between(next.payload_start, log.payload_start, self.evict)
    }
}

/// An entry of a log block (`l2arc_log_ent_phys_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The first DVA of the block, as in its pointer.
    pub dva: [u64; 2],
    /// Its physical birth.
    pub birth: u64,
    /// Its sizes and what it is.
    pub props: Props,
    /// Where it lies: a byte of the device.
    pub place: u64,
    /// The level of compression that its writer was asked for.
    pub level: u64,
}

/// A log block (`l2arc_log_blk_phys_t`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogBlock {
    /// The log block before the last.
    pub previous: LogPointer,
    /// What the blocks before it are, in the order in which they lie.
    pub entries: Vec<Entry>,
}

impl LogBlock {
    /// Decodes the log block at `pointer`, with `entries` entries, of the bytes that lie there.
    ///
    /// # Errors
    /// The checksum is wrong; log blocks do not have this compression; or the bytes do not make a log block.
    pub fn decode(data: &[u8], pointer: &LogPointer, entries: u64) -> Result<LogBlock> {
        const WHAT: &str = "log block of a cache device";
        let sum = |order| {
            let mut sum = Fletcher4::new(order);
            sum.update(data);
            sum.finish()
        };
        if ![ByteOrder::Little, ByteOrder::Big].map(sum).contains(&pointer.sum) {
            return Err(DecodeError::Checksum { what: WHAT });
        }
        let mut unpacked = vec![0; LOG_SIZE];
        match Compression::from_u8(pointer.props.compression())? {
            Compression::Empty | Compression::Inherit | Compression::On => {
                return Err(DecodeError::invalid(WHAT, "a compression of no block"));
            }
            kind => decompress(kind, data, &mut unpacked)?,
        }
        let Some(order) = order_of(&unpacked, LOG_MAGIC, WHAT)? else {
            return Err(DecodeError::invalid(WHAT, "no log block"));
        };
        let bytes = Bytes::new(&unpacked, order, WHAT);
        let previous = LogPointer::decode(&bytes, 8)?;
        let entry = |i: u64| -> Result<Entry> {
            let word = |w: usize| bytes.u64(LOG_HEAD + i as usize * ENTRY_SIZE + 8 * w);
            let (dva, birth, props) = ([word(0)?, word(1)?], word(2)?, Props(word(3)?));
            Ok(Entry { dva, birth, props, place: word(4)?, level: word(5)? })
        };
        let entries = (0..entries.min(MOST_ENTRIES)).map(entry).collect::<Result<_>>()?;
        Ok(LogBlock { previous, entries })
    }
}

/// The byte order of what begins with `magic`; `None`: it does not.
fn order_of(data: &[u8], magic: u64, what: &'static str) -> Result<Option<ByteOrder>> {
    Ok(match Bytes::new(data, ByteOrder::Little, what).u64(0)? {
        m if m == magic => Some(ByteOrder::Little),
        m if m.swap_bytes() == magic => Some(ByteOrder::Big),
        _ => None,
    })
}
