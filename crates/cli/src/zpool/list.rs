//! `zpool list`.

use crate::context::Context;
use crate::interval::Schedule;
use crate::interval::Stamp;
use crate::json::{self, Json, document};
use crate::options::{Spec, interval_and_count, parse_with_long};
use crate::pools::Imported;
use crate::table::{Column, Table};
use crate::vdevs::{Item, items, names_width, style};
use crate::zpool::properties::{column, resolve, visible};
use crate::zpool::select::select;
use cenote_command::outcome::{Outcome, usage};
use cenote_dsl::human::nicenum;
use cenote_format::label::LABEL_SIZE;
use cenote_pool::expandable;
use cenote_pool::metaslab::stats::SpaceStats;
use cenote_pool::status::{NameStyle, state_name};
use cenote_vdev::Vdev;
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::io;
use std::sync::Arc;

const DEFAULT: &str = "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,\
                       dedupratio,health,altroot";
const SPEC: Spec = Spec { short: "gHjLo:pPT:v", refused: "", refused_long: &[] };
/// Least width of the names when vdevs are listed.
const NAMES: usize = 9;

/// What to show.
struct Show {
    properties: Vec<String>,
    verbose: bool,
    scripted: bool,
    literal: bool,
    style: NameStyle,
    json: Option<Json>,
}

/// Runs `zpool list`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse_with_long(args, SPEC, json::LONG)?;
    let letters: String = parsed.options.iter().map(|o| o.letter).collect();
    let mut schedule = Schedule::default();
    let mut fields = DEFAULT.to_string();
    for opt in &parsed.options {
        match opt.letter {
            'o' => fields = opt.text(),
            'T' => {
                schedule.stamp = Some(Stamp::from_arg(&opt.text()).map_or_else(|| usage(""), Ok)?);
            }
            _ => {}
        }
    }
    let show = Show {
        properties: match fields.as_str() {
            "all" => std::iter::once("name").chain(visible()).map(String::from).collect(),
            fields => resolve(fields)?,
        },
        verbose: letters.contains('v'),
        scripted: letters.contains('H'),
        literal: letters.contains('p'),
        style: style(&letters, ctx),
        json: Json::of(&letters)?,
    };
    if show.json.is_some() && show.verbose {
        return usage("unsupported option: -v with -j");
    }
    let mut names = parsed.names();
    (schedule.interval, schedule.count) = interval_and_count(&mut names)?;
    schedule.run(ctx, |number, ctx| report(&names, &show, number, ctx))
}

fn report(names: &[String], show: &Show, number: u64, ctx: &mut Context) -> Outcome {
    let (pools, good) = select(ctx, names);
    if let Some(json) = show.json {
        return report_json(&pools, show, json, good, ctx);
    }
    if pools.is_empty() {
        if good && !show.scripted {
            writeln!(ctx.out, "no pools available")?;
        }
        return Ok(i32::from(!good));
    }
    let mut columns: Vec<Column> = show.properties.iter().map(|p| column(p)).collect();
    let mut rows = Vec::new();
    for imported in &pools {
        let (mut row, pool) = (Vec::new(), imported.pool());
        for (property, column) in show.properties.iter().zip(&mut columns) {
            let value = imported.property(&pool, property);
            let text = value.map_or("-".into(), |v| if show.literal { v.exact } else { v.human });
            column.fit(&text, show.literal);
            row.push(text);
        }
        rows.push(row);
    }
    let below: Vec<Vec<Item>> = match show.verbose {
        true => pools.iter().map(|p| items(p, &show.style)).collect(),
        false => Vec::new(),
    };
    if show.verbose
        && let Some(first) = columns.first_mut()
    {
        let widest = pools.iter().zip(&below).map(|(p, items)| names_width(p, items)).max();
        first.width = widest.unwrap_or(0).max(NAMES);
    }
    let table = Table { columns, scripted: show.scripted };
    if number == 0 || show.verbose {
        table.header(&mut ctx.out)?;
    }
    for (at, (imported, row)) in pools.iter().zip(&rows).enumerate() {
        table.row(&mut ctx.out, row)?;
        for item in below.get(at).map(Vec::as_slice).unwrap_or_default() {
            print_item(imported, item, show, &table, ctx)?;
        }
    }
    Ok(i32::from(!good))
}

fn report_json(
    pools: &[Arc<Imported>],
    show: &Show,
    json: Json,
    good: bool,
    ctx: &mut Context,
) -> Outcome {
    let mut entries = Map::new();
    for imported in pools {
        let (key, mut head) = json.pool(imported, true);
        let pool = imported.pool();
        let mut properties = Map::new();
        for property in show.properties.iter().filter(|p| *p != "name") {
            let value = json.shown(imported.property(&pool, property), show.literal)?;
            properties.insert(property.clone(), value);
        }
        head.insert("properties".into(), Value::Object(properties));
        entries.insert(key, Value::Object(head));
    }
    writeln!(ctx.out, "{}", document("zpool list", "pools", entries)?)?;
    Ok(i32::from(!good))
}

/// A line of `-v`.
fn print_item(
    imported: &Imported,
    item: &Item,
    show: &Show,
    table: &Table,
    ctx: &mut Context,
) -> io::Result<()> {
    let (name, depth, figures) = match item {
        Item::Section(title) => {
            // A section's line has a dash in every column, in scripted mode too.
            let row: Vec<&str> = std::iter::once(*title)
                .chain(std::iter::repeat("-"))
                .take(table.columns.len())
                .collect();
            return section_line(&row, table, ctx);
        }
        Item::Vdev { name, depth, vdev, top } => (name, *depth, Figures::of(imported, vdev, *top)),
        Item::Aux { name, state, size, space, .. } => {
            let size = size.map(whole_labels);
            (name, 2, Figures { size, space: *space, expandable: 0, health: state })
        }
    };
    let names = table.columns.first().map_or(NAMES, |c| c.width);
    match show.scripted {
        true => write!(ctx.out, "\t{name}")?,
        false => {
            let width = names.saturating_sub(depth);
            write!(ctx.out, "{:depth$}{name:<width$}", "")?;
        }
    }
    for property in show.properties.iter().filter(|p| *p != "name") {
        let text = figures.text(property, show.literal);
        // Each value stands in its column's own width, whatever the pools' values need.
        let width = column(property).width;
        match show.scripted {
            true => write!(ctx.out, "\t{text}")?,
            false => write!(ctx.out, "  {text:>width$}")?,
        }
    }
    writeln!(ctx.out)
}

fn section_line(row: &[&str], table: &Table, ctx: &mut Context) -> io::Result<()> {
    let last = row.len().saturating_sub(1);
    for (i, (text, column)) in row.iter().zip(&table.columns).enumerate() {
        let width = column.width;
        match i {
            0 if i == last => write!(ctx.out, "{text}")?,
            0 => write!(ctx.out, "{text:<width$}")?,
            _ => write!(ctx.out, "  {text:>width$}")?,
        }
    }
    writeln!(ctx.out)
}

/// A device's size is rounded down to whole labels.
fn whole_labels(size: u64) -> u64 {
    size / LABEL_SIZE * LABEL_SIZE
}

/// Figures of a vdev. Space is known of top-level vdevs only.
struct Figures {
    size: Option<u64>,
    space: Option<SpaceStats>,
    expandable: u64,
    health: &'static str,
}

impl Figures {
    fn of(imported: &Imported, vdev: &Vdev, top: bool) -> Figures {
        let space = match top {
            true => imported.pool().space().and_then(|s| s.vdev(vdev.id())),
            false => None,
        };
        let device = vdev.device().map(|d| whole_labels(d.size()));
        let size = device.or(space.map(|s| s.size));
        let expandable = if top { expandable(vdev) } else { 0 };
        Figures { size, space, expandable, health: state_name(vdev.state()) }
    }

    fn text(&self, property: &str, literal: bool) -> String {
        let bytes = |n: u64| if literal { n.to_string() } else { nicenum(n) };
        let of_space = |f: &dyn Fn(&SpaceStats) -> String| self.space.as_ref().map(f);
        let text = match property {
            "size" => self.size.filter(|n| *n != 0).map(bytes),
            "expandsize" => Some(self.expandable).filter(|n| *n != 0).map(bytes),
            "allocated" => of_space(&|s| bytes(s.alloc)),
            "free" => of_space(&|s| bytes(s.free())),
            "fragmentation" => self.space.and_then(|s| s.fragmentation).map(|f| match literal {
                true => f.to_string(),
                false => format!("{f}%"),
            }),
            "capacity" => of_space(&|s| capacity(s, literal)),
            "health" => Some(self.health.to_string()),
            _ => None,
        };
        text.unwrap_or_else(|| "-".into())
    }
}

/// In percent, with as many decimals as fit.
fn capacity(s: &SpaceStats, literal: bool) -> String {
    let hundredths = u128::from(s.alloc) * 10_000 / u128::from(s.size.max(1));
    let percent = hundredths as f64 / 100.0;
    match hundredths {
        n if literal => (n / 100).to_string(),
        n if n < 1000 => format!("{percent:.2}%"),
        n if n < 10_000 => format!("{percent:.1}%"),
        _ => format!("{percent:3.0}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_of_vdevs_has_decimals() {
        let s = |size, alloc| SpaceStats { size, alloc, fragmentation: None };
        assert_eq!(capacity(&s(1000, 34), false), "3.40%");
        assert_eq!(capacity(&s(1000, 121), false), "12.1%");
        assert_eq!(capacity(&s(1000, 1000), false), "100%");
        assert_eq!(capacity(&s(1000, 121), true), "12");
        assert_eq!(capacity(&s(0, 0), false), "0.00%");
    }
}
