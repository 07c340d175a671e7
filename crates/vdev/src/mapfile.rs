//! Map files of GNU ddrescue: which parts of an image were read from the disk, and which were not.
//!
//! ```text
//! # Mapfile. Created by GNU ddrescue version 1.27        comments
//! # Command line: ddrescue /dev/sdb disk.img disk.map
//! 0x00120000     ?               1                       where it is, what it does, pass (not before 1.20)
//! 0x00000000  0x00117000  +                              position, bytes, status
//! 0x00117000  0x00000200  -
//! ```
//!
//! Numbers are written as in C: decimal, with `0x` hexadecimal, with `0` octal. Only `+` says that the bytes are in the
//! image; non-tried (`?`), non-trimmed (`*`), non-scraped (`/`) and bad (`-`) ones are not. Blocks are contiguous.
//! What is before the first and behind the last one was not tried. But where all is finished, the last one ends with the disk: what
//! is behind that was added to the image since.
//!
//! Positions are those of the disk. An image that was made with an output position (`-o`) has them elsewhere, and the map
//! does not say where; the comment with the command line tells. Such a map is refused.
//!
//! Invariant: what an unfinished map does not say in so many words is not in the image. A line that is not understood makes the
//! map an error.

use cenote_format::less;
use std::ops::Range;
use std::path::Path;

/// Most bytes of a map that is read: a map of a million blocks has about 30 MB.
pub const MOST: u64 = 256 << 20;

/// Bytes at the beginning of a file that tell whether it is a map, and have the comments before its first line.
pub const HEAD: usize = 64 << 10;

/// The kinds of its own files that ddrescue writes in their first lines, of those that are maps: the second one before 1.20. It
/// has logs of events, rates and reads as well, which begin alike.
const KINDS: [&[u8]; 2] = [b"Mapfile. ", b"Rescue Logfile. "];

/// Options of one letter that have an argument, which may be joined to them and have letters in it; besides that with the output
/// position.
const WITH_ARGUMENT: &str = "abceEFHiKmrsTxZ";

const COMMAND_LINE: &str = "Command line:";

/// The areas of an image that are not what the disk has there: in ascending order, apart from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unread(Vec<Range<u64>>);

impl Unread {
    /// Adds an area behind the others.
    fn add(&mut self, area: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if last.end == area.start => last.end = area.end,
            _ if area.is_empty() => {}
            _ => self.0.push(area),
        }
    }

    /// The first byte of an area among the `len` bytes at byte `offset`, of those that have a number.
    pub fn first_in(&self, offset: u64, len: u64) -> Option<u64> {
        let end = offset.saturating_add(len);
        let at = self.0.partition_point(|area| area.end <= offset);
        let area = self.0.get(at).filter(|area| area.start < end && offset < end)?;
        Some(area.start.max(offset))
    }

    /// How many bytes of the first `size` ones are in the areas.
    pub fn bytes_below(&self, size: u64) -> u64 {
        let below = |area: &Range<u64>| area.end.min(size).saturating_sub(area.start);
        self.0.iter().map(below).sum()
    }

    /// The areas of what begins at byte `start` of the image.
    #[must_use]
    pub fn from(self, start: u64) -> Unread {
        let inside = self.0.into_iter().filter(|area| area.end > start);
        Unread(inside.map(|area| area.start.saturating_sub(start)..area.end - start).collect())
    }

    /// How many of the `len` bytes at byte `offset` are in the areas, of those that have a number.
    pub fn bytes_in(&self, offset: u64, len: u64) -> u64 {
        let end = offset.saturating_add(len);
        less!(self.bytes_below(end), self.bytes_below(offset), "unread bytes below {end}")
    }

    /// The areas.
    pub fn areas(&self) -> &[Range<u64>] {
        &self.0
    }
}

/// What a map has wrong, and in which line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct BadMap {
    /// The line, from 1 on; the last one if something is missing.
    pub line: usize,
    /// What is wrong.
    pub why: &'static str,
}

/// Whether a file that begins so is a map of ddrescue, by its first comment.
pub fn is_map(head: &[u8]) -> bool {
    let line = head.split(|b| *b == b'\n').next().unwrap_or_default();
    let kind = line.strip_prefix(b"#").map(<[u8]>::trim_ascii_start).unwrap_or_default();
    let rest = KINDS.iter().find_map(|known| kind.strip_prefix(*known)).unwrap_or_default();
    rest.windows(8).any(|word| word == b"ddrescue")
}

/// The areas that a map says were not read.
///
/// # Errors
/// The text is no map, or it cannot be told which bytes of the image it means.
pub fn parse(text: &[u8]) -> Result<Unread, BadMap> {
    let mut map = Reader::default();
    let mut lines = 0;
    for line in text.split(|b| *b == b'\n') {
        lines += 1;
        map.line(line).map_err(|why| BadMap { line: lines, why })?;
    }
    if !map.in_blocks {
        return Err(BadMap { line: lines, why: "there is no status line" });
    }
    // A text that was cut off does not end with a line.
    let all = map.unread.areas().is_empty() && map.end > Some(0);
    if !(all && map.finished && text.ends_with(b"\n")) {
        map.unread.add(map.end.unwrap_or(0)..u64::MAX);
    }
    Ok(map.unread)
}

/// A map that is being read.
#[derive(Default)]
struct Reader {
    unread: Unread,
    /// The status line has been there.
    in_blocks: bool,
    /// It said that all was done that was to be done.
    finished: bool,
    /// The end of the last block.
    end: Option<u64>,
}

impl Reader {
    fn line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let (line, comment) = divided(line);
        if moves_output(comment) {
            return Err("the image was made with an output position of its own (-o)");
        }
        let line = std::str::from_utf8(line).map_err(|_| "this is no text")?;
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match (words.as_slice(), self.in_blocks) {
            ([], _) => Ok(()),
            ([at, status, pass @ ..], false) => {
                number(at).ok_or("a position that is no number")?;
                let is_pass = |pass: &str| number(pass).is_some_and(|pass| pass > 0);
                let known = ["?", "*", "/", "-", "F", "G", "+"].contains(status);
                let fits = match pass {
                    [] => true,
                    [pass] => is_pass(pass),
                    _ => false,
                };
                (self.in_blocks, self.finished) = (known && fits, *status == "+");
                if self.in_blocks { Ok(()) } else { Err("this is no status line") }
            }
            ([at, size, status], true) => self.block(at, size, status),
            _ => Err("this is no position, size and status"),
        }
    }

    fn block(&mut self, at: &str, size: &str, status: &str) -> Result<(), &'static str> {
        let at = number(at).ok_or("a position that is no number")?;
        let size = number(size).ok_or("a size that is no number")?;
        let end = at.checked_add(size).ok_or("a block that is too large")?;
        if self.end.is_some_and(|last| last != at) {
            return Err("blocks that are not contiguous");
        }
        if self.end.is_none() {
            self.unread.add(0..at);
        }
        match status {
            "+" => {}
            "?" | "*" | "/" | "-" => self.unread.add(at..end),
            _ => return Err("a status that is not known"),
        }
        self.end = Some(end);
        Ok(())
    }
}

/// A line, and the comment behind it: from `#` on, at its beginning or behind a blank.
fn divided(line: &[u8]) -> (&[u8], &[u8]) {
    let starts = |at: &usize| {
        let before = at.checked_sub(1).and_then(|before| line.get(before));
        line.get(*at) == Some(&b'#') && before.is_none_or(u8::is_ascii_whitespace)
    };
    match (0..line.len()).find(starts) {
        Some(at) => line.split_at(at),
        None => (line, &[]),
    }
}

/// The words of the command line in a comment.
fn command(comment: &str) -> impl Iterator<Item = &str> {
    comment.split_once(COMMAND_LINE).map_or("", |(_, line)| line).split_ascii_whitespace()
}

/// Whether a comment has a command line with an output position.
fn moves_output(comment: &[u8]) -> bool {
    let is_it = |word: &str| {
        let short = word.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        let goes_on =
            |letter: &char| letter.is_ascii_alphabetic() && !WITH_ARGUMENT.contains(*letter);
        let mut letters = short.unwrap_or_default().chars();
        // The shortest beginning that no other option has.
        word.starts_with("--ou") || letters.find(|c| *c == 'o' || !goes_on(c)) == Some('o')
    };
    command(&String::from_utf8_lossy(comment)).any(is_it)
}

/// Whether the command line among the comments that a map begins with names a file with this name, in whatever directory.
pub fn names(head: &[u8], file: &[u8]) -> bool {
    let comments = head.split(|b| *b == b'\n').take_while(|line| line.starts_with(b"#"));
    let line = |comment| {
        let line: &[u8] = comment;
        let at =
            line.windows(COMMAND_LINE.len()).position(|part| part == COMMAND_LINE.as_bytes())?;
        line.get(at + COMMAND_LINE.len()..)
    };
    // The name may have blanks in it.
    let is_in = |line: &[u8]| {
        let ends = |at: usize| line.get(at).is_none_or(u8::is_ascii_whitespace);
        let begins =
            |at: usize| line[..at].last().is_some_and(|b| *b == b'/' || b.is_ascii_whitespace());
        let mut places = line.windows(file.len().max(1)).enumerate();
        places.any(|(at, name)| name == file && begins(at) && ends(at + file.len()))
    };
    comments.filter_map(line).any(is_in)
}

/// The image that was read from and the one that was written to, by the command line among the comments that a map begins with;
/// `None`: the head has no command line, or the line does not tell the files.
pub fn files(head: &[u8]) -> Option<[&Path; 2]> {
    let comments = head.split(|b| *b == b'\n').take_while(|line| line.starts_with(b"#"));
    let mut lines = comments.filter_map(|comment| std::str::from_utf8(comment).ok());
    let line = lines.find_map(|line| Some(line.split_once(COMMAND_LINE)?.1))?;
    let mut files = Vec::new();
    // The program's own name does not count.
    let mut is_argument = true;
    for word in line.split_ascii_whitespace() {
        let option = word.strip_prefix('-').filter(|_| !is_argument);
        if option.is_none() && !is_argument {
            files.push(Path::new(word));
        }
        // Only of the last letter it is the next word; of those with two signs one cannot tell.
        let mut letters = option.unwrap_or_default().chars();
        let takes = |letter| letter == 'o' || WITH_ARGUMENT.contains(letter);
        is_argument = letters.any(takes) && letters.next().is_none();
    }
    match files.as_slice() {
        [from, to, _] => Some([from, to]),
        _ => None,
    }
}

/// A number as C has it, not beyond what a file may be long.
fn number(text: &str) -> Option<u64> {
    let (digits, base) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (text.get(2..)?, 16),
        [b'0', _, ..] => (text.get(1..)?, 8),
        _ => (text, 10),
    };
    // A sign is no digit.
    let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
    let number = u64::from_str_radix(digits, base).ok().filter(|_| plain)?;
    i64::try_from(number).is_ok().then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADING: &str = "# Mapfile. Created by GNU ddrescue version 1.27\n\
                           # Command line: ddrescue -n /dev/sdb disk.img disk.map\n\
                           # Start time:   2026-11-01 10:00:00\n\
                           # current_pos  current_status  current_pass\n";

    fn of(blocks: &str) -> Result<Vec<Range<u64>>, BadMap> {
        let text = format!("{HEADING}0x00120000     ?               1\n{blocks}");
        assert!(is_map(text.as_bytes()));
        parse(text.as_bytes()).map(|unread| unread.0)
    }

    fn only(area: Range<u64>) -> [Range<u64>; 1] {
        [area]
    }

    #[test]
    fn what_was_not_read() {
        let blocks = "#      pos        size  status\n\
                      0x00000000  0x00117000  +\n\
                      0x00117000  0x00000200  -\r\n\
                      0x00117200  0x00001000  / # a comment\n\
                      0x00118200  0x00007E00  *\n\
                      0x00120000  0x00048000  +\n\
                      05500000  4096  ?\n";
        let areas = of(blocks).unwrap();
        // The end of the map is that of what was tried.
        assert_eq!(areas, [0x117000..0x120000, 0x168000..u64::MAX]);
        let part = of("0x1000 0x1000 +\n").unwrap();
        assert_eq!(part, [0..0x1000, 0x2000..u64::MAX]);
        assert_eq!(of("").unwrap(), only(0..u64::MAX));
        // Before 1.20, and without a pass.
        let old = b"# Rescue Logfile. Created by GNU ddrescue version 1.11\n0 ?\n0 10 +\n";
        assert!(is_map(old) && parse(old).unwrap().0 == only(10..u64::MAX));
        // Of what is finished nothing is missing, however long the image is by now.
        let areas = |text: &str| parse(text.as_bytes()).unwrap().0;
        assert!(areas("0 + 1\n0 10 +\n10 5 +\n").is_empty());
        for (text, from) in
            [("0 + 1\n0 10 +", 10), ("0 ? 1\n0 10 +\n", 10), ("0 + 1\n0 0 +\n", 0), ("0 + 1\n", 0)]
        {
            assert_eq!(areas(text), only(from..u64::MAX), "{text}");
        }
        assert_eq!(areas("0 + 1\n5 10 +\n"), [0..5, 15..u64::MAX]);
    }

    #[test]
    fn areas_are_found() {
        let unread = Unread(vec![10..20, 30..40, 90..u64::MAX]);
        let found = |offset, len| unread.first_in(offset, len);
        assert_eq!([found(0, 10), found(0, 11), found(15, 1)], [None, Some(10), Some(15)]);
        assert_eq!([found(20, 10), found(20, 100), found(39, 1)], [None, Some(30), Some(39)]);
        assert_eq!([found(15, 0), found(40, 50), found(u64::MAX - 1, 9)][..2], [None, None]);
        assert_eq!(found(u64::MAX - 1, 9), Some(u64::MAX - 1));
        assert_eq!((unread.bytes_below(35), unread.bytes_below(100)), (15, 30));
        assert_eq!((unread.bytes_in(15, 20), unread.bytes_in(20, 10)), (10, 0));
        assert_eq!(unread.clone().from(35).0, [0..5, 55..u64::MAX - 35]);
        assert_eq!(
            (unread.clone().from(5).0, unread.from(0).0[0].clone()),
            (vec![5..15, 25..35, 85..u64::MAX - 5], 10..20)
        );
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        let why = |blocks: &str| of(blocks).unwrap_err().to_string();
        assert_eq!(why("0 10 +\n20 10 +\n"), "line 7: blocks that are not contiguous");
        assert_eq!(why("0 20 +\n10 10 -\n"), "line 7: blocks that are not contiguous");
        assert_eq!(why("0 10 x\n"), "line 6: a status that is not known");
        assert_eq!(why("0 10\n"), "line 6: this is no position, size and status");
        assert_eq!(why("0 10 + +\n"), "line 6: this is no position, size and status");
        for word in ["-1", "+1", "0x", "0x+1", "09", "1k", "0xffffffffffffffff", "x"] {
            assert!(why(&format!("0 {word} +\n")).contains("a size that is no number"), "{word}");
        }
        let text = |text: &str| parse(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(text(HEADING), "line 5: there is no status line");
        assert_eq!(text("0 10 +\n"), "line 1: this is no status line");
        assert_eq!(text("0 + 0\n"), "line 1: this is no status line");
        assert_eq!(text("# ddrescue\n\u{7f}\u{0}"), "line 2: this is no position, size and status");
        assert!(parse(b"0 +\n\xff 10 +\n").is_err());
        for option in ["-o 512", "-o512", "--output-position=512", "-no 512", "-fno512", "--ou 1"] {
            let map = format!("# Command line: ddrescue {option} sda disk.img disk.map\n0 +\n");
            assert!(text(&map).contains("output position"), "{option}");
        }
        for option in ["-d -r3", "--odirect", "-mfoo", "-Hfoo.log", "-fmno", "-r3o", "-"] {
            let map =
                format!("# Command line: ddrescue {option} sda no.img no-out.map\n0 +\n0 1 +");
            assert!(parse(map.as_bytes()).is_ok(), "{option}");
        }
    }

    /// The other logs of ddrescue begin alike.
    #[test]
    fn maps_and_other_logs() {
        for kind in ["Mapfile", "Rescue Logfile"] {
            for program in ["GNU ddrescue", "GNU ddrescuelog"] {
                assert!(is_map(
                    format!("# {kind}. Created by {program} version 1.27\n0").as_bytes()
                ));
            }
        }
        for kind in ["Events Logfile", "Rates Logfile", "Reads Logfile", "Mapfile of", ""] {
            assert!(!is_map(
                format!("# {kind}. Created by GNU ddrescue version 1.27\n").as_bytes()
            ));
        }
        for text in ["", "#", "# Mapfile. Created by hand\n# ddrescue\n", "Mapfile. ddrescue"] {
            assert!(!is_map(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn a_command_line_names_files() {
        let head = b"# Mapfile. Created by GNU ddrescue version 1.27\n\
                     # Command line: ddrescue /dev/sdb /x/my disk.img b.img\n0 + 1\n\
                     # Command line: late.img\n";
        for (name, is_there) in [
            ("my disk.img", true),
            ("disk.img", true),
            ("b.img", true),
            ("ddrescue", true),
            ("disk", false),
            ("isk.img", false),
            ("img", false),
            ("late.img", false),
            ("version", false),
            ("", false),
        ] {
            assert_eq!(names(head, name.as_bytes()), is_there, "{name}");
        }
    }

    #[test]
    fn a_command_line_says_what_was_written() {
        let of = |line: &str| {
            let head = format!(
                "# Mapfile. Created by GNU ddrescue version 1.27\n# Command line: {line}\n0 +\n"
            );
            files(head.as_bytes()).map(|two| two.map(|path| path.display().to_string()).join(" "))
        };
        for line in [
            "ddrescue /dev/sdb disk.img disk.map",
            "ddrescue -d -r3 /dev/sdb disk.img disk.map -v",
            "/usr/bin/ddrescue -r 3 --force -nc 64 /dev/sdb disk.img disk.map",
            "ddrescue --retry-passes=3 -T1h -K 1M /dev/sdb disk.img disk.map",
        ] {
            assert_eq!(of(line).unwrap(), "/dev/sdb disk.img", "{line}");
        }
        for line in [
            "ddrescue",
            "",
            "ddrescue /dev/sdb my disk.img disk.map",
            "ddrescue --retry-passes 3 a b c",
            "ddrescue /dev/sdb disk.img",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
        assert_eq!(files(b"0 +\n# Command line: ddrescue a b c\n"), None);
    }

    proptest! {
        /// Areas are in order and apart, whatever the text; and a byte is in one of them unless a line says `+` of it.
        #[test]
        fn hostile_maps(
            blocks in proptest::collection::vec((0u64..6, 0usize..6), 0..12), junk: Vec<u8>, at: usize,
        ) {
            let (mut text, mut pos, mut good) = (String::from("# Mapfile\n0 +\n"), 0, Vec::new());
            for (size, status) in &blocks {
                text += &format!("{pos} {size} {}\n", ["+", "?", "*", "/", "-", "+"][*status]);
                good.extend((pos..pos + size).filter(|_| [0, 5].contains(status)));
                pos += size;
            }
            let unread = parse(text.as_bytes()).unwrap();
            let all = pos > 0 && good.len() as u64 == pos;
            for byte in 0..pos + 2 {
                let is_there = all || good.contains(&byte);
                prop_assert_eq!(unread.first_in(byte, 1).is_none(), is_there);
            }
            let mut bytes = text.into_bytes();
            bytes.splice(at % bytes.len()..at % bytes.len(), junk);
            if let Ok(unread) = parse(&bytes) {
                prop_assert!(unread.0.windows(2).all(|two| two[0].end < two[1].start));
                prop_assert!(unread.0.iter().all(|area| !area.is_empty()));
            }
        }
    }
}
