//! SKELETON of floor 1: devices.
use cenote_format::{abd::Abd, nvlist::NvList, label::Uberblock};
use std::{path::{Path, PathBuf}, sync::Arc};

/// One physical read. `result` is filled in by [`Device::read_batch`].
pub struct ReadReq { /// byte offset on the device
 pub offset: u64, /// bytes
 pub len: usize, /// completion
 pub result: Option<std::io::Result<Vec<u8>>> }
/// A device: submit a batch, get completions (io_uring, or preadv); also the fault injectors implement it.
pub trait Device: Send + Sync {
    /// Size in bytes.
    fn size(&self) -> u64;
    /// Path for messages.
    fn path(&self) -> &Path;
    /// Performs the reads, sets each `result`. Never panics; short read = error.
    fn read_batch(&self, reqs: &mut [ReadReq]);
}

/// What one device's labels say.
#[derive(Clone, Debug)]
pub struct DeviceLabels { /// path
 pub path: PathBuf, /// device size
 pub size: u64, /// the best label's config (highest txg), with its index
 pub config: NvList, /// which of 4 labels decoded and passed their checksum, with the config of each
 pub labels: [Option<NvList>; 4], /// all valid uberblocks: (label, slot, uberblock)
 pub uberblocks: Vec<(usize, usize, Uberblock)> }
/// Opens a file or block device (or partition) read-only.
pub fn open_device(_path: &Path) -> std::io::Result<Arc<dyn Device>> { todo!() }
/// Reads and checks the four labels. Ok(None): no ZFS label.
pub fn read_labels(_dev: &dyn Device) -> std::io::Result<Option<DeviceLabels>> { todo!() }

/// Why a vdev is as it is (`vdev_state_t` with `vdev_aux_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum VdevState { Closed, Offline, Removed, CantOpen(Aux), Faulted, Degraded, Healthy }
/// `vdev_aux_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Aux { None, OpenFailed, CorruptData, NoReplicas, BadGuidSum, TooSmall, BadLabel, VersionNewer, External, Missing }

/// Error of a vdev read.
#[derive(Debug, Clone, thiserror::Error)]
#[allow(missing_docs)]
pub enum VdevError {
    #[error("vdev {vdev} offset {offset:#x}: {why}")] Io { vdev: u64, offset: u64, why: String },
    #[error("vdev {vdev} offset {offset:#x}: checksum mismatch")] Checksum { vdev: u64, offset: u64 },
    #[error("no such vdev: {0}")] NoVdev(u64),
    #[error("{0} is not supported")] Unsupported(String),
}

/// A node of the vdev tree. Fields are public through methods; counters are atomics.
pub struct Vdev;
impl Vdev {
    /// "root", "mirror", "raidz", "file", "disk", "replacing", "spare", "hole", "missing", "indirect"...
    pub fn kind(&self) -> &str { todo!() }
    /// guid
    pub fn guid(&self) -> u64 { todo!() }
    /// id within the parent
    pub fn id(&self) -> u64 { todo!() }
    /// path of a leaf (as in config), and the path it was actually opened at
    pub fn path(&self) -> Option<&Path> { todo!() }
    /// children
    pub fn children(&self) -> &[Arc<Vdev>] { todo!() }
    /// state
    pub fn state(&self) -> VdevState { todo!() }
    /// (read, write, checksum) error counts
    pub fn errors(&self) -> (u64, u64, u64) { todo!() }
    /// (read ops, write ops, read bytes, write bytes)
    pub fn io_stats(&self) -> (u64, u64, u64, u64) { todo!() }
    /// The nvlist from the pool's config that this was built from
    pub fn config(&self) -> &NvList { todo!() }
    /// ashift
    pub fn ashift(&self) -> u32 { todo!() }
    /// asize: allocatable bytes (top-level)
    pub fn asize(&self) -> u64 { todo!() }
    /// RAID-Z parity count (0 if not RAID-Z)
    pub fn nparity(&self) -> u64 { todo!() }
    /// bytes allocated for a block of psize (RAID-Z parity/padding); `vdev_psize_to_asize`
    pub fn psize_to_asize(&self, _psize: u64) -> u64 { todo!() }
    /// OpenZFS's vs_... "raidz deflate ratio" applied: asize -> deflated bytes (`vdev_deflated_space`)
    pub fn deflate(&self, _asize: u64) -> u64 { todo!() }
}

/// Says whether bytes read are the block that was asked for.
pub type Verify<'a> = &'a (dyn Fn(&Abd) -> bool + Sync);

/// One (offset, size, new top-level vdev, new offset) piece of a removed vdev's mapping.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Remap { pub vdev: u64, pub offset: u64, pub size: u64 }
/// The mapping of an indirect vdev, supplied by `pool` once the MOS is readable.
pub trait IndirectMap: Send + Sync {
    /// Pieces that cover `offset..offset+size`, in order.
    fn remap(&self, offset: u64, size: u64) -> Option<Vec<Remap>>;
}

/// The assembled tree.
pub struct VdevTree;
impl VdevTree {
    /// Builds from the pool's vdev_tree nvlist; `open` finds a device by leaf guid (and config), None if missing.
    /// Rejects draid, raidz being expanded, unknown types by name.
    pub fn build(_config: &NvList, _open: &mut dyn FnMut(u64, &NvList) -> Option<Arc<dyn Device>>) -> Result<Arc<VdevTree>, VdevError> { todo!() }
    /// The root vdev.
    pub fn root(&self) -> &Arc<Vdev> { todo!() }
    /// Reads `size` bytes (a block's psize) at `offset` (DVA offset) of top-level vdev `vdev`, from whichever copies pass
    /// `verify`: mirrors try each side (and count CKSUM errors of those that are wrong), RAID-Z reconstructs: known-bad
    /// columns first, then combinations. DTL-stale members (config `DTL`, offline) are not trusted first.
    pub fn read(&self, _vdev: u64, _offset: u64, _size: u64, _txg: u64, _verify: Verify<'_>) -> Result<Abd, VdevError> { todo!() }
    /// Batch of reads: many blocks at once, aggregated per device.
    pub fn read_many(&self, _reqs: &[BlockRead<'_>]) -> Vec<Result<Abd, VdevError>> { todo!() }
    /// Installs the mapping of an indirect top-level vdev.
    pub fn set_indirect(&self, _vdev: u64, _map: Box<dyn IndirectMap>) -> Result<(), VdevError> { todo!() }
    /// Reads raw bytes from one leaf without verification (`zdb -R` with a child path).
    pub fn read_raw(&self, _vdev: u64, _offset: u64, _size: u64) -> Result<Abd, VdevError> { todo!() }
}
/// One block of a batch.
#[allow(missing_docs)]
pub struct BlockRead<'a> { pub vdev: u64, pub offset: u64, pub size: u64, pub txg: u64, pub verify: Verify<'a> }
