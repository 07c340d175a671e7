//! ZAPs through their forms: micro and fat, their tables, names that get longer.

use crate::check::Entries;
use crate::{Model, Test};
use cenote_dmu::write::zap::ZapFormat;
use cenote_dmu::write::{NewObject, ZapMut};
use cenote_dmu::zap::Zap;
use cenote_format::dmu::{DmuType, ObjsetType};
use cenote_format::encode::zap::{Key, Value};
use cenote_format::zap::FLAG_HASH64;
use cenote_format::zap::norm::{NFKC, TO_UPPER};

#[test]
fn a_fat_zap_through_all_stages_of_its_table() {
    let mut test = Test::new(ObjsetType::Zfs);
    let new = NewObject::new(DmuType::DIRECTORY_CONTENTS, 512);
    let format = ZapFormat { salt: 1, flags: FLAG_HASH64, block_shift: 9, ..ZapFormat::default() };
    let n = ZapMut::create(&mut test.set, &new, format).unwrap();
    let model = Model { block_size: 512, zap: Some(Entries::new()), ..Model::default() };
    test.model.insert(n, model);
    for round in 0..5u64 {
        for i in 0..1200 {
            test.put(
                n,
                format!("entry {}", i + round * 900).as_bytes(),
                &vec![i; 1 + i as usize % 3],
            );
        }
        test.sync();
    }
    let object = test.set.synced().object(n).unwrap();
    let stats = Zap::open(&object).unwrap().describe();
    assert!(stats.fat.is_some() && object.dnode().max_block > 500);
}

#[test]
fn a_micro_zap_becomes_a_fat_one_when_it_is_full() {
    let mut test = Test::new(ObjsetType::Zfs);
    test.create(true, 1, 1, 0);
    let n = *test.model.keys().next().unwrap();
    let micro = |test: &Test| {
        let object = test.set.synced().object(n).unwrap();
        (Zap::open(&object).unwrap().is_micro(), object.dnode().block_size)
    };
    // 2,048 times 64 bytes, of which the header takes one.
    for i in 0..2047u64 {
        test.put(n, format!("entry {i}").as_bytes(), &[i]);
    }
    test.sync();
    assert_eq!(micro(&test), (true, 128 << 10));
    test.put(n, b"one more", &[5]);
    test.sync();
    assert_eq!(micro(&test), (false, 16 << 10));
    // It does not become a micro ZAP again.
    for i in 0..2040u64 {
        let name = format!("entry {i}").into_bytes();
        ZapMut::open(&mut test.set, n).remove(&Key::Name(&name)).unwrap();
        test.model.get_mut(&n).unwrap().zap.as_mut().unwrap().remove(&name);
    }
    test.sync();
    assert_eq!(micro(&test), (false, 16 << 10));
}

#[test]
fn directory_cookies_survive_the_upgrade() {
    let mut test = Test::new(ObjsetType::Zfs);
    let new = NewObject::new(DmuType::DIRECTORY_CONTENTS, 512);
    let format = ZapFormat { salt: 9, norm_flags: TO_UPPER, ..ZapFormat::default() };
    let n = ZapMut::create(&mut test.set, &new, format).unwrap();
    let model = Model { block_size: 512, zap: Some(Entries::new()), ..Model::default() };
    test.model.insert(n, model);
    // Names of the same hash; the first one's collision differentiator becomes free.
    for name in ["name", "Name", "NAME"] {
        test.put(n, name.as_bytes(), &[1]);
    }
    ZapMut::open(&mut test.set, n).remove(&Key::Name(b"name")).unwrap();
    test.model.get_mut(&n).unwrap().zap.as_mut().unwrap().remove(b"name".as_slice());
    test.sync();
    let open = |test: &Test| Zap::open(&test.set.synced().object(n).unwrap()).unwrap();
    let before = open(&test);
    assert!(before.is_micro());
    test.put(n, b"two integers", &[1, 2]);
    test.sync();
    let after = open(&test);
    assert!(!after.is_micro() && after.norm_flags() == TO_UPPER);
    for entry in before.entries().unwrap() {
        assert_eq!(after.lookup(&entry.name).unwrap(), Some(entry));
    }
}

#[test]
fn names_that_get_too_long_are_refused() {
    let mut test = Test::new(ObjsetType::Zfs);
    let new = NewObject::new(DmuType::DIRECTORY_CONTENTS, 512);
    let format = ZapFormat { salt: 9, norm_flags: NFKC, ..ZapFormat::default() };
    let n = ZapMut::create(&mut test.set, &new, format).unwrap();
    let longer = "\u{fdfa}".repeat(8);
    for fat in [false, true] {
        if fat {
            // A value of two integers makes it one.
            ZapMut::open(&mut test.set, n).add(&Key::Name(b"x"), &Value::U64(&[1, 2])).unwrap();
        }
        let mut zap = ZapMut::open(&mut test.set, n);
        assert!(zap.add(&Key::Name(longer.as_bytes()), &Value::U64(&[1])).is_err(), "{fat}");
        zap.add(&Key::Name(&longer.as_bytes()[3..]), &Value::U64(&[1])).unwrap();
        zap.remove(&Key::Name(&longer.as_bytes()[3..])).unwrap();
    }
}
