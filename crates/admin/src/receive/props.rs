//! Properties and holds of what is received: what the package has, and what the user asked for.

use super::{Job, Receive, Within, cannot};
use crate::error::{Error, ErrorKind, Result};
use crate::host::Event;
use crate::session::Session;
use cenote_dsl::DatasetKind;
use cenote_dsl::props::is_user;
use cenote_engine::change::props::{On, check, find};
use cenote_engine::change::receive::Properties;
use cenote_engine::change::{Changes, Failed};
use cenote_format::stream::Begin;
use cenote_format::stream::package::Sent;
use std::sync::Arc;

impl Receive {
    /// Whether the properties that were asked for can be received (`zfs_receive_checkprops`).
    ///
    /// # Errors
    /// One cannot.
    pub fn check(&self) -> Result<()> {
        for name in self.set.iter().map(|(name, _)| name).chain(&self.inherit) {
            let refused = match find(name) {
                None => !is_user(name),
                Some(_) if name == "encryption" => false,
                Some(native) => {
                    native.is_readonly() || matches!(native.name, "version" | "volsize")
                }
            };
            if refused {
                return Err(cannot(ErrorKind::Invalid, format!("invalid property '{name}'")));
            }
        }
        Ok(())
    }
}

/// Whether a property can be set on datasets of this kind.
fn applies(name: &str, kind: DatasetKind) -> bool {
    find(name).is_none_or(|native| native.applies_to.contains(kind))
}

/// The properties of a dataset that is received (`zfs_setup_cmdline_props`). `uppermost`: it is the one that was named;
/// those below inherit from it what is set there. `refused` puts what is tried before a reason.
pub(super) fn of_dataset(
    job: &mut Job<'_, '_>,
    within: &Within<'_>,
    (begin, head): (&Begin, &str),
    uppermost: bool,
    refused: &dyn Fn(&dyn std::fmt::Display) -> Error,
) -> Result<Properties> {
    let kind = if begin.kind == 3 { DatasetKind::Volume } else { DatasetKind::Filesystem };
    let recursive = within.list.is_some_and(|list| list.recursive);
    let sent = within.list.and_then(|list| list.sent(begin.to_guid));
    let received = sent.and_then(|(sent, _)| sent.props.clone());
    let mut props = Properties { received, ..Properties::default() };
    for name in &job.how.inherit {
        let own = find(name).map_or(name.as_str(), |native| native.name);
        if own == "encryption" {
            // It says how the dataset is made, not what it has.
            continue;
        }
        match applies(name, kind) {
            true => props.inherited.push(own.into()),
            false => job.session.tell(Event::Warning(&format!(
                "Warning: {head}: property '{name}' does not apply to datasets of this type"
            )))?,
        }
    }
    for (name, value) in &job.how.set {
        match applies(name, kind) {
            true if uppermost => props.set.push((name.clone(), value.clone())),
            true => props.inherited.push(find(name).map_or(name.as_str(), |n| n.name).into()),
            false if recursive => {}
            false => {
                let why = "does not apply to datasets of this type";
                return Err(refused(&format_args!("property '{name}' {why}")));
            }
        }
    }
    check(&props.set, On::New(kind)).map_err(|e| refused(&e))?;
    Ok(props)
}

/// Gives what was received its properties. What is refused is told, and is no failure.
pub(super) fn give(
    session: &mut Session<'_>,
    changes: &Changes,
    name: &str,
    props: &Properties,
) -> Result<()> {
    if props.is_empty() {
        return Ok(());
    }
    match changes.receive_properties(name, props) {
        Ok(failed) => {
            for Failed { name: property, error } in failed {
                let what = format_args!("cannot receive {property} property on {name}");
                session.failed(Error::doing(what, error))?;
            }
            Ok(())
        }
        Err(e) => {
            session.failed(Error::doing(format_args!("cannot receive properties on {name}"), e))
        }
    }
}

/// Gives a snapshot the properties that it has at the sender.
pub(super) fn give_sent(
    session: &mut Session<'_>,
    changes: &Changes,
    (sent, short): (&Sent, &str),
    to: &str,
) -> Result<()> {
    let own = sent.snap_props.iter().find(|(name, _)| name == short);
    if let Some((_, list)) = own.filter(|(_, list)| !list.pairs.is_empty()) {
        let props = Properties { received: Some(list.clone()), ..Properties::default() };
        give(session, changes, to, &props)?;
    }
    Ok(())
}

/// Properties and holds of a snapshot that was received.
pub(super) fn give_snapshot(
    job: &mut Job<'_, '_>,
    within: &Within<'_>,
    to: &str,
    begin: &Begin,
) -> Result<()> {
    let sent = within.list.and_then(|list| list.sent(begin.to_guid));
    let Some((sent, short)) = sent else { return Ok(()) };
    let changes = Arc::clone(&job.changes);
    give_sent(job.session, &changes, (sent, short), to)?;
    if !job.holds || job.how.skip_holds {
        return Ok(());
    }
    let holds = sent.snap_holds.as_ref().and_then(|all| all.iter().find(|(name, _)| name == short));
    for (tag, _) in holds.iter().flat_map(|(_, tags)| &tags.pairs) {
        // Holds are best effort, as they are in OpenZFS.
        if let Err(e) = changes.hold(&[to.to_string()], tag) {
            tracing::warn!("hold '{tag}' of '{to}' is not received: {e:?}");
        }
    }
    Ok(())
}
