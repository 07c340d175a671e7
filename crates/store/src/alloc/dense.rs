//! Free space as a bitmap with summaries: what a metaslab with many free segments looks like (where
//! `ms_allocatable` is a range tree).
//!
//! One bit per sector, set if the sector is free. Above it stands a tree whose leaves sum up
//! [`LEAF`] sectors each and whose inner nodes sum up [`FANOUT`] nodes below:
//!
//! ```text
//!                                root
//!              /            /     …     \
//!        node: prefix | suffix | longest | classes          16 bytes, 8 children
//!          /    …     \
//!        leaf  leaf  leaf  …                                 8 bytes, 512 sectors
//!         |
//!        bitmap: 0011110101111000…                           64 bytes
//! ```
//!
//! - `prefix`, `suffix`: length of the run of free sectors at either border of the node;
//! - `longest`: length of the longest run within it;
//! - `classes`: of which size classes there are runs within it that touch neither border. Size
//!   classes are half powers of two: 1, 2, 3, 4-5, 6-7, 8-11, 12-15, …
//!
//! A run that crosses nodes is known to their lowest common ancestor, which joins one child's
//! suffix with the next one's prefix. So the root knows at once whether a size can be served, and
//! both searches (the first run from a position on, a run of a class) go down one path.
//!
//! Memory: 1 bit per sector, 1/8 for the leaves, and 1/28 for the nodes above: 1.161 bits.
//!
//! Invariants: bits beyond the last sector are clear; every summary is exact after each call, but
//! that a leaf's class 15 stands for classes 15 and 16, which then both may be there.

use super::bits;

/// Sectors of a leaf.
const LEAF: usize = 512;
const LEAF_WORDS: usize = LEAF / bits::WORD;
const FANOUT: usize = 8;
/// The last class of a leaf and of a node; they take what is larger.
const LEAF_CLASSES: u32 = 15;
const CLASSES: u32 = 31;
/// Leaves that are looked at in vain for a run of a class whose smaller members do not do.
const TRIES: u32 = 8;

#[derive(Clone, Copy, Default)]
struct Leaf {
    prefix: u16,
    suffix: u16,
    longest: u16,
    classes: u16,
}

#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Node {
    prefix: u32,
    suffix: u32,
    longest: u32,
    classes: u32,
}

/// The size class of a run of `len > 0` sectors.
fn class(len: usize) -> u32 {
    match len.ilog2() {
        0 => 0,
        log => (2 * log - 1 + (len >> (log - 1) & 1) as u32).min(CLASSES),
    }
}

impl Leaf {
    fn of(words: &[u64]) -> Leaf {
        let mut inner = [0; LEAF_WORDS];
        inner.iter_mut().zip(words).for_each(|(to, from)| *to = *from);
        let prefix = bits::next_clear(&inner, 0, LEAF);
        let suffix = LEAF - bits::after_last_clear(&inner, 0, LEAF);
        if prefix == LEAF {
            return Leaf {
                prefix: LEAF as u16,
                suffix: LEAF as u16,
                longest: LEAF as u16,
                classes: 0,
            };
        }
        bits::clear(&mut inner, 0, prefix);
        bits::clear(&mut inner, LEAF - suffix, LEAF);
        let (longest, classes) = inner_runs(&inner);
        let longest = longest.max(prefix).max(suffix) as u16;
        Leaf { prefix: prefix as u16, suffix: suffix as u16, longest, classes }
    }
}

/// Length of the longest run of set bits, and the classes that there are.
///
/// Runs are mostly short, so runs of fewer than 8 are not looked at one by one: of each length it is
/// found for all words at once where so many bits in a row begin.
fn inner_runs(words: &[u64; LEAF_WORDS]) -> (usize, u16) {
    // rows[n - 1] has a bit set where n set bits begin.
    let mut rows = [*words; 8];
    for n in 2..=8 {
        // n bits begin where n / 2 do, and after these the rest.
        let (half, rest) = (n / 2, n - n / 2);
        rows[n - 1] = both_set(&rows[half - 1], &rows[rest - 1], half as u32);
    }
    let longest =
        rows.iter().rposition(|row| row.iter().any(|word| *word != 0)).map_or(0, |n| n + 1);
    let mut classes = 0;
    for (len, (row, longer)) in (1..).zip(rows.iter().zip(rows.iter().skip(1))) {
        // A run begins where the bit before is clear.
        let mut before = 0;
        let ends_there = words.iter().zip(row.iter().zip(longer)).any(|(word, (row, longer))| {
            let start = word & !(word << 1 | before >> 63);
            before = *word;
            start & row & !longer != 0
        });
        classes |= u16::from(ends_there) << class(len);
    }
    if longest < rows.len() {
        return (longest, classes);
    }
    let mut longest = longest;
    bits::for_each_run(words, |start, end| {
        let len = end - start;
        longest = longest.max(len);
        if len >= rows.len() {
            classes |= 1 << class(len).min(LEAF_CLASSES);
        }
    });
    (longest, classes)
}

/// The bits of `a` for which the bit of `b` so many places further on is set, too.
fn both_set(a: &[u64; LEAF_WORDS], b: &[u64; LEAF_WORDS], further: u32) -> [u64; LEAF_WORDS] {
    std::array::from_fn(|i| {
        let next = b.get(i + 1).map_or(0, |next| next << (u64::BITS - further));
        a[i] & (b[i] >> further | next)
    })
}

impl From<Leaf> for Node {
    fn from(leaf: Leaf) -> Node {
        let top = u32::from(leaf.classes >> LEAF_CLASSES) << (LEAF_CLASSES + 1);
        Node {
            prefix: leaf.prefix.into(),
            suffix: leaf.suffix.into(),
            longest: leaf.longest.into(),
            classes: u32::from(leaf.classes) | top,
        }
    }
}

impl Node {
    /// Sums up children of `span` sectors each.
    fn of(children: impl Iterator<Item = Node>, span: usize) -> Node {
        let (mut node, mut run, mut whole) = (Node::default(), 0, true);
        for child in children {
            run += child.prefix;
            if child.prefix as usize == span {
                continue;
            }
            if whole {
                node.prefix = run;
                whole = false;
            } else if run > 0 {
                node.classes |= 1 << class(run as usize);
            }
            node.longest = node.longest.max(run).max(child.longest);
            node.classes |= child.classes;
            run = child.suffix;
        }
        if whole {
            node.prefix = run;
        }
        node.suffix = run;
        node.longest = node.longest.max(run);
        node
    }
}

/// A set of sectors; see the module's documentation.
pub(super) struct Dense {
    words: Box<[u64]>,
    leaves: Box<[Leaf]>,
    /// From the level above the leaves to the root; empty if there is one leaf.
    levels: Vec<Box<[Node]>>,
    sectors: usize,
}

impl Dense {
    /// From a bitmap of at least `sectors` bits, in which no bit beyond them is set.
    pub(super) fn new(mut words: Vec<u64>, sectors: usize) -> Dense {
        let leaf_count = sectors.div_ceil(LEAF).max(1);
        words.resize(leaf_count * LEAF_WORDS, 0);
        let mut levels = Vec::new();
        let mut count = leaf_count;
        while count > 1 {
            count = count.div_ceil(FANOUT);
            levels.push(vec![Node::default(); count].into_boxed_slice());
        }
        let leaves = vec![Leaf::default(); leaf_count].into_boxed_slice();
        let mut dense = Dense { words: words.into_boxed_slice(), leaves, levels, sectors };
        dense.refresh(0, leaf_count - 1);
        dense
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        let nodes: usize = self.levels.iter().map(|l| size_of_val(&**l)).sum();
        size_of::<Dense>() + size_of_val(&*self.words) + size_of_val(&*self.leaves) + nodes
    }

    /// The bitmap, with the bits beyond the last sector that fill up a leaf.
    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }

    pub(super) fn contains(&self, from: usize, to: usize) -> bool {
        bits::all_set(&self.words, from, to)
    }

    pub(super) fn is_absent(&self, from: usize, to: usize) -> bool {
        bits::all_clear(&self.words, from, to)
    }

    pub(super) fn insert(&mut self, from: usize, to: usize) {
        bits::set(&mut self.words, from, to);
        self.refresh(from / LEAF, (to - 1) / LEAF);
    }

    pub(super) fn remove(&mut self, from: usize, to: usize) {
        bits::clear(&mut self.words, from, to);
        self.refresh(from / LEAF, (to - 1) / LEAF);
    }

    /// Length of the longest run.
    pub(super) fn longest(&self) -> usize {
        self.root().longest as usize
    }

    /// Runs in order.
    pub(super) fn runs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        bits::runs(&self.words, 0, self.sectors)
    }

    /// The end of the run that holds the sectors before `at`, or starts there; `at` if `at` is
    /// not free.
    pub(super) fn run_end(&self, at: usize) -> usize {
        let leaf_end = (at / LEAF + 1) * LEAF;
        let end = bits::next_clear(&self.words, at, leaf_end);
        if end < leaf_end {
            return end;
        }
        let (mut level, mut i) = (0, at / LEAF + 1);
        loop {
            while i.is_multiple_of(FANOUT) && level < self.levels.len() {
                (level, i) = (level + 1, i / FANOUT);
            }
            let prefix = self.node(level, i).prefix as usize;
            if prefix < span(level) {
                return i * span(level) + prefix;
            }
            i += 1;
        }
    }

    /// The start of the run that ends at `at`; `at` if the sector before is not free.
    pub(super) fn run_start(&self, at: usize) -> usize {
        let leaf_start = at.saturating_sub(1) / LEAF * LEAF;
        let start = bits::after_last_clear(&self.words, leaf_start, at);
        if start > leaf_start {
            return start;
        }
        let (mut level, mut i) = (0, leaf_start / LEAF);
        while i > 0 {
            while i.is_multiple_of(FANOUT) && level < self.levels.len() {
                (level, i) = (level + 1, i / FANOUT);
            }
            let suffix = self.node(level, i - 1).suffix as usize;
            if suffix < span(level) {
                return i * span(level) - suffix;
            }
            i -= 1;
        }
        0
    }

    /// The first position from `from` on where `len` sectors are free.
    pub(super) fn first_fit(&self, from: usize, len: usize) -> Option<usize> {
        if self.longest() < len {
            return None;
        }
        let mut run = 0;
        self.seek(self.levels.len(), 0, from, len, &mut run)
    }

    /// A run of at least `len` sectors, of the smallest size class that has one, the first of its
    /// class. Runs of `len`'s own class that are too short are passed over only so often.
    pub(super) fn best_fit(&self, len: usize) -> Option<(usize, usize)> {
        let longest = self.longest();
        if longest < len {
            return None;
        }
        // The longest runs are found on one path without trying others of their class.
        let by_class = || {
            (class(len)..=CLASSES)
                .filter(|_| len < longest)
                .find_map(|k| self.first_of_class(k, len))
        };
        by_class().or_else(|| {
            let start = self.first_fit(0, len)?;
            Some((start, self.run_end(start)))
        })
    }

    fn first_of_class(&self, k: u32, len: usize) -> Option<(usize, usize)> {
        let (top, root) = (self.levels.len(), self.root());
        let (prefix, suffix) = (root.prefix as usize, root.suffix as usize);
        if of_class(prefix, k, len) {
            return Some((0, prefix));
        }
        if root.classes >> k & 1 == 1
            && let Some(run) = self.seek_class(top, 0, (k, len), &mut { TRIES })
        {
            return Some(run);
        }
        of_class(suffix, k, len).then(|| (span(top) - suffix, span(top)))
    }

    /// The first run of class `k` that touches neither border of node `i` of `level`.
    fn seek_class(
        &self,
        level: usize,
        i: usize,
        (k, len): (u32, usize),
        tries: &mut u32,
    ) -> Option<(usize, usize)> {
        if level == 0 {
            let base = i * LEAF;
            let inner = |(start, end): &(usize, usize)| *start > base && *end < base + LEAF;
            let mut runs = bits::runs(&self.words, base, base + LEAF).filter(inner);
            let found = runs.find(|(start, end)| of_class(end - start, k, len));
            *tries -= u32::from(found.is_none());
            return found;
        }
        let (below, mut run, mut whole) = (span(level - 1), 0, true);
        for c in i * FANOUT..(i + 1) * FANOUT {
            let child = self.node(level - 1, c);
            let prefix = child.prefix as usize;
            run += prefix;
            if prefix == below {
                continue;
            }
            if !whole && of_class(run, k, len) {
                let end = c * below + prefix;
                return Some((end - run, end));
            }
            whole = false;
            if child.classes >> k & 1 == 1 {
                let found = self.seek_class(level - 1, c, (k, len), tries);
                if found.is_some() || *tries == 0 {
                    return found;
                }
            }
            run = child.suffix as usize;
        }
        None
    }

    /// Looks for `len` free sectors from `from` on in node `i` of `level`; `run` is how many are
    /// free just before it.
    fn seek(
        &self,
        level: usize,
        i: usize,
        from: usize,
        len: usize,
        run: &mut usize,
    ) -> Option<usize> {
        let base = i * span(level);
        if base + span(level) <= from {
            return None;
        }
        if base >= from {
            let node = self.node(level, i);
            let prefix = node.prefix as usize;
            if *run + prefix >= len {
                return Some(base - *run);
            }
            if (node.longest as usize) < len {
                let full = prefix == span(level);
                *run = if full { *run + prefix } else { node.suffix as usize };
                return None;
            }
        }
        if level == 0 {
            return self.seek_leaf(base, from.max(base), len, run);
        }
        let children = i * FANOUT..((i + 1) * FANOUT).min(self.count(level - 1));
        children.into_iter().find_map(|c| self.seek(level - 1, c, from, len, run))
    }

    fn seek_leaf(&self, base: usize, from: usize, len: usize, run: &mut usize) -> Option<usize> {
        let mut open = 0;
        for (start, end) in bits::runs(&self.words, from, base + LEAF) {
            let start = if start == base { start - *run } else { start };
            if end - start >= len {
                return Some(start);
            }
            if end == base + LEAF {
                open = end - start;
            }
        }
        *run = open;
        None
    }

    /// Sums up leaves `first..=last` and what is above them anew.
    fn refresh(&mut self, mut first: usize, mut last: usize) {
        for i in first..=last {
            self.leaves[i] = Leaf::of(&self.words[i * LEAF_WORDS..(i + 1) * LEAF_WORDS]);
        }
        for level in 1..=self.levels.len() {
            (first, last) = (first / FANOUT, last / FANOUT);
            for i in first..=last {
                let children = (i * FANOUT..(i + 1) * FANOUT).map(|c| self.node(level - 1, c));
                let node = Node::of(children, span(level - 1));
                self.levels[level - 1][i] = node;
            }
        }
    }

    fn root(&self) -> Node {
        self.node(self.levels.len(), 0)
    }

    fn count(&self, level: usize) -> usize {
        if level == 0 { self.leaves.len() } else { self.levels[level - 1].len() }
    }

    /// Node `i` of `level` (0 are the leaves); beyond the last one nothing is free.
    fn node(&self, level: usize, i: usize) -> Node {
        let found = match level {
            0 => self.leaves.get(i).map(|leaf| Node::from(*leaf)),
            _ => self.levels[level - 1].get(i).copied(),
        };
        found.unwrap_or_default()
    }
}

/// Sectors of a node of `level`.
fn span(level: usize) -> usize {
    LEAF << (level * FANOUT.ilog2() as usize)
}

/// Whether a run of `run` sectors is of class `k` and holds `len`.
fn of_class(run: usize, k: u32, len: usize) -> bool {
    // A leaf's last class is two classes.
    run >= len && (class(run) == k || k == LEAF_CLASSES && class(run) == k + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_leaf_sums_up_its_runs(
            cuts in prop::collection::vec((1..20usize, 1..20usize), 0..60), long in 0..300usize,
        ) {
            let mut words = [0; LEAF_WORDS];
            let mut at = cuts.len() % 2;
            for (i, (gap, len)) in cuts.iter().enumerate() {
                let len = if i == 3 { len + long } else { *len };
                bits::set(&mut words, at.min(LEAF), (at + len).min(LEAF));
                at += len + gap;
            }
            let (mut expected, mut longest) = (Leaf::default(), 0);
            for (start, end) in bits::runs(&words, 0, LEAF) {
                longest = longest.max(end - start);
                match (start, end) {
                    (0, _) | (_, LEAF) => {
                        expected.prefix = if start == 0 { end as u16 } else { expected.prefix };
                        expected.suffix = if end == LEAF { (end - start) as u16 } else { 0 };
                    }
                    _ => expected.classes |= 1 << class(end - start).min(LEAF_CLASSES),
                }
            }
            let leaf = Leaf::of(&words);
            let of = |l: Leaf| (l.prefix, l.suffix, l.longest, l.classes);
            prop_assert_eq!(of(leaf), of(Leaf { longest: longest as u16, ..expected }));
        }
    }

    #[test]
    fn classes_are_half_powers_of_two() {
        let firsts = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384];
        for (k, first) in firsts.into_iter().enumerate() {
            assert_eq!(class(first), k as u32);
            if first > 1 {
                assert_eq!(class(first - 1), k as u32 - 1);
            }
        }
        assert_eq!(class(1 << 16), CLASSES);
        assert_eq!(class(1 << 31), CLASSES);
    }
}
