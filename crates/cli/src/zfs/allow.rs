//! `zfs allow` and `zfs unallow` (`zfs_do_allow`, `zfs_do_unallow`): delegated permissions, shown, granted and taken away.
//! They say what other users than root may do at root's daemon.

use super::change::changes;
use crate::context::Context;
use crate::options::{Spec, parse};
use crate::zfs::select::{Kinds, Node, open};
use crate::zfs::usage as texts;
use cenote_admin::family;
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_dsl::permissions::Grant;
use cenote_dsl::props::table::PROPERTIES;
use cenote_dsl::write::permissions::{Entry, NAMES};
use cenote_engine::change::is_delegatable;
use nix::unistd::{Gid, Group, Uid, User};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;

const SHOW_OR_ALLOW: Spec = Spec { short: "ldugecsh", refused: "", refused_long: &[] };
const UNALLOW: Spec = Spec { short: "ldugecsrh", refused: "", refused_long: &[] };
/// Kinds of grants in the order in which they are shown.
const KINDS: &str = "scuge";

/// Runs `zfs allow`.
pub fn allow(args: &[OsString], ctx: &mut Context) -> Outcome {
    if is_help(args, SHOW_OR_ALLOW)? {
        return explain(texts::ALLOW, false, ctx);
    }
    let request = Request::parse(args, false)?;
    match request.whose {
        None => show(&request.dataset, ctx),
        Some(_) => change(&request, ctx),
    }
}

/// Runs `zfs unallow`.
pub fn unallow(args: &[OsString], ctx: &mut Context) -> Outcome {
    if is_help(args, UNALLOW)? {
        return explain(texts::UNALLOW, true, ctx);
    }
    change(&Request::parse(args, true)?, ctx)
}

/// Whether a command line asks for help and nothing else.
fn is_help(args: &[OsString], spec: Spec) -> Result<bool, Stop> {
    let parsed = parse(args, spec)?;
    let only = parsed.operands.is_empty() && parsed.options.iter().all(|o| o.letter == 'h');
    Ok(only && !parsed.options.is_empty())
}

/// Shows the options and every permission that there is (`allow_usage`).
fn explain(lines: &str, take: bool, ctx: &mut Context) -> Outcome {
    let out = &mut ctx.out;
    writeln!(out, "Usage: {lines}\nOptions:")?;
    let recursive = take.then_some(("-r", "from the datasets below as well"));
    for (option, what) in OPTIONS.into_iter().chain(recursive) {
        writeln!(out, "  {option:<10}  {what}")?;
    }
    write!(out, "{}", help())?;
    Ok(0)
}

/// The options of both commands.
const OPTIONS: [(&str, &str); 8] = [
    ("-h", "this text"),
    ("-l", "on the dataset itself"),
    ("-d", "on the datasets below"),
    ("-u", "of users"),
    ("-g", "of groups"),
    ("-e", "of everyone"),
    ("-c", "of who creates a dataset, on that"),
    ("-s", "in a set of permissions"),
];

/// Whose permissions change.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Whose {
    /// A set of permissions, with its name.
    Set(String),
    /// Creators of datasets.
    Creators,
    Everyone,
    /// These users and groups: names or numbers, which are users', groups' (`-g`), or either's.
    These(String, Option<char>),
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Request {
    dataset: String,
    /// `None`: permissions are to be shown.
    whose: Option<Whose>,
    /// Separated by commas; `None`: all.
    permissions: Option<String>,
    /// Letters of the places.
    places: &'static str,
    recursive: bool,
    /// The permissions are to be taken away.
    take: bool,
}

impl Request {
    /// Takes the arguments apart (`parse_allow_args`).
    fn parse(args: &[OsString], take: bool) -> Result<Request, Stop> {
        let parsed = parse(args, if take { UNALLOW } else { SHOW_OR_ALLOW })?;
        let has = |letter| parsed.options.iter().any(|o| o.letter == letter);
        if has('h') {
            return usage("");
        }
        let count = |letters: &str| letters.chars().filter(|l| has(*l)).count();
        if count("uge") > 1 {
            return usage("-u, -g, and -e are mutually exclusive");
        }
        let names = parsed.names();
        let mut operands = names.iter().map(String::as_str);
        let whose = if has('s') {
            if count("csuge") > 1 {
                return usage("invalid options combined with -s");
            }
            match operands.next() {
                Some(set) if set.starts_with('@') => Some(Whose::Set(set.into())),
                Some(_) => return usage("invalid set name: missing '@' prefix"),
                None => return usage("wrong number of parameters"),
            }
        } else if has('c') {
            if count("ldcsuge") > 1 {
                return usage("invalid options combined with -c");
            }
            Some(Whose::Creators)
        } else if has('e') {
            Some(Whose::Everyone)
        } else if count("ug") == 0 && names.first().is_some_and(|first| first == "everyone") {
            operands.next();
            Some(Whose::Everyone)
        } else if names.len() == 1 && !take {
            None
        } else {
            let kind = "ug".chars().find(|kind| has(*kind));
            operands.next().map(|who| Whose::These(who.into(), kind))
        };
        let (permissions, dataset) = match (operands.next(), operands.next(), operands.next()) {
            (Some(permissions), Some(dataset), None) => (Some(permissions.into()), dataset),
            (Some(dataset), None, None) if take || whose.is_none() => (None, dataset),
            _ => return usage("wrong number of parameters"),
        };
        let places = match (has('l'), has('d')) {
            (true, false) => "l",
            (false, true) => "d",
            _ => "ld",
        };
        let (dataset, recursive) = (dataset.into(), has('r'));
        Ok(Request { dataset, whose, permissions, places, recursive, take })
    }

    /// The entries that change (`construct_fsacl_list`).
    fn entries(&self) -> Result<Vec<Entry>, Stop> {
        let mut entries = Vec::new();
        match &self.whose {
            None => {}
            Some(Whose::Set(name)) => self.add('s', "-", name, &mut entries),
            Some(Whose::Creators) => self.add('c', "-", "", &mut entries),
            Some(Whose::Everyone) => self.add('e', self.places, "", &mut entries),
            Some(Whose::These(list, kind)) => {
                for name in list.split(',').filter(|name| !name.is_empty()) {
                    let (kind, id) = find(name, *kind)?;
                    self.add(kind, self.places, &id.to_string(), &mut entries);
                }
            }
        }
        Ok(entries)
    }

    /// Adds the entries of one of them: of permissions and of sets, at each place (`store_allow_perm`).
    fn add(&self, kind: char, places: &str, who: &str, entries: &mut Vec<Entry>) {
        for place in places.chars() {
            for sets in [false, true] {
                let kind = if sets { kind.to_ascii_uppercase() } else { kind };
                let key = format!("{kind}{place}${who}");
                let Some(permissions) = &self.permissions else {
                    entries.push((key, None));
                    continue;
                };
                let all = permissions.trim_end_matches(',').split(',').map(String::from);
                let own: Vec<String> = all.filter(|p| p.starts_with('@') == sets).collect();
                if !own.is_empty() {
                    entries.push((key, Some(own)));
                }
            }
        }
    }
}

/// The user or group of a name or number; `kind` says which it has to be.
fn find(name: &str, kind: Option<char>) -> Result<(char, u32), Stop> {
    let number = name.parse::<u32>().ok();
    let user = || match number {
        Some(number) => User::from_uid(Uid::from_raw(number)),
        None => User::from_name(name),
    };
    let group = || match number {
        Some(number) => Group::from_gid(Gid::from_raw(number)),
        None => Group::from_name(name),
    };
    let user = || user().ok().flatten().map(|user| ('u', user.uid.as_raw()));
    let group = || group().ok().flatten().map(|group| ('g', group.gid.as_raw()));
    let (found, what) = match kind {
        Some('u') => (user().or(number.map(|number| ('u', number))), "user"),
        Some(_) => (group().or(number.map(|number| ('g', number))), "group"),
        None => (user().or_else(group), "user/group"),
    };
    found.map_or_else(|| usage(format!("invalid {what} {name}")), Ok)
}

fn change(request: &Request, ctx: &mut Context) -> Outcome {
    let entries = request.entries()?;
    let pools = Arc::clone(&ctx.pools);
    let _change = pools.change(&request.dataset);
    let name = &request.dataset;
    let node = opened(name, ctx)?;
    let cannot = |why: &dyn std::fmt::Display| {
        Stop::Fail(format!("cannot set permissions on '{name}': {why}"))
    };
    let changes = changes(&node.imported, ctx).map_err(|why| cannot(&why))?;
    let done = match (request.take, request.recursive) {
        (false, _) => changes.allow(name, &entries),
        (true, false) => changes.unallow(std::slice::from_ref(name), &entries),
        (true, true) => {
            let all = family(node.imported.pool().dsl(), &node.dataset).map_err(|e| cannot(&e))?;
            let names: Vec<String> = all.into_iter().map(|dataset| dataset.name).collect();
            changes.unallow(&names, &entries)
        }
    };
    done.map_err(|e| cannot(&e))?;
    if !request.take {
        tell_kept(&entries, ctx);
    }
    Ok(0)
}

const OF_KEYS: &str = "keys are loaded, unloaded and changed by the daemon's user and root alone";
/// Permissions that allow nothing here, with the reason.
const WITHOUT_EFFECT: [(&str, &str); 3] =
    [("load-key", OF_KEYS), ("change-key", OF_KEYS), ("share", "nothing is shared")];

/// Says which permissions are kept and allow nothing here.
fn tell_kept(entries: &[Entry], ctx: &mut Context) {
    let granted = |name: &str| {
        let mut lists = entries.iter().filter_map(|(_, permissions)| permissions.as_ref());
        lists.any(|list| list.iter().any(|permission| permission == name))
    };
    for (name, why) in WITHOUT_EFFECT.iter().filter(|(name, _)| granted(name)) {
        ctx.complain(format_args!(
            "warning: permission '{name}' is kept, but has no effect: {why}"
        ));
    }
}

fn opened(name: &str, ctx: &mut Context) -> Result<Node, Stop> {
    open(ctx, name, Kinds::HEAD).map_err(|message| {
        ctx.complain(message);
        Stop::Fail(format!("Failed to open dataset: {name}"))
    })
}

/// The permissions that there are, for the usage message.
pub fn help() -> String {
    let mut text = format!("\n{:<24} TYPE\n", "PERMISSION");
    text.extend(NAMES.iter().map(|name| format!("{name:<24} {}\n", kind_of(name))));
    let properties = PROPERTIES.iter().filter(|p| p.visible && is_delegatable(p.name));
    let mut properties: Vec<&str> = properties.map(|p| p.name).collect();
    properties.sort_unstable();
    text.extend(properties.iter().map(|name| format!("{name:<24} property\n")));
    text
}

/// Whether a permission is for a command or for something else.
fn kind_of(name: &str) -> &'static str {
    let of_a_user = name.ends_with("quota") || name.ends_with("used") || name == "userprop";
    if of_a_user { "other" } else { "subcommand" }
}

fn show(name: &str, ctx: &mut Context) -> Outcome {
    let node = opened(name, ctx)?;
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

    fn asked(line: &str, take: bool) -> Result<Vec<(String, String)>, String> {
        let args: Vec<OsString> = line.split(' ').map(Into::into).collect();
        let entries = Request::parse(&args, take).and_then(|request| request.entries());
        let entries = entries.map_err(|stop| match stop {
            Stop::Usage(why) => why,
            other => panic!("{other:?}"),
        })?;
        let text = |(key, list): Entry| (key, list.map_or("all".into(), |list| list.join(",")));
        Ok(entries.into_iter().map(text).collect())
    }

    #[test]
    fn arguments_are_taken_apart() {
        let entries = |line: &str, take: bool| {
            let entries = asked(line, take).unwrap().into_iter();
            entries.map(|(key, list)| format!("{key} {list}")).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(
            entries("-u 7 mount,@a,send t", false),
            "ul$7 mount,send; Ul$7 @a; ud$7 mount,send; Ud$7 @a"
        );
        assert_eq!(entries("-l root mount t", false), "ul$0 mount");
        assert_eq!(entries("-d -g 3 mount t", false), "gd$3 mount");
        assert_eq!(entries("-c mount t", false), "c-$ mount");
        assert_eq!(entries("-s @a mount,@b t", false), "s-$@a mount; S-$@a @b");
        assert_eq!(entries("-e -l mount t", false), entries("-l everyone mount t", false));
        assert_eq!(entries("-r everyone t", true), "el$ all; El$ all; ed$ all; Ed$ all");
        assert_eq!(entries("-c t", true), "c-$ all; C-$ all");
        let why = |line: &str| asked(line, false).unwrap_err();
        assert_eq!(why("-u -g 3 mount t"), "-u, -g, and -e are mutually exclusive");
        assert_eq!(why("-s a mount t"), "invalid set name: missing '@' prefix");
        assert_eq!(why("-c -l mount t"), "invalid options combined with -c");
        assert_eq!(why("-u root t"), "wrong number of parameters");
        assert_eq!(why("no/one mount t"), "invalid user/group no/one");
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
