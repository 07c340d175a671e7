//! Figures that are known from two sides are compared where one transaction group ends and the next
//! begins, in builds with debug assertions: those of tests and of torture. What does not agree ends the
//! sync, before anybody is told that the group is on disk.
//!
//! | figure | other side | where |
//! |---|---|---|
//! | what a dataset refers to | blocks born less blocks killed | [`referenced`] |
//! | what is used by a directory | its parts; its head; the deadlists of its snapshots | [`datasets`] |
//! | allocated bytes of a metaslab | its space map and the logs | [`crate::space_write`] |
//! | dirty bytes | nothing, when all groups are on disk | [`crate::txg`] |

use cenote_dmu::write::Synced;
use cenote_dsl::write::Tx;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dsl::{DD_FLAG_USED_BREAKDOWN, DslDatasetPhys};
use cenote_format::{ByteOrder, Bytes};
use cenote_pool::Pool;
use cenote_vdev::VdevTree;

/// Most snapshots of a dataset whose deadlists are looked at.
const MOST_SNAPSHOTS: usize = 32;

/// What dataset `ds_obj` refers to in the pending MOS, in bytes.
pub(super) fn referenced(tx: &mut Tx<'_>, ds_obj: u64) -> Option<u64> {
    let bonus = &tx.mos.dnode(ds_obj).ok()?.bonus;
    let ds = DslDatasetPhys::decode(&Bytes::new(bonus, ByteOrder::Little, "dataset")).ok()?;
    Some(ds.referenced)
}

/// Blocks were born and killed in a dataset that referred to `before` bytes: it refers to the
/// difference more.
pub(super) fn grew(tx: &mut Tx<'_>, ds_obj: u64, before: u64, synced: &Synced, tree: &VdevTree) {
    let sum = |blocks: &[BlockPointer]| {
        let real = blocks.iter().filter(|bp| !bp.is_hole());
        real.fold(0u64, |sum, bp| sum.wrapping_add(super::space::deflated(tree, bp)))
    };
    let after = before.wrapping_add(sum(&synced.born)).wrapping_sub(sum(&synced.killed));
    let is = referenced(tx, ds_obj);
    if synced.leaked > 0 && is.is_some_and(|is| is < after) {
        // It does not refer any more to what is leaked.
        return;
    }
    assert_eq!(is, Some(after), "dataset {ds_obj} referred to {before} before");
}

/// What is used by the directories of datasets that a group changed. `view` is of that group.
pub(super) fn datasets(view: &Pool, changed: impl Iterator<Item = u64>) {
    let dsl = view.dsl();
    for ds_obj in changed {
        // Datasets go, and what cannot be read is no matter of sums.
        let Ok(Some(head)) = dsl.by_object(ds_obj) else { continue };
        let breakdown = head.dir.used_breakdown;
        if head.dir.flags & DD_FLAG_USED_BREAKDOWN == 0 {
            continue;
        }
        let sum = breakdown.iter().fold(0u64, |sum, part| sum.wrapping_add(*part));
        assert_eq!(sum, head.dir.used, "parts of what {} uses: {breakdown:?}", head.name);
        let Ok(snapshots) = dsl.snapshots(&head) else { continue };
        let cloned = snapshots.iter().any(|s| s.ds.num_children > 1);
        if cloned
            || snapshots.len() > MOST_SNAPSHOTS
            || matches!(dsl.origin(&head), Ok(Some(_)) | Err(_))
        {
            continue;
        }
        let [by_head, by_snapshots, ..] = breakdown;
        assert_eq!(by_head, head.ds.referenced, "used by the head of {}", head.name);
        let dead = snapshots.iter().chain([&head]).map(|d| Some(dsl.deadlist(d).ok()?.total.used));
        let Some(dead) = dead.sum::<Option<u64>>() else { continue };
        assert_eq!(dead, by_snapshots, "deadlists of {}", head.name);
    }
}
