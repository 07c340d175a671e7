//! Devices that are slower than they are: to see what a remote or a spun-down disk would do.
//!
//! A [`SlowDevice`] wraps another device. Each read, write and flush takes a latency, fixed or drawn
//! from a seeded uniform distribution; at most so many go on at once; and all bytes pass one link of a
//! given bandwidth. Nothing of it is written to disk: devices are wrapped when they are opened, as the
//! tunables `vdev_simulated_*` say then ([`as_tuned`]), or by hand.
//!
//! Operations are not run later, only answered later. Each is given to the *lane* that is free first, where
//! it begins when the lane is free and ends a latency later; a batch is answered when its last operation has
//! ended. So no threads are needed, and the answers come at the times at which a device with so many lanes
//! would give them.

use parking_lot::Mutex;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::{Device, Identity, ReadReq, WriteReq};
use crate::growing::Growing;
use crate::tunables;

/// How slow a device is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slowness {
    /// What each operation takes.
    pub latency: Duration,
    /// What it takes at most beyond that; how much is drawn for each operation.
    pub spread: Duration,
    /// Most operations at once; 0: any number.
    pub parallel: usize,
    /// Bytes per second that pass; 0: any number.
    pub bandwidth: u64,
    /// What the draws begin with.
    pub seed: u64,
}

/// What is going on.
struct State {
    /// When each lane is free.
    lanes: Vec<Instant>,
    /// When the link is free.
    link: Instant,
    /// State of the draws (xorshift).
    random: u64,
}

/// A device that answers late; see the [module](self).
pub struct SlowDevice {
    inner: Arc<dyn Device>,
    slowness: Slowness,
    state: Mutex<State>,
}

impl SlowDevice {
    /// Makes `inner` slow.
    pub fn new(inner: Arc<dyn Device>, slowness: Slowness) -> SlowDevice {
        let now = Instant::now();
        let random = slowness.seed | 1;
        let state = State { lanes: vec![now; slowness.parallel], link: now, random };
        SlowDevice { inner, slowness, state: Mutex::new(state) }
    }

    /// Waits until operations of so many bytes each, which begin now, have ended.
    fn wait(&self, operations: impl Iterator<Item = usize>) {
        let now = Instant::now();
        let mut end = now;
        {
            let mut state = self.state.lock();
            for bytes in operations {
                end = end.max(state.end_of(&self.slowness, now, bytes));
            }
        }
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
    }
}

impl State {
    fn end_of(&mut self, how: &Slowness, now: Instant, bytes: usize) -> Instant {
        let latency = how.latency + how.spread.mul_f64(self.draw());
        let lane = self.lanes.iter_mut().min();
        let begin = lane.as_ref().map_or(now, |free| now.max(**free));
        let mut end = begin + latency;
        if how.bandwidth > 0 {
            let takes = Duration::from_secs_f64(bytes as f64 / how.bandwidth as f64);
            self.link = self.link.max(now) + takes;
            end = end.max(self.link + latency);
        }
        if let Some(free) = lane {
            *free = end;
        }
        end
    }

    /// A number from 0 to 1.
    fn draw(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// `device`, as slow as the tunables say now.
pub fn as_tuned(device: Arc<dyn Device>) -> Arc<dyn Device> {
    let slowness = Slowness {
        latency: Duration::from_nanos(tunables::SIMULATED_LATENCY.get()),
        spread: Duration::from_nanos(tunables::SIMULATED_SPREAD.get()),
        parallel: tunables::SIMULATED_PARALLEL.count(),
        bandwidth: tunables::SIMULATED_BANDWIDTH.get(),
        seed: 0x9e37_79b9_7f4a_7c15,
    };
    if slowness == (Slowness { seed: slowness.seed, ..Slowness::default() }) {
        return device;
    }
    Arc::new(SlowDevice::new(device, slowness))
}

impl Device for SlowDevice {
    fn below(&self) -> Option<&dyn Device> {
        Some(&*self.inner)
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn size_by_now(&self) -> u64 {
        self.inner.size_by_now()
    }

    fn grow(&self, size: u64) {
        self.inner.grow(size);
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn unread(&self, offset: u64, len: u64) -> u64 {
        self.inner.unread(offset, len)
    }

    fn only_read(&self) -> bool {
        self.inner.only_read()
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        self.inner.read_batch(reqs);
        self.wait(reqs.iter().map(|req| req.len));
    }

    fn writable(&self) -> bool {
        self.inner.writable()
    }

    fn write_batch(&self, reqs: &mut [WriteReq]) {
        self.inner.write_batch(reqs);
        self.wait(reqs.iter().map(|req| req.data.len()));
    }

    fn can_trim(&self) -> bool {
        self.inner.can_trim()
    }

    fn trim(&self, offset: u64, len: u64) -> io::Result<()> {
        let done = self.inner.trim(offset, len);
        self.wait(std::iter::once(0));
        done
    }

    fn flush(&self) -> io::Result<()> {
        let done = self.inner.flush();
        self.wait(std::iter::once(0));
        done
    }

    fn growing(&self) -> Option<Arc<dyn Growing>> {
        self.inner.growing()
    }

    fn identity(&self) -> Option<Identity> {
        self.inner.identity()
    }

    /// What it takes goes by its lanes: a batch is one, whatever the device before which it stands does at once.
    fn depth(&self, _: usize, _: u64) -> usize {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(how: Slowness, bytes: &[usize]) -> Vec<Duration> {
        let now = Instant::now();
        let lanes = vec![now; how.parallel];
        let mut state = State { lanes, link: now, random: how.seed | 1 };
        bytes.iter().map(|bytes| state.end_of(&how, now, *bytes) - now).collect()
    }

    #[test]
    fn lanes_and_the_link_are_waited_for() {
        let latency = Duration::from_millis(10);
        let ms = |n| Duration::from_millis(n);
        let how = Slowness { latency, ..Slowness::default() };
        assert_eq!(ends(how, &[1, 1, 1]), [ms(10); 3]);
        let two = Slowness { parallel: 2, ..how };
        assert_eq!(ends(two, &[1, 1, 1, 1]), [ms(10), ms(10), ms(20), ms(20)]);
        let narrow = Slowness { bandwidth: 1_000_000, ..how };
        assert_eq!(ends(narrow, &[10_000, 10_000]), [ms(20), ms(30)]);
    }

    #[test]
    fn draws_come_again_and_stay_within_the_spread() {
        let how = Slowness { spread: Duration::from_millis(5), seed: 7, ..Slowness::default() };
        let first = ends(how, &[0; 100]);
        assert_eq!(first, ends(how, &[0; 100]));
        assert!(first.iter().all(|end| *end <= how.spread));
        assert!(first.iter().any(|end| *end > how.spread / 2));
        assert!(first.iter().any(|end| *end < how.spread / 2));
    }
}
