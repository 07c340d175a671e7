//! Clones and snapshots that OpenZFS made are written to, promoted and destroyed, with clones made of them, in
//! several orders. What is left of what was there reads as before, every block is accounted for, and livelists
//! add up to what their clones use.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::{Engine, EngineOptions};
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_testpools::TempPool;
use rig::account;
use rig::orders::{KINDS, Order};
use std::collections::BTreeMap;
use std::sync::Arc;

fn import(temp: &TempPool) -> Arc<Engine> {
    let found = discover(std::slice::from_ref(&temp.pool.dir));
    let options = ImportOptions { force: true, ..Default::default() };
    Engine::import(&found[0], &options, EngineOptions::default()).unwrap()
}

/// As [`account`], of a pool that is exported.
fn account_exported(temp: &TempPool) {
    let found = discover(std::slice::from_ref(&temp.pool.dir));
    let options = ImportOptions { readonly: true, ..Default::default() };
    let pool = Pool::import(&found[0], &options).unwrap();
    account(&pool);
}

fn orders(name: &str, judged: bool) {
    let mut done = BTreeMap::new();
    for seed in 0..3 {
        let temp = cenote_testpools::copy(name);
        Order::run(import(&temp), seed, &mut done);
        account_exported(&temp);
        if judged {
            cenote_testpools::judge(&temp.pool.dir, name);
        }
    }
    assert!(done.len() == KINDS && done.values().all(|n| *n > 1), "{done:?}");
}

#[test]
fn generations_of_clones() {
    orders("clones", false);
}

#[test]
fn a_pool_with_cloned_blocks() {
    orders("bclone", false);
}

#[test]
fn a_pool_of_few_features() {
    orders("legacyd", true);
}

#[test]
fn an_aged_pool() {
    orders("fraglogsm", false);
}

#[test]
fn a_pool_of_the_features_of_2_1() {
    orders("compat21", true);
}

#[test]
fn a_pool_with_a_removed_vdev() {
    orders("removal", false);
}
