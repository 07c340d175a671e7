//! A step back to an earlier state of a pool, and how it is told (`zpool_explain_recover`, `zpool_rewind_exclaim`).

use cenote_format::label::Uberblock;

/// A step back to an earlier state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewind {
    /// Transaction group of the newest uberblock.
    pub from_txg: u64,
    /// Transaction group opened.
    pub to_txg: u64,
    /// When that was written: seconds since 1970.
    pub to_time: u64,
    /// Seconds of work given up, by the times in the two uberblocks.
    pub lost_seconds: u64,
}

impl Rewind {
    pub(crate) fn between(newest: &Uberblock, chosen: &Uberblock) -> Rewind {
        Rewind {
            from_txg: newest.txg,
            to_txg: chosen.txg,
            to_time: chosen.timestamp,
            lost_seconds: crate::time::between(chosen.timestamp, newest.timestamp),
        }
    }

    /// `5 minutes`, `30 seconds`; `None` if nothing was lost.
    fn loss(&self) -> Option<String> {
        match self.lost_seconds {
            0 => None,
            s if s > 120 => Some(format!("{} minutes", s / 60 + u64::from(s % 60 >= 30))),
            s => Some(format!("{s} seconds")),
        }
    }

    /// What `zpool import -F` prints when it has stepped back; `time` is how times (seconds since 1970) are shown.
    pub fn done(&self, pool: &str, time: &dyn Fn(u64) -> String) -> String {
        let when = time(self.to_time);
        let mut text = format!("Pool {pool} returned to its state as of {when}.\n");
        if let Some(loss) = self.loss() {
            text.push_str(&format!("Discarded approximately {loss} of transactions.\n"));
        }
        text
    }

    /// What `zpool import` prints when it could step back but was not asked to.
    pub fn explain(&self, pool: &str, time: &dyn Fn(u64) -> String) -> String {
        let when = time(self.to_time);
        let mut text = format!(
            "\tRecovery is possible, but will result in some data loss.\n\
             \tReturning the pool to its state as of {when}\n\tshould correct the problem.  "
        );
        if let Some(loss) = self.loss() {
            text.push_str(&format!(
                "Approximately {loss} of data\n\tmust be discarded, irreversibly.  "
            ));
        }
        text.push_str(&format!(
            "Recovery can be attempted\n\tby executing 'zpool import -F {pool}'.  \
             A scrub of the pool\n\tis strongly recommended after recovery.\n"
        ));
        text
    }
}
