//! Power fails while a pool gets another guid: what is left is one pool, with the one guid or the other.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_engine::create::Redundancy;
use cenote_pool::discover::on_devices;
use cenote_torture::live::disk::{Disk, Image, Journal, Replay};
use cenote_torture::live::lab::{Shape, by_openzfs, disks, judge, lab};
use cenote_torture::long;
use cenote_vdev::Device;
use std::collections::BTreeMap;
use std::sync::Arc;

/// At most so many operations are after the blocks of a group: labels and uberblocks.
const LAST: usize = 40;
const NEW: u64 = 0x1234_5678_9abc_def1;
const SHAPES: [Shape; 2] = [
    Shape { redundancy: Redundancy::Single, disks: 2, ashift: 12, size: 64 << 20 },
    Shape { redundancy: Redundancy::Mirror, disks: 2, ashift: 9, size: 64 << 20 },
];

fn images(disks: &[Arc<Disk>]) -> Vec<Image> {
    disks.iter().map(|disk| disk.image()).collect()
}

/// Imports what is left, and writes to it; its guid.
fn recover(left: &[Image], judged: bool) -> u64 {
    let disks = disks(left, None);
    let devices: Vec<Arc<dyn Device>> =
        disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let found = on_devices(&devices);
    assert_eq!(found.len(), 1, "{:?}", found.iter().map(|c| c.guid).collect::<Vec<_>>());
    drop(devices);
    let engine = lab(&disks).import(&found[0]).unwrap();
    let guid = engine.pool().guid();
    assert_eq!(guid, found[0].guid);
    engine.sync_task(|_| Ok(())).unwrap();
    engine.export(false).unwrap();
    drop(engine);
    // All labels are right again.
    for device in &disks {
        let labels = cenote_vdev::read_labels(device.as_ref()).unwrap().unwrap();
        let guids: Vec<_> = labels.labels.iter().map(|l| l.as_ref()?.u64("pool_guid")).collect();
        assert_eq!(guids, [Some(guid); 4]);
    }
    if judged {
        judge(&images(&disks)).unwrap();
    }
    guid
}

/// A copy of a pool whose guid was being changed, beside the pool that it was copied from: they are two pools.
fn stays_apart(original: &[Image], copy: &[Image]) {
    let all = disks(&[original, copy].concat(), None);
    let devices: Vec<Arc<dyn Device>> = all.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let named = |device: &Arc<dyn Device>| {
        let labels = cenote_vdev::read_labels(device.as_ref()).unwrap().unwrap().labels;
        labels.iter().flatten().any(|label| label.u64("pool_guid") == Some(NEW))
    };
    // Before that nothing tells them apart.
    if devices.iter().any(named) {
        assert_eq!(on_devices(&devices).len(), 2);
    }
}

#[test]
fn a_crash_leaves_the_one_guid_or_the_other() {
    for shape in SHAPES {
        let journal = Arc::new(Journal::default());
        let first = vec![Image::new(shape.size); shape.disks];
        let disks = disks(&first, Some(&journal));
        let engine = lab(&disks).create(&shape).unwrap();
        let old = engine.pool().guid();
        let begin = journal.len();
        assert!(engine.reguid(Some(0)).is_err() && engine.reguid(Some(old)).is_err());
        engine.reguid(Some(NEW)).unwrap();
        assert_eq!(engine.pool().guid(), NEW);
        let done = journal.len();
        engine.sync_task(|_| Ok(())).unwrap();
        engine.export(false).unwrap();
        drop(engine);
        let by_them = by_openzfs(&images(&disks), "import\nsync\nexport\n").unwrap();
        assert_eq!(recover(&by_them, true), NEW);

        let mut replay = Replay::new(first, &journal);
        let mut guids: BTreeMap<u64, u64> = BTreeMap::new();
        let seeds = if long() { 0..8 } else { 0..1 };
        let begin = if long() { begin } else { begin.max(done.saturating_sub(LAST)) };
        replay.advance(begin);
        let original = replay.crash(0);
        for at in begin..=done {
            replay.advance(at);
            stays_apart(&original, &replay.crash(at as u64));
            for seed in seeds.clone() {
                let left = replay.crash((at as u64) << 8 | seed);
                let judged = long() || (at % 20 == 0 && seed == 0);
                *guids.entry(recover(&left, judged)).or_default() += 1;
            }
        }
        println!("{shape:?}: {guids:?}");
        assert!(guids.len() == 2 && guids.contains_key(&old) && guids.contains_key(&NEW));
        // What was told to be done is.
        assert_eq!(recover(&replay.crash(0), false), NEW);
    }
}
