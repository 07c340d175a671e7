//! Every block of real pools matches its checksum and decompresses: known answers for all the
//! functions that OpenZFS has.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use cenote_format::checksum::Checksum;
use cenote_format::compress::Compression;
use cenote_fuzz_targets::walk::Image;

/// Blocks per checksum function and per compression function.
fn census(name: &str) -> (BTreeMap<&'static str, u64>, BTreeMap<&'static str, u64>) {
    let pool = cenote_testpools::pool(name);
    let image = Image::open(&pool.files[0]).unwrap();
    let (mut sums, mut packers) = (BTreeMap::new(), BTreeMap::new());
    image
        .walk(|block| {
            if !block.bp.is_embedded() {
                let kind = Checksum::from_u8(block.bp.checksum_type()).unwrap();
                *sums.entry(kind.name()).or_default() += 1;
            }
            let kind = Compression::from_u8(block.bp.compression()).unwrap();
            *packers.entry(kind.name()).or_default() += 1;
            Ok(())
        })
        .unwrap();
    (sums, packers)
}

#[test]
fn all_checksums_and_compressions() {
    let (sums, packers) = census("mir3");
    for kind in ["off", "fletcher2", "fletcher4", "sha256", "sha512", "skein", "edonr", "blake3"] {
        assert!(sums.contains_key(kind), "no block with {kind}: {sums:?}");
    }
    for kind in ["off", "lzjb", "gzip-1", "gzip-9", "zle", "lz4", "zstd"] {
        assert!(packers.contains_key(kind), "no block with {kind}: {packers:?}");
    }
}

#[test]
fn other_pools() {
    for name in [
        "basic",
        "bclone",
        "clones",
        "compat21",
        "crypt",
        "dedup",
        "fraglogsm",
        "ldnode",
        "legacyd",
    ] {
        let (sums, _) = census(name);
        assert!(sums.values().sum::<u64>() > 100, "{name}: {sums:?}");
    }
}
