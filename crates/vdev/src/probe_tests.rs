//! Tests of what is found out about a leaf by looking at its device.

use super::*;
use crate::testing::{self, Leaf};
use crate::traffic::Content;
use crate::vdev::Kind;
use crate::write::BlockWrite;
use cenote_format::LABEL_START;
use cenote_format::abd::Abd;
use cenote_format::label::LABEL_END;

const ROOM: usize = 1 << 20;

fn mirror(n: usize) -> (VdevTree, Vec<Leaf>) {
    let leaves = testing::leaves(n, ROOM + LABEL_END as usize);
    let top = testing::mirror_like(Kind::Mirror, 0, testing::files(&leaves));
    (testing::tree(vec![top]), leaves)
}

fn write(tree: &VdevTree, txg: u64) -> bool {
    let data = Abd::from_vec(vec![txg as u8; 512]);
    let block = BlockWrite {
        vdev: 0,
        offset: 512 * txg,
        data,
        txg,
        content: Content::Data,
        sides: Vec::new(),
    };
    tree.write_many(&[block])[0].is_ok()
}

fn states(tree: &VdevTree) -> Vec<VdevState> {
    tree.leaves().iter().map(|l| l.state()).collect()
}

#[test]
fn a_device_that_is_gone_is_left_alone() {
    let (tree, leaves) = mirror(2);
    assert!(write(&tree, 1));
    leaves[1].faults.set_missing(true);
    assert!(write(&tree, 2));
    assert_eq!(states(&tree), [VdevState::Healthy, VdevState::Faulted]);
    assert_eq!(tree.root().state(), VdevState::Degraded);
    // The block before is not durable there.
    tree.flush_all().unwrap();
    let count = || (leaves[1].faults.reads(), leaves[1].faults.writes());
    let (before, errors) = (count(), tree.leaves()[1].errors());
    assert!(write(&tree, 3) && tree.flush_all().is_ok());
    for txg in 1..4 {
        testing::read(&tree, 512 * txg, &[txg as u8; 512]).unwrap();
    }
    assert_eq!((count(), tree.leaves()[1].errors()), (before, errors));
    let missed = tree.take_missed();
    let (guid, txgs) = &missed[0];
    assert_eq!((missed.len(), *guid), (1, tree.leaves()[1].guid()));
    assert_eq!((txgs.len(), txgs[0].clone()), (1, 1..4));
}

#[test]
fn a_device_that_takes_no_writes_is_left_alone() {
    let (tree, leaves) = mirror(2);
    leaves[0].faults.fail_writes(0..u64::MAX);
    assert!(write(&tree, 1));
    assert_eq!(states(&tree), [VdevState::Faulted, VdevState::Healthy]);
}

#[test]
fn a_bad_sector_is_no_reason() {
    let (tree, leaves) = mirror(2);
    leaves.iter().for_each(|l| l.faults.fail_writes(LABEL_START..LABEL_START + 512));
    assert!(!write(&tree, 0));
    leaves[0].faults.fail(LABEL_START + 512..LABEL_START + 1024);
    assert!(write(&tree, 1));
    testing::read(&tree, 512, &[1; 512]).unwrap();
    assert_eq!(states(&tree), [VdevState::Healthy; 2]);
}

/// That a sector was not written the system says with the next flush, whichever thread asks.
#[test]
fn a_bad_sector_that_a_probe_hears_of_is_no_reason() {
    let (tree, leaves) = mirror(2);
    assert!(write(&tree, 1));
    leaves[0].faults.fail_flushes(1);
    leaves[0].faults.fail(LABEL_START + 512..LABEL_START + 1024);
    testing::read(&tree, 512, &[1; 512]).unwrap();
    assert_eq!((states(&tree), leaves[0].faults.flushes()), (vec![VdevState::Healthy; 2], 2));
    // What it may have lost is missing there, and nothing is lost.
    assert!(tree.flush_all().is_ok());
    let (leaf, lost) = (tree.leaves()[0].guid(), 1..2);
    assert_eq!(tree.take_missed(), [(leaf, vec![lost])]);
    // Reads that fail cost one flush in a while.
    let flushes = leaves[0].faults.flushes();
    testing::read(&tree, 512, &[1; 512]).unwrap();
    assert_eq!(leaves[0].faults.flushes(), flushes);
    // One that fails all flushes is out of use at once.
    leaves[0].faults.set_flush_errors(true);
    assert!(write(&tree, 2) && tree.flush_all().is_ok());
    assert_eq!(states(&tree), [VdevState::Faulted, VdevState::Healthy]);
}

#[test]
fn the_last_device_stays_in_use() {
    let (tree, leaves) = mirror(2);
    leaves[0].faults.set_missing(true);
    assert!(write(&tree, 1));
    leaves[1].faults.set_missing(true);
    assert!(!write(&tree, 2));
    assert_eq!(states(&tree), [VdevState::Faulted, VdevState::Degraded]);
    leaves[1].faults.repair();
    assert!(write(&tree, 3));
    // The other one lacks things that this one has.
    let (tree, leaves) = mirror(2);
    let missed = 3..4;
    tree.set_dtl(tree.leaves()[0].guid(), vec![missed]).unwrap();
    leaves[1].faults.set_missing(true);
    assert!(write(&tree, 5));
    assert_eq!(states(&tree), [VdevState::Healthy, VdevState::Degraded]);
}

/// Has the first side of a mirror get another device, in a suspended pool; `meanwhile` is done while it has no device.
fn get_another(tree: &VdevTree, other: &Leaf, writable: bool, meanwhile: &mut dyn FnMut()) {
    get_another_in(tree, other, (writable, true), meanwhile);
}

/// The same, in a pool that is suspended if it is `held`.
fn get_another_in(
    tree: &VdevTree,
    other: &Leaf,
    (writable, held): (bool, bool),
    meanwhile: &mut dyn FnMut(),
) {
    let mut open = |_: &Vdev| {
        meanwhile();
        Some(other.faults.clone() as Arc<dyn Device>)
    };
    let (which, config) = (|_: &Vdev| true, |_: &Vdev| NvList::default());
    let (which, config, open, doubt, txg) = (&which, &config, &mut open, true, 0);
    let how = &mut Reopen { which, doubt, config, open, txg, writable, held };
    let judge = &mut Judge { tree, how, state_with: &|_| VdevState::Healthy, committing: &None };
    assert!(tree.bring_back(&tree.leaves()[0], judge));
}

/// What was written to the device before is written to the one that took its place.
fn is_written_again(tree: &VdevTree, other: &Leaf) {
    tree.recover().unwrap();
    tree.flush_all().unwrap();
    let at = (LABEL_START + 512) as usize;
    assert_eq!(other.memory.bytes()[at..at + 512], [1; 512]);
}

#[test]
fn a_flush_while_a_device_comes_back_drops_nothing() {
    let (tree, leaves) = mirror(2);
    assert!(write(&tree, 1));
    leaves[0].faults.set_missing(true);
    let (other, mut flushed) = (Leaf::new(ROOM + LABEL_END as usize), None);
    get_another(&tree, &other, true, &mut || flushed = Some(tree.flush_all()));
    assert!(flushed.is_some_and(|flushed| flushed.is_err()));
    is_written_again(&tree, &other);
}

#[test]
fn a_needed_device_that_is_opened_anew_loses_nothing() {
    let (tree, _leaves) = mirror(1);
    assert!(write(&tree, 1));
    let other = Leaf::new(ROOM + LABEL_END as usize);
    get_another_in(&tree, &other, (false, false), &mut || ());
    assert!(tree.flush_all().is_err());
    is_written_again(&tree, &other);
}

/// It was needed, did not answer once, and stayed in use.
#[test]
fn a_device_that_answers_again_is_well() {
    let (tree, leaves) = mirror(2);
    leaves[0].faults.set_missing(true);
    assert!(write(&tree, 1));
    leaves[1].faults.set_missing(true);
    assert!(!write(&tree, 2));
    let silent = [VdevState::Faulted, VdevState::Degraded];
    assert_eq!((states(&tree), tree.has_outage()), (silent.to_vec(), true));
    let top = tree.top(0).unwrap().clone();
    let look = || tree.look_after_silent(&top, &tree.leaves());
    look();
    assert_eq!((states(&tree), tree.has_outage()), (silent.to_vec(), true));
    assert!(!tree.take_awaited());
    leaves[1].faults.repair();
    look();
    let well = vec![VdevState::Faulted, VdevState::Healthy];
    assert_eq!((states(&tree), tree.has_outage()), (well, false));
    assert!(tree.take_awaited() && !tree.take_awaited());
    // One that is not needed any more goes out of use.
    let (tree, leaves) = mirror(2);
    leaves[0].faults.set_missing(true);
    tree.leaves()[0].set_state(VdevState::Degraded);
    tree.look_after_silent(tree.top(0).unwrap(), &tree.leaves());
    assert_eq!(states(&tree), [VdevState::Faulted, VdevState::Healthy]);
    assert!(tree.take_awaited());
    // So it does when a request to it fails.
    let (tree, leaves) = mirror(2);
    leaves[0].faults.set_missing(true);
    tree.leaves()[0].set_state(VdevState::Degraded);
    assert!(tree.has_outage() && write(&tree, 1) && !tree.has_outage());
    assert_eq!(states(&tree), [VdevState::Faulted, VdevState::Healthy]);
    assert!(tree.take_awaited());
}

#[test]
fn a_flush_that_fails_on_the_device_before_drops_nothing() {
    let (tree, leaves) = mirror(2);
    assert!(write(&tree, 1));
    let other = Leaf::new(ROOM + LABEL_END as usize);
    leaves[0].faults.fail_flushes(1);
    leaves[0].faults.set_hung(true);
    std::thread::scope(|scope| {
        let flushing = scope.spawn(|| tree.flush_all());
        while leaves[0].faults.waiting() == 0 {
            std::thread::yield_now();
        }
        // A device that is open in another way is not asked.
        get_another(&tree, &other, false, &mut || ());
        leaves[0].faults.set_hung(false);
        assert!(flushing.join().unwrap().is_err());
    });
    is_written_again(&tree, &other);
}

/// Whether a vdev can do without a leaf is known once it is noted what the others missed.
#[test]
fn a_leaf_is_taken_out_after_what_is_being_written() {
    let (tree, leaves) = mirror(2);
    let guid = tree.leaves()[0].guid();
    leaves[1].faults.fail_writes(LABEL_START + 512..LABEL_START + 1024);
    leaves[0].faults.set_hung(true);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| write(&tree, 1));
        while leaves[0].faults.waiting() == 0 {
            std::thread::yield_now();
        }
        let taking = scope.spawn(|| tree.take_out(guid, VdevState::Offline));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!taking.is_finished());
        leaves[0].faults.set_hung(false);
        assert!(writing.join().unwrap());
        assert!(!taking.join().unwrap());
    });
    assert_eq!(states(&tree), [VdevState::Healthy; 2]);
}

/// A block that one side has, which is out of use when it is noted that the other one lacks it, is not written.
#[test]
fn what_only_a_leaf_out_of_use_has_is_not_written() {
    let (tree, leaves) = mirror(2);
    leaves[1].faults.fail_writes(LABEL_START + 512..LABEL_START + 1024);
    leaves[0].faults.set_hung(true);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| write(&tree, 1));
        while leaves[0].faults.waiting() == 0 {
            std::thread::yield_now();
        }
        tree.put_out(tree.top(0).unwrap(), &tree.leaves()[0]);
        leaves[0].faults.set_hung(false);
        assert!(!writing.join().unwrap());
    });
    assert_eq!(states(&tree), [VdevState::Faulted, VdevState::Healthy]);
    // Another one is, on what is left; and the one that has that stays.
    assert!(write(&tree, 2));
    tree.put_out(tree.top(0).unwrap(), &tree.leaves()[1]);
    assert_eq!(states(&tree), [VdevState::Faulted, VdevState::Degraded]);
}

#[test]
fn probes_change_nothing() {
    let (tree, leaves) = mirror(1);
    let before = leaves[0].memory.bytes().clone();
    let writes = leaves[0].faults.writes();
    let leaf = &tree.leaves()[0];
    assert!(answers(leaf, &*leaf.device().unwrap()));
    assert!(*leaves[0].memory.bytes() == before);
    assert_eq!(leaves[0].faults.writes(), writes + 3);
}
