//! The map as text for a terminal.
//!
//! A vdev is a heading and rows of cells. A cell is one metaslab with its number (`Form::Numbers`),
//! or one character (`Form::Marks`), for one metaslab or for several if there are more than fit into
//! [`MAX_ROWS`] rows. All vdevs, and the map before, are drawn alike.
//!
//! Colours are escape sequences; a [`Line`] knows its width without them, so that two maps can stand
//! side by side. Without colours marks are shades, and letters for owners.

use super::scale::{self, Rgb};
use super::summary::{self, Row};
use super::view::{By, Scene, Shown, allocated_percent};
use crate::context::Context;
use cenote_command::output::printable;
use cenote_dsl::human::nicebytes;
use cenote_inspect::map::{MetaslabMap, SpaceMapReport, VdevMap};
use cenote_pool::metaslab::AllocClass;
use std::io;

/// Rows of cells that a map takes at most, but for one row per vdev.
const MAX_ROWS: usize = 40;
/// Columns that half a screen must have.
const MIN_HALF: usize = 40;
/// Columns of a cell with a number, and of the gap after it.
const NUMBER: usize = 5;
const GAP: usize = 3;

/// How colours are told to the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// Not at all.
    Plain,
    /// By number, out of 256.
    Indexed,
    /// Red, green, blue.
    True,
}

impl Paint {
    fn code(self, ground: u8, c: Rgb) -> String {
        match self {
            Paint::Plain => String::new(),
            Paint::Indexed => format!("\x1b[{ground};5;{}m", scale::indexed(c)),
            Paint::True => format!("\x1b[{ground};2;{};{};{}m", c[0], c[1], c[2]),
        }
    }

    /// `text` on a coloured ground.
    fn on(self, c: Rgb, text: &str) -> String {
        if self == Paint::Plain {
            return text.into();
        }
        let ink = if scale::is_bright(c) { [0; 3] } else { [255; 3] };
        format!("{}{}{text}\x1b[0m", self.code(48, c), self.code(38, ink))
    }

    /// `text` in a colour.
    fn ink(self, c: Rgb, text: &str) -> String {
        if self == Paint::Plain {
            return text.into();
        }
        format!("{}{text}\x1b[0m", self.code(38, c))
    }
}

/// A line and its width in columns.
#[derive(Clone, Debug, Default)]
struct Line {
    text: String,
    width: usize,
}

impl Line {
    fn plain(text: &str, width: usize) -> Line {
        let text: String = text.chars().take(width).collect();
        Line { width: text.chars().count(), text }
    }

    fn push(&mut self, text: &str, width: usize) {
        self.text += text;
        self.width += width;
    }
}

/// How cells are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Numbers,
    Marks {
        /// Metaslabs in a cell.
        each: usize,
    },
}

#[derive(Clone, Copy, Debug)]
struct Layout {
    form: Form,
    /// Cells in a row.
    per_row: usize,
    /// Columns of the number at the head of a row.
    label: usize,
}

impl Layout {
    /// The layout for maps of these numbers of metaslabs, `width` columns wide.
    fn of(vdevs: &[usize], width: usize) -> Layout {
        let most = vdevs.iter().copied().max().unwrap_or(0);
        let label = most.saturating_sub(1).to_string().len();
        let space = width.saturating_sub(label + 2).max(NUMBER);
        let even = |n: usize, by: usize| if n > by { n / by * by } else { n };
        let rows = |per_row: usize| vdevs.iter().map(|n| n.div_ceil(per_row.max(1))).sum::<usize>();
        let limit = MAX_ROWS.max(vdevs.len());
        let per_row = even(space / NUMBER, 5);
        if rows(per_row) <= limit {
            return Layout { form: Form::Numbers, per_row, label };
        }
        let per_row = even(space, 10);
        let mut each = 1usize;
        while each < most && rows(per_row.saturating_mul(each)) > limit {
            each = each.saturating_mul(2);
        }
        Layout { form: Form::Marks { each }, per_row, label }
    }

    fn each(self) -> usize {
        match self.form {
            Form::Numbers => 1,
            Form::Marks { each } => each,
        }
    }
}

/// Shade of a step of the scale.
fn shade(step: usize) -> &'static str {
    match step {
        0 => "·",
        1..=5 => "░",
        6..=10 => "▒",
        11..=15 => "▓",
        _ => "█",
    }
}

/// Name of a class, where it is not the usual one.
pub fn class_name(class: AllocClass) -> &'static str {
    match class {
        AllocClass::Normal => "",
        AllocClass::Log => ", log",
        AllocClass::Special => ", special",
        AllocClass::Dedup => ", dedup",
        AllocClass::EmbeddedLog => ", embedded log",
    }
}

/// The line above a vdev's cells. A device is called by its file's name.
pub fn heading(v: &VdevMap) -> String {
    let name = v.name.rsplit('/').next().unwrap_or(&v.name);
    format!(
        "vdev {} ({}{}): {} of {}, {}% allocated, FRAG {}",
        v.id,
        printable(name),
        class_name(v.class),
        summary::count(v.metaslabs.len(), "metaslab"),
        1u64.checked_shl(v.metaslab_shift).map_or_else(String::new, nicebytes),
        allocated_percent(&v.metaslabs),
        summary::optional_percent(v.fragmentation)
    )
}

/// Draws a scene.
pub struct Drawing<'a> {
    scene: &'a Scene,
    paint: Paint,
    width: usize,
}

impl<'a> Drawing<'a> {
    /// A drawing `width` columns wide.
    pub fn new(scene: &'a Scene, paint: Paint, width: usize) -> Drawing<'a> {
        Drawing { scene, paint, width: width.max(20) }
    }

    /// Writes maps, legend and figures. What is painted goes out as it is: names in it are printable.
    pub fn write(&self, ctx: &mut Context) -> io::Result<()> {
        let sizes: Vec<Vec<usize>> = self
            .scene
            .reports()
            .map(|r| r.vdevs.iter().map(|v| v.metaslabs.len()).collect())
            .collect();
        let most = |width| {
            let layouts = sizes.iter().map(|s| Layout::of(s, width));
            layouts.max_by_key(|l| (l.each(), l.form != Form::Numbers))
        };
        let half = self.width.saturating_sub(GAP) / 2;
        let beside = self.scene.before.is_some() && half >= MIN_HALF;
        let width = if beside { half } else { self.width };
        let Some(layout) = most(width) else { return Ok(()) };
        let titled = self.scene.before.is_some();
        let mut maps = Vec::new();
        for (report, title) in self.scene.reports().zip(["before", "after"]) {
            let mut lines = Vec::new();
            if titled {
                let title = format!("{title}: {}", summary::moment(report, ctx));
                lines.push(Line::plain(&title, width));
            }
            self.map(report, layout, width, &mut lines);
            maps.push(lines);
        }
        match maps.as_slice() {
            [before, after] if beside => {
                for i in 0..before.len().max(after.len()) {
                    let empty = Line::default();
                    let (a, b) = (before.get(i).unwrap_or(&empty), after.get(i).unwrap_or(&empty));
                    let pad = if b.width > 0 { half - a.width.min(half) + GAP } else { 0 };
                    writeln!(ctx.out.raw(), "{}{:pad$}{}", a.text, "", b.text)?;
                }
            }
            maps => {
                for line in maps.iter().flatten() {
                    writeln!(ctx.out.raw(), "{}", line.text)?;
                }
            }
        }
        for line in self.legend(layout) {
            writeln!(ctx.out.raw(), "{line}")?;
        }
        writeln!(ctx.out)?;
        let rows = summary::all(self.scene, ctx);
        self.rows(&rows, ctx)
    }

    fn rows(&self, rows: &[Row], ctx: &mut Context) -> io::Result<()> {
        let width = rows.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
        for (label, text) in rows {
            let line = format!("{label:width$}  {text}");
            writeln!(ctx.out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    fn map(&self, report: &SpaceMapReport, layout: Layout, width: usize, lines: &mut Vec<Line>) {
        for v in &report.vdevs {
            lines.push(Line::plain(&heading(v), width));
            let each = layout.each();
            for (i, row) in
                v.metaslabs.chunks(layout.per_row.saturating_mul(each).max(1)).enumerate()
            {
                let first = row.first().map_or(i as u64, |m| m.id);
                let label = layout.label;
                let mut line = Line::default();
                line.push(&format!("{first:>label$}  "), label + 2);
                for (n, cell) in row.chunks(each).enumerate() {
                    self.cell(cell, layout.form, n == 0, &mut line);
                }
                lines.push(line);
            }
        }
    }

    fn cell(&self, cell: &[MetaslabMap], form: Form, first: bool, line: &mut Line) {
        let shown = self.scene.shown(cell, self.scene.by);
        let colour = shown.colour();
        let nothing = shown == Shown::Nothing;
        match form {
            Form::Numbers => {
                if !first {
                    line.push(" ", 1);
                }
                let text = shown.text();
                let text = if nothing { text } else { self.paint.on(colour, &text) };
                line.push(&text, NUMBER - 1);
            }
            Form::Marks { .. } => {
                let text = match shown {
                    Shown::Nothing => "·".into(),
                    Shown::Percent(level, _) if self.paint == Paint::Plain => {
                        shade(scale::step(level)).into()
                    }
                    Shown::Percent(..) => self.paint.ink(colour, "▇"),
                    Shown::Owner(rank, _) => {
                        self.paint.on(colour, &scale::letter(rank).to_string())
                    }
                };
                line.push(&text, 1);
            }
        }
    }

    fn legend(&self, layout: Layout) -> Vec<String> {
        let mut lines = Vec::new();
        let scene = self.scene;
        let numbers = layout.form == Form::Numbers;
        let what = match (scene.by, scene.dataset) {
            (By::Fullness, _) => "allocated",
            (By::Fragmentation, _) => "fragmentation of the free space (FRAG)",
            (By::Owner, Some(_)) => "share of the metaslab",
            (By::Owner, None) if numbers => {
                "letter: who has most of it; number: percent of the metaslab"
            }
            (By::Owner, None) => "letter: who has most of it",
        };
        if matches!((scene.by, scene.dataset), (By::Owner, None)) {
            lines.push(what.into());
            lines.extend(self.owners());
        } else {
            lines.push(format!("{what}: {}", self.ramp(numbers)));
        }
        let dim = match (scene.dataset, scene.by) {
            (Some(owner), _) => format!("·: nothing of {}", scene.owner_name(owner)),
            (None, By::Owner) => "·: nothing allocated".into(),
            (None, By::Fragmentation) if numbers => "·: not known".into(),
            (None, By::Fragmentation) => "·: none, or not known".into(),
            (None, By::Fullness) => String::new(),
        };
        if !dim.is_empty() {
            lines.push(dim);
        }
        if layout.each() > 1 {
            lines.push(format!("each cell: {} metaslabs", layout.each()));
        }
        lines
    }

    /// The scale from nothing to all.
    fn ramp(&self, numbers: bool) -> String {
        match self.paint {
            Paint::Plain if numbers => "0% to 100%".into(),
            Paint::Plain => "· 0%  ░ to 25%  ▒ to 50%  ▓ to 75%  █ to 100%".into(),
            _ => {
                let steps = (0..scale::STEPS).step_by(2).map(scale::colour);
                let colours: String = steps.map(|c| self.paint.ink(c, "▇")).collect();
                format!("0% {colours} 100%")
            }
        }
    }

    fn owners(&self) -> Vec<String> {
        let rows = summary::owners(self.scene);
        let width = rows.iter().map(|(_, (name, _))| name.chars().count()).max().unwrap_or(0);
        let line = |(rank, (name, bytes)): &(usize, Row)| {
            let letter = scale::letter(*rank).to_string();
            let letter = self.paint.on(scale::owner_colour(*rank), &letter);
            match bytes.is_empty() {
                true => format!("{} {name}", scale::letter(usize::MAX)),
                false => format!("{letter} {name:width$}  {bytes}"),
            }
        };
        rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_metaslabs_are_put_together() {
        let numbers = Layout::of(&[64], 80);
        assert_eq!((numbers.form, numbers.per_row), (Form::Numbers, 15));
        let marks = Layout::of(&[2000], 80);
        assert_eq!((marks.form, marks.per_row), (Form::Marks { each: 1 }, 70));
        let together = Layout::of(&[10_000, 5_000], 80);
        assert_eq!(together.form, Form::Marks { each: 8 });
        let narrow = Layout::of(&[131_072], 1);
        assert!(narrow.each() > 1);
        assert_eq!(Layout::of(&[], 80).form, Form::Numbers);
        // One row for each of many vdevs.
        assert_eq!(Layout::of(&[10; 60], 80).form, Form::Numbers);
    }

    #[test]
    fn colours_in_both_notations() {
        assert_eq!(Paint::Plain.on([1, 2, 3], "x"), "x");
        assert_eq!(Paint::True.ink([1, 2, 3], "x"), "\x1b[38;2;1;2;3mx\x1b[0m");
        assert_eq!(Paint::Indexed.on([255, 255, 255], "x"), "\x1b[48;5;231m\x1b[38;5;16mx\x1b[0m");
    }
}
