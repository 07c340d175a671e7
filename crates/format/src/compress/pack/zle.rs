//! zle (`zfs_zle_compress`): runs of zeros are counted, all else is copied.

/// Longest run of literal bytes, and the code after the last of theirs.
const LITERALS: usize = 64;
/// Longest run of zeros.
const ZEROS: usize = 256 - LITERALS;

/// Length of what was written to `dst`; `None` if that is too short.
pub(super) fn compress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let (mut rest, mut out) = (src, 0);
    while !rest.is_empty() {
        let zeros = rest.iter().take(ZEROS).take_while(|b| **b == 0).count();
        if zeros > 0 {
            *dst.get_mut(out)? = (LITERALS + zeros - 1) as u8;
            out += 1;
            rest = &rest[zeros..];
            continue;
        }
        let len = literals(rest);
        let run = dst.get_mut(out..out + 1 + len)?;
        run[0] = (len - 1) as u8;
        run[1..].copy_from_slice(&rest[..len]);
        out += 1 + len;
        rest = &rest[len..];
    }
    Some(out)
}

/// Bytes until two zeros, or a zero at the end, make a run of zeros worth its code.
fn literals(rest: &[u8]) -> usize {
    let most = rest.len().min(LITERALS);
    let ends = |at: &usize| rest[*at] == 0 && rest.get(at + 1).is_none_or(|b| *b == 0);
    (1..most).find(ends).unwrap_or(most)
}
