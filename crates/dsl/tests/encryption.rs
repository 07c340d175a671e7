//! Encrypted datasets: read with their keys, and not without; what was changed is an error.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_dmu::objset::{GROUP_USED, META_DNODE, USER_USED};
use cenote_dmu::write::OpenObjectSet;
use cenote_dmu::{Error, ObjectSet};
use cenote_dsl::crypt::KeyError;
use cenote_format::blkptr::BlockPointer;
use cenote_format::crypt::{BlockParams, WrappingKey};
use cenote_format::dmu::DmuType;
use cenote_manifest_check::{import, import_with_keys, load_key};
use cenote_pool::Pool;
use cenote_store::{BlockError, Bookmark};
use std::collections::BTreeMap;
use std::sync::Arc;

const ROOTS: [&str; 4] = ["crypt/hexa", "crypt/phrase", "crypt/rawk", "crypt/rawk/rekeyed"];

fn objset(pool: &Pool, name: &str) -> Result<Arc<ObjectSet>, Error> {
    let found = pool.dsl().find(name).unwrap().unwrap();
    pool.dsl().open_objset(&found)
}

fn status(pool: &Pool, name: &str) -> String {
    let found = pool.dsl().find(name).unwrap().unwrap();
    pool.dsl().get(&found, "keystatus").unwrap().unwrap().exact
}

/// A block of every kind: by level, type, and whether it is encrypted.
fn blocks(set: &Arc<ObjectSet>) -> BTreeMap<(u8, u8, bool), (BlockPointer, Bookmark)> {
    let mut found = BTreeMap::new();
    let root = (*set.root_bp(), Bookmark::root(set.id()));
    found.insert((0, DmuType::OBJSET.0, false), root);
    let special = [META_DNODE, USER_USED, GROUP_USED].map(|number| set.special(number).unwrap());
    let others = (1..set.max_object()).filter_map(|number| set.object(number).ok());
    for object in special.into_iter().chain(others) {
        let (objset, number) = (set.id(), object.number());
        let mut note = |level: i64, blkid: u64, bp: &BlockPointer| {
            let at = Bookmark { objset, object: number, level: level.max(0), blkid };
            let kind = (bp.level(), bp.object_type(), bp.is_encrypted());
            found.entry(kind).or_insert((*bp, at));
            Ok(())
        };
        object.walk(&mut note).unwrap();
    }
    found
}

#[test]
fn without_its_key_a_dataset_is_closed() {
    let pool = import("crypt");
    for root in ROOTS {
        assert_eq!(status(&pool, root), "unavailable");
        let set = objset(&pool, root).unwrap();
        let refused = set.object(1).map(|object| object.read(0, &mut [0; 1]));
        assert!(matches!(refused, Err(Error::Block(BlockError::Encrypted { .. }))), "{root}");
    }
    let wrong = WrappingKey::from_raw(&[1; 32]).unwrap();
    let found = pool.dsl().find("crypt/rawk").unwrap().unwrap();
    let refused = pool.dsl().load_key(&found, wrong).unwrap_err();
    assert_eq!(refused.to_string(), "Incorrect key provided for 'crypt/rawk'.");
    let child = pool.dsl().find("crypt/phrase/child").unwrap().unwrap();
    let refused = pool.dsl().load_key(&child, WrappingKey::from_raw(&[1; 32]).unwrap());
    assert!(matches!(refused, Err(KeyError::NotRoot { root, .. }) if root == "crypt/phrase"));
    let clear = pool.dsl().find("crypt/rawk/clear").unwrap().unwrap();
    let refused = pool.dsl().load_key(&clear, WrappingKey::from_raw(&[1; 32]).unwrap());
    assert!(matches!(refused, Err(KeyError::NotEncrypted(_))));
}

/// Written as others are it would lose its MACs, whatever the change is.
#[test]
fn an_encrypted_object_set_is_opened_for_writing_with_its_key() {
    for (pool, has_keys) in [(import("crypt"), false), (import_with_keys("crypt"), true)] {
        for root in ROOTS {
            let opened = OpenObjectSet::open(objset(&pool, root).unwrap());
            assert_eq!(opened.is_ok(), has_keys, "{root}");
            assert!(opened.err().is_none_or(|e| e.to_string().contains("encrypted")));
        }
        assert!(OpenObjectSet::open(objset(&pool, "crypt/rawk/clear").unwrap()).is_ok());
    }
}

#[test]
fn an_unloaded_key_opens_nothing_any_more() {
    let pool = import_with_keys("crypt");
    let held = objset(&pool, "crypt/hexa").unwrap();
    let mut had: Vec<_> = blocks(&held).into_values().collect();
    had.retain(|(bp, _)| bp.is_encrypted());
    assert!(had.len() > 4 && had.iter().all(|(bp, at)| held.store().read(bp, *at).is_ok()));
    let found = pool.dsl().find("crypt/hexa").unwrap().unwrap();
    assert!(matches!(
        pool.dsl().load_key(&found, WrappingKey::from_raw(&[1; 32]).unwrap()),
        Err(KeyError::Incorrect(_))
    ));
    pool.dsl().unload_key(&found).unwrap();
    assert!(matches!(pool.dsl().unload_key(&found), Err(KeyError::Unloaded(_))));
    assert_eq!(
        (status(&pool, "crypt/hexa/dd@enc"), status(&pool, "crypt/phrase")),
        ("unavailable".to_string(), "available".to_string())
    );
    // Neither a new reader nor one that had the key gets anything out of caches.
    for name in ["crypt/hexa", "crypt/hexa@enc", "crypt/hexa/dd", "crypt/hexa/disk"] {
        let set = objset(&pool, name).unwrap();
        assert!(matches!(set.object(1), Err(Error::Block(BlockError::Encrypted { .. }))), "{name}");
    }
    for (bp, at) in had {
        let read = held.store().read(&bp, at);
        assert!(matches!(read, Err(BlockError::Encrypted { .. })), "{at}: {read:?}");
    }
    let manifest = cenote_testpools::pool("crypt").manifest();
    load_key(&pool, "crypt/hexa", &manifest["keys"]["crypt/hexa"]).unwrap();
    assert!(objset(&pool, "crypt/hexa").unwrap().object(1).is_ok());
}

/// A pointer with its block in itself, which has no MAC.
fn embedded(kind: u8, protected: bool) -> BlockPointer {
    let mut bp = BlockPointer([0x5a5a; 16]);
    let (size, protection) = (112 - 1, u64::from(protected) << 61);
    bp.0[6] = 1 << 63 | protection | u64::from(kind) << 48 | 1 << 39 | 2 << 32 | size << 25 | size;
    bp.0[10] = 9;
    bp
}

/// A MAC is asked for that the block of a pointer has to have, whatever the pointer says of itself.
#[test]
fn pointers_do_not_choose_how_they_are_checked() {
    let pool = import_with_keys("crypt");
    let refused = |set: &ObjectSet, bp: &BlockPointer, at: Bookmark| {
        let one = set.store().read(bp, at);
        let many = set.store().read_many(&[(*bp, at), (*bp, at)]).pop().unwrap();
        for read in [one, many] {
            assert!(matches!(read, Err(BlockError::Authentication { .. })), "{at}: {read:?}");
        }
    };
    for name in ROOTS {
        let set = objset(&pool, name).unwrap();
        let root = Bookmark::root(set.id());
        for ((_, kind, _), (bp, at)) in blocks(&set) {
            for protected in [false, true] {
                refused(&set, &embedded(kind, protected), at);
                refused(&set, &embedded(kind, protected), root);
            }
            if kind != DmuType::OBJSET.0 {
                refused(&set, &bp, root);
                assert!(ObjectSet::open(set.store().clone(), set.id(), bp).is_err());
            }
        }
    }
}

/// Each word of each pointer that says how its block is protected.
#[test]
fn what_a_key_does_not_vouch_for_is_an_error() {
    let pool = import_with_keys("crypt");
    let mut kinds = 0;
    for root in ROOTS {
        let set = objset(&pool, root).unwrap();
        let store = set.store().clone();
        for ((level, kind, encrypted), (bp, at)) in blocks(&set) {
            store.read(&bp, at).unwrap();
            kinds += 1;
            let is_refused = |bp: &BlockPointer, what: &str| {
                store.drop_caches();
                let read = store.read(bp, at);
                let refused = matches!(
                    read,
                    Err(BlockError::Authentication { .. } | BlockError::Checksum { .. })
                );
                assert!(refused, "{root} level {level} type {kind} {what}: {read:?}");
            };
            let changed = |word: usize, bit: u32| {
                let mut bp = bp;
                bp.0[word] ^= 1 << bit;
                bp
            };
            is_refused(&changed(6, 61), "without protection");
            if kind == DmuType::OBJSET.0 {
                continue;
            }
            for bit in [0, 31, 63] {
                is_refused(&changed(14, bit), "MAC");
                is_refused(&changed(15, bit), "MAC");
                if encrypted {
                    is_refused(&changed(4, bit), "salt");
                    is_refused(&changed(5, bit), "IV");
                    is_refused(&changed(11, 32 + bit / 2), "IV");
                }
            }
            // Through another dataset's key.
            let other = ROOTS.iter().find(|other| **other != root).unwrap();
            let elsewhere = Bookmark { objset: objset(&pool, other).unwrap().id(), ..at };
            let read = store.read(&bp, elsewhere);
            let refused = matches!(read, Err(BlockError::Authentication { .. }));
            assert!(refused || level > 0, "{root} level {level} type {kind} {read:?}");
        }
    }
    assert!(kinds > 20, "only {kinds} kinds of blocks");
}

/// Blocks that OpenZFS deduplicated in encrypted datasets have the salts and initialization vectors that are made here of their
/// bytes: what is written here is found equal to them.
#[test]
fn deduplicated_blocks_are_encrypted_as_openzfs_does() {
    let (pool, mut seen) = (import_with_keys("crypt"), 0);
    let mut todo = vec![pool.dsl().root().unwrap()];
    while let Some(dataset) = todo.pop() {
        todo.extend(pool.dsl().children(&dataset).unwrap());
        let set = pool.dsl().open_objset(&dataset).unwrap();
        let Some(loaded) = set.store().keys().of(set.id()) else { continue };
        for object in (1..set.max_object()).filter_map(|number| set.object(number).ok()) {
            let mut found = Vec::new();
            let mut note = |level: i64, blkid: u64, bp: &BlockPointer| {
                let at = Bookmark { objset: set.id(), object: object.number(), level, blkid };
                found.extend((level == 0 && bp.is_dedup()).then_some((*bp, at)));
                Ok(())
            };
            object.walk(&mut note).unwrap();
            for (bp, at) in found {
                assert!(bp.is_encrypted());
                let plain = set.store().read_many_physical(&[(bp, at)]).pop().unwrap().unwrap();
                assert_eq!(loaded.key().params_of(&plain).unwrap(), BlockParams::of(&bp), "{at}");
                seen += 1;
            }
        }
    }
    assert!(seen > 1, "{seen}");
}
