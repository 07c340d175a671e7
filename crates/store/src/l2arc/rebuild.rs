//! What is on a cache device from before (`l2arc_rebuild`).
//!
//! The header leads to the last log block and the one before, and each log block to the one two before it. So they
//! are read from the last one on, as far as the ring still has them, and their blocks come into the index. The first one that is
//! wrong is the end of that: what was found before stays.
//!
//! A header of another pool or device, or with other sizes, says nothing: the device is begun anew. Entries that could
//! not have been written are left out, such as blocks of groups that the pool does not have: it may have gone back to
//! an older state. Nothing that is read here can make a reader get wrong bytes; see [`cenote_format::l2arc`].

use super::device::CacheDev;
use super::index::Place;
use super::space::{Space, TRIMMED};
use super::{L2arc, PATIENCE};
use crate::arc::{ArcCache, Key};
use crate::tunables::{L2ARC_REBUILD, L2ARC_REBUILD_LEAST, L2ARC_TRIM_AHEAD};
use cenote_format::DecodeError;
use cenote_format::l2arc::{Entry, Header, LogBlock, LogPointer, VERSION, is_between};
use cenote_vdev::{CacheDevice, Priority};
use std::collections::HashSet;
use std::ops::Range;

/// What a rebuild is given.
pub(super) struct Rebuild<'a> {
    pub l2: &'a L2arc,
    pub arc: &'a ArcCache,
    pub device: &'a CacheDevice,
    pub dev: &'a CacheDev,
    /// Guid of the pool.
    pub pool: u64,
    /// The last group that the pool has.
    pub group: u64,
}

/// Why a rebuild ended before the end of the chain.
enum Cut {
    Io,
    Sum,
    Memory,
    Stopped,
}

impl Rebuild<'_> {
    /// The space of the device, with what is on it as far as that is known. The second: whether a header has to be written, as there
    /// is none that fits.
    pub fn space(&self, space: Range<u64>) -> (Space, bool) {
        let mut new = Space::empty(space, self.device.leaf().ashift(), L2ARC_REBUILD_LEAST.get());
        let Some(header) = self.header(&new) else { return (new, true) };
        new.ring = header.ring();
        (new.trim_time, new.trim_state) = (header.trim_time, header.trim_state);
        if L2ARC_REBUILD.get() == 0 {
            new.chain = header.logs;
            new.begin_round();
            return (new, false);
        }
        let (found, cut) = self.walk(&mut new, &header);
        new.begin_round();
        if found == 0 && cut.is_none() {
            let ring = (new.ring.start, new.ring.end, new.sector, new.entries);
            let (start, end, sector, entries) = ring;
            let mut empty = Space::empty(start - sector..end, self.device.leaf().ashift(), 0);
            empty.entries = entries;
            (empty.trim_time, empty.trim_state) = (new.trim_time, new.trim_state);
            return (empty, true);
        }
        let counts = &self.l2.figures;
        match cut {
            None => counts.rebuild_success.add(1),
            Some(Cut::Io) => counts.rebuild_io_errors.add(1),
            Some(Cut::Sum) => counts.rebuild_cksum_lb_errors.add(1),
            Some(Cut::Memory) => counts.rebuild_lowmem.add(1),
            Some(Cut::Stopped) => {}
        }
        new.chain = header.logs;
        (new, false)
    }

    /// The header, if it fits (`l2arc_dev_hdr_read`).
    fn header(&self, new: &Space) -> Option<Header> {
        let at = new.ring.start - new.sector;
        // As a disk may that has to spin up first.
        let at = (at, new.sector as usize);
        let read = self.device.read(Priority::SyncRead, &[at], PATIENCE * 10);
        let sector = read.into_iter().next().and_then(Result::ok);
        let header = sector.and_then(|sector| Header::verified(&sector.bytes()).ok().flatten());
        let Some(header) = header else {
            self.l2.figures.rebuild_dh_errors.add(1);
            return None;
        };
        let ring = new.ring;
        let untrimmed = L2ARC_TRIM_AHEAD.get() > 0 && header.trim_state != TRIMMED;
        let fits = header.version == VERSION
            && header.pool == self.pool
            && header.vdev == self.device.leaf().guid()
            && header.entries == new.entries
            && header.entries > 0
            && (header.start, header.end) == (ring.start, ring.end)
            && (ring.start..=ring.end).contains(&header.evict)
            && (ring.start..=ring.end).contains(&header.hand())
            && header.hand().is_multiple_of(new.sector)
            && !untrimmed;
        if !fits {
            self.l2.figures.rebuild_unsupported.add(1);
        }
        fits.then_some(header)
    }

    /// Restores what the log blocks say, from the last one on. How many there were, and why there were not more.
    fn walk(&self, space: &mut Space, header: &Header) -> (u64, Option<Cut>) {
        let [mut log, mut next] = header.logs;
        let (mut seen, mut count) = (HashSet::new(), 0);
        while space.ring.holds(&log) && seen.insert(log.place) {
            if self.dev.is_stopped() {
                return (count, Some(Cut::Stopped));
            }
            let read = self.read(space, &log);
            // While it was read nobody may have waited for that.
            if self.dev.is_stopped() {
                return (count, Some(Cut::Stopped));
            }
            let block = match read {
                Ok(block) => block,
                Err(cut) => return (count, Some(cut)),
            };
            if !self.l2.has_room(self.arc) {
                return (count, Some(Cut::Memory));
            }
            self.restore(space, &log, &block);
            count += 1;
            if space.ring.ends_before(&next, &log) {
                break;
            }
            (log, next) = (next, block.previous);
        }
        (count, None)
    }

    /// Reads a log block (`l2arc_log_blk_read`).
    fn read(&self, space: &Space, log: &LogPointer) -> Result<LogBlock, Cut> {
        let at = (log.place, log.props.psize() as usize);
        let read = self.device.read(Priority::AsyncRead, &[at], PATIENCE * 10);
        let data = read.into_iter().next().and_then(Result::ok).ok_or(Cut::Io)?;
        LogBlock::decode(&data.bytes(), log, space.entries).map_err(|why| {
            tracing::warn!(guid = self.device.leaf().guid(), "a cache device: {why}");
            if matches!(why, DecodeError::Checksum { .. }) {
                self.device.mismatch(log.place, log.props.psize());
            }
            Cut::Sum
        })
    }

    /// The blocks before a log block come into the index (`l2arc_log_blk_restore`).
    fn restore(&self, space: &mut Space, log: &LogPointer, block: &LogBlock) {
        let figures = &self.l2.figures;
        let (mut lsize, mut asize) = (0, 0);
        for entry in block.entries.iter().rev() {
            let Some((key, place)) = self.place_of(space, log, entry) else { continue };
            figures.rebuild_bufs.add(1);
            if self.l2.index.put(key, place, true) {
                space.slots.push_front((place.at, key));
                (lsize, asize) = (lsize + place.props.lsize(), asize + u64::from(place.asize));
            } else {
                figures.rebuild_bufs_precached.add(1);
            }
        }
        space.logs.push_front(*log);
        figures.rebuild_size.add(lsize);
        figures.rebuild_asize.add(asize);
        figures.rebuild_log_blks.add(1);
        self.dev.slots(figures, space.slots.len() as u64);
        self.dev.log_comes(figures, log.props.psize(), log.payload);
        self.l2.charge(self.arc);
    }

    /// The block of an entry, if it can be there (`l2arc_hdr_restore`).
    fn place_of(&self, space: &Space, log: &LogPointer, entry: &Entry) -> Option<(Key, Place)> {
        let [dva0, dva1] = entry.dva;
        let (at, asize) = (entry.place, space.asize(entry.props.psize()));
        let end = at.checked_add(asize)?;
        let is_there = at.is_multiple_of(space.sector)
            && at >= space.ring.start
            && end <= space.ring.end
            && is_between(log.payload_start, log.place, at)
            && (dva0, dva1) != (0, 0)
            && (1..=self.group).contains(&entry.birth);
        let key = Key { dva0, dva1, birth: entry.birth };
        let asize = u32::try_from(asize).ok().filter(|_| is_there)?;
        Some((key, Place { device: self.dev.number, asize, at, props: entry.props }))
    }
}
