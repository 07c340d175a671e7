//! The identity of this system, and whether another one holds a pool
//! (`spa_activity_check_required`).
//!
//! A label carries the id and name of the host that last wrote it. A pool that was not exported and
//! whose id is another host's may be in use there: it is imported only by force.
//!
//! With `multihost=on` (multi-modifier protection) the host that has the pool imported also writes
//! uberblocks all the time, also when nothing changes, each with a new sequence number. An importer
//! waits for as long as the fields of the uberblock tell that the other side could be silent, and
//! gives up if the best uberblock changes meanwhile. Force does not override this.

use crate::tunables;
use cenote_format::label::Uberblock;
use std::time::Duration;

pub use cenote_vdev::since_boot;

/// The host id of this system: `ZFS_HOSTID` in the environment, the parameter of a loaded kernel
/// module, or `/etc/hostid`; 0 if it is not set.
pub fn system_hostid() -> u32 {
    let env = std::env::var("ZFS_HOSTID").ok().and_then(|v| parse_hex(&v));
    let module = || {
        let text = std::fs::read_to_string("/sys/module/spl/parameters/spl_hostid").ok()?;
        text.trim().parse::<u32>().ok().filter(|v| *v != 0)
    };
    let file = || {
        let bytes = std::fs::read("/etc/hostid").ok()?;
        Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
    };
    env.or_else(module).or_else(file).unwrap_or(0)
}

fn parse_hex(text: &str) -> Option<u32> {
    let digits = text.trim().trim_start_matches("0x");
    u32::from_str_radix(digits, 16).ok().filter(|v| *v != 0)
}

/// Longest time that fields of an uberblock can make an importer wait.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// Whether the host that wrote the uberblock had `multihost=on`.
pub fn multihost(ub: &Uberblock) -> bool {
    ub.mmp_valid() && ub.mmp_delay != 0
}

/// How long the pool must be quiet before it may be taken for idle.
pub fn quiet_time(ub: &Uberblock) -> Duration {
    // What is past all times is more than the longest wait, and that is the limit.
    let intervals = tunables::MULTIHOST_IMPORT_INTERVALS.small();
    let usual = Duration::from_millis(tunables::MULTIHOST_INTERVAL.get());
    let minimum = usual.saturating_mul(intervals);
    let delay = Duration::from_nanos(ub.mmp_delay);
    let wait = match (ub.mmp_interval(), ub.mmp_fail_intervals()) {
        // The other side stops writing after that many failures; twice the time is safe.
        (Some(interval), Some(fails)) if fails > 0 => {
            let millis = u64::from(interval).saturating_mul(u64::from(fails));
            Duration::from_millis(millis.saturating_mul(2))
        }
        (Some(interval), Some(_)) => {
            let per = Duration::from_millis(u64::from(interval)).saturating_add(delay);
            minimum.max(per.saturating_mul(intervals))
        }
        _ => {
            let per = usual.saturating_add(delay);
            minimum.max(per.saturating_mul(intervals))
        }
    };
    wait.min(MAX_WAIT)
}

/// Watches the pool for [`quiet_time`]: `newest` reads the best uberblock from the devices, `sleep`
/// passes time. True if the pool stayed as `seen` is.
pub fn stays_quiet(
    seen: &Uberblock,
    newest: &mut dyn FnMut() -> Option<Uberblock>,
    sleep: &mut dyn FnMut(Duration),
) -> bool {
    let mut left = quiet_time(seen);
    loop {
        if newest().is_some_and(|ub| ub.rank() != seen.rank()) {
            return false;
        }
        if left.is_zero() {
            return true;
        }
        let step = left.min(Duration::from_secs(1));
        sleep(step);
        left -= step;
    }
}

/// An uberblock of the same group that is better than `last`, as a heartbeat at `seconds` since 1970. A sequence number that is used up
/// makes it a second later.
pub fn next_heartbeat(last: &Uberblock, seconds: u64) -> Uberblock {
    let used = last.mmp_sequence().unwrap_or(0);
    let (timestamp, sequence) = match (last.timestamp < seconds, used.checked_add(1)) {
        (true, _) => (seconds, 1),
        (false, Some(sequence)) => (last.timestamp, sequence),
        // After the last of all times there is no later one: then others see that nothing changes, and take the pool for idle.
        (false, None) => (last.timestamp.saturating_add(1), 1),
    };
    let mut next = last.clone();
    next.timestamp = timestamp;
    next.mmp_config = next.mmp_config & !(0xffff << 32) | u64::from(sequence) << 32 | 0x02;
    next
}

/// The uberblock by which this host says that it is about to import a pool that stayed quiet (`mmp_claim_uberblock`): the one
/// that was seen, later and with a sequence number by chance. `seconds`: since 1970.
pub fn claim(seen: &Uberblock, seconds: u64, chance: u64) -> Uberblock {
    let sequence = (chance & 0xffff).max(1);
    let mut claim = seen.clone();
    claim.timestamp = seconds.max(seen.timestamp.saturating_add(1));
    claim.mmp_config = claim.mmp_config & !(0xffff << 32) | sequence << 32 | 0x02;
    claim
}

/// Waits a while, in which another host that imports the pool at the same time would have made its claim, too. True if this
/// one is the best.
pub fn has_claim(
    claim: &Uberblock,
    newest: &mut dyn FnMut() -> Option<Uberblock>,
    sleep: &mut dyn FnMut(Duration),
) -> bool {
    sleep((quiet_time(claim) / 4).max(Duration::from_secs(1)));
    newest().is_some_and(|ub| ub.rank() == claim.rank())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_format::{ByteOrder, blkptr::BlockPointer, label::MMP_MAGIC};

    fn uberblock(mmp_delay: u64, mmp_config: u64) -> Uberblock {
        Uberblock {
            order: ByteOrder::Little,
            version: 5000,
            txg: 100,
            guid_sum: 0,
            timestamp: 1,
            rootbp: BlockPointer::HOLE,
            software_version: 5000,
            mmp_magic: MMP_MAGIC,
            mmp_delay,
            mmp_config,
            checkpoint_txg: 0,
            raidz_reflow: 0,
        }
    }

    #[test]
    fn waits_as_long_as_the_other_side_may_be_silent() {
        assert!(!multihost(&uberblock(0, 0)));
        let never_suspends = uberblock(1_000_000_000, 0b111 | 1000 << 8);
        assert!(multihost(&never_suspends));
        assert_eq!(quiet_time(&never_suspends), Duration::from_secs(40));
        let suspends = uberblock(1_000_000_000, 0b111 | 1000 << 8 | 10 << 48);
        assert_eq!(quiet_time(&suspends), Duration::from_secs(20));
        // Fields made to wait for ever do not.
        assert_eq!(quiet_time(&uberblock(u64::MAX, 0)), MAX_WAIT);
    }

    #[test]
    fn a_new_sequence_number_is_activity() {
        let seen = uberblock(1, 0b111 | 1000 << 8 | 1 << 48 | 7 << 32);
        let mut slept = Duration::ZERO;
        assert!(stays_quiet(&seen, &mut || Some(seen.clone()), &mut |d| slept += d));
        assert_eq!(slept, quiet_time(&seen));
        let mut reads = 0;
        let mut newest = || {
            reads += 1;
            let mut ub = seen.clone();
            ub.mmp_config += u64::from(reads > 1) << 32;
            Some(ub)
        };
        assert!(!stays_quiet(&seen, &mut newest, &mut |_| ()));
    }

    #[test]
    fn heartbeats_rise_in_rank() {
        let mut last = uberblock(1, 0b111 | 1000 << 8 | 10 << 48 | 0xfffe << 32);
        for (seconds, timestamp) in [(1, 1), (1, 2), (2, 2), (9, 9), (5, 9)] {
            let next = next_heartbeat(&last, seconds);
            assert!(next.rank() > last.rank() && next.timestamp == timestamp, "{seconds}");
            assert_eq!((next.mmp_interval(), next.mmp_fail_intervals()), (Some(1000), Some(10)));
            last = next;
        }
    }

    #[test]
    fn of_two_claims_one_counts() {
        let seen = uberblock(1, 0b111 | 1000 << 8 | 10 << 48 | 7 << 32);
        let (ours, theirs) = (claim(&seen, 100, 5), claim(&seen, 100, 6));
        assert!(ours.rank() > seen.rank() && theirs.rank() > ours.rank());
        assert_eq!((ours.mmp_interval(), ours.mmp_fail_intervals()), (Some(1000), Some(10)));
        let mut slept = Duration::ZERO;
        assert!(!has_claim(&ours, &mut || Some(theirs.clone()), &mut |d| slept += d));
        assert!(has_claim(&theirs, &mut || Some(theirs.clone()), &mut |d| slept += d));
        assert_eq!(slept, quiet_time(&seen) / 2);
    }

    #[test]
    fn hostids() {
        assert_eq!(parse_hex("0x00bab10c"), Some(0xbab10c));
        assert_eq!(parse_hex("zero"), None);
    }
}
