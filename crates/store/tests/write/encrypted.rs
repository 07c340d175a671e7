//! Blocks of encrypted datasets, written and read back: whole, divided, and written in place.

use super::common::{at, pattern};
use super::{DATA, Rig, props, request, shred};
use cenote_format::blkptr::BlockPointer;
use cenote_format::checksum::{Checksum, verify_embedded, verify_embedded_mac};
use cenote_format::compress::Compression;
use cenote_format::crypt::{BlockParams, DatasetKey, HMAC_KEY_LEN, Secret, Suite};
use cenote_format::dmu::DmuType;
use cenote_format::encode::blkptr::encode_gang_header;
use cenote_store::keys::LoadedKey;
use cenote_store::write::{WriteProps, WriteRequest};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A rig whose object set 0 has a key, and that key.
fn encrypted_rig(suite: Suite) -> (Rig, Arc<LoadedKey>) {
    let rig = Rig::new(&[9], 4 << 20);
    let secret = Secret::copy_of(&pattern(3, suite.key_len() + HMAC_KEY_LEN)).unwrap();
    let key = LoadedKey::new(1, DatasetKey::of_random(suite, 1, secret).unwrap());
    let next = AtomicU64::new(1);
    rig.pool.store.keys().set_random(Arc::new(move || Ok(next.fetch_add(1, Ordering::Relaxed))));
    rig.pool.store.keys().map(at(0).objset, &key);
    (rig, key)
}

#[test]
fn blocks_of_encrypted_datasets_are_protected() {
    let kinds = [(DATA, 0), (DmuType::SA, 0), (DmuType::MASTER_NODE, 0), (DmuType::DNODE, 1)];
    for suite in Suite::ALL {
        let (rig, key) = encrypted_rig(suite);
        for (kind, level) in kinds {
            for (compression, copies) in [(Compression::Off, 1), (Compression::Lz4, 3)] {
                for checksum in [Checksum::Fletcher4, Checksum::Sha256] {
                    let of = WriteProps { object_type: kind, level, compression, ..props() };
                    let of = WriteProps { checksum, copies, gang_copies: 3, embed: true, ..of };
                    let of = of.protected_by(Some(key.clone()));
                    let data = [pattern(1, 4096), vec![7; 4096]].concat();
                    let bp = rig.write(5, request(data.clone(), of.clone())).unwrap();
                    assert!(bp.uses_crypt() && !bp.is_embedded());
                    let hidden = bp.is_encrypted();
                    assert_eq!(hidden, level == 0 && kind.is_encrypted());
                    assert!(!kind.is_encrypted() || bp.dvas().count() <= 2);
                    assert_eq!(bp.fill(), 1);
                    assert_eq!(rig.read(&bp), data);
                    let again = rig.write(5, request(data.clone(), of.clone())).unwrap();
                    let (one, other) = (BlockParams::of(&bp), BlockParams::of(&again));
                    assert!(!hidden || one.salt == other.salt && one.iv != other.iv);
                    let mut zeros = request(vec![0; 4096], of);
                    zeros.previous = bp;
                    let hole = rig.write(6, zeros).unwrap();
                    assert!(
                        compression == Compression::Off || hole.is_hole() && !hole.uses_crypt()
                    );
                }
            }
        }
    }
}

/// The gang header of a protected block has half a checksum, as OpenZFS writes it; one with all of it is read as well.
#[test]
fn protected_blocks_without_a_segment_are_divided() {
    for (kind, level) in [(DATA, 0), (DmuType::DNODE, 1)] {
        let (rig, key) = encrypted_rig(Suite::Aes256Gcm);
        let txg = shred(&rig, 4096, 2);
        let of = WriteProps { object_type: kind, level, gang_copies: 2, ..props() };
        let of = of.protected_by(Some(key.clone()));
        let mut previous = BlockPointer::HOLE;
        // The second time it is written in place.
        for (seed, pass) in [(9, 1), (10, 2)] {
            let data = pattern(seed, 16 << 10);
            let again = WriteRequest { previous, pass, ..request(data.clone(), of.clone()) };
            let bp = rig.write(txg, again).unwrap();
            assert!(bp.is_gang() && bp.uses_crypt(), "{kind:?}");
            assert!(previous.is_hole() || bp.dva(0) == previous.dva(0));
            assert_eq!(rig.read(&bp), data);
            let copies = rig.pool.store.verify_all_copies(&bp, at(0));
            assert!(copies.iter().all(Result::is_ok), "{copies:?}");
            let first = bp.dva(0).unwrap();
            let seen = rig.pool.bytes(0, first.offset, 512);
            let verifier = [0, first.offset, bp.physical_birth(), 0];
            let gang = Checksum::GangHeader;
            let is_whole = verify_embedded(gang, &seen, verifier).unwrap().is_some();
            let is_half = verify_embedded_mac(gang, &seen, verifier).unwrap().is_some();
            assert!(is_half && !is_whole, "{kind:?}");
            previous = bp;
        }
        let parts = rig.pool.store.gang_children(&previous, at(0)).unwrap();
        let first = previous.dva(0).unwrap();
        let txg = previous.physical_birth();
        let whole = encode_gang_header(&parts, 512, (&first, txg), false).unwrap();
        rig.pool.write(0, first.offset, &whole);
        rig.pool.store.drop_caches();
        assert_eq!(rig.read(&previous), pattern(10, 16 << 10));
    }
}

#[test]
fn an_encrypted_block_that_is_written_in_place_gets_another_vector() {
    let (rig, key) = encrypted_rig(Suite::Aes256Gcm);
    let of = |n| request(pattern(n, 8192), props().protected_by(Some(key.clone())));
    let first = rig.writer.write_behind(5, &[of(1)]).pop().unwrap().unwrap();
    let mut seen = vec![BlockParams::of(&first).iv];
    let mut previous = first;
    for n in 2..6 {
        let again = WriteRequest { previous, pass: 9, ..of(n) };
        previous = rig.writer.write_behind(5, &[again]).pop().unwrap().unwrap();
        assert!(previous.dvas().eq(first.dvas()));
        assert_eq!(rig.pool.read(&previous).unwrap(), pattern(n, 8192));
        if n == 3 {
            rig.writer.drain().unwrap();
        }
        let iv = BlockParams::of(&previous).iv;
        assert!(!seen.contains(&iv));
        seen.push(iv);
    }
    rig.writer.drain().unwrap();
    assert_eq!(rig.read(&previous), pattern(5, 8192));
    // What the key opened is not shown without it.
    rig.pool.store.forget_keys(1, &[]);
    assert!(rig.pool.read(&previous).is_err());
}
