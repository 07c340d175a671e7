//! How far a process is: a bar on a terminal, elsewhere a line at each tenth.

use std::io::{IsTerminal, stderr};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

/// Lines that are printed elsewhere than on a terminal.
const STEPS: u64 = 10;

/// The progress of one process.
pub struct Progress {
    name: String,
    begun: Instant,
    /// On a terminal.
    bar: Option<ProgressBar>,
    /// Lines printed so far.
    steps: u64,
}

impl Progress {
    /// That of a process which begins.
    pub fn new(name: String) -> Progress {
        let bar = stderr().is_terminal().then(|| {
            let shape = "{prefix} {wide_bar} {percent}%, {per_sec} blocks, {eta} left";
            let style = ProgressStyle::with_template(shape).unwrap_or(ProgressStyle::default_bar());
            ProgressBar::new(0).with_style(style).with_prefix(name.clone())
        });
        if bar.is_none() {
            eprintln!("{name} ...");
        }
        Progress { name, begun: Instant::now(), bar, steps: 0 }
    }

    /// Takes a line `at DONE OF`; others are not about progress.
    pub fn line(&mut self, line: &str) {
        let Some((done, of)) = line.strip_prefix("at ").and_then(|rest| rest.split_once(' '))
        else {
            return;
        };
        let (Ok(done), Ok(of)) = (done.parse::<u64>(), of.parse::<u64>()) else { return };
        if let Some(bar) = &self.bar {
            bar.set_length(of);
            bar.set_position(done);
            return;
        }
        let step = done * STEPS / of.max(1);
        if step > self.steps {
            self.steps = step;
            let seconds = self.begun.elapsed().as_secs_f64();
            let left = seconds / done.max(1) as f64 * of.saturating_sub(done) as f64;
            let rate = done as f64 / seconds;
            eprintln!(
                "  {}: {}%, {rate:.0} blocks/s, {left:.0} s left",
                self.name,
                step * 100 / STEPS
            );
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            eprintln!("{}: {:.0} s", self.name, self.begun.elapsed().as_secs_f64());
        }
    }
}
