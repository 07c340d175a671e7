//! `zstream`: looks at streams of `zfs send` and changes them, without a pool.
//!
//! | room | command |
//! |---|---|
//! | [`dump`] | `dump`: what is in a stream |
//! | [`token`] | `token`: what is in a resume token |
//! | [`blocks`] | `decompress`, `recompress`: how blocks are compressed |
//! | [`redup`] | `redup`: a deduplicated stream becomes an ordinary one |
//! | [`rewrite`] | what those that change streams have in common |
//! | [`record`] | records as they stand in a stream |
//!
//! The text is that of OpenZFS 2.4, line by line. Streams come from standard input or a file, and may be anything:
//! nothing in them is believed, and no more of them is in memory than a record with what follows it.

pub mod blocks;
pub mod dump;
pub mod record;
pub mod redup;
pub mod rewrite;
pub mod token;

use cenote_command::Caller;
use cenote_command::outcome::{Outcome, Stop, conclude, fail, plain};
use dump::Shown;
use record::Broken;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Read, Write};

/// The usage message.
pub const USAGE: &str = "usage: zstream command args ...\n\
    Available commands are:\n\
    \n\
    \tzstream dump [-vCd] FILE\n\
    \t... | zstream dump [-vCd]\n\
    \n\
    \tzstream decompress [-v] [OBJECT,OFFSET[,TYPE]] ...\n\
    \n\
    \tzstream recompress [ -l level] TYPE\n\
    \n\
    \tzstream token resume_token\n\
    \n\
    \tzstream redup [-v] FILE | ...\n";
const FROM_TERMINAL: &str = "Error: The send stream is a binary format and can not be read from a\n\
    terminal.  Standard input must be redirected";

/// What `zstream` runs in.
pub struct Surroundings<'a> {
    /// Standard output.
    pub out: &'a mut (dyn Write + Send),
    /// Standard error.
    pub err: &'a mut (dyn Write + Send),
    /// The process that the user started.
    pub caller: &'a Caller,
}

impl Surroundings<'_> {
    /// Writes one line to standard error. A reader that has gone away is no error here: the
    /// command's exit code still says what happened.
    fn complain(&mut self, message: impl std::fmt::Display) {
        let _ = writeln!(self.err, "{message}");
    }
}

/// Why a command line is wrong.
pub enum UsageError {
    /// The message, then the usage.
    Usage(String),
    /// An exit code and the message.
    Stop(i32, String),
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Broken::BadMagic => f.write_str("Invalid stream (bad magic number)"),
            Broken::Checksum(_) => f.write_str("invalid checksum"),
            Broken::Short => f.write_str("the stream is cut short"),
            Broken::TooLong(bytes) => write!(f, "a record with {bytes} bytes behind it"),
            Broken::Io(e) => write!(f, "Error while reading file: {}", plain(e)),
        }
    }
}

fn failed(e: Broken) -> Stop {
    Stop::Fail(format!("zstream: {e}"))
}

/// `zstream`; returns the exit code.
pub fn run(args: &[OsString], ctx: Surroundings<'_>) -> i32 {
    let Surroundings { out, err, caller } = ctx;
    let mut out = BufWriter::with_capacity(64 << 10, out);
    let outcome = {
        let mut ctx = Surroundings { out: &mut out, err: &mut *err, caller };
        match parse(args) {
            Ok(command) => command.run(&mut ctx),
            Err(UsageError::Stop(code, why)) => {
                ctx.complain(why);
                Err(Stop::Said(code))
            }
            Err(UsageError::Usage(why)) => {
                if !why.is_empty() {
                    ctx.complain(why);
                }
                ctx.complain(USAGE.trim_end());
                Err(Stop::Said(1))
            }
        }
    };
    conclude(outcome, "", &mut out, err)
}

/// A command line taken apart.
enum Command {
    Dump(Shown, Option<String>),
    Token(String),
    Decompress(blocks::Blocks, bool),
    Recompress(cenote_format::compress::Compression, u8),
    Redup(String, bool),
}

/// Options with the number of times each was given, the value of `-l`, and operands.
struct Parsed {
    letters: Vec<char>,
    level: Option<String>,
    operands: Vec<String>,
}

impl Parsed {
    fn has(&self, letter: char) -> bool {
        self.letters.contains(&letter)
    }
}

fn options(args: &[OsString], known: &str) -> Result<Parsed, UsageError> {
    let mut parsed = Parsed { letters: Vec::new(), level: None, operands: Vec::new() };
    let mut parser = lexopt::Parser::from_args(args.iter());
    loop {
        match parser.next() {
            Ok(None) => return Ok(parsed),
            Ok(Some(lexopt::Arg::Value(operand))) => {
                parsed.operands.push(operand.to_string_lossy().into_owned());
            }
            Ok(Some(lexopt::Arg::Short('l'))) if known.contains('l') => match parser.value() {
                Ok(level) => parsed.level = Some(level.to_string_lossy().into_owned()),
                Err(_) => return Err(UsageError::Usage("invalid option 'l'".into())),
            },
            Ok(Some(lexopt::Arg::Short(letter))) if known.contains(letter) => {
                parsed.letters.push(letter);
            }
            Ok(Some(lexopt::Arg::Short(letter))) => {
                return Err(UsageError::Usage(format!("invalid option '{letter}'")));
            }
            Ok(Some(lexopt::Arg::Long(_))) | Err(_) => {
                return Err(UsageError::Usage("invalid option '-'".into()));
            }
        }
    }
}

fn parse(args: &[OsString]) -> Result<Command, UsageError> {
    let usage = || UsageError::Usage(String::new());
    let (name, rest) = args.split_first().ok_or_else(usage)?;
    match name.to_string_lossy().as_ref() {
        "dump" => {
            let parsed = options(rest, "vCd")?;
            let contents = parsed.has('d');
            let verbose = parsed.letters.iter().filter(|letter| **letter == 'v').count();
            let shown = Shown {
                records: verbose > 0 || contents,
                checksums: verbose > 1 || contents,
                contents,
                unverified: parsed.has('C'),
            };
            Ok(Command::Dump(shown, parsed.operands.into_iter().next()))
        }
        "token" => match rest.first() {
            Some(token) => Ok(Command::Token(token.to_string_lossy().into_owned())),
            None => Err(UsageError::Usage("Need to pass the resume token".into())),
        },
        "decompress" => {
            let parsed = options(rest, "v")?;
            Ok(Command::Decompress(blocks::blocks(&parsed.operands)?, parsed.has('v')))
        }
        "recompress" => {
            let parsed = options(rest, "l")?;
            let level = match &parsed.level {
                None => 0,
                Some(level) => level
                    .parse()
                    .map_err(|_| UsageError::Usage(format!("failed to parse level '{level}'")))?,
            };
            let [name] = parsed.operands.as_slice() else { return Err(usage()) };
            Ok(Command::Recompress(blocks::function(name)?, level))
        }
        "redup" => {
            let parsed = options(rest, "v")?;
            let [name] = parsed.operands.as_slice() else { return Err(usage()) };
            Ok(Command::Redup(name.clone(), parsed.has('v')))
        }
        _ => Err(usage()),
    }
}

fn open(name: &str, ctx: &Surroundings<'_>) -> Result<File, Stop> {
    File::open(ctx.caller.path(name))
        .map_err(|e| Stop::Fail(format!("Error while opening file '{name}': {}", plain(&e))))
}

/// Standard input, unless it is a terminal.
fn input(end: &str) -> Result<impl Read, Stop> {
    let input = std::io::stdin();
    match input.is_terminal() {
        true => fail(format!("{FROM_TERMINAL}{end}")),
        false => Ok(input.lock()),
    }
}

impl Command {
    fn run(self, ctx: &mut Surroundings<'_>) -> Outcome {
        match self {
            Command::Dump(shown, Some(name)) => {
                let file = open(&name, ctx)?;
                dump::run(&mut BufReader::new(file), shown, ctx)
            }
            Command::Dump(shown, None) => {
                let end = ", or a file must be\nspecified as a command-line argument.";
                dump::run(&mut input(end)?, shown, ctx)
            }
            Command::Token(text) => token::run(&text, ctx),
            Command::Decompress(blocks, verbose) => {
                blocks::decompress_some(&mut input(".")?, &blocks, verbose, ctx)
            }
            Command::Recompress(by, level) => blocks::recompress(&mut input(".")?, by, level, ctx),
            Command::Redup(name, verbose) => {
                if ctx.caller.terminal.out {
                    return fail(
                        "Error: Stream can not be written to a terminal.\n\
                         You must redirect standard output.",
                    );
                }
                redup::run(&open(&name, ctx)?, verbose, ctx)
            }
        }
    }
}
