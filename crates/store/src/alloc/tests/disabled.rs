//! Metaslabs that are disabled for a while, as their devices are told what is free there.

use super::*;

/// Nothing is allocated in a disabled metaslab. What needs it waits, and says so; nothing else does.
#[test]
fn what_needs_a_disabled_metaslab_waits() {
    let vdevs = [(Class::Normal, vdev(0, 20, 2)), (Class::Log, vdev(1, 20, 2))];
    let (a, _) = allocator(&vdevs);
    let room = Room { ranges: 8, bytes: 1_234_567 };
    let whole = 1 << 20;
    let disabled = a.disable_free(0, 0, 0, room).unwrap();
    assert_eq!(disabled.ranges, [(0, whole)]);
    // All of the other one is given out, and nothing of this one.
    let other = || a.allocate(1, &request(64 << 10)).unwrap().1[0];
    let given: Vec<Dva> = (0..16).map(|_| other()).collect();
    assert!(given.iter().all(|dva| dva.offset >= whole));
    assert_eq!(a.claim(1, 1, 0, [(0, 512)].into_iter()).unwrap(), 512);
    let log = Request { class: Class::Log, ..request(4096) };
    assert_eq!(a.allocate(1, &log).unwrap().1[0].vdev, 1);
    assert!(!disabled.is_in_the_way());
    std::thread::scope(|scope| {
        let waits = scope.spawn(other);
        while !disabled.is_in_the_way() {
            std::thread::yield_now();
        }
        drop(disabled);
        assert!(waits.join().unwrap().offset < whole);
    });
    let disabled = a.disable_free(0, 0, 0, room).unwrap();
    let wanted = (whole - 4096, whole);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| a.claim(1, 0, 0, [wanted].into_iter()).unwrap());
        while !disabled.is_in_the_way() {
            std::thread::yield_now();
        }
        drop(disabled);
        assert_eq!(waits.join().unwrap(), 4096);
    });
}

/// The writer of a log does not wait; others only if the classes that theirs falls back to have nothing.
#[test]
fn a_disabled_metaslab_is_not_waited_for_if_there_is_space_elsewhere() {
    let vdevs = [
        (Class::Normal, vdev(0, 20, 1)),
        (Class::Log, vdev(1, 20, 1)),
        (Class::Special, vdev(2, 20, 1)),
    ];
    let (a, _) = allocator(&vdevs);
    let room = Room { ranges: 8, bytes: 1_234_567 };
    let of = |class, size| Request { class, ..request(size) };
    let disabled: Vec<_> = (1..3).map(|vdev| a.disable_free(vdev, 0, 0, room).unwrap()).collect();
    for class in [Class::Log, Class::Special] {
        assert_eq!(a.allocate(1, &of(class, 4096)).unwrap().1[0].vdev, 0);
    }
    // The rest of the last class.
    while a.allocate(1, &of(Class::Log, 4096)).is_ok() {}
    assert!(a.allocate(1, &of(Class::Log, 4096)).is_err());
    assert!(disabled.iter().all(|disabled| !disabled.is_in_the_way()));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| a.allocate(1, &of(Class::Special, 4096)).unwrap().1[0].vdev);
        while !disabled[1].is_in_the_way() {
            std::thread::yield_now();
        }
        drop(disabled);
        assert_eq!(waits.join().unwrap(), 2);
    });
    assert_eq!(a.allocate(1, &of(Class::Log, 4096)).unwrap().1[0].vdev, 1);
}

/// Ranges are cut off at sectors, and go on where they were cut off.
#[test]
fn free_ranges_are_whole_sectors() {
    let (a, _) = allocator(&[(Class::Normal, vdev(0, 20, 1))]);
    let taken = |at: u64| (at, at + 4096);
    for at in (4096..1 << 20).step_by(32 << 10) {
        a.claim(1, 0, 0, [taken(at)].into_iter()).unwrap();
    }
    for bytes in [1, 1000, 12_345, 100_001, u64::MAX] {
        let (mut from, mut all) = (0, RangeTree::new());
        loop {
            let disabled = a.disable_free(0, 0, from, Room { ranges: 3, bytes }).unwrap();
            let Some((_, end)) = disabled.ranges.last().copied() else { break };
            assert!(disabled.ranges.len() <= 3);
            for (start, end) in &disabled.ranges {
                assert!(*start >= from && start % 512 == 0 && end % 512 == 0);
                all.add(*start, *end).unwrap();
            }
            let sum: u64 = disabled.ranges.iter().map(|(start, end)| end - start).sum();
            assert!(sum <= bytes.max(512));
            from = end;
        }
        assert_eq!((all.space(), all.len()), ((1 << 20) - 32 * 4096, 33));
    }
}
