//! Distributed spares over devices in memory: what they have, and what leaves have of them, whoever is away in between.

use std::collections::HashMap;
use std::sync::Arc;

use cenote_format::LABEL_START;
use cenote_format::abd::Abd;
use cenote_format::invariant::{caught, is_broken};
use proptest::prelude::*;

use super::ROW_HEIGHT;
use crate::probe::required;
use crate::testing::{self, Leaf, leaves, tree};
use crate::traffic::Content;
use crate::vdev::{Kind, Vdev};
use crate::write::BlockWrite;
use crate::{BlockRead, Fault, VdevState, VdevTree};

/// Bytes of each block.
const SIZE: usize = 3000;
/// Rows of each child.
const ROWS: u64 = 4;
/// Rows that are a slice each: in some the first spare's place is on the device that the second one stands in for.
const SLICES: u64 = 24;

/// A vdev in which spares stand in for the first children; they lack all groups before the 10th.
fn rig(shape: (u64, u64, u64), more: usize) -> (VdevTree, Vec<Leaf>) {
    rig_of(shape, more, ROWS)
}

/// The same, with so many rows of each child.
fn rig_of(
    (ndata, nparity, nspares): (u64, u64, u64),
    more: usize,
    rows: u64,
) -> (VdevTree, Vec<Leaf>) {
    let count = (ndata + nparity + nspares) as usize + more;
    let disks = leaves(count, (rows * ROW_HEIGHT) as usize + (2 << 20));
    let mut children = testing::files(&disks);
    for number in 0..nspares {
        let at = number as usize;
        let spare = testing::distributed_spare(number);
        spare.set_dtl(vec![0..10]);
        let below = vec![children[at].clone(), spare];
        children[at] = testing::mirror_like(Kind::Spare, at as u64, below);
    }
    let top = testing::draid((ndata, nparity, nspares), 9, children);
    let shape = *top.draid().unwrap();
    top.grow(shape.asize(super::RESERVE + rows * ROW_HEIGHT).unwrap());
    (tree(vec![top]), disks)
}

fn bytes(txg: u64) -> Vec<u8> {
    (0..SIZE as u64).map(|i| (i * 31 + i / 251 + txg) as u8 | 1).collect()
}

/// Where the block of a transaction group is: they are in all groups of columns by turns, and so in several slices.
fn place(t: &VdevTree, txg: u64) -> u64 {
    let top = t.top(0).unwrap();
    let group = top.draid().unwrap().width() * ROW_HEIGHT;
    let groups = top.asize() / group;
    txg % groups * group + txg * 40 * top.line()
}

fn write(t: &VdevTree, txg: u64) -> bool {
    let (data, content) = (Abd::from_vec(bytes(txg)), Content::Data);
    let block =
        BlockWrite { vdev: 0, offset: place(t, txg), data, txg, content, sides: Vec::new() };
    t.write_many(&[block]).remove(0).is_ok()
}

fn read(t: &VdevTree, txg: u64) -> (bool, usize) {
    let data = bytes(txg);
    let verify = |abd: &Abd| *abd.bytes() == *data;
    let read =
        BlockRead { vdev: 0, offset: place(t, txg), size: SIZE as u64, txg, verify: &verify };
    let outcome = t.read_one(&read);
    (outcome.block.is_ok(), outcome.faults.len())
}

/// Gives leaves in use what they lack.
fn resilver(t: &VdevTree, txgs: &[u64]) {
    resilver_with(t, txgs, &|| ());
}

/// The same; `between` is done when it is known what leaves lack, and before they are given it.
fn resilver_with(t: &VdevTree, txgs: &[u64], between: &dyn Fn()) {
    t.take_missed();
    let lacking: Vec<Arc<Vdev>> =
        t.leaves().into_iter().filter(|l| l.writable() && l.is_behind()).collect();
    let missing: Vec<_> = lacking.iter().map(|leaf| leaf.missing()).collect();
    let mut left: HashMap<u64, Vec<std::ops::Range<u64>>> = HashMap::new();
    for txg in txgs {
        let data = bytes(*txg);
        let verify = |abd: &Abd| *abd.bytes() == *data;
        let (offset, size, txg) = (place(t, *txg), SIZE as u64, *txg);
        let checked =
            t.lacking_many(&[BlockRead { vdev: 0, offset, size, txg, verify: &verify }]).remove(0);
        assert!(checked.block.is_ok());
        let faults: Vec<(u64, Fault)> = checked.faults.into_iter().map(|f| (txg, f)).collect();
        between();
        assert!(t.repair_many(&faults, &|| true).unwrap().failed.is_empty());
        checked.left.iter().for_each(|leaf| left.entry(*leaf).or_default().push(txg..txg + 1));
    }
    for (leaf, missing) in lacking.iter().zip(missing) {
        leaf.excise(&missing, left.get(&leaf.guid()).map_or(&[], Vec::as_slice));
    }
}

/// All blocks are there, with nothing wrong, and so they are without any leaf that can be done without.
fn all_is_there(t: &VdevTree, txgs: &[u64]) {
    let clean = |without: &str| {
        for txg in txgs {
            assert_eq!(read(t, *txg), (true, 0), "block {txg} without {without}");
        }
    };
    clean("any");
    let top = t.top(0).unwrap();
    for leaf in t.leaves().iter().filter(|leaf| leaf.state().readable()) {
        if !required(top, leaf) {
            leaf.set_state(VdevState::Offline);
            clean(&format!("{leaf:?}"));
            leaf.set_state(VdevState::Healthy);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Leaves go and come back while blocks are written, and are brought up to date now and then: what can be done without is what a
    /// vdev without spares could do without, and what is trusted is right.
    #[test]
    fn spares_and_leaves_keep_what_they_say(
        ndata in 1u64..4, nparity in 1u64..3, nspares in 1u64..4, more in 0usize..2,
        steps in prop::collection::vec((0u8..8, any::<u8>()), 1..40),
    ) {
        let (t, _disks) = rig((ndata, nparity, nspares), more);
        let top = t.top(0).unwrap();
        let mut txgs: Vec<u64> = (4..14).collect();
        for txg in &txgs {
            prop_assert!(write(&t, *txg));
        }
        let all = t.leaves();
        for (what, which) in steps {
            let leaf = &all[which as usize % all.len()];
            match what {
                0..3 => {
                    let txg = txgs.last().unwrap() + 1;
                    prop_assert!(write(&t, txg));
                    txgs.push(txg);
                }
                3..5 if leaf.state().readable() && !required(top, leaf) => leaf.set_state(VdevState::Offline),
                5..7 if !leaf.state().readable() => leaf.set_state(VdevState::Healthy),
                7 => resilver(&t, &txgs),
                _ => {}
            }
            let txg = txgs[which as usize % txgs.len()];
            prop_assert_eq!(read(&t, txg), (true, 0));
        }
        all_is_there(&t, &txgs);
        resilver(&t, &txgs);
        all_is_there(&t, &txgs);
        all.iter().for_each(|leaf| leaf.set_state(VdevState::Healthy));
        resilver(&t, &txgs);
        resilver(&t, &txgs);
        prop_assert!(all.iter().all(|leaf| !leaf.is_behind()));
        all_is_there(&t, &txgs);
    }
}

/// Copies all blocks to leaves, which lack nothing then.
fn rebuild(t: &VdevTree, txgs: &[u64], targets: &[u64]) {
    let top = t.top(0).unwrap();
    for txg in txgs {
        let size = top.psize_to_asize(SIZE as u64, *txg);
        let (mut at, end) = (place(t, *txg), place(t, *txg) + size);
        while at < end {
            let piece = (at, top.rebuild_piece(at, end - at, 1 << 20));
            let done = t.rebuild_many(0, &[piece], targets).unwrap();
            assert_eq!((done.unread, done.failed.len(), done.left.len()), (0, 0, 0));
            at += piece.1;
        }
    }
    t.take_missed();
    for leaf in t.leaves().iter().filter(|leaf| targets.contains(&leaf.guid())) {
        leaf.excise(&leaf.missing(), &[]);
    }
}

/// Two spares are in use, and the second device is away when the first spare is given all: what has its place on both the second spare
/// and that device goes to the spare alone.
#[test]
fn a_device_that_comes_back_gets_what_a_spare_was_given_meanwhile() {
    for how in 0..3 {
        let (t, _disks) = rig_of((2, 1, 2), 0, SLICES);
        let all = t.leaves();
        let (gone, first, second_gone, second) = (&all[0], &all[1], &all[2], &all[3]);
        second.set_dtl(Vec::new());
        first.set_state(VdevState::Offline);
        let txgs: Vec<u64> = (10..60).collect();
        txgs.iter().for_each(|txg| assert!(write(&t, *txg)));
        let leave = || second_gone.set_state(VdevState::Offline);
        first.set_state(VdevState::Healthy);
        match how {
            0 => {
                leave();
                rebuild(&t, &txgs, &[first.guid()]);
            }
            1 => {
                leave();
                resilver(&t, &txgs);
            }
            // It leaves in between.
            _ => resilver_with(&t, &txgs, &leave),
        }
        assert!(!first.is_behind() && second_gone.is_behind());
        second_gone.set_state(VdevState::Healthy);
        resilver(&t, &txgs);
        assert!(!second_gone.is_behind());
        // The second spare has done its work.
        second.set_state(VdevState::Offline);
        gone.set_state(VdevState::Offline);
        for txg in &txgs {
            assert_eq!(read(&t, *txg), (true, 0), "block {txg}, {how}");
        }
    }
}

/// A spare's place is on a device that has come back and is behind, and on a spare that has it and cannot be read. The vdev, a block
/// that has a column there, whose own device is the first one, and that place and its right bytes.
fn with_a_stale_place() -> (VdevTree, Vec<Leaf>, u64, std::ops::Range<usize>, Vec<u8>) {
    let (t, disks) = rig_of((2, 1, 2), 0, SLICES);
    let all = t.leaves();
    let (target, first, behind, second) = (&all[0], &all[1], &all[2], &all[3]);
    [first, second].iter().for_each(|spare| spare.set_dtl(Vec::new()));
    let txgs: Vec<u64> = (10..60).collect();
    txgs.iter().for_each(|txg| assert!(write(&t, *txg)));
    t.flush_all().unwrap();
    let top = t.top(0).unwrap();
    let has_place = |txg: &u64| {
        let stripes = top.columns(place(&t, *txg), SIZE as u64, *txg)?;
        let mine = stripes.into_iter().flatten().find(|column| column.child == 0)?;
        let is_behind = first.place_at(mine.offset).iter().any(|leaf| leaf.is_same(behind));
        is_behind.then_some((*txg, mine.offset, mine.len))
    };
    let (txg, offset, len) = txgs.iter().find_map(has_place).unwrap();
    let range = (LABEL_START + offset) as usize..(LABEL_START + offset) as usize + len;
    let right = disks[0].memory.bytes()[range.clone()].to_vec();
    for (disk, leaf) in [(0, target), (1, behind)] {
        disks[disk].memory.bytes()[range.clone()].fill(0x77);
        leaf.set_dtl(vec![0..u64::MAX]);
    }
    let unreadable = second.place_at(offset);
    let [unreadable] = unreadable.as_slice() else { panic!("{unreadable:?}") };
    let at = LABEL_START + offset;
    disks[unreadable.id() as usize].faults.fail(at..at + len as u64);
    (t, disks, txg, range, right)
}

#[test]
fn nothing_is_rebuilt_from_what_may_be_stale() {
    let (t, disks, txg, range, right) = with_a_stale_place();
    rebuild(&t, &[txg], &[t.leaves()[0].guid()]);
    assert!(disks[0].memory.bytes()[range] == right);
}

/// What was read of a block that is wrong in a spare's place: how many faults are of bytes, and how many of them count as errors.
fn charged(t: &VdevTree, txg: u64) -> (usize, u64) {
    let (data, mut wrong) = (bytes(txg), 0);
    let verify = |abd: &Abd| *abd.bytes() == *data;
    let block =
        BlockRead { vdev: 0, offset: place(t, txg), size: SIZE as u64, txg, verify: &verify };
    assert!(t.read_one(&block).block.is_ok());
    let before = errors_of(t);
    for fault in &t.check_many(&[block]).remove(0).faults {
        fault.charge();
        wrong += usize::from(fault.is_mismatch());
    }
    (wrong, errors_of(t) - before)
}

fn errors_of(t: &VdevTree) -> u64 {
    let errors = |vdev: &Arc<Vdev>| vdev.errors().2;
    t.leaves().iter().chain(t.top(0).unwrap().children()).map(errors).sum()
}

/// What the device that is behind gives is wrong, and no error of the spare. It was read all the same, and differs.
#[test]
fn stale_bytes_of_a_place_are_no_error_of_the_spare() {
    let (t, _disks, txg, ..) = with_a_stale_place();
    assert_eq!(charged(&t, txg), (1, 0));
}

/// A device that is out of use has not given what is wrong in a spare's place.
#[test]
fn wrong_bytes_count_beside_a_device_that_is_out_of_use() {
    let (t, _disks, txg, ..) = with_a_stale_place();
    let all = t.leaves();
    all[2].set_dtl(Vec::new());
    all[3].set_state(VdevState::Offline);
    assert_eq!(charged(&t, txg), (1, 1));
}

/// What a second spare is rebuilt from is what the first one has, and what that has on the second device is made anew.
#[test]
fn a_second_device_is_rebuilt_with_one_parity() {
    let (t, _disks) = rig((2, 1, 2), 1);
    let all = t.leaves();
    let (first, second) = (&all[1], &all[3]);
    assert!(first.is_distributed() && second.is_distributed());
    second.set_state(VdevState::Offline);
    let txgs: Vec<u64> = (4..60).collect();
    txgs.iter().for_each(|txg| assert!(write(&t, *txg)));
    let rebuild = |targets: &[u64]| rebuild(&t, &txgs, targets);
    for (gone, spare) in [(&all[0], first), (&all[2], second)] {
        gone.set_state(VdevState::Offline);
        spare.set_state(VdevState::Healthy);
        spare.set_dtl(vec![0..u64::MAX]);
        rebuild(&[spare.guid()]);
    }
    all_is_there(&t, &txgs);
    // The second device comes back with nothing: what the first spare has there is among what it lacks.
    let lost = all[2].clone();
    second.set_state(VdevState::Offline);
    lost.set_state(VdevState::Healthy);
    lost.set_dtl(vec![0..u64::MAX]);
    rebuild(&[lost.guid()]);
    all_is_there(&t, &txgs);
}

/// A block with a column of the spare, whose place is on the one leaf without a column: the numbers of that leaf, and of the other
/// one with a column.
fn on_the_spare(t: &VdevTree) -> (u64, usize, usize) {
    let top = t.top(0).unwrap();
    let found = (4..40).find_map(|txg| {
        let stripes = top.columns(place(t, txg), SIZE as u64, txg)?;
        let children: Vec<usize> = stripes.iter().flatten().map(|column| column.child).collect();
        let other = *children.iter().find(|child| **child != 0)?;
        let without = (0..3).find(|child| !children.contains(child))?;
        children.contains(&0).then_some((txg, without, other))
    });
    found.unwrap()
}

#[test]
fn what_a_device_loses_of_a_spare_counts() {
    for flushes in [true, false] {
        let (t, disks) = rig((1, 1, 1), 0);
        let leaves = t.leaves();
        leaves[0].set_state(VdevState::Offline);
        leaves[1].set_dtl(Vec::new());
        let (txg, holder, other) = on_the_spare(&t);
        let fails = |disk: usize, fails: bool| match flushes {
            true => disks[disk].faults.set_flush_errors(fails),
            false if fails => disks[disk].faults.fail_writes(0..u64::MAX),
            false => disks[disk].faults.repair(),
        };
        // One column can be spared.
        if !flushes {
            fails(holder, true);
        }
        assert!(write(&t, txg));
        fails(holder, true);
        t.flush_all().unwrap();
        fails(holder, false);
        assert!(leaves[1].lacks(txg) || leaves[1].trust_at(0, txg).is_none());
        assert_eq!(read(&t, txg), (true, 0));
        // Two cannot, though the other one has failed nothing but a flush.
        t.leaves().iter().skip(1).for_each(|leaf| leaf.set_state(VdevState::Healthy));
        leaves[1].excise(&leaves[1].missing(), &[]);
        if !flushes {
            fails(holder, true);
        }
        assert!(write(&t, txg));
        fails(holder, true);
        disks[other].faults.set_flush_errors(true);
        assert!(t.flush_all().is_err(), "flushes: {flushes}");
    }
}

/// A spare that lacks a column does not make up for one that another device loses in a flush.
#[test]
fn a_flush_that_loses_columns_beside_a_spare_that_lacks_them_fails() {
    for is_out in [true, false] {
        let (t, disks) = rig((1, 1, 1), 0);
        let leaves = t.leaves();
        leaves[0].set_state(VdevState::Offline);
        leaves[1].set_dtl(Vec::new());
        let (txg, holder, other) = on_the_spare(&t);
        if is_out {
            leaves[1].set_state(VdevState::Offline);
        } else {
            // A sector of the device that its place is on.
            let columns = t.top(0).unwrap().columns(place(&t, txg), SIZE as u64, txg).unwrap();
            let column = columns.into_iter().flatten().find(|column| column.child == 0).unwrap();
            let at = LABEL_START + column.offset;
            disks[holder].faults.fail_writes(at..at + 512);
        }
        assert!(write(&t, txg));
        disks[other].faults.fail_flushes(1);
        assert!(t.flush_all().is_err(), "out: {is_out}");
        disks[holder].faults.repair();
        t.recover().unwrap();
        t.flush_all().unwrap();
        if !is_out {
            t.leaves().iter().filter(|leaf| leaf.id() == other as u64).for_each(|leaf| {
                leaf.set_state(VdevState::Offline);
            });
        }
        assert!(read(&t, txg).0, "out: {is_out}");
    }
}

/// A spare is given what it lacks, and before that is durable the device that its place is on loses it: it is flushed alone, or lets go
/// of its device, or is flushed after a look at the spare.
#[test]
fn a_spare_lacks_what_a_device_of_it_did_not_keep() {
    for how in 0..3 {
        let (t, disks) = rig((1, 1, 1), 0);
        let leaves = t.leaves();
        let (txg, holder, _) = on_the_spare(&t);
        leaves[1].set_dtl(Vec::new());
        leaves[1].set_state(VdevState::Offline);
        assert!(write(&t, txg));
        t.flush_all().unwrap();
        leaves[1].set_state(VdevState::Healthy);
        assert!(leaves[1].lacks(txg));
        resilver(&t, &[txg]);
        assert!(!leaves[1].lacks(txg));
        let standing = leaves[1].standing();
        let top = t.top(0).unwrap();
        let of_place = leaves.iter().find(|leaf| leaf.id() == holder as u64).unwrap();
        disks[holder].faults.fail_flushes(1);
        match how {
            0 => assert!(t.fails_to_flush(top, of_place)),
            1 => assert!(t.take_out(of_place.guid(), VdevState::Offline)),
            _ => {
                assert!(!t.fails_to_flush(top, &leaves[1]));
                t.flush_all().unwrap();
            }
        }
        assert!(leaves[1].lacks(txg), "{how}");
        assert!(leaves[1].standing() != standing);
    }
}

/// A spare that its vdev has not has no places: that is not taken for places without leaves.
#[test]
fn a_spare_of_no_vdev_is_a_fault_of_this_program() {
    let (t, _disks) = rig((2, 1, 1), 0);
    let top = t.top(0).unwrap();
    let other = testing::distributed_spare(1);
    // Before its tree is in use it is nowhere.
    assert!(other.place_at(0).is_empty());
    let placed = caught(|| other.distributed.get().unwrap().place(top)).unwrap_err();
    assert!(is_broken(&placed) && placed.contains("distributed spare 1"), "{placed}");
}
