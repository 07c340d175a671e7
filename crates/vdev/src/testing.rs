//! Small trees over devices in memory, for the unit tests of this crate.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cenote_format::LABEL_START;
use cenote_format::abd::Abd;
use cenote_format::nvlist::NvList;

use crate::device::Device;
use crate::draid;
use crate::dtl::Dtl;
use crate::inject::{FaultyDevice, MemDevice};
use crate::raidz::math;
use crate::raidz::reflow::Widths;
use crate::state::VdevState;
use crate::vdev::{Kind, Live, Opened, Vdev};
use crate::{VdevError, VdevTree};

/// A leaf with room for `size` bytes of data.
pub(crate) struct Leaf {
    pub memory: Arc<MemDevice>,
    pub faults: Arc<FaultyDevice>,
}

impl Leaf {
    pub(crate) fn new(size: usize) -> Leaf {
        let memory = MemDevice::new("memory", vec![0; LABEL_START as usize + size]);
        let faults = FaultyDevice::new(memory.clone());
        Leaf { memory, faults }
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let at = (LABEL_START + offset) as usize;
        self.memory.bytes()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The data of the device read as they are XOR `mask` from now on.
    pub(crate) fn corrupt(&self, mask: u8) {
        self.faults.corrupt(LABEL_START..u64::MAX, mask);
    }
}

pub(crate) fn leaves(n: usize, size: usize) -> Vec<Leaf> {
    (0..n).map(|_| Leaf::new(size)).collect()
}

/// What of a vdev may differ between tests.
pub(crate) struct Shape {
    pub kind: Kind,
    pub nparity: u64,
    pub ashift: u32,
    pub state: VdevState,
}

pub(crate) fn vdev(
    shape: Shape,
    id: u64,
    children: Vec<Arc<Vdev>>,
    leaf: Option<&Leaf>,
) -> Arc<Vdev> {
    vdev_on(shape, id, children, leaf.map(|l| l.faults.clone() as Arc<dyn Device>))
}

fn vdev_on(
    shape: Shape,
    id: u64,
    children: Vec<Arc<Vdev>>,
    device: Option<Arc<dyn Device>>,
) -> Arc<Vdev> {
    let live = Live::new(Opened { device, state: shape.state }, Dtl::Ranges(Vec::new()));
    *live.widths.write() = Arc::new(Widths::always(children.len() as u64));
    Arc::new(Vdev {
        kind: shape.kind,
        guid: 1000 * children.len() as u64 + id,
        id,
        path: None,
        children,
        config: NvList::default(),
        ashift: shape.ashift,
        nparity: shape.nparity,
        draid: None,
        live,
        asize: AtomicU64::default(),
    })
}

fn healthy(kind: Kind, nparity: u64, ashift: u32) -> Shape {
    Shape { kind, nparity, ashift, state: VdevState::Healthy }
}

pub(crate) fn file(id: u64, leaf: &Leaf) -> Arc<Vdev> {
    vdev(healthy(Kind::File, 0, 9), id, Vec::new(), Some(leaf))
}

pub(crate) fn file_on(id: u64, device: Arc<dyn Device>) -> Arc<Vdev> {
    vdev_on(healthy(Kind::File, 0, 9), id, Vec::new(), Some(device))
}

pub(crate) fn files(leaves: &[Leaf]) -> Vec<Arc<Vdev>> {
    leaves.iter().enumerate().map(|(i, l)| file(i as u64, l)).collect()
}

pub(crate) fn mirror_like(kind: Kind, id: u64, children: Vec<Arc<Vdev>>) -> Arc<Vdev> {
    vdev(healthy(kind, 0, 9), id, children, None)
}

/// A top-level mirror with sectors of 2^`ashift` bytes.
pub(crate) fn mirror_of(ashift: u32, children: Vec<Arc<Vdev>>) -> Arc<Vdev> {
    vdev(healthy(Kind::Mirror, 0, ashift), 0, children, None)
}

pub(crate) fn raidz(nparity: u64, ashift: u32, children: Vec<Arc<Vdev>>) -> Arc<Vdev> {
    vdev(healthy(Kind::RaidZ, nparity, ashift), 0, children, None)
}

/// A dRAID vdev with `nparity` of parity and so many spares over `children`.
pub(crate) fn draid(
    (ndata, nparity, nspares): (u64, u64, u64),
    ashift: u32,
    children: Vec<Arc<Vdev>>,
) -> Arc<Vdev> {
    let shape = draid::Shape::new(ndata, nparity, nspares, children.len() as u64).unwrap();
    let mut vdev = vdev(healthy(Kind::Draid, nparity, ashift), 0, children, None);
    Arc::get_mut(&mut vdev).unwrap().draid = draid::Layout::new(shape, ashift).map(Arc::new);
    vdev
}

/// A distributed spare that is in use.
pub(crate) fn distributed_spare(number: u64) -> Arc<Vdev> {
    let spare = draid::SpareDevice::new(std::path::Path::new("spare"), number);
    let shape = healthy(Kind::DistributedSpare, 0, 9);
    let vdev = vdev_on(shape, 500 + number, Vec::new(), Some(spare.clone()));
    assert!(vdev.live.distributed.set(spare).is_ok());
    vdev
}

/// A tree of these top-level vdevs.
pub(crate) fn tree(tops: Vec<Arc<Vdev>>) -> VdevTree {
    VdevTree::with_root(vdev(healthy(Kind::Root, 0, 0), 0, tops, None))
}

/// Writes a block to a RAID-Z vdev whose children are `leaves`, with its parity. Returns for each
/// child how many of its columns hold (parity, data) of the block.
pub(crate) fn write_raidz(
    vdev: &Arc<Vdev>,
    leaves: &[Leaf],
    offset: u64,
    data: &[u8],
) -> Vec<(usize, usize)> {
    let extents = vdev.geometry().unwrap().columns(offset, data.len() as u64).unwrap();
    let nparity = vdev.nparity() as usize;
    let mut padded = data.to_vec();
    padded.resize(extents[nparity..].iter().map(|e| e.len).sum(), 0);
    let mut columns = Vec::new();
    let mut rest = &padded[..];
    for e in &extents[nparity..] {
        let (mine, after) = rest.split_at(e.len);
        columns.push(mine);
        rest = after;
    }
    let mut used = vec![(0, 0); leaves.len()];
    for (c, e) in extents.iter().enumerate() {
        if c < nparity {
            let mut parity = vec![0; e.len];
            math::parity_of(c, columns.iter().copied(), &mut parity);
            leaves[e.child].write(e.offset, &parity);
            used[e.child].0 += 1;
        } else {
            leaves[e.child].write(e.offset, columns[c - nparity]);
            used[e.child].1 += 1;
        }
    }
    used
}

/// Reads a block of top-level vdev 0 that is right if it is `data`.
pub(crate) fn read(tree: &VdevTree, offset: u64, data: &[u8]) -> Result<Abd, VdevError> {
    tree.read(0, offset, data.len() as u64, 10, &|abd| &*abd.bytes() == data)
}

/// Checksum errors of each child of top-level vdev 0.
pub(crate) fn checksum_errors(tree: &VdevTree) -> Vec<u64> {
    tree.top(0).unwrap().children().iter().map(|c| c.errors().2).collect()
}
