//! Reports of pools: current in intervals, and latencies.

use crate::Bench;
use std::io::{BufRead, BufReader};

#[test]
fn reports_in_intervals_are_current() {
    let b = Bench::new();
    b.run("zpool create -m none tank a").ok();
    assert_eq!(b.run("zpool list -Hp -o comment tank 0.1 10").ok(), "-\n".repeat(10));
    let mut list = b.s.command();
    let mut child = list
        .args(["zpool", "list", "-Hp", "-o", "comment", "tank", "0.2"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("-"));
    b.run("zpool set comment=late tank").ok();
    // Nothing but the new comment ends the old one.
    assert_eq!(lines.find(|line| line != "-").as_deref(), Some("late"));
    child.kill().unwrap();
    child.wait().unwrap();
    b.run("zpool export tank").ok();
    b.judge();
}

#[test]
fn latencies_of_writes_are_shown() {
    let b = Bench::new();
    b.run("zpool create -m none tank a").ok();
    b.run("zpool sync -f").ok();
    let wide = b.run("zpool iostat -Hpwv tank").ok();
    let writes = wide.lines().filter_map(|l| l.split('\t').nth(2)?.parse::<u64>().ok());
    assert!(writes.sum::<u64>() > 0, "{wide}");
    // Sizes: each request is counted once, those of labels too.
    let sizes = b.run("zpool iostat -Hpr tank").ok();
    let rows: Vec<Vec<u64>> = sizes
        .lines()
        .filter_map(|l| l.split('\t').map(|n| n.parse().ok()).collect::<Option<Vec<u64>>>())
        .collect();
    assert_eq!((rows.len(), rows[0][0], rows[15][0]), (16, 512, 16 << 20), "{sizes}");
    let writes: u64 = rows.iter().map(|row| row[3] + row[4] + row[7] + row[8]).sum();
    let done = b.run("zpool get -Hpo value write_ops tank root").ok();
    assert_eq!(writes, done.trim_end().parse::<u64>().unwrap(), "{sizes}");
    let text = b.run("zpool iostat -r tank").ok();
    let titles: Vec<&str> = text.lines().nth(2).unwrap().split_whitespace().collect();
    assert_eq!((titles.len(), titles[0], titles[1], titles[14]), (15, "req_size", "ind", "agg"));
    let first: Vec<&str> = text.lines().nth(4).unwrap().split_whitespace().collect();
    assert_eq!((first.len(), first[0]), (15, "512"));
    for (line, why) in [
        ("zpool iostat -rw tank", "Only one of [-r|-w] can be passed at a time"),
        ("zpool iostat -rq tank", "[-r|-w] isn't allowed with [-c|-l|-q]"),
    ] {
        let said = b.run(line).fails(2);
        assert_eq!(said.lines().next(), Some(why), "{line}");
    }
    let long = b.run("zpool iostat -lq tank").ok();
    let titles: Vec<&str> = long.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(titles[3..6], ["total_wait", "disk_wait", "syncq_wait"]);
    assert_eq!(titles.last(), Some(&"rebuildq_write"));
    b.run("zpool export tank").ok();
    b.judge();
}
