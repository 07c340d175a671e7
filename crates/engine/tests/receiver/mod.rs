//! Receiving through the engine.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod trees;

use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_dsl::Dataset;
use cenote_engine::Engine;
use cenote_engine::change::receive::{NewReceive, ReceiveError, Source};
use cenote_engine::change::{Changes, Contents, Format};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::stream::{Record, feature};
use cenote_testpools::{encoded, records};
use std::sync::Arc;

/// Nothing new is filled here.
struct Nothing;

impl Contents for Nothing {
    fn fill(&self, _: &mut OpenObjectSet, _: &Format, _: u64) -> Result<(), WriteError> {
        panic!("nothing is to be filled")
    }

    fn resize(&self, _: Arc<LiveObjectSet>, _: u64) -> Result<(), WriteError> {
        panic!("nothing is to be resized")
    }
}

pub fn changes(engine: &Arc<Engine>) -> Changes {
    Changes::new(engine.clone(), Arc::new(Nothing), None)
}

/// Receives one stream.
pub fn receive(
    engine: &Arc<Engine>,
    new: &NewReceive,
    mut stream: &[u8],
) -> Result<(), ReceiveError> {
    let changes = changes(engine);
    let mut source = Source::new(&mut stream);
    let begin = source.begin()?.expect("a stream");
    let list = source.list(&begin)?;
    let receiving = changes.receive(new, &begin, &list)?;
    match receiving.stream(&mut source, &mut |_| {}) {
        Ok(()) => changes.finish_receive(receiving, new.force),
        Err(e) => {
            changes.give_up_receive(receiving);
            Err(e)
        }
    }
}

pub fn find(engine: &Engine, name: &str) -> Dataset {
    engine.pool().dsl().find(name).unwrap().unwrap_or_else(|| panic!("{name}"))
}

/// A stream that is received goes on from a record of `stream`, as a sender makes it of a token.
pub fn resumed(stream: &[u8], object: u64, offset: u64) -> Vec<u8> {
    let mut parts = records(stream);
    let (Record::Begin(begin), list) = &mut parts[0] else { panic!("no BEGIN") };
    let mut nvl = NvList::default();
    nvl.set("resume_object", NvValue::Uint64(object));
    nvl.set("resume_offset", NvValue::Uint64(offset));
    *list = nvl.encode();
    begin.features |= feature::RESUMING;
    begin.payload = list.len() as u32;
    let goes_on = |record: &Record| match record {
        Record::Object(o) => o.object >= object,
        Record::FreeObjects { first, .. } => *first >= object,
        Record::Write(w) => (w.object, w.offset) >= (object, offset),
        Record::WriteEmbedded(e) => (e.object, e.offset) >= (object, offset),
        Record::Free { object: of, offset: at, .. }
        | Record::Redact { object: of, offset: at, .. } => (*of, *at) >= (object, offset),
        Record::Spill(s) => s.object >= object,
        Record::Begin(_) | Record::End { .. } | Record::ObjectRange(_) => true,
    };
    parts.retain(|(record, _)| goes_on(record));
    encoded(&parts)
}
