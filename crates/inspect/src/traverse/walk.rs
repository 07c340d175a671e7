//! The worker threads of a traversal and what they do with a block.

use super::account::Account;
use super::{Event, Found, Options, Root, Subject, Verify, stats};
use cenote_dmu::Error;
use cenote_dsl::zil;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::dmu::{DNODE_SLOT, DmuType, DnodePhys, ObjsetPhys};
use cenote_format::{Bytes, DecodeError};
use cenote_store::{Block, Bookmark};
use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Blocks in one verification task.
const VERIFY_BATCH: usize = 32;
/// Object numbers of the accounting dnodes (`DMU_USERUSED_OBJECT` and so on).
const ACCOUNTING: [u64; 3] = [u64::MAX, u64::MAX - 1, u64::MAX - 2];
/// Block number of a spill block (`DMU_SPILL_BLKID`).
const SPILL_BLKID: u64 = u64::MAX - 1;

/// What a block's contents are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// An object set.
    Objset,
    /// Block pointers, which lead to dnodes if it belongs to the meta dnode.
    Pointers { dnodes: bool },
    /// Dnodes.
    Dnodes,
}

/// The tree that a block belongs to, as far as it matters below the root.
#[derive(Clone, Copy)]
struct Tree {
    min_txg: u64,
    freed_to: Option<Bookmark>,
}

enum Task {
    Root(Root),
    Descend { tree: Tree, at: Bookmark, bp: BlockPointer, holds: Holds, indirect_shift: u8 },
    Verify(Vec<(Bookmark, BlockPointer)>),
}

struct Walker<'a> {
    subject: &'a Subject<'a>,
    options: &'a Options,
    event: &'a (dyn Fn(Event<'_>) + Sync),
    stopped: &'a (dyn Fn() -> bool + Sync),
    account: Mutex<Account>,
    tasks: Mutex<Vec<Task>>,
    wake: Condvar,
    busy: AtomicUsize,
    last_progress: Mutex<Instant>,
}

/// Traverses `roots`, the first one first, and returns the account.
pub(super) fn walk(
    subject: &Subject<'_>,
    roots: Vec<Root>,
    account: Account,
    options: &Options,
    event: &(dyn Fn(Event<'_>) + Sync),
    stopped: &(dyn Fn() -> bool + Sync),
) -> Account {
    let walker = Walker {
        subject,
        options,
        event,
        stopped,
        account: Mutex::new(account),
        tasks: Mutex::new(roots.into_iter().rev().map(Task::Root).collect()),
        wake: Condvar::new(),
        busy: AtomicUsize::new(0),
        last_progress: Mutex::new(Instant::now()),
    };
    std::thread::scope(|scope| {
        for _ in 1..options.workers.clamp(1, 64) {
            scope.spawn(|| walker.work());
        }
        walker.work();
    });
    walker.account.into_inner()
}

/// `BP_GET_BIRTH`: when the block was allocated for this tree. Blocks that 2.4 has rewritten say
/// so in the top bit of word 8 and count from their physical birth.
pub(super) fn birth(bp: &BlockPointer) -> u64 {
    let rewritten = !bp.is_embedded() && bp.0[8] >> 63 == 1;
    if rewritten { bp.physical_birth() } else { bp.logical_birth() }
}

/// Whether the subtree at `at` lies wholly before `mark` (`zbookmark_subtree_completed`).
fn is_before(at: &Bookmark, indirect_shift: u8, mark: &Bookmark) -> bool {
    let per_level = u32::from(indirect_shift).saturating_sub(7);
    let span =
        1u64.checked_shl(per_level.saturating_mul(at.level.max(0) as u32)).unwrap_or(u64::MAX);
    let end = at.blkid.saturating_add(1).saturating_mul(span);
    let end = if at.object == 0 { (end.saturating_mul(32), 0) } else { (at.object, end) };
    at.level >= 0 && end <= (mark.object, mark.blkid)
}

impl Walker<'_> {
    fn work(&self) {
        while let Some(task) = self.next() {
            match task {
                Task::Root(root) => self.root(root),
                Task::Descend { tree, at, bp, holds, indirect_shift } => {
                    self.descend(tree, at, &bp, holds, indirect_shift);
                }
                Task::Verify(batch) => self.verify(&batch),
            }
            self.progress();
            let tasks = self.tasks.lock();
            self.busy.fetch_sub(1, Ordering::SeqCst);
            drop(tasks);
            self.wake.notify_all();
        }
    }

    /// The next task; `None` when all work is done.
    fn next(&self) -> Option<Task> {
        let mut tasks = self.tasks.lock();
        loop {
            if (self.stopped)() {
                tasks.clear();
            }
            if let Some(task) = tasks.pop() {
                self.busy.fetch_add(1, Ordering::SeqCst);
                return Some(task);
            }
            if self.busy.load(Ordering::SeqCst) == 0 {
                return None;
            }
            self.wake.wait(&mut tasks);
        }
    }

    fn push(&self, new: Vec<Task>) {
        if !new.is_empty() {
            self.tasks.lock().extend(new);
            self.wake.notify_all();
        }
    }

    fn progress(&self) {
        let mut last = self.last_progress.lock();
        if last.elapsed() >= Duration::from_secs(1) {
            *last = Instant::now();
            let account = self.account.lock();
            let done = account.report.blocks.total().asize;
            (self.event)(Event::Progress { done, total: account.total });
        }
    }

    fn damaged(&self, e: &Error) {
        self.account.lock().damaged(e, self.event);
    }

    fn decode_error(&self, at: Bookmark, source: DecodeError) {
        self.damaged(&Error::Decode { objset: at.objset, object: at.object, source });
    }

    fn root(&self, root: Root) {
        if root.bp.is_hole() {
            return;
        }
        if root.with_log {
            self.intent_log(&root);
        }
        let at = Bookmark { objset: root.objset, object: 0, level: -1, blkid: 0 };
        let tree = Tree { min_txg: root.min_txg, freed_to: root.freed_to };
        self.children(tree, vec![(at, root.bp)], 0, None, Some(Holds::Objset));
    }

    /// The parts of an intent log that are in the space maps: claimed but not replayed, or of
    /// transaction groups that are synced.
    fn intent_log(&self, root: &Root) {
        let store = self.subject.store();
        let at = Bookmark { objset: root.objset, object: 0, level: -1, blkid: 0 };
        let Ok(block) = store.read(&root.bp, at) else { return };
        let data = block.data.bytes();
        let Ok(phys) = ObjsetPhys::decode(&Bytes::new(&data, block.order, "object set")) else {
            return;
        };
        let header = phys.zil;
        let mut found = Vec::new();
        zil::walk(store, &header, &mut |item| {
            match item {
                zil::Item::Block(bp) => {
                    if header.claim_txg == 0 && birth(bp) >= self.subject.min_claim_txg() {
                        return false;
                    }
                    found.push(Found::new(zil::bookmark(bp), *bp));
                }
                zil::Item::Record(record) => {
                    if let Some(bp) = record.write_block()
                        && header.claim_txg != 0
                        && birth(&bp) >= header.claim_txg
                    {
                        found.push(Found::new(at, bp));
                    }
                }
            }
            !(self.stopped)()
        });
        // Records may refer to one block several times.
        let mut seen = HashSet::new();
        let mut account = self.account.lock();
        for f in found.iter().filter(|f| seen.insert(f.bp.dva(0))) {
            account.add(store, f, self.event);
        }
    }

    fn read(&self, at: Bookmark, bp: &BlockPointer) -> Option<Block> {
        match self.subject.store().read(bp, at) {
            Ok(block) => Some(block),
            Err(e) => {
                self.account.lock().report.unreadable += 1;
                (self.event)(Event::Unreadable { at, bp, errors: &[e] });
                None
            }
        }
    }

    fn descend(
        &self,
        tree: Tree,
        at: Bookmark,
        bp: &BlockPointer,
        holds: Holds,
        indirect_shift: u8,
    ) {
        let Some(block) = self.read(at, bp) else { return };
        let data = block.data.bytes();
        let b = Bytes::new(&data, block.order, "block");
        match holds {
            Holds::Objset => self.objset(tree, at, &b),
            Holds::Dnodes => self.dnodes(tree, at, &b),
            Holds::Pointers { dnodes } => {
                let count = (data.len() / BLKPTR_SIZE) as u64;
                let children = (0..count).filter_map(|i| {
                    let child = BlockPointer::decode(&b, i as usize * BLKPTR_SIZE).ok()?;
                    let blkid = at.blkid.saturating_mul(count).saturating_add(i);
                    Some((Bookmark { level: at.level - 1, blkid, ..at }, child))
                });
                let below = dnodes.then_some(Holds::Dnodes);
                self.children(tree, children.collect(), indirect_shift, below, None);
            }
        }
    }

    fn objset(&self, tree: Tree, at: Bookmark, b: &Bytes<'_>) {
        let phys = match ObjsetPhys::decode(b) {
            Ok(phys) => phys,
            Err(e) => return self.decode_error(at, e),
        };
        let accounting = [&phys.user_used, &phys.group_used, &phys.project_used];
        for (dnode, object) in accounting.into_iter().zip(ACCOUNTING) {
            if let Some(dnode) = dnode {
                self.dnode(tree, at.objset, object, dnode, None);
            }
        }
        self.dnode(tree, at.objset, 0, &phys.meta_dnode, Some(Holds::Dnodes));
    }

    fn dnodes(&self, tree: Tree, at: Bookmark, b: &Bytes<'_>) {
        let slots = (b.len() / DNODE_SLOT) as u64;
        let mut slot = 0;
        while slot < slots {
            let object = at.blkid.saturating_mul(slots).saturating_add(slot);
            match DnodePhys::decode(b, slot as usize * DNODE_SLOT) {
                Ok(None) => slot += 1,
                Ok(Some(dnode)) => {
                    self.dnode(tree, at.objset, object, &dnode, None);
                    slot += dnode.slots();
                }
                Err(e) => {
                    self.decode_error(Bookmark { object, ..at }, e);
                    slot += 1;
                }
            }
        }
    }

    /// The block pointers of a dnode. `leaves` says what its data blocks hold, if they lead on.
    fn dnode(
        &self,
        tree: Tree,
        objset: u64,
        object: u64,
        dnode: &DnodePhys,
        leaves: Option<Holds>,
    ) {
        let level = i64::from(dnode.levels) - 1;
        let pointers = (0..).zip(&dnode.pointers);
        let data = pointers.map(|(blkid, bp)| (Bookmark { objset, object, level, blkid }, *bp));
        self.children(tree, data.collect(), dnode.indirect_shift, leaves, None);
        if let Some(spill) = dnode.spill {
            let at = Bookmark { objset, object, level: 0, blkid: SPILL_BLKID };
            self.children(tree, vec![(at, spill)], dnode.indirect_shift, None, None);
        }
    }

    /// Accounts for block pointers and pushes the tasks that follow from them. `leaves`: what
    /// level-0 blocks hold if they lead on; `all`: what every block holds (object sets).
    fn children(
        &self,
        tree: Tree,
        pointers: Vec<(Bookmark, BlockPointer)>,
        indirect_shift: u8,
        leaves: Option<Holds>,
        all: Option<Holds>,
    ) {
        let (mut tasks, mut batch) = (Vec::new(), Vec::new());
        let mut misplaced = Vec::new();
        {
            let mut account = self.account.lock();
            for (at, bp) in pointers {
                let done = |mark: &Bookmark| is_before(&at, indirect_shift, mark);
                let freed = tree.freed_to.as_ref().is_some_and(done);
                if bp.is_hole() || is_redacted(&bp) || birth(&bp) <= tree.min_txg || freed {
                    continue;
                }
                let mut found = Found::new(at, bp);
                if tree.freed_to.is_some() {
                    found.kind = stats::DEFERRED;
                }
                account.add(self.subject.store(), &found, self.event);
                if self.wants_check(&bp) {
                    batch.push((at, bp));
                }
                if i64::from(bp.level()) != at.level.max(0) {
                    misplaced.push((at, bp.level()));
                    continue;
                }
                let holds = match (all, at.level) {
                    (Some(holds), _) => Some(holds),
                    (None, 0) => leaves,
                    (None, _) => Some(Holds::Pointers { dnodes: leaves.is_some() }),
                };
                if let Some(holds) = holds
                    && account.first_descent(&bp)
                {
                    tasks.push(Task::Descend { tree, at, bp, holds, indirect_shift });
                }
            }
        }
        for (at, level) in misplaced {
            let why = format!("block of level {level} where level {} belongs", at.level);
            self.decode_error(at, DecodeError::invalid("block pointer", why));
        }
        // Tasks are taken from the end: keep the order of the blocks.
        tasks.reverse();
        tasks.extend(batch.chunks(VERIFY_BATCH).map(|c| Task::Verify(c.to_vec())));
        self.push(tasks);
    }

    fn wants_check(&self, bp: &BlockPointer) -> bool {
        let metadata = bp.level() > 0 || DmuType(bp.object_type()).is_metadata();
        match self.options.verify {
            _ if bp.is_embedded() => false,
            Verify::Nothing => false,
            Verify::Metadata => metadata,
            Verify::All => true,
        }
    }

    /// Reads every copy of each block.
    fn verify(&self, batch: &[(Bookmark, BlockPointer)]) {
        for (at, bp) in batch {
            if (self.stopped)() {
                return;
            }
            let results = self.subject.store().verify_all_copies(bp, *at);
            let (copies, errors): (usize, Vec<_>) =
                (results.len(), results.into_iter().filter_map(Result::err).collect());
            if errors.is_empty() {
                continue;
            }
            let mut account = self.account.lock();
            if errors.len() >= copies {
                account.report.unreadable += 1;
            } else {
                account.report.bad_copies += errors.len() as u64;
            }
            drop(account);
            (self.event)(Event::Unreadable { at: *at, bp, errors: &errors });
        }
    }
}

/// Whether the block was left out of a redacted send stream (embedded type `REDACTED`).
fn is_redacted(bp: &BlockPointer) -> bool {
    bp.is_embedded() && bp.checksum_type() == 2
}
