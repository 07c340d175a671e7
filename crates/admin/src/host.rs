//! What a program that uses the library is told, and asked to do.
//!
//! The library changes pools and knows nothing of what stands around it. Three traits are its view of that:
//!
//! - [`Host`]: it is told what happens ([`Event`]), and shows how far a stream is. An error of it ends the operation.
//! - [`Mounts`]: what is mounted or otherwise in use. The library has datasets closed before it destroys, renames or exchanges them, and
//!   tells what has changed. The answers of [`NoMounts`] are for programs that mount nothing.
//! - [`Exclusion`]: keeps other operations out between a look and the change that follows from it. It is left while a stream is read,
//!   which may stall.
//!
//! The host is told what becomes of each dataset that it has closed: it has changed, or it stays. Where mounting fails the host itself
//! tells the user, and answers `false`; an error is a message that the library passes on.

use crate::Error;
use cenote_dsl::Dataset;
use cenote_dsl::send::Progress;
use cenote_format::stream::token::Token;
use cenote_zpl::Difference;
use std::io;
use std::time::Duration;

/// The program that uses the library.
pub trait Host {
    /// Something happened that a user may want to know.
    ///
    /// # Errors
    /// The operation ends with this error, as far as it has come.
    fn tell(&mut self, event: Event<'_>) -> io::Result<()>;

    /// The mounts of the pool's datasets.
    fn mounts(&mut self) -> &mut dyn Mounts;

    /// Does `work`, a stream that is sent or received, and may show meanwhile how far it is. Without more ado it only does
    /// `work`.
    ///
    /// # Errors
    /// Nothing was done: how far it is cannot be shown.
    fn while_streaming(
        &mut self,
        streaming: &Streaming<'_>,
        work: &mut dyn FnMut(),
    ) -> io::Result<()> {
        let _ = streaming;
        work();
        Ok(())
    }
}

/// A dataset or snapshot that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    /// Its full name.
    pub name: String,
    /// What uses it, if that is known: `process 12 (cat)`.
    pub by: Option<String>,
}

/// A stream that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Streaming<'a> {
    /// The snapshot that is sent or received, by its full name.
    pub name: &'a str,
    /// Bytes that it will have, about; 0 if that is not known.
    pub size: u64,
    /// Whether it is one of a package.
    pub packed: bool,
    /// How far it is.
    pub progress: &'a Progress,
}

/// What happens, in the order in which it does. Names are full ones.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Something was not done. The rest goes on, or the operation ends with [`ErrorKind::Told`](crate::ErrorKind).
    Failed(&'a Error),
    /// Something is not as the user may expect; the operation goes on.
    Warning(&'a str),
    /// A dataset is going to be destroyed, or would be.
    Destroying(&'a str),
    /// So many bytes get free, or would.
    Reclaims(u64),
    /// A clone is going to be promoted, since it was at the sender.
    Promoting(&'a str),
    /// A dataset or snapshot is going to be renamed, since it was at the sender.
    Renaming {
        /// Its name.
        from: &'a str,
        /// Its new name.
        to: &'a str,
    },
    /// What was going to be destroyed or renamed, since it was at the sender, is; or not, as was told.
    Settled(bool),
    /// A dataset lacks the snapshot that a package starts from.
    LacksStart {
        /// The dataset.
        dataset: &'a str,
        /// Short name of the snapshot.
        snapshot: &'a str,
    },
    /// What a dataset is in at the sender is not here yet.
    LacksParent(&'a str),
    /// A stream is going to be received, or would be.
    Receiving {
        /// The snapshot at the sender.
        sent: &'a str,
        /// The snapshot here.
        to: &'a str,
        /// What a new clone is of.
        origin: Option<&'a str>,
        /// It starts from another snapshot.
        incremental: bool,
        /// It heals a snapshot that is there.
        corrective: bool,
    },
    /// A stream was received.
    Received {
        /// Its length in bytes.
        bytes: u64,
        /// How long it took.
        took: Duration,
    },
    /// A snapshot is there already; its stream is passed over.
    IsThere(&'a str),
    /// How long a stream will be.
    Estimate {
        /// The snapshot.
        to: &'a str,
        /// What it starts from; in a package, the short name.
        from: Option<&'a str>,
        /// About so many bytes.
        size: u64,
        /// Whether it is one of a package.
        packed: bool,
    },
    /// How long all streams will be together.
    EstimateTotal {
        /// About so many bytes.
        size: u64,
        /// Whether they are in a package.
        packed: bool,
    },
    /// A stream goes on as a token says.
    Resuming(&'a Token),
    /// A file differs between two states.
    Differs(&'a Difference),
}

/// Keeps others from changing what an operation has looked at, while it changes it. An operation that reads a stream lets
/// them in meanwhile, for a stream may stall.
pub trait Exclusion: Send + Sync {
    /// Waits until all others are out; they stay out until what is returned is dropped.
    fn enter(&self) -> Box<dyn Entered + '_>;
}

/// Others are out as long as this is there.
pub trait Entered {}

/// No other operation changes the pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoOthers;

impl Exclusion for NoOthers {
    fn enter(&self) -> Box<dyn Entered + '_> {
        Box::new(NoOthers)
    }
}

impl Entered for NoOthers {}

/// How to unmount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unmount {
    /// What is in use is taken away as well: programs that use it get errors.
    pub force: bool,
    /// The place is given up: its directory goes if it is empty.
    pub for_good: bool,
}

/// What is mounted, or otherwise in use, of the datasets of a pool. Datasets are named by their full names or by the numbers
/// of their objects (`Dataset::ds_obj`). Where nothing is ever mounted the defaults do ([`NoMounts`]).
pub trait Mounts {
    /// A file system or volume is about to be destroyed: no program can use it any more.
    ///
    /// # Errors
    /// It is in use: the message.
    fn give_up(&mut self, name: &str, force: bool) -> Result<(), String> {
        let _ = (name, force);
        Ok(())
    }

    /// Snapshots are about to be destroyed: no program can begin to use them until the host is told that they
    /// [changed](Mounts::snapshots_changed) or [stay](Mounts::snapshots_stay).
    ///
    /// # Errors
    /// Those that are in use. All stay.
    fn close_snapshots(&mut self, names: &[String]) -> Result<(), Vec<InUse>> {
        let _ = names;
        Ok(())
    }

    /// Snapshots that were closed stay.
    fn snapshots_stay(&mut self, names: &[String]) {
        let _ = names;
    }

    /// Snapshots were taken or destroyed, or have got or lost these names.
    fn snapshots_changed(&mut self, names: &[String]) {
        let _ = names;
    }

    /// A snapshot of `head` has another short name; with `recursive` so have the snapshots of the datasets below.
    fn snapshot_renamed(&mut self, head: &str, recursive: bool, old: &str, new: &str) {
        let _ = (head, recursive, old, new);
    }

    /// A dataset has another name, and so has all that is below it.
    fn renamed(&mut self, from: &str, to: &str) {
        let _ = (from, to);
    }

    /// Whether a dataset can get other contents as it is: it is not in use, or its users can go on in them.
    fn can_exchange(&mut self, id: u64) -> bool {
        let _ = id;
        true
    }

    /// Why a dataset that cannot be exchanged cannot be unmounted either; `None`: it can.
    fn stays(&mut self, id: u64) -> Option<String> {
        let _ = id;
        None
    }

    /// Has `change` give a dataset other contents; it tells whether it did. No program can use it meanwhile; its users go on in
    /// the new contents. These are on disk already, and do not change any more: `coming` is the object of the dataset
    /// that has them. `None`: they cannot be read before.
    ///
    /// # Errors
    /// It cannot be closed, and `change` was not called; or it cannot be opened again.
    fn exchange(
        &mut self,
        id: u64,
        coming: Option<u64>,
        change: &mut dyn FnMut() -> bool,
    ) -> Result<(), String> {
        let _ = (id, coming);
        change();
        Ok(())
    }

    /// What was mounted inside the dataset that was exchanged last is mounted again, as far as it was lost. False: not all
    /// is, as the user was told.
    fn restore(&mut self) -> bool {
        true
    }

    /// Whether a dataset is mounted.
    fn is_mounted(&mut self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// Unmounts datasets, and what is mounted inside. Returns those that were mounted.
    ///
    /// # Errors
    /// One is in use: the message. All are mounted again then.
    fn take_away(&mut self, ids: &[u64], how: Unmount) -> Result<Vec<u64>, String> {
        let _ = (ids, how);
        Ok(Vec::new())
    }

    /// Mounts what was taken away, where it belongs now. With `moved` places of their own that mounts were given are
    /// forgotten. False: not all is mounted, as the user was told.
    fn bring_back(&mut self, moved: bool) -> bool {
        let _ = moved;
        true
    }

    /// Mounts a dataset that was created, if it is meant to be. False: it is not mounted, as the user was told.
    fn mount_new(&mut self, name: &str) -> bool {
        let _ = name;
        true
    }

    /// Mounts those that are meant to be mounted and are not. False: not all are, as the user was told.
    fn mount_all(&mut self, datasets: &[Dataset]) -> bool {
        let _ = datasets;
        true
    }

    /// Properties were changed, which those that are mounted follow (`dsl_prop_notify_all`). False: not all do, as the user
    /// was told.
    fn follow_properties(&mut self) -> bool {
        true
    }
}

/// Nothing is mounted.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMounts;

impl Mounts for NoMounts {}

/// A host that mounts nothing, and keeps the failures and warnings that it was told.
#[derive(Debug, Default)]
pub struct Quiet {
    /// The messages, oldest first.
    pub told: Vec<String>,
    mounts: NoMounts,
}

impl Host for Quiet {
    fn tell(&mut self, event: Event<'_>) -> io::Result<()> {
        match event {
            Event::Failed(e) => self.told.push(e.to_string()),
            Event::Warning(text) => self.told.push(text.to_string()),
            _ => {}
        }
        Ok(())
    }

    fn mounts(&mut self) -> &mut dyn Mounts {
        &mut self.mounts
    }
}
