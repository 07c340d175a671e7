//! `zpool get PROPERTY POOL VDEV...`: properties of vdevs (`get_callback_vdev`, `zpool_get_all_vdev_props`).
//!
//! Names after the pool's name are vdevs, or `root`, or `all-vdevs` (`vdev_expand_proplist`). The values are those
//! of [`VdevProps`] and [`AuxProps`]; here they are chosen, put into columns or into JSON. All vdevs come with the root first, then
//! spares and cache devices, then the others, each before those below it (`for_each_vdev_cb`). So a spare that stands in for a
//! device comes twice, as it does in OpenZFS.
//!
//! A name that is no vdev of the pool is an error that says of each name what it is: a pool, a vdev of this
//! pool or of another one, or unknown.

use super::Wanted;
use crate::context::Context;
use crate::json::{Json, document_with};
use crate::pools::Imported;
use crate::zfs::get::{Layout, Line};
use crate::zpool::properties::help_of_vdevs;
use crate::zpool::select::{IN_THIS_POOL, find_vdev, guid_called, kind};
use crate::zpool::vdev_json::{class_of, head};
use cenote_command::outcome::{Outcome, Stop, usage};
use cenote_dsl::props::is_user;
use cenote_dsl::{PropValue, Source};
use cenote_format::nvlist::NvList;
use cenote_pool::Pool;
use cenote_pool::config;
use cenote_pool::status::{NameStyle, VdevLine, name_of_vdev};
use cenote_pool::vdev_props::{AuxProps, VdevProps, is_native};
use cenote_vdev::{Vdev, VdevState};
use serde_json::{Map, Value};
use std::sync::Arc;

/// What the root is called.
pub(in crate::zpool) const ROOT: &str = "root-0";

/// Shows properties of the vdevs that follow the name of a pool.
pub(super) fn run(
    imported: &Imported,
    names: &[String],
    wanted: &Wanted,
    ctx: &mut Context,
) -> Outcome {
    let pool = imported.pool();
    let tree = pool.store().vdevs();
    let root = tree.root();
    let vdevs: Vec<(String, One)> = match names {
        [one] if one == "root" || one == ROOT => vec![(ROOT.into(), One::Vdev(Arc::clone(root)))],
        [one] if one == "all-vdevs" => all(&pool),
        names => {
            let found = names.iter().map(|name| Some((name.clone(), find(imported, name)?)));
            match found.collect() {
                Some(found) => found,
                None => return wrong_names(imported.name(), names, ctx),
            }
        }
    };
    let properties = match wanted.properties.as_str() {
        "all" => None,
        list => Some(resolve(list)?),
    };
    let shown: Vec<Shown> = vdevs
        .iter()
        .map(|(name, one)| Shown::of(&pool, name, one, properties.as_deref()))
        .collect();
    match wanted.json {
        Some(json) => print_json(imported, &shown, wanted, json, ctx),
        None => print(&shown, properties.as_deref(), wanted, ctx),
    }
}

/// A vdev of the tree, or a device beside it.
enum One {
    Vdev(Arc<Vdev>),
    Aux { line: VdevLine, cache: bool },
}

/// The vdev that the user calls `name`.
fn find(imported: &Imported, name: &str) -> Option<One> {
    if let Some(vdev) = find_vdev(imported, name) {
        return Some(One::Vdev(vdev));
    }
    let guid = guid_called(imported, name)?;
    let beside = aux(&imported.pool()).into_iter();
    beside.map(|(_, one)| one).find(|one| config::number(one.config(), "guid") == guid)
}

/// Spares, then cache devices, with their names.
fn aux(pool: &Pool) -> Vec<(String, One)> {
    let tree = pool.tree();
    let spares = tree.spares.into_iter().map(|line| (line, false));
    let all = spares.chain(tree.cache.into_iter().map(|line| (line, true)));
    all.map(|(line, cache)| (line.name(&NameStyle::default()), One::Aux { line, cache })).collect()
}

impl One {
    fn config(&self) -> &NvList {
        match self {
            One::Vdev(vdev) => vdev.config(),
            One::Aux { line, .. } => &line.config,
        }
    }

    fn state(&self) -> Option<VdevState> {
        match self {
            One::Vdev(vdev) => Some(vdev.state()),
            One::Aux { line, .. } => line.vdev_state,
        }
    }

    fn class(&self, pool: &Pool) -> String {
        let class = match self {
            One::Aux { cache: true, .. } => "l2cache",
            One::Aux { cache: false, .. } => "spare",
            One::Vdev(vdev) => {
                let vdevs = pool.store().vdevs();
                let top = vdevs.root().children().iter().find(|top| holds(top, vdev.guid()));
                return top.map_or("normal", |top| class_of(top.config())).to_string();
            }
        };
        class.to_string()
    }

    /// Its properties, or those of them that are named.
    fn values(&self, pool: &Pool, names: Option<&[String]>) -> Vec<(String, PropValue)> {
        fn some(
            names: Option<&[String]>,
            all: impl FnOnce() -> Vec<(String, PropValue)>,
            get: impl Fn(&str) -> Option<PropValue>,
        ) -> Vec<(String, PropValue)> {
            match names {
                None => all(),
                Some(names) => names.iter().filter_map(|p| Some((p.clone(), get(p)?))).collect(),
            }
        }
        match self {
            One::Vdev(vdev) => {
                let props = VdevProps::new(pool, vdev);
                some(names, || props.all(), |name| props.get(name))
            }
            One::Aux { line, cache } => {
                let props = AuxProps::new(pool, line, *cache);
                some(names, || props.all(), |name| props.get(name))
            }
        }
    }
}

/// A vdev with the properties that were asked for.
struct Shown<'a> {
    name: String,
    one: &'a One,
    class: String,
    values: Vec<(String, PropValue)>,
}

impl<'a> Shown<'a> {
    fn of(pool: &Pool, name: &str, one: &'a One, properties: Option<&[String]>) -> Shown<'a> {
        let values = one.values(pool, properties);
        Shown { name: name.into(), one, class: one.class(pool), values }
    }
}

fn holds(vdev: &Vdev, guid: u64) -> bool {
    vdev.guid() == guid || vdev.children().iter().any(|child| holds(child, guid))
}

/// All vdevs, each before those below it; but for what removed vdevs and logs have left.
fn all(pool: &Pool) -> Vec<(String, One)> {
    fn add(vdev: &Arc<Vdev>, to: &mut Vec<(String, One)>) {
        if !["hole", "indirect"].contains(&vdev.kind()) {
            let name = name_of_vdev(vdev, &NameStyle::default());
            to.push((name, One::Vdev(Arc::clone(vdev))));
        }
        vdev.children().iter().for_each(|child| add(child, to));
    }
    let vdevs = pool.store().vdevs();
    let root = vdevs.root();
    let mut list = vec![(ROOT.to_string(), One::Vdev(Arc::clone(root)))];
    let in_tree = |one: &One| {
        let guid = config::number(one.config(), "guid");
        let mut leaves = Vec::new();
        root.collect_leaves(&mut leaves);
        leaves.into_iter().find(|leaf| leaf.guid() == guid)
    };
    for (name, one) in aux(pool) {
        let one = in_tree(&one).map_or(one, One::Vdev);
        list.push((name, one));
    }
    root.children().iter().for_each(|top| add(top, &mut list));
    list
}

/// Names of properties.
fn resolve(list: &str) -> Result<Vec<String>, Stop> {
    let known = |name: &str| match is_native(name) || is_user(name) {
        true => Ok(name.to_string()),
        false => {
            let why = format!("bad property list: invalid property '{name}'");
            Err(Stop::Usage(format!("{why}\n{}", help_of_vdevs())))
        }
    };
    list.split(',').map(known).collect()
}

/// Says what the names are that are no vdevs of the pool.
fn wrong_names(pool: &str, names: &[String], ctx: &Context) -> Outcome {
    let mut text = format!("Expected a list of vdevs in \"{pool}\", but got:\n");
    for name in names {
        text += &format!("\t{name} ({})\n", kind(ctx, pool, name));
    }
    debug_assert!(names.iter().any(|name| kind(ctx, pool, name) != IN_THIS_POOL));
    usage(text)
}

fn print(
    shown: &[Shown],
    properties: Option<&[String]>,
    wanted: &Wanted,
    ctx: &mut Context,
) -> Outcome {
    let text = |v: &PropValue| if wanted.literal { v.exact.clone() } else { v.human.clone() };
    let line = |of: &Shown, (property, value): &(String, PropValue)| Line {
        name: of.name.clone(),
        property: property.clone(),
        value: text(value),
        received: None,
        source: value.source.clone(),
    };
    let lines: Vec<Line> =
        shown.iter().flat_map(|s| s.values.iter().map(move |v| line(s, v))).collect();
    let widest = |f: &dyn Fn(&Line) -> usize| lines.iter().map(f).max().unwrap_or(0);
    let named = properties.unwrap_or_default().iter().map(|p| p.chars().count()).max();
    let layout = Layout {
        fields: wanted.fields.clone(),
        scripted: wanted.scripted,
        property_width: widest(&|l| l.property.chars().count()).max(named.unwrap_or(0)),
        value_width: widest(&|l| l.value.chars().count()),
    };
    let longest = shown.iter().map(|s| s.name.chars().count()).max().unwrap_or(0);
    layout.print(&lines, longest, &mut ctx.out)?;
    Ok(0)
}

fn print_json(
    imported: &Imported,
    shown: &[Shown],
    wanted: &Wanted,
    json: Json,
    ctx: &mut Context,
) -> Outcome {
    let mut entries = Map::new();
    for one in shown {
        let mut properties = Map::new();
        for (name, value) in &one.values {
            properties.insert(name.clone(), json.shown(Some(value.clone()), wanted.literal)?);
        }
        let own = head(json, &one.name, one.one.config(), &one.class, one.one.state());
        let mut typed = Map::new();
        for (key, value) in own {
            let first = key == "name";
            typed.insert(key, value);
            if first {
                typed.insert("type".into(), "VDEV".into());
            }
        }
        typed.insert("properties".into(), properties.into());
        entries.insert(one.name.clone(), Value::Object(typed));
    }
    let (_, pool) = json.pool(imported, false);
    let more = [("pool".to_string(), Value::Object(pool))];
    writeln!(ctx.out, "{}", document_with("zpool get", "vdevs", entries, more)?)?;
    Ok(0)
}

/// The value of a property that a vdev does not have.
pub(super) fn unset() -> PropValue {
    let none = || "-".to_string();
    PropValue { exact: none(), human: none(), source: Source::Default }
}
