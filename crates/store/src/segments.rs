//! Segments in order of their starts, as sorted arrays of at most [`MOST`].
//!
//! What a transaction group changes in a metaslab is mostly a few segments, but in very many
//! metaslabs, which are not in a processor's cache. So what counts is how many places in memory
//! a look takes: here it is two, the list of pieces and one piece, and what is next to a segment is
//! beside it. A set of a million segments has some ten thousand pieces, whose list is moved when
//! one of them is divided.
//!
//! Invariants: no piece is empty, or has more than [`MOST`] segments; a piece's `first` is the start
//! of its first segment; starts rise, within pieces and from one to the next.

/// A segment `(start, end)`.
type Segment = (u64, u64);

/// Most segments of a piece: 1 KiB.
const MOST: usize = 64;
/// A piece with fewer is joined with a neighbour, if both together have at most [`MOST`] / 2.
const FEW: usize = MOST / 8;

#[derive(Clone, Debug)]
struct Piece {
    first: u64,
    segments: Vec<Segment>,
}

/// The set; see the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    pieces: Vec<Piece>,
    count: usize,
}

/// Where a segment is: its piece, and which of that it is. It counts until the set is changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At(usize, usize);

impl Segments {
    /// A set of segments that are in order.
    pub fn of(segments: impl Iterator<Item = Segment>) -> Segments {
        let mut set = Segments::default();
        for segment in segments {
            match set.pieces.last_mut().filter(|piece| piece.segments.len() < MOST) {
                Some(piece) => piece.segments.push(segment),
                None => set.pieces.push(Piece { first: segment.0, segments: vec![segment] }),
            }
            set.count += 1;
        }
        set
    }

    /// Number of segments.
    pub fn len(&self) -> usize {
        self.count
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = Segment> + '_ {
        self.pieces.iter().flat_map(|piece| piece.segments.iter().copied())
    }

    /// Those that start at `from` or later, in order.
    pub fn iter_from(&self, from: u64) -> impl Iterator<Item = Segment> + '_ {
        let piece = self.piece(from).unwrap_or(0);
        let (first, rest) = match self.pieces.get(piece..).and_then(<[Piece]>::split_first) {
            Some((first, rest)) => (&first.segments[..], rest),
            None => (&[][..], &[][..]),
        };
        let first = first.get(first.partition_point(|(s, _)| *s < from)..).unwrap_or_default();
        first.iter().chain(rest.iter().flat_map(|piece| &piece.segments)).copied()
    }

    /// The last piece that begins at `start` or before.
    fn piece(&self, start: u64) -> Option<usize> {
        self.pieces.partition_point(|piece| piece.first <= start).checked_sub(1)
    }

    /// The last segment that starts at `start` or before.
    pub fn at_or_before(&self, start: u64) -> Option<At> {
        let i = self.piece(start)?;
        let before = self.pieces.get(i)?.segments.partition_point(|(s, _)| *s <= start);
        Some(At(i, before.checked_sub(1)?))
    }

    /// The segment after `at`, or the first of all.
    pub fn after(&self, at: Option<At>) -> Option<At> {
        let Some(At(piece, i)) = at else { return (self.count > 0).then_some(At(0, 0)) };
        let next = match i + 1 < self.pieces.get(piece)?.segments.len() {
            true => At(piece, i + 1),
            false => At(piece + 1, 0),
        };
        (next.0 < self.pieces.len()).then_some(next)
    }

    /// What is there.
    pub fn get(&self, at: At) -> Option<Segment> {
        self.pieces.get(at.0)?.segments.get(at.1).copied()
    }

    /// Changes a segment, which stays between the same neighbours.
    pub fn set(&mut self, at: At, segment: Segment) {
        let piece = &mut self.pieces[at.0];
        piece.segments[at.1] = segment;
        if at.1 == 0 {
            piece.first = segment.0;
        }
    }

    /// Adds a segment after `at`, or before all.
    pub fn insert_after(&mut self, at: Option<At>, segment: Segment) {
        self.count += 1;
        let (i, to) = at.map_or((0, 0), |At(piece, i)| (piece, i + 1));
        let Some(piece) = self.pieces.get_mut(i) else {
            self.pieces.push(Piece { first: segment.0, segments: vec![segment] });
            return;
        };
        piece.segments.insert(to.min(piece.segments.len()), segment);
        if to == 0 {
            piece.first = segment.0;
        }
        if piece.segments.len() > MOST {
            // What is added in order leaves full pieces behind.
            let keep = if to == MOST { MOST } else { MOST / 2 };
            let segments = piece.segments.split_off(keep);
            let first = segments.first().map_or(0, |(start, _)| *start);
            self.pieces.insert(i + 1, Piece { first, segments });
        }
    }

    /// Takes a segment out.
    pub fn remove(&mut self, at: At) {
        let piece = &mut self.pieces[at.0];
        piece.segments.remove(at.1);
        self.count = cenote_format::less!(self.count, 1, "segments");
        let Some((first, _)) = piece.segments.first() else {
            self.pieces.remove(at.0);
            return;
        };
        piece.first = *first;
        if piece.segments.len() < FEW
            && !self.join(at.0)
            && let Some(before) = at.0.checked_sub(1)
        {
            self.join(before);
        }
    }

    /// Joins a piece with the next one if both are small; whether they were.
    fn join(&mut self, i: usize) -> bool {
        let Some([piece, next]) = self.pieces.get_mut(i..i + 2) else { return false };
        if piece.segments.len() + next.segments.len() > MOST / 2 {
            return false;
        }
        piece.segments.append(&mut next.segments);
        self.pieces.remove(i + 1);
        true
    }
}

impl PartialEq for Segments {
    fn eq(&self, other: &Segments) -> bool {
        self.count == other.count && self.iter().eq(other.iter())
    }
}

impl Eq for Segments {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn check(set: &Segments, model: &BTreeMap<u64, u64>) {
        assert!(set.iter().eq(model.iter().map(|(s, e)| (*s, *e))));
        assert_eq!(set.len(), model.len());
        for piece in &set.pieces {
            assert_eq!(piece.segments.first().map(|(s, _)| *s), Some(piece.first));
            assert!(piece.segments.len() <= MOST);
        }
        assert_eq!(set, &Segments::of(set.iter()));
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(
            ops in prop::collection::vec((0..8u8, 0..4000u64), 1..1500), from in 0..4100u64,
        ) {
            let (mut set, mut model) = (Segments::default(), BTreeMap::new());
            // More is added at first, and more removed later.
            for (i, (op, start)) in ops.iter().enumerate() {
                let (start, add) = (*start, (*op < 6) == (i < 900));
                let before = set.at_or_before(start);
                let found = before.and_then(|at| set.get(at));
                let known = model.range(..=start).next_back().map(|(s, e)| (*s, *e));
                prop_assert_eq!(found, known);
                let next = set.after(before).and_then(|at| set.get(at));
                prop_assert_eq!(next, model.range(start + 1..).next().map(|(s, e)| (*s, *e)));
                match (add, found, before) {
                    (true, Some((s, _)), Some(at)) if s == start => {
                        set.set(at, (start, start + 2));
                        model.insert(start, start + 2);
                    }
                    (true, ..) => {
                        set.insert_after(before, (start, start + 1));
                        model.insert(start, start + 1);
                    }
                    (false, Some((s, _)), Some(at)) => {
                        set.remove(at);
                        model.remove(&s);
                    }
                    (false, ..) => {}
                }
            }
            check(&set, &model);
            let later: Vec<_> = model.range(from..).map(|(s, e)| (*s, *e)).collect();
            prop_assert_eq!(set.iter_from(from).collect::<Vec<_>>(), later);
            let starts: Vec<u64> = model.keys().copied().collect();
            for start in starts {
                let at = set.at_or_before(start).unwrap();
                set.remove(at);
                model.remove(&start);
            }
            check(&set, &model);
            prop_assert!(set.pieces.is_empty());
        }
    }

    #[test]
    fn what_comes_in_order_fills_pieces() {
        let mut set = Segments::default();
        for start in 0..10_000 {
            set.insert_after(set.at_or_before(start), (start, start + 1));
        }
        assert_eq!(set.pieces.len(), 10_000usize.div_ceil(MOST));
        // Nearly all of it goes: pieces are joined.
        for start in (0..10_000).filter(|start| start % 100 != 0) {
            set.remove(set.at_or_before(start).unwrap());
        }
        assert_eq!(set.len(), 100);
        assert!(set.pieces.len() <= 100 / FEW + 1, "{}", set.pieces.len());
    }
}
