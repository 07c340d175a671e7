//! What differs between a snapshot and a later one, or the file system as it is now (`zfs_show_diffs`).
//!
//! For the file system as it is now a snapshot is taken, and destroyed in the end.

use crate::error::{Error, ErrorKind, Reason, Result, Why};
use crate::host::Event;
use crate::session::{Rights, Session};
use cenote_dsl::Dataset;
use cenote_engine::change::policy::Operation;
use cenote_engine::change::{ChangeError, Changes, NewSnapshot};
use cenote_zpl::{DiffStop, Difference, differences};
use std::io;

/// How the name of the snapshot of the file system as it is now begins (`ZDIFF_PREFIX`).
const PREFIX: &str = "zfs-diff-";
/// What is said to users who may not compare.
const NEEDED: &str = "\n   The sys_mount privilege or diff delegated permission is needed\n   \
                      to execute the diff ioctl";
const NOT_EARLIER: &str = "\n   Not an earlier snapshot from the same fs";

/// Two states of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct States {
    /// The file system of the later one.
    pub head: String,
    /// The earlier one: the full name of a snapshot.
    pub from: String,
    /// The later one: the full name of a snapshot; `None`: the file system as it is now.
    pub to: Option<String>,
}

impl States {
    /// The states that two names stand for (`get_snapshot_names`). One of them may leave out the file system; without `to` it
    /// is the file system as it is now.
    ///
    /// # Errors
    /// They name no two states.
    pub fn parse(from: &str, to: Option<&str>) -> Result<States> {
        let invalid = |text: String| Error::new(ErrorKind::Invalid, text);
        let which = || {
            let why = "Unable to determine which snapshots to compare: invalid name";
            invalid(why.into())
        };
        let Some(to) = to else {
            let Some((head, _)) = from.split_once('@').filter(|(head, _)| !head.is_empty()) else {
                return Err(invalid(format!(
                    "Badly formed snapshot name {from}: missing '@' delimiter in snapshot name"
                )));
            };
            return Ok(States { head: head.into(), from: from.into(), to: None });
        };
        let (from_head, from_snap) = from.split_once('@').ok_or_else(which)?;
        let (to_head, to_snap) = match to.split_once('@') {
            Some((head, snap)) => (head, Some(snap)),
            None => (to, None),
        };
        if from_snap.is_empty()
            || to_snap.is_some_and(str::is_empty)
            || from_head.is_empty() && to_head.is_empty()
        {
            return Err(which());
        }
        let head = if to_head.is_empty() { from_head } else { to_head };
        let from_head = if from_head.is_empty() { head } else { from_head };
        Ok(States {
            head: head.into(),
            from: format!("{from_head}@{from_snap}"),
            to: to_snap.map(|snap| format!("{head}@{snap}")),
        })
    }
}

fn unable<R: Reason>(why: R) -> Error {
    Error::doing("Unable to obtain diffs", why)
}

impl Session<'_> {
    /// Compares two states of a file system. Each file that differs is told ([`Event::Differs`]).
    ///
    /// # Errors
    /// A state is not there, or the earlier one is not earlier; the user may not; something cannot be read.
    pub fn diff(&mut self, states: &States) -> Result<()> {
        let to = states.to.as_ref().unwrap_or(&states.head);
        match self.permit(&Operation::Diff { from: &states.from, to }) {
            Ok(()) => {}
            Err(e @ ChangeError::Denied) => return Err(unable(Why(e.kind(), NEEDED))),
            Err(e) => return Err(unable(e)),
        }
        match (&states.to, self.engine()) {
            (Some(to), _) => self.compare(&states.from, to),
            // A pool that is not written to is as it is.
            (None, None) => self.compare(&states.from, &states.head),
            (None, Some(engine)) => {
                // It is the operation's, whatever the user may do.
                let changes = Rights::default().changes(engine);
                let now = self.snapshot_now(&changes, &states.head)?;
                let done = self.compare(&states.from, &now);
                self.drop_now(&changes, now)?;
                done
            }
        }
    }

    /// Takes a snapshot of the file system as it is now (`make_temp_snapshot`). Returns its name.
    fn snapshot_now(&self, changes: &Changes, head: &str) -> Result<String> {
        let cannot = |e: ChangeError| {
            Error::doing(format_args!("Cannot create just-in-time snapshot of '{head}'"), e)
        };
        // Two comparisons at once do not take each other's.
        let turn = self.pool().uberblock().txg;
        for again in 0..u64::from(u8::MAX) {
            let name = format!("{head}@{PREFIX}{}", turn + again);
            if self.pool().dsl().find(&name).map_err(|e| cannot(e.into()))?.is_some() {
                continue;
            }
            match changes.snapshot(&NewSnapshot { names: vec![name.clone()], props: vec![] }) {
                Ok(()) => return Ok(name),
                Err((_, ChangeError::Exists)) => {}
                Err((_, e)) => return Err(cannot(e)),
            }
        }
        Err(cannot(ChangeError::Busy))
    }

    fn drop_now(&mut self, changes: &Changes, name: String) -> Result<()> {
        let what = format!("cannot destroy '{name}'");
        let names = [name];
        // If it is in use, the destroy says so.
        let closed = self.host.mounts().close_snapshots(&names).is_ok();
        let done = changes.destroy_snapshots(&names, false);
        match &done {
            Ok(()) => self.host.mounts().snapshots_changed(&names),
            Err(_) if closed => self.host.mounts().snapshots_stay(&names),
            Err(_) => {}
        }
        for (_, e) in done.err().into_iter().flatten() {
            self.failed(Error::doing(&what, e))?;
        }
        Ok(())
    }

    fn compare(&mut self, from: &str, to: &str) -> Result<()> {
        let pool = self.pool();
        let dsl = pool.dsl();
        let find = |name: &str| {
            let missing = || unable(Why(ErrorKind::NotFound, "No such file or directory"));
            dsl.find(name).map_err(unable)?.ok_or_else(missing)
        };
        let (from, to) = (find(from)?, find(to)?);
        if dsl.sizes_since(&to, &from).map_err(unable)?.is_none() {
            return Err(unable(Why(ErrorKind::Invalid, NOT_EARLIER)));
        }
        let open = |d: &Dataset| dsl.open_objset(d).map_err(unable);
        let (old, new) = ((open(&from)?, from.ds.creation_txg), open(&to)?);
        let (host, mut unknown) = (&mut *self.host, Vec::new());
        let mut tell = |difference: Difference| host.tell(Event::Differs(&difference));
        let mut note = |object: u64, e: cenote_zpl::Error| -> io::Result<()> {
            unknown.push(format!("Unable to determine path or stats for object {object}: {e}"));
            Ok(())
        };
        let done = differences(old, new, &mut tell, &mut note);
        for text in unknown {
            self.tell(Event::Warning(&text))?;
        }
        done.map_err(|e| match e {
            DiffStop::Told(e) => e.into(),
            DiffStop::Read(e) => unable(Why(ErrorKind::Pool, e)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_names_say_which_states_are_compared() {
        let pair = |from: &str, to: Option<&str>| {
            let p = States::parse(from, to).ok()?;
            Some(format!("{} {} {}", p.head, p.from, p.to.unwrap_or_default()))
        };
        for (from, to, what) in [
            ("p/a@1", None, "p/a p/a@1 "),
            ("p/a@1", Some("p/a@2"), "p/a p/a@1 p/a@2"),
            ("p/a@1", Some("@2"), "p/a p/a@1 p/a@2"),
            ("p/a@1", Some("p/a"), "p/a p/a@1 "),
            ("@1", Some("p/a@2"), "p/a p/a@1 p/a@2"),
            ("@1", Some("p/a"), "p/a p/a@1 "),
            ("p/a@1", Some("p/clone@2"), "p/clone p/a@1 p/clone@2"),
        ] {
            assert_eq!(pair(from, to).as_deref(), Some(what), "{from} {to:?}");
        }
        for (from, to) in
            [("p/a", None), ("p/a", Some("p/a@1")), ("@1", Some("@2")), ("p/a@", Some("p/a"))]
        {
            assert_eq!(pair(from, to), None, "{from} {to:?}");
        }
    }
}
