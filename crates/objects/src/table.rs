//! The table at the end of an object: where each of its blocks lies.
//!
//! ```text
//! blocks in order of their addresses | count, then for each block: sectors after the one before, sectors, checksum 8 | trailer
//! ```
//!
//! A block's place in the object is the sum of the lengths before it. The checksum (the first eight bytes of BLAKE3) guards the copying of
//! blocks into another object; what a reader gets is verified by its block pointer.

use cenote_format::DecodeError;

use crate::frame::{self, Cursor, Kind};
use crate::{ADDRESSES, MAX_DATA, SECTOR};

/// A block of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Its address.
    pub address: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Its checksum ([`sum`]).
    pub sum: u64,
}

/// The checksum of a block's bytes.
pub fn sum(bytes: &[u8]) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&blake3::hash(bytes).as_bytes()[..8]);
    u64::from_le_bytes(first)
}

/// The blocks of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// In order of their addresses, which are disjoint.
    pub blocks: Vec<Block>,
}

impl Table {
    /// As it is in the object.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.blocks.len() * 12 + 40);
        frame::put(&mut out, self.blocks.len() as u64);
        let mut end = 0;
        for block in &self.blocks {
            frame::put(&mut out, (block.address - end) / SECTOR);
            frame::put(&mut out, block.length / SECTOR);
            out.extend_from_slice(&block.sum.to_le_bytes());
            end = block.address + block.length;
        }
        frame::seal(Kind::Table, out)
    }

    /// The table that ends with these bytes.
    ///
    /// # Errors
    /// It is damaged, or no table.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (_, body) = frame::open(Kind::Table, bytes)?;
        let mut cursor = Cursor::new(Kind::Table, body);
        let count = cursor.count()?;
        let mut blocks = Vec::with_capacity(count.min(body.len() / 10));
        let (mut end, mut data) = (0_u64, 0_u64);
        for _ in 0..count {
            let address = end + cursor.at_most((ADDRESSES - end) / SECTOR)? * SECTOR;
            let length =
                cursor.at_most((ADDRESSES - address).min(MAX_DATA - data) / SECTOR)? * SECTOR;
            if length == 0 {
                return Err(cursor.invalid("a block without bytes"));
            }
            blocks.push(Block { address, length, sum: cursor.fixed()? });
            end = address + length;
            data += length;
        }
        cursor.end()?;
        Ok(Self { blocks })
    }

    /// Bytes of blocks.
    pub fn data(&self) -> u64 {
        self.blocks.iter().map(|block| block.length).sum()
    }

    /// Where the bytes of an address range lie in the object; None if it does not have all of them, one after the other.
    pub fn place(&self, address: u64, length: u64) -> Option<u64> {
        let mut offset = 0;
        let mut found = None;
        let mut next = address;
        for block in &self.blocks {
            let end = block.address + block.length;
            if found.is_none() && block.address <= address && address < end {
                found = Some(offset + (address - block.address));
            } else if found.is_some() && block.address != next {
                return None;
            }
            if found.is_some() {
                next = end;
                if next - address >= length {
                    return found;
                }
            }
            offset += block.length;
        }
        None
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Blocks with gaps between them.
    fn tables() -> impl Strategy<Value = Table> {
        prop::collection::vec((0_u64..9, 1_u64..9, any::<u64>()), 0..50).prop_map(|blocks| {
            let mut end = 0;
            let blocks = blocks.into_iter().map(|(gap, sectors, sum)| {
                let (address, length) = (end + gap * SECTOR, sectors * SECTOR);
                end = address + length;
                Block { address, length, sum }
            });
            Table { blocks: blocks.collect() }
        })
    }

    proptest! {
        #[test]
        fn a_table_comes_back_and_knows_each_block(table in tables()) {
            let mut bytes = vec![7; 512];
            bytes.extend(table.encode());
            prop_assert_eq!(&Table::decode(&bytes).unwrap(), &table);
            let mut offset = 0;
            for block in &table.blocks {
                prop_assert_eq!(table.place(block.address, block.length), Some(offset));
                let last = block.address + block.length - SECTOR;
                prop_assert_eq!(table.place(last, SECTOR), Some(offset + block.length - SECTOR));
                offset += block.length;
            }
            let end = table.blocks.last().map_or(0, |block| block.address + block.length);
            prop_assert_eq!(table.place(end, SECTOR), None);
        }

        #[test]
        fn any_body_is_an_error_or_a_table(body: Vec<u8>) {
            if let Ok(table) = Table::decode(&frame::seal(Kind::Table, body)) {
                prop_assert_eq!(Table::decode(&table.encode()).unwrap(), table);
            }
        }
    }
}
