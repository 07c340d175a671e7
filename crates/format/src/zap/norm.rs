//! Normalization of names: case folding and Unicode normalization forms, so that a ZAP can find
//! a name that was written differently.
//!
//! The normalization flags of a ZAP are the flags of `u8_textprep_str`: fold to upper case, and at
//! most one of the forms C, D, KC, KD. Names stay in the table as they were given; their hash is
//! that of the normalized name.
//!
//! Names need not be UTF-8. A byte that cannot start a character stands for itself; a lead byte
//! takes as many bytes as it announces, and if these are no character they stand for themselves
//! too. Both end the sequence of combining marks before them.
//!
//! OpenZFS's tables are from Unicode 5.0, and names must hash the same for ever, so characters
//! that came later have no case and no decomposition here ([`later`]). Case folding is the
//! *simple* one: a character becomes exactly one other. In single characters this agrees with
//! OpenZFS throughout, and in compositions with several marks too, where OpenZFS differs from the
//! standard ([`recompose`]). OpenZFS differs from what is done here in a few odd sequences: more than 30
//! marks in a row that are composed, circled letters of Hangul before a vowel under KC, a truncated lead
//! byte of a Hangul syllable.
//!
//! OpenZFS normalizes into a buffer of [`MAX_NAME`] bytes. A name that does not fit cannot be in a
//! directory ([`fits`]): the kernel module, and `zdb`, stop when they open one that has such a name.

mod later;

use crate::encode::zap::MAX_NAME;
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
/// COMBINING GRAPHEME JOINER, which sets marks apart.
const GRAPHEME_JOINER: char = '\u{34f}';
/// Characters that a sequence may have.
const MAX_SEQUENCE: usize = 30;

/// Whether `flags` is a combination that exists.
pub fn flags_valid(flags: u64) -> bool {
    flags & !(TO_UPPER | FORMS) == 0 && matches!(flags & FORMS, 0 | NFC | NFD | NFKC | NFKD)
}

/// Whether the normalized name is no longer than names may be, so that OpenZFS can normalize it.
pub fn fits(name: &[u8], flags: u64) -> bool {
    normalize(name, flags).len() < MAX_NAME
}

/// `name` normalized by `flags` (0: unchanged; `zap_normalize`).
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

/// A character of a decomposed text.
#[derive(Clone, Copy)]
struct Mark {
    /// Number of the sequence that it belongs to.
    sequence: u32,
    /// Combining class; 0 of a starter.
    class: u8,
    c: char,
    /// Whether another character became it.
    became: bool,
}

/// A decomposed text that is being collected.
struct Collected {
    marks: Vec<Mark>,
    sequence: u32,
    /// Characters of the sequence so far.
    len: usize,
}

impl Collected {
    /// Adds what the character `from` became. A sequence does not get longer than [`MAX_SEQUENCE`]: what
    /// would make it so is set apart (which is Unicode's stream-safe form).
    fn add(&mut self, first: bool, from: char, became: &[(u8, char)]) {
        if first {
            self.sequence += 1;
            self.len = 0;
        } else if self.len + became.len() > MAX_SEQUENCE {
            self.sequence += 1;
            self.len = 0;
            self.put(0, GRAPHEME_JOINER, false);
        }
        self.len += became.len();
        let changed = became != [(class(from), from)];
        became.iter().for_each(|&(class, c)| self.put(class, c, changed));
    }

    fn put(&mut self, class: u8, c: char, became: bool) {
        self.marks.push(Mark { sequence: self.sequence, class, c, became });
    }
}

fn flush(run: &mut Vec<char>, flags: u64, out: &mut Vec<u8>) {
    let mut utf8 = [0; 4];
    let mut put = |c: char| out.extend_from_slice(c.encode_utf8(&mut utf8).as_bytes());
    let upper = |c: char| if flags & TO_UPPER != 0 { simple_upper(c) } else { c };
    if flags & FORMS == 0 {
        return run.drain(..).for_each(|c| put(upper(c)));
    }
    let mut text = Collected { marks: Vec::with_capacity(run.len()), sequence: 0, len: 0 };
    let mut before = None;
    let mut became = Vec::new();
    for c in run.drain(..) {
        // A sequence begins with what is no mark, and after Hangul, which is composed by rules of its
        // own.
        let first = class(c) == 0 || before.is_none_or(is_hangul);
        if !first && c == YPOGEGRAMMENI && flags & TO_UPPER != 0 {
            // It is sorted among its neighbours as the mark it was.
            became.push((class(c), CAPITAL_IOTA));
        } else {
            decompose(upper(c), flags, |d| became.push((class(d), d)));
        }
        text.add(first, c, &became);
        became.clear();
        before = Some(c);
    }
    let mut marks = text.marks;
    order(&mut marks);
    if flags & COMPOSE != 0 {
        marks = recompose(&marks);
    }
    marks.iter().for_each(|mark| put(mark.c));
}

/// Whether `c` is a Hangul syllable, or a letter that these are composed of.
fn is_hangul(c: char) -> bool {
    matches!(c as u32, 0x1100..=0x1112 | 0x1161..=0x1175 | 0x11a8..=0x11c2 | 0xac00..=0xd7a3)
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

/// The canonical order: runs of marks (class over 0) of a sequence sorted by class, equal ones as
/// they were.
fn order(marks: &mut [Mark]) {
    let joined = |a: &Mark, b: &Mark| a.class != 0 && b.class != 0 && a.sequence == b.sequence;
    for run in marks.chunk_by_mut(joined) {
        run.sort_by_key(|mark| mark.class);
    }
}

/// The composition of a decomposed and ordered text. It is the canonical one but for what OpenZFS does
/// differently: a mark that was left keeps a later one of its class from the starter only as long as
/// the starter has taken no mark (`o`, ogonek, tilde and macron become ǭ and a tilde); what begins a
/// sequence and is decomposed (halfwidth voicing marks of Katakana, compatibility letters of Hangul)
/// stays apart from what was before it;
/// of several starters that one character became, only the first takes marks that are not next to it.
fn recompose(text: &[Mark]) -> Vec<Mark> {
    let mut out: Vec<Mark> = Vec::with_capacity(text.len());
    // Where the last starter is, and whether it has taken a mark.
    let mut starter: Option<(usize, bool)> = None;
    // Whether it is the first of its sequence.
    let mut first = true;
    for mark in text {
        let last = out.last().copied();
        let apart = mark.class != 0 || mark.became;
        if last.is_some_and(|last| last.sequence != mark.sequence && apart) {
            starter = None;
        }
        if let Some((at, taken)) = starter {
            let adjacent = at + 1 == out.len();
            let above = last.is_some_and(|last| last.class >= mark.class);
            let blocked = !adjacent && (!first || !taken && above);
            let whole = out.get(at).and_then(|s| compose(s.c, mark.c));
            if let Some(whole) = whole.filter(|w| !blocked && !later::is_later(*w)) {
                if let Some(slot) = out.get_mut(at) {
                    slot.c = whole;
                }
                starter = Some((at, true));
                continue;
            }
        }
        if mark.class == 0 {
            first = last.is_none_or(|last| last.sequence != mark.sequence);
            starter = Some((out.len(), false));
        }
        out.push(*mark);
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

    /// What OpenZFS's own function says of these.
    #[test]
    fn sequences_that_openzfs_has_in_its_own_way() {
        // A mark that was left does not block once the starter has taken one; before that it does.
        check(NFC, "o\u{328}\u{303}\u{304}", "\u{1ed}\u{303}");
        check(NFC, "g\u{308}\u{301}", "g\u{308}\u{301}");
        check(NFC, "O\u{302}\u{31b}\u{309}", "\u{1ede}\u{302}");
        // What becomes a mark begins a sequence.
        check(NFKC, "\u{ff8a}\u{ff9f}\u{335}", "\u{30cf}\u{335}\u{309a}");
        check(NFKC, "\u{30cf}\u{335}\u{309a}", "\u{30d1}\u{335}");
        check(NFD, "\u{353}\u{f73}\u{367}", "\u{353}\u{f71}\u{f72}\u{367}");
        // Starters that one character became.
        check(NFKC, "\u{334e}", "\u{30e4}\u{30fc}\u{30c9}");
        check(NFKC, "\u{334e}\u{335}", "\u{30e4}\u{30fc}\u{30c8}\u{335}\u{3099}");
        check(NFKC, "\u{2116}\u{30c}\u{32a}", "No\u{32a}\u{30c}");
        check(NFD | TO_UPPER, "\u{1100}\u{345}\u{327}", "\u{1100}\u{399}\u{327}");
        // Long sequences are divided.
        let acutes = |n| "\u{301}".repeat(n);
        let long = format!("a{}\u{323}", acutes(31));
        check(NFD, &long, &format!("a{}\u{34f}\u{323}{}", acutes(29), acutes(2)));
        check(NFC, &long, &format!("\u{e1}{}\u{34f}\u{323}{}", acutes(28), acutes(2)));
        let pairs = "\u{308}\u{301}".repeat(14);
        check(
            NFD,
            &format!("a{}", "\u{344}".repeat(15)),
            &format!("a{pairs}\u{34f}\u{308}\u{301}"),
        );
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
    fn names_that_get_longer() {
        // 3 bytes become 33.
        let ligature = "\u{fdfa}";
        assert!(fits(ligature.repeat(7).as_bytes(), NFKC));
        assert!(!fits(ligature.repeat(8).as_bytes(), NFKC));
        assert!(fits(ligature.repeat(85).as_bytes(), NFC | TO_UPPER));
        assert!(fits(&[b'x'; 255], NFKD | TO_UPPER) && !fits(&[b'x'; 256], NFD));
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
