//! Setting and inheriting properties (`dsl_props_set`, `dsl_prop_inherit`).
//!
//! What can be set is set: of several properties those that are refused stay as they are, and are
//! told one by one. Quotas and reservations depend on each other, so one that is refused at first is
//! tried again after the others.

use super::error::Failed;
use super::policy::{Operation, Permit};
use super::props::{self, On, Setting, ZSTD};
use super::{ChangeError, Changes, Result, find_head, find_snapshot, quotas, record, reserve};
use crate::{SpaceCheck, SyncContext};
use cenote_dmu::live::Cost;
use cenote_dsl::props::is_user;
use cenote_dsl::props::table::Property;
use cenote_dsl::write::props::{NewValue, Target, inherit, revert, set};
use cenote_dsl::write::{DslWriteError, Tx, features};
use cenote_dsl::{Dataset, DatasetKind};
use cenote_pool::Pool;
use cenote_pool::version::{self, newest_of_files};

/// Bytes of blocks that an upgrade of a file system may change: of the master node, of a new ZAP, of its dnode.
const UPGRADE: u64 = 3 * 16384;

/// What the properties of a dataset or snapshot are set of, as it is now, and its object.
pub(super) fn find_target(
    tx: &mut Tx<'_>,
    name: &str,
) -> std::result::Result<(Target, u64), DslWriteError> {
    if name.contains('@') {
        let (_, object) = find_snapshot(tx, name)?;
        return Ok((Target::Snapshot(object), object));
    }
    let (dir, head) = find_head(tx, name)?;
    Ok((Target::Dir(dir), head))
}

/// Whether a property is a quota or reservation of space.
pub fn is_accounted(property: &str) -> bool {
    matches!(property, "quota" | "reservation" | "refquota" | "refreservation")
}

/// Notes in a dataset that it uses the feature which the value stands for.
pub(super) fn activate(
    tx: &mut Tx<'_>,
    ds_obj: u64,
    setting: &Setting,
) -> std::result::Result<(), DslWriteError> {
    if props::feature_for(setting) == Some(ZSTD) {
        features::activate_dataset_feature(tx, ds_obj, ZSTD)?;
    }
    Ok(())
}

/// Whether a value was refused: then the others are set all the same.
pub(super) fn is_refusal(e: &DslWriteError) -> bool {
    !matches!(e, DslWriteError::Unreadable(_) | DslWriteError::Fatal(_))
}

/// Sets quotas and reservations. The outer error: something cannot be read or written.
pub(super) fn account(
    tx: &mut Tx<'_>,
    dir: u64,
    settings: &[Setting],
) -> std::result::Result<Vec<Failed>, DslWriteError> {
    let mut failed = Vec::new();
    let mut again = Vec::new();
    for setting in settings {
        match set(tx, Target::Dir(dir), &setting.name, &setting.value) {
            Ok(()) => {}
            Err(e) if !is_refusal(&e) => return Err(e),
            Err(_) => again.push(setting),
        }
    }
    for setting in again {
        match set(tx, Target::Dir(dir), &setting.name, &setting.value) {
            Ok(()) => {}
            Err(e) if !is_refusal(&e) => return Err(e),
            Err(e) => {
                failed.push(Failed { name: setting.name.clone(), error: refused(&setting.name, e) })
            }
        }
    }
    Ok(failed)
}

/// Out of space means something else where nothing is written.
fn refused(name: &str, e: DslWriteError) -> ChangeError {
    match (name, e) {
        ("quota" | "refquota", DslWriteError::NoSpace | DslWriteError::Quota) => {
            ChangeError::QuotaTooSmall
        }
        ("reservation" | "refreservation", DslWriteError::NoSpace | DslWriteError::Quota) => {
            ChangeError::ReservationTooLarge
        }
        (_, e) => e.into(),
    }
}

impl Changes {
    /// Sets properties of a file system, volume or snapshot (`zfs_ioc_set_prop`, `zfs_set_prop_nvlist`). Returns those that
    /// were refused.
    ///
    /// # Errors
    /// A property or value is not right, then nothing is set; the pool is suspended.
    pub fn set(&self, name: &str, list: &[(String, String)]) -> Result<Vec<Failed>> {
        let view = self.engine.pool();
        let dataset = view.dsl().find(name)?.ok_or(ChangeError::NotFound)?;
        if dataset.kind == DatasetKind::Bookmark {
            return Err(ChangeError::Kind);
        }
        let mut settings = props::check(list, On::There(view.dsl(), &dataset))?;
        let fixed = fixed_size(&view, &dataset, &mut settings)?;
        if settings.is_empty() {
            return Ok(fixed.into_iter().collect());
        }
        let old_size = number(&view, &dataset, "volsize")?;
        let synthetic = reservation_of_volume(&view, &dataset, &mut settings)?;
        let permit = self.permit(&may_set(name, &settings))?;
        let size = settings.iter().find(|s| s.name == "volsize").and_then(Setting::as_number);
        let quotas = quotas::asked(&settings);
        let version = settings.iter().find(|s| s.name == "version").and_then(Setting::as_number);
        settings.retain(|s| !cenote_dsl::write::props::in_contents(&s.name));
        let mut unset = self.set_quotas(permit, &view, &dataset, &quotas)?;
        unset.extend(fixed);
        if let Some(version) = version {
            unset.extend(self.upgrade(permit, &view, &dataset, version)?);
        }
        if (!quotas.is_empty() || version.is_some()) && settings.is_empty() {
            return Ok(unset);
        }
        let resized = match size.filter(|s| *s != old_size) {
            Some(size) => {
                self.resize(permit, &dataset, size)?;
                Some(size)
            }
            None => None,
        };
        let full = name.to_string();
        let changed = 2 * (settings.len() as u64);
        let names: Vec<String> = settings.iter().map(|s| s.name.clone()).collect();
        let done = self.task_beside_logs(permit, (SpaceCheck::Reserved, changed), move |context| {
            let tx = &mut context.tx;
            let (target, object) = find_target(tx, &full)?;
            if let Some(size) = resized {
                record(tx, "set", &format!("volsize={size}"), (&full, object))?;
            }
            set_all(context, (&full, object), target, &settings).map(Ok)
        });
        let mut failed = match done {
            Ok(mut failed) => {
                let grew = resized.is_some_and(|size| size > old_size);
                let refused = failed.iter_mut().find(|f| f.name == "refreservation");
                if let Some(refused) = refused.filter(|_| synthetic && grew) {
                    // The size goes with its reservation.
                    refused.name = "volsize".into();
                    self.resize(permit, &dataset, old_size)?;
                }
                failed
            }
            Err(e) => self.resized_alone(permit, &dataset, (old_size, resized), names, e)?,
        };
        failed.extend(unset);
        Ok(failed)
    }

    /// A volume has got its new size, if any, and nothing more of what was asked for. A volume that grew goes back. What one
    /// has lost that shrank does not come back: it keeps its size, and the rest of the properties was refused.
    fn resized_alone(
        &self,
        permit: Permit,
        volume: &Dataset,
        (old, new): (u64, Option<u64>),
        names: Vec<String>,
        e: ChangeError,
    ) -> Result<Vec<Failed>> {
        match (new, e) {
            (Some(new), e) if new > old => {
                self.resize(permit, volume, old)?;
                Err(e)
            }
            (Some(_), ChangeError::NoSpace) => {
                let refused = |name| Failed { name, error: ChangeError::NoSpace };
                Ok(names.into_iter().map(refused).collect())
            }
            (_, e) => Err(e),
        }
    }

    /// Takes a file system to another version (`zfs_set_version`), unless it has that. A version that the pool is too old
    /// for is refused.
    fn upgrade(
        &self,
        permit: Permit,
        view: &Pool,
        dataset: &Dataset,
        version: u64,
    ) -> Result<Option<Failed>> {
        let now = number(view, dataset, "version")?;
        if version <= now {
            return Ok(None);
        }
        if version > newest_of_files(view.version()) {
            return Ok(Some(Failed { name: "version".into(), error: ChangeError::NeedsUpgrade }));
        }
        let live = self.engine.live(dataset.ds_obj)?;
        let cost = Cost { write: UPGRADE, objects: 1, frees: false };
        live.transact(cost, |os, txg| self.contents.upgrade(os, version, txg))?;
        let (name, object) = (dataset.name.clone(), dataset.ds_obj);
        self.task_beside_logs(permit, (SpaceCheck::Reserved, 1), move |context| {
            let what = format!("from {now} to {version}");
            record(&mut context.tx, "upgrade", &what, (&name, object))?;
            Ok(Ok(()))
        })?;
        Ok(None)
    }

    fn resize(&self, _: Permit, volume: &Dataset, size: u64) -> Result<()> {
        let live = self.engine.live(volume.ds_obj)?;
        self.contents.resize(live, size)?;
        Ok(self.engine.sync()?)
    }

    /// Lets a property be inherited, or have its default (`zfs_ioc_inherit_prop`). With `received` it gets the value that it
    /// was received with, if there is one.
    ///
    /// # Errors
    /// It cannot be inherited; the dataset is not there.
    pub fn inherit(&self, name: &str, property: &str, received: bool) -> Result<()> {
        let view = self.engine.pool();
        let dataset = view.dsl().find(name)?.ok_or(ChangeError::NotFound)?;
        let native = props::find(property);
        check_inherit(native, property, &dataset, received)?;
        let property = native.map_or(property, |p| p.name).to_string();
        let permit = self.permit(&Operation::Set { name, properties: vec![&property] })?;
        let full = name.to_string();
        self.task_beside_logs(permit, (SpaceCheck::Reserved, 2), move |context| {
            let tx = &mut context.tx;
            let (target, object) = find_target(tx, &full)?;
            match received {
                true => revert(tx, target, &property)?,
                false => inherit(tx, target, &property)?,
            }
            record(tx, "inherit", &format!("{property}="), (&full, object))?;
            Ok(Ok(()))
        })
    }
}

/// What setting properties of a dataset needs.
pub(super) fn may_set<'a>(name: &'a str, settings: &'a [Setting]) -> Operation<'a> {
    Operation::Set { name, properties: settings.iter().map(|s| s.name.as_str()).collect() }
}

fn check_inherit(
    native: Option<&Property>,
    property: &str,
    dataset: &Dataset,
    received: bool,
) -> Result<()> {
    let Some(native) = native else {
        return match is_user(property) {
            true => Ok(()),
            false => Err(ChangeError::Property("invalid property".into())),
        };
    };
    if native.is_readonly() {
        return Err(ChangeError::Property("read-only property".into()));
    }
    if !native.is_inheritable() && !received {
        return Err(ChangeError::Property("property cannot be inherited".into()));
    }
    if !native.applies_to.contains(dataset.kind) || dataset.kind == DatasetKind::Snapshot {
        let why = "property doesn't apply to datasets of this type";
        return Err(ChangeError::Property(why.into()));
    }
    Ok(())
}

/// Takes the size of a volume out of the settings, if it cannot be set: what counts is whether the
/// volume is read-only before anything is set.
fn fixed_size(
    pool: &Pool,
    dataset: &Dataset,
    settings: &mut Vec<Setting>,
) -> Result<Option<Failed>> {
    let Some(at) = settings.iter().position(|s| s.name == "volsize") else { return Ok(None) };
    let readonly = pool.dsl().get(dataset, "readonly")?;
    if readonly.is_none_or(|v| v.exact != "on") {
        return Ok(None);
    }
    let name = settings.remove(at).name;
    Ok(Some(Failed { name, error: ChangeError::ReadOnlyDataset }))
}

fn number(pool: &Pool, dataset: &Dataset, name: &str) -> Result<u64> {
    let value = pool.dsl().get(dataset, name)?;
    Ok(value.and_then(|v| v.exact.parse().ok()).unwrap_or(0))
}

/// The refreservation of a volume that follows its size: `auto` is put into figures; one that was as
/// the size had it stays so, when the size changes. Returns whether one was added.
fn reservation_of_volume(
    pool: &Pool,
    dataset: &Dataset,
    settings: &mut Vec<Setting>,
) -> Result<bool> {
    if dataset.kind != DatasetKind::Volume {
        return Ok(false);
    }
    let old = number(pool, dataset, "volsize")?;
    let block = number(pool, dataset, "volblocksize")?;
    let copies = number(pool, dataset, "copies")?;
    let of = |size: u64| reserve::of_volume(pool.config(), size, block, copies);
    let asked = settings.iter().find(|s| s.name == "volsize").and_then(Setting::as_number);
    let new = asked.unwrap_or(old);
    if let Some(given) = settings.iter_mut().find(|s| s.name == "refreservation") {
        if given.as_number() == Some(props::AUTO) {
            given.value = NewValue::Number(of(new));
        }
        return Ok(false);
    }
    let by = reserve::usual(pool);
    if asked.is_none() || number(pool, dataset, by)? != of(old) {
        return Ok(false);
    }
    settings.push(Setting::number(by, of(new)));
    Ok(true)
}

/// Puts the `refreservation=auto` of a clone of a volume's snapshot into figures.
pub(super) fn reservation_of_clone(
    pool: &Pool,
    (origin, parent): (&Dataset, &Dataset),
    settings: &mut [Setting],
) -> Result<()> {
    let chosen = settings.iter().find(|s| s.name == "copies").and_then(Setting::as_number);
    let is_auto = |s: &&mut Setting| s.as_number() == Some(props::AUTO);
    let Some(given) = settings.iter_mut().find(is_auto) else { return Ok(()) };
    let copies = chosen.map_or_else(|| number(pool, parent, "copies"), Ok)?;
    let head = pool.dsl().find(origin.head_name())?.ok_or(ChangeError::NotFound)?;
    let (size, block) = (number(pool, origin, "volsize")?, number(pool, &head, "volblocksize")?);
    given.value = NewValue::Number(reserve::of_volume(pool.config(), size, block, copies));
    Ok(())
}

/// Sets what can be set, and records it.
pub(super) fn set_all(
    context: &mut SyncContext<'_>,
    (name, object): (&str, u64),
    target: Target,
    settings: &[Setting],
) -> std::result::Result<Vec<Failed>, DslWriteError> {
    let version = context.config.version;
    let tx = &mut context.tx;
    let mut failed = Vec::new();
    let of_snapshot = matches!(target, Target::Snapshot(_));
    let lacks = of_snapshot && version < version::SNAPSHOT_PROPERTIES;
    let mut may = Vec::new();
    for setting in settings {
        match lacks || props::needs_upgrade(tx, version, [setting])? {
            true => {
                let (name, error) = (setting.name.clone(), ChangeError::NeedsUpgrade);
                failed.push(Failed { name, error });
            }
            false => may.push(setting.clone()),
        }
    }
    let (accounted, stored): (Vec<Setting>, Vec<Setting>) =
        may.into_iter().partition(|s| is_accounted(&s.name));
    for setting in &stored {
        match set(tx, target, &setting.name, &setting.value) {
            Ok(()) => {}
            Err(e) if !is_refusal(&e) => return Err(e),
            Err(e) => {
                failed.push(Failed { name: setting.name.clone(), error: e.into() });
                continue;
            }
        }
        if let Target::Dir(_) = target {
            activate(tx, object, setting)?;
        }
        record(tx, "set", &setting.recorded(), (name, object))?;
    }
    if let Target::Dir(dir) = target {
        let refused = account(tx, dir, &accounted)?;
        for setting in &accounted {
            if !refused.iter().any(|f| f.name == setting.name) {
                record(tx, "set", &setting.recorded(), (name, object))?;
            }
        }
        failed.extend(refused);
    }
    Ok(failed)
}
