//! How far `zfs mount -v` has come, in a line that is written over. Of what is done soon nothing is
//! said.

use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Time that passes before there is a line.
const DELAY: Duration = Duration::from_secs(2);

/// The line changes this often.
const PACE: Duration = Duration::from_secs(1);

/// File systems that are being mounted.
pub struct Progress {
    done: usize,
    total: usize,
    begin: Instant,
    /// When the line was written last, if it was.
    shown: Option<Instant>,
}

impl Progress {
    /// Nothing of `total` is done.
    pub fn of(total: usize, begin: Instant) -> Progress {
        Progress { done: 0, total, begin, shown: None }
    }

    /// One more is done.
    pub fn advance(&mut self, now: Instant, out: &mut dyn Write) -> io::Result<()> {
        self.done = self.done.saturating_add(1);
        let count = format!("({}/{})", self.done, self.total);
        let last = self.done == self.total;
        match self.shown {
            Some(_) if last => writeln!(out, "{count}"),
            None if !last && now.duration_since(self.begin) > DELAY => {
                write!(out, "Mounting ZFS filesystems: ")?;
                self.rewritable(&count, now, out)
            }
            Some(shown) if now.duration_since(shown) >= PACE => self.rewritable(&count, now, out),
            _ => Ok(()),
        }
    }

    /// Leaves the cursor in front of the count.
    fn rewritable(&mut self, count: &str, now: Instant, out: &mut dyn Write) -> io::Result<()> {
        self.shown = Some(now);
        write!(out, "{count}{}", "\x08".repeat(count.len()))?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written when a file system is mounted at each of these times.
    fn written(seconds: &[u64]) -> String {
        let begin = Instant::now();
        let mut progress = Progress::of(seconds.len(), begin);
        let mut out = Vec::new();
        for s in seconds {
            progress.advance(begin + Duration::from_secs(*s), &mut out).unwrap();
        }
        String::from_utf8(out).unwrap().replace('\x08', "<")
    }

    #[test]
    fn only_what_takes_long_is_told() {
        assert_eq!(written(&[]), "");
        assert_eq!(written(&[0, 1, 2]), "");
        assert_eq!(written(&[0, 1, 9]), "");
        assert_eq!(written(&[1, 3, 3, 3]), "Mounting ZFS filesystems: (2/4)<<<<<(4/4)\n");
        assert_eq!(written(&[3, 3, 4, 5]), "Mounting ZFS filesystems: (1/4)<<<<<(3/4)<<<<<(4/4)\n");
    }
}
