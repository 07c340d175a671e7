//! The manual is compared with what the commands accept.

#![allow(clippy::unwrap_used, clippy::panic)] // A failure fails the test.

use super::*;
use crate::commands::Tool;
use crate::context::{Context, Streams};
use crate::pools::PoolTable;
use cenote_command::outcome::Stop;
use cenote_command::{Caller, Cancel};
use cenote_engine::change::kept::without_effect;
use cenote_pool::vdev_props;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// Output in memory.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a command says to arguments, without pools.
fn say(tool: &Tool, args: &[&str]) -> String {
    let said = Said::default();
    let streams = Streams { out: Box::new(io::sink()), err: Box::new(said.clone()) };
    let pools = Arc::new(PoolTable::default());
    let mut ctx = Context::new(streams, Caller::of_process(), pools, Cancel::default());
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    tool.run(&args, &mut ctx);
    let bytes = said.0.lock().unwrap().clone();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a command accepts an option, and whether with a value. What no command accepts comes behind it, so that
/// nothing is done.
fn accepts(tool: &Tool, command: &str, option: &str) -> Option<bool> {
    let said = say(tool, &[command, option, "-%", "-$"]);
    let first = said.lines().next().unwrap_or_default();
    match first {
        "invalid option '%'" => Some(false),
        "invalid option '$'" => Some(true),
        _ => None,
    }
}

#[test]
fn every_option_of_every_command_is_explained_and_no_other() {
    for (name, tool) in [("zpool", crate::zpool::tool()), ("zfs", crate::zfs::tool())] {
        for command in tool.working() {
            let page =
                page(name, command.name).unwrap_or_else(|| panic!("{name} {}", command.name));
            for letter in ('a'..='z').chain('A'..='Z').chain('0'..='9') {
                let known = page.options.iter().find(|opt| opt.letter() == Some(letter));
                let value = known.map(|opt| !opt.value.is_empty());
                let accepted = accepts(tool, command.name, &format!("-{letter}"));
                assert_eq!(value, accepted, "{name} {} -{letter}", command.name);
            }
            let long = page.options.iter().flat_map(|opt| opt.each_name().map(move |n| (n, opt)));
            for (option, opt) in long.filter(|(option, _)| option.starts_with("--")) {
                let accepted = accepts(tool, command.name, option);
                assert_eq!(
                    accepted,
                    Some(!opt.value.is_empty()),
                    "{name} {} {option}",
                    command.name
                );
            }
        }
        let known = pages(name).iter().map(|page| page.command).collect::<BTreeSet<_>>();
        assert_eq!(known, tool.working().map(|c| c.name).collect::<BTreeSet<_>>());
    }
}

#[test]
fn every_option_of_zdb_is_explained() {
    let parse = |option: &str| {
        // The number is the option's value, or an operand.
        let args: Vec<OsString> = [option, "4", "-%"].iter().map(OsString::from).collect();
        match cenote_zdb::args::Args::parse(&args) {
            // Or it takes words, of which the number is none.
            Err(Stop::Usage(why)) => why.contains('%') || why.starts_with(option),
            _ => false,
        }
    };
    for letter in ('a'..='z').chain('A'..='Z') {
        let known = zdb::PAGE.options.iter().any(|opt| opt.letter() == Some(letter));
        assert_eq!(known, parse(&format!("-{letter}")), "-{letter}");
    }
    for name in zdb::PAGE.options.iter().flat_map(Opt::each_name).filter(|n| n.starts_with("--")) {
        assert!(parse(name), "{name}");
    }
}

#[test]
fn every_option_of_zinject_is_explained() {
    for letter in ('a'..='z').chain('A'..='Z') {
        let known = zinject::PAGE.options.iter().find(|opt| opt.letter() == Some(letter));
        let args = [OsString::from(format!("-{letter}")), OsString::from("-%")];
        // It takes what follows as its value, finds the next option wrong, or is unknown itself.
        let said = crate::zinject::options::parse(&args);
        let accepted = match said {
            Ok(_) => true,
            Err(wrong) if wrong.why == "invalid option '%'" => true,
            Err(wrong) => wrong.why.contains("'-%'") || wrong.why.contains("frequency value"),
        };
        assert_eq!(known.is_some(), accepted, "-{letter}");
    }
}

#[test]
fn every_property_is_explained_and_no_other() {
    let same = |kind: &str, names: Vec<&str>, tables: &[&[(&'static str, &'static str)]]| {
        for name in &names {
            assert!(property(kind, name).is_some(), "{kind} {name}");
        }
        for (name, _) in tables.iter().copied().flatten() {
            assert!(names.contains(name), "{kind} {name}");
        }
    };
    let datasets = cenote_dsl::props::table::PROPERTIES.iter().filter(|p| !p.values.is_empty());
    let tables = [dataset_properties::SETTINGS, dataset_properties::FIGURES];
    same("zfs", datasets.map(|p| p.name).collect(), &tables);
    let pools = crate::zpool::properties::all().filter(|p| p.values() != "-");
    same("zpool", pools.map(|p| p.name).collect(), &[pool_properties::POOL]);
    same("vdev", cenote_pool::vdev_props::names().collect(), &[pool_properties::VDEV]);
}

/// The manual says of each property that has no effect with some value that it is kept.
#[test]
fn what_has_no_effect_is_explained_so() {
    for row in cenote_dsl::props::table::PROPERTIES {
        let values = row.values.split('|').map(str::trim).chain(["on", "rw"]);
        let kept = values.filter_map(|value| without_effect(row.name, value)).next();
        let Some(why) = kept else { continue };
        let text = property("zfs", row.name).unwrap();
        assert!(text.to_lowercase().contains("kept"), "{}: {why}, but: {text}", row.name);
    }
    for name in vdev_props::names() {
        let text = property("vdev", name).unwrap();
        let (none, not_set) =
            (vdev_props::without_effect(name), vdev_props::NOT_SET.contains(&name));
        assert_eq!(text.contains("kept, and has no effect here"), none.is_some(), "{name}: {text}");
        assert_eq!(text.contains("cannot be set yet"), not_set, "{name}: {text}");
        let not_counted = vdev_props::NOT_COUNTED.contains(&name);
        assert_eq!(text.contains("Not counted here: 0"), not_counted, "{name}: {text}");
    }
}

#[test]
fn patterns_name_kinds_that_are_known() {
    for tool in ["zpool", "zfs", "zdb", "zstream", "zinject", "mount.zfs"] {
        for page in pages(tool) {
            let values = page.options.iter().map(|opt| opt.value);
            for pattern in values.chain(page.operands.split_whitespace()) {
                let mut rest = pattern;
                while let Some((_, behind)) = rest.split_once('<') {
                    let (kind, behind) = behind.split_once('>').unwrap();
                    assert!(
                        crate::complete::kind::is_known(kind),
                        "{tool} {} {kind}",
                        page.command
                    );
                    rest = behind;
                }
            }
            assert!(!page.examples.is_empty() && !page.text.is_empty(), "{tool} {}", page.command);
        }
    }
}
