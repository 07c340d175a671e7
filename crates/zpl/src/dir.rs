//! Directories: ZAPs whose values are an object number (low 48 bits) and a file type (top 4 bits).
//!
//! How names compare is in two places: the master node says what a lookup asks for (exact, or up to
//! Unicode normalization and case), and each directory's ZAP says how its names were hashed. A file
//! system without normalization and with case-sensitive names looks names up exactly.
//!
//! In a fixed file system directories that were used lately stay open ([`directories`](crate::directories)).

use crate::error::show;
use crate::fs::{CaseSensitivity, FileSystem};
use crate::sa::ZplAttr;
use crate::{Error, Result};
use cenote_dmu::write::zap::AtHand;
use cenote_dmu::zap::{Match, Zap};
use cenote_format::dmu::DmuType;
use std::sync::Arc;

/// Entries read at a time when a directory is searched.
const BATCH: usize = 1024;
/// Longest name that a directory can hold, in bytes.
pub(crate) const MAX_NAME: usize = 1023;
/// Longest name without the feature for longer ones.
const USUAL_NAME: usize = 255;

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name: any bytes but `/` and NUL.
    pub name: Vec<u8>,
    /// Object number.
    pub ino: u64,
    /// File type, as `DT_*`; 0 if the entry does not tell.
    pub kind: u8,
    /// Pass to [`FileSystem::readdir`] to go on after this entry.
    pub cookie: u64,
}

/// Object number in an entry's value (`ZFS_DIRENT_OBJ`).
pub(crate) fn entry_object(value: u64) -> u64 {
    value & 0x0000_ffff_ffff_ffff
}

/// File type in an entry's value (`ZFS_DIRENT_TYPE`).
fn entry_kind(value: u64) -> u8 {
    (value >> 60) as u8
}

impl FileSystem {
    /// The entries of directory `ino`.
    pub(crate) fn directory(&self, ino: u64) -> Result<Arc<Zap>> {
        // What is pending has its index at hand; keeping it would make each change copy it.
        let keep = self.source.live().is_none();
        if let Some(zap) = self.directories.get(ino).filter(|_| keep) {
            return Ok(zap);
        }
        let z = self.znode(ino)?;
        if !z.is_dir()? {
            return Err(Error::NotDir(format!("object {ino}")));
        }
        let zap = Arc::new(Zap::open(z.object())?);
        if keep {
            self.directories.put(ino, zap.clone());
        }
        Ok(zap)
    }

    /// The object called `name` in directory `dir`, honouring case sensitivity and normalization (`zfs_lookup`,
    /// `zfs_dirlook`). `.` and `..` are understood; the root is its own parent.
    pub fn lookup(&self, dir: u64, name: &[u8]) -> Result<u64> {
        // One may be given now, or there may be one from before.
        let longest = if self.settings().long_names { MAX_NAME } else { USUAL_NAME };
        let not_found = || match name.len() > longest {
            false => Error::NotFound(show(name)),
            true => Error::NameTooLong(show(name)),
        };
        match self.entry_at_hand(dir, name) {
            AtHand::Value(value) => return Ok(entry_object(value)),
            AtHand::Absent => return Err(not_found()),
            AtHand::Nothing => {}
        }
        let zap = self.directory(dir)?;
        match name {
            b"." => return Ok(dir),
            b".." if dir == self.root() => return Ok(dir),
            b".." => return self.attributes(dir)?.required(ZplAttr::Parent),
            _ => {}
        }
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(not_found());
        }
        if self.utf8_only() && std::str::from_utf8(name).is_err() {
            return Err(Error::IllegalName(show(name)));
        }
        let case = self.case_sensitivity();
        let found = if self.normalizes() || case != CaseSensitivity::Sensitive {
            zap.lookup_norm(name, Match { fold_case: case == CaseSensitivity::Insensitive })?
        } else {
            zap.lookup(name)?
        };
        // A value of several integers starts with the object.
        let value = found.and_then(|e| e.value.first().copied()).ok_or_else(not_found)?;
        Ok(entry_object(value))
    }

    /// What can be told of an entry without opening its directory: where that is being changed, and names
    /// are just bytes.
    fn entry_at_hand(&self, dir: u64, name: &[u8]) -> AtHand {
        let plain = !self.normalizes()
            && !self.utf8_only()
            && self.case_sensitivity() == CaseSensitivity::Sensitive
            && !matches!(name, b"." | b"..");
        match self.source.live().filter(|_| plain) {
            Some(live) => live.entry_at_hand(dir, DmuType::DIRECTORY_CONTENTS, name),
            None => AtHand::Nothing,
        }
    }

    /// Up to `max` entries of a directory after `cookie` (0: from the start; `zfs_readdir`), without `.` and `..`,
    /// in the order in which OpenZFS lists them. No entries: the end.
    pub fn readdir(&self, dir: u64, cookie: u64, max: usize) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for e in self.directory(dir)?.entries_from(cookie, max)? {
            match e.value.first() {
                Some(value) if e.int_size == 8 => entries.push(DirEntry {
                    ino: entry_object(*value),
                    kind: entry_kind(*value),
                    name: e.name,
                    cookie: e.cursor,
                }),
                // What comes before a bad entry is listed.
                _ if !entries.is_empty() => break,
                _ => {
                    let why = format!("directory entry {} without an object", show(&e.name));
                    return Err(Error::Corrupt(dir, why));
                }
            }
        }
        Ok(entries)
    }

    /// Name of the first entry of `dir` that leads to `ino` (`zap_value_search`).
    pub(crate) fn name_of(&self, dir: u64, ino: u64) -> Result<Vec<u8>> {
        let mut cookie = 0;
        loop {
            let batch = self.readdir(dir, cookie, BATCH)?;
            let Some(last) = batch.last() else {
                return Err(Error::NotFound(format!("object {ino} in directory {dir}")));
            };
            cookie = last.cookie;
            if let Some(entry) = batch.into_iter().find(|e| e.ino == ino) {
                return Ok(entry.name);
            }
        }
    }
}
