//! Whether what is counted adds up: what datasets reference, have for themselves and use, and what
//! is used by users and groups, counted anew from the blocks and objects that are there.

use super::{Verdict, demand};
use cenote_dmu::objset::{GROUP_USED, META_DNODE, PROJECT_USED, USER_USED};
use cenote_dmu::zap::Zap;
use cenote_dmu::{Object, ObjectSet};
use cenote_dsl::Dataset;
use cenote_engine::Engine;
use cenote_format::ByteOrder;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::{DNODE_SLOT, DmuType};
use cenote_format::sa::file_info;
use cenote_pool::Pool;
use cenote_pool::metaslab::{Metaslab, PoolSpace, VdevSpace};
use cenote_store::alloc::Allocator;
use cenote_store::rangetree::RangeTree;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Objects of a file system that are no nodes: those that every one has.
const OWN_OBJECTS: u64 = 8;

fn failed(e: cenote_dmu::Error) -> String {
    e.to_string()
}

/// Pointers to blocks: vdev and offset, whose it is (object, level, number) and its birth; with what the block takes
/// and its birth. Each pointer to a cloned block counts.
type Blocks = HashMap<((u32, u64), (u64, i64, u64), u64), (u64, u64)>;

/// The blocks of an object set.
fn blocks(pool: &Pool, objset: &Arc<ObjectSet>) -> Result<Blocks, String> {
    let tree = pool.store().vdevs();
    let mut all = Blocks::new();
    let mut add = |of_block: (u64, i64, u64), bp: &BlockPointer| {
        let of = |d: &cenote_format::blkptr::Dva| {
            tree.top(u64::from(d.vdev)).map_or(0, |t| t.deflate(d.asize))
        };
        let size = bp.dvas().map(|d| of(&d)).sum();
        if let Some(first) = bp.dvas().next() {
            let birth = bp.birth();
            all.insert(((first.vdev, first.offset), of_block, birth), (size, birth));
        }
    };
    add((0, -1, 0), objset.root_bp());
    let mut walk = |object: Object| {
        let number = object.number();
        object.walk(&mut |level, blkid, bp| {
            add((number, level, blkid), bp);
            Ok(())
        })
    };
    for special in [META_DNODE, USER_USED, GROUP_USED, PROJECT_USED] {
        if let Ok(object) = objset.special(special) {
            walk(object).map_err(failed)?;
        }
    }
    let mut from = 1;
    while let Some(number) = objset.next_object(from).map_err(failed)? {
        walk(objset.object(number).map_err(failed)?).map_err(failed)?;
        from = number + 1;
    }
    Ok(all)
}

/// Whether a snapshot has for itself what it says: `next` is what the one after it has.
fn check_unique(snapshot: &Dataset, own: &Blocks, next: &Blocks) -> Verdict {
    let since = snapshot.ds.prev_snap_txg;
    let only = own.iter().filter(|(at, (_, birth))| *birth > since && !next.contains_key(at));
    let unique: u64 = only.map(|(_, (size, _))| size).sum();
    let is = snapshot.ds.unique;
    demand!(is == unique, "unique of {} is {is}, not {unique}", snapshot.name);
    Ok(())
}

/// The transaction group of a clone's origin, which has what was born in it or before; 0 for what is no clone.
fn origin_txg(pool: &Pool, head: &Dataset) -> Result<u64, String> {
    let origin = pool.dsl().by_object(head.dir.origin).map_err(failed)?;
    Ok(origin.map_or(0, |origin| origin.ds.creation_txg))
}

/// Whether the figures of a dataset and its snapshots are right. There are no reservations.
///
/// # Errors
/// What is not as it should be.
pub fn check_dataset(pool: &Pool, head: &Dataset, snapshots: &[Dataset]) -> Verdict {
    let dsl = pool.dsl();
    let mut all = Blocks::new();
    let mut last: Option<(&Dataset, Blocks)> = None;
    for d in snapshots.iter().chain([head]) {
        let own = blocks(pool, &dsl.open_objset(d).map_err(failed)?)?;
        if let Some((snapshot, theirs)) = &last {
            check_unique(snapshot, theirs, &own)?;
        }
        let sum: u64 = own.values().map(|(size, _)| size).sum();
        demand!(sum == d.ds.referenced, "{} references {}, not {sum}", d.name, d.ds.referenced);
        if d.is_head() {
            let new = own.values().filter(|(_, birth)| *birth > d.ds.prev_snap_txg);
            let unique: u64 = new.map(|(size, _)| size).sum();
            demand!(unique == d.ds.unique, "unique is {}, not {unique}", d.ds.unique);
        }
        all.extend(&own);
        last = Some((d, own));
    }
    let origin = origin_txg(pool, head)?;
    let own = |blocks: &Blocks| -> u64 {
        blocks.values().filter(|(_, birth)| *birth > origin).map(|(size, _)| size).sum()
    };
    let (held, of_head) = (own(&all), last.map_or(0, |(_, blocks)| own(&blocks)));
    let [by_head, by_snapshots, by_children, ..] = head.dir.used_breakdown;
    demand!(by_head == of_head, "usedbydataset {by_head}, not {of_head}");
    demand!(by_head + by_snapshots == held, "usedbysnapshots {by_snapshots} of {held}");
    let sum: u64 = head.dir.used_breakdown.iter().sum();
    demand!(sum == head.dir.used, "used {}, not {sum}", head.dir.used);
    let children = dsl.children(head).map_err(failed)?;
    let below: u64 = children.iter().map(|c| c.dir.used).sum();
    // The root has hidden children.
    let is_root = !head.name.contains('/');
    let right = if is_root { by_children >= below } else { by_children == below };
    demand!(right, "usedbychildren {by_children}, not {below}");
    Ok(())
}

fn counted(objset: &Arc<ObjectSet>, which: u64) -> Result<BTreeMap<String, u64>, String> {
    let object = match objset.special(which) {
        Ok(object) if object.dnode().kind != DmuType::NONE => object,
        _ => return Ok(BTreeMap::new()),
    };
    let entries = Zap::open(&object).and_then(|zap| zap.entries()).map_err(failed)?;
    let number = |e: cenote_dmu::zap::ZapEntry| {
        let name = String::from_utf8_lossy(&e.name).into_owned();
        Some((name, e.u64().filter(|n| *n != 0)?))
    };
    Ok(entries.into_iter().filter_map(number).collect())
}

/// Whether a file system has no other nodes than `nodes`, and counts what their owners use.
///
/// # Errors
/// What is not as it should be.
pub fn check_owners(objset: &Arc<ObjectSet>, nodes: &BTreeSet<u64>) -> Verdict {
    let mut used: BTreeMap<u64, BTreeMap<String, u64>> = BTreeMap::new();
    let mut left = nodes.clone();
    let mut from = 1;
    while let Some(number) = objset.next_object(from).map_err(failed)? {
        from = number + 1;
        let known = left.remove(&number);
        let object = objset.object(number).map_err(failed)?;
        let dnode = object.dnode();
        let info = file_info(dnode.bonus_kind, &dnode.bonus, ByteOrder::Little);
        demand!(known || number <= OWN_OBJECTS, "object {number} is left over: {dnode:?}");
        let Some(info) = info else { continue };
        demand!(known, "object {number} is a node that nobody made");
        let projid = (PROJECT_USED, info.projid);
        for (which, id) in [(USER_USED, info.uid), (GROUP_USED, info.gid), projid] {
            let sums = used.entry(which).or_default();
            *sums.entry(format!("{id:x}")).or_default() += dnode.used + DNODE_SLOT as u64;
            *sums.entry(format!("obj-{id:x}")).or_default() += 1;
        }
    }
    demand!(left.is_empty(), "there are no objects {left:?}");
    for which in [USER_USED, GROUP_USED, PROJECT_USED] {
        let (is, want) = (counted(objset, which)?, used.remove(&which).unwrap_or_default());
        demand!(is == want, "used (object {which:x}): {is:?}, not {want:?}");
    }
    Ok(())
}

/// Whether free space adds up, for each metaslab: what its space map on disk says, and the unflushed
/// changes of the logs, is what the allocator has as free, what it holds back because it was freed
/// lately, and what it has not yet given back. Returns the number of metaslabs that were in memory and
/// so were compared.
///
/// # Errors
/// What does not add up.
pub fn check_metaslabs(engine: &Engine) -> Result<usize, String> {
    engine.at_rest(compare_metaslabs).map_err(|e| e.to_string())?
}

fn compare_metaslabs(pool: &Pool, allocator: &Allocator) -> Result<usize, String> {
    let txg = pool.uberblock().txg;
    let space = PoolSpace::load(pool.mos(), pool.config()).map_err(failed)?;
    let logged: BTreeSet<u64> = space.logs.iter().map(|log| log.txg).collect();
    let mut compared = 0;
    for group in allocator.groups() {
        let id = group.vdev();
        let vdev = space.vdev_space(id).ok_or_else(|| format!("no vdev {id} on disk"))?;
        let counts = (group.metaslabs().len(), vdev.metaslabs.len());
        demand!(counts.0 == counts.1, "vdev {id}: {counts:?} metaslabs in memory and on disk");
        for (known, ms) in group.metaslabs().iter().zip(&vdev.metaslabs) {
            let place = format!("txg {txg}, vdev {id}, metaslab {}", ms.id);
            let free = PoolSpace::load_free(pool.mos(), vdev, ms).map_err(failed)?;
            let (alloc, rest) = (vdev.alloc_of(ms), ms.size - free.space());
            demand!(alloc == rest, "{place}: {alloc} bytes counted, {rest} allocated");
            promised(vdev, ms, &free).map_err(|why| format!("txg {txg}, {why}"))?;
            let flushed = PoolSpace::load_flushed(pool.mos(), vdev, ms).map_err(failed)?;
            let (alloc, rest) = (ms.flushed_alloc(), (ms.size - flushed.space()) as i64);
            demand!(alloc == rest, "{place}: {alloc} bytes in the header, {rest} in the map");
            let since = ms.unflushed_txg;
            demand!(
                since == 0 || logged.contains(&since),
                "{place}: unflushed since {since}, of which there is no log ({logged:?})"
            );
            let Some(in_memory) = known.free_after(txg) else { continue };
            compared += 1;
            demand!(
                in_memory == free,
                "{place}: {} bytes free in memory, {} on disk",
                in_memory.space(),
                free.space()
            );
        }
    }
    Ok(compared)
}

/// What the header of a metaslab's space map counts as free is there.
fn promised(vdev: &VdevSpace, ms: &Metaslab, free: &RangeTree) -> Verdict {
    let said = || ms.header.as_ref().and_then(|h| h.histogram);
    match vdev.overpromised(ms, free) {
        None => Ok(()),
        Some(log) => Err(format!(
            "vdev {}, metaslab {}: too many free segments of {} bytes are promised: {:?}",
            vdev.id,
            ms.id,
            1u64 << log,
            said()
        )),
    }
}

/// Whether no header of a space map promises more than is free, once the logs are counted in.
///
/// # Errors
/// The metaslab whose header does.
pub fn check_promises(pool: &Pool) -> Verdict {
    let txg = pool.uberblock().txg;
    let space = PoolSpace::load(pool.mos(), pool.config()).map_err(failed)?;
    for vdev in &space.vdevs {
        for ms in &vdev.metaslabs {
            let free = PoolSpace::load_free(pool.mos(), vdev, ms).map_err(failed)?;
            promised(vdev, ms, &free).map_err(|why| format!("txg {txg}, {why}"))?;
        }
    }
    Ok(())
}

/// Number of log space maps of a pool.
pub fn logs(engine: &Engine) -> usize {
    let pool = engine.pool();
    PoolSpace::load(pool.mos(), pool.config()).map_or(0, |space| space.logs.len())
}
