//! Errors in blocks that a record of a claimed intent log leads to.

use super::*;

/// What such a block had stays listed for as long as the log waits for its replay, also where the log that it is in is looked at.
#[test]
fn a_block_of_a_waiting_log_stays_listed() {
    let _turn = TURN.lock();
    let (rig, engine) = made(true);
    let fs = open(&engine);
    let whole = 128 << 10;
    let kind = cenote_zpl::NodeKind::File;
    let new = NewNode { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, keep_setgid: false };
    let commit = |name: &str, file: u64| {
        let ino = fs.create(fs.root(), name.as_bytes(), &new).unwrap().ino;
        fs.write(ino, 0, &bytes(file, whole), false).unwrap();
        engine.commit_objects(fs.objset().id(), &[ino]).unwrap();
    };
    // The first commit of a dataset waits for its group.
    commit("first", 76);
    commit("committed", 77);
    let crashed = rig.copy();
    drop(fs);
    engine.export(false).unwrap();
    drop((engine, rig));

    let engine = crashed.import_with(rig::replaying());
    let tank = dataset(&engine.pool(), "tank");
    // The data of the record lies in a block of its own, as it is.
    let (image, wanted) = (std::fs::read(crashed.file("a")).unwrap(), bytes(77, 512));
    let of_data = |at: &usize| image[*at..].starts_with(&wanted);
    let places: Vec<usize> = (0..image.len()).step_by(512).filter(of_data).collect();
    assert_eq!(places.len(), 1, "{places:?}");
    let disk = std::fs::OpenOptions::new().write(true).open(crashed.file("a")).unwrap();
    let turn = |bytes: &[u8]| disk.write_all_at(bytes, places[0] as u64).unwrap();
    turn(&[0x5a; 512]);
    engine.pool().store().drop_caches();
    scrub(&engine);
    for _ in 0..3 {
        // The record's file is in no dnode yet: the object set is named.
        assert_eq!(logged(&engine), [(tank, 0)]);
        engine.scrub_errors().unwrap();
        finished(&engine);
    }
    // Where it is right again the replay has the file, and the log that led there is no more.
    turn(&wanted);
    engine.pool().store().drop_caches();
    let fs = open(&engine);
    let mut data = vec![0; whole];
    let ino = fs.lookup(fs.root(), b"committed").unwrap();
    assert_eq!(fs.read(ino, 0, &mut data).unwrap(), whole);
    assert!(data == bytes(77, whole));
    drop(fs);
    engine.sync().unwrap();
    scrub(&engine);
    assert_eq!(logged(&engine), []);
    finish(&crashed, engine, true);
}
