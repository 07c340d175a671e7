//! Entries of blocks with one reference, taken out of tables (`ddt_prune_unique_entries`).
//!
//! Such an entry helps only if its block is written once more. Without it the block stays, with its dedup bit; it is freed as
//! any other. Only flat entries say when they were changed last.

use super::table::From;
use super::{BATCH, Dedup, State, Wanted};
use crate::tunables::DDT_PRUNES_PER_TXG;
use crate::{Engine, EngineError, SyncContext};
use cenote_dmu::zap::Zap;
use cenote_format::checksum::Checksum;
use cenote_format::{ByteOrder, Bytes};
use cenote_pool::Pool;
use cenote_pool::ddt::{self, Entry, FLAG_FLAT, Key, Phys, Stored};
use std::collections::BTreeSet;

/// The class of entries with one reference.
const UNIQUE: usize = 2;
/// Ages are counted by powers of two of hours (`HIST_BINS`).
const BINS: usize = 16;
const HOUR: u64 = 3600;
/// Entries that are read at once.
const ENTRIES: usize = 1000;

/// Which entries are taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prune {
    /// The oldest, about so many of a hundred.
    Percent(u64),
    /// Those that were not changed for so many seconds.
    Age(u64),
}

/// An entry to be taken out.
type Candidate = (Wanted, Phys);

/// The ZAPs of flat entries with one reference.
fn unique_of(pool: &Pool) -> cenote_dmu::Result<Vec<(ddt::Table, Stored)>> {
    let mut found = Vec::new();
    for table in ddt::load(pool.mos())? {
        let stored = table.stored.iter().find(|stored| stored.class == UNIQUE).cloned();
        if let Some(stored) = stored.filter(|_| table.flags & FLAG_FLAT != 0) {
            found.push((table, stored));
        }
    }
    Ok(found)
}

/// Some entries from `cursor` on, and where the next ones are (`ddt_walk`); `None`: there are no more.
fn entries(
    pool: &Pool,
    (table, stored): &(ddt::Table, Stored),
    cursor: u64,
) -> cenote_dmu::Result<Option<(Vec<Entry>, u64)>> {
    let mos = pool.mos();
    let bad =
        |source| cenote_dmu::Error::Decode { objset: mos.id(), object: stored.object, source };
    let found = Zap::open(&mos.object(stored.object)?)?.entries_from(cursor, ENTRIES)?;
    let Some(next) = found.last().map(|last| last.cursor) else { return Ok(None) };
    let entry = |value: &cenote_dmu::zap::ZapEntry| {
        let name = Bytes::new(&value.name, ByteOrder::Big, "dedup table key");
        table.entry(Key(name.u64s(0)?), stored.class, value)
    };
    let all: Result<Vec<Entry>, _> = found.iter().map(entry).collect();
    Ok(Some((all.map_err(bad)?, next)))
}

/// The age in seconds from which on about `percent` of all entries are, if so many of each age in hours there are.
fn age_of(ages: &[u64; BINS], percent: u64) -> u64 {
    let all: u64 = ages.iter().sum();
    let mut left = all.saturating_mul(percent) / 100;
    for (bin, count) in ages.iter().enumerate().rev().filter(|(_, count)| **count > 0) {
        if left <= *count {
            return bin.checked_sub(1).map_or(0, |bin| (1 << bin) * HOUR);
        }
        left -= count;
    }
    0
}

impl Engine {
    /// Takes entries of blocks with one reference out of the deduplication tables. Returns how many.
    ///
    /// # Errors
    /// The tables cannot be read; the pool is suspended.
    pub fn prune_dedup(&self, what: Prune) -> Result<u64, EngineError> {
        let now = self.shared.disk.outside.clock.seconds();
        let age = match what {
            Prune::Age(seconds) => seconds,
            Prune::Percent(percent) => age_of(&self.ages(now)?, percent),
        };
        let cutoff = now.saturating_sub(age);
        let mut pruned = 0u64;
        for place in unique_of(&self.pool())? {
            let (mut cursor, mut candidates) = (0, Vec::new());
            // The view is that of the last group, and positions stay what they are when entries go.
            while let Some((found, next)) = entries(&self.pool(), &place, cursor)? {
                cursor = next;
                let old = found.into_iter().filter(|entry| entry.class_start < cutoff);
                let checksum = place.0.checksum;
                candidates.extend(old.filter_map(|entry| candidate(checksum, &entry)));
                if candidates.len() as u64 >= DDT_PRUNES_PER_TXG.get() {
                    pruned += self.prune(std::mem::take(&mut candidates))?;
                }
                // The ZAP goes with its last entry.
                if self.pool().mos().object(place.1.object).is_err() {
                    break;
                }
            }
            pruned += self.prune(candidates)?;
        }
        Ok(pruned)
    }

    fn prune(&self, candidates: Vec<Candidate>) -> Result<u64, EngineError> {
        if candidates.is_empty() {
            return Ok(0);
        }
        self.sync_task(move |context: &mut SyncContext<'_>| {
            Ok(context.disk.dedup.prune(&candidates))
        })
    }

    /// How many entries are how old.
    fn ages(&self, now: u64) -> cenote_dmu::Result<[u64; BINS]> {
        let (pool, mut ages) = (self.pool(), [0; BINS]);
        for place in unique_of(&pool)? {
            let mut cursor = 0;
            while let Some((found, next)) = entries(&pool, &place, cursor)? {
                cursor = next;
                for entry in found {
                    let hours = now.saturating_sub(entry.class_start) / HOUR;
                    let bin = hours.checked_ilog2().map_or(0, |log| log as usize + 1);
                    ages[bin.min(BINS - 1)] += 1;
                }
            }
        }
        Ok(ages)
    }
}

fn candidate(checksum: Checksum, entry: &Entry) -> Option<Candidate> {
    let phys = entry.phys.first().filter(|phys| phys.refcount <= 1)?;
    // The pointer may not name copies that were added later: they would be leaked with the entry.
    if phys.copies(entry.key.is_encrypted()).len() > 1 {
        return None;
    }
    Some(((checksum, entry.key), *phys))
}

impl Dedup {
    /// Takes entries out, unless the group has to do with them, or a log has them. Returns how many.
    fn prune(&self, candidates: &[Candidate]) -> u64 {
        let mut pruned = 0;
        for candidates in candidates.chunks(BATCH) {
            let idle: Vec<&Candidate> = {
                let mut state = self.state.lock();
                candidates.iter().filter(|(wanted, _)| !state.is_live(wanted)).collect()
            };
            let keys: BTreeSet<Wanted> = idle.iter().map(|(wanted, _)| *wanted).collect();
            self.load_keys(keys);
            let mut state = self.state.lock();
            pruned += idle.iter().filter(|(wanted, phys)| state.prune(wanted, phys)).count() as u64;
        }
        pruned
    }
}

impl State {
    fn is_live(&mut self, (checksum, key): &Wanted) -> bool {
        self.table(*checksum).live_mut(key).is_some()
    }

    fn prune(&mut self, (checksum, key): &Wanted, was: &Phys) -> bool {
        let Some(live) = self.table(*checksum).live_mut(key) else { return false };
        match live.entry.phys.first_mut() {
            Some(phys) if live.from == From::Zap && phys == was => *phys = Phys::default(),
            _ => return false,
        }
        live.changed = true;
        self.table(*checksum).let_go += was.refcount;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_share() {
        let mut ages = [0; BINS];
        (ages[0], ages[3], ages[5]) = (50, 30, 20);
        assert_eq!(age_of(&ages, 20), 16 * HOUR);
        assert_eq!(age_of(&ages, 50), 4 * HOUR);
        assert_eq!(age_of(&ages, 100), 0);
        assert_eq!(age_of(&[0; BINS], 50), 0);
    }
}
