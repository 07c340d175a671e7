//! The figures of transaction groups add up, and say what was done.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::figures::{self, Kind, LATENCIES};
use cenote_engine::{Engine, TxgFigures};
use cenote_vdev::traffic::{Content, Traffic};
use rig::Rig;
use std::sync::Arc;
use std::time::Duration;

const FILES: u64 = 5;
const LEN: usize = 150_000;
const ROUNDS: u64 = 12;

/// Passes and labels are all that a group writes.
fn adds_up(group: &TxgFigures) {
    let (mut blocks, mut writes) = (Traffic::default(), Traffic::default());
    for pass in &group.passes {
        blocks += pass.blocks;
        writes += pass.writes;
        assert_eq!(pass.writes.of(Content::Label).count, 0);
    }
    assert_eq!(blocks, group.blocks);
    let all = [Content::Data, Content::Metadata, Content::SpaceMap, Content::LogSpaceMap];
    for content in all {
        let (blocks, device) = (group.blocks.of(content), group.writes.of(content));
        assert_eq!(writes.of(content), device);
        // Parity and padding come on top.
        assert!(device.bytes >= blocks.bytes, "{content:?}: {group:?}");
        assert_eq!(device.bytes > 0, blocks.count > 0, "{content:?}: {group:?}");
    }
    // At least an uberblock on each of three devices, in four labels.
    assert!(group.writes.of(Content::Label).count >= 12);
    assert!(group.flushes >= 3);
}

fn times(group: &TxgFigures) {
    let share = group.first_pass_share().unwrap();
    assert!(share > 0.0 && share <= 1.0, "{group:?}");
    assert!(group.datasets <= group.first_pass());
    assert!(group.commit > Duration::ZERO);
    assert!(group.total >= group.all_passes() + group.commit, "{group:?}");
}

fn logs(group: &TxgFigures) {
    assert!(group.logs > 0 && group.log_blocks >= group.logs);
    assert!(group.blocks.of(Content::LogSpaceMap).count > 0);
    assert_eq!(group.flushed > 0, group.blocks.of(Content::SpaceMap).count > 0, "{group:?}");
    assert!(group.loaded > 0);
}

/// What was counted since the pool was opened is the sum of all groups.
fn totals(engine: &Engine, groups: &[TxgFigures]) {
    for (i, (figure, total)) in engine.totals().into_iter().enumerate() {
        let mut all = groups.iter().map(|g| g.figures()[i].1);
        let expected = match figure.kind {
            Kind::Counter => all.sum(),
            Kind::Gauge => all.next_back().unwrap(),
        };
        assert_eq!(total, expected, "{}", figure.name);
    }
}

fn kstat(engine: &Engine, groups: &[TxgFigures]) {
    let text = figures::kstat_txgs(engine);
    let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
    assert!(lines.iter().all(|words| words.len() == 12), "{text}");
    assert_eq!((lines[0][0], lines[0][11], lines.len()), ("txg", "stime", groups.len() + 2));
    for (words, group) in lines[1..].iter().zip(groups) {
        let (written, dirty) = (group.writes.total().bytes.to_string(), group.dirty.to_string());
        assert_eq!(words[0], group.txg.to_string());
        assert_eq!((words[2], words[3], words[5]), ("C", dirty.as_str(), written.as_str()));
        let times = [group.open, group.quiescing, group.waiting, group.total];
        assert_eq!(words[8..], times.map(|t| t.as_nanos().to_string()));
    }
    let births: Vec<u64> = lines[1..].iter().map(|words| words[1].parse().unwrap()).collect();
    assert!(births.is_sorted() && births[0] > 0);
    assert_eq!(lines.last().unwrap()[2], "O");
}

/// A new pool's first group counts like the others.
fn first(engine: &Engine) {
    let groups = engine.figures();
    let [group] = &groups[..] else { panic!("{groups:?}") };
    assert_eq!(group.txg, engine.pool().uberblock().txg);
    assert!(group.blocks.metadata().count > 0 && group.open > Duration::ZERO, "{group:?}");
    adds_up(group);
    times(group);
    totals(engine, &groups);
    kstat(engine, &groups);
}

/// What the kstat says while a group is being written.
fn while_writing(engine: &Arc<Engine>) {
    let its = engine.clone();
    let text = engine.sync_task(move |_| Ok(figures::kstat_txgs(&its))).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
    let [.., done, writing, open] = &lines[..] else { panic!("{text}") };
    assert_eq!((done[2], writing[2], open[2]), ("C", "S", "O"), "{text}");
    assert!(writing[10] != "0" && writing[11] == "0", "{text}");
    let [writing, open] = [writing, open].map(|line| line[0].parse::<u64>().unwrap());
    assert_eq!((engine.pool().uberblock().txg, open), (writing, writing + 1), "{text}");
}

#[test]
fn figures_add_up() {
    let rig = Rig::new(128 << 20);
    let engine = rig.create("raidz1 A B C", 12);
    first(&engine);
    let fs = rig::open(&engine);
    for round in 0..ROUNDS {
        if round > 0 {
            for i in 0..FILES {
                let _ = fs.unlink(fs.root(), format!("file {i}").as_bytes(), &|_| false);
            }
        }
        rig::fill(&fs, 0..FILES, LEN);
        engine.sync().unwrap();
    }
    let groups = engine.figures();
    // Frees of the last groups make groups of their own, without data.
    let with_data = groups.iter().filter(|g| g.blocks.data().count > 0).count() as u64;
    assert_eq!(with_data, ROUNDS);
    for group in &groups {
        adds_up(group);
        times(group);
        logs(group);
        if group.blocks.data().count > 0 {
            assert!(group.dirty >= FILES * LEN as u64, "{group:?}");
            assert!(group.blocks.data().bytes >= FILES * LEN as u64);
            assert!(group.writes.data().count < group.blocks.data().count * 3);
        }
    }
    assert!(groups.iter().any(|g| g.flushed > 0));
    assert!(groups.iter().skip(1).all(|g| g.waiting <= g.total));
    assert!(groups.iter().any(|g| g.waiting > Duration::ZERO));
    while_writing(&engine);
    assert!(groups.is_sorted_by(|a, b| a.txg < b.txg && a.birth_uptime <= b.birth_uptime));
    let groups = engine.figures();
    totals(&engine, &groups);
    kstat(&engine, &groups);
    let took = |name: &str| LATENCIES.iter().find(|l| l.name == name).unwrap().of(&engine);
    let (writes, allocations) = (took("write_latency"), took("allocation_latency"));
    assert_eq!(writes.count(), ROUNDS * FILES);
    assert!(writes.total > Duration::ZERO);
    let blocks: u64 = groups.iter().map(|g| g.blocks.total().count).sum();
    assert!(allocations.count() * 4 > blocks, "{allocations:?}");
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}
