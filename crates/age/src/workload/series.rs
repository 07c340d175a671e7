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
//! At first each file has some number of blocks below [`FIRST_BLOCKS`], and is at some point of its
//! last block, both at random. The rest of what is allocated is other data, which was written at
//! one go, or is what a pool that was there already had, and stays; or, to hold the fullness, is deleted, the oldest
//! first, and after it full blocks of the files in the order in which they became so.
//!
//! What is modelled of a file besides its data: the indirect blocks above its last block, and its
//! dnode, of which 32 share a block, with the indirect blocks above those.

use super::{FILL_BATCH, Layout, Portions, Workload};
use crate::indirect::{Indirect, Meta, Tree};
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
/// A file has fewer blocks at first.
const FIRST_BLOCKS: u64 = 1024;
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
    /// Levels of indirect blocks that a file may come to have.
    depth: usize,
    /// Of each file, the last indirect block of each level.
    indirect: Vec<Meta>,
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
    indirect: Indirect,
    kinds: Vec<Kind>,
    rng: SmallRng,
    /// Files of each kind that have begun.
    begun: usize,
    portions: Portions,
    hold: bool,
    /// Bytes that the simulation holds when it is filled.
    filled: u64,
    /// What may be deleted if the fullness is held, oldest first, with the bytes of each.
    oldest: VecDeque<(Place, u64)>,
}

impl Store {
    pub fn new(spec: &Spec, series: &Series, layout: &Layout) -> Store {
        let (indirect, of_dnodes) = (Indirect::of_files(spec), Indirect::of_dnodes(spec));
        let updates = spec.time.as_secs() / series.every.max(1) + 1;
        let kind = |(pace, count): (Pace, u64)| {
            let records = (updates.saturating_mul(pace.records) / pace.updates).saturating_add(1);
            let blocks = FIRST_BLOCKS + records.saturating_mul(series.record) / spec.block + 1;
            let depth = indirect.levels(blocks);
            let dnodes = count.div_ceil(DNODES);
            Kind {
                pace,
                files: vec![File::default(); count as usize],
                depth,
                indirect: vec![Meta::default(); count as usize * depth],
                dnodes: vec![Meta::default(); dnodes as usize],
                tree: Tree::new(dnodes, of_dnodes),
            }
        };
        Store {
            block: spec.block,
            record: series.record,
            every: Duration::from_secs(series.every),
            ratio: series.ratio,
            sector: spec.sector(),
            indirect,
            kinds: PACES.into_iter().zip(series.files).map(kind).collect(),
            rng: SmallRng::seed_from_u64(spec.seed),
            begun: 0,
            portions: layout.portions(spec.allocated_block()),
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
        let (records, blocks) = (self.records(), self.rng.random_range(1..FIRST_BLOCKS) as u32);
        let Some(pace) = self.file(kind, index).map(|(pace, _)| pace) else { return Ok(()) };
        let updates = self.rng.random_range(1..=records * pace.updates / pace.records);
        let size = self.size(pace.written(updates - 1).1.min(records));
        let last = space.data(size)?;
        if let Some((_, file)) = self.file(kind, index) {
            *file = File { updates, blocks, size: size as u32, last };
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
                space.free(old.0, old.1);
                continue;
            }
            last = block;
            if self.hold {
                self.oldest.push_back((old.0, space.asize(old.0.vdev(), old.1)));
            }
            let mut below = u64::from(file.blocks);
            if let Some(kind) = self.kinds.get_mut(kind) {
                let levels = kind.indirect.iter_mut().skip(index * kind.depth).take(kind.depth);
                for meta in levels {
                    if !below.is_multiple_of(self.indirect.pointers()) {
                        break;
                    }
                    // The indirect block is full, and stays.
                    *meta = Meta::default();
                    below /= self.indirect.pointers();
                }
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
        let (indirect, deepest) = (self.indirect, self.kinds.iter().map(|kind| kind.depth).max());
        let mut span = 1;
        for level in 0..deepest.unwrap_or(0) {
            for (index, kind) in files {
                let Some(kind) = self.kinds.get_mut(*kind).filter(|k| level < k.depth) else {
                    continue;
                };
                let blocks = kind.files.get(*index).map_or(0, |file| u64::from(file.blocks));
                let below = blocks.div_ceil(span);
                if below > 1
                    && let Some(meta) = kind.indirect.get_mut(index * kind.depth + level)
                {
                    let used = (below - 1) % indirect.pointers() + 1;
                    meta.rewrite(indirect.size(used), space)?;
                }
            }
            span *= indirect.pointers();
        }
        let size = DNODE_BLOCK.next_multiple_of(self.sector);
        for (number, kind) in self.kinds.iter_mut().enumerate() {
            let of_kind = files.iter().filter(|(_, k)| *k == number);
            let mut blocks: Vec<u64> = of_kind.map(|(i, _)| *i as u64 / DNODES).collect();
            blocks.dedup();
            for at in &mut blocks {
                if let Some(dnodes) = kind.dnodes.get_mut(*at as usize) {
                    dnodes.rewrite(size, space)?;
                }
                *at /= kind.tree.pointers();
            }
            kind.tree.rewrite(blocks, space)?;
        }
        Ok(())
    }

    /// Deletes the oldest data until no more is held than at first.
    fn delete(&mut self, space: &mut Space<'_>) {
        while space.books.held > self.filled {
            let Some((place, bytes)) = self.oldest.pop_front() else { break };
            let piece = space.asize(place.vdev(), self.block);
            space.free_extent(place, bytes.min(piece));
            if bytes > piece {
                self.oldest.push_front((place.after(piece), bytes - piece));
            }
        }
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
    fn adopt(&mut self, vdev: u64, ranges: &mut dyn Iterator<Item = (u64, u64)>) {
        if self.hold {
            let place = |(start, end)| (Place::new(vdev, start), end - start);
            self.oldest.extend(ranges.map(place));
        }
    }

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
        let block = self.block.next_multiple_of(self.sector);
        let mut left = room / block * block;
        let mut bytes = 0;
        for _ in 0..FILL_BATCH {
            if left == 0 {
                self.filled = space.books.held;
                return Ok(true);
            }
            if bytes >= self.portions.group {
                break;
            }
            let (place, found) = space.extent(self.portions.extent.min(left), block)?;
            (left, bytes) = (left - found, bytes + found);
            if self.hold {
                self.oldest.push_back((place, found));
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
        if self.hold {
            self.delete(space);
        }
        Ok(())
    }

    fn memory(&self) -> u64 {
        let of = |kind: &Kind| {
            let metas = size_of_val(&kind.dnodes[..]) + size_of_val(&kind.indirect[..]);
            size_of_val(&kind.files[..]) + metas
        };
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
