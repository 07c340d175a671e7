//! Blocks of the snapshot, made of the blocks of a stream.
//!
//! Most streams have the very blocks. One that was sent without `-L` has large ones in parts, and one of a sender with
//! other blocks has them larger or smaller: what lies side by side is joined, and cut at the blocks of the snapshot. What is
//! of one block comes in one batch ([`Gathered`]).

use cenote_format::MAX_BLOCK;
use cenote_store::write::Payload;

/// Bytes of pieces that are enough for a batch.
const ENOUGH: u64 = 4 << 20;
/// Bytes that a batch never exceeds: a whole block of the snapshot may have begun in its last piece but one.
const MOST: u64 = ENOUGH + MAX_BLOCK;

/// A block of the stream.
pub(super) struct Piece {
    pub(super) object: u64,
    /// Byte in the object.
    pub(super) offset: u64,
    pub(super) data: Payload,
}

impl Piece {
    fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.data.len() as u64)
    }
}

/// Pieces of a batch, in the order of the stream: at most [`MOST`] bytes, whatever the stream has.
#[derive(Default)]
pub(super) struct Gathered {
    pub(super) pieces: Vec<Piece>,
    bytes: u64,
}

impl Gathered {
    /// Whether the batch ends before a piece of so many bytes. No block of the snapshot has bytes on both sides of a multiple of the
    /// largest block, and of a block with a gap nothing can be made.
    pub(super) fn ends_before(&self, object: u64, offset: u64, bytes: u64) -> bool {
        let goes_on = |last: &Piece| {
            (last.object, last.end()) == (object, Some(offset)) && !offset.is_multiple_of(MAX_BLOCK)
        };
        let is_enough = self.bytes >= ENOUGH && !self.pieces.last().is_some_and(goes_on);
        is_enough || self.bytes.saturating_add(bytes) > MOST
    }

    pub(super) fn add(&mut self, piece: Piece) {
        self.bytes += piece.data.len() as u64;
        self.pieces.push(piece);
    }
}

/// A block of the snapshot.
pub(super) struct Whole {
    pub(super) object: u64,
    pub(super) blkid: u64,
    /// What the stream has of it; `None`: not all of it, or in a form that cannot be cut.
    pub(super) data: Option<Payload>,
}

/// Bytes of an object that lie side by side in the stream.
#[derive(Default)]
struct Run {
    object: u64,
    /// Bytes of a block of the object.
    size: u64,
    offset: u64,
    bytes: Vec<u8>,
}

impl Run {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes.len() as u64)
    }

    /// The blocks that it has something of.
    fn cut(self, into: &mut Vec<Whole>) {
        let Run { object, size, offset, .. } = self;
        if self.bytes.is_empty() {
            return;
        }
        for blkid in offset / size..=(self.end() - 1) / size {
            let from = blkid.checked_mul(size).and_then(|at| at.checked_sub(offset));
            let range = from.and_then(|from| {
                let from = usize::try_from(from).ok()?;
                Some(from..from.checked_add(usize::try_from(size).ok()?)?)
            });
            let bytes = range.and_then(|range| self.bytes.get(range));
            let data = bytes.map(|bytes| Payload::Plain(bytes.to_vec().into()));
            into.push(Whole { object, blkid, data });
        }
    }
}

/// The blocks of the snapshot that `pieces` have something of, by object and number, and how many pieces are of objects
/// that cannot be read. `size_of` tells the bytes of a block of an object.
pub(super) fn join(
    pieces: Vec<Piece>,
    size_of: &mut dyn FnMut(u64) -> Option<u64>,
) -> (Vec<Whole>, u64) {
    let (mut wholes, mut lost, mut run) = (Vec::with_capacity(pieces.len()), 0, Run::default());
    let mut known: Option<(u64, Option<u64>)> = None;
    for Piece { object, offset, data } in pieces {
        let size = match known {
            Some((of, size)) if of == object => size,
            _ => size_of(object).filter(|size| *size > 0),
        };
        known = Some((object, size));
        let Some(size) = size else {
            lost += 1;
            continue;
        };
        let len = data.len() as u64;
        if len == size && offset.is_multiple_of(size) {
            wholes.push(Whole { object, blkid: offset / size, data: Some(data) });
            continue;
        }
        let bytes = match data.seal() {
            None => data.unpacked().ok(),
            Some(_) => None,
        };
        let Some(bytes) = bytes else {
            let last = offset.saturating_add(len.saturating_sub(1)) / size;
            let none = |blkid| Whole { object, blkid, data: None };
            wholes.extend((offset / size..=last).map(none));
            continue;
        };
        if (run.object, run.end()) != (object, offset) {
            let next = Run { object, size, offset, bytes: Vec::new() };
            std::mem::replace(&mut run, next).cut(&mut wholes);
        }
        bytes.chunks().for_each(|chunk| run.bytes.extend_from_slice(chunk));
    }
    run.cut(&mut wholes);
    wholes.sort_by_key(|whole| (whole.object, whole.blkid));
    (wholes, lost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_format::abd::Abd;

    fn piece(object: u64, offset: u64, bytes: &[u8]) -> Piece {
        Piece { object, offset, data: Payload::Plain(Abd::from_vec(bytes.to_vec())) }
    }

    fn told(wholes: &[Whole]) -> Vec<(u64, u64, Option<Vec<u8>>)> {
        let bytes = |whole: &Whole| Some(whole.data.as_ref()?.plain()?.to_vec());
        wholes.iter().map(|whole| (whole.object, whole.blkid, bytes(whole))).collect()
    }

    #[test]
    fn parts_make_blocks_and_large_blocks_are_cut() {
        let size = &mut |object| match object {
            1 => Some(4),
            2 => Some(2),
            3 => Some(8),
            _ => None,
        };
        let pieces = vec![
            piece(1, 0, b"abcd"),
            piece(1, 4, b"ef"),
            piece(1, 6, b"gh"),
            piece(1, 10, b"kl"),
            piece(2, 2, b"1234"),
            piece(3, 0, b"half"),
            piece(9, 0, b"gone"),
        ];
        let (wholes, lost) = join(pieces, size);
        let whole = |object, blkid, bytes: &[u8]| (object, blkid, Some(bytes.to_vec()));
        let expected = [
            whole(1, 0, b"abcd"),
            whole(1, 1, b"efgh"),
            (1, 2, None),
            whole(2, 1, b"12"),
            whole(2, 2, b"34"),
            (3, 0, None),
        ];
        assert_eq!((told(&wholes), lost), (expected.to_vec(), 1));
    }

    /// Adds pieces of one object, of so many bytes, at these places; how many bytes the batches have.
    fn batches(places: impl Iterator<Item = u64>, len: u64) -> Vec<u64> {
        let (mut gathered, mut all) = (Gathered::default(), Vec::new());
        for offset in places {
            if gathered.ends_before(1, offset, len) {
                all.push(std::mem::take(&mut gathered).bytes);
            }
            let data = Payload::Plain(Abd::from_vec(vec![0; len as usize]));
            gathered.add(Piece { object: 1, offset, data });
            assert!(gathered.bytes <= MOST, "{} at {offset}", gathered.bytes);
        }
        all.push(gathered.bytes);
        all
    }

    #[test]
    fn batches_are_bounded_whatever_a_stream_has() {
        const K: u64 = 1 << 10;
        // A volume of which no block at a multiple of the largest block was changed.
        let apart = batches((0..100).map(|n| n * MAX_BLOCK + 128 * K), 128 * K);
        assert_eq!(apart, [vec![ENOUGH; 3], vec![4 * 128 * K]].concat());
        // The largest blocks at one place, where none can be.
        assert_eq!(batches([512; 4].into_iter(), MAX_BLOCK), [MAX_BLOCK; 4]);
        // Side by side, but never at a multiple.
        let uneven = batches((0..4096).map(|n| 512 + n * 16 * K), 16 * K);
        assert_eq!(uneven.iter().sum::<u64>(), 4096 * 16 * K);
        assert!(uneven.len() > 3);
    }

    #[test]
    fn a_large_block_in_parts_is_in_one_batch() {
        const PART: u64 = 128 << 10;
        let parts = MAX_BLOCK / PART;
        // Some of the first block, and all of the next two.
        let first = ENOUGH - PART;
        let places = (0..first / PART).chain(parts..3 * parts).map(|n| n * PART);
        assert_eq!(batches(places, PART), [first + MAX_BLOCK, MAX_BLOCK]);
    }
}
