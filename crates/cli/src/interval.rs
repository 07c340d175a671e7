//! Commands that report again and again (`zpool list 5`).

use crate::clock::Stamp;
use crate::context::Context;
use crate::outcome::{Outcome, Stop};
use std::time::{Duration, Instant};

/// How often a sleeping command looks whether it was cancelled.
const LOOK: Duration = Duration::from_millis(50);

/// When and how often to report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Schedule {
    /// Pause between reports; `None`: one report.
    pub interval: Option<Duration>,
    /// Number of reports; `None`: without end.
    pub count: Option<u64>,
    /// Print the time before each report.
    pub stamp: Option<Stamp>,
}

impl Schedule {
    /// Calls `report` as often as asked, with the number of the report from 0. Ends early when it
    /// returns anything but 0, or when the command is cancelled.
    pub fn run(
        &self,
        ctx: &mut Context,
        mut report: impl FnMut(u64, &mut Context) -> Outcome,
    ) -> Outcome {
        let mut number = 0u64;
        loop {
            if let Some(stamp) = self.stamp {
                let now = stamp.now(ctx);
                writeln!(ctx.out, "{now}")?;
            }
            let code = report(number, ctx)?;
            number = number.saturating_add(1);
            let Some(interval) = self.interval else { return Ok(code) };
            if code != 0 || self.count.is_some_and(|count| number >= count) {
                return Ok(code);
            }
            ctx.out.flush()?;
            sleep(interval, ctx)?;
        }
    }
}

/// Sleeps unless the command is cancelled meanwhile.
fn sleep(interval: Duration, ctx: &Context) -> Result<(), Stop> {
    let end = Instant::now() + interval;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        if ctx.cancelled() {
            return Err(Stop::Said(1));
        }
        std::thread::sleep(left.min(LOOK));
    }
}
