//! The device as others see it.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use cenote_format::LABEL_START;
use cenote_format::abd::Abd;
use cenote_format::label::LABEL_END;

use super::core::Core;
use crate::device::{Device, ReadReq, WriteReq};
use crate::growing::Growing;

/// What keeps other writers off, as long as it lives: the lock of a directory.
pub(super) struct WriterLock {
    pub _held: Option<File>,
}

/// See the head of the module above.
pub(super) struct ObjectDevice {
    pub core: Arc<Core>,
    /// It is open for writing.
    pub writer: Option<Arc<WriterLock>>,
}

impl Device for ObjectDevice {
    fn size(&self) -> u64 {
        self.core.size.load(Relaxed) + LABEL_START + LABEL_END
    }

    fn size_by_now(&self) -> u64 {
        self.core.size_by_now() + LABEL_START + LABEL_END
    }

    fn grow(&self, size: u64) {
        self.core.grow(size.saturating_sub(LABEL_START + LABEL_END));
    }

    fn path(&self) -> &Path {
        &self.core.path
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        let (mut blocks, mut asked) = (Vec::new(), Vec::new());
        for (n, req) in reqs.iter_mut().enumerate() {
            if self.core.is_label(req.offset) {
                let bytes = self.core.read_label(req.offset, req.len);
                req.result = Some(Ok(Abd::from_vec(bytes)));
            } else {
                blocks.push((req.offset - LABEL_START, req.len as u64));
                asked.push(n);
            }
        }
        if blocks.is_empty() {
            return;
        }
        for (n, answer) in asked.into_iter().zip(self.core.read(&blocks)) {
            // Answers are parts of what came at once: one that is kept must not keep all of that.
            reqs[n].result = Some(answer.map(|bytes| Abd::copy_of(&bytes)));
        }
    }

    fn writable(&self) -> bool {
        self.writer.is_some()
    }

    fn write_batch(&self, reqs: &mut [WriteReq]) {
        // One block of a batch waits for a store that is away, and not each.
        let mut away = None;
        for req in reqs {
            let begun = Instant::now();
            let written = match (self.writable(), &away) {
                (false, _) => Err(ErrorKind::ReadOnlyFilesystem.into()),
                (true, Some(why)) if !self.core.is_label(req.offset) => {
                    Err(io::Error::other(String::clone(why)))
                }
                (true, _) => self.core.write(req),
            };
            if let Err(error) = &written
                && self.core.is_away_since(begun)
            {
                away = Some(error.to_string());
            }
            req.result = Some(written);
        }
    }

    fn flush(&self) -> io::Result<()> {
        if !self.writable() {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        self.core.flush()
    }

    fn is_there(&self) -> bool {
        self.core.is_there()
    }

    fn is_unlinked(&self) -> bool {
        self.core.is_deleted()
    }

    fn concurrency(&self, requests: usize, _: u64) -> usize {
        // Each batch asks for its blocks at once.
        requests.min(1)
    }

    fn growing(&self) -> Option<Arc<dyn Growing>> {
        Some(self.core.clone())
    }
}
