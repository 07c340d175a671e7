//! A pool that is frozen goes on in memory; the next import finds what was committed since in the logs.

use crate::records::{begun, images, new};
use crate::{recover, world};
use cenote_torture::live::lab::{disks, judge, lab};
use cenote_zpl::{NodeKind, SetAttr};

const SIZE: usize = 300_000;

/// `exported`: the pool is exported in the end, else it is as a crash leaves it.
fn frozen(exported: bool) {
    let (all, engine, fs) = begun(world::settings(true));
    let (id, root) = (fs.objset().id(), fs.root());
    let old = fs.create(root, b"old", &new(NodeKind::File)).unwrap().ino;
    fs.write(old, 0, &[1; SIZE], false).unwrap();
    fs.create(root, b"gone", &new(NodeKind::File)).unwrap();
    engine.sync().unwrap();
    engine.freeze().unwrap();
    let last = engine.pool().uberblock().txg;
    // More groups than frees wait for, and all that is free then would be used again.
    for n in 0..6_u8 {
        let name = format!("new{n}");
        let ino = fs.create(root, name.as_bytes(), &new(NodeKind::File)).unwrap().ino;
        fs.write(ino, 0, &[n; SIZE], false).unwrap();
        fs.write(old, 0, &[2 + n; SIZE], false).unwrap();
        engine.sync().unwrap();
        engine.commit_objects(id, &[ino, old]).unwrap();
        engine.sync().unwrap();
    }
    fs.unlink(root, b"gone", &|_| false).unwrap();
    fs.setattr(old, &SetAttr { size: Some(5), ..SetAttr::default() }).unwrap();
    match exported {
        true => engine.export(false).unwrap(),
        false => engine.commit(id).unwrap(),
    }
    let left = images(&all);
    drop((fs, engine));
    judge(&left).unwrap();
    let found = disks(&left, None);
    assert_eq!(lab(&found).look().unwrap().uberblock().txg, last, "a group got on disk");
    let (again, records) = recover(&found, 1);
    assert!(records > 12, "{records}");
    let fs = world::root(&again, true);
    let mut tree = world::look(&fs);
    let contents = |ino| {
        let mut data = vec![0; fs.attr(ino).unwrap().size as usize];
        fs.read(ino, 0, &mut data).unwrap();
        data
    };
    let ino = |name: &str| fs.lookup(root, name.as_bytes()).unwrap();
    assert_eq!(contents(ino("old")), [7; 5]);
    for n in 0..6_u8 {
        let name = format!("new{n}");
        assert!(contents(ino(&name)) == [n; SIZE], "{name}");
        tree.remove(name.as_bytes());
    }
    assert_eq!(tree.len(), 2, "old and first");
    drop(fs);
    again.export(false).unwrap();
    judge(&images(&found)).unwrap();
}

#[test]
fn what_is_committed_in_a_frozen_pool_is_replayed() {
    frozen(false);
}

#[test]
fn an_export_of_a_frozen_pool_leaves_what_is_to_be_replayed() {
    frozen(true);
}
