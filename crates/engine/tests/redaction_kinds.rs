//! Redaction of volumes, of encrypted file systems and of files that wait to be deleted; and the power that goes while a list is made. Lists have
//! exactly what was changed, a redacted stream is received with holes there, and OpenZFS's `zdb` judges the pool.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod receiver;
mod rig;

use cenote_dsl::crypt::KeyFormat;
use cenote_dsl::send::SendOptions;
use cenote_dsl::write::crypt::RootKey;
use cenote_engine::change::receive::NewReceive;
use cenote_engine::change::{
    Kind, NewClone, NewDataset, NewEncryption, NewRedaction, NewSnapshot, RedactRefused,
};
use cenote_engine::{Engine, Holder};
use cenote_format::crypt::{Suite, WrappingKey};
use cenote_zpl::{FileSystem, Settings, Volume};
use receiver::{find, receive};
use rig::{Rig, changes};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of a block.
const BLOCK: usize = 16 << 10;
/// The object that has the data of a volume.
const DATA: u64 = 1;

fn snapshot(engine: &Arc<Engine>, name: &str) {
    let new = NewSnapshot { names: vec![name.into()], props: Vec::new() };
    changes(engine).snapshot(&new).unwrap();
}

fn clone(engine: &Arc<Engine>, origin: &str, name: &str) {
    let new = NewClone { origin: origin.into(), name: name.into(), props: Vec::new() };
    changes(engine).clone_snapshot(&new).unwrap();
}

fn redact_while(
    engine: &Arc<Engine>,
    (of, mark): (&str, &str),
    by: &[&str],
    meanwhile: &dyn Fn() -> bool,
) -> Result<(), RedactRefused> {
    let by = by.iter().map(|name| (*name).to_string()).collect();
    let new = NewRedaction { snapshot: of.into(), bookmark: mark.into(), by };
    changes(engine).redact(&new, &Holder::Reader("test".into()), meanwhile)
}

/// The blocks of a list, by object and number.
fn listed(engine: &Engine, mark: &str) -> BTreeSet<(u64, u64)> {
    let (pool, list) = (engine.pool(), find(engine, mark).bookmark.unwrap().redaction);
    assert!(pool.dsl().redaction_list(list).unwrap().is_complete(), "{mark}");
    let mut entries = pool.dsl().redaction_entries(list, None).unwrap();
    let mut all = BTreeSet::new();
    while let Some(entry) = entries.read_next().unwrap() {
        all.extend((entry.first..entry.end()).map(|blkid| (entry.object, blkid)));
    }
    all
}

/// Receives `of` without what the list of `mark` has.
fn received(engine: &Arc<Engine>, of: &str, mark: &str, to: &str) {
    let redact = Some(find(engine, mark).bookmark.unwrap().redaction);
    let options = SendOptions { pool_has_lz4: true, redact, ..SendOptions::default() };
    let mut stream = Vec::new();
    engine.pool().dsl().send(&find(engine, of), None, options, &mut stream).unwrap();
    receive(engine, &NewReceive { to: to.into(), ..NewReceive::default() }, &stream).unwrap();
    assert!(engine.pool().dsl().redacted_by(&find(engine, to)).unwrap().is_some(), "{to}");
}

/// What is in the blocks of an object: `None` where there is a hole.
fn blocks(engine: &Engine, name: &str, object: u64) -> Vec<Option<Vec<u8>>> {
    let set = engine.pool().dsl().open_objset(&find(engine, name)).unwrap();
    let object = set.object(object).unwrap();
    let bytes = |blkid| object.block(blkid).unwrap().map(|block| block.data.to_vec());
    (0..=object.dnode().max_block).map(bytes).collect()
}

/// `redacted` has holes where the list of `mark` has blocks, and else what `whole` has.
fn holes(engine: &Engine, (whole, redacted): (&str, &str), mark: &str, objects: &[u64]) {
    let list = listed(engine, mark);
    for object in objects {
        let (is, want) = (blocks(engine, redacted, *object), blocks(engine, whole, *object));
        for (blkid, want) in want.into_iter().enumerate() {
            let left_out = list.contains(&(*object, blkid as u64));
            let is = is.get(blkid).cloned().flatten();
            assert_eq!(is, want.filter(|_| !left_out), "block {blkid} of object {object}");
        }
    }
}

fn finish(rig: &Rig, engine: Arc<Engine>) {
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

#[test]
fn volumes_are_redacted() {
    let rig = Rig::new(256 << 20);
    let engine = rig.create("a", 12);
    let kind = Kind::Volume { size: 1 << 20, sparse: true };
    changes(&engine).create(&NewDataset { name: "tank/v".into(), kind, props: vec![] }).unwrap();
    let volume =
        |name: &str| Volume::open_live(engine.live(find(&engine, name).ds_obj).unwrap()).unwrap();
    let size = volume("tank/v").block_size() as usize;
    let count = (1 << 20) / size;
    for n in 0..count {
        volume("tank/v").write((n * size) as u64, &rig::bytes(n as u64, size)).unwrap();
    }
    snapshot(&engine, "tank/v@one");
    clone(&engine, "tank/v@one", "tank/c");
    // A block, the end of another one and the beginning of the next, and what is discarded.
    volume("tank/c").write((3 * size) as u64, &rig::bytes(99, size)).unwrap();
    volume("tank/c").write((11 * size - 10) as u64, &rig::bytes(98, 20)).unwrap();
    volume("tank/c").discard((20 * size) as u64, 2 * size as u64).unwrap();
    snapshot(&engine, "tank/c@x");
    redact_while(&engine, ("tank/v@one", "mark"), &["tank/c@x"], &|| false).unwrap();
    let changed = [3, 10, 11, 20, 21].map(|blkid| (DATA, blkid));
    assert_eq!(listed(&engine, "tank/v#mark"), BTreeSet::from(changed));
    received(&engine, "tank/v@one", "tank/v#mark", "tank/copy@one");
    holes(&engine, ("tank/v@one", "tank/copy@one"), "tank/v#mark", &[DATA]);
    for name in ["tank/v", "tank/c"] {
        engine.close(find(&engine, name).ds_obj).unwrap();
    }
    finish(&rig, engine);
}

fn open(engine: &Engine, name: &str) -> Arc<FileSystem> {
    let live = engine.live(find(engine, name).ds_obj).unwrap();
    let settings = Settings { record_size: BLOCK as u64, ..Settings::default() };
    FileSystem::open_live(live, settings).unwrap()
}

/// Some files of some blocks; their numbers.
fn fill(fs: &FileSystem, files: u64) -> Vec<u64> {
    let file = |n: u64| {
        let ino = fs.create(fs.root(), format!("file {n}").as_bytes(), &rig::NODE).unwrap().ino;
        fs.write(ino, 0, &rig::bytes(n, 6 * BLOCK), false).unwrap();
        ino
    };
    (0..files).map(file).collect()
}

/// A file of which a block is written anew, and one that is removed: its blocks, by the numbers of the files.
fn change(fs: &FileSystem, (written, removed): (u64, u64)) -> BTreeSet<(u64, u64)> {
    fs.write(written, 2 * BLOCK as u64, &rig::bytes(77, BLOCK), false).unwrap();
    let name = (0..)
        .map(|n| format!("file {n}"))
        .find(|name| fs.lookup(fs.root(), name.as_bytes()).is_ok_and(|ino| ino == removed));
    fs.unlink(fs.root(), name.unwrap().as_bytes(), &|_| false).unwrap();
    fs.finish_freeing();
    (0..6).map(|blkid| (removed, blkid)).chain([(written, 2)]).collect()
}

/// An encrypted file system, sent as it is read.
#[test]
fn encrypted_file_systems_are_redacted() {
    let rig = Rig::new(256 << 20);
    let engine = rig.create("a", 12);
    let wrapping = Arc::new(WrappingKey::from_hex("5a".repeat(32).as_bytes()).unwrap());
    let root = RootKey { format: KeyFormat::Hex, salt: 0, iterations: 0, wrapping };
    let how = NewEncryption::Root(root, Suite::Aes256Gcm, "prompt".into());
    let new = NewDataset { name: "tank/e".into(), kind: Kind::Filesystem, props: vec![] };
    changes(&engine).create_encrypted(&new, &how).unwrap();
    let files = fill(&open(&engine, "tank/e"), 4);
    snapshot(&engine, "tank/e@one");
    clone(&engine, "tank/e@one", "tank/e/c");
    let changed = change(&open(&engine, "tank/e/c"), (files[0], files[2]));
    snapshot(&engine, "tank/e/c@x");
    redact_while(&engine, ("tank/e@one", "mark"), &["tank/e/c@x"], &|| false).unwrap();
    assert_eq!(listed(&engine, "tank/e#mark"), changed);
    // Into one that is not encrypted, and into one that is.
    for to in ["tank/copy@one", "tank/e/copy@one"] {
        received(&engine, "tank/e@one", "tank/e#mark", to);
        holes(&engine, ("tank/e@one", to), "tank/e#mark", &files);
    }
    for name in ["tank/e", "tank/e/c"] {
        engine.close(find(&engine, name).ds_obj).unwrap();
    }
    finish(&rig, engine);
}

/// A file without a name that is still open when the redaction snapshot is taken is left out as one that is gone.
#[test]
fn files_that_wait_to_be_deleted_are_redacted() {
    let rig = Rig::new(256 << 20);
    let engine = rig.create("a", 12);
    let files = fill(&open(&engine, "tank"), 4);
    snapshot(&engine, "tank@one");
    clone(&engine, "tank@one", "tank/c");
    let fs = open(&engine, "tank/c");
    fs.unlink(fs.root(), b"file 1", &|_| true).unwrap();
    snapshot(&engine, "tank/c@x");
    redact_while(&engine, ("tank@one", "mark"), &["tank/c@x"], &|| false).unwrap();
    let all = (0..6).map(|blkid| (files[1], blkid)).collect();
    assert_eq!(listed(&engine, "tank#mark"), all);
    // So it is where it waits in the snapshot that is redacted: it is sent as any other object.
    snapshot(&engine, "tank/c@y");
    fs.release(files[1]).unwrap();
    fs.finish_freeing();
    snapshot(&engine, "tank/c@z");
    redact_while(&engine, ("tank/c@y", "gone"), &["tank/c@z"], &|| false).unwrap();
    assert_eq!(listed(&engine, "tank/c#gone"), all);
    received(&engine, "tank@one", "tank#mark", "tank/copy@one");
    holes(&engine, ("tank@one", "tank/copy@one"), "tank#mark", &files);
    drop(fs);
    for name in ["tank", "tank/c"] {
        engine.close(find(&engine, name).ds_obj).unwrap();
    }
    finish(&rig, engine);
}

/// The power goes at any moment at which a list that is made may be interrupted: the bookmark is there with a list that is not
/// complete, or not at all, and the same command makes the list that would have been.
#[test]
fn the_power_goes_while_a_list_is_made() {
    let rig = Rig::new(96 << 20);
    let engine = rig.create("a", 12);
    let files = fill(&open(&engine, "tank"), 40);
    snapshot(&engine, "tank@one");
    let mut changed = BTreeSet::new();
    for name in ["tank/c1", "tank/c2"] {
        clone(&engine, "tank@one", name);
        let fs = open(&engine, name);
        changed = (0..20).flat_map(|n| change(&fs, (files[n], files[n + 20]))).collect();
        snapshot(&engine, &format!("{name}@x"));
        drop(fs);
        engine.close(find(&engine, name).ds_obj).unwrap();
    }
    engine.close(find(&engine, "tank").ds_obj).unwrap();
    let (left, asked) = (RefCell::new(Vec::new()), Cell::new(0));
    let cut = || {
        asked.set(asked.get() + 1);
        if asked.get() < 8 {
            // What is on the device after a group is what a cut before the next one leaves.
            engine.sync().unwrap();
            left.borrow_mut().push(rig.copy());
        }
        false
    };
    let by = ["tank/c1@x", "tank/c2@x"];
    redact_while(&engine, ("tank@one", "mark"), &by, &cut).unwrap();
    assert_eq!(listed(&engine, "tank#mark"), changed);
    let (mut begun, mut left) = (0, left.into_inner());
    assert!(left.len() > 2, "{}", left.len());
    for crashed in left.drain(..) {
        let engine = crashed.import();
        let found = engine.pool().dsl().find("tank#mark").unwrap();
        if let Some(mark) = found.and_then(|found| found.bookmark) {
            let list = engine.pool().dsl().redaction_list(mark.redaction).unwrap();
            assert!(!list.is_complete());
            begun += 1;
        }
        redact_while(&engine, ("tank@one", "mark"), &by, &|| false).unwrap();
        assert_eq!(listed(&engine, "tank#mark"), changed);
        finish(&crashed, engine);
    }
    assert!(begun > 0, "no list was begun");
    finish(&rig, engine);
}
