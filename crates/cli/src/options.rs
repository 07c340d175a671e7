//! Options the way `getopt` reads them, on top of `lexopt`.
//!
//! Short options cluster (`-Hp`), values may be attached (`-ofoo`), options may follow operands,
//! and `--` ends them. Where the user has `POSIXLY_CORRECT` in the environment the first operand ends
//! them as well. The messages are those of `zpool` and `zfs`.

use cenote_command::outcome::{Stop, usage};
use cenote_command::posix::is_posix;
use std::ffi::{OsStr, OsString};

/// Which options a command has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spec {
    /// Short options in `getopt` notation: a letter, then `:` if it takes a value.
    pub short: &'static str,
    /// Short options that OpenZFS has and this program does not; same notation.
    pub refused: &'static str,
    /// Long options that OpenZFS has and this program does not.
    pub refused_long: &'static [&'static str],
}

/// One option of a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opt {
    /// Its letter.
    pub letter: char,
    /// Its value, for an option that takes one.
    pub value: OsString,
}

impl Opt {
    /// The value as text; bytes that are not UTF-8 are replaced.
    pub fn text(&self) -> String {
        self.value.to_string_lossy().into_owned()
    }
}

/// A command line taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// Options in order.
    pub options: Vec<Opt>,
    /// Operands in order.
    pub operands: Vec<OsString>,
}

impl Parsed {
    /// The operands as text; bytes that are not UTF-8 are replaced.
    pub fn names(&self) -> Vec<String> {
        self.operands.iter().map(|o| o.to_string_lossy().into_owned()).collect()
    }
}

/// Takes the arguments after a command's name apart.
pub fn parse(args: &[OsString], spec: Spec) -> Result<Parsed, Stop> {
    parse_with_long(args, spec, &[])
}

/// The same with long options, each with the letter that it is reported as. It takes a value if the letter
/// does.
pub fn parse_with_long(
    args: &[OsString],
    spec: Spec,
    long: &[(&str, char)],
) -> Result<Parsed, Stop> {
    let mut parsed = Parsed::default();
    let mut parser = lexopt::Parser::from_args(args.iter().map(OsString::as_os_str));
    loop {
        let arg = match parser.next() {
            Ok(Some(arg)) => arg,
            Ok(None) => return Ok(parsed),
            Err(e) => return usage(e.to_string()),
        };
        match arg {
            lexopt::Arg::Value(first) => {
                parsed.operands.push(first);
                if is_posix()
                    && let Ok(rest) = parser.raw_args()
                {
                    parsed.operands.extend(rest);
                }
            }
            lexopt::Arg::Long(name) if long.iter().any(|(known, _)| *known == name) => {
                let letters: Vec<char> =
                    long.iter().filter(|(known, _)| *known == name).map(|(_, l)| *l).collect();
                let option = format!("--{name}");
                for letter in letters {
                    let value = match find(spec.short, letter) {
                        Some(true) => match attached_or_next(&mut parser) {
                            Some(value) => value,
                            None => {
                                return usage(format!("missing argument for '{option}' option"));
                            }
                        },
                        _ => OsString::new(),
                    };
                    parsed.options.push(Opt { letter, value });
                }
            }
            lexopt::Arg::Long(name) if spec.refused_long.contains(&name) => {
                return usage(format!("unsupported option: --{name}"));
            }
            lexopt::Arg::Long(name) => return usage(format!("invalid option '--{name}'")),
            lexopt::Arg::Short(letter) => {
                let Some(takes_value) = find(spec.short, letter) else {
                    let why = match find(spec.refused, letter) {
                        Some(_) => format!("unsupported option: -{letter}"),
                        None => format!("invalid option '{letter}'"),
                    };
                    return usage(why);
                };
                let value = match takes_value {
                    false => OsString::new(),
                    true => match attached_or_next(&mut parser) {
                        Some(value) => value,
                        None => {
                            return usage(format!("missing argument for '{letter}' option"));
                        }
                    },
                };
                parsed.options.push(Opt { letter, value });
            }
        }
    }
}

/// The value of an option: `-ovalue` (kept as it is, even if it starts with `=`) or `-o value`.
fn attached_or_next(parser: &mut lexopt::Parser) -> Option<OsString> {
    parser.value().ok()
}

/// Whether `letter` is among `letters`, and if so whether it takes a value.
fn find(letters: &str, letter: char) -> Option<bool> {
    if letter == ':' {
        return None;
    }
    let at = letters.find(letter)?;
    Some(letters.get(at + letter.len_utf8()..).is_some_and(|rest| rest.starts_with(':')))
}

/// Splits `a,b,c`; empty parts are kept.
pub fn commas(list: &OsStr) -> Vec<String> {
    list.to_string_lossy().split(',').map(String::from).collect()
}

/// Interval in seconds and count at the end of the operands, as `zpool list` and `zpool iostat`
/// have them. `keep` says which operands are pools although they look like numbers.
pub fn interval_and_count(
    operands: &mut Vec<String>,
) -> Result<(Option<std::time::Duration>, Option<u64>), Stop> {
    let Some(last) = take_number(operands)? else { return Ok((None, None)) };
    match take_number(operands)? {
        None => Ok((Some(duration(last)), None)),
        Some(interval) => Ok((Some(duration(interval)), Some(last as u64))),
    }
}

fn take_number(operands: &mut Vec<String>) -> Result<Option<f64>, Stop> {
    let Some(text) = operands.last() else { return Ok(None) };
    if !text.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Ok(None);
    }
    let Ok(value) = text.parse::<f64>() else { return Ok(None) };
    if value == 0.0 {
        return usage("interval cannot be zero");
    }
    operands.pop();
    Ok(Some(value))
}

/// A number of bytes, perhaps with a suffix K, M, G or T; `None` for any other text.
pub fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['K', 'M', 'G', 'T', 'k', 'm', 'g', 't']);
    let shift = match text.get(digits.len()..)?.to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn duration(seconds: f64) -> std::time::Duration {
    // Anything longer than a year is for ever.
    std::time::Duration::from_secs_f64(seconds.clamp(0.001, 31_536_000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(list: &[&str]) -> Vec<OsString> {
        list.iter().map(OsString::from).collect()
    }

    const SPEC: Spec = Spec { short: "Hpo:r", refused: "jc:", refused_long: &["json-int"] };

    fn letters(p: &Parsed) -> String {
        p.options.iter().map(|o| o.letter).collect()
    }

    #[test]
    fn clusters_values_and_permutation() {
        let p = parse(&args(&["-Hpo", "a,b", "tank", "-r", "--", "-x"]), SPEC).unwrap();
        assert_eq!(letters(&p), "Hpor");
        assert_eq!(p.options[2].text(), "a,b");
        assert_eq!(p.names(), ["tank", "-x"]);
        let p = parse(&args(&["-oname"]), SPEC).unwrap();
        assert_eq!(p.options[0].text(), "name");
    }

    #[test]
    fn wrong_options_are_named() {
        let why = |list: &[&str]| match parse(&args(list), SPEC) {
            Err(Stop::Usage(m)) => m,
            other => panic!("{other:?}"),
        };
        assert_eq!(why(&["-q"]), "invalid option 'q'");
        assert_eq!(why(&["-o"]), "missing argument for 'o' option");
        assert_eq!(why(&["-j"]), "unsupported option: -j");
        assert_eq!(why(&["--json-int"]), "unsupported option: --json-int");
        assert_eq!(why(&["--nonsense"]), "invalid option '--nonsense'");
    }

    #[test]
    fn bytes_may_have_a_suffix() {
        assert_eq!([bytes("7"), bytes("2k"), bytes("3G")], [Some(7), Some(2048), Some(3 << 30)]);
        let none = ["", "M", "1KM", "-1", "1.5G", "1B", "18014398509481984K"];
        assert!(none.iter().all(|text| bytes(text).is_none()));
    }

    #[test]
    fn interval_and_count_are_taken_from_the_end() {
        let mut ops = vec!["tank".to_string(), "2".into(), "5".into()];
        let (interval, count) = interval_and_count(&mut ops).unwrap();
        assert_eq!((interval.unwrap().as_secs(), count, ops.len()), (2, Some(5), 1));
        let mut ops = vec!["0".to_string()];
        assert!(matches!(interval_and_count(&mut ops), Err(Stop::Usage(_))));
    }
}
