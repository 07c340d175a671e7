//! The sync of an object set (`dmu_objset_sync`).
//!
//! Each changed object becomes a [`Work`], and a [`Run`] writes the blocks of all of them. Then the
//! dnodes are put into their blocks, which are the dirty blocks of the meta dnode: the same again for
//! this one object. Last comes the root block.
//!
//! Invariants: a [`SyncingSet`] changes nothing but accounting objects and the root block. Once it is written whole it becomes a
//! [`WrittenSet`], and in no other way.

use super::run::Run;
use super::sink::{BlockSink, NewBlock};
use super::slots::PER_BLOCK;
use super::unwritten::{Protection, Root, SMALL_ROOT, Unwritten};
use super::work::Work;
use super::{ObjectChange, Objects, Quiesced, Result, Synced, WriteError};
use crate::dnode::Dnode;
use crate::objset::{GROUP_USED, META_DNODE, PROJECT_USED, USER_USED};
use crate::tree::turned;
use crate::{Error, ObjectSet};
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::crypt::put_portable_mac;
use cenote_format::dmu::{DNODE_BLOCK, DNODE_SLOT, DmuType, ObjsetPhys, ZilHeader};
use cenote_format::invariant::broken;
use cenote_format::{ByteOrder, Bytes, DecodeError, invariant};
use cenote_store::Bookmark;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// Bytes of a root block (`OBJSET_PHYS_SIZE_V3`).
const ROOT_SIZE: usize = 4096;

/// An object set that is being written: all that was changed of it, once. Nothing is allocated or freed in it.
pub struct SyncingSet {
    unwritten: Unwritten,
    /// What it is to write that another set shows as well, and that it has not yet made its own.
    inherited: Option<Quiesced>,
    /// `DNODE_FLAG_*_ACCOUNTED` for whatever is written.
    accounted: u8,
    /// The dnodes that it has written; `None` for those it freed.
    written: BTreeMap<u64, Option<Arc<Dnode>>>,
}

/// An object set that was written: there is nothing left to write.
pub struct WrittenSet {
    base: Arc<ObjectSet>,
    /// Its root block, with what is in memory only.
    phys: ObjsetPhys,
    written: BTreeMap<u64, Option<Arc<Dnode>>>,
}

impl WrittenSet {
    /// The object set as it is on disk.
    pub fn base(&self) -> &Arc<ObjectSet> {
        &self.base
    }

    pub(super) fn phys(&self) -> &ObjsetPhys {
        &self.phys
    }

    /// The dnode of an object that was written.
    pub(super) fn dnode(&self, number: u64) -> Option<&Arc<Dnode>> {
        self.written.get(&number).and_then(Option::as_ref)
    }

    /// What was left on disk, as what stood on `before` is to see it.
    pub(crate) fn as_base_after(&self, before: &ObjectSet) -> Arc<ObjectSet> {
        before.succeeded_by(&self.base, &self.written)
    }
}

impl SyncingSet {
    /// One that is to write all of `unwritten`.
    pub(super) fn of(unwritten: Unwritten) -> SyncingSet {
        SyncingSet { unwritten, inherited: None, accounted: 0, written: BTreeMap::new() }
    }

    /// One that is to write what was `quiesced` as well, which `unwritten` was counted with.
    pub(super) fn inheriting(unwritten: Unwritten, quiesced: Quiesced) -> SyncingSet {
        let inherits = unwritten.is_dirty() || !quiesced.doomed.is_empty();
        SyncingSet { inherited: Some(quiesced).filter(|_| inherits), ..SyncingSet::of(unwritten) }
    }

    /// One that changes the header of the intent log, and nothing else, of an object set that is not in use.
    /// That of an encrypted one takes no key, for no MAC covers it (`os_next_write_raw`).
    ///
    /// # Errors
    /// As of [`OpenObjectSet::open`](super::OpenObjectSet::open).
    pub fn of_log(base: Arc<ObjectSet>, header: ZilHeader) -> Result<SyncingSet> {
        let unwritten = match base.root_bp().uses_crypt() {
            false => Unwritten::open(base)?,
            true => {
                let block = base.store().read(base.root_bp(), Bookmark::root(base.id()))?;
                let block = turned(base.root_bp(), block);
                Unwritten::of(base, Protection::LogOnly(block.data.to_vec()))
            }
        };
        let mut this = SyncingSet::of(unwritten);
        this.set_zil_header(header);
        Ok(this)
    }

    pub(super) fn unwritten(&self) -> &Unwritten {
        &self.unwritten
    }

    pub(super) fn unwritten_mut(&mut self) -> &mut Unwritten {
        &mut self.unwritten
    }

    /// Makes what was inherited this set's own.
    pub(super) fn settle(&mut self) {
        let Some(Quiesced { objects, doomed }) = self.inherited.take() else { return };
        self.unwritten.objects = Arc::unwrap_or_clone(objects);
        self.unwritten.doomed = Arc::unwrap_or_clone(doomed);
    }

    /// The object set as it is on disk: before the first sync as the last group left it.
    pub fn synced(&self) -> &Arc<ObjectSet> {
        &self.unwritten.base
    }

    /// Whether a sync would write anything.
    pub fn is_dirty(&self) -> bool {
        self.unwritten.is_dirty() || self.inherited.is_some()
    }

    /// Bytes that wait to be written, as [`OpenObjectSet::dirty_bytes`](super::OpenObjectSet::dirty_bytes).
    pub fn dirty_bytes(&self) -> u64 {
        self.unwritten.dirty
    }

    /// Whether a raw stream is received into it.
    pub fn is_received_raw(&self) -> bool {
        self.unwritten.protection.received().is_some()
    }

    /// `os_flags`.
    pub fn flags(&self) -> u64 {
        self.unwritten.root.phys.flags
    }

    /// `os_flags`, to be changed with care.
    pub fn set_flags(&mut self, flags: u64) {
        self.unwritten.root.set_flags(flags);
    }

    /// Changes the header of the intent log.
    pub fn set_zil_header(&mut self, zil: ZilHeader) {
        self.unwritten.root.set_zil(zil);
    }

    /// Sets the flags (`DNODE_FLAG_USERUSED_ACCOUNTED`, `DNODE_FLAG_USEROBJUSED_ACCOUNTED`) that
    /// each dnode gets when it is written, because it is accounted for from then on.
    pub fn set_accounted(&mut self, flags: u8) {
        self.accounted = flags;
    }

    /// Ends the writing.
    ///
    /// Invariant: nothing is left to be written, and no sync has failed.
    pub fn finish(self) -> WrittenSet {
        let (objset, is_left) = (self.unwritten.id(), self.is_dirty());
        invariant!(!is_left, "objset {objset}: changes are left after it was written");
        let Unwritten { base, root, .. } = self.unwritten;
        WrittenSet { base, phys: root.phys, written: self.written }
    }

    /// Writes all changes as transaction group `txg` and goes on from there (`dmu_objset_sync`). Nothing is written if
    /// there are no changes.
    ///
    /// # Errors
    /// Blocks that cannot be read or written; blocks below what is freed are leaked instead. The
    /// object set is of no use then, and what was written is not referred to by anything.
    pub fn sync(&mut self, txg: u64, sink: &dyn BlockSink) -> Result<Synced> {
        self.unwritten.usable()?;
        self.settle();
        let here = &mut self.unwritten;
        let dirty = here.is_dirty();
        here.failed = true;
        let objects = std::mem::take(&mut here.objects);
        let bytes: u64 = objects.values().map(|object| object.bytes(here.least)).sum();
        let (objset, counted) = (here.id(), here.dirty);
        invariant!(bytes == counted, "objset {objset}: {bytes} bytes are dirty, {counted} counted");
        let gone: BTreeMap<u64, Arc<Dnode>> = std::mem::take(&mut here.doomed)
            .into_iter()
            .filter_map(|(number, dnode)| Some((number, dnode?)))
            .collect();
        let mut changed = changes(&objects, &gone);
        let mut works = Vec::with_capacity(objects.values().filter(|o| o.changed).count());
        for (number, object) in objects.into_iter().filter(|(_, object)| object.changed) {
            works.push(Work::new(objset, number, &object));
        }
        let mut run = self.begin(txg, sink);
        let log_only = matches!(self.unwritten.protection, Protection::LogOnly(_));
        invariant!(
            !log_only || works.is_empty() && gone.is_empty(),
            "objset {objset}: more than its intent log is changed without its key"
        );
        if dirty && log_only {
            self.write_root(&mut run)?;
        } else if dirty {
            run.destroy(&gone)?;
            run.run(&mut works)?;
            self.set_dnodes(&mut works, &mut changed);
            let mut meta = [self.meta_work(&gone, &works)?];
            run.run(&mut meta)?;
            let [meta] = meta;
            self.unwritten.root.phys.meta_dnode = meta.phys;
            self.write_root(&mut run)?;
        }
        let here = &mut self.unwritten;
        here.failed = false;
        let (root, phys) = (*here.base.root_bp(), here.root.phys.clone());
        let Run { born, killed, cloned, leaked, .. } = run;
        let uses = std::mem::take(&mut here.uses);
        Ok(Synced { root, phys, born, killed, cloned, changed, leaked, uses })
    }

    fn begin<'s>(&mut self, txg: u64, sink: &'s dyn BlockSink) -> Run<'s> {
        let Unwritten { base, protection, .. } = &mut self.unwritten;
        let (doomed, born, killed, cloned, damaged) = Default::default();
        Run {
            store: base.store().clone(),
            objset: base.id(),
            txg,
            sink,
            key: protection.key().cloned(),
            raw: protection.received().is_some(),
            seals: protection.take_seals(),
            doomed,
            born,
            killed,
            cloned,
            damaged,
            leaked: 0,
        }
    }

    /// Takes note of the dnodes that were written; the accounting objects' dnodes are in the root
    /// block, and not in `works` any more.
    fn set_dnodes(&mut self, works: &mut Vec<Work>, changed: &mut [ObjectChange]) {
        for change in changed.iter() {
            self.written.insert(change.object, None);
        }
        for work in works.iter_mut() {
            if work.number < PROJECT_USED {
                work.phys.flags |= self.accounted;
            }
            let (number, phys) = (work.number, work.phys.clone());
            self.written.insert(number, Some(Arc::new(Dnode { number, phys })));
        }
        for change in changed {
            let written = self.written.get(&change.object).and_then(Option::as_ref);
            change.after = written.map(|dnode| dnode.phys.clone());
        }
        let special = works.split_off(works.partition_point(|w| w.number < PROJECT_USED));
        let here = &mut self.unwritten.root.phys;
        for Work { number, phys, .. } in special {
            match number {
                USER_USED => here.user_used = Some(phys),
                GROUP_USED => here.group_used = Some(phys),
                PROJECT_USED => here.project_used = Some(phys),
                number => {
                    broken(format_args!("object {number} is written as one of the root block"))
                }
            }
        }
    }

    /// The meta dnode with the blocks that hold dnodes that changed or are gone.
    fn meta_work(&self, gone: &BTreeMap<u64, Arc<Dnode>>, works: &[Work]) -> Result<Work> {
        let mut dirty: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let zeros = gone.iter().map(|(n, d)| (*n, vec![0; d.phys.slots() as usize * DNODE_SLOT]));
        for (number, bytes) in zeros {
            self.put_dnode(&mut dirty, number, &bytes)?;
        }
        for work in works {
            self.put_dnode(&mut dirty, work.number, &work.phys.encode()?)?;
        }
        let mut phys = self.unwritten.root.phys.meta_dnode.clone();
        let last = dirty.last_key_value().map_or(0, |(blkid, _)| *blkid);
        phys.max_block = phys.max_block.max(last);
        let mut least_levels = 0;
        if let Some(root) = self.unwritten.protection.received() {
            phys.max_block = phys.max_block.max(root.max_block);
            least_levels = root.levels;
        }
        let dirty = dirty.into_iter().map(|(n, block)| (n, Abd::from_vec(block).into())).collect();
        Ok(Work { dirty, least_levels, ..Work::of(META_DNODE, phys) })
    }

    /// Puts the bytes of a dnode into the block of dnodes that it is in (`dmu_objset_sync_dnodes`).
    fn put_dnode(
        &self,
        dirty: &mut BTreeMap<u64, Vec<u8>>,
        number: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let (blkid, at) = (number / PER_BLOCK, (number % PER_BLOCK) as usize * DNODE_SLOT);
        let block = match dirty.entry(blkid) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                entry.insert(match self.unwritten.meta_tree().block(blkid)? {
                    Some(block) => block.data.to_vec(),
                    None => vec![0; DNODE_BLOCK as usize],
                })
            }
        };
        let Some(slot) = block.get_mut(at..at + bytes.len()) else {
            let why = "dnode beyond its block".into();
            return Err(Error::Corrupt { objset: self.unwritten.id(), object: number, why }.into());
        };
        slot.copy_from_slice(bytes);
        Ok(())
    }

    /// Writes the root block and goes on from it (`dmu_objset_write_ready`).
    fn write_root(&mut self, run: &mut Run<'_>) -> Result<()> {
        let Unwritten { base, root, protection, small_root, .. } = &self.unwritten;
        let counts = root.phys.user_used.is_some() || root.phys.group_used.is_some();
        let size = if *small_root && !counts { SMALL_ROOT } else { ROOT_SIZE };
        let pointers = &root.phys.meta_dnode.pointers;
        let stored = pointers.iter().filter(|bp| !bp.is_hole());
        let mut data = match protection {
            Protection::LogOnly(block) => with_log(block, &root.phys.zil)?,
            _ => root.phys.encode(size)?,
        };
        if let Some(root) = protection.received() {
            put_portable_mac(&root.portable_mac, &mut data).map_err(|_| too_short())?;
        }
        let (encrypted, key) = (protection.is_encrypted(), protection.key().cloned());
        // As a reader will see it.
        let phys = ObjsetPhys::decode(&Bytes::new(&data, ByteOrder::Little, "object set"))?;
        let block = NewBlock {
            data: Abd::from_vec(data).into(),
            at: Bookmark::root(base.id()),
            kind: DmuType::OBJSET,
            level: 0,
            checksum: 0,
            compress: 0,
            fill: stored.map(BlockPointer::fill).fold(0, u64::saturating_add),
            previous: *base.root_bp(),
            forced: false,
            keeps_birth: false,
            raw: encrypted && key.is_none(),
            key,
        };
        let objset = base.id();
        let written = run.write(vec![block])?;
        let root = written.first().map(|(new, _)| *new).filter(|bp| !bp.is_hole());
        let root = root.ok_or_else(|| WriteError::Sink("the root block became a hole".into()))?;
        invariant!(
            root.uses_crypt() == encrypted,
            "objset {objset}: its root block is not protected as it is to be"
        );
        self.go_on_from(root, phys);
        Ok(())
    }

    /// Goes on from the root block that was just written.
    fn go_on_from(&mut self, root: BlockPointer, phys: ObjsetPhys) {
        let here = &mut self.unwritten;
        // The set that this was quiesced from takes care of the cache.
        here.base = here.base.synced(root, phys.clone());
        here.root = Root { phys, changed: false };
        here.dirty = 0;
    }
}

fn too_short() -> DecodeError {
    DecodeError::invalid("object set", "too short")
}

/// The encrypted object set `raw` with another header of its intent log, of which its MACs know nothing.
fn with_log(raw: &[u8], zil: &ZilHeader) -> Result<Vec<u8>> {
    let (mut data, header) = (raw.to_vec(), zil.encode());
    let end = DNODE_SLOT + header.len();
    data.get_mut(DNODE_SLOT..end).ok_or_else(too_short)?.copy_from_slice(&header);
    Ok(data)
}

/// What is going to change, with the dnodes that there were.
fn changes(objects: &Objects, gone: &BTreeMap<u64, Arc<Dnode>>) -> Vec<ObjectChange> {
    let mut before: BTreeMap<u64, Option<&Arc<Dnode>>> =
        gone.iter().map(|(number, dnode)| (*number, Some(dnode))).collect();
    for (number, object) in objects.range(..PROJECT_USED).filter(|(_, object)| object.changed) {
        before.entry(*number).or_insert_with(|| object.disk());
    }
    let phys = |dnode: &Arc<Dnode>| dnode.phys.clone();
    let change = |(object, before): (u64, Option<&Arc<Dnode>>)| ObjectChange {
        object,
        before: before.map(phys),
        after: None,
    };
    before.into_iter().map(change).collect()
}
