//! Changes that are made whole or not at all.
//!
//! A change to the meta object set touches many objects, and decides as it reads. So reading cannot come
//! first. Instead what a change did is undone if it fails: from [`OpenObjectSet::begin_change`] on each
//! object is remembered as it was when it is first touched, and [`OpenObjectSet::undo_change`] puts all of
//! them back. Objects and blocks are shared with what is remembered until they are changed. The cost follows
//! what is touched, not what is pending.
//!
//! Before [`OpenObjectSet::keep_change`] the blocks that the sync will have to read for the change are read
//! ([`OpenObjectSet::check_change`], `dmu_tx_check_ioerr`): blocks of dnodes, and indirect blocks above dirty
//! and freed blocks. What cannot be read is found while the change can still be undone.
//!
//! Changes nest: what is kept of an inner one is part of the outer one, and is undone with it.
//!
//! Invariant: an object set is neither synced nor frozen in the middle of a change.

use super::object::OpenObject;
use super::slots::PER_BLOCK;
use super::{OpenObjectSet, Result};
use crate::objset::PROJECT_USED;
use crate::overlay::Parts;
use crate::tree::Tree;
use cenote_format::dmu::{ObjsetPhys, ZilHeader};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What there was before a change.
#[derive(Debug, Default)]
pub(super) struct Undo {
    /// Objects that were touched; `None`: not open.
    objects: BTreeMap<u64, Option<Arc<OpenObject>>>,
    /// Objects that were freed.
    doomed: Vec<u64>,
    /// Slots that were taken and given back: first and number.
    pub(super) taken: Vec<(u64, u64)>,
    pub(super) given: Vec<(u64, u64)>,
    rest: Option<Rest>,
}

/// What is small.
#[derive(Debug)]
struct Rest {
    phys: ObjsetPhys,
    dirty: u64,
    freed: u64,
    more: i64,
    flags: Option<u64>,
    zil: Option<ZilHeader>,
    changed: bool,
}

impl OpenObjectSet {
    /// Begins a change, which is then kept or undone.
    pub fn begin_change(&mut self) {
        self.settle();
        let rest = Rest {
            phys: self.phys.clone(),
            dirty: self.dirty,
            freed: self.freed,
            more: self.more,
            flags: self.flags,
            zil: self.zil,
            changed: self.changed,
        };
        self.undos.push(Undo { rest: Some(rest), ..Undo::default() });
    }

    /// Keeps the change that was begun last.
    pub fn keep_change(&mut self) {
        let Some(inner) = self.undos.pop() else { return };
        let Some(outer) = self.undos.last_mut() else { return };
        for (number, before) in inner.objects {
            outer.objects.entry(number).or_insert(before);
        }
        outer.doomed.extend(inner.doomed);
        outer.taken.extend(inner.taken);
        outer.given.extend(inner.given);
    }

    /// Undoes the change that was begun last.
    pub fn undo_change(&mut self) {
        let Some(Undo { objects, doomed, taken, given, rest }) = self.undos.pop() else { return };
        for (number, before) in objects {
            match before {
                Some(object) => drop(self.objects.insert(number, object)),
                None => drop(self.objects.remove(&number)),
            }
        }
        doomed.iter().for_each(|number| drop(self.doomed.remove(number)));
        given.into_iter().rev().for_each(|(number, count)| self.slots.take_back(number, count));
        taken.into_iter().rev().for_each(|(number, count)| self.slots.put_back(number, count));
        if let Some(rest) = rest {
            (self.phys, self.dirty, self.freed) = (rest.phys, rest.dirty, rest.freed);
            (self.more, self.flags, self.zil) = (rest.more, rest.flags, rest.zil);
            self.changed = rest.changed;
        }
    }

    /// Remembers an object that is about to be touched.
    pub(super) fn touch(&mut self, number: u64) {
        if let Some(undo) = self.undos.last_mut() {
            let objects = &self.objects;
            undo.objects.entry(number).or_insert_with(|| objects.get(&number).cloned());
        }
    }

    /// Remembers an object that is about to be freed.
    pub(super) fn touch_doomed(&mut self, number: u64) {
        if let Some(undo) = self.undos.last_mut()
            && !self.doomed.contains_key(&number)
        {
            undo.doomed.push(number);
        }
    }

    /// Reads what the sync will have to read for the change that was begun last.
    ///
    /// # Errors
    /// A block of dnodes or an indirect block cannot be read.
    pub fn check_change(&self) -> Result<()> {
        let Some(undo) = self.undos.last() else { return Ok(()) };
        let mut dnode_blocks = BTreeSet::new();
        for number in undo.objects.keys() {
            let Some(object) = self.objects.get(number).filter(|object| object.changed) else {
                continue;
            };
            if *number < PROJECT_USED {
                dnode_blocks.insert(number / PER_BLOCK);
            }
            let Some(disk) = object.disk().filter(|disk| disk.phys.levels > 1) else { continue };
            let (store, objset) = (self.base.store(), self.base.id());
            let tree = Tree { store, objset, object: *number, dnode: &disk.phys };
            let Parts { dirty, freed, .. } = object.pending.top.clone().into_parts();
            let edges = freed.edges().filter(|edge| *edge <= disk.phys.max_block);
            for blkid in dirty.iter().map(|(blkid, _)| blkid).chain(edges) {
                tree.read_indirect(blkid, blkid)?;
            }
        }
        dnode_blocks.extend(undo.doomed.iter().map(|number| number / PER_BLOCK));
        let meta = self.meta_tree();
        dnode_blocks.into_iter().try_for_each(|blkid| Ok(meta.block(blkid).map(drop)?))
    }
}
