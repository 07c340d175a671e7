//! Much that is freed: a *delete chunk* in each transaction (`dmu_free_long_range_impl`, `get_next_chunk`).
//!
//! A transaction group has to have in memory what is freed in it, so a file of many blocks is neither
//! truncated nor removed in one go (`dmu_free_long_range`). It is freed from its end:
//!
//! - A file that is truncated gets shorter with each chunk, so that after a crash in between it is as
//!   it was, only shorter, and never longer than the wanted size.
//! - A hole that is punched grows from its end.
//! - A file without a name is in the unlinked set until its last chunk is freed. The *unlinked drain*
//!   (`zfs_unlinked_drain`), a thread that is there while it is needed, does it in the background;
//!   where it stops the next mount goes on.
//!
//! The tunable `zfs_delete_blocks` says how large a chunk is. What fits into one is freed in one
//! transaction, with everything else that belongs to the change.

use super::books::Leads;
use super::context::Cx;
use super::cost::REMOVE;
use super::node::NodeMut;
use super::rmnode;
use crate::Result;
use crate::drain::{Counting, Queue, Work};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::sa::ZplAttr;
use cenote_dmu::DeleteChunk;
use cenote_dmu::live::Cost;
use cenote_dmu::tunables::DELETE_BLOCKS;
use cenote_dmu::zap::Zap;
use cenote_format::invariant;
use cenote_format::invariant::caught;
use cenote_vdev::waiting::{self, Park};
use std::ops::Range;
use std::sync::Weak;

/// What freeing a chunk writes, at most, in bytes.
const CHUNK: Cost = Cost { write: 64 << 10, objects: 0, frees: true };
/// Extended attributes in a hidden directory that are removed in one transaction.
const XATTRS: u64 = 256;

/// Frees a node that has no names, unless that is too much for one transaction; then false.
pub(super) fn destroy_small(cx: &mut Cx<'_>, node: &NodeMut) -> Result<bool> {
    if cx.keeps_unlinked {
        return Ok(false);
    }
    let chunk = cx.os.view(node.ino)?.last_delete_chunk(0, u64::MAX, DELETE_BLOCKS.get());
    // What cannot be read cannot be freed, but it can lose its name.
    let Ok(chunk) = chunk else { return Ok(false) };
    let xattrs = match node.word(cx, ZplAttr::Xattr).filter(|dir| *dir != 0) {
        Some(dir) => rmnode::hidden_directory(cx, dir)?.required(cx, ZplAttr::Size)?,
        None => 0,
    };
    if chunk.start > 0 || xattrs > XATTRS + 2 {
        return Ok(false);
    }
    cx.os.note_freed(chunk.pointers);
    rmnode::destroy(cx, node)?;
    Ok(true)
}

/// Removes some extended attributes of a node that has many; false if it has few.
fn shrink_xattrs(cx: &mut Cx<'_>, node: &NodeMut) -> Result<bool> {
    let Some(dir) = node.word(cx, ZplAttr::Xattr).filter(|dir| *dir != 0) else {
        return Ok(false);
    };
    rmnode::hidden_directory(cx, dir)?;
    let some = Zap::open(&cx.os.view(dir)?)?.entries_from(0, XATTRS as usize + 1)?;
    if some.len() as u64 <= XATTRS {
        return Ok(false);
    }
    for entry in &some {
        let ino = rmnode::object_of(dir, entry)?;
        super::names::remove(cx, dir, &entry.name, Leads { ino, is_dir: false })?;
        rmnode::free_node(cx, ino)?;
    }
    super::names::count(cx, dir, -(some.len() as i64), 0)?;
    Ok(true)
}

impl FileSystem {
    /// The last part of a range of a file that one transaction may free.
    fn last_delete_chunk(&self, ino: u64, range: &Range<u64>) -> Result<DeleteChunk> {
        let live = self.source.live().ok_or(Error::ReadOnly)?;
        Ok(live.last_delete_chunk(ino, range.start, range.end, DELETE_BLOCKS.get())?)
    }

    /// Has `free` free a range chunk by chunk, from the end, until what is left fits into one
    /// transaction. Returns the end of that, and how many pointers it has.
    pub(super) fn free_chunks(
        &self,
        ino: u64,
        mut range: Range<u64>,
        free: impl Fn(&mut Cx<'_>, Range<u64>) -> Result<()>,
    ) -> Result<(u64, u64)> {
        loop {
            let DeleteChunk { start, pointers } = self.last_delete_chunk(ino, &range)?;
            if start <= range.start {
                return Ok((range.end, pointers));
            }
            let end = range.end;
            invariant!(start < end, "object {ino}: the last part before {end} begins at {start}");
            self.change(CHUNK, |cx| {
                cx.os.note_freed(pointers);
                free(cx, start..range.end)
            })?;
            range.end = start;
        }
    }

    /// Frees some of a file without a name; true when it is gone.
    fn free_some(&self, ino: u64) -> Result<bool> {
        let DeleteChunk { start, pointers } = self.last_delete_chunk(ino, &(0..u64::MAX))?;
        self.change(REMOVE, |cx| {
            cx.os.log_nothing();
            let node = NodeMut::load(cx, ino)?;
            if node.required(cx, ZplAttr::Links)? != 0 {
                return Ok(true);
            }
            if shrink_xattrs(cx, &node)? {
                return Ok(false);
            }
            cx.os.note_freed(pointers);
            if start == 0 {
                rmnode::destroy(cx, &node)?;
                return Ok(true);
            }
            cx.os.truncate(ino, start)?;
            Ok(false)
        })
    }

    /// Has a file without a name, which is in the unlinked set, freed in the background.
    pub(super) fn free_later(&self, ino: u64) {
        let mut queue = self.drain.queue();
        if queue.stopped || queue.waiting.contains(&ino) {
            return;
        }
        queue.waiting.push_back(ino);
        if !self.drain.is_suspended() && queue.freeing.is_none() {
            queue.freeing = self.source.live().map(|live| live.begin_freeing());
        }
        self.start(&mut queue);
    }

    /// Has all objects counted in the background, after which the object set gets `flags`
    /// (`dmu_objset_id_quota_upgrade`). What is freed goes first.
    pub fn count_later(&self, flags: u64) {
        let mut queue = self.drain.queue();
        if queue.stopped || queue.counting.is_some() {
            return;
        }
        queue.counting = Some(Counting { from: 0, flags });
        self.start(&mut queue);
    }

    /// Starts the thread, unless it runs.
    fn start(&self, queue: &mut Queue) {
        if queue.running {
            return;
        }
        invariant!(!queue.stopped, "a thread to free files is begun, and it was ended for good");
        let this = self.this.clone();
        let work = move || drain_queue(&this);
        match std::thread::Builder::new().name("zfs-unlinked".into()).spawn(work) {
            Ok(_) => queue.running = true,
            Err(e) => {
                tracing::warn!("no thread to free files and count objects: {e}");
                queue.waiting.clear();
                (queue.counting, queue.freeing) = (None, None);
            }
        }
    }

    /// Frees nothing in the background any more, and waits until nothing is being freed. What is left
    /// is freed when the file system is opened the next time.
    pub fn stop_freeing(&self) {
        let mut queue = self.drain.queue();
        queue.stopped = true;
        while queue.running {
            self.drain.idle.wait(&mut queue);
        }
    }

    /// Waits until all that was removed is freed.
    pub fn finish_freeing(&self) {
        let mut queue = self.drain.queue();
        while queue.running {
            self.drain.idle.wait(&mut queue);
        }
    }
}

/// Does what waits, as long as the file system is in use.
fn drain_queue(fs: &Weak<FileSystem>) {
    if let Err(why) = caught(|| drain(fs))
        && let Some(fs) = fs.upgrade()
    {
        // Those that wait for it are told, and nothing of the pool is written any more.
        fs.sound_alarm(&format!("thread zfs-unlinked: {why}"));
        fs.drain.give_up();
    }
}

/// The thread does not wait for a suspended pool once it has to end.
struct Stops(Weak<FileSystem>);

impl Park for Stops {
    fn begin(&self) {}

    fn end(&self) {}

    fn is_interrupted(&self) -> bool {
        self.0.upgrade().is_none_or(|fs| fs.drain.queue().stopped)
    }
}

/// See [`drain_queue`].
fn drain(fs: &Weak<FileSystem>) {
    waiting::park_by(Stops(fs.clone()));
    while let Some(fs) = fs.upgrade() {
        match fs.drain.next(|| fs.source.live().map(|live| live.begin_freeing())) {
            None => break,
            Some(Work::Free(ino)) => {
                let gone = fs.free_some(ino).unwrap_or_else(|e| {
                    // It stays in the unlinked set.
                    tracing::warn!(object = ino, "a file without names could not be freed: {e}");
                    true
                });
                if gone {
                    fs.drain.gone(ino);
                }
            }
            Some(Work::Count(counting)) => {
                let next = fs.count_some(counting).unwrap_or_else(|e| {
                    // The next mount goes on.
                    tracing::warn!("objects could not be counted to the end: {e}");
                    None
                });
                fs.drain.queue().counting = next;
            }
        }
    }
}
