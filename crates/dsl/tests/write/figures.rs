//! What `zfs get` shows of each dataset, snapshot and bookmark, compared with what the model counts.

use super::model::{Blocks, Bookmark, Head, Model, Snapshot, sum, without};
use super::{POOL, Rig};
use cenote_dsl::deadlist::Sizes;
use cenote_dsl::write::Tx;
use cenote_dsl::{Dataset, Dsl};
use cenote_format::dsl::DslDatasetPhys;
use std::collections::BTreeSet;

/// What tells a state apart from all others.
pub fn guid(tx: &mut Tx<'_>, object: u64) -> u64 {
    let bonus = tx.mos.dnode(object).unwrap().bonus.clone();
    let bytes = cenote_format::Bytes::new(&bonus, cenote_format::ByteOrder::Little, "test");
    DslDatasetPhys::decode(&bytes).unwrap().guid
}

fn ratio(s: Sizes) -> String {
    let n = (s.uncompressed * 100).checked_div(s.compressed).unwrap_or(100);
    format!("{}.{:02}", n / 100, n % 100)
}

/// A dataset of which properties are compared.
struct Shown<'a> {
    dsl: &'a Dsl,
    of: &'a Dataset,
}

impl Shown<'_> {
    fn get(&self, property: &str) -> Option<String> {
        self.dsl.get(self.of, property).unwrap().map(|value| value.exact)
    }

    fn is(&self, property: &str, expected: impl ToString) {
        let (name, expected) = (&self.of.name, Some(expected.to_string()));
        assert_eq!(self.get(property), expected, "{property} of {name}");
    }

    fn numbers(&self, expected: &[(&str, u64)]) {
        expected.iter().for_each(|(property, n)| self.is(property, n));
    }

    /// What snapshots, heads and bookmarks have.
    fn state(&self, total: Sizes) {
        let (referenced, logical) = (total.used, total.uncompressed);
        self.numbers(&[("referenced", referenced), ("logicalreferenced", logical)]);
    }
}

/// A state that others descend from.
struct Ancestor<'m> {
    txg: u64,
    name: String,
    blocks: &'m Blocks,
    /// What is counted too much as written since then.
    more: i64,
}

impl Ancestor<'_> {
    fn written_to(&self, blocks: &Blocks) -> u64 {
        without(blocks, &[self.blocks]).used.wrapping_add_signed(self.more)
    }
}

impl Model {
    /// The snapshots and bookmarks that a head descends from: its own, and the ones of its origin and so on.
    fn ancestors<'m>(&'m self, name: &'m str) -> Vec<Ancestor<'m>> {
        let mut found = Vec::new();
        let (mut of, mut last) = (name.to_string(), u64::MAX);
        let mut clone: Option<&Head> = None;
        loop {
            let head = &self.heads[&of];
            for Snapshot { name, txg, blocks, .. } in
                head.snapshots.iter().filter(|s| s.txg <= last)
            {
                let name = format!("{of}@{name}");
                found.push(Ancestor { txg: *txg, name, blocks, more: 0 });
            }
            for Bookmark { name, txg, blocks, .. } in
                head.bookmarks.iter().filter(|b| b.txg <= last)
            {
                // A bookmark has what was freed after it in its own file system. OpenZFS counts with that
                // for clones of its snapshot, too.
                let freed = |since: &Blocks| without(blocks, &[since]).used as i64;
                let more = clone.filter(|_| *txg == last).map_or(0, |clone| {
                    let next = clone.snapshots.first().map_or(&clone.blocks, |s| &s.blocks);
                    freed(head.after_txg(*txg)) - freed(next)
                });
                let name = format!("{of}#{name}");
                found.push(Ancestor { txg: *txg, name, blocks, more });
            }
            let Some((origin, _)) = head.origin else { return found };
            let (next, at) = self.find(origin).unwrap();
            last = self.heads[&next].snapshots[at].txg;
            (of, clone) = (next, Some(head));
        }
    }
}

impl Rig {
    /// Compares all that is shown of a head, its snapshots and its bookmarks.
    pub fn check_shown(&self, dsl: &Dsl, found: &Dataset, name: &str) {
        let head = &self.model.heads[name];
        let shown = Shown { dsl, of: found };
        let total = sum(head.blocks.values());
        shown.state(total);
        shown.is("refcompressratio", ratio(total));
        let written = without(&head.blocks, &[head.before(head.snapshots.len())]);
        shown.numbers(&[("written", written.used), ("reservation", head.reservation)]);
        shown.is("refreservation", head.refreservation);
        if name != POOL {
            self.check_used(&shown, name);
        }
        let origin = head.origin.as_ref().map(|(origin, _)| {
            let (of, at) = self.model.find(*origin).unwrap();
            format!("{of}@{}", self.model.heads[&of].snapshots[at].name)
        });
        assert_eq!(shown.get("origin").filter(|o| !o.is_empty()), origin, "origin of {name}");

        let ancestors = self.model.ancestors(name);
        for earlier in &ancestors {
            shown.is(&relative(name, &earlier.name), earlier.written_to(&head.blocks));
        }
        for (i, snap) in head.snapshots.iter().enumerate() {
            self.check_snapshot(dsl, (name, head), i, &ancestors);
            let clones = self.model.clones(snap.object);
            let of = dsl.find(&format!("{name}@{}", snap.name)).unwrap().unwrap();
            let shown = Shown { dsl, of: &of };
            shown.numbers(&[("numclones", clones as u64), ("userrefs", snap.holds.len() as u64)]);
            shown.is("defer_destroy", if snap.deferred { "on" } else { "off" });
            let names = shown.get("clones").unwrap_or_default();
            let names: BTreeSet<&str> = names.split(',').filter(|name| !name.is_empty()).collect();
            assert_eq!(names, self.names_of_clones(snap), "clones of {}", of.name);
        }
        for mark in &head.bookmarks {
            check_bookmark(dsl, name, mark);
        }
    }

    fn names_of_clones(&self, of: &Snapshot) -> BTreeSet<&str> {
        let is = |head: &Head| head.origin.as_ref().is_some_and(|(origin, _)| *origin == of.object);
        self.model.heads.iter().filter(|(_, h)| is(h)).map(|(name, _)| name.as_str()).collect()
    }

    /// The space that a dataset and what is below it use.
    fn check_used(&self, shown: &Shown<'_>, name: &str) {
        let ([head, snapshots, children, reserved, refreserved], used) = self.model.breakdown(name);
        shown.numbers(&[
            ("used", used.used),
            ("logicalused", used.uncompressed),
            ("usedbydataset", head),
            ("usedbysnapshots", snapshots),
            ("usedbychildren", children + reserved),
            ("usedbyrefreservation", refreserved),
        ]);
        shown.is("compressratio", ratio(used));
    }

    fn check_snapshot(
        &self,
        dsl: &Dsl,
        (name, head): (&str, &Head),
        i: usize,
        ancestors: &[Ancestor<'_>],
    ) {
        let snap = &head.snapshots[i];
        let of = dsl.find(&format!("{name}@{}", snap.name)).unwrap().unwrap();
        let shown = Shown { dsl, of: &of };
        let total = sum(snap.blocks.values());
        shown.state(total);
        shown.is("compressratio", ratio(total));
        shown.is("refcompressratio", ratio(total));
        let unique = without(&snap.blocks, &[head.before(i), head.after(i)]).used;
        let written = without(&snap.blocks, &[head.before(i)]).used;
        shown.numbers(&[("used", unique), ("written", written)]);
        shown.numbers(&[("createtxg", snap.txg), ("guid", snap.guid)]);
        for other in ancestors {
            // What is as old, or younger, is no earlier state.
            let written = (other.txg < snap.txg).then(|| other.written_to(&snap.blocks));
            let is = shown.get(&relative(name, &other.name));
            assert_eq!(is, written.map(|n| n.to_string()), "{} of {}", other.name, of.name);
        }
    }
}

/// The property that tells what was written since a snapshot or bookmark, which has a short name if it is of the
/// same dataset.
fn relative(name: &str, full: &str) -> String {
    match full.strip_prefix(name) {
        Some(short) if short.starts_with(['@', '#']) => format!("written{short}"),
        _ => format!("written@{full}"),
    }
}

fn check_bookmark(dsl: &Dsl, name: &str, mark: &Bookmark) {
    let of = dsl.find(&format!("{name}#{}", mark.name)).unwrap().unwrap();
    let shown = Shown { dsl, of: &of };
    shown.state(sum(mark.blocks.values()));
    shown.numbers(&[("createtxg", mark.txg), ("guid", mark.guid)]);
}
