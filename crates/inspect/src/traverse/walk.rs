//! The worker threads of a traversal (`traverse_visitbp`, `zdb_blkptr_cb`): each walks trees, and checks the blocks
//! that were found in any.
//!
//! Tasks are of two kinds: the root of a tree to walk, and a batch of blocks whose copies are read and verified. A
//! worker takes a batch before a root, so that few blocks wait. Where too many batches wait, the worker that found
//! the blocks checks them itself. All workers account for blocks in one [`Account`], under its lock.
//!
//! The intent log of a tree is counted as far as its blocks are allocated: claimed and not replayed, or of groups
//! that are on disk.
//!
//! Invariants: the work is over when no task is left and no worker has one. A worker that panics ends all of them,
//! so no worker waits for ever. A subtree whose birth belongs to an older snapshot is passed over.

use super::account::Account;
use super::{Event, Found, Options, Root, Subject, Verify, stats};
use cenote_dmu::Error;
use cenote_dsl::traverse::{self, Place, Traversal, Visitor};
use cenote_dsl::zil;
use cenote_format::DecodeError;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use cenote_store::{Bookmark, Store};
use cenote_vdev::patience;
use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Blocks in one verification task.
const VERIFY_BATCH: usize = 32;
/// Batches for each worker that may wait. A worker that finds more checks them itself.
const WAITING: usize = 2;

/// How often a worker that waits looks whether all is to end.
const LOOK: Duration = Duration::from_secs(1);

/// Blocks to check.
type Batch = Vec<(Bookmark, BlockPointer)>;

/// What is left to do.
enum Task {
    Root(Box<Root>),
    Verify(Batch),
}

struct Tasks {
    /// The last one comes first.
    roots: Vec<Root>,
    checks: Vec<Batch>,
    /// A worker panicked: all end.
    failed: bool,
}

/// A worker has a task until this is dropped.
struct Busy<'a, 'w>(&'a Walker<'w>);

impl Drop for Busy<'_, '_> {
    fn drop(&mut self) {
        let mut tasks = self.0.tasks.lock();
        tasks.failed |= std::thread::panicking();
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
        drop(tasks);
        self.0.wake.notify_all();
    }
}

struct Walker<'a> {
    subject: &'a Subject<'a>,
    options: &'a Options,
    event: &'a (dyn Fn(Event<'_>) + Sync),
    stopped: &'a (dyn Fn() -> bool + Sync),
    workers: usize,
    account: Mutex<Account>,
    tasks: Mutex<Tasks>,
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
        workers: options.workers.clamp(1, 64),
        account: Mutex::new(account),
        tasks: Mutex::new(Tasks {
            roots: roots.into_iter().rev().collect(),
            checks: Vec::new(),
            failed: false,
        }),
        wake: Condvar::new(),
        busy: AtomicUsize::new(0),
        last_progress: Mutex::new(Instant::now()),
    };
    // For a caller that waits for no device the other threads do not either.
    let waits = patience::of_thread().is_none();
    let work = || if waits { walker.work() } else { patience::impatiently(|| walker.work()) };
    std::thread::scope(|scope| {
        for _ in 1..walker.workers {
            scope.spawn(work);
        }
        walker.work();
    });
    walker.account.into_inner()
}

impl Walker<'_> {
    fn work(&self) {
        while let Some(task) = self.next() {
            let _busy = Busy(self);
            // The pool may be in use, and go on meanwhile.
            Store::as_of(self.subject.mos.as_of(), || match task {
                Task::Root(root) => self.root(&root),
                Task::Verify(batch) => self.verify(&batch),
            });
            self.progress();
        }
    }

    /// The next task; `None` when all work is done, or can be no more.
    fn next(&self) -> Option<Task> {
        let mut tasks = self.tasks.lock();
        loop {
            if tasks.failed {
                return None;
            }
            if (self.stopped)() {
                tasks.roots.clear();
                tasks.checks.clear();
            }
            let check = tasks.checks.pop().map(Task::Verify);
            if let Some(task) = check.or_else(|| tasks.roots.pop().map(Box::new).map(Task::Root)) {
                self.busy.fetch_add(1, Ordering::SeqCst);
                return Some(task);
            }
            if self.busy.load(Ordering::SeqCst) == 0 {
                return None;
            }
            self.wake.wait_for(&mut tasks, LOOK);
        }
    }

    /// Has a free worker check a batch.
    fn check(&self, batch: Batch) {
        let mut tasks = self.tasks.lock();
        if tasks.checks.len() >= self.workers * WAITING {
            drop(tasks);
            self.verify(&batch);
        } else if !batch.is_empty() {
            tasks.checks.push(batch);
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

    /// Walks a tree, of an encrypted dataset too.
    fn root(&self, root: &Root) {
        Store::without_keys(|| self.blocks_of(root));
    }

    fn blocks_of(&self, root: &Root) {
        if root.with_log {
            self.intent_log(root);
        }
        let (store, at) = (self.subject.store(), Bookmark::root(root.objset));
        let mut blocks = Blocks { walker: self, root, batch: Batch::new() };
        if blocks.wants(&root.bp) && blocks.count(at, &root.bp, true) {
            match traverse::read_root(store, root.objset, &root.bp) {
                // It ends early only where all is to end.
                Ok(phys) => {
                    let mark = root.destroyed.and_then(|destroyed| destroyed.resume);
                    let _ = Traversal::new(store, root.objset, mark, &mut blocks).all(&phys);
                }
                Err(why) => self.unreadable(at, &root.bp, why),
            }
        }
        self.check(blocks.batch);
    }

    /// The parts of an intent log that are in the space maps: claimed but not replayed, or of
    /// transaction groups that are synced.
    fn intent_log(&self, root: &Root) {
        let store = self.subject.store();
        let at = Bookmark::root(root.objset);
        let Ok(phys) = traverse::read_root(store, root.objset, &root.bp) else { return };
        let header = phys.zil;
        let mut found = Vec::new();
        zil::walk(store, &header, &mut |item| {
            match item {
                zil::Item::Block(bp) => {
                    if header.claim_txg == 0 && bp.birth() >= self.subject.min_claim_txg() {
                        return false;
                    }
                    found.push(Found::new(zil::bookmark(bp), *bp));
                }
                zil::Item::Record(record) => {
                    if let Some(bp) = record.write_block()
                        && header.claim_txg != 0
                        && bp.birth() >= header.claim_txg
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

    fn unreadable(&self, at: Bookmark, bp: &BlockPointer, why: Error) {
        match why {
            Error::Block(e) => {
                self.account.lock().report.unreadable += 1;
                (self.event)(Event::Unreadable { at, bp, errors: &[e] });
            }
            why => self.damaged(&why),
        }
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

/// The blocks of a tree.
struct Blocks<'w> {
    walker: &'w Walker<'w>,
    root: &'w Root,
    /// Blocks to check.
    batch: Batch,
}

impl Blocks<'_> {
    /// Accounts for a block. Whether to go on below it, if it leads on.
    fn count(&mut self, at: Bookmark, bp: &BlockPointer, leads_on: bool) -> bool {
        let walker = self.walker;
        let mut found = Found::new(at, *bp);
        if self.root.destroyed.is_some() {
            found.kind = stats::DEFERRED;
        }
        let mut account = walker.account.lock();
        account.add(walker.subject.store(), &found, walker.event);
        let in_place = i64::from(bp.level()) == at.level.max(0);
        if !in_place {
            let why = format!("block of level {} where level {} belongs", bp.level(), at.level);
            let source = DecodeError::invalid("block pointer", why);
            let Bookmark { objset, object, .. } = at;
            account.damaged(&Error::Decode { objset, object, source }, walker.event);
        }
        let goes_on = in_place && leads_on && account.first_descent(bp);
        drop(account);
        if walker.wants_check(bp) {
            self.batch.push((at, *bp));
            if self.batch.len() >= VERIFY_BATCH {
                walker.check(std::mem::take(&mut self.batch));
            }
        }
        goes_on
    }
}

impl Visitor for Blocks<'_> {
    /// All is to end.
    type Stop = ();

    fn wants(&self, bp: &BlockPointer) -> bool {
        !bp.is_hole() && !bp.is_redacted() && bp.birth() > self.root.min_txg
    }

    fn pre(&mut self, place: &Place<'_>) -> Result<bool, ()> {
        if place.leads_on() {
            self.walker.progress();
            if (self.walker.stopped)() {
                return Err(());
            }
        }
        Ok(self.count(place.at(), &place.node.bp, place.leads_on()))
    }

    fn damaged(&mut self, at: Bookmark, bp: &BlockPointer, why: Error) -> Result<(), ()> {
        self.walker.unreadable(at, bp, why);
        Ok(())
    }
}
