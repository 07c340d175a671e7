//! `cenote age`: small pools that age in memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

fn age(args: &str) -> Output {
    let mut cenote = Command::new(env!("CARGO_BIN_EXE_cenote"));
    cenote.arg("age").args(args.split_whitespace()).output().unwrap()
}

/// The lines of JSON that are printed.
fn lines(args: &str) -> Vec<Value> {
    let out = age(args);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The rows, with what was measured on this machine left out.
fn rows(args: &str) -> Vec<Value> {
    let mut lines = lines(args);
    let result = lines.pop().unwrap();
    assert!(result["result"]["simulation"]["factor"].as_f64().unwrap() > 0.0, "{result}");
    assert!(lines.remove(0)["spec"]["size"].as_u64().unwrap() > 0);
    let sample = |line: Value| {
        let mut row = line["sample"].as_object().unwrap().clone();
        row.remove("timing").unwrap();
        Value::Object(row)
    };
    lines.into_iter().map(sample).collect()
}

#[test]
fn a_seed_has_a_pool_age_in_one_way() {
    let small = "--size 512M --vdevs 1 --fill 50% --workload random-overwrite --rate 200K/s \
                 --for 10m --step 5m --txg 30s --json -q";
    let first = rows(small);
    assert_eq!(first, rows(small));
    assert_ne!(first, rows(&format!("{small} --seed 2")));
    assert_eq!(first.len(), 3);
    let full = |row: &Value| row["full"].as_f64().unwrap();
    assert!(full(&first[0]) > 45.0 && full(&first[2]) < 60.0, "{first:?}");
    assert!(first[2]["records"].as_f64().unwrap() > 0.0);
}

/// The free space of a pool that is not imported, given by its directory, and the map of it.
#[test]
fn a_pool_like_another_one() {
    let sample = cenote_testpools::pool("fraglogsm");
    let dir = tempfile::tempdir().unwrap();
    let (page, picture) = (dir.path().join("map.html"), dir.path().join("map.svg"));
    let like = format!("--like fraglogsm -d {} --for 1m --step 1m --txg 20s", sample.dir.display());
    let small = "--workload random-overwrite --rate 100K/s -q";
    let spec = &lines(&format!("{like} {small} --json --map {}", page.display()))[0]["spec"];
    assert_eq!((spec["like"].as_str(), spec["vdevs"].as_u64()), (Some("fraglogsm"), Some(1)));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("before: ") && page.contains("after: ") && page.contains("fraglogsm"));
    let out = age(&format!("{like} {small} --map {}", picture.display()));
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(roxmltree::Document::parse(&picture).unwrap().descendants().count() > 20);
    assert!(picture.contains(", FRAG ") && !picture.contains("FRAG -"), "{picture}");
}

/// Interrupted, it shows the rows until then; files are there after every row.
#[test]
fn an_interrupt_ends_it_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("age.svg");
    let args = "--size 512M --vdevs 1 --fill 50% --workload random-overwrite --rate 20K/s \
                --for 36500d --step 1m --txg 5s --json -q --plot";
    let mut child = Command::new(env!("CARGO_BIN_EXE_cenote"))
        .arg("age")
        .args(args.split_whitespace())
        .arg(&svg)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let read = |line: Option<String>| serde_json::from_str::<Value>(&line.unwrap()).unwrap();
    assert!(read(lines.next())["spec"].is_object());
    for minute in 0..3 {
        assert_eq!(read(lines.next())["sample"]["time"].as_f64(), Some(60.0 * f64::from(minute)));
    }
    assert!(roxmltree::Document::parse(&std::fs::read_to_string(&svg).unwrap()).is_ok());
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let rest: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let result = read(rest.last().cloned());
    assert_eq!(result["result"]["interrupted"], true, "{result}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_table_a_plot_and_a_page() {
    let dir = tempfile::tempdir().unwrap();
    // The command does not fit into one line.
    let long = dir.path().join("d".repeat(120)).join("e".repeat(120));
    std::fs::create_dir_all(&long).unwrap();
    let (svg, html) = (long.join("age.svg"), long.join("age.html"));
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
    let picture = roxmltree::Document::parse(&svg).unwrap();
    assert!(picture.descendants().count() > 20);
    let texts: Vec<&str> = picture.descendants().filter_map(|n| n.text()).map(str::trim).collect();
    assert!(texts.iter().all(|text| text.chars().count() <= 140), "{texts:?}");
    assert!(texts.concat().contains(&"d".repeat(120)) && texts.concat().contains("age.html"));
    let html = std::fs::read_to_string(html).unwrap();
    // The page says it, and the picture on it does not say it again.
    assert_eq!(html.matches("512 MiB on 1 vdev,").count(), 1);
    assert!(html.contains("MODELLED: "), "{html}");
    assert!(html.contains("<svg"));
    // What was simulated, with units that fit ten minutes, and what allocations took.
    for part in [
        "512 MiB on 1 vdev,",
        "--size 512M --vdevs 1",
        "minutes",
        "99.9% at most",
        "seconds for an allocation",
    ] {
        assert!(svg.contains(part) && html.contains(part), "{part}: {svg}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    for (args, why) in [
        ("--workload random-overwrite --files 3", "--files is for --workload time-series"),
        ("--workload time-series --rate 1M/s", "--rate is for --workload random-overwrite"),
        ("--compressed 0.5", "--compressed is at least 1"),
        ("--fill 120%", "the fill is from 1% to 95%"),
        ("--size 1K", "cenote age"),
        ("--indirect 3K", "an indirect block is a power of two from 4K to 128K"),
        ("-d /nowhere", "-d and -e say where the pool of --like is"),
        ("--like nothing -d /nowhere", "/nowhere"),
        ("--like nothing --size 1G", "--like"),
    ] {
        let out = age(args);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.contains(why), "{args}: {said}");
    }
}
