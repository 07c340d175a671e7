//! Send streams of snapshots (`dmu_send`).
//!
//! A stream says what changed since a transaction group: for a full stream the first of all, for an incremental
//! one that of the snapshot it starts from. The blocks of dnodes are walked in order; each that changed brings
//! an OBJECT record for every object in it, and FREEOBJECTS for every free slot. Behind its OBJECT record come
//! the object's changed blocks: WRITE, FREE for holes, SPILL.
//!
//! ```text
//! walk of the meta dnode ── walk of each dnode ── queue ── flush: read as one batch ── records ── out
//! ```
//!
//! Invariants:
//! - What is queued is bounded ([`QUEUE_BYTES`], [`QUEUE_LENGTH`]), whatever the snapshot holds.
//! - Free ranges that touch each other become one record, in the way in which OpenZFS joins them, so that the
//!   same snapshot gives the same bytes.
//! - A block that cannot be read ends the stream, without an END record: no receiver takes it for whole.

mod queue;

use crate::{Dataset, DatasetKind, Dsl};
use cenote_dmu::objset::META_DNODE;
use cenote_dmu::{Changed, Error, ObjectSet};
use cenote_format::dmu::{DNODE_SLOT, DmuType};
use cenote_format::dsl::DS_FLAG_CI_DATASET;
use cenote_format::encode::EncodeError;
use cenote_format::stream::{
    Begin, FLAG_CI_DATA, FLAG_CLONE, FLAG_FREERECORDS, FLAG_SPILL_BLOCK, feature,
};
use queue::{Data, Item, Queue};
use std::io::{self, Write};
use std::sync::Arc;

/// Bytes of data that are read at once.
const QUEUE_BYTES: u64 = 16 << 20;
/// Most items of the queue.
const QUEUE_LENGTH: usize = 8192;
/// Slots in a block of dnodes.
const DNODES: u64 = 32;
/// Version of file systems from which on their attributes are system attributes (`ZPL_VERSION_SA`).
const VERSION_SA: u64 = 5;

/// What a stream may contain, and what the pool has that matters to it.
#[derive(Debug, Clone, Copy, Default)]
pub struct SendOptions {
    /// Blocks of more than 128 KiB are sent whole (`-L`).
    pub large_blocks: bool,
    /// Blocks that lie in their pointers are sent as such (`-e`).
    pub embedded: bool,
    /// Data is sent compressed as it is on disk (`-c`).
    pub compressed: bool,
    /// The pool's feature `embedded_data` is active.
    pub pool_embeds: bool,
    /// The pool's feature `lz4_compress` is active.
    pub pool_has_lz4: bool,
}

/// Why a stream could not be written to its end.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The snapshot cannot be read.
    #[error(transparent)]
    Read(#[from] Error),
    /// The stream cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A value does not fit into the stream.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The start of an incremental stream does not come before its end.
    #[error("not an earlier snapshot from the same fs")]
    NotEarlier,
    /// What is not supported.
    #[error("{0}")]
    Refused(String),
}

type Result<T> = std::result::Result<T, SendError>;

impl Dsl {
    /// Writes the stream of `snapshot` to `out`; an incremental one from `from`, a snapshot or a bookmark.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send(
        &self,
        snapshot: &Dataset,
        from: Option<&Dataset>,
        options: SendOptions,
        out: &mut dyn Write,
    ) -> Result<()> {
        if snapshot.kind != DatasetKind::Snapshot {
            return Err(SendError::Refused("only snapshots can be sent".into()));
        }
        let start = from.map(|from| self.start(snapshot, from)).transpose()?;
        let objset = self.open_objset(snapshot)?;
        let features = self.stream_features(snapshot, &objset, options)?;
        let (from_guid, from_txg, clone) = start.unwrap_or((0, 0, false));
        let mut flags = FLAG_FREERECORDS | FLAG_SPILL_BLOCK;
        if clone {
            flags |= FLAG_CLONE;
        }
        if snapshot.ds.flags & DS_FLAG_CI_DATASET != 0 {
            flags |= FLAG_CI_DATA;
        }
        let kind = match objset.phys().kind {
            cenote_format::dmu::ObjsetType::Zfs => 2,
            cenote_format::dmu::ObjsetType::Zvol => 3,
            _ => return Err(SendError::Refused("neither a file system nor a volume".into())),
        };
        let begin = Begin {
            header_type: 1,
            features,
            creation_time: snapshot.ds.creation_time,
            kind,
            flags,
            to_guid: snapshot.ds.guid,
            from_guid,
            to_name: snapshot.name.clone().into_bytes(),
            payload: 0,
        };
        let mut queue = Queue::new(objset.clone(), begin, from_txg, out)?;
        objects(&objset, from_txg, &mut queue)?;
        queue.finish()
    }

    /// Guid and transaction group that an incremental stream starts from, and whether they are those of another
    /// dataset, which `snapshot` was cloned from (`dsl_dataset_is_before`).
    fn start(&self, snapshot: &Dataset, from: &Dataset) -> Result<(u64, u64, bool)> {
        let (guid, txg) = match &from.bookmark {
            Some(bookmark) => (bookmark.guid, bookmark.creation_txg),
            None if from.kind == DatasetKind::Snapshot => (from.ds.guid, from.ds.creation_txg),
            None => return Err(SendError::Refused("incremental source must be a snapshot".into())),
        };
        let redacted = from.bookmark.as_ref().is_some_and(|b| b.redaction != 0);
        if redacted {
            return Err(SendError::Refused("redaction bookmarks are not supported".into()));
        }
        if txg >= snapshot.ds.creation_txg {
            return Err(SendError::NotEarlier);
        }
        let mut later = snapshot.clone();
        // A chain of origins gets older with each step.
        while later.dir_obj != from.dir_obj {
            match self.origin(&later)? {
                Some(origin)
                    if origin.ds.creation_txg >= txg
                        && origin.ds.creation_txg < later.ds.creation_txg =>
                {
                    later = origin;
                }
                _ => return Err(SendError::NotEarlier),
            }
        }
        Ok((guid, txg, from.dir_obj != snapshot.dir_obj))
    }

    /// The features of the stream (`setup_featureflags`).
    fn stream_features(
        &self,
        snapshot: &Dataset,
        objset: &Arc<ObjectSet>,
        options: SendOptions,
    ) -> Result<u64> {
        let active = self.features(snapshot)?;
        let has = |name: &str| active.iter().any(|(guid, _)| guid == name);
        for (name, what) in [
            ("com.datto:encryption", "encrypted datasets"),
            ("com.delphix:redacted_datasets", "redacted datasets"),
        ] {
            if has(name) {
                return Err(SendError::Refused(format!("{what} are not supported")));
            }
        }
        let is_fs = matches!(objset.phys().kind, cenote_format::dmu::ObjsetType::Zfs);
        let mut features = 0;
        if is_fs && self.version(objset)? >= VERSION_SA {
            features |= feature::SA_SPILL;
        }
        if options.large_blocks && has("org.open-zfs:large_blocks") {
            features |= feature::LARGE_BLOCKS;
        }
        if options.embedded && options.pool_embeds {
            features |= feature::EMBED_DATA;
        }
        if options.compressed {
            features |= feature::COMPRESSED;
        }
        if features & (feature::EMBED_DATA | feature::COMPRESSED) != 0 && options.pool_has_lz4 {
            features |= feature::LZ4;
        }
        if options.compressed && has("org.freebsd:zstd_compress") {
            features |= feature::ZSTD;
        }
        if has("org.zfsonlinux:large_dnode") {
            features |= feature::LARGE_DNODE;
        }
        if has("com.klarasystems:large_microzap") || has("org.zfsonlinux:longname") {
            let why = "long names and large micro ZAPs are not supported in streams";
            return Err(SendError::Refused(why.into()));
        }
        Ok(features)
    }

    /// The version of a file system.
    fn version(&self, objset: &Arc<ObjectSet>) -> Result<u64> {
        const MASTER_NODE: u64 = 1;
        let master = cenote_dmu::zap::Zap::open(&objset.object(MASTER_NODE)?)?;
        Ok(master.u64(b"VERSION")?.unwrap_or(0))
    }
}

/// Walks the blocks of dnodes that changed, and every object in them.
fn objects(objset: &Arc<ObjectSet>, after: u64, queue: &mut Queue<'_>) -> Result<()> {
    let meta = objset.special(META_DNODE)?;
    meta.walk_changed(after, &mut |changed: Changed| {
        let first = changed.first.saturating_mul(DNODES);
        if changed.bp.is_hole() {
            return queue
                .push(Item::FreeObjects { first, count: changed.span.saturating_mul(DNODES) });
        }
        // Slot 0 stands for the meta dnode, of which nothing is said.
        let mut number = first.max(1);
        while number < first.saturating_add(DNODES) {
            match objset.object(number) {
                Ok(object) => {
                    queue.object(&object)?;
                    blocks(&object, after, queue)?;
                    number += 1 + u64::from(object.dnode().extra_slots);
                }
                Err(Error::NoObject { .. }) => {
                    queue.push(Item::FreeObjects { first: number, count: 1 })?;
                    number += 1;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    })
}

/// The changed blocks of an object.
fn blocks(object: &cenote_dmu::Object, after: u64, queue: &mut Queue<'_>) -> Result<()> {
    let dnode = object.dnode();
    let (number, block_size, kind) = (object.number(), dnode.block_size, dnode.kind);
    object.walk_changed(after, &mut |changed: Changed| {
        // Holes behind the end are sent of metadata only.
        if !kind.is_metadata() && changed.first > dnode.max_block {
            return Ok(());
        }
        let Some(offset) = changed.first.checked_mul(block_size) else { return Ok(()) };
        if changed.bp.is_hole() {
            let end = changed.first.checked_add(changed.span);
            let end = end.and_then(|end| end.checked_mul(block_size)).unwrap_or(u64::MAX);
            let length = end.saturating_sub(offset);
            return queue.push(Item::Free { object: number, offset, length });
        }
        let (blkid, bp) = (changed.first, changed.bp);
        queue.push(Item::Data(Data { object: number, kind, blkid, offset, bp }))
    })?;
    match dnode.spill {
        Some(bp) if !bp.is_hole() && bp.logical_birth() > after => queue.spill(number, bp),
        _ => Ok(()),
    }
}

/// Dnode slots that the meta dnode has room for: numbers of objects are below.
fn max_objects(objset: &ObjectSet) -> u64 {
    debug_assert_eq!(DNODES * DNODE_SLOT as u64, cenote_format::dmu::DNODE_BLOCK);
    objset.max_object()
}

/// Whether bytes of this type are the same in either byte order.
fn has_no_order(kind: DmuType) -> bool {
    matches!(kind, DmuType::PLAIN_FILE_CONTENTS | DmuType::ZVOL)
}
