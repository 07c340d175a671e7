//! A store of time series: many columnar files that grow by a little all the time.
//!
//! Each series has one file for each resolution, and every file is updated every five minutes:
//!
//! | file | an update | updates of a block of 256 records |
//! |---|---|---|
//! | 1-minute | appends 5 records | 51 |
//! | 5-minute | appends 1 record | 256 |
//! | 3-hour | writes its last record anew; every 36th time appends one | 9,216 |
//!
//! So the last block of a file is written anew, elsewhere, time and again before it is full and
//! stays where it is. What stays is scattered among what was given up: that spoils the pool. The
//! files are updated one after the other, evenly over the five minutes, so that each transaction
//! group has its share.
//!
//! At first each file has some number of blocks below 1,024 with one indirect block, and is at some
//! point of its last block, both at random. The rest of what is allocated is other data, which was
//! written at one go and stays; or, if the fullness is to be held, is deleted, the oldest first,
//! and after it full blocks of the files in the order in which they became so.
//!
//! What is modelled of a file besides its data: its indirect blocks, and its dnode, of which 32
//! share a block, with the indirect blocks above those.

use super::{FILL_BATCH, Layout, Workload};
use crate::indirect::{Meta, POINTERS, Tree, indirect_size};
use crate::space::{Place, Space, Stop};
use crate::spec::{Series, Spec};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;
use std::time::Duration;

/// 1-minute, 5-minute and 3-hour records.
const PACES: [Pace; 3] = [
    Pace { records: 5, updates: 1 },
    Pace { records: 1, updates: 1 },
    Pace { records: 1, updates: 36 },
];
/// Files whose dnodes share a block.
const DNODES: u64 = 32;
/// Bytes that such a block takes when compressed.
const DNODE_BLOCK: u64 = 6 << 10;

/// A file. Its last block at first is block 0 of those that are counted in `updates`.
#[derive(Clone, Copy, Default)]
struct File {
    /// Updates since the first record of block 0; at least one once the file has begun.
    updates: u64,
    /// Blocks of the file, the last one included.
    blocks: u32,
    /// Bytes of the last block on disk.
    size: u32,
    last: Place,
    /// The last indirect block, if there is more than one block.
    lowest: Meta,
    /// The indirect block above, if there is more than one of those.
    above: Meta,
}

/// How often a kind of file gets a record: so many in so many updates.
#[derive(Clone, Copy)]
struct Pace {
    records: u64,
    updates: u64,
}

impl Pace {
    /// The first record that update `number` writes, and the one after the last.
    fn written(self, number: u64) -> (u64, u64) {
        let first = number * self.records / self.updates;
        (first, ((number + 1) * self.records).div_ceil(self.updates))
    }
}

/// Files of one kind.
struct Kind {
    pace: Pace,
    files: Vec<File>,
    /// Blocks of dnodes.
    dnodes: Vec<Meta>,
    /// Indirect blocks above these.
    tree: Tree,
}

/// The workload.
pub(super) struct Store {
    block: u64,
    record: u64,
    every: Duration,
    ratio: f64,
    sector: u64,
    kinds: Vec<Kind>,
    rng: SmallRng,
    /// Files of each kind that have begun.
    begun: usize,
    extent: u64,
    hold: bool,
    /// Bytes that the simulation holds when it is filled.
    filled: u64,
    /// What may be deleted if the fullness is held, oldest first, with the bytes of each.
    oldest: VecDeque<(Place, u64)>,
}

impl Store {
    pub fn new(spec: &Spec, series: &Series, layout: &Layout) -> Store {
        let kind = |(pace, count): (Pace, u64)| Kind {
            pace,
            files: vec![File::default(); count as usize],
            dnodes: vec![Meta::default(); count.div_ceil(DNODES) as usize],
            tree: Tree::new(count.div_ceil(DNODES)),
        };
        Store {
            block: spec.block,
            record: series.record,
            every: Duration::from_secs(series.every),
            ratio: series.ratio,
            sector: spec.sector(),
            kinds: PACES.into_iter().zip(series.files).map(kind).collect(),
            rng: SmallRng::seed_from_u64(spec.seed),
            begun: 0,
            extent: layout.fill_extent(spec.allocated_block()),
            hold: series.hold,
            filled: 0,
            oldest: VecDeque::new(),
        }
    }

    /// Records in a block.
    fn records(&self) -> u64 {
        self.block / self.record
    }

    /// Bytes on disk of a block that holds so many records.
    fn size(&self, records: u64) -> u64 {
        let whole = self.block.next_multiple_of(self.sector);
        if self.ratio == 0.0 {
            return whole;
        }
        let packed = (records * self.record) as f64 / self.ratio;
        (packed.ceil() as u64).max(1).next_multiple_of(self.sector).min(whole)
    }

    fn file(&mut self, kind: usize, index: usize) -> Option<(Pace, &mut File)> {
        let kind = self.kinds.get_mut(kind)?;
        Some((kind.pace, kind.files.get_mut(index)?))
    }

    /// Gives file `index` of a kind its first blocks.
    fn begin(&mut self, kind: usize, index: usize, space: &mut Space<'_>) -> Result<(), Stop> {
        let (records, blocks) = (self.records(), self.rng.random_range(1..POINTERS) as u32);
        let Some(pace) = self.file(kind, index).map(|(pace, _)| pace) else { return Ok(()) };
        let updates = self.rng.random_range(1..=records * pace.updates / pace.records);
        let size = self.size(pace.written(updates - 1).1.min(records));
        let last = space.data(size)?;
        if let Some((_, file)) = self.file(kind, index) {
            *file = File { updates, blocks, size: size as u32, last, ..File::default() };
        }
        Ok(())
    }

    /// The data that one update of a file writes and gives up.
    fn update(&mut self, kind: usize, index: usize, space: &mut Space<'_>) -> Result<(), Stop> {
        let records = self.records();
        let Some((pace, file)) = self.file(kind, index) else { return Ok(()) };
        let mut file = *file;
        let (first, end) = pace.written(file.updates);
        let mut last = (pace.written(file.updates - 1).1 - 1) / records;
        for block in first / records..=(end - 1) / records {
            let size = self.size((end - block * records).min(records));
            let new = space.data(size)?;
            let old = (std::mem::replace(&mut file.last, new), u64::from(file.size));
            file.size = size as u32;
            if block == last {
                space.free(old.0, old.1)?;
                continue;
            }
            last = block;
            if self.hold {
                self.oldest.push_back(old);
            }
            if u64::from(file.blocks) % POINTERS == 0 {
                // The indirect block is full, and stays.
                file.lowest = Meta::default();
            }
            file.blocks += 1;
        }
        file.updates += 1;
        if let Some((_, slot)) = self.file(kind, index) {
            *slot = file;
        }
        Ok(())
    }

    /// The metadata of files that were updated, level by level.
    fn update_metadata(&mut self, files: &[Named], space: &mut Space<'_>) -> Result<(), Stop> {
        let sector = self.sector;
        for level in 1..=2 {
            for (index, kind) in files {
                let Some((_, file)) = self.file(*kind, *index) else { continue };
                let blocks = u64::from(file.blocks);
                if level == 1 && blocks > 1 {
                    let used = (blocks - 1) % POINTERS + 1;
                    file.lowest.rewrite(indirect_size(used, sector), space)?;
                }
                if level == 2 && blocks > POINTERS {
                    let used = blocks.div_ceil(POINTERS).min(POINTERS);
                    file.above.rewrite(indirect_size(used, sector), space)?;
                }
            }
        }
        let size = DNODE_BLOCK.next_multiple_of(sector);
        for (number, kind) in self.kinds.iter_mut().enumerate() {
            let of_kind = files.iter().filter(|(_, k)| *k == number);
            let mut blocks: Vec<u64> = of_kind.map(|(i, _)| *i as u64 / DNODES).collect();
            blocks.dedup();
            for at in &mut blocks {
                if let Some(dnodes) = kind.dnodes.get_mut(*at as usize) {
                    dnodes.rewrite(size, space)?;
                }
                *at /= POINTERS;
            }
            kind.tree.rewrite(blocks, space)?;
        }
        Ok(())
    }

    /// Deletes the oldest data until no more is held than at first.
    fn delete(&mut self, space: &mut Space<'_>) -> Result<(), Stop> {
        let piece = self.block.next_multiple_of(self.sector);
        while space.books.held > self.filled {
            let Some((place, bytes)) = self.oldest.pop_front() else { break };
            space.free(place, bytes.min(piece))?;
            if bytes > piece {
                self.oldest.push_front((place.after(piece), bytes - piece));
            }
        }
        Ok(())
    }
}

/// A file's index and kind: files are written in the order of their indices.
type Named = (usize, usize);

/// Which of `count` files, each of which has its turn once in `every`, are updated in a time.
fn turns(count: u64, every: Duration, from: Duration, to: Duration) -> impl Iterator<Item = u64> {
    let ordinal = |at: Duration| at.as_nanos() * u128::from(count) / every.as_nanos().max(1);
    (ordinal(from)..ordinal(to)).map(move |n| (n % u128::from(count.max(1))) as u64)
}

impl Workload for Store {
    fn fill(&mut self, room: u64, space: &mut Space<'_>) -> Result<bool, Stop> {
        let most = self.kinds.iter().map(|kind| kind.files.len()).max().unwrap_or(0);
        if self.begun < most {
            let upto = most.min(self.begun + FILL_BATCH as usize);
            let range = self.begun..upto;
            let named = |i: usize| (0..PACES.len()).map(move |kind| (i, kind));
            let files: Vec<Named> = range.flat_map(named).collect();
            for (index, kind) in &files {
                self.begin(*kind, *index, space)?;
            }
            self.begun = upto;
            self.update_metadata(&files, space)?;
            return Ok(false);
        }
        let mut left = room / self.block * self.block;
        for _ in 0..FILL_BATCH {
            let bytes = self.extent.min(left);
            if bytes == 0 {
                self.filled = space.books.held;
                return Ok(true);
            }
            let place = space.data(bytes)?;
            left -= bytes;
            if self.hold {
                self.oldest.push_back((place, bytes));
            }
        }
        Ok(false)
    }

    fn group(&mut self, from: Duration, to: Duration, space: &mut Space<'_>) -> Result<(), Stop> {
        let mut files: Vec<Named> = Vec::new();
        for (number, kind) in self.kinds.iter().enumerate() {
            let count = kind.files.len() as u64;
            files.extend(turns(count, self.every, from, to).map(|i| (i as usize, number)));
        }
        files.sort_unstable();
        for (index, kind) in &files {
            self.update(*kind, *index, space)?;
        }
        self.update_metadata(&files, space)?;
        if self.hold { self.delete(space) } else { Ok(()) }
    }

    fn memory(&self) -> u64 {
        let of = |kind: &Kind| size_of_val(&kind.files[..]) + size_of_val(&kind.dnodes[..]);
        let files: usize = self.kinds.iter().map(of).sum();
        (files + self.oldest.len() * size_of::<(Place, u64)>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often the block of a file is written until it is full.
    fn updates_of_a_block(pace: Pace, records: u64) -> u64 {
        (0..).take_while(|n| pace.written(*n).0 < records).count() as u64
    }

    #[test]
    fn blocks_are_rewritten_as_often_as_records_come() {
        let [minute, five, hours] = PACES;
        // 51.2 times: the last one is of the next block as well.
        assert_eq!(updates_of_a_block(minute, 256), 52);
        assert_eq!(minute.written(51), (255, 260));
        assert_eq!(updates_of_a_block(five, 256), 256);
        assert_eq!(updates_of_a_block(hours, 256), 9216);
        assert_eq!((hours.written(35), hours.written(36)), ((0, 1), (1, 2)));
    }

    #[test]
    fn every_file_has_its_turn_once() {
        let every = Duration::from_secs(300);
        let mut seen = Vec::new();
        for i in 60..120 {
            let at = |i: u64| Duration::from_secs(5 * i);
            let now: Vec<u64> = turns(1001, every, at(i), at(i + 1)).collect();
            assert!((16..=17).contains(&now.len()));
            seen.extend(now);
        }
        assert_eq!(seen, (0..1001).collect::<Vec<_>>());
    }
}
