//! Labels that are cut short: after a crash at any point the pool opens at the previous or the new
//! uberblock, with a config that belongs to it.

use std::sync::Arc;

use cenote_format::ByteOrder;
use cenote_format::LABEL_START;
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::label::{LABEL_END, Uberblock};
use cenote_format::nvlist::{NvList, NvValue};

use crate::device::Device;
use crate::inject::{CrashDevice, FaultyDevice, MemDevice, Power};
use crate::testing;
use crate::traffic::Content;
use crate::vdev::Kind;
use crate::{
    BlockWrite, LabelState, LabelUpdate, VdevError, VdevTree, clear_labels, init_labels,
    label_owner, read_labels,
};

const SIZE: usize = (LABEL_START + LABEL_END) as usize + (1 << 20);

fn uberblock(txg: u64) -> Uberblock {
    Uberblock {
        order: ByteOrder::Little,
        version: 5000,
        txg,
        guid_sum: 1,
        timestamp: 1_700_000_000 + txg,
        rootbp: BlockPointer([txg; 16]),
        software_version: 5000,
        mmp_magic: 0,
        mmp_delay: 0,
        mmp_config: 0,
        checkpoint_txg: 0,
        raidz_reflow: 0,
    }
}

/// A config of which `name` says what it was made for.
fn config(name: &str) -> NvList {
    let pair = |n: &str, v| (n.to_string(), v);
    let tree = NvList { pairs: vec![pair("ashift", NvValue::Uint64(9))] };
    NvList {
        pairs: vec![
            pair("version", NvValue::Uint64(5000)),
            pair("name", NvValue::String(name.into())),
            pair("state", NvValue::Uint64(0)),
            pair("pool_guid", NvValue::Uint64(77)),
            pair("vdev_children", NvValue::Uint64(2)),
            pair("vdev_tree", NvValue::NvList(tree)),
        ],
    }
}

/// Two top-level vdevs: a mirror of the first two devices, and the third.
fn tree(devices: &[Arc<dyn Device>]) -> VdevTree {
    let file = |i: usize| testing::file_on(i as u64, devices[i].clone());
    let mirror = testing::mirror_like(Kind::Mirror, 0, vec![file(0), file(1)]);
    testing::tree(vec![mirror, testing::file_on(1, devices[2].clone())])
}

/// Commits `txg`; in every other one the configs change.
fn commit(tree: &VdevTree, txg: u64) -> Result<(), VdevError> {
    let configs = || [0, 1].map(|id| (id, config(&format!("as of {txg}")))).to_vec();
    let labels = if txg.is_multiple_of(2) { configs() } else { Vec::new() };
    let uberblock = uberblock(txg);
    let (uberblock_on, multihost) = (&[0, 1][..], false);
    tree.sync_labels(&LabelUpdate {
        uberblock: &uberblock,
        uberblock_on,
        labels: &labels,
        multihost,
    })
}

/// The name in the config that belongs to the uberblock of `txg`.
fn name_as_of(txg: u64) -> String {
    format!("as of {}", txg / 2 * 2)
}

/// What a pool on these devices opens at; checks that everything belongs together.
fn open(devices: &[Arc<dyn Device>]) -> u64 {
    let labels: Vec<_> = devices.iter().map(|d| read_labels(&**d).unwrap().unwrap()).collect();
    let all = labels.iter().flat_map(|l| l.uberblocks.iter().map(|(_, _, u)| u));
    let best = Uberblock::best(all).unwrap();
    assert_eq!(*best, uberblock(best.txg));
    // A device may lack the newest config as long as another one of its vdev has it.
    let newest = |of: &[usize]| {
        let configs = of.iter().filter_map(|i| labels[*i].config_as_of(best.txg));
        configs.max_by_key(|c| c.u64("txg")).unwrap().clone()
    };
    for of in [&[0, 1][..], &[2]] {
        let config = newest(of);
        assert_eq!(config.str("name"), Some(&*name_as_of(best.txg)));
        assert_eq!(config.u64("txg"), Some(best.txg / 2 * 2));
        assert_eq!(config.u64("pool_guid"), Some(77));
    }
    best.txg
}

fn as_devices<T: Device + 'static>(devices: &[Arc<T>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect()
}

/// Devices that hold txg 10, durably.
fn at_txg_10() -> Vec<Vec<u8>> {
    let devices: Vec<_> = (0..3).map(|_| MemDevice::new("memory", vec![0; SIZE])).collect();
    for d in &devices {
        init_labels(&**d, &config("new")).unwrap();
    }
    commit(&tree(&as_devices(&devices)), 10).unwrap();
    devices.iter().map(|d| d.bytes().clone()).collect()
}

fn powered(images: &[Vec<u8>], power: &Arc<Power>) -> Vec<Arc<CrashDevice>> {
    images.iter().map(|i| CrashDevice::new("memory", i.clone(), power)).collect()
}

#[test]
fn a_crash_at_any_point_of_a_commit() {
    let start = at_txg_10();
    let data = |txg: u64| Abd::from_vec(vec![txg as u8; 512]);
    let block = |txg: u64| {
        let (data, content) = (data(txg), Content::Data);
        BlockWrite { vdev: 0, offset: txg * 512, data, txg, content, sides: Vec::new() }
    };
    let run = |power: &Arc<Power>| {
        let devices = powered(&start, power);
        let tree = tree(&as_devices(&devices));
        let mut committed = 10;
        for txg in 11..=12 {
            let written = tree.write_many(&[block(txg)]).remove(0);
            match written.and_then(|()| commit(&tree, txg)) {
                Ok(()) => committed = txg,
                Err(_) => break,
            }
        }
        (devices, committed)
    };
    let power = Power::new();
    assert_eq!(run(&power).1, 12);
    let (operations, mut opened_at) = (power.operations(), std::collections::BTreeSet::new());
    assert!(operations > 50, "{operations}");
    for cut in 0..=operations {
        let power = Power::new();
        power.cut_after(cut);
        let (devices, committed) = run(&power);
        for seed in 0..8 {
            let crash =
                |(i, d): (usize, &Arc<CrashDevice>)| d.crash(cut * 1000 + seed * 10 + i as u64);
            let images: Vec<Vec<u8>> = devices.iter().enumerate().map(crash).collect();
            let after = as_devices(&powered(&images, &Power::new()));
            let txg = open(&after);
            assert!(txg == committed || txg == committed + 1, "{txg} after {committed}");
            let tree = tree(&after);
            for t in 11..=txg {
                let want = data(t).to_vec();
                tree.read(0, t * 512, 512, t, &|abd| *abd.bytes() == want[..]).unwrap();
            }
            // It goes on from there, labels of the crash notwithstanding.
            commit(&tree, 13).unwrap();
            commit(&tree, 14).unwrap();
            assert_eq!(open(&after), 14);
            opened_at.insert((committed, txg));
        }
    }
    // Every outcome was there.
    let all = [(10, 10), (10, 11), (11, 11), (11, 12), (12, 12)];
    assert_eq!(opened_at.into_iter().collect::<Vec<_>>(), all);
}

/// The config of a vdev that was made in `create_txg`.
fn config_since(create_txg: u64) -> NvList {
    let mut config = config("a vdev is added");
    let create_txg = ("create_txg".to_string(), NvValue::Uint64(create_txg));
    config.set("vdev_tree", NvValue::NvList(NvList { pairs: vec![create_txg] }));
    config
}

#[test]
fn a_label_that_counts_a_new_vdev_is_not_alone() {
    let start = at_txg_10();
    let run = |power: &Arc<Power>| {
        let devices = powered(&start, power);
        let (labels, uberblock) = ([(0, config_since(10)), (1, config_since(11))], uberblock(11));
        let update = LabelUpdate {
            uberblock: &uberblock,
            uberblock_on: &[0],
            labels: &labels,
            multihost: false,
        };
        let _ = tree(&as_devices(&devices)).sync_labels(&update);
        devices
    };
    let power = Power::new();
    run(&power);
    let (mut counted, mut is_there) = (0, 0);
    for cut in 0..=power.operations() {
        let power = Power::new();
        power.cut_after(cut);
        let devices = run(&power);
        for seed in 0..8 {
            let of_11 = |i: usize| {
                let image = devices[i].crash(cut * 1000 + seed * 10 + i as u64);
                let labels = read_labels(&*MemDevice::new("memory", image)).unwrap().unwrap();
                labels.labels.iter().flatten().any(|config| config.u64("txg") == Some(11))
            };
            let (counts, there) = (of_11(0) || of_11(1), of_11(2));
            assert!(there || !counts, "after {cut} operations, seed {seed}");
            counted += usize::from(counts);
            is_there += usize::from(there);
        }
    }
    assert!(counted > 0 && is_there > counted, "{counted} of {is_there}");
}

#[test]
fn every_label_is_written() {
    let devices: Vec<_> = at_txg_10().into_iter().map(|i| MemDevice::new("memory", i)).collect();
    for (i, d) in devices.iter().enumerate() {
        let labels = read_labels(&**d).unwrap().unwrap();
        for config in labels.labels.iter().flatten() {
            assert_eq!(config.u64("txg"), Some(10));
            let guid = if i == 2 { 1 } else { i as u64 };
            assert_eq!(config.u64("guid"), Some(guid));
        }
        assert_eq!(labels.labels.iter().flatten().count(), 4);
        let slots: Vec<_> = labels.uberblocks.iter().map(|(l, s, _)| (*l, *s)).collect();
        assert_eq!(slots, [(0, 10), (1, 10), (2, 10), (3, 10)]);
    }
}

#[test]
fn a_commit_on_failing_devices() {
    let start = at_txg_10();
    let faulty = |i: &Vec<u8>| FaultyDevice::new(MemDevice::new("memory", i.clone()));
    let devices: Vec<_> = start.iter().map(faulty).collect();
    let all = as_devices(&devices);
    let tree = tree(&all);
    // One side of the mirror is enough.
    devices[0].fail_writes(0..u64::MAX);
    commit(&tree, 12).unwrap();
    assert_eq!(open(&all), 12);
    assert!(tree.leaves()[0].errors().1 > 0);
    // A top-level vdev without a label stops it before the uberblock.
    devices[1].fail_writes(16 << 10..17 << 10);
    devices[1].fail_writes((SIZE as u64) - (512 << 10)..SIZE as u64);
    assert!(matches!(commit(&tree, 14), Err(VdevError::Label { vdev: 0, .. })));
    assert_eq!(open(&all), 12);
    // No labels change: the uberblock has room left somewhere.
    commit(&tree, 13).unwrap();
    assert_eq!(open(&all), 13);
    // Flushes that fail count as writes that fail.
    devices.iter().for_each(|d| d.set_flush_errors(true));
    assert!(matches!(commit(&tree, 15), Err(VdevError::Uberblock { txg: 15, .. })));
    devices.iter().for_each(|d| d.repair());
    commit(&tree, 15).unwrap();
    commit(&tree, 16).unwrap();
    assert_eq!(open(&all), 16);
}

#[test]
fn a_config_that_is_too_large_is_refused() {
    let devices: Vec<_> = at_txg_10().into_iter().map(|i| MemDevice::new("memory", i)).collect();
    let all = as_devices(&devices);
    let mut large = config("large");
    large.set("comment", NvValue::String("x".repeat(112 << 10)));
    let (uberblock, labels) = (uberblock(12), [(0, large.clone())]);
    let update = LabelUpdate {
        uberblock: &uberblock,
        uberblock_on: &[0],
        labels: &labels,
        multihost: false,
    };
    assert!(matches!(tree(&all).sync_labels(&update), Err(VdevError::Config { .. })));
    assert_eq!(open(&all), 10);
    assert!(init_labels(&*all[0], &large).is_err());
}

#[test]
fn a_device_comes_and_goes() {
    let dev = MemDevice::new("memory", vec![0xaa; SIZE]);
    assert!(label_owner(&*dev).unwrap().is_none());
    let mut new = config("tank");
    new.set("guid", NvValue::Uint64(5));
    new.set("txg", NvValue::Uint64(0));
    init_labels(&*dev, &new).unwrap();
    let labels = read_labels(&*dev).unwrap().unwrap();
    assert_eq!(labels.labels.iter().flatten().count(), 4);
    assert!(labels.uberblocks.is_empty());
    assert_eq!(dev.bytes()[..8 << 10], [0xaa; 8 << 10]);
    assert_eq!(dev.bytes()[8 << 10..15 << 10], [0; 7 << 10]);
    // Not part of the pool before its first transaction group.
    assert!(label_owner(&*dev).unwrap().is_none());
    new.set("txg", NvValue::Uint64(4));
    for (state, name, force) in [
        (0, LabelState::Active, true),
        (1, LabelState::Exported, true),
        (2, LabelState::Destroyed, false),
        (3, LabelState::Spare, false),
        (4, LabelState::Cache, false),
    ] {
        new.set("state", NvValue::Uint64(state));
        init_labels(&*dev, &new).unwrap();
        let owner = label_owner(&*dev).unwrap().unwrap();
        assert_eq!((owner.state, owner.needs_force(), owner.guid), (name, force, 5));
        assert_eq!((owner.pool_name.as_deref(), owner.pool_guid), (Some("tank"), Some(77)));
    }
    // A label whose checksum is wrong still shows whose the device was, and is cleared.
    dev.bytes()[(128 << 10) - 1] ^= 1;
    let data = LABEL_START as usize;
    assert_eq!(clear_labels(&*dev).unwrap(), 4);
    assert!(label_owner(&*dev).unwrap().is_none() && read_labels(&*dev).unwrap().is_none());
    assert!(dev.bytes()[16 << 10..256 << 10].iter().all(|b| *b == 0));
    assert_eq!(dev.bytes()[data..data + 513], [vec![0; 512], vec![0xaa]].concat());
    assert_eq!(clear_labels(&*dev).unwrap(), 0);
    assert!(init_labels(&*MemDevice::new("memory", vec![0; 1 << 19]), &new).is_err());
}

/// The group of the newest uberblock on a device.
fn newest(device: &dyn Device) -> u64 {
    let labels = read_labels(device).unwrap().unwrap();
    labels.uberblocks.iter().map(|(.., uberblock)| uberblock.txg).max().unwrap()
}

/// A device that fails the flush of a group lacks it, which no dirty time log knows yet: its uberblock does not go there.
#[test]
fn a_leaf_that_lost_a_group_gets_no_uberblock_of_it() {
    let memory: Vec<_> = at_txg_10().into_iter().map(|i| MemDevice::new("memory", i)).collect();
    let faulty: Vec<_> = memory.iter().map(|m| FaultyDevice::new(m.clone())).collect();
    let tree = tree(&as_devices(&faulty));
    let write = |txg: u64| {
        let (data, content) = (Abd::from_vec(vec![txg as u8; 512]), Content::Data);
        let block =
            BlockWrite { vdev: 0, offset: txg * 512, data, txg, content, sides: Vec::new() };
        tree.write_many(&[block]).remove(0).unwrap();
    };
    write(11);
    faulty[0].fail_flushes(1);
    commit(&tree, 11).unwrap();
    let of = |leaf: usize| newest(&*memory[leaf]);
    assert_eq!([of(0), of(1), of(2)], [10, 11, 11]);
    assert!(tree.has_missed());
    let (leaf, lost) = (tree.leaves()[0].guid(), 11..12);
    assert_eq!(tree.take_missed(), [(leaf, vec![lost])]);
    // It is noted in the next group.
    write(12);
    commit(&tree, 12).unwrap();
    assert_eq!([of(0), of(1), of(2)], [12; 3]);
}

/// Where all leaves have to take an uberblock one that does not is an error.
#[test]
fn an_uberblock_on_all_leaves_or_none() {
    let memory: Vec<_> = at_txg_10().into_iter().map(|i| MemDevice::new("memory", i)).collect();
    let faulty: Vec<_> = memory.iter().map(|m| FaultyDevice::new(m.clone())).collect();
    let tree = tree(&as_devices(&faulty));
    let uberblock = uberblock(11);
    let (uberblock_on, labels, multihost) = (&[0, 1][..], &[][..], false);
    let update = LabelUpdate { uberblock: &uberblock, uberblock_on, labels, multihost };
    // It takes all but uberblocks, so that it stays in use.
    let size = SIZE as u64;
    for label in (0..4).filter_map(|l| cenote_format::label::label_offset(size, l)) {
        faulty[1].fail_writes(label + (128 << 10)..label + (256 << 10));
    }
    let failed = tree.sync_labels_on_all(&update);
    assert!(matches!(failed, Err(VdevError::Uberblock { txg: 11, .. })), "{failed:?}");
    faulty[1].repair();
    tree.sync_labels_on_all(&update).unwrap();
    assert!(memory.iter().all(|device| newest(&**device) == 11));
}
