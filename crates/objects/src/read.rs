//! Blocks are read: ranges, merged by object, many at once.
//!
//! # Algorithm
//!
//! 1. Each block has a place: in memory while its object is not sent, else in an object, as the index says. Pages of the index that are
//!    absent are read.
//! 2. The blocks of one object are read together. In a dense object a block lies where its address says; of others the table of the
//!    object is read first, and kept within a budget.
//! 3. Neighbours become one request, where the gap between them is not worth a request of its own.
//! 4. An object that is missing may have been replaced and deleted since it was looked up: the index is asked again, twice at most. A
//!    block that no entry has may lie in an object that is gone from the index and exists for its grace (`gone`).
//! 5. If objects are missing still, the root is looked at, once in ten seconds: another host may have the space, or may have gone on
//!    with it. Then that is the answer, and no damage.
//!
//! # Invariants
//!
//! - Each block has its own answer: one that fails does not keep others from being read.
//! - Blocks are not verified here: a caller has their checksums. A table is used only if it is what the index says of the object.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::error::{Cause, Error, Result};
use crate::head::Head;
use crate::id::Id;
use crate::index::Lack;
use crate::page::Entry;
use crate::requests::Class;
use crate::root::Root;
use crate::space::Space;
use crate::table::Table;
use crate::write::{Phase, check};

/// Tables of objects that are not dense, the youngest ones up to a budget.
pub(crate) struct Tables {
    tables: HashMap<Id, Arc<Table>>,
    order: VecDeque<Id>,
    bytes: usize,
    budget: usize,
}

impl Tables {
    pub fn new(budget: usize) -> Self {
        Self { tables: HashMap::new(), order: VecDeque::new(), bytes: 0, budget }
    }

    fn size(table: &Table) -> usize {
        table.blocks.len() * size_of::<crate::table::Block>() + 64
    }

    fn keep(&mut self, id: Id, table: Arc<Table>) {
        let size = Self::size(&table);
        if self.tables.insert(id, table).is_none() {
            self.bytes += size;
            self.order.push_back(id);
        }
        while self.bytes > self.budget
            && let Some(oldest) = self.order.pop_front()
        {
            self.bytes -= self.tables.remove(&oldest).map_or(0, |table| Self::size(&table));
        }
    }
}

/// How often the root is looked at because objects are missing.
const LOOKED: Duration = Duration::from_secs(10);

/// Where a block is.
enum Place {
    Memory(Bytes),
    Object(Entry),
}

/// Part of an object to be read: offset, length, and which of the questions it answers.
type Part = (u64, u64, usize);

/// Whether a root is not the one that this host has, or has read.
fn other(ours: &Root, root: &Root, looks: bool) -> Option<Error> {
    let by = || format!("host {}, import {}, group {}", root.host, root.epoch(), root.group);
    match (root.guid, root.mark) == (ours.guid, ours.mark) {
        true if !looks || root.sequence == ours.sequence => None,
        true => Some(Error::Outrun { by: by() }),
        false if looks => Some(Error::Outrun { by: by() }),
        false => Some(Error::Fenced { by: by() }),
    }
}

impl Space {
    /// Reads blocks (address, length). Each has its own answer. Blocks of groups that are not committed are read as well.
    ///
    /// # Errors
    /// Of each block: no object has it; its object is missing, cut or damaged; the store fails. Where an object is missing since another host
    /// has the space, or since that has gone on, that is said instead.
    pub async fn read(&self, blocks: &[(u64, u64)], class: Class) -> Vec<Result<Bytes>> {
        let mut answers: Vec<Option<Result<Bytes>>> = blocks.iter().map(|_| None).collect();
        // An object that was replaced and deleted after it was looked up: the index knows the new one.
        for round in 0..3 {
            let mut objects: BTreeMap<Id, (Entry, Vec<usize>)> = BTreeMap::new();
            for (n, (address, length)) in blocks.iter().enumerate() {
                if answers[n].is_some() {
                    continue;
                }
                match self.place(*address, *length, class).await {
                    Ok(Place::Memory(bytes)) => answers[n] = Some(Ok(bytes)),
                    Ok(Place::Object(entry)) => {
                        objects.entry(entry.id).or_insert((entry, Vec::new())).1.push(n);
                    }
                    Err(error) => answers[n] = Some(Err(error)),
                }
            }
            let of = async |(entry, wanted): (Entry, Vec<usize>)| {
                self.read_object(&entry, blocks, wanted, class).await
            };
            for (n, answer) in join_all(objects.into_values().map(of)).await.into_iter().flatten() {
                let missing =
                    answer.as_ref().is_err_and(|error| error.cause() == Some(Cause::Missing));
                if !missing || round == 2 {
                    answers[n] = Some(answer);
                }
            }
        }
        self.read_gone(blocks, &mut answers, class).await;
        let is_missing = |answer: &Option<Result<Bytes>>| matches!(answer, Some(Err(error)) if error.cause() == Some(Cause::Missing));
        if answers.iter().any(is_missing)
            && let Some(why) = self.why_missing().await
        {
            let missing = answers.iter_mut().filter(|answer| is_missing(answer));
            missing.for_each(|answer| *answer = Some(Err(why.clone())));
        }
        self.evict();
        let unmapped = |(answer, (address, length)): (Option<_>, &(u64, u64))| {
            answer.unwrap_or(Err(Error::Unmapped { address: *address, length: *length }))
        };
        answers.into_iter().zip(blocks).map(unmapped).collect()
    }

    /// Why an object may be missing that is no damage: another host has the space, and has freed it or written it anew; this one only looks at
    /// the space, which has gone on; the root is missing as well. None if the root is that of this host. The root is looked at once in [`LOOKED`].
    async fn why_missing(&self) -> Option<Error> {
        let mut looked = self.shared.looked.lock().await;
        if let Some((at, why)) = &*looked
            && at.elapsed() < LOOKED
        {
            return why.clone();
        }
        let requests = &self.shared.requests;
        let (ours, looks) = {
            let state = self.shared.state.lock();
            (state.root.clone(), matches!(state.fenced, Some(Error::Fenced { .. })))
        };
        let why = match Head::find(requests).await {
            Err(error) => Some(error),
            Ok(None) => Some(Error::Rootless { path: requests.prefix.to_string() }),
            Ok(Some((_, bytes))) => match Root::decode(&bytes) {
                // It says nothing: the object is missing.
                Err(_) => None,
                Ok(root) => other(&ours, &root, looks),
            },
        };
        *looked = Some((Instant::now(), why.clone()));
        why
    }

    /// Blocks that were freed, or not copied by a reclaim, since a reader learned of them: their objects exist for a while.
    async fn read_gone(
        &self,
        blocks: &[(u64, u64)],
        answers: &mut [Option<Result<Bytes>>],
        class: Class,
    ) {
        for (n, (address, length)) in blocks.iter().enumerate() {
            let lacks = |answer: &Option<Result<Bytes>>| {
                matches!(answer, Some(Err(Error::Unmapped { .. })))
            };
            if !lacks(&answers[n]) {
                continue;
            }
            let gone: Vec<Entry> = {
                let state = self.shared.state.lock();
                let has = |entry: &&Entry| entry.start <= *address && address + length <= entry.end;
                state.gone.values().filter(has).copied().collect()
            };
            for entry in gone {
                let found = self.read_object(&entry, blocks, vec![n], class).await;
                answers[n] = found.into_iter().next().map(|(_, answer)| answer);
                if answers[n].as_ref().is_some_and(Result::is_ok) {
                    break;
                }
            }
        }
    }

    /// Where a block is now.
    async fn place(&self, address: u64, length: u64, class: Class) -> Result<Place> {
        check(address, length)?;
        let unmapped = Error::Unmapped { address, length };
        loop {
            let absent: BTreeSet<u64> = {
                let mut state = self.shared.state.lock();
                if let Some((_, packed)) = state.packed.range(..=address).next_back()
                    && address < packed.end
                {
                    if let Phase::Sent(entry) = packed.phase {
                        return Ok(Place::Object(entry));
                    }
                    let block = packed.blocks.range(..=address).next_back();
                    let within = block.and_then(|(at, bytes)| {
                        let from = (address - at) as usize;
                        (from + length as usize <= bytes.len())
                            .then(|| bytes.slice(from..from + length as usize))
                    });
                    return within.map(Place::Memory).ok_or(unmapped);
                }
                match state.index.find(address) {
                    Ok(Some(entry)) if address + length <= entry.end => {
                        return Ok(Place::Object(entry));
                    }
                    Ok(_) => return Err(unmapped),
                    Err(Lack::Wrong(why)) => {
                        return Err(Error::Damaged { path: "index".into(), why });
                    }
                    Err(Lack::Absent(keys)) => keys,
                }
            };
            self.load(&absent, class).await?;
        }
    }

    /// Reads blocks of one object.
    async fn read_object(
        &self,
        entry: &Entry,
        blocks: &[(u64, u64)],
        wanted: Vec<usize>,
        class: Class,
    ) -> Vec<(usize, Result<Bytes>)> {
        let mut answers = Vec::new();
        let mut parts: Vec<Part> = Vec::new();
        let table = match entry.dense() {
            true => None,
            false => match self.table(entry, class).await {
                Ok(table) => Some(table),
                Err(error) => return wanted.into_iter().map(|n| (n, Err(error.clone()))).collect(),
            },
        };
        for n in wanted {
            let (address, length) = blocks[n];
            let place = match &table {
                Some(table) => table.place(address, length),
                None => Some(address - entry.start),
            };
            match place {
                Some(offset) => parts.push((offset, length, n)),
                None => answers.push((n, Err(Error::Unmapped { address, length }))),
            }
        }
        parts.sort_unstable();
        let read = async |parts: Vec<Part>| self.read_parts(entry, parts, class).await;
        let runs = self.runs(parts);
        answers.extend(join_all(runs.into_iter().map(read)).await.into_iter().flatten());
        answers
    }

    /// Parts in order, divided where the gap between them is not worth reading.
    fn runs(&self, parts: Vec<Part>) -> Vec<Vec<Part>> {
        let tunables = &self.shared.requests.tunables;
        let mut runs: Vec<Vec<Part>> = Vec::new();
        let (mut start, mut end) = (0, 0);
        for (offset, length, n) in parts {
            let near =
                offset <= end + tunables.read_gap && offset + length - start <= tunables.read_bytes;
            match runs.last_mut().filter(|_| near) {
                Some(run) => run.push((offset, length, n)),
                None => {
                    runs.push(vec![(offset, length, n)]);
                    (start, end) = (offset, offset);
                }
            }
            end = end.max(offset + length);
        }
        runs
    }

    /// Reads parts that lie near to each other with one request.
    async fn read_parts(
        &self,
        entry: &Entry,
        parts: Vec<Part>,
        class: Class,
    ) -> Vec<(usize, Result<Bytes>)> {
        let requests = &self.shared.requests;
        let start = parts.first().map_or(0, |part| part.0);
        let end = parts.iter().map(|(offset, length, _)| offset + length).max().unwrap_or(start);
        let path = entry.id.path(&requests.prefix);
        let bytes = requests.range(&path, start..end, class).await;
        let is_cut = bytes.as_ref().is_err_and(|error| error.cause() == Some(Cause::Cut));
        if is_cut && parts.len() > 1 {
            // Only what lies behind the end of the object is lost.
            let one = async |(offset, length, n): Part| {
                (n, requests.range(&path, offset..offset + length, class).await)
            };
            return join_all(parts.into_iter().map(one)).await;
        }
        let part = |(offset, length, n): Part| {
            let from = (offset - start) as usize;
            (n, bytes.clone().map(|bytes| bytes.slice(from..from + length as usize)))
        };
        parts.into_iter().map(part).collect()
    }

    /// The table of an object.
    pub(crate) async fn table(&self, entry: &Entry, class: Class) -> Result<Arc<Table>> {
        if let Some(table) = self.shared.tables.lock().tables.get(&entry.id) {
            return Ok(table.clone());
        }
        let requests = &self.shared.requests;
        let path = entry.id.path(&requests.prefix);
        let bytes = requests.range(&path, u64::from(entry.data)..entry.bytes(), class).await?;
        let table = Table::decode(&bytes).map_err(|why| Error::damaged(&path, &why))?;
        let within = table
            .blocks
            .iter()
            .all(|b| entry.start <= b.address && b.address + b.length <= entry.end);
        if table.data() != u64::from(entry.data) || !within {
            let why = "its table is not what the index says".to_string();
            return Err(Error::Damaged { path: path.to_string(), why });
        }
        let table = Arc::new(table);
        self.shared.tables.lock().keep(entry.id, table.clone());
        Ok(table)
    }
}
