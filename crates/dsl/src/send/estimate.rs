//! How long a stream will be (`zfs_ioc_send_space`).
//!
//! As a rule that is computed from what datasets keep of their sizes, without walking anything
//! (`dmu_send_estimate_fast`): the bytes that were written since, less the pointers in indirect blocks, with a
//! record for each block of the dataset's record size.
//!
//! It is counted instead, by walking what would be sent, where sizes do not tell: from a bookmark that has no sizes,
//! where something is or was left out, and for the rest of a stream that is resumed. The bytes that were received before cannot be taken from a number that
//! only says about how long the whole stream is: small files alone make that several times shorter than the stream.

use super::emit::Emitter;
use super::{Prepared, Result, SendError, SendOptions, pipeline};
use crate::tunables::OVERRIDE_ESTIMATE_RECORDSIZE;
use crate::{Dataset, DatasetKind, Dsl};
use cenote_format::blkptr::BLKPTR_SIZE;
use cenote_format::stream::RECORD_SIZE;

impl Dsl {
    /// Bytes that the stream of `dataset` will have, about; of one that is resumed, those from there on.
    ///
    /// # Errors
    /// Errors of [`Dsl::send`] that are found without reading data.
    pub fn send_estimate(
        &self,
        dataset: &Dataset,
        from: Option<&Dataset>,
        options: SendOptions,
    ) -> Result<u64> {
        let in_part = options.resume.is_some() || options.saved;
        if dataset.kind != DatasetKind::Snapshot && !in_part {
            return Err(SendError::Refused("Invalid argument".into()));
        }
        let redacted = options.redact.is_some()
            || from.and_then(|from| from.bookmark).is_some_and(|bookmark| bookmark.redaction != 0);
        let known = if in_part || redacted { None } else { self.changed_since(dataset, from)? };
        if let Some((compressed, uncompressed)) = known {
            let size = if options.compressed { compressed } else { uncompressed };
            if let Some(estimate) = estimate(size, uncompressed, self.record_size(dataset)?) {
                return Ok(estimate);
            }
        }
        self.send_measure(dataset, from, options)
    }

    /// Bytes of the blocks that a dataset is taken to consist of.
    fn record_size(&self, snapshot: &Dataset) -> Result<u64> {
        let other = OVERRIDE_ESTIMATE_RECORDSIZE.get();
        if other != 0 {
            return Ok(other);
        }
        let record_size = match self.kind_of_head(snapshot)? {
            DatasetKind::Volume => self.get(snapshot, "volblocksize")?,
            _ => self.get(snapshot, "recordsize")?,
        };
        Ok(record_size.and_then(|v| v.exact.parse().ok()).unwrap_or(128 << 10))
    }

    /// Bytes, compressed and not, that are in `snapshot` and not in `from`; `None`: that is not known.
    fn changed_since(
        &self,
        snapshot: &Dataset,
        from: Option<&Dataset>,
    ) -> Result<Option<(u64, u64)>> {
        match from {
            None => Ok(Some((snapshot.ds.compressed, snapshot.ds.uncompressed))),
            Some(from) => {
                self.start(snapshot, from)?;
                Ok(self.sizes_since(snapshot, from)?.map(|s| (s.compressed, s.uncompressed)))
            }
        }
    }

    /// Bytes that the stream has, counted.
    ///
    /// # Errors
    /// Errors of [`Dsl::send`] that are found without reading data.
    pub fn send_measure(
        &self,
        dataset: &Dataset,
        from: Option<&Dataset>,
        options: SendOptions,
    ) -> Result<u64> {
        let Prepared { objset, params, begin, list, lists } =
            self.prepare(dataset, from, options)?;
        let mut emitter = Emitter::new(objset.id(), &params, (begin, &list), None)?;
        pipeline::measure(&objset, &params, lists, &mut emitter)?;
        emitter.finish(!options.saved)
    }
}

/// Bytes of a stream with `size` bytes of blocks, which have `uncompressed` bytes unpacked
/// (`dmu_adjust_send_estimate_for_indirects`). `None`: no dataset has such sizes.
fn estimate(size: u64, uncompressed: u64, record_size: u64) -> Option<u64> {
    /// A block has a record in the stream, and has its pointer among the bytes of a dataset.
    const MORE: u64 = (RECORD_SIZE - BLKPTR_SIZE) as u64;
    const ENDS: u64 = 2 * RECORD_SIZE as u64;
    let sound = |bytes: u64| i64::try_from(bytes).is_ok();
    let records = uncompressed.checked_div(record_size)?;
    let bytes = size.checked_add(records.checked_mul(MORE)?)?.checked_add(ENDS)?;
    (sound(size) && sound(uncompressed)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_is_never_less_than_nothing() {
        assert_eq!(estimate(0, 0, 4096), Some(624));
        // Blocks that lie in their pointers take less than the pointers.
        assert_eq!(estimate(100, 1 << 30, 4096), Some(100 + (1 << 18) * 184 + 624));
        for sizes in [(u64::MAX - 99, 0), (0, 1 << 63), (u64::MAX, u64::MAX)] {
            assert_eq!(estimate(sizes.0, sizes.1, 512), None);
        }
        assert_eq!(estimate(1, 1, 0), None);
    }
}
