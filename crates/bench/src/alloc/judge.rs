//! OpenZFS's `zdb` on the pool: the space maps are what was meant.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};

use super::POOL;
use super::spoil::Map;

fn zdb(program: &Path, dir: &Path, args: &[&str]) -> anyhow::Result<String> {
    let out = Command::new(program)
        .args(["-e", "-p"])
        .arg(dir)
        .args(args)
        .output()
        .with_context(|| format!("running {}", program.display()))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        let errors = String::from_utf8_lossy(&out.stderr);
        bail!("zdb {args:?} failed: {errors}\n{text}");
    }
    Ok(text)
}

/// Has `zdb -m` list all metaslabs, and `zdb -mm` show the histogram of the first spoiled one, which
/// has to be as `first` says. (`-mmm`, which loads it, takes minutes: `zdb` verifies its trees at
/// each step. The peer loads it.)
pub fn judge(program: &Path, dir: &Path, spoiled: &[u64], first: &Map) -> anyhow::Result<()> {
    let all = zdb(program, dir, &["-m", POOL])?;
    for ms in spoiled {
        let name = ms.to_string();
        let line = all.lines().find(|l| l.split_whitespace().take(2).eq(["metaslab", &name]));
        let line = line.with_context(|| format!("zdb -m has no metaslab {ms}:\n{all}"))?;
        ensure!(!line.ends_with(" 16G") && line.contains("free"), "{line}");
    }
    let name = spoiled[0].to_string();
    let one = zdb(program, dir, &["-mm", POOL, "0", &name])?;
    let (found, expected) = (histogram(&one, "On-disk histogram:"), buckets(first));
    ensure!(found == expected, "histogram {found:?} instead of {expected:?}:\n{one}");
    Ok(())
}

/// The counts of a histogram that `zdb` prints below `title`, by log2 of the size.
fn histogram(text: &str, title: &str) -> Vec<(usize, u64)> {
    let lines = text.lines().skip_while(|l| !l.trim().starts_with(title)).skip(1);
    let count = |line: &str| {
        let (bucket, count) = line.trim().split_once(':')?;
        Some((bucket.parse().ok()?, count.split_whitespace().next()?.parse().ok()?))
    };
    lines.map_while(count).collect()
}

/// What it should be.
fn buckets(map: &Map) -> Vec<(usize, u64)> {
    let counts = map.histogram.counts().iter().copied().enumerate();
    counts.filter(|(_, count)| *count > 0).collect()
}
