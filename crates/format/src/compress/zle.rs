//! zle, zero-length encoding (`zfs_zle_decompress`): a byte `n` up to 63 announces `n + 1` literal bytes, a larger one
//! `n - 63` zeros.

/// Length codes of literal runs.
const LITERALS: usize = 64;

/// Fills `dst`; `None` if `src` ends too early or a run would overrun `dst`.
pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Option<()> {
    let mut src = src;
    let mut dst = dst;
    while !dst.is_empty() {
        let (&code, rest) = src.split_first()?;
        let len = usize::from(code) + 1;
        if len <= LITERALS {
            let (literals, rest) = rest.split_at_checked(len)?;
            let (out, tail) = dst.split_at_mut_checked(len)?;
            out.copy_from_slice(literals);
            (src, dst) = (rest, tail);
        } else {
            let (out, tail) = dst.split_at_mut_checked(len - LITERALS)?;
            out.fill(0);
            (src, dst) = (rest, tail);
        }
    }
    Some(())
}
