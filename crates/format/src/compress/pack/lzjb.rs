//! lzjb (`zfs_lzjb_compress`): matches are found through a table of the last place where a hash of three bytes was seen.

const MATCH_MIN: usize = 3;
const MATCH_MAX: usize = 66;
const FARTHEST: usize = 1023;
const TABLE: usize = 1024;
/// Bytes of a group of eight matches with its flags.
const GROUP: usize = 17;

fn slot(bytes: &[u8; 3]) -> usize {
    let [a, b, c] = bytes.map(u32::from);
    let mut hash = a << 16 | b << 8 | c;
    hash = hash.wrapping_add(hash >> 9);
    hash = hash.wrapping_add(hash >> 5);
    hash as usize % TABLE
}

/// How many bytes from `at` repeat those `back` before, up to the longest match.
fn repeats(src: &[u8], at: usize, back: usize) -> usize {
    let (old, new) = (&src[at - back..], &src[at..]);
    old.iter().zip(new).take(MATCH_MAX).take_while(|(a, b)| a == b).count()
}

/// Length of what was written to `dst`; `None` if that is too short.
pub(super) fn compress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    // Places are stored one greater, so that 0 means no place.
    let mut seen = [0usize; TABLE];
    let (mut at, mut out) = (0, 0);
    while at < src.len() {
        // A whole group must fit: OpenZFS gives up as early.
        let group = dst.get_mut(out..out + GROUP)?;
        let mut used = 1;
        group[0] = 0;
        for bit in 0..8 {
            let Some(&byte) = src.get(at) else { break };
            let mut found = None;
            if let Some(next) = src[at..].first_chunk::<MATCH_MIN>() {
                let place = &mut seen[slot(next)];
                let back = at + 1 - *place;
                let usable = *place > 0 && (1..=FARTHEST).contains(&back);
                *place = at + 1;
                let len = if usable { repeats(src, at, back) } else { 0 };
                found = (len >= MATCH_MIN).then_some((back, len));
            }
            match found {
                Some((back, len)) => {
                    let item = ((len - MATCH_MIN) << 10 | back) as u16;
                    group[0] |= 1 << bit;
                    group[used..used + 2].copy_from_slice(&item.to_be_bytes());
                    used += 2;
                    at += len;
                }
                None => {
                    group[used] = byte;
                    used += 1;
                    at += 1;
                }
            }
        }
        out += used;
    }
    Some(out)
}
