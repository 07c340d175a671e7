//! Objects with few live bytes are written anew, small neighbours become one.
//!
//! A *run* is a number of neighbours in a page of the index that are thin ([`Tunables::live_percent`](crate::Tunables)) or small (less than a quarter of an
//! object is live) and fit into one object. A run of small objects alone is worth it when the result is at least half an object, or
//! it has sixteen of them: so a block is copied for that a bounded number of times.
//!
//! The caller says which addresses are live; their bytes must be as many as the index knows, less what was freed in this group. Where
//! both differ nothing is written, and the error names the object. A copied block must have the checksum that the table says.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use futures_util::future::try_join_all;

use crate::error::{Error, Result};
use crate::index::{Lack, Limits};
use crate::page::Entry;
use crate::record::{Move, Old};
use crate::requests::Class;
use crate::space::{Space, limits};
use crate::stats::Purpose;
use crate::table::sum;
use crate::write::upload;

/// Most objects of a run.
const RUN: usize = 256;

/// What the caller knows of its allocations (its space maps).
pub trait Live {
    /// Allocated addresses within a range, in order and disjoint; without those that [`Space::free`] was told of.
    ///
    /// # Errors
    /// They are not known at the moment, and why.
    fn live(&self, range: Range<u64>) -> std::result::Result<Vec<Range<u64>>, String>;
}

/// What a call of [`Space::reclaim`] has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Objects that were written anew.
    pub objects: u64,
    /// Objects that took their place.
    pub into: u64,
    /// Bytes of blocks that were copied.
    pub copied: u64,
}

/// A run with what is live in it.
struct Run {
    entries: Vec<Entry>,
    live: Vec<Range<u64>>,
}

impl Space {
    /// Writes objects anew until about `bytes` were copied, or nothing more is worth it. The next commit puts the new versions in place of the old.
    ///
    /// # Errors
    /// The store fails; an object is damaged; caller and index do not agree on what is live. What was done stays done.
    pub async fn reclaim(&self, live: &dyn Live, bytes: u64) -> Result<Reclaimed> {
        let mut turn = self.shared.reclaim.lock().await;
        let (mut done, mut wrapped) = (Reclaimed::default(), false);
        while done.copied < bytes {
            let key = self.shared.state.lock().index.low(*turn);
            let Some(key) = key else {
                if std::mem::replace(&mut wrapped, true) {
                    break;
                }
                *turn = 0;
                continue;
            };
            self.load(&[key].into()).await?;
            let runs = self.runs_of(key, live)?;
            let mut failed = Ok(());
            for run in runs {
                match failed {
                    Ok(()) => failed = self.rewrite(run, &mut done).await,
                    Err(_) => self.release(&run),
                }
            }
            failed?;
            *turn = key + 1;
            self.evict();
        }
        Ok(done)
    }

    /// Runs of a page that are worth it.
    fn runs_of(&self, key: u64, live: &dyn Live) -> Result<Vec<Run>> {
        let tunables = &self.shared.requests.tunables;
        let mut state = self.shared.state.lock();
        let entries = match state.index.page(key) {
            Ok(entries) => entries,
            Err(Lack::Absent(_)) => return Ok(Vec::new()), // Evicted just now.
            Err(Lack::Wrong(why)) => return Err(Error::Damaged { path: "index".into(), why }),
        };
        let mut runs = Vec::new();
        for entries in choose(&entries, limits(tunables), tunables.object_bytes) {
            if state.frozen || entries.iter().any(|entry| state.moving.contains(&entry.start)) {
                continue;
            }
            let mut all = Vec::new();
            for entry in &entries {
                let known = live.live(entry.start..entry.end).map_err(Error::Refused)?;
                let bytes: u64 = known.iter().map(|range| range.end - range.start).sum();
                let freed: u64 = state
                    .freed
                    .iter()
                    .map(|(start, length)| overlap(entry, *start, start + length))
                    .sum();
                if bytes + freed != u64::from(entry.live) {
                    return Err(Error::Refused(format!(
                        "object {}: {bytes} bytes are allocated by the space maps, {} by the index, {freed} are being freed",
                        entry.id, entry.live
                    )));
                }
                all.extend(known);
            }
            if !all.is_empty() {
                state.moving.extend(entries.iter().map(|entry| entry.start));
                runs.push(Run { entries, live: all });
            }
        }
        Ok(runs)
    }

    /// Copies what is live of a run into a new object.
    async fn rewrite(&self, run: Run, done: &mut Reclaimed) -> Result<()> {
        match self.copy(&run).await {
            Ok(new) => {
                let old = |entry: &Entry| Old { start: entry.start, id: entry.id };
                let olds: Vec<Old> = run.entries.iter().map(old).collect();
                done.objects += olds.len() as u64;
                done.into += 1;
                done.copied += u64::from(new.data);
                self.shared.state.lock().moves.push(Move { olds, new });
                Ok(())
            }
            Err(error) => {
                self.release(&run);
                Err(error)
            }
        }
    }

    /// Objects that are not written anew after all.
    fn release(&self, run: &Run) {
        let mut state = self.shared.state.lock();
        for entry in &run.entries {
            state.moving.remove(&entry.start);
        }
    }

    async fn copy(&self, run: &Run) -> Result<Entry> {
        let read = async |entry: &Entry| self.live_blocks(entry, &run.live).await;
        let blocks = try_join_all(run.entries.iter().map(read)).await?;
        let blocks: BTreeMap<u64, Bytes> = blocks.into_iter().flatten().collect();
        let start = run.entries.first().map_or(0, |entry| entry.start);
        let end = run.entries.last().map_or(0, |entry| entry.end);
        let id = self.shared.state.lock().name();
        upload(&self.shared.requests, id, (start, end), &blocks, Purpose::Reclaim).await
    }

    /// Blocks of an object that have live bytes.
    async fn live_blocks(&self, entry: &Entry, live: &[Range<u64>]) -> Result<Vec<(u64, Bytes)>> {
        let table = self.table(entry, Class::Background).await?;
        let alive = |start: u64, end: u64| {
            let n = live.partition_point(|range| range.end <= start);
            live.get(n).is_some_and(|range| range.start < end)
        };
        let blocks =
            table.blocks.iter().filter(|b| alive(b.address, b.address + b.length)).copied();
        let blocks: Vec<_> = blocks.collect();
        let wanted: Vec<_> = blocks.iter().map(|block| (block.address, block.length)).collect();
        let mut out = Vec::new();
        for (block, bytes) in blocks.iter().zip(self.read(&wanted, Class::Background).await) {
            let bytes = bytes?;
            if sum(&bytes) != block.sum {
                let why = format!(
                    "wrong checksum of the block at {:#x}; it is not copied",
                    block.address
                );
                return Err(Error::Damaged { path: entry.id.to_string(), why });
            }
            out.push((block.address, bytes));
        }
        Ok(out)
    }
}

/// Bytes of an entry's addresses within a range.
fn overlap(entry: &Entry, start: u64, end: u64) -> u64 {
    entry.end.min(end).saturating_sub(entry.start.max(start))
}

/// Runs of neighbours that are worth writing anew, in order.
fn choose(entries: &[Entry], limits: Limits, target: u64) -> Vec<Vec<Entry>> {
    let mut runs = Vec::new();
    let mut run: Vec<Entry> = Vec::new();
    let mut close = |run: &mut Vec<Entry>| {
        let live: u64 = run.iter().map(|entry| u64::from(entry.live)).sum();
        let run = std::mem::take(run);
        let merged = run.len() > 1 && (live >= target / 2 || run.len() >= 16);
        if merged || run.iter().any(|entry| limits.thin(entry)) {
            runs.push(run);
        }
    };
    for entry in entries {
        let live: u64 = run.iter().map(|entry| u64::from(entry.live)).sum();
        let fits = live + u64::from(entry.live) <= target && run.len() < RUN;
        if !run.is_empty() && !fits {
            close(&mut run);
        }
        if limits.thin(entry) || limits.small(entry) {
            run.push(*entry);
        } else {
            close(&mut run);
        }
    }
    close(&mut run);
    runs
}
