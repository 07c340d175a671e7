//! Options whose text the samples do not have, compared with OpenZFS's own `zdb` or with what it says elsewhere. Where
//! it is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use cenote_dsl::send::SendOptions;
use cenote_testpools::{zdb_command, zdb_output};
use support::{zdb, zdb_with};

/// What `zdb -e -p DIR OPTIONS POOL` prints of a sample.
fn of(pool: &str, options: &[&str], rest: &[&str]) -> String {
    let files = cenote_testpools::pool(pool);
    let mut args = vec!["-e", "-p", files.dir.to_str().unwrap()];
    args.extend(options.iter().chain(rest));
    let (out, err, code) = zdb(&args);
    let damage: Vec<&str> = err.lines().filter(|line| line.starts_with("zdb:")).collect();
    assert_eq!((code, damage), (0, vec![]), "{pool} {options:?}");
    out
}

/// The same of the one sample that OpenZFS 2.1 opens, by OpenZFS.
fn theirs(options: &[&str]) -> String {
    let files = cenote_testpools::pool("compat21");
    let mut command = zdb_command(&["-e", "-p"]);
    command.arg(&files.dir).args(options).arg("compat21");
    let (output, text) = zdb_output(command);
    assert!(output.status.success(), "{text}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn simulated_deduplication() {
    let (ours, theirs) = (of("compat21", &["-S"], &["compat21"]), theirs(&["-S"]));
    assert_eq!(ours.trim(), theirs.trim());
    assert!(ours.contains("dedup = 1.38, compress = 1.15"), "{ours}");
}

/// OpenZFS 2.1 shows fewer records; the records of commands are the same.
#[test]
fn history() {
    let ours = of("compat21", &["-h"], &["compat21"]);
    let lines: Vec<&str> = ours.lines().collect();
    assert_eq!(lines[..2], ["", "History:"]);
    let theirs = theirs(&["-h"]);
    let of_user = |line: &&str| line.contains(" zpool ") || line.contains(" zfs ");
    let commands: Vec<&str> = theirs.lines().filter(of_user).collect();
    assert!(commands.len() > 2 && commands.iter().all(|line| lines.contains(line)), "{ours}");
    // No time that a command took, and no line that is empty.
    assert!(lines[2..].iter().all(|line| line.starts_with("20") || line.starts_with("    ")));
    assert!(lines.iter().any(|line| line.ends_with("[txg:4] set ashift=9")), "{ours}");
}

/// The lines behind `title`, up to the first that is not part of it.
fn below<'a>(text: &'a str, title: &str) -> Vec<&'a str> {
    let behind = text.lines().skip_while(|line| *line != title).skip(2);
    behind.take_while(|line| line.starts_with('\t')).map(str::trim_start).collect()
}

/// As OpenZFS 2.4.4 says.
#[test]
fn dirty_time_logs() {
    let logs = |pool: &str| -> Vec<String> {
        let text = of(pool, &["-ddd"], &[pool]);
        let name = |line: &&str| line.rsplit('/').next().unwrap().to_string();
        below(&text, "Dirty time logs:").iter().map(name).collect()
    };
    let leaf = |pool: &str, n: u32, needed: bool| {
        format!("{pool}.{n}.img [DTL-{}]", if needed { "required" } else { "expendable" })
    };
    let ranges = ["[38,39) length 1", "[41,44) length 3", "[55,56) length 1", "[64,65) length 1"];
    let of_kind = |kind: &str| ranges.map(|range| format!("{kind} {range}"));
    let mut expected = vec!["degr [DTL-required]".into(), "mirror [DTL-required]".into()];
    expected.extend(of_kind("partial"));
    expected.push(leaf("degr", 0, false));
    ["missing", "partial"].iter().for_each(|kind| expected.extend(of_kind(kind)));
    expected.push("outage [0,18446744073709551615) length 18446744073709551615".into());
    expected.extend([leaf("degr", 1, true), "mirror [DTL-required]".into()]);
    expected.extend([leaf("degr", 2, false), leaf("degr", 3, false)]);
    assert_eq!(logs("degr"), expected);
    let vdevs: Vec<String> = logs("degrz").into_iter().filter(|l| l.contains("DTL-")).collect();
    let mut expected = vec!["degrz [DTL-required]".into(), "raidz [DTL-required]".into()];
    expected.extend((0..5).map(|n| leaf("degrz", n, n != 1 && n != 3)));
    assert_eq!(vdevs, expected);
    let mut expected = vec!["mir3 [DTL-required]".into(), "mirror [DTL-required]".into()];
    expected.extend((0..3).map(|n| leaf("mir3", n, false)));
    assert_eq!(logs("mir3"), expected);
}

#[test]
fn a_stream_by_number() {
    let files = cenote_testpools::pool("basic");
    let found = cenote_pool::discover(std::slice::from_ref(&files.dir));
    let options = cenote_pool::ImportOptions { readonly: true, ..Default::default() };
    let pool = cenote_pool::Pool::import(&found[0], &options).unwrap();
    let dataset = pool.dsl().find("basic/xdir").unwrap().unwrap();
    let (large_blocks, compressed) = (true, true);
    let features = pool.features();
    let options = SendOptions {
        large_blocks,
        compressed,
        pool_embeds: features.is_active("embedded_data"),
        pool_has_lz4: features.is_active("lz4_compress"),
        ..SendOptions::default()
    };
    let mut stream = Vec::new();
    pool.dsl().send(&dataset, None, options, &mut stream).unwrap();
    let name = format!("basic/{}", dataset.ds_obj);
    let (out, err, code) = zdb_with(std::slice::from_ref(&pool), &["-B", &name, "Lc"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out == stream);
    let sent = |flags| {
        let pools = std::slice::from_ref(&pool);
        let (out, err, code) = zdb_with(pools, &["-B", &name, flags]);
        assert_eq!((code, err.as_str()), (0, ""));
        out
    };
    // A dataset that is not encrypted is raw as it is.
    assert!(sent("Lw") == sent("Lce") && sent("Lw") != sent("L"));
}

/// The lines of the histogram of block sizes, each with the numbers in it.
fn histogram(options: &[&str]) -> (String, Vec<Vec<u64>>) {
    let options = [&["-bbP"], options].concat();
    let text = of("basic", &options, &["basic"]);
    let (_, table) = text.split_once("Block Size Histogram\n").unwrap();
    let (notes, table) = table.split_once("\n\n").unwrap();
    let numbers = |line: &str| line.split('\t').map(|n| n.parse().unwrap()).collect();
    let lines = table.lines().skip(2).take_while(|line| !line.is_empty());
    (notes.to_string(), lines.map(numbers).collect())
}

#[test]
fn blocks_by_size() {
    let (notes, apart) = histogram(&[]);
    assert_eq!(notes, "(note: all categories are binned separately)");
    let counts = |line: &[u64]| [line[1], line[4], line[7]];
    let alike = |line: &Vec<u64>| counts(line)[1..] == [line[1]; 2];
    assert!(!apart.iter().all(alike));
    let sums = |table: &[Vec<u64>]| [3, 6, 9].map(|at| table.last().unwrap()[at]);
    for (size, at) in [("psize", 1), ("lsize", 4), ("asize", 7)] {
        let (notes, together) = histogram(&[&format!("--bin={size}")]);
        assert_eq!(notes, format!("(note: all categories are binned by {size})"));
        assert!(together.iter().all(alike));
        let column = |table: &[Vec<u64>]| table.iter().map(|line| line[at]).collect::<Vec<_>>();
        assert_eq!((column(&together), sums(&together)), (column(&apart), sums(&apart)));
    }
    let of_classes = |classes: &str| histogram(&[&format!("--class={classes}")]);
    assert_eq!(of_classes("other,dedup,special,normal").1, apart);
    let (notes, others) = of_classes("other");
    assert_eq!(
        notes.lines().nth(1),
        Some("(note: only blocks in these classes are counted: \"other\")")
    );
    let [normal, others, all] = [of_classes("normal").1, others, apart].map(|table| sums(&table));
    assert_eq!([0, 1, 2].map(|at| normal[at] + others[at]), all);
    assert!(normal[0] > 0);
}

#[test]
fn what_is_allocated() {
    let text = of("basic", &["-m", "--allocated-map"], &["basic"]);
    let regions = text.lines().filter_map(|line| line.strip_prefix("ALLOC: "));
    let mut end = 0;
    let mut allocated = 0;
    for region in regions {
        let (start, size) = region.split_once(' ').unwrap();
        let (start, size): (u64, u64) = (start.parse().unwrap(), size.parse().unwrap());
        assert!(start >= end && size > 0, "{region}");
        (end, allocated) = (start + size, allocated + size);
    }
    let files = cenote_testpools::pool("basic");
    let found = cenote_pool::discover(std::slice::from_ref(&files.dir));
    let options = cenote_pool::ImportOptions { readonly: true, ..Default::default() };
    let pool = cenote_pool::Pool::import(&found[0], &options).unwrap();
    assert_eq!(allocated, pool.space().unwrap().pool().alloc);
}

/// What is read is copied, and the copies are a pool that says the same.
#[test]
fn what_is_read_is_copied() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().to_str().unwrap();
    let blocks = of("basic", &["-x", to, "-bcc"], &["basic"]);
    assert!(blocks.contains("No leaks"), "{blocks}");
    let (again, _, code) = zdb(&["-e", "-p", to, "-bcc", "basic"]);
    assert_eq!((again, code), (blocks, 0));
}

#[test]
fn ways_to_read() {
    for options in [&["-I", "1", "-bcc"][..], &["-Y", "-bcc"], &["-X", "-bcc"], &["-V", "-bcc"]] {
        assert!(of("removal", options, &["removal"]).contains("No leaks"), "{options:?}");
    }
    // The special vdev's share for intent logs has a line of its own.
    let special = of("special", &["-bcc"], &["special"]);
    assert!(
        special.contains("\tSpecial embedded log              0     used:  -nan%\n"),
        "{special}"
    );
}

/// Without keys everything of encrypted datasets is found, and what is encrypted is not shown.
#[test]
fn encrypted_datasets() {
    let out = of("crypt", &["-dddd"], &["crypt"]);
    assert!(out.contains("\t\t(bonus encrypted)\n") && out.contains("\t\t(object encrypted)\n"));
}
