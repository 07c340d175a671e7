//! What OpenZFS's `zdb -dddd` says about ZAPs, and the order in which it lists their entries. Needs
//! OpenZFS's `zdb`: where it is not installed these tests fail.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use cenote_dmu::zap::{FatStats, Zap};
use std::collections::BTreeMap;

/// What `zdb` printed about one ZAP.
#[derive(Debug, Default, PartialEq)]
struct Printed {
    /// The lines of statistics with a number: name and number, histogram columns as `heading n`.
    stats: Vec<(String, String)>,
    /// Names in the order of the list.
    names: Vec<String>,
}

fn zdb(pool: &cenote_testpools::TestPool) -> String {
    cenote_testpools::zdb(&pool.dir, &pool.name, &["-dddd"])
}

/// ZAPs by object set and object.
fn parse(text: &str) -> BTreeMap<(u64, u64), Printed> {
    let mut out: BTreeMap<(u64, u64), Printed> = BTreeMap::new();
    let (mut set, mut object, mut heading, mut zap) = (0, 0u64, String::new(), false);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(id) = line.strip_prefix("Dataset ").and_then(|l| l.split(", ID ").nth(1)) {
            set = id.split(',').next().unwrap().parse().unwrap();
        } else if line.starts_with("    Object ") {
            let number = lines.next().unwrap().split_whitespace().next().unwrap();
            object = number.parse::<i64>().unwrap() as u64;
            zap = false;
        } else if line == "\tFat ZAP stats:" || line.starts_with("\tmicrozap: ") {
            zap = true;
            let micro = line.strip_prefix("\tmicrozap: ").map(|m| ("microzap".into(), m.into()));
            out.entry((set, object)).or_default().stats.extend(micro);
        } else if let (true, Some(printed)) = (zap, out.get_mut(&(set, object))) {
            if let Some((name, _)) = line.strip_prefix("\t\t").and_then(|l| l.split_once(" = ")) {
                printed.names.push(name.to_owned());
            } else if let Some((name, value)) = line.trim().split_once(": ") {
                let name = match name.parse::<u32>() {
                    Ok(column) => format!("{heading} {column}"),
                    Err(_) => name.to_owned(),
                };
                let value = value.trim().trim_end_matches('*').trim_end();
                printed.stats.push((name, value.to_owned()));
            } else {
                heading = line.trim().trim_end_matches(':').to_owned();
            }
        }
    }
    out
}

fn fat_stats(f: &FatStats, entries: u64, salt: u64) -> Vec<(String, String)> {
    let n = |name: &str, value: u64| (name.to_owned(), value.to_string());
    let x = |name: &str, value: u64| (name.to_owned(), format!("{value:#x}"));
    let mut out = vec![
        n("zt_blk", f.table.block),
        n("zt_numblks", f.table.blocks),
        n("zt_shift", f.table.shift.into()),
        n("zt_blks_copied", f.table.blocks_copied),
        n("zt_nextblk", f.table.next_block),
        n("ZAP entries", entries),
        n("Leaf blocks", f.leafs),
        n("Total blocks", f.blocks),
        x("zap_block_type", f.block_type),
        x("zap_magic", f.magic),
        x("zap_salt", salt),
    ];
    let histograms = [
        ("Leafs with 2^n pointers", &f.leafs_with_2n_pointers),
        ("Blocks with n*5 entries", &f.blocks_with_n5_entries),
        ("Blocks n/10 full", &f.blocks_n_tenths_full),
        ("Entries with n chunks", &f.entries_using_n_chunks),
        ("Buckets with n entries", &f.buckets_with_n_entries),
    ];
    for (heading, columns) in histograms {
        let first = columns.iter().position(|c| *c > 0).unwrap_or(columns.len());
        let last = columns.iter().rposition(|c| *c > 0).unwrap_or(0);
        for (i, count) in columns.iter().enumerate().take(last + 1).skip(first) {
            out.push(n(&format!("{heading} {i}"), *count));
        }
    }
    out
}

#[test]
fn statistics_and_order() {
    for name in ["compat21", "legacyd"] {
        let pool = cenote_testpools::pool(name);
        let printed = parse(&zdb(&pool));
        assert!(printed.len() > 200, "{name}: {}", printed.len());
        let sets = common::objsets(&common::mos(&pool));
        let sets: BTreeMap<u64, _> = sets.iter().map(|s| (s.id(), s)).collect();
        let mut listed = 0;
        for ((set, number), theirs) in printed {
            let set = sets[&set];
            let object = set.object(number).or_else(|_| set.special(number)).unwrap();
            let zap = Zap::open(&object).unwrap();
            let d = zap.describe();
            let ours = match &d.fat {
                Some(fat) => fat_stats(fat, d.entries, d.salt),
                None => {
                    let text = format!("{} bytes, {} entries", d.block_size, d.entries);
                    vec![("microzap".to_owned(), text)]
                }
            };
            let theirs_stats: Vec<_> = theirs.stats.iter().take(ours.len()).cloned().collect();
            assert_eq!(ours, theirs_stats, "{name} {object:?}");
            // Some types are listed in words of their own.
            if theirs.names.len() as u64 == d.entries {
                let ours: Vec<String> = zap
                    .entries()
                    .unwrap()
                    .iter()
                    .map(|e| String::from_utf8_lossy(&e.name).into_owned())
                    .collect();
                for (ours, theirs) in ours.iter().zip(&theirs.names) {
                    assert!(
                        ours == theirs || ours.contains(['\u{fffd}', '=']),
                        "{name} {object:?}: {ours} {theirs}"
                    );
                }
                listed += ours.len();
            }
        }
        assert!(listed > 3000, "{name}: {listed}");
    }
}
