//! Deduplicated blocks: contents that come again, and whether the tables count what a walk of everything finds.
//!
//! # What is checked
//!
//! A table has an entry for each block with the dedup bit, and counts the pointers to it. So, of a pool at rest:
//!
//! - the walk that accounts for every block ([`cenote_inspect::traverse`]) meets each pointer with the dedup bit once. Those of one
//!   block are as many as its entry counts, neither more nor less;
//! - an entry without references is not there, one of which a log has a newer state counts as that, and an entry is in the ZAP of
//!   those with one reference or in that of those with several, as its count says;
//! - pointers without an entry are single: only such entries are ever taken out (`zpool ddtprune`);
//! - the histograms beside the ZAPs, and the logs, count what entries there are.

use super::{Stopped, demand};
use cenote_format::blkptr::BlockPointer;
use cenote_format::checksum::Checksum;
use cenote_inspect::traverse::{self, Event, Options, Subject, Verify};
use cenote_pool::Pool;
use cenote_pool::ddt::{self, Entry, Key, Table};
use cenote_pool::ddt_stats::{self, Histogram};
use cenote_pool::metaslab::PoolSpace;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

/// Contents that come again have this period: whole blocks of one are equal.
const PERIOD: usize = 4096;
/// How many contents there are.
const CONTENTS: u64 = 24;
/// The class of entries with several references, and that of entries with one.
const SEVERAL: usize = 1;
const ONE: usize = 2;

/// `len` bytes from the place `at` on, of one of a few contents.
pub fn again(rng: &mut SmallRng, at: usize, len: usize) -> Vec<u8> {
    // The first ones come more often.
    let most = rng.random_range(1..=CONTENTS);
    let mut content = SmallRng::seed_from_u64(rng.random_range(0..most));
    let period: Vec<u8> = (0..PERIOD).map(|_| content.random()).collect();
    (at..at + len).map(|place| period[place % PERIOD]).collect()
}

/// A block: its table, its key, its first copy and when it was written.
type Block = (u8, Key, [u64; 2], u64);

/// The pointers to each block with the dedup bit.
fn references(pool: &Pool) -> Result<BTreeMap<Block, u64>, Stopped> {
    let space = PoolSpace::load(pool.mos(), pool.config())?;
    let subject =
        Subject { mos: pool.mos().clone(), config: pool.config(), uberblock: pool.uberblock() };
    let found = Mutex::new(BTreeMap::new());
    let note = |event: Event<'_>| {
        if let Event::Block(one) = event
            && is_counted(&one.bp)
        {
            let (bp, mut found) = (&one.bp, found.lock());
            let block = (bp.checksum_type(), Key::of(bp), [bp.0[0], bp.0[1]], bp.physical_birth());
            *found.entry(block).or_insert(0) += 1;
        }
    };
    let options = Options { verify: Verify::Nothing, leaks: false, workers: 1 };
    traverse::run(&subject, &space, &options, &note, &|| false)?;
    Ok(found.into_inner())
}

fn is_counted(bp: &BlockPointer) -> bool {
    !bp.is_hole() && !bp.is_embedded() && bp.is_dedup()
}

/// The entries of a table: those of logs are newer.
fn entries(pool: &Pool, table: &Table) -> Result<BTreeMap<Key, Entry>, Stopped> {
    let mut all = BTreeMap::new();
    let mut wrong = Vec::new();
    for stored in &table.stored {
        table.for_each_stored(pool.mos(), stored, &mut |entry| {
            let class = if entry.phys.references() > 1 { SEVERAL } else { ONE };
            if stored.class != class || all.insert(entry.key, entry.clone()).is_some() {
                wrong.push(format!("{} has {entry:?}", stored.name));
            }
            Ok(())
        })?;
    }
    for log in &table.logs {
        all.extend(log.entries.iter().map(|(key, entry)| (*key, entry.clone())));
    }
    if wrong.is_empty() { Ok(all) } else { Err(Stopped(wrong.join("; "))) }
}

/// Compares the counts of a pool's tables with the references that a walk finds on disk. Returns the number of blocks with several references.
///
/// # Errors
/// What is not as it should be, or cannot be read.
pub fn check(pool: &Pool) -> Result<usize, Stopped> {
    let (mut counted, mut histogram) = (BTreeMap::new(), Histogram::default());
    for table in ddt::load(pool.mos())? {
        for entry in entries(pool, &table)?.values() {
            let fits = histogram.count(pool, entry);
            count(entry, table.checksum, &mut counted).map_err(Stopped)?;
            if !fits {
                return Err(Stopped(format!("{entry:?} counts more than can be")));
            }
        }
    }
    let found = references(pool)?;
    same(&counted, &found).map_err(Stopped)?;
    let said = ddt_stats::all(pool)?.1;
    if said != histogram {
        let (said, is) = (said.total(), histogram.total());
        return Err(Stopped(format!("histograms count {said:?}, and there is {is:?}")));
    }
    Ok(found.values().filter(|references| **references > 1).count())
}

fn count(entry: &Entry, checksum: Checksum, counted: &mut BTreeMap<Block, u64>) -> super::Verdict {
    for phys in entry.phys.iter().filter(|phys| phys.birth != 0) {
        demand!(phys.refcount > 0, "{entry:?} has no references");
        let block = (checksum as u8, entry.key, [phys.dvas[0], phys.dvas[1]], phys.birth);
        demand!(counted.insert(block, phys.refcount).is_none(), "{entry:?} is there twice");
    }
    Ok(())
}

fn same(counted: &BTreeMap<Block, u64>, found: &BTreeMap<Block, u64>) -> super::Verdict {
    for (block, references) in counted {
        let is = found.get(block).copied().unwrap_or(0);
        demand!(is == *references, "{block:x?} is counted {references} times, and {is} lead to it");
    }
    for (block, references) in found {
        let known = counted.contains_key(block) || *references == 1;
        demand!(known, "{references} pointers lead to {block:x?}, which no table has");
    }
    Ok(())
}
