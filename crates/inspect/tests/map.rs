//! The map of free space of every sample pool.
//!
//! | figure | compared with |
//! |---|---|
//! | allocated per metaslab, without unflushed changes | `smp_alloc` of `zdb -m` |
//! | allocated and fragmentation of the pool | what `zpool list` is made from |
//! | sum over the owners of a metaslab | what is allocated in it, to the byte |
//! | sum over the metaslabs of an owner | what the dataset is charged for, where there is no parity |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_inspect::map::owners::OwnerKind;
use cenote_inspect::map::{MetaslabMap, SpaceMapReport};
use cenote_manifest_check::import;
use cenote_pool::Pool;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

fn names() -> Vec<String> {
    cenote_testpools::names()
}

/// `smp_alloc` by vdev and offset, as `zdb -m` prints it.
fn space_maps(text: &str) -> BTreeMap<(u64, u64), u64> {
    let mut out = BTreeMap::new();
    let (mut vdev, mut offset) = (0, 0);
    for line in text.lines().take_while(|l| !l.starts_with("Log Space Maps")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["vdev", id, ..] => vdev = id.parse().unwrap(),
            ["metaslab", _, "offset", hex, ..] => {
                offset = u64::from_str_radix(hex, 16).unwrap();
                out.insert((vdev, offset), 0);
            }
            ["smp_alloc", "=", hex] => {
                let alloc = u64::from_str_radix(hex.strip_prefix("0x").unwrap(), 16).unwrap();
                if let Some(slot) = out.get_mut(&(vdev, offset)) {
                    *slot = alloc;
                }
                offset = u64::MAX;
            }
            _ => {}
        }
    }
    out
}

fn flushed(m: &MetaslabMap) -> u64 {
    m.allocated + m.unflushed.freed - m.unflushed.allocated
}

#[test]
fn figures_are_those_of_zdb() {
    let mut unflushed = 0;
    for name in names() {
        let files = cenote_testpools::pool(&name);
        let pool = import(&name);
        let report = SpaceMapReport::of(&pool).unwrap();
        assert_eq!(report.check(), Ok(()), "{name}");
        let of_zdb = space_maps(&files.zdb_section(" -m "));
        let ours: BTreeMap<_, _> = report
            .vdevs
            .iter()
            .flat_map(|v| v.metaslabs.iter().map(|m| ((v.id, m.offset), flushed(m))))
            .collect();
        assert_eq!(ours, of_zdb, "{name}");
        let stats = pool.space().unwrap().pool();
        assert_eq!(report.fragmentation, stats.fragmentation, "{name}");
        // `zpool list` leaves log devices out.
        let log = cenote_pool::metaslab::AllocClass::Log;
        let (alloc, size) = report.vdevs.iter().filter(|v| v.class != log).fold((0, 0), |a, v| {
            let b = v.usage();
            (a.0 + b.0, a.1 + b.1)
        });
        assert_eq!((alloc, size), (stats.alloc, stats.size), "{name}");
        unflushed += report.metaslabs().filter(|m| m.unflushed != Default::default()).count();
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<SpaceMapReport>(&json).unwrap(), report, "{name}");
    }
    assert!(unflushed > 20, "{unflushed} metaslabs with unflushed changes");
}

fn with_owners(pool: &Pool) -> SpaceMapReport {
    let mut report = SpaceMapReport::of(pool).unwrap();
    report.add_owners(pool, 2, &|_, _| {}, &|| false).unwrap();
    assert_eq!(report.check(), Ok(()));
    report
}

#[test]
fn every_allocated_byte_has_an_owner() {
    let mut kinds = Vec::new();
    for name in names() {
        let report = with_owners(&import(&name));
        let owners = report.owners.as_ref().unwrap();
        assert_eq!(owners.missed, 0, "{name}");
        for v in &report.vdevs {
            for m in &v.metaslabs {
                let sum: u64 = m.owners.iter().map(|s| s.bytes).sum();
                assert_eq!(sum, m.allocated, "{name}: vdev {}, metaslab {}", v.id, m.id);
            }
        }
        kinds.extend(owners.list.iter().map(|o| o.kind));
        for o in owners.list.iter().filter(|o| o.kind == OwnerKind::Dataset) {
            assert!(o.name == name || o.name.starts_with(&format!("{name}/")), "{}", o.name);
        }
    }
    for kind in [OwnerKind::Dataset, OwnerKind::PoolMetadata, OwnerKind::IntentLog] {
        assert!(kinds.contains(&kind), "{kind:?}");
    }
}

#[test]
fn owners_have_what_datasets_are_charged_for() {
    let mut compared = 0;
    // Neither parity nor sharing, so that charges are bytes of devices.
    for name in ["basic", "clones", "mir3", "fragnolog", "special", "removal"] {
        let pool = import(name);
        let report = with_owners(&pool);
        let mut todo = vec![pool.dsl().root().unwrap()];
        while let Some(d) = todo.pop() {
            todo.extend(pool.dsl().children(&d).unwrap());
            let number = |property: &str| -> u64 {
                let value = pool.dsl().get(&d, property).unwrap().unwrap();
                value.exact.parse().unwrap()
            };
            let charged = number("usedbydataset") + number("usedbysnapshots");
            // A clone that was never changed has nothing of its own.
            let owner = report.owner(&d.name);
            let held = |owner| report.metaslabs().map(|m| m.owned_by(owner)).sum::<u64>();
            let held = owner.map_or(0, held);
            assert_eq!(held, charged, "{}", d.name);
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared} datasets");
}

#[test]
fn a_traversal_can_be_ended() {
    let pool = import("basic");
    let mut report = SpaceMapReport::of(&pool).unwrap();
    let asked = AtomicU64::new(0);
    let cancelled = || asked.fetch_add(1, Ordering::Relaxed) > 3;
    report.add_owners(&pool, 1, &|_, _| {}, &cancelled).unwrap();
    let (allocated, _) = report.usage();
    let found: u64 = report.metaslabs().flat_map(|m| &m.owners).map(|s| s.bytes).sum();
    assert!(found < allocated, "{found} of {allocated}");
}
