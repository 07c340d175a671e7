use super::*;
use crate::compress::{ZstdHeader, decompress};
use proptest::prelude::*;

const KINDS: [(Compression, u8); 17] = [
    (Compression::Lzjb, 0),
    (Compression::Gzip1, 0),
    (Compression::Gzip2, 0),
    (Compression::Gzip3, 0),
    (Compression::Gzip4, 0),
    (Compression::Gzip5, 0),
    (Compression::Gzip6, 0),
    (Compression::Gzip7, 0),
    (Compression::Gzip8, 0),
    (Compression::Gzip9, 0),
    (Compression::Zle, 0),
    (Compression::Lz4, 0),
    (Compression::Zstd, 1),
    (Compression::Zstd, 19),
    (Compression::Zstd, LEVEL_DEFAULT),
    (Compression::Zstd, 103),
    (Compression::Zstd, 123),
];

/// Compresses with any limit down to the shortest that works, and back, padded as on disk.
fn round_trip(kind: Compression, level: u8, src: &[u8], limit: usize) -> Option<usize> {
    let mut packed = compress(kind, level, src, limit)?;
    let len = packed.len();
    assert!(len <= limit && len <= src.len(), "{} exceeds its limit", kind.name());
    packed.resize(len.next_multiple_of(512), 0);
    let mut back = vec![0xee; src.len()];
    decompress(kind, &packed, &mut back).unwrap();
    assert!(back == src, "{}: {} bytes come back different", kind.name(), src.len());
    Some(len)
}

/// Bytes of which about one in `odd` is not what can be predicted.
fn data(len: usize, seed: u64, odd: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let byte = |i: usize| {
        let r = next();
        if r % odd == 0 { (r >> 32) as u8 } else { (i / 97 % 7 * (i % 13)) as u8 }
    };
    (0..len).map(byte).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn everything_round_trips(
        len in 1usize..40_000, seed: u64, odd in 1u64..200, limit in 0usize..50_000,
    ) {
        let src = data(len, seed, odd);
        for (kind, level) in KINDS {
            let most = round_trip(kind, level, &src, len);
            let tight = round_trip(kind, level, &src, limit);
            prop_assert!(most.is_some() || tight.is_none());
        }
    }

    #[test]
    fn short_and_patterned(src in proptest::collection::vec(0u8..3, 0..600)) {
        for (kind, level) in KINDS {
            for limit in [0, 1, 4, 8, 9, 20, src.len()] {
                round_trip(kind, level, &src, limit);
            }
        }
    }

    #[test]
    fn zeros_are_found(len in 0usize..3000, at in 0usize..3000, byte in 1u8..) {
        let mut src = vec![0; len];
        prop_assert!(is_zero(&src));
        if let Some(b) = src.get_mut(at) {
            *b = byte;
            prop_assert!(!is_zero(&src));
        }
    }
}

#[test]
fn compressible_blocks_become_small() {
    let src = data(128 << 10, 5, 100);
    for (kind, level) in KINDS {
        let len = round_trip(kind, level, &src, src.len() * 7 / 8);
        // zle compresses zeros only, and the fastest zstd looks at few places.
        if kind != Compression::Zle && level != 123 {
            assert!(len.is_some_and(|n| n < src.len() / 2), "{} {level} {len:?}", kind.name());
        }
    }
    let mut sparse = vec![0; 128 << 10];
    sparse[70_000] = 1;
    let zeros = 70_000usize.div_ceil(192) + (sparse.len() - 70_001).div_ceil(192);
    assert_eq!(round_trip(Compression::Zle, 0, &sparse, sparse.len()), Some(zeros + 2));
}

#[test]
fn noise_is_not_compressed() {
    for len in [512, 4096, 128 << 10, 1 << 20] {
        let src = data(len, 9, 1);
        for (kind, level) in KINDS {
            assert_eq!(round_trip(kind, level, &src, len - len / 8), None, "{}", kind.name());
        }
    }
}

#[test]
fn all_levels_of_zstd() {
    let src = data(4096, 3, 50);
    for level in 0..=255u8 {
        let packed = compress(Compression::Zstd, level, &src, 4096);
        let valid = matches!(level, 1..=19 | 103..=123 | LEVEL_DEFAULT);
        assert_eq!(packed.is_some(), valid, "level {level}");
        let Some(packed) = packed else { continue };
        let (header, frame) = ZstdHeader::decode(&packed).unwrap();
        let expected = if level == LEVEL_DEFAULT { ZSTD_DEFAULT_LEVEL } else { level };
        assert_eq!((header.level, header.version), (expected, zstd_safe::version_number()));
        assert_eq!(frame.len() + 8, packed.len());
        round_trip(Compression::Zstd, level, &src, 4096);
    }
}

#[test]
fn no_compressor_no_result() {
    for kind in [Compression::Inherit, Compression::On, Compression::Off, Compression::Empty] {
        assert_eq!(compress(kind, 0, &[0; 4096], 4096), None);
    }
}

#[test]
fn limits() {
    let max = max_compressed_size;
    assert_eq!(max(Compression::Lz4, 128 << 10, 4096, 4096), 112 << 10);
    assert_eq!(max(Compression::Lz4, 4096, 512, 512), 3584);
    assert_eq!(max(Compression::Lz4, 4096, 4096, 4096), 112);
    assert_eq!(max(Compression::Lz4, 512, 512, 512), 112);
    assert_eq!(max(Compression::Zle, 4096, 4096, 4096), 3584);
    assert_eq!(max(Compression::Lz4, 4096, 0, 0), 3584);
}
