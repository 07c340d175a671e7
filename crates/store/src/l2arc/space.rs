//! A cache device as a ring: where the hand is, what is given up in front of it, and what log blocks are to say.
//!
//! [`Space`] belongs to the thread of its device. It knows the blocks that it wrote in the order in which they lie, which is that in which
//! they were written. Before a batch is written, the hand's way is cleared ([`Space::clear`], `l2arc_evict`): what
//! lies there leaves the index. Where a batch does not fit before the end of the device, all that is left of it is given
//! up, and the hand begins at the start.
//!
//! Invariants: a batch takes a quarter of the device at most; it is written only where the way is clear; between the
//! hand and `evict` no place is in the index.

use super::index::Place;
use crate::arc::{Fed, Key};
use cenote_format::abd::Abd;
use cenote_format::encode::l2arc::{encode_header, encode_log};
use cenote_format::invariant::broken;
use cenote_format::l2arc::{
    self, Entry, Header, LOG_SIZE, LogPointer, Props, Ring, State, VERSION, entries_for,
};
use cenote_format::{invariant, less};
use std::collections::VecDeque;
use std::ops::Range;

/// `VDEV_TRIM_COMPLETE`.
pub(super) const TRIMMED: u64 = 4;

/// See the [module](self).
pub(super) struct Space {
    pub ring: Ring,
    pub sector: u64,
    /// Entries of a log block; 0: the device is too small for log blocks.
    pub entries: u64,
    /// The last log block, and the one before.
    pub chain: [LogPointer; 2],
    /// Blocks that no log block names yet.
    pending: Vec<Entry>,
    payload: u64,
    /// Blocks in the order in which they lie: what is given up next comes first.
    pub slots: VecDeque<(u64, Key)>,
    /// Log blocks likewise.
    pub logs: VecDeque<LogPointer>,
    pub trim_time: u64,
    pub trim_state: u64,
    /// The header as it is on the device, if that is known.
    pub written: Option<Header>,
}

/// What is in the way of the hand.
#[derive(Debug, Default)]
pub(super) struct GivenUp {
    pub slots: Vec<(u64, Key)>,
    /// Log blocks, and their bytes.
    pub logs: (u64, u64),
    /// Bytes of the device in which nothing is any more.
    pub cleared: Vec<Range<u64>>,
}

/// What is written at once.
#[derive(Default)]
pub(super) struct Batch {
    pub writes: Vec<(u64, Abd)>,
    pub placed: Vec<(Key, Place)>,
    /// Log blocks, each with the bytes of its blocks.
    pub logs: Vec<(u64, u64)>,
    /// All bytes.
    pub bytes: u64,
}

/// How it was before a batch.
pub(super) struct Before {
    pending: Vec<Entry>,
    payload: u64,
    hand: u64,
    chain: [LogPointer; 2],
    slots: usize,
    logs: usize,
}

impl Space {
    /// A device with nothing on it, whose space is `space` with sectors of `1 << ashift` bytes.
    pub fn empty(space: Range<u64>, ashift: u32, least: u64) -> Space {
        let sector = l2arc::header_sector(ashift);
        let (start, end) = (space.start + sector, space.end);
        Space {
            ring: Ring { start, end, hand: start, evict: start, first: true },
            sector,
            entries: entries_for(start, end, least),
            chain: [LogPointer::default(); 2],
            pending: Vec::new(),
            payload: 0,
            slots: VecDeque::new(),
            logs: VecDeque::new(),
            trim_time: 0,
            trim_state: 0,
            written: None,
        }
    }

    /// Bytes that a batch may take.
    pub fn most(&self) -> u64 {
        (self.ring.end - self.ring.start) / 4 / self.sector * self.sector
    }

    /// What a block takes here.
    pub fn asize(&self, psize: u64) -> u64 {
        psize.next_multiple_of(self.sector)
    }

    /// Bytes that log blocks take besides, at most, where `blocks` blocks are written.
    pub fn overhead(&self, blocks: usize) -> u64 {
        match self.entries {
            0 => 0,
            // Each is a whole number of sectors, which are powers of two up to 64 KiB.
            entries => ((self.pending.len() + blocks) as u64 / entries + 1) * LOG_SIZE as u64,
        }
    }

    /// Where a header has the hand ahead of `evict`, the hand has begun a round of which no log block tells yet: it is somewhere between the start and `evict`, and
    /// all up to that may be overwritten.
    pub fn begin_round(&mut self) {
        if !self.ring.first && self.ring.hand > self.ring.evict {
            self.ring.hand = self.ring.start;
        }
    }

    /// Clears the way of the hand for `bytes` bytes.
    pub fn clear(&mut self, bytes: u64) -> GivenUp {
        let mut given_up = GivenUp::default();
        invariant!(bytes <= self.most(), "L2ARC: a batch of {bytes} bytes");
        loop {
            let Ring { start, end, hand, evict, first } = self.ring;
            let wraps = hand + bytes > end;
            let upto = if wraps { end } else { hand + bytes };
            if !first {
                if upto > evict.max(hand) {
                    given_up.cleared.push(evict.max(hand)..upto);
                }
                self.ring.evict = evict.max(upto);
                self.give_up(&mut given_up);
            }
            if !wraps {
                return given_up;
            }
            (self.ring.hand, self.ring.evict, self.ring.first) = (start, start, false);
        }
    }

    /// Forgets the oldest blocks, so many at most, as if an import had not had the memory to find them. They stay where they are.
    pub fn forget_oldest(&mut self, count: usize) -> Vec<(u64, Key)> {
        let forgotten = self.slots.drain(..count.min(self.slots.len())).collect();
        self.shrink();
        forgotten
    }

    /// Gives back the places of slots that most have left.
    fn shrink(&mut self) {
        let (len, least) = (self.slots.len(), 1024);
        if len * 2 < self.slots.capacity() && self.slots.capacity() > least {
            self.slots.shrink_to(len + len / 4);
        }
    }

    fn give_up(&mut self, given_up: &mut GivenUp) {
        let Ring { hand, evict, .. } = self.ring;
        while let Some(slot) = self.slots.pop_front_if(|(at, _)| hand <= *at && *at < evict) {
            given_up.slots.push(slot);
        }
        self.shrink();
        let ring = self.ring;
        while let Some(log) = self.logs.pop_front_if(|log| !ring.holds(log)) {
            given_up.logs.0 += 1;
            given_up.logs.1 += log.props.psize();
        }
        // Where large blocks leave a round without a log block, nothing is to be taken for one once the hand is past it; nor does
        // a log block name what was given up.
        if !ring.holds(&self.chain[0]) {
            self.chain = [LogPointer::default(); 2];
        }
        let lost = |entry: &&Entry| hand <= entry.place && entry.place < evict;
        let lost = self.pending.iter().take_while(lost).count();
        for entry in self.pending.drain(..lost) {
            let asize = entry.props.psize().next_multiple_of(self.sector);
            self.payload = less!(self.payload, asize, "L2ARC: bytes that no log block names");
        }
    }

    /// Places blocks where the hand is, with log blocks where they are due. The way is clear.
    pub fn lay_out(&mut self, device: u32, blocks: Vec<Fed>) -> (Batch, Before) {
        let before = Before {
            pending: self.pending.clone(),
            payload: self.payload,
            hand: self.ring.hand,
            chain: self.chain,
            slots: self.slots.len(),
            logs: self.logs.len(),
        };
        let mut batch = Batch::default();
        for Fed { key, about, data, frequent } in blocks {
            let state = if frequent { State::Mfu } else { State::Mru };
            let props = Props(about).of(state);
            let asize = self.asize(data.len() as u64);
            let at = self.take(asize, &mut batch);
            let Ok(taken) = u32::try_from(asize) else {
                broken(format_args!("L2ARC: a block of {asize} bytes"))
            };
            batch.writes.push((at, filled(data, asize)));
            batch.placed.push((key, Place { device, asize: taken, at, props }));
            self.slots.push_back((at, key));
            self.note(Entry {
                dva: [key.dva0, key.dva1],
                birth: key.birth,
                props,
                place: at,
                level: 0,
            });
            if self.entries > 0 && self.pending.len() as u64 == self.entries {
                self.log(&mut batch);
            }
        }
        (batch, before)
    }

    fn take(&mut self, bytes: u64, batch: &mut Batch) -> u64 {
        let at = self.ring.hand;
        self.ring.hand += bytes;
        batch.bytes += bytes;
        let Ring { hand, evict, end, first, .. } = self.ring;
        invariant!(
            hand <= if first { end } else { evict },
            "L2ARC: {bytes} bytes at {at:#x}, and the way is clear up to {evict:#x} of {end:#x}"
        );
        at
    }

    fn note(&mut self, entry: Entry) {
        if self.entries > 0 {
            self.payload += self.asize(entry.props.psize());
            self.pending.push(entry);
        }
    }

    /// Puts a log block behind what it is about (`l2arc_log_blk_commit`).
    fn log(&mut self, batch: &mut Batch) {
        let entries = std::mem::take(&mut self.pending);
        let payload = std::mem::take(&mut self.payload);
        let [last, one_before] = self.chain;
        let first = entries.first().map_or(0, |entry| entry.place);
        let at = (self.ring.hand, first, payload);
        let (data, pointer) = match encode_log(&one_before, &entries, at, self.sector) {
            Ok(log) => log,
            Err(why) => broken(format_args!("L2ARC: {why}")),
        };
        let bytes = data.len() as u64;
        let at = self.take(bytes, batch);
        batch.writes.push((at, Abd::from_vec(data)));
        batch.logs.push((bytes, payload));
        self.logs.push_back(pointer);
        self.chain = [pointer, last];
    }

    /// A batch was not written: its blocks are nowhere, and its log blocks are no part of the chain. Those before it that no log block names yet come
    /// into the next one.
    pub fn undo(&mut self, before: Before) {
        self.ring.hand = before.hand;
        self.chain = before.chain;
        self.slots.truncate(before.slots);
        self.logs.truncate(before.logs);
        self.pending = before.pending;
        self.payload = before.payload;
    }

    /// The header, to be written at the start of the space (`l2arc_dev_hdr_update`).
    pub fn header(&self, pool: u64, vdev: u64) -> Header {
        let log_bytes = self.logs.iter().map(|log| log.props.psize()).sum();
        Header {
            version: VERSION,
            pool,
            vdev,
            entries: self.entries,
            evict: self.ring.evict,
            flags: self.ring.first.into(),
            start: self.ring.start,
            end: self.ring.end,
            logs: self.chain,
            log_bytes,
            log_count: self.logs.len() as u64,
            trim_time: self.trim_time,
            trim_state: self.trim_state,
        }
    }

    /// The bytes of a header.
    pub fn sector_of(&self, header: &Header) -> Abd {
        match encode_header(header, self.sector) {
            Ok(sector) => Abd::from_vec(sector),
            Err(why) => broken(format_args!("L2ARC: {why}")),
        }
    }
}

/// The bytes with zeros up to `asize`.
fn filled(data: Abd, asize: u64) -> Abd {
    match asize as usize - data.len().min(asize as usize) {
        0 => data,
        more => Abd::gang(vec![data, Abd::from_vec(vec![0; more])]),
    }
}
