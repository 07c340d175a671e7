//! The ring and the index against a model of the bytes of a device.

use super::index::{ENTRY, Index, Place, SLOT};
use super::space::Space;
use super::{L2arc, Relaxed};
use crate::arc::{Fed, Key};
use cenote_format::abd::Abd;
use cenote_format::l2arc::{Header, LogBlock, Props, Ring};
use proptest::prelude::*;
use std::collections::BTreeMap;

const START: u64 = 4 << 20;

/// A device of memory: what was written, by its places.
#[derive(Default)]
struct Bytes(BTreeMap<u64, Vec<u8>>);

impl Bytes {
    fn write(&mut self, at: u64, data: &Abd) {
        let data = data.to_vec();
        let end = at + data.len() as u64;
        // What it lies upon is gone.
        self.0.retain(|place, old| place + old.len() as u64 <= at || *place >= end);
        self.0.insert(at, data);
    }
}

impl Bytes {
    /// What is found by a header is there. How many log blocks lead to that.
    fn check(&self, header: &Header) -> Result<u64, TestCaseError> {
        let (ring, [mut log, mut next], mut found) = (header.ring(), header.logs, 0);
        while ring.holds(&log) {
            let data = self.0.get(&log.place).cloned().unwrap_or_default();
            let read = LogBlock::decode(&data, &log, header.entries);
            prop_assert!(read.is_ok(), "{log:?} of {header:?}");
            let Ok(read) = read else { break };
            for entry in &read.entries {
                let there = self.0.get(&entry.place).map(|data| u64::from(data[0]));
                prop_assert_eq!(there, Some((entry.birth - 1) % 256), "{:?}", header);
            }
            found += 1;
            if ring.ends_before(&next, &log) {
                break;
            }
            (log, next) = (next, read.previous);
        }
        Ok(found)
    }
}

fn block(number: u64, len: u64) -> Fed {
    let key = Key { dva0: 1 << 32 | number, dva1: number * 8, birth: number + 1 };
    let data = Abd::from_vec(vec![number as u8; len as usize]);
    let props =
        Props::default().sized(131_072, len).compressed(15).metadata(number.is_multiple_of(3));
    Fed { key, about: props.0, data, frequent: number.is_multiple_of(2) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_the_index_has_is_on_the_device(
        batches in prop::collection::vec((1u64..30, 1u64..200, 0u8..8), 1..120),
        ashift in prop::sample::select(vec![9u32, 12]),
        mib in 24u64..80,
    ) {
        let mut space = Space::empty(START..START + (mib << 20), ashift, 0);
        let (index, mut bytes, mut number) = (Index::default(), Bytes::default(), 0);
        for (count, sectors, fate) in batches {
            let mut blocks = Vec::new();
            let mut taken = 0;
            for i in 0..count {
                number += 1;
                let next = block(number, 512 * (1 + (sectors * (i + 7)) % 255));
                taken += space.asize(next.data.len() as u64);
                blocks.push(next);
            }
            let way = taken + space.overhead(blocks.len());
            if way > space.most() {
                continue;
            }
            if fate == 7 {
                // There is no room in memory to know all.
                index.give_up(3, &space.forget_oldest(7));
            }
            let given_up = space.clear(way);
            index.give_up(3, &given_up.slots);
            let header = space.header(1, 2);
            let (batch, before) = space.lay_out(3, blocks);
            for (key, place) in &batch.placed {
                prop_assert!(index.put(*key, *place, false));
            }
            for (at, data) in &batch.writes {
                prop_assert!(*at >= START + space.sector && at + data.len() as u64 <= space.ring.end);
                bytes.write(*at, data);
            }
            if fate == 0 {
                // The write failed.
                for (key, place) in &batch.placed {
                    prop_assert!(index.remove_if(key, place));
                }
                space.undo(before);
            } else {
                index.are_written(batch.placed.iter());
                // Some are freed.
                for (key, _) in batch.placed.iter().step_by(usize::from(fate)) {
                    index.remove(key);
                }
            }
            // The device tells only what is there, wherever it was broken off.
            bytes.check(&header)?;
            bytes.check(&space.header(1, 2))?;
            index.check();
            for (at, key) in &space.slots {
                let number = key.birth - 1;
                let Some(place) = index.place(key) else { continue };
                prop_assert_eq!(place.at, *at);
                let there = bytes.0.get(at).map(|data| data[0]);
                prop_assert_eq!(there, Some(number as u8), "block {}", number);
            }
            // And nothing is known that is in no slot: it would never be given up.
            prop_assert!(index.sums().blocks <= space.slots.len() as u64);
        }
        // The chain leads to all log blocks that are there.
        let (found, logs) = (bytes.check(&space.header(1, 2))?, space.logs.len() as u64);
        prop_assert!(found + 2 >= logs, "{} of {}", found, logs);
    }
}

/// Sums that are wrong are noticed where a reader or a group forgets a block: that goes on, and cache devices are off.
#[test]
fn what_is_broken_stops_nothing_else() {
    for many in [false, true] {
        let l2 = L2arc::default();
        l2.any.store(true, Relaxed);
        let key = block(1, 512).key;
        let props = Props::default().sized(512, 512);
        assert!(l2.index.put(key, Place { device: 0, asize: 512, at: START, props }, true));
        l2.index.spoil();
        match many {
            true => l2.forget_all([key].into_iter()),
            false => l2.forget(&key),
        }
        assert!(l2.off.load(Relaxed) && !l2.is_on());
        l2.close();
    }
}

/// What lies between `evict` and the hand is there after an import, also before a log block is written in a new round; and
/// it is not given up before the hand gets there.
#[test]
fn a_header_of_a_new_round_keeps_what_is_before_it() {
    let mut space = Space::empty(START..START + (24 << 20), 12, 0);
    let (mut number, mut round) = (0, Vec::new());
    while space.ring.first {
        let way = 64 * 4096 + space.overhead(64);
        space.clear(way);
        let blocks: Vec<Fed> = (number..number + 64).map(|i| block(i, 4096)).collect();
        number += 64;
        let header = space.header(1, 2);
        if header.flags == 0 {
            round.push(header);
        }
        space.lay_out(3, blocks);
    }
    let header = round.pop();
    let Some(header) = header else { panic!("no new round") };
    assert!(header.hand() > header.evict, "{header:?}");
    let mut again = Space::empty(START..START + (24 << 20), 12, 0);
    again.ring = header.ring();
    again.chain = header.logs;
    assert!(again.ring.holds(&again.chain[0]) && again.ring.holds(&again.chain[1]));
    // What the new round has overwritten stays given up, and the hand goes on before it.
    again.begin_round();
    let given_up = again.clear(4096);
    assert!(given_up.cleared.iter().all(|range| range.start >= header.evict), "{given_up:?}");
    again.lay_out(4, vec![block(number, 4096)]);
    let Ring { hand, evict, .. } = again.header(1, 2).ring();
    let ring = Ring { hand: START.max(again.ring.start), evict, ..again.ring };
    assert!(again.ring.hand < again.ring.evict && evict >= header.evict, "{hand} {evict}");
    for log in &header.logs {
        assert_eq!(ring.holds(log), log.place >= header.evict, "{log:?}");
    }
}

/// Blocks so large that a round of the hand has no log block: nothing is taken for one that was overwritten.
#[test]
fn a_round_without_a_log_block_leads_to_nothing() {
    let mut space = Space::empty(START..START + (80 << 20), 12, 0);
    let (mut bytes, mut found, mut rounds) = (Bytes::default(), Vec::new(), 0);
    for number in 0..60 {
        let (way, before) = ((19 << 20) + space.overhead(1), space.ring.hand);
        space.clear(way);
        rounds += u32::from(space.ring.hand < before);
        let (batch, _) = space.lay_out(3, vec![block(number, 19 << 20)]);
        batch.writes.iter().for_each(|(at, data)| bytes.write(*at, data));
        found.push(bytes.check(&space.header(1, 2)).unwrap_or(u64::MAX));
    }
    assert!(rounds > 10 && found.iter().all(|found| *found <= 1), "{rounds}, {found:?}");
    assert!(found.contains(&0) && found.contains(&1), "{found:?}");
}

/// What a batch that failed leaves out is what it had itself.
#[test]
fn blocks_before_a_batch_that_failed_come_into_a_log_block() {
    let mut space = Space::empty(START..START + (80 << 20), 12, 0);
    let entries = space.entries;
    let mut lay_out = |numbers: std::ops::Range<u64>, fails: bool| {
        space.clear((numbers.end - numbers.start) * 4096 + space.overhead(entries as usize));
        let blocks = numbers.map(|number| block(number, 4096)).collect();
        let (batch, before) = space.lay_out(3, blocks);
        if fails {
            space.undo(before);
            return None;
        }
        let at = space.chain[0];
        let data = batch.writes.iter().find(|(place, _)| *place == at.place)?.1.to_vec();
        LogBlock::decode(&data, &at, entries).ok()
    };
    assert!(entries > 3);
    assert!(lay_out(0..entries - 1, false).is_none());
    assert!(lay_out(100..100 + entries, true).is_none());
    let log = lay_out(entries - 1..entries, false);
    let births = log.map(|log| log.entries.iter().map(|entry| entry.birth).collect());
    assert_eq!(births, Some((1..=entries).collect::<Vec<u64>>()));
}

#[test]
fn a_block_is_not_found_before_it_is_written() {
    let index = Index::default();
    let (key, other) = (block(1, 512).key, block(2, 512).key);
    let props = Props::default().sized(512, 512);
    let place = Place { device: 0, asize: 512, at: START, props };
    assert!(index.put(key, place, false) && !index.put(key, Place { at: 0, ..place }, true));
    assert!(index.contains(&key) && index.place(&key).is_none());
    // Freed while it was being written.
    index.remove_all([key, other].into_iter());
    index.are_written([(key, place)].iter());
    assert!(!index.contains(&key) && index.place(&key).is_none());
    assert!(index.put(key, place, false));
    index.are_written([(key, place)].iter());
    assert_eq!(index.place(&key), Some(place));
    assert!(!index.remove_if(&key, &Place { at: 7, ..place }));
    index.remove_device(0);
    assert_eq!((index.bytes_on(0), index.sums().blocks), (0, 0));
    index.check();
}

/// What is forgotten takes no memory: an entry and a slot take no more than they are counted as, however many others there were.
#[test]
fn what_is_forgotten_takes_no_memory() {
    let (index, props) = (Index::default(), Props::default().sized(512, 512));
    let mut space = Space::empty(START..START + (1 << 30), 9, 0);
    let keys = |range: std::ops::Range<u64>| range.map(|n| Key { dva0: n, dva1: n, birth: 1 });
    for (n, key) in keys(0..200_000).enumerate() {
        let at = START + 512 * n as u64;
        assert!(index.put(key, Place { device: 0, asize: 512, at, props }, true));
        space.slots.push_back((at, key));
    }
    while space.slots.len() > 10_000 {
        let known = space.slots.len() as u64;
        assert!(index.memory() <= known * ENTRY, "{} for {known} blocks", index.memory());
        let slots = (space.slots.capacity() * size_of::<(u64, Key)>()) as u64;
        assert!(slots <= known * SLOT, "{slots} for {known} slots");
        let forgotten = space.forget_oldest(space.slots.len() / 16);
        assert_eq!(index.give_up(0, &forgotten), forgotten.len() as u64);
    }
    index.check();
}
