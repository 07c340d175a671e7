//! Figures of transaction groups for programs: JSON, and Prometheus' text format.
//!
//! Both go through the engine's tables of figures, so that they have the same figures. A name gets
//! its unit behind it:
//!
//! | unit | JSON | Prometheus |
//! |---|---|---|
//! | bytes | `dirty_bytes` | `cenote_sync_dirty_bytes_total` |
//! | nanoseconds | `total_time_ns` | `cenote_sync_total_time_seconds_total` |
//! | things | `passes` | `cenote_sync_passes_total` |
//!
//! Gauges go without `_total`. JSON is one object:
//!
//! ```text
//! {"version": 1, "pools": [{"pool": NAME,
//!   "totals": {figures since the import},
//!   "txgs": [{figures of a group, "pass_figures": [{figures of a pass}]}],
//!   "latencies": {NAME: {"count": N, "total_ns": N, "buckets": [{"upto_ns": N, "count": N}]}},
//!   "store": {figures of the pool's object store, if its data is in one}}]}
//! ```
//!
//! The last bucket of a histogram has in it whatever took longer, and `upto_ns` is null there.

use super::Report;
use crate::table::{Column, Table};
use cenote_engine::figures::{Figure, Kind, LATENCIES, LatencyFigure, PassFigures, TxgFigures};
use cenote_engine::tunables::Unit;
use cenote_vdev::stats::{LATENCY_BUCKETS, LatencyFigures};
use cenote_vdev::{GROWING_FIGURES, GrowingFigure};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Version of the JSON object: another one if something in it gets another meaning.
const VERSION: u32 = 1;

/// Figures by name.
type Figures = Map<String, Value>;

#[derive(Serialize)]
struct Document {
    version: u32,
    pools: Vec<PoolDocument>,
}

#[derive(Serialize)]
struct PoolDocument {
    pool: String,
    totals: Figures,
    txgs: Vec<GroupDocument>,
    latencies: BTreeMap<&'static str, HistogramDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<Figures>,
}

#[derive(Serialize)]
struct GroupDocument {
    #[serde(flatten)]
    figures: Figures,
    pass_figures: Vec<Figures>,
}

#[derive(Serialize)]
struct HistogramDocument {
    count: u64,
    total_ns: u64,
    buckets: Vec<Bucket>,
}

#[derive(Serialize)]
struct Bucket {
    upto_ns: Option<u64>,
    count: u64,
}

/// The name of a figure in JSON.
fn json_name(figure: &Figure) -> String {
    match figure.unit {
        Unit::Bytes => format!("{}_bytes", figure.name),
        Unit::Nanoseconds => format!("{}_ns", figure.name),
        _ => figure.name.into(),
    }
}

/// The name of a figure for Prometheus.
fn prometheus_name(figure: &Figure) -> String {
    let unit = match figure.unit {
        Unit::Bytes => "_bytes",
        Unit::Nanoseconds => "_seconds",
        _ => "",
    };
    let total = if figure.kind == Kind::Counter { "_total" } else { "" };
    format!("cenote_sync_{}{unit}{total}", figure.name)
}

/// The name of a figure of an object store for Prometheus.
fn object_name(figure: &GrowingFigure) -> String {
    format!("cenote_store_{}{}", figure.name, if figure.is_counter { "_total" } else { "" })
}

/// Figures of the pool's object store, if its data is in one, by [`GROWING_FIGURES`].
fn objects(r: &Report) -> Option<[u64; GROWING_FIGURES.len()]> {
    Some(r.engine.pool().store().vdevs().growing_figures()?.values())
}

fn named(figures: Vec<(&'static Figure, u64)>) -> Figures {
    figures.into_iter().map(|(figure, value)| (json_name(figure), value.into())).collect()
}

/// Most nanoseconds that a bucket counts; `None`: there is no bound.
fn upto(bucket: usize) -> Option<u64> {
    (bucket + 1 < LATENCY_BUCKETS).then(|| (2u64 << bucket) - 1)
}

fn histogram(figures: &LatencyFigures) -> HistogramDocument {
    let bucket = |(i, count): (usize, &u64)| Bucket { upto_ns: upto(i), count: *count };
    HistogramDocument {
        count: figures.count(),
        total_ns: u64::try_from(figures.total.as_nanos()).unwrap_or(u64::MAX),
        buckets: figures.histogram.iter().enumerate().map(bucket).collect(),
    }
}

fn group(group: &TxgFigures) -> GroupDocument {
    let passes = group.passes.iter().map(|pass| named(pass.figures()));
    GroupDocument { figures: named(group.figures()), pass_figures: passes.collect() }
}

fn pool(r: &Report) -> PoolDocument {
    let latency = |l: &LatencyFigure| (l.name, histogram(&l.of(&r.engine)));
    PoolDocument {
        pool: r.pool.clone(),
        totals: named(r.engine.totals()),
        txgs: r.groups.iter().map(group).collect(),
        latencies: LATENCIES.iter().map(latency).collect(),
        store: objects(r).map(|values| {
            let names = GROWING_FIGURES.iter().map(|figure| figure.name.to_string());
            names.zip(values.map(Value::from)).collect()
        }),
    }
}

/// One JSON object with all figures.
pub fn json(reports: &[Report], out: &mut dyn Write) -> io::Result<()> {
    let document = Document { version: VERSION, pools: reports.iter().map(pool).collect() };
    serde_json::to_writer(&mut *out, &document)?;
    writeln!(out)
}

/// A value in base units.
fn base(value: u64, unit: Unit) -> String {
    match unit {
        Unit::Nanoseconds => seconds(value),
        _ => value.to_string(),
    }
}

/// Nanoseconds as seconds, exactly.
fn seconds(ns: u64) -> String {
    const SECOND: u64 = 1_000_000_000;
    let text = format!("{}.{:09}", ns / SECOND, ns % SECOND);
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// The value of a label, escaped.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn about(name: &str, kind: &str, description: &str, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "# HELP {name} {description}\n# TYPE {name} {kind}")
}

/// Totals since the import in Prometheus' text format.
pub fn prometheus(reports: &[Report], out: &mut dyn Write) -> io::Result<()> {
    let totals: Vec<_> = reports.iter().map(|r| (label(&r.pool), r.engine.totals())).collect();
    for (at, (figure, _)) in TxgFigures::default().figures().into_iter().enumerate() {
        let name = prometheus_name(figure);
        let kind = if figure.kind == Kind::Counter { "counter" } else { "gauge" };
        about(&name, kind, figure.description, out)?;
        for (pool, all) in &totals {
            if let Some((_, value)) = all.get(at) {
                writeln!(out, "{name}{{pool=\"{pool}\"}} {}", base(*value, figure.unit))?;
            }
        }
    }
    let stores: Vec<_> =
        reports.iter().filter_map(|r| Some((label(&r.pool), objects(r)?))).collect();
    for (at, figure) in GROWING_FIGURES.iter().enumerate().filter(|_| !stores.is_empty()) {
        let (name, kind) =
            (object_name(figure), if figure.is_counter { "counter" } else { "gauge" });
        about(&name, kind, figure.about, out)?;
        for (pool, values) in &stores {
            writeln!(out, "{name}{{pool=\"{pool}\"}} {}", values[at])?;
        }
    }
    for latency in LATENCIES {
        let name = format!("cenote_{}_seconds", latency.name);
        about(&name, "histogram", latency.description, out)?;
        for r in reports {
            buckets(&name, &label(&r.pool), &latency.of(&r.engine), out)?;
        }
    }
    Ok(())
}

/// The lines of one histogram.
fn buckets(name: &str, pool: &str, all: &LatencyFigures, out: &mut dyn Write) -> io::Result<()> {
    let mut sum = 0u64;
    for (i, count) in all.histogram.iter().enumerate() {
        sum = sum.saturating_add(*count);
        let le = upto(i).map_or_else(|| "+Inf".into(), seconds);
        writeln!(out, "{name}_bucket{{pool=\"{pool}\",le=\"{le}\"}} {sum}")?;
    }
    let total = u64::try_from(all.total.as_nanos()).unwrap_or(u64::MAX);
    writeln!(out, "{name}_sum{{pool=\"{pool}\"}} {}", seconds(total))?;
    writeln!(out, "{name}_count{{pool=\"{pool}\"}} {sum}")
}

/// The names of all figures: of groups, of passes (which are not exported for Prometheus), of
/// histograms.
pub fn fields(scripted: bool, out: &mut dyn Write) -> io::Result<()> {
    let mut rows: Vec<[String; 4]> = Vec::new();
    for (figure, _) in TxgFigures::default().figures() {
        let names = [json_name(figure), prometheus_name(figure)];
        let [json, prometheus] = names;
        rows.push(["txg".into(), json, prometheus, figure.description.into()]);
    }
    for (figure, _) in PassFigures::default().figures() {
        rows.push(["pass".into(), json_name(figure), "-".into(), figure.description.into()]);
    }
    for latency in LATENCIES {
        let prometheus = format!("cenote_{}_seconds", latency.name);
        let (json, about) = (latency.name.to_string(), latency.description.to_string());
        rows.push(["latency".into(), json, prometheus, about]);
    }
    for figure in &GROWING_FIGURES {
        rows.push(["store".into(), figure.name.into(), object_name(figure), figure.about.into()]);
    }
    let mut columns: Vec<Column> =
        ["OF", "JSON", "PROMETHEUS", "DESCRIPTION"].map(Column::text).into();
    for row in &rows {
        columns.iter_mut().zip(row).for_each(|(column, value)| column.fit(value, true));
    }
    let table = Table { columns, scripted };
    table.header(out)?;
    rows.iter().try_for_each(|row| table.row(out, row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_units() {
        assert_eq!(seconds(0), "0");
        assert_eq!(seconds(1), "0.000000001");
        assert_eq!(seconds(10_500_000_000), "10.5");
        assert_eq!(seconds(20_000_000_000), "20");
        assert_eq!(label("a\"b\\c"), "a\\\"b\\\\c");
        assert_eq!((upto(0), upto(9), upto(36)), (Some(1), Some(1023), None));
    }
}
