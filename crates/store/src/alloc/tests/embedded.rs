//! The metaslab of a vdev that is kept for intent logs.

use super::*;

/// A request for a log block.
fn log(psize: u64) -> Request<'static> {
    Request { class: Class::Log, allocator: 1, ..request(psize) }
}

/// The class and the metaslab that a block goes to.
fn allocate(a: &Arc<Allocator>, txg: u64, want: &Request<'_>) -> Result<(Class, u64), AllocError> {
    a.allocate(txg, want).map(|(class, dvas)| (class, dvas[0].offset >> 20))
}

#[test]
fn the_emptiest_of_many_is_kept() {
    let full = |empty: usize| (0..65).map(move |i| if i < empty { 4096 } else { 512 });
    assert_eq!(embedded_log(64, []), None);
    assert_eq!(embedded_log(65, []), Some(0));
    assert_eq!(embedded_log(65, full(0)), Some(0), "the first of several");
    assert_eq!(embedded_log(65, full(7)), Some(7));
    assert_eq!(embedded_log(70, full(7)), Some(65), "what is not told of is empty");
    assert_eq!(embedded_log(65, full(7).chain([-1])), Some(7));
}

#[test]
fn log_blocks_go_to_it_and_others_do_not() {
    let vdevs = [(Class::Normal, keeping(5, vdev(0, 20, 8))), (Class::Log, vdev(1, 20, 1))];
    let (a, maps) = allocator(&vdevs);
    for _ in 0..2 {
        assert_eq!(allocate(&a, 1, &log(512 << 10)), Ok((Class::Log, 0)), "a log vdev is first");
    }
    for _ in 0..2 {
        assert_eq!(allocate(&a, 1, &log(512 << 10)), Ok((Class::EmbeddedLog, 5)));
    }
    let (class, metaslab) = allocate(&a, 1, &log(512 << 10)).unwrap();
    assert!(class == Class::Normal && metaslab != 5, "then any");
    a.unallocate(1, &Dva { vdev: 0, offset: 5 << 20, asize: 512 << 10, gang: false }).unwrap();
    // Six metaslabs and a half.
    for n in 0..13 {
        let of = Request { allocator: n % 2, ..request(512 << 10) };
        let (class, metaslab) = allocate(&a, 1, &of).unwrap();
        assert!(class == Class::Normal && metaslab != 5, "{metaslab}");
    }
    let figures = |class| {
        let SpaceFigures { space, allocated, deferred } = a.figures(class);
        (space >> 19, allocated >> 19, deferred >> 19)
    };
    sync(&a, &maps, 1);
    assert_eq!((figures(Class::Normal), figures(Class::EmbeddedLog)), ((14, 14, 0), (2, 1, 0)));
    a.free(2, &Dva { vdev: 0, offset: (5 << 20) + (512 << 10), asize: 512 << 10, gang: false })
        .unwrap();
    sync(&a, &maps, 2);
    assert_eq!((figures(Class::Normal), figures(Class::EmbeddedLog)), ((14, 14, 0), (2, 1, 1)));
    (3..5).for_each(|txg| drop(sync(&a, &maps, txg)));
    assert_eq!((figures(Class::Normal), figures(Class::EmbeddedLog)), ((14, 14, 0), (2, 0, 0)));
    assert_eq!(maps.space(0), 14 << 19);
}

/// Where a pool would fail for want of a sector, it takes what is kept for logs.
#[test]
fn what_must_be_written_is() {
    let (a, _) = allocator(&[(Class::Normal, keeping(0, vdev(0, 20, 4)))]);
    for _ in 0..3 {
        assert_eq!(allocate(&a, 1, &request(1 << 20)).unwrap().0, Class::Normal);
    }
    assert_eq!(allocate(&a, 1, &request(512)), Ok((Class::EmbeddedLog, 0)));
    let refused = AllocError::NoSegment { largest: (1 << 20) - 512 };
    assert_eq!(allocate(&a, 1, &request(1 << 20)), Err(refused), "it can be divided");
    let special = Request { class: Class::Special, ..request(512) };
    assert_eq!(allocate(&a, 1, &special), Ok((Class::EmbeddedLog, 0)));
}

#[test]
fn a_vdev_that_grows_keeps_one_of_the_new_ones() {
    let (a, maps) =
        allocator(&[(Class::Normal, vdev(0, 20, 60)), (Class::Special, vdev(1, 20, 60))]);
    (0..60).for_each(|_| drop(a.allocate(1, &request(1 << 20)).unwrap()));
    sync(&a, &maps, 1);
    a.grow_vdev(0, 4).unwrap();
    a.grow_vdev(1, 40).unwrap();
    let none = BTreeMap::from([(0, None), (1, None)]);
    assert_eq!(a.embedded_logs(), none, "there are not enough");
    a.grow_vdev(0, 4).unwrap();
    let kept = BTreeMap::from([(0, Some(64)), (1, None)]);
    assert_eq!(a.embedded_logs(), kept);
    a.grow_vdev(0, 4).unwrap();
    assert_eq!(a.embedded_logs(), kept, "one is enough");
    assert_eq!(allocate(&a, 2, &log(4096)), Ok((Class::EmbeddedLog, 64)));
    let metaslabs: BTreeSet<u64> =
        (0..11).map(|_| allocate(&a, 2, &request(1 << 20)).unwrap().1).collect();
    assert_eq!(metaslabs, (60..72).filter(|i| *i != 64).collect());
    assert!(a.grow_vdev(2, 1).is_err());
}

#[test]
fn a_metaslab_that_is_not_there_cannot_be_kept() {
    let options = Options { background: false, ..Options::default() };
    let vdevs = [(Class::Normal, keeping(4, vdev(0, 20, 4)))];
    let made = Allocator::new(&vdevs, Arc::new(Sectors(9)), Arc::new(Maps::default()), options);
    assert_eq!(made.err(), Some(AllocError::BadVdev(0)));
}

/// The writer of a log may hold what the end of a group waits for: it takes another metaslab instead of waiting.
#[test]
fn a_log_does_not_wait_for_freed_space() {
    let maps = Arc::new(Maps::default());
    let vdevs = [(Class::Normal, keeping(5, vdev(0, 20, 8)))];
    let a = Allocator::new(&vdevs, Arc::new(Sectors(9)), maps.clone(), Options::default()).unwrap();
    for _ in 0..2 {
        assert_eq!(allocate(&a, 1, &log(512 << 10)), Ok((Class::EmbeddedLog, 5)));
    }
    let changes = a.take_changes(1);
    maps.write(&changes);
    maps.commit(1);
    // The end of the group, in which freed space does not come back yet.
    let on_its_way = a.sync_done(1);
    let (done, finished) = std::sync::mpsc::channel();
    let writer = a.clone();
    let thread = std::thread::spawn(move || done.send(allocate(&writer, 2, &log(512 << 10))));
    let (class, metaslab) =
        finished.recv_timeout(std::time::Duration::from_secs(60)).unwrap().unwrap();
    assert!(class == Class::Normal && metaslab != 5, "{class:?} {metaslab}");
    drop(on_its_way);
    thread.join().unwrap().unwrap();
}
