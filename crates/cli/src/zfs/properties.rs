//! Dataset properties on the command line and in columns.
//!
//! The table of properties is `cenote-dsl`'s; this module finds a property by the name or the
//! column header that a user types, and turns table rows into columns and help.

use crate::context::Context;
use crate::table::Column;
use cenote_command::outcome::{Stop, fail, usage};
use cenote_dsl::props::table::{Attr, PROPERTIES, Property, Type};
use cenote_dsl::props::{is_user, is_userspace, is_written};

/// What `space` stands for in a list of properties.
const SPACE: &[&str] = &[
    "name",
    "available",
    "used",
    "usedbysnapshots",
    "usedbydataset",
    "usedbyrefreservation",
    "usedbychildren",
];

/// The native property called `name`, by its name or by its column's header in lower case.
pub fn find(name: &str) -> Option<&'static Property> {
    PROPERTIES.iter().find(|p| p.name == name || p.column.to_ascii_lowercase() == name)
}

/// Visible native properties, in the order of `zfs get all`.
pub fn visible() -> impl Iterator<Item = &'static Property> {
    PROPERTIES.iter().filter(|p| p.visible)
}

/// The properties of a comma-separated list, by their own names (`zfs_expand_proplist`, `zprop_get_list`); `space` stands for
/// several.
pub fn resolve(fields: &str) -> Result<Vec<String>, Stop> {
    if fields.is_empty() {
        return usage("bad property list: no properties specified");
    }
    let mut names = Vec::new();
    for field in fields.split(',') {
        match find(field) {
            Some(p) => names.push(p.name.to_string()),
            None if field == "space" => names.extend(SPACE.iter().map(|s| s.to_string())),
            None if is_user(field) || is_userspace(field) || is_written(field) => {
                names.push(field.to_string());
            }
            None => return usage(format!("bad property list: invalid property '{field}'")),
        }
    }
    Ok(names)
}

/// Values that a command of another user than the daemon's may hold at the same time.
const MOST_VALUES: usize = 1 << 18;

/// Refuses a listing to another user than the daemon's that would hold too many values before it shows them.
pub fn check_room(ctx: &Context, datasets: usize, properties: usize) -> Result<(), Stop> {
    match ctx.caller.is_delegated() && datasets.saturating_mul(properties) > MOST_VALUES {
        true => fail(format!(
            "too many values to show at once: {datasets} datasets have {properties} properties each, and the daemon \
             holds {MOST_VALUES} values for its other users; name fewer datasets or properties"
        )),
        false => Ok(()),
    }
}

/// A sort key of `zfs list -s`.
pub fn sort_key(name: &str) -> Result<String, Stop> {
    match find(name) {
        Some(p) => Ok(p.name.into()),
        None if is_user(name) => Ok(name.into()),
        None => usage(format!("invalid property '{name}'")),
    }
}

/// The column of a property, native or not.
pub fn column(name: &str) -> Column {
    match find(name) {
        Some(p) => Column {
            header: p.column.into(),
            width: p.width(),
            right: p.right,
            flexible: p.flexible,
        },
        None => Column {
            right: is_userspace(name) || is_written(name),
            ..Column::text(name.to_ascii_uppercase())
        },
    }
}

/// The list of properties at the end of usage messages.
pub fn help() -> String {
    let mut text = format!(
        "\nThe following properties are supported:\n\n\t{:<21} EDIT  INHERIT   VALUES\n\n",
        "PROPERTY"
    );
    let mut sorted: Vec<&Property> = visible().collect();
    sorted.sort_by_key(|p| (p.attr != Attr::ReadOnly, p.name));
    for p in sorted {
        let edit = if p.is_readonly() { " NO    " } else { "YES    " };
        let inherit = if p.is_inheritable() { "  YES   " } else { "   NO   " };
        text += &format!("\t{:<22} {edit}{inherit}{}\n", p.name, p.values);
    }
    for family in ["user", "group", "project"] {
        for (what, edit, values) in [
            ("used", " NO ", "<size>"),
            ("objused", " NO ", "<size>"),
            ("quota", "YES ", "<size> | none"),
            ("objquota", "YES ", "<size> | none"),
        ] {
            text += &format!("\t{:<22} {edit}      NO   {values}\n", format!("{family}{what}@..."));
        }
    }
    text += &format!("\t{:<22}  NO       NO   <size>\n", "written@<snap>");
    text += &format!("\t{:<22}  NO       NO   <size>\n", "written#<bookmark>");
    text += "\nSizes are specified in bytes with standard units such as K, M, G, etc.\n\
             \nUser-defined properties can be specified by using a name containing a colon (:).\n\
             \nThe {user|group|project}[obj]{used|quota}@ properties must be appended with\n\
             a user|group|project specifier of one of these forms:\n    \
             POSIX name      (eg: \"matt\")\n    \
             POSIX id        (eg: \"126829\")\n    \
             SMB name@domain (eg: \"matt@sun\")\n    \
             SMB SID         (eg: \"S-1-234-567-89\")\n";
    text
}

/// What a property sorts by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A number.
    Number(u64),
    /// Text.
    Text(String),
}

impl Key {
    /// From the exact value of `property` (`zfs_compare_props`).
    pub fn new(property: &str, exact: &str) -> Key {
        match find(property).map(|p| p.kind) {
            Some(Type::Number(_)) => Key::Number(number(exact)),
            _ => Key::Text(exact.into()),
        }
    }
}

/// An exact value as a number; a ratio in hundredths.
fn number(exact: &str) -> u64 {
    match exact.split_once('.') {
        None => exact.parse().unwrap_or(0),
        Some((whole, hundredths)) => {
            let whole: u64 = whole.parse().unwrap_or(0);
            whole.saturating_mul(100).saturating_add(hundredths.parse().unwrap_or(0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_found_by_name_and_by_header() {
        assert_eq!(find("avail").unwrap().name, "available");
        assert_eq!(find("lrefer").unwrap().name, "logicalreferenced");
        assert!(find("com.example:x").is_none());
        assert_eq!(resolve("name,avail,a:b").unwrap(), ["name", "available", "a:b"]);
        assert_eq!(resolve("space").unwrap(), SPACE);
        let why = |f: &str| match resolve(f) {
            Err(Stop::Usage(m)) => m,
            other => panic!("{other:?}"),
        };
        assert_eq!(why("nosuch"), "bad property list: invalid property 'nosuch'");
        assert_eq!(why(""), "bad property list: no properties specified");
    }

    #[test]
    fn columns_have_the_widths_of_their_values() {
        assert_eq!(column("compression").width, "zstd-fast-1000".len());
        assert_eq!((column("used").width, column("used").right), (5, true));
        assert!(!column("creation").right);
        assert_eq!(column("com.example:x").header, "COM.EXAMPLE:X");
    }

    #[test]
    fn keys_sort_numbers_as_numbers() {
        assert_eq!(Key::new("compressratio", "6.91"), Key::Number(691));
        assert_eq!(Key::new("used", "1024"), Key::Number(1024));
        assert_eq!(Key::new("com.example:x", "1024"), Key::Text("1024".into()));
        // Words sort as such, whatever number is behind them.
        assert!(Key::new("compression", "lz4") < Key::new("compression", "on"));
    }
}
