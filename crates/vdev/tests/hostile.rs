//! Labels and configs with random damage: an error or a sane answer, never a panic.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use cenote_format::label;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_vdev::inject::MemDevice;
use cenote_vdev::{Device, VdevTree, open_device, read_labels};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

fn config_bytes(name: &str) -> Vec<u8> {
    let device = open_device(&cenote_testpools::pool(name).files[0]).unwrap();
    let mut req = [cenote_vdev::ReadReq::new(label::CONFIG_OFFSET, 8192)];
    device.read_batch(&mut req);
    let [req] = req;
    req.take().unwrap().to_vec()
}

/// Wraps a label's `vdev_tree` as the pool's config.
fn pool_config(label: &NvList) -> NvList {
    let tree = label.list("vdev_tree").cloned().unwrap_or_default();
    let mut root = NvList::default();
    root.set("type", NvValue::String("root".into()));
    root.set("guid", NvValue::Uint64(1));
    root.set("children", NvValue::NvListArray(vec![tree]));
    root
}

/// Builds a tree from a config that may be anything, and reads from it.
fn exercise(config: &NvList) {
    let memory = MemDevice::new("memory", vec![0; 5 << 20]);
    let open = &mut |_: u64, _: &NvList| Some(memory.clone() as Arc<dyn Device>);
    let Ok(tree) = VdevTree::build(config, open) else { return };
    for offset in [0, 1 << 20, 123_456_789 << 9, u64::MAX - 4095] {
        for size in [512, 513, 131_072] {
            let _ = tree.read(0, offset, size, 5, &|_| false);
        }
    }
    for top in tree.root().children() {
        let _ = top.deflate(u64::MAX);
        let _ = top.psize_to_asize(u64::MAX, 0);
        let _ = (top.asize(), top.state(), top.io_stats());
    }
}

#[test]
fn damaged_configs() {
    let mut random = Random(42);
    for name in ["rz3", "degr", "removal", "dr1"] {
        let good = config_bytes(name);
        for _ in 0..1500 {
            let mut bytes = good.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(2048);
                bytes[at] = random.next() as u8;
            }
            if random.below(8) == 0 {
                bytes.truncate(random.below(2048));
            }
            if let Ok(list) = NvList::decode(&bytes) {
                exercise(&pool_config(&list));
            }
        }
    }
}

/// Changes numbers, strings and lists of a config at will.
fn mutate(list: &mut NvList, random: &mut Random) {
    const NUMBERS: [u64; 10] = [0, 1, 2, 3, 9, 63, 64, 255, 1 << 40, u64::MAX];
    const TYPES: [&str; 13] = [
        "root",
        "mirror",
        "raidz",
        "file",
        "disk",
        "hole",
        "missing",
        "indirect",
        "replacing",
        "spare",
        "draid",
        "dspare",
        "",
    ];
    for (name, value) in &mut list.pairs {
        match value {
            NvValue::Uint64(v) if random.below(6) == 0 => *v = NUMBERS[random.below(10)],
            NvValue::String(s) if name == "type" && random.below(6) == 0 => {
                *s = TYPES[random.below(13)].into();
            }
            NvValue::NvListArray(lists) => {
                lists.iter_mut().for_each(|l| mutate(l, random));
                match random.below(8) {
                    0 => lists.truncate(1),
                    1 => lists.extend(lists.clone()),
                    _ => {}
                }
            }
            NvValue::NvList(l) => mutate(l, random),
            _ => {}
        }
    }
}

#[test]
fn odd_configs() {
    let mut random = Random(7);
    for name in ["rz1", "mir3", "removal", "dr1"] {
        let label = NvList::decode(&config_bytes(name)).unwrap();
        for _ in 0..1500 {
            let mut config = pool_config(&label);
            mutate(&mut config, &mut random);
            config.set("type", NvValue::String("root".into()));
            exercise(&config);
        }
    }
}

#[test]
fn damaged_labels() {
    let mut random = Random(99);
    let path = &cenote_testpools::pool("compat21").files[0];
    let device = open_device(path).unwrap();
    let mut req = [cenote_vdev::ReadReq::new(0, 512 << 10)];
    device.read_batch(&mut req);
    let [req] = req;
    let mut bytes = req.take().unwrap().to_vec();
    bytes.resize(1 << 20, 0);
    let memory = MemDevice::new("memory", bytes.clone());
    let good = read_labels(&*memory).unwrap().unwrap();
    assert!(good.labels[0].is_some() && good.labels[2].is_none());
    for _ in 0..60 {
        {
            let mut damaged = memory.bytes();
            damaged.copy_from_slice(&bytes);
            for _ in 0..1 + random.below(300) {
                let at = random.below(512 << 10);
                damaged[at] ^= random.next() as u8;
            }
        }
        if let Some(labels) = read_labels(&*memory).unwrap() {
            // What passes its checksum is what was there.
            assert_eq!(labels.config, good.config);
            assert!(labels.uberblocks.iter().all(|u| good.uberblocks.contains(u)));
        }
    }
    for size in [0, 1, 4096, 256 << 10, (1 << 20) - 1] {
        let small = MemDevice::new("memory", bytes[..size].to_vec());
        assert!(read_labels(&*small).unwrap().is_none());
    }
}
