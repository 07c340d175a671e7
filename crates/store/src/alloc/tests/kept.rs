//! What a checkpoint keeps.

use super::*;
use crate::alloc::Kept;

#[test]
fn what_is_kept_is_not_allocated_until_it_is_freed() {
    let (a, maps) = allocator(&[(Class::Normal, vdev(0, 20, 1))]);
    let old: Vec<Dva> = (0..8).map(|_| a.allocate(1, &request(64 << 10)).unwrap().1[0]).collect();
    sync(&a, &maps, 1);
    a.set_checkpoint(Some(1));
    let new: Vec<Dva> = (0..8).map(|_| a.allocate(2, &request(64 << 10)).unwrap().1[0]).collect();
    sync(&a, &maps, 2);
    assert_eq!(a.allocate(3, &request(64 << 10)), Err(AllocError::NoSpace));
    old.iter().for_each(|dva| a.free_born(3, dva, 1).unwrap());
    new.iter().for_each(|dva| a.free_born(3, dva, 2).unwrap());
    assert!(matches!(a.free_born(3, &old[0], 1), Err(AllocError::FreedTwice { .. })));
    assert!(a.has_changes(3));
    assert_eq!(a.take_kept(3), [Kept { vdev: 0, ranges: vec![(0, 512 << 10)] }]);
    assert_eq!((a.kept(), a.take_kept(3).len()), (512 << 10, 0));
    assert_eq!(sync(&a, &maps, 3)[0].frees, [(512 << 10, 1 << 20)]);
    assert!(!a.has_changes(3));
    (4..8).for_each(|txg| drop(sync(&a, &maps, txg)));
    // What is not the checkpoint's came back, and nothing else.
    let again: Vec<Dva> = (0..8).map(|_| a.allocate(8, &request(64 << 10)).unwrap().1[0]).collect();
    assert!(again.iter().all(|dva| dva.offset >= 512 << 10), "{again:?}");
    assert_eq!(a.allocate(8, &request(64 << 10)), Err(AllocError::NoSpace));
    a.set_checkpoint(None);
    a.free_kept(8, &Dva { vdev: 0, offset: 0, asize: 512 << 10, gang: false }).unwrap();
    (8..12).for_each(|txg| drop(sync(&a, &maps, txg)));
    assert_eq!((a.kept(), a.allocate(12, &request(512 << 10)).unwrap().1[0].offset), (0, 0));
    // What a damaged space map has twice is freed once.
    let twice = Dva { vdev: 0, offset: 0, asize: 512 << 10, gang: false };
    a.begin_with_kept(twice.asize);
    a.free(12, &twice).unwrap();
    assert!(matches!(a.free_kept(12, &twice), Err(AllocError::FreedTwice { .. })));
    assert_eq!(a.kept(), 0);
}
