//! Errors in blocks of dnodes, and in object sets themselves.

use super::*;

/// A block of dnodes, and an object set, are named in all data sets that have them, until these have others.
#[test]
fn snapshots_and_clones_share_blocks_of_dnodes() {
    let (rig, engine) = made(true);
    let fs = open(&engine);
    // More than one block.
    fill(&fs, 3..60, 10);
    engine.sync().unwrap();
    let changes = changes(&engine);
    let names = vec!["tank@s".to_string()];
    changes.snapshot(&NewSnapshot { names, props: vec![] }).unwrap();
    let new = NewClone { origin: "tank@s".into(), name: "tank/clone".into(), props: vec![] };
    changes.clone_snapshot(&new).unwrap();
    // The file system alone has a later one.
    fill(&fs, 60..61, 10);
    engine.sync().unwrap();
    drop(fs);
    let pool = engine.pool();
    let all = ["tank", "tank@s", "tank/clone"].map(|name| dataset(&pool, name));
    let pointer = |objset: u64, blkid: u64| {
        let at = Bookmark { objset, object: 0, level: 0, blkid };
        pool.pointer_of(&at).unwrap()
    };
    let shared = (0..4).find(|blkid| {
        let bps = all.map(|objset| pointer(objset, *blkid));
        bps[0].is_some() && bps[0] == bps[1] && bps[0] == bps[2]
    });
    let own = (0..4).find(|blkid| {
        let bps = all.map(|objset| pointer(objset, *blkid));
        bps[0].is_some() && bps[1].is_some() && bps[0] != bps[1] && bps[1] == bps[2]
    });
    let of = |names: &[u64]| names.iter().map(|objset| (*objset, 0)).collect::<BTreeSet<_>>();
    let listed = || logged(&engine).into_iter().collect::<BTreeSet<_>>();
    let root = pool.dsl().find("tank@s").unwrap().unwrap().ds.bp;
    let damaged = [
        (pointer(all[0], shared.unwrap()).unwrap(), of(&all)),
        (pointer(all[1], own.unwrap()).unwrap(), of(&all[1..])),
        (pointer(all[0], own.unwrap()).unwrap(), of(&all[..1])),
    ];
    for (bp, names) in &damaged {
        turn_block(&rig, bp);
        scrub(&engine);
        assert_eq!(listed(), *names, "{bp:?}");
        assert_eq!(listed(), *names);
        assert_eq!(engine.pool().error_count().unwrap(), 1);
        engine.scrub_errors().unwrap();
        finished(&engine);
        assert_eq!(listed(), *names);
        turn_block(&rig, bp);
        engine.scrub_errors().unwrap();
        finished(&engine);
        assert_eq!(listed(), of(&[]));
    }
    turn_block(&rig, &root);
    scrub(&engine);
    assert_eq!(listed(), of(&all[1..]));
    // Error scrubs look at no object set.
    engine.scrub_errors().unwrap();
    finished(&engine);
    assert_eq!(listed(), of(&all[1..]));
    turn_block(&rig, &root);
    engine.scrub_errors().unwrap();
    finished(&engine);
    assert_eq!(listed(), of(&all[1..]));
    scrub(&engine);
    assert_eq!(listed(), of(&[]));
    drop((pool, changes));
    finish(&rig, engine, true);
}
