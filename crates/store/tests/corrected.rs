//! Blocks that are lost are made of what is offered for them.
#![allow(clippy::unwrap_used)]

mod common;

use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_store::correct::{Corrected, Offer};
use common::{BIRTH, Bp, Pool, at, pattern};

const LEN: usize = 4096;

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
    pool.store.correct_many(&offers, current)
}

#[test]
fn what_was_healed_before_pointers_went_out_of_date_is_told() {
    let pool = Pool::new(&[9], 1 << 20);
    // What is written goes to a leaf that lacks nothing.
    pool.store.vdevs().set_dtl(100, Vec::new()).unwrap();
    let forms: Vec<Vec<u8>> = (1..=4).map(|n| pattern(n, LEN)).collect();
    let place = |n: usize| (n as u64 + 1) * 8192;
    let pointer = |(n, form): (usize, &Vec<u8>)| Bp::of(form).at(0, place(n)).make();
    let blocks: Vec<BlockPointer> = forms.iter().enumerate().map(pointer).collect();
    // All but the first one are lost.
    pool.write(0, place(0), &forms[0]);
    assert_eq!(corrected(&pool, (0, &blocks), &forms, &|| false), []);
    assert!(!pool.store.has_pending_errors());

    // Space gets short once the second one is written.
    let current = || pool.bytes(0, place(1), LEN) != forms[1];
    let came = corrected(&pool, (0, &blocks), &forms, &current);
    assert_eq!(came, [Corrected::WasRight, Corrected::Healed]);
    assert!(pool.bytes(0, place(2), LEN) != forms[2]);
    let taken = pool.store.take_errors().unwrap();
    assert_eq!((taken.healed.as_slice(), taken.last.as_slice()), (&[(at(1), BIRTH)][..], &[][..]));
    pool.store.errors_written(&taken);

    // The others are looked at then.
    let offered = [forms[2].clone(), forms[0].clone()];
    let came = corrected(&pool, (2, &blocks[2..]), &offered, &|| true);
    assert_eq!(came, [Corrected::Healed, Corrected::Differs]);
    let taken = pool.store.take_errors().unwrap();
    assert_eq!((taken.healed, taken.last), (vec![(at(2), BIRTH)], vec![(at(3), BIRTH)]));
    assert_eq!(pool.read(&blocks[2]).unwrap(), forms[2]);
}
