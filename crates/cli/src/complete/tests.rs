#![allow(clippy::unwrap_used)] // A failure fails the test.

use super::*;
use crate::pools::PoolTable;
use std::sync::Arc;

fn offered(line: &str) -> Vec<String> {
    let words: Vec<String> = line.split(' ').map(String::from).collect();
    let ctx = Context::of_process(Arc::new(PoolTable::default()));
    let own = crate::dispatch::definition();
    candidates(&words, &own, &ctx).into_iter().map(|c| c.word).collect()
}

fn offers(line: &str, word: &str) -> bool {
    offered(line).iter().any(|w| w == word)
}

#[test]
fn commands_and_options() {
    assert!(offers("zpool imp", "import") && offers("/sbin/zfs ", "list"));
    assert!(offers("cenote zf", "zfs") && offers("cenote zfs sn", "snapshot"));
    assert!(offers("zfs list -", "-r") && offers("zfs send --raw --res", "--resume"));
    assert!(offers("zfs recv -", "-s"), "by its other name");
    assert!(offered("zfs list -- -").is_empty());
    assert!(offers("cenote map --", "--svg") && !offers("cenote ", "complete"));
    assert!(offers("zdb -", "--block-stats") && offers("zstream recompress zs", "zstd"));
}

#[test]
fn properties_and_values() {
    assert!(offers("zfs set compr", "compression="));
    assert!(offers("zfs set compression=z", "compression=zstd-19"));
    assert!(
        offers("zfs get used,comp", "used,compression") && !offers("zfs get used,us", "used,used")
    );
    assert!(offers("zpool set failmode=", "failmode=continue"));
    assert!(offers("zpool create -o feature@lz4", "feature@lz4_compress="));
    assert!(offers("zfs list -Ho us", "used"), "the value of the last letter");
    assert!(offers("zfs list -t sn", "snapshot") && offers("zfs get -s lo", "local"));
    assert_eq!(offered("zpool add -o as"), ["ashift="]);
    assert!(!offers("zfs set us", "used="), "it cannot be set");
}

#[test]
fn operands_by_their_place() {
    assert!(
        offers("zpool create x m", "mirror") && offers("zpool create -f x mirror a ", ":files")
    );
    assert!(offers("zfs allow -u anna snap", "snapshot"));
    assert_eq!(offered("zpool destroy tank "), [""; 0]);
}

#[test]
fn own_options_and_operands_by_what_they_are() {
    assert_eq!(offered("cenote map --by f"), ["fullness", "fragmentation"]);
    assert!(offers("cenote age --workload ", "time-series"));
    assert!(offers("cenote age --logs ", "on") && offers("cenote map --color ", "never"));
    assert!(offers("cenote map --svg ", ":files") && !offers("cenote map -w ", ":files"));
    assert!(!offers("cenote map ", ":files") && !offers("cenote txgs ", ":files"));
    assert!(offers("cenote ls ", ":files") && offers("cenote cp tank:/a ", ":files"));
    assert!(offers("cenote tunables mount ", ":directories"));
    assert!(offers("cenote tunables zfs_arc_m", "zfs_arc_max"));
    assert_eq!(offered("cenote tunables set zfs_arc_max"), ["zfs_arc_max="]);
    assert!(offers("cenote tunables reset zfs_arc_m", "zfs_arc_max"));
    assert!(offers("zdb -o zfs_", "zfs_arc_max=") && offers("zdb -o zfs_arc_max", "zfs_arc_max="));
}

#[test]
fn words_of_options_and_operands() {
    assert!(offers("zdb -l /d", ":files") && offers("zdb -bb --bin ", "psize"));
    assert!(offers("zdb -bb --class special,d", "special,dedup"));
    assert!(offers("zpool prefetch -t ", "brt"));
    assert_eq!(offered("zfs change-key -o key"), ["keyformat=", "keylocation="]);
    assert!(offers("zfs change-key -o keyformat=p", "keyformat=passphrase"));
    assert!(offers("zpool list -o si", "size") && !offers("zpool list -o si", "sit_out"));
    assert!(offers("zpool get si", "sit_out") && offers("zfs list -o na", "name"));
    assert_eq!(offered("zpool set feature@lz4_compress="), ["feature@lz4_compress=enabled"]);
    assert!(offers("zpool create -o feature@lz4_compress=", "feature@lz4_compress=disabled"));
    assert!(
        offers("zpool set slow", "slow_io_n=") && !offers("zpool create -o slow", "slow_io_n=")
    );
    assert!(offers("zpool set failfast=", "failfast=off"));
    assert!(offers("zfs set userq", "userquota@") && !offers("zfs set useru", "userused@"));
    assert!(offers("zfs get useru", "userused@") && offers("zfs get wr", "written@"));
    assert!(!offers("zfs inherit us", "used"));
    assert!(
        offers("zfs inherit comp", "compression") && !offers("zfs inherit comp", "compressratio")
    );
    assert!(offers("zfs allow -e snap", "snapshot") && offers("zfs unallow -c mou", "mount"));
    assert!(offers("zpool h", "help") && offers("zfs help sn", "snapshot"));
    assert!(!offers("zfs help ", "help") && !offers("zstream ", "help"));
}

/// What stands between words of the manual's patterns ends on no command line.
#[test]
fn no_candidate_has_a_sign_of_patterns() {
    let ctx = Context::of_process(Arc::new(PoolTable::default()));
    let asked = Cell::new(false);
    let scope = kind::Scope { pools: Pools { ctx: &ctx, asked: &asked }, operands: &[] };
    let mut patterns = 0;
    for tool in ["zpool", "zfs", "zdb", "zstream", "zinject", "mount.zfs"] {
        for page in manual::pages(tool) {
            let values = page.options.iter().map(|opt| opt.value).filter(|value| !value.is_empty());
            for pattern in values.chain(page.operands.split_whitespace().filter(|p| *p != "...")) {
                patterns += 1;
                for candidate in kind::fit(pattern, "", &scope) {
                    let bad = candidate.word.contains(['|', '<', '>', ' ']);
                    assert!(!bad, "{tool} {} {pattern}: {}", page.command, candidate.word);
                }
            }
        }
    }
    assert!(patterns > 100, "{patterns}");
}
