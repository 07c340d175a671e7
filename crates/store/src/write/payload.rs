//! The contents of a block to be written (`arc_buf_t`, which may hold compressed data).
//!
//! Most blocks are plain: the write compresses them as the dataset says. A block that came compressed, in a stream of
//! `zfs send -c`, is written as it came (`ZIO_FLAG_RAW_COMPRESS`). It is unpacked if it is read or changed before. One of
//! `zfs send -w` is encrypted as well, has its MAC with it, and cannot be read or changed (`ZIO_FLAG_RAW_ENCRYPT`).

use cenote_format::abd::Abd;
use cenote_format::compress::{Compression, decompress};
use cenote_format::crypt::Seal;
use cenote_format::{DecodeError, Result, SECTOR};

/// A block that is compressed, or encrypted.
#[derive(Clone, Debug)]
pub struct Packed {
    /// The compressed bytes. Those behind their end are zeros.
    pub data: Abd,
    /// What they are compressed with: a function that compresses, or none if they are encrypted.
    pub compression: Compression,
    /// Bytes of the block when it is unpacked.
    pub lsize: usize,
    /// How it is protected, if it came in a raw stream. Then it stays as it is, to the byte.
    pub seal: Option<Seal>,
}

impl Packed {
    /// Whether it can be on disk as it is.
    pub fn can_be_written(&self) -> bool {
        let (len, sector) = (self.data.len(), SECTOR as usize);
        match self.compression {
            Compression::Inherit | Compression::On | Compression::Empty => false,
            Compression::Off => self.seal.is_some() && len > 0 && len == self.lsize,
            // What came in a raw stream gets no bytes to the end of a sector.
            _ => (1..=self.lsize).contains(&len) && (self.seal.is_none() || len % sector == 0),
        }
    }

    /// The block, unpacked.
    ///
    /// # Errors
    /// The function does not make such bytes of a block of this size; it came in a raw stream.
    pub fn unpack(&self) -> Result<Abd> {
        if self.seal.is_some() {
            let why = "a block of a raw stream is changed or read in part";
            return Err(DecodeError::invalid("stream", why));
        }
        let mut plain = vec![0; self.lsize];
        decompress(self.compression, &self.data.bytes(), &mut plain)?;
        Ok(Abd::from_vec(plain))
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub enum Payload {
    /// The block as its owner sees it.
    Plain(Abd),
    /// The block as it will be on disk.
    Packed(Packed),
}

impl Payload {
    /// Bytes of the block when it is unpacked.
    #[allow(clippy::len_without_is_empty)] // No block is empty.
    pub fn len(&self) -> usize {
        match self {
            Payload::Plain(data) => data.len(),
            Payload::Packed(packed) => packed.lsize,
        }
    }

    /// The block as its owner sees it.
    ///
    /// # Errors
    /// It is compressed, and cannot be unpacked.
    pub fn unpacked(&self) -> Result<Abd> {
        match self {
            Payload::Plain(data) => Ok(data.clone()),
            Payload::Packed(packed) => packed.unpack(),
        }
    }

    /// How the block is protected, if it came in a raw stream.
    pub fn seal(&self) -> Option<&Seal> {
        match self {
            Payload::Plain(_) => None,
            Payload::Packed(packed) => packed.seal.as_ref(),
        }
    }

    /// The block, if it is not compressed.
    pub fn plain(&self) -> Option<&Abd> {
        match self {
            Payload::Plain(data) => Some(data),
            Payload::Packed(_) => None,
        }
    }

    /// The block, to be changed, if it is not compressed.
    pub fn plain_mut(&mut self) -> Option<&mut Abd> {
        match self {
            Payload::Plain(data) => Some(data),
            Payload::Packed(_) => None,
        }
    }
}

impl From<Abd> for Payload {
    fn from(data: Abd) -> Payload {
        Payload::Plain(data)
    }
}
