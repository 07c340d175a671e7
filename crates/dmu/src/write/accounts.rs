//! Accounting objects: what users, groups and projects use (`DMU_USERUSED_OBJECT` and so on).
//!
//! They are counted by what a sync has written, and a second sync in the same transaction group writes them. So they are the only
//! objects of a [`SyncingSet`] that are changed. [`SyncingSet::account`] makes such changes on the side, as a whole or not
//! at all: what was changed becomes part of the set when all of it is done, and what a sync will need of it was read.
//!
//! Invariant: only accounting objects are changed here, whose dnodes are in the root block.

use super::object::{OpenObject, Place, new_dnode};
use super::pending::on_disk;
use super::zap::{self, ZapFormat};
use super::{NewObject, Objects, Result, SyncingSet, WriteError};
use crate::objset::PROJECT_USED;
use cenote_format::encode::zap::Key;
use cenote_format::{invariant, less};
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// A new accounting object. Errors: [`WriteError::Taken`] if the number is out of range, or the dnode has more than one slot.
pub(super) fn new_object(number: u64, new: &NewObject) -> Result<OpenObject> {
    let object = OpenObject::new(number, new_dnode(new)?);
    match number >= PROJECT_USED && object.phys().slots() == 1 {
        true => Ok(object),
        false => Err(WriteError::Taken(number)),
    }
}

/// The accounting objects of a set that was written, which are changed.
pub struct Accounts<'s> {
    set: &'s SyncingSet,
    /// Those that were looked at.
    objects: Objects,
}

impl Accounts<'_> {
    /// Makes the accounting object `number` an empty ZAP of this `format`, if it is not there.
    ///
    /// # Errors
    /// The number is out of range; those of `format`.
    pub fn create<E: From<WriteError>>(
        &mut self,
        number: u64,
        new: &NewObject,
        format: impl FnOnce() -> std::result::Result<ZapFormat, E>,
    ) -> std::result::Result<(), E> {
        let mut object = new_object(number, new)?;
        if self.is_there(number) {
            return Ok(());
        }
        zap::format(&mut object, &self.set.unwritten().place(number), format()?)?;
        self.objects.insert(number, Arc::new(object));
        Ok(())
    }

    fn is_there(&self, number: u64) -> bool {
        let below = self.set.unwritten();
        self.objects.contains_key(&number)
            || below.objects.contains_key(&number)
            || below.base.special(number).is_ok()
    }

    /// Adds `delta` to an entry of the ZAP `number`, as [`ZapMut::increment`](super::ZapMut::increment).
    ///
    /// # Errors
    /// It is not there or cannot be read; the entry is not one integer.
    pub fn add(&mut self, number: u64, key: &Key<'_>, delta: i64) -> Result<u64> {
        let below = self.set.unwritten();
        let object = match self.objects.entry(number) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(place) => place.insert(match below.objects.get(&number) {
                Some(pending) => pending.clone(),
                None => Arc::new(OpenObject::open(&on_disk(&below.base, number)?)?),
            }),
        };
        zap::increment(Arc::make_mut(object), &below.place(number), key, delta)
    }

    /// Reads what the sync will have to read.
    fn check(&self) -> Result<()> {
        let changed = self.objects.iter().filter(|(_, object)| object.changed);
        changed.map(|(number, object)| (object, self.set.unwritten().place(*number))).try_for_each(
            |(object, place): (&Arc<OpenObject>, Place<'_>)| object.read_for_sync(&place),
        )
    }
}

impl SyncingSet {
    /// Has `f` change accounting objects. If that fails, or what the next sync will need cannot be read, nothing is changed.
    ///
    /// # Errors
    /// Those of `f`; an indirect block cannot be read.
    pub fn account<T, E: From<WriteError>>(
        &mut self,
        f: impl FnOnce(&mut Accounts<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        self.unwritten().usable()?;
        self.settle();
        let mut accounts = Accounts { set: self, objects: Objects::new() };
        let done = f(&mut accounts)?;
        accounts.check()?;
        let Accounts { objects, .. } = accounts;
        let here = self.unwritten_mut();
        let objset = here.id();
        for (number, object) in objects {
            invariant!(
                number >= PROJECT_USED,
                "objset {objset} object {number}: changed after it was written"
            );
            let after = object.bytes(here.least);
            let before = here.objects.insert(number, object);
            let before = before.map_or(0, |before| before.bytes(here.least));
            let all = here.dirty + after;
            here.dirty = less!(all, before, "objset {objset} object {number}: dirty bytes");
        }
        Ok(done)
    }
}
