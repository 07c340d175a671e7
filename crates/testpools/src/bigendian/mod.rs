//! Re-encodes a pool as a big-endian machine (SPARC, POWER, s390x) would have written it, in place.
//!
//! ```text
//! uberblock ─ meta object set ─ dnodes ─ blocks of objects …
//!                  └ datasets' object sets ─ dnodes ─ indirect blocks ─ blocks of files …
//!                                        └ intent log's chain
//! ```
//!
//! The best uberblock is the start. Every block below it is read, the blocks that it points at are turned first, then its
//! contents, as OpenZFS turns those of its type (`dmu_ot_byteswap`), and it is written where it lay. Its pointer says then
//! that it is big-endian, and has the checksum that such a machine computes. Data of files and volumes keep their bytes.
//! Datasets come before the meta object set, whose lists of blocks (deadlists) then name pointers as they became.
//!
//! A block that is packed is packed again by the same function; where it needs more room, by gzip-9. What fits by
//! neither keeps its order, as blocks do that a machine of the other order wrote: so do deduplicated blocks, and all that
//! is encrypted.
//!
//! Afterwards there is one uberblock, in the rings of all labels, and labels are sealed as such a machine does it.
//! Invariants: no block is moved or changes its size on disk; what was not reachable is as it was.
//!
//! Devices: single ones and mirrors. A pool with a checkpoint, or one being destroyed, is not turned rightly.

mod contents;
mod log;
mod pointers;
mod read;
mod stream;

pub use stream::big_endian_stream;

use crate::TestPool;
use cenote_format::blkptr::BlockPointer;
use cenote_format::checksum::{Checksum, EMBEDDED_MAGIC, EMBEDDED_SIZE, Salt, compute};
use cenote_format::dmu::{DmuType, DnodePhys};
use cenote_format::label::{
    CONFIG_OFFSET, CONFIG_SIZE, LABEL_SIZE, LABELS, RING_OFFSET, RING_SIZE, Uberblock,
    decode_config, decode_slot, label_offset, slot_size,
};
use cenote_format::{ByteOrder, Bytes, LABEL_START, abd::Abd};
use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What became of the blocks of a pool.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Turned {
    /// Blocks that are big-endian now, by the type of their object.
    pub big: BTreeMap<u8, u64>,
    /// Blocks that stay as they were, likewise.
    pub little: BTreeMap<u8, u64>,
    /// Blocks of intent logs that are big-endian now.
    pub log: u64,
}

/// Turns the pool on the files.
pub fn to_big_endian(pool: &TestPool) -> Turned {
    let files: Vec<_> = pool.files.iter().filter_map(|f| Device::open(f)).collect();
    let mut turner = Turner::new(files);
    turner.run();
    turner.turned
}

/// A device file.
struct Device {
    file: File,
    size: u64,
    /// Id of the top-level vdev that it is in, and what its sectors are the power of.
    top: u32,
    ashift: u32,
}

impl Device {
    /// `None`: it is of no pool.
    fn open(path: &Path) -> Option<Device> {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let size = file.metadata().unwrap().len();
        let mut config = vec![0; CONFIG_SIZE];
        file.read_exact_at(&mut config, CONFIG_OFFSET).unwrap();
        let config = decode_config(&config, CONFIG_OFFSET).unwrap()?;
        let top = config.list("vdev_tree").unwrap();
        let kind = top.str("type").unwrap();
        assert!(["file", "disk", "mirror"].contains(&kind), "a vdev of type {kind}");
        let word = |name| u32::try_from(top.u64(name).unwrap()).unwrap();
        Some(Device { file, size, top: word("id"), ashift: word("ashift") })
    }

    fn labels(&self) -> impl Iterator<Item = u64> {
        let size = self.size;
        (0..LABELS).map(move |i| label_offset(size, i).unwrap())
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.file.read_exact_at(&mut data, at).unwrap();
        data
    }
}

/// What a block's pointer says of it since it was turned: properties and checksum.
#[derive(Clone, Copy)]
struct Now {
    props: u64,
    checksum: [u64; 4],
}

struct Turner {
    devices: Vec<Device>,
    salt: Salt,
    /// The blocks that were turned, by vdev, offset and birth.
    done: HashMap<(u32, u64, u64), Now>,
    /// What was in those of them that are not data: other object sets lead to them as well.
    before: HashMap<(u32, u64, u64), Vec<u8>>,
    turned: Turned,
}

impl Turner {
    fn new(devices: Vec<Device>) -> Turner {
        let salt = Salt::new([0; 32]);
        Turner {
            devices,
            salt,
            done: HashMap::new(),
            before: HashMap::new(),
            turned: Turned::default(),
        }
    }

    fn run(&mut self) {
        let best = self.best();
        self.find_salt(&best.rootbp);
        for dataset in self.datasets(&best.rootbp) {
            self.pointer(&dataset, &mut contents::Context::default());
        }
        let root = self.pointer(&best.rootbp, &mut contents::Context::default());
        self.devices.iter().for_each(|device| seal_labels(device, &best, &root));
    }

    fn best(&self) -> Uberblock {
        let mut all = Vec::new();
        for device in &self.devices {
            let slot = slot_size(device.ashift);
            for label in device.labels() {
                let ring = (0..RING_SIZE / slot).map(|i| label + RING_OFFSET + (i * slot) as u64);
                all.extend(ring.filter_map(|at| decode_slot(&device.read(at, slot), at).unwrap()));
            }
        }
        let best = Uberblock::best(&all).expect("an uberblock");
        assert_eq!(best.order, ByteOrder::Little, "turned before");
        best.clone()
    }

    fn find_salt(&mut self, root: &BlockPointer) {
        let objset = self.object_set(root);
        let directory = self.dnode(&objset, 1).expect("an object directory");
        let found =
            self.zap(&directory).into_iter().find(|(n, _)| n == b"org.illumos:checksum_salt");
        if let Some((_, bytes)) = found {
            let bytes: Vec<u8> = bytes.iter().map(|b| *b as u8).collect();
            self.salt = Salt::new(bytes.try_into().unwrap());
        }
    }

    /// The object sets of all datasets and snapshots.
    fn datasets(&self, root: &BlockPointer) -> Vec<BlockPointer> {
        let objset = self.object_set(root);
        let dnodes = self.dnodes(&objset);
        let of_dataset = |d: &&DnodePhys| d.bonus_kind == DmuType::DSL_DATASET;
        let pointer = |d: &DnodePhys| {
            let bonus = Bytes::new(&d.bonus, ByteOrder::Little, "dataset");
            BlockPointer::decode(&bonus, contents::DATASET_POINTER).unwrap()
        };
        dnodes.iter().filter(of_dataset).map(pointer).collect()
    }
}

/// Leaves one uberblock in the rings, which points at `root`, and seals the labels.
fn seal_labels(device: &Device, best: &Uberblock, root: &BlockPointer) {
    let slot = slot_size(device.ashift);
    for label in device.labels() {
        let mut data = device.read(label, LABEL_SIZE as usize);
        let config = &mut data[CONFIG_OFFSET as usize..][..CONFIG_SIZE];
        if decode_config(config, label + CONFIG_OFFSET).unwrap().is_some() {
            seal_at_end(Checksum::Label, config, [label + CONFIG_OFFSET, 0, 0, 0]);
        }
        let mut kept = false;
        for (i, bytes) in data[RING_OFFSET as usize..].chunks_exact_mut(slot).enumerate() {
            let at = label + RING_OFFSET + (i * slot) as u64;
            match decode_slot(bytes, at).unwrap() {
                Some(found) if found.rank() == best.rank() && !kept => {
                    kept = true;
                    bytes[UBERBLOCK_POINTER..][..128].copy_from_slice(&root.encode());
                    swap(&mut bytes[..slot - EMBEDDED_SIZE], 8);
                    seal_at_end(Checksum::Label, bytes, [at, 0, 0, 0]);
                }
                _ => bytes.fill(0),
            }
        }
        device.file.write_all_at(&data, label).unwrap();
    }
}

/// Where an uberblock has its pointer.
const UBERBLOCK_POINTER: usize = 40;

/// Reverses each `size` bytes.
fn swap(bytes: &mut [u8], size: usize) {
    bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
}

/// Puts the checksum that a big-endian machine computes into the end of a block.
fn seal_at_end(kind: Checksum, block: &mut [u8], verifier: [u64; 4]) {
    let at = block.len() - EMBEDDED_SIZE;
    seal(kind, block, at, verifier);
}

/// Puts it at `at`; all of `block` is checked.
fn seal(kind: Checksum, block: &mut [u8], at: usize, verifier: [u64; 4]) {
    let words = |words: [u64; 4]| words.map(u64::to_be_bytes).concat();
    block[at..at + 8].copy_from_slice(&EMBEDDED_MAGIC.to_be_bytes());
    block[at + 8..at + EMBEDDED_SIZE].copy_from_slice(&words(verifier));
    let function = match kind {
        Checksum::Zilog => Checksum::Fletcher2,
        Checksum::Zilog2 => Checksum::Fletcher4,
        _ => Checksum::Sha256,
    };
    let salt = Salt::new([0; 32]);
    let sum = compute(function, &Abd::copy_of(block), ByteOrder::Big, &salt).unwrap();
    block[at + 8..at + EMBEDDED_SIZE].copy_from_slice(&words(sum));
}

/// Where an offset of a top-level vdev is on its devices.
fn place(offset: u64) -> u64 {
    LABEL_START + offset
}
