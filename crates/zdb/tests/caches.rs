//! `zdb` says what is on the devices of a pool, whatever its cache devices have.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../engine/tests/rig/mod.rs"]
mod rig;
mod support;

use cenote_format::LABEL_START;
use cenote_format::blkptr::BlockPointer;
use cenote_pool::{ImportOptions, Pool, discover};
use rig::Rig;
use rig::caches::{FILES, LEN, figures, filled, until};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

/// The pointers of the indirect blocks of all files.
fn indirect(rig: &Rig) -> Vec<BlockPointer> {
    let engine = rig.import();
    let pool = engine.pool();
    let root = pool.dsl().open_objset(&pool.dsl().root().unwrap()).unwrap();
    let fs = rig::open(&engine);
    let object = |i| fs.lookup(fs.root(), format!("file {i}").as_bytes()).unwrap();
    let pointer = |i| root.object(object(i)).unwrap().block_pointer(1, 0).unwrap();
    let all = (0..FILES).map(pointer).collect();
    drop((fs, root, pool));
    // Those that are known are on the cache device as well.
    until("what was there", || figures(&engine).counts.rebuild_success == 1);
    let all: Vec<BlockPointer> = all;
    let there = |bp: &&BlockPointer| engine.pool().store().l2arc().contains(bp);
    let all: Vec<BlockPointer> = all.iter().filter(there).cloned().collect();
    engine.export(false).unwrap();
    all
}

#[test]
fn damage_is_seen_that_a_cache_device_hides() {
    let rig = Rig::new(128 << 20);
    let engine = filled(&rig, "a cache b", 9);
    engine.export(false).unwrap();
    drop(engine);
    let pointers = indirect(&rig);
    assert!(!pointers.is_empty(), "no indirect block on the cache device");
    let disk = OpenOptions::new().write(true).open(rig.file("a")).unwrap();
    for dva in pointers.iter().flat_map(BlockPointer::dvas) {
        disk.write_all_at(&[0xa5; 512], LABEL_START + dva.offset).unwrap();
    }
    let dir = rig.path().to_str().unwrap();
    // Of every block all copies are read from the pool's devices, and of those that lead to others one, as programs read it.
    for how in ["-bcc", "-bb"] {
        let (out, err, code) = support::zdb(&["-e", "-p", dir, how, "tank"]);
        let errors = |text: &str| text.contains("error") || text.contains("zdb_blkptr_cb");
        assert!(code != 0 && (errors(&out) || errors(&err)), "{how}: {code}: {out}{err}");
    }
    // Programs that read the pool find it there.
    let found = discover(&[rig.path().to_path_buf()]);
    let options = ImportOptions { readonly: true, ..ImportOptions::default() };
    let pool = Pool::import(&found[0], &options).unwrap();
    until("what was there", || pool.store().l2arc().figures().counts.rebuild_success == 1);
    let root = pool.dsl().root().unwrap();
    let fs = cenote_zpl::FileSystem::open(pool.dsl().open_objset(&root).unwrap()).unwrap();
    rig::check(&fs, 0..FILES, LEN);
    drop((fs, root, pool));
    let options = ImportOptions { no_caches: true, ..options };
    let pool = Pool::import(&found[0], &options).unwrap();
    assert!(pool.store().l2arc().guids().is_empty());
}
