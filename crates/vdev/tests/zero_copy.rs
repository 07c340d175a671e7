//! Writing copies no payload. A test program of its own, since copies are counted for the process.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use cenote_format::abd::{Abd, AbdMut, copies};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_vdev::traffic::Content;
use cenote_vdev::{BlockWrite, VdevTree, init_labels, open_device_rw};

fn list(pairs: &[(&str, NvValue)]) -> NvList {
    NvList { pairs: pairs.iter().map(|(n, v)| (n.to_string(), v.clone())).collect() }
}

#[test]
fn blocks_go_from_their_buffers_to_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let number = NvValue::Uint64;
    let text = |s: &str| NvValue::String(s.into());
    let files: Vec<PathBuf> = (0..3).map(|i| dir.path().join(format!("{i}.img"))).collect();
    let leaf =
        |i: u64| list(&[("type", text("file")), ("id", number(i)), ("guid", number(10 + i))]);
    let top = list(&[
        ("type", text("raidz")),
        ("id", number(0)),
        ("guid", number(2)),
        ("nparity", number(1)),
        ("ashift", number(12)),
        ("children", NvValue::NvListArray((0..3).map(leaf).collect())),
    ]);
    for (i, file) in files.iter().enumerate() {
        std::fs::File::create(file).unwrap().set_len(64 << 20).unwrap();
        let label = list(&[
            ("state", number(0)),
            ("pool_guid", number(1)),
            ("top_guid", number(2)),
            ("guid", number(10 + i as u64)),
            ("txg", number(0)),
            ("vdev_tree", NvValue::NvList(top.clone())),
        ]);
        init_labels(&*open_device_rw(file).unwrap(), &label).unwrap();
    }
    let root = list(&[
        ("type", text("root")),
        ("guid", number(1)),
        ("children", NvValue::NvListArray(vec![top])),
    ]);
    let open = &mut |guid: u64, _: &NvList| open_device_rw(&files[guid as usize - 10]).ok();
    let tree = VdevTree::build(&root, open).unwrap();
    // Linear, in chunks, and several pieces as one; some end within a sector.
    let scattered = |len| AbdMut::scatter(len).freeze();
    let kinds = [
        Abd::from_vec(vec![1; 128 << 10]),
        scattered(128 << 10),
        Abd::gang(vec![scattered(5000), Abd::from_vec(vec![2; 70_001])]),
    ];
    let asize = tree.top(0).unwrap().psize_to_asize(128 << 10, 0);
    let block = |i: usize| BlockWrite {
        vdev: 0,
        offset: i as u64 * asize,
        data: kinds[i % 3].clone(),
        txg: 5,
        content: Content::Data,
        sides: Vec::new(),
    };
    let blocks: Vec<BlockWrite> = (0..30).map(block).collect();
    let before = copies();
    assert!(tree.write_many(&blocks).iter().all(Result::is_ok));
    assert_eq!(copies().since(&before).bytes, 0);
    tree.flush_all().unwrap();
    for block in &blocks {
        let (want, size) = (block.data.to_vec(), block.data.len() as u64);
        tree.read(0, block.offset, size, 5, &|abd| *abd.bytes() == want[..]).unwrap();
    }
}
