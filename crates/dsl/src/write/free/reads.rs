//! What a walk is going to read, counted ahead of it.

use super::is_foreign;
use crate::traverse::{self, AHEAD_BLOCKS, DESTROYED};
use cenote_dmu::objset::{META_DNODE, USER_USED};
use cenote_dmu::{Error, Result};
use cenote_format::Bytes;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::dmu::DnodePhys;
use cenote_store::{Access, Block, Bookmark, Store};
use std::sync::Arc;

/// Blocks that are looked at together. Their block numbers are not set: nothing here needs them.
type Level = Vec<(BlockPointer, Bookmark)>;

/// How many blocks the walk below `root` reads; not fewer than `most` if it is as many.
pub(super) fn count(
    store: &Arc<Store>,
    root: &BlockPointer,
    after_txg: u64,
    most: u64,
) -> Result<u64> {
    if is_foreign(root, after_txg) {
        return Ok(0);
    }
    let phys = traverse::read_root(store, DESTROYED, root)?;
    let mut level = Level::new();
    roots(META_DNODE, &phys.meta_dnode, &mut level);
    let accounting = [&phys.project_used, &phys.group_used, &phys.user_used];
    accounting.into_iter().flatten().for_each(|dnode| roots(USER_USED, dnode, &mut level));
    let mut reads = 1;
    while !level.is_empty() {
        level.retain(|(bp, at)| {
            (at.level > 0 || at.object == META_DNODE) && !is_foreign(bp, after_txg)
        });
        reads += level.len() as u64;
        if reads >= most {
            return Ok(reads);
        }
        let mut below = Level::new();
        for some in level.chunks(AHEAD_BLOCKS) {
            store.load(some, Access::Once);
            for (bp, at) in some {
                below_block(&store.read(bp, *at)?, *at, &mut below)?;
            }
        }
        level = below;
    }
    Ok(reads)
}

/// The pointers in a dnode.
fn roots(object: u64, dnode: &DnodePhys, out: &mut Level) {
    let level = i64::from(dnode.levels) - 1;
    let at = |blkid| Bookmark { objset: DESTROYED, object, level, blkid };
    out.extend((0..).zip(&dnode.pointers).map(|(blkid, bp)| (*bp, at(blkid))));
}

/// What is below a block: blocks below an indirect one, or the trees of objects in a block of dnodes.
fn below_block(block: &Block, at: Bookmark, below: &mut Level) -> Result<()> {
    if at.level > 0 {
        let data = block.data.bytes();
        let bytes = Bytes::new(&data, block.order, "block of a destroyed dataset");
        for i in 0..data.len() / BLKPTR_SIZE {
            let child = BlockPointer::decode(&bytes, i * BLKPTR_SIZE);
            let Bookmark { objset, object, .. } = at;
            let child = child.map_err(|source| Error::Decode { objset, object, source })?;
            below.push((child, Bookmark { level: at.level - 1, ..at }));
        }
        return Ok(());
    }
    for (number, dnode) in traverse::slots(at.objset, at.blkid, block) {
        if let Some(dnode) = dnode? {
            roots(number, &dnode, below);
        }
    }
    Ok(())
}
