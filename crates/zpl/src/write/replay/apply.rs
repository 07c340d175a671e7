//! Applying records in order, writes that follow one another as one change (`zil_replay_log_record`).
//!
//! A run of `TX_WRITE` records, of whatever objects, is one change that notes the last of them: each object's
//! attributes are stored once. If it fails nothing of it is done, and its records are applied one by one.
//! A change runs again for each block that it lacks; so where nothing was read ahead a run has only writes
//! that lie behind one another.

use super::feed::{Owned, Ready};
use super::{Replay, Replayed, Supervisor};
use crate::{Error, Result};
use cenote_dsl::tunables::REPLAY_GATHER;
use cenote_format::Bytes;
use cenote_format::zil::{Body, RawRecord, Record, Write, raw_records};
use cenote_format::{invariant, less};

/// Most bytes that one change may have to write.
const MOST: u64 = 16 << 20;

/// A replay under way.
pub(super) struct Applier<'a> {
    pub replay: Replay<'a>,
    pub supervisor: &'a dyn Supervisor,
    pub done: Replayed,
    /// The supervisor ended it.
    pub stopped: bool,
}

impl Applier<'_> {
    /// Applies a batch; ends early if the supervisor ends the replay.
    pub fn apply(&mut self, batch: &Ready) -> Result<()> {
        let mut all = Vec::with_capacity(batch.records.len());
        for Owned { bytes, order } in &batch.records {
            for raw in raw_records(Bytes::new(bytes, *order, "intent log record")) {
                all.push(raw.map_err(Error::decode(0))?);
            }
        }
        let (mut rest, before) = (all.as_slice(), self.done.records);
        while !rest.is_empty() && !self.stopped {
            let run = self.run(rest, batch.primed);
            let (now, later) = rest.split_at(run.len().max(1));
            match now {
                [one] => self.one(one)?,
                many => self.many(many, &run)?,
            }
            rest = later;
        }
        let told = less!(self.done.records, before, "records that are applied");
        let all = all.len() as u64;
        invariant!(self.stopped || told == all, "{told} of {all} records of a batch are applied");
        Ok(())
    }

    /// The writes at the head of `records` that are one change.
    fn run<'r>(&self, records: &[RawRecord<'r>], primed: bool) -> Vec<(u64, Write<'r>)> {
        let (mut run, mut cost) = (Vec::<(u64, Write<'_>)>::new(), 0_u64);
        for raw in records.iter().take(REPLAY_GATHER.count()) {
            let Ok(Record { body: Body::Write(write), seq, .. }) = Record::decode(raw) else {
                break;
            };
            if write.data.is_none() {
                break;
            }
            let follows = run.last().is_none_or(|(_, last)| {
                last.object == write.object
                    && last.offset.checked_add(last.length) == Some(write.offset)
            });
            cost = cost.saturating_add(self.replay.cost_of(&write).write);
            if !(primed || follows) || cost > MOST {
                break;
            }
            run.push((seq, write));
        }
        run
    }

    /// Applies several writes as one change, or if that fails one by one.
    fn many(&mut self, raw: &[RawRecord<'_>], run: &[(u64, Write<'_>)]) -> Result<()> {
        if self.replay.writes(run).is_ok() {
            let bytes = run.iter().map(|(_, write)| write.length).sum();
            self.tell(raw, bytes);
            return Ok(());
        }
        for record in raw {
            if !self.stopped {
                self.one(record)?;
            }
        }
        Ok(())
    }

    /// Applies a record.
    fn one(&mut self, raw: &RawRecord<'_>) -> Result<()> {
        let record = Record::decode(raw).map_err(|e| cannot(raw, &Error::decode(0)(e)))?;
        let again = |e| {
            self.replay.finish_freeing();
            if self.supervisor.sync() { self.replay.record(&record) } else { Err(e) }
        };
        let bytes = self.replay.record(&record).or_else(again).map_err(|e| cannot(raw, &e))?;
        self.tell(std::slice::from_ref(raw), bytes);
        Ok(())
    }

    /// Tells the supervisor that these records are applied, which change so many bytes of contents.
    fn tell(&mut self, raw: &[RawRecord<'_>], bytes: u64) {
        self.done.records += raw.len() as u64;
        self.done.bytes += bytes;
        self.done.logged += raw.iter().map(|record| record.len).sum::<u64>();
        self.stopped = !self.supervisor.go_on(&self.done);
    }
}

fn cannot(raw: &RawRecord<'_>, why: &Error) -> Error {
    let (kind, seq) = (raw.kind, raw.seq);
    Error::Invalid(format!(
        "record {seq} of the intent log, of type {kind}, cannot be replayed: {why}"
    ))
}
