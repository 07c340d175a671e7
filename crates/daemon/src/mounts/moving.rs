//! Mounts that follow changes of properties and names.
//!
//! A change of a mountpoint or of a name goes in three steps: what it concerns is unmounted, last
//! mounted first, if that can be; the change is made; what was mounted is mounted where it now
//! belongs. If the change is refused, everything comes back to where it was.
//!
//! Other properties take effect in the file system as it is. Some the kernel keeps to itself (`exec`,
//! `setuid`, `devices`, `readonly`, `atime`): where it can be told, which takes root and a mount that is
//! no submount, it is, in use or not; where it cannot, the file system is mounted anew if need be. So it is
//! when `acltype` becomes `posix`, which the kernel is told when it mounts; until then there are no ACLs.
//! When they go, the kernel still asks for them, and is told that there are no ACLs.

use super::handle::Handle;
use super::how::Away;
use super::one::{NO_PRIVILEGES, count_objects};
use super::settings::{Kernels, Settings};
use super::table::{All, Listed, Mounted, Way, used};
use super::{Directory, How, Mounts, NotMounted, StaysMounted, mount_one};
use crate::context::Context;
use crate::pools::Imported;
use cenote_admin::InUse;
use cenote_dsl::Dataset;
use cenote_fuse::{Agent, Forgetting, MountError};
use std::collections::HashSet;

impl Away {
    /// Forgets where mount(8) was told to mount those that have a mountpoint of their own by now, or
    /// are not to be mounted: for changes of that kind.
    pub fn forget_places(&mut self, imported: &Imported) {
        let pool = imported.pool();
        let value = |d: &Dataset, name| pool.dsl().get(d, name).ok().flatten().map(|v| v.exact);
        for (id, how) in &mut self.0 {
            let dataset = pool.dsl().by_object(*id).ok().flatten();
            let stays = dataset.is_some_and(|d| {
                value(&d, "mountpoint").is_some_and(|v| v == "legacy")
                    && value(&d, "canmount").is_none_or(|v| v != "off")
            });
            how.at.take_if(|_| !stays);
        }
    }

    /// Mounts them again, where they belong now. Says what fails; returns whether all went well.
    pub fn back(self, imported: &Imported, ctx: &mut Context) -> bool {
        let mut good = true;
        // They were unmounted last mounted first.
        for (id, how) in self.0.into_iter().rev() {
            let dataset = match imported.pool().dsl().by_object(id) {
                Ok(Some(dataset)) => dataset,
                Ok(None) => continue,
                Err(e) => {
                    ctx.complain(format_args!("cannot mount dataset {id} again: {e}"));
                    good = false;
                    continue;
                }
            };
            match mount_one(imported, &dataset, true, &how, ctx) {
                Ok(()) | Err(NotMounted::NotMeant(_)) => {}
                Err(NotMounted::Failed(message)) => {
                    ctx.complain(message);
                    good = false;
                }
            }
        }
        good
    }
}

impl Mounted {
    /// Has the file system, and the server of its mount, go by the settings.
    pub(super) fn take_settings(&mut self, settings: Settings) {
        let mut files = settings.files.clone();
        // A list that the kernel does not go by would be a lie.
        files.visibility.posix_acl &= self.kernels.acls;
        let acls_change = files.visibility.posix_acl != self.fs.visibility().posix_acl;
        if files.read_only && self.fs.is_writable() {
            self.handle.write_mapped();
        }
        if let Err(e) = self.fs.reread_master_node() {
            tracing::warn!("{}: quotas are as they were: {e}", self.listed.dataset);
        }
        self.fs.set_settings(files);
        let acls = acls_change.then(|| self.handle.acls_changed());
        self.handle.set_sync_policy(settings.sync);
        let snapdir = self.handle.set_snapdir(settings.snapdir);
        Forgetting::wait_for(acls.into_iter().chain([snapdir]));
        self.options = settings.options.clone();
        self.settings = settings;
    }

    /// Lets the kernel go by the settings. False: only mounting anew does.
    fn tell_kernel(&mut self) -> Result<bool, StaysMounted> {
        let anew = self.settings.kernels().acls && !self.kernels.acls;
        let wanted = self.wanted();
        if self.kernels == wanted {
            return Ok(!anew);
        }
        let place = self.listed.mountpoint.display();
        let failed =
            |why: &dyn std::fmt::Display| StaysMounted(format!("cannot remount '{place}': {why}"));
        // What was being freed in the background was left when it became read-only.
        self.drained &= self.fs.is_writable();
        if !self.drained && self.fs.is_writable() {
            self.fs.drain_unlinked().map_err(|e| failed(&e))?;
            self.drained = true;
        }
        match self.handle.remount(&wanted) {
            Ok(true) => self.kernels = wanted,
            Ok(false) => return Ok(!anew && self.kernels.suffice_for(&wanted)),
            Err(MountError::Busy(_)) => {
                let by = used([&*self]).into_iter().find_map(|(_, by)| by);
                let by = by.map(|user| format!(": {user} uses it")).unwrap_or_default();
                return Err(failed(&format_args!("pool or dataset is busy{by}")));
            }
            Err(e) => return Err(failed(&e)),
        }
        Ok(!anew)
    }

    /// What the kernel can be told of the settings as long as this is mounted.
    fn wanted(&self) -> Kernels {
        Kernels { acls: self.kernels.acls, ..self.settings.kernels() }
    }
}

impl Mounts {
    /// Unmounts the mounted ones among the datasets, and what is mounted inside, last mounted first (`zpool_disable_datasets`,
    /// `zfs_unmount_snap`).
    ///
    /// # Errors
    /// One is busy; those that were unmounted are in the error, to come [back](Away::back).
    pub fn take_away(&self, datasets: &[u64], way: Way<'_>) -> Result<Away, (Away, StaysMounted)> {
        let mut away = Away::default();
        let asked = |m: &&Mounted| datasets.contains(&m.id);
        let places: Vec<_> = {
            let all = self.lock();
            all.mounted.iter().filter(asked).map(|m| m.listed.mountpoint.clone()).collect()
        };
        loop {
            let inside = |m: &&Mounted| places.iter().any(|p| m.listed.mountpoint.starts_with(p));
            let last: Option<(u64, How, Listed)> = {
                let all = self.lock();
                let last = all.mounted.iter().rfind(inside);
                last.map(|m| (m.id, m.how.clone(), m.listed.clone()))
            };
            let Some((id, how, listed)) = last else { return Ok(away) };
            if let Err(e) = self.take(&listed, way) {
                return Err((away, e));
            }
            away.0.push((id, how));
        }
    }

    /// Snapshots of these full names are about to be destroyed: nothing leads to them until
    /// [`Mounts::snapshots_changed`] says that they were, or [`Mounts::snapshots_stay`] that they were not.
    ///
    /// # Errors
    /// Those that are in use; then all stay.
    pub fn close_snapshots(&self, names: &[String], by: &dyn Agent) -> Result<(), Vec<InUse>> {
        let mut busy: Vec<InUse> = Vec::new();
        self.with_snapshots(names, |name, handle, short| {
            if !handle.close_snapshot(short) && !busy.iter().any(|used| used.name == *name) {
                let places = handle.places();
                let within = places.iter().map(|place| place.join(".zfs/snapshot").join(short));
                let by = within.filter_map(|within| cenote_fuse::user_below(&within)).next();
                busy.push(InUse { name: name.clone(), by: by.map(|user| user.to_string()) });
            }
        });
        // Only then: connections that end do not come back.
        if busy.is_empty() {
            let wanted: HashSet<&str> = names.iter().map(String::as_str).collect();
            busy = self.uses(&|mounted| wanted.contains(mounted), by);
        }
        if busy.is_empty() {
            return Ok(());
        }
        self.snapshots_stay(names);
        Err(busy)
    }

    /// Snapshots of these full names, which were closed, stay.
    pub fn snapshots_stay(&self, names: &[String]) {
        self.with_snapshots(names, |_, handle, short| handle.open_snapshot(short));
    }

    /// Snapshots of these full names were taken or destroyed, or have got or lost the names.
    pub fn snapshots_changed<'a>(&self, names: impl IntoIterator<Item = &'a String>) {
        let mut forgetting = Vec::new();
        self.with_snapshots(names, |_, handle, short| {
            forgetting.push(handle.snapshot_changed(short));
        });
        Forgetting::wait_for(forgetting);
    }

    /// Calls `f` with each full name of a snapshot whose head is mounted, with that mount and the name in
    /// it.
    fn with_snapshots<'a>(
        &self,
        names: impl IntoIterator<Item = &'a String>,
        mut f: impl FnMut(&'a String, &Handle, &str),
    ) {
        let all = self.lock();
        for name in names {
            let Some((head, short)) = name.split_once('@') else { continue };
            let of = |m: &&Mounted| m.listed.dataset == head;
            for mounted in all.mounted.iter().chain(&all.lingering).filter(of) {
                f(name, &mounted.handle, short);
            }
        }
    }

    /// A snapshot of a dataset, and of those below it if it is `recursive`, has another name.
    pub fn renamed_snapshot(&self, head: &str, recursive: bool, old: &str, new: &str) {
        let mut all = self.lock();
        let All { mounted, lingering, .. } = &mut *all;
        for mounted in mounted.iter_mut().chain(lingering) {
            let Some((of, short)) = mounted.listed.dataset.split_once('@') else { continue };
            let below = of.strip_prefix(head).is_some_and(|rest| rest.starts_with('/'));
            if short == old && (of == head || recursive && below) {
                mounted.listed.dataset = format!("{of}@{new}");
            }
        }
    }

    /// A dataset, and what is below it, has another name.
    pub fn renamed(&self, from: &str, to: &str) {
        let mut all = self.lock();
        let All { mounted, lingering, .. } = &mut *all;
        for mounted in mounted.iter_mut().chain(lingering) {
            let name = &mounted.listed.dataset;
            if let Some(rest) = name.strip_prefix(from)
                && (rest.is_empty() || rest.starts_with(['/', '@']))
            {
                mounted.listed.dataset = format!("{to}{rest}");
            }
        }
    }
}

/// Gives a mounted file system further options (`-o remount,…`). Says what fails; returns whether all went well.
///
/// # Errors
/// The caller may not mount; it is not mounted; an option is not for it. Nothing is changed then.
pub fn remount(
    imported: &Imported,
    d: &Dataset,
    options: &[String],
    ctx: &mut Context,
) -> Result<bool, String> {
    if ctx.caller.is_delegated() {
        return Err(NO_PRIVILEGES.into());
    }
    let known = imported.mounts.lock().of(&d.name).map(|m| m.how.clone());
    let mut how = known.ok_or("not currently mounted")?;
    for option in options.iter().filter(|o| *o != "remount") {
        // The last of several counts.
        how.options.retain(|known| known != option);
        how.options.push(option.clone());
    }
    Settings::new(imported.opened(), d, &how)?;
    if let Some(mounted) = imported.mounts.lock().of(&d.name) {
        mounted.how = how;
    }
    Ok(refresh(imported, ctx))
}

/// Lets mounted file systems follow properties that have changed. Says what fails; returns whether
/// all went well.
pub fn refresh(imported: &Imported, ctx: &mut Context) -> bool {
    // Without options, so that they are not taken for values of properties.
    let mut mounts = imported.mounts.lock();
    let all: Vec<(u64, How)> = mounts.mounted.iter().map(|m| (m.id, m.how.clone())).collect();
    mounts.mounted.iter_mut().for_each(|m| m.options.clear());
    drop(mounts);
    let (mut anew, mut failed) = (Vec::new(), Vec::new());
    let mut files = Vec::new();
    for (id, how) in all {
        let pool = imported.pool();
        let dataset = pool.dsl().by_object(id);
        let settings = match &dataset {
            Ok(Some(dataset)) => Settings::new(imported.opened(), dataset, &how),
            Ok(None) => Err("dataset does not exist".into()),
            Err(e) => Err(e.to_string()),
        };
        let mut mounts = imported.mounts.lock();
        let Some(mounted) = mounts.mounted.iter_mut().find(|m| m.id == id) else { continue };
        let settings = settings.unwrap_or_else(|e| {
            tracing::warn!("{}: {e}", mounted.listed.dataset);
            mounted.settings.clone()
        });
        let (before, after) = (mounted.settings.kernels(), settings.kernels());
        let cache = settings.files.cache;
        if let Ok(Some(dataset)) = &dataset
            && cache != mounted.settings.files.cache
            && let Err(e) = cenote_admin::contents::cache_snapshots(&pool, dataset, cache)
        {
            tracing::warn!("snapshots of {}: {e}", dataset.name);
        }
        mounted.take_settings(settings);
        files.extend(mounted.engine.clone().map(|engine| (engine, id, mounted.fs.clone())));
        match mounted.tell_kernel() {
            Ok(true) => {}
            // What could not be done before is not said again.
            Ok(false) => {
                let told = mounted.kernels.suffice_for(&mounted.wanted());
                anew.push((id, before.acls != after.acls || before != after && !told));
            }
            Err(e) if before != after => failed.push(e),
            Err(_) => {}
        }
    }
    // A file system that has become writable, or whose pool has got the features since it was mounted.
    files.into_iter().for_each(|(engine, id, fs)| count_objects(&engine, id, &fs));
    let mut good = failed.is_empty();
    failed.into_iter().for_each(|e| ctx.complain(e));
    if ctx.caller.is_delegated() {
        // It counts from the next mount on, which is not this user's.
        return good;
    }
    let by = ctx.agent();
    for (id, changed) in anew {
        let way = Way { force: false, directory: Directory::Kept, by: &*by };
        match imported.mounts.take_away(&[id], way) {
            Ok(away) => good &= away.back(imported, ctx),
            Err((_, e)) if changed => {
                ctx.complain(e);
                good = false;
            }
            Err(_) => {}
        }
    }
    good
}
