//! Labels, trees and block reads on pools made by OpenZFS, compared with what its `zdb` printed.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use cenote_format::abd::Abd;
use cenote_format::checksum::{self, Checksum, Salt};
use cenote_format::label::{self, Uberblock};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_testpools::TestPool;
use cenote_vdev::inject::FaultyDevice;
use cenote_vdev::{
    Aux, Device, DeviceLabels, VdevError, VdevState, VdevTree, open_device, read_labels,
};

/// A pool's devices behind fault injectors, with their labels.
struct Opened {
    devices: Vec<Arc<FaultyDevice>>,
    labels: Vec<DeviceLabels>,
}

fn open(pool: &TestPool) -> Opened {
    let device = |p| FaultyDevice::new(open_device(p).unwrap());
    let devices: Vec<Arc<FaultyDevice>> = pool.files.iter().map(|p| device(p)).collect();
    let mut opened = Opened { devices: Vec::new(), labels: Vec::new() };
    for device in devices {
        // A device that was taken out of its pool has no label left.
        if let Some(labels) = read_labels(&*device).unwrap() {
            opened.devices.push(device);
            opened.labels.push(labels);
        }
    }
    opened
}

fn pair(name: &str, value: NvValue) -> (String, NvValue) {
    (name.to_string(), value)
}

impl Opened {
    fn best_uberblock(&self) -> &Uberblock {
        let all = self.labels.iter().flat_map(|l| l.uberblocks.iter().map(|(_, _, u)| u));
        Uberblock::best(all).unwrap()
    }

    /// The pool's config as far as the labels know it: the top-level vdevs of each device's best
    /// label; those that no label describes are missing.
    fn config(&self) -> NvList {
        let best = self.labels.iter().max_by_key(|l| l.config.u64("txg")).unwrap();
        let count = best.config.u64("vdev_children").unwrap();
        let top = |id: u64| {
            let of_id = |l: &&DeviceLabels| {
                l.config.list("vdev_tree").is_some_and(|t| t.u64("id") == Some(id))
            };
            let labels = self.labels.iter().filter(of_id);
            let newest = labels.max_by_key(|l| l.config.u64("txg"));
            let missing = || NvList {
                pairs: vec![
                    pair("type", NvValue::String("missing".into())),
                    pair("id", NvValue::Uint64(id)),
                ],
            };
            newest.map_or_else(missing, |l| l.config.list("vdev_tree").unwrap().clone())
        };
        NvList {
            pairs: vec![
                pair("type", NvValue::String("root".into())),
                pair("guid", NvValue::Uint64(best.config.u64("pool_guid").unwrap())),
                pair("children", NvValue::NvListArray((0..count).map(top).collect())),
            ],
        }
    }

    fn tree(&self) -> Result<Arc<VdevTree>, VdevError> {
        let guids = self.labels.iter().map(|l| l.config.u64("guid").unwrap());
        let by_guid: HashMap<u64, Arc<FaultyDevice>> =
            guids.zip(self.devices.iter().cloned()).collect();
        VdevTree::build(&self.config(), &mut |guid, _| {
            by_guid.get(&guid).map(|d| d.clone() as Arc<dyn Device>)
        })
    }

    /// Reads every copy of the root block of the pool; how many copies were right.
    fn read_root_block(&self, tree: &VdevTree) -> Vec<Result<(), VdevError>> {
        let uberblock = self.best_uberblock();
        let bp = &uberblock.rootbp;
        let kind = Checksum::from_u8(bp.checksum_type()).unwrap();
        let salt = Salt::new([0; 32]);
        let verify = |abd: &Abd| {
            checksum::compute(kind, abd, bp.byte_order(), &salt).unwrap() == bp.checksum()
        };
        let read = |d: cenote_format::blkptr::Dva| {
            let vdev = u64::from(d.vdev);
            let top = tree.top(vdev).unwrap();
            assert_eq!(top.psize_to_asize(bp.psize(), bp.physical_birth()), d.asize);
            let read = tree.read(vdev, d.offset, bp.psize(), bp.physical_birth(), &verify);
            read.map(|abd| assert_eq!(abd.len() as u64, bp.psize()))
        };
        bp.dvas().map(read).collect()
    }
}

/// An nvlist as `zdb` prints it.
fn print(list: &NvList, indent: usize, out: &mut String) {
    for (name, value) in &list.pairs {
        write!(out, "{:indent$}{name}", "").unwrap();
        match value {
            NvValue::Boolean => out.push('\n'),
            NvValue::Uint64(v) => writeln!(out, ": {v}").unwrap(),
            NvValue::String(v) => writeln!(out, ": '{v}'").unwrap(),
            NvValue::NvList(l) => {
                out.push_str(":\n");
                print(l, indent + 4, out);
            }
            NvValue::Uint64Array(v) => {
                out.truncate(out.len() - indent - name.len());
                for (i, v) in v.iter().enumerate() {
                    writeln!(out, "{:indent$}{name}[{i}]: {v}", "").unwrap();
                }
            }
            NvValue::NvListArray(lists) => {
                out.truncate(out.len() - indent - name.len());
                for (i, l) in lists.iter().enumerate() {
                    writeln!(out, "{:indent$}{name}[{i}]:", "").unwrap();
                    print(l, indent + 4, out);
                }
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// The sample pools; one of them needs more than its data devices' labels tell.
fn pools() -> impl Iterator<Item = TestPool> {
    cenote_testpools::names().into_iter().map(|n| cenote_testpools::pool(&n))
}

#[test]
fn labels_are_as_zdb_prints_them() {
    for pool in pools() {
        let name = &pool.name;
        let device = open_device(&pool.files[0]).unwrap();
        let labels = read_labels(&*device).unwrap();
        let section = pool.zdb_section(" -l ");
        let Some(labels) = labels else {
            assert!(!section.contains("vdev_tree"), "{name}: zdb finds a label");
            continue;
        };
        let mut compared = 0;
        for part in section.split("------------------------------------\nLABEL ").skip(1) {
            let (number, rest) = part.split_once(' ').unwrap();
            let body = rest.split_once("------------------------------------\n").unwrap().1;
            let (body, same) = body.split_once("    labels = ").unwrap();
            let mut text = String::new();
            print(labels.labels[number.parse::<usize>().unwrap()].as_ref().unwrap(), 4, &mut text);
            assert_eq!(text, body, "{name}");
            for i in same.split_whitespace() {
                let other = labels.labels[i.parse::<usize>().unwrap()].as_ref().unwrap();
                let mut again = String::new();
                print(other, 4, &mut again);
                assert_eq!(text, again, "{name}: label {i}");
                compared += 1;
            }
        }
        assert_eq!(compared, 4, "{name}");
    }
}

#[test]
fn packing_a_label_again_gives_the_same_bytes() {
    for pool in pools() {
        let device = open_device(&pool.files[0]).unwrap();
        let Some(labels) = read_labels(&*device).unwrap() else { continue };
        let offset = label::label_offset(device.size(), 0).unwrap() + label::CONFIG_OFFSET;
        let mut req = [cenote_vdev::ReadReq::new(offset, label::CONFIG_SIZE)];
        device.read_batch(&mut req);
        let [req] = req;
        let packed = labels.labels[0].as_ref().unwrap().encode();
        assert_eq!(req.take().unwrap().bytes()[..packed.len()], packed, "{}", pool.name);
    }
}

#[test]
fn the_best_uberblock_is_zdbs() {
    for pool in pools() {
        let opened = open(&pool);
        let best = opened.best_uberblock();
        let section = pool.zdb_section(" -u ");
        let field = |name: &str| {
            let line =
                section.lines().find_map(|l| l.trim().strip_prefix(name)?.strip_prefix(" = "));
            line.unwrap().split(' ').next().unwrap().to_string()
        };
        assert_eq!(field("txg"), best.txg.to_string(), "{}", pool.name);
        assert_eq!(field("timestamp"), best.timestamp.to_string(), "{}", pool.name);
        assert_eq!(field("guid_sum"), best.guid_sum.to_string(), "{}", pool.name);
        assert_eq!(field("version"), best.version.to_string());
        assert_eq!(field("checkpoint_txg"), best.checkpoint_txg.to_string());
        assert!(best.mmp_valid() && best.mmp_interval().is_none());
        // Each of the four labels has its own copy of the ring.
        for labels in &opened.labels {
            let of_label = |i| labels.uberblocks.iter().filter(move |(l, _, _)| *l == i);
            let txgs = |i| of_label(i).map(|(_, _, u)| u.txg).max();
            assert_eq!(txgs(0), txgs(3), "{}", pool.name);
        }
    }
}

#[test]
fn root_blocks_read_from_every_vdev() {
    for pool in pools() {
        let opened = open(&pool);
        let tree = opened.tree().unwrap_or_else(|e| panic!("{}: {e}", pool.name));
        for copy in opened.read_root_block(&tree) {
            copy.unwrap_or_else(|e| panic!("{}: {e}", pool.name));
        }
        for leaf in tree.leaves() {
            assert_eq!(leaf.errors(), (0, 0, 0), "{}: {}", pool.name, leaf.id());
        }
    }
}

#[test]
fn raidz_reads_with_any_devices_lost_or_damaged() {
    for name in ["rz1", "rz2", "rz3", "dr1"] {
        let opened = open(&cenote_testpools::pool(name));
        let tree = opened.tree().unwrap();
        let (n, parity) = (opened.devices.len(), tree.top(0).unwrap().nparity());
        for set in 1u32..1 << n {
            for lost in [true, false] {
                for (i, d) in opened.devices.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1) {
                    match lost {
                        true => d.set_missing(true),
                        false => d.corrupt(4 << 20..u64::MAX, 0x11 << (i % 4)),
                    }
                }
                let copies = opened.read_root_block(&tree);
                let readable = copies.iter().filter(|c| c.is_ok()).count();
                if u64::from(set.count_ones()) <= parity {
                    assert_eq!(readable, copies.len(), "{name} {set:b} {lost}");
                }
                if set == (1 << n) - 1 {
                    assert_eq!(readable, 0);
                }
                opened.devices.iter().for_each(|d| d.repair());
            }
        }
        let errors: Vec<(u64, u64, u64)> = tree.leaves().iter().map(|l| l.errors()).collect();
        let seen = |f: fn(&(u64, u64, u64)) -> u64| errors.iter().map(f).sum::<u64>() > 0;
        assert!(seen(|e| e.0) && seen(|e| e.2), "{name}");
    }
}

#[test]
fn mirrors_read_with_one_side_left() {
    for name in ["mir3", "hole", "special"] {
        let opened = open(&cenote_testpools::pool(name));
        let tree = opened.tree().unwrap();
        for kept in 0..3 {
            for leaf in tree.leaves() {
                let path = leaf.opened_path().unwrap();
                let device = opened.devices.iter().find(|d| d.path() == path).unwrap();
                let parent_width = 3.min(opened.devices.len() as u64);
                if leaf.id() != kept % parent_width && leaf.id() != kept % 2 {
                    device.corrupt(4 << 20..u64::MAX, 1);
                }
            }
            let copies = opened.read_root_block(&tree);
            let good = copies.iter().filter(|c| c.is_ok()).count();
            assert!(good > 0, "{name}: {copies:?}");
            opened.devices.iter().for_each(|d| d.repair());
        }
    }
}

#[test]
fn states_add_up() {
    let opened = open(&cenote_testpools::pool("degr"));
    let tree = opened.tree().unwrap();
    let states = |t: &VdevTree| {
        let leaves: Vec<VdevState> = t.leaves().iter().map(|l| l.state()).collect();
        (t.root().state(), t.top(0).unwrap().state(), leaves)
    };
    use VdevState::{CantOpen, Degraded, Healthy, Offline};
    let leaves = vec![Offline, Healthy, Healthy, Healthy];
    assert_eq!(states(&tree), (Degraded, Degraded, leaves));
    // The other side of the first mirror is not there either.
    let first = tree.leaves()[1].guid();
    let config = opened.config();
    let by_guid = |guid: u64| {
        let at = opened.labels.iter().position(|l| l.config.u64("guid") == Some(guid));
        at.map(|i| opened.devices[i].clone() as Arc<dyn Device>)
    };
    let tree = VdevTree::build(&config, &mut |g, _| by_guid(g).filter(|_| g != first)).unwrap();
    let failed = CantOpen(Aux::OpenFailed);
    let no_replicas = CantOpen(Aux::NoReplicas);
    let leaves = vec![Offline, failed, Healthy, Healthy];
    assert_eq!(states(&tree), (no_replicas, no_replicas, leaves));
    // A device that belongs elsewhere: each gets the other's.
    let second = tree.leaves()[2].guid();
    let swap = |g: u64| match g {
        g if g == first => second,
        g if g == second => first,
        g => g,
    };
    let tree = VdevTree::build(&config, &mut |g, _| by_guid(swap(g))).unwrap();
    let corrupt = CantOpen(Aux::CorruptData);
    let leaves = vec![Offline, corrupt, corrupt, Healthy];
    assert_eq!(states(&tree), (no_replicas, no_replicas, leaves));
}

#[test]
fn devices_without_labels_or_too_small() {
    let pool = cenote_testpools::copy("mir3");
    let files = &pool.pool.files;
    let opened = open(&pool.pool);
    // All four labels of one side gone, another side cut short.
    let size = std::fs::metadata(&files[0]).unwrap().len();
    let wipe = |at: u64, len: usize| {
        use std::os::unix::fs::FileExt;
        let f = std::fs::OpenOptions::new().write(true).open(&files[0]).unwrap();
        f.write_all_at(&vec![0; len], at).unwrap();
    };
    wipe(0, 512 << 10);
    wipe(size - (512 << 10), 512 << 10);
    let short = std::fs::OpenOptions::new().write(true).open(&files[1]).unwrap();
    short.set_len(size / 4 * 3).unwrap();
    assert!(read_labels(&*open_device(&files[0]).unwrap()).unwrap().is_none());
    let cut = read_labels(&*open_device(&files[1]).unwrap()).unwrap().unwrap();
    let good: Vec<bool> = cut.labels.iter().map(Option::is_some).collect();
    assert_eq!(good, [true, true, false, false]);
    let tree = VdevTree::build(&opened.config(), &mut |guid, _| {
        let at = opened.labels.iter().position(|l| l.config.u64("guid") == Some(guid))?;
        open_device(&files[at]).ok()
    })
    .unwrap();
    let states: Vec<VdevState> = tree.leaves().iter().map(|l| l.state()).collect();
    let bad_label = VdevState::CantOpen(Aux::BadLabel);
    // What is only read may be cut off.
    assert_eq!(states, [bad_label, VdevState::Degraded, VdevState::Healthy]);
    assert!((16 << 20..=size / 4).contains(&tree.leaves()[1].cut_off()));
    assert_eq!(tree.root().state(), VdevState::Degraded);
    assert!(opened.read_root_block(&tree).iter().all(Result::is_ok));
}

#[test]
fn sizes_are_deflated_as_in_openzfs() {
    let opened = open(&cenote_testpools::pool("rz1"));
    let tree = opened.tree().unwrap();
    let top = tree.top(0).unwrap();
    let psize = 128 << 10;
    let asize = top.psize_to_asize(psize, 0);
    assert!(asize > psize && asize < 2 * psize);
    // By definition a block of 128 KiB deflates to its own size, less what the ratio rounds off.
    let deflated = top.deflate(asize);
    assert!(deflated <= psize && deflated > psize - (asize >> 9), "{deflated}");
    let mirror = open(&cenote_testpools::pool("mir3")).tree().unwrap();
    assert_eq!(mirror.top(0).unwrap().deflate(1 << 20), 1 << 20);
}

#[test]
fn configs_of_unsupported_shapes_are_refused_by_name() {
    let build = |edit: &dyn Fn(&mut NvList)| {
        let mut config = open(&cenote_testpools::pool("rz2")).config();
        let Some(NvValue::NvListArray(tops)) =
            config.pairs.iter_mut().find(|(n, _)| n == "children").map(|(_, v)| v)
        else {
            panic!("no children")
        };
        edit(&mut tops[0]);
        VdevTree::build(&config, &mut |_, _| None).err().map(|e| e.to_string())
    };
    let set = |name: &'static str, value: NvValue| {
        build(&move |top: &mut NvList| top.set(name, value.clone())).unwrap()
    };
    assert_eq!(build(&|_| {}), None);
    let draid = set("type", NvValue::String("draid".into()));
    assert_eq!(draid, "dRAID whose config has no \"draid_ndata\" is not supported");
    let many = NvValue::Uint64Array(vec![4, 5, 6, 7]);
    let refused = "RAID-Z with 5 children that was expanded 4 times is not supported";
    assert_eq!(set("raidz_expand_txgs", many), refused);
    let wrong = set("raidz_expand_txgs", NvValue::Uint64(4));
    assert_eq!(wrong, "RAID-Z with unreadable widths is not supported");
    assert_eq!(set("type", NvValue::String("tape".into())), "vdev type \"tape\" is not supported");
    assert_eq!(set("ashift", NvValue::Uint64(64)), "ashift 64 is not supported");
    for nparity in [0, 4, 5, u64::MAX] {
        assert!(set("nparity", NvValue::Uint64(nparity)).contains("RAID-Z with 5 children"));
    }
    assert!(set("id", NvValue::Uint64(7)).contains("vdev with id 7"));
    assert!(set("children", NvValue::NvListArray(vec![])).contains("RAID-Z with 0 children"));
}
