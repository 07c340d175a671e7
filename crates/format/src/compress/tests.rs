use proptest::prelude::*;

use super::*;
use zstd_safe::FrameFormat;

fn compressible(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (((i / 7) ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as u8)
        .collect()
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut c = libdeflater::Compressor::new(libdeflater::CompressionLvl::new(6).unwrap());
    let mut out = vec![0; c.zlib_compress_bound(data.len())];
    let n = c.zlib_compress(data, &mut out).unwrap();
    out.truncate(n);
    out
}

fn lz4(data: &[u8]) -> Vec<u8> {
    let packed = lz4::block::compress(data, None, false).unwrap();
    [&(packed.len() as u32).to_be_bytes()[..], &packed].concat()
}

fn zstd(data: &[u8]) -> Vec<u8> {
    let mut c = zstd_safe::CCtx::create();
    c.set_parameter(zstd_safe::CParameter::Format(FrameFormat::Magicless)).unwrap();
    c.set_parameter(zstd_safe::CParameter::ContentSizeFlag(false)).unwrap();
    let mut frame = vec![0; zstd_safe::compress_bound(data.len())];
    let n = c.compress2(&mut frame[..], data).unwrap();
    let head = [(n as u32).to_be_bytes(), [3, 0, 0x28, 0xa5]].concat();
    [&head, &frame[..n]].concat()
}

/// A plain lzjb compressor, greedy and slow.
fn lzjb(data: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (Vec::new(), 0);
    while at < data.len() {
        let flags = out.len();
        out.push(0);
        for bit in 0..8 {
            if at == data.len() {
                break;
            }
            let matching = |back: usize| {
                let run = data[at - back..].iter().zip(&data[at..]).take(66);
                run.take_while(|(a, b)| a == b).count()
            };
            let best = (1..=at.min(1023)).map(|b| (matching(b), b)).max_by_key(|m| m.0);
            match best {
                Some((len, back)) if len >= 3 => {
                    out[flags] |= 1 << bit;
                    out.extend((((len - 3) as u16) << 10 | back as u16).to_be_bytes());
                    at += len;
                }
                _ => {
                    out.push(data[at]);
                    at += 1;
                }
            }
        }
    }
    out
}

fn zle(data: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (Vec::new(), 0);
    while at < data.len() {
        let zeros = data[at..].iter().take(192).take_while(|b| **b == 0).count();
        if zeros > 0 {
            out.push((zeros + 63) as u8);
            at += zeros;
        } else {
            let n = data[at..].iter().take(64).take_while(|b| **b != 0).count();
            out.push((n - 1) as u8);
            out.extend(&data[at..at + n]);
            at += n;
        }
    }
    out
}

type Packer = fn(&[u8]) -> Vec<u8>;

const PACKERS: [(Compression, Packer); 5] = [
    (Compression::Lzjb, lzjb),
    (Compression::Gzip6, gzip),
    (Compression::Zle, zle),
    (Compression::Lz4, lz4),
    (Compression::Zstd, zstd),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn round_trip(len in 1..6000usize, seed: u64, padding in 0..600usize) {
        let data = compressible(len, seed);
        for (kind, pack) in PACKERS {
            let mut packed = pack(&data);
            packed.resize(packed.len() + padding, 0);
            let mut out = vec![0xee; len];
            decompress(kind, &packed, &mut out).unwrap();
            prop_assert_eq!(&out, &data, "{:?}", kind);
            // The wrong size is noticed, where the format can tell.
            if !matches!(kind, Compression::Lzjb | Compression::Zle) {
                prop_assert!(decompress(kind, &packed, &mut out[1..]).is_err(), "{:?}", kind);
                prop_assert!(decompress(kind, &packed, &mut vec![0; len + 1]).is_err(), "{:?}", kind);
            }
        }
    }

    #[test]
    fn damage_is_an_error_or_wrong_data(len in 1..4000usize, seed: u64, at: usize, flip in 1..=255u8, cut: usize) {
        let data = compressible(len, seed);
        for (kind, pack) in PACKERS {
            let mut packed = pack(&data);
            let n = packed.len();
            packed[at % n] ^= flip;
            let mut out = vec![0; len];
            let _ = decompress(kind, &packed, &mut out);
            let _ = decompress(kind, &packed[..cut % n], &mut out);
            prop_assert!(decompress(kind, &packed[..cut % n], &mut vec![0; 1 << 17]).is_err());
        }
    }

    #[test]
    fn any_bytes(src: Vec<u8>, len in 0..5000usize) {
        for n in 0..17 {
            let _ = decompress(Compression::from_u8(n).unwrap(), &src, &mut vec![0; len]);
        }
    }
}

#[test]
fn kinds() {
    for n in 0..17 {
        assert_eq!(Compression::from_u8(n).unwrap() as u8, n);
    }
    assert!(Compression::from_u8(17).is_err());
    let mut out = [1; 4];
    decompress(Compression::Empty, &[], &mut out).unwrap();
    assert_eq!(out, [0; 4]);
    decompress(Compression::Off, &[1, 2, 3, 4, 5], &mut out).unwrap();
    assert_eq!(out, [1, 2, 3, 4]);
    assert!(decompress(Compression::Off, &[1, 2, 3], &mut out).is_err());
    assert!(decompress(Compression::On, &[1, 2, 3, 4], &mut out).is_err());
}

/// Lengths of lz4 and zstd that point outside.
#[test]
fn lengths_that_lie() {
    for kind in [Compression::Lz4, Compression::Zstd] {
        for len in [9u32, 0x8000_0000, u32::MAX] {
            let src = [&len.to_be_bytes()[..], &[3, 0, 0x28, 0xa5, 0, 0, 0, 0]].concat();
            assert!(decompress(kind, &src, &mut [0; 512]).is_err());
        }
    }
}

#[test]
fn zstd_header_layouts() {
    let header =
        |tail: [u8; 4]| ZstdHeader::decode(&[&[0, 0, 0, 0], &tail[..]].concat()).map(|h| h.0);
    let expected = ZstdHeader { size: 0, version: 10405, level: 3 };
    assert_eq!(header([3, 0, 0x28, 0xa5]), Ok(expected), "little-endian bit field");
    assert_eq!(header([0, 0x28, 0xa5, 3]), Ok(expected), "big-endian bit field");
    for level in [0, 20, 101, 102, 124, 255] {
        assert!(header([level, 0, 0x28, 0xa5]).is_err());
    }
    assert_eq!(header([123, 0, 0x28, 0xa5]).map(|h| h.level), Ok(123));
}
