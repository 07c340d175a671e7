//! Writing a pattern to what is free (`vdev_initialize_write`).

use std::io;
use std::ops::Range;
use std::sync::Arc;

use cenote_format::abd::Abd;

use crate::VdevTree;
use crate::device::{Device, WriteReq};
use crate::queue::{self, LeafWork, Priority};
use crate::threads::Work;
use crate::vacant;
use crate::vdev::Vdev;
use crate::write::submit;

/// A piece of the pattern.
struct Piece {
    leaf: Arc<Vdev>,
    range: Range<u64>,
    data: Abd,
    done: io::Result<()>,
}

impl LeafWork for Piece {
    fn leaf(&self) -> &Arc<Vdev> {
        &self.leaf
    }

    fn requests(&self) -> usize {
        1
    }
}

impl Work for Piece {
    fn run(&mut self) {
        let (leaf, data) = (&self.leaf, self.data.clone());
        let write = |_: &dyn Device, range: Range<u64>| {
            let mut request = [WriteReq::new(range.start, data)];
            // The next group flushes it: only then it counts as done.
            leaf.written().mark();
            submit::submit(leaf, Priority::Initializing, &mut request, |_| true);
            leaf.written().mark();
            let [request] = request;
            request.take()
        };
        self.done = vacant::on_device(leaf, &self.range, write);
        if vacant::has_failed(&self.done) {
            leaf.stats.initialize_error();
        }
    }
}

impl VdevTree {
    /// Writes `data` to byte `offset` of the allocatable space of `leaf`, where nothing is allocated.
    ///
    /// # Errors
    /// The device failed, or is not there; it is not all of its space.
    pub fn initialize(&self, leaf: &Arc<Vdev>, offset: u64, data: Abd) -> io::Result<()> {
        let end = offset.checked_add(data.len() as u64).ok_or(io::ErrorKind::InvalidInput)?;
        let range = offset..end;
        let done = Err(io::ErrorKind::NotFound.into());
        let piece = Piece { leaf: leaf.clone(), range, data, done };
        let done = queue::run(&self.pool, Priority::Initializing, vec![piece]).pop();
        done.map_or_else(|| Err(io::Error::other("a write failed")), |piece| piece.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use std::time::Duration;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_is_under_way_is_waited_for_when_a_leaf_leaves() {
        let leaves = testing::leaves(2, 1 << 20);
        let mirror = testing::mirror_like(crate::vdev::Kind::Mirror, 0, testing::files(&leaves));
        let tree = testing::tree(vec![mirror]);
        let leaf = tree.leaves()[0].clone();
        let write = |tree: &VdevTree| tree.initialize(&leaf, 4096, Abd::from(vec![7; 4096]));
        for trims in [false, true] {
            let work = |tree: &VdevTree| match trims {
                true => tree.trim(&leaf, 4096..8192),
                false => write(tree),
            };
            leaf.set_leaving(false);
            assert!(leaf.is_vacant_idle_within(SHORT));
            leaves[0].faults.set_hung(true);
            std::thread::scope(|scope| {
                let hangs = scope.spawn(|| work(&tree));
                while leaves[0].faults.waiting() == 0 {
                    std::thread::yield_now();
                }
                leaf.set_leaving(true);
                assert!(!leaf.is_vacant_idle_within(SHORT));
                leaves[0].faults.set_hung(false);
                assert!(leaf.is_vacant_idle_within(LONG));
                hangs.join().unwrap().unwrap();
            });
            assert_eq!(work(&tree).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
        leaf.set_leaving(false);
        tree.flush_all().unwrap();
        assert!(leaf.written().dirty().is_none());
        write(&tree).unwrap();
        // The next flush of all makes it durable.
        assert!(leaf.written().dirty().is_some());
        testing::read(&tree, 4096, &[7; 4096]).unwrap();
    }
}
