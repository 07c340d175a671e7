//! The books of one change: what it does to names, from both sides.
//!
//! A change gives and takes entries of directories in one place, and counts them in others: in the size and the links of
//! the directory, and in the links of the node. Each place enters here what it does. When the change is made both
//! sides agree for every node, or the file system would be left with counts that are not the numbers of its entries.
//!
//! Only what the change itself does is entered, never a count that was read: on a disk counts may be wrong. What is freed
//! is struck off.
//!
//! # Invariants
//!
//! - A directory is counted as many entries, and as many directories among them, as it got.
//! - A node is given as many links as it got names. The name of a hidden directory is the note in its node.
//! - A node without names is freed or in the unlinked set.

use cenote_format::invariant;

/// What a change did to a node: given less counted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Row {
    ino: u64,
    /// Entries that it has as a directory.
    entries: i64,
    /// Directories among them.
    dirs: i64,
    /// Names of its own.
    names: i64,
}

/// The books of one change.
#[derive(Debug, Default)]
pub(crate) struct Books {
    rows: Vec<Row>,
    /// Nodes that lost their last name, or never had one, and are noted nowhere yet.
    nameless: Vec<u64>,
}

/// What an entry leads to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leads {
    pub(super) ino: u64,
    pub(super) is_dir: bool,
}

impl Books {
    fn change(&mut self, ino: u64, change: impl FnOnce(&mut Row)) {
        match self.rows.iter_mut().find(|row| row.ino == ino) {
            Some(row) => change(row),
            None => {
                let mut row = Row { ino, ..Row::default() };
                change(&mut row);
                self.rows.push(row);
            }
        }
    }

    /// A directory has `by` entries more that lead there.
    fn entry(&mut self, dir: u64, to: Leads, by: i64) {
        self.change(dir, |row| {
            row.entries += by;
            row.dirs += by * i64::from(to.is_dir);
        });
        self.change(to.ino, |row| row.names += by);
    }

    /// A directory got an entry.
    pub(super) fn gave(&mut self, dir: u64, to: Leads) {
        self.entry(dir, to, 1);
    }

    /// A directory lost an entry.
    pub(super) fn took(&mut self, dir: u64, from: Leads) {
        self.entry(dir, from, -1);
    }

    /// A directory is counted so many entries more, some of them directories.
    pub(super) fn counted(&mut self, dir: u64, entries: i64, dirs: i64) {
        self.change(dir, |row| {
            row.entries -= entries;
            row.dirs -= dirs;
        });
    }

    /// A node is noted as the hidden directory of another one.
    pub(super) fn noted(&mut self, ino: u64) {
        self.change(ino, |row| row.names += 1);
    }

    /// A node has links for so many names more.
    pub(super) fn linked(&mut self, ino: u64, names: i64) {
        self.change(ino, |row| row.names -= names);
    }

    /// A node has no name.
    pub(super) fn nameless(&mut self, ino: u64) {
        self.nameless.push(ino);
    }

    /// A node is in the unlinked set.
    pub(super) fn remembered(&mut self, ino: u64) {
        self.nameless.retain(|other| *other != ino);
    }

    /// A node is freed.
    pub(super) fn freed(&mut self, ino: u64) {
        self.rows.retain(|row| row.ino != ino);
        self.remembered(ino);
    }

    /// The change is made: both sides agree.
    pub(super) fn close(&self) {
        for Row { ino, entries, dirs, names } in &self.rows {
            invariant!(
                *entries == 0,
                "directory {ino}: {entries} entries more than it is counted in a change"
            );
            invariant!(
                *dirs == 0,
                "directory {ino}: {dirs} directories more than its links in a change"
            );
            invariant!(*names == 0, "object {ino}: {names} names more than its links in a change");
        }
        let nameless = &self.nameless;
        invariant!(
            nameless.is_empty(),
            "objects {nameless:?} have no names, and are not in the unlinked set"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::{Books, Leads};
    use cenote_format::invariant::caught;

    const FILE: Leads = Leads { ino: 7, is_dir: false };
    const DIR: Leads = Leads { ino: 8, is_dir: true };

    fn why(enter: impl FnOnce(&mut Books)) -> Option<String> {
        let mut books = Books::default();
        enter(&mut books);
        caught(|| books.close()).err()
    }

    #[test]
    fn both_sides_of_a_change_agree() {
        let made = |books: &mut Books| {
            books.linked(8, 1);
            books.gave(3, DIR);
            books.counted(3, 1, 1);
        };
        assert_eq!(why(made), None);
        let moved = |books: &mut Books| {
            books.gave(4, DIR);
            books.took(3, DIR);
            books.counted(3, -1, -1);
            books.counted(4, 1, 1);
        };
        assert_eq!(why(moved), None);
        let removed = |books: &mut Books| {
            books.took(3, FILE);
            books.counted(3, -1, 0);
            books.linked(7, -1);
            books.nameless(7);
            books.remembered(7);
        };
        assert_eq!(why(removed), None);
        // A hidden directory goes with all that is in it.
        let purged = |books: &mut Books| {
            books.took(3, FILE);
            books.freed(7);
            books.freed(3);
        };
        assert_eq!(why(purged), None);
    }

    #[test]
    fn a_side_that_is_missing_is_named() {
        let says = |enter: fn(&mut Books), what: &str| {
            let why = why(enter).unwrap_or_default();
            assert!(why.contains(what), "{why}");
        };
        says(
            |books| {
                books.gave(3, FILE);
                books.linked(7, 1);
            },
            "directory 3: 1 entries",
        );
        says(
            |books| {
                books.took(3, DIR);
                books.linked(8, -1);
                books.counted(3, -1, 0);
            },
            "directory 3: -1 directories",
        );
        says(
            |books| {
                books.took(3, FILE);
                books.counted(3, -1, 0);
            },
            "object 7: -1 names",
        );
        says(|books| books.nameless(9), "objects [9] have no names");
    }
}
