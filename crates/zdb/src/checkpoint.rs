//! The pool's checkpoint: what is said of it at the end of each look at a whole pool (`verify_checkpoint`), and `-k`, which looks at
//! the pool as the checkpoint has it (`import_checkpointed_state`).

use super::{Zdb, failed, print};
use cenote_command::outcome::Stop;
use cenote_pool::Pool;
use cenote_pool::metaslab::{PoolSpace, VdevSpace};
use cenote_pool::spacemap::{Region, SpaceMap};
use cenote_store::rangetree::RangeTree;

/// What comes behind the name of a pool that is shown as its checkpoint has it (`BOGUS_SUFFIX`).
pub(crate) const SUFFIX: &str = "_CHECKPOINTED_UNIVERSE";

impl Zdb<'_> {
    /// The checkpoint, if the pool has one. Of a pool that is not imported it is compared with the pool.
    pub(crate) fn checkpoint(&mut self) -> Result<(), Stop> {
        if !self.pool.features().is_active("zpool_checkpoint") {
            return Ok(());
        }
        let verifies = self.level('L') == 0;
        let Some(uberblock) = self.pool.checkpoint().map_err(failed)? else {
            if verifies {
                writeln!(self.out(), "\nPartially discarded checkpoint state found:")?;
            }
            return Ok(());
        };
        let time = self.ctime(uberblock.timestamp);
        writeln!(self.out(), "\nCheckpointed uberblock found:")?;
        let rootbp = self.level('u') >= 4;
        print::uberblock(self.out(), &uberblock, &time, rootbp)?;
        writeln!(self.out())?;
        if let Some(candidate) = self.candidate.as_ref().filter(|_| verifies) {
            let then = super::import(self.args, self.pool.name(), candidate, true)?;
            self.compare_with(&then)?;
        }
        Ok(())
    }

    /// What the checkpoint `then` has allocated still is, and what only it refers to it has allocated
    /// (`verify_checkpoint_blocks`).
    fn compare_with(&mut self, then: &Pool) -> Result<(), Stop> {
        let pool = self.pool.clone();
        let load = |pool: &Pool| PoolSpace::load(pool.mos(), pool.config()).map_err(failed);
        let (now_space, then_space) = (load(&pool)?, load(then)?);
        let mut wrong = Vec::new();
        for v in then_space.vdevs.iter().filter(|v| v.concrete) {
            let Some(now) = now_space.vdev_space(v.id) else { continue };
            let mut had = RangeTree::new();
            for (ms, now_ms) in v.metaslabs.iter().zip(&now.metaslabs) {
                let free = PoolSpace::load_free(then.mos(), v, ms).map_err(failed)?;
                let mut allocated = RangeTree::new();
                allocated.add(ms.start, ms.start + ms.size).map_err(failed)?;
                for (start, end) in free.iter() {
                    allocated.clear(start, end);
                }
                let free_now = PoolSpace::load_free(pool.mos(), now, now_ms).map_err(failed)?;
                let both = free_now.iter().filter_map(|(start, end)| allocated.overlap(start, end));
                wrong.extend(both.map(|(start, end)| {
                    format!("checkpoint's {}:{start:x}:{:x} is free", v.id, end - start)
                }));
                for (start, end) in allocated.iter() {
                    had.add(start, end).map_err(failed)?;
                }
            }
            wrong.extend(not_had(&pool, now, &had)?);
        }
        wrong.iter().for_each(|why| self.complain(why));
        Ok(())
    }
}

/// What the checkpoint's space map of a vdev has that is not among what the checkpoint `had` allocated.
fn not_had(pool: &Pool, v: &VdevSpace, had: &RangeTree) -> Result<Vec<String>, Stop> {
    let mut wrong = Vec::new();
    if v.checkpoint_map == 0 {
        return Ok(wrong);
    }
    let region = Region::new(0, v.asize, v.ashift);
    let map = SpaceMap::open(pool.mos(), v.checkpoint_map, region).map_err(failed)?;
    let look = map.for_each(&mut |c| {
        if !had.contains(c.start, c.end) {
            let (vdev, len) = (v.id, c.end - c.start);
            wrong.push(format!("{vdev}:{:x}:{len:x} is kept, and not the checkpoint's", c.start));
        }
        Ok(())
    });
    look.map_err(failed)?;
    Ok(wrong)
}
