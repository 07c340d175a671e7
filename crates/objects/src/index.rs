//! Which object has an address: sorted entries in pages, and the directory of pages.
//!
//! A page is kept as it is on the store ([`page`]) and decoded for each use, so that an entry takes about 8 bytes of
//! memory. It is *changed* until a checkpoint has written it, *clean* while it is in memory and on the store, and *absent* when only the
//! directory knows it. Changed pages stay in memory. Of the clean ones those that were not used for the longest (second chance)
//! are dropped beyond the budget.
//!
//! A page has the entries that begin at its key or after it, and before the next key. No entry reaches over the next key.
//!
//! Which entries share a page depends on which pages were in memory. A replay of the log may therefore divide the same entries
//! otherwise. A change names entries by their addresses, and never relies on two of them to share a page.
//!
//! A checkpoint packs changed pages into objects. Where less than half of such an object is still in use, the next
//! checkpoint writes its pages again, and it is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use cenote_format::invariant::broken;
use cenote_format::{DecodeError, invariant, less};

use crate::frame::{self, Cursor, Kind};
use crate::id::Id;
use crate::page::{self, Entry, PAGE_ENTRIES};
use crate::record::{Move, Record};
use crate::root::{Totals, decode_objects};
use crate::runs::choose;
use crate::{ADDRESSES, SECTOR};

/// Bytes of memory that the directory takes for each page, about.
const SLOT: usize = 112;

/// Why the index cannot answer or change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lack {
    /// These pages are not in memory.
    Absent(BTreeSet<u64>),
    /// The change does not fit what the index has.
    Wrong(String),
}

/// When an object is worth writing anew.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Percent of live bytes below it.
    pub percent: u64,
    /// Bytes of data below which it is small.
    pub small: u64,
    /// Bytes of data that an object has when it is written anew, at most.
    pub target: u64,
    /// Entries of a page: it is divided beyond them. At most [`PAGE_ENTRIES`].
    pub page: usize,
}

impl Limits {
    /// A page with fewer entries joins the one before it.
    fn few(&self) -> usize {
        self.page / 4
    }

    /// Few of its bytes live.
    pub fn thin(&self, entry: &Entry) -> bool {
        u64::from(entry.live) * 100 < u64::from(entry.data) * self.percent
    }

    /// It could become one with its neighbours.
    pub fn small(&self, entry: &Entry) -> bool {
        u64::from(entry.live) < self.small
    }
}

#[derive(Debug, Clone)]
struct Slot {
    /// Entries, and how many of them are worth writing anew ([`choose`]).
    count: u32,
    low: u32,
    /// Bytes on the store.
    length: u32,
    /// Where it is on the store; None: changed since.
    home: Option<(Id, u64)>,
    bytes: Option<Arc<[u8]>>,
    used: bool,
}

/// The index.
#[derive(Debug)]
pub struct Index {
    pages: BTreeMap<u64, Slot>,
    /// Objects with pages, and their lengths.
    holders: BTreeMap<Id, u64>,
    limits: Limits,
    resident: usize,
    /// Pages that are in memory and on the store: they can be dropped.
    clean: BTreeSet<u64>,
    /// Pages with entries that were not written anew, for whatever reason, and that have not changed since.
    passed: BTreeSet<u64>,
    hand: u64,
    /// Sums over all entries.
    pub totals: Totals,
}

impl Index {
    /// Without entries.
    pub fn new(limits: Limits) -> Self {
        let limits = Limits { page: limits.page.clamp(4, PAGE_ENTRIES), ..limits };
        let (pages, holders) = (BTreeMap::new(), BTreeMap::new());
        let mut index = Self {
            pages,
            holders,
            limits,
            resident: 0,
            clean: BTreeSet::new(),
            passed: BTreeSet::new(),
            hand: 0,
            totals: Totals::default(),
        };
        index.store(0, &[]);
        index
    }

    /// The key of the page that has an address.
    fn key(&self, address: u64) -> u64 {
        self.pages.range(..=address).next_back().map_or(0, |(key, _)| *key)
    }

    /// Replaces a page, or makes it.
    fn store(&mut self, key: u64, entries: &[Entry]) {
        let bytes: Arc<[u8]> = page::encode(entries).into();
        let low: usize = choose(entries, &self.limits).iter().map(Vec::len).sum();
        let (count, low, length) = (entries.len() as u32, low as u32, bytes.len() as u32);
        self.resident += bytes.len();
        let slot = Slot { count, low, length, home: None, bytes: Some(bytes), used: true };
        self.drop_bytes(key);
        self.passed.remove(&key);
        self.pages.insert(key, slot);
    }

    fn drop_bytes(&mut self, key: u64) {
        let bytes = self.pages.get_mut(&key).and_then(|slot| slot.bytes.take());
        let dropped = bytes.map_or(0, |bytes| bytes.len());
        self.clean.remove(&key);
        self.resident = less!(self.resident, dropped, "bytes of pages in memory, page {key:#x}");
    }

    fn entries(&mut self, key: u64) -> Result<Vec<Entry>, Lack> {
        let absent = || Lack::Absent(BTreeSet::from([key]));
        let slot = self.pages.get_mut(&key).ok_or_else(absent)?;
        slot.used = true;
        let bytes = slot.bytes.as_ref().ok_or_else(absent)?;
        page::decode(bytes).map_err(|why| Lack::Wrong(format!("page {key:#x}: {why}")))
    }

    /// The entry that has an address, if one has.
    ///
    /// # Errors
    /// Its page is absent.
    pub fn find(&mut self, address: u64) -> Result<Option<Entry>, Lack> {
        let entries = self.entries(self.key(address))?;
        let at = entries.partition_point(|entry| entry.end <= address);
        Ok(entries.get(at).filter(|entry| entry.start <= address).copied())
    }

    /// Where an absent page is: object, offset, length.
    pub fn home(&self, key: u64) -> Option<(Id, u64, u64)> {
        let slot = self.pages.get(&key).filter(|slot| slot.bytes.is_none())?;
        slot.home.map(|(id, offset)| (id, offset, u64::from(slot.length)))
    }

    /// Takes a page that was read. It is forgotten if it was changed meanwhile.
    ///
    /// # Errors
    /// It is damaged, or another page.
    pub fn install(&mut self, key: u64, home: (Id, u64), bytes: &[u8]) -> Result<(), DecodeError> {
        let entries = page::decode(bytes)?;
        let next = self.pages.range((Excluded(key), Unbounded)).next().map_or(ADDRESSES, |n| *n.0);
        let Some(slot) = self.pages.get_mut(&key) else { return Ok(()) };
        if slot.bytes.is_some() || slot.home != Some(home) {
            return Ok(());
        }
        let within = entries.iter().all(|entry| entry.start >= key && entry.end <= next);
        let length = u64::from(slot.length);
        if entries.len() != slot.count as usize || !within || bytes.len() as u64 != length {
            let (what, why) = (Kind::Page.name(), format!("not the page of {key:#x}"));
            return Err(DecodeError::Invalid { what, why });
        }
        slot.bytes = Some(bytes.into());
        slot.used = true;
        self.resident += bytes.len();
        self.clean.insert(key);
        Ok(())
    }

    /// Absent pages that a record changes.
    pub fn absent(&self, record: &Record) -> BTreeSet<u64> {
        let mut keys: BTreeSet<u64> = self.pages.keys().next_back().copied().into_iter().collect();
        for (start, length) in &record.freed {
            keys.insert(self.key(*start));
            keys.extend(self.pages.range(*start..start + length).map(|(key, _)| *key));
        }
        for one in &record.moved {
            keys.insert(self.key(one.new.start));
            keys.extend(one.olds.iter().map(|old| self.key(old.start)));
            keys.extend(self.pages.range(one.new.start..one.new.end).map(|(key, _)| *key));
        }
        keys.retain(|key| self.pages.get(key).is_some_and(|slot| slot.bytes.is_none()));
        keys
    }

    /// Applies what a group changed: all of it or nothing. Returns the entries of objects that became garbage.
    ///
    /// # Errors
    /// Pages are absent ([`Self::absent`]), or the record does not fit.
    pub fn apply(&mut self, record: &Record) -> Result<Vec<Entry>, Lack> {
        let absent = self.absent(record);
        if !absent.is_empty() {
            return Err(Lack::Absent(absent));
        }
        let (pages, gone) = (BTreeMap::new(), BTreeSet::new());
        let mut work = Work { index: self, pages, gone, garbage: Vec::new() };
        record.added.iter().try_for_each(|entry| work.add(entry))?;
        record.freed.iter().try_for_each(|(start, length)| work.free(*start, start + length))?;
        record.moved.iter().try_for_each(|one| work.exchange(one))?;
        let Work { pages, gone, garbage, .. } = work;
        for key in gone {
            let before = self.entries(key)?;
            self.count(&before, false);
            self.drop_bytes(key);
            self.pages.remove(&key);
        }
        for (key, entries) in pages {
            self.settle(key, entries)?;
        }
        Ok(garbage)
    }

    /// Keeps the changed entries of a page: divides it if it is long, joins it to the one before if it is short.
    fn settle(&mut self, key: u64, mut entries: Vec<Entry>) -> Result<(), Lack> {
        let before = self.entries(key)?;
        self.count(&before, false);
        self.count(&entries, true);
        let mut at = key;
        let last = self.pages.keys().next_back() == Some(&key);
        if entries.len() < self.limits.few()
            && !last
            && let Some((previous, _)) = self.pages.range(..key).next_back()
        {
            let previous = *previous;
            if self.pages.get(&previous).is_some_and(|slot| slot.bytes.is_some()) {
                let mut joined = self.entries(previous)?;
                if joined.len() + entries.len() <= self.limits.page - self.limits.few() {
                    joined.append(&mut entries);
                    entries = joined;
                    self.drop_bytes(key);
                    self.pages.remove(&key);
                    at = previous;
                }
            }
        }
        if entries.is_empty() {
            self.store(at, &[]);
        }
        for (n, chunk) in entries.chunks(self.limits.page).enumerate() {
            self.store(if n == 0 { at } else { chunk[0].start }, chunk);
        }
        Ok(())
    }

    fn count(&mut self, entries: &[Entry], more: bool) {
        let sum = |of: fn(&Entry) -> u32| entries.iter().map(|e| u64::from(of(e))).sum::<u64>();
        let (objects, stored, live) = (entries.len() as u64, sum(|e| e.data), sum(|e| e.live));
        let totals = &mut self.totals;
        let by = [
            (&mut totals.objects, objects),
            (&mut totals.stored, stored),
            (&mut totals.live, live),
        ];
        for (total, by) in by {
            // The directory's sums come from the store: they are compared with the root's, not trusted here.
            *total = if more { total.wrapping_add(by) } else { total.wrapping_sub(by) };
        }
    }

    /// The first page from `from` on with entries that are worth writing anew, without those that are passed over.
    pub fn low(&self, from: u64) -> Option<u64> {
        let mut after = self.pages.range(from..);
        let low = after.find(|(key, slot)| slot.low > 0 && !self.passed.contains(key));
        low.map(|(key, _)| *key)
    }

    /// From now on [`Self::low`] leaves out a page, until it changes.
    pub fn pass_over(&mut self, key: u64) {
        self.passed.insert(key);
    }

    /// No page is passed over any more.
    pub fn pass_over_none(&mut self) {
        self.passed.clear();
    }

    /// Entries of a page that is in memory.
    ///
    /// # Errors
    /// It is absent.
    pub fn page(&mut self, key: u64) -> Result<Vec<Entry>, Lack> {
        self.entries(key)
    }

    /// Keys of all pages.
    pub fn keys(&self) -> Vec<u64> {
        self.pages.keys().copied().collect()
    }

    /// Objects that hold pages.
    pub fn holders(&self) -> impl Iterator<Item = Id> + '_ {
        self.holders.keys().copied()
    }

    /// Bytes of memory that the index takes, about.
    pub fn memory(&self) -> usize {
        self.resident + self.pages.len() * SLOT
    }

    /// Drops clean pages beyond the budget.
    pub fn evict(&mut self, budget: usize) {
        while self.resident > budget {
            let next = self.clean.range((Excluded(self.hand), Unbounded)).next();
            let Some(key) = next.or_else(|| self.clean.first()).copied() else { return };
            self.hand = key;
            let slot = self.pages.get_mut(&key);
            let changed = slot.as_ref().is_some_and(|slot| slot.home.is_none());
            invariant!(!changed, "page {key:#x} was changed, and is to be dropped");
            if slot.is_none_or(|slot| !std::mem::take(&mut slot.used)) {
                self.drop_bytes(key);
            }
        }
    }

    /// Pages in objects of which less than half is in use.
    pub fn worn(&self) -> BTreeSet<u64> {
        let mut live = BTreeMap::<Id, u64>::new();
        for slot in self.pages.values() {
            if let Some((id, _)) = slot.home {
                *live.entry(id).or_default() += u64::from(slot.length);
            }
        }
        let worn = |id: &Id| {
            live.get(id).zip(self.holders.get(id)).is_some_and(|(live, length)| live * 2 < *length)
        };
        let pages =
            self.pages.iter().filter(|(_, slot)| slot.home.is_some_and(|(id, _)| worn(&id)));
        pages.map(|(key, _)| *key).collect()
    }

    /// Has the next checkpoint write these pages if they are in memory.
    pub fn soil(&mut self, keys: &BTreeSet<u64>) {
        for key in keys {
            if let Some(slot) = self.pages.get_mut(key).filter(|slot| slot.bytes.is_some()) {
                slot.home = None;
                self.clean.remove(key);
            }
        }
    }

    /// Packs the changed pages into objects of about `target` bytes. Returns these objects, and those that have no page any more.
    pub fn checkpoint(
        &mut self,
        target: u64,
        mut name: impl FnMut() -> Id,
    ) -> (Vec<(Id, Vec<u8>)>, Vec<Id>) {
        let mut objects: Vec<(Id, Vec<u8>)> = Vec::new();
        for (key, slot) in self.pages.iter_mut().filter(|(_, slot)| slot.home.is_none()) {
            let Some(bytes) = &slot.bytes else {
                broken(format_args!("page {key:#x} was changed, and is not in memory"))
            };
            let (length, has) = (slot.length as usize, bytes.len());
            invariant!(has == length, "page {key:#x} has {has} bytes, and is noted with {length}");
            if objects.last().is_none_or(|(_, object)| object.len() as u64 >= target) {
                objects.push((name(), Vec::new()));
            }
            if let Some((id, object)) = objects.last_mut() {
                slot.home = Some((*id, object.len() as u64));
                object.extend_from_slice(bytes);
                self.clean.insert(*key);
            }
        }
        self.holders.extend(objects.iter().map(|(id, object)| (*id, object.len() as u64)));
        let used: BTreeSet<Id> =
            self.pages.values().filter_map(|slot| Some(slot.home?.0)).collect();
        let lost = used.iter().find(|id| !self.holders.contains_key(id));
        invariant!(lost.is_none(), "pages are in object {lost:?}, which is not known to have some");
        let gone = self.holders.keys().filter(|id| !used.contains(id)).copied().collect::<Vec<_>>();
        self.holders.retain(|id, _| used.contains(id));
        (objects, gone)
    }

    /// The directory after a checkpoint, with the garbage that waits for deletion.
    pub fn directory(&self, garbage: &[Id]) -> Vec<u8> {
        let mut out = Vec::new();
        for total in [self.totals.objects, self.totals.stored, self.totals.live] {
            frame::put(&mut out, total);
        }
        frame::put(&mut out, self.holders.len() as u64);
        for (id, length) in &self.holders {
            frame::put(&mut out, id.0);
            frame::put(&mut out, *length);
        }
        frame::put(&mut out, self.pages.len() as u64);
        let mut after = 0;
        for (key, slot) in &self.pages {
            frame::put(&mut out, (key - after) / SECTOR);
            let (id, offset) = slot.home.unwrap_or((Id(0), 0));
            invariant!(slot.home.is_some(), "page {key:#x}: changed after a checkpoint");
            for number in [slot.count, slot.low, slot.length].map(u64::from) {
                frame::put(&mut out, number);
            }
            frame::put(&mut out, id.0);
            frame::put(&mut out, offset);
            after = *key;
        }
        frame::put(&mut out, garbage.len() as u64);
        garbage.iter().for_each(|id| frame::put(&mut out, id.0));
        frame::seal(Kind::Directory, out)
    }

    /// The index that a directory describes, all of it absent, with the garbage.
    ///
    /// # Errors
    /// It is damaged.
    pub fn open(bytes: &[u8], limits: Limits) -> Result<(Self, Vec<Id>), DecodeError> {
        let (_, body) = frame::open(Kind::Directory, bytes)?;
        let mut cursor = Cursor::new(Kind::Directory, body);
        let (objects, stored) = (cursor.number()?, cursor.number()?);
        let totals = Totals { objects, stored, live: cursor.number()? };
        let holders: BTreeMap<Id, u64> = decode_objects(&mut cursor)?.into_iter().collect();
        let mut pages = BTreeMap::new();
        let mut after = 0;
        for n in 0..cursor.count()? {
            let key = after + cursor.at_most((ADDRESSES - after) / SECTOR)? * SECTOR;
            let count = cursor.at_most(PAGE_ENTRIES as u64)? as u32;
            let low = cursor.at_most(u64::from(count))? as u32;
            let length = cursor.at_most(u64::from(u32::MAX))? as u32;
            let home = (Id(cursor.number()?), cursor.number()?);
            let within = holders.get(&home.0).is_some_and(|held| {
                home.1.checked_add(u64::from(length)).is_some_and(|end| end <= *held)
            });
            if !within || (n == 0) != (key == 0) || (n > 0 && key == after) {
                return Err(cursor.invalid(format!("page {n} at {key:#x} in object {}", home.0)));
            }
            pages.insert(
                key,
                Slot { count, low, length, home: Some(home), bytes: None, used: false },
            );
            after = key;
        }
        let mut garbage = Vec::new();
        for _ in 0..cursor.count()? {
            garbage.push(Id(cursor.number()?));
        }
        if pages.is_empty() {
            return Err(cursor.invalid("no page"));
        }
        cursor.end()?;
        let index = Self { pages, holders, totals, ..Self::new(limits) };
        Ok((Self { resident: 0, ..index }, garbage))
    }
}

/// Pages while a record is applied.
struct Work<'a> {
    index: &'a mut Index,
    pages: BTreeMap<u64, Vec<Entry>>,
    /// Pages whose entries went to the one before, because an entry reaches over their key now.
    gone: BTreeSet<u64>,
    garbage: Vec<Entry>,
}

impl Work<'_> {
    /// The key of the page that has an address.
    fn key(&self, address: u64) -> u64 {
        let mut before = self.index.pages.range(..=address).rev().map(|(key, _)| *key);
        before.find(|key| !self.gone.contains(key)).unwrap_or(0)
    }

    fn page(&mut self, key: u64) -> Result<&mut Vec<Entry>, Lack> {
        if !self.pages.contains_key(&key) {
            let entries = self.index.entries(key)?;
            self.pages.insert(key, entries);
        }
        self.pages.get_mut(&key).ok_or_else(|| Lack::Absent(BTreeSet::from([key])))
    }

    fn add(&mut self, entry: &Entry) -> Result<(), Lack> {
        let key = self.key(ADDRESSES);
        let page = self.page(key)?;
        let end = page.last().map_or(key, |last| last.end);
        if entry.start < end || entry.live != entry.data {
            return Err(Lack::Wrong(format!(
                "object {} at {:#x}: the index ends at {end:#x}",
                entry.id, entry.start
            )));
        }
        page.push(*entry);
        Ok(())
    }

    fn free(&mut self, start: u64, end: u64) -> Result<(), Lack> {
        let mut at = start;
        while at < end {
            let key = self.key(at);
            let page = self.page(key)?;
            let n = page.partition_point(|entry| entry.end <= at);
            let Some(entry) = page.get_mut(n).filter(|entry| entry.start <= at) else {
                return Err(Lack::Wrong(format!("{at:#x} is freed, and no object has it")));
            };
            let until = entry.end.min(end);
            let Some(live) = u64::from(entry.live).checked_sub(until - at) else {
                let (id, live) = (entry.id, entry.live);
                return Err(Lack::Wrong(format!(
                    "object {id}: {} of {live} live bytes are freed",
                    until - at
                )));
            };
            entry.live = live as u32;
            if live == 0 {
                let gone = page.remove(n);
                self.garbage.push(gone);
            }
            at = until;
        }
        Ok(())
    }

    /// The page of `start`, with the entries of all pages whose keys lie before `end`.
    fn join(&mut self, start: u64, end: u64) -> Result<&mut Vec<Entry>, Lack> {
        let key = self.key(start);
        let over = self.index.pages.range((Excluded(key), Unbounded)).map(|(key, _)| *key);
        let over: Vec<u64> =
            over.take_while(|key| *key < end).filter(|key| !self.gone.contains(key)).collect();
        for other in over {
            let mut entries = std::mem::take(self.page(other)?);
            self.page(key)?.append(&mut entries);
            self.pages.remove(&other);
            self.gone.insert(other);
        }
        self.page(key)
    }

    fn exchange(&mut self, one: &Move) -> Result<(), Lack> {
        let (mut gone, mut other) = (Vec::new(), None);
        for old in &one.olds {
            let key = self.key(old.start);
            let page = self.page(key)?;
            let n = page.partition_point(|entry| entry.end <= old.start);
            match page.get(n).filter(|entry| entry.start <= old.start) {
                Some(entry) if entry.start == old.start && entry.id == old.id => {
                    gone.push(page.remove(n));
                }
                // All of it was freed meanwhile.
                None => {}
                Some(entry) => other = Some((*old, entry.id)),
            }
        }
        if gone.is_empty() {
            // All of them died; another new object may reach over their addresses already.
            self.garbage.push(one.new);
            return Ok(());
        }
        if let Some((old, id)) = other {
            return Err(Lack::Wrong(format!(
                "object {} is written anew, but {id} has its address {:#x}",
                old.id, old.start
            )));
        }
        let page = self.join(one.new.start, one.new.end)?;
        let live: u64 = gone.iter().map(|entry| u64::from(entry.live)).sum();
        let n = page.partition_point(|entry| entry.start < one.new.start);
        let after = n.checked_sub(1).and_then(|n| page.get(n)).map_or(0, |entry| entry.end);
        let before = page.get(n).map_or(ADDRESSES, |entry| entry.start);
        if live > u64::from(one.new.data) || one.new.start < after || one.new.end > before {
            return Err(Lack::Wrong(format!(
                "object {} in place of others does not fit",
                one.new.id
            )));
        }
        page.insert(n, Entry { live: live as u32, ..one.new });
        self.garbage.extend(gone.iter().copied());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB4: u64 = 4 << 20;
    const LIMITS: Limits = Limits { percent: 50, small: 1 << 20, target: MIB4, page: PAGE_ENTRIES };

    fn dense(n: u64) -> Entry {
        let (start, data) = (n * MIB4, MIB4 as u32);
        Entry { start, end: start + MIB4, id: Id(n), data, table: 500, live: data }
    }

    fn filled(objects: u64) -> Index {
        filled_with(objects, LIMITS)
    }

    fn filled_with(objects: u64, limits: Limits) -> Index {
        let mut index = Index::new(limits);
        for first in (0..objects).step_by(1000) {
            let added = (first..(first + 1000).min(objects)).map(dense).collect();
            index.apply(&Record { added, ..Record::default() }).unwrap();
        }
        index
    }

    #[test]
    fn an_entry_takes_few_bytes_also_when_objects_die_at_random() {
        let objects = 200_000;
        let mut index = filled(objects);
        let fresh = index.memory() as f64 / objects as f64;
        let (block, blocks) = (128 << 10, objects * 32);
        for round in 0..blocks / 16 / 2000 {
            let nth = |n: u64| n * 1_000_003 % blocks * block;
            let freed: BTreeSet<u64> = (round * 2000..(round + 1) * 2000).map(nth).collect();
            let freed = freed.into_iter().map(|start| (start, block)).collect();
            index.apply(&Record { freed, ..Record::default() }).unwrap();
        }
        let aged = index.memory() as f64 / index.totals.objects as f64;
        println!("bytes of memory for each object: {fresh:.2} fresh, {aged:.2} aged");
        assert!(fresh < 10.0 && aged < 12.0, "{fresh} {aged}");
    }

    #[test]
    fn a_checkpoint_is_opened_page_by_page_and_worn_objects_are_written_again() {
        let mut index = filled(5000);
        let mut next = 1 << 50;
        let mut name = || {
            next += 1;
            Id(next)
        };
        let (mut objects, gone) = index.checkpoint(16 << 10, &mut name);
        assert!(objects.len() >= 2 && gone.is_empty());
        let directory = index.directory(&[Id(9)]);
        let (mut again, garbage) = Index::open(&directory, LIMITS).unwrap();
        assert_eq!(garbage, vec![Id(9)]);
        assert!(matches!(again.find(0), Err(Lack::Absent(_))));
        let load = |index: &mut Index, objects: &[(Id, Vec<u8>)]| {
            for key in index.keys() {
                let Some((id, offset, length)) = index.home(key) else { continue };
                let object = &objects.iter().find(|object| object.0 == id).unwrap().1;
                index
                    .install(key, (id, offset), &object[offset as usize..][..length as usize])
                    .unwrap();
            }
        };
        load(&mut again, &objects);
        assert_eq!(again.find(MIB4 * 4321 + 5).unwrap(), Some(dense(4321)));
        // Pages change one after the other: the first objects wear out and go.
        for round in 0..4_u64 {
            let freed = vec![(round * 1024 * MIB4, 512)];
            again.apply(&Record { freed, ..Record::default() }).unwrap();
            let worn = again.worn();
            again.soil(&worn);
            objects.extend(again.checkpoint(16 << 10, &mut name).0);
            again.directory(&[]);
        }
        assert!(again.holders().count() <= 5, "{}", again.holders().count());
        again.evict(0);
        again.evict(0);
        assert_eq!(again.resident, 0);
        load(&mut again, &objects);
        assert_eq!(again.find(MIB4).unwrap(), Some(dense(1)));
    }

    #[test]
    fn a_log_is_replayed_also_where_pages_are_divided_otherwise() {
        let limits = Limits { page: 8, ..LIMITS };
        let mut live = filled_with(24, limits);
        let free = |numbers: std::ops::Range<u64>| {
            let freed = numbers.map(|n| (n * MIB4, MIB4)).collect();
            Record { freed, ..Record::default() }
        };
        live.apply(&free(5..8)).unwrap();
        let mut next = 1 << 50;
        let (objects, _) = live.checkpoint(16 << 10, || {
            next += 1;
            Id(next)
        });
        let (mut again, _) = Index::open(&live.directory(&[]), limits).unwrap();
        // All pages of the first are in memory: object 15 joins the page before.
        let deaths = free(8..15);
        live.apply(&deaths).unwrap();
        assert_eq!(live.keys(), vec![0, 16 * MIB4]);
        let old = |n: u64| crate::record::Old { start: n * MIB4, id: Id(n) };
        let (start, end, data) = (4 * MIB4, 16 * MIB4, 2 * MIB4 as u32);
        let new = Entry { start, end, id: Id(77), data, table: 99, live: data };
        let moved = vec![Move { olds: vec![old(4), old(15)], new }];
        let exchange = Record { moved, ..Record::default() };
        live.apply(&exchange).unwrap();
        for record in [&deaths, &exchange] {
            for key in again.absent(record) {
                let (id, offset, length) = again.home(key).unwrap();
                let object = &objects.iter().find(|object| object.0 == id).unwrap().1;
                let bytes = &object[offset as usize..][..length as usize];
                again.install(key, (id, offset), bytes).unwrap();
            }
            again.apply(record).unwrap();
        }
        assert_eq!(again.totals, live.totals);
        for n in 0..16 {
            let found = |index: &mut Index| index.find(n * MIB4).unwrap();
            assert_eq!(found(&mut again), found(&mut live), "{n}");
        }
        assert_eq!(live.find(15 * MIB4).unwrap().map(|entry| entry.id), Some(Id(77)));
    }

    #[test]
    fn an_object_is_not_written_anew_over_another_one() {
        let mut index = filled(10);
        let old = |n: u64, id: u64| crate::record::Old { start: n * MIB4, id: Id(id) };
        let new = Entry { id: Id(77), end: MIB4 * 3, data: MIB4 as u32 * 2, ..dense(1) };
        let record = |olds| {
            let moved = vec![Move { olds, new }];
            Record { moved, ..Record::default() }
        };
        let wrong = index.apply(&record(vec![old(1, 1), old(2, 9)]));
        assert!(matches!(wrong, Err(Lack::Wrong(_))), "{wrong:?}");
        // Where all old ones are dead, the new one is garbage and changes nothing.
        let gone = index.apply(&record(vec![old(1, 9)])).unwrap();
        assert_eq!(gone.iter().map(|entry| entry.id).collect::<Vec<_>>(), vec![Id(77)]);
        assert_eq!(index.find(MIB4).unwrap(), Some(dense(1)));
    }

    #[test]
    fn frees_and_exchanges_are_whole_or_refused() {
        let mut index = filled(10);
        let both = Record { freed: vec![(0, MIB4), (MIB4 * 20, 512)], ..Record::default() };
        assert!(matches!(index.apply(&both), Err(Lack::Wrong(_))));
        assert_eq!(index.find(0).unwrap(), Some(dense(0)));
        let old = |n: u64| crate::record::Old { start: n * MIB4, id: Id(n) };
        let half = MIB4 as u32 / 2;
        let new =
            Entry { start: MIB4, end: MIB4 * 3, id: Id(77), data: half, table: 99, live: half };
        let moved = vec![Move { olds: vec![old(1), old(2)], new }];
        // Of object 1 all is freed in the same group, of object 2 three quarters.
        let freed = vec![(0, 512), (MIB4, MIB4 + MIB4 / 4 * 3)];
        let garbage = index.apply(&Record { freed, moved, ..Record::default() }).unwrap();
        assert_eq!(garbage.iter().map(|entry| entry.id).collect::<Vec<_>>(), vec![Id(1), Id(2)]);
        let entry = index.find(MIB4 * 3 - 1).unwrap().unwrap();
        assert_eq!((entry.id, entry.live), (Id(77), MIB4 as u32 / 4));
        assert_eq!(index.totals.objects, 9);
    }
}
