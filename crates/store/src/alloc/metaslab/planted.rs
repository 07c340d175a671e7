//! Faults planted in the space of a metaslab: each is found before it can get on disk.

#![allow(clippy::unwrap_used)]

use super::super::testing::{Maps, Sectors, allocator, sync, vdev};
use super::super::{AllocError, Allocator, Class, Options, Request};
use super::*;
use cenote_format::blkptr::Dva;
use cenote_format::invariant::{caught, is_broken};

const REQUEST: Request<'static> = Request {
    psize: 4096,
    copies: 1,
    class: Class::Normal,
    allocator: 0,
    gang: false,
    near: None,
    among: None,
};

/// An allocator with threads of its own.
fn in_background() -> (Arc<Allocator>, Arc<Maps>) {
    let maps = Arc::new(Maps::default());
    let vdevs = [(Class::Normal, vdev(0, 20, 4))];
    let options = Options { background: true, ..Options::default() };
    (Allocator::new(&vdevs, Arc::new(Sectors(9)), maps.clone(), options).unwrap(), maps)
}

/// A block that is on disk in group 1, and its metaslab.
fn one_block(a: &Arc<Allocator>, maps: &Maps) -> Dva {
    let dva = a.allocate(1, &REQUEST).unwrap().1[0];
    sync(a, maps, 1);
    dva
}

fn with_state<T>(a: &Allocator, dva: &Dva, f: impl FnOnce(&mut State) -> T) -> T {
    let group = a.groups().next().unwrap();
    let metaslab = group.metaslab_at(dva.offset).unwrap();
    f(&mut metaslab.state.lock())
}

#[test]
fn a_free_of_what_is_free_says_which_vdev_and_what() {
    let (a, maps) = allocator(&[(Class::Normal, vdev(0, 20, 4))]);
    let dva = one_block(&a, &maps);
    a.free(2, &dva).unwrap();
    for txg in 2..4 {
        let again = a.free(txg, &dva).unwrap_err();
        assert!(matches!(again, AllocError::FreedTwice { .. }), "{again}");
        let (start, why) = (format!("{:#x}", dva.offset), again.to_string());
        assert!(why.contains("vdev 0 metaslab 0") && why.contains(&start), "{why}");
        sync(&a, &maps, txg);
    }
    // It waits, it is free in memory, and it is so after it was unloaded and loaded.
    (4..6).for_each(|txg| drop(sync(&a, &maps, txg)));
    assert!(matches!(a.free(6, &dva), Err(AllocError::FreedTwice { .. })));
}

/// While a metaslab is not loaded, nobody knows that a block in it is free already.
#[test]
fn a_free_of_what_is_free_in_a_metaslab_that_is_not_loaded_is_found_at_its_load() {
    let (a, _) = allocator(&[(Class::Normal, vdev(0, 20, 4))]);
    a.free(1, &Dva { vdev: 0, offset: 3 << 20, asize: 4096, gang: false }).unwrap();
    assert_eq!(a.alarm().why(), None);
    assert!(!a.load(0, 3));
    let why = a.alarm().why().unwrap();
    let what = "vdev 0 metaslab 3: 0x300000-0x301000 was freed after group 0, and was free already";
    assert_eq!(why, what);
    // Nothing is given out there.
    let group = a.groups().next().unwrap();
    assert!(!group.metaslabs().get(3).unwrap().is_loaded());
}

/// The space map lost a free: what it says of the block is older than what was written.
#[test]
fn a_free_that_the_space_map_has_lost_is_found_at_its_load() {
    let (a, maps) = allocator(&[(Class::Normal, vdev(0, 20, 4))]);
    let dva = one_block(&a, &maps);
    a.free(2, &dva).unwrap();
    drop(a.take_changes(2));
    maps.commit(2);
    drop(a.sync_done(2));
    a.make_room(0);
    let metaslab = dva.offset >> 20;
    with_state(&a, &dva, |state| assert!(state.free.take().is_some() || metaslab == 0));
    assert!(!a.load(0, metaslab));
    let why = a.alarm().why().unwrap();
    assert!(why.contains("was freed, and is not free in group 2"), "{why}");
}

/// In the thread that gives back freed space: the pool is told, and no thread waits for ever.
#[test]
fn space_that_comes_back_and_is_free_sounds_the_alarm() {
    let (a, maps) = in_background();
    let dva = one_block(&a, &maps);
    a.free(2, &dva).unwrap();
    (2..4).for_each(|txg| drop(sync(&a, &maps, txg)));
    a.wait_deferred();
    with_state(&a, &dva, |state| {
        state.free.as_mut().unwrap().add(dva.offset, dva.offset + dva.asize).unwrap();
        state.allocated -= dva.asize;
    });
    sync(&a, &maps, 4);
    a.wait_deferred();
    let why = a.alarm().why().unwrap().to_string();
    assert!(why.contains("metaslab-defer") && why.contains("vdev 0 metaslab"), "{why}");
    assert!(why.contains("freed in group 2, and free"), "{why}");
    // The thread goes on, and so do those that wait for it.
    sync(&a, &maps, 5);
    a.wait_deferred();
    assert_eq!(a.alarm().why(), Some(why.as_str()));
}

#[test]
fn a_count_of_allocated_bytes_that_is_off_is_found() {
    let (a, maps) = allocator(&[(Class::Normal, vdev(0, 20, 4))]);
    let dva = one_block(&a, &maps);
    with_state(&a, &dva, |state| state.allocated += 512);
    let why = caught(|| sync(&a, &maps, 2)).unwrap_err();
    assert!(is_broken(&why) && why.contains("bytes free and 4608 not, of 1048576"), "{why}");
}

#[test]
fn freed_bytes_that_are_counted_twice_are_found() {
    let (a, maps) = allocator(&[(Class::Normal, vdev(0, 20, 4))]);
    let dva = one_block(&a, &maps);
    a.free(2, &dva).unwrap();
    a.groups().next().unwrap().defer(2, 512);
    (2..4).for_each(|txg| drop(sync(&a, &maps, txg)));
    let why = caught(|| sync(&a, &maps, 4)).unwrap_err();
    assert!(why.contains("vdev 0: 4096 bytes of 4608 are free after 4"), "{why}");
}

#[test]
fn an_allocation_of_what_is_allocated_is_found() {
    let (a, maps) = allocator(&[(Class::Normal, vdev(0, 20, 4))]);
    let dva = one_block(&a, &maps);
    let next = dva.offset + dva.asize;
    with_state(&a, &dva, |state| {
        state.allocs.entry(2).or_default().add(next, next + 4096).unwrap();
    });
    let why = caught(|| a.allocate(2, &REQUEST)).unwrap_err();
    assert!(why.contains("free and allocated in group 2"), "{why}");
}

#[test]
fn a_group_that_ends_before_the_last_one_is_found() {
    let (a, maps) = allocator(&[(Class::Normal, vdev(0, 20, 4))]);
    (1..4).for_each(|txg| drop(sync(&a, &maps, txg)));
    let why = caught(|| a.sync_done(2)).map(drop).unwrap_err();
    assert!(why.contains("group 2 ends after group 3"), "{why}");
}
