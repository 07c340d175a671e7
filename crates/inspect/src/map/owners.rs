//! Whose blocks lie in which metaslab.
//!
//! A traversal of every block pointer ([`crate::traverse`]) says where each copy of each block lies;
//! here its bytes are charged to the block's owner:
//!
//! - a file system or volume: its blocks, those that only its snapshots have, and what clones share
//!   with them. A block that several datasets share by deduplication or cloning is charged to the
//!   one that the traversal comes to first;
//! - *pool metadata*: the MOS and what else belongs to no dataset;
//! - *intent log*: log blocks, and data that was written for log records;
//! - *being freed*: blocks that were freed and not returned yet, destroyed datasets;
//! - *checkpoint*: what only the pool's checkpoint holds.
//!
//! Blocks on a removed vdev are charged where the vdev's mapping leads to. The sum over a metaslab's
//! owners is what is allocated in it, but for space that was leaked, that a removal under way has
//! copied ahead, or that is below a structure that cannot be read ([`Owners::missed`]).
//!
//! Of a pool in use, what was freed after the traversal began is kept from being allocated
//! ([`InUse`](super::InUse)), or else what was below it could not be read any more.
//!
//! Memory: one counter per metaslab and owner that has something there. Steps through mappings of
//! removed vdevs are as many as there are vdevs at most.

use super::{Share, SpaceMapReport};
use crate::traverse::stats::DEFERRED;
use crate::traverse::{self, Event, Found, Options, Subject, Verify};
use cenote_dmu::Result;
use cenote_format::dsl::{DslDatasetPhys, DslDirPhys};
use cenote_format::invariant::broken;
use cenote_pool::Pool;
use cenote_pool::indirect::Mapping;
use cenote_pool::metaslab::PoolSpace;
use cenote_pool::spacemap::{Region, SpaceMap};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::HashMap;

/// The owners of a pool's blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owners {
    /// All that have something, datasets by name, then the rest.
    pub list: Vec<Owner>,
    /// Blocks and structures that could not be read; what is below them has no owner.
    pub missed: u64,
}

/// An owner of blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The dataset's name, or what the space is for.
    pub name: String,
    /// What it is.
    pub kind: OwnerKind,
}

/// Kinds of owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OwnerKind {
    /// A file system or volume, with its snapshots.
    Dataset,
    /// What belongs to no dataset.
    PoolMetadata,
    /// Intent logs.
    IntentLog,
    /// Freed and not returned yet.
    BeingFreed,
    /// Held by the checkpoint only.
    Checkpoint,
}

impl OwnerKind {
    /// What the space is called that belongs to no dataset.
    fn name(self) -> &'static str {
        match self {
            OwnerKind::Dataset => "dataset",
            OwnerKind::PoolMetadata => "pool metadata",
            OwnerKind::IntentLog => "intent log",
            OwnerKind::BeingFreed => "being freed",
            OwnerKind::Checkpoint => "checkpoint",
        }
    }
}

impl SpaceMapReport {
    /// Finds out whose blocks there are, by visiting every block of `pool`, which the report is of.
    /// `progress` is called from several threads, about once a second, with the bytes accounted for
    /// so far and in all; `cancelled` ends the traversal early.
    ///
    /// # Errors
    /// The space maps or the list of datasets cannot be read.
    pub fn add_owners(
        &mut self,
        pool: &Pool,
        workers: usize,
        progress: &(dyn Fn(u64, u64) + Sync),
        cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<()> {
        let loaded;
        let space = match pool.space() {
            Some(space) => space,
            None => {
                loaded = PoolSpace::load(pool.mos(), pool.config())?;
                &loaded
            }
        };
        let subject =
            Subject { mos: pool.mos().clone(), config: pool.config(), uberblock: pool.uberblock() };
        let mut books = Books::new(pool, space, subject.mappings()?);
        books.checkpoint(pool, space)?;
        let books = Mutex::new(books);
        let event = |event: Event<'_>| match event {
            Event::Placed { found, vdev, offset, size } => {
                let mut books = books.lock();
                let owner = books.owner_of(found);
                books.charge(owner, vdev, offset, size);
            }
            Event::Progress { done, total } => progress(done, total),
            _ => {}
        };
        let options = Options { verify: Verify::Nothing, leaks: false, workers };
        let report = traverse::run(&subject, space, &options, &event, cancelled)?;
        let mut books = books.into_inner();
        books.missed += report.unreadable + report.damaged + report.not_claimed;
        books.close(self);
        Ok(())
    }
}

/// The counters while the traversal runs.
struct Books<'a> {
    pool: &'a Pool,
    /// log2 of the bytes of a metaslab by vdev; 0 where a vdev has no metaslabs.
    shifts: Vec<u32>,
    mappings: Vec<Option<Mapping>>,
    owners: Vec<Owner>,
    by_name: HashMap<(OwnerKind, String), u32>,
    /// Owners by the dataset's object, and by the directory's.
    by_dataset: HashMap<u64, u32>,
    by_dir: HashMap<u64, u32>,
    /// Bytes by vdev, metaslab and owner.
    bytes: HashMap<(u64, u64, u32), u64>,
    /// All of these.
    charged: u64,
    missed: u64,
}

impl<'a> Books<'a> {
    fn new(pool: &'a Pool, space: &PoolSpace, mappings: Vec<Option<Mapping>>) -> Books<'a> {
        let shift = |concrete: bool, shift| if concrete { shift } else { 0 };
        Books {
            pool,
            shifts: space.vdevs.iter().map(|v| shift(v.concrete, v.metaslab_shift)).collect(),
            mappings,
            owners: Vec::new(),
            by_name: HashMap::new(),
            by_dataset: HashMap::new(),
            by_dir: HashMap::new(),
            bytes: HashMap::new(),
            charged: 0,
            missed: 0,
        }
    }

    fn owner(&mut self, kind: OwnerKind, name: String) -> u32 {
        let next = self.owners.len() as u32;
        let owners = &mut self.owners;
        *self.by_name.entry((kind, name)).or_insert_with_key(|(kind, name)| {
            owners.push(Owner { name: name.clone(), kind: *kind });
            next
        })
    }

    fn special(&mut self, kind: OwnerKind) -> u32 {
        self.owner(kind, kind.name().into())
    }

    fn owner_of(&mut self, found: &Found) -> u32 {
        match found.at.objset {
            _ if found.kind == DEFERRED => self.special(OwnerKind::BeingFreed),
            _ if found.is_log() => self.special(OwnerKind::IntentLog),
            0 => self.special(OwnerKind::PoolMetadata),
            objset => match self.by_dataset.get(&objset) {
                Some(owner) => *owner,
                None => {
                    let owner = self.dataset(objset);
                    self.by_dataset.insert(objset, owner);
                    owner
                }
            },
        }
    }

    /// The owner that dataset `objset`, live or a snapshot, belongs to.
    fn dataset(&mut self, objset: u64) -> u32 {
        let mos = self.pool.mos();
        let object = |number| mos.object(number).ok();
        let dir = object(objset).and_then(|o| Some(DslDatasetPhys::decode(&o.bonus()).ok()?.dir));
        if let Some(owner) = dir.and_then(|dir| self.by_dir.get(&dir)) {
            return *owner;
        }
        let head = dir.and_then(object);
        let head = head.and_then(|o| Some(DslDirPhys::decode(&o.bonus()).ok()?.head_dataset));
        let named = head.and_then(|head| self.pool.dsl().by_object(head).ok().flatten());
        let owner = match named {
            Some(d) if d.name.rsplit('/').next().is_some_and(|n| n.starts_with('$')) => {
                self.special(OwnerKind::PoolMetadata)
            }
            Some(d) => self.owner(OwnerKind::Dataset, d.head_name().to_string()),
            None => self.owner(OwnerKind::Dataset, format!("dataset object {objset}")),
        };
        if let Some(dir) = dir {
            self.by_dir.insert(dir, owner);
        }
        owner
    }

    /// Charges space to an owner, on a removed vdev where it is mapped to.
    fn charge(&mut self, owner: u32, vdev: u64, offset: u64, size: u64) {
        let mut todo = vec![(vdev, offset, size, self.shifts.len())];
        while let Some((vdev, offset, size, steps)) = todo.pop() {
            let index = usize::try_from(vdev).ok();
            let shift = index.and_then(|index| self.shifts.get(index));
            match (shift, index.and_then(|index| self.mappings.get(index))) {
                (Some(shift @ 1..), _) => {
                    // Blocks that lie in one another may have more bytes together than there are numbers.
                    let Some(all) = self.charged.checked_add(size) else {
                        self.missed += 1;
                        continue;
                    };
                    self.charged = all;
                    *self.bytes.entry((vdev, offset >> shift, owner)).or_default() += size;
                }
                (_, Some(Some(mapping))) if steps > 0 => {
                    let end = offset.checked_add(size);
                    match end.and_then(|end| mapping.pieces(offset, end)) {
                        Some(pieces) => todo.extend(pieces.into_iter().map(|(_, piece)| {
                            (u64::from(piece.vdev), piece.offset, piece.size, steps - 1)
                        })),
                        None => self.missed += 1,
                    }
                }
                _ => self.missed += 1,
            }
        }
    }

    /// Charges what only the checkpoint holds.
    fn checkpoint(&mut self, pool: &Pool, space: &PoolSpace) -> Result<()> {
        for v in space.vdevs.iter().filter(|v| v.checkpoint_map != 0) {
            let owner = self.special(OwnerKind::Checkpoint);
            let region = Region::new(0, v.asize, v.ashift);
            let map = SpaceMap::open(pool.mos(), v.checkpoint_map, region)?;
            map.for_each(&mut |c| {
                self.charge(owner, v.id, c.start, c.end - c.start);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Hands the counters to the report.
    fn close(self, report: &mut SpaceMapReport) {
        let mut order: Vec<u32> = (0..).take(self.owners.len()).collect();
        let key = |i: &u32| self.owners.get(*i as usize).map(|o| (o.kind, o.name.as_str()));
        order.sort_by(|a, b| key(a).cmp(&key(b)));
        let mut number = vec![0u32; self.owners.len()];
        for (new, old) in (0u32..).zip(&order) {
            if let Some(slot) = number.get_mut(*old as usize) {
                *slot = new;
            }
        }
        let mut shares: HashMap<(u64, u64), Vec<Share>> = HashMap::new();
        for ((vdev, metaslab, owner), bytes) in self.bytes {
            let Some(owner) = number.get(owner as usize).copied() else {
                broken(format_args!(
                    "{bytes} bytes of vdev {vdev} are of the unknown owner {owner}"
                ))
            };
            shares.entry((vdev, metaslab)).or_default().push(Share { owner, bytes });
        }
        let mut missed = self.missed;
        for v in &mut report.vdevs {
            for m in &mut v.metaslabs {
                m.owners = shares.remove(&(v.id, m.id)).unwrap_or_default();
                m.owners.sort_by_key(|s| (Reverse(s.bytes), s.owner));
            }
        }
        // Space beyond the last metaslab of a vdev.
        missed += shares.len() as u64;
        let list = order.iter().filter_map(|i| self.owners.get(*i as usize).cloned()).collect();
        report.owners = Some(Owners { list, missed });
    }
}
