//! A space whose line to the store is slow.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "rig/line.rs"]
mod line;
mod rig;

use std::time::Duration;

use cenote_objects::{Class, Space, Tunables};
use futures_util::future::join_all;
use line::Line;
use object_store::path::Path;
use rig::{Model, small};

const MIB: u64 = 1 << 20;

/// Many reads at once are all late. None is asked twice for that, and none is given up.
#[tokio::test(start_paused = true)]
async fn reads_that_share_a_slow_line_are_asked_once() {
    let line = Line::new(false);
    let tunables = Tunables { object_bytes: MIB, reads: 64, ..small(1) };
    let tunables = Tunables { budget: Duration::from_secs(120), ..tunables };
    let space = Space::create(line.clone(), Path::from("tank"), tunables, "host", b"").await;
    let space = space.unwrap();
    let mut blocks = Vec::new();
    for _ in 0..64 {
        let address = space.allocate(MIB).unwrap();
        space.write(address, Model::bytes(MIB, 1)).await.unwrap();
        blocks.push((address, MIB));
    }
    space.commit(1, b"").await.unwrap();
    // All of them take a minute, and each of them nearly as long.
    line.slow(MIB);
    // The first of them find out how slow the line is.
    for round in 0..2 {
        let before = line.received();
        let each = blocks.iter().map(|block| space.read(std::slice::from_ref(block), Class::Sync));
        for answer in join_all(each).await {
            answer[0].as_ref().unwrap();
        }
        let received = line.received() - before;
        assert!(round == 0 || received <= 70 * MIB, "{received} bytes for 64 MiB");
    }
    assert!(space.figures().hedges <= 8, "{:?}", space.figures());
}

/// Uploads whose answers were lost count, though to read them back would take too long.
#[tokio::test(start_paused = true)]
async fn an_upload_that_arrived_is_not_read_back() {
    let line = Line::new(true);
    let tunables = Tunables { object_bytes: MIB, ..small(1) };
    let space = Space::create(line.clone(), Path::from("tank"), tunables, "host", b"").await;
    let space = space.unwrap();
    line.slow(32 << 10);
    for group in 1..=3 {
        for seed in 0..4 {
            let address = space.allocate(MIB).unwrap();
            space.write(address, Model::bytes(MIB, seed)).await.unwrap();
        }
        space.commit(group, b"").await.unwrap();
    }
    assert!(space.figures().retries[0] > 12, "{:?}", space.figures());
    assert!(line.received() < MIB / 4, "{}", line.received());
}

/// However much a scrub and readers ahead have under way, a program's read has its turn at once.
#[tokio::test(start_paused = true)]
async fn what_a_program_waits_for_comes_first() {
    let line = Line::new(false);
    let tunables = Tunables { object_bytes: MIB, reads: 32, ..small(1) };
    // Nothing is tried twice.
    let long = Duration::from_secs(3600);
    let tunables = Tunables { budget: long, deadline: long, hedge: long, ..tunables };
    let space = Space::create(line.clone(), Path::from("tank"), tunables, "host", b"").await;
    let space = space.unwrap();
    let mut blocks = Vec::new();
    for _ in 0..64 {
        let address = space.allocate(MIB).unwrap();
        space.write(address, Model::bytes(MIB, 1)).await.unwrap();
        blocks.push((address, MIB));
    }
    space.commit(1, b"").await.unwrap();
    line.slow(MIB);
    // What is under way beside it shares the line: a scrub has 16 of all 32, and what is read ahead with it 24.
    for (class, most) in [(Class::Background, 18), (Class::Ahead, 26)] {
        let all = space.read(&blocks, class);
        let one = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let begun = tokio::time::Instant::now();
            space.read(&blocks[63..], Class::Sync).await.remove(0).unwrap();
            begun.elapsed()
        };
        let (all, took) = tokio::join!(all, one);
        assert!(all.iter().all(Result::is_ok));
        assert!(took < Duration::from_secs(most), "{class:?}: {took:?}");
    }
}
