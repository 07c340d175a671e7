use std::collections::BTreeMap;

use super::*;
use crate::zap::hash;
use proptest::prelude::*;

/// Name, value and its integer size of every entry, as the decoder reads them.
type Contents = BTreeMap<Vec<u8>, (u8, Vec<u64>)>;

fn contents(data: &[u8]) -> Contents {
    let leaf = Leaf::decode(Bytes::new(data, ByteOrder::Little, "t")).unwrap();
    let entries = leaf.entries(0).unwrap();
    assert_eq!(entries.len(), usize::from(leaf.entries));
    for e in &entries {
        assert!(leaf.find(e.hash).any(|f| f.as_ref() == Ok(e)));
    }
    let read = |e| (leaf.name(e).unwrap(), (e.int_size, leaf.value(e).unwrap()));
    entries.iter().map(read).collect()
}

/// A hash of few values, so that entries collide.
fn weak_hash(name: &[u8]) -> u64 {
    hash::hash_name(3, 0, name) & 0xf3 << 56
}

fn widen(value: &Value<'_>) -> (u8, Vec<u64>) {
    let words = match value {
        Value::U8(v) => v.iter().map(|n| u64::from(*n)).collect(),
        Value::U16(v) => v.iter().map(|n| u64::from(*n)).collect(),
        Value::U32(v) => v.iter().map(|n| u64::from(*n)).collect(),
        Value::U64(v) => v.to_vec(),
    };
    (value.int_size() as u8, words)
}

#[derive(Debug, Clone)]
struct Op {
    name: Vec<u8>,
    remove: bool,
    size: u8,
    ints: Vec<u64>,
}

fn op() -> impl Strategy<Value = Op> {
    let ints = proptest::collection::vec(any::<u64>(), 0..20);
    (0u8..40, 0usize..60, 0u8..3, 0u8..4, ints).prop_map(|(n, long, remove, size, ints)| Op {
        name: format!("{n}{}", "x".repeat(if n % 3 == 0 { long / 60 + 40 } else { 0 })).into(),
        remove: remove == 0,
        size,
        ints,
    })
}

/// The integers of `op` cut to its integer size, given to `f` as a value.
fn with_value<T>(op: &Op, f: impl FnOnce(&Value<'_>) -> T) -> T {
    match op.size {
        0 => f(&Value::U8(&op.ints.iter().map(|n| *n as u8).collect::<Vec<_>>())),
        1 => f(&Value::U16(&op.ints.iter().map(|n| *n as u16).collect::<Vec<_>>())),
        2 => f(&Value::U32(&op.ints.iter().map(|n| *n as u32).collect::<Vec<_>>())),
        _ => f(&Value::U64(&op.ints)),
    }
}

/// Applies `op` to leaf and model; whether the leaf was full.
fn apply(leaf: &mut LeafMut<'_>, model: &mut Contents, op: &Op) -> bool {
    let (hash, key) = (weak_hash(&op.name), Key::Name(&op.name));
    let found = leaf.find(hash, &key).unwrap();
    assert_eq!(found.is_some(), model.contains_key(&op.name));
    if op.remove {
        if let Some(entry) = found {
            leaf.remove(&entry).unwrap();
            model.remove(&op.name);
        }
        return false;
    }
    with_value(op, |value| {
        let done = match found {
            Some(entry) => leaf.replace(&entry, value),
            None => leaf.insert(hash, &key, value, None).map(|_| ()),
        };
        match done {
            Ok(()) => {
                model.insert(op.name.clone(), widen(value));
                false
            }
            Err(e) => {
                assert_eq!(e, EncodeError::Full { what: WHAT });
                true
            }
        }
    })
}

proptest! {
    #[test]
    fn a_leaf_is_a_map(
        ops in proptest::collection::vec(op(), 1..150), shift in 9u32..13, sorted: bool,
    ) {
        let mut data = vec![0x55; 1 << shift];
        let mut model = Contents::new();
        LeafMut::format(&mut data, sorted).unwrap();
        for op in ops {
            let before = data.clone();
            let mut leaf = LeafMut::open(&mut data).unwrap();
            let full = apply(&mut leaf, &mut model, &op);
            leaf.check(false).unwrap();
            prop_assert!(!full || data == before, "changed although full");
            prop_assert_eq!(&contents(&data), &model);
        }
        // Empty again, every chunk is free.
        let mut leaf = LeafMut::open(&mut data).unwrap();
        for name in model.keys() {
            let entry = leaf.find(weak_hash(name), &Key::Name(name)).unwrap().unwrap();
            leaf.remove(&entry).unwrap();
        }
        leaf.check(false).unwrap();
        prop_assert_eq!(usize::from(leaf.free_chunks()), chunk_count(1 << shift));
    }

    #[test]
    fn a_split_keeps_every_entry(
        ops in proptest::collection::vec(op(), 1..80), depth in 0usize..4, sorted: bool,
    ) {
        let mut leaves = vec![vec![0; 2048]];
        let mut model = Contents::new();
        let mut leaf = LeafMut::format(&mut leaves[0], sorted).unwrap();
        ops.iter().for_each(|op| { apply(&mut leaf, &mut model, op); });
        for _ in 0..depth {
            for n in 0..leaves.len() {
                let mut new = vec![0; 2048];
                let mut low = LeafMut::open(&mut leaves[n]).unwrap();
                let mut high = LeafMut::format(&mut new, sorted).unwrap();
                low.split(&mut high, sorted).unwrap();
                low.check(false).unwrap();
                high.check(false).unwrap();
                leaves.push(new);
            }
        }
        let all: Contents = leaves.iter().flat_map(|l| contents(l)).collect();
        prop_assert_eq!(&all, &model);
        prop_assert_eq!(leaves.iter().map(|l| contents(l).len()).sum::<usize>(), model.len());
        for name in model.keys() {
            let hash = weak_hash(name);
            let home = leaves.iter_mut().find(|l| {
                Leaf::decode(Bytes::new(l, ByteOrder::Little, "t")).unwrap().covers(hash)
            });
            let leaf = LeafMut::open(home.unwrap()).unwrap();
            prop_assert!(leaf.find(hash, &Key::Name(name)).unwrap().is_some());
        }
    }

    #[test]
    fn damage_is_an_error(
        ops in proptest::collection::vec(op(), 1..30), more in proptest::collection::vec(op(), 1..30),
        damage in proptest::collection::vec((16usize..1024, any::<u8>()), 1..10),
    ) {
        let mut data = vec![0; 1024];
        let mut model = Contents::new();
        let mut leaf = LeafMut::format(&mut data, true).unwrap();
        ops.iter().for_each(|op| { apply(&mut leaf, &mut model, op); });
        for (at, byte) in damage {
            data[at] = byte;
        }
        let mut new = vec![0; 1024];
        let Ok(mut leaf) = LeafMut::open(&mut data) else { return Ok(()) };
        let _ = leaf.check(false);
        for op in more {
            let hash = weak_hash(&op.name);
            match leaf.find_by(hash, |name| name == op.name) {
                Ok(Some(entry)) if op.remove => { let _ = leaf.remove(&entry); }
                Ok(Some(entry)) => { let _ = with_value(&op, |v| leaf.replace(&entry, v)); }
                _ => { let _ = with_value(&op, |v| leaf.insert(hash, &Key::Name(&op.name), v, None)); }
            }
        }
        let _ = leaf.split(&mut LeafMut::format(&mut new, true).unwrap(), true);
    }

    #[test]
    fn the_other_byte_order_is_turned(ops in proptest::collection::vec(op(), 1..60)) {
        let mut data = vec![0; 2048];
        let mut model = Contents::new();
        let mut leaf = LeafMut::format(&mut data, true).unwrap();
        ops.iter().for_each(|op| { apply(&mut leaf, &mut model, op); });
        let turned = to_big(&data);
        let leaf = Leaf::decode(Bytes::new(&turned, ByteOrder::Big, "t")).unwrap();
        prop_assert_eq!(leaf.entries(0).unwrap().len(), model.len());
        let mut back = turned;
        super::super::to_little_endian(&mut back, ByteOrder::Big).unwrap();
        prop_assert_eq!(back, data);
    }
}

/// The leaf as a machine of the other byte order writes it.
fn to_big(data: &[u8]) -> Vec<u8> {
    let mut out = data.to_vec();
    let mut turn = |at: usize, size: usize| out[at..at + size].reverse();
    [0, 8, 16].into_iter().for_each(|at| turn(at, 8));
    turn(24, 4);
    [28, 30, 32, 34].into_iter().for_each(|at| turn(at, 2));
    (48..chunks_at(data.len())).step_by(2).for_each(|at| turn(at, 2));
    for at in (chunks_at(data.len())..data.len()).step_by(CHUNK_SIZE) {
        if data[at] == CHUNK_ENTRY {
            [2, 4, 6, 8, 10].into_iter().for_each(|field| turn(at + field, 2));
            turn(at + 12, 4);
            turn(at + 16, 8);
        } else {
            turn(at + NEXT, 2);
        }
    }
    out
}

#[test]
fn word_keys() {
    let mut data = vec![0; 1024];
    let mut leaf = LeafMut::format(&mut data, false).unwrap();
    let (a, b) = ([1u64, 2, 3], [1u64, 2, 4]);
    leaf.insert(1 << 60, &Key::Words(&a), &Value::U64(&[9]), None).unwrap();
    assert_eq!(leaf.find(1 << 60, &Key::Words(&b)).unwrap(), None);
    leaf.insert(1 << 60, &Key::Words(&b), &Value::U16(&[]), Some(7)).unwrap();
    assert_eq!(leaf.find(1 << 60, &Key::Words(&b)).unwrap().unwrap().cd, 7);
    leaf.check(true).unwrap();
    let leaf = Leaf::decode(Bytes::new(&data, ByteOrder::Little, "t")).unwrap();
    let entries = leaf.entries(crate::zap::FLAG_UINT64_KEY).unwrap();
    let expected: Vec<u8> = b.iter().flat_map(|w| w.to_be_bytes()).collect();
    assert_eq!((entries.len(), leaf.word_key(&entries[1]).unwrap()), (2, expected));
}

#[test]
fn entries_that_no_leaf_holds() {
    let mut data = vec![0; 512];
    let mut leaf = LeafMut::format(&mut data, false).unwrap();
    let big = [0; 18 * 21];
    let refused = leaf.insert(0, &Key::Name(b"x"), &Value::U8(&big), None);
    assert!(matches!(refused, Err(EncodeError::Unrepresentable { .. })));
    let long = vec![0; 8193];
    assert!(Value::U8(&long).check().is_err() && Key::Name(&[b'x'; 256]).check(256).is_err());
    assert!(leaf.insert(0, &Key::Name(b"a\0"), &Value::U64(&[1]), None).is_err());
    assert!(leaf.insert(0, &Key::Words(&[]), &Value::U64(&[1]), None).is_err());
    let mut other = vec![0; 512];
    leaf.split(&mut LeafMut::format(&mut other, false).unwrap(), false).unwrap();
    let refused = leaf.insert(1 << 63, &Key::Name(b"x"), &Value::U64(&[1]), None);
    assert!(matches!(refused, Err(EncodeError::Unrepresentable { .. })));
    assert!(LeafMut::format(&mut [0; 1000], false).is_err());
    assert!(LeafMut::format(&mut vec![0; 2 << 20], false).is_err());
    assert_eq!((chunk_count(512), chunk_count(16384)), (18, 638));
}
