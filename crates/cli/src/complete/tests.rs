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
