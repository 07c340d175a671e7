//! `cenote complete WORD ...`: what may come next on a command line. The completions of bash, zsh and fish ask it
//! ([`shells`]).
//!
//! The words come from the line, the program first, up to the cursor; the last is completed.
//! Each candidate is a line, with a tab and a description behind it. `:files` and `:directories` ask the shell for
//! names of files.
//!
//! Options, operands and their values are taken from the manual ([`crate::manual`]), and for cenote's own commands from
//! clap. Names of pools and datasets come from the daemon, if one runs. Nothing here starts one, opens a device or
//! takes longer than [`PATIENCE`].

pub mod kind;
pub mod shells;

use crate::commands::Tool;
use crate::context::Context;
use crate::dispatch::CLASSIC;
use crate::manual::{self, Opt, Page};
use crate::{zfs, zpool};
use kind::Pools;
use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

/// Completion ends after this long with what it has found, whatever the daemon waits for.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// Arguments of `cenote complete`.
#[derive(Debug, clap::Args)]
pub struct CompleteArgs {
    /// The words of the line
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// What may come next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The whole word.
    pub word: String,
    /// What it means; may be empty.
    pub about: String,
}

impl Candidate {
    fn new(word: impl Into<String>, about: impl Into<String>) -> Candidate {
        Candidate { word: word.into(), about: about.into() }
    }
}

/// Runs `cenote complete` for the program that `own` defines, with the pools of the context; returns the exit code.
pub fn run(args: &CompleteArgs, own: &clap::Command, ctx: &mut Context) -> i32 {
    show(&candidates(&args.words, own, ctx), ctx)
}

/// The same where the pools are not known. Returns `None` if they matter.
pub fn without_pools(args: &CompleteArgs, own: &clap::Command, ctx: &mut Context) -> Option<i32> {
    let asked = Cell::new(false);
    let found = candidates_noting(&args.words, own, ctx, &asked);
    if asked.get() { None } else { Some(show(&found, ctx)) }
}

fn show(found: &[Candidate], ctx: &mut Context) -> i32 {
    let text: String = found
        .iter()
        .map(|c| match c.about.as_str() {
            "" => format!("{}\n", c.word),
            about => format!("{}\t{about}\n", c.word),
        })
        .collect();
    // A shell that has gone away wants nothing any more.
    let _ = ctx.out.write_all(text.as_bytes()).and_then(|()| ctx.out.flush());
    0
}

fn candidates(words: &[String], own: &clap::Command, ctx: &Context) -> Vec<Candidate> {
    candidates_noting(words, own, ctx, &Cell::new(false))
}

/// The candidates; notes in `asked` whether they depend on these pools.
fn candidates_noting(
    words: &[String],
    own: &clap::Command,
    ctx: &Context,
    asked: &Cell<bool>,
) -> Vec<Candidate> {
    let Some((program, rest)) = words.split_first() else { return Vec::new() };
    let pools = Pools { ctx, asked };
    let name = Path::new(program).file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let found = match (name, rest) {
        (name, rest) if name == "mount.zfs" || CLASSIC.contains(&name) => {
            of_tool(name, rest, pools)
        }
        (_, [tool, rest @ ..]) if !rest.is_empty() && CLASSIC.contains(&tool.as_str()) => {
            of_tool(tool, rest, pools)
        }
        (_, rest) => of_cenote(own, rest, pools),
    };
    let last = words.last().map(String::as_str).unwrap_or_default();
    let mut fitting: Vec<Candidate> =
        found.into_iter().filter(|c| c.word.starts_with(last) || c.word.starts_with(':')).collect();
    fitting.dedup();
    fitting
}

/// Of a tool that the manual knows; `words` are those behind its name.
fn of_tool(tool: &str, words: &[String], pools: Pools<'_>) -> Vec<Candidate> {
    let (page, words) = match (manual::page(tool, ""), words) {
        (Some(page), words) => (page, words),
        (None, [_]) => return commands(tool, true),
        (None, [help, _]) if help == "help" => return commands(tool, false),
        (None, [command, words @ ..]) => match manual::page(tool, canonical(tool, command)) {
            Some(page) => (page, words),
            None => return Vec::new(),
        },
        (None, []) => return Vec::new(),
    };
    let Some((current, before)) = words.split_last() else { return Vec::new() };
    let line = Line::read(page, before);
    let scope = kind::Scope { pools, operands: &line.operands };
    if let Some(opt) = line.open {
        return kind::fit(opt.value, current, &scope);
    }
    if current.starts_with('-') && !line.ended {
        return options(page.options, current, &scope);
    }
    // Without names of users and groups the permissions come first.
    let nobody = ["allow", "unallow"].contains(&page.command)
        && line.letters.iter().any(|letter| ['e', 'c'].contains(letter));
    match pattern(page.operands, line.operands.len() + usize::from(nobody)) {
        Some(pattern) => kind::fit(pattern, current, &scope),
        None => Vec::new(),
    }
}

/// The sub-commands of a tool; with help, if it has that and it is wanted.
fn commands(tool: &str, with_help: bool) -> Vec<Candidate> {
    let all = manual::pages(tool).into_iter();
    let all = all.map(|page| Candidate::new(page.command, page.about));
    let help = Candidate::new("help", "show the usage of a command");
    let has_help = with_help && ["zpool", "zfs"].contains(&tool);
    all.chain(has_help.then_some(help)).collect()
}

fn canonical<'a>(tool: &str, command: &'a str) -> &'a str {
    let table: Option<&Tool> = match tool {
        "zpool" => Some(zpool::tool()),
        "zfs" => Some(zfs::tool()),
        _ => None,
    };
    table.map_or(command, |table| (table.canonical)(command))
}

/// The options that begin as the word does. Of `--name=` the values.
fn options(options: &[Opt], current: &str, scope: &kind::Scope<'_>) -> Vec<Candidate> {
    if let Some((name, value)) = current.split_once('=') {
        let opt = options.iter().find(|opt| opt.each_name().any(|n| n == name));
        let Some(opt) = opt.filter(|opt| !opt.value.is_empty()) else { return Vec::new() };
        let values = kind::fit(opt.value, value, scope).into_iter();
        return values.map(|c| Candidate { word: format!("{name}={}", c.word), ..c }).collect();
    }
    let names = options.iter().flat_map(|opt| opt.each_name().map(move |name| (name, opt)));
    names.map(|(name, opt)| Candidate::new(name, opt.about)).collect()
}

/// The pattern of the operand with this number.
fn pattern(operands: &'static str, number: usize) -> Option<&'static str> {
    let all: Vec<&'static str> = operands.split_whitespace().collect();
    match all.split_last() {
        Some((&"...", patterns)) => patterns.get(number).or(patterns.last()).copied(),
        _ => all.get(number).copied(),
    }
}

/// A command line up to the word to be completed.
struct Line {
    operands: Vec<String>,
    /// The options that are letters.
    letters: Vec<char>,
    /// An option whose value comes next.
    open: Option<&'static Opt>,
    /// There was a `--`: options are over.
    ended: bool,
}

impl Line {
    fn read(page: &'static Page, words: &[String]) -> Line {
        let mut line = Line { operands: Vec::new(), letters: Vec::new(), open: None, ended: false };
        let takes = |opt: &&'static Opt| !opt.value.is_empty();
        for word in words {
            if line.open.take().is_some() {
                continue;
            }
            match word.strip_prefix('-').filter(|rest| !rest.is_empty() && !line.ended) {
                None => line.operands.push(word.clone()),
                Some("-") => line.ended = true,
                Some(rest) if rest.starts_with('-') => {
                    let named = |opt: &&'static Opt| opt.each_name().any(|name| name == word);
                    line.open = page.options.iter().find(named).filter(takes);
                }
                Some(letters) => {
                    let mut letters = letters.chars();
                    let valued = letters.by_ref().find_map(|letter| {
                        line.letters.push(letter);
                        page.options.iter().find(|opt| opt.letter() == Some(letter)).filter(takes)
                    });
                    // What stands behind the letter in the same word is its value.
                    line.open = valued.filter(|_| letters.as_str().is_empty());
                }
            }
        }
        line
    }
}

/// Of cenote's own commands, by their definitions.
fn of_cenote(own: &clap::Command, words: &[String], pools: Pools<'_>) -> Vec<Candidate> {
    let mut command = own;
    let mut rest = words;
    while let [name, behind @ ..] = rest
        && !behind.is_empty()
        && let Some(found) = command.find_subcommand(name)
    {
        (command, rest) = (found, behind);
    }
    let Some((current, before)) = rest.split_last() else { return Vec::new() };
    let named = |arg: &&clap::Arg, word: &str| {
        let short = arg.get_short().is_some_and(|s| word == format!("-{s}"));
        short || arg.get_long().is_some_and(|l| word == format!("--{l}"))
    };
    let takes = |arg: &&clap::Arg| arg.get_action().takes_values();
    let option = |word: &String| {
        let mut options = command.get_arguments().filter(|arg| !arg.is_positional());
        options.find(|arg| named(arg, word)).filter(takes)
    };
    let scope = kind::Scope { pools, operands: &[] };
    if let Some(arg) = before.last().and_then(option) {
        let values = arg.get_possible_values();
        let shown = values.iter().map(|v| Candidate::new(v.get_name(), help(v.get_help())));
        return match values.is_empty() {
            true => kind::fit(wanted(command, arg, 0), current, &scope),
            false => shown.collect(),
        };
    }
    if current.starts_with('-') {
        let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
        return shown
            .flat_map(|arg| {
                let short = arg.get_short().map(|s| format!("-{s}"));
                let long = arg.get_long().map(|l| format!("--{l}"));
                short.into_iter().chain(long).map(|name| Candidate::new(name, help(arg.get_help())))
            })
            .collect();
    }
    let commands = command.get_subcommands().filter(|c| !c.is_hide_set());
    let mut found: Vec<Candidate> =
        commands.map(|c| Candidate::new(c.get_name(), help(c.get_about()))).collect();
    let mut operands = 0;
    for (at, word) in before.iter().enumerate() {
        let is_value = at.checked_sub(1).and_then(|at| before.get(at)).and_then(option).is_some();
        operands += usize::from(!is_value && !word.starts_with('-'));
    }
    if let Some(arg) = command.get_positionals().next() {
        found.extend(kind::fit(wanted(command, arg, operands), current, &scope));
    }
    found
}

/// The pattern of a value of cenote's own commands, by the name that its usage has for it. `number`: how many values there
/// are before.
fn wanted(command: &clap::Command, arg: &clap::Arg, number: usize) -> &'static str {
    let names = arg.get_value_names().unwrap_or_default();
    let name = names.get(number).or(names.last()).map(|name| name.as_str()).unwrap_or_default();
    let several = matches!(arg.get_action(), clap::ArgAction::Append) || number == 0;
    let word: String = name.chars().take_while(char::is_ascii_uppercase).collect();
    match word.as_str() {
        _ if !several => "",
        "POOL" => "<pool>",
        "DATASET" | "DESTINATION" => "<dataset>|<file>",
        "NAME" if arg.get_id() == "dataset" => "<dataset>",
        "NAME" if name.contains('=') => "<tunable>=<value>",
        "NAME" if ["tunables", "reset"].contains(&command.get_name()) => "<tunable>",
        // It may be an image as well.
        "DIR" if arg.get_short().is_some() => "<file>",
        "DIR" => "<directory>",
        "FILE" | "PATH" => "<file>",
        _ => "",
    }
}

fn help(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default().lines().next().unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests;
