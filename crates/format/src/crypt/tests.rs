//! Vectors of the standards, and what is changed is found.

use super::*;
use crate::ByteOrder;
use crate::abd::Abd;
use crate::blkptr::BlockPointer;
use crate::dmu::DmuType;
use crate::zil::kind::{TX_CLONE_RANGE, TX_CREATE, TX_WRITE};
use hmac::Hmac;

fn hex(digits: &str) -> Vec<u8> {
    let digit = |b: &u8| char::from(*b).to_digit(16).unwrap() as u8;
    digits.as_bytes().chunks(2).map(|pair| digit(&pair[0]) << 4 | digit(&pair[1])).collect()
}

fn seal(suite: Suite, key: &[u8], iv: &[u8], aad: &[u8], text: &[u8]) -> Vec<u8> {
    let (cipher, iv) = (Cipher::new(suite, key).unwrap(), iv.try_into().unwrap());
    let mut data = text.to_vec();
    let mac = cipher.seal(&iv, aad, &mut data).unwrap();
    let sealed = [data.clone(), mac.to_vec()].concat();
    cipher.open(&iv, aad, &mut data, &mac).unwrap();
    assert_eq!(data, text);
    sealed
}

/// Test cases 2, 8 and 14 of the specification of GCM.
#[test]
fn gcm_is_that_of_its_specification() {
    let cases = [
        (Suite::Aes128Gcm, "0388dace60b6a392f328c2b971b2fe78ab6e47d42cec13bdf53a67b21257bddf"),
        (Suite::Aes192Gcm, "98e7247c07f0fe411c267e4384b0f6002ff58d80033927ab8ef4d4587514f0fb"),
        (Suite::Aes256Gcm, "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"),
    ];
    for (suite, expected) in cases {
        let key = vec![0; suite.key_len()];
        assert_eq!(seal(suite, &key, &[0; 12], &[], &[0; 16]), hex(expected), "{suite:?}");
    }
}

/// Example 3 of NIST SP 800-38C is of this key, nonce and text; its MAC has 8 bytes, so that other MACs, and those of the
/// longer keys, are OpenSSL's.
#[test]
fn ccm_is_that_of_its_specification() {
    let (text, iv): (Vec<u8>, Vec<u8>) = ((0x20..0x38).collect(), (0x10..0x1c).collect());
    let (key, aad): (Vec<u8>, Vec<u8>) = ((0x40..0x60).collect(), (0..0x14).collect());
    let cases = [
        (
            Suite::Aes128Ccm,
            "e3b201a9f5b71a7a9b1ceaeccd97e70b6176aad9a4428aa5c87ae488918de93f17dd3e4934347f44",
        ),
        (
            Suite::Aes192Ccm,
            "8081316fd89624d62ce7637fb94995b6631c50d61586de010ec10572fecd75e23ac36b5dd335eaca",
        ),
        (
            Suite::Aes256Ccm,
            "04f883aeb3bd0730eaf50bb6de4fa2212034e4e41b0e75e59bba3f3a107f3239bd63902923f80371",
        ),
    ];
    for (suite, expected) in cases {
        let key = &key[..suite.key_len()];
        assert_eq!(seal(suite, key, &iv, &aad, &text), hex(expected), "{suite:?}");
    }
}

#[test]
fn ccm_takes_no_block_of_16_mib() {
    for suite in [Suite::Aes128Ccm, Suite::Aes192Ccm, Suite::Aes256Ccm] {
        assert_eq!(suite.max_block(), 8 << 20);
        let cipher = Cipher::new(suite, &vec![0; suite.key_len()]).unwrap();
        let mut data = vec![0; 16 << 20];
        let sealed = cipher.seal(&[0; IV_LEN], &[], &mut data);
        assert_eq!(sealed.unwrap_err(), CryptError::TooLong(16 << 20), "{suite:?}");
    }
    assert_eq!(Suite::Aes256Gcm.max_block(), crate::MAX_BLOCK);
}

/// RFC 6070.
#[test]
fn passphrases_become_keys_by_pbkdf2() {
    let derive = |phrase: &[u8], salt: &[u8], rounds| {
        let mut out = [0; 20];
        pbkdf2::pbkdf2::<Hmac<sha1::Sha1>>(phrase, salt, rounds, &mut out).unwrap();
        out.to_vec()
    };
    let (two, many) = (derive(b"password", b"salt", 2), derive(b"password", b"salt", 4096));
    assert_eq!(two, hex("ea6c014dc72d6f8ccd1ed92ace1d41f0d8de8957"));
    assert_eq!(many, hex("4b007901b765489abead49d926f721d065a429c1"));
    assert!(WrappingKey::from_passphrase(b"password", 1, 0).is_err());
    assert!(WrappingKey::from_passphrase(b"password", 1, 1 << 32).is_err());
}

#[test]
fn keys_in_hexadecimal_have_64_digits() {
    assert!(WrappingKey::from_hex(&[b'a'; 64]).is_ok());
    assert!(WrappingKey::from_hex(&[b'F'; 64]).is_ok());
    for bad in [&[b'a'; 63][..], &[b'a'; 65], &[b'g'; 64], &[0xff; 64], b""] {
        assert!(WrappingKey::from_hex(bad).is_err());
    }
    assert!(WrappingKey::from_raw(&[0; 31]).is_err());
}

/// A key whose bytes are those of the vectors above.
fn key(suite: Suite) -> DatasetKey {
    let bytes: Vec<u8> = (0x40..0x60).collect();
    let all = [&bytes[..suite.key_len()], &[7; HMAC_KEY_LEN]].concat();
    DatasetKey::new(suite, KEY_VERSION, 99, Secret::copy_of(&all).unwrap())
}

/// HKDF-SHA512 without salt, as OpenSSL computes it: the salt of a block is its "info".
#[test]
fn keys_of_blocks_are_derived_by_hkdf() {
    let derived = hex("1834bcc2668705fc1a17797f0781e83a1d97b0174cbce68242e8a8c8bf4c2cdf");
    let expected = seal(Suite::Aes256Gcm, &derived, &[3; 12], &[], b"text");
    let cipher = key(Suite::Aes256Gcm).cipher(&[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
    let mut data = b"text".to_vec();
    let mac = cipher.seal(&[3; 12], &[], &mut data).unwrap();
    assert_eq!([data, mac.to_vec()].concat(), expected);
}

#[test]
fn a_wrapped_key_opens_with_its_own_key_only() {
    for suite in Suite::ALL {
        let (right, wrong) =
            (WrappingKey::from_raw(&[1; 32]).unwrap(), WrappingKey::from_raw(&[2; 32]).unwrap());
        let wrapped = right.wrap(&key(suite), [5; 12]).unwrap();
        let unwrapped = right.unwrap(&wrapped).unwrap();
        assert_eq!(unwrapped.master(), key(suite).master());
        assert_eq!(unwrapped.hmac_key(), key(suite).hmac_key());
        assert_eq!(wrong.unwrap(&wrapped).unwrap_err(), CryptError::Mac);
        let changes: [fn(&mut WrappedKey); 7] = [
            |w| w.guid ^= 1,
            |w| w.version = 0,
            |w| w.iv[3] ^= 1,
            |w| w.mac[15] ^= 1,
            |w| w.master[0] ^= 0x80,
            |w| w.hmac[63] ^= 1,
            |w| w.suite = if w.suite as u64 == 8 { Suite::Aes128Gcm } else { Suite::Aes256Gcm },
        ];
        for (nth, change) in changes.iter().enumerate() {
            let mut changed = wrapped.clone();
            change(&mut changed);
            assert_eq!(right.unwrap(&changed).unwrap_err(), CryptError::Mac, "{suite:?} {nth}");
        }
    }
}

#[test]
fn secrets_are_not_shown() {
    let secret = Secret::copy_of(b"hunter2").unwrap();
    assert_eq!(format!("{secret:?}"), "Secret(7 bytes)");
    let shown = format!("{:?} {:?}", WrappingKey::from_raw(&[0xab; 32]), key(Suite::Aes128Ccm));
    assert!(
        !shown.contains("171") && !shown.contains("ab, ") && !shown.contains("64, "),
        "{shown}"
    );
}

/// A pointer to an encrypted block, little-endian, of `len` bytes.
fn pointer(kind: DmuType, len: usize, params: &BlockParams, mac: &Mac) -> BlockPointer {
    let mut bp = BlockPointer([0; 16]);
    let sectors = (len as u64 >> 9) - 1;
    bp.0[0] = 1;
    bp.0[1] = 1;
    bp.0[6] = 1 << 63 | 1 << 61 | u64::from(kind.0) << 48 | 2 << 32 | sectors << 16 | sectors;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let last = u32::from_le_bytes(params.iv[8..].try_into().unwrap());
    (bp.0[4], bp.0[5]) = (word(&params.salt), word(&params.iv[..8]));
    (bp.0[14], bp.0[15]) = (word(&mac[..8]), word(&mac[8..]));
    bp.0[11] = u64::from(last) << 32 | 5;
    bp
}

const PARAMS: BlockParams = BlockParams { salt: *b"saltsalt", iv: *b"twelve bytes" };

/// Changes each byte of a block that is protected, and all that its pointer says of it.
fn tamper(kind: DmuType, plain: &[u8], unprotected: &[std::ops::Range<usize>]) {
    let key = key(Suite::Aes256Gcm);
    let mut data = plain.to_vec();
    let mac = key.encrypt(kind, &PARAMS, &mut data).unwrap();
    if kind == DmuType::INTENT_LOG {
        data[168..184].copy_from_slice(&mac);
    }
    let bp = pointer(kind, plain.len(), &PARAMS, &mac);
    assert_eq!((BlockParams::of(&bp), bp.fill()), (PARAMS, 5));
    let opened = key.decrypt(&bp, &Abd::copy_of(&data)).unwrap().to_vec();
    for (at, (found, expected)) in opened.iter().zip(plain).enumerate() {
        assert!(found == expected || (kind == DmuType::INTENT_LOG && (168..184).contains(&at)));
    }
    for at in (0..data.len()).filter(|at| !unprotected.iter().any(|r| r.contains(at))) {
        let mut changed = data.clone();
        changed[at] ^= 1;
        assert!(key.decrypt(&bp, &Abd::copy_of(&changed)).is_err(), "{kind:?} byte {at}");
    }
    let in_pointer = match kind {
        DmuType::INTENT_LOG => vec![4, 5],
        _ => vec![4, 5, 14, 15],
    };
    for word in in_pointer {
        let mut changed = bp;
        changed.0[word] ^= 1 << 17;
        assert!(key.decrypt(&changed, &Abd::copy_of(&data)).is_err(), "{kind:?} word {word}");
    }
    let mut changed = bp;
    changed.0[11] ^= 1 << 40;
    assert!(key.decrypt(&changed, &Abd::copy_of(&data)).is_err());
}

#[test]
fn a_changed_block_is_an_error() {
    let plain: Vec<u8> = (0..512).map(|i| (i * 7) as u8).collect();
    tamper(DmuType::PLAIN_FILE_CONTENTS, &plain, &[]);
}

#[test]
fn a_changed_dnode_is_an_error() {
    let mut plain = vec![0; 2048];
    // A dnode of two slots with one pointer, a spill block and a bonus buffer that is encrypted.
    plain[..13].copy_from_slice(&[20, 17, 1, 1, 44, 0, 0, 4, 1, 0, 16, 0, 1]);
    plain[192..896].iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
    // One of one slot whose bonus buffer is not; and a free slot.
    plain[1024..1037].copy_from_slice(&[20, 17, 1, 1, 17, 0, 0, 0, 1, 0, 16, 0, 0]);
    plain[1216..1536].iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
    // A pointer to a block.
    plain[64] = 1;
    plain[72] = 1;
    let hole = |at: usize| [at..at + 48, at + 56..at + 112];
    let unprotected = [
        // Space used, and flags of one pool. Of pointers: all but properties and MAC; of holes the properties, too.
        [24..32, 1048..1056, 1560..1568].to_vec(),
        hole(64).to_vec(),
        hole(896).to_vec(),
        hole(1088).to_vec(),
        [7..8, 1031..1032, 1543..1544, 117..118, 944..952, 1136..1144].to_vec(),
    ]
    .concat();
    let mut encrypted = plain.clone();
    key(Suite::Aes128Gcm).encrypt(DmuType::DNODE, &PARAMS, &mut encrypted).unwrap();
    assert_ne!(encrypted[192..896], plain[192..896]);
    assert_eq!((&encrypted[..192], &encrypted[896..]), (&plain[..192], &plain[896..]));
    tamper(DmuType::DNODE, &plain, &unprotected);
}

#[test]
fn a_changed_log_block_is_an_error() {
    let mut plain = vec![0; 1024];
    let mut at = 184;
    for (of, len) in [(TX_CREATE, 96), (TX_WRITE, 200), (TX_WRITE, 192), (TX_CLONE_RANGE, 200)] {
        plain[at..at + len].iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
        plain[at..at + 8].copy_from_slice(&u64::to_le_bytes(of));
        plain[at + 8..at + 16].copy_from_slice(&(len as u64).to_le_bytes());
        at += len;
    }
    plain[136..144].copy_from_slice(&(at as u64).to_le_bytes());
    let mut encrypted = plain.clone();
    key(Suite::Aes128Gcm).encrypt(DmuType::INTENT_LOG, &PARAMS, &mut encrypted).unwrap();
    // Plain are the headers of records and pointers.
    let plain_of_write = 184 + 96 + 64;
    assert_eq!(encrypted[184..216], plain[184..216]);
    assert_ne!(encrypted[216..280], plain[216..280]);
    assert_eq!(
        encrypted[plain_of_write..plain_of_write + 128],
        plain[plain_of_write..plain_of_write + 128]
    );
    assert_ne!(encrypted[472..480], plain[472..480]);
    // The checksum, which the block's own checksum is, and what no record uses.
    tamper(DmuType::INTENT_LOG, &plain, &[144..168, at..1024]);
}

/// Whatever the bytes are, the parts of a block lie in it.
#[test]
fn parts_of_hostile_blocks_are_errors() {
    let key = key(Suite::Aes128Ccm);
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u8
    };
    for round in 0..2000 {
        let mut block: Vec<u8> = (0..1024).map(|_| random()).collect();
        if round % 2 == 0 {
            block[136..144].copy_from_slice(&[0, 4, 0, 0, 0, 0, 0, 0]);
            block[192..200].copy_from_slice(&[random() & 63, 0, 0, 0, 0, 0, 0, 0]);
            (block[3], block[12]) = (block[3] & 3, block[12] & 1);
        }
        for kind in [DmuType::DNODE, DmuType::INTENT_LOG, DmuType::PLAIN_FILE_CONTENTS] {
            let mut bp = pointer(kind, 1024, &PARAMS, &[0; 16]);
            assert!(key.decrypt(&bp, &Abd::copy_of(&block)).is_err());
            bp.0[6] &= !(1 << 63);
            assert!(key.decrypt(&bp, &Abd::copy_of(&block)).is_err());
        }
        assert!(check_objset(&key, &block, ByteOrder::Big).is_err());
        let bp = pointer(DmuType::DNODE, 1024, &PARAMS, &[0; 16]);
        assert!(check_indirect(&bp, &block).is_err());
    }
}
