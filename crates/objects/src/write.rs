//! Addresses are given out, blocks packed into objects, objects uploaded.
//!
//! An object is *filling* until all that was allocated in it is written and a longer one would be too long (or its group is committed);
//! then it is *sending*, by a task of its own, and *sent*. A failed upload keeps the blocks in memory. Further writes are refused with its error then, so that
//! memory stays bounded while the store fails, until [`Space::resume`] or a commit has tried again.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use object_store::{PutMode, PutPayload};

use crate::error::{Error, Result};
use crate::id::Id;
use crate::page::Entry;
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
    Sent(Entry),
}

/// An object of a group that is not committed.
#[derive(Debug)]
pub(crate) struct Packed {
    pub id: Id,
    pub end: u64,
    pub blocks: BTreeMap<u64, Bytes>,
    pub filled: u64,
    pub closed: bool,
    pub phase: Phase,
}

impl Packed {
    fn ready(&self, start: u64) -> bool {
        self.closed && self.phase == Phase::Filling && self.filled == self.end - start
    }
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

/// Uploads blocks as an object. It may be called again with the same.
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
    let payload: PutPayload = blocks.values().cloned().chain([trailer]).collect();
    requests.put(&id.path(&requests.prefix), &payload, PutMode::Overwrite, purpose).await?;
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
            if last.end - start + length <= room {
                last.end += length;
                return Ok(address);
            }
            last.closed = true;
        }
        let id = state.name();
        let (blocks, phase) = (BTreeMap::new(), Phase::Filling);
        let packed = Packed { id, end: address + length, blocks, filled: 0, closed: false, phase };
        state.packed.insert(address, packed);
        Ok(address)
    }

    /// Takes a block for addresses that were given out. It may be written again at the same addresses until its object is sent. Waits
    /// while as many objects as may be are under way.
    ///
    /// # Errors
    /// The addresses are not those of [`Self::allocate`]; an upload has failed: the block is not taken ([`Self::resume`]).
    pub async fn write(&self, address: u64, bytes: Bytes) -> Result<()> {
        check(address, bytes.len() as u64)?;
        let length = bytes.len() as u64;
        {
            let mut state = self.shared.state.lock();
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            let packed = state.packed.range_mut(..=address).next_back().map(|(_, packed)| packed);
            let refused = |why| {
                Err(Error::Refused(format!("write of {length} bytes at {address:#x}: {why}")))
            };
            let Some(packed) = packed.filter(|packed| address + length <= packed.end) else {
                return refused("the address was not given out in this group");
            };
            if packed.phase != Phase::Filling {
                return refused("its object is sent");
            }
            let before = packed.blocks.range(..address).next_back();
            let after = packed.blocks.range(address + 1..).next();
            let same = packed.blocks.get(&address).map(Bytes::len);
            if before.is_some_and(|(at, bytes)| at + bytes.len() as u64 > address)
                || after.is_some_and(|(at, _)| *at < address + length)
                || same.is_some_and(|same| same as u64 != length)
            {
                return refused("it overlaps another block");
            }
            if same.is_none() {
                packed.filled += length;
            }
            packed.blocks.insert(address, bytes);
        }
        Stats::add(&self.shared.requests.stats.written, length);
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
                let sent = AssertUnwindSafe(sent).catch_unwind().await;
                let sent = sent.unwrap_or_else(|_| {
                    Err(Error::Refused(format!("the upload of {id} panicked")))
                });
                ended(&shared, start, sent);
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
            let filling = |packed: &Packed| !packed.closed || packed.phase == Phase::Filling;
            let first = state
                .packed
                .iter()
                .find(|(start, packed)| filling(packed) && !packed.ready(**start));
            first.map_or(state.next, |(start, _)| *start)
        };
        self.sent(end).await
    }

    /// What failed is to be sent again.
    pub(crate) fn again(&self) {
        let mut state = self.shared.state.lock();
        state.failed = None;
        for packed in state.packed.values_mut().filter(|packed| packed.phase == Phase::Failed) {
            packed.phase = Phase::Filling;
        }
    }

    /// Closes the last object, so that the next addresses are those of another group. Returns where those begin.
    pub(crate) fn cut(&self) -> Result<u64> {
        let mut state = self.shared.state.lock();
        for (start, packed) in &mut state.packed {
            packed.closed = true;
            let missing = packed.end - start - packed.filled;
            if missing > 0 {
                return Err(Error::Refused(format!(
                    "{missing} bytes of the addresses from {start:#x} to {:#x} were given out and not written",
                    packed.end
                )));
            }
        }
        Ok(state.next)
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
fn ended(shared: &Arc<Shared>, start: u64, sent: Result<Entry>) {
    let mut state = shared.state.lock();
    if let Some(packed) = state.packed.get_mut(&start) {
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
    }
    drop(state);
    shared.ended.notify_waiters();
}
