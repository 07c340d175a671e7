//! What is written, counted by what it carries: blocks before aggregation, operations of devices
//! after it.
//!
//! A [`Meter`] only counts up, without locks. The figures of a period are the
//! [difference](Traffic::since) between the [`Traffic`] at its end and at its begin.

use cenote_format::less;
use std::ops::{Add, AddAssign};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a write carries, as figures tell it apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Content {
    /// Blocks of level 0 of plain files and volumes.
    #[default]
    Data,
    /// All other blocks, but not space maps.
    Metadata,
    /// Blocks of the metaslabs' own space maps, indirect blocks too.
    SpaceMap,
    /// Blocks of log space maps, indirect blocks too.
    LogSpaceMap,
    /// Labels and uberblocks.
    Label,
    /// Right bytes in the place of wrong ones.
    Repair,
}

/// How many kinds of [`Content`] there are.
const KINDS: usize = 6;

/// Things and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Blocks, or operations of devices.
    pub count: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl Amount {
    /// What came since `before`.
    pub fn since(self, before: Amount) -> Amount {
        Amount {
            count: less!(self.count, before.count, "what came since then"),
            bytes: less!(self.bytes, before.bytes, "bytes since then"),
        }
    }
}

impl Add for Amount {
    type Output = Amount;

    fn add(self, other: Amount) -> Amount {
        Amount { count: self.count + other.count, bytes: self.bytes + other.bytes }
    }
}

/// An amount of each kind of content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic([Amount; KINDS]);

impl Traffic {
    /// What carried `content`.
    pub fn of(&self, content: Content) -> Amount {
        self.0[content as usize]
    }

    /// Data.
    pub fn data(&self) -> Amount {
        self.of(Content::Data)
    }

    /// All metadata, space maps among it; without labels.
    pub fn metadata(&self) -> Amount {
        self.of(Content::Metadata) + self.space_maps()
    }

    /// The metaslabs' own space maps and the logs.
    pub fn space_maps(&self) -> Amount {
        self.of(Content::SpaceMap) + self.of(Content::LogSpaceMap)
    }

    /// Everything.
    pub fn total(&self) -> Amount {
        self.0.iter().fold(Amount::default(), |sum, amount| sum + *amount)
    }

    /// What came since `before`.
    pub fn since(&self, before: &Traffic) -> Traffic {
        let mut since = *self;
        for (amount, before) in since.0.iter_mut().zip(before.0) {
            *amount = amount.since(before);
        }
        since
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        for (amount, more) in self.0.iter_mut().zip(other.0) {
            *amount = *amount + more;
        }
    }
}

/// Counts what is written.
#[derive(Debug, Default)]
pub struct Meter([(AtomicU64, AtomicU64); KINDS]);

impl Meter {
    /// Counts `count` more of `bytes` together.
    pub fn add(&self, content: Content, count: u64, bytes: u64) {
        let (counts, all) = &self.0[content as usize];
        counts.fetch_add(count, Relaxed);
        all.fetch_add(bytes, Relaxed);
    }

    /// What was counted so far.
    pub fn now(&self) -> Traffic {
        let amount = |(count, bytes): &(AtomicU64, AtomicU64)| Amount {
            count: count.load(Relaxed),
            bytes: bytes.load(Relaxed),
        };
        Traffic(self.0.each_ref().map(amount))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_apart_and_add_up() {
        let meter = Meter::default();
        meter.add(Content::Data, 2, 1000);
        let before = meter.now();
        meter.add(Content::Metadata, 1, 10);
        meter.add(Content::SpaceMap, 1, 20);
        meter.add(Content::LogSpaceMap, 1, 40);
        meter.add(Content::Label, 4, 4096);
        let now = meter.now();
        let mut since = now.since(&before);
        assert_eq!((since.data().bytes, since.space_maps().bytes), (0, 60));
        assert_eq!(since.metadata(), Amount { count: 3, bytes: 70 });
        since += before;
        assert_eq!((since, since.total()), (now, Amount { count: 9, bytes: 5166 }));
    }
}
