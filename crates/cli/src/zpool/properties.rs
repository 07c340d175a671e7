//! The table of pool properties (`zpool_prop_init`): names and columns, in the order of `zpool get all`.
//!
//! A [`Property`] says how its column looks in `zpool list`, whether `all` shows it, whether it can be set, and
//! what values its usage line names. Features (`feature@...`) and user properties are not in the table.
//!
//! Values of properties are computed by [`cenote_pool`]. Here is also what cannot be given its meaning: such values
//! are refused by name ([`refuse_unsupported`]).

use crate::table::Column;
use cenote_command::outcome::{Stop, usage};
use cenote_dsl::props::is_user;
use cenote_pool::props::PropChange;

/// A property of pools.
#[derive(Clone, Copy, Debug)]
pub struct Property {
    /// Its name.
    pub name: &'static str,
    /// Header of its column; in lower case also a name for it.
    pub header: &'static str,
    width: usize,
    right: bool,
    flexible: bool,
    visible: bool,
    settable: bool,
    values: &'static str,
}

impl Property {
    /// The values it takes, as usage messages show them; `-`: it is for programs.
    pub fn values(&self) -> &'static str {
        self.values
    }

    /// Whether it can be set.
    pub fn is_settable(&self) -> bool {
        self.settable
    }
}

/// A size, count, ratio or percentage: computed.
const fn number(name: &'static str, header: &'static str, values: &'static str) -> Property {
    let width = if header.len() > 5 { header.len() } else { 5 };
    let (right, flexible, visible, settable) = (true, false, true, false);
    Property { name, header, width, right, flexible, visible, settable, values }
}

/// A number that can be set.
const fn setting(name: &'static str, header: &'static str, values: &'static str) -> Property {
    Property { settable: true, ..number(name, header, values) }
}

/// Text that can be set.
const fn text(name: &'static str, header: &'static str, values: &'static str) -> Property {
    let (width, right) = (header.len(), false);
    Property { width, right, flexible: true, ..setting(name, header, values) }
}

/// One of several words, the longest of them `longest` characters.
const fn words(
    name: &'static str,
    header: &'static str,
    longest: usize,
    values: &'static str,
) -> Property {
    let width = if header.len() > longest { header.len() } else { longest };
    Property { width, ..text(name, header, values) }
}

/// All properties.
const TABLE: &[Property] = &[
    Property { visible: false, ..text("name", "NAME", "-") },
    number("size", "SIZE", "<size>"),
    number("capacity", "CAP", "<percent>"),
    text("altroot", "ALTROOT", "<path>"),
    Property { width: 8, ..number("health", "HEALTH", "<state>") },
    Property { flexible: true, ..number("guid", "GUID", "<guid>") },
    setting("version", "VERSION", "<version>"),
    text("bootfs", "BOOTFS", "<filesystem>"),
    words("delegation", "DELEGATION", 3, "on | off"),
    words("autoreplace", "REPLACE", 3, "on | off"),
    text("cachefile", "CACHEFILE", "<file> | none"),
    words("failmode", "FAILMODE", 8, "wait | continue | panic"),
    words("listsnapshots", "LISTSNAPS", 3, "on | off"),
    words("autoexpand", "EXPAND", 3, "on | off"),
    Property { visible: false, ..setting("dedupditto", "DEDUPDITTO", "-") },
    number("dedupratio", "DEDUP", "<1.00x or higher if deduped>"),
    number("free", "FREE", "<size>"),
    number("allocated", "ALLOC", "<size>"),
    words("readonly", "RDONLY", 3, "on | off"),
    setting("ashift", "ASHIFT", "<ashift, 9-16, or 0=default>"),
    text("comment", "COMMENT", "<comment-string>"),
    number("expandsize", "EXPANDSZ", "<size>"),
    number("freeing", "FREEING", "<size>"),
    number("fragmentation", "FRAG", "<percent>"),
    number("leaked", "LEAKED", "<size>"),
    Property { visible: false, ..number("maxblocksize", "MAXBLOCKSIZE", "-") },
    Property { visible: false, ..text("tname", "TNAME", "-") },
    Property { visible: false, ..number("maxdnodesize", "MAXDNODESIZE", "-") },
    words("multihost", "MULTIHOST", 3, "on | off"),
    number("checkpoint", "CKPOINT", "<size>"),
    Property { flexible: true, ..number("load_guid", "LOAD_GUID", "<load_guid>") },
    words("autotrim", "AUTOTRIM", 3, "on | off"),
    text("compatibility", "COMPATIBILITY", "<file[,file...]> | off | legacy"),
    number("bcloneused", "BCLONE_USED", "<size>"),
    number("bclonesaved", "BCLONE_SAVED", "<size>"),
    number("bcloneratio", "BCLONE_RATIO", "<1.00x or higher if cloned>"),
    number("dedup_table_size", "DDTSIZE", "<size>"),
    setting("dedup_table_quota", "DDTQUOTA", "<size>"),
    Property { visible: false, ..number("dedupcached", "DEDUPCACHED", "-") },
    number("last_scrubbed_txg", "LAST_SCRUBBED_TXG", "<txg>"),
    // Later than the release whose list "zpool get all" shows.
    Property { visible: false, ..number("available", "AVAIL", "<size>") },
    Property { visible: false, ..number("usable", "USABLE", "<size>") },
    Property { visible: false, ..number("used", "USED", "<size>") },
    Property { visible: false, ..number("dedupused", "DEDUP_USED", "<size>") },
    Property { visible: false, ..number("dedupsaved", "DEDUP_SAVED", "<size>") },
];

/// The property called `name`, by its name or by its column's header in lower case.
pub fn find(name: &str) -> Option<&'static Property> {
    TABLE.iter().find(|p| p.name == name || p.header.to_ascii_lowercase() == name)
}

/// All properties.
pub fn all() -> impl Iterator<Item = &'static Property> {
    TABLE.iter()
}

/// Names of the visible properties, in the order of `zpool get all`.
pub fn visible() -> impl Iterator<Item = &'static str> {
    TABLE.iter().filter(|p| p.visible).map(|p| p.name)
}

/// The properties of a comma-separated list, by their own names.
pub fn resolve(fields: &str) -> Result<Vec<String>, Stop> {
    if fields.is_empty() {
        return usage("bad property list: no properties specified");
    }
    let own_name = |field: &str| match find(field) {
        Some(p) => Ok(p.name.to_string()),
        None if is_feature(field) || is_user(field) => Ok(field.to_string()),
        None => usage(format!("bad property list: invalid property '{field}'")),
    };
    fields.split(',').map(own_name).collect()
}

fn is_feature(name: &str) -> bool {
    name.starts_with("feature@") || name.starts_with("unsupported@")
}

/// The column of a property.
pub fn column(name: &str) -> Column {
    match find(name) {
        Some(p) => {
            let (width, right, flexible) = (p.width, p.right, p.flexible);
            Column { header: p.header.into(), width, right, flexible }
        }
        None => Column::text(name.to_ascii_uppercase()),
    }
}

/// The properties of vdevs, for a usage message.
pub fn help_of_vdevs() -> String {
    let names = cenote_pool::vdev_props::names();
    let lines: String = names.map(|name| format!("\t{name}\n")).collect();
    format!("\nthe following properties of vdevs are supported:\n\n{lines}")
}

/// The list of properties at the end of usage messages.
pub fn help() -> String {
    let mut text = format!(
        "\nthe following properties are supported:\n\n\t{:<19}  EDIT   VALUES\n\n",
        "PROPERTY"
    );
    let mut sorted: Vec<&Property> = TABLE.iter().filter(|p| p.visible).collect();
    sorted.sort_by_key(|p| (p.settable, p.name));
    for p in sorted {
        let edit = if p.settable { " YES   " } else { "  NO   " };
        text += &format!("\t{:<19}  {edit}{}\n", p.name, p.values);
    }
    text += &format!("\t{:<19}   YES   disabled | enabled | active\n", "feature@...");
    text += "\nThe feature@ properties must be appended with a feature name.\n\
             See zpool-features(7).\n";
    text
}

/// Values that OpenZFS has and this program cannot give their meaning.
pub fn refuse_unsupported(change: &PropChange) -> Result<(), String> {
    let unsupported = |what: &str| Err(format!("property '{what}' is not supported yet"));
    match change {
        PropChange::Memory("tname", _) => unsupported("tname"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_found_and_columns_wide_enough() {
        assert_eq!(
            resolve("alloc,cap,feature@lz4_compress").unwrap(),
            ["allocated", "capacity", "feature@lz4_compress"]
        );
        assert!(
            matches!(resolve("nosuch"), Err(Stop::Usage(m)) if m == "bad property list: invalid property 'nosuch'")
        );
        assert_eq!(
            (column("size").width, column("health").width, column("failmode").width),
            (5, 8, 8)
        );
        assert_eq!(column("expandsize").width, 8);
        assert!(column("health").right && !column("altroot").right);
        assert!(!visible().any(|n| n == "name"));
    }
}
