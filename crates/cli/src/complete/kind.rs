//! Candidates of a kind: names of pools and datasets, properties and their values, words.
//!
//! [`fit`] takes a pattern of the manual and the word at the cursor. It takes the pattern apart: a list with
//! commas, an assignment, alternatives. Each kind in angle brackets has its candidates, and those that begin as the
//! word does are offered.
//!
//! Names of datasets are found by a walk that goes only where a name can still begin as the word does, and that
//! stops after
//! 5000. Words of properties come from the tables of the commands, with what the manual says of them.
//!
//! Invariant: no device is opened for a completion. Pools come from the table of imported ones, or from the cache
//! file; what cannot be read is left out.

use super::Candidate;
use crate::cachefile;
use crate::context::Context;
use crate::manual;
use crate::pools::PoolTable;
use crate::vdevs::{Item, items};
use crate::zfs::properties as datasets;
use crate::zpool::properties as pool_properties;
use cenote_dsl::props::families;
use cenote_dsl::props::table::{self, Attr, Type};
use cenote_dsl::write::permissions;
use cenote_dsl::{Dataset, Dsl};
use cenote_engine::tunables;
use cenote_format::features::FEATURES;
use cenote_pool::cachefile::CacheFile;
use cenote_pool::status::NameStyle;
use cenote_pool::vdev_props;
use cenote_vdev::Vdev;
use std::cell::Cell;

/// Asks the shell for names of files.
pub const FILES: &str = ":files";
/// Asks the shell for names of directories.
pub const DIRECTORIES: &str = ":directories";
/// The most names of datasets that are offered.
const MOST: usize = 5000;
/// Words that begin vdevs.
const LAYOUT: [&str; 14] = [
    "mirror", "raidz", "raidz1", "raidz2", "raidz3", "draid", "draid1", "draid2", "draid3", "log",
    "cache", "spare", "special", "dedup",
];
/// The kinds of a pattern.
const KINDS: [&str; 33] = [
    "pool",
    "importable",
    "new",
    "dataset",
    "filesystem",
    "volume",
    "new-dataset",
    "new-snapshot",
    "new-bookmark",
    "snapshot",
    "snapshots",
    "bookmark",
    "mounted",
    "property",
    "settable",
    "user-property",
    "pool-property",
    "pool-column",
    "pool-setting",
    "leaf",
    "raidz",
    "removable",
    "any-vdev",
    "cache",
    "spare",
    "tunable",
    "vdev",
    "file",
    "path",
    "directory",
    "permission",
    "word",
    "number",
];

/// Whether patterns may name a kind.
pub fn is_known(kind: &str) -> bool {
    KINDS.contains(&kind) || ["value", "size"].contains(&kind)
}

/// The imported pools, and whether a pattern has asked for them.
#[derive(Clone, Copy)]
pub struct Pools<'a> {
    /// They are here.
    pub ctx: &'a Context,
    /// Set when a pattern asks for them.
    pub asked: &'a Cell<bool>,
}

impl<'a> Pools<'a> {
    fn ask(self) -> &'a PoolTable {
        self.asked.set(true);
        &self.ctx.pools
    }
}

/// What a word is completed in.
pub struct Scope<'a> {
    /// The imported pools.
    pub pools: Pools<'a>,
    /// The operands before it.
    pub operands: &'a [String],
}

/// The candidates that a pattern has for a word.
pub fn fit(pattern: &str, word: &str, scope: &Scope<'_>) -> Vec<Candidate> {
    let Some(one) = pattern.strip_suffix(",...") else { return alternatives(pattern, word, scope) };
    // Of a list, the part behind the last comma.
    let (before, last) = match word.rfind(',') {
        Some(at) => word.split_at(at + 1),
        None => ("", word),
    };
    let chosen: Vec<&str> = before.split(',').collect();
    let found = alternatives(one, last, scope).into_iter();
    let new = found.filter(|c| !chosen.contains(&c.word.as_str()));
    new.map(|c| Candidate { word: format!("{before}{}", c.word), ..c }).collect()
}

fn alternatives(pattern: &str, word: &str, scope: &Scope<'_>) -> Vec<Candidate> {
    if let Some((left, _)) = pattern.split_once('=') {
        return assignments(left, word);
    }
    let mut found = Vec::new();
    for alternative in pattern.split('|') {
        match alternative.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')) {
            Some("snapshot")
                if pattern.contains("<dataset>") || pattern.contains("<filesystem>") =>
            {
                found.extend(parts(word, '@', scope));
            }
            Some("snapshots") => found.extend(several_snapshots(word, scope)),
            Some(kind) => found.extend(of_kind(kind, word, scope)),
            None => found.push(Candidate::new(alternative, "")),
        }
    }
    found.retain(|c| c.word.starts_with(word) || c.word.starts_with(':'));
    found
}

fn of_kind(kind: &str, word: &str, scope: &Scope<'_>) -> Vec<Candidate> {
    match kind {
        "pool" => names_of_pools(scope),
        "importable" => importable(scope),
        "dataset" | "filesystem" | "volume" => names(word, "", kind, scope),
        "new-dataset" => names(word, "/", "filesystem", scope),
        "new-snapshot" => names(word, "@", "dataset", scope),
        "new-bookmark" => names(word, "#", "dataset", scope),
        "snapshot" if word.contains('@') => parts(word, '@', scope),
        "snapshot" => names(word, "@", "dataset", scope),
        "bookmark" => parts(word, '#', scope),
        "mounted" if word.starts_with(['/', '.']) => vec![Candidate::new(DIRECTORIES, "")],
        "property" => {
            let families = families().map(|(prefix, _)| prefix).chain(["written@"]);
            let families = families.map(|prefix| Candidate::new(prefix, ""));
            datasets::visible().map(|p| about("zfs", p.name)).chain(families).collect()
        }
        "settable" => settable().map(|p| about("zfs", p.name)).collect(),
        "pool-property" => {
            let own = pool_columns();
            own.chain(vdev_props::names().map(|n| about("vdev", n))).collect()
        }
        "pool-column" => pool_columns().collect(),
        "leaf" => vdevs(scope, |item, _| is_vdev(item, Vdev::is_leaf).then_some("device")),
        "raidz" => vdevs(scope, |item, _| {
            is_vdev(item, |vdev| vdev.kind() == "raidz").then_some("RAID-Z vdev")
        }),
        "removable" => vdevs(scope, |item, section| match item {
            Item::Vdev { top, .. } => top.then_some("vdev"),
            Item::Aux { .. } => Some(aux(section)),
            Item::Section(_) => None,
        }),
        "any-vdev" => vdevs(scope, |item, section| match item {
            Item::Vdev { vdev, .. } => Some(if vdev.is_leaf() { "device" } else { "vdev" }),
            Item::Aux { .. } => Some(aux(section)),
            Item::Section(_) => None,
        }),
        "cache" | "spare" => vdevs(scope, |item, section| {
            let wanted = matches!(item, Item::Aux { .. }) && section == kind;
            wanted.then(|| aux(section))
        }),
        "tunable" => names_of_tunables("").collect(),
        "vdev" => {
            let words = LAYOUT.iter().map(|word| Candidate::new(*word, ""));
            words.chain([Candidate::new(FILES, "")]).collect()
        }
        "file" | "path" => vec![Candidate::new(FILES, "")],
        "directory" => vec![Candidate::new(DIRECTORIES, "")],
        "permission" => {
            let properties = table::PROPERTIES.iter().map(|p| p.name);
            let allowed = properties.filter(|name| cenote_engine::change::is_delegatable(name));
            permissions::NAMES
                .iter()
                .copied()
                .chain(allowed)
                .map(|n| Candidate::new(n, ""))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// A property with what it means.
fn about(kind: &str, name: &str) -> Candidate {
    Candidate::new(name, manual::property(kind, name).unwrap_or_default())
}

/// Properties of datasets that `zfs set` takes.
fn settable() -> impl Iterator<Item = &'static table::Property> {
    table::PROPERTIES.iter().filter(|p| p.attr != Attr::ReadOnly && p.visible)
}

/// Properties of pools, with features.
fn pool_columns() -> impl Iterator<Item = Candidate> {
    pool_properties::all().map(|p| about("zpool", p.name)).chain(features(""))
}

/// Tunables, with `behind` behind the name of each.
fn names_of_tunables(behind: &'static str) -> impl Iterator<Item = Candidate> {
    let all = tunables::all().iter();
    all.map(move |t| Candidate::new(format!("{}{behind}", t.name), t.description))
}

fn features(behind: &'static str) -> impl Iterator<Item = Candidate> {
    FEATURES
        .iter()
        .map(move |f| Candidate::new(format!("feature@{}{behind}", f.name), f.description))
}

/// `name=`, or the values of a property.
fn assignments(kind: &str, word: &str) -> Vec<Candidate> {
    if let Some((name, _)) = word.split_once('=') {
        let values = values(kind, name).into_iter();
        return values.map(|value| Candidate::new(format!("{name}={value}"), "")).collect();
    }
    let named = |mut c: Candidate| {
        c.word.push('=');
        c
    };
    match kind {
        "<property>" => {
            let quotas = families().filter(|(_, quota)| *quota);
            let quotas = quotas.map(|(prefix, _)| Candidate::new(prefix, ""));
            settable().map(|p| named(about("zfs", p.name))).chain(quotas).collect()
        }
        "<pool-property>" | "<pool-setting>" => {
            let settable = pool_properties::all().filter(|p| p.is_settable() && p.values() != "-");
            let of_pools = settable.map(|p| named(about("zpool", p.name))).chain(features("="));
            let of_vdevs = vdev_props::names().filter(|name| {
                kind == "<pool-setting>"
                    && vdev_props::values(name).is_some()
                    && pool_properties::find(name).is_none()
            });
            of_pools.chain(of_vdevs.map(|name| named(about("vdev", name)))).collect()
        }
        "<tunable>" => names_of_tunables("=").collect(),
        "<user-property>" | "<word>" => Vec::new(),
        names => names.split('|').map(|name| Candidate::new(format!("{name}="), "")).collect(),
    }
}

/// The values of a property that are words.
fn values(kind: &str, name: &str) -> Vec<String> {
    let words = |values: &'static str| {
        let plain = values.split(" | ").filter(|v| !v.contains(['<', '[', ' ']) && *v != "-");
        plain.map(String::from).collect::<Vec<_>>()
    };
    match kind {
        "<pool-property>" if name.starts_with("feature@") => {
            vec!["enabled".into(), "disabled".into()]
        }
        "<pool-setting>" if name.starts_with("feature@") => vec!["enabled".into()],
        "<pool-property>" | "<pool-setting>" => {
            let of_pools = pool_properties::find(name).map(|p| p.values());
            let of_vdevs = || vdev_props::values(name).filter(|_| kind == "<pool-setting>");
            of_pools.or_else(of_vdevs).map(words).unwrap_or_default()
        }
        "<tunable>" => Vec::new(),
        _ => match table::find(name) {
            Some(p) => match p.kind {
                Type::Index(_, names) => {
                    names.iter().map(|(name, _)| (*name).to_string()).collect()
                }
                _ => words(p.values),
            },
            None => Vec::new(),
        },
    }
}

fn names_of_pools(scope: &Scope<'_>) -> Vec<Candidate> {
    scope.pools.ask().all().iter().map(|pool| Candidate::new(pool.name(), "pool")).collect()
}

/// The pools of the default cache file that are not imported. Devices are not looked at, and root's daemon reads no
/// file for others.
fn importable(scope: &Scope<'_>) -> Vec<Candidate> {
    if scope.pools.ctx.caller.is_delegated() {
        return Vec::new();
    }
    let Some(Ok(file)) = cachefile::default_path().map(|path| CacheFile::read(&path)) else {
        return Vec::new();
    };
    let pools = scope.pools.ask();
    let others = file.entries().filter(|entry| pools.by_guid(entry.guid).is_none());
    others.map(|entry| Candidate::new(entry.name, "pool of the cache file")).collect()
}

/// The vdevs of the pool that was named before, for which `wanted` says what they are: it is shown each with the section
/// that it stands in.
fn vdevs(
    scope: &Scope<'_>,
    wanted: impl Fn(&Item, &str) -> Option<&'static str>,
) -> Vec<Candidate> {
    let Some(pool) = scope.operands.iter().find_map(|name| scope.pools.ask().get(name)) else {
        return Vec::new();
    };
    let style = NameStyle { full_path: true, ..NameStyle::default() };
    let (mut found, mut section) = (Vec::new(), "");
    for item in items(&pool, &style) {
        let what = wanted(&item, section);
        match item {
            Item::Section(title) => section = title,
            Item::Vdev { name, .. } | Item::Aux { name, .. } => {
                found.extend(what.map(|what| Candidate::new(name, what)));
            }
        }
    }
    found
}

fn is_vdev(item: &Item, wanted: fn(&Vdev) -> bool) -> bool {
    matches!(item, Item::Vdev { vdev, .. } if wanted(vdev))
}

/// What a device is that is not part of the tree.
fn aux(section: &str) -> &'static str {
    if section == "cache" { "cache device" } else { "spare" }
}

/// Names of datasets that begin as `word` does, with `behind` behind them.
fn names(word: &str, behind: &str, kind: &str, scope: &Scope<'_>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for pool in scope.pools.ask().all() {
        let pool = pool.pool();
        if let Ok(root) = pool.dsl().root() {
            walk(pool.dsl(), &root, word, &mut |d| {
                let what = d.kind.name();
                if kind == "dataset" || kind == what {
                    found.push(Candidate::new(format!("{}{behind}", d.name), what));
                }
                found.len() < MOST && !scope.pools.ctx.cancelled()
            });
        }
    }
    found
}

/// Shows `take` the datasets from `d` on whose names may begin as `word` does, until it wants no more. What cannot be
/// read is left out.
fn walk(dsl: &Dsl, d: &Dataset, word: &str, take: &mut dyn FnMut(&Dataset) -> bool) -> bool {
    let fits = d.name.starts_with(word);
    let leads_there = word.strip_prefix(d.name.as_str()).is_some_and(|rest| rest.starts_with('/'));
    if fits && !take(d) {
        return false;
    }
    if !fits && !leads_there {
        return true;
    }
    let children = dsl.children(d).unwrap_or_default();
    children.iter().all(|child| walk(dsl, child, word, take))
}

/// Of a list (`FS@a,b`) or range (`FS@a%b`) of snapshots, what the last one may be.
fn several_snapshots(word: &str, scope: &Scope<'_>) -> Vec<Candidate> {
    let end = word.rfind(['@', ',', '%']).unwrap_or_default();
    let (Some((dataset, _)), Some(before)) = (word.split_once('@'), word.get(..=end)) else {
        return Vec::new();
    };
    let name = |c: &Candidate| c.word.rsplit('@').next().unwrap_or_default().to_string();
    let chosen: Vec<&str> =
        before.rsplit('@').next().unwrap_or_default().split([',', '%']).collect();
    let all = parts(&format!("{dataset}@"), '@', scope).into_iter();
    let new = all.filter(|c| !chosen.contains(&name(c).as_str()));
    new.map(|c| Candidate { word: format!("{before}{}", name(&c)), ..c }).collect()
}

/// Snapshots (`@`) or bookmarks (`#`) of the dataset that the word names.
fn parts(word: &str, sign: char, scope: &Scope<'_>) -> Vec<Candidate> {
    let Some((name, _)) = word.split_once(sign) else { return Vec::new() };
    let pool_name = name.split('/').next().unwrap_or_default();
    let Some(imported) = scope.pools.ask().get(pool_name) else { return Vec::new() };
    let pool = imported.pool();
    let Ok(Some(dataset)) = pool.dsl().find(name) else { return Vec::new() };
    let found = match sign {
        '@' => pool.dsl().snapshots(&dataset),
        _ => pool.dsl().bookmarks(&dataset),
    };
    let found = found.unwrap_or_default();
    found.into_iter().take(MOST).map(|d| Candidate::new(d.name.clone(), d.kind.name())).collect()
}
