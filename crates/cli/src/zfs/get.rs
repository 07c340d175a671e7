//! `zfs get`, and the layout that `zpool get` shares (`zfs_do_get`).
//!
//! The datasets are selected first, and then the properties that were asked for are read of each. A dataset that was destroyed
//! meanwhile is left out. Lines are written when all are read, for a column is as wide as its widest value.

use crate::context::Context;
use crate::json::{self, Json, document};
use crate::options::{Spec, parse_with_long};
use crate::zfs::properties::{check_room, column, resolve, visible};
use crate::zfs::select::{Kinds, Node, Selection, Unread, depth, in_time_of, kinds, select};
use cenote_command::outcome::{Outcome, Stop, usage};
use cenote_dsl::props::is_user;
use cenote_dsl::{PropValue, Source};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, Write};

/// A column of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Name of the dataset or pool.
    Name,
    /// Name of the property.
    Property,
    /// Its value.
    Value,
    /// The value that was received, hidden by a local one or not.
    Received,
    /// Where the value comes from.
    Source,
}

impl Field {
    /// The columns without `-o`.
    pub const DEFAULT: &[Field] = &[Field::Name, Field::Property, Field::Value, Field::Source];

    fn word(self) -> &'static str {
        match self {
            Field::Name => "name",
            Field::Property => "property",
            Field::Value => "value",
            Field::Received => "received",
            Field::Source => "source",
        }
    }

    /// The argument of `-o`; `known` are the columns that the command has.
    pub fn parse(list: &str, known: &[Field]) -> Result<Vec<Field>, Stop> {
        let mut fields = Vec::new();
        for word in list.split(',') {
            if word == "all" {
                if !fields.is_empty() {
                    return usage("\"all\" conflicts with specific fields given to -o option");
                }
                fields = known.to_vec();
                continue;
            }
            if fields.len() >= known.len() {
                return usage("too many fields given to -o option");
            }
            match known.iter().find(|f| f.word() == word) {
                Some(field) => fields.push(*field),
                None => return usage(format!("invalid column name '{word}'")),
            }
        }
        Ok(fields)
    }
}

/// One line of output.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name of the dataset or pool.
    pub name: String,
    /// Name of the property.
    pub property: String,
    /// Value as shown.
    pub value: String,
    /// Received value as shown.
    pub received: Option<String>,
    /// Where the value comes from.
    pub source: Source,
}

/// How lines are shown.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Columns in order.
    pub fields: Vec<Field>,
    /// Tabs, no header.
    pub scripted: bool,
    /// Least width of the property column.
    pub property_width: usize,
    /// Least width of the value column.
    pub value_width: usize,
}

impl Layout {
    /// Prints lines under a header (`zprop_print_one_property`). The source column is as wide as the longest inheritance could
    /// be, as OpenZFS has it.
    pub fn print(&self, lines: &[Line], names: usize, out: &mut dyn Write) -> io::Result<()> {
        let widest = |f: &dyn Fn(&Line) -> usize| lines.iter().map(f).max().unwrap_or(0);
        let name = names.max(4);
        let width = |field: Field| match field {
            Field::Name => name,
            Field::Property => self.property_width.max("PROPERTY".len()),
            Field::Value => self.value_width.max("VALUE".len()),
            Field::Received => widest(&|l| l.received.as_deref().unwrap_or("-").chars().count())
                .max("RECEIVED".len()),
            Field::Source if name > 4 => name + "inherited from".len(),
            Field::Source => "SOURCE".len(),
        };
        if lines.is_empty() {
            return Ok(());
        }
        if !self.scripted {
            let head = self.fields.iter().map(|f| (f.word().to_ascii_uppercase(), width(*f)));
            print_line(out, head, false)?;
        }
        for line in lines {
            let cells = self.fields.iter().map(|f| {
                let text = match f {
                    Field::Name => line.name.clone(),
                    Field::Property => line.property.clone(),
                    Field::Value => line.value.clone(),
                    Field::Received => line.received.clone().unwrap_or_else(|| "-".into()),
                    Field::Source => line.source.to_string(),
                };
                (text, width(*f))
            });
            print_line(out, cells, self.scripted)?;
        }
        Ok(())
    }
}

fn print_line(
    out: &mut dyn Write,
    cells: impl Iterator<Item = (String, usize)>,
    scripted: bool,
) -> io::Result<()> {
    let mut cells = cells.peekable();
    while let Some((text, width)) = cells.next() {
        match (cells.peek().is_some(), scripted) {
            (false, _) => write!(out, "{text}")?,
            (true, true) => write!(out, "{text}\t")?,
            (true, false) => write!(out, "{text:<width$}  ")?,
        }
    }
    writeln!(out)
}

/// A set of sources, for `-s`.
#[derive(Clone, Debug)]
struct Sources(Option<Vec<String>>);

impl Sources {
    fn parse(list: &str) -> Result<Sources, Stop> {
        const WORDS: &[&str] = &["local", "default", "inherited", "received", "temporary", "none"];
        let words: Vec<String> = list.split(',').map(String::from).collect();
        match words.iter().find(|w| !WORDS.contains(&w.as_str())) {
            Some(w) => usage(format!("invalid source '{w}'")),
            None => Ok(Sources(Some(words))),
        }
    }

    fn has(&self, source: &Source) -> bool {
        let word = match source {
            Source::None => "none",
            Source::Default => "default",
            Source::Local => "local",
            Source::Inherited(_) => "inherited",
            Source::Received => "received",
            Source::Temporary => "temporary",
        };
        self.0.as_ref().is_none_or(|words| words.iter().any(|w| w == word))
    }
}

const SPEC: Spec = Spec { short: "d:o:s:rt:Hjp", refused: "", refused_long: &[] };
const FIELDS: &[Field] =
    &[Field::Name, Field::Property, Field::Value, Field::Received, Field::Source];

/// Runs `zfs get`.
pub fn run(args: &[OsString], ctx: &mut Context) -> Outcome {
    let parsed = parse_with_long(args, SPEC, json::LONG_DATASETS)?;
    let mut what = Selection::of(Kinds::ALL);
    let mut sources = Sources(None);
    let (mut scripted, mut literal, mut fields) = (false, false, Field::DEFAULT.to_vec());
    for opt in &parsed.options {
        match opt.letter {
            'H' => scripted = true,
            'p' => literal = true,
            'r' => what.recurse = true,
            'd' => (what.depth, what.recurse) = (Some(depth(&opt.text())?), true),
            'o' => fields = Field::parse(&opt.text(), FIELDS)?,
            's' => sources = Sources::parse(&opt.text())?,
            't' => what.kinds = kinds(&opt.text())?,
            _ => {}
        }
    }
    let letters: String = parsed.options.iter().map(|o| o.letter).collect();
    let json = Json::of(&letters)?;
    literal |= json.is_some_and(|json| json.ints);
    let mut names = parsed.names();
    if names.is_empty() {
        return usage("missing property argument");
    }
    let wanted = names.remove(0);
    let only_parts = what.kinds == Kinds::SNAPSHOT || what.kinds == Kinds::BOOKMARK;
    if only_parts && !names.is_empty() && !what.recurse {
        (what.recurse, what.depth) = (true, Some(1));
    }
    let properties = if wanted == "all" { None } else { Some(resolve(&wanted)?) };
    let (mut nodes, mut good) = select(ctx, &names, &what);
    let shown = properties.as_ref().map_or_else(|| visible().count(), Vec::len);
    check_room(ctx, nodes.len(), shown)?;
    let received = fields.contains(&Field::Received);
    let mut lines = Vec::new();
    nodes.retain(|node| {
        if ctx.cancelled() {
            return false;
        }
        let values = match &properties {
            None => node.values(),
            Some(properties) => named_values(node, properties, ctx, &mut good),
        };
        match values {
            Ok(values) => {
                let shown = |(p, v): (String, PropValue)| {
                    let v = in_time_of(&ctx.caller, &p, v);
                    line(node, p, v, literal, received)
                };
                lines.extend(values.into_iter().map(shown));
            }
            Err(Unread::Gone) => return false,
            Err(Unread::Error(e)) => {
                ctx.complain(format_args!("cannot get properties of '{}': {e}", node.dataset.name));
                good = false;
            }
        }
        true
    });
    if let Some(json) = json {
        lines.retain(|l| sources.has(&l.source));
        print_json(&nodes, &lines, json, ctx)?;
        return Ok(i32::from(!good));
    }
    let mut layout = Layout { fields, scripted, property_width: 0, value_width: 0 };
    measure(&mut layout, properties.as_deref(), &lines, literal);
    if properties.is_none() {
        order_user_properties(&mut lines, &nodes);
    }
    lines.retain(|l| sources.has(&l.source));
    let longest = nodes.iter().map(|n| n.dataset.name.chars().count()).max().unwrap_or(0);
    layout.print(&lines, longest, &mut ctx.out)?;
    Ok(i32::from(!good))
}

/// The properties of each dataset that has any to show.
fn print_json(nodes: &[Node], lines: &[Line], json: Json, ctx: &mut Context) -> Result<(), Stop> {
    let mut shown: HashMap<&str, Map<String, Value>> = HashMap::new();
    for line in lines {
        let value = json.property(&line.value, &line.source, line.received.as_deref())?;
        shown.entry(&line.name).or_default().insert(line.property.clone(), value);
    }
    let mut entries = Map::new();
    for node in nodes {
        let Some(properties) = shown.remove(node.dataset.name.as_str()) else { continue };
        let mut head = json.dataset(node);
        head.insert("properties".into(), Value::Object(properties));
        entries.insert(node.dataset.name.clone(), Value::Object(head));
    }
    Ok(writeln!(ctx.out, "{}", document("zfs get", "datasets", entries)?)?)
}

type Values = Vec<(String, PropValue)>;

fn named_values(
    node: &Node,
    properties: &[String],
    ctx: &mut Context,
    good: &mut bool,
) -> Result<Values, Unread> {
    let value = |property: &String| {
        let (value, read) = node.value_or_complain(property, ctx).ok_or(Unread::Gone)?;
        *good &= read;
        let none = || PropValue { exact: "-".into(), human: "-".into(), source: Source::None };
        Ok::<_, Unread>((property.clone(), value.unwrap_or_else(none)))
    };
    properties.iter().map(value).collect()
}

fn line(node: &Node, property: String, v: PropValue, literal: bool, received: bool) -> Line {
    let text = |v: PropValue| if literal { v.exact } else { v.human };
    let received = match received {
        true => node.ask(|dsl, dataset| dsl.received(dataset, &property)).ok().flatten(),
        false => None,
    };
    let (source, received) = (v.source.clone(), received.map(text));
    Line { name: node.dataset.name.clone(), property, value: text(v), received, source }
}

/// Widths of the property and value columns. Every property that was asked for counts, shown or not.
fn measure(layout: &mut Layout, properties: Option<&[String]>, lines: &[Line], literal: bool) {
    let asked: Vec<&str> = match properties {
        Some(names) => names.iter().map(String::as_str).collect(),
        None => {
            let users = lines.iter().map(|l| l.property.as_str()).filter(|p| is_user(p));
            visible().map(|p| p.name).chain(users).collect()
        }
    };
    layout.property_width = asked.iter().map(|p| p.chars().count()).max().unwrap_or(0);
    layout.value_width = asked.iter().map(|p| column(p).width).max().unwrap_or(0);
    for line in lines {
        if literal || column(&line.property).flexible {
            layout.value_width = layout.value_width.max(line.value.chars().count());
        }
    }
}

/// With `all`, user properties follow the native ones in the order in which the datasets brought
/// them up.
fn order_user_properties(lines: &mut [Line], nodes: &[Node]) {
    let mut order: Vec<String> = Vec::new();
    for l in lines.iter().filter(|l| is_user(&l.property)) {
        if !order.contains(&l.property) {
            order.push(l.property.clone());
        }
    }
    let position = |node: &str| nodes.iter().position(|n| n.dataset.name == node);
    if order.len() > 1 {
        lines.sort_by_cached_key(|l| {
            (position(&l.name), order.iter().position(|p| *p == l.property))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_sources_are_checked() {
        let why = |r: Result<Vec<Field>, Stop>| match r {
            Err(Stop::Usage(m)) => m,
            other => panic!("{other:?}"),
        };
        assert_eq!(Field::parse("value,name", FIELDS).unwrap(), [Field::Value, Field::Name]);
        assert_eq!(Field::parse("all", FIELDS).unwrap(), FIELDS);
        assert_eq!(why(Field::parse("x", FIELDS)), "invalid column name 'x'");
        assert!(why(Field::parse("name,all", FIELDS)).contains("conflicts"));
        assert!(Sources::parse("local,none").unwrap().has(&Source::None));
        assert!(Sources::parse("nowhere").is_err());
    }

    #[test]
    fn layout_matches_zfs_get() {
        let layout = Layout {
            fields: Field::DEFAULT.to_vec(),
            scripted: false,
            property_width: 4,
            value_width: 5,
        };
        let line = Line {
            name: "tank/a".into(),
            property: "used".into(),
            value: "24K".into(),
            received: None,
            source: Source::Inherited("tank".into()),
        };
        let mut out = Vec::new();
        layout.print(&[line], 6, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "NAME    PROPERTY  VALUE  SOURCE\ntank/a  used      24K    inherited from tank\n"
        );
    }
}
