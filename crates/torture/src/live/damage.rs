//! Blocks that cannot be read any more, in a pool of one disk; and bits that are wrong.

use super::disk::Disk;
use cenote_format::LABEL_START;
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_vdev::{Device, ReadReq, WriteReq};
use std::collections::BTreeMap;

/// What takes the place of what was there.
const BAD: u8 = 0xa5;

/// What was there before blocks were damaged, by offset on the disk.
#[derive(Default)]
pub struct Damage(BTreeMap<u64, Vec<u8>>);

fn read(disk: &Disk, offset: u64, len: usize) -> Vec<u8> {
    let mut reqs = [ReadReq::new(offset, len)];
    disk.read_batch(&mut reqs);
    reqs[0].result.take().unwrap().unwrap().to_vec()
}

fn overwrite(disk: &Disk, offset: u64, data: Vec<u8>) {
    let mut reqs = [WriteReq::new(offset, Abd::from_vec(data))];
    disk.write_batch(&mut reqs);
    reqs[0].result.take().unwrap().unwrap();
}

impl Damage {
    /// Damages all copies of a block.
    pub fn add(&mut self, disk: &Disk, bp: &BlockPointer) {
        for dva in bp.dvas() {
            let (offset, len) = (dva.offset + LABEL_START, bp.psize() as usize);
            self.0.entry(offset).or_insert_with(|| {
                let good = read(disk, offset, len);
                overwrite(disk, offset, vec![BAD; len]);
                good
            });
        }
    }

    /// Puts back what nobody has written over.
    pub fn mend(self, disk: &Disk) {
        for (offset, good) in self.0 {
            if read(disk, offset, good.len()).iter().all(|byte| *byte == BAD) {
                overwrite(disk, offset, good);
            }
        }
    }
}

/// Flips a bit of the byte at `offset` of a disk.
pub fn flip(disk: &Disk, offset: u64, bit: u32) {
    let mut byte = read(disk, offset, 1);
    byte.iter_mut().for_each(|byte| *byte ^= 1 << (bit & 7));
    overwrite(disk, offset, byte);
}
