//! The map as a page for a browser: one file, all views, nothing fetched and no script.
//!
//! The views are radio buttons; style rules colour the cells after the one that is chosen. The page
//! is well-formed XML as well.

use super::scale;
use super::summary;
use super::svg::{Drawing, Kind, OTHERS, STYLE, WHO, escape, meaning, rules, ticks, unknown};
use super::view::{By, Scene};
use crate::context::Context;
use cenote_inspect::map::SpaceMapReport;
use std::fmt::Write;

const PAGE_STYLE: &str = "\
    body{font:14px/1.4 sans-serif;margin:16px;background:#fff;color:#222;color-scheme:light dark}\
    h1{font-size:20px}h2{font-size:16px}\
    .maps{display:flex;flex-wrap:wrap;gap:24px}figure{margin:0}figcaption{font-weight:bold}\
    svg{max-width:100%;height:auto;overflow:visible}\
    table{border-collapse:collapse}th{text-align:left;font-weight:normal;padding-right:16px}\
    th,td{vertical-align:top}label{margin-right:16px}\
    .legend,.tf,.tg,.to,.td{display:none}.legend{margin:12px 0}\
    i{display:inline-block;width:14px;height:12px;background:#8884}\
    path:hover{stroke:currentColor;stroke-width:2px}\
    @media (prefers-color-scheme:dark){body{background:#181818;color:#ddd}}\n";

/// Pixels of a step of the scale in a legend.
const STEP: usize = 18;

/// The page of a scene.
pub fn page(scene: &Scene, ctx: &Context) -> String {
    let kinds = Kind::all(scene);
    let title = escape(&format!("Map of free space: {}", scene.now.pool));
    let mut style = format!("{PAGE_STYLE}{STYLE}");
    let (mut buttons, mut legends) = (String::new(), String::new());
    for kind in &kinds {
        let (k, name) = (kind.letter(), kind.name());
        rules(*kind, &format!("#v{k}:checked~main "), &mut style);
        let _ = writeln!(
            style,
            "#v{k}:checked~main .t{k}{{display:inline}}#v{k}:checked~main .l{k}{{display:block}}"
        );
        let checked = if *kind == Kind::By(scene.by) { " checked=\"checked\"" } else { "" };
        let _ = writeln!(
            buttons,
            "<input type=\"radio\" name=\"view\" id=\"v{k}\"{checked}/><label for=\"v{k}\">{name}</label>"
        );
        let _ = writeln!(legends, "<div class=\"legend l{k}\">{}</div>", legend(*kind, scene));
    }
    let mut maps = String::new();
    for report in scene.reports() {
        maps += &figure(report, scene, &kinds, ctx);
    }
    let mut bars = Drawing::new(scene, &kinds);
    let (wide, tall) = bars.histogram(0);
    let bars = svg(wide, tall, &bars.out);
    let mut table = String::new();
    for (label, text) in summary::all(scene, ctx) {
        let (label, text) = (escape(&label), escape(&text));
        let _ = writeln!(table, "<tr><th>{label}</th><td>{text}</td></tr>");
    }
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\
         <meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <title>{title}</title>\n<style>\n{style}</style></head>\n<body>\n<h1>{title}</h1>\n\
         {buttons}<main>\n{legends}<div class=\"maps\">\n{maps}</div>\n\
         <h2>Figures</h2>\n<table>\n{table}</table>\n\
         <h2>Free space by size of its segments</h2>\n{bars}</main>\n</body>\n</html>\n"
    )
}

fn svg(width: usize, height: usize, content: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\">\n{content}</svg>\n"
    )
}

fn figure(report: &SpaceMapReport, scene: &Scene, kinds: &[Kind], ctx: &Context) -> String {
    let mut drawing = Drawing::new(scene, kinds);
    let height = drawing.map(report, 0);
    let picture = svg(drawing.width(), height, &drawing.out);
    let title = match &scene.before {
        None => String::new(),
        Some(before) => {
            let which = if std::ptr::eq(before, report) { "before" } else { "after" };
            let moment = escape(&summary::moment(report, ctx));
            format!("<figcaption>{which}: {moment}</figcaption>")
        }
    };
    format!("<figure>{title}{picture}</figure>\n")
}

fn legend(kind: Kind, scene: &Scene) -> String {
    let swatch = |c| format!("<i style=\"background:{}\"></i>", scale::hex(c));
    let mut out = String::new();
    if kind == Kind::By(By::Owner) && scene.dataset.is_none() {
        let _ = write!(out, "{WHO}<table>");
        for (rank, (name, bytes)) in summary::owners(scene) {
            let colour = swatch(scale::owner_colour(rank));
            let (letter, name) = (scale::letter(rank), escape(&name));
            let _ = write!(out, "<tr><th>{colour} {letter} {name}</th><td>{bytes}</td></tr>");
        }
        let _ = write!(out, "</table><i></i> {OTHERS}");
        return out;
    }
    let width = scale::STEPS * STEP;
    let mut bar = String::new();
    for step in 0..scale::STEPS {
        let colour = match kind {
            Kind::Change => scale::change_colour(step),
            Kind::By(_) => scale::colour(step),
        };
        let (x, colour) = (step * STEP, scale::hex(colour));
        let _ = write!(bar, "<rect x=\"{x}\" width=\"{STEP}\" height=\"12\" fill=\"{colour}\"/>");
    }
    for (step, label) in ticks(kind) {
        let x = step * STEP + STEP / 2;
        let _ = write!(bar, "<text class=\"m\" x=\"{x}\" y=\"24\">{label}</text>");
    }
    let _ = write!(out, "{}<br/>{}", escape(&meaning(kind, scene)), svg(width, 28, &bar));
    if let Some(nothing) = unknown(kind, scene) {
        let _ = write!(out, "<br/><i></i> {nothing}");
    }
    out
}
