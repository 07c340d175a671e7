//! The books of a traversal (`zdb_count_block`): counts a block, finds out whether it is shared, claims its space.
//!
//! All workers share one [`Account`], under a lock, and add one block at a time. For each block pointer that is not
//! a hole:
//!
//! 1. It is shared if a pointer to the same block was counted already and the deduplication table (`ddt_lookup`) or
//!    the block reference table (`brt_entry_get_refcount`) has references left. A shared block claims nothing.
//! 2. It is counted in the table by type and level.
//! 3. Each copy claims its space. A gang block claims its header, and its members claim theirs.
//!
//! Invariants: members of one gang block are claimed once, whatever points to it. Gang blocks nest at most 16 deep.
//! A block that leads to others is gone below once.

use super::claims::{ClaimError, Claims};
use super::stats::{self, DEFERRED};
use super::{Event, Found, Report, Subject};
use cenote_dmu::{Error, ObjectSet, Result};
use cenote_dsl::bpobj;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::checksum::Checksum;
use cenote_pool::directory::Directory;
use cenote_pool::indirect::Mapping;
use cenote_pool::metaslab::{PoolSpace, VdevSpace};
use cenote_pool::{brt, ddt};
use cenote_store::{Bookmark, Store};
use cenote_vdev::VdevTree;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

type Notify<'a> = &'a (dyn Fn(Event<'_>) + Sync);

/// Bytes of a gang header before it is rounded up to an allocation (`SPA_OLD_GANGBLOCKSIZE`).
const GANG_HEADER: u64 = 512;
/// Gang blocks within gang blocks: 3 pointers each, and 16 MiB in pieces of 512 bytes.
const MAX_GANG_DEPTH: u32 = 16;

/// First copy and birth of a block: tells blocks apart.
type Address = (u64, u64, u64);

/// The address of the block that `bp` leads to.
pub(super) fn address(bp: &BlockPointer) -> Address {
    (bp.0[0], bp.0[1], bp.physical_birth())
}

/// The books; the account is kept while workers traverse, one block at a time.
pub struct Account {
    /// The outcome so far.
    pub report: Report,
    mos: Arc<ObjectSet>,
    vdevs: Arc<VdevTree>,
    claims: Option<Claims>,
    metaslab_shifts: Vec<u32>,
    tables: Vec<ddt::Table>,
    /// Entries of the deduplication table met so far: the references left per variant, and
    /// whether the variant has claimed its space.
    dedup: HashMap<(Checksum, ddt::Key), (ddt::Entry, [bool; 4])>,
    clones: Vec<brt::Table>,
    /// References left to the cloned blocks met so far, by vdev and offset.
    cloned: HashMap<(u32, u64), u64>,
    /// Blocks that lead to others and were descended into.
    descended: HashSet<Address>,
    /// Gang blocks whose members were looked at.
    gangs: HashSet<Address>,
    /// Bytes that the traversal is expected to account for.
    pub(super) total: u64,
}

impl Account {
    pub(super) fn new(
        subject: &Subject<'_>,
        space: &PoolSpace,
        claims: Option<Claims>,
    ) -> Result<Account> {
        let mos = subject.mos.clone();
        let cloning = Directory::open(&mos)?.feature_uses("com.fudosecurity:block_cloning")?;
        let cloning = cloning.is_some_and(|uses| uses > 0);
        let clones = if cloning { brt::load(&mos, space.vdevs.len() as u64)? } else { Vec::new() };
        let allocated = space.vdevs.iter().flat_map(|v| {
            v.metaslabs.iter().map(move |m| {
                let unflushed = v.unflushed.get(&m.id);
                let (a, f) = unflushed.map_or((0, 0), |u| (u.allocs.space(), u.frees.space()));
                i128::from(m.flushed_alloc()) + i128::from(a) - i128::from(f)
            })
        });
        let report = Report { allocated: allocated.sum(), ..Report::default() };
        Ok(Account {
            tables: ddt::load(&mos)?,
            vdevs: Arc::clone(&mos.store().vdevs()),
            claims,
            metaslab_shifts: space.vdevs.iter().map(|v| v.metaslab_shift).collect(),
            dedup: HashMap::new(),
            clones,
            cloned: HashMap::new(),
            descended: HashSet::new(),
            gangs: HashSet::new(),
            total: report.allocated.clamp(0, i128::from(u64::MAX)) as u64,
            mos,
            report,
        })
    }

    pub(super) fn exclude_checkpoint(&mut self, mos: &Arc<ObjectSet>, v: &VdevSpace) -> Result<()> {
        if let Some(claims) = &mut self.claims {
            let bytes = claims.exclude_checkpoint(mos, v)?;
            let (objset, object) = (mos.id(), v.checkpoint_map);
            let why = || format!("{bytes} bytes of a checkpoint more than can be counted");
            let sum = self.report.checkpoint.checked_add(bytes);
            self.report.checkpoint =
                sum.ok_or_else(|| Error::Corrupt { objset, object, why: why() })?;
        }
        Ok(())
    }

    /// Counts blocks on removed vdevs that became obsolete in the last transaction group.
    pub(super) fn obsolete_list(
        &mut self,
        mos: &Arc<ObjectSet>,
        directory: &Directory,
    ) -> Result<()> {
        let Some(claims) = &mut self.claims else { return Ok(()) };
        let Some(number) = directory.u64("com.delphix:obsolete_bpobj")? else { return Ok(()) };
        bpobj::iterate(mos, number, &mut |entry| {
            entry.bp.dvas().for_each(|dva| claims.add_obsolete(&dva));
            Ok(())
        })
    }

    /// Claims what a removal under way has copied (`com.delphix:removing`).
    pub(super) fn removing(
        &mut self,
        mos: &Arc<ObjectSet>,
        space: &PoolSpace,
        mappings: &[Option<Mapping>],
        directory: &Directory,
    ) -> Result<()> {
        const SCANNING: u64 = 1;
        let Some(claims) = &mut self.claims else { return Ok(()) };
        let Some(words) = directory.words("com.delphix:removing")? else { return Ok(()) };
        let [state, vdev, ..] = words[..] else {
            let why = format!("com.delphix:removing: {} words", words.len());
            return Err(Error::Corrupt { objset: mos.id(), object: 1, why });
        };
        let mapping = usize::try_from(vdev).ok().and_then(|i| mappings.get(i)?.as_ref());
        if state == SCANNING
            && let (Some(v), Some(mapping)) = (space.vdev_space(vdev), mapping)
            && v.concrete
        {
            self.report.removing = claims.claim_removing(mos, v, mapping)?;
        }
        Ok(())
    }

    pub(super) fn damaged(&mut self, e: &Error, event: Notify<'_>) {
        self.report.damaged += 1;
        event(Event::Damaged(e));
    }

    /// Whether a block that leads to others is met for the first time.
    pub(super) fn first_descent(&mut self, bp: &BlockPointer) -> bool {
        self.descended.insert(address(bp))
    }

    /// A block in a list of freed blocks.
    pub(super) fn freed(&mut self, store: &Arc<Store>, bp: &BlockPointer, event: Notify<'_>) {
        let at = Bookmark { objset: 0, object: 0, level: 0, blkid: 0 };
        self.add(store, &Found { at, bp: *bp, kind: DEFERRED }, event);
    }

    /// Accounts for a block that is not a hole.
    pub(super) fn add(&mut self, store: &Arc<Store>, found: &Found, event: Notify<'_>) {
        if self.report.blocks.is_full() {
            let why = "the blocks found have more bytes than can be counted".into();
            let (objset, object) = (found.at.objset, found.at.object);
            self.damaged(&Error::Corrupt { objset, object, why }, event);
            return;
        }
        event(Event::Block(found));
        let mut bp = found.bp;
        let shared = match self.is_shared(&mut bp) {
            Ok(shared) => shared,
            Err(e) => {
                self.damaged(&e, event);
                false
            }
        };
        let shifts = &self.metaslab_shifts;
        self.report.blocks.add(&bp, found.kind, |vdev| shifts.get(vdev as usize).copied());
        if !shared && !bp.is_embedded() {
            self.settle(store, found, &bp, MAX_GANG_DEPTH, event);
        }
    }

    /// Whether another pointer to this block was accounted for already. Fills in the copies that
    /// a deduplicated block has got since the pointer was written.
    fn is_shared(&mut self, bp: &mut BlockPointer) -> Result<bool> {
        if bp.is_embedded() {
            return Ok(false);
        }
        if bp.is_dedup() && self.is_deduped(bp)? {
            return Ok(true);
        }
        self.is_cloned(bp)
    }

    fn is_deduped(&mut self, bp: &mut BlockPointer) -> Result<bool> {
        let Ok(checksum) = Checksum::from_u8(bp.checksum_type()) else { return Ok(false) };
        let Some(table) = self.tables.iter().find(|t| t.checksum == checksum) else {
            return Ok(false);
        };
        let key = ddt::Key::of(bp);
        let slot = match self.dedup.entry((checksum, key)) {
            std::collections::hash_map::Entry::Occupied(slot) => slot.into_mut(),
            std::collections::hash_map::Entry::Vacant(slot) => {
                // Entries of blocks with a single reference may have been pruned.
                let Some(entry) = table.lookup(&self.mos, &key)? else { return Ok(false) };
                slot.insert((entry, [false; 4]))
            }
        };
        let (entry, seen) = slot;
        let birth = bp.physical_birth();
        let variant = entry.phys.iter().position(|p| p.dvas[..2] == bp.0[..2] && p.birth == birth);
        let Some((variant, phys)) = variant.and_then(|i| Some((i, entry.phys.get_mut(i)?))) else {
            return Ok(false);
        };
        let left = phys.refcount.checked_sub(1);
        phys.refcount = left.unwrap_or(0);
        if table.flags & ddt::FLAG_FLAT != 0 {
            *bp = phys.fill(bp);
        }
        let seen = seen.get_mut(variant).is_some_and(|s| std::mem::replace(s, true));
        if seen && left.is_some() {
            self.report.deduped.0 += stats::asize(bp);
            self.report.deduped.1 += 1;
            return Ok(true);
        }
        Ok(false)
    }

    fn is_cloned(&mut self, bp: &BlockPointer) -> Result<bool> {
        let Some(dva) = bp.dva(0) else { return Ok(false) };
        let Some(table) = self.clones.iter().find(|t| t.vdev == u64::from(dva.vdev)) else {
            return Ok(false);
        };
        match self.cloned.get_mut(&(dva.vdev, dva.offset)) {
            Some(left) if *left > 0 => {
                *left -= 1;
                self.report.cloned.0 += stats::asize(bp);
                self.report.cloned.1 += 1;
                Ok(true)
            }
            Some(_) => Ok(false),
            None => {
                // Only data blocks can be cloned.
                if bp.level() == 0
                    && let Some(extra) = table.lookup(&self.mos, dva.offset)?
                {
                    self.cloned.insert((dva.vdev, dva.offset), extra);
                }
                Ok(false)
            }
        }
    }

    /// Bytes that a copy takes by itself: a gang block's constituents have their own.
    fn own_size(&self, dva: &Dva) -> u64 {
        if !dva.gang {
            return dva.asize;
        }
        let top = self.vdevs.root().children().iter().find(|v| v.id() == u64::from(dva.vdev));
        top.map_or(GANG_HEADER, |v| v.psize_to_asize(GANG_HEADER, 0))
    }

    /// Says where every copy of `bp` lies, and the constituents of gang blocks; claims the space.
    /// `bp` is the block that was found, or a constituent of it.
    fn settle(
        &mut self,
        store: &Arc<Store>,
        found: &Found,
        bp: &BlockPointer,
        depth: u32,
        event: Notify<'_>,
    ) {
        let at = found.at;
        let mut failure = None;
        for dva in bp.dvas() {
            let size = self.own_size(&dva);
            let claimed = self.claims.as_mut().map_or(Ok(()), |c| c.claim_copy(&dva, size));
            failure = claimed.err().or(failure);
            let (vdev, offset) = (u64::from(dva.vdev), dva.offset);
            event(Event::Placed { found, vdev, offset, size });
        }
        if let Some(why) = failure {
            self.report.not_claimed += 1;
            event(Event::NotClaimed { at, bp, why });
            return;
        }
        if bp.is_gang() && self.gangs.insert(address(bp)) {
            match store.gang_children(bp, at) {
                Ok(children) if depth > 0 => {
                    for child in children.iter().filter(|c| !c.is_hole()) {
                        self.settle(store, found, child, depth - 1, event);
                    }
                }
                Ok(_) => {
                    self.report.not_claimed += 1;
                    event(Event::NotClaimed { at, bp, why: ClaimError::Nowhere });
                }
                Err(e) => {
                    self.report.unreadable += 1;
                    event(Event::Unreadable { at, bp, errors: &[e] });
                }
            }
        }
    }

    /// Closes the books.
    pub(super) fn finish(mut self) -> Report {
        if let Some(claims) = &self.claims {
            self.report.leaks = claims.leaks();
            self.report.obsolete = claims.obsolete_mismatches();
        }
        self.report
    }
}
