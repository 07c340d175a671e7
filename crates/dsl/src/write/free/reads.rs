//! What a walk is going to read, counted ahead of it.

use super::{AHEAD, At, DNODE_SLOT, META, Stop, Walk, failed, roots};
use cenote_format::Bytes;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::dmu::DnodePhys;
use cenote_store::{Access, Block};

/// Blocks that are looked at at once.
type Level = Vec<(BlockPointer, At)>;

/// How many blocks the walk below `root` reads; not fewer than `most` if it is as many.
pub(super) fn count(
    mut walk: Walk<'_>,
    root: &BlockPointer,
    most: u64,
) -> std::result::Result<u64, Stop> {
    if walk.is_foreign(root) {
        return Ok(0);
    }
    let phys = walk.read_root(root)?;
    let mut level = roots(META, &phys.meta_dnode);
    let accounting = [&phys.project_used, &phys.group_used, &phys.user_used];
    for dnode in accounting.into_iter().flatten() {
        level.extend(roots(super::USER_USED, dnode));
    }
    let mut reads = 1;
    while !level.is_empty() {
        level.retain(|(bp, at)| (at.level > 0 || at.object == META) && !walk.is_foreign(bp));
        reads += level.len() as u64;
        if reads >= most {
            return Ok(reads);
        }
        let mut below = Level::new();
        for some in level.chunks(AHEAD) {
            let ahead: Vec<_> = some.iter().map(|(bp, at)| (*bp, at.bookmark())).collect();
            walk.store.load(&ahead, Access::Once);
            for (bp, at) in some {
                let block = walk.read(bp, at.bookmark())?;
                below_block(&block, *at, &mut below)?;
            }
        }
        level = below;
    }
    Ok(reads)
}

/// What is below a block: blocks below an indirect one, or the trees of objects in a block of dnodes.
fn below_block(block: &Block, at: At, below: &mut Level) -> std::result::Result<(), Stop> {
    let data = block.data.bytes();
    let bytes = Bytes::new(&data, block.order, "block of a destroyed dataset");
    if at.level > 0 {
        for i in 0..data.len() / BLKPTR_SIZE {
            let child = BlockPointer::decode(&bytes, i * BLKPTR_SIZE).map_err(failed)?;
            below.push((child, At { level: at.level - 1, ..at }));
        }
        return Ok(());
    }
    let mut slot = 0;
    while slot < bytes.len() / DNODE_SLOT {
        let dnode = DnodePhys::decode(&bytes, slot * DNODE_SLOT).map_err(failed)?;
        slot += 1;
        if let Some(dnode) = dnode {
            slot += usize::from(dnode.extra_slots);
            below.extend(roots(1, &dnode));
        }
    }
    Ok(())
}
