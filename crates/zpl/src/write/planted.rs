//! Faults planted in what a file system has in memory, for tests: each is to be found before it can get on disk. With the
//! feature `planted`. `cargo build` never turns it on; `cargo test --workspace` does, in the programs that tests start as well.

use super::cost::REMOVE;
use super::node::NodeMut;
use super::rmnode;
use crate::Result;
use crate::fs::FileSystem;

impl FileSystem {
    /// A number counts as that of an orphan, whatever has it.
    pub fn plant_orphan(&self, ino: u64) {
        self.orphans().insert(ino, false);
    }

    /// A file is freed that has names.
    ///
    /// # Errors
    /// It cannot be: the file system is written no more.
    pub fn plant_free(&self, ino: u64) -> Result<()> {
        self.change(REMOVE, |cx| {
            let node = NodeMut::load(cx, ino)?;
            rmnode::destroy(cx, &node)
        })
    }
}
