//! Faults that an administrator injects into blocks, to see what the system makes of them (`zio_handle_fault_injection`).
//!
//! A [`DataHandler`] names blocks by their owner: by object set, object, level and range of blocks, or, in the meta object set,
//! by type. What it says of them holds for reads from devices, whatever is there:
//!
//! - [`DataError::Io`]: each device that holds the copy fails to read it, and counts that;
//! - [`DataError::Checksum`]: each gives wrong bytes, and counts that;
//! - [`DataError::Decompress`]: the block was read, and does not unpack;
//! - [`DataError::Decrypt`]: the block is not what was written with the key of its dataset.
//!
//! What the caches have is not read, so the former two have no effect on it; the latter two hit what the ARC has, and what is on its way to
//! the devices, when it is opened. Handlers do not hit blocks of intent logs that are replayed, nor gang headers. No injected error makes wrong bytes count as right ones: what is written
//! in the place of a copy that a handler spoils is what its checksum vouches for.

use std::ops::RangeInclusive;
use std::sync::Arc;

use cenote_format::DecodeError;
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::checksum::Salt;
use cenote_vdev::injection::{Handler, Trigger};
use cenote_vdev::{Fault, VdevError};

use crate::error::{BlockError, Bookmark};
use crate::pipeline::{Reader, Store, is_vouched};
use crate::verify;

/// What comes of reading a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataError {
    /// It cannot be read (`EIO`).
    Io,
    /// It is not what its checksum says (`ECKSUM`).
    Checksum,
    /// It does not unpack (`EINVAL`).
    Decompress,
    /// Its key does not vouch for it (`ZINJECT_DECRYPT_FAULT`).
    Decrypt,
}

/// Which blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Blocks of the meta object set of this type; `None`: of all types.
    Mos(Option<u8>),
    /// Blocks of an object.
    Blocks {
        /// The object set.
        objset: u64,
        /// The object.
        object: u64,
        /// The level.
        level: i64,
        /// The numbers of the blocks.
        blkids: RangeInclusive<u64>,
    },
}

/// A handler of reads.
#[derive(Debug)]
pub struct DataHandler {
    error: DataError,
    place: Place,
    /// Which copies, a bit for each; 0: all.
    copies: u8,
    trigger: Trigger,
}

impl Handler for DataHandler {
    fn trigger(&self) -> &Trigger {
        &self.trigger
    }
}

impl DataHandler {
    /// Reads of these blocks come to this error. `copies` has a bit for each of the copies that it is about; 0: it is about all.
    pub fn new(error: DataError, place: Place, copies: u8, frequency: u32) -> Arc<DataHandler> {
        Arc::new(DataHandler { error, place, copies, trigger: Trigger::new(frequency) })
    }

    /// Whether it is about a block, and this copy of it (`zio_match_handler`).
    fn is_about(&self, bp: &BlockPointer, at: Bookmark, copy: Option<usize>) -> bool {
        let Place::Blocks { objset, object, level, blkids } = &self.place else {
            let Place::Mos(kind) = self.place else { return false };
            return at.objset == 0 && kind.is_none_or(|kind| kind == bp.object_type());
        };
        let is_it = (at.objset, at.object, at.level) == (*objset, *object, *level);
        let is_copy = || copy.is_some_and(|copy| copy < 8 && self.copies >> copy & 1 == 1);
        is_it && blkids.contains(&at.blkid) && (self.copies == 0 || is_copy())
    }
}

impl Store {
    /// From now on reads come to what the handler says, until it is cleared.
    pub fn inject(&self, handler: Arc<DataHandler>) {
        self.injected().add(handler);
    }

    /// Whether a handler wants this error of a read.
    fn wants(
        &self,
        error: DataError,
        bp: &BlockPointer,
        at: Bookmark,
        copy: Option<usize>,
    ) -> bool {
        let Some(handlers) = self.injected().now() else { return false };
        let is_it = |handler: &Arc<DataHandler>| {
            handler.error == error && handler.is_about(bp, at, copy) && handler.trigger.fires()
        };
        handlers.iter().any(is_it)
    }

    /// What is expected of a copy that is about to be read.
    pub(crate) fn expected(&self, bp: &BlockPointer, dva: Dva, at: Bookmark) -> Expected<'_> {
        let copy = || bp.dvas().position(|one| one == dva);
        let unread = self.injected().any() && self.wants(DataError::Io, bp, at, copy());
        Expected {
            store: self,
            bp: *bp,
            dva,
            at,
            salt: self.salt(),
            unread,
            unharmed: false,
            voucher: None,
        }
    }

    /// The error of unpacking a block, if a handler wants one.
    pub(crate) fn injected_decode_error(
        &self,
        bp: &BlockPointer,
        at: Bookmark,
    ) -> Option<DecodeError> {
        let wanted = self.injected().any() && self.wants(DataError::Decompress, bp, at, None);
        wanted.then(|| DecodeError::invalid("block", "injected error"))
    }

    /// Whether a block is to count as one that its key does not vouch for.
    pub(crate) fn counts_as_forged(&self, bp: &BlockPointer, at: Bookmark) -> bool {
        self.injected().any() && self.wants(DataError::Decrypt, bp, at, None)
    }
}

/// What is expected of a copy: the right bytes, unless a handler wants it otherwise.
pub(crate) struct Expected<'a> {
    store: &'a Store,
    bp: BlockPointer,
    dva: Dva,
    at: Bookmark,
    salt: Arc<Salt>,
    /// Its devices are to count as such that cannot read it.
    unread: bool,
    /// No handler is asked.
    unharmed: bool,
    /// What tells its MAC, where that is looked at.
    voucher: Option<Reader>,
}

impl Expected<'_> {
    /// Only bytes with the right MAC count, if there is a `voucher` ([`Store::voucher`]).
    pub(crate) fn vouched_by(self, voucher: Option<Reader>) -> Self {
        Expected { voucher, ..self }
    }

    /// The same, without handlers: they do not decide whether other bytes satisfy the pointer, too.
    pub(crate) fn unharmed(self) -> Self {
        Expected { unread: false, unharmed: true, ..self }
    }

    /// Whether bytes of a device count as the copy.
    pub(crate) fn takes(&self, data: &Abd) -> bool {
        let vouched = |by: &Reader| is_vouched(&self.bp, by, data);
        !self.unread
            && self.is_right(data)
            && (self.unharmed || !self.is_spoilt())
            && self.voucher.as_ref().is_none_or(vouched)
    }

    /// Whether bytes satisfy the pointer, whatever handlers want.
    pub(crate) fn is_right(&self, data: &Abd) -> bool {
        verify::matches(&self.bp, data, &self.salt).unwrap_or(false)
    }

    fn is_spoilt(&self) -> bool {
        let (store, copy) = (self.store, || self.bp.dvas().position(|one| one == self.dva));
        store.injected().any() && store.wants(DataError::Checksum, &self.bp, self.at, copy())
    }

    /// What a read came to: devices that gave bytes may count as such that gave none.
    pub(crate) fn settle<T>(
        &self,
        done: Result<T, VdevError>,
        faults: Vec<Fault>,
    ) -> (Result<T, VdevError>, Vec<Fault>) {
        if !self.unread {
            return (done, faults);
        }
        let (why, vdev) = ("injected error".to_string(), self.dva.vdev.into());
        let error = VdevError::Io { vdev, offset: self.dva.offset, why };
        (Err(error), faults.into_iter().map(Fault::as_failed_read).collect())
    }
}

/// A block that its key does not vouch for (`zio_handle_decrypt_injection`).
pub(crate) fn forged(bp: &BlockPointer, at: Bookmark) -> BlockError {
    let source = DecodeError::invalid("block", "injected error").into();
    BlockError::Authentication { at, bp: Box::new(*bp), source }
}
