//! The write pipeline: batches of blocks of 128 KiB, to files and to memory.
//!
//! `cargo bench -p cenote-store --bench write [-- DIRECTORY]`: the directory of the files is best one
//! on tmpfs (`/dev/shm`, which is what is taken if there is no other).
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_format::LABEL_START;
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::compress::Compression;
use cenote_format::dmu::DmuType;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_store::alloc::{
    Allocator, Class, Extent, LoadMetaslab, Loaded, Loading, MetaslabInfo, Options, VdevInfo,
};
use cenote_store::write::{WriteProps, WriteRequest, Writer};
use cenote_store::{Bookmark, Store};
use cenote_vdev::inject::MemDevice;
use cenote_vdev::{Device, VdevTree, label_init, open_device_rw};

const BLOCK: usize = 128 << 10;
/// Bytes of a batch: what one object hands over at a time.
const BATCH: usize = 32 << 20;
const TOTAL: usize = 2 << 30;
/// Bytes of a device for data.
const SIZE: u64 = 1 << 30;
const MS_SHIFT: u32 = 26;

struct Empty;

/// What is written, and how.
#[derive(Clone, Copy)]
struct Contents {
    name: &'static str,
    compression: Compression,
    compressible: bool,
}

impl LoadMetaslab for Empty {
    fn load(&self, _: u64, _: u64, extent: Extent) -> Result<Loaded, String> {
        let free = Loading::new(extent, true).map_err(|e| e.to_string())?;
        Ok(Loaded { free, txg: 0 })
    }
}

fn list(pairs: Vec<(&str, NvValue)>) -> NvList {
    NvList { pairs: pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect() }
}

fn leaf(id: u64, extra: Vec<(&str, NvValue)>) -> NvList {
    let mut leaf = list(vec![
        ("type", NvValue::String("file".into())),
        ("id", NvValue::Uint64(id)),
        ("guid", NvValue::Uint64(100 + id)),
    ]);
    leaf.pairs.extend(list(extra).pairs);
    leaf
}

fn top(kind: &str, devices: u64) -> NvList {
    let size = |n: u64| vec![("ashift", NvValue::Uint64(12)), ("asize", NvValue::Uint64(n * SIZE))];
    if kind == "file" {
        return leaf(0, size(1));
    }
    let children = (0..devices).map(|id| leaf(id, Vec::new())).collect();
    let n = if kind == "raidz" { devices } else { 1 };
    let mut top = list(size(n));
    top.pairs.extend(
        list(vec![
            ("type", NvValue::String(kind.into())),
            ("id", NvValue::Uint64(0)),
            ("guid", NvValue::Uint64(99)),
            ("nparity", NvValue::Uint64(1)),
            ("children", NvValue::NvListArray(children)),
        ])
        .pairs,
    );
    top
}

/// Gives a device a label that says that it is this leaf.
fn label(device: &dyn Device, guid: u64, top: u64) {
    let config = list(vec![
        ("state", NvValue::Uint64(0)),
        ("txg", NvValue::Uint64(4)),
        ("pool_guid", NvValue::Uint64(1)),
        ("guid", NvValue::Uint64(guid)),
        ("top_guid", NvValue::Uint64(top)),
    ]);
    label_init::init_labels(device, &config).unwrap();
}

/// User and system time of this process so far.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

fn blocks(compressible: bool) -> Vec<Abd> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut block = || {
        let mut bytes = Vec::with_capacity(BLOCK);
        while bytes.len() < BLOCK {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let word = if compressible { state & 0xff00_0000_00ff } else { state };
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        Abd::from_vec(bytes)
    };
    (0..BATCH / BLOCK).map(|_| block()).collect()
}

fn run(what: &str, kind: &str, devices: Vec<Arc<dyn Device>>, contents: Contents) {
    let Contents { compression, compressible, .. } = contents;
    let count = devices.len() as u64;
    let top_guid = if kind == "file" { 100 } else { 99 };
    for (i, device) in devices.iter().enumerate() {
        label(device.as_ref(), 100 + i as u64, top_guid);
    }
    let root = list(vec![
        ("type", NvValue::String("root".into())),
        ("guid", NvValue::Uint64(1)),
        ("children", NvValue::NvListArray(vec![top(kind, count)])),
    ]);
    let mut open = |guid: u64, _: &NvList| devices.get(guid as usize - 100).cloned();
    let tree = VdevTree::build(&root, &mut open).unwrap();
    let n = if kind == "raidz" { count } else { 1 };
    let store = Store::new(tree.clone(), 64 << 20);
    let metaslabs = vec![MetaslabInfo::default(); ((n * SIZE) >> MS_SHIFT) as usize];
    let (ms_shift, embedded_log) = (MS_SHIFT, None);
    let info = VdevInfo {
        id: 0,
        ashift: 12,
        width: n,
        ms_shift,
        line: 1,
        metaslabs,
        embedded_log,
        growing: None,
    };
    let options = Options { background: false, ..Options::default() };
    let allocator =
        Allocator::new(&[(Class::Normal, info)], store.clone(), Arc::new(Empty), options).unwrap();
    let writer = Writer::new(store.clone(), allocator.clone(), store);
    let data = blocks(compressible);
    let props =
        WriteProps { object_type: DmuType::PLAIN_FILE_CONTENTS, compression, ..Default::default() };
    let (mut txg, mut written, mut blkid) = (5, 0, 0);
    let (begun, cpu_begun) = (Instant::now(), cpu());
    let mut old: Vec<BlockPointer> = Vec::new();
    while written < TOTAL {
        let request = |data: &Abd| {
            blkid += 1;
            let at = Bookmark { objset: 54, object: 2, level: 0, blkid };
            let (data, props) = (data.clone().into(), props.clone());
            WriteRequest { data, at, props, previous: BlockPointer::HOLE, pass: 1 }
        };
        let requests: Vec<WriteRequest> = data.iter().map(request).collect();
        let bps = writer.write_many(txg, &requests);
        old.extend(bps.into_iter().map(Result::unwrap));
        written += BATCH;
        if old.len() * BLOCK >= 256 << 20 {
            let at = Bookmark { objset: 0, object: 0, level: 0, blkid: 0 };
            old.drain(..).for_each(|bp| writer.free(txg, &bp, at).unwrap());
            allocator.take_changes(txg);
            allocator.sync_done(txg);
            txg += 1;
        }
    }
    let (wall, cpu) = (begun.elapsed(), cpu() - cpu_begun);
    let gib = written as f64 / (1u64 << 30) as f64;
    println!(
        "{what:32} {:6.2} GiB/s, {:5.3} CPU s/GiB",
        gib / wall.as_secs_f64(),
        cpu.as_secs_f64() / gib
    );
}

fn memory(count: usize) -> Vec<Arc<dyn Device>> {
    let size = (LABEL_START + SIZE + (1 << 20)) as usize;
    let device = |i| MemDevice::new(format!("memory {i}"), vec![0; size]) as Arc<dyn Device>;
    (0..count).map(device).collect()
}

fn files(dir: &Path, count: usize) -> Vec<Arc<dyn Device>> {
    let file = |i| {
        let path = dir.join(format!("device {i}"));
        std::fs::File::create(&path).unwrap().set_len(LABEL_START + SIZE + (1 << 20)).unwrap();
        open_device_rw(&path).unwrap()
    };
    (0..count).map(file).collect()
}

fn main() {
    let given = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let dir = tempfile::tempdir_in(given.unwrap_or("/dev/shm".into())).unwrap();
    let contents = [
        Contents { name: "as it is", compression: Compression::Off, compressible: false },
        Contents { name: "lz4, random", compression: Compression::Lz4, compressible: false },
        Contents { name: "lz4", compression: Compression::Lz4, compressible: true },
    ];
    for contents in contents {
        let name = contents.name;
        run(&format!("memory, {name}"), "file", memory(1), contents);
        run(&format!("file, {name}"), "file", files(dir.path(), 1), contents);
        run(&format!("mirror of files, {name}"), "mirror", files(dir.path(), 2), contents);
        run(&format!("raidz of files, {name}"), "raidz", files(dir.path(), 4), contents);
    }
}
