//! Which datasets a command works on, and in which order.
//!
//! Names on the command line (or all pools) are opened, their descendants are walked as deep as
//! asked, and everything of the wanted kinds is sorted: by the `-s`/`-S` properties first, then by
//! name with snapshots behind their dataset in order of creation.

use crate::access;
use crate::context::Context;
use crate::mounts::{Ask, Listed, Seen};
use crate::pools::{Change, Imported, PoolTable};
use crate::zfs::properties::Key;
pub use cenote_admin::Kinds;
use cenote_admin::kinds::{check_name, no_dataset};
use cenote_command::outcome::{Stop, plain, usage};
use cenote_command::{Caller, clock};
use cenote_dmu::Error;
use cenote_dsl::human::{DATE, DATE_WITH_SECONDS};
use cenote_dsl::{Dataset, Dsl, PropValue};
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The argument of `-t`.
pub fn kinds(list: &str) -> Result<Kinds, Stop> {
    list.split(',').try_fold(Kinds::NONE, |all, word| {
        Ok(all.with(match word {
            "filesystem" | "fs" => Kinds::FILESYSTEM,
            "volume" | "vol" => Kinds::VOLUME,
            "snapshot" | "snap" => Kinds::SNAPSHOT,
            "bookmark" => Kinds::BOOKMARK,
            "all" => Kinds::ALL,
            _ => return usage(format!("invalid type '{word}'")),
        }))
    })
}

/// A dataset with the pool it is in.
#[derive(Clone)]
pub struct Node {
    /// Its pool.
    pub imported: Arc<Imported>,
    /// The dataset.
    pub dataset: Dataset,
    /// What a selection has seen of the pool's mounts; without it they are asked for anew.
    pub seen: Option<Arc<Seen>>,
}

/// Why a question about a dataset has no answer.
#[derive(Debug)]
pub enum Unread {
    /// The dataset is not there any more, or another one has its name now. A listing leaves it out.
    Gone,
    /// Something cannot be read.
    Error(Error),
}

impl Node {
    /// Asks the pool about the dataset. Where the answer cannot be read, transaction groups may have
    /// changed the dataset since it was selected: then the question is put again, about the dataset as it
    /// is now.
    pub fn ask<T>(
        &self,
        question: impl Fn(&Dsl, &Dataset) -> Result<T, Error>,
    ) -> Result<T, Unread> {
        let mut dataset = self.dataset.clone();
        let mut asked_of = None;
        loop {
            let pool = self.imported.pool();
            let error = match question(pool.dsl(), &dataset) {
                Ok(answer) => return Ok(answer),
                Err(e) => e,
            };
            // The second time nothing but a newer state of the pool can give another answer.
            let txg = pool.uberblock().txg;
            if asked_of.replace(txg).is_some_and(|before| before == txg) {
                return Err(Unread::Error(error));
            }
            match self.imported.pool().dsl().find(&self.dataset.name) {
                Ok(Some(now)) if now.guid() == self.dataset.guid() => dataset = now,
                Ok(_) => return Err(Unread::Gone),
                Err(e) => return Err(Unread::Error(e)),
            }
        }
    }

    /// A property as this command's user sees it; `None` if the dataset does not have it.
    pub fn value(&self, name: &str) -> Result<Option<PropValue>, Unread> {
        let mounts = |dataset: &str| self.options_of(dataset);
        self.ask(|dsl, dataset| dsl.get_as_mounted(dataset, name, &mounts))
    }

    /// All properties that `zfs get all` shows.
    pub fn values(&self) -> Result<Vec<(String, PropValue)>, Unread> {
        let mounts = |dataset: &str| self.options_of(dataset);
        let values = self.ask(|dsl, dataset| dsl.get_all_as_mounted(dataset, &mounts))?;
        // Properties that could not be read were left out, so the dataset has to be there still.
        self.ask(|dsl, _| dsl.find(&self.dataset.name)).and_then(|now| match now {
            Some(now) if now.guid() == self.dataset.guid() => Ok(values),
            _ => Err(Unread::Gone),
        })
    }

    /// Mount options of a dataset, if it is mounted.
    fn options_of(&self, dataset: &str) -> Option<String> {
        let mounts = &self.imported.mounts;
        match &self.seen {
            Some(seen) => seen.options_of(mounts, dataset),
            None => mounts.options_of(dataset),
        }
    }

    /// Like [`Node::value`]; a failure to read is said and shown as no value, and the second part says
    /// that there was none. `None`: the dataset is gone.
    pub fn value_or_complain(
        &self,
        name: &str,
        ctx: &mut Context,
    ) -> Option<(Option<PropValue>, bool)> {
        if !access::sees(self, name, ctx) {
            return Some((None, true));
        }
        match self.value(name) {
            Ok(value) => Some((value.map(|v| in_time_of(&ctx.caller, name, v)), true)),
            Err(Unread::Gone) => None,
            Err(Unread::Error(e)) => {
                let d = &self.dataset.name;
                ctx.complain(format_args!("cannot get property '{name}' of '{d}': {e}"));
                Some((None, false))
            }
        }
    }
}

/// A value with its date, if it is one, in the caller's time zone.
pub fn in_time_of(caller: &Caller, name: &str, mut value: PropValue) -> PropValue {
    let form = match name {
        "creation" => DATE,
        "snapshots_changed" => DATE_WITH_SECONDS,
        _ => return value,
    };
    if let Ok(seconds) = value.exact.parse() {
        value.human = clock::format(caller, seconds, form);
    }
    value
}

/// What to select.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Kinds to show.
    pub kinds: Kinds,
    /// Walk descendants.
    pub recurse: bool,
    /// How deep to walk them.
    pub depth: Option<u32>,
    /// Snapshots are shown where the pool's `listsnapshots` says so (not by [`Selection::kinds`]).
    pub by_listsnapshots: bool,
    /// Sort keys: property, descending.
    pub sort: Vec<(String, bool)>,
}

impl Selection {
    /// The named datasets of these kinds, and nothing below them.
    pub fn of(kinds: Kinds) -> Selection {
        Selection { kinds, recurse: false, depth: None, by_listsnapshots: false, sort: Vec::new() }
    }
}

/// The argument of `-d`.
pub fn depth(text: &str) -> Result<u32, Stop> {
    match text.parse::<i64>() {
        Ok(n) if n < 0 => usage("Depth can not be negative."),
        Ok(n) => Ok(u32::try_from(n).unwrap_or(u32::MAX)),
        Err(_) => usage(format!("{text} is not an integer")),
    }
}

/// The datasets of a selection, sorted; and whether every name could be opened and read.
pub fn select(ctx: &mut Context, names: &[String], what: &Selection) -> (Vec<Node>, bool) {
    let everything = Selection { recurse: what.recurse || names.is_empty(), ..what.clone() };
    let what = &everything;
    let (taken, seen) = (HashSet::new(), HashMap::new());
    let mut walk = Walk { ctx, what, nodes: Vec::new(), taken, seen, good: true };
    if names.is_empty() {
        for imported in walk.ctx.pools.all() {
            match imported.pool().dsl().root() {
                Ok(dataset) => walk.visit(Node { imported, dataset, seen: None }, 0),
                Err(e) => walk.bad(format!("cannot open '{}': {e}", imported.name())),
            }
        }
        return walk.sorted();
    }
    let mut accepted = what.kinds;
    if what.recurse {
        accepted = accepted.with(Kinds::FILESYSTEM);
        if what.kinds.meets(Kinds::SNAPSHOT.with(Kinds::BOOKMARK)) {
            accepted = accepted.with(Kinds::VOLUME);
        }
    }
    for name in names {
        match open_or_path(walk.ctx, name, accepted) {
            Ok(node) => walk.visit(node, 0),
            Err(message) => walk.bad(message),
        }
    }
    walk.sorted()
}

/// As [`select`], and takes the pools of what is named for this command alone. A path is looked for in all pools first, without a
/// wait, then once more in those that were taken: no other pool is waited for. Nothing is selected where no name stands for a
/// dataset.
pub fn select_to_change<'a>(
    pools: &'a PoolTable,
    ctx: &mut Context,
    names: &[String],
    what: &Selection,
) -> (Change<'a>, Vec<Node>, bool) {
    let (change, resolved) = loop {
        let seen = || mounted(ctx);
        let first: Vec<_> = names.iter().map(|name| named(ctx, &seen, name)).collect();
        let change = pools.change_all(first.iter().flatten(), None);
        let own: Vec<_> = pools.all().into_iter().filter(|p| change.has(p.name())).collect();
        let there = || mounted_of(&own, ctx);
        let now = |(name, seen): (&String, &Result<String, String>)| match seen {
            Ok(_) => named(ctx, &there, name),
            Err(_) => seen.clone(),
        };
        let again: Vec<_> = names.iter().zip(&first).map(now).collect();
        // Where it is different, what was mounted there has gone, or is of another pool.
        if again.iter().zip(&first).all(|(now, seen)| now.is_ok() == seen.is_ok()) {
            break (change, again);
        }
    };
    let (mut found, mut good) = (Vec::new(), true);
    for name in resolved {
        match name {
            Ok(name) => found.push(name),
            Err(message) => {
                ctx.complain(message);
                good = false;
            }
        }
    }
    // No name at all would be everything.
    if found.is_empty() {
        return (change, Vec::new(), good);
    }
    let (nodes, all) = select(ctx, &found, what);
    (change, nodes, good && all)
}

struct Walk<'a> {
    ctx: &'a mut Context,
    what: &'a Selection,
    nodes: Vec<Node>,
    /// The names of those.
    taken: HashSet<String>,
    /// What is seen of the mounts of each pool, by its name.
    seen: HashMap<String, Arc<Seen>>,
    good: bool,
}

impl Walk<'_> {
    fn bad(&mut self, message: String) {
        self.ctx.complain(message);
        self.good = false;
    }

    fn shows_snapshots(&self, node: &Node) -> bool {
        match self.what.by_listsnapshots {
            false => self.what.kinds.meets(Kinds::SNAPSHOT),
            true => node.imported.pool().get("listsnapshots").is_some_and(|v| v.exact == "on"),
        }
    }

    /// Takes a dataset and what is below it.
    fn visit(&mut self, node: Node, depth: u32) {
        if self.ctx.cancelled() {
            return;
        }
        let kind = Kinds::of(&node.dataset);
        let snapshots = self.shows_snapshots(&node);
        let wanted = self.what.kinds.meets(kind) || (kind == Kinds::SNAPSHOT && snapshots);
        if wanted && self.taken.insert(node.dataset.name.clone()) {
            let pool = node.imported.name();
            let seen = Arc::clone(self.seen.entry(pool.to_string()).or_default());
            self.nodes.push(Node { seen: Some(seen), ..node.clone() });
        }
        let deeper = self.what.depth.is_none_or(|limit| depth < limit);
        if !self.what.recurse || !deeper || kind.meets(Kinds::SNAPSHOT.with(Kinds::BOOKMARK)) {
            return;
        }
        let below = depth.saturating_add(1);
        // At the last level only file systems and volumes themselves are of interest.
        let children =
            self.what.depth.is_none_or(|limit| below < limit) || self.what.kinds.meets(Kinds::HEAD);
        if kind == Kinds::FILESYSTEM && children {
            self.visit_all(&node, Dsl::children, below);
        }
        if snapshots {
            self.visit_all(&node, Dsl::snapshots, below);
        }
        if self.what.kinds.meets(Kinds::BOOKMARK) {
            self.visit_all(&node, Dsl::bookmarks, below);
        }
    }

    /// Takes what `list` finds in a dataset.
    fn visit_all(
        &mut self,
        of: &Node,
        list: fn(&Dsl, &Dataset) -> Result<Vec<Dataset>, Error>,
        depth: u32,
    ) {
        match of.ask(list) {
            Err(Unread::Gone) => {}
            Err(Unread::Error(e)) => {
                self.bad(format!("cannot list what is in '{}': {e}", of.dataset.name));
            }
            Ok(found) => {
                for dataset in found {
                    let imported = Arc::clone(&of.imported);
                    self.visit(Node { imported, dataset, seen: None }, depth);
                }
            }
        }
    }

    fn sorted(mut self) -> (Vec<Node>, bool) {
        let keys = std::mem::take(&mut self.nodes);
        let mut keyed: Vec<(Vec<Option<Key>>, Node)> =
            keys.into_iter().filter_map(|node| Some((self.sort_keys(&node)?, node))).collect();
        keyed.sort_by(|(a, x), (b, y)| {
            let by_keys =
                self.what.sort.iter().zip(a.iter().zip(b)).map(|((_, descending), pair)| {
                    compare_keys(pair.0.as_ref(), pair.1.as_ref(), *descending)
                });
            by_keys
                .into_iter()
                .find(|o| o.is_ne())
                .unwrap_or_else(|| compare_names(&x.dataset, &y.dataset))
        });
        (keyed.into_iter().map(|(_, node)| node).collect(), self.good)
    }

    /// What a dataset sorts by; `None` if it is gone.
    fn sort_keys(&mut self, node: &Node) -> Option<Vec<Option<Key>>> {
        let mut keys = Vec::new();
        for (name, _) in &self.what.sort {
            let (value, good) = node.value_or_complain(name, self.ctx)?;
            self.good &= good;
            keys.push(value.map(|v| Key::new(name, &v.exact)));
        }
        Some(keys)
    }
}

/// Rows without the property go to the bottom whatever the direction.
pub fn compare_keys(a: Option<&Key>, b: Option<&Key>, descending: bool) -> Ordering {
    let order = match (a, b) {
        (None, None) => return Ordering::Equal,
        (None, Some(_)) => return Ordering::Greater,
        (Some(_), None) => return Ordering::Less,
        (Some(a), Some(b)) => a.cmp(b),
    };
    if descending { order.reverse() } else { order }
}

fn compare_names(a: &Dataset, b: &Dataset) -> Ordering {
    let (x, y) = (a.name.split_once('@'), b.name.split_once('@'));
    let head = |d: &'_ Dataset, split: Option<(&str, &str)>| {
        split.map_or_else(|| d.name.clone(), |(head, _)| head.to_string())
    };
    head(a, x).cmp(&head(b, y)).then_with(|| match (x, y) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Less,
        (Some(_), None) => Ordering::Greater,
        (Some((_, m)), Some((_, n))) => {
            a.ds.creation_txg.cmp(&b.ds.creation_txg).then_with(|| m.cmp(n))
        }
    })
}

/// Opens a dataset by name, or the file system that an absolute path (or one that starts with
/// `./`) is in.
pub fn open_or_path(ctx: &Context, name: &str, kinds: Kinds) -> Result<Node, String> {
    open(ctx, &named(ctx, &|| mounted(ctx), name)?, kinds)
}

/// The name of the dataset that is meant: `name`, or that of the file system which a path is in, of what is mounted.
fn named(
    ctx: &Context,
    mounted: &dyn Fn() -> Result<Vec<Listed>, String>,
    name: &str,
) -> Result<String, String> {
    if !name.starts_with('/') && !name.starts_with("./") {
        return Ok(name.into());
    }
    let path = ctx
        .agent()
        .canonicalize(&ctx.path(name))
        .map_err(|e| format!("cannot open '{name}': {}", plain(&e)))?;
    let around = mounted()?.into_iter().filter(|m| path.starts_with(&m.mountpoint));
    match around.max_by_key(|m| m.mountpoint.as_os_str().len()) {
        Some(m) => Ok(m.dataset),
        None => Err(format!("'{name}': not a ZFS filesystem")),
    }
}

/// What is mounted in the caller's mount namespace. No pool is waited for: while the mounts of one are being changed, they are
/// told as they were before.
pub fn mounted(ctx: &Context) -> Result<Vec<Listed>, String> {
    ask_for_mounts(&ctx.pools.all(), ctx, Ask::Look)
}

/// As [`mounted`], of these pools, once their mounts are not being changed.
pub fn mounted_of(pools: &[Arc<Imported>], ctx: &Context) -> Result<Vec<Listed>, String> {
    ask_for_mounts(pools, ctx, Ask::Wait)
}

fn ask_for_mounts(pools: &[Arc<Imported>], ctx: &Context, ask: Ask) -> Result<Vec<Listed>, String> {
    if !ctx.is_elsewhere() {
        return Ok(pools.iter().flat_map(|p| p.mounts.places(ask)).collect());
    }
    let by = ctx.agent();
    let listed = pools.iter().map(|p| p.mounts.list_by(&*by, ask)).collect::<Result<Vec<_>, _>>();
    Ok(listed.map_err(|e| e.to_string())?.into_iter().flatten().collect())
}

/// The imported pool of a dataset whose name is right for these kinds; the error is the message for the user.
pub fn pool_of(ctx: &Context, name: &str, kinds: Kinds) -> Result<Arc<Imported>, String> {
    check_name(name, kinds).map_err(|e| e.to_string())?;
    let pool = name.split(['/', '@', '#']).next().unwrap_or_default();
    ctx.pools.get(pool).ok_or_else(|| no_dataset(name).to_string())
}

/// Opens a dataset by name; the error is the message for the user.
pub fn open(ctx: &Context, name: &str, kinds: Kinds) -> Result<Node, String> {
    let imported = pool_of(ctx, name, kinds)?;
    let dataset = cenote_admin::kinds::open(imported.pool().dsl(), name, kinds);
    Ok(Node { dataset: dataset.map_err(|e| e.to_string())?, imported, seen: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named() {
        assert!(kinds("fs,snap").unwrap() == Kinds::FILESYSTEM.with(Kinds::SNAPSHOT));
        assert!(matches!(kinds("x"), Err(Stop::Usage(m)) if m == "invalid type 'x'"));
    }

    #[test]
    fn rows_without_a_value_sort_last() {
        let n = |n| Some(Key::Number(n));
        assert_eq!(compare_keys(n(1).as_ref(), n(2).as_ref(), false), Ordering::Less);
        assert_eq!(compare_keys(n(1).as_ref(), n(2).as_ref(), true), Ordering::Greater);
        assert_eq!(compare_keys(None, n(2).as_ref(), true), Ordering::Greater);
    }
}
