//! Which objects are worth writing anew, and which of them together: see the head of `reclaim`.

use crate::index::Limits;
use crate::page::Entry;

/// Most objects of a run.
const RUN: usize = 256;

/// Runs of neighbours that are worth writing anew, in order.
pub(crate) fn choose(entries: &[Entry], limits: &Limits) -> Vec<Vec<Entry>> {
    let target = limits.target;
    let mut runs = Vec::new();
    let mut run: Vec<Entry> = Vec::new();
    let mut close = |run: &mut Vec<Entry>| {
        let live: u64 = run.iter().map(|entry| u64::from(entry.live)).sum();
        let run = std::mem::take(run);
        let merged = run.len() > 1 && (live >= target / 2 || run.len() >= 16);
        if merged || run.iter().any(|entry| limits.thin(entry)) {
            runs.push(run);
        }
    };
    for entry in entries {
        let live: u64 = run.iter().map(|entry| u64::from(entry.live)).sum();
        let fits = live + u64::from(entry.live) <= target && run.len() < RUN;
        if !run.is_empty() && !fits {
            close(&mut run);
        }
        if limits.thin(entry) || limits.small(entry) {
            run.push(*entry);
        } else {
            close(&mut run);
        }
    }
    close(&mut run);
    runs
}
