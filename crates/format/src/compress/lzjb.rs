//! lzjb (`zfs_lzjb_decompress`): a small LZ77.
//!
//! Items come in groups of eight, each group led by a byte of flags, lowest bit first. A clear flag
//! is a literal byte. A set flag is a match of two bytes, `llllllmm mmmmmmmm` big-endian: copy
//! `l + 3` bytes from `m` bytes back (1 to 1023). There is no end mark; the output's length ends it,
//! in the midst of a match if need be.

const MATCH_MIN: usize = 3;
const OFFSET_BITS: u32 = 10;

/// Fills `dst`; `None` if `src` ends too early or a match reaches before the start.
pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Option<()> {
    let mut input = src.iter();
    let mut at = 0;
    while at < dst.len() {
        let flags = *input.next()?;
        for bit in 0..8 {
            if at == dst.len() {
                break;
            }
            let first = *input.next()?;
            if flags >> bit & 1 == 0 {
                dst[at] = first;
                at += 1;
                continue;
            }
            let item = u16::from_be_bytes([first, *input.next()?]);
            let back = usize::from(item & ((1 << OFFSET_BITS) - 1));
            let len = (usize::from(item >> OFFSET_BITS) + MATCH_MIN).min(dst.len() - at);
            let from = at.checked_sub(back).filter(|&from| from < at)?;
            if back >= len {
                dst.copy_within(from..from + len, at);
            } else {
                // The match runs into its own output, which it repeats.
                for i in 0..len {
                    dst[at + i] = dst[from + i];
                }
            }
            at += len;
        }
    }
    Some(())
}
