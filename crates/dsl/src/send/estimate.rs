//! How long a stream will be (`zfs_ioc_send_space`).
//!
//! As a rule that is computed from what datasets keep of their sizes, without walking anything
//! (`dmu_send_estimate_fast`): the bytes that were written since, less the pointers in indirect blocks, with a
//! record for each block of the dataset's record size. From a bookmark without sizes it is counted instead, by
//! walking what would be sent.

use super::emit::Emitter;
use super::{Prepared, Result, SendError, SendOptions, pipeline};
use crate::{Dataset, DatasetKind, Dsl};
use cenote_format::blkptr::BLKPTR_SIZE;
use cenote_format::stream::RECORD_SIZE;

impl Dsl {
    /// Bytes that the stream of `snapshot` will have, about; `done` bytes of it were received before.
    ///
    /// # Errors
    /// Those of [`Dsl::send`] that are found without reading data.
    pub fn send_estimate(
        &self,
        snapshot: &Dataset,
        from: Option<&Dataset>,
        options: SendOptions,
        done: u64,
    ) -> Result<u64> {
        if snapshot.kind != DatasetKind::Snapshot {
            return Err(SendError::Refused("Invalid argument".into()));
        }
        let Some((compressed, uncompressed)) = self.changed_since(snapshot, from)? else {
            return self.send_measure(snapshot, from, options);
        };
        let record_size = match self.kind_of_head(snapshot)? {
            DatasetKind::Volume => self.get(snapshot, "volblocksize")?,
            _ => self.get(snapshot, "recordsize")?,
        };
        let record_size = record_size.and_then(|v| v.exact.parse().ok()).unwrap_or(128 << 10);
        let records = uncompressed / u64::max(record_size, 1);
        let size = if options.compressed { compressed } else { uncompressed };
        let ends = 2 * RECORD_SIZE as u64;
        // As in OpenZFS, what is less than nothing wraps.
        Ok(size
            .wrapping_sub(records.wrapping_mul(BLKPTR_SIZE as u64))
            .wrapping_add(records.wrapping_mul(RECORD_SIZE as u64))
            .wrapping_add(ends)
            .wrapping_sub(done))
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
    /// Those of [`Dsl::send`] that are found without reading data.
    pub fn send_measure(
        &self,
        dataset: &Dataset,
        from: Option<&Dataset>,
        options: SendOptions,
    ) -> Result<u64> {
        let Prepared { objset, params, begin, list } = self.prepare(dataset, from, options)?;
        let mut emitter = Emitter::new(objset.id(), &params, (begin, &list), None)?;
        pipeline::measure(&objset, &params, &mut emitter)?;
        emitter.finish()
    }
}
