//! What a stream leaves out, and what an earlier one left out and this one sends (`send_merge_thread`).
//!
//! Two redaction lists may go beside the walk: that of the bookmark that the stream is redacted by (`--redact`), and that of
//! the bookmark that it starts from. A block is in some of three sources, of which the first that has it counts:
//!
//! | source | what becomes of the block |
//! |---|---|
//! | `redact` | it is left out; nothing is said of it if `from` has it too, as the receiver lacks it already |
//! | the walk | it is sent, since it changed |
//! | `from` | it is sent as it is now, if it is there: the receiver lacks it |
//!
//! The walk asks for what comes before each place that it gets to, and how far what it has goes.

use super::Result;
use crate::redaction::Entries;
use cenote_format::redaction::RedactBlocks;

/// An object and a block in it.
pub(super) type At = (u64, u64);

/// The entries of a list that are not used up.
#[derive(Default)]
struct Source {
    entries: Option<Entries>,
    front: Option<RedactBlocks>,
}

impl Source {
    fn new(entries: Option<Entries>) -> Result<Source> {
        let mut source = Source { entries, front: None };
        source.pull()?;
        Ok(source)
    }

    fn pull(&mut self) -> Result<()> {
        self.front = match &mut self.entries {
            Some(entries) => entries.read_next()?,
            None => None,
        };
        Ok(())
    }

    /// Where the first entry begins.
    fn start(&self) -> Option<At> {
        self.front.map(|front| (front.object, front.first))
    }

    /// Uses up what lies before block `to` of an object.
    fn cut(&mut self, object: u64, to: u64) -> Result<()> {
        while let Some(front) = self.front.filter(|f| f.object == object && f.first < to) {
            if front.end() > to {
                let rest = RedactBlocks { first: to, count: front.end() - to, ..front };
                self.front = Some(rest);
                return Ok(());
            }
            self.pull()?;
        }
        Ok(())
    }

    /// The first entry, if it is of this object.
    fn of(&self, object: u64) -> Option<RedactBlocks> {
        self.front.filter(|front| front.object == object)
    }
}

/// Blocks of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub object: u64,
    pub first: u64,
    /// The block behind the last one.
    pub end: u64,
    /// Bytes of a block, where the blocks are left out; `None`: they were left out before, and are sent.
    pub left_out: Option<u64>,
}

/// What becomes of blocks that the walk has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// They are sent.
    Sent,
    /// They are left out, in blocks of so many bytes.
    LeftOut(u64),
    /// Nothing is said of them.
    Unsaid,
}

/// The lists that go beside a walk.
#[derive(Default)]
pub(super) struct Lists {
    redact: Source,
    from: Source,
}

impl Lists {
    /// The list that the stream is redacted by, and that of its start.
    ///
    /// # Errors
    /// They cannot be read.
    pub(super) fn new(redact: Option<Entries>, from: Option<Entries>) -> Result<Lists> {
        Ok(Lists { redact: Source::new(redact)?, from: Source::new(from)? })
    }

    /// The next blocks in the lists that begin before `at`, as far as they lie before it. They are used up.
    ///
    /// # Errors
    /// The lists cannot be read.
    pub(super) fn before(&mut self, at: At) -> Result<Option<Piece>> {
        loop {
            let (redact, from) = (self.redact.start(), self.from.start());
            let Some(start) = redact.into_iter().chain(from).min().filter(|start| *start < at)
            else {
                return Ok(None);
            };
            let (object, first) = start;
            let limit = if at.0 == object { at.1 } else { u64::MAX };
            let (fate, end) = self.fate(object, first, limit);
            self.redact.cut(object, end)?;
            self.from.cut(object, end)?;
            let left_out = match fate {
                Fate::Unsaid => continue,
                Fate::LeftOut(size) => Some(size),
                Fate::Sent => None,
            };
            return Ok(Some(Piece { object, first, end, left_out }));
        }
    }

    /// What becomes of the blocks of an object from `first` on, of which the walk has those before `end`, and for which
    /// blocks that holds. What lies [before](Lists::before) is used up, and so are these.
    ///
    /// # Errors
    /// The lists cannot be read.
    pub(super) fn at(&mut self, object: u64, first: u64, end: u64) -> Result<(Fate, u64)> {
        let redact = self.redact.of(object);
        let (fate, end) = match redact {
            Some(redact) if redact.first <= first => self.fate(object, first, end),
            Some(redact) => (Fate::Sent, end.min(redact.first)),
            None => (Fate::Sent, end),
        };
        self.redact.cut(object, end)?;
        self.from.cut(object, end)?;
        Ok((fate, end))
    }

    /// The same of blocks that are in a list, and that the walk need not have.
    fn fate(&self, object: u64, first: u64, limit: u64) -> (Fate, u64) {
        let (redact, from) = (self.redact.of(object), self.from.of(object));
        let covers = |entry: &RedactBlocks| entry.first <= first;
        let mut end = limit;
        for entry in redact.iter().chain(&from) {
            end = end.min(if covers(entry) { entry.end() } else { entry.first });
        }
        match (redact.filter(covers), from.filter(covers)) {
            (Some(_), Some(_)) => (Fate::Unsaid, end),
            (Some(redact), None) => (Fate::LeftOut(redact.size), end),
            (None, _) => (Fate::Sent, end),
        }
    }
}
