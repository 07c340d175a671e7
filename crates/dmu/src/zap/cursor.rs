//! Positions in a ZAP.
//!
//! Entries are ordered by the kept bits of their hash, then by collision differentiator. A
//! position is packed into 64 bits as `zap_cursor_serialize` does it, hash below, differentiator
//! above, so that small directories get cookies that fit into 32 bits:
//!
//! ```text
//! [ collision differentiator | top 28 (or 48) bits of the hash ]
//! ```
//!
//! A position stands for the first entry at or after it, so it stays valid whatever entries come
//! and go. Invariant: the position after an entry is greater than the entry's own, so listing ends.

use cenote_format::zap::hash::{hash_bits, max_cd};

/// The position after the last entry.
pub const END: u64 = u64::MAX;

/// A place in the order of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) hash: u64,
    pub(crate) cd: u32,
}

impl Position {
    /// Unpacks a cursor; `None` at the end.
    pub(crate) fn unpack(cursor: u64, flags: u64) -> Option<Position> {
        if cursor == END {
            return None;
        }
        let bits = hash_bits(flags);
        let cd = (cursor >> bits) as u32;
        Some(Position { hash: cursor << (64 - bits), cd: if cd < max_cd(flags) { cd } else { 0 } })
    }

    /// The cursor that goes on after an entry at this position (`zap_cursor_advance`).
    pub(crate) fn pack_next(self, flags: u64) -> u64 {
        let bits = hash_bits(flags);
        let hash = self.hash >> (64 - bits);
        match self.cd.checked_add(1).filter(|cd| *cd < max_cd(flags)) {
            Some(cd) => hash | u64::from(cd) << bits,
            None if hash + 1 < 1 << bits => hash + 1,
            None => END,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_format::zap::FLAG_HASH64;
    use cenote_format::zap::hash::truncate;

    #[test]
    fn the_next_position_is_greater() {
        for flags in [0, FLAG_HASH64] {
            for hash in [0, 1 << 40, 0x1234_5678_9abc_def0, u64::MAX] {
                for cd in [0, 1, 7, 0xfffd, 0xfffe, 0xffff, u32::MAX - 1, u32::MAX] {
                    let here = Position { hash: truncate(hash, flags), cd };
                    let next = Position::unpack(here.pack_next(flags), flags);
                    assert!(next.is_none_or(|n| n > here), "{here:?} {next:?}");
                }
            }
        }
    }

    #[test]
    fn cookies_are_those_of_openzfs() {
        let at = Position { hash: 0xabcd_ef10_0000_0000, cd: 2 };
        assert_eq!(at.pack_next(0), 0x3abc_def1);
        assert_eq!(at.pack_next(FLAG_HASH64), 0x0003_abcd_ef10_0000);
        assert_eq!(Position::unpack(END, 0), None);
    }
}
