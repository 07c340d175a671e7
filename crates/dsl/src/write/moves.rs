//! Changes that bring the contents of data sets elsewhere, for a walk that has seen some of them and has to see the rest.

/// What a change has moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// A snapshot was taken of a head: it has what the head had.
    Snapshotted {
        /// The head's object.
        head: u64,
        /// The snapshot's.
        snap: u64,
    },
    /// A data set is gone. Of a snapshot others may have blocks still: then the `next` one has them. 0: there is none.
    Gone {
        /// The object that is free now.
        ds: u64,
        /// What came after it at that time.
        next: u64,
    },
    /// Two heads that come after the same snapshot have each other's contents.
    Swapped(u64, u64),
    /// A head refers to blocks that are older than their place in it: they were cloned, or are deduplicated.
    Gained {
        /// The head's object.
        ds: u64,
        /// All pointers to them were born later than this group.
        after: u64,
    },
}
