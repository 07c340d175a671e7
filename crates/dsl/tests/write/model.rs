//! What a pool should be: which blocks every dataset has, and what follows from that.

use cenote_dsl::deadlist::Sizes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Blocks by the number that tells them apart, with what they count for.
pub type Blocks = BTreeMap<u64, Sizes>;

#[derive(Clone)]
pub struct Snapshot {
    pub name: String,
    pub object: u64,
    pub guid: u64,
    pub txg: u64,
    pub blocks: Arc<Blocks>,
    pub holds: BTreeSet<String>,
    /// It goes as soon as nothing keeps it.
    pub deferred: bool,
}

#[derive(Clone)]
pub struct Bookmark {
    pub name: String,
    /// This and the next two are the snapshot's that it is of.
    pub guid: u64,
    pub txg: u64,
    pub blocks: Arc<Blocks>,
}

/// A file system, by its full name.
#[derive(Default)]
pub struct Head {
    pub dir: u64,
    pub object: u64,
    pub blocks: Blocks,
    pub snapshots: Vec<Snapshot>,
    pub bookmarks: Vec<Bookmark>,
    /// The object of the snapshot that it is a clone of, and that snapshot's blocks.
    pub origin: Option<(u64, Arc<Blocks>)>,
    pub reservation: u64,
    pub refreservation: u64,
}

#[derive(Default)]
pub struct Model {
    pub heads: BTreeMap<String, Head>,
    /// Blocks of what was destroyed, that were not freed yet.
    pub waiting: Blocks,
}

pub fn sum<'a>(sizes: impl IntoIterator<Item = &'a Sizes>) -> Sizes {
    let mut sum = Sizes::default();
    for s in sizes {
        sum.used += s.used;
        sum.compressed += s.compressed;
        sum.uncompressed += s.uncompressed;
    }
    sum
}

/// Sizes of those that are not in any of `others`.
pub fn without(blocks: &Blocks, others: &[&Blocks]) -> Sizes {
    let own = blocks.iter().filter(|(key, _)| !others.iter().any(|o| o.contains_key(key)));
    sum(own.map(|(_, sizes)| sizes))
}

static NONE: Blocks = Blocks::new();

impl Head {
    fn origin_blocks(&self) -> &Blocks {
        self.origin.as_ref().map_or(&NONE, |(_, blocks)| blocks)
    }

    /// The blocks of the state before snapshot `i`, or before the head.
    pub fn before(&self, i: usize) -> &Blocks {
        match i {
            0 => self.origin_blocks(),
            i => &self.snapshots[i - 1].blocks,
        }
    }

    /// The blocks of the state after snapshot `i`.
    pub fn after(&self, i: usize) -> &Blocks {
        self.snapshots.get(i + 1).map_or(&self.blocks, |s| &s.blocks)
    }

    /// The blocks of the first state after a bookmark.
    pub fn after_txg(&self, txg: u64) -> &Blocks {
        self.snapshots.iter().find(|s| s.txg > txg).map_or(&self.blocks, |s| &s.blocks)
    }

    pub fn unique(&self) -> u64 {
        without(&self.blocks, &[self.before(self.snapshots.len())]).used
    }

    /// Used by the head, its snapshots, and its refreservation.
    pub fn own(&self) -> ([u64; 3], Sizes) {
        let origin = self.origin_blocks();
        let mut all: Blocks = Blocks::new();
        let states = self.snapshots.iter().map(|s| &*s.blocks).chain([&self.blocks]);
        for blocks in states {
            all.extend(
                blocks.iter().filter(|(k, _)| !origin.contains_key(k)).map(|(k, s)| (*k, *s)),
            );
        }
        let head = without(&self.blocks, &[origin]).used;
        let total = sum(all.values());
        ([head, total.used - head, self.refreservation.saturating_sub(self.unique())], total)
    }
}

impl Model {
    pub fn children<'m>(&'m self, name: &'m str) -> impl Iterator<Item = &'m str> {
        let of =
            move |other: &&String| other.rsplit_once('/').is_some_and(|(parent, _)| parent == name);
        self.heads.keys().filter(of).map(String::as_str)
    }

    /// The breakdown of a directory, its used space in all, and compressed and uncompressed.
    pub fn breakdown(&self, name: &str) -> ([u64; 5], Sizes) {
        let ([head, snapshots, refreserved], mut sizes) = self.heads[name].own();
        let (mut children, mut reserved) = (0, 0);
        for child in self.children(name) {
            let (_, below) = self.breakdown(child);
            children += below.used;
            reserved += self.heads[child].reservation.saturating_sub(below.used);
            sizes.compressed += below.compressed;
            sizes.uncompressed += below.uncompressed;
        }
        let parts = [head, snapshots, children, reserved, refreserved];
        (parts, Sizes { used: parts.iter().sum(), ..sizes })
    }

    /// All blocks of all datasets.
    pub fn live(&self) -> Blocks {
        let mut all = Blocks::new();
        for head in self.heads.values() {
            all.extend(&head.blocks);
            head.snapshots.iter().for_each(|s| all.extend(&*s.blocks));
        }
        all
    }

    /// Names of heads that have this snapshot as their origin.
    pub fn clones(&self, object: u64) -> usize {
        let of = |h: &&Head| h.origin.as_ref().is_some_and(|(origin, _)| *origin == object);
        self.heads.values().filter(of).count()
    }

    /// The name of the head that has a snapshot, and which of its snapshots it is.
    pub fn find(&self, object: u64) -> Option<(String, usize)> {
        self.heads.iter().find_map(|(name, head)| {
            let at = head.snapshots.iter().position(|s| s.object == object)?;
            Some((name.clone(), at))
        })
    }

    /// Something that kept a snapshot is gone: it goes, too, if it is marked and nothing else keeps it.
    pub fn settle(&mut self, object: u64) {
        let Some((name, i)) = self.find(object) else { return };
        let snap = &self.heads[&name].snapshots[i];
        if snap.deferred && snap.holds.is_empty() && self.clones(object) == 0 {
            let gone = self.heads.get_mut(&name).unwrap().snapshots.remove(i);
            self.leave(&gone.blocks);
        }
    }

    /// A clone and the head whose snapshot it is of change places.
    pub fn promote(&mut self, clone: &str) {
        let (origin, _) = self.heads[clone].origin.clone().unwrap();
        let (old, at) = self.find(origin).unwrap();
        let head = self.heads.get_mut(&old).unwrap();
        let later = head.snapshots.split_off(at + 1);
        let mut shared = std::mem::replace(&mut head.snapshots, later);
        let newest = shared.last().unwrap().clone();
        let before = head.origin.replace((newest.object, newest.blocks));
        let (moved, kept) =
            std::mem::take(&mut head.bookmarks).into_iter().partition(|b| b.txg <= newest.txg);
        head.bookmarks = kept;
        let head = self.heads.get_mut(clone).unwrap();
        shared.append(&mut head.snapshots);
        head.snapshots = shared;
        head.bookmarks.extend::<Vec<Bookmark>>(moved);
        head.origin = before;
    }

    /// What of `blocks` no dataset has any more waits to be freed.
    pub fn leave(&mut self, blocks: &Blocks) {
        let live = self.live();
        let gone = blocks.iter().filter(|(key, _)| !live.contains_key(key));
        self.waiting.extend(gone);
    }
}
