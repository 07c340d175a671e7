//! Raw streams (`zfs send -w`): what BEGIN says of keys, and how records name the protection of blocks.
//!
//! A raw stream takes no key. The walk reads blocks of dnodes as they are on disk, and the bonus buffers in them are sent
//! encrypted, to the end of the dnode.

use super::{Result, SendError};
use crate::crypt::keydata::KeyData;
use crate::{Dataset, Dsl};
use cenote_dmu::ObjectSet;
use cenote_dmu::write::RawRoot;
use cenote_format::blkptr::BLKPTR_SIZE;
use cenote_format::crypt::{KEY_VERSION, ObjsetMacs};
use cenote_format::dmu::{DNODE_BLOCK, DNODE_CORE, DNODE_SLOT, DnodePhys};
use cenote_format::less;
use cenote_format::stream::RawObject;
use cenote_store::{Bookmark, Store};
use std::sync::Arc;

/// Field of a snapshot: its set of initialization vectors.
const IVSET_GUID: &str = "com.datto:ivset_guid";

impl Dsl {
    /// Opens the object set of an encrypted dataset for a stream that takes no key.
    pub(super) fn open_raw(&self, d: &Dataset) -> Result<Arc<ObjectSet>> {
        let open = || ObjectSet::open(self.mos.store().clone(), d.ds_obj, d.ds.bp);
        Ok(Store::without_keys(open)?)
    }

    /// What a raw stream says of the keys of `snapshot` (`dsl_crypto_populate_key_nvlist`).
    ///
    /// # Errors
    /// The snapshot, or the one that the stream starts from, is of a time before raw streams were safe.
    pub(super) fn key_data(
        &self,
        objset: &Arc<ObjectSet>,
        snapshot: &Dataset,
        from: Option<&Dataset>,
    ) -> Result<KeyData> {
        let refused = |why: &str| Err(SendError::Refused(why.into()));
        let Some(key) = self.crypto_key(snapshot)? else { return refused("it is not encrypted") };
        if key.wrapped.version != KEY_VERSION {
            return refused(
                "its key is of a version that raw streams do not have; copy it into a new dataset",
            );
        }
        let root_key = self.key_of_dir(key.root)?.unwrap_or_else(|| key.clone());
        let Some(to_ivset) = self.field_u64(snapshot.ds_obj, IVSET_GUID)? else {
            return refused("it has no IV set guid: only snapshots of encrypted datasets have one");
        };
        let from_ivset = match from {
            None => 0,
            Some(Dataset { bookmark: Some(bookmark), .. }) => bookmark.ivset_guid,
            Some(from) => self.field_u64(from.ds_obj, IVSET_GUID)?.unwrap_or(0),
        };
        if from.is_some() && from_ivset == 0 {
            return refused("what it starts from has no IV set guid");
        }
        let meta = &objset.phys().meta_dnode;
        if meta.block_size != DNODE_BLOCK || meta.pointers.len() != 3 {
            return refused("its blocks of dnodes are of a size that raw streams do not have");
        }
        let root = RawRoot {
            portable_mac: portable_mac(objset)?,
            checksum: meta.checksum,
            compress: meta.compress,
            levels: meta.levels,
            indirect_shift: meta.indirect_shift,
            max_block: meta.max_block,
        };
        Ok(KeyData {
            wrapped: key.wrapped,
            format: root_key.format,
            salt: root_key.salt,
            iterations: root_key.iterations,
            root,
            to_ivset,
            from_ivset,
        })
    }
}

fn portable_mac(objset: &Arc<ObjectSet>) -> Result<[u8; 32]> {
    let read = || objset.store().read(objset.root_bp(), Bookmark::root(objset.id()));
    let block = Store::without_keys(read).map_err(cenote_dmu::Error::from)?;
    let macs = ObjsetMacs::stored(&block.data.bytes());
    let decode = |source| cenote_dmu::Error::Decode { objset: objset.id(), object: 0, source };
    Ok(macs.map_err(decode)?.portable)
}

/// What a raw stream says of an object besides, and the bytes behind its record: all of the dnode behind its pointers.
pub(super) fn object(dnode: &DnodePhys) -> (RawObject, Vec<u8>) {
    let spill = if dnode.spill.is_some() { BLKPTR_SIZE } else { 0 };
    let taken = DNODE_CORE + dnode.pointers.len() * BLKPTR_SIZE + spill;
    let size = dnode.slots() as usize * DNODE_SLOT;
    let room = less!(size, taken, "bytes of a dnode, behind its pointers");
    let mut bonus = Vec::new();
    if !dnode.bonus.is_empty() {
        bonus = [dnode.bonus.as_slice(), &dnode.rest].concat();
        bonus.resize(room, 0);
    }
    let raw = RawObject {
        bonus_len: bonus.len() as u32,
        indirect_shift: dnode.indirect_shift,
        levels: dnode.levels,
        pointers: dnode.pointers.len() as u8,
        max_block: dnode.max_block,
    };
    (raw, bonus)
}
