//! Pools that deduplicate, and pools that are encrypted.
//!
//! Of three pools two deduplicate what is written to them, with tables that have logs (`fast_dedup`) or with those of before; of three
//! one is encrypted. What is written to the former comes again often, so that blocks have many references. `dedup` is changed like
//! other properties. Beside work, entries are taken out of the tables (`zpool ddtprune`), and what tables may take on disk
//! changes (`dedup_table_quota`). Logs are flushed so soon that a history sees it.
//!
//! What tables count is compared with a walk of everything (`cenote_torture::live::dedup`): of what each loss of power left, before it
//! is imported, and in the end.

use super::{Done, Sim, tell};
use cenote_engine::Prune;
use cenote_engine::tunables::find;
use cenote_pool::props::PropChange;
use cenote_torture::live::Stopped;
use cenote_torture::live::dedup;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// What `dedup` may be: what OpenZFS 2.1 knows, which judges.
pub(super) const VALUES: &[&str] = &[
    "on",
    "verify",
    "sha256",
    "sha512",
    "sha512,verify",
    "skein",
    "skein,verify",
    "edonr,verify",
    "off",
];
/// Bounds of the tables: none, the one that vdevs give, and next to nothing.
const QUOTAS: [u64; 3] = [0, u64::MAX, 16 << 10];

/// How a pool writes blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    /// The pool deduplicates.
    pub dedup: bool,
    /// Its tables have logs.
    pub fast: bool,
    /// It is encrypted.
    pub encrypted: bool,
}

/// What is done to tables beside work.
#[derive(Clone, Copy, Debug)]
pub(super) enum TableChange {
    /// About so many of a hundred of the entries with one reference are taken out.
    Prune(u64),
    /// Tables may take so much.
    Quota(u64),
}

impl Blocks {
    /// As the seed says. What else a history does is the same for all of them.
    pub fn of(seed: u64) -> Done<Blocks> {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0xdedb);
        let (dedup, fast) = (rng.random_ratio(2, 3), rng.random());
        let encrypted = rng.random_ratio(1, 3);
        let set = [
            ("zfs_dedup_log_txg_max", [1, 2, 8]),
            ("zfs_dedup_log_flush_entries_min", [1, 3, 200]),
            ("zfs_dedup_log_flush_txgs", [2, 10, 100]),
        ];
        for (name, values) in set {
            let tunable = find(name).ok_or_else(|| Stopped(format!("there is no {name}")))?;
            tunable.set(values[rng.random_range(0..values.len())])?;
        }
        Ok(Blocks { dedup, fast, encrypted })
    }
}

impl Sim {
    /// What may be done to the tables, now and then.
    pub(super) fn any_table_change(&self, rng: &mut SmallRng) -> Option<TableChange> {
        if !self.blocks.dedup || rng.random_ratio(2, 3) {
            return None;
        }
        Some(match rng.random_bool(0.7) {
            true => TableChange::Prune([50, 100][rng.random_range(0..2)]),
            false => TableChange::Quota(QUOTAS[rng.random_range(0..QUOTAS.len())]),
        })
    }

    pub(super) fn change_tables(&self, change: TableChange) -> Done {
        tell(format_args!("{change:?}"));
        let engine = self.engine()?;
        match change {
            TableChange::Prune(percent) => {
                let pruned = engine.prune_dedup(Prune::Percent(percent))?;
                tell(format_args!("{pruned} entries are taken out"));
            }
            TableChange::Quota(most) => {
                engine.set_properties(vec![PropChange::Number("dedup_table_quota", most)])?;
            }
        }
        Ok(())
    }

    /// The tables of a pool that is not imported count the references that a walk finds.
    pub(super) fn check_tables(&self) -> Done {
        if !self.blocks.dedup {
            return Ok(());
        }
        let several = dedup::check(&*self.lab.look().map_err(Stopped)?)?;
        tell(format_args!("{several} blocks have several references"));
        Ok(())
    }
}
