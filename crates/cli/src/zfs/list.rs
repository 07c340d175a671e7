//! `zfs list` (`zfs_do_list`).

use crate::colour::{self, Colour};
use crate::context::Context;
use crate::json::{self, Json, document};
use crate::options::{Spec, parse_with_long};
use crate::table::{Column, Table};
use crate::zfs::properties::{check_room, column, resolve, sort_key, visible};
use crate::zfs::select::{Kinds, Node, Selection, Unread, depth, kinds, select};
use cenote_command::outcome::{Outcome, Stop};
use cenote_dsl::props::is_user;
use serde_json::{Map, Value};
use std::ffi::OsString;

const DEFAULT: &str = "name,used,available,referenced,mountpoint";
const SPEC: Spec = Spec { short: "HS:d:jo:prs:t:", refused: "", refused_long: &[] };

/// Runs `zfs list`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse_with_long(args, SPEC, json::LONG_DATASETS)?;
    let mut what = Selection { by_listsnapshots: true, ..Selection::of(Kinds::DATASET) };
    let (mut scripted, mut literal, mut fields) = (false, false, DEFAULT.to_string());
    for opt in &parsed.options {
        match opt.letter {
            'H' => scripted = true,
            'p' => literal = true,
            'r' => what.recurse = true,
            'd' => (what.depth, what.recurse) = (Some(depth(&opt.text())?), true),
            'o' => fields = opt.text(),
            's' | 'S' => what.sort.push((sort_key(&opt.text())?, opt.letter == 'S')),
            't' => {
                what.kinds = kinds(&opt.text())?;
                what.by_listsnapshots = false;
            }
            _ => {}
        }
    }
    let letters: String = parsed.options.iter().map(|o| o.letter).collect();
    let json = Json::of(&letters)?;
    let names = parsed.names();
    if fields == "space" && what.by_listsnapshots {
        what.kinds = what.kinds.without(Kinds::SNAPSHOT);
        what.by_listsnapshots = false;
    }
    let only_parts = what.kinds == Kinds::SNAPSHOT || what.kinds == Kinds::BOOKMARK;
    if only_parts && !names.is_empty() && !what.recurse {
        (what.recurse, what.depth) = (true, Some(1));
    }
    let mut properties = property_list(&fields)?;
    let (nodes, good) = select(ctx, &names, &what);
    if fields == "all" {
        properties.extend(user_properties(&nodes, ctx));
    }
    check_room(ctx, nodes.len(), properties.len())?;
    if let Some(json) = json {
        let good = print_json(&nodes, &properties, json, literal, ctx)? && good;
        return Ok(i32::from(!good));
    }
    let good = print(&nodes, &properties, scripted, literal, ctx)? && good;
    if nodes.is_empty() && good && !scripted {
        ctx.complain("no datasets available");
    }
    Ok(i32::from(!good))
}

/// The properties that `-o` names, by their own names.
fn property_list(fields: &str) -> Result<Vec<String>, Stop> {
    if fields == "all" {
        let native = visible().map(|p| p.name.to_string());
        return Ok(std::iter::once("name".to_string()).chain(native).collect());
    }
    resolve(fields)
}

/// User properties of any of the datasets, in order of appearance.
fn user_properties(nodes: &[Node], ctx: &mut Context) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for node in nodes {
        match node.values() {
            Ok(all) => {
                for (name, _) in all {
                    if is_user(&name) && !found.contains(&name) {
                        found.push(name);
                    }
                }
            }
            Err(Unread::Gone) => {}
            Err(Unread::Error(e)) => ctx.complain(format_args!("'{}': {e}", node.dataset.name)),
        }
    }
    found
}

fn print_json(
    nodes: &[Node],
    properties: &[String],
    json: Json,
    literal: bool,
    ctx: &mut Context,
) -> Result<bool, Stop> {
    let mut good = true;
    let mut entries = Map::new();
    'nodes: for node in nodes {
        let mut shown = Map::new();
        for property in properties.iter().filter(|p| *p != "name") {
            let Some((value, read)) = node.value_or_complain(property, ctx) else {
                continue 'nodes;
            };
            good &= read;
            shown.insert(property.clone(), json.shown(value, literal)?);
        }
        let mut head = json.dataset(node);
        head.insert("properties".into(), Value::Object(shown));
        entries.insert(node.dataset.name.clone(), Value::Object(head));
    }
    writeln!(ctx.out, "{}", document("zfs list", "datasets", entries)?)?;
    Ok(good)
}

fn print(
    nodes: &[Node],
    properties: &[String],
    scripted: bool,
    literal: bool,
    ctx: &mut Context,
) -> Result<bool, Stop> {
    let mut columns: Vec<Column> = properties.iter().map(|p| column(p)).collect();
    let mut good = true;
    let mut rows = Vec::with_capacity(nodes.len());
    let paints = colour::wanted(ctx);
    'nodes: for node in nodes {
        if ctx.cancelled() {
            break;
        }
        let mut row = Vec::with_capacity(columns.len());
        let (mut used, mut available) = (None, None);
        for (at, property) in properties.iter().enumerate() {
            let Some((value, read)) = node.value_or_complain(property, ctx) else {
                continue 'nodes;
            };
            good &= read;
            let bytes = value.as_ref().and_then(|v| v.exact.parse::<u64>().ok());
            match property.as_str() {
                "used" => used = bytes,
                "available" => available = bytes.map(|bytes| (at, bytes)),
                _ => {}
            }
            row.push(value.map_or("-".into(), |v| if literal { v.exact } else { v.human }));
        }
        columns.iter_mut().zip(&row).for_each(|(column, text)| column.fit(text, literal));
        let colour = used
            .zip(available)
            .and_then(|(used, (at, available))| Some((at, scarce(used, available)?)));
        rows.push((row, colour.filter(|_| paints)));
    }
    let table = Table { columns, scripted };
    if !rows.is_empty() {
        table.header(&mut ctx.out)?;
    }
    for (row, colour) in &rows {
        match colour {
            None => table.row(&mut ctx.out, row)?,
            Some(colour) => table.painted(row, *colour).write(paints, ctx)?,
        }
    }
    Ok(good)
}

/// The colour of what is available where that is little (`zfs_list_avail_color`).
fn scarce(used: u64, available: u64) -> Option<Colour> {
    let all = u128::from(used) + u128::from(available);
    match u128::from(available) * 100 / all.max(1) {
        21.. => None,
        11.. => Some(Colour::Yellow),
        _ => Some(Colour::Red),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_space_has_a_colour() {
        let found = [(79, 21), (80, 20), (89, 11), (90, 10), (0, 0)].map(|(u, a)| scarce(u, a));
        let (yellow, red) = (Some(Colour::Yellow), Some(Colour::Red));
        assert_eq!(found, [None, yellow, yellow, red, red]);
    }
}
