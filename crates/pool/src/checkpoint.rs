//! The pool's checkpoint: the uberblock that the object directory keeps (`DMU_POOL_ZPOOL_CHECKPOINT`).
//!
//! | entry of the object directory | what |
//! |---|---|
//! | `com.delphix:zpool_checkpoint` | the words of the uberblock, the magic first; gone once the checkpoint is being discarded |
//!
//! OpenZFS before 2.3 knows one word less, the last, and does not open a pool that has it. So it is written only where the
//! feature for what it says is enabled, which these releases do not have.

use crate::Pool;
use crate::directory::Directory;
use cenote_dmu::Result;
use cenote_format::ByteOrder;
use cenote_format::blkptr::BlockPointer;
use cenote_format::label::{UBERBLOCK_MAGIC, Uberblock};

/// The entry of the object directory.
pub const ENTRY: &str = "com.delphix:zpool_checkpoint";
/// The feature of a pool that has a checkpoint, or is discarding one.
pub const FEATURE: &str = "com.delphix:zpool_checkpoint";
/// The feature that the last word of an uberblock is for.
const LAST_WORD: &str = "org.openzfs:raidz_expansion";

/// The words of an uberblock. `all`: with the one that OpenZFS before 2.3 does not know.
fn encode(u: &Uberblock, all: bool) -> Vec<u64> {
    let mut words = vec![UBERBLOCK_MAGIC, u.version, u.txg, u.guid_sum, u.timestamp];
    words.extend(u.rootbp.0);
    words.extend([u.software_version, u.mmp_magic, u.mmp_delay, u.mmp_config, u.checkpoint_txg]);
    words.extend(all.then_some(u.raidz_reflow));
    words
}

/// The uberblock of these words; `None` if they are not those of a checkpoint.
fn decode(words: &[u64]) -> Option<Uberblock> {
    let ([magic, version, txg, guid_sum, timestamp], rest) = words.split_first_chunk()?;
    let (rootbp, rest) = rest.split_first_chunk::<16>()?;
    let ([software_version, mmp_magic, mmp_delay, mmp_config, checkpoint_txg], rest) =
        rest.split_first_chunk()?;
    let sound = *magic == UBERBLOCK_MAGIC && *txg != 0 && txg == checkpoint_txg;
    sound.then(|| Uberblock {
        order: ByteOrder::Little,
        version: *version,
        txg: *txg,
        guid_sum: *guid_sum,
        timestamp: *timestamp,
        rootbp: BlockPointer(*rootbp),
        software_version: *software_version,
        mmp_magic: *mmp_magic,
        mmp_delay: *mmp_delay,
        mmp_config: *mmp_config,
        checkpoint_txg: *checkpoint_txg,
        raidz_reflow: rest.first().copied().unwrap_or(0),
    })
}

/// The uberblock of the pool's checkpoint; `None` without one, or if it is being discarded.
///
/// # Errors
/// The MOS cannot be read; the entry is no uberblock.
pub fn load(directory: &Directory) -> Result<Option<Uberblock>> {
    let Some(words) = directory.words(ENTRY)? else { return Ok(None) };
    match decode(&words) {
        Some(uberblock) => Ok(Some(uberblock)),
        None => Err(directory.corrupt(format!("{ENTRY} is no uberblock: {words:x?}"))),
    }
}

impl Pool {
    /// The uberblock of the pool's checkpoint; `None` without one, or if it is being discarded.
    ///
    /// # Errors
    /// The MOS cannot be read; the entry is no uberblock.
    pub fn checkpoint(&self) -> Result<Option<Uberblock>> {
        load(self.directory())
    }

    /// The words that the object directory has for a checkpoint of the pool as it is.
    pub fn checkpoint_words(&self) -> Vec<u64> {
        let now = self.uberblock();
        let checkpoint = Uberblock { checkpoint_txg: now.txg, ..now.clone() };
        let enabled = self.features().list.iter().any(|feature| feature.guid == LAST_WORD);
        encode(&checkpoint, enabled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_either_length() {
        let uberblock = Uberblock {
            order: ByteOrder::Little,
            version: 5000,
            txg: 7,
            guid_sum: 8,
            timestamp: 9,
            rootbp: BlockPointer([3; 16]),
            software_version: 5000,
            mmp_magic: 1,
            mmp_delay: 2,
            mmp_config: 3,
            checkpoint_txg: 7,
            raidz_reflow: 0,
        };
        let (short, long) = (encode(&uberblock, false), encode(&uberblock, true));
        assert_eq!((short.len(), long.len(), short[4]), (26, 27, 9));
        assert_eq!(decode(&short), Some(uberblock.clone()));
        assert_eq!(decode(&long), Some(uberblock.clone()));
        assert_eq!(decode(&short[..25]), None);
        let other = Uberblock { checkpoint_txg: 0, ..uberblock };
        assert_eq!(decode(&encode(&other, true)), None);
    }
}
