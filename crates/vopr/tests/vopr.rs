//! The simulator, for about a minute: histories end well, one seed comes to the same each time, and faults that are
//! planted are found. `CENOTE_TORTURE=long` runs it for an hour.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

use std::process::{Command, Output};

fn vopr(arguments: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_vopr")).args(arguments).output().unwrap();
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    (output, text)
}

/// Every eighth history is done twice, and every fourth is judged by OpenZFS's `zdb`.
#[test]
fn histories_end_well() {
    let long = std::env::var("CENOTE_TORTURE").is_ok_and(|v| v == "long");
    let much = if long { ["--seconds", "3600"] } else { ["--count", "12"] };
    let (output, text) = vopr(&[&much[..], &["--seed", "1"]].concat());
    println!("{text}");
    assert!(output.status.success(), "{text}");
    let ended = text.lines().filter(|line| line.starts_with("seed ")).count();
    assert!(ended > 0, "{text}");
}

/// The same, of pools that have their data in an object store. OpenZFS judges none of them: each history accounts for all blocks and
/// objects itself.
#[test]
fn histories_in_object_stores_end_well() {
    let long = std::env::var("CENOTE_TORTURE").is_ok_and(|v| v == "long");
    let much = if long { ["--seconds", "3600"] } else { ["--count", "8"] };
    let (output, text) = vopr(&[&much[..], &["--store", "--seed", "1"]].concat());
    println!("{text}");
    assert!(output.status.success(), "{text}");
    let crashed = |line: &&str| line.starts_with("seed ") && !line.contains(" 0 crashes");
    assert!(text.lines().any(|line| crashed(&line)), "{text}");
}

/// One history, twice: the same threads at the same time, and the same bytes on disks.
#[test]
fn a_seed_comes_to_the_same_each_time() {
    for seed in ["7", "8", "9"] {
        let once = || vopr(&["--run", "--seed", seed, "--steps", "25"]).1;
        let (first, second) = (once(), once());
        assert!(first.lines().last().unwrap().starts_with("seed "), "{first}");
        assert_eq!(first, second);
    }
    let last = |seed| vopr(&["--run", "--seed", seed, "--steps", "5"]).1;
    assert_ne!(last("7"), last("8"));
}

/// Whether a planted fault is found by one of the first seeds; what is said of it.
fn finds(fault: &str) -> String {
    let found = (1..40).find_map(|seed: u64| {
        let seed = seed.to_string();
        let (output, text) = vopr(&["--run", "--seed", &seed, "--plant", fault]);
        (!output.status.success()).then_some(text)
    });
    found.unwrap_or_else(|| panic!("{fault} is not found"))
}

#[test]
fn planted_faults_are_found() {
    let said = finds("double-free");
    assert!(said.contains("free already") || said.contains("freed"), "{said}");
    for fault in ["no-flush", "lost-write", "lost-update"] {
        println!("{fault}: {}", finds(fault));
    }
    // On disk, or after the next import in memory as well.
    let said = finds("lost-log");
    assert!(said.contains("is lacking, and no log has that"), "{said}");
}

/// So many seeds, whatever fails: each that does is named, and all are counted.
#[test]
fn seeds_are_counted() {
    let (output, text) = vopr(&["--seeds", "5", "--seed", "3", "--steps", "3", "--jobs", "2"]);
    assert!(output.status.success(), "{text}");
    let ended = |text: &str| text.lines().filter(|line| line.starts_with("seed ")).count();
    assert_eq!(ended(&text), 5, "{text}");
    assert!(text.ends_with("5 seeds from 3: all ended well\n"), "{text}");
    let arguments = ["--seeds", "4", "--seed", "1", "--steps", "12", "--plant", "lost-update"];
    let (output, text) = vopr(&arguments);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let failed: Vec<&str> = text.lines().filter(|line| line.contains(" fails: ")).collect();
    let last = text.lines().last().unwrap();
    assert!(!failed.is_empty() && last.starts_with("4 seeds from 1: "), "{text}");
    let list = last.split(" failed: ").nth(1).expect(last);
    assert_eq!(list.split(' ').count(), failed.len(), "{text}");
    // What bounds histories in two ways is refused.
    assert_eq!(vopr(&["--seeds", "5", "--seconds", "3"]).0.status.code(), Some(2));
}

/// Of a history that fails, what matters is left.
#[test]
fn the_shortest_history_that_fails_is_told() {
    let arguments = ["--plant", "lost-update", "--seed", "1", "--count", "4", "--steps", "20"];
    let (output, text) = vopr(&arguments);
    assert!(!output.status.success());
    let line = text.lines().find(|l| l.starts_with("the shortest history")).expect(&text);
    let steps = line.split(" has ").nth(1).and_then(|s| s.split(' ').next()).unwrap();
    assert!(steps.parse::<usize>().unwrap() < 6, "{text}");
    assert!(text.contains("again: vopr --run"), "{text}");
}
