//! `zpool get` (`zpool_do_get`).

mod vdevs;

pub(super) use vdevs::ROOT;

use crate::context::Context;
use crate::json::{self, Json, document};
use crate::options::{Spec, parse_with_long};
use crate::pools::Imported;
use crate::zfs::get::{Field, Layout, Line};
use crate::zpool::properties::{column, resolve, visible};
use crate::zpool::select::{open, select};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_dsl::PropValue;
use cenote_dsl::props::is_user;
use serde_json::{Map, Value};
use std::ffi::OsString;

const SPEC: Spec = Spec { short: "Hjpo:", refused: "", refused_long: &[] };

/// Runs `zpool get`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse_with_long(args, SPEC, json::LONG)?;
    let (mut scripted, mut literal, mut fields) = (false, false, Field::DEFAULT.to_vec());
    for opt in &parsed.options {
        match opt.letter {
            'H' => scripted = true,
            'p' => literal = true,
            'o' => fields = Field::parse(&opt.text(), Field::DEFAULT)?,
            _ => {}
        }
    }
    let letters: String = parsed.options.iter().map(|o| o.letter).collect();
    let json = Json::of(&letters)?;
    let mut names = parsed.names();
    if names.is_empty() {
        return usage("missing property argument");
    }
    let wanted = Wanted { properties: names.remove(0), fields, scripted, literal, json };
    if let Some(first) = names.first()
        && open(ctx, first).is_err()
    {
        return fail(format!("Cannot get properties of {first}: no such pool available."));
    }
    if let Some((first, rest)) = names.split_first()
        && rest.iter().any(|name| open(ctx, name).is_err())
    {
        let imported = open(ctx, first).map_err(Stop::Fail)?;
        return vdevs::run(&imported, rest, &wanted, ctx);
    }
    of_pools(&names, wanted, ctx)
}

/// What was asked for, and how to show it.
struct Wanted {
    properties: String,
    fields: Vec<Field>,
    scripted: bool,
    literal: bool,
    json: Option<Json>,
}

/// Shows properties of pools.
fn of_pools(names: &[String], wanted: Wanted, ctx: &mut Context) -> Outcome {
    let Wanted { properties, fields, scripted, literal, json } = wanted;
    let properties = if properties == "all" { None } else { Some(resolve(&properties)?) };
    let (pools, good) = select(ctx, names);
    let mut lines = Vec::new();
    if let Some(json) = json {
        let mut entries = Map::new();
        for imported in &pools {
            let (key, mut head) = json.pool(imported, true);
            let mut shown = Map::new();
            for (property, value) in values(imported, properties.as_deref()) {
                shown.insert(property, json.shown(Some(value), literal)?);
            }
            head.insert("properties".into(), Value::Object(shown));
            entries.insert(key, Value::Object(head));
        }
        writeln!(ctx.out, "{}", document("zpool get", "pools", entries)?)?;
        return Ok(i32::from(!good));
    }
    for imported in &pools {
        for (property, value) in values(imported, properties.as_deref()) {
            let name = imported.name().to_string();
            let text = if literal { value.exact } else { value.human };
            lines.push(Line { name, property, value: text, received: None, source: value.source });
        }
    }
    let layout = layout(properties.as_deref(), &lines, fields, scripted, literal);
    let longest = pools.iter().map(|p| p.name().chars().count()).max().unwrap_or(0);
    layout.print(&lines, longest, &mut ctx.out)?;
    Ok(i32::from(!good))
}

/// Properties of a pool with their values; those it does not have are left out, except user properties
/// that were asked for.
fn values(imported: &Imported, properties: Option<&[String]>) -> Vec<(String, PropValue)> {
    let pool = imported.pool();
    let names = match properties {
        None => pool.get_all().into_iter().map(|(n, _)| n).filter(|n| n != "name").collect(),
        Some(names) => names.to_vec(),
    };
    let unset = |name: &str| is_user(name).then(vdevs::unset);
    let value =
        |n: String| imported.property(&pool, &n).or_else(|| unset(&n)).map(|value| (n, value));
    names.into_iter().filter_map(value).collect()
}

/// The property and value columns are as wide as any property asked for needs.
fn layout<'a>(
    properties: Option<&'a [String]>,
    lines: &'a [Line],
    fields: Vec<Field>,
    scripted: bool,
    literal: bool,
) -> Layout {
    let mut asked: Vec<&'a str> = lines.iter().map(|l| l.property.as_str()).collect();
    match properties {
        Some(names) => asked.extend(names.iter().map(String::as_str)),
        None => asked.extend(visible().map(|name| -> &'a str { name })),
    }
    let value = |line: &Line| match literal || column(&line.property).flexible {
        true => line.value.chars().count(),
        false => 0,
    };
    let widest = asked.iter().map(|p| column(p).width).chain(lines.iter().map(value));
    Layout {
        fields,
        scripted,
        property_width: asked.iter().map(|p| p.chars().count()).max().unwrap_or(0),
        value_width: widest.max().unwrap_or(0),
    }
}
