//! Heartbeats of a host that has claimed a pool and is about to import it.
//!
//! From its claim on ([`DeviceSet::claim`](crate::devices::DeviceSet::claim)) the host has the pool, if no other one claimed it at
//! the same time. But it may read for long before it writes its first transaction group, and a pool that is silent is
//! free for others. So the claim is written again and again, each time as a later uberblock, until the engine that imports the
//! pool writes heartbeats of its own ([`Claim::hand_over`]).
//!
//! A host that was stopped meanwhile, or whose devices did not answer, may have lost the pool to another one by then: if no
//! heartbeat was written for as long as others wait at least, the claim is lost, and stays so.

use crate::host::{self, since_boot};
use crate::tunables;
use cenote_format::label::Uberblock;
use cenote_vdev::{Device, write_heartbeat};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

/// How long the end of a claim waits for a heartbeat that is being written.
const LAST: Duration = Duration::from_secs(5);

/// A device, and log2 of the bytes of its sectors.
pub(crate) type Place = (Arc<dyn Device>, u32);

/// What the last heartbeat was.
struct Beat {
    uberblock: Uberblock,
    /// When its write began ([`since_boot`]).
    last: Duration,
    lost: bool,
    ends: bool,
    /// The thread has ended.
    ended: bool,
}

struct Shared {
    beat: Mutex<Beat>,
    changed: Condvar,
    /// How long the pool may be silent.
    allowed: Duration,
}

/// See the [module](self).
pub(crate) struct Claim(Arc<Shared>);

/// A claim as it is handed over.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The best uberblock on the devices.
    pub uberblock: Uberblock,
    /// When its write began ([`since_boot`]).
    pub last: Duration,
    /// How long from then on the pool may be silent.
    pub allowed: Duration,
}

impl Shared {
    /// Whether the pool was never silent for too long.
    fn holds(&self, beat: &mut Beat) -> bool {
        beat.lost |= since_boot().saturating_sub(beat.last) > self.allowed;
        !beat.lost
    }

    /// Writes a heartbeat in turn to each of `places`, until the claim ends or is lost.
    fn run(&self, places: &[Place]) {
        let usual = Duration::from_millis(tunables::MULTIHOST_INTERVAL.get());
        let pause = usual.min(self.allowed / 8);
        let mut wait = Duration::ZERO;
        for (device, ashift) in places.iter().cycle() {
            let (next, begun) = {
                let mut beat = self.beat.lock();
                let until = std::time::Instant::now() + std::mem::replace(&mut wait, pause);
                while !beat.ends && !self.changed.wait_until(&mut beat, until).timed_out() {}
                if beat.ends || !self.holds(&mut beat) {
                    return;
                }
                let now = crate::time::since_1970();
                (host::next_heartbeat(&beat.uberblock, now.as_secs()), since_boot())
            };
            match write_heartbeat(device.as_ref(), *ashift, &next) {
                Ok(()) => {
                    let mut beat = self.beat.lock();
                    (beat.uberblock, beat.last) = (next, begun);
                }
                Err(error) => {
                    tracing::debug!(path = %device.path().display(), %error, "heartbeat");
                }
            }
        }
    }
}

impl Claim {
    /// Holds a claim whose write began at `begun`. Heartbeats go to `places`; without a thread for them the claim holds for
    /// as long as that is.
    pub fn hold(uberblock: Uberblock, begun: Duration, places: Vec<Place>) -> Claim {
        // The other side waits twice as long as the side that has the pool may be silent.
        let allowed = host::quiet_time(&uberblock) / 2;
        // Where others wait for less than a second or two it is looked at after that long, and was the best one by then.
        let last = begun.max(since_boot().saturating_sub(allowed / 2));
        let beat = Beat { uberblock, last, lost: false, ends: false, ended: false };
        let shared = Arc::new(Shared { beat: Mutex::new(beat), changed: Condvar::new(), allowed });
        let theirs = shared.clone();
        let run = move || {
            theirs.run(&places);
            drop(places);
            theirs.beat.lock().ended = true;
            theirs.changed.notify_all();
        };
        let spawned = std::thread::Builder::new().name("mmp-claim".into()).spawn(run);
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread for multihost writes");
            shared.beat.lock().ended = true;
        }
        Claim(shared)
    }

    /// Whether this host still has the pool for itself.
    pub fn holds(&self) -> bool {
        self.0.holds(&mut self.0.beat.lock())
    }

    /// Ends the heartbeats. `None`: the claim is lost.
    pub fn hand_over(self) -> Option<Claimed> {
        self.end();
        let mut beat = self.0.beat.lock();
        let (allowed, last) = (self.0.allowed, beat.last);
        let holds = self.0.holds(&mut beat);
        holds.then(|| Claimed { uberblock: beat.uberblock.clone(), last, allowed })
    }

    fn end(&self) {
        let mut beat = self.0.beat.lock();
        beat.ends = true;
        self.0.changed.notify_all();
        let until = std::time::Instant::now() + LAST;
        while !beat.ended && !self.0.changed.wait_until(&mut beat, until).timed_out() {}
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunables::MULTIHOST_INTERVAL;
    use cenote_format::{ByteOrder, blkptr::BlockPointer, label::MMP_MAGIC};
    use cenote_vdev::inject::{FaultyDevice, MemDevice};

    /// A claim of a pool that may be silent for so many times 20 ms.
    fn claim(device: &Arc<FaultyDevice>, fails: u64) -> Claim {
        MULTIHOST_INTERVAL.set(100).unwrap();
        let uberblock = Uberblock {
            order: ByteOrder::Little,
            version: 5000,
            txg: 100,
            guid_sum: 0,
            timestamp: 1,
            rootbp: BlockPointer::HOLE,
            software_version: 5000,
            mmp_magic: MMP_MAGIC,
            mmp_delay: 1,
            mmp_config: 0b111 | 20 << 8 | fails << 48,
            checkpoint_txg: 0,
            raidz_reflow: 0,
        };
        Claim::hold(uberblock, since_boot(), vec![(device.clone() as Arc<dyn Device>, 9)])
    }

    #[test]
    fn a_claim_is_held_by_heartbeats() {
        let device = FaultyDevice::new(MemDevice::new("memory", vec![0; 4 << 20]));
        let held = claim(&device, 100);
        std::thread::sleep(Duration::from_millis(2500));
        assert!(held.holds());
        let first = held.0.beat.lock().uberblock.rank();
        let claimed = held.hand_over().unwrap();
        assert!(claimed.uberblock.rank() >= first && first.1 > 1);
        assert!(since_boot() - claimed.last < claimed.allowed && device.writes() > 8);
        // None is written any more.
        let writes = device.writes();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(device.writes(), writes);
    }

    #[test]
    fn a_claim_without_heartbeats_is_lost() {
        let device = FaultyDevice::new(MemDevice::new("memory", vec![0; 4 << 20]));
        device.fail_writes(0..u64::MAX);
        let held = claim(&device, 10);
        std::thread::sleep(Duration::from_millis(500));
        // Whatever is written later.
        device.repair();
        assert!(!held.holds() && held.hand_over().is_none());
    }
}
