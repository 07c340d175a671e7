//! `zfs userspace`, `zfs groupspace`, `zfs projectspace` (`zfs_do_userspace`): what users, groups or projects
//! use of a file system or snapshot, and their quotas.
//!
//! Figures are from the last transaction group on disk. Owners from other systems' domains (SMB) are
//! shown by the number that they are stored as.

use crate::context::Context;
use crate::options::{Parsed, Spec, commas, parse};
use crate::table::{Column, Table};
use crate::zfs::properties::Key;
use crate::zfs::select::{Kinds, compare_keys, open_or_path};
use crate::zfs::session::{quietly, stop};
use cenote_admin::userspace::{Figure, OwnerKind, Usage};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_dsl::human::{nicebytes, nicenum};
use cenote_dsl::props::{Account, Who};
use nix::unistd::{Gid, Group, Uid, User};
use std::cmp::Ordering;
use std::ffi::OsString;

const SPEC: Spec = Spec { short: "nHpo:s:S:t:i", refused: "", refused_long: &[] };
/// Fields as `-o`, `-s` and `-S` name them, in the order in which they are shown.
const FIELDS: [(&str, Field); 6] = [
    ("type", Field::Type),
    ("name", Field::Name),
    ("used", Field::Used),
    ("quota", Field::Quota),
    ("objused", Field::ObjUsed),
    ("objquota", Field::ObjQuota),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Type,
    Name,
    Used,
    Quota,
    ObjUsed,
    ObjQuota,
}

impl Field {
    fn find(name: &str) -> Option<Field> {
        FIELDS.iter().find(|(known, _)| *known == name).map(|(_, field)| *field)
    }

    fn header(self) -> String {
        let name = FIELDS.iter().find(|(_, field)| *field == self).map(|(name, _)| *name);
        name.unwrap_or_default().to_ascii_uppercase()
    }
}

fn kind_text(kind: OwnerKind) -> &'static str {
    match kind {
        OwnerKind::PosixUser => "POSIX User",
        OwnerKind::PosixGroup => "POSIX Group",
        OwnerKind::SmbUser => "SMB User",
        OwnerKind::SmbGroup => "SMB Group",
        OwnerKind::Project => "Project",
    }
}

/// What to show.
struct Show {
    fields: Vec<Field>,
    kinds: Vec<OwnerKind>,
    /// Sort keys: field, descending.
    sort: Vec<(Field, bool)>,
    numeric: bool,
    literal: bool,
    scripted: bool,
}

/// One line.
struct Line {
    kind: OwnerKind,
    id: u64,
    name: String,
    account: Account,
}

/// Runs `zfs userspace`.
pub fn user(args: &[OsString], ctx: &mut Context) -> Outcome {
    run(args, Who::User, ctx)
}

/// Runs `zfs groupspace`.
pub fn group(args: &[OsString], ctx: &mut Context) -> Outcome {
    run(args, Who::Group, ctx)
}

/// Runs `zfs projectspace`.
pub fn project(args: &[OsString], ctx: &mut Context) -> Outcome {
    run(args, Who::Project, ctx)
}

fn run(args: &[OsString], who: Who, ctx: &mut Context) -> Outcome {
    let parsed = parse(args, SPEC)?;
    let show = Show::of(&parsed, who)?;
    let names = parsed.names();
    let name = match names.as_slice() {
        [] => return usage("missing dataset name"),
        [name] => name,
        _ => return usage("too many arguments"),
    };
    let kinds = Kinds::FILESYSTEM.with(Kinds::SNAPSHOT);
    let node = match open_or_path(ctx, name, kinds) {
        Ok(node) => node,
        Err(why) => return fail(why),
    };
    let figures = show.figures();
    let found =
        quietly(&node.imported, ctx, |session| session.userspace(&node.dataset, who, &figures));
    // A file system of an older version counts no projects, which is no failure.
    let Some(usage) = found.map_err(stop)? else { return Ok(0) };
    let mut lines: Vec<Line> = Vec::new();
    for Usage { kind, id, account } in usage {
        if show.kinds.contains(&kind) {
            lines.push(Line { kind, id, name: show.name(kind, id), account });
        }
    }
    lines.sort_by(|a, b| show.compare(a, b));
    show.print(&lines, ctx)
}

/// The kinds that `-t` asks for.
fn kinds(list: &OsString, who: Who) -> Result<Vec<OwnerKind>, Stop> {
    let mut kinds = Vec::new();
    for word in commas(list) {
        kinds.extend(match (word.as_str(), who) {
            ("posixuser", _) => vec![OwnerKind::PosixUser],
            ("smbuser", _) => vec![OwnerKind::SmbUser],
            ("posixgroup", _) => vec![OwnerKind::PosixGroup],
            ("smbgroup", _) => vec![OwnerKind::SmbGroup],
            ("all", Who::User) => vec![OwnerKind::PosixUser, OwnerKind::SmbUser],
            ("all", _) => vec![OwnerKind::PosixGroup, OwnerKind::SmbGroup],
            _ => return usage(format!("invalid type '{word}' for -t option")),
        });
    }
    Ok(kinds)
}

impl Show {
    fn of(parsed: &Parsed, who: Who) -> Result<Show, Stop> {
        let mut show = Show {
            fields: FIELDS.iter().map(|(_, field)| *field).collect(),
            kinds: match who {
                Who::User => vec![OwnerKind::PosixUser, OwnerKind::SmbUser],
                Who::Group => vec![OwnerKind::PosixGroup, OwnerKind::SmbGroup],
                Who::Project => vec![OwnerKind::Project],
            },
            sort: Vec::new(),
            numeric: who == Who::Project,
            literal: false,
            scripted: false,
        };
        for opt in &parsed.options {
            match opt.letter {
                letter @ ('n' | 't' | 'i') if who == Who::Project => {
                    return usage(format!("invalid option '{letter}'"));
                }
                'n' => show.numeric = true,
                'H' => show.scripted = true,
                'p' => show.literal = true,
                'o' => {
                    show.fields.clear();
                    for name in commas(&opt.value) {
                        let Some(field) = Field::find(&name) else {
                            return usage(format!("invalid type '{name}' for -o option"));
                        };
                        show.fields.push(field);
                    }
                }
                's' | 'S' => match Field::find(&opt.text()) {
                    Some(field) => show.sort.push((field, opt.letter == 'S')),
                    None => return usage(format!("invalid field '{}'", opt.text())),
                },
                't' => show.kinds = kinds(&opt.value, who)?,
                // `-i`: owners of other systems' domains are not mapped to users of this one.
                _ => {}
            }
        }
        show.sort.extend([(Field::Type, false), (Field::Name, false)]);
        Ok(show)
    }

    /// What is asked of an owner.
    fn figures(&self) -> Vec<Figure> {
        let all = self.fields.iter().filter_map(|field| match field {
            Field::Type | Field::Name => None,
            Field::Used => Some(Figure::Used),
            Field::Quota => Some(Figure::Quota),
            Field::ObjUsed => Some(Figure::ObjUsed),
            Field::ObjQuota => Some(Figure::ObjQuota),
        });
        all.collect()
    }

    /// The name of an owner, or else the number.
    fn name(&self, kind: OwnerKind, id: u64) -> String {
        let number = u32::try_from(id).ok().filter(|_| !self.numeric);
        let named = number.and_then(|n| match kind {
            OwnerKind::PosixUser => User::from_uid(Uid::from_raw(n)).ok()?.map(|user| user.name),
            OwnerKind::PosixGroup => {
                Group::from_gid(Gid::from_raw(n)).ok()?.map(|group| group.name)
            }
            _ => None,
        });
        named.unwrap_or_else(|| id.to_string())
    }

    fn key(&self, line: &Line, field: Field) -> Option<Key> {
        Some(match field {
            Field::Type => Key::Number(line.kind as u64),
            Field::Name if self.numeric => Key::Number(line.id),
            Field::Name => Key::Text(line.name.clone()),
            Field::Used => Key::Number(line.account.bytes?.0),
            Field::Quota => Key::Number(line.account.bytes?.1),
            Field::ObjUsed => Key::Number(line.account.objects?.0),
            Field::ObjQuota => Key::Number(line.account.objects?.1),
        })
    }

    fn compare(&self, a: &Line, b: &Line) -> Ordering {
        let by_keys = self.sort.iter().map(|(field, descending)| {
            compare_keys(self.key(a, *field).as_ref(), self.key(b, *field).as_ref(), *descending)
        });
        by_keys.fold(Ordering::Equal, Ordering::then)
    }

    fn value(&self, line: &Line, field: Field) -> String {
        let (bytes, objects) = (line.account.bytes, line.account.objects);
        let (number, quota, human): (_, _, fn(u64) -> String) = match field {
            Field::Type => return kind_text(line.kind).into(),
            Field::Name => return line.name.clone(),
            Field::Used => (bytes.map(|b| b.0), false, nicebytes),
            Field::Quota => (bytes.map(|b| b.1), true, nicebytes),
            Field::ObjUsed => (objects.map(|o| o.0), false, nicenum),
            Field::ObjQuota => (objects.map(|o| o.1), true, nicenum),
        };
        match number {
            None => "-".into(),
            Some(number) if self.literal => number.to_string(),
            Some(0) if quota => "none".into(),
            Some(number) => human(number),
        }
    }

    fn print(&self, lines: &[Line], ctx: &mut Context) -> Outcome {
        let column = |field: &Field| Column {
            right: !matches!(field, Field::Type | Field::Name),
            ..Column::text(field.header())
        };
        let mut table =
            Table { columns: self.fields.iter().map(column).collect(), scripted: self.scripted };
        let rows: Vec<Vec<String>> = lines
            .iter()
            .map(|line| self.fields.iter().map(|field| self.value(line, *field)).collect())
            .collect();
        for row in &rows {
            table.columns.iter_mut().zip(row).for_each(|(column, value)| column.fit(value, true));
        }
        table.header(&mut ctx.out)?;
        for row in &rows {
            table.row(&mut ctx.out, row)?;
        }
        Ok(0)
    }
}
