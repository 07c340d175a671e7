//! The free space of a pool that is there, for a simulation to begin with.
//!
//! It is read from space maps and log space maps, as the pool's last transaction group left them; no
//! data is read, and nothing is written. The simulated pool is cut up in the same way (sizes of
//! vdevs, sectors and metaslabs; RAID-Z of as many devices), and before anything else happens all
//! that is allocated in the pool is claimed in it.
//!
//! Two things differ. The simulated pool's own metadata is where its allocator put it before, a few
//! MiB that may be free in the other pool. And only vdevs for data are looked at: logs, special
//! vdevs and vdevs that were removed have no part in it.

use crate::spec::AgeError;
use cenote_engine::create::Redundancy;
use cenote_format::nvlist::NvList;
use cenote_pool::Pool;
use cenote_pool::metaslab::{AllocClass, PoolSpace, VdevSpace};

/// Smallest log2 of the bytes of a metaslab that can be simulated: that of a label, in which the
/// sizes of devices are counted.
const LEAST_SHIFT: u32 = 18;

/// The space of a pool for data.
#[derive(Debug)]
pub struct PoolModel {
    /// Name of the pool.
    pub name: String,
    /// The transaction group that it is of.
    pub txg: u64,
    /// Whether it has log space maps.
    pub logs: bool,
    /// Its vdevs, those left out that are for something else.
    pub vdevs: Vec<VdevModel>,
}

/// The space of a top-level vdev.
#[derive(Debug)]
pub struct VdevModel {
    /// Its id in the pool.
    pub id: u64,
    /// How its devices are put together. Mirrors count as single devices.
    pub redundancy: Redundancy,
    /// Its devices; 1 if single.
    pub devices: u64,
    /// log2 of the bytes of a sector.
    pub ashift: u32,
    /// Allocatable bytes.
    pub asize: u64,
    /// log2 of the bytes of a metaslab.
    pub metaslab_shift: u32,
    /// Free segments of each metaslab, in order.
    pub free: Vec<Vec<(u64, u64)>>,
}

impl PoolModel {
    /// The free space of `pool`.
    ///
    /// # Errors
    /// Space maps cannot be read, or the pool has nothing that can be simulated.
    pub fn of(pool: &Pool) -> Result<PoolModel, AgeError> {
        let unreadable = |e: cenote_dmu::Error| AgeError::Like(e.to_string());
        let loaded;
        let space = match pool.space() {
            Some(space) => space,
            None => {
                loaded = PoolSpace::load(pool.mos(), pool.config()).map_err(unreadable)?;
                &loaded
            }
        };
        let configs = pool.config().list("vdev_tree").and_then(|t| t.lists("children"));
        let mut vdevs = Vec::new();
        for v in space.vdevs.iter().filter(|v| v.concrete && v.class == AllocClass::Normal) {
            if v.metaslabs.is_empty() {
                continue;
            }
            let config = configs.and_then(|c| c.get(usize::try_from(v.id).ok()?));
            let free = v.metaslabs.iter().map(|m| {
                let free = PoolSpace::load_free(pool.mos(), v, m).map_err(unreadable)?;
                Ok(free.iter().collect())
            });
            let free = free.collect::<Result<_, AgeError>>()?;
            vdevs.push(model(v, config, free)?);
        }
        let name = pool.name().to_string();
        if vdevs.is_empty() {
            return Err(AgeError::Like(format!("'{name}' has no vdevs for data")));
        }
        let (txg, logs) = (pool.uberblock().txg, space.log_feature.is_some());
        Ok(PoolModel { name, txg, logs, vdevs })
    }
}

fn model(
    v: &VdevSpace,
    config: Option<&NvList>,
    free: Vec<Vec<(u64, u64)>>,
) -> Result<VdevModel, AgeError> {
    let (redundancy, devices) = match v.kind.as_str() {
        "raidz" => {
            let parity = config.and_then(|c| c.u64("nparity")).unwrap_or(1);
            let children = config.and_then(|c| c.lists("children")).map_or(0, <[NvList]>::len);
            (Redundancy::RaidZ(u8::try_from(parity).unwrap_or(u8::MAX)), children as u64)
        }
        // Below these there may be a spare or a replacement; the space is the same.
        "file" | "disk" | "mirror" | "replacing" | "spare" => (Redundancy::Single, 1),
        kind => return Err(AgeError::Like(format!("vdev {}: {kind} is not simulated", v.id))),
    };
    if v.metaslab_shift < LEAST_SHIFT {
        let why = format!("vdev {}: metaslabs of less than {} KiB", v.id, 1 << (LEAST_SHIFT - 10));
        return Err(AgeError::Like(why));
    }
    Ok(VdevModel {
        id: v.id,
        redundancy,
        devices,
        ashift: v.ashift,
        asize: v.asize,
        metaslab_shift: v.metaslab_shift,
        free,
    })
}

impl VdevModel {
    /// What is allocated in a metaslab, in order.
    pub fn allocated(&self, metaslab: usize) -> impl Iterator<Item = (u64, u64)> {
        let (start, end) = (metaslab as u64, metaslab as u64 + 1);
        let (start, end) = (start << self.metaslab_shift, end << self.metaslab_shift);
        let free = self.free.get(metaslab).map_or(&[][..], |free| free);
        let mut from = start;
        free.iter().copied().chain([(end, end)]).filter_map(move |(at, to)| {
            let range = (from, at);
            from = to;
            (range.0 < range.1).then_some(range)
        })
    }

    /// Bytes of all metaslabs, and how many of them are free.
    pub fn usage(&self) -> (u64, u64) {
        let free = self.free.iter().flatten().map(|(start, end)| end - start).sum();
        ((self.free.len() as u64) << self.metaslab_shift, free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_free_is_allocated() {
        let metaslab = 1u64 << 20;
        let model = VdevModel {
            id: 0,
            redundancy: Redundancy::Single,
            devices: 1,
            ashift: 9,
            asize: 3 << 20,
            metaslab_shift: 20,
            free: vec![
                vec![(0, 512), (1024, 2048)],
                vec![],
                vec![(2 * metaslab + 512, 3 * metaslab)],
            ],
        };
        let of = |i| model.allocated(i).collect::<Vec<_>>();
        assert_eq!(of(0), [(512, 1024), (2048, metaslab)]);
        assert_eq!(of(1), [(metaslab, 2 * metaslab)]);
        assert_eq!(of(2), [(2 * metaslab, 2 * metaslab + 512)]);
        assert_eq!(model.usage(), (3 << 20, 512 + 1024 + metaslab - 512));
    }
}
