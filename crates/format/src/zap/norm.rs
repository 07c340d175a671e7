//! Normalization of names: case folding and Unicode normalization forms, so that a ZAP can find
//! a name that was written differently.
//!
//! The normalization flags of a ZAP are those of `u8_textprep_str`: fold to upper case, and at
//! most one of the forms C, D, KC, KD. Names stay in the table as they were given; their hash is
//! that of the normalized name.
//!
//! Names need not be UTF-8. A byte that cannot start a character stands for itself; a lead byte
//! takes as many bytes as it announces, and if these are no character they stand for themselves
//! too. Both end the sequence of combining marks before them.
//!
//! OpenZFS's tables are those of Unicode 5.0, and names must hash the same for ever, so characters
//! that came later have no case and no decomposition here ([`later`]). Case folding is the
//! *simple* one: a character becomes exactly one other. In single characters this agrees with
//! OpenZFS throughout. OpenZFS differs from the standard, and so from what is done here, in a few
//! odd sequences: marks that block each other before a composition, more than 30 marks in a row, a
//! truncated lead byte of a Hangul syllable.

mod later;

use std::borrow::Cow;
use unicode_normalization::char::{
    canonical_combining_class, compose, decompose_canonical, decompose_compatible,
};

/// `U8_TEXTPREP_TOUPPER`: fold to upper case.
pub const TO_UPPER: u64 = 0x02;
/// `U8_TEXTPREP_NFD`: canonical decomposition.
pub const NFD: u64 = 0x10;
/// `U8_TEXTPREP_NFC`: canonical decomposition, then composition.
pub const NFC: u64 = 0x50;
/// `U8_TEXTPREP_NFKD`: compatibility decomposition.
pub const NFKD: u64 = 0x20;
/// `U8_TEXTPREP_NFKC`: compatibility decomposition, then composition.
pub const NFKC: u64 = 0x60;
const FORMS: u64 = 0x70;
const COMPAT: u64 = 0x20;
const COMPOSE: u64 = 0x40;

/// COMBINING GREEK YPOGEGRAMMENI, the only combining mark with an upper case.
const YPOGEGRAMMENI: char = '\u{345}';
const CAPITAL_IOTA: char = '\u{399}';

/// Whether `flags` is a combination that exists.
pub fn flags_valid(flags: u64) -> bool {
    flags & !(TO_UPPER | FORMS) == 0 && matches!(flags & FORMS, 0 | NFC | NFD | NFKC | NFKD)
}

/// `name` normalized by `flags` (0: unchanged).
pub fn normalize(name: &[u8], flags: u64) -> Cow<'_, [u8]> {
    if flags & (TO_UPPER | FORMS) == 0 {
        return Cow::Borrowed(name);
    }
    if name.is_ascii() {
        return match flags & TO_UPPER {
            0 => Cow::Borrowed(name),
            _ => Cow::Owned(name.to_ascii_uppercase()),
        };
    }
    let mut out = Vec::with_capacity(name.len() * 2);
    let mut run = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let (len, c) = next_char(rest);
        let (bytes, after) = rest.split_at(len);
        match c {
            Some(c) => run.push(c),
            None => {
                flush(&mut run, flags, &mut out);
                out.extend_from_slice(bytes);
            }
        }
        rest = after;
    }
    flush(&mut run, flags, &mut out);
    Cow::Owned(out)
}

/// Bytes of the first character of `s` (which is not empty), and the character if it is one.
fn next_char(s: &[u8]) -> (usize, Option<char>) {
    let announced = match s.first() {
        Some(0xc2..=0xdf) => 2,
        Some(0xe0..=0xef) => 3,
        Some(0xf0..=0xf4) => 4,
        _ => 1,
    };
    let len = announced.min(s.len());
    let c = s.get(..len).and_then(|b| std::str::from_utf8(b).ok()).and_then(|s| s.chars().next());
    (len, c)
}

fn flush(run: &mut Vec<char>, flags: u64, out: &mut Vec<u8>) {
    let upper = |c: char| if flags & TO_UPPER != 0 { simple_upper(c) } else { c };
    let mut marks = Vec::with_capacity(run.len());
    for (i, c) in run.drain(..).enumerate() {
        if flags & FORMS == 0 {
            marks.push((0, upper(c)));
        } else if i > 0 && c == YPOGEGRAMMENI && flags & TO_UPPER != 0 {
            // It is sorted among its neighbours as the mark it was.
            marks.push((class(c), CAPITAL_IOTA));
        } else {
            decompose(upper(c), flags, |d| marks.push((class(d), d)));
        }
    }
    order(&mut marks);
    if flags & COMPOSE != 0 {
        marks = recompose(&marks);
    }
    let mut utf8 = [0; 4];
    for (_, c) in marks {
        out.extend_from_slice(c.encode_utf8(&mut utf8).as_bytes());
    }
}

/// Canonical combining class in Unicode 5.0.
fn class(c: char) -> u8 {
    if later::is_later(c) { 0 } else { canonical_combining_class(c) }
}

fn decompose(c: char, flags: u64, emit: impl FnMut(char)) {
    let mut emit = emit;
    match flags & COMPAT {
        _ if later::is_later(c) => emit(c),
        0 => decompose_canonical(c, emit),
        _ => decompose_compatible(c, emit),
    }
}

/// The canonical order: runs of marks (class over 0) sorted by class, equal ones as they were.
fn order(marks: &mut [(u8, char)]) {
    for run in marks.split_mut(|(class, _)| *class == 0) {
        run.sort_by_key(|(class, _)| *class);
    }
}

/// The canonical composition of a decomposed and ordered text.
fn recompose(text: &[(u8, char)]) -> Vec<(u8, char)> {
    let mut out: Vec<(u8, char)> = Vec::with_capacity(text.len());
    let mut starter: Option<usize> = None;
    for &(class, c) in text {
        let last_class = out.last().map_or(0, |(class, _)| *class);
        if let Some(at) = starter {
            let adjacent = at + 1 == out.len();
            let blocked = !adjacent && last_class >= class;
            let whole = out.get(at).and_then(|(_, s)| compose(*s, c));
            if let Some(whole) = whole.filter(|w| !blocked && !later::is_later(*w)) {
                if let Some(slot) = out.get_mut(at) {
                    slot.1 = whole;
                }
                continue;
            }
        }
        if class == 0 {
            starter = Some(out.len());
        }
        out.push((class, c));
    }
    out
}

/// The simple upper case mapping of Unicode 5.0. The standard library knows the full mapping; the
/// two differ for characters that become several.
fn simple_upper(c: char) -> char {
    if c.is_ascii() {
        return c.to_ascii_uppercase();
    }
    if later::case_is_later(c) {
        return c;
    }
    let mut full = c.to_uppercase();
    if let (Some(one), None) = (full.next(), full.next()) {
        return one;
    }
    // Small letters with iota subscript, and with their subscript written beside when capital.
    let capital = match c as u32 {
        n @ (0x1f80..=0x1f87 | 0x1f90..=0x1f97 | 0x1fa0..=0x1fa7) => n + 8,
        n @ (0x1fb3 | 0x1fc3 | 0x1ff3) => n + 9,
        n => n,
    };
    char::from_u32(capital).unwrap_or(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(flags: u64, from: &str, to: &str) {
        let got = normalize(from.as_bytes(), flags);
        assert_eq!(String::from_utf8_lossy(&got), to, "{from:?} under {flags:#x}");
    }

    #[test]
    fn forms_and_case() {
        check(0, "e\u{301}X", "e\u{301}X");
        check(TO_UPPER, "stra\u{df}e.\u{e9}", "STRA\u{df}E.\u{c9}");
        check(TO_UPPER, "\u{1f80}\u{1fb3}\u{345}\u{131}\u{149}", "\u{1f88}\u{1fbc}\u{399}I\u{149}");
        check(NFD, "\u{e9}\u{212b}\u{ac01}", "e\u{301}A\u{30a}\u{1100}\u{1161}\u{11a8}");
        check(NFC, "e\u{301}A\u{30a}\u{1100}\u{1161}\u{11a8}", "\u{e9}\u{c5}\u{ac01}");
        check(NFKD, "\u{fb01}\u{2460}", "fi1");
        check(NFKC, "\u{fb01}e\u{301}", "fi\u{e9}");
        check(NFD | TO_UPPER, "\u{e9}t\u{e9}", "E\u{301}TE\u{301}");
        check(NFC | TO_UPPER, "e\u{323}\u{301}", "\u{1eb8}\u{301}");
        // Marks are put into the order of their classes.
        check(NFD, "a\u{301}\u{323}", "a\u{323}\u{301}");
        check(NFC, "a\u{315}\u{300}\u{5ae}", "\u{e0}\u{5ae}\u{315}");
    }

    #[test]
    fn later_characters_are_left_alone() {
        check(
            TO_UPPER,
            "\u{250}\u{10d0}\u{ab70}\u{1e943}\u{19b}",
            "\u{250}\u{10d0}\u{ab70}\u{1e943}\u{19b}",
        );
        check(NFKD, "\u{32ff}\u{1f100}", "\u{32ff}\u{1f100}");
        check(NFD, "a\u{301}\u{1ab0}\u{323}", "a\u{301}\u{1ab0}\u{323}");
        assert!(!later::is_later('\u{e9}') && !later::case_is_later('\u{e9}'));
        assert!(!later::is_later('\0') && !later::is_later('\u{10ffff}'));
    }

    #[test]
    fn bytes_that_are_no_characters_stay() {
        for bytes in [&b"\xff\xc0\x80"[..], b"\xe9ab", b"\xf0\x9f", b"\x80\x80"] {
            assert_eq!(&*normalize(bytes, NFC | TO_UPPER), bytes);
        }
        assert_eq!(&*normalize(b"\xffa\xcc\x81", NFC | TO_UPPER), b"\xff\xc3\x81");
    }

    #[test]
    fn valid_flags() {
        for form in [0, NFC, NFD, NFKC, NFKD] {
            assert!(flags_valid(form) && flags_valid(form | TO_UPPER));
        }
        assert!(
            !flags_valid(0x30) && !flags_valid(0x40) && !flags_valid(1) && !flags_valid(1 << 40)
        );
    }
}
