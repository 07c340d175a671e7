//! A FUSE connection with its mounts, served by threads of this process.
//!
//! A connection has mounts in one or several places: the one that it was made with, and those in which the
//! same file system was mounted later, in this mount namespace or another one. The kernel keeps it as long
//! as there is a mount anywhere or a file in it is open; the threads that serve it end after that. So a
//! connection can outlive its places: another process has bound it elsewhere, another namespace has a copy of the
//! mount, or files were open when it was unmounted lazily. Then it *lingers*, and what it serves is in use.
//!
//! Whether it is mounted is known from what this process mounted itself and from the kernel's table of
//! mounts; no path is looked up.

use crate::MountSpec;
use crate::agent::{Agent, MountRequest, Mounted};
use crate::attach::{Allowed, access_times};
use crate::connection::Connection;
use crate::descriptors;
use crate::detach::Force;
use crate::error::MountError;
use crate::mountinfo::{self, Table};
use crate::privilege::allows_other_users;
use crate::session::{Filesystem, Notifier, Session, Users};
use crate::watcher::Watcher;
use rustix::mount::MountFlags;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an unmounted file system may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(2);

/// A place where a connection is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    mountpoint: PathBuf,
    /// The mount namespace.
    namespace: u64,
}

/// A connection that is served by threads of this process. Dropping it takes its mounts away by force.
pub(crate) struct Served {
    connection: Connection,
    /// Where it was mounted first.
    first: PathBuf,
    /// Where this process has had it mounted, in order.
    places: Vec<Place>,
    session: Option<Session>,
    watcher: Option<Arc<Watcher>>,
    /// The agent of this process's mount namespace.
    agent: Arc<dyn Agent>,
}

/// What is mounted of a file system, how and where.
pub(crate) fn request_of(spec: &MountSpec) -> MountRequest {
    let allowed = Allowed {
        writable: spec.fs.is_writable(),
        setuid: spec.setuid,
        devices: spec.devices,
        exec: spec.exec,
    };
    MountRequest {
        mountpoint: spec.mountpoint.clone(),
        source: spec.dataset.clone(),
        subtype: "zfs".into(),
        flags: allowed.flags(access_times(&spec.fs) | spec.flags).bits(),
        other_users: allows_other_users(),
        root: spec.root.clone(),
        make: spec.make,
        overlay: spec.overlay,
    }
}

impl Served {
    /// Has `by` mount, and the threads of the process serve the connection. `agent` is the agent of this process's
    /// mount namespace. Returns the directories that were made as well, outermost first.
    pub(crate) fn new<S: Filesystem>(
        server: S,
        request: MountRequest,
        watcher: Option<Arc<Watcher>>,
        by: &dyn Agent,
        agent: Arc<dyn Agent>,
    ) -> Result<(Served, Vec<PathBuf>), MountError> {
        let own = Users::Only(rustix::process::geteuid().as_raw());
        let users = if request.other_users { Users::All } else { own };
        descriptors::for_mount().map_err(MountError::Descriptors)?;
        let note = |connection: &Connection| {
            if let Some(watcher) = &watcher {
                watcher.add(connection);
            }
        };
        let (Mounted { mountpoint, id, made }, device) = by.mount(request, None, &note)?;
        let connection = Connection::of(&id);
        let place = Place { mountpoint: mountpoint.clone(), namespace: by.namespace() };
        // From here on dropping it takes the mount away.
        let mut served = Served {
            connection,
            first: mountpoint,
            places: vec![place],
            session: None,
            watcher,
            agent,
        };
        let failed = |why: String| MountError::Session(why);
        let session = match device {
            Some(device) => {
                Session::start(server, device, users).map_err(|e| failed(e.to_string()))
            }
            None => Err(failed("its descriptor was not received: too many open files".into())),
        };
        match session {
            Ok(session) => served.session = Some(session),
            Err(e) => {
                // Where the agent of this namespace cannot reach it the one that mounted can.
                let _ = by.unmount(&served.connection, vec![served.first.clone()], Force::Yes);
                by.remove(made);
                return Err(e);
            }
        }
        Ok((served, made))
    }

    /// Has `by` mount it in a further place. Returns the place and the directories that were made.
    pub(crate) fn mount_again(
        &mut self,
        request: MountRequest,
        by: &dyn Agent,
    ) -> Result<Mounted, MountError> {
        let gone = || MountError::Session("it has ended".into());
        let session = self.session.as_ref().ok_or_else(gone)?;
        let (mounted, _) = by.mount(request, Some(session.device().as_fd()), &|_| ())?;
        let mountpoint = mounted.mountpoint.clone();
        self.places.push(Place { mountpoint, namespace: by.namespace() });
        Ok(mounted)
    }

    /// What identifies the connection.
    pub(crate) fn id(&self) -> &str {
        &self.connection.id
    }

    /// Where it is mounted: the first place that is left, in this namespace if there is one.
    pub(crate) fn mountpoint(&self) -> &Path {
        let own = mountinfo::namespace();
        let here = self.places.iter().find(|p| p.namespace == own);
        here.or(self.places.first()).map_or(&self.first, |p| &p.mountpoint)
    }

    /// Where it is mounted in a namespace, as far as this process has had it mounted.
    pub(crate) fn places_in(&self, namespace: u64) -> Vec<PathBuf> {
        let there = self.places.iter().filter(|p| p.namespace == namespace);
        there.map(|p| p.mountpoint.clone()).collect()
    }

    /// Tells the kernel what it does not know.
    pub(crate) fn notifier(&self) -> Option<Notifier> {
        self.session.as_ref().map(Session::notifier)
    }

    /// Whether the kernel has let go of it: no mount is left and no file is open.
    pub(crate) fn is_finished(&self) -> bool {
        self.session.as_ref().is_none_or(Session::is_finished)
    }

    /// Whether it is mounted, as far as this process knows: not after someone else unmounted it.
    pub(crate) fn is_mounted(&self) -> bool {
        let (own, table) = (mountinfo::namespace(), mountinfo::current());
        let there = |p: &Place| p.namespace != own || table.has(self.id(), &p.mountpoint);
        !self.is_finished()
            && (self.places.iter().any(there) || table.of(self.id()).any(|m| m.whole))
    }

    /// As [`Served::is_mounted`], as far as [`Served::revise`] has noted: without a look at the kernel's table.
    pub(crate) fn is_placed(&self) -> bool {
        !self.places.is_empty() && !self.is_finished()
    }

    /// Forgets places where another process has unmounted it. If no place is left but it is mounted elsewhere in
    /// this namespace, another process has moved it there, or left only that place: that is its place then.
    pub(crate) fn revise(&mut self, table: &Table) {
        let own = mountinfo::namespace();
        let id = &self.connection.id;
        self.places.retain(|p| p.namespace != own || table.has(id, &p.mountpoint));
        if self.places.is_empty() {
            let found = table.of(id).find(|m| m.whole);
            let place = |mountpoint: PathBuf| Place { mountpoint, namespace: own };
            self.places.extend(found.map(|m| place(m.mountpoint.clone())));
        }
    }

    /// Makes its mount another kind where it is, in use or not. False: it cannot be told. See
    /// [`MountHandle::remount`](crate::MountHandle::remount).
    pub(crate) fn remount(&self, flags: MountFlags) -> Result<bool, MountError> {
        let mut told = true;
        let own = mountinfo::namespace();
        if self.is_finished() || self.places_in(own).is_empty() {
            return Ok(false);
        }
        for place in self.places_in(own) {
            told &= self.agent.remount(self.id(), &place, flags)?;
        }
        Ok(told)
    }

    /// Has `by` unmount it, at `at` only if that is given. Does not wait until the kernel has let go of it.
    pub(crate) fn detach(
        &mut self,
        force: Force,
        at: Option<&Path>,
        by: &dyn Agent,
    ) -> Result<(), MountError> {
        let namespace = by.namespace();
        let places = match at {
            Some(at) => vec![at.to_owned()],
            // A namespace may have copies of the mounts of this one.
            None => match self.places_in(namespace) {
                none if none.is_empty() => vec![self.mountpoint().to_owned()],
                places => places,
            },
        };
        if force == Force::Yes && at.is_none() && !self.is_finished() {
            self.connection.abort();
        }
        by.unmount(&self.connection, places.clone(), force)?;
        self.places.retain(|p| p.namespace != namespace || !places.contains(&p.mountpoint));
        Ok(())
    }

    /// Gives up every place: has `by` unmount it, and the agent of this namespace. Those in other namespaces
    /// stay for now.
    pub(crate) fn give_up(&mut self, force: Force, by: &dyn Agent) -> Result<(), MountError> {
        self.detach(force, None, by)?;
        let agent = self.agent.clone();
        if by.namespace() != agent.namespace() {
            self.detach(force, None, &*agent)?;
        }
        self.places.clear();
        Ok(())
    }

    /// Ends the connection of an unused mount. Its mounts in the namespace of `by` and in this one are taken away,
    /// whoever made them; mounts in other namespaces are dead.
    pub(crate) fn end(&mut self, by: &dyn Agent) {
        if self.is_finished() {
            return;
        }
        self.connection.abort();
        let agent = self.agent.clone();
        let other = (by.namespace() != agent.namespace()).then_some(by);
        for by in other.into_iter().chain([&*agent]) {
            if let Err(e) = by.take_away(&self.connection) {
                tracing::warn!("mounts of '{}' stay: {e}", self.first.display());
            }
        }
        self.places.clear();
    }

    /// Ends the connection, wherever it is mounted: its users get errors.
    pub(crate) fn abort(&self) {
        if !self.is_finished() {
            self.connection.abort();
        }
    }

    /// Waits until the kernel has let go of it, no longer than `deadline`. False: it lingers.
    pub(crate) fn wait(&mut self, deadline: Instant) -> bool {
        while !self.is_finished() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(session) = self.session.take()
            && let Err(e) = session.join()
        {
            tracing::warn!("FUSE session of '{}': {e}", self.first.display());
        }
        if let Some(watcher) = self.watcher.take() {
            watcher.remove(&self.connection);
        }
        true
    }

    /// Unmounts in this namespace, and waits a moment until the kernel has let go of it.
    pub(crate) fn unmount(&mut self, force: Force) -> Result<(), MountError> {
        let agent = self.agent.clone();
        if !self.is_finished() {
            self.detach(force, None, &*agent)?;
        }
        self.say_goodbye();
        Ok(())
    }

    /// Waits a moment until the kernel has let go of it.
    pub(crate) fn say_goodbye(&mut self) {
        if !self.wait(Instant::now() + GOODBYE) {
            tracing::info!("'{}' is unmounted, but in use elsewhere", self.first.display());
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.session.is_none() && self.places.is_empty() {
            return;
        }
        if let Err(e) = self.unmount(Force::Yes) {
            tracing::warn!("unmount of '{}': {e}", self.first.display());
        }
    }
}
