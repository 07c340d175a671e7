//! Properties are set and inherited, and mounts follow (`zfs_prop_set_list`, `zfs_prop_inherit`, `changelist_gather`).
//!
//! What has to do with where file systems are mounted goes in three steps: those that it concerns are unmounted, the change is
//! made, and they are mounted where they now belong.

use crate::error::{Error, ErrorKind, Result, Why};
use crate::host::Unmount;
use crate::kinds::{family, with_mountpoint_of};
use crate::session::Session;
use cenote_dsl::{Dataset, DatasetKind};
use cenote_engine::change::policy::Operation;
use cenote_engine::change::props::{On, check, find};

/// Why setting a property has to do with where file systems are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moves {
    /// The mountpoint changes, also of those that inherit it.
    Mountpoint,
    /// A file system that is mounted is not to be mounted any more.
    Hides,
    /// A file system and what is below it belong to a zone, which mounts them itself.
    Zone,
}

/// How a change went that has to do with where file systems are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    Well,
    /// Nothing has changed.
    Not,
    /// It is made, but not all is mounted that should be.
    Unmounted,
}

fn done(good: bool) -> Result<()> {
    if good { Ok(()) } else { Err(Error::told()) }
}

impl Session<'_> {
    /// Sets properties of a dataset. What is refused is told, the others are set. With `stay`, what is mounted stays where it is.
    ///
    /// # Errors
    /// [`ErrorKind::Told`]: not all could be set, or what is mounted does not follow.
    pub fn set(&mut self, dataset: &Dataset, list: &[(String, String)], stay: bool) -> Result<()> {
        let name = &dataset.name;
        let what = || format!("cannot set property for '{name}'");
        let pool = self.pool();
        // Before anything is unmounted.
        let checked = check(list, On::There(pool.dsl(), dataset)).and_then(|_| {
            let properties = list.iter().map(|(property, _)| property.as_str()).collect();
            self.permit(&Operation::Set { name, properties })
        });
        if let Err(e) = checked {
            self.failed(Error::doing(what(), e))?;
            return Err(Error::told());
        }
        let Ok(changes) = self.changes() else {
            let why = Why(ErrorKind::ReadOnly, "dataset is read-only");
            self.failed(Error::doing(what(), why))?;
            return Err(Error::told());
        };
        let change = |session: &mut Self| {
            let refused = match changes.set(name, list) {
                Ok(failed) => failed.into_iter().map(|f| f.error).collect(),
                Err(e) => vec![e],
            };
            let good = refused.is_empty();
            for e in refused {
                session.failed(Error::doing(what(), e))?;
            }
            Ok(good)
        };
        let moves = self.moves_of(dataset, list).filter(|_| !stay);
        let moved = match moves {
            Some(moves) => self.make(moves, dataset, change)?,
            None if change(self)? => Moved::Well,
            None => Moved::Not,
        };
        let followed = self.host.mounts().follow_properties();
        if moved == Moved::Unmounted || !followed {
            let text = "property may be set but unable to remount filesystem";
            self.failed(Error::new(ErrorKind::Busy, text))?;
        }
        // The property is set; that not all is mounted is told, and no failure (`set_callback`).
        done(moved != Moved::Not && followed)
    }

    /// Lets a property be inherited, or with `received` have the value that came with a stream.
    ///
    /// # Errors
    /// [`ErrorKind::Told`]: the property is not inherited, or what is mounted does not follow.
    pub fn inherit(&mut self, dataset: &Dataset, property: &str, received: bool) -> Result<()> {
        let name = &dataset.name;
        let what = || format!("cannot inherit {property} for '{name}'");
        let permitted = self.changes().and_then(|changes| {
            changes.permit(&Operation::Set { name, properties: vec![property] })?;
            Ok(changes)
        });
        let changes = match permitted {
            Ok(changes) => changes,
            Err(e) => {
                self.failed(Error::doing(what(), e))?;
                return Err(Error::told());
            }
        };
        let change = |session: &mut Self| match changes.inherit(name, property, received) {
            Ok(()) => Ok(true),
            Err(e) => session.failed(Error::doing(what(), e)).map(|()| false),
        };
        let moves = match find(property).map(|p| p.name) {
            _ if dataset.kind != DatasetKind::Filesystem => None,
            Some("mountpoint") => Some(Moves::Mountpoint),
            Some("zoned") => Some(Moves::Zone),
            _ => None,
        };
        let good = match moves {
            Some(moves) => self.make(moves, dataset, change)? != Moved::Not,
            None => change(self)?,
        };
        done(self.host.mounts().follow_properties() && good)
    }

    /// What properties have to do with where a dataset is mounted.
    fn moves_of(&mut self, dataset: &Dataset, list: &[(String, String)]) -> Option<Moves> {
        let sets = |property: &str| {
            let found = list.iter().find(|(n, _)| find(n).is_some_and(|p| p.name == property));
            found.map(|(_, value)| value.as_str())
        };
        if dataset.kind != DatasetKind::Filesystem {
            return None;
        }
        if sets("zoned") == Some("on") {
            return Some(Moves::Zone);
        }
        if sets("mountpoint").is_some() {
            return Some(Moves::Mountpoint);
        }
        let hides = sets("canmount") == Some("off") && self.host.mounts().is_mounted(&dataset.name);
        hides.then_some(Moves::Hides)
    }

    /// Makes a change while the file systems that it concerns are not mounted.
    fn make(
        &mut self,
        moves: Moves,
        dataset: &Dataset,
        change: impl FnOnce(&mut Self) -> Result<bool>,
    ) -> Result<Moved> {
        let pool = self.pool();
        let concerned = match moves {
            Moves::Zone => family(pool.dsl(), dataset),
            Moves::Mountpoint | Moves::Hides => with_mountpoint_of(pool.dsl(), dataset),
        };
        let concerned = match concerned {
            Ok(concerned) => concerned,
            Err(e) => {
                let what = format_args!("cannot list what is in '{}'", dataset.name);
                self.failed(Error::doing(what, e))?;
                return Ok(Moved::Not);
            }
        };
        let ids: Vec<u64> = concerned.iter().map(|d| d.ds_obj).collect();
        let tried =
            match self.host.mounts().take_away(&ids, Unmount { force: false, for_good: true }) {
                Ok(tried) => tried,
                Err(why) => {
                    self.failed(Error::new(ErrorKind::Busy, why))?;
                    return Ok(Moved::Not);
                }
            };
        let changed = change(self);
        let made = matches!(changed, Ok(true));
        let mut good = self.host.mounts().bring_back(made);
        if !changed? {
            return Ok(Moved::Not);
        }
        if moves == Moves::Mountpoint {
            // What was not mounted may have a place now.
            let pool = self.pool();
            let mut new = Vec::new();
            for d in concerned.iter().filter(|d| !tried.contains(&d.ds_obj)) {
                match pool.dsl().find(&d.name) {
                    Ok(found) => new.extend(found),
                    Err(e) => {
                        self.failed(Error::doing(format_args!("cannot mount '{}'", d.name), e))?;
                        good = false;
                    }
                }
            }
            good &= self.host.mounts().mount_all(&new);
        }
        Ok(if good { Moved::Well } else { Moved::Unmounted })
    }
}
