//! What the commands that change datasets have in common.

use crate::context::Context;
use crate::pools::Imported;
use cenote_admin::Rights;
use cenote_admin::contents::{Files, FilesOf};
use cenote_command::outcome::{Stop, fail, given_twice};
use cenote_engine::change::kept::without_effect;
use cenote_engine::change::policy::{self, Operation};
use cenote_engine::change::props::size;
use cenote_engine::change::{ChangeError, Changes, Command, Contents};
use std::sync::Arc;

/// The rights of the caller of the command that is running, which is recorded with its first change.
pub fn rights(ctx: &Context) -> Rights {
    let command = Command { line: ctx.line.clone(), who: ctx.caller.user.into() };
    let delegate = ctx.delegate();
    let contents: Arc<dyn Contents> = match delegate {
        None => Arc::new(Files),
        Some(_) => Arc::new(FilesOf { user: ctx.caller.user, group: ctx.caller.group() }),
    };
    let process = ctx.process_name();
    Rights { delegate, contents, command: Some(command), process }
}

/// The datasets of a pool, to be changed by the command that is running. The error is what comes
/// after `cannot …: `.
pub fn changes(imported: &Imported, ctx: &Context) -> Result<Changes, String> {
    Ok(rights(ctx).changes(imported.writable()?))
}

/// Whether the caller may do something. Each change asks that itself; a command asks before it looks at what is not
/// everybody's to see, or unmounts something for a change.
pub fn permit(
    imported: &Imported,
    ctx: &Context,
    operation: &Operation<'_>,
) -> Result<(), ChangeError> {
    policy::check(&imported.pool(), ctx.delegate().as_ref(), operation).map(drop)
}

/// Says which properties that were set are kept and have no effect here, and which are new to other systems.
pub fn tell_kept<'p>(props: impl IntoIterator<Item = &'p (String, String)>, ctx: &mut Context) {
    for (name, value) in props {
        if let Some(why) = without_effect(name, value) {
            let what = format!("property '{name}={value}' is kept, but has no effect");
            ctx.complain(format_args!("warning: {what}: {why}"));
        }
        let bound = match name.as_str() {
            "special_small_blocks" => size(value).unwrap_or(0),
            _ => 0,
        };
        if bound != 0 && !bound.is_power_of_two() {
            ctx.complain(format_args!(
                "warning: systems before OpenZFS 2.4 may stop when they open a dataset whose '{name}' \
                 is no power of 2"
            ));
        }
    }
}

/// Adds `name=value` to the properties.
pub fn add_property(props: &mut Vec<(String, String)>, text: &str) -> Result<(), Stop> {
    let Some((name, value)) = text.split_once('=') else {
        return fail("missing '=' for property=value argument");
    };
    if props.iter().any(|(known, _)| known == name) {
        return given_twice(name);
    }
    props.push((name.into(), value.into()));
    Ok(())
}
