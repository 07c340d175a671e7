//! Send streams of snapshots (`dmu_send`, `zfs_ioc_send_new`).
//!
//! A stream says what changed since a transaction group: for a full stream the first of all, for an incremental
//! one that of the snapshot it starts from. The blocks of dnodes are walked in order; each that changed brings
//! an OBJECT record for every object in it, and FREEOBJECTS for every free slot. Behind its OBJECT record come
//! the object's changed blocks: WRITE, FREE for holes, SPILL. A stream that is resumed leaves out what lies before the
//! object and offset where it goes on, and says so in a list behind BEGIN.
//!
//! What an interrupted receive left can be sent on (`-S`): the part of the stream that had come, under the names and
//! guids that it had. It has no END, so that its receiver waits for the rest as well.
//!
//! | file | what |
//! |---|---|
//! | `walk` | finds what to send |
//! | `pipeline` | the threads: walking, reading and writing overlap |
//! | `emit` | makes records of it |
//! | `raw` | what a raw stream has besides |
//! | `redact` | what a stream leaves out, or an earlier one left out |
//! | `estimate` | how long a stream will be |
//! | [`package`] | which streams a package has, and what its head says |
//!
//! Invariants:
//! - What is in memory is bounded, whatever the snapshot holds (`pipeline`).
//! - The same snapshot gives the same bytes, which are OpenZFS's.
//! - A block that cannot be read ends the stream, without an END record: no receiver takes it for whole.

mod emit;
mod estimate;
pub mod package;
mod pipeline;
mod raw;
mod redact;
mod walk;

use crate::crypt::keydata;
use crate::traverse::Mark;
use crate::{Dataset, DatasetKind, Dsl};
use cenote_dmu::{Error, ObjectSet};
use cenote_format::dmu::ObjsetType;
use cenote_format::dsl::DS_FLAG_CI_DATASET;
use cenote_format::encode::EncodeError;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::stream::{
    Begin, FLAG_CI_DATA, FLAG_CLONE, FLAG_FREERECORDS, FLAG_SPILL_BLOCK, REDACT_FROM_SNAPS,
    REDACT_SNAPS, feature,
};
use cenote_store::Store;
use emit::{Emitter, Output};
use redact::Lists;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// What the name of a snapshot ends with in the stream of a head, which has no snapshot name (`dmu_send_impl`).
pub const HEAD: &str = "@--head--";
/// Spreads the bits of a word.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
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
    /// Blocks are sent as they are on disk (`-w`): blocks of encrypted datasets encrypted.
    pub raw: bool,
    /// The pool's feature `embedded_data` is active.
    pub pool_embeds: bool,
    /// The pool's feature `lz4_compress` is active.
    pub pool_has_lz4: bool,
    /// Where a stream that was interrupted goes on (`-t`).
    pub resume: Option<Resume>,
    /// What an interrupted receive left is sent, as far as it had come (`-S`). The dataset is that of [`Dsl::saved`].
    pub saved: bool,
    /// What the redaction list in this object of the MOS names is left out (`--redact`).
    pub redact: Option<u64>,
}

/// Where a stream goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resume {
    /// The object that the receiver had last.
    pub object: u64,
    /// Byte in it.
    pub offset: u64,
}

/// How far a stream is (`dmu_sendstatus_t`).
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes written.
    pub bytes: AtomicU64,
    /// Blocks, holes and objects that were visited.
    pub blocks: AtomicU64,
}

/// What the parts of a stream have in common.
struct Params {
    /// The features of BEGIN.
    features: u64,
    /// What was born later is sent.
    from_txg: u64,
    resume: Option<Resume>,
    /// The last object that is sent of a dataset that was received in part.
    last: Option<u64>,
}

/// A stream before its first record.
struct Prepared {
    objset: Arc<ObjectSet>,
    params: Params,
    begin: Begin,
    /// The list behind BEGIN.
    list: Vec<u8>,
    /// What is left out, and what was.
    lists: Lists,
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
    /// A stream cannot go on in an object that is not there.
    #[error("object {0}, at which the stream is to be resumed, does not exist")]
    NothingToResume(u64),
    /// Micro ZAPs of more than 128 KiB cannot be sent in parts.
    #[error(
        "source snapshot contains large microzaps, need -L (--large-block) or -w (--raw) to generate stream"
    )]
    LargeMicroZap,
    /// The start of an incremental stream does not come before its end.
    #[error("not an earlier snapshot from the same fs")]
    NotEarlier,
    /// No receive was interrupted that left something.
    #[error("it has no partially-received state")]
    NothingSaved,
    /// What is not supported.
    #[error("{0}")]
    Refused(String),
}

type Result<T> = std::result::Result<T, SendError>;

/// The guid of the snapshot that a stream of `dataset` makes: that of a snapshot is its own. That of a head follows from its
/// guid and its root block, and is another one as soon as a transaction group has changed the head. So a stream is resumed
/// from the same contents only. (OpenZFS takes the guid of the head.)
pub fn stream_guid(dataset: &Dataset) -> u64 {
    let guid = dataset.ds.guid;
    if !dataset.is_head() {
        return guid;
    }
    let mix = |guid: u64, word: &u64| (guid ^ word).wrapping_mul(ODD).rotate_left(31);
    dataset.ds.bp.0.iter().fold(guid, mix).max(1)
}

impl Dsl {
    /// Writes the stream of `dataset` to `out`; an incremental one from `from`, a snapshot or a bookmark. `dataset` is
    /// a snapshot, or a head that does not change meanwhile.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send(
        &self,
        dataset: &Dataset,
        from: Option<&Dataset>,
        options: SendOptions,
        out: &mut dyn Write,
    ) -> Result<()> {
        self.send_and_tell(dataset, from, options, out, &Progress::default())
    }

    /// As [`Dsl::send`]; `progress` is told how far the stream is.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send_and_tell(
        &self,
        dataset: &Dataset,
        from: Option<&Dataset>,
        options: SendOptions,
        out: &mut dyn Write,
        progress: &Progress,
    ) -> Result<()> {
        let Prepared { objset, params, begin, list, lists } =
            self.prepare(dataset, from, options)?;
        let out = Some(Output { to: out, progress });
        let mut emitter = Emitter::new(objset.id(), &params, (begin, &list), out)?;
        pipeline::run(&objset, &params, lists, &mut emitter)?;
        emitter.finish(!options.saved).map(|_| ())
    }

    /// What is known of a stream before it is made (`dmu_send_impl`).
    fn prepare(
        &self,
        dataset: &Dataset,
        from: Option<&Dataset>,
        options: SendOptions,
    ) -> Result<Prepared> {
        let (to_name, to_guid, last) = self.target(dataset, options.saved)?;
        let start = from.map(|from| self.start(dataset, from)).transpose()?;
        let is_encrypted = self.is_key_loaded(dataset)?;
        let is_raw = options.raw && is_encrypted.is_some();
        if is_raw && options.saved {
            let why = "raw streams of what an interrupted receive left are not supported";
            return Err(SendError::Refused(why.into()));
        }
        let objset = match is_raw {
            true => self.open_raw(dataset)?,
            false => self.open_objset(dataset)?,
        };
        let (from_guid, from_txg, clone) = start.unwrap_or((0, 0, false));
        let find = || self.stream_features(dataset, &objset, options);
        let mut features = if is_raw { Store::without_keys(find)? } else { find()? };
        let mut flags = FLAG_FREERECORDS | FLAG_SPILL_BLOCK;
        if clone {
            flags |= FLAG_CLONE;
        }
        if dataset.ds.flags & DS_FLAG_CI_DATASET != 0 {
            flags |= FLAG_CI_DATA;
        }
        let kind = match objset.phys().kind {
            ObjsetType::Zfs => 2,
            ObjsetType::Zvol => 3,
            _ => return Err(SendError::Refused("neither a file system nor a volume".into())),
        };
        let mut list = NvList::default();
        let begin_at = match options.resume {
            Some(at) => Some(mark(&objset, is_raw, at)?),
            None => None,
        };
        let lists = self.redaction_lists((dataset, from), options, begin_at, &mut list)?;
        if let Some(at) = options.resume {
            features |= feature::RESUMING;
            list.set("resume_object", NvValue::Uint64(at.object));
            list.set("resume_offset", NvValue::Uint64(at.offset));
        }
        if is_raw {
            let keys = self.key_data(&objset, dataset, from)?;
            list.set(keydata::NAME, NvValue::NvList(keys.to_list()));
        }
        let list = if list.pairs.is_empty() { Vec::new() } else { list.encode_native() };
        let begin = Begin {
            header_type: 1,
            features,
            creation_time: dataset.ds.creation_time,
            kind,
            flags,
            to_guid,
            from_guid,
            to_name: to_name.into_bytes(),
            payload: list.len() as u32,
        };
        let params = Params { features, from_txg, resume: options.resume, last };
        Ok(Prepared { objset, params, begin, list, lists })
    }

    /// The lists that go beside the walk, from `begin` on. What they were made by is said in the list behind BEGIN, and so is
    /// what the dataset and the start are redacted by.
    fn redaction_lists(
        &self,
        (dataset, from): (&Dataset, Option<&Dataset>),
        options: SendOptions,
        begin: Option<Mark>,
        list: &mut NvList,
    ) -> Result<Lists> {
        let open = |object: u64| -> Result<_> {
            let head = self.redaction_list(object)?;
            match head.is_complete() {
                true => Ok((head.snaps, self.redaction_entries(object, begin)?)),
                false => Err(SendError::Refused("incomplete redaction bookmark provided".into())),
            }
        };
        let (mut redact, mut left_out) = (None, None);
        let by = match options.redact {
            Some(object) => {
                let (snaps, entries) = open(object)?;
                redact = Some(entries);
                Some(snaps)
            }
            None => self.redacted_by(dataset)?,
        };
        let bookmark = from.and_then(|from| from.bookmark);
        let from_by = match (from, bookmark.map(|bookmark| bookmark.redaction)) {
            (_, Some(object)) if object != 0 => {
                let (snaps, entries) = open(object)?;
                left_out = Some(entries);
                Some(snaps)
            }
            (Some(from), None) => self.redacted_by(from)?,
            _ => None,
        };
        for (name, guids) in [(REDACT_SNAPS, by), (REDACT_FROM_SNAPS, from_by)] {
            if let Some(guids) = guids {
                list.set(name, NvValue::Uint64Array(guids));
            }
        }
        Lists::new(redact, left_out)
    }

    /// Name and guid of what is sent. With `saved` they are the received stream's, and the last object
    /// that came of it is told too.
    fn target(&self, dataset: &Dataset, saved: bool) -> Result<(String, u64, Option<u64>)> {
        if saved {
            let token = self.token_of(dataset)?.ok_or(SendError::NothingSaved)?;
            return Ok((token.to_name, token.to_guid, Some(token.object)));
        }
        let name = match dataset.kind {
            DatasetKind::Bookmark => {
                return Err(SendError::Refused("bookmarks cannot be sent".into()));
            }
            DatasetKind::Snapshot => dataset.name.clone(),
            _ if dataset.is_inconsistent() => {
                let why = "it was received in part; 'zfs send -S' sends what has come";
                return Err(SendError::Refused(why.into()));
            }
            DatasetKind::Filesystem | DatasetKind::Volume => format!("{}{HEAD}", dataset.name),
        };
        Ok((name, stream_guid(dataset), None))
    }

    /// Guid and transaction group that an incremental stream starts from, and whether they come from another
    /// dataset, which `snapshot` was cloned from (`dsl_dataset_is_before`).
    fn start(&self, snapshot: &Dataset, from: &Dataset) -> Result<(u64, u64, bool)> {
        let (guid, txg) = match &from.bookmark {
            Some(bookmark) => (bookmark.guid, bookmark.creation_txg),
            None if from.kind == DatasetKind::Snapshot => (from.ds.guid, from.ds.creation_txg),
            None => return Err(SendError::Refused("incremental source must be a snapshot".into())),
        };
        // From a redaction bookmark of the snapshot itself what it leaves out is sent, as far as this stream does not.
        let of_itself =
            from.bookmark.is_some_and(|b| b.redaction != 0 && b.guid == snapshot.ds.guid);
        if !of_itself && !self.is_before(snapshot, from.dir_obj, txg)? {
            return Err(SendError::NotEarlier);
        }
        // What is received below a head becomes a snapshot of that.
        let own = match snapshot.name.rsplit_once('/') {
            Some((_, crate::resume::CLONE)) => snapshot.dir.parent,
            _ => snapshot.dir_obj,
        };
        Ok((guid, txg, from.dir_obj != own))
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
        let key = self.is_key_loaded(snapshot)?;
        match key {
            None => {}
            Some(_) if options.raw => {}
            Some(false) => return Err(SendError::Refused("source key must be loaded".into())),
            // It goes out decrypted.
            Some(true) => {}
        }
        let is_fs = matches!(objset.phys().kind, ObjsetType::Zfs);
        let mut features = if options.raw && key.is_some() { feature::RAW } else { 0 };
        if options.redact.is_some() {
            features |= feature::REDACTED;
        }
        if is_fs && self.version(objset)? >= VERSION_SA {
            features |= feature::SA_SPILL;
        }
        let is_raw = options.raw;
        if (options.large_blocks || is_raw) && has("org.open-zfs:large_blocks") {
            features |= feature::LARGE_BLOCKS;
        }
        // Nothing lies in the pointers of an encrypted dataset; what does is refused when it is read.
        if (options.embedded || is_raw) && options.pool_embeds && key.is_none() {
            features |= feature::EMBED_DATA;
        }
        let compressed = options.compressed || is_raw;
        if compressed {
            features |= feature::COMPRESSED;
        }
        if features & (feature::EMBED_DATA | feature::COMPRESSED | feature::RAW) != 0
            && options.pool_has_lz4
        {
            features |= feature::LZ4;
        }
        if compressed && has("org.freebsd:zstd_compress") {
            features |= feature::ZSTD;
        }
        if has("org.zfsonlinux:large_dnode") {
            features |= feature::LARGE_DNODE;
        }
        if has("org.zfsonlinux:longname") {
            features |= feature::LONGNAME;
        }
        if has("com.klarasystems:large_microzap") {
            if features & feature::LARGE_BLOCKS == 0 {
                return Err(SendError::LargeMicroZap);
            }
            features |= feature::LARGE_MICROZAP;
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

/// The block at which a stream goes on (`setup_resume_points`).
fn mark(objset: &Arc<ObjectSet>, is_raw: bool, at: Resume) -> Result<Mark> {
    let look = || objset.object(at.object);
    match if is_raw { Store::without_keys(look) } else { look() } {
        Err(Error::NoObject { .. }) => Err(SendError::NothingToResume(at.object)),
        found => {
            let block_size = found?.dnode().block_size.max(1);
            Ok(Mark { object: at.object, blkid: at.offset / block_size })
        }
    }
}

/// Dnode slots that the meta dnode has room for: numbers of objects are below.
fn max_objects(objset: &ObjectSet) -> u64 {
    objset.max_object()
}
