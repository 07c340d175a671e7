//! Man pages of `zpool`, `zfs`, `zdb`, `zstream` and `mount.zfs`, of each of their sub-commands, and of properties.
//!
//! They go by names of their own (`cenote-zpool.8`), so that they may stand beside OpenZFS's.

use super::{
    Opt, Page, dataset_properties, environment, exit, files, pages, pool_properties, refused,
};
use crate::commands::Tool;
use crate::zfs::{ids_to_path, mount_helper};
use crate::zinject::usage::USAGE as ZINJECT;
use crate::{zfs, zpool};
use cenote_dsl::props::table::{self as datasets, Type};
use cenote_pool::vdev_props;

/// Tools without sub-commands.
const SINGLE: [&str; 4] = ["zdb", "zinject", "mount.zfs", "zfs_ids_to_path"];

/// All pages, with their file names.
pub fn all() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for tool in ["zpool", "zfs", "zstream"] {
        all.push((format!("cenote-{tool}.8"), overview(tool)));
        for page in pages(tool) {
            all.push((format!("cenote-{tool}-{}.8", page.command), command(tool, page)));
        }
    }
    for tool in SINGLE {
        let text: String = pages(tool).into_iter().map(|page| command(tool, page)).collect();
        all.push((format!("cenote-{tool}.8"), text));
    }
    all.push(("cenote-zpoolprops.7".into(), pool_page()));
    all.push(("cenote-zfsprops.7".into(), dataset_page()));
    all
}

/// The section of examples.
pub fn examples(list: &[(&str, &str)]) -> String {
    let shown = list.iter().enumerate().map(|(i, (line, about))| {
        let gap = if i > 0 { ".PP\n" } else { "" };
        format!("{gap}{}\n.PP\n.nf\n.RS 4\n{}\n.RE\n.fi\n", escaped(about), escaped(line))
    });
    format!(".SH EXAMPLES\n{}", shown.collect::<String>())
}

fn head(name: &str, section: u8, about: &str) -> String {
    let (title, version) = (name.to_uppercase(), env!("CARGO_PKG_VERSION"));
    let (name, about) = (escaped(name), escaped(about));
    format!(".TH {title} {section} \"\" \"cenote {version}\"\n.SH NAME\n{name} \\- {about}\n")
}

/// A word in bold with an explanation.
fn entry(name: &str, about: &str) -> String {
    format!(".TP\n.B {}\n{}\n", escaped(name), escaped(about))
}

fn table_of(tool: &str) -> Option<&'static Tool> {
    match tool {
        "zpool" => Some(zpool::tool()),
        "zfs" => Some(zfs::tool()),
        _ => None,
    }
}

/// The page of a tool with sub-commands.
fn overview(tool: &str) -> String {
    let (what, section) = match tool {
        "zpool" => ("pools of OpenZFS in user space", "cenote-zpoolprops (7)"),
        "zfs" => ("datasets of OpenZFS in user space", "cenote-zfsprops (7)"),
        _ => ("streams of zfs send", "cenote-zfs-send (8)"),
    };
    let mut text = head(&format!("cenote-{tool}"), 8, what);
    text += &format!(
        ".SH SYNOPSIS\n.B cenote {tool}\n.I command\n[\\fIargument\\fR ...]\n.br\n.B {tool}\n.I command\n\
         [\\fIargument\\fR ...]\n.SH DESCRIPTION\nThe commands of OpenZFS's {tool}(8), with its options, output and exit \
         codes. Under the name {tool} the program is this command.\n.SH COMMANDS\n"
    );
    for page in pages(tool) {
        text += &format!(
            ".TP\n.BR cenote\\-{tool}\\-{} (8)\n{}\n",
            escaped(page.command),
            escaped(page.about)
        );
    }
    text += ".TP\n.B help\nshow the usage of a command that is named behind it\n";
    let lacks = refused::commands(tool).map(|(name, about)| (format!("{tool} {name}"), about));
    text += &not_supported(&lacks.collect::<Vec<_>>());
    text += &surroundings(tool, "");
    text += &format!(".SH SEE ALSO\n.BR cenote (1),\n.BR {section}\n");
    text
}

/// The page of a sub-command, or of a tool without sub-commands.
fn command(tool: &str, page: &Page) -> String {
    let name = match page.command {
        "" => format!("cenote-{tool}"),
        command => format!("cenote-{tool}-{command}"),
    };
    let mut text = head(&name, 8, page.about);
    text += &format!(".SH SYNOPSIS\n.nf\n{}.fi\n.SH DESCRIPTION\n", synopsis(tool, page));
    text += &page.text.split("\n\n").map(escaped).collect::<Vec<_>>().join("\n.PP\n");
    text.push('\n');
    if !page.options.is_empty() {
        text += ".SH OPTIONS\n";
        page.options.iter().for_each(|opt| text += &option(opt));
    }
    let lacks = refused::options(tool, page.command);
    text += &not_supported(&lacks.map(|(names, about)| (names.into(), about)).collect::<Vec<_>>());
    text += &surroundings(tool, page.command);
    text += &examples(page.examples);
    let also = match (tool, page.command) {
        (tool, _) if SINGLE.contains(&tool) => {
            ".BR cenote\\-zpool (8),\n.BR cenote\\-zfs (8)\n".into()
        }
        _ => format!(".BR cenote\\-{tool} (8)\n"),
    };
    text + ".SH SEE ALSO\n.BR cenote (1),\n" + &also
}

/// The lines of usage: the commands' own.
fn synopsis(tool: &str, page: &Page) -> String {
    let usage: Vec<&str> = match tool {
        "zdb" => cenote_zdb::args::USAGE.split("\n\n").take(1).flat_map(str::lines).collect(),
        // What a form does stands below it, after an empty line.
        "zinject" => {
            let parts = ZINJECT.split("\n\n").filter(|part| part.starts_with("\tzinject"));
            parts.flat_map(str::lines).collect()
        }
        "zstream" => {
            let own = format!("zstream {}", page.command);
            cenote_zstream::USAGE.lines().filter(|line| line.contains(&own)).collect()
        }
        "mount.zfs" => mount_helper::USAGE.lines().collect(),
        "zfs_ids_to_path" => ids_to_path::USAGE.lines().collect(),
        tool => {
            let command = table_of(tool).and_then(|tool| tool.find(page.command));
            command.map_or_else(Vec::new, |command| command.usage.lines().collect())
        }
    };
    let mut text = String::new();
    for line in usage {
        let line = line.strip_prefix("Usage:").unwrap_or(line);
        // A line that goes on is indented.
        let goes_on = line.starts_with("\t  ") || line.starts_with("\t\t");
        let (line, named) = (line.trim(), line.contains(tool));
        text += &match (goes_on, table_of(tool)) {
            (true, _) => format!("    {}\n", escaped(line)),
            (false, Some(_)) => format!("\\fB{tool}\\fR {}\n", escaped(line)),
            (false, None) if named => {
                escaped(line).replacen(&escaped(tool), &format!("\\fB{}\\fR", escaped(tool)), 1)
                    + "\n"
            }
            (false, None) => escaped(line) + "\n",
        };
    }
    text
}

fn option(opt: &Opt) -> String {
    let names: Vec<String> = opt.each_name().map(|n| format!("\\fB{}\\fR", escaped(n))).collect();
    let value = match opt.value {
        "" => String::new(),
        value => format!(" \\fI{}\\fR", escaped(&shown(value))),
    };
    format!(".TP\n{}{value}\n{}.\n", names.join(", "), escaped(opt.about))
}

/// A pattern as readers see it.
fn shown(pattern: &str) -> String {
    pattern.replace(",...", "[,...]").replace(['<', '>'], "").replace('|', " | ")
}

/// What OpenZFS has besides, each with what it does there.
fn not_supported(list: &[(String, &str)]) -> String {
    if list.is_empty() {
        return String::new();
    }
    let shown: String = list.iter().map(|(name, about)| entry(name, about)).collect();
    format!(".SH NOT SUPPORTED\nOpenZFS has what follows. Here it is refused by name.\n{shown}")
}

/// What comes at the end of a page: exit codes, environment, files. `cenote` is the tool of its own commands.
pub fn surroundings(tool: &str, command: &str) -> String {
    let mut text = String::from(".SH EXIT STATUS\n");
    for (code, about) in exit::of_command(tool, command) {
        text += &entry(&code.to_string(), &about);
    }
    text += ".SH ENVIRONMENT\n";
    for (name, about) in environment::of_command(tool, command) {
        text += &entry(name, &about);
    }
    text += ".SH FILES\n";
    for (name, about) in files::of_command(tool, command) {
        text += &entry(name, &about);
    }
    text
}

fn pool_page() -> String {
    let mut text = head("cenote-zpoolprops", 7, "properties of pools and vdevs");
    text += ".SH DESCRIPTION\nzpool get shows properties, zpool set changes those that can be set.\n.SH POOLS\n";
    for (name, about) in pool_properties::POOL {
        let values = zpool::properties::find(name).map(|p| p.values()).unwrap_or_default();
        text += &property(name, values, about, "");
    }
    let feature =
        "Whether a feature of the format is off (disabled), allowed (enabled), or in use (active).";
    text += &property("feature@NAME", "disabled | enabled | active", feature, "");
    text += ".SH VDEVS\n";
    for (name, about) in pool_properties::VDEV {
        text += &property(name, vdev_props::values(name).unwrap_or_default(), about, "");
    }
    text += ".SH USER PROPERTIES\nA name with a colon is a property of the user's own, whose value is any text.\n";
    text + ".SH SEE ALSO\n.BR cenote\\-zpool\\-get (8),\n.BR cenote\\-zpool\\-set (8)\n"
}

fn dataset_page() -> String {
    let mut text = head("cenote-zfsprops", 7, "properties of datasets");
    text += ".SH DESCRIPTION\nzfs get shows properties, zfs set changes those that can be set, and zfs inherit takes such \
             a change back. Sizes are numbers of bytes, or have a unit behind them: K, M, G, T, P, E.\n";
    for (title, list) in [
        ("PROPERTIES THAT CAN BE SET", dataset_properties::SETTINGS),
        ("PROPERTIES THAT TELL", dataset_properties::FIGURES),
    ] {
        text += &format!(".SH {title}\n");
        for (name, about) in list {
            let Some(row) = datasets::find(name) else { continue };
            let default = match row.kind {
                _ if row.attr == datasets::Attr::ReadOnly => String::new(),
                Type::Index(number, _) => row.value_name(number).unwrap_or_default().to_string(),
                Type::Text(text) => text.unwrap_or_default().to_string(),
                Type::Number(u64::MAX) => "none".into(),
                Type::Number(number) => number.to_string(),
            };
            let inherited = if row.is_inheritable() { " Descendants inherit it." } else { "" };
            let default = match default.as_str() {
                "" => inherited.to_string(),
                value => format!("{inherited} Default: {value}."),
            };
            text += &property(name, row.values, about, &default);
        }
    }
    text +=
        ".SH PROPERTIES OF USERS, GROUPS AND PROJECTS\nBehind the @ stands a name or a number.\n";
    for family in ["user", "group", "project"] {
        let of = |what: &str| format!("{what} of a {family}.");
        text += &property(
            &format!("{family}used@..."),
            "<size>",
            &of("Space that is taken by files"),
            "",
        );
        text +=
            &property(&format!("{family}objused@..."), "<count>", &of("How many files are"), "");
        text += &property(
            &format!("{family}quota@..."),
            "<size> | none",
            &of("How much space may be taken by files"),
            "",
        );
        text += &property(
            &format!("{family}objquota@..."),
            "<count> | none",
            &of("How many files may be"),
            "",
        );
    }
    text += &property("written@SNAPSHOT", "<size>", "What was written since this snapshot.", "");
    text += ".SH USER PROPERTIES\nA name with a colon is a property of the user's own, whose value is any text. \
             Descendants inherit it.\n";
    text + ".SH SEE ALSO\n.BR cenote\\-zfs\\-get (8),\n.BR cenote\\-zfs\\-set (8),\n.BR cenote\\-zfs\\-inherit (8)\n"
}

fn property(name: &str, values: &str, about: &str, more: &str) -> String {
    let values = match values {
        "" | "-" => String::new(),
        values => format!(" = \\fI{}\\fR", escaped(values)),
    };
    format!(".TP\n\\fB{}\\fR{values}\n{}{}\n", escaped(name), escaped(about), escaped(more))
}

/// Text as roff takes it literally.
fn escaped(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('-', "\\-");
    let guarded = |line: &str| match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_string(),
    };
    escaped.lines().map(guarded).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failure fails the test.
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        assert_eq!(escaped("a -b\\\n.c"), "a \\-b\\\\\n\\&.c");
    }

    #[test]
    fn each_form_of_a_command_stands_in_its_synopsis() {
        let pages = all();
        for (name, forms) in [
            ("zdb", &["zdb\\fR \\-R", "zdb\\fR \\-l", "    [\\-o <var>"][..]),
            (
                "zinject",
                &["zinject\\fR \\-b objset", "zinject\\fR \\-t <mos", "    [\\-f frequency]"],
            ),
            ("zstream-dump", &["zstream\\fR dump", "... | \\fBzstream"]),
            ("zpool-status", &["zpool\\fR status"]),
            ("mount.zfs", &["mount.zfs\\fR [\\-sfnvh]"]),
            ("zfs_ids_to_path", &["zfs_ids_to_path\\fR [\\-v] <pool>"]),
        ] {
            let (_, text) = pages.iter().find(|(n, _)| *n == format!("cenote-{name}.8")).unwrap();
            let (_, text) = text.split_once(".SH SYNOPSIS\n").unwrap();
            let text = text.split(".SH ").next().unwrap();
            assert!(forms.iter().all(|form| text.contains(form)), "{name}: {text}");
        }
    }

    #[test]
    fn every_page_has_its_sections() {
        for (name, text) in all() {
            let sections: &[&str] = match name.ends_with(".7") {
                true => &["NAME", "DESCRIPTION", "SEE ALSO"],
                false => {
                    &["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "ENVIRONMENT", "FILES"]
                }
            };
            for section in sections {
                assert!(text.contains(&format!("\n.SH {section}\n")), "{name}: {section}");
            }
            assert!(text.lines().all(|line| !line.starts_with('\'')), "{name}");
        }
    }
}
