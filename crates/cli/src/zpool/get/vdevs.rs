//! `zpool get PROPERTY POOL VDEV...`: properties of vdevs (`get_callback_vdev`).
//!
//! Names after the pool's name are vdevs, or `root`, or `all-vdevs` (`vdev_expand_proplist`). The values are those
//! of [`VdevProps`]; here they are chosen, put into columns or into JSON. All vdevs come with the root first, and each before
//! those below it (`for_each_vdev`).
//!
//! A name that is no vdev of the pool is an error that says of each name what it is: a pool, a vdev of this
//! pool or of another one, or unknown.

use super::Wanted;
use crate::context::Context;
use crate::json::{Json, document_with};
use crate::pools::Imported;
use crate::zfs::get::{Layout, Line};
use crate::zpool::properties::help_of_vdevs;
use crate::zpool::select::{IN_THIS_POOL, find_vdev, kind};
use crate::zpool::vdev_json::{class_of, head};
use cenote_command::outcome::{Outcome, Stop, usage};
use cenote_dsl::props::is_user;
use cenote_dsl::{PropValue, Source};
use cenote_pool::Pool;
use cenote_pool::status::{NameStyle, vdev_name};
use cenote_pool::vdev_props::{VdevProps, is_native};
use cenote_vdev::Vdev;
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
    let vdevs = pool.store().vdevs();
    let root = vdevs.root();
    let vdevs: Vec<(String, Arc<Vdev>)> = match names {
        [one] if one == "root" || one == ROOT => vec![(ROOT.into(), Arc::clone(root))],
        [one] if one == "all-vdevs" => all(root),
        names => {
            let found = names.iter().map(|name| Some((name.clone(), find_vdev(imported, name)?)));
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
        .map(|(name, vdev)| Shown::of(&pool, name, vdev, properties.as_deref()))
        .collect();
    match wanted.json {
        Some(json) => print_json(imported, &shown, wanted, json, ctx),
        None => print(&shown, properties.as_deref(), wanted, ctx),
    }
}

/// A vdev with the properties that were asked for.
struct Shown {
    name: String,
    vdev: Arc<Vdev>,
    class: String,
    values: Vec<(String, PropValue)>,
}

impl Shown {
    fn of(pool: &Pool, name: &str, vdev: &Arc<Vdev>, properties: Option<&[String]>) -> Shown {
        let props = VdevProps::new(pool, vdev);
        let values = match properties {
            None => props.all(),
            Some(list) => list.iter().filter_map(|p| Some((p.clone(), props.get(p)?))).collect(),
        };
        let vdevs = pool.store().vdevs();
        let tops = vdevs.root().children().iter();
        let top = tops.clone().find(|top| holds(top, vdev.guid()));
        let class = top.map_or("normal", |top| class_of(top.config())).to_string();
        Shown { name: name.into(), vdev: Arc::clone(vdev), class, values }
    }
}

fn holds(vdev: &Vdev, guid: u64) -> bool {
    vdev.guid() == guid || vdev.children().iter().any(|child| holds(child, guid))
}

/// All vdevs, each before those below it; but for what removed vdevs and logs have left.
fn all(root: &Arc<Vdev>) -> Vec<(String, Arc<Vdev>)> {
    fn add(vdev: &Arc<Vdev>, to: &mut Vec<(String, Arc<Vdev>)>) {
        let style = NameStyle::default();
        let name = match vdev.kind() {
            "root" => ROOT.into(),
            _ => vdev_name(vdev.config(), &style),
        };
        if !["hole", "indirect"].contains(&vdev.kind()) {
            to.push((name, Arc::clone(vdev)));
        }
        vdev.children().iter().for_each(|child| add(child, to));
    }
    let mut list = Vec::new();
    add(root, &mut list);
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
        let own = head(json, &one.name, one.vdev.config(), &one.class, Some(one.vdev.state()));
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
