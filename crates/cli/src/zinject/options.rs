//! The command line of `zinject`, as `getopt` and OpenZFS's command take it apart.
//!
//! Options are single letters; some take a value, in the same word or the next one. They may follow operands, and `--` ends them. The
//! result is a [`Given`]: one field for each option. Which of them go together is for the command to say.
//!
//! The tables here have the names of errors (`errstrtable`), of types of I/O, of types of objects and of parts of labels. The daemon's
//! lists use the same names. A value that is not in its table, or out of its range, is an error with OpenZFS's words and exit code
//! ([`Wrong`]); after some of them the usage follows. An option that OpenZFS has and this program has not is refused by its name.

use crate::options::bytes;
use cenote_daemon::injections::Moment;
use cenote_pool::diagnosis::Verdict;
use cenote_vdev::injection::{IoKind, LabelPart};
use std::ffi::OsString;

/// Letters in `getopt` notation.
const LETTERS: &str = "aA:b:C:d:D:E:f:Fg:qhIc:t:T:l:mr:s:e:uL:p:P:";

/// What OpenZFS has and this program has not, and why.
const REFUSED: &[(char, &str)] = &[
    ('E', "there is no stage of blocks here that could be delayed; see -D"),
    ('F', "requests are not tried twice here"),
    ('g', "writes are dropped for single devices only; see -e noop"),
    ('I', "writes are dropped for single devices only; see -e noop"),
    ('p', "the daemon never panics, and has none of the kernel's functions"),
    ('u', "an imported pool is never unloaded here; export it and import it again"),
];

/// Why a command line is wrong.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The exit code.
    pub code: i32,
    /// What is said.
    pub why: String,
    /// Whether the usage follows.
    pub usage: bool,
}

/// A mistake after which the usage is shown.
pub fn wrong<T>(code: i32, why: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong { code, why: why.into(), usage: true })
}

impl Wrong {
    /// A failure that says all.
    pub fn plain(why: impl Into<String>) -> Wrong {
        Wrong { code: 1, why: why.into(), usage: false }
    }
}

/// A failure that says all.
pub fn plainly<T>(why: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong::plain(why))
}

/// An error to inject (`errstrtable`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    Io,
    Checksum,
    Decompress,
    Decrypt,
    Nxio,
    Dtl,
    Corrupt,
    Noop,
    Prefail,
}

/// All errors, by name.
const ERRORS: [(Error, &str); 9] = [
    (Error::Io, "io"),
    (Error::Checksum, "checksum"),
    (Error::Decompress, "decompress"),
    (Error::Decrypt, "decrypt"),
    (Error::Nxio, "nxio"),
    (Error::Dtl, "dtl"),
    (Error::Corrupt, "corrupt"),
    (Error::Noop, "noop"),
    (Error::Prefail, "io-prefail"),
];

/// The name of an error.
pub fn error_name(error: Error) -> &'static str {
    ERRORS.iter().find(|(one, _)| *one == error).map_or("io", |(_, name)| *name)
}

/// Types of I/O, by name; `None`: no device is asked for such.
const KINDS: [(&str, Option<IoKind>); 9] = [
    ("null", None),
    ("read", Some(IoKind::Read)),
    ("write", Some(IoKind::Write)),
    ("free", None),
    ("claim", None),
    ("flush", Some(IoKind::Flush)),
    ("trim", Some(IoKind::Trim)),
    ("all", Some(IoKind::All)),
    ("probe", Some(IoKind::Probe)),
];

/// The name of a type of I/O.
pub fn name_of(kind: IoKind) -> &'static str {
    KINDS.iter().find(|(_, one)| *one == Some(kind)).map_or("all", |(name, _)| *name)
}

/// What `-t` takes: types of objects of the meta object set by their numbers; 0 is all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Data,
    Dnode,
    Mos(u8),
}

const TYPES: [(&str, Type); 9] = [
    ("data", Type::Data),
    ("dnode", Type::Dnode),
    ("mos", Type::Mos(0)),
    ("mosdir", Type::Mos(1)),
    ("metaslab", Type::Mos(2)),
    ("config", Type::Mos(3)),
    ("bpobj", Type::Mos(5)),
    ("spacemap", Type::Mos(8)),
    ("errlog", Type::Mos(28)),
];

/// The name of a type of objects of the meta object set, as lists show it.
pub fn type_name(number: u8) -> &'static str {
    let is_it = |(_, kind): &&(&str, Type)| number != 0 && *kind == Type::Mos(number);
    TYPES.iter().find(is_it).map_or("-", |(name, _)| *name)
}

const LABELS: [(&str, LabelPart); 4] = [
    ("uber", LabelPart::Uberblocks),
    ("nvlist", LabelPart::NvList),
    ("pad1", LabelPart::Pad1),
    ("pad2", LabelPart::Pad2),
];

/// A command line taken apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Given {
    pub flush: bool,
    pub action: Option<Verdict>,
    pub raw: Option<String>,
    pub cancel: Option<String>,
    pub copies: u8,
    pub device: Option<String>,
    /// Milliseconds and lanes.
    pub delay: Option<(u64, u64)>,
    pub error: Option<Error>,
    pub frequency: Option<u32>,
    pub seconds: Option<u64>,
    pub help: bool,
    pub level: i64,
    pub remount: bool,
    pub pause: Option<Moment>,
    pub quiet: bool,
    /// Bytes: from, to.
    pub range: Option<String>,
    pub kind: Option<IoKind>,
    pub of: Option<Type>,
    pub label: Option<LabelPart>,
    pub operands: Vec<String>,
}

/// Takes a command line apart. Options may follow operands.
pub fn parse(args: &[OsString]) -> Result<Given, Wrong> {
    let mut given = Given::default();
    let mut words = args.iter().map(|arg| arg.to_string_lossy().into_owned());
    while let Some(word) = words.next() {
        let Some(letters) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
            given.operands.push(word);
            continue;
        };
        if letters == "-" {
            given.operands.extend(words);
            break;
        }
        let mut rest = letters;
        while let Some(letter) = rest.chars().next() {
            rest = &rest[letter.len_utf8()..];
            let known = LETTERS.find(letter).filter(|_| letter != ':');
            let Some(at) = known else { return wrong(2, format!("invalid option '{letter}'")) };
            let value = match LETTERS[at + 1..].starts_with(':') {
                false => String::new(),
                true if !rest.is_empty() => std::mem::take(&mut rest).to_string(),
                true => match words.next() {
                    Some(value) => value,
                    None => return wrong(1, format!("option -{letter} requires an operand")),
                },
            };
            if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == letter) {
                return wrong(2, format!("unsupported option: -{letter}: {why}"));
            }
            given.take(letter, value)?;
            if given.help {
                return Ok(given);
            }
        }
    }
    Ok(given)
}

/// What of a table a name stands for, in any case.
fn named<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, what)| *what)
}

impl Given {
    fn take(&mut self, letter: char, value: String) -> Result<(), Wrong> {
        match letter {
            'a' => self.flush = true,
            'A' => self.action = Some(action(&value)?),
            'b' => self.raw = Some(value),
            'c' => self.cancel = Some(value),
            'C' => self.copies = copies(&value)?,
            'd' => self.device = Some(value),
            'D' => self.delay = Some(delay(&value)?),
            'e' => self.error = Some(error(&value)?),
            'f' => self.frequency = Some(frequency(&value)?),
            'h' => self.help = true,
            'l' => match value.parse() {
                Ok(level) => self.level = level,
                Err(_) => {
                    return wrong(1, format!("invalid level '{value}': must be an integer"));
                }
            },
            'L' => match named(&LABELS, &value) {
                Some(part) => self.label = Some(part),
                None => return wrong(1, format!("invalid label type '{value}'")),
            },
            'm' => self.remount = true,
            'P' => self.pause = Some(moment(&value)?),
            'q' => self.quiet = true,
            'r' => self.range = Some(value),
            's' => match value.parse() {
                Ok(seconds) if (1..=i32::MAX as u64).contains(&seconds) => {
                    self.seconds = Some(seconds);
                }
                _ => {
                    let why = "must be a positive integer";
                    return wrong(1, format!("invalid duration '{value}': {why}"));
                }
            },
            'T' => self.kind = Some(kind(&value)?),
            't' => match TYPES.iter().find(|(name, _)| *name == value) {
                Some((_, of)) => self.of = Some(*of),
                None => return wrong(1, format!("invalid type '{value}'")),
            },
            _ => {}
        }
        Ok(())
    }
}

fn action(value: &str) -> Result<Verdict, Wrong> {
    match value.to_ascii_lowercase().as_str() {
        "degrade" => Ok(Verdict::Degrade),
        "fault" => Ok(Verdict::Fault),
        _ => wrong(1, format!("invalid action '{value}': must be 'degrade' or 'fault'")),
    }
}

fn moment(value: &str) -> Result<Moment, Wrong> {
    match value.to_ascii_lowercase().as_str() {
        "import" => Ok(Moment::Import),
        "export" => Ok(Moment::Export),
        _ => wrong(1, format!("invalid command '{value}': must be 'import' or 'export'")),
    }
}

fn error(value: &str) -> Result<Error, Wrong> {
    let found = ERRORS.iter().find(|(_, name)| name.eq_ignore_ascii_case(value));
    match found {
        Some((error, _)) => Ok(*error),
        None => wrong(
            1,
            format!(
                "invalid error type '{value}': must be one of: io decompress decrypt nxio dtl corrupt noop io-prefail"
            ),
        ),
    }
}

fn kind(value: &str) -> Result<IoKind, Wrong> {
    match named(&KINDS, value) {
        Some(Some(kind)) => Ok(kind),
        Some(None) => {
            wrong(2, format!("unsupported I/O type '{value}': no device is asked for such here"))
        }
        None => {
            let known = "must be 'read', 'write', 'free', 'claim', 'flush' or 'all'";
            wrong(1, format!("invalid I/O type '{value}': {known}"))
        }
    }
}

fn delay(value: &str) -> Result<(u64, u64), Wrong> {
    let numbers = value
        .split_once(':')
        .and_then(|(latency, lanes)| Some((latency.parse().ok()?, lanes.parse().ok()?)));
    match numbers {
        Some((latency, lanes)) if latency > 0 => Ok((latency, lanes)),
        _ => wrong(1, format!("invalid i/o delay value: '{value}'")),
    }
}

/// A share of [`u32::MAX`] (`parse_frequency`).
fn frequency(value: &str) -> Result<u32, Wrong> {
    const WHAT: &str = "frequency value must be in the range [0.0001, 100.0]";
    match value.parse::<f64>() {
        Ok(percent) if (0.0001..=100.0).contains(&percent) => {
            Ok((percent / 100.0 * f64::from(u32::MAX)) as u32)
        }
        Ok(_) => plainly(format!("out of range: {WHAT}")),
        Err(_) => plainly(format!("invalid value: {WHAT}")),
    }
}

/// A bit for each copy (`parse_dvas`).
fn copies(value: &str) -> Result<u8, Wrong> {
    let mut bits = 0;
    for word in value.split(',') {
        let bit = match word {
            "0" => 1,
            "1" => 2,
            "2" => 4,
            _ => 0,
        };
        if bit == 0 || bits & bit != 0 {
            let why = "DVAs should be 0 indexed and separated by commas.";
            return wrong(1, format!("invalid DVA list '{value}': {why}"));
        }
        bits |= bit;
    }
    Ok(bits)
}

/// The first and the last byte of a range. The error is the message for text that is not a range.
pub fn range(text: &str) -> Result<(u64, u64), Wrong> {
    let (start, end) = match text.split_once(',') {
        Some((start, end)) => (bytes(start), bytes(end)),
        None => (bytes(text), bytes(text).and_then(|start| start.checked_add(1))),
    };
    match (start, end) {
        (Some(start), Some(end)) => Ok((start, end)),
        _ => plainly(format!("invalid range '{text}': must be of the form 'start[,end]'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(line: &str) -> Result<Given, Wrong> {
        parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    fn why(line: &str) -> (i32, String) {
        let wrong = given(line).unwrap_err();
        (wrong.code, wrong.why)
    }

    #[test]
    fn options_are_taken_as_getopt_takes_them() {
        let all = given("-qd a -e IO -Tread tank -f 50 -D10:2").unwrap();
        assert_eq!((all.device.as_deref(), all.quiet), (Some("a"), true));
        assert_eq!((all.error, all.kind), (Some(Error::Io), Some(IoKind::Read)));
        assert_eq!((all.delay, all.operands), (Some((10, 2)), vec!["tank".to_string()]));
        assert_eq!(all.frequency, Some(u32::MAX / 2));
        assert_eq!(given("-t data -C 0,2 f").unwrap().copies, 5);
        assert_eq!(given("-f 100 -a").unwrap().frequency, Some(u32::MAX));
    }

    #[test]
    fn mistakes_have_their_words_and_exit_codes() {
        assert_eq!(why("-d"), (1, "option -d requires an operand".into()));
        assert_eq!(why("-z"), (2, "invalid option 'z'".into()));
        for (line, code, said) in [
            ("-A x", 1, "invalid action 'x': must be 'degrade' or 'fault'"),
            ("-D 10", 1, "invalid i/o delay value: '10'"),
            ("-D 0:1", 1, "invalid i/o delay value: '0:1'"),
            ("-f 0", 1, "out of range: frequency value must be in the range [0.0001, 100.0]"),
            ("-f x", 1, "invalid value: frequency value must be in the range [0.0001, 100.0]"),
            ("-l x", 1, "invalid level 'x': must be an integer"),
            ("-L x", 1, "invalid label type 'x'"),
            ("-s 0", 1, "invalid duration '0': must be a positive integer"),
            ("-t x", 1, "invalid type 'x'"),
            ("-P x", 1, "invalid command 'x': must be 'import' or 'export'"),
        ] {
            assert_eq!(why(line), (code, said.into()), "{line}");
        }
        for copies in ["3", "0,0", "0,", "x"] {
            assert!(why(&format!("-C {copies}")).1.starts_with("invalid DVA list"), "{copies}");
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        for letter in ["-E 5", "-F", "-g 5", "-I", "-p f", "-u"] {
            let (code, why) = why(letter);
            let name = &letter[..2];
            assert!(
                code == 2 && why.starts_with(&format!("unsupported option: {name}: ")),
                "{why}"
            );
        }
        assert_eq!(why("-T free").0, 2);
        assert!(REFUSED.iter().all(|(letter, _)| LETTERS.contains(*letter)));
    }
}
