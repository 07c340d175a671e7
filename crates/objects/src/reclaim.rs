//! Objects with few live bytes are written anew, small neighbours become one.
//!
//! A *run* is a number of neighbours in a page of the index that are thin ([`Tunables::live_percent`](crate::Tunables)) or small (less than a quarter of an
//! object is live) and fit into one object. A run of small objects alone is worth it when the result is at least half an object, or
//! it has sixteen of them: so a block is copied for that a bounded number of times.
//!
//! The caller says which addresses are live; their bytes must be as many as the index knows, less what was freed since the last
//! group. Where both differ the run stays as it is, and the error names the object. A block that is copied must have the checksum that
//! the table says. Of a block that is alive in part the live ranges are copied, as blocks of their own: so an object that was
//! written anew has no dead byte.
//!
//! A run that fails is left out, and reclaim goes on with the next one; the first error is returned at the end. Only when the store
//! fails, or the state of the space was found wrong, does reclaim end at once. A page with such a run is passed over until one of its entries has changed, or an hour later: what is damaged is
//! not read again after each group. The index knows of each page whether it has runs: where it has no runs nothing is read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cenote_format::invariant;
use cenote_format::invariant::{broken, said};
use futures_util::future::try_join_all;
use tokio::time::Instant;

use crate::SECTOR;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::index::Lack;
use crate::page::Entry;
use crate::record::{Move, Old};
use crate::requests::Class;
use crate::runs::choose;
use crate::space::{Shared, Space, limits};
use crate::stats::Purpose;
use crate::table::{Block, sum};
use crate::write::upload;

/// Objects of a run that are read at once.
const READS: usize = 8;
/// A call ends when so many pages in turn had nothing that could be done.
const FRUITLESS: u32 = 64;
/// What failed is tried again after this, or when its page has changed.
const AGAIN: Duration = Duration::from_secs(3600);

/// What the caller knows of its allocations (its space maps).
pub trait Live: Sync {
    /// Allocated addresses within a range, in order and disjoint; without those that [`Space::free`] was told of. While a free is
    /// under way both may differ: the object is then left out until the next call. No lock of the space is held, so that this may read from it.
    ///
    /// # Errors
    /// They are not known at the moment, and why.
    fn live(&self, range: Range<u64>) -> std::result::Result<Vec<Range<u64>>, String>;
}

/// Where reclaim goes on.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// The page.
    at: u64,
    /// When pages that failed were tried again last.
    since: Option<Instant>,
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

/// A run with what is live in it. Its objects are marked as moving until it is dropped, or for good if it was written anew: the next
/// group takes the mark away.
struct Run {
    shared: Arc<Shared>,
    entries: Vec<Entry>,
    live: Vec<Range<u64>>,
    moved: bool,
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.moved {
            let mut state = self.shared.state.lock();
            let unmarked = |entry: &&Entry| !state.moving.remove(&entry.start);
            let unmarked: Vec<Id> = self.entries.iter().filter(unmarked).map(|e| e.id).collect();
            drop(state);
            if let Some(id) = unmarked.first() {
                let why = said(format_args!("object {id} was written anew without a mark"));
                self.shared.stop(why);
            }
        }
    }
}

impl Space {
    /// Writes objects anew until about `bytes` were copied, or nothing more is worth it. The next commit puts the new versions in place of the old.
    /// The call may be dropped.
    ///
    /// # Errors
    /// The store fails; the space's state is wrong; or, after all other runs: an object is damaged, caller and index do not agree on what is live. What was
    /// done stays done.
    pub async fn reclaim(&self, live: &dyn Live, bytes: u64) -> Result<Reclaimed> {
        let mut round = self.shared.reclaim.lock().await;
        if round.since.get_or_insert_with(Instant::now).elapsed() >= AGAIN {
            round.since = Some(Instant::now());
            self.shared.state.lock().index.pass_over_none();
        }
        let (mut done, mut failed) = (Reclaimed::default(), None);
        let (first, mut wrapped, mut fruitless) = (round.at, false, 0);
        while done.copied < bytes && fruitless < FRUITLESS {
            let key = self.shared.state.lock().index.low(round.at);
            let Some(key) = key.filter(|key| !wrapped || *key < first) else {
                if std::mem::replace(&mut wrapped, true) {
                    break;
                }
                round.at = 0;
                continue;
            };
            let before = done.copied;
            match self.reclaim_page(key, live, &mut done).await {
                Err(error) if ends(&error) => return Err(error),
                Err(error) => failed = failed.or(Some(error)),
                Ok(()) => {}
            }
            fruitless = if done.copied > before { 0 } else { fruitless + 1 };
            round.at = key + 1;
            self.evict();
        }
        failed.map_or(Ok(done), Err)
    }

    /// Writes the runs of a page anew. After a run that is damaged it goes on.
    async fn reclaim_page(&self, key: u64, live: &dyn Live, done: &mut Reclaimed) -> Result<()> {
        self.load(&[key].into(), Class::Background).await?;
        let tunables = &self.shared.requests.tunables;
        let page = self.shared.state.lock().index.page(key);
        let entries = match page {
            Ok(entries) => entries,
            Err(Lack::Absent(_)) => return Ok(()), // Evicted just now.
            Err(Lack::Wrong(why)) => return Err(Error::Damaged { path: "index".into(), why }),
        };
        let mut failed = Ok(());
        let runs = choose(&entries, &limits(tunables));
        if runs.is_empty() {
            self.shared.state.lock().index.pass_over(key);
        }
        for entries in runs {
            let one = match self.run(entries, live) {
                Ok(Some(run)) => self.rewrite(run, done).await,
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            match one {
                Err(error) if ends(&error) => return Err(error),
                one => failed = failed.and(one),
            }
        }
        if failed.is_err() {
            self.shared.state.lock().index.pass_over(key);
        }
        failed
    }

    /// Begins with a run, if it is still what it was when it was chosen, and something in it lives.
    fn run(&self, entries: Vec<Entry>, live: &dyn Live) -> Result<Option<Run>> {
        self.shared.is_whole()?;
        let (frees, group) = {
            let state = self.shared.state.lock();
            if state.frozen || entries.iter().any(|entry| state.moving.contains(&entry.start)) {
                return Ok(None);
            }
            (state.freed.len(), state.root.sequence)
        };
        let known = |entry: &Entry| live.live(entry.start..entry.end).map_err(Error::Refused);
        let known = entries.iter().map(known).collect::<Result<Vec<_>>>()?;
        let mut state = self.shared.state.lock();
        // What was freed while the caller looked, he may have counted or not.
        if state.frozen || state.freed.len() != frees || state.root.sequence != group {
            return Ok(None);
        }
        for (entry, known) in entries.iter().zip(&known) {
            let now = state.index.find(entry.start);
            if now != Ok(Some(*entry)) {
                return Ok(None);
            }
            let whole = |range: &Range<u64>| {
                range.start < range.end
                    && range.start.is_multiple_of(SECTOR)
                    && range.end.is_multiple_of(SECTOR)
            };
            if !known.iter().all(whole) {
                return Err(Error::Refused(format!(
                    "object {}: the space maps have parts of sectors in {known:x?}",
                    entry.id
                )));
            }
            let bytes: u64 = known.iter().map(|range| range.end - range.start).sum();
            let freed = state.freed.iter();
            let freed: u64 =
                freed.map(|(start, length)| overlap(entry, *start, start + length)).sum();
            if bytes + freed != u64::from(entry.live) {
                return Err(Error::Refused(format!(
                    "object {}: {bytes} bytes are allocated by the space maps, {} by the index, {freed} are being freed",
                    entry.id, entry.live
                )));
            }
        }
        let live: Vec<Range<u64>> = known.into_iter().flatten().collect();
        if live.is_empty() {
            return Ok(None);
        }
        for Entry { start, id, .. } in &entries {
            let marked = state.moving.insert(*start);
            invariant!(marked, "object {id} is written anew twice at a time");
        }
        drop(state);
        Ok(Some(Run { shared: self.shared.clone(), entries, live, moved: false }))
    }

    /// Copies what is live of a run into a new object.
    async fn rewrite(&self, mut run: Run, done: &mut Reclaimed) -> Result<()> {
        let new = self.copy(&run).await?;
        let old = |entry: &Entry| Old { start: entry.start, id: entry.id };
        let olds: Vec<Old> = run.entries.iter().map(old).collect();
        done.objects += olds.len() as u64;
        done.into += 1;
        done.copied += u64::from(new.data);
        self.shared.state.lock().moves.push(Move { olds, new });
        run.moved = true;
        Ok(())
    }

    async fn copy(&self, run: &Run) -> Result<Entry> {
        let read = async |entry: &Entry| self.live_blocks(entry, &run.live).await;
        let mut blocks = BTreeMap::new();
        for some in run.entries.chunks(READS) {
            blocks.extend(try_join_all(some.iter().map(read)).await?.into_iter().flatten());
        }
        let (wanted, copied) = (
            run.live.iter().map(|range| range.end - range.start).sum::<u64>(),
            blocks.values().map(|bytes: &Bytes| bytes.len() as u64).sum::<u64>(),
        );
        if copied != wanted {
            let names: Vec<String> = run.entries.iter().map(|e| e.id.to_string()).collect();
            let why = format!("{copied} of {wanted} live bytes are in their tables");
            return Err(Error::Damaged { path: names.join(", "), why });
        }
        let (Some(first), Some(last)) = (run.entries.first(), run.entries.last()) else {
            broken(format_args!("a run without objects is written anew"))
        };
        let (start, end) = (first.start, last.end);
        let id = self.shared.state.lock().name();
        upload(&self.shared.requests, id, (start, end), &blocks, Purpose::Reclaim).await
    }

    /// What is live of an object, block by block.
    async fn live_blocks(&self, entry: &Entry, live: &[Range<u64>]) -> Result<Vec<(u64, Bytes)>> {
        let table = self.table(entry, Class::Background).await?;
        let alive = |start: u64, end: u64| {
            let n = live.partition_point(|range| range.end <= start);
            let some = live.get(n..).unwrap_or_default().iter().take_while(move |r| r.start < end);
            some.map(move |range| range.start.max(start)..range.end.min(end))
        };
        let within = |b: &Block| alive(b.address, b.address + b.length);
        let blocks = table.blocks.iter().filter(|b| within(b).next().is_some()).copied();
        let blocks: Vec<Block> = blocks.collect();
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
            for range in within(block) {
                let (from, to) = (range.start - block.address, range.end - block.address);
                let part = match to - from == block.length {
                    true => bytes.clone(),
                    // The dead part is not kept in memory.
                    false => Bytes::copy_from_slice(&bytes[from as usize..to as usize]),
                };
                out.push((range.start, part));
            }
        }
        Ok(out)
    }
}

/// Whether no other run is tried after this.
fn ends(error: &Error) -> bool {
    error.transient() || matches!(error, Error::Broken(_))
}

/// Bytes of an entry's addresses within a range.
fn overlap(entry: &Entry, start: u64, end: u64) -> u64 {
    entry.end.min(end).saturating_sub(entry.start.max(start))
}
