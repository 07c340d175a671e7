//! The map as SVG: the cells, the histogram of free segments, and a picture of one view.
//!
//! A cell is a square with a tooltip. Its colour in each view is a class (`f12`: fullness, step 12);
//! [`rules`] says what the classes mean, so that one set of cells serves all views of a page. Small
//! maps have the number of each cell written on it. Cells get smaller the more there are, and
//! tooltips shorter, so that the map of 10,000 metaslabs stays below 3 MB, twice over.

use super::scale;
use super::summary::{self, class, optional_percent};
use super::terminal::heading;
use super::view::{By, Scene, Shown, allocated_percent};
use crate::context::Context;
use cenote_dsl::human::{nicebytes, nicenum};
use cenote_inspect::map::{MetaslabMap, SpaceMapReport, VdevMap};
use std::fmt::Write;

/// Metaslabs up to which cells have numbers on them, and tooltips have names.
const FEW: usize = 512;
/// Metaslabs up to which cells are of a middling size.
const SOME: usize = 2048;
/// Height of a line of text.
const LINE: usize = 18;
/// Columns left of the cells, for the number of the first one in the row.
const LABEL: usize = 52;
const MARGIN: usize = 16;

/// What the colours say: one of the views, or what has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A view.
    By(By),
    /// How much fuller than before.
    Change,
}

impl Kind {
    /// The views that a scene has.
    pub fn all(scene: &Scene) -> Vec<Kind> {
        let mut kinds = vec![Kind::By(By::Fullness), Kind::By(By::Fragmentation)];
        if scene.now.owners.is_some() {
            kinds.push(Kind::By(By::Owner));
        }
        if scene.before.is_some() {
            kinds.push(Kind::Change);
        }
        kinds
    }

    /// First letter of its classes.
    pub fn letter(self) -> char {
        match self {
            Kind::By(By::Fullness) => 'f',
            Kind::By(By::Fragmentation) => 'g',
            Kind::By(By::Owner) => 'o',
            Kind::Change => 'd',
        }
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Kind::By(By::Fullness) => "Fullness",
            Kind::By(By::Fragmentation) => "Fragmentation (FRAG)",
            Kind::By(By::Owner) => "Owners",
            Kind::Change => "Change",
        }
    }
}

/// `text` as the content of an element or attribute: what XML does not allow is replaced.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            '\n' => out.push('\n'),
            c if c.is_control() => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

/// How large cells are.
#[derive(Clone, Copy, Debug)]
struct Grid {
    width: usize,
    height: usize,
    gap: usize,
    per_row: usize,
    few: bool,
}

impl Grid {
    fn of(metaslabs: usize) -> Grid {
        match metaslabs {
            0..=FEW => Grid { width: 42, height: 22, gap: 2, per_row: 16, few: true },
            n if n <= SOME => Grid { width: 14, height: 14, gap: 2, per_row: 50, few: false },
            _ => Grid { width: 9, height: 9, gap: 1, per_row: 100, few: false },
        }
    }
}

/// The CSS rules that give cells their colours; `scope` stands before each.
pub fn rules(kind: Kind, scope: &str, out: &mut String) {
    let k = kind.letter();
    for step in 0..scale::STEPS {
        let colour = match kind {
            Kind::Change => scale::change_colour(step),
            Kind::By(_) => scale::colour(step),
        };
        let _ = write!(out, "{scope}.{k}{step}{{fill:{}}}", scale::hex(colour));
    }
    if kind == Kind::By(By::Owner) {
        for rank in 0..scale::COLOURED {
            let colour = scale::hex(scale::owner_colour(rank));
            let _ = write!(out, "{scope}.{k}r{rank}{{fill:{colour}}}");
        }
    }
    out.push('\n');
}

/// The rules that all maps share: letters, and colours for light and dark surroundings.
pub const STYLE: &str = "\
    text{font:12px sans-serif;fill:#222}\
    .h{font-weight:bold}.l{text-anchor:end;font-size:10px}.n{text-anchor:middle;font-size:11px}\
    .n.k{fill:#000}.n.w{fill:#fff}.m{text-anchor:middle;font-size:9px}\
    .bg{fill:#fff}path{fill:#8884}.x{fill:none;stroke:#8886}.b0{fill:#999}.b1{fill:#2a788e}\
    @media (prefers-color-scheme:dark){text{fill:#ddd}.bg{fill:#181818}}\n";

/// Class of what a cell shows.
fn class_of(kind: Kind, shown: Shown) -> String {
    let k = kind.letter();
    match shown {
        Shown::Nothing => String::new(),
        Shown::Percent(level, _) => format!("{k}{}", scale::step(level)),
        Shown::Owner(rank, _) if rank < scale::COLOURED => format!("{k}r{rank}"),
        Shown::Owner(..) => String::new(),
    }
}

/// A drawing under way.
pub struct Drawing<'a> {
    scene: &'a Scene,
    kinds: &'a [Kind],
    grid: Grid,
    /// What was drawn.
    pub out: String,
}

impl<'a> Drawing<'a> {
    /// A drawing that can show the scene in some views.
    pub fn new(scene: &'a Scene, kinds: &'a [Kind]) -> Drawing<'a> {
        let metaslabs = scene.reports().map(|r| r.metaslabs().count()).max().unwrap_or(0);
        Drawing { scene, kinds, grid: Grid::of(metaslabs), out: String::new() }
    }

    fn put(&mut self, args: std::fmt::Arguments<'_>) {
        // A string takes everything.
        let _ = self.out.write_fmt(args);
    }

    /// Columns that a map takes.
    pub fn width(&self) -> usize {
        LABEL + self.grid.per_row * (self.grid.width + self.grid.gap)
    }

    /// Draws the map of a report from `y` on; where it ends.
    pub fn map(&mut self, report: &SpaceMapReport, mut y: usize) -> usize {
        let grid = self.grid;
        for v in &report.vdevs {
            y += LINE;
            let title = escape(&heading(v));
            self.put(format_args!("<text class=\"h\" x=\"0\" y=\"{}\">{title}</text>\n", y - 5));
            y += self.columns(v.metaslabs.len(), y);
            for row in v.metaslabs.chunks(grid.per_row) {
                self.put(format_args!("<g class=\"c\" transform=\"translate({LABEL} {y})\">"));
                if let Some(first) = row.first() {
                    let (x, y, id) = (LABEL / 8, grid.height - grid.height / 4, first.id);
                    self.put(format_args!("<text class=\"l\" x=\"-{x}\" y=\"{y}\">{id}</text>"));
                }
                for (i, m) in row.iter().enumerate() {
                    self.cell(report, v, m, i * (grid.width + grid.gap));
                }
                self.out += "</g>\n";
                y += grid.height + grid.gap;
            }
            y += LINE / 2;
        }
        y
    }

    /// Draws how far metaslabs are from the first one of their row, whose number stands at the left; how high that is.
    fn columns(&mut self, metaslabs: usize, y: usize) -> usize {
        let Grid { width, gap, per_row, few, .. } = self.grid;
        let base = y + LINE - 7;
        let label = LABEL - LABEL / 8;
        self.put(format_args!("<text class=\"l\" x=\"{label}\" y=\"{base}\">metaslab</text>"));
        for column in (0..per_row.min(metaslabs)).step_by(if few { 1 } else { 10 }) {
            let x = LABEL + column * (width + gap) + width / 2;
            self.put(format_args!("<text class=\"m\" x=\"{x}\" y=\"{base}\">+{column}</text>"));
        }
        self.out.push('\n');
        LINE - 2
    }

    fn cell(&mut self, report: &SpaceMapReport, v: &VdevMap, m: &MetaslabMap, x: usize) {
        let Grid { width, height, few, .. } = self.grid;
        let one = std::slice::from_ref(m);
        let change = self.change(report, v, m);
        let shown = |kind| match kind {
            Kind::By(by) => self.scene.shown(one, by),
            Kind::Change => Shown::Nothing,
        };
        let class_in = |kind| match (kind, change) {
            (Kind::Change, Some(points)) => format!("d{}", scale::change_step(points)),
            (Kind::Change, None) => String::new(),
            _ => class_of(kind, shown(kind)),
        };
        let classes: Vec<String> =
            self.kinds.iter().map(|k| class_in(*k)).filter(|c| !c.is_empty()).collect();
        let mut texts = String::new();
        for kind in self.kinds.iter().filter(|_| few) {
            let (text, colour) = match (kind, change) {
                (Kind::Change, Some(points)) => {
                    (format!("{points:+}"), scale::change_colour(scale::change_step(points)))
                }
                (Kind::Change, None) => continue,
                _ => (shown(*kind).text(), shown(*kind).colour()),
            };
            let ink = match (kind, shown(*kind)) {
                // On no colour of its own.
                (Kind::By(_), Shown::Nothing) => "",
                _ if scale::is_bright(colour) => " k",
                _ => " w",
            };
            let (k, x, y) = (kind.letter(), x + width / 2, height - height / 4 - 1);
            let text = escape(text.trim());
            let _ = write!(texts, "<text class=\"n t{k}{ink}\" x=\"{x}\" y=\"{y}\">{text}</text>");
        }
        let tooltip = escape(&self.tooltip(m, change));
        self.put(format_args!(
            "<path class=\"{}\" d=\"M{x} 0h{width}v{height}h-{width}\"><title>{tooltip}</title></path>{texts}",
            classes.join(" ")
        ));
    }

    /// By how much a metaslab is fuller than before; of the map before itself, nothing.
    fn change(&self, report: &SpaceMapReport, v: &VdevMap, m: &MetaslabMap) -> Option<i64> {
        let of_now = std::ptr::eq(report, &self.scene.now);
        self.scene.change(v.id, m).filter(|_| of_now)
    }

    fn tooltip(&self, m: &MetaslabMap, change: Option<i64>) -> String {
        let few = self.grid.few;
        let full = allocated_percent(std::slice::from_ref(m));
        let (id, frag, largest) = (m.id, optional_percent(m.fragmentation), class(m.largest));
        let mut text = match few {
            true => format!(
                "metaslab {id} at {:#x}: {full}% allocated ({} of {}), FRAG {frag}, largest {largest}",
                m.offset,
                nicebytes(m.allocated),
                nicebytes(m.size)
            ),
            false => format!("{id}: {full}% allocated, FRAG {frag}, largest {largest}"),
        };
        if let Some(points) = change.filter(|p| *p != 0) {
            let _ = write!(text, ", {points:+}");
        }
        if few && m.unflushed != Default::default() {
            let (a, f) = (nicebytes(m.unflushed.allocated), nicebytes(m.unflushed.freed));
            let _ = write!(text, ", unflushed +{a} -{f}");
        }
        for (flag, what) in [(m.loaded, ", in memory"), (m.embedded_log, ", kept for the log")] {
            if flag {
                text += what;
            }
        }
        for share in m.owners.iter().take(if few { 8 } else { 2 }) {
            let _ = match few {
                true => {
                    write!(
                        text,
                        "\n{} {}",
                        nicebytes(share.bytes),
                        self.scene.owner_name(share.owner)
                    )
                }
                false => {
                    let letter = scale::letter(self.scene.rank(share.owner));
                    let part = cenote_inspect::map::percent(share.bytes, m.size);
                    write!(text, " {letter}{part}")
                }
            };
        }
        text
    }

    /// Draws bars of the free space by size of its segments, with their figures; `(width, height)`.
    pub fn histogram(&mut self, y: usize) -> (usize, usize) {
        const TALL: u128 = 120;
        const AXIS: usize = 64;
        let all: Vec<_> = self.scene.reports().map(SpaceMapReport::segments).collect();
        let bytes = |counts: &[u64; 64], i: usize| {
            counts.get(i).map_or(0, |n| u128::from(*n).checked_shl(i as u32).unwrap_or(u128::MAX))
        };
        let most =
            all.iter().flat_map(|h| (0..64).map(|i| bytes(h.counts(), i))).max().unwrap_or(0);
        let used = |i: usize| all.iter().any(|h| bytes(h.counts(), i) > 0);
        let first = (9..64).find(|i| used(*i)).unwrap_or(9);
        let last = (9..64).rev().find(|i| used(*i)).unwrap_or(9);
        // A bar has room for its figure: that of one series is as wide as that of two.
        let bar = 36;
        let pitch = bar * all.len().max(1) + 8;
        let top = y + 2 * LINE;
        let base = top + TALL as usize;
        let right = AXIS + (last + 1 - first) * pitch;
        for (part, of) in [(0u128, 1u128), (1, 2), (1, 1)] {
            let at = base - (TALL * part / of) as usize;
            let label = nice(most.saturating_mul(part) / of);
            self.put(format_args!(
                "<path class=\"x\" d=\"M{AXIS} {at}H{right}\"/>\
                 <text class=\"l\" x=\"{}\" y=\"{}\">{label}</text>\n",
                AXIS - 6,
                at + 4
            ));
        }
        for (column, i) in (first..=last).enumerate() {
            let left = AXIS + column * pitch + 4;
            for (n, h) in all.iter().enumerate() {
                let part = bytes(h.counts(), i);
                let tall = (part.saturating_mul(TALL).checked_div(most).unwrap_or(0)) as usize;
                // A segment, however small, shows.
                let tall = if part > 0 { tall.max(1) } else { 0 };
                let (x, y) = (left + n * bar, base - tall);
                let count = h.counts().get(i).copied().unwrap_or(0);
                let series = if n + 1 == all.len() { 1 } else { 0 };
                let (size, sum) = (nicebytes(1 << i), nice(part));
                self.put(format_args!(
                    "<rect class=\"b{series}\" x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{tall}\">\
                     <title>{count} free segments of {size} and more: {sum}</title></rect>",
                    bar - 2
                ));
                if part > 0 {
                    let (x, y) = (x + bar / 2 - 1, y - 3);
                    self.put(format_args!("<text class=\"m\" x=\"{x}\" y=\"{y}\">{sum}</text>"));
                    let (y, count) = (base + 28, nicenum(count));
                    self.put(format_args!("<text class=\"m\" x=\"{x}\" y=\"{y}\">{count}</text>"));
                }
            }
            let (x, y, size) = (left + bar * all.len() / 2, base + 16, nicebytes(1 << i));
            self.put(format_args!("<text class=\"m\" x=\"{x}\" y=\"{y}\">{size}</text>\n"));
        }
        for (text, y) in [("free", top - LINE), ("size", base + 16), ("number", base + 28)] {
            let x = AXIS - 6;
            self.put(format_args!("<text class=\"l\" x=\"{x}\" y=\"{y}\">{text}</text>\n"));
        }
        let mut y = base + 28 + LINE;
        if all.len() > 1 {
            for (class, text) in [("b0", "before"), ("b1", "after")] {
                self.put(format_args!(
                    "<rect class=\"{class}\" x=\"{AXIS}\" y=\"{}\" width=\"14\" height=\"12\"/>",
                    y - 10
                ));
                self.line(AXIS + 20, y, "", text);
                y += LINE;
            }
        }
        (right, y)
    }

    fn line(&mut self, x: usize, y: usize, class: &str, text: &str) {
        let text = escape(text);
        self.put(format_args!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>\n"));
    }

    /// Draws what the colours mean; where it ends.
    fn legend(&mut self, kind: Kind, mut y: usize) -> usize {
        let scene = self.scene;
        let box_of = |drawing: &mut Self, x: usize, y: usize, class: &str| {
            drawing.put(format_args!(
                "<g class=\"c\"><path class=\"{class}\" d=\"M{x} {}h14v12h-14\"/></g>",
                y - 10
            ));
        };
        if kind == Kind::By(By::Owner) && scene.dataset.is_none() {
            self.line(0, y, "", WHO);
            y += LINE;
            for (rank, (name, bytes)) in summary::owners(scene) {
                let class =
                    if rank < scale::COLOURED { format!("or{rank}") } else { String::new() };
                box_of(self, 0, y, &class);
                self.line(20, y, "", &format!("{} {name} {bytes}", scale::letter(rank)));
                y += LINE;
            }
            box_of(self, 0, y, "");
            self.line(20, y, "", OTHERS);
            return y + 2 * LINE;
        }
        self.line(0, y, "", &meaning(kind, scene));
        y += LINE;
        for step in 0..scale::STEPS {
            box_of(self, step * 14, y, &format!("{}{step}", kind.letter()));
        }
        y += 14;
        for (step, label) in ticks(kind) {
            let x = step * 14 + 7;
            self.put(format_args!("<text class=\"m\" x=\"{x}\" y=\"{y}\">{label}</text>"));
        }
        if let Some(nothing) = unknown(kind, scene) {
            y += LINE;
            box_of(self, 0, y, "");
            self.line(20, y, "", nothing);
        }
        y + 2 * LINE
    }
}

/// A number of bytes, however large.
fn nice(bytes: u128) -> String {
    nicebytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// What colours, letters and numbers of owners say.
pub const WHO: &str = "Who has most of the metaslab, and how many percent of it";

/// What grey cells are in the view of owners.
pub const OTHERS: &str = "nothing allocated, or most is of one of the smaller owners";

/// What colours and numbers say.
pub fn meaning(kind: Kind, scene: &Scene) -> String {
    match kind {
        Kind::By(By::Fullness) => "Allocated, in percent of the metaslab".into(),
        Kind::By(By::Fragmentation) => "FRAG: fragmentation of the free space, in percent".into(),
        Kind::By(By::Owner) => {
            let name = scene.dataset.map(|d| scene.owner_name(d)).unwrap_or_default();
            format!("Blocks of {name}, in percent of the metaslab")
        }
        Kind::Change => "How much fuller than before, in percentage points".into(),
    }
}

/// Steps of the scale with the numbers that they begin at.
pub fn ticks(kind: Kind) -> [(usize, &'static str); 5] {
    match kind {
        Kind::Change => [(0, "-100"), (5, "-50"), (10, "0"), (15, "+50"), (20, "+100")],
        Kind::By(_) => [(0, "0"), (5, "25"), (10, "50"), (15, "75"), (20, "100")],
    }
}

/// What cells without a colour of the scale are.
pub fn unknown(kind: Kind, scene: &Scene) -> Option<&'static str> {
    match kind {
        Kind::By(_) if scene.dataset.is_some() => Some("nothing of it"),
        Kind::By(By::Fragmentation) => Some("not known"),
        Kind::Change => Some("was not there before"),
        Kind::By(_) => None,
    }
}

/// A picture of the scene in its view.
pub fn picture(scene: &Scene, ctx: &Context) -> String {
    let kinds = [Kind::By(scene.by)];
    let mut drawing = Drawing::new(scene, &kinds);
    let mut y = LINE;
    drawing.line(0, y, "h", &format!("Map of free space: {}", kinds[0].name()));
    for (label, text) in summary::all(scene, ctx) {
        y += LINE;
        drawing.line(0, y, "", &label);
        drawing.line(150, y, "", &text);
    }
    y = drawing.legend(kinds[0], y + 2 * LINE);
    let (mut x, mut bottom) = (0, y);
    for report in scene.reports() {
        drawing.put(format_args!("<g transform=\"translate({x} {y})\">"));
        let title = if scene.before.is_some() { LINE } else { 0 };
        if title > 0 {
            let which = if std::ptr::eq(report, &scene.now) { "after" } else { "before" };
            drawing.line(0, 0, "h", &format!("{which}: {}", summary::moment(report, ctx)));
        }
        bottom = bottom.max(y + drawing.map(report, title / 2));
        drawing.out += "</g>\n";
        x += drawing.width() + MARGIN;
    }
    y = bottom + LINE;
    drawing.line(0, y, "h", "Free space by size of its segments");
    drawing.put(format_args!("<g transform=\"translate(0 {})\">", y + LINE));
    let (wide, tall) = drawing.histogram(0);
    drawing.out += "</g>\n";
    let (width, height) = (x.max(wide).max(640) + 2 * MARGIN, y + LINE + tall + 2 * MARGIN);
    let mut style = String::from(STYLE);
    rules(kinds[0], "", &mut style);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\">\n<style>{style}</style>\n\
         <rect class=\"bg\" width=\"{width}\" height=\"{height}\"/>\n\
         <g transform=\"translate({MARGIN} {MARGIN})\">\n{}</g>\n</svg>\n",
        drawing.out
    )
}
