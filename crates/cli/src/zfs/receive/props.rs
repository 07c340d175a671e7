//! Properties and holds of what is received: those of the package, and those that were asked for.

use super::{Job, Within};
use crate::context::Context;
use crate::zfs::change::tell_kept;
use cenote_command::outcome::{Stop, fail, given_twice};
use cenote_dsl::DatasetKind;
use cenote_dsl::props::is_user;
use cenote_engine::change::props::{On, check, find};
use cenote_engine::change::receive::Properties;
use cenote_engine::change::{Changes, Failed};
use cenote_format::stream::Begin;
use cenote_format::stream::package::Sent;

/// What was asked for with `-o` and `-x`.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    set: Vec<(String, String)>,
    left_out: Vec<String>,
}

impl Asked {
    /// `-o NAME=VALUE`
    pub(super) fn set(&mut self, text: &str) -> Result<(), Stop> {
        let Some((name, value)) = text.split_once('=') else {
            return fail("missing '=' for property=value argument");
        };
        self.check_new(name)?;
        self.set.push((name.into(), value.into()));
        Ok(())
    }

    /// `-x NAME`
    pub(super) fn leave_out(&mut self, name: &str) -> Result<(), Stop> {
        if name.contains('=') {
            return fail(format!("invalid property name '{name}'"));
        }
        self.check_new(name)?;
        self.left_out.push(name.into());
        Ok(())
    }

    fn check_new(&self, name: &str) -> Result<(), Stop> {
        let known = self.set.iter().map(|(known, _)| known).chain(&self.left_out);
        match known.into_iter().any(|known| known == name) {
            true => given_twice(name),
            false => Ok(()),
        }
    }

    /// The origin among the properties, which is none of the dataset's.
    pub(super) fn take_origin(&mut self) -> Option<String> {
        let at = self.set.iter().position(|(name, _)| name == "origin")?;
        Some(self.set.remove(at).1)
    }

    /// Says which of these are kept and have no effect here.
    pub(super) fn tell_kept(&self, ctx: &mut Context) {
        tell_kept(&self.set, ctx);
    }

    /// Whether these can be received (`zfs_receive_checkprops`).
    pub(super) fn check(&self) -> Result<(), Stop> {
        for name in self.set.iter().map(|(name, _)| name).chain(&self.left_out) {
            let refused = match find(name) {
                None => !is_user(name),
                Some(native) if name == "encryption" => !native.is_readonly(),
                Some(native) => {
                    native.is_readonly() || matches!(native.name, "version" | "volsize")
                }
            };
            if refused {
                return fail(format!("cannot receive: invalid property '{name}'"));
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
/// those below inherit from it what is set there. The error is what comes after `cannot receive …: `.
pub(super) fn of_dataset(
    job: &Job,
    within: &Within<'_>,
    (begin, head): (&Begin, &str),
    uppermost: bool,
    ctx: &mut Context,
) -> Result<Properties, String> {
    let kind = if begin.kind == 3 { DatasetKind::Volume } else { DatasetKind::Filesystem };
    let recursive = within.list.is_some_and(|list| list.recursive);
    let sent = within.list.and_then(|list| list.sent(begin.to_guid));
    let received = sent.and_then(|(sent, _)| sent.props.clone());
    let mut props = Properties { received, ..Properties::default() };
    for name in &job.asked.left_out {
        let own = find(name).map_or(name.as_str(), |native| native.name);
        match applies(name, kind) {
            true => props.inherited.push(own.into()),
            false => ctx.complain(format_args!(
                "Warning: {head}: property '{name}' does not apply to datasets of this type"
            )),
        }
    }
    for (name, value) in &job.asked.set {
        match applies(name, kind) {
            true if uppermost => props.set.push((name.clone(), value.clone())),
            true => props.inherited.push(find(name).map_or(name.as_str(), |n| n.name).into()),
            false if recursive => {}
            false => {
                return Err(format!("property '{name}' does not apply to datasets of this type"));
            }
        }
    }
    check(&props.set, On::New(kind)).map_err(|e| e.to_string())?;
    Ok(props)
}

/// Gives what was received its properties. What is refused is said, and is no failure.
pub(super) fn give(changes: &Changes, name: &str, props: &Properties, ctx: &mut Context) {
    if props.is_empty() {
        return;
    }
    match changes.receive_properties(name, props) {
        Ok(failed) => {
            for Failed { name: property, error } in failed {
                ctx.complain(format_args!("cannot receive {property} property on {name}: {error}"));
            }
        }
        Err(e) => ctx.complain(format_args!("cannot receive properties on {name}: {e}")),
    }
}

/// Gives a snapshot the properties that it has at the sender.
pub(super) fn give_sent(
    changes: &Changes,
    (sent, short): (&Sent, &str),
    to: &str,
    ctx: &mut Context,
) {
    let own = sent.snap_props.iter().find(|(name, _)| name == short);
    if let Some((_, list)) = own.filter(|(_, list)| !list.pairs.is_empty()) {
        let props = Properties { received: Some(list.clone()), ..Properties::default() };
        give(changes, to, &props, ctx);
    }
}

/// Properties and holds of a snapshot that was received.
pub(super) fn give_snapshot(
    job: &Job,
    within: &Within<'_>,
    (changes, to): (&Changes, &str),
    begin: &Begin,
    ctx: &mut Context,
) {
    let sent = within.list.and_then(|list| list.sent(begin.to_guid));
    let Some((sent, short)) = sent else { return };
    give_sent(changes, (sent, short), to, ctx);
    if !job.holds || job.flags.skip_holds {
        return;
    }
    let holds = sent.snap_holds.as_ref().and_then(|all| all.iter().find(|(name, _)| name == short));
    for (tag, _) in holds.iter().flat_map(|(_, tags)| &tags.pairs) {
        // Holds are best effort, as they are in OpenZFS.
        if let Err(e) = changes.hold(&[to.to_string()], tag) {
            tracing::warn!("hold '{tag}' of '{to}' is not received: {e:?}");
        }
    }
}
