//! Where a file system's objects come from.

use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::{Object, ObjectSet, Result};
use std::sync::Arc;

/// A fixed object set or a live one.
#[derive(Clone)]
pub(crate) enum Source {
    /// A snapshot, or a dataset as a txg left it.
    Fixed(Arc<ObjectSet>),
    /// A dataset in use.
    Live(Arc<LiveObjectSet>),
}

impl Source {
    /// The object as it is now.
    pub(crate) fn object(&self, number: u64) -> Result<Object> {
        match self {
            Source::Fixed(os) => os.object(number),
            Source::Live(live) => live.object(number),
        }
    }

    /// The object as it is now, good for its attributes (bonus buffer and spill block) at least.
    pub(crate) fn attributes(&self, number: u64) -> Result<Object> {
        match self {
            Source::Fixed(os) => os.object(number),
            Source::Live(live) => live.attributes(number),
        }
    }

    /// The object as it is now, for a caller that looks at it from within a change.
    pub(crate) fn look_from_a_change(&self, number: u64) -> crate::Result<Object> {
        Ok(match self {
            Source::Fixed(os) => os.object(number)?,
            Source::Live(live) => live.look_from_a_change(number)?,
        })
    }

    /// Reads from byte `offset` of an object.
    pub(crate) fn read(&self, number: u64, offset: u64, buf: &mut [u8]) -> Result<()> {
        match self {
            Source::Fixed(os) => os.object(number)?.read(offset, buf),
            Source::Live(live) => live.read(number, offset, buf),
        }
    }

    /// An accounting object as it is now.
    pub(crate) fn special(&self, number: u64) -> Result<Object> {
        match self {
            Source::Fixed(os) => os.special(number),
            Source::Live(live) => live.object(number),
        }
    }

    /// The object set on disk.
    pub(crate) fn base(&self) -> Arc<ObjectSet> {
        match self {
            Source::Fixed(os) => os.clone(),
            Source::Live(live) => live.base(),
        }
    }

    /// The live object set, if it is one.
    pub(crate) fn live(&self) -> Option<&Arc<LiveObjectSet>> {
        match self {
            Source::Fixed(_) => None,
            Source::Live(live) => Some(live),
        }
    }

    /// Makes a write call, and counts what it takes.
    pub(crate) fn write_call<T>(&self, write: impl FnOnce() -> T) -> T {
        match self {
            Source::Fixed(_) => write(),
            Source::Live(live) => live.write_call(write),
        }
    }

    /// The dataset's object number.
    pub(crate) fn id(&self) -> u64 {
        match self {
            Source::Fixed(os) => os.id(),
            Source::Live(live) => live.id(),
        }
    }
}
