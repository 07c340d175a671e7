//! Space maps (`space_map_phys_t`): the log of allocations and frees that is the on-disk form of free space.
//!
//! A space map is an object whose bonus is a header ([`SpaceMapPhys`]) and whose data is an array
//! of 64-bit words, appended to and now and then condensed. Three kinds of entry share the array,
//! told apart by the top bits of a word:
//!
//! ```text
//! one word    0 | offset(47) | type(1) | run-1(15)
//! debug       10 | action(2) | sync pass(10) | txg(50)
//! two words   11 | pad(2) | run-1(36) | vdev(24)      then     type(1) | offset(63)
//! ```
//!
//! Offsets and runs count units of `1 << shift` bytes; the shift is the vdev's `ashift`, or 9 for
//! maps that span vdevs (log space maps). A two-word entry never crosses a block of the object: a
//! debug entry of all zeros pads the block. In each metaslab's map offsets are relative to the
//! metaslab's start; in a log space map they are relative to the vdev's.
//!
//! Invariant: decoding a block yields at most one item per word and stops at the first error.

use crate::{ByteOrder, Bytes, DecodeError, Result};

/// Bytes of a header without a histogram (`SPACE_MAP_SIZE_V0`).
pub const SPACE_MAP_SIZE_V0: usize = 24;
/// Bytes of a header with a histogram (`sizeof (space_map_phys_t)`).
pub const SPACE_MAP_SIZE: usize = 320;
/// Buckets of the header's histogram (`SPACE_MAP_HISTOGRAM_SIZE`).
pub const HISTOGRAM_BUCKETS: usize = 32;

const WHAT: &str = "space map";

/// `space_map_phys_t`: the header of a space map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpaceMapPhys {
    /// Number of the object itself; not used by anyone.
    pub object: u64,
    /// Bytes of entries; always a multiple of 8.
    pub length: u64,
    /// Bytes allocated minus bytes freed by the entries; may be negative in a log space map.
    pub alloc: i64,
    /// Free regions by size: bucket `i` counts regions of `1 << (i + shift)` bytes up to twice that.
    /// With log space maps it counts unflushed changes too. `None` in a header of version 0.
    pub histogram: Option<[u64; HISTOGRAM_BUCKETS]>,
}

impl SpaceMapPhys {
    /// Decodes a bonus buffer of 24 bytes (version 0) or 320.
    pub fn decode(b: &Bytes<'_>) -> Result<SpaceMapPhys> {
        let [object, length, alloc] = b.u64s(0)?;
        if length % 8 != 0 {
            return Err(DecodeError::invalid(WHAT, format!("length {length:#x}")));
        }
        let histogram = if b.len() >= SPACE_MAP_SIZE { Some(b.u64s(64)?) } else { None };
        Ok(SpaceMapPhys { object, length, alloc: alloc as i64, histogram })
    }
}

/// Whether an entry takes space or gives it back (`maptype_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Allocated.
    Alloc,
    /// Freed.
    Free,
}

/// What a debug entry announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebugAction {
    /// Allocations of the given txg and pass follow.
    Alloc,
    /// Frees follow.
    Free,
    /// Not written by any release.
    Unknown(u8),
}

/// One entry of a space map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// A note about the entries that follow; with `txg` 0 it is padding.
    Debug {
        /// What follows.
        action: DebugAction,
        /// Sync pass that wrote it.
        pass: u16,
        /// Low 50 bits of the transaction group.
        txg: u64,
    },
    /// A range of space that changed hands.
    Range {
        /// Which way.
        change: Change,
        /// Top-level vdev, in two-word entries.
        vdev: Option<u32>,
        /// Start, in units of `1 << shift` bytes.
        offset: u64,
        /// Length, in units; never 0.
        run: u64,
    },
}

impl Entry {
    /// Words that the entry takes in the object.
    pub fn words(&self) -> usize {
        match self {
            Entry::Range { vdev: Some(_), .. } => 2,
            _ => 1,
        }
    }
}

/// `units` of `1 << shift` bytes, in bytes; an error where that overflows.
pub fn unit_bytes(units: u64, shift: u32) -> Result<u64> {
    match 1u64.checked_shl(shift).and_then(|unit| units.checked_mul(unit)) {
        Some(bytes) => Ok(bytes),
        None => Err(DecodeError::invalid(WHAT, format!("{units:#x} units of 2^{shift} bytes"))),
    }
}

#[inline]
fn bits(word: u64, low: u32, len: u32) -> u64 {
    (word >> low) & (u64::MAX >> (64 - len))
}

/// The entries of one block of a space map object, in order.
#[derive(Debug, Clone)]
pub struct Entries<'a> {
    /// Words that are left.
    words: std::slice::Iter<'a, [u8; 8]>,
    order: ByteOrder,
    /// Bytes of all words.
    len: usize,
}

impl<'a> Entries<'a> {
    /// The entries in the first `len` bytes of `block` (all of it if `len` is larger). Bytes after
    /// the last whole word are ignored.
    pub fn new(block: Bytes<'a>, len: usize) -> Entries<'a> {
        let words = block.first(len).as_chunks::<8>().0;
        Entries { words: words.iter(), order: block.order(), len: words.len() * 8 }
    }

    // Maps have millions of entries: this has to become part of the loop that goes through them.
    #[inline(always)]
    fn word(&mut self) -> Option<u64> {
        let word = *self.words.next()?;
        Some(match self.order {
            ByteOrder::Little => u64::from_le_bytes(word),
            ByteOrder::Big => u64::from_be_bytes(word),
        })
    }

    #[inline(always)]
    fn entry(&mut self, word: u64) -> Result<Entry> {
        let change = |bit: u64| if bit == 0 { Change::Alloc } else { Change::Free };
        match bits(word, 62, 2) {
            2 => Ok(Entry::Debug {
                action: match bits(word, 60, 2) {
                    0 => DebugAction::Alloc,
                    1 => DebugAction::Free,
                    n => DebugAction::Unknown(n as u8),
                },
                pass: bits(word, 50, 10) as u16,
                txg: bits(word, 0, 50),
            }),
            3 => {
                let (need, have) = (self.len + 8, self.len);
                let second =
                    self.word().ok_or(DecodeError::Truncated { what: WHAT, need, have })?;
                Ok(Entry::Range {
                    change: change(bits(second, 63, 1)),
                    vdev: Some(bits(word, 0, 24) as u32),
                    offset: bits(second, 0, 63),
                    run: bits(word, 24, 36) + 1,
                })
            }
            _ => Ok(Entry::Range {
                change: change(bits(word, 15, 1)),
                vdev: None,
                offset: bits(word, 16, 47),
                run: bits(word, 0, 15) + 1,
            }),
        }
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<Entry>;

    #[inline(always)]
    fn next(&mut self) -> Option<Result<Entry>> {
        // Only at the last word can there be an error.
        let word = self.word()?;
        Some(self.entry(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteOrder;

    fn encode(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    fn decode(data: &[u8]) -> Vec<Result<Entry>> {
        Entries::new(Bytes::new(data, ByteOrder::Little, "t"), usize::MAX).collect()
    }

    #[test]
    fn header_of_either_size() {
        let mut words = vec![7, 16, (-512i64) as u64];
        let short = encode(&words);
        let phys = SpaceMapPhys::decode(&Bytes::new(&short, ByteOrder::Little, "t")).unwrap();
        assert_eq!((phys.length, phys.alloc, phys.histogram), (16, -512, None));
        words.resize(8, 0);
        words.extend(0..32);
        let long = encode(&words);
        let phys = SpaceMapPhys::decode(&Bytes::new(&long, ByteOrder::Little, "t")).unwrap();
        assert_eq!(phys.histogram.unwrap()[31], 31);
        let big: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
        assert_eq!(SpaceMapPhys::decode(&Bytes::new(&big, ByteOrder::Big, "t")).unwrap(), phys);
        assert!(SpaceMapPhys::decode(&Bytes::new(&long[..20], ByteOrder::Little, "t")).is_err());
        let odd = encode(&[0, 3, 0]);
        assert!(SpaceMapPhys::decode(&Bytes::new(&odd, ByteOrder::Little, "t")).is_err());
    }

    #[test]
    fn entries_of_every_kind() {
        let words = [
            2 << 62 | 1 << 60 | 3 << 50 | 77,
            5 << 16 | 1 << 15 | 9,
            3 << 62 | 0xfff << 24 | 0x123,
            1 << 63 | 42,
            2 << 62,
        ];
        let got: Vec<Entry> = decode(&encode(&words)).into_iter().map(|e| e.unwrap()).collect();
        assert_eq!(
            got,
            [
                Entry::Debug { action: DebugAction::Free, pass: 3, txg: 77 },
                Entry::Range { change: Change::Free, vdev: None, offset: 5, run: 10 },
                Entry::Range { change: Change::Free, vdev: Some(0x123), offset: 42, run: 0x1000 },
                Entry::Debug { action: DebugAction::Alloc, pass: 0, txg: 0 },
            ]
        );
        assert_eq!(got.iter().map(Entry::words).sum::<usize>(), words.len());
    }

    #[test]
    fn half_a_two_word_entry_is_an_error() {
        let got = decode(&encode(&[0, 3 << 62]));
        assert_eq!(got.len(), 2);
        assert!(got[0].is_ok() && got[1].is_err());
    }

    #[test]
    fn units_that_overflow_are_an_error() {
        assert_eq!(unit_bytes(3, 9).unwrap(), 1536);
        assert!(unit_bytes(1 << 60, 9).is_err());
        assert!(unit_bytes(1, 64).is_err());
    }
}
