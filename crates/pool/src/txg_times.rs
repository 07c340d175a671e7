//! When transaction groups were written (`dbrrd_t`): which of them to scrub, given dates.
//!
//! Three entries of the object directory hold pairs of a time and a group, the last [`MOST`] of each: one about each ten
//! minutes, each day and each month. Each is a ring (`rrd_t`): where it begins, where it ends, how many there are, the pairs.
//!
//! OpenZFS reads and writes the same.

use crate::directory::Directory;
use cenote_dmu::Result;

/// The entries of the object directory (`DMU_POOL_TXG_LOG_TIME_*`).
pub const ENTRIES: [&str; 3] = [
    "com.klarasystems:txg_log_time:minutes",
    "com.klarasystems:txg_log_time:days",
    "com.klarasystems:txg_log_time:months",
];
/// Pairs of a ring (`RRD_MAX_ENTRIES`).
const MOST: usize = 256;
/// Integers of a ring.
const WORDS: usize = 3 + 2 * MOST;
const DAY: u64 = 24 * 60 * 60;

/// Times, in seconds since 1970, and groups, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ring(Vec<(u64, u64)>);

/// Which pair is meant where no one has the very time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounding {
    /// The last one before.
    Floor,
    /// The first one after.
    Ceiling,
}

impl Ring {
    /// `None`: it makes no sense.
    fn decode(words: &[u64]) -> Option<Ring> {
        let (header, pairs) = words.first_chunk::<WORDS>()?.split_first_chunk::<3>()?;
        let [head, _, len] = header.map(|word| usize::try_from(word).unwrap_or(usize::MAX));
        if head >= MOST || len > MOST {
            return None;
        }
        let (pairs, _) = pairs.as_chunks::<2>();
        let all = pairs.iter().cycle().skip(head).take(len);
        Some(Ring(all.map(|&[time, txg]| (time, txg)).collect()))
    }

    fn encode(&self) -> Vec<u64> {
        let len = self.0.len();
        let mut words = vec![0, (len % MOST) as u64, len as u64];
        words.extend(self.0.iter().flat_map(|(time, txg)| [*time, *txg]));
        words.resize(WORDS, 0);
        words
    }

    fn last(&self) -> u64 {
        self.0.last().map_or(0, |(time, _)| *time)
    }

    fn add(&mut self, time: u64, txg: u64) {
        if self.0.len() == MOST {
            self.0.remove(0);
        }
        self.0.push((time, txg));
    }

    fn find(&self, time: u64, rounding: Rounding) -> Option<(u64, u64)> {
        let mut all = self.0.iter().copied();
        match rounding {
            Rounding::Floor => all.take_while(|(at, _)| *at <= time).last(),
            Rounding::Ceiling => all.find(|(at, _)| time <= *at),
        }
    }
}

/// The times of groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxgTimes([Ring; 3]);

impl TxgTimes {
    /// Those that the pool has. What makes no sense is told in the log, and counts as empty.
    ///
    /// # Errors
    /// The object directory cannot be read.
    pub fn load(directory: &Directory) -> Result<TxgTimes> {
        let mut times = TxgTimes::default();
        for (ring, name) in times.0.iter_mut().zip(ENTRIES) {
            *ring = directory.dispensable(name, Ring::decode)?.unwrap_or_default();
        }
        Ok(times)
    }

    /// Group `txg` is written at `time`, in seconds since 1970 (`dbrrd_add`). What would be older than what is there is left out.
    pub fn add(&mut self, time: u64, txg: u64) {
        let [minutes, days, months] = &mut self.0;
        for (ring, apart) in [(months, 30 * DAY), (days, DAY), (minutes, 0)] {
            if time.checked_sub(ring.last()).is_some_and(|since| since >= apart) {
                return ring.add(time, txg);
            }
        }
    }

    /// The words of the entries.
    pub fn encode(&self) -> [Vec<u64>; 3] {
        self.0.each_ref().map(Ring::encode)
    }

    /// The group from which on what was written since `time` is; 0: it is not known.
    pub fn group_before(&self, time: u64) -> u64 {
        self.query(time, Rounding::Floor)
    }

    /// The group up to which what was written until `time` is; 0: it is not known.
    pub fn group_after(&self, time: u64) -> u64 {
        self.query(time, Rounding::Ceiling)
    }

    /// The nearest pair of all rings (`dbrrd_query`).
    fn query(&self, time: u64, rounding: Rounding) -> u64 {
        let found = self.0.iter().filter_map(|ring| ring.find(time, rounding));
        found.min_by_key(|(at, _)| at.abs_diff(time)).map_or(0, |(_, txg)| txg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_keep_the_last_pairs() {
        let mut ring = Ring::default();
        (1..=300).for_each(|n| ring.add(n, n * 10));
        assert_eq!((ring.0.len(), ring.0[0], ring.last()), (256, (45, 450), 300));
        let words = ring.encode();
        assert_eq!((words.len(), &words[..5]), (WORDS, &[0, 0, 256, 45, 450][..]));
        assert_eq!(Ring::decode(&words), Some(ring.clone()));
        // As OpenZFS writes it: the ring begins anywhere.
        let mut turned = words[..3].to_vec();
        (turned[0], turned[1]) = (2, 2);
        turned.extend(&words[words.len() - 4..]);
        turned.extend(&words[3..words.len() - 4]);
        assert_eq!(Ring::decode(&turned), Some(ring));
        assert_eq!(Ring::decode(&[0; 9]), None);
        assert_eq!(Ring::decode(&[vec![256, 0, 0], vec![0; 512]].concat()), None);
    }

    #[test]
    fn groups_are_found_by_time() {
        let mut times = TxgTimes::default();
        assert_eq!((times.group_before(5), times.group_after(5)), (0, 0));
        let begin = 1_000 * DAY;
        for n in 0..200 {
            times.add(begin + n * 600, 100 + n);
        }
        let [minutes, days, months] = &times.0;
        assert_eq!((months.0.len(), days.0.len(), minutes.0.len()), (1, 2, 197));
        for n in [0, 1, 2, 144, 145, 199] {
            let time = begin + n * 600;
            assert_eq!((times.group_before(time), times.group_after(time)), (100 + n, 100 + n));
        }
        assert_eq!((times.group_before(begin + 700), times.group_after(begin + 700)), (101, 102));
        assert_eq!((times.group_before(begin - 1), times.group_after(begin - 1)), (0, 100));
        assert_eq!((times.group_before(u64::MAX), times.group_after(u64::MAX)), (299, 0));
        // A clock that was set back.
        let before = times.clone();
        times.add(begin - 1, 400);
        assert_eq!(times, before);
    }
}
