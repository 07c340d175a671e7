//! Streams become snapshots (`zfs_receive`).
//!
//! | room | what |
//! |---|---|
//! | `one` | one stream (`zfs_receive_one`) |
//! | `names` | what the snapshot is called here, and what it starts from |
//! | `package` | the next stream, or a package of them (`zfs_receive_package`) |
//! | `follow` | what was renamed, promoted or destroyed at the sender |
//! | `props` | properties and holds of what is received |
//! | `heal` | damaged blocks of a snapshot that is there, written anew |
//! | `said` | why a stream was not received, in OpenZFS's words |
//! | `abort` | what an interrupted receive left is destroyed |
//!
//! Others may change the pools while a stream comes in. Only the beginning and the end of each stream keep them out
//! ([`Exclusion`](crate::Exclusion)); nothing is read meanwhile, for the input may stall.

mod abort;
mod follow;
mod heal;
mod names;
mod one;
mod package;
mod props;
mod said;

use crate::error::{Error, ErrorKind, Result};
use crate::session::Session;
use cenote_engine::change::receive::Source;
use cenote_engine::change::{Changes, NewEncryption};
use cenote_format::stream::package::Package;
use std::io::Read;
use std::sync::Arc;

/// How to receive (`recvflags_t`).
#[derive(Clone, Debug, Default)]
pub struct Receive {
    /// The name at the sender, without the pool's, goes below the one that is given (`-d`).
    pub prefix: bool,
    /// With [`Receive::prefix`]: only the last component does (`-e`).
    pub tail: bool,
    /// What is there is changed as the sender's is: rolled back, and destroyed (`-F`).
    pub force: bool,
    /// What is mounted is unmounted by force (`-M`).
    pub force_unmount: bool,
    /// Nothing is changed (`-n`).
    pub dry_run: bool,
    /// What has come stays if the receive is interrupted (`-s`).
    pub resumable: bool,
    /// What was received is not mounted (`-u`).
    pub no_mount: bool,
    /// Holds are not received (`-h`).
    pub skip_holds: bool,
    /// Nothing is made: damaged blocks of snapshots that are there are written anew from streams of them (`-c`).
    pub heal: bool,
    /// The snapshot that a new dataset is a clone of (`-o origin=`).
    pub origin: Option<String>,
    /// Properties that count in place of those that come (`-o`).
    pub set: Vec<(String, String)>,
    /// Properties that are inherited, whatever comes (`-x`).
    pub inherit: Vec<String>,
    /// How a new dataset is encrypted (`-o encryption=`, `-o keyformat=`); `None`: that is not said.
    pub encryption: Option<NewEncryption>,
}

/// What was received.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// Full names of the snapshots, in the order in which they came.
    pub snapshots: Vec<String>,
}

/// What is being received.
struct Job<'s, 'h> {
    session: &'s mut Session<'h>,
    how: &'s Receive,
    /// The name that was given.
    target: String,
    changes: Arc<Changes>,
    /// The uppermost dataset that was received.
    top: Option<String>,
    /// Something was received that must be mounted.
    mount: bool,
    /// Holds are in the package.
    holds: bool,
    /// A snapshot of the package was not healed, which was told.
    not_healed: bool,
    received: Received,
}

/// A package that a stream is part of.
struct Within<'a> {
    /// What it says of its streams.
    list: Option<&'a Package>,
    /// The dataset that was sent, at the sender.
    sent: &'a str,
    /// There is no package: the stream comes alone.
    alone: bool,
}

impl Session<'_> {
    /// Receives a stream, or a package of streams, from `input` (`lzc_receive`). `target` is a dataset, or a snapshot of it;
    /// with [`Receive::prefix`], what the dataset is to be below.
    ///
    /// # Errors
    /// The stream is damaged or ends early ([`ErrorKind::Stream`]); it does not fit what is there; a property is not right; the
    /// user may not. [`ErrorKind::Told`]: not all could be done that a package asks for, or not all is mounted. What was
    /// received before stays.
    pub fn receive(
        &mut self,
        target: &str,
        how: &Receive,
        input: &mut (dyn Read + Send),
    ) -> Result<Received> {
        how.check()?;
        let changes = self.changes().map_err(|e| Error::doing("cannot receive", e))?;
        let delegated = self.is_delegated();
        let mut job = Job {
            session: self,
            how,
            target: target.into(),
            changes,
            top: None,
            mount: false,
            holds: false,
            not_healed: false,
            received: Received::default(),
        };
        let mut source = Source::new(input);
        source.limit_lists(Some(package::LONGEST_LIST).filter(|_| delegated));
        package::next(&mut job, &mut source, None)?;
        let mounted = how.no_mount || !job.mount || one::mount_all(&mut job)?;
        if mounted { Ok(job.received) } else { Err(Error::told()) }
    }
}

fn cannot(kind: ErrorKind, why: impl std::fmt::Display) -> Error {
    Error::new(kind, format!("cannot receive: {why}"))
}
