//! Rewriting files in place (`zfs rewrite`): their blocks are written anew, unmodified, so that they
//! get a new place, and the compression, checksum and copies that the dataset has now.
//!
//! A range is done in transactions of some MiB. What is stored is read first, without any lock; what
//! was changed by others meanwhile is left alone, since it was written anew by that. Contents, holes,
//! length, times and the size of blocks stay; a block that is embedded in its pointer has no place and stays, too. Blocks that a snapshot shares are there twice afterwards.

use super::data::writable;
use super::quota;
use crate::fs::FileSystem;
use crate::sa::ZplAttr;
use crate::{Error, Result};
use cenote_dmu::Seek;
use cenote_dmu::live::Cost;
use cenote_dmu::write::{Births, Spare};
use cenote_format::blkptr::BlockPointer;
use cenote_format::invariant;

/// Bytes that are rewritten in one transaction, unless a block is larger.
const CHUNK: u64 = 8 << 20;

/// What to rewrite.
#[derive(Clone, Copy, Default)]
pub struct Rewrite<'a> {
    /// First byte.
    pub offset: u64,
    /// Number of bytes; 0: up to the end of the file. What is past the end is ignored.
    pub length: u64,
    /// Blocks that were born in this txg or before stay where they are: that of the newest snapshot
    /// for those that no snapshot shares, 0 for all.
    pub newer_than: u64,
    /// Blocks that stay where they are as well: those that clones share, or `None`.
    pub spare: Option<&'a Spare<'a>>,
    /// What the blocks are born in. To keep births, the pool needs the feature `physical_rewrite`.
    pub births: Births,
}

impl FileSystem {
    /// Rewrites a range of a file: every block that has a byte in it. `proceed` is asked before each
    /// transaction of some MiB; if it says no, the rest is left. Returns the bytes of the blocks that
    /// are written anew.
    ///
    /// Errors: not a regular file; an immutable file; [`Error::ReadOnly`]; a quota that is full; what
    /// reading and writing may fail with. What was rewritten up to then stays so.
    pub fn rewrite(
        &self,
        ino: u64,
        what: Rewrite<'_>,
        mut proceed: impl FnMut() -> bool,
    ) -> Result<u64> {
        let live = self.source.live().ok_or(Error::ReadOnly)?;
        let size = self.open_file(ino)?.length()?;
        let length = if what.length == 0 { u64::MAX } else { what.length };
        let end = what.offset.saturating_add(length).min(size);
        let (mut at, mut done) = (what.offset, 0u64);
        let spare = |bp: &BlockPointer| {
            bp.birth() <= what.newer_than || what.spare.is_some_and(|spare| spare(bp))
        };
        while at < end && proceed() {
            let object = live.object(ino)?;
            let Some(data) = object.seek(at, Seek::Data)?.filter(|data| *data < end) else { break };
            let block = object.dnode().block_size.max(1);
            let chunk = (CHUNK / block).max(1) * block;
            let next = (data - data % block).saturating_add(chunk);
            let found = live.gather(ino, data, next.min(end) - data, &spare)?;
            if found.bytes() > 0 {
                let write = live.cost_of_blocks(0, found.bytes(), block);
                let cost = Cost { write, objects: 0, frees: false };
                let rewritten = self.change(cost, |cx| {
                    cx.os.log_nothing();
                    let (node, _) = writable(cx, ino)?;
                    let id = |attr| node.word(cx, attr).unwrap_or(0);
                    let ids = [ZplAttr::Uid, ZplAttr::Gid, ZplAttr::ProjId].map(id);
                    let [uid, gid, project] = ids;
                    quota::check(cx, uid, gid, project, false)?;
                    Ok(cx.os.rewrite(ino, &found, what.births)?)
                })?;
                let most = found.bytes();
                invariant!(
                    rewritten <= most,
                    "object {ino}: {rewritten} of {most} bytes rewritten"
                );
                done += rewritten;
            }
            invariant!(next > at, "object {ino}: rewriting goes on from {at} at {next}");
            at = next;
        }
        Ok(done)
    }
}
