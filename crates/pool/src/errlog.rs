//! Data errors (`spa_get_errlog`): the persistent error logs of the MOS and what is not in them yet. The engine
//! writes them (`cenote_dsl::write::errlog`).
//!
//! The entries `errlog_last` and `errlog_scrub` of the object directory name ZAPs. Without the
//! feature `head_errlog` each key is a block in a dataset; with it there is a ZAP for each file
//! system, and its keys also say when the block was born:
//!
//! ```text
//! old:  "objset:object:level:blkid"                       all numbers hexadecimal
//! new:  "head dataset" -> ZAP of "object:level:blkid:birth"
//! ```
//!
//! A block is shared by a file system, its snapshots and their clones as long as it was not
//! rewritten. With `head_errlog` an error is therefore looked for in all of them: it counts where
//! the block at that place still has that birth; where it has it nowhere any more it leaves the log. What belongs to no
//! file system, or has no birth that is known, is in the log under 0, or with birth 0.
//!
//! The birth in the log is that of the block on disk. A block that was cloned, or is deduplicated, became part of its tree later.
//! So the search begins where the block would have been written to, and where it was found; and what a snapshot has follows from
//! what the file system has only where its place is as old.
//!
//! Invariants: each dataset is looked at once per error, and so many for all errors together; keys
//! that do not parse are skipped.

use crate::Pool;
use cenote_dmu::Result;
use cenote_dmu::zap::Zap;
use cenote_dsl::{Dataset, Dsl, number_in_name};
use cenote_format::blkptr::BlockPointer;
use cenote_store::{Bookmark, LoggedError, Store};
use std::collections::{BTreeSet, HashSet};

/// Datasets looked at for all errors together. What is not looked at is not named: the log of a
/// pool made to do harm would go on for ever.
const MAX_DATASETS: usize = 1 << 20;

/// A damaged object: dataset object (0: the MOS) and object number.
pub type DataError = (u64, u64);

/// What scrubs of the error log look at.
#[derive(Debug, Default)]
pub struct LoggedBlocks {
    /// The blocks, in each data set that has them, each with its entry; sorted.
    pub blocks: Vec<(Bookmark, LoggedError)>,
    /// Entries that are not looked at, or not in all data sets that may have the block.
    pub doubtful: Vec<LoggedError>,
    /// Whether these are all entries.
    pub is_all: bool,
}

/// A damaged block, with its birth (0: not known).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    object: u64,
    level: i64,
    blkid: u64,
    birth: u64,
}

impl Block {
    /// Whether it is an object set itself.
    fn is_root(&self) -> bool {
        (self.object, self.level) == (0, Bookmark::root(0).level)
    }

    /// Whether an object leads to it; that of blocks of dnodes is the object set's own.
    fn is_of_object(&self) -> bool {
        self.level >= 0
    }
}

/// Four hexadecimal numbers with colons between.
fn parse_key(name: &[u8]) -> Option<[u64; 4]> {
    let text = std::str::from_utf8(name).ok()?;
    let mut fields = text.split(':').map(|f| u64::from_str_radix(f, 16).ok());
    let key = [fields.next()??, fields.next()??, fields.next()??, fields.next()??];
    fields.next().is_none().then_some(key)
}

/// Levels are kept as 32-bit integers, negative ones too.
fn level(n: u64) -> i64 {
    i64::from(n as u32 as i32)
}

impl Pool {
    fn error_logs(&self) -> Result<Vec<Zap>> {
        let mut logs = Vec::new();
        for name in ["errlog_last", "errlog_scrub"] {
            logs.extend(self.directory().zap_of(name)?);
        }
        Ok(logs)
    }

    /// The ZAPs of `log` by file system, with the feature `head_errlog`.
    fn head_logs(&self, log: &Zap) -> Result<Vec<(u64, Zap)>> {
        let mut out = Vec::new();
        for entry in log.entries()? {
            let (Some(head), Some(object)) = (number_in_name(&entry), entry.u64()) else {
                continue;
            };
            out.push((head, Zap::open(&self.mos().object(object)?)?));
        }
        Ok(out)
    }

    /// Number of damaged blocks known: as OpenZFS's, only roughly the number of lines that
    /// [`Pool::data_errors`] makes of them.
    pub fn error_count(&self) -> Result<u64> {
        let mut count = self.store().pending_errors().len() as u64;
        for log in self.error_logs()? {
            if self.features().is_enabled("head_errlog") {
                for (_, log) in self.head_logs(&log)? {
                    count += log.entries()?.len() as u64;
                }
            } else {
                count += log.entries()?.len() as u64;
            }
        }
        Ok(count)
    }

    /// The damaged objects, sorted, each once.
    pub fn data_errors(&self) -> Result<Vec<DataError>> {
        let mut search = Search::new(self);
        for log in self.error_logs()? {
            if self.features().is_enabled("head_errlog") {
                for (head, log) in self.head_logs(&log)? {
                    for [object, l, blkid, birth] in keys(&log)? {
                        let block = Block { object, level: level(l), blkid, birth };
                        search.expand(head, &block);
                    }
                }
            } else {
                let objects = keys(&log)?.into_iter().map(|[objset, object, ..]| (objset, object));
                search.found.extend(objects);
            }
        }
        for (at, birth) in self.store().pending_errors() {
            self.not_logged_yet(&at, birth, &mut search);
        }
        self.store().errors_healed(&search.gone);
        Ok(search.found.into_iter().collect())
    }

    /// The blocks of the log that scrubs leave.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn logged_blocks(&self) -> Result<LoggedBlocks> {
        let mut search = Search::new(self);
        if let Some(log) = self.directory().zap_of("errlog_last")? {
            for (head, log) in self.head_logs(&log)? {
                for [object, l, blkid, birth] in keys(&log)? {
                    search.expand(head, &Block { object, level: level(l), blkid, birth });
                }
            }
        }
        let mut blocks = search.blocks;
        blocks.sort_unstable();
        blocks.dedup();
        Ok(LoggedBlocks { blocks, doubtful: search.doubtful, is_all: search.left > 0 })
    }

    /// The pointer of a block, as far as something is there: the data set or the object may be gone.
    ///
    /// # Errors
    /// What leads to it cannot be read, or nothing leads to such a block.
    pub fn pointer_of(&self, at: &Bookmark) -> Result<Option<BlockPointer>> {
        match at.objset {
            0 => self.mos().pointer_at(at),
            objset => match self.dsl().by_object(objset)? {
                Some(dataset) => pointer_in(self.dsl(), &dataset, at),
                None => Ok(None),
            },
        }
    }

    /// An error met while reading: it concerns all datasets that share the block.
    fn not_logged_yet(&self, at: &Bookmark, birth: u64, search: &mut Search<'_>) {
        let by_head = at.objset != 0 && self.features().is_enabled("head_errlog");
        match self.dsl().by_object(at.objset) {
            Ok(Some(dataset)) if by_head => {
                let block = Block { object: at.object, level: at.level, blkid: at.blkid, birth };
                search.expand(dataset.dir.head_dataset, &block);
            }
            _ => drop(search.found.insert((at.objset, at.object))),
        }
    }

    /// The damaged objects as `zpool status -v` names them. `path` gives the path of an object in a
    /// file system (beginning with `/`), `mountpoint` where a dataset is mounted.
    pub fn error_names(
        &self,
        path: &dyn Fn(&Dataset, u64) -> Option<String>,
        mountpoint: &dyn Fn(&Dataset) -> Option<String>,
    ) -> Result<Vec<String>> {
        let name = |error| self.object_name(error, path, mountpoint);
        Ok(self.data_errors()?.into_iter().map(name).collect())
    }

    /// The name of an object of an object set (`zpool_obj_to_path`). `path` and `mountpoint` are as for
    /// [`Pool::error_names`].
    pub fn object_name(
        &self,
        (objset, object): DataError,
        path: &dyn Fn(&Dataset, u64) -> Option<String>,
        mountpoint: &dyn Fn(&Dataset) -> Option<String>,
    ) -> String {
        if objset == 0 {
            return format!("<metadata>:<{object:#x}>");
        }
        let Ok(Some(dataset)) = self.dsl().by_object(objset) else {
            return format!("<{objset:#x}>:<{object:#x}>");
        };
        match (path(&dataset, object), mountpoint(&dataset)) {
            (Some(path), Some(mountpoint)) => format!("{mountpoint}{path}"),
            (Some(path), None) => format!("{}:{path}", dataset.name),
            (None, _) => format!("{}:<{object:#x}>", dataset.name),
        }
    }
}

fn keys(log: &Zap) -> Result<Vec<[u64; 4]>> {
    Ok(log.entries()?.iter().filter_map(|e| parse_key(&e.name)).collect())
}

/// The pointer of a block in a dataset, without its key.
fn pointer_in(dsl: &Dsl, dataset: &Dataset, at: &Bookmark) -> Result<Option<BlockPointer>> {
    let objset = dsl.walked_objset(dataset)?;
    Store::without_keys(|| objset.pointer_at(at))
}

/// What is at a block's place in a dataset.
struct There {
    /// When it was written (`find_birth_txg`).
    written: u64,
    /// When it came to this place: snapshots since then have it there, too.
    placed: u64,
}

/// What is at this place in a dataset; `None`: nothing.
///
/// # Errors
/// What leads to the block cannot be read.
fn there(dsl: &Dsl, dataset: &Dataset, block: &Block) -> Result<Option<There>> {
    let Block { object, level, blkid, .. } = *block;
    let at = Bookmark { objset: dataset.ds_obj, object, level, blkid };
    let bp = match block.is_root() {
        true => Some(dataset.ds.bp).filter(|bp| !bp.is_hole()),
        false => pointer_in(dsl, dataset, &at)?,
    };
    Ok(bp.map(|bp| There { written: bp.physical_birth(), placed: bp.birth() }))
}

/// The search for all datasets that have damaged blocks.
struct Search<'a> {
    dsl: &'a Dsl,
    /// The group that is looked at.
    txg: u64,
    /// Datasets that may still be looked at.
    left: usize,
    found: BTreeSet<DataError>,
    /// Blocks that no dataset has any more.
    gone: Vec<LoggedError>,
    /// Datasets that have the block that is looked for.
    hits: usize,
    /// All blocks that objects have, in all datasets that have or may have them, each with what it was found for.
    blocks: Vec<(Bookmark, LoggedError)>,
    /// What may be in other datasets as well, or is the block of no object.
    doubtful: Vec<LoggedError>,
    /// What is looked for.
    entry: LoggedError,
}

impl Search<'_> {
    fn new(pool: &Pool) -> Search<'_> {
        let (dsl, txg, left, hits) = (pool.dsl(), pool.uberblock().txg, MAX_DATASETS, 0);
        let (found, gone, blocks, doubtful) = Default::default();
        let entry = (Bookmark { objset: 0, object: 0, level: 0, blkid: 0 }, 0);
        Search { dsl, txg, left, found, gone, hits, blocks, doubtful, entry }
    }

    fn hit(&mut self, dataset: u64, block: &Block) {
        self.hits += 1;
        self.may_have(dataset, block);
    }

    /// A dataset may have a damaged block.
    fn may_have(&mut self, objset: u64, block: &Block) {
        let Block { object, level, blkid, .. } = *block;
        self.found.insert((objset, object));
        if block.is_of_object() {
            self.blocks.push((Bookmark { objset, object, level, blkid }, self.entry));
        }
    }

    /// A dataset; `None`: it is not there, or no more are looked at.
    ///
    /// # Errors
    /// It cannot be read.
    fn dataset(&mut self, object: u64) -> Result<Option<Dataset>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        self.dsl.by_object(object)
    }

    /// Adds every dataset that has the damaged block, starting from the file system `head` (`process_error_block`).
    fn expand(&mut self, head: u64, block: &Block) {
        let Block { object, level, blkid, birth } = *block;
        self.entry = (Bookmark { objset: head, object, level, blkid }, birth);
        let of_object = block.is_of_object();
        if !of_object {
            // Scrubs of the log look at no object sets and intent logs.
            self.doubtful.push(self.entry);
        }
        let known = head != 0 && birth != 0 && (of_object || block.is_root());
        let start = if known { self.oldest_head(head, block) } else { Ok(None) };
        let Ok(Some(start)) = start else {
            // The MOS has no snapshots. Of other blocks it is not known which datasets share them.
            if of_object && (start.is_err() || head != 0 && birth == 0) {
                self.doubtful.push(self.entry);
            }
            return self.may_have(head, block);
        };
        self.hits = 0;
        let mut sure = true;
        let mut seen = HashSet::new();
        let mut waiting = vec![start, head];
        while let Some(head) = waiting.pop() {
            if seen.insert(head) {
                match self.check_head(head, block) {
                    Ok(clones) => waiting.extend(clones),
                    // It may have the block.
                    Err(_) => {
                        self.may_have(head, block);
                        sure = false;
                    }
                }
            }
        }
        // A block of a later group is where this one does not see it.
        if sure && self.left > 0 && self.hits == 0 && birth <= self.txg {
            match block.is_root() && self.may_be_of_log(head) {
                true => self.may_have(head, block),
                false => self.gone.push(self.entry),
            }
        }
        if !sure && of_object {
            self.doubtful.push(self.entry);
        }
    }

    /// Whether what is noted of an object set may be a block that a record of its claimed intent log leads to.
    fn may_be_of_log(&mut self, head: u64) -> bool {
        let Ok(Some(dataset)) = self.dataset(head) else { return true };
        self.dsl.walked_objset(&dataset).map_or(true, |set| set.phys().zil.claim_txg != 0)
    }

    /// The file system that the block was written to: clones share blocks older than themselves
    /// with where they come from.
    fn oldest_head(&mut self, head: u64, block: &Block) -> Result<Option<u64>> {
        let Some(mut at) = self.dataset(head)? else { return Ok(None) };
        while at.ds.prev_snap != 0 && at.ds.prev_snap_txg >= block.birth {
            let Some(before) = self.dataset(at.ds.prev_snap)? else { return Ok(None) };
            at = before;
        }
        Ok(Some(at.dir.head_dataset))
    }

    /// Checks a file system and its snapshots (`check_filesystem`); returns clones that may share the block.
    fn check_head(&mut self, head: u64, block: &Block) -> Result<Vec<u64>> {
        let Some(dataset) = self.dataset(head)? else { return Ok(Vec::new()) };
        let now = there(self.dsl, &dataset, block)?;
        let is_it = |there: &There| there.written == block.birth;
        let in_head = now.as_ref().is_some_and(is_it);
        if in_head {
            self.hit(head, block);
        }
        // All later snapshots have what is there now; others may have another block.
        let placed = now.map_or(u64::MAX, |now| now.placed);
        let mut affected = HashSet::new();
        let (mut snap, mut txg) = (dataset.ds.prev_snap, dataset.ds.prev_snap_txg);
        // A snapshot has what was written in its own group.
        while snap != 0 && txg >= block.birth {
            let Some(s) = self.dataset(snap)? else { break };
            let has_it = match s.dir.head_dataset == head {
                true if txg > placed => in_head,
                true => there(self.dsl, &s, block)?.as_ref().is_some_and(is_it),
                false => false,
            };
            if has_it {
                self.hit(snap, block);
                affected.insert(snap);
            }
            (snap, txg) = (s.ds.prev_snap, s.ds.prev_snap_txg);
        }
        self.clones_of(&dataset, &affected)
    }

    fn clones_of(&mut self, dataset: &Dataset, origins: &HashSet<u64>) -> Result<Vec<u64>> {
        if dataset.dir.clones == 0 || origins.is_empty() {
            return Ok(Vec::new());
        }
        let clones = Zap::open(&self.dsl.mos().object(dataset.dir.clones)?)?.entries()?;
        let mut out = Vec::new();
        for clone in clones.iter().filter_map(|e| e.u64()) {
            if self.dataset(clone)?.is_some_and(|c| origins.contains(&c.dir.origin)) {
                out.push(clone);
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_parse() {
        assert_eq!(parse_key(b"36:2:0:1a"), Some([0x36, 2, 0, 0x1a]));
        assert_eq!(level(parse_key(b"0:0:ffffffffffffffff:0").unwrap()[2]), -1);
        for bad in [&b"36:2:0"[..], b"36:2:0:1:2", b"x:2:0:1", b"", b"\xff:1:1:1"] {
            assert_eq!(parse_key(bad), None);
        }
    }
}
