//! What writes the blocks of object sets: it asks the policy of their dataset how, and has the write pipeline do it
//! (`dbuf_write`, `zio_write`).
//!
//! Invariant: what is written in one pass is written in one way.

use super::policy::{Abilities, Policy};
use super::space::deflated;
use super::tunables;
use super::zil::Early;
use cenote_dmu::write::{BlockSink, NewBlock, Result, WriteError};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use cenote_format::invariant;
use cenote_store::alloc::Class;
use cenote_store::write::{WriteProps, WriteRequest, Writer};
use cenote_vdev::VdevTree;
use cenote_vdev::traffic::Content;
use parking_lot::Mutex;

/// Writes the blocks of one object set in one pass.
pub(crate) struct Sink<'a> {
    pub writer: &'a Writer,
    pub tree: &'a VdevTree,
    pub policy: &'a Policy,
    pub abilities: Abilities,
    pub pass: u32,
    /// Object of the log space map that is being written.
    pub log: Option<u64>,
    /// Tables of deduplicated blocks, whose own blocks have a class of vdevs of their own; of the MOS only.
    pub dedup: Option<&'a super::dedup::Dedup>,
    /// Where to note what is written, for code that may have to take it back.
    pub born: Option<&'a Mutex<Vec<BlockPointer>>>,
    /// What of the object set was written already.
    pub early: Option<&'a Early>,
}

impl Sink<'_> {
    fn props(&self, block: &NewBlock) -> WriteProps {
        let props = self.policy.props(block, self.abilities);
        match block.kind {
            DmuType::SPACE_MAP if self.log == Some(block.at.object) => {
                WriteProps { content: Content::LogSpaceMap, ..props }
            }
            DmuType::SPACE_MAP => WriteProps { content: Content::SpaceMap, ..props },
            DmuType::DDT_ZAP => WriteProps { class: self.class_of_tables(), ..props },
            _ if self.dedup.is_some_and(|dedup| dedup.is_log(block.at.object)) => {
                WriteProps { class: self.class_of_tables(), ..props }
            }
            _ => props,
        }
    }
}

impl Sink<'_> {
    /// Where the blocks of deduplication tables go (`spa_preferred_class`).
    fn class_of_tables(&self) -> Class {
        let alone = self.writer.allocator().figures(Class::Dedup).space > 0;
        match alone || tunables::DDT_DATA_IS_SPECIAL.is_on() {
            true => Class::Dedup,
            false => Class::Normal,
        }
    }
}

impl BlockSink for Sink<'_> {
    fn write_blocks(&self, txg: u64, blocks: Vec<NewBlock>) -> Vec<Result<BlockPointer>> {
        let request = |block: NewBlock| WriteRequest {
            props: self.props(&block),
            data: block.data,
            at: block.at,
            previous: block.previous,
            pass: self.pass,
        };
        let taken = |block: &NewBlock| self.early.and_then(|early| early.take(txg, block));
        let early: Vec<Option<BlockPointer>> = blocks.iter().map(taken).collect();
        let rest = blocks.into_iter().zip(&early).filter(|(_, bp)| bp.is_none());
        let requests: Vec<WriteRequest> = rest.map(|(block, _)| request(block)).collect();
        let written = self.writer.write_behind(txg, &requests);
        if let Some(born) = self.born {
            let new = written.iter().flatten().zip(&requests).filter(|(bp, r)| **bp != r.previous);
            born.lock().extend(new.map(|(bp, _)| *bp));
        }
        let (asked, done) = (requests.len(), written.len());
        invariant!(asked == done, "group {txg}: {asked} blocks were written with {done} results");
        let mut written = written.into_iter().map(|r| r.map_err(|e| WriteError::Sink(Box::new(e))));
        let pointer = |early: Option<BlockPointer>| match early {
            Some(bp) => Ok(bp),
            None => written.next().unwrap_or(Err(WriteError::Failed)),
        };
        early.into_iter().map(pointer).collect()
    }

    fn space(&self, bp: &BlockPointer) -> u64 {
        deflated(self.tree, bp)
    }

    fn hole_birth(&self) -> bool {
        self.abilities.hole_birth
    }
}
