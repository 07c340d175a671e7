//! `zdb -y`, and what `zdb -d` checks of livelists.
//!
//! Each FREE of a sub-list must have an ALLOC before it (`sublivelist_verify_func`). What the livelists of
//! destroyed clones have as allocated must not be free: the space maps are gone through entry by entry, those
//! of metaslabs and then the logs, and no space may be allocated or freed twice
//! (`livelist_metaslab_validate`).

use super::{Zdb, failed, print};
use cenote_command::outcome::Stop;
use cenote_dmu::zap::Zap;
use cenote_dsl::Dataset;
use cenote_dsl::bpobj;
use cenote_dsl::deadlist::{Deadlist, Freed, Sizes};
use cenote_format::blkptr::BlockPointer;
use cenote_format::spacemap::{Change, DebugAction, Entry};
use cenote_pool::metaslab::{Metaslab, PoolSpace, VdevSpace};
use cenote_pool::spacemap::{Region, SpaceChange, SpaceMap};
use cenote_store::rangetree::RangeTree;
use std::collections::{BTreeMap, HashMap};

/// Blocks that are allocated by livelists: vdev and offset, size and birth.
type Allocs = BTreeMap<(u64, u64), (u64, u64)>;

/// Changes in logs, by vdev and metaslab, with the transaction groups that made them.
type Logged = HashMap<(u64, u64), Vec<(u64, SpaceChange)>>;

impl Zdb<'_> {
    /// The livelists of destroyed clones that are still being freed.
    pub fn deleted_lists(&mut self) -> Result<Vec<Deadlist>, Stop> {
        let Some(clones) = self.directory()?.u64(b"com.delphix:deleted_clones").map_err(failed)?
        else {
            return Ok(Vec::new());
        };
        let pool = self.pool.clone();
        let zap = Zap::open(&pool.mos().object(clones).map_err(failed)?).map_err(failed)?;
        let numbers = zap.entries().map_err(failed)?;
        let lists = numbers.iter().filter_map(|e| e.u64());
        lists.map(|number| pool.dsl().deadlist_at(number).map_err(failed)).collect()
    }

    /// Says which FREE entries have no ALLOC before them (`verify_livelist_allocs`); calls `live` with the blocks that are
    /// allocated.
    pub fn verify_livelist(
        &mut self,
        list: &Deadlist,
        live: &mut dyn FnMut(&BlockPointer),
    ) -> Result<(), Stop> {
        for (_, number) in &list.lists {
            let (mut freed, mut first) = (Freed::default(), HashMap::new());
            let pool = self.pool.clone();
            bpobj::iterate(pool.mos(), *number, &mut |entry| {
                if entry.freed {
                    freed.free(&entry.bp);
                    first.entry(Freed::key(&entry.bp)).or_insert(entry.bp);
                } else if freed.is_live(&entry.bp) {
                    live(&entry.bp);
                }
                Ok(())
            })
            .map_err(failed)?;
            let mut unmatched: Vec<_> = freed.left().collect();
            unmatched.sort_unstable();
            for (key, count) in unmatched {
                let Some(bp) = first.get(&key) else { continue };
                let bp = print::blkptr_compact(bp, false, true);
                writeln!(self.out(), "\tERROR: {count} unmatched FREE(s): {bp}")?;
                self.damaged = true;
            }
        }
        Ok(())
    }

    /// Whether the livelist of a clone adds up to what was written to it since its origin
    /// (`verify_dd_livelist`).
    pub fn check_livelist(&mut self, of: &Dataset, list: &Deadlist) -> Result<(), Stop> {
        self.verify_livelist(list, &mut |_| {})?;
        let pool = self.pool.clone();
        let Some(origin) = pool.dsl().by_object(of.dir.origin).map_err(failed)? else {
            return Ok(());
        };
        let Some(own) = pool.dsl().sizes_since(of, &origin).map_err(failed)? else { return Ok(()) };
        let sums = list.total;
        // Embedded blocks are in no livelist.
        if (own.used, own.compressed) == (sums.used, sums.compressed)
            && own.uncompressed >= sums.uncompressed
        {
            return Ok(());
        }
        writeln!(self.out(), "Discrepancy in space accounting:")?;
        for (what, Sizes { used, compressed, uncompressed }) in [("dir", own), ("livelist", sums)] {
            let n = |n: u64| self.args.number(n);
            let (used, comp, uncomp) = (n(used), n(compressed), n(uncompressed));
            writeln!(self.out(), "{what}: used {used}, comp {comp}, uncomp {uncomp}")?;
        }
        Err(failed("livelist is incorrect"))
    }

    /// `-y` (`livelist_metaslab_validate`).
    pub fn validate_livelists(&mut self) -> Result<(), Stop> {
        writeln!(self.out(), "Verifying deleted livelist entries")?;
        let mut allocs = Allocs::new();
        for list in self.deleted_lists()? {
            self.verify_livelist(&list, &mut |bp| {
                for dva in bp.dvas() {
                    let at = (u64::from(dva.vdev), dva.offset);
                    allocs.entry(at).or_insert((dva.asize, bp.logical_birth()));
                }
            })?;
        }
        writeln!(self.out(), "Verifying metaslab entries")?;
        let space = self.space()?;
        let mut logged = self.logged(&space)?;
        for v in space.vdevs.iter().filter(|v| v.concrete) {
            for ms in &v.metaslabs {
                let (id, of) = (ms.id, v.metaslabs.len());
                let _ = write!(
                    self.ctx.err,
                    "\rverifying concrete vdev {}, metaslab {id} of {of} ...",
                    v.id
                );
                let own = self.own_allocs(v, ms, &mut allocs)?;
                let logged = logged.remove(&(v.id, ms.id)).unwrap_or_default();
                self.validate_metaslab((v, ms), &own, &logged)?;
            }
        }
        let _ = writeln!(self.ctx.err);
        if allocs.is_empty() {
            return Ok(());
        }
        writeln!(
            self.out(),
            "ERROR: Found livelist blocks marked as allocated for indirect vdevs:"
        )?;
        self.damaged = true;
        for ((vdev, offset), (asize, txg)) in allocs {
            writeln!(self.out(), "<{vdev}:{offset:x}:{asize:x}> TXG {txg:x}")?;
        }
        writeln!(self.out())?;
        Ok(())
    }

    /// The entries of all logs, by metaslab.
    fn logged(&mut self, space: &PoolSpace) -> Result<Logged, Stop> {
        let size = space.vdevs.iter().fold(0u64, |sum, v| sum.saturating_add(v.asize));
        let mut logged = Logged::new();
        for log in &space.logs {
            let map = SpaceMap::open(self.pool.mos(), log.object, Region::of_log(size));
            let mut add = |change: SpaceChange| {
                let vdev = u64::from(change.vdev.unwrap_or_default());
                let Some(v) = space.vdev_space(vdev) else { return Ok(()) };
                let metaslab = change.start.checked_shr(v.metaslab_shift).unwrap_or(0);
                let Some(ms) = v.metaslabs.get(metaslab as usize) else { return Ok(()) };
                if log.txg >= ms.unflushed_txg {
                    logged.entry((vdev, metaslab)).or_default().push((log.txg, change));
                }
                Ok(())
            };
            map.map_err(failed)?.for_each(&mut add).map_err(failed)?;
        }
        Ok(logged)
    }

    /// Takes the blocks of a metaslab (`mv_populate_livelist_allocs`).
    fn own_allocs(
        &mut self,
        v: &VdevSpace,
        ms: &Metaslab,
        allocs: &mut Allocs,
    ) -> Result<Allocs, Stop> {
        let end = ms.start.saturating_add(ms.size);
        let here = allocs.range((v.id, ms.start)..(v.id, end)).map(|(at, block)| (*at, *block));
        let mut own: Allocs = here.collect();
        allocs.retain(|at, _| !own.contains_key(at));
        let crossing = |((_, offset), (asize, _)): (&(u64, u64), &(u64, u64))| {
            (offset.saturating_add(*asize) > end).then_some((*offset, *asize))
        };
        if let Some((offset, asize)) = own.last_key_value().and_then(crossing) {
            writeln!(
                self.out(),
                "ERROR: Found block that crosses metaslab boundary: <{}:{offset:x}:{asize:x}>",
                v.id
            )?;
            self.damaged = true;
            own.remove(&(v.id, offset));
        }
        Ok(own)
    }

    /// Goes through the changes of a metaslab's space.
    fn validate_metaslab(
        &mut self,
        (v, ms): (&VdevSpace, &Metaslab),
        own: &Allocs,
        logged: &[(u64, SpaceChange)],
    ) -> Result<(), Stop> {
        let mut found =
            Validation { own, at: (v.id, ms.id), space: RangeTree::new(), errors: vec![] };
        if ms.space_map != 0 {
            let map = SpaceMap::open(self.pool.mos(), ms.space_map, v.region(ms));
            let (map, mut txg) = (map.map_err(failed)?, 0);
            map.for_each_entry(&mut |entry| {
                if let Entry::Debug {
                    action: DebugAction::Alloc | DebugAction::Free, txg: t, ..
                } = entry
                {
                    txg = *t;
                }
                if let Some(change) = map.range(entry)? {
                    found.change(txg, &change);
                }
                Ok(())
            })
            .map_err(failed)?;
        }
        for (txg, change) in logged {
            found.change(*txg, change);
        }
        self.damaged |= !found.errors.is_empty();
        for error in found.errors {
            writeln!(self.out(), "ERROR: {error}")?;
        }
        Ok(())
    }
}

/// One metaslab (`metaslab_verify_t`).
struct Validation<'a> {
    /// What livelists have of it.
    own: &'a Allocs,
    /// Its vdev and number.
    at: (u64, u64),
    /// What is allocated.
    space: RangeTree,
    errors: Vec<String>,
}

impl Validation<'_> {
    /// `metaslab_spacemap_validation_cb`.
    fn change(&mut self, txg: u64, change: &SpaceChange) {
        let (start, end, (vdev, metaslab)) = (change.start, change.end, self.at);
        let (done, what) = match change.change {
            Change::Alloc => (self.space.add(start, end), "DOUBLE ALLOC"),
            Change::Free => (self.space.remove(start, end), "DOUBLE FREE"),
        };
        if done.is_err() {
            let size = end - start;
            let error = format!("{what}: {txg} [{start:x}:{size:x}] {vdev}:{metaslab} LOG_SM");
            self.errors.push(error);
        }
        if change.change == Change::Alloc {
            return;
        }
        for ((_, offset), (asize, birth)) in self.own.range((vdev, start)..(vdev, end)) {
            if *birth <= txg {
                self.errors.push(format!(
                    "Livelist ALLOC [{offset:x}:{asize:x}] from TXG {birth:x} FREED at TXG {txg:x}"
                ));
            }
        }
    }
}
