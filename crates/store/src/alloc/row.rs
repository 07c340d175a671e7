//! The metaslabs of a vdev, in order (`vdev_ms`). A vdev that grows gets more of them at the end; those that are there
//! stay where they are, for all that work with them.

use super::metaslab::Metaslab;
use std::iter::successors;
use std::sync::OnceLock;

/// See the head of the module.
#[derive(Default)]
pub struct Metaslabs {
    first: Vec<Metaslab>,
    more: OnceLock<Box<Metaslabs>>,
}

impl Metaslabs {
    pub(super) fn new(first: Vec<Metaslab>) -> Metaslabs {
        Metaslabs { first, more: OnceLock::new() }
    }

    fn rows(&self) -> impl Iterator<Item = &Metaslabs> {
        successors(Some(self), |row| row.more.get().map(|more| &**more))
    }

    /// How many there are.
    #[allow(clippy::len_without_is_empty)] // Every vdev has a metaslab.
    pub fn len(&self) -> usize {
        self.rows().map(|row| row.first.len()).sum()
    }

    /// The one with this number.
    pub fn get(&self, number: usize) -> Option<&Metaslab> {
        let mut number = number;
        for row in self.rows() {
            match row.first.get(number) {
                None => number -= row.first.len(),
                found => return found,
            }
        }
        None
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Metaslab> {
        self.rows().flat_map(|row| &row.first)
    }

    /// Puts more at the end. One at a time does this.
    pub(super) fn push(&self, more: Vec<Metaslab>) {
        let mut row = self;
        let mut new = Box::new(Metaslabs::new(more));
        while let Err(back) = row.more.set(new) {
            let Some(next) = row.more.get() else { return };
            (row, new) = (next, back);
        }
    }
}
