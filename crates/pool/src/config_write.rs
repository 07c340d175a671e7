//! The pool's config as it is written (`spa_config_generate`): into the MOS, and into the labels.
//!
//! A [`PoolConfig`] is what the config says, in memory. It makes both forms of it:
//!
//! ```text
//! MOS (object `config`): version, name, state, txg, pool_guid, errata, min_alloc, max_alloc,
//!         [comment], [compatibility], [hostid], hostname, com.delphix:has_per_vdev_zaps,
//!         [hole_array], vdev_children, vdev_tree (the root, with the numbers of the vdevs' ZAPs),
//!         features_for_read
//! labels: the same without has_per_vdev_zaps, and vdev_tree is that of the device's own top-level
//!         vdev, without ZAPs; top_guid, guid, is_spare, is_log are of the device and set by
//!         `VdevTree::sync_labels`
//! ```
//!
//! The config in the MOS is a packed nvlist in an object of its own, whose bonus buffer holds the
//! length; so are the lists of spares and cache devices. Each is written only in transaction groups
//! in which it changed ([`sync_config`], [`sync_aux`]), always in whole blocks.
//!
//! Invariants: what is not understood in a config that was read is kept. Notes that the reading
//! side makes in memory (`alloc_bias`) are not written.

use crate::config;
use crate::version;
use cenote_dmu::write::{NewObject, OpenObjectSet, Result, WriteError, ZapMut};
use cenote_format::dmu::DmuType;
use cenote_format::encode::zap::{Key, Value};
use cenote_format::invariant::broken;
use cenote_format::nvlist::{NvList, NvValue};

/// The object directory (`DMU_POOL_DIRECTORY_OBJECT`).
pub const DIRECTORY: u64 = 1;

/// Bytes of the blocks of objects that hold packed nvlists (`SPA_CONFIG_BLOCKSIZE`).
const NVLIST_BLOCK: u64 = 16 << 10;

/// Longest packed nvlist that is believed.
const MAX_NVLIST: u64 = 64 << 20;

/// Pairs of a vdev that only the MOS's config has.
const MOS_ONLY: [&str; 4] = [
    "com.delphix:vdev_zap_leaf",
    "com.delphix:vdev_zap_top",
    "com.klarasystems:vdev_zap_root",
    config::DEFERRED,
];

/// Pairs of a vdev that are notes in memory.
const NOTES: [&str; 1] = ["alloc_bias"];

/// Pairs that [`PoolConfig`] makes by itself.
const OWN: [&str; 15] = [
    "version",
    "name",
    "state",
    "txg",
    "pool_guid",
    "errata",
    "min_alloc",
    "max_alloc",
    "comment",
    "compatibility",
    "hostid",
    "hostname",
    "hole_array",
    "vdev_children",
    "com.delphix:has_per_vdev_zaps",
];

/// What the config of a pool says.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolConfig {
    /// Version of the pool (see [`version`]).
    pub version: u64,
    /// Name of the pool.
    pub name: String,
    /// [`config::STATE_ACTIVE`] and so on.
    pub state: u64,
    /// Guid of the pool.
    pub guid: u64,
    /// Number of a known fault of the format that the pool has (`zpool_errata_t`); 0: no known fault.
    pub errata: u64,
    /// Id of the host that has the pool imported; 0: the host has no id.
    pub hostid: u64,
    /// Its name.
    pub hostname: String,
    /// Property `comment`.
    pub comment: Option<String>,
    /// Property `compatibility`.
    pub compatibility: Option<String>,
    /// The root of the vdev tree, as the MOS has it. Its child `i` has the id `i`.
    pub vdev_tree: NvList,
    /// Guids of the active features without which the MOS cannot be read.
    pub features: Vec<String>,
    /// Other pairs of the MOS's config that was read.
    pub kept: Vec<(String, NvValue)>,
}

impl PoolConfig {
    /// Whether the data of the pool is in an object store.
    pub fn has_objects(&self) -> bool {
        config::has_objects(&self.vdev_tree)
    }

    /// The description of a new pool on this host.
    pub fn new(name: &str, guid: u64, vdev_tree: NvList) -> PoolConfig {
        let mut new = PoolConfig {
            version: version::FEATURES,
            name: name.into(),
            state: config::STATE_ACTIVE,
            guid,
            errata: 0,
            hostid: 0,
            hostname: String::new(),
            comment: None,
            compatibility: None,
            vdev_tree,
            features: Vec::new(),
            kept: Vec::new(),
        };
        new.set_host(crate::host::system_hostid());
        new
    }

    /// What the config out of a MOS says.
    pub fn from_mos(mos: &NvList) -> PoolConfig {
        let text = |name: &str| mos.str(name).map(String::from);
        let features = mos.list("features_for_read").map(|l| l.pairs.as_slice());
        let known = |n: &str| OWN.contains(&n) || n == "vdev_tree" || n == "features_for_read";
        PoolConfig {
            version: config::number(mos, "version"),
            name: text("name").unwrap_or_default(),
            state: config::number(mos, "state"),
            guid: config::number(mos, "pool_guid"),
            errata: config::number(mos, "errata"),
            hostid: config::number(mos, "hostid"),
            hostname: text("hostname").unwrap_or_default(),
            comment: text("comment"),
            compatibility: text("compatibility"),
            vdev_tree: match mos.list("vdev_tree") {
                Some(tree) => tree.clone(),
                // The pool was opened by it.
                None => broken(format_args!("the config of a pool in use has no vdevs")),
            },
            features: features.unwrap_or_default().iter().map(|(n, _)| n.clone()).collect(),
            kept: mos.pairs.iter().filter(|(n, _)| !known(n)).cloned().collect(),
        }
    }

    /// Notes that this host, with this id, has the pool from now on.
    pub fn set_host(&mut self, hostid: u32) {
        self.hostid = u64::from(hostid);
        self.hostname = nodename();
    }

    /// The config for the MOS, in transaction group `txg` (`spa_config_generate`).
    pub fn mos(&self, txg: u64) -> NvList {
        let mut out = self.shared(txg);
        out.pairs.extend(self.kept.iter().cloned());
        out.set("com.delphix:has_per_vdev_zaps", NvValue::Boolean);
        self.add_counts(&mut out);
        let tree = without(&self.vdev_tree, &|name| NOTES.contains(&name));
        out.set("vdev_tree", NvValue::NvList(tree));
        self.add_features(&mut out);
        out
    }

    /// The config for the labels of the devices of top-level vdev `id`, in transaction group `txg`;
    /// without what differs between them. `None`: there is no such vdev, or it has no devices.
    pub fn label(&self, id: u64, txg: u64) -> Option<NvList> {
        let top = config::children(&self.vdev_tree).get(usize::try_from(id).ok()?)?;
        if matches!(top.str("type"), Some("hole" | "missing" | "indirect")) {
            return None;
        }
        let mut out = self.shared(txg);
        self.add_counts(&mut out);
        let tree = without(top, &|name| NOTES.contains(&name) || MOS_ONLY.contains(&name));
        out.set("vdev_tree", NvValue::NvList(tree));
        self.add_features(&mut out);
        Some(out)
    }

    /// The configs for the labels of these top-level vdevs (by id), as
    /// [`cenote_vdev::LabelUpdate::labels`] wants them.
    pub fn labels(&self, tops: &[u64], txg: u64) -> Vec<(u64, NvList)> {
        tops.iter().filter_map(|id| Some((*id, self.label(*id, txg)?))).collect()
    }

    /// The same for all top-level vdevs: for the first commit after an import, and for changes of
    /// what all labels say (state, name, number of vdevs).
    pub fn all_labels(&self, txg: u64) -> Vec<(u64, NvList)> {
        let count = config::children(&self.vdev_tree).len() as u64;
        self.labels(&(0..count).collect::<Vec<_>>(), txg)
    }

    /// Reads from the MOS which features the labels have to name. True if that changed: the config
    /// and all labels are then to be written.
    ///
    /// # Errors
    /// The MOS cannot be read.
    pub fn refresh_features(&mut self, mos: &mut OpenObjectSet) -> Result<bool> {
        let Some(zap) = entry(mos, "features_for_read")? else { return Ok(false) };
        let mut active = Vec::new();
        for f in cenote_format::features::counted().filter(|f| f.needed_for_mos) {
            let uses = ZapMut::open(mos, zap).lookup(&Key::Name(f.guid.as_bytes()))?;
            if uses.is_some_and(|(_, v)| v.first().is_some_and(|n| *n != 0)) {
                active.push(f.guid.to_string());
            }
        }
        let known = |g: &String| cenote_format::features::by_guid(g).is_some();
        active.extend(self.features.iter().filter(|g| !known(g)).cloned());
        let sorted = |list: &[String]| {
            let mut list = list.to_vec();
            list.sort();
            list
        };
        let changed = sorted(&active) != sorted(&self.features);
        self.features = active;
        Ok(changed)
    }

    /// What comes first in every config.
    fn shared(&self, txg: u64) -> NvList {
        let (min_alloc, max_alloc) = self.alloc_units();
        let mut out = NvList::default();
        out.set("version", NvValue::Uint64(self.version));
        out.set("name", NvValue::String(self.name.clone()));
        out.set("state", NvValue::Uint64(self.state));
        out.set("txg", NvValue::Uint64(txg));
        out.set("pool_guid", NvValue::Uint64(self.guid));
        out.set("errata", NvValue::Uint64(self.errata));
        out.set("min_alloc", NvValue::Uint64(min_alloc));
        out.set("max_alloc", NvValue::Uint64(max_alloc));
        if let Some(comment) = &self.comment {
            out.set("comment", NvValue::String(comment.clone()));
        }
        if let Some(compatibility) = &self.compatibility {
            out.set("compatibility", NvValue::String(compatibility.clone()));
        }
        if self.hostid != 0 {
            out.set("hostid", NvValue::Uint64(self.hostid));
        }
        out.set("hostname", NvValue::String(self.hostname.clone()));
        out
    }

    fn add_counts(&self, out: &mut NvList) {
        let tops = config::children(&self.vdev_tree);
        let is_hole = |t: &NvList| t.str("type") == Some("hole");
        let holes = tops.iter().enumerate().filter(|(_, t)| is_hole(t)).map(|(i, _)| i as u64);
        let holes: Vec<u64> = holes.collect();
        if !holes.is_empty() {
            out.set("hole_array", NvValue::Uint64Array(holes));
        }
        out.set("vdev_children", NvValue::Uint64(tops.len() as u64));
    }

    fn add_features(&self, out: &mut NvList) {
        let pairs = self.features.iter().map(|g| (g.clone(), NvValue::Boolean)).collect();
        out.set("features_for_read", NvValue::NvList(NvList { pairs }));
    }

    /// The smallest and the largest unit of allocation of the vdevs that hold data
    /// (`spa_min_alloc`, `spa_max_alloc`).
    fn alloc_units(&self) -> (u64, u64) {
        let tops = config::children(&self.vdev_tree).iter();
        let holds = |t: &&NvList| config::number(t, "ashift") != 0 && !config::flag(t, "is_log");
        let units = tops.filter(holds).map(|t| {
            let shift = u32::try_from(config::number(t, "ashift")).unwrap_or(0);
            t.u64("min_alloc").unwrap_or_else(|| 1u64.checked_shl(shift).unwrap_or(0))
        });
        let (low, high) = units.fold((u64::MAX, 0), |(low, high), n| (low.min(n), high.max(n)));
        (low, high)
    }
}

/// A copy of a vdev and all below it without the pairs that `drop` names.
fn without(vdev: &NvList, drop: &dyn Fn(&str) -> bool) -> NvList {
    let kept = vdev.pairs.iter().filter(|(name, _)| !drop(name));
    let copy = |(name, value): &(String, NvValue)| {
        let value = match value {
            NvValue::NvListArray(list) if name == "children" => {
                NvValue::NvListArray(list.iter().map(|c| without(c, drop)).collect())
            }
            other => other.clone(),
        };
        (name.clone(), value)
    };
    NvList { pairs: kept.map(copy).collect() }
}

/// The name of this host.
pub(crate) fn nodename() -> String {
    kernel_text("hostname")
}

/// A line of `/proc/sys/kernel`; empty if it is absent.
pub(crate) fn kernel_text(name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    text.trim_end().to_string()
}

/// The integer `name` of the object directory.
pub fn entry(mos: &mut OpenObjectSet, name: &str) -> Result<Option<u64>> {
    let value = ZapMut::open(mos, DIRECTORY).lookup(&Key::Name(name.as_bytes()))?;
    Ok(value.and_then(|(_, v)| v.first().copied()).filter(|n| *n != 0))
}

/// Sets the integer `name` of the object directory.
pub fn set_entry(mos: &mut OpenObjectSet, name: &str, value: u64) -> Result<()> {
    ZapMut::open(mos, DIRECTORY).update(&Key::Name(name.as_bytes()), &Value::U64(&[value]))
}

/// Writes the config into the MOS, creating its object if it is missing (`spa_sync_config_object`).
///
/// # Errors
/// The MOS cannot be read or changed.
pub fn sync_config(mos: &mut OpenObjectSet, config: &NvList) -> Result<()> {
    sync_nvlist(mos, "config", config)
}

/// Writes the list of spares (`which` is `"spares"`) or cache devices (`"l2cache"`): `spa_sync_aux_dev`. A list that
/// never had anything in it is not made.
///
/// # Errors
/// The MOS cannot be read or changed.
pub fn sync_aux(mos: &mut OpenObjectSet, which: &str, devices: &[NvList]) -> Result<()> {
    if devices.is_empty() && entry(mos, which)?.is_none() {
        return Ok(());
    }
    let mut list = NvList::default();
    let devices = devices.iter().map(|d| without(d, &|name| NOTES.contains(&name)));
    list.set(which, NvValue::NvListArray(devices.collect()));
    sync_nvlist(mos, which, &list)
}

/// The list of spares (`which` is `"spares"`) or cache devices (`"l2cache"`) in the pending MOS.
///
/// # Errors
/// It cannot be read.
pub fn aux(mos: &mut OpenObjectSet, which: &str) -> Result<Vec<NvList>> {
    let list = nvlist_of(mos, which)?.unwrap_or_default();
    Ok(list.lists(which).unwrap_or_default().to_vec())
}

/// The packed nvlist that the entry `name` of the object directory of the pending MOS names.
///
/// # Errors
/// It cannot be read.
pub fn nvlist_of(mos: &mut OpenObjectSet, name: &str) -> Result<Option<NvList>> {
    let Some(object) = entry(mos, name)? else { return Ok(None) };
    let dnode = mos.dnode(object)?;
    let len = dnode.bonus.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
    if len > MAX_NVLIST {
        let why = format!("an nvlist of {len} bytes");
        return Err(WriteError::Invalid { object, why });
    }
    let mut packed = vec![0; len as usize];
    mos.read(object, 0, &mut packed)?;
    Ok(Some(NvList::decode(&packed)?))
}

/// Packs `list` into the object that the entry `name` of the object directory names.
fn sync_nvlist(mos: &mut OpenObjectSet, name: &str, list: &NvList) -> Result<()> {
    let object = match entry(mos, name)? {
        Some(object) => object,
        None => {
            let mut new = NewObject::new(DmuType::PACKED_NVLIST, NVLIST_BLOCK);
            new.bonus_kind = DmuType::PACKED_NVLIST_SIZE;
            new.bonus = vec![0; 8];
            let object = mos.allocate(&new)?;
            set_entry(mos, name, object)?;
            object
        }
    };
    let dnode = mos.dnode(object)?;
    if dnode.kind != DmuType::PACKED_NVLIST || dnode.bonus.len() < 8 {
        let why = format!("a {} where a packed nvlist was expected", dnode.kind.name());
        return Err(WriteError::Invalid { object, why });
    }
    let (block, mut bonus) = (dnode.block_size, dnode.bonus.clone());
    let mut packed = list.encode();
    let len = packed.len() as u64;
    packed.resize(len.next_multiple_of(block.max(1)) as usize, 0);
    mos.write(object, 0, &packed)?;
    mos.truncate(object, packed.len() as u64)?;
    if let Some(at) = bonus.get_mut(..8) {
        at.copy_from_slice(&len.to_le_bytes());
    }
    mos.set_bonus(object, DmuType::PACKED_NVLIST_SIZE, &bonus)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use cenote_dmu::write::zap::ZapFormat;
    use cenote_format::dmu::ObjsetType;
    use cenote_store::Store;
    use cenote_vdev::VdevTree;

    /// A new MOS that has an object directory and no devices.
    pub(crate) fn empty_mos() -> OpenObjectSet {
        let mut root = NvList::default();
        root.set("type", NvValue::String("root".into()));
        root.set("guid", NvValue::Uint64(1));
        let tree = VdevTree::build(&root, &mut |_, _| None).unwrap();
        let mut mos =
            OpenObjectSet::create(Store::new(tree, 1 << 20), 0, ObjsetType::Meta).unwrap();
        mos.claim(DIRECTORY, &NewObject::new(DmuType::OBJECT_DIRECTORY, 512)).unwrap();
        let format = ZapFormat { salt: 1, ..ZapFormat::default() };
        ZapMut::format(&mut mos, DIRECTORY, format).unwrap();
        mos
    }

    /// The packed nvlist that an entry of the object directory names.
    fn packed(mos: &mut OpenObjectSet, name: &str) -> NvList {
        let object = entry(mos, name).unwrap().unwrap();
        let bonus = mos.dnode(object).unwrap().bonus.clone();
        let mut bytes = vec![0; u64::from_le_bytes(bonus.try_into().unwrap()) as usize];
        mos.read(object, 0, &mut bytes).unwrap();
        NvList::decode(&bytes).unwrap()
    }

    #[test]
    fn the_mos_holds_what_was_written_last() {
        let mut mos = empty_mos();
        let mut long = pool();
        long.comment = Some("x".repeat(100_000));
        for config in [pool().mos(4), long.mos(5), pool().mos(6)] {
            sync_config(&mut mos, &config).unwrap();
            assert_eq!(packed(&mut mos, "config"), config);
        }
        sync_aux(&mut mos, "spares", &[]).unwrap();
        assert_eq!(entry(&mut mos, "spares").unwrap(), None);
        let spare = NvList { pairs: vec![n("guid", 7)] };
        sync_aux(&mut mos, "spares", std::slice::from_ref(&spare)).unwrap();
        assert_eq!(packed(&mut mos, "spares").lists("spares"), Some(&[spare][..]));
        sync_aux(&mut mos, "spares", &[]).unwrap();
        assert_eq!(packed(&mut mos, "spares").lists("spares"), Some(&[][..]));
    }

    fn n(name: &str, v: u64) -> (String, NvValue) {
        (name.into(), NvValue::Uint64(v))
    }

    fn s(name: &str, v: &str) -> (String, NvValue) {
        (name.into(), NvValue::String(v.into()))
    }

    fn pool() -> PoolConfig {
        let leaf = NvList {
            pairs: vec![s("type", "file"), n("id", 0), n("com.delphix:vdev_zap_leaf", 70)],
        };
        let top = NvList {
            pairs: vec![
                s("type", "mirror"),
                n("id", 0),
                n("ashift", 12),
                s("alloc_bias", "special"),
                n("com.delphix:vdev_zap_top", 71),
                ("children".into(), NvValue::NvListArray(vec![leaf])),
            ],
        };
        let hole = NvList { pairs: vec![s("type", "hole"), n("id", 1)] };
        let root = NvList {
            pairs: vec![
                s("type", "root"),
                ("children".into(), NvValue::NvListArray(vec![top, hole])),
            ],
        };
        let mut pool = PoolConfig::new("tank", 7, root);
        pool.features = vec!["com.delphix:hole_birth".into()];
        pool.comment = Some("hello".into());
        pool.hostid = 5;
        pool
    }

    #[test]
    fn the_mos_has_all_and_labels_their_part() {
        let mos = pool().mos(9);
        assert_eq!(mos.u64("txg"), Some(9));
        assert_eq!(mos.u64s("hole_array"), Some(&[1][..]));
        assert_eq!((mos.u64("min_alloc"), mos.u64("max_alloc")), (Some(4096), Some(4096)));
        assert!(mos.contains("com.delphix:has_per_vdev_zaps"));
        let top = &config::children(mos.list("vdev_tree").unwrap())[0];
        assert!(top.contains("com.delphix:vdev_zap_top") && !top.contains("alloc_bias"));

        let label = pool().label(0, 9).unwrap();
        let tree = label.list("vdev_tree").unwrap();
        assert_eq!(tree.str("type"), Some("mirror"));
        assert!(!tree.contains("com.delphix:vdev_zap_top"));
        assert!(!config::children(tree)[0].contains("com.delphix:vdev_zap_leaf"));
        assert!(!label.contains("com.delphix:has_per_vdev_zaps"));
        assert_eq!(label.u64("vdev_children"), Some(2));
        assert!(label.list("features_for_read").unwrap().contains("com.delphix:hole_birth"));
        assert_eq!(pool().all_labels(9).len(), 1);
    }

    #[test]
    fn what_was_read_is_written_again() {
        let mut mos = pool().mos(9);
        mos.set("split", NvValue::NvList(NvList::default()));
        let read = PoolConfig::from_mos(&mos);
        let mut again = read.mos(9);
        let (mut a, mut b) = (mos.pairs.clone(), std::mem::take(&mut again.pairs));
        a.sort_by(|x, y| x.0.cmp(&y.0));
        b.sort_by(|x, y| x.0.cmp(&y.0));
        assert_eq!(a, b);
    }
}
