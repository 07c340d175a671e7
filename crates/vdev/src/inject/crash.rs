//! A device in memory that loses power.
//!
//! A [`CrashDevice`] keeps what is durable apart from what was written since the last flush. Reads
//! see everything, as through a cache. [`CrashDevice::crash`] says what could be left after the
//! loss of power: what is durable, and of the rest any part, since a disk's cache writes in any
//! order and what it was writing may be cut off between two sectors. Only sectors are whole:
//! each has one of the contents that it had since the last flush.
//!
//! A [`Power`] supply, which several devices share, fails after a number of operations, so
//! that a crash can be put at any point of what is tested.

use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_format::SECTOR;
use cenote_format::abd::Abd;

use super::{put, write_garbage};
use crate::device::{Device, ReadReq, WriteReq};

/// The power supply of one or more devices.
pub struct Power(Mutex<Supply>);

#[derive(Default)]
struct Supply {
    /// Writes and flushes done so far.
    done: u64,
    /// The supply fails when so many are done.
    cut: Option<u64>,
}

impl Power {
    /// A supply that does not fail.
    pub fn new() -> Arc<Power> {
        Arc::new(Power(Mutex::default()))
    }

    fn supply(&self) -> MutexGuard<'_, Supply> {
        self.0.lock()
    }

    /// The supply fails after `n` more writes and flushes: the next write after those is cut off,
    /// as everything after it, on all devices.
    pub fn cut_after(&self, n: u64) {
        let mut supply = self.supply();
        supply.cut = supply.done.checked_add(n);
    }

    /// Writes and flushes done so far.
    pub fn operations(&self) -> u64 {
        self.supply().done
    }

    /// Whether the supply has failed.
    pub fn is_off(&self) -> bool {
        let supply = self.supply();
        supply.cut.is_some_and(|cut| supply.done > cut)
    }

    /// One more operation. `Off` after the supply failed, `Last` for the one that it cuts off.
    fn step(&self) -> Step {
        let mut supply = self.supply();
        let step = match supply.cut {
            Some(cut) if supply.done > cut => return Step::Off,
            Some(cut) if supply.done == cut => Step::CutOff,
            _ => Step::On,
        };
        supply.done += 1;
        step
    }
}

enum Step {
    On,
    CutOff,
    Off,
}

fn no_power() -> io::Error {
    io::Error::other("the power is off")
}

struct Contents {
    durable: Vec<u8>,
    /// What reads see.
    current: Vec<u8>,
    /// Writes since the last flush, the oldest first.
    unflushed: Vec<(u64, Abd)>,
}

/// A device in memory that can lose power: see the module's comment.
pub struct CrashDevice {
    path: PathBuf,
    power: Arc<Power>,
    contents: Mutex<Contents>,
}

impl CrashDevice {
    /// A device that durably holds `bytes`; `path` is for messages.
    pub fn new(path: impl Into<PathBuf>, bytes: Vec<u8>, power: &Arc<Power>) -> Arc<CrashDevice> {
        let contents = Contents { durable: bytes.clone(), current: bytes, unflushed: Vec::new() };
        let (path, power) = (path.into(), power.clone());
        Arc::new(CrashDevice { path, power, contents: Mutex::new(contents) })
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock()
    }

    /// What was written since the last flush: (offset, bytes).
    pub fn unflushed(&self) -> Vec<(u64, usize)> {
        self.contents().unflushed.iter().map(|(at, data)| (*at, data.len())).collect()
    }

    /// What the device could hold after the loss of power now. The same for the same seed; which
    /// seed gives what is not defined, but some lose everything and some nothing.
    pub fn crash(&self, seed: u64) -> Vec<u8> {
        let mut random = Random(seed.wrapping_mul(2).wrapping_add(1));
        let contents = self.contents();
        let mut image = contents.durable.clone();
        // Of 8 writes so many survive, and so many are torn.
        let (survive, torn) = (random.below(9), random.below(9));
        for (offset, data) in &contents.unflushed {
            let fate = random.below(8);
            if fate >= survive {
                continue;
            }
            let whole = random.below(8) >= torn;
            tear(&mut image, *offset, &data.to_vec(), &mut || whole || random.below(2) == 0);
        }
        image
    }
}

/// Puts those sectors (of the device) of a write into `image` for which `survives`.
fn tear(image: &mut [u8], offset: u64, data: &[u8], survives: &mut dyn FnMut() -> bool) {
    let (mut at, mut rest) = (offset, data);
    while !rest.is_empty() {
        let in_sector = (SECTOR - at % SECTOR) as usize;
        let (sector, after) = rest.split_at(rest.len().min(in_sector));
        let start = at as usize;
        if survives()
            && let Some(end) = start.checked_add(sector.len())
            && let Some(place) = image.get_mut(start..end)
        {
            place.copy_from_slice(sector);
        }
        at += sector.len() as u64;
        rest = after;
    }
}

/// A small generator of random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % n
    }
}

impl Device for CrashDevice {
    fn size(&self) -> u64 {
        self.contents().current.len() as u64
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        let off = self.power.is_off();
        let contents = self.contents();
        for req in reqs {
            let start = usize::try_from(req.offset).ok();
            let range = start.and_then(|s| Some(s..s.checked_add(req.len)?));
            let found = range.and_then(|r| contents.current.get(r)).map(<[u8]>::to_vec);
            req.result = Some(match found {
                _ if off => Err(no_power()),
                Some(bytes) => Ok(bytes.into()),
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            });
        }
    }

    fn writable(&self) -> bool {
        true
    }

    fn write_batch(&self, reqs: &mut [WriteReq]) {
        for req in reqs {
            let step = self.power.step();
            let mut contents = self.contents();
            req.result = Some(match step {
                Step::Off => Err(no_power()),
                Step::On | Step::CutOff => put(&mut contents.current, req).and_then(|()| {
                    contents.unflushed.push((req.offset, req.data.clone()));
                    if matches!(step, Step::On) { Ok(()) } else { Err(no_power()) }
                }),
            });
        }
    }

    fn can_trim(&self) -> bool {
        true
    }

    fn trim(&self, offset: u64, len: u64) -> io::Result<()> {
        write_garbage(self, offset, len)
    }

    fn flush(&self) -> io::Result<()> {
        // A flush that is cut off may have made anything durable or nothing, which is what
        // [`CrashDevice::crash`] assumes anyway.
        if !matches!(self.power.step(), Step::On) {
            return Err(no_power());
        }
        let mut contents = self.contents();
        let contents = &mut *contents;
        for (offset, data) in contents.unflushed.drain(..) {
            tear(&mut contents.durable, offset, &data.to_vec(), &mut || true);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn write(dev: &CrashDevice, offset: u64, data: Vec<u8>) -> io::Result<()> {
        let mut req = [WriteReq::new(offset, Abd::from_vec(data))];
        dev.write_batch(&mut req);
        let [req] = req;
        req.take()
    }

    #[test]
    fn anything_may_be_lost_but_what_was_flushed() {
        let dev = CrashDevice::new("mem", vec![0; 4096], &Power::new());
        write(&dev, 0, vec![1; 2048]).unwrap();
        dev.flush().unwrap();
        write(&dev, 1024, vec![2; 2048]).unwrap();
        write(&dev, 1024, vec![3; 512]).unwrap();
        let mut seen = HashSet::new();
        for seed in 0..500 {
            let image = dev.crash(seed);
            assert_eq!(image, dev.crash(seed));
            let sectors: Vec<u8> = image
                .chunks(512)
                .map(|s| {
                    assert!(s.iter().all(|b| *b == s[0]), "a sector is whole");
                    s[0]
                })
                .collect();
            assert_eq!(sectors[..2], [1, 1]);
            assert!([1, 2, 3].contains(&sectors[2]), "{sectors:?}");
            assert_eq!(sectors[6..], [0, 0]);
            seen.insert(sectors);
        }
        assert!(seen.contains(&vec![1, 1, 1, 1, 0, 0, 0, 0]), "nothing");
        assert!(seen.contains(&vec![1, 1, 3, 2, 2, 2, 0, 0]), "everything");
        assert!(seen.contains(&vec![1, 1, 2, 2, 2, 2, 0, 0]), "the newer one lost");
        assert!(seen.contains(&vec![1, 1, 3, 1, 0, 0, 0, 0]), "the older one lost");
        assert_eq!(seen.len(), 3 * 2 * 2 * 2);
    }

    #[test]
    fn the_power_goes_off_for_all() {
        let power = Power::new();
        let [a, b] = [0, 0].map(|_| CrashDevice::new("mem", vec![0; 1024], &power));
        power.cut_after(2);
        write(&a, 0, vec![1; 512]).unwrap();
        a.flush().unwrap();
        assert!(write(&b, 0, vec![2; 512]).is_err());
        assert!(write(&a, 0, vec![3; 512]).is_err());
        assert!(a.flush().is_err() && power.is_off());
        assert_eq!((a.unflushed().len(), b.unflushed()), (0, vec![(0, 512)]));
        assert_eq!(a.crash(1)[..512], [1; 512]);
        let images: HashSet<Vec<u8>> = (0..50).map(|seed| b.crash(seed)).collect();
        assert_eq!(images.len(), 2);
    }
}
