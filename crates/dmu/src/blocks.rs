//! Dirty blocks of an object, by number: its dirty records (`dn_dirty_records`, `dbuf_dirty_record_t`).
//!
//! Most objects that a transaction group changes have one dirty block: a small file, a directory, a
//! table. That block needs no map. Two blocks and more are in a map that is shared until one of those
//! holders changes it.

use cenote_store::write::Payload;
use std::collections::{BTreeMap, btree_map};
use std::ops::RangeBounds;
use std::sync::Arc;

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub(crate) enum Blocks {
    #[default]
    None,
    One(u64, Payload),
    Many(Arc<BTreeMap<u64, Payload>>),
}

impl Blocks {
    pub(crate) fn get(&self, blkid: u64) -> Option<&Payload> {
        match self {
            Blocks::One(number, data) if *number == blkid => Some(data),
            Blocks::Many(map) => map.get(&blkid),
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, blkid: u64) -> Option<&mut Payload> {
        match self {
            Blocks::One(number, data) if *number == blkid => Some(data),
            Blocks::Many(map) => Arc::make_mut(map).get_mut(&blkid),
            _ => None,
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Blocks::None => 0,
            Blocks::One(..) => 1,
            Blocks::Many(map) => map.len(),
        }
    }

    /// Returns what was there before.
    pub(crate) fn insert(&mut self, blkid: u64, data: Payload) -> Option<Payload> {
        match self {
            Blocks::None => *self = Blocks::One(blkid, data),
            Blocks::One(number, old) if *number == blkid => {
                return Some(std::mem::replace(old, data));
            }
            Blocks::One(..) => {
                let map = std::mem::take(self).into_iter().chain([(blkid, data)]).collect();
                *self = Blocks::Many(Arc::new(map));
            }
            Blocks::Many(map) => return Arc::make_mut(map).insert(blkid, data),
        }
        None
    }

    pub(crate) fn remove(&mut self, blkid: u64) -> Option<Payload> {
        match self {
            Blocks::One(number, _) if *number == blkid => {
                std::mem::take(self).into_iter().next().map(|(_, data)| data)
            }
            Blocks::Many(map) => Arc::make_mut(map).remove(&blkid),
            _ => None,
        }
    }

    /// The blocks in a range, which must not be the wrong way round, in order.
    pub(crate) fn range(
        &self,
        range: impl RangeBounds<u64>,
    ) -> impl DoubleEndedIterator<Item = (u64, &Payload)> {
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        let (one, many) = match self {
            Blocks::None => (None, None),
            Blocks::One(number, data) => {
                (Some((*number, data)).filter(|_| bounds.contains(number)), None)
            }
            Blocks::Many(map) => (None, Some(map.range(bounds))),
        };
        one.into_iter().chain(many.into_iter().flatten().map(|(number, data)| (*number, data)))
    }

    /// All blocks, in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &Payload)> {
        self.range(..)
    }
}

impl FromIterator<(u64, Payload)> for Blocks {
    fn from_iter<I: IntoIterator<Item = (u64, Payload)>>(blocks: I) -> Blocks {
        let mut all = Blocks::None;
        for (blkid, data) in blocks {
            all.insert(blkid, data);
        }
        all
    }
}

impl IntoIterator for Blocks {
    type Item = (u64, Payload);
    type IntoIter = std::iter::Chain<
        std::option::IntoIter<(u64, Payload)>,
        std::iter::Flatten<std::option::IntoIter<btree_map::IntoIter<u64, Payload>>>,
    >;

    fn into_iter(self) -> Self::IntoIter {
        let (one, many) = match self {
            Blocks::None => (None, None),
            Blocks::One(number, data) => (Some((number, data)), None),
            Blocks::Many(map) => (None, Some(Arc::unwrap_or_clone(map).into_iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failure fails the test.
mod tests {
    use super::*;
    use cenote_format::abd::Abd;
    use proptest::prelude::*;

    fn block(tag: u8) -> Payload {
        Abd::from_vec(vec![tag]).into()
    }

    fn bytes(data: &Payload) -> Vec<u8> {
        data.unpacked().unwrap().to_vec()
    }

    fn shown<'a>(blocks: impl Iterator<Item = (u64, &'a Payload)>) -> Vec<(u64, Vec<u8>)> {
        blocks.map(|(number, data)| (number, bytes(data))).collect()
    }

    proptest! {
        /// As a map does, and a clone stays what it was.
        #[test]
        fn blocks_are_a_map(changes in prop::collection::vec((0u64..4, any::<u8>(), 0..4), 0..12)) {
            let (mut blocks, mut model) = (Blocks::default(), BTreeMap::new());
            for (number, tag, what) in changes {
                let (before, was) = (blocks.clone(), shown(blocks.iter()));
                match what {
                    0 => {
                        let old = blocks.remove(number).map(|data| bytes(&data));
                        prop_assert_eq!(old, model.remove(&number));
                    }
                    1 => {
                        let found = blocks.get_mut(number).map(|data| *data = block(tag));
                        prop_assert_eq!(found, model.get_mut(&number).map(|v| *v = vec![tag]));
                    }
                    _ => {
                        let old = blocks.insert(number, block(tag)).map(|data| bytes(&data));
                        prop_assert_eq!(old, model.insert(number, vec![tag]));
                    }
                }
                prop_assert_eq!(shown(before.iter()), was);
                let get = blocks.get(number).map(bytes);
                prop_assert_eq!(get.as_ref(), model.get(&number));
                for from in 0..4 {
                    let part = shown(blocks.range(from..=3));
                    let wanted: Vec<_> =
                        model.range(from..=3).map(|(n, v)| (*n, v.clone())).collect();
                    prop_assert_eq!(part, wanted);
                }
            }
            let all: Vec<_> = blocks.clone().into_iter().map(|(n, d)| (n, bytes(&d))).collect();
            prop_assert_eq!(&all, &model.into_iter().collect::<Vec<_>>());
            let again: Blocks = blocks.into_iter().collect();
            prop_assert_eq!(shown(again.iter()), all);
        }
    }
}
