//! The sync of an object set (`dmu_objset_sync`).
//!
//! Each changed object becomes a [`Work`], and a [`Run`] writes the blocks of all of them. Then the
//! dnodes are put into their blocks, which are the dirty blocks of the meta dnode: the same again for
//! this one object. Last comes the root block.

use super::run::Run;
use super::sink::{BlockSink, NewBlock};
use super::slots::PER_BLOCK;
use super::work::Work;
use super::{ObjectChange, Objects, OpenObjectSet, Result, Synced, WriteError};
use crate::Error;
use crate::object::Dnode;
use crate::objset::{GROUP_USED, META_DNODE, PROJECT_USED, USER_USED};
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

impl OpenObjectSet {
    /// Writes all changes as transaction group `txg` and goes on from there (`dmu_objset_sync`). Nothing is written if
    /// there are no changes.
    ///
    /// Errors: blocks that cannot be read or written; blocks below what is freed are leaked instead. The
    /// object set is of no use then, and what was written is not referred to by anything. While part of it is quiesced,
    /// it cannot be synced.
    pub fn sync(&mut self, txg: u64, sink: &dyn BlockSink) -> Result<Synced> {
        self.usable()?;
        if self.quiesced.is_some() {
            let why = "part of the object set is quiesced".into();
            return Err(WriteError::Invalid { object: META_DNODE, why });
        }
        self.settle();
        self.check_no_change();
        let dirty = self.is_dirty();
        self.failed = true;
        let objects = std::mem::take(&mut self.objects);
        let bytes: u64 = objects.values().map(|object| object.bytes(self.least)).sum();
        let (objset, counted) = (self.base.id(), self.dirty);
        invariant!(bytes == counted, "objset {objset}: {bytes} bytes are dirty, {counted} counted");
        let gone: BTreeMap<u64, Arc<Dnode>> = std::mem::take(&mut self.doomed)
            .into_iter()
            .filter_map(|(number, dnode)| Some((number, dnode?)))
            .collect();
        let mut changed = changes(&objects, &gone);
        let mut works = Vec::with_capacity(objects.values().filter(|o| o.changed).count());
        for (number, object) in objects.into_iter().filter(|(_, object)| object.changed) {
            works.push(Work::new(objset, number, &object));
        }
        let store = self.base.store().clone();
        let (doomed, born, killed, cloned, damaged) = Default::default();
        let (key, raw, leaked) = (self.key.clone(), self.received.is_some(), 0);
        let seals = std::mem::take(&mut self.seals);
        let mut run = Run {
            store,
            objset,
            txg,
            sink,
            key,
            raw,
            seals,
            doomed,
            born,
            killed,
            cloned,
            damaged,
            leaked,
        };
        invariant!(
            self.raw.is_none() || works.is_empty() && gone.is_empty(),
            "objset {objset}: more than its intent log is changed without its key"
        );
        if dirty && self.raw.is_some() {
            self.write_root(&mut run)?;
        } else if dirty {
            run.destroy(&gone)?;
            run.run(&mut works)?;
            self.set_dnodes(&mut works, &mut changed);
            let mut meta = [self.meta_work(&gone, &works)?];
            run.run(&mut meta)?;
            let [meta] = meta;
            self.phys.meta_dnode = meta.phys;
            self.write_root(&mut run)?;
        }
        self.failed = false;
        let (root, phys) = (*self.base.root_bp(), self.phys.clone());
        let Run { born, killed, cloned, leaked, .. } = run;
        let uses = std::mem::take(&mut self.uses);
        Ok(Synced { root, phys, born, killed, cloned, changed, leaked, uses })
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
            let (number, phys, order) = (work.number, work.phys.clone(), ByteOrder::Little);
            self.written.insert(number, Some(Arc::new(Dnode { number, phys, order })));
        }
        for change in changed {
            let written = self.written.get(&change.object).and_then(Option::as_ref);
            change.after = written.map(|dnode| dnode.phys.clone());
        }
        let special = works.split_off(works.partition_point(|w| w.number < PROJECT_USED));
        for Work { number, phys, .. } in special {
            match number {
                USER_USED => self.phys.user_used = Some(phys),
                GROUP_USED => self.phys.group_used = Some(phys),
                PROJECT_USED => self.phys.project_used = Some(phys),
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
        let mut phys = self.phys.meta_dnode.clone();
        let last = dirty.last_key_value().map_or(0, |(blkid, _)| *blkid);
        phys.max_block = phys.max_block.max(last);
        let mut least_levels = 0;
        if let Some(root) = &self.received {
            phys.max_block = phys.max_block.max(root.max_block);
            least_levels = root.levels;
        }
        let dirty = dirty.into_iter().map(|(n, block)| (n, Abd::from_vec(block).into())).collect();
        Ok(Work { dirty, least_levels, ..Work::of(META_DNODE, phys) })
    }

    fn put_dnode(
        &self,
        dirty: &mut BTreeMap<u64, Vec<u8>>,
        number: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let (blkid, at) = (number / PER_BLOCK, (number % PER_BLOCK) as usize * DNODE_SLOT);
        let block = match dirty.entry(blkid) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(match self.meta_tree().block(blkid)? {
                Some(block) if block.order != ByteOrder::Little => {
                    return Err(WriteError::ByteOrder(number));
                }
                Some(block) => block.data.to_vec(),
                None => vec![0; DNODE_BLOCK as usize],
            }),
        };
        let Some(slot) = block.get_mut(at..at + bytes.len()) else {
            let why = "dnode beyond its block".into();
            return Err(Error::Corrupt { objset: self.base.id(), object: number, why }.into());
        };
        slot.copy_from_slice(bytes);
        Ok(())
    }

    /// Writes the root block and goes on from it (`dmu_objset_write_ready`).
    fn write_root(&mut self, run: &mut Run<'_>) -> Result<()> {
        let pointers = &self.phys.meta_dnode.pointers;
        let stored = pointers.iter().filter(|bp| !bp.is_hole());
        let mut data = match &self.raw {
            Some(raw) => with_log(raw, &self.phys.zil)?,
            None => self.phys.encode(ROOT_SIZE)?,
        };
        if let Some(root) = &self.received {
            put_portable_mac(&root.portable_mac, &mut data).map_err(|_| too_short())?;
        }
        let is_raw = self.raw.is_some() || self.received.is_some();
        // As a reader will see it.
        let phys = ObjsetPhys::decode(&Bytes::new(&data, ByteOrder::Little, "object set"))?;
        let block = NewBlock {
            data: Abd::from_vec(data).into(),
            at: Bookmark::root(self.base.id()),
            kind: DmuType::OBJSET,
            level: 0,
            checksum: 0,
            compress: 0,
            fill: stored.map(BlockPointer::fill).fold(0, u64::saturating_add),
            previous: *self.base.root_bp(),
            forced: false,
            keeps_birth: false,
            key: self.key.clone(),
            raw: is_raw,
        };
        let objset = self.base.id();
        let written = run.write(vec![block])?;
        let root = written.first().map(|(new, _)| *new).filter(|bp| !bp.is_hole());
        let root = root.ok_or_else(|| WriteError::Sink("the root block became a hole".into()))?;
        let encrypted = self.key.is_some() || is_raw;
        invariant!(
            root.uses_crypt() == encrypted,
            "objset {objset}: its root block is not protected as it is to be"
        );
        self.go_on_from(root, phys);
        Ok(())
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
