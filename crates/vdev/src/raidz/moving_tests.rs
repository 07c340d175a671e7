//! Steps of an expansion that are cut short: by devices that fail, hang or do not know what has moved.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use cenote_format::LABEL_START;
use cenote_format::abd::Abd;
use cenote_format::invariant;
use cenote_format::label::Uberblock;

use super::moving::{Moved, NotMoved};
use super::reflow::{Reflow, SCRATCH_LEFT, SCRATCH_VALID, Widths};
use super::reflow_tests::{bytes, moving, read, sector, with, write};
use crate::testing::{self, Leaf, leaves, tree};
use crate::traffic::Content;
use crate::vdev::Vdev;
use crate::write::BlockWrite;
use crate::{BlockRead, Copying, Fault, VdevState, VdevTree};

const TXG: u64 = 10;
/// Room for the scratch area and what comes after it, with sectors of 4 KiB.
const SIZE: usize = 12 << 20;
const ASHIFT: u32 = 12;
/// Sectors that the scratch area takes of a device.
const SCRATCH_SECTORS: u64 = (7 << 19) >> ASHIFT;

fn whole_step(t: &VdevTree, top: &Arc<Vdev>) -> Result<Moved, NotMoved> {
    let range = t.reflow_range(top, u64::MAX >> 1).unwrap();
    t.wait_for_others(top, &|| false)?;
    t.reflow_shadow(top, range.end, &|| false)?;
    let how = Copying { quiet: false, ends: &|| false };
    t.reflow_copy(top, (std::slice::from_ref(&range), range.clone()), how)
}

/// All devices but `without` have the uberblock of this group.
fn know(t: &VdevTree, txg: u64, without: Option<usize>) {
    let leaves = t.leaves();
    let those = leaves.iter().enumerate().filter(|(n, _)| Some(*n) != without);
    those.for_each(|(_, leaf)| leaf.leads_to.store(txg, SeqCst));
}

/// As an import finds it whose uberblock says so.
fn imported(disks: &[Leaf], nparity: u64, (state, at): (u64, u64)) -> VdevTree {
    let valid = state == SCRATCH_VALID;
    let reflow =
        Reflow { synced: at, next: at, in_scratch: valid, to_scratch: valid, to_new: !valid };
    with(disks, nparity, ASHIFT, moving(disks.len() as u64, reflow))
}

/// Has a step of which one device does not know that it is on disk, at each of the states that a reflow goes through.
fn steps_of_which_one_does_not_know(check: impl Fn(&[Leaf], &VdevTree, &Arc<Vdev>, Moved, u64)) {
    for steps_before in 0..4 {
        let disks = leaves(4, SIZE);
        let t = with(&disks, 1, ASHIFT, moving(4, Reflow::default()));
        let top = t.top(0).unwrap().clone();
        for txg in 1..=steps_before {
            let moved = whole_step(&t, &top).unwrap();
            know(&t, txg, None);
            t.reflow_committed(&top, moved.progress, txg);
        }
        let moved = whole_step(&t, &top).unwrap();
        t.reflow_holds(&top, &moved).unwrap();
        check(&disks, &t, &top, moved, steps_before + 1);
    }
}

/// The uberblock on disk says that sectors have moved, one device does not have it: they are not copied again over what was written
/// to their new places since. When all devices have a later one it goes on from there.
#[test]
fn a_step_that_one_device_does_not_know_of_is_not_made_again() {
    steps_of_which_one_does_not_know(|disks, t, top, moved, txg| {
        let before = top.reflow().unwrap();
        know(t, txg, Some(2));
        t.reflow_committed(top, moved.progress, txg);
        assert_eq!(top.reflow().unwrap(), before, "memory is where it was");
        t.reflow_is_known(top).unwrap_err();
        // What lies before the end of what has moved, straddles it, and lies behind it.
        let end = moved.progress.1;
        let blocks: Vec<(u64, Vec<u8>)> = [end / 2, end - (3 << ASHIFT), end + (40 << ASHIFT)]
            .into_iter()
            .map(|at| (at >> ASHIFT << ASHIFT, bytes(9000, at)))
            .collect();
        // A step that was going to be made again writes nothing, though a block is written at just this time.
        let contents = || disks.iter().map(|d| d.memory.bytes().clone()).collect::<Vec<_>>();
        let untouched = contents();
        let e = whole_step(t, top).unwrap_err();
        assert!(matches!(e, NotMoved::Again(_)), "{e}");
        t.reflow_holds(top, &moved).unwrap_err();
        assert!(contents() == untouched);
        for (at, data) in &blocks {
            write(t, *at, data, TXG);
        }
        whole_step(t, top).unwrap_err();
        // What memory says, an import from before, and one of now: all find what was written.
        let progress = (if before.in_scratch { 1 } else { SCRATCH_LEFT }, before.synced);
        let all = |t: &VdevTree, what: &str| {
            for (at, data) in &blocks {
                assert!(read(t, *at, data, TXG).is_empty(), "{what} {at:#x} {before:?}");
            }
        };
        all(t, "in memory");
        all(&imported(disks, 1, moved.progress), "as the uberblock says");
        all(&imported(disks, 1, progress), "as the uberblock before says");
        // It gets a later one.
        know(t, txg + 1, None);
        t.reflow_is_known(top).unwrap();
        assert_eq!(top.reflow().unwrap().synced, end);
        assert_eq!(top.reflow().unwrap().in_scratch, moved.progress.0 == SCRATCH_VALID);
        all(t, "in memory, later");
        let next = whole_step(t, top).unwrap();
        all(t, "after the next copy");
        all(&imported(disks, 1, moved.progress), "after the next copy, from before it");
        all(&imported(disks, 1, next.progress), "after the next step");
    });
}

/// Memory comes to know of a step after the next one has looked what it is to copy: that copies nothing, as it would copy over what is
/// read by then.
#[test]
fn what_was_to_be_copied_before_a_step_was_taken_over_is_not() {
    steps_of_which_one_does_not_know(|disks, t, top, moved, txg| {
        know(t, txg, Some(2));
        t.reflow_committed(top, moved.progress, txg);
        let range = t.reflow_range(top, u64::MAX >> 1).unwrap();
        t.reflow_shadow(top, range.end, &|| false).unwrap();
        know(t, txg, None);
        let contents = || disks.iter().map(|d| d.memory.bytes().clone()).collect::<Vec<_>>();
        let (before, untouched) = (top.reflow(), contents());
        let copy = || {
            let how = Copying { quiet: false, ends: &|| false };
            t.reflow_copy(top, (std::slice::from_ref(&range), range.clone()), how)
        };
        // It takes nothing over itself.
        let e = copy().unwrap_err();
        assert!(matches!(e, NotMoved::Again(_)), "{e}");
        assert!(top.reflow() == before && contents() == untouched);
        t.reflow_is_known(top).unwrap();
        // The scratch area is filled and left from the begin on: the next step copies what this one would have.
        let begin = t.reflow_range(top, u64::MAX >> 1).unwrap().start;
        if begin != range.start {
            let e = copy().unwrap_err();
            assert!(matches!(e, NotMoved::Again(_)), "{e}");
            assert!(contents() == untouched);
        }
        whole_step(t, top).unwrap();
    });
}

/// A device that was not there when the uberblock was written does not know of it either.
#[test]
fn an_import_copies_nothing_before_all_devices_know() {
    let disks = leaves(4, SIZE);
    let t = with(&disks, 1, ASHIFT, moving(4, Reflow::default()));
    let top = t.top(0).unwrap().clone();
    let at = (4 * SCRATCH_SECTORS) << ASHIFT;
    let uberblock = Uberblock { txg: 7, ..testing_uberblock() }.with_reflow(SCRATCH_LEFT, at);
    t.reflow_at(&uberblock).unwrap();
    assert_eq!(top.reflow().unwrap().synced, at);
    whole_step(&t, &top).unwrap_err();
    know(&t, 8, Some(0));
    whole_step(&t, &top).unwrap_err();
    know(&t, 8, None);
    whole_step(&t, &top).unwrap();
}

fn testing_uberblock() -> Uberblock {
    use cenote_format::ByteOrder;
    Uberblock {
        order: ByteOrder::Little,
        version: 5000,
        txg: 1,
        guid_sum: 0,
        timestamp: 0,
        rootbp: cenote_format::blkptr::BlockPointer([0; 16]),
        software_version: 5000,
        mmp_magic: 0,
        mmp_delay: 0,
        mmp_config: 0,
        checkpoint_txg: 0,
        raidz_reflow: 0,
    }
}

/// If memory lost track of what uberblocks say nothing is copied.
#[test]
fn what_uberblocks_say_is_what_memory_says() {
    let disks = leaves(4, SIZE);
    let t = with(&disks, 1, ASHIFT, moving(4, Reflow::default()));
    let top = t.top(0).unwrap().clone();
    let at = (4 * SCRATCH_SECTORS) << ASHIFT;
    let says = |state, at| {
        let uberblock = testing_uberblock().with_reflow(state, at);
        *t.writer.committing.lock() = Some(uberblock);
    };
    says(SCRATCH_VALID, at);
    let contents = || disks.iter().map(|d| d.memory.bytes().clone()).collect::<Vec<_>>();
    let before = contents();
    let why = invariant::caught(|| whole_step(&t, &top)).unwrap_err();
    assert!(invariant::is_broken(&why), "{why}");
    assert!(contents() == before);
    says(0, 0);
    whole_step(&t, &top).unwrap();
}

/// Its name, how it lays out, and what uberblocks may say after a crash in it: (`RRSS` state, offset).
type ScratchState = (&'static str, Widths, Vec<(u64, u64)>);

/// The states of a reflow before it moves on, with a block of which rows lie in the scratch area, and others behind it.
fn scratch_states(new: u64) -> [ScratchState; 3] {
    let in_scratch = (SCRATCH_SECTORS * new) << ASHIFT;
    let state = |synced, in_scratch, to_scratch, to_new, next| {
        moving(new, Reflow { synced, next, in_scratch, to_scratch, to_new })
    };
    [
        ("filling", state(0, false, true, false, in_scratch), vec![(0, 0), (1, in_scratch)]),
        ("valid", state(in_scratch, true, true, false, in_scratch), vec![(1, in_scratch)]),
        (
            "leaving",
            state(in_scratch, true, true, true, in_scratch),
            vec![(1, in_scratch), (SCRATCH_LEFT, in_scratch)],
        ),
    ]
}

/// What is written while the scratch area is filled, used and left is there whichever uberblock a crash leaves, as are the sectors
/// of which one device is away: that is one column of each stripe, also where it has two copies of a sector.
#[test]
fn what_is_written_beside_the_scratch_area_is_everywhere() {
    for (nparity, new) in [(1u64, 3u64), (1, 4), (2, 4), (2, 5), (3, 6)] {
        let end = SCRATCH_SECTORS * new;
        for (name, state, after) in scratch_states(new) {
            for away in std::iter::once(None).chain((0..new as usize).map(Some)) {
                let disks = leaves(new as usize, SIZE / 2);
                for start in [5, end - 40, end - 7, end - new, end - 1, end, end + 3] {
                    let (at, data) = (start << ASHIFT, bytes(60_000, start));
                    println!("{name} {nparity} of {new}, {away:?} away, at {start}");
                    let t = with(&disks, nparity, ASHIFT, state.clone());
                    // With more devices away than that nothing could be written.
                    let few =
                        |first| (0..nparity).map(move |n| (first + n as usize) % new as usize);
                    let gone: Vec<usize> = away.map(few).into_iter().flatten().collect();
                    for leaf in &gone {
                        assert!(t.take_out(t.leaves()[*leaf].guid(), VdevState::Offline));
                    }
                    write(&t, at, &data, TXG);
                    read(&t, at, &data, TXG);
                    for leaf in &gone {
                        disks[*leaf].memory.bytes()[LABEL_START as usize - (7 << 19)..].fill(0xee);
                    }
                    for progress in &after {
                        let t = imported(&disks, nparity, *progress);
                        read(&t, at, &data, TXG);
                    }
                }
            }
        }
    }
}

/// A device that was away gets the copies, too, that are in the scratch area.
#[test]
fn a_device_that_was_away_gets_what_is_in_the_scratch_area() {
    let new = 4u64;
    let end = SCRATCH_SECTORS * new;
    for (name, state, after) in scratch_states(new) {
        for start in [5, end - 7, end - 1, end + 3] {
            let (at, data) = (start << ASHIFT, bytes(30_000, start));
            for away in 0..new as usize {
                let disks = leaves(new as usize, SIZE / 2);
                let t = with(&disks, 1, ASHIFT, state.clone());
                write(&t, at, &data, TXG);
                disks[away].memory.bytes()[LABEL_START as usize - (7 << 19)..].fill(0xee);
                t.miss(t.leaves()[away].guid(), 0..TXG + 1).unwrap();
                let verify = |abd: &Abd| *abd.bytes() == *data;
                let size = data.len() as u64;
                let request = BlockRead { vdev: 0, offset: at, size, txg: TXG, verify: &verify };
                let found = t.lacking_many(&[request]).remove(0);
                let lacks: Vec<(u64, Fault)> = found.faults.into_iter().map(|f| (TXG, f)).collect();
                assert!(t.repair_many(&lacks, &|| true).unwrap().failed.is_empty());
                for progress in &after {
                    let t = imported(&disks, 1, *progress);
                    assert!(read(&t, at, &data, TXG).is_empty(), "{name} {start} {away}");
                }
            }
        }
    }
}

/// A write to another vdev hangs. Blocks of this one are written, and are copied meanwhile.
#[test]
fn a_write_that_hangs_elsewhere_holds_nothing_up() {
    let (disks, other) = (leaves(4, SIZE), Leaf::new(1 << 20));
    let top = testing::raidz(1, ASHIFT, testing::files(&disks));
    *top.widths.write() = moving(4, Reflow::default()).into();
    let t = tree(vec![top, testing::file(1, &other)]);
    let top = t.top(0).unwrap().clone();
    t.writer.watch.on(top.id);
    other.faults.set_hung(true);
    let written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (data, content) = (Abd::from_vec(vec![1; 512]), Content::Data);
            let txg = TXG;
            let block = BlockWrite { vdev: 1, offset: 0, data, txg, content, sides: Vec::new() };
            t.write_many(&[block]).remove(0).unwrap();
            written.store(true, SeqCst);
        });
        while other.faults.waiting() == 0 {
            std::thread::yield_now();
        }
        let data = bytes(9000, 1);
        write(&t, 0, &data, TXG);
        let moved = whole_step(&t, &top).unwrap();
        know(&t, 1, None);
        t.reflow_committed(&top, moved.progress, 1);
        write(&t, 1 << 20, &data, TXG);
        assert!(read(&t, 0, &data, TXG).is_empty() && read(&t, 1 << 20, &data, TXG).is_empty());
        whole_step(&t, &top).unwrap();
        assert!(!written.load(SeqCst));
        other.faults.set_hung(false);
    });
}

/// A write to a device of the vdev hangs that began when sectors were elsewhere: nothing is copied, and other blocks are written.
#[test]
fn what_was_laid_out_before_is_waited_for() {
    let disks = leaves(4, SIZE);
    let t = with(&disks, 1, ASHIFT, moving(4, Reflow::default()));
    let top = t.top(0).unwrap().clone();
    let (before, after) = (bytes(9000, 1), bytes(9000, 2));
    disks[1].faults.set_hung(true);
    std::thread::scope(|scope| {
        scope.spawn(|| write(&t, 0, &before, TXG));
        while disks[1].faults.waiting() == 0 {
            std::thread::yield_now();
        }
        let begun = Instant::now();
        let why = whole_step(&t, &top).unwrap_err();
        assert!(matches!(why, NotMoved::Again(_)), "{why}");
        // It ends at once when it is to.
        let why = t.wait_for_others(&top, &|| true).unwrap_err();
        assert!(matches!(why, NotMoved::Again(_)), "{why}");
        assert!(begun.elapsed() < Duration::from_secs(8));
        disks[1].faults.set_hung(false);
    });
    write(&t, 1 << 20, &after, TXG);
    let moved = whole_step(&t, &top).unwrap();
    for t in [imported(&disks, 1, (0, 0)), imported(&disks, 1, moved.progress)] {
        assert!(read(&t, 0, &before, TXG).is_empty() && read(&t, 1 << 20, &after, TXG).is_empty());
    }
    // The first sector of the scratch area is that of the vdev.
    let first = disks[0].memory.bytes()[LABEL_START as usize - (7 << 19)..][..1 << ASHIFT].to_vec();
    assert_eq!(first, sector(&disks, 3, ASHIFT, 0));
}
