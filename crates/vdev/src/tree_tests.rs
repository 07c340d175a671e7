//! Mirrors, stale leaves, removed vdevs and odd requests, over devices in memory.

use std::time::{Duration, Instant};

use cenote_format::nvlist::{NvList, NvValue};

use crate::state::VdevState;
use crate::testing::{self, Leaf, Shape, checksum_errors, file, leaves, read, tree};
use crate::vdev::Kind;
use crate::{BlockRead, IndirectMap, Remap, Remapped, VdevError, VdevTree};

const DATA: [u8; 1024] = [0x5a; 1024];
const LONG: Duration = Duration::from_secs(60);

/// A mirror of `n` that holds [`DATA`] at every KiB.
fn mirror(n: usize) -> (VdevTree, Vec<Leaf>) {
    let disks = leaves(n, 4 << 20);
    for d in &disks {
        d.write(0, &DATA.repeat(4 << 10));
    }
    let top = testing::mirror_like(Kind::Mirror, 0, testing::files(&disks));
    (tree(vec![top]), disks)
}

fn read_errors(t: &VdevTree) -> Vec<u64> {
    t.top(0).unwrap().children().iter().map(|c| c.errors().0).collect()
}

#[test]
fn one_good_side_suffices() {
    for good in 0..3 {
        let (t, disks) = mirror(3);
        disks[(good + 1) % 3].corrupt(1);
        disks[(good + 2) % 3].faults.set_missing(true);
        for megabyte in 0..3 {
            assert!(read(&t, megabyte << 20, &DATA).is_ok());
        }
        let (bad, gone) = (checksum_errors(&t), read_errors(&t));
        assert_eq!(bad[good] + gone[good], 0);
        assert!(bad[(good + 1) % 3] > 0 && gone[(good + 2) % 3] > 0, "{bad:?} {gone:?}");
    }
}

#[test]
fn nothing_good_left() {
    let (t, disks) = mirror(2);
    disks.iter().for_each(|d| d.corrupt(1));
    assert!(matches!(read(&t, 0, &DATA), Err(VdevError::Checksum { vdev: 0, offset: 0 })));
    assert_eq!(checksum_errors(&t), [1, 1]);
    disks.iter().for_each(|d| d.faults.set_missing(true));
    assert!(matches!(read(&t, 0, &DATA), Err(VdevError::Io { .. })));
    assert_eq!(read_errors(&t), [1, 1]);
}

/// A block that may never have been written: if it is not there, no device is blamed.
#[test]
fn what_may_not_be_there_is_no_error() {
    let raidz = testing::raidz(1, 9, testing::files(&leaves(3, 1 << 20)));
    let (mirrored, disks) = mirror(2);
    disks[0].corrupt(1);
    for (t, there) in [(tree(vec![raidz]), false), (mirrored, true)] {
        let read = |offset, want: [u8; 1024]| {
            let verify = |b: &cenote_format::abd::Abd| *b.bytes() == want[..];
            t.read_speculative(&BlockRead { vdev: 0, offset, size: 1024, txg: 1, verify: &verify })
        };
        assert_eq!((0..4).all(|i| read(i << 16, DATA).is_ok()), there);
        assert!(matches!(read(512, [1; 1024]), Err(VdevError::Checksum { .. })));
        assert!(checksum_errors(&t).iter().all(|errors| *errors == 0));
    }
}

#[test]
fn idle_sides_take_turns_by_megabyte() {
    let (t, disks) = mirror(2);
    for i in 0..64 {
        read(&t, i << 16, &DATA).unwrap();
    }
    assert_eq!((disks[0].faults.reads(), disks[1].faults.reads()), (32, 32));
    assert_eq!(t.top(0).unwrap().io_stats(), (64, 0, 64 << 10, 0));
    assert_eq!(t.root().read_latency().iter().sum::<u64>(), 64);
}

#[test]
fn stale_sides_are_asked_last() {
    let (t, disks) = mirror(3);
    let guid = |i: usize| t.top(0).unwrap().children()[i].guid();
    t.set_dtl(guid(0), vec![8..9, 10..11, 3..5]).unwrap();
    t.set_dtl(guid(1), vec![11..99, 1..10]).unwrap();
    disks[0].corrupt(1);
    for i in 0..12 {
        assert!(read(&t, i << 18, &DATA).is_ok());
    }
    assert_eq!(disks[0].faults.reads(), 0);
    assert!(disks[1].faults.reads() > 0);
    // The last resort is asked too, and is not blamed.
    disks[1].corrupt(1);
    disks[2].corrupt(1);
    disks[0].faults.repair();
    assert!(read(&t, 0, &DATA).is_ok());
    assert_eq!(checksum_errors(&t), [0, 1, 1]);
    assert!(t.set_dtl(4711, vec![]).is_err());
}

#[test]
fn an_offline_side_is_the_last_resort() {
    let disks = leaves(2, 1 << 20);
    disks.iter().for_each(|d| d.write(0, &DATA));
    let offline = Shape { kind: Kind::File, nparity: 0, ashift: 9, state: VdevState::Offline };
    let children = vec![testing::vdev(offline, 0, vec![], Some(&disks[0])), file(1, &disks[1])];
    let t = tree(vec![testing::mirror_like(Kind::Mirror, 0, children)]);
    assert!(read(&t, 0, &DATA).is_ok());
    assert_eq!(disks[0].faults.reads(), 0);
    disks[1].faults.set_missing(true);
    assert!(read(&t, 0, &DATA).is_ok());
}

#[test]
fn spares_below_a_mirror_are_copies() {
    let disks = leaves(3, 1 << 20);
    disks.iter().for_each(|d| d.write(0, &DATA));
    let spare = testing::mirror_like(Kind::Spare, 1, testing::files(&disks[1..]));
    let t = tree(vec![testing::mirror_like(Kind::Mirror, 0, vec![file(0, &disks[0]), spare])]);
    disks[0].corrupt(1);
    disks[1].faults.set_missing(true);
    assert!(read(&t, 0, &DATA).is_ok());
}

#[test]
fn odd_requests_are_errors() {
    let (t, _disks) = mirror(2);
    let ask = |vdev, offset, size| t.read(vdev, offset, size, 1, &|_| true);
    assert!(matches!(ask(1, 0, 512), Err(VdevError::NoVdev(1))));
    assert!(matches!(ask(u64::MAX, 0, 512), Err(VdevError::NoVdev(_))));
    assert!(ask(0, 0, 0).is_err());
    assert!(ask(0, 0, 16 << 20).is_err());
    assert!(ask(0, 0, (16 << 20) + 1).is_err());
    assert!(ask(0, 0, u64::MAX).is_err());
    assert!(ask(0, 4 << 20, 512).is_err());
    assert!(ask(0, u64::MAX - 511, 512).is_err());
    assert!(ask(0, u64::MAX - (4 << 20), 512).is_err());
    assert!(ask(0, (4 << 20) - 512, 512).is_ok());
}

#[test]
fn raw_reads_of_one_side() {
    let (t, disks) = mirror(2);
    disks[1].write(512, &[7; 512]);
    let leaf = t.top(0).unwrap().children()[1].guid();
    assert_eq!(*t.read_raw(leaf, 512, 512).unwrap().bytes(), [7; 512]);
    assert_eq!(t.read_raw(0, 4096, 512).unwrap().len(), 512);
    assert!(t.read_raw(987_654, 0, 512).is_err());
    assert!(t.read_raw(leaf, 0, 0).is_err());
}

#[test]
fn small_neighbours_are_read_at_once() {
    let (t, disks) = mirror(1);
    let verify = |b: &cenote_format::abd::Abd| *b.bytes() == DATA[..512];
    let ask = |offset| BlockRead { vdev: 0, offset, size: 512, txg: 1, verify: &verify };
    // Neighbours, one asked for twice, one a small gap away, one far away.
    let at = [512, 0, 1024, 512, 8192, 2 << 20];
    let reqs: Vec<BlockRead<'_>> = at.into_iter().map(ask).collect();
    assert!(t.read_many(&reqs).iter().all(|r| r.block.as_ref().is_ok_and(|b| b.len() == 512)));
    assert_eq!(disks[0].faults.reads(), 2);
}

#[test]
fn a_bad_sector_costs_only_its_block() {
    let (t, disks) = mirror(1);
    disks[0].faults.fail((4 << 20) + 1024..(4 << 20) + 1025);
    let verify = |b: &cenote_format::abd::Abd| *b.bytes() == DATA[..512];
    let ask = |i: u64| BlockRead { vdev: 0, offset: i * 512, size: 512, txg: 1, verify: &verify };
    let reqs: Vec<BlockRead<'_>> = (0..5).map(ask).collect();
    let good: Vec<bool> = t.read_many(&reqs).iter().map(|r| r.block.is_ok()).collect();
    assert_eq!(good, [true, true, false, true, true]);
    assert_eq!(read_errors(&t), [1]);
    assert_eq!(t.root().queues(), crate::QueueFigures::default());
}

#[test]
fn devices_of_a_batch_work_in_parallel() {
    let disks = leaves(6, 1 << 20);
    let t = tree(testing::files(&disks));
    disks.iter().for_each(|d| d.faults.set_hung(true));
    let verify = |_: &cenote_format::abd::Abd| true;
    let ask = |vdev| BlockRead { vdev, offset: 0, size: 512, txg: 1, verify: &verify };
    let reqs: Vec<BlockRead<'_>> = (0..6).map(ask).collect();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| t.read_many(&reqs));
        // Each device has its request while no device answers.
        let began = Instant::now();
        while disks.iter().any(|d| d.faults.waiting() == 0) && began.elapsed() < LONG {
            std::thread::yield_now();
        }
        disks.iter().for_each(|d| d.faults.set_hung(false));
        assert!(began.elapsed() < LONG);
        assert!(read.join().unwrap().iter().all(|r| r.block.is_ok()));
    });
}

/// A mapping given by a function.
struct Map<F>(F);

impl<F: Fn(u64, u64) -> Option<Vec<Remap>> + Send + Sync> IndirectMap for Map<F> {
    fn remap(&self, offset: u64, size: u64) -> Option<Vec<Remap>> {
        self.0(offset, size)
    }
}

fn removed(id: u64) -> std::sync::Arc<crate::Vdev> {
    testing::mirror_like(Kind::Indirect, id, Vec::new())
}

#[test]
fn removed_vdevs_are_followed() {
    let disks = leaves(2, 1 << 20);
    let top = testing::mirror_like(Kind::Mirror, 2, testing::files(&disks));
    let t = tree(vec![removed(0), removed(1), top]);
    let data: Vec<u8> = (0..4096).map(|i| (i / 16) as u8).collect();
    for d in &disks {
        d.write(10_240, &data[..1024]);
        d.write(20_480, &data[1024..3072]);
        d.write(0, &data[3072..]);
    }
    assert!(matches!(read(&t, 512, &data), Err(VdevError::Io { .. })));
    let to = |vdev, offset, size| Remap { vdev, offset, size };
    let first = move |o, s| (o == 512).then(|| vec![to(2, 10_240, 1024), to(1, 77, s - 1024)]);
    let second = move |o, s| (o == 77).then(|| vec![to(2, 20_480, 2048), to(2, 0, s - 2048)]);
    t.set_indirect(0, Box::new(Map(first))).unwrap();
    t.set_indirect(1, Box::new(Map(second))).unwrap();
    assert!(t.set_indirect(2, Box::new(Map(second))).is_err());
    assert_eq!(*read(&t, 512, &data).unwrap().bytes(), *data);
    assert!(read(&t, 513, &data).is_err());
    let found = t.remapped(0, 512, 4096).unwrap();
    assert_eq!(found.pieces, [to(2, 10_240, 1024), to(2, 20_480, 2048), to(2, 0, 1024)]);
    assert_eq!(found.removed, [to(0, 512, 4096), to(1, 77, 3072)]);
    let whole = Remapped { pieces: vec![to(2, 7, 9)], removed: vec![] };
    assert_eq!(t.remapped(2, 7, 9).unwrap(), whole);
    assert!(t.remapped(0, 513, 1).is_err() && t.remapped(0, 512, 0).is_err());
    // Different pieces spoiled on different sides.
    disks[0].faults.corrupt((4 << 20) + 10_240..(4 << 20) + 10_241, 1);
    disks[1].faults.corrupt((4 << 20) + 20_480..(4 << 20) + 20_500, 1);
    assert_eq!(*read(&t, 512, &data).unwrap().bytes(), *data);
    let errors: Vec<u64> = t.top(2).unwrap().children().iter().map(|c| c.errors().2).collect();
    assert_eq!(errors, [1, 1]);
    disks[1].faults.corrupt((4 << 20) + 10_240..(4 << 20) + 10_241, 2);
    assert!(matches!(read(&t, 512, &data), Err(VdevError::Checksum { vdev: 0, offset: 512 })));
}

#[test]
fn hostile_mappings_are_errors() {
    let disk = Leaf::new(1 << 20);
    let t = tree(vec![removed(0), removed(1), file(2, &disk)]);
    type Remapping = fn(u64, u64) -> Option<Vec<Remap>>;
    let circle: Remapping = |o, s| Some(vec![Remap { vdev: 0, offset: o, size: s }]);
    let nowhere: Remapping = |o, s| Some(vec![Remap { vdev: 9, offset: o, size: s }]);
    let short: Remapping = |o, s| Some(vec![Remap { vdev: 2, offset: o, size: s - 1 }]);
    let long: Remapping = |o, s| Some(vec![Remap { vdev: 2, offset: o, size: s + 1 }]);
    let empty: Remapping = |_, _| Some(vec![]);
    let none: Remapping = |_, _| None;
    let zeros: Remapping = |o, s| {
        let mut pieces = vec![Remap { vdev: 2, offset: o, size: 0 }; 1000];
        pieces.push(Remap { vdev: 2, offset: o, size: s });
        Some(pieces)
    };
    let far: Remapping = |_, s| Some(vec![Remap { vdev: 2, offset: u64::MAX, size: s }]);
    let crumbs: Remapping = |_, s| Some(vec![Remap { vdev: 2, offset: 0, size: 1 }; s as usize]);
    for f in [circle, nowhere, short, long, empty, none, zeros, far] {
        t.set_indirect(0, Box::new(Map(f))).unwrap();
        assert!(t.read(0, 0, 1024, 1, &|_| true).is_err());
    }
    t.set_indirect(0, Box::new(Map(crumbs))).unwrap();
    assert!(t.read(0, 0, 1 << 20, 1, &|_| true).is_err());
    assert!(t.read(0, 0, 1024, 1, &|_| true).is_ok());
}

fn config(kind: &str, guid: u64, more: &[(&str, u64)], children: Vec<NvList>) -> NvList {
    let mut config = NvList::default();
    config.set("type", NvValue::String(kind.into()));
    config.set("guid", NvValue::Uint64(guid));
    more.iter().for_each(|(name, n)| config.set(name, NvValue::Uint64(*n)));
    config.set("children", NvValue::NvListArray(children));
    config
}

/// A pool of a dRAID vdev with a distributed spare, which has these numbers in its config.
fn with_spare(spare: &[(&str, u64)]) -> NvList {
    let file = |guid| config("file", guid, &[], Vec::new());
    let mut spare = config("dspare", 50, spare, Vec::new());
    spare.set("path", NvValue::String("draid1-0-0".into()));
    let mut below = vec![config("spare", 20, &[], vec![file(21), spare])];
    below.extend((30..33).map(file));
    let (position, shape) = (
        |(id, child): (usize, &mut NvList)| child.set("id", NvValue::Uint64(id as u64)),
        [("nparity", 1), ("draid_ndata", 2), ("draid_nspares", 1), ("draid_ngroups", 1)],
    );
    below.iter_mut().enumerate().for_each(position);
    let top = [&shape[..], &[("id", 0), ("ashift", 9), ("asize", 1 << 30)]].concat();
    config("root", 1, &[], vec![config("draid", 7, &top, below)])
}

#[test]
fn a_spare_without_a_number_is_refused_and_is_no_device() {
    let build = |spare: &[(&str, u64)]| VdevTree::build(&with_spare(spare), &mut |_, _| None);
    let tree = build(&[("spareid", 0), ("top_guid", 7)]).unwrap();
    for (numbers, why) in [
        (&[][..], "without a number"),
        (&[("top_guid", 7)], "without a number"),
        (&[("spareid", 1), ("top_guid", 7)], "distributed spare 1 in draid1:2d:4c:1s"),
        (&[("spareid", u64::MAX), ("top_guid", 7)], "in draid1:2d:4c:1s"),
        (&[("spareid", 0), ("top_guid", 8)], "distributed spare 0 in draid1:2d:4c:1s"),
    ] {
        let refused = build(numbers).err().unwrap().to_string();
        assert!(refused.contains(why), "{refused}");
        let mut idle = config("dspare", 51, numbers, Vec::new());
        idle.set("path", NvValue::String("draid1-0-0".into()));
        assert!(tree.distributed_spare(&idle).is_none(), "{numbers:?}");
    }
    let mut idle = config("dspare", 51, &[("spareid", 0), ("top_guid", 7)], Vec::new());
    idle.set("path", NvValue::String("draid1-0-0".into()));
    assert!(tree.distributed_spare(&idle).is_some());
}

#[test]
fn a_vdev_of_more_bytes_than_a_file_can_have_is_refused() {
    for (asize, fits) in [(i64::MAX as u64, true), (1 << 63, false), (u64::MAX, false)] {
        let numbers = [("id", 0), ("ashift", 9), ("asize", asize)];
        let root = config("root", 1, &[], vec![config("file", 7, &numbers, Vec::new())]);
        let built = VdevTree::build(&root, &mut |_, _| None);
        assert_eq!(built.is_ok(), fits, "{asize}");
    }
}
