//! Livelists of clones: kept, condensed, given up, and freed when the clone is destroyed.

use super::{Rig, key};
use cenote_dmu::ObjectSet;
use cenote_dmu::zap::Zap;
use cenote_dsl::deadlist::{Deadlist, Freed};
use cenote_dsl::write::Tx;
use cenote_dsl::write::destroy::Way;
use cenote_dsl::write::livelist::condense;
use cenote_dsl::{Dataset, Dsl, bpobj};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What happened to livelists.
#[derive(Debug, Default)]
pub struct Seen {
    /// Pairs of sub-lists condensed, and given up.
    condensed: usize,
    too_late: usize,
    /// Livelists of more than four sub-lists, and clones without a livelist, as groups ended.
    long: usize,
    without: usize,
    /// Datasets destroyed by their livelist, and by walking.
    by_list: usize,
    by_tree: usize,
    /// Transaction groups that ended with the livelist of a destroyed clone partly freed.
    partly: usize,
}

impl Seen {
    pub fn goes(&mut self, way: &Way) {
        match way {
            Way::Livelist(_) => self.by_list += 1,
            _ => self.by_tree += 1,
        }
    }

    fn counts(&mut self) -> [&mut usize; 7] {
        let Seen { condensed, too_late, long, without, by_list, by_tree, partly } = self;
        [condensed, too_late, long, without, by_list, by_tree, partly]
    }

    pub fn add(&mut self, mut other: Seen) {
        self.counts().into_iter().zip(other.counts()).for_each(|(sum, n)| *sum += *n);
    }

    /// Whether all of it happened.
    pub fn is_all(&mut self) -> bool {
        self.counts().into_iter().all(|n| *n > 0)
    }
}

impl Rig {
    /// Reads sub-lists to be condensed, as a thread does between transaction groups.
    pub fn read_pair(&mut self, mos: &Arc<ObjectSet>) {
        if self.condensed.is_some() || self.random.below(2) == 0 {
            return;
        }
        let Some(pair) = self.pair.take() else { return };
        // The group may have destroyed the clone since.
        let Ok(read) = condense::read(mos, pair, &|| false) else { return };
        self.condensed = read;
        assert!(condense::read(mos, pair, &|| true).is_ok_and(|read| read.is_none()));
    }

    /// Puts what was read in its place, some groups later.
    pub fn condense(&mut self, tx: &mut Tx<'_>) {
        if self.random.below(3) > 0 {
            return;
        }
        let Some(condensed) = self.condensed.take() else { return };
        match condense::apply(tx, condensed).unwrap() {
            true => self.seen.condensed += 1,
            false => self.seen.too_late += 1,
        }
    }

    /// Whether a head has a livelist, which is what it has beyond its origin.
    pub fn check_livelist(
        &mut self,
        mos: &Arc<ObjectSet>,
        dsl: &Dsl,
        of: &Dataset,
        name: &str,
    ) -> bool {
        let head = &self.model.heads[name];
        let Some(list) = dsl.livelist(of).unwrap() else {
            self.seen.without += usize::from(head.origin.is_some());
            return false;
        };
        self.seen.long += usize::from(list.lists.len() > 4);
        let (_, origin) = head.origin.as_ref().unwrap();
        let own = head.blocks.keys().filter(|k| !origin.contains_key(k) && **k >> 63 == 0);
        let live = live(mos, &list);
        assert_eq!(live, own.copied().collect(), "{name}");
        true
    }

    /// Livelists of destroyed clones: what is left of them waits. Their number.
    pub fn check_deleted(&mut self, mos: &Arc<ObjectSet>, dsl: &Dsl) -> u64 {
        let directory = Zap::open(&mos.object(1).unwrap()).unwrap();
        let Some(queue) = directory.u64(b"com.delphix:deleted_clones").unwrap() else { return 0 };
        let entries = Zap::open(&mos.object(queue).unwrap()).unwrap().entries().unwrap();
        assert!(!entries.is_empty());
        for entry in &entries {
            let list = dsl.deadlist_at(entry.u64().unwrap()).unwrap();
            let live = live(mos, &list);
            assert!(live.iter().all(|key| self.model.waiting.contains_key(key)));
            self.seen.partly += usize::from(!live.is_empty());
        }
        entries.len() as u64
    }
}

/// The blocks that are live in a livelist. Each sub-list has both entries of those that are not.
fn live(mos: &Arc<ObjectSet>, list: &Deadlist) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for (after, sub_list) in &list.lists {
        let mut freed = Freed::default();
        bpobj::iterate(mos, *sub_list, &mut |entry| {
            assert!(entry.bp.logical_birth() > *after && !entry.bp.is_embedded());
            if entry.freed {
                freed.free(&entry.bp);
            } else if freed.is_live(&entry.bp) {
                assert!(found.insert(key(&entry.bp)));
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(freed.unmatched(), 0);
    }
    found
}
