//! A pool that is open, the rights that count, and the program that is told.

use crate::contents::Files;
use crate::error::{Error, ErrorKind, Result};
use crate::host::{Event, Exclusion, Host, InUse, NoOthers};
use cenote_dsl::permissions::Who;
use cenote_engine::change::policy::{self, Operation};
use cenote_engine::change::{ChangeError, Changes, Command, Contents};
use cenote_engine::{Engine, Holder};
use cenote_pool::Pool;
use std::fmt;
use std::sync::Arc;

/// How a pool is open.
#[derive(Clone)]
pub enum Opened {
    /// As it is on its devices: nothing will change.
    ReadOnly(Arc<Pool>),
    /// For writing.
    Writable(Arc<Engine>),
}

impl Opened {
    /// The pool as its last transaction group left it.
    pub fn pool(&self) -> Arc<Pool> {
        match self {
            Opened::ReadOnly(pool) => Arc::clone(pool),
            Opened::Writable(engine) => engine.pool(),
        }
    }

    /// What writes the pool; `None`: it is read-only.
    pub fn engine(&self) -> Option<&Arc<Engine>> {
        match self {
            Opened::ReadOnly(_) => None,
            Opened::Writable(engine) => Some(engine),
        }
    }
}

/// For whom an operation is done.
#[derive(Clone)]
pub struct Rights {
    /// The user may do what is delegated, and nothing else; `None`: everything.
    pub delegate: Option<Who>,
    /// What new file systems have in them, and to whom they belong.
    pub contents: Arc<dyn Contents>,
    /// The command that is recorded in the pool's history with the first change.
    pub command: Option<Command>,
    /// The process that the operation is done for (`process 12 (zfs send)`): what its work stands in the way of says so.
    pub process: String,
}

impl Default for Rights {
    /// Of a program that may do everything, and records nothing but its changes.
    fn default() -> Rights {
        let process = format!("process {}", std::process::id());
        Rights { delegate: None, contents: Arc::new(Files), command: None, process }
    }
}

impl Rights {
    /// The changes that these allow.
    pub fn changes(self, engine: &Arc<Engine>) -> Changes {
        let (engine, Rights { delegate, contents, command, .. }) = (Arc::clone(engine), self);
        match delegate {
            None => Changes::new(engine, contents, command),
            Some(who) => Changes::delegated(engine, contents, command, who),
        }
    }
}

/// Operations on the datasets of a pool. They are spread over the modules of this crate: [`crate::destroy`],
/// [`crate::rollback`] and so on.
pub struct Session<'h> {
    opened: Opened,
    delegate: Option<Who>,
    process: String,
    changes: Option<Arc<Changes>>,
    exclusion: Arc<dyn Exclusion>,
    pub(crate) host: &'h mut dyn Host,
}

impl<'h> Session<'h> {
    /// A session on a pool. No other session changes its datasets meanwhile: the caller sees to it.
    pub fn new(opened: Opened, rights: Rights, host: &'h mut dyn Host) -> Session<'h> {
        let (delegate, process) = (rights.delegate.clone(), rights.process.clone());
        let changes = opened.engine().map(|engine| Arc::new(rights.changes(engine)));
        Session { opened, delegate, process, changes, exclusion: Arc::new(NoOthers), host }
    }

    /// The same beside others, which [receiving](Session::receive) keeps out while it looks and changes.
    pub fn beside(self, exclusion: Arc<dyn Exclusion>) -> Session<'h> {
        Session { exclusion, ..self }
    }

    /// The pool as its last transaction group left it.
    pub fn pool(&self) -> Arc<Pool> {
        self.opened.pool()
    }

    /// What writes the pool; `None`: it is read-only.
    pub fn engine(&self) -> Option<&Arc<Engine>> {
        self.opened.engine()
    }

    /// The changes that the user may make.
    ///
    /// # Errors
    /// The pool is read-only.
    pub fn changes(&self) -> std::result::Result<Arc<Changes>, ChangeError> {
        self.changes.clone().ok_or(ChangeError::ReadOnly)
    }

    /// The changes that the user may make, for an operation that is called `what` (`cannot destroy 'tank/a'`).
    ///
    /// # Errors
    /// The pool is read-only.
    pub fn writable(&self, what: impl FnOnce() -> String) -> Result<Arc<Changes>> {
        self.changes().map_err(|e| Error::doing(what(), e))
    }

    /// Whether the user may do something. Each change asks that itself; an operation asks before it looks at what is not
    /// everybody's to see, or unmounts something for a change.
    ///
    /// # Errors
    /// `Denied`, `NoDelegation`; the pool's metadata cannot be read.
    pub fn permit(&self, operation: &Operation<'_>) -> std::result::Result<(), ChangeError> {
        policy::check(&self.pool(), self.delegate.as_ref(), operation).map(drop)
    }

    /// Whether the user may do no more than what is delegated.
    pub(crate) fn is_delegated(&self) -> bool {
        self.delegate.is_some()
    }

    /// What keeps others out.
    pub(crate) fn exclusion(&self) -> Arc<dyn Exclusion> {
        Arc::clone(&self.exclusion)
    }

    /// What a dataset is held for while it is read here.
    pub(crate) fn reader(&self) -> Holder {
        Holder::Reader(self.process.clone())
    }

    /// Why a change of the dataset or snapshot `name` was refused; if it is in use, with what uses it as far as that is known.
    pub(crate) fn cannot(&self, what: impl fmt::Display, name: &str, e: ChangeError) -> Error {
        let by = || {
            let dataset = self.pool().dsl().find(name).ok()??;
            self.engine()?.use_of(dataset.ds_obj)
        };
        match matches!(e, ChangeError::Busy).then(by).flatten() {
            Some(by) => Error::new(ErrorKind::Busy, format!("{what}: {e}: {by}")),
            None => Error::doing(what, e),
        }
    }

    /// As [`Session::cannot`], of what the host's mounts know to be in use.
    pub(crate) fn busy(&self, what: impl fmt::Display, used: &InUse) -> Error {
        match &used.by {
            Some(by) => {
                let text = format!("{what}: {}: {by} uses it", ChangeError::Busy);
                Error::new(ErrorKind::Busy, text)
            }
            None => self.cannot(what, &used.name, ChangeError::Busy),
        }
    }

    /// Tells that something was not done.
    pub(crate) fn failed(&mut self, e: Error) -> Result<()> {
        Ok(self.host.tell(Event::Failed(&e))?)
    }

    pub(crate) fn tell(&mut self, event: Event<'_>) -> Result<()> {
        Ok(self.host.tell(event)?)
    }
}
