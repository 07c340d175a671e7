//! Blocks in several pieces, written and freed, judged by OpenZFS's zdb.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::{Engine, tunables};
use cenote_pool::scan::ScanStatus;
use rig::{NODE, Rig, bytes, open};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

#[test]
fn divided_blocks_are_counted_and_freed() {
    // Of the whole process: this file has one test.
    tunables::find("metaslab_force_ganging").unwrap().set(16 << 10).unwrap();
    tunables::find("metaslab_force_ganging_pct").unwrap().set(60).unwrap();
    for layout in ["a", "raidz1 a b c", "mirror a b"] {
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
        if layout != "a" {
            scrubbed(&rig);
        }
    }
}

fn scrub(engine: &Engine) -> ScanStatus {
    engine.scrub().unwrap();
    loop {
        let now = engine.pool().status().unwrap().scan.unwrap();
        if !now.is_running() {
            return now;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// One device is wrong all over: a scrub mends headers and parts.
fn scrubbed(rig: &Rig) {
    let file = File::options().read(true).write(true).open(rig.file("a")).unwrap();
    let mut bytes = vec![0; 240 << 20];
    file.read_exact_at(&mut bytes, 4 << 20).unwrap();
    bytes.iter_mut().step_by(311).for_each(|byte| *byte ^= 0x11);
    file.write_all_at(&bytes, 4 << 20).unwrap();
    let engine = rig.import();
    let first = scrub(&engine);
    assert!(first.errors == 0 && first.processed > 1 << 20, "{first:?}");
    let again = scrub(&engine);
    assert_eq!((again.errors, again.processed), (0, 0));
    let errors: Vec<u64> =
        engine.pool().store().vdevs().leaves().iter().map(|leaf| leaf.errors().2).collect();
    assert!(errors[0] > 0 && errors[1..].iter().all(|n| *n == 0), "{errors:?}");
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}
