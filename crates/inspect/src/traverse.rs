//! Traversal (`traverse_pool`, `zdb`'s `dump_block_stats`): visits every block that a pool refers to, once, and accounts for its space.
//!
//! What refers to blocks, and in what order it is taken:
//!
//! 1. lists of blocks that are freed but not returned yet: the deferred frees and the free list
//!    (bpobjs), destroyed datasets (a bptree), destroyed livelists;
//! 2. the MOS, from the uberblock's root block pointer: all objects, among them space maps, log
//!    space maps, deadlists (whose entries are blocks that snapshots refer to);
//! 3. each dataset, live or snapshot: every object of the MOS with a `dsl_dataset_phys_t`. Blocks
//!    that were born no later than the dataset's previous snapshot belong to that snapshot, so a
//!    subtree whose root was born by then is passed over; thus each block is met once;
//! 4. the intent log of each live dataset, as far as it is stable.
//!
//! A block that several block pointers share (by deduplication or cloning) is met as often; the
//! deduplication table and the block reference table say so, and only the first claims space.
//!
//! **Claims.** With leak detection, [`claims::Claims`] starts with all space that space maps have
//! as allocated, each block takes its own out, and the rest is leaked. See there.
//!
//! **Work.** Worker threads take trees, and walk each as all do ([`cenote_dsl::traverse`]). The account is kept under one
//! lock. Blocks to be checked (every copy of them) are put together in batches, which any worker takes.
//!
//! Invariants, which bound the time a hostile pool can take: a child's level is one less than its
//! parent's; only blocks of the meta dnode are taken for dnodes; a block that leads to others is
//! gone below once, by the address of its first copy and its birth: no such block belongs to
//! two trees, since what is older than a dataset's previous snapshot is passed over.

pub mod account;
pub mod bptree;
pub mod claims;
pub mod stats;
mod walk;

use account::Account;
use bptree::Destroyed;
use cenote_dmu::{Error, ObjectSet, Result};
use cenote_dsl::deadlist::{Deadlist, live_blocks};
use cenote_dsl::traverse::DESTROYED;
use cenote_dsl::{bounds, bpobj as lists};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::label::Uberblock;
use cenote_format::nvlist::NvList;
use cenote_pool::directory::Directory;
use cenote_pool::indirect::Mapping;
use cenote_pool::metaslab::PoolSpace;
use cenote_store::{BlockError, Bookmark, Store};
use claims::{ClaimError, Claims, Leak, ObsoleteMismatch};
use stats::BlockTable;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Which blocks are read back and checked, every copy of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Verify {
    /// Only those that lead to others, which are read anyhow (one good copy is enough).
    #[default]
    Nothing,
    /// Metadata.
    Metadata,
    /// Everything.
    All,
}

/// What to do.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Which blocks to read back.
    pub verify: Verify,
    /// Whether to compare with the space maps.
    pub leaks: bool,
    /// Threads.
    pub workers: usize,
}

/// Something to report while the traversal runs.
pub enum Event<'a> {
    /// A metaslab's space map is about to be read.
    Loading {
        /// The vdev.
        vdev: u64,
        /// Whether it was removed.
        indirect: bool,
        /// The metaslab.
        metaslab: u64,
        /// How many there are.
        of: u64,
    },
    /// All space maps are loaded; the traversal begins.
    Loaded,
    /// A block was found.
    Block(&'a Found),
    /// Some of a block's space: a copy, a gang header, or a copy of a gang block's constituent.
    /// Space that several block pointers share comes once.
    Placed {
        /// The block.
        found: &'a Found,
        /// The top-level vdev that the pointer names; it may have been removed since.
        vdev: u64,
        /// First byte in the vdev.
        offset: u64,
        /// Bytes.
        size: u64,
    },
    /// A block cannot be read, or one copy of it is wrong.
    Unreadable {
        /// Which block.
        at: Bookmark,
        /// Its pointer.
        bp: &'a BlockPointer,
        /// Why, per copy.
        errors: &'a [BlockError],
    },
    /// A block's space is not allocated, or allocated to another block too.
    NotClaimed {
        /// Which block.
        at: Bookmark,
        /// Its pointer.
        bp: &'a BlockPointer,
        /// Why.
        why: ClaimError,
    },
    /// A structure on the way is damaged; what is below it is not counted.
    Damaged(&'a Error),
    /// Bytes accounted for so far, and in all.
    Progress {
        /// So far.
        done: u64,
        /// In all.
        total: u64,
    },
}

/// A block that was found.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    /// Which block.
    pub at: Bookmark,
    /// Its pointer.
    pub bp: BlockPointer,
    /// Row of the [`BlockTable`]: object type, or `stats::DEFERRED`.
    pub kind: usize,
}

impl Found {
    /// A block counted by the object type in its pointer.
    pub(crate) fn new(at: Bookmark, bp: BlockPointer) -> Found {
        let kind = DmuType(bp.object_type());
        let row = if kind.is_new() { stats::OTHER } else { (kind.0 as usize).min(stats::OTHER) };
        Found { at, bp, kind: row }
    }

    /// Whether the block is part of an intent log, or was written for a record of one.
    pub fn is_log(&self) -> bool {
        let root = self.bp.object_type() == DmuType::OBJSET.0;
        self.at.level == cenote_dsl::zil::ZIL_LEVEL || (self.at.level == -1 && !root)
    }
}

/// The outcome.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Blocks by type and level.
    pub blocks: BlockTable,
    /// Bytes allocated that deduplication saved, and blocks.
    pub deduped: (u64, u64),
    /// Bytes allocated that cloning saved, and blocks.
    pub cloned: (u64, u64),
    /// Bytes that a removal under way has copied.
    pub removing: u64,
    /// Bytes that only a checkpoint holds.
    pub checkpoint: u64,
    /// Bytes allocated according to the space maps, log space maps included.
    pub allocated: i128,
    /// Space that no block claimed.
    pub leaks: Vec<Leak>,
    /// Removed vdevs whose obsolete counts are wrong.
    pub obsolete: Vec<ObsoleteMismatch>,
    /// Segments per removed vdev's mapping.
    pub mappings: Vec<(u64, u64)>,
    /// Blocks of which no copy can be read.
    pub unreadable: u64,
    /// Copies that are wrong while another is right.
    pub bad_copies: u64,
    /// Blocks whose space was not theirs to claim.
    pub not_claimed: u64,
    /// Structures that could not be followed.
    pub damaged: u64,
}

impl Report {
    /// Bytes that the blocks found take, shared ones once.
    pub fn found(&self) -> i128 {
        i128::from(self.blocks.total().asize)
            - i128::from(self.deduped.0)
            - i128::from(self.cloned.0)
            + i128::from(self.removing)
            + i128::from(self.checkpoint)
    }

    /// Whether the pool is as it should be.
    pub fn is_clean(&self) -> bool {
        self.leaks.is_empty()
            && self.obsolete.iter().all(|o| !o.precise)
            && self.unreadable + self.bad_copies + self.not_claimed + self.damaged == 0
    }
}

/// What is traversed.
#[derive(Clone)]
pub struct Subject<'a> {
    /// The MOS.
    pub mos: Arc<ObjectSet>,
    /// The pool's config from the MOS.
    pub config: &'a NvList,
    /// The uberblock that the pool was opened at.
    pub uberblock: &'a Uberblock,
}

impl Subject<'_> {
    fn store(&self) -> &Arc<Store> {
        self.mos.store()
    }

    /// Intent log blocks born from this transaction group on are not claimed yet. After the last of all numbers there is no group.
    pub fn min_claim_txg(&self) -> u64 {
        match self.uberblock.checkpoint_txg {
            0 => self.uberblock.txg.saturating_add(1),
            txg => txg.saturating_add(1),
        }
    }

    /// The mapping of each top-level vdev that has one.
    pub fn mappings(&self) -> Result<Vec<Option<Mapping>>> {
        let tree = self.config.list("vdev_tree");
        let children = tree.and_then(|t| t.lists("children")).unwrap_or(&[]);
        let object = |c: &NvList| c.u64("com.delphix:indirect_object").filter(|o| *o != 0);
        children
            .iter()
            .map(|c| object(c).map(|o| Mapping::load(&self.mos, o)).transpose())
            .collect()
    }
}

/// A tree of blocks to traverse.
#[derive(Debug, Clone)]
pub(crate) struct Root {
    /// Dataset object; 0 for the MOS.
    pub objset: u64,
    /// The object set's block.
    pub bp: BlockPointer,
    /// Blocks born up to this transaction group belong to an earlier tree.
    pub min_txg: u64,
    /// Whether its intent log is part of it.
    pub with_log: bool,
    /// A destroyed dataset: what is left of it is counted as freed.
    pub destroyed: Option<Destroyed>,
}

/// Traverses the pool. `event` is called from several threads; `cancelled` ends the traversal
/// early, with what was found so far. Fails only if the space to compare with cannot be loaded:
/// damage to what is traversed is reported and passed over.
pub fn run(
    subject: &Subject<'_>,
    space: &PoolSpace,
    options: &Options,
    event: &(dyn Fn(Event<'_>) + Sync),
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<Report> {
    let mos = &subject.mos;
    let mappings = subject.mappings()?;
    let claims = match options.leaks {
        false => None,
        true => Some(Claims::load(mos, space, &mappings, &mut |v, metaslab, of| {
            event(Event::Loading { vdev: v.id, indirect: !v.concrete, metaslab, of });
            Ok(())
        })?),
    };
    let mut account = Account::new(subject, space, claims)?;
    for v in &space.vdevs {
        account.exclude_checkpoint(mos, v)?;
    }
    event(Event::Loaded);
    account.report.mappings = (0..)
        .zip(&mappings)
        .filter_map(|(id, m)| m.as_ref().map(|m| (id, m.segments.len() as u64)))
        .collect();
    let stop = AtomicBool::new(false);
    let stopped = || stop.load(Ordering::Relaxed) || cancelled();
    let mut roots = Vec::new();
    prepare(subject, space, &mappings, &mut account, &mut roots, event);
    roots.push(Root {
        objset: 0,
        bp: *mos.root_bp(),
        min_txg: 0,
        with_log: false,
        destroyed: None,
    });
    if let Err(e) = datasets(mos, &mut roots, &mut |e| account.damaged(&e, event)) {
        account.damaged(&e, event);
    }
    let account = walk::walk(subject, roots, account, options, event, &stopped);
    Ok(account.finish())
}

/// Accounts for what is freed but not returned, and collects destroyed datasets.
fn prepare(
    subject: &Subject<'_>,
    space: &PoolSpace,
    mappings: &[Option<Mapping>],
    account: &mut Account,
    roots: &mut Vec<Root>,
    event: &(dyn Fn(Event<'_>) + Sync),
) {
    let mos = &subject.mos;
    let mut steps = || -> Result<()> {
        let directory = Directory::open(mos)?;
        account.obsolete_list(mos, &directory)?;
        for name in ["sync_bplist", "free_bpobj"] {
            let Some(number) = directory.u64(name)? else { continue };
            lists::iterate(mos, number, &mut |entry| {
                account.freed(subject.store(), &entry.bp, event);
                Ok(())
            })?;
        }
        account.removing(mos, space, mappings, &directory)?;
        if let Some(number) = directory.u64("bptree_obj")? {
            for destroyed in bptree::destroyed(mos, number)? {
                let (bp, min_txg, objset) = (destroyed.bp, destroyed.min_txg, DESTROYED);
                let destroyed = Some(destroyed);
                roots.push(Root { objset, bp, min_txg, with_log: false, destroyed });
            }
        }
        if let Some(clones) = directory.zap_of("com.delphix:deleted_clones")? {
            for entry in clones.entries()? {
                let name = String::from_utf8_lossy(&entry.name);
                let why = || format!("the deleted clone {name:?} has no livelist");
                let bad = || Error::Corrupt { objset: mos.id(), object: 0, why: why() };
                let livelist = entry.u64().ok_or_else(bad)?;
                for (_, list) in Deadlist::open(mos, livelist)?.lists {
                    live_blocks(mos, list, &mut |bp| account.freed(subject.store(), bp, event))?;
                }
            }
        }
        Ok(())
    };
    if let Err(e) = steps() {
        account.damaged(&e, event);
    }
}

/// The roots of all datasets: objects of the MOS whose bonus is a `dsl_dataset_phys_t`. Datasets
/// share a root block only where it is older than the previous snapshot of all but one; others that
/// do are `damaged`.
fn datasets(
    mos: &Arc<ObjectSet>,
    roots: &mut Vec<Root>,
    damaged: &mut dyn FnMut(Error),
) -> Result<()> {
    let corrupt = |object, why: &str| Error::Corrupt { objset: mos.id(), object, why: why.into() };
    let mut seen = HashSet::new();
    let mut left = bounds::max_objects(mos);
    let mut from = 1;
    while let Some(number) = mos.next_object(from)? {
        left = left.checked_sub(1).ok_or_else(|| corrupt(number, "more objects than fit"))?;
        from = number.checked_add(1).ok_or_else(|| corrupt(number, "no object comes after it"))?;
        let object = mos.object(number)?;
        if object.dnode().bonus_kind != DmuType::DSL_DATASET {
            continue;
        }
        let phys = DslDatasetPhys::decode(&object.bonus()).map_err(|source| Error::Decode {
            objset: mos.id(),
            object: number,
            source,
        })?;
        let own = phys.bp.birth() > phys.prev_snap_txg;
        if !phys.bp.is_hole() && own && !seen.insert(account::address(&phys.bp)) {
            damaged(corrupt(number, "another dataset has the same root block"));
            continue;
        }
        roots.push(Root {
            objset: number,
            bp: phys.bp,
            min_txg: phys.prev_snap_txg,
            with_log: phys.num_children == 0,
            destroyed: None,
        });
    }
    Ok(())
}
