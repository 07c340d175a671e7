//! Tests of copying by place.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cenote_format::LABEL_START;

use super::*;
use crate::testing::{self, Leaf, leaves, tree};
use crate::vdev::Kind;
use crate::write::BlockWrite;

const TXG: u64 = 10;

fn block(offset: u64, data: Vec<u8>) -> BlockWrite {
    let (data, content) = (Abd::from_vec(data), Content::Data);
    BlockWrite { vdev: 0, offset, data, txg: TXG, content, sides: Vec::new() }
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i * 31 + seed * 7 + i / 251) as u8 | 1).collect()
}

/// What a leaf holds from the first byte of its allocatable space on.
fn held(disk: &Leaf, range: std::ops::Range<usize>) -> Vec<u8> {
    let at = LABEL_START as usize;
    disk.memory.bytes()[at + range.start..at + range.end].to_vec()
}

/// The pieces of the first bytes of top-level vdev 0.
fn pieces(t: &VdevTree, end: u64, segment: u64) -> Vec<(u64, u64)> {
    let (top, mut at, mut all) = (t.top(0).unwrap(), 0, Vec::new());
    while at < end {
        let size = top.rebuild_piece(at, end - at, segment);
        all.push((at, size));
        at += size;
    }
    all
}

/// A leaf lacks everything.
fn lacks(t: &VdevTree, leaf: &Vdev) {
    t.set_dtl(leaf.guid(), vec![1..TXG + 5]).unwrap();
}

#[test]
fn what_draid_lacks_is_made_of_the_rest() {
    for (ndata, nparity, n, segment) in [(2, 1, 4, 1 << 20), (3, 2, 7, 8192), (2, 3, 6, 4096)] {
        let disks = leaves(n, 4 << 20);
        let t = tree(vec![testing::draid((ndata, nparity, 0), 12, testing::files(&disks))]);
        let mut end = 0;
        for seed in 0..40 {
            let data = bytes(seed, 512 + seed as usize * 3000);
            let size = t.top(0).unwrap().psize_to_asize(data.len() as u64, TXG);
            t.write_many(&[block(end, data)]).remove(0).unwrap();
            end += size;
        }
        let before: Vec<Vec<u8>> = disks.iter().map(|d| d.memory.bytes().clone()).collect();
        let targets: Vec<Arc<Vdev>> = t.leaves().into_iter().take(nparity as usize).collect();
        for (leaf, disk) in targets.iter().zip(&disks) {
            disk.memory.bytes().fill(0xee);
            lacks(&t, leaf);
        }
        let guids: Vec<u64> = targets.iter().map(|leaf| leaf.guid()).collect();
        let done = t.rebuild_many(0, &pieces(&t, end, segment), &guids).unwrap();
        assert_eq!((done.unread, done.failed.len()), (0, 0));
        assert!(done.bytes > 0);
        for (disk, before) in disks.iter().zip(&before) {
            let held = disk.memory.bytes();
            let differs = held.iter().zip(before).position(|(a, b)| a != b && *a != 0xee);
            assert_eq!(differs, None, "{ndata} {nparity}");
        }
        // All reads without as many of the others.
        let others: Vec<Arc<Vdev>> = t.leaves().into_iter().skip(nparity as usize).collect();
        targets.iter().for_each(|leaf| t.set_dtl(leaf.guid(), vec![]).unwrap());
        others.iter().take(nparity as usize).for_each(|leaf| leaf.retire());
        let mut at = 0;
        for seed in 0..40 {
            let data = bytes(seed, 512 + seed as usize * 3000);
            testing::read(&t, at, &data).unwrap();
            at += t.top(0).unwrap().psize_to_asize(data.len() as u64, TXG);
        }
    }
}

#[test]
fn too_few_columns_are_told() {
    let disks = leaves(4, 4 << 20);
    let t = tree(vec![testing::draid((2, 1, 0), 12, testing::files(&disks))]);
    t.write_many(&[block(0, bytes(1, 24 << 10))]).remove(0).unwrap();
    let targets: Vec<u64> = t.leaves()[..2].iter().map(|leaf| leaf.guid()).collect();
    t.leaves()[..2].iter().for_each(|leaf| lacks(&t, leaf));
    let done = t.rebuild_many(0, &pieces(&t, 36 << 10, 1 << 20), &targets).unwrap();
    // Of each line of three columns at least two are on the four devices; where both lack theirs nothing is made.
    assert!(done.unread > 0 && done.unread <= 3, "{done:?}");
}

#[test]
fn the_closest_device_is_copied() {
    let disks = leaves(3, 1 << 20);
    let replacing = testing::mirror_like(Kind::Replacing, 0, testing::files(&disks[..2]));
    let other = testing::file(2, &disks[2]);
    let t = tree(vec![testing::mirror_like(Kind::Mirror, 0, vec![replacing, other])]);
    let (mine, theirs) = (bytes(1, 64 << 10), bytes(2, 64 << 10));
    disks[0].write(0, &mine);
    disks[2].write(0, &theirs);
    let target = t.leaves()[1].clone();
    lacks(&t, &target);
    // Two sectors of it cannot be read.
    disks[0].faults.fail(LABEL_START + 4096..LABEL_START + 5120);
    let all = pieces(&t, 64 << 10, 1 << 20);
    let done = t.rebuild_many(0, &all, &[target.guid()]).unwrap();
    assert_eq!(done, Rebuilt { bytes: 64 << 10, ..Rebuilt::default() });
    // These come from the other one.
    let mut mixed = mine.clone();
    mixed[4096..5120].copy_from_slice(&theirs[4096..5120]);
    assert_eq!(held(&disks[1], 0..64 << 10), mixed);
    disks[0].faults.repair();
    t.rebuild_many(0, &all, &[target.guid()]).unwrap();
    assert_eq!(held(&disks[1], 0..64 << 10), mine);
    t.leaves()[0].retire();
    t.rebuild_many(0, &all, &[target.guid()]).unwrap();
    assert_eq!(held(&disks[1], 0..64 << 10), theirs);
    // One that lacks anything at all is no source.
    t.set_dtl(t.leaves()[2].guid(), vec![50..51]).unwrap();
    let done = t.rebuild_many(0, &all, &[target.guid()]).unwrap();
    assert_eq!((done.bytes, done.unread), (0, all.len() as u64));
    assert!(!t.has_source(0, &[target.guid()]));
}

/// A mirror of two, of which the second lacks what was written before.
fn joined() -> (Vec<Leaf>, VdevTree, Arc<Vdev>) {
    let disks = leaves(2, 1 << 20);
    let t = tree(vec![testing::mirror_like(Kind::Mirror, 0, testing::files(&disks))]);
    let target = t.leaves()[1].clone();
    lacks(&t, &target);
    (disks, t, target)
}

/// What a source could not write is on the target alone: it is not replaced with what the source had before.
#[test]
fn a_source_that_fails_a_write_is_none() {
    let (disks, t, target) = joined();
    disks[0].write(0, &bytes(1, 16 << 10));
    assert!(t.has_source(0, &[target.guid()]));
    disks[0].faults.fail_writes(LABEL_START + 8192..LABEL_START + 12288);
    let new = bytes(2, 4096);
    let write = BlockWrite { txg: TXG + 20, ..block(8192, new.clone()) };
    t.write_many(&[write]).remove(0).unwrap();
    let done = t.rebuild_many(0, &[(0, 16 << 10)], &[target.guid()]).unwrap();
    assert_eq!((done.bytes, done.unread, done.left.len()), (0, 1, 0));
    assert_eq!(held(&disks[1], 8192..12288), new);
    assert!(!t.has_source(0, &[target.guid()]));
}

/// A flush that fails may have lost what a source took: that is known before the source is copied.
#[test]
fn a_source_that_lost_its_cache_is_none() {
    let (disks, t, target) = joined();
    let old = bytes(1, 16 << 10);
    disks[0].write(0, &old);
    let new = bytes(2, 4096);
    let write = BlockWrite { txg: TXG + 20, ..block(8192, new.clone()) };
    t.write_many(&[write]).remove(0).unwrap();
    // The cache is lost, and the device says so when it is asked to keep it.
    disks[0].write(8192, &old[8192..12288]);
    disks[0].faults.fail_flushes(1);
    let done = t.rebuild_many(0, &[(0, 16 << 10)], &[target.guid()]).unwrap();
    assert_eq!((done.bytes, done.unread, done.left.len()), (0, 1, 0));
    assert_eq!(held(&disks[1], 8192..12288), new);
    assert!(t.leaves()[0].is_behind());
}

/// Where nothing was written since the last flush no flush is made.
#[test]
fn what_is_durable_is_copied_without_a_flush() {
    let (disks, t, target) = joined();
    let (first, second) = (block(0, bytes(1, 4096)), block(65536, bytes(2, 4096)));
    t.write_many(&[first]).remove(0).unwrap();
    t.flush_all().unwrap();
    t.write_many(&[second]).remove(0).unwrap();
    let before = disks[0].faults.flushes();
    let done = t.rebuild_many(0, &[(0, 65536)], &[target.guid()]).unwrap();
    assert_eq!((done.bytes, disks[0].faults.flushes()), (65536, before));
    let done = t.rebuild_many(0, &[(65536, 4096)], &[target.guid()]).unwrap();
    assert_eq!((done.bytes, disks[0].faults.flushes()), (4096, before + 1));
}

/// A source that does not answer is found out with few requests, and is not taken for one.
#[test]
fn a_silent_source_is_not_asked_for_each_sector() {
    let (disks, t, target) = joined();
    let all = pieces(&t, 512 << 10, 64 << 10);
    let silences = t.silences();
    disks[0].faults.set_missing(true);
    let before = disks[0].faults.reads();
    let done = t.rebuild_many(0, &all, &[target.guid()]).unwrap();
    assert_eq!((done.bytes, done.unread), (0, all.len() as u64));
    assert!(disks[0].faults.reads() - before < 40, "{}", disks[0].faults.reads() - before);
    assert!(t.silences() != silences && t.is_silent_below(0) && !t.is_silent_below(1));
    assert!(!t.has_source(0, &[target.guid()]));
    // It may be another device by now, until it is looked at.
    disks[0].faults.set_missing(false);
    assert_eq!(t.rebuild_many(0, &all, &[target.guid()]).unwrap().bytes, 0);
}

/// A device is let go when no copy is under way to it, and none begins then.
#[test]
fn a_device_that_leaves_is_waited_for() {
    use std::time::Duration;
    let (disks, t, target) = joined();
    disks[0].write(0, &bytes(1, 64 << 10));
    let (guid, short) = (target.guid(), Duration::from_millis(50));
    disks[1].faults.set_hung(true);
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| t.rebuild_many(0, &[(0, 4096)], &[guid]).unwrap());
        while disks[1].faults.waiting() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        target.set_leaving(true);
        assert!(!target.is_vacant_idle_within(short));
        disks[1].faults.set_hung(false);
        assert_eq!(copying.join().unwrap().bytes, 4096);
    });
    assert!(target.is_vacant_idle_within(short));
    let before = disks[1].faults.writes();
    let done = t.rebuild_many(0, &[(4096, 4096)], &[guid]).unwrap();
    // It may stay, and lack that.
    assert_eq!((done.failed.len(), done.leaving), (0, true));
    assert_eq!(disks[1].faults.writes(), before);
}

/// While a source hangs that is read for a claim nothing else waits for it.
#[test]
fn other_writes_do_not_wait_for_a_source() {
    use std::time::Duration;
    let disks = leaves(3, 1 << 20);
    let files = testing::files(&disks);
    let other = testing::file(1, &disks[2]);
    let mirror = testing::mirror_like(Kind::Mirror, 0, files[..2].to_vec());
    let t = tree(vec![mirror, other]);
    let target = t.leaves()[1].clone();
    lacks(&t, &target);
    disks[0].faults.set_reads_hung(true);
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| {
            let top = t.top(0).unwrap();
            let targets = &[target.guid()];
            let copier = Copier { tree: &t, top, targets, reserved: true };
            let mut done = Rebuilt::default();
            copier.copy(&[(0, 4096)], &mut done).unwrap();
            done
        });
        while disks[0].faults.waiting() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // One that wants to be alone has others wait: none of them is one that waits for the source.
        let waiting = scope.spawn(|| t.write_many(&[block(0, bytes(1, 4096))]).remove(0));
        std::thread::sleep(Duration::from_millis(50));
        drop(t.writer.healing.write());
        let beside = BlockWrite { vdev: 1, ..block(0, bytes(2, 4096)) };
        t.write_many(&[beside, block(8192, bytes(3, 4096))]).into_iter().for_each(|w| w.unwrap());
        assert!(!waiting.is_finished());
        disks[0].faults.set_reads_hung(false);
        assert_eq!(copying.join().unwrap().bytes, 4096);
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(held(&disks[1], 0..4096), bytes(1, 4096));
}

#[test]
fn bad_sectors_cost_nothing_else() {
    let disks = leaves(2, 1 << 20);
    let t = tree(vec![testing::mirror_like(Kind::Mirror, 0, testing::files(&disks))]);
    let data = bytes(3, 256 << 10);
    disks[0].write(0, &data);
    let target = t.leaves()[1].clone();
    lacks(&t, &target);
    disks[0].faults.fail(LABEL_START + 512..LABEL_START + 1024);
    let done = t.rebuild_many(0, &pieces(&t, 256 << 10, 1 << 20), &[target.guid()]).unwrap();
    assert_eq!((done.bytes, done.unread), ((256 << 10) - 512, 1));
    assert_eq!(held(&disks[1], 1024..256 << 10), data[1024..]);
    assert_eq!(t.leaves()[0].errors(), (1, 0, 0));
    disks[1].faults.fail_writes(LABEL_START..LABEL_START + (1 << 20));
    let done = t.rebuild_many(0, &[(4096, 4096)], &[target.guid()]).unwrap();
    assert_eq!(done.failed.into_iter().collect::<Vec<_>>(), [target.guid()]);
}

/// Blocks that are written meanwhile are not overwritten with what was there before.
#[test]
fn what_is_written_meanwhile_stays() {
    const BLOCKS: u64 = 64;
    let disks = leaves(2, 1 << 20);
    let t = tree(vec![testing::mirror_like(Kind::Mirror, 0, testing::files(&disks))]);
    let target = t.leaves()[1].clone();
    lacks(&t, &target);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..3000u64 {
                let at = round * 37 % BLOCKS * 4096;
                t.write_many(&[block(at, bytes(round, 4096))]).remove(0).unwrap();
            }
            ended.store(true, SeqCst);
        });
        let all = pieces(&t, BLOCKS * 4096, 16384);
        while !ended.load(SeqCst) {
            let done = t.rebuild_many(0, &all, &[target.guid()]).unwrap();
            assert_eq!((done.bytes, done.left.len()), (BLOCKS * 4096, 0));
        }
    });
    let all = 0..(BLOCKS * 4096) as usize;
    assert!(held(&disks[0], all.clone()) == held(&disks[1], all));
}

#[test]
fn a_leaf_that_failed_a_flush_does_not_stand() {
    let disks = leaves(2, 1 << 20);
    let t = tree(vec![testing::mirror_like(Kind::Mirror, 0, testing::files(&disks))]);
    let target = t.leaves()[1].clone();
    let before = target.standing();
    t.rebuild_many(0, &[(0, 4096)], &[target.guid()]).unwrap();
    t.flush_all().unwrap();
    assert!(before == target.standing());
    target.lags(3..4);
    assert!(before != target.standing());
    let before = target.standing();
    target.retire();
    assert!(before != target.standing() && target.standing() != target.standing());
}

/// While writes wait for a piece no sector is asked for by itself.
#[test]
fn a_reserved_piece_is_divided_less_far() {
    for (reserved, most, unread) in [(false, 400, 128), (true, 40, 1)] {
        let (disks, t, target) = joined();
        let top = t.top(0).unwrap();
        let end = LABEL_START + (64 << 10);
        disks[0].faults.fail(LABEL_START..end);
        let before = disks[0].faults.reads();
        let targets = &[target.guid()];
        let copier = Copier { tree: &t, top, targets, reserved };
        let mut done = Rebuilt::default();
        copier.copy(&[(0, 256 << 10)], &mut done).unwrap();
        let reads = disks[0].faults.reads() - before;
        assert!(reads < most && (reads > 64) != reserved, "{reserved}: {reads}");
        assert_eq!((done.unread, done.bytes), (unread, 192 << 10));
    }
}

/// A source that misses the last block of a batch is known for that before anything else is copied: what the source had before
/// does not replace what the target got.
#[test]
fn what_a_source_misses_is_known_before_it_is_copied() {
    const BLOCKS: u64 = 1000;
    for round in 0..50 {
        let (disks, t, target) = joined();
        let last = (BLOCKS - 1) * 512;
        let place = LABEL_START + last;
        let old: Vec<BlockWrite> = (0..BLOCKS).map(|i| block(i * 512, bytes(i, 512))).collect();
        t.write_many(&old).into_iter().for_each(|written| written.unwrap());
        t.flush_all().unwrap();
        disks[0].faults.fail_writes(place..place + 512);
        let new = |i: u64| BlockWrite { txg: TXG + 20, ..block(i * 512, bytes(1000 + i, 512)) };
        let (all, ended) = ((0..BLOCKS).map(new).collect::<Vec<_>>(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                t.write_many(&all).into_iter().for_each(|written| written.unwrap());
                ended.store(true, SeqCst);
            });
            while !ended.load(SeqCst) {
                t.rebuild_many(0, &[(last, 512)], &[target.guid()]).unwrap();
            }
        });
        let at = last as usize;
        assert!(held(&disks[1], at..at + 512) == bytes(1000 + BLOCKS - 1, 512), "{round}");
        assert!(t.leaves()[0].is_behind());
    }
}
