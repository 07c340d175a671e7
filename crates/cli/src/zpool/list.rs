//! `zpool list` (`zpool_do_list`).
//!
//! Options become a `Show`, with the properties that are columns. Then one report is made, or one for each interval. All rows are read
//! before anything is printed, so that columns are as wide as their values. The header is printed above the first report, and with
//! `-v` above each.
//!
//! With `-v` the vdevs of a pool follow its row, in OpenZFS's order with its sections (logs, special, spares). Space is known of
//! top-level vdevs only. With `-j` the same becomes JSON, vdevs within vdevs (`collect_list_stats`).

use crate::context::Context;
use crate::interval::Schedule;
use crate::interval::Stamp;
use crate::json::{self, Json, document_with};
use crate::options::{Spec, interval_and_count, parse_with_long};
use crate::pools::Imported;
use crate::table::{Column, Table};
use crate::vdevs::{Item, items, names_width, style};
use crate::zpool::properties::{column, resolve, visible};
use crate::zpool::select::select;
use crate::zpool::vdev_json::head;
use cenote_command::outcome::{Outcome, Stop, usage};
use cenote_dsl::Source;
use cenote_dsl::human::nicenum;
use cenote_pool::expandable;
use cenote_pool::metaslab::stats::SpaceStats;
use cenote_pool::status::{NameStyle, state_name};
use cenote_pool::vdev_figures::whole_labels;
use cenote_vdev::Vdev;
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::io;

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
    let mut names = parsed.names();
    (schedule.interval, schedule.count) = interval_and_count(&mut names)?;
    if let Some(json) = show.json {
        let stamp = schedule.stamp.take();
        return schedule.run(ctx, |_, ctx| report_json(&names, &show, json, stamp, ctx));
    }
    schedule.run(ctx, |number, ctx| report(&names, &show, number, ctx))
}

fn report(names: &[String], show: &Show, number: u64, ctx: &mut Context) -> Outcome {
    let (pools, good) = select(ctx, names);
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
    names: &[String],
    show: &Show,
    json: Json,
    stamp: Option<Stamp>,
    ctx: &mut Context,
) -> Outcome {
    let (pools, good) = select(ctx, names);
    let mut entries = Map::new();
    for imported in &pools {
        let (key, mut head) = json.pool(imported, true);
        let pool = imported.pool();
        let mut properties = Map::new();
        for property in show.properties.iter().filter(|p| *p != "name") {
            let value = json.shown(imported.property(&pool, property), show.literal)?;
            properties.insert(property.clone(), value);
        }
        head.insert("properties".into(), Value::Object(properties));
        if show.verbose {
            let (items, rows) = (items(imported, &show.style), Rows { imported, show, json });
            let (mut vdevs, mut rest) = (Map::new(), items.as_slice());
            while let Some(item) = rest.first() {
                rest = match item {
                    Item::Section(title) => {
                        let mut section = Map::new();
                        let rest = rows.add_all(rest.get(1..).unwrap_or_default(), &mut section)?;
                        vdevs.insert(section_key(title).into(), section.into());
                        rest
                    }
                    _ => rows.add_all(rest, &mut vdevs)?,
                };
            }
            head.insert("vdevs".into(), Value::Object(vdevs));
        }
        entries.insert(key, Value::Object(head));
    }
    let time = stamp.map(|stamp| stamp.json(json, ctx));
    writeln!(ctx.out, "{}", document_with("zpool list", "pools", entries, time)?)?;
    Ok(i32::from(!good))
}

/// What JSON calls a section of the table.
fn section_key(title: &'static str) -> &'static str {
    match title {
        "cache" => "l2cache",
        "spare" => "spares",
        class => class,
    }
}

/// The vdevs of a pool in JSON (`collect_list_stats`).
struct Rows<'a> {
    imported: &'a Imported,
    show: &'a Show,
    json: Json,
}

impl Rows<'_> {
    /// Adds the vdevs at the head of `items`, up to the next section. Returns what follows.
    fn add_all<'i>(
        &self,
        mut items: &'i [Item],
        into: &mut Map<String, Value>,
    ) -> Result<&'i [Item], Stop> {
        while !matches!(items.first(), None | Some(Item::Section(_))) {
            let (name, row, rest) = self.row(items)?;
            into.extend(name.zip(row));
            items = rest;
        }
        Ok(items)
    }

    /// The first of `items` with all that is below it, and what follows.
    fn row<'i>(&self, items: &'i [Item]) -> Result<Row<'i>, Stop> {
        let Some((first, mut rest)) = items.split_first() else { return Ok((None, None, items)) };
        let Some((name, mut row)) = self.own(first) else { return Ok((None, None, rest)) };
        let figures = Figures::of_item(self.imported, first);
        let mut properties = Map::new();
        for property in self.show.properties.iter().filter(|p| *p != "name") {
            let text = figures.text(property, self.show.literal || self.json.ints);
            properties.insert(property.clone(), self.json.property(&text, &Source::None, None)?);
        }
        row.insert("properties".into(), properties.into());
        let mut below = Map::new();
        while rest.first().and_then(Item::depth) > first.depth() {
            let (name, row, after) = self.row(rest)?;
            below.extend(name.zip(row));
            rest = after;
        }
        if !below.is_empty() {
            row.insert("vdevs".into(), below.into());
        }
        Ok((Some(name), Some(row.into()), rest))
    }

    /// The name and the head of a vdev.
    fn own(&self, item: &Item) -> Option<(String, Map<String, Value>)> {
        Some(match item {
            Item::Section(_) => return None,
            Item::Vdev { name, vdev, class, .. } => {
                (name.clone(), head(self.json, name, vdev.config(), class, Some(vdev.state())))
            }
            Item::Aux { name, config, vdev_state, space, .. } => {
                let class = if space.is_some() { "l2cache" } else { "spare" };
                (name.clone(), head(self.json, name, config, class, *vdev_state))
            }
        })
    }
}

/// A vdev's name, what is known of it, and the items behind it.
type Row<'i> = (Option<String>, Option<Value>, &'i [Item]);

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
        Item::Vdev { name, depth, .. } => (name, *depth, Figures::of_item(imported, item)),
        Item::Aux { name, .. } => (name, 2, Figures::of_item(imported, item)),
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

/// Figures of a vdev; none of a section. Space is known of top-level vdevs only.
#[derive(Default)]
struct Figures {
    size: Option<u64>,
    space: Option<SpaceStats>,
    expandable: u64,
    health: &'static str,
}

impl Figures {
    fn of_item(imported: &Imported, item: &Item) -> Figures {
        match item {
            Item::Section(_) => Figures::default(),
            Item::Vdev { vdev, top, .. } => Figures::of(imported, vdev, *top),
            Item::Aux { state, size, space, .. } => {
                let size = size.map(whole_labels);
                Figures { size, space: *space, expandable: 0, health: state }
            }
        }
    }

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
