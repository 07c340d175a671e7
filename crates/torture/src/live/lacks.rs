//! What disks lack of a pool: the model of its dirty time logs.
//!
//! A log (`DTL_MISSING`) has the transaction groups that a leaf did not get. What it has to have is known from the disks
//! themselves: every block that there is, in every copy and with its parity, is compared with what each leaf of the pool has of it, whatever its
//! log says. The births of those that a leaf has not are what its log must have. It may have more: groups of which nothing is left,
//! and such as wrote nothing to that leaf.

use super::lab::Lab;
use cenote_inspect::traverse::{self, Event, Found, Options, Subject, Verify, stats};
use cenote_pool::Pool;
use cenote_pool::metaslab::PoolSpace;
use cenote_store::{ScanBlock, ScanFunc, ScanKeys};
use cenote_vdev::Vdev;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Transaction groups, as a leaf's log has them.
pub type Groups = Vec<Range<u64>>;

/// What the leaves of a pool have, as its disks are.
#[derive(Debug, Default)]
pub struct Lacks {
    /// Leaves, by guid, and groups of which they lack a block. Several: one of them does, as they are about to replace one another.
    pub lacking: BTreeSet<(Vec<u64>, u64)>,
    /// What logs on disk have, and what the labels add to that.
    pub logs: BTreeMap<u64, Groups>,
    /// The paths of leaves.
    pub paths: BTreeMap<u64, PathBuf>,
}

/// Leaves that count errors together.
fn places(pool: &Pool) -> Vec<(Arc<Vdev>, Vec<u64>)> {
    fn below(vdev: &Arc<Vdev>, out: &mut Vec<(Arc<Vdev>, Vec<u64>)>) {
        let mut leaves = Vec::new();
        vdev.collect_leaves(&mut leaves);
        out.push((vdev.clone(), leaves.iter().map(|leaf| leaf.guid()).collect()));
        vdev.children().iter().for_each(|child| below(child, out));
    }
    let mut out = Vec::new();
    let tree = pool.store().vdevs();
    tree.root().children().iter().for_each(|top| below(top, &mut out));
    out
}

/// The blocks of a pool but for those of its intent logs, which may never have been written, and those that were freed.
fn blocks(pool: &Pool) -> Result<Vec<Found>, String> {
    let space = PoolSpace::load(pool.mos(), pool.config()).map_err(|e| e.to_string())?;
    let subject =
        Subject { mos: pool.mos().clone(), config: pool.config(), uberblock: pool.uberblock() };
    let options = Options { verify: Verify::Nothing, leaks: false, workers: 1 };
    let all = Mutex::new(Vec::new());
    let note = |event: Event<'_>| {
        if let Event::Block(found) = event
            && !found.is_log()
            && found.kind != stats::DEFERRED
            && !found.bp.is_embedded()
        {
            all.lock().push(*found);
        }
    };
    let report = traverse::run(&subject, &space, &options, &note, &|| false);
    report.map_err(|e| e.to_string())?;
    Ok(all.into_inner())
}

impl Lacks {
    /// What the disks of a lab have, which nothing is written to.
    ///
    /// # Errors
    /// The pool cannot be looked at.
    pub fn of(lab: &Lab) -> Result<Lacks, String> {
        let pool = lab.look()?;
        let tree = pool.store().vdevs();
        let mut lacks = Lacks::default();
        for leaf in tree.leaves().iter().filter(|leaf| leaf.device().is_some()) {
            lacks.logs.insert(leaf.guid(), leaf.missing());
            lacks.paths.extend(leaf.path().map(|path| (leaf.guid(), path.to_path_buf())));
        }
        let blocks = blocks(&pool)?;
        // Without logs every leaf is expected to have everything.
        drop(tree.take_missed());
        for leaf in tree.leaves() {
            tree.set_dtl(leaf.guid(), Vec::new()).map_err(|e| e.to_string())?;
        }
        let (places, keys, none) = (places(&pool), ScanKeys::default(), BTreeSet::new());
        let errors = |(vdev, _): &(Arc<Vdev>, Vec<u64>)| vdev.errors().2;
        for Found { at, bp, .. } in blocks {
            let before: Vec<u64> = places.iter().map(errors).collect();
            let copies = 0..bp.dvas().count();
            let scanned = copies.map(|copy| ScanBlock { bp, at, copy, first: copy == 0 });
            let scanned: Vec<ScanBlock> = scanned.collect();
            let done = pool.store().scan_many(ScanFunc::Scrub, &scanned, (&keys, &none), &|| true);
            if done.is_none_or(|done| done.errors > 0) {
                return Err(format!("{at:?}: the block is on no disk"));
            }
            for (place, before) in places.iter().zip(before) {
                if errors(place) != before {
                    lacks.lacking.insert((place.1.clone(), bp.physical_birth()));
                }
            }
        }
        Ok(lacks)
    }

    /// What a leaf lacks and its log does not have. `logs` knows the logs of leaves; such as have none there are left out.
    pub fn unknown(&self, logs: &BTreeMap<u64, Groups>) -> Option<String> {
        let knows = |leaf: &u64, txg: &u64| {
            logs.get(leaf).is_none_or(|log| log.iter().any(|groups| groups.contains(txg)))
        };
        let (leaves, txg) = self
            .lacking
            .iter()
            .find(|(leaves, txg)| !leaves.iter().any(|leaf| knows(leaf, txg)))?;
        let named = leaves.iter().map(|leaf| (self.paths.get(leaf), logs.get(leaf)));
        let named: Vec<_> = named.collect();
        Some(format!("a block of group {txg} is lacking, and no log has that: {named:?}"))
    }
}
