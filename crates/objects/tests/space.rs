//! What a space does, thing by thing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cenote_objects::{Cause, Class, Error, Figures, Live, Space, Tunables, Wreck};
use futures_util::stream::{self, StreamExt};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use rig::{FaultStore, Faults, Model, Random, Shared, small};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn tank() -> Path {
    Path::from("tank")
}

/// A space on a store without faults, with the store.
async fn fresh(tunables: Tunables) -> (Space, Arc<FaultStore>, Shared) {
    let shared = Shared::new(Arc::new(InMemory::new()));
    let store = FaultStore::new(&shared, Faults::NONE, 1);
    let space = Space::create(store.clone(), tank(), tunables, "host", b"zero").await.unwrap();
    (space, store, shared)
}

async fn write(space: &Space, length: u64, seed: u64) -> u64 {
    let address = space.allocate(length).unwrap();
    space.write(address, Model::bytes(length, seed)).await.unwrap();
    address
}

fn gets(figures: &Figures) -> u64 {
    figures.requests[1]
}

#[tokio::test(start_paused = true)]
async fn a_group_waits_for_its_store_and_goes_on() {
    let (space, store, _) = fresh(small(1)).await;
    let first = write(&space, 4 * KIB, 1).await;
    store.set(Faults { refused: 100, ..Faults::NONE });
    let error = space.commit(1, b"one").await.unwrap_err();
    assert!(error.transient() && error.cause() == Some(Cause::Unavailable), "{error}");
    assert!(error.to_string().starts_with("PUT tank/"), "{error}");
    assert_eq!(
        space.read(&[(first, 4 * KIB)], Class::Sync).await.remove(0).unwrap(),
        Model::bytes(4 * KIB, 1)
    );
    // While uploads fail nothing more is taken: memory stays bounded.
    let address = space.allocate(KIB).unwrap();
    assert!(space.write(address, Model::bytes(KIB, 2)).await.is_err());
    assert!(space.resume().await.is_err());
    store.set(Faults::NONE);
    space.resume().await.unwrap();
    space.write(address, Model::bytes(KIB, 2)).await.unwrap();
    space.commit(1, b"one").await.unwrap();
    let figures = space.figures();
    assert!(figures.retries[0] > 3 && figures.failures[0] >= 2, "{figures:?}");
    let found = Space::look(store, tank(), small(2)).await.unwrap();
    assert_eq!((found.group(), found.payload(), found.host()), (1, &b"one"[..], "host"));
}

#[tokio::test(start_paused = true)]
async fn a_second_host_takes_over_and_the_first_one_is_told_by_whom() {
    let (space, store, _) = fresh(small(1)).await;
    space.commit(5, b"five").await.unwrap();
    let second = Space::look(store, tank(), small(2)).await.unwrap().open("heron").await.unwrap();
    write(&space, 4 * KIB, 1).await;
    for _ in 0..2 {
        let error = space.commit(6, b"six").await.unwrap_err();
        assert!(
            matches!(error, Error::Fenced { .. }) && error.to_string().contains("host heron"),
            "{error}"
        );
    }
    second.commit(6, b"six").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_host_that_slept_for_long_is_refused_where_roots_are_only_created() {
    let folder = tempfile::tempdir().unwrap();
    let local = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    let sleeper = Space::create(local.clone(), tank(), small(1), "sleeper", b"").await.unwrap();
    let look = async |seed| Space::look(local.clone(), tank(), small(seed)).await.unwrap();
    let second = look(2).await.open("second").await.unwrap();
    for group in 1..=600 {
        second.commit(group, &group.to_be_bytes()).await.unwrap();
        second.tidy().await;
    }
    // The name after its root is free again.
    assert!(!folder.path().join("tank/commits/0000000000000001").exists());
    let error = sleeper.commit(1, b"late").await.unwrap_err();
    assert!(matches!(error, Error::Fenced { .. }), "{error}");
    let found = look(3).await;
    assert_eq!((found.group(), found.host()), (600, "second"));
    let third = found.open("third").await.unwrap();
    third.sweep().await.unwrap();
    let roots = std::fs::read_dir(folder.path().join("tank/commits")).unwrap().count();
    assert!(roots <= 48, "{roots} roots");
}

/// A directory that was put in the place of the space's gets no group that counts.
#[tokio::test(start_paused = true)]
async fn a_root_without_the_one_before_it_does_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let local = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    let space = Space::create(local.clone(), tank(), small(1), "host", b"").await.unwrap();
    space.commit(1, b"one").await.unwrap();
    let (here, away) = (folder.path().join("tank"), folder.path().join("away"));
    std::fs::rename(&here, &away).unwrap();
    let error = space.commit(2, b"two").await.unwrap_err();
    assert!(matches!(error, Error::Rootless { .. }) && error.transient(), "{error}");
    assert!(!space.answers(Duration::from_secs(1)).await);
    let error = space.commit(2, b"two").await.unwrap_err();
    assert!(matches!(error, Error::Rootless { .. }), "{error}");
    std::fs::remove_dir_all(&here).unwrap();
    std::fs::rename(&away, &here).unwrap();
    assert!(space.answers(Duration::from_secs(1)).await);
    space.commit(2, b"two").await.unwrap();
    let found = Space::look(local, tank(), small(2)).await.unwrap();
    assert_eq!((found.group(), found.payload()), (2, b"two".as_slice()));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_or_there_already_is_refused_by_name() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let absent = Space::look(store.clone(), tank(), small(1)).await.err().unwrap();
    assert_eq!(absent.to_string(), "no pool at tank");
    let space = Space::create(store.clone(), tank(), small(1), "host", b"").await.unwrap();
    let exists = Space::create(store, tank(), small(1), "host", b"").await.err().unwrap();
    assert_eq!(exists.to_string(), "there is a pool at tank already");
    assert!(space.allocate(100).is_err() && space.allocate(65 * MIB).is_err());
    assert!(space.write(0, Bytes::from_static(&[0; 512])).await.is_err());
    let address = space.allocate(512).unwrap();
    let error = space.commit(1, b"").await.unwrap_err();
    assert!(error.to_string().contains("were given out and not written"), "{error}");
    space.write(address, Bytes::from_static(&[0; 512])).await.unwrap();
    space.commit(1, b"").await.unwrap();
    assert!(space.commit(1, b"").await.is_err());
    assert!(matches!(space.read(&[(512, 512)], Class::Sync).await[0], Err(Error::Unmapped { .. })));
}

#[tokio::test(start_paused = true)]
async fn reads_of_neighbours_are_one_request_and_a_hanging_one_is_asked_twice() {
    let (space, store, _) = fresh(small(1)).await;
    let mut blocks = Vec::new();
    for seed in 0..10 {
        blocks.push((write(&space, 4 * KIB, seed).await, 4 * KIB));
    }
    space.commit(1, b"").await.unwrap();
    let before = gets(&space.figures());
    for (seed, bytes) in space.read(&blocks, Class::Sync).await.into_iter().enumerate() {
        assert_eq!(bytes.unwrap(), Model::bytes(4 * KIB, seed as u64));
    }
    assert_eq!(gets(&space.figures()) - before, 1);
    // Three at once hang, and nothing else is asked that could end.
    let begun = tokio::time::Instant::now();
    store.set(Faults { hung: 100, late: Duration::from_secs(1), ..Faults::NONE });
    let read = async |n: usize| space.read(&blocks[n..=n], Class::Sync).await.remove(0);
    let heals = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        store.set(Faults::NONE);
    };
    let (a, b, c, ()) = tokio::join!(read(0), read(1), read(2), heals);
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    store.set(Faults { hung: 25, late: Duration::from_secs(1), ..Faults::NONE });
    for _ in 0..40 {
        assert!(space.read(&blocks[..1], Class::Sync).await.remove(0).is_ok());
    }
    assert!(space.figures().hedges > 1);
}

#[tokio::test(start_paused = true)]
async fn a_missing_and_a_cut_object_are_named_and_spoil_no_other() {
    let (space, store, shared) = fresh(small(1)).await;
    let mut blocks = Vec::new();
    for seed in 0..4 {
        blocks.push((write(&space, 60 * KIB, seed).await, 60 * KIB));
    }
    space.commit(1, b"").await.unwrap();
    let folder =
        shared.inner.list_with_delimiter(Some(&tank())).await.unwrap().common_prefixes.remove(0);
    let at = |n: u64| folder.clone().join(format!("{n:010x}"));
    shared.inner.delete(&at(1)).await.unwrap();
    shared.inner.put(&at(2), Bytes::from_static(b"short").into()).await.unwrap();
    let found = Space::look(store, tank(), small(2)).await.unwrap().open("other").await.unwrap();
    let answers = found.read(&blocks, Class::Sync).await;
    assert!(answers[0].is_ok() && answers[3].is_ok());
    let error = answers[1].as_ref().unwrap_err();
    assert!(error.cause() == Some(Cause::Missing) && !error.transient(), "{error}");
    assert!(error.to_string().contains(&at(1).to_string()), "{error}");
    assert!(answers[2].is_err());
    assert_eq!(found.audit().await.unwrap().missing, vec![at(1).to_string()]);
}

/// What a root names as garbage has waited for as long as the root is stored, also while nobody had the space open.
#[tokio::test(start_paused = true)]
async fn short_imports_delete_what_earlier_ones_left() {
    let (first, store, _) = fresh(small(1)).await;
    let mut blocks = Vec::new();
    for seed in 0..20 {
        blocks.push(write(&first, 60 * KIB, seed).await);
    }
    first.commit(1, b"").await.unwrap();
    drop(first);
    let pause = Duration::from_secs(3600);
    for (group, address) in (2..).zip(blocks) {
        let look = Space::look(store.clone(), tank(), small(group)).await.unwrap();
        let space = look.open("host").await.unwrap();
        space.free(address, 60 * KIB).unwrap();
        space.commit(group, b"").await.unwrap();
        space.tidy().await;
        // What this group has freed waits. What those before it have freed is gone.
        let left = space.garbage();
        assert!(left > 0 && left <= 8, "group {group}: {left}");
        tokio::time::advance(pause).await;
    }
    // Not everything is deleted at once: who comes back soon waits for the rest of the time.
    let space = Space::look(store.clone(), tank(), small(99)).await.unwrap().open("host").await;
    let space = space.unwrap();
    space.commit(99, b"").await.unwrap();
    space.tidy().await;
    assert_eq!(space.garbage(), 0);
    let last = write(&space, 60 * KIB, 1).await;
    space.commit(100, b"").await.unwrap();
    space.free(last, 60 * KIB).unwrap();
    space.commit(101, b"").await.unwrap();
    tokio::time::advance(Duration::from_secs(100)).await;
    let again = Space::look(store.clone(), tank(), small(102)).await.unwrap();
    let again = again.open("host").await.unwrap();
    let before = again.garbage();
    again.tidy().await;
    assert!(before > 0 && again.garbage() == before, "{before}");
    tokio::time::advance(Duration::from_secs(21)).await;
    again.tidy().await;
    assert_eq!(again.garbage(), 0);
}

/// A group that changes more pages than the budget has room for is stored, however many programs read meanwhile.
#[tokio::test(start_paused = true)]
async fn a_commit_keeps_its_pages_from_readers() {
    let tunables = Tunables { index_bytes: 100, page_entries: 4, log_bytes: 100, ..small(1) };
    let (space, store, _) = fresh(tunables).await;
    let mut blocks = Vec::new();
    for group in 1..=80 {
        for _ in 0..10 {
            blocks.push((write(&space, 60 * KIB, 1).await, 60 * KIB));
        }
        space.commit(group, b"").await.unwrap();
    }
    store.set(Faults { slow: 100, late: Duration::from_millis(20), ..Faults::NONE });
    // A block of the next group is in memory: to read it takes no turn behind the pages.
    let reader = space.clone();
    let reading = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let next = [(write(&reader, KIB, 7).await, KIB)];
        loop {
            assert!(reader.read(&next, Class::Sync).await[0].is_ok());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    // One block of each page.
    for (address, length) in blocks.iter().step_by(4) {
        space.free(*address, *length).unwrap();
    }
    let before = gets(&space.figures());
    let commit = tokio::time::timeout(Duration::from_secs(20), space.commit(81, b""));
    commit.await.expect("the group does not end").unwrap();
    assert!(gets(&space.figures()) - before < 1000, "{:?}", space.figures());
    reading.abort();
    let _ = reading.await;
    // What was kept for it is dropped.
    assert!(space.read(&blocks[1..2], Class::Sync).await[0].is_ok());
    space.commit(82, b"").await.unwrap();
    let directory = space.index_memory();
    assert!(directory < 200 * 112 + 2000, "{directory}");
}

/// What is due is deleted though no group follows; a store that is away is asked once, and that is said.
#[tokio::test(start_paused = true)]
async fn garbage_of_an_idle_space_is_deleted_when_it_is_time() {
    let (space, store, shared) = fresh(small(1)).await;
    let mut blocks = Vec::new();
    for seed in 0..40 {
        blocks.push(write(&space, 60 * KIB, seed).await);
    }
    space.commit(1, b"").await.unwrap();
    let idle = space.clone();
    let tidying = tokio::spawn(async move {
        idle.due().await;
        idle.tidy().await
    });
    tokio::time::sleep(Duration::from_secs(1000)).await;
    assert!(!tidying.is_finished());
    blocks.iter().for_each(|address| space.free(*address, 60 * KIB).unwrap());
    space.commit(2, b"").await.unwrap();
    assert!(space.garbage() >= 40);
    store.set(Faults { refused: 100, ..Faults::NONE });
    let failed = tidying.await.unwrap().expect("the store is away");
    assert!(failed.transient() && space.garbage() >= 40, "{failed}");
    let figures = space.figures();
    assert!(figures.failures[3] <= 4, "{figures:?}");
    store.set(Faults::NONE);
    space.due().await;
    assert!(space.tidy().await.is_none());
    assert_eq!(space.garbage(), 0);
    let listed = shared.inner.list(Some(&tank())).count().await;
    assert!(listed <= 4, "{listed} objects");
}

/// What another host has moved or freed is missing here: that is said, and is no damage. Where the root is missing too the store is away.
#[tokio::test(start_paused = true)]
async fn a_host_that_was_fenced_while_it_rested_finds_no_damage() {
    let tunables = |seed| Tunables { grace: Duration::ZERO, ..small(seed) };
    let (idle, store, shared) = fresh(tunables(1)).await;
    let (mut kept, mut freed) = (Vec::new(), Vec::new());
    for seed in 0..20 {
        kept.push((write(&idle, 10 * KIB, seed).await, 10 * KIB));
        freed.push((write(&idle, 50 * KIB, seed).await, 50 * KIB));
    }
    idle.commit(1, b"").await.unwrap();
    let look = async |seed| Space::look(store.clone(), tank(), tunables(seed)).await.unwrap();
    let view = look(2).await.view().await.unwrap();
    let other = look(3).await.open("heron").await.unwrap();
    freed.iter().for_each(|(address, length)| other.free(*address, *length).unwrap());
    other.commit(2, b"").await.unwrap();
    struct Kept(Vec<(u64, u64)>);
    impl Live for Kept {
        fn live(&self, range: std::ops::Range<u64>) -> Result<Vec<std::ops::Range<u64>>, String> {
            let within = self.0.iter().filter(|(at, _)| range.contains(at));
            Ok(within.map(|(at, length)| *at..at + length).collect())
        }
    }
    assert!(other.reclaim(&Kept(kept.clone()), u64::MAX).await.unwrap().objects > 0);
    for group in 3..6 {
        other.commit(group, b"").await.unwrap();
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(other.tidy().await.is_none());
    }
    for answer in other.read(&kept, Class::Sync).await {
        answer.unwrap();
    }
    let missing = idle.read(&kept, Class::Sync).await;
    let error = missing.into_iter().find_map(Result::err).unwrap();
    assert!(matches!(&error, Error::Fenced { by } if by.contains("heron")), "{error}");
    let missing = view.read(&kept, Class::Sync).await;
    let error = missing.into_iter().find_map(Result::err).unwrap();
    assert!(matches!(&error, Error::Outrun { by } if by.contains("heron")), "{error}");
    assert!(error.is_elsewhere());
    // Nothing is there at all: a store that answers for another one, and no damage.
    let all: Vec<_> = shared.inner.list(None).map(|meta| meta.unwrap().location).collect().await;
    for at in &all {
        shared.inner.delete(at).await.unwrap();
    }
    let error = other.read(&kept[..1], Class::Sync).await.remove(0).unwrap_err();
    assert!(error.is_outage() && matches!(error, Error::Rootless { .. }), "{error}");
}

/// What is allocated, as one that knows all of it, or nothing, says.
struct Says(bool);

impl Live for Says {
    fn live(&self, range: std::ops::Range<u64>) -> Result<Vec<std::ops::Range<u64>>, String> {
        if self.0 { Ok(vec![range]) } else { Err("not known".into()) }
    }
}

/// Where nothing is worth writing anew nothing is read for it, and what fails is not tried after each group.
#[tokio::test(start_paused = true)]
async fn reclaim_reads_nothing_where_there_is_nothing_to_do() {
    let (space, _, _) = fresh(small(1)).await;
    let mut blocks = Vec::new();
    for group in 1..=300 {
        blocks.push(write(&space, 60 * KIB, group).await);
        write(&space, 5 * KIB, group).await;
        space.commit(group, b"").await.unwrap();
    }
    let before = gets(&space.figures());
    assert_eq!(space.reclaim(&Says(true), u64::MAX).await.unwrap(), Default::default());
    assert_eq!(gets(&space.figures()), before);
    for (group, address) in (301..).zip(blocks.iter().step_by(10)) {
        space.free(address + KIB, 59 * KIB).unwrap();
        space.commit(group, b"").await.unwrap();
    }
    assert!(space.reclaim(&Says(false), u64::MAX).await.is_err());
    let before = gets(&space.figures());
    assert_eq!(space.reclaim(&Says(false), u64::MAX).await.unwrap(), Default::default());
    assert_eq!(gets(&space.figures()), before);
    tokio::time::advance(Duration::from_secs(3601)).await;
    assert!(space.reclaim(&Says(false), u64::MAX).await.is_err());
}

/// Of an object that has lost its second half a read behind the end fails at once, and says nothing of the store.
#[tokio::test(start_paused = true)]
async fn a_block_behind_the_end_of_a_cut_object_is_damage_and_no_outage() {
    let folder = tempfile::tempdir().unwrap();
    let local = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    let stores: [Arc<dyn ObjectStore>; 2] = [Arc::new(InMemory::new()), Arc::new(local)];
    for store in stores {
        let space = Space::create(store.clone(), tank(), small(1), "host", b"").await.unwrap();
        let mut blocks = Vec::new();
        for seed in 0..12 {
            blocks.push((write(&space, 10 * KIB, seed).await, 10 * KIB));
        }
        space.commit(1, b"").await.unwrap();
        let folders = store.list_with_delimiter(Some(&tank())).await.unwrap().common_prefixes;
        let theirs = [tank().join("commits"), tank().join("000000")];
        let folder = folders.into_iter().find(|at| !theirs.contains(at)).unwrap();
        let first = folder.join(format!("{:010x}", 0));
        let half = store.get_range(&first, 0..30 * KIB).await.unwrap();
        store.put(&first, half.into()).await.unwrap();
        let (before, begun) = (gets(&space.figures()), tokio::time::Instant::now());
        for (n, is_there) in [(0, true), (2, true), (3, false), (5, false), (6, true)] {
            let answer = space.read(&blocks[n..=n], Class::Sync).await.remove(0);
            assert_eq!(answer.is_ok(), is_there, "{n}: {answer:?}");
            if let Err(error) = answer {
                assert_eq!(error.cause(), Some(Cause::Cut), "{error}");
                assert!(!error.is_outage() && !error.transient(), "{error}");
            }
        }
        assert_eq!(gets(&space.figures()) - before, 5);
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn an_import_reads_what_changed_and_not_what_is_stored() {
    let tunables = Tunables {
        object_bytes: 4 * KIB,
        index_bytes: 64 << 10,
        log_bytes: 16 << 10,
        ..Tunables::default()
    };
    let (space, store, _) = fresh(tunables.clone()).await;
    for group in 1..=40 {
        for seed in 0..500 {
            write(&space, 4 * KIB, seed).await;
        }
        space.commit(group, b"").await.unwrap();
    }
    assert_eq!(space.totals().objects, 20_000);
    let found = Space::look(store, tank(), tunables).await.unwrap();
    let other = found.open("other").await.unwrap();
    let figures = other.figures();
    assert!(figures.bytes[1] < 64 << 10, "{figures:?}");
    assert!(other.read(&[(0, 4 * KIB)], Class::Sync).await[0].is_ok());
}

/// 8 KiB overwrites in groups of 64 MiB, without reclaim.
#[tokio::test(start_paused = true)]
async fn overwrites_cost_few_requests_and_bytes() {
    let (space, _, _) = fresh(Tunables::default()).await;
    let mut old = Vec::new();
    let mut random = Random(1);
    let block = Model::bytes(8 * KIB, 1);
    let mut before = Figures::default();
    for group in 1..=8 {
        if group == 2 {
            before = space.figures();
        }
        for n in 0..8192 {
            let address = space.allocate(8 * KIB).unwrap();
            space.write(address, block.clone()).await.unwrap();
            if group == 1 {
                old.push(address);
            } else {
                let at = (n + random.below(2) as usize * 4096) % old.len();
                space.free(std::mem::replace(&mut old[at], address), 8 * KIB).unwrap();
            }
        }
        space.commit(group, b"root").await.unwrap();
    }
    let figures = space.figures();
    let written = figures.written - before.written;
    let uploaded: u64 = (0..4).map(|n| figures.uploaded[n] - before.uploaded[n]).sum();
    let puts = figures.requests[0] - before.requests[0];
    println!(
        "{:.4} bytes uploaded for each byte; a PUT for {:.2} MiB",
        uploaded as f64 / written as f64,
        written as f64 / puts as f64 / MIB as f64
    );
    assert!(uploaded * 10 <= written * 11 && puts * 3 * MIB <= written, "{figures:?}");
}

/// Writes and reads through a space beside the same bytes through the store alone. Run with `--ignored --nocapture`, optimized.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn beside_the_raw_store() {
    let folder = tempfile::tempdir().unwrap();
    let local = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    let stores: [(&str, Arc<dyn ObjectStore>); 2] =
        [("memory", Arc::new(InMemory::new())), ("directory", Arc::new(local))];
    let (total, block) = (512 * MIB, 128 * KIB);
    let rate = |from: Instant| total as f64 / MIB as f64 / from.elapsed().as_secs_f64();
    for (name, store) in stores {
        let bytes = Model::bytes(4 * MIB, 1);
        let at = |n: u64| Path::from(format!("raw/{n}"));
        let from = Instant::now();
        let puts = stream::iter(0..total / (4 * MIB)).map(|n| {
            let (store, parts) =
                (store.clone(), (0..32).map(|k| bytes.slice(k * 131_072..(k + 1) * 131_072)));
            let payload = parts.collect();
            tokio::spawn(async move { store.put(&at(n), payload).await.map(|_| ()) })
        });
        puts.buffer_unordered(32).for_each(|put| async { put.unwrap().unwrap() }).await;
        let raw_put = rate(from);
        let space =
            Space::create(store.clone(), tank(), Tunables::default(), "host", b"").await.unwrap();
        let from = Instant::now();
        for n in 0..total / block {
            let address = space.allocate(block).unwrap();
            let part = (n % 32 * block) as usize;
            space.write(address, bytes.slice(part..part + block as usize)).await.unwrap();
        }
        space.commit(1, b"").await.unwrap();
        let put = rate(from);
        let from = Instant::now();
        let gets = stream::iter(0..total / (4 * MIB)).map(|n| {
            let store = store.clone();
            tokio::spawn(async move { store.get_range(&at(n), 0..4 * MIB).await.map(|_| ()) })
        });
        gets.buffer_unordered(32).for_each(|get| async { get.unwrap().unwrap() }).await;
        let raw_get = rate(from);
        let from = Instant::now();
        let gets = stream::iter(0..total / (4 * MIB)).map(|n| {
            let space = space.clone();
            let blocks: Vec<_> = (0..32).map(|k| (n * 4 * MIB + k * block, block)).collect();
            tokio::spawn(async move {
                space.read(&blocks, Class::Background).await.into_iter().all(|one| one.is_ok())
            })
        });
        gets.buffer_unordered(32).for_each(|get| async { assert!(get.unwrap()) }).await;
        println!(
            "{name}: PUT {raw_put:.0} MiB/s raw, {put:.0} here; GET {raw_get:.0} raw, {:.0} here",
            rate(from)
        );
    }
}

/// A space with pages on its store, whose directory is an object.
async fn paged(tunables: Tunables) -> (Arc<FaultStore>, Arc<dyn ObjectStore>) {
    let (space, store, shared) = fresh(tunables).await;
    for group in 1..=40 {
        for n in 0..5 {
            write(&space, 60 * KIB, n).await;
        }
        space.commit(group, b"payload").await.unwrap();
    }
    // The last group's log is gone through as well.
    write(&space, 4 * KIB, 1).await;
    space.commit(41, b"payload").await.unwrap();
    assert!(space.totals().objects >= 200, "{:?}", space.totals());
    (store, shared.inner)
}

async fn names(store: &Arc<dyn ObjectStore>) -> Vec<String> {
    let listed = store.list(None).map(|meta| meta.unwrap().location.to_string());
    listed.collect().await
}

/// A space whose end was interrupted is found again, and its end goes on, in this process and in another one.
#[tokio::test(start_paused = true)]
async fn an_end_that_was_interrupted_goes_on() {
    for in_use in [true, false] {
        let (store, inner) = paged(small(1)).await;
        let space = Space::look(store.clone(), tank(), small(2)).await.unwrap();
        let space = space.open("heron").await.unwrap();
        let before = names(&inner).await.len();
        store.delete_only(50);
        let error = space.erase().await.unwrap_err();
        assert!(error.transient(), "{error}");
        let left = names(&inner).await.len();
        assert!(left > 10 && left < before, "{left} of {before}");
        store.set(Faults::NONE);
        if in_use {
            space.erase().await.unwrap();
        } else {
            let found = Space::look(store, tank(), small(3)).await.unwrap();
            assert_eq!(found.payload(), b"payload");
            found.view().await.unwrap();
            let again = Space::look(inner.clone(), tank(), small(3)).await.unwrap();
            again.open("egret").await.unwrap().erase().await.unwrap();
        }
        assert_eq!(names(&inner).await, [""; 0]);
    }
}

/// What cannot be opened can be deleted: a space without its directory, with a damaged root; and what is no space is left alone.
#[tokio::test(start_paused = true)]
async fn a_wreck_is_deleted() {
    for damage in ["directory", "root", "cut"] {
        let (store, inner) = paged(small(1)).await;
        let root = Path::from("tank/commit");
        if damage == "directory" {
            let before = names(&inner).await.len();
            for name in names(&inner).await.iter().filter(|name| !name.contains("commit")) {
                let bytes = inner.get(&name.as_str().into()).await.unwrap().bytes().await.unwrap();
                if cenote_objects::frame::ends(cenote_objects::frame::Kind::Directory, &bytes) {
                    inner.delete(&name.as_str().into()).await.unwrap();
                }
            }
            assert!(names(&inner).await.len() < before);
        } else {
            let mut bytes = inner.get(&root).await.unwrap().bytes().await.unwrap().to_vec();
            bytes[3] ^= 0x40;
            bytes.truncate(if damage == "cut" { 5 } else { bytes.len() });
            inner.put(&root, bytes.into()).await.unwrap();
        }
        let opened = match Space::look(store.clone(), tank(), small(2)).await {
            Ok(found) => found.view().await.map(|_| ()),
            Err(error) => Err(error),
        };
        opened.unwrap_err();
        let mut wreck = Wreck::look(store.clone(), tank(), small(2)).await.unwrap().unwrap();
        assert_eq!(wreck.payload(), if damage == "directory" { &b"payload"[..] } else { b"" });
        store.delete_only(30);
        wreck.erase("heron").await.unwrap_err();
        store.set(Faults::NONE);
        let mut wreck = Wreck::look(store, tank(), small(2)).await.unwrap().unwrap();
        assert!(wreck.erase("heron").await.unwrap() > 10);
        assert_eq!(names(&inner).await, [""; 0], "{damage}");
    }
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    store.put(&"tank/commit".into(), "a letter of somebody's".into()).await.unwrap();
    let error = Wreck::look(store.clone(), tank(), small(1)).await.err().unwrap();
    assert!(error.to_string().contains("is no root of a pool"), "{error}");
    assert_eq!(names(&store).await, ["tank/commit"]);
}

/// What others have below the prefix, against the rule, stays: also in the folders of roots and of objects.
#[tokio::test(start_paused = true)]
async fn what_is_no_object_of_a_space_stays() {
    let folder = tempfile::tempdir().unwrap();
    let local: Arc<dyn ObjectStore> =
        Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    let space = Space::create(local.clone(), tank(), small(1), "host", b"").await.unwrap();
    let others = [
        "tank/commits/letter",
        "tank/commits/3",
        "tank/commits/000001/0000000001",
        "tank/commits/00ab01/0000000000000003",
        "tank/000000/letter",
        "tank/000000/0000000000/letter",
    ];
    for name in others {
        local.put(&name.into(), "dear reader".into()).await.unwrap();
    }
    for group in 1..=40 {
        write(&space, 4 * KIB, group).await;
        space.commit(group, b"").await.unwrap();
    }
    let found = Space::look(local.clone(), tank(), small(2)).await.unwrap();
    assert_eq!(found.group(), 40);
    let space = found.open("heron").await.unwrap();
    space.sweep().await.unwrap();
    assert!(others.iter().all(|name| folder.path().join(name).exists()));
    assert!(space.erase().await.unwrap() > 10);
    let mut left = names(&local).await;
    left.sort();
    let mut others = others.to_vec();
    others.sort_unstable();
    assert_eq!(left, others);
}
