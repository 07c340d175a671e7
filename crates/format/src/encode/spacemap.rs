//! Space maps: the header with its histogram, and entries in the shortest form.
//!
//! An entry of one word holds offsets below 2^47 units and runs of up to 2^15; whatever is larger,
//! and whatever names a vdev, takes two words if the feature `spacemap_v2` is active. A run that
//! is too long for its form is split into several entries. An entry of two words does not cross a
//! block of the object: padding fills the block's last word.

use super::{EncodeError, Result, push_words, words};
use crate::spacemap::{
    Change, DebugAction, Entry, HISTOGRAM_BUCKETS, SPACE_MAP_SIZE, SPACE_MAP_SIZE_V0, SpaceMapPhys,
};

const WHAT: &str = "space map";
/// Longest run of an entry of one word (`SM_RUN_MAX`).
pub const ONE_WORD_RUN: u64 = 1 << 15;
/// Longest run of an entry of two words (`SM2_RUN_MAX`).
pub const TWO_WORD_RUN: u64 = 1 << 36;
/// Offsets of one word are below this.
pub const ONE_WORD_OFFSETS: u64 = 1 << 47;
/// Vdev ids are below this (`SPA_VDEVBITS`).
const MAX_VDEVS: u32 = 1 << 24;
const DEBUG: u64 = 2 << 62;
const TWO_WORDS: u64 = 3 << 62;
/// An empty debug entry, which fills the last word of a block.
const PADDING: u64 = DEBUG;

impl SpaceMapPhys {
    /// The bonus buffer: 24 bytes without a histogram, 320 with one. Errors: an odd length.
    pub fn encode(&self) -> Result<Vec<u8>> {
        if !self.length.is_multiple_of(8) {
            let why = format!("length {:#x}", self.length);
            return Err(EncodeError::unrepresentable(WHAT, why));
        }
        let head = [self.object, self.length, self.alloc as u64];
        let Some(histogram) = &self.histogram else {
            return Ok(words(&head, SPACE_MAP_SIZE_V0));
        };
        let mut out = words(&head, 64);
        push_words(&mut out, histogram);
        out.resize(SPACE_MAP_SIZE, 0);
        Ok(out)
    }

    /// Adds free regions to the histogram (`space_map_histogram_add`): `regions[i]` of them have from `1 << i` bytes up
    /// to twice that; `shift` is log2 of the map's unit. Regions larger than the last bucket's count there as several
    /// of the last bucket's size. Does nothing without a histogram.
    pub fn add_histogram(&mut self, regions: &[u64; 64], shift: u32) {
        let Some(histogram) = &mut self.histogram else { return };
        for (i, count) in regions.iter().enumerate().skip(shift as usize) {
            let bucket = i - shift as usize;
            let last = HISTOGRAM_BUCKETS - 1;
            // Buckets beyond the last one: each is of twice the size.
            let beyond = bucket.saturating_sub(last);
            if let Some(slot) = histogram.get_mut(bucket.min(last)) {
                // A count of the disk that is too large stays so: it is a hint, and the entries say what is free.
                *slot = slot.saturating_add(count.saturating_mul(1 << beyond));
            }
        }
    }
}

impl Entry {
    /// The words of the entry; the second is `None` where one is enough.
    /// Errors: a run of 0 or that is too long, an offset, vdev, pass or action that does not fit.
    /// (A txg is cut to its low 50 bits, as the format has it.)
    pub fn encode(&self) -> Result<(u64, Option<u64>)> {
        let bad = || Err(EncodeError::unrepresentable(WHAT, format!("{self:?}")));
        match *self {
            Entry::Debug { action, pass, txg } => {
                let action = match action {
                    DebugAction::Alloc => 0,
                    DebugAction::Free => 1,
                    DebugAction::Unknown(n @ 2..=3) => u64::from(n),
                    DebugAction::Unknown(_) => return bad(),
                };
                if pass >= 1 << 10 {
                    return bad();
                }
                let txg = txg & (u64::MAX >> 14);
                Ok((DEBUG | action << 60 | u64::from(pass) << 50 | txg, None))
            }
            Entry::Range { change, vdev: None, offset, run } => {
                if run == 0 || run > ONE_WORD_RUN || offset >= ONE_WORD_OFFSETS {
                    return bad();
                }
                Ok((offset << 16 | bit(change) << 15 | (run - 1), None))
            }
            Entry::Range { change, vdev: Some(vdev), offset, run } => {
                if run == 0 || run > TWO_WORD_RUN || offset >> 63 != 0 || vdev >= MAX_VDEVS {
                    return bad();
                }
                let first = TWO_WORDS | (run - 1) << 24 | u64::from(vdev);
                Ok((first, Some(bit(change) << 63 | offset)))
            }
        }
    }
}

fn bit(change: Change) -> u64 {
    match change {
        Change::Alloc => 0,
        Change::Free => 1,
    }
}

/// Appends entries to a space map object: collects the words that follow the map's first `length`
/// bytes, to be written there at once.
#[derive(Debug, Clone)]
pub struct EntryWriter {
    out: Vec<u8>,
    block_size: u64,
    length: u64,
    vdev: Option<u32>,
    two_words: bool,
}

impl EntryWriter {
    /// A writer for a map of `length` bytes in blocks of `block_size` bytes. `two_words`: whether
    /// `spacemap_v2` is active. `vdev` is the vdev that entries name, in log space maps; it needs
    /// `spacemap_v2`.
    ///
    /// Errors: a length or block size that is no multiple of 8, a block too small for an entry, a
    /// vdev that cannot be written.
    pub fn new(
        block_size: u64,
        length: u64,
        vdev: Option<u32>,
        two_words: bool,
    ) -> Result<EntryWriter> {
        let vdev_fits = vdev.is_none_or(|v| two_words && v < MAX_VDEVS);
        if !length.is_multiple_of(8)
            || !block_size.is_multiple_of(8)
            || block_size < 16
            || !vdev_fits
        {
            let why = format!("length {length:#x}, blocks of {block_size:#x} bytes, vdev {vdev:?}");
            return Err(EncodeError::unrepresentable(WHAT, why));
        }
        Ok(EntryWriter { out: Vec::new(), block_size, length, vdev, two_words })
    }

    /// Bytes of the map with what was appended.
    pub fn length(&self) -> u64 {
        self.length
    }

    fn word(&mut self, word: u64) {
        self.out.extend(word.to_le_bytes());
        self.length += 8;
    }

    /// Appends the entry that introduces the changes of one sync pass.
    pub fn debug(&mut self, change: Change, pass: u16, txg: u64) -> Result<()> {
        let action = match change {
            Change::Alloc => DebugAction::Alloc,
            Change::Free => DebugAction::Free,
        };
        let (word, _) = Entry::Debug { action, pass, txg }.encode()?;
        self.word(word);
        Ok(())
    }

    /// Appends a range of `run` units from unit `offset` (relative to what the map covers).
    /// Errors: the range does not fit into the form that must be used.
    pub fn range(&mut self, change: Change, offset: u64, run: u64) -> Result<()> {
        let wide = offset >= ONE_WORD_OFFSETS || run > ONE_WORD_RUN || self.vdev.is_some();
        let two = self.two_words && wide;
        let limit = if two { 1 << 63 } else { ONE_WORD_OFFSETS };
        // Every piece is checked before the first is written: a range is appended whole or not.
        let most = if two { TWO_WORD_RUN } else { ONE_WORD_RUN };
        let last = run.checked_sub(1).and_then(|r| offset.checked_add(r / most * most));
        if last.is_none_or(|last| last >= limit) {
            let why = format!("{run:#x} units from {offset:#x}");
            return Err(EncodeError::unrepresentable(WHAT, why));
        }
        let (mut offset, mut left) = (offset, run);
        while left > 0 {
            let piece = left.min(most);
            // Two words have a place for a vdev; maps of one vdev leave it 0.
            let vdev = two.then_some(self.vdev.unwrap_or(0));
            let (first, second) = Entry::Range { change, vdev, offset, run: piece }.encode()?;
            if second.is_some() && self.length % self.block_size == self.block_size - 8 {
                self.word(PADDING);
            }
            self.word(first);
            second.into_iter().for_each(|w| self.word(w));
            (offset, left) = (offset + piece, left - piece);
        }
        Ok(())
    }

    /// The bytes to write after the first `length` bytes of the object.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spacemap::Entries;
    use crate::{ByteOrder, Bytes};
    use proptest::prelude::*;

    fn change() -> impl Strategy<Value = Change> {
        any::<bool>().prop_map(|b| if b { Change::Alloc } else { Change::Free })
    }

    fn entries(data: &[u8]) -> Vec<Entry> {
        let bytes = Bytes::new(data, ByteOrder::Little, "t");
        Entries::new(bytes, usize::MAX).map(|e| e.unwrap()).collect()
    }

    proptest! {
        #[test]
        fn headers_come_back(object: u64, words in 0u64..1 << 50, alloc: i64, buckets: [u64; 32], long: bool) {
            let histogram = long.then_some(buckets);
            let phys = SpaceMapPhys { object, length: words * 8, alloc, histogram };
            let bytes = phys.encode().unwrap();
            let back = SpaceMapPhys::decode(&Bytes::new(&bytes, ByteOrder::Little, "t")).unwrap();
            prop_assert_eq!(back, phys);
        }

        #[test]
        fn ranges_come_back_whole(
            ranges in proptest::collection::vec(
                (change(), 0u64..1 << 62, 0u32..62, 0u32..38, any::<u64>()), 1..40),
            two_words: bool, vdev in proptest::option::of(0u32..1 << 24), start in 0u64..64,
        ) {
            let vdev = vdev.filter(|_| two_words);
            let mut writer = EntryWriter::new(256, start * 8, vdev, two_words).unwrap();
            writer.debug(Change::Alloc, 3, 99).unwrap();
            let mut expected = Vec::new();
            for (change, offset, shift, run_shift, run) in ranges {
                let (offset, run) = (offset >> shift, run % (1 << run_shift) + 1);
                // 2^38 units in pieces of 2^15 are more than a test needs.
                let run = if two_words { run } else { run % (1 << 20) + 1 };
                match writer.range(change, offset, run) {
                    Ok(()) => expected.push((change, offset, run)),
                    Err(_) => prop_assert!(!two_words && offset + run > 1 << 46),
                }
            }
            let length = writer.length();
            let out = writer.finish();
            prop_assert_eq!(start * 8 + out.len() as u64, length);
            // Read block by block, as the object is.
            let mut all = vec![0u64.to_le_bytes(); start as usize].concat();
            all.extend(&out);
            let read: Vec<Entry> = all.chunks(256).flat_map(entries).skip(start as usize).collect();
            let mut pieces = read[1..].iter().filter(|e| {
                **e != Entry::Debug { action: DebugAction::Alloc, pass: 0, txg: 0 }
            });
            for (change, offset, run) in expected {
                let mut at = offset;
                while at < offset + run {
                    let Some(Entry::Range { change: c, vdev: v, offset: o, run: r }) = pieces.next()
                    else {
                        return Err(TestCaseError::fail("entries are missing"));
                    };
                    prop_assert_eq!((*c, *o), (change, at));
                    prop_assert!(v.unwrap_or(0) == vdev.unwrap_or(0) && vdev.is_some() <= v.is_some());
                    at += r;
                }
                prop_assert_eq!(at, offset + run);
            }
            prop_assert_eq!(pieces.next(), None);
            prop_assert_eq!(read[0], Entry::Debug { action: DebugAction::Alloc, pass: 3, txg: 99 });
        }
    }

    #[test]
    fn the_shortest_form_is_chosen() {
        let written = |two, vdev, offset, run| {
            let mut w = EntryWriter::new(4096, 0, vdev, two).unwrap();
            w.range(Change::Alloc, offset, run)?;
            Ok::<usize, EncodeError>(w.finish().len() / 8)
        };
        assert_eq!(written(true, None, 5, ONE_WORD_RUN), Ok(1));
        assert_eq!(written(true, None, 5, ONE_WORD_RUN + 1), Ok(2));
        assert_eq!(written(true, None, ONE_WORD_OFFSETS, 1), Ok(2));
        assert_eq!(written(true, Some(1), 5, 1), Ok(2));
        assert_eq!(written(true, None, 0, TWO_WORD_RUN + 1), Ok(4));
        assert_eq!(written(false, None, 5, ONE_WORD_RUN + 1), Ok(2));
        assert_eq!(written(false, None, 5, 3 * ONE_WORD_RUN), Ok(3));
        assert!(written(false, None, ONE_WORD_OFFSETS, 1).is_err());
        assert!(written(false, None, ONE_WORD_OFFSETS - 1, ONE_WORD_RUN + 1).is_err());
        assert!(written(true, None, 1 << 63, 1).is_err());
        assert!(written(true, None, 1, 0).is_err());
        assert!(EntryWriter::new(4096, 0, Some(1), false).is_err());
        assert!(EntryWriter::new(4096, 0, Some(1 << 24), true).is_err());
    }

    #[test]
    fn two_words_do_not_cross_a_block() {
        let mut w = EntryWriter::new(64, 56, None, true).unwrap();
        w.range(Change::Free, 7, ONE_WORD_RUN * 2).unwrap();
        assert_eq!(w.length(), 56 + 24);
        let got = entries(&w.finish());
        let padding = Entry::Debug { action: DebugAction::Alloc, pass: 0, txg: 0 };
        let range = Entry::Range { change: Change::Free, vdev: Some(0), offset: 7, run: 1 << 16 };
        assert_eq!(got, [padding, range]);
    }

    #[test]
    fn large_regions_count_as_several() {
        let mut phys = SpaceMapPhys { object: 1, length: 0, alloc: 0, histogram: Some([1; 32]) };
        let mut regions = [0; 64];
        (regions[9], regions[40], regions[44], regions[3]) = (4, 2, 5, 9);
        phys.add_histogram(&regions, 9);
        let h = phys.histogram.unwrap();
        assert_eq!((h[0], h[1], h[31]), (5, 1, 1 + 2 + 5 * 16));
        phys.histogram = None;
        phys.add_histogram(&regions, 9);
        assert!(SpaceMapPhys { length: 7, ..phys }.encode().is_err());
    }
}
