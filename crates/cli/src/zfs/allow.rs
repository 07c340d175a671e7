//! `zfs allow`: delegated permissions, shown. They are not changed here, and bind nobody: who may do what
//! the daemon's socket says.

use crate::context::Context;
use crate::options::{Spec, parse};
use crate::zfs::select::{Kinds, open};
use cenote_command::outcome::{Outcome, fail, usage};
use cenote_dsl::permissions::Grant;
use nix::unistd::{Gid, Group, Uid, User};
use std::collections::BTreeMap;
use std::ffi::OsString;

const SPEC: Spec = Spec { short: "ldugecsh", refused: "", refused_long: &[] };
/// Kinds of grants in the order in which they are shown.
const KINDS: &str = "scuge";

/// Runs `zfs allow`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let names = parsed.names();
    let name = match names.as_slice() {
        _ if parsed.options.iter().any(|o| o.letter == 'h') => return usage(""),
        [] => return usage("missing dataset argument"),
        [name] if parsed.options.is_empty() => name,
        _ => {
            return fail(
                "zfs allow: permissions are shown only, to change them is not supported yet",
            );
        }
    };
    let node = match open(ctx, name, Kinds::FILESYSTEM.with(Kinds::VOLUME)) {
        Ok(node) => node,
        Err(message) => {
            ctx.complain(message);
            return fail(format!("Failed to open dataset: {name}"));
        }
    };
    let permissions = match node.imported.pool().dsl().permissions(&node.dataset) {
        Ok(permissions) => permissions,
        Err(e) => return fail(format!("cannot get permissions on '{name}': {e}")),
    };
    for (dataset, grants) in permissions {
        write!(ctx.out, "{}", text(&dataset, &grants))?;
    }
    Ok(0)
}

/// What somebody is granted: permissions, with whether they hold here and whether they hold below.
type Granted<'a> = BTreeMap<&'a str, (bool, bool)>;

/// The permissions on a dataset (`print_fs_perms`).
fn text(dataset: &str, grants: &[Grant]) -> String {
    let mut all: BTreeMap<(usize, &str), Granted<'_>> = BTreeMap::new();
    for grant in grants {
        let Some(weight) = KINDS.find(grant.kind) else { continue };
        let granted = all.entry((weight, grant.who.as_str())).or_default();
        for permission in &grant.permissions {
            let places = granted.entry(permission).or_default();
            places.0 |= grant.place == 'l';
            places.1 |= grant.place == 'd';
        }
    }
    let head = format!("---- Permissions on {dataset} ");
    let mut text = format!("{head:-<70}\n");
    for (weight, title) in [(0, "Permission sets:\n"), (1, "Create time permissions:\n")] {
        let mut listed = all.iter().filter(|((w, _), _)| *w == weight).peekable();
        if listed.peek().is_some() {
            text += title;
        }
        for ((_, who), granted) in listed {
            let who = if who.is_empty() { String::new() } else { format!("{who} ") };
            let names: Vec<&str> = granted.keys().copied().collect();
            text += &format!("\t{who}{}\n", names.join(","));
        }
    }
    for (places, title) in [
        ((true, false), "Local permissions:\n"),
        ((false, true), "Descendent permissions:\n"),
        ((true, true), "Local+Descendent permissions:\n"),
    ] {
        let mut titled = false;
        for ((weight, who), granted) in all.iter().filter(|((w, _), _)| *w >= 2) {
            let held = granted.iter().filter(|(_, at)| **at == places);
            let names: Vec<&str> = held.map(|(name, _)| *name).collect();
            if names.is_empty() {
                continue;
            }
            if !std::mem::replace(&mut titled, true) {
                text += title;
            }
            text += &format!("\t{} {}\n", whom(*weight, who), names.join(","));
        }
    }
    text
}

/// `user alice`, `group 7`, `everyone`.
fn whom(weight: usize, id: &str) -> String {
    let number = id.parse::<u32>().ok();
    let unknown = || format!("(unknown: {id})");
    match KINDS.chars().nth(weight) {
        Some('u') => {
            let user = number.and_then(|n| User::from_uid(Uid::from_raw(n)).ok()?);
            format!("user {}", user.map_or_else(unknown, |user| user.name))
        }
        Some('g') => {
            let group = number.and_then(|n| Group::from_gid(Gid::from_raw(n)).ok()?);
            format!("group {}", group.map_or_else(unknown, |group| group.name))
        }
        _ => "everyone".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(kind: char, place: char, who: &str, permissions: &[&str]) -> Grant {
        let permissions = permissions.iter().map(|p| p.to_string()).collect();
        Grant { kind, place, who: who.into(), permissions }
    }

    #[test]
    fn permissions_are_shown_by_place() {
        let grants = [
            grant('s', '-', "@backup", &["hold", "send"]),
            grant('c', '-', "", &["destroy"]),
            grant('u', 'l', "0", &["@backup", "mount"]),
            grant('u', 'd', "0", &["mount"]),
            grant('g', 'd', "4294967294", &["snapshot"]),
            grant('e', 'l', "", &["diff"]),
        ];
        let text = text("tank/a", &grants);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].len(), 70);
        assert!(lines[0].starts_with("---- Permissions on tank/a ------"));
        assert_eq!(
            lines[1..],
            [
                "Permission sets:",
                "\t@backup hold,send",
                "Create time permissions:",
                "\tdestroy",
                "Local permissions:",
                "\tuser root @backup",
                "\teveryone diff",
                "Descendent permissions:",
                "\tgroup (unknown: 4294967294) snapshot",
                "Local+Descendent permissions:",
                "\tuser root mount",
            ]
        );
    }
}
