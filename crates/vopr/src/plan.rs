//! What a history does: steps, each of which has its own random numbers, so that some can be left out and the others
//! stay what they are.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// A fault that is planted, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Flushes do nothing: as if one were missed before an uberblock.
    NoFlush,
    /// A write now and then is lost.
    LostWrite,
    /// A block that is in use is freed, and freed again.
    DoubleFree,
    /// A change of a file is acknowledged and not made.
    LostUpdate,
    /// What disks miss is not noted in their dirty time logs.
    LostLog,
}

impl Plant {
    /// All of them, with their names.
    pub const ALL: [(&str, Plant); 5] = [
        ("no-flush", Plant::NoFlush),
        ("lost-write", Plant::LostWrite),
        ("double-free", Plant::DoubleFree),
        ("lost-update", Plant::LostUpdate),
        ("lost-log", Plant::LostLog),
    ];
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Datasets are changed at the same time, each by a thread of its own.
    Work,
    /// A dataset or snapshot comes, goes or changes, while others are worked with.
    Change,
    /// Time passes.
    Wait,
    /// All is written.
    Sync,
    /// What is in use is compared with the model.
    Compare,
    /// The pool is exported and imported, and may go back to its checkpoint.
    Reimport,
    /// The power goes soon.
    Cut,
    /// A disk fails, lies or gets slow.
    Break,
    /// It is well again.
    Mend,
    /// A device joins, leaves, goes out of use or comes back, is trimmed or initialized, or a scrub begins, while datasets are worked with.
    Devices,
    /// Disks without which the pool cannot be written take nothing any more, until it is resumed.
    Outage,
    /// A checkpoint is taken, or the one that there is discarded.
    Checkpoint,
    /// All disks are well, and become whole again, which is proved.
    Settle,
}

/// A step.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Its number in the whole plan.
    pub number: usize,
    /// What it does.
    pub kind: Kind,
    /// Where the rest comes from.
    pub seed: u64,
}

/// The plan of a seed.
pub fn plan(seed: u64, steps: usize) -> Vec<Step> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let step = |number| {
        let kind = match rng.random_range(0..100) {
            0..31 => Kind::Work,
            31..54 => Kind::Change,
            54..61 => Kind::Wait,
            61..65 => Kind::Sync,
            65..68 => Kind::Compare,
            68..71 => Kind::Reimport,
            71..77 => Kind::Cut,
            77..81 => Kind::Break,
            81..84 => Kind::Mend,
            84..93 => Kind::Devices,
            93..95 => Kind::Outage,
            95..98 => Kind::Checkpoint,
            _ => Kind::Settle,
        };
        Step { number, kind, seed: rng.random() }
    };
    (0..steps).map(step).collect()
}
