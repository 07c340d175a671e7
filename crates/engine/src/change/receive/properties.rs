//! Properties that come with a stream, and those that the receiver sets or leaves out (`zfs_ioc_recv_impl`).
//!
//! There are three lists: received values, properties that the receiver leaves out (`-x`), and values that it sets
//! (`-o`). One sync task applies them in this order. Received values of a dataset replace all that it received
//! before (`dsl_prop_set_hasrecvd`); received values of a snapshot are added.
//!
//! A property that is refused, for want of a permission, a feature or a right value, comes back in a list of
//! [`Failed`] and does not keep the others from being set. Properties that are part of the contents are not taken
//! from the stream, and setting them is refused as busy: the contents are being received. A `refquota` can be left
//! for the end of the receive (`extract_delay_props`).

use super::error::Result;
use crate::SpaceCheck;
use crate::change::policy::Operation;
use crate::change::props::{self, On, Setting};
use crate::change::set::{find_target, is_refusal};
use crate::change::{ChangeError, Changes, Failed, record, set};
use cenote_dsl::write::props::{
    NewValue, Target, forget_received, in_contents, inherit, mark_received, receive,
};
use cenote_dsl::write::{DslWriteError, Tx};
use cenote_dsl::{DatasetKind, Source};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::version;

const REFQUOTA: &str = "refquota";

/// The properties of a dataset that is received.
#[derive(Clone, Debug, Default)]
pub struct Properties {
    /// Properties that come with the stream; `None`: it has no list.
    pub received: Option<NvList>,
    /// Those that are set, as users write them (`-o`).
    pub set: Vec<(String, String)>,
    /// Properties to inherit, whatever the stream says (`-x`).
    pub inherited: Vec<String>,
}

impl Properties {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.received.is_none() && self.set.is_empty() && self.inherited.is_empty()
    }

    /// The same without a `refquota`, and whether there is one.
    pub fn without_refquota(&self) -> (Properties, bool) {
        let mut less = self.clone();
        let count = |p: &Properties| {
            p.set.len() + p.received.as_ref().map_or(0, |received| received.pairs.len())
        };
        less.set.retain(|(name, _)| name != REFQUOTA);
        if let Some(received) = &mut less.received {
            received.pairs.retain(|(name, _)| name != REFQUOTA);
        }
        let delayed = count(&less) != count(self);
        (less, delayed)
    }
}

/// What was received as a value: in the stream numbers and texts have types.
fn received(list: &NvList) -> Vec<(String, NewValue)> {
    let value = |value: &NvValue| match value {
        NvValue::Uint64(number) => Some(NewValue::Number(*number)),
        NvValue::String(text) => Some(NewValue::Text(text.clone())),
        // Some senders put the value beside its source.
        NvValue::NvList(both) => match both.get("value")? {
            NvValue::Uint64(number) => Some(NewValue::Number(*number)),
            NvValue::String(text) => Some(NewValue::Text(text.clone())),
            _ => None,
        },
        _ => None,
    };
    let pairs = list.pairs.iter().filter(|(name, _)| !in_contents(name));
    pairs.filter_map(|(name, v)| Some((name.clone(), value(v)?))).collect()
}

impl Changes {
    /// Takes out of a list what the user may not set.
    fn leave_denied<T>(
        &self,
        name: &str,
        list: &mut Vec<T>,
        property: impl Fn(&T) -> &String,
    ) -> Result<Vec<Failed>> {
        let mut denied = Vec::new();
        for at in (0..list.len()).rev() {
            let property = list.get(at).map(&property).cloned().unwrap_or_default();
            match self.permit(&may_set(name, &property)) {
                Ok(_) => {}
                Err(error @ (ChangeError::Denied | ChangeError::NoDelegation)) => {
                    list.remove(at);
                    denied.push(Failed { name: property, error });
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(denied)
    }

    /// Gives a dataset or snapshot that is received, or was, its properties. Returns those that were refused.
    ///
    /// # Errors
    /// A property to be set cannot be, or has no such value, then nothing is done; the pool is suspended.
    pub fn receive_properties(&self, name: &str, props: &Properties) -> Result<Vec<Failed>> {
        let view = self.engine.pool();
        let dataset = view.dsl().find(name)?.ok_or(ChangeError::NotFound)?;
        let mut settings = props::check(&props.set, On::There(view.dsl(), &dataset))?;
        let permit = self.permit(&Operation::Receive {
            name: dataset.head_name(),
            force: false,
            origin: None,
        })?;
        // They are in the contents, which are being received or have been (`zfs_set_prop_nvlist` gets `EBUSY`).
        let busy: Vec<Setting> = settings.extract_if(.., |s| in_contents(&s.name)).collect();
        let mut came = props.received.as_ref().map(received);
        let mut denied = self.leave_denied(name, &mut settings, |s| &s.name)?;
        denied.extend(match &mut came {
            Some(came) => self.leave_denied(name, came, |(name, _)| name)?,
            None => Vec::new(),
        });
        let full = name.to_string();
        let mut inherited = Vec::new();
        for property in &props.inherited {
            if let Err(error) = self.permit(&may_set(name, property)) {
                denied.push(Failed { name: property.clone(), error });
                continue;
            }
            // A value that is set here counts before a received one anyway.
            let value = view.dsl().get(&dataset, property)?;
            if value.is_none_or(|value| value.source != Source::Local) {
                inherited.push(property.clone());
            }
        }
        let is_snapshot = dataset.kind == DatasetKind::Snapshot;
        self.receive_task(permit, (SpaceCheck::Reserved, 4), move |context| {
            let version = context.config.version;
            let tx = &mut context.tx;
            let (target, object) = find_target(tx, &full)?;
            let mut failed: Vec<Failed> = busy.into_iter().map(is_busy).chain(denied).collect();
            if let Some(came) = &came {
                failed.extend(take(tx, target, came, &inherited, (is_snapshot, version))?);
            }
            let inheritable =
                |p: &&String| props::find(p).is_none_or(|native| native.is_inheritable());
            for property in inherited.iter().filter(inheritable) {
                inherit(tx, target, property)?;
                record(tx, "inherit", &format!("{property}="), (&full, object))?;
            }
            failed.extend(set::set_all(context, (&full, object), target, &settings)?);
            Ok(Ok(failed))
        })
    }
}

/// What a property of what is received needs.
fn may_set<'a>(name: &'a str, property: &'a str) -> Operation<'a> {
    Operation::Set { name, properties: vec![property] }
}

/// A setting of what cannot be changed while it is received.
fn is_busy(setting: Setting) -> Failed {
    let error = ChangeError::Property("pool or dataset is busy".into());
    Failed { name: setting.name, error }
}

/// Takes the values that came. Of a dataset they replace all that came before.
fn take(
    tx: &mut Tx<'_>,
    target: Target,
    came: &[(String, NewValue)],
    inherited: &[String],
    (is_snapshot, version): (bool, u64),
) -> std::result::Result<Vec<Failed>, DslWriteError> {
    if is_snapshot && version < version::SNAPSHOT_PROPERTIES {
        let lacks = |(name, _): &(String, NewValue)| Failed {
            name: name.clone(),
            error: ChangeError::NeedsUpgrade,
        };
        return Ok(came.iter().map(lacks).collect());
    }
    if !is_snapshot && version >= version::RECEIVED_PROPERTIES {
        mark_received(tx, target)?;
        let names: Vec<&str> = came.iter().map(|(name, _)| name.as_str()).collect();
        forget_received(tx, target, &names)?;
    }
    let mut failed = Vec::new();
    for (name, value) in came {
        // What cannot be inherited is left out instead.
        let native = props::find(name);
        let left_out = native.is_some_and(|p| !p.is_inheritable()) && inherited.contains(name);
        if left_out {
            continue;
        }
        let setting = Setting { name: name.clone(), value: value.clone() };
        if props::needs_upgrade(tx, version, [&setting])? {
            failed.push(Failed { name: name.clone(), error: ChangeError::NeedsUpgrade });
            continue;
        }
        // Without a place of their own they are set.
        let put = |tx: &mut Tx<'_>| match version < version::RECEIVED_PROPERTIES {
            true => cenote_dsl::write::props::set(tx, target, name, value),
            false => receive(tx, target, name, value),
        };
        match tx.whole(put) {
            Ok(()) => {}
            Err(e) if !is_refusal(&e) => return Err(e),
            Err(e) => failed.push(Failed { name: name.clone(), error: e.into() }),
        }
    }
    Ok(failed)
}
