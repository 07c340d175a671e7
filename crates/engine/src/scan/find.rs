//! Finding blocks (`dsl_scan_visit`): a walk over the MOS and all data sets that goes on at the bookmark.
//!
//! Blocks that intent logs lead to are found with their data set, as far as an import has claimed them
//! (`dsl_scan_zil`); others are not there for long.

use super::position::{Current, Position, Unseen, dataset};
use crate::tunables::{SCAN_MEM_LIM_FACT, usable_memory};
use cenote_dmu::{Error, Tree};
use cenote_dsl::traverse::{Mark, Place, Traversal, Visitor, read_root};
use cenote_dsl::zil;
use cenote_format::ByteOrder;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::dsl::{DS_FLAG_INCONSISTENT, DslDatasetPhys};
use cenote_format::{invariant, less};
use cenote_pool::Pool;
use cenote_pool::scan::{Pass, ScanPhys};
use cenote_store::{Bookmark, ScanBlock, ScanFunc, ScanKeys, Store};
use cenote_vdev::VdevTree;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of blocks in one round: what is freed while they are read waits for them.
const MOST_BYTES: u64 = 32 << 30;
/// However often the bounds are halved, a round has so many blocks, and so many bytes of them.
const LEAST_BLOCKS: usize = 4096;
const LEAST_BYTES: u64 = 64 << 20;
/// Pointers that a round passes, however late it is: more than lead from the root of an object set to a block.
const LEAST_SEEN: u64 = 64;
/// Memory for pointers, where the system does not say how much it has.
const SOME_MEMORY: u64 = 1 << 30;

/// Tells of changes of what is known of the scan.
pub(super) type Progress<'a> = &'a (dyn Fn(&dyn Fn(&mut Pass)) + Sync);

/// How a round goes on.
#[derive(Clone, Copy)]
pub(super) struct Course<'a> {
    /// Nothing of it counts any more.
    pub ends: &'a (dyn Fn() -> bool + Sync),
    /// It has taken its time.
    pub late: &'a (dyn Fn() -> bool + Sync),
    pub progress: Progress<'a>,
}

/// What a round found.
pub(super) struct Found {
    func: ScanFunc,
    /// Blocks that were born later than the first and up to the second are looked at.
    born: (u64, u64),
    blocks: Vec<ScanBlock>,
    /// Keys of the data sets that they are of, as far as these are loaded.
    keys: Arc<ScanKeys>,
    most: usize,
    most_bytes: u64,
    /// Bytes of blocks to be read, of all found, and of those that need not be read.
    bytes: u64,
    examined: u64,
    skipped: u64,
    /// Parts of trees that cannot be walked.
    unseen: u64,
    /// Some of them may be readable once devices are back or answer.
    hidden: bool,
    /// A key is loaded that could not be read.
    is_keyless: bool,
    /// Data sets whose keys could not be read, in this round or ones before.
    keyless: BTreeSet<u64>,
    /// Those of them that no read has told of, as they were read and make no sense.
    senseless: Vec<Bookmark>,
    /// Pointers and data sets that were passed.
    seen: u64,
}

impl Found {
    /// Nothing yet; the bounds are halved `shorter` times. `keys` has none yet.
    pub fn new(func: ScanFunc, phys: &ScanPhys, shorter: u32, keys: Arc<ScanKeys>) -> Found {
        let memory = usable_memory().unwrap_or(SOME_MEMORY) / SCAN_MEM_LIM_FACT.get();
        // A vector that grows takes three times what it has, for a moment.
        let each = 3 * size_of::<ScanBlock>();
        let most = usize::try_from(memory).unwrap_or(usize::MAX) / each;
        let most = most.checked_shr(shorter).unwrap_or(0).max(LEAST_BLOCKS);
        let most_bytes = MOST_BYTES.checked_shr(shorter).unwrap_or(0).max(LEAST_BYTES);
        let (born, blocks, senseless) = ((phys.min_txg, phys.max_txg), Vec::new(), Vec::new());
        let (bytes, examined, skipped, unseen, seen, hidden) = (0, 0, 0, 0, 0, false);
        Found {
            func,
            born,
            blocks,
            keys,
            most,
            most_bytes,
            bytes,
            examined,
            skipped,
            unseen,
            hidden,
            is_keyless: false,
            keyless: BTreeSet::new(),
            senseless,
            seen,
        }
    }

    /// Bytes of blocks that were found, and of those of them that need not be read.
    pub fn totals(&self) -> (u64, u64) {
        let (examined, skipped, wanted) = (self.examined, self.skipped, self.bytes);
        invariant!(
            examined == skipped + wanted,
            "scan: {examined} bytes were found, {wanted} are to be read, and {skipped} are not"
        );
        (self.examined, self.skipped)
    }

    /// How many parts of trees could not be walked.
    pub fn unseen(&self) -> u64 {
        self.unseen
    }

    /// Whether some of these may be readable later.
    pub fn hides(&self) -> bool {
        self.hidden
    }

    /// A block that leads to others cannot be read. What is lost for good, with all below it, can be given to no leaf.
    fn miss(&mut self, store: &Store, bp: &BlockPointer, at: Bookmark, why: &Error) {
        self.unseen += 1;
        match why {
            Error::Block(why) => self.hidden |= !store.stays_unread(bp, at, why),
            // Reads tell of blocks themselves.
            _ => {
                self.hidden |= !store.stays_senseless(bp, at);
                self.senseless.push(at);
            }
        }
    }

    fn miss_more(&mut self, unseen: Unseen) {
        self.unseen += unseen.parts;
        self.hidden |= unseen.hidden;
    }

    /// A part cannot be walked, and may be readable later.
    fn miss_one(&mut self) {
        self.miss_more(Unseen { parts: 1, hidden: true });
    }

    /// The blocks, the keys of their data sets, and the places of what was read and makes no sense.
    pub fn into_blocks(self) -> (Vec<ScanBlock>, Arc<ScanKeys>, Vec<Bookmark>) {
        (self.blocks, self.keys, self.senseless)
    }

    /// Gets the key of data set `ds`, as `view` has it, if that is loaded. False: it is, and cannot be read.
    pub fn get_key(&self, view: &Pool, ds: u64, phys: &DslDatasetPhys) -> bool {
        // What is received raw has MACs that are right only once all of it is there.
        if phys.flags & DS_FLAG_INCONSISTENT != 0 {
            return true;
        }
        let lent = view.dsl().lend_key(ds, phys.dir, &self.keys);
        if let Err(why) = &lent {
            tracing::warn!(ds, "a scan goes without the key of a data set: {why}");
        }
        lent.is_ok()
    }

    /// A scrub looks at MACs of data set `ds`: without the key, which is loaded, it goes by pointers. That is an error, once for all rounds in
    /// the data set.
    fn lacks_key(&mut self, ds: u64) {
        if self.func == ScanFunc::Scrub {
            self.is_keyless = true;
            let parts = u64::from(self.keyless.insert(ds));
            self.miss_more(Unseen { parts, hidden: true });
        }
    }

    /// Rounds before have told that the keys of these data sets cannot be read.
    pub fn knows_keyless(&mut self, told: BTreeSet<u64>) {
        self.keyless = told;
    }

    /// Whether a key is loaded that could not be read.
    pub fn is_keyless(&self) -> bool {
        self.is_keyless
    }

    /// Data sets whose keys could not be read, with what rounds before have told.
    pub fn keyless(&self) -> &BTreeSet<u64> {
        &self.keyless
    }

    /// Whether a round is to look at what it has by now (`dsl_scan_check_suspend`).
    fn is_enough(&self, late: &dyn Fn() -> bool) -> bool {
        let full = self.blocks.len() >= self.most || self.bytes >= self.most_bytes;
        full || self.seen >= LEAST_SEEN && late()
    }

    /// Takes in a block, unless it was born too early or too late.
    pub fn add(&mut self, tree: &VdevTree, bp: &BlockPointer, at: Bookmark) {
        let (after, last) = self.born;
        let birth = bp.physical_birth();
        if bp.is_hole() || bp.is_embedded() || birth <= after || birth > last {
            return;
        }
        let gang = bp.is_gang();
        let needs = |dva: &Dva| match self.func {
            ScanFunc::Scrub => true,
            // Its parts may be anywhere.
            ScanFunc::Resilver if gang => {
                tree.root().children().iter().any(|top| tree.needs_resilver(top.id(), birth))
            }
            // What makes no sense may be lacking anywhere.
            ScanFunc::Resilver => tree.needs_resilver(dva.vdev.into(), birth),
        };
        let mut first = true;
        for (copy, dva) in (0..3).filter_map(|copy| Some((copy, bp.dva(copy)?))) {
            self.examined += dva.asize;
            match needs(&dva) {
                true => {
                    self.bytes += dva.asize;
                    let first = std::mem::take(&mut first);
                    self.blocks.push(ScanBlock { bp: *bp, at, copy, first });
                }
                false => self.skipped += dva.asize,
            }
        }
    }
}

/// The blocks of one tree (`dsl_scan_visitbp`).
struct Finder<'a> {
    found: &'a mut Found,
    store: &'a Store,
    tree: &'a VdevTree,
    /// Blocks that were born up to this group belong to another tree.
    after: u64,
    resume: Option<Mark>,
    course: Course<'a>,
    /// Bytes of the round that were told.
    told: u64,
}

impl Finder<'_> {
    /// Whether the walk before has taken in a block that this one passes again on its way.
    fn was_met(&self, place: &Place<'_>) -> bool {
        let start = place.start();
        self.resume.is_some_and(|mark| (start.object, start.blkid) < (mark.object, mark.blkid))
    }

    fn tell(&mut self) {
        let examined = self.found.examined;
        let told = std::mem::replace(&mut self.told, examined);
        let more = less!(examined, told, "bytes that a walk found");
        (self.course.progress)(&|pass| {
            pass.examined = pass.examined.saturating_add(more);
            pass.ahead[0] = pass.ahead[0].saturating_add(more);
        });
    }
}

impl Visitor for Finder<'_> {
    /// The round has enough.
    type Stop = ();

    fn wants(&self, bp: &BlockPointer) -> bool {
        !bp.is_hole() && bp.birth() > self.after
    }

    fn object(&mut self, _: &Tree<'_>, _: ByteOrder) -> std::result::Result<bool, ()> {
        self.tell();
        Ok(true)
    }

    fn pre(&mut self, place: &Place<'_>) -> std::result::Result<bool, ()> {
        if (self.course.ends)() || self.found.is_enough(self.course.late) {
            return Err(());
        }
        if !self.was_met(place) {
            self.found.seen += 1;
            self.found.add(self.tree, &place.node.bp, place.at());
        }
        Ok(true)
    }

    fn damaged(
        &mut self,
        at: Bookmark,
        bp: &BlockPointer,
        why: Error,
    ) -> std::result::Result<(), ()> {
        self.found.miss(self.store, bp, at, &why);
        Ok(())
    }
}

/// Walks from `position` on until there is enough (`dsl_scan_visit`). Returns whether that was all.
pub(super) fn walk(
    view: &Pool,
    position: &mut Position,
    found: &mut Found,
    course: Course<'_>,
) -> bool {
    let vdevs = view.store().vdevs();
    let mut walk = Walk { view, tree: &vdevs, found, course };
    loop {
        if (course.ends)() || walk.found.is_enough(course.late) {
            return false;
        }
        match position {
            Position::Mos(mark) => {
                let bp = *view.mos().root_bp();
                match walk.tree(0, &bp, 0, *mark) {
                    Some(at) => *mark = Some(at),
                    None => {
                        let (roots, unseen) = Position::roots(view);
                        *position = roots;
                        walk.found.miss_more(unseen);
                    }
                }
            }
            Position::Sets { current, queue } => {
                if current.is_none() {
                    let next = queue.pop_first();
                    *current = next.map(|(ds, min)| Current { ds, min, mark: None });
                }
                let Some(now) = current else { return true };
                walk.found.seen += 1;
                match dataset(view.mos(), now.ds) {
                    Ok(Some(phys)) => {
                        if !walk.found.get_key(view, now.ds, &phys) {
                            walk.found.lacks_key(now.ds);
                        }
                        let at = walk.dataset(now, &phys);
                        if at.is_some() {
                            now.mark = at;
                            continue;
                        }
                        walk.found.miss_more(Position::descend(view, now.ds, &phys, queue));
                    }
                    // The state names data sets that are there: it cannot be read.
                    Ok(None) | Err(_) => walk.found.miss_one(),
                }
                *current = None;
            }
        }
    }
}

struct Walk<'a> {
    view: &'a Pool,
    tree: &'a VdevTree,
    found: &'a mut Found,
    course: Course<'a>,
}

impl Walk<'_> {
    /// Walks a data set (`dsl_scan_visitds`). Returns where it goes on, if it is not done.
    fn dataset(&mut self, now: &Current, phys: &DslDatasetPhys) -> Option<Mark> {
        let after = now.min.max(self.found.born.0);
        if phys.bp.is_hole() || phys.bp.birth() <= after {
            return None;
        }
        if now.mark.is_none() && phys.num_children == 0 {
            self.intent_log(now.ds, &phys.bp);
        }
        self.tree(now.ds, &phys.bp, after, now.mark)
    }

    /// Walks a tree of blocks. Returns where it goes on, if it is not done.
    fn tree(
        &mut self,
        objset: u64,
        bp: &BlockPointer,
        after: u64,
        resume: Option<Mark>,
    ) -> Option<Mark> {
        let store: &Arc<Store> = self.view.store();
        if resume.is_none() {
            self.found.add(self.tree, bp, Bookmark::root(objset));
        }
        let phys = match read_root(store, objset, bp) {
            Ok(phys) => phys,
            Err(why) => {
                self.found.miss(store, bp, Bookmark::root(objset), &why);
                return None;
            }
        };
        let after = after.max(self.found.born.0);
        let told = self.found.examined;
        let (tree, course) = (self.tree, self.course);
        let found = &mut *self.found;
        let mut finder = Finder { found, store, tree, after, resume, course, told };
        let walked = Traversal::new(store, objset, resume, &mut finder).all(&phys);
        finder.tell();
        walked.err().map(|stopped| stopped.at)
    }

    /// The blocks of an intent log that waits to be replayed (`dsl_scan_zil`).
    fn intent_log(&mut self, objset: u64, bp: &BlockPointer) {
        let store = self.view.store();
        // The walk of the tree tells of it.
        let Ok(phys) = read_root(store, objset, bp) else { return };
        let header = phys.zil;
        if header.claim_txg == 0 {
            return;
        }
        let (found, tree, ends) = (&mut *self.found, self.tree, self.course.ends);
        let end = zil::walk(store, &header, &mut |item| {
            match item {
                zil::Item::Block(bp) => found.add(tree, bp, zil::bookmark(bp)),
                zil::Item::Record(record) => {
                    let block = record.write_block().filter(|bp| bp.birth() >= header.claim_txg);
                    // A claim has added a reference to each block that is cloned.
                    let cloned = record.cloned_blocks();
                    let all = block.iter().chain(&cloned);
                    all.for_each(|bp| found.add(tree, bp, Bookmark::root(objset)));
                }
            }
            !ends()
        });
        // An import has claimed it up to a block that it could read.
        if matches!(end, zil::End::Unreadable | zil::End::Failed(_)) {
            self.found.miss_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_never_too_short_to_go_on() {
        for shorter in [0, 1, 20, 63, 64, u32::MAX] {
            let found = Found::new(ScanFunc::Scrub, &ScanPhys::default(), shorter, Arc::default());
            assert!(found.most >= LEAST_BLOCKS && found.most_bytes >= LEAST_BYTES);
            // Late as it is, it passes some pointers.
            assert!(!found.is_enough(&|| true));
        }
        let mut found = Found::new(ScanFunc::Scrub, &ScanPhys::default(), 0, Arc::default());
        found.seen = LEAST_SEEN;
        assert!(found.is_enough(&|| true) && !found.is_enough(&|| false));
    }
}
