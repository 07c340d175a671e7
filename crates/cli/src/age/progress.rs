//! What the user sees of a simulation while it runs: a bar on a terminal, a line now and then
//! otherwise.

use crate::context::Context;
use crate::progress::{Bar, Seldom};
use cenote_age::Progress;
use std::time::Duration;

/// Shows how far it is.
pub(super) struct Watch {
    total: Duration,
    quiet: bool,
    seldom: Seldom,
    bar: Option<Bar>,
}

impl Watch {
    /// Of a simulation of so much time.
    pub fn new(total: Duration, quiet: bool, ctx: &Context) -> Watch {
        let bar = if quiet { None } else { Bar::with_message(ctx) };
        Watch { total, quiet, seldom: Seldom::begin(), bar }
    }

    /// Shows it.
    pub fn look(&mut self, at: Progress, ctx: &mut Context) {
        let (done, total) = match at.filling {
            Some((done, total)) => (done, total),
            None => (at.simulated.as_secs(), self.total.as_secs()),
        };
        match &self.bar {
            Some(bar) => bar.tell(done, total.max(done), self.line(at), ctx),
            None if !self.quiet && self.seldom.is_due() => ctx.complain(self.line(at)),
            None => {}
        }
    }

    fn line(&self, at: Progress) -> String {
        let spent = at.spent.as_secs_f64();
        if let Some((done, total)) = at.filling {
            let left = spent * total.saturating_sub(done) as f64 / done.max(1) as f64;
            return format!("the pool is being filled, for {spent:.0} s, {left:.0} s left");
        }
        let simulated = at.simulated.as_secs_f64();
        let factor = simulated / spent.max(1e-9);
        let left = (self.total.as_secs_f64() - simulated) / factor.max(1e-9);
        let days = simulated / 86_400.0;
        format!("{days:.1} d simulated, {factor:.0} times as fast as time, {left:.0} s left")
    }

    /// Takes the bar away.
    pub fn finish(&self, ctx: &mut Context) {
        if let Some(bar) = &self.bar {
            bar.finish(ctx);
        }
    }
}
