//! The manual is compared with what the commands accept.

#![allow(clippy::unwrap_used, clippy::panic)] // A failure fails the test.

use super::*;
use crate::commands::Tool;
use crate::context::{Context, Streams};
use crate::pools::PoolTable;
use cenote_command::outcome::Stop;
use cenote_command::{Caller, Cancel};
use cenote_dsl::DatasetKind;
use cenote_engine::change::kept::without_effect;
use cenote_engine::change::props;
use cenote_pool::vdev_props;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Crates that only tests, benchmarks and the simulator use.
const NO_PRODUCT: &[&str] = &[
    "bench",
    "fuzz-targets",
    "manifest-check",
    "testfiles",
    "testpools",
    "testsink",
    "torture",
    "vopr",
];
/// The files of a directory and those below, without tests.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.file_name().unwrap().to_str().unwrap() {
            "tests" | "tests.rs" => {}
            _ if path.is_dir() => files(&path, found),
            name if name.ends_with(".rs") => found.push(path),
            _ => {}
        }
    }
}

/// A source of a crate that users have.
pub(super) struct Source {
    /// The crate.
    pub(super) of: String,
    pub(super) path: PathBuf,
    /// Without its tests.
    pub(super) text: String,
}

/// The sources of all crates that users have.
pub(super) fn sources() -> Vec<Source> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut all = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        let dir = entry.unwrap().path();
        let name = dir.file_name().unwrap().to_str().unwrap();
        if NO_PRODUCT.contains(&name) || !dir.join("src").is_dir() {
            continue;
        }
        let mut found = Vec::new();
        files(&dir.join("src"), &mut found);
        all.extend(found.into_iter().map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_string();
            Source { of: name.to_string(), path, text }
        }));
    }
    all
}

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

/// The manual says of each property that takes no value but its default that it cannot be set.
#[test]
fn what_cannot_be_set_is_explained_so() {
    for name in dataset_properties::SETTINGS.iter().map(|(name, _)| *name) {
        let list = [(name.to_string(), "system_u:object_r:x:s0".to_string())];
        let Err(e) = props::check(&list, props::On::New(DatasetKind::Filesystem)) else { continue };
        let refused = e.to_string().ends_with(&format!("'{name}' is not supported"));
        let refused = refused || e.to_string().contains("are unsupported");
        let text = property("zfs", name).unwrap();
        assert_eq!(refused, text.contains("cannot be set here"), "{name}: {e}, but: {text}");
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

/// A reader learns of what OpenZFS has and cenote lacks.
#[test]
fn what_is_refused_by_name_is_told() {
    let pages = roff::all();
    let text = |name: &str| {
        let found = pages.iter().find(|(file, _)| file == name);
        found.map(|(_, text)| text.replace("\\-", "-")).unwrap_or_else(|| panic!("{name}"))
    };
    for (name, tool) in [("zpool", crate::zpool::tool()), ("zfs", crate::zfs::tool())] {
        let all = text(&format!("cenote-{name}.8"));
        let (_, lacks) = all.split_once(".SH NOT SUPPORTED\n").unwrap();
        let missing: Vec<&str> = tool.missing().map(|c| c.name).collect();
        assert!(!missing.is_empty());
        for command in missing {
            assert!(lacks.contains(&format!(".B {name} {command}\n")), "{name} {command}");
        }
        for command in tool.working() {
            let options = ('a'..='z').chain('A'..='Z').map(|c| format!("-{c}"));
            let options = options.chain(LONG_REFUSED.map(String::from));
            let refused: BTreeSet<String> =
                options.filter(|option| is_refused(tool, command.name, option)).collect();
            let page = text(&format!("cenote-{name}-{}.8", command.name));
            let told = page.split_once(".SH NOT SUPPORTED\n").map(|(_, rest)| rest);
            let told = told.and_then(|rest| rest.split(".SH ").next()).unwrap_or_default();
            let lines = told.lines().filter_map(|line| line.strip_prefix(".B "));
            let mut named: BTreeSet<String> =
                lines.flat_map(|line| line.split(", ")).map(String::from).collect();
            if command.name == "receive" {
                // Its page says itself whether it takes corrections.
                named.extend(refused.contains("-c").then(|| "-c".to_string()));
            }
            assert_eq!(refused, named, "{name} {}", command.name);
        }
    }
}

/// Long options that are refused by name.
const LONG_REFUSED: [&str; 1] = ["--power"];

/// Whether a command refuses an option as one that it knows.
fn is_refused(tool: &Tool, command: &str, option: &str) -> bool {
    let said = say(tool, &[command, option, "-%", "-$"]);
    said.lines().next().unwrap_or_default().starts_with("unsupported option")
}
