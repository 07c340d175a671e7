use proptest::prelude::*;

use super::*;

const NO_SALT: [u8; 32] = [0; 32];

fn hex(s: &str) -> Vec<u8> {
    let digits: Vec<u8> = s.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits
        .chunks(2)
        .map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap())
        .collect()
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// `data` as a gang of pieces that end at `cuts`.
fn pieces(data: &[u8], cuts: &[usize]) -> Abd {
    let mut cuts: Vec<usize> = cuts.iter().map(|c| c % (data.len() + 1)).collect();
    cuts.extend([0, data.len()]);
    cuts.sort_unstable();
    Abd::gang(cuts.windows(2).map(|w| Abd::copy_of(&data[w[0]..w[1]])).collect())
}

fn simple_fletcher4(data: &[u8], order: ByteOrder) -> [u64; 4] {
    let mut sums = [0; 4];
    match order {
        ByteOrder::Little => fletcher::sum_words(&mut sums, data, u32::from_le_bytes),
        ByteOrder::Big => fletcher::sum_words(&mut sums, data, u32::from_be_bytes),
    }
    sums
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn fletcher4_is_the_simple_loop(
        words in 0..5000usize, seed: u64, big: bool, cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let data = pattern(words * 4, seed);
        let order = if big { ByteOrder::Big } else { ByteOrder::Little };
        let sums = compute(Checksum::Fletcher4, &pieces(&data, &cuts), order, &Salt::new(NO_SALT));
        prop_assert_eq!(sums.unwrap(), simple_fletcher4(&data, order));
    }

    #[test]
    fn chunks_do_not_matter(
        pairs in 0..500usize, seed: u64, kind in 6..15u8, cuts in prop::collection::vec(any::<usize>(), 0..8),
    ) {
        let kind = Checksum::from_u8(kind).unwrap();
        prop_assume!(!kind.is_embedded());
        let data = pattern(pairs * 16, seed);
        let salt = Salt::new([seed as u8; 32]);
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let whole = compute(kind, &Abd::copy_of(&data), order, &salt).unwrap();
            prop_assert_eq!(compute(kind, &pieces(&data, &cuts), order, &salt).unwrap(), whole);
        }
    }

    #[test]
    fn embedded_checks_any_bytes(data: Vec<u8>, kind in 0..15u8) {
        let _ = verify_embedded(Checksum::from_u8(kind).unwrap(), &data, [1, 2, 3, 4]);
    }
}

/// All-ones data makes every sum wrap; long enough for several runs of the vector code.
#[test]
fn fletcher4_wraps() {
    let data = vec![0xff; 40 << 20];
    let sums = compute(
        Checksum::Fletcher4,
        &Abd::from_vec(data.clone()),
        ByteOrder::Little,
        &Salt::new(NO_SALT),
    );
    assert_eq!(sums.unwrap(), simple_fletcher4(&data, ByteOrder::Little));
}

#[test]
fn fletcher2_by_hand() {
    let data: Vec<u8> = [1u64, 10, 2, 20, 3, 30].iter().flat_map(|w| w.to_be_bytes()).collect();
    let sums = |order| {
        compute(Checksum::Fletcher2, &Abd::copy_of(&data), order, &Salt::new(NO_SALT)).unwrap()
    };
    assert_eq!(sums(ByteOrder::Big), [6, 60, 1 + 3 + 6, 10 + 30 + 60]);
    let swapped = [6u64 << 56, 60 << 56, 10 << 56, 100 << 56];
    assert_eq!(sums(ByteOrder::Little), swapped);
}

/// Skein 1.3, appendix C: Skein-512-512 of one byte 0xff and of 64 bytes counting down from it.
#[test]
fn skein_published_vectors() {
    let mut one = Skein512::new(&[], 512);
    one.update(&[0xff]);
    let expected = "71b7bce6fe6452227b9ced6014249e5bf9a9754c3ad618ccc4e0aae16b316cc8\
                    ca698d864307ed3e80b6ef1570812ac5272dc409b5a012df2a579102f340617a";
    assert_eq!(one.finish().to_vec(), hex(expected));
    let mut block = Skein512::new(&[], 512);
    let message: Vec<u8> = (0xc0..=0xffu8).rev().collect();
    block.update(&message);
    let expected = "45863ba3be0c4dfc27e75d358496f4ac9a736a505d9313b42b2f5eada79fc17f\
                    63861e947afb1d056aa199575ad3f8c9a3cc1780b5e5fa4cae050e989876625b";
    assert_eq!(block.finish().to_vec(), hex(expected));
}

#[test]
fn kinds_that_do_not_check_from_outside() {
    let data = Abd::from_vec(vec![0; 512]);
    for kind in [Checksum::Inherit, Checksum::On, Checksum::Label, Checksum::Zilog2] {
        assert!(compute(kind, &data, ByteOrder::Little, &Salt::new(NO_SALT)).is_err());
    }
    assert!(Checksum::from_u8(15).is_err());
    for n in 0..15 {
        assert_eq!(Checksum::from_u8(n).unwrap() as u8, n);
    }
    let odd = Abd::from_vec(vec![0; 511]);
    assert!(compute(Checksum::Fletcher4, &odd, ByteOrder::Little, &Salt::new(NO_SALT)).is_err());
}

/// A block with its checksum, as a writer of `order` makes it.
fn seal(kind: Checksum, len: usize, verifier: [u64; 4], order: ByteOrder) -> Vec<u8> {
    let word = |w: u64| match order {
        ByteOrder::Little => w.to_le_bytes(),
        ByteOrder::Big => w.to_be_bytes(),
    };
    let mut block = pattern(len, 3);
    let (at, checked) = if kind == Checksum::Zilog2 {
        block[136..144].copy_from_slice(&word(5000));
        (144, 8192)
    } else {
        (len - 40, len)
    };
    block[at..at + 8].copy_from_slice(&word(EMBEDDED_MAGIC));
    for (i, w) in verifier.iter().enumerate() {
        block[at + 8 + 8 * i..at + 16 + 8 * i].copy_from_slice(&word(*w));
    }
    let outside = match kind {
        Checksum::Zilog => Checksum::Fletcher2,
        Checksum::Zilog2 => Checksum::Fletcher4,
        _ => Checksum::Sha256,
    };
    let data = Abd::copy_of(&block[..checked]);
    let sums = compute(outside, &data, order, &Salt::new(NO_SALT)).unwrap();
    for (i, w) in sums.iter().enumerate() {
        block[at + 8 + 8 * i..at + 16 + 8 * i].copy_from_slice(&word(*w));
    }
    block
}

#[test]
fn embedded_checksums_hold_and_break() {
    let verifier = [7, 8, 9, 10];
    for kind in [Checksum::Label, Checksum::GangHeader, Checksum::Zilog, Checksum::Zilog2] {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let block = seal(kind, 12288, verifier, order);
            assert_eq!(verify_embedded(kind, &block, verifier), Ok(Some(order)), "{kind:?}");
            assert_eq!(verify_embedded(kind, &block, [7, 8, 9, 11]), Ok(None), "{kind:?}");
            for at in [0, 100, 140, 150, 160, 8191] {
                let mut bad = block.clone();
                bad[at] ^= 1;
                assert_eq!(verify_embedded(kind, &bad, verifier), Ok(None), "{kind:?} at {at}");
            }
            // What lies behind the used part of an intent log block is not checked.
            let mut rest = block.clone();
            rest[8192] ^= 1;
            let intact = kind == Checksum::Zilog2;
            assert_eq!(verify_embedded(kind, &rest, verifier).unwrap().is_some(), intact);
            assert!(verify_embedded(kind, &block[..39], verifier).is_err());
        }
    }
    assert!(verify_embedded(Checksum::Sha256, &[0; 512], verifier).is_err());
}
