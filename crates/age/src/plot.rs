//! The report as a picture: what becomes of the free space, what it costs, and how long allocations take.
//!
//! Three panels stand below one another over the same axis of simulated time: percentages (full, FRAG, spoiled
//! metaslabs), bytes in a transaction group, and latencies of allocations. Each line's name and last value stand at
//! its right. Axes use the largest unit of which there are two or more.
//!
//! [`svg`] draws it below the workload and the command; [`html`] puts it on a page that has these as text, with the table,
//! and loads nothing from elsewhere.
//! The row at the start counts in the first panel only, since nothing was done before it.

use crate::report::{MOST, Report, Row};
use crate::spec::{AgeError, Spec, Work};
use plotters::prelude::*;

/// Pixels of the picture's width, and of the height of its panels.
const WIDTH: u32 = 1200;
const PANELS: u32 = 1044;
/// Pixels between the first line of the head and what is above, and below a line beside its own height.
const ABOVE: i32 = 12;
const BELOW: i32 = 10;
/// Pixels of the lines' height: the title, the workload, the command.
const TITLE: i32 = 26;
const WORK: i32 = 16;
const COMMAND: i32 = 14;
/// Characters of which no line of the head is longer: as many of these as fit.
const LONGEST: usize = 140;
/// Pixels at the right for what lines are called.
const KEY: i32 = 250;

/// A line of the plot: its name, its colour, its values.
type Line<'a> = (&'a str, RGBColor, &'a dyn Fn(&Row) -> f64);

const RED: RGBColor = RGBColor(200, 40, 40);
const BLUE: RGBColor = RGBColor(40, 90, 200);
const GREEN: RGBColor = RGBColor(30, 140, 60);
const GREY: RGBColor = RGBColor(120, 120, 120);

/// Units of time for the axis below: seconds, and name.
const TIMES: [(f64, &str); 4] =
    [(86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds")];
/// Units of bytes.
const BYTES: [(f64, &str); 5] = [
    (1_099_511_627_776.0, "TiB"),
    (1_073_741_824.0, "GiB"),
    (1_048_576.0, "MiB"),
    (1024.0, "KiB"),
    (1.0, "bytes"),
];
/// Units of time for allocations: nanoseconds, and name.
const LATENCIES: [(f64, &str); 4] =
    [(1e9, "seconds"), (1e6, "milliseconds"), (1e3, "microseconds"), (1.0, "nanoseconds")];

/// The largest unit of which there are two or more.
fn unit(units: &[(f64, &'static str)], most: f64) -> (f64, &'static str) {
    let fits = units.iter().find(|(size, _)| most >= 2.0 * size);
    fits.or(units.last()).copied().unwrap_or((1.0, ""))
}

/// The plot as an SVG document: percentages, bytes per transaction group, and latencies, below one another. `command`
/// is the line that made it.
///
/// # Errors
/// It cannot be drawn.
pub fn svg(report: &Report, command: &str) -> Result<String, AgeError> {
    let mut head = vec![("How the pool ages".to_string(), TITLE)];
    for (text, size) in [(workload(&report.spec).as_str(), WORK), (command, COMMAND)] {
        head.extend(folded(text).into_iter().map(|line| (line, size)));
    }
    picture(report, &head)
}

/// The plot below lines with their heights in pixels.
fn picture(report: &Report, head: &[(String, i32)]) -> Result<String, AgeError> {
    let tall: i32 = head.iter().map(|(_, size)| size + BELOW).sum();
    let above = u32::try_from(tall + ABOVE).unwrap_or_default();
    let mut text = String::new();
    let drawn = {
        let size = (WIDTH, PANELS + above);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        draw(report, head, above, &root)
    };
    drawn.map_err(|e| AgeError::Plot(e.to_string()))?;
    Ok(text)
}

/// Text in lines of [`LONGEST`] characters at most: between words, where there are words that short.
fn folded(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let letters: Vec<char> = word.chars().collect();
        for (at, piece) in letters.chunks(LONGEST).enumerate() {
            let piece: String = piece.iter().collect();
            let Some(line) = lines.last_mut() else { continue };
            let has = line.chars().count();
            if at == 0 && has > 0 && has + 1 + piece.chars().count() <= LONGEST {
                *line += " ";
                *line += &piece;
            } else if has == 0 {
                *line += &piece;
            } else {
                lines.push(piece);
            }
        }
    }
    lines
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// A number of bytes in the unit that fits.
fn bytes(bytes: u64) -> String {
    let (size, name) = unit(&BYTES, bytes as f64);
    format!("{:.0} {name}", bytes as f64 / size)
}

/// What was simulated, in a line.
fn workload(spec: &Spec) -> String {
    let what = match &spec.work {
        Work::RandomOverwrite { rate } => format!("random overwrite, {} per second", bytes(*rate)),
        Work::TimeSeries(series) => {
            let [minute, five, hours] = series.files;
            let held = if series.hold { ", the oldest data deleted" } else { "" };
            format!(
                "time series, {minute} + {five} + {hours} files, a record of {} each{held}",
                bytes(series.record)
            )
        }
    };
    let pool = match &spec.like {
        Some(name) => format!("like the pool {name}"),
        None if spec.vdevs == 1 => format!("{} on 1 vdev", bytes(spec.size)),
        None => format!("{} on {} vdevs", bytes(spec.size), spec.vdevs),
    };
    format!("{pool}, {:.0}% full at first, blocks of {}; {what}", spec.fill, bytes(spec.block))
}

fn draw(report: &Report, lines: &[(String, i32)], above: u32, root: &Area<'_>) -> Drawn {
    root.fill(&WHITE)?;
    let (head, rest) = root.split_vertically(above);
    let mut y = ABOVE;
    for (text, size) in lines {
        head.draw(&Text::new(text.as_str(), (16, y), ("sans-serif", *size)))?;
        y += size + BELOW;
    }
    let panels = rest.split_evenly((3, 1));
    let [above, middle, below] = panels.as_slice() else { return Ok(()) };
    let percent: [Line<'_>; 3] = [
        ("full", GREY, &|row| row.full),
        ("FRAG", BLUE, &|row| row.fragmentation.unwrap_or(0) as f64),
        ("spoiled metaslabs", RED, &|row| row.spoiled),
    ];
    panel(above, "percent", &report.rows, &percent, &[(1.0, "")], Some(100.0))?;
    let cost: [Line<'_>; 3] = [
        ("metadata, written", RED, &|row| row.written.bytes),
        ("metadata, modelled", BLUE, &|row| row.modelled.bytes),
        ("data", GREEN, &|row| row.data.bytes),
    ];
    // Nothing was done before the first row.
    let rest = report.rows.get(1..).unwrap_or_default();
    panel(middle, "per transaction group", rest, &cost, &BYTES, None)?;
    let latency: [Line<'_>; 3] = [
        ("99.9% at most", RED, &|row| row.timing.p999 as f64),
        ("99% at most", BLUE, &|row| row.timing.p99 as f64),
        ("half at most", GREEN, &|row| row.timing.p50 as f64),
    ];
    panel(below, "for an allocation, on this machine", rest, &latency, &LATENCIES, None)?;
    root.present()?;
    Ok(())
}

fn panel(
    area: &Area<'_>,
    name: &str,
    rows: &[Row],
    lines: &[Line<'_>],
    units: &[(f64, &'static str)],
    top: Option<f64>,
) -> Drawn {
    let last = rows.last().map_or(1.0, |row| row.time).max(1.0);
    let (second, times) = unit(&TIMES, last);
    let values = || rows.iter().flat_map(|row| lines.iter().map(|(_, _, of)| of(row)));
    let most = top.unwrap_or_else(|| values().fold(1.0, f64::max));
    let (size, what) = unit(units, most);
    let top = if top.is_some() { most } else { most / size * 1.1 };
    let name = if what.is_empty() { name.into() } else { format!("{what} {name}") };
    // What lines are called stands beside them, not upon them.
    let (width, height) = area.dim_in_pixel();
    let (drawing, key) = area.split_horizontally(width as i32 - KEY);
    let mut chart = ChartBuilder::on(&drawing)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(72)
        .build_cartesian_2d(0.0..last / second, 0.0..top)?;
    chart.configure_mesh().x_desc(times).y_desc(name).light_line_style(WHITE).draw()?;
    let mut y = 24.min(height as i32);
    for (name, colour, of) in lines {
        let points = rows.iter().map(|row| (row.time / second, of(row) / size));
        chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
        key.draw(&PathElement::new([(0, y + 7), (24, y + 7)], colour.stroke_width(2)))?;
        let now = rows.last().map_or(0.0, |row| of(row) / size);
        let text = match what {
            "" => format!("{name}: {now:.1}%"),
            what => format!("{name}: {now:.1} {what}"),
        };
        key.draw(&Text::new(text, (32, y), ("sans-serif", 14)))?;
        y += 22;
    }
    Ok(())
}

/// A page with the plot and what became of the pool. `command` is the line that made it.
///
/// # Errors
/// The plot cannot be drawn.
pub fn html(report: &Report, table: &str, command: &str) -> Result<String, AgeError> {
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;");
    let (what, line, table) = (escape(&workload(&report.spec)), escape(command), escape(table));
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>How the pool ages</title>\
         <style>body{{font:14px/1.4 sans-serif;margin:16px}}svg{{max-width:100%;height:auto}}</style></head>\n<body>\n\
         <h1>How the pool ages</h1>\n<p>{what}</p>\n<pre>$ {line}</pre>\n\
         <p>A pool is spoiled when more than {MOST}% of its metaslabs with free space cannot hold a \
         block of 128 KiB.</p>\n{}\n<pre>{table}</pre>\n</body></html>\n",
        // What stands above it is said by the page.
        picture(report, &[])?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_fit() {
        assert_eq!(unit(&TIMES, 600.0).1, "minutes");
        assert_eq!(unit(&TIMES, 40.0 * 86_400.0).1, "days");
        assert_eq!(unit(&BYTES, 3000.0).1, "KiB");
        assert_eq!(unit(&LATENCIES, 1.0).1, "nanoseconds");
    }

    #[test]
    fn long_lines_are_folded_and_nothing_is_lost() {
        let word = "x".repeat(LONGEST + 20);
        let command =
            format!("cenote age {} --html {word} end", "--five-minute-files 12345 ".repeat(14));
        let lines = folded(&command);
        assert!(lines.iter().all(|line| line.chars().count() <= LONGEST), "{lines:?}");
        let letters = |text: &str| text.chars().filter(|c| *c != ' ').collect::<String>();
        assert_eq!(letters(&lines.concat()), letters(&command));
        for word in command.split(' ').filter(|word| (1..=LONGEST).contains(&word.len())) {
            assert!(lines.iter().any(|line| line.split(' ').any(|own| own == word)), "{word}");
        }
        assert_eq!(folded("cenote age"), ["cenote age"]);
        assert_eq!(folded(""), [""]);
    }
}
