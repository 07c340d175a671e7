//! What the manual says about commands, options and properties. Man pages ([`roff`]) and completions
//! ([`crate::complete`]) are made from it.
//!
//! Usage lines and the lists of properties are the commands' own. Here stands what they mean. Tests compare these
//! tables with what the commands accept, so that no option is without an explanation.
//!
//! Operands and values of options are written as patterns, which the man pages show and completions read:
//!
//! ```text
//! <pool>                a name of this kind; the kinds are those of `complete::kind`
//! on|off                one of these words
//! name|value,...        several of them, with commas between
//! <pool> <leaf> ...     one after the other; the last one again and again
//! ```

pub mod dataset_properties;
pub mod environment;
pub mod exit;
pub mod files;
pub mod pool_properties;
pub mod refused;
pub mod roff;
pub mod zdb;
pub mod zfs;
pub mod zfs_more;
pub mod zinject;
pub mod zpool;
pub mod zstream;

/// The manual of one command.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Name of the sub-command.
    pub command: &'static str,
    /// What it does, in a few words.
    pub about: &'static str,
    /// What it does in more words; an empty line begins a paragraph.
    pub text: &'static str,
    /// What it is given besides options, as a pattern.
    pub operands: &'static str,
    /// Its options.
    pub options: &'static [Opt],
    /// Command lines, and what they do.
    pub examples: &'static [(&'static str, &'static str)],
}

/// An option.
#[derive(Clone, Copy, Debug)]
pub struct Opt {
    /// Its names: `-n` or `-n, --dryrun`.
    pub names: &'static str,
    /// Its value as a pattern; empty: it takes no value.
    pub value: &'static str,
    /// What it does.
    pub about: &'static str,
}

impl Opt {
    /// Its names, one by one.
    pub fn each_name(&self) -> impl Iterator<Item = &'static str> {
        self.names.split(", ")
    }

    /// Its letter; `None`: it has a long name only.
    pub fn letter(&self) -> Option<char> {
        let short =
            |name: &'static str| name.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        self.each_name().find_map(|name| short(name)?.chars().next())
    }
}

/// An option without a value.
pub const fn flag(names: &'static str, about: &'static str) -> Opt {
    Opt { names, value: "", about }
}

/// An option with a value.
pub const fn takes(names: &'static str, value: &'static str, about: &'static str) -> Opt {
    Opt { names, value, about }
}

/// The pages of a tool: one for each sub-command.
pub fn pages(tool: &str) -> Vec<&'static Page> {
    match tool {
        "zpool" => zpool::PAGES.iter().collect(),
        "zfs" => zfs::PAGES.iter().chain(zfs_more::PAGES).collect(),
        "zstream" => zstream::PAGES.iter().collect(),
        "zdb" => vec![&zdb::PAGE],
        "zinject" => vec![&zinject::PAGE],
        "mount.zfs" => vec![&zstream::MOUNT],
        "zfs_ids_to_path" => vec![&zstream::IDS_TO_PATH],
        _ => Vec::new(),
    }
}

/// The page of a sub-command. Tools without sub-commands have one, whose name is empty.
pub fn page(tool: &str, command: &str) -> Option<&'static Page> {
    pages(tool).into_iter().find(|page| page.command == command)
}

/// What a property of pools, vdevs or datasets means: `kind` is `zpool`, `vdev` or `zfs`.
pub fn property(kind: &str, name: &str) -> Option<&'static str> {
    let tables: &[&[(&str, &str)]] = match kind {
        "zpool" => &[pool_properties::POOL],
        "vdev" => &[pool_properties::VDEV],
        _ => &[dataset_properties::SETTINGS, dataset_properties::FIGURES],
    };
    tables.iter().copied().flatten().find(|(known, _)| *known == name).map(|(_, about)| *about)
}

#[cfg(test)]
mod tests;
