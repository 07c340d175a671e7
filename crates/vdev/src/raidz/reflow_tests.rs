//! Expanded vdevs, and such as are being expanded, against a plain model: a vdev is a row of sectors.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use cenote_format::LABEL_START;
use cenote_format::abd::Abd;
use proptest::prelude::*;

use super::reflow::{Reflow, SCRATCH_LEFT, Widths};
use crate::testing::{self, Leaf, leaves, tree};
use crate::traffic::Content;
use crate::write::BlockWrite;
use crate::{BlockRead, Copying, Fault, VdevTree};

const TXG: u64 = 10;
const SIZE: usize = 2 << 20;

pub(super) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

pub(super) fn write(t: &VdevTree, offset: u64, data: &[u8], txg: u64) {
    let (data, content) = (Abd::from_vec(data.to_vec()), Content::Data);
    let block = BlockWrite { vdev: 0, offset, data, txg, content, sides: Vec::new() };
    t.write_many(&[block]).remove(0).unwrap();
}

/// Reads a block, which has to be right; what was found wrong.
pub(super) fn read(t: &VdevTree, offset: u64, data: &[u8], txg: u64) -> Vec<Fault> {
    let verify = |abd: &Abd| *abd.bytes() == *data;
    let size = data.len() as u64;
    let found = t.read_one(&BlockRead { vdev: 0, offset, size, txg, verify: &verify });
    found.block.unwrap();
    found.faults
}

/// A tree of one RAID-Z vdev with these widths.
pub(super) fn with(disks: &[Leaf], nparity: u64, ashift: u32, widths: Widths) -> VdevTree {
    let top = testing::raidz(nparity, ashift, testing::files(disks));
    let moves = widths.reflow.is_some();
    *top.widths.write() = widths.into();
    let t = tree(vec![top]);
    if moves {
        t.writer.watch.on(0);
    }
    t
}

pub(super) fn moving(physical: u64, reflow: Reflow) -> Widths {
    Widths { physical, grown: Vec::new(), reflow: Some(reflow) }
}

/// Sector `sector` of a vdev over the first `columns` disks.
pub(super) fn sector(disks: &[Leaf], columns: u64, ashift: u32, sector: u64) -> Vec<u8> {
    let at = (LABEL_START + ((sector / columns) << ashift)) as usize;
    disks[(sector % columns) as usize].memory.bytes()[at..at + (1 << ashift)].to_vec()
}

/// The disks after the sectors before `end` have moved to one disk more.
fn moved(disks: &[Leaf], ashift: u32, end: u64) -> Vec<Leaf> {
    let after = leaves(disks.len(), SIZE);
    for (from, to) in disks.iter().zip(&after) {
        to.memory.bytes().copy_from_slice(&from.memory.bytes());
    }
    let new = disks.len() as u64;
    for s in 0..end {
        after[(s % new) as usize].write((s / new) << ashift, &sector(disks, new - 1, ashift, s));
    }
    after
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    /// A block that was written before is the same sectors, wherever they are; whatever is wrong on as many disks as there is
    /// parity is found, and nothing else, and is mended.
    #[test]
    fn a_block_keeps_its_sectors(
        nparity in 1u64..4, more in 1u64..9, four_k: bool, start in 0u64..150,
        len in 1usize..30_000, seed: u64, done in 0u64..700, which in any::<u16>(), whole: bool,
    ) {
        let ashift = if four_k { 12 } else { 9 };
        let (old, new) = (nparity + more, nparity + more + 1);
        let data = bytes(len, seed);
        let offset = start << ashift;
        let plain = leaves(old as usize, SIZE);
        write(&with(&plain, nparity, ashift, Widths::always(old)), offset, &data, TXG);
        // While nothing has moved all is where it was.
        let disks = leaves(new as usize, SIZE);
        let t = with(&disks, nparity, ashift, moving(new, Reflow::default()));
        write(&t, offset, &data, TXG);
        for (a, b) in plain.iter().zip(&disks) {
            prop_assert!(*a.memory.bytes() == *b.memory.bytes());
        }
        prop_assert!(read(&t, offset, &data, TXG).is_empty());
        // Rows that straddle the place are where they were, which is not overwritten.
        let rows = (SIZE as u64 >> ashift) - 8;
        let end = if whole { rows * old } else { (2 * new * new + done).min(rows * old) };
        let after = moved(&disks, ashift, end);
        let widths = match whole {
            true => Widths { physical: new, grown: vec![TXG + 1], reflow: None },
            false => {
                let at = end << ashift;
                moving(new, Reflow { synced: at, next: at, to_new: true, ..Reflow::default() })
            }
        };
        let t = with(&after, nparity, ashift, widths);
        prop_assert!(read(&t, offset, &data, TXG).is_empty());
        let top = t.top(0).unwrap();
        let before = Widths::always(old);
        let asize = with(&plain, nparity, ashift, before).top(0).unwrap().psize_to_asize(len as u64, TXG);
        prop_assert_eq!(top.psize_to_asize(len as u64, TXG), asize);
        prop_assert_eq!(top.deflate(1 << 30), with(&plain, nparity, ashift, Widths::always(old)).top(0).unwrap().deflate(1 << 30));

        let contents = |disks: &[Leaf]| disks.iter().map(|d| d.memory.bytes().clone()).collect::<Vec<_>>();
        let right = contents(&after);
        let picked = (0..new).filter(|c| which >> c & 1 == 1).take(nparity as usize);
        for disk in picked {
            after[disk as usize].memory.bytes()[LABEL_START as usize..].iter_mut().for_each(|b| *b ^= 0x55);
        }
        let faults = read(&t, offset, &data, TXG);
        prop_assert_eq!(t.heal(TXG, &faults, &|| true), faults.len());
        prop_assert!(read(&t, offset, &data, TXG).is_empty());
        // A scrub finds the rest.
        let verify = |abd: &Abd| *abd.bytes() == *data;
        let request = BlockRead { vdev: 0, offset, size: len as u64, txg: TXG, verify: &verify };
        let checked = t.check_many(std::slice::from_ref(&request)).remove(0);
        let rest: Vec<(u64, Fault)> = checked.faults.into_iter().map(|f| (TXG, f)).collect();
        prop_assert!(t.repair_many(&rest, &|| true).unwrap().failed.is_empty());
        prop_assert!(t.check_many(&[request]).remove(0).faults.is_empty());
        for row in top.raidz_columns(offset, len as u64, TXG).unwrap() {
            for column in row.iter().filter(|c| c.len > 0) {
                let at = (LABEL_START + column.offset) as usize;
                let range = at..at + column.len;
                prop_assert!(after[column.child].memory.bytes()[range.clone()] == right[column.child][range]);
            }
        }
    }

    /// Disks that were wrong before the vdev was expanded: their sectors are everywhere by now.
    #[test]
    fn what_was_wrong_before_is_found(
        nparity in 1u64..4, more in 1u64..6, len in 1usize..20_000, seed: u64, first in 0u64..9,
    ) {
        let (old, new, ashift) = (nparity + more, nparity + more + 1, 9);
        let (data, offset) = (bytes(len, seed), 64 << ashift);
        let disks = leaves(new as usize, SIZE);
        write(&with(&disks, nparity, ashift, moving(new, Reflow::default())), offset, &data, TXG);
        for disk in 0..nparity {
            let disk = (first + disk) % old;
            disks[disk as usize].memory.bytes()[LABEL_START as usize..].iter_mut().for_each(|b| *b ^= 0x55);
        }
        let rows = (SIZE as u64 >> ashift) - 8;
        let after = moved(&disks, ashift, rows * old);
        let t = with(&after, nparity, ashift, Widths { physical: new, grown: vec![TXG + 1], reflow: None });
        let faults = read(&t, offset, &data, TXG);
        prop_assert_eq!(t.heal(TXG, &faults, &|| true), faults.len());
        prop_assert!(read(&t, offset, &data, TXG).is_empty());
    }

    /// What is written while sectors move is there whichever uberblock a crash leaves.
    #[test]
    fn what_is_written_meanwhile_is_at_both_places(
        nparity in 1u64..4, more in 1u64..6, four_k: bool, len in 1usize..30_000, seed: u64,
        start in 0u64..300, done in 0u64..200, ahead in 0u64..60,
    ) {
        let ashift = if four_k { 12 } else { 9 };
        let new = nparity + more + 1;
        let (data, offset) = (bytes(len, seed), start << ashift);
        let synced = 2 * new * new + done;
        // No further than to where rows begin that are read at their old places.
        let next = synced + ahead.min(synced / (new - 1) - (new - 1));
        let state = |synced: u64, next: u64| {
            let (synced, next) = (synced << ashift, next << ashift);
            moving(new, Reflow { synced, next, to_new: true, ..Reflow::default() })
        };
        let disks = leaves(new as usize, SIZE);
        write(&with(&disks, nparity, ashift, state(synced, next)), offset, &data, TXG);
        read(&with(&disks, nparity, ashift, state(synced, synced)), offset, &data, TXG);
        // By then the sectors between have moved: those that were written before, which here are none.
        read(&with(&disks, nparity, ashift, state(next, next)), offset, &data, TXG);
    }
}

/// A device that was away gets what it lacks at both places, so that it has it whichever uberblock a crash leaves.
#[test]
fn a_device_that_was_away_gets_copies_too() {
    let (ashift, new, synced) = (9, 4u64, 200u64);
    let next = synced + synced / 3 - 3;
    let state = |synced: u64, next: u64| {
        let (synced, next) = (synced << ashift, next << ashift);
        moving(new, Reflow { synced, next, to_new: true, ..Reflow::default() })
    };
    for start in [150, synced - 1, synced, next - 2, next + 9] {
        let (data, offset) = (bytes(9000, start), start << ashift);
        for away in 0..new as usize {
            let disks = leaves(new as usize, SIZE);
            let t = with(&disks, 1, ashift, state(synced, next));
            write(&t, offset, &data, TXG);
            disks[away].memory.bytes()[LABEL_START as usize..].fill(0xee);
            t.miss(t.leaves()[away].guid(), 0..TXG + 1).unwrap();
            let verify = |abd: &Abd| *abd.bytes() == *data;
            let size = data.len() as u64;
            let request = BlockRead { vdev: 0, offset, size, txg: TXG, verify: &verify };
            let found = t.lacking_many(&[request]).remove(0);
            let lacks: Vec<(u64, Fault)> = found.faults.into_iter().map(|f| (TXG, f)).collect();
            assert!(t.repair_many(&lacks, &|| true).unwrap().failed.is_empty());
            for state in [state(synced, synced), state(next, next)] {
                let t = with(&disks, 1, ashift, state);
                assert!(read(&t, offset, &data, TXG).is_empty(), "{start} {away}");
            }
        }
    }
}

/// Moves a whole vdev step by step. After each step, and before what it has done is known, every block is right, with whatever
/// disks wrong, and so is it after a crash.
#[test]
fn a_vdev_is_moved_step_by_step() {
    for (nparity, old, ashift) in [(1, 3u64, 9), (2, 4, 12), (3, 5, 9), (1, 2, 12)] {
        let new = old + 1;
        let size = 6 << 20;
        let disks = leaves(new as usize, size + (1 << 20));
        let t = with(&disks, nparity, ashift, Widths::always(old));
        let top = t.top(0).unwrap().clone();
        let end = ((size as u64 >> ashift) * old) << ashift;
        let mut blocks = Vec::new();
        let mut at = 0;
        for i in 0u64.. {
            let data = bytes(1 + (i * 7919 % 100_000) as usize, i + 1);
            let asize = top.psize_to_asize(data.len() as u64, TXG);
            if at + asize > end {
                break;
            }
            write(&t, at, &data, TXG);
            blocks.push((at, data));
            at += asize;
        }
        let all = |t: &VdevTree| blocks.iter().for_each(|(at, data)| drop(read(t, *at, data, TXG)));
        all(&t);
        t.begin_reflow(&top);
        all(&t);
        let mut rewritten = 0;
        let (mut known, mut steps) = ((0, 0), 0);
        // As an import after a crash sees it.
        let reopened = |known: (u64, u64)| {
            let widths = moving(
                new,
                Reflow {
                    synced: known.1,
                    next: known.1,
                    in_scratch: known.0 == 1,
                    to_scratch: known.0 == 1,
                    to_new: known.0 != 1,
                },
            );
            with(&disks, nparity, ashift, widths)
        };
        while known.1 < end || known.0 == 1 {
            let range = t.reflow_range(&top, end).unwrap();
            assert!(range.start < range.end, "it gets on");
            t.wait_for_others(&top, &|| false).unwrap();
            t.reflow_shadow(&top, range.end, &|| false).unwrap();
            let copied = (std::slice::from_ref(&range), range.clone());
            let how = Copying { quiet: false, ends: &|| false };
            let moved = t.reflow_copy(&top, copied, how).unwrap();
            t.reflow_holds(&top, &moved).unwrap();
            let step = moved.progress;
            // What is written before the uberblock is, is there with it and without.
            let which = rewritten % blocks.len();
            let (at, data) = &blocks[which];
            rewritten += 7;
            write(&t, *at, data, TXG);
            all(&t);
            all(&reopened(known));
            all(&reopened(step));
            t.leaves().iter().for_each(|leaf| leaf.leads_to.store(TXG, SeqCst));
            t.reflow_committed(&top, step, TXG);
            known = step;
            steps += 1;
            let bad = steps % new as usize;
            disks[bad].corrupt(0x21);
            all(&t);
            disks[bad].faults.repair();
        }
        assert!(steps > 2 && known == (SCRATCH_LEFT, end));
        t.end_reflow(&top, TXG + 5);
        all(&t);
        assert_eq!(top.children().len() as u64, new);
        let data = bytes(50_000, 5);
        write(&t, 0, &data, TXG + 5);
        assert!(read(&t, 0, &data, TXG + 5).is_empty());
        assert!(top.psize_to_asize(1 << 17, TXG + 5) <= top.psize_to_asize(1 << 17, TXG + 4));
    }
}

/// How a vdev of so many devices over sectors of 512 bytes is laid out that has got to sector `synced`, and copied up to `next`.
fn at(new: u64, synced: u64, next: u64) -> Widths {
    let (synced, next) = (synced << 9, next << 9);
    moving(new, Reflow { synced, next, to_new: true, ..Reflow::default() })
}

/// Blocks are written while a device does not answer to a copy. What they have is at both places when the copy ends: the
/// other devices had answered with what was there before.
#[test]
fn nothing_waits_for_a_copy() {
    let (new, end) = (4u64, 4000 << 9);
    for hung in 0..3 {
        let disks = leaves(new as usize, SIZE);
        let before = bytes(9000, 1);
        let (synced, next) = (200, 263);
        let t = with(&disks, 1, 9, at(new, synced, synced));
        let top = t.top(0).unwrap().clone();
        write(&t, 220 << 9, &before, TXG);
        let range = t.reflow_range(&top, end).unwrap();
        assert_eq!(range, synced << 9..next << 9);
        t.reflow_shadow(&top, range.end, &|| false).unwrap();
        disks[hung].faults.set_reads_hung(true);
        let stop = AtomicBool::new(false);
        let after = bytes(9000, 2);
        let moved = std::thread::scope(|scope| {
            let copy = scope.spawn(|| {
                let ends = || stop.load(SeqCst);
                let how = Copying { quiet: false, ends: &ends };
                t.reflow_copy(&top, (std::slice::from_ref(&range), range.clone()), how)
            });
            while disks[hung].faults.waiting() == 0 {
                std::thread::yield_now();
            }
            write(&t, 220 << 9, &after, TXG + 1);
            assert!(!copy.is_finished());
            disks[hung].faults.set_reads_hung(false);
            copy.join().unwrap().unwrap()
        });
        t.reflow_holds(&top, &moved).unwrap();
        for state in [at(new, synced, synced), at(new, next, next)] {
            assert!(read(&with(&disks, 1, 9, state), 220 << 9, &after, TXG + 1).is_empty());
        }
        // It ends when it is told to, though the device does not answer.
        disks[hung].faults.set_reads_hung(true);
        stop.store(true, SeqCst);
        let ends = || stop.load(SeqCst);
        let how = Copying { quiet: false, ends: &ends };
        t.reflow_copy(&top, (std::slice::from_ref(&range), range.clone()), how).unwrap_err();
        disks[hung].faults.set_reads_hung(false);
    }
}

/// What a device has failed in the meantime is copied anew.
#[test]
fn a_device_that_failed_meanwhile_has_all_copied_anew() {
    let disks = leaves(4, SIZE);
    let t = with(&disks, 1, 9, at(4, 200, 200));
    let top = t.top(0).unwrap().clone();
    let range = t.reflow_range(&top, 4000 << 9).unwrap();
    t.reflow_shadow(&top, range.end, &|| false).unwrap();
    let copy = || {
        let how = Copying { quiet: false, ends: &|| false };
        t.reflow_copy(&top, (std::slice::from_ref(&range), range.clone()), how)
    };
    let moved = copy().unwrap();
    t.reflow_holds(&top, &moved).unwrap();
    // It lacks something, and is given it at once.
    let leaf = t.leaves()[1].clone();
    t.miss(leaf.guid(), TXG..TXG + 1).unwrap();
    t.reflow_holds(&top, &moved).unwrap_err();
    copy().unwrap_err();
    drop(t.take_missed());
    leaf.excise(&leaf.missing(), &[]);
    t.reflow_holds(&top, &moved).unwrap_err();
    let moved = copy().unwrap();
    t.reflow_holds(&top, &moved).unwrap();
    disks[2].faults.fail_flushes(1);
    copy().unwrap_err();
    t.reflow_holds(&top, &moved).unwrap_err();
}

/// What is wrong where it is read is wrong in its copy. Both are mended, also if the block has moved since it was read.
#[test]
fn what_is_wrong_is_mended_at_both_places() {
    let (new, synced, next) = (5u64, 200u64, 246u64);
    for (nparity, late) in [(1, false), (2, false), (1, true), (2, true)] {
        let disks = leaves(new as usize, SIZE);
        let data = bytes(9000, nparity);
        let offset = 210 << 9;
        write(&with(&disks, nparity, 9, at(new, synced, synced)), offset, &data, TXG);
        // The device was wrong before its sectors were copied.
        disks[1].memory.bytes()[LABEL_START as usize..].iter_mut().for_each(|b| *b ^= 0x55);
        let t = with(&disks, nparity, 9, at(new, synced, synced));
        let top = t.top(0).unwrap().clone();
        t.reflow_shadow(&top, next << 9, &|| false).unwrap();
        let how = Copying { quiet: false, ends: &|| false };
        let range = synced << 9..next << 9;
        let moved =
            t.reflow_copy(&top, (std::slice::from_ref(&range), range.clone()), how).unwrap();
        let faults = read(&t, offset, &data, TXG);
        assert!(!faults.is_empty());
        if late {
            t.leaves().iter().for_each(|leaf| leaf.leads_to.store(TXG, SeqCst));
            t.reflow_committed(&top, moved.progress, TXG);
            assert_eq!(top.reflow().unwrap().synced, range.end);
        }
        assert_eq!(t.heal(TXG, &faults, &|| true), faults.len());
        let states: &[Widths] = match late {
            true => &[at(new, next, next)],
            false => &[at(new, synced, synced), at(new, next, next)],
        };
        for state in states {
            let t = with(&disks, nparity, 9, state.clone());
            let verify = |abd: &Abd| *abd.bytes() == *data;
            let request = BlockRead { vdev: 0, offset, size: 9000, txg: TXG, verify: &verify };
            let found = t.check_many(&[request]).remove(0);
            assert!(found.block.is_ok() && found.faults.is_empty(), "{:?}", found.faults);
        }
    }
}
