//! Writes whose blocks are made ready before the change, whatever others do to them meanwhile.

use crate::live::{COST, Live};
use cenote_dmu::write::{Chunk, Result, SyncingSet, WriteError};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::thread;

const BLOCK: u64 = 1024;
/// Bytes of the file that are looked at.
const LEN: usize = 12 * BLOCK as usize;

#[derive(Debug, Clone)]
enum Op {
    Write {
        at: u64,
        len: usize,
        byte: u8,
    },
    Free {
        at: u64,
        len: u64,
    },
    Sync,
    /// A group is quiesced; it is written by the next [`Op::Sync`] or [`Op::Quiesce`].
    Quiesce,
    Grow {
        sectors: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let at = || 0u64..LEN as u64 - 3000;
    prop_oneof![
        6 => (at(), 1usize..3000, 1u8..255).prop_map(|(at, len, byte)| Op::Write { at, len, byte }),
        2 => (at(), 1u64..3000).prop_map(|(at, len)| Op::Free { at, len }),
        2 => Just(Op::Sync),
        2 => Just(Op::Quiesce),
        1 => (1u64..4).prop_map(|sectors| Op::Grow { sectors }),
    ]
}

struct World {
    live: Live,
    file: u64,
    model: Vec<u8>,
    quiesced: Option<SyncingSet>,
}

impl World {
    fn write_quiesced(&mut self) {
        if let Some(quiesced) = self.quiesced.take() {
            self.live.write_group(quiesced);
        }
    }

    fn run(&mut self, op: &Op) {
        let file = self.file;
        match *op {
            Op::Write { at, len, byte } => {
                self.live.change(|os| os.write(file, at, &vec![byte; len]));
                self.model[at as usize..][..len].fill(byte);
            }
            Op::Free { at, len } => {
                self.live.change(|os| os.free_range(file, at, len));
                self.model[at as usize..][..len as usize].fill(0);
            }
            Op::Sync => {
                self.write_quiesced();
                self.live.sync();
            }
            Op::Quiesce => {
                self.write_quiesced();
                self.quiesced = Some(self.live.set.quiesce());
            }
            // Refused where there are several blocks.
            Op::Grow { sectors } => {
                let size = self.block_size() + sectors * 512;
                drop(self.live.set.transact(COST, |os, _| os.set_block_size(file, size, 12)));
            }
        }
    }

    fn block_size(&self) -> u64 {
        self.live.set.object(self.file).unwrap().dnode().block_size
    }

    fn check(&self) {
        let mut found = vec![1; LEN];
        self.live.set.read(self.file, 0, &mut found).unwrap();
        assert!(found == self.model);
    }
}

/// Makes a write ready, does something else, and writes.
fn run(steps: &[(Op, Vec<Op>)]) {
    let live = Live::new();
    let file = live.file();
    let mut world = World { live, file, model: vec![0; LEN], quiesced: None };
    for (op, between) in steps {
        let Op::Write { at, len, byte } = *op else {
            world.run(op);
            continue;
        };
        let data = vec![byte; len];
        let chunk = world.live.set.chunk(file, at, &data, world.block_size()).unwrap();
        between.iter().for_each(|op| world.run(op));
        // One time it is taken back.
        let refused: Result<()> = world.live.set.transact(COST, |os, _| {
            os.write(file, at, &data)?;
            Err(WriteError::Quota)
        });
        assert!(refused.is_err());
        world.check();
        world.live.change(|os| os.write_last(file, at, &chunk));
        drop(chunk);
        world.model[at as usize..][..len].fill(byte);
        world.check();
    }
    world.write_quiesced();
    world.live.sync();
    world.live.sink.store.drop_caches();
    world.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn what_others_did_meanwhile_stays(
        steps in prop::collection::vec((op(), prop::collection::vec(op(), 0..4)), 1..12),
    ) {
        run(&steps);
    }
}

#[test]
fn a_block_is_read_and_merged_before_the_change() {
    let live = Live::new();
    let file = live.file();
    live.change(|os| os.write(file, 0, &[3; 8 * BLOCK as usize]));
    live.sync();
    let object = live.set.object(file).unwrap();
    let block = object.block_pointer(0, 1).unwrap();
    let (data, at) = ([4; 100], BLOCK + 10);
    let chunk = live.set.chunk(file, at, &data, BLOCK).unwrap();
    // From now on the block is nowhere but in the chunk.
    live.sink.store.drop_caches();
    live.sink.lose(&block);
    let uncut = Chunk::uncut(&data);
    let done = live.set.transact(COST, |os, _| os.write_last(file, at, &uncut));
    assert!(matches!(done, Err(WriteError::Read(_))), "{done:?}");
    live.change(|os| os.write_last(file, at, &chunk));
    let mut found = vec![0; BLOCK as usize];
    live.set.read(file, BLOCK, &mut found).unwrap();
    assert!(found[..10] == [3; 10] && found[10..110] == data && found[110..] == [3; 914]);
}

/// Threads write parts of the same blocks, and blocks of their own, while groups are written. Each finds what it wrote last.
#[test]
fn writers_of_parts_of_the_same_blocks_lose_nothing() {
    const WRITERS: u64 = 3;
    const PART: u64 = 128;
    let live = Live::new();
    let file = live.file();
    let models: Vec<Mutex<Vec<u8>>> = (0..WRITERS).map(|_| Mutex::new(vec![0; LEN])).collect();
    let write = &|writer: u64| {
        let mut model = models[writer as usize].lock();
        for i in 0..1200u64 {
            // Some part of a block that is this writer's.
            let part = (i * 7 % (LEN as u64 / PART / WRITERS)) * WRITERS + writer;
            let (at, len) = (part * PART + i % 5, (PART - i % 11 - 5) as usize);
            let data = vec![i as u8; len];
            if i % 13 == 12 {
                live.change(|os| os.free_range(file, at, len as u64));
                model[at as usize..][..len].fill(0);
            } else {
                let chunk = live.set.chunk(file, at, &data, BLOCK).unwrap();
                live.change(|os| os.write_last(file, at, &chunk));
                model[at as usize..][..len].copy_from_slice(&data);
            }
            let mut found = vec![0; PART as usize];
            live.set.read(file, part * PART, &mut found).unwrap();
            assert!(found == model[(part * PART) as usize..][..PART as usize]);
        }
    };
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|n| scope.spawn(move || write(n))).collect();
        while !writers.iter().all(|w| w.is_finished()) {
            live.sync();
        }
    });
    live.sync();
    live.sink.store.drop_caches();
    let mut found = vec![0; LEN];
    live.set.read(file, 0, &mut found).unwrap();
    let models: Vec<_> = models.into_iter().map(|model| model.into_inner()).collect();
    for (at, byte) in found.iter().enumerate() {
        let writer = at as u64 / PART % WRITERS;
        assert_eq!(*byte, models[writer as usize][at], "byte {at}");
    }
}
