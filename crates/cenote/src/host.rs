//! What the library of administration asks of a program that embeds the engine: what is open in the program is in use, and
//! nothing is mounted.

use crate::{Error, Pool, Result};
use cenote_admin::host::{Entered, Exclusion};
use cenote_admin::{ErrorKind, Event, Host, Mounts, Opened, Rights, Session, Unmount};
use cenote_zpl::Difference;
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::sync::Arc;

/// One operation on the datasets of a pool at a time.
#[derive(Default)]
pub(crate) struct Turn(Mutex<()>);

struct Taken<'a>(#[allow(dead_code)] MutexGuard<'a, ()>);

impl Entered for Taken<'_> {}

impl Exclusion for Turn {
    fn enter(&self) -> Box<dyn Entered + '_> {
        Box::new(Taken(self.0.lock()))
    }
}

/// What gets each difference of two states.
pub(crate) type Differs<'a> = dyn FnMut(&Difference) -> io::Result<()> + 'a;

/// A program that embeds the engine.
struct Program<'a> {
    mounts: OpenHere<'a>,
    told: Told,
    differs: Option<&'a mut Differs<'a>>,
}

/// What an operation has told, besides what it returns.
#[derive(Default)]
pub(crate) struct Told {
    /// What failed, the first first.
    pub failed: Vec<cenote_admin::Error>,
    /// What failed, and what is not as may be expected, in words.
    pub warnings: Vec<String>,
    /// Bytes that streams will have, about.
    pub total: u64,
}

impl Host for Program<'_> {
    fn tell(&mut self, event: Event<'_>) -> io::Result<()> {
        match event {
            Event::Failed(e) => {
                tracing::warn!("{e}");
                self.told.failed.push(e.again());
                self.told.warnings.push(e.to_string());
            }
            Event::Warning(text) => {
                tracing::warn!("{text}");
                self.told.warnings.push(text.into());
            }
            Event::EstimateTotal { size, .. } => self.told.total = size,
            Event::Differs(difference) => {
                if let Some(differs) = &mut self.differs {
                    differs(difference)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn mounts(&mut self) -> &mut dyn Mounts {
        &mut self.mounts
    }
}

/// File systems and volumes that are open for writing in the program.
struct OpenHere<'a> {
    pool: &'a Pool,
}

impl OpenHere<'_> {
    fn busy(&self, id: u64) -> Option<String> {
        if !self.pool.live().is_open(id) {
            return None;
        }
        let found = self.pool.view().dsl().by_object(id).ok().flatten();
        let name = found.map_or_else(|| format!("dataset {id}"), |d| d.name);
        Some(format!("{name}: dataset is busy"))
    }
}

impl Mounts for OpenHere<'_> {
    fn give_up(&mut self, name: &str, _force: bool) -> std::result::Result<(), String> {
        let found = self.pool.view().dsl().find(name).map_err(|e| format!("{name}: {e}"))?;
        found.and_then(|d| self.busy(d.ds_obj)).map_or(Ok(()), Err)
    }

    fn can_exchange(&mut self, id: u64) -> bool {
        self.busy(id).is_none()
    }

    fn stays(&mut self, id: u64) -> Option<String> {
        self.busy(id)
    }

    fn take_away(&mut self, ids: &[u64], how: Unmount) -> std::result::Result<Vec<u64>, String> {
        // A new name or another place is no matter to what is open.
        let busy = ids.iter().filter(|_| !how.for_good).find_map(|id| self.busy(*id));
        busy.map_or(Ok(Vec::new()), Err)
    }

    fn follow_properties(&mut self) -> bool {
        self.pool.properties_changed();
        true
    }
}

impl Pool {
    /// Does an operation of administration, one at a time.
    pub(crate) fn administer<T>(
        &self,
        work: impl FnOnce(&mut Session<'_>) -> cenote_admin::Result<T>,
    ) -> Result<T> {
        let _entered = self.turn().enter();
        self.session(None, work)
    }

    /// As [`Pool::administer`], of one that takes its turn itself, or needs none. `differs` is told what differs.
    pub(crate) fn session<'s, T>(
        &'s self,
        differs: Option<&'s mut Differs<'s>>,
        work: impl FnOnce(&mut Session<'_>) -> cenote_admin::Result<T>,
    ) -> Result<T> {
        self.telling(differs, work).map(|(done, _)| done)
    }

    /// As [`Pool::session`]; besides, what was told.
    pub(crate) fn telling<'s, T>(
        &'s self,
        differs: Option<&'s mut Differs<'s>>,
        work: impl FnOnce(&mut Session<'_>) -> cenote_admin::Result<T>,
    ) -> Result<(T, Told)> {
        let _in_use = self.in_use();
        let mounts = OpenHere { pool: self };
        let mut host = Program { mounts, told: Told::default(), differs };
        let opened = match self.engine() {
            Ok(engine) => Opened::Writable(Arc::clone(engine)),
            Err(_) => Opened::ReadOnly(self.view()),
        };
        let turn = Arc::clone(self.turn());
        let mut session = Session::new(opened, Rights::default(), &mut host).beside(turn);
        match work(&mut session) {
            Ok(done) => Ok((done, host.told)),
            // What was told first says more.
            Err(e) if e.kind() == ErrorKind::Told => {
                Err(host.told.failed.into_iter().next().unwrap_or(e).into())
            }
            Err(e) => Err(Error::from(e)),
        }
    }
}
