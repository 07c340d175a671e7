//! `zdb -x DIR`: what is read of devices is copied to files of their names in a directory (`vn_dumpdir`).
//!
//! A copy has each byte where the device has it, and holes where nothing was read. The labels are among what is read, so
//! that `zdb -e -p DIR` opens the copies and shows the same again.

use cenote_command::outcome::{Stop, fail};
use cenote_pool::Candidate;
use cenote_vdev::{Device, ReadReq, open_device, read_labels};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// A device that is copied as far as it is read.
struct Copied {
    device: Arc<dyn Device>,
    copy: File,
}

impl Device for Copied {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn path(&self) -> &Path {
        self.device.path()
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        self.device.read_batch(reqs);
        for req in reqs {
            let Some(Ok(bytes)) = &req.result else { continue };
            if let Err(e) = self.copy.write_all_at(&bytes.bytes(), req.offset) {
                req.result = Some(Err(e));
            }
        }
    }

    fn depth(&self, requests: usize, bytes: u64) -> usize {
        self.device.depth(requests, bytes)
    }

    fn concurrency(&self, requests: usize, bytes: u64) -> usize {
        self.device.concurrency(requests, bytes)
    }
}

/// The pool with its devices open; what is read of them is copied to `dir`.
pub fn candidate(found: &Candidate, dir: &Path) -> Result<Candidate, Stop> {
    let mut copied = found.clone();
    for labels in found.devices.iter().chain(&found.aux) {
        let Some(guid) = labels.config.u64("guid") else { continue };
        let Some(name) = labels.path.file_name() else { continue };
        let Ok(device) = open_device(&labels.path) else { continue };
        let path = dir.join(name);
        let copy = match OpenOptions::new().write(true).create(true).truncate(false).open(&path) {
            Ok(copy) => copy,
            Err(e) => return fail(format!("zdb: cannot open '{}': {e}", path.display())),
        };
        let device = Copied { device, copy };
        // The search read them before.
        if let Err(e) = read_labels(&device) {
            return fail(format!("zdb: '{}': {e}", path.display()));
        }
        copied.opened.0.insert(guid, Arc::new(device));
    }
    Ok(copied)
}
