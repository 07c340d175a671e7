//! Block pointers: where a block is, how large, how to check it and how to unpack it.
//!
//! A block pointer (`blkptr_t`) is 16 words of 64 bits:
//!
//! ```text
//! word 0-5   three DVAs of two words: vdev(24 of 32 bits) grid(8) asize(24)  |  gang(1) offset(63)
//! word 6     B D X level(5) | type(8) | checksum(8) | E comp(7) | psize(16) | lsize(16)
//! word 7-8   padding; a logical birth override for rewritten blocks in 2.4 (word 8)
//! word 9     physical birth txg (0: the same as the logical birth)
//! word 10    logical birth txg
//! word 11    fill count: blocks (or dnodes) below this one
//! word 12-15 checksum
//! ```
//!
//! With the `E` bit the words other than 6 and 10 hold up to 112 bytes of payload: an embedded
//! block. With the `X` bit the third DVA holds the salt and IV of an encrypted block.
//!
//! Invariant: accessors never fail; whether the values are sane is asked by [`BlockPointer::check`].

use crate::{ByteOrder, Bytes, DecodeError, MAX_BLOCK, Result, SECTOR_SHIFT};

/// Bytes of an encoded block pointer.
pub const BLKPTR_SIZE: usize = 128;
/// Bytes an embedded block pointer can carry.
pub const EMBEDDED_PAYLOAD: usize = 112;
/// Embedded type of data that was left out (`BP_EMBEDDED_TYPE_REDACTED`).
const EMBEDDED_REDACTED: u8 = 2;

/// Where one copy of a block is (`dva_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dva {
    /// Id of the top-level vdev.
    pub vdev: u32,
    /// Byte offset in the top-level vdev's allocatable space.
    pub offset: u64,
    /// Bytes allocated, RAID-Z parity and padding included.
    pub asize: u64,
    /// The block at `offset` is a gang header, not data.
    pub gang: bool,
}

/// Bit of word 7 (`blk_prop2`): the block was rewritten, and its logical birth kept.
pub(crate) const REWRITTEN: u64 = 1 << 63;

/// A decoded `blkptr_t`: its 16 words in host byte order.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockPointer(pub [u64; 16]);

fn bits(word: u64, low: u32, len: u32) -> u64 {
    (word >> low) & (u64::MAX >> (64 - len))
}

impl BlockPointer {
    /// The block pointer of a hole that was never written.
    pub const HOLE: BlockPointer = BlockPointer([0; 16]);

    /// Decodes 128 bytes at `at`. Any value decodes; see [`BlockPointer::check`].
    pub fn decode(b: &Bytes<'_>, at: usize) -> Result<BlockPointer> {
        Ok(BlockPointer(b.u64s::<16>(at)?))
    }

    /// Whether nothing is stored: the block reads as zeros.
    pub fn is_hole(&self) -> bool {
        !self.is_embedded() && self.0[0] == 0 && self.0[1] == 0
    }

    /// Whether the payload is in the pointer itself.
    pub fn is_embedded(&self) -> bool {
        bits(self.0[6], 39, 1) == 1
    }

    /// Whether the first DVA is a gang block.
    pub fn is_gang(&self) -> bool {
        !self.is_embedded() && self.0[1] >> 63 == 1
    }

    /// Whether the block was rewritten with its logical birth kept (`BP_GET_REWRITE`, feature
    /// `physical_rewrite`).
    pub fn is_rewritten(&self) -> bool {
        !self.is_embedded() && self.0[7] & REWRITTEN != 0
    }

    /// The transaction group in which the block became part of its tree (`BP_GET_BIRTH`): what decides which
    /// snapshots have it. Of a block that was rewritten with its logical birth kept, the physical birth.
    pub fn birth(&self) -> u64 {
        if self.is_rewritten() { self.physical_birth() } else { self.logical_birth() }
    }

    /// Whether the block is encrypted or authenticated (the `X` bit).
    pub fn uses_crypt(&self) -> bool {
        bits(self.0[6], 61, 1) == 1
    }

    /// Whether the contents are encrypted: level 0 of an encrypted object type.
    pub fn is_encrypted(&self) -> bool {
        self.uses_crypt()
            && self.level() == 0
            && crate::dmu::DmuType(self.object_type()).is_encrypted()
    }

    /// Level in the tree of indirect blocks; 0 is data.
    pub fn level(&self) -> u8 {
        bits(self.0[6], 56, 5) as u8
    }

    /// `dmu_object_type_t` of the object the block belongs to.
    pub fn object_type(&self) -> u8 {
        bits(self.0[6], 48, 8) as u8
    }

    /// Number of the checksum function (`enum zio_checksum`); for an embedded block, the
    /// embedded type (`BPE_GET_ETYPE`).
    pub fn checksum_type(&self) -> u8 {
        bits(self.0[6], 40, 8) as u8
    }

    /// Whether the block's data was left out (`BP_IS_REDACTED`): the pointer is embedded, without a payload.
    pub fn is_redacted(&self) -> bool {
        self.is_embedded() && self.checksum_type() == EMBEDDED_REDACTED
    }

    /// Number of the compression function (`enum zio_compress`).
    pub fn compression(&self) -> u8 {
        bits(self.0[6], 32, 7) as u8
    }

    /// Logical bytes: the size after decompression.
    pub fn lsize(&self) -> u64 {
        if self.is_embedded() {
            bits(self.0[6], 0, 25) + 1
        } else {
            (bits(self.0[6], 0, 16) + 1) << SECTOR_SHIFT
        }
    }

    /// Physical bytes: the size before decompression, without parity.
    pub fn psize(&self) -> u64 {
        if self.is_embedded() {
            bits(self.0[6], 25, 7) + 1
        } else {
            (bits(self.0[6], 16, 16) + 1) << SECTOR_SHIFT
        }
    }

    /// Byte order of the contents.
    pub fn byte_order(&self) -> ByteOrder {
        if self.0[6] >> 63 == 1 { ByteOrder::Little } else { ByteOrder::Big }
    }

    /// Whether the block is in the deduplication table.
    pub fn is_dedup(&self) -> bool {
        bits(self.0[6], 62, 1) == 1
    }

    /// Transaction group that wrote the block's contents, as the tree of blocks sees it.
    pub fn logical_birth(&self) -> u64 {
        self.0[10]
    }

    /// Transaction group that allocated the block on disk; what scrubs and DTLs go by.
    pub fn physical_birth(&self) -> u64 {
        if self.is_embedded() || self.0[9] == 0 { self.0[10] } else { self.0[9] }
    }

    /// Blocks below this one (dnodes, for blocks of dnodes). An encrypted block's shares its word with a part of the
    /// initialization vector.
    pub fn fill(&self) -> u64 {
        match () {
            () if self.is_embedded() => 1,
            () if self.is_encrypted() => bits(self.0[11], 0, 32),
            () => self.0[11],
        }
    }

    /// The 256-bit checksum.
    pub fn checksum(&self) -> [u64; 4] {
        [self.0[12], self.0[13], self.0[14], self.0[15]]
    }

    /// DVA `i` (0 to 2) if it is used.
    pub fn dva(&self, i: usize) -> Option<Dva> {
        if self.is_embedded() || i >= 3 || (i == 2 && self.is_encrypted()) {
            return None;
        }
        let (w0, w1) = (self.0[2 * i], self.0[2 * i + 1]);
        if w0 == 0 && w1 == 0 {
            return None;
        }
        Some(Dva {
            vdev: bits(w0, 32, 24) as u32,
            offset: bits(w1, 0, 63) << SECTOR_SHIFT,
            asize: bits(w0, 0, 24) << SECTOR_SHIFT,
            gang: w1 >> 63 == 1,
        })
    }

    /// The DVAs in use.
    pub fn dvas(&self) -> impl Iterator<Item = Dva> + '_ {
        (0..3).filter_map(|i| self.dva(i))
    }

    /// The bytes carried by an embedded block pointer, still compressed (`psize` bytes).
    pub fn embedded_payload(&self) -> Result<Vec<u8>> {
        let psize = self.psize() as usize;
        if !self.is_embedded() || psize > EMBEDDED_PAYLOAD {
            return Err(DecodeError::invalid("embedded block pointer", format!("psize {psize}")));
        }
        // Every word but the two that describe the block (6: properties, 10: birth).
        let words = (0..16).filter(|w| *w != 6 && *w != 10);
        let mut out: Vec<u8> = words.flat_map(|w| self.0[w].to_le_bytes()).collect();
        out.truncate(psize);
        Ok(out)
    }

    /// Whether the sizes are within the format's limits, so that buffers may be sized by them.
    pub fn check(&self) -> Result<()> {
        let bad = |why: String| Err(DecodeError::invalid("block pointer", why));
        if self.is_hole() && self.lsize() <= MAX_BLOCK {
            return Ok(());
        }
        if self.lsize() > MAX_BLOCK || self.psize() > MAX_BLOCK {
            return bad(format!("lsize {} psize {}", self.lsize(), self.psize()));
        }
        if self.is_embedded() && self.psize() as usize > EMBEDDED_PAYLOAD {
            return bad(format!("embedded psize {}", self.psize()));
        }
        if !self.is_embedded() && self.compression() == 2 && self.psize() < self.lsize() {
            return bad(format!("uncompressed, lsize {} psize {}", self.lsize(), self.psize()));
        }
        Ok(())
    }
}

impl std::fmt::Debug for BlockPointer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_hole() {
            return write!(f, "hole");
        }
        for (i, d) in self.dvas().enumerate() {
            write!(f, "DVA[{i}]=<{}:{:x}:{:x}> ", d.vdev, d.offset, d.asize)?;
        }
        write!(
            f,
            "L{} type {} size {:x}L/{:x}P birth {}",
            self.level(),
            self.object_type(),
            self.lsize(),
            self.psize(),
            self.logical_birth()
        )
    }
}
