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
        /// The object that it creates.
        creates: Option<u64>,
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
}

/// The records that describe a change; `None`: it is unlogged, and stable when its transaction group is on
/// disk.
pub type Intent = Option<Vec<Itx>>;

impl OpenObjectSet {
    fn itxs(&mut self) -> &mut Vec<Itx> {
        self.intent.get_or_insert_default()
    }

    /// The change that is being made is described by `body`.
    ///
    /// # Errors
    /// The record has no place in the format.
    pub fn log(&mut self, body: Body<'_>) -> Result<()> {
        let creates = match &body {
            Body::Create(create) => Some(create.new.object),
            _ => None,
        };
        let record = Record { txg: 0, seq: 0, ignore_case: false, body };
        let bytes = record.encode()?;
        self.itxs().push(Itx::Record { bytes, creates });
        Ok(())
    }

    /// The change that is being made is a write of `length` bytes at `offset`.
    pub fn log_write(&mut self, object: u64, offset: u64, length: u64) {
        self.itxs().push(Itx::Write { object, offset, length });
    }

    /// Nothing of the change that is being made has to survive a crash.
    pub fn log_nothing(&mut self) {
        self.itxs();
    }

    /// What was logged since this was called last.
    pub(crate) fn take_intent(&mut self) -> Intent {
        std::mem::take(&mut self.intent)
    }
}
