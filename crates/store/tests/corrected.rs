//! Blocks that are lost are made of what is offered for them.
#![allow(clippy::unwrap_used)]

mod common;

use cenote_format::LABEL_START;
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_store::correct::{Corrected, Offer};
use cenote_store::{ScanKeys, Store};
use cenote_vdev::inject::MemDevice;
use cenote_vdev::{VdevTree, init_labels};
use common::{BIRTH, Bp, at, config, pattern};
use std::sync::Arc;

const LEN: usize = 4096;

/// A pool of one device that has labels, so that what is wrong on it is written anew.
struct Pool {
    store: Arc<Store>,
    memory: Arc<MemDevice>,
}

impl Pool {
    fn new() -> Pool {
        let memory = MemDevice::new("memory", vec![0; 64 << 20]);
        let root = config(&[9]);
        let mut label = NvList::default();
        let numbers = [
            ("version", 5000),
            ("state", 0),
            ("txg", 4),
            ("pool_guid", 1),
            ("guid", 100),
            ("top_guid", 100),
        ];
        numbers.iter().for_each(|(name, n)| label.set(name, NvValue::Uint64(*n)));
        label.set("name", NvValue::String("tank".into()));
        init_labels(&*memory, &label).unwrap();
        let vdevs = VdevTree::build(&root, &mut |_, _| Some(memory.clone())).unwrap();
        Pool { store: Store::new(vdevs, 1 << 20), memory }
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let at = (LABEL_START + offset) as usize;
        self.memory.bytes()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn has(&self, offset: u64, bytes: &[u8]) -> bool {
        let at = (LABEL_START + offset) as usize;
        self.memory.bytes()[at..at + bytes.len()] == *bytes
    }
}

/// Offers `forms` for blocks that are in a row, and have the numbers from `first` on.
fn corrected(
    pool: &Pool,
    (first, blocks): (usize, &[BlockPointer]),
    forms: &[Vec<u8>],
    current: &dyn Fn() -> bool,
) -> Vec<Corrected> {
    let forms: Vec<_> = forms
        .iter()
        .map(|form| {
            move |take: &mut dyn FnMut(Abd) -> bool| {
                take(Abd::copy_of(form));
            }
        })
        .collect();
    let mut offers: Vec<Offer<'_>> = Vec::new();
    for (n, (bp, forms)) in blocks.iter().zip(&forms).enumerate() {
        offers.push(Offer { bp: *bp, at: at((first + n) as u64), forms });
    }
    pool.store.correct_many(&offers, &ScanKeys::default(), current)
}

#[test]
fn what_was_healed_before_pointers_went_out_of_date_is_told() {
    let pool = Pool::new();
    let forms: Vec<Vec<u8>> = (1..=4).map(|n| pattern(n, LEN)).collect();
    let place = |n: usize| (n as u64 + 1) * 8192;
    let pointer = |(n, form): (usize, &Vec<u8>)| Bp::of(form).at(0, place(n)).make();
    let blocks: Vec<BlockPointer> = forms.iter().enumerate().map(pointer).collect();
    // All but the first one are lost.
    pool.write(place(0), &forms[0]);
    assert_eq!(corrected(&pool, (0, &blocks), &forms, &|| false), []);
    assert!(!pool.store.has_pending_errors());

    // Space gets short once the second one is written.
    let current = || !pool.has(place(1), &forms[1]);
    let came = corrected(&pool, (0, &blocks), &forms, &current);
    assert_eq!(came, [Corrected::WasRight, Corrected::Healed]);
    assert!(!pool.has(place(2), &forms[2]));
    let taken = pool.store.take_errors().unwrap();
    assert_eq!((taken.healed.as_slice(), taken.last.as_slice()), (&[(at(1), BIRTH)][..], &[][..]));
    pool.store.errors_written(&taken);

    // The others are looked at then.
    let offered = [forms[2].clone(), forms[0].clone()];
    let came = corrected(&pool, (2, &blocks[2..]), &offered, &|| true);
    assert_eq!(came, [Corrected::Healed, Corrected::Differs]);
    let taken = pool.store.take_errors().unwrap();
    assert_eq!((taken.healed, taken.last), (vec![(at(2), BIRTH)], vec![(at(3), BIRTH)]));
    assert!(pool.has(place(2), &forms[2]));
}
