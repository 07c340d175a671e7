//! Names of objects.

use std::fmt;

use object_store::path::Path;

/// Bits of the counter in an [`Id`].
const COUNTER_BITS: u32 = 40;
/// Epochs and counters end here.
pub const EPOCHS: u32 = 1 << (64 - COUNTER_BITS);
/// Counters of an epoch end here.
pub const COUNTERS: u64 = 1 << COUNTER_BITS;

/// The name of an object: the epoch (import) that made it, and a counter in it. It is never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u64);

impl Id {
    /// The object `counter` of `epoch`; both within their bounds.
    pub fn new(epoch: u32, counter: u64) -> Self {
        Self((u64::from(epoch) << COUNTER_BITS) | (counter & (COUNTERS - 1)))
    }

    /// The import that made the object.
    pub fn epoch(self) -> u32 {
        (self.0 >> COUNTER_BITS) as u32
    }

    /// Its number among the objects of its epoch.
    pub fn counter(self) -> u64 {
        self.0 & (COUNTERS - 1)
    }

    /// Where it is, below the prefix.
    pub fn path(self, prefix: &Path) -> Path {
        folder(prefix, self.epoch()).join(format!("{:010x}", self.counter()))
    }

    /// The object at a path below the prefix; None if it is no object of ours.
    pub fn parse(prefix: &Path, path: &Path) -> Option<Self> {
        let mut parts = path.prefix_match(prefix)?;
        let (epoch, counter) = (parts.next()?, parts.next()?);
        let (epoch, counter) = (epoch.as_ref(), counter.as_ref());
        if parts.next().is_some() || epoch.len() != 6 || counter.len() != 10 {
            return None;
        }
        let id =
            Self::new(u32::from_str_radix(epoch, 16).ok()?, u64::from_str_radix(counter, 16).ok()?);
        (id.path(prefix) == *path).then_some(id)
    }
}

/// Where the objects of an epoch are.
pub fn folder(prefix: &Path, epoch: u32) -> Path {
    prefix.clone().join(format!("{epoch:06x}"))
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06x}/{:010x}", self.epoch(), self.counter())
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_the_name_and_back() {
        let prefix = Path::from("a/tank");
        for id in [Id(0), Id::new(1, 7), Id(u64::MAX)] {
            assert_eq!(Id::parse(&prefix, &id.path(&prefix)), Some(id));
        }
        for other in ["a/tank/commit", "a/tank/000001/0", "a/tank/00000G/0000000001", "a/0"] {
            assert_eq!(Id::parse(&prefix, &Path::from(other)), None, "{other}");
        }
    }
}
