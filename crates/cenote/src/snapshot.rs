//! Snapshots and what comes from them: clones, holds, bookmarks, rollbacks, differences.
//!
//! All of it is methods of [`Dataset`]. They are operations of `cenote-admin`, and are done one by one. Several snapshots are of the same
//! moment, or are not taken at all. An operation that something is in the way of changes nothing, and its error names what that is
//! ([`Error::in_the_way`](crate::Error::in_the_way)): later snapshots of a rollback, clones of a snapshot that is destroyed, holds.

use crate::{Dataset, Result};
use cenote_admin::Exclusion;
use cenote_admin::clone::Ancestors;
use cenote_admin::destroy::Destroy;
use cenote_admin::diff::States;
use cenote_admin::rollback::Rollback;
use cenote_admin::userspace::{Figure, Usage};
use cenote_dsl::props::Who;
use cenote_zpl::Difference;
use std::time::{Duration, SystemTime};

/// A hold of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Its tag.
    pub tag: String,
    /// When it was placed.
    pub since: SystemTime,
}

/// What [`Dataset::rollback_with`] destroys on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Newer {
    /// Nothing: the snapshot must be the newest.
    #[default]
    Kept,
    /// Later snapshots and bookmarks.
    Destroyed,
    /// Later snapshots and bookmarks, clones of these, and all that depends on them.
    DestroyedWithClones,
}

/// # Snapshots, clones, holds, bookmarks
impl Dataset {
    /// Takes the snapshot `name` (without what comes before `@`).
    ///
    /// # Errors
    /// [`Error::Change`](crate::Error::Change): the name cannot be or is taken, there is no room;
    /// [`Error::ReadOnly`](crate::Error::ReadOnly).
    pub fn snapshot(&self, name: &str) -> Result<Dataset> {
        let _entered = self.pool().turn().enter();
        let full = format!("{}@{name}", self.present()?.name);
        self.pool().take_snapshots(vec![full.clone()])?;
        self.pool().dataset(&full)
    }

    /// Takes the snapshot `name` of the dataset and of all below it, all of the same moment. Returns their full names.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = cenote::Pool::create_in_file(dir.path().join("disk"), "tank", 128 << 20)?;
    /// pool.create_filesystem("tank/home", &[])?;
    /// let taken = pool.root()?.snapshot_all("monday")?;
    /// assert_eq!(taken, ["tank@monday", "tank/home@monday"]);
    /// # Ok::<(), cenote::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Admin`](crate::Error::Admin): the name cannot be or is taken, there is no room, the pool is read-only; none is taken then.
    pub fn snapshot_all(&self, name: &str) -> Result<Vec<String>> {
        self.administer(|session, now| {
            let names = session.names_of_snapshots(now, name, true)?;
            session.snapshot(names.clone(), Vec::new())?;
            Ok(names)
        })
    }

    /// Destroys those snapshots of a file system or volume that a list names: `a`, `b%d` from one to another, `%c` up to one, `e%`
    /// from one on. Those that have clones or are held are in the way: then all stay.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = cenote::Pool::create_in_file(dir.path().join("disk"), "tank", 128 << 20)?;
    /// let home = pool.create_filesystem("tank/home", &[])?;
    /// for day in ["mon", "tue", "wed", "thu", "fri"] {
    ///     home.snapshot(day)?;
    /// }
    /// home.destroy_snapshots("mon,wed%thu")?;
    /// let left: Vec<_> = home.snapshots()?.iter().map(|s| s.name().to_string()).collect();
    /// assert_eq!(left, ["tank/home@tue", "tank/home@fri"]);
    /// # Ok::<(), cenote::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Admin`](crate::Error::Admin): no snapshot has one of the names; one has clones, or is held.
    pub fn destroy_snapshots(&self, list: &str) -> Result<()> {
        let how = Destroy::default();
        self.administer(|session, now| session.destroy_snapshots(now, list, how))
    }

    /// Makes a clone of a snapshot: a new file system or volume that shares what it has with the snapshot.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = cenote::Pool::create_in_file(dir.path().join("disk"), "tank", 128 << 20)?;
    /// let home = pool.create_filesystem("tank/home", &[])?;
    /// home.filesystem()?.write("a", "one")?;
    /// let copy = home.snapshot("s")?.clone_to("tank/copy", &[("compression", "zstd")])?;
    /// copy.filesystem()?.write("a", "two")?;
    /// assert_eq!(home.filesystem()?.read("a")?, b"one");
    /// assert_eq!(home.snapshots()?[0].clones()?[0].name(), "tank/copy");
    ///
    /// // From now on the original is the clone.
    /// copy.promote()?;
    /// assert_eq!(pool.dataset("tank/copy")?.snapshots()?[0].name(), "tank/copy@s");
    /// # Ok::<(), cenote::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Admin`](crate::Error::Admin): the name cannot be or is taken, or there is nothing for it to be in; a property is not right.
    pub fn clone_to(&self, name: &str, props: &[(&str, &str)]) -> Result<Dataset> {
        let props = crate::pool::owned(props);
        self.administer(|session, now| {
            session.clone_snapshot(now, name, props, Ancestors::Refused)
        })?;
        self.pool().dataset(name)
    }

    /// The clones of a snapshot.
    ///
    /// # Errors
    /// [`Error::Metadata`](crate::Error::Metadata).
    pub fn clones(&self) -> Result<Vec<Dataset>> {
        let view = self.pool().view();
        Ok(self.wrap(view.dsl().clones(&self.now(&view)?)?))
    }

    /// Makes a clone independent of the dataset that it is of. Snapshots up to its origin become the clone's.
    ///
    /// # Errors
    /// [`Error::Admin`](crate::Error::Admin): it is no clone, or has snapshots of the same names.
    pub fn promote(&self) -> Result<()> {
        self.administer(|session, now| session.promote(&now.name))
    }

    /// Gives the dataset of this snapshot the contents that the snapshot has. It may not be open, and the snapshot has to be
    /// the newest.
    ///
    /// # Errors
    /// As [`Dataset::rollback_with`].
    pub fn rollback(&self) -> Result<()> {
        self.rollback_with(Newer::Kept)
    }

    /// Gives the dataset of this snapshot the contents that the snapshot has, and says what becomes of what is newer.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = cenote::Pool::create_in_file(dir.path().join("disk"), "tank", 128 << 20)?;
    /// use cenote::Newer;
    ///
    /// let home = pool.create_filesystem("tank/home", &[])?;
    /// home.filesystem()?.write("notes", "first")?;
    /// let monday = home.snapshot("monday")?;
    /// home.filesystem()?.write("notes", "second")?;
    /// home.snapshot("tuesday")?;
    ///
    /// let refused = monday.rollback().unwrap_err();
    /// assert_eq!(refused.in_the_way(), ["tank/home@tuesday"]);
    /// monday.rollback_with(Newer::Destroyed)?;
    /// assert_eq!(home.filesystem()?.read("notes")?, b"first");
    /// # Ok::<(), cenote::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Admin`](crate::Error::Admin): something newer is not destroyed ([`Error::in_the_way`](crate::Error::in_the_way)); the dataset is open.
    pub fn rollback_with(&self, newer: Newer) -> Result<()> {
        let (recurse, clones) = (newer != Newer::Kept, newer == Newer::DestroyedWithClones);
        let how = Rollback { recurse, clones, force: false };
        self.administer(|session, now| session.rollback(&now.name, how))
    }

    /// Keeps a snapshot from being destroyed, under a tag.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = cenote::Pool::create_in_file(dir.path().join("disk"), "tank", 128 << 20)?;
    /// let snapshot = pool.root()?.snapshot("s")?;
    /// snapshot.hold("backup")?;
    /// assert_eq!(snapshot.holds()?[0].tag, "backup");
    /// assert!(snapshot.clone().destroy().is_err());
    /// snapshot.release("backup")?;
    /// snapshot.destroy()?;
    /// # Ok::<(), cenote::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Admin`](crate::Error::Admin): it has a hold of this tag.
    pub fn hold(&self, tag: &str) -> Result<()> {
        self.administer(|session, now| session.hold(&now.name, tag, false))
    }

    /// Releases a hold.
    ///
    /// # Errors
    /// [`Error::Admin`](crate::Error::Admin): there is no hold of this tag.
    pub fn release(&self, tag: &str) -> Result<()> {
        self.administer(|session, now| session.release(&now.name, tag, false))
    }

    /// The holds of a snapshot.
    ///
    /// # Errors
    /// [`Error::Metadata`](crate::Error::Metadata).
    pub fn holds(&self) -> Result<Vec<Hold>> {
        let view = self.pool().view();
        // Holds are counted in the snapshot as it is now.
        let holds = view.dsl().holds(&self.now(&view)?)?;
        let hold =
            |(tag, since)| Hold { tag, since: SystemTime::UNIX_EPOCH + Duration::from_secs(since) };
        Ok(holds.into_iter().map(hold).collect())
    }

    /// Makes the bookmark `name` (without what comes before `#`) of a snapshot, or of a bookmark. A bookmark is what an
    /// incremental stream can start from once the snapshot is gone ([`Dataset::send_from`]).
    ///
    /// # Errors
    /// [`Error::Admin`](crate::Error::Admin): the name cannot be or is taken.
    pub fn bookmark(&self, name: &str) -> Result<Dataset> {
        let full = self.administer(|session, now| {
            let full = format!("{}#{name}", now.head_name());
            session.bookmark(&now.name, &full)?;
            Ok(full)
        })?;
        self.pool().dataset(&full)
    }

    /// What differs between this snapshot and a later one.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = cenote::Pool::create_in_file(dir.path().join("disk"), "tank", 128 << 20)?;
    /// use cenote::Change;
    ///
    /// let home = pool.create_filesystem("tank/home", &[])?;
    /// home.filesystem()?.write("old", "")?;
    /// let before = home.snapshot("before")?;
    /// home.filesystem()?.rename("old", "new")?;
    /// home.filesystem()?.write("added", "")?;
    /// let found = before.diff(&home.snapshot("after")?)?;
    /// let added = found.iter().find(|d| d.change == Change::Added).unwrap();
    /// assert_eq!(added.path, b"/added");
    /// assert!(found.iter().any(|d| d.change == Change::Renamed(b"/new".to_vec())));
    ///
    /// // Compared with the file system as it is now.
    /// assert_eq!(before.diff_now()?.len(), found.len());
    /// # Ok::<(), cenote::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Admin`](crate::Error::Admin): the other is no later snapshot of the same file system, or of a clone of it; something
    /// cannot be read.
    pub fn diff(&self, later: &Dataset) -> Result<Vec<Difference>> {
        let later = later.present()?;
        self.differences(later.head_name().to_string(), Some(later.name.clone()))
    }

    /// What differs between this snapshot and its file system as it is now, of which a snapshot is taken for as long as it
    /// takes. That this snapshot could not be destroyed in the end is logged, and is no error.
    ///
    /// # Errors
    /// As [`Dataset::diff`].
    pub fn diff_now(&self) -> Result<Vec<Difference>> {
        self.differences(self.present()?.head_name().to_string(), None)
    }

    fn differences(&self, head: String, to: Option<String>) -> Result<Vec<Difference>> {
        let mut found = Vec::new();
        let states = States { head, from: self.present()?.name, to };
        let mut differs = |difference: &Difference| {
            found.push(difference.clone());
            Ok(())
        };
        self.pool().session(Some(&mut differs), |session| session.diff(&states))?;
        Ok(found)
    }

    /// What users, groups or projects use of a file system or snapshot, and their quotas, as of the last transaction group.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = cenote::Pool::create_in_file(dir.path().join("disk"), "tank", 128 << 20)?;
    /// use cenote::Owners;
    ///
    /// let home = pool.create_filesystem("tank/home", &[("userquota@1000", "20M")])?;
    /// home.filesystem()?.write("file", vec![7; 100_000])?;
    /// pool.sync()?;
    /// let usage = home.usage(Owners::User)?;
    /// let quota = |id| usage.iter().find(|u| u.id == id)?.account.bytes;
    /// assert_eq!(quota(1000).unwrap().1, 20 << 20);
    /// # Ok::<(), cenote::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Admin`](crate::Error::Admin): it has no files, or is of a version that does not count.
    pub fn usage(&self, whose: Who) -> Result<Vec<Usage>> {
        let all = Figure::ALL;
        let now = self.present()?;
        let found = self.pool().session(None, |session| session.userspace(&now, whose, &all))?;
        Ok(found.unwrap_or_default())
    }
}
