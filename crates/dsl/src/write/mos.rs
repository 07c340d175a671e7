//! Objects of the pending MOS, read and written as structures.
//!
//! Directories and datasets are bonus buffers. Their objects have no data, until a field is added
//! that has no place in the structure: then the object becomes a ZAP of such fields (it is
//! *zapified*), and the feature `extensible_dataset` has one use more.

use super::{DslWriteError, Result, Tx};
use cenote_dmu::Object;
use cenote_dmu::write::zap::ZapFormat;
use cenote_dmu::write::{NewObject, WriteError, ZapMut};
use cenote_dmu::zap::{Zap, ZapEntry};
use cenote_format::dmu::DmuType;
use cenote_format::dsl::{DslDatasetPhys, DslDirPhys};
use cenote_format::encode::zap::{Key, Value};
use cenote_format::{ByteOrder, Bytes, invariant};

/// The object directory.
pub(super) const DIRECTORY: u64 = 1;
/// A ZAP of metadata that has no type of its own (`DMU_OTN_ZAP_METADATA`).
pub(super) const ZAP_METADATA: DmuType = DmuType(0xc4);
/// 64-bit integers of metadata that have no type of their own (`DMU_OTN_UINT64_METADATA`).
pub(super) const WORDS_METADATA: DmuType = DmuType(0xc3);
/// Bytes of the first block of a new ZAP, and of objects without data.
pub(super) const SMALL_BLOCK: u64 = 512;
/// Levels of directories that names allow, and some more: where a chain of parents ends.
pub(super) const MAX_DEPTH: usize = 256;

/// The MOS is not as it must be.
pub(super) fn corrupt(object: u64, why: impl Into<String>) -> DslWriteError {
    WriteError::Invalid { object, why: why.into() }.into()
}

fn key(name: &str) -> Key<'_> {
    Key::Name(name.as_bytes())
}

impl Tx<'_> {
    /// A random number that is not 0.
    pub(super) fn random(&self) -> Result<u64> {
        self.chance.number().map_err(|e| DslWriteError::Invalid(e.to_string()))
    }

    /// A random number of 56 bits that is not 0, as `ds_fsid_guid` is.
    pub(super) fn random_fsid(&self) -> Result<u64> {
        Ok((self.random()? >> 8).max(1))
    }

    /// The format of a new ZAP: the hash differs from ZAP to ZAP.
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn zap_format(&self) -> Result<ZapFormat> {
        Ok(ZapFormat { salt: self.random()? | 1, ..ZapFormat::default() })
    }

    /// Makes a change that is left out if what it needs cannot be read; then `what` is said in the log,
    /// and all is as it was.
    ///
    /// # Errors
    /// Errors of `change`, unless something is unreadable.
    pub fn unless_unreadable<T>(
        &mut self,
        what: &str,
        change: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.whole(change) {
            Ok(done) => Ok(Some(done)),
            Err(DslWriteError::Unreadable(why)) => {
                tracing::warn!("{what}: {why}");
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// Makes a change whole or not at all: it can be synced, or all is as it was.
    ///
    /// # Errors
    /// Errors of `change`; what its sync needs cannot be read.
    pub fn whole<T>(&mut self, change: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let (frees, obsolete, moves) = (self.frees.len(), self.obsolete.len(), self.moves.len());
        self.mos.begin_change();
        let done = change(self).and_then(|done| {
            self.mos.check_change()?;
            Ok(done)
        });
        let now = (self.frees.len(), self.obsolete.len());
        invariant!(
            frees <= now.0 && obsolete <= now.1,
            "a change takes back what others free: {frees} and {obsolete} before, {now:?} after it"
        );
        match done {
            Ok(_) => self.mos.keep_change(),
            Err(_) => {
                self.mos.undo_change();
                self.frees.truncate(frees);
                self.obsolete.truncate(obsolete);
                self.moves.truncate(moves);
            }
        }
        done
    }

    /// An object as it is now.
    pub(super) fn view(&mut self, object: u64) -> Result<Object> {
        Ok(self.mos.view(object)?)
    }

    fn bonus(&mut self, object: u64, kind: DmuType) -> Result<Vec<u8>> {
        let dnode = self.mos.dnode(object)?;
        if dnode.bonus_kind != kind {
            return Err(corrupt(object, format!("{:?}, not {kind:?}", dnode.bonus_kind)));
        }
        Ok(dnode.bonus.clone())
    }

    /// A directory.
    pub(super) fn dir(&mut self, object: u64) -> Result<DslDirPhys> {
        let bonus = self.bonus(object, DmuType::DSL_DIR)?;
        DslDirPhys::decode(&Bytes::new(&bonus, ByteOrder::Little, "DSL directory"))
            .map_err(|e| corrupt(object, e.to_string()))
    }

    pub(super) fn set_dir(&mut self, object: u64, dir: &DslDirPhys) -> Result<()> {
        Ok(self.mos.set_bonus(object, DmuType::DSL_DIR, &dir.encode())?)
    }

    /// Changes a directory.
    pub(super) fn edit_dir(
        &mut self,
        object: u64,
        change: impl FnOnce(&mut DslDirPhys),
    ) -> Result<()> {
        let mut dir = self.dir(object)?;
        change(&mut dir);
        self.set_dir(object, &dir)
    }

    /// The directory and all above it, up to the root, with their objects.
    pub(super) fn ancestry(&mut self, object: u64) -> Result<Vec<(u64, DslDirPhys)>> {
        let (mut line, mut at) = (Vec::new(), object);
        while at != 0 {
            if line.len() >= MAX_DEPTH {
                return Err(corrupt(object, "directory is not below the root"));
            }
            let dir = self.dir(at)?;
            let parent = dir.parent;
            line.push((at, dir));
            at = parent;
        }
        Ok(line)
    }

    /// A dataset.
    pub(super) fn dataset(&mut self, object: u64) -> Result<DslDatasetPhys> {
        let bonus = self.bonus(object, DmuType::DSL_DATASET)?;
        DslDatasetPhys::decode(&Bytes::new(&bonus, ByteOrder::Little, "DSL dataset"))
            .map_err(|e| corrupt(object, e.to_string()))
    }

    pub(super) fn set_dataset(&mut self, object: u64, ds: &DslDatasetPhys) -> Result<()> {
        Ok(self.mos.set_bonus(object, DmuType::DSL_DATASET, &ds.encode())?)
    }

    /// Changes a dataset.
    pub(super) fn edit_dataset(
        &mut self,
        object: u64,
        change: impl FnOnce(&mut DslDatasetPhys),
    ) -> Result<()> {
        let mut ds = self.dataset(object)?;
        change(&mut ds);
        self.set_dataset(object, &ds)
    }

    /// A live file system or volume. Errors: `Invalid` for a snapshot.
    pub(super) fn head(&mut self, object: u64) -> Result<DslDatasetPhys> {
        let ds = self.dataset(object)?;
        if ds.num_children != 0 || ds.snap_names == 0 {
            return Err(DslWriteError::Invalid("is a snapshot".into()));
        }
        Ok(ds)
    }

    /// A snapshot. Errors: `Invalid` for a file system or volume.
    pub(super) fn snapshot(&mut self, object: u64) -> Result<DslDatasetPhys> {
        let ds = self.dataset(object)?;
        if ds.num_children == 0 {
            return Err(DslWriteError::Invalid("is no snapshot".into()));
        }
        Ok(ds)
    }

    /// A new, empty ZAP.
    pub(super) fn new_zap(&mut self, new: &NewObject, norm_flags: u64) -> Result<u64> {
        let format = ZapFormat { norm_flags, ..self.zap_format()? };
        Ok(ZapMut::create(self.mos, new, format)?)
    }

    /// A new, empty ZAP without a bonus buffer.
    pub(super) fn plain_zap(&mut self, kind: DmuType) -> Result<u64> {
        self.new_zap(&NewObject::new(kind, SMALL_BLOCK), 0)
    }

    /// All entries of a ZAP; 0 is an empty one.
    pub(super) fn zap_entries(&mut self, object: u64) -> Result<Vec<ZapEntry>> {
        if object == 0 {
            return Ok(Vec::new());
        }
        Ok(Zap::open(&self.view(object)?)?.entries()?)
    }

    /// The numbers of all entries of a ZAP, each of which is one; 0 is an empty one.
    pub(super) fn zap_numbers(&mut self, object: u64) -> Result<Vec<u64>> {
        let number = |entry: &ZapEntry| {
            let why = || format!("entry {:?} is not one integer", crate::name_of(entry));
            entry.u64().ok_or_else(|| corrupt(object, why()))
        };
        self.zap_entries(object)?.iter().map(number).collect()
    }

    /// Whether a ZAP has no entries.
    pub(super) fn zap_is_empty(&mut self, object: u64) -> Result<bool> {
        Ok(Zap::open(&self.view(object)?)?.entries_from(0, 1)?.is_empty())
    }

    /// Bytes of each integer of an entry, and the integers.
    pub(super) fn zap_get(&mut self, object: u64, name: &str) -> Result<Option<(u8, Vec<u64>)>> {
        Ok(ZapMut::open(self.mos, object).lookup(&key(name))?)
    }

    /// An entry that is one integer.
    pub(super) fn zap_number(&mut self, object: u64, name: &str) -> Result<Option<u64>> {
        match self.zap_get(object, name)? {
            None => Ok(None),
            Some((8, words)) if words.len() == 1 => Ok(words.first().copied()),
            Some(_) => Err(corrupt(object, format!("entry {name:?} is not one integer"))),
        }
    }

    /// Adds an entry. Errors: `Exists`.
    pub(super) fn zap_add(&mut self, object: u64, name: &str, number: u64) -> Result<()> {
        match ZapMut::open(self.mos, object).add(&key(name), &Value::U64(&[number])) {
            Err(WriteError::Exists(_)) => Err(DslWriteError::Exists),
            done => Ok(done?),
        }
    }

    /// Adds an entry or gives it a new value.
    pub(super) fn zap_put(&mut self, object: u64, name: &str, value: &Value<'_>) -> Result<()> {
        Ok(ZapMut::open(self.mos, object).update(&key(name), value)?)
    }

    /// Adds an entry of one integer or gives it a new value.
    pub(super) fn zap_set(&mut self, object: u64, name: &str, number: u64) -> Result<()> {
        self.zap_put(object, name, &Value::U64(&[number]))
    }

    /// Removes an entry; false if it did not exist.
    pub(super) fn zap_remove(&mut self, object: u64, name: &str) -> Result<bool> {
        match ZapMut::open(self.mos, object).remove(&key(name)) {
            Err(WriteError::NoEntry(_)) => Ok(false),
            done => Ok(done.map(|()| true)?),
        }
    }

    /// Whether an object is a ZAP of further fields.
    pub(super) fn is_zapified(&mut self, object: u64) -> Result<bool> {
        let kind = self.mos.dnode(object)?.kind;
        Ok(kind.is_new() && kind.is_zap())
    }

    /// A further field of a directory or dataset.
    pub(super) fn field(&mut self, object: u64, name: &str) -> Result<Option<(u8, Vec<u64>)>> {
        if self.is_zapified(object)? { self.zap_get(object, name) } else { Ok(None) }
    }

    /// A further field that is one integer.
    pub(super) fn field_number(&mut self, object: u64, name: &str) -> Result<Option<u64>> {
        if self.is_zapified(object)? { self.zap_number(object, name) } else { Ok(None) }
    }
}
