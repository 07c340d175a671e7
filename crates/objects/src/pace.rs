//! How fast the store answers, and how much must be under way so that it is as fast as it can be.
//!
//! # Idea
//!
//! A sequential reader needs as many bytes under way as the line carries in the time of one request. Neither is known beforehand, and both are never
//! seen at once: the shortest time of a request is seen while few are under way, and the highest rate while many are. So both are
//! kept for a while, each for itself ([`Pace::window`] multiplies them, as congestion control by bandwidth and delay does). Twice as much as that is asked
//! for: where the line carries more the rate grows with it, and so does the window, from request to request; where it does not, the window stays.
//!
//! A rate is measured by a request: what all requests brought from its beginning to its end, by the time that it took.
//!
//! What is seen is forgotten after [`KEPT`] to twice [`KEPT`]: lines change, and readers that read slowly on purpose hold nothing back for longer.

use std::time::Duration;

use tokio::time::Instant;

/// How long what was seen counts, at least.
const KEPT: Duration = Duration::from_secs(10);
/// A request of so many bytes or less shows how long the store takes to answer; one with more how long bytes take.
const SMALL: u64 = 128 << 10;
/// How much of the last seen value goes into a moving average.
const WEIGHT: f64 = 0.1;

/// A read that begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    at: Instant,
    /// Bytes that all reads had brought by then.
    brought: u64,
}

/// The best of what was seen lately: of two times of [`KEPT`], this one and the one before.
#[derive(Debug, Clone, Copy, Default)]
struct Best {
    shortest: Option<Duration>,
    /// Bytes a second.
    highest: f64,
}

impl Best {
    fn see(&mut self, took: Duration, rate: f64) {
        self.shortest = Some(self.shortest.map_or(took, |shortest| shortest.min(took)));
        self.highest = self.highest.max(rate);
    }
}

/// How fast the store answers.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Seconds until a small request is answered, as a moving average.
    latency: f64,
    /// Bytes a second of a long request, as a moving average.
    bandwidth: f64,
    /// Bytes that all reads brought.
    brought: u64,
    since: Option<Instant>,
    now: Best,
    before: Best,
}

impl Pace {
    /// A read begins.
    pub fn begin(&self) -> Begun {
        Begun { at: Instant::now(), brought: self.brought }
    }

    /// A read has brought so many bytes.
    pub fn end(&mut self, begun: Begun, length: u64) {
        let took = begun.at.elapsed();
        let seconds = took.as_secs_f64();
        self.brought = self.brought.wrapping_add(length);
        let learn = |mean: &mut f64, seen: f64| {
            *mean = if *mean == 0.0 { seen } else { *mean * (1.0 - WEIGHT) + seen * WEIGHT }
        };
        if length <= SMALL {
            return learn(&mut self.latency, seconds);
        }
        if seconds > self.latency {
            learn(&mut self.bandwidth, length as f64 / (seconds - self.latency));
        }
        let now = Instant::now();
        match self.since {
            Some(since) if now - since < KEPT => {}
            Some(since) => {
                // What is older than both times is of no more use.
                let last = std::mem::take(&mut self.now);
                self.before = if now - since < 2 * KEPT { last } else { Best::default() };
                self.since = Some(now);
            }
            None => self.since = Some(now),
        }
        let brought = self.brought.wrapping_sub(begun.brought);
        if seconds > 0.0 {
            self.now.see(took, brought as f64 / seconds);
        }
    }

    /// How long a read of so many bytes takes, about.
    pub fn usual(&self, length: u64) -> Option<Duration> {
        let bytes = if self.bandwidth > 0.0 { length as f64 / self.bandwidth } else { 0.0 };
        Duration::try_from_secs_f64(self.latency + bytes).ok()
    }

    /// Bytes that should be under way; 0 where nothing is known.
    pub fn window(&self) -> u64 {
        let best = [self.now, self.before];
        let highest = best.iter().map(|best| best.highest).fold(0.0, f64::max);
        let shortest = best.iter().filter_map(|best| best.shortest).min();
        shortest.map_or(0, |shortest| (2.0 * highest * shortest.as_secs_f64()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const OBJECT: u64 = 4 << 20;

    /// So many reads at once, again and again, by a line that carries `rate` bytes a second and answers after `latency`; for each round
    /// as many as the pace says. Returns how many bytes were under way in the last one.
    async fn rounds(pace: &mut Pace, latency: Duration, rate: u64, rounds: usize) -> u64 {
        let mut window = OBJECT;
        for _ in 0..rounds {
            let count = window.div_ceil(OBJECT);
            let begun: Vec<Begun> = (0..count).map(|_| pace.begin()).collect();
            advance(latency).await;
            for one in begun {
                advance(Duration::from_secs_f64(OBJECT as f64 / rate as f64)).await;
                pace.end(one, OBJECT);
            }
            window = pace.window();
        }
        window
    }

    #[tokio::test(start_paused = true)]
    async fn the_window_grows_to_what_the_line_carries_and_no_further() {
        for (milliseconds, rate) in [(10, 500 << 20), (30, 1 << 30), (100, 200 << 20)] {
            let (mut pace, latency) = (Pace::default(), Duration::from_millis(milliseconds));
            let window = rounds(&mut pace, latency, rate, 20).await;
            // One request takes its own bytes as well.
            let product = rate as f64 * latency.as_secs_f64() + OBJECT as f64;
            let share = window as f64 / product;
            assert!((1.0..=2.1).contains(&share), "{milliseconds} ms, {rate}: {share}");
            let later = rounds(&mut pace, latency, rate, 20).await;
            assert!(later <= window + window / 10, "{window} {later}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_more_is_forgotten() {
        let mut pace = Pace::default();
        assert_eq!(pace.window(), 0);
        let fast = rounds(&mut pace, Duration::from_millis(30), 1 << 30, 20).await;
        advance(3 * KEPT).await;
        let slow = rounds(&mut pace, Duration::from_millis(30), 50 << 20, 8).await;
        assert!(slow < fast / 4, "{slow} {fast}");
    }

    #[tokio::test(start_paused = true)]
    async fn small_reads_say_nothing_of_the_line() {
        let mut pace = Pace::default();
        let begun = pace.begin();
        advance(Duration::from_millis(20)).await;
        pace.end(begun, 4096);
        assert_eq!((pace.window(), pace.usual(0)), (0, Some(Duration::from_millis(20))));
    }
}
