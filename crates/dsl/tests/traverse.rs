//! A walk that was ended anywhere goes on where it ended, and reads what it needs once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

use cenote_dmu::objset::META_DNODE;
use cenote_dmu::{Error, ObjectSet};
use cenote_dsl::traverse::{Mark, Place, Stopped, Traversal, Visitor};
use cenote_format::blkptr::BlockPointer;
use cenote_manifest_check::import;
use cenote_store::Bookmark;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Blocks by object, level and number.
type Met = Vec<(u64, u8, u64)>;

/// Why a walk ended.
#[derive(Debug, PartialEq)]
enum End {
    Budget,
    Damage,
}

/// Notes blocks after what is below them; ends after so many, or at damage.
struct Notes {
    left: usize,
    met: Met,
    /// This one cannot be read.
    bad: Option<(u64, u8, u64)>,
    goes_on: bool,
}

impl Visitor for Notes {
    type Stop = End;

    fn wants(&self, bp: &BlockPointer) -> bool {
        !bp.is_hole()
    }

    fn pre(&mut self, place: &Place<'_>) -> Result<bool, End> {
        let here = (place.tree.object, place.node.level, place.node.blkid);
        let is_bad = self.bad == Some(here);
        let Bookmark { objset, object, .. } = place.at();
        let why = || Error::Corrupt { objset, object, why: "bad".into() };
        if is_bad {
            self.damaged(place.at(), &place.node.bp, why())?;
        }
        Ok(!is_bad)
    }

    fn post(&mut self, place: &Place<'_>) -> Result<(), End> {
        if place.node.level == 0 {
            self.left = self.left.checked_sub(1).ok_or(End::Budget)?;
        }
        self.met.push((place.tree.object, place.node.level, place.node.blkid));
        Ok(())
    }

    fn damaged(&mut self, _: Bookmark, _: &BlockPointer, _: Error) -> Result<(), End> {
        if self.goes_on { Ok(()) } else { Err(End::Damage) }
    }
}

fn walk(
    objset: &Arc<ObjectSet>,
    resume: Option<Mark>,
    mut notes: Notes,
) -> (Met, Result<(), Stopped<End>>) {
    let walked = Traversal::new(objset.store(), objset.id(), resume, &mut notes).all(objset.phys());
    (notes.met, walked)
}

fn notes(left: usize) -> Notes {
    Notes { left, met: Met::new(), bad: None, goes_on: true }
}

fn objset() -> Arc<ObjectSet> {
    let pool = import("streams");
    let (dsl, mut list) = (pool.dsl(), vec![pool.dsl().root().unwrap()]);
    list.extend(dsl.children(&list[0]).unwrap());
    let sets = list.iter().map(|dataset| dsl.open_objset(dataset).unwrap());
    sets.max_by_key(|set| walk(set, None, notes(usize::MAX)).0.len()).unwrap()
}

#[test]
fn a_walk_that_ended_anywhere_goes_on_there() {
    let objset = objset();
    let (all, walked) = walk(&objset, None, notes(usize::MAX));
    assert!(walked.is_ok() && all.len() > 50, "{}", all.len());
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    for step in [1, 2, 7] {
        let (mut met, mut resume, mut rounds) = (Met::new(), None, 0);
        loop {
            let (some, walked) = walk(&objset, resume, notes(step));
            met.extend(some);
            let Err(stopped) = walked else { break };
            assert_eq!(stopped.why, End::Budget);
            assert_ne!(resume, Some(stopped.at));
            resume = Some(stopped.at);
            rounds += 1;
        }
        assert!(rounds >= 5 && met == all, "step {step}: {rounds} rounds");
    }
}

#[test]
fn what_is_damaged_is_gone_through_again_with_all_below_it() {
    let objset = objset();
    let (all, _) = walk(&objset, None, notes(usize::MAX));
    let leads_on = |(object, level, _): &&(u64, u8, u64)| *level > 0 || *object == META_DNODE;
    for bad in all.iter().filter(leads_on) {
        let with = |goes_on| Notes { bad: Some(*bad), goes_on, ..notes(usize::MAX) };
        let (mut met, walked) = walk(&objset, None, with(false));
        let stopped = walked.unwrap_err();
        assert_eq!(stopped.why, End::Damage);
        assert!(!met.contains(bad));
        met.extend(walk(&objset, Some(stopped.at), notes(usize::MAX)).0);
        assert!(met == all, "{bad:?}");
        // The rest does not need it.
        let (rest, walked) = walk(&objset, None, with(true));
        assert!(walked.is_ok() && rest.contains(bad) && rest.len() <= all.len());
    }
}
