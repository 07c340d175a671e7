//! Bits in words: finding, setting and clearing ranges.
//!
//! Bit `i` of a slice is bit `i % 64` of word `i / 64`. Positions beyond the slice read as clear.

/// Bits in a word.
pub(super) const WORD: usize = 64;

/// The mask of bits `from..to` of one word; `from < to <= 64`.
fn mask(from: usize, to: usize) -> u64 {
    (u64::MAX >> (WORD - (to - from))) << from
}

/// Calls `f` with each word of bits `from..to` and the mask of the bits that are meant, until it
/// says `false`; whether it never did.
fn each_word(from: usize, to: usize, mut f: impl FnMut(usize, u64) -> bool) -> bool {
    let mut at = from;
    while at < to {
        let (word, low) = (at / WORD, at % WORD);
        let high = (to - word * WORD).min(WORD);
        if !f(word, mask(low, high)) {
            return false;
        }
        at = (word + 1) * WORD;
    }
    true
}

/// Whether all of bits `from..to` are set.
pub(super) fn all_set(words: &[u64], from: usize, to: usize) -> bool {
    each_word(from, to, |w, m| words.get(w).is_some_and(|word| word & m == m))
}

/// Whether all bits in `from..to` are clear.
pub(super) fn all_clear(words: &[u64], from: usize, to: usize) -> bool {
    each_word(from, to, |w, m| words.get(w).is_none_or(|word| word & m == 0))
}

/// Sets bits `from..to`.
pub(super) fn set(words: &mut [u64], from: usize, to: usize) {
    each_word(from, to, |w, m| words.get_mut(w).map(|word| *word |= m).is_some());
}

/// Clears bits `from..to`.
pub(super) fn clear(words: &mut [u64], from: usize, to: usize) {
    each_word(from, to, |w, m| words.get_mut(w).map(|word| *word &= !m).is_some());
}

/// The first set (or, with `flip` all ones, clear) bit in `from..to`; `to` without one.
fn next(words: &[u64], from: usize, to: usize, flip: u64) -> usize {
    let mut found = to;
    each_word(from, to, |w, m| {
        let hits = (words.get(w).copied().unwrap_or(0) ^ flip) & m;
        if hits != 0 {
            found = w * WORD + hits.trailing_zeros() as usize;
        }
        hits == 0
    });
    found
}

/// The first set bit in `from..to`; `to` without one.
pub(super) fn next_set(words: &[u64], from: usize, to: usize) -> usize {
    next(words, from, to, 0)
}

/// The first clear bit in `from..to`; `to` without one.
pub(super) fn next_clear(words: &[u64], from: usize, to: usize) -> usize {
    next(words, from, to, u64::MAX)
}

/// One past the last clear bit in `from..to`; `from` without one.
pub(super) fn after_last_clear(words: &[u64], from: usize, to: usize) -> usize {
    let mut at = to;
    while at > from {
        let word = (at - 1) / WORD;
        let low = from.max(word * WORD);
        let m = mask(low - word * WORD, at - word * WORD);
        let hits = !words.get(word).copied().unwrap_or(0) & m;
        if hits != 0 {
            return word * WORD + WORD - hits.leading_zeros() as usize;
        }
        at = low;
    }
    from
}

/// Runs of set bits in `from..to` as `(start, end)`, cut at both bounds.
pub(super) fn runs(
    words: &[u64],
    from: usize,
    to: usize,
) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut at = from;
    std::iter::from_fn(move || {
        let start = next_set(words, at, to);
        if start >= to {
            return None;
        }
        at = next_clear(words, start, to);
        Some((start, at))
    })
}

/// Calls `f` with each maximal run of set bits of some words, as `(start, end)`, in order. A word
/// costs a step, and so does a run: where runs are short this is far faster than [`runs`].
pub(super) fn for_each_run(words: &[u64], mut f: impl FnMut(usize, usize)) {
    let mut open = None;
    for (i, word) in words.iter().enumerate() {
        let (mut left, base) = (*word, i * WORD);
        if let Some(start) = open {
            if left == u64::MAX {
                continue;
            }
            open = None;
            f(start, base + left.trailing_ones() as usize);
            // Adding one carries through the run at the bottom.
            left &= left.wrapping_add(1);
        }
        while left != 0 {
            let low = left.trailing_zeros();
            let len = (left >> low).trailing_ones();
            let start = base + low as usize;
            if low + len == u64::BITS {
                open = Some(start);
                break;
            }
            f(start, start + len as usize);
            left &= left.wrapping_add(1 << low);
        }
    }
    if let Some(start) = open {
        f(start, words.len() * WORD);
    }
}

/// Sets bits `from..to` if all are clear; whether they were.
#[inline]
pub(super) fn set_clear(words: &mut [u64], from: usize, to: usize) -> bool {
    if let Some((word, m)) = one_word(words, from, to) {
        let clear = *word & m == 0;
        *word |= if clear { m } else { 0 };
        return clear;
    }
    let clear = all_clear(words, from, to);
    if clear {
        set(words, from, to);
    }
    clear
}

/// Clears bits `from..to` if all are set; whether they were.
#[inline]
pub(super) fn clear_set(words: &mut [u64], from: usize, to: usize) -> bool {
    if let Some((word, m)) = one_word(words, from, to) {
        let set = *word & m == m;
        *word &= if set { !m } else { u64::MAX };
        return set;
    }
    let set = all_set(words, from, to);
    if set {
        clear(words, from, to);
    }
    set
}

/// The word that bits `from..to` are in, and their mask, if there are such bits in one word.
#[inline]
fn one_word(words: &mut [u64], from: usize, to: usize) -> Option<(&mut u64, u64)> {
    let low = from % WORD;
    if from >= to || to - from > WORD - low {
        return None;
    }
    let word = words.get_mut(from / WORD)?;
    Some((word, mask(low, low + (to - from))))
}

/// Number of maximal runs of set bits.
pub(super) fn count_runs(words: &[u64]) -> u64 {
    let mut before = 0;
    let starts = words.iter().map(|word| {
        let starts = word & !(word << 1 | before);
        before = word >> (WORD - 1);
        u64::from(starts.count_ones())
    });
    starts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behave_like_a_vector_of_bools(
            ops in prop::collection::vec((any::<bool>(), 0usize..320, 0usize..320), 1..30),
            from in 0usize..320, len in 0usize..320,
        ) {
            let (mut words, mut model) = (vec![0u64; 5], vec![false; 320]);
            for (on, a, b) in ops {
                let (a, b) = (a.min(b), a.max(b));
                if on { set(&mut words, a, b) } else { clear(&mut words, a, b) }
                model[a..b].fill(on);
            }
            let to = (from + len).min(320);
            let part = &model[from..to];
            prop_assert_eq!(all_set(&words, from, to), part.iter().all(|b| *b));
            prop_assert_eq!(all_clear(&words, from, to), part.iter().all(|b| !*b));
            let find = |on: bool| part.iter().position(|b| *b == on).map_or(to, |i| from + i);
            prop_assert_eq!(next_set(&words, from, to), find(true));
            prop_assert_eq!(next_clear(&words, from, to), find(false));
            let last = part.iter().rposition(|b| !*b).map_or(from, |i| from + i + 1);
            prop_assert_eq!(after_last_clear(&words, from, to), last);
            let mut again = vec![false; 320];
            runs(&words, 0, 320).for_each(|(s, e)| again[s..e].fill(true));
            prop_assert_eq!(&again, &model);
            let mut each = Vec::new();
            for_each_run(&words, |s, e| each.push((s, e)));
            prop_assert_eq!(&each, &runs(&words, 0, 320).collect::<Vec<_>>());
            prop_assert_eq!(count_runs(&words), each.len() as u64);
            let (clear, set) = (all_clear(&words, from, to), all_set(&words, from, to));
            let (before, mut after) = (words.clone(), model.clone());
            prop_assert_eq!(set_clear(&mut words, from, to), clear);
            if clear { after[from..to].fill(true) }
            prop_assert!((0..320).all(|i| all_set(&words, i, i + 1) == after[i]));
            let mut words = before;
            prop_assert_eq!(clear_set(&mut words, from, to), set);
            if set { model[from..to].fill(false) }
            prop_assert!((0..320).all(|i| all_set(&words, i, i + 1) == model[i]));
        }
    }
}
