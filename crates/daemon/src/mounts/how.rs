//! How file systems are mounted, and were before they were taken away for a change.

use std::path::PathBuf;

/// How to mount.
#[derive(Clone, Debug, Default)]
pub struct How {
    /// `-O`: over a directory that is not empty, whatever the `overlay` property says.
    pub overlay: bool,
    /// `-f`: also what was received without all of its files (redacted).
    pub force: bool,
    /// `-l`: the command loads the key first.
    pub load_key: bool,
    /// The directory that mount(8) was given, which counts in place of the mountpoint.
    pub at: Option<PathBuf>,
    /// `-o`: options, already split.
    pub options: Vec<String>,
}

/// File systems that were unmounted for a change.
#[derive(Default)]
pub struct Away(pub(super) Vec<(u64, How)>);

impl Away {
    /// Those with these objects, last mounted first.
    pub(super) fn of(datasets: Vec<(u64, How)>) -> Away {
        Away(datasets)
    }

    /// Their objects.
    pub fn ids(&self) -> Vec<u64> {
        self.0.iter().map(|(id, _)| *id).collect()
    }
}
