//! What a device in an object store has in the places of labels: it goes along with the root.
//!
//! Labels are kept as the sectors that are not zeros, of which the root has the bytes up to the last one that is not zero.
//! Invariant: the sectors of the last root are those of its uberblock, or newer ones that it allows.

use std::collections::BTreeMap;

use cenote_format::SECTOR;
use cenote_format::label::{LABEL_SIZE, RING_OFFSET, UBERBLOCK_MAGIC};

use super::{LAST_SIZE, LEAST_SIZE};

/// Uberblocks of so many groups are kept.
const UBERBLOCKS: usize = 8;
/// The first bytes of what goes along with a root.
const MAGIC: &[u8; 8] = b"cenobj\0\x01";

/// What is written to the places of labels.
#[derive(Default)]
pub(super) struct Labels {
    /// Sectors that are not zeros, by label and number in it.
    pub sectors: BTreeMap<(usize, u64), Vec<u8>>,
    /// Something changed since the last root.
    pub dirty: bool,
    /// The group of the newest uberblock in the last root, and of the newest one.
    pub stored: u64,
    pub newest: u64,
    /// Freed in this group.
    pub frees: Vec<(u64, u64)>,
    /// Why the last root was not stored.
    pub trouble: Option<String>,
}

/// The group of an uberblock that a sector of a label begins with.
pub(super) fn group_of((_, number): (usize, u64), sector: &[u8]) -> Option<u64> {
    let word = |at: usize| Some(u64::from_le_bytes(sector.get(at..at + 8)?.try_into().ok()?));
    let in_ring = number * SECTOR >= RING_OFFSET;
    (in_ring && word(0)? == UBERBLOCK_MAGIC).then(|| word(16))?
}

/// What of a range is not in `gaps`, which are in order, as first address and length.
pub(super) fn without(start: u64, end: u64, gaps: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let (mut rest, mut from) = (Vec::new(), start);
    let first = gaps.partition_point(|(at, length)| at + length <= start);
    for (at, length) in gaps.iter().skip(first).take_while(|(at, _)| *at < end) {
        if from < *at {
            rest.push((from, *at));
        }
        from = at + length;
    }
    if from < end {
        rest.push((from, end));
    }
    rest
}

impl Labels {
    /// Leaves the uberblocks of the last groups.
    pub fn forget_old(&mut self) {
        let found = self.sectors.iter();
        let starts = found.filter_map(|(place, sector)| Some((*place, group_of(*place, sector)?)));
        let starts: Vec<((usize, u64), u64)> = starts.collect();
        let mut groups: Vec<u64> = starts.iter().map(|(_, group)| *group).collect();
        groups.sort_unstable();
        groups.dedup();
        let Some(oldest) = groups.iter().rev().nth(UBERBLOCKS - 1).copied() else { return };
        for (n, ((label, number), group)) in starts.iter().enumerate() {
            if *group >= oldest {
                continue;
            }
            let next = starts.get(n + 1).filter(|((other, _), _)| other == label);
            let end = next.map_or(LABEL_SIZE / SECTOR, |((_, number), _)| *number);
            self.sectors.retain(|(other, at), _| other != label || !(*number..end).contains(at));
        }
    }
}

/// What goes along with a root: the size, and the sectors of labels without the zeros at their ends.
pub(super) fn encode(size: u64, labels: &Labels) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(size.to_le_bytes());
    for ((label, number), sector) in &labels.sectors {
        let used = sector.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        out.push(*label as u8);
        out.extend((*number as u16).to_le_bytes());
        out.extend((used as u16).to_le_bytes());
        out.extend(sector.iter().take(used));
    }
    out
}

/// The reverse.
pub(super) fn decode(bytes: &[u8]) -> Result<(u64, Labels), String> {
    fn take<'a>(rest: &mut &'a [u8], n: usize) -> Result<&'a [u8], String> {
        let (head, tail) = rest.split_at_checked(n).ok_or("the labels in the root are cut")?;
        *rest = tail;
        Ok(head)
    }
    let short = |b: &[u8]| b.iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
    let mut rest = bytes;
    if take(&mut rest, MAGIC.len())? != MAGIC {
        return Err("the root is not of a pool, or of a later version".into());
    }
    let size = short(take(&mut rest, 8)?);
    if !(LEAST_SIZE..=LAST_SIZE).contains(&size) || !size.is_multiple_of(LABEL_SIZE) {
        return Err(format!("a device of {size} bytes"));
    }
    let mut labels = Labels::default();
    while !rest.is_empty() {
        let label = short(take(&mut rest, 1)?) as usize;
        let number = short(take(&mut rest, 2)?);
        let used = short(take(&mut rest, 2)?) as usize;
        if label >= 4 || number >= LABEL_SIZE / SECTOR || used > SECTOR as usize {
            return Err(format!("label {label} has {used} bytes in sector {number}"));
        }
        let mut sector = take(&mut rest, used)?.to_vec();
        sector.resize(SECTOR as usize, 0);
        let group = group_of((label, number), &sector).unwrap_or(0);
        labels.newest = labels.newest.max(group);
        labels.sectors.insert((label, number), sector);
    }
    labels.stored = labels.newest;
    Ok((size, labels))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const FIRST_SIZE: u64 = 64 << 40;

    fn labels() -> Labels {
        let mut labels = Labels::default();
        for group in 1..=20u64 {
            let mut sector = vec![0; SECTOR as usize];
            sector[..8].copy_from_slice(&UBERBLOCK_MAGIC.to_le_bytes());
            sector[16..24].copy_from_slice(&group.to_le_bytes());
            let number = RING_OFFSET / SECTOR + 2 * group;
            labels.sectors.insert((1, number), sector);
            labels.sectors.insert((1, number + 1), vec![7; SECTOR as usize]);
        }
        labels.sectors.insert((3, 40), vec![1; SECTOR as usize]);
        labels
    }

    #[test]
    fn the_last_uberblocks_are_kept() {
        let mut labels = labels();
        labels.forget_old();
        let (size, again) = decode(&encode(FIRST_SIZE, &labels)).unwrap();
        assert_eq!((size, again.stored, again.newest), (FIRST_SIZE, 20, 20));
        assert_eq!(again.sectors, labels.sectors);
        assert_eq!(again.sectors.len(), 2 * UBERBLOCKS + 1);
        assert!(again.sectors.contains_key(&(1, RING_OFFSET / SECTOR + 26)));
        assert!(!again.sectors.contains_key(&(1, RING_OFFSET / SECTOR + 25)));
    }

    #[test]
    fn bad_bytes_are_an_error() {
        let good = encode(FIRST_SIZE, &labels());
        for at in 0..good.len().min(400) {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                let _ = decode(&bad);
            }
        }
        let mut other = good.clone();
        other[0] ^= 1;
        assert!(decode(&other).is_err());
        let mut long = good.clone();
        long[19..21].copy_from_slice(&513u16.to_le_bytes());
        assert!(decode(&long).is_err_and(|why| why.contains("513 bytes in sector")));
        assert!(decode(&good[..good.len() - 1]).is_err());
        assert!(decode(&encode(SECTOR, &labels())).is_err());
    }

    #[test]
    fn what_was_never_written_is_not_freed() {
        let gaps = [(10, 5), (20, 10), (40, 1)];
        assert_eq!(without(0, 50, &gaps), [(0, 10), (15, 20), (30, 40), (41, 50)]);
        assert_eq!(without(12, 22, &gaps), [(15, 20)]);
        assert_eq!(without(20, 30, &gaps), []);
        assert_eq!(without(50, 60, &gaps), [(50, 60)]);
    }
}
