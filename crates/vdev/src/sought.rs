//! Looking for vdevs that begin somewhere in an image: the partition table is gone, or a volume manager's own data is in
//! front.
//!
//! A label's config begins with the heading of a list of names and values, and ends with a checksum that has the config's
//! place in the vdev in it. So a config in place tells which of the labels it belongs to, and where the vdev
//! begins. At each multiple of [`STEP`] the heading and the checksum's own magic are looked at; what has both is verified. The
//! first two labels are looked for: those at the end of a vdev say where it ends only.
//!
//! The image is read once, in large pieces that overlap by a config. What cannot be read is passed over, in smaller pieces. At
//! most [`MOST_LOOKS`] configs are verified, so that an image made for it does not keep one looking.

use std::collections::BTreeSet;

use cenote_format::checksum::{EMBEDDED_MAGIC, EMBEDDED_SIZE};
use cenote_format::label::{self, CONFIG_OFFSET, CONFIG_SIZE, LABEL_SIZE};

use crate::device::{Device, ReadReq};

/// Vdevs begin at multiples of so many bytes.
pub const STEP: u64 = 512;

/// Bytes that are read at once, and where these cannot be read, less and less.
const PIECE: u64 = 8 << 20;
const SMALL: [usize; 2] = [64 << 10, 4 << 10];

/// Most configs that are verified.
pub const MOST_LOOKS: usize = 4_000;

/// What the packed list of a config begins with: XDR, a byte order, version 0, unique names.
const HEADING: [u8; 10] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const XDR: u8 = 1;

/// Where in a config the embedded checksum begins, with its magic in either byte order.
const MAGIC_AT: usize = CONFIG_SIZE - EMBEDDED_SIZE;

/// What came of looking through an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sought {
    /// Where vdevs begin.
    pub begins: Vec<u64>,
    /// There are more places that look like labels than are looked at: there may be more vdevs.
    pub too_many: bool,
}

/// Where vdevs begin in `image`, by their first labels. `go_on` is told how many bytes were looked at, and says whether
/// to go on.
pub fn vdevs_in(image: &dyn Device, go_on: &mut dyn FnMut(u64) -> bool) -> Sought {
    let (mut found, mut looks) = (BTreeSet::new(), 0);
    let mut at = 0;
    while at < image.size() && go_on(at) {
        let len = (PIECE + CONFIG_SIZE as u64).min(image.size() - at);
        let bytes = read_what_can_be(image, at, len as usize);
        let places = (0..PIECE.min(len)).step_by(STEP as usize);
        for place in places {
            let from = place as usize;
            let Some(config) = bytes.get(from..from + CONFIG_SIZE) else { break };
            if !looks_like_config(config) {
                continue;
            }
            looks += 1;
            if looks > MOST_LOOKS {
                return Sought { begins: found.into_iter().collect(), too_many: true };
            }
            found.extend(begin_of(config, at + place));
        }
        at += PIECE;
    }
    Sought { begins: found.into_iter().collect(), too_many: false }
}

fn looks_like_config(config: &[u8]) -> bool {
    let magic = config.get(MAGIC_AT..).and_then(|rest| rest.first_chunk::<8>());
    let magic = magic.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let order = config.get(1).is_some_and(|order| *order < 2);
    config.first() == Some(&XDR)
        && order
        && config.get(2..12) == Some(&HEADING)
        && (magic == EMBEDDED_MAGIC || magic == EMBEDDED_MAGIC.swap_bytes())
}

/// Where the vdev begins whose first or second label has `config`, which is at byte `place`.
fn begin_of(config: &[u8], place: u64) -> Option<u64> {
    let within = [CONFIG_OFFSET, LABEL_SIZE + CONFIG_OFFSET];
    let verifies = |within: &u64| matches!(label::decode_config(config, *within), Ok(Some(_)));
    place.checked_sub(within.into_iter().find(verifies)?)
}

/// `len` bytes at byte `at`, with zeros where they cannot be read.
fn read_what_can_be(image: &dyn Device, at: u64, len: usize) -> Vec<u8> {
    let mut all = vec![0; len];
    let mut missing = vec![(0, len)];
    for size in [len].into_iter().chain(SMALL) {
        let pieces = missing.iter().flat_map(|(from, len)| {
            (0..*len).step_by(size).map(move |at| (from + at, size.min(len - at)))
        });
        let pieces: Vec<(usize, usize)> = pieces.collect();
        let req = |(from, len): &(usize, usize)| ReadReq::new(at + *from as u64, *len);
        let mut reqs: Vec<ReadReq> = pieces.iter().map(req).collect();
        image.read_batch(&mut reqs);
        missing.clear();
        for ((from, len), req) in pieces.into_iter().zip(reqs) {
            match (req.take(), all.get_mut(from..from + len)) {
                (Ok(bytes), Some(place)) => place.copy_from_slice(&bytes.bytes()),
                _ => missing.push((from, len)),
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inject::MemDevice;

    fn label() -> Vec<u8> {
        let pool = cenote_testpools::pool("basic");
        let mut bytes = vec![0; 512 << 10];
        let file = std::fs::File::open(&pool.files[0]).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
        bytes
    }

    fn image(size: usize, vdevs: &[(usize, &[u8])]) -> Vec<u8> {
        let mut image = vec![0; size];
        vdevs.iter().for_each(|(at, bytes)| image[*at..at + bytes.len()].copy_from_slice(bytes));
        image
    }

    fn found(bytes: Vec<u8>) -> Vec<u64> {
        let found = vdevs_in(&*MemDevice::new("image", bytes), &mut |_| true);
        assert!(!found.too_many);
        found.begins
    }

    #[test]
    fn labels_are_found_where_they_are() {
        let label = label();
        // Across the pieces, too, and by the second label alone.
        for at in [0, 512, 1 << 20, (8 << 20) - 512, (8 << 20) - (100 << 10), 8 << 20] {
            assert_eq!(found(image(20 << 20, &[(at, &label)])), [at as u64]);
            let second = &label[256 << 10..];
            let only = found(image(20 << 20, &[(at + (256 << 10), second)]));
            assert_eq!(only, [at as u64]);
        }
        let two = image(20 << 20, &[(63 * 512, &label), (9 << 20, &label)]);
        assert_eq!(found(two), [63 * 512, 9 << 20]);
        // Not at a sector; without its end; changed; before the image begins.
        assert!(found(image(4 << 20, &[(100, &label)])).is_empty());
        assert!(found(label[..(16 << 10) + CONFIG_SIZE - 1].to_vec()).is_empty());
        let mut bad = label[..256 << 10].to_vec();
        bad[40 << 10] ^= 1;
        assert!(found(image(4 << 20, &[(0, &bad)])).is_empty());
        assert!(found(label[256 << 10..].to_vec()).is_empty());
        assert!(found(Vec::new()).is_empty());
    }

    #[test]
    fn one_is_asked_whether_to_go_on() {
        let device = MemDevice::new("image", image(20 << 20, &[(17 << 20, &label())]));
        let mut told = Vec::new();
        let stopped = vdevs_in(&*device, &mut |at| {
            told.push(at);
            told.len() < 3
        });
        assert_eq!((stopped.begins, told), (vec![], vec![0, 8 << 20, 16 << 20]));
    }

    #[test]
    fn what_cannot_be_read_is_passed_over() {
        let leaf = crate::testing::Leaf::new(20 << 20);
        leaf.faults.fail(3 << 20..(3 << 20) + 512);
        // Just before and behind the config of a label.
        leaf.faults.fail((9 << 20) + (12 << 10)..(9 << 20) + (12 << 10) + 512);
        leaf.faults.fail((9 << 20) + (128 << 10)..(10 << 20));
        let label = label();
        let write = |at: u64| {
            let mut reqs = [crate::WriteReq::new(at, cenote_format::abd::Abd::copy_of(&label))];
            leaf.memory.write_batch(&mut reqs);
        };
        write(1 << 20);
        write(9 << 20);
        let found = vdevs_in(&*leaf.faults, &mut |_| true);
        assert_eq!(found.begins, [1 << 20, 9 << 20]);
    }

    /// Places that look like labels are not looked at without end.
    #[test]
    fn an_image_made_for_it() {
        let label = label();
        let mut bytes = image(4 << 20, &[(0, &label)]);
        for at in (1 << 20..bytes.len()).step_by(512) {
            bytes[at] = XDR;
            bytes[at + 2..at + 12].copy_from_slice(&HEADING);
            bytes[at + 472..at + 480].copy_from_slice(&EMBEDDED_MAGIC.to_le_bytes());
        }
        let found = vdevs_in(&*MemDevice::new("image", bytes), &mut |_| true);
        assert_eq!(found, Sought { begins: vec![0], too_many: true });
    }
}
