//! Blocks on dRAID over devices in memory: whatever may be lost or wrong.

use cenote_format::LABEL_START;
use cenote_format::abd::Abd;
use proptest::prelude::*;

use super::ROW_HEIGHT;
use crate::raidz::reflow::Widths;
use crate::testing::{self, Leaf, leaves, tree};
use crate::traffic::Content;
use crate::write::BlockWrite;
use crate::{BlockRead, Checked, Fault, Outcome, VdevError, VdevTree};

const TXG: u64 = 10;

/// A vdev of so many (data, parity, spares, children), with room for two rows.
fn rig(
    (ndata, nparity, nspares, children): (u64, u64, u64, usize),
    ashift: u32,
) -> (VdevTree, Vec<Leaf>) {
    let disks = leaves(children, 2 * ROW_HEIGHT as usize + (2 << 20));
    let top = testing::draid((ndata, nparity, nspares), ashift, testing::files(&disks));
    (tree(vec![top]), disks)
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i * 31 + i / 251 + seed) as u8 | 1).collect()
}

fn write(t: &VdevTree, offset: u64, data: &[u8]) -> Result<(), VdevError> {
    let (data, content) = (Abd::from_vec(data.to_vec()), Content::Data);
    let block = BlockWrite { vdev: 0, offset, data, txg: TXG, content, sides: Vec::new() };
    t.write_many(&[block]).remove(0)
}

fn read(t: &VdevTree, offset: u64, data: &[u8]) -> Outcome<Result<Abd, VdevError>> {
    let verify = |abd: &Abd| *abd.bytes() == *data;
    let size = data.len() as u64;
    t.read_one(&BlockRead { vdev: 0, offset, size, txg: TXG, verify: &verify })
}

fn check(t: &VdevTree, offset: u64, data: &[u8]) -> Checked {
    let verify = |abd: &Abd| *abd.bytes() == *data;
    let size = data.len() as u64;
    t.check_many(&[BlockRead { vdev: 0, offset, size, txg: TXG, verify: &verify }]).remove(0)
}

/// The offset of a block that begins `before` lines before the end of the first group, or at that line from the start.
fn place(t: &VdevTree, at_end: bool, line: u64) -> u64 {
    let top = t.top(0).unwrap();
    let group = top.draid().unwrap().width() * ROW_HEIGHT;
    if at_end { group - (line + 1) * top.line() } else { line * top.line() }
}

/// Spoils a column: the bytes of the child there.
fn spoil(disk: &Leaf, at: u64, len: usize) {
    let at = (LABEL_START + at) as usize;
    disk.memory.bytes()[at..at + len].iter_mut().for_each(|b| *b ^= 0x55);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever up to the parity is lost, wrong, or both, the block is read; in a block of two stripes each may have lost
    /// other columns.
    #[test]
    fn blocks_come_back(
        ndata in 1u64..4, nparity in 1u64..4, spare in 0u64..2, more in 0usize..2, four_k: bool,
        at_end: bool, line in 0u64..4, len in 1usize..60_000, which in any::<u16>(),
    ) {
        let children = (ndata + nparity + spare) as usize + more;
        let (t, disks) = rig((ndata, nparity, spare, children), if four_k { 12 } else { 9 });
        let (offset, data) = (place(&t, at_end, line), bytes(line, len));
        write(&t, offset, &data).unwrap();
        let clean = read(&t, offset, &data);
        prop_assert!(clean.block.is_ok() && clean.faults.is_empty());
        for shift in 0..3 {
            let picked: Vec<usize> =
                (0..children).filter(|c| which >> (c + shift) & 1 == 1).take(nparity as usize).collect();
            picked.iter().for_each(|c| disks[*c].faults.set_missing(true));
            prop_assert!(read(&t, offset, &data).block.is_ok(), "lost {picked:?}");
            disks.iter().for_each(|d| d.faults.repair());
            picked.iter().for_each(|c| disks[*c].corrupt(0x11 + *c as u8));
            prop_assert!(read(&t, offset, &data).block.is_ok(), "wrong {picked:?}");
            disks.iter().for_each(|d| d.faults.repair());
            for (i, c) in picked.iter().enumerate() {
                if i % 2 == 0 { disks[*c].faults.set_missing(true) } else { disks[*c].corrupt(3) }
            }
            prop_assert!(read(&t, offset, &data).block.is_ok(), "lost and wrong {picked:?}");
            disks.iter().for_each(|d| d.faults.repair());
        }
        let stripes = t.top(0).unwrap().stripes(&Widths::default(), (offset, len as u64), TXG).unwrap();
        let stripes: Vec<_> = stripes.into_iter().map(|row| row.columns).collect();
        for (n, stripe) in stripes.iter().enumerate() {
            for i in 0..nparity as usize {
                let column = stripe[(n * 2 + i) % stripe.len()];
                spoil(&disks[column.child], column.offset, column.len);
            }
        }
        let found = read(&t, offset, &data);
        prop_assert!(found.block.is_ok());
        t.heal(TXG, &found.faults, &|| true);
        prop_assert!(read(&t, offset, &data).faults.is_empty());
    }

    /// A scrub finds what is wrong in any column, also in parity and in the zeros behind data, and nothing else; then all is as
    /// it was.
    #[test]
    fn scrubs_find_everything(
        ndata in 1u64..5, nparity in 1u64..4, spare in 0u64..2, four_k: bool, at_end: bool,
        line in 0u64..4, len in 1usize..40_000, which in any::<u16>(), unreadable: bool,
    ) {
        let children = (ndata + nparity + spare) as usize;
        let (t, disks) = rig((ndata, nparity, spare, children), if four_k { 12 } else { 9 });
        let (offset, data) = (place(&t, at_end, line), bytes(line, len));
        write(&t, offset, &data).unwrap();
        prop_assert!(check(&t, offset, &data).faults.is_empty());
        let picked: Vec<usize> =
            (0..children).filter(|c| which >> c & 1 == 1).take(nparity as usize).collect();
        let mut spoiled = Vec::new();
        let columns = t.columns_of((0, offset, TXG), &Abd::from_vec(data.clone())).unwrap();
        for (child, at, bytes) in &columns {
            let c = child.id() as usize;
            if picked.contains(&c) {
                // The last byte may be one behind the block.
                spoil(&disks[c], at + bytes.len() as u64 - 1, 1);
                if unreadable {
                    let at = LABEL_START + at;
                    disks[c].faults.fail(at..at + bytes.len() as u64);
                }
                spoiled.push(c as u64);
            }
        }
        let found = check(&t, offset, &data);
        prop_assert!(found.block.is_ok());
        let mut wrong: Vec<u64> = found.faults.iter().map(|f| f.leaf().id()).collect();
        wrong.sort_unstable();
        spoiled.sort_unstable();
        prop_assert_eq!(wrong, spoiled);
        prop_assert!(found.faults.iter().all(|f| f.is_mismatch() != unreadable));
        let faults: Vec<(u64, Fault)> = found.faults.into_iter().map(|f| (TXG, f)).collect();
        prop_assert!(t.repair_many(&faults, &|| true).unwrap().failed.is_empty());
        disks.iter().for_each(|d| d.faults.repair());
        prop_assert!(check(&t, offset, &data).faults.is_empty());
        for (child, at, bytes) in &columns {
            let (disk, at) = (&disks[child.id() as usize], (LABEL_START + at) as usize);
            prop_assert!(disk.memory.bytes()[at..at + bytes.len()] == *bytes.bytes());
        }
    }
}

#[test]
fn a_small_block_is_read_from_where_it_is() {
    let (t, disks) = rig((4, 2, 1, 8), 12);
    write(&t, 0, &bytes(1, 4096)).unwrap();
    // All of the line is written.
    assert_eq!(disks.iter().map(|d| d.faults.writes()).sum::<u64>(), 6);
    assert!(read(&t, 0, &bytes(1, 4096)).block.is_ok());
    assert_eq!(disks.iter().map(|d| d.faults.reads()).sum::<u64>(), 1);
}

#[test]
fn what_fails_beyond_the_parity_of_a_stripe_is_an_error() {
    let (t, disks) = rig((2, 1, 0, 3), 12);
    let (offset, data) = (place(&t, true, 0), bytes(1, 40_000));
    disks[0].faults.fail_writes(0..u64::MAX);
    write(&t, offset, &data).unwrap();
    assert_eq!(
        t.take_missed(),
        [(t.leaves()[0].guid(), std::iter::once(TXG..TXG + 1).collect::<Vec<_>>())]
    );
    assert!(read(&t, offset, &data).block.is_ok());
    // What it missed it is given.
    disks[0].faults.repair();
    let verify = |abd: &Abd| *abd.bytes() == *data;
    let size = data.len() as u64;
    let lacking = t.lacking_many(&[BlockRead { vdev: 0, offset, size, txg: TXG, verify: &verify }]);
    let lacks: Vec<(u64, Fault)> =
        lacking.into_iter().flat_map(|l| l.faults).map(|f| (TXG, f)).collect();
    assert!(t.repair_many(&lacks, &|| true).unwrap().failed.is_empty());
    let given = std::slice::from_ref(&(TXG..TXG + 1)).to_vec();
    t.leaves()[0].excise(&given, &[]);
    assert!(t.leaves()[0].missing().is_empty());
    assert!(check(&t, offset, &data).faults.is_empty());
    disks[0].faults.fail_writes(0..u64::MAX);
    disks[1].faults.fail_writes(0..u64::MAX);
    assert!(matches!(write(&t, offset, &data), Err(VdevError::Write { .. })));
    // A block begins at a line.
    assert!(write(&t, 4096, &data).is_err());
    assert!(read(&t, 4096, &data).block.is_err());
}
