//! Faults planted in what is to be logged, and in how far a log is stable.

#![allow(clippy::unwrap_used)]

use super::issuer::Issuer;
use super::itxs::Itxs;
use cenote_dmu::write::intent::Itx;
use cenote_format::invariant::{caught, is_broken};

#[test]
fn a_log_that_is_stable_less_far_is_found() {
    let issuer = Issuer::default();
    issuer.wait_for(5).unwrap().has_written(5);
    let issuing = issuer.wait_for(6).unwrap();
    issuing.check(5);
    let why = caught(|| issuing.check(4)).unwrap_err();
    assert!(is_broken(&why) && why.contains("4 itxs are written, and 5 were stable"), "{why}");
}

#[test]
fn bytes_of_itxs_that_are_off_are_found() {
    let mut itxs = Itxs::default();
    itxs.note(4, Some(vec![Itx::Write { object: 7, offset: 0, length: 10 }]), false);
    itxs.plant(1);
    let why = caught(|| itxs.forget(4)).unwrap_err();
    assert!(is_broken(&why) && why.contains("0 and 96 bytes of itxs, and 97 are counted"), "{why}");
}
