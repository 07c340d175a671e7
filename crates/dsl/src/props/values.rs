//! Value names of the index properties with the numbers that stand for them on disk
//! (`zprop_index_t`).
//!
//! Where several names share a number, the first one is shown; the others are accepted as input.

/// Names and numbers.
pub type Names = &'static [(&'static str, u64)];

/// `zio_compress` of zstd; the level is kept in the bits above the function's seven.
const ZSTD: u64 = 16;
/// Number of the first negative ("fast") zstd level; the levels before are 1 to 19, and a gap.
const FAST_1: u64 = 103;
/// Bit that asks for a byte-by-byte comparison of deduplicated blocks.
const VERIFY: u64 = 1 << 8;

const fn zstd(level: u64) -> u64 {
    ZSTD | level << 7
}

const fn fast(nth: u64) -> u64 {
    zstd(FAST_1 - 1 + nth)
}

pub(super) const BOOLEAN: Names = &[("off", 0), ("on", 1)];
pub(super) const CHECKSUM: Names = &[
    ("on", 1),
    ("off", 2),
    ("fletcher2", 6),
    ("fletcher4", 7),
    ("sha256", 8),
    ("noparity", 10),
    ("sha512", 11),
    ("skein", 12),
    ("edonr", 13),
    ("blake3", 14),
];
pub(super) const DEDUP: Names = &[
    ("on", 1),
    ("off", 2),
    ("verify", 1 | VERIFY),
    ("sha256", 8),
    ("sha256,verify", 8 | VERIFY),
    ("sha512", 11),
    ("sha512,verify", 11 | VERIFY),
    ("skein", 12),
    ("skein,verify", 12 | VERIFY),
    ("edonr,verify", 13 | VERIFY),
    ("blake3", 14),
    ("blake3,verify", 14 | VERIFY),
];
pub(super) const COMPRESSION: Names = &[
    ("on", 1),
    ("off", 2),
    ("lzjb", 3),
    ("gzip", 10),
    ("gzip-1", 5),
    ("gzip-2", 6),
    ("gzip-3", 7),
    ("gzip-4", 8),
    ("gzip-5", 9),
    ("gzip-6", 10),
    ("gzip-7", 11),
    ("gzip-8", 12),
    ("gzip-9", 13),
    ("zle", 14),
    ("lz4", 15),
    ("zstd", ZSTD),
    ("zstd-fast", fast(1)),
    ("zstd-1", zstd(1)),
    ("zstd-2", zstd(2)),
    ("zstd-3", zstd(3)),
    ("zstd-4", zstd(4)),
    ("zstd-5", zstd(5)),
    ("zstd-6", zstd(6)),
    ("zstd-7", zstd(7)),
    ("zstd-8", zstd(8)),
    ("zstd-9", zstd(9)),
    ("zstd-10", zstd(10)),
    ("zstd-11", zstd(11)),
    ("zstd-12", zstd(12)),
    ("zstd-13", zstd(13)),
    ("zstd-14", zstd(14)),
    ("zstd-15", zstd(15)),
    ("zstd-16", zstd(16)),
    ("zstd-17", zstd(17)),
    ("zstd-18", zstd(18)),
    ("zstd-19", zstd(19)),
    ("zstd-fast-1", fast(1)),
    ("zstd-fast-2", fast(2)),
    ("zstd-fast-3", fast(3)),
    ("zstd-fast-4", fast(4)),
    ("zstd-fast-5", fast(5)),
    ("zstd-fast-6", fast(6)),
    ("zstd-fast-7", fast(7)),
    ("zstd-fast-8", fast(8)),
    ("zstd-fast-9", fast(9)),
    ("zstd-fast-10", fast(10)),
    ("zstd-fast-20", fast(11)),
    ("zstd-fast-30", fast(12)),
    ("zstd-fast-40", fast(13)),
    ("zstd-fast-50", fast(14)),
    ("zstd-fast-60", fast(15)),
    ("zstd-fast-70", fast(16)),
    ("zstd-fast-80", fast(17)),
    ("zstd-fast-90", fast(18)),
    ("zstd-fast-100", fast(19)),
    ("zstd-fast-500", fast(20)),
    ("zstd-fast-1000", fast(21)),
];
pub(super) const ENCRYPTION: Names = &[
    ("on", 1),
    ("off", 2),
    ("aes-128-ccm", 3),
    ("aes-192-ccm", 4),
    ("aes-256-ccm", 5),
    ("aes-128-gcm", 6),
    ("aes-192-gcm", 7),
    ("aes-256-gcm", 8),
];
pub(super) const KEYFORMAT: Names = &[("none", 0), ("raw", 1), ("hex", 2), ("passphrase", 3)];
pub(super) const KEYSTATUS: Names = &[("none", 0), ("unavailable", 1), ("available", 2)];
pub(super) const SNAPDIR: Names = &[("hidden", 0), ("visible", 1), ("disabled", 2)];
pub(super) const SNAPDEV: Names = &[("hidden", 0), ("visible", 1)];
pub(super) const ACLMODE: Names =
    &[("discard", 0), ("groupmask", 2), ("passthrough", 3), ("restricted", 4)];
pub(super) const ACLTYPE: Names =
    &[("off", 0), ("posix", 1), ("nfsv4", 2), ("disabled", 0), ("noacl", 0), ("posixacl", 1)];
pub(super) const ACLINHERIT: Names = &[
    ("discard", 0),
    ("noallow", 1),
    ("restricted", 4),
    ("passthrough", 3),
    ("secure", 4),
    ("passthrough-x", 5),
];
pub(super) const CASE: Names = &[("sensitive", 0), ("insensitive", 1), ("mixed", 2)];
pub(super) const COPIES: Names = &[("1", 1), ("2", 2), ("3", 3)];
/// The numbers are sets of Unicode operations: canonical decomposition 16, compatibility
/// decomposition 32, canonical composition 64.
pub(super) const NORMALIZATION: Names =
    &[("none", 0), ("formD", 16), ("formKC", 96), ("formC", 80), ("formKD", 32)];
pub(super) const VERSION: Names =
    &[("1", 1), ("2", 2), ("3", 3), ("4", 4), ("5", 5), ("current", 5)];
pub(super) const LOGBIAS: Names = &[("latency", 0), ("throughput", 1)];
pub(super) const CANMOUNT: Names = &[("off", 0), ("on", 1), ("noauto", 2)];
/// Also the values of `prefetch`.
pub(super) const CACHE: Names = &[("none", 0), ("metadata", 1), ("all", 2)];
pub(super) const SYNC: Names = &[("standard", 0), ("always", 1), ("disabled", 2)];
pub(super) const XATTR: Names = &[("off", 0), ("sa", 2), ("on", 2), ("dir", 1)];
pub(super) const DNODESIZE: Names = &[
    ("legacy", 0),
    ("auto", 1),
    ("1k", 1024),
    ("2k", 2048),
    ("4k", 4096),
    ("8k", 8192),
    ("16k", 16384),
];
pub(super) const REDUNDANT_METADATA: Names = &[("all", 0), ("most", 1), ("some", 2), ("none", 3)];
pub(super) const VOLMODE: Names =
    &[("default", 0), ("full", 1), ("geom", 1), ("dev", 2), ("none", 3)];
pub(super) const DIRECT: Names = &[("disabled", 0), ("standard", 1), ("always", 2)];
