//! RAID-Z against every combination of lost and silently damaged children.

use std::sync::Arc;

use proptest::prelude::*;

use crate::testing::{self, Leaf, checksum_errors, leaves, read, tree, write_raidz};
use crate::vdev::Kind;
use crate::{BlockRead, VdevError, VdevState, VdevTree};

struct Block {
    tree: VdevTree,
    leaves: Vec<Leaf>,
    offset: u64,
    data: Vec<u8>,
    /// Columns of (parity, data) on each child.
    used: Vec<(usize, usize)>,
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed | 1;
    let next = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 24) as u8
    };
    (0..len).map(next).collect()
}

fn block(nparity: u64, width: usize, ashift: u32, sector: u64, len: usize) -> Block {
    let leaves = leaves(width, (2 << 20) + len);
    let vdev = testing::raidz(nparity, ashift, testing::files(&leaves));
    let (offset, data) = (sector << ashift, bytes(sector + len as u64, len));
    let used = write_raidz(&vdev, &leaves, offset, &data);
    Block { tree: tree(vec![vdev]), leaves, offset, data, used }
}

/// Every set of at most `max` of `n` children.
fn subsets(n: usize, max: u32) -> impl Iterator<Item = Vec<usize>> {
    let sets = (0u32..1 << n).filter(move |s| s.count_ones() <= max);
    sets.map(move |s| (0..n).filter(|i| s >> i & 1 == 1).collect())
}

impl Block {
    fn repair(&self) {
        self.leaves.iter().for_each(|l| l.faults.repair());
        self.tree.leaves().iter().for_each(|l| l.set_state(VdevState::Healthy));
    }

    fn reads_right(&self) -> bool {
        read(&self.tree, self.offset, &self.data).is_ok_and(|b| *b.bytes() == self.data)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_children_up_to_the_parity_may_be_lost_or_lie(
        nparity in 1u64..4, more in 1usize..4, four_k: bool, sector in 0u64..600,
        sectors in 1usize..40, short in 0usize..300,
    ) {
        let width = nparity as usize + more;
        let ashift = if four_k { 12 } else { 9 };
        let len = (sectors << ashift) - short;
        let b = block(nparity, width, ashift, sector, len);
        prop_assert!(b.reads_right());
        for set in subsets(width, nparity as u32) {
            // Lost.
            set.iter().for_each(|c| b.leaves[*c].faults.set_missing(true));
            prop_assert!(b.reads_right(), "lost {:?}", set);
            b.repair();
            // Silently wrong.
            let before = checksum_errors(&b.tree);
            set.iter().for_each(|c| b.leaves[*c].corrupt(0x40 + *c as u8));
            prop_assert!(b.reads_right(), "corrupt {:?}", set);
            b.repair();
            let noticed = set.iter().any(|c| b.used[*c].1 > 0);
            for (c, (was, now)) in before.iter().zip(checksum_errors(&b.tree)).enumerate() {
                let columns = b.used[c].0 + b.used[c].1;
                let want = if noticed && set.contains(&c) { columns } else { 0 };
                prop_assert_eq!(now - was, want as u64, "child {} of {:?}", c, set);
            }
            // Some lost, the others wrong.
            for (i, c) in set.iter().enumerate() {
                if i % 2 == 0 {
                    b.leaves[*c].faults.set_missing(true);
                } else {
                    b.leaves[*c].corrupt(0xff);
                }
            }
            prop_assert!(b.reads_right(), "mixed {:?}", set);
            b.repair();
        }
    }

    #[test]
    fn more_than_the_parity_is_an_error(
        nparity in 1u64..4, more in 1usize..4, sector in 0u64..600, sectors in 1usize..40,
        lost: bool,
    ) {
        let width = nparity as usize + more;
        let b = block(nparity, width, 9, sector, sectors << 9);
        for set in subsets(width, nparity as u32 + 1) {
            let hit: usize = set.iter().filter(|c| b.used[**c] != (0, 0)).count();
            if hit <= nparity as usize || !set.iter().any(|c| b.used[*c].1 > 0) {
                continue;
            }
            for c in &set {
                if lost { b.leaves[*c].faults.set_missing(true) } else { b.leaves[*c].corrupt(0x3c) }
            }
            match read(&b.tree, b.offset, &b.data) {
                Err(VdevError::Io { .. }) => prop_assert!(lost),
                Err(VdevError::Checksum { .. }) => prop_assert!(!lost),
                other => prop_assert!(false, "{other:?}"),
            }
            b.repair();
        }
    }
}

#[test]
fn a_block_of_16_mib() {
    let b = block(2, 5, 12, 7, 16 << 20);
    b.leaves[1].corrupt(1);
    b.leaves[4].faults.set_missing(true);
    assert!(b.reads_right());
    assert_eq!(checksum_errors(&b.tree), [0, 1, 0, 0, 0]);
}

#[test]
fn a_healthy_block_is_read_without_parity() {
    let b = block(1, 3, 9, 0, 4096);
    assert!(b.reads_right());
    let reads: Vec<u64> = b.leaves.iter().map(|l| l.faults.reads()).collect();
    assert_eq!(reads, [0, 1, 1]);
}

#[test]
fn a_stale_child_is_not_asked_and_not_charged() {
    let b = block(1, 3, 9, 0, 4096);
    let stale = b.tree.top(0).unwrap().children()[1].guid();
    b.tree.set_dtl(stale, vec![5..20, 30..31]).unwrap();
    b.leaves[1].corrupt(9);
    assert!(b.reads_right());
    assert_eq!(b.leaves[1].faults.reads(), 0);
    assert_eq!(checksum_errors(&b.tree), [0, 0, 0]);
    // With another child lost, the stale one is used after all, if what it has is right.
    b.leaves[2].faults.set_missing(true);
    assert!(!b.reads_right());
    b.leaves[1].faults.repair();
    assert!(b.reads_right());
}

#[test]
fn the_other_side_of_a_replacing_vdev_is_tried() {
    let disks = leaves(4, 1 << 20);
    let mut children = testing::files(&disks[..3]);
    let new = testing::file(1, &disks[3]);
    children[1] = testing::mirror_like(Kind::Replacing, 1, vec![children[1].clone(), new]);
    let vdev = testing::raidz(1, 9, children);
    let data = bytes(3, 4096);
    write_raidz(&vdev, &disks[..3], 0, &data);
    let tree: Arc<VdevTree> = Arc::new(tree(vec![vdev]));
    // Copy what the replaced disk holds to the new one, then spoil all but that.
    let copy = disks[1].memory.bytes().clone();
    *disks[3].memory.bytes() = copy;
    disks[1].corrupt(1);
    disks[2].faults.set_missing(true);
    assert!(read(&tree, 0, &data).is_ok());
}

#[test]
fn batches_of_blocks_are_read_together() {
    let disks = leaves(5, 4 << 20);
    let vdev = testing::raidz(2, 9, testing::files(&disks));
    let blocks: Vec<(u64, Vec<u8>)> =
        (0..100u64).map(|i| (i * 30 * 512, bytes(i + 1, 1 + (i as usize * 331) % 9000))).collect();
    for (offset, data) in &blocks {
        write_raidz(&vdev, &disks, *offset, data);
    }
    let tree = tree(vec![vdev]);
    disks[0].corrupt(4);
    disks[3].faults.set_missing(true);
    let verify: Vec<_> = blocks
        .iter()
        .map(|(_, d)| move |abd: &cenote_format::abd::Abd| *abd.bytes() == *d)
        .collect();
    let reqs: Vec<BlockRead<'_>> = blocks
        .iter()
        .zip(&verify)
        .map(|((offset, d), verify)| BlockRead {
            vdev: 0,
            offset: *offset,
            size: d.len() as u64,
            txg: 1,
            verify,
        })
        .collect();
    for (got, (_, want)) in tree.read_many(&reqs).into_iter().zip(&blocks) {
        assert_eq!(*got.block.unwrap().bytes(), **want);
    }
}

#[test]
fn combinations_are_complete() {
    let all = |count, n| {
        let mut out = Vec::new();
        let mut c = super::Combination::first(count, n);
        while let Some(now) = c {
            out.push(now.picks.clone());
            c = now.next();
        }
        out
    };
    assert_eq!(all(0, 3), [Vec::<usize>::new()]);
    assert_eq!(all(2, 3), [[0, 1], [0, 2], [1, 2]]);
    assert_eq!(all(3, 3), [[0, 1, 2]]);
    assert_eq!(all(3, 6).len(), 20);
    assert!(all(3, 2).is_empty());
}
