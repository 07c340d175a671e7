//! What hosts, stores and callers may do at the wrong moment.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cenote_objects::{Audit, Cause, Class, Error, Live, Reclaimed, SECTOR, Space};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use rig::{FaultStore, Faults, Model, Shared, small};
use tokio::time::{sleep, timeout};

const KIB: u64 = 1 << 10;
const REFUSED: Faults = Faults { refused: 100, ..Faults::NONE };

fn tank() -> Path {
    Path::from("tank")
}

async fn fresh() -> (Space, Arc<FaultStore>, Shared) {
    let shared = Shared::new(Arc::new(InMemory::new()));
    let store = FaultStore::new(&shared, Faults::NONE, 1);
    let space = Space::create(store.clone(), tank(), small(1), "host", b"zero").await.unwrap();
    (space, store, shared)
}

async fn write(space: &Space, length: u64, seed: u64) -> u64 {
    let address = space.allocate(length).unwrap();
    space.write(address, Model::bytes(length, seed)).await.unwrap();
    address
}

async fn holds(space: &Space, address: u64, length: u64, seed: u64) -> bool {
    let read = space.read(&[(address, length)], Class::Sync).await.remove(0);
    read.is_ok_and(|bytes| bytes == Model::bytes(length, seed))
}

/// Another host imports after a crash; whatever was late has arrived.
async fn import(store: &Arc<FaultStore>) -> Space {
    let found = Space::look(store.clone(), tank(), small(2)).await.unwrap();
    let space = found.open("other").await.unwrap();
    sleep(Duration::from_secs(300)).await;
    space.sweep().await.unwrap();
    space.tidy().await;
    assert_eq!(space.audit().await.unwrap(), Audit::default());
    space
}

/// The ranges that live.
struct Known(Vec<Range<u64>>);

impl Live for Known {
    fn live(&self, range: Range<u64>) -> Result<Vec<Range<u64>>, String> {
        Ok(self.0.iter().filter(|one| range.contains(&one.start)).cloned().collect())
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_hosts_with_one_name_and_one_seed_one_has_the_pool() {
    let (_, store, _) = fresh().await;
    let look = async || Space::look(store.clone(), tank(), small(7)).await.unwrap();
    let (one, two) = (look().await, look().await);
    let one = one.open("localhost").await.unwrap();
    let error = two.open("localhost").await.err().unwrap();
    assert!(matches!(error, Error::Fenced { .. }), "{error}");
    one.commit(1, b"").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_comes_after_a_failed_commit_is_of_the_next_group() {
    let (space, store, _) = fresh().await;
    let (old, kept) = (write(&space, 4 * KIB, 1).await, write(&space, 4 * KIB, 2).await);
    space.commit(1, b"one").await.unwrap();
    let new = write(&space, 4 * KIB, 3).await;
    store.set(REFUSED);
    assert!(space.commit(2, b"two").await.unwrap_err().transient());
    store.set(Faults::NONE);
    for (group, payload) in [(2, &b"other"[..]), (3, b"two")] {
        let error = space.commit(group, payload).await.unwrap_err();
        assert!(matches!(error, Error::Refused(_)), "{error}");
        assert!(error.to_string().starts_with("group 2 is not stored yet"), "{error}");
    }
    space.resume().await.unwrap();
    // These frees are of group 3, also that of a block which group 2 does not have yet.
    let next = write(&space, 4 * KIB, 4).await;
    for address in [old, new, next] {
        space.free(address, 4 * KIB).unwrap();
    }
    space.commit(2, b"two").await.unwrap();
    store.die();
    let store = FaultStore::new(&Shared::clone(store.shared()), Faults::NONE, 2);
    let other = import(&store).await;
    assert!(holds(&other, old, 4 * KIB, 1).await && holds(&other, kept, 4 * KIB, 2).await);
    assert!(holds(&other, new, 4 * KIB, 3).await);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_was_sent_takes_no_write_after_it_failed() {
    let (space, store, _) = fresh().await;
    store.set(REFUSED);
    let mut blocks = Vec::new();
    for seed in 0..6 {
        blocks.push(write(&space, 64 * KIB, seed).await);
    }
    assert!(space.commit(1, b"").await.is_err());
    // Four uploads hang, two objects wait for their turn. They were sent before, and that may arrive yet.
    store.set(Faults { hung: 100, ..Faults::NONE });
    assert!(timeout(Duration::from_secs(1), space.resume()).await.is_err());
    let other = space.write(blocks[5], Model::bytes(64 * KIB, 9));
    let error = timeout(Duration::from_secs(1), other).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("its object is sent"), "{error}");
    store.set(Faults::NONE);
    while space.commit(1, b"").await.is_err() {}
    assert!(holds(&space, blocks[5], 64 * KIB, 5).await);
}

#[tokio::test(start_paused = true)]
async fn of_blocks_that_live_in_part_only_the_live_part_is_copied() {
    let (space, store, _) = fresh().await;
    let mut blocks = Vec::new();
    for seed in 0..64 {
        blocks.push(write(&space, 64 * KIB, seed).await);
    }
    space.commit(1, b"").await.unwrap();
    for address in &blocks {
        space.free(address + SECTOR, 64 * KIB - SECTOR).unwrap();
    }
    space.commit(2, b"").await.unwrap();
    let known = Known(blocks.iter().map(|at| *at..at + SECTOR).collect());
    let done = space.reclaim(&known, u64::MAX).await.unwrap();
    assert_eq!((done.objects, done.copied), (64, 64 * SECTOR));
    space.commit(3, b"").await.unwrap();
    assert_eq!(space.totals().stored, space.totals().live);
    // What was written anew has no dead byte: it is not written anew for that again.
    let again = space.reclaim(&known, u64::MAX).await.unwrap();
    assert!(again.into < done.into, "{again:?}");
    space.commit(4, b"").await.unwrap();
    assert_eq!(space.reclaim(&known, u64::MAX).await.unwrap(), Reclaimed::default());
    let other = import(&store).await;
    for (seed, address) in blocks.iter().enumerate() {
        let read = other.read(&[(*address, SECTOR)], Class::Sync).await.remove(0).unwrap();
        assert_eq!(read, Model::bytes(64 * KIB, seed as u64).slice(..SECTOR as usize));
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_is_dropped_goes_on_with_the_same_call() {
    for millis in [1, 700, 1500, 3000, 6000, 12_000, 25_000] {
        let (space, store, _) = fresh().await;
        let first = write(&space, 4 * KIB, 1).await;
        space.commit(1, b"one").await.unwrap();
        let second = write(&space, 4 * KIB, 2).await;
        space.free(first, 4 * KIB).unwrap();
        let late = Duration::from_secs(20);
        store.set(Faults { slow: 100, late, ..Faults::NONE });
        let _ = timeout(Duration::from_millis(millis), space.commit(2, b"two")).await;
        store.set(Faults::NONE);
        let again = space.commit(2, b"two").await;
        assert!(again.is_ok() || space.commit(3, b"three").await.is_ok(), "{millis}: {again:?}");
        assert!(holds(&import(&store).await, second, 4 * KIB, 2).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reclaim_that_is_dropped_is_made_again() {
    let (space, store, _) = fresh().await;
    let (dead, live) = (write(&space, 48 * KIB, 1).await, write(&space, 8 * KIB, 2).await);
    space.commit(1, b"").await.unwrap();
    space.free(dead, 48 * KIB).unwrap();
    space.commit(2, b"").await.unwrap();
    let known = Known(std::iter::once(live..live + 8 * KIB).collect());
    store.set(Faults { hung: 100, ..Faults::NONE });
    assert!(timeout(Duration::from_secs(2), space.reclaim(&known, u64::MAX)).await.is_err());
    store.set(Faults::NONE);
    assert_eq!(space.reclaim(&known, u64::MAX).await.unwrap().objects, 1);
}

#[tokio::test(start_paused = true)]
async fn a_root_that_is_gone_for_a_while_and_a_conflict_fence_no_host() {
    let (space, _, shared) = fresh().await;
    let root = tank().join("commit");
    let away = tank().join("away");
    shared.inner.rename(&root, &away).await.unwrap();
    for _ in 0..2 {
        let error = space.commit(1, b"one").await.unwrap_err();
        assert!(matches!(error, Error::Rootless { .. }) && error.transient(), "{error}");
    }
    shared.inner.rename(&away, &root).await.unwrap();
    // It has another version now.
    space.commit(1, b"one").await.unwrap();

    let (space, store, _) = fresh().await;
    store.set(Faults { conflict: 100, ..Faults::NONE });
    let error = space.commit(1, b"one").await.unwrap_err();
    assert!(error.transient() && error.cause() == Some(Cause::Unavailable), "{error}");
    store.set(Faults::NONE);
    space.commit(1, b"one").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reclaim_goes_on_after_an_object_that_cannot_be_read() {
    let (space, _, shared) = fresh().await;
    let mut live = Vec::new();
    for seed in 0..40 {
        let (dead, kept) = (write(&space, 4 * KIB, 1).await, write(&space, 28 * KIB, seed).await);
        write(&space, 32 * KIB, 1).await;
        live.push((dead, kept));
    }
    space.commit(1, b"").await.unwrap();
    let mut known = Vec::new();
    for (dead, kept) in &live {
        space.free(*dead, 4 * KIB).unwrap();
        space.free(kept + 28 * KIB, 32 * KIB).unwrap();
        known.push(*kept..kept + 28 * KIB);
    }
    space.commit(2, b"").await.unwrap();
    let folders = shared.inner.list_with_delimiter(Some(&tank())).await.unwrap().common_prefixes;
    shared.inner.delete(&folders[0].clone().join(format!("{:010x}", 0))).await.unwrap();
    let error = space.reclaim(&Known(known), u64::MAX).await.unwrap_err();
    assert_eq!(error.cause(), Some(Cause::Missing), "{error}");
    space.commit(3, b"").await.unwrap();
    assert!(space.totals().objects <= 24, "{:?}", space.totals());
}

#[tokio::test(start_paused = true)]
async fn addresses_that_are_given_up_hold_back_no_group() {
    let (space, store, _) = fresh().await;
    let first = write(&space, 4 * KIB, 1).await;
    let lost = space.allocate(8 * KIB).unwrap();
    let last = write(&space, 4 * KIB, 2).await;
    assert!(space.commit(1, b"").await.is_err());
    assert!(space.abandon(first, 4 * KIB).await.is_err());
    space.abandon(lost, 8 * KIB).await.unwrap();
    assert!(space.abandon(lost, 8 * KIB).await.is_err());
    assert!(space.write(lost, Model::bytes(KIB, 1)).await.is_err());
    space.commit(1, b"").await.unwrap();
    // A group of which nothing is written.
    let lost = space.allocate(8 * KIB).unwrap();
    space.abandon(lost, 8 * KIB).await.unwrap();
    space.commit(2, b"").await.unwrap();
    let after = write(&space, 4 * KIB, 3).await;
    space.commit(3, b"").await.unwrap();
    let other = import(&store).await;
    for (address, seed) in [(first, 1), (last, 2), (after, 3)] {
        assert!(holds(&other, address, 4 * KIB, seed).await);
    }
    assert!(!holds(&other, lost, 8 * KIB, 1).await);
}

#[tokio::test(start_paused = true)]
async fn a_prefix_with_other_objects_and_a_store_without_conditions_are_refused() {
    let (_, store, shared) = fresh().await;
    store.set(Faults { unconditional: true, ..Faults::NONE });
    let found = Space::look(store.clone(), tank(), small(2)).await.unwrap();
    let error = found.open("other").await.err().unwrap();
    assert!(error.to_string().contains("ignores conditions"), "{error}");
    store.set(Faults::NONE);
    shared.inner.delete(&tank().join("commit")).await.unwrap();
    shared.inner.put(&tank().join("000001").join("0000000007"), "old".into()).await.unwrap();
    let error = Space::create(store, tank(), small(3), "host", b"").await.err().unwrap();
    assert!(
        error.to_string().starts_with("there is an object 'tank/000001/0000000007'"),
        "{error}"
    );
}
