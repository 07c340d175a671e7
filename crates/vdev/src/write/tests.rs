//! Writing to trees of devices in memory, and reading back with whatever may be lost.

use proptest::prelude::*;

use super::*;
use crate::device::Device;
use crate::inject::{CrashDevice, Power};
use crate::state::VdevState;
use crate::testing::{self, Leaf, Shape, leaves};
use cenote_format::LABEL_START;

const MIB: u64 = 1 << 20;
/// Room of a device for data; the two labels at its end come on top.
const ROOM: usize = 3 << 20;

/// Kind of top-level vdev, children, parity, ashift.
#[derive(Clone, Copy, Debug)]
struct Layout {
    kind: Kind,
    width: usize,
    nparity: usize,
    ashift: u32,
}

impl Layout {
    /// How many children may be lost.
    fn tolerance(&self) -> usize {
        if self.kind == Kind::RaidZ { self.nparity } else { self.width - 1 }
    }

    fn tree(&self, disks: &[Leaf]) -> VdevTree {
        let shape = |kind| Shape {
            kind,
            nparity: if kind == Kind::RaidZ { self.nparity as u64 } else { 0 },
            ashift: self.ashift,
            state: VdevState::Healthy,
        };
        let leaf =
            |(i, d): (usize, &Leaf)| testing::vdev(shape(Kind::File), i as u64, vec![], Some(d));
        let mut children: Vec<Arc<Vdev>> = disks.iter().enumerate().map(leaf).collect();
        let top = match self.kind {
            Kind::File => children.remove(0),
            kind => testing::vdev(shape(kind), 0, children, None),
        };
        testing::tree(vec![top])
    }

    /// All sets of children that may be lost, as bits.
    fn tolerable(&self) -> impl Iterator<Item = u32> {
        let most = self.tolerance() as u32;
        (0..1u32 << self.width).filter(move |s| s.count_ones() <= most)
    }
}

fn disks(n: usize) -> Vec<Leaf> {
    leaves(n, ROOM + LABEL_END as usize)
}

/// Disks whose old contents show where nothing is written.
fn used_disks(n: usize) -> Vec<Leaf> {
    let disks = disks(n);
    for d in &disks {
        d.memory.bytes().fill(0xee);
    }
    disks
}

const LABEL_END: u64 = cenote_format::label::LABEL_END;

fn layouts() -> impl Strategy<Value = Layout> {
    let kinds = prop_oneof![
        Just((Kind::File, 1, 0)),
        (2usize..4).prop_map(|w| (Kind::Mirror, w, 0)),
        (1usize..4, 1usize..4).prop_map(|(p, d)| (Kind::RaidZ, p + d, p)),
    ];
    (kinds, prop_oneof![Just(9u32), Just(12)]).prop_map(|((kind, width, nparity), ashift)| Layout {
        kind,
        width,
        nparity,
        ashift,
    })
}

/// Blocks at random places that do not overlap: (gap in sectors, psize, pieces, seed).
fn block_specs() -> impl Strategy<Value = Vec<(u64, usize, usize, u8)>> {
    let size = prop_oneof![1usize..2000, 1usize..140_000];
    proptest::collection::vec((0u64..5, size, 1usize..6, any::<u8>()), 1..8)
}

fn blocks(tree: &VdevTree, specs: &[(u64, usize, usize, u8)], txg: u64) -> Vec<BlockWrite> {
    let top = tree.top(0).unwrap();
    let sector = 1 << top.ashift();
    // Across the border where single parity changes places.
    let mut offset = (MIB / sector - 7) * sector;
    let mut out = Vec::new();
    for (gap, size, pieces, seed) in specs {
        offset += gap * sector;
        let bytes: Vec<u8> = (0..*size).map(|i| (i * 31 + i / 251) as u8 ^ seed).collect();
        let cut = bytes.chunks(size.div_ceil(*pieces)).map(|p| Abd::from_vec(p.to_vec()));
        let data = Abd::gang(cut.collect());
        out.push(BlockWrite {
            vdev: 0,
            offset,
            data,
            txg,
            content: Content::Data,
            sides: Vec::new(),
        });
        offset += top.psize_to_asize(*size as u64, 0);
    }
    out
}

fn read_back(tree: &VdevTree, block: &BlockWrite) -> Result<Abd, VdevError> {
    let want = block.data.to_vec();
    let size = want.len() as u64;
    tree.read(0, block.offset, size, block.txg, &|abd| *abd.bytes() == want[..])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn blocks_come_back_whatever_is_lost(
        layout in layouts(), specs in block_specs(), corrupt: bool,
    ) {
        let disks = used_disks(layout.width);
        let tree = layout.tree(&disks);
        let blocks = blocks(&tree, &specs, 10);
        prop_assert!(tree.write_many(&blocks).iter().all(Result::is_ok));
        for set in layout.tolerable() {
            for (i, d) in disks.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1) {
                if corrupt { d.corrupt(0x11 + i as u8) } else { d.faults.set_missing(true) }
            }
            for block in &blocks {
                prop_assert!(read_back(&tree, block).is_ok(), "{:?} without {:b}", layout, set);
            }
            disks.iter().for_each(|d| d.faults.repair());
        }
        // Every byte of every device is as the simplest way of writing leaves it: columns and
        // parity where they belong, skipped sectors and all else untouched.
        let other = used_disks(layout.width);
        for block in &blocks {
            let data = block.data.to_vec();
            let top = tree.top(0).unwrap();
            if layout.kind == Kind::RaidZ {
                testing::write_raidz(top, &other, block.offset, &data);
            } else {
                let mut padded = data.clone();
                padded.resize(data.len().next_multiple_of(1 << layout.ashift), 0);
                other.iter().for_each(|d| d.write(block.offset, &padded));
            }
        }
        for (mine, other) in disks.iter().zip(&other) {
            prop_assert!(*mine.memory.bytes() == *other.memory.bytes());
        }
    }

    #[test]
    fn degraded_writes(layout in layouts(), specs in block_specs(), gone: bool) {
        for set in 0..1u32 << layout.width {
            let disks = disks(layout.width);
            let tree = layout.tree(&disks);
            for (_, d) in disks.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1) {
                if gone { d.faults.set_missing(true) } else { d.faults.fail_writes(0..u64::MAX) }
            }
            let blocks = blocks(&tree, &specs, 10);
            let results = tree.write_many(&blocks);
            let tolerable = set.count_ones() as usize <= layout.tolerance();
            // A small block may not need the children that failed.
            prop_assert!(!tolerable || results.iter().all(Result::is_ok));
            prop_assert!(set.count_ones() as usize != layout.width || results.iter().all(Result::is_err));
            disks.iter().for_each(|d| d.faults.repair());
            for (block, result) in blocks.iter().zip(&results) {
                // What was reported as written can be read, also past the stale children.
                prop_assert!(result.is_err() || read_back(&tree, block).is_ok());
            }
            let leaves = tree.leaves();
            let missed: Vec<u64> = tree.take_missed().into_iter().map(|(guid, txgs)| {
                assert_eq!((txgs.len(), txgs[0].clone()), (1, 10..11));
                guid
            }).collect();
            for (i, leaf) in leaves.iter().enumerate() {
                let failed = leaf.errors().1 > 0;
                // No leaf has missed what is written nowhere.
                let all = results.iter().all(Result::is_ok);
                prop_assert!(failed == missed.contains(&leaf.guid()) || failed && !all);
                prop_assert!(!failed || set >> i & 1 == 1);
            }
            prop_assert!(tree.take_missed().is_empty());
        }
    }

    /// What was flushed survives the loss of power, whatever else does not.
    #[test]
    fn flushed_blocks_survive(
        seed: u64, cut in 0u64..40, specs in block_specs(), raidz: bool,
    ) {
        let power = Power::new();
        let new = |bytes| CrashDevice::new("memory", bytes, &power);
        let size = (LABEL_START + LABEL_END) as usize + ROOM;
        let devices: Vec<_> = (0..3).map(|_| new(vec![0; size])).collect();
        let tree_on = |devices: &[Arc<CrashDevice>]| {
            let file = |(i, d): (usize, &Arc<CrashDevice>)| testing::file_on(i as u64, d.clone());
            let files = devices.iter().enumerate().map(file).collect();
            testing::tree(vec![match raidz {
                true => testing::raidz(1, 9, files),
                false => testing::mirror_like(Kind::Mirror, 0, files),
            }])
        };
        let tree = tree_on(&devices);
        let all = blocks(&tree, &specs, 10);
        power.cut_after(cut);
        let mut durable = Vec::new();
        for block in &all {
            let written = tree.write_many(std::slice::from_ref(block));
            if written[0].is_ok() && tree.flush_all().is_ok() {
                durable.push(block);
            }
        }
        let after: Vec<Arc<CrashDevice>> = devices
            .iter()
            .enumerate()
            .map(|(i, d)| CrashDevice::new("after", d.crash(seed ^ i as u64), &Power::new()))
            .collect();
        let tree = tree_on(&after);
        for block in durable {
            prop_assert!(read_back(&tree, block).is_ok());
        }
    }
}

fn mirror(n: usize) -> (VdevTree, Vec<Leaf>) {
    let disks = disks(n);
    let layout = Layout { kind: Kind::Mirror, width: n, nparity: 0, ashift: 9 };
    (layout.tree(&disks), disks)
}

fn block(offset: u64, size: usize, txg: u64) -> BlockWrite {
    let data = Abd::from_vec(vec![offset as u8; size]);
    BlockWrite { vdev: 0, offset, data, txg, content: Content::Data, sides: Vec::new() }
}

fn write(tree: &VdevTree, b: BlockWrite) -> Result<(), VdevError> {
    tree.write_many(&[b]).remove(0)
}

#[test]
fn neighbours_are_written_together() {
    let (tree, disks) = mirror(2);
    // 3 MiB less one sector in KiB blocks, in disorder: three writes of at most 1 MiB each.
    let mut all: Vec<BlockWrite> = (0..3 * 1024 - 1).map(|i| block(i << 10, 1024, 1)).collect();
    all.rotate_left(1000);
    all.reverse();
    assert!(tree.write_many(&all).iter().all(Result::is_ok));
    assert_eq!(disks.iter().map(|d| d.faults.writes()).collect::<Vec<_>>(), [3, 3]);
    let (_, writes, _, bytes) = tree.root().io_stats();
    assert_eq!((writes, bytes), (6, 2 * 1024 * (3 * 1024 - 1)));
    assert_eq!(tree.root().write_latency().iter().sum::<u64>(), 6);
    assert_eq!(tree.root().queues(), crate::QueueFigures::default());
    assert!(all.iter().all(|b| read_back(&tree, b).is_ok()));
}

#[test]
fn a_bad_sector_does_not_cost_its_neighbours() {
    let (tree, disks) = mirror(1);
    disks[0].faults.fail_writes(LABEL_START + 1024..LABEL_START + 1025);
    let all: Vec<BlockWrite> = (0..4).map(|i| block(i << 10, 1024, 1)).collect();
    let ok: Vec<bool> = tree.write_many(&all).iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, false, true, true]);
    assert_eq!(tree.leaves()[0].errors(), (0, 1, 0));
    assert_eq!(tree.top(0).unwrap().errors(), (0, 1, 0));
}

#[test]
fn what_does_not_fit_is_refused() {
    let (tree, disks) = mirror(2);
    let before = disks[0].memory.bytes().clone();
    let refused = [
        block(ROOM as u64, 512, 1),
        block(ROOM as u64 - 512, 1024, 1),
        block(100, 512, 1),
        block(0, 0, 1),
        block(0, (16 << 20) + 1, 1),
        block(u64::MAX - 511, 512, 1),
        BlockWrite { vdev: 1, ..block(0, 512, 1) },
    ];
    // Each by itself: blocks of one batch do not overlap.
    for block in &refused {
        assert!(tree.write_many(std::slice::from_ref(block)).iter().all(Result::is_err));
    }
    assert!(*disks[0].memory.bytes() == before);
    write(&tree, block(ROOM as u64 - 512, 512, 1)).unwrap();
}

#[test]
fn flushing_what_was_written() {
    let (tree, disks) = mirror(2);
    let flushes = || disks.iter().map(|d| d.faults.flushes()).collect::<Vec<_>>();
    tree.flush_all().unwrap();
    assert_eq!(flushes(), [0, 0]);
    write(&tree, block(0, 512, 1)).unwrap();
    tree.flush_all().unwrap();
    tree.flush_all().unwrap();
    assert_eq!(flushes(), [1, 1]);

    // One side may have lost both transaction groups, the other one has them.
    disks[0].faults.fail_flushes(1);
    write(&tree, block(0, 512, 5)).unwrap();
    write(&tree, block(512, 512, 6)).unwrap();
    tree.flush_all().unwrap();
    let missed = tree.take_missed();
    assert_eq!((missed.len(), missed[0].0), (1, tree.leaves()[0].guid()));
    assert_eq!((missed[0].1.len(), missed[0].1[0].clone()), (1, 5..7));
    assert_eq!(tree.leaves()[0].errors().1, 1);

    // A write that only the side took whose flush fails.
    disks[0].faults.fail_flushes(1);
    disks[1].faults.fail_writes(LABEL_START..LABEL_START + 512);
    write(&tree, block(0, 512, 7)).unwrap();
    assert!(matches!(tree.flush_all(), Err(VdevError::Flush { vdev: 0, .. })));
    assert_eq!(tree.top(0).unwrap().errors().1, 1);
    // The next flush is not told otherwise.
    disks.iter().for_each(|d| d.faults.repair());
    write(&tree, block(0, 512, 8)).unwrap();
    assert!(tree.flush_all().is_err() && tree.flush_tops(&[0]).is_err());
    assert!(tree.flush_tops(&[]).is_ok() && tree.flush_tops(&[1]).is_err());
}

#[test]
fn a_flush_that_fails_during_a_write_is_not_missed() {
    for delay_of_write in [true, false] {
        let (tree, disks) = mirror(2);
        write(&tree, block(0, 512, 1)).unwrap();
        disks[0].faults.set_flush_errors(true);
        disks[1].faults.fail_writes(LABEL_START..LABEL_START + 512);
        if delay_of_write {
            disks[1].faults.set_delay(std::time::Duration::from_millis(50));
        }
        std::thread::scope(|s| {
            // One side took the write and then fails a flush, before the other side fails the write
            // or after that: the later one finds out.
            let writing = s.spawn(|| write(&tree, block(0, 512, 2)));
            while disks.iter().any(|d| d.faults.writes() < 2) {
                std::thread::yield_now();
            }
            let flushed = tree.flush_all();
            let written = writing.join().unwrap();
            assert!(written.is_err() || flushed.is_err(), "{written:?} {flushed:?}");
        });
    }
}

#[test]
fn a_side_that_never_flushes_goes_out_of_use() {
    let (tree, disks) = mirror(2);
    disks[0].faults.set_flush_errors(true);
    write(&tree, block(0, 512, 1)).unwrap();
    tree.flush_all().unwrap();
    let states = || tree.leaves().iter().map(|l| l.state()).collect::<Vec<_>>();
    assert_eq!(states(), [VdevState::Faulted, VdevState::Healthy]);
    // One that is needed stays in use, and nothing is durable on it.
    disks[1].faults.set_flush_errors(true);
    write(&tree, block(0, 512, 2)).unwrap();
    assert!(tree.flush_all().is_err());
    assert_eq!(states(), [VdevState::Faulted, VdevState::Degraded]);
    disks[1].faults.repair();
    assert!(tree.flush_all().is_err());
}

/// What the kernel could not write it says once. If the probe hears of it, the next flush still must not succeed.
#[test]
fn a_flush_that_a_probe_saw_fail_fails() {
    let (tree, disks) = mirror(1);
    write(&tree, block(0, 512, 1)).unwrap();
    disks[0].faults.fail_flushes(1);
    disks[0].faults.fail_writes(LABEL_START..LABEL_START + 512);
    assert!(write(&tree, block(0, 512, 2)).is_err());
    // It has flushed once more: the device is well.
    assert_eq!(disks[0].faults.flushes(), 2);
    assert_eq!(tree.leaves()[0].state(), VdevState::Healthy);
    assert!(tree.flush_all().is_err());
}

#[test]
fn a_flush_that_another_one_saw_fail_fails() {
    let (tree, disks) = mirror(1);
    write(&tree, block(0, 512, 1)).unwrap();
    disks[0].faults.set_flush_errors(true);
    disks[0].faults.set_delay(std::time::Duration::from_millis(100));
    std::thread::scope(|s| {
        let both = [0, 1].map(|_| s.spawn(|| tree.flush_all()));
        assert!(both.into_iter().all(|t| t.join().unwrap().is_err()));
    });
    // The probe of each has flushed twice more, at most.
    assert!(disks[0].faults.flushes() <= 6);
}

#[test]
fn leaves_that_are_out_of_use_miss_what_is_written() {
    let disks = disks(3);
    let offline = Shape { kind: Kind::File, nparity: 0, ashift: 9, state: VdevState::Offline };
    let mut children = testing::files(&disks);
    children[0] = testing::vdev(offline, 0, vec![], Some(&disks[0]));
    let replacing = testing::mirror_like(Kind::Replacing, 1, children.drain(..2).collect());
    children.insert(0, replacing);
    let tree = testing::tree(vec![testing::mirror_like(Kind::Mirror, 0, children)]);
    for txg in [7, 8, 20] {
        write(&tree, block(0, 512, txg)).unwrap();
    }
    assert_eq!(disks[0].faults.writes(), 0);
    assert_eq!(tree.take_missed(), [(tree.leaves()[0].guid(), vec![7..9, 20..21])]);
    assert_eq!(tree.leaves()[0].errors().1, 0);
    // A list that is loaded later does not make up for what was missed meanwhile.
    write(&tree, block(0, 512, 21)).unwrap();
    tree.leaves()[2].add_missing(30..31);
    tree.set_dtl(tree.leaves()[2].guid(), std::iter::once(1..2).collect()).unwrap();
    use crate::dtl::Trust;
    assert_eq!(
        [0, 1, 30].map(|t| tree.leaves()[2].trust(t)),
        [Trust::Good, Trust::Stale, Trust::Stale].map(Some)
    );
}

#[test]
fn read_only_devices_take_nothing() {
    let disks = disks(1);
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(disks[0].memory.bytes().len() as u64).unwrap();
    let device = crate::open_device(file.path()).unwrap();
    let tree = testing::tree(vec![testing::file_on(0, device)]);
    assert!(!tree.leaves()[0].writable());
    assert!(write(&tree, block(0, 512, 1)).is_err());
}

/// Two blocks of a batch that share a sector: what is on disk then goes by chance.
#[test]
fn writes_of_a_batch_that_overlap_are_found() {
    let layout = Layout { kind: Kind::File, width: 1, nparity: 0, ashift: 9 };
    let disks = disks(1);
    let tree = layout.tree(&disks);
    let batch = [block(8192, 4096, 10), block(8192 + 3584, 4096, 10)];
    let why = cenote_format::invariant::caught(|| tree.write_many(&batch)).unwrap_err();
    assert!(why.contains("a write at 0x402e00 of a batch with one up to 0x403000"), "{why}");
    // Nothing of it was written.
    let at = LABEL_START as usize + 8192;
    assert!(disks[0].memory.bytes()[at..at + 8192].iter().all(|b| *b == 0));
    let apart = [block(8192, 4096, 10), block(12288, 4096, 10)];
    assert!(tree.write_many(&apart).iter().all(Result::is_ok));
}

/// What moves, as two sides of a vdev have it.
fn moved(offset: u64) -> BlockWrite {
    let side = |byte| Abd::from_vec(vec![byte; 1024]);
    let sides = vec![side(1), side(2)];
    BlockWrite { data: side(1), sides, ..block(offset, 1024, 7) }
}

#[test]
fn sides_stay_apart_also_when_a_flush_failed() {
    let (tree, disks) = mirror(3);
    tree.write_moved(&[moved(2048), block(4096, 512, 7)]).unwrap();
    let at = (LABEL_START + 2048) as usize;
    let read = |n: usize| disks[n].memory.bytes()[at..at + 1024].to_vec();
    let check = || (0..3).for_each(|n| assert_eq!(read(n), [[1, 2, 1][n]; 1024]));
    check();
    disks.iter().for_each(|disk| disk.faults.fail_flushes(1));
    assert!(tree.flush_all().is_err());
    disks.iter().for_each(|disk| disk.memory.bytes()[at..at + 1024].fill(9));
    tree.recover().unwrap();
    tree.flush_all().unwrap();
    check();
    // One that does not take it.
    disks[1].faults.fail_writes(0..u64::MAX);
    assert!(tree.write_moved(&[moved(8192)]).is_err());
}

#[test]
fn sides_are_read_sector_by_sector_where_they_fail() {
    const SIZE: u64 = 1 << 20;
    let (tree, disks) = mirror(2);
    tree.write_many(&[block(0, SIZE as usize, 1)]);
    let sector = |n: u64| LABEL_START + 512 * n..LABEL_START + 512 * (n + 1);
    let read = |pieces: &[(u64, u64)]| {
        let done = tree.read_sides(0, pieces, Asking::default());
        done.into_iter().map(|sides| sides.map_err(|e| e.to_string())).collect::<Vec<_>>()
    };
    assert_eq!(read(&[(0, SIZE)])[0].as_ref().unwrap().len(), 1);
    disks[0].faults.fail(sector(3));
    disks[1].faults.fail(sector(1000));
    let sides = read(&[(0, SIZE)]).remove(0).unwrap();
    assert_eq!(sides.iter().map(Abd::to_vec).collect::<Vec<_>>(), [vec![0; SIZE as usize]]);
    // In however many parts it is read, a piece is one error. What is read again counts no more.
    let errors = || tree.leaves().iter().map(|leaf| leaf.errors()).collect::<Vec<_>>();
    assert_eq!(errors(), [(1, 0, 0); 2]);
    let again = Asking { again: true, ..Asking::default() };
    assert_eq!(tree.read_sides(0, &[(0, SIZE)], again).remove(0).unwrap().len(), 1);
    assert_eq!(errors(), [(1, 0, 0); 2]);
    // The first side has what the second one has wrong, and the other way round.
    disks[0].faults.corrupt(sector(2000), 0xff);
    disks[1].faults.corrupt(sector(1500), 0xff);
    let sides = read(&[(0, SIZE)]).remove(0).unwrap();
    let wrong = |side: &Abd| side.to_vec().iter().position(|byte| *byte != 0);
    assert_eq!(sides.iter().map(wrong).collect::<Vec<_>>(), [Some(2000 * 512), Some(1500 * 512)]);
    // What no side can read costs its piece alone.
    disks[1].faults.fail(sector(3));
    let done = read(&[(0, 2048), (2048, 2048)]);
    assert!(done[0].as_ref().unwrap_err().contains("no device can read 512 bytes"), "{done:?}");
    assert_eq!(done[1].as_ref().unwrap().len(), 1);
}

/// What all sides of a mirror may have lost, and what was written to all of them again, none of them lacks.
#[test]
fn what_is_written_again_is_not_missing() {
    let (tree, disks) = mirror(2);
    write(&tree, block(0, 512, 5)).unwrap();
    disks.iter().for_each(|disk| disk.faults.fail_flushes(1));
    assert!(tree.flush_all().is_err());
    tree.recover().unwrap();
    tree.flush_all().unwrap();
    assert_eq!(tree.take_missed(), []);
    // One side has it: the other one is given it by a resilver.
    write(&tree, block(0, 512, 6)).unwrap();
    disks[0].faults.fail_flushes(1);
    tree.flush_all().unwrap();
    let first = tree.leaves()[0].guid();
    assert_eq!(tree.take_missed(), [(first, Vec::from([std::ops::Range { start: 6, end: 7 }]))]);
    // One side does not take it the second time.
    write(&tree, block(512, 512, 7)).unwrap();
    disks.iter().for_each(|disk| disk.faults.fail_flushes(1));
    assert!(tree.flush_all().is_err());
    disks[1].faults.fail_writes(LABEL_START + 512..LABEL_START + 513);
    tree.recover().unwrap();
    tree.flush_all().unwrap();
    let second = tree.leaves()[1].guid();
    assert_eq!(tree.take_missed(), [(second, Vec::from([std::ops::Range { start: 7, end: 8 }]))]);
}

/// A device of which each second question finds that it takes no writes.
struct Flips {
    inner: Arc<crate::inject::MemDevice>,
    asked: AtomicU64,
}

impl Device for Flips {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn path(&self) -> &std::path::Path {
        self.inner.path()
    }

    fn read_batch(&self, reqs: &mut [crate::device::ReadReq]) {
        self.inner.read_batch(reqs);
    }

    fn writable(&self) -> bool {
        self.asked.fetch_add(1, SeqCst).is_multiple_of(2)
    }

    fn write_batch(&self, reqs: &mut [crate::device::WriteReq]) {
        self.inner.write_batch(reqs);
    }
}

/// A leaf goes out of use, or seems to, while it is asked whether it takes a block: it has that, or is known to lack it.
#[test]
fn a_block_is_on_a_leaf_or_known_to_be_missing_there() {
    for asked in 0..2 {
        let disks = disks(2);
        let (inner, asked) = (disks[0].memory.clone(), AtomicU64::new(asked));
        let flips = Arc::new(Flips { inner: inner.clone(), asked });
        let sides = vec![testing::file_on(0, flips), testing::file(1, &disks[1])];
        let tree = testing::tree(vec![testing::mirror_like(Kind::Mirror, 0, sides)]);
        let mut seen = [false; 2];
        for txg in 1..8u64 {
            let data = Abd::from_vec(vec![txg as u8; 512]);
            let (offset, content) = (512 * txg, Content::Data);
            let block = BlockWrite { vdev: 0, offset, data, txg, content, sides: Vec::new() };
            assert!(tree.write_many(&[block])[0].is_ok());
            let at = (LABEL_START + offset) as usize;
            let has_it = inner.bytes()[at..at + 512] == [txg as u8; 512];
            assert!(has_it != tree.leaves()[0].lacks(txg), "group {txg}");
            seen[usize::from(has_it)] = true;
        }
        assert!(seen.contains(&true));
    }
}
