//! What a change leaves for the intent log (`itx_t`).
//!
//! A change says with [`OpenObjectSet::log`] or [`OpenObjectSet::log_write`] which records describe it, or
//! with [`OpenObjectSet::log_nothing`] that nothing of it has to survive a crash. A change that says none
//! of this is *unlogged*: to be stable it waits for its transaction group. So an operation
//! that forgets to log is slow, and never lost.
//!
//! Invariant: records of a change that is taken back, or runs again, are forgotten with it.

use super::{OpenObjectSet, Result};
use cenote_format::zil::{Body, Record};

/// One entry of the log, before it is written (`itx_t`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Itx {
    /// An encoded record; its group and sequence number are filled in when it is written.
    Record {
        /// The record.
        bytes: Vec<u8>,
        /// What it is about.
        about: About,
    },
    /// A `TX_WRITE` whose data is read when it is written (`WR_NEED_COPY`).
    Write {
        /// The object.
        object: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// No record, but the object has a number from now on that may have been another's.
    Created(u64),
    /// No record, but what waits of this object is written with the next commit, as names are: the object belongs
    /// to another one, which is what is committed.
    WithNames(u64),
    /// A part of the change that no record says: the change is unlogged.
    Unlogged,
}

/// What a record is about, which says when it has to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// Names: it is written with every commit (`itx_sync`).
    Names,
    /// A new object with its name. As [`About::Names`].
    New(u64),
    /// A name of this object changes: what waits of the object is written before it.
    Renamed(u64),
    /// One object: it is written when that is committed (an entry of `i_async_tree`).
    Object(u64),
}

/// The records that describe a change; `None`: it is unlogged, and stable when its transaction group is on
/// disk.
pub type Intent = Option<Vec<Itx>>;

fn about(body: &Body<'_>) -> About {
    match body {
        Body::Create(create) => About::New(create.new.object),
        Body::Write(write) | Body::Write2(write) => About::Object(write.object),
        Body::SetAttr(set) => About::Object(set.object),
        Body::Truncate { object, .. }
        | Body::AclV0 { object, .. }
        | Body::Acl { object, .. }
        | Body::SetSaXattr { object, .. }
        | Body::CloneRange { object, .. } => About::Object(*object),
        Body::Remove { .. } | Body::Rmdir { .. } | Body::Link { .. } | Body::Rename(_) => {
            About::Names
        }
    }
}

impl OpenObjectSet {
    fn itxs(&mut self) -> &mut Vec<Itx> {
        self.transaction.intent.get_or_insert_default()
    }

    /// The change that is being made is described by `body`.
    ///
    /// # Errors
    /// The record has no place in the format.
    pub fn log(&mut self, body: Body<'_>) -> Result<()> {
        let about = about(&body);
        self.log_about(body, about)
    }

    /// As [`OpenObjectSet::log`], for a renaming of `object`.
    ///
    /// # Errors
    /// The record has no place in the format.
    pub fn log_rename(&mut self, body: Body<'_>, object: u64) -> Result<()> {
        self.log_about(body, About::Renamed(object))
    }

    fn log_about(&mut self, body: Body<'_>, about: About) -> Result<()> {
        let record = Record { txg: 0, seq: 0, ignore_case: false, body };
        let bytes = record.encode()?;
        self.itxs().push(Itx::Record { bytes, about });
        Ok(())
    }

    /// The change that is being made is a write of `length` bytes at `offset` (`zfs_log_write`, `zvol_log_write`).
    pub fn log_write(&mut self, object: u64, offset: u64, length: u64) {
        self.itxs().push(Itx::Write { object, offset, length });
    }

    /// The change that is being made makes `object`, which does not have to survive a crash.
    pub fn log_created(&mut self, object: u64) {
        self.itxs().push(Itx::Created(object));
    }

    /// What was logged of `object` is written with the next commit, whatever that is of.
    pub fn log_with_names(&mut self, object: u64) {
        self.itxs().push(Itx::WithNames(object));
    }

    /// Nothing of the change that is being made has to survive a crash.
    pub fn log_nothing(&mut self) {
        self.itxs();
    }

    /// A part of the change that is being made is said by no record.
    pub fn log_cannot(&mut self) {
        self.itxs().push(Itx::Unlogged);
    }

    /// What was logged since this was called last.
    pub(crate) fn take_intent(&mut self) -> Intent {
        std::mem::take(&mut self.transaction.intent).filter(|itxs| !itxs.contains(&Itx::Unlogged))
    }
}
