//! Flushing one file or block device from several threads at once.
//!
//! The kernel tells of a block of the page cache that it could not write, once to each open file description
//! (`errseq_t`). Of two flushes through one description only one is told, and the other would take lost blocks for
//! durable. So each flush that runs has a description to itself, all of which were opened with the device: one
//! opened later would not be told of what was told before.
//!
//! Invariant: a flush that succeeds found no error since the flush before it through the same description, and there was a
//! description for every error: whatever was written before it is durable.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use parking_lot::{Condvar, Mutex};

/// Most flushes at once.
const MOST: usize = 4;

/// The descriptions through which a device is flushed.
pub(crate) struct Flushes {
    idle: Mutex<Vec<File>>,
    returned: Condvar,
}

impl Flushes {
    /// Those of a file that is open. Where no others can be had there is its own.
    ///
    /// # Errors
    /// It has none.
    pub(crate) fn open(file: &File) -> io::Result<Flushes> {
        // The same file, whatever its path leads to by now.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let others = (1..MOST).map_while(|_| File::open(&path).ok());
        let idle: Vec<File> = others.chain([file.try_clone()?]).collect();
        Ok(Flushes { idle: Mutex::new(idle), returned: Condvar::new() })
    }

    /// Empties the page cache and then, of a block device too, the device's own cache.
    ///
    /// # Errors
    /// Something that was written may be lost.
    pub(crate) fn flush(&self) -> io::Result<()> {
        let mut idle = self.idle.lock();
        let file = loop {
            match idle.pop() {
                Some(file) => break file,
                None => self.returned.wait(&mut idle),
            }
        };
        drop(idle);
        let result = fdatasync(&file);
        let mut idle = self.idle.lock();
        if result.is_err() {
            // They would tell of the same error. The caller takes all for lost that was written until now.
            idle.iter().for_each(|other| drop(fdatasync(other)));
        }
        idle.push(file);
        self.returned.notify_one();
        result
    }
}

fn fdatasync(file: &File) -> io::Result<()> {
    loop {
        match rustix::fs::fdatasync(file) {
            Err(rustix::io::Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_flush_at_once() {
        let file = tempfile::tempfile().unwrap();
        let flushes = Flushes::open(&file).unwrap();
        assert_eq!(flushes.idle.lock().len(), MOST);
        std::thread::scope(|scope| {
            for _ in 0..2 * MOST {
                scope.spawn(|| (0..50).for_each(|_| flushes.flush().unwrap()));
            }
        });
        assert_eq!(flushes.idle.lock().len(), MOST);
    }
}
