//! Clones, and promoting them (`dsl_dataset_clone_sync`, `dsl_dataset_promote_sync`).
//!
//! A clone is planned on the view of the last transaction group: names, the kind of the origin, properties. The
//! sync task finds origin and parent again, makes the dataset with the contents of the origin and without an intent
//! log, and stores its properties, quotas and reservations. A clone whose reservation there is no space for is not
//! made. Quotas of users, groups and projects are in the contents, so a change of its own sets them once the clone
//! is there.
//!
//! Promoting moves snapshots of the origin's dataset to the clone ([`cenote_dsl::write::promote`]). Where both have
//! a snapshot of the same name it is refused, with that name.

use super::policy::Operation;
use super::props::{self, On, Setting};
use super::{
    ChangeError, Changes, Request, Result, dirs, find_head, find_snapshot, is_quota, names, quotas,
    record, set,
};
use crate::SpaceCheck;
use cenote_dsl::write::dataset;
use cenote_dsl::write::promote::{conflicts, promote};
use cenote_dsl::write::props::{NewValue, in_contents};
use cenote_dsl::write::quotas::Quota;
use cenote_dsl::{DatasetKind, Dsl};
use cenote_format::nvlist::{NvList, NvValue};
use std::sync::Arc;

/// A clone to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewClone {
    /// The full name of the snapshot.
    pub origin: String,
    /// The full name of the clone.
    pub name: String,
    /// Its properties, as users write them.
    pub props: Vec<(String, String)>,
}

/// What is known before the sync task.
struct Plan {
    parent: String,
    leaf: String,
    stored: Vec<Setting>,
    /// Quotas and reservations.
    accounted: Vec<Setting>,
    request: Request,
    /// Quotas of users, groups and projects.
    quotas: Vec<Quota>,
    /// Names of all properties that are given.
    properties: Vec<String>,
}

impl Changes {
    /// Creates a clone of a snapshot (`dsl_dataset_clone`, `zfs_ioc_clone`, `lzc_clone`).
    ///
    /// # Errors
    /// The name or a property is not right, there is no such snapshot or no parent, there is no space for
    /// the reservation: then it is not there.
    pub fn clone_snapshot(&self, new: &NewClone) -> Result<()> {
        let plan = self.plan_clone(new)?;
        let properties = plan.properties.iter().map(String::as_str).collect();
        let (origin, name) = (&new.origin, &new.name);
        let permit = self.permit(&Operation::Clone { origin, name, properties })?;
        let (request, quotas) = (plan.request.clone(), plan.quotas.clone());
        let (new, name) = (new.clone(), new.name.clone());
        let done = self.request(permit, (SpaceCheck::Normal, 5), request, move |context| {
            let tx = &mut context.tx;
            let (_, origin) = find_snapshot(tx, &new.origin)?;
            let Some(parent) = dirs::find_dir(tx, &plan.parent)? else {
                return Ok(Ok(Err(ChangeError::NoParent)));
            };
            if props::needs_upgrade(
                tx,
                context.config.version,
                plan.stored.iter().chain(&plan.accounted),
            )? {
                return Ok(Ok(Err(ChangeError::NeedsUpgrade)));
            }
            let stored: Vec<(&str, NewValue)> =
                plan.stored.iter().map(|s| (s.name.as_str(), s.value.clone())).collect();
            let made = dataset::create(tx, parent, &plan.leaf, &stored, Some(origin))?;
            let what = format!("origin={} ({origin})", new.origin);
            record(tx, "clone", &what, (&new.name, made.ds_obj))?;
            context.zero_intent_log(made.ds_obj)?;
            let tx = &mut context.tx;
            for setting in &plan.stored {
                set::activate(tx, made.ds_obj, setting)?;
                record(tx, "set", &setting.recorded(), (&new.name, made.ds_obj))?;
            }
            let refused = set::account(tx, made.dir_obj, &plan.accounted)?;
            if let Some(failed) = refused.into_iter().next() {
                return Ok(Ok(Err(match failed.error {
                    ChangeError::QuotaTooSmall | ChangeError::ReservationTooLarge => {
                        ChangeError::NoSpace
                    }
                    other => other,
                })));
            }
            for setting in &plan.accounted {
                record(tx, "set", &setting.recorded(), (&new.name, made.ds_obj))?;
            }
            Ok(Ok(Ok(())))
        });
        done.flatten()?;
        // It is there now, and has the tables of its origin.
        let view = self.engine.pool();
        let clone = view.dsl().find(&name)?.ok_or(ChangeError::NotFound)?;
        match self.set_quotas(permit, &view, &clone, &quotas)?.into_iter().next() {
            Some(refused) => Err(refused.error),
            None => Ok(()),
        }
    }

    fn plan_clone(&self, new: &NewClone) -> Result<Plan> {
        names::check_new(&new.name, names::Expected::HEAD)?;
        let (parent, leaf) = names::split(&new.name)?;
        let view = self.engine.pool();
        if new.name.split('/').next() != Some(view.name()) {
            return Err(ChangeError::Crosses("source and target pools differ"));
        }
        let above = view.dsl().find(parent)?.ok_or(ChangeError::NoParent)?;
        if above.kind != DatasetKind::Filesystem {
            return Err(ChangeError::ParentKind);
        }
        if view.dsl().find(&new.name)?.is_some() {
            return Err(ChangeError::Exists);
        }
        let kind = self.kind_of(view.dsl(), &new.origin)?;
        // A clone has the keys of its origin (`zfs_crypto_clone_check`).
        const OF_KEYS: [&str; 4] = ["encryption", "keyformat", "keylocation", "pbkdf2iters"];
        if new.props.iter().any(|(name, _)| OF_KEYS.contains(&name.as_str())) {
            let why = "Encryption properties must inherit from origin dataset.";
            return Err(ChangeError::Property(why.into()));
        }
        let mut settings = props::check(&new.props, On::New(kind))?;
        let quotas = quotas::asked(&settings);
        let properties = settings.iter().map(|s| s.name.clone()).collect();
        let origin = view.dsl().find(&new.origin)?.ok_or(ChangeError::NotFound)?;
        let version = view.dsl().get(&origin, "version")?.and_then(|v| v.exact.parse().ok());
        let as_it_is = |s: &Setting| s.name == "version" && s.as_number() == version;
        settings.retain(|s| !is_quota(&s.name) && !as_it_is(s));
        if let Some(fixed) = settings.iter().find(|s| in_contents(&s.name)) {
            return Err(ChangeError::Property(format!("'{}' is readonly", fixed.name)));
        }
        set::reservation_of_clone(&view, (&origin, &above), &mut settings)?;
        let mut input = NvList::default();
        input.set("origin", NvValue::String(new.origin.clone()));
        input.set("props", NvValue::NvList(Setting::list(&settings)));
        let (accounted, stored) =
            settings.into_iter().partition(|s: &Setting| set::is_accounted(&s.name));
        Ok(Plan {
            parent: parent.into(),
            leaf: leaf.into(),
            stored,
            accounted,
            request: Request { name: "clone", input },
            properties,
            quotas,
        })
    }

    /// Whether a snapshot is of a file system or of a volume.
    fn kind_of(&self, dsl: &Dsl, snapshot: &str) -> Result<DatasetKind> {
        let head = snapshot.split('@').next().unwrap_or_default();
        if dsl.find(snapshot)?.is_none() {
            return Err(ChangeError::NotFound);
        }
        Ok(dsl.find(head)?.ok_or(ChangeError::NotFound)?.kind)
    }

    /// The name of the snapshot that a dataset is a clone of, if it is one.
    fn origin_of(&self, name: &str) -> Result<Option<String>> {
        let view = self.engine.pool();
        let Some(dataset) = view.dsl().find(name)? else { return Ok(None) };
        Ok(view.dsl().origin(&dataset)?.map(|origin| origin.name))
    }

    /// Makes a clone independent of its origin: the origin's snapshots up to that become the clone's, and
    /// the origin's dataset becomes a clone (`dsl_dataset_promote`, `zfs_ioc_promote`, `lzc_promote`).
    ///
    /// # Errors
    /// It is no clone; there is no room for what it takes over. With the short name of a snapshot that
    /// both have, if that is the reason.
    pub fn promote(&self, name: &str) -> std::result::Result<(), (Option<String>, ChangeError)> {
        let origin = self.origin_of(name).map_err(|e| (None, e))?;
        let permit = self.permit(&Operation::Promote { name, origin: origin.as_deref() });
        let permit = permit.map_err(|e| (None, e))?;
        let name = name.to_string();
        let keys = Arc::clone(self.engine.pool().dsl().keystore());
        let done = self.task(permit, (SpaceCheck::Reserved, 16), move |context| {
            let tx = &mut context.tx;
            let (_, head) = find_head(tx, &name)?;
            if let Some(taken) = conflicts(tx, head)?.into_iter().next() {
                return Ok(Ok(Err(taken)));
            }
            let moved = promote(tx, head)?;
            record(tx, "promote", " ", (&name, head))?;
            if let Some(root) = moved.clone() {
                context.when_kept(move || keys.moved(root.from, root.to, &root.objects));
            }
            Ok(Ok(Ok(moved)))
        });
        match done.map_err(|e| (None, e))? {
            Ok(None) => Ok(()),
            Ok(Some(moved)) => {
                let view = self.engine.pool();
                view.dsl().keystore().settled(moved.to);
                self.engine.forget_keys_of_gone();
                Ok(())
            }
            Err(taken) => Err((Some(taken), ChangeError::Exists)),
        }
    }
}
