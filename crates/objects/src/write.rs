//! Addresses are given out, blocks packed into objects, objects uploaded.
//!
//! An object is *filling* until all that was allocated in it is written and a longer one would be too long (or its group is committed);
//! then it is *sending*, by a task of its own, and *sent*. A failed upload keeps the blocks in memory. It is tried again with the same bytes, since
//! a try that seems to have failed may still arrive: from *sending* on an object takes no write. Further writes are refused with its error then, so that
//! memory stays bounded while the store fails, until [`Space::resume`] or a commit has tried again.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cenote_format::invariant::broken;
use cenote_format::{invariant, less};
use object_store::PutPayload;

use crate::error::{Error, Result};
use crate::guard::guarded;
use crate::id::Id;
use crate::page::{Entry, MAX_TABLE};
use crate::requests::Requests;
use crate::space::{Shared, Space, State};
use crate::stats::{Purpose, Stats};
use crate::table::{Block, Table, sum};
use crate::{ADDRESSES, MAX_DATA, SECTOR};

/// How far an object is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    Filling,
    Sending,
    Failed,
    /// It failed and must be sent again, as it was.
    Again,
    Sent(Entry),
}

/// An object of a group that is not committed.
#[derive(Debug)]
pub(crate) struct Packed {
    pub id: Id,
    pub end: u64,
    pub blocks: BTreeMap<u64, Bytes>,
    /// Ranges that are not going to be written: first address and length.
    pub gaps: BTreeMap<u64, u64>,
    /// Bytes of blocks and gaps.
    pub filled: u64,
    pub closed: bool,
    /// It has blocks that may be written again until the group is closed.
    pub held: bool,
    pub phase: Phase,
}

impl Packed {
    fn ready(&self, start: u64) -> bool {
        let waits = matches!(self.phase, Phase::Filling | Phase::Again);
        self.closed
            && !self.held
            && waits
            && self.filled == self.end - start
            && !self.blocks.is_empty()
    }

    /// So many bytes more are written or given up.
    fn fill(&mut self, start: u64, length: u64) {
        let (id, filled, room) = (self.id, self.filled + length, self.end - start);
        invariant!(filled <= room, "object {id}: {filled} bytes are filled of {room}");
        self.filled = filled;
    }

    /// Nothing in it is going to be written.
    fn void(&self, start: u64) -> bool {
        self.closed
            && self.blocks.is_empty()
            && self.filled == self.end - start
            && self.phase == Phase::Filling
    }

    /// Whether part of a range is written or given up.
    fn taken(&self, address: u64, length: u64) -> bool {
        let end = address + length;
        let block = self.blocks.range(..end).next_back();
        let gap = self.gaps.range(..end).next_back();
        block.is_some_and(|(at, bytes)| at + bytes.len() as u64 > address)
            || gap.is_some_and(|(at, length)| at + length > address)
    }
}

/// What belongs to a group; what comes later belongs to the next one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// Where the addresses of the next group begin.
    pub next: u64,
    /// How many of the frees.
    pub freed: usize,
    /// How many of the objects that were written anew: those copied later leave out what the next group frees.
    pub moves: usize,
}

/// Whether a range can be one of addresses.
pub(crate) fn check(address: u64, length: u64) -> Result<()> {
    let fits = address.checked_add(length).is_some_and(|end| end <= ADDRESSES);
    if fits && length > 0 && address.is_multiple_of(SECTOR) && length.is_multiple_of(SECTOR) {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "address {address:#x}, {length} bytes: not within the space, or not whole sectors"
    )))
}

/// Uploads blocks as an object. It may be called again with the same blocks, and never with others.
///
/// # Errors
/// No index could keep it: blocks or table are too long. The store fails.
pub(crate) async fn upload(
    requests: &Requests,
    id: Id,
    (start, end): (u64, u64),
    blocks: &BTreeMap<u64, Bytes>,
    purpose: Purpose,
) -> Result<Entry> {
    let block = |(address, bytes): (&u64, &Bytes)| Block {
        address: *address,
        length: bytes.len() as u64,
        sum: sum(bytes),
    };
    let table = Table { blocks: blocks.iter().map(block).collect() };
    let (data, trailer) = (table.data(), Bytes::from(table.encode()));
    let length = trailer.len() as u32;
    if data == 0 || data > MAX_DATA || u64::from(length) > MAX_TABLE {
        return Err(Error::Refused(format!(
            "object {id}: {data} bytes of blocks and {length} of table do not fit one object"
        )));
    }
    let room = less!(end, start, "the addresses of object {id}");
    invariant!(data <= room, "object {id}: {data} bytes of blocks at {room} addresses");
    let payload: PutPayload = blocks.values().cloned().chain([trailer]).collect();
    requests.put_once(&id.path(&requests.prefix), &payload, purpose).await?;
    let data = data as u32;
    Ok(Entry { start, end, id, data, table: length, live: data })
}

impl Space {
    /// Gives out the next addresses for a block of `length` bytes. Everything that was given out must be written before its group is
    /// committed.
    ///
    /// # Errors
    /// The length is no multiple of 512 or above 64 MiB; all addresses are given out.
    pub fn allocate(&self, length: u64) -> Result<u64> {
        let mut state = self.shared.state.lock();
        let address = state.next;
        check(address, length)?;
        if length > MAX_DATA {
            return Err(Error::Refused(format!(
                "a block of {length} bytes; at most {MAX_DATA} can be"
            )));
        }
        let room = self.shared.requests.tunables.object_bytes.min(MAX_DATA);
        state.next += length;
        if let Some((start, last)) = state.packed.iter_mut().next_back()
            && !last.closed
        {
            let (id, end) = (last.id, last.end);
            invariant!(
                end == address,
                "object {id} ends at {end:#x}, and {address:#x} is given out"
            );
            if last.end - start + length <= room {
                last.end += length;
                return Ok(address);
            }
            last.closed = true;
        }
        let id = state.name();
        let packed = Packed {
            id,
            end: address + length,
            blocks: BTreeMap::new(),
            gaps: BTreeMap::new(),
            filled: 0,
            closed: false,
            held: false,
            phase: Phase::Filling,
        };
        let other = state.packed.insert(address, packed).map(|other| other.id);
        invariant!(other.is_none(), "{address:#x} is given out twice: object {other:?} has it");
        Ok(address)
    }

    /// Takes a block for addresses that were given out. It may be written again at the same addresses until its object is sent. Waits
    /// while as many objects as may be are under way.
    ///
    /// # Errors
    /// The addresses are not those of [`Self::allocate`]; an upload has failed: the block is not taken ([`Self::resume`]).
    pub async fn write(&self, address: u64, bytes: Bytes) -> Result<()> {
        self.take(address, bytes, false).await
    }

    /// As [`Self::write`], of a block that may be written again at any time until its group is closed: its object is not sent
    /// before ([`Self::close`], [`Self::commit`]).
    ///
    /// # Errors
    /// As those of [`Self::write`].
    pub async fn write_held(&self, address: u64, bytes: Bytes) -> Result<()> {
        self.take(address, bytes, true).await
    }

    async fn take(&self, address: u64, bytes: Bytes, held: bool) -> Result<()> {
        check(address, bytes.len() as u64)?;
        let length = bytes.len() as u64;
        {
            let mut state = self.shared.state.lock();
            if let Some(error) = state.fenced.as_ref().or(state.failed.as_ref()) {
                return Err(error.clone());
            }
            let packed = state.packed.range_mut(..=address).next_back();
            let refused = |why| {
                Err(Error::Refused(format!("write of {length} bytes at {address:#x}: {why}")))
            };
            let Some((start, packed)) = packed.filter(|(_, p)| address + length <= p.end) else {
                return refused("the address was not given out in this group");
            };
            if packed.phase != Phase::Filling {
                return refused("its object is sent");
            }
            let same = packed.blocks.get(&address).is_some_and(|old| old.len() as u64 == length);
            if !same && packed.taken(address, length) {
                return refused("it overlaps another block");
            }
            if !same {
                packed.fill(*start, length);
            }
            packed.blocks.insert(address, bytes);
            packed.held |= held;
        }
        Stats::add(&self.shared.requests.stats.written, length);
        self.send().await;
        Ok(())
    }

    /// Gives up addresses that were given out and are not going to be written: their block failed. They are never given out again.
    ///
    /// # Errors
    /// They were not given out in this group, or something is written there.
    pub async fn abandon(&self, address: u64, length: u64) -> Result<()> {
        check(address, length)?;
        {
            let mut state = self.shared.state.lock();
            let packed = state.packed.range_mut(..=address).next_back();
            let packed = packed.filter(|(_, packed)| {
                address + length <= packed.end
                    && packed.phase == Phase::Filling
                    && !packed.taken(address, length)
            });
            let Some((start, packed)) = packed else {
                return Err(Error::Refused(format!(
                    "{length} bytes at {address:#x} are not given up: they were written, or not given out in this group"
                )));
            };
            packed.gaps.insert(address, length);
            packed.fill(*start, length);
        }
        self.send().await;
        Ok(())
    }

    /// Starts the upload of each object that is ready.
    pub(crate) async fn send(&self) {
        let ready = |state: &State| {
            state
                .packed
                .iter()
                .find(|(start, packed)| packed.ready(**start))
                .map(|(start, _)| *start)
        };
        while ready(&self.shared.state.lock()).is_some() {
            let Ok(turn) = self.shared.uploads.clone().acquire_owned().await else { return };
            let mut state = self.shared.state.lock();
            let Some(start) = ready(&state) else { return };
            let Some(packed) = state.packed.get_mut(&start) else { return };
            packed.phase = Phase::Sending;
            let (id, range, blocks) = (packed.id, (start, packed.end), packed.blocks.clone());
            let shared = self.shared.clone();
            tokio::spawn(async move {
                let sent = upload(&shared.requests, id, range, &blocks, Purpose::Data);
                let sent = guarded(&shared, sent).await.unwrap_or_else(|why| {
                    let why = format!("its upload {why}");
                    Err(Error::Damaged { path: id.to_string(), why })
                });
                // A broken invariant is told to all that wait: nothing else is to be done about it here.
                let _broken = guarded(&shared, async { ended(&shared, start, sent) }).await;
                drop(turn);
            });
        }
    }

    /// Uploads again what failed, so that writes are taken again.
    ///
    /// # Errors
    /// It fails again.
    pub async fn resume(&self) -> Result<()> {
        self.again();
        let end = {
            let state = self.shared.state.lock();
            let filling = |packed: &Packed| {
                !packed.closed || matches!(packed.phase, Phase::Filling | Phase::Again)
            };
            let first = state
                .packed
                .iter()
                .find(|(start, packed)| filling(packed) && !packed.ready(**start));
            first.map_or(state.next, |(start, _)| *start)
        };
        self.sent(end).await
    }

    /// What failed must be sent again.
    pub(crate) fn again(&self) {
        let mut state = self.shared.state.lock();
        state.failed = None;
        for packed in state.packed.values_mut().filter(|packed| packed.phase == Phase::Failed) {
            packed.phase = Phase::Again;
        }
    }

    /// Ends what is allocated and written for a group, before its [`Self::commit`]: addresses that were given out and are not
    /// written are given up, and what was held is sent. Returns the ranges that were given up in this group, as first address and length, in order.
    pub async fn close(&self) -> Vec<(u64, u64)> {
        let mut gone = Vec::new();
        {
            let mut state = self.shared.state.lock();
            for (start, packed) in &mut state.packed {
                packed.closed = true;
                packed.held = false;
                let taken = packed.blocks.iter().map(|(at, bytes)| (*at, bytes.len() as u64));
                let mut taken: Vec<(u64, u64)> =
                    taken.chain(packed.gaps.iter().map(|(at, length)| (*at, *length))).collect();
                taken.sort_unstable();
                let mut from = *start;
                if packed.phase == Phase::Filling {
                    for (at, length) in taken.into_iter().chain([(packed.end, 0)]) {
                        if from < at {
                            packed.gaps.insert(from, at - from);
                            packed.filled += at - from;
                        }
                        from = at + length;
                    }
                }
                gone.extend(packed.gaps.iter().map(|(at, length)| (*at, *length)));
            }
        }
        self.send().await;
        gone
    }

    /// Where the next address will be given out.
    pub fn next(&self) -> u64 {
        self.shared.state.lock().next
    }

    /// Closes the last object, so that all that comes from now on is of another group. Returns what is of this one.
    pub(crate) fn cut(&self) -> Result<Cut> {
        let mut state = self.shared.state.lock();
        for (start, packed) in &mut state.packed {
            packed.closed = true;
            packed.held = false;
            let (id, filled) = (packed.id, packed.filled);
            let missing = less!(packed.end - start, filled, "bytes of object {id} are filled");
            if missing > 0 {
                return Err(Error::Refused(format!(
                    "{missing} bytes of the addresses from {start:#x} to {:#x} were given out and not written",
                    packed.end
                )));
            }
        }
        let void = |(start, packed): (&u64, &Packed)| packed.void(*start).then_some(*start);
        let void: Vec<u64> = state.packed.iter().filter_map(void).collect();
        for start in void {
            // It was never sent: no object has its name.
            if let Some(packed) = state.packed.remove(&start) {
                state.loose.remove(&packed.id.counter());
            }
        }
        Ok(Cut { next: state.next, freed: state.freed.len(), moves: state.moves.len() })
    }

    /// Waits until all objects below an address are sent.
    pub(crate) async fn sent(&self, cut: u64) -> Result<()> {
        self.send().await;
        loop {
            let ended = self.shared.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            {
                let state = self.shared.state.lock();
                if let Some(error) = &state.fenced {
                    return Err(error.clone());
                }
                let mut below = state.packed.range(..cut).map(|(_, packed)| &packed.phase);
                if below.clone().any(|phase| *phase == Phase::Failed)
                    && !below.clone().any(|phase| *phase == Phase::Sending)
                {
                    let unknown = || Error::Refused("an upload failed".into());
                    return Err(state.failed.clone().unwrap_or_else(unknown));
                }
                if below.all(|phase| matches!(phase, Phase::Sent(_))) {
                    return Ok(());
                }
            }
            ended.await;
        }
    }
}

/// An upload has ended.
pub(crate) fn ended(shared: &Arc<Shared>, start: u64, sent: Result<Entry>) {
    let mut state = shared.state.lock();
    let Some(packed) = state.packed.get_mut(&start) else {
        broken(format_args!("an upload of blocks from {start:#x} on ends, and no group has them"))
    };
    let (id, phase) = (packed.id, &packed.phase);
    invariant!(*phase == Phase::Sending, "the upload of object {id} ends, and it is {phase:?}");
    match sent {
        Ok(entry) => {
            packed.phase = Phase::Sent(entry);
            packed.blocks.clear();
        }
        Err(error) => {
            packed.phase = Phase::Failed;
            state.failed = Some(error);
        }
    }
    drop(state);
    shared.ended.notify_waiters();
}
