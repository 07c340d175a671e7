//! Pools that may be another host's by now: nothing is written to their devices any more.
//!
//! A pool that is given up is fenced at once ([`VdevTree::fence`]). One that other hosts may take after some silence has a
//! time at which it is fenced by itself ([`VdevTree::fence_at`]), whatever thread would have to notice: a system that slept, or
//! a program that was stopped, finds it passed before it writes anything.

use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::VdevTree;
use crate::vdev::Vdev;

/// Time since the system started, sleep included.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl VdevTree {
    /// Has nothing written to any leaf from now on, whoever wants to: neither what is queued, nor by other trees over
    /// the same leaves. What is in a device already is written.
    pub fn fence(&self) {
        self.leaves().iter().for_each(|leaf| leaf.fenced.store(true, SeqCst));
    }

    /// Whether nothing may be written to some leaf.
    pub fn is_fenced(&self) -> bool {
        self.leaves().iter().any(|leaf| leaf.is_fenced())
    }

    /// Has nothing written to any leaf from this time on ([`since_boot`]), unless another one is set before; `None`: at no time.
    pub fn fence_at(&self, when: Option<Duration>) {
        let when = when.map_or(u64::MAX, nanoseconds);
        self.leaves().iter().for_each(|leaf| leaf.fenced_at.store(when, SeqCst));
    }
}

impl Vdev {
    /// Whether nothing may be written to the leaf.
    pub(crate) fn is_fenced(&self) -> bool {
        let at = self.fenced_at.load(SeqCst);
        self.fenced.load(SeqCst) || at != u64::MAX && nanoseconds(since_boot()) > at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crate::traffic::Content;
    use crate::vdev::Kind;
    use crate::write::BlockWrite;
    use cenote_format::abd::Abd;

    #[test]
    fn nothing_is_written_once_the_time_has_passed() {
        let disks = testing::leaves(2, 1 << 20);
        let top = testing::mirror_like(Kind::Mirror, 0, testing::files(&disks));
        let tree = testing::tree(vec![top]);
        let write = |txg: u64| {
            let (data, content) = (Abd::from_vec(vec![1; 512]), Content::Data);
            let block = BlockWrite { vdev: 0, offset: 0, data, txg, content, sides: Vec::new() };
            tree.write_many(&[block])[0].is_ok()
        };
        tree.fence_at(Some(since_boot() + Duration::from_secs(60)));
        assert!(write(1));
        tree.fence_at(Some(since_boot()));
        std::thread::sleep(Duration::from_millis(2));
        let before: Vec<u64> = disks.iter().map(|disk| disk.faults.writes()).collect();
        assert!(!write(2));
        assert!(disks.iter().map(|disk| disk.faults.writes()).eq(before));
        tree.fence_at(None);
        assert!(write(3));
        tree.fence();
        assert!(!write(4));
    }
}
