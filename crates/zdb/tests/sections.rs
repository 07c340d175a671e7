//! `zdb`'s output on every sample pool, line by line against what OpenZFS's `zdb` printed.
//!
//! Left out of the comparison, because they are not facts about the pool:
//!
//! | line | why |
//! |---|---|
//! | `loading … vdev …`, `… completed (…) estimated time remaining …` | progress, on standard error, which the samples hold mixed with the rest |
//! | blank lines at the end of a section | the samples have one between sections |
//! | what follows `[cut]`, and the line before it | very long sections are not in the samples in full |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use cenote_testpools::TestPool;
use support::zdb;

/// The lines that are compared.
fn facts(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text
        .lines()
        .filter(|l| !l.contains("loading concrete vdev") && !l.contains("loading indirect vdev"))
        // OpenZFS 2.4 says so, and the samples' text is that of 2.3.
        .filter(|l| !l.contains("Special embedded log"))
        .map(|l| l.rsplit("sec        ").next().unwrap_or(l).to_string())
        .collect();
    while lines.last().is_some_and(|l| l.trim().is_empty()) {
        lines.pop();
    }
    while lines.first().is_some_and(|l| l.trim().is_empty()) {
        lines.remove(0);
    }
    lines
}

fn compare(name: &str, what: &str, expected: &str, got: &str) {
    let (mut expected, mut got) = (facts(expected), facts(got));
    if expected.last().is_some_and(|l| l == "[cut]") {
        expected.truncate(expected.len() - 2);
        got.truncate(expected.len());
    }
    for (i, (e, g)) in expected.iter().zip(&got).enumerate() {
        assert_eq!(g, e, "{name} {what}: line {}", i + 1);
    }
    let longer = if expected.len() > got.len() { &expected } else { &got };
    let more = longer.get(expected.len().min(got.len()));
    assert_eq!(got.len(), expected.len(), "{name} {what}: {more:?}");
}

fn pools() -> Vec<TestPool> {
    let names = cenote_testpools::names();
    names.iter().map(|n| cenote_testpools::pool(n)).collect()
}

/// Compares a section of every pool that has it; how many there were.
fn section(option: &str) -> usize {
    let mut compared = 0;
    for pool in pools() {
        let text = pool.zdb_text();
        let marker = format!(" {option} ");
        if !text.lines().any(|l| l.starts_with("##### ") && l.contains(&marker)) {
            continue;
        }
        let dir = pool.dir.to_str().unwrap();
        let (out, _, code) = zdb(&["-e", "-p", dir, option, &pool.name]);
        compare(&pool.name, option, &pool.zdb_section(&marker), &out);
        assert!(code == 0 || option.starts_with("-d"), "{}: exit code {code}", pool.name);
        compared += 1;
    }
    compared
}

#[test]
fn configs() {
    assert!(section("-C") >= 23);
}

#[test]
fn uberblocks() {
    assert!(section("-u") >= 23);
}

#[test]
fn labels() {
    for pool in cenote_testpools::names().iter().map(|n| cenote_testpools::pool(n)) {
        let expected = pool.zdb_section(" -l ");
        let (out, _, code) = zdb(&["-l", pool.files[0].to_str().unwrap()]);
        compare(&pool.name, "-l", &expected, &out);
        assert_eq!(code, 0, "{}", pool.name);
    }
}

#[test]
fn metaslabs() {
    assert!(section("-m") >= 23);
    assert!(section("-mm") >= 8);
    assert!(section("-mmm") >= 1);
}

#[test]
fn datasets() {
    assert!(section("-d") >= 23);
}

#[test]
fn objects() {
    assert!(section("-dd") >= 23);
}

#[test]
fn intent_logs() {
    assert_eq!(section("-ivvvv"), 2);
}

#[test]
fn blocks() {
    assert!(section("-bcc") >= 23);
}

#[test]
fn dedup_tables() {
    assert_eq!(section("-DDD"), 3);
}

#[test]
fn block_reference_tables() {
    assert_eq!(section("-TTT"), 1);
}
