//! What the user sees of a simulation while it runs: a bar on a terminal, a line now and then
//! otherwise. The command runs in the user's own process, so the bar goes to its standard error.

use crate::context::Context;
use cenote_age::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// Without a terminal, a line is written this often.
const SELDOM: Duration = Duration::from_secs(10);
const FORM: &str = "{bar:24} {percent:>3}%  {msg}";

/// Shows how far it is.
pub(super) struct Watch {
    total: Duration,
    quiet: bool,
    said: Instant,
    bar: Option<ProgressBar>,
}

impl Watch {
    /// Of a simulation of so much time.
    pub fn new(total: Duration, quiet: bool, ctx: &Context) -> Watch {
        let bar = (!quiet && ctx.terminal.err).then(|| {
            let target = ProgressDrawTarget::stderr();
            let bar = ProgressBar::with_draw_target(Some(total.as_secs()), target);
            if let Ok(style) = ProgressStyle::with_template(FORM) {
                bar.set_style(style);
            }
            bar
        });
        Watch { total, quiet, said: Instant::now(), bar }
    }

    /// Shows it; whether to go on.
    pub fn look(&mut self, at: Progress, ctx: &mut Context) -> bool {
        match &self.bar {
            Some(bar) => {
                bar.set_position(at.simulated.as_secs());
                bar.set_message(self.line(at));
            }
            None if !self.quiet && self.said.elapsed() >= SELDOM => {
                self.said = Instant::now();
                ctx.complain(self.line(at));
            }
            None => {}
        }
        !ctx.cancelled()
    }

    fn line(&self, at: Progress) -> String {
        if at.filling {
            return format!("the pool is being filled, for {} s", at.spent.as_secs());
        }
        let (simulated, spent) = (at.simulated.as_secs_f64(), at.spent.as_secs_f64());
        let factor = simulated / spent.max(1e-9);
        let left = (self.total.as_secs_f64() - simulated) / factor.max(1e-9);
        let days = simulated / 86_400.0;
        format!("{days:.1} d simulated, {factor:.0} times as fast as time, {left:.0} s left")
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
