//! Turns intent logs: the chain of blocks, and the records in them (`zil_chain_t`, `lr_t`).

use super::contents::turn_aces;
use super::read::little;
use super::{Turner, seal, seal_at_end, swap};
use cenote_format::ByteOrder;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::checksum::{Checksum, EMBEDDED_SIZE, verify_embedded};
use cenote_format::zil::Xvattr;

const LITTLE: u64 = 1 << 63;
/// Bytes of what makes a block a link of the chain (`zil_chain_t`), and what is checked in the newer form a multiple of.
const HEAD: usize = 184;
const UNIT: usize = 4096;

impl Turner {
    /// Turns the chain that begins at `first`; gives back the pointer to it.
    pub(super) fn log(&mut self, first: &BlockPointer) -> BlockPointer {
        let mut next = *first;
        while !next.is_hole() && !next.uses_crypt() && next.byte_order() == ByteOrder::Little {
            let kind = Checksum::from_u8(next.checksum_type()).unwrap();
            let mut block = self.physical(&next);
            if verify_embedded(kind, &block, next.checksum()).unwrap() != Some(ByteOrder::Little) {
                break;
            }
            let at = next;
            next = self.log_block(kind, &mut block, at.checksum());
            for dva in at.dvas() {
                assert!(!dva.gang, "a divided block of a log");
                self.store(dva.vdev, dva.offset, &block);
            }
            self.turned.log += 1;
        }
        big(first)
    }

    /// Turns a block of the chain; gives back the pointer to the next one, as it was.
    fn log_block(&mut self, kind: Checksum, block: &mut [u8], verifier: [u64; 4]) -> BlockPointer {
        let slim = kind == Checksum::Zilog2;
        let (chain, records) = match slim {
            true => (0, HEAD),
            false => (block.len() - HEAD, 0),
        };
        let next = BlockPointer::decode(&little(block), chain + 8).unwrap();
        let used = little(block).u64(chain + 8 + BLKPTR_SIZE).unwrap() as usize;
        // What follows the last record is checked and has no order.
        let mut at = records;
        while at < used {
            let len = little(block).u64(at + 8).unwrap() as usize;
            self.record(&mut block[at..at + len]);
            at += len;
        }
        block[chain + 8..][..BLKPTR_SIZE].copy_from_slice(&big(&next).encode());
        swap(&mut block[chain..chain + HEAD - EMBEDDED_SIZE], 8);
        match slim {
            true => {
                let end = used.next_multiple_of(UNIT);
                seal(kind, &mut block[..end], HEAD - EMBEDDED_SIZE, verifier);
            }
            false => seal_at_end(kind, block, verifier),
        }
        next
    }

    fn record(&mut self, record: &mut [u8]) {
        let word = |record: &[u8], at: usize| little(record).u64(at * 8).unwrap();
        let kind = word(record, 0) & !(1 << 63);
        let words = match kind {
            1..=4 | 15 | 18 => 13,
            14 | 16 | 17 | 19 => 18,
            5 | 6 => 5,
            7 | 8 | 12 | 21 | 22 => 6,
            9 | 20 => {
                let pointer = &mut record[64..64 + BLKPTR_SIZE];
                let now = BlockPointer::decode(&little(pointer), 0).unwrap();
                pointer.copy_from_slice(&self.pointer_if_right(&now).encode());
                24
            }
            10 => 7,
            11 => 14,
            13 => 10,
            23 => 14,
            24 => record.len() / 8,
            kind => panic!("a record of kind {kind}"),
        };
        let (mut at, mut list) = (words * 8, None);
        match kind {
            11 if word(record, 5) & (1 << 31) != 0 => turn_xvattr(record, &mut at),
            15 | 18 | 16 | 19 => turn_xvattr(record, &mut at),
            _ => {}
        }
        match kind {
            14 | 16 | 17 | 19 => list = Some((word(record, 16), word(record, 15))),
            13 => list = Some((word(record, 8), word(record, 7))),
            12 => turn_aces(&mut record[48..], false),
            _ => {}
        }
        if let Some((bytes, fuids)) = list {
            let end = at + bytes as usize;
            turn_aces(&mut record[at..end], false);
            let fuids_at = end.next_multiple_of(8);
            swap(&mut record[fuids_at..fuids_at + fuids as usize * 8], 8);
        }
        swap(&mut record[..words * 8], 8);
    }
}

/// The pointer to a block of a log that was turned.
fn big(bp: &BlockPointer) -> BlockPointer {
    let mut big = *bp;
    if !bp.is_hole() {
        big.0[6] &= !LITTLE;
    }
    big
}

/// Turns attributes beyond those that every file has (`zfs_replay_swap_attrs`), and goes past them.
fn turn_xvattr(record: &mut [u8], at: &mut usize) {
    let words = little(record).u32(*at).unwrap() as usize;
    let has_project = little(record).u32(*at + 4).unwrap() & Xvattr::PROJECT != 0;
    let end = *at + 4 + words * 4;
    swap(&mut record[*at..end], 4);
    swap(&mut record[end..end + 24], 8);
    // The stamp is bytes; a project in its place is a number.
    if has_project {
        swap(&mut record[end + 24..end + 32], 8);
    }
    *at = end + 24 + 32;
}
