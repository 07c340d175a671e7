//! Datasets that are open for writing, and what is left for each to write.
//!
//! A change says what it will write at most. What was written since the last committed group is
//! not in any figure on disk yet, so it is counted here as *pending*, as if nothing compressed.
//! If available space (quotas and reservations included) does not hold pending bytes and the new
//! ones, the change waits for the open group to be committed, which turns estimates into figures;
//! if there is nothing pending, it is refused. Changes that free may go beyond that, into half of
//! the space that is kept back, so that a full pool can be emptied.

use super::Shared;
use super::capable;
use super::task::EngineError;
use cenote_dmu::ObjectSet;
use cenote_dmu::live::{Cost, Entered, LiveObjectSet, TxgGate};
use cenote_dmu::write::{OpenObjectSet, WriteError};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

/// Bytes that a new object is taken to need: its dnode and an entry in a directory, with copies.
const OBJECT_BYTES: u64 = 4096;
/// A change writes indirect blocks besides data: one part in so many.
const INDIRECT_SHARE: u64 = 64;

/// Space that is left.
#[derive(Default)]
struct Left {
    /// Group that the figures are of.
    txg: u64,
    /// Bytes that the pool has for datasets, and those that each dataset may still write.
    pool: Option<u64>,
    datasets: HashMap<u64, Option<u64>>,
    /// Bytes that entered since, by group and dataset.
    pending: BTreeMap<u64, HashMap<u64, u64>>,
}

impl Left {
    fn pending_of(&self, dataset: u64) -> u64 {
        self.pending.values().filter_map(|group| group.get(&dataset)).sum()
    }

    fn pending(&self) -> u64 {
        self.pending.values().flat_map(|group| group.values()).sum()
    }
}

/// Datasets that are open for writing.
#[derive(Default)]
pub(crate) struct Datasets {
    open: Mutex<HashMap<u64, Arc<LiveObjectSet>>>,
    left: Mutex<Left>,
}

/// What a dataset asks before it is changed.
struct Door {
    shared: Weak<Shared>,
}

impl TxgGate for Door {
    fn enter(&self, objset: u64, cost: &Cost) -> Result<Entered, WriteError> {
        let ended = || WriteError::Suspended("the pool is exported".into());
        let shared = self.shared.upgrade().ok_or_else(ended)?;
        let bytes = estimate(cost);
        shared.datasets.reserve(&shared, objset, cost, bytes)?;
        let inside = shared.gate.enter(cost.write.saturating_add(cost.objects * OBJECT_BYTES))?;
        let txg = inside.txg;
        shared.datasets.charge(txg, objset, bytes);
        Ok(Entered::new(txg, inside))
    }
}

/// Bytes that a change may take at most.
fn estimate(cost: &Cost) -> u64 {
    let data = cost.write.saturating_add(cost.write / INDIRECT_SHARE);
    data.saturating_add(cost.objects.saturating_mul(OBJECT_BYTES))
}

impl Datasets {
    /// See [`super::Engine::live`].
    pub fn open(
        &self,
        shared: &Arc<Shared>,
        ds_obj: u64,
    ) -> Result<Arc<LiveObjectSet>, EngineError> {
        let mut open = self.open.lock();
        if let Some(live) = open.get(&ds_obj) {
            return Ok(live.clone());
        }
        let view = shared.view();
        let dataset = view.dsl().by_object(ds_obj)?;
        let dataset = dataset.filter(|d| d.is_head());
        let dataset = dataset.ok_or(cenote_dsl::write::DslWriteError::NotFound)?;
        let base = ObjectSet::open(view.store().clone(), ds_obj, dataset.ds.bp)?;
        capable::check_dataset(&view, &dataset, &base)?;
        let gate = Arc::new(Door { shared: Arc::downgrade(shared) });
        let live = LiveObjectSet::new(OpenObjectSet::open(base)?, gate);
        open.insert(ds_obj, live.clone());
        Ok(live)
    }

    /// Forgets an open dataset.
    pub fn close(&self, ds_obj: u64) {
        self.open.lock().remove(&ds_obj);
    }

    /// Takes over what every open dataset collected. Nobody is inside the gate.
    pub fn freeze(&self) -> Vec<(Arc<LiveObjectSet>, OpenObjectSet)> {
        let open = self.open.lock();
        let dirty = open.values().filter(|live| live.is_dirty());
        let mut frozen: Vec<_> = dirty.map(|live| (live.clone(), live.freeze())).collect();
        frozen.sort_by_key(|(live, _)| live.id());
        frozen
    }

    /// Group `txg` is on disk.
    pub fn synced(&self, txg: u64) {
        let mut left = self.left.lock();
        left.pending.retain(|t, _| *t > txg);
    }

    /// Waits until there is room for a change, or refuses it.
    fn reserve(
        &self,
        shared: &Shared,
        objset: u64,
        cost: &Cost,
        bytes: u64,
    ) -> Result<(), WriteError> {
        if bytes == 0 || cost.frees {
            return Ok(());
        }
        loop {
            let refused = match self.missing(shared, objset, bytes)? {
                None => return Ok(()),
                Some(refused) => refused,
            };
            let waiting = self.left.lock().pending();
            if waiting == 0 {
                return Err(refused);
            }
            shared.gate.wait_synced()?;
        }
    }

    /// Why there is no room for a change; `None` if there is.
    fn missing(
        &self,
        shared: &Shared,
        objset: u64,
        bytes: u64,
    ) -> Result<Option<WriteError>, WriteError> {
        let view = shared.view();
        let mut left = self.left.lock();
        if left.txg != view.uberblock().txg {
            left.txg = view.uberblock().txg;
            left.pool = None;
            left.datasets.clear();
        }
        let dsl = view.dsl();
        if left.pool.is_none() {
            left.pool = dsl.available(&dsl.root()?)?;
        }
        let dataset = match left.datasets.get(&objset) {
            Some(known) => *known,
            None => {
                let dataset = dsl.by_object(objset)?;
                let found = dataset.map(|d| dsl.available(&d)).transpose()?.flatten();
                left.datasets.insert(objset, found);
                found
            }
        };
        let over = |available: Option<u64>, pending: u64| {
            available.is_some_and(|available| pending.saturating_add(bytes) > available)
        };
        if over(dataset, left.pending_of(objset)) {
            let pool_has_less = left.pool.zip(dataset).is_some_and(|(pool, own)| pool <= own);
            return Ok(Some(if pool_has_less { WriteError::NoSpace } else { WriteError::Quota }));
        }
        Ok(over(left.pool, left.pending()).then_some(WriteError::NoSpace))
    }

    fn charge(&self, txg: u64, objset: u64, bytes: u64) {
        if bytes > 0 {
            let mut left = self.left.lock();
            *left.pending.entry(txg).or_default().entry(objset).or_default() += bytes;
        }
    }
}
