//! Blocks in several pieces, written and freed, judged by OpenZFS's zdb.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::tunables;
use rig::{NODE, Rig, bytes, open};

#[test]
fn divided_blocks_are_counted_and_freed() {
    // Of the whole process: this file has one test.
    tunables::find("metaslab_force_ganging").unwrap().set(16 << 10).unwrap();
    tunables::find("metaslab_force_ganging_pct").unwrap().set(60).unwrap();
    for layout in ["a", "raidz1 a b c"] {
        let rig = Rig::new(256 << 20);
        let engine = rig.create(layout, 12);
        let fs = open(&engine);
        for file in 0..12u64 {
            let node = fs.create(fs.root(), format!("f{file}").as_bytes(), &NODE).unwrap();
            fs.write(node.ino, 0, &bytes(file, 700_000), false).unwrap();
        }
        engine.sync().unwrap();
        for file in (0..12u64).step_by(2) {
            fs.unlink(fs.root(), format!("f{file}").as_bytes(), &|_| false).unwrap();
        }
        drop(fs);
        engine.export(false).unwrap();
        drop(engine);
        rig.judge_blocks();
        // They are put together again.
        let engine = rig.import();
        let fs = open(&engine);
        for file in (1..12u64).step_by(2) {
            let ino = fs.lookup(fs.root(), format!("f{file}").as_bytes()).unwrap();
            let mut data = vec![0; 700_001];
            assert_eq!(fs.read(ino, 0, &mut data).unwrap(), 700_000);
            assert!(data[..700_000] == bytes(file, 700_000), "f{file} on {layout}");
        }
        drop(fs);
        engine.export(false).unwrap();
        drop(engine);
        rig.judge_blocks();
        let text = cenote_testpools::zdb(rig.path(), "tank", &["-b"]);
        let ganged = text.lines().find_map(|l| l.trim().strip_prefix("ganged count:"));
        assert!(ganged.unwrap().trim().parse::<u64>().unwrap() > 20, "{text}");
    }
}
