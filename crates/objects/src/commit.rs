//! A group becomes what the next import finds.
//!
//! 1. The last object is closed, and all uploads of the group are waited for.
//! 2. The pages that the group changes are read, as far as they are absent. Meanwhile no page is dropped, whatever the budget says.
//! 3. Under the lock, the record is applied to the index; log or checkpoint and the root are made of it ([`Prepared`]).
//! 4. Log or checkpoint are uploaded.
//! 5. The root replaces the last one. From here on the group is committed.
//! 6. What the group made garbage may be deleted ([`Space::tidy`]).
//!
//! Each step can be repeated after an error. What was prepared stays the same until it is stored.

use crate::error::{Error, Result};
use crate::head::Head;
use crate::id::Id;
use crate::index::Lack;
use crate::record::Record;
use crate::requests::Class;
use crate::root::Root;
use crate::space::{Pin, Space, State};
use crate::stats::Purpose;
use crate::write::{Cut, Phase};
use std::time::Duration;

use bytes::Bytes;
use cenote_format::invariant;
use cenote_format::invariant::broken;
use futures_util::future::join_all;

/// What a commit has between its calls.
pub(crate) struct Committing {
    pub head: Head,
    /// The group that could not be prepared yet.
    pub kept: Option<Kept>,
    pub prepared: Option<Prepared>,
}

/// A group whose end is fixed, while its uploads go on.
pub(crate) struct Kept {
    group: u64,
    payload: Bytes,
    cut: Cut,
}

/// A group that is being stored.
pub(crate) struct Prepared {
    cut: Cut,
    root: Root,
    bytes: Bytes,
    objects: Vec<(Id, Bytes)>,
    garbage: Vec<Id>,
}

impl Space {
    /// Commits a group: everything allocated, written, freed and written anew when it is called first, with `payload`. Groups have ascending
    /// numbers. What comes while it runs, or before it is called again after an error, is of the next group. The call may be dropped: the
    /// same call goes on later.
    ///
    /// # Errors
    /// The store fails ([`Error::transient`]): the same call goes on later, and a call with another group or payload is refused. Another host has the space ([`Error::Fenced`]). A task found the space's state wrong ([`Error::Broken`]). What was freed does not fit what is allocated,
    /// or something was not written: nothing is committed.
    pub async fn commit(&self, group: u64, payload: &[u8]) -> Result<()> {
        let mut committing = self.shared.commit.lock().await;
        if let Some(error) = &self.shared.state.lock().fenced {
            return Err(error.clone());
        }
        let Committing { head, kept, prepared } = &mut *committing;
        let one = match prepared {
            Some(one) => one,
            None => {
                let one = self.prepare(group, payload, kept).await?;
                *kept = None;
                prepared.insert(one)
            }
        };
        if one.root.group != group || one.root.payload != payload {
            return Err(unfinished(one.root.group));
        }
        if let Err(error) = self.store(one, head).await {
            if matches!(error, Error::Fenced { .. }) {
                let mut state = self.shared.state.lock();
                // What is broken stays so: nothing is deleted any more.
                if !matches!(state.fenced, Some(Error::Broken(_))) {
                    state.fenced = Some(error.clone());
                }
            }
            return Err(error);
        }
        // Nothing is awaited from here on: a call that is dropped has either stored the group and knows it, or goes on.
        if let Some(one) = prepared.take() {
            self.finish(&one, head);
        }
        Ok(())
    }

    /// Steps 1 to 3.
    async fn prepare(
        &self,
        group: u64,
        payload: &[u8],
        kept: &mut Option<Kept>,
    ) -> Result<Prepared> {
        if let Some(kept) = kept.as_ref().filter(|k| k.group != group || k.payload != payload) {
            return Err(unfinished(kept.group));
        }
        if group <= self.shared.state.lock().root.group {
            return Err(Error::Refused(format!("group {group} is not after the last one")));
        }
        let cut = match kept {
            Some(kept) => kept.cut,
            None => {
                let (cut, payload) = (self.cut()?, Bytes::copy_from_slice(payload));
                kept.insert(Kept { group, payload, cut }).cut
            }
        };
        self.again();
        self.sent(cut.next).await?;
        let worn = {
            let state = self.shared.state.lock();
            if self.full(&state.root) { state.index.worn() } else { Default::default() }
        };
        // Readers would have dropped what was read before the last page is there.
        let pin = Pin::new(&self.shared.state);
        self.load(&worn, Class::Sync).await?;
        let one = loop {
            let absent = {
                let mut state = self.shared.state.lock();
                let record = record(&state, group, cut)?;
                match state.index.apply(&record) {
                    Ok(gone) => {
                        let garbage = gone.iter().map(|entry| entry.id).collect();
                        state.gone.extend(gone.iter().map(|entry| (entry.id, *entry)));
                        state.index.soil(&worn);
                        break self.make(&mut state, &record, cut, payload, garbage);
                    }
                    Err(Lack::Wrong(why)) => return Err(Error::Refused(why)),
                    Err(Lack::Absent(keys)) => keys,
                }
            };
            self.load(&absent, Class::Sync).await?;
        };
        drop(pin);
        Ok(one)
    }

    /// Whether it is time for a checkpoint.
    fn full(&self, root: &Root) -> bool {
        let tunables = &self.shared.requests.tunables;
        let bytes =
            root.inline.len() as u64 + root.logs.iter().map(|(_, length)| length).sum::<u64>();
        bytes > tunables.log_bytes as u64 || root.logs.len() > tunables.log_objects
    }

    /// Step 3, after the record was applied.
    fn make(
        &self,
        state: &mut State,
        record: &Record,
        cut: Cut,
        payload: &[u8],
        mut garbage: Vec<Id>,
    ) -> Prepared {
        let tunables = &self.shared.requests.tunables;
        let mut root = state.root.clone();
        let (group, last) = (record.group, root.group);
        invariant!(last < group, "group {group} is made ready, and group {last} is stored");
        invariant!(!state.frozen, "group {group} is made ready beside another one");
        let (from, until) = (root.next, cut.next);
        invariant!(from <= until, "group {group} ends at {until:#x}, and begins at {from:#x}");
        let mut objects = Vec::new();
        let full = self.full(&root);
        root.inline.extend(record.encode());
        if full {
            let old = root.directory.take().into_iter().chain(root.logs.drain(..));
            garbage.extend(old.map(|(id, _)| id));
            root.inline.clear();
            objects.extend(self.checkpoint(state, &mut root, &mut garbage));
        } else if root.inline.len() > tunables.inline_bytes {
            let log = Bytes::from(std::mem::take(&mut root.inline));
            let id = state.name();
            root.logs.push((id, log.len() as u64));
            objects.push((id, log));
        }
        let new = record
            .added
            .iter()
            .map(|entry| entry.id)
            .chain(record.moved.iter().map(|one| one.new.id));
        for id in new.chain(objects.iter().map(|(id, _)| *id)) {
            if id.epoch() == root.epoch() {
                state.loose.remove(&id.counter());
            }
        }
        root.sequence += 1;
        root.group = record.group;
        root.next = cut.next;
        root.totals = state.index.totals;
        root.payload = payload.into();
        if let Some(tail) = root.tails.first_mut() {
            tail.counter = state.counter;
            tail.loose = state.loose.iter().copied().collect();
        }
        for one in &record.moved {
            for old in &one.olds {
                let marked = state.moving.remove(&old.start);
                let (old, new) = (old.id, one.new.id);
                invariant!(marked, "object {old} was written anew as {new} without its mark");
            }
        }
        state.freed.drain(..cut.freed);
        state.moves.drain(..cut.moves);
        state.deleted.clear();
        state.frozen = true;
        state.root = root.clone();
        Prepared { cut, bytes: root.encode().into(), root, objects, garbage }
    }

    /// Writes the changed pages and a directory, which has all garbage, also that of this group.
    fn checkpoint(
        &self,
        state: &mut State,
        root: &mut Root,
        garbage: &mut Vec<Id>,
    ) -> Vec<(Id, Bytes)> {
        let target = self.shared.requests.tunables.object_bytes;
        let (epoch, loose, mut counter) = (root.epoch(), &mut state.loose, state.counter);
        let name = || {
            loose.insert(counter);
            counter += 1;
            Id::new(epoch, counter - 1)
        };
        let (pages, gone) = state.index.checkpoint(target, name);
        state.counter = counter;
        garbage.extend(gone);
        let waiting = state.garbage.iter().map(|(_, id)| *id);
        let all: Vec<Id> = waiting.chain(garbage.iter().copied()).collect();
        let directory = Bytes::from(state.index.directory(&all));
        let id = state.name();
        root.directory = Some((id, directory.len() as u64));
        let pages = pages.into_iter().map(|(id, bytes)| (id, Bytes::from(bytes)));
        pages.chain([(id, directory)]).collect()
    }

    /// Steps 4 and 5.
    async fn store(&self, one: &mut Prepared, head: &mut Head) -> Result<()> {
        let requests = &self.shared.requests;
        let put = async |(id, bytes): (Id, Bytes)| {
            let path = id.path(&requests.prefix);
            let done = requests.put_once(&path, &bytes.clone().into(), Purpose::Index).await;
            (id, bytes, done)
        };
        while !one.objects.is_empty() {
            let some = one.objects.len().min(requests.tunables.uploads.max(1));
            let done = join_all(one.objects[..some].iter().cloned().map(put)).await;
            let mut failed = None;
            one.objects.drain(..some);
            for (id, bytes, done) in done {
                if let Err(error) = done {
                    failed = Some(error);
                    one.objects.push((id, bytes));
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
        }
        // A task may find the space's state wrong meanwhile, also while this is tried again. What was sent already may arrive.
        tokio::select! {
            biased;
            error = self.stopped() => Err(error),
            done = head.replace(requests, &one.bytes) => done,
        }
    }

    /// Step 6, but for the deletions.
    fn finish(&self, one: &Prepared, head: &Head) {
        let requests = &self.shared.requests;
        let mut state = self.shared.state.lock();
        let group = one.root.group;
        invariant!(state.frozen, "group {group} ends, and was not made ready");
        let made = state.root.group;
        invariant!(made == group, "group {group} ends, and group {made} was made ready");
        let of_group = state.packed.range(..one.cut.next).map(|(_, packed)| packed);
        let unsent = of_group.map(|p| (p.id, &p.phase)).find(|(_, p)| !matches!(p, Phase::Sent(_)));
        invariant!(unsent.is_none(), "group {group} is stored, and {unsent:?} is not");
        state.packed.retain(|start, _| *start >= one.cut.next);
        state.discard(&one.garbage, Duration::ZERO, &requests.tunables);
        state.old_roots.extend(head.passed(requests));
        state.frozen = false;
        drop(state);
        self.shared.discarded.notify_one();
        self.evict();
    }
}

/// A group must be committed before another one, and with the payload that it has.
fn unfinished(group: u64) -> Error {
    Error::Refused(format!("group {group} is not stored yet; commit it first, with its payload"))
}

/// What was noted up to a group's end.
fn part<T>(group: u64, all: &[T], count: usize) -> &[T] {
    match all.get(..count) {
        Some(part) => part,
        None => {
            broken(format_args!("group {group} has {count} changes, and {} are left", all.len()))
        }
    }
}

/// What the group has changed.
fn record(state: &State, group: u64, cut: Cut) -> Result<Record> {
    let entry = |phase: &Phase| match phase {
        Phase::Sent(entry) => Some(*entry),
        _ => None,
    };
    let packed = state.packed.range(..cut.next);
    let added: Vec<_> = packed.clone().filter_map(|(_, packed)| entry(&packed.phase)).collect();
    let (all, sent) = (packed.count(), added.len());
    invariant!(all == sent, "group {group} has {all} new objects, and {sent} are stored");
    let mut all = part(group, &state.freed, cut.freed).to_vec();
    all.sort_unstable();
    let mut freed: Vec<(u64, u64)> = Vec::with_capacity(all.len());
    for (start, length) in all {
        match freed.last_mut() {
            Some((last, sum)) if *last + *sum > start => {
                return Err(Error::Refused(format!("{start:#x} is freed twice in group {group}")));
            }
            Some((last, sum)) if *last + *sum == start => *sum += length,
            _ => freed.push((start, length)),
        }
    }
    let mut moved = part(group, &state.moves, cut.moves).to_vec();
    moved.sort_unstable_by_key(|one| one.new.start);
    let deleted = state.deleted.clone();
    Ok(Record { group, added, freed, moved, deleted })
}

impl Space {
    /// Notes that addresses are not allocated any more, from the group on that is committed next.
    ///
    /// # Errors
    /// No whole sectors.
    pub fn free(&self, address: u64, length: u64) -> Result<()> {
        crate::write::check(address, length)?;
        self.shared.state.lock().freed.push((address, length));
        Ok(())
    }
}
