//! `zdb -x DIR`: what is read of devices is copied to files of their names in a directory (`vn_dumpdir`).
//!
//! A copy has each byte where the device has it, and holes where nothing was read. The labels are among what is read,
//! so that `zdb -e -p DIR` opens the copies and shows the same again.

use cenote_command::outcome::{Stop, fail};
use cenote_pool::Candidate;
use cenote_vdev::{Device, ReadReq, open_device, read_labels};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// A device that is copied as far as it is read.
struct Copied {
    device: Arc<dyn Device>,
    copy: File,
}

impl Device for Copied {
    fn below(&self) -> Option<&dyn Device> {
        Some(&*self.device)
    }

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
}

/// Which file a path leads to.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// Opens the copy at `path`, which must be a file of its own: not one of the `devices`, and not one
/// of the copies `made`.
fn open_copy(
    path: &Path,
    devices: &[(u64, u64)],
    made: &mut Vec<(u64, u64)>,
) -> Result<File, Stop> {
    let refused = |why: &str| fail(format!("zdb: cannot open '{}': {why}", path.display()));
    // Before it is opened: a pipe would wait for a reader.
    match std::fs::metadata(path) {
        Ok(there) if !there.is_file() => return refused("not a regular file"),
        Ok(there) if devices.contains(&(there.dev(), there.ino())) => {
            return refused("it is a device of the pool");
        }
        _ => {}
    }
    let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    let opened = opened.and_then(|copy| Ok((copy.metadata()?, copy)));
    let (there, copy) = match opened {
        Ok(opened) => opened,
        Err(e) => return refused(&e.to_string()),
    };
    let identity = (there.dev(), there.ino());
    if made.contains(&identity) {
        return refused("two devices of the pool have this name");
    }
    if !there.is_file() || devices.contains(&identity) {
        return refused("not a regular file of its own");
    }
    made.push(identity);
    Ok(copy)
}

/// The pool with its devices open; what is read of them is copied to `dir`.
///
/// # Errors
/// The copy of a device cannot be written, or is a device of the pool, or that of another device.
pub fn candidate(found: &Candidate, dir: &Path) -> Result<Candidate, Stop> {
    let mut copied = found.clone();
    let all = || found.devices.iter().chain(&found.aux);
    let devices: Vec<(u64, u64)> = all().filter_map(|labels| identity(&labels.path)).collect();
    let mut made = Vec::new();
    for labels in all() {
        let Some(guid) = labels.config.u64("guid") else { continue };
        let Some(name) = labels.path.file_name() else { continue };
        let Ok(device) = open_device(&labels.path) else { continue };
        let path = dir.join(name);
        let copy = open_copy(&path, &devices, &mut made)?;
        let device = Copied { device, copy };
        // The search read them before.
        if let Err(e) = read_labels(&device) {
            return fail(format!("zdb: '{}': {e}", path.display()));
        }
        copied.opened.0.insert(guid, Arc::new(device));
    }
    Ok(copied)
}
