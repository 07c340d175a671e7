//! The changes that users make to datasets: creating, destroying, renaming, properties, snapshots.
//!
//! # Idea
//!
//! A [`Changes`] is the pool as a user changes it. Each change is looked at twice. First on the view
//! of the last transaction group, where names are checked and values are parsed, so that wrong ones
//! are refused in the words that users know. Then in one sync task: there it finds everything again
//! by name, checks again what can have changed meanwhile, does it, and writes the record of history.
//! So a change is there as a whole or not at all, whatever else happens at the same time.
//!
//! What is in an object set is the floor above's: a new file system or volume is filled, and a
//! volume resized, by its [`Contents`].
//!
//! | room | what |
//! |---|---|
//! | [`names`] | what names may be |
//! | `permissions` | delegated permissions |
//! | [`policy`] | what each change needs of a user who is not the owner |
//! | [`props`] | properties: which may be set to what |
//! | `quotas` | quotas of users, groups and projects |
//! | `create` | new file systems and volumes |
//! | `crypt` | keys of encrypted datasets changed |
//! | `clone` | clones, and promoting them |
//! | `destroy` | destroying; what goes with it, what that frees |
//! | [`receive`] | receiving streams |
//! | `redact` | redaction bookmarks |
//! | `rename` | renaming |
//! | `set` | setting and inheriting properties |
//! | `shares` | what may be said of shares |
//! | `snapshot` | taking and renaming snapshots |
//! | `rollback` | rolling back to a snapshot |
//! | `holds` | holds on snapshots; bookmarks |
//! | [`reserve`] | what a volume needs to be able to be filled |
//! | `error` | refusals |
//!
//! Invariants: a task that is refused, at whatever point, has changed nothing: the engine takes back what
//! it did. Records of history are in the transaction group of what they tell of.

mod clone;
mod create;
mod crypt;
mod destroy;
mod error;
mod holds;
pub mod kept;
pub mod names;
mod permissions;
pub mod policy;
pub mod props;
mod quotas;
pub mod receive;
mod redact;
mod rename;
pub mod reserve;
mod rollback;
mod set;
mod shares;
mod snapshot;

pub use clone::NewClone;
pub use create::{
    Format, Kind, NewDataset, NewEncryption, default_block_size, missing_ancestors, root_filesystem,
};
pub use crypt::NewKey;
pub use destroy::{Dependent, Dependents, dependents, reclaimed, snapshots_of};
pub use error::{ChangeError, Failed, Result};
pub use permissions::is_delegatable;
pub use quotas::is_quota;
pub use redact::{NewRedaction, RedactRefused};
pub use rollback::Later;
pub use set::is_accounted;
pub use snapshot::NewSnapshot;

use crate::{Engine, SpaceCheck, SyncContext};
use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_dsl::permissions::Who;
use cenote_dsl::write::{DslWriteError, Tx, rename as dirs, snapshot as snaps};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::history;
use parking_lot::Mutex;
use policy::{Operation, Permit};
use std::sync::Arc;

/// What is in the object sets of file systems and volumes: the floor above.
pub trait Contents: Send + Sync {
    /// Puts into a new object set what every one of its kind has.
    ///
    /// # Errors
    /// The object set could not be changed.
    fn fill(
        &self,
        os: &mut OpenObjectSet,
        format: &Format,
        txg: u64,
    ) -> std::result::Result<(), WriteError>;

    /// Changes the size of a volume, in bytes.
    ///
    /// # Errors
    /// The object set could not be changed.
    fn resize(&self, volume: Arc<LiveObjectSet>, size: u64) -> std::result::Result<(), WriteError>;

    /// Takes a file system to a later version.
    ///
    /// # Errors
    /// The object set could not be changed; it is no file system that this knows.
    fn upgrade(
        &self,
        os: &mut OpenObjectSet,
        version: u64,
        txg: u64,
    ) -> std::result::Result<(), WriteError> {
        let _ = (os, txg);
        let why = format!("a file system of version {version}");
        Err(WriteError::Invalid { object: 0, why })
    }
}

/// The command that a change is part of, for the history.
#[derive(Clone, Debug)]
pub struct Command {
    /// Its words, joined by blanks.
    pub line: String,
    /// Number of the user that gave it.
    pub who: u64,
}

/// The datasets of a pool, to be changed.
pub struct Changes {
    engine: Arc<Engine>,
    contents: Arc<dyn Contents>,
    /// The command that is not recorded yet.
    command: Mutex<Option<Command>>,
    /// The user who makes the changes.
    who: Arc<Who>,
    /// The user may do what is delegated, and nothing else.
    delegated: bool,
}

/// How history calls a change that is a request of its own to OpenZFS's kernel module, and what it
/// asks for there.
#[derive(Clone, Debug)]
struct Request {
    name: &'static str,
    input: NvList,
}

/// What becomes of intent logs while a change is made.
enum Logs {
    /// They are ended: the change may make an object set the base of another.
    End,
    /// They go on.
    Stay,
}

impl Request {
    /// What is asked of snapshots: a list of their names under `snaps`.
    fn of_snapshots(name: &'static str, snapshots: &[String]) -> Request {
        let names = snapshots.iter().map(|snapshot| (snapshot.clone(), NvValue::Boolean));
        let names = NvList { pairs: names.collect() };
        let mut input = NvList::default();
        input.set("snaps", NvValue::NvList(names));
        Request { name, input }
    }
}

/// What a sync task of a change says: done, or refused.
type Outcome<T> = std::result::Result<Result<T>, DslWriteError>;

impl Changes {
    /// The datasets of `engine`'s pool. With `command`, the first change that is made is recorded as
    /// made by that command; without one, requests are recorded as those of this process's user.
    pub fn new(
        engine: Arc<Engine>,
        contents: Arc<dyn Contents>,
        command: Option<Command>,
    ) -> Changes {
        let own = || u64::from(rustix::process::getuid().as_raw());
        let user = command.as_ref().map_or_else(own, |command| command.who);
        let who = Arc::new(permissions::who(user));
        Changes { engine, contents, command: Mutex::new(command), who, delegated: false }
    }

    /// The same for a user who may do what is delegated, and nothing else.
    pub fn delegated(
        engine: Arc<Engine>,
        contents: Arc<dyn Contents>,
        command: Option<Command>,
        who: Who,
    ) -> Changes {
        let (who, command) = (Arc::new(who), Mutex::new(command));
        Changes { engine, contents, command, who, delegated: true }
    }

    /// Whether the user may do something. A command that does more than a change asks first.
    ///
    /// # Errors
    /// `Denied`, `NoDelegation`; the pool's metadata cannot be read.
    pub fn permit(&self, operation: &Operation<'_>) -> Result<Permit> {
        let who = self.delegated.then_some(&*self.who);
        policy::check(&self.engine.pool(), who, operation)
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Does `change`, of about so many blocks of the MOS, in syncing context, and records the command.
    fn task<T: Send + 'static>(
        &self,
        permit: Permit,
        limits: (SpaceCheck, u64),
        change: impl FnOnce(&mut SyncContext<'_>) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        self.recorded(permit, limits, (None, |_| true), Logs::End, change)
    }

    /// As [`Changes::task`], of a change that leaves object sets as they are.
    fn task_beside_logs<T: Send + 'static>(
        &self,
        permit: Permit,
        limits: (SpaceCheck, u64),
        change: impl FnOnce(&mut SyncContext<'_>) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        self.recorded(permit, limits, (None, |_| true), Logs::Stay, change)
    }

    /// As [`Changes::task`], of a change that is a request, which is recorded if it is done: a change
    /// that refuses with particulars has done nothing.
    fn request<T: Send + 'static, E: Send + 'static>(
        &self,
        permit: Permit,
        limits: (SpaceCheck, u64),
        request: Request,
        change: impl FnOnce(&mut SyncContext<'_>) -> Outcome<std::result::Result<T, E>> + Send + 'static,
    ) -> Result<std::result::Result<T, E>> {
        let logs = match request.name {
            "bookmark" | "destroy_bookmarks" | "destroy_snaps" | "hold" | "redact" | "release" => {
                Logs::Stay
            }
            _ => Logs::End,
        };
        self.recorded(permit, limits, (Some(request), std::result::Result::is_ok), logs, change)
    }

    /// Runs the task of a change, which needs a permit.
    fn recorded<T: Send + 'static>(
        &self,
        _: Permit,
        (check, blocks): (SpaceCheck, u64),
        (request, is_done): (Option<Request>, fn(&T) -> bool),
        logs: Logs,
        change: impl FnOnce(&mut SyncContext<'_>) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        let command = self.command.lock().take();
        let again = command.clone();
        let (who, clock) = (Arc::clone(&self.who), self.engine.clock());
        let begin = clock.now();
        let task = move |context: &mut SyncContext<'_>| {
            if !context.has_room(check, blocks)? {
                return Ok(Err(match check {
                    SpaceCheck::Nothing => ChangeError::Kept,
                    _ => ChangeError::NoSpace,
                }));
            }
            context.tx.who = Some(Arc::clone(&who));
            let changed = change(context);
            context.tx.who = None;
            let done = match changed {
                Ok(done) => done,
                Err(DslWriteError::Fatal(e)) => return Err(e.into()),
                Err(refused) => Err(refused.into()),
            };
            if !done.as_ref().is_ok_and(is_done) {
                return Ok(done.map(|refused| (refused, false)));
            }
            let now = context.tx.now;
            if let Some(Request { name, input }) = request {
                append(
                    &mut context.tx,
                    &history::ioctl(name, input, who.user, clock.since(begin), now),
                )?;
            }
            if let Some(command) = command {
                append(&mut context.tx, &history::command(&command.line, command.who, now))?;
            }
            Ok(done.map(|done| (done, true)))
        };
        let made = |told: &Result<(T, bool)>| matches!(told, Ok((_, true)));
        let done = match logs {
            Logs::End => self.engine.sync_task_if(task, made),
            Logs::Stay => self.engine.sync_task_beside_logs(task, made),
        };
        let done = done.map_err(ChangeError::from).flatten();
        let done = done.map(|(done, _)| done);
        if !done.as_ref().is_ok_and(is_done) {
            *self.command.lock() = again;
        }
        done
    }
}

/// Writes a record of what happened to a dataset.
fn record(
    tx: &mut Tx<'_>,
    what: &str,
    message: &str,
    (name, object): (&str, u64),
) -> std::result::Result<(), DslWriteError> {
    let record: NvList = history::internal(what, message, Some((name, object)), tx.txg, tx.now);
    append(tx, &record)
}

/// Appends to the history (`spa_history_log_internal`). A history that cannot be read does not stop changes.
fn append(tx: &mut Tx<'_>, record: &NvList) -> std::result::Result<(), DslWriteError> {
    let appended = |tx: &mut Tx<'_>| Ok(history::append(tx.mos, record)?);
    tx.unless_unreadable("the pool's history is not written", appended).map(drop)
}

/// The directory and head of a name, as they are now.
fn find_head(tx: &mut Tx<'_>, name: &str) -> std::result::Result<(u64, u64), DslWriteError> {
    let dir = dirs::find_dir(tx, name)?.ok_or(DslWriteError::NotFound)?;
    Ok((dir, dirs::head_of(tx, dir)?))
}

/// The snapshot of a name, as it is now, and the head that it is of.
fn find_snapshot(tx: &mut Tx<'_>, name: &str) -> std::result::Result<(u64, u64), DslWriteError> {
    let (head, short) = name.split_once('@').ok_or(DslWriteError::NotFound)?;
    let (_, head) = find_head(tx, head)?;
    let snapshot = snaps::find_snapshot(tx, head, short)?.ok_or(DslWriteError::NotFound)?;
    Ok((head, snapshot))
}
