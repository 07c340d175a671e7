//! `cenote age`: small pools that age in memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::Value;
use std::process::{Command, Output};

fn age(args: &str) -> Output {
    let mut cenote = Command::new(env!("CARGO_BIN_EXE_cenote"));
    cenote.arg("age").args(args.split_whitespace()).output().unwrap()
}

/// What is printed, with what was measured on this machine left out.
fn report(args: &str) -> Value {
    let out = age(args);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut report: Value = serde_json::from_slice(&out.stdout).unwrap();
    report.as_object_mut().unwrap().remove("simulation").unwrap();
    for row in report["rows"].as_array_mut().unwrap() {
        row.as_object_mut().unwrap().remove("timing").unwrap();
    }
    report
}

#[test]
fn a_seed_has_a_pool_age_in_one_way() {
    let small = "--size 512M --vdevs 1 --fill 50% --workload random-overwrite --rate 200K/s \
                 --for 10m --step 5m --txg 30s --json -q";
    let first = report(small);
    assert_eq!(first, report(small));
    assert_ne!(first, report(&format!("{small} --seed 2")));
    let rows = first["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    let full = |row: &Value| row["full"].as_f64().unwrap();
    assert!(full(&rows[0]) > 45.0 && full(&rows[2]) < 60.0, "{rows:?}");
    assert!(rows[2]["records"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_table_a_plot_and_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let (svg, html) = (dir.path().join("age.svg"), dir.path().join("age.html"));
    let out = age(&format!(
        "--size 512M --vdevs 1 --files 200 --for 10m --step 5m --txg 1m -q --plot {} --html {}",
        svg.display(),
        html.display()
    ));
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    for part in ["SPOILED", "FREE SEGMENTS", "times as fast as time"] {
        assert!(text.contains(part), "{text}");
    }
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(roxmltree::Document::parse(&svg).unwrap().descendants().count() > 20);
    assert!(std::fs::read_to_string(html).unwrap().contains("<svg"));
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    for (args, why) in [
        ("--workload random-overwrite --files 3", "--files is for --workload time-series"),
        ("--workload time-series --rate 1M/s", "--rate is for --workload random-overwrite"),
        ("--compressed 0.5", "--compressed is at least 1"),
        ("--fill 120%", "the fill is from 1% to 95%"),
        ("--size 1K", "cenote age"),
    ] {
        let out = age(args);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.contains(why), "{args}: {said}");
    }
}
