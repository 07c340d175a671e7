//! ZAPs (`zap_lookup`, `zap_cursor_retrieve`): tables in objects, from names (or arrays of 64-bit words) to
//! arrays of integers.
//!
//! [`Zap::open`] looks at the first block. A *micro* ZAP is indexed once, by hash, and the index
//! is kept in the object set's cache (that of one with pending changes, by the open object), so that
//! neither a lookup nor a listing scans the block. A *fat*
//! ZAP is read as it is used: a lookup reads one pointer of the pointer table and one leaf.
//!
//! Both list their entries in the order of (hash, collision differentiator), see [`cursor`].
//!
//! Names match exactly, or, in a ZAP with normalization flags, under these flags
//! ([`Zap::lookup_norm`]). In such a ZAP the hash is that of the normalized name, so names that
//! differ only in case or Unicode form are neighbours.

pub mod cursor;
mod fat;
mod micro;
mod stats;

pub(crate) use micro::MicroZap;
pub use stats::{Describe, FatStats, HISTOGRAM};

use crate::{Error, Object, Result};
use cenote_format::Bytes;
use cenote_format::zap::hash::{hash_name, hash_words};
use cenote_format::zap::norm::{TO_UPPER, flags_valid, normalize};
use cenote_format::zap::{BlockKind, FLAG_UINT64_KEY, block_kind};
use cursor::Position;
use fat::FatZap;
use micro::PendingMicro;
use std::borrow::Cow;
use std::sync::Arc;

/// Entries that [`Zap::iter`] fetches at once.
const BATCH: usize = 512;

/// One entry of a ZAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZapEntry {
    /// The key: a name without its closing NUL, or the words of a key, each big-endian.
    pub name: Vec<u8>,
    /// Bytes of each integer of the value: 1, 2, 4 or 8.
    pub int_size: u8,
    /// The value.
    pub value: Vec<u64>,
    /// Position after this entry: pass it to [`Zap::entries_from`] to go on.
    pub cursor: u64,
}

impl ZapEntry {
    /// The value, if it is a single integer.
    pub fn u64(&self) -> Option<u64> {
        match self.value.as_slice() {
            [one] => Some(*one),
            _ => None,
        }
    }

    /// The value as bytes: of each integer its lowest, so for 1-byte integers the value itself.
    pub fn bytes(&self) -> Vec<u8> {
        self.value.iter().map(|v| *v as u8).collect()
    }

    /// The key of a ZAP with 64-bit keys, as words.
    pub fn words(&self) -> Vec<u64> {
        let word = |b: &[u8]| b.iter().fold(0u64, |w, b| w << 8 | u64::from(*b));
        self.name.chunks(8).map(word).collect()
    }
}

/// How a name may match besides being equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Letters match in either case, if the ZAP folds case at all. (Without it the match is
    /// `MT_NORMALIZE | MT_MATCH_CASE`.)
    pub fold_case: bool,
}

/// What decides whether an entry is the wanted one.
pub(crate) enum Wanted<'a> {
    /// These bytes.
    Exact(&'a [u8]),
    /// A name that normalizes to this under these flags.
    Normalized(Cow<'a, [u8]>, u64),
}

impl Wanted<'_> {
    pub(crate) fn is(&self, name: &[u8]) -> bool {
        match self {
            Wanted::Exact(bytes) => name == *bytes,
            Wanted::Normalized(form, flags) => normalize(name, *flags) == *form,
        }
    }
}

/// An open ZAP: cheap to clone.
#[derive(Clone, Debug)]
pub struct Zap {
    object: Object,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Micro(Arc<MicroZap>),
    Pending(Arc<PendingMicro>),
    Fat(Arc<FatZap>),
}

impl Zap {
    /// Opens the ZAP in `object`.
    pub fn open(object: &Object) -> Result<Zap> {
        // An index may only be kept for what is on disk.
        let cached = object.overlay().is_none_or(|o| o.on_disk && o.is_clean(0));
        let objset = object.objset();
        if let Some(micro) = objset.micro_zap(object.number()).filter(|_| cached) {
            return Ok(Zap { object: object.clone(), body: Body::Micro(micro) });
        }
        let tree = object.tree();
        if !object.dnode().kind.is_zap() {
            return Err(tree.corrupt(format!("a {} is no ZAP", object.dnode().kind.name())));
        }
        let Some(block) = object.block(0)? else {
            return Err(tree.corrupt("ZAP without a header"));
        };
        let data = block.data.bytes();
        let bytes = Bytes::new(&data, block.order, "ZAP");
        let body = match block_kind(&bytes).map_err(|e| tree.decode_error(e))? {
            BlockKind::Micro => match object.overlay().and_then(|o| o.micro.clone()) {
                Some(index) if !cached => {
                    Body::Pending(Arc::new(PendingMicro::open(object, &block, index)?))
                }
                _ => {
                    let micro = Arc::new(MicroZap::open(object, &block)?);
                    if cached {
                        objset.keep_micro_zap(object.number(), &micro);
                    }
                    Body::Micro(micro)
                }
            },
            _ => Body::Fat(Arc::new(FatZap::open(object, &block)?)),
        };
        let zap = Zap { object: object.clone(), body };
        if !flags_valid(zap.norm_flags()) {
            return Err(
                tree.corrupt(format!("ZAP with normalization flags {:#x}", zap.norm_flags()))
            );
        }
        Ok(zap)
    }

    /// The object that holds the table.
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Whether it is a micro ZAP.
    pub fn is_micro(&self) -> bool {
        matches!(self.body, Body::Micro(_) | Body::Pending(_))
    }

    /// `ZAP_FLAG_*`; a micro ZAP has no flags.
    pub fn flags(&self) -> u64 {
        match &self.body {
            Body::Micro(_) | Body::Pending(_) => 0,
            Body::Fat(fat) => fat.header.flags,
        }
    }

    /// Whether keys are arrays of 64-bit words.
    pub fn has_word_keys(&self) -> bool {
        self.flags() & FLAG_UINT64_KEY != 0
    }

    /// Normalization flags, see [`cenote_format::zap::norm`].
    pub fn norm_flags(&self) -> u64 {
        match &self.body {
            Body::Micro(micro) => micro.norm_flags,
            Body::Pending(micro) => micro.norm_flags,
            Body::Fat(fat) => fat.header.norm_flags,
        }
    }

    /// Number of entries, as the header of a fat ZAP says (`zap_count`).
    pub fn len(&self) -> u64 {
        match &self.body {
            Body::Micro(micro) => micro.len() as u64,
            Body::Pending(micro) => micro.len() as u64,
            Body::Fat(fat) => fat.header.entries,
        }
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn salt(&self) -> u64 {
        match &self.body {
            Body::Micro(micro) => micro.salt,
            Body::Pending(micro) => micro.salt,
            Body::Fat(fat) => fat.header.salt,
        }
    }

    /// The entry with exactly this name (`zap_lookup`).
    pub fn lookup(&self, name: &[u8]) -> Result<Option<ZapEntry>> {
        self.find(name, &Wanted::Exact(name))
    }

    /// The first entry whose name matches under the ZAP's own normalization (`zap_lookup_norm`). In a ZAP without
    /// normalization as [`Zap::lookup`].
    pub fn lookup_norm(&self, name: &[u8], how: Match) -> Result<Option<ZapEntry>> {
        let flags = self.norm_flags();
        if flags == 0 {
            return self.lookup(name);
        }
        let flags = if how.fold_case { flags } else { flags & !TO_UPPER };
        self.find(name, &Wanted::Normalized(normalize(name, flags), flags))
    }

    fn find(&self, name: &[u8], wanted: &Wanted<'_>) -> Result<Option<ZapEntry>> {
        if self.has_word_keys() {
            return Err(self.error("looked up by name, but its keys are words"));
        }
        let hash = hash_name(self.salt(), self.flags(), &normalize(name, self.norm_flags()));
        match &self.body {
            Body::Micro(micro) => Ok(micro.find(hash, wanted)),
            Body::Pending(micro) => self.decoded(micro.find(hash, wanted)),
            Body::Fat(fat) => fat.find(&self.object, hash, wanted),
        }
    }

    /// The value of `name`, which must be a single integer.
    pub fn u64(&self, name: &[u8]) -> Result<Option<u64>> {
        let Some(entry) = self.lookup(name)? else { return Ok(None) };
        match entry.u64() {
            Some(value) => Ok(Some(value)),
            None => {
                let (name, n) = (String::from_utf8_lossy(name), entry.value.len());
                Err(self.error(format!("entry {name:?}: {n} integers instead of one")))
            }
        }
    }

    /// The entry with this key, in a ZAP whose keys are arrays of 64-bit words (dedup and block
    /// cloning tables) (`zap_lookup_uint64`).
    pub fn lookup_words(&self, key: &[u64]) -> Result<Option<ZapEntry>> {
        let Body::Fat(fat) = &self.body else {
            return Err(self.error("looked up by words, but its keys are names"));
        };
        if !self.has_word_keys() {
            return Err(self.error("looked up by words, but its keys are names"));
        }
        let hash = hash_words(self.salt(), self.flags(), key);
        let key: Vec<u8> = key.iter().flat_map(|w| w.to_be_bytes()).collect();
        fat.find(&self.object, hash, &Wanted::Exact(&key))
    }

    /// Reads the leaves that these keys, arrays of 64-bit words, would be in, together (`zap_prefetch_uint64`). What
    /// cannot be read is an error when it is looked up.
    pub fn load_words<'k>(&self, keys: impl Iterator<Item = &'k [u64]>) {
        let Body::Fat(fat) = &self.body else { return };
        let hashes = keys.map(|key| hash_words(self.salt(), self.flags(), key));
        fat.load_leaves(&self.object, hashes);
    }

    /// Up to `max` entries from position `cursor` (0: the start), in the order of the hash
    /// (`zap_cursor_retrieve`).
    pub fn entries_from(&self, cursor: u64, max: usize) -> Result<Vec<ZapEntry>> {
        let Some(position) = Position::unpack(cursor, self.flags()) else { return Ok(Vec::new()) };
        match &self.body {
            Body::Micro(micro) => Ok(micro.entries_from(position, max)),
            Body::Pending(micro) => self.decoded(micro.entries_from(position, max)),
            Body::Fat(fat) => fat.entries_from(&self.object, position, max),
        }
    }

    /// All entries.
    pub fn entries(&self) -> Result<Vec<ZapEntry>> {
        self.entries_from(0, usize::MAX)
    }

    /// All entries, fetched as they are asked for; ends after the first error.
    pub fn iter(&self) -> impl Iterator<Item = Result<ZapEntry>> + use<'_> {
        let mut cursor = 0;
        let mut batch = Vec::new().into_iter();
        std::iter::from_fn(move || {
            if let Some(entry) = batch.next() {
                return Some(Ok(entry));
            }
            match self.entries_from(cursor, BATCH) {
                Ok(entries) => {
                    cursor = entries.last().map_or(cursor::END, |e: &ZapEntry| e.cursor);
                    batch = entries.into_iter();
                    batch.next().map(Ok)
                }
                Err(error) => {
                    cursor = cursor::END;
                    Some(Err(error))
                }
            }
        })
    }

    /// What `zdb -dddd` prints about the table (`zap_get_stats`). Reads all leafs of a fat ZAP; those that cannot be
    /// read are left out.
    pub fn describe(&self) -> Describe {
        let fat = match &self.body {
            Body::Micro(_) | Body::Pending(_) => None,
            Body::Fat(fat) => Some(fat.stats(&self.object)),
        };
        Describe {
            block_size: self.object.dnode().block_size,
            entries: self.len(),
            salt: self.salt(),
            norm_flags: self.norm_flags(),
            flags: self.flags(),
            fat,
        }
    }

    fn decoded<T>(&self, result: cenote_format::Result<T>) -> Result<T> {
        result.map_err(|e| self.object.tree().decode_error(e))
    }

    fn error(&self, why: impl Into<String>) -> Error {
        self.object.tree().corrupt(format!("ZAP {}", why.into()))
    }
}
