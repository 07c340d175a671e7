//! File systems and volumes.
//!
//! Every dataset but `$ORIGIN` itself starts as a clone: of `$ORIGIN@$ORIGIN`, which is empty, or of
//! the snapshot that it is a clone of for users, too. Its deadlist has the keys of its origin's
//! snapshots.
//!
//! What a sync of its contents does ([`synced`]): a block that is born is charged to the head. A
//! block that is killed goes on the deadlist if the previous snapshot has it, and becomes part of
//! what snapshots use (unless a clone's origin has it, which is charged elsewhere); if the one
//! before that has it not, it is unique to the previous snapshot. Other killed blocks are free.
//!
//! What a sync of the contents needs of the MOS and cannot read is found when a dataset is opened
//! ([`check_synced`]). Should a deadlist or the bookmarks become unreadable later, the pool goes on: blocks
//! that cannot be put on the deadlist are leaked when the snapshots that have them are gone.
//!
//! A clone keeps a livelist of what was born and killed in it: see [`livelist`].

use super::mos::{SMALL_BLOCK, corrupt};
use super::props::{self, NewValue, Target};
use super::space::{self, Delta, Part, charged};
use super::{
    DslWriteError, Result, Sizes, Tx, bookmarks, bpobj, clones, crypt, deadlist, dir, features,
    limits, livelist, names, own, permissions, references, special,
};
use cenote_dmu::write::{NewObject, ObjectChange, Synced, Uses};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::{DmuType, ObjsetPhys};
use cenote_format::dsl::{
    DS_FLAG_CI_DATASET, DS_FLAG_INCONSISTENT, DS_FLAG_UNIQUE_ACCURATE, DslDatasetPhys,
};
use cenote_format::encode::dsl::DATASET_SIZE;
use cenote_format::invariant;
use cenote_format::zap::norm::TO_UPPER;

/// Feature of datasets with dnodes of more than one slot.
const LONGNAME: &str = "org.zfsonlinux:longname";
const LARGE_MICROZAP: &str = "com.klarasystems:large_microzap";
const LARGE_DNODE: &str = "org.zfsonlinux:large_dnode";
/// The transaction group of `$ORIGIN@$ORIGIN`, which has no blocks.
const ORIGIN_TXG: u64 = 1;
/// Largest block that any pool may have.
const OLD_MAX_BLOCK: u64 = 128 << 10;

/// A new dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Created {
    /// The directory.
    pub dir_obj: u64,
    /// The head. Its object set is still to be written; that of a clone is its origin's.
    pub ds_obj: u64,
}

/// Creates the directory `name` (one component) in `parent_dir`, with a head and its properties.
/// With the snapshot object `origin` it is a clone, whose root block may name a log that is not its own.
///
/// Errors: `Exists`, `TooLong`, `Invalid` name or property, `Quota` if `filesystem_limit` would be exceeded,
/// `NoSpace` for a reservation or refreservation. After an error about a property the dataset must not stay: the
/// transaction group must not be completed, unless the caller destroys it.
pub fn create(
    tx: &mut Tx<'_>,
    parent_dir: u64,
    name: &str,
    props: &[(&str, NewValue)],
    origin: Option<u64>,
) -> Result<Created> {
    names::check(name)?;
    let parent = tx.dir(parent_dir)?;
    if parent.head_dataset == 0 {
        return Err(DslWriteError::Invalid("parent is not a filesystem".into()));
    }
    if tx.zap_number(parent.children, name)?.is_some() {
        return Err(DslWriteError::Exists);
    }
    limits::check(tx, parent_dir, limits::FILESYSTEMS, 1, None)?;
    let (len, depth) = names::length(tx, parent_dir)?;
    names::fits(len, name.len())?;
    if depth >= names::max_nesting() {
        return Err(DslWriteError::TooLong);
    }
    for (name, value) in props {
        props::check(name, value)?;
    }
    let start = match origin {
        Some(origin) => Some(origin),
        None => dir::origin_snap(tx)?,
    };
    let dir_obj = dir::create_dir(tx, Some((parent_dir, name)))?;
    let ds_obj = create_head(tx, dir_obj, start)?;
    if let Some(origin) = origin {
        let origin_dir = tx.dataset(origin)?.dir;
        crypt::share(tx, dir_obj, origin_dir)?;
        livelist::start(tx, dir_obj)?;
    }
    limits::start(tx, dir_obj)?;
    permissions::start(tx, dir_obj)?;
    for (name, value) in props {
        props::apply(tx, Target::Dir(dir_obj), name, value)?;
    }
    Ok(Created { dir_obj, ds_obj })
}

/// A dataset's object.
pub(super) fn allocate(tx: &mut Tx<'_>) -> Result<u64> {
    let object = tx.mos.allocate(&NewObject {
        bonus_kind: DmuType::DSL_DATASET,
        bonus: vec![0; DATASET_SIZE],
        ..NewObject::new(DmuType::DSL_DATASET, SMALL_BLOCK)
    })?;
    // Its number may have been that of an encrypted dataset.
    let store = tx.mos.synced().store();
    store.forget_key_of(object);
    store.keys().set_raw(object, false);
    Ok(object)
}

/// The head of a new directory (`dsl_dataset_create_sync_dd`).
pub(super) fn create_head(tx: &mut Tx<'_>, dir_obj: u64, origin: Option<u64>) -> Result<u64> {
    let object = allocate(tx)?;
    let snap_names = NewObject::new(DmuType::DSL_DS_SNAP_MAP, SMALL_BLOCK);
    let mut ds = DslDatasetPhys {
        dir: dir_obj,
        prev_snap: 0,
        prev_snap_txg: 0,
        next_snap: 0,
        snap_names: tx.new_zap(&snap_names, TO_UPPER)?,
        num_children: 0,
        creation_time: tx.now,
        creation_txg: pool_txg(tx),
        deadlist: 0,
        referenced: 0,
        compressed: 0,
        uncompressed: 0,
        unique: 0,
        fsid_guid: tx.random_fsid()?,
        guid: tx.random()?,
        flags: DS_FLAG_UNIQUE_ACCURATE,
        bp: BlockPointer::HOLE,
        next_clones: 0,
        props: 0,
        userrefs: 0,
    };
    match origin {
        None => ds.deadlist = deadlist::create(tx)?,
        Some(origin) => start_from(tx, (object, &mut ds), origin)?,
    }
    tx.set_dataset(object, &ds)?;
    tx.edit_dir(dir_obj, |dir| {
        dir.head_dataset = object;
        dir.origin = origin.unwrap_or(0);
    })?;
    Ok(object)
}

/// The creation of what comes with the pool itself is in txg 1.
fn pool_txg(tx: &Tx<'_>) -> u64 {
    const INITIAL: u64 = 4;
    if tx.txg == INITIAL { 1 } else { tx.txg }
}

/// Makes the new head `ds` a clone of the snapshot `origin`.
fn start_from(
    tx: &mut Tx<'_>,
    (object, ds): (u64, &mut DslDatasetPhys),
    origin: u64,
) -> Result<()> {
    let mut from = tx.snapshot(origin)?;
    ds.prev_snap = origin;
    ds.prev_snap_txg = from.creation_txg;
    ds.referenced = from.referenced;
    ds.compressed = from.compressed;
    ds.uncompressed = from.uncompressed;
    ds.bp = from.bp;
    ds.flags |= from.flags & (DS_FLAG_INCONSISTENT | DS_FLAG_CI_DATASET);
    features::inherit(tx, origin, object)?;
    let from_dir = tx.dir(from.dir)?;
    let head = tx.dataset(from_dir.head_dataset)?;
    ds.deadlist = deadlist::clone(tx, head.deadlist, ds.prev_snap_txg, origin)?;
    let more = from.num_children.checked_add(1);
    from.num_children = more.ok_or_else(|| corrupt(origin, "more clones than can be"))?;
    // There are lists of clones since there is `$ORIGIN`; an upgrade to there makes all of them.
    if super::dir::empty_snapshot(tx)?.is_some() {
        if from.next_clones == 0 {
            from.next_clones = tx.plain_zap(DmuType::NEXT_CLONES)?;
        }
        tx.zap_set(from.next_clones, &format!("{object:x}"), object)?;
    }
    tx.set_dataset(origin, &from)?;
    // Directories list clones since the version that deadlists have keys in.
    if !bpobj::have_sub_lists(tx)? {
        return Ok(());
    }
    let clones = clones::clones_of(tx, from.dir)?;
    tx.zap_set(clones, &format!("{object:x}"), object)
}

/// Features that blocks call for.
fn features_of(born: &[BlockPointer]) -> Vec<&'static str> {
    let mut guids = Vec::new();
    for bp in born.iter().filter(|bp| deadlist::counts(bp)) {
        if bp.lsize() > OLD_MAX_BLOCK {
            guids.push("org.open-zfs:large_blocks");
        }
        let checksum = if bp.is_embedded() { 0 } else { bp.checksum_type() };
        guids.extend(match checksum {
            11 => Some("org.illumos:sha512"),
            12 => Some("org.illumos:skein"),
            13 => Some("org.illumos:edonr"),
            14 => Some("org.openzfs:blake3"),
            _ => None,
        });
        guids.extend(bp.is_rewritten().then_some("com.truenas:physical_rewrite"));
        guids.extend((bp.compression() == 16).then_some("org.freebsd:zstd_compress"));
        guids.sort_unstable();
        guids.dedup();
    }
    guids
}

/// What happens to the blocks that a sync killed.
struct Killed {
    /// Sums over those that the previous snapshot does not have, which are free.
    free: Sizes,
    /// Those that it has.
    dead: Vec<BlockPointer>,
    dead_sizes: Sizes,
    /// Bytes of those that only the previous snapshot still has.
    unique_to_previous: u64,
    /// Bytes of those that become part of what snapshots use.
    to_snapshots: u64,
}

/// Accounts for a sync of a head's object set (`dsl_dataset_block_born`, `dsl_dataset_block_kill`): its
/// new root block, the blocks born, the blocks killed. To be called once for every sync (every pass) of it.
///
/// Errors: `Invalid` for a snapshot; `Unsupported` for deadlists of the oldest format.
pub fn synced(tx: &mut Tx<'_>, ds_obj: u64, synced: &Synced) -> Result<()> {
    let mut ds = tx.head(ds_obj)?;
    check_births(tx.txg, ds_obj, synced);
    own::enter(tx, (ds_obj, &ds), synced);
    references::add(tx, &synced.cloned)?;
    for guid in features_of(&synced.born) {
        features::activate_dataset_feature(tx, ds_obj, guid)?;
    }
    let large = |change: &ObjectChange| change.after.as_ref().is_some_and(|d| d.slots() > 1);
    if synced.changed.iter().any(large) && features::is_enabled(tx, LARGE_DNODE)? {
        features::activate_dataset_feature(tx, ds_obj, LARGE_DNODE)?;
    }
    for (used, guid) in
        [(synced.uses.long_names, LONGNAME), (synced.uses.large_microzap, LARGE_MICROZAP)]
    {
        if used {
            features::activate_dataset_feature(tx, ds_obj, guid)?;
        }
    }
    let reserved = space::refreservation(tx, &ds)?;
    let mut born = Sizes::default();
    synced.born.iter().filter(|bp| deadlist::counts(bp)).for_each(|bp| born.add((tx.space)(bp)));
    let killed = sort_killed(tx, (ds_obj, &ds), &synced.killed)?;

    // Without snapshots, unreferenced blocks are freed at once.
    let leaked = if ds.prev_snap_txg <= ORIGIN_TXG { synced.leaked.min(ds.referenced) } else { 0 };
    let unique = born.used.wrapping_sub(killed.free.used).wrapping_sub(leaked) as i64;
    let charge = charged(ds.unique, unique, reserved);
    ds.unique = ds.unique.wrapping_add_signed(unique);
    let gone = [killed.free, killed.dead_sizes];
    let sum = |of: fn(&Sizes) -> u64| gone.iter().map(of).fold(0, u64::wrapping_add);
    ds.referenced =
        ds.referenced.wrapping_add(born.used).wrapping_sub(sum(|s| s.used)).wrapping_sub(leaked);
    ds.compressed = ds.compressed.wrapping_add(born.compressed).wrapping_sub(sum(|s| s.compressed));
    ds.uncompressed =
        ds.uncompressed.wrapping_add(born.uncompressed).wrapping_sub(sum(|s| s.uncompressed));
    ds.bp = synced.root;
    tx.set_dataset(ds_obj, &ds)?;

    let delta = Delta {
        used: charge,
        compressed: born.compressed.wrapping_sub(killed.free.compressed) as i64,
        uncompressed: born.uncompressed.wrapping_sub(killed.free.uncompressed) as i64,
    };
    space::charge_from(tx, ds.dir, delta, unique, (Part::RefReservation, Part::Head))?;
    if leaked > 0 {
        let sizes = Sizes { used: leaked, ..Sizes::default() };
        special::charge_leak(tx, sizes)?;
    }
    let what = format!("blocks that snapshots of dataset {ds_obj:#x} have are not put down");
    let listed = tx.unless_unreadable(&what, |tx| {
        deadlist::insert(tx, ds.deadlist, &killed.dead)?;
        space::shift(tx, ds.dir, killed.to_snapshots, Part::Head, Part::Snapshots)
    })?;
    if listed.is_none() {
        let lost = Sizes { used: killed.to_snapshots, ..Sizes::default() };
        space::charge(tx, ds.dir, Part::Head, Delta::less(lost))?;
        special::charge_leak(tx, lost)?;
    }
    if killed.unique_to_previous > 0 {
        tx.edit_dataset(ds.prev_snap, |prev| {
            prev.unique = prev.unique.wrapping_add(killed.unique_to_previous);
        })?;
    }
    livelist::synced(tx, (ds_obj, &ds), synced)?;
    let what = format!("bookmarks of dataset {ds_obj:#x} are out of date");
    tx.unless_unreadable(&what, |tx| bookmarks::blocks_killed(tx, (ds_obj, &ds), &synced.killed))?;
    Ok(())
}

/// What a sync of a head wrote was born in its group. `dmu::write` makes it so; planted faults between it and this one show that it
/// is looked at.
fn check_births(txg: u64, ds_obj: u64, synced: &Synced) {
    let is_late = |bp: &&BlockPointer| deadlist::counts(bp) && bp.birth() != txg;
    let late = synced.born.iter().find(is_late);
    invariant!(late.is_none(), "dataset {ds_obj}: not written in group {txg}: {late:?}");
    let (root, wrote) = (synced.root.logical_birth(), synced.born.len());
    invariant!(
        wrote == 0 || root == txg,
        "dataset {ds_obj}: {wrote} blocks are born in group {txg}, and its root block in {root}"
    );
}

/// Whether all that [`synced`] needs of the MOS can be read, for a head that is going to be changed; `phys`
/// is what is in its root block. What this does to `tx` is not to be kept.
///
/// # Errors
/// `Unreadable` names what cannot be read.
pub fn check_synced(tx: &mut Tx<'_>, ds_obj: u64, phys: &ObjsetPhys) -> Result<()> {
    let ds = tx.head(ds_obj)?;
    deadlist::check(tx, ds.deadlist)?;
    bookmarks::blocks_killed(tx, (ds_obj, &ds), &[])?;
    let (born, killed, cloned, changed) = Default::default();
    let (root, phys) = (ds.bp, phys.clone());
    let (leaked, uses) = (0, Uses::default());
    let nothing = Synced { root, phys, born, killed, cloned, changed, leaked, uses };
    tx.whole(|tx| synced(tx, ds_obj, &nothing))
}

/// Sorts killed blocks, and frees those that are free (`dsl_dataset_block_kill`, `dsl_dataset_block_freeable`).
fn sort_killed(
    tx: &mut Tx<'_>,
    (ds_obj, ds): (u64, &DslDatasetPhys),
    blocks: &[BlockPointer],
) -> Result<Killed> {
    let dir = tx.dir(ds.dir)?;
    let origin_txg = dir::origin_txg(tx, &dir)?;
    // Birth from which on a block is unique to the previous snapshot, if that is of this dataset.
    let unique_after = match ds.prev_snap {
        0 => None,
        prev => {
            let prev = tx.dataset(prev)?;
            (prev.next_snap == ds_obj).then_some(prev.prev_snap_txg)
        }
    };
    let mut out = Killed {
        free: Sizes::default(),
        dead: Vec::new(),
        dead_sizes: Sizes::default(),
        unique_to_previous: 0,
        to_snapshots: 0,
    };
    for bp in blocks.iter().filter(|bp| deadlist::counts(bp)) {
        let (birth, sizes) = (bp.birth(), (tx.space)(bp));
        if birth > ds.prev_snap_txg {
            out.free.add(sizes);
            tx.free(bp);
            continue;
        }
        out.dead.push(*bp);
        out.dead_sizes.add(sizes);
        if unique_after.is_some_and(|txg| birth > txg) {
            out.unique_to_previous = out.unique_to_previous.wrapping_add(sizes.used);
        }
        if birth > origin_txg {
            out.to_snapshots = out.to_snapshots.wrapping_add(sizes.used);
        }
    }
    Ok(out)
}

impl Tx<'_> {
    /// Has a block freed, if there is one on disk.
    pub(super) fn free(&mut self, bp: &BlockPointer) {
        if !bp.is_hole() && !bp.is_embedded() {
            self.frees.push(*bp);
        }
    }
}
