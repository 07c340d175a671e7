//! `zpool get`.

use crate::context::Context;
use crate::json::{self, Json, document};
use crate::options::{Spec, parse_with_long};
use crate::pools::Imported;
use crate::zfs::get::{Field, Layout, Line};
use crate::zpool::properties::{column, resolve, visible};
use crate::zpool::select::{IN_THIS_POOL, kind, open, select};
use cenote_command::outcome::{Outcome, fail, usage};
use cenote_dsl::props::is_user;
use cenote_dsl::{PropValue, Source};
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
    let wanted = names.remove(0);
    if let Some(first) = names.first()
        && open(ctx, first).is_err()
    {
        return fail(format!("Cannot get properties of {first}: no such pool available."));
    }
    if names.iter().any(|name| open(ctx, name).is_err()) {
        return vdevs(&names, ctx);
    }
    let properties = if wanted == "all" { None } else { Some(resolve(&wanted)?) };
    let (pools, good) = select(ctx, &names);
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

/// What is said when a pool is followed by something that is not a pool: vdevs have properties,
/// which are not supported yet; the rest is named as what it is.
fn vdevs(names: &[String], ctx: &mut Context) -> Outcome {
    let Some((pool, others)) = names.split_first() else { return Ok(0) };
    let kinds: Vec<&str> = others.iter().map(|name| kind(ctx, pool, name)).collect();
    let whole = matches!(others, [one] if one == "all-vdevs" || one == "root");
    if whole || kinds.iter().all(|k| *k == IN_THIS_POOL) {
        return fail(format!(
            "zpool get: properties of vdevs are not supported yet ('{}')",
            others.join("', '")
        ));
    }
    let mut text = format!("Expected a list of vdevs in \"{pool}\", but got:\n");
    for (name, kind) in others.iter().zip(kinds) {
        text += &format!("\t{name} ({kind})\n");
    }
    usage(text)
}

/// Properties of a pool with their values; those it does not have are left out, except user properties
/// that were asked for.
fn values(imported: &Imported, properties: Option<&[String]>) -> Vec<(String, PropValue)> {
    let pool = imported.pool();
    let names = match properties {
        None => pool.get_all().into_iter().map(|(n, _)| n).filter(|n| n != "name").collect(),
        Some(names) => names.to_vec(),
    };
    let unset = |name: &str| {
        let none = || "-".to_string();
        is_user(name).then(|| PropValue { exact: none(), human: none(), source: Source::Default })
    };
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
