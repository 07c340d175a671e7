//! Faults planted in what a file system has in memory, for tests: each is to be found before it can get on disk. With the
//! feature `planted`. `cargo build` never turns it on; `cargo test --workspace` does, in the programs that tests start as well.

use super::cost::REMOVE;
use super::names;
use super::node::NodeMut;
use super::rmnode;
use crate::Result;
use crate::fs::FileSystem;

impl FileSystem {
    /// A number counts as that of an orphan, whatever has it.
    pub fn plant_orphan(&self, ino: u64) {
        self.orphans().insert(ino, false);
    }

    /// A directory gets an entry that is not counted.
    ///
    /// # Errors
    /// It cannot: the file system is written no more.
    pub fn plant_entry(&self, dir: u64, name: &[u8], ino: u64) -> Result<()> {
        self.change(REMOVE, |cx| names::add(cx, dir, name, ino))
    }

    /// A file loses a link, and keeps its name.
    ///
    /// # Errors
    /// It cannot: the file system is written no more.
    pub fn plant_link(&self, ino: u64) -> Result<()> {
        self.change(REMOVE, |cx| {
            let node = NodeMut::load(cx, ino)?;
            self.drop_link(cx, node, false, &|_| true).map(drop)
        })
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
