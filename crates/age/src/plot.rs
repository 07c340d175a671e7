//! The report as a picture: what becomes of the free space, and what it costs.

use crate::report::{MOST, Report, Row};
use crate::spec::AgeError;
use plotters::prelude::*;

/// Pixels.
const SIZE: (u32, u32) = (960, 720);
const DAY: f64 = 86_400.0;

/// A line of the plot: its name, its colour, its values.
type Line<'a> = (&'a str, RGBColor, &'a dyn Fn(&Row) -> f64);

const RED: RGBColor = RGBColor(200, 40, 40);
const BLUE: RGBColor = RGBColor(40, 90, 200);
const GREEN: RGBColor = RGBColor(30, 140, 60);
const GREY: RGBColor = RGBColor(120, 120, 120);

/// The plot as an SVG document: percentages above, metadata per transaction group below.
///
/// # Errors
/// It cannot be drawn.
pub fn svg(report: &Report) -> Result<String, AgeError> {
    let mut text = String::new();
    let drawn = {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(report, &root)
    };
    drawn.map_err(|e| AgeError::Plot(e.to_string()))?;
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(report: &Report, root: &Area<'_>) -> Drawn {
    root.fill(&WHITE)?;
    let (above, below) = root.split_vertically(SIZE.1 / 2);
    let percent: [Line<'_>; 3] = [
        ("full", GREY, &|row| row.full),
        ("fragmentation", BLUE, &|row| row.fragmentation.unwrap_or(0) as f64),
        ("spoiled metaslabs", RED, &|row| row.spoiled),
    ];
    panel(&above, "percent", &report.rows, &percent, Some(100.0))?;
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let cost: [Line<'_>; 3] = [
        ("space maps and other metadata, written", RED, &|row| mib(row.written.bytes)),
        ("indirect blocks and dnodes, modelled", BLUE, &|row| mib(row.modelled.bytes)),
        ("data", GREEN, &|row| mib(row.data.bytes)),
    ];
    // Nothing was done before the first row.
    let rest = report.rows.get(1..).unwrap_or_default();
    panel(&below, "MiB per transaction group", rest, &cost, None)?;
    root.present()?;
    Ok(())
}

fn panel(area: &Area<'_>, name: &str, rows: &[Row], lines: &[Line<'_>], top: Option<f64>) -> Drawn {
    let end = rows.last().map_or(1.0, |row| row.time / DAY).max(1e-6);
    let values = || rows.iter().flat_map(|row| lines.iter().map(|(_, _, of)| of(row)));
    let top = top.unwrap_or_else(|| values().fold(1e-3, f64::max) * 1.1);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    chart.configure_mesh().x_desc("days").y_desc(name).light_line_style(WHITE).draw()?;
    for (name, colour, of) in lines {
        let points = rows.iter().map(|row| (row.time / DAY, of(row)));
        let line = chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
        let colour = *colour;
        let key = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2));
        line.label(*name).legend(key);
    }
    let legend = SeriesLabelPosition::UpperLeft;
    chart.configure_series_labels().position(legend).background_style(WHITE).draw()?;
    Ok(())
}

/// A page with the plot and what became of the pool.
///
/// # Errors
/// The plot cannot be drawn.
pub fn html(report: &Report, table: &str) -> Result<String, AgeError> {
    let escaped = table.replace('&', "&amp;").replace('<', "&lt;");
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>How the pool ages</title></head>\n<body>\n\
         <p>A pool is spoiled when more than {MOST}% of its metaslabs with free space cannot hold a \
         block of 128 KiB.</p>\n{}\n<pre>{escaped}</pre>\n</body></html>\n",
        svg(report)?
    ))
}
